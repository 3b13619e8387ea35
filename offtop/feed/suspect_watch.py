"""Finds the suspects of each tick when it is read, and keeps them as long as its history keeps the tick."""

from collections.abc import Mapping

import numpy as np

from offtop.feed.source import Source
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import RuleSource
from offtop.model.classify.suspects import NOTHING_FOUND, Found, SuspectFinder, Weights
from offtop.model.classify.wait_graph import Activity
from offtop.model.values.peers import waited_on
from offtop.model.values.snapshot import Snapshot
from offtop.model.values.waits import WAKE, WaitList, Waits
from offtop.model.windows.baseline import Baseline
from offtop.model.windows.breakdown import FILTERED
from offtop.model.windows.history import HistoryTick
from offtop.model.windows.stuck import Stuck, stuck

_MOST_KEPT = 1_000


class SuspectWatch:
    """`tick` is for the thread that reads ticks; any thread may call `at`."""

    def __init__(self, source: Source, weights: Weights, rules: RuleSource, baseline: Baseline | None = None) -> None:
        """`baseline`: how much waits when all is well; None: unknown."""
        self._source = source
        causes = CauseFinder(source.names, rules)
        self._finder = (
            SuspectFinder(weights, causes, usual_in(baseline)) if baseline else SuspectFinder(weights, causes)
        )
        self._found: dict[int, Found] = {}

    def tick(self, snapshot: Snapshot, kept: HistoryTick) -> Found:
        """Find the suspects of a tick, which ends at `snapshot`."""
        blocked = stuck(Waits.of(snapshot.waiting).list, snapshot.at_ns, snapshot.catalog, kept.idle)
        self._find_peers(blocked, snapshot)
        self._source.describe(snapshot.titles)  # a server and its database are told apart by their cgroup
        every = kept.shares
        found = self._finder.tick(snapshot, blocked, every, Activity(every, kept.window), kept.span_ns)
        self._found[kept.number] = found
        while len(self._found) > _MOST_KEPT:
            del self._found[next(iter(self._found))]
        return found

    def at(self, number: int) -> Found:
        """Return the suspects of the tick of that number; none if it is no longer kept."""
        return self._found.get(number, NOTHING_FOUND)

    def _find_peers(self, blocked: Stuck, snapshot: Snapshot) -> None:
        """Request who is at the other end of what is waited on, which will be known a few ticks later."""
        if blocked.shares is None:
            return
        shares = blocked.shares
        is_idle = np.array([leaf.idle for leaf in shares.leaves], np.bool_)[shares.leaf]
        rows = WaitList.of(blocked.waits).rows[~is_idle]
        pids_and_wakes: list[list[int]] = rows[:, [0, WAKE]].tolist()
        self._source.find_peers(waited_on(pids_and_wakes, snapshot.catalog.wakes))


def usual_in(baseline: Baseline) -> Mapping[tuple[str, str], float]:
    """Return (raw program, category) → how many threads on average waited that way."""
    sums: dict[tuple[str, str], int] = {}
    for _, every in baseline.parts:
        pids: list[int] = every.ids[:, 0].tolist()
        leaves: list[int] = every.leaf.tolist()
        ns: list[int] = every.total_ns.tolist()
        for pid, number, one_ns in zip(pids, leaves, ns, strict=True):
            category = every.leaves[number].category
            if category != FILTERED:
                of = baseline.catalog.process(pid), category
                sums[of] = sums.get(of, 0) + one_ns
    return {of: ns / max(1, baseline.span_ns) for of, ns in sums.items()}
