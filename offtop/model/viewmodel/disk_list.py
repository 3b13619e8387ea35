"""The list of requests to disks on the screen."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from offtop.model.aggregate.disk_rows import DISK_SORTS, DeviceRow, DiskRow, DiskRows, disk_rows
from offtop.model.aggregate.rows import CHANGE
from offtop.model.values.disks import added
from offtop.model.values.stack import Names
from offtop.model.viewmodel.io_comparison import IoComparison
from offtop.model.viewmodel.io_list import IoPicture, counted_ticks, nearest, stack_tree
from offtop.model.viewmodel.room import Room
from offtop.model.viewmodel.scene import Scene
from offtop.model.viewmodel.view import View
from offtop.model.viewmodel.view_filters import row_filters
from offtop.model.windows.history import History

_DEVICES_SHARE = 3
"""The disks get one of so many lines, at most."""


@dataclass(frozen=True, slots=True)
class DisksPicture(IoPicture[DiskRow]):
    listed: DiskRows = field(default_factory=DiskRows)
    devices: Sequence[DeviceRow] = ()
    """Disks on the screen, above the rows."""

    @property
    def device_lines(self) -> int:
        """Lines of the disks, with their column titles."""
        return len(self.devices) + 1 if self.devices else 0


def disks_picture(
    scene: Scene, history: History, room: Room, names: Names, comparison: IoComparison
) -> tuple[View, DisksPicture]:
    """Return the list for the span of the scene; and the view, with the branches that opened by themselves."""
    view, lines = scene.view, room.disks
    if not lines:
        return view, DisksPicture()
    counted = [tick for tick in counted_ticks(scene, history) if tick.header.disks is not None]
    activity = added(tick.header.disks for tick in counted)
    if activity is None:
        return view, DisksPicture()
    span_ns = sum(tick.span_ns for tick in counted)
    chosen = view.disks
    listed = disk_rows(
        activity, span_ns, scene.catalog, row_filters(view), chosen.sort, chosen.reverse, by_thread=chosen.by_thread
    )
    rows, compared = comparison.of(view, listed.rows, span_ns)
    rows = DISK_SORTS.in_order(rows, chosen.sort, chosen.reverse) if chosen.sort == CHANGE else rows
    listed = replace(listed, rows=rows)
    near = nearest([row.io for row in rows], chosen.near)
    near = next((number for number, row in enumerate(rows) if row.key.pid and row.key.pid == chosen.near_pid), near)
    cursor = next((number for number, row in enumerate(rows) if row.key == chosen.cursor), near)
    devices = listed.devices[: max(1, lines // _DEVICES_SHARE - 1)]
    lines = max(1, lines - len(devices) - 1)
    first = min(max(0, cursor - lines // 2), max(0, len(rows) - lines))
    opened = chosen.opened and bool(rows) and rows[cursor].key == chosen.cursor
    shown = DisksPicture(listed, span_ns, cursor, first, opened, compared=compared, devices=devices)
    view, tree = stack_tree(scene, [row.io for row in shown.shown_rows], names, room.io_tree)
    return view, replace(shown, tree=tree)
