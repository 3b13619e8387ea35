"""Rows of requests to disks: one for each disk, and one for each operation that a process or thread had done on it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

from offtop.model.aggregate.baseline_rows import Change
from offtop.model.aggregate.filter import Filter
from offtop.model.aggregate.io_paths import IoRow
from offtop.model.aggregate.io_rows import IoRows, Sorts
from offtop.model.aggregate.row_names import process_name
from offtop.model.aggregate.rows import CHANGE
from offtop.model.aggregate.word_filter import WordFilter, about_process
from offtop.model.values.catalog import Catalog
from offtop.model.values.disks import NO_REQUESTS, DeviceTotals, DiskActivity, DiskKey, DiskTotals
from offtop.model.values.io_stacks import IoStack, Stacks, StackTotals, by_row
from offtop.units import NS_PER_S, count, percent


class DiskRow(NamedTuple):
    key: DiskKey
    """tid 0: all threads of the process."""
    totals: DiskTotals
    disk: str
    """Raw."""
    program: str
    """Name of the process or thread, raw; empty for kernel workers."""
    threads: int
    """How many threads of the process made these requests."""
    span_ns: int
    stacks: Stacks[DiskKey] = ()
    """Those of requests that reached the minimum, most time first."""
    change: Change | None = None
    """From the baseline to now, as the average number in progress; None: it is not compared."""

    @property
    def what(self) -> str:
        """`sync-write sda`; raw."""
        return f"{self.key.operation} {self.disk}"

    @property
    def io(self) -> IoRow:
        """Itself, with the main thread for all threads of its process if it stands for these."""
        totals = self.totals
        requests = StackTotals(totals.requests, totals.bytes, totals.outstanding_ns, totals.max_ns)
        name = f"[{self.key.worker}]" if self.key.worker else self.program
        tid = self.key.tid or self.key.pid
        return IoRow(self.key.operation, self.what, self.key.pid, name, tid, name, requests, self.stacks, totals.now_ns)

    @property
    def requests_per_s(self) -> float:
        return self.totals.requests * NS_PER_S / self.span_ns if self.span_ns else 0.0

    @property
    def bytes_per_s(self) -> float:
        return self.totals.bytes * NS_PER_S / self.span_ns if self.span_ns else 0.0

    @property
    def who(self) -> str:
        """`postgres(4242)`, or `[flush-8:0]` for kernel workers; raw."""
        if self.key.worker:
            return f"[{self.key.worker}]"
        return f"{self.program}({self.key.tid or self.key.pid})" if self.key.pid else "[interrupt]"


class DeviceRow(NamedTuple):
    device: int
    name: str
    """Raw."""
    totals: DeviceTotals
    span_ns: int

    @property
    def util_pct(self) -> float:
        """Share of the span in which the disk had any request; iostat's %util."""
        return min(100.0, percent(self.totals.busy_ns, self.span_ns))

    def per_s(self, number: int) -> float:
        return number * NS_PER_S / self.span_ns if self.span_ns else 0.0


DISK_SORTS: Sorts[DiskRow] = Sorts(
    numbers={
        "TIME": lambda row: row.totals.outstanding_ns,
        "REQ/S": lambda row: row.totals.requests,
        "MB/S": lambda row: row.totals.bytes,
        "QUEUE": lambda row: row.totals.queue_percentile_ns(99),
        "DEVICE": lambda row: row.totals.device_percentile_ns(99),
        "MAX": lambda row: row.totals.max_ns,
        "NOW": lambda row: row.totals.now_ns,
        CHANGE: lambda row: abs(row.change.by) if row.change else 0.0,
    },
    texts={"OP": lambda row: row.key.operation, "DISK": lambda row: row.disk, "WHO": lambda row: row.who},
    elsewhere={"WAITING": "TIME", "TOTAL": "TIME", "EV/S": "REQ/S", "P99": "DEVICE", "NAME": "DISK", "PID": "WHO"},
)
_WORDS: WordFilter[DiskRow] = WordFilter(
    texts={
        "dev": lambda row, _: (row.disk,),
        "op": lambda row, _: (row.key.operation,),
        "proc": lambda row, catalog: (_process(row.key.pid, catalog) or row.program, row.key.worker),
        "comm": lambda row, _: (row.program, row.key.worker),
        "": lambda row, catalog: (row.disk, row.key.operation, row.who, _process(row.key.pid, catalog)),
        **about_process(lambda row: row.key.pid),
    },
    bounds={
        "max": lambda row: row.totals.max_ns,
        "now": lambda row: row.totals.now_ns,
        "p50": lambda row: row.totals.percentile_ns(50),
        "p99": lambda row: row.totals.percentile_ns(99),
        "evs": lambda row: row.requests_per_s,
        "bytes": lambda row: row.totals.bytes,
    },
    ids={"pid": lambda row: row.key.pid},
)


@dataclass(frozen=True, slots=True)
class DiskRows(IoRows[DiskRow]):
    elided: DiskTotals = NO_REQUESTS
    """Sum of the elided rows."""
    devices: Sequence[DeviceRow] = ()
    """Disks that had requests, most time first. They count all requests, whatever the filter chooses."""

    @property
    def total(self) -> DiskTotals:
        """Sum of all rows."""
        return reduce(DiskTotals.beside, (row.totals for row in self.rows), self.elided)

    def rate(self, span_ns: int) -> str:
        """Return how many requests the rows had: `1.0/s`, or `1.0/s of 3.1/s` if the disks had more."""
        of_disks = sum(device.totals.every.requests for device in self.devices)
        rows, disks = (f"{count(many * NS_PER_S / span_ns)}/s" for many in (self.total.requests, of_disks))
        return rows if rows == disks or of_disks < self.total.requests else f"{rows} of {disks}"


def disk_rows(
    activity: DiskActivity,
    span_ns: int,
    catalog: Catalog,
    filters: Sequence[Filter],
    sort: str = DISK_SORTS.default,
    reverse: bool = False,
    *,
    by_thread: bool = False,
) -> DiskRows:
    """Return the disks, and the rows that pass all filters. `sort`: one of DISK_SORTS.columns."""
    totals: dict[DiskKey, DiskTotals] = {}
    tids: dict[DiskKey, set[int]] = {}
    for one, numbers in activity.totals.items():
        key = one if by_thread else one._replace(tid=0)
        totals[key] = totals[key].beside(numbers) if key in totals else numbers
        tids.setdefault(key, set()).add(one.tid)
    stacks: dict[IoStack[DiskKey], StackTotals] = {}
    for stack, ended in activity.stacks.items():
        stack = stack if by_thread else stack._replace(row=stack.row._replace(tid=0))
        stacks[stack] = stacks[stack].plus(ended) if stack in stacks else ended
    of_rows = by_row(stacks)
    every: list[DiskRow] = []
    for key, numbers in totals.items():
        program = _program(key, tids[key], activity, catalog)
        what = activity.name(key.device), program, len(tids[key]), span_ns
        every.append(DiskRow(key, numbers, *what, of_rows.get(key, ())))
    rows, is_filtered, unsuited = _WORDS.chosen(every, filters, catalog)
    rows = DISK_SORTS.in_order(rows, sort, reverse)
    devices = [
        DeviceRow(device, activity.name(device), sums, span_ns)
        for device, sums in activity.devices.items()
        if not sums.every.is_empty
    ]
    devices.sort(key=lambda row: (-row.totals.every.outstanding_ns, row.device))
    return DiskRows(
        rows,
        unsuited,
        0 if is_filtered else activity.elided_rows,
        activity.lost,
        every,
        NO_REQUESTS if is_filtered else activity.elided,
        devices,
    )


def _process(pid: int, catalog: Catalog) -> str:
    return process_name(pid, catalog) if pid in catalog.processes else ""


def _program(key: DiskKey, tids: set[int], activity: DiskActivity, catalog: Catalog) -> str:
    if key.worker or not key.pid:
        return ""
    comm = next((comm for tid in sorted(tids) if (comm := activity.comms.get(tid))), "")
    return comm if key.tid else _process(key.pid, catalog) or comm
