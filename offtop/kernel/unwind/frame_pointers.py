"""Unwinds a blocked thread's user stack by frame pointers.

A task iterator returns the registers of another thread, but never its user stack (-EOPNOTSUPP). The stack of a blocked
thread does not change, so its frame pointers are followed from user space. That is done exactly as in the kernel
(perf_callchain_user of each architecture), wrong results included, so that a wait in progress has the same stack as
after it has ended. The caller must check that the thread has not run meanwhile.
"""

import platform
import struct

from offtop.kernel.bpf.layout import FRAMES
from offtop.kernel.procfs.memory import Memory, code_addresses

_MACHINE = platform.machine()
_FRAME = struct.Struct("=QQ")
"""At a frame pointer: the caller's frame pointer, and the return address."""


def unwind(memory: Memory, ip: int, bp: int, machine: str = _MACHINE) -> tuple[int, ...]:
    """Return the stack's addresses, leaf first: `ip`, then up to 126 return addresses.

    bpf/userstack.c stores the same for a finished wait. `bp`: the frame pointer, x29 on ARM. `machine`: that of the
    program, as uname reports it to the program, so that a 32-bit program has another one than the kernel. If it is
    neither x86_64 nor aarch64, only `ip` is returned.
    """
    frames = [ip]
    if machine not in ("x86_64", "aarch64"):
        return (ip,)
    is_arm = machine == "aarch64"
    code = code_addresses() if is_arm else -1
    while len(frames) < FRAMES and not (is_arm and bp % 16):
        raw = memory.stack(bp, _FRAME.size)
        if len(raw) < _FRAME.size:
            break
        above, address = _FRAME.unpack(raw)
        frames.append(address & code)
        if is_arm and above <= bp:
            break
        bp = above
    return tuple(frames)
