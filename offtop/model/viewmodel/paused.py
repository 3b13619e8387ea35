"""The ticks that a paused view shows, and the threads that exist at a tick."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from offtop.model.values.catalog import ThreadKey
from offtop.model.values.snapshot import Snapshot
from offtop.model.windows.history import History, HistoryTick
from offtop.units import NS_PER_S

LONGEST_ROLLING_NS = 60 * NS_PER_S


class AllThreads(NamedTuple):
    threads: Collection[ThreadKey]
    of_process: Mapping[int, int]
    """pid → how many of these."""


def all_threads(snapshot: Snapshot | None) -> AllThreads:
    """Return the threads that have ever done anything, without evicted ones."""
    return _counted_by_process({*snapshot.threads, *snapshot.waiting} if snapshot else ())


def _threads_in(ticks: Sequence[HistoryTick]) -> AllThreads:
    """Return the same for a past tick: the threads that did anything in it, or waited."""
    return _counted_by_process({key for key, _ in ticks[-1].window.each_thread()} if ticks else ())


def _counted_by_process(threads: Collection[ThreadKey]) -> AllThreads:
    return AllThreads(threads, Counter(pid for pid, _ in threads))


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
