"""The waits in progress at the end of a tick: which thread waits for which, and which waits are standing.

A wait is *standing* if it is of a kind that is normal while there is no work, if it has gone on for a minute or began
before offtop did, and if only threads in standing waits wait for its thread. Standing waits count as idle, and no
suspect is accused of them.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence

import numpy as np

from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import Rule
from offtop.model.classify.ended_stacks import EndedStacks
from offtop.model.classify.suspect_weights import Weights
from offtop.model.classify.wait_graph import AWAY, IDLE, RUNS, Activity, Edge, KnownPeers, Paths, wait_graph
from offtop.model.values.blockers import ANSWER, BACKLOG, SOCKET, UPSTREAM
from offtop.model.values.snapshot import Bound, Snapshot
from offtop.model.values.stack import nameless
from offtop.model.values.table import NO_SITES, SITES, Mask, SiteKeys
from offtop.model.values.waits import BOUND, SINCE_NS, SWITCHED_OUT_NS, WaitList
from offtop.model.windows.breakdown import RUN_QUEUE, SLEEP, STOPPED, THROTTLE, Shares
from offtop.model.windows.stuck import Stuck
from offtop.model.windows.window import Window

_RESOURCES = frozenset({RUN_QUEUE, THROTTLE})
_PIPE, _LOCK = "pipe", "lock"
_KNOWN_TO_WAIT = frozenset({UPSTREAM, ANSWER, BACKLOG})
_KEEPS_WAITING = frozenset({SLEEP, STOPPED})
"""States that are normal without work, but in which a thread answers no request."""
_STOPPED = frozenset({STOPPED})
_SATURATED = 0.9
"""Running and runnable threads on average, from which a server is late for all of its clients."""


class WaitsOfTick:
    """The rows are those of `blocked`. Not thread-safe."""

    def __init__(
        self,
        snapshot: Snapshot,
        window: Window,
        blocked: Stuck,
        every: Shares,
        weights: Weights,
        causes: CauseFinder,
        peers: KnownPeers,
        ended: EndedStacks,
        since_ns: int,
    ) -> None:
        """`blocked` and `every` are the waits as of `snapshot` and the time in `window`, before standing ones count as
        idle. `since_ns` is when offtop began to measure (CLOCK_MONOTONIC)."""
        self.snapshot, self.blocked = snapshot, blocked
        self.activity = Activity(every, window, snapshot.blockers)
        self._window, self._weights, self._causes, self._since_ns = window, weights, causes, since_ns
        self.waits = WaitList.of(blocked.waits)
        shares = blocked.shares
        numbers: list[int] = shares.leaf.tolist() if shares else []
        self.idle = [shares.leaves[number].idle for number in numbers] if shares else []
        ages_ns = self.waits.ages_ns(blocked.at_ns)
        self.ages_ns: list[int] = ages_ns.tolist()
        ids: list[list[int]] = ended.in_place_of_unknown(blocked, shares, every, snapshot.catalog) if shares else []
        self.places = [*map(SITES.key, ids)]
        """Sites, with the user stack of the thread's last wait there if that of this wait is not known yet."""
        self.sites = [(kernel, user, wake, pid) for pid, _, kernel, user, wake in ids]
        """The same as of breakdown.sites_of."""
        self._rules: dict[int, Rule | None] = {}
        """Cause rules of the rows for which they have been looked up."""
        self._unclear = self._without_names()
        """Rows at a lock that may be idle, which their user stacks will show later."""
        self.graph = wait_graph(snapshot, blocked, every, window.span_ns, self.activity, peers, self._unclear)
        self.paths = Paths(len(self.graph.nodes), self.graph.edges)
        self.via = {edge.source: edge.via for edge in self.graph.edges}
        """Row or node → how it is known which thread must act."""
        self._answers, self._of_processes = defaultdict[int, list[Edge]](list), defaultdict[int, list[Edge]](list)
        """By row: edges to processes that may owe an answer. By node: edges from a process to its threads."""
        for edge in self.graph.edges:
            if edge.via in (ANSWER, SOCKET):
                self._answers[edge.source].append(edge)
            elif not edge.via:
                self._of_processes[edge.source].append(edge)
        self.counts = self._counted()
        """Which nodes' own waits count."""
        self.standing = self._standing()
        """Rows of standing waits."""

    @property
    def standing_sites(self) -> SiteKeys:
        """The sites of standing waits that went on through the whole window.

        There are none if /proc was sampled, or in the first seconds, because then it is unknown whether other threads
        wait for them.
        """
        has_settled = self.blocked.at_ns - self._since_ns >= self._weights.settle_ns
        if not self.standing or not has_settled or self.snapshot.sampling:
            return NO_SITES
        ids = self.waits.sites[self.standing]
        return SiteKeys(ids[self._window.still.mask(ids)])

    def is_unclear(self, row: int) -> bool:
        """Return whether a thread at a lock may be idle, because no function of its program is known yet."""
        return row in self._unclear

    def _without_names(self) -> set[int]:
        shares, blockers, names = self.blocked.shares, self.snapshot.blockers, self._causes.names
        if shares is None:
            return set()
        is_lock = np.array([one.category == _LOCK and not one.idle for one in shares.leaves], np.bool_)[shares.leaf]
        rows = [row for row in np.flatnonzero(is_lock).tolist() if self.places[row].thread not in blockers]
        users = {self.places[row].user for row in rows}
        frames = ((user, self.snapshot.catalog.stack(user).frames) for user in users)
        known = {user for user, some in frames if any(names.of(one) != nameless(one) for one in some)}
        unnamed = [row for row in rows if self.places[row].user not in known]
        self.look_up(unnamed)
        return {row for row in unnamed if self._rules[row] is None}

    def rule(self, row: int) -> Rule | None:
        """Return the cause rule of a wait."""
        if row not in self._rules:
            self.look_up([row])
        return self._rules[row]

    def look_up(self, rows: Sequence[int]) -> None:
        """Look up the cause rules of many waits at once."""
        found = self._causes.rules_at([self.sites[row] for row in rows], self.snapshot.catalog)
        self._rules.update(zip(rows, found, strict=True))

    def _counted(self) -> Mask:
        """Return which nodes' own waits count: rows that do not look idle, or are known to wait for an answer.

        Waits for a CPU and for a quota are counted by the window, because they are short. Programs that
        work together take turns by short waits for a pipe.
        """
        counts = np.zeros(len(self.graph.nodes), np.bool_)
        least_ns = self._weights.least_age_ns
        for row, (idle, age_ns) in enumerate(zip(self.idle, self.ages_ns, strict=True)):
            state = self.graph.nodes[row].state
            idle = idle and self.via.get(row) not in _KNOWN_TO_WAIT
            counts[row] = not idle and state not in _RESOURCES and (state != _PIPE or age_ns >= least_ns)
        return counts

    def _standing(self) -> list[int]:
        if not len(self.waits):
            return []
        rows = self.waits.rows
        # A scan may find a wait later, too: after a filter was removed, or after a record was lost.
        was_found = (rows[:, BOUND] != Bound.EXACT) | (
            (rows[:, SINCE_NS] != 0) & (rows[:, SINCE_NS] < rows[:, SWITCHED_OUT_NS])
        )
        is_old = np.array(self.ages_ns) >= self._weights.standing_ns
        is_old |= was_found & (self.waits.began_ns <= self._since_ns)
        old: list[int] = np.flatnonzero(is_old & self.counts[: len(rows)]).tolist()
        of_kind = [row for row in old if self._is_of_normal_kind(row)]
        self.look_up(of_kind)
        may = [row for row in of_kind if self._has_normal_cause(row)]
        own = self.counts.astype(np.float64)
        own[may] = 0.0
        through = self.paths.passed(own).through
        return [row for row in may if through[row] <= 0]

    def _is_of_normal_kind(self, row: int) -> bool:
        """Return whether the category is one in which a thread waits for work."""
        is_normal = self.graph.nodes[row].state in self._weights.normal and self.via.get(row) not in self._weights.via
        return is_normal and not any(self._owes(edge) for edge in self._answers.get(row, ()))

    def _owes(self, edge: Edge) -> bool:
        """Return whether a client is known to wait for its peer, to which it has sent a request."""
        if edge.via == ANSWER:
            return edge.is_exact or self._is_at_work(edge.target, _KEEPS_WAITING)
        return self._is_at_work(edge.target, _STOPPED)

    def _is_at_work(self, node: int, normal_but: Collection[str]) -> bool:
        """Return whether the process that may owe an answer does not look idle itself.

        `normal_but`: states that are normal without work, but not for a process that has received a request.
        """
        into = self._of_processes.get(node)
        if into:
            return any(self._is_at_work(edge.target, normal_but) for edge in into)
        key, row, state, _ = self.graph.nodes[node]
        if state in (RUNS, RUN_QUEUE):
            return normal_but is _KEEPS_WAITING and self.activity.busy(key)[1] >= _SATURATED
        if state in (IDLE, AWAY):
            return False
        if row in self._unclear:
            return False
        return state in normal_but or (state not in self._weights.normal and not (row >= 0 and self.idle[row]))

    def _has_normal_cause(self, row: int) -> bool:
        rule = self.rule(row)
        return rule is None or rule.general.id not in self._weights.cause
