"""Read threads from /proc: run time, run-queue time, and where each waits; also the status of processes.

Each thread's schedstat is kept open and read repeatedly. That takes a tenth of the time of the other reads; and as long
as its content is the same, the thread has not run and still waits in the same place.
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

_RESERVED_DESCRIPTORS = 256
"""Descriptors reserved for the rest of offtop."""
_RECHECK_NS = 10 * NS_PER_S
_MOST_OPEN = 16_384
"""Maximum number of open schedstat files. Each takes some kilobytes of kernel memory."""
_MOST_BYTES = 16_384
_ENTRY_32_BIT = re.compile("^__ia32_|int80|syscall_32")
"""Matches the kernel functions through which the system calls of 32-bit programs enter on x86."""
_TICK_NS = NS_PER_S // os.sysconf("SC_CLK_TCK")
_KERNEL_THREAD = 0x00200000
"""PF_KTHREAD (include/linux/sched.h)."""
ENTRY = {"x86_64": "__x64_sys_", "aarch64": "__arm64_sys_"}.get(platform.machine(), "__se_sys_")
"""Prefix of the kernel functions that implement system calls."""
EXITED = "ZXx"
"""States of a thread that has exited (fs/proc/array.c)."""
READY = "R"
"""State of a thread that is on a CPU or on the run queue: /proc does not distinguish them."""
_STATES = {**MASKS, "D": 0x2, "I": 0x402}


class Counters(NamedTuple):
    """Scheduler counters of a thread since it started."""

    run_ns: int
    ready_ns: int
    """Time on the run queue. The kernel adds it when the thread gets a CPU."""
    pcount: int
    """How often it got a CPU, which is also the number of its finished waits."""


class ThreadState(NamedTuple):
    """State of a thread at one moment."""

    comm: str
    """Raw."""
    state: str
    """State letter, as in ps."""
    frames: tuple[Frame, ...] = ()
    """Kernel frames, leaf first; not read if the thread is runnable."""
    call: int = -1
    arguments: tuple[int, ...] = ()
    began_ns: int = 0
    """When the thread started, or up to 10 ms later (CLOCK_MONOTONIC)."""
    has_stack: bool = False
    """Whether `frames` is the whole kernel stack, and not only the waiting function and the system call."""

    @property
    def bits(self) -> int:
        """State bits, as in Waiting."""
        return _STATES.get(self.state, 0)


class SchedStat(NamedTuple):
    """One read of a thread's schedstat."""

    key: ThreadKey
    at_ns: int
    schedstat: bytes
    """Content of the file; empty if the thread has exited."""


class ThreadScanner:
    """Scans the threads of the wanted processes. Not thread-safe; close it."""

    def __init__(self, root: str, wanted: Callable[[int], bool], tids: Iterable[int] = ()) -> None:
        """`wanted`: returns whether to include a process.

        It is called again every 10 s, because processes change their cgroup and user. `tids`: include only these
        threads, unless empty.
        """
        self._root, self._wanted, self._tids = root, wanted, frozenset(tids)
        self._is_wanted: dict[int, bool] = {}
        self._rechecked_ns = time.monotonic_ns()
        self._links: dict[int, int] = {}
        """pid → link count of its task directory: two, plus one per thread."""
        self._files: dict[ThreadKey, int] = {}
        """File descriptor of each thread's schedstat, or -1 if it is not kept open."""
        self._most_open = _most_open()
        self._open = 0

    def scan(self) -> tuple[list[SchedStat], list[ThreadKey], list[ThreadKey]]:
        """Scan all threads.

        Returns the schedstat of each, the threads that have exited since the last scan, and those whose process is no
        longer wanted.
        """
        pids = {int(name) for name in _names(self._root) if name.isdigit()}
        for pid in self._is_wanted.keys() - pids:
            del self._is_wanted[pid]
            self._links.pop(pid, None)
        dropped = self._update_wanted(pids)
        reads = [self._read(key) for key in [*self._files]]
        exited = [one.key for one in reads if not one.schedstat]
        for key in exited:
            self._links.pop(key.pid, None)  # the link count is the same if another thread started meanwhile
        for pid in pids:
            if self._is_wanted[pid]:
                for key in self._new_threads(pid):
                    self._files[key] = self._open_schedstat(key)
                    reads.append(self._read(key))
        return [one for one in reads if one.schedstat], exited, dropped

    def _update_wanted(self, pids: set[int]) -> list[ThreadKey]:
        """Update which processes are wanted. Returns the threads of those that no longer are."""
        now_ns = time.monotonic_ns()
        if now_ns - self._rechecked_ns >= _RECHECK_NS:
            self._is_wanted, self._rechecked_ns = {}, now_ns
        new = pids - self._is_wanted.keys()
        self._is_wanted.update({pid: self._wanted(pid) for pid in new})
        dropped = [key for key in self._files if key.pid in new and not self._is_wanted[key.pid]] if new else []
        for key in dropped:
            self._close(key)
            self._links.pop(key.pid, None)
        return dropped

    def reread(self, key: ThreadKey) -> SchedStat:
        """Read the schedstat of a known thread again."""
        schedstat = self._schedstat(key, self._files[key])
        return SchedStat(key, time.monotonic_ns(), schedstat)

    def close(self) -> None:
        for key in [*self._files]:
            self._close(key)

    def _new_threads(self, pid: int) -> list[ThreadKey]:
        """List the threads of a process that the last scan did not find."""
        directory = f"{self._root}/{pid}/task"
        try:
            links = Path(directory).stat().st_nlink
            if links >= 3 and links == self._links.get(pid):
                return []
            self._links[pid] = links
            keys = [ThreadKey(pid, int(name)) for name in _names(directory)]
        except OSError:  # the process has just exited
            return []
        return [key for key in keys if key not in self._files and (not self._tids or key.tid in self._tids)]

    def _read(self, key: ThreadKey) -> SchedStat:
        result = self.reread(key)
        if not result.schedstat:
            self._close(key)
        return result

    def _open_schedstat(self, key: ThreadKey) -> int:
        if self._open < self._most_open:
            with suppress(OSError):
                file = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC)
                self._open += 1
                return file
        return -1

    def _path(self, key: ThreadKey) -> str:
        return f"{self._root}/{key.pid}/task/{key.tid}/schedstat"

    def _schedstat(self, key: ThreadKey, file: int) -> bytes:
        if file < 0:
            return read_file(self._path(key))
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
    """Raise the limit of open files as far as allowed and needed. Returns how many schedstat files to keep open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(soft, min(hard, _MOST_OPEN + _RESERVED_DESCRIPTORS))
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return max(0, min(_MOST_OPEN, most - _RESERVED_DESCRIPTORS))


def _names(directory: str) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries]


def parse_counters(schedstat: bytes) -> Counters:
    run_ns, ready_ns, pcount = map(int, schedstat.split())
    return Counters(run_ns, ready_ns, pcount)


def pcount_of(key: ThreadKey) -> int:
    """Return how often a thread has been given a CPU; -1 if it has exited, or the kernel does not count that."""
    fields = read_file(f"/proc/{key.pid}/task/{key.tid}/schedstat").split()
    return int(fields[2]) if len(fields) == 3 else -1


def check_schedstat(root: str) -> None:
    """Raise KernelError if the kernel does not count run time and run-queue time of threads."""
    if not own_pid(root):
        raise KernelError(
            "There is no /proc here that shows offtop itself: it is missing, or belongs to another pid namespace. "
            "Mount one: mount -t proc proc /proc"
        )
    fields = read_file(f"{root}/self/schedstat").split()
    if len(fields) != 3 or not int(fields[2]):
        raise KernelError(
            "This kernel does not report run times of threads (/proc/PID/schedstat), which sampling needs. "
            "Use a kernel with CONFIG_SCHED_INFO=y, as all distributions' kernels are"
        )


def read_state(root: str, key: ThreadKey) -> ThreadState | None:
    """Read the state of a thread; None if it has exited."""
    directory = f"{root}/{key.pid}/task/{key.tid}"
    name, _, rest = read_file(f"{directory}/stat").rpartition(b")")
    state = _state(rest)
    if state in EXITED:
        return None
    comm, began_ns = os.fsdecode(name.partition(b"(")[2]), _began_ns(rest)
    if state == READY:
        return ThreadState(comm, state, began_ns=began_ns)
    is_kernel_thread = _is_of_kernel(rest)  # for a kernel thread, /proc reports system call 0
    frames = _frames(read_file(f"{directory}/stack"))
    call, arguments = (-1, ()) if is_kernel_thread else _call(read_file(f"{directory}/syscall"), frames)
    known = frames or _frames_without_stack(read_file(f"{directory}/wchan"), call)
    return ThreadState(comm, state, known, call, arguments, began_ns, bool(frames))


def is_ready(root: str, key: ThreadKey) -> bool:
    """Whether a thread is on a CPU or on the run queue."""
    return _state(read_file(f"{root}/{key.pid}/task/{key.tid}/stat").rpartition(b")")[2]) == READY


def _state(stat: bytes) -> str:
    """State letter; empty if the thread has exited. `stat`: from the state on."""
    return stat[1:2].decode(errors="replace")


def _began_ns(stat: bytes) -> int:
    """Start time of a thread (CLOCK_MONOTONIC). `stat`: from the state on.

    The kernel rounds it down to a tick, and includes the time that the machine was suspended.
    """
    suspended_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    return (int(stat.split(None, 20)[19]) + 1) * _TICK_NS - suspended_ns


def is_of_kernel(root: str, pid: int) -> bool:
    """Whether a process is a kernel thread."""
    return _is_of_kernel(read_file(f"{root}/{pid}/stat").rpartition(b")")[2])


def _is_of_kernel(stat: bytes) -> bool:
    """`stat`: from the state on."""
    fields = stat.split(None, 7)
    return len(fields) > 6 and bool(int(fields[6]) & _KERNEL_THREAD)


def may_trace(root: str, pid: int) -> bool:
    """Whether we have ptrace access to a process, which reading the state of its threads needs."""
    try:
        os.readlink(f"{root}/{pid}/ns/user")  # noqa: PTH115
    except OSError:
        return False
    return True


def own_pid(root: str) -> int:
    """PID of this process in that /proc, which may belong to another pid namespace.

    0 if it is not there.
    """
    try:
        return int(os.readlink(f"{root}/self"))  # noqa: PTH115
    except (OSError, ValueError):
        return 0


def own_rss_bytes(root: str) -> int:
    """Resident set size of this process. Its pid in /proc may differ from os.getpid()."""
    return int(read_file(f"{root}/self/statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def context_switches(root: str, key: ThreadKey) -> tuple[int, int] | None:
    """Number of voluntary context switches and of preemptions; None if the thread has exited."""
    fields = fields_of(read_file(f"{root}/{key.pid}/task/{key.tid}/status"))
    voluntary, involuntary = fields.get("voluntary_ctxt_switches"), fields.get("nonvoluntary_ctxt_switches")
    return (int(voluntary), int(involuntary)) if voluntary and involuntary else None


def read_file(path: str) -> bytes:
    """Read a file; empty if there is no such file, or if we may not read it."""
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
    """Parse a stack with lines like `[<0>] pipe_read+0x1a/0x2b [ext4]`.

    Empty if the kernel hides it.
    """
    frames: list[Frame] = []
    for line in stack.splitlines():
        _, name, *module = line.split()[:3]
        symbol = os.fsdecode(name.partition(b"+")[0])
        frames.append(Frame(os.fsdecode(module[0]) if module else KERNEL, 0, symbol))
    return tuple(frames)


def _frames_without_stack(wchan: bytes, call: int) -> tuple[Frame, ...]:
    """Frames of the waiting function and of the system call, which is all that is known without root."""
    names = [os.fsdecode(wchan.strip())] if wchan.strip(b"0\n") else []
    name = call_name(call)
    if name and not call & CALL_32_BIT:
        names.append(f"{ENTRY}{name}")
    return tuple(Frame(KERNEL, 0, one) for one in names)


def call_name(call: int) -> str:
    """Name of a system call from its number in ThreadState; empty if unknown."""
    if call >= 0 and call & CALL_32_BIT:
        return syscalls.name_of(call & ~CALL_32_BIT, "i386")
    return syscalls.name_of(call)


def _call(syscall: bytes, frames: tuple[Frame, ...]) -> tuple[int, tuple[int, ...]]:
    """Parse /proc/TID/syscall into the number and arguments of the system call, -1 if in none.

    The content is `202 0x7f… …` (number, six arguments, stack pointer and program counter), `running`, or
    `-1 0x… 0x…` outside of a system call. A 32-bit program has other numbers, and its arguments are in other registers
    than those that the kernel reports.
    """
    words = syscall.split()
    if len(words) < 9 or not words[0].isdigit():
        return -1, ()
    number, *arguments, sp, pc = int(words[0]), *(int(word, 16) for word in words[1:9])
    if 0 < max(sp, pc) < 1 << 32 or any(_ENTRY_32_BIT.search(frame.name) for frame in frames):
        return number | CALL_32_BIT, ()
    return number, tuple(arguments)


def status_of(pid: int | str) -> Mapping[str, str]:
    """Fields of /proc/PID/status by name, values raw.

    Raises OSError if there is no such process.
    """
    return fields_of(Path(f"/proc/{pid}/status").read_bytes())


def fields_of(content: bytes) -> Mapping[str, str]:
    """Parse the content of a status file into fields by name.

    Only newlines end a line. A process chooses its Name: the kernel escapes newlines in it, but not the other
    characters at which str.splitlines() splits, so a part of the name could pose as another field.
    """
    lines = [line.partition(":\t") for line in os.fsdecode(content).split("\n")]
    return {name: value for name, _, value in lines}


def machine_times() -> Machine:
    """CPU time that belongs to no thread, from /proc/stat, in units of 10 ms (USER_HZ).

    Guest time is not included, because it counts as run time of the threads that run the guests.
    """
    now = psutil.cpu_times()
    steal_s, irq_s = getattr(now, "steal", 0.0), getattr(now, "irq", 0.0) + getattr(now, "softirq", 0.0)
    return Machine(psutil.cpu_count() or 1, round(steal_s * NS_PER_S), round(irq_s * NS_PER_S))
