"""The heat map of file operations, or of requests to disks: of all that pass the filter, or of one row."""

from offtop.model.aggregate.list_rows import activity_of, rows_of
from offtop.model.values.disks import DiskKey
from offtop.model.values.files import FileKey
from offtop.model.viewmodel.room import Room
from offtop.model.viewmodel.scene import Scene
from offtop.model.viewmodel.view import MODE_OF_LIST
from offtop.model.viewmodel.view_filters import row_filters
from offtop.model.windows import heat as heats
from offtop.model.windows.heat import Heat
from offtop.model.windows.history import History

_MOST_ROWS = 20_000
"""Of ticks that are looked at for one picture, some 0.1 s; others follow in the next ones."""


class IoHeats:
    """Makes the heat map of each picture; keeps the histograms of earlier ticks."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._selection: object = None
        self._histograms: dict[int, int] = {}
        """By number of the tick: calls or requests that ended in it."""
        self._versions: dict[int, int] = {}
        """By number of the tick: what was known when its histogram was made (Catalog.details_version)."""

    def of(self, scene: Scene, room: Room, row: FileKey | DiskKey | None) -> Heat:
        """Return the heat map of `row`, or of all rows."""
        view, (columns, rows), end_ns = scene.view, room.heat, scene.newest.at_ns
        selection = view.focus, row, view.filter, view.user, view.disks.by_thread
        if selection != self._selection:
            self._selection, self._histograms, self._versions = selection, {}, {}
        filters = row_filters(view)
        version = scene.catalog.details_version if any(one.needs_details for one in filters) else 0
        ticks = self._history.last(columns * room.heat_cell_ns, end_ns)
        mode, left = MODE_OF_LIST[view.focus], _MOST_ROWS
        for tick in sorted(ticks, key=lambda tick: (self._versions.get(tick.number, -1), -tick.number)):
            activity = activity_of(tick.header, mode)
            if activity is None or self._versions.get(tick.number) == version:
                continue
            if left <= 0:
                break
            left -= len(activity.totals)
            catalog = tick.header.catalog
            listed = rows_of(activity, tick.span_ns, catalog, filters, by_thread=view.disks.by_thread)
            self._histograms[tick.number] = sum(one.totals.histogram for one in listed.rows if row in (None, one.key))
            self._versions[tick.number] = version
        oldest = self._history.oldest
        if oldest:
            for number in [one for one in self._histograms if one < oldest.number]:
                del self._histograms[number], self._versions[number]
        counted = {tick.number for tick in ticks if activity_of(tick.header, mode) is not None}
        return heats.heat(ticks, self._histograms, counted, columns, room.heat_cell_ns, end_ns, rows)
