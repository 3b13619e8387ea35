"""Rolling sums over the last windows of a History: new ticks added, old subtracted.

Summing up ten windows of thousands of threads at each tick would cost more than everything else; this way a tick costs
two windows, however long the span is.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from offtop.model.windows.breakdown import PartTuple, Shares
from offtop.model.windows.history import History, HistoryTick

Table = Mapping[tuple[int, ...], PartTuple]

_SMALL = 1_024
"""A table of up to so many entries is stored until its tick leaves the sum; a larger one is built again."""


class FilteredTicks(Protocol):
    """What a filter leaves of each tick. It may leave more of a tick once more is known about processes."""

    def shares(self, tick: HistoryTick) -> Shares: ...

    def is_remembered(self, tick: HistoryTick) -> bool:
        """Return whether `shares` returns the same for `tick` as the last time."""
        ...


class _Sum:
    """A PartTuple that grows and shrinks."""

    __slots__ = ("histogram", "longest", "total_ns", "waits")

    def __init__(self) -> None:
        self.waits = 0
        self.total_ns = 0
        self.histogram = 0
        self.longest: list[tuple[int, int]] = []
        """(tick, max_ns), ticks ascending and maxima descending: the first is the maximum, the next follows it."""


class Sums:
    """Rolling sums over a History; each is continued while its filter and its `about` stay the same."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._known: dict[str, tuple[object, Rolling]] = {}

    def of(
        self,
        what: str,
        filtered: FilteredTicks,
        about: object,
        table_of: Callable[[Shares], Table],
        over: Sequence[HistoryTick],
        moved: HistoryTick | None = None,
    ) -> Table:
        """Return the sum of `table_of` over what the filter leaves of `over` (at least one tick) and of `moved`."""

        def table(tick: HistoryTick) -> Table:
            return table_of(filtered.shares(tick))

        if not over[-1].number or len(over) == 1:
            return table(over[-1])
        was = self._known.get(what)
        if was is None or was[0] != (filtered, about):
            was = self._known[what] = ((filtered, about), Rolling(table, filtered.is_remembered))
        summed = was[1].follow(over, self._history.tick)
        return _together(summed, table(moved)) if moved else summed


def _together(sums: Table, moved: Table) -> Table:
    """Add what moved.

    A sum falls below 0 if time counted as idle when it was shown but not when it moved, or the other way round, or if
    its thread had already been evicted when it moved. A list adds such rows to the sum of those that it leaves out.
    """
    both = dict(sums)
    for key, (_, moved_ns, _, _) in moved.items():
        waits, total_ns, max_ns, histogram = both.get(key, (0, 0, 0, 0))
        both[key] = waits, total_ns + moved_ns, max_ns, histogram
    return both


class Rolling:
    """The sum of `table_of` over consecutive ticks."""

    def __init__(
        self, table_of: Callable[[HistoryTick], Table], is_remembered: Callable[[HistoryTick], bool] = lambda _: True
    ) -> None:
        """`is_remembered` returns whether `table_of` returns the same for a tick as when it was added."""
        self._table_of, self._is_remembered = table_of, is_remembered
        self._first = self._last = 0
        """Numbers of the first and last tick in the sum; both 0 while it is empty."""
        self._oldest: HistoryTick | None = None
        """The first tick. If the history has room for no more than the span, it is not kept there when it leaves."""
        self._sums: dict[tuple[int, ...], _Sum] = {}
        self._small: dict[int, Table] = {}
        """Tick number → its table, for small tables of ticks in the sum."""

    def follow(self, ticks: Sequence[HistoryTick], earlier: Callable[[int], HistoryTick | None]) -> Table:
        """Return the sum over `ticks`, earliest first.

        `earlier` returns a tick by its number while it is kept.
        """
        if not ticks:
            return {}
        first, last = ticks[0].number, ticks[-1].number
        leaving = self._leaving(first, earlier) if self._first <= first <= self._last <= last else None
        if leaving is None:
            self._sums.clear()
            self._small.clear()
            self._last = first - 1
        for number, table in leaving or ():
            self._take_away(number, table)
        for tick in ticks:
            if tick.number > self._last:
                self._add(tick)
        self._first, self._last, self._oldest = first, last, ticks[0]
        return {
            key: (row.waits, row.total_ns, row.longest[0][1] if row.longest else 0, row.histogram)
            for key, row in self._sums.items()
        }

    def _leaving(self, first: int, earlier: Callable[[int], HistoryTick | None]) -> list[tuple[int, Table]] | None:
        """Return the tables of the ticks before `first` as they were added; None if one is not known any more."""
        leaving: list[tuple[int, Table]] = []
        for number in range(self._first, first):
            table = self._small.pop(number, None)
            if table is None:
                tick = earlier(number) or self._oldest
                if tick is None or tick.number != number or not self._is_remembered(tick):
                    return None
                table = self._table_of(tick)
            leaving.append((number, table))
        return leaving

    def _add(self, tick: HistoryTick) -> None:
        sums, number = self._sums, tick.number
        table = self._table_of(tick)
        if len(table) <= _SMALL:
            self._small[number] = table
        for key, (waits, total_ns, max_ns, histogram) in table.items():
            row = sums.get(key)
            if row is None:
                row = sums[key] = _Sum()
            row.waits += waits
            row.total_ns += total_ns
            row.histogram += histogram
            if max_ns:
                longest = row.longest
                while longest and longest[-1][1] <= max_ns:
                    longest.pop()
                longest.append((number, max_ns))

    def _take_away(self, number: int, table: Table) -> None:
        sums = self._sums
        for key, (waits, total_ns, _, histogram) in table.items():
            row = sums.get(key)
            if row is None:
                row = sums[key] = _Sum()
            row.waits -= waits
            row.total_ns -= total_ns
            row.histogram -= histogram
            if row.longest and row.longest[0][0] == number:
                row.longest.pop(0)
            if not (row.waits or row.total_ns or row.histogram):
                del sums[key]
