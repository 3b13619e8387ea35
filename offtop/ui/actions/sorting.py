"""Sorting the tables, by keys or by a click on a column title.

Only visible tables are sorted.
"""

from offtop.model.viewmodel import view as views
from offtop.model.viewmodel.view import CATEGORIES, LIST
from offtop.ui.actions.display import Display, refuse_without
from offtop.ui.actions.view_switches import THE_LIST
from offtop.ui.panes.chooser import Choice, Chooser

_THE_TABLES = "the tables, which are not on the screen"


class Sorting:
    def __init__(self, display: Display) -> None:
        self._display = display

    def sort_by(self, sort: str) -> None:
        display, view = self._display, self._display.view
        if refuse_without(display, _THE_TABLES, CATEGORIES, LIST):
            return
        if sort in view.sorts:
            display.set_view(views.sorted_by(view, sort))
        elif not refuse_without(display, "what A hides: A goes back to it", CATEGORIES):
            display.set_view(views.sorted_by(view, sort))
            display.show_alert(f"A lists no {sort}: only the categories are sorted by it; < and > sort the list")

    def sort_by_next_column(self, step: int) -> None:
        if not refuse_without(self._display, _THE_TABLES, CATEGORIES, LIST):
            self._display.set_view(views.next_sort(self._display.view, step))

    def choose_column(self) -> None:
        def choices() -> list[Choice]:
            view = self._display.view
            return [Choice(sort, sort, sort == view.list_sort) for sort in view.sorts]

        if not refuse_without(self._display, _THE_TABLES, CATEGORIES, LIST):
            self._display.open_overlay(Chooser("sort by", choices, self.sort_by, self._display.glyphs, closes=True))

    def reverse(self) -> None:
        if not refuse_without(self._display, THE_LIST, LIST):
            self._display.set_view(views.reversed_order(self._display.view))

    def sort_by_title(self, sort: str) -> None:
        """Sort by the clicked column; reverse the order if the list is sorted by it already."""
        if sort:
            self.reverse() if sort == self._display.view.list_sort else self.sort_by(sort)
