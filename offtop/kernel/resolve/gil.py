"""Finds the threads that hold Python's global interpreter lock while others wait for it (CPython 3.13 or later).

A thread waits for the lock 5 ms at a time, on a condition variable inside the interpreter's state, so the address of
the futex shows what the thread waits for. If several threads want to run, the holder changes every few ms: it is read
several times, and is exact only if each read found the same thread. A process can write anything to its own memory, so
a holder is accepted only if it is a living thread of that process.
"""

import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from offtop.kernel.binary.cpython_layout import Layout
from offtop.kernel.procfs.guarded_reads import Channel
from offtop.kernel.procfs.thread_ids import tid_of
from offtop.kernel.resolve.blocked import FUTEX, Blocked, Found
from offtop.kernel.unwind.cpython_frames import CPythonFrames
from offtop.model.values.blockers import GIL, Blocker
from offtop.model.values.catalog import ThreadKey

_WORD, _INT = struct.Struct("=Q"), struct.Struct("=i")
_CONDITION, _CONDITION_BYTES = 16, 48
"""Where the condition variable begins after `locked` (struct _gil_runtime_state, Include/internal/pycore_gil.h), and
the size of pthread_cond_t."""
_MOST_INTERPRETERS = 16
_MOST_PROCESSES = 16
_TIMES, _APART_S = 5, 0.011
"""How often a holder is read, and the time between two reads: more than the 5 ms after which CPython makes the holder
release the lock."""


class _Gil(NamedTuple):
    """The lock of an interpreter, and a thread that waits for it."""

    waiter: ThreadKey
    locked: int
    """Addresses of these fields of the interpreter's state."""
    holder: int
    layout: Layout

    @property
    def futexes(self) -> range:
        start = self.locked + _CONDITION
        return range(start, start + _CONDITION_BYTES)


class Gils:
    """Finds the holders of the GIL. For one thread."""

    def __init__(self, reads: Channel, cpython_frames: CPythonFrames, rest: Callable[[float], bool]) -> None:
        """`rest` sleeps for the given number of seconds, and returns whether to continue."""
        self._reads, self._cpython_frames, self._rest = reads, cpython_frames, rest

    def find(self, waits: Sequence[Blocked]) -> dict[ThreadKey, Found]:
        """Return the threads that held the lock that each of these threads waits for, most frequent first."""
        of_pids: dict[int, list[Blocked]] = {}
        for one in waits:
            if one.call == FUTEX and self._cpython_frames.gil_layout(one.key.pid):
                of_pids.setdefault(one.key.pid, []).append(one)
        gils: dict[_Gil, list[Blocked]] = {}
        for pid in [*of_pids][:_MOST_PROCESSES]:
            with suppress(OSError):
                gils |= self._awaited(pid, of_pids[pid])
        held: dict[_Gil, Counter[int]] = {one: Counter() for one in gils}
        for number in range(_TIMES if gils else 0):
            if number and not self._rest(_APART_S):
                break
            for one, tids in held.items():
                with suppress(OSError):
                    tids[self._holder(one)] += 1
        return {
            one.key: Found(one.switched_out_ns, blockers, gil.futexes)
            for gil, waiters in gils.items()
            for one in waiters
            if (blockers := _blockers(one.key, held[gil]))
        }

    def _awaited(self, pid: int, waits: Sequence[Blocked]) -> dict[_Gil, list[Blocked]]:
        """Return the locks of a process that any of its threads waits for. Raises OSError."""
        found: dict[_Gil, list[Blocked]] = {}
        if (known := self._cpython_frames.gil_layout(pid)) is None:
            return found
        runtime, layout = known
        key = waits[0].key
        interpreter = self._word(key, runtime + layout.interpreters)
        for _ in range(_MOST_INTERPRETERS):
            if not interpreter:
                break
            gil = _Gil(key, interpreter + layout.gil_locked, interpreter + layout.gil_holder, layout)
            if waiters := [one for one in waits if one.arguments[0] in gil.futexes]:
                found[gil] = waiters
            interpreter = self._word(key, interpreter + layout.next_interpreter)
        return found

    def _holder(self, gil: _Gil) -> int:
        """Return the tid of the thread that holds a lock, 0 if it is free, unknown or changing. Raises OSError."""
        before = self._state(gil)
        thread, is_locked = before
        if is_locked != 1 or not thread:
            return 0
        tid = tid_of(self._reads, gil.waiter, self._word(gil.waiter, thread + gil.layout.native_id))
        return tid if self._state(gil) == before else 0

    def _state(self, gil: _Gil) -> tuple[int, int]:
        """Return the address of the thread that holds a lock, or held it last, and whether it is held."""
        thread = self._word(gil.waiter, gil.holder)
        (is_locked,) = _INT.unpack(self._read(gil.waiter, gil.locked, _INT.size))
        return thread, is_locked

    def _word(self, key: ThreadKey, address: int) -> int:
        (word,) = _WORD.unpack(self._read(key, address, _WORD.size))
        return int(word)

    def _read(self, key: ThreadKey, address: int, size_bytes: int) -> bytes:
        raw: bytes = self._reads.ask(key.pid, "piece", f"/proc/{key.pid}/task/{key.tid}/mem", size_bytes, address)
        if len(raw) < size_bytes:
            raise ProcessLookupError  # the page is not mapped any more, or the thread has just exited
        return raw


def _blockers(key: ThreadKey, held: Mapping[int, int]) -> tuple[Blocker, ...]:
    """`held`: tid → how often it was found; tid 0: no holder. The waiter may have held the lock between two waits."""
    tids = sorted(held.keys() - {0, key.tid}, key=lambda tid: -held[tid])
    is_exact = len(held) == 1 and sum(held.values()) > 1
    return tuple(Blocker(key.pid, tid, GIL, is_exact) for tid in tids)
