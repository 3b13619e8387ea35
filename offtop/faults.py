"""Report unexpected exceptions in one sentence instead of a traceback."""

import errno
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from offtop import __version__
from offtop.errors import warn
from offtop.printable import printable

TRACEBACK_VARIABLE = "OFFTOP_TRACEBACK"
"""Environment variable; if set, the traceback is printed as well."""
OUT_OF_MEMORY = (
    "Out of memory, or too many threads, for the limits set by ulimit -v, ulimit -u or the cgroup. Raise the limit"
)
_OUTPUT_ERRORS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.ENXIO, errno.EROFS, errno.ESTALE),
    *(errno.ECONNRESET, errno.ENOTCONN, errno.ETIMEDOUT, errno.ENOBUFS),
)
"""What writing to a file, a terminal or a socket fails with."""
_OWN = Path(__file__).parent
_MAX_REPR = 200
_RESEND_S = 0.01


def error_text(error: BaseException, thread: str = "") -> str:
    """Return one sentence that says what failed and where.

    If memory or threads ran out, it is OUT_OF_MEMORY. Otherwise it is, for example, `Internal error in offtop 0.1:
    KeyError(5) at kernel/live.py:230. …`
    """
    no_thread = isinstance(error, RuntimeError) and "start new thread" in str(error)
    no_process = isinstance(error, OSError) and error.errno in (errno.ENOMEM, errno.EAGAIN) and not is_of_writing(error)
    if isinstance(error, MemoryError) or no_thread or no_process:
        return OUT_OF_MEMORY
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(_OWN)]
    place = f" at {Path(own[-1].filename).relative_to(_OWN)}:{own[-1].lineno}" if own else ""
    thread_part = f" in {printable(thread)}" if thread else ""
    return (
        f"Internal error in offtop {__version__}{thread_part}: {printable(repr(error)[:_MAX_REPR])}{place}. "
        f"Please report it, with what {TRACEBACK_VARIABLE}=1 adds"
    )


def print_error(error: BaseException, thread: str = "") -> None:
    """Print the error to stderr, with its traceback if $OFFTOP_TRACEBACK is set."""
    if os.environ.get(TRACEBACK_VARIABLE):
        for line in "".join(traceback.format_exception(error)).splitlines():
            warn(printable(line))
    warn(f"offtop: {error_text(error, thread)}")


def is_of_writing(error: OSError) -> bool:
    """Return whether writing to standard output failed. A failed fork has EAGAIN, too, but says nothing of writing."""
    return error.errno in _OUTPUT_ERRORS or hasattr(error, "characters_written")


@contextmanager
def report_thread_errors(report: Callable[[BaseException, str], None]) -> Generator[None]:
    """In this block, call `report` when an exception ends a thread, in that thread.

    Its arguments are the exception and the thread's name.
    """

    def on_thread_exception(failed: threading.ExceptHookArgs) -> None:
        if failed.exc_value is not None:
            report(failed.exc_value, failed.thread.name if failed.thread else "")

    previous_hook, threading.excepthook = threading.excepthook, on_thread_exception
    try:
        yield
    finally:
        threading.excepthook = previous_hook


@contextmanager
def report_callback_errors() -> Generator[None]:
    """In this block, handle exceptions raised in callbacks, which Python would drop.

    A signal that should end offtop is sent again, so that it ends offtop after all. Any other exception is reported
    like one that ended a thread.
    """

    def on_unraisable(unraisable: "sys.UnraisableHookArgs") -> None:
        error = unraisable.exc_value
        if isinstance(error, KeyboardInterrupt | SystemExit):
            number = int(error.code or 0) - 128 if isinstance(error, SystemExit) else signal.SIGINT
            resend = threading.Timer(_RESEND_S, os.kill, (os.getpid(), number))
            resend.daemon = True
            resend.start()
        elif error is not None:
            threading.excepthook(threading.ExceptHookArgs((unraisable.exc_type, error, unraisable.exc_traceback, None)))

    previous_hook, sys.unraisablehook = sys.unraisablehook, on_unraisable
    try:
        yield
    finally:
        sys.unraisablehook = previous_hook
