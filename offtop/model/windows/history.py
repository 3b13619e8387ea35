"""History: a Window and its breakdown for each tick of the last minutes.

It stays within a memory budget. A snapshot is added at every tick, whatever the screen does. The newest windows are
kept as they are, older ones are packed into columns and compressed, and the oldest are dropped. One thread adds; any
thread may read, since what is returned never changes.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from threading import Lock

import numpy as np

from offtop.model.values.catalog import Catalog, SiteKey
from offtop.model.values.columns import compressed, decompressed, of_table, to_table
from offtop.model.values.moves import NO_MOVES, SINCE, Moves
from offtop.model.values.snapshot import UNMEASURED, SiteTotals, Snapshot
from offtop.model.values.table import (
    MAX_NS,
    NO_COUNTS,
    NO_SITES,
    SITES,
    THREADS,
    WAITS,
    Ints,
    Mask,
    SiteKeys,
    Table,
    coded_at,
    counts_of,
    distinct_rows,
    summed,
    table_of,
)
from offtop.model.values.waits import WaitList, Waits
from offtop.model.values.wake import OFFCPU, gathers
from offtop.model.windows import rebuilt
from offtop.model.windows.breakdown import (
    SLEEP,
    Breakdown,
    Idle,
    Leaf,
    Part,
    Shares,
    break_down,
    breakdown_of,
    shares,
    with_standing,
)
from offtop.model.windows.idle_by_rule import NOTHING_BY_RULE, SLEEPS, IdleByRule
from offtop.model.windows.stuck import NOTHING_STUCK, PastWaits, Stuck, stuck
from offtop.model.windows.stuck import with_standing as with_standing_waits
from offtop.model.windows.window import Window, between, merge, moved_only
from offtop.units import NS_PER_S

HISTORY_NS = 600 * NS_PER_S
HISTORY_BYTES = 40 * 1024 * 1024

_UNPACKED_SHARE = 4
"""Windows that are not packed may take one part in four of the budget."""
_KEEP_BREAKDOWNS_NS = 60 * NS_PER_S
"""How long breakdowns by process are kept: as long as the longest rolling span."""

_TICK_BYTES = 4_000
_BLOCKED_BYTES = 300
"""Memory of the blockers of one wait, or of one title."""
_FILE_BYTES = 900
"""Memory of one entry of file operations, with its key, its histogram and its name."""
_IO_STACK_BYTES = 300
"""Memory of one stack of file operations or requests, without what its row has."""
_DISK_BYTES = 2200
"""Memory of one entry of requests to block devices, or of one device: it has three histograms, a device nine."""
_PART_BYTES = 500
"""Memory of one entry of a breakdown, with its keys and its share of the dicts. Measured with tracemalloc; a test
checks it."""

_NONE_PACKED = NO_SITES, compressed([NO_SITES.ids])

FindStanding = Callable[[Snapshot, Window, Shares, Stuck], SiteKeys]
"""Returns the sites of standing waits. The last two are the shares of the window, and the waits in progress, before
standing ones count as idle."""


def none_standing(snapshot: Snapshot, window: Window, every: Shares, blocked: Stuck) -> SiteKeys:
    """Implement FindStanding without a wait-for graph: no wait is known to be standing."""
    return NO_SITES


@dataclass(frozen=True, slots=True)
class Packed:
    """A window's entries as compressed columns."""

    rest: Window
    """The window without its entries."""
    columns: bytes
    columns_of_moves: bytes
    """By themselves, because each sum of ticks needs them."""
    columns_of_periodic: bytes
    """The tick's periodic sites. The same bytes in consecutive ticks, as long as they do not change."""

    @property
    def periodic(self) -> SiteKeys:
        return SiteKeys(*decompressed(self.columns_of_periodic))

    @property
    def moves(self) -> Moves:
        return Moves(np.concatenate(decompressed(self.columns_of_moves), axis=1))

    def window(self) -> Window:
        columns = iter(decompressed(self.columns))
        sites, threads = to_table(SITES, columns), to_table(THREADS, columns)
        return replace(self.rest, sites=sites, threads=threads, still=SiteKeys(next(columns)), moves=self.moves)


def pack(window: Window, columns_of_periodic: bytes) -> Packed:
    columns = [*of_table(SITES, window.sites), *of_table(THREADS, window.threads), window.still.ids]
    sites, times = window.moves.rows[:, :SINCE], window.moves.rows[:, SINCE:]
    rest = replace(window, sites={}, threads={}, still=NO_SITES, moves=NO_MOVES)
    return Packed(rest, compressed(columns), compressed([sites, times]), columns_of_periodic)


@dataclass(frozen=True, slots=True)
class HistoryTick:
    """One tick of the past."""

    number: int
    """Consecutive number of the tick."""
    taken_ns: int
    """CLOCK_REALTIME of its end."""
    at_ns: int
    """CLOCK_MONOTONIC of its end."""
    span_ns: int
    bytes_held: int
    """Estimate."""
    leaves: Mapping[Leaf, Part]
    """What timelines and heat maps draw."""
    held: Window | Packed
    held_idle: Idle
    """What counted as idle in this tick; if the window is packed, without the periodic sites."""
    periodic_bytes: int
    """Memory of the periodic sites, counted in the first tick that has them."""
    cached_breakdown: Breakdown | None
    cached_shares: Shares | None
    """Only for the newest tick, which is drawn most often: shares are as large as their window."""

    @property
    def window(self) -> Window:
        return self.held.window() if isinstance(self.held, Packed) else self.held

    @property
    def idle(self) -> Idle:
        """What counted as idle in this tick."""
        held = self.held
        return self.held_idle._replace(periodic=held.periodic) if isinstance(held, Packed) else self.held_idle

    @property
    def header(self) -> Window:
        """The window, perhaps without its entries: for its cost, losses, filters and catalog."""
        return self.held.rest if isinstance(self.held, Packed) else self.held

    @classmethod
    def of(cls, window: Window, idle: Idle, number: int = 0, every: Shares | None = None) -> "HistoryTick":
        """Build a tick from `window`, with bytes_held still 0. `every`: its shares, if they are made already."""
        every = every or shares(window, idle)
        made = breakdown_of(every, window.span_ns)
        times = window.taken_ns, window.at_ns, window.span_ns
        return cls(number, *times, 0, made.categories, window, idle, 0, made, every)

    @property
    def pids_and_wakes(self) -> list[list[int]]:
        """Return each distinct (pid, wake id) of its waits."""
        return np.unique(self.shares.ids[:, [0, 4]], axis=0).tolist()

    @property
    def moves(self) -> Moves:
        return self.held.moves

    @property
    def shares(self) -> Shares:
        return self.cached_shares or shares(self.window, self.idle)

    @property
    def breakdown(self) -> Breakdown:
        return self.cached_breakdown or break_down(self.window, self.idle)


class History:
    """The last `max_ns` in at most `max_bytes`, and everything since the start as one window."""

    def __init__(
        self,
        idle: Iterable[str],
        is_periodic: Callable[[Ints, int], Mask],
        max_ns: int = HISTORY_NS,
        max_bytes: int = HISTORY_BYTES,
        idle_by_rule: Callable[[Iterable[Ints], Catalog], IdleByRule] = lambda _, __: NOTHING_BY_RULE,
        standing: FindStanding = none_standing,
    ) -> None:
        """Create an empty history.

        `idle` names the categories that are always idle. `is_periodic` returns which `sleep` sites are periodic, given
        the histograms of all waits so far (table.nonzero_lanes) and the number of sites. `idle_by_rule` applies the
        cause rules to the ids of sites (CauseFinder.idle_by_rule). `standing` finds the standing waits
        (SuspectWatch.standing). The last two are called in the thread that adds.
        """
        self._idle = frozenset(idle)
        self._idle_by_rule, self._standing = idle_by_rule, standing
        self._newest_by_rule = NOTHING_BY_RULE
        self._newest_standing = NO_SITES
        self._newest_stuck: tuple[Idle, Stuck] = Idle(), NOTHING_STUCK
        """The waits in progress at the end of the newest tick, and what counted as idle then."""
        self._is_periodic = is_periodic
        self._max_ns = max_ns
        self._max_bytes = max_bytes
        self._lock = Lock()
        self._ticks: deque[HistoryTick] = deque()
        self._number = 0
        """Number of the newest tick."""
        self._unpacked = 0
        """How many of the newest ticks are not packed."""
        self._with_breakdown = 0
        """How many of the newest ticks have their breakdown."""
        self._unpacked_bytes = 0
        self._bytes = 0
        self._first: Snapshot | None = None
        self._packed_periodic = _NONE_PACKED
        """The periodic sites of the tick that was packed last, and their columns."""
        self._before_wakers: Snapshot | None = None
        """The last snapshot before the mode gathered more, for example wakers."""
        self._early_moves = NO_MOVES
        """Moves of waits that were in progress at `_first` or `_before_wakers`."""
        self._largest_storms: dict[int, int] = {}
        """How many threads the largest storm of each waker woke since `reset`."""
        self._longest_call_ns = 0
        """Longest call of the --within function since `reset`."""
        self._latest: Snapshot | None = None
        self._lost_unmeasured: Mapping[str, int] = {}
        """What was lost in a span that was not measured; the next tick has it."""
        self._periodic = NO_SITES
        self._waits = PastWaits()
        self._longest_waits: Table[SiteKey, SiteTotals] | None = None
        """Longest wait of each site since `reset`; None while the totals of the source are right."""

    def reset(self) -> None:
        """Let `since_start` begin now."""
        with self._lock:
            self._first = self._latest
            self._longest_waits = table_of(SITES, {})
            self._largest_storms.clear()
            self._longest_call_ns = 0
            self._early_moves = NO_MOVES

    def add(self, snapshot: Snapshot) -> HistoryTick | None:
        """Keep what happened since the previous snapshot, and return it.

        None for the first snapshot, and for one after a span that was not measured: averages over it would be too low.
        """
        earlier, self._latest = self._latest, snapshot
        if earlier is None or earlier.epoch != snapshot.epoch:
            self._begin(snapshot)
            return None
        window = between(earlier, snapshot)
        if UNMEASURED in window.lost:
            with self._lock:
                self._lost_unmeasured = _sums(self._lost_unmeasured, window.lost)
                self._waits.add(snapshot)
            return None
        if self._lost_unmeasured:
            window = replace(window, lost=_sums(self._lost_unmeasured, window.lost))
            self._lost_unmeasured = {}
        self._number += 1
        earlier_by_rule, self._newest_by_rule = self._newest_by_rule, self._apply_rules(snapshot, window)
        periodic = self._periodic_in(snapshot)
        is_new = not np.array_equal(periodic.ids, self._periodic.ids)
        if is_new:
            self._periodic = periodic
        idle = Idle(self._idle, self._periodic, self._newest_by_rule)
        every = shares(window, idle)
        blocked = stuck(Waits.of(snapshot.waiting).list, snapshot.at_ns, snapshot.catalog, idle)
        standing = self._standing(snapshot, window, every, blocked)
        if np.array_equal(standing.ids, self._newest_standing.ids):
            standing = self._newest_standing
        idle = idle._replace(standing=standing)
        tick = HistoryTick.of(window, idle, self._number, with_standing(every, standing))
        tick = replace(tick, periodic_bytes=periodic.bytes_held if is_new else 0)
        own = _PART_BYTES * len(tick.leaves)
        own += self._newest_by_rule.bytes_held if self._newest_by_rule is not earlier_by_rule else 0
        own += standing.bytes_held if standing is not self._newest_standing else 0
        tick = replace(tick, bytes_held=_bytes_of(tick) + own)
        self._newest_standing = standing
        with self._lock:
            if self._longest_waits is not None:
                self._longest_waits = _longer_of(self._longest_waits, table_of(SITES, window.sites))
            if not gathers(earlier.mode, snapshot.mode):
                self._before_wakers = earlier
                self._largest_storms.clear()
            since_ns = max(one.at_ns for one in (self._first, self._before_wakers) if one)
            self._early_moves = Moves.all((self._early_moves, Moves.of(snapshot.moves).begun_before(since_ns)))
            for waker, storm in window.storms.items():
                self._largest_storms[waker] = max(storm.largest, self._largest_storms.get(waker, 0))
            self._longest_call_ns = max(self._longest_call_ns, window.calls.max_ns)
            if self._ticks:
                self._ticks[-1] = replace(self._ticks[-1], cached_shares=None)
            self._ticks.append(tick)
            self._unpacked += 1
            self._with_breakdown += 1
            self._unpacked_bytes += tick.bytes_held
            self._bytes += tick.bytes_held
            self._waits.add(snapshot)
            self._newest_stuck = idle, with_standing_waits(blocked, standing)
            self._make_room()
        return tick

    def refresh_newest(self) -> HistoryTick | None:
        """Apply the rules to the newest tick again: more functions may have names by now."""
        with self._lock:
            newest, latest = self._ticks[-1] if self._ticks else None, self._latest
        if newest is None or latest is None or isinstance(newest.held, Packed):
            return newest
        self._newest_by_rule = self._apply_rules(latest, newest.held)
        if self._newest_by_rule is newest.idle.by_rule:
            return newest
        seen = HistoryTick.of(newest.held, newest.idle._replace(by_rule=self._newest_by_rule), newest.number)
        seen = replace(seen, bytes_held=newest.bytes_held, periodic_bytes=newest.periodic_bytes)
        with self._lock:
            self._ticks[-1] = seen
        return seen

    def _apply_rules(self, snapshot: Snapshot, window: Window) -> IdleByRule:
        """Apply the rules to all sites: waits in progress are judged by finished ones."""
        known = table_of(SITES, snapshot.sites)
        sites = known.ids[known.present], table_of(SITES, window.sites).ids, window.still.ids
        return self._idle_by_rule(sites, window.catalog)

    def _begin(self, snapshot: Snapshot) -> None:
        """Drop everything: the next windows are differences of other totals."""
        with self._lock:
            # If a source was joined in the middle, its maxima cover more than what was seen of it.
            self._longest_waits = table_of(SITES, {}) if snapshot.epoch else None
            self._first, self._periodic, self._newest_standing = snapshot, NO_SITES, NO_SITES
            self._packed_periodic = _NONE_PACKED
            self._before_wakers = None
            self._largest_storms.clear()
            self._longest_call_ns = 0
            self._early_moves = NO_MOVES
            self._lost_unmeasured = {}
            self._ticks.clear()
            self._waits.clear()
            self._waits.add(snapshot)
            self._unpacked = self._with_breakdown = self._unpacked_bytes = self._bytes = 0

    @property
    def latest(self) -> Snapshot | None:
        return self._latest

    @property
    def newest(self) -> HistoryTick | None:
        return self._ticks[-1] if self._ticks else None

    @property
    def oldest(self) -> HistoryTick | None:
        return self._ticks[0] if self._ticks else None

    @property
    def oldest_ns(self) -> int:
        """CLOCK_REALTIME of the oldest tick; 0 if there is none."""
        oldest = self.oldest
        return oldest.taken_ns if oldest else 0

    @property
    def bytes_held(self) -> int:
        """Estimate, without what windows share with the source (the Catalog)."""
        return self._bytes + self._waits.bytes_held

    @property
    def reach_ns(self) -> int:
        """How far back it goes."""
        with self._lock:
            return self._ticks[-1].at_ns - self._ticks[0].at_ns + self._ticks[0].span_ns if self._ticks else 0

    def last(self, span_ns: int, end_ns: int | None = None) -> list[HistoryTick]:
        """Return the ticks of the `span_ns` up to `end_ns` (None: now), earliest first: at least one, if there is any.

        A tick belongs to the span if its middle does, so that a span always has the same number of ticks.
        """
        with self._lock:
            return self._last(span_ns, end_ns)

    def _last(self, span_ns: int, end_ns: int | None) -> list[HistoryTick]:
        every = self._ticks
        end = len(every) if end_ns is None else bisect_left(every, end_ns + 1, key=lambda tick: tick.at_ns)
        if not end:
            return []
        from_ns = every[end - 1].at_ns - span_ns
        begin = end - 1
        while begin and every[begin - 1].at_ns - every[begin - 1].span_ns // 2 > from_ns:
            begin -= 1
        return list(islice(every, begin, end))

    def snapshots_of_last(self, span_ns: int, end_ns: int | None = None) -> Iterator[Snapshot]:
        """Rebuild the snapshots of `last`: one before its first tick and one after each.

        Their totals start at 0.
        """
        with self._lock:
            ticks = self._last(span_ns, end_ns)
            if not ticks:
                return iter(())
            since = list(islice(self._ticks, ticks[0].number - self._ticks[0].number, None))
            waits = self._waits.lasting(ticks[0].at_ns - ticks[0].span_ns, ticks[-1].at_ns)
            latest = self._waits.latest
        before = rebuilt.ended_before(latest.sites if latest else {}, (tick.window for tick in since))
        return rebuilt.snapshots((tick.window for tick in ticks), [*waits], before)

    def tick(self, number: int) -> HistoryTick | None:
        """Return the tick of that number, or None if it is not kept any more."""
        with self._lock:
            index = number - self._ticks[0].number if self._ticks else -1
            return self._ticks[index] if 0 <= index < len(self._ticks) else None

    def stuck(self, tick: HistoryTick) -> Stuck:
        """Return the waits that were in progress at the end of `tick`."""
        with self._lock:
            waits, (idle, newest) = self._waits.at(tick.at_ns), self._newest_stuck
        return newest if tick.idle is idle else stuck(waits, tick.at_ns, tick.header.catalog, tick.idle)

    def waits(self, tick: HistoryTick) -> WaitList:
        """Return what `stuck` does, and younger waits as far as they are known: at the newest tick."""
        with self._lock:
            return self._waits.at(tick.at_ns)

    def taken_by(self, taken_ns: int) -> HistoryTick | None:
        """Return the last tick taken by that time (CLOCK_REALTIME); None if it was dropped."""
        with self._lock:
            return next((tick for tick in reversed(self._ticks) if tick.taken_ns <= taken_ns), None)

    def until(self, at_ns: int, mode: str = OFFCPU) -> HistoryTick | None:
        """Return everything up to the tick at `at_ns` as one tick.

        It goes back as far as `mode` was gathered. The tick at `at_ns` is included in any mode.
        """
        every = self.last(self._max_ns, at_ns)
        if not every:
            return None
        lacking = (index for index in reversed(range(len(every) - 1)) if not gathers(every[index].header.mode, mode))
        every = every[next(lacking, -1) + 1 :]
        return HistoryTick.of(merge([tick.window for tick in every]), every[-1].idle)

    def since_start(self, mode: str = OFFCPU) -> HistoryTick | None:
        """Return everything since the start as one tick; threads that exited are summed up.

        The start is the first snapshot, the last `reset`, or when gathering what `mode` shows began.
        """
        with self._lock:
            first, latest, longest, largest_storms = (
                self._first,
                self._latest,
                self._longest_waits,
                dict(self._largest_storms),
            )
            begun, early_moves, longest_call_ns = self._before_wakers, self._early_moves, self._longest_call_ns
        if first and begun and mode != OFFCPU and begun.at_ns > first.at_ns:
            first = begun
        if first is None or latest is None or first is latest:
            return None
        window = between(first, latest, early_moves.ended_after(first.at_ns))
        sites = table_of(SITES, window.sites)
        longest = table_of(SITES, latest.sites) if longest is None else longest
        row_of = np.array([longest.rows.get(key, -1) for key in sites], np.int64)
        longest_ns = np.zeros(len(row_of), np.int64)
        longest_ns[row_of >= 0] = longest.longest_ns[row_of[row_of >= 0]]
        if first is begun:  # the longest wait may be from before that
            longest_ns[sites.numbers[:, WAITS] == 0] = 0
        storms = {
            waker: one._replace(largest=largest_storms.get(waker, one.largest)) for waker, one in window.storms.items()
        }
        calls = window.calls._replace(max_ns=longest_call_ns)
        span_ns = max(1, window.span_ns - window.lost.get(UNMEASURED, 0) * NS_PER_S)
        window = replace(window, span_ns=span_ns, sites=sites.with_maxima(longest_ns), storms=storms, calls=calls)
        return HistoryTick.of(window, Idle(self._idle, self._periodic, self._newest_by_rule, self._newest_standing))

    def _periodic_in(self, snapshot: Snapshot) -> SiteKeys:
        """Return the sites of `sleep`, or where threads sleep by rule, whose waits so far are periodic."""
        sites = table_of(SITES, snapshot.sites)
        stacks, which = distinct_rows(sites.ids[:, 2:3])
        asleep = np.array([snapshot.catalog.stack(one).category == SLEEP for (one,) in stacks], np.bool_)[which]
        asleep |= self._newest_by_rule.of(sites.ids) == SLEEPS
        rows = np.flatnonzero(asleep & (sites.numbers[:, WAITS] > 0))
        counts = counts_of(coded_at(sites.coded, rows, len(sites.ids)))
        return SiteKeys(sites.ids[rows[self._is_periodic(counts, len(rows))]])

    def _make_room(self) -> None:
        """Pack windows, drop the breakdowns that no span on the screen needs, then drop ticks.

        The newest tick is left unchanged.
        """
        every = self._ticks
        while self._unpacked > 1 and self._unpacked_bytes > self._max_bytes // _UNPACKED_SHARE:
            self._replace(len(every) - self._unpacked, pack_window=True)
            self._unpacked -= 1
        too_old_ns = every[-1].at_ns - _KEEP_BREAKDOWNS_NS
        while self._with_breakdown > 1:
            oldest = len(every) - self._with_breakdown
            if every[oldest].at_ns > too_old_ns:
                break
            self._replace(oldest, pack_window=False)
            self._with_breakdown -= 1
        from_ns = every[-1].at_ns - self._max_ns
        while len(every) > 1 and (self.bytes_held > self._max_bytes or every[0].at_ns <= from_ns):
            dropped = every.popleft()
            self._waits.forget(every[0].at_ns)
            self._bytes -= dropped.bytes_held
            if len(every) < self._unpacked:
                self._unpacked -= 1
                self._unpacked_bytes -= dropped.bytes_held
            self._with_breakdown = min(self._with_breakdown, len(every))

    def _replace(self, index: int, pack_window: bool) -> None:
        """Replace the tick at `index` by one with a packed window, or without breakdown."""
        was = self._ticks[index]
        smaller = self._packed(was) if pack_window else replace(was, cached_breakdown=None)
        bytes_held = was.bytes_held + _bytes_of(smaller) - _bytes_of(was)
        smaller = replace(smaller, bytes_held=bytes_held)
        self._ticks[index] = smaller
        self._bytes += smaller.bytes_held - was.bytes_held
        if pack_window:
            self._unpacked_bytes -= was.bytes_held
        elif not isinstance(was.held, Packed):
            self._unpacked_bytes += smaller.bytes_held - was.bytes_held

    def _packed(self, tick: HistoryTick) -> HistoryTick:
        """Return the tick with a packed window, bytes_held unchanged."""
        periodic, (packed, columns) = tick.held_idle.periodic, self._packed_periodic
        is_new = periodic is not packed
        if is_new:
            columns = compressed([periodic.ids])
            self._packed_periodic = periodic, columns
        return replace(
            tick,
            held=pack(tick.window, columns),
            held_idle=tick.held_idle._replace(periodic=NO_SITES),
            periodic_bytes=len(columns) if is_new else 0,
        )


def _longer_of(one: Table[SiteKey, SiteTotals], other: Table[SiteKey, SiteTotals]) -> Table[SiteKey, SiteTotals]:
    """Return each site of either with the longer of its maxima, and no other numbers."""
    ids, longest_ns = np.concatenate((one.ids, other.ids)), np.append(one.numbers[:, MAX_NS], other.numbers[:, MAX_NS])
    some = longest_ns > 0
    numbers = np.zeros((np.count_nonzero(some), SITES.numbers), np.int64)
    numbers[:, MAX_NS] = longest_ns[some]
    return summed(SITES, ids[some], numbers, NO_COUNTS)


def _sums(some: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    return {kind: some.get(kind, 0) + more.get(kind, 0) for kind in {**some, **more}}


def _bytes_of(tick: HistoryTick) -> int:
    held, own = tick.held, _TICK_BYTES + tick.periodic_bytes
    own += _BLOCKED_BYTES * (len(tick.header.blockers) + len(tick.header.titles))
    if tick.header.files:
        own += _FILE_BYTES * len(tick.header.files.totals) + sum(map(len, tick.header.files.names.values()))
        own += _IO_STACK_BYTES * len(tick.header.files.stacks)
    if tick.header.disks:
        own += _DISK_BYTES * (len(tick.header.disks.totals) + 3 * len(tick.header.disks.devices))
        own += _IO_STACK_BYTES * len(tick.header.disks.stacks)
    if isinstance(held, Packed):
        own += len(held.columns) + len(held.columns_of_moves)
    else:
        tables = table_of(SITES, held.sites), table_of(THREADS, held.threads)
        own += sum(table.bytes_held for table in tables) + held.still.ids.nbytes + held.moves.rows.nbytes
    if tick.cached_breakdown:
        own += _PART_BYTES * sum(map(len, tick.cached_breakdown.processes.values()))
    return own


def moved_in(
    ticks: Sequence[HistoryTick], since_ns: int, moves_of_ticks: Iterable[Moves] | None = None
) -> HistoryTick | None:
    """Return a tick that corrects a sum over consecutive `ticks`: it moves time to the sites at which its waits ended.

    It must be added if the shares of `ticks` are summed up one by one; `merge` of their windows applies moves itself.
    Only time from `since_ns` on is moved. None: there is nothing to move. `moves_of_ticks`: the moves of each tick, if
    they are unpacked already. The number of the returned tick is negative, because it is not a tick of a History. Time
    that was standing in one of `ticks` is not moved: it was counted as idle there, and a sum of time that is not idle
    would fall below 0.
    """
    last, moves = ticks[-1], Moves.all(moves_of_ticks or [tick.moves for tick in ticks]).after(since_ns)
    for tick in ticks:
        if len(moves) and len(tick.held_idle.standing):
            moves = moves.outside(tick.held_idle.standing, tick.at_ns - tick.span_ns, tick.at_ns)
    idle = last.idle._replace(standing=NO_SITES)
    return HistoryTick.of(moved_only(moves, last.header), idle, -last.number) if moves else None
