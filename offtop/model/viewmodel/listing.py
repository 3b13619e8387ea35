"""The list, from cgroups to causes, in order, with details of the visible rows."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from offtop.model.aggregate.breakdown_rows import cgroup_rows, process_rows, thread_rows
from offtop.model.aggregate.folding import UNFOLDED, Folding
from offtop.model.aggregate.place_shares import PlaceNames
from offtop.model.aggregate.pool import LEAST_CONVOY, Convoy, Pool, convoys, folding
from offtop.model.aggregate.program import Program, program_folding
from offtop.model.aggregate.row_names import cgroup_of
from offtop.model.aggregate.rows import NOWHERE, Key, Order, Ranking, Row, Visible, kept_rows, visible
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import Rule
from offtop.model.values.catalog import Catalog, ThreadKey
from offtop.model.values.table import Ints, lookup_keys, rows_at
from offtop.model.values.waits import NO_WAITS, WaitList
from offtop.model.viewmodel.row_places import Folded, sites_of_processes, sites_of_threads, with_tops
from offtop.model.viewmodel.scene import Scene
from offtop.model.viewmodel.seconds import AccountPicture, Seconds
from offtop.model.viewmodel.view import CATEGORIES, View
from offtop.model.viewmodel.waker_list import WakerList, storms
from offtop.model.windows import stuck
from offtop.model.windows.breakdown import NO_PART, SHORT, Leaf, PartTuple, by_process, by_thread, total
from offtop.model.windows.rolling import Sums

_ROWS = 500
_EVERY_ROW = 1_000_000
_LEAST_BESIDE_ACCOUNT = 6
"""The account is shown above the list if the list has at least so many rows."""


@dataclass(frozen=True, slots=True)
class ListPicture:
    """The list: cgroups, processes, threads and so on."""

    ranking: Ranking
    cursor: int
    """Row under the cursor."""
    first: int
    """First row on the screen."""
    below: Row | None
    """Sum of the rows below those on the screen; None: there are none."""
    account_lines: int
    """How many lines of the list the account of the selection takes."""
    threads_of: Mapping[int, int]
    """pid → how many of its threads have ever waited; without processes that exited."""
    marked: Collection[int | ThreadKey]
    """Processes and threads with an outlier in the last minute."""
    caveat: str
    """Why some changes may be none."""


class Listing:
    """Makes the list of a picture; caches only what makes the next one cheap."""

    def __init__(self, sums: Sums, seconds: Seconds, cause_finder: CauseFinder, place_names: PlaceNames) -> None:
        self._sums, self._seconds = sums, seconds
        self._cause_finder, self._place_names = cause_finder, place_names
        self._waker_list = WakerList(sums, cause_finder)
        self._pools: tuple[object, object, Folding[tuple[int, ...], Pool]] | None = None
        self._convoys: tuple[object, Mapping[int | Pool, Convoy]] | None = None

    def of(
        self,
        scene: Scene,
        lines: int,
        account: AccountPicture | None,
        marked: Collection[int | ThreadKey],
        sites: Mapping[tuple[int, ...], PartTuple],
    ) -> ListPicture:
        """Return the list for a pane of so many lines, of which `account` may take some.

        `sites` is the selection by site.
        """
        account_lines = account.lines if account and lines >= _LEAST_BESIDE_ACCOUNT else 0
        ranking, cursor, seen = Ranking(), 0, Visible(0, 0, None)
        if scene.gathered:
            ranking, cursor, seen = self._listed(scene, max(1, lines - account_lines), sites)
        caveat = scene.comparison.caveat if scene.comparison else ""
        return ListPicture(ranking, cursor, seen.first, seen.below, account_lines, scene.threads_of, marked, caveat)

    def _listed(
        self, scene: Scene, room: int, sites: Mapping[tuple[int, ...], PartTuple]
    ) -> tuple[Ranking, int, Visible]:
        """Return the rows, the one under the cursor, and those on the screen.

        `room` is the number of visible rows, including the one that sums up the rest.
        """
        view = scene.view
        made = Folded(self._folded_pools(scene), _folded_programs(scene))
        rows = self._rows(scene, made)
        if view.filter.chooses_rows:
            rows = kept_rows(rows, view.filter.keeps, _ROWS)
        if view.lists_wakers:
            rows = rows._replace(rows=(*storms(scene, rows), *rows.rows))
        cursor = _cursor_row(scene, made, rows)
        at = visible(rows, 0 if view.focus == CATEGORIES else cursor, room, view.line)
        begin, end = (0, len(rows.rows)) if view.is_searched else (at.first, at.end)
        seen = rows.rows[begin:end]
        seen = with_tops(seen, scene, made) if view.lists_sleepers else self._waker_list.with_tops(seen, scene)
        rows = rows._replace(rows=(*rows.rows[:begin], *seen, *rows.rows[end:]))
        seen = rows.rows[at.first : at.end]
        seen = self._with_rules(self._with_convoys(seen, scene, made), scene, made)
        if view.lists_sleepers and not view.lists_account:
            seen = self._with_places(seen, scene, made, sites)
        return rows._replace(rows=(*rows.rows[: at.first], *seen, *rows.rows[at.end :])), cursor, at

    def _with_rules(self, seen: Sequence[Row], scene: Scene, made: Folded) -> list[Row]:
        """Add to each row the rule for the place where it waited."""
        if not scene.view.lists_sleepers:
            return [*seen]
        short = self._short(scene, made)
        return [
            row._replace(rule=self._rule(row, scene.catalog, 2 * short.get(row.key, NO_PART)[1] > row.part.total_ns))
            if row.top != NOWHERE
            else row
            for row in seen
        ]

    def _rule(self, row: Row, catalog: Catalog, is_short: bool) -> Rule | None:
        """Return the rule for what many of its threads wait for, or where it waited longest.

        Return None if most of its time is short (`is_short`): a few long waits do not represent it.
        """
        of_convoy = self._cause_finder.rule_of(row.convoy.site, catalog) if row.convoy.waiting else None
        return of_convoy or (None if is_short else self._cause_finder.rule_of(row.top, catalog))

    def _with_places(
        self, seen: Sequence[Row], scene: Scene, made: Folded, sites: Mapping[tuple[int, ...], PartTuple]
    ) -> Sequence[Row]:
        """Add to each row what it waits for, and how much of its time that is."""
        if scene.view.lists_threads:
            found = sites_of_threads(seen, scene, made.pools)
        else:
            found = {key: (some, scene.span_ns) for key, some in sites_of_processes(seen, scene, made, sites).items()}
        return [
            row._replace(places=self._place_names.shares(found[row.key][0], scene.catalog), places_ns=found[row.key][1])
            if row.key in found
            else row
            for row in seen
        ]

    def _short(self, scene: Scene, made: Folded) -> Mapping[Key, PartTuple]:
        """Return the time of each row in waits below the minimum."""
        scope = scene.scope
        if not scope.holds(Leaf(SHORT)):
            return {}
        only = scope._replace(category=SHORT)
        if scene.view.lists_threads:
            table = self._sums.of(
                "short", scene.filter_cache, only, lambda shares: by_thread(shares, only), scene.ticks, scene.moved
            )
            folded = made.pools.folded(table)
            return {made.pools.groups.get(key, ThreadKey(*key)): part for key, part in folded.items()}
        parts = by_process(scene.breakdown, only)
        if not scene.view.lists_cgroups:
            return {made.programs.groups.get(key, key): part for key, part in made.programs.folded(parts).items()}
        of_cgroups: dict[Key, PartTuple] = {}
        for pid, part in parts.items():
            path = cgroup_of(pid, scene.catalog)
            of_cgroups[path] = total((of_cgroups.get(path, NO_PART), part))
        return of_cgroups

    def _rows(self, scene: Scene, made: Folded) -> Ranking:
        view, scope, catalog = scene.view, scene.scope, scene.catalog
        order = Order(
            view.list_sort,
            view.reverse,
            _EVERY_ROW if view.filter.chooses_rows else _ROWS,
            only_waiters=_is_filtered(view),
            compare=scene.comparison.listed(made.pools.groups, made.programs.groups) if scene.comparison else None,
        )
        if not view.lists_sleepers:
            return self._waker_list.ranking(scene, order)
        accounts = self._seconds.of_list(view, scene.ticks)
        if view.lists_threads:
            pin = _pinned_thread(view)
            return thread_rows(
                self._sums.of(
                    "threads",
                    scene.filter_cache,
                    scope,
                    lambda shares: by_thread(shares, scope),
                    scene.ticks,
                    scene.moved,
                ),
                scene.span_ns,
                catalog,
                order,
                pinned=[pin] if pin else [],
                lifetime=by_thread(scene.filter_cache.shares(scene.ever), scope) if scene.ever else None,
                keep=view.thread or (view.cursor if isinstance(view.cursor, ThreadKey | Pool) else None),
                now=stuck.by_thread(scene.stuck.in_scope(scope)),
                accounts=accounts.by(made.pools.code_of) if accounts else None,
                folding=made.pools,
            )
        in_progress = scene.stuck.in_scope(scope)
        accounts = accounts.by_process() if accounts else None
        lifetime = scene.filter_cache.taken(scene.ever).breakdown if scene.ever else None
        if view.lists_cgroups:
            return cgroup_rows(
                scene.breakdown,
                scope,
                catalog,
                order,
                threads=scene.threads_of,
                pinned=[view.pin] if isinstance(view.pin, str) else [],
                lifetime=lifetime,
                keep=view.cursor if isinstance(view.cursor, str) else None,
                now=stuck.by_cgroup(in_progress, lambda pid: cgroup_of(pid, catalog)),
                accounts=accounts,
            )
        keep = made.programs.code(view.cursor) if isinstance(view.cursor, Program) else view.cursor
        return process_rows(
            scene.breakdown,
            scope,
            catalog,
            order,
            threads=scene.threads_of,
            titles=scene.newest.header.titles,
            pinned=_pinned_processes(scene, made.programs),
            lifetime=lifetime,
            keep=made.programs.code_of.get(keep, keep) if isinstance(keep, int) else None,
            now=stuck.by_process(in_progress),
            accounts=accounts,
            folding=made.programs,
        )

    def _folded_pools(self, scene: Scene) -> Folding[tuple[int, ...], Pool]:
        """Return which threads of the list are shown as pools."""
        view, pin = scene.view, _pinned_thread(scene.view)
        if not view.lists_threads or view.unfolded or view.pool is not None or view.thread is not None:
            return UNFOLDED
        known, key = self._pools, (pin, view.pid)
        if known is None or known[0] is not scene.threads or known[1] != key:  # new threads may bring new names
            wanted_wakers = sorted(one for one in scene.threads if one != pin and view.pid in (None, one.pid))
            made = folding(wanted_wakers, scene.catalog)
            is_one_row = view.pid is not None and [*made.sizes.values()] == [len(wanted_wakers)]
            known = self._pools = scene.threads, key, UNFOLDED if is_one_row else made
        return known[2]

    def _with_convoys(self, seen: Sequence[Row], scene: Scene, made: Folded) -> Sequence[Row]:
        """Add to rows of many threads how many of these wait for the same thing now.

        Now is the end of the newest tick.
        """
        newest = scene.newest
        sizes = {
            row.key: row.threads for row in seen if isinstance(row.key, int | Pool) and row.threads >= LEAST_CONVOY
        }
        if not sizes:
            return seen
        key = newest.number, newest.at_ns, scene.filter_cache, scene.scope, sizes
        if self._convoys is None or self._convoys[0] != key:
            self._convoys = key, self._found_convoys(scene, made, sizes)
        found = self._convoys[1]
        return [
            row._replace(convoy=found[row.key]) if isinstance(row.key, int | Pool) and row.key in found else row
            for row in seen
        ]

    def _found_convoys(
        self, scene: Scene, made: Folded, sizes: Mapping[int | Pool, int]
    ) -> Mapping[int | Pool, Convoy]:
        """`sizes`: key → how many threads it has."""
        newest, is_of_threads = scene.newest, scene.view.lists_threads
        pids = {key.pid if isinstance(key, Pool) else key for key in sizes}
        young = stuck.young(scene.waits, pids, newest.at_ns, newest.header.catalog, newest.idle)
        young = scene.filter_cache.stuck(young, newest)
        parts = [WaitList.of(some.in_scope(scene.scope).waits).rows for some in (scene.stuck, young)]
        parts[0] = rows_at(parts[0], np.isin(parts[0][:, 0], [*pids]))
        at_once = WaitList(np.concatenate(parts), NO_WAITS.holders)

        def keys_of(ids: Ints) -> tuple[Sequence[int | Pool | None], Ints]:
            if not is_of_threads:
                own, which = np.unique(ids[:, 0], return_inverse=True)
                return [pid if pid in sizes else None for pid in own.tolist()], which
            numbers: dict[tuple[int, ...] | None, int] = {}
            codes = map(made.pools.code_of.get, lookup_keys(ids))
            which = np.array([numbers.setdefault(code, len(numbers)) for code in codes], np.int64)
            groups = (None if code is None else made.pools.groups[code] for code in numbers)
            return [pool if pool in sizes else None for pool in groups], which

        return convoys(at_once, keys_of, sizes, scene.catalog)


def _pinned_thread(view: View) -> ThreadKey | None:
    pin = view.pin
    return pin if isinstance(pin, ThreadKey) and view.pid in (None, pin.pid) else None


def _is_filtered(view: View) -> bool:
    """Return whether the list leaves out processes that wait, apart from those outside of the selection."""
    own = view.group[1] if view.group is not None else view.filter
    return bool(own.chooses_waits or view.user or view.muted)


def _folded_programs(scene: Scene) -> Folding[int, Program]:
    """Return which processes of the list are shown as programs."""
    view, scope = scene.view, scene.scope
    if not view.lists_programs:
        return UNFOLDED
    some = (by_pid for leaf, by_pid in scene.breakdown.processes.items() if scope.holds(leaf))
    pids = set[int]().union(*some)
    if view.group is None and not _is_filtered(view):
        pids.update(scene.threads_of)
    pinned = _pinned_pids(scene)
    pids = pids.union(pinned) if isinstance(view.pin, Program) else pids.difference(pinned)
    return program_folding(pids, scene.catalog)


def _pinned_processes(scene: Scene, programs: Folding[int, Program]) -> list[int]:
    """Return the keys of the pinned rows in a list of processes."""
    pids = _pinned_pids(scene)
    return [*dict.fromkeys(programs.code_of.get(pid, pid) for pid in pids)]


def _pinned_pids(scene: Scene) -> list[int]:
    """Return the processes that are pinned, of those that the selection has; inside of a pinned program, none."""
    pin, inside, catalog = scene.view.pin, scene.view.program, scene.catalog
    if isinstance(pin, Program):
        return sorted(pid for pid in scene.threads_of if pin.holds(pid, catalog)) if inside is None else []
    pid = pin.pid if isinstance(pin, ThreadKey) else pin
    return [pid] if isinstance(pid, int) and (inside is None or inside.holds(pid, catalog)) else []


def _cursor_row(scene: Scene, made: Folded, rows: Ranking) -> int:
    """Return the row under the cursor: for what has none, that of its program or pool, and the other way round."""
    view = scene.view
    on = view.thread if view.thread and view.lists_sleepers else view.cursor
    if isinstance(on, int):
        on = made.programs.group_of(on) or on
    elif isinstance(on, ThreadKey):
        on = made.pools.group_of(on) or on
    found = next((i for i, row in enumerate(rows.rows) if row.key == on), None)
    if found is None:
        found = next((i for i, row in enumerate(rows.rows) if _is_in(on, row.key, scene.catalog)), 0)
    return found


def _is_in(group: Key | None, key: Key, catalog: Catalog) -> bool:
    if isinstance(group, Pool):
        return isinstance(key, ThreadKey) and group.holds(key, catalog)
    return isinstance(group, Program) and isinstance(key, int) and group.holds(key, catalog)
