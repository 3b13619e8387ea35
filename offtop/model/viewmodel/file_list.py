"""The list of file operations on the screen, and the cursor."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from offtop.model.aggregate.file_rows import FileRow, FileRows, file_rows, in_order
from offtop.model.aggregate.io_paths import IoRow, paths, tree_of
from offtop.model.aggregate.rows import CHANGE
from offtop.model.values.files import FileKey, added
from offtop.model.values.io_stacks import NO_TOTALS, StackTotals
from offtop.model.values.outlier import MOST_WHAT
from offtop.model.values.stack import Names
from offtop.model.viewmodel import panes
from offtop.model.viewmodel.io_comparison import IoCompared, IoComparison
from offtop.model.viewmodel.room import Room
from offtop.model.viewmodel.scene import Scene
from offtop.model.viewmodel.tree_picture import TreePicture, io_tree_picture
from offtop.model.viewmodel.view import FILES, SINCE_START, FilesView, View
from offtop.model.viewmodel.view_filters import row_filters
from offtop.model.windows.history import History, HistoryTick

_EVER_NS = 1 << 62


@dataclass(frozen=True, slots=True)
class FilesPicture:
    listed: FileRows = field(default_factory=FileRows)
    span_ns: int = 0
    """Measured length of the ticks in which file operations were counted; 0: there is none yet."""
    cursor: int = 0
    """Row under the cursor."""
    first: int = 0
    """First row on the screen."""
    opened: bool = False
    """Whether the row under the cursor has the whole pane."""
    tree: TreePicture | None = None
    """Stack tree of the opened row, or of all rows; None: it is not on the screen."""
    compared: IoCompared | None = None
    """None: nothing is compared with a baseline."""

    @property
    def shown_rows(self) -> Sequence[FileRow]:
        """All rows, or the one that has the whole pane."""
        return self.listed.rows[self.cursor : self.cursor + 1] if self.opened else self.listed.rows

    @property
    def is_compared(self) -> bool:
        return self.compared is not None and not self.compared.why_not

    @property
    def opened_key(self) -> FileKey | None:
        """Key of the row that has the whole pane."""
        return self.chosen.key if self.opened and self.chosen else None

    @property
    def chosen(self) -> FileRow | None:
        return self.listed.rows[self.cursor] if self.listed.rows else None


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
    listed = replace(listed, rows=in_order(rows, chosen.sort, chosen.reverse) if chosen.sort == CHANGE else rows)
    near = nearest([row.io for row in listed.rows], chosen.near)
    cursor = next((number for number, row in enumerate(listed.rows) if row.key == chosen.cursor), near)
    first = min(max(0, cursor - lines // 2), max(0, len(listed.rows) - lines))
    opened = chosen.opened and bool(listed.rows) and listed.rows[cursor].key == chosen.cursor
    shown = FilesPicture(listed, span_ns, cursor, first, opened, compared=compared)
    view, tree = stack_tree(scene, [row.io for row in shown.shown_rows], names, room.io_tree)
    return view, replace(shown, tree=tree)


def nearest(rows: Sequence[IoRow], near: tuple[str, str] | None) -> int:
    """Return which of `rows` is meant by IoListView.near: 0 if there is no such row."""
    what, program = near or ("", "")
    found = [
        number
        for number, row in enumerate(rows)
        if near and row.what[-MOST_WHAT:] == what and program in ("", row.process)
    ]
    return max(found, key=lambda number: max(rows[number].totals.max_ns, rows[number].now_ns), default=0)


def stack_tree(scene: Scene, rows: Sequence[IoRow], names: Names, lines: int) -> tuple[View, TreePicture | None]:
    """Return the stack tree of `rows`, if it is on the screen; and the view with branches that opened by themselves."""
    view = scene.view
    if not view.has_io_tree:
        return view, None
    tree = tree_of(paths(rows, scene.catalog, names, view.tree.shape))
    return io_tree_picture(view, tree, lines, reduce(StackTotals.plus, (row.without_stack for row in rows), NO_TOTALS))


def counted_ticks(scene: Scene, history: History) -> Sequence[HistoryTick]:
    """Return the ticks of the scene whose windows hold what is counted only on request."""
    if scene.view.span_ns == SINCE_START:  # the window since the start does not hold it
        return history.last(_EVER_NS, scene.view.paused_at_ns)
    return scene.ticks


def files_or_not(view: View) -> View:
    """Open the list of file operations, or return to the previous pane."""
    if view.focus == FILES:
        return panes.off_cpu_panes(view)
    return panes.at_list(view, FILES)


def at_row(view: View, row: FileRow | None) -> View:
    """Move the cursor; None: it stays on the first row."""
    return replace(view, focus=FILES, files=replace(view.files, cursor=row.key if row else None))


def sorted_by(view: View, sort: str) -> View:
    """Sort by one of FILE_SORTS; from the first row on."""
    return replace(view, files=FilesView(sort=sort))


def reversed_order(view: View) -> View:
    return replace(view, files=replace(view.files, reverse=not view.files.reverse))
