"""The worker that walks user stacks: of threads that wait, and of waits that have ended, where the kernel side met an
address that it has no rule for. It tells the kernel side the rules, so that each is walked here once.

No tick waits for it. Of a wait in progress what was read of a thread that ran meanwhile is thrown away: the kernel
counts how often it was given a CPU, and the walk told the number.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from offtop.kernel.bpf import layout
from offtop.kernel.bpf.layout import WalkedStack
from offtop.kernel.unwind.cpu_allowance import Allowance
from offtop.kernel.unwind.stack_copies import Copies, Copy
from offtop.kernel.unwind.unwinder import UNREAD, Found, Walker
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.snapshot import Waiting
from offtop.model.values.stack import Frame
from offtop.units import NS_PER_S

OLD_NS = 3 * NS_PER_S // 10
"""From this age on a wait is worth a look."""
_MOST_ASKED = 20_000
_MOST_COPIES = 512
_MOST_A_TICK = 4096
"""Each copied wait is a site of its own on the kernel side, however long a tick is."""
_MOST_REMEMBERED = 4 * _MOST_A_TICK
"""Ids of copies: those of several ticks, for a thread's record may come two ticks after its sites."""
_LOOK_S = 0.05
"""How often copies are taken; a stack of which the kernel makes a second one meanwhile is walked twice."""
_REST_S = 0.1
"""While there is no CPU time left."""
_PATIENCE_S = 0.02
"""How long a tick waits for those that it has just asked for."""
_HUNG_S = 1.0
"""A process whose memory cannot be read for so long (somebody holds its mmap_lock) is left alone until it can be."""
_MOST_HUNG = 8
_CLOSE_S = 2.0
_MOST_TOLD = 20
_32_BIT_END = 1 << 32


class Read(NamedTuple):
    """A user stack, of a wait in progress."""

    key: ThreadKey
    left_ns: int
    """Which wait of that thread."""
    found: Found


class OfCopy(NamedTuple):
    """What a copy of a stack was, and has become."""

    execs: int
    """Of which program: Copy.execs."""
    fallback: int
    """The id of the stack along frame pointers, which the kernel side keeps besides."""
    found: Found | None = None
    """None: it is not walked yet."""


class _Unnamed(NamedTuple):
    """Functions of Python whose names are to be read."""

    pid: int
    addresses: tuple[int, ...]
    """Of their code objects."""
    done: threading.Event


_Work = Copy | tuple[ThreadKey, tuple[int, WalkedStack]] | _Unnamed | int


class UserStacks:
    """Walks user stacks. For the polling thread, but for `about` and `close`."""

    def __init__(self, walker: Walker, allowance: Allowance, copies: Copies | None = None) -> None:
        """`copies`: None where the kernel side follows no rules."""
        self._walker, self._allowance, self._copies = walker, allowance, copies
        self._met: dict[ThreadKey, tuple[int, WalkedStack]] = {}
        """left_ns and registers of waits that are too young yet."""
        self._asked: dict[ThreadKey, tuple[int, WalkedStack]] = {}
        self._unread: dict[ThreadKey, tuple[int, WalkedStack]] = {}
        """Those whose process hangs its readers: to be read when it does not any more."""
        self._queue: deque[Copy] = deque()
        self._unnamed: deque[_Unnamed] = deque()
        self._is_late = False
        """In this tick names did not come in time: it waits for no more."""
        self._found: list[Read] = []
        self._of_copies: dict[int, OfCopy] = {}
        """By their ids."""
        self._told = set[int]()
        """Those of them that were asked about."""
        self._ended = set[int]()
        """Processes that the walker need not remember."""
        self._of_hung = self._late = 0
        self.unread = 0
        """Stacks whose process did not let itself be read in time."""
        self._filled_ns = self._walked = self._in_tick = 0
        self._at: tuple[int, float] | None = None
        """Whose memory is being read, and since when."""
        self._hung: set[int] = set()
        """Processes in whose memory a thread of ours hangs."""
        self._busy = self._closing = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._start()

    def met(self, key: ThreadKey, left_ns: int, stack: WalkedStack) -> None:
        """The walk has met a wait."""
        if stack.sp and stack.turns:
            self._met[key] = left_ns, stack

    def read(self, waiting: Mapping[ThreadKey, Waiting], at_ns: int, are_all: bool = True) -> list[Read]:
        """Ask for the stacks of those of `waiting` that are old enough by now, the oldest first; what was read since
        the last call. Waits a moment for it. `are_all`: whatever else was met has ended."""
        asked: dict[ThreadKey, tuple[int, WalkedStack]] = {}
        young: dict[ThreadKey, tuple[int, WalkedStack]] = {}
        for key, one in self._met.items():
            now = waiting.get(key)
            if now is not None and now.left_ns == one[0]:
                (asked if now.age_ns(at_ns) >= OLD_NS else young)[key] = one
            elif not are_all:
                young[key] = one
        self._met = young
        with self._changed:
            self._leave_hung()
            for key in [key for key in self._unread if key not in waiting or not self._walker.hangs(key.pid)]:
                self._met[key] = self._unread.pop(key)
            room = _MOST_ASKED - len(self._asked)
            allowed = sorted((key for key in asked if key.pid not in self._hung), key=lambda key: asked[key][0])
            self._asked.update((key, asked[key]) for key in allowed[:room])
            self._start()
            if asked:
                self._changed.notify_all()
                self._changed.wait_for(lambda: not (self._asked or self._busy), _PATIENCE_S)
            found, self._found = self._found, []
        return found

    def settle(self) -> None:
        """Before ids of copies are asked about: take what there is, and wait a moment for the walks."""
        self._is_late = False
        if self._copies is None:
            return
        with self._changed:
            self._take()
            self._in_tick = 0
            self._start()
            if self._queue:
                self._changed.notify_all()
                self._changed.wait_for(lambda: not (self._queue or self._busy), _PATIENCE_S)

    def name(self, pid: int, addresses: tuple[int, ...]) -> bool:
        """Have it read what Python's functions are called, by their code objects; whether it was, within a moment."""
        work = _Unnamed(pid, addresses, threading.Event())
        with self._changed:
            self._leave_hung()
            self._start()
            if self._is_late or pid in self._hung:
                return False
            self._unnamed.append(work)
            self._changed.notify_all()
        self._is_late = not work.done.wait(_PATIENCE_S)
        return not self._is_late

    def copied(self, raw_id: int) -> OfCopy | None:
        """What has become of a copy, by its id. None: it was lost.

        The same whenever it is asked: a wait has one place.
        """
        with self._changed:
            found = self._of_copies.get(raw_id)
            if found is not None and raw_id not in self._told:
                self._told.add(raw_id)
                self._late += found.found is None
            return found

    def has_rule(self, frame: Frame) -> bool:
        """As Walker has it."""
        return self._walker.has_rule(frame)

    def ended(self, pid: int) -> None:
        """The process has ended."""
        with self._changed:
            self._ended.add(pid)

    def about(self) -> list[tuple[str, str]]:
        """What is known of the walking, for people."""
        walker = self._walker
        return [
            ("stacks walked here", f"{self._walked:,}, in {self._allowance.spent_s:.1f} s of CPU time"),
            *([("readers that had to be ended", f"{walker.failures}")] if walker.failures else []),
            *(
                [("walked too late, or in vain", f"{self._late:,} waits, shown along frame pointers (~)")]
                * bool(self._late)
            ),
            *([("processes whose memory cannot be read", self._on_hung())] if self._hung else []),
            *[("binary", f"{label.rpartition('/')[2]}: {told}") for label, told in walker.ways[:_MOST_TOLD]],
        ]

    def fill(self, at_ns: int, cpu_pct: float) -> None:
        """A tick has passed, in which offtop took so much of a CPU."""
        tick_s = (at_ns - self._filled_ns) / NS_PER_S if self._filled_ns else 0.0
        self._filled_ns = at_ns
        self._allowance.fill(tick_s, cpu_pct / 100 * tick_s)

    def _on_hung(self) -> str:
        more = "; until one lets go, no stack is walked here" if len(self._hung) >= _MOST_HUNG else ""
        return f"{len(self._hung)}, {self._of_hung:,} of their waits shown along frame pointers (~){more}"

    @property
    def hung(self) -> int:
        """How many processes do not let their memory be read."""
        return len(self._hung)

    @property
    def reader_pid(self) -> int:
        """Of the child that reads rules; 0 where there is none."""
        return self._walker.reader_pid

    def close(self) -> None:
        """End the thread. May be called twice."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)
        if self._copies is not None:
            self._copies.close()
            self._copies = None

    def _start(self) -> None:
        if self._thread is None and not self._closing:
            self._thread = threading.Thread(target=self._run, name="offtop-userstacks", daemon=True)
            self._thread.start()

    def _take(self) -> None:
        if self._copies is None:
            return
        room = min(_MOST_COPIES - len(self._queue), _MOST_A_TICK - self._in_tick) if self._allowance.is_left else 0
        taken = self._copies.take(room)
        self._in_tick += len(taken)
        for copy in taken:
            self._of_copies[copy.id] = OfCopy(copy.execs, copy.fallback)
            if copy.pid in self._hung:
                self._of_hung += 1
            else:
                self._queue.append(copy)
        while len(self._of_copies) > _MOST_REMEMBERED:
            oldest = next(iter(self._of_copies))
            del self._of_copies[oldest]
            self._told.discard(oldest)

    def _oldest(self) -> tuple[ThreadKey, tuple[int, WalkedStack]]:
        key = next(iter(self._asked))
        return key, self._asked.pop(key)

    def _leave_hung(self) -> None:
        """Have another thread go on, where this one does not come back."""
        if self._at is None or time.monotonic() - self._at[1] < _HUNG_S or len(self._hung) >= _MOST_HUNG:
            return
        if self._walker.is_asking:
            return
        pid = self._at[0]
        self._hung.add(pid)
        self._asked = {key: one for key, one in self._asked.items() if key.pid != pid}
        self._queue = deque(copy for copy in self._queue if copy.pid != pid)
        self._unnamed.clear()
        self._at, self._thread, self._busy = None, None, False
        self._walker = self._walker.another()

    def _next(self, walker: Walker, was_copy: bool) -> _Work:
        """Names, which a tick waits for; copies and waits in progress in turn; a look at code that may be other code by
        now, when there is nothing else."""
        if self._unnamed:
            return self._unnamed.popleft()
        if self._queue and not (was_copy and self._asked):
            return self._queue.popleft()
        return self._oldest() if self._asked else walker.due

    def _run(self) -> None:
        walker, was_copy, worked_s = self._walker, False, time.monotonic()
        walker.start()
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                while not (
                    self._closing
                    or self._unnamed
                    or ((self._queue or self._asked or walker.due) and self._allowance.is_left)
                ):
                    self._changed.wait(_LOOK_S if self._allowance.is_left else _REST_S)
                    if threading.current_thread() is not self._thread:
                        walker.end()
                        return
                    self._take()
                    walker.rest(time.monotonic() - worked_s)
                if self._closing:
                    walker.end()
                    return
                self._busy = True
                self._take()
                while self._ended:
                    walker.forget(self._ended.pop())
                work = self._next(walker, was_copy)
                was_copy, worked_s = isinstance(work, Copy), time.monotonic()
                pid = _whose(work)
                self._at = pid, time.monotonic()
            began_s, found = walker.used_s, None
            if isinstance(work, Copy):
                found = walker.of_copy(work)
            elif isinstance(work, int):
                walker.look(work)
            elif isinstance(work, _Unnamed):
                walker.name(work.pid, work.addresses)
                work.done.set()
            else:
                found = _read(walker, *work)
            self._allowance.spend(max(0.0, walker.used_s - began_s))
            with self._changed:
                if threading.current_thread() is not self._thread:  # another has gone on
                    self._hung.discard(pid)
                    walker.end()
                    return
                self._at = None
                self._walked += not isinstance(work, _Unnamed)
                if isinstance(found, Read):
                    self._found.append(found)
                    if found.found is UNREAD and not isinstance(work, Copy | _Unnamed | int):
                        self.unread += 1
                        self._unread[found.key] = work[1]
                elif isinstance(work, Copy) and found is not None and work.id not in self._told:
                    self.unread += found is UNREAD
                    self._of_copies[work.id] = OfCopy(work.execs, work.fallback, found)


def _whose(work: _Work) -> int:
    """The process whose memory will be read."""
    if isinstance(work, int):
        return work
    return work.pid if isinstance(work, Copy | _Unnamed) else work[0].pid


def is_32_bit(stack: WalkedStack) -> bool:
    """Whether the program is one of 32 bits on a machine of 64: its system calls have other numbers. Its mode says so.
    Where that is not known, one of 64 may have either address down there, but hardly both."""
    if stack.mode:
        return layout.is_narrow(stack.mode)
    return 0 < stack.sp < _32_BIT_END and stack.ip < _32_BIT_END


def _read(walker: Walker, key: ThreadKey, one: tuple[int, WalkedStack]) -> Read | None:
    left_ns, stack = one
    found = walker.of_thread(key, stack, is_32_bit(stack), lambda: _turns(key) != stack.turns)
    return Read(key, left_ns, found) if found else None


def _turns(key: ThreadKey) -> int:
    """How often the thread has been given a CPU by now; -1: it has ended, or the kernel does not count."""
    with suppress(OSError, ValueError, IndexError):
        fd = os.open(f"/proc/{key.pid}/task/{key.tid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return int(os.read(fd, 100).split()[2])
        finally:
            os.close(fd)
    return -1
