"""Returns freed memory to the kernel."""

import ctypes
from contextlib import suppress
from time import thread_time_ns

from offtop.units import NS_PER_S

_LARGE_NS = NS_PER_S // 20
"""CPU time of work after which the heap is trimmed: then that costs little beside it."""


def trim_heap() -> None:
    """Return freed memory to the kernel, which glibc would keep.

    After a tick of 10,000 threads, and after a burst of threads, that is up to half of what the process holds. It takes
    1 to 3 ms.
    """
    with suppress(AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


def trim_heap_after(began_ns: int) -> None:
    """Trim the heap if this thread has used 50 ms of CPU time since `began_ns` (thread_time_ns)."""
    if thread_time_ns() - began_ns >= _LARGE_NS:
        trim_heap()
