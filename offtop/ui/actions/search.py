"""Search: `/` searches for a word, and may turn it into a filter; an expression is one already.

`n` and `N` go to the next and previous match.
Without a search, they go to the next and previous outlier.
"""

from offtop.model.aggregate.filter_syntax import begins_with_key, quoted
from offtop.model.viewmodel import view_changes
from offtop.model.viewmodel.view import LIST
from offtop.ui.actions.display import Display
from offtop.ui.actions.filters import Filters
from offtop.ui.actions.outliers import OutlierTimes
from offtop.ui.actions.pane import Panes


class Search:
    def __init__(self, display: Display, panes: Panes, filters: Filters, outlier_times: OutlierTimes) -> None:
        self._display, self._panes = display, panes
        self._filters, self._outlier_times = filters, outlier_times

    def ask(self) -> None:
        question = "search (ENTER keeps it as a filter, !word excludes): "
        self._display.ask(question, self._filter_by, self._display.view.search, self._highlight)

    def _highlight(self, text: str) -> None:
        self._display.set_view(view_changes.searched(self._display.view, text.removeprefix("!").strip()))

    def _filter_by(self, text: str) -> str | None:
        word = text.strip()
        if begins_with_key(word):
            return self._filters.filter_by(word)
        excluded = word.startswith("!")
        word = word.removeprefix("!").strip()
        if not word:
            self._display.set_view(view_changes.searched(self._display.view, ""))
            return None
        return self._filters.filter_by(f"{'!' if excluded else ''}{quoted(word)}", "" if excluded else word)

    def go_to_next(self, step: int) -> None:
        """Go to the next (1) or previous (-1) match in the focused pane, or in the list if that cannot be searched."""
        picture, view = self._display.picture, self._display.view
        word = (view.search or view.found).casefold()
        if picture is None:
            return
        if not word:
            self._outlier_times.go_to_next(step)
        elif not self._panes.focused.next_match(picture, word, step):
            self._panes.by_name[LIST].next_match(picture, word, step)
