"""Finds the disk that a thread waits for.

It is the disk that holds the file of the system call's descriptor. If the call has no descriptor, as open(), or if the
file system does not tell its disk, it is likely the only disk that has requests at this moment.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from offtop.kernel.procfs import diskstats, mounts
from offtop.kernel.procfs.guarded_reads import Channel
from offtop.kernel.resolve.blocked import OF_DESCRIPTOR, Blocked, Found
from offtop.model.values.blockers import DISK, DISK_WAITS, ELSEWHERE, Blocker
from offtop.model.values.catalog import Catalog, ThreadKey

_MOST_KNOWN = 4096
_ON_ANY_DISK = (b"btrfs", b"overlay")
"""File systems that have no block device of their own, but whose files are on disks."""


class Disks:
    """Finds disks. Not thread-safe, except `waits_for_disk`."""

    def __init__(self, reads: Channel, catalog: Catalog, root: Path = Path("/sys")) -> None:
        self._reads, self._catalog, self._root = reads, catalog, root
        self._names: dict[tuple[int, int], str] = {}

    def waits_for_disk(self, kernel: int) -> bool:
        """Return whether waits at a kernel stack are for a disk."""
        return self._catalog.stack(kernel).category in DISK_WAITS

    def find(self, waits: Sequence[Blocked]) -> dict[ThreadKey, Found]:
        found: dict[ThreadKey, Found] = {}
        mounts_of: dict[int, dict[int, tuple[int, int, bytes]]] = {}
        of_descriptors: dict[tuple[int, int], str | None] = {}
        busy: str | None = None
        for one in waits:
            if not self.waits_for_disk(one.kernel):
                continue
            has_descriptor = one.call in OF_DESCRIPTOR and bool(one.arguments)
            disk: str | None = None
            if has_descriptor:
                descriptor = one.key.pid, one.arguments[0] & 0xFFFFFFFF
                if descriptor not in of_descriptors:
                    of_descriptors[descriptor] = self._of_descriptor(*descriptor, mounts_of)
                disk = of_descriptors[descriptor]
            is_exact = bool(disk)
            if disk is None:
                busy = self._only_busy_one() if busy is None else busy
                disk = busy
            if disk:
                arguments = one.arguments[:1] if has_descriptor else ()
                blockers = (Blocker(ELSEWHERE, 0, DISK, is_exact, disk),)
                found[one.key] = Found(one.switched_out_ns, blockers, arguments=arguments)
        return found

    def _of_descriptor(self, pid: int, fd: int, mounts_of: dict[int, dict[int, tuple[int, int, bytes]]]) -> str | None:
        """Return the name of the disk with the file of a descriptor; empty if it is on none, None if unknown."""
        with suppress(OSError):  # TimeoutError is one
            if pid not in mounts_of:
                mounts_of[pid] = {}
                mounts_of[pid].update(mounts.devices(self._reads, pid))
            mount = mounts.mount_id(self._reads, pid, fd)
            if mount is not None and mount in mounts_of[pid]:
                major, minor, kind = mounts_of[pid][mount]
                return None if kind in _ON_ANY_DISK else self._name((major, minor))
        return None

    def _name(self, device: tuple[int, int]) -> str:
        """Return the name of a whole disk, also for one of its partitions; empty if it is no block device."""
        if device not in self._names:
            if len(self._names) >= _MOST_KNOWN:
                self._names.clear()
            path = (self._root / "dev/block" / f"{device[0]}:{device[1]}").resolve()
            disk = path.parent if _is_partition(path) else path
            self._names[device] = disk.name.replace("!", "/") if path.is_dir() else ""  # as in /proc/diskstats
        return self._names[device]

    def _only_busy_one(self) -> str:
        """Return the only disk that has requests, apart from disks made of others (device mapper, md); else empty."""
        busy = [one.name for one in diskstats.read().values() if one.in_device and self._is_lowest(one.name)]
        return busy[0] if len(busy) == 1 else ""

    def _is_lowest(self, name: str) -> bool:
        path = self._root / "class/block" / name.replace("/", "!")
        with suppress(OSError):
            return path.is_dir() and not _is_partition(path) and not any((path / "slaves").iterdir())
        return False


def _is_partition(path: Path) -> bool:
    return (path / "partition").exists()
