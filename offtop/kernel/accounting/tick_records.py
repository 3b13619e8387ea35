"""Records of one tick for the ledger: what threads did, waits in progress, run times, finished waits.

Each class holds them as columns, because there may be many thousands, and has a NamedTuple for a single one.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from offtop.kernel.bpf import layout
from offtop.kernel.bpf.layout import ThreadRecord
from offtop.kernel.bpf.scan_rows import THREAD_ROW, Rows, chosen, joined, record_of
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import SiteKey, ThreadKey
from offtop.model.values.snapshot import NO_HOLDER, Bound, Holder, SiteTotals, Waiting
from offtop.model.values.stack import NO_STACK
from offtop.model.values.table import SITES, THREADS, Ints, Mask, integers, positions_of, rows_at, thread_codes
from offtop.model.values.waits import READ_USER, SWITCHED_OUT_NS, WaitList
from offtop.model.values.wake import NO_WAKE


class ThreadRecords:
    """What threads did in the tick. A thread may have several, the earliest first."""

    def __init__(self, ids: Ints, rows: Rows) -> None:
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

    @classmethod
    def all(cls, parts: Sequence["ThreadRecords"]) -> "ThreadRecords":
        """Concatenate `parts`; their rows are large, and mostly all are in one of them."""
        parts = [one for one in parts if len(one)] or parts[:1]
        return (
            parts[0]
            if len(parts) == 1
            else cls(np.concatenate([one.ids for one in parts]), joined([one.rows for one in parts]))
        )

    @property
    def identities(self) -> Ints:
        """Return a new table: pid, tid, and when the thread acquired its tid."""
        return np.column_stack((self.ids, self.rows["tid_acquired_ns"].astype(np.int64)))

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[tuple[ThreadKey, ThreadRecord]]:
        return zip(map(THREADS.key, self.ids.tolist()), map(record_of, self.rows), strict=True)

    def of_rows(self, which: Ints | Mask) -> "ThreadRecords":
        return ThreadRecords(rows_at(self.ids, which), chosen(self.rows, which))

    def without(self, pids: Collection[int]) -> "ThreadRecords":
        return self.of_rows(~np.isin(self.ids[:, 0], [*pids]))


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
        numbers = integers([(one.runnable, one.queued_ns, one.tid_acquired_ns) for one in every], 3)
        return cls(WaitList.of(map(_waiting, every)), numbers[:, 0] != 0, numbers[:, 1], numbers[:, 2])

    def __len__(self) -> int:
        return len(self.waits)

    def of_rows(self, which: Ints | Mask) -> "OffCpuTasks":
        return OffCpuTasks(
            self.waits.of_rows(which), self.runnable[which], self.queued_ns[which], self.tid_acquired_ns[which]
        )

    def without(self, pids: Collection[int]) -> "OffCpuTasks":
        return self.of_rows(~np.isin(self.waits.rows[:, 0], [*pids]))

    def with_users(self, ids: Ints, switched_out_ns: Ints, users: Ints) -> "OffCpuTasks":
        """Set the user stacks (catalog ids) of the waits of these threads (pid, tid) that began then."""
        rows = self.waits.rows.copy()
        at = positions_of(thread_codes(rows), thread_codes(ids))
        is_same = (at >= 0) & (switched_out_ns[at] == rows[:, SWITCHED_OUT_NS]) if len(ids) else at >= 0
        rows[is_same, READ_USER] = users[at[is_same]]
        return OffCpuTasks(WaitList(rows, self.waits.holders), self.runnable, self.queued_ns, self.tid_acquired_ns)


NOT_SCANNED = -2
"""Instead of a stack id: the scan did not collect the stack."""


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

    def __init__(self, rows: Rows) -> None:
        """`rows` is of SAMPLE_ROW."""
        self.rows = rows

    @classmethod
    def of(cls, samples: "RuntimeSamples | Iterable[RuntimeSample]") -> "RuntimeSamples":
        """Convert `samples`, unless they are RuntimeSamples already."""
        if isinstance(samples, RuntimeSamples):
            return samples
        return cls(np.array([tuple(one) for one in samples], SAMPLE_ROW))

    @classmethod
    def all(cls, parts: Sequence["RuntimeSamples"]) -> "RuntimeSamples":
        return cls(joined([one.rows for one in parts]))

    @property
    def ids(self) -> Ints:
        """(n, 2): pid, tid"""
        return self.rows["key"]

    def __len__(self) -> int:
        return len(self.rows)

    def of_rows(self, which: Ints | Mask) -> "RuntimeSamples":
        return RuntimeSamples(chosen(self.rows, which))

    def without(self, pids: Collection[int]) -> "RuntimeSamples":
        return self.of_rows(~np.isin(self.ids[:, 0], [*pids]))


SAMPLE_ROW = np.dtype(
    [
        ("key", np.int64, 2),
        *((name, np.bool_ if name == "ended" else np.int64) for name in RuntimeSample._fields[1:]),
    ]
)
"""A RuntimeSample in an array."""


class SiteDeltas(NamedTuple):
    """Finished waits of one tick by site: one row for each site, which may repeat."""

    ids: Ints
    """(n, 5) as in SiteKey"""
    numbers: Ints
    """(n, 4): the fields of SiteTotals except the histogram."""
    lanes: Ints
    """(n, 40): their histograms."""
    tid_acquired_ns: Ints
    """As in layout.ThreadRecord; 0 if unknown."""
    raw: NDArray[np.uint64]
    """(n, 3): raw ids of kernel stack, user stack and wake; 0 if unknown."""

    @classmethod
    def of(cls, entries: Iterable[tuple[SiteKey, SiteTotals]]) -> "SiteDeltas":
        keys, totals = [list(column) for column in zip(*entries, strict=True)] or ([], [])
        ids, numbers = integers(keys, SITES.width), integers([one[:-1] for one in totals], 4)
        lanes = log2.to_lanes([one[-1] for one in totals])
        return cls(ids, numbers, lanes, np.zeros(len(keys), np.int64), np.zeros((len(keys), 3), np.uint64))

    def key(self, row: int) -> SiteKey:
        return SITES.key(self.ids[row].tolist())

    def totals(self, row: int) -> SiteTotals:
        return SITES.totals((*self.numbers[row].tolist(), *log2.of_lanes(self.lanes[row : row + 1])))

    def of_rows(self, which: Ints | Mask) -> "SiteDeltas":
        ids, numbers, lanes, tid_acquired_ns, raw = self
        ids, numbers, lanes = (rows_at(column, which) for column in (ids, numbers, lanes))
        return SiteDeltas(ids, numbers, lanes, tid_acquired_ns[which], rows_at(raw, which))

    def without(self, pids: Collection[int]) -> "SiteDeltas":
        return self.of_rows(~np.isin(self.ids[:, 0], [*pids]))
