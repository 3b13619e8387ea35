"""TreePicture: the lines of the stack tree."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from offtop.model.aggregate import tree as trees
from offtop.model.aggregate.baseline_rows import BaselineRow
from offtop.model.aggregate.steps import NO_FRAMES, Path
from offtop.model.aggregate.tree import Branch, Nameless, Node
from offtop.model.values.io_stacks import NO_TOTALS, StackTotals
from offtop.model.values.table import Ints
from offtop.model.viewmodel import panes
from offtop.model.viewmodel.scene import Scene
from offtop.model.viewmodel.seconds import AccountPicture
from offtop.model.viewmodel.stack_table import StackTable, StackTree
from offtop.model.viewmodel.view import TREE, View
from offtop.model.windows import stuck
from offtop.model.windows.breakdown import Scope
from offtop.model.windows.stuck import Age, Stuck

_SMALL_BRANCH = 200
"""Branches below this fraction of the total (1/n, 0.5 %) are summed up."""
_LEAST_WITH_ACCOUNT = 12
"""The account of a thread is shown above its tree if there is room for so many lines."""


@dataclass(frozen=True, slots=True)
class TreePicture:
    root: Node
    branches: Sequence[Branch]
    cursor: int
    """Branch under the cursor."""
    first: int
    """First branch on the screen."""
    nameless: Nameless
    now: Mapping[Path, Age]
    """Path → the oldest wait in progress there."""
    before: Mapping[Path, BaselineRow]
    """Baseline values of the visible lines."""
    without_stack: StackTotals = NO_TOTALS
    """Calls or requests that are not in the tree, because they have no stack."""
    account_lines: int = 0
    """How many lines of the pane the account of a thread takes."""


def tree_picture(
    scene: Scene, table: StackTable, tree: StackTree, lines: int, account: AccountPicture | None
) -> tuple[View, TreePicture]:
    """Open large branches; return the view with these, and the lines of the tree.

    Branches that only the baseline has come last. `lines` is the room for both the tree and the account of a thread.
    """
    was = scene.comparison.trees() if scene.comparison else None
    root = tree.root
    view = panes.grown(scene.view, trees.opened_by_share(root))
    branches = trees.flatten(root, view.tree.opened, root.part[1] // _SMALL_BRANCH)
    branches += was.gone(root) if was else []
    has_account = account and view.thread and view.focus == TREE and not view.zoomed and lines >= _LEAST_WITH_ACCOUNT
    account_lines = account.lines if account and has_account else 0
    lines -= account_lines
    cursor, first = _at_cursor(view, branches, lines)
    seen = [one.path for one in branches[first : first + lines] if not one.more] if was else []
    before = {path: was.before(path) for path in seen} if was else {}
    now = _ages_of_paths(scene.chosen_stuck, view.scope, table.steps.of, view.tree.shape.places)
    return view, TreePicture(root, branches, cursor, first, tree.nameless, now, before, account_lines=account_lines)


def io_tree_picture(view: View, root: Node, lines: int, without_stack: StackTotals) -> tuple[View, TreePicture]:
    """Return the same for a tree that is not of waits: it has neither a baseline nor waits in progress."""
    view = panes.grown(view, trees.opened_by_share(root))
    branches = trees.flatten(root, view.tree.opened, root.part[1] // _SMALL_BRANCH)
    cursor, first = _at_cursor(view, branches, lines)
    return view, TreePicture(root, branches, cursor, first, Nameless(), {}, {}, without_stack)


def _at_cursor(view: View, branches: Sequence[Branch], lines: int) -> tuple[int, int]:
    """Return the branch under the cursor, and the first branch on the screen."""
    cursor = trees.index_of(branches, view.tree.cursor)
    line = max(0, min(view.tree.line, lines - 1))
    return cursor, min(cursor, max(0, min(cursor - line, len(branches) - lines)))


def _ages_of_paths(
    some: Stuck, scope: Scope, path_of: Callable[[tuple[int, ...]], Path], places: Callable[[Ints], Ints]
) -> Mapping[Path, Age]:
    """Return the oldest wait of each branch of a tree, including closed ones."""
    ages: dict[Path, Age] = {}
    for place, age in stuck.by_place(some.in_scope(scope), places).items():  # oldest first
        path = path_of(place) or (NO_FRAMES,)
        for end in range(len(path), 0, -1):
            if path[:end] in ages:
                break  # the branches above have one, too
            ages[path[:end]] = age
    return ages
