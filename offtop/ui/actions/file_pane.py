"""The list of file operations."""

from offtop.model.aggregate.filter import Filter
from offtop.model.values.catalog import ThreadKey
from offtop.model.viewmodel import file_list, panes
from offtop.model.viewmodel.picture import Picture
from offtop.model.viewmodel.view import FILES
from offtop.printable import printable
from offtop.ui.actions.display import Display
from offtop.ui.actions.pane import Pane, within
from offtop.ui.actions.sorting import Sorting
from offtop.ui.kit.layout import STUCK_FRAME, Layout, stuck_lines
from offtop.ui.kit.lines import Line, Pen
from offtop.ui.panes import files


class FilesPane(Pane):
    name = FILES

    def __init__(self, display: Display, sorting: Sorting) -> None:
        super().__init__(display)
        self._sorting = sorting

    def _draw(self, picture: Picture, pen: Pen, layout: Layout) -> list[Line]:
        return files.files(picture.files, picture.common, pen)

    def move(self, picture: Picture, step: int) -> None:
        rows = picture.files.listed.rows
        if rows:
            self._display.set_view(
                file_list.at_row(self._display.view, rows[within(picture.files.cursor + step, rows)])
            )

    def enter(self, picture: Picture) -> None:
        """Show where the process waits."""
        chosen = picture.files.chosen
        if chosen:
            self._display.set_view(panes.around_hop(self._display.view, ThreadKey(chosen.key.pid, 0)))

    def open(self) -> None:
        self._display.show_alert("there is nothing to open here: Enter shows where this process waits")

    def next_match(self, picture: Picture, word: str, step: int) -> bool:
        view = self._focused_view
        matches = {
            number: file_list.at_row(view, row)
            for number, row in enumerate(picture.files.listed.rows)
            if word in files.text_of(row).casefold()
        }
        return self._go_to_match(matches, picture.files.cursor, step)

    def process(self) -> int:
        picture = self._display.picture
        chosen = picture.files.chosen if picture else None
        return chosen.key.pid if chosen else super().process()

    def as_filter(self, picture: Picture) -> Filter | None:
        """Return None: waits are muted, not file operations."""
        return None

    def as_text(self, picture: Picture) -> str:
        chosen = picture.files.chosen
        return printable(files.text_of(chosen)) if chosen else super().as_text(picture)

    def click(self, picture: Picture, x: int, y: int) -> None:
        rows, number = picture.files.listed.rows, picture.files.first + y - STUCK_FRAME
        if y == STUCK_FRAME - 1 and rows:
            self._sorting.sort_by_title(files.sort_at(self._pen, x))
        elif STUCK_FRAME <= y < STUCK_FRAME + stuck_lines(self._pen.height) and number < len(rows):
            if number == picture.files.cursor:
                self.enter(picture)
            else:
                self._display.set_view(file_list.at_row(self._focused_view, rows[number]))
