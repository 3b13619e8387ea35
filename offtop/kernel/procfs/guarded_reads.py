"""Read other processes and their files with a deadline, so that a read that hangs does not block offtop.

The reads are done by a child process (read_child.py). A read that misses its deadline keeps hanging there, and no
further read of its subject (a process, a device) starts until its answer arrives, however late: then whatever blocked
it is over. A read that was only slow succeeds at the next try. offtop holds no lock of its own while a read hangs.
"""

import errno
import marshal
import os
import socket
import threading
import time
from collections.abc import Hashable
from contextlib import suppress
from typing import Any

from offtop.kernel.procfs import read_child
from offtop.kernel.sandbox import Sandbox

MOST_HUNG = 64
"""Maximum number of hung reads of a channel, beyond which it starts no more; each occupies a thread of the child."""
_LEAST_S = 0.005
"""Minimum deadline of a read, also if the allowance of the tick is used up: most reads take 0.2 ms."""
_STARVED_S = 1.0
"""How long a read, and all reads of a tick, may wait for the child to get a CPU, beyond their deadlines."""
_AGAIN_S = 1.0
"""Minimum time from one start of the child to the next."""
_STARTUP_S = 15.0
"""How long the child may take to start, if the machine is slow or busy."""
_EXIT_S = 0.2
"""How long to wait for the child to exit. One that hangs exits later, without us."""


class _MissedError(Exception):
    """No answer arrived before the deadline."""


class GuardedReads:
    """The read child, started when it is first needed and restarted when it has died.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._child: Sandbox | None = None
        self._started_s = float("-inf")
        self._is_closed = False
        self.has_begun = False
        """Whether the child has answered a request yet."""
        self.failures = 0
        """How many children in a row have exited without an answer."""
        self._channels: list[Channel] = []
        self._lock = threading.Lock()

    @property
    def pid(self) -> int:
        """PID of the read child, or 0 if it was never started."""
        child = self._child
        return child.pid if child else 0

    @property
    def hung(self) -> frozenset[Hashable]:
        """Subjects of all reads that hang."""
        return frozenset[Hashable]().union(*(channel.hung for channel in [*self._channels]))

    @property
    def is_full(self) -> bool:
        """Whether a channel starts no more reads, because too many of its reads hang."""
        return any(len(channel.hung) >= MOST_HUNG for channel in [*self._channels])

    def channel(self, patience_s: float, allowance_s: float = float("inf")) -> "Channel":
        """Make a channel for the reads of one thread.

        `patience_s`: deadline of each read. `allowance_s`: how long the reads that miss it may take together, from one
        `refill` to the next.
        """
        channel = Channel(self, patience_s, allowance_s)
        self._channels.append(channel)
        return channel

    def forget(self, channel: "Channel") -> None:
        """Drop a channel that was closed."""
        with suppress(ValueError):
            self._channels.remove(channel)

    def start(self) -> None:
        """Start the child if it is not running. Returns at once."""
        with self._lock, suppress(OSError):  # if it fails, so does the first read
            self._start()

    def connect(self) -> socket.socket:
        """Return a socket that the child serves. Raises OSError if the child cannot be started."""
        with self._lock:
            control = self._start()
            parent_end, child_end = socket.socketpair(type=socket.SOCK_SEQPACKET)
            with child_end:
                socket.send_fds(control, [b"c"], [child_end.fileno()])
            return parent_end

    def _start(self) -> socket.socket:
        if self._is_closed:
            raise BrokenPipeError
        if self._child is not None and self._child.is_running:
            return self._child.socket
        if time.monotonic() - self._started_s < _AGAIN_S:
            raise BlockingIOError
        self.failures = 0 if self.has_begun or self._child is None else self.failures + 1
        self._started_s, self.has_begun = time.monotonic(), False
        if self._child:
            self._child.end()
        self._child = Sandbox("procfs.read_child")
        return self._child.socket

    def close(self) -> None:
        """Kill the child, or leave it behind if it hangs. Reads fail from now on.

        May be called twice.
        """
        with self._lock:
            self._is_closed = True
            if self._child:
                self._child.end(_EXIT_S)


class Channel:
    """Makes reads one after the other.

    Thread-safe, but a read waits until the previous one is done or times out.
    """

    def __init__(self, reads: GuardedReads, patience_s: float, allowance_s: float) -> None:
        self._reads, self._patience_s, self._allowance_s = reads, patience_s, allowance_s
        self._left_s, self._starved_left_s = allowance_s, _STARVED_S
        self._socket: socket.socket | None = None
        self._next = 1
        self.is_waiting = False
        """Whether it waits for an answer, which has a deadline. Thread-safe."""
        self._late_kept_open: set[int] = set()
        """Numbers of `keep` requests that missed their deadline."""
        self._is_closed = False
        self._hung: dict[int, Hashable] = {}
        """Number of each request that missed its deadline → subject."""
        self._lock = threading.Lock()

    @property
    def hung(self) -> frozenset[Hashable]:
        """Subjects that cannot be read, because a read of theirs hangs."""
        return frozenset([*self._hung.values()])

    def start(self) -> None:
        """Start the child and wait until it answers.

        So no read misses its deadline because of the startup.

        If the child cannot be started, reads time out.
        """
        with suppress(TimeoutError):
            self.ask(None, "contents", [], 0)

    def close(self) -> None:
        """Close the socket, so that the child's threads of this channel exit. Reads time out from now on."""
        with self._lock:
            self._is_closed = True
            self._disconnect()
        self._reads.forget(self)

    def post(self, function: str, *arguments: Any) -> None:
        """Call a function of read_child without waiting for it, even if reads hang."""
        with self._lock, suppress(OSError):
            if self._socket is not None:
                self._send(function, arguments)

    def refill(self) -> None:
        """Begin a tick: reset the allowance, and receive late answers."""
        self._left_s, self._starved_left_s = self._allowance_s, _STARVED_S
        with self._lock:
            self._receive_late_answers()

    def ask(self, subject: Hashable, function: str, *arguments: Any) -> Any:
        """Call a function of read_child and return its result.

        Raises OSError if the function did, and TimeoutError if there is no result: it missed the deadline, or an
        earlier read of the subject still hangs.
        """
        result, fds = self._ask(subject, function, arguments)
        assert not fds
        return result

    def open(self, subject: Hashable, path: str, inode: int = 0, function: str = "opened") -> tuple[list[int], int]:
        """Call read_child.opened, or a similar function.

        Returns device, inode, size and mtime, and a file descriptor that the caller must close soon. Raises as `ask`
        does.
        """
        result, (fd,) = self._ask(subject, function, (path, inode))
        return result, fd

    def keep_open(self, subject: Hashable, path: str, inode: int) -> tuple[list[int], tuple[int, int], int]:
        """Call read_child.kept_open.

        As `open`, but also returns the child's pid and its own descriptor of the file.
        """
        (*status, pid, child_fd), (fd,) = self._ask(subject, "kept_open", (path, inode))
        return status, (pid, child_fd), fd

    def _ask(self, subject: Hashable, function: str, arguments: tuple[Any, ...]) -> tuple[Any, list[int]]:
        with self._lock:
            self._receive_late_answers()
            if self._is_closed or subject in self._hung.values() or len(self._hung) >= MOST_HUNG:
                raise TimeoutError
            number = 0
            self.is_waiting = True
            try:
                if self._socket is None:
                    self._socket = self._reads.connect()
                number = self._send(function, arguments)
                result = self._answer(self._socket, number)
            except (_MissedError, TimeoutError):  # TimeoutError: the socket is full, because the child gets no CPU
                if number:
                    self._hung[number] = subject
                if number and function == "kept_open":
                    self._late_kept_open.add(number)
                raise TimeoutError from None
            except OSError:  # the child has died, or cannot be started: do not blame the subject
                self._disconnect()
                raise TimeoutError from None
            finally:
                self.is_waiting = False
        return _result(*result)

    def _send(self, function: str, arguments: tuple[Any, ...]) -> int:
        """Send a request and return its number."""
        assert self._socket is not None
        number, self._next = self._next, self._next + 1
        request = marshal.dumps((number, function, arguments))
        assert len(request) <= read_child.LONGEST_MESSAGE, f"{function}: a request of {len(request)} bytes"
        self._socket.settimeout(_LEAST_S)
        self._socket.send(request)
        return number

    def _answer(self, sock: socket.socket, number: int) -> tuple[int, bytes, list[int]]:
        """Wait for the answer to request `number`. Raises _MissedError.

        If the child gets no CPU, deadlines are missed too, although the subject is fine. So when a request misses its
        deadline, a request that cannot hang is sent. Another thread of the child serves it: once it is answered, the
        child is known to run.
        """
        began_s = time.monotonic()
        patience_s = max(_LEAST_S, min(self._patience_s, self._left_s))
        if not self._reads.has_begun and self._allowance_s == float("inf"):  # the child is still starting
            patience_s = _STARTUP_S
        until_s, probe = began_s + patience_s, 0
        while True:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                if probe:
                    break
                probe = self._send("contents", ([], 0))
                starved_s = _STARVED_S if self._allowance_s == float("inf") else self._starved_left_s
                until_s = time.monotonic() + (left_s := max(_LEAST_S, starved_s))
            sock.settimeout(left_s)
            try:
                answered, kind, raw, fds = _received(sock)
            except TimeoutError:
                continue
            self._reads.has_begun = True
            if answered == number:
                self._count_starved(began_s + patience_s)
                return kind, raw, fds
            self._forget(answered, kind, raw, fds)
            if answered == probe:
                until_s = time.monotonic() + _LEAST_S
        self._left_s -= patience_s
        self._count_starved(began_s + patience_s)
        raise _MissedError

    def _count_starved(self, deadline_s: float) -> None:
        self._starved_left_s -= max(0.0, time.monotonic() - deadline_s)

    def _receive_late_answers(self) -> None:
        """Receive late answers: their subjects can be read again."""
        while self._hung and self._socket:
            self._socket.settimeout(0)
            try:
                answered, kind, raw, fds = _received(self._socket)
            except BlockingIOError:
                return
            except ConnectionError:
                self._disconnect()
                return
            self._forget(answered, kind, raw, fds)

    def _forget(self, number: int, kind: int, raw: bytes, fds: list[int]) -> None:
        self._hung.pop(number, None)
        for fd in fds:
            os.close(fd)
        if number in self._late_kept_open:
            self._late_kept_open.discard(number)
            if kind == read_child.ANSWERED:
                *_, pid, child_fd = marshal.loads(raw)
                with suppress(OSError):
                    self._send("release", (pid, child_fd))

    def _disconnect(self) -> None:
        if self._socket:
            self._socket.close()
        self._socket = None
        self._hung.clear()
        self._late_kept_open.clear()


def _received(sock: socket.socket) -> tuple[int, int, bytes, list[int]]:
    raw, fds, flags, _ = socket.recv_fds(sock, read_child.LONGEST_MESSAGE, 2)
    if not raw:
        raise ConnectionResetError
    number, kind = read_child.HEAD.unpack_from(raw)
    if flags & socket.MSG_CTRUNC:  # this process has too many files open to receive a descriptor
        for fd in fds:
            os.close(fd)
        return number, read_child.FAILED, marshal.dumps(errno.EMFILE), []
    return number, kind, raw[read_child.HEAD.size :], fds


def _result(kind: int, raw: bytes, fds: list[int]) -> tuple[Any, list[int]]:
    if kind == read_child.IN_A_FILE:
        with os.fdopen(fds.pop(), "rb") as file:
            file.seek(0)
            raw = file.read()
    result = marshal.loads(raw)
    if kind == read_child.FAILED:
        if result in read_child.EXHAUSTED:  # the file was not read, but nothing is wrong with it
            raise TimeoutError
        raise OSError(result, os.strerror(result))
    return result, fds
