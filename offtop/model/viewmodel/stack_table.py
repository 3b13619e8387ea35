"""The selection by stack, from which tree, icicle and site are made."""

from collections.abc import Mapping
from dataclasses import dataclass

from offtop.model.aggregate import tree as trees
from offtop.model.aggregate.steps import Shape, Steps
from offtop.model.aggregate.tree import Nameless, Node
from offtop.model.values.catalog import Catalog
from offtop.model.values.stack import Names
from offtop.model.values.wake import WAKEUP
from offtop.model.viewmodel.scene import Scene
from offtop.model.windows.breakdown import PartTuple, by_place
from offtop.model.windows.rolling import Sums


@dataclass(frozen=True, slots=True)
class StackTable:
    parts: Mapping[tuple[int, ...], PartTuple]
    """Time by place (breakdown.by_place)."""
    steps: Steps
    """Its `of` returns the path of a place in the tree."""
    about: tuple[object, ...]
    """Equal for tables of the same selection, in the same form."""
    names_version: int
    """Version of the function names in the paths."""


@dataclass(frozen=True, slots=True)
class StackTree:
    root: Node
    nameless: Nameless


class StackTables:
    """Makes the tables; caches only what makes the next one cheap."""

    def __init__(self, sums: Sums, names: Names) -> None:
        self._sums, self._names = sums, names
        self._steps: tuple[object, Steps] | None = None
        self._tree: tuple[object, StackTree] | None = None

    def of(self, scene: Scene) -> StackTable:
        filter_cache, scope, shape = scene.filter_cache, scene.view.scope, scene.view.tree.shape
        parts = self._sums.of(
            "places",
            filter_cache,
            (scope, shape.mode, shape.objects),
            lambda shares: by_place(shares, scope, shape.places),
            scene.ticks,
            scene.moved,
        )
        version = self._names.version
        return StackTable(parts, self._steps_of(scene.catalog, shape), (scope, filter_cache, shape), version)

    def tree(self, scene: Scene, table: StackTable) -> StackTree:
        first, last = scene.ticks[0], scene.ticks[-1]
        key = (table.about, table.names_version, first.at_ns - first.span_ns, last.at_ns)
        if self._tree is None or self._tree[0] != key:
            catalog, of_wakers = scene.catalog, scene.view.tree.shape.mode == WAKEUP
            root = trees.tree_along(
                table.parts, table.steps.of, lambda place: "" if of_wakers else catalog.stack(place[0]).category
            )
            self._tree = key, StackTree(root, trees.nameless(table.parts, table.steps.nameless))
        return self._tree[1]

    def _steps_of(self, catalog: Catalog, shape: Shape) -> Steps:
        if self._steps is None or self._steps[0] != (id(catalog), shape):
            self._steps = (id(catalog), shape), Steps(catalog, self._names, shape)
        self._steps[1].refresh_names()
        return self._steps[1]
