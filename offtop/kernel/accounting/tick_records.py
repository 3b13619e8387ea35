"""What the kernel side tells of a tick beside the records of threads, for the ledger: who waits, who ran, what ended
where."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from offtop.model.values import histogram as log2
from offtop.model.values.catalog import SiteKey, ThreadKey
from offtop.model.values.snapshot import NO_HOLDER, Bound, Holder, SiteTotals
from offtop.model.values.table import SITES, Ints, integers
from offtop.model.values.wake import NO_WAKE


class Walked(NamedTuple):
    """What the task walk says of one thread that is off CPU."""

    key: ThreadKey
    left_ns: int
    runnable: bool
    queued_ns: int
    """In the run queue since, on our clock; 0: not known."""
    kernel: int | None
    """Stack id; None where the walk gave no stack."""
    state: int = 1
    """As records have it: layout.RUNNING, or the kernel's."""
    since_ns: int = 0
    """When the wait began, on our clock, if that was before left_ns; 0: it began at left_ns."""
    bound: Bound = Bound.EXACT
    call: int = -1
    arguments: tuple[int, ...] = ()
    wake: int = NO_WAKE
    """Id of what says what it waits on."""
    holder: Holder = NO_HOLDER
    """Who holds the lock of the kernel's that it waits for."""
    born_ns: int = 0
    """As ThreadRecord has it."""


class Started(NamedTuple):
    """A thread is on its first CPU: its wait for that is over, and will be in its record when it is switched out."""

    key: ThreadKey
    left_ns: int
    """When that wait began, on our clock: first_left_ns of the record."""
    first_ns: int
    """How long it was."""
    born_ns: int
    """As ThreadRecord has it."""


class Ran(NamedTuple):
    """What the walk says of a thread's time on a CPU."""

    key: ThreadKey
    exec_ns: int
    """In all."""
    start_ns: int
    """When the thread began, on our clock."""
    at_ns: int = 0
    """When that was; 0: at the end of the tick, or since then it has not run."""
    off_ns: int = 0
    """What its record of the tick had of off-CPU time by then."""
    ended: bool = False
    """It is what it had run at its end."""
    born_ns: int = 0
    """As ThreadRecord has it; of one that has ended."""


class Ended(NamedTuple):
    """What ended where in a tick: a row for each of `keys`, which may repeat."""

    keys: list[SiteKey]
    numbers: Ints
    """(n, 4): the fields of SiteTotals but the histogram."""
    lanes: Ints
    """(n, 40)"""
    born_ns: Sequence[int] = ()
    """Of each row that of layout.ThreadRecord; none: all are 0."""

    @classmethod
    def of(cls, entries: Iterable[tuple[SiteKey, SiteTotals]]) -> "Ended":
        keys, totals = [list(column) for column in zip(*entries, strict=True)] or ([], [])
        return cls(keys, integers([one[:-1] for one in totals], 4), log2.to_lanes([one[-1] for one in totals]))

    def totals(self, row: int) -> SiteTotals:
        return SITES.totals((*self.numbers[row].tolist(), *log2.of_lanes(self.lanes[row : row + 1])))

    def without(self, rows: Sequence[int]) -> "Ended":
        left = np.delete(np.arange(len(self.keys)), rows)
        born_ns = [self.born_ns[row] for row in left.tolist()] if self.born_ns else ()
        return Ended([self.keys[row] for row in left.tolist()], self.numbers[left], self.lanes[left], born_ns)
