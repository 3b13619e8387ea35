"""The panes with stacks: the tree, the icicle, and one whole stack."""

from collections.abc import Callable, Sequence

from offtop.export import folded
from offtop.model.aggregate import tree as trees
from offtop.model.aggregate.filter import Filter
from offtop.model.aggregate.filter_syntax import parse, quoted
from offtop.model.aggregate.steps import NO_FRAMES, NO_THING, TURNS, WOKE, Path, Step
from offtop.model.viewmodel import drilling, panes
from offtop.model.viewmodel.picture import Picture
from offtop.model.viewmodel.tree_picture import TreePicture
from offtop.model.viewmodel.view import FLAME, SITE, TREE
from offtop.model.windows.breakdown import Part
from offtop.ui.actions.display import Display
from offtop.ui.actions.pane import Pane, within
from offtop.ui.kit.layout import Layout
from offtop.ui.kit.lines import Line, Pen
from offtop.ui.panes import icicle, stacks


class StackPane(Pane):
    """A pane with stacks, and a path of them under its cursor."""

    def as_filter(self, picture: Picture) -> Filter | None:
        path = self._path(picture)
        return _filter_of(path[-1]) if path else None

    def _path(self, picture: Picture) -> Path:
        raise NotImplementedError

    def _path_and_waits(self, picture: Picture) -> tuple[Path, Part]:
        """Return what to copy: a path, and how long threads waited there."""
        return picture.common.view.path, picture.common.selected

    def as_text(self, picture: Picture) -> str:
        path, waits = self._path_and_waits(picture)
        if not path:
            return ""
        path = path[::-1] if picture.common.view.tree.shape.inverted else path
        return f"{folded.one_line(path)} {waits.total_ns // 1000}"


class TreePane(StackPane):
    name = TREE

    def _draw(self, picture: Picture, pen: Pen, layout: Layout) -> list[Line]:
        return stacks.tree(picture.tree, picture.account, picture.causes, picture.common, pen)

    def _tree(self, picture: Picture) -> TreePicture | None:
        return picture.tree

    def move(self, picture: Picture, step: int) -> None:
        tree = self._tree(picture)
        if tree and tree.branches:
            self._select(tree, within(tree.cursor + step, tree.branches))

    def _select(self, tree: TreePicture, index: int) -> None:
        pane = self._display.layout.panels.get(self.name)
        lines = max(1, (pane.height if pane else 3) - _first_line(tree))
        line = max(0, min(lines - 1, index - tree.first))
        self._display.set_view(panes.at_branch(self._display.view, tree.branches[index].path, line))

    def move_sideways(self, picture: Picture, step: int) -> bool:
        self.open() if step > 0 else self.close()
        return True

    def enter(self, picture: Picture) -> None:
        view, branch = self._display.view, self._branch()
        if branch and branch.more:
            self.open()
        elif branch:
            self._display.set_view(drilling.entered(panes.at_branch(view, branch.path, view.tree.line), None))

    def open(self) -> None:
        branch = self._branch()
        if branch is not None and branch.openable:
            self._display.set_view(panes.branch_opened(self._display.view, branch.path))

    def close(self) -> None:
        """Close the branch; if it is not open, move to its parent."""
        branch, picture = self._branch(), self._display.picture
        tree = self._tree(picture) if picture else None
        if branch is None or tree is None:
            return
        if branch.opened:
            self._display.set_view(panes.branch_closed(self._display.view, branch.path))
        elif branch.first:
            self._select(tree, trees.index_of(tree.branches, branch.path[: branch.first]))

    def _branch(self) -> trees.Branch | None:
        """Return the branch under the cursor; show an alert if there is none."""
        picture = self._display.picture
        tree = self._tree(picture) if picture else None
        if tree is None or not tree.branches:
            self._display.show_alert("there is no stack here")
            return None
        return tree.branches[tree.cursor]

    def next_match(self, picture: Picture, word: str, step: int) -> bool:
        """Go to a match, and open the branches around it. Their order is that of the fully opened tree."""
        tree = self._tree(picture)
        if tree is None:
            return False
        matches = trees.paths_with(tree.root, word)
        if not matches or not tree.branches:
            self._display.show_alert("no function here matches")
            return True
        branch = tree.branches[tree.cursor]
        now = trees.order_of(tree.root, branch.path)
        others = {
            trees.order_of(tree.root, path): path
            for path in matches
            if branch.path[: len(path)] != path or len(path) <= branch.first  # not on the line of the cursor
        }
        orders = sorted(others) or [trees.order_of(tree.root, matches[0])]
        beyond = [order for order in orders if (order > now if step > 0 else order < now)]
        target = others.get((beyond or orders)[0 if step > 0 else -1], matches[0])
        view = self._display.view
        view = panes.branch_opened(view, target[:-1]) if len(target) > 1 else view
        self._display.set_view(panes.at_branch(view, target, view.tree.line))
        found = self._branch()
        if found and found.more:
            self._display.set_view(panes.branch_opened(self._display.view, found.path))
        return True

    def _path(self, picture: Picture) -> Path:
        tree = self._tree(picture)
        return tree.branches[tree.cursor].path if tree and tree.branches else ()

    def _path_and_waits(self, picture: Picture) -> tuple[Path, Part]:
        tree = self._tree(picture)
        if tree is None or not tree.branches:
            return super()._path_and_waits(picture)
        branch = tree.branches[tree.cursor]
        return branch.path, branch.part

    def click(self, picture: Picture, x: int, y: int) -> bool:
        tree = self._tree(picture)
        line = y - _first_line(tree) if tree else -1
        if tree is None or line < 0 or tree.first + line >= len(tree.branches):
            return False
        index = tree.first + line
        branch = tree.branches[index]
        view = panes.at_branch(self._focused_view, branch.path, line)
        is_selected = index == tree.cursor and self._has_focus
        if is_selected:
            if branch.openable:
                view = (panes.branch_closed if branch.opened else panes.branch_opened)(view, branch.path)
            else:
                view = drilling.entered(view, None)
        self._display.set_view(view)
        return is_selected


def _first_line(tree: TreePicture) -> int:
    """Return the line of the pane with the first branch: a title, the account and column titles are above it."""
    return 2 + tree.account_lines


class IoTreePane(TreePane):
    """The stack tree of a list that is not about waits, in the place of the list."""

    def enter(self, picture: Picture) -> None:
        """Open the branch, or close it."""
        branch = self._branch()
        if branch and branch.opened:
            self.close()
        else:
            self.open()


class FlamePane(StackPane):
    name = FLAME
    highlights_matches = False

    def _draw(self, picture: Picture, pen: Pen, layout: Layout) -> list[Line]:
        return icicle.flame(picture.flame, picture.common, pen)

    def move(self, picture: Picture, step: int) -> None:
        view = self._display.view
        for _ in range(min(abs(step), 20)):
            box = icicle.neighbour(picture.flame, view.flame.cursor, "down" if step > 0 else "up")
            view = panes.at_box(view, box)
        self._display.set_view(view)

    def move_sideways(self, picture: Picture, step: int) -> bool:
        box = icicle.neighbour(picture.flame, picture.common.view.flame.cursor, "right" if step > 0 else "left")
        self._display.set_view(panes.at_box(self._display.view, box))
        return True

    def enter(self, picture: Picture) -> None:
        self._display.set_view(panes.zoomed_in(self._display.view, self._path(picture)))

    def next_match(self, picture: Picture, word: str, step: int) -> bool:
        if picture.flame is None:
            return False
        paths, view, now = [box.path for box in picture.flame.icicle.boxes], self._display.view, self._path(picture)
        matches = {
            index: panes.at_box(view, path) for index, path in enumerate(paths) if word in path[-1].name.casefold()
        }
        return self._go_to_match(matches, paths.index(now) if now in paths else -1, step)

    def _path(self, picture: Picture) -> Path:
        return icicle.chosen(picture.flame, picture.common.view.flame.cursor)

    def _path_and_waits(self, picture: Picture) -> tuple[Path, Part]:
        path, waits = super()._path_and_waits(picture)
        if picture.flame:
            path = self._path(picture)
            waits = next((box.part for box in picture.flame.icicle.boxes if box.path == path), waits)
        return path, waits

    def click(self, picture: Picture, x: int, y: int) -> bool:
        path, view = icicle.at(picture.flame, x, y), self._focused_view
        is_selected = bool(path) and path == self._path(picture)
        if path:
            self._display.set_view(panes.zoomed_in(view, path) if is_selected else panes.at_box(view, path))
        return is_selected


class SitePane(StackPane):
    name = SITE

    def __init__(self, display: Display, rule_of: Callable[[Sequence[str], str], str]) -> None:
        """`rule_of` returns why a stack with these functions is of a category."""
        super().__init__(display)
        self._rule_of = rule_of

    def _draw(self, picture: Picture, pen: Pen, layout: Layout) -> list[Line]:
        return stacks.site(picture.places, picture.common, self._rule_of, pen)

    def move(self, picture: Picture, step: int) -> None:
        pane, view = self._display.layout.panels.get(SITE), self._display.view
        last = max(0, stacks.site_length(picture.places, picture.common, self._pen) - (pane.height - 1 if pane else 0))
        self._display.set_view(panes.scrolled_to(view, max(0, min(last, view.scrolled + step))))

    def _path(self, picture: Picture) -> Path:
        return self._display.view.path


def _filter_of(step: Step) -> Filter | None:
    """Return a filter for waits through this step; None if no filter can name it."""
    if step in (trees.MORE, NO_FRAMES, NO_THING) or step in TURNS:
        return None
    if step.is_object:
        return parse(f"object={quoted(step.name)}")
    if step.is_waker:
        return parse(f"waker={quoted(step.name)}")
    if step.name.startswith(WOKE):
        return parse(f"proc={quoted(step.name.removeprefix(WOKE))}")
    return parse(f"stack={quoted(step.name)}")
