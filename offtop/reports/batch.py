"""Batch mode: print each tick as text tables, like `top -b`, or as one JSON object.

The output is a pure function of a tick. Before printing, batch mode waits for symbol names, and for process details if
a filter needs them, because printed output cannot be updated later.
"""

import itertools
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TextIO

import numpy as np

from offtop.errors import warn
from offtop.export import folded
from offtop.export.profile import io_stacks, profile_of_rows
from offtop.feed.outlier_actions import OutlierActions
from offtop.feed.pace import Pace, Recorder
from offtop.feed.source import Source
from offtop.feed.suspect_watch import SuspectWatch, history_for
from offtop.model.aggregate.filter import NOTHING
from offtop.model.aggregate.list_rows import activity_of, rows_of
from offtop.model.aggregate.stack_problems import Problems
from offtop.model.aggregate.steps import Shape
from offtop.model.classify.categories import Categories
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import WITHOUT_RULES, RuleSource
from offtop.model.classify.suspect import NOTHING_FOUND, Found
from offtop.model.classify.suspect_weights import Weights
from offtop.model.values.catalog import Catalog, SiteKey
from offtop.model.values.outlier import Outlier
from offtop.model.values.peers import waited_on
from offtop.model.values.snapshot import Snapshot
from offtop.model.values.stack import Frame
from offtop.model.values.table import SITES, table_of
from offtop.model.values.waits import READ_USER, USER, WAKE, Waits
from offtop.model.values.wake import gathers
from offtop.model.viewmodel.comparison import Comparison
from offtop.model.viewmodel.view import TreeView, View
from offtop.model.windows.breakdown import ALL, Scope
from offtop.model.windows.history import HistoryTick, moved_in
from offtop.reports.tick import Tick, in_progress, now_of, passing, pids_of, stacks_of
from offtop.reports.tick_rows import waiters
from offtop.reports.tick_text import stacks_of_suspects, tick_text
from offtop.reports.wanted import Wanted

_NAMES_SECONDS = 10.0
"""How long to wait for names in the first tick: enough to read a large binary without separate symbols."""
_LATER_SECONDS = 2.0
"""How long to wait for names in later ticks. A frame shown as `file+0x1234` gets its name in the next tick."""
_DETAILS_SECONDS = 2.0
"""How long to wait for process details in all. Processes that have exited never get any."""
_NO_MORE_DETAILS_SECONDS = 0.5
"""Give up when no further process got its details for this long."""
_HISTORY_BYTES = 1 << 20
_UNGATHERED = "{count} ticks have no wakers, so they are left out. Omit --mode"


def run(
    source: Source,
    categories: Categories,
    delay_ns: int,
    iterations: int | None,
    wanted: Wanted,
    *,
    as_json: bool,
    width: int,
    out: TextIO,
    recorder: Recorder | None = None,
    rules: RuleSource = WITHOUT_RULES,
    outlier_actions: OutlierActions | None = None,
    end_ns: int = 0,
    weights: Weights | None = None,
) -> bool:
    """Print `iterations` ticks (None: until the source ends).

    Return whether the source ended before that. `end_ns` (CLOCK_REALTIME, 0: none): stop at the first tick taken after
    it. `weights`: of suspects; None: do not look for any. Errors of the source and of `out` are passed on.
    """
    cause_finder = CauseFinder(source.names, rules)
    suspects = SuspectWatch(source, weights, rules, wanted.baseline) if weights and not wanted.folded else None
    history = history_for(categories, cause_finder, suspects, max_bytes=_HISTORY_BYTES)
    printer = _Printer(source, wanted, cause_finder, rules, as_json=as_json)
    pace = Pace(
        source,
        history,
        delay_ns,
        first_tick_ns=delay_ns,
        detector=outlier_actions.detector if outlier_actions else None,
        suspects=suspects,
        prepare=printer.wait_for_new_names,
    )
    pace.alarm = outlier_actions.alarm if outlier_actions else None
    pace.recorder = _EndsFinder(source, recorder)
    looked_up = set[int]()
    printed = ungathered = since_ns = 0
    try:
        for unfiltered in itertools.islice(pace.ticks(), iterations):
            if end_ns and unfiltered.taken_ns > end_ns:
                return False
            printed += 1
            if wanted.filter.needs_details:
                looked_up = look_up(source, unfiltered, looked_up)
            latest = history.latest
            blocked = in_progress(latest, unfiltered.idle, 0) if as_json and latest else history.stuck(unfiltered)
            if as_json or wanted.filter.needs_peers:
                source.find_peers(waited_on(unfiltered.pids_and_wakes, unfiltered.window.catalog.wakes))
            tick = passing(unfiltered, wanted.filter, cause_finder, blocked, accounted=as_json)
            since_ns = since_ns or unfiltered.at_ns - unfiltered.span_ns
            shifted = moved_in([unfiltered], since_ns) if as_json or wanted.folded else None
            moved = passing(shifted, wanted.filter, cause_finder) if shifted else None
            found = (suspects and suspects.at(unfiltered.number)) or NOTHING_FOUND
            if wanted.folded and not gathers(unfiltered.header.mode, wanted.mode):
                ungathered += 1
            elif wanted.folded:
                printer.add_up(tick, moved)
            elif as_json:
                # One write, so that ctrl-C does not leave half a line.
                out.write(f"{printer.json(tick, moved, pace.outliers, found)}\n")
            else:
                ever = history.since_start() if wanted.sort == "TOTAL" else None
                lifetime = passing(ever, wanted.filter, cause_finder) if ever else None
                out.write(printer.tables(tick, lifetime, pace.outliers, found, width))
            out.flush()
            printer.is_first = False
    finally:
        out.writelines(f"{line}\n" for line in folded.lines(printer.sums))
    if ungathered:
        warn(f"offtop: {_UNGATHERED.format(count=ungathered)}")
    return printed != iterations


class _Printer:
    """Formats ticks, once their symbols have names."""

    def __init__(
        self, source: Source, wanted: Wanted, cause_finder: CauseFinder, rules: RuleSource, *, as_json: bool
    ) -> None:
        self._source, self._wanted, self._cause_finder = source, wanted, cause_finder
        self._problems = Problems(source.names, source.why_nameless)
        self._comparison = Comparison(wanted.baseline, rules) if wanted.baseline else None
        self._shows_few = not (as_json or wanted.folded)
        self.sums: dict[str, int] = {}
        """Folded stacks of all ticks, in ns."""
        self.is_first = True
        """No tick has been printed yet, so many names are unknown."""
        self._epoch: int | None = None
        self._named, self._late = set[int](), set[int]()
        """User stacks of the last snapshot whose names were waited for, and those whose names were late once."""

    def wait_for_new_names(self, snapshot: Snapshot) -> None:
        """Wait for the names of functions in new user stacks: rules and suspects judge waits by them.

        Not in the first snapshot of an epoch, with which a tick only begins. Names that are late twice are not waited
        for any more.
        """
        if snapshot.epoch != self._epoch:
            self._epoch = snapshot.epoch
            self._named.clear()
            self._late.clear()
            return
        sites, waiting = table_of(SITES, snapshot.sites), Waits.of(snapshot.waiting).list.rows
        users = {
            *np.unique(sites.ids[sites.present, USER]).tolist(),
            *np.unique(waiting[:, [USER, READ_USER]]).tolist(),
        }
        new = users - self._named
        seconds = _NAMES_SECONDS if self.is_first and not self._shows_few else _LATER_SECONDS
        late = set[int]() if self._source.wait_for_names(_unnamed(snapshot.catalog, new), seconds) else new
        self._named, self._late = users - (late - self._late), late

    def wait_for_names(self, tick: HistoryTick, stacks: Iterable[int]) -> None:
        """Wait until the frames of `stacks`, which are to be printed, have names."""
        unnamed = _unnamed(tick.window.catalog, stacks)
        self._source.wait_for_names(unnamed, _NAMES_SECONDS if self.is_first else _LATER_SECONDS)

    def add_up(self, tick: Tick, moved: Tick | None) -> None:
        """Add a tick, and what moved in it, to the folded stacks."""
        unfiltered = tick.unfiltered
        self.wait_for_names(unfiltered, stacks_of(tick) | io_stacks(unfiltered.window))
        if self._wanted.listed:
            self._add(self._rows_folded(tick))
            return
        self._add(self._folded(tick))
        if moved:
            self._add(self._folded(moved))

    def _folded(self, tick: Tick) -> Mapping[str, int]:
        names, wanted = self._source.names, self._wanted
        some = tick.shares.in_scope(Scope(ALL, idle=wanted.idle_shown))
        return folded.folded(some, tick.unfiltered.window.catalog, names, wanted.mode, wanted.style)

    def _rows_folded(self, tick: Tick) -> Mapping[str, int]:
        window, wanted = tick.unfiltered.window, self._wanted
        activity, filters = activity_of(window, wanted.listed), [wanted.filter]
        listed = rows_of(activity, window.span_ns, window.catalog, filters, by_thread=True)
        rows = [row.io for row in listed.rows]
        names, times = self._source.names, (window.taken_ns, window.span_ns)
        return folded.of_profile(
            profile_of_rows(rows, wanted.listed, window.catalog, names, "", *times, {}), wanted.style
        )

    def _add(self, lines: Mapping[str, int]) -> None:
        for line, ns in lines.items():
            self.sums[line] = self.sums.get(line, 0) + ns

    def json(self, tick: Tick, moved: Tick | None, outliers: Sequence[Outlier], found: Found) -> str:
        """Return a tick as one line of JSON."""
        from offtop.reports import tick_json  # here, so that tables start sooner
        from offtop.reports.json_encoding import encode

        source, unfiltered = self._source, tick.unfiltered
        self.wait_for_names(unfiltered, stacks_of(tick) | stacks_of_suspects(found) | io_stacks(unfiltered.window))
        made = tick_json.tick_object(
            tick,
            source.names,
            self._cause_finder,
            moved,
            self._problems,
            outliers,
            self._comparison,
            source.notices,
            suspects=found,
            listed=None if source.recorded else self._wanted.listed,
        )
        return encode(made)

    def tables(self, tick: Tick, lifetime: Tick | None, outliers: Sequence[Outlier], found: Found, width: int) -> str:
        """Return a tick as text tables. `lifetime`: everything since the start, for sorting by TOTAL."""
        source, wanted, catalog = self._source, self._wanted, tick.unfiltered.window.catalog
        if self._comparison:
            self._comparison.select(_view(wanted), NOTHING, now_of(tick))
        listed = waiters(tick, wanted, lifetime, self._comparison)
        stacks = {stack for row in listed.rows for stack in _stacks_at(row.top, catalog)} | stacks_of_suspects(found)
        if wanted.stuck:
            stacks.update(one.user for one in tick.stuck.waits)
        self.wait_for_names(tick.unfiltered, stacks)
        tops = [(row.top.pid, row.top.wake) for row in listed.rows]
        source.find_peers({**self._cause_finder.unanswered, **waited_on(tops, catalog.wakes)})
        return tick_text(
            tick,
            listed,
            source.names,
            width,
            wanted,
            self._cause_finder,
            self._problems,
            lifetime,
            outliers,
            self._comparison,
            found,
        )


class _EndsFinder(NamedTuple):
    """Passes snapshots on to `recorder`, and requests the other ends from the source.

    It requests them when a tick begins, so that the answer is there when the tick ends.
    """

    source: Source
    recorder: Recorder | None

    def add(self, snapshot: Snapshot) -> None:
        sites = Waits.of(snapshot.waiting).list.sites
        self.source.find_peers(waited_on(sites[:, [0, WAKE]].tolist(), snapshot.catalog.wakes))
        if self.recorder:
            self.recorder.add(snapshot)


def _stacks_at(site: SiteKey, catalog: Catalog) -> set[int]:
    """Return the stacks of a site and of its wakers."""
    return {site.kernel, site.user} | (catalog.wake(site.wake).stacks if site.wake else set[int]())


def _unnamed(catalog: Catalog, stacks: Iterable[int]) -> set[Frame]:
    return {frame for stack in stacks for frame in catalog.stack(stack).frames if not frame.name}


def look_up(source: Source, tick: HistoryTick, looked_up: Collection[int]) -> set[int]:
    """Request details of a tick's processes, and wait for those not in `looked_up`.

    Returns the PIDs of all processes of the tick.
    """
    pids, known = pids_of(tick), tick.window.catalog.details
    source.describe(pids)
    unknown = {pid for pid in pids.difference(looked_up) if pid not in known}
    now_s = time.monotonic()
    end_s, idle_s = now_s + _DETAILS_SECONDS, now_s + _NO_MORE_DETAILS_SECONDS
    while unknown and now_s < min(end_s, idle_s):
        time.sleep(0.01)
        now_s = time.monotonic()
        left = {pid for pid in unknown if pid not in known}
        if len(left) < len(unknown):
            idle_s = now_s + _NO_MORE_DETAILS_SECONDS
        unknown = left
    return pids


def _view(wanted: Wanted) -> View:
    """Return the screen view that shows the same."""
    mode, shape = wanted.mode, Shape(mode=wanted.mode)
    return View(
        mode=mode, tree=TreeView(shape), idle_shown=wanted.idle_shown, threads=wanted.threads, filter=wanted.filter
    )
