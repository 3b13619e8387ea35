"""Columns of the lists that are not about waits: file operations, requests to disks."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from offtop.model.aggregate.baseline_rows import Change
from offtop.model.aggregate.rows import CHANGE
from offtop.printable import printable
from offtop.ui.kit.lines import Line, Pen, fit
from offtop.ui.panes.tables import change_token, times_token
from offtop.units import count


class Column(NamedTuple):
    title: str
    sort: str
    """Name of the column in the order of rows."""
    width: int
    is_number: bool = True
    """It is aligned to the right."""


CHANGES = [Column("CHANGE", CHANGE, 8), Column("p99 x", "p99 x", 5)]
"""Columns of a comparison with the baseline."""


def change_cells(change: Change | None) -> dict[str, tuple[str, str]]:
    """Return (text, token) of the cells of CHANGES."""
    text, p99_text = (change.text, change.p99_text) if change else ("", "")
    return {CHANGE: (text, change_token(change)), "p99 x": (p99_text, times_token(change))}


def heads(columns: Sequence[Column], sort: str) -> Line:
    """Return the line of titles. `sort`: the column that is marked."""
    spans: list[tuple[str, str]] = [(" ", "head")]
    for title, name, width, is_number in columns:
        text = f"{title:>{width}}" if is_number else f"{title:<{width}}"
        blank = len(text) - len(text.lstrip())
        token = "sorted" if name == sort else "head"
        spans += [
            (" " + text[:blank], "head"),
            (text[blank:].rstrip(), token),
            (" " * (width - len(text.rstrip())), "head"),
        ]
    return Line(tuple(spans))


def sort_at(columns: Sequence[Column], x: int) -> str:
    """Return the sort order of the column title at `x`; empty if there is none."""
    edge = 1
    for column in columns:
        edge += 1 + column.width
        if x < edge:
            return column.sort
    return ""


def spans_of(
    columns: Sequence[Column], cells: Mapping[str, tuple[str, str]], chosen: bool, pen: Pen, path: str = ""
) -> tuple[tuple[str, str], ...]:
    """Return the line of a row.

    `cells`: (raw text, token) by Column.sort. `path`: the column that is cut on its left.
    """
    spans: list[tuple[str, str]] = [(">" if chosen else " ", "text")]
    for _, sort, width, is_number in columns:
        text, token = cells[sort]
        shown = tail(text, width, pen) if sort == path else fit(text, width, pen.glyphs)
        spans.append((f" {text:>{width}}" if is_number else f" {shown}", token))
    return tuple(spans)


def tail(text: str, width: int, pen: Pen) -> str:
    """Cut a path on its left: the name of the file says most."""
    shown = printable(text, pen.glyphs.is_ascii)
    if len(shown) > width and shown.isascii():
        shown = pen.glyphs.ellipsis + shown[len(shown) - width + len(pen.glyphs.ellipsis) :]
    return fit(shown, width, pen.glyphs)


def megabytes(bytes_per_s: float) -> str:
    """Format a rate in units of 1,000,000 bytes; empty for none."""
    value = bytes_per_s / 1e6
    if not value:
        return ""
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 999.95 else count(value)
