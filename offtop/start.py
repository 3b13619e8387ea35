"""The command `offtop`: a ctrl-C while Python still loads ends it without a traceback."""

import os
import signal
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line; ctrl-C is cli's to answer once that is loaded."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's; else a thread and its memory for each CPU, unused
    from offtop import cli

    signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main()
