"""Actions that sort the tables, by keys or by a click on a column title.

Only visible tables are sorted.
"""

from offtop.model.viewmodel import view as views
from offtop.model.viewmodel.view import CATEGORIES, LIST
from offtop.ui.actions.view import FOR_LIST, ViewActions
from offtop.ui.panes.chooser import Choice, Chooser

_FOR_TABLES = "the tables, which are not on the screen"


class SortActions(ViewActions):
    """Actions that sort, for the app to inherit."""

    def action_sort(self, sort: str) -> None:
        view = self.view
        if self._refuse_without(_FOR_TABLES, CATEGORIES, LIST):
            return
        if sort in view.sorts:
            self.set_view(views.sorted_by(view, sort))
        elif self._refuse_without("what A hides: A goes back to it", CATEGORIES):
            return
        else:
            self.set_view(views.sorted_by(view, sort))
            self.show_alert(f"A lists no {sort}: only the categories are sorted by it; < and > sort the list")

    def action_next_sort(self, step: int) -> None:
        if not self._refuse_without(_FOR_TABLES, CATEGORIES, LIST):
            self.set_view(views.next_sort(self.view, step))

    def action_sort_by(self) -> None:
        def choices() -> list[Choice]:
            return [Choice(sort, sort, sort == self.view.list_sort) for sort in self.view.sorts]

        if not self._refuse_without(_FOR_TABLES, CATEGORIES, LIST):
            self.push_screen(Chooser("sort by", choices, self.action_sort, self.glyphs, closes=True))

    def action_reverse(self) -> None:
        if not self._refuse_without(FOR_LIST, LIST):
            self.set_view(views.reversed_order(self.view))

    def _sort_at(self, sort: str) -> None:
        """Sort by the clicked column; reverse the order if the list is sorted by it already."""
        if sort:
            self.action_reverse() if sort == self.view.list_sort else self.action_sort(sort)
