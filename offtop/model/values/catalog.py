"""Catalog: what ids refer to: stacks, wakes, names and process details.

One Catalog is shared by all snapshots and windows of a source: a copy in each of 600 windows would cost more than the
windows. The source owns it, only adds to it, and drops an entry when no window that a History may hold can refer to it.
Any thread may read it. Ids are never reused. Wakes and user stacks may be too many for that: the ones used longest ago
are dropped first, and older windows then show them as lost or dropped.
"""

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from offtop.model.values.peers import NO_PEERS, Peers
from offtop.model.values.stack import DROPPED_STACK, EMPTY, FIRST_STACK, RESERVED, Stack
from offtop.model.values.wake import LOST_WAKE, NO_WAKE, Object, Wake
from offtop.model.values.wake import RESERVED as RESERVED_WAKES

_LOW = (1 << 32) - 1


class ThreadKey(NamedTuple):
    pid: int
    """Process id (the kernel's tgid)."""
    tid: int
    """Thread id (the kernel's pid)."""


def code_of(key: ThreadKey) -> int:
    """Return the key as one integer, as table.thread_codes does with many."""
    return key.pid << 32 | key.tid


def thread_of(code: int) -> ThreadKey:
    return ThreadKey(code >> 32, code & _LOW)


class SiteKey(NamedTuple):
    """A thread and where it waited.

    Each wait is counted in exactly one site, or is short or filtered.
    """

    pid: int
    tid: int
    kernel: int
    """Stack id."""
    user: int
    """Stack id."""
    wake: int = NO_WAKE
    """Id of what ended the wait, if that is gathered."""

    @property
    def thread(self) -> ThreadKey:
        return ThreadKey(self.pid, self.tid)


class Details(NamedTuple):
    """Details of a process.

    All texts are untrusted and raw: escape them before they are shown.
    """

    user: str = ""
    """Name of its effective user, as in ps, or the number if that has no name; empty if unknown."""
    cmdline: str = ""
    """Arguments, joined by blanks; empty for a kernel thread, or if unknown."""
    cgroup: str = ""
    """Path below the root of the hierarchy: `/system.slice/mysql.service`; empty if unknown."""
    uid: int = -1
    """Effective user id; -1 if unknown."""
    cpus: str = ""
    """The CPUs on which its main thread may run, as the kernel lists them: `0-3,8`; empty for all, or if unknown."""
    realtime: int = 0
    """Real-time priority of its main thread (SCHED_FIFO, SCHED_RR), 1 to 99; 0 if it has none, or if unknown."""


UNKNOWN = Details()
_CPU_RANGE = re.compile("([0-9]{1,6})(?:-([0-9]{1,6}))?")


def cpu_ranges(cpus: str) -> list[tuple[int, int]]:
    """Return the first and last CPU of each range of a list such as `0-3,8`; none if it is empty or no list."""
    ranges = [_CPU_RANGE.fullmatch(part) for part in cpus.strip().split(",")]
    return [(int(one[1]), int(one[2] or one[1])) for one in ranges if one] if all(ranges) else []


class ThreadLifetime(NamedTuple):
    """Lifetime of a thread, as far as it began or ended while offtop ran."""

    from_ns: int = 0
    """CLOCK_MONOTONIC when it started, or when offtop began to count it; 0: before offtop."""
    to_ns: int = 0
    """CLOCK_MONOTONIC when it exited; 0: it has not."""


ALL_ALONG = ThreadLifetime()
CALL_32_BIT = 1 << 30
"""Marks a system call number of a 32-bit program on a 64-bit machine: such programs have other numbers, and pass
arguments in other registers."""


@dataclass(slots=True)
class Catalog:
    stacks: dict[int, Stack] = field(default_factory=lambda: dict(RESERVED))
    wakes: dict[int, Wake] = field(default_factory=lambda: dict(RESERVED_WAKES))
    comms: dict[ThreadKey, str] = field(default_factory=dict[ThreadKey, str])
    """Raw thread names: escape them before they are shown."""
    processes: dict[int, str] = field(default_factory=dict[int, str])
    """pid → raw process name."""
    details: dict[int, Details] = field(default_factory=dict[int, Details])
    """pid → details of the processes that were requested (Source.describe) and still existed.

    Like the name, they stay when the process has exited. They are never those of another process that had the pid
    before.
    """

    lives: dict[ThreadKey, ThreadLifetime] = field(default_factory=dict[ThreadKey, ThreadLifetime])
    """Threads that started after offtop did, or have exited."""
    calls: dict[int, str] = field(default_factory=dict[int, str])
    """System call number → name on that machine, for numbers that occurred and have a name: a traced program may show
    any number. With CALL_32_BIT for 32-bit programs."""
    details_version: int = 0
    """Changes whenever `details` has something new about a process."""
    peers: dict[Object, Peers] = field(default_factory=dict[Object, Peers])
    """Peers of the objects that were requested (Source.find_peers), if found. Changes only between two ticks, so that a
    recorded tick shows the same."""
    peers_version: int = 0
    """Changes whenever `peers` does."""
    has_programs: bool = True
    """Whether user stacks and wakers are gathered at all. If not, a wait without them need not be in progress."""
    has_dropped_stacks: bool = False
    """Whether user stacks were dropped that an older window may still refer to."""

    def stack(self, stack_id: int) -> Stack:
        """Return the stack of that id; DROPPED_STACK if it may have been dropped, EMPTY for any other unknown id."""
        is_dropped = self.has_dropped_stacks and stack_id >= FIRST_STACK
        return self.stacks.get(stack_id, DROPPED_STACK if is_dropped else EMPTY)

    def wake(self, wake_id: int) -> Wake:
        """Return the wake of that id, LOST_WAKE if it was dropped."""
        return self.wakes.get(wake_id, LOST_WAKE)

    def comm(self, key: ThreadKey) -> str:
        return self.comms.get(key, "")

    def detail(self, pid: int) -> Details:
        return self.details.get(pid, UNKNOWN)

    def peers_of(self, what: Object) -> Peers:
        return self.peers.get(what, NO_PEERS)

    def life(self, key: ThreadKey) -> ThreadLifetime:
        return self.lives.get(key, ALL_ALONG)

    def call(self, number: int) -> str:
        """Return the name of a system call, as `futex`; `syscall 999` if unknown."""
        return self.calls.get(number) or f"syscall {number & ~CALL_32_BIT}"

    def process(self, pid: int) -> str:
        """Return the name of the process, or that of its main thread if only that is known."""
        return self.processes.get(pid) or self.comms.get(ThreadKey(pid, pid), "")
