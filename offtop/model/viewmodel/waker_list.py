"""The list of wakers, objects or causes: what threads waited for, not which of them."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from offtop.model.aggregate.breakdown_rows import storm_rows, storms_of_rows, wake_rows
from offtop.model.aggregate.program import Program
from offtop.model.aggregate.rows import NOWHERE, Key, Order, Ranking, Row
from offtop.model.aggregate.waker_rows import (
    G,
    KeyOf,
    WakerKey,
    by_wake,
    grouped,
    object_of,
    oldest_of,
    placeholder_keys,
    ready_by_wake,
    top_of_wakes,
    waker_of,
)
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import BELOW_REASON, NO_REASON, Reason
from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey
from offtop.model.values.snapshot import NO_HOLDER, Holder
from offtop.model.values.wake import Object
from offtop.model.viewmodel.cause_picture import selected_sites
from offtop.model.viewmodel.row_places import LOOKED_UP_TICKS
from offtop.model.viewmodel.scene import Scene
from offtop.model.windows import stuck
from offtop.model.windows.breakdown import PartTuple, Shares, by_site, sites_of
from offtop.model.windows.rolling import Sums
from offtop.model.windows.stuck import Age
from offtop.model.windows.window import storms_over


class WakerList:
    """Makes the list if it is not one of waiting threads."""

    def __init__(self, sums: Sums, cause_finder: CauseFinder) -> None:
        self._sums, self._cause_finder = sums, cause_finder

    def ranking(self, scene: Scene, order: Order) -> Ranking:
        view, filter_cache, scope, catalog = scene.view, scene.filter_cache, scene.view.scope, scene.catalog
        ticks = scene.ticks, scene.moved
        if view.lists_reasons:
            return self._reasons(scene, order)
        table = self._sums.of("wakes", filter_cache, scope, lambda shares: by_wake(shares, scope), *ticks)
        ready = self._sums.of("ready", filter_cache, scope, lambda shares: ready_by_wake(shares, scope), *ticks)
        ever = by_wake(filter_cache.shares(scene.ever), scope) if scene.ever else None
        waited = _Waited(table, ready, ever, scene.span_ns, stuck.by_wake(scene.stuck.in_scope(scope)))
        if view.lists_objects:
            things = object_of(catalog)
            return _grouped(waited, order, things, view.cursor, last=placeholder_keys(things))
        wakers = waker_of(catalog, view.lists_waking_threads)
        return _grouped(waited, order, wakers, view.cursor, view.pin, last=placeholder_keys(wakers))

    def _reasons(self, scene: Scene, order: Order) -> Ranking:
        filter_cache, scope = scene.filter_cache, scene.view.scope
        sites = selected_sites(scene, self._sums)
        ever = by_site(filter_cache.shares(scene.ever), scope) if scene.ever else None
        ages = stuck.by_site(scene.stuck.in_scope(scope))
        every = [*{**sites, **(ever or {}), **ages}]
        reasons = dict(zip(every, self._cause_finder.reasons_at(every, scene.catalog), strict=True))
        waited = _Waited(sites, {}, ever, scene.span_ns, ages)
        return _grouped(waited, order, lambda *site: reasons[site], scene.view.cursor, last={NO_REASON, BELOW_REASON})

    def with_tops(self, seen: Sequence[Row], scene: Scene) -> Sequence[Row]:
        """Add to each row of wakers, objects or causes where most of its time was spent."""
        view, found = scene.view, dict[Key, SiteKey]()
        for tick in scene.ticks[: -LOOKED_UP_TICKS - 1 : -1]:
            if all(row.key in found for row in seen):
                break
            some, catalog = scene.filter_cache.shares(tick), tick.header.catalog
            if view.lists_reasons:
                missing = {row.key for row in seen if row.key not in found}
                found |= _tops_of_reasons(missing, some.in_scope(view.scope), catalog, self._cause_finder)
            elif view.lists_objects:
                wanted = {row.key for row in seen if isinstance(row.key, Object) and row.key not in found}
                found |= top_of_wakes(some, view.scope, wanted, object_of(catalog))
            else:
                wanted_wakers = {row.key for row in seen if isinstance(row.key, WakerKey) and row.key not in found}
                found |= top_of_wakes(some, view.scope, wanted_wakers, waker_of(catalog, view.lists_waking_threads))
        holders: dict[Key, Holder] = {}
        for one in scene.stuck.in_scope(view.scope).waits if view.lists_objects else ():
            if one.holder.tid:
                holders.setdefault(scene.catalog.wake(one.site.wake).object, one.holder)
        return [row._replace(top=found.get(row.key, NOWHERE), holder=holders.get(row.key, NO_HOLDER)) for row in seen]


def storms(scene: Scene, rows: Ranking) -> list[Row]:
    """Return rows of storms, for wakers that have rows."""
    key_of = waker_of(scene.catalog, scene.view.lists_waking_threads)
    found = storms_of_rows(storms_over(tick.header for tick in scene.ticks), rows, key_of)
    return storm_rows(found, scene.span_ns)


class _Waited(NamedTuple):
    """Time of waits in a scope, by wake or site."""

    table: Mapping[tuple[int, ...], PartTuple]
    ready: Mapping[tuple[int, ...], PartTuple]
    """Run-queue time that followed."""
    ever: Mapping[tuple[int, ...], PartTuple] | None
    span_ns: int
    ages: Mapping[tuple[int, ...], Age]
    """The oldest wait in progress of each wake or site, oldest first."""


def _grouped(
    waited: _Waited,
    order: Order,
    key_of: KeyOf[G],
    cursor: Key | None,
    pin: str | int | Program | ThreadKey | None = None,
    *,
    last: Collection[G],
) -> Ranking:
    every = grouped(waited.table, key_of)
    return wake_rows(
        every,
        waited.span_ns,
        order,
        pinned=[key for key in every if isinstance(key, WakerKey) and _is_pinned(key, pin)],
        ready=grouped(waited.ready, key_of),
        lifetime=grouped(waited.ever, key_of) if waited.ever is not None else None,
        keep=next((key for key in every if key == cursor), None),
        now=oldest_of(waited.ages, key_of),
        last=last,
    )


def _is_pinned(key: WakerKey, pin: str | int | Program | ThreadKey | None) -> bool:
    return bool(key.pid) and pin == (ThreadKey(key.pid, key.tid) if key.tid else key.pid)


def _tops_of_reasons(
    wanted: Collection[Key], some: Shares, catalog: Catalog, cause_finder: CauseFinder
) -> dict[Key, SiteKey]:
    """Return where most time of each cause was spent."""
    reasons = [one for one in wanted if isinstance(one, Reason)]
    number_of = {reason: number for number, reason in enumerate(reasons)}
    sites, which = sites_of(some)
    of_sites = [number_of.get(reason, -1) for reason in cause_finder.reasons_at(sites, catalog)]
    numbers = np.array(of_sites, np.int64)[which] if sites else which
    chosen = numbers >= 0
    return {reasons[number]: site for number, ns, site in some.of(chosen).top_sites(numbers[chosen]) if ns > 0}
