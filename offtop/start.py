"""Entry point of the command `offtop`: tune Python's memory use, and let ctrl-C end it quietly while it loads."""

import signal

_LEAST_LARGE_BYTES, _MOST_LARGE_BYTES = 1 << 20, 32 << 20
_LARGE_BYTES_PER_THREAD = 96
"""Most matrices of a tick have fewer bytes for each thread of the machine: their memory is used again."""
_GC_THRESHOLD = 200_000
"""Allocations between two garbage collections. A tick allocates many thousands of tuples and no cycles."""


def main() -> None:
    """Run the command line and exit. Once `cli` is loaded, it handles ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Not at the top of the file: before the line above, ctrl-C would print a traceback.
    import gc
    import os
    import sys
    from contextlib import suppress

    from offtop.heap import limit_heap
    from offtop.kernel.bpf.map_sizes import threads_now

    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy would otherwise start one unused thread per CPU
    wanted_bytes = 0
    with suppress(OSError, ValueError, IndexError):  # /proc is not mounted, or is another one
        wanted_bytes = _LARGE_BYTES_PER_THREAD * threads_now()
    limit_heap(min(_MOST_LARGE_BYTES, max(_LEAST_LARGE_BYTES, wanted_bytes)))
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
