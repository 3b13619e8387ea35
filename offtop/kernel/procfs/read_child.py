"""The read child: a process that makes the reads for offtop that may hang, and can be left behind when one does.

A read of /proc/PID/maps waits for the mmap_lock of that process, and a stat() or open() for its file system: for as
long as a disk is frozen, a FUSE server is stopped or an NFS server is away. Some of these waits cannot be killed, and
a process does not end before all of its threads have. So they happen here: each channel (guardedreads.py) has one idle
thread more than it has requests, a thread that hangs keeps only itself waiting, and offtop ends without this process.

It parses nothing and decides nothing: it hands over bytes, numbers and descriptors.
"""

import ctypes as ct
import errno
import itertools
import marshal
import os
import re
import signal
import socket
import stat
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

HEAD = struct.Struct("=QI")
"""Before each answer: the number of its request, and KIND_*. What follows is written by `marshal`."""
ANSWERED, FAILED, IN_A_FILE = range(3)
"""What follows: the result; an errno; nothing, for the result is in the first descriptor."""
LONGEST_MESSAGE = 1 << 16
"""Bytes. Longer answers are handed over in a memfd."""
_MOST_BYTES = 64 << 20
"""Of a file of /proc: 65,530 mappings with the longest paths have more, and nobody else."""
_MOST_TASKS = 16
_CODE = re.compile(rb"^[0-9a-f]+-[0-9a-f]+ [r-][w-]x.*\n", re.MULTILINE)
_MAPPING = re.compile(rb"([0-9a-f]+)-([0-9a-f]+) ")
_SET_NAME = 15
"""Of prctl: PR_SET_NAME (linux/prctl.h)."""
NAME = "offtop-procfs"


class Opened(tuple[int, ...]):
    """Result of a function that opens a file: what fstat() says of it, and the descriptor last."""

    __slots__ = ()


def contents(paths: Sequence[str], most: int) -> list[bytes]:
    """Each file, up to `most` bytes; nothing of one that cannot be read."""
    return [_content(path, most) for path in paths]


def code_of(pid: int) -> bytes:
    """The lines of /proc/PID/maps that are executable code: a tenth of all. Nothing for a kernel thread, and for a
    process that is gone."""
    if text := _content(f"/proc/{pid}/maps"):
        return b"".join(_CODE.findall(text))
    # A main thread that has ended while others go on has no memory any more: theirs is the same.
    with suppress(OSError):
        for task in itertools.islice(os.listdir(f"/proc/{pid}/task"), _MOST_TASKS):  # noqa: PTH208
            if text := _content(f"/proc/{pid}/task/{task}/maps"):
                return b"".join(_CODE.findall(text))
    return b""


def mapping_of(pid: int, address: int) -> bytes:
    """The line of /proc/PID/maps that has an address; empty where nothing is mapped there."""
    for line in _content(f"/proc/{pid}/maps").splitlines():
        found = _MAPPING.match(line)
        if found and int(found[1], 16) <= address < int(found[2], 16):
            return line
    return b""


def written_ns(paths: Sequence[str]) -> list[int]:
    """When each file was last written; 0 where nobody may ask."""
    found: list[int] = []
    for path in paths:
        try:
            found.append(os.stat(path).st_mtime_ns)  # noqa: PTH116
        except OSError:
            found.append(0)
    return found


def piece(path: str, size_bytes: int, offset: int) -> bytes:
    """A part of a file."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(fd, size_bytes, offset)
    finally:
        os.close(fd)


def opened(path: str, inode: int) -> Opened:
    """A regular file, with that inode unless it is 0. Raises FileNotFoundError where it is another one."""
    return _opened(path, inode, 0, 0)


def opened_of_anybody(path: str, inode: int) -> Opened:
    """The same of a file that anybody may read, and no link to one."""
    return _opened(path, inode, os.O_NOFOLLOW, stat.S_IROTH)


def _opened(path: str, inode: int, flags: int, mode: int) -> Opened:
    found = os.open(path, os.O_PATH | os.O_CLOEXEC | flags)  # a device must not be opened to look at it
    try:
        status = os.fstat(found)
        if status.st_mode & mode != mode:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if not stat.S_ISREG(status.st_mode) or inode not in (0, status.st_ino):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        fd = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC)
        return Opened((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, fd))
    finally:
        os.close(found)


def kept(path: str, inode: int) -> Opened:
    """The same of a file that stays open here: pid and descriptor by which it is known stand before the last one.

    Offtop itself keeps none: to close a file asks its file system, too (FUSE_FLUSH), and so does to end with one open.
    """
    *status, fd = opened(path, inode)
    return Opened((*status, os.getpid(), os.dup(fd), fd))


def kept_was_written_ns(pid: int, fd: int) -> int:
    """When that was last written."""
    return os.fstat(_kept(pid, fd)).st_mtime_ns


def let_go(pid: int, fd: int) -> None:
    """Close it."""
    os.close(_kept(pid, fd))


def _kept(pid: int, fd: int) -> int:
    if pid != os.getpid():  # one that has died kept it
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return fd


def appended(paths: Sequence[str], owners: Sequence[int], inode: int, tail: bytes, at: int, most: int) -> Any:
    """What was added to the first of these files that is there and belongs to one of `owners`: its inode, whether it
    was written anew (its inode is another one, or `tail` does not stand at `at`), and up to `most` bytes of it."""
    for path in paths:
        with suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                found = os.fstat(fd)
                # /tmp is everybody's: another user's file says nothing about this process.
                if not stat.S_ISREG(found.st_mode) or found.st_uid not in owners:
                    continue
                is_new = found.st_ino != inode or os.pread(fd, len(tail), at) != tail
                known = 0 if is_new else at + len(tail)
                return found.st_ino, is_new, os.pread(fd, max(0, min(most, found.st_size) - known), known)
            finally:
                os.close(fd)
    return 0, False, b""


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    one.__name__: one
    for one in (
        *(contents, code_of, mapping_of, written_ns, piece, appended),
        *(opened, opened_of_anybody, kept, kept_was_written_ns, let_go),
    )
}


def _content(path: str, most: int = _MOST_BYTES) -> bytes:
    parts: list[bytes] = []
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return b""
    try:
        while most > 0 and (part := os.read(fd, min(most, 1 << 17))):  # mostly a page at a time
            parts.append(part)
            most -= len(part)
    except OSError:
        pass  # it has just ended
    finally:
        os.close(fd)
    return b"".join(parts)


class _Channel:
    """Serves one socket, with one idle thread more than there are requests."""

    def __init__(self, served: socket.socket) -> None:
        self._socket, self._idle, self._lock = served, 0, threading.Lock()
        self._start()

    def _start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            request = self._socket.recv(LONGEST_MESSAGE)
            with self._lock:
                self._idle -= 1
                if request and not self._idle:
                    self._start()
            if not request:
                return
            number, function, arguments = marshal.loads(request)
            with suppress(OSError):  # nobody waits for it any more
                self._answer(number, function, arguments)

    def _answer(self, number: int, function: str, arguments: Sequence[Any]) -> None:
        fds: list[int] = []
        try:
            try:
                result = _FUNCTIONS[function](*arguments)
            except (OSError, ValueError) as error:  # a path with a zero byte is a ValueError
                failed = error.errno if isinstance(error, OSError) else errno.EINVAL
                socket.send_fds(self._socket, [HEAD.pack(number, FAILED), marshal.dumps(failed)], [])
                return
            if isinstance(result, Opened):
                *result, fd = result
                fds.append(fd)
            raw, kind = marshal.dumps(result), ANSWERED
            if len(raw) > LONGEST_MESSAGE - HEAD.size:
                fds.append(_in_a_file(raw))
                raw, kind = b"", IN_A_FILE
            socket.send_fds(self._socket, [HEAD.pack(number, kind), raw], fds)
        finally:
            for fd in fds:
                os.close(fd)


def _in_a_file(raw: bytes) -> int:
    with os.fdopen(os.memfd_create("answer"), "wb", closefd=False) as file:
        file.write(raw)
        return file.fileno()


def main() -> None:
    """Serve the sockets that come over the one whose descriptor is the last argument, until that is closed.

    So it ends with offtop, however that ends. A death signal would come when the thread ends that has begun it.
    """
    ct.CDLL(None).prctl(_SET_NAME, NAME.encode())
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # ctrl-Z is for offtop, which may be let go on alone
    threading.stack_size(1 << 18)
    with socket.socket(fileno=int(sys.argv[-1])) as control:
        while True:
            message, fds, _, _ = socket.recv_fds(control, 1, 1)
            if not message:
                os._exit(0)  # without its threads, one of which may hang
            for fd in fds:
                _Channel(socket.socket(fileno=fd))
