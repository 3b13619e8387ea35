"""Blockers: the threads and processes that must act before a wait in progress can end.

They are facts about single waits. Which thread waits for which follows from them: see classify/wait_graph.py.
"""

from collections.abc import Mapping
from typing import NamedTuple

from offtop.model.values.catalog import ThreadKey

KERNEL_LOCK, FILE_LOCK, MUTEX, GIL = "kernel-lock", "file-lock", "mutex", "gil"
PIPE, SOCKET, ANSWER, UPSTREAM, FILE_SYSTEM = "pipe", "socket", "answer", "upstream", "file-system"
CHILD, STOPPED_BY, TITLE, WAKER, LOOKUP = "child", "stopped-by", "title", "waker", "lookup"
BACKLOG, CPU_QUOTA, DISK, DISK_USER = "backlog", "cpu-quota", "disk", "disk-user"
FROZEN_BY, MEMORY_LIMIT = "frozen-by", "memory-limit"
VIA: Mapping[str, str] = {
    KERNEL_LOCK: "holds the mutex or rw-semaphore in the kernel",
    FILE_LOCK: "holds the file lock (flock, fcntl)",
    MUTEX: "is the owner that stands in the mutex",
    GIL: "holds Python's global interpreter lock",
    PIPE: "has the other end of the pipe open",
    SOCKET: "has the other end of the connection open",
    BACKLOG: "listens at the other end, and has not accepted the connection",
    ANSWER: "got the last data on the connection, and has sent nothing since",
    UPSTREAM: "got the last request on a connection of this server, and has not answered it",
    FILE_SYSTEM: "serves the file system (FUSE)",
    CHILD: "is a child of the process",
    STOPPED_BY: "traces or has stopped the thread",
    TITLE: "is the only session of the database known to be idle in a transaction",
    WAKER: "ended most of the latest waits for the same",
    LOOKUP: "is the only thread that is looking up a name in a directory",
    DISK: "is the disk of the file",
    DISK_USER: "has most of the requests to the disk of the file",
    CPU_QUOTA: "is in a cgroup that used up its CPU quota",
    FROZEN_BY: "has frozen the cgroup of the thread",
    MEMORY_LIMIT: "limits the memory of the cgroup of the thread",
}
"""How offtop knows what must act."""
DISK_WAITS = frozenset(("disk-read", "disk-write", "fsync"))
"""Categories of waits for the disk of the file that the system call is about. A page fault, also one in a system call,
may be for another file, or for a program that handles it (userfaultfd)."""
ELSEWHERE = 0
"""PID of a blocker that is no process here: on another machine, or behind an address that is translated, and `what` is
the address; or a disk (DISK), and `what` is its name; or a frozen cgroup (FROZEN_BY), and `what` is the path of
the file that keeps it frozen; or a memory limit (MEMORY_LIMIT), and `what` is a `limit_text`."""
OF_CGROUP = frozenset((FROZEN_BY, MEMORY_LIMIT))
"""How a blocker is known that is a setting of a cgroup."""
NO_PROCESS = frozenset((ANSWER, DISK)) | OF_CGROUP
"""How a blocker may be known that is ELSEWHERE."""
_TOO_MANY_DIGITS = 19
"""A number of bytes with so many digits may exceed 63 bits. No machine has as much memory as the ones that do not."""


class Blocker(NamedTuple):
    """A thread or process that must act to end another thread's wait."""

    pid: int
    """Or ELSEWHERE."""
    tid: int
    """0: some thread of the process."""
    via: str
    """One of VIA."""
    is_exact: bool
    """If not, it is likely: it follows from something other than the thing waited for."""
    what: str = ""
    """Name of what is held, as `job.lock`; empty if it has none. Raw."""


Blockers = Mapping[ThreadKey, tuple[Blocker, ...]]
"""Thread that waits → all that are known to hold what it waits for; any of them may be the one that must act.

A process (tid 0) that waits for its CPU quota has itself, via CPU_QUOTA, and `what` is a `quota_text`. It is not exact
if the process is in the run queue for the kernel."""


def quota_text(cpus: float, cgroup: str) -> str:
    """Return `0.2 /app`: how many CPUs a quota allows, and the path of its cgroup."""
    return f"{cpus:.3g} {cgroup}"


def quota_of(text: str) -> tuple[float, str]:
    """Return the numbers and names in a `quota_text`: CPUs, 0 if unknown, and the path of the cgroup."""
    cpus, _, cgroup = text.partition(" ")
    try:  # the first recordings have the path alone
        return (0.0, text) if text.startswith("/") else (float(cpus), cgroup)
    except ValueError:
        return 0.0, text


def limit_text(limit_bytes: int, file: str) -> str:
    """Return `1048576 /sys/fs/cgroup/app/memory.max`: a memory limit in bytes, and the path of its file."""
    return f"{limit_bytes} {file}"


def limit_of(text: str) -> tuple[int, str]:
    """Return the number and path in a `limit_text`; 0 and an empty path for any other text, as of a recording."""
    number, _, file = text.partition(" ")
    is_limit = len(number) < _TOO_MANY_DIGITS and number.isdecimal() and file
    return (int(number), file) if is_limit else (0, "")
