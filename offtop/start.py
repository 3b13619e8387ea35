"""Entry point of the command `offtop`: tune Python's memory use, and let ctrl-C end it quietly while it loads."""

import signal

_MALLOC = (
    (-8, 1),  # M_ARENA_MAX: because of the GIL, one heap per thread gains nothing
    (-3, 1 << 20),  # M_MMAP_THRESHOLD: large columns return to the kernel; by default glibc keeps up to 32 MB of each
    (-1, 8 << 20),  # M_TRIM_THRESHOLD: with the line above, it would be 128 KB, and each tick would shrink the heap
)
"""Options of glibc's mallopt, and their values."""
_GC_THRESHOLD = 200_000
"""Allocations between two garbage collections. A tick allocates many thousands of tuples and no cycles."""


def main() -> None:
    """Run the command line and exit. Once `cli` is loaded, it handles ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Not at the top of the file: before the line above, ctrl-C would print a traceback.
    import ctypes
    import gc
    import os
    import sys
    from contextlib import suppress

    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy would otherwise start one unused thread per CPU
    with suppress(AttributeError):  # not glibc
        for option, value in _MALLOC:
            ctypes.CDLL(None).mallopt(option, value)
    gc.set_threshold(_GC_THRESHOLD, 20, 100)
    try:
        from offtop import cli
    except (ImportError, MemoryError, OSError) as error:
        *_, reason = str(error).strip().splitlines() or [type(error).__name__]
        sys.exit(
            f"offtop: cannot load: {reason.strip()}. Is the installation complete, and does ulimit -v allow 400 MB?"
        )

    signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main()
