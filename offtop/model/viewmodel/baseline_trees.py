"""The stack tree of a baseline: what a branch was then, and which branches are gone."""

from collections.abc import Sequence
from typing import NamedTuple

from offtop.model.aggregate.baseline_rows import LEAST, BaselineRow, before_of
from offtop.model.aggregate.steps import Path
from offtop.model.aggregate.tree import Branch, Node, folded
from offtop.model.windows.breakdown import NO_PART, Part

_MOST_GONE = 8
"""Number of branches."""
_GONE_SHARE = 100
"""Branches with less than this fraction of the baseline's time (1/n) are not listed as gone."""


class Trees(NamedTuple):
    """The baseline's stack tree."""

    root: Node
    parts: Sequence[Node]
    spans_ns: tuple[int, ...]
    share: float

    def before(self, path: Path) -> BaselineRow:
        return before_of(self.spans_ns, [_part_at(root, path) for root in self.parts], self.share)

    def gone(self, root: Node) -> list[Branch]:
        """Return the largest branches of the baseline that the tree of `root` does not have."""
        span_ns = sum(self.spans_ns)
        least_ns = max(LEAST * span_ns / self.share, self.root.total_ns / _GONE_SHARE)
        found: list[tuple[int, Path]] = []
        pending: list[tuple[Path, Node, Node]] = [((), self.root, root)]
        while pending:
            path, was, now = pending.pop()
            for step, child in was.children.items():
                if child.total_ns < least_ns:
                    continue
                there = now.children.get(step)
                if there is None or there.total_ns <= 0:
                    found.append((child.total_ns, path + folded(step, child)[0]))
                else:
                    pending.append(((*path, step), child, there))
        largest = sorted(found, key=lambda one: (-one[0], one[1]))[:_MOST_GONE]
        return [Branch(path, 0, 0, NO_PART, False, False) for _, path in largest]


def _part_at(root: Node, path: Path) -> Part:
    node: Node | None = root
    for step in path:
        node = node.children.get(step) if node else None
    return node.part if node else NO_PART
