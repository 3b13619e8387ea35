"""File operations of a tick: as a table, and as the objects of JSON."""

from collections.abc import Iterable

from msgspec import UNSET

from offtop.model.aggregate.file_rows import FILE_SORTS, FileRow, FileRows, file_rows
from offtop.model.aggregate.word_filter import ignored_words
from offtop.model.values import histogram as log2
from offtop.model.values.files import FileActivity
from offtop.model.values.stack import Names
from offtop.model.viewmodel.comparison import Comparison
from offtop.model.viewmodel.view import FILES
from offtop.printable import printable
from offtop.reports.io_changes import change_object, compared_rows
from offtop.reports.objects import json_io
from offtop.reports.stack_objects import file_stacks
from offtop.reports.tick import Tick
from offtop.units import NS_PER_S, byte_rate, count, duration

NOT_COUNTED = "file operations were not counted in this tick"
_HEAD = (
    f"{'PID':>7} {'COMMAND':<16} {'OP':<15} {'CALLS/S':>7} {'MB/S':>7} {'TIME':>6} {'%OFF-CPU':>8} {'p50<=':>6} "
    f"{'p99<=':>6} {'MAX':>6} {'NOW':>6}  FILE"
)
_COMMAND_WIDTH = 16


def lines(tick: Tick, sort: str, reverse: bool) -> Iterable[str]:
    """Yield the lines of the table. `sort`: one of rows.SORTS."""
    window = tick.unfiltered.window
    if window.files is None:
        return [NOT_COUNTED]
    return table(_listed(tick, window.files, sort, reverse), window.span_ns)


def table(listed: FileRows, span_ns: int, most_rows: int | None = None) -> Iterable[str]:
    """Yield the lines of a table of what was counted in `span_ns`, with `most_rows` rows (None: all)."""
    total, per_s = listed.total, NS_PER_S / span_ns
    lost = f", lost {listed.lost} calls" if listed.lost else ""
    yield (
        f"file operations: {count(total.calls * per_s)} calls/s, {byte_rate(total.bytes * per_s)}, "
        f"{duration(total.total_ns) or '0'} in calls{lost}"
    )
    if listed.unsuited:
        yield ignored_words(listed.unsuited)
    yield _HEAD
    for row in listed.rows[:most_rows]:
        yield _line(row)
    elided_rows = listed.elided_rows + len(listed.rows[most_rows:] if most_rows else ())
    if elided_rows:
        yield f"({elided_rows} rows with less time are only in the sums)"


def _listed(tick: Tick, activity: FileActivity, sort: str, reverse: bool) -> FileRows:
    window, column = tick.unfiltered.window, FILE_SORTS.column_for(sort)
    return file_rows(activity, window.span_ns, window.catalog, [tick.filter], column, reverse)


def _line(row: FileRow) -> str:
    totals = row.totals
    rate = f"{row.bytes_per_s / 1e6:.2f}" if totals.bytes else ""
    return (
        f"{row.key.pid:>7} {printable(row.process)[:_COMMAND_WIDTH]:<{_COMMAND_WIDTH}} {row.key.operation:<15} "
        f"{count(row.calls_per_s):>7} {rate:>7} {duration(totals.total_ns):>6} {row.off_cpu_text:>8} "
        f"{duration(totals.percentile_ns(50)):>6} {duration(totals.percentile_ns(99)):>6} {duration(totals.max_ns):>6} "
        f"{duration(totals.now_ns):>6}  {printable(row.name)}"
    )


def file_object(tick: Tick, names: Names, comparison: Comparison | None = None) -> json_io.FileOperations | None:
    """Return the file operations of a tick; None if they were not counted. Strings in it are printable."""
    activity = tick.unfiltered.window.files
    if activity is None:
        return None
    listed = _listed(tick, activity, "WAITING", False)
    rows, gone = compared_rows(listed.rows, tick, FILES, comparison)
    return json_io.FileOperations(
        lost=listed.lost,
        elided=json_io.ElidedFileOperations(
            rows=listed.elided_rows,
            calls=listed.elided.calls,
            bytes=listed.elided.bytes,
            total_ns=listed.elided.total_ns,
            offcpu_ns=listed.elided.off_cpu_ns,
        ),
        rows=[
            json_io.FileOperation(
                pid=row.key.pid,
                process=printable(row.process),
                op=row.key.operation,
                file=printable(row.name),
                device=row.key.file.device_text,
                inode=row.key.file.inode,
                calls=row.totals.calls,
                bytes=row.totals.bytes,
                total_ns=row.totals.total_ns,
                offcpu_ns=row.totals.off_cpu_ns,
                max_ns=row.totals.max_ns,
                now_ns=row.totals.now_ns,
                histogram=log2.slots(row.totals.histogram),
                stacks=file_stacks(row.stacks, tick.unfiltered.window.catalog, names),
                baseline=change_object(row.change) if row.change else UNSET,
            )
            for row in rows
        ],
        gone=gone,
    )
