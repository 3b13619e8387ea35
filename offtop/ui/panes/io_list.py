"""What the lists of file operations and of requests to disks have in common."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from offtop.model.aggregate.disk_rows import DiskRow
from offtop.model.aggregate.file_rows import FileRow
from offtop.model.aggregate.word_filter import ignored_words
from offtop.model.viewmodel.common import Common
from offtop.model.viewmodel.io_list import IoPicture
from offtop.model.viewmodel.view import SINCE_START
from offtop.ui.kit.columns import Heading
from offtop.ui.kit.lines import Line, Pen
from offtop.ui.panes.columns import spans_of

Row = TypeVar("Row", FileRow, DiskRow)


def notes(shown: IoPicture[Row], common: Common) -> list[str]:
    """Return what the title says after the sums: what they cover, and what the list leaves out."""
    listed = shown.listed
    return [
        *(["as far as the history reaches"] if common.view.span_ns == SINCE_START else []),
        *([shown.compared.text] if shown.compared else []),
        *([f"{listed.elided_rows} small rows only in these sums"] if listed.elided_rows else []),
        *([ignored_words(listed.unsuited)] if listed.unsuited else []),
    ]


def row_lines(
    shown: IoPicture[Row],
    columns: Sequence[Heading],
    cells: Callable[[Row], Mapping[str, tuple[str, str]]],
    room: int,
    has_focus: bool,
    pen: Pen,
    path: str = "",
) -> list[Line]:
    """Return `room` rows of the list, or as many as there are. `path`: see spans_of."""
    made: list[Line] = []
    for number, row in enumerate(shown.listed.rows[shown.first : shown.first + room], shown.first):
        chosen = number == shown.cursor
        base = ("cursor" if has_focus else "cursor-away") if chosen else "text"
        made.append(Line(spans_of(columns, cells(row), chosen, pen, path=path), base))
    return made
