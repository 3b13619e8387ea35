"""Columns of the lists that are not about waits: file operations, requests to disks."""

from collections.abc import Mapping, Sequence

from offtop.model.aggregate.baseline_rows import Change
from offtop.model.aggregate.rows import CHANGE
from offtop.printable import printable
from offtop.ui.kit.columns import Heading
from offtop.ui.kit.lines import Pen, fit
from offtop.ui.panes.tables import change_token, times_token
from offtop.units import count

CHANGES = [Heading("CHANGE", 8, sort=CHANGE), Heading("p99 x", 5, sort="p99 x")]
"""Columns of a comparison with the baseline."""


def change_cells(change: Change | None) -> dict[str, tuple[str, str]]:
    """Return (text, token) of the cells of CHANGES."""
    text, p99_text = (change.text, change.p99_text) if change else ("", "")
    return {CHANGE: (text, change_token(change)), "p99 x": (p99_text, times_token(change))}


def spans_of(
    columns: Sequence[Heading], cells: Mapping[str, tuple[str, str]], chosen: bool, pen: Pen, path: str = ""
) -> tuple[tuple[str, str], ...]:
    """Return the line of a row.

    `cells`: (raw text, token) by Heading.sort. `path`: the column that is cut on its left.
    """
    spans: list[tuple[str, str]] = [(">" if chosen else " ", "text")]
    for column in columns:
        text, token = cells[column.sort]
        shown = tail(text, column.width, pen) if column.sort == path else fit(text, column.width, pen.glyphs)
        spans.append((f" {shown}" if column.left else f" {text:>{column.width}}", token))
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
