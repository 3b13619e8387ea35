"""The list of file operations on the screen."""

from dataclasses import dataclass, field, replace

from offtop.model.aggregate.file_rows import FILE_SORTS, FileRow, FileRows, file_rows
from offtop.model.aggregate.rows import CHANGE
from offtop.model.values.files import added
from offtop.model.values.stack import Names
from offtop.model.viewmodel.io_comparison import IoComparison
from offtop.model.viewmodel.io_list import IoPicture, counted_ticks, nearest, stack_tree
from offtop.model.viewmodel.room import Room
from offtop.model.viewmodel.scene import Scene
from offtop.model.viewmodel.view import View
from offtop.model.viewmodel.view_filters import row_filters
from offtop.model.windows.history import History


@dataclass(frozen=True, slots=True)
class FilesPicture(IoPicture[FileRow]):
    listed: FileRows = field(default_factory=FileRows)


def files_picture(
    scene: Scene, history: History, room: Room, names: Names, comparison: IoComparison
) -> tuple[View, FilesPicture]:
    """Return the list for the span of the scene; and the view, with the branches that opened by themselves."""
    view, lines = scene.view, room.files
    if not lines:
        return view, FilesPicture()
    counted = [tick for tick in counted_ticks(scene, history) if tick.header.files is not None]
    activity = added(tick.header.files for tick in counted)
    if activity is None:
        return view, FilesPicture()
    span_ns = sum(tick.span_ns for tick in counted)
    chosen = view.files
    listed = file_rows(activity, span_ns, scene.catalog, row_filters(view), chosen.sort, chosen.reverse)
    rows, compared = comparison.of(view, listed.rows, span_ns)
    listed = replace(
        listed, rows=FILE_SORTS.in_order(rows, chosen.sort, chosen.reverse) if chosen.sort == CHANGE else rows
    )
    near = nearest([row.io for row in listed.rows], chosen.near)
    cursor = next((number for number, row in enumerate(listed.rows) if row.key == chosen.cursor), near)
    first = min(max(0, cursor - lines // 2), max(0, len(listed.rows) - lines))
    opened = chosen.opened and bool(listed.rows) and listed.rows[cursor].key == chosen.cursor
    shown = FilesPicture(listed, span_ns, cursor, first, opened, compared=compared)
    view, tree = stack_tree(scene, [row.io for row in shown.shown_rows], names, room.io_tree)
    return view, replace(shown, tree=tree)
