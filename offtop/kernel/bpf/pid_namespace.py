"""Find the ids under which processes are shown, and processes of containers by their ids there.

Process ids are those of offtop's pid namespace.

On the host they are the kernel's own. In a container, the BPF programs (bpf/namespace.h) report each thread with the
ids that it has in that namespace, and count all threads without ids there in a single process, `(outside)`. So the ids
from the kernel, from /proc and from the user are the same, and nothing in user space has to translate them. The
kernel's own ids are only used for threads outside, as thread ids in that one process; in our /proc they do not exist,
or belong to other threads.
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
from offtop.kernel.bpf import probes
from offtop.kernel.bpf.libbpf import KernelTypes
from offtop.kernel.procfs.cgroups import cgroup_of, content_of, mounted
from offtop.kernel.procfs.direct_reads import every_pid
from offtop.kernel.procfs.threads import status_of
from offtop.model.values.container import container, label
from offtop.model.values.snapshot import OUTSIDE
from offtop.printable import printable

_INITIAL_NAMESPACE = 0xEFFFFFFC
"""Inode of the initial pid namespace (PROC_PID_INIT_INO, include/linux/proc_ns.h)."""
REMEDY = "Give offtop a /proc of its own: unshare --mount-proc offtop"
_NS_GET_PARENT = 0xB702
FUNCTIONS = {
    "TASK_FROM_PID": "bpf_task_from_pid",
    "TASK_RELEASE": "bpf_task_release",
    "TASK_ITER_NEW": "bpf_iter_task_new",
    "TASK_ITER_NEXT": "bpf_iter_task_next",
    "TASK_ITER_DESTROY": "bpf_iter_task_destroy",
}
"""Name in the BPF programs → kernel function (kfunc) by which they list threads outside."""
_ID_PREFIX = re.compile(r"[0-9a-f-]{4,}")
_MOST_LISTED = 8


@cache
def own_inode() -> int:
    """Inode of offtop's pid namespace; 0 for the initial one.

    Raises KernelError if /proc does not show the processes of that namespace.
    """
    try:
        inode, ids = Path("/proc/self/ns/pid").stat().st_ino, _ids("self")
    except OSError:
        inode, ids = 0, ()
    if ids != (os.getpid(),):
        raise KernelError(
            "/proc shows the processes of another pid namespace than offtop's own, so names would belong to the wrong "
            f"processes. {REMEDY}"
        )
    return 0 if inode == _INITIAL_NAMESPACE else inode


def defines(types: KernelTypes) -> Mapping[str, int]:
    """Macro definitions for bpf/namespace.h.

    Empty on the host; without FUNCTIONS if the kernel does not have all of them. Raises KernelError.
    """
    inode = own_inode()
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
            "This container has its own pid namespace, and this kernel's types for it are unknown to offtop. "
            "Run offtop on the host, or in a container with --pid=host --privileged"
        )
    known["NAMESPACE_INUM"] += inum
    found = {name: types.function(function) for name, function in FUNCTIONS.items()}
    functions = {name: number for name, number in found.items() if number is not None}
    known |= functions if len(functions) == len(FUNCTIONS) and probes.has_map_iterators(types) else {}
    return {**known, "UPID_SIZE": upid_bytes, "NAMESPACE": inode, "OUTSIDE": OUTSIDE}


def describe_ids(defines: Mapping[str, int]) -> str:
    """Describe in a few words which process ids are shown.

    `defines`: as returned by `defines`.
    """
    if not defines:
        return "the host's"
    if not defines.keys() >= FUNCTIONS.keys():
        return (
            "this container's; threads outside of it are not counted, which needs Linux 6.7 and its iterators over maps"
        )
    return "this container's; threads outside of it are (outside), by the host's ids"


def exists(one: int) -> bool:
    """Whether there is a process or thread with this id."""
    return Path(f"/proc/{one}").exists() if one != OUTSIDE else own_inode() != 0


def pid_in(name: str, pid: int) -> int:
    """Find the process with the id `pid` in the container `name`, and return its id here.

    `name` is the start of the container's id, its name according to offtop.model.values.container, or the pid of a
    process in it. Raises UsageError.
    """
    asked = f"-p {printable(name)}:{pid}"
    below = [*_processes_below()]
    inside = _containers_named(name, below)
    if len(inside) > 1:
        one_each = sorted(next(one for one in below if one.namespaces == namespaces) for namespaces in inside)
        choices = [f"{one.pid}:{pid} ({one.shown_name})" for one in one_each]
        raise UsageError(
            f"{asked}: that is more than one container. Name it by the pid of a process in it: -p {_shortened(choices)}"
        )
    if not inside:
        raise _no_container_error(asked, name, pid, below)
    namespaces = inside.pop()
    depth = len(namespaces)
    ids = {one.ids[depth]: one.pid for one in below if one.namespaces[:depth] == namespaces}
    if pid not in ids:
        raise UsageError(
            f"{asked}: no process {pid} in that container. Use one of: {_shortened(map(str, sorted(ids)))}"
        )
    return ids[pid]


class _Process(NamedTuple):
    """A process in a pid namespace below ours."""

    pid: int
    ids: tuple[int, ...]
    """Its pid in our namespace, in the next one below, and so on."""
    namespaces: tuple[int, ...]
    """Inodes of its namespaces below ours, outermost first."""

    @property
    def cgroup(self) -> str:
        return _cgroup(self.pid)

    @property
    def shown_name(self) -> str:
        return printable(label(self.cgroup)) or "no name"


def _processes_below() -> Iterator[_Process]:
    """Yield all processes that are in a namespace below ours. Raises PrivilegeError."""
    for pid in sorted(every_pid()):
        with suppress(OSError):  # it has exited
            ids = _ids(str(pid))
            if len(ids) > 1:
                yield _Process(pid, ids, _namespaces(pid, len(ids) - 1))


def _containers_named(name: str, below: Collection[_Process]) -> set[tuple[int, ...]]:
    """Find the containers with this name, and that of the process with this pid.

    Returns the `namespaces` of their outermost processes.
    """
    by_name = {one.namespaces for one in below if _is_called(_cgroup(one.pid), name)}
    outermost = {one for one in by_name if not any(one[:n] in by_name for n in range(1, len(one)))}
    return outermost | {one.namespaces for one in below if str(one.pid) == name}


def _no_container_error(asked: str, name: str, pid: int, below: Collection[_Process]) -> UsageError:
    here = {one.shown_name for one in below if one.namespaces[1:] == ()}
    known = f" Containers here: {_shortened(sorted(here))}" if here else " No container here has its own pid namespace"
    if any(str(one) == name or _is_called(_cgroup(one), name) for one in every_pid()):
        return UsageError(f"{asked}: it has no pid namespace of its own. Use the pid seen here: -p {pid}")
    return UsageError(
        f"{asked}: no such container. Name it by its id or name, or by the pid of a process in it.{known}"
    )


def _is_called(cgroup: str, name: str) -> bool:
    """Whether the container that this cgroup belongs to has this name, or an id that starts with it."""
    kind, short, full = container(cgroup)
    if name in (short, full, label(cgroup)):
        return bool(kind)
    has_id = kind not in ("unit", "session", "nspawn", "lxc")
    return has_id and bool(_ID_PREFIX.fullmatch(name)) and any(part.startswith(name) for part in full.split("/"))


def _shortened(words: Iterable[str]) -> str:
    listed = [*words]
    return ", ".join(listed[:_MOST_LISTED]) + (", …" if len(listed) > _MOST_LISTED else "")


def _cgroup(pid: int) -> str:
    return cgroup_of(content_of(pid), mounted())


def _ids(pid: str) -> tuple[int, ...]:
    """Ids of a process in the namespace of /proc, and in its namespaces below that."""
    return tuple(map(int, status_of(pid).get("NSpid", "").split()))


def _namespaces(pid: int, depth: int) -> tuple[int, ...]:
    found: list[int] = []
    try:
        fd = os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError as error:
        raise PrivilegeError("offtop needs root to tell one container from another. Try: sudo offtop") from error
    try:
        for _ in range(depth):
            found.insert(0, os.fstat(fd).st_ino)
            if len(found) < depth:
                parent = fcntl.ioctl(fd, _NS_GET_PARENT)
                os.close(fd)
                fd = parent
    finally:
        os.close(fd)
    return tuple(found)
