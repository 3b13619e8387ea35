"""Waits in progress as columns, so that thousands are compared and added up at once.

A `Waiting` is made only for a wait that is looked at.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import cast, overload

import numpy as np

from offtop.model.values.catalog import ThreadKey
from offtop.model.values.snapshot import NO_HOLDER, Bound, Holder, Waiting
from offtop.model.values.stack import FILTERED, SHORT
from offtop.model.values.state import NEW
from offtop.model.values.table import SITES, THREAD_COLUMN, THREADS, Ints, Mask, integers, rows_at, thread_codes

SWITCHED_OUT_NS, FROM_NS, READY_NS, PREEMPTED, SINCE_NS, BOUND, STATE, CALL = range(SITES.width, SITES.width + 8)
"""Columns after those of the site, in the order of Waiting. A call with unknown arguments is stored as -2 - call."""
ARGUMENTS = CALL + 1
"""The first of six columns, as signed 64-bit integers."""
READ_USER = ARGUMENTS + 6
FIELDS = READ_USER + 1
KERNEL, USER, WAKE = range(2, 5)

SoFar = Ints
"""Rows of a site's ids, ns so far, how much of that was run queue, whether the thread was preempted."""
SO_FAR_FIELDS = SITES.width + 3

_WORD = (1 << 64) - 1
_NO_ARGUMENTS = (0,) * 6
_BOUNDS = tuple(Bound)
_make_waiting = cast(Callable[..., Waiting], tuple.__new__)  # pyright: ignore[reportUnknownMemberType]

Holders = Mapping[ThreadKey, Holder]
"""Holders of the kernel locks that threads wait for, if known."""


class WaitList(Sequence[Waiting]):
    """Immutable. `rows` is (n, FIELDS).

    Those of many threads are in column-major order, because most uses read one or two columns.
    """

    __slots__ = ("holders", "rows")

    def __init__(self, rows: Ints, holders: Holders) -> None:
        self.rows, self.holders = rows, holders

    @classmethod
    def of(cls, waits: Iterable[Waiting]) -> "WaitList":
        """Convert `waits`, unless they are a WaitList already."""
        if isinstance(waits, WaitList):
            return waits
        every = list(waits)
        rows = np.empty((len(every), FIELDS), np.int64)
        rows[:, : SITES.width] = integers([one.site for one in every], SITES.width)
        rows[:, SWITCHED_OUT_NS:CALL] = integers([one[1:8] for one in every], CALL - SWITCHED_OUT_NS)
        rows[:, CALL] = [one.call if one.arguments or one.call < 0 else -2 - one.call for one in every]
        words = chain.from_iterable(one.arguments or _NO_ARGUMENTS for one in every)
        rows[:, ARGUMENTS:READ_USER] = np.fromiter(words, np.uint64, 6 * len(every)).view(np.int64).reshape(-1, 6)
        rows[:, READ_USER] = [one.user for one in every]
        return cls(rows, {one.site.thread: one.holder for one in every if one.holder.tid})

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Waiting: ...
    @overload
    def __getitem__(self, index: slice) -> "WaitList": ...
    def __getitem__(self, index: int | slice) -> "Waiting | WaitList":
        if isinstance(index, slice):
            return WaitList(self.rows[index], self.holders)
        return self._waiting(self.rows[index].tolist())

    def __iter__(self) -> Iterator[Waiting]:
        return map(self._waiting, self.rows.tolist())

    def of_rows(self, which: Ints | Mask) -> "WaitList":
        """Return some of the waits, in the order of `which`."""
        return WaitList(rows_at(self.rows, which), self.holders)

    @property
    def sites(self) -> Ints:
        """Their ids (n, 5)."""
        return self.rows[:, : SITES.width]

    @property
    def own_holders(self) -> Holders:
        """`holders` without those that other threads wait for."""
        if not self.holders:
            return self.holders
        threads = map(THREADS.key, self.rows[:, :2].tolist())
        return {key: self.holders[key] for key in threads if key in self.holders}

    @property
    def is_ready(self) -> Mask:
        """Whether all of each wait is run queue, as Waiting.is_ready."""
        return (self.rows[:, PREEMPTED] != 0) | (self.rows[:, STATE] & NEW != 0)

    @property
    def began_ns(self) -> Ints:
        return np.where(self.rows[:, SINCE_NS], self.rows[:, SINCE_NS], self.rows[:, SWITCHED_OUT_NS])

    def begun_by(self, at_ns: int) -> "WaitList":
        return self.of_rows(self.rows[:, SWITCHED_OUT_NS] <= at_ns)

    def ages_ns(self, at_ns: int) -> Ints:
        return np.maximum(0, at_ns - self.began_ns)

    def _waiting(self, row: list[int]) -> Waiting:
        site, call = SITES.key(row[: SITES.width]), row[CALL]
        holder = self.holders.get(site.thread, NO_HOLDER) if self.holders else NO_HOLDER
        arguments = tuple(word & _WORD for word in row[ARGUMENTS:READ_USER]) if call >= 0 else ()
        switched_out_ns, from_ns, ready_ns, preempted, since_ns, bound, state = row[SWITCHED_OUT_NS:CALL]
        call = call if call >= -1 else -2 - call
        times = switched_out_ns, from_ns, ready_ns, preempted != 0, since_ns, _BOUNDS[bound]
        return _make_waiting(Waiting, (site, *times, state, call, arguments, row[READ_USER], holder))


NO_WAITS = WaitList.of(())


class Waits(Mapping[ThreadKey, Waiting]):
    """The wait in progress of each thread that has one. Immutable."""

    __slots__ = ("_numbers", "_sorted", "lineage", "list", "slots", "versions")

    def __init__(self, waits: WaitList, versions: Ints, lineage: object, slots: Ints | None = None) -> None:
        """`versions` has one number a row, which is another one in each Waits of `lineage` in which the wait differs.

        No two threads have the same number. `slots`: a small number for the thread of each row, which is the same in
        all Waits of `lineage` until the thread exits; with it, two of them are compared without sorting.
        """
        self.list, self.versions, self.lineage, self.slots = waits, versions, lineage, slots
        self._numbers: dict[int, int] | None = None
        self._sorted: tuple[Ints, Ints] | None = None
        """Codes of threads in order, and their rows."""

    @classmethod
    def of(cls, entries: Mapping[ThreadKey, Waiting]) -> "Waits":
        """Convert `entries`, unless they are Waits already. An entry that is the same object is the same version."""
        if isinstance(entries, Waits):
            return entries
        return cls(WaitList.of(entries.values()), integers([[id(one)] for one in entries.values()], 1)[:, 0], None)

    @property
    def codes(self) -> Ints:
        """One integer for the thread of each row."""
        return thread_codes(self.list.rows)

    def __len__(self) -> int:
        return len(self.list)

    def __iter__(self) -> Iterator[ThreadKey]:
        return map(THREADS.key, self.list.rows[:, :2].tolist())

    def __getitem__(self, key: ThreadKey) -> Waiting:
        return self.list[self._row(key)]

    def __contains__(self, key: object) -> bool:
        try:
            self._row(cast(ThreadKey, key))
        except (KeyError, TypeError, ValueError):
            return False
        return True

    def _row(self, key: ThreadKey) -> int:
        if self._numbers is None:
            codes: list[int] = self.codes.tolist()
            self._numbers = dict(zip(codes, range(len(codes)), strict=True))
        pid, tid = key
        return self._numbers[pid << 32 | tid]

    def changed_since(self, before: "Waits") -> Mask:
        """Return which rows are not the same in `before`, or not there."""
        if self.lineage is not before.lineage:
            return np.ones(len(self), np.bool_)
        if self.slots is None or before.slots is None:
            return ~np.isin(self.versions, before.versions)
        return before._by_slot(before.versions, self.slots) != self.versions

    def ended_by(self, later: "Waits") -> Ints:
        """Return the rows of the waits that have ended by `later`.

        A wait that goes on is not among them, even if something about it has changed.
        """
        rows = np.flatnonzero(self.changed_since(later))
        if self.lineage is later.lineage and self.slots is not None and later.slots is not None:
            row = later._by_slot(np.arange(len(later)), self.slots[rows])
        else:
            row = later.rows_of(self.codes[rows])
        is_over, at = row < 0, np.flatnonzero(row >= 0)
        identity = [0, 1, SWITCHED_OUT_NS]  # another thread may have the slot by now
        was, now = rows_at(self.list.rows, rows[at])[:, identity], rows_at(later.list.rows, row[at])[:, identity]
        is_over[at] = (was != now).any(axis=1)
        return rows[is_over]

    def _by_slot(self, values: Ints, slots: Ints) -> Ints:
        """Return which of `values`, one a row, belongs to each of the `slots`; -1 for a slot without a wait."""
        assert self.slots is not None
        by_slot = np.full(1 + max(self.slots.max(initial=-1), slots.max(initial=-1)), -1)
        by_slot[self.slots] = values
        return by_slot[slots]

    def rows_of(self, codes: Ints) -> Ints:
        """Return the row of each of the threads, or -1."""
        if not len(self):
            return np.full(len(codes), -1)
        if self._sorted is None:
            order = np.argsort(self.codes)
            self._sorted = self.codes[order], order
        own, rows = self._sorted
        at = np.minimum(np.searchsorted(own, codes), len(own) - 1)
        return np.where(own[at] == codes, rows[at], -1)


def so_far_of(waits: Ints, at_ns: int) -> SoFar:
    """Return the time so far of `waits`, which are rows of a WaitList."""
    rows = np.empty((len(waits), SO_FAR_FIELDS), np.int64, "F")
    rows[:, : SITES.width] = waits[:, : SITES.width]
    rows[:, SITES.width] = at_ns - waits[:, FROM_NS]
    rows[:, SITES.width + 1], rows[:, SITES.width + 2] = waits[:, READY_NS], waits[:, PREEMPTED]
    return rows


def thread_numbers(so_far: SoFar) -> Ints:
    """Return what the rows add to the totals of threads, a row each."""
    kernel, (so_far_ns, ready_ns, preempted) = so_far[:, KERNEL], so_far[:, SITES.width :].T
    numbers = np.zeros((len(so_far), THREADS.numbers), np.int64)
    for name, values, where in (
        ("offcpu_ns", so_far_ns, None),
        ("runqueue_ns", ready_ns, None),
        ("preempted_ns", so_far_ns, preempted != 0),
        ("short_ns", so_far_ns, kernel == SHORT),
        ("short_runqueue_ns", ready_ns, kernel == SHORT),
        ("filtered_ns", so_far_ns, kernel == FILTERED),
        ("filtered_runqueue_ns", ready_ns, kernel == FILTERED),
    ):
        numbers[:, THREAD_COLUMN[name]] = values if where is None else values * where
    return numbers


def changed(now: Mapping[ThreadKey, Waiting], before: Mapping[ThreadKey, Waiting]) -> Iterable[Waiting]:
    """Return the waits of `now` that are new or not the same in `before`."""
    if isinstance(now, Waits) and not before:
        return now.list
    if isinstance(now, Waits) and isinstance(before, Waits):
        return now.list.of_rows(now.changed_since(before))
    return [one for key, one in now.items() if before.get(key) is not one]
