"""Suspects: who everybody waits behind, and how much harm that does.

A suspect is an end of the wait-for graph: others wait for it, and it waits for nobody known. Waits that have always
stood there are left out, and so is what does little harm: on a quiet machine there are no suspects. The weights are
data, in `offtop/suspects.toml`, which explains them.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import Rule
from offtop.model.classify.rule_file import RuleFile
from offtop.model.classify.wait_graph import (
    IDLE,
    LOCKS,
    RUNS,
    Activity,
    Edge,
    Floats,
    KnownPeers,
    Passed,
    Paths,
    WaitGraph,
    wait_graph,
)
from offtop.model.values.blockers import UPSTREAM
from offtop.model.values.catalog import SiteKey, ThreadKey
from offtop.model.values.snapshot import Bound, Snapshot
from offtop.model.values.table import Ints, Mask
from offtop.model.values.waits import BOUND, SINCE_NS, SWITCHED_OUT_NS, WaitList
from offtop.model.windows.breakdown import RUN_QUEUE, THROTTLE, Shares
from offtop.model.windows.stuck import Stuck
from offtop.printable import printable
from offtop.units import parse_duration

HOLDER, DEADLOCK, LOOP, CPU, QUOTA, WAIT = "holder", "deadlock", "loop", "cpu", "quota", "wait"
KINDS: Mapping[str, str] = {
    HOLDER: "others wait for what it holds, or for what it must do",
    DEADLOCK: "threads that wait for each other's locks",
    LOOP: "threads that wait for each other, not only for locks",
    CPU: "others wait for a CPU while it runs",
    QUOTA: "its cgroup has used up its CPU quota",
    WAIT: "waits of which nobody is known to hold what they wait for",
}
_RESOURCES = frozenset({RUN_QUEUE, THROTTLE})
_PIPE = "pipe"
_LEAST = 0.01
"""Harm that is worth a look at the end's chain."""
_MOST_ENDS = 20
"""Ends that are looked at, most harm first."""
_MOST_LEVELS = 8
_KERNEL_THREADS = frozenset({"kthread", "ret_from_fork", "ret_from_fork_asm"})
_HOG_SHARE, _VICTIM_SHARE = 0.5, 0.5
"""A program with that share of all running time takes the CPUs of one that waits so much of the time it wants one."""
_LEAST_CPU = 1.0


@dataclass(frozen=True, slots=True)
class Weights:
    """The contents of suspects.toml."""

    harm: float
    most: int
    least_age_ns: int
    ticks: int
    standing_ns: int
    behind: Mapping[str, float]
    alone: Mapping[str, float]
    cause: Mapping[str, float]
    via: Mapping[str, float]
    end: Mapping[str, float]
    normal: frozenset[str]

    def of(self, category: str, rule: Rule | None, is_known: bool) -> float:
        """Return the weight of a wait. `is_known`: whether it is known who must act."""
        own = (self.behind if is_known else self.alone).get(category, 0.0)
        return max(own, self.cause.get(rule.general.id, 0.0)) if rule else own


class Hop(NamedTuple):
    """Those in a chain that do the same."""

    key: ThreadKey
    """One of them, with the oldest wait; tid 0: some thread of the process."""
    program: str
    """Raw."""
    many: int
    pids: int
    """How many processes they are of."""
    state: str
    """Category of their wait, `runs` or `idle`."""
    site: SiteKey | None
    """Where that one waits; None: not known to be in one long wait."""
    age_ns: int
    """Of the oldest wait; 0: unknown."""
    title: str = ""
    """What that process says that it does. Raw."""
    via: str = ""
    """How it is known that the next hop must act, one of blockers.VIA; empty for the last."""
    is_exact: bool = True
    what: str = ""
    """Name of what the next hop holds. Raw."""


class Suspect(NamedTuple):
    kind: str
    """One of KINDS."""
    hops: tuple[Hop, ...]
    """From those who wait longest behind others to who must act; of a deadlock, its threads in the order of waiting."""
    waiting: float
    """Threads on average that wait behind it, all of them."""
    harm: float

    @property
    def end(self) -> Hop:
        return self.hops[-1]

    @property
    def is_likely(self) -> bool:
        """Whether a hop is not exact."""
        return not all(one.is_exact for one in self.hops)

    @property
    def age_ns(self) -> int:
        """Age of the oldest wait behind it, or of its own if nobody is."""
        return max(one.age_ns for one in self.hops[:-1] or self.hops)

    @property
    def key(self) -> tuple[str, ...]:
        """The same at all ticks as long as it is the same incident."""
        what = next((one.what for one in reversed(self.hops) if one.what), "")
        return self.kind, self.end.program, self.end.state, what, self.hops[0].program


class Found(NamedTuple):
    """What there is at one moment."""

    suspects: Sequence[Suspect] = ()
    """Most harm first."""
    standing: int = 0
    """Waits that have always stood there."""


NOTHING_FOUND = Found()
Usual = Mapping[tuple[str, str], float]
"""(raw program, category) → how many threads on average wait that way when all is well."""
_NOTHING: Usual = {}


class SuspectFinder:
    """Finds the suspects of each tick, of one source. Not thread-safe."""

    def __init__(self, weights: Weights, causes: CauseFinder, usual: Usual = _NOTHING) -> None:
        self._weights, self._causes, self._usual = weights, causes, usual
        self._latest: deque[Mapping[tuple[str, ...], float]] = deque(maxlen=weights.ticks)
        self._peers = KnownPeers()
        self._epoch = -1

    def tick(self, snapshot: Snapshot, blocked: Stuck, every: Shares, activity: Activity, span_ns: int) -> Found:
        """Return the suspects as of `snapshot`, at the end of a window of `span_ns`.

        `blocked` are the waits in progress, `every` the window's time by site and leaf.
        """
        if snapshot.epoch != self._epoch:
            self._epoch = snapshot.epoch
            self._latest.clear()
        found = suspects(
            snapshot, blocked, every, activity, span_ns, self._weights, self._causes, self._peers, self._usual
        )
        worst = {one.key: one for one in reversed(found.suspects)}
        self._latest.append({key: one.harm for key, one in worst.items()})
        shown: list[Suspect] = []
        for one in worst.values():
            harms = [tick.get(one.key, 0.0) for tick in self._latest]
            harm = sum(harms) / len(harms)
            lasts = one.age_ns >= self._weights.least_age_ns or (len(harms) == self._weights.ticks and all(harms))
            if harm >= self._weights.harm and lasts:
                shown.append(one._replace(harm=harm))
        shown.sort(key=lambda one: -one.harm)
        return Found(shown[: self._weights.most], found.standing)


def suspects(
    snapshot: Snapshot,
    blocked: Stuck,
    every: Shares,
    activity: Activity,
    span_ns: int,
    weights: Weights,
    causes: CauseFinder,
    peers: KnownPeers,
    usual: Usual = _NOTHING,
) -> Found:
    """Return all that others wait behind, most harm first, however little harm it does."""
    graph = wait_graph(snapshot, blocked, every, span_ns, activity, peers)
    return _Ends(snapshot, blocked, graph, activity, weights, causes, usual).found()


class _Ends:
    def __init__(
        self,
        snapshot: Snapshot,
        blocked: Stuck,
        graph: WaitGraph,
        activity: Activity,
        weights: Weights,
        causes: CauseFinder,
        usual: Usual,
    ) -> None:
        self._snapshot, self._catalog, self._graph, self._activity = snapshot, snapshot.catalog, graph, activity
        self._waits = WaitList.of(blocked.waits)
        self._weights, self._usual = weights, usual
        shares = blocked.shares
        numbers: list[int] = shares.leaf.tolist() if shares else []
        self._idle = [shares.leaves[number].idle for number in numbers] if shares else []
        ids: list[list[int]] = shares.ids.tolist() if shares else []
        self._sites = [(kernel, user, wake, pid) for pid, _, kernel, user, wake in ids]
        self._causes = causes
        self._rules: dict[int, Rule | None] = {}
        """Cause rules of rows, as far as they were looked up."""
        self._ages_ns: list[int] = self._waits.ages_ns(blocked.at_ns).tolist()
        self._paths = Paths(len(graph.nodes), graph.edges)
        self._via = {edge.source: edge.via for edge in graph.edges}
        self._into: defaultdict[int, list[Edge]] = defaultdict(list)
        for edge in graph.edges:
            self._into[edge.target].append(edge)

    def found(self) -> Found:
        graph = self._graph
        counts = self._counted()
        standing = self._standing(counts)
        waiting = np.where(counts, graph.waiting, 0.0)
        waiting[standing] = 0.0
        flow = self._paths.passed(waiting)
        harm = self._paths.passed(waiting * self._weight_of_rows(waiting))
        in_loop = {loop[0]: loop for loop in self._paths.loops}
        groups = [(float(harm.ends[group].sum()), group) for group in self._folded(np.flatnonzero(harm.ends > _LEAST))]
        most = heapq.nlargest(_MOST_ENDS, groups)
        made = [self._suspect(flow, group, in_loop, amount) for amount, group in most]
        throttled = {one.end.program: one for one in self._throttled()}
        every = [one for one in made if one] + self._starved()
        for number, one in enumerate(every):
            own = throttled.pop(one.end.program, None) if one.end.state == THROTTLE else None
            if own:
                every[number] = one._replace(waiting=one.waiting + own.waiting, harm=one.harm + own.harm)
        every += throttled.values()
        return Found(sorted(every, key=lambda one: -one.harm), len(standing))

    def _counted(self) -> Mask:
        """Return which nodes' own waiting counts: rows that do not look idle, or are known to wait for an answer.

        Waits for a CPU and for a quota are counted by the window, because they are short. Short waits for a pipe are
        how programs that work together take turns.
        """
        counts = np.zeros(len(self._graph.nodes), np.bool_)
        least_ns = self._weights.least_age_ns
        for row, (idle, age_ns) in enumerate(zip(self._idle, self._ages_ns, strict=True)):
            state = self._graph.nodes[row].state
            idle = idle and self._via.get(row) != UPSTREAM
            counts[row] = not idle and state not in _RESOURCES and (state != _PIPE or age_ns >= least_ns)
        return counts

    def _standing(self, counts: Mask) -> list[int]:
        """Return the rows that have always stood there: nobody waits behind them but others that do."""
        if not len(self._waits):
            return []
        rows = self._waits.rows
        is_old = np.array(self._ages_ns) >= self._weights.standing_ns
        is_old |= (rows[:, BOUND] != Bound.EXACT) | (
            (rows[:, SINCE_NS] != 0) & (rows[:, SINCE_NS] < rows[:, SWITCHED_OUT_NS])
        )
        may = [row for row in np.flatnonzero(is_old & counts[: len(rows)]).tolist() if self._is_normal(row)]
        own = counts.astype(np.float64)
        own[may] = 0.0
        through = self._paths.passed(own).through
        return [row for row in may if through[row] <= 0]

    def _is_normal(self, row: int) -> bool:
        """Return whether a thread may wait that way because it has no work."""
        weights = self._weights
        if self._graph.nodes[row].state not in weights.normal or self._via.get(row) in weights.via:
            return False
        rule = self._rule(row)
        return rule is None or rule.general.id not in weights.cause

    def _rule(self, row: int) -> Rule | None:
        """Return the cause rule of a wait."""
        if row not in self._rules:
            self._look_up([row])
        return self._rules[row]

    def _look_up(self, rows: Sequence[int]) -> None:
        """Look up the cause rules of many waits at once."""
        found = self._causes.rules_at([self._sites[row] for row in rows], self._catalog)
        self._rules.update(zip(rows, found, strict=True))

    def _weight_of_rows(self, own: Floats) -> Floats:
        found = np.zeros(len(own))
        rows: list[int] = np.flatnonzero(own).tolist()
        self._look_up(rows)
        for row in rows:
            state = self._graph.nodes[row].state
            is_known = row in self._via
            if not is_known and self._is_kernel_thread(row):
                continue
            weight = self._weights.of(state, self._rule(row), is_known)
            found[row] = max(weight, self._weights.via.get(self._via.get(row, ""), 0.0))
        return self._unusual(found, own)

    def _unusual(self, found: Floats, own: Floats) -> Floats:
        """Lower the weight of waits that are usual for the program and category."""
        if not self._usual:
            return found
        sums: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        for row in np.flatnonzero(found).tolist():
            node = self._graph.nodes[row]
            sums[self._catalog.process(node.key.pid), node.state].append(row)
        for (program, category), rows in sums.items():
            now = float(own[rows].sum())
            found[rows] *= max(0.0, now - self._usual.get((program, category), 0.0)) / now
        return found

    def _is_kernel_thread(self, row: int) -> bool:
        frames = self._catalog.stack(self._sites[row][0]).frames
        return any(frame.name.partition("+")[0] in _KERNEL_THREADS for frame in frames[-2:])

    def _folded(self, ends: Ints) -> list[list[int]]:
        """Group ends that do the same, or that hold the same."""
        groups: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
        numbers: list[int] = ends.tolist()
        for end in numbers:
            node = self._graph.nodes[end]
            into = self._into.get(end, ())
            if any(one.via in LOCKS for one in into):
                held = next((one.what for one in into if one.what), "")
                groups[("held", held or end)].append(end)
            else:
                rule = self._rule(end) if end < len(self._sites) else None
                groups[(self._catalog.process(node.key.pid), rule.name if rule else node.state)].append(end)
        return [*groups.values()]

    def _suspect(
        self, flow: Passed, ends: list[int], in_loop: Mapping[int, tuple[int, ...]], harm: float
    ) -> Suspect | None:
        waiting = float(flow.ends[ends].sum())
        loop = next((in_loop[end] for end in ends if end in in_loop), None)
        if loop is not None:
            return self._of_loop(loop, waiting, harm)
        levels, edges = self._levels(flow, ends)
        holds = bool(edges) and edges[0].via in LOCKS
        last = self._hop(levels[0])
        factor = 1.0 if holds or len(levels) == 1 else self._end_factor(ends[0])
        if not harm * factor:
            return None
        hops = [last]
        for nodes, edge in zip(levels[1:], edges, strict=True):
            hop = self._hop(nodes)
            hops.append(hop._replace(via=edge.via, is_exact=edge.is_exact, what=edge.what))
        return Suspect(HOLDER if edges else WAIT, tuple(reversed(hops)), waiting, harm * factor)

    def _end_factor(self, end: int) -> float:
        node = self._graph.nodes[end]
        is_idle = node.row >= 0 and self._idle[node.row] and node.state not in self._weights.end
        return self._weights.end.get(IDLE if is_idle else node.state, 1.0)

    def _of_loop(self, loop: Sequence[int], waiting: float, harm: float) -> Suspect:
        edges = [
            next(one for one in self._into[after] if one.source == node)
            for node, after in zip(loop, [*loop[1:], loop[0]], strict=True)
        ]
        are_locks = all(one.via in LOCKS and one.is_exact for one in edges)
        hops = tuple(
            self._hop([node])._replace(via=edge.via, is_exact=edge.is_exact, what=edge.what)
            for node, edge in zip(loop, edges, strict=True)
        )
        return Suspect(
            DEADLOCK if are_locks else LOOP, hops, waiting, harm * (1.0 if are_locks else self._weights.end["loop"])
        )

    def _levels(self, flow: Passed, ends: list[int]) -> tuple[list[list[int]], list[Edge]]:
        """Return those who wait, level by level from the ends, with the edge that leads from each level to the next.

        At each level, only those of the same program in the same kind of wait, where most waiting comes from.
        """
        levels, edges, seen = [ends], list[Edge](), {*ends}
        while len(levels) < _MOST_LEVELS:
            groups: defaultdict[tuple[str, str], dict[int, Edge]] = defaultdict(dict)
            for edge in self._sources(levels[-1]):
                node = self._graph.nodes[edge.source]
                if edge.source not in seen and flow.through[edge.source] > 0:
                    groups[self._catalog.process(node.key.pid), node.state].setdefault(edge.source, edge)
            if not groups:
                break
            most = max(
                groups.values(), key=lambda some: sum(flow.through[one] * edge.share for one, edge in some.items())
            )
            seen.update(most)
            levels.append([*most])
            edges.append(max(most.values(), key=lambda one: flow.through[one.source] * one.share))
        return levels, edges

    def _sources(self, nodes: Sequence[int]) -> list[Edge]:
        """Return the edges that lead to `nodes`, through processes whose threads they are."""
        found: list[Edge] = []
        for node in nodes:
            for edge in self._into[node]:
                found += [edge] if edge.via else self._into[edge.source]
        return found

    def _hop(self, nodes: Sequence[int]) -> Hop:
        """Describe nodes that do the same."""
        some = [self._graph.nodes[one] for one in nodes]
        oldest = max(some, key=lambda one: self._ages_ns[one.row] if one.row >= 0 else 0)
        in_wait = oldest.row >= 0
        return Hop(
            oldest.key,
            self._catalog.process(oldest.key.pid),
            len(nodes),
            len({one.key.pid for one in some}),
            oldest.state,
            self._waits[oldest.row].place if in_wait else None,
            self._ages_ns[oldest.row] if in_wait else 0,
            self._snapshot.titles.get(oldest.key.pid, ""),
        )

    def _starved(self) -> list[Suspect]:
        """Return the program that has the CPUs, if others wait most of the time for one."""
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
        harm = waiting * self._weights.alone.get(RUN_QUEUE, 0.0)
        return [Suspect(CPU, (hops[0]._replace(is_exact=False), hops[1]), waiting, harm)]

    def _throttled(self) -> list[Suspect]:
        """Return the programs that wait for their CPU quota."""
        throttled = self._by_program(self._activity.throttled)
        return [
            Suspect(
                QUOTA,
                (self._program_hop(program, self._activity.throttled, THROTTLE),),
                amount,
                amount * self._weights.alone.get(THROTTLE, 0.0),
            )
            for program, amount in throttled.items()
            if amount > _LEAST
        ]

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


def parse(text: str) -> Weights:
    """Parse the text of a `suspects.toml`. Raises OfftopError, naming what is wrong."""
    return _Reader(text, "suspects.toml", "Fix that line, or reinstall offtop to get its own file back.").weights()


class _Reader(RuleFile):
    def weights(self) -> Weights:
        self.known_keys(self.file, {"show", "behind", "alone", "cause", "via", "end", "normal"}, "the file")
        show, where = self.table(self.file, "show", "the file"), "[show]"
        self.known_keys(show, {"harm", "most", "least_age", "ticks", "standing"}, where)
        return Weights(
            self._number(show, "harm", where),
            int(self._number(show, "most", where)),
            self._time(show, "least_age", where),
            int(self._number(show, "ticks", where)),
            self._time(show, "standing", where),
            self._numbers("behind"),
            self._numbers("alone"),
            self._numbers("cause"),
            self._numbers("via"),
            self._numbers("end"),
            frozenset(self.patterns(self.table(self.file, "normal", "the file"), "categories", "[normal]")),
        )

    def _numbers(self, name: str) -> Mapping[str, float]:
        table = self.table(self.file, name, "the file")
        return {key: self._number(table, key, f"[{name}]") for key in table}

    def _number(self, table: Mapping[str, Any], key: str, where: str) -> float:
        value = table.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise self.wrong(where, f"`{printable(key)}` is not a number from 0 up")
        return float(value)

    def _time(self, table: Mapping[str, Any], key: str, where: str) -> int:
        try:
            return parse_duration(self.words(table, key, where, "a duration"), 1)
        except ValueError:
            raise self.wrong(where, f"`{key}` is not a duration such as 1s") from None
