"""The worker that reads the user stacks of threads that wait, so that no tick has to wait for their memory.

Only of waits that have lasted a while: most end before anybody could look. What was read of a thread that ran
meanwhile is thrown away: the kernel counts how often it was given a CPU, and the walk told the number.
"""

import os
import platform
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from offtop.kernel import userwalk
from offtop.kernel.layout import WalkedStack
from offtop.model.book import ThreadKey
from offtop.model.snapshot import Waiting
from offtop.units import NS_PER_S

OLD_NS = 3 * NS_PER_S // 10
"""From this age on a wait is worth a look."""
_MOST_ASKED = 20_000
_AT_ONCE = 50
_REST_S = 0.01
"""After so many stacks: 2,500 a second are 5 % of a CPU at most."""
_PATIENCE_S = 0.02
"""How long a tick waits for those that it has just asked for."""
_HUNG_S = 1.0
"""A process whose memory cannot be read for so long (somebody holds its mmap_lock) is left alone until it can be."""
_MOST_HUNG = 8
_CLOSE_S = 2.0
_32_BIT_END = 1 << 32
_MACHINE = platform.machine()


class Read(NamedTuple):
    """A user stack, of a wait in progress."""

    key: ThreadKey
    left_ns: int
    """Which wait of that thread."""
    addresses: tuple[int, ...]
    """Leaf first."""
    at_sp: int
    """The word at the stack pointer, where it may be a return address; else 0."""


class UserStacks:
    """Reads user stacks. `met` and `read` are for the polling thread."""

    def __init__(self, walk: Callable[[int, int, int, int, str], tuple[tuple[int, ...], int]] = userwalk.walk) -> None:
        self._walk = walk
        self._met: dict[ThreadKey, tuple[int, WalkedStack]] = {}
        """left_ns and registers of waits that are too young yet."""
        self._asked: dict[ThreadKey, tuple[int, WalkedStack]] = {}
        self._found: list[Read] = []
        self._at: tuple[int, float] | None = None
        """Whose memory is being read, and since when."""
        self._hung: set[int] = set()
        """Processes in whose memory a thread of ours hangs."""
        self._busy = self._closing = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def met(self, key: ThreadKey, left_ns: int, stack: WalkedStack) -> None:
        """The walk has met a wait."""
        if stack.sp and stack.turns:
            self._met[key] = left_ns, stack

    def read(self, waiting: Mapping[ThreadKey, Waiting], at_ns: int) -> list[Read]:
        """Ask for the stacks of those of `waiting` that are old enough by now; what was read since the last call.
        Waits a moment for it."""
        asked: dict[ThreadKey, tuple[int, WalkedStack]] = {}
        young: dict[ThreadKey, tuple[int, WalkedStack]] = {}
        for key, one in self._met.items():
            now = waiting.get(key)
            if now is not None and now.left_ns == one[0]:
                (asked if now.age_ns(at_ns) >= OLD_NS else young)[key] = one
        self._met = young
        with self._changed:
            self._leave_hung()
            room = _MOST_ASKED - len(self._asked)
            allowed = [(key, one) for key, one in asked.items() if key.pid not in self._hung]
            self._asked.update(allowed[:room])
            if self._asked and self._thread is None and not self._closing:
                self._thread = threading.Thread(target=self._run, name="offtop-userstacks", daemon=True)
                self._thread.start()
            if asked:
                self._changed.notify_all()
                self._changed.wait_for(lambda: not (self._asked or self._busy), _PATIENCE_S)
            found, self._found = self._found, []
        return found

    @property
    def hung(self) -> int:
        """How many processes do not let their memory be read."""
        return len(self._hung)

    def close(self) -> None:
        """End the thread. May be called twice."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    def _leave_hung(self) -> None:
        """Have another thread go on, where this one does not come back."""
        if self._at is None or time.monotonic() - self._at[1] < _HUNG_S or len(self._hung) >= _MOST_HUNG:
            return
        pid = self._at[0]
        self._hung.add(pid)
        self._asked = {key: one for key, one in self._asked.items() if key.pid != pid}
        self._at, self._thread, self._busy = None, None, False

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._closing or self._asked)
                if self._closing:
                    return
                self._busy = True
            for _ in range(_AT_ONCE):
                with self._changed:
                    if not self._asked:
                        break
                    key = next(iter(self._asked))
                    left_ns, stack = self._asked.pop(key)
                    self._at = key.pid, time.monotonic()
                one = self._read(key, left_ns, stack)
                with self._changed:
                    if threading.current_thread() is not self._thread:  # another has gone on
                        self._hung.discard(key.pid)
                        return
                    self._at = None
                    self._found += [one] if one else []
            else:
                time.sleep(_REST_S)

    def _read(self, key: ThreadKey, left_ns: int, stack: WalkedStack) -> Read | None:
        machine = _MACHINE if not is_32_bit(stack) else "i386"
        addresses, at_sp = self._walk(key.tid, stack.ip, stack.sp, stack.bp, machine)
        return Read(key, left_ns, addresses, at_sp) if _turns(key) == stack.turns else None


def is_32_bit(stack: WalkedStack) -> bool:
    """Whether the program is one of 32 bits on a machine of 64: its system calls have other numbers. One of 64 may have
    either address down there, but hardly both."""
    return 0 < stack.sp < _32_BIT_END and stack.ip < _32_BIT_END


def _turns(key: ThreadKey) -> int:
    """How often the thread has been given a CPU by now; -1: it has ended, or the kernel does not count."""
    with suppress(OSError, ValueError, IndexError):
        fd = os.open(f"/proc/{key.pid}/task/{key.tid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return int(os.read(fd, 100).split()[2])
        finally:
            os.close(fd)
    return -1
