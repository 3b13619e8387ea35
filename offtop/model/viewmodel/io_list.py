"""What the lists of file operations and of requests to disks have in common on the screen."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Generic, TypeVar

from offtop.model.aggregate.disk_rows import DiskRow
from offtop.model.aggregate.file_rows import FileRow
from offtop.model.aggregate.io_paths import IoRow, paths, tree_of
from offtop.model.aggregate.io_rows import IoRows
from offtop.model.values.disks import DiskKey
from offtop.model.values.files import FileKey
from offtop.model.values.io_stacks import NO_TOTALS, StackTotals
from offtop.model.values.outlier import MOST_WHAT
from offtop.model.values.stack import Names
from offtop.model.viewmodel.io_comparison import IoCompared
from offtop.model.viewmodel.scene import Scene
from offtop.model.viewmodel.tree_picture import TreePicture, io_tree_picture
from offtop.model.viewmodel.view import SINCE_START, View
from offtop.model.windows.history import History, HistoryTick

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
