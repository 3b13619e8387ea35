"""The waits in progress at the end of a tick: which thread waits for which, and which waits are standing.

A wait is *standing* if it is of a kind that is normal while there is no work, if it has gone on for a minute or began
before offtop did, and if only threads in standing waits wait for its thread. Standing waits count as idle, and no
suspect is accused of them.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from offtop.model.classify.activity import RUNS, Activity
from offtop.model.classify.categories import POLL
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import Rule
from offtop.model.classify.ended_stacks import EndedStacks
from offtop.model.classify.suspect_weights import Weights
from offtop.model.classify.wait_edges import Edge, Paths
from offtop.model.classify.wait_graph import AWAY, IDLE, UNMEASURED, KnownPeers, wait_graph
from offtop.model.values.blockers import ANSWER, BACKLOG, SOCKET, UPSTREAM
from offtop.model.values.blockers import PIPE as PIPE_END
from offtop.model.values.catalog import SiteKey
from offtop.model.values.snapshot import Bound, Snapshot
from offtop.model.values.stack import NO_STACK, nameless
from offtop.model.values.table import (
    NO_SITES,
    SITES,
    Ints,
    Mask,
    SiteKeys,
    distinct_codes,
    distinct_rows,
    integers,
    rows_at,
    thread_codes,
)
from offtop.model.values.waits import BOUND, KERNEL, SINCE_NS, SWITCHED_OUT_NS, USER, WAKE, WaitList
from offtop.model.windows.breakdown import RUN_QUEUE, SLEEP, STOPPED, THROTTLE, Leaf, Shares
from offtop.model.windows.stuck import Stuck
from offtop.model.windows.window import Window

_RESOURCES = frozenset({RUN_QUEUE, THROTTLE})
PIPE, LOCK = "pipe", "lock"
_KNOWN_TO_WAIT = frozenset({UPSTREAM, ANSWER, BACKLOG})
_SITE = [KERNEL, USER, WAKE, 0]
"""Columns of breakdown.sites_of."""
SATURATED = 0.9
"""Running and runnable threads on average, from which a server is late for all of its clients."""


class WaitsOfTick:
    """The waits in progress at the end of a tick. `row` is always an index into `blocked`. Not thread-safe."""

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
        self._peers = peers
        self.waits = WaitList.of(blocked.waits)
        shares = blocked.shares
        self._leaves = shares.leaves if shares else ()
        self._leaf = shares.leaf if shares else np.empty(0, np.int64)
        self.idle = self._is_leaf(lambda leaf: leaf.idle)
        """Which rows look idle."""
        self.ages_ns = self.waits.ages_ns(blocked.at_ns)
        self._ids = self.waits.sites
        """Sites, with the user stack of the thread's last wait there if that of this wait is not known yet."""
        if shares:
            self._ids = ended.in_place_of_unknown(blocked, shares, every, snapshot.catalog)
        sites, self._site_of = distinct_rows(self._ids[:, _SITE])
        self._sites = sites
        """Distinct sites as of breakdown.sites_of; `_site_of` has the number of each row's. Thousands of threads may
        wait at one."""
        self._rules: dict[int, Rule | None] = {}
        """Cause rules of the sites for which they have been looked up, by number."""
        self.idle |= self._like_idle_ones()
        self.is_unclear = self._unclear_rows()
        """Which rows are at a lock and may be idle, because no function of their program is known yet."""
        may_be_idle = self.is_unclear | self.idle
        self.graph = wait_graph(snapshot, blocked, every, window.span_ns, self.activity, peers, may_be_idle)
        self.paths = Paths(len(self.graph.nodes), self.graph.edges)
        self.via = {edge.source: edge.via for edge in self.graph.edges.of_waits}
        """Row → how it is known which thread must act."""
        self._answers = defaultdict[int, list[Edge]](list)
        """By row: edges to processes that may owe an answer, or data."""
        for edge in self.graph.edges.of_waits:
            if edge.via in (ANSWER, SOCKET, PIPE_END):
                self._answers[edge.source].append(edge)
        self.counts = self._counted()
        """Which nodes' own waits count."""
        self.standing = self._standing()
        """Rows of standing waits."""

    @property
    def has_settled(self) -> bool:
        """Whether offtop has measured for long enough to know standing waits; in samples of /proc there are none."""
        return bool(self.snapshot.sampling) or self.blocked.at_ns - self._since_ns >= self._weights.settle_ns

    @property
    def standing_sites(self) -> SiteKeys:
        """The sites of standing waits that went on through the whole window.

        There are none if /proc was sampled, or in the first seconds, because then it is unknown whether other threads
        wait for them.
        """
        if not len(self.standing) or not self.has_settled or self.snapshot.sampling:
            return NO_SITES
        ids = rows_at(self.waits.sites, self.standing)
        return SiteKeys(rows_at(ids, self._window.still.mask(ids)))

    def program(self, pid: int) -> str:
        """Return the name of a process, also of one that is only known as the other end of a wait. Raw."""
        return self.snapshot.catalog.process(pid) or self._peers.names.get(pid, "")

    def is_for_request(self, row: int) -> bool:
        """Return whether a wait is for the next message of a client that is not stopped: the server has no work."""
        return (
            self._is_of_client(row)
            and self._leaves[int(self._leaf[row])].category in self._weights.normal
            and self._has_normal_cause(row)
            and not self._is_owed(row)
        )

    def programs_at(self, category: str) -> set[str]:
        """Return the programs with a thread in a wait of that category."""
        pids: list[int] = np.unique(self.waits.rows[self._is_leaf(lambda leaf: leaf.category == category), 0]).tolist()
        return {*map(self.snapshot.catalog.process, pids)}

    def polls_unread(self, pid: int) -> bool:
        """Return whether a thread of the process polls, with a stack that is not known yet."""
        rows = np.flatnonzero((self._ids[:, 0] == pid) & (self._ids[:, USER] == NO_STACK)).tolist()
        return any(self.graph.nodes.category(row) == POLL for row in rows)

    def place(self, row: int) -> SiteKey:
        """Return a wait's site, with the user stack of an ended wait if its own is not known yet."""
        return SITES.key(self._ids[row].tolist())

    def kinds(self, rows: Ints) -> tuple[list[int], Ints]:
        """Group rows of one leaf at one site of one process.

        Returns the first row of each group, and the number of each row's group.
        """
        codes = self._leaf[rows] * len(self._sites) + self._site_of[rows]
        _, first, which = np.unique(codes, return_index=True, return_inverse=True)
        return rows[first].tolist(), which

    def rule(self, row: int) -> Rule | None:
        """Return the cause rule of a wait."""
        number = int(self._site_of[row])
        if number not in self._rules:
            self._look_up([number])
        return self._rules[number]

    def look_up(self, rows: Ints) -> None:
        """Look up the cause rules of many waits at once."""
        self._look_up([one for one in distinct_codes(self._site_of[rows]).tolist() if one not in self._rules])

    def _look_up(self, numbers: Sequence[int]) -> None:
        found = self._causes.rules_at([self._sites[number] for number in numbers], self.snapshot.catalog)
        self._rules.update(zip(numbers, found, strict=True))

    def _is_leaf(self, holds: Callable[[Leaf], bool]) -> Mask:
        """Return for which rows `holds` is true of the leaf."""
        return np.array([holds(leaf) for leaf in self._leaves], np.bool_)[self._leaf]

    def _like_idle_ones(self) -> Mask:
        """Return which rows, whose stack is not known yet, are likely idle by a rule: like the thread's last wait."""
        found = np.zeros(len(self._leaf), np.bool_)
        rows = np.flatnonzero(self._ids[:, USER] != self.waits.sites[:, USER])
        self.look_up(rows)
        first, which = self.kinds(rows)
        rules = map(self.rule, first)
        found[rows] = np.array([rule is not None and rule.idle is True for rule in rules], np.bool_)[which]
        return found

    def _unclear_rows(self) -> Mask:
        """Return the rows of `is_unclear`."""
        found = np.zeros(len(self._leaf), np.bool_)
        blockers, names, catalog = self.snapshot.blockers, self._causes.names, self.snapshot.catalog
        rows = np.flatnonzero(self._is_leaf(lambda leaf: leaf.category == LOCK and not leaf.idle))
        rows = rows[~np.isin(thread_codes(self._ids[rows]), thread_codes(integers([*blockers], 2)))]
        users, of_users = np.unique(self._ids[rows, USER], return_inverse=True)
        frames = (catalog.stack(user).frames for user in users.tolist())
        is_unnamed = [not any(names.of(one) != nameless(one) for one in some) for some in frames]
        unnamed = rows[np.array(is_unnamed, np.bool_)[of_users]]
        first, which = self.kinds(unnamed)
        self.look_up(unnamed)
        found[unnamed] = np.array([self.rule(row) is None for row in first], np.bool_)[which]
        return found

    def _counted(self) -> Mask:
        """Return which nodes' own waits count: rows that do not look idle, or are known to wait for an answer.

        Waits for a CPU or a quota are short, so their time in the window is counted instead (Activity). Short waits for
        a pipe do not count: programs that work together take turns by them.
        """
        looks_idle = self.idle.copy()
        looks_idle[[row for row, via in self.via.items() if via in _KNOWN_TO_WAIT]] = False
        is_short = self._is_leaf(lambda leaf: leaf.category == PIPE) & (self.ages_ns < self._weights.least_age_ns)
        counts = np.zeros(len(self.graph.nodes), np.bool_)
        counts[: len(self.idle)] = ~looks_idle & ~self._is_leaf(lambda leaf: leaf.category in _RESOURCES) & ~is_short
        return counts

    def _standing(self) -> Ints:
        if not len(self.waits):
            return np.empty(0, np.int64)
        rows = self.waits.rows
        # A scan may find a wait in later ticks, too: after a filter was removed, or after a record was lost.
        was_found = (rows[:, BOUND] != Bound.EXACT) | (
            (rows[:, SINCE_NS] != 0) & (rows[:, SINCE_NS] < rows[:, SWITCHED_OUT_NS])
        )
        is_old = self.ages_ns >= self._weights.standing_ns
        is_old |= was_found & (self.waits.began_ns <= self._since_ns)
        old = np.flatnonzero(self._are_of_normal_kind(is_old & self.counts[: len(rows)]))
        self.look_up(old)
        first, which = self.kinds(old)
        may = old[np.array([self._has_normal_cause(row) for row in first], np.bool_)[which]]
        own = self.counts.astype(np.float64)
        own[may] = 0.0
        through = self.paths.passed(own).through
        return may[through[may] <= 0]

    def _are_of_normal_kind(self, rows: Mask) -> Mask:
        """Return which of these rows are of a category in which a thread waits for work."""
        is_normal = rows & self._is_leaf(lambda leaf: leaf.category in self._weights.normal)
        locked = np.flatnonzero(rows & self._is_leaf(lambda leaf: leaf.category == LOCK))
        self.look_up(locked)
        first, which = self.kinds(locked)
        is_normal[locked] = np.array([self._sleeps(row) for row in first], np.bool_)[which]
        for row in self.via:
            if is_normal[row]:
                is_normal[row] = not self._is_owed(row) and self.via[row] not in self._weights.via
        return is_normal

    def _is_owed(self, row: int) -> bool:
        return any(self._owes(edge) for edge in self._answers.get(row, ()))

    def _owes(self, edge: Edge) -> bool:
        """Return whether the target of an edge owes the waiting thread an answer, as far as is known.

        The writer of a pipe, and a client, may have nothing to send, whatever they wait for, unless they are stopped.
        """
        if edge.via == PIPE_END or (edge.via == SOCKET and self._is_of_client(edge.source)):
            own = self.graph.edges.threads_of(edge.target) or [edge.target]
            return any(self.graph.nodes[one].state == STOPPED for one in own)
        if edge.via == ANSWER:
            is_away = self.graph.nodes[edge.target].state == AWAY  # so nobody here knows whether it looks idle
            return edge.is_exact or is_away or self._is_at_work(edge.target, has_request=True)
        return self._is_at_work(edge.target, has_request=False)

    def _is_of_client(self, row: int) -> bool:
        """Return whether a thread waits on a connection that its process has accepted."""
        catalog = self.snapshot.catalog
        return catalog.peers_of(catalog.wake(int(self.waits.rows[row, WAKE])).object).is_client

    def _is_at_work(self, node: int, has_request: bool) -> bool:
        """Return whether the process that may owe an answer does not look idle itself.

        `has_request`: it has received a request, so it is late if it sleeps, or if its CPUs are saturated.
        """
        threads = self.graph.edges.threads_of(node)
        if threads:
            return any(self._is_at_work(thread, has_request) for thread in threads)
        key, row, state, _ = self.graph.nodes[node]
        if state in (RUNS, RUN_QUEUE):
            return has_request and self.activity.busy(key)[1] >= SATURATED
        if state in (IDLE, UNMEASURED, AWAY):
            return False
        if row >= 0 and self.is_unclear[row]:
            return False
        if state == STOPPED or (has_request and state == SLEEP):
            return True
        return state not in self._weights.normal and not (row >= 0 and self.idle[row])

    def _sleeps(self, row: int) -> bool:
        rule = self.rule(row)
        return rule is not None and rule.is_sleep

    def _has_normal_cause(self, row: int) -> bool:
        rule = self.rule(row)
        return rule is None or rule.general.id not in self._weights.cause
