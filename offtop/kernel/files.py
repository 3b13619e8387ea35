"""What the file of a Frame is, and how to open that very file: a path alone may mean another one by now.

A binary is replaced while it runs, deleted, rebuilt in place, or lies in a container under a path that the
host has too. So a file is known by path, device, inode and the time of its last writing; two files of one
path get two labels (`/usr/bin/app`, `/usr/bin/app (2)`), and none is opened without a look at its inode.
"""

import ctypes as ct
import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from offtop.model.printable import printable

VDSO = "[vdso]"
VDSO_32 = "[vdso32]"
"""What the kernel maps into a 32-bit process, under the same name. It is not read, so its functions have no names."""
_DELETED = " (deleted)"
_MOST_FILES = 8192
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

    def open(self) -> int | None:
        """A descriptor of this very file, to be closed by the caller; None where it cannot be had any more."""
        for path in self._ways():
            try:
                found = os.open(path, os.O_PATH | os.O_CLOEXEC)  # a device must not be opened to look at it
            except (OSError, ValueError):
                continue
            try:
                if self._is_this(os.fstat(found)):
                    return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue
            finally:
                os.close(found)
        return None

    def _ways(self) -> Iterator[str]:
        yield self.mapping.link
        yield f"/proc/{self.mapping.pid}/exe"
        yield f"/proc/{self.mapping.pid}/root{self.path}"
        yield self.path

    def _is_this(self, found: os.stat_result) -> bool:
        if not stat.S_ISREG(found.st_mode) or found.st_ino != self.inode or found.st_size > _MOST_BYTES:
            return False
        major, minor = (int(number, 16) for number in self.device.split(":"))
        # btrfs and overlayfs give stat() another device than maps, both without a major number.
        if (os.major(found.st_dev), os.minor(found.st_dev)) != (major, minor) and (major or os.major(found.st_dev)):
            return False
        self.written_ns = self.written_ns or found.st_mtime_ns
        self.retired = self.written_ns != found.st_mtime_ns
        return not self.retired


class Vdso(File):
    """The code that the kernel maps into every 64 bit process: the same in each, so ours will do."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(VDSO, VDSO, "00:00", 0, Mapping(os.getpid(), 0, 0), written_ns=1)

    def open(self) -> int | None:
        for line in os.fsdecode(Path("/proc/self/maps").read_bytes()).split("\n"):
            if line.endswith(VDSO):
                start, end = (int(address, 16) for address in line.split(" ", 1)[0].split("-"))
                return _unnamed(ct.string_at(start, end - start))
        return None


def _unnamed(code: bytes) -> int:
    """A file that is nowhere, written when `written_ns` of both says."""
    fd = os.memfd_create("vdso")
    os.write(fd, code)
    os.utime(fd, ns=(1, 1))
    return fd


class Files:
    """All files seen mapped, the 8192 most recently seen of them. For any thread."""

    def __init__(self) -> None:
        vdso = Vdso()
        self._by_label: dict[str, File] = {vdso.label: vdso}
        self._by_identity: dict[tuple[str, str, int], File] = {}
        self._order: dict[File, None] = {}
        """The one seen longest ago comes first."""
        self._answers_stat: dict[str, bool] = {}
        self._lock = threading.Lock()

    def get(self, label: str) -> File | None:
        return self._by_label.get(label)

    def seen(self, path: str, device: str, inode: int, mapping: Mapping) -> File:
        """The file that a process has mapped, new or known."""
        with self._lock:
            return self._seen(path, device, inode, mapping)

    def _seen(self, path: str, device: str, inode: int, mapping: Mapping) -> File:
        identity = (path.removesuffix(_DELETED), device, inode)
        file = self._by_identity.get(identity)
        now_ns = time.monotonic_ns()
        if file is None or now_ns - file.checked_ns > _MOMENT_NS:
            written_ns = self._written_ns(device, mapping)
            if file is None or file.retired or (written_ns and file.written_ns not in (0, written_ns)):
                file = File(self._new_label(path), path, device, inode, mapping, written_ns)
                self._make_room()
                self._by_label[file.label] = self._by_identity[identity] = file
            file.checked_ns = now_ns
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

    def _written_ns(self, device: str, mapping: Mapping) -> int:
        """0 where asking is not allowed, or might wait for a network: this thread must not."""
        try:
            answers = self._answers_stat.get(device)
            if answers is None:
                answers = self._answers_stat[device] = _is_local(device, mapping.pid)
            return Path(mapping.link).stat().st_mtime_ns if answers else 0
        except OSError:
            return 0


def _remap(file: File, mapping: Mapping) -> None:
    """It was seen there; what could not be opened elsewhere may be now."""
    if file.mapping != mapping:
        file.mapping = mapping
        if file.unreadable:
            file.unreadable, file.names = "", {}


def _is_local(device: str, pid: int) -> bool:
    """Whether the file system of `device`, as process `pid` has it mounted, is on this machine."""
    major, minor = (int(number, 16) for number in device.split(":"))
    if major:
        return True
    for line in os.fsdecode(Path(f"/proc/{pid}/mountinfo").read_bytes()).split("\n"):
        fields = line.split(" ")
        if len(fields) > 8 and fields[2] == f"{major}:{minor}":
            return fields[fields.index("-") + 1] in _LOCAL
    return False
