"""The lists of file operations and of requests to disks on the screen."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Generic, TypeVar

from offtop.model.aggregate.disk_rows import DISK_SORTS, DeviceRow, DiskRow, DiskRows, disk_rows
from offtop.model.aggregate.file_rows import FILE_SORTS, FileRow, FileRows, file_rows
from offtop.model.aggregate.io_paths import IoRow, paths, tree_of
from offtop.model.aggregate.io_rows import IoRows
from offtop.model.aggregate.list_rows import activity_of
from offtop.model.aggregate.rows import CHANGE, first_seen
from offtop.model.values import disks, files
from offtop.model.values.disks import DISK, DiskKey
from offtop.model.values.files import FILE, FileKey
from offtop.model.values.io_stacks import NO_TOTALS, StackTotals
from offtop.model.values.outlier import MOST_WHAT
from offtop.model.values.stack import Names
from offtop.model.viewmodel.io_comparison import IoCompared, IoComparison
from offtop.model.viewmodel.room import Room
from offtop.model.viewmodel.scene import Scene
from offtop.model.viewmodel.tree_picture import TreePicture, io_tree_picture
from offtop.model.viewmodel.view import SINCE_START, DisksView, FilesView, View
from offtop.model.viewmodel.view_filters import row_filters
from offtop.model.windows.history import History, HistoryTick

_DEVICES_SHARE = 3
"""The disks get one of so many lines, at most."""
_EVER_NS = 1 << 62
Row = TypeVar("Row", FileRow, DiskRow)


@dataclass(frozen=True, slots=True)
class IoPicture(Generic[Row]):
    listed: IoRows[Row]
    span_ns: int = 0
    """Measured length of the ticks in which this was counted; 0: there is none yet."""
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
    def shown_rows(self) -> Sequence[Row]:
        """All rows, or the one that has the whole pane."""
        return self.listed.rows[self.cursor : self.cursor + 1] if self.opened else self.listed.rows

    @property
    def is_compared(self) -> bool:
        return self.compared is not None and not self.compared.why_not

    @property
    def opened_key(self) -> FileKey | DiskKey | None:
        """Key of the row that has the whole pane."""
        return self.chosen.key if self.opened and self.chosen else None

    @property
    def chosen(self) -> Row | None:
        return self.listed.rows[self.cursor] if self.listed.rows else None


@dataclass(frozen=True, slots=True)
class FilesPicture(IoPicture[FileRow]):
    listed: FileRows = field(default_factory=FileRows)


@dataclass(frozen=True, slots=True)
class DisksPicture(IoPicture[DiskRow]):
    listed: DiskRows = field(default_factory=DiskRows)
    devices: Sequence[DeviceRow] = ()
    """Disks on the screen, above the rows."""

    @property
    def device_lines(self) -> int:
        """Lines of the disks, with their column titles."""
        return len(self.devices) + 1 if self.devices else 0


def files_picture(
    scene: Scene, history: History, room: Room, names: Names, comparison: IoComparison
) -> tuple[View, FilesPicture]:
    """Return the list for the span of the scene; and the view, with the branches that opened by themselves."""
    view, chosen = scene.view, scene.view.files
    counted = _counted_ticks(scene, history, FILE) if room.files else ()
    activity = files.added(tick.header.files for tick in counted)
    if activity is None:
        return view, FilesPicture()
    span_ns = sum(tick.span_ns for tick in counted)
    listed = file_rows(activity, span_ns, scene.catalog, row_filters(view), chosen.sort, chosen.reverse)
    rows, compared = comparison.of(view, listed.rows, span_ns)
    rows = FILE_SORTS.in_order(rows, CHANGE, chosen.reverse) if chosen.sort == CHANGE else rows
    at = _cursor_in(rows, chosen, room.files)
    shown = FilesPicture(replace(listed, rows=rows), span_ns, *at, compared=compared)
    view, tree = _stack_tree(scene, shown.shown_rows, names, room.io_tree)
    return view, replace(shown, tree=tree)


def disks_picture(
    scene: Scene, history: History, room: Room, names: Names, comparison: IoComparison
) -> tuple[View, DisksPicture]:
    """Return the list for the span of the scene; and the view, with the branches that opened by themselves."""
    view, chosen = scene.view, scene.view.disks
    counted = _counted_ticks(scene, history, DISK) if room.disks else ()
    activity = disks.added(tick.header.disks for tick in counted)
    if activity is None:
        return view, DisksPicture()
    span_ns, by_thread = sum(tick.span_ns for tick in counted), chosen.by_thread
    filters = row_filters(view)
    listed = disk_rows(activity, span_ns, scene.catalog, filters, chosen.sort, chosen.reverse, by_thread=by_thread)
    rows, compared = comparison.of(view, listed.rows, span_ns)
    rows = DISK_SORTS.in_order(rows, CHANGE, chosen.reverse) if chosen.sort == CHANGE else rows
    devices = listed.devices[: max(1, room.disks // _DEVICES_SHARE - 1)]
    at = _cursor_in(rows, chosen, max(1, room.disks - len(devices) - 1), chosen.near_pid)
    shown = DisksPicture(replace(listed, rows=rows), span_ns, *at, compared=compared, devices=devices)
    view, tree = _stack_tree(scene, shown.shown_rows, names, room.io_tree)
    return view, replace(shown, tree=tree)


def _counted_ticks(scene: Scene, history: History, mode: str) -> Sequence[HistoryTick]:
    """Return the ticks of the scene in which what `mode` lists was counted."""
    ticks = scene.ticks
    if scene.view.span_ns == SINCE_START:  # the window since the start does not hold what is counted only on request
        ticks = history.last(_EVER_NS, scene.view.paused_at_ns)
    return [tick for tick in ticks if activity_of(tick.header, mode) is not None]


def _cursor_in(
    rows: Sequence[FileRow] | Sequence[DiskRow], chosen: FilesView | DisksView, lines: int, near_pid: int = 0
) -> tuple[int, int, bool]:
    """Return the row under the cursor, the first row on the screen, and whether the former has the whole pane."""
    near = _nearest([row.io for row in rows], *chosen.near) if chosen.near else 0
    near = next((number for number, row in enumerate(rows) if near_pid and row.key.pid == near_pid), near)
    cursor = next((number for number, row in enumerate(rows) if row.key == chosen.cursor), near)
    first = first_seen(len(rows), cursor, lines, chosen.line)
    return cursor, first, chosen.opened and bool(rows) and rows[cursor].key == chosen.cursor


def _nearest(rows: Sequence[IoRow], what: str, program: str) -> int:
    """Return which of `rows` is meant by IoListView.near: 0 if there is no such row."""
    found = [
        number for number, row in enumerate(rows) if row.what[-MOST_WHAT:] == what and program in ("", row.process)
    ]
    return max(found, key=lambda number: max(rows[number].totals.max_ns, rows[number].now_ns), default=0)


def _stack_tree(
    scene: Scene, rows: Sequence[FileRow] | Sequence[DiskRow], names: Names, lines: int
) -> tuple[View, TreePicture | None]:
    """Return the stack tree of `rows`, if it is on the screen; and the view with branches that opened by themselves."""
    view = scene.view
    if not view.has_io_tree:
        return view, None
    every = [row.io for row in rows]
    tree = tree_of(paths(every, scene.catalog, names, view.tree.shape))
    return io_tree_picture(view, tree, lines, reduce(StackTotals.plus, (row.without_stack for row in every), NO_TOTALS))
