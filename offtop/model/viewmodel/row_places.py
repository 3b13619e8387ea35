"""Where the threads of each row of the list waited."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from offtop.model.aggregate.folding import UNFOLDED, Folding
from offtop.model.aggregate.place_shares import Sites, sites_of_rows
from offtop.model.aggregate.pool import Pool
from offtop.model.aggregate.program import Program
from offtop.model.aggregate.row_names import cgroup_of
from offtop.model.aggregate.rows import Key, Row
from offtop.model.values.catalog import SiteKey, ThreadKey
from offtop.model.values.table import integers, thread_codes
from offtop.model.viewmodel.scene import Scene
from offtop.model.windows.breakdown import PartTuple, Shares, top_of_groups, top_of_threads

LOOKED_UP_TICKS = 3
"""How many of the last ticks are searched for a row's stack. A row whose waits are all short has none."""


class Folded(NamedTuple):
    """What the list shows as one row."""

    pools: Folding[tuple[int, ...], Pool] = UNFOLDED
    """In a list of threads."""
    programs: Folding[int, Program] = UNFOLDED
    """In a list of processes."""


def with_tops(seen: Sequence[Row], scene: Scene, made: Folded) -> Sequence[Row]:
    """Add to each row where it waited longest, from the newest of the last ticks that has it."""
    filter_cache, scope, view = scene.filter_cache, scene.scope, scene.view
    missing = {row.key for row in seen if isinstance(row.key, str | int | Program | ThreadKey | Pool)}
    found: dict[str | int | Program | ThreadKey | Pool, SiteKey] = {}
    for tick in scene.ticks[: -LOOKED_UP_TICKS - 1 : -1]:
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


def sites_of_processes(
    seen: Sequence[Row], scene: Scene, made: Folded, sites: Mapping[tuple[int, ...], PartTuple]
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


def sites_of_threads(
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
    for tick in scene.ticks[: -LOOKED_UP_TICKS - 1 : -1]:
        if len(found) == len(keys):
            break
        some = scene.filter_cache.shares(tick).in_scope(scene.scope)
        for number, sites in sites_of_rows(some, thread_codes(some.ids), row_of).items():
            found.setdefault(keys[number], (sites, tick.span_ns))
    return found


def _tops_of_pools(wanted: Collection[Pool], some: Shares, made: Folding[tuple[int, ...], Pool]) -> dict[Pool, SiteKey]:
    """Return where the threads of each pool waited most, in the window of `some`."""
    pools = [*wanted]
    number = {pool: n for n, pool in enumerate(pools)}
    _, first, which = np.unique(thread_codes(some.ids), return_index=True, return_inverse=True)
    threads = map(ThreadKey._make, some.ids[first, :2].tolist())
    found = [number.get(pool, -1) if (pool := made.group_of(key)) else -1 for key in threads]
    numbers = np.array(found, np.int64)[which]
    return {pools[n]: site for n, _, site in some.of(numbers >= 0).top_sites(numbers[numbers >= 0])}
