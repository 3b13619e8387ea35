"""Suspects: threads and processes that others wait for, and how much harm that does.

A suspect is an end of the wait-for graph: others wait for it, and it waits for no other thread that is known. Standing
waits (standing.py) are left out, and so are suspects that do little harm: a quiet machine has none. The weights are
data, in `offtop/suspects.toml`, which explains them.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from offtop.model.classify.standing import LOCK, WaitsOfTick
from offtop.model.classify.suspect_weights import Weights
from offtop.model.classify.wait_edges import Edge, Floats, Passed
from offtop.model.classify.wait_graph import IDLE, LOCKS, RUNS, Node
from offtop.model.values.blockers import ANSWER, UPSTREAM
from offtop.model.values.catalog import SiteKey, ThreadKey
from offtop.model.values.snapshot import Snapshot
from offtop.model.values.table import Ints
from offtop.model.windows.breakdown import RUN_QUEUE, THROTTLE

HOLDER, DEADLOCK, LOOP, CPU, QUOTA, WAIT = "holder", "deadlock", "loop", "cpu", "quota", "wait"
KINDS: Mapping[str, str] = {
    HOLDER: "others wait for what it holds, or for what it must do",
    DEADLOCK: "threads that wait for each other's locks",
    LOOP: "threads that wait for each other, not only for locks",
    CPU: "others wait for a CPU while it runs",
    QUOTA: "its cgroup has used up its CPU quota",
    WAIT: "nothing is known to hold what these threads wait for",
}
_LEAST = 0.01
"""Harm from which the chain to an end is computed, and number of threads from which a process is named."""
_MOST_ENDS = 20
"""Maximum number of ends whose chains are computed, most harm first."""
_MOST_LEVELS = 8
_AT_ADDRESS = (ANSWER, UPSTREAM)
_KERNEL_THREADS = frozenset({"kthread", "ret_from_fork", "ret_from_fork_asm"})
_HOG_SHARE, _VICTIM_SHARE = 0.5, 0.5
"""A program with at least the first share of all running time is accused if another one waits for a CPU for at least
the second share of the time in which it wants one."""
_MENTIONED_SHARE = 0.05
"""Of all that wait for a CPU: programs below are not counted in the sentence."""
_LEAST_CPU = 1.0
"""It is accused only if at least so many threads wait for a CPU, on average."""


class Hop(NamedTuple):
    """Threads in a chain that do the same."""

    key: ThreadKey
    """The one with the oldest wait; tid 0: some thread of the process."""
    program: str
    """Raw. An address if it is not on this machine, or the name of a disk; `key` is (0, 0) then."""
    threads: int
    pids: int
    """Number of their processes."""
    state: str
    """Category of their wait, `runs` or `idle`."""
    site: SiteKey | None
    """Where that thread waits; None if it is not known to be in one long wait."""
    age_ns: int
    """Of the oldest wait; 0: unknown."""
    title: str = ""
    """Title of its process. Raw."""
    via: str = ""
    """How it is known that the next hop must act: one of blockers.VIA; empty for the last hop."""
    is_exact: bool = True
    what: str = ""
    """Name of the object that the next hop holds. Raw."""
    unread: int = 0
    """How many other threads of the program are at a lock, with no function of theirs known yet: they may wait for the
    same."""
    others: int = 0
    """How many other programs have threads that wait for the same."""


class SuspectName(NamedTuple):
    """Identifies a suspect at another time, when its processes may have other PIDs. All texts are raw."""

    kind: str
    """One of KINDS."""
    waiters: str
    """Program of the threads at the start of the chain."""
    category: str
    """Category of their wait."""
    end: str
    """Program that must act."""
    what: str
    """Name of the object that it holds; empty if there is none."""

    @property
    def text(self) -> str:
        """Return `flock (lock) behind sleep for job.lock`."""
        if self.kind in (DEADLOCK, LOOP):
            return f"{self.waiters} and {self.end} ({self.kind})"
        behind = f" behind {self.end}" if self.kind in (HOLDER, CPU) else ""
        return f"{self.waiters} ({self.category}){behind}{f' for {self.what}' if self.what else ''}"


class Suspect(NamedTuple):
    kind: str
    """One of KINDS."""
    hops: tuple[Hop, ...]
    """From the threads that nobody waits for to the one that must act. For a deadlock, its threads: each waits for the
    next."""
    waiting: float
    """Average number of threads that wait for it, directly or not."""
    harm: float
    """Less than `plain_harm` if such waits are usual on this machine."""
    plain_harm: float = 0.0
    since_ns: int = 0
    """CLOCK_REALTIME of the first tick in which it was a suspect."""
    lasted_ns: int = 0
    """How long ago that was. The waits may be shorter, if threads wait again and again."""

    @property
    def end(self) -> Hop:
        return self.hops[-1]

    @property
    def is_likely(self) -> bool:
        """Whether a hop is not exact."""
        return not all(one.is_exact for one in self.hops)

    @property
    def age_ns(self) -> int:
        """Age of the oldest wait for it, or of its own if there is none."""
        return max(one.age_ns for one in self.hops[:-1] or self.hops)

    @property
    def key(self) -> tuple[str, ...]:
        """Equal at all ticks of one incident."""
        return self.kind, self.end.program, self.end.state, self._what, self.hops[0].program

    @property
    def last(self) -> tuple[str, ...]:
        """The program that must act, and what it does."""
        return "last", self.end.program, self.end.state, self._what

    @property
    def waiters(self) -> tuple[str, ...]:
        """Program and wait at the start of the chain."""
        return self.hops[0].program, self.hops[0].state

    @property
    def name(self) -> SuspectName:
        first, last = self.hops[0].program, self.end.program
        if self.kind in (DEADLOCK, LOOP):  # any of them may be the first
            first, last = min(one.program for one in self.hops), max(one.program for one in self.hops)
        return SuspectName(self.kind, first, self.hops[0].state, last, self._what)

    @property
    def _what(self) -> str:
        """Name of the object that is held. An address does not count as a name, because it differs from run to run."""
        names = (one.what for one in reversed(self.hops) if one.via not in _AT_ADDRESS)
        return next((name for name in names if name not in ("", self.end.program)), "")


class Found(NamedTuple):
    """The suspects at one moment."""

    suspects: Sequence[Suspect] = ()
    """Most harm first."""
    standing: int = 0
    """Standing waits."""
    as_usual: Sequence[Suspect] = ()
    """Suspects that are left out because such waits are usual."""


NOTHING_FOUND = Found()
Usual = Mapping[tuple[str, str], float]
"""(raw program, category) → average number of threads that wait that way when all is well."""
_NOTHING: Usual = {}
_FORGOTTEN_TICKS = 10
"""A suspect that returns after this many ticks is a new one."""


class SuspectFinder:
    """Finds the suspects of each tick, of one source. Not thread-safe."""

    def __init__(self, weights: Weights, usual: Usual = _NOTHING) -> None:
        self._weights, self.usual = weights, usual
        self._latest: deque[Mapping[tuple[str, ...], tuple[float, float]]] = deque(maxlen=weights.ticks)
        """Key → harm and plain harm."""
        self._since: dict[SuspectName, tuple[int, int, int]] = {}
        """Name → when it became a suspect (CLOCK_REALTIME, CLOCK_MONOTONIC), and the last tick in which it was one."""
        self._shown: Sequence[Suspect] = ()
        """The suspects of the last tick. One of short waits, which happen to be over at the end of this tick, stays as
        long as its average harm does."""
        self._ticks = 0
        self._epoch = -1

    def tick(self, waits: WaitsOfTick) -> Found:
        """Return the suspects at the end of the tick of `waits`."""
        epoch = waits.snapshot.epoch
        if epoch != self._epoch:
            self._epoch = epoch
            self._latest.clear()
            self._since.clear()
            self._shown = []
        found = _Ends(waits, self._weights, self.usual).found()
        worst = {one.key: one for one in reversed(found.suspects)}
        harms_now = {key: (one.harm, one.plain_harm) for key, one in worst.items()}
        of_waiters = {one.waiters: (one.harm, one.plain_harm) for one in reversed(found.suspects)}
        of_ends = {one.last: (one.harm, one.plain_harm) for one in reversed(found.suspects)}
        self._latest.append(of_waiters | of_ends | harms_now)
        # One with little harm now would take over the average of another suspect of its program: a main thread that
        # waits for its workers, that of the workers.
        found_now = [one for one in worst.values() if one.plain_harm * self._weights.ticks >= self._weights.harm]
        programs_now = {one.hops[0].program for one in found_now}
        kept = [
            one
            for one in self._shown
            if one.age_ns < self._weights.least_age_ns and one.hops[0].program not in programs_now
        ]
        were_shown = {one.key for one in self._shown}
        shown: list[Suspect] = []
        as_usual: list[Suspect] = []
        for one in [*found_now, *kept]:
            # The end of a chain may become known some ticks after the waiters, and its start some ticks after the end.
            keys = one.key, one.last, one.waiters
            harms = [next((tick[key] for key in keys if key in tick), (0.0, 0.0)) for tick in self._latest]
            harm, plain_harm = (sum(column) / len(harms) for column in zip(*harms, strict=True))
            is_steady = len(harms) == self._weights.ticks and all(plain for _, plain in harms)
            is_steady |= one.key in were_shown
            if plain_harm >= self._weights.harm and (one.age_ns >= self._weights.least_age_ns or is_steady):
                listed = shown if harm >= self._weights.harm else as_usual
                listed.append(one._replace(harm=harm, plain_harm=plain_harm))
        self._shown = shown
        shown = sorted(shown, key=lambda one: -one.harm)
        shown = self._with_begin(shown[: self._weights.most], waits.snapshot)
        return Found(shown, found.standing, tuple(as_usual))

    def _with_begin(self, shown: Sequence[Suspect], now: Snapshot) -> list[Suspect]:
        self._ticks += 1
        known = {name: at for name, at in self._since.items() if at[2] >= self._ticks - _FORGOTTEN_TICKS}
        found: list[Suspect] = []
        for one in shown:
            taken_ns, at_ns, _ = known.get(one.name, (now.taken_ns, now.at_ns, 0))
            known[one.name] = taken_ns, at_ns, self._ticks
            found.append(one._replace(since_ns=taken_ns, lasted_ns=now.at_ns - at_ns))
        self._since = known
        return found


class _Ends:
    """Finds the suspects of one tick: ends of the wait-for graph, and programs that keep a CPU or wait for a quota."""

    def __init__(self, waits: WaitsOfTick, weights: Weights, usual: Usual) -> None:
        self._waits = waits
        self._snapshot, self._catalog, self._graph = waits.snapshot, waits.snapshot.catalog, waits.graph
        self._activity, self._paths, self._via = waits.activity, waits.paths, waits.via
        self._weights, self._usual = weights, usual
        self._into = waits.graph.edges.into()
        self._unclear_pids = waits.waits.rows[np.flatnonzero(waits.is_unclear), 0]

    def found(self) -> Found:
        graph = self._graph
        waiting = np.where(self._waits.counts, graph.waiting, 0.0)
        waiting[self._waits.standing] = 0.0
        flow = self._paths.passed(waiting)
        plain = waiting * self._weight_of_rows(waiting)
        harm = self._paths.passed(plain)
        unusual = self._paths.passed(plain * self._unusual(plain, waiting)) if self._usual else harm
        in_loop = {loop[0]: loop for loop in self._paths.loops}
        groups = [(float(harm.ends[group].sum()), group) for group in self._folded(np.flatnonzero(harm.ends > _LEAST))]
        most = heapq.nlargest(_MOST_ENDS, groups)
        made = [
            _weighed(one, 1.0 if one.kind == DEADLOCK else float(unusual.ends[group].sum()) / amount)
            for amount, group in most
            if (one := self._suspect(flow, waiting, group, in_loop, amount))
        ]
        throttled = {one.end.program: one for one in self._throttled()}
        every = made + self._starved()
        for number, one in enumerate(every):
            own = throttled.pop(one.end.program, None) if one.end.state == THROTTLE else None
            if own:
                every[number] = one._replace(
                    waiting=one.waiting + own.waiting,
                    harm=one.harm + own.harm,
                    plain_harm=one.plain_harm + own.plain_harm,
                )
        every += throttled.values()
        return Found(sorted(every, key=lambda one: -one.harm), len(self._waits.standing))

    def _program(self, node: Node) -> str:
        return node.address or self._catalog.process(node.key.pid)

    def _weight_of_rows(self, own: Floats) -> Floats:
        found = np.zeros(len(own))
        rows = np.flatnonzero(own)
        self._waits.look_up(rows)
        alone = rows[~np.isin(rows, [*self._via])]
        first, which = self._waits.kinds(alone)
        weights = np.array([self._weight(row, self._graph.nodes.category(row), None) for row in first], np.float64)
        found[alone] = np.where(self._waits.is_unclear[alone], 0.0, weights[which])
        for row in self._via:
            if own[row]:
                found[row] = self._weight(row, self._graph.nodes.category(row), self._via[row])
        return found

    def _weight(self, row: int, state: str, via: str | None) -> float:
        """`via`: how it is known which thread must act; None if that is unknown."""
        if via is None and self._is_kernel_thread(row):
            return 0.0
        weight = self._weights.of(state, self._waits.rule(row), via is not None)
        return max(weight, self._weights.via.get(via or "", 0.0))

    def _unusual(self, harm: Floats, own: Floats) -> Floats:
        """Return the share of the waiting at each node that exceeds what is usual for the program and category."""
        parts = np.ones(len(own))
        sums: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        for row in np.flatnonzero(harm).tolist():
            node = self._graph.nodes[row]
            sums[self._program(node), node.state].append(row)
        for (program, category), rows in sums.items():
            parts[rows] = self._part_unusual(program, category, float(own[rows].sum()))
        return parts

    def _part_unusual(self, program: str, category: str, now: float) -> float:
        return max(0.0, now - self._usual.get((program, category), 0.0)) / now

    def _is_kernel_thread(self, row: int) -> bool:
        frames = self._catalog.stack(self._waits.place(row).kernel).frames
        return any(frame.name.partition("+")[0] in _KERNEL_THREADS for frame in frames[-2:])

    def _folded(self, ends: Ints) -> list[list[int]]:
        """Group ends that do the same or hold the same object."""
        groups: defaultdict[tuple[object, ...], list[Ints]] = defaultdict(list)
        held = {edge.target for edge in self._graph.edges.of_waits if edge.via in LOCKS}
        is_alike = ends < len(self._waits.idle)
        is_alike &= ~np.isin(ends, [*held])
        rows = ends[is_alike]
        first, which = self._waits.kinds(rows)
        order = np.argsort(which, kind="stable")
        for row, alike in zip(first, np.split(rows[order], np.flatnonzero(np.diff(which[order])) + 1), strict=False):
            rule = self._waits.rule(row)
            node = self._graph.nodes[row]
            groups[self._program(node), rule.name if rule else node.state].append(alike)
        others: list[int] = ends[~is_alike].tolist()
        for end in others:
            node = self._graph.nodes[end]
            what = next((one.what for _, one in self._into.get(end, ()) if one.what), "")
            name = ("held", what or end) if end in held else (self._program(node), node.state)
            groups[name].append(np.array([end]))
        return [np.sort(np.concatenate(some)).tolist() for some in groups.values()]

    def _suspect(
        self, flow: Passed, own: Floats, ends: list[int], in_loop: Mapping[int, tuple[int, ...]], harm: float
    ) -> Suspect | None:
        waiting = float(flow.ends[ends].sum())
        loop = next((in_loop[end] for end in ends if end in in_loop), None)
        if loop is not None:
            return self._of_loop(loop, waiting, harm)
        levels, edges, others = self._levels(flow, ends)
        holds = bool(edges) and edges[0].via in LOCKS
        last = self._hop(levels[0])
        factor = 1.0 if holds or len(levels) == 1 else self._end_factor(ends[0])
        if not harm * factor:
            return None
        hops = [last]
        for nodes, edge, many in zip(levels[1:], edges, others, strict=True):
            hop = self._hop(nodes)
            hops.append(hop._replace(via=edge.via, is_exact=edge.is_exact, what=edge.what, others=many))
        behind = waiting - float(own[ends].sum()) if edges else waiting
        return Suspect(HOLDER if edges else WAIT, tuple(reversed(hops)), behind, harm * factor)

    def _end_factor(self, end: int) -> float:
        node = self._graph.nodes[end]
        is_idle = node.row >= 0 and self._waits.idle[node.row] and node.state not in self._weights.end
        state = IDLE if is_idle else node.state
        rule = self._waits.rule(node.row) if state == IDLE and node.row >= 0 else None
        factor = self._weights.end.get(state, 1.0)
        return self._weights.idle.get(rule.general.id, factor) if rule else factor

    def _of_loop(self, loop: Sequence[int], waiting: float, harm: float) -> Suspect:
        edges = [self._graph.edges.between(node, after) for node, after in zip(loop, [*loop[1:], loop[0]], strict=True)]
        are_locks = all(one.via in LOCKS and one.is_exact for one in edges)
        hops = tuple(
            self._hop([node])._replace(via=edge.via, is_exact=edge.is_exact, what=edge.what)
            for node, edge in zip(loop, edges, strict=True)
        )
        return Suspect(
            DEADLOCK if are_locks else LOOP, hops, waiting, harm * (1.0 if are_locks else self._weights.end["loop"])
        )

    def _levels(self, flow: Passed, ends: list[int]) -> tuple[list[list[int]], list[Edge], list[int]]:
        """Return the waiting nodes, level by level from the ends, with the edge from each level to the next.

        At each level, only those of the same program in the same kind of wait, where most waiting comes from. The last
        value is how many other programs wait for the same there.
        """
        levels, edges, others, seen = [ends], list[Edge](), list[int](), {*ends}
        while len(levels) < _MOST_LEVELS:
            groups: defaultdict[tuple[str, str], dict[int, Edge]] = defaultdict(dict)
            for edge in self._sources(levels[-1]):
                node = self._graph.nodes[edge.source]
                if edge.source not in seen and flow.through[edge.source] > 0:
                    groups[self._program(node), node.state].setdefault(edge.source, edge)
            if not groups:
                break
            program, state = max(
                groups, key=lambda one: sum(flow.through[node] * edge.share for node, edge in groups[one].items())
            )
            most = groups[program, state]
            seen.update(most)
            levels.append([*most])
            edges.append(max(most.values(), key=lambda one: flow.through[one.source] * one.share))
            same = state, edges[-1].via, edges[-1].what
            others.append(
                sum(
                    other != program and any((kind, one.via, one.what) == same for one in some.values())
                    for (other, kind), some in groups.items()
                )
            )
        return levels, edges, others

    def _sources(self, nodes: Sequence[int]) -> list[Edge]:
        """Return the edges to each of `nodes`, directly or through its process, as they were added."""
        found = [
            (at, number, edge)
            for at, node in enumerate(nodes)
            if node in self._into
            for number, edge in self._into[node]
        ]
        for process, at, number in self._graph.edges.processes_of(nodes):
            found += [(at, number - 0.5, edge) for _, edge in self._into.get(process, ())]
        return [edge for *_, edge in sorted(found, key=itemgetter(0, 1))]

    def _hop(self, nodes: Sequence[int]) -> Hop:
        """Describe the node with the oldest wait, and those of the same program."""
        numbers, every = np.array(nodes), self._graph.nodes
        rows, pids = every.rows_of(numbers), every.pids_of(numbers)
        ages_ns = np.where(rows >= 0, self._waits.ages_ns[rows], 0) if len(self._waits.ages_ns) else 0 * rows
        oldest = every[nodes[int(ages_ns.argmax())]]
        program, unread = self._program(oldest), 0
        if oldest.address:
            same = [one for one in nodes if self._program(every[one]) == program]
            threads, processes = len(same), len({every[one].key.pid for one in same})
        else:
            once, counts = np.unique(pids, return_counts=True)
            is_same = np.array([self._catalog.process(pid) == program for pid in once.tolist()], np.bool_)
            threads, processes = int(counts[is_same].sum()), int(np.count_nonzero(is_same))
            if oldest.state == LOCK and not self._waits.is_unclear[oldest.row]:
                unread = int(np.count_nonzero(np.isin(self._unclear_pids, once[is_same])))
        in_wait = oldest.row >= 0
        return Hop(
            oldest.key,
            program,
            threads,
            processes,
            oldest.state,
            self._waits.place(oldest.row) if in_wait else None,
            int(self._waits.ages_ns[oldest.row]) if in_wait else 0,
            self._snapshot.titles.get(oldest.key.pid, ""),
            unread=unread,
        )

    def _starved(self) -> list[Suspect]:
        """Return the program that uses the CPUs, if others spend most of their time waiting for one."""
        activity = self._activity
        running, ready = self._by_program(activity.running), self._by_program(activity.ready)
        if not running:
            return []
        hog = max(running, key=running.__getitem__)
        if running[hog] < _HOG_SHARE * sum(running.values()):
            return []
        victims = {
            program: amount
            for program, amount in ready.items()
            if program != hog and amount >= _VICTIM_SHARE * (amount + running.get(program, 0.0))
        }
        waiting = sum(victims.values())
        if waiting < _LEAST_CPU:
            return []
        most = max(victims, key=victims.__getitem__)
        hops = self._program_hop(most, activity.ready, RUN_QUEUE), self._program_hop(hog, activity.running, RUNS)
        weight = self._weights.alone.get(RUN_QUEUE, 0.0)
        harm = weight * sum(
            amount * self._part_unusual(program, RUN_QUEUE, amount) for program, amount in victims.items()
        )
        others = sum(amount >= _MENTIONED_SHARE * waiting for amount in victims.values()) - 1
        waiters = hops[0]._replace(is_exact=False, others=others)
        return [Suspect(CPU, (waiters, hops[1]), waiting, harm, weight * waiting)]

    def _throttled(self) -> list[Suspect]:
        """Return the programs that wait for their CPU quota."""
        throttled = self._by_program(self._activity.throttled)
        weight = self._weights.alone.get(THROTTLE, 0.0)
        return [
            _weighed(
                Suspect(
                    QUOTA,
                    (self._throttled_hop(program),),
                    amount,
                    amount * weight,
                ),
                self._part_unusual(program, THROTTLE, amount),
            )
            for program, amount in throttled.items()
            if amount > _LEAST
        ]

    def _throttled_hop(self, program: str) -> Hop:
        hop = self._program_hop(program, self._activity.throttled, THROTTLE)
        return hop._replace(is_exact=hop.key.pid not in self._activity.likely_throttled)

    def _by_program(self, by_pid: Mapping[int, float]) -> dict[str, float]:
        found: dict[str, float] = {}
        for pid, amount in by_pid.items():
            if name := self._catalog.process(pid):
                found[name] = found.get(name, 0.0) + amount
        return found

    def _program_hop(self, program: str, by_pid: Mapping[int, float], state: str) -> Hop:
        amounts = {pid: amount for pid, amount in by_pid.items() if self._catalog.process(pid) == program}
        most = max(amounts, key=amounts.__getitem__)
        pids = [pid for pid, amount in amounts.items() if amount > _LEAST or pid == most]
        title = self._snapshot.titles.get(most, "")
        return Hop(ThreadKey(most, 0), program, len(pids), len(pids), state, None, 0, title)


def _weighed(one: Suspect, part: float) -> Suspect:
    """Return the suspect with this share of its harm, which is what exceeds the usual."""
    return one._replace(harm=one.harm * part, plain_harm=one.harm)


def averages(ticks: Iterable[tuple[Found, int]]) -> dict[tuple[str, ...], float]:
    """Return by name the average number of threads that waited for each suspect. Each tick has its length in ns."""
    sums: dict[tuple[str, ...], float] = {}
    whole_ns = 0
    for found, span_ns in ticks:
        whole_ns += span_ns
        for one in (*found.suspects, *found.as_usual):
            sums[one.name] = sums.get(one.name, 0.0) + one.waiting * span_ns
    return {name: waited / max(1, whole_ns) for name, waited in sums.items()}


def gone(found: Found, before: Mapping[tuple[str, ...], float]) -> list[tuple[SuspectName, float]]:
    """Return the suspects of the baseline for which no thread waits now, most waiting first."""
    there = {one.name for one in (*found.suspects, *found.as_usual)}
    names = ((SuspectName(*name), waiting) for name, waiting in before.items() if name not in there)
    return sorted(names, key=lambda one: -one[1])
