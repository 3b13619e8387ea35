"""Find where cgroups are mounted, which cgroup a process is in, its CPU quota, a memory limit, and what has frozen it.

A process is in one cgroup of each hierarchy, and /proc/PID/cgroup has a line for each: `0::PATH` for version 2, and
`4:memory:PATH` for version 1. Machines have one of three layouts, which systemd calls unified (version 2 only), legacy
(version 1) and hybrid: version 1 has the controllers, and there is also a version 2 hierarchy that many programs do
not use. On a hybrid machine the version 2 line is `/` for whatever a program other than systemd has put into a cgroup,
or `/system.slice/containerd.service` for Docker's containers. So on a hybrid machine the version 1 lines take
precedence.

Paths are relative to our own cgroup namespace: what is outside of it begins with `/..`, both in /proc/PID/cgroup and
in the roots in /proc/self/mountinfo (cgroup_namespaces(7)). A cgroup's name may contain any byte except `/` and
newline, so colons and carriage returns are possible. (Until b7e24eb1caa5, 5.13, a rename could put a newline into a
name: what follows it is not parsed as a path, and not taken for the line of version 2, because the last one is used.)
"""

import os
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from offtop.kernel.procfs.direct_reads import read_content

_PREFERRED = ("name=systemd", "cpu", "memory", "pids")
"""Hierarchies of version 1, those first whose path is most informative about what a process belongs to."""
_CONTROLLERS = frozenset({"cpu", "memory", "pids"})
"""Version 1 controllers that mark a machine as hybrid or legacy: limits are set in their hierarchies.

Others, such as net_cls, stay in version 1 on unified machines, too.
"""
_OCTAL = re.compile(rb"\\([0-3][0-7]{2})")


class Mount(NamedTuple):
    """A mounted cgroup hierarchy, or a part of one."""

    point: str
    """Mount point."""
    root: str
    """The cgroup that is mounted there: `/`, or in a container its own."""
    controllers: frozenset[str]
    """Super block options of version 1: controllers, the hierarchy's name as `name=systemd`, and other options."""
    is_v2: bool


_REACHED = 0.9
"""Share of a memory limit from which on it may be reached: a moment ago, the kernel freed memory."""


class MemoryLimit(NamedTuple):
    """A limit of a cgroup's memory."""

    file: Path
    """The file that sets it."""
    bytes: int


class Quota(NamedTuple):
    """The CPU quota of a cgroup, and its throttling counters since the cgroup was created."""

    path: str
    """The cgroup that has the quota: the process's own, or the nearest ancestor, whose other children share it."""
    quota_ns: int
    """CPU time that all its threads together may use in each period."""
    period_ns: int
    periods: int
    """Number of periods in which one of its threads was runnable."""
    throttled: int
    """Number of periods in which the quota was used up."""
    throttled_ns: int
    """Time throttled, summed over CPUs: up to 4 s per second on four CPUs.

    The kernel adds a throttled interval when it ends.
    """

    @property
    def cpus(self) -> float:
        """Number of CPUs that the quota allows to keep busy."""
        return self.quota_ns / self.period_ns


@lru_cache(maxsize=1)
def mounted() -> tuple[Mount, ...]:
    """Cgroup mounts in our mount namespace.

    Read once: machines do not change their layout while they run.
    """
    return mounts_of(read_content("/proc/self/mountinfo"))


def mounts_of(mountinfo: bytes) -> tuple[Mount, ...]:
    """Parse the cgroup mounts out of /proc/PID/mountinfo (proc_pid_mountinfo(5))."""
    found: list[Mount] = []
    for line in mountinfo.split(b"\n"):
        head, dash, tail = line.partition(b" - ")
        fields, fs_fields = head.split(b" "), tail.split(b" ")
        if dash and len(fields) > 4 and fs_fields[0] in (b"cgroup", b"cgroup2"):
            is_v1 = fs_fields[0] == b"cgroup"
            options = frozenset(os.fsdecode(fs_fields[-1]).split(",")) if is_v1 else frozenset[str]()
            found.append(Mount(_unescaped(fields[4]), _unescaped(fields[3]), options, not is_v1))
    return tuple(found)


def content_of(pid: int) -> bytes:
    """Read /proc/PID/cgroup; empty if the process has exited, or if we may not read it.

    In version 1 the kernel reports `/` for a thread that has exited. So if only the main thread of the process has
    exited, the file of another thread is read.
    """
    content = read_content(f"/proc/{pid}/cgroup")
    v1 = [path for hierarchies, path in lines_of(content) if hierarchies]
    threads = Path(f"/proc/{pid}/task")
    if not v1 or not all(map(_is_root, v1)) or not _has_exited(threads / str(pid)):
        return content
    try:
        living = [thread for thread in threads.iterdir() if not _has_exited(thread)]
    except OSError:
        return content
    return next(filter(None, (read_content(thread / "cgroup") for thread in living)), content)


def cgroup_of(content: bytes, mounts: Sequence[Mount] = ()) -> str:
    """The cgroup path in the content of /proc/PID/cgroup; empty if there is no content.

    This is the version 2 path if there is one, or the version 1 path if `mounts` shows that the controllers are there.
    `/` is only returned if no line has a longer path. The path of a removed cgroup ends in ` (deleted)`, and in
    version 1 every process that has exited is in `/`.
    """
    lines = lines_of(content)
    v2 = [path for hierarchies, path in lines if not hierarchies][-1:]
    v1 = [path for _, path in sorted((line for line in lines if line[0]), key=_preference)]
    hybrid = any(not mount.is_v2 and mount.controllers & _CONTROLLERS for mount in mounts)
    not_root = [path for path in ([*v1, *v2] if hybrid else [*v2, *v1]) if not _is_root(path)]
    return [*not_root, *v2, *(path for _, path in lines), ""][0]


def quota_of(content: bytes, mounts: Sequence[Mount]) -> Quota | None:
    """CPU quota that applies to a process, from the content of its /proc/PID/cgroup."""
    has_v1 = any("cpu" in mount.controllers for mount in mounts)
    paths = [path for hierarchies, path in lines_of(content) if ("cpu" in hierarchies if has_v1 else not hierarchies)]
    return quota_at(paths[-1], mounts) if paths else None


def quota_at(path: str, mounts: Sequence[Mount]) -> Quota | None:
    """CPU quota of `path`, which may have been removed, or of its nearest ancestor with one.

    `path` is in the hierarchy that has the CPU controller. Farther up there may be another quota, even a tighter one.

    Returns None if no cgroup that we can see up to the root has a quota, or if the hierarchy is not mounted here, or
    the files are not readable. Never raises.
    """
    of_cpu = [mount for mount in mounts if "cpu" in mount.controllers] or [mount for mount in mounts if mount.is_v2]
    for mount in of_cpu:
        for directory, own_path in _upwards(path, mount):
            if found := (_quota_v2 if mount.is_v2 else _quota_v1)(directory):
                return found._replace(path=own_path)
    return None


def frozen_by(content: bytes, mounts: Sequence[Mount]) -> Path | None:
    """File that freezes a process, from the content of its /proc/PID/cgroup; None if no cgroup that we can see does.

    It is of the process's own cgroup, or of its nearest ancestor that was frozen itself: `freezer.state` of version 1
    (Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst), or `cgroup.freeze` of version 2.
    """
    for is_v2, directory in _directories(content, mounts, "freezer"):
        asked, file = ("cgroup.freeze", "cgroup.freeze") if is_v2 else ("freezer.self_freezing", "freezer.state")
        if read_content(directory / asked).strip() == b"1":
            return directory / file
    return None


def reached_memory_limit(content: bytes, mounts: Sequence[Mount]) -> MemoryLimit | None:
    """Memory limit that a process has reached, from the content of its /proc/PID/cgroup; None if it has reached none.

    It is the one of its own cgroup and the ancestors of which most is used, because page cache fills any cgroup to
    nearly its limit: `memory.limit_in_bytes` of version 1 (Documentation/admin-guide/cgroup-v1/memory.rst), or
    `memory.high` or `memory.max` of version 2.
    """
    most, found = 0.0, None
    for is_v2, directory in _directories(content, mounts, "memory"):
        used = _number_in(directory / ("memory.current" if is_v2 else "memory.usage_in_bytes"))
        for name in ("memory.high", "memory.max") if is_v2 else ("memory.limit_in_bytes",):
            limit = _number_in(directory / name)
            share = used / limit if limit else 0.0
            if share >= _REACHED and share > most:
                most, found = share, MemoryLimit(directory / name, limit)
    return found


def _directories(content: bytes, mounts: Sequence[Mount], controller: str) -> Iterator[tuple[bool, Path]]:
    """Yield the directories of a process's cgroup and its ancestors, nearest first, and whether they are of version 2.

    They are in the hierarchy of version 2, and in that of version 1 that has the controller.
    """
    for hierarchies, path in lines_of(content):
        for mount in mounts:
            if (mount.is_v2 and not hierarchies) or controller in hierarchies & mount.controllers:
                yield from ((mount.is_v2, directory) for directory, _ in _upwards(path, mount))


def _number_in(file: Path) -> int:
    """Read a file with one number; 0 if it is not there, or has a word such as `max`."""
    text = read_content(file).strip()
    return int(text) if text.isdigit() else 0


def _upwards(path: str, mount: Mount) -> Iterator[tuple[Path, str]]:
    """Directory and path of a cgroup, and of each of its ancestors in that mount; none if it is not there."""
    names, root = ([name for name in one.split("/") if name] for one in (path, mount.root))
    below = names[len(root) :]
    if names[: len(root)] != root or {".", ".."} & {*below}:
        return
    for depth in range(len(below), -1, -1):
        yield Path(mount.point, *below[:depth]), "/" + "/".join(names[: len(root) + depth])


def _has_exited(thread: Path) -> bool:
    # The name may contain brackets: the state follows the last one (fs/proc/array.c).
    return read_content(thread / "stat").rpartition(b")")[2].split()[:1] in ([b"Z"], [b"X"], [])


@lru_cache(maxsize=64)
def lines_of(content: bytes) -> tuple[tuple[frozenset[str], str], ...]:
    """Parse /proc/PID/cgroup into the controllers and name of each hierarchy, and its path.

    Version 2 has no controllers and no name. Cached, because the content is the same for many processes.
    """
    lines = [line.split(b":", 2) for line in content.split(b"\n")]
    return tuple(
        (frozenset(os.fsdecode(line[1]).split(",")) - {""}, os.fsdecode(line[2])) for line in lines if len(line) == 3
    )


def _preference(line: tuple[frozenset[str], str]) -> tuple[int, int]:
    ranks = [rank for rank, hierarchy in enumerate(_PREFERRED) if hierarchy in line[0]]
    return (ranks[0], 0) if ranks else (len(_PREFERRED), -len(line[1]))


def _is_root(path: str) -> bool:
    """Whether it is our namespace's root, or is outside of it without a name for us."""
    return {*path.split("/")} <= {"", ".."}


def _quota_v2(directory: Path) -> Quota | None:
    """Read cpu.max: `50000 100000` in µs, or `max 100000`.

    See Documentation/admin-guide/cgroup-v2.rst.
    """
    match read_content(directory / "cpu.max").split():
        case [quota_us, period_us] if quota_us != b"max":
            return _quota(quota_us, period_us, directory, b"throttled_usec", 1000)
        case _:
            return None


def _quota_v1(directory: Path) -> Quota | None:
    """Read cpu.cfs_quota_us, -1 without a quota (Documentation/scheduler/sched-bwc.rst)."""
    quota, period = (read_content(directory / f"cpu.cfs_{name}_us").split() for name in ("quota", "period"))
    match [*quota, *period]:
        case [quota_us, period_us] if quota_us != b"-1":
            return _quota(quota_us, period_us, directory, b"throttled_time", 1)
        case _:
            return None


def _quota(quota_us: bytes, period_us: bytes, directory: Path, time_key: bytes, unit_ns: int) -> Quota | None:
    """Read cpu.stat. The caller fills in the path.

    `time_key`: key of the throttled time in cpu.stat, which is in units of `unit_ns`.
    """
    words = read_content(directory / "cpu.stat").split()
    try:
        counters = {word: int(value) for word, value in zip(words[::2], words[1::2], strict=True)}
        found = Quota(
            path="",
            quota_ns=int(quota_us) * 1000,
            period_ns=int(period_us) * 1000,
            periods=counters[b"nr_periods"],
            throttled=counters[b"nr_throttled"],
            throttled_ns=counters[time_key] * unit_ns,
        )
    except (KeyError, ValueError):  # the cgroup was removed while it was read
        return None
    return found if found.period_ns > 0 else None


def _unescaped(field: bytes) -> str:
    r"""Decode octal escapes such as `\040`, which stands for a blank in mountinfo."""
    return os.fsdecode(_OCTAL.sub(lambda octal: bytes([int(octal[1], 8)]), field))
