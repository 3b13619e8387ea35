"""Reads of other processes and their files, with a deadline: what hangs is left behind, and said to be not read.

The reads are made by a child process (readchild.py). One that misses its deadline goes on hanging there, and its
subject (a process, a device) is not asked again until the answer comes, late as it may be: that is when whatever held
it has let go. A read that is only slow is known at the next try. No lock of offtop's is held while a read hangs.
"""

import marshal
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Hashable
from contextlib import suppress
from pathlib import Path
from typing import Any

from offtop.kernel.procfs import read_child

MOST_HUNG = 64
"""Reads of one channel that may hang at once; each keeps a thread of the child. Then no more begin."""
_LEAST_S = 0.005
"""A read gets so much time also where the allowance of a tick is used up: most take 0.2 ms."""
_STARVED_S = 1.0
"""How long a read, and all reads of a tick, may wait for the child to get a CPU, beyond their deadlines."""
_AGAIN_S = 1.0
"""From one start of the child to the next, at least."""
_BEGIN_S = 15.0
"""So long the child may take to begin, where the machine is slow or busy."""
_END_S = 0.2
"""A child that hangs dies when it can, without us."""
_START = "import sys; sys.path.append(sys.argv[1]); from offtop.kernel.procfs import read_child; read_child.main()"
_ROOT = Path(__file__).resolve().parents[3]


class _MissedError(Exception):
    """No answer has come in time."""


class GuardedReads:
    """The child, started when it is first needed and again when it has died. For any thread."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._started_s = float("-inf")
        self._is_closed = False
        self.has_begun = False
        """Whether the child has answered anything yet."""
        self._channels: list[Channel] = []
        self._lock = threading.Lock()

    @property
    def pid(self) -> int:
        """Of the child; 0 where there is none."""
        process = self._process
        return process.pid if process else 0

    @property
    def hung(self) -> frozenset[Hashable]:
        """The subjects of all reads that hang."""
        return frozenset[Hashable]().union(*(channel.hung for channel in [*self._channels]))

    @property
    def is_full(self) -> bool:
        """Whether so many reads of some kind hang that no more of them begin."""
        return any(len(channel.hung) >= MOST_HUNG for channel in [*self._channels])

    def channel(self, patience_s: float, allowance_s: float = float("inf")) -> "Channel":
        """For the reads of one thread. `patience_s`: the deadline of each. `allowance_s`: how long those that miss it
        may take together, from one `refill` to the next."""
        made = Channel(self, patience_s, allowance_s)
        self._channels.append(made)
        return made

    def start(self) -> None:
        """Start the child, if there is none. Returns at once."""
        with self._lock, suppress(OSError):  # the first read fails, then
            self._start()

    def connect(self) -> socket.socket:
        """A socket that the child serves. Raises OSError where it cannot be started."""
        with self._lock:
            self._start()
            assert self._control
            ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
            with theirs:
                socket.send_fds(self._control, [b"c"], [theirs.fileno()])
            return ours

    def _start(self) -> None:
        if self._is_closed:
            raise BrokenPipeError
        if self._process is not None and self._process.poll() is None:
            return
        if time.monotonic() - self._started_s < _AGAIN_S:
            raise BlockingIOError
        self._started_s, self.has_begun = time.monotonic(), False
        if self._control:
            self._control.close()
        self._control, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with theirs:
            # -I and -S: no code from where offtop was started, and no packages but the standard library.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _START, str(_ROOT), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd="/",
                env={},
                start_new_session=True,  # a ctrl-C on the terminal is the parent's to answer
            )

    def close(self) -> None:
        """End the child, or leave it behind where it hangs. May be called twice; reads fail from now on."""
        with self._lock:
            self._is_closed = True
            if self._control:
                self._control.close()
            if self._process:
                self._process.kill()
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(_END_S)


class Channel:
    """Reads one after the other. For any thread, but who comes second waits for the deadline of the first."""

    def __init__(self, reads: GuardedReads, patience_s: float, allowance_s: float) -> None:
        self._reads, self._patience_s, self._allowance_s = reads, patience_s, allowance_s
        self._left_s, self._starved_left_s = allowance_s, _STARVED_S
        self._socket: socket.socket | None = None
        self._next = 1
        self._hung: dict[int, Hashable] = {}
        """Numbers of requests that missed their deadline → subject."""
        self._lock = threading.Lock()

    @property
    def hung(self) -> frozenset[Hashable]:
        """Subjects that are not asked, because a read of theirs hangs."""
        return frozenset([*self._hung.values()])

    def start(self) -> None:
        """Have the child begin, and wait until it answers: no read then misses its deadline for that. Where it cannot
        begin, reads are not answered."""
        with suppress(TimeoutError):
            self.ask(None, "contents", [], 0)

    def refill(self) -> None:
        """A tick begins: the whole allowance is there again. Late answers are heard."""
        self._left_s, self._starved_left_s = self._allowance_s, _STARVED_S
        with self._lock:
            self._hear()

    def ask(self, subject: Hashable, function: str, *arguments: Any) -> Any:
        """The result of a function of readchild. Raises OSError where that did, and TimeoutError where it was not read:
        it missed the deadline, or an earlier read of the subject still hangs."""
        result, fds = self._ask(subject, function, arguments)
        assert not fds
        return result

    def open(self, subject: Hashable, path: str, inode: int = 0, function: str = "opened") -> tuple[list[int], int]:
        """readchild.opened, or another such function: device, inode, size and mtime, and a descriptor, to be closed by
        the caller, and soon. Raises as `ask` does."""
        result, (fd,) = self._ask(subject, function, (path, inode))
        return result, fd

    def keep(self, subject: Hashable, path: str, inode: int) -> tuple[list[int], tuple[int, int], int]:
        """The same of readchild.kept, with what it is known by there."""
        (*status, pid, kept), (fd,) = self._ask(subject, "kept", (path, inode))
        return status, (pid, kept), fd

    def _ask(self, subject: Hashable, function: str, arguments: tuple[Any, ...]) -> tuple[Any, list[int]]:
        with self._lock:
            self._hear()
            if subject in self._hung.values() or len(self._hung) >= MOST_HUNG:
                raise TimeoutError
            number, self._next = self._next, self._next + 1
            try:
                if self._socket is None:
                    self._socket = self._reads.connect()
                self._socket.send(marshal.dumps((number, function, arguments)))
                result = self._answer(self._socket, number)
            except _MissedError:
                self._hung[number] = subject
                raise TimeoutError from None
            except OSError:  # the child has died, or cannot be started: it is no subject's fault
                self._disconnect()
                raise TimeoutError from None
        return _result(*result)

    def _answer(self, asked: socket.socket, number: int) -> tuple[int, bytes, list[int]]:
        """Wait for the answer to request `number`. Raises _MissedError.

        A child that gets no CPU misses deadlines, too, and that is not the subject's fault. So a request that cannot
        hang follows one that missed its deadline. It is served by another thread: once it is answered, the child runs.
        """
        began_s = time.monotonic()
        patience_s = max(_LEAST_S, min(self._patience_s, self._left_s))
        if not self._reads.has_begun and self._allowance_s == float("inf"):  # which is no subject's fault
            patience_s = _BEGIN_S
        until_s, probe = began_s + patience_s, 0
        while True:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                if probe:
                    break
                probe, self._next = self._next, self._next + 1
                asked.send(marshal.dumps((probe, "contents", ([], 0))))
                starved_s = _STARVED_S if self._allowance_s == float("inf") else self._starved_left_s
                until_s = time.monotonic() + (left_s := max(_LEAST_S, starved_s))
            asked.settimeout(left_s)
            try:
                answered, kind, raw, fds = _received(asked)
            except TimeoutError:
                continue
            self._reads.has_begun = True
            if answered == number:
                self._count_starved(began_s + patience_s)
                return kind, raw, fds
            self._forget(answered, fds)
            if answered == probe:
                until_s = time.monotonic() + _LEAST_S
        self._left_s -= patience_s
        self._count_starved(began_s + patience_s)
        raise _MissedError

    def _count_starved(self, deadline_s: float) -> None:
        self._starved_left_s -= max(0.0, time.monotonic() - deadline_s)

    def _hear(self) -> None:
        """Take late answers: their subjects can be asked again."""
        while self._hung and self._socket:
            self._socket.settimeout(0)
            try:
                answered, _, _, fds = _received(self._socket)
            except BlockingIOError:
                return
            except ConnectionError:
                self._disconnect()
                return
            self._forget(answered, fds)

    def _forget(self, number: int, fds: list[int]) -> None:
        self._hung.pop(number, None)
        for fd in fds:
            os.close(fd)

    def _disconnect(self) -> None:
        if self._socket:
            self._socket.close()
        self._socket = None
        self._hung.clear()


def _received(asked: socket.socket) -> tuple[int, int, bytes, list[int]]:
    raw, fds, _, _ = socket.recv_fds(asked, read_child.LONGEST_MESSAGE, 2)
    if not raw:
        raise ConnectionResetError
    number, kind = read_child.HEAD.unpack_from(raw)
    return number, kind, raw[read_child.HEAD.size :], fds


def _result(kind: int, raw: bytes, fds: list[int]) -> tuple[Any, list[int]]:
    if kind == read_child.IN_A_FILE:
        with os.fdopen(fds.pop(), "rb") as file:
            file.seek(0)
            raw = file.read()
    result = marshal.loads(raw)
    if kind == read_child.FAILED:
        raise OSError(result, os.strerror(result))
    return result, fds
