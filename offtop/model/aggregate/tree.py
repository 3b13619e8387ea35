"""Stack tree of a selection: its places merged by function name, and the visible lines.

A branch is identified by its path from the root, never by its line: numbers, order and folding change with every tick,
but opened branches and the cursor must not. Stacks are hundreds of frames deep, so nothing here is recursive.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from offtop.model.aggregate.steps import NO_FRAMES, NamelessCounts, Path, Shape, Step, begins_line, steps_of
from offtop.model.values.catalog import Catalog
from offtop.model.values.stack import Names
from offtop.model.windows.breakdown import Part, PartTuple, total

MORE = Step("…", False)
"""Last step of the path of a line that sums up small branches."""
MOST_LINES = 2_000


_Placed = tuple[Path, PartTuple, str]
"""Path of a place, its time, and the category of its stack."""


class Node:
    """Time of the stacks that go through one branch.

    Its children are made when they are first asked for: most branches are closed, and a busy machine has thousands of
    stacks that differ near the leaf.
    """

    __slots__ = ("_category", "_children", "_level", "_places", "histogram", "max_ns", "total_ns", "waits")

    def __init__(self, places: Sequence[_Placed], level: int) -> None:
        """`places`: the paths through this branch, and their time. The first `level` steps lead to this branch."""
        self._places, self._level = places, level
        self._children: dict[Step, Node] | None = None
        self._category: str | None = None
        self.waits, self.total_ns, self.max_ns, self.histogram = total(part for _, part, _ in places)

    @property
    def part(self) -> Part:
        return Part(self.waits, self.total_ns, self.max_ns, self.histogram)

    @property
    def category(self) -> str:
        """Category of all its stacks; empty if they have several."""
        if self._category is None:
            first = self._places[0][2] if self._places else ""
            self._category = first if all(category == first for *_, category in self._places) else ""
        return self._category

    @property
    def children(self) -> "Mapping[Step, Node]":
        if self._children is None:
            below: dict[Step, list[_Placed]] = {}
            level = self._level
            for placed in self._places:
                if len(placed[0]) > level:
                    below.setdefault(placed[0][level], []).append(placed)
            self._children = {step: Node(places, level + 1) for step, places in below.items()}
        return self._children


class Branch(NamedTuple):
    """One line of the visible tree."""

    path: Path
    """Of its last step."""
    first: int
    """`path[first:]` are the steps folded into this line."""
    depth: int
    """Level of indentation."""
    part: Part
    openable: bool
    opened: bool
    more: int = 0
    """Above 0: the line sums up so many small branches, and its path ends in MORE."""
    category: str = ""
    """Category of all its stacks; empty if they have several, or it is unknown."""


def tree_of(places: Mapping[tuple[int, ...], PartTuple], catalog: Catalog, names: Names, shape: Shape) -> Node:
    """Return the tree of `places` (breakdown.by_place).

    Its root stands for the selection and has no name.
    """
    return tree_along(places, steps_of(catalog, names, shape))


def tree_along(
    places: Mapping[tuple[int, ...], PartTuple],
    of_place: Callable[[tuple[int, ...]], Path],
    category_of: Callable[[tuple[int, ...]], str] = lambda _: "",
) -> Node:
    """Return the tree of `places`, with paths from `of_place`."""
    return Node([(of_place(place) or (NO_FRAMES,), part, category_of(place)) for place, part in places.items()], 0)


_Child = tuple[Step, Node]


class _Line(NamedTuple):
    """A branch, and what the lines below it are made of."""

    branch: Branch
    path: Path
    """Prefix of its children's paths."""
    children: Collection[_Child]
    opened: Sequence[Path]
    """Those that begin with that path."""
    least_ns: int | None


def flatten(root: Node, opened: Collection[Path], least_ns: int) -> list[Branch]:
    """Return the lines of the tree; a branch is open if `opened` has its path or one below.

    Siblings are sorted by time. A chain of single children is one line, up to where time ends or divides. Two or more
    siblings below `least_ns` are one line, which can be opened like a branch.
    """
    lines: list[Branch] = []
    pending = _siblings((), root.children.items(), 0, list(opened), least_ns)
    while pending:
        line = pending.pop()
        lines.append(line.branch)
        if line.branch.opened:
            pending += _siblings(line.path, line.children, line.branch.depth + 1, line.opened, line.least_ns)
    return lines


def _siblings(
    path: Path, children: Collection[_Child], depth: int, opened: Sequence[Path], least_ns: int | None
) -> list[_Line]:
    """Return the lines directly below `path`, the last one first.

    `least_ns` None: nothing is summed up.
    """
    by_step: dict[Step, list[Path]] = {}
    for one in opened:
        if len(one) > len(path):
            by_step.setdefault(one[len(path)], []).append(one)
    ordered = sorted(children, key=_most_first)
    small = [child for child in ordered if least_ns is not None and child[1].total_ns < least_ns]
    lines: list[_Line] = []
    if len(small) > 1:
        del ordered[-len(small) :]
        more = (*path, MORE)
        part = total(node.part for _, node in small)
        is_open = MORE in by_step
        lines.append(_Line(Branch(more, len(path), depth, part, True, is_open, len(small)), path, small, opened, None))
    for child in reversed(ordered):
        run, node = folded(*child)
        whole = path + run
        within = [one for one in by_step.get(run[0], ()) if one[: len(whole)] == whole]
        openable = bool(node.children)
        branch = Branch(whole, len(path), depth, node.part, openable, openable and bool(within), category=node.category)
        lines.append(_Line(branch, whole, node.children.items(), within, least_ns))
    return lines


def _most_first(child: _Child) -> tuple[int, Step]:
    return -child[1].total_ns, child[0]


def folded(step: Step, node: Node) -> tuple[Path, Node]:
    """Return the chain of single children that begins here, and its last node.

    All have the same time.
    """
    run = [step]
    while len(node.children) == 1:
        ((step, child),) = node.children.items()
        if begins_line(step) or run[-1].is_object or child.waits != node.waits or child.total_ns != node.total_ns:
            break
        run.append(step)
        node = child
    return tuple(run), node


def _folded_children(path: Path, node: Node) -> Iterable[tuple[Path, Node]]:
    for child in node.children.items():
        run, last = folded(*child)
        yield path + run, last


def opened_by_share(root: Node, share: float = 0.10) -> frozenset[Path]:
    """Return the branches with children and at least `share` of all time, open at first."""
    least_ns = max(1, share * root.total_ns)
    found: list[Path] = []
    pending: list[tuple[Path, Node]] = [((), root)]
    while pending:
        path, node = pending.pop()
        for child in node.children.items():
            if child[1].total_ns >= least_ns:
                run, last = folded(*child)
                if last.children:
                    found.append(path + run)
                    pending.append((path + run, last))
    return frozenset(found)


def all_paths(root: Node) -> frozenset[Path]:
    """Return everything that can be opened; beyond MOST_LINES lines, what has most time."""
    found: list[Path] = []
    waiting: list[tuple[int, Path, Node]] = []
    line_count = 0
    pending: tuple[Path, Node] | None = ((), root)
    while pending is not None:
        path, node = pending
        if line_count + len(node.children) <= MOST_LINES:
            line_count += len(node.children)
            found.append(path)
            for below, child in _folded_children(path, node):
                if child.children:
                    heappush(waiting, (-child.total_ns, below, child))
        pending = heappop(waiting)[1:] if waiting else None
    return frozenset(path for path in found if path)


def paths_with(root: Node, word: str) -> list[Path]:
    """Return the branches whose last function contains `word`, ignoring case.

    The order is that of the fully opened tree.
    """
    found: list[Path] = []
    pending: list[tuple[Path, Node]] = [((), root)]
    while pending:
        path, node = pending.pop()
        if path and word.casefold() in path[-1].name.casefold():
            found.append(path)
        pending += [((*path, step), child) for step, child in sorted(node.children.items(), key=_most_first)[::-1]]
    return found


class Nameless(NamedTuple):
    """How much of a tree's user functions have no names.

    Time counts once for each function on the path.
    """

    all_ns: int = 0
    nameless_ns: int = 0
    in_no_file_ns: int = 0
    """The part compiled at run time."""


def nameless(
    places: Mapping[tuple[int, ...], PartTuple], counts_of: Callable[[tuple[int, ...]], NamelessCounts]
) -> Nameless:
    """Return the time of the functions on the paths of `places`; `counts_of`: see Steps.nameless."""
    all_ns = nameless_ns = in_no_file_ns = 0
    for place, (_, total_ns, _, _) in places.items():
        functions, lacking, in_no_file = counts_of(place)
        all_ns += functions * total_ns
        nameless_ns += lacking * total_ns
        in_no_file_ns += in_no_file * total_ns
    return Nameless(all_ns, nameless_ns, in_no_file_ns)


def order_of(root: Node, path: Path) -> tuple[tuple[int, Step], ...]:
    """Return a sort key for paths in the order of `flatten`.

    One that ends in MORE is the last of its siblings.
    """
    order: list[tuple[int, Step]] = []
    node: Node | None = root
    for step in path:
        node = node.children.get(step) if node else None
        order.append((-node.total_ns if node else 1, step))
    return tuple(order)


def opened_with(opened: Collection[Path], path: Path) -> frozenset[Path]:
    """Return `opened` with the branch of `path`."""
    return frozenset((*opened, path))


def closed(opened: Collection[Path], path: Path) -> frozenset[Path]:
    """Return `opened` without the branch of `path` and all below it; its parent stays open."""
    kept = frozenset(one for one in opened if one[: len(path)] != path)
    return kept | {path[:-1]} if len(path) > 1 and len(kept) < len(opened) else kept


def index_of(branches: Sequence[Branch], path: Path) -> int:
    """Return the line of `path`; else the closed one that may sum it up, else its nearest ancestor's; else 0."""

    def nearness(line: int) -> tuple[int, bool]:
        branch = branches[line]
        shared = 0
        for step, wanted in zip(branch.path, path, strict=False):
            if step != wanted:
                break
            shared += 1
        return shared, bool(branch.more) and not branch.opened and shared == branch.first < len(path)

    return max(range(len(branches)), key=nearness, default=0)  # the uppermost of lines that share as much
