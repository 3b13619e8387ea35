"""A pane that can have the focus: how it is drawn, and what keys and clicks do in it."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from offtop.model.aggregate.baseline_rows import BaselineOnly
from offtop.model.aggregate.filter import Filter
from offtop.model.aggregate.program import Program
from offtop.model.aggregate.rows import Key, Row
from offtop.model.viewmodel import drilling, view_changes
from offtop.model.viewmodel.picture import Picture
from offtop.model.viewmodel.view import LIST, View
from offtop.ui.actions.display import Display
from offtop.ui.kit.layout import Layout
from offtop.ui.kit.lines import Line, Pen, marked


class Pane:
    """Defaults for what a pane does not define itself."""

    name: ClassVar[str]
    """Its View.focus, and the id of its panel."""
    highlights_matches: ClassVar[bool] = True
    """Whether matches of a search are highlighted."""

    title_lines: ClassVar[int] = 2
    """Lines above the rows."""

    def __init__(self, display: Display) -> None:
        self._display = display

    @property
    def _pen(self) -> Pen:
        return self._display.pen(self.name)

    def lines(self, picture: Picture, layout: Layout) -> Sequence[Line]:
        """Draw the pane."""
        lines = self._draw(picture, self._pen, layout)
        return [marked(line, picture.common.view.search) for line in lines] if self.highlights_matches else lines

    def _draw(self, picture: Picture, pen: Pen, layout: Layout) -> Sequence[Line]:
        raise NotImplementedError

    # Keys

    def move(self, picture: Picture, step: int) -> None:
        """Move the cursor down by `step` rows, or up if negative."""

    def move_sideways(self, picture: Picture, step: int) -> bool:
        """Move the cursor right (1) or left (-1); return False if that means one level down or up."""
        return False

    def enter(self, picture: Picture) -> None:
        """Go one level down from what is under the cursor."""
        key = list_key(picture)
        self._display.set_view(drilling.entered(self._display.view, key))
        if isinstance(key, BaselineOnly):
            self._display.show_alert("this is only in the baseline: nothing waits there now")

    def open(self) -> None:
        """Open or unfold what is under the cursor."""
        self._display.show_alert("this key is for the stack tree: t shows it")

    def close(self) -> None:
        """Close or fold what is under the cursor."""
        self.open()

    def next_match(self, picture: Picture, word: str, step: int) -> bool:
        """Go to the next (1) or previous (-1) match of `word`; return False if the pane cannot be searched.

        `word` is casefolded.
        """
        return False

    # What is under the cursor

    def process(self) -> int:
        """Return the PID of the process under the cursor, or of the one drilled into; 0 if there is none."""
        return self._display.view.subject_ids[0] or 0

    def key_to_pin(self) -> Key | None:
        view = self._display.view
        return view.thread or view.pid or view.program or view.pin

    def as_filter(self, picture: Picture) -> Filter | None:
        """Return a filter for the waits of what is under the cursor; None if there is none."""
        return None

    def as_text(self, picture: Picture) -> str:
        """Return what is under the cursor for the clipboard: here, the category."""
        category, rows = picture.common.view.category, picture.categories.ranking.rows
        return next((f"{row.name} {row.waiting:.2f}" for row in rows if row.key == category), "")

    # The mouse

    def click(self, picture: Picture, x: int, y: int) -> bool:
        """Select what is at a cell of the pane; a click on the selection drills down. Return whether it did that."""
        return False

    @property
    def _focused_view(self) -> View:
        """The view with the focus in this pane."""
        return view_changes.in_pane(self._display.view, self.name)

    @property
    def _has_focus(self) -> bool:
        return self._display.view.focus == self.name

    def _go_to_match(self, view_of_row: Mapping[int, View], cursor: int, step: int) -> bool:
        """Show the view of the next matching row after the cursor (1), or before it (-1)."""
        beyond = [row for row in view_of_row if (row > cursor if step > 0 else row < cursor)]
        rows = beyond or [*view_of_row]
        if rows:
            self._display.set_view(view_of_row[rows[0 if step > 0 else -1]])
        else:
            self._display.show_alert("no line here matches")
        return True


class Panes:
    def __init__(self, display: Display, panes: Sequence[Pane]) -> None:
        self._display = display
        self.by_name: Mapping[str, Pane] = {pane.name: pane for pane in panes}

    @property
    def focused(self) -> Pane:
        return self.by_name[self._display.view.focus]


def list_row(picture: Picture | None) -> Row | None:
    """Return the row under the cursor of the list."""
    rows = picture.listed.ranking.rows if picture else ()
    return rows[picture.listed.cursor] if picture and rows else None


def list_key(picture: Picture | None) -> Key | None:
    """Return the key of the row under the cursor of the list."""
    row = list_row(picture)
    return row.key if row else None


def within(index: int, rows: Sequence[object]) -> int:
    """Return `index`, or the nearest index of `rows`."""
    return max(0, min(len(rows) - 1, index))


def hint_at_processes(display: Display) -> str:
    """Return how to get to a list of processes."""
    view = display.view
    if view.focus == LIST and isinstance(list_key(display.picture), Program):
        return "ENTER lists those of this program"
    return "TAB goes to their list" if view.lists_sleepers else "1 lists them"
