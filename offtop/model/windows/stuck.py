"""Waits in progress, their ages and places, for now and each past tick.

A total grows while a wait goes on, but says nothing about its age. Only waits of at least LEAST_AGE_NS are included:
younger ones are normal, and a hundred times as many.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, islice
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from offtop.model.values import columns, stack
from offtop.model.values.catalog import Catalog, ThreadKey, thread_of
from offtop.model.values.snapshot import NO_HOLDER, Bound, Snapshot, Waiting
from offtop.model.values.table import SITES, Ints, Mask, SiteKeys, distinct_rows, integers, thread_codes
from offtop.model.values.waits import (
    BOUND,
    KERNEL,
    NO_WAITS,
    READ_USER,
    READY_NS,
    USER,
    WaitList,
    Waits,
)
from offtop.model.windows.breakdown import RUN_QUEUE, SHORT, SLEEP, THROTTLE, Idle, Leaf, Scope, Shares, sites_of
from offtop.model.windows.change import numbers_of, waits_of
from offtop.model.windows.idle_by_rule import IDLE, NOT_IDLE, SLEEPS
from offtop.units import NS_PER_S, duration

LEAST_AGE_NS = NS_PER_S // 10
_CHUNK_BYTES = 200
"""Memory of one tick's ended waits, without their columns."""


class Age(NamedTuple):
    """Age of a wait in progress."""

    ns: int = 0
    """0: no wait."""
    bound: Bound = Bound.EXACT

    @property
    def text(self) -> str:
        """`1.84s`, or `<=12min` if only a bound is known; empty for no wait. At most 7 wide."""
        text = f"{_BOUNDS[self.bound]}{duration(self.ns)}" if self.ns else ""
        return text if len(text) <= _WIDEST else f"{_BOUNDS[self.bound]}{self.ns / NS_PER_S:.0f}s"


_BOUNDS = {Bound.EXACT: "", Bound.AT_MOST: "<=", Bound.AT_LEAST: ">="}
_WIDEST = 7
"""Width of the column: `<=1.5min` is written `<=90s`."""
NO_AGE = Age()


class Stuck(NamedTuple):
    """The waits in progress at one moment, oldest first."""

    at_ns: int
    """CLOCK_MONOTONIC."""
    waits: Sequence[Waiting] = ()
    shares: Shares | None = None
    """The same rows with their leaves, for filters; total_ns is the age. None if there are no rows."""

    def of(self, rows: Mask) -> "Stuck":
        if self.shares is None or rows.all():
            return self
        return Stuck(self.at_ns, WaitList.of(self.waits).of_rows(rows), self.shares.of(rows))

    def of_age(self, keeps: Callable[[int], bool]) -> "Stuck":
        """Return the waits whose age in ns passes `keeps`."""
        if self.shares is None:
            return self
        return self.of(np.array([keeps(age_ns) for age_ns in self.shares.total_ns.tolist()], np.bool_))

    def in_scope(self, scope: Scope) -> "Stuck":
        return self if self.shares is None else self.of(self.shares.mask(scope))

    @property
    def standing(self) -> int:
        """Number of standing waits."""
        if self.shares is None:
            return 0
        stands = np.array([leaf.standing for leaf in self.shares.leaves], np.bool_)
        return int(np.count_nonzero(stands[self.shares.leaf]))

    def leaf(self, row: int) -> Leaf:
        assert self.shares
        return self.shares.leaves[int(self.shares.leaf[row])]

    @property
    def ages(self) -> list[Age]:
        return self._ages(np.arange(len(self.waits)))

    def age(self, row: int) -> Age:
        (age,) = self._ages(np.array([row]))
        return age

    def oldest(self, codes: Ints) -> list[tuple[int, Age]]:
        """Return the oldest wait for each of `codes` (one a row), the oldest of all first."""
        found, rows = np.unique(codes, return_index=True)  # the first of each: rows are in the order of age
        order = np.argsort(rows)
        return [*zip(found[order].tolist(), self._ages(rows[order]), strict=True)]

    def _ages(self, rows: Ints) -> list[Age]:
        some = WaitList.of(self.waits).of_rows(rows)
        return [*map(Age, some.ages_ns(self.at_ns).tolist(), map(Bound, some.rows[:, BOUND].tolist()))]


NOTHING_STUCK = Stuck(0)


def stuck(waits: Iterable[Waiting], at_ns: int, catalog: Catalog, idle: Idle, least_ns: int = LEAST_AGE_NS) -> Stuck:
    """Return those of `waits` that are at least `least_ns` old, without filtered ones."""
    every = WaitList.of(waits)
    ages_ns = every.ages_ns(at_ns)
    old = np.flatnonzero((ages_ns >= least_ns) & (every.rows[:, KERNEL] != stack.FILTERED))
    if not len(old):
        return Stuck(at_ns)
    pids, tids = every.rows[old, :2].T
    old = old[np.lexsort((tids, pids, -ages_ns[old]))]
    every, ages_ns = every.of_rows(old), ages_ns[old]
    ids = every.rows[:, : SITES.width].copy("K")
    kinds, which = distinct_rows((ids[:, KERNEL] * 2 + every.is_ready)[:, None])
    names = [_current_category(kind >> 1, bool(kind & 1), catalog) for (kind,) in kinds]
    looks_idle = np.array([name in idle.categories for name in names], np.bool_)[which]
    as_read = ids.copy("K")
    as_read[:, USER] = every.rows[:, READ_USER]
    by_rule = idle.by_rule.of(as_read)
    asleep = np.flatnonzero(np.array([name == SLEEP for name in names], np.bool_)[which] | (by_rule == SLEEPS))
    if len(asleep) and len(idle.periodic):
        looks_idle[asleep] |= idle.is_periodic(ids[asleep])
    ids = as_read
    looks_idle[by_rule == IDLE], looks_idle[by_rule == NOT_IDLE] = True, False
    codes, leaf = distinct_rows((which << 1 | looks_idle)[:, None])
    leaves = [Leaf(names[code >> 1], bool(code & 1)) for (code,) in codes]
    shares = Shares(leaves, leaf, ids, np.zeros_like(ages_ns), ages_ns, ages_ns, counts=integers([], 3))
    return with_standing(Stuck(at_ns, every, shares), idle.standing)


def young(waits: WaitList, pids: Collection[int], at_ns: int, catalog: Catalog, idle: Idle) -> Stuck:
    """Return the waits of these processes that `stuck` leaves out."""
    is_young = (waits.ages_ns(at_ns) < LEAST_AGE_NS) & np.isin(waits.rows[:, 0], [*pids])
    return stuck(waits.of_rows(is_young), at_ns, catalog, idle, 0)


def with_standing(some: Stuck, standing: SiteKeys) -> Stuck:
    """Return `some`, but count those at `standing` as idle, too."""
    if some.shares is None or not len(standing):
        return some
    shares, count = some.shares, len(some.shares.leaves)
    is_idle = np.array([leaf.idle for leaf in shares.leaves], np.bool_)[shares.leaf]
    stands = standing.mask(WaitList.of(some.waits).sites) & ~is_idle
    leaves = [*shares.leaves, *(leaf._replace(idle=True, standing=True) for leaf in shares.leaves)]
    return some._replace(shares=shares._replace(leaves=leaves, leaf=shares.leaf + count * stands))


def _current_category(kernel: int, is_ready: bool, catalog: Catalog) -> str:
    """Return the category that the time of a wait is counted in while it lasts."""
    category = SHORT if kernel == stack.SHORT else catalog.stack(kernel).category
    return RUN_QUEUE if is_ready and category != THROTTLE else category


class PastWait(NamedTuple):
    """A wait that was in progress at earlier ticks, with what was known about it at the end."""

    wait: Waiting
    """As of `until_ns`."""
    until_ns: int
    """CLOCK_MONOTONIC of the last tick at which it was in progress."""

    def at(self, at_ns: int) -> Waiting:
        """Return the wait as it was at `at_ns`: runnable or not.

        The lock holder of that time is unknown.
        """
        one, earlier_ns = self.wait, self.until_ns - at_ns
        if not earlier_ns or not (one.runqueue_ns or one.holder.tid):
            return one
        return one._replace(runqueue_ns=max(0, one.runqueue_ns - earlier_ns), holder=NO_HOLDER)


class PastWaits:
    """The waits that were in progress at earlier ticks.

    Each is stored once, when it has ended.
    """

    def __init__(self) -> None:
        self.latest: Snapshot | None = None
        self._ended: deque[tuple[int, int, bytes]] = deque()
        """(CLOCK_MONOTONIC of the tick in which they ended, of the previous tick, their columns)."""
        self.bytes_held = 0

    def add(self, snapshot: Snapshot) -> None:
        before, self.latest = self.latest, snapshot
        if before is None:
            return
        was, now, at_ns = Waits.of(before.waiting), Waits.of(snapshot.waiting), before.at_ns
        ended = was.list.of_rows(was.ended_by(now))
        ended = ended.of_rows(ended.began_ns <= at_ns - LEAST_AGE_NS)
        if len(ended):
            packed = columns.compressed(numbers_of(ended))
            self._ended.append((snapshot.at_ns, at_ns, packed))
            self.bytes_held += len(packed) + _CHUNK_BYTES

    def clear(self) -> None:
        self.latest = None
        self._ended.clear()
        self.bytes_held = 0

    def forget(self, until_ns: int) -> None:
        """Drop what is needed only for moments up to `until_ns`."""
        while self._ended and self._ended[0][0] <= until_ns:
            self.bytes_held -= len(self._ended.popleft()[-1]) + _CHUNK_BYTES

    def at(self, at_ns: int) -> WaitList:
        """Return the waits in progress at `at_ns`, runnable or not as they were then.

        The lock holders of an earlier time are unknown.
        """
        if self.latest and self.latest.at_ns == at_ns:
            return Waits.of(self.latest.waiting).list
        rows, holders = [NO_WAITS.rows], NO_WAITS.holders
        for waits, seen_ns in self._lasting(at_ns, at_ns):
            then = waits.rows.copy()
            then[:, READY_NS] = np.maximum(0, then[:, READY_NS] - (seen_ns - at_ns))
            rows.append(then)
            if seen_ns == at_ns:
                holders = waits.holders
        return WaitList(np.concatenate(rows), holders)

    def lasting(self, since_ns: int, until_ns: int) -> Iterator[PastWait]:
        """Return the waits in progress at any moment between the two."""
        return (PastWait(one, seen_ns) for waits, seen_ns in self._lasting(since_ns, until_ns) for one in waits)

    def _lasting(self, since_ns: int, until_ns: int) -> Iterator[tuple[WaitList, int]]:
        """Return the same, each with the time of the last tick at which it was in progress."""
        latest = self.latest
        if latest is None:
            return iter(())
        some = Waits.of(latest.waiting).list
        ended = list(islice(self._ended, bisect_right(self._ended, since_ns, key=itemgetter(0)), None))
        unpacked = ((_unpacked(packed), seen_ns) for _, seen_ns, packed in ended)
        return ((waits.begun_by(until_ns), seen_ns) for waits, seen_ns in chain([(some, latest.at_ns)], unpacked))


def _unpacked(packed: bytes) -> WaitList:
    where, how = columns.decompressed(packed)
    return waits_of(where, how)


def by_thread(some: Stuck) -> dict[ThreadKey, Age]:
    if some.shares is None:
        return {}
    return {thread_of(code): age for code, age in some.oldest(thread_codes(some.shares.ids))}


def by_process(some: Stuck) -> dict[int, Age]:
    return dict(some.oldest(some.shares.ids[:, 0])) if some.shares else {}


def by_wake(some: Stuck) -> dict[tuple[int, ...], Age]:
    """Return the oldest wait by wake, oldest first."""
    return {(wake,): age for wake, age in some.oldest(some.shares.ids[:, 4])} if some.shares else {}


def by_site(some: Stuck) -> dict[tuple[int, ...], Age]:
    """Return the oldest wait by row of breakdown.sites_of, oldest first."""
    if some.shares is None:
        return {}
    sites, which = sites_of(some.shares)
    return {sites[number]: age for number, age in some.oldest(which)}


def by_cgroup(some: Stuck, group_of: Callable[[int], str]) -> dict[str, Age]:
    ages: dict[str, Age] = {}
    for pid, age in by_process(some).items():  # oldest first
        ages.setdefault(group_of(pid), age)
    return ages


def by_place(some: Stuck, places: Callable[[Ints], Ints]) -> dict[tuple[int, ...], Age]:
    """Return the oldest wait by place, oldest first.

    The user stack is the one that the time will be counted at. `places` maps sites' ids to places (steps.places).
    """
    distinct, which = distinct_rows(places(WaitList.of(some.waits).sites))
    return {distinct[number]: age for number, age in some.oldest(which)}


def by_category(some: Stuck) -> dict[str, Age]:
    if some.shares is None:
        return {}
    ages: dict[str, Age] = {}
    for leaf, age in some.oldest(some.shares.leaf):
        ages.setdefault(some.shares.leaves[leaf].category, age)
    return ages
