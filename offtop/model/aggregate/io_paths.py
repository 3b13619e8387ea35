"""Paths of file operations and of requests to disks: the program's functions, what they did, and where it waited."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from offtop.model.aggregate import tree as trees
from offtop.model.aggregate.steps import Path, Shape, Step, Steps
from offtop.model.aggregate.tree import Node
from offtop.model.values.catalog import Catalog
from offtop.model.values.io_stacks import Stacks, StackTotals
from offtop.model.values.stack import Names
from offtop.model.windows.breakdown import PartTuple


class IoRow(NamedTuple):
    """A row of file operations or of requests to disks, with its stacks. Names are raw."""

    operation: str
    what: str
    """The operation, and on what: `fsync /var/lib/db/redo.log`."""
    pid: int
    process: str
    tid: int
    thread: str
    totals: StackTotals
    """Of all that ended, with or without a stack; the time is that of those in progress, too."""
    stacks: Stacks[Any]
    now_ns: int = 0
    """Age of the oldest in progress; 0: none."""

    @property
    def without_stack(self) -> StackTotals:
        """What did not reach the minimum, or is in progress."""
        some = [totals for _, totals in self.stacks]
        return StackTotals(
            max(0, self.totals.calls - sum(one.calls for one in some)),
            max(0, self.totals.bytes - sum(one.bytes for one in some)),
            max(0, self.totals.total_ns - sum(one.total_ns for one in some)),
        )

    @property
    def step(self) -> Step:
        return Step(self.what, False, is_object=True)


class IoPath(NamedTuple):
    row: IoRow
    path: Path
    totals: StackTotals


def paths(rows: Iterable[IoRow], catalog: Catalog, names: Names, shape: Shape) -> list[IoPath]:
    """Return the paths of the stacks of `rows`."""
    steps = Steps(catalog, names, shape)
    return [
        IoPath(row, steps.around(row.step, stack.kernel, stack.user), totals)
        for row in rows
        for stack, totals in row.stacks
    ]


def tree_of(every: Iterable[IoPath]) -> Node:
    """Return the tree of some paths. Its root stands for all of them and has no name."""
    places = [(one.path, _added(one.totals)) for one in every]
    return trees.tree_along({(number,): part for number, (_, part) in enumerate(places)}, _path_of(places))


def _added(totals: StackTotals) -> PartTuple:
    return totals.calls, totals.total_ns, totals.max_ns, 0


def _path_of(places: list[tuple[Path, PartTuple]]) -> Callable[[tuple[int, ...]], Path]:
    return lambda place: places[place[0]][0]
