"""A list that is not about waits: its rows belong to processes, and from one it goes on to where that waits."""

from collections.abc import Sequence
from typing import Generic, TypeVar

from offtop.model.aggregate.disk_rows import DiskRow
from offtop.model.aggregate.file_rows import FileRow
from offtop.model.aggregate.filter import Filter
from offtop.model.values.catalog import ThreadKey
from offtop.model.viewmodel import panes
from offtop.model.viewmodel.io_list import IoPicture
from offtop.model.viewmodel.picture import Picture
from offtop.model.viewmodel.view import View
from offtop.printable import printable
from offtop.ui.actions.display import Display
from offtop.ui.actions.latency_pane import IoHeatPane
from offtop.ui.actions.pane import Pane, within
from offtop.ui.actions.sorting import Sorting
from offtop.ui.actions.stack_panes import IoTreePane
from offtop.ui.kit.columns import Heading, sort_at
from offtop.ui.kit.layout import STUCK_FRAME, stuck_lines
from offtop.ui.kit.lines import Line

Row = TypeVar("Row", FileRow, DiskRow)


class StackRowsPane(Pane, Generic[Row]):
    """The list, one of its rows in full with its stacks, or the stack tree or the heat map in its place."""

    def __init__(self, display: Display, sorting: Sorting, tree: IoTreePane) -> None:
        super().__init__(display)
        self._sorting, self._tree, self._heat = sorting, tree, IoHeatPane(display)

    def _in_its_place(self, picture: Picture) -> Pane | None:
        """Return what is shown instead of rows, and has their keys."""
        if self._display.view.has_io_heat:
            return self._heat
        return self._tree if self._listed(picture).tree else None

    def _listed(self, picture: Picture) -> IoPicture[Row]:
        raise NotImplementedError

    def _in_full(self, picture: Picture, row: Row) -> Sequence[Line]:
        raise NotImplementedError

    def _rows(self, picture: Picture) -> Sequence[Row]:
        return self._listed(picture).listed.rows

    def _above(self, picture: Picture) -> int:
        """Return how many lines are between the title of the pane and the column titles of the rows."""
        return 0

    def _columns(self) -> Sequence[Heading]:
        raise NotImplementedError

    def _at_row(self, view: View, row: Row, line: int | None = None) -> View:
        return panes.at_row(view, self.name, row.key, line)

    def _text_of(self, row: Row) -> str:
        raise NotImplementedError

    def _thread_of(self, row: Row) -> ThreadKey:
        """Return the thread of a row; tid 0: all of its process. Pid 0: it has no process."""
        raise NotImplementedError

    def move(self, picture: Picture, step: int) -> None:
        """Move in the list, or scroll the row that fills the pane."""
        if other := self._in_its_place(picture):
            other.move(picture, step)
            return
        rows, listed, view = self._rows(picture), self._listed(picture), self._display.view
        if listed.opened and listed.chosen and view.io_list:
            last = len(self._in_full(picture, listed.chosen)) - self._pen.height + 1
            self._display.set_view(panes.row_opened(view, max(0, min(last, view.io_list.scrolled + step))))
        elif rows:
            self._display.set_view(self._at_row(view, rows[within(listed.cursor + step, rows)]))

    def move_sideways(self, picture: Picture, step: int) -> bool:
        other = self._in_its_place(picture)
        return other is not None and other.move_sideways(picture, step)

    def enter(self, picture: Picture) -> None:
        """Show the row under the cursor in full; if it is shown already, show where its process or thread waits."""
        listed, view = self._listed(picture), self._display.view
        chosen = listed.chosen
        if other := self._in_its_place(picture):
            other.enter(picture)
        elif chosen is None:
            return
        elif not listed.opened:
            line = view.io_list.line if view.io_list else None
            self._display.set_view(panes.row_opened(self._at_row(view, chosen, line)))
        elif (thread := self._thread_of(chosen)).pid:
            self._display.set_view(panes.around_hop(view, thread))
        else:
            self._display.show_alert("the kernel did this, for no process")

    def open(self) -> None:
        if self._display.view.has_io_tree:
            self._tree.open()
        else:
            self._display.show_alert("Enter shows this row with its stacks, t the stack tree of all rows")

    def close(self) -> None:
        self._tree.close() if self._display.view.has_io_tree else self.open()

    def next_match(self, picture: Picture, word: str, step: int) -> bool:
        if other := self._in_its_place(picture):
            return other.next_match(picture, word, step)
        view = self._focused_view
        matches = {
            number: self._at_row(view, row)
            for number, row in enumerate(self._rows(picture))
            if word in self._text_of(row).casefold()
        }
        return self._go_to_match(matches, self._listed(picture).cursor, step)

    def process(self) -> int:
        picture = self._display.picture
        chosen = self._listed(picture).chosen if picture else None
        return self._thread_of(chosen).pid if chosen else super().process()

    def as_filter(self, picture: Picture) -> Filter | None:
        """Return None: only waits are muted."""
        return None

    def as_text(self, picture: Picture) -> str:
        if other := self._in_its_place(picture):
            return other.as_text(picture)
        chosen = self._listed(picture).chosen
        return printable(self._text_of(chosen)) if chosen else super().as_text(picture)

    def click(self, picture: Picture, x: int, y: int) -> bool:
        rows, listed = self._rows(picture), self._listed(picture)
        if other := self._in_its_place(picture):
            return other.click(picture, x, y)
        if listed.opened:
            return False
        top = STUCK_FRAME + self._above(picture)
        number = listed.first + y - top
        is_row = top <= y < STUCK_FRAME + stuck_lines(self._pen.height) and number < len(rows)
        is_selected = is_row and number == listed.cursor
        if is_selected:
            self.enter(picture)
        elif is_row:
            self._display.set_view(self._at_row(self._focused_view, rows[number], y - top))
        elif y == top - 1 and rows:
            self._sorting.sort_by_title(sort_at(self._columns(), 1, x))
        return is_selected
