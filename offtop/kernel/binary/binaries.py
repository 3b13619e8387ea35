"""The binaries that are currently open, and the child process that reads them (reader.py).

At most 16 binaries are open, because each holds memory, and they are closed when nothing was asked of them for 20 s.
The child is ended when nothing was asked of it for that long.
If the child crashes on a file or takes too long for it, that file is skipped for five minutes. After four such failures
within a minute no file is read until that minute has passed.
"""

import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from offtop.kernel.binary import cpython_layout, reader
from offtop.kernel.binary.confinement import RefusedError, report_of
from offtop.kernel.binary.cpython_layout import Interpreter
from offtop.kernel.binary.files import File, OpenedFile
from offtop.kernel.procfs.guarded_reads import GuardedReads
from offtop.kernel.sandbox import Sandbox
from offtop.model.aggregate.stack_problems import FILE_GONE, NO_ELF, NOT_CONFINED, TOO_SLOW, UNREADABLE
from offtop.printable import printable

_MOST_OPEN = 16
_UNUSED_S = 20.0
"""A file is closed then, so that its memory is free, and so are its disk space and file system once others are done."""
_IDLE_S = 20.0
"""The child is ended then: it holds 8 to 20 MB, and starting it again takes 0.04 s of CPU time."""
_SKIP_S = 300.0
_MOST_FAILURES = 4
_FAILURES_S = 60.0
_BEGIN_S = 15.0
"""How long a child may take to start: seconds if the machine is slow or busy. No file is blamed for that."""
_OPEN_S = 1.0
"""A file system that takes longer than this to open a file is treated as hung."""
_LONGEST_NAME = 10_010
"""1000 characters, each of which may be written as an escape sequence."""
_CPU_CLOCK = 2
"""The kernel's CPUCLOCK_SCHED: combined with a PID, it is the clock ID of that process's CPU time."""


class _Child(Sandbox):
    """A running symbol reader.

    Its answers are not trusted, because a crafted file may have taken it over.
    """

    def __init__(self, answer_s: float, nice: int, debug_directory: str) -> None:
        super().__init__("binary.reader", [str(nice), debug_directory])
        self.is_asked = False
        self._answer_s = answer_s
        self._lacking: list[str] | None = None

    def begin(self) -> list[str]:
        """Wait until the child is confined; return the measures that failed. Raises as confinement.report_of."""
        if self._lacking is None:
            self._lacking = report_of(self, _BEGIN_S)
            self.socket.settimeout(self._answer_s)
        return self._lacking

    def take_debug_file(self, number: int, fd: int) -> None:
        """Send the file that a binary's debug link names. Raises OSError."""
        self._send(reader.DEBUG_FILE, number, fds=[fd])

    def close(self, number: int) -> None:
        """Have the child close a file, without blocking.

        Raises OSError if the child has exited or its socket is full.
        """
        if not select.select([], [self.socket], [], 0)[1]:
            raise BlockingIOError
        self._send(reader.CLOSE, number)

    def _send(self, kind: bytes, number: int, rest: bytes = b"", fds: Sequence[int] = ()) -> None:
        socket.send_fds(self.socket, [reader.HEAD.pack(kind, number) + rest], fds)

    def ask(self, answers: int, kind: bytes, number: int, rest: bytes, fds: Sequence[int] = ()) -> list[str]:
        """Send a request and return its answers, made printable.

        There must be `answers` of them. `fds` are closed as soon as the child has them. Raises OSError if the answers
        do not arrive in time or their number is wrong, and RefusedError as begin() does.
        """
        self.is_asked = True
        try:
            try:
                self.begin()
                self._send(kind, number, rest, fds)
            finally:
                for fd in fds:
                    os.close(fd)
            reply = self.receive(self._answer_s)
        finally:
            self.is_asked = False
        if len(reply) != answers:
            raise ConnectionError("the symbol reader has sent another number of answers")
        return [printable(one[:_LONGEST_NAME]) for one in reply]


class _Open(NamedTuple):
    number: int
    """By which the child knows the file."""
    file: OpenedFile
    """To notice when it changes."""
    used_s: float
    """When something was asked of it last (CLOCK_MONOTONIC)."""


class Binaries:
    """Asks its own child about files, and keeps the most recently used ones open.

    For use by one thread.
    """

    def __init__(
        self, answer_s: float, nice: int = reader.NICE, debug_directory: str = "", reads: GuardedReads | None = None
    ) -> None:
        """Prepare to read files; the child is started when it is first needed.

        `answer_s`: a child that takes longer than this for an answer is killed. `nice`: the child's niceness.
        `debug_directory`: see dwfl.add_debug_directory. `reads`: used to open files.
        """
        self._reads = (reads or GuardedReads()).channel(_OPEN_S)
        self._answer_s, self._nice, self._debug_directory = answer_s, nice, debug_directory
        self._child: _Child | None = None
        self._needed_s = 0.0
        """When the child was needed last (CLOCK_MONOTONIC)."""
        self._open: dict[File, _Open] = {}
        """Least recently used first."""
        self._next = 1
        self._skipped_until_s: dict[File, float] = {}
        """Skipped files → until when (CLOCK_MONOTONIC)."""
        self._failures_s: deque[float] = deque(maxlen=_MOST_FAILURES)
        self.failures = 0
        """How often the child died, or was killed because it was too slow."""
        self.refused = ""
        """Why no file is read: the text of the RefusedError. Empty if none has been raised."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def pid(self) -> int:
        """PID of the reader process, or 0 if it is not running. Thread-safe."""
        child = self._child
        return child.pid if child else 0

    @property
    def cpu_s(self) -> float:
        """CPU time that the child has used so far, or 0 if it is not running."""
        with suppress(OSError):
            return time.clock_gettime(~self.pid << 3 | _CPU_CLOCK) if self.pid else 0.0
        return 0.0

    @property
    def is_asking(self) -> bool:
        """Whether a request is waiting for the child, for `answer_s` at most. Thread-safe."""
        child = self._child
        return (child is not None and child.is_asked) or self._reads.is_waiting

    def is_skipped(self, file: File) -> bool:
        """Whether the file is skipped, because a child crashed on it or was too slow."""
        return file in self._skipped_until_s

    @property
    def rest_s(self) -> float:
        """Seconds until another child may be started: above 0 only after several have failed."""
        if self._child or len(self._failures_s) < _MOST_FAILURES:
            return 0.0
        return max(0.0, self._failures_s[0] + _FAILURES_S - time.monotonic())

    def names(self, file: File, offsets: Sequence[int]) -> list[str]:
        """Return the symbol at each offset, or an empty string if there is none."""
        return self._ask(reader.NAMES, file, offsets)

    def rules(self, file: File, offsets: Sequence[int]) -> list[str]:
        """Return the unwind rule at each offset, as unwind_rules.parse parses it.

        The strings are empty if the file cannot be read.
        """
        return self._ask(reader.RULES, file, offsets)

    def build_id_to_fetch(self, file: File) -> str:
        """Return dwfl.Binary.build_id_to_fetch of the file, or an empty string if it cannot be read."""
        return self._ask_once(reader.BUILD_ID, file)

    def symbols(self, file: File) -> str:
        """Return the answer to reader.SYMBOLS, or an empty string if the file cannot be read."""
        return self._ask_once(reader.SYMBOLS, file)

    def python(self, file: File) -> Interpreter | None:
        """Return where CPython is in the file; None if it has none, or that is unknown."""
        return cpython_layout.parse(self._ask_once(reader.PYTHON, file))

    def start(self) -> _Child:
        """Return the child; start it if it is not running. Raises OSError if that fails."""
        if self._child and not self._child.is_running:
            self.end()  # it was idle when it died, so no file is to blame
        if self._child is None:
            self._child = _Child(self._answer_s, self._nice, self._debug_directory)
        self._needed_s = time.monotonic()
        return self._child

    def begin(self) -> list[str]:
        """Start the child and wait until it is confined; return the measures that failed.

        Raises OSError if it cannot be started. If `refused` is set afterwards, no file will be read.
        """
        try:
            return [] if self.refused else self.start().begin()
        except RefusedError as refused:
            self._refuse(refused)
            return []

    def close_unused(self) -> float | None:
        """Close the files of which nothing was asked for 20 s, and end the child if it is idle.

        Both are done again when needed. Return in how many seconds there may be more to do; None: not until then.
        """
        now_s = time.monotonic()
        for file, one in [*self._open.items()]:
            if one.used_s > now_s - _UNUSED_S:
                return one.used_s + _UNUSED_S - now_s
            self._close(file)
        if self._child is None:
            return None
        if self._needed_s > now_s - _IDLE_S:
            return self._needed_s + _IDLE_S - now_s
        self.end()
        return None

    def close_reads(self) -> None:
        """Stop opening files: no other file is read from now on."""
        self._reads.close()

    def end(self) -> None:
        """End the child and close all files. It is restarted when needed."""
        if self._child:
            self._child.end()
            self._child = None
        while self._open:
            self._close(next(iter(self._open)))

    def _ask_once(self, kind: bytes, file: File) -> str:
        (answer,) = self._answers(1, kind, file, ())
        return answer

    def _ask(self, kind: bytes, file: File, offsets: Sequence[int]) -> list[str]:
        return self._answers(len(offsets), kind, file, offsets) if offsets else []

    def _answers(self, count: int, kind: bytes, file: File, offsets: Sequence[int]) -> list[str]:
        try:
            if not self._is_skipped(file) and self._is_open(child := self.start(), file):
                return child.ask(count, kind, self._open[file].number, struct.pack(f"={len(offsets)}Q", *offsets))
        except RefusedError as refused:
            self._refuse(refused)
            file.unreadable = NOT_CONFINED
        except OSError:
            self._skip(file)
        return [""] * count

    def _refuse(self, refused: RefusedError) -> None:
        self.refused = str(refused)
        self.end()

    def _is_skipped(self, file: File) -> bool:
        if self.refused:
            file.unreadable = NOT_CONFINED
            return True
        until_s = self._skipped_until_s.get(file)
        if until_s is None:
            return False
        if time.monotonic() < until_s:
            file.unreadable = TOO_SLOW
            return True
        del self._skipped_until_s[file]
        file.forget_nameless()
        return False

    def _skip(self, file: File) -> None:
        now_s = time.monotonic()
        self._skipped_until_s = {one: until_s for one, until_s in self._skipped_until_s.items() if until_s > now_s}
        self._skipped_until_s[file] = now_s + _SKIP_S
        self._failures_s.append(now_s)
        self.failures += 1
        file.unreadable = TOO_SLOW
        self.end()

    def _is_open(self, child: _Child, file: File) -> bool:
        """Open `file` in the child if it is not open yet, and return whether that succeeded.

        It fails if the file cannot be opened, is not ELF, or was overwritten.
        """
        try:
            self._close_if_changed(file)
            if file.is_overwritten:
                return False
            if file in self._open:
                self._open[file] = self._open.pop(file)._replace(used_s=time.monotonic())  # moves it to the end
                return True
            found = file.open(self._reads)
        except TimeoutError:
            return self._skip_hung(file)
        if found is None:
            file.unreadable = UNREADABLE if Path(f"/proc/{file.mapping.pid}").exists() else FILE_GONE
            return False
        if len(self._open) >= _MOST_OPEN:
            self._close(next(iter(self._open)))
        number, self._next = self._next, self._next + 1
        self._open[file] = _Open(number, found, time.monotonic())
        answer, _, link = child.ask(1, reader.OPEN, number, os.fsencode(file.path), [found.fd])[0].partition(" ")
        if answer != reader.YES:
            file.unreadable = NO_ELF
            self._open.pop(file).file.release(self._reads)
            return False
        file.unreadable = ""
        debug_file = self._open_debug_file(file, link) if link else None
        if debug_file is not None:
            try:
                child.take_debug_file(number, debug_file)
            finally:
                os.close(debug_file)
        return True

    def _close_if_changed(self, file: File) -> None:
        """Close the file if it was overwritten or its debug file has arrived since.

        Raises TimeoutError.
        """
        if file not in self._open:
            return
        try:
            written_ns = self._open[file].file.written_ns(self._reads)
        except TimeoutError:
            raise
        except OSError:  # the read child has died: open the file again
            self._close(file)
            return
        if written_ns not in (None, file.written_ns):
            self._close(file)
            file.is_overwritten = True
        elif file.has_new_debug_file and self._debug_directory:
            file.has_new_debug_file = False
            self._close(file)

    def _open_debug_file(self, file: File, name: str) -> int | None:
        """Open the debug file called `name` next to a binary, or in .debug there, as libdw would.

        Returns a descriptor, or None. The child cannot open anything by path. The name comes from the untrusted binary,
        so it is opened only if it is a world-readable regular file in that directory.
        """
        if name != Path(name).name:
            return None
        directory = Path(file.path).parent
        for candidate in (directory / name, directory / ".debug" / name):
            with suppress(OSError):
                return self._reads.open(file.device, str(candidate), function="opened_world_readable")[1]
        return None

    def _skip_hung(self, file: File) -> bool:
        """Skip a file whose file system hangs, without counting a failure of the child."""
        self._skipped_until_s[file] = time.monotonic() + _SKIP_S
        file.unreadable = TOO_SLOW
        if file in self._open:
            self._close(file)
        return False

    def _close(self, file: File) -> None:
        number, found, _ = self._open.pop(file)
        found.release(self._reads)
        if self._child:
            try:
                self._child.close(number)
            except OSError:
                self.end()
