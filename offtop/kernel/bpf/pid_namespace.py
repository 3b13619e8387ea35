"""Whose process ids are shown: those of the pid namespace that offtop runs in; and who is who in those below it.

On the machine itself they are the kernel's own. In a container, the kernel side (bpf/namespace.h) gives each thread
the ids that it has there, and counts all threads that have none there in one process, `(outside)`. So what comes from
the kernel, /proc and the person are the same ids, and nothing here has to translate. The kernel's own ids are only
told of threads outside, as thread ids in that one process; in our /proc those are nobody, or somebody else.
"""

import fcntl
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from offtop.errors import KernelError, PrivilegeError, UsageError
from offtop.kernel.bpf.libbpf import KernelTypes
from offtop.kernel.procfs.cgroups import cgroup_of, content_of, mounted
from offtop.kernel.procfs.threads import status_of
from offtop.model.values.container import container, label
from offtop.model.values.snapshot import OUTSIDE
from offtop.printable import printable

_MACHINE_S_OWN = 0xEFFFFFFC
"""Inode of the first pid namespace (PROC_PID_INIT_INO, include/linux/proc_ns.h)."""
REMEDY = "Give offtop a /proc of its own: unshare --mount-proc offtop"
_NS_GET_PARENT = 0xB702
FUNCTIONS = {
    "TASK_FROM_PID": "bpf_task_from_pid",
    "TASK_RELEASE": "bpf_task_release",
    "TASK_ITER_NEW": "bpf_iter_task_new",
    "TASK_ITER_NEXT": "bpf_iter_task_next",
    "TASK_ITER_DESTROY": "bpf_iter_task_destroy",
}
"""What the kernel side calls the kernel's own functions with which it reads threads outside."""
_BEGIN_OF_ID = re.compile(r"[0-9a-f-]{4,}")
_MOST_TOLD = 8


@cache
def own() -> int:
    """Inode of the pid namespace that offtop is in; 0 for the machine's own. Raises KernelError where /proc does not
    show the processes of it."""
    try:
        inode, ids = Path("/proc/self/ns/pid").stat().st_ino, _ids("self")
    except OSError:
        inode, ids = 0, ()
    if ids != (os.getpid(),):
        raise KernelError(
            "/proc shows the processes of another pid namespace than offtop's own, so that each name would be "
            f"another's. {REMEDY}"
        )
    return 0 if inode == _MACHINE_S_OWN else inode


def defines(types: KernelTypes) -> Mapping[str, int]:
    """What bpf/namespace.h needs: nothing on the machine itself; without FUNCTIONS where the kernel has them not all.
    Raises KernelError."""
    inode = own()
    if not inode:
        return {}
    members = {
        "TASK_THREAD_PID": ("task_struct", "thread_pid"),
        "TASK_LEADER": ("task_struct", "group_leader"),
        "PID_LEVEL": ("pid", "level"),
        "PID_NUMBERS": ("pid", "numbers"),
        "UPID_NR": ("upid", "nr"),
        "UPID_NS": ("upid", "ns"),
        "NAMESPACE_INUM": ("pid_namespace", "ns"),
    }
    offsets = {name: types.offset(*member) for name, member in members.items()}
    known = {name: offset for name, offset in offsets.items() if offset is not None}
    inum, upid_bytes = types.offset("ns_common", "inum"), types.size("upid")
    if len(known) < len(members) or inum is None or upid_bytes is None:
        raise KernelError(
            "This container has process ids of its own, and its kernel does not describe them as offtop knows them. "
            "Run offtop on the host, or in a container with --pid=host --privileged"
        )
    known["NAMESPACE_INUM"] += inum
    found = {name: types.function(function) for name, function in FUNCTIONS.items()}
    functions = {name: number for name, number in found.items() if number is not None}
    known |= functions if len(functions) == len(FUNCTIONS) else {}
    return {**known, "UPID_SIZE": upid_bytes, "NAMESPACE": inode, "OUTSIDE": OUTSIDE}


def told(defines: Mapping[str, int]) -> str:
    """Whose ids are shown, in a few words; `defines` as above."""
    if not defines:
        return "the machine's own"
    if not defines.keys() >= FUNCTIONS.keys():
        return "those of this container; threads outside of it are not counted, for which Linux 6.7 is needed"
    return "those of this container; threads outside of it are (outside), by the host's ids"


def is_there(one: int) -> bool:
    """Whether there is a process or thread of this id."""
    return Path(f"/proc/{one}").exists() if one != OUTSIDE else own() != 0


def pid_in(name: str, pid: int) -> int:
    """The id, here, of the process that has the id `pid` in the container `name`: the beginning of its id, the name
    that model.container gives it, or the pid of a process in it. Raises UsageError."""
    asked = f"-p {printable(name)}:{pid}"
    below = [*_below()]
    inside = _named(name, below)
    if len(inside) > 1:
        one_each = sorted(next(one for one in below if one.spaces == space) for space in inside)
        told = [f"{one.pid}:{pid} ({one.called})" for one in one_each]
        raise UsageError(
            f"{asked}: that is more than one container. Name it by the pid of a process in it: -p {_some(told)}"
        )
    if not inside:
        raise _unknown(asked, name, pid, below)
    space = inside.pop()
    ids = {one.ids[len(space)]: one.pid for one in below if one.spaces[: len(space)] == space}
    if pid not in ids:
        raise UsageError(f"{asked}: no process {pid} in that container. Take one of: {_some(map(str, sorted(ids)))}")
    return ids[pid]


class _Process(NamedTuple):
    """One in a namespace below ours."""

    pid: int
    ids: tuple[int, ...]
    """In our namespace, in the next one below that it is in, and so on."""
    spaces: tuple[int, ...]
    """Inodes of the namespaces below ours that it is in, the outermost first."""

    @property
    def cgroup(self) -> str:
        return _cgroup(self.pid)

    @property
    def called(self) -> str:
        return printable(label(self.cgroup)) or "no name"


def _below() -> Iterator[_Process]:
    """All processes that are in a namespace below ours. Raises PrivilegeError."""
    for pid in _pids():
        with suppress(OSError):  # it has ended
            ids = _ids(str(pid))
            if len(ids) > 1:
                yield _Process(pid, ids, _spaces(pid, len(ids) - 1))


def _named(name: str, below: Collection[_Process]) -> set[tuple[int, ...]]:
    """Those namespaces that are meant, without those inside of them."""
    by_name = {one.spaces for one in below if _is_called(_cgroup(one.pid), name)}
    outermost = {space for space in by_name if not any(space[:n] in by_name for n in range(1, len(space)))}
    return outermost | {one.spaces for one in below if str(one.pid) == name}


def _unknown(asked: str, name: str, pid: int, below: Collection[_Process]) -> UsageError:
    here = {one.called for one in below if one.spaces[1:] == ()}
    known = f" Those here: {_some(sorted(here))}" if here else " None has process ids of its own here"
    if any(str(one) == name or _is_called(_cgroup(one), name) for one in _pids()):
        return UsageError(f"{asked}: what is in there has no process ids of its own. Take the one seen here: -p {pid}")
    return UsageError(
        f"{asked}: no such container. Name it by its id or name, or by the pid of a process in it.{known}"
    )


def _is_called(cgroup: str, name: str) -> bool:
    kind, short, full = container(cgroup)
    if name in (short, full, label(cgroup)):
        return bool(kind)
    has_id = kind not in ("unit", "session", "nspawn", "lxc")
    return has_id and bool(_BEGIN_OF_ID.fullmatch(name)) and any(part.startswith(name) for part in full.split("/"))


def _some(words: Iterable[str]) -> str:
    listed = [*words]
    return ", ".join(listed[:_MOST_TOLD]) + (", …" if len(listed) > _MOST_TOLD else "")


def _pids() -> list[int]:
    return sorted(int(one.name) for one in Path("/proc").iterdir() if one.name.isdecimal())


def _cgroup(pid: int) -> str:
    return cgroup_of(content_of(pid), mounted())


def _ids(of: str) -> tuple[int, ...]:
    """Of a process, in the namespace of /proc and in those below it that the process is in."""
    return tuple(map(int, status_of(of).get("NSpid", "").split()))


def _spaces(pid: int, depth: int) -> tuple[int, ...]:
    found: list[int] = []
    try:
        fd = os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError as error:
        raise PrivilegeError("offtop needs root to tell one container from another. Try: sudo offtop") from error
    try:
        for _ in range(depth):
            found.insert(0, os.fstat(fd).st_ino)
            if len(found) < depth:
                above = fcntl.ioctl(fd, _NS_GET_PARENT)
                os.close(fd)
                fd = above
    finally:
        os.close(fd)
    return tuple(found)
