"""Identity of the mapped files that frames refer to, and ways to open exactly those files.

A binary can be replaced while it runs, deleted, rebuilt in place, or be in a container under a path that exists on the
host, too. So a file is identified by path, device, inode and mtime, two files with the same path get two labels
(`/usr/bin/app`, `/usr/bin/app (2)`), and the inode is checked whenever a file is opened.
"""

import ctypes as ct
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from offtop.kernel.binary.perf_map import PerfMaps
from offtop.kernel.procfs.guarded_reads import Channel, GuardedReads
from offtop.printable import printable

VDSO = "[vdso]"
VDSO_32 = "[vdso32]"
"""The vDSO of 32-bit processes, which the kernel also calls [vdso]. It is not read, so its functions have no names."""
_DELETED = " (deleted)"
_MOST_FILES = 8192
_STATS_AT_ONCE = 500
"""Paths in one request to the read child, whose requests have at most 64 KB."""
_MOST_MOUNTS_BYTES = 1 << 24
_MOST_BYTES = 1 << 32
"""Files larger than this are not opened: no program is, so they were crafted to keep offtop busy."""
_MTIME_VALID_NS = 50_000_000
"""How long an mtime counts as current: processes seen in one tick share libraries, so one check of each is enough."""
_LOCAL = frozenset({"bcachefs", "btrfs", "ecryptfs", "overlay", "ramfs", "tmpfs", "zfs"})
"""File systems without a block device for which stat() does not depend on a network."""


class Mapping(NamedTuple):
    """A mapping of code in a process.

    It allows opening the file even if its path has become another file.
    """

    pid: int
    start: int
    end: int

    @property
    def link(self) -> str:
        """Link to the mapped file. Following it needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE."""
        return f"/proc/{self.pid}/map_files/{self.start:x}-{self.end:x}"


class MappedFile(NamedTuple):
    """A file as listed in /proc/PID/maps."""

    path: str
    device: str
    inode: int
    mapping: Mapping

    @property
    def identity(self) -> tuple[str, str, int]:
        return self.path.removesuffix(_DELETED), self.device, self.inode


class File:
    """One binary, and the names found in it so far.

    It is created by the thread that reads mappings. The thread that looks names up adds them.
    """

    __slots__ = (
        "checked_ns",
        "debug_file_requested",
        "device",
        "has_new_debug_file",
        "inode",
        "is_overwritten",
        "label",
        "mapping",
        "names",
        "path",
        "symbols",
        "unreadable",
        "written_ns",
    )

    def __init__(self, label: str, path: str, device: str, inode: int, mapping: Mapping, written_ns: int = 0) -> None:
        self.label = label
        """Unique printable name; the value of `Frame.file`."""
        self.path = path
        """Path as the process sees it, with undecodable bytes as surrogates."""
        self.device = device
        """Major and minor number in hex, as /proc/PID/maps writes them."""
        self.inode = inode
        self.mapping = mapping
        """The mapping of it that was seen last."""
        self.written_ns = written_ns
        """The mtime of the content to which the offsets refer; 0 while unknown."""
        self.checked_ns = 0
        """When written_ns was last compared, on CLOCK_MONOTONIC."""
        self.names: dict[int, str] = {}
        """Offset → symbol, or an empty string if it is known to have none."""
        self.debug_file_requested = False
        """Whether a debug file has been requested for it."""
        self.symbols = ""
        """The answer to reader.SYMBOLS, or empty if it has not been requested."""
        self.has_new_debug_file = False
        """Whether its debug file has arrived, so that it must be reopened."""
        self.unreadable = ""
        """Why it could not be read: one of stack_problems.REASONS; empty if it was read, or not tried yet. Opening it
        through another process's mapping may still work."""
        self.is_overwritten = False
        """Whether its content was overwritten: names found before stay, but no more can be looked up."""

    def forget_nameless(self) -> None:
        """Forget which offsets have no name, so that they are looked up again."""
        for offset in [offset for offset, name in [*self.names.items()] if not name]:
            self.names.pop(offset, None)

    def open(self, reads: Channel) -> "OpenedFile | None":
        """Open this file; None if it is no longer accessible.

        Raises TimeoutError if it was not opened in time.
        """
        pid, device = self.mapping.pid, self.device
        if device in reads.hung:
            raise TimeoutError
        hung = False
        # The first path may block on the process's mmap_lock, and each of them on the file system.
        paths = (f"/proc/{pid}/exe", f"/proc/{pid}/root{self.path}", self.path)
        for subject, path in ((pid, self.mapping.link), *((device, path) for path in paths)):
            try:
                status, handle, fd = reads.keep_open(subject, path, self.inode)
            except TimeoutError:
                hung = True
                continue
            except OSError:
                continue
            found = OpenedFile(fd, device, handle)
            if self._is_this(*status):
                return found
            os.close(fd)
            found.release(reads)
        if hung:
            raise TimeoutError
        return None

    def _is_this(self, device: int, inode: int, size_bytes: int, written_ns: int) -> bool:
        if inode != self.inode or size_bytes > _MOST_BYTES:
            return False
        major, minor = (int(number, 16) for number in self.device.split(":"))
        # On btrfs and overlayfs stat() and maps report different devices, both with major number 0.
        if (os.major(device), os.minor(device)) != (major, minor) and (major or os.major(device)):
            return False
        self.written_ns = self.written_ns or written_ns
        self.is_overwritten = self.written_ns != written_ns
        return not self.is_overwritten


class OpenedFile(NamedTuple):
    """A file that the read child has opened and keeps open, too."""

    fd: int
    """Pass it on and close it at once: closing it later may hang, and so may exiting with it open."""
    device: str = ""
    handle: tuple[int, int] | None = None
    """The read child's handle of it; None for a file in memory, which never changes."""

    def written_ns(self, reads: Channel) -> int | None:
        """Return its mtime, or None if it never changes.

        Raises OSError, and TimeoutError if it was not read in time.
        """
        return None if self.handle is None else reads.ask(self.device, "mtime_of_handle_ns", *self.handle)

    def release(self, reads: Channel) -> None:
        """Have the read child close it."""
        if self.handle is not None:
            reads.post("release", *self.handle)


class Vdso(File):
    """The vDSO of 64-bit processes.

    It is the same in each process, so it is read from this one.
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(VDSO, VDSO, "00:00", 0, Mapping(os.getpid(), 0, 0), written_ns=1)

    def open(self, reads: Channel) -> OpenedFile | None:
        for line in os.fsdecode(Path("/proc/self/maps").read_bytes()).split("\n"):
            if line.endswith(VDSO):
                start, end = (int(address, 16) for address in line.split(" ", 1)[0].split("-"))
                return OpenedFile(_memory_file(ct.string_at(start, end - start)))
        return None


def _memory_file(code: bytes) -> int:
    """Create a memory file with the vDSO's code; its mtime is 1 ns, like Vdso.written_ns."""
    fd = os.memfd_create("vdso")
    os.write(fd, code)
    os.utime(fd, ns=(1, 1))
    return fd


class Files:
    """The 8192 files most recently seen in processes' mappings.

    Thread-safe; its lock is never held while a file is read.
    """

    def __init__(self, reads: GuardedReads | None = None) -> None:
        """`reads`: used to read these files and the processes that have mapped them."""
        self.reads = reads or GuardedReads()
        self.perf_maps = PerfMaps(self.reads)
        vdso = Vdso()
        self._by_label: dict[str, File] = {vdso.label: vdso}
        self._by_identity: dict[tuple[str, str, int], File] = {}
        self._order: dict[File, None] = {}
        """Least recently seen first."""
        self._next_number: dict[str, int] = {}
        """Label without number → number of the next file of that path."""
        self._has_quick_stat: dict[str, bool] = {}
        self._lock = threading.Lock()

    def get(self, label: str) -> File | None:
        return self._by_label.get(label)

    def seen(self, mapped: Sequence[MappedFile], reads: Channel) -> list[File]:
        """Return the files that a process has mapped; create those that are new."""
        now_ns = time.monotonic_ns()
        with self._lock:
            unchecked = [one for one in mapped if self._is_unchecked(one, now_ns)]
        written_ns = self._written_ns(unchecked, reads)
        with self._lock:
            return [self._seen(one, written_ns.get(one)) for one in mapped]

    def _is_unchecked(self, mapped: MappedFile, now_ns: int) -> bool:
        file = self._by_identity.get(mapped.identity)
        return file is None or now_ns - file.checked_ns > _MTIME_VALID_NS

    def _seen(self, mapped: MappedFile, written_ns: int | None) -> File:
        """Return the file, with its mapping and mtime updated; create it if it is new.

        `written_ns`: 0 if unknown, or None if it was not read because the file was checked a moment ago.
        """
        path, device, inode, mapping = mapped
        file = self._by_identity.get(mapped.identity)
        if file is None or written_ns is not None:
            written_ns = written_ns or 0
            if file is None or file.is_overwritten or (written_ns and file.written_ns not in (0, written_ns)):
                file = File(self._new_label(path), path, device, inode, mapping, written_ns)
                self._make_room()
                self._by_label[file.label] = self._by_identity[mapped.identity] = file
            file.checked_ns = time.monotonic_ns()
        file.path = path
        _remap(file, mapping)
        self._order.pop(file, None)
        self._order[file] = None
        return file

    def forget_names(self, most: int) -> None:
        """Drop names, starting with the least recently seen files, until at most `most` are left."""
        with self._lock:
            files = list(self._order)
        total = sum(len(file.names) for file in files)
        for file in files:
            if total <= most:
                return
            total -= len(file.names)
            file.names = {}

    def _make_room(self) -> None:
        while len(self._order) >= _MOST_FILES:
            oldest = next(iter(self._order))
            del self._order[oldest], self._by_label[oldest.label]
            identity = (oldest.path.removesuffix(_DELETED), oldest.device, oldest.inode)
            if self._by_identity.get(identity) is oldest:
                del self._by_identity[identity]

    def _new_label(self, path: str) -> str:
        label = printable(path)
        number = self._next_number.get(label, 1)
        while (numbered := label if number == 1 else f"{label} ({number})") in self._by_label:
            number += 1
        if len(self._next_number) >= _MOST_FILES:
            self._next_number.clear()
        self._next_number[label] = number + 1
        return numbered

    def _written_ns(self, files: Sequence[MappedFile], reads: Channel) -> dict[MappedFile, int]:
        """Return each file's mtime in ns.

        0 if that may not be read, or reading it fails or might block on a network.
        """
        of_devices: dict[str, list[MappedFile]] = {}
        for one in files:
            of_devices.setdefault(one.device, []).append(one)
        found = dict.fromkeys(files, 0)
        for device, those in of_devices.items():
            pid = those[0].mapping.pid
            # stat() may wait for the process's mmap_lock or for the file system: if two processes hang, for the latter.
            if sum(isinstance(one, tuple) and one[1:] == (device,) for one in reads.hung) > 1:
                continue
            if self._can_stat(device, pid, reads):
                with suppress(OSError):
                    for at in range(0, len(those), _STATS_AT_ONCE):
                        part = those[at : at + _STATS_AT_ONCE]
                        mtimes = reads.ask((pid, device), "written_ns", [one.mapping.link for one in part])
                        found.update(zip(part, mtimes, strict=True))
        return found

    def _can_stat(self, device: str, pid: int, reads: Channel) -> bool:
        """Whether stat() of files on that device should return at once."""
        known = self._has_quick_stat.get(device)
        if known is None:
            try:
                known = self._has_quick_stat[device] = _is_local(device, pid, reads)
            except OSError:
                return False
        return known


def _remap(file: File, mapping: Mapping) -> None:
    """Record the mapping in which a file was seen last, and try again to read it there if that failed before."""
    if file.mapping != mapping:
        file.mapping = mapping
        if file.unreadable:
            file.unreadable, file.names = "", {}


def _is_local(device: str, pid: int, reads: Channel) -> bool:
    """Whether the file system of `device`, which `pid` has mounted, is local.

    Raises TimeoutError.
    """
    major, minor = (int(number, 16) for number in device.split(":"))
    if major:
        return True
    (mounts,) = reads.ask(pid, "contents", [f"/proc/{pid}/mountinfo"], _MOST_MOUNTS_BYTES)
    for line in os.fsdecode(mounts).split("\n"):
        fields = line.split(" ")
        if len(fields) > 8 and fields[2] == f"{major}:{minor}":
            return fields[fields.index("-") + 1] in _LOCAL
    return False
