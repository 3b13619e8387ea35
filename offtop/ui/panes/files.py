"""File operations: one row for each operation that a process did on a file, and the selected one in full below."""

from collections.abc import Sequence

from offtop.model.aggregate.file_rows import FileRow
from offtop.model.values import histogram as log2
from offtop.model.values.container import label
from offtop.model.values.files import MMAP_READ, RING_OPERATIONS
from offtop.model.viewmodel.common import Common
from offtop.model.viewmodel.io_list import FilesPicture
from offtop.model.viewmodel.view import FILES
from offtop.model.windows.heat import Heat
from offtop.ui.kit.columns import Heading, heads
from offtop.ui.kit.layout import STUCK_FRAME, stuck_lines
from offtop.ui.kit.lines import Line, Pen, fit, plain, rule
from offtop.ui.panes import io_list, io_stacks, latency
from offtop.ui.panes.columns import CHANGES, change_cells, megabytes
from offtop.units import byte_rate, count, duration, span

_P50_WIDTH, _NOW_WIDTH, _OFF_CPU_WIDTH, _LEAST_FILE = 100, 90, 70, 12
"""Least widths for these columns."""
_MOST_WHO = 24
_CALLS = "call returned", "calls returned"
_ENDED = {
    MMAP_READ: ("page fault that waited", "page faults that waited (the others are not counted)"),
    **dict.fromkeys(RING_OPERATIONS, ("request completed", "requests completed")),
}
"""What is counted: one, and several."""
_BARS = 24
"""Cells of the longest bar of the histogram."""


def files(shown: FilesPicture, common: Common, pen: Pen) -> list[Line]:
    if shown.tree and shown.span_ns:
        return io_stacks.tree(shown.tree, _subject(shown, pen), io_stacks.CALLS, shown.span_ns, common, pen)
    if shown.opened and shown.chosen:
        about = "a file operation (Enter: where this process waits, t: stack tree, Esc goes back)"
        return io_stacks.scrolled(about, in_full(shown.chosen, common, pen), common.view.files.scrolled, pen)
    lines = [rule(title(shown, common), pen)]
    rows, view = shown.listed.rows, common.view
    if not rows:
        return [*lines, *(plain(fit(f" {text}", pen.width, pen.glyphs), "dim") for text in _nothing(shown, common))]
    shown_columns = columns(pen, shown.is_compared)
    lines.append(heads(shown_columns, view.files.sort, 1))
    room = stuck_lines(pen.height)
    lines += io_list.row_lines(shown, shown_columns, cells, room, view.focus == FILES, pen, path="FILE")
    below = pen.height - STUCK_FRAME - room
    if below > 1 and shown.chosen:
        lines += [Line()] * (STUCK_FRAME + room - len(lines))
        lines += details(shown.chosen, common, pen)[:below]
    return lines


def heat_map(heat: Heat | None, shown: FilesPicture, common: Common, pen: Pen) -> list[Line]:
    counted = latency.Counted("calls", " No call has returned.")
    return latency.heat_map_of(heat, _subject(shown, pen), counted, common, pen)


def _subject(shown: FilesPicture, pen: Pen) -> str:
    return io_stacks.subject(shown.chosen if shown.opened else None, "file operations", pen)


def title(shown: FilesPicture, common: Common) -> str:
    """Return a summary of what is listed."""
    listed, total = shown.listed, shown.listed.total
    if not shown.span_ns:
        return "file operations"
    per_s = 1e9 / shown.span_ns
    lost = [f"LOST {count(listed.lost)}: no room"] if listed.lost else []
    parts = [
        f"file operations: {count(total.calls * per_s)} calls/s",
        *lost,
        byte_rate(total.bytes * per_s),
        f"{duration(total.total_ns) or '0'} in calls in {span(round(shown.span_ns, -8))}",
    ]
    return ", ".join([*parts, *io_list.notes(shown, common)])


def _nothing(shown: FilesPicture, common: Common) -> Sequence[str]:
    if not shown.span_ns:
        if common.view.paused_at_ns is not None:
            return ("File operations were not counted at this time.",)
        return ("Starting to count file operations. They are counted while this list is open (7 closes it).",)
    if shown.listed.every:
        return ("No file operation passes the filter (Esc goes back; \\ changes the filter).",)
    return ("No process works on a file.",)


def columns(pen: Pen, is_compared: bool) -> list[Heading]:
    """Return the columns that there is room for."""
    wide = pen.width >= _P50_WIDTH
    numbers = [*(CHANGES if is_compared else ()), Heading("CALLS/S", 7, sort="CALLS/S")]
    if not is_compared or pen.width >= _P50_WIDTH:
        numbers.append(Heading("MB/S", 6, sort="MB/S"))
    numbers.append(Heading("TIME", 6, sort="TIME"))
    if pen.width >= _OFF_CPU_WIDTH:
        numbers.append(Heading("%OFF-CPU" if wide else "%OFF", 8 if wide else 4, sort="%OFF-CPU"))
    if wide:
        numbers.append(Heading("p50<=", 6, sort="P50"))
    numbers += [Heading("p99<=", 6, sort="P99"), Heading("MAX", 6, sort="MAX")]
    if pen.width >= _NOW_WIDTH:
        numbers.append(Heading("NOW", 6, sort="NOW"))
    operation = 15 if wide else 9
    left = pen.width - 2 - operation - 1 - sum(column.width + 1 for column in numbers)
    who = min(_MOST_WHO, max(0, (left - 2) * 2 // 5))
    if left - 2 - who < _LEAST_FILE:
        who = 0
    file = max(1, left - (who + 1 if who else 0))
    made = [Heading("OP", operation, left=True, sort="OP"), Heading("FILE", file, left=True, sort="FILE"), *numbers]
    return [*made, Heading("WHO", who, left=True, sort="WHO")] if who else made


def cells(row: FileRow) -> dict[str, tuple[str, str]]:
    """Return (text, token) of each cell, by sort order; texts are raw."""
    totals = row.totals
    return {
        "OP": (row.key.operation, "name"),
        "FILE": (row.name, "where"),
        "CALLS/S": (count(row.calls_per_s), "value"),
        "MB/S": (megabytes(row.bytes_per_s), "value"),
        "TIME": (duration(totals.total_ns), "waiting"),
        "%OFF-CPU": (row.off_cpu_text, "value"),
        "P50": (duration(totals.percentile_ns(50)), "value"),
        "P99": (duration(totals.percentile_ns(99)), "value"),
        "MAX": (duration(totals.max_ns), "value"),
        "NOW": (duration(totals.now_ns), "waiting"),
        "WHO": (row.who, "name"),
        **change_cells(row.change),
    }


def details(row: FileRow, common: Common, pen: Pen) -> list[Line]:
    """Return the selected row in full, with its histogram."""
    totals, detail = row.totals, common.catalog.detail(row.key.pid)
    on_cpu_ns = max(0, totals.total_ns - totals.off_cpu_ns)
    calls = f"{totals.calls:,} {_ENDED.get(row.key.operation, _CALLS)[totals.calls != 1]}"
    sums = f"{calls}, {totals.bytes:,} bytes" if totals.bytes else calls
    spent = f"{duration(totals.total_ns) or '0'} in calls: {duration(totals.off_cpu_ns) or '0'} off CPU, "
    spent += f"{duration(on_cpu_ns) or '0'} on it"
    if row.key.operation in RING_OPERATIONS:
        spent = f"{duration(totals.total_ns) or '0'} from submission to completion"
    of_process = "  ".join(filter(None, (label(detail.cgroup), detail.user, detail.cmdline)))
    lines = [
        plain(fit(f" {row.key.operation} {row.name}", pen.width, pen.glyphs), "title"),
        plain(fit(f"   by {row.who}  {of_process}", pen.width, pen.glyphs), "dim"),
        plain(
            fit(f"   inode {row.key.file.inode} on device {row.key.file.device_text}; {sums}", pen.width, pen.glyphs),
            "text",
        ),
        plain(fit(f"   {spent}", pen.width, pen.glyphs), "text"),
    ]
    if totals.now_ns:
        lines.append(
            plain(fit(f"   in progress: the longest for {duration(totals.now_ns)}", pen.width, pen.glyphs), "waiting")
        )
    counts = log2.counts(totals.histogram)
    most = max(counts)
    for lane, n in enumerate(counts):
        if n:
            bar = pen.glyphs.bar[-1] * max(1, round(n / most * _BARS))
            upto = f"< {duration(log2.high_ns(lane))}" if lane < log2.LANES - 1 else "more"
            lines.append(Line(((f"   {upto:>9} ", "dim"), (f"{bar:<{_BARS}}", "bar"), (f" {n:,}", "value"))))
    return lines


def in_full(row: FileRow, common: Common, pen: Pen) -> list[Line]:
    """Return the row with its histogram and its stacks."""
    ended = row.totals.calls, row.totals.total_ns
    stacks = io_stacks.every_stack(row.stacks, io_stacks.CALLS, ended, common, pen)
    return [*details(row, common, pen), *stacks]


def text_of(row: FileRow) -> str:
    """Return the text that a search looks at, and that is copied, raw."""
    return "  ".join(text for text, _ in cells(row).values())
