"""Heat map: time on the x axis, latency on the y axis, and finished waits in each cell."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from offtop.model.values import histogram as log2
from offtop.model.windows.history import HistoryTick


class Heat(NamedTuple):
    cell_ns: int
    """Time span of one column."""
    ends_ns: tuple[int, ...] = ()
    """CLOCK_MONOTONIC of the end of each column, latest last."""
    rows: tuple[tuple[int, int], ...] = ()
    """Range of lanes (model.values.histogram) of each row, shortest waits first."""
    columns: tuple[tuple[int, ...] | None, ...] = ()
    """Waits in each row, for each column; None: nothing was measured, or it is not known yet."""
    most: int = 0
    """Most waits in one cell."""
    unread: frozenset[int] = frozenset()
    """Columns with ticks that are not read yet: more waits may follow."""


def heat(
    ticks: Sequence[HistoryTick],
    histograms: Mapping[int, int],
    unread: Collection[int],
    columns: int,
    cell_ns: int,
    end_ns: int,
    most_rows: int,
) -> Heat:
    """Return the last `columns` columns of `cell_ns`, the last of which contains `end_ns`.

    `histograms`: tick number → waits that ended in it. `unread`: numbers of ticks that follow later. Columns begin at
    multiples of `cell_ns`, so that the picture moves by whole columns.
    """
    newest = (end_ns - 1) // cell_ns
    sums: dict[int, int] = {}
    awaited: set[int] = set()
    for tick in ticks:
        column = (tick.at_ns - 1) // cell_ns - newest + columns - 1
        if 0 <= column < columns and tick.number in histograms:
            sums[column] = sums.get(column, 0) + histograms[tick.number]
        elif 0 <= column < columns and tick.number in unread:
            awaited.add(column)
    rows = log2.ranges(sum(sums.values()), most_rows)
    by_lane = {column: log2.counts(histogram) for column, histogram in sums.items()}
    made = tuple(
        tuple(log2.within(by_lane[column], row) for row in rows) if column in by_lane else None
        for column in range(columns)
    )
    ends_ns = tuple((newest + 1 - columns + 1 + column) * cell_ns for column in range(columns))
    most = max((n for column in made if column for n in column), default=0)
    return Heat(cell_ns, ends_ns, rows, made, most, frozenset(awaited))
