"""The user stack of a thread that is blocked, read from outside: what the kernel will find when the thread is back.

A task iterator gives the registers of another thread, but never its user stack (-EOPNOTSUPP). While a thread is
blocked its stack stands still, so its frame pointers are followed from here, and as the kernel follows them
(perf_callchain_user of each architecture), astray too: so a wait in progress has the stack that it will have
when it has ended. Whether the thread has run meanwhile is for the caller to find out.

What is not in memory ends the walk, as it ends the kernel's. It is not asked for: bringing it in would take as
long as a disk does, and a page of a stranger's file system (FUSE) comes when the stranger likes.
"""

import ctypes as ct
import os
import platform
import struct
from functools import cache

from offtop.kernel.layout import FRAMES

_MACHINE = platform.machine()
_FRAME = struct.Struct("=QQ")
"""At a frame pointer: the caller's frame pointer, and where it goes on."""
_WORD = struct.Struct("=Q")
_WINDOW_BYTES = 16_384
"""Read at once: most stacks have all their frames within this much of the stack pointer."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_WINDOW_PAGES = _WINDOW_BYTES // _PAGE_BYTES + 2
_PRESENT = 1 << 63
"""Of a page, in /proc/TID/pagemap."""

_Window = ct.c_char * _WINDOW_BYTES
_Vectors = ct.c_uint64 * 4
"""Two `struct iovec`, here and there."""


def walk(tid: int, ip: int, sp: int, bp: int, machine: str = _MACHINE) -> tuple[tuple[int, ...], int]:
    """(addresses leaf first, the word at the stack pointer where it may be a return address and 0 elsewhere).

    Both are what bpf/offcpu.c keeps of a wait that has ended: `ip`, then up to 126 return addresses. `bp` is the
    frame pointer, x29 on ARM. `machine` is the program's own, as uname names it: a 32-bit program's is another
    than the kernel's. Of machines but x86_64 and aarch64, and of a thread that is gone, `ip` is all.
    """
    if machine not in ("x86_64", "aarch64"):
        return (ip,), 0
    try:
        pagemap = os.open(f"/proc/{tid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return (ip,), 0
    try:
        return _followed(tid, pagemap, ip, sp, bp, machine == "aarch64")
    finally:
        os.close(pagemap)


def _followed(tid: int, pagemap: int, ip: int, sp: int, bp: int, is_arm: bool) -> tuple[tuple[int, ...], int]:
    window = _Window()
    start, end = sp, sp + _read(tid, pagemap, sp, window)
    at_sp = _WORD.unpack_from(window)[0] if end - start >= _WORD.size and not is_arm else 0
    code = _code_addresses() if is_arm else -1
    frames = [ip]
    while len(frames) < FRAMES and not (is_arm and bp % 16):
        if not start <= bp <= end - _FRAME.size:
            start, end = bp, bp + _read(tid, pagemap, bp, window)
            if end - start < _FRAME.size:
                break
        above, address = _FRAME.unpack_from(window, bp - start)
        frames.append(address & code)
        if is_arm and above <= bp:
            break
        bp = above
    return tuple(frames), at_sp if any(at_sp >> 32 == address >> 32 for address in frames[:3]) else 0


def _read(tid: int, pagemap: int, address: int, window: ct.Array[ct.c_char]) -> int:
    """How many bytes from `address` on are in `window` now: up to the first page that is not in memory.

    A page may leave after it was seen there; then the read brings it back.
    """
    try:
        pages = memoryview(os.pread(pagemap, 8 * _WINDOW_PAGES, address // _PAGE_BYTES * 8)).cast("Q")
    except OSError:
        return 0
    size = -(address % _PAGE_BYTES)
    for page in pages:
        if not page & _PRESENT:
            break
        size += _PAGE_BYTES
    if size <= 0:
        return 0
    size = min(size, _WINDOW_BYTES)
    vectors = _Vectors(ct.addressof(window), size, address, size)
    return max(0, _libc().process_vm_readv(tid, vectors, 1, ct.byref(vectors, 16), 1, 0))


@cache
def _libc() -> ct.CDLL:
    lib = ct.CDLL(None)
    lib.process_vm_readv.argtypes = [ct.c_int, ct.c_void_p, ct.c_ulong, ct.c_void_p, ct.c_ulong, ct.c_ulong]
    lib.process_vm_readv.restype = ct.c_ssize_t
    return lib


@cache
def _code_addresses() -> int:
    """The bits of a user address on this machine: in those above, ARM signs return addresses.

    Libraries lie near the top of what user addresses there are, and libc is one.
    """
    place = ct.cast(_libc().process_vm_readv, ct.c_void_p).value or 0
    return (1 << place.bit_length()) - 1
