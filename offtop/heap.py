"""Keeps the memory of a process small: glibc's options, and freed memory returned to the kernel."""

import ctypes
from contextlib import suppress

_ARENA_MAX, _MMAP_THRESHOLD, _TRIM_THRESHOLD = -8, -3, -1
"""Options of glibc's mallopt, without M_."""


def limit_heap(large_bytes: int) -> None:
    """Have glibc keep less freed memory. For the start of a process, before it has other threads.

    Blocks of `large_bytes` return to the kernel at once. By default glibc raises that limit to the largest block that
    was freed, up to 32 MB.
    """
    with suppress(AttributeError):  # not glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_ARENA_MAX, 1)  # because of the GIL, one heap per thread gains nothing
        mallopt(_MMAP_THRESHOLD, large_bytes)
        mallopt(_TRIM_THRESHOLD, 8 * large_bytes)  # with the line above, it would be 128 KB: the heap shrinks too often


def trim_heap() -> None:
    """Return freed memory to the kernel, which glibc would keep.

    After a burst of threads, that is up to half of what the process holds. It takes 1 to 3 ms.
    """
    with suppress(AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)
