"""Tick: the part of a tick that passes the filter, and the waits in progress at its end."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from offtop.model.aggregate.account import Account, accounts
from offtop.model.aggregate.filter import Filter
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.values.catalog import SiteKey, ThreadKey
from offtop.model.values.snapshot import EXITED, SiteTotals, Snapshot
from offtop.model.values.stack import PLACELESS
from offtop.model.values.table import SITES
from offtop.model.values.waits import KERNEL, Waits
from offtop.model.viewmodel.counterparts import Now
from offtop.model.windows.breakdown import Breakdown, Idle, Shares, breakdown_of
from offtop.model.windows.history import HistoryTick
from offtop.model.windows.stuck import NOTHING_STUCK, Stuck, stuck


class Tick(NamedTuple):
    """The part of a tick that passes the filter."""

    unfiltered: HistoryTick
    """All of the tick."""
    filter: Filter
    shares: Shares
    breakdown: Breakdown
    left_out_ns: int = 0
    """Time that does not pass the filter."""
    stuck: Stuck = NOTHING_STUCK
    """Waits in progress that pass the filter."""
    accounts: Mapping[ThreadKey, Account] = MappingProxyType({})
    """One per thread that ran or waited."""


def in_progress(snapshot: Snapshot, idle: Idle, least_ns: int) -> Stuck:
    """Return the waits in progress that have a stack and are at least `least_ns` old."""
    every = Waits.of(snapshot.waiting).list
    placed = every.of_rows(~np.isin(every.rows[:, KERNEL], [*PLACELESS]))
    return stuck(placed, snapshot.at_ns, snapshot.catalog, idle, least_ns)


def passing(
    unfiltered: HistoryTick,
    chosen: Filter,
    cause_finder: CauseFinder,
    blocked: Stuck = NOTHING_STUCK,
    accounted: bool = False,
) -> Tick:
    """Return what of a tick passes the filter. Values that are not known yet do not match."""
    every, catalog = unfiltered.shares, unfiltered.window.catalog
    each: Mapping[ThreadKey, Account] = {}
    if accounted:
        each = accounts([unfiltered.window]).by_thread()
    if not chosen.chooses_waits:
        return Tick(unfiltered, chosen, every, unfiltered.breakdown, stuck=blocked, accounts=each)
    some = every.of(chosen.mask(every, catalog, cause_finder))
    left_out_ns = int(every.total_ns.sum()) - int(some.total_ns.sum())
    if blocked.shares is not None:
        blocked = blocked.of(chosen.mask(blocked.shares, catalog, cause_finder))
    return Tick(unfiltered, chosen, some, breakdown_of(some, unfiltered.span_ns), left_out_ns, blocked, each)


def sites(tick: Tick) -> list[tuple[SiteKey, SiteTotals]]:
    """Return all totals of the sites with time that passes the filter, most time first."""
    every = sorted(tick.unfiltered.window.each_site(), key=lambda item: (-item[1].total_ns, item[0]))
    if not tick.filter.chooses_waits:
        return every
    those = passing_sites(tick)
    return [item for item in every if item[0] in those]


def passing_sites(tick: Tick) -> set[SiteKey]:
    """Return the sites with time that passes. A thread's short waits are one site."""
    return {*map(SITES.key, tick.shares.ids.tolist())}


def stacks_of(tick: Tick) -> set[int]:
    """Return the ids of all stacks of which the tick's JSON object has the functions of the program."""
    catalog, those = tick.unfiltered.window.catalog, [key for key, _ in sites(tick)]
    wakes = {key.wake for key in those}.union(tick.unfiltered.window.storms)
    found = {key.user for key in those}.union(one.user for one in tick.stuck.waits)
    return found.union(*(catalog.wake(wake).stacks for wake in wakes))


def now_of(tick: Tick) -> Now:
    """Return what a comparison needs of a tick."""
    window = tick.unfiltered.window
    threads = {key for key, _ in window.each_thread()}
    return Now(window.span_ns, window.catalog, threads, {key.pid for key in threads}, window.filters, window.sampling)


def pids_of(tick: HistoryTick) -> set[int]:
    """Return the PIDs with anything counted in a tick, except EXITED, which stands for evicted threads."""
    files, disks = tick.header.files, tick.header.disks
    pids = {pid for by_pid in tick.breakdown.processes.values() for pid in by_pid if pid != EXITED.pid}
    pids.update(key.pid for key in (files.totals if files else ()))
    pids.update(key.pid for key in (disks.totals if disks else ()) if key.pid)
    return pids
