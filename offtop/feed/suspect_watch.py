"""Finds the suspects of each tick when it is read, and keeps them as long as its history keeps the tick."""

from collections.abc import Mapping

import numpy as np

from offtop.feed.source import Source
from offtop.model.aggregate.suspect_text import SuspectTexts
from offtop.model.classify.categories import Categories, is_periodic
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import RuleSource
from offtop.model.classify.ended_stacks import EndedStacks
from offtop.model.classify.standing import WaitsOfTick
from offtop.model.classify.suspect import NOTHING_FOUND, Found, Suspect
from offtop.model.classify.suspect_weights import Weights
from offtop.model.classify.suspects import SuspectFinder
from offtop.model.classify.wait_graph import KnownPeers
from offtop.model.values.peers import waited_on
from offtop.model.values.snapshot import Snapshot
from offtop.model.values.table import SiteKeys, rows_at
from offtop.model.values.waits import WAKE, WaitList
from offtop.model.values.wake import NO_WAKE
from offtop.model.windows.baseline import Baseline
from offtop.model.windows.breakdown import FILTERED, Shares
from offtop.model.windows.history import HISTORY_BYTES, HISTORY_NS, History, none_standing
from offtop.model.windows.stuck import Stuck
from offtop.model.windows.window import Window


class SuspectWatch:
    """Any thread may call `at` and `compare_with`; the rest is for the thread that reads ticks."""

    def __init__(self, source: Source, weights: Weights, rules: RuleSource, baseline: Baseline | None = None) -> None:
        """`baseline`: as for `compare_with`."""
        self._source = source
        self._weights, self._causes = weights, CauseFinder(source.names, rules)
        self._finder = SuspectFinder(weights)
        self.compare_with(baseline)
        self._peers, self._ended = KnownPeers(), EndedStacks()
        self._since_ns: int | None = None
        """CLOCK_MONOTONIC of the earliest moment that was measured; None: there is none yet."""
        self._waits: WaitsOfTick | None = None
        """Of the newest tick."""
        self._found: dict[int, Found] = {}

    def compare_with(self, baseline: Baseline | None) -> None:
        """Weigh waits from the next tick on by how much more there is than in `baseline`; None: in full."""
        self._finder.usual = usual_in(baseline) if baseline else {}

    def standing(self, snapshot: Snapshot, window: Window, every: Shares, blocked: Stuck) -> SiteKeys:
        """Return the sites of standing waits. Implements FindStanding of History."""
        self._find_peers(blocked, snapshot)
        self._source.describe(snapshot.titles)  # a server and its database are told apart by their cgroup
        begin_ns = self._source.since_ns or window.at_ns - window.span_ns
        self._since_ns = begin_ns if self._since_ns is None else min(self._since_ns, begin_ns)
        self._waits = WaitsOfTick(
            snapshot, window, blocked, every, self._weights, self._causes, self._peers, self._ended, self._since_ns
        )
        return self._waits.standing_sites

    def tick(self, history: History) -> Found:
        """Return the suspects of the newest tick of `history`, which has called `standing`."""
        newest, oldest = history.newest, history.oldest
        if self._waits is None or newest is None or oldest is None:
            return NOTHING_FOUND
        found = self._found[newest.number] = self._finder.tick(self._waits)
        self._source.describe(found.rivals)  # the CPUs on which they may run
        for number in [one for one in self._found if one < oldest.number]:
            del self._found[number]
        return found

    def sentence(self, one: Suspect) -> str:
        """Describe a suspect of the newest tick in a sentence, with the names of functions that are known. Raw."""
        if self._waits is None:
            return ""
        return SuspectTexts(self._waits.snapshot.catalog, self._source.names, self._causes).sentence(one).says

    @property
    def has_settled(self) -> bool:
        """Whether more time would not change which waits of the newest tick are standing."""
        return self._waits is not None and self._waits.has_settled

    def at(self, number: int) -> Found | None:
        """Return the suspects of the tick of that number; None if they are not found yet, or no longer kept."""
        return self._found.get(number)

    def _find_peers(self, blocked: Stuck, snapshot: Snapshot) -> None:
        """Request who is at the other end of what is waited on, which will be known a few ticks later."""
        if blocked.shares is None:
            return
        shares = blocked.shares
        is_idle = np.array([leaf.idle for leaf in shares.leaves], np.bool_)[shares.leaf]
        rows = WaitList.of(blocked.waits).rows
        rows = rows_at(rows, ~is_idle & (rows[:, WAKE] != NO_WAKE))
        _, first = np.unique(rows[:, WAKE], return_index=True)
        pids_and_wakes: list[list[int]] = rows[first][:, [0, WAKE]].tolist()
        self._source.find_peers(waited_on(pids_and_wakes, snapshot.catalog.wakes))


def usual_in(baseline: Baseline) -> Mapping[tuple[str, str], float]:
    """Return (raw program, category) → how many threads on average waited that way, without idle waits."""
    sums: dict[tuple[str, str], int] = {}
    for _, every in baseline.parts:
        pids: list[int] = every.ids[:, 0].tolist()
        leaves: list[int] = every.leaf.tolist()
        ns: list[int] = every.total_ns.tolist()
        for pid, number, one_ns in zip(pids, leaves, ns, strict=True):
            category = every.leaves[number].category
            if category != FILTERED and not every.leaves[number].idle:
                of = baseline.catalog.process(pid), category
                sums[of] = sums.get(of, 0) + one_ns
    return {of: ns / max(1, baseline.span_ns) for of, ns in sums.items()}


def history_for(
    categories: Categories,
    causes: CauseFinder,
    watch: SuspectWatch | None,
    max_ns: int = HISTORY_NS,
    max_bytes: int = HISTORY_BYTES,
) -> History:
    """Return an empty history of a source. Only the thread that adds may use `causes`.

    Without `watch`, no wait is standing.
    """
    standing = watch.standing if watch else none_standing
    return History(categories.idle, is_periodic, max_ns, max_bytes, causes.idle_by_rule, standing)
