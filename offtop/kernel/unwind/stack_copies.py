"""Copies of user stacks that BPF made, read from their ring buffer."""

import platform
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from offtop.kernel.binary.unwind_rules import AARCH64
from offtop.kernel.bpf import layout, libbpf
from offtop.kernel.bpf.libbpf import Map
from offtop.kernel.unwind.step import State

_AT_ONCE = 64
"""How many copies BPF may make between two reads: 1 MB."""
_A_SECOND, _SAVED = 100, 512
"""How many copies per second are allowed on average, and up to how many unused ones accumulate. That many may be made
at the start, when every stack is new."""
_IS_ARM = platform.machine() == "aarch64"
_LEAF, _DI = ((32, 31, 29), 0) if _IS_ARM else ((16, 19, 4), 14)
_CALLEE_SAVED = AARCH64.callee_saved if _IS_ARM else (5, 3, 2, 1, 0)
"""Indices in struct pt_regs of the registers of unwind_rules.AARCH64 or X86_64."""


class Copy(NamedTuple):
    """A stack, as far as BPF has unwound it, and a copy of the memory for the rest."""

    id: int
    """User stack ID in the site of its wait."""
    fallback: int
    """ID of its stack by frame pointers."""
    pid: int
    tid: int
    unwound: tuple[int, ...]
    """Addresses that BPF has unwound, leaf first."""
    unsure: bool
    state: State
    """Registers after those frames."""
    execs: int
    """Which program the process ran: the number changes with each exec."""
    at: int
    """Address of `stack`."""
    stack: bytes
    python_frames: tuple[int, ...] = ()
    """Python frames, leaf first (layout.PYTHON)."""

    def read(self, address: int, size_bytes: int) -> bytes:
        """Read copied memory; empty or shorter if it was not copied."""
        start = address - self.at
        return self.stack[start : start + size_bytes] if start >= 0 else b""


def leaf_state(registers: Sequence[int]) -> State:
    """Return the state of a 64-bit program when it entered the kernel.

    `registers`: the words of struct pt_regs.
    """
    ip, sp, bp = (registers[n] for n in _LEAF)
    return State(ip, sp, bp, tuple(registers[n] for n in _CALLEE_SAVED))


class Copies:
    """Reads copies, and limits how many BPF makes. `take` is thread-safe."""

    def __init__(self, ring: Map, copies_left: Map, a_second: int = _A_SECOND) -> None:
        """`a_second`: how many copies are allowed.

        Raises OSError if the ring buffer cannot be read.
        """
        self._copies_left, self._a_second = copies_left, a_second
        self._found: list[Copy] = []
        self._saved, self._taken_s = float(_SAVED), time.monotonic()
        self._lock = threading.Lock()
        self._ring = libbpf.RingBuffer(ring.fd, self._add)

    def take(self, most: int) -> list[Copy]:
        """Return the copies made since the last call.

        `most`: how many BPF may make until the next call, at most.
        """
        with self._lock:
            self._ring.consume()
            found, self._found = self._found, []
            self._saved = min(_SAVED, self._saved + (time.monotonic() - self._taken_s) * self._a_second) - len(found)
            self._taken_s = time.monotonic()
            now = max(0, min(_AT_ONCE, most, int(self._saved)))
            self._copies_left.update(bytes(4), now.to_bytes(8, "little"))
        return found

    def close(self) -> None:
        with self._lock:
            self._ring.close()

    def _add(self, raw: bytes) -> None:
        id_, fallback, *rest = layout.COPY_HEAD.unpack_from(raw)
        registers, rest = rest[: layout.REGISTERS], rest[layout.REGISTERS :]
        (
            pc,
            sp,
            bp,
            size,
            _at,
            pid,
            tid,
            _space,
            _unused,
            depth,
            unsure,
            _end,
            execs,
            python_count,
            _walked_end,
            *frames,
        ) = rest
        callee_saved = tuple(registers[n] for n in _CALLEE_SAVED)
        is_exact = not depth or bool(pc & layout.EXACT)
        state = State(pc & ~layout.EXACT, sp, bp, callee_saved, registers[_DI], is_exact, _IS_ARM and bool(unsure))
        if depth:  # they are the leaf's; the frames in between have changed them
            state.callee_saved, state.di = (None,) * len(callee_saved), None
        head = layout.COPY_HEAD.size
        self._found.append(
            Copy(
                *(id_, fallback, pid, tid, tuple(frames[:depth]), bool(unsure), state, execs, sp),
                raw[head : head + size],
                tuple(frames[layout.FRAMES + 1 :][:python_count]),
            )
        )
