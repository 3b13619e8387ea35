"""Requests to disks of a tick: as tables, and as the objects of JSON."""

from collections.abc import Iterable
from typing import Any

from msgspec import UNSET

from offtop.model.aggregate.disk_rows import DISK_SORTS, DeviceRow, DiskRow, DiskRows, disk_rows
from offtop.model.aggregate.word_filter import ignored_words
from offtop.model.values import histogram as log2
from offtop.model.values.disks import DiskActivity, DiskTotals, device_text
from offtop.model.values.stack import Names
from offtop.model.viewmodel.comparison import Comparison
from offtop.model.viewmodel.view import DISKS
from offtop.printable import printable
from offtop.reports.io_changes import change_object, compared_rows
from offtop.reports.objects import json_io
from offtop.reports.stack_objects import request_stacks
from offtop.reports.tick import Tick
from offtop.units import NS_PER_S, byte_rate, count, duration

NOT_COUNTED = "requests to disks were not counted in this tick"
_DISKS_HEAD = (
    f"{'DISK':<16} {'r/s':>7} {'w/s':>7} {'rMB/s':>7} {'wMB/s':>7} {'QUEUED':>6} {'IN-DISK':>7} {'%UTIL':>5} "
    f"{'QUEUE p99<=':>11} {'DISK p99<=':>10} {'MAX':>6}"
)
_HEAD = (
    f"{'OP':<10} {'DISK':<16} {'REQ/S':>7} {'MB/S':>7} {'TIME':>6} {'QUEUE p99<=':>11} {'DISK p99<=':>10} {'MAX':>6} "
    f"{'NOW':>6}  WHO"
)
_DISK_WIDTH = 16


def lines(tick: Tick, sort: str, reverse: bool, by_thread: bool) -> Iterable[str]:
    """Yield the lines of the tables. `sort`: one of rows.SORTS."""
    window = tick.unfiltered.window
    if window.disks is None:
        return [NOT_COUNTED]
    return table(_listed(tick, window.disks, sort, reverse, by_thread=by_thread), window.span_ns)


def table(listed: DiskRows, span_ns: int, most_rows: int | None = None) -> Iterable[str]:
    """Yield the lines of the tables of what was counted in `span_ns`, with `most_rows` rows (None: all)."""
    total, per_s = listed.total, NS_PER_S / span_ns
    lost = f", lost {listed.lost} requests" if listed.lost else ""
    yield (
        f"requests to disks: {listed.rate(span_ns)}, {byte_rate(total.bytes * per_s)}, "
        f"{duration(total.outstanding_ns) or '0'} in queue and disk{lost}"
    )
    if listed.unsuited:
        yield ignored_words(listed.unsuited)
    yield _DISKS_HEAD
    for device in listed.devices:
        yield _device_line(device)
    yield _HEAD
    for row in listed.rows[:most_rows]:
        yield _line(row)
    elided_rows = listed.elided_rows + len(listed.rows[most_rows:] if most_rows else ())
    if elided_rows:
        yield f"({elided_rows} rows with less time are only in the sums)"


def _listed(tick: Tick, activity: DiskActivity, sort: str, reverse: bool, *, by_thread: bool) -> DiskRows:
    window, column = tick.unfiltered.window, DISK_SORTS.column_for(sort)
    return disk_rows(activity, window.span_ns, window.catalog, [tick.filter], column, reverse, by_thread=by_thread)


def _device_line(row: DeviceRow) -> str:
    reads, writes, every = row.totals.reads, row.totals.writes, row.totals.every
    return (
        f"{printable(row.name)[:_DISK_WIDTH]:<{_DISK_WIDTH}} {count(row.per_s(reads.requests)):>7} "
        f"{count(row.per_s(writes.requests)):>7} {_megabytes(row.per_s(reads.bytes)):>7} "
        f"{_megabytes(row.per_s(writes.bytes)):>7} {count(every.in_queue):>6} {count(every.in_device):>7} "
        f"{row.util_pct:>5.0f} {duration(every.queue_percentile_ns(99)):>11} "
        f"{duration(every.device_percentile_ns(99)):>10} {duration(every.max_ns):>6}"
    )


def _line(row: DiskRow) -> str:
    totals = row.totals
    return (
        f"{row.key.operation:<10} {printable(row.disk)[:_DISK_WIDTH]:<{_DISK_WIDTH}} {count(row.requests_per_s):>7} "
        f"{_megabytes(row.bytes_per_s):>7} {duration(totals.outstanding_ns):>6} "
        f"{duration(totals.queue_percentile_ns(99)):>11} {duration(totals.device_percentile_ns(99)):>10} "
        f"{duration(totals.max_ns):>6} {duration(totals.now_ns):>6}  {printable(row.who)}"
    )


def _megabytes(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e6:.2f}" if bytes_per_s else ""


def disk_object(tick: Tick, names: Names, comparison: Comparison | None = None) -> json_io.DiskRequests | None:
    """Return the requests to disks of a tick; None if they were not counted. Strings in it are printable."""
    activity = tick.unfiltered.window.disks
    if activity is None:
        return None
    listed = _listed(tick, activity, "WAITING", False, by_thread=True)
    rows, gone = compared_rows(listed.rows, tick, DISKS, comparison)
    return json_io.DiskRequests(
        lost=listed.lost,
        elided_rows=listed.elided_rows,
        elided=json_io.RequestSums(**_sums(listed.elided)),
        disks=[
            json_io.Disk(
                disk=printable(row.name),
                device=device_text(row.device),
                busy_ns=row.totals.busy_ns,
                reads=json_io.RequestSums(**_sums(row.totals.reads)),
                writes=json_io.RequestSums(**_sums(row.totals.writes)),
                others=json_io.RequestSums(**_sums(row.totals.others)),
                **_latency(row.totals.every),
            )
            for row in listed.devices
        ],
        rows=[
            json_io.DiskRequest(
                disk=printable(row.disk),
                device=device_text(row.key.device),
                op=row.key.operation,
                pid=row.key.pid,
                tid=row.key.tid,
                program=printable(row.program),
                worker=printable(row.key.worker),
                **_sums(row.totals),
                **_latency(row.totals),
                stacks=request_stacks(row.stacks, tick.unfiltered.window.catalog, names),
                baseline=change_object(row.change) if row.change else UNSET,
            )
            for row in rows
        ],
        gone=gone,
    )


def _sums(totals: DiskTotals) -> dict[str, Any]:
    return {name: getattr(totals, name) for name in json_io.RequestSums.__struct_fields__}


def _latency(totals: DiskTotals) -> dict[str, Any]:
    return {
        "max_ns": totals.max_ns,
        "queue_histogram": log2.slots(totals.queue_histogram),
        "device_histogram": log2.slots(totals.device_histogram),
    }
