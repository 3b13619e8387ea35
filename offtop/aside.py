"""What is said beside the output, on stderr: to whoever still hears it."""

import os
import sys


def say(line: str) -> None:
    """Where stderr is closed, or its terminal gone, nobody hears it, and that is no failure."""
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]  # `offtop 2>&-`
        return
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # or Python tries once more on its way out, and changes the status
