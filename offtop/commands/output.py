"""Choose between the screen and text, and write text so that an error is reported."""

import contextlib
import os
import sys
from collections.abc import Generator

from offtop.errors import OfftopError, warn


@contextlib.contextmanager
def flushed_output() -> Generator[None]:
    """Flush stdout at the end of the block.

    Raises OfftopError if the output cannot be written. A BrokenPipeError is passed on: the reader has closed the pipe.
    """
    if sys.__stdout__ is None:
        raise OfftopError("The output cannot be written (stdout is closed). Open it, as with: offtop -b >FILE")
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # otherwise Python flushes it again at exit
        raise OfftopError(f"The output cannot be written ({error.strerror}). Make room, or write elsewhere") from error


def why_no_screen(is_text_wanted: bool) -> str | None:
    """Return why there is no screen: empty if text was requested; None if there is a screen."""
    if is_text_wanted:
        return ""
    if not sys.stdin.isatty() or not sys.stdout.isatty():
        return "stdin or stdout is not a terminal"
    if os.environ.get("TERM", "dumb") in ("", "dumb"):
        return "TERM names a terminal that cannot show a screen"
    return None


def warn_of_batch_mode(reason: str | None) -> None:
    """Say why this is batch mode, if it was not requested."""
    if reason:
        warn(f"offtop: {reason}, so this is batch mode (-b)")
