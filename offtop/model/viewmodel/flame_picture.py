"""FlamePicture: the boxes of the icicle."""

from collections.abc import Mapping
from dataclasses import dataclass

from offtop.model.aggregate import icicle as icicles
from offtop.model.aggregate.baseline_rows import BaselineRow
from offtop.model.aggregate.icicle import Icicle
from offtop.model.aggregate.steps import Path
from offtop.model.aggregate.tree import Node
from offtop.model.viewmodel.scene import Scene
from offtop.model.viewmodel.stack_table import StackTable, StackTree
from offtop.units import NS_PER_S

_UPDATED_NS = 2 * NS_PER_S
"""Minimum time between two updates of the icicle, while live."""


@dataclass(frozen=True, slots=True)
class FlamePicture:
    icicle: Icicle
    span_ns: int
    """Span of the icicle, which may be older than the rest."""
    before: Mapping[Path, BaselineRow]
    """Baseline values of its boxes."""


class FlamePictures:
    """Makes the pictures; keeps a tree for a while, so that the boxes do not move each second."""

    def __init__(self) -> None:
        self._kept: tuple[object, Node, int] | None = None

    def of(self, scene: Scene, table: StackTable, tree: StackTree, size: tuple[int, int]) -> FlamePicture:
        """Return the boxes for a pane of `size`, in columns and lines."""
        view, first, last = scene.view, scene.ticks[0], scene.ticks[-1]
        begin_ns = 0 if first.number else first.at_ns - first.span_ns
        paused = (view.paused_at_ns, table.names_version if view.paused_at_ns else 0)
        key = (table.about, view.span_ns, begin_ns, last.at_ns // _UPDATED_NS, paused)
        if self._kept is None or self._kept[0] != key:
            self._kept = key, tree.root, scene.span_ns
        _, root, span_ns = self._kept
        icicle = icicles.layout(root, view.flame.zoom, *size)
        was = scene.comparison.trees() if scene.comparison else None
        return FlamePicture(icicle, span_ns, {box.path: was.before(box.path) for box in icicle.boxes} if was else {})
