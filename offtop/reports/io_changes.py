"""Changes of file operations, or of requests to disks, from a baseline: as the objects of JSON."""

from collections.abc import Sequence
from typing import TypeVar

from msgspec import UNSET, UnsetType

from offtop.model.aggregate.baseline_rows import Change
from offtop.model.aggregate.disk_rows import DiskRow
from offtop.model.aggregate.file_rows import FileRow
from offtop.model.viewmodel.comparison import Comparison
from offtop.model.viewmodel.view import DisksView, View
from offtop.printable import printable
from offtop.reports.objects import json_baseline
from offtop.reports.tick import Tick

Row = TypeVar("Row", FileRow, DiskRow)


def compared_rows(
    rows: Sequence[Row], tick: Tick, focus: str, comparison: Comparison | None
) -> tuple[Sequence[Row], list[json_baseline.GoneIo] | UnsetType]:
    """Return the rows with their changes, and what only the baseline has. `focus`: the pane that lists such rows."""
    if comparison is None:
        return rows, UNSET
    by_thread = DisksView(by_thread=True)
    view = View(focus=focus, filter=tick.filter, baseline=comparison.baseline, diff=True, disks=by_thread)
    changed, compared = comparison.io.of(view, rows, tick.unfiltered.span_ns)
    if compared is None or compared.why_not:
        return rows, UNSET
    return changed, [
        json_baseline.GoneIo(process=printable(key.process), what=printable(key.name), waiting=round(before.waiting, 6))
        for key, before in compared.gone
    ]


def change_object(change: Change) -> json_baseline.Change:
    """Return the change of a row."""
    spread = change.before.spread(change.span_ns)
    return json_baseline.Change(
        waiting=round(change.before.waiting, 6),
        change=round(change.by, 6),
        spread=None if spread is None else round(spread, 6),
        p99_ns=change.before.p99_ns,
        new=change.is_new,
        sure=change.is_sure,
    )
