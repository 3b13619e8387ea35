"""CategoriesPicture: the table of categories, with a sparkline of the last minute for each."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from offtop.model.aggregate.breakdown_rows import category_rows
from offtop.model.aggregate.rows import WAITING, Order, Ranking, Visible, visible
from offtop.model.aggregate.selection import Parts
from offtop.model.viewmodel.room import Room
from offtop.model.viewmodel.scene import Scene
from offtop.model.viewmodel.series import Series, series
from offtop.model.windows import stuck
from offtop.model.windows.breakdown import ALL, FILTERED, Scope
from offtop.model.windows.history import HistoryTick
from offtop.model.windows.stuck import NO_AGE, Age

_LIST_ONLY_SORTS = ("PID", "NAME")
"""Sorts that do not apply to categories, which are then sorted by WAITING."""


@dataclass(frozen=True, slots=True)
class CategoriesPicture:
    ranking: Ranking
    seen: Visible
    sparks: Mapping[str, Series]
    """By category, over the last minute; breakdown.ALL is the sum."""
    oldest: Age
    """Oldest wait of everything shown."""
    lifetime_ns: int
    """Time of all categories since the start, for TOTAL; 0 unless that is needed."""


def categories_picture(scene: Scene, room: Room) -> CategoriesPicture:
    ages = stuck.by_category(scene.chosen_stuck.in_scope(Scope(idle=scene.view.idle_shown)))
    ever = scene.filter_cache.chosen(scene.ever) if scene.ever else None
    ranking = _ranking(scene, ages, ever)
    cursor = next((at for at, row in enumerate(ranking.rows) if row.key == scene.view.category), 0)
    seen = visible(ranking, cursor, room.categories, scene.view.category_line)
    lifetime_ns = _waiting_ns(ever, scene.view.idle_shown)[ALL] if ever else 0
    return CategoriesPicture(
        ranking, seen, _sparks(scene, room, ranking), max(ages.values(), default=NO_AGE), lifetime_ns
    )


def _ranking(scene: Scene, ages: Mapping[str, Age], ever: Parts | None) -> Ranking:
    view, comparison = scene.view, scene.comparison
    return category_rows(
        replace(scene.breakdown, categories=scene.chosen),
        Order(
            WAITING if view.sort in _LIST_ONLY_SORTS else view.table_sort,
            compare=comparison.categories() if comparison else None,
        ),
        idle_shown=view.idle_shown,
        lifetime=replace(scene.breakdown, categories=ever) if ever is not None else None,
        keep=view.category,
        now=ages,
    )


def _sparks(scene: Scene, room: Room, ranking: Ranking) -> dict[str, Series]:
    past, idle_shown = scene.filter_cache.parts_of(scene.minute), scene.view.idle_shown
    waiting_ns = {number: _waiting_ns(parts, idle_shown) for number, parts in past.items()}

    def of(category: str, tick: HistoryTick) -> int | None:
        return waiting_ns[tick.number].get(category, 0) if tick.number in waiting_ns else None

    return {
        key: series(scene.minute, room.spark_cells, room.spark_cell_ns, scene.newest.at_ns, partial(of, key))
        for key in (ALL, *(row.key for row in ranking.rows))
        if isinstance(key, str)
    }


def _waiting_ns(parts: Parts, idle_shown: bool) -> dict[str, int]:
    """Return the time by category, and of all categories."""
    sums = {ALL: 0}
    for leaf, part in parts.items():
        if idle_shown or not leaf.idle:
            sums[leaf.category] = sums.get(leaf.category, 0) + part.total_ns
            sums[ALL] += part.total_ns if leaf.category != FILTERED else 0
    return sums
