"""Moves as columns: time that moves to the site where its wait ended.

Running totals are corrected at once: the old site loses that time. A Window contains what happened in its span, so that
nothing in it is negative, and carries the moves that reach back before it; whoever sums up windows applies them as far
back as the sum goes.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import cast, overload

import numpy as np

from offtop.model.values.snapshot import Move
from offtop.model.values.table import RUNQUEUE_NS, SITES, TOTAL_NS, Ints, SiteKeys, integers, rows_at

WAS, NOW = 0, SITES.width
SINCE, UNTIL, READY = range(2 * SITES.width, 2 * SITES.width + 3)
"""Columns; for sites, the first column of their ids."""
MOVE_FIELDS = READY + 1


class Moves(Sequence[Move]):
    """Immutable."""

    __slots__ = ("rows",)

    def __init__(self, rows: Ints) -> None:
        """`rows` is (n, MOVE_FIELDS), a row for each move."""
        self.rows = rows

    @classmethod
    def of(cls, some: Sequence[Move]) -> "Moves":
        """Convert `some`, unless they are Moves already."""
        if isinstance(some, Moves):
            return some
        return cls(integers([(*one.was, *one.now, *one[2:]) for one in some], MOVE_FIELDS))

    @classmethod
    def all(cls, some: Iterable["Moves"]) -> "Moves":
        return cls(np.concatenate([one.rows for one in some]))

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Move]:
        return map(_move, self.rows.tolist())

    @overload
    def __getitem__(self, index: int) -> Move: ...
    @overload
    def __getitem__(self, index: slice) -> "Moves": ...
    def __getitem__(self, index: int | slice) -> "Move | Moves":
        if isinstance(index, slice):
            return Moves(self.rows[index])
        return _move(self.rows[index].tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Moves):
            return np.array_equal(self.rows, other.rows)
        return isinstance(other, Sequence) and tuple(self) == tuple(cast(Sequence[object], other))

    def __hash__(self) -> int:
        return hash(self.rows.tobytes())

    def begun_before(self, at_ns: int) -> "Moves":
        """Return the moves that began before `at_ns`, whole."""
        return Moves(rows_at(self.rows, self.rows[:, SINCE] < at_ns))

    def ended_after(self, at_ns: int) -> "Moves":
        """Return the moves that end at `at_ns` or later, whole."""
        return Moves(rows_at(self.rows, self.rows[:, UNTIL] >= at_ns))

    def before(self, at_ns: int) -> "Moves":
        """Return the parts of moves before `at_ns`."""
        some = self.begun_before(at_ns).rows
        until_ns = np.minimum(some[:, UNTIL], at_ns)
        some[:, READY] = np.maximum(some[:, READY] - (some[:, UNTIL] - until_ns), 0)
        some[:, UNTIL] = until_ns
        return Moves(some)

    def after(self, at_ns: int) -> "Moves":
        """Return the parts of moves from `at_ns` on."""
        some = rows_at(self.rows, self.rows[:, UNTIL] > at_ns)
        some[:, SINCE] = np.maximum(some[:, SINCE], at_ns)
        some[:, READY] = np.minimum(some[:, READY], some[:, UNTIL] - some[:, SINCE])
        return Moves(some)

    def outside(self, sites: SiteKeys, begin_ns: int, end_ns: int) -> "Moves":
        """Return the moves without their parts from `begin_ns` to `end_ns` that take time from one of `sites`."""
        some = (self.rows[:, SINCE] < end_ns) & (self.rows[:, UNTIL] > begin_ns)
        some[some] = sites.mask(rows_at(self.rows[:, WAS:NOW], some))
        if not some.any():
            return self
        cut = Moves(rows_at(self.rows, some))
        return Moves.all((Moves(rows_at(self.rows, ~some)), cut.before(begin_ns), cut.after(end_ns)))

    @property
    def reversed(self) -> "Moves":
        """The moves that reverse these."""
        columns = [*range(NOW, SINCE), *range(WAS, NOW), SINCE, UNTIL, READY]
        return Moves(self.rows[:, columns])

    @property
    def site_rows(self) -> tuple[Ints, Ints]:
        """Ids and numbers of what they take from sites and add to others."""
        numbers = np.zeros((len(self.rows), SITES.numbers), np.int64)
        numbers[:, TOTAL_NS] = self.rows[:, UNTIL] - self.rows[:, SINCE]
        numbers[:, RUNQUEUE_NS] = self.rows[:, READY]
        ids = self.rows[:, WAS:NOW], self.rows[:, NOW:SINCE]
        return np.concatenate(ids), np.concatenate((-numbers, numbers))


def _move(row: list[int]) -> Move:
    return Move(SITES.key(row[WAS:NOW]), SITES.key(row[NOW:SINCE]), row[SINCE], row[UNTIL], row[READY])


NO_MOVES = Moves.of(())
