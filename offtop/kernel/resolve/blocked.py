"""Waits in progress that only another thread or process can end: the input of the finders of blockers."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from offtop.kernel.procfs import syscalls
from offtop.model.values.blockers import Blocker
from offtop.model.values.catalog import Catalog, ThreadKey
from offtop.model.values.snapshot import PSEUDO_PIDS
from offtop.model.values.stack import FIRST_STACK, NO_STACK
from offtop.model.values.table import Ints, Mask, distinct_codes
from offtop.model.values.waits import ARGUMENTS, CALL, KERNEL, READ_USER, READY_NS, STATE, SWITCHED_OUT_NS, Waits
from offtop.units import NS_PER_S

FUTEX, FLOCK, FCNTL, WAIT4, WAITID = "futex", "flock", "fcntl", "wait4", "waitid"
OPENS = ("open", "openat", "openat2", "creat", "truncate", "ftruncate")
"""Calls that wait until the holder of a lease on the file has released it."""
POLLS = ("epoll_wait", "epoll_pwait", "epoll_pwait2", "poll", "ppoll", "select", "pselect6")
RECEIVES = ("read", "readv", "recvfrom", "recvmsg", "recvmmsg")
_READS = ("read", "readv", "pread64", "preadv", "preadv2", "getdents64", "fstat", "fstatfs", "lseek")
_WRITES = ("write", "writev", "pwrite64", "pwritev", "pwritev2", "fsync", "fdatasync", "ftruncate", "fallocate")
OF_DESCRIPTOR = frozenset((*_READS, *_WRITES, "sync_file_range", "syncfs", "ioctl", "fchmod", "fchown"))
"""Calls whose first argument is a descriptor of a file in the file system that they wait for."""
OPERATION = 127
"""Mask of futex()'s second argument."""
WAITS, PI_WAITS = (0, 9), (6, 13)
"""WAIT and WAIT_BITSET; LOCK_PI and LOCK_PI2."""
AWAITED, WAITERS = 2, 1 << 31
"""Word of a locked glibc mutex with waiters; in a robust mutex, this bit is set instead."""
_YOUNGEST_NS = NS_PER_S // 20
"""Minimum age of a wait: a younger one has most likely ended before its blocker could be read. It does not apply to a
futex or a lease, for which a thread waits only a few ms at a time."""
_TRACED = 0x8
"""State of a thread (include/linux/sched.h)."""
_MOST, _MOST_POLLS, _MOST_OF_DISKS, _MOST_OF_CGROUPS = 2048, 512, 256, 256
_MOST_STACKS = 16_384
WORD = (1 << 64) - 1


class Blocked(NamedTuple):
    """A wait in progress."""

    key: ThreadKey
    switched_out_ns: int
    """CLOCK_MONOTONIC of its start. Together with the thread, it identifies the wait."""
    call: str
    """Name of the system call; empty if there is none."""
    arguments: tuple[int, ...] = ()
    """Six unsigned numbers; empty if unknown."""
    user: int = NO_STACK
    """Stack id; NO_STACK if it has not been unwound."""
    kernel: int = NO_STACK
    """Stack id."""
    is_traced: bool = False
    """Whether a debugger has stopped the thread."""


class StacksIn:
    """Finds the kernel stacks with a function whose name begins with one of the given words. Thread-safe."""

    def __init__(self, catalog: Catalog, words: tuple[str, ...]) -> None:
        self._catalog, self._words = catalog, words
        self._known: dict[int, bool] = {}

    def __contains__(self, kernel: int) -> bool:
        if kernel < FIRST_STACK:
            return False
        known = self._known.get(kernel)
        if known is None:
            if len(self._known) >= _MOST_STACKS:
                self._known.clear()
            names = [frame.name for frame in self._catalog.stack(kernel).trimmed]
            known = self._known[kernel] = any(name.startswith(self._words) for name in names)
        return known


class Found(NamedTuple):
    """The threads and processes that must act to end a wait."""

    switched_out_ns: int
    """See Blocked."""
    blockers: tuple[Blocker, ...]
    futexes: range = range(0)
    """A later wait of the thread has the same blockers if it is for a futex at one of these addresses."""
    arguments: tuple[int, ...] = ()
    """Or if it is in a call with these first arguments: the kernel may have woken the thread meanwhile."""


def blocked(
    waiting: Waits,
    at_ns: int,
    calls: Mapping[int, str],
    python_pids: Sequence[int],
    in_fuse: StacksIn,
    in_tcp: StacksIn,
    in_disk: Callable[[int], bool],
    of_cgroup: Callable[[int], bool],
) -> tuple[list[Blocked], int]:
    """Return the waits for which a finder may find a blocker, and how many more such waits there are.

    `calls`: names of system calls by number. `python_pids`: processes that run CPython and show who holds its GIL.
    `in_fuse`, `in_tcp`, `in_disk` and `of_cgroup`: kernel stacks (ids) that wait for a FUSE server, for data of a TCP
    connection, for a disk, and for a change of their cgroup, to be thawed or to have memory again. The oldest ones are
    returned; but of waits for any of several descriptors, which are mostly those of idle servers, the newest.
    """
    rows = waiting.list.rows
    in_progress = (rows[:, READY_NS] == 0) & ~waiting.list.is_ready & ~np.isin(rows[:, 0], [*PSEUDO_PIDS])
    is_old = waiting.list.ages_ns(at_ns) >= _YOUNGEST_NS
    is_lock = _in_calls(rows, FUTEX) & _may_be_locks(rows, python_pids)
    is_lock |= _in_calls(rows, *OPENS) | (_in_calls(rows, FLOCK, FCNTL, WAIT4, WAITID) & is_old)
    is_lock |= rows[:, STATE] & _TRACED != 0
    kernels: list[int] = distinct_codes(rows[:, KERNEL]).tolist()
    is_lock |= np.isin(rows[:, KERNEL], [one for one in kernels if one in in_fuse])
    in_data = np.isin(rows[:, KERNEL], [one for one in kernels if one in in_tcp])
    of_disks = _by_age(rows[in_progress & is_old & np.isin(rows[:, KERNEL], [one for one in kernels if in_disk(one)])])
    of_cgroups = _by_age(
        rows[in_progress & is_old & np.isin(rows[:, KERNEL], [one for one in kernels if of_cgroup(one)])]
    )
    locks = _by_age(rows[in_progress & is_lock])
    receives = _by_age(rows[in_progress & is_old & in_data & _in_calls(rows, *RECEIVES)])
    polls = _by_age(rows[in_progress & is_old & _in_calls(rows, *POLLS)])
    found = [
        Blocked(
            ThreadKey(row[0], row[1]),
            row[SWITCHED_OUT_NS],
            calls.get(row[CALL], ""),
            tuple(word & WORD for word in row[ARGUMENTS:READ_USER]) if row[CALL] >= 0 else (),
            row[READ_USER],
            row[KERNEL],
            row[STATE] & _TRACED != 0,
        )
        for row in (
            *locks[:_MOST].tolist(),
            *receives[:_MOST].tolist(),
            *polls[-_MOST_POLLS:].tolist(),
            *of_disks[:_MOST_OF_DISKS].tolist(),
            *of_cgroups[:_MOST_OF_CGROUPS].tolist(),
        )
    ]
    return found, sum(max(0, len(some) - _MOST) for some in (locks, receives))


def _in_calls(rows: Ints, *calls: str) -> Mask:
    return np.isin(rows[:, CALL], [number for number in map(_number_of, calls) if number >= 0])


_number_of = cache(syscalls.number_of)


def _by_age(rows: Ints) -> Ints:
    """Return the rows, oldest wait first."""
    return rows[np.argsort(rows[:, SWITCHED_OUT_NS], kind="stable")]


def _may_be_locks(rows: Ints, python_pids: Sequence[int]) -> Mask:
    """Return which waits for a futex may be for a mutex or the GIL. Most others are idle threads."""
    operation, value = rows[:, ARGUMENTS + 1] & OPERATION, rows[:, ARGUMENTS + 2] & 0xFFFFFFFF
    is_word = (value == AWAITED) | (value & WAITERS != 0)
    return (np.isin(operation, WAITS) & is_word) | np.isin(operation, PI_WAITS) | np.isin(rows[:, 0], python_pids)
