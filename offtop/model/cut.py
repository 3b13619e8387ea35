"""A cut is a Window's time by category, and then by process, by thread or by place.

Categories partition off-CPU time. A site gives its blocked part to the category of its kernel stack and its
run-queue part to `run-queue`; waits below the minimum give theirs to `short` and `run-queue`, filtered ones
to `filtered` and `run-queue`. One exception: a thread that was put aside because its cgroup used up its CPU
quota is runnable by the kernel's words, but no CPU is missing; a `throttle` site keeps all of its time.
So the sum over categories is the sum over threads, exactly.

Each wait is counted in one category, too: a site that was only ever ready (a thread that was preempted)
counts its waits under `run-queue`, where its time is; short waits count under `short`; all others under
their leaf.

A window is cut once into small tables by category and by process, so that a rolling span adds up tables of
hundreds of entries, not windows of thousands. Threads and places are tables of thousands, made when asked.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from offtop.model.book import Book, SiteKey, ThreadKey
from offtop.model.snapshot import SiteTotals
from offtop.model.window import Window

RUN_QUEUE = "run-queue"
SHORT = "short"
FILTERED = "filtered"
"""What --max and --state leave out: a category only while one of them is set."""
THROTTLE = "throttle"
SLEEP = "sleep"
"""The one category that is idle-looking by its waits (periodic ones), not by its stacks."""
ALL = ""
"""Stands for every category."""


class Idle(NamedTuple):
    """What looks idle."""

    categories: Collection[str] = frozenset[str]()
    """Whatever their waits look like."""
    periodic: Collection[SiteKey] = frozenset[SiteKey]()
    """The sites of `sleep` that do; it takes more than one window to tell (History does)."""

    def leaf(self, category: str, key: SiteKey) -> "Leaf":
        return Leaf(category, category in self.categories or (category == SLEEP and key in self.periodic))


class Leaf(NamedTuple):
    """What a wait was for, and whether it looks idle: a part of off-CPU time."""

    category: str
    idle: bool = False


class Part(NamedTuple):
    """The time and the waits that fell to one row."""

    waits: int = 0
    """Finished; from the minimum up, but for `short`."""
    total_ns: int = 0
    max_ns: int = 0
    """The longest finished wait, from the minimum up."""
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
Added = tuple[int, int, int, int]
"""The four of a Part as a plain tuple: a third of the cost, for tables of thousands."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A window by category, and by category and process: small, and all that most screens need."""

    span_ns: int = 0
    categories: Mapping[Leaf, Part] = field(default_factory=dict[Leaf, Part])
    processes: Mapping[Leaf, Mapping[int, Part]] = field(default_factory=dict[Leaf, Mapping[int, Part]])
    """pid → its part of the category; pid 0 are threads that have exited since."""


class Scope(NamedTuple):
    """Which waits a table is about. What is filtered is in none but its own."""

    category: str = ALL
    pid: int | None = None
    tid: int | None = None
    idle: bool = True
    """Whether idle-looking waits are in it."""

    def holds(self, leaf: Leaf) -> bool:
        of_all = self.category == ALL and leaf.category != FILTERED
        return (of_all or self.category == leaf.category) and (self.idle or not leaf.idle)


class Place(NamedTuple):
    """Where, whoever it was."""

    kernel: int
    """Stack id."""
    user: int
    """Stack id."""


def total(parts: Iterable[Added]) -> Part:
    """All of `parts` as one."""
    waits = total_ns = max_ns = histogram = 0
    for more_waits, more_ns, longest_ns, more_histogram in parts:
        waits += more_waits
        total_ns += more_ns
        if longest_ns > max_ns:
            max_ns = longest_ns
        histogram += more_histogram
    return Part(waits, total_ns, max_ns, histogram)


class _Sum:
    """A Part while it grows."""

    __slots__ = ("histogram", "max_ns", "total_ns", "waits")

    def __init__(self) -> None:
        self.waits = 0
        self.total_ns = 0
        self.max_ns = 0
        self.histogram = 0

    def part(self) -> Part:
        return Part(self.waits, self.total_ns, self.max_ns, self.histogram)


class _Sums(dict[int, _Sum]):
    """pid → its sum, which begins at nothing."""

    def __missing__(self, pid: int) -> _Sum:
        made = self[pid] = _Sum()
        return made


def cut(window: Window, idle: Idle) -> Cut:
    """`window` by category and process."""
    tables: dict[Leaf, _Sums] = {}
    of_stack: dict[int, tuple[str, _Sums]] = {}
    ready = tables.setdefault(Leaf(RUN_QUEUE), _Sums())
    periodic_sleep = tables.setdefault(Leaf(SLEEP, True), _Sums())
    book, always, periodic = window.book, idle.categories, idle.periodic

    def look_up(kernel: int) -> tuple[str, _Sums]:
        category = book.stack(kernel).category
        entry = of_stack[kernel] = (category, tables.setdefault(Leaf(category, category in always), _Sums()))
        return entry

    for key, (waits, total_ns, runqueue_ns, max_ns, histogram) in window.sites.items():
        pid, _, kernel, _ = key
        category, by_pid = of_stack.get(kernel) or look_up(kernel)
        if category == SLEEP and key in periodic:
            by_pid = periodic_sleep
        if runqueue_ns and category != THROTTLE:
            if total_ns == runqueue_ns:
                by_pid = ready
            else:
                total_ns -= runqueue_ns
                ready[pid].total_ns += runqueue_ns
        row = by_pid[pid]
        row.waits += waits
        row.total_ns += total_ns
        row.histogram += histogram
        if max_ns > row.max_ns:
            row.max_ns = max_ns

    span_ns = window.span_ns
    for key in window.still:
        pid, _, kernel, _ = key
        category, by_pid = of_stack.get(kernel) or look_up(kernel)
        if category == SLEEP and key in periodic:
            by_pid = periodic_sleep
        by_pid[pid].total_ns += span_ns

    short = tables.setdefault(Leaf(SHORT), _Sums())
    filtered = tables.setdefault(Leaf(FILTERED), _Sums())
    for (pid, _), totals in window.threads.items():
        short_waits, short_ns, short_ready_ns, filtered_ns, filtered_ready_ns = totals[5:10]
        if short_waits or short_ns:
            row = short[pid]
            row.waits += short_waits
            row.total_ns += short_ns - short_ready_ns
        if filtered_ns:
            filtered[pid].total_ns += filtered_ns - filtered_ready_ns
        if short_ready_ns or filtered_ready_ns:
            ready[pid].total_ns += short_ready_ns + filtered_ready_ns

    processes = {leaf: {pid: row.part() for pid, row in by_pid.items()} for leaf, by_pid in tables.items() if by_pid}
    return Cut(span_ns, {leaf: total(by_pid.values()) for leaf, by_pid in processes.items()}, processes)


def merged(cuts: Sequence[Cut]) -> Cut:
    """The cut of all the windows that `cuts` are of."""
    if len(cuts) == 1:
        return cuts[0]
    categories: dict[Leaf, Part] = {}
    processes: dict[Leaf, dict[int, Part]] = {}
    for one in cuts:
        for leaf, part in one.categories.items():
            was = categories.get(leaf)
            categories[leaf] = part if was is None else was.plus(part)
        for leaf, by_pid in one.processes.items():
            table = processes.setdefault(leaf, {})
            for pid, part in by_pid.items():
                was = table.get(pid)
                table[pid] = part if was is None else was.plus(part)
    return Cut(sum(one.span_ns for one in cuts), categories, processes)


def by_category(one: Cut, idle_shown: bool = True, filtered_shown: bool = True) -> dict[str, Part]:
    """Category → its time, its idle-looking part left out unless `idle_shown`, what is filtered likewise."""
    table: dict[str, Part] = {}
    for leaf, part in one.categories.items():
        if (idle_shown or not leaf.idle) and (filtered_shown or leaf.category != FILTERED):
            was = table.get(leaf.category)
            table[leaf.category] = part if was is None else was.plus(part)
    return table


def by_process(one: Cut, scope: Scope) -> dict[int, Part]:
    """pid → its part of what is in `scope`."""
    table: dict[int, Part] = {}
    for leaf, by_pid in one.processes.items():
        if scope.holds(leaf):
            for pid, part in by_pid.items():
                was = table.get(pid)
                table[pid] = part if was is None else was.plus(part)
    return table


def site_parts(key: SiteKey, totals: SiteTotals, book: Book, idle: Idle) -> list[tuple[Leaf, Part]]:
    """What one site gives to which category: its blocked part, and its run-queue part where it has one."""
    waits, total_ns, runqueue_ns, max_ns, histogram = totals
    category = book.stack(key.kernel).category
    if runqueue_ns and category != THROTTLE:
        if total_ns == runqueue_ns:
            return [(Leaf(RUN_QUEUE), Part(waits, total_ns, max_ns, histogram))]
        blocked = Part(waits, total_ns - runqueue_ns, max_ns, histogram)
        return [(idle.leaf(category, key), blocked), (Leaf(RUN_QUEUE), Part(0, runqueue_ns))]
    return [(idle.leaf(category, key), Part(waits, total_ns, max_ns, histogram))]


class _StackIn(NamedTuple):
    """What a scope makes of a kernel stack."""

    wanted: bool
    throttled: bool
    asks: bool
    """Whether it also depends on which site it is."""


def by_thread(window: Window, scope: Scope, idle: Idle) -> dict[tuple[int, ...], Added]:
    """(pid, tid) → what fell to it in `window`, of the waits in `scope`."""
    table = _of_sites(window, scope, idle, slice(0, 2))
    wants_ready, wants_short = (scope.category in (ALL, c) for c in (RUN_QUEUE, SHORT))
    wants_filtered = scope.category == FILTERED
    if not (wants_ready or wants_short or wants_filtered):
        return table
    for who, totals in window.threads.items():
        short_waits, short_ns, short_ready_ns, filtered_ns, filtered_ready_ns = totals[5:10]
        if not (short_waits or short_ns or filtered_ns) or (scope.pid is not None and who.pid != scope.pid):
            continue
        waits = total_ns = 0
        if wants_short:
            waits, total_ns = short_waits, short_ns - short_ready_ns
        if wants_filtered:
            total_ns += filtered_ns - filtered_ready_ns
        if wants_ready:
            total_ns += short_ready_ns + filtered_ready_ns
        if waits or total_ns:
            was = table.get(who, NO_PART)
            table[who] = (was[0] + waits, was[1] + total_ns, was[2], was[3])
    return table


def by_place(window: Window, scope: Scope, idle: Idle) -> dict[tuple[int, ...], Added]:
    """(kernel, user) → what fell to that pair of stacks in `window`, of the waits in `scope`.

    Waits below the minimum and filtered ones have no stack, so they are in no place.
    """
    return _of_sites(window, scope, idle, slice(2, 4))


def _of_sites(window: Window, scope: Scope, idle: Idle, of_key: slice) -> dict[tuple[int, ...], Added]:
    """The time of sites in `scope`, added up by a part of their keys."""
    table: dict[tuple[int, ...], Added] = {}
    of_stack: dict[int, _StackIn] = {}
    book, periodic, wants_ready = window.book, idle.periodic, scope.category in (ALL, RUN_QUEUE)
    whose = None if scope.pid is None else (scope.pid,) if scope.tid is None else (scope.pid, scope.tid)
    whose_of_key = slice(0, len(whose or ()))

    def look_up(kernel: int) -> _StackIn:
        category = book.stack(kernel).category
        wanted = scope.holds(Leaf(category, category in idle.categories))
        asks = category == SLEEP and not scope.idle and bool(periodic)
        made = of_stack[kernel] = _StackIn(wanted, category == THROTTLE, asks)
        return made

    for key, (waits, total_ns, runqueue_ns, max_ns, histogram) in window.sites.items():
        if whose is not None and key[whose_of_key] != whose:
            continue
        wanted, throttled, asks = of_stack.get(key[2]) or look_up(key[2])
        if asks and key in periodic:
            wanted = False
        if runqueue_ns and not throttled:
            if total_ns == runqueue_ns:
                wanted = wants_ready
            elif not wanted and wants_ready:
                waits = max_ns = histogram = 0
                total_ns, wanted = runqueue_ns, True
            elif not wants_ready:
                total_ns -= runqueue_ns
        if not wanted:
            continue
        who = key[of_key]
        was = table.get(who)
        if was is None:
            table[who] = (waits, total_ns, max_ns, histogram)
        else:
            longest_ns = was[2]
            if max_ns > longest_ns:
                longest_ns = max_ns
            table[who] = (was[0] + waits, was[1] + total_ns, longest_ns, was[3] + histogram)

    span_ns = window.span_ns
    through = (0, span_ns, 0, 0)
    for key in window.still:
        if whose is not None and key[whose_of_key] != whose:
            continue
        wanted, _, asks = of_stack.get(key[2]) or look_up(key[2])
        if wanted and not (asks and key in periodic):
            who = key[of_key]
            was = table.get(who)
            table[who] = through if was is None else (was[0], was[1] + span_ns, was[2], was[3])
    return table


def tops(window: Window, scope: Scope, idle: Idle, whom: Collection[int | ThreadKey]) -> dict[int | ThreadKey, SiteKey]:
    """For each process or thread of `whom` that waited in `window`, the site in `scope` where it spent most time."""
    longest: dict[int | ThreadKey, tuple[int, SiteKey]] = {}
    pids = frozenset(who if isinstance(who, int) else who.pid for who in whom)
    of_process = frozenset(who for who in whom if isinstance(who, int))
    of_thread = frozenset(whom) - of_process
    through = SiteTotals(total_ns=window.span_ns)
    some = [(key, totals) for key, totals in window.sites.items() if key[0] in pids]
    some += [(key, through) for key in window.still if key[0] in pids]
    for key, totals in some:
        them: list[int | ThreadKey] = [key[0]] if key[0] in of_process else []
        if of_thread and key[:2] in of_thread:
            them.append(key.thread)
        for who in them:
            if totals[1] > longest.get(who, (0, key))[0]:
                in_scope = [p for leaf, p in site_parts(key, totals, window.book, idle) if scope.holds(leaf)]
                longest_ns = max((part.total_ns for part in in_scope), default=0)
                if longest_ns > longest.get(who, (0, key))[0]:
                    longest[who] = (longest_ns, key)
    return {who: key for who, (_, key) in longest.items()}
