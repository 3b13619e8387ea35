"""The rows that modes file and disk list."""

from collections.abc import Sequence

from offtop.model.aggregate.disk_rows import DiskRows, disk_rows
from offtop.model.aggregate.file_rows import FileRows, file_rows
from offtop.model.aggregate.filter import Filter
from offtop.model.values.catalog import Catalog
from offtop.model.values.disks import DiskActivity
from offtop.model.values.files import FILE, FileActivity
from offtop.model.windows.window import Window

Activity = FileActivity | DiskActivity


def activity_of(window: Window, mode: str) -> Activity | None:
    """Return what `mode`, one of disks.LIST_MODES, lists; None if it was not counted."""
    return window.files if mode == FILE else window.disks


def rows_of(
    activity: Activity | None, span_ns: int, catalog: Catalog, filters: Sequence[Filter], *, by_thread: bool = False
) -> FileRows | DiskRows:
    """Return the rows that pass all filters. `by_thread`: list requests to disks by thread, not by process."""
    if activity is None:
        return FileRows()
    if isinstance(activity, FileActivity):
        return file_rows(activity, span_ns, catalog, filters)
    return disk_rows(activity, span_ns, catalog, filters, by_thread=by_thread)
