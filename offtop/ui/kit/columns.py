"""Table columns: titles, the line of a row, and the choice of columns that fit.

Columns have fixed widths, so that numbers do not move.
"""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass

from offtop.model.aggregate.rows import Row
from offtop.model.viewmodel.view import View
from offtop.ui.kit.lines import Line, Pen, fit


@dataclass(frozen=True, slots=True)
class Heading:
    """The title of a column."""

    title: str
    width: int
    """In cells, without the blank before it."""
    _: KW_ONLY
    left: bool = False
    """Whether text is aligned to the left, as words are; numbers are aligned to the right."""
    sort: str = ""
    """Sort order that belongs to this column."""


@dataclass(frozen=True, slots=True)
class Column(Heading):
    """A column of a table whose rows are about waits."""

    text_of: Callable[[Row], str]
    token: str = "value"
    least_width: int = 0
    """Least width of the pane to show the column, unless the table is sorted by it."""
    stays: bool = False
    """Whether it is dropped last if there is no room: a name, or the main number."""
    token_of: Callable[[Row], str] | None = None
    """Token of a row's text, if rows differ."""
    filled: Callable[[Row], float] | None = None
    """Part of the cell, 0 to 1, that is drawn as a bar behind the text."""


def line_of(columns: Sequence[Column], row: Row, mark: str, base: str, pen: Pen) -> Line:
    spans: list[tuple[str, str]] = [(mark, "pin" if "*" in mark else "text")]
    for column in columns:
        text = column.text_of(row)
        shown = fit(text, column.width, pen.glyphs) if column.left else f"{text:>{column.width}}"
        token = column.token_of(row) if column.token_of else column.token
        filled = _cells(column.filled(row), column.width) if column.filled else 0
        if filled:
            spans += [(" ", token), (shown[:filled], "waiting-bar")]
            if filled < column.width:
                spans.append((shown[filled:], token))
        else:
            spans.append((f" {shown}", token))
    return Line(tuple(spans), base)


def _cells(part: float, width: int) -> int:
    """Return how many cells a bar fills: at least one if it is more than nothing."""
    return min(width, max(1, round(part * width))) if part > 0 else 0


def heads(columns: Sequence[Heading], sort: str, mark_width: int) -> Line:
    spans: list[tuple[str, str]] = [(" " * mark_width, "head")]
    for column in columns:
        text = f"{column.title:<{column.width}}" if column.left else f"{column.title:>{column.width}}"
        blank = len(text) - len(text.lstrip())
        spans += [
            (" " + text[:blank], "head"),
            (text[blank:].rstrip(), "sorted" if sort and column.sort == sort else "head"),
        ]
        spans.append((" " * (column.width - len(text.rstrip())), "head"))
    return Line(tuple(spans))


def sort_at(columns: Sequence[Heading], mark_width: int, x: int) -> str:
    """Return the sort order of the column title at `x`; empty if it has none."""
    edge = mark_width
    for column in columns:
        edge += 1 + column.width
        if x < edge:
            return column.sort
    return ""


def that_fit(columns: Sequence[Column], width: int, view: View, sort: str, mark_width: int) -> list[Column]:
    """Return the columns that are not hidden and that fit as a whole into `width`.

    No column is cut, because a number without its last digits is a different one. Columns for wide panes are dropped
    first, then those at the right; the sort column and those with `stays` are dropped last.
    """

    def stays(column: Column) -> bool:
        return column.stays or bool(sort and column.sort == sort)

    kept = [
        column
        for column in columns
        if (width >= column.least_width or stays(column)) and (column.title not in view.hidden or column.sort == "NAME")
    ]
    while kept and width_of(kept, mark_width) > width:
        del kept[max(range(len(kept)), key=lambda x: (not stays(kept[x]), kept[x].least_width, x))]
    return kept


def width_of(columns: Sequence[Column], mark_width: int) -> int:
    """Return the width of a whole line in cells."""
    return mark_width + sum(1 + column.width for column in columns)
