"""Comparison of file operations, or of requests to disks, with the baseline."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from offtop.model.aggregate.baseline_rows import BaselineOnly, BaselineRow, BaselineTable, Change
from offtop.model.aggregate.disk_rows import DiskRow
from offtop.model.aggregate.file_rows import FileRow
from offtop.model.aggregate.list_rows import rows_of
from offtop.model.values.disks import LIST_NOUNS
from offtop.model.viewmodel.view import FILES, MODE_OF_LIST, View
from offtop.model.viewmodel.view_filters import row_filters
from offtop.model.windows.baseline import Baseline
from offtop.model.windows.breakdown import PartTuple

Row = TypeVar("Row", FileRow, DiskRow)


class IoCompared(NamedTuple):
    gone: Sequence[tuple[BaselineOnly, BaselineRow]] = ()
    """Rows that only the baseline has, most time first; `name` is what was done."""
    why_not: str = ""
    """Why there is nothing to compare with; empty if there is."""

    @property
    def text(self) -> str:
        gone = f", {len(self.gone)} {'row' if len(self.gone) == 1 else 'rows'} gone" if self.gone else ""
        return self.why_not or f"compared with the baseline{gone}"


class IoComparison:
    """Compares the rows of each picture; keeps the tables of the baseline."""

    def __init__(self) -> None:
        self._about: object = None
        self._table: BaselineTable[Any] | None = None

    def of(self, view: View, rows: Sequence[Row], span_ns: int) -> tuple[Sequence[Row], IoCompared | None]:
        """Return the rows with their changes; None: nothing is compared."""
        baseline = view.compared
        if baseline is None:
            return rows, None
        about = baseline, view.focus, view.filter, view.user, view.disks.by_thread
        if about != self._about:
            self._about, self._table = about, _table_of(baseline, view)
        if self._table is None:
            return rows, IoCompared(why_not=f"the baseline has no {LIST_NOUNS[MODE_OF_LIST[view.focus]]}")
        by_key: dict[Any, Row] = {row.key: row for row in rows}
        table = {key: _part_of(row) for key, row in by_key.items()}
        are_pids_valid = not baseline.file
        compared = self._table.compared(
            table, span_ns, lambda key: key if are_pids_valid else None, lambda key: _name_of(by_key[key])
        )
        changed = [
            row._replace(
                change=Change(table[key][1] / span_ns, row.totals.percentile_ns(99), span_ns, compared.before[key])
            )
            for key, row in by_key.items()
        ]
        return changed, IoCompared(compared.gone)


def _table_of(baseline: Baseline, view: View) -> BaselineTable[Any] | None:
    """Return the baseline's rows of each part in which they were counted; None if there is no such part."""
    counted, filters = baseline.files if view.focus == FILES else baseline.disks, row_filters(view)
    parts = [
        (span_ns, rows_of(activity, span_ns, baseline.catalog, filters, by_thread=view.disks.by_thread).rows)
        for span_ns, activity in zip(baseline.spans_ns, counted, strict=True)
        if activity is not None
    ]
    if not parts:
        return None
    names = {row.key: _name_of(row) for _, rows in parts for row in rows}
    tables = [{row.key: _part_of(row) for row in rows} for _, rows in parts]
    return BaselineTable([span_ns for span_ns, _ in parts], tables, names.__getitem__)


def _part_of(row: FileRow | DiskRow) -> PartTuple:
    totals = row.io.totals
    return totals.calls, totals.total_ns, totals.max_ns, row.totals.histogram


def _name_of(row: FileRow | DiskRow) -> BaselineOnly:
    return BaselineOnly(row.io.what, row.io.process)
