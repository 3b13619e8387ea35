"""Latency of the selection: as a histogram, or as a heat map over the last minutes."""

from collections.abc import Sequence
from math import log
from typing import NamedTuple

from offtop.model.values import histogram as log2
from offtop.model.viewmodel.common import Common
from offtop.model.viewmodel.view import LATENCY, Cell
from offtop.model.windows.breakdown import ALL
from offtop.model.windows.heat import Heat
from offtop.printable import printable
from offtop.ui.kit.layout import HEAT_SCALE
from offtop.ui.kit.lines import Line, Pen, fit, plain, rule
from offtop.ui.panes.head import clock, selection
from offtop.units import count, duration, span

_PERCENTS = (50, 90, 99, 99.9)
_HEATS = 6
_LEAST_BARS = 5
"""Least lines of a useful histogram."""
_NO_WAIT, _NO_CALL = " No wait of the minimum length or longer has ended here.", " No call has returned."
_READING = " Still being read from the history."
_BESIDE_BAR = 14 + 9 + 7
"""Cells beside a bar: range, count and percentile marks."""
Spans = list[tuple[str, str]]


class Counted(NamedTuple):
    """What a heat map counts."""

    what: str
    """In the plural."""
    none: str
    """The line that says that there is none."""


def histogram(common: Common, pen: Pen) -> list[Line]:
    """Histogram of the waits, and of the calls of the --within function if there is room."""
    part, calls, within = common.selected, common.calls, common.newest.header.filters.within
    title = f"latency of: {selection(common, pen.glyphs)}"
    token = "bar" if common.view.category == ALL else f"cat-{common.view.category}"
    if not within or pen.height < 2 * _LEAST_BARS:
        return _bars(title, part.histogram, part.max_ns, _NO_WAIT, pen, token)
    upper = pen._replace(height=pen.height // 2)
    lines = _bars(title, part.histogram, part.max_ns, _NO_WAIT, upper, token)
    lines += [Line()] * (upper.height - len(lines))
    lower, title = pen._replace(height=pen.height - upper.height), f"calls of: {printable(within, pen.glyphs.is_ascii)}"
    return [*lines, *_bars(title, calls.histogram, calls.max_ns, _NO_CALL, lower)]


def _bars(title: str, histogram: int, max_ns: int, none: str, pen: Pen, token: str = "bar") -> list[Line]:
    """Return a bar for each power-of-two range, and the percentiles, as upper bounds."""
    lines = [rule(title, pen)]
    ranges = log2.ranges(histogram, pen.height - 2)
    if not ranges:
        return [*lines, plain(fit(none, pen.width, pen.glyphs), "dim")]
    by_lane = log2.counts(histogram)
    lines.append(plain(fit(_percentiles(histogram, max_ns, pen.width), pen.width, pen.glyphs), "bar-mark"))
    most = max(log2.within(by_lane, lanes) for lanes in ranges)
    marks = _marks(histogram, ranges)
    bar_width = max(1, pen.width - _BESIDE_BAR)
    for lanes in ranges:
        n = log2.within(by_lane, lanes)
        bar = _bar(n / most * bar_width, pen)
        counted = f"{n:,}" if n < 1_000_000 else count(n)
        lines.append(
            Line(
                (
                    (f" {_range(lanes):>11} |", "dim"),
                    (f"{bar:<{bar_width}}", token),
                    (f"|{counted:>7} ", "value"),
                    (marks.get(lanes, ""), "bar-mark"),
                )
            )
        )
    return lines


def _percentiles(histogram: int, max_ns: int, width: int) -> str:
    """Return as many percentiles as fit."""
    percentiles = {p: f"p{p:g}<={duration(log2.percentile_ns(histogram, p, max_ns))}" for p in _PERCENTS}
    line = ""
    for omitted in ((), (90,), (90, 99.9)):
        words = [text for percent, text in percentiles.items() if percent not in omitted]
        line = f" {'  '.join([*words, f'max {duration(max_ns)}'])}"
        if len(line) <= width:
            break
    return line


def _marks(histogram: int, ranges: Sequence[tuple[int, int]]) -> dict[tuple[int, int], str]:
    """Return the names of the percentiles in each range."""
    marks: dict[tuple[int, int], str] = {}
    for percent in (50, 99):
        lane = log2.lane_of(max(0, log2.percentile_ns(histogram, percent, 1 << 62) - 1))
        for lanes in ranges:
            if lanes[0] <= lane < lanes[1]:
                marks[lanes] = f"{marks.get(lanes, '')} p{percent}".strip()
    return marks


def _range(lanes: tuple[int, int]) -> str:
    low, high = log2.low_ns(lanes[0]), log2.high_ns(lanes[1] - 1)
    return f"{duration(low) or '0'}-{duration(high)}" if lanes[1] <= log2.LANES - 1 else f">{duration(low)}"


def _bar(cells: float, pen: Pen) -> str:
    """Return a bar that is visible for any value above 0."""
    whole = int(cells)
    if pen.glyphs.is_ascii:
        return pen.glyphs.bar[-1] * max(whole, int(cells > 0))
    part = int((cells - whole) * 8)
    return (
        pen.glyphs.bar[-1] * whole + (pen.glyphs.bar[max(part, int(not whole)) - 1] if part or not whole else "")
        if cells
        else ""
    )


def heat_map(heat: Heat | None, common: Common, pen: Pen) -> list[Line]:
    """Heat map of the waits of the selection."""
    return heat_map_of(heat, selection(common, pen.glyphs), Counted("waits", _NO_WAIT), common, pen)


def heat_map_of(heat: Heat | None, title: str, counted: Counted, common: Common, pen: Pen) -> list[Line]:
    """Heat map of what has `title`."""
    if heat is None:
        return []
    minutes = span(len(heat.columns) * heat.cell_ns)
    lines = [rule(f"latency of: {title}, last {minutes}", pen)]
    if not heat.rows:
        is_measured = any(column is not None for column in heat.columns)
        text = counted.none if is_measured else f" No {counted.what} were counted at this time."
        text = _READING if heat.unread else text
        return [*lines, plain(fit(text, pen.width, pen.glyphs), "dim")]
    chosen = chosen_cell(heat, common.view.cell)
    for row in reversed(range(len(heat.rows))):
        spans: Spans = [(f"{_range(heat.rows[row]):>{HEAT_SCALE - 2}} ", "dim")]
        for column, counts in enumerate(heat.columns):
            text, token = _cell(counts, row, heat, pen)
            at_cursor = (common.view.focus == LATENCY or common.view.has_io_heat) and chosen == (column, row)
            spans.append(("X" if at_cursor and text == " " else text, "cursor" if at_cursor else token))
        lines.append(Line(_joined(spans)))
    axis = f"-{minutes}"
    end = "now" if common.view.paused_at_ns is None else "^"
    lines.append(plain(f"{'':>{HEAT_SCALE - 1}}{axis:<{max(0, len(heat.columns) - len(end))}}{end}", "dim"))
    lines.append(plain(fit(_cursor_text(heat, common, chosen, counted.what), pen.width, pen.glyphs), "bar-mark"))
    return lines


def _cell(counts: Sequence[int] | None, row: int, heat: Heat, pen: Pen) -> tuple[str, str]:
    """Return text and token of a cell: a blank if nothing was measured, a dot for no waits."""
    if counts is None:
        return " ", "dim"
    n = counts[row]
    if not n:
        return ".", "rule"
    share = log(1 + n) / log(1 + heat.most)
    levels = pen.glyphs.spark
    token = f"heat-{min(_HEATS, 1 + int(share * _HEATS))}"
    return levels[min(len(levels) - 1, int(share * len(levels)))], token


def _joined(spans: Spans) -> tuple[tuple[str, str], ...]:
    """Join neighbours with the same token."""
    joined: Spans = []
    for text, token in spans:
        if joined and joined[-1][1] == token:
            joined[-1] = (joined[-1][0] + text, token)
        else:
            joined.append((text, token))
    return tuple(joined)


def chosen_cell(heat: Heat | None, cell: Cell | None) -> tuple[int, int]:
    """Return column and row of the cursor `cell`; by default the latest column's fullest cell."""
    if heat is None or not heat.columns or not heat.rows:
        return 0, 0
    if cell is None:
        last = len(heat.columns) - 1
        counts = heat.columns[last] or (0,)
        return last, counts.index(max(counts))
    column = len(heat.columns) - 1 - (heat.ends_ns[-1] - cell.end_ns) // heat.cell_ns
    return max(0, min(len(heat.columns) - 1, column)), max(0, min(len(heat.rows) - 1, cell.row))


def is_measured(heat: Heat | None, cell: Cell | None) -> bool:
    """Whether the column of the cursor `cell` has a tick."""
    if heat is None or not heat.columns:
        return False
    column, _ = chosen_cell(heat, cell)
    return heat.columns[column] is not None or column in heat.unread


def moved(heat: Heat | None, cell: Cell | None, columns: int, rows: int) -> Cell | None:
    """Return the cell at that distance from the cursor `cell`, limited to the map."""
    if heat is None or not heat.columns or not heat.rows:
        return None
    column, row = chosen_cell(heat, cell)
    column = max(0, min(len(heat.columns) - 1, column + columns))
    return Cell(heat.ends_ns[column], max(0, min(len(heat.rows) - 1, row + rows)))


def _cursor_text(heat: Heat, common: Common, chosen: tuple[int, int], counted: str) -> str:
    column, row = chosen
    counts = heat.columns[column]
    until_ns = heat.ends_ns[column]
    when = f"{clock(common.newest, until_ns - heat.cell_ns)}-{clock(common.newest, until_ns)}"
    how_many = "not measured" if counts is None else f"{counts[row]:,} {counted}"
    if column in heat.unread:
        how_many = "still being read" if counts is None else f"{how_many} so far, still being read"
    return f" {when}  {_range(heat.rows[row])}: {how_many}   most in a cell {heat.most:,}"
