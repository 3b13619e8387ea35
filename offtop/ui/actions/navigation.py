"""Moving in the focused pane, from pane to pane, and from level to level."""

from offtop.model.aggregate import tree as trees
from offtop.model.aggregate.filter import NOTHING
from offtop.model.viewmodel import drilling, panes, view_changes
from offtop.model.viewmodel.picture import Picture
from offtop.model.viewmodel.view import AUTO, CATEGORIES, LATENCY, TREE, View
from offtop.ui.actions.display import Display, refuse_without
from offtop.ui.actions.pane import Panes

_FAR = 1_000_000
"""More rows than any pane has."""


class Navigation:
    def __init__(self, display: Display, panes: Panes) -> None:
        self._display, self._panes = display, panes

    def move(self, step: int) -> None:
        """Move the cursor of the focused pane down by `step` rows, or up if negative."""
        if self._display.picture is not None:
            self._panes.focused.move(self._display.picture, step)

    def move_by_pages(self, pages: int) -> None:
        pane = self._display.layout.panels.get(self._display.view.focus)
        self.move(pages * max(1, (pane.height if pane else 3) - self._panes.focused.title_lines - 1))

    def move_to_first(self) -> None:
        self.move(-_FAR)

    def move_to_last(self) -> None:
        self.move(_FAR)

    def move_sideways(self, step: int) -> None:
        """Handle the arrow keys right (1) and left (-1)."""
        picture = self._display.picture
        if picture is None or self._panes.focused.move_sideways(picture, step):
            return
        self.enter() if step > 0 else self.leave()

    def focus_pane(self, step: int) -> None:
        self._display.set_view(view_changes.next_pane(self._display.view, self._display.layout.panes, step))

    def enter(self) -> None:
        """Go one level down."""
        if self._display.picture is not None:
            self._panes.focused.enter(self._display.picture)

    def leave(self) -> None:
        """Go one level up; clear a filter that matches nothing."""
        view, picture = self._display.view, self._display.picture
        if picture and _filter_matches_nothing(view, picture):
            self._display.set_view(view_changes.of_user(view_changes.filtered(view, NOTHING), ""))
        elif self._covers_other_panes(view):
            self._display.set_view(view_changes.in_pane(view_changes.with_latency(view, AUTO), view.came_from))
        else:
            self._display.set_view(drilling.left(view))

    def _covers_other_panes(self, view: View) -> bool:
        """Return whether nothing but the latency pane is open, where there is no room for it beside others."""
        is_focused = view.focus in (LATENCY, CATEGORIES) and not (view.zoomed or view.search)
        without = self._display.layout_of(view_changes.with_latency(view, AUTO))
        return is_focused and LATENCY in self._display.layout.panels and LATENCY not in without.panels

    def open(self) -> None:
        self._panes.focused.open()

    def close(self) -> None:
        self._panes.focused.close()

    def open_all(self) -> None:
        display, picture = self._display, self._display.picture
        is_shown = display.view.has_io_tree or not refuse_without(display, "the stack tree: t shows it", TREE)
        tree = (picture.files.tree or picture.disks.tree or picture.tree) if picture else None
        if is_shown and tree:
            display.set_view(panes.all_opened(display.view, trees.all_paths(tree.root)))


def _filter_matches_nothing(view: View, picture: Picture) -> bool:
    """Return whether the user's filter matches nothing, so that it is probably wrong."""
    is_whole = view.group is None and not view.selects_by_filter
    own = (view.filter.text or view.user) and is_whole
    return bool(own) and not picture.common.totals.passing_ns and not picture.common.totals.idle_passing_ns
