"""What is said of an error that nobody foresaw: one sentence, in place of a traceback."""

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

VERBOSE = "OFFTOP_TRACEBACK"
"""Variable of the environment: who looks for the cause sets it, and has the traceback, too."""
NO_ROOM = (
    "There is no memory, or no room for another thread, as ulimit -v, -u or the cgroup allow them. Raise the limit"
)
_OWN = Path(__file__).parent
_LONGEST = 200
_AGAIN_S = 0.01


def told(error: BaseException, thread: str = "") -> str:
    """What it was and where: `A fault of offtop 0.1: KeyError(5) at kernel/live.py:230. …`; or that there is no room,
    which is nobody's fault."""
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "start new thread" in str(error)):
        return NO_ROOM
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(_OWN)]
    where = f" at {Path(own[-1].filename).relative_to(_OWN)}:{own[-1].lineno}" if own else ""
    within = f" in {printable(thread)}" if thread else ""
    what = printable(repr(error)[:_LONGEST])
    return f"A fault of offtop {__version__}{within}: {what}{where}. Please report it, with what {VERBOSE}=1 adds"


def tell(error: BaseException, thread: str = "") -> None:
    """On stderr."""
    if os.environ.get(VERBOSE):
        for line in "".join(traceback.format_exception(error)).splitlines():
            warn(printable(line))
    warn(f"offtop: {told(error, thread)}")


@contextmanager
def of_threads(say: Callable[[BaseException, str], None]) -> Generator[None]:
    """Meanwhile `say` is handed what ended a thread, and that thread's name, in that thread."""

    def ended(failed: threading.ExceptHookArgs) -> None:
        if failed.exc_value is not None:
            say(failed.exc_value, failed.thread.name if failed.thread else "")

    before, threading.excepthook = threading.excepthook, ended
    try:
        yield
    finally:
        threading.excepthook = before


@contextmanager
def of_callbacks() -> Generator[None]:
    """Meanwhile a signal that is to end offtop does so even if it comes in a callback, where Python drops what is
    raised: it comes again. What else is raised there is told as of a thread."""

    def dropped(what: "sys.UnraisableHookArgs") -> None:
        error = what.exc_value
        if isinstance(error, KeyboardInterrupt | SystemExit):
            number = int(error.code or 0) - 128 if isinstance(error, SystemExit) else signal.SIGINT
            again = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), number))
            again.daemon = True
            again.start()
        elif error is not None:
            threading.excepthook(threading.ExceptHookArgs((what.exc_type, error, what.exc_traceback, None)))

    before, sys.unraisablehook = sys.unraisablehook, dropped
    try:
        yield
    finally:
        sys.unraisablehook = before
