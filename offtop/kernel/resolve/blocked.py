"""Waits in progress for which somebody else must act, as the finders of blockers get them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from offtop.kernel.procfs import syscalls
from offtop.model.values.blockers import Blocker
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.snapshot import PSEUDO_PIDS
from offtop.model.values.stack import NO_STACK
from offtop.model.values.table import Ints, Mask
from offtop.model.values.waits import ARGUMENTS, CALL, KERNEL, READ_USER, SWITCHED_OUT_NS, Waits
from offtop.units import NS_PER_S

FUTEX, FLOCK, FCNTL, WAIT4, WAITID = "futex", "flock", "fcntl", "wait4", "waitid"
OPENS = ("open", "openat", "openat2", "creat", "truncate", "ftruncate")
"""Calls that wait until a lease on the file has been given up."""
_CALLS = (FUTEX, FLOCK, FCNTL, WAIT4, WAITID, *OPENS)
OPERATION = 127
"""Mask of futex()'s second argument."""
WAITS, PI_WAITS = (0, 9), (6, 13)
"""WAIT and WAIT_BITSET; LOCK_PI and LOCK_PI2."""
AWAITED, WAITERS = 2, 1 << 31
"""Word of a locked glibc mutex that others wait for; the bit in its place if it is robust."""
_YOUNGEST_NS = NS_PER_S // 20
"""Minimum age of a wait, except for a futex: it has ended before anyone could look."""
_WORD = (1 << 64) - 1


class Blocked(NamedTuple):
    """A wait in progress in a system call."""

    key: ThreadKey
    switched_out_ns: int
    """When it began, which identifies it."""
    call: str
    """Name of the system call."""
    arguments: tuple[int, ...]
    """Six of them, unsigned."""
    kernel: int
    """Stack id."""
    user: int
    """Stack id; NO_STACK if it has not been unwound."""


class Found(NamedTuple):
    """Who must act to end a wait."""

    switched_out_ns: int
    """See Blocked."""
    blockers: tuple[Blocker, ...]
    futexes: range = range(0)
    """The thread's later waits are for the same if they are for a futex at one of these addresses."""


def blocked(waiting: Waits, at_ns: int, pythons: Sequence[int]) -> list[Blocked]:
    """Return the waits for which a finder may find a blocker, oldest first.

    `pythons`: processes that run CPython and show who holds its GIL.
    """
    rows = waiting.list.rows
    numbers = {number: name for name in _CALLS if (number := syscalls.number_of(name)) >= 0}
    known = np.isin(rows[:, CALL], [*numbers]) & ~np.isin(rows[:, 0], [*PSEUDO_PIDS]) & ~waiting.list.is_ready
    is_futex = rows[:, CALL] == syscalls.number_of(FUTEX)
    useful = np.where(is_futex, _may_be_locks(rows, pythons), waiting.list.ages_ns(at_ns) >= _YOUNGEST_NS)
    some = rows[known & useful]
    some = some[np.argsort(some[:, SWITCHED_OUT_NS], kind="stable")]
    return [
        Blocked(
            ThreadKey(row[0], row[1]),
            row[SWITCHED_OUT_NS],
            numbers[row[CALL]],
            tuple(word & _WORD for word in row[ARGUMENTS:READ_USER]),
            row[KERNEL],
            row[READ_USER],
        )
        for row in some.tolist()
    ]


def _may_be_locks(rows: Ints, pythons: Sequence[int]) -> Mask:
    """Return which waits for a futex may be for a mutex or the GIL. Most others are idle threads."""
    operation, value = rows[:, ARGUMENTS + 1] & OPERATION, rows[:, ARGUMENTS + 2] & 0xFFFFFFFF
    is_word = (value == AWAITED) | (value & WAITERS != 0)
    is_mutex = np.isin(operation, WAITS) & is_word & (rows[:, READ_USER] != NO_STACK)
    return is_mutex | np.isin(operation, PI_WAITS) | np.isin(rows[:, 0], pythons)
