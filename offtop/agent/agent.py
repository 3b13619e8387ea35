"""The headless exporter: reads a source at an even pace, for always, and answers requests from what it has read."""

import gzip
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import msgspec

from offtop.agent import exposition
from offtop.agent.counters import Counters
from offtop.agent.exposition import Recording
from offtop.agent.profiles import Profiles
from offtop.agent.server import Answer, Page, Request, refused
from offtop.feed.pace import Pace
from offtop.feed.source import Source
from offtop.feed.suspect_watch import SuspectWatch, history_for
from offtop.model.classify.categories import Categories
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import RuleSource
from offtop.model.classify.suspect import NOTHING_FOUND
from offtop.model.classify.suspect_weights import Weights
from offtop.model.outliers.detector import OutlierDetector
from offtop.model.windows.history import HistoryTick
from offtop.reports.suspect_objects import suspect_objects
from offtop.units import NS_PER_S

HISTORY_NS, _HISTORY_BYTES = 600 * NS_PER_S, 8 << 20
"""How far back `/debug/pprof/delta` goes, and its memory."""
_LATE_TICKS, _LATE_NS = 3, 10 * NS_PER_S
"""After so many ticks, and so much time more, without a tick the agent is not healthy."""
_MOST_PROFILES = 4
_PROFILE_SECONDS, _MOST_PROFILE_SECONDS = 10, 300
_RETRY: Mapping[str, str] = {"Retry-After": "10"}
_NO_TICK = "There is no tick yet. Try again in some seconds"
_CLOSED = "The connection was closed for sending before the profile was complete. Keep it open"
_GZIP_LEVEL = 4


class _Rendered(NamedTuple):
    tick: int
    body: bytes
    zipped: bytes


class Agent:
    """`ticks` belongs to one thread; `pages` are for any."""

    def __init__(
        self,
        source: Source,
        categories: Categories,
        rules: RuleSource,
        weights: Weights,
        delay_ns: int,
        most_series: int,
        detector: OutlierDetector | None = None,
    ) -> None:
        self._source, self._delay_ns, self._most_series = source, delay_ns, most_series
        self._causes = CauseFinder(source.names, rules)
        self._suspects = SuspectWatch(source, weights, rules)
        self._history = history_for(categories, self._causes, self._suspects, HISTORY_NS, _HISTORY_BYTES)
        self.pace = Pace(source, self._history, delay_ns, detector=detector, suspects=self._suspects)
        self._profiles = Profiles(source, self.pace.set_delay, delay_ns)
        self._free_profiles = threading.BoundedSemaphore(_MOST_PROFILES)
        self._counters = Counters(source, self._causes, most_series)
        self._lock = threading.Lock()
        """Guards the counters, the rendered text and the suspects."""
        self._rendered = _Rendered(0, b"", b"")
        self._suspect_objects = b"[]"
        self._ticked_s = time.monotonic()
        self.recording: Callable[[], Recording] | None = None
        """Returns the state of the recording; None: there is none."""

    def run(self, each: Callable[[HistoryTick], None] = lambda _: None) -> None:
        """Read the source until it ends. `each` is called with each tick."""
        for tick in self.pace.ticks():
            stuck, found = self._history.stuck(tick), self._suspects.at(tick.number) or NOTHING_FOUND
            objects = suspect_objects(found, tick.header.catalog, self._source.names, self._causes)
            with self._lock:
                self._counters.add(tick, stuck, found)
                self._suspect_objects = msgspec.json.encode(objects)
                self._ticked_s = time.monotonic()
            self._profiles.add(tick)
            each(tick)

    @property
    def pages(self) -> Mapping[str, Page]:
        return {
            "/metrics": self._metrics,
            "/suspects": self._suspects_page,
            "/debug/pprof/off_cpu": self._profile,
            "/debug/pprof/delta": self._delta,
            "/healthz": self._health,
        }

    def _metrics(self, _: Request) -> Answer:
        """Answer with the metrics as of the newest tick, rendered at most once a tick."""
        with self._lock:
            ticks = self._counters.now.ticks
            if not ticks:
                return refused(503, _NO_TICK, _RETRY)
            if self._rendered.tick != ticks:
                body = exposition.text(self._counters, self._most_series, self.recording and self.recording())
                self._rendered = _Rendered(ticks, body, gzip.compress(body, _GZIP_LEVEL))
            body, zipped = self._rendered[1:]
        return Answer(200, body, exposition.CONTENT_TYPE, zipped)

    def _suspects_page(self, _: Request) -> Answer:
        with self._lock:
            return Answer(200, self._suspect_objects + b"\n", "application/json")

    def _profile(self, request: Request) -> Answer:
        text = request.query.get("seconds", str(_PROFILE_SECONDS))
        if not (text.isascii() and text.isdecimal() and len(text) < 6 and 0 < int(text) <= _MOST_PROFILE_SECONDS):
            return refused(400, f"seconds is not a whole number from 1 to {_MOST_PROFILE_SECONDS}")
        span_ns = int(text) * NS_PER_S
        make = partial(self._profiles.of_next, span_ns, request.is_connected)
        return self._packed(make, f"off_cpu-{text}s.pb.gz", _CLOSED)

    def _delta(self, _: Request) -> Answer:
        delta = partial(self._profiles.delta, self._history.last(HISTORY_NS))
        return self._packed(delta, "off_cpu-delta.pb.gz", _NO_TICK)

    def _packed(self, make: Callable[[], bytes | None], name: str, why_none: str) -> Answer:
        if not self._free_profiles.acquire(blocking=False):
            return refused(503, f"{_MOST_PROFILES} profiles are being made. Try again later", _RETRY)
        try:
            content = make()
        finally:
            self._free_profiles.release()
        if content is None:
            return refused(503, why_none, _RETRY)
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Answer(200, content, "application/octet-stream", may_zip=False, headers=headers)

    def _health(self, _: Request) -> Answer:
        late_s = time.monotonic() - self._ticked_s
        if late_s > (_LATE_TICKS * self._delay_ns + _LATE_NS) / NS_PER_S:
            return refused(
                503, f"The last tick was {late_s:.0f} s ago. Restart the agent: systemctl restart offtop-agent"
            )
        return Answer(200, b"ok\n")
