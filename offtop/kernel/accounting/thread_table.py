"""What the ledger knows of each thread, as columns: its wait in progress, its identity and its CPU time."""

from collections.abc import Iterator, Sequence
from itertools import repeat

import numpy as np

from offtop.model.values.catalog import ThreadKey, code_of, thread_of
from offtop.model.values.snapshot import Holder
from offtop.model.values.table import THREADS, Ints, Mask, rows_at, thread_codes
from offtop.model.values.waits import FIELDS, WaitList, Waits

UNKNOWN_NS = -1
"""The time is unknown."""
_FIRST_ROOM = 1024


class ThreadTable:
    """One row per thread. The caller changes the columns of the rows that it was given."""

    def __init__(self) -> None:
        self._row_of: dict[int, int] = {}
        self._free: list[int] = []
        self._used = 0
        self._next_version = 0
        self._frozen: Waits | None = None
        self.ids: Ints = np.zeros((_FIRST_ROOM, 2), np.int64)
        self.waits: Ints = np.zeros((_FIRST_ROOM, FIELDS), np.int64, "F")
        """Rows of a WaitList; valid if `is_waiting`."""
        self.is_waiting: Mask = np.zeros(_FIRST_ROOM, np.bool_)
        self.is_new: Mask = np.zeros(_FIRST_ROOM, np.bool_)
        """No snapshot has shown the wait in progress yet, even if it began before the last one."""
        self.is_unsettled: Mask = np.zeros(_FIRST_ROOM, np.bool_)
        """The wait in progress is updated every tick: its site or its run-queue time still changes."""
        self.tid_acquired_ns: Ints = np.full(_FIRST_ROOM, UNKNOWN_NS)
        """When the current or last owner of the tid acquired it."""
        self.start_ns: Ints = np.full(_FIRST_ROOM, UNKNOWN_NS)
        """Start time of the thread whose CPU time was reported last."""
        self.exec_ns: Ints = np.full(_FIRST_ROOM, UNKNOWN_NS)
        """Total CPU time as of the last report, or one of the special values in run_times.py."""
        self.holders: dict[ThreadKey, Holder] = {}
        """Holders of the kernel locks that threads wait for, if known."""
        self._versions: Ints = np.zeros(_FIRST_ROOM, np.int64)

    def rows_of(self, ids: Ints) -> Ints:
        """Return the row of each of the threads (pid, tid); new threads get one."""
        codes: list[int] = thread_codes(ids).tolist()
        found = list(map(self._row_of.get, codes))
        if None in found:
            for code in dict.fromkeys(code for code, row in zip(codes, found, strict=True) if row is None):
                self._row_of[code] = self._new_row(code)
            found = list(map(self._row_of.get, codes))
        return np.array(found, np.int64)

    def known_rows_of(self, ids: Ints) -> Ints:
        """Return the row of each of the threads (pid, tid), or -1."""
        codes: list[int] = thread_codes(ids).tolist()
        return np.array(list(map(self._row_of.get, codes, repeat(-1))), np.int64)

    def row(self, key: ThreadKey) -> int:
        """Return the row of a thread, or -1 if it has none."""
        return self._row_of.get(code_of(key), -1)

    def keys(self, rows: Ints) -> list[ThreadKey]:
        return list(map(THREADS.key, self.ids[rows].tolist()))

    def forget(self, key: ThreadKey) -> None:
        row = self._row_of.pop(code_of(key), -1)
        if row >= 0:
            self._free.append(row)
            self.is_waiting[row] = self.is_new[row] = self.is_unsettled[row] = False
            self.tid_acquired_ns[row] = self.start_ns[row] = self.exec_ns[row] = UNKNOWN_NS
            self.holders.pop(key, None)

    @property
    def waiting(self) -> Ints:
        """The rows of threads with a wait in progress."""
        return np.flatnonzero(self.is_waiting[: self._used])

    def change(self, rows: Ints) -> None:
        """Note that the waits in progress of these threads have changed."""
        self._versions[rows] = np.arange(self._next_version, self._next_version + len(rows))
        self._next_version += len(rows)
        self._frozen = None

    def end(self, rows: Ints) -> None:
        """End the waits in progress of these threads."""
        self.is_waiting[rows] = False
        self._frozen = None
        if self.holders:
            for key in self.keys(rows):
                self.holders.pop(key, None)

    def frozen(self) -> Waits:
        """Return the waits in progress as of now."""
        if self._frozen is None:
            rows = self.waiting
            waits = WaitList(rows_at(self.waits, rows), dict(self.holders))
            self._frozen = Waits(waits, self._versions[rows], self, rows)
        return self._frozen

    def flags(self, rows: Ints | Sequence[int]) -> Mask:
        """Return a new column that is true for `rows`."""
        column = np.zeros(len(self.ids), np.bool_)
        column[rows] = True
        return column

    def positions_in(self, rows: Ints) -> Ints:
        """Return a new column: the last position of each row in `rows`, or -1."""
        column = np.full(len(self.ids), -1)
        column[rows] = np.arange(len(rows))
        return column

    def _new_row(self, code: int) -> int:
        if self._free:
            row = self._free.pop()
        else:
            row = self._used
            self._used += 1
            if row == len(self.ids):
                self._grow()
        self.ids[row] = thread_of(code)
        return row

    def _grow(self) -> None:
        room = 2 * len(self.ids)
        for name in (
            "ids",
            "waits",
            "is_waiting",
            "is_new",
            "is_unsettled",
            "_versions",
            "tid_acquired_ns",
            "start_ns",
            "exec_ns",
        ):
            old = getattr(self, name)
            order = "F" if name == "waits" else "C"
            new = np.full((room, *old.shape[1:]), UNKNOWN_NS if name.endswith("_ns") else 0, old.dtype, order)
            new[: len(old)] = old
            setattr(self, name, new)


def parts_without_repeats(rows: Ints) -> Iterator[Ints]:
    """Split the positions in `rows` into parts in which no row repeats. The first part has each row's first one."""
    left = np.arange(len(rows))
    while len(left):
        _, first = np.unique(rows[left], return_index=True)
        yield left[np.sort(first)]
        left = np.delete(left, first)
