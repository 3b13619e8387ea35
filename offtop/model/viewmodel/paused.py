"""The ticks that a paused view shows, and the threads that exist at a tick."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from offtop.model.values.catalog import ThreadKey
from offtop.model.values.snapshot import Snapshot
from offtop.model.values.table import NO_SITES, THREADS, Ints, table_of, thread_codes
from offtop.model.values.waits import Waits
from offtop.model.windows.history import History, HistoryTick
from offtop.units import NS_PER_S

LONGEST_ROLLING_NS = 60 * NS_PER_S
_TID_MASK = (1 << 32) - 1


class ThreadKeys(Collection[ThreadKey]):
    """Distinct keys of threads, made when they are iterated over: most pictures only count them."""

    def __init__(self, codes: Ints) -> None:
        """`codes` (table.thread_codes) may repeat."""
        self.codes = np.unique(codes)

    def __len__(self) -> int:
        return len(self.codes)

    def __iter__(self) -> Iterator[ThreadKey]:
        return map(ThreadKey, (self.codes >> 32).tolist(), (self.codes & _TID_MASK).tolist())

    def __contains__(self, key: object) -> bool:
        return isinstance(key, ThreadKey) and bool(np.isin(key.pid << 32 | key.tid, self.codes))


class AllThreads(NamedTuple):
    threads: ThreadKeys
    of_process: Mapping[int, int]
    """pid → how many of these."""


def all_threads(snapshot: Snapshot | None) -> AllThreads:
    """Return the threads that have ever done anything, without evicted ones."""
    if snapshot is None:
        return _counted_by_process(NO_SITES.ids)
    threads = table_of(THREADS, snapshot.threads)
    waiting = Waits.of(snapshot.waiting).list.sites
    return _counted_by_process(threads.ids[threads.present], waiting)


def _threads_in(ticks: Sequence[HistoryTick]) -> AllThreads:
    """Return the same for a past tick: the threads that did anything in it, or waited."""
    if not ticks:
        return _counted_by_process(NO_SITES.ids)
    window = ticks[-1].window
    return _counted_by_process(table_of(THREADS, window.threads).ids, window.still.ids)


def _counted_by_process(*ids: Ints) -> AllThreads:
    """Count the threads of keys; `ids` begin with pid and tid."""
    threads = ThreadKeys(np.concatenate([*map(thread_codes, ids)]))
    pids, counts = np.unique(threads.codes >> 32, return_counts=True)
    return AllThreads(threads, dict(zip(pids.tolist(), counts.tolist(), strict=True)))


class PausedView:
    """Ticks that a paused view shows; History may drop them meanwhile."""

    def __init__(self, history: History, at_ns: int, mode: str) -> None:
        self.at_ns = at_ns
        oldest = history.oldest
        self.ticks = history.last(LONGEST_ROLLING_NS, at_ns) or ([oldest] if oldest else [])
        self._history = history
        self._is_newest = history.newest is not None and history.newest.at_ns == at_ns
        self.everyone = all_threads(history.latest) if self._is_newest else _threads_in(self.ticks)
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
