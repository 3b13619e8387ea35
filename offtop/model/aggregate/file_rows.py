"""Rows of file operations: one for each operation that a process did on a file."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from offtop.model.aggregate.baseline_rows import Change
from offtop.model.aggregate.filter import Filter
from offtop.model.aggregate.io_paths import IoRow
from offtop.model.aggregate.io_rows import IoRows, Sorts
from offtop.model.aggregate.row_names import process_name
from offtop.model.aggregate.rows import CHANGE
from offtop.model.aggregate.word_filter import WordFilter, about_process
from offtop.model.values.catalog import Catalog
from offtop.model.values.files import NO_CALLS, RING_OPERATIONS, FileActivity, FileKey, FileTotals
from offtop.model.values.io_stacks import Stacks, StackTotals, by_row
from offtop.units import NS_PER_S, percent


class FileRow(NamedTuple):
    key: FileKey
    totals: FileTotals
    name: str
    """Path of the file, raw."""
    process: str
    """Raw."""
    span_ns: int
    stacks: Stacks[FileKey] = ()
    """Those of the calls that reached the minimum, most time first."""
    change: Change | None = None
    """From the baseline to now, as the average number in progress; None: it is not compared."""

    @property
    def what(self) -> str:
        """`fsync /var/lib/db/redo.log`; raw."""
        return f"{self.key.operation} {self.name}"

    @property
    def io(self) -> IoRow:
        """Itself, with the main thread for all threads of its process."""
        calls = StackTotals(self.totals.calls, self.totals.bytes, self.totals.total_ns, self.totals.max_ns)
        who = self.key.pid, self.process
        return IoRow(self.key.operation, self.what, *who, *who, calls, self.stacks, self.totals.now_ns)

    @property
    def calls_per_s(self) -> float:
        return self.totals.calls * NS_PER_S / self.span_ns if self.span_ns else 0.0

    @property
    def bytes_per_s(self) -> float:
        return self.totals.bytes * NS_PER_S / self.span_ns if self.span_ns else 0.0

    @property
    def off_cpu_pct(self) -> float:
        return min(100.0, percent(self.totals.off_cpu_ns, self.totals.total_ns))

    @property
    def off_cpu_text(self) -> str:
        """%OFF-CPU as it is shown: empty for a request to io_uring, for which no thread need wait."""
        return "" if self.key.operation in RING_OPERATIONS else f"{self.off_cpu_pct:.0f}"

    @property
    def who(self) -> str:
        """`postgres(4242)`; raw."""
        return f"{self.process}({self.key.pid})"


FILE_SORTS: Sorts[FileRow] = Sorts(
    numbers={
        "TIME": lambda row: row.totals.total_ns,
        "CALLS/S": lambda row: row.totals.calls,
        "MB/S": lambda row: row.totals.bytes,
        "%OFF-CPU": lambda row: row.off_cpu_pct,
        "P50": lambda row: row.totals.percentile_ns(50),
        "P99": lambda row: row.totals.percentile_ns(99),
        "MAX": lambda row: row.totals.max_ns,
        "NOW": lambda row: row.totals.now_ns,
        CHANGE: lambda row: abs(row.change.by) if row.change else 0.0,
    },
    texts={"OP": lambda row: row.key.operation, "FILE": lambda row: row.name, "WHO": lambda row: row.who},
    elsewhere={"WAITING": "TIME", "TOTAL": "TIME", "EV/S": "CALLS/S", "NAME": "FILE", "PID": "WHO"},
)
_WORDS: WordFilter[FileRow] = WordFilter(
    texts={
        "file": lambda row, _: (row.name, row.name.rpartition("/")[2]),
        "op": lambda row, _: (row.key.operation,),
        "proc": lambda row, _: (row.process,),
        "comm": lambda row, _: (row.process,),
        "": lambda row, _: (row.name, row.key.operation, row.process),
        **about_process(lambda row: row.key.pid),
    },
    bounds={
        "max": lambda row: row.totals.max_ns,
        "now": lambda row: row.totals.now_ns,
        "p50": lambda row: row.totals.percentile_ns(50),
        "p99": lambda row: row.totals.percentile_ns(99),
        "evs": lambda row: row.calls_per_s,
        "bytes": lambda row: row.totals.bytes,
    },
    ids={"pid": lambda row: row.key.pid},
)


@dataclass(frozen=True, slots=True)
class FileRows(IoRows[FileRow]):
    elided: FileTotals = NO_CALLS
    """Sum of the elided rows."""

    @property
    def total(self) -> FileTotals:
        """Sum of all rows, without maxima."""
        every = [*(row.totals for row in self.rows), self.elided]
        return FileTotals(*(sum(one[field] for one in every) for field in range(4)))


def file_rows(
    activity: FileActivity,
    span_ns: int,
    catalog: Catalog,
    filters: Sequence[Filter],
    sort: str = FILE_SORTS.default,
    reverse: bool = False,
) -> FileRows:
    """Return the rows that pass all filters. `sort`: one of FILE_SORTS.columns."""
    stacks = by_row(activity.stacks)
    every = [
        _row(key, totals, activity, span_ns, catalog)._replace(stacks=stacks.get(key, ()))
        for key, totals in activity.totals.items()
    ]
    rows, is_filtered, unsuited = _WORDS.chosen(every, filters, catalog)
    rows = FILE_SORTS.in_order(rows, sort, reverse)
    return FileRows(
        rows,
        unsuited,
        0 if is_filtered else activity.elided_rows,
        activity.lost,
        every,
        NO_CALLS if is_filtered else activity.elided,
    )


def _row(key: FileKey, totals: FileTotals, activity: FileActivity, span_ns: int, catalog: Catalog) -> FileRow:
    process = catalog.processes.get(key.pid) and process_name(key.pid, catalog)
    return FileRow(key, totals, activity.name(key.file), process or activity.comms.get(key.pid, ""), span_ns)
