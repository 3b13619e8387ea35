"""The ticks that a paused view shows, and the threads that exist at a tick."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from offtop.model.values.catalog import ThreadKey, code_of, thread_of
from offtop.model.values.snapshot import Snapshot
from offtop.model.values.table import THREADS, Ints, distinct_codes, table_of, thread_codes
from offtop.model.values.waits import NO_WAITS, Waits
from offtop.model.windows.history import History, HistoryTick
from offtop.model.windows.stuck import NOTHING_STUCK
from offtop.units import NS_PER_S

LONGEST_ROLLING_NS = 60 * NS_PER_S


class ThreadKeys(Collection[ThreadKey]):
    """Distinct keys of threads, made when they are iterated over: most pictures only count them."""

    def __init__(self, codes: Ints) -> None:
        """`codes` (table.thread_codes) are distinct, and in order."""
        self.codes = codes

    def __len__(self) -> int:
        return len(self.codes)

    def __iter__(self) -> Iterator[ThreadKey]:
        return map(thread_of, self.codes.tolist())

    def __contains__(self, key: object) -> bool:
        return isinstance(key, ThreadKey) and bool(np.isin(code_of(key), self.codes))


class AllThreads(NamedTuple):
    threads: ThreadKeys
    of_process: Mapping[int, int]
    """pid → how many of these."""


def all_threads(snapshot: Snapshot | None) -> AllThreads:
    """Return the threads that have ever done anything, without evicted ones."""
    if snapshot is None:
        return _counted_by_process(np.zeros(0, np.int64))
    threads = table_of(THREADS, snapshot.threads)
    codes = thread_codes(threads.ids)[threads.present], Waits.of(snapshot.waiting).codes
    return _counted_by_process(np.concatenate(codes))


def _threads_in(ticks: Sequence[HistoryTick]) -> AllThreads:
    """Return the same for a past tick: the threads that did anything in it, or waited."""
    if not ticks:
        return _counted_by_process(np.zeros(0, np.int64))
    window = ticks[-1].window
    ids = table_of(THREADS, window.threads).ids, window.still.ids
    return _counted_by_process(np.concatenate([*map(thread_codes, ids)]))


def _counted_by_process(codes: Ints) -> AllThreads:
    """Count threads; their `codes` may repeat."""
    threads = ThreadKeys(distinct_codes(codes))
    pids, counts = np.unique(threads.codes >> 32, return_counts=True)
    return AllThreads(threads, dict(zip(pids.tolist(), counts.tolist(), strict=True)))


class PausedView:
    """Ticks that a paused view shows, and the waits in progress; History may drop them meanwhile."""

    def __init__(self, history: History, at_ns: int, mode: str) -> None:
        self.at_ns = at_ns
        oldest = history.oldest
        self.ticks = history.last(LONGEST_ROLLING_NS, at_ns) or ([oldest] if oldest else [])
        self._history = history
        self._is_newest = history.newest is not None and history.newest.at_ns == at_ns
        self.everyone = all_threads(history.latest) if self._is_newest else _threads_in(self.ticks)
        self.waits = history.waits(self.ticks[-1]) if self.ticks else NO_WAITS
        self.stuck = history.stuck(self.ticks[-1]) if self.ticks else NOTHING_STUCK
        self._since_start: dict[str, HistoryTick | None] = {}
        if self._is_newest:
            self._since_start[mode] = history.since_start(mode)

    def since_start(self, mode: str) -> HistoryTick | None:
        """Return everything since the start up to the paused tick.

        For an earlier tick, or in another mode than the one it was paused in, it is built when needed, and goes back
        only as far as History does.
        """
        if mode not in self._since_start:
            self._since_start[mode] = self._history.until(self.at_ns, mode)
        return self._since_start[mode]
