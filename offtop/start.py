"""The command `offtop`: a ctrl-C while Python still loads ends it without a traceback."""

import signal
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line; ctrl-C is cli's to answer once that is loaded."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from offtop import cli

    signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main()
