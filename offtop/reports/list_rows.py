"""The rows of a window in modes file and disk."""

from offtop.model.aggregate.disk_rows import DiskRows, disk_rows
from offtop.model.aggregate.file_rows import FileRows, file_rows
from offtop.model.aggregate.filter import Filter
from offtop.model.values.files import FILE
from offtop.model.windows.window import Window


def is_counted(window: Window, mode: str) -> bool:
    """Return whether what `mode` lists was counted. `mode`: one of disks.LIST_MODES."""
    return (window.files if mode == FILE else window.disks) is not None


def rows_of(window: Window, mode: str, span_ns: int, chosen: Filter, by_thread: bool = True) -> FileRows | DiskRows:
    """Return the rows that pass the filter, of processes or, in mode disk with `by_thread`, of threads."""
    if mode == FILE:
        return file_rows(window.files, span_ns, window.catalog, [chosen]) if window.files else FileRows()
    if not window.disks:
        return DiskRows()
    return disk_rows(window.disks, span_ns, window.catalog, [chosen], by_thread=by_thread)
