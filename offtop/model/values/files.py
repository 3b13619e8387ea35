"""File operations: what system calls did with each file, in one tick or a longer span.

They are counted only while they are requested, and have nothing to do with the totals of waits: a call also counts
while it runs, and time off CPU is part of its time.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import NamedTuple

from offtop.model.values import histogram as log2
from offtop.model.values.io_stacks import IoStack, StackTotals, of_rows, summed
from offtop.model.values.largest import largest

FILE = "file"
"""The mode that shows file operations. Beside them, the same is gathered as in mode offcpu."""
MMAP_READ = "mmap-read"
"""A page fault on a mapped file in which the thread slept."""
RING_OPERATIONS = ("uring-read", "uring-write", "uring-fsync", "uring-syncrange", "uring-fallocate", "uring-ftruncate")
"""Requests to io_uring, from their submission to their completion. No thread need wait for them."""
OPERATIONS = (
    *("read", "write", "pread", "pwrite", "readv", "writev", "preadv", "pwritev", "preadv2", "pwritev2"),
    *("fsync", "fdatasync", "sync_file_range", "open", "openat", "openat2", "creat", "getdents"),
    *("ftruncate", "fallocate", "copy_file_range", "sendfile"),
    MMAP_READ,
    *RING_OPERATIONS,
)
"""Names of the operations, as system calls are called, without the 64 that some have at their end."""


class FileId(NamedTuple):
    device: int
    """As the kernel encodes it (dev_t): see `device`."""
    inode: int
    generation: int
    """Tells a file from a later one with the same inode number."""

    @property
    def device_text(self) -> str:
        """`8:1`, as in /proc/self/mountinfo."""
        return f"{self.device >> 20}:{self.device & 0xFFFFF}"


class FileKey(NamedTuple):
    pid: int
    operation: str
    """One of OPERATIONS."""
    file: FileId


class FileTotals(NamedTuple):
    """Totals of the calls of one process, operation and file. Times in ns."""

    calls: int = 0
    """Calls that returned."""
    bytes: int = 0
    """What they returned, for operations that return a number of bytes."""
    total_ns: int = 0
    """Time in these calls, including calls in progress, as far as it passed in the span."""
    off_cpu_ns: int = 0
    """The part of total_ns that was off CPU; 0 for RING_OPERATIONS."""
    max_ns: int = 0
    """The longest call that returned, however long before the span it began."""
    histogram: int = 0
    """Of calls that returned."""
    now_ns: int = 0
    """Age of the longest call in progress at the end of the span; 0: none."""

    def plus(self, later: "FileTotals") -> "FileTotals":
        return FileTotals(
            self.calls + later.calls,
            self.bytes + later.bytes,
            self.total_ns + later.total_ns,
            self.off_cpu_ns + later.off_cpu_ns,
            max(self.max_ns, later.max_ns),
            self.histogram + later.histogram,
            later.now_ns,
        )

    def percentile_ns(self, percentile: float) -> int:
        """Return an upper bound of the percentile of the calls that returned."""
        return log2.percentile_ns(self.histogram, percentile, self.max_ns)


NO_CALLS = FileTotals()
MOST_SUMMED = 10_000
"""Most entries of a longer span: on a machine that starts many processes there would be more with each tick."""


@dataclass(frozen=True, slots=True)
class FileActivity:
    """File operations in a span."""

    totals: Mapping[FileKey, FileTotals] = field(default_factory=dict[FileKey, FileTotals])
    names: Mapping[FileId, str] = field(default_factory=dict[FileId, str])
    """Paths as the processes have them, raw; `…/` in front of one whose upper directories are not known."""
    comms: Mapping[int, str] = field(default_factory=dict[int, str])
    """pid → raw name of one of its threads, for processes that are in no other table."""
    elided: FileTotals = NO_CALLS
    """Sum of what has no entry of its own, because there was too much: what took the least time in its tick."""
    elided_rows: int = 0
    """How many entries that stands for: in the tick that had most of them, and those that `added` left out."""
    lost: int = 0
    """Calls that were not counted, because there was no room for them."""
    stacks: Mapping[IoStack[FileKey], StackTotals] = field(default_factory=dict[IoStack[FileKey], StackTotals])
    """The calls in `totals` that reached the minimum, by stack, as far as they returned."""

    def name(self, file: FileId) -> str:
        """Return the path of a file; its numbers if it is unknown. Raw."""
        return self.names.get(file) or f"[inode {file.inode} on {file.device_text}]"


def added(spans: Iterable[FileActivity | None]) -> FileActivity | None:
    """Add up consecutive spans, earliest first; None if file operations were requested in none of them.

    Of more than MOST_SUMMED entries, those with the most time are kept; the others are in `elided`.
    """
    found = [one for one in spans if one is not None]
    if len(found) < 2:
        return found[0] if found else None
    totals: dict[FileKey, FileTotals] = {}
    names, comms = dict[FileId, str](), dict[int, str]()
    for one in found:
        for key, numbers in one.totals.items():
            was = totals.get(key)
            totals[key] = numbers if was is None else was.plus(numbers)
        names.update(one.names)
        comms.update(one.comms)
    last = found[-1].totals
    totals = {key: numbers if key in last else numbers._replace(now_ns=0) for key, numbers in totals.items()}
    elided = reduce(FileTotals.plus, (one.elided for one in found), NO_CALLS)
    elided_rows = max(one.elided_rows for one in found)
    kept, others = largest(totals, MOST_SUMMED, lambda numbers: numbers.total_ns)
    if others:
        elided, elided_rows = reduce(FileTotals.plus, others, elided), elided_rows + len(others)
        files, pids = {key.file for key in kept}, {key.pid for key in kept}
        names = {file: name for file, name in names.items() if file in files}
        comms = {pid: comm for pid, comm in comms.items() if pid in pids}
    stacks = of_rows(summed(one.stacks for one in found), kept, MOST_SUMMED)
    return FileActivity(kept, names, comms, elided, elided_rows, sum(one.lost for one in found), stacks)
