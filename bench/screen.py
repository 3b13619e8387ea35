"""Measure the screen's cost on a quiet and on a busy machine, and its behaviour on a terminal that stalls.

- 80x24, this machine as it is: CPU and bytes. Other programs should do little meanwhile, because it is drawn.
- 160x50, synthetic waits of 500 threads, all of which change each second, with histogram and tree.
- A terminal that reads nothing for 45 s: whether each tick was still read in time, and what the screen says afterwards.

In the first two, offtop runs until its window is full before it is measured. The result is the median of several
intervals.
"""

import json
import re
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench import tools
from bench.answer import Answer, Bar, UnanswerableError, middle, table
from tests.ui.terminal import Terminal, show, terminal

_WARM_SECONDS = 13.0
_SLICES = 5
_SLICE_SECONDS = 5.0
_THREADS = 500
_STALL_SECONDS = 45.0
_PATIENCE_SECONDS = 20.0
_SAID = re.compile(r"the screen did not update for [^;]*; measuring continued")


class _Used(NamedTuple):
    """Use of resources in one interval."""

    cpu_pct: float
    """Percent of one core, of the process and its children."""
    bytes_per_s: float


class _Case(NamedTuple):
    name: str
    command: Sequence[str]
    width: int
    height: int
    keys: bytes
    most_cpu_pct: float
    most_bytes_per_s: float


def ask(_waits: Path) -> Answer:
    cases = (
        _Case("80x24, this machine", [str(tools.offtop())], 80, 24, b"", 0.7, 2_000),
        # Two sites per thread. H: one row per thread.
        _Case(f"160x50, {_THREADS} threads that change", show(str(2 * _THREADS)), 160, 50, b"H", 5.0, 0),
    )
    used = {case.name: _used(case) for case in cases}
    delays, message = _stalled()
    rows = [
        (name, middle([u.cpu_pct for u in slices], 1), middle([u.bytes_per_s for u in slices]))
        for name, slices in used.items()
    ]
    bars: list[Bar] = []
    for case in cases:
        cpu_pct = median(u.cpu_pct for u in used[case.name])
        bars.append(Bar(f"CPU of reading and drawing, {case.name}", cpu_pct, case.most_cpu_pct, "%"))
        if case.most_bytes_per_s:
            bytes_per_s = median(u.bytes_per_s for u in used[case.name])
            bars.append(Bar(f"bytes per second, {case.name}", bytes_per_s, case.most_bytes_per_s))
    bars += [
        Bar(f"delays between two readings while the terminal reads nothing for {_STALL_SECONDS:.0f} s", max(delays), 2),
        Bar("stalls that the screen did not report", int(not message), 0),
    ]
    return Answer(
        "What a screen costs at 1 Hz",
        [*table(("", "CPU, % of one core", "bytes per second"), rows), f"{len(delays)} readings in a stall: {message}"],
        bars,
        {**{name: [u._asdict() for u in slices] for name, slices in used.items()}, "delays": delays, "said": message},
    )


def _used(case: _Case) -> list[_Used]:
    with terminal(case.command, case.width, case.height) as shown:
        if not shown.wait_for(re.compile("CATEGORY"), _PATIENCE_SECONDS):
            raise UnanswerableError(f"no picture within {_PATIENCE_SECONDS:.0f} s")
        shown.press(case.keys)
        shown.look_on(_WARM_SECONDS)
        return [_slice(shown) for _ in range(_SLICES)]


def _slice(shown: Terminal) -> _Used:
    began, bytes_before, cpu_before_s = time.monotonic(), len(shown.drawn), sum(tools.family_cpu_s(shown.pid))
    shown.look_on(_SLICE_SECONDS)
    seconds = time.monotonic() - began
    return _Used(
        100 * (sum(tools.family_cpu_s(shown.pid)) - cpu_before_s) / seconds, (len(shown.drawn) - bytes_before) / seconds
    )


def _stalled() -> tuple[list[float], str]:
    """Return the times between readings, in delays, and the screen's message after the stall."""
    with tempfile.TemporaryDirectory() as directory:
        reads = Path(directory, "reads")
        with terminal(show("--reads", str(reads))) as shown:
            shown.look_on(5)
            shown.stall(_STALL_SECONDS)
            shown.forget()
            shown.wait_for(_SAID, 5)
            message = _SAID.search(shown.text)
        read_ns: list[int] = json.loads(reads.read_text())
    # The second reading comes earlier than one delay after the first.
    return [(b - a) / 1e9 for a, b in pairwise(read_ns)][1:], message[0] if message else ""
