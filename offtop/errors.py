"""Errors that offtop reports, each with what is wrong and how to fix it, and a safe way to write to stderr."""

import os
import sys

from offtop.printable import printable


class OfftopError(Exception):
    """A run-time error.

    The message is one sentence and its remedy; `status` is the exit status.
    """

    status = 1


class UsageError(OfftopError):
    """The command line or a setting is not valid."""

    status = 2


class PrivilegeError(OfftopError):
    """The operation needs root, or a capability that this process does not have."""

    status = 3


class OutlierFoundError(OfftopError):
    """There was an outlier, and `--fail-on-trigger` was given."""

    status = 5


class KernelError(OfftopError):
    """This kernel or this bcc lacks something that offtop needs."""

    status = 4


def warn(line: str) -> None:
    """Print a line to stderr, escaped. Do nothing if stderr is closed or its terminal is gone."""
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]  # `offtop 2>&-`
        return
    try:
        print("\n".join(map(printable, line.split("\n"))), file=sys.stderr, flush=True)
    except OSError:
        # Otherwise Python writes the line again at exit, fails, and changes the exit status.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
