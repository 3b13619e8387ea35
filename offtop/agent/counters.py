"""Counters: what all ticks so far add up to, for `/metrics`.

A tick is counted when the next one arrives: by then the cgroups of its processes are known, on which the label `unit`
depends, and so are most names of functions, on which the cause depends.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from offtop.agent.totals import Part, Program, ProgramTotals, Totals
from offtop.feed.source import Source
from offtop.model.aggregate.program import program_name
from offtop.model.aggregate.row_names import process_name
from offtop.model.aggregate.suspect_text import SuspectTexts
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.suspect import Found
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import Catalog
from offtop.model.values.container import label
from offtop.model.values.snapshot import EXITED, Cost, ThreadTotals
from offtop.model.values.table import THREADS, table_of
from offtop.model.windows.breakdown import ALL, RUN_QUEUE, THROTTLE, Scope, Shares, by_site
from offtop.model.windows.history import HistoryTick
from offtop.model.windows.stuck import Stuck
from offtop.printable import printable
from offtop.units import NS_PER_S

STUCK_NS = 10 * NS_PER_S
"""Age from which a wait in progress counts as stuck."""
_MOST_CHARACTERS = 64
"""Length of a label value."""
_UNKNOWN = "[unknown]"
_PREEMPTED_NS = ThreadTotals._fields.index("preempted_ns")


def label_value(text: str) -> str:
    """Return an untrusted text as the value of a label."""
    return printable(text)[:_MOST_CHARACTERS]


class StuckThreads(NamedTuple):
    threads: int = 0
    oldest_ns: int = 0
    """Age of the oldest of these waits."""


class SuspectLabels(NamedTuple):
    what: str
    """What is waited for: `the WAL flush`."""
    who: str
    """Program that waits."""
    held_by: str
    """Program that must act; empty: none is known."""


class Machine(NamedTuple):
    """Sums and states of the whole machine as of the newest tick."""

    ticks: int = 0
    taken_ns: int = 0
    """CLOCK_REALTIME."""
    cpus: int = 0
    """0: unknown."""
    probe: str = ""
    mode: str = ""
    cost: Cost = Cost()
    sampled: bool = False
    """Threads were polled: lengths of waits are upper bounds."""
    stuck: Mapping[str, StuckThreads] = {}
    """By category."""
    suspects: Mapping[SuspectLabels, float] = {}
    """Average threads that wait for it."""
    standing: int = 0


class Counters:
    """Not thread-safe."""

    def __init__(self, source: Source, causes: CauseFinder, most_series: int) -> None:
        self._source, self._causes = source, causes
        self._before: HistoryTick | None = None
        """The newest tick, which is not counted yet."""
        self.programs = ProgramTotals(most_series)
        """Time that is not idle."""
        self.idle = Totals[str]()
        """Idle time by category, in ns."""
        self.ended = Totals[tuple[str, int]]()
        """Waits that ended, from the minimum up, that are not idle: by category and lane of the histogram."""
        self.whole = Totals[str]()
        """Sums of the whole machine, in ns and counts, by the names below."""
        self.lost = Totals[str]()
        """Losses by kind."""
        self.now = Machine()

    def add(self, tick: HistoryTick, stuck: Stuck, found: Found) -> None:
        """Add the tick before `tick`, and take over what is true now from `tick`.

        `stuck`: the waits in progress at its end.
        """
        pids = {pid for leaf, by_pid in tick.breakdown.processes.items() if not leaf.idle for pid in by_pid}
        self._source.describe(pids - {EXITED.pid})
        earlier, self._before = self._before, tick
        if earlier is not None:
            self._count(earlier)
        window = tick.header
        self.now = Machine(
            ticks=self.now.ticks + 1,
            taken_ns=tick.taken_ns,
            cpus=window.machine.cpus,
            probe=window.probe,
            mode=window.mode,
            cost=window.cost,
            sampled=window.sampling is not None,
            stuck=_stuck_by_category(stuck),
            suspects=self._suspects(found, window.catalog),
            standing=found.standing,
        )

    def _count(self, tick: HistoryTick) -> None:
        window, breakdown = tick.window, tick.breakdown
        catalog = window.catalog
        for leaf, part in breakdown.categories.items():
            if leaf.idle:
                self.idle.add(leaf.category, part.total_ns)
                continue
            for lane, count in enumerate(log2.counts(part.histogram) if part.histogram else ()):
                if count:
                    self.ended.add((leaf.category, lane), count)
        self.programs.add(self._times(tick, catalog), tick.at_ns)
        self.whole.add("preempted", int(table_of(THREADS, window.threads).numbers[:, _PREEMPTED_NS].sum()))
        for name in (RUN_QUEUE, THROTTLE):
            parts = (part for leaf, part in breakdown.categories.items() if leaf.category == name)
            self.whole.add(name, sum(part.total_ns for part in parts))
        for kind, count in window.lost.items():
            self.lost.add(kind, count)
        cost = window.cost
        for name, percent in (("cpu", cost.cpu_pct), ("bpf", cost.bpf_pct)):
            if percent >= 0:
                self.whole.add(name, int(percent / 100 * tick.span_ns))
        if cost.switches >= 0:
            self.whole.add("switches", cost.switches)
        self.whole.add("thinned_waits", cost.thinned.waits)
        self.whole.add("thinned", cost.thinned.waits_ns)

    def _times(self, tick: HistoryTick, catalog: Catalog) -> dict[Program, Counter[Part]]:
        """Return what each program has waited in a tick, without idle waits: in ns, by category and by cause."""
        times: defaultdict[Program, Counter[Part]] = defaultdict(Counter)
        programs: dict[int, Program] = {}

        def program_of(pid: int) -> Program:
            found = programs.get(pid)
            if found is None:
                name, cgroup = program_name(process_name(pid, catalog)), catalog.detail(pid).cgroup
                found = programs[pid] = Program(label_value(name or _UNKNOWN), label_value(label(cgroup)))
            return found

        for leaf, by_pid in tick.breakdown.processes.items():
            if not leaf.idle:
                for pid, part in by_pid.items():
                    times[program_of(pid)][Part(leaf.category)] += part.total_ns
        for pid, why, ns in self._causes_of(tick.shares, catalog):
            times[program_of(pid)][Part(why=why)] += ns
        return {one: +parts for one, parts in times.items()}

    def _causes_of(self, shares: Shares, catalog: Catalog) -> Sequence[tuple[int, str, int]]:
        """Return (pid, id of the cause rule, ns) for all time that a rule explains."""
        sites = by_site(shares, Scope(ALL, idle=False))
        rules = self._causes.rules_at(sites, catalog)
        return [
            (site[3], rule.id, total_ns)
            for (site, (_, total_ns, _, _)), rule in zip(sites.items(), rules, strict=True)
            if rule
        ]

    def _suspects(self, found: Found, catalog: Catalog) -> Mapping[SuspectLabels, float]:
        texts = SuspectTexts(catalog, self._source.names, self._causes)
        waiting: defaultdict[SuspectLabels, float] = defaultdict(float)
        for one in found.suspects:
            name = one.name
            end = name.end if len(one.hops) > 1 else ""
            waiting[SuspectLabels(*map(label_value, (texts.waited_for(one), name.waiters, end)))] += one.waiting
        return waiting


def _stuck_by_category(stuck: Stuck) -> dict[str, StuckThreads]:
    """Return the waits of STUCK_NS or more that are not idle, by category."""
    found: dict[str, StuckThreads] = {}
    shares = stuck.of_age(lambda age_ns: age_ns >= STUCK_NS).shares
    if shares is None:
        return found
    leaves: list[int] = shares.leaf.tolist()
    ages: list[int] = shares.total_ns.tolist()
    for number, age_ns in zip(leaves, ages, strict=True):
        leaf = shares.leaves[number]
        if not leaf.idle:
            was = found.get(leaf.category, StuckThreads())
            found[leaf.category] = StuckThreads(was.threads + 1, max(was.oldest_ns, age_ns))
    return found
