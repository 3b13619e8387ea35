"""Profiles on request: each is made of the ticks from the request on, or since the last one."""

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from offtop.export import pprof
from offtop.export.profile import profile_of, unnamed_frames
from offtop.feed.source import Source
from offtop.model.windows.breakdown import Idle, shares
from offtop.model.windows.history import HistoryTick
from offtop.model.windows.window import Window, merge
from offtop.units import NS_PER_S

SHORTEST_TICK_NS = NS_PER_S
_TICKS = 5
"""Ticks of a profile at least, if they are not shorter than SHORTEST_TICK_NS then."""
_NAMES_SECONDS = 3.0
_BATCH = 16
"""How many windows are merged at a time."""


class _Requested:
    """A profile whose ticks are still to come."""

    def __init__(self, span_ns: int) -> None:
        self.span_ns = span_ns
        self.measured_ns = 0
        self.windows: list[Window] = []
        self.idle = Idle()

    def add(self, tick: HistoryTick) -> None:
        self.windows.append(tick.window)
        self.measured_ns += tick.span_ns
        self.idle = tick.idle
        if len(self.windows) == _BATCH:
            self.windows = [merge(self.windows)]

    @property
    def is_complete(self) -> bool:
        return self.measured_ns >= self.span_ns


class Profiles:
    """Hands ticks to the requests that wait for them. Thread-safe."""

    def __init__(self, source: Source, set_delay: Callable[[int], None], delay_ns: int) -> None:
        """`set_delay` changes the time between ticks, which is `delay_ns` while no profile is being made."""
        self._source, self._set_delay, self._delay_ns = source, set_delay, delay_ns
        self._changed = threading.Condition()
        self._requested: list[_Requested] = []
        self._last_delta_ns: int | None = None
        """CLOCK_MONOTONIC of the end of the last profile from `delta`."""

    def add(self, tick: HistoryTick) -> None:
        """Add a tick to all profiles that are being made."""
        with self._changed:
            for one in self._requested:
                if not one.is_complete:
                    one.add(tick)
            self._changed.notify_all()

    def of_next(self, span_ns: int, goes_on: Callable[[], bool]) -> bytes | None:
        """Return the next `span_ns` as a gzipped pprof profile. Blocks until they are over.

        It is made of whole ticks. `goes_on` is asked once a second; if it returns False, the result is None.
        """
        with self._request(span_ns) as one:
            with self._changed:
                while not one.is_complete:
                    self._changed.wait(1.0)
                    if not goes_on():
                        return None
            return self._packed(one.windows, one.idle)

    def delta(self, ticks: Sequence[HistoryTick]) -> bytes | None:
        """Return those of `ticks` that came after the last call, as a gzipped pprof profile; None if there are none."""
        with self._changed:
            since_ns = self._last_delta_ns
            some = [tick for tick in ticks if since_ns is None or tick.at_ns > since_ns]
            if not some:
                return None
            self._last_delta_ns = some[-1].at_ns
        return self._packed([tick.window for tick in some], some[-1].idle)

    @contextmanager
    def _request(self, span_ns: int) -> Generator[_Requested]:
        one = _Requested(span_ns)
        with self._changed:
            self._requested.append(one)
            self._choose_delay()
        try:
            yield one
        finally:
            with self._changed:
                self._requested.remove(one)
                self._choose_delay()

    def _choose_delay(self) -> None:
        shorter = [max(SHORTEST_TICK_NS, one.span_ns // _TICKS) for one in self._requested]
        self._set_delay(min(self._delay_ns, *shorter) if shorter else self._delay_ns)

    def _packed(self, windows: Sequence[Window], idle: Idle) -> bytes:
        window, source = merge(windows), self._source
        source.wait_for_names(unnamed_frames(window), _NAMES_SECONDS)
        every = shares(window, idle)
        return pprof.packed(profile_of(window, every, source.names, source.host, window.mode))
