"""The read child: a process that makes the reads that may hang, and can be left behind when one does.

A read of /proc/PID/maps waits for the mmap_lock of that process, and stat() and open() wait for the file system: as
long as a disk is frozen, a FUSE server is stopped or an NFS server is unreachable. Some of these waits cannot be
killed, and a process does not exit before all its threads have. So they happen here: each channel (guarded_reads.py)
has one idle thread more than it has requests, a thread that hangs blocks no other, and offtop can exit without waiting
for this process.

It parses nothing and makes no decisions: it returns bytes, numbers and file descriptors.
"""

import ctypes as ct
import errno
import itertools
import marshal
import os
import re
import resource
import signal
import socket
import stat
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from offtop.heap import limit_heap

HEAD = struct.Struct("=QI")
"""Header of each answer: the number of its request, and its kind. What follows is written by `marshal`."""
ANSWERED, FAILED, IN_A_FILE = range(3)
"""Kinds of answers. What follows is the result, an errno, or nothing: the result is in the first descriptor."""
LONGEST_MESSAGE = 1 << 16
"""Bytes. Longer answers are passed in a memfd."""
_MOST_BYTES = 64 << 20
"""Limit for a file of /proc, exceeded only by a maps file of 65,530 mappings with the longest possible paths."""
_PART_BYTES = 1 << 14
"""Read at once; /proc mostly returns a page at a time."""
_LARGE_BYTES = 1 << 16
"""What is read is passed on and freed; the maps file of 10,000 threads has 2 MB."""
_MOST_TASKS = 16
_CODE = re.compile(rb"^[0-9a-f]+-[0-9a-f]+ [r-][w-]x.*\n", re.MULTILINE)
_MAPPING = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) .*$", re.MULTILINE)
EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors of this process, not of the file that it reads."""
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY
_SET_NAME = 15
"""PR_SET_NAME (linux/prctl.h)."""
NAME = "offtop-procfs"


class Opened(tuple[int, ...]):
    """Result of a function that opens a file: values from fstat(), then the file descriptor."""

    __slots__ = ()


def contents(paths: Sequence[str], most: int) -> list[bytes]:
    """Read each file, up to `most` bytes; empty for a file that cannot be read."""
    return [_content(path, most) for path in paths]


def code_of(pid: int) -> bytes:
    """Read the lines of /proc/PID/maps that are executable, about a tenth of all.

    Empty for a kernel thread, and for a process that has exited.
    """
    if text := _content(f"/proc/{pid}/maps"):
        return b"".join(_CODE.findall(text))
    # A main thread that has exited has no memory any more, but other threads of the process still have it.
    with suppress(OSError):
        for task in itertools.islice(os.listdir(f"/proc/{pid}/task"), _MOST_TASKS):  # noqa: PTH208
            if text := _content(f"/proc/{pid}/task/{task}/maps"):
                return b"".join(_CODE.findall(text))
    return b""


def mapping_of(pid: int, address: int) -> bytes:
    """Read the line of /proc/PID/maps that contains an address.

    Empty if nothing is mapped there.
    """
    for found in _MAPPING.finditer(_content(f"/proc/{pid}/maps")):
        if int(found[1], 16) <= address < int(found[2], 16):
            return found[0]
    return b""


def written_ns(paths: Sequence[str]) -> list[int]:
    """Modification time of each file; 0 if stat() fails."""
    found: list[int] = []
    for path in paths:
        try:
            found.append(os.stat(path).st_mtime_ns)  # noqa: PTH116
        except OSError:
            found.append(0)
    return found


def piece(path: str, size_bytes: int, offset: int) -> bytes:
    """Read a part of a file."""
    fd = os.open(path, _READ)
    try:
        return os.pread(fd, size_bytes, offset)
    finally:
        os.close(fd)


def opened(path: str, inode: int) -> Opened:
    """Open a regular file.

    Raises FileNotFoundError if `inode` is not 0 and the file has another one.
    """
    return _opened(path, inode, 0, 0)


def opened_world_readable(path: str, inode: int) -> Opened:
    """As `opened`, but only for a world-readable file, and not through a symbolic link."""
    return _opened(path, inode, os.O_NOFOLLOW, stat.S_IROTH)


def _opened(path: str, inode: int, flags: int, mode: int) -> Opened:
    found = os.open(path, os.O_PATH | os.O_CLOEXEC | flags)  # opening a device could have side effects
    try:
        status = os.fstat(found)
        if status.st_mode & mode != mode:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if not stat.S_ISREG(status.st_mode) or inode not in (0, status.st_ino):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        fd = os.open(f"/proc/self/fd/{found}", _READ)
        return Opened((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, fd))
    finally:
        os.close(found)


def kept_open(path: str, inode: int) -> Opened:
    """As `opened`, but also keep the file open here.

    The pid and descriptor that identify it here precede the last value.

    offtop itself keeps no such file open, because closing a file involves its file system, too (FUSE_FLUSH), and so
    does exiting with an open file.
    """
    *status, fd = opened(path, inode)
    return Opened((*status, os.getpid(), os.dup(fd), fd))


def mtime_of_handle_ns(pid: int, fd: int) -> int:
    """Modification time of a file that `kept_open` keeps open."""
    return os.fstat(_own_fd(pid, fd)).st_mtime_ns


def release(pid: int, fd: int) -> None:
    """Close a file that `kept_open` keeps open."""
    os.close(_own_fd(pid, fd))


def _own_fd(pid: int, fd: int) -> int:
    if pid != os.getpid():  # an earlier child kept it open, and has died
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return fd


def appended(paths: Sequence[str], owners: Sequence[int], inode: int, tail: bytes, at: int, most: int) -> Any:
    """Read what was appended to the first of `paths` that belongs to one of `owners`.

    Returns its inode, whether it was rewritten (the inode differs, or `tail` is not found at offset `at`), and the
    bytes after `tail`, or from the start if it was rewritten, up to offset `most`.
    """
    for path in paths:
        with suppress(OSError):
            *_, fd = _opened(path, 0, os.O_NOFOLLOW, 0)
            try:
                found = os.fstat(fd)
                # /tmp is world-writable: another user's file is not about this process.
                if found.st_uid not in owners:
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
        *(opened, opened_world_readable, kept_open, mtime_of_handle_ns, release),
    )
}


def _content(path: str, most: int = _MOST_BYTES) -> bytes:
    """Read a file, up to `most` bytes; empty if it cannot be read."""
    # One buffer that grows: thousands of parts of a page each would leave the heap of this process full of holes.
    content, part = bytearray(), memoryview(bytearray(_PART_BYTES))
    try:
        fd = os.open(path, _READ)
    except ValueError:
        return b""
    except OSError as error:
        if error.errno in EXHAUSTED:  # otherwise the process would seem to have exited
            raise
        return b""
    try:
        while most > 0 and (size := os.readv(fd, [part[:most]])):
            content += part[:size]
            most -= size
    except OSError:
        pass  # the process has just exited
    finally:
        os.close(fd)
    return bytes(content)


class _Channel:
    """Serves one socket, with one idle thread more than there are requests in progress."""

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
                    with suppress(RuntimeError):  # no room for another thread: one that returns serves the next request
                        self._start()
            if not request:
                return
            with suppress(OSError, ValueError, EOFError, TypeError):  # the peer has closed the socket
                self._answer(*marshal.loads(request))

    def _answer(self, number: int, function: str, arguments: Sequence[Any]) -> None:
        fds: list[int] = []
        try:
            try:
                result = _FUNCTIONS[function](*arguments)
            except MemoryError:
                socket.send_fds(self._socket, [HEAD.pack(number, FAILED), marshal.dumps(errno.ENOMEM)], [])
                return
            except (OSError, ValueError, OverflowError) as error:  # a path with a zero byte is a ValueError
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
    """Serve the sockets received over the control socket, until that is closed.

    The last argument is the descriptor of the control socket. So the child exits when offtop does, for whatever reason.
    A parent death signal would already be sent when the thread that started the child exits.
    """
    ct.CDLL(None).prctl(_SET_NAME, NAME.encode())
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # ctrl-Z only stops offtop, because SIGCONT may go to offtop alone
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    limit_heap(_LARGE_BYTES)
    threading.stack_size(1 << 18)
    with socket.socket(fileno=int(sys.argv[-1])) as control:
        while True:
            message, fds, _, _ = socket.recv_fds(control, 1, 1)
            if not message:
                os._exit(0)  # do not wait for the threads, one of which may hang
            for fd in fds:
                _Channel(socket.socket(fileno=fd))
