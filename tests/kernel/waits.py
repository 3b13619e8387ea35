"""Real waits of every kind, made by a child process, a known number of times.

    with waits.running("sleep", times=23, each_ms=10) as child:
        ...attach to child.pid...
        child.go()
        child.finish()  # now child.tid has waited 23 times in the category `sleep`

The child's main thread makes them, below the user frames `child.user`. It also waits twice in `pipe`: before them
for the go, and after the last of them until the end of the block. A kind that is itself `pipe` differs from these by
its user frames. The child is killed at the end of the block, whatever it is doing.
"""

import atexit
import contextlib
import functools
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

SOURCES = Path(__file__).with_name("wait_children")
_CGROUPS = Path("/sys/fs/cgroup")
_SWAP_LIMIT_BYTES = 24 << 20
_SWAP_FILE_BYTES = 256 << 20
_IMAGE_BYTES = 512 << 20
"""Size of a mostly sparse file; XFS needs at least 300 MB."""
_QUOTA_MS = 10
"""How long a thread with a CPU quota runs before it is throttled."""


class UnavailableError(Exception):
    """Raised if this machine cannot make that kind of wait; the message is the reason."""


Surroundings = Callable[[int, int, Path], contextlib.AbstractContextManager[None]]
"""What the child needs around it, from before its go until its end.

Arguments are (pid, each_ms, directory).
"""


@dataclass(frozen=True, slots=True)
class Wait:
    """One kind of wait."""

    category: str
    """The category that its blocked time belongs to."""
    exact: bool = True
    """Whether it makes exactly `times` waits in its category.

    Otherwise it makes at least one, about as many.
    """
    paced: bool = True
    """Whether each lasts at least each_ms, and no longer by itself.

    Otherwise the disk or the kernel sets the time.
    """
    needs: Surroundings | None = None
    program: str = ""
    """The child's name for it, if it differs."""
    filesystem: str = ""
    """The kind of file system for its files; empty for that of /var/tmp."""


class Child:
    """A process that is ready to wait."""

    def __init__(self, process: subprocess.Popen[bytes], name: str, times: int, each_ms: int, other_pid: int) -> None:
        self._process = process
        self.name, self.times, self.each_ms = name, times, each_ms
        self.wait = WAITS[name]
        self.pid = self.tid = process.pid
        self.other_pid = other_pid
        """PID of the process that ends its waits; 0 if a timer or the kernel does."""
        self._went_ns = 0
        self.took_ns = 0
        """ns from `go` to `finish`, an upper bound for all of its waits together."""

    @property
    def user(self) -> tuple[str, ...]:
        """The user frames of its waits, leaf first.

        More frames are in front of them for kinds whose name ends in `-libc` (libc's), and for spinning ones
        (run-queue, throttle).
        """
        return (_user_function(self.wait.program or self.name), "gamma", "beta", "alpha", "main")

    def go(self) -> None:
        """Let it start."""
        assert self._process.stdin is not None
        self._went_ns = time.monotonic_ns()
        self._process.stdin.write(b"g")
        self._process.stdin.flush()

    def has_finished(self) -> bool:
        """Return whether its last wait is over, so that `finish` returns at once."""
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], 0)[0])

    def finish(self, timeout_s: float = 60) -> None:
        """Return when its last wait is over. Raises TimeoutError."""
        line = _read_line(self._process, timeout_s)
        self.took_ns = time.monotonic_ns() - self._went_ns
        assert line == f"done {self.times}", line

    def end(self) -> None:
        """Kill the process and return once it has exited; may be called twice."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        if not self._is_gone_in(0.2):
            self._end_other()  # first, because it may hold what keeps the child from exiting
            for number in (signal.SIGTERM, signal.SIGCONT):
                self._process.send_signal(number)
        if not self._is_gone_in(2):
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _is_gone_in(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _end_other(self) -> None:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            parent = Path(f"/proc/{self.other_pid}/stat").read_text().rpartition(")")[2].split()[1]
            if self.other_pid and int(parent) == self.pid:
                os.kill(self.other_pid, signal.SIGKILL)


@contextlib.contextmanager
def running(name: str, times: int = 23, each_ms: int = 10) -> Generator[Child]:
    """Run a child that waits `times` times once it gets its go.

    Each wait takes `each_ms` if the kind is paced. Raises UnavailableError if this machine cannot make that wait.
    """
    with contextlib.ExitStack() as stack:
        # /var/tmp, because /tmp may be in memory, and waits for a disk need a disk
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="waits-", dir="/var/tmp")))
        wait = WAITS[name]
        if wait.filesystem:
            directory = stack.enter_context(mounted(wait.filesystem, directory))
        command = [str(program()), wait.program or name, str(times), str(each_ms), str(directory)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stderr is not None
        stack.callback(process.stderr.close)
        try:
            ready = _read_line(process, 60).split()
        except (EOFError, TimeoutError) as error:
            process.kill()
            raise UnavailableError(process.communicate()[1].decode().strip()) from error
        child = Child(process, name, times, each_ms, other_pid=int(ready[1]))
        if name == "sleep":  # otherwise it may be preempted on its way to sleep, which is one more wait
            os.setpriority(os.PRIO_PROCESS, child.tid, -20)
        _wait_until_asleep(child.pid)
        stack.callback(child.end)
        if wait.needs:
            stack.enter_context(wait.needs(child.pid, each_ms, directory))
        stack.callback(child.end)  # again, and first, because what it needs cannot be removed before it exits
        yield child


@functools.cache
def program() -> Path:
    """Compile the child.

    It has frame pointers and no tail calls, so that frames are as written.
    """
    if not shutil.which("gcc"):
        raise UnavailableError("no gcc: sudo apt install gcc libc6-dev")
    directory = tempfile.mkdtemp(prefix="waits-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    binary = Path(directory) / "waits"
    flags = ["-O1", "-g", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-fno-builtin", "-pthread"]
    subprocess.run(["gcc", "-D_GNU_SOURCE", *flags, "-o", binary, *sorted(SOURCES.glob("*.c"))], check=True)
    return binary


def _user_function(kind: str) -> str:
    """Return the child's function that makes this kind of wait."""
    shared = {"unix": "receive", "tcp": "receive", "udp": "receive", "tcp-send": "send", "tty": "pipe"}
    shared |= {"read-direct": "read", "unix-accept": "accept", "mutex-pi-libc": "mutex-libc"}
    return "wait_" + shared.get(kind, kind).replace("-", "_")


def _wait_until_asleep(pid: int) -> None:
    """Return once the child waits for its go.

    Otherwise the go could come first, and there would be no such wait.
    """
    stat = Path(f"/proc/{pid}/stat")
    while stat.read_text().rpartition(")")[2].split()[0] != "S":
        time.sleep(0.001)


def _read_line(process: subprocess.Popen[bytes], timeout_s: float) -> str:
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], timeout_s)[0]:
        raise TimeoutError(f"the child said nothing for {timeout_s} s")
    line = process.stdout.readline().decode()
    if not line:
        raise EOFError
    return line.strip()


@contextlib.contextmanager
def mounted(filesystem: str, directory: Path) -> Generator[Path]:
    """Mount a new, empty file system of that kind, from a file in `directory`."""
    image, place = directory / "image", directory / "mounted"
    place.mkdir()
    with image.open("wb") as out:
        out.truncate(_IMAGE_BYTES)
    for command in ([f"mkfs.{filesystem}", "-q", image], ["mount", "-o", "loop", image, place]):
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise UnavailableError(f"no file system of the kind {filesystem}: {error}") from error
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


@contextlib.contextmanager
def in_cgroup(
    controller: str, pid: int, settings: Mapping[str, str], settings_v2: Mapping[str, str]
) -> Generator[Path]:
    """Put the process into a new cgroup with these settings.

    It is of version 1 or 2, whichever has the controller.
    """
    v1 = _CGROUPS / controller
    v2 = next((path for path in (_CGROUPS, _CGROUPS / "unified") if (path / "cgroup.controllers").exists()), None)
    if (v1 / "cgroup.procs").exists():
        top = v1
    elif v2 and {"blkio": "io"}.get(controller, controller) in (v2 / "cgroup.controllers").read_text().split():
        top, settings = v2, settings_v2
    else:
        raise UnavailableError(f"no cgroup controller {controller}")
    group = top / f"waits-{pid}"
    try:
        if top == v2:
            (top / "cgroup.subtree_control").write_text(f"+{ {'blkio': 'io'}.get(controller, controller) }")
        group.mkdir()
    except OSError as error:
        raise UnavailableError(f"cannot make a cgroup: {error}") from error
    try:
        for name, value in settings.items():
            (group / name).write_text(value)
        (group / "cgroup.procs").write_text(str(pid))
        yield group
    finally:
        for member in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):  # it may already be exiting
                (top / "cgroup.procs").write_text(member)
        group.rmdir()


@contextlib.contextmanager
def _quota(pid: int, each_ms: int, directory: Path) -> Generator[None]:
    """Allow 10 ms of CPU, then a pause of each_ms."""
    quota_us, period_us = _QUOTA_MS * 1000, (_QUOTA_MS + each_ms) * 1000
    settings = {"cpu.cfs_period_us": str(period_us), "cpu.cfs_quota_us": str(quota_us)}
    with in_cgroup("cpu", pid, settings, {"cpu.max": f"{quota_us} {period_us}"}) as group:
        (directory / "cpu.stat").symlink_to(group / "cpu.stat")
        yield


@contextlib.contextmanager
def _slow_disk(pid: int, each_ms: int, directory: Path) -> Generator[None]:
    """Allow one disk read or write every each_ms."""
    device, rate = disk_of(directory), max(1, 1000 // each_ms)
    names = ("blkio.throttle.read_iops_device", "blkio.throttle.write_iops_device")
    v2 = {"io.max": f"{device} riops={rate} wiops={rate}"}
    with in_cgroup("blkio", pid, dict.fromkeys(names, f"{device} {rate}"), v2):
        yield


def disk_of(directory: Path) -> str:
    """Return major:minor of the whole disk that the directory is on."""
    number = directory.stat().st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    if not device.exists():
        raise UnavailableError(f"{directory} is not on a disk")
    whole = device.resolve().parent if (device / "partition").exists() else device
    return (whole / "dev").read_text().strip()


@contextlib.contextmanager
def _little_memory(pid: int, each_ms: int, directory: Path) -> Generator[None]:
    """Allow 24 MB of memory, with a swap file on a slow disk."""
    file = directory / "swap"
    with file.open("wb") as out:
        os.fchmod(out.fileno(), 0o600)
        os.posix_fallocate(out.fileno(), 0, _SWAP_FILE_BYTES)
    limit = str(_SWAP_LIMIT_BYTES)
    with contextlib.ExitStack() as stack:
        for command in (["mkswap", file], ["swapon", file]):
            try:
                subprocess.run(command, check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError) as error:
                raise UnavailableError(f"cannot swap: {error}") from error
        stack.callback(subprocess.run, ["swapoff", file], check=True)
        stack.enter_context(in_cgroup("memory", pid, {"memory.limit_in_bytes": limit}, {"memory.max": limit}))
        yield


WAITS: Mapping[str, Wait] = MappingProxyType(
    {
        "sleep": Wait("sleep"),
        "sleep-libc": Wait("sleep"),
        "timerfd": Wait("sleep"),
        "futex": Wait("lock"),
        "mutex-libc": Wait("lock"),
        "mutex-pi-libc": Wait("lock"),
        "cond-libc": Wait("lock"),
        "flock": Wait("lock"),
        "fcntl": Wait("lock"),
        "semaphore": Wait("lock"),
        "inode-lock": Wait("kernel-lock"),
        "position-lock": Wait("kernel-lock"),
        "pipe": Wait("pipe"),
        "pipe-write": Wait("pipe"),
        "unix": Wait("pipe"),
        "msgqueue": Wait("pipe"),
        "mqueue": Wait("pipe"),
        "tcp": Wait("net-recv"),
        "udp": Wait("net-recv"),
        "tcp-send": Wait("net-send"),
        "connect": Wait("connect"),
        "accept": Wait("accept"),
        "unix-accept": Wait("accept"),
        "poll": Wait("poll"),
        "select": Wait("poll"),
        "epoll": Wait("poll"),
        "inotify": Wait("poll"),
        "io-uring": Wait("io-uring"),
        "aio": Wait("io-uring"),
        "child": Wait("child"),
        "vfork-libc": Wait("child"),
        "sigwait": Wait("signal"),
        "sigsuspend": Wait("signal"),
        "stopped": Wait("stopped"),
        "tty": Wait("tty"),
        "read": Wait("disk-read", exact=False, paced=False, needs=_slow_disk),
        "read-direct": Wait("disk-read", exact=False, paced=False, needs=_slow_disk),
        "write-direct": Wait("disk-write", exact=False, paced=False, needs=_slow_disk),
        "fault": Wait("page-fault", exact=False, paced=False, needs=_slow_disk),
        "fsync": Wait("fsync", exact=False, paced=False, needs=_slow_disk),
        "fsync-ext4": Wait("fsync", exact=False, paced=False, program="fsync", filesystem="ext4"),
        "fsync-xfs": Wait("fsync", exact=False, paced=False, program="fsync", filesystem="xfs"),
        "fsync-btrfs": Wait("fsync", exact=False, paced=False, program="fsync", filesystem="btrfs"),
        "swap": Wait("swap", exact=False, paced=False, needs=_little_memory),
        "rcu": Wait("rcu", exact=False, paced=False),
        "run-queue": Wait("run-queue", exact=False, paced=False),
        "throttle": Wait("throttle", exact=False, paced=False, needs=_quota),
    }
)
