"""Change: what one tick changed in a snapshot.

Snapshots can be rebuilt from their changes. The size of a change depends on what happened, not on what exists. A
complete snapshot is stored as a change, too: from the empty snapshot to it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from offtop.model.values.blockers import Blocker, Blockers
from offtop.model.values.catalog import Catalog, ThreadKey
from offtop.model.values.moves import NO_MOVES, NOW, SINCE, WAS, Moves
from offtop.model.values.running import Running
from offtop.model.values.snapshot import (
    Bound,
    Cost,
    Filters,
    Holder,
    Machine,
    Move,
    Sampling,
    Snapshot,
    ThreadTotals,
    Waiting,
)
from offtop.model.values.stack import NO_STACK
from offtop.model.values.table import (
    NO_COUNTS,
    SITES,
    THREADS,
    Ints,
    K,
    Kind,
    V,
    integers,
    of_exited,
    table_of,
    thread_codes,
)
from offtop.model.values.waits import (
    ARGUMENTS,
    BOUND,
    CALL,
    FIELDS,
    FROM_NS,
    NO_WAITS,
    PREEMPTED,
    READ_USER,
    READY_NS,
    SINCE_NS,
    STATE,
    SWITCHED_OUT_NS,
    WAKE,
    Holders,
    WaitList,
    Waits,
    so_far_of,
    thread_numbers,
)
from offtop.model.values.wake import NO_WAKE, Storm
from offtop.model.values.within import NO_CALLS, Calls
from offtop.model.windows.window import finished, site_numbers

A = TypeVar("A")
B = TypeVar("B")
WAITING_FIELDS = 9
"""pid, tid, kernel, user, switched_out_ns, from_ns, runqueue_ns, preempted, wake."""
BEGUN_FIELDS = 11
"""since_ns, bound, state, call, six arguments (as signed 64-bit), user stack read from outside. A call with unknown
arguments is stored as -2 - call."""
_MOST_WAITS = 1 << 60
"""Most waits in all histograms together: sums of them, and of a few changes more, fit 64 bits."""
NO_ARGUMENTS = (0, 0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Rows:
    """What was added to threads, or to sites."""

    ids: Ints
    """(n, fields of a key)"""
    numbers: Ints
    """(n, totals without histogram); the last is the longest wait of the tick, not a difference."""
    counts: Ints
    """(m, 3) The lanes of histograms that are not 0 (table.nonzero_lanes)."""
    evicted: Ints
    """(m, fields of a key) Keys that were evicted. They are removed before the others are added."""
    longest_ns: Ints
    """(n,) The longest wait of each key since the source began; empty unless the change is a complete snapshot."""


@dataclass(frozen=True, slots=True)
class Change:
    taken_ns: int
    at_ns: int
    threads: Rows
    sites: Rows
    waiting: Ints
    """(n, 9) Waits in progress that are new or changed."""
    begun: Ints
    """(n, 11) How those waits began; (0, 11) if that was not recorded."""
    ended: Ints
    """(m, 2) pid, tid of threads that are no longer in a wait."""
    lost: Mapping[str, int] = field(default_factory=dict[str, int])
    """Running counts, as in the snapshot."""
    cost: Cost = Cost()
    machine: Machine = Machine()
    mode: str = "offcpu"
    probe: str = ""
    filters: Filters = Filters()
    storms: Mapping[int, Storm] = field(default_factory=dict[int, Storm])
    """Running totals, as in the snapshot."""
    moves: Moves = NO_MOVES
    """Since the previous snapshot."""
    calls: Calls = NO_CALLS
    """Running totals, as in the snapshot."""
    holders: Mapping[ThreadKey, Holder] = field(default_factory=dict[ThreadKey, Holder])
    """Holders of the kernel locks that threads in `waiting` wait for, if known."""
    sampling: Sampling | None = None
    """Running totals, as in the snapshot."""
    blockers: Blockers = field(default_factory=dict[ThreadKey, tuple[Blocker, ...]])
    """Those of the snapshot that are new or changed; empty for a thread that has none any more."""
    titles: Mapping[int, str] = field(default_factory=dict[int, str])
    """Those of the snapshot that are new or changed; empty for a process that has none any more."""

    @property
    def wakes(self) -> set[int]:
        """Ids of its wakes."""
        moved = self.moves.rows[:, [NOW - 1, SINCE - 1]].ravel()
        ids = np.unique(np.concatenate((self.sites.ids[:, -1], self.waiting[:, -1], moved)))
        return {*ids.tolist(), *self.storms}.difference((NO_WAKE,))

    @property
    def stacks(self) -> set[int]:
        """Ids of its stacks, without those of its wakes."""
        moved = (self.moves.rows[:, at + 2 : at + 4].ravel() for at in (WAS, NOW))
        ids = self.sites.ids[:, 2:4].ravel(), self.waiting[:, 2:4].ravel(), self.begun[:, -1]
        return {*np.concatenate((*ids, *moved)).tolist()}


NOTHING = Snapshot(0, 0)


def change(earlier: Snapshot, later: Snapshot, moves: Sequence[Move] | None = None) -> Change:
    """Return what changed from `earlier` to `later` of one source.

    If `earlier` is NOTHING, that is all of `later`.

    `moves` are as in window.between.
    """
    before, now = Waits.of(earlier.waiting), Waits.of(later.waiting)
    waiting = now.list.of_rows(now.changed_since(before))
    return Change(
        later.taken_ns,
        later.at_ns,
        _rows(THREADS, earlier.threads, later.threads, earlier is NOTHING),
        _rows(SITES, earlier.sites, later.sites, earlier is NOTHING),
        *numbers_of(waiting),
        before.list.rows[now.rows_of(before.codes) < 0, :2],
        later.lost,
        later.cost,
        later.machine,
        later.mode,
        later.probe,
        later.filters,
        later.storms,
        NO_MOVES if earlier is NOTHING else Moves.of(later.moves if moves is None else moves),
        later.calls,
        waiting.own_holders,
        later.sampling,
        _changed(earlier.blockers, later.blockers, ()),
        _changed(earlier.titles, later.titles, ""),
    )


def _changed(earlier: Mapping[A, B], later: Mapping[A, B], none: B) -> dict[A, B]:
    """Return what is new or changed in `later`, and `none` for what is no longer there."""
    if earlier is later:
        return {}
    new = {key: value for key, value in later.items() if earlier.get(key) != value}
    return new | {key: none for key in earlier if key not in later}


def _applied(before: Mapping[A, B], changed: Mapping[A, B]) -> Mapping[A, B]:
    """Return `before` with what `_changed` returned."""
    return {key: value for key, value in {**before, **changed}.items() if value} if changed else before


_WHERE = [*range(WAKE), SWITCHED_OUT_NS, FROM_NS, READY_NS, PREEMPTED, WAKE]
_HOW = [SINCE_NS, BOUND, STATE, CALL, *range(ARGUMENTS, READ_USER), READ_USER]


def numbers_of(waits: Iterable[Waiting]) -> tuple[Ints, Ints]:
    """Return the WAITING_FIELDS and BEGUN_FIELDS of each wait; `waits_of` reads them."""
    rows = WaitList.of(waits).rows
    return rows[:, _WHERE], rows[:, _HOW]


_UNKNOWN = (0, Bound.AT_LEAST, 0, -1, *NO_ARGUMENTS, NO_STACK)
"""For a recording without this: the wait may be older than the recording knows."""


def waits_of(where: Ints, how: Ints, holders: Holders = MappingProxyType({})) -> WaitList:
    """Return the waits that `numbers_of` wrote; `how` may have no rows. Raises ValueError for an unknown bound."""
    rows = np.empty((len(where), FIELDS), np.int64)
    rows[:, _WHERE] = where
    rows[:, _HOW] = how if len(how) else _UNKNOWN
    for bound in np.unique(rows[:, BOUND]).tolist():
        Bound(bound)
    rows[:, PREEMPTED] = rows[:, PREEMPTED] != 0
    rows[rows[:, CALL] < 0, ARGUMENTS:READ_USER] = 0
    return WaitList(rows, holders)


def _rows(kind: Kind[K, V], earlier: Mapping[K, V], later: Mapping[K, V], whole: bool) -> Rows:
    if whole:
        table = table_of(kind, later)
        some = table.at(np.flatnonzero(table.present))
        return Rows(some.ids, some.numbers, some.counts, integers([], kind.width), table.longest_ns[table.present])
    return Rows(*finished(kind, earlier, later), np.empty(0, np.int64))


class Replayed:
    """Rebuilds snapshots from consecutive changes. The first one must be a complete snapshot."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._threads: Running[ThreadKey, ThreadTotals] = Running(THREADS)
        self._sites = Running(SITES)
        self._waiting = Waits(NO_WAITS, integers([], 1)[:, 0], self)
        self._blockers: Blockers = {}
        self._titles: Mapping[int, str] = {}
        self.characters = 0
        """Those of the titles, and of the names of what threads wait for."""
        self._versions = 0
        """Version that the next new or changed wait gets."""

    @property
    def size(self) -> int:
        """How many totals, waits in progress, and names of what they wait for it has."""
        held = self._threads, self._sites, self._waiting, self._blockers, self._titles
        return sum(map(len, held)) + sum(map(len, self._blockers.values()))

    def add(self, one: Change, epoch: int = 0) -> Snapshot:
        """Return the snapshot after `one`.

        Raises ValueError if it has impossible numbers of waits; then nothing can be added any more.
        """
        self._catalog.has_programs = one.sampling is None
        _add(self._threads, THREADS, one.threads, one.at_ns)
        _add(self._sites, SITES, one.sites, one.at_ns)
        if not (self._threads.counts_are_within(_MOST_WAITS) and self._sites.counts_are_within(_MOST_WAITS)):
            raise ValueError("impossible numbers of waits")
        self._waiting = self._after(one)
        if one.blockers or one.titles:
            self._blockers, self._titles = _applied(self._blockers, one.blockers), _applied(self._titles, one.titles)
            whats = (blocker.what for some in self._blockers.values() for blocker in some)
            self.characters = sum(map(len, chain(self._titles.values(), whats)))
        return Snapshot(
            taken_ns=one.taken_ns,
            at_ns=one.at_ns,
            threads=self._threads.frozen(),
            sites=self._sites.frozen(),
            waiting=self._waiting,
            catalog=self._catalog,
            lost=one.lost,
            cost=one.cost,
            machine=one.machine,
            storms=one.storms,
            moves=one.moves,
            mode=one.mode,
            probe=one.probe,
            filters=one.filters,
            calls=one.calls,
            sampling=one.sampling,
            epoch=epoch,
            blockers=self._blockers,
            titles=self._titles,
        )

    def end_waits(self, at_ns: int) -> None:
        """Count the waits in progress as finished at `at_ns`: the next change does not continue them."""
        so_far = so_far_of(self._waiting.list.rows, at_ns)
        self._threads.add(so_far[:, :2], thread_numbers(so_far), NO_COUNTS, at_ns)
        ids, numbers = site_numbers(so_far, NO_MOVES)
        self._sites.add(ids, numbers, NO_COUNTS, at_ns)
        self._waiting = Waits(NO_WAITS, integers([], 1)[:, 0], self)
        self._blockers, self._titles, self.characters = {}, {}, 0

    def _after(self, one: Change) -> Waits:
        """Return the waits in progress after `one`."""
        before, new = self._waiting, waits_of(one.waiting, one.begun)
        codes = thread_codes(new.rows)
        _, last = np.unique(codes[::-1], return_index=True)  # a damaged recording may have a thread twice
        last = np.sort(len(codes) - 1 - last)
        goes_on = ~np.isin(before.codes, np.concatenate((codes, thread_codes(one.ended))))
        rows = np.concatenate((before.list.rows[goes_on], new.rows[last]))
        versions = np.concatenate((before.versions[goes_on], self._versions + last))
        self._versions += len(codes)
        holders = {**before.list.of_rows(goes_on).own_holders, **one.holders}
        return Waits(WaitList(rows, holders), versions, self)


def _add(running: Running[K, V], kind: Kind[K, V], rows: Rows, at_ns: int) -> None:
    if len(rows.longest_ns):
        running.begin_with(rows.ids, rows.numbers, rows.counts, rows.longest_ns, at_ns)
        return
    running.move(rows.evicted, of_exited(rows.evicted))
    running.begin_tick()
    running.add(rows.ids, rows.numbers, rows.counts, at_ns)
