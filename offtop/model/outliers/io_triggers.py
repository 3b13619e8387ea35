"""Triggers for file operations and requests to disks, such as `file.max > 100ms`: what they measure in a tick."""

from collections.abc import Sequence

from offtop.model.aggregate.disk_rows import DiskRow
from offtop.model.aggregate.file_rows import FileRow
from offtop.model.aggregate.list_rows import activity_of, rows_of
from offtop.model.outliers.trigger import EVENTS, MAX, NOW, Trigger
from offtop.model.values import histogram as log2
from offtop.model.values.outlier import MOST_WHAT, SlowIo
from offtop.model.windows.history import HistoryTick
from offtop.units import NS_PER_S

Measured = tuple[float, str, SlowIo | None]
"""Value of the metric; category, or operation; the slowest file operation or request."""


def measured_io(trigger: Trigger, tick: HistoryTick) -> dict[str, Measured]:
    """Return what the trigger measures, by program.

    If it judges neither single calls nor programs that it names, all programs are together under the empty name.
    """
    by_program: dict[str, list[FileRow | DiskRow]] = {}
    activity = activity_of(tick.header, trigger.io)
    for row in rows_of(activity, tick.span_ns, tick.header.catalog, ()).rows:
        if trigger.names(row.io.process):
            by_program.setdefault(row.io.process if trigger.judges_each or trigger.program else "", []).append(row)
    return {program: _measured(trigger, rows, tick.span_ns) for program, rows in by_program.items()}


def _measured(trigger: Trigger, rows: Sequence[FileRow | DiskRow], span_ns: int) -> Measured:
    longest = max(rows, key=lambda row: row.totals.now_ns if trigger.metric == NOW else row.totals.max_ns)
    if trigger.metric == EVENTS:
        return sum(row.io.totals.calls for row in rows) * NS_PER_S / span_ns, "", None
    if trigger.metric == MAX:
        value = longest.totals.max_ns
    elif trigger.metric == NOW:
        value = longest.totals.now_ns
    else:
        histogram = sum(row.totals.histogram for row in rows)
        value = log2.percentile_ns(histogram, trigger.percent, longest.totals.max_ns)
    return value, longest.io.operation, SlowIo(trigger.io, longest.io.what[-MOST_WHAT:])
