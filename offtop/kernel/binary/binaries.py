"""The binaries that are open at the moment, and the child process that reads them (reader.py).

At most 16 are open, because each holds memory, and none longer than needed. A file that the child dies of, or is
too slow with, is left alone for five minutes. After four of them in a minute all files wait.
"""

import os
import select
import socket
import struct
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from offtop.kernel.binary import cpython_layout, reader, sandbox
from offtop.kernel.binary.confinement import RefusedError
from offtop.kernel.binary.cpython_layout import Interpreter
from offtop.kernel.binary.files import File, OpenedFile
from offtop.kernel.procfs.guarded_reads import GuardedReads
from offtop.model.aggregate.stack_problems import FILE_GONE, NO_ELF, NOT_CONFINED, TOO_SLOW, UNREADABLE
from offtop.printable import printable

_MOST_OPEN = 16
_LEFT_ALONE_S = 300.0
_MOST_FAILURES = 4
_FAILURES_S = 60.0
_BEGIN_S = 15.0
"""A child may take so long to begin, which is no file's fault: seconds where the machine is slow, or busy."""
_END_S = 1.0
"""A child that waits for a file system may take its time to die; it does so without us then."""
_OPEN_S = 1.0
"""A file system that takes longer to open a file hangs, or might as well."""
_LONGEST_ANSWER = 1 << 18
_LONGEST_NAME = 10_010
"""1000 characters, each of which may be spelled out."""
_CPU_CLOCK = 2
"""With a pid before it: a clock of what that process takes of CPUs (the kernel's CPUCLOCK_SCHED)."""


class _Child:
    """A running symbol reader. Its answers are not trusted: the file that it reads may have taken it over."""

    def __init__(self, answer_s: float, nice: int, debug_directory: str) -> None:
        self.is_asked = False
        self._answer_s, self._has_begun = answer_s, False
        self._lacking: list[str] = []
        self._socket, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        self._socket.settimeout(_BEGIN_S)
        with theirs:
            number = theirs.fileno()
            self._process = sandbox.start("reader", [str(nice), str(number), debug_directory], fds=[number])

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def begin(self) -> list[str]:
        """Wait until it is confined, and return what is lacking for that (confinement.confine).

        Raises RefusedError if it is not, and has ended; OSError if it does not begin in time.
        """
        if not self._has_begun:
            _, *said = self._socket.recv(_LONGEST_ANSWER).decode(errors="replace").split("\0")
            self._socket.settimeout(self._answer_s)
            self._has_begun = True
            self._lacking = [printable(one) for one in said[1:]]
            if said[:1] == [reader.NO]:
                raise RefusedError(self._lacking[0])
            if not said:
                raise ConnectionError("the symbol reader has ended")
        return self._lacking

    def take_debug_file(self, number: int, fd: int) -> None:
        """The file that its debug link names. Raises OSError."""
        self._tell(reader.BESIDE, number, fds=[fd])

    def close(self, number: int) -> None:
        """Returns at once. Raises OSError where it has ended, or does not listen."""
        if not select.select([], [self._socket], [], 0)[1]:
            raise BlockingIOError
        self._tell(reader.CLOSE, number)

    def _tell(self, kind: bytes, number: int, rest: bytes = b"", fds: Sequence[int] = ()) -> None:
        socket.send_fds(self._socket, [reader.HEAD.pack(kind, number) + rest], fds)

    def ask(self, answers: int, kind: bytes, number: int, rest: bytes, fds: Sequence[int] = ()) -> list[str]:
        """So many answers, printable. `fds` are closed as soon as the child has them.

        Raises OSError if they do not come in time, or are not what was asked; RefusedError as begin() does.
        """
        self.is_asked = True
        try:
            try:
                self.begin()
                self._tell(kind, number, rest, fds)
            finally:
                for fd in fds:
                    os.close(fd)
            _, *said = self._socket.recv(_LONGEST_ANSWER).decode(errors="replace").split("\0")
        finally:
            self.is_asked = False
        if len(said) != answers:
            raise ConnectionError("the symbol reader has ended")
        return [printable(one[:_LONGEST_NAME]) for one in said]

    def end(self) -> None:
        self._socket.close()
        with suppress(OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait(_END_S)


class Binaries:
    """Asks a child of its own about files, for one thread, and keeps open those used last."""

    def __init__(
        self, answer_s: float, nice: int = reader.NICE, debug_directory: str = "", reads: GuardedReads | None = None
    ) -> None:
        """`answer_s`: a child that takes longer for an answer is ended. `nice`: how much it gives way to others.
        `debug_directory`: as dwfl.look_in has it. `reads`: by which files are opened."""
        self._reads = (reads or GuardedReads()).channel(_OPEN_S)
        self._answer_s, self._nice, self._debug_directory = answer_s, nice, debug_directory
        self._child: _Child | None = None
        self._open: dict[File, tuple[int, OpenedFile]] = {}
        """A number, by which the child knows the file, and the file, to see whether it changes."""
        self._next = 1
        self._left_alone: dict[File, float] = {}
        """Until when, on CLOCK_MONOTONIC."""
        self._failures_s: deque[float] = deque(maxlen=_MOST_FAILURES)
        self.failures = 0
        """How often the child died, or was too slow and had to be ended."""
        self.refused = ""
        """Why no file is read: what RefusedError says. Empty: they are, as far as is known."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def pid(self) -> int:
        """Of the child; 0 where there is none. For any thread."""
        child = self._child
        return child.pid if child else 0

    @property
    def cpu_s(self) -> float:
        """CPU time that the child has used so far; 0 where there is none."""
        with suppress(OSError):
            return time.clock_gettime(~self.pid << 3 | _CPU_CLOCK) if self.pid else 0.0
        return 0.0

    @property
    def is_asking(self) -> bool:
        """Whether an answer is being waited for, which takes no longer than was said. For any thread."""
        child = self._child
        return child is not None and child.is_asked

    def is_left_alone(self, file: File) -> bool:
        """Whether nothing is known of it because a child died of it, or was too slow."""
        return file in self._left_alone

    @property
    def rest_s(self) -> float:
        """Seconds until there may be another child; 0 but for a while after several have died."""
        if self._child or len(self._failures_s) < _MOST_FAILURES:
            return 0.0
        return max(0.0, self._failures_s[0] + _FAILURES_S - time.monotonic())

    def names(self, file: File, offsets: Sequence[int]) -> list[str]:
        """For each offset its symbol, or nothing."""
        return self._ask(reader.NAMES, file, offsets)

    def rules(self, file: File, offsets: Sequence[int]) -> list[str]:
        """For each offset what rules.read reads; nothing of a file that cannot be read."""
        return self._ask(reader.RULES, file, offsets)

    def wanted(self, file: File) -> str:
        """What dwfl.Binary says; nothing of a file that cannot be read."""
        return self._ask_once(reader.WANTED, file)

    def symbols(self, file: File) -> str:
        """What reader.SYMBOLS is answered by; nothing of a file that cannot be read."""
        return self._ask_once(reader.SYMBOLS, file)

    def python(self, file: File) -> Interpreter | None:
        """Where CPython is in it; None where it is not, or is not known."""
        return cpython_layout.read(self._ask_once(reader.PYTHON, file))

    def start(self) -> _Child:
        """The child, started if there is none. Raises OSError where it cannot be."""
        if self._child and not self._child.is_running:
            self.end()  # no file's fault: it was waiting
        if self._child is None:
            self._child = _Child(self._answer_s, self._nice, self._debug_directory)
        return self._child

    def begin(self) -> list[str]:
        """Start the child, and wait until it is confined: what is lacking for that. Raises OSError where it cannot be
        started; no file is read if `refused` says something then."""
        try:
            return [] if self.refused else self.start().begin()
        except RefusedError as refused:
            self._refuse(refused)
            return []

    def close(self) -> None:
        """Close all files; they are opened again when they are needed."""
        while self._open:
            self._close(next(iter(self._open)))

    def end(self) -> None:
        """End the child as well; it, too, comes back when it is needed."""
        if self._child:
            self._child.end()
            self._child = None
        self.close()

    def _ask_once(self, kind: bytes, file: File) -> str:
        try:
            if not self._is_left_alone(file) and self._is_open(child := self.start(), file):
                return child.ask(1, kind, self._open[file][0], b"")[0]
        except RefusedError as refused:
            self._refuse(refused)
            file.unreadable = NOT_CONFINED
        except OSError:
            self._leave_alone(file)
        return ""

    def _ask(self, kind: bytes, file: File, offsets: Sequence[int]) -> list[str]:
        try:
            if offsets and not self._is_left_alone(file):
                child = self.start()
                if self._is_open(child, file):
                    words = struct.pack(f"={len(offsets)}Q", *offsets)
                    return child.ask(len(offsets), kind, self._open[file][0], words)
        except RefusedError as refused:
            self._refuse(refused)
            file.unreadable = NOT_CONFINED
        except OSError:
            self._leave_alone(file)
        return [""] * len(offsets)

    def _refuse(self, refused: RefusedError) -> None:
        self.refused = str(refused)
        self.end()

    def _is_left_alone(self, file: File) -> bool:
        if self.refused:
            file.unreadable = NOT_CONFINED
            return True
        until_s = self._left_alone.get(file)
        if until_s is None:
            return False
        if time.monotonic() < until_s:
            file.unreadable = TOO_SLOW
            return True
        del self._left_alone[file]
        file.forget_nameless()
        return False

    def _leave_alone(self, file: File) -> None:
        now_s = time.monotonic()
        self._left_alone = {one: until_s for one, until_s in self._left_alone.items() if until_s > now_s}
        self._left_alone[file] = now_s + _LEFT_ALONE_S
        self._failures_s.append(now_s)
        self.failures += 1
        file.unreadable = TOO_SLOW
        self.end()

    def _is_open(self, child: _Child, file: File) -> bool:
        """Whether `file` is open in the child by now: not if it cannot be, is no ELF, or was overwritten."""
        try:
            self._look_again(file)
            if file.retired:
                return False
            if file in self._open:
                self._open[file] = self._open.pop(file)  # at the end: the others are closed first
                return True
            found = file.open(self._reads)
        except TimeoutError:
            return self._hangs(file)
        if found is None:
            file.unreadable = UNREADABLE if Path(f"/proc/{file.mapping.pid}").exists() else FILE_GONE
            return False
        if len(self._open) >= _MOST_OPEN:
            self._close(next(iter(self._open)))
        number, self._next = self._next, self._next + 1
        self._open[file] = number, found
        answer, _, link = child.ask(1, reader.OPEN, number, os.fsencode(file.path), [found.fd])[0].partition(" ")
        if answer != reader.YES:
            file.unreadable = NO_ELF
            self._open.pop(file)[1].let_go(self._reads)
            return False
        file.unreadable = ""
        debug_file = self._beside(file, link) if link else None
        if debug_file is not None:
            try:
                child.take_debug_file(number, debug_file)
            finally:
                os.close(debug_file)
        return True

    def _look_again(self, file: File) -> None:
        """Close it, if it was overwritten or explained since it was opened. Raises TimeoutError."""
        if file not in self._open:
            return
        try:
            written_ns = self._open[file][1].written_ns(self._reads)
        except TimeoutError:
            raise
        except OSError:  # that child has died: it is opened again
            self._close(file)
            return
        if written_ns not in (None, file.written_ns):
            self._close(file)
            file.retired = True
        elif file.explained and self._debug_directory:
            file.explained = False
            self._close(file)

    def _beside(self, file: File, name: str) -> int | None:
        """A descriptor of the debug file called `name` that lies beside a binary or in .debug there, as libdw looks for
        it.

        The child can open nothing by its path. The name is the binary's word: so it is opened only if it is a file, in
        that directory, which anybody may read.
        """
        if name != Path(name).name:
            return None
        directory = Path(file.path).parent
        for candidate in (directory / name, directory / ".debug" / name):
            with suppress(OSError):
                return self._reads.open(file.device, str(candidate), function="opened_of_anybody")[1]
        return None

    def _hangs(self, file: File) -> bool:
        """It is left alone as one that the child was too slow with, but no child is to blame."""
        self._left_alone[file] = time.monotonic() + _LEFT_ALONE_S
        file.unreadable = TOO_SLOW
        if file in self._open:
            self._close(file)
        return False

    def _close(self, file: File) -> None:
        number, found = self._open.pop(file)
        found.let_go(self._reads)
        if self._child:
            try:
                self._child.close(number)
            except OSError:
                self.end()
