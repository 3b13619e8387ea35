"""The list, from cgroups to causes, in order, with details of the visible rows."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from offtop.model.aggregate.folding import UNFOLDED, Folding
from offtop.model.aggregate.place_shares import PlaceNames, Sites, sites_of_rows
from offtop.model.aggregate.pool import LEAST_CONVOY, Convoy, Pool, convoys, folding
from offtop.model.aggregate.program import Program, program_folding
from offtop.model.aggregate.rows import (
    NOWHERE,
    Key,
    Order,
    Ranking,
    Row,
    cgroup_of,
    cgroup_rows,
    kept_rows,
    process_rows,
    storm_rows,
    storms_of_rows,
    thread_rows,
    wake_rows,
)
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
from offtop.model.classify.causes import BELOW_REASON, NO_REASON, Reason, Rule
from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey
from offtop.model.values.snapshot import NO_HOLDER, Holder
from offtop.model.values.table import integers, thread_codes
from offtop.model.values.wake import Object
from offtop.model.viewmodel.cause_picture import selected_sites
from offtop.model.viewmodel.scene import Scene
from offtop.model.viewmodel.seconds import AccountPicture, Seconds
from offtop.model.viewmodel.view import View
from offtop.model.windows import stuck
from offtop.model.windows.breakdown import (
    NO_PART,
    SHORT,
    Added,
    Leaf,
    Shares,
    by_process,
    by_site,
    by_thread,
    sites_of,
    top_of_groups,
    top_of_threads,
    total,
)
from offtop.model.windows.history import History
from offtop.model.windows.rolling import Sums
from offtop.model.windows.stuck import Age
from offtop.model.windows.window import storms_over

_LOOKED_UP_TICKS = 3
"""How many of the last ticks are searched for a row's stack. A row whose waits are all short has none."""
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
    account_lines: int
    """How many lines of the list the account of the selection takes."""
    threads_of: Mapping[int, int]
    """pid → how many of its threads have ever waited; without processes that exited."""
    marked: Collection[int | ThreadKey]
    """Processes and threads with an outlier in the last minute."""
    caveat: str
    """Why some changes may be none."""


class Folded(NamedTuple):
    """What the list shows as one row."""

    pools: Folding[tuple[int, ...], Pool] = UNFOLDED
    """In a list of threads."""
    programs: Folding[int, Program] = UNFOLDED
    """In a list of processes."""


class Listing:
    """Makes the list of a picture; caches only what makes the next one cheap."""

    def __init__(
        self, history: History, sums: Sums, seconds: Seconds, cause_finder: CauseFinder, place_names: PlaceNames
    ) -> None:
        self._history, self._sums, self._seconds = history, sums, seconds
        self._cause_finder, self._place_names = cause_finder, place_names
        self._pools: tuple[object, object, Folding[tuple[int, ...], Pool]] | None = None
        self._convoys: tuple[object, Mapping[int | Pool, Convoy]] | None = None

    def of(
        self,
        scene: Scene,
        lines: int,
        account: AccountPicture | None,
        marked: Collection[int | ThreadKey],
        sites: Mapping[tuple[int, ...], Added],
    ) -> ListPicture:
        """Return the list for a pane of so many lines, of which `account` may take some.

        `sites` is the selection by site.
        """
        account_lines = account.lines if account and lines >= _LEAST_BESIDE_ACCOUNT else 0
        ranking, cursor, first = Ranking(), 0, 0
        if scene.gathered:
            ranking, cursor, first = self._listed(scene, max(1, lines - account_lines), sites)
        caveat = scene.comparison.caveat if scene.comparison else ""
        return ListPicture(ranking, cursor, first, account_lines, scene.threads_of, marked, caveat)

    def _listed(self, scene: Scene, room: int, sites: Mapping[tuple[int, ...], Added]) -> tuple[Ranking, int, int]:
        """Return the rows, the one under the cursor, and the first on the screen.

        `room` is the number of visible rows, including the one that sums up the rest.
        """
        view = scene.view
        made = Folded(self._folded_pools(scene), _folded_programs(scene))
        rows = self._rows(scene, made)
        if view.filter.chooses_rows:
            rows = kept_rows(rows, view.filter.keeps, _ROWS)
        if view.lists_wakers:
            rows = rows._replace(rows=(*_storms(scene, rows), *rows.rows))
        room = max(1, room - (rows.elided is not None))
        cursor = _cursor_row(scene, made, rows)
        first = min(max(0, cursor - room // 2), max(0, len(rows.rows) - room))
        seen = rows.rows[first : first + room]
        seen = _with_tops(seen, scene, made, self._cause_finder)
        seen = self._with_rules(self._with_convoys(seen, scene, made), scene, made)
        if view.lists_sleepers and not view.lists_account:
            seen = self._with_places(seen, scene, made, sites)
        return rows._replace(rows=(*rows.rows[:first], *seen, *rows.rows[first + room :])), cursor, first

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
        self, seen: Sequence[Row], scene: Scene, made: Folded, sites: Mapping[tuple[int, ...], Added]
    ) -> Sequence[Row]:
        """Add to each row what it waits for, and how much of its time that is."""
        if scene.view.lists_threads:
            found = _sites_of_threads(seen, scene, made.pools)
        else:
            found = {key: (some, scene.span_ns) for key, some in _sites_of_processes(seen, scene, made, sites).items()}
        return [
            row._replace(places=self._place_names.shares(found[row.key][0], scene.catalog), places_ns=found[row.key][1])
            if row.key in found
            else row
            for row in seen
        ]

    def _short(self, scene: Scene, made: Folded) -> Mapping[Key, Added]:
        """Return the time of each row in waits below the minimum."""
        filter_cache, scope = scene.filter_cache, scene.scope
        if not scope.holds(Leaf(SHORT)):
            return {}
        only = scope._replace(category=SHORT)
        if scene.view.lists_threads:
            table = self._sums.of(
                "short",
                (filter_cache, only),
                lambda tick: by_thread(filter_cache.shares(tick), only),
                scene.ticks,
                scene.moved,
            )
            folded = made.pools.folded(table)
            return {made.pools.groups.get(key, ThreadKey(*key)): part for key, part in folded.items()}
        parts = by_process(scene.breakdown, only)
        if not scene.view.lists_cgroups:
            return {made.programs.groups.get(key, key): part for key, part in made.programs.folded(parts).items()}
        of_cgroups: dict[Key, Added] = {}
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
            return self._wakes(scene, order)
        accounts = self._seconds.of_list(view, scene.ticks)
        if view.lists_threads:
            pin = _pinned_thread(view)
            return thread_rows(
                self._sums.of(
                    "threads",
                    (scene.filter_cache, scope),
                    lambda tick: by_thread(scene.filter_cache.shares(tick), scope),
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
                processes=scene.threads_of,
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

    def _wakes(self, scene: Scene, order: Order) -> Ranking:
        """List wakers, objects or causes."""
        view, filter_cache, scope, catalog = scene.view, scene.filter_cache, scene.view.scope, scene.catalog
        about = (filter_cache, scope)
        ticks = scene.ticks, scene.moved
        if view.lists_reasons:
            return self._reasons(scene, order)
        table = self._sums.of("wakes", about, lambda tick: by_wake(filter_cache.shares(tick), scope), *ticks)
        ready = self._sums.of("ready", about, lambda tick: ready_by_wake(filter_cache.shares(tick), scope), *ticks)
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
        at_once = scene.filter_cache.stuck(self._history.stuck(newest, pids), newest).in_scope(scene.scope)

        def key_of(thread: ThreadKey) -> int | Pool | None:
            key = made.pools.group_of(thread) if is_of_threads else thread.pid
            return key if key in sizes else None

        return convoys(at_once.waits, key_of, sizes, scene.catalog)


def _storms(scene: Scene, rows: Ranking) -> list[Row]:
    """Return rows of storms, for wakers that have rows."""
    key_of = waker_of(scene.catalog, scene.view.lists_waking_threads)
    storms = storms_of_rows(storms_over(tick.header for tick in scene.ticks), rows, key_of)
    return storm_rows(storms, scene.span_ns)


class _Waited(NamedTuple):
    """Time of waits in a scope, by wake or site."""

    table: Mapping[tuple[int, ...], Added]
    ready: Mapping[tuple[int, ...], Added]
    """Run-queue time that followed."""
    ever: Mapping[tuple[int, ...], Added] | None
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
    """Return the row under the cursor: for a process that has none, that of its program, and the other way round."""
    view = scene.view
    on = view.thread if view.thread and view.lists_sleepers else view.cursor
    if isinstance(on, int):
        on = made.programs.group_of(on) or on
    found = next((i for i, row in enumerate(rows.rows) if row.key == on), None)
    if found is None and isinstance(on, Program) and view.lists_processes:
        processes = (
            i for i, row in enumerate(rows.rows) if isinstance(row.key, int) and on.holds(row.key, scene.catalog)
        )
        found = next(processes, None)
    return found or 0


def _with_tops(seen: Sequence[Row], scene: Scene, made: Folded, cause_finder: CauseFinder) -> Sequence[Row]:
    """Add to each row where it waited longest, from the newest of the last ticks that has it."""
    filter_cache, scope, view = scene.filter_cache, scene.scope, scene.view
    if not view.lists_sleepers:
        return _with_top_wakes(seen, scene, cause_finder)
    missing = {row.key for row in seen if isinstance(row.key, str | int | Program | ThreadKey | Pool)}
    found: dict[str | int | Program | ThreadKey | Pool, SiteKey] = {}
    for tick in scene.ticks[: -_LOOKED_UP_TICKS - 1 : -1]:
        if not missing:
            break
        of_threads = {key for key in missing if isinstance(key, ThreadKey)}
        of_pools = {key for key in missing if isinstance(key, Pool)}
        if of_threads:
            found |= top_of_threads(filter_cache.shares(tick), scope, of_threads)
        if of_pools:
            found |= _tops_of_pools(of_pools, filter_cache.shares(tick).in_scope(scope), made.pools)
        if view.lists_cgroups:
            taken, catalog = filter_cache.taken(tick).breakdown, tick.header.catalog
            pids = {pid for by_pid in taken.tops.values() for pid in by_pid}
            group_of = {pid: path for pid in pids if (path := cgroup_of(pid, catalog)) in missing}
            found |= top_of_groups(taken, scope, group_of)
        elif not view.lists_threads:
            row_of: dict[int, int | Program] = {key: key for key in missing if isinstance(key, int)}
            for key in missing:
                if isinstance(key, Program):
                    row_of |= dict.fromkeys(made.programs.members[key], key)
            found |= top_of_groups(filter_cache.taken(tick).breakdown, scope, row_of)
        missing -= found.keys()
    return [
        row._replace(top=found[row.key])
        if isinstance(row.key, str | int | Program | ThreadKey | Pool) and row.key in found
        else row
        for row in seen
    ]


def _sites_of_processes(
    seen: Sequence[Row], scene: Scene, made: Folded, sites: Mapping[tuple[int, ...], Added]
) -> dict[Key, Sites]:
    """Return the sites of cgroups, programs and processes, over the whole span."""
    found: dict[Key, Sites] = {row.key: [] for row in seen}
    row_of: dict[int, Sites] = {key: some for key, some in found.items() if isinstance(key, int)}
    for key, some in found.items():
        if isinstance(key, Program):
            row_of |= dict.fromkeys(made.programs.members[key], some)
    if scene.view.lists_cgroups:
        catalog = scene.catalog
        pids = {site[3] for site in sites}
        row_of = {pid: found[path] for pid in pids if (path := cgroup_of(pid, catalog)) in found}
    for site, part in sites.items():
        some = row_of.get(site[3])
        if some is not None:
            some.append((site, part[1]))
    return found


def _sites_of_threads(
    seen: Sequence[Row], scene: Scene, pools: Folding[tuple[int, ...], Pool]
) -> dict[Key, tuple[Sites, int]]:
    """Return the sites of threads and pools in the newest of the last ticks in which they waited, and its length.

    A table of all sites by thread, over the whole span, would cost more than the rest of the list.
    """
    keys = [row.key for row in seen if isinstance(row.key, ThreadKey | Pool)]
    row_of: dict[int, int] = {}
    for number, key in enumerate(keys):
        members = pools.members[key] if isinstance(key, Pool) else [key]
        row_of |= dict.fromkeys(thread_codes(integers([*members], 2)).tolist(), number)
    found: dict[Key, tuple[Sites, int]] = {}
    for tick in scene.ticks[: -_LOOKED_UP_TICKS - 1 : -1]:
        if len(found) == len(keys):
            break
        some = scene.filter_cache.shares(tick).in_scope(scene.scope)
        for number, sites in sites_of_rows(some, thread_codes(some.ids), row_of).items():
            found.setdefault(keys[number], (sites, tick.span_ns))
    return found


def _with_top_wakes(seen: Sequence[Row], scene: Scene, cause_finder: CauseFinder) -> Sequence[Row]:
    """Add to each row of wakers, objects or causes where most of its time was spent."""
    view, found = scene.view, dict[Key, SiteKey]()
    for tick in scene.ticks[: -_LOOKED_UP_TICKS - 1 : -1]:
        if all(row.key in found for row in seen):
            break
        some, catalog = scene.filter_cache.shares(tick), tick.header.catalog
        if view.lists_reasons:
            found |= _tops_of_reasons(
                {row.key for row in seen if row.key not in found}, some.in_scope(view.scope), catalog, cause_finder
            )
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


def _tops_of_pools(wanted: Collection[Pool], some: Shares, made: Folding[tuple[int, ...], Pool]) -> dict[Pool, SiteKey]:
    """Return where the threads of each pool waited most, in the window of `some`."""
    pools = [*wanted]
    number = {pool: n for n, pool in enumerate(pools)}
    _, first, which = np.unique(thread_codes(some.ids), return_index=True, return_inverse=True)
    threads = map(ThreadKey._make, some.ids[first, :2].tolist())
    found = [number.get(pool, -1) if (pool := made.group_of(key)) else -1 for key in threads]
    numbers = np.array(found, np.int64)[which]
    return {pools[n]: site for n, _, site in some.of(numbers >= 0).longest(numbers[numbers >= 0])}


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
    return {reasons[number]: site for number, ns, site in some.of(chosen).longest(numbers[chosen]) if ns > 0}
