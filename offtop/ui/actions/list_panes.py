"""The lists of file operations and of requests to disks."""

from collections.abc import Sequence

from offtop.model.aggregate.disk_rows import DiskRow
from offtop.model.aggregate.file_rows import FileRow
from offtop.model.values.catalog import ThreadKey
from offtop.model.viewmodel.io_list import DisksPicture, FilesPicture
from offtop.model.viewmodel.picture import Picture
from offtop.model.viewmodel.tree_picture import TreePicture
from offtop.model.viewmodel.view import DISKS, FILES
from offtop.ui.actions.display import Display
from offtop.ui.actions.rows_pane import StackRowsPane
from offtop.ui.actions.sorting import Sorting
from offtop.ui.actions.stack_panes import IoTreePane
from offtop.ui.kit.columns import Heading
from offtop.ui.kit.layout import Layout
from offtop.ui.kit.lines import Line, Pen
from offtop.ui.panes import disks, files


class _FilesTree(IoTreePane):
    name = FILES

    def _tree(self, picture: Picture) -> TreePicture | None:
        return picture.files.tree


class FilesPane(StackRowsPane[FileRow]):
    name = FILES

    def __init__(self, display: Display, sorting: Sorting) -> None:
        super().__init__(display, sorting, _FilesTree(display))

    def _draw(self, picture: Picture, pen: Pen, layout: Layout) -> list[Line]:
        if picture.common.view.has_io_heat:
            return files.heat_map(picture.heat, picture.files, picture.common, pen)
        return files.files(picture.files, picture.common, pen)

    def _listed(self, picture: Picture) -> FilesPicture:
        return picture.files

    def _in_full(self, picture: Picture, row: FileRow) -> list[Line]:
        return files.in_full(row, picture.common, self._pen)

    def _columns(self) -> Sequence[Heading]:
        picture = self._display.picture
        return files.columns(self._pen, picture is not None and picture.files.is_compared)

    def _text_of(self, row: FileRow) -> str:
        return files.text_of(row)

    def _thread_of(self, row: FileRow) -> ThreadKey:
        return ThreadKey(row.key.pid, 0)


class _DisksTree(IoTreePane):
    name = DISKS

    def _tree(self, picture: Picture) -> TreePicture | None:
        return picture.disks.tree


class DisksPane(StackRowsPane[DiskRow]):
    name = DISKS

    def __init__(self, display: Display, sorting: Sorting) -> None:
        super().__init__(display, sorting, _DisksTree(display))

    def _draw(self, picture: Picture, pen: Pen, layout: Layout) -> list[Line]:
        if picture.common.view.has_io_heat:
            return disks.heat_map(picture.heat, picture.disks, picture.common, pen)
        return disks.disks(picture.disks, picture.common, pen)

    def _listed(self, picture: Picture) -> DisksPicture:
        return picture.disks

    def _in_full(self, picture: Picture, row: DiskRow) -> list[Line]:
        return disks.in_full(row, picture.common, self._pen)

    def _above(self, picture: Picture) -> int:
        return picture.disks.device_lines

    def _columns(self) -> Sequence[Heading]:
        picture = self._display.picture
        return disks.columns(self._pen, picture is not None and picture.disks.is_compared)

    def _text_of(self, row: DiskRow) -> str:
        return disks.text_of(row)

    def _thread_of(self, row: DiskRow) -> ThreadKey:
        return ThreadKey(row.key.pid, row.key.tid)
