"""Icicle graph: the stack tree as boxes, each as wide as its time, below its caller.

Siblings are sorted by name, not by time, so that boxes stay in place while numbers change. Boxes too narrow or too deep
to draw are counted.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from offtop.model.aggregate.steps import Path, Step
from offtop.model.aggregate.tree import Node
from offtop.model.windows.breakdown import Part

Direction = Literal["left", "right", "up", "down"]


class Box(NamedTuple):
    path: Path
    name: str
    """Raw: escape it before it is shown."""
    kernel: bool
    x: int
    width: int
    """In cells, at least 1."""
    depth: int
    """Row, from the top."""
    part: Part


class Icicle(NamedTuple):
    boxes: tuple[Box, ...] = ()
    """Row by row, each from left to right."""
    whole_ns: int = 0
    """Time of the selection, regardless of zoom."""
    rows: int = 0
    """Number of rows with boxes."""
    dropped: int = 0
    """Boxes narrower than a cell, each with everything below it."""
    dropped_ns: int = 0
    dropped_deep: int = 0
    """Boxes below the last row, each with everything below it. Their time is in the boxes above them."""
    above: int = 0
    """Outermost ancestors of the zoomed box for which there is no row."""


def _nodes_along(root: Node, path: Path) -> list[Node]:
    """Return the root and the nodes of `path`, as far as they exist."""
    nodes = [root]
    for step in path:
        child = nodes[-1].children.get(step)
        if child is None:
            break
        nodes.append(child)
    return nodes


class _Placed(NamedTuple):
    path: Path
    node: Node
    x: int
    width: int

    def box(self, depth: int) -> Box:
        step = self.path[-1]
        return Box(self.path, step.name, step.kernel, self.x, self.width, depth, self.node.part)


def layout(root: Node, zoom: Path, width: int, rows: int) -> Icicle:
    """Return the boxes of the branch `zoom`, below its ancestors in full width.

    Ancestors and the zoomed box take at most half of the rows; the outermost are left out. The root has no box.
    """
    if width <= 0 or rows <= 0:
        return Icicle(whole_ns=root.total_ns)
    nodes = _nodes_along(root, zoom)
    line = [_Placed(zoom[:length], node, 0, width) for length, node in enumerate(nodes)]
    shown = line[1:][-max(1, rows // 2) :]
    boxes = [placed.box(depth) for depth, placed in enumerate(shown)]
    depth = len(boxes)
    dropped = dropped_ns = dropped_deep = 0
    row = line[-1:]
    while row:
        hanging: list[_Placed] = []
        for path, node, x, parent_width in row:
            children = sorted(
                ((step, child) for step, child in node.children.items() if child.total_ns > 0), key=_by_name
            )
            if depth == rows:
                dropped_deep += len(children)
                continue
            times_ns = [child.total_ns for _, child in children]
            for (step, child), cells in zip(children, _widths(times_ns, node.total_ns, parent_width), strict=True):
                if cells:
                    hanging.append(_Placed((*path, step), child, x, cells))
                    x += cells
                else:
                    dropped += 1
                    dropped_ns += child.total_ns
        boxes += [placed.box(depth) for placed in hanging]
        row = hanging
        depth += 1
    used = boxes[-1].depth + 1 if boxes else 0
    return Icicle(tuple(boxes), root.total_ns, used, dropped, dropped_ns, dropped_deep, len(nodes) - 1 - len(shown))


def _by_name(child: tuple[Step, Node]) -> tuple[bool, str]:
    return child[0].kernel, child[0].name


def _widths(times_ns: Sequence[int], parent_ns: int, width: int) -> list[int]:
    """Distribute cells to siblings by largest remainder; none for less than half a cell.

    Cells of dropped siblings, and of the parent's own time, stay empty.
    """
    # A sibling with negative time (an evicted thread) can make the others larger than their parent.
    whole_ns = max(1, parent_ns, sum(times_ns))
    shares = [ns * width if 2 * ns * width >= whole_ns else 0 for ns in times_ns]
    cells = [share // whole_ns for share in shares]
    spare = (2 * sum(shares) + whole_ns) // (2 * whole_ns) - sum(cells)
    for index in sorted(range(len(shares)), key=lambda index: -(shares[index] % whole_ns))[:spare]:
        cells[index] += 1
    return cells


def box_of(icicle: Icicle, path: Path) -> Box | None:
    """Return the box of `path`, otherwise of its nearest ancestor, otherwise the first.

    None if there is no box.
    """
    by_path = {box.path: box for box in icicle.boxes}
    for length in range(len(path), 0, -1):
        if path[:length] in by_path:
            return by_path[path[:length]]
    return icicle.boxes[0] if icicle.boxes else None


def neighbour(icicle: Icicle, path: Path, direction: Direction) -> Box | None:
    """Return the next box in a direction: in the row, the parent, or the widest child.

    Returns the box itself if there is none.
    """
    box = box_of(icicle, path)
    if box is None:
        return None
    row = [other for other in icicle.boxes if other.depth == box.depth]
    match direction:
        case "left":
            return max((other for other in row if other.x < box.x), key=lambda other: other.x, default=box)
        case "right":
            return min((other for other in row if other.x > box.x), key=lambda other: other.x, default=box)
        case "up":
            return next((other for other in icicle.boxes if other.path == box.path[:-1]), box)
        case "down":
            below = [other for other in icicle.boxes if other.path[:-1] == box.path]
            return max(below, key=lambda other: other.width, default=box)


def at(icicle: Icicle, x: int, row: int) -> Box | None:
    """Return the box in that cell."""
    return next((box for box in icicle.boxes if box.depth == row and box.x <= x < box.x + box.width), None)
