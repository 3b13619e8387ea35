"""Find the cgroup that --cgroup names, and the values by which the BPF programs recognise its threads.

The user may give its path below the root of its hierarchy, its directory, or the name that `container` gives it: an
id, the start of an id, or the name of a unit. The name is matched against the existing cgroups.

A cgroup is identified by its hierarchy, its depth below the root there, and its kernfs id, which is the inode number
of its directory (since 67c0496e87d1, 5.5, on 64 bits). The same path may exist in several hierarchies: the one with
the most processes at that path is used. If they are equal, version 2 is used, because the BPF programs find a thread's
cgroup there at the lowest cost. Hierarchies without a controller, such as systemd's own, are not supported: the only
way from a task to its cgroup there is a list, and walking it takes too long.
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
"""Version 1 controllers, those with the most informative paths first."""
_WATCHER = re.compile("(?:^|/)(?:conmon|monitor) ")
"""Matches the names of cgroups that hold a container's monitor process, not the container."""
_MOST_NAMED = 4
_LONGEST_SHOWN = 100
_NEARLY_MOST = 0.9
"""Share of the highest process count that counts as equal: processes start and exit while they are counted."""
_KTHREADD = 2
"""PID of kthreadd, which is in the root of every hierarchy and cannot be moved."""
_INITIAL_NAMESPACE = 0xEFFFFFFB
"""Inode of the initial cgroup namespace (PROC_CGROUP_INIT_INO, include/linux/proc_ns.h)."""


class Cgroup(NamedTuple):
    path: str
    """What to pass to `find` to find this cgroup again: its path below the root of the hierarchy.

    If that path would find another cgroup, it is the directory.
    """
    directory: Path
    hierarchy: str
    """A controller of version 1, or empty for version 2."""
    level: int
    """Depth below the root of the hierarchy."""
    id: int

    def current(self) -> "Cgroup":
        """Return the cgroup that has this name now, or this one if there is none.

        They differ if, for example, a service was restarted.
        """
        try:
            return self._replace(id=self.directory.stat().st_ino)
        except OSError:
            return self

    @contextmanager
    def opened(self) -> Generator[int]:
        """Open the directory and yield its file descriptor. Raises OSError."""
        fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)


def find(asked: str, mounts: Sequence[Mount] | None = None) -> Cgroup:
    """Find the cgroup that the user asked for.

    Raises UsageError, which names the cgroups that the user may have meant.
    """
    mounts = mounted() if mounts is None else mounts
    if not asked:
        raise UsageError("--cgroup: the name is empty. To trace all cgroups, leave out --cgroup")
    text = asked.rstrip("/") or "/"
    found = _at_directory(text, mounts) or _at_path(text, mounts)
    if found is None and "/" in text and not text.startswith("/"):
        found = _at_path(f"/{text}", mounts)
    if found is None:
        path = _path_by_name(asked, mounts)
        found = _at_path(path, mounts)
        if found is None:
            raise _removed_error(path)
    return found


def _at_directory(text: str, mounts: Sequence[Mount]) -> Cgroup | None:
    if not text.startswith("/") or not _is_directory(Path(text)):
        return None
    real = Path(text).resolve()
    for mount in sorted(mounts, key=lambda mount: -len(mount.point)):
        point = Path(mount.point).resolve()
        if real.is_relative_to(point):
            path = "/" + "/".join([*_path_parts(mount.root), *real.relative_to(point).parts])
            usual = _at_path(path, mounts)
            hierarchy = _hierarchy(mount)
            if hierarchy is None or (usual and usual.hierarchy == hierarchy):
                return usual
            return _cgroup(path, real, hierarchy)._replace(path=str(real))
    return None


def _at_path(path: str, mounts: Sequence[Mount]) -> Cgroup | None:
    """Find the cgroup at a path, or return None.

    Raises UsageError if the path exists only in a hierarchy without a controller.
    """
    candidates = [
        (_hierarchy(mount), directory) for mount in _sorted_mounts(mounts) if (directory := _directory(mount, path))
    ]
    usable = [(hierarchy, directory) for hierarchy, directory in candidates if hierarchy is not None]
    if candidates and not usable:
        raise UsageError(
            f"--cgroup: {printable(path)} is only in a hierarchy without a controller, where BPF programs cannot look "
            "up a thread's cgroup. Select its processes with -p, or show only them with --filter cgroup=…"
        )
    if not usable:
        return None
    counts = [_process_count(directory) if len(usable) > 1 else 0 for _, directory in usable]
    chosen = next(number for number, count in enumerate(counts) if count >= _NEARLY_MOST * max(counts))
    hierarchy, directory = usable[chosen]
    return _cgroup(path, directory, hierarchy)


def _cgroup(path: str, directory: Path, hierarchy: str) -> Cgroup:
    """Look up the level and id of a cgroup.

    Raises UsageError if the level is unknown, or if it has just been removed.
    """
    names = _path_parts(path)
    level = len(names) - 2 * names.count("..") + _depth_of_root(hierarchy)
    try:
        return Cgroup(path, directory, hierarchy, level, directory.stat().st_ino)
    except OSError:
        raise _removed_error(str(directory)) from None


def _removed_error(what: str) -> UsageError:
    return UsageError(f"--cgroup: {printable(what)} has just been removed. Name another cgroup")


def _depth_of_root(hierarchy: str) -> int:
    """Depth of the root that we see below the real root of the hierarchy.

    In a cgroup namespace, /proc/PID/cgroup of a thread in the real root starts with that many `..`.
    Raises UsageError if it is unknown.
    """
    with suppress(OSError):
        if Path("/proc/self/ns/cgroup").stat().st_ino == _INITIAL_NAMESPACE:
            return 0
        if Path(f"/proc/{_KTHREADD}/comm").read_bytes() == b"kthreadd\n":
            for controllers, path in lines_of(content_of(_KTHREADD)):
                if hierarchy in controllers or not (hierarchy or controllers):
                    return path.split("/").count("..")
    raise UsageError(
        "--cgroup: in a container with its own pid namespace, the depth of a cgroup in the host's hierarchy is "
        "unknown. Start the container with --pid=host, or use -p"
    )


def _sorted_mounts(mounts: Sequence[Mount]) -> list[Mount]:
    """Sort the mounts: version 2 first, then version 1 in the order of _CONTROLLERS."""
    order = ("", *_CONTROLLERS, None)
    return sorted(mounts, key=lambda mount: order.index(_hierarchy(mount)))


def _hierarchy(mount: Mount) -> str | None:
    """Controller that identifies the hierarchy; empty for version 2, None without controllers."""
    return "" if mount.is_v2 else next((one for one in _CONTROLLERS if one in mount.controllers), None)


def _directory(mount: Mount, path: str) -> Path | None:
    """Directory of the cgroup at `path` below this mount, or None if there is none."""
    names, root = _path_parts(path), _path_parts(mount.root)
    below = names[len(root) :]
    if not path.startswith("/") or names[: len(root)] != root or {".", ".."} & {*below}:
        return None
    directory = Path(mount.point, *below)
    return directory if _is_directory(directory) else None


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # the name is too long
        return False


def _path_parts(path: str) -> list[str]:
    return [name for name in path.split("/") if name]


def _process_count(directory: Path) -> int:
    """Number of processes in a cgroup and its descendants."""
    count = 0
    for subdirectory, _, _ in os.walk(directory):
        with suppress(OSError):  # it was removed, or is a threaded cgroup
            count += Path(subdirectory, "cgroup.procs").read_bytes().count(b"\n")
    return count


def _path_by_name(asked: str, mounts: Sequence[Mount]) -> str:
    """Path of the only cgroup with that name.

    Raises UsageError if there is none, or more than one.
    """
    all_paths = sorted({path for mount in mounts if _hierarchy(mount) is not None for path in _paths(mount)})
    found = [path for path in all_paths if _matches_name(asked, path)]
    outermost = [path for path in found if not any(path.startswith(f"{other}/") for other in found)]
    if len(outermost) == 1:
        return outermost[0]
    shown = _shortened(asked)
    if outermost:
        listed = ", ".join(map(_shortened, outermost[:_MOST_NAMED]))
        more = f" and {len(outermost) - _MOST_NAMED} more" if len(outermost) > _MOST_NAMED else ""
        raise UsageError(f"--cgroup: '{shown}' matches {len(outermost)} cgroups: {listed}{more}. Give the path of one")
    names_to_path = {name: path for path in all_paths if path != "/" for name in _names_of_cgroup(path)}
    near = {names_to_path[name]: None for name in difflib.get_close_matches(asked, names_to_path, _MOST_NAMED, 0.5)}
    hint = f"Is it {' or '.join(map(_shortened, near))}? " if near else ""
    how = "systemd-cgls" if shutil.which("systemd-cgls") else "find /sys/fs/cgroup -type d"
    raise UsageError(f"--cgroup: there is no cgroup '{shown}' here. {hint}List them with: {how}")


def _paths(mount: Mount) -> Iterator[str]:
    root = "/" + "/".join(_path_parts(mount.root))
    for directory, _, _ in os.walk(mount.point):
        below = directory[len(mount.point) :].strip("/")
        yield f"{root.rstrip('/')}/{below}".rstrip("/") or "/"


def _matches_name(asked: str, path: str) -> bool:
    """Whether `asked` is the name of the directory, container or unit at `path`, or the start of the container's id."""
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


def _names_of_cgroup(path: str) -> tuple[str, ...]:
    own = path.rpartition("/")[2]
    return path, label(path), own, own.rpartition(".")[0] or own


def _shortened(text: str) -> str:
    shown = printable(text)
    return shown if len(shown) <= _LONGEST_SHOWN else f"{shown[: _LONGEST_SHOWN - 1]}…"
