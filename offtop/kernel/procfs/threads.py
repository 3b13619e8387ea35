"""Read /proc: which threads there are, how long each ran and was ready to run, and where it waits; process status.

A thread's schedstat is kept open and read again: that takes a tenth of all else, and as long as it says the same, the
thread has not run, and is where it was.
"""

import os
import platform
import re
import resource
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from offtop.errors import KernelError
from offtop.kernel.procfs import syscalls
from offtop.model.values.catalog import CALL_32_BIT, ThreadKey
from offtop.model.values.snapshot import Machine
from offtop.model.values.stack import KERNEL, Frame
from offtop.model.values.state import MASKS
from offtop.units import NS_PER_S

_LEFT_OPEN = 256
"""Descriptors that the rest of offtop may need."""
_AGAIN_NS = 10 * NS_PER_S
_MOST_OPEN = 16_384
"""Each takes some kilobytes of the kernel's."""
_MOST_BYTES = 16_384
_OF_32_BIT = re.compile("^__ia32_|int80|syscall_32")
"""Functions of the kernel through which the system calls of 32-bit programs come on x86."""
_TICK_NS = NS_PER_S // os.sysconf("SC_CLK_TCK")
_KERNEL_THREAD = 0x00200000
"""PF_KTHREAD (include/linux/sched.h)."""
ENTRY = {"x86_64": "__x64_sys_", "aarch64": "__arm64_sys_"}.get(platform.machine(), "__se_sys_")
"""What the kernel's own functions of system calls are called before the call's name."""
_ENDED = "ZXx"
READY = "R"
"""State of a thread on a CPU, or in the run queue: /proc does not tell which."""
_STATES = {**MASKS, "D": 0x2, "I": 0x402}


class Counters(NamedTuple):
    """Since the thread began."""

    run_ns: int
    ready_ns: int
    """In the run queue: added when it gets a CPU."""
    turns: int
    """How often it got a CPU: each time a wait has ended."""


class Seen(NamedTuple):
    """A thread as it was at one moment."""

    comm: str
    """Raw."""
    state: str
    """A letter, as ps has it."""
    frames: tuple[Frame, ...] = ()
    """Of the kernel, leaf first; those of a thread that is ready are not read."""
    call: int = -1
    arguments: tuple[int, ...] = ()
    began_ns: int = 0
    """When the thread did, or up to 10 ms later (CLOCK_MONOTONIC)."""
    has_stack: bool = False
    """Its frames are all that it is in, and not only the function that waits and the call."""

    @property
    def bits(self) -> int:
        """Its state as Waiting has it."""
        return _STATES.get(self.state, 0)


class Told(NamedTuple):
    """What a thread's schedstat said."""

    key: ThreadKey
    at_ns: int
    schedstat: bytes
    """Empty: it has ended."""


class Tasks:
    """The threads of the processes that are wanted. For one thread at a time; close it."""

    def __init__(self, root: str, wanted: Callable[[int], bool], tids: Iterable[int] = ()) -> None:
        """`wanted`: whether a process is; asked every 10 s, for they change their cgroup and user. `tids`: only these
        threads (empty: all)."""
        self._root, self._wanted, self._tids = root, wanted, frozenset(tids)
        self._chosen: dict[int, bool] = {}
        self._chosen_ns = time.monotonic_ns()
        self._links: dict[int, int] = {}
        """pid → links of its directory of threads: two, and one for each."""
        self._files: dict[ThreadKey, int] = {}
        """The schedstat of each; -1: not kept open."""
        self._most_open = _most_open()
        self._open = 0

    def walk(self) -> tuple[list[Told], list[ThreadKey], list[ThreadKey]]:
        """What the schedstat of each says, which have ended since the last walk, and which are wanted no more."""
        pids = {int(name) for name in _names(self._root) if name.isdigit()}
        for pid in self._chosen.keys() - pids:
            del self._chosen[pid]
            self._links.pop(pid, None)
        left = self._choose(pids)
        told = [self._read(key) for key in [*self._files]]
        ended = [one.key for one in told if not one.schedstat]
        for key in ended:
            self._links.pop(key.pid, None)  # another thread may have come in its place
        for pid in pids:
            if self._chosen[pid]:
                for key in self._new(pid):
                    self._files[key] = self._kept_open(key)
                    told.append(self._read(key))
        return [one for one in told if one.schedstat], ended, left

    def _choose(self, pids: set[int]) -> list[ThreadKey]:
        """The threads of processes that were wanted, and are no more."""
        now_ns = time.monotonic_ns()
        if now_ns - self._chosen_ns >= _AGAIN_NS:
            self._chosen, self._chosen_ns = {}, now_ns
        new = pids - self._chosen.keys()
        self._chosen.update({pid: self._wanted(pid) for pid in new})
        left = [key for key in self._files if key.pid in new and not self._chosen[key.pid]] if new else []
        for key in left:
            self._close(key)
            self._links.pop(key.pid, None)
        return left

    def again(self, key: ThreadKey) -> Told:
        """What it says by now; nothing where it has ended."""
        said = self._content(key, self._files[key])
        return Told(key, time.monotonic_ns(), said)

    def close(self) -> None:
        for key in [*self._files]:
            self._close(key)

    def _new(self, pid: int) -> list[ThreadKey]:
        """Its threads that were not there at the last walk."""
        directory = f"{self._root}/{pid}/task"
        try:
            links = Path(directory).stat().st_nlink
            if links >= 3 and links == self._links.get(pid):
                return []
            self._links[pid] = links
            keys = [ThreadKey(pid, int(name)) for name in _names(directory)]
        except OSError:  # it has just ended
            return []
        return [key for key in keys if key not in self._files and (not self._tids or key.tid in self._tids)]

    def _read(self, key: ThreadKey) -> Told:
        told = self.again(key)
        if not told.schedstat:
            self._close(key)
        return told

    def _kept_open(self, key: ThreadKey) -> int:
        if self._open < self._most_open:
            with suppress(OSError):
                file = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC)
                self._open += 1
                return file
        return -1

    def _path(self, key: ThreadKey) -> str:
        return f"{self._root}/{key.pid}/task/{key.tid}/schedstat"

    def _content(self, key: ThreadKey, file: int) -> bytes:
        if file < 0:
            return content(self._path(key))
        try:
            return os.pread(file, 128, 0)
        except OSError:
            return b""

    def _close(self, key: ThreadKey) -> None:
        file = self._files.pop(key)
        if file >= 0:
            os.close(file)
            self._open -= 1


def _most_open() -> int:
    """And may be, from now on, as many as anybody allows us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(soft, min(hard, _MOST_OPEN + _LEFT_OPEN))
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return max(0, min(_MOST_OPEN, most - _LEFT_OPEN))


def _names(directory: str) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries]


def counters(schedstat: bytes) -> Counters:
    run_ns, ready_ns, turns = map(int, schedstat.split())
    return Counters(run_ns, ready_ns, turns)


def check_counted(root: str) -> None:
    """Raises KernelError where the kernel does not count how long threads run and are ready to."""
    if not own_pid(root):
        raise KernelError(
            "There is no /proc here in which offtop itself is, as where it is that of another pid namespace. "
            "Mount one: mount -t proc proc /proc"
        )
    told = content(f"{root}/self/schedstat").split()
    if len(told) != 3 or not int(told[2]):
        raise KernelError(
            "This kernel does not tell how long threads run (/proc/PID/schedstat), which sampling begins with. "
            "Use one with CONFIG_SCHED_INFO, as those of all distributions are"
        )


def seen(root: str, key: ThreadKey) -> Seen | None:
    """None for a thread that has ended."""
    directory = f"{root}/{key.pid}/task/{key.tid}"
    name, _, rest = content(f"{directory}/stat").rpartition(b")")
    state = _state(rest)
    if state in _ENDED:
        return None
    comm, began_ns = os.fsdecode(name.partition(b"(")[2]), _began_ns(rest)
    if state == READY:
        return Seen(comm, state, began_ns=began_ns)
    of_kernel = _is_of_kernel(rest)  # whose system call reads as number 0
    frames = _frames(content(f"{directory}/stack"))
    call, arguments = (-1, ()) if of_kernel else _call(content(f"{directory}/syscall"), frames)
    known = frames or _coarse(content(f"{directory}/wchan"), call)
    return Seen(comm, state, known, call, arguments, began_ns, bool(frames))


def is_ready(root: str, key: ThreadKey) -> bool:
    """Whether it is on a CPU, or in the run queue."""
    return _state(content(f"{root}/{key.pid}/task/{key.tid}/stat").rpartition(b")")[2]) == READY


def _state(stat: bytes) -> str:
    """`stat`: from the state on. Empty: it has ended."""
    return stat[1:2].decode(errors="replace")


def _began_ns(stat: bytes) -> int:
    """`stat`: from the state on. The kernel rounds down, and counts the time in which the machine was suspended."""
    suspended_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    return (int(stat.split(None, 20)[19]) + 1) * _TICK_NS - suspended_ns


def is_of_kernel(root: str, pid: int) -> bool:
    return _is_of_kernel(content(f"{root}/{pid}/stat").rpartition(b")")[2])


def _is_of_kernel(stat: bytes) -> bool:
    """`stat`: from the state on."""
    fields = stat.split(None, 7)
    return len(fields) > 6 and bool(int(fields[6]) & _KERNEL_THREAD)


def may_look(root: str, pid: int) -> bool:
    """Whether we may read what that process does, as its debugger might."""
    try:
        os.readlink(f"{root}/{pid}/ns/user")  # noqa: PTH115
    except OSError:
        return False
    return True


def own_pid(root: str) -> int:
    """Whose pid this process has in that /proc, which may be of another pid namespace; 0: it is not in there."""
    try:
        return int(os.readlink(f"{root}/self"))  # noqa: PTH115
    except (OSError, ValueError):
        return 0


def own_rss_bytes(root: str) -> int:
    """Of this process. /proc may have it by another pid than it knows of."""
    return int(content(f"{root}/self/statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def switches(root: str, key: ThreadKey) -> tuple[int, int] | None:
    """How often it left the CPU by itself, and how often it was put aside; None: it has ended."""
    fields = fields_of(content(f"{root}/{key.pid}/task/{key.tid}/status"))
    voluntary, involuntary = fields.get("voluntary_ctxt_switches"), fields.get("nonvoluntary_ctxt_switches")
    return (int(voluntary), int(involuntary)) if voluntary and involuntary else None


def content(path: str) -> bytes:
    """Nothing where there is no such file, and where we may not read it."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(file, _MOST_BYTES)
    except OSError:
        return b""
    finally:
        os.close(file)


def _frames(stack: bytes) -> tuple[Frame, ...]:
    """`[<0>] pipe_read+0x1a/0x2b [ext4]` in each line; nothing where the kernel hides it."""
    frames: list[Frame] = []
    for line in stack.splitlines():
        _, name, *module = line.split()[:3]
        symbol = os.fsdecode(name.partition(b"+")[0])
        frames.append(Frame(os.fsdecode(module[0]) if module else KERNEL, 0, symbol))
    return tuple(frames)


def _coarse(wchan: bytes, call: int) -> tuple[Frame, ...]:
    """The function that it waits in, and the system call: all that is known without root."""
    names = [os.fsdecode(wchan.strip())] if wchan.strip(b"0\n") else []
    name = call_name(call)
    if name and not call & CALL_32_BIT:
        names.append(f"{ENTRY}{name}")
    return tuple(Frame(KERNEL, 0, one) for one in names)


def call_name(call: int) -> str:
    """Of a system call's number as Seen has it; empty: not known."""
    if call >= 0 and call & CALL_32_BIT:
        return syscalls.name_of(call & ~CALL_32_BIT, "i386")
    return syscalls.name_of(call)


def _call(syscall: bytes, frames: tuple[Frame, ...]) -> tuple[int, tuple[int, ...]]:
    """`202 0x7f… …`: its number, six arguments, stack pointer and program counter; `running`; `-1 0x… 0x…`: in none.

    A program of 32 bits has other numbers, and its arguments in other registers than those that the kernel tells.
    """
    words = syscall.split()
    if len(words) < 9 or not words[0].isdigit():
        return -1, ()
    number, *arguments, sp, pc = int(words[0]), *(int(word, 16) for word in words[1:9])
    if 0 < max(sp, pc) < 1 << 32 or any(_OF_32_BIT.search(frame.name) for frame in frames):
        return number | CALL_32_BIT, ()
    return number, tuple(arguments)


def status_of(pid: int | str) -> Mapping[str, str]:
    """The fields of /proc/PID/status by name, values raw. Raises OSError if there is no such process."""
    return fields_of(Path(f"/proc/{pid}/status").read_bytes())


def fields_of(content: bytes) -> Mapping[str, str]:
    """Fields of such a file by name.

    Lines end at newlines only. A process chooses its Name: the kernel escapes newlines in it, but not the other
    characters at which str.splitlines() splits, so it could pass off a part of its name as another field.
    """
    lines = [line.partition(":\t") for line in os.fsdecode(content).split("\n")]
    return {name: value for name, _, value in lines}


def machine() -> Machine:
    """CPU time that belongs to no thread, from /proc/stat, in steps of 10 ms (USER_HZ).

    Guest time is not in it: the threads that run the guests have that.
    """
    now = psutil.cpu_times()
    steal_s, irq_s = getattr(now, "steal", 0.0), getattr(now, "irq", 0.0) + getattr(now, "softirq", 0.0)
    return Machine(psutil.cpu_count() or 1, round(steal_s * NS_PER_S), round(irq_s * NS_PER_S))
