"""Measure the time from the command to the first full screen, and to the first line of JSON."""

import re
import select
import subprocess
import time
from pathlib import Path
from statistics import median

from bench import tools
from bench.answer import Answer, Bar, UnanswerableError, middle
from tests.ui.terminal import terminal

_ROUNDS = 5
_COLUMNS, _LINES = 160, 50
_MOST_SECONDS = 2.0
_PATIENCE_SECONDS = 20.0

_FULL_PICTURE = re.compile(r"LIVE.*Waiting +[\d.]+\S* = .*CATEGORY +WAITING.*COMMAND.*WAITING.*\d%", re.DOTALL)
"""Head, categories and a process row, none of which are drawn before the first tick."""


def ask(_waits: Path) -> Answer:
    screen = [_to_picture() for _ in range(_ROUNDS)]
    line = [_to_json() for _ in range(_ROUNDS)]
    return Answer(
        "Startup time",
        [
            f"to the first full screen on {_COLUMNS}x{_LINES}: {middle(screen, 2)} s",
            f"to the first line of --json -d 0.25: {middle(line, 2)} s",
        ],
        [Bar("command to first full screen", median(screen), _MOST_SECONDS, " s")],
        {"to_picture_s": screen, "to_json_s": line},
    )


def _to_picture() -> float:
    with terminal([str(tools.offtop())], _COLUMNS, _LINES) as shown:
        if not shown.wait_for(_FULL_PICTURE, _PATIENCE_SECONDS):
            raise UnanswerableError(f"no full screen within {_PATIENCE_SECONDS:.0f} s")
        return time.monotonic() - shown.began


def _to_json() -> float:
    began = time.monotonic()
    with tools.running([str(tools.offtop()), "--json", "-d", "0.25"], subprocess.PIPE) as process:
        assert process.stdout
        ready = select.select([process.stdout], [], [], _PATIENCE_SECONDS)[0]
        if not ready or not process.stdout.read(1):
            raise UnanswerableError(f"no line within {_PATIENCE_SECONDS:.0f} s")
        return time.monotonic() - began
