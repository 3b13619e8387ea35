"""Read the memory of another process while one of its threads is blocked.

Only resident pages are read: paging in takes as long as the disk does, and a page of an untrusted file system (FUSE)
may never arrive.

Reading a process hangs while its mmap_lock is held. That happens in pagemap, which is read first and where the reading
thread can be killed, so that offtop can still exit. process_vm_readv() cannot be killed (mm/process_vm_access.c), but
it hangs only if the lock is taken in the microsecond between the two.
"""

import ctypes as ct
import os
from functools import cache
from types import TracebackType

_WINDOW_BYTES = 16_384
"""Size of one read of a stack: most stacks have all their frames within this distance of the stack pointer."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_WINDOW_PAGES = _WINDOW_BYTES // PAGE_BYTES + 2
PRESENT = 1 << 63
"""Bit of a resident page in /proc/TID/pagemap."""
_MOST_PAGES = 64

_Vectors = ct.c_uint64 * 4
"""Two `struct iovec`: the local and the remote one."""


class Memory:
    """Memory of the process that a thread belongs to. A context manager, for use by one thread."""

    def __init__(self, tid: int) -> None:
        """Open it. If the thread has exited, every read returns no bytes."""
        self._tid = tid
        self._pagemap, self.is_forbidden = -1, False
        """`is_forbidden`: the process exists, but we may not read its memory."""
        try:
            self._pagemap = os.open(f"/proc/{tid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        except PermissionError:  # another user's process, without CAP_DAC_READ_SEARCH
            self.is_forbidden = True
        except OSError:
            pass
        self._window = ct.create_string_buffer(_WINDOW_BYTES)
        self._start, self._stack = 0, b""
        self._pages: dict[int, bytes] = {}

    def __enter__(self) -> "Memory":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._pagemap >= 0:
            os.close(self._pagemap)

    def stack(self, address: int, size_bytes: int) -> bytes:
        """Read up to 16 KB of a stack; fewer bytes if the rest is not resident.

        It is read in large pieces and cached, because a stack does not change while its thread is blocked.
        """
        at = address - self._start
        if not 0 <= at <= len(self._stack) - size_bytes:
            self._start, self._stack, at = address, self._read(address, _WINDOW_BYTES), 0
        return self._stack[at : at + size_bytes]

    def code(self, address: int, size_bytes: int) -> bytes:
        """Read code of the program; fewer bytes if the rest is not resident. Pages are cached."""
        parts: list[bytes] = []
        while size_bytes > 0:
            page, at = address // PAGE_BYTES * PAGE_BYTES, address % PAGE_BYTES
            if page not in self._pages:
                if len(self._pages) >= _MOST_PAGES:
                    self._pages.clear()
                self._pages[page] = self._read(page, PAGE_BYTES)
            part = self._pages[page][at : at + size_bytes]
            if not part:
                break
            parts.append(part)
            address, size_bytes = address + len(part), size_bytes - len(part)
        return b"".join(parts)

    def _read(self, address: int, size_bytes: int) -> bytes:
        """Read up to the first page that is not resident.

        If a page is reclaimed after pagemap showed it, the read pages it in again.
        """
        try:
            pages = os.pread(self._pagemap, 8 * _WINDOW_PAGES, address // PAGE_BYTES * 8)
        except (OSError, OverflowError):
            return b""
        size = -(address % PAGE_BYTES)
        for page in memoryview(pages).cast("Q"):
            if not page & PRESENT:
                break
            size += PAGE_BYTES
        size = min(size, size_bytes)
        if size <= 0:
            return b""
        vectors = _Vectors(ct.addressof(self._window), size, address, size)
        got = libc().process_vm_readv(self._tid, vectors, 1, ct.byref(vectors, 16), 1, 0)
        return self._window.raw[: max(0, got)]


@cache
def libc() -> ct.CDLL:
    """Load libc and declare process_vm_readv."""
    lib = ct.CDLL(None)
    lib.process_vm_readv.argtypes = [ct.c_int, ct.c_void_p, ct.c_ulong, ct.c_void_p, ct.c_ulong, ct.c_ulong]
    lib.process_vm_readv.restype = ct.c_ssize_t
    return lib


@cache
def code_addresses() -> int:
    """Mask of the bits that user addresses use on this machine.

    arm64 stores the signature of a return address in the bits above. The mask is taken from the address of a libc
    function, because libraries lie near the top of the user address space.
    """
    libc_function = ct.cast(libc().process_vm_readv, ct.c_void_p).value or 0
    return (1 << libc_function.bit_length()) - 1
