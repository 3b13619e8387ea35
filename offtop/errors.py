"""Errors that offtop reports; each says what is wrong and how to fix it. And how lines get to stderr."""

import os
import sys


class OfftopError(Exception):
    """A run-time error: one sentence and its remedy."""

    status = 1


class UsageError(OfftopError):
    """The command line asks for something that cannot be."""

    status = 2


class PrivilegeError(OfftopError):
    """The kernel would let root do this."""

    status = 3


class CaughtError(OfftopError):
    """Something was caught, which was asked to be a failure."""

    status = 5


class KernelError(OfftopError):
    """This kernel, or this bcc, cannot do what is needed."""

    status = 4


def warn(line: str) -> None:
    """Print a line to stderr, if that is open and its terminal still exists; otherwise do nothing."""
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]  # `offtop 2>&-`
        return
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        # Otherwise Python writes the line again when it exits, fails, and changes the exit status.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
