"""Mouse actions.

A click selects, a click on the selection drills down as ENTER does, and the wheel moves the cursor.
"""

from offtop.model.viewmodel import drilling, panes
from offtop.model.viewmodel import view as views
from offtop.model.viewmodel.outlier_list import which
from offtop.model.viewmodel.picture import Picture
from offtop.model.viewmodel.view import CATEGORIES, FLAME, LATENCY, LIST, OUTLIERS, STUCK, TREE
from offtop.model.windows.breakdown import ALL
from offtop.ui.actions.search import SearchActions
from offtop.ui.kit.columns import sort_at
from offtop.ui.kit.layout import HEAT_SCALE, STUCK_FRAME, stuck_lines
from offtop.ui.kit.lines import Clicked
from offtop.ui.panes import icicle
from offtop.ui.panes.head import moment_at
from offtop.ui.panes.tables import CATEGORY_MARK, LIST_MARK, category_columns, list_columns, seen_rows

_WHEEL = 3
"""Lines per turn."""


class MouseActions(SearchActions):
    def on_clicked(self, event: Clicked) -> None:
        picture = self.picture
        if picture is None or len(self.screen_stack) > 1:
            return
        if event.panel == "head" and not event.turns:
            at_ns = moment_at(picture, self.layout, event.x, event.y)
            if at_ns is not None:
                self.rewind.go_to(at_ns)
        elif event.panel in self.layout.panes:
            if event.turns:
                self._turned(event)
            else:
                self._clicked(event, picture)

    def _turned(self, event: Clicked) -> None:
        if self.view.focus != event.panel:
            self.set_view(views.in_pane(self.view, event.panel))
        if self.view.focus == event.panel:
            self._move(_WHEEL * event.turns)

    def _clicked(self, event: Clicked, picture: Picture) -> None:
        view = views.in_pane(self.view, event.panel)
        pen = self.pen(event.panel)
        if event.panel == CATEGORIES:
            keys = [ALL, *(row.key for row in picture.categories.rows)]
            if event.y == 0:
                self.sorting.sort_by_title(sort_at(category_columns(picture, pen), CATEGORY_MARK, event.x))
            elif event.y <= len(keys):
                key = keys[event.y - 1]
                is_selected = key == self.view.category and self.view.focus == CATEGORIES
                if isinstance(key, str):
                    self.set_view(drilling.entered(view, None) if is_selected else drilling.at_category(view, key))
        elif event.panel == LIST:
            head = 1 + picture.account_lines
            line = event.y - head - 1
            if event.y == head:
                self.sorting.sort_by_title(sort_at(list_columns(picture, pen), LIST_MARK, event.x))
            elif 0 <= line < len(seen := seen_rows(picture, pen)):
                key = seen[line].key
                is_selected = picture.first_row + line == picture.cursor_row and self.view.focus == LIST
                self.set_view(drilling.entered(view, key) if is_selected else drilling.at_row(view, key))
        elif event.panel == TREE and picture.tree:
            index = picture.tree.first + event.y - 2
            if event.y > 1 and index < len(picture.tree.branches):
                branch = picture.tree.branches[index]
                is_selected = index == picture.tree.cursor and self.view.focus == TREE
                view = panes.at_branch(view, branch.path, event.y - 2)
                if is_selected and branch.openable:
                    view = (panes.branch_closed if branch.opened else panes.branch_opened)(view, branch.path)
                elif is_selected:
                    view = drilling.entered(view, None)
                self.set_view(view)
        elif event.panel == STUCK and not view.stuck.opened:
            row = picture.stuck.first + event.y - STUCK_FRAME
            if (
                event.y >= STUCK_FRAME
                and row < len(picture.stuck.shown.waits)
                and event.y < STUCK_FRAME + stuck_lines(pen.height)
            ):
                is_selected = row == picture.stuck.cursor
                view = panes.at_stuck(view, picture.stuck.shown.waits[row].site.thread)
                self.set_view(panes.stuck_entered(view, picture.stuck.alike(row)) if is_selected else view)
        elif event.panel == OUTLIERS and not view.outliers.opened:
            line = event.y - STUCK_FRAME
            row = picture.outliers.first + line
            if 0 <= line < stuck_lines(pen.height) and row < len(picture.outliers.groups):
                is_selected = row == picture.outliers.cursor
                view = panes.at_outlier(view, which(picture.outliers.groups[row]))
                self.set_view(panes.outlier_opened(view) if is_selected else view)
        elif event.panel == FLAME and (path := icicle.at(picture, event.x, event.y)):
            is_selected = path == icicle.chosen(picture)
            self.set_view(panes.zoomed_in(view, path) if is_selected else panes.at_box(view, path))
        elif event.panel == LATENCY and picture.heat and picture.heat.rows:
            column, row = event.x - HEAT_SCALE + 1, len(picture.heat.rows) - event.y
            if 0 <= column < len(picture.heat.columns) and 0 <= row < len(picture.heat.rows):
                self.set_view(views.at_cell(view, views.Cell(picture.heat.ends_ns[column], row)))
