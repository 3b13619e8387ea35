"""A heat map of waits: time across, latency upward, and in each cell how many waits ended there and then."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from offtop.model import histogram as log2
from offtop.model.history import Kept


class Heat(NamedTuple):
    cell_ns: int
    """How much time one column stands for."""
    ends_ns: tuple[int, ...] = ()
    """CLOCK_MONOTONIC of the end of each column, the latest last."""
    rows: tuple[tuple[int, int], ...] = ()
    """Range of lanes (model.histogram) of each row, shortest waits first."""
    columns: tuple[tuple[int, ...] | None, ...] = ()
    """Of each column, how many waits are in each row; None: nothing was measured then, or it is not known yet."""
    most: int = 0
    """In one cell."""


def heat(
    ticks: Sequence[Kept], histograms: Mapping[int, int], columns: int, cell_ns: int, end_ns: int, most_rows: int
) -> Heat:
    """The last `columns` stretches of `cell_ns`, the last one holding `end_ns`.

    `histograms`: tick number → of the waits that ended in it. Columns begin at multiples of `cell_ns`, so that
    what is drawn moves a whole column at a time.
    """
    newest = (end_ns - 1) // cell_ns
    sums: dict[int, int] = {}
    for tick in ticks:
        column = (tick.at_ns - 1) // cell_ns - newest + columns - 1
        if 0 <= column < columns and tick.number in histograms:
            sums[column] = sums.get(column, 0) + histograms[tick.number]
    rows = log2.ranges(sum(sums.values()), most_rows)
    by_lane = {column: log2.counts(histogram) for column, histogram in sums.items()}
    made = tuple(
        tuple(log2.within(by_lane[column], row) for row in rows) if column in by_lane else None
        for column in range(columns)
    )
    ends_ns = tuple((newest + 1 - columns + 1 + column) * cell_ns for column in range(columns))
    return Heat(cell_ns, ends_ns, rows, made, max((n for column in made if column for n in column), default=0))
