"""Breakdown of a Window's time by category, and within that by process, thread or location.

Categories partition off-CPU time. The blocked part of a site goes to the category of its kernel stack, the run-queue
part to `run-queue`. Waits below the minimum go to `short` and `run-queue`. Filtered waits go to `filtered` with all of
their time: with `--state D`, a thread that was preempted does not count as ready. There is one more exception: a thread
whose cgroup used up its CPU quota is runnable in the kernel's terms, but no CPU is missing, so a `throttle` site keeps
all of its time. The sum over categories is exactly the sum over threads.

Each wait is counted in one category, too: under `run-queue` if the site was only ever runnable (a preempted thread),
under `short` if it was short, otherwise under its leaf.

A window is broken down once into small tables by category and by process, so that a rolling span sums up tables of
hundreds of entries, not windows of thousands. Tables of threads and locations have thousands of entries and are built
on request.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np

from offtop.model.values import histogram as log2
from offtop.model.values import stack
from offtop.model.values.catalog import SiteKey, ThreadKey
from offtop.model.values.snapshot import EXITED, ThreadTotals
from offtop.model.values.table import (
    MAX_NS,
    NO_SITES,
    RUNQUEUE_NS,
    SITES,
    THREADS,
    TOTAL_NS,
    WAITS,
    Groups,
    Ints,
    Mask,
    SiteKeys,
    distinct_rows,
    in_order,
    integers,
    lanes_of,
    rows_at,
    table_of,
    thread_codes,
)
from offtop.model.values.wake import NO_WAKE
from offtop.model.windows.idle_by_rule import IDLE, NOT_IDLE, NOTHING_BY_RULE, SLEEPS, IdleByRule
from offtop.model.windows.window import Window

RUN_QUEUE = "run-queue"
SHORT = "short"
FILTERED = "filtered"
"""Waits excluded by --max and --state: a category only while one of them is set."""
THROTTLE = "throttle"
STOPPED = "stopped"
SLEEP = "sleep"
"""The only category in which single sites are idle: those whose waits are periodic."""
ALL = ""
"""Stands for every category."""
_PID_MASK = (1 << 32) - 1
G = TypeVar("G")


class Idle(NamedTuple):
    """Which waits count as idle."""

    categories: Collection[str] = frozenset[str]()
    """Categories that are always idle."""
    periodic: SiteKeys = NO_SITES
    """Sites where threads sleep that are periodic. One window is not enough to decide that; History does."""
    by_rule: IdleByRule = NOTHING_BY_RULE
    """What rules say about sites, whatever their category. They override the categories and what is periodic."""
    standing: SiteKeys = NO_SITES
    """Sites of standing waits (classify.standing): the blocked time of a wait in progress there is idle, that of waits
    that ended is not."""

    def is_periodic(self, ids: Ints) -> Mask:
        """Return which of `ids` (n, 4), sites where threads sleep, are idle.

        A sleep in progress has no user stack and so a site of its own; it is idle if others of its thread are.
        """
        found = self.periodic.mask(ids)
        in_progress = np.flatnonzero((ids[:, 3] == stack.NO_STACK) & (ids[:, 1] != EXITED.tid) & ~found)
        found[in_progress] = np.isin(thread_codes(ids[in_progress]), thread_codes(self.periodic.ids))
        return found


class Leaf(NamedTuple):
    """A part of off-CPU time: a category, idle or not."""

    category: str
    idle: bool = False
    standing: bool = False
    """Idle because the wait is standing (classify.standing), although other waits of the category are not idle."""

    @property
    def is_idle_kind(self) -> bool:
        """Whether such waits are idle however long they last."""
        return self.idle and not self.standing


class Part(NamedTuple):
    """Time and waits of a part of a window, for example of one row of a list."""

    waits: int = 0
    """Finished waits; from the minimum up, except in `short`."""
    total_ns: int = 0
    max_ns: int = 0
    """Longest finished wait from the minimum up."""
    histogram: int = 0
    """Of finished waits from the minimum up."""

    def plus(self, other: "Part") -> "Part":
        return Part(
            self.waits + other.waits,
            self.total_ns + other.total_ns,
            max(self.max_ns, other.max_ns),
            self.histogram + other.histogram,
        )


NO_PART = Part()
PartTuple = tuple[int, int, int, int]
"""A Part as a plain tuple, which costs a third as much in tables with thousands of entries."""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Breakdown of a window by category and process: small, and enough for most screens."""

    span_ns: int = 0
    categories: Mapping[Leaf, Part] = field(default_factory=dict[Leaf, Part])
    processes: Mapping[Leaf, Mapping[int, Part]] = field(default_factory=dict[Leaf, Mapping[int, Part]])
    """Leaf → pid → its part; pid 0 stands for threads that have exited since."""
    tops: Mapping[Leaf, Mapping[int, tuple[int, SiteKey]]] = field(
        default_factory=dict[Leaf, Mapping[int, tuple[int, SiteKey]]]
    )
    """Leaf → pid → the most time at one site, and that site; only for a single window."""


class Scope(NamedTuple):
    """Which waits a table covers. Filtered waits are only in the scope of their own category."""

    category: str = ALL
    pid: int | None = None
    tid: int | None = None
    idle: bool = True
    """Whether idle waits are included."""
    blocked: bool = False
    """Exclude run-queue time, unless it is the category: it follows a wakeup."""

    def holds(self, leaf: Leaf) -> bool:
        if self.blocked and leaf.category == RUN_QUEUE != self.category:
            return False
        of_all = self.category == ALL and leaf.category != FILTERED
        return (of_all or self.category == leaf.category) and (self.idle or not leaf.idle)


class Place(NamedTuple):
    """A location, without the thread that waited there."""

    kernel: int
    """Stack id; in wakeup mode the pid of the woken process."""
    user: int
    """Stack id; in wakeup mode 0."""
    wake: int = 0
    """Wake id; in off-CPU mode 0."""


def total(parts: Iterable[PartTuple]) -> Part:
    """Return the sum of `parts`."""
    waits = total_ns = max_ns = histogram = 0
    for more_waits, more_ns, longest_ns, more_histogram in parts:
        waits += more_waits
        total_ns += more_ns
        if longest_ns > max_ns:
            max_ns = longest_ns
        histogram += more_histogram
    return Part(waits, total_ns, max_ns, histogram)


class Shares(NamedTuple):
    """All off-CPU time of a window in rows, each of one leaf; every breakdown is made of them.

    The first rows are the window's sites, in its order; only those have histograms.
    """

    leaves: Sequence[Leaf]
    leaf: Ints
    """Index into `leaves`, for each row."""
    ids: Ints
    """(n, 5) as in SiteKey; rows of short and filtered waits have SHORT and FILTERED as kernel stack."""
    waits: Ints
    total_ns: Ints
    max_ns: Ints
    counts: Ints
    """(m, 3) The histograms: row, lane, and how many waits; lanes without a wait are left out."""

    def of(self, rows: Mask) -> "Shares":
        if rows.all():
            return self
        chosen = np.flatnonzero(rows)
        counts = rows_at(self.counts, rows[self.counts[:, 0]])
        counts[:, 0] = np.searchsorted(chosen, counts[:, 0])
        return Shares(
            self.leaves,
            self.leaf[chosen],
            rows_at(self.ids, chosen),
            self.waits[chosen],
            self.total_ns[chosen],
            self.max_ns[chosen],
            counts,
        )

    def in_scope(self, scope: "Scope") -> "Shares":
        return self.of(self.mask(scope))

    def mask(self, scope: "Scope") -> Mask:
        """Return which rows are in `scope`."""
        wanted = np.array([scope.holds(leaf) for leaf in self.leaves], np.bool_)[self.leaf]
        if scope.pid is not None:
            wanted &= self.ids[:, 0] == scope.pid
        if scope.tid is not None:
            wanted &= self.ids[:, 1] == scope.tid
        return wanted

    def by(self, codes: Ints) -> Iterator[tuple[int, PartTuple]]:
        """Return the sum for each distinct code; `codes` has one for each row."""
        every, counts = Groups(codes), self.counts.copy()
        counts[:, 0] = every.of_rows[counts[:, 0]]
        lanes = lanes_of(counts, len(every.codes))
        waits, total_ns, max_ns = every.sums(self.waits), every.sums(self.total_ns), every.maxima(self.max_ns)
        parts = zip(waits.tolist(), total_ns.tolist(), max_ns.tolist(), log2.of_lanes(lanes), strict=True)
        return zip(every.codes.tolist(), parts, strict=True)

    def top_sites(self, codes: Ints) -> Iterator[tuple[int, int, SiteKey]]:
        """Return for each code the kernel stack with the most time: that time, and one of its sites.

        Of the user stacks at that kernel stack, the site is at the one with the most time; known ones are preferred.
        """
        placed = np.flatnonzero((self.ids[:, 2] != stack.SHORT) & (self.ids[:, 2] != stack.FILTERED))
        if not len(placed):
            return iter(())
        codes, kernel, user, ns = codes[placed], self.ids[placed, 2], self.ids[placed, 3], self.total_ns[placed]
        order, _ = in_order(np.column_stack((codes, kernel, user, ns)))
        codes, kernel, user = codes[order], kernel[order], user[order]
        ends, sums_ns = _sums_of_runs((codes, kernel, user), ns[order])
        codes, kernel, user, best = codes[ends], kernel[ends], user[ends], placed[order][ends]
        order = np.lexsort((sums_ns, user != stack.NO_STACK, kernel, codes))
        codes, kernel, best = codes[order], kernel[order], best[order]
        ends, sums_ns = _sums_of_runs((codes, kernel), sums_ns[order])
        codes, best = codes[ends], best[ends]
        order = np.lexsort((sums_ns, codes))
        last = order[np.append(codes[order][1:] != codes[order][:-1], True)]
        sites = map(SITES.key, self.ids[best[last]].tolist())
        return zip(codes[last].tolist(), sums_ns[last].tolist(), sites, strict=True)


def _sums_of_runs(columns: Sequence[Ints], ns: Ints) -> tuple[Ints, Ints]:
    """Return the last row of each run of equal `columns`, and the sum of `ns` over it."""
    changes = np.zeros(len(ns) - 1, np.bool_)
    for column in columns:
        changes |= column[1:] != column[:-1]
    ends = np.append(np.flatnonzero(changes), len(ns) - 1)
    return ends, np.add.reduceat(ns, np.append(0, ends[:-1] + 1))


def shares(window: Window, idle: Idle) -> Shares:
    """Distribute the time of `window` over the leaves."""
    numbers_of: dict[Leaf, int] = {}

    def number(leaf: Leaf) -> int:
        return numbers_of.setdefault(leaf, len(numbers_of))

    run_queue = number(Leaf(RUN_QUEUE))
    sites = table_of(SITES, window.sites)
    numbers, count, still = sites.numbers, len(sites.ids), window.still.ids
    placed = np.concatenate((sites.ids, still))
    stacks, which = distinct_rows(placed[:, 2:3])
    categories = [window.catalog.stack(one).category for (one,) in stacks]
    leaf = np.array([number(Leaf(c, c in idle.categories)) for c in categories], np.int64)[which]
    by_rule = idle.by_rule.of(placed)
    asleep = np.flatnonzero(np.array([c == SLEEP for c in categories], np.bool_)[which] | (by_rule == SLEEPS))
    periodic = asleep[idle.is_periodic(placed[asleep])] if len(asleep) and len(idle.periodic) else asleep[:0]
    for rows, is_idle in (
        (periodic, True),
        (np.flatnonzero(by_rule == IDLE), True),
        (np.flatnonzero(by_rule == NOT_IDLE), False),
    ):
        if len(rows):
            leaf[rows] = np.array([number(Leaf(c, is_idle)) for c in categories], np.int64)[which[rows]]

    throttled = np.array([c == THROTTLE for c in categories], np.bool_)[which[:count]]
    total_ns, ready_ns = numbers[:, TOTAL_NS], np.where(throttled, 0, numbers[:, RUNQUEUE_NS])
    only_ready = (ready_ns != 0) & (ready_ns == total_ns)
    # Of a longer wait only the end is in this window. If that wait was for a CPU, its stack says so.
    only_ready &= (numbers[:, WAITS] == 0) | (numbers[:, MAX_NS] <= total_ns)
    leaf[:count][only_ready] = run_queue
    ready_ns[only_ready] = 0
    ready = np.flatnonzero(ready_ns)

    threads = table_of(THREADS, window.threads)
    of_thread = dict(zip(ThreadTotals._fields, threads.numbers.T, strict=False))
    short_ready_ns = of_thread["short_runqueue_ns"]
    no_waits = np.zeros(len(threads.ids), np.int64)
    of_threads = [
        (number(Leaf(SHORT)), stack.SHORT, of_thread["short_waits"], of_thread["short_ns"] - short_ready_ns),
        (number(Leaf(FILTERED)), stack.FILTERED, no_waits, of_thread["filtered_ns"]),
        (run_queue, stack.SHORT, no_waits, short_ready_ns),
    ]
    rows = [
        (
            leaf,
            placed,
            np.append(numbers[:, WAITS], np.zeros(len(still), np.int64)),
            np.append(total_ns - ready_ns, np.full(len(still), window.span_ns)),
        ),
        (np.full(len(ready), run_queue), sites.ids[ready], np.zeros(len(ready), np.int64), ready_ns[ready]),
    ]
    for number_of_leaf, kernel, waits, ns in of_threads:
        some = np.flatnonzero((waits != 0) | (ns != 0))
        ids = np.full((len(some), SITES.width), stack.NO_STACK)
        ids[:, :2], ids[:, 2] = threads.ids[some], kernel
        rows.append((np.full(len(some), number_of_leaf), ids, waits[some], ns[some]))
    leaf, ids, waits, ns = (np.concatenate(column) for column in zip(*rows, strict=True))
    max_ns = np.zeros(len(leaf), np.int64)
    max_ns[:count] = numbers[:, MAX_NS]
    counts = sites.counts
    return with_standing(Shares(list(numbers_of), leaf, ids, waits, ns, max_ns, counts), idle.standing)


def with_standing(every: Shares, standing: SiteKeys) -> Shares:
    """Return `every`, but count the blocked time of waits in progress at `standing` as idle, too."""
    if not len(standing):
        return every
    may = np.array([not leaf.idle and leaf.category != RUN_QUEUE for leaf in every.leaves], np.bool_)[every.leaf]
    rows = np.flatnonzero(may & (every.waits == 0) & standing.mask(every.ids))
    standing_leaves = [leaf._replace(idle=True, standing=True) for leaf in every.leaves]
    leaf = every.leaf.copy()
    leaf[rows] += len(every.leaves)
    return every._replace(leaves=[*every.leaves, *standing_leaves], leaf=leaf)


def without_standing(every: Shares) -> Shares:
    """Return `every`, but without counting standing waits as idle."""
    return every._replace(leaves=[Leaf(leaf.category, leaf.is_idle_kind) for leaf in every.leaves])


def leaf_of_sites(window: Window, idle: Idle) -> dict[SiteKey, Leaf]:
    """Return the leaf of the blocked time of each site.

    It is `run-queue` if the site was only ever runnable.
    """
    every = shares(window, idle)
    count = len(window.sites) + len(window.still)
    numbers: list[int] = every.leaf[:count].tolist()
    sites = map(SITES.key, every.ids[:count].tolist())
    return {site: every.leaves[number] for site, number in zip(sites, numbers, strict=True)}


def break_down(window: Window, idle: Idle) -> Breakdown:
    """Return the breakdown of `window` by category and process."""
    return breakdown_of(shares(window, idle), window.span_ns)


def breakdown_of(every: Shares, span_ns: int) -> Breakdown:
    """Return the breakdown by category and process of `every`, over `span_ns`."""
    codes = every.leaf << 32 | every.ids[:, 0]
    processes: dict[Leaf, dict[int, Part]] = {}
    for code, part in every.by(codes):
        processes.setdefault(every.leaves[code >> 32], {})[code & _PID_MASK] = Part(*part)
    tops: dict[Leaf, dict[int, tuple[int, SiteKey]]] = {}
    for code, ns, site in every.top_sites(codes):
        tops.setdefault(every.leaves[code >> 32], {})[code & _PID_MASK] = ns, site
    return Breakdown(span_ns, {leaf: total(by_pid.values()) for leaf, by_pid in processes.items()}, processes, tops)


def merged(breakdowns: Sequence[Breakdown]) -> Breakdown:
    """Return the sum of `breakdowns`."""
    if len(breakdowns) == 1:
        return breakdowns[0]
    parts: defaultdict[Leaf, defaultdict[int, list[Part]]] = defaultdict(lambda: defaultdict(list))
    for one in breakdowns:
        for leaf, by_pid in one.processes.items():
            table = parts[leaf]
            for pid, part in by_pid.items():
                table[pid].append(part)
    processes = {leaf: {pid: total(all_) for pid, all_ in by_pid.items()} for leaf, by_pid in parts.items()}
    categories = {leaf: total(by_pid.values()) for leaf, by_pid in processes.items()}
    return Breakdown(sum(one.span_ns for one in breakdowns), categories, processes)


def by_category(one: Breakdown, idle_shown: bool = True, filtered_shown: bool = True) -> dict[str, Part]:
    """Return category → time, optionally without idle and filtered time."""
    table: dict[str, Part] = {}
    for leaf, part in one.categories.items():
        if (idle_shown or not leaf.idle) and (filtered_shown or leaf.category != FILTERED):
            was = table.get(leaf.category)
            table[leaf.category] = part if was is None else was.plus(part)
    return table


def by_process(one: Breakdown, scope: Scope) -> dict[int, Part]:
    """Return pid → its time in `scope`."""
    table: dict[int, Part] = {}
    for leaf, by_pid in one.processes.items():
        if scope.holds(leaf):
            for pid, part in by_pid.items():
                was = table.get(pid)
                table[pid] = part if was is None else was.plus(part)
    return table


def by_thread(every: Shares, scope: Scope) -> dict[tuple[int, ...], PartTuple]:
    """Return (pid, tid) → its time in `scope`."""
    some = every.in_scope(scope)
    return {(code >> 32, code & _PID_MASK): part for code, part in some.by(thread_codes(some.ids))}


def by_place(every: Shares, scope: Scope, places: Callable[[Ints], Ints]) -> dict[tuple[int, ...], PartTuple]:
    """Return the time in `scope` by location; `places` maps the rows' ids to locations (steps.places).

    Waits below the minimum and filtered ones have no stack, so they are left out.
    """
    some = every.in_scope(scope)
    some = some.of((some.ids[:, 2] != stack.SHORT) & (some.ids[:, 2] != stack.FILTERED))
    distinct, codes = distinct_rows(places(some.ids))
    return {distinct[code]: part for code, part in some.by(codes)}


def by_site(every: Shares, scope: Scope) -> dict[tuple[int, ...], PartTuple]:
    """Return the time in `scope` by row of `sites_of`."""
    some = every.in_scope(scope)
    sites, which = sites_of(some)
    return {sites[number]: part for number, part in some.by(which)}


def sites_of(some: Shares) -> tuple[list[tuple[int, ...]], Ints]:
    """Return the distinct sites of the rows, and for each row the index of its site.

    A site here is (kernel stack, user stack, wake, pid). Run-queue time is at stack.QUEUED.
    """
    if not len(some.ids):
        return [], np.zeros(0, np.int64)
    queued = np.array([leaf.category == RUN_QUEUE for leaf in some.leaves], np.bool_)[some.leaf]
    places = some.ids[:, 2:5].copy()
    places[queued] = stack.QUEUED, stack.NO_STACK, NO_WAKE
    return distinct_rows(np.column_stack((places, some.ids[:, 0])))


def top_of_threads(every: Shares, scope: Scope, keys: Collection[ThreadKey]) -> dict[ThreadKey, SiteKey]:
    """Return for each of these threads the site in `scope` with most of its time.

    Threads that did not wait are left out.
    """
    some = every.in_scope(scope)
    some = some.of(np.isin(thread_codes(some.ids), thread_codes(integers([*keys], 2))))
    return {site.thread: site for _, ns, site in some.top_sites(thread_codes(some.ids)) if ns > 0}


def top_of_groups(one: Breakdown, scope: Scope, group_of: Mapping[int, G]) -> dict[G, SiteKey]:
    """Return for each group of processes, by pid, the site in `scope` at which one of them spent most time."""
    longest: dict[G, tuple[int, SiteKey]] = {}
    for leaf, by_pid in one.tops.items():
        if scope.holds(leaf):
            for pid, group in group_of.items():
                found = by_pid.get(pid)
                if found and found[0] > longest.get(group, (0, found[1]))[0]:
                    longest[group] = found
    return {group: site for group, (_, site) in longest.items()}
