"""Entry point of the command `offtop`: tune Python's memory use, and let ctrl-C end it quietly while it loads."""

import signal

_LARGE_BYTES = 1 << 20
"""Most columns of a tick are smaller: their memory is used again."""
_GC_THRESHOLD = 200_000
"""Allocations between two garbage collections. A tick allocates many thousands of tuples and no cycles."""


def main() -> None:
    """Run the command line and exit. Once `cli` is loaded, it handles ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Not at the top of the file: before the line above, ctrl-C would print a traceback.
    import gc
    import os
    import sys

    from offtop.heap import limit_heap

    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy would otherwise start one unused thread per CPU
    limit_heap(_LARGE_BYTES)
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
