"""Actions of the search keys.

`/` searches for a word, and may turn it into a filter. `n` and `N` go to the next and previous match; without a
search, to the next and previous outlier.
"""

from collections.abc import Callable, Sequence

from offtop.model.aggregate import tree as trees
from offtop.model.aggregate.filter import quoted
from offtop.model.aggregate.steps import Path
from offtop.model.viewmodel import drilling, panes
from offtop.model.viewmodel import view as views
from offtop.model.viewmodel.outlier_list import which
from offtop.model.viewmodel.picture import TreePicture
from offtop.model.viewmodel.view import FLAME, LIST, OUTLIERS, STUCK, TREE
from offtop.ui.actions.dispatch import KeyActions
from offtop.ui.panes import icicle, outliers, stuck


class SearchActions(KeyActions):
    """Actions of the search keys."""

    def action_search(self) -> None:
        self.ask(
            "search (ENTER keeps it as a filter, !word excludes): ",
            self._search_kept,
            self.view.search,
            self._searched,
        )

    def _searched(self, text: str) -> None:
        self.set_view(views.searched(self.view, text.removeprefix("!").strip()))

    def _search_kept(self, text: str) -> str | None:
        word = text.strip()
        excluded = word.startswith("!")
        word = word.removeprefix("!").strip()
        if not word:
            self.set_view(views.searched(self.view, ""))
            return None
        return self.filters.filter_by(f"{'!' if excluded else ''}{quoted(word)}", "" if excluded else word)

    def action_next_hit(self, step: int) -> None:
        """Go to the next (1) or previous (-1) match in the focused pane."""
        picture, view = self.picture, self.view
        word = (view.search or view.found).casefold()
        if picture is None:
            return
        if not word:
            self.outlier_times.go_to_next(step)
            return
        if view.focus == TREE and picture.tree:
            self._to_branch(trees.paths_with(picture.tree.root, word), picture.tree, step)
        elif view.focus == FLAME and picture.flame:
            paths = [box.path for box in picture.flame.boxes]
            boxes = [index for index, path in enumerate(paths) if word in path[-1].name.casefold()]
            now = icicle.chosen(picture)
            at = paths.index(now) if now in paths else -1
            self._to_hit(boxes, at, step, lambda box: self.set_view(panes.at_box(view, paths[box])))
        elif view.focus == STUCK:
            waits, names = picture.stuck.shown.waits, self.pen(STUCK).names
            found = [row for row in range(len(waits)) if word in stuck.text_of(picture, row, names).casefold()]
            at = picture.stuck.cursor
            self._to_hit(found, at, step, lambda row: self.set_view(panes.at_stuck(view, waits[row].site.thread)))
        elif view.focus == OUTLIERS:
            groups, names = picture.outliers.groups, self.pen(OUTLIERS).names
            found = [row for row, one in enumerate(groups) if word in outliers.text_of(one, names).casefold()]
            at = picture.outliers.cursor
            self._to_hit(found, at, step, lambda row: self.set_view(panes.at_outlier(view, which(groups[row]))))
        else:
            rows = [
                index for index, row in enumerate(picture.rows.rows) if word in self._text_of(row, picture).casefold()
            ]
            self._to_hit(rows, picture.cursor_row, step, self._at_listed)

    def _to_branch(self, hits: Sequence[Path], shown: TreePicture, step: int) -> None:
        """Go to the next of `hits`, and open the branches around it.

        Their order is that of the fully opened tree.
        """
        if not hits or not shown.branches:
            self.show_alert("no function here matches")
            return
        branch = shown.branches[shown.cursor]
        now = trees.order_of(shown.root, branch.path)
        others = {
            trees.order_of(shown.root, hit): hit
            for hit in hits
            if branch.path[: len(hit)] != hit or len(hit) <= branch.first  # not on the line of the cursor
        }
        orders = sorted(others) or [trees.order_of(shown.root, hits[0])]
        beyond = [order for order in orders if (order > now if step > 0 else order < now)]
        wanted = others.get((beyond or orders)[0 if step > 0 else -1], hits[0])
        view = panes.branch_opened(self.view, wanted[:-1]) if len(wanted) > 1 else self.view
        self.set_view(panes.at_branch(view, wanted, view.tree.line))
        found = self._branch()
        if found and found.more:
            self.set_view(panes.branch_opened(self.view, found.path))

    def _at_listed(self, index: int) -> None:
        if self.picture:
            self.set_view(drilling.at_row(views.in_pane(self.view, LIST), self.picture.rows.rows[index].key))

    def _to_hit(self, hits: list[int], now: int, step: int, go: Callable[[int], None]) -> None:
        if not hits:
            self.show_alert("no line here matches")
            return
        after = [hit for hit in hits if (hit > now if step > 0 else hit < now)]
        go((after or hits)[0 if step > 0 else -1])
