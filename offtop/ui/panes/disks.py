"""Requests to disks: a line for each disk, then a row for each operation of a process, and the selected one in full."""

from collections.abc import Sequence

from offtop.model.aggregate.disk_rows import DeviceRow, DiskRow
from offtop.model.values import histogram as log2
from offtop.model.values.container import label
from offtop.model.viewmodel.common import Common
from offtop.model.viewmodel.io_list import DisksPicture
from offtop.model.viewmodel.view import DISKS
from offtop.model.windows.heat import Heat
from offtop.ui.kit.columns import Heading, heads
from offtop.ui.kit.layout import STUCK_FRAME, stuck_lines
from offtop.ui.kit.lines import Line, Pen, fit, plain, rule
from offtop.ui.panes import io_list, io_stacks, latency
from offtop.ui.panes.columns import CHANGES, change_cells, megabytes, spans_of
from offtop.units import byte_rate, count, duration, span

_P99_WIDTH, _MAX_WIDTH, _LEAST_DISK, _MOST_DISK, _MOST_WHO = 100, 90, 8, 24, 40
"""Least widths for these columns; widths of DISK and WHO."""
_BARS = 24
"""Cells of the longest bar of a histogram."""


def disks(shown: DisksPicture, common: Common, pen: Pen) -> list[Line]:
    if shown.tree and shown.span_ns:
        return io_stacks.tree(shown.tree, _subject(shown, pen), io_stacks.REQUESTS, shown.span_ns, common, pen)
    if shown.opened and shown.chosen:
        about = "requests to a disk (Enter: where this process waits, t: stack tree, Esc goes back)"
        return io_stacks.scrolled(about, in_full(shown.chosen, common, pen), common.view.disks.scrolled, pen)
    lines = [rule(title(shown, common), pen)]
    rows, view = shown.listed.rows, common.view
    if not shown.devices and not rows:
        return [*lines, *(plain(fit(f" {text}", pen.width, pen.glyphs), "dim") for text in _nothing(shown, common))]
    of_devices = device_columns(pen)
    if shown.devices:
        lines.append(heads(of_devices, "", 1))
        lines += [Line(spans_of(of_devices, device_cells(one), False, pen)) for one in shown.devices]
    shown_columns = columns(pen, shown.is_compared)
    lines.append(heads(shown_columns, view.disks.sort, 1))
    end = STUCK_FRAME + stuck_lines(pen.height)
    lines += io_list.row_lines(shown, shown_columns, cells, end - len(lines), view.focus == DISKS, pen)
    if not rows:
        lines.append(plain(fit(f" {_NO_ROW}", pen.width, pen.glyphs), "dim"))
    below = pen.height - end
    if below > 1 and shown.chosen:
        lines += [Line()] * (end - len(lines))
        lines += details(shown.chosen, common, pen)[:below]
    return lines


def heat_map(heat: Heat | None, shown: DisksPicture, common: Common, pen: Pen) -> list[Line]:
    """Heat map of the time in queue and disk together."""
    counted = latency.Counted("requests", " No request was completed.")
    return latency.heat_map_of(heat, _subject(shown, pen), counted, common, pen)


def _subject(shown: DisksPicture, pen: Pen) -> str:
    return io_stacks.subject(shown.chosen if shown.opened else None, "requests to disks", pen)


def title(shown: DisksPicture, common: Common) -> str:
    """Return a summary of what is listed."""
    listed, total = shown.listed, shown.listed.total
    if not shown.span_ns:
        return "requests to disks"
    per_s = 1e9 / shown.span_ns
    lost = [f"LOST {count(listed.lost)}"] if listed.lost else []
    parts = [
        f"requests to disks: {listed.rate(shown.span_ns)}",
        *lost,
        byte_rate(total.bytes * per_s),
        f"{duration(total.outstanding_ns) or '0'} in queue and disk in {span(round(shown.span_ns, -8))}",
    ]
    if hidden := len(listed.devices) - len(shown.devices):
        parts.append(f"no room for {hidden} more disks")
    return ", ".join([*parts, *io_list.notes(shown, common)])


_NO_ROW = "No request passes the filter (Esc goes back; \\ changes the filter)."


def _nothing(shown: DisksPicture, common: Common) -> Sequence[str]:
    if not shown.span_ns:
        if common.view.paused_at_ns is not None:
            return ("Requests to disks were not counted at this time.",)
        return ("Starting to count requests to disks. They are counted while this list is open (8 closes it).",)
    return (_NO_ROW,) if shown.listed.every else ("No disk has a request.",)


def device_columns(pen: Pen) -> list[Heading]:
    """Return the columns about disks that there is room for."""
    numbers = [
        Heading("r/s", 6, sort="r/s"),
        Heading("w/s", 6, sort="w/s"),
        Heading("rMB/s", 6, sort="rMB/s"),
        Heading("wMB/s", 6, sort="wMB/s"),
        Heading("QUEUED", 6, sort="QUEUED"),
        Heading("IN-DISK", 7, sort="IN-DISK"),
        Heading("%UTIL", 5, sort="%UTIL"),
        *_times(pen),
    ]
    return [Heading("DISK", _disk_width(numbers, pen), left=True, sort="DISK"), *numbers]


def _times(pen: Pen) -> list[Heading]:
    wide = pen.width >= _P99_WIDTH
    made = [
        Heading("QUEUE p99<=" if wide else "QUEUE<=", 11 if wide else 7, sort="QUEUE"),
        Heading("DISK p99<=" if wide else "DISK<=", 10 if wide else 6, sort="DEVICE"),
    ]
    return [*made, Heading("MAX", 6, sort="MAX")] if pen.width >= _MAX_WIDTH else made


def _disk_width(others: Sequence[Heading], pen: Pen) -> int:
    left = pen.width - 2 - sum(column.width + 1 for column in others)
    return max(_LEAST_DISK, min(_MOST_DISK, left))


def device_cells(row: DeviceRow) -> dict[str, tuple[str, str]]:
    """Return (raw text, token) of each cell of a disk."""
    reads, writes, every = row.totals.reads, row.totals.writes, row.totals.every
    return {
        "DISK": (row.name, "name"),
        "r/s": (count(row.per_s(reads.requests)), "value"),
        "w/s": (count(row.per_s(writes.requests)), "value"),
        "rMB/s": (megabytes(row.per_s(reads.bytes)), "value"),
        "wMB/s": (megabytes(row.per_s(writes.bytes)), "value"),
        "QUEUED": (count(every.in_queue), "value"),
        "IN-DISK": (count(every.in_device), "value"),
        "%UTIL": (f"{row.util_pct:.0f}", "waiting"),
        "QUEUE": (duration(every.queue_percentile_ns(99)), "value"),
        "DEVICE": (duration(every.device_percentile_ns(99)), "value"),
        "MAX": (duration(every.max_ns), "value"),
    }


def columns(pen: Pen, is_compared: bool) -> list[Heading]:
    """Return the columns about requests that there is room for."""
    has_room = not is_compared or pen.width >= _P99_WIDTH
    numbers = [*(CHANGES if is_compared else ()), Heading("REQ/S", 6, sort="REQ/S")]
    numbers += [Heading("MB/S", 6, sort="MB/S")] * has_room
    numbers += [Heading("TIME", 6, sort="TIME"), *_times(pen)]
    numbers += [Heading("NOW", 6, sort="NOW")] * has_room
    operation, disk = 10, 16 if pen.width >= _P99_WIDTH else _LEAST_DISK
    left = pen.width - 3 - operation - 1 - disk - sum(column.width + 1 for column in numbers)
    who = max(1, min(_MOST_WHO, left))
    return [
        Heading("OP", operation, left=True, sort="OP"),
        Heading("DISK", disk, left=True, sort="DISK"),
        *numbers,
        Heading("WHO", who, left=True, sort="WHO"),
    ]


def cells(row: DiskRow) -> dict[str, tuple[str, str]]:
    """Return (raw text, token) of each cell, by sort order."""
    totals = row.totals
    return {
        "OP": (row.key.operation, "name"),
        "DISK": (row.disk, "where"),
        "REQ/S": (count(row.requests_per_s), "value"),
        "MB/S": (megabytes(row.bytes_per_s), "value"),
        "TIME": (duration(totals.outstanding_ns), "waiting"),
        "QUEUE": (duration(totals.queue_percentile_ns(99)), "value"),
        "DEVICE": (duration(totals.device_percentile_ns(99)), "value"),
        "MAX": (duration(totals.max_ns), "value"),
        "NOW": (duration(totals.now_ns), "waiting"),
        "WHO": (row.who, "name"),
        **change_cells(row.change),
    }


def details(row: DiskRow, common: Common, pen: Pen) -> list[Line]:
    """Return the selected row in full, with histograms of the time in the queue and in the disk."""
    totals, detail = row.totals, common.catalog.detail(row.key.pid)
    requests = f"{totals.requests:,} request{'s' if totals.requests != 1 else ''} completed"
    sums = [requests, f"{totals.bytes:,} bytes"] if totals.bytes else [requests]
    if totals.merged:
        sums.append(f"{totals.merged:,} merged into others")
    if totals.requeues:
        sums.append(f"returned to the queue {totals.requeues:,} times")
    failed = [(f", {totals.errors:,} failed", "alert")] if totals.errors else []
    threads = f", {row.threads} threads" if row.threads > 1 else ""
    of_process = "  ".join(filter(None, (label(detail.cgroup), detail.user, detail.cmdline)))
    by = "for a kernel worker" if row.key.worker else f"for {row.who}{threads}  {of_process}"
    times = f"{duration(totals.queue_ns) or '0'} in the queue, {duration(totals.device_ns) or '0'} in the disk"
    lines = [
        plain(fit(f" {row.key.operation} {row.disk} {row.who}", pen.width, pen.glyphs), "title"),
        plain(fit(f"   {by}", pen.width, pen.glyphs), "dim"),
        Line(((fit(f"   {', '.join(sums)}", pen.width, pen.glyphs).rstrip(), "text"), *failed)),
        plain(fit(f"   {times}", pen.width, pen.glyphs), "text"),
    ]
    if totals.now_ns:
        waits = f"{totals.in_queue} in the queue, {totals.in_device} in the disk"
        text = f"   in progress: {waits}, the oldest for {duration(totals.now_ns)}"
        lines.append(plain(fit(text, pen.width, pen.glyphs), "waiting"))
    return [*lines, *_histograms(row, pen)]


def in_full(row: DiskRow, common: Common, pen: Pen) -> list[Line]:
    """Return the row with its histograms and its stacks."""
    ended = row.totals.requests, row.totals.queue_ns + row.totals.device_ns
    stacks = io_stacks.every_stack(row.stacks, io_stacks.REQUESTS, ended, common, pen)
    return [*details(row, common, pen), *stacks]


def _histograms(row: DiskRow, pen: Pen) -> list[Line]:
    queue, disk = log2.counts(row.totals.queue_histogram), log2.counts(row.totals.device_histogram)
    most = max((*queue, *disk))
    if not most:
        return []
    lines = [plain(f"   {'':9} {'in the queue':<{_BARS + 8}} in the disk", "head")]
    for lane, pair in enumerate(zip(queue, disk, strict=True)):
        if any(pair):
            upto = f"< {duration(log2.high_ns(lane))}" if lane < log2.LANES - 1 else "more"
            spans: list[tuple[str, str]] = [(f"   {upto:>9} ", "dim")]
            for n in pair:
                bar = pen.glyphs.bar[-1] * max(1, round(n / most * _BARS)) if n else ""
                spans += [(f"{bar:<{_BARS}}", "bar"), (f" {count(n) if n else '':<7} ", "value")]
            lines.append(Line(tuple(spans)))
    return lines


def text_of(row: DiskRow) -> str:
    """Return the text that a search looks at, and that is copied, raw."""
    return "  ".join(text for text, _ in cells(row).values())
