"""Where control groups are mounted, which one a process is in, and how much CPU time that one may use.

A process is in one cgroup of each hierarchy, and /proc/PID/cgroup has a line for each: `0::PATH` of version 2, and
`4:memory:PATH` of version 1. Machines come in three layouts, which systemd calls unified (version 2 alone), legacy
(version 1) and hybrid: version 1 has the controllers, and beside it there is a version 2 that many know nothing of.
There its line says `/` of whatever another than systemd has put into a cgroup, or, of Docker's containers,
`/system.slice/containerd.service`. So on a hybrid machine a line of version 1 is believed first.

Paths are as seen from our own cgroup namespace: what is outside of it begins with `/..`, both in /proc/PID/cgroup and
in the roots of /proc/self/mountinfo (cgroup_namespaces(7)). A cgroup's name may hold any byte but `/` and newlines;
colons and carriage returns are among them. (Until b7e24eb1caa5, 5.13, one could come by a newline by being renamed:
what follows it is then no path, and no line of version 2, whose own is the last.)
"""

import os
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

_PREFERRED = ("name=systemd", "cpu", "memory", "pids")
"""Hierarchies of version 1, those first whose path says most about what a process belongs to."""
_CONTROLLERS = frozenset({"cpu", "memory", "pids"})
"""Where these are, there people's limits are. Others, such as net_cls, stay in version 1 on unified machines, too."""
_OCTAL = re.compile(rb"\\([0-3][0-7]{2})")


class Mount(NamedTuple):
    """A place where one can look into a hierarchy."""

    point: str
    """The directory."""
    root: str
    """The cgroup that one finds there: `/`, or in a container its own."""
    controllers: frozenset[str]
    """Of version 1, with the name of a hierarchy that has one, as `name=systemd`; other options are among them."""
    is_v2: bool


class Quota(NamedTuple):
    """How much CPU time a cgroup may use, and what became of it since the cgroup was made."""

    path: str
    """The cgroup that has it: the process's, or the nearest above, which its other children share."""
    quota_ns: int
    """CPU time, of all its threads together, in each period."""
    period_ns: int
    periods: int
    """In which somebody in it wanted to run."""
    throttled: int
    """Of the periods: those in which the quota did not suffice."""
    throttled_ns: int
    """How long its threads were put aside, added up over CPUs: on four of them up to 4 s a second. The kernel adds
    a pause when it is over."""

    @property
    def cpus(self) -> float:
        """As many as it may keep busy."""
        return self.quota_ns / self.period_ns


@lru_cache(maxsize=1)
def mounted() -> tuple[Mount, ...]:
    """What is mounted for our eyes. Read once: machines don't change their layout while they run."""
    return mounts_of(_content("/proc/self/mountinfo"))


def mounts_of(mountinfo: bytes) -> tuple[Mount, ...]:
    """Those of cgroups among all that /proc/PID/mountinfo tells (proc_pid_mountinfo(5))."""
    found: list[Mount] = []
    for line in mountinfo.split(b"\n"):
        head, dash, tail = line.partition(b" - ")
        fields, of = head.split(b" "), tail.split(b" ")
        if dash and len(fields) > 4 and of[0] in (b"cgroup", b"cgroup2"):
            options = frozenset(os.fsdecode(of[-1]).split(",")) if of[0] == b"cgroup" else frozenset[str]()
            found.append(Mount(_plain(fields[4]), _plain(fields[3]), options, of[0] == b"cgroup2"))
    return tuple(found)


def content_of(pid: int) -> bytes:
    """What /proc/PID/cgroup tells, of the process; nothing where it has ended, or where we may not know.

    Of version 1 the kernel says that a thread that has ended is in `/`. So of a process that goes on without its main
    thread it is one of the others that knows.
    """
    content = _content(f"/proc/{pid}/cgroup")
    v1 = [path for hierarchies, path in lines_of(content) if hierarchies]
    threads = Path(f"/proc/{pid}/task")
    if not v1 or not all(map(_is_root, v1)) or not _has_ended(threads / str(pid)):
        return content
    try:
        living = [thread for thread in threads.iterdir() if not _has_ended(thread)]
    except OSError:
        return content
    return next(filter(None, (_content(thread / "cgroup") for thread in living)), content)


def cgroup_of(content: bytes, mounts: Sequence[Mount] = ()) -> str:
    """The path that /proc/PID/cgroup tells: of version 2, if it tells one, and of version 1 where `mounts` say that
    the controllers are there. `/` is only taken where no line says more; a cgroup that is no more ends in
    ` (deleted)`, and of version 1 every process that has ended is in `/`. Empty for no content."""
    lines = lines_of(content)
    v2 = [path for hierarchies, path in lines if not hierarchies][-1:]
    v1 = [path for _, path in sorted((line for line in lines if line[0]), key=_preference)]
    hybrid = any(not mount.is_v2 and mount.controllers & _CONTROLLERS for mount in mounts)
    told = [path for path in ([*v1, *v2] if hybrid else [*v2, *v1]) if not _is_root(path)]
    return [*told, *v2, *(path for _, path in lines), ""][0]


def quota_of(content: bytes, mounts: Sequence[Mount]) -> Quota | None:
    """That of the process whose /proc/PID/cgroup is `content`."""
    has_v1 = any("cpu" in mount.controllers for mount in mounts)
    paths = [path for hierarchies, path in lines_of(content) if ("cpu" in hierarchies if has_v1 else not hierarchies)]
    return quota_at(paths[-1], mounts) if paths else None


def quota_at(path: str, mounts: Sequence[Mount]) -> Quota | None:
    """That of the nearest cgroup from `path` on upwards that has one, also where `path` itself is no more. `path` is
    of the hierarchy that has the CPU controller. Farther up there may be another one, even a tighter one.

    None: without a quota, as far up as we can see; not mounted where we could look; or not to be read. Never raises.
    """
    names = [name for name in path.split("/") if name]
    of_cpu = [mount for mount in mounts if "cpu" in mount.controllers] or [mount for mount in mounts if mount.is_v2]
    for mount in of_cpu:
        root = [name for name in mount.root.split("/") if name]
        below = names[len(root) :]
        if names[: len(root)] != root or {".", ".."} & {*below}:
            continue
        for depth in range(len(below), -1, -1):
            directory = Path(mount.point, *below[:depth])
            if found := (_quota_v2 if mount.is_v2 else _quota_v1)(directory):
                return found._replace(path="/" + "/".join(names[: len(root) + depth]))
    return None


def _has_ended(thread: Path) -> bool:
    """A name may have brackets: its state follows the last of them (fs/proc/array.c)."""
    return _content(thread / "stat").rpartition(b")")[2].split()[:1] in ([b"Z"], [b"X"], [])


@lru_cache(maxsize=64)
def lines_of(content: bytes) -> tuple[tuple[frozenset[str], str], ...]:
    """Of /proc/PID/cgroup: each hierarchy's controllers and name, none for version 2, and the path in it. Many
    processes say the same."""
    lines = [line.split(b":", 2) for line in content.split(b"\n")]
    return tuple(
        (frozenset(os.fsdecode(line[1]).split(",")) - {""}, os.fsdecode(line[2])) for line in lines if len(line) == 3
    )


def _preference(line: tuple[frozenset[str], str]) -> tuple[int, int]:
    ranks = [rank for rank, hierarchy in enumerate(_PREFERRED) if hierarchy in line[0]]
    return (ranks[0], 0) if ranks else (len(_PREFERRED), -len(line[1]))


def _is_root(path: str) -> bool:
    """Of our namespace, or outside of it with no name for us."""
    return {*path.split("/")} <= {"", ".."}


def _quota_v2(directory: Path) -> Quota | None:
    """`50000 100000` in us, or `max 100000` (Documentation/admin-guide/cgroup-v2.rst)."""
    match _content(directory / "cpu.max").split():
        case [quota_us, period_us] if quota_us != b"max":
            return _quota(quota_us, period_us, directory, b"throttled_usec", 1000)
        case _:
            return None


def _quota_v1(directory: Path) -> Quota | None:
    """-1 for none (Documentation/scheduler/sched-bwc.rst)."""
    match [*_content(directory / "cpu.cfs_quota_us").split(), *_content(directory / "cpu.cfs_period_us").split()]:
        case [quota_us, period_us] if quota_us != b"-1":
            return _quota(quota_us, period_us, directory, b"throttled_time", 1)
        case _:
            return None


def _quota(quota_us: bytes, period_us: bytes, directory: Path, time: bytes, time_ns: int) -> Quota | None:
    """Its path is left to the caller. `time`: the word before the time throttled, which counts in `time_ns`."""
    words = _content(directory / "cpu.stat").split()
    try:
        told = {word: int(value) for word, value in zip(words[::2], words[1::2], strict=True)}
        found = Quota(
            path="",
            quota_ns=int(quota_us) * 1000,
            period_ns=int(period_us) * 1000,
            periods=told[b"nr_periods"],
            throttled=told[b"nr_throttled"],
            throttled_ns=told[time] * time_ns,
        )
    except (KeyError, ValueError):  # it went while it was read
        return None
    return found if found.period_ns > 0 else None


def _content(path: str | Path) -> bytes:
    """Nothing where it is not there, may not be read, or cannot be a path."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return b""
    content = b""
    try:
        while part := os.read(fd, 1 << 16):
            content += part
    except OSError:
        pass  # it went while it was read
    finally:
        os.close(fd)
    return content


def _plain(field: bytes) -> str:
    r"""Without the `\040` that stands for a blank in mountinfo."""
    return os.fsdecode(_OCTAL.sub(lambda octal: bytes([int(octal[1], 8)]), field))
