"""The command `offtop`: how Python is to use memory, and a ctrl-C while it still loads ends it quietly."""

import signal

_ARENA_MAX = -8
"""M_ARENA_MAX of malloc.h (glibc)."""
_ROWS_OF_GARBAGE = 200_000
"""Objects between two searches for cycles: a tick makes many thousands of tuples, and no cycle."""


def main() -> None:
    """Run the command line, which exits; ctrl-C is cli's to answer once that is loaded."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Not above: until here Python answers a ctrl-C with a traceback.
    import ctypes
    import gc
    import os
    import sys
    from contextlib import suppress

    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's; else a thread and its memory for each CPU, unused
    with suppress(AttributeError):  # another libc than glibc
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)  # threads take turns in Python: a heap for each would only add up
    gc.set_threshold(_ROWS_OF_GARBAGE, 20, 100)
    try:
        from offtop import cli
    except (ImportError, MemoryError, OSError) as error:
        *_, why = str(error).strip().splitlines() or [type(error).__name__]
        sys.exit(
            f"offtop: it cannot be loaded: {why.strip()}. Is it installed whole, and does ulimit -v leave it 400 MB?"
        )

    signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main()
