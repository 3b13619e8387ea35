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


def read_stacks(tid: int, addresses: NDArray[np.uint64], size_bytes: int) -> tuple[NDArray[np.uint64], Mask]:
    """Read `size_bytes` (a multiple of 8) at each address in the process of a thread.

    Returns a row of words for each address, and which rows were read: all that are resident.
    """
    words = np.zeros((len(addresses), size_bytes // 8), np.uint64)
    is_read = np.zeros(len(addresses), np.bool_)
    with suppress(OSError):
        pagemap = os.open(f"/proc/{tid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        try:
            for begin in range(0, len(addresses), _MOST_AT_ONCE):
                part = addresses[begin : begin + _MOST_AT_ONCE]
                rows = begin + np.flatnonzero(_are_resident(pagemap, part.tolist(), size_bytes))
                read = np.empty((len(rows), size_bytes // 8), np.uint64)
                theirs = np.column_stack((addresses[rows], np.full(len(rows), size_bytes, np.uint64)))
                ours = np.array((read.ctypes.data, read.nbytes), np.uint64)
                got = libc().process_vm_readv(tid, _pointer(ours), 1, _pointer(theirs), len(rows), 0)
                whole = rows[: max(0, got) // size_bytes]
                words[whole], is_read[whole] = read[: len(whole)], True
        finally:
            os.close(pagemap)
    return words, is_read


def _pointer(vectors: NDArray[np.uint64]) -> ct.c_void_p:
    return ct.c_void_p(vectors.ctypes.data)


def _are_resident(pagemap: int, addresses: Sequence[int], size_bytes: int) -> Mask:
    """Return at which addresses every page is resident. `pagemap`: descriptor of /proc/TID/pagemap."""
    found = np.zeros(len(addresses), np.bool_)
    for row, address in enumerate(addresses):
        first, last = address // PAGE_BYTES, (address + size_bytes - 1) // PAGE_BYTES
        with suppress(OSError, OverflowError):
            pages = memoryview(os.pread(pagemap, 8 * (last - first + 1), 8 * first)).cast("Q")
            found[row] = len(pages) == last - first + 1 and all(page & PRESENT for page in pages)
    return found
