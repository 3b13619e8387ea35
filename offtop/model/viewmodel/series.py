"""Series of average waiting threads in cells of time, as the timeline and the sparklines show them."""

from collections.abc import Callable, Sequence

from offtop.model.windows.history import HistoryTick

Series = tuple[float | None, ...]
"""Average waiting threads in cells of time, the latest last; None if nothing was measured."""


def series(
    ticks: Sequence[HistoryTick], cells: int, cell_ns: int, end_ns: int, waiting_ns: Callable[[HistoryTick], int | None]
) -> Series:
    """Average `waiting_ns` in `cells` cells, the last of which contains `end_ns`.

    A cell is None if nothing was measured in it. Cells begin at multiples of `cell_ns`, so that the picture moves by
    whole cells and does not flicker.
    """
    newest = (end_ns - 1) // cell_ns
    sums: dict[int, tuple[int, int]] = {}
    for tick in ticks:
        cell = (tick.at_ns - 1) // cell_ns - newest + cells - 1
        if 0 <= cell < cells and (ns := waiting_ns(tick)) is not None:
            was_ns, was_span_ns = sums.get(cell, (0, 0))
            sums[cell] = (was_ns + ns, was_span_ns + tick.span_ns)
    return tuple(sums[cell][0] / sums[cell][1] if sums.get(cell, (0, 0))[1] else None for cell in range(cells))
