"""All ticks of a source as one."""

import itertools
from collections.abc import Iterable

from offtop.model.book import Book
from offtop.model.categories import Categories, is_periodic
from offtop.model.diagnoser import Diagnoser
from offtop.model.history import History, Kept
from offtop.model.stack import Frame
from offtop.model.window import Window, merge
from offtop.pace import Pace
from offtop.source import Source

_HISTORY_BYTES = 1 << 20
_NAMES_SECONDS = 10.0
_BATCH = 64
"""So many windows are merged at a time."""


def whole_of(
    source: Source,
    categories: Categories,
    diagnoser: Diagnoser,
    delay_ns: int,
    iterations: int | None = None,
    end_ns: int = 0,
) -> Kept | None:
    """Of `iterations` ticks (None: until the source ends), or of those that end up to `end_ns` of the machine's clock
    (0: all), with the names of their functions; None where there is none."""
    history = History(categories.idle, is_periodic, max_bytes=_HISTORY_BYTES, verdicts=diagnoser.verdicts)
    pace = Pace(source, history, delay_ns, first_tick_ns=delay_ns)
    windows: list[Window] = []
    last: Kept | None = None
    for kept in itertools.islice(pace.ticks(), iterations):
        if end_ns and kept.taken_ns > end_ns:
            break
        last = kept
        windows.append(kept.window)
        if len(windows) == _BATCH:
            windows = [merge(windows)]
    if last is None:
        return None
    whole = Kept.of(merge(windows), last.idle)
    source.wait_for_names({*_unnamed(whole.window.book, _stacks(whole.window))}, _NAMES_SECONDS)
    return whole


def _stacks(window: Window) -> set[int]:
    """Of those who waited, and of those who ended that."""
    sites = {(site.user, site.wake) for site, _ in window.each_site()}
    of_wakes = {stack for _, wake in sites if wake for stack in window.book.wake(wake).stacks}
    return {user for user, _ in sites} | of_wakes


def _unnamed(book: Book, stacks: Iterable[int]) -> Iterable[Frame]:
    return (frame for stack in stacks for frame in book.stack(stack).frames if not frame.name)
