"""Records of one tick for the ledger, besides the per-thread records: waits in progress, run times, finished waits."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from offtop.model.values import histogram as log2
from offtop.model.values.catalog import SiteKey, ThreadKey
from offtop.model.values.snapshot import NO_HOLDER, Bound, Holder, SiteTotals
from offtop.model.values.table import SITES, Ints, integers
from offtop.model.values.wake import NO_WAKE


class OffCpuTask(NamedTuple):
    """One off-CPU thread, as the task scan found it."""

    key: ThreadKey
    left_ns: int
    runnable: bool
    queued_ns: int
    """Start of its time on the run queue (CLOCK_MONOTONIC), or 0 if unknown."""
    kernel: int | None
    """Stack id, or None if the scan did not collect the stack."""
    state: int = 1
    """The task's state as in ThreadRecord: layout.RUNNING, or the kernel's bits."""
    since_ns: int = 0
    """Start of the wait (CLOCK_MONOTONIC) if it was before left_ns; 0 if it began at left_ns."""
    bound: Bound = Bound.EXACT
    call: int = -1
    arguments: tuple[int, ...] = ()
    wake: int = NO_WAKE
    """Id of the catalog entry for the object it waits on."""
    holder: Holder = NO_HOLDER
    """The thread that holds the kernel lock it waits for."""
    born_ns: int = 0
    """As in ThreadRecord."""


class NewThread(NamedTuple):
    """A new thread on its first CPU.

    Its wait for that CPU is over, and will be in its record once the thread is switched out.
    """

    key: ThreadKey
    left_ns: int
    """Start of that wait (CLOCK_MONOTONIC): first_left_ns of the record."""
    first_ns: int
    """Length of that wait."""
    born_ns: int
    """As in ThreadRecord."""


class RuntimeSample(NamedTuple):
    """A thread's CPU time, from the task scan or from its exit record."""

    key: ThreadKey
    exec_ns: int
    """Total since the thread began."""
    start_ns: int
    """Start time of the thread (CLOCK_MONOTONIC)."""
    at_ns: int = 0
    """When exec_ns was read. 0 if that was at the end of the tick, or if the thread has not run since."""
    off_ns: int = 0
    """Off-CPU time that its record of this tick contained at at_ns."""
    ended: bool = False
    """True if the thread has exited: exec_ns is final."""
    born_ns: int = 0
    """As in ThreadRecord. Set only if the thread has exited."""


class SiteDeltas(NamedTuple):
    """Finished waits of one tick by site: one row for each of `keys`, which may repeat."""

    keys: list[SiteKey]
    numbers: Ints
    """(n, 4): the fields of SiteTotals except the histogram."""
    lanes: Ints
    """(n, 40)"""
    born_ns: Sequence[int] = ()
    """One value per row, as in layout.ThreadRecord. Empty if all are 0."""

    @classmethod
    def of(cls, entries: Iterable[tuple[SiteKey, SiteTotals]]) -> "SiteDeltas":
        keys, totals = [list(column) for column in zip(*entries, strict=True)] or ([], [])
        return cls(keys, integers([one[:-1] for one in totals], 4), log2.to_lanes([one[-1] for one in totals]))

    def totals(self, row: int) -> SiteTotals:
        return SITES.totals((*self.numbers[row].tolist(), *log2.of_lanes(self.lanes[row : row + 1])))

    def without(self, rows: Sequence[int]) -> "SiteDeltas":
        left = np.delete(np.arange(len(self.keys)), rows)
        born_ns = [self.born_ns[row] for row in left.tolist()] if self.born_ns else ()
        return SiteDeltas([self.keys[row] for row in left.tolist()], self.numbers[left], self.lanes[left], born_ns)
