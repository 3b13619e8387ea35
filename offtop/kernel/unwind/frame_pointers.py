"""The user stack of a thread that is blocked along its frame pointers: what the kernel will find when it is back.

A task iterator gives the registers of another thread, but never its user stack (-EOPNOTSUPP). While a thread is
blocked its stack stands still, so its frame pointers are followed from here, and as the kernel follows them
(perf_callchain_user of each architecture), astray too: so a wait in progress has the stack that it will have
when it has ended. Whether the thread has run meanwhile is for the caller to find out.
"""

import platform
import struct

from offtop.kernel.bpf.layout import FRAMES
from offtop.kernel.procfs.memory import Memory, code_addresses

_MACHINE = platform.machine()
_FRAME = struct.Struct("=QQ")
"""At a frame pointer: the caller's frame pointer, and where it goes on."""


def walk(memory: Memory, ip: int, bp: int, machine: str = _MACHINE) -> tuple[int, ...]:
    """Addresses, leaf first: `ip`, then up to 126 return addresses, as bpf/userstack.c keeps them of a wait that has
    ended. `bp` is the frame pointer, x29 on ARM. `machine` is the program's own, as uname names it: a 32-bit
    program's is another than the kernel's. Of machines but x86_64 and aarch64 `ip` is all.
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
