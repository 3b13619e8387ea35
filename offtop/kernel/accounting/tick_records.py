"""Records of one tick for the ledger: what threads did, waits in progress, run times, finished waits.

They are columns, because there may be many thousands; one of them is a NamedTuple.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from offtop.kernel.bpf import layout
from offtop.kernel.bpf.layout import ThreadRecord
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import SiteKey, ThreadKey
from offtop.model.values.snapshot import NO_HOLDER, Bound, Holder, SiteTotals, Waiting
from offtop.model.values.stack import NO_STACK
from offtop.model.values.table import SITES, THREADS, Ints, Mask, integers
from offtop.model.values.waits import WaitList
from offtop.model.values.wake import NO_WAKE

Columns = NDArray[np.void]
"""A structured array."""


_UNSIGNED = ("first_kernel", "first_user", "first_wake")
"""Ids, which may have bit 63 set. Times and counts do not; as signed integers they can be subtracted."""
THREAD_ROW = np.dtype(
    [(name, np.uint64 if name in _UNSIGNED else np.int64) for name in ThreadRecord._fields[:26]]
    + [(name, np.uint32) for name in ThreadRecord._fields[26:30]]
    + [("histogram", np.int64, log2.LANES)]
)
"""A ThreadRecord in an array. It is not in layout.py, which the sandboxed readers import, without NumPy."""


def record_of(row: np.void) -> ThreadRecord:
    """Return a THREAD_ROW as a ThreadRecord."""
    return ThreadRecord._make(layout.THREAD.unpack(row.tobytes()))


class ThreadRecords:
    """What threads did in the tick. A thread may have several, the earliest first."""

    def __init__(self, ids: Ints, rows: Columns) -> None:
        """`ids` is (n, 2): pid, tid. `rows` is of THREAD_ROW."""
        self.ids, self.rows = ids, rows

    @classmethod
    def of(cls, records: "ThreadRecords | Iterable[tuple[ThreadKey, ThreadRecord]]") -> "ThreadRecords":
        """Convert `records`, unless they are ThreadRecords already."""
        if isinstance(records, ThreadRecords):
            return records
        every = list(records)
        packed = b"".join(layout.THREAD.pack(*record) for _, record in every)
        return cls(integers([key for key, _ in every], 2), np.frombuffer(packed, THREAD_ROW))

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[tuple[ThreadKey, ThreadRecord]]:
        return zip(map(THREADS.key, self.ids.tolist()), map(record_of, self.rows), strict=True)

    def of_rows(self, which: Ints | Mask) -> "ThreadRecords":
        return ThreadRecords(self.ids[which], self.rows[which])


class OffCpuTask(NamedTuple):
    """One off-CPU thread, as the task scan found it."""

    key: ThreadKey
    switched_out_ns: int
    runnable: bool
    queued_ns: int
    """Start of its time on the run queue (CLOCK_MONOTONIC), or 0 if unknown."""
    kernel: int | None
    """Stack id, or None if the scan did not collect the stack."""
    state: int = 1
    """The task's state as in ThreadRecord: layout.RUNNING, or the kernel's bits."""
    since_ns: int = 0
    """Start of the wait (CLOCK_MONOTONIC) if it was before switched_out_ns; 0 if it began at switched_out_ns."""
    bound: Bound = Bound.EXACT
    call: int = -1
    arguments: tuple[int, ...] = ()
    wake: int = NO_WAKE
    """Id of the catalog entry for the object it waits on."""
    holder: Holder = NO_HOLDER
    """The thread that holds the kernel lock it waits for."""
    tid_acquired_ns: int = 0
    """As in ThreadRecord."""


class OffCpuTasks:
    """The off-CPU threads of a task scan."""

    def __init__(self, waits: WaitList, runnable: Mask, queued_ns: Ints, tid_acquired_ns: Ints) -> None:
        """`waits` has what the scan knows of each wait; its kernel stack is NOT_SCANNED if that was not collected."""
        self.waits, self.runnable, self.queued_ns, self.tid_acquired_ns = waits, runnable, queued_ns, tid_acquired_ns

    @classmethod
    def of(cls, tasks: "OffCpuTasks | Iterable[OffCpuTask]") -> "OffCpuTasks":
        """Convert `tasks`, unless they are OffCpuTasks already."""
        if isinstance(tasks, OffCpuTasks):
            return tasks
        every = list(tasks)
        facts = integers([(one.runnable, one.queued_ns, one.tid_acquired_ns) for one in every], 3)
        return cls(WaitList.of(map(_waiting, every)), facts[:, 0] != 0, facts[:, 1], facts[:, 2])

    def __len__(self) -> int:
        return len(self.waits)

    def of_rows(self, which: Ints | Mask) -> "OffCpuTasks":
        return OffCpuTasks(
            self.waits.of_rows(which), self.runnable[which], self.queued_ns[which], self.tid_acquired_ns[which]
        )


NOT_SCANNED = -2
"""Instead of a stack id."""


def _waiting(one: OffCpuTask) -> Waiting:
    site = SiteKey(*one.key, NOT_SCANNED if one.kernel is None else one.kernel, NO_STACK, one.wake)
    times = one.switched_out_ns, one.switched_out_ns, 0, False, one.since_ns
    return Waiting(site, *times, one.bound, one.state, one.call, one.arguments, holder=one.holder)


class NewThread(NamedTuple):
    """A new thread on its first CPU.

    Its wait for that CPU is over, and will be in its record once the thread is switched out.
    """

    key: ThreadKey
    switched_out_ns: int
    """Start of that wait (CLOCK_MONOTONIC): first_switched_out_ns of the record."""
    first_ns: int
    """Length of that wait."""
    tid_acquired_ns: int
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
    tid_acquired_ns: int = 0
    """As in ThreadRecord. Set only if the thread has exited."""


class RuntimeSamples:
    """CPU times of threads. A thread may have several, the earliest first."""

    def __init__(self, rows: Columns) -> None:
        """`rows` is of SAMPLE_ROW."""
        self.rows = rows

    @classmethod
    def of(cls, samples: "RuntimeSamples | Iterable[RuntimeSample]") -> "RuntimeSamples":
        """Convert `samples`, unless they are RuntimeSamples already."""
        if isinstance(samples, RuntimeSamples):
            return samples
        return cls(np.array([tuple(one) for one in samples], SAMPLE_ROW))

    @property
    def ids(self) -> Ints:
        """(n, 2): pid, tid"""
        return self.rows["key"]

    def __len__(self) -> int:
        return len(self.rows)

    def of_rows(self, which: Ints | Mask) -> "RuntimeSamples":
        return RuntimeSamples(self.rows[which])


SAMPLE_ROW = np.dtype(
    [
        ("key", np.int64, 2),
        *((name, np.bool_ if name == "ended" else np.int64) for name in RuntimeSample._fields[1:]),
    ]
)
"""A RuntimeSample in an array."""


class SiteDeltas(NamedTuple):
    """Finished waits of one tick by site: one row for each of `keys`, which may repeat."""

    keys: list[SiteKey]
    numbers: Ints
    """(n, 4): the fields of SiteTotals except the histogram."""
    lanes: Ints
    """(n, 40)"""
    tid_acquired_ns: Sequence[int] = ()
    """One value per row, as in layout.ThreadRecord. Empty if all are 0."""

    @classmethod
    def of(cls, entries: Iterable[tuple[SiteKey, SiteTotals]]) -> "SiteDeltas":
        keys, totals = [list(column) for column in zip(*entries, strict=True)] or ([], [])
        return cls(keys, integers([one[:-1] for one in totals], 4), log2.to_lanes([one[-1] for one in totals]))

    def totals(self, row: int) -> SiteTotals:
        return SITES.totals((*self.numbers[row].tolist(), *log2.of_lanes(self.lanes[row : row + 1])))

    def without(self, rows: Sequence[int]) -> "SiteDeltas":
        left = np.delete(np.arange(len(self.keys)), rows)
        tid_acquired_ns = [self.tid_acquired_ns[row] for row in left.tolist()] if self.tid_acquired_ns else ()
        return SiteDeltas(
            [self.keys[row] for row in left.tolist()], self.numbers[left], self.lanes[left], tid_acquired_ns
        )
