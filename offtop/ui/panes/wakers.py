"""Lists of wakers, objects and causes: their columns, and the text of each row."""

from collections.abc import Sequence
from dataclasses import replace

from offtop.model.aggregate import location
from offtop.model.aggregate.rows import NOWHERE, Row
from offtop.model.values.wake import NO_STORM
from offtop.model.viewmodel.common import Common
from offtop.ui.kit.columns import Column, line_of, that_fit, width_of
from offtop.ui.kit.lines import Line, Pen
from offtop.units import average, threads

_LEAST_FOR_ENDS = 30
"""In a narrower WHERE column peers do not fit; they are then appended to the name."""
_MARKS = 2
"""Cells for marks at the left, as in every list."""


def columns(common: Common, pen: Pen, numbers: Sequence[Column]) -> list[Column]:
    """Return the columns; `numbers` are those of every list."""
    view, width = common.view, pen.width
    name_width = max(10, min(34, width * 2 // 5) if view.lists_objects else min(28, width * 3 // 10))
    title = "WAKER" if view.lists_wakers else "WAITED ON" if view.lists_objects else "WAITED FOR"
    name = Column(title, name_width, lambda row: row.name, "name", left=True)
    shown = [
        *([Column("PID", 7, _id, sort="PID", least_width=60)] if view.lists_wakers else []),
        Column(name.title, name_width, name.text_of, "name", left=True, sort="NAME", stays=True),
        *numbers,
    ]
    chosen = that_fit(shown, width, view, view.list_sort, _MARKS)
    left = width - width_of(chosen, _MARKS) - 2 if "WHERE" not in view.hidden else 0
    if view.lists_objects and left < _LEAST_FOR_ENDS:

        def with_ends(row: Row) -> str:
            return "  ".join(
                filter(None, (row.name, location.peers_text(common.catalog, row.top.kernel, row.top.wake)))
            )

        chosen = [replace(one, text_of=with_ends) if one.sort == "NAME" else one for one in chosen]
    if left >= 8:

        def where_of(row: Row) -> str:
            return row_text(common, row, pen)

        chosen.append(Column(" WHERE", left + 1, lambda row: " " + where_of(row), "where", left=True))
    return chosen


def ready(row: Row) -> str:
    """Return the run-queue time after the wakeups, in average threads."""
    return threads(average(row.ready_ns, row.span_ns)) if row.ready_ns > 0 else ""


READY = Column("RUNQ", 6, ready, least_width=76)


def row_text(common: Common, row: Row, pen: Pen) -> str:
    """Return the text of a row: how a waker wakes and whom, or where an object is waited on.

    For a storm it is its cost; for a lock it begins with the holder, if that is known.
    """
    if row.storm != NO_STORM:
        return location.of_storm(row.storm, row.span_ns)
    if row.top == NOWHERE:
        return ""
    if common.view.lists_wakers:
        return location.of_waker(common.catalog, row.top, pen.names)
    if common.view.lists_objects:
        held = f"held by {row.holder.label}: " if row.holder.tid else ""
        return f"{held}{location.of_object(common.catalog, row.top, pen.names)}"
    return f"{common.catalog.process(row.top.pid)}: {location.of_sleeper(common.catalog, row.top, pen.names)}"


def storm_line(common: Common, row: Row, mark: str, base: str, pen: Pen) -> Line:
    """Return the line of a storm: one text, because it has none of the other rows' numbers."""
    number = Column("PID", 7, _id)
    text_width = pen.width - width_of([number], _MARKS) - 1
    storm = Column("", text_width, lambda row: f"{row.name}  {row_text(common, row, pen)}", "where", left=True)
    return line_of([number, storm], row, mark, base, pen)


def _id(row: Row) -> str:
    return str(row.pid) if row.pid else ""
