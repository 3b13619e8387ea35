"""File operations and requests to disks."""

from typing import Annotated

from msgspec import UNSET, Struct, UnsetType

from offtop.model.values.disks import OPERATIONS as DISK_OPERATIONS
from offtop.model.values.files import OPERATIONS
from offtop.reports.objects.json_baseline import GoneIo, IoChangeIfCompared
from offtop.reports.objects.shared_fields import Count, Frames, Histogram, IsUnsure, StackEnd, one_of


class IoStack(Struct, frozen=True, kw_only=True):
    """Calls or requests of one row that reached the minimum and ended in this tick, by the code that they came from."""

    kernel: Frames
    user: Frames
    user_end: StackEnd
    """How the user stack ends."""
    user_unsure: IsUnsure
    bytes: Count
    total_ns: Count
    """Their time, however long before the tick they began."""
    max_ns: Count


class FileStack(IoStack, frozen=True, kw_only=True):
    """Calls of one row that came from one place.

    kernel is where such a call last waited for at least the minimum; empty: it did not.
    """

    calls: Count


class RequestStack(IoStack, frozen=True, kw_only=True):
    """Requests of one row that came from one place.

    kernel is how they were made. Their time is that in queue and disk.
    """

    requests: Count


class ElidedFileOperations(Struct, frozen=True, kw_only=True):
    """Sum of rows that were too many to keep: those with the least time."""

    rows: Count
    calls: Count
    bytes: Count
    total_ns: Count
    offcpu_ns: Count


class FileOperation(Struct, frozen=True, kw_only=True):
    """What one process did with one file, by one system call."""

    pid: int
    process: str
    op: Annotated[str, one_of(*OPERATIONS)]
    """System call, without the 64 that some have at their end; mmap-read: page faults on a mapped file that waited;
    uring-…: requests to io_uring, from submission to completion."""
    file: str
    """Path as the process has it; [inode N on MAJOR:MINOR] if it is unknown."""
    device: str
    """Device of its file system, MAJOR:MINOR."""
    inode: Count
    calls: Count
    """Calls that returned in this tick, like bytes, max_ns and histogram."""
    bytes: Count
    """Bytes that the calls returned, if they return a number of bytes."""
    total_ns: Count
    """ns in calls; calls in progress count as they go."""
    offcpu_ns: Count
    """The part of total_ns that was off CPU; 0 for requests to io_uring, for which no thread need wait."""
    max_ns: Count
    now_ns: Count
    """Age of the longest call in progress at the end of the tick; 0: none."""
    histogram: Histogram
    stacks: list[FileStack]
    """Most time first."""
    baseline: IoChangeIfCompared = UNSET


class FileOperations(Struct, frozen=True, kw_only=True):
    """File operations, on regular files, directories and block devices."""

    lost: Count
    """Calls that were not counted, because there was no room for them."""
    elided: ElidedFileOperations
    rows: list[FileOperation]
    """Only what matches the filter, most time first."""
    gone: list[GoneIo] | UnsetType = UNSET
    """With a baseline in which they were counted: what only that has, most time first."""


class RequestSums(Struct, frozen=True, kw_only=True):
    """Sums of requests to disks."""

    requests: Count
    """Requests that were completed in this tick, like bytes, queue_ns, device_ns, requeues and errors."""
    bytes: Count
    """What these transferred; of a discard, what it covers."""
    queue_ns: Count
    """Time of these from when the kernel made the request until the disk got it; after a requeue, got it last."""
    device_ns: Count
    """Time of these in the disk."""
    outstanding_ns: Count
    """Time of all requests in this tick, in queue or disk; those in progress count as they go."""
    merged: Count
    """I/O that became part of another request."""
    requeues: Count
    """How often the disk returned one of the completed requests to the queue."""
    errors: Count
    in_queue: Count
    """Requests in the queue at the end of the tick."""
    in_device: Count
    """Requests in the disk at the end of the tick."""
    now_ns: Count
    """Age of the oldest request in progress at the end of the tick; 0: none."""


class Disk(Struct, frozen=True, kw_only=True):
    """One disk, with all requests to it, whatever the filters choose."""

    disk: str
    device: str
    """MAJOR:MINOR."""
    busy_ns: Count
    """Time with any request in progress, as the kernel counts it in /proc/diskstats."""
    reads: RequestSums
    writes: RequestSums
    others: RequestSums
    """Flushes, discards, and commands that are neither reads nor writes."""
    max_ns: Count
    """The longest completed request, in queue and disk together."""
    queue_histogram: Histogram
    device_histogram: Histogram


class DiskRequest(RequestSums, frozen=True, kw_only=True):
    """Requests of one operation that one thread had done on one disk."""

    disk: str
    device: str
    """MAJOR:MINOR."""
    op: Annotated[str, one_of(*DISK_OPERATIONS)]
    pid: int
    """0: no process, see worker."""
    tid: int
    program: str
    """Name of the thread when it made a request; empty for kernel workers."""
    worker: str
    """What the kernel workers do that made these requests, such as flush-8:0, which writes back; empty: no worker."""
    max_ns: Count
    """The longest completed request, in queue and disk together."""
    queue_histogram: Histogram
    device_histogram: Histogram
    stacks: list[RequestStack]
    """Most time first."""
    baseline: IoChangeIfCompared = UNSET


class DiskRequests(Struct, frozen=True, kw_only=True):
    """Requests to block devices."""

    lost: Count
    """Requests that were not counted: there was no room for them, or their completion was missed."""
    elided_rows: Count
    """Rows that were too many to keep: those with the least time."""
    elided: RequestSums
    """Sum of these."""
    disks: list[Disk]
    """Most time first."""
    rows: list[DiskRequest]
    """Only what matches the filter, most time first."""
    gone: list[GoneIo] | UnsetType = UNSET
    """With a baseline in which they were counted: what only that has, most time first."""
