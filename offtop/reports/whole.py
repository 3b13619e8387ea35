"""All ticks of a source as one."""

import itertools
from collections.abc import Iterable

from offtop.errors import OfftopError, warn
from offtop.feed.pace import Pace
from offtop.feed.source import Source
from offtop.model.aggregate.filter import NOTHING, Filter
from offtop.model.classify.categories import Categories, is_periodic
from offtop.model.classify.cause_finder import Diagnoser
from offtop.model.values.catalog import Book
from offtop.model.values.peers import waited_on
from offtop.model.values.stack import Frame
from offtop.model.values.wake import WAKEUP, gathers
from offtop.model.windows.baseline import PARTS, Baseline, baseline_of
from offtop.model.windows.history import History, Kept
from offtop.model.windows.window import Window, merge
from offtop.printable import printable
from offtop.reports.batch import look_up

_HISTORY_BYTES = 1 << 20
_NAMES_SECONDS = 10.0
_BATCH = 64
"""So many windows are merged at a time."""


INTERRUPTED = "\nofftop: interrupted; what passed until then is written"
EVER_NS = 1 << 62
"""How long a source is to keep what it names: windows are looked up when all of them are there."""


def whole_of(
    source: Source,
    categories: Categories,
    diagnoser: Diagnoser,
    delay_ns: int,
    iterations: int | None = None,
    end_ns: int = 0,
    chosen: Filter = NOTHING,
) -> Kept:
    """Of `iterations` ticks (None: until the source ends), or of those that end up to `end_ns` of the machine's clock
    (0: all), with the names of their functions, and what `chosen` asks for. What ctrl-C interrupts is whole up to the
    last tick. Raises OfftopError where there is none, or
    what `chosen` asks for was not gathered."""
    history = History(categories.idle, is_periodic, max_bytes=_HISTORY_BYTES, verdicts=diagnoser.verdicts)
    pace = Pace(source, history, delay_ns, first_tick_ns=delay_ns)
    windows: list[Window] = []
    looked_up = set[int]()
    last: Kept | None = None
    try:
        for kept in itertools.islice(pace.ticks(), iterations):
            if end_ns and kept.taken_ns > end_ns:
                break
            if chosen.needs_details:
                looked_up = look_up(source, kept, looked_up)
            if chosen.needs_ends:
                source.find_ends(waited_on(kept.waits, kept.window.book.wakes))
            last = kept
            windows.append(kept.window)
            if len(windows) == _BATCH:
                windows = [merge(windows)]
    except KeyboardInterrupt:
        if last is None or source.recorded:
            raise
        warn(INTERRUPTED)
    if last is None:
        raise OfftopError("There was no whole tick: what passes between two readings. Take a longer time")
    if chosen.needs_wakers and not gathers(last.facts.mode, WAKEUP):
        raise OfftopError(not_gathered(chosen))
    window = merge(windows)
    source.wait_for_names({*_unnamed(window.book, _stacks(window))}, _NAMES_SECONDS)
    return Kept.of(window, (history.look_again() or last).idle)


def baseline_in(source: Source, file: str, categories: Categories, diagnoser: Diagnoser, delay_ns: int) -> Baseline:
    """Of all that a recording tells, by name `file`. Raises OfftopError where that is nothing."""
    history = History(categories.idle, is_periodic, max_bytes=_HISTORY_BYTES, verdicts=diagnoser.verdicts)
    measured_ns = source.recorded.measured_ns if source.recorded else 0
    began_ns: int | None = None
    parts: list[list[Window]] = [[] for _ in range(PARTS)]
    for kept in Pace(source, history, delay_ns).ticks():
        began_ns = kept.at_ns - kept.span_ns if began_ns is None else began_ns
        number = PARTS * max(0, kept.at_ns - began_ns - 1) // max(1, measured_ns)
        some = parts[min(number, PARTS - 1)]
        some.append(kept.window)
        if len(some) == _BATCH:
            some[:] = [merge(some)]
    last = history.look_again()
    if last is None:
        raise OfftopError(f"{printable(file)} has no whole tick. Take a longer recording as the baseline")
    return baseline_of([merge(some) for some in parts if some], last.idle, source.names, file)


def not_gathered(chosen: Filter) -> str:
    """Where `chosen` asks for it."""
    return (
        f"'{printable(chosen.text)}' asks who ended waits, which was not gathered. Leave that out, or record "
        "with --mode wakeup"
    )


def _stacks(window: Window) -> set[int]:
    """Of those who waited, and of those who ended that."""
    sites = {(site.user, site.wake) for site, _ in window.each_site()}
    of_wakes = {stack for _, wake in sites if wake for stack in window.book.wake(wake).stacks}
    return {user for user, _ in sites} | of_wakes


def _unnamed(book: Book, stacks: Iterable[int]) -> Iterable[Frame]:
    return (frame for stack in stacks for frame in book.stack(stack).frames if not frame.name)
