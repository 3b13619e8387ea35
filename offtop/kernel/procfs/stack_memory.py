"""Reads the stacks of many threads of one process at once, in the way of memory.py.

It is a module of its own because the sandboxed readers import memory.py, and should not import NumPy.
"""

import ctypes as ct
import os
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from offtop.kernel.procfs.memory import PAGE_BYTES, PRESENT, libc
from offtop.model.values.table import Mask

_MOST_AT_ONCE = 32
"""How many stacks are checked to be resident, and then read, at once. With more, a page is more likely to be evicted in
between, or mmap_lock to be taken: see memory.py."""

_ENTRY_BYTES = 8
_PRESENT_IN_LAST = PRESENT >> 8 * (_ENTRY_BYTES - 1)
"""memory.PRESENT in the last byte of an entry: it is the highest bit, and all supported CPUs are little-endian."""


def read_stacks(tid: int, addresses: NDArray[np.uint64], size_bytes: int) -> tuple[NDArray[np.uint64], Mask]:
    """Read `size_bytes` (a multiple of 8) at each address in the process of a thread.

    Returns a row of words for each address, and which rows were read: all that are resident.
    """
    words = np.zeros((len(addresses), size_bytes // 8), np.uint64)
    is_read = np.zeros(len(addresses), np.bool_)
    theirs = np.column_stack((addresses, np.full(len(addresses), size_bytes, np.uint64)))
    offsets, lengths = _entries_of(addresses, size_bytes)
    with suppress(OSError):
        pagemap = os.open(f"/proc/{tid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        try:
            for begin in range(0, len(addresses), _MOST_AT_ONCE):
                part = slice(begin, begin + _MOST_AT_ONCE)
                rows = begin + np.flatnonzero(_are_resident(pagemap, offsets[part], lengths[part]))
                read = np.empty((len(rows), size_bytes // 8), np.uint64)
                some, ours = theirs[rows], np.array((read.ctypes.data, read.nbytes), np.uint64)
                got = libc().process_vm_readv(tid, _pointer(ours), 1, _pointer(some), len(rows), 0)
                whole = rows[: max(0, got) // size_bytes]
                words[whole], is_read[whole] = read[: len(whole)], True
        finally:
            os.close(pagemap)
    return words, is_read


def _pointer(vectors: NDArray[np.uint64]) -> ct.c_void_p:
    return ct.c_void_p(vectors.ctypes.data)


def _entries_of(addresses: NDArray[np.uint64], size_bytes: int) -> tuple[list[int], list[int]]:
    """Return where in pagemap the pages at each address are, and how many bytes that takes."""
    pages = (addresses % PAGE_BYTES + (size_bytes - 1)) // PAGE_BYTES + 1
    return (addresses // PAGE_BYTES * _ENTRY_BYTES).tolist(), (pages * _ENTRY_BYTES).tolist()


def _are_resident(pagemap: int, offsets: Sequence[int], lengths: Sequence[int]) -> list[bool]:
    """Return for which pages all are resident. `pagemap`: descriptor of /proc/TID/pagemap."""
    found: list[bool] = []
    for offset, length in zip(offsets, lengths, strict=True):
        try:
            entries = os.pread(pagemap, length, offset)
        except OSError:
            entries = b""
        found.append(len(entries) == length and min(entries[_ENTRY_BYTES - 1 :: _ENTRY_BYTES]) >= _PRESENT_IN_LAST)
    return found
