"""Sorting the tables, by keys or by a click on a column title.

Only visible tables are sorted.
"""

from offtop.model.aggregate.file_rows import FILE_SORTS, sort_for
from offtop.model.viewmodel import file_list, view_changes
from offtop.model.viewmodel.view import CATEGORIES, FILES, LIST
from offtop.ui.actions.display import Display, refuse_without
from offtop.ui.actions.view_switches import THE_LIST
from offtop.ui.panes.chooser import Choice, Chooser

_THE_TABLES = "the tables, which are not on the screen"


class Sorting:
    def __init__(self, display: Display) -> None:
        self._display = display

    def sort_by(self, sort: str) -> None:
        display, view = self._display, self._display.view
        if view.focus == FILES:
            display.set_view(file_list.sorted_by(view, sort_for(sort)))
            return
        if refuse_without(display, _THE_TABLES, CATEGORIES, LIST):
            return
        if sort in view.sorts:
            display.set_view(view_changes.sorted_by(view, sort))
        elif not refuse_without(display, "what A hides: A goes back to it", CATEGORIES):
            display.set_view(view_changes.sorted_by(view, sort))
            display.show_alert(f"A lists no {sort}: only the categories are sorted by it; < and > sort the list")

    def sort_by_next_column(self, step: int) -> None:
        if self._display.view.focus == FILES:
            at = FILE_SORTS.index(self._display.view.files.sort) + step
            self.sort_by(FILE_SORTS[at % len(FILE_SORTS)])
        elif not refuse_without(self._display, _THE_TABLES, CATEGORIES, LIST):
            self._display.set_view(view_changes.next_sort(self._display.view, step))

    def choose_column(self) -> None:
        def choices() -> list[Choice]:
            view = self._display.view
            if view.focus == FILES:
                return [Choice(sort, sort, sort == view.files.sort) for sort in FILE_SORTS]
            return [Choice(sort, sort, sort == view.list_sort) for sort in view.sorts]

        if not refuse_without(self._display, _THE_TABLES, CATEGORIES, LIST, FILES):
            self._display.open_overlay(Chooser("sort by", choices, self.sort_by, self._display.glyphs, closes=True))

    def reverse(self) -> None:
        if self._display.view.focus == FILES:
            self._display.set_view(file_list.reversed_order(self._display.view))
        elif not refuse_without(self._display, THE_LIST, LIST):
            self._display.set_view(view_changes.reversed_order(self._display.view))

    def sort_by_title(self, sort: str) -> None:
        """Sort by the clicked column; reverse the order if the list is sorted by it already."""
        view = self._display.view
        if sort:
            chosen = view.files.sort if view.focus == FILES else view.list_sort
            self.reverse() if sort == chosen else self.sort_by(sort)
