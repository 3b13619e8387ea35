"""The Book says what ids stand for: stacks, thread names, process names, and who a process is.

One Book is shared by all snapshots and windows of a source, because a copy in each of 600 windows would
cost more than the windows. Its owner, the source, only adds to it, and drops an entry when no window that
a History may still hold can name it; readers may read it from any thread. An id is never used twice.
Of wakes there may be too many for that: then those named longest ago go first, and are lost to windows of before.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from offtop.model.ends import NO_ENDS, Ends
from offtop.model.stack import EMPTY, RESERVED, Stack
from offtop.model.wake import LOST_WAKE, NO_WAKE, Object, Wake
from offtop.model.wake import RESERVED as RESERVED_WAKES


class ThreadKey(NamedTuple):
    pid: int
    """The process (the kernel's tgid)."""
    tid: int
    """The thread (the kernel's pid)."""


class SiteKey(NamedTuple):
    """Who waited, and where: each wait is counted in exactly one site, or is short or filtered."""

    pid: int
    tid: int
    kernel: int
    """Stack id."""
    user: int
    """Stack id."""
    wake: int = NO_WAKE
    """Id of what ended it, where that is gathered."""

    @property
    def thread(self) -> ThreadKey:
        return ThreadKey(self.pid, self.tid)


class Details(NamedTuple):
    """Who a process is. All of it is strangers' text, raw: escape it before it is shown."""

    user: str = ""
    """Name of its owner (the effective user, as in ps), or the number where that has none; empty: not known."""
    cmdline: str = ""
    """Its arguments, joined by blanks; empty for a kernel thread, and where it is not known."""
    cgroup: str = ""
    """Path below the root of the hierarchy: `/system.slice/mysql.service`; empty: not known."""
    uid: int = -1
    """Of its owner; -1: not known."""


UNKNOWN = Details()


class Life(NamedTuple):
    """Of a thread that does not live all the while."""

    from_ns: int = 0
    """CLOCK_MONOTONIC when it began, or when offtop began to count it; 0: before all that."""
    to_ns: int = 0
    """When it ended; 0: it has not."""


ALL_ALONG = Life()
CALL_32_BIT = 1 << 30
"""Marks the number of a 32-bit program's system call on a machine of 64: such programs have their own numbers, and
their arguments are in other registers."""


@dataclass(slots=True)
class Book:
    stacks: dict[int, Stack] = field(default_factory=lambda: dict(RESERVED))
    wakes: dict[int, Wake] = field(default_factory=lambda: dict(RESERVED_WAKES))
    comms: dict[ThreadKey, str] = field(default_factory=dict[ThreadKey, str])
    """The thread's own name, raw: escape it before it is shown."""
    processes: dict[int, str] = field(default_factory=dict[int, str])
    """pid → the process's own name, raw."""
    details: dict[int, Details] = field(default_factory=dict[int, Details])
    """pid → who it is, as far as somebody asked (Source.describe) and it was still there to be read. Stays, as the
    name does, when the process has ended; never that of another process which had the pid before."""

    lives: dict[ThreadKey, Life] = field(default_factory=dict[ThreadKey, Life])
    """Of threads that began after offtop did, or have ended."""
    calls: dict[int, str] = field(default_factory=dict[int, str])
    """Number of a system call → its name on that machine, of those that were met and have one: a program that is
    traced may show any number. With CALL_32_BIT for a program of 32 bits."""
    details_version: int = 0
    """Another one whenever `details` tells of a process what it did not."""
    ends: dict[Object, Ends] = field(default_factory=dict[Object, Ends])
    """Who is at the other end, as far as somebody asked (Source.find_ends) and it could be told. Changes between two
    ticks alone, so that a tick that was recorded tells the same."""
    ends_version: int = 0
    """Another one whenever `ends` tells another thing."""
    has_programs: bool = True
    """Whether functions of programs, and wakers, are looked at at all; where not, a wait without them need not be in
    progress."""

    def stack(self, stack_id: int) -> Stack:
        return self.stacks.get(stack_id, EMPTY)

    def wake(self, wake_id: int) -> Wake:
        """Of one that was given back nobody knows any more what it was: it is lost."""
        return self.wakes.get(wake_id, LOST_WAKE)

    def comm(self, key: ThreadKey) -> str:
        return self.comms.get(key, "")

    def detail(self, pid: int) -> Details:
        return self.details.get(pid, UNKNOWN)

    def ends_of(self, what: Object) -> Ends:
        return self.ends.get(what, NO_ENDS)

    def life(self, key: ThreadKey) -> Life:
        return self.lives.get(key, ALL_ALONG)

    def call(self, number: int) -> str:
        """`futex`; `syscall 999` where nobody knows it."""
        return self.calls.get(number) or f"syscall {number & ~CALL_32_BIT}"

    def process(self, pid: int) -> str:
        """The process's name; its main thread's where that is all that is known."""
        return self.processes.get(pid) or self.comms.get(ThreadKey(pid, pid), "")
