"""What the file of a Frame is, and how to open that very file: a path alone may mean another one by now.

A binary is replaced while it runs, deleted, rebuilt in place, or lies in a container under a path that the
host has too. So a file is known by path, device, inode and the time of its last writing; two files of one
path get two labels (`/usr/bin/app`, `/usr/bin/app (2)`), and none is opened without a look at its inode.
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
"""What the kernel maps into a 32-bit process, under the same name. It is not read, so its functions have no names."""
_DELETED = " (deleted)"
_MOST_FILES = 8192
_MOST_MOUNTS_BYTES = 1 << 24
_MOST_BYTES = 1 << 32
"""No program is larger; a file that is was made to keep us busy."""
_MOMENT_NS = 50_000_000
"""Processes met in one tick share their libraries: one look at each will do."""
_LOCAL = frozenset({"bcachefs", "btrfs", "ecryptfs", "overlay", "ramfs", "tmpfs", "zfs"})
"""File systems without a block device that answer stat() even when a network is down."""


class Mapping(NamedTuple):
    """A stretch of code in a process, through which its file can be opened whatever its path says."""

    pid: int
    start: int
    end: int

    @property
    def link(self) -> str:
        """For root only (CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE)."""
        return f"/proc/{self.pid}/map_files/{self.start:x}-{self.end:x}"


class MappedFile(NamedTuple):
    """A file as /proc/PID/maps tells of it."""

    path: str
    device: str
    inode: int
    mapping: Mapping

    @property
    def identity(self) -> tuple[str, str, int]:
        return self.path.removesuffix(_DELETED), self.device, self.inode


class File:
    """One binary, and the names found in it so far.

    Made by the thread that reads mappings; names are added by the one that looks them up.
    """

    __slots__ = (
        "checked_ns",
        "device",
        "explained",
        "inode",
        "label",
        "mapping",
        "names",
        "path",
        "retired",
        "searched",
        "symbols",
        "unreadable",
        "written_ns",
    )

    def __init__(self, label: str, path: str, device: str, inode: int, mapping: Mapping, written_ns: int = 0) -> None:
        self.label = label
        """What `Frame.file` says: printable, and of no other file."""
        self.path = path
        """As the process sees it, undecodable bytes kept as surrogates."""
        self.device = device
        """Major and minor number in hex, as /proc/PID/maps writes them."""
        self.inode = inode
        self.mapping = mapping
        """Where it was seen last."""
        self.written_ns = written_ns
        """Its mtime when its offsets got their meaning; 0 while not known."""
        self.checked_ns = 0
        """When written_ns was last compared, on CLOCK_MONOTONIC."""
        self.names: dict[int, str] = {}
        """Offset → symbol, or nothing for what is known to have none."""
        self.searched = False
        """Whether a debug file for it has been asked for."""
        self.symbols = ""
        """What reader.SYMBOLS told of it; empty: nobody has asked."""
        self.explained = False
        """Its debug file has come: it is to be opened anew."""
        self.unreadable = ""
        """Why it could not be read, one of stackproblems.REASONS; another process's mapping of it may help. Empty: it
        could, or nobody has tried."""
        self.retired = False
        """Its content was overwritten: what is named stays named, but nothing more can be."""

    def forget_nameless(self) -> None:
        """Ask again for what had no name."""
        for offset in [offset for offset, name in [*self.names.items()] if not name]:
            self.names.pop(offset, None)

    def open(self, reads: Channel) -> "OpenedFile | None":
        """This very file; None where it cannot be had any more. Raises TimeoutError where it was not opened in time."""
        pid, device = self.mapping.pid, self.device
        if device in reads.hung:
            raise TimeoutError
        hung = False
        # The first way waits for the process's mmap_lock, and all of them for the file system.
        paths = (f"/proc/{pid}/exe", f"/proc/{pid}/root{self.path}", self.path)
        for subject, path in ((pid, self.mapping.link), *((device, path) for path in paths)):
            try:
                status, kept, fd = reads.keep(subject, path, self.inode)
            except TimeoutError:
                hung = True
                continue
            except OSError:
                continue
            found = OpenedFile(fd, device, kept)
            if self._is_this(*status):
                return found
            os.close(fd)
            found.let_go(reads)
        if hung:
            raise TimeoutError
        return None

    def _is_this(self, device: int, inode: int, size_bytes: int, written_ns: int) -> bool:
        if inode != self.inode or size_bytes > _MOST_BYTES:
            return False
        major, minor = (int(number, 16) for number in self.device.split(":"))
        # btrfs and overlayfs give stat() another device than maps, both without a major number.
        if (os.major(device), os.minor(device)) != (major, minor) and (major or os.major(device)):
            return False
        self.written_ns = self.written_ns or written_ns
        self.retired = self.written_ns != written_ns
        return not self.retired


class OpenedFile(NamedTuple):
    """A file that was opened by the read child, which keeps it open, too."""

    fd: int
    """To be handed over and closed at once: closing it later may hang, and so may ending with it open."""
    device: str = ""
    kept: tuple[int, int] | None = None
    """By what the read child knows it; None: it is in memory, and stays as it is."""

    def written_ns(self, reads: Channel) -> int | None:
        """When it was last written; None: it stays as it is. Raises OSError, and TimeoutError if it was not read."""
        return None if self.kept is None else reads.ask(self.device, "kept_was_written_ns", *self.kept)

    def let_go(self, reads: Channel) -> None:
        """Have the read child close it."""
        with suppress(OSError):  # it is closed late, or has been closed as that child died
            if self.kept is not None:
                reads.ask(self.device, "let_go", *self.kept)


class Vdso(File):
    """The code that the kernel maps into every 64 bit process: the same in each, so ours will do."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(VDSO, VDSO, "00:00", 0, Mapping(os.getpid(), 0, 0), written_ns=1)

    def open(self, reads: Channel) -> OpenedFile | None:
        for line in os.fsdecode(Path("/proc/self/maps").read_bytes()).split("\n"):
            if line.endswith(VDSO):
                start, end = (int(address, 16) for address in line.split(" ", 1)[0].split("-"))
                return OpenedFile(_unnamed(ct.string_at(start, end - start)))
        return None


def _unnamed(code: bytes) -> int:
    """A file that is nowhere, written when `written_ns` of both says."""
    fd = os.memfd_create("vdso")
    os.write(fd, code)
    os.utime(fd, ns=(1, 1))
    return fd


class Files:
    """All files seen mapped, the 8192 most recently seen of them. For any thread; its lock is never held while a file
    is read."""

    def __init__(self, reads: GuardedReads | None = None) -> None:
        """`reads`: by which whoever has these files reads them, and the processes that have them mapped."""
        self.reads = reads or GuardedReads()
        self.perf_maps = PerfMaps(self.reads)
        vdso = Vdso()
        self._by_label: dict[str, File] = {vdso.label: vdso}
        self._by_identity: dict[tuple[str, str, int], File] = {}
        self._order: dict[File, None] = {}
        """The one seen longest ago comes first."""
        self._answers_stat: dict[str, bool] = {}
        self._lock = threading.Lock()

    def get(self, label: str) -> File | None:
        return self._by_label.get(label)

    def seen(self, mapped: Sequence[MappedFile], reads: Channel) -> list[File]:
        """The files that a process has mapped, each new or known."""
        now_ns = time.monotonic_ns()
        with self._lock:
            unchecked = [one for one in mapped if self._is_unchecked(one, now_ns)]
        written_ns = self._written_ns(unchecked, reads)
        with self._lock:
            return [self._seen(one, written_ns.get(one)) for one in mapped]

    def _is_unchecked(self, mapped: MappedFile, now_ns: int) -> bool:
        file = self._by_identity.get(mapped.identity)
        return file is None or now_ns - file.checked_ns > _MOMENT_NS

    def _seen(self, mapped: MappedFile, written_ns: int | None) -> File:
        """`written_ns`: 0 where it is not known; None: it was not asked, because the file was checked a moment ago."""
        path, device, inode, mapping = mapped
        file = self._by_identity.get(mapped.identity)
        if file is None or written_ns is not None:
            written_ns = written_ns or 0
            if file is None or file.retired or (written_ns and file.written_ns not in (0, written_ns)):
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
        """Drop names, those of the files seen longest ago first, until at most `most` are left."""
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
        label, times = printable(path), 1
        while (label if times == 1 else f"{label} ({times})") in self._by_label:
            times += 1
        return label if times == 1 else f"{label} ({times})"

    def _written_ns(self, files: Sequence[MappedFile], reads: Channel) -> dict[MappedFile, int]:
        """When each was last written; 0 where asking is not allowed, might wait for a network, or has no answer."""
        of_devices: dict[str, list[MappedFile]] = {}
        for one in files:
            of_devices.setdefault(one.device, []).append(one)
        found = dict.fromkeys(files, 0)
        for device, those in of_devices.items():
            if self._answers(device, those[0].mapping.pid, reads):
                with suppress(OSError):
                    told: list[int] = reads.ask(device, "written_ns", [one.mapping.link for one in those])
                    found.update(zip(those, told, strict=True))
        return found

    def _answers(self, device: str, pid: int, reads: Channel) -> bool:
        """Whether stat() of files of that device answers at once, or should."""
        known = self._answers_stat.get(device)
        if known is None:
            try:
                known = self._answers_stat[device] = _is_local(device, pid, reads)
            except OSError:
                return False
        return known


def _remap(file: File, mapping: Mapping) -> None:
    """It was seen there; what could not be opened elsewhere may be now."""
    if file.mapping != mapping:
        file.mapping = mapping
        if file.unreadable:
            file.unreadable, file.names = "", {}


def _is_local(device: str, pid: int, reads: Channel) -> bool:
    """Whether the file system of `device`, as process `pid` has it mounted, is on this machine. Raises TimeoutError."""
    major, minor = (int(number, 16) for number in device.split(":"))
    if major:
        return True
    (mounts,) = reads.ask(pid, "contents", [f"/proc/{pid}/mountinfo"], _MOST_MOUNTS_BYTES)
    for line in os.fsdecode(mounts).split("\n"):
        fields = line.split(" ")
        if len(fields) > 8 and fields[2] == f"{major}:{minor}":
            return fields[fields.index("-") + 1] in _LOCAL
    return False
