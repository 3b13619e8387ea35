"""Suspects: threads and processes that others wait for, and how much harm that does.

A suspect is an end of the wait-for graph: others wait for it, and it waits for no other thread that is known. Standing
waits (standing.py) are left out, and so are suspects that do little harm: a quiet machine has none. The weights are
data, in `offtop/suspects.toml`, which explains them.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter

import numpy as np

from offtop.model.classify.activity import RUNS
from offtop.model.classify.categories import CONNECT, POLL
from offtop.model.classify.cpu_suspects import CpuSuspects
from offtop.model.classify.standing import LOCK, PIPE, SATURATED, WaitsOfTick
from offtop.model.classify.suspect import (
    DEADLOCK,
    HOLDER,
    LOOP,
    NOTHING_USUAL,
    WAIT,
    Found,
    Hop,
    Suspect,
    SuspectName,
    Usual,
    part_unusual,
    weighed,
)
from offtop.model.classify.suspect_weights import Weights
from offtop.model.classify.wait_edges import Edge, Floats, Passed
from offtop.model.classify.wait_graph import IDLE, LOCKS, UNMEASURED, Node
from offtop.model.values.blockers import FROZEN_BY, KERNEL_LOCK, MEMORY_LIMIT, WAKER, limit_of
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.snapshot import Snapshot
from offtop.model.values.table import Ints
from offtop.model.values.waits import WAKE
from offtop.model.windows.breakdown import RUN_QUEUE, SLEEP, STOPPED, THROTTLE

_LEAST_HARM = 0.01
"""Harm from which the chain to an end is computed."""
_MOST_ENDS = 20
"""Maximum number of ends whose chains are computed, most harm first."""
_MOST_LEVELS = 8
_BETWEEN_REQUESTS = frozenset({IDLE, UNMEASURED, RUNS, RUN_QUEUE, LOCK})
"""What a prompt server may do while its clients wait for what is to come. LOCK: its background threads."""
_KERNEL_THREADS = frozenset({"kthread", "ret_from_fork", "ret_from_fork_asm"})


_FORGOTTEN_TICKS = 10
"""A suspect that returns after this many ticks is a new one."""


class SuspectFinder:
    """Finds the suspects of each tick, of one source. Not thread-safe."""

    def __init__(self, weights: Weights, usual: Usual = NOTHING_USUAL) -> None:
        self._weights, self.usual = weights, usual
        self._latest: deque[Mapping[tuple[str, ...], tuple[float, float]]] = deque(maxlen=weights.ticks)
        """Key → harm and plain harm."""
        self._since: dict[tuple[SuspectName, ThreadKey], tuple[int, int, int]] = {}
        """Name and what must act → when it became a suspect (CLOCK_REALTIME, CLOCK_MONOTONIC), and the last tick in
        which it was one."""
        self._shown: Sequence[Suspect] = ()
        """The suspects of the last tick."""
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
        every = _numbered(found.suspects)
        harms_now = {one.key: (one.harm, one.plain_harm) for one in every}
        of_waiters = {one.waiters: (one.harm, one.plain_harm) for one in reversed(found.suspects)}
        of_ends = {one.last: (one.harm, one.plain_harm) for one in reversed(found.suspects)}
        self._latest.append(of_waiters | of_ends | harms_now)
        # One with little harm now would take over the average of another suspect of its program: a main thread that
        # waits for its workers, that of the workers.
        found_now = [one for one in every if one.plain_harm * self._weights.ticks >= self._weights.harm]
        programs_now = {one.hops[0].program for one in found_now}
        kept = self._between_waits(waits, programs_now)
        were_shown = {one.key for one in self._shown}
        shown: list[Suspect] = []
        as_usual: list[Suspect] = []
        for one in [*found_now, *kept]:
            # The end of a chain may become known some ticks after the waiters, and its start some ticks after the end.
            keys = (one.key,) if one.number else (one.key, one.last, one.waiters)  # these two are of the first of them
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
        return found._replace(suspects=shown, as_usual=tuple(as_usual))

    def _between_waits(self, waits: WaitsOfTick, programs_now: Collection[str]) -> list[Suspect]:
        """Return the suspects of the last tick that stay as long as their average harm does.

        Their waits are short, and happen to be over at the end of this tick. Or they are at a pipe, where writer and
        reader take turns, or have just begun to poll again, as for a name that is looked up once more: the threads wait
        there again, but not for long yet, so the age is left out.
        """
        found: list[Suspect] = []
        for one in self._shown:
            first = one.hops[0]
            if first.program in programs_now:
                continue
            if one.age_ns < self._weights.least_age_ns:
                found.append(one)
            elif (first.state == PIPE and first.program in waits.programs_at(PIPE)) or (
                first.state == POLL and waits.polls_unread(first.key.pid)
            ):
                found.append(one._replace(hops=tuple(hop._replace(age_ns=0) for hop in one.hops)))
        return found

    def _with_begin(self, shown: Sequence[Suspect], now: Snapshot) -> list[Suspect]:
        """Return the suspects with the time since when they have been suspects.

        What must act may be another thread or process by now, as when a program is started again and again. But each
        of several suspects of one name has its own time.
        """
        self._ticks += 1
        known = {name: at for name, at in self._since.items() if at[2] >= self._ticks - _FORGOTTEN_TICKS}
        now_shown = {(one.name, one.culprit) for one in shown}
        found: list[Suspect] = []
        for one in shown:
            own = one.name, one.culprit
            before = [own] if own in known else [key for key in known if key[0] == one.name and key not in now_shown]
            oldest = min(before, key=lambda key: known[key][1], default=None)
            taken_ns, at_ns, _ = known.pop(oldest) if oldest else (now.taken_ns, now.at_ns, 0)
            known[own] = taken_ns, at_ns, self._ticks
            found.append(one._replace(since_ns=taken_ns, lasted_ns=now.at_ns - at_ns))
        self._since = known
        return found


def _numbered(found: Sequence[Suspect]) -> list[Suspect]:
    """Tell suspects with the same key apart, unless the same thread waits for both. `found`: most harm first."""
    same = defaultdict[tuple[str, ...], list[Suspect]](list)
    numbered: list[Suspect] = []
    for one in found:
        before = same[one.key]
        if not any(one.hops[0].key == other.hops[0].key for other in before):
            numbered.append(one._replace(number=len(before)))
            before.append(one)
    return numbered


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
        groups = [
            (float(harm.ends[group].sum()), group) for group in self._folded(np.flatnonzero(harm.ends > _LEAST_HARM))
        ]
        most = heapq.nlargest(_MOST_ENDS, groups)
        made = [
            weighed(one, 1.0 if one.kind == DEADLOCK else float(unusual.ends[group].sum()) / amount)
            for amount, group in most
            if (one := self._suspect(flow, waiting, group, in_loop, amount))
        ]
        cpu = CpuSuspects(self._snapshot, self._activity, self._weights, self._usual)
        throttled = {one.end.program: one for one in cpu.throttled()}
        every = made + cpu.starved()
        for number, one in enumerate(every):
            own = throttled.pop(one.end.program, None) if one.end.state == THROTTLE else None
            if own:
                every[number] = one._replace(
                    waiting=one.waiting + own.waiting,
                    harm=one.harm + own.harm,
                    plain_harm=one.plain_harm + own.plain_harm,
                )
        every += throttled.values()
        every.sort(key=lambda one: -one.harm)
        return Found(every, len(self._waits.standing), rivals=cpu.rivals)

    def _program(self, node: Node) -> str:
        return node.address or self._waits.program(node.key.pid)

    def _weight_of_rows(self, own: Floats) -> Floats:
        found = np.zeros(len(own))
        rows = np.flatnonzero(own)
        self._waits.look_up(rows)
        alone = rows[~np.isin(rows, [*self._via])]
        first, which = self._waits.kinds(alone)
        weights = np.array([self._weight(row, self._graph.nodes.category(row), None) for row in first], np.float64)
        found[alone] = np.where(self._waits.is_unclear[alone], 0.0, weights[which])
        for row, via in self._via.items():
            if own[row] and not (via == WAKER and self._waits.is_unclear[row]):  # that would be two guesses
                found[row] = self._weight(row, self._graph.nodes.category(row), via)
        return found

    def _weight(self, row: int, state: str, via: str | None) -> float:
        """`via`: how it is known which thread must act; None if that is unknown."""
        if (via is None and self._is_kernel_thread(row)) or self._waits.is_for_request(row):
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
            parts[rows] = part_unusual(self._usual, program, category, float(own[rows].sum()))
        return parts

    def _is_kernel_thread(self, row: int) -> bool:
        frames = self._catalog.stack(self._waits.place(row).kernel).frames
        return any(frame.name.partition("+")[0] in _KERNEL_THREADS for frame in frames[-2:])

    def _folded(self, ends: Ints) -> list[list[int]]:
        """Group ends that do the same or hold the same object.

        Stopped ones are in one group if others wait for the same: one may be the reader of a pipe, another the writer.
        """
        groups: defaultdict[tuple[object, ...], list[Ints]] = defaultdict(list)
        held = {edge.target for edge in self._graph.edges.of_waits if edge.via in LOCKS}
        is_alike = ends < len(self._waits.idle)
        is_alike &= ~np.isin(ends, [*held])
        numbers: list[int] = ends.tolist()
        is_alike &= np.array([self._graph.nodes[end].state != STOPPED for end in numbers], np.bool_)
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
            reasons = {self._reason(edge)[:2] for edge in self._sources([end])} if node.state == STOPPED else ()
            name = ("held", what or end) if end in held else (self._program(node), node.state, *sorted(reasons))
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
        factor = 1.0 if holds or len(levels) == 1 else self._end_factor(ends[0], edges[0])
        if not harm * factor:
            return None
        hops = [last]
        for nodes, edge, many in zip(levels[1:], edges, others, strict=True):
            hop = self._hop(nodes)
            hops.append(hop._replace(via=edge.via, is_exact=edge.is_exact, what=edge.what, others=many))
        behind = waiting - float(own[ends].sum()) if edges else waiting
        return Suspect(HOLDER if edges else WAIT, tuple(reversed(hops)), behind, harm * factor)

    def _address(self, rows: Ints) -> str:
        """Return the address to which all these threads connect; empty if there are several."""
        wakes: list[int] = np.unique(self._waits.waits.rows[rows, WAKE]).tolist()
        addresses = {self._catalog.wake(one).object.peer for one in wakes}
        return addresses.pop() if len(addresses) == 1 else ""

    def _end_factor(self, end: int, edge: Edge) -> float:
        """`edge`: the one that leads to `end`."""
        node = self._graph.nodes[end]
        is_idle = node.row >= 0 and self._waits.idle[node.row] and node.state not in self._weights.end
        sleeps = node.state == SLEEP and edge.is_exact  # at an even pace, but somebody waits for it
        state = IDLE if is_idle and not sleeps else node.state
        factor = self._weights.end.get(state, 1.0)
        is_busy = self._activity.busy(ThreadKey(node.key.pid, 0))[1] >= SATURATED
        if edge.is_exact or is_busy or state not in _BETWEEN_REQUESTS:
            return factor
        return self._weights.prompt.get(self._program(node), factor)

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
            same = self._reason(edges[-1])
            others.append(
                sum(
                    other != program and any(self._reason(one) == same for one in some.values())
                    for (other, _), some in groups.items()
                )
                if same
                else 0
            )
        return levels, edges, others

    def _reason(self, edge: Edge) -> tuple[str, ...]:
        """Return what the waits at the source of an edge are for; empty if that does not tell it from others."""
        if edge.via == KERNEL_LOCK and not edge.what:
            return ()
        node = self._graph.nodes[edge.source]
        rule = self._waits.rule(node.row) if node.row >= 0 else None
        return node.state, rule.general.id if rule else "", edge.via, edge.what

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
            is_same = np.array([self._waits.program(pid) == program for pid in once.tolist()], np.bool_)
            threads, processes = int(counts[is_same].sum()), int(np.count_nonzero(is_same))
            if oldest.state == LOCK and not self._waits.is_unclear[oldest.row]:
                unread = int(np.count_nonzero(np.isin(self._unclear_pids, once[is_same])))
        in_wait = oldest.row >= 0
        what, quota_cpus = self._address(rows[rows >= 0]) if oldest.state == CONNECT else "", 0.0
        if oldest.state == THROTTLE:
            quota_cpus, what = self._activity.quotas.get(oldest.key.pid, (0.0, ""))
        limit_bytes, limited_by = limit_of(self._of_cgroup(oldest.key, MEMORY_LIMIT))
        return Hop(
            oldest.key,
            program,
            threads,
            processes,
            oldest.state,
            self._waits.place(oldest.row) if in_wait else None,
            int(self._waits.ages_ns[oldest.row]) if in_wait else 0,
            self._snapshot.titles.get(oldest.key.pid, ""),
            what=what,
            unread=unread,
            frozen_by=self._of_cgroup(oldest.key, FROZEN_BY) if oldest.state == STOPPED else "",
            limited_by=limited_by,
            limit_bytes=limit_bytes,
            quota_cpus=quota_cpus,
        )

    def _of_cgroup(self, key: ThreadKey, via: str) -> str:
        """Return what is known of a setting of the thread's cgroup."""
        return next((one.what for one in self._snapshot.blockers.get(key, ()) if one.via == via), "")
