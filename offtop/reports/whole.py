"""Merge all ticks of a source into one."""

import itertools
from collections.abc import Callable

from offtop.errors import OfftopError, warn
from offtop.export.profile import unnamed_frames
from offtop.feed.pace import Pace
from offtop.feed.source import Source
from offtop.feed.suspect_watch import SuspectWatch, history_for
from offtop.model.aggregate.filter import NOTHING, Filter
from offtop.model.classify.categories import Categories
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.suspect import NOTHING_FOUND, Found, averages
from offtop.model.values.peers import waited_on
from offtop.model.values.wake import WAKEUP, gathers
from offtop.model.windows.baseline import PARTS, Baseline, baseline_of, merge_part
from offtop.model.windows.history import HistoryTick
from offtop.model.windows.window import Window, merge
from offtop.printable import printable
from offtop.reports.batch import look_up

_HISTORY_BYTES = 1 << 20
_NAMES_SECONDS = 10.0
_BATCH = 64
"""How many windows are merged at a time."""


INTERRUPTED = "\nofftop: interrupted; everything up to the last tick is written"
EVER_NS = 1 << 62
"""How long a source keeps names: forever, because names are looked up after the last window."""


def whole_of(
    source: Source,
    categories: Categories,
    cause_finder: CauseFinder,
    delay_ns: int,
    iterations: int | None = None,
    end_ns: int = 0,
    chosen: Filter = NOTHING,
    watch: SuspectWatch | None = None,
    each: Callable[[HistoryTick], None] = lambda _: None,
) -> HistoryTick:
    """Merge the ticks of a source into one, with function names and what `chosen` needs.

    `iterations`: at most this many ticks (None: until the source ends). `end_ns` (CLOCK_REALTIME, 0: none): stop at the
    first tick taken after it. `watch` says which waits are standing at its end (None: none are). After
    ctrl-C, the result holds everything up to the last tick. Raises OfftopError if there is no whole tick, or if
    `chosen` needs wakers and they were not recorded. `each` is called with each tick.
    """
    history = history_for(categories, cause_finder, watch, max_bytes=_HISTORY_BYTES)
    pace = Pace(source, history, delay_ns, first_tick_ns=delay_ns, suspects=watch)
    windows: list[Window] = []
    looked_up = set[int]()
    last: HistoryTick | None = None
    try:
        for kept in itertools.islice(pace.ticks(), iterations):
            if end_ns and kept.taken_ns > end_ns:
                break
            if chosen.needs_details:
                looked_up = look_up(source, kept, looked_up)
            if chosen.needs_peers:
                source.find_peers(waited_on(kept.pids_and_wakes, kept.window.catalog.wakes))
            last = kept
            each(kept)
            windows.append(kept.window)
            if len(windows) == _BATCH:
                windows = [merge(windows)]
    except KeyboardInterrupt:
        if last is None or source.recorded:
            raise
        warn(INTERRUPTED)
    if last is None:
        raise OfftopError("There was no complete tick. Measure for a longer time")
    if chosen.needs_wakers and not gathers(last.header.mode, WAKEUP):
        raise OfftopError(not_gathered(chosen))
    window = merge(windows)
    source.wait_for_names(unnamed_frames(window), _NAMES_SECONDS)
    return HistoryTick.of(window, (history.refresh_newest() or last).idle)


def baseline_in(
    source: Source,
    file: str,
    categories: Categories,
    cause_finder: CauseFinder,
    delay_ns: int,
    watch: SuspectWatch | None = None,
) -> Baseline:
    """Return a recording as a baseline named `file`.

    Raises OfftopError if it has no whole tick.
    """
    history = history_for(categories, cause_finder, watch, max_bytes=_HISTORY_BYTES)
    measured_ns = source.recorded.measured_ns if source.recorded else 0
    began_ns: int | None = None
    parts: list[list[Window]] = [[] for _ in range(PARTS)]
    found: list[tuple[Found, int]] = []
    for kept in Pace(source, history, delay_ns, suspects=watch).ticks():
        began_ns = kept.at_ns - kept.span_ns if began_ns is None else began_ns
        number = PARTS * max(0, kept.at_ns - began_ns - 1) // max(1, measured_ns)
        some = parts[min(number, PARTS - 1)]
        some.append(kept.window)
        if len(some) == _BATCH:
            some[:] = [merge_part(some)]
        if watch:
            found.append((watch.at(kept.number) or NOTHING_FOUND, kept.span_ns))
    last = history.refresh_newest()
    if last is None:
        raise OfftopError(f"{printable(file)} has no complete tick. Use a longer recording as the baseline")
    suspects = averages(found) if watch else None
    return baseline_of([merge_part(some) for some in parts if some], last.idle, source.names, file, suspects)


def not_gathered(chosen: Filter) -> str:
    """Return the error for a filter that needs wakers which were not recorded."""
    return f"'{printable(chosen.text)}' needs wakers, which were not recorded. Omit it, or record with --mode wakeup"
