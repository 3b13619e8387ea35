"""The memory of a process, read from outside while a thread of it is blocked.

What is not in memory is not asked for: bringing it in would take as long as a disk does, and a page of a stranger's
file system (FUSE) comes when the stranger likes.

A process whose mmap_lock is held hangs who reads it. That happens in pagemap, which is read first and where a thread
can be killed, so that offtop ends all the same; process_vm_readv() cannot be (mm/process_vm_access.c), but hangs only
if the lock is taken in the microsecond between the two.
"""

import ctypes as ct
import os
from functools import cache
from types import TracebackType

_WINDOW_BYTES = 16_384
"""Read at once: most stacks have all their frames within this much of the stack pointer."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_WINDOW_PAGES = _WINDOW_BYTES // _PAGE_BYTES + 2
_PRESENT = 1 << 63
"""Of a page, in /proc/TID/pagemap."""
_MOST_PAGES = 64

_Vectors = ct.c_uint64 * 4
"""Two `struct iovec`, here and there."""


class Memory:
    """Of the process that a thread belongs to. Close it; for use by one thread."""

    def __init__(self, tid: int) -> None:
        """Of a thread that is gone there is none."""
        self._tid = tid
        self._pagemap, self.is_closed = -1, False
        """`is_closed`: there is some, that we may not read."""
        try:
            self._pagemap = os.open(f"/proc/{tid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        except PermissionError:  # another user's, without CAP_DAC_READ_SEARCH
            self.is_closed = True
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
        """What is there, up to 16 KB, fewer bytes where the rest is not in memory. A stack stands still while its
        thread is blocked, so it is read in large pieces, each once."""
        at = address - self._start
        if not 0 <= at <= len(self._stack) - size_bytes:
            self._start, self._stack, at = address, self._read(address, _WINDOW_BYTES), 0
        return self._stack[at : at + size_bytes]

    def code(self, address: int, size_bytes: int) -> bytes:
        """The same of a program's code."""
        parts: list[bytes] = []
        while size_bytes > 0:
            page, at = address // _PAGE_BYTES * _PAGE_BYTES, address % _PAGE_BYTES
            if page not in self._pages:
                if len(self._pages) >= _MOST_PAGES:
                    self._pages.clear()
                self._pages[page] = self._read(page, _PAGE_BYTES)
            part = self._pages[page][at : at + size_bytes]
            if not part:
                break
            parts.append(part)
            address, size_bytes = address + len(part), size_bytes - len(part)
        return b"".join(parts)

    def _read(self, address: int, size_bytes: int) -> bytes:
        """Up to the first page that is not in memory. A page may leave after it was seen there; then the read brings it
        back."""
        try:
            pages = os.pread(self._pagemap, 8 * _WINDOW_PAGES, address // _PAGE_BYTES * 8)
        except (OSError, OverflowError):
            return b""
        size = -(address % _PAGE_BYTES)
        for page in memoryview(pages).cast("Q"):
            if not page & _PRESENT:
                break
            size += _PAGE_BYTES
        size = min(size, size_bytes)
        if size <= 0:
            return b""
        vectors = _Vectors(ct.addressof(self._window), size, address, size)
        got = libc().process_vm_readv(self._tid, vectors, 1, ct.byref(vectors, 16), 1, 0)
        return self._window.raw[: max(0, got)]


@cache
def libc() -> ct.CDLL:
    """libc, with process_vm_readv."""
    lib = ct.CDLL(None)
    lib.process_vm_readv.argtypes = [ct.c_int, ct.c_void_p, ct.c_ulong, ct.c_void_p, ct.c_ulong, ct.c_ulong]
    lib.process_vm_readv.restype = ct.c_ssize_t
    return lib


@cache
def code_addresses() -> int:
    """Mask of the bits that user addresses use on this machine; arm64 signs return addresses in those above.

    Libraries, libc among them, lie near the top of the user address space.
    """
    libc_function = ct.cast(libc().process_vm_readv, ct.c_void_p).value or 0
    return (1 << libc_function.bit_length()) - 1
