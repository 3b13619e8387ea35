"""A Picture is all that the screen shows of a History under a View: numbers and names, not yet words."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from offtop.model.book import Book, SiteKey, ThreadKey
from offtop.model.categories import OTHER
from offtop.model.cut import (
    ALL,
    FILTERED,
    NO_PART,
    RUN_QUEUE,
    Cut,
    Idle,
    Leaf,
    Part,
    Scope,
    by_category,
    by_place,
    by_thread,
    merged,
    top_of_processes,
    top_of_threads,
    total,
)
from offtop.model.history import History, Kept
from offtop.model.rolling import Rolling, Table
from offtop.model.rows import Key, Order, Ranking, Row, category_rows, place_rows, process_rows, thread_rows
from offtop.model.snapshot import Filters, Snapshot
from offtop.model.view import SINCE_START, View
from offtop.model.window import Window
from offtop.units import NS_PER_S

Series = tuple[float | None, ...]
"""Average waiting threads in cells of time, the latest last; None where nothing was measured."""

_LOOKED_UP_TICKS = 3
"""A row whose waits are all short has no place in any tick: not worth looking through sixty for it."""
LONGEST_ROLLING_NS = 60 * NS_PER_S
_RECENT_NS = 10 * NS_PER_S


@dataclass(frozen=True, slots=True)
class Room:
    """How much the screen has room for."""

    categories: int = 7
    rows: int = 7
    """Rows of the list whose place is looked up: those that can be seen at once."""
    places: int = 0
    spark_cells: int = 20
    spark_cell_ns: int = 3 * NS_PER_S
    timeline_cells: int = 60
    timeline_cell_ns: int = 5 * NS_PER_S


@dataclass(frozen=True, slots=True)
class Picture:
    view: View
    newest: Kept
    """The latest tick of it."""
    behind_ns: int
    """How long before the latest reading that was: 0 but while paused."""
    span_ns: int
    """Measured; what the rows are over."""
    shown: Part
    """All that the categories show."""
    ready_ns: int
    """The run-queue part of `shown`."""
    hidden_ns: int
    """Idle-looking, and not shown."""
    filtered_ns: int
    """Left out by --max and --state."""
    other_ns: int
    """The part of `shown` that no rule knows."""
    lost: Mapping[str, int]
    """Over the span, by kind."""
    switches_per_s: float
    """Of the machine, over the span, or the last 10 s where that is all since the start; negative: not known."""
    book: Book
    categories: Ranking
    sparks: Mapping[str, Series]
    """Of each category, over the last minute; of all of them under cut.ALL."""
    rows: Ranking
    """The list: processes or threads."""
    cursor_row: int
    """Which of its rows the keys are on."""
    first_row: int
    """Which of its rows is the first on the screen."""
    places: Ranking
    """Where the time of `places_of` went."""
    places_of: Key | None
    """The process or thread that was drilled into or that the cursor is on; None: the category."""
    timeline: Series


def series(ticks: Sequence[Kept], cells: int, cell_ns: int, end_ns: int, waiting_ns: Callable[[Kept], int]) -> Series:
    """The average of `waiting_ns` in `cells` cells, the last holding `end_ns`.

    Cells begin at multiples of `cell_ns`, so that what is drawn moves a whole cell at a time and does not shimmer.
    """
    newest = (end_ns - 1) // cell_ns
    sums: dict[int, tuple[int, int]] = {}
    for tick in ticks:
        cell = (tick.at_ns - 1) // cell_ns - newest + cells - 1
        if 0 <= cell < cells:
            was_ns, was_span_ns = sums.get(cell, (0, 0))
            sums[cell] = (was_ns + waiting_ns(tick), was_span_ns + tick.span_ns)
    return tuple(sums[cell][0] / sums[cell][1] if sums.get(cell, (0, 0))[1] else None for cell in range(cells))


class _Still:
    """What a paused view goes on showing, though History may forget it."""

    def __init__(self, history: History, at_ns: int) -> None:
        self.at_ns = at_ns
        self.ticks = history.last(LONGEST_ROLLING_NS, at_ns)
        self.since_start = history.since_start()
        self.threads = _thread_counts(history.latest)


class Pictures:
    """Makes one picture after the other of a history; keeps nothing but rolling sums, to do it cheaply."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._still: _Still | None = None
        self._rolling: dict[str, tuple[Scope, Rolling]] = {}

    def of(self, view: View, room: Room) -> Picture | None:
        """None while there is no tick yet."""
        self._stop_or_go_on(view)
        minute = self._still.ticks if self._still else self._history.last(LONGEST_ROLLING_NS)
        if not minute:
            return None
        ever = self._since_start() if view.span_ns == SINCE_START or view.sort == "TOTAL" else None
        newest = minute[-1]
        over = [ever] if ever and view.span_ns == SINCE_START else _last(minute, view.span_ns)
        recent = _last(minute, _RECENT_NS) if over[0] is ever else over  # nobody counts switches since the start
        one, lifetime = merged([tick.cut for tick in over]), ever.cut if ever else None
        parts = by_category(one, view.idle_shown, filtered_shown=False)
        filtered_ns = by_category(one).get(FILTERED, NO_PART).total_ns
        categories = category_rows(
            one,
            Order(view.sort, view.reverse, room.categories),
            idle_shown=view.idle_shown,
            lifetime=lifetime,
            keep=view.category,
        )
        rows = self._rows(view, one, over, ever)
        cursor_row = next((i for i, row in enumerate(rows.rows) if row.key == view.cursor), 0)
        first_row = min(max(0, cursor_row - room.rows // 2), max(0, len(rows.rows) - room.rows))
        rows = self._with_tops(rows, first_row, room.rows, view, over)
        under_cursor = rows.rows[cursor_row] if rows.rows and view.in_list else None
        places_of = view.thread or (under_cursor.key if under_cursor else None)
        span_ns = sum(tick.span_ns for tick in over)
        return Picture(
            view=view,
            newest=newest,
            behind_ns=self._history.latest.at_ns - newest.at_ns if self._history.latest else 0,
            span_ns=span_ns,
            shown=total(parts.values()),
            ready_ns=parts.get(RUN_QUEUE, NO_PART).total_ns,
            other_ns=parts.get(OTHER, NO_PART).total_ns,
            filtered_ns=filtered_ns,
            hidden_ns=total(one.categories.values()).total_ns - total(parts.values()).total_ns - filtered_ns,
            lost=_added(tick.facts.lost for tick in over),
            switches_per_s=_per_second([tick for tick in recent if tick.facts.cost.switches >= 0]),
            book=newest.facts.book,
            categories=categories,
            sparks={
                row.key: series(minute, room.spark_cells, room.spark_cell_ns, newest.at_ns, _time_in(row.key, view))
                for row in (*categories.rows, Row(ALL, ALL, span_ns))
                if isinstance(row.key, str)
            },
            rows=rows,
            cursor_row=cursor_row,
            first_row=first_row,
            places=self._places(view, places_of, over, room.places) if room.places else Ranking(),
            places_of=places_of,
            timeline=series(
                self._history.last(room.timeline_cells * room.timeline_cell_ns, newest.at_ns),
                room.timeline_cells,
                room.timeline_cell_ns,
                newest.at_ns,
                _time_in(view.category, view),
            ),
        )

    def _stop_or_go_on(self, view: View) -> None:
        if view.paused_at_ns is None:
            self._still = None
        elif self._still is None:
            self._still = _Still(self._history, view.paused_at_ns)

    def _since_start(self) -> Kept | None:
        return self._still.since_start if self._still else self._history.since_start()

    def _rows(self, view: View, one: Cut, over: Sequence[Kept], ever: Kept | None) -> Ranking:
        """The list: processes or threads in the view's scope."""
        scope, book = view.scope._replace(tid=None), over[-1].facts.book
        order = Order(view.sort, view.reverse)
        if not view.lists_threads:
            pids = [view.pin if isinstance(view.pin, int) else view.pin.pid] if view.pin is not None else []
            counts = self._still.threads if self._still else _thread_counts(self._history.latest)
            keep = view.cursor if isinstance(view.cursor, int) else None
            lifetime = ever.cut if ever else None
            return process_rows(one, scope, book, order, threads=counts, pinned=pids, lifetime=lifetime, keep=keep)
        pin = view.pin if isinstance(view.pin, ThreadKey) and scope.pid in (None, view.pin.pid) else None
        table = self._table("threads", by_thread, scope, over)
        return thread_rows(
            table,
            one.span_ns,
            book,
            order,
            pinned=[pin] if pin else [],
            lifetime=by_thread(ever.window, scope, ever.idle) if ever else None,
            keep=view.cursor if isinstance(view.cursor, ThreadKey) else None,
        )

    def _with_tops(self, rows: Ranking, first: int, count: int, view: View, over: Sequence[Kept]) -> Ranking:
        """The rows that can be seen told where they waited, looked up in the newest of the last ticks that knows."""
        scope = view.scope._replace(tid=None)
        missing = {row.key for row in rows.rows[first : first + count] if isinstance(row.key, int | ThreadKey)}
        found: dict[int | ThreadKey, SiteKey] = {}
        for tick in over[: -_LOOKED_UP_TICKS - 1 : -1]:
            if not missing:
                break
            found |= top_of_processes(tick.cut, scope, {key for key in missing if isinstance(key, int)})
            of_threads = {key for key in missing if isinstance(key, ThreadKey)}
            if of_threads:
                found |= top_of_threads(tick.window, scope, tick.idle, of_threads)
            missing -= found.keys()
        seen = tuple(
            row._replace(top=found[row.key]) if isinstance(row.key, int | ThreadKey) and row.key in found else row
            for row in rows.rows
        )
        return rows._replace(rows=seen)

    def _places(self, view: View, whose: Key | None, over: Sequence[Kept], limit: int) -> Ranking:
        pid, tid = whose if isinstance(whose, ThreadKey) else (whose if isinstance(whose, int) else None, None)
        scope = Scope(view.category, pid, tid, view.idle_shown)
        table = self._table("places", by_place, scope, over)
        return place_rows(table, sum(tick.span_ns for tick in over), limit)

    def _table(
        self, what: str, table_of: Callable[[Window, Scope, Idle], Table], scope: Scope, over: Sequence[Kept]
    ) -> Table:
        """The sum over all ticks of `over`; the rolling sum of `what` goes on while its scope stays the same."""
        if not over[-1].number or len(over) == 1:
            return table_of(over[-1].window, scope, over[-1].idle)
        was = self._rolling.get(what)
        if was is None or was[0] != scope:
            was = self._rolling[what] = (scope, Rolling(lambda tick: table_of(tick.window, scope, tick.idle)))
        return was[1].follow(over, self._history.tick)


def _last(minute: Sequence[Kept], span_ns: int) -> Sequence[Kept]:
    """As History.last, of ticks that are at hand; back to where the kernel began to count what it counts now."""
    from_ns, counted = minute[-1].at_ns - span_ns, _counted(minute[-1])
    over = [tick for tick in minute if tick.at_ns - tick.span_ns // 2 > from_ns or tick is minute[-1]]
    before = next((index for index in reversed(range(len(over))) if _counted(over[index]) != counted), -1)
    return over[before + 1 :]


def _counted(tick: Kept) -> Filters:
    """Which threads and waits are in it; the minimum does not leave any out."""
    return replace(tick.facts.filters, min_ns=0)


def _time_in(category: str, view: View) -> Callable[[Kept], int]:
    """What a timeline of `category` shows of a tick, in ns."""
    if category == ALL:
        return lambda tick: sum(ns for leaf, ns in tick.waiting_ns.items() if view.idle_shown or not leaf.idle)
    leaves = (Leaf(category), Leaf(category, True)) if view.idle_shown else (Leaf(category),)
    return lambda tick: sum(tick.waiting_ns.get(leaf, 0) for leaf in leaves)


def _thread_counts(snapshot: Snapshot | None) -> Mapping[int, int]:
    """pid → how many threads of it ever waited, those that were given back apart."""
    return Counter(pid for pid, _ in snapshot.threads.keys() | snapshot.waiting.keys()) if snapshot else {}


def _per_second(ticks: Sequence[Kept]) -> float:
    span_ns = sum(tick.span_ns for tick in ticks)
    return sum(tick.facts.cost.switches for tick in ticks) * NS_PER_S / span_ns if span_ns else -1.0


def _added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Sums by kind."""
    sums: Counter[str] = Counter()
    for some in counts:
        sums.update(some)
    return dict(sums)
