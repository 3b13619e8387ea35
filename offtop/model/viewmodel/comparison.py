"""Baseline values for what a view shows: tables and trees to compare the panes with.

Filters, mutes, category and mode apply to both. counterparts.py finds the selected process or thread in the baseline.
"""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from offtop.model.aggregate.baseline_rows import BaselineOnly, BaselineTable, Compare
from offtop.model.aggregate.filter import Filter
from offtop.model.aggregate.filter_syntax import of_reason
from offtop.model.aggregate.pool import Pool
from offtop.model.aggregate.program import Program
from offtop.model.aggregate.row_names import cgroup_of
from offtop.model.aggregate.scope_text import counted_otherwise
from offtop.model.aggregate.selection import through
from offtop.model.aggregate.steps import Path, Shape, passes, steps_of
from offtop.model.aggregate.tree import tree_of
from offtop.model.aggregate.waker_rows import G, KeyOf, by_wake, codes, grouped, object_of, waker_of
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import RuleSource
from offtop.model.values.catalog import Catalog, code_of
from offtop.model.values.stack import PLACELESS, Names
from offtop.model.values.table import Mask, thread_codes
from offtop.model.values.wake import OFFCPU, gathers
from offtop.model.viewmodel.baseline_names import (
    cgroup_row_name,
    object_name,
    plain_name,
    pool_groups,
    process_names,
    program_groups,
    program_row_name,
    site_names,
    thread_names,
    thread_or_pool_names,
)
from offtop.model.viewmodel.baseline_trees import Trees
from offtop.model.viewmodel.counterparts import Counterparts, Matching, Now
from offtop.model.viewmodel.io_comparison import IoComparison
from offtop.model.viewmodel.view import View
from offtop.model.windows.baseline import Baseline
from offtop.model.windows.breakdown import NO_PART, Part, PartTuple, Scope, Shares, by_place, by_site, by_thread, total
from offtop.units import count

_MOST_CACHED = 64
"""Cached tables and trees of the baseline; the cache is cleared beyond that."""
K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
_Parts = Sequence[tuple[int, Shares]]
_Tables = Sequence[Mapping[K, PartTuple]]


class Comparison:
    """Comparison with one baseline; caches what makes the next picture cheap."""

    def __init__(self, baseline: Baseline, rules: RuleSource) -> None:
        self.baseline = baseline
        self.io = IoComparison()
        """Compares the lists that are not about waits."""
        self._catalog, self._are_pids_valid = baseline.catalog, not baseline.file
        self._counterparts = Counterparts(baseline)
        self._cause_finder = CauseFinder(baseline.names, rules)
        self._view = View()
        self._cache_key: object = None
        self._matching_list = self._matching_panes = Matching()
        """For the list, and for the other panes."""
        self._cache: dict[Hashable, Any] = {}
        self._now = Now(0, Catalog(), (), ())

    def select(self, view: View, user: Filter, now: Now) -> None:
        """Set what the other methods compare. `user` is the filter for the processes of one user."""
        filters = (view.filter, user, *([of_reason(view.reason)] if view.reason else []))
        self._matching_list = self._matching_panes = Matching()
        if view.pool is not None:
            self._matching_list = self._matching_panes = self._counterparts.of_pool(view.pool, now)
        elif view.pid is not None:
            self._matching_list = self._matching_panes = self._counterparts.of_process(view.pid, now)
        elif view.program is not None:
            self._matching_list = self._matching_panes = self._counterparts.of_program(view.program)
        if view.thread is not None:
            self._matching_panes = self._counterparts.of_thread(view.thread, now)
        woken = view.waker, view.object
        of_details = view.lists_cgroups or any(one.needs_details for one in (*filters, *view.muted))
        versions = self._cause_finder.version, now.catalog.details_version if of_details else 0
        cache_key = (filters, view.muted, self._matching_list, self._matching_panes, woken, versions)
        if cache_key != self._cache_key:
            self._cache_key = cache_key
            self._cache.clear()
            self._filters = filters
        self._view, self._now = view, now

    @property
    def why_uncompared(self) -> str:
        """Why list and tree cannot be compared; empty if they can."""
        wants_wakers = self._view.lists_wakers or bool(self._view.wakers) or self._view.tree.shape.mode != OFFCPU
        if wants_wakers and not gathers(self.baseline.mode, self._view.mode if self._view.mode != OFFCPU else "wakeup"):
            return "the baseline has no wakers"
        return ""

    @property
    def caveat(self) -> str:
        """Why some changes may not be real; empty if all are."""
        if doubt := counted_otherwise(self.baseline, self._now, "the baseline"):
            return doubt
        kinds = ", ".join(f"{count(many)} {kind}" for kind, many in sorted(self.baseline.lost.items()) if many)
        return f"the baseline lost {kinds}" if kinds else ""

    # Tables

    @property
    def waiting(self) -> float:
        """Average waiting threads in the baseline, of what is shown."""
        return self._categories().whole.waiting

    def categories(self) -> Compare:
        return self._compare(self._categories(), _identity, BaselineOnly)

    def _categories(self) -> BaselineTable[str]:
        scope = Scope(idle=self._view.idle_shown)
        return self._cached(
            ("categories", scope, self._view.path),
            lambda: BaselineTable(
                self.baseline.spans_ns,
                [_by_category(some.in_scope(scope)) for _, some in self._of_branch()],
                BaselineOnly,
                self._matching_panes.share,
            ),
        )

    def listed(
        self,
        pools: Mapping[tuple[int, ...], Pool] = MappingProxyType({}),
        programs: Mapping[int, Program] = MappingProxyType({}),
    ) -> Compare | None:
        """Return the comparison of the list, None if there is none.

        `pools` and `programs` are the rows that stand for several threads or processes.
        """
        view, catalog, baseline_catalog = self._view, self._now.catalog, self._catalog
        if self.why_uncompared or view.lists_account:
            return None
        scope = view.scope._replace(pid=None, tid=None)
        if view.lists_reasons:
            return self._compare(
                self._baseline_table("reasons", scope, self._by_reason, lambda key: BaselineOnly(key.name)),
                _identity,
                plain_name,
            )
        if view.lists_objects:
            things = object_of(baseline_catalog)
            table_of = _grouping(things)
            return self._compare(
                self._baseline_table("objects", scope, table_of, object_name), self._key_if_valid, object_name
            )
        if view.lists_wakers:
            of_threads = view.lists_waking_threads
            table_of = _grouping(waker_of(baseline_catalog, of_threads))
            return self._compare(
                self._baseline_table(("wakers", of_threads), scope, table_of, plain_name),
                self._key_if_valid,
                plain_name,
            )
        if view.lists_threads:
            was = self._baseline_table(
                "threads", scope, by_thread, thread_names(baseline_catalog), pool_groups(baseline_catalog)
            )

            def key_of(key: tuple[int, ...]) -> Hashable:
                return self._key_if_valid(pools.get(key, key))

            return self._compare(was, key_of, thread_or_pool_names(catalog, pools), self._now.threads)
        if view.lists_cgroups:

            def by_cgroup(some: Shares, scope: Scope) -> dict[str, PartTuple]:
                sums: dict[str, Part] = {}
                for pid, part in _by_process(some, scope).items():
                    path = cgroup_of(pid, baseline_catalog)
                    sums[path] = sums.get(path, NO_PART).plus(Part(*part))
                return {**sums}

            was = self._baseline_table("cgroups", scope, by_cgroup, cgroup_row_name)
            return self._compare(was, _identity, cgroup_row_name)
        was = self._baseline_table(
            "processes", scope, _by_process, process_names(baseline_catalog), program_groups(baseline_catalog)
        )

        def key_of_row(key: int) -> Hashable:
            return programs[key] if key in programs else self._key_if_valid(key)

        of_process = process_names(catalog)
        return self._compare(
            was,
            key_of_row,
            lambda key: program_row_name(programs[key]) if key in programs else of_process(key),
            self._now.every_pid,
        )

    def _compare(
        self,
        was: BaselineTable[Any],
        key_of: Callable[[Any], Hashable],
        name_of: Callable[[Any], Hashable],
        there: Collection[Any] = (),
    ) -> Compare:
        span_ns, alive = self._now.span_ns, there if self._are_pids_valid else ()
        return lambda table: was.compared(table, span_ns, key_of, name_of, alive)

    def _key_if_valid(self, key: Hashable) -> Hashable:
        """Return the key if it is valid in the baseline: only if that was marked live."""
        return key if self._are_pids_valid else None

    def _baseline_table(
        self,
        what: Hashable,
        scope: Scope,
        table_of: Callable[[Shares, Scope], Mapping[K, PartTuple]],
        name_of: Callable[[K], Hashable],
        groups: Callable[[K], Sequence[tuple[Hashable, Hashable]]] | None = None,
    ) -> BaselineTable[K]:
        def made() -> BaselineTable[K]:
            tables = [table_of(some, scope) for _, some in self._shares(self._matching_list)]
            return BaselineTable(self.baseline.spans_ns, tables, name_of, self._matching_list.share, groups)

        return self._cached((what, scope), made)

    def _by_reason(self, some: Shares, scope: Scope) -> Mapping[Any, PartTuple]:
        table = by_site(some, scope)
        reasons = dict(zip(table, self._cause_finder.reasons_at([*table], self._catalog), strict=True))
        return {**grouped(table, lambda *site: reasons[site])}

    def threads(self) -> Compare:
        """Compare single threads."""
        was = self._baseline_table(
            "threads", Scope(), by_thread, thread_names(self._catalog), pool_groups(self._catalog)
        )
        return self._compare(was, self._key_if_valid, thread_names(self._now.catalog), self._now.threads)

    def sites(self, names: Names) -> Compare:
        """Compare the sites of a window, with all their time. `names` are for the window."""
        was = self._cached(
            "sites",
            lambda: BaselineTable(
                self.baseline.spans_ns,
                [_by_site(some) for _, some in self._shares(self._matching_list)],
                site_names(self._catalog, self.baseline.names),
                self._matching_list.share,
            ),
        )
        return self._compare(was, self._key_if_valid, site_names(self._now.catalog, names))

    # The tree

    def trees(self) -> "Trees | None":
        if self.why_uncompared:
            return None
        view, shape = self._view, self._view.tree.shape

        def made() -> Trees:
            tables = self._places(view.scope, shape)
            every: dict[tuple[int, ...], list[PartTuple]] = {}
            for table in tables:
                for place, part in table.items():
                    every.setdefault(place, []).append(part)
            whole = {place: total(some) for place, some in every.items()}
            roots = [tree_of(table, self._catalog, self.baseline.names, shape) for table in (whole, *tables)]
            return Trees(roots[0], roots[1:], self.baseline.spans_ns, self._matching_panes.share)

        return self._cached(("trees", _without_ids(view.scope), shape), made)

    def places(self, path_of: Callable[[tuple[int, ...]], Path]) -> Compare | None:
        """Compare the places in the chosen branch. `path_of` returns the path of a place of now."""
        if self.why_uncompared:
            return None
        view, shape = self._view, self._view.tree.shape
        was_path_of = steps_of(self._catalog, self.baseline.names, shape)

        def made() -> BaselineTable[tuple[int, ...]]:
            paths = {place: was_path_of(place) for table in self._places(view.scope, shape) for place in table}
            tables = [
                {place: part for place, part in table.items() if passes(paths[place], view.path)}
                for table in self._places(view.scope, shape)
            ]
            return BaselineTable(self.baseline.spans_ns, tables, paths.__getitem__, self._matching_panes.share)

        was = self._cached(("places", _without_ids(view.scope), shape, view.path), made)
        return self._compare(was, lambda _: None, path_of)

    def _places(self, scope: Scope, shape: Shape) -> _Tables[tuple[int, ...]]:
        scope = _without_ids(scope)
        return self._cached(
            ("of places", scope, shape.mode, shape.objects),
            lambda: [by_place(some, scope, shape.places) for _, some in self._shares(self._matching_panes)],
        )

    # The selection in the baseline

    def _shares(self, matching: Matching) -> _Parts:
        """Return the baseline's time of the `matching` threads that passes mutes, filters and the selection."""

        def made() -> _Parts:
            found: list[tuple[int, Shares]] = []
            for span_ns, some in self.baseline.parts:
                keep = np.ones(len(some.leaf), np.bool_)
                for one in self._view.muted:
                    keep &= ~one.mask(some, self._catalog, self._cause_finder)
                for one in self._filters:
                    keep &= one.mask(some, self._catalog, self._cause_finder)
                if matching.threads is not None:
                    those = np.array([*map(code_of, matching.threads)], np.int64)
                    keep &= np.isin(thread_codes(some.ids), those)
                found.append((span_ns, some.of(keep & self._of_wakes(some))))
            return found

        return self._cached(("shares", matching), made)

    def _of_branch(self) -> _Parts:
        shares, view = self._shares(self._matching_panes), self._view
        if not view.path:
            return shares
        names = self.baseline.names
        return [
            (ns, some.of(through(some.ids, self._catalog, names, view.tree.shape, view.path))) for ns, some in shares
        ]

    def _of_wakes(self, some: Shares) -> Mask:
        """Return which waits were ended by the selected waker, and were on the selected object."""
        keep, view = np.ones(len(some.leaf), np.bool_), self._view
        if view.waker is not None:
            keep &= self._with(some, view.waker, waker_of(self._catalog, bool(view.waker.tid)), plain_name)
        if view.object is not None:
            keep &= self._with(some, view.object, object_of(self._catalog), object_name)
        return keep

    def _with(self, some: Shares, wanted: G, key_of: KeyOf[G], name_of: Callable[[G], BaselineOnly]) -> Mask:
        wakes, which = np.unique(codes(some.ids), return_inverse=True)
        keys = [key_of(wake) for wake in wakes.tolist()]
        if self._are_pids_valid and wanted in keys:
            return np.array([key == wanted for key in keys], np.bool_)[which]
        return np.array([name_of(key) == name_of(wanted) for key in keys], np.bool_)[which]

    def _cached(self, cache_key: Hashable, made: Callable[[], T]) -> T:
        if cache_key not in self._cache:
            if len(self._cache) >= _MOST_CACHED:
                self._cache.clear()
            self._cache[cache_key] = made()
        return self._cache[cache_key]


def _without_ids(scope: Scope) -> Scope:
    return scope._replace(pid=None, tid=None)


def _by_category(some: Shares) -> dict[str, PartTuple]:
    sums: dict[str, Part] = {}
    for leaf, part in some.by(some.leaf):
        category = some.leaves[leaf].category
        sums[category] = sums.get(category, NO_PART).plus(Part(*part))
    return {**sums}


def _by_process(some: Shares, scope: Scope) -> dict[int, PartTuple]:
    chosen = some.in_scope(scope)
    return dict(chosen.by(chosen.ids[:, 0]))


def _by_site(some: Shares) -> dict[tuple[int, ...], PartTuple]:
    placed = some.of(~np.isin(some.ids[:, 2], [*PLACELESS]))
    ids, which = np.unique(placed.ids, axis=0, return_inverse=True)
    keys: list[list[int]] = ids.tolist()
    return {tuple(keys[number]): part for number, part in placed.by(which.reshape(-1))}


def _grouping(key_of: KeyOf[G]) -> Callable[[Shares, Scope], Mapping[G, PartTuple]]:
    return lambda some, scope: {**grouped(by_wake(some, scope), key_of)}


def _identity(key: Hashable) -> Hashable:
    return key
