"""Requests to block devices in a tick or a longer span: how long they were in the queue, and how long in the device.

They are counted only while they are requested, and have nothing to do with the totals of waits.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from types import MappingProxyType
from typing import NamedTuple

from offtop.model.values import histogram as log2
from offtop.model.values.files import FILE, MOST_SUMMED
from offtop.model.values.io_stacks import IoStack, StackTotals, of_rows, summed
from offtop.model.values.largest import largest

DISK = "disk"
"""The mode that shows requests to block devices. Beside them, the same is gathered as in mode offcpu."""
LIST_MODES = (FILE, DISK)
"""Modes whose list is not about waits."""
LIST_NOUNS: Mapping[str, str] = MappingProxyType({FILE: "file operations", DISK: "requests to disks"})
"""What they list."""
LIST_UNITS: Mapping[str, str] = MappingProxyType({FILE: "calls", DISK: "requests"})
"""What they count."""
READS = ("read", "read-ahead", "meta-read")
WRITES = ("write", "sync-write", "meta-write", "zeroes")
OPERATIONS = (*READS, *WRITES, "flush", "discard", "zone", "other")
"""Names of the operations. `other`: commands that are neither, such as those of smartctl."""
MINOR_BITS = 20


def device_text(device: int) -> str:
    """Return `8:1` for a device number as the kernel encodes it (dev_t)."""
    return f"{device >> MINOR_BITS}:{device & ((1 << MINOR_BITS) - 1)}"


class DiskKey(NamedTuple):
    device: int
    """The whole disk, as the kernel encodes it (dev_t)."""
    operation: str
    """One of OPERATIONS."""
    pid: int
    """0: a kernel worker, see `worker`."""
    tid: int
    worker: str = ""
    """What the kernel worker does that made the request, whichever thread that is: `flush-8:0` writes back. Raw."""


class DiskTotals(NamedTuple):
    """Totals of the requests of one thread, operation and device. Times in ns."""

    requests: int = 0
    """Requests that were completed."""
    bytes: int = 0
    """What these transferred; of a discard, what it covers."""
    queue_ns: int = 0
    """Time of these in the queue: from when the kernel made the request until the device got it."""
    device_ns: int = 0
    """Time of these in the device."""
    outstanding_ns: int = 0
    """Time of all requests in queue or device, also of those in progress, as far as it passed in the span."""
    merged: int = 0
    """I/O that became part of another request."""
    requeues: int = 0
    """How often the device returned one of the completed requests to the queue."""
    errors: int = 0
    max_ns: int = 0
    """The longest completed request, in queue and device together, however long before the span it began."""
    histogram: int = 0
    """Of completed requests: queue and device together."""
    queue_histogram: int = 0
    device_histogram: int = 0
    now_ns: int = 0
    """Age of the oldest request in progress at the end of the span; 0: none."""
    in_queue: int = 0
    """Requests in the queue at the end of the span."""
    in_device: int = 0
    """Requests in the device at the end of the span."""

    def plus(self, later: "DiskTotals") -> "DiskTotals":
        return DiskTotals(*map(sum, zip(self[:8], later[:8], strict=True)))._replace(
            max_ns=max(self.max_ns, later.max_ns),
            histogram=self.histogram + later.histogram,
            queue_histogram=self.queue_histogram + later.queue_histogram,
            device_histogram=self.device_histogram + later.device_histogram,
            now_ns=later.now_ns,
            in_queue=later.in_queue,
            in_device=later.in_device,
        )

    @property
    def is_empty(self) -> bool:
        return not (self.requests or self.merged or self.outstanding_ns or self.now_ns)

    def without_now(self) -> "DiskTotals":
        return self._replace(now_ns=0, in_queue=0, in_device=0)

    def beside(self, other: "DiskTotals") -> "DiskTotals":
        """Add up with what happened in the same span."""
        return self.plus(other)._replace(
            now_ns=max(self.now_ns, other.now_ns),
            in_queue=self.in_queue + other.in_queue,
            in_device=self.in_device + other.in_device,
        )

    def percentile_ns(self, percentile: float) -> int:
        """Return an upper bound of the percentile of the completed requests."""
        return log2.percentile_ns(self.histogram, percentile, self.max_ns)

    def queue_percentile_ns(self, percentile: float) -> int:
        return log2.percentile_ns(self.queue_histogram, percentile, self.max_ns)

    def device_percentile_ns(self, percentile: float) -> int:
        return log2.percentile_ns(self.device_histogram, percentile, self.max_ns)


NO_REQUESTS = DiskTotals()


class DeviceTotals(NamedTuple):
    """Totals of all requests of one device, also of those that the filters of `-p` and the like leave out."""

    reads: DiskTotals = NO_REQUESTS
    writes: DiskTotals = NO_REQUESTS
    others: DiskTotals = NO_REQUESTS
    busy_ns: int = 0
    """Time with any request in progress, as the kernel counts it (/proc/diskstats)."""

    @property
    def every(self) -> DiskTotals:
        return self.reads.beside(self.writes).beside(self.others)

    def plus(self, later: "DeviceTotals") -> "DeviceTotals":
        return DeviceTotals(
            self.reads.plus(later.reads),
            self.writes.plus(later.writes),
            self.others.plus(later.others),
            self.busy_ns + later.busy_ns,
        )

    def without_now(self) -> "DeviceTotals":
        return self._replace(
            reads=self.reads.without_now(), writes=self.writes.without_now(), others=self.others.without_now()
        )


@dataclass(frozen=True, slots=True)
class DiskActivity:
    """Requests to block devices in a span."""

    totals: Mapping[DiskKey, DiskTotals] = field(default_factory=dict[DiskKey, DiskTotals])
    devices: Mapping[int, DeviceTotals] = field(default_factory=dict[int, DeviceTotals])
    """By device, as in DiskKey."""
    names: Mapping[int, str] = field(default_factory=dict[int, str])
    """device → `sda`; raw."""
    comms: Mapping[int, str] = field(default_factory=dict[int, str])
    """tid → name of the thread when it made a request; raw."""
    elided: DiskTotals = NO_REQUESTS
    """Sum of what has no entry of its own, because there was too much: what took the least time in its tick."""
    elided_rows: int = 0
    """How many entries that stands for, in the tick that had most of them."""
    lost: int = 0
    """Requests that were not counted: there was no room for them, or their completion was missed."""
    stacks: Mapping[IoStack[DiskKey], StackTotals] = field(default_factory=dict[IoStack[DiskKey], StackTotals])
    """The requests in `totals` that reached the minimum and have a stack, by stack, as far as they were completed."""

    def name(self, device: int) -> str:
        """Return the name of a device; its numbers if it is unknown. Raw."""
        return self.names.get(device) or device_text(device)


def added(spans: Iterable[DiskActivity | None]) -> DiskActivity | None:
    """Add up consecutive spans, earliest first; None if requests were counted in none of them.

    Of more than MOST_SUMMED entries, those with the most time are kept; the others are in `elided`.
    """
    found = [one for one in spans if one is not None]
    if len(found) < 2:
        return found[0] if found else None
    totals: dict[DiskKey, DiskTotals] = {}
    devices: dict[int, DeviceTotals] = {}
    names, comms = dict[int, str](), dict[int, str]()
    for one in found:
        for key, numbers in one.totals.items():
            totals[key] = totals[key].plus(numbers) if key in totals else numbers
        for device, sums in one.devices.items():
            devices[device] = devices[device].plus(sums) if device in devices else sums
        names.update(one.names)
        comms.update(one.comms)
    last = found[-1]
    totals = {key: numbers if key in last.totals else numbers.without_now() for key, numbers in totals.items()}
    elided = reduce(DiskTotals.plus, (one.elided for one in found), NO_REQUESTS)
    elided_rows = max(one.elided_rows for one in found)
    kept, others = largest(totals, MOST_SUMMED, lambda numbers: numbers.outstanding_ns)
    if others:
        elided, elided_rows = reduce(DiskTotals.beside, others, elided), elided_rows + len(others)
        tids = {key.tid for key in kept}
        comms = {tid: comm for tid, comm in comms.items() if tid in tids}
    return DiskActivity(
        kept,
        {device: sums if device in last.devices else sums.without_now() for device, sums in devices.items()},
        names,
        comms,
        elided,
        elided_rows,
        sum(one.lost for one in found),
        of_rows(summed(one.stacks for one in found), kept, MOST_SUMMED),
    )
