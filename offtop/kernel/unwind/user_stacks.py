"""The worker that unwinds user stacks in user space.

It handles waits in progress, and finished waits for which BPF lacked a rule. It loads the missing rules into BPF, so
that each stack is unwound here only once. A tick waits for it 20 ms at most.

If many threads wait at one instruction, and a stack has taken their path before (known_paths.py), all of them are
unwound together as soon as they are noted, whatever the age of the waits.

If a thread runs while its stack is read, the result is discarded: the kernel counts how often the thread was given a
CPU, and the task scan reported that number.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import numpy as np

from offtop.kernel.bpf.scan_rows import REGISTERS_ROW, Rows, chosen, is_32_bit_program, joined, stack_of
from offtop.kernel.procfs.threads import pcount_of
from offtop.kernel.unwind.cpu_allowance import Allowance
from offtop.kernel.unwind.stack_copies import Copies, Copy
from offtop.kernel.unwind.unwinder import UNREAD, Unwinder, UnwoundStack
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.snapshot import Waiting
from offtop.model.values.stack import Frame
from offtop.model.values.table import THREADS, Ints, Mask, integers, thread_codes
from offtop.model.values.waits import SWITCHED_OUT_NS, Waits
from offtop.units import NS_PER_S
from offtop.worker import Rest, Worker

OLD_NS = 3 * NS_PER_S // 10
"""Minimum age of a wait whose stack is unwound while it is in progress."""
_MOST_REQUESTED = 4_096
"""Limit of the queue; waits beyond it are requested again in the next tick."""
_MOST_COPIES = 512
_MOST_A_TICK = 4096
"""Limit of copies per tick, however long that is, because each copied wait is a separate site in BPF."""
_MOST_REMEMBERED = 4 * _MOST_A_TICK
"""IDs of copies from several ticks, because a thread's record may arrive two ticks after its sites."""
_LOOK_S = 0.05
"""Interval between reads of copies with the usual CPU budget. What BPF copies again meanwhile is unwound twice."""
_QUIET_LOOKS, _QUIET_S = 20, 0.25
"""The same after so many reads without anything to do: on a quiet machine, looking would be most of this thread's work.
A tick looks, too."""
_REST_S = 0.1
"""The same interval while the CPU budget is used up."""
_PATIENCE_S, _PATIENCE_A_STACK_S = 0.02, 10e-6
"""How long a tick waits for stacks, and for names of Python functions, that it has requested."""
_HUNG_S = 1.0
"""A process whose memory cannot be read for this long, because its mmap_lock is held, is skipped until it can be."""
_MOST_HUNG = 8
_CLOSE_S = 2.0
_MOST_LISTED = 20
_FEWEST_ALIKE = 8
"""Number of waits at one instruction from which it pays to compare them with known paths."""
_MOST_SAMPLES = 8
"""How many of them are unwound by themselves, to learn their paths, before the others are compared again."""
_MOST_ROUNDS = 4
_RANDOM = np.random.default_rng()
"""Chooses them: of threads in order, every n-th may be of a kind."""


class ReadStack(NamedTuple):
    """The user stack of some waits in progress."""

    ids: Ints
    """(n, 2): pid, tid"""
    switched_out_ns: Ints
    """When these waits began, which identifies them."""
    pcounts: Ints
    """How often each thread had been given a CPU when the wait was noted."""
    found: UnwoundStack


class CopyResult(NamedTuple):
    """The result of a copy of a stack."""

    execs: int
    """See Copy.execs."""
    fallback: int
    """ID of the stack by frame pointers, which BPF keeps as well."""
    found: UnwoundStack | None = None
    """None if it has not been unwound yet."""


class _Unnamed(NamedTuple):
    """Python functions whose names must be read."""

    pid: int
    addresses: tuple[int, ...]
    """Addresses of code objects."""
    done: threading.Event


class _Waits(NamedTuple):
    """Waits in progress as the task scan has found them, as columns."""

    ids: Ints
    """(n, 2): pid, tid"""
    switched_out_ns: Ints
    """When they began."""
    registers: Rows
    """Of REGISTERS_ROW."""

    @classmethod
    def all(cls, parts: Sequence["_Waits"]) -> "_Waits":
        """Join `parts`, none of which has a thread twice; of a thread, keep only the last."""
        parts = [one for one in parts if len(one.ids)] or parts[:1]
        if len(parts) == 1:
            return parts[0]
        ids, switched_out_ns = (np.concatenate(columns) for columns in [*zip(*parts, strict=True)][:2])
        every = cls(ids, switched_out_ns, joined([one.registers for one in parts]))
        _, last = np.unique(thread_codes(ids)[::-1], return_index=True)
        return every if len(last) == len(ids) else every.of(np.sort(len(ids) - 1 - last))

    def of(self, which: Ints | Mask | slice) -> "_Waits":
        if isinstance(which, np.ndarray) and which.dtype == np.bool_ and which.all():
            return self  # the registers are most of what offtop would copy
        return _Waits(self.ids[which], self.switched_out_ns[which], chosen(self.registers, which))

    def read_as(self, found: UnwoundStack) -> ReadStack:
        """Return `found` as the stack of each of them."""
        return ReadStack(self.ids, self.switched_out_ns, self.registers["pcount"], found)

    def of_pids(self, pids: Collection[int]) -> Mask:
        return np.isin(self.ids[:, 0], [*pids])

    def are_alike(self) -> Mask:
        """Return which of them are at an instruction at which so many are that they are compared with known paths."""
        _, leaf, threads = np.unique(self.registers["ip"], return_inverse=True, return_counts=True)
        return (threads[leaf] >= _FEWEST_ALIKE) & ~is_32_bit_program(self.registers)

    def in_progress(self, waiting: Waits) -> tuple[Mask, Ints]:
        """Return which of them are in `waiting`, and when those began, as far as that is known."""
        row = waiting.rows_of(thread_codes(self.ids))
        is_there = row >= 0
        is_there[is_there] = waiting.list.rows[row[is_there], SWITCHED_OUT_NS] == self.switched_out_ns[is_there]
        return is_there, waiting.list.began_ns[row[is_there]]


_NO_WAITS = _Waits(integers([], 2), integers([], 1)[:, 0], np.zeros(0, REGISTERS_ROW))


class _ReplacedError(Exception):
    """This thread hung, and another one has taken over."""


class _Alike(NamedTuple):
    """Waits that may take known paths."""

    waits: _Waits


_Work = Copy | _Waits | _Alike | _Unnamed | int
"""What the thread does next. `_Waits` has one wait here; an int is the PID of a process whose code may have changed."""


class UserStacks:
    """Unwinds user stacks in a thread.

    For use by the polling thread, except `about` and `close`.
    """

    def __init__(self, unwinder: Unwinder, allowance: Allowance, copies: Copies | None = None) -> None:
        """`copies`: None if BPF does not use rules."""
        self._unwinder, self._allowance, self._copies = unwinder, allowance, copies
        self._young = [_NO_WAITS]
        """Waits that are still too young."""
        self._requested = _NO_WAITS
        self._alike = self._following = _NO_WAITS
        """Waits that may take known paths, and those of them that the thread is comparing now."""
        self._followed: list[ReadStack] = []
        """Stacks of those that took one."""
        self._strayed: list[_Waits] = []
        """Those that took none, or were not compared."""
        self._learned = set[int]()
        """Instructions at which a path was learned since the waits there were compared with known ones."""
        self._unread = [_NO_WAITS]
        """Waits of processes whose memory hangs when it is read: retried when it no longer does."""
        self._queue: deque[Copy] = deque()
        self._unnamed: deque[_Unnamed] = deque()
        self._names_are_late = False
        """Whether names were late in this tick: then the tick waits for no more names."""
        self._found: list[ReadStack] = []
        self._of_copies: dict[int, CopyResult] = {}
        """ID of a copy → its result."""
        self._looked_up = set[int]()
        """IDs of copies that were looked up: their results must not change any more."""
        self._exited = set[int]()
        """Processes that have exited, which the unwinder can forget."""
        self._waits_of_hung = self._late = 0
        self.unread = 0
        """Stacks of processes that were not read in time."""
        self._filled_ns = self._unwound = self._in_tick = 0
        self._reading: tuple[int, float] | None = None
        """The process whose memory is being read, and when that began."""
        self._hung: set[int] = set()
        """Processes whose memory a thread of offtop has been reading for too long."""
        self._was_copy = False
        """Whether the last work item was a copy."""
        self._looks = 0
        """How often the thread has looked for work since it last found some."""
        self._changed = threading.Condition()
        with self._changed:
            self._worker = self._new_worker()

    def note_waits(self, waits: Ints, registers: Rows) -> None:
        """Record waits in progress that the task scan has found.

        `waits` are rows of a WaitList, `registers` those of their threads.
        """
        some = (registers["sp"] != 0) & (registers["pcount"] != 0)
        noted = _Waits(waits[some, :2], waits[some, SWITCHED_OUT_NS], chosen(registers, some))
        is_alike = noted.are_alike()
        self._young.append(noted.of(~is_alike))
        if is_alike.any():
            with self._changed:
                self._alike = _Waits.all([self._alike, noted.of(is_alike)])
                self._worker.wake()

    def followed(self) -> list[ReadStack]:
        """Return the stacks of those noted waits that take known paths; wait up to 20 ms for them, longer for many.

        The caller must leave out threads that have run since then.
        """
        with self._changed:
            self._replace_hung_thread()
            patience_s = _PATIENCE_S + _PATIENCE_A_STACK_S * (len(self._alike.ids) + len(self._following.ids))
            self._changed.wait_for(lambda: not (len(self._alike.ids) or len(self._following.ids)), patience_s)
            self._young += [self._alike, *self._strayed]
            self._alike, self._strayed = _NO_WAITS, []
            found, self._followed = self._followed, []
        return found

    def read(self, waiting: Mapping[ThreadKey, Waiting], at_ns: int, are_all: bool = True) -> list[ReadStack]:
        """Request the stacks of those `waiting` that are old enough, oldest first.

        Return what was read since the last call. Waits up to 20 ms for them. `are_all`: other waits that the task scan
        has found before have ended.
        """
        known, young = Waits.of(waiting), _Waits.all(self._young)
        is_there, began_ns = young.in_progress(known)
        is_old = np.zeros(len(is_there), np.bool_)
        is_old[is_there] = at_ns - began_ns >= OLD_NS
        due, is_young = young.of(is_old), is_there & ~is_old
        self._young = [young.of(is_young if are_all else is_young | ~is_there)]
        with self._changed:
            self._replace_hung_thread()
            self._retry(known)
            due = due.of(~due.of_pids(self._hung))
            due = due.of(np.argsort(due.switched_out_ns, kind="stable"))
            every = _Waits.all([self._requested, due])
            every = every.of(every.in_progress(known)[0])
            if self._learned and self._allowance.is_left:
                is_alike = every.are_alike() & np.isin(every.registers["ip"], np.array([*self._learned], np.uint64))
                self._alike = _Waits.all([every.of(is_alike), self._alike])  # of a thread, the newer wait is kept
                every = every.of(~is_alike)
                self._learned.clear()
            self._requested = every.of(slice(_MOST_REQUESTED))
            self._young.append(every.of(slice(_MOST_REQUESTED, None)))
            self._worker.wake()
            if is_old.any():
                self._changed.wait_for(lambda: not (len(self._requested.ids) or self._worker.is_busy), _PATIENCE_S)
            found, self._found = self._found, []
        return found

    def _retry(self, waiting: Waits) -> None:
        """Queue the waits again whose stacks were not read in time, unless their process still hangs."""
        unread = _Waits.all(self._unread)
        hung = [pid for pid in np.unique(unread.ids[:, 0]).tolist() if self._unwinder.hangs(pid)]
        is_hung = unread.of_pids(hung) & (waiting.rows_of(thread_codes(unread.ids)) >= 0)
        self._unread = [unread.of(is_hung)]
        self._young.append(unread.of(~is_hung))

    def unwind_copies(self) -> None:
        """Read all copies, and wait up to 20 ms until they are unwound. Call this before `copy_result`."""
        self._names_are_late = False
        if self._copies is None:
            return
        with self._changed:
            self._take_copies()
            self._in_tick = 0
            self._worker.wake()
            if self._queue:
                self._changed.wait_for(lambda: not (self._queue or self._worker.is_busy), _PATIENCE_S)

    def name_python_functions(self, pid: int, addresses: tuple[int, ...]) -> bool:
        """Request names of Python functions by their code objects.

        Return whether they were read within 20 ms.
        """
        work = _Unnamed(pid, addresses, threading.Event())
        with self._changed:
            self._replace_hung_thread()
            if self._names_are_late or pid in self._hung:
                return False
            self._unnamed.append(work)
            self._worker.wake()
        self._names_are_late = not work.done.wait(_PATIENCE_S)
        return not self._names_are_late

    def copy_result(self, raw_id: int) -> CopyResult | None:
        """Return the result of a copy, or None if it was lost.

        Repeated calls return the same result, because a wait has one location.
        """
        with self._changed:
            found = self._of_copies.get(raw_id)
            if found is not None and raw_id not in self._looked_up:
                self._looked_up.add(raw_id)
                self._late += found.found is None
            return found

    def has_rule(self, frame: Frame) -> bool:
        """See Unwinder.has_rule."""
        return self._unwinder.has_rule(frame)

    def note_exit(self, pid: int) -> None:
        """Forget a process that has exited."""
        with self._changed:
            self._exited.add(pid)

    def about(self) -> list[tuple[str, str]]:
        """Statistics about unwinding, for people."""
        unwinder = self._unwinder
        return [
            ("stacks unwound by offtop", f"{self._unwound:,}, in {self._allowance.spent_s:.1f} s of CPU time"),
            *([("readers killed or crashed", f"{unwinder.failures}")] if unwinder.failures else []),
            *(
                [("unwound too late, or not at all", f"{self._late:,} waits, shown by frame pointers (~)")]
                * bool(self._late)
            ),
            *([("processes whose memory cannot be read", self._on_hung())] if self._hung else []),
            *[
                ("binary", f"{label.rpartition('/')[2]}: {text}")
                for label, text in unwinder.unwind_summaries[:_MOST_LISTED]
            ],
        ]

    def fill(self, at_ns: int, cpu_pct: float) -> None:
        """Refill the CPU budget after a tick, in which offtop used `cpu_pct` of a CPU."""
        tick_s = (at_ns - self._filled_ns) / NS_PER_S if self._filled_ns else 0.0
        self._filled_ns = at_ns
        self._allowance.fill(tick_s, cpu_pct / 100 * tick_s)

    def _on_hung(self) -> str:
        more = "; until one can be read, no stack is unwound by offtop" if len(self._hung) >= _MOST_HUNG else ""
        return f"{len(self._hung)}, {self._waits_of_hung:,} of their waits shown by frame pointers (~){more}"

    @property
    def hung(self) -> int:
        """How many processes have memory that cannot be read."""
        return len(self._hung)

    @property
    def reader_pid(self) -> int:
        """PID of the process that reads unwind rules, or 0 if it is not running."""
        return self._unwinder.reader_pid

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._worker.close(_CLOSE_S)
        if self._copies is not None:
            self._copies.close()
            self._copies = None

    def _new_worker(self) -> Worker:
        worker = Worker("offtop-userstacks", partial(self._run, self._unwinder), self._changed)
        worker.wake()
        return worker

    def _take_copies(self) -> None:
        if self._copies is None:
            return
        room = min(_MOST_COPIES - len(self._queue), _MOST_A_TICK - self._in_tick) if self._allowance.is_left else 0
        taken = self._copies.take(room)
        self._in_tick += len(taken)
        for copy in taken:
            self._of_copies[copy.id] = CopyResult(copy.execs, copy.fallback)
            if copy.pid in self._hung:
                self._waits_of_hung += 1
            else:
                self._queue.append(copy)
        while len(self._of_copies) > _MOST_REMEMBERED:
            oldest = next(iter(self._of_copies))
            del self._of_copies[oldest]
            self._looked_up.discard(oldest)

    def _pop_oldest(self) -> _Waits:
        every = self._requested
        self._requested = every.of(slice(1, None))
        return every.of(slice(1))

    def _replace_hung_thread(self) -> None:
        """Start another thread if the current one hangs."""
        if self._reading is None or time.monotonic() - self._reading[1] < _HUNG_S or len(self._hung) >= _MOST_HUNG:
            return
        if self._unwinder.is_waiting or self._worker.is_closing:
            return
        pid = self._reading[0]
        self._hung.add(pid)
        self._requested = self._requested.of(~self._requested.of_pids((pid,)))
        self._queue = deque(copy for copy in self._queue if copy.pid != pid)
        self._strayed.append(self._following)
        self._following = _NO_WAITS
        self._unnamed.clear()
        self._reading = None
        self._unwinder = self._unwinder.clone()
        self._worker.close()
        self._worker = self._new_worker()

    def _next(self, unwinder: Unwinder) -> _Work | Rest:
        """Return the next work item.

        Names come first, because a tick waits for them; then waits that may take known paths; then copies and waits in
        progress in turn; and if there is nothing else, a process whose code may have changed.
        """
        self._take_copies()
        is_left, has_waits = self._allowance.is_left, len(self._requested.ids) > 0
        if not (self._unnamed or len(self._alike.ids) or (is_left and (self._queue or has_waits or unwinder.due_pid))):
            unwinder.rest()
            self._looks += 1
            pause_s = (_LOOK_S if is_left else _REST_S) * self._allowance.pause_factor
            return Rest(max(pause_s, _QUIET_S) if self._looks > _QUIET_LOOKS else pause_s)
        self._looks = 0
        while self._exited:
            unwinder.forget(self._exited.pop())
        if self._unnamed:
            work = self._unnamed.popleft()
        elif len(self._alike.ids):
            is_hung = self._alike.of_pids(self._hung)
            self._strayed.append(self._alike.of(is_hung))
            work = _Alike(self._alike.of(~is_hung))
            self._alike, self._following = _NO_WAITS, work.waits
        elif self._queue and not (self._was_copy and has_waits):
            work = self._queue.popleft()
        else:
            work = self._pop_oldest() if has_waits else unwinder.due_pid
        self._was_copy = isinstance(work, Copy)
        self._reading = _pid_of(work), time.monotonic()
        return work

    def _run(self, unwinder: Unwinder, worker: Worker) -> None:
        unwinder.start()
        for work in worker.requests(partial(self._next, unwinder)):
            began_s, learned, found = unwinder.used_s, unwinder.learned_paths, None
            pid, followed, strayed = _pid_of(work), list[ReadStack](), _NO_WAITS

            def note_read(of_pid: int) -> None:
                """Note which process is being read; 0: none. Raises _ReplacedError if another thread has taken over."""
                nonlocal pid
                with self._changed:
                    if worker is not self._worker:
                        raise _ReplacedError
                    pid, self._reading = of_pid, (of_pid, time.monotonic()) if of_pid else None

            if isinstance(work, Copy):
                found = unwinder.unwind_copy(work)
            elif isinstance(work, int):
                unwinder.check_process(work)
            elif isinstance(work, _Unnamed):
                unwinder.read_python_names(work.pid, work.addresses)
                work.done.set()
            elif isinstance(work, _Alike):
                with suppress(_ReplacedError):
                    followed, strayed = _follow_or_sample(unwinder, work.waits, note_read, self._allowance.is_left)
            else:
                found = _read(unwinder, work)
            self._allowance.spend(max(0.0, unwinder.used_s - began_s))
            with self._changed:
                if worker is not self._worker:  # another thread has taken over
                    self._hung.discard(pid)
                    break
                self._reading = None
                if isinstance(work, _Alike):
                    self._following = _NO_WAITS
                    self._followed += followed
                    self._strayed.append(strayed)
                elif isinstance(work, _Waits) and unwinder.learned_paths != learned:
                    self._learned.update(work.registers["ip"].tolist())
                self._unwound += not isinstance(work, _Unnamed | _Alike) or sum(len(one.ids) for one in followed)
                if isinstance(found, ReadStack):
                    self._found.append(found)
                    if found.found is UNREAD and isinstance(work, _Waits):
                        self.unread += 1
                        self._unread.append(work)
                elif isinstance(work, Copy) and found is not None and work.id not in self._looked_up:
                    self.unread += found is UNREAD
                    self._of_copies[work.id] = CopyResult(work.execs, work.fallback, found)
        unwinder.end()


def _pid_of(work: _Work) -> int:
    """Return the process whose memory the work item reads."""
    if isinstance(work, int):
        return work
    if isinstance(work, _Alike):
        return int(work.waits.ids[0, 0]) if len(work.waits.ids) else 0
    return int(work.ids[0, 0]) if isinstance(work, _Waits) else work.pid


def _read(unwinder: Unwinder, wait: _Waits) -> ReadStack | None:
    key, stack = THREADS.key(wait.ids[0].tolist()), stack_of(wait.registers)
    is_32_bit = bool(is_32_bit_program(wait.registers)[0])
    found = unwinder.unwind_thread(key, stack, is_32_bit, lambda: pcount_of(key) != stack.pcount)
    return wait.read_as(found) if found else None


def _follow_or_sample(
    unwinder: Unwinder, waits: _Waits, note_read: Callable[[int], None], learns: bool
) -> tuple[list[ReadStack], _Waits]:
    """Return the stacks of those waits that take known paths, and the other waits.

    `learns`: if many waits at one instruction take no known path, unwind some of them by themselves, because the others
    may take their paths. Repeat that if most do.
    """
    found, left = _take_known_paths(unwinder, waits, note_read)
    for _ in range(_MOST_ROUNDS if learns else 0):
        if not (samples := _samples(left.registers["ip"])):
            break
        is_over = np.zeros(len(left.ids), np.bool_)
        for sample in samples:
            note_read(int(left.ids[sample, 0]))
            one = _read(unwinder, left.of(slice(sample, sample + 1)))
            note_read(0)
            is_over[sample] = one is None or one.found is not UNREAD
            found += [one] if one and is_over[sample] else []
        strayed = left.of(~is_over)
        more, left = _take_known_paths(unwinder, strayed, note_read)
        found += more
        if len(left.ids) > len(strayed.ids) / 2:
            break
    return found, left


def _samples(leaves: Rows) -> list[int]:
    """Return the positions of some waits at each instruction that has many."""
    _, which, threads = np.unique(leaves, return_inverse=True, return_counts=True)
    of_leaf = np.split(np.argsort(which, kind="stable"), np.cumsum(threads)[:-1])
    many = [one for one in of_leaf if len(one) >= _FEWEST_ALIKE][:_MOST_SAMPLES]
    of_each = _MOST_SAMPLES // max(1, len(many))
    return [int(at) for one in many for at in _RANDOM.permutation(one)[:of_each]]


def _take_known_paths(
    unwinder: Unwinder, waits: _Waits, note_read: Callable[[int], None]
) -> tuple[list[ReadStack], _Waits]:
    """Return the stacks of those waits that take known paths, and the other waits."""
    is_known, found = np.zeros(len(waits.ids), np.bool_), list[ReadStack]()
    for stack, which in unwinder.follow_known_paths(waits.ids, waits.registers, note_read):
        is_known[which] = True
        found.append(waits.of(which).read_as(stack))
    return found, waits.of(~is_known)
