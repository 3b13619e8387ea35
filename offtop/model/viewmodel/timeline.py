"""The selection over the last minutes: the timeline, and the heat map."""

from collections.abc import Mapping
from dataclasses import dataclass

from offtop.model.aggregate.selection import Parts
from offtop.model.viewmodel.room import Room
from offtop.model.viewmodel.scene import Scene
from offtop.model.viewmodel.series import Series, series
from offtop.model.viewmodel.totals import in_category
from offtop.model.windows import heat as heats
from offtop.model.windows.heat import Heat
from offtop.model.windows.history import History


@dataclass(frozen=True, slots=True)
class Timeline:
    cells: Series
    end_ns: int
    """CLOCK_MONOTONIC contained in the last cell. If paused, the timeline also shows later ticks."""


def timeline_and_heat(history: History, scene: Scene, room: Room) -> tuple[Timeline, Heat | None]:
    """Return the timeline, and the heat map if there is room for one."""
    end_ns = _end_ns(history, scene, room)
    past = _past(history, scene, room, end_ns)
    return _timeline(history, scene, room, past, end_ns), _heat(history, scene, room, past)


def _end_ns(history: History, scene: Scene, room: Room) -> int:
    """Return the end of the timeline: now, or at most half its width after a paused tick."""
    last, newest = history.newest, scene.newest
    if scene.view.paused_at_ns is None or last is None:
        return newest.at_ns
    return max(newest.at_ns, min(last.at_ns, newest.at_ns + room.timeline_cells * room.timeline_cell_ns // 2))


def _past(history: History, scene: Scene, room: Room, end_ns: int) -> dict[int, Parts]:
    """Return the selection's time in each tick of both, if known by now."""
    timeline_ns = room.timeline_cells * room.timeline_cell_ns
    heat_ns = room.heat[0] * room.heat_cell_ns + end_ns - scene.newest.at_ns
    return scene.filter_cache.parts_of(history.last(max(timeline_ns, heat_ns), end_ns))


def _timeline(history: History, scene: Scene, room: Room, past: Mapping[int, Parts], end_ns: int) -> Timeline:
    cells = series(
        history.last(room.timeline_cells * room.timeline_cell_ns, end_ns),
        room.timeline_cells,
        room.timeline_cell_ns,
        end_ns,
        lambda tick: in_category(past[tick.number], scene.view).total_ns if tick.number in past else None,
    )
    return Timeline(cells, end_ns)


def _heat(history: History, scene: Scene, room: Room, past: Mapping[int, Parts]) -> Heat | None:
    columns, rows = room.heat
    if not columns or scene.view.has_io_heat:
        return None
    newest = scene.newest
    ticks = history.last(columns * room.heat_cell_ns, newest.at_ns)
    histograms = {number: in_category(parts, scene.view).histogram for number, parts in past.items()}
    unread = {tick.number for tick in ticks}
    return heats.heat(ticks, histograms, unread, columns, room.heat_cell_ns, newest.at_ns, rows)
