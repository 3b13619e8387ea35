"""Measure the cost of reading and drawing at 1 Hz, with 5,000 sites that all change each second.

The sites are real: threads sleep in 5 functions in turn, 0.2 s each. So each second, each thread has 5 sites. offtop
runs on a separate terminal until its window is full; then its CPU time is measured. The result is the median of several
intervals, because offtop also looks up names when other users start programs.
"""

import json
import subprocess
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench import tools
from bench.answer import Answer, Bar, UnanswerableError, middle
from bench.workload import Threads
from tests.ui.terminal import Terminal, terminal

_COLUMNS, _LINES = 160, 50
_THREADS = 1_000
_SITES = 5_000
_WAIT_US = 200_000
_COUNTED_TICKS = 4
_WARM_SECONDS = 30.0
"""By then offtop's window is full, and it has read the binaries of the threads."""
_SLICES = 7
_SLICE_SECONDS = 3.0
_LIVE_SECONDS = 90.0
_MOST_CPU_PCT = 4.0
_MOST_MB = 150.0


class _Usage(NamedTuple):
    """CPU time of offtop, in seconds or in percent of one core."""

    drawing: float
    """The main thread."""
    reading: float
    """All other threads (reading, names), and the children that read binaries."""
    kernel: float
    """Kernel part of both."""

    @property
    def all(self) -> float:
        return self.drawing + self.reading


def ask(waits: Path) -> Answer:
    with Threads(waits) as threads:
        threads.start("sites", _THREADS, _WAIT_US, _LIVE_SECONDS)
        sites = _changing_sites(threads.pid)
        with terminal([str(tools.offtop())], _COLUMNS, _LINES) as shown:
            shown.look_on(_WARM_SECONDS)
            slices, mb = list[_Usage](), list[float]()
            for _ in range(_SLICES):
                slices.append(_used_pct(shown))
                mb.append(tools.family_pss_mb(shown.pid))
    cpu_pct = median(used.all for used in slices)
    parts = {name: median(getattr(used, name) for used in slices) for name in _Usage._fields}
    return Answer(
        f"A screen of {_COLUMNS}x{_LINES} at 1 Hz, {sites:,} sites that changed in each second",
        [
            f"CPU, % of one core, in intervals of {_SLICE_SECONDS:.0f} s: {middle([s.all for s in slices], 1)}",
            "medians: " + ", ".join(f"{name} {pct:.1f}%" for name, pct in parts.items()),
            f"memory (PSS), MB: {middle(mb)}",
        ],
        [
            Bar(f"CPU of reading and drawing, {sites:,} sites", cpu_pct, _MOST_CPU_PCT, "%"),
            Bar("memory", max(mb), _MOST_MB, " MB"),
        ],
        {
            "sites": sites,
            "cpu_pct": [used.all for used in slices],
            "parts_pct": parts,
            "mb": mb,
        },
    )


def _used_pct(shown: Terminal) -> _Usage:
    """Measure the next few seconds."""
    before, began = _used_s(shown.pid), time.monotonic()
    shown.look_on(_SLICE_SECONDS)
    after, seconds = _used_s(shown.pid), time.monotonic() - began
    return _Usage(*(100 * (b - a) / seconds for a, b in zip(before, after, strict=True)))


def _changing_sites(pid: int) -> int:
    """Return how many sites of a process offtop reports in one tick.

    Raises UnanswerableError if too few.
    """
    arguments = [str(tools.offtop()), "--json", "--exact-stacks", "-n", str(_COUNTED_TICKS)]
    output = subprocess.run(arguments, check=True, capture_output=True, text=True, timeout=60).stdout
    tick: dict[str, Any] = json.loads(output.splitlines()[-1])
    sites = sum(1 for site in tick["sites"] if site["pid"] == pid)
    if sites < 0.95 * _SITES:
        raise UnanswerableError(f"the workload has {sites:,} changing sites instead of {_SITES:,}")
    return sites


def _used_s(pid: int) -> _Usage:
    drawing_s = sum(tools.cpu_s(f"{pid}/task/{pid}"))
    user_s, kernel_s = tools.family_cpu_s(pid)
    return _Usage(drawing_s, user_s + kernel_s - drawing_s, kernel_s)
