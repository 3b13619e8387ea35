"""Which cgroup a person means, and how the kernel side recognises those in it.

They may give its path below the root of its hierarchy, its directory, or what `container` calls it: an id, or the
beginning of one, or a unit's name. It is looked for among the cgroups that there are.

A cgroup is known by its hierarchy, by how far it is below the root there, and by its id in kernfs, which is the inode
number of its directory (since 67c0496e87d1, 5.5, on 64 bits). A path may be in several hierarchies: that one counts in
which most processes are there, and of equals version 2, where the kernel side has it cheapest. Of a hierarchy that
has no controller, as systemd's own, nothing leads from a task to its cgroup there but a list, which takes too long.
"""

import difflib
import os
import re
import shutil
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from offtop.errors import UsageError
from offtop.kernel.procfs.cgroups import Mount, content_of, lines_of, mounted
from offtop.model.values.container import NOTHING, container, label, place
from offtop.printable import printable

_CONTROLLERS = (
    *("cpu", "memory", "pids", "cpuacct", "cpuset", "blkio", "devices", "freezer"),
    *("net_cls", "perf_event", "net_prio", "hugetlb", "rdma", "misc"),
)
"""Of version 1, those first whose path says most."""
_WATCHER = re.compile("(?:^|/)(?:conmon|monitor) ")
"""In the names of cgroups that hold who watches a container."""
_MOST_NAMED = 4
_LONGEST_SHOWN = 100
_MOST_OF = 0.9
"""As good as all: processes come and go while they are counted."""
_KTHREADD = 2
"""Its pid: it is in the root of every hierarchy, and can't be moved."""
_FIRST_NAMESPACE = 0xEFFFFFFB
"""Inode of the machine's own of cgroups (PROC_CGROUP_INIT_INO, include/linux/proc_ns.h)."""


class Cgroup(NamedTuple):
    path: str
    """What finds it again: below the root of the hierarchy, or its directory where that would find another one."""
    directory: Path
    hierarchy: str
    """A controller of version 1; empty: version 2."""
    level: int
    """How far below the root."""
    id: int

    def now(self) -> "Cgroup":
        """The one that has the name now: a service that begins again gets another. The same if there is none."""
        try:
            return self._replace(id=self.directory.stat().st_ino)
        except OSError:
            return self

    @contextmanager
    def opened(self) -> Generator[int]:
        """A descriptor. Raises OSError."""
        fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)


def find(asked: str, mounts: Sequence[Mount] | None = None) -> Cgroup:
    """The cgroup that somebody means. Raises UsageError, which names those that they may have meant."""
    mounts = mounted() if mounts is None else mounts
    if not asked:
        raise UsageError("--cgroup: an empty text is the name of no cgroup. For all of them leave --cgroup away")
    text = asked.rstrip("/") or "/"
    found = _at_directory(text, mounts) or _at_path(text, mounts)
    if found is None and "/" in text and not text.startswith("/"):
        found = _at_path(f"/{text}", mounts)
    if found is None:
        path = _named(asked, mounts)
        found = _at_path(path, mounts)
        if found is None:
            raise _gone(path)
    return found


def _at_directory(text: str, mounts: Sequence[Mount]) -> Cgroup | None:
    if not text.startswith("/") or not _is_directory(Path(text)):
        return None
    real = Path(text).resolve()
    for mount in sorted(mounts, key=lambda mount: -len(mount.point)):
        point = Path(mount.point).resolve()
        if real.is_relative_to(point):
            path = "/" + "/".join([*_names(mount.root), *real.relative_to(point).parts])
            usual = _at_path(path, mounts)
            hierarchy = _hierarchy(mount)
            if hierarchy is None or (usual and usual.hierarchy == hierarchy):
                return usual
            return _cgroup(path, real, hierarchy)._replace(path=str(real))
    return None


def _at_path(path: str, mounts: Sequence[Mount]) -> Cgroup | None:
    """Raises UsageError where it is only in a hierarchy that we cannot ask about."""
    there = [(_hierarchy(mount), directory) for mount in _in_order(mounts) if (directory := _directory(mount, path))]
    usable = [(hierarchy, directory) for hierarchy, directory in there if hierarchy is not None]
    if there and not usable:
        raise UsageError(
            f"--cgroup: {printable(path)} is only in a hierarchy without a controller, where the kernel side cannot "
            "look a thread up. Take its processes, with -p, or show them alone, with --filter cgroup=…"
        )
    if not usable:
        return None
    filled = [_processes(directory) if len(usable) > 1 else 0 for _, directory in usable]
    chosen = next(number for number, count in enumerate(filled) if count >= _MOST_OF * max(filled))
    hierarchy, directory = usable[chosen]
    return _cgroup(path, directory, hierarchy)


def _cgroup(path: str, directory: Path, hierarchy: str) -> Cgroup:
    """Raises UsageError where one cannot tell how deep it is, and where it has just been removed."""
    names = _names(path)
    level = len(names) - 2 * names.count("..") + _depth_of_root(hierarchy)
    try:
        return Cgroup(path, directory, hierarchy, level, directory.stat().st_ino)
    except OSError:
        raise _gone(str(directory)) from None


def _gone(what: str) -> UsageError:
    return UsageError(f"--cgroup: {printable(what)} has just been removed. Name another one")


def _depth_of_root(hierarchy: str) -> int:
    """How far what we see as the root of it is below the real one: in a namespace of cgroups the way from there to a
    thread of the real one begins with as many `..`. Raises UsageError."""
    with suppress(OSError):
        if Path("/proc/self/ns/cgroup").stat().st_ino == _FIRST_NAMESPACE:
            return 0
        if Path(f"/proc/{_KTHREADD}/comm").read_bytes() == b"kthreadd\n":
            for controllers, path in lines_of(content_of(_KTHREADD)):
                if hierarchy in controllers or not (hierarchy or controllers):
                    return path.split("/").count("..")
    raise UsageError(
        "--cgroup: in a container with process ids of its own one cannot tell where in the machine's hierarchy a "
        "cgroup is. Start the container with --pid=host, or take -p"
    )


def _in_order(mounts: Sequence[Mount]) -> list[Mount]:
    """Version 2 first, then those first whose word is believed first."""
    order = ("", *_CONTROLLERS, None)
    return sorted(mounts, key=lambda mount: order.index(_hierarchy(mount)))


def _hierarchy(mount: Mount) -> str | None:
    """None for one that has no controller."""
    return "" if mount.is_v2 else next((one for one in _CONTROLLERS if one in mount.controllers), None)


def _directory(mount: Mount, path: str) -> Path | None:
    """Where that cgroup is; None where it is not."""
    names, root = _names(path), _names(mount.root)
    below = names[len(root) :]
    if not path.startswith("/") or names[: len(root)] != root or {".", ".."} & {*below}:
        return None
    directory = Path(mount.point, *below)
    return directory if _is_directory(directory) else None


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name that is too long
        return False


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name]


def _processes(directory: Path) -> int:
    """How many are in it, or below it."""
    count = 0
    for inside, _, _ in os.walk(directory):
        with suppress(OSError):  # it went, or is one of threads
            count += Path(inside, "cgroup.procs").read_bytes().count(b"\n")
    return count


def _named(asked: str, mounts: Sequence[Mount]) -> str:
    """The path of the cgroup that is called so. Raises UsageError."""
    every = sorted({path for mount in mounts if _hierarchy(mount) is not None for path in _paths(mount)})
    found = [path for path in every if _is_called(asked, path)]
    outermost = [path for path in found if not any(path.startswith(f"{other}/") for other in found)]
    if len(outermost) == 1:
        return outermost[0]
    shown = _short(asked)
    if outermost:
        those = ", ".join(map(_short, outermost[:_MOST_NAMED]))
        more = f" and {len(outermost) - _MOST_NAMED} more" if len(outermost) > _MOST_NAMED else ""
        raise UsageError(f"--cgroup: '{shown}' may be {len(outermost)} cgroups: {those}{more}. Give the path of one")
    calls = {call: path for path in every if path != "/" for call in _calls(path)}
    near = {calls[call]: None for call in difflib.get_close_matches(asked, calls, _MOST_NAMED, 0.5)}
    hint = f"Is it {' or '.join(map(_short, near))}? " if near else ""
    how = "systemd-cgls" if shutil.which("systemd-cgls") else "find /sys/fs/cgroup -type d"
    raise UsageError(f"--cgroup: there is no cgroup '{shown}' here. {hint}List them with: {how}")


def _paths(mount: Mount) -> Iterator[str]:
    root = "/" + "/".join(_names(mount.root))
    for directory, _, _ in os.walk(mount.point):
        below = directory[len(mount.point) :].strip("/")
        yield f"{root.rstrip('/')}/{below}".rstrip("/") or "/"


def _is_called(asked: str, path: str) -> bool:
    """Whether that is what people call it: its directory's own name, or that of the container or unit."""
    if asked == path.rpartition("/")[2]:
        return True
    what = container(path)
    if what == NOTHING or place(path) != path:
        return False
    if asked in (what.name, label(path), what.full):
        return True
    if what.kind in ("unit", "session"):
        return what.full in (f"{asked}.service", f"{asked}.scope")
    ids = what.full.split("/")
    return not _WATCHER.search(what.name) and any(one.startswith(asked) for one in (*ids, what.name))


def _calls(path: str) -> tuple[str, ...]:
    own = path.rpartition("/")[2]
    return path, label(path), own, own.rpartition(".")[0] or own


def _short(text: str) -> str:
    shown = printable(text)
    return shown if len(shown) <= _LONGEST_SHOWN else f"{shown[: _LONGEST_SHOWN - 1]}…"
