"""Sorting the tables, by keys or by a click on a column title.

Only visible tables are sorted.
"""

from collections.abc import Sequence

from offtop.model.aggregate.disk_rows import DISK_SORTS
from offtop.model.aggregate.file_rows import FILE_SORTS
from offtop.model.viewmodel import panes, view_changes
from offtop.model.viewmodel.view import CATEGORIES, DISKS, FILES, LIST, View
from offtop.ui.actions.display import Display, refuse_without
from offtop.ui.actions.view_switches import THE_LIST
from offtop.ui.panes.chooser import Choice, Chooser

_THE_TABLES = "the tables, which are not on the screen"


class Sorting:
    def __init__(self, display: Display) -> None:
        self._display = display

    def sort_by(self, sort: str) -> None:
        display, view = self._display, self._display.view
        if view.io_list:
            display.set_view(panes.rows_sorted_by(view, sort))
            return
        if refuse_without(display, _THE_TABLES, CATEGORIES, LIST):
            return
        if sort in view.sorts:
            display.set_view(view_changes.sorted_by(view, sort))
        elif not refuse_without(display, "what A hides: A goes back to it", CATEGORIES):
            display.set_view(view_changes.sorted_by(view, sort))
            display.show_alert(f"A lists no {sort}: only the categories are sorted by it; < and > sort the list")

    def sort_by_next_column(self, step: int) -> None:
        view = self._display.view
        if view.io_list:
            columns, chosen = _columns(view)
            self.sort_by(columns[(columns.index(chosen) + step) % len(columns)])
        elif not refuse_without(self._display, _THE_TABLES, CATEGORIES, LIST):
            self._display.set_view(view_changes.next_sort(view, step))

    def choose_column(self) -> None:
        def choices() -> list[Choice]:
            columns, chosen = _columns(self._display.view)
            return [Choice(column, column, column == chosen) for column in columns]

        if not refuse_without(self._display, _THE_TABLES, CATEGORIES, LIST, FILES, DISKS):
            self._display.open_overlay(Chooser("sort by", choices, self.sort_by, self._display.glyphs, closes=True))

    def reverse(self) -> None:
        view = self._display.view
        if view.io_list:
            self._display.set_view(panes.rows_reversed(view))
        elif not refuse_without(self._display, THE_LIST, LIST):
            self._display.set_view(view_changes.reversed_order(view))

    def sort_by_title(self, sort: str) -> None:
        """Sort by the clicked column; reverse the order if the list is sorted by it already."""
        if sort:
            _, chosen = _columns(self._display.view)
            self.reverse() if sort == chosen else self.sort_by(sort)


def _columns(view: View) -> tuple[Sequence[str], str]:
    """Return the columns by which the list can be sorted, and the one by which it is."""
    if view.focus == FILES:
        return FILE_SORTS.columns, view.files.sort
    if view.focus == DISKS:
        return DISK_SORTS.columns, view.disks.sort
    return view.sorts, view.list_sort
