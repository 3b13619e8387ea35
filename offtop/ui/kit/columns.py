"""Columns of a table: their heads, and the line of a row. Numbers stand still, and a narrow pane has fewer of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from offtop.model.aggregate.rows import Row
from offtop.model.viewmodel.view import View
from offtop.ui.kit.lines import Line, Pen, fit


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    width: int
    """In cells, without the blank that parts it from the one before."""
    text_of: Callable[[Row], str]
    token: str = "value"
    left: bool = False
    """Numbers stand at the right, words at the left."""
    sort: str = ""
    """The sort that this column shows."""
    least_width: int = 0
    """Below this width of the pane it is left out, unless the table is sorted by it."""
    stays: bool = False
    """A name, or the main figure: where there is no room, it is left out last."""
    token_of: Callable[[Row], str] | None = None
    """The token of one row's text, where rows differ."""


def line_of(columns: Sequence[Column], row: Row, mark: str, base: str, pen: Pen) -> Line:
    spans: list[tuple[str, str]] = [(mark, "pin" if "*" in mark else "text")]
    for column in columns:
        text = column.text_of(row)
        shown = fit(text, column.width, pen.glyphs) if column.left else f"{text:>{column.width}}"
        spans.append((f" {shown}", column.token_of(row) if column.token_of else column.token))
    return Line(tuple(spans), base)


def heads(columns: Sequence[Column], sort: str, mark_width: int) -> Line:
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


def sort_at(columns: Sequence[Column], mark_width: int, x: int) -> str:
    """What the head of a column at `x` sorts by; empty: nothing."""
    edge = mark_width
    for column in columns:
        edge += 1 + column.width
        if x < edge:
            return column.sort
    return ""


def that_fit(columns: Sequence[Column], width: int, view: View, sort: str, mark_width: int) -> list[Column]:
    """Those that the person wants and that have room, whole: a number without its last digits is another one.

    Where there is too little room, those go first that are for wide panes, then those at the right; last the one that
    the table is sorted by, and those that stay.
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
    """In cells, of a whole line."""
    return mark_width + sum(1 + column.width for column in columns)
