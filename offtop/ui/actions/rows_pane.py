"""A list that is not about waits: its rows belong to processes, and Enter shows where one waits."""

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from offtop.model.aggregate.filter import Filter
from offtop.model.values.catalog import ThreadKey
from offtop.model.viewmodel import panes
from offtop.model.viewmodel.picture import Picture
from offtop.model.viewmodel.view import View
from offtop.printable import printable
from offtop.ui.actions.display import Display
from offtop.ui.actions.pane import Pane, within
from offtop.ui.actions.sorting import Sorting
from offtop.ui.kit.layout import STUCK_FRAME, stuck_lines
from offtop.ui.panes import columns
from offtop.ui.panes.columns import Column

Row = TypeVar("Row")
RowOfPicture = TypeVar("RowOfPicture", covariant=True)


class Listed(Protocol[RowOfPicture]):
    """Rows of a picture."""

    @property
    def cursor(self) -> int: ...

    @property
    def first(self) -> int: ...

    @property
    def chosen(self) -> RowOfPicture | None: ...


class RowsPane(Pane, Generic[Row]):
    def __init__(self, display: Display, sorting: Sorting) -> None:
        super().__init__(display)
        self._sorting = sorting

    def _listed(self, picture: Picture) -> Listed[Row]:
        raise NotImplementedError

    def _rows(self, picture: Picture) -> Sequence[Row]:
        raise NotImplementedError

    def _above(self, picture: Picture) -> int:
        """Return how many lines are between the title of the pane and the column titles of the rows."""
        return 0

    def _columns(self) -> Sequence[Column]:
        raise NotImplementedError

    def _at_row(self, view: View, row: Row) -> View:
        raise NotImplementedError

    def _text_of(self, row: Row) -> str:
        raise NotImplementedError

    def _thread_of(self, row: Row) -> ThreadKey:
        """Return the thread of a row; tid 0: all of its process. Pid 0: it has no process."""
        raise NotImplementedError

    def move(self, picture: Picture, step: int) -> None:
        rows = self._rows(picture)
        if rows:
            row = rows[within(self._listed(picture).cursor + step, rows)]
            self._display.set_view(self._at_row(self._display.view, row))

    def enter(self, picture: Picture) -> None:
        """Show where the process or thread waits."""
        chosen = self._listed(picture).chosen
        if chosen is None:
            return
        thread = self._thread_of(chosen)
        if thread.pid:
            self._display.set_view(panes.around_hop(self._display.view, thread))
        else:
            self._display.show_alert("the kernel did this, for no process")

    def open(self) -> None:
        self._display.show_alert("there is nothing to open here: Enter shows where this process waits")

    def next_match(self, picture: Picture, word: str, step: int) -> bool:
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
        chosen = self._listed(picture).chosen
        return printable(self._text_of(chosen)) if chosen else super().as_text(picture)

    def click(self, picture: Picture, x: int, y: int) -> None:
        rows, listed = self._rows(picture), self._listed(picture)
        top = STUCK_FRAME + self._above(picture)
        number = listed.first + y - top
        if y == top - 1 and rows:
            self._sorting.sort_by_title(columns.sort_at(self._columns(), x))
        elif top <= y < STUCK_FRAME + stuck_lines(self._pen.height) and number < len(rows):
            if number == listed.cursor:
                self.enter(picture)
            else:
                self._display.set_view(self._at_row(self._focused_view, rows[number]))
