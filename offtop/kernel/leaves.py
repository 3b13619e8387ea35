"""Puts back the caller that a walk along frame pointers skips: that of a leaf without a frame of its own.

libc's system call wrappers are such leaves, so without this `main → beta → syscall` reads `main → syscall`.
The kernel side keeps the word at the stack pointer; here .eh_frame decides whether it is a return address.
A thread asks for that, because a file may be slow to open or to read and a tick must not wait for it.
"""

import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from offtop.kernel.binaries import Binaries
from offtop.kernel.files import Files
from offtop.kernel.mappings import Processes
from offtop.model.stack import Frame

_MOST_LEAVES = 8192
_PATIENCE_S = 0.2
"""How long stacks wait for their leaves' answers in each second; after that they stay as they were walked."""
_START_S = 2.0
"""The same for the first one, which waits for the start of the child that reads."""
_ANSWER_S = 5.0
_CLOSE_S = 2.0
"""A binary on a file system that hangs may never answer: then the thread is left behind."""


class Leaves:
    """User frames with no caller missing behind the leaf. For use by one thread."""

    def __init__(self, files: Files, processes: Processes) -> None:
        self._files, self._processes = files, processes
        self._known: dict[Frame, bool] = {}
        self._asked: dict[Frame, None] = {}
        self._second, self._waited_s = 0, 0.0
        self._late = False
        """An answer is overdue: nobody waits for another until the thread has caught up."""
        self._closing = False
        self._changed = threading.Condition()
        self._binaries = Binaries(_ANSWER_S)
        self._thread = threading.Thread(target=self._run, name="offtop-leaves", daemon=True)
        self._thread.start()

    def frames(self, pid: int, addresses: Sequence[int], at_sp: int) -> tuple[Frame, ...]:
        """Frames of a user stack, leaf first. `at_sp`: the word at the stack pointer, 0 where not kept."""
        if not at_sp or not addresses or (len(addresses) > 1 and addresses[1] == at_sp):
            return self._processes.frames(pid, addresses)
        frames = self._processes.frames(pid, (addresses[0], at_sp, *addresses[1:]))
        if len(frames) > 1 and not (self._files.get(frames[1].file) and self._hides_caller(frames[0])):
            return frames[:1] + frames[2:]
        return frames

    def close(self) -> None:
        """End the thread. May be called twice."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(_CLOSE_S)

    def _hides_caller(self, leaf: Frame) -> bool:
        if self._files.get(leaf.file) is None:
            return False
        with self._changed:
            if leaf not in self._known and len(self._asked) < _MOST_LEAVES:
                self._asked[leaf] = None
                self._changed.notify_all()
                began_s = time.monotonic()
                if self._second != int(began_s):
                    self._second, self._waited_s = int(began_s), 0.0
                patience_s = max(0.0, _PATIENCE_S - self._waited_s) if self._known else _START_S
                if self._late:
                    patience_s = 0.0
                self._late = not self._changed.wait_for(lambda: leaf in self._known or self._closing, patience_s)
                self._waited_s += time.monotonic() - began_s
            return self._known.get(leaf, False)

    @property
    def reader_pid(self) -> int:
        """Of its child; 0 where there is none."""
        return self._binaries.pid

    def _run(self) -> None:
        binaries = self._binaries
        with suppress(OSError):  # then the first question says so
            binaries.start()
        while leaf := self._next(binaries):
            file = self._files.get(leaf.file)
            known = file is not None and binaries.return_address_at_sp(file, leaf.offset)
            with self._changed:
                if len(self._known) >= _MOST_LEAVES:
                    self._known.clear()
                self._known[leaf] = known
                del self._asked[leaf]
                self._late = self._late and bool(self._asked)
                self._changed.notify_all()
        binaries.end()

    def _next(self, binaries: Binaries) -> Frame | None:
        """The leaf asked for first; waits for one. None: there will be no more."""
        with self._changed:
            while not self._closing and ((rest_s := binaries.rest_s) or not self._asked):
                self._changed.wait(rest_s or None)
            return None if self._closing else next(iter(self._asked))
