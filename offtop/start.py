"""The command `offtop`: how little memory it may hold, and a ctrl-C while Python still loads ends it quietly."""

import ctypes
import os
import signal
from contextlib import suppress
from typing import NoReturn

_ARENA_MAX = -8
"""M_ARENA_MAX of malloc.h (glibc)."""


def main() -> NoReturn:
    """Run the command line; ctrl-C is cli's to answer once that is loaded."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's; else a thread and its memory for each CPU, unused
    with suppress(AttributeError):  # another libc than glibc
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)  # threads take turns in Python: a heap for each would only add up
    from offtop import cli

    signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main()
