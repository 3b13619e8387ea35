"""Sorting the tables, by keys or by a click on a column title.

Only visible tables are sorted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from offtop.model.aggregate import disk_rows, file_rows
from offtop.model.viewmodel import disk_list, file_list, view_changes
from offtop.model.viewmodel.view import CATEGORIES, DISKS, FILES, LIST, View
from offtop.ui.actions.display import Display, refuse_without
from offtop.ui.actions.view_switches import THE_LIST
from offtop.ui.panes.chooser import Choice, Chooser


@dataclass(frozen=True, slots=True)
class _List:
    """How a list that is not about waits is sorted."""

    sorts: Sequence[str]
    sort_of: Callable[[View], str]
    sort_for: Callable[[str], str]
    """Returns the column that stands for one of rows.SORTS."""
    sorted_by: Callable[[View, str], View]
    reversed_order: Callable[[View], View]


_FILES = _List(
    file_rows.FILE_SORTS,
    lambda view: view.files.sort,
    file_rows.sort_for,
    file_list.sorted_by,
    file_list.reversed_order,
)
_DISKS = _List(
    disk_rows.DISK_SORTS,
    lambda view: view.disks.sort,
    disk_rows.sort_for,
    disk_list.sorted_by,
    disk_list.reversed_order,
)
_LISTS: Mapping[str, _List] = {FILES: _FILES, DISKS: _DISKS}
"""By View.focus."""
_THE_TABLES = "the tables, which are not on the screen"


class Sorting:
    def __init__(self, display: Display) -> None:
        self._display = display

    def sort_by(self, sort: str) -> None:
        display, view = self._display, self._display.view
        if listed := _LISTS.get(view.focus):
            display.set_view(listed.sorted_by(view, listed.sort_for(sort)))
            return
        if refuse_without(display, _THE_TABLES, CATEGORIES, LIST):
            return
        if sort in view.sorts:
            display.set_view(view_changes.sorted_by(view, sort))
        elif not refuse_without(display, "what A hides: A goes back to it", CATEGORIES):
            display.set_view(view_changes.sorted_by(view, sort))
            display.show_alert(f"A lists no {sort}: only the categories are sorted by it; < and > sort the list")

    def sort_by_next_column(self, step: int) -> None:
        if listed := _LISTS.get(self._display.view.focus):
            at = listed.sorts.index(listed.sort_of(self._display.view)) + step
            self.sort_by(listed.sorts[at % len(listed.sorts)])
        elif not refuse_without(self._display, _THE_TABLES, CATEGORIES, LIST):
            self._display.set_view(view_changes.next_sort(self._display.view, step))

    def choose_column(self) -> None:
        def choices() -> list[Choice]:
            view = self._display.view
            if listed := _LISTS.get(view.focus):
                return [Choice(sort, sort, sort == listed.sort_of(view)) for sort in listed.sorts]
            return [Choice(sort, sort, sort == view.list_sort) for sort in view.sorts]

        if not refuse_without(self._display, _THE_TABLES, CATEGORIES, LIST, *_LISTS):
            self._display.open_overlay(Chooser("sort by", choices, self.sort_by, self._display.glyphs, closes=True))

    def reverse(self) -> None:
        if listed := _LISTS.get(self._display.view.focus):
            self._display.set_view(listed.reversed_order(self._display.view))
        elif not refuse_without(self._display, THE_LIST, LIST):
            self._display.set_view(view_changes.reversed_order(self._display.view))

    def sort_by_title(self, sort: str) -> None:
        """Sort by the clicked column; reverse the order if the list is sorted by it already."""
        view = self._display.view
        if sort:
            listed = _LISTS.get(view.focus)
            chosen = listed.sort_of(view) if listed else view.list_sort
            self.reverse() if sort == chosen else self.sort_by(sort)
