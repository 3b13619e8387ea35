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
_WARM_SECONDS = 13.0
_SLICES = 7
_SLICE_SECONDS = 3.0
_LIVE_SECONDS = 60.0
_MOST_CPU_PCT = 4.0
_MOST_RSS_MB = 150.0


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
            slices = [_used_pct(shown) for _ in range(_SLICES)]
            rss_mb, most_rss_mb = _rss_mb(shown.pid)
    cpu_pct = median(used.all for used in slices)
    parts = {name: median(getattr(used, name) for used in slices) for name in _Usage._fields}
    return Answer(
        f"A screen of {_COLUMNS}x{_LINES} at 1 Hz, {sites:,} sites that changed in each second",
        [
            f"CPU, % of one core, in intervals of {_SLICE_SECONDS:.0f} s: {middle([s.all for s in slices], 1)}",
            "medians: " + ", ".join(f"{name} {pct:.1f}%" for name, pct in parts.items()),
            f"memory {rss_mb:.0f} MB, at most {most_rss_mb:.0f} MB since the start",
        ],
        [
            Bar(f"CPU of reading and drawing, {sites:,} sites", cpu_pct, _MOST_CPU_PCT, "%"),
            Bar("memory", most_rss_mb, _MOST_RSS_MB, " MB"),
        ],
        {
            "sites": sites,
            "cpu_pct": [used.all for used in slices],
            "parts_pct": parts,
            "rss_mb": rss_mb,
            "most_rss_mb": most_rss_mb,
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
    user_s, kernel_s = (sum(part) for part in zip(*map(tools.cpu_s, tools.family(pid)), strict=True))
    return _Usage(drawing_s, user_s + kernel_s - drawing_s, kernel_s)


def _rss_mb(pid: int) -> tuple[float, float]:
    """Return current and peak RSS of offtop's processes.

    Shared memory counts for each of them.
    """
    now_kb = most_kb = 0
    for one in tools.family(pid):
        lines = Path(f"/proc/{one}/status").read_text().splitlines()
        kb = {name: rest for name, _, rest in (line.partition(":") for line in lines) if name in ("VmRSS", "VmHWM")}
        now_kb += int(kb["VmRSS"].split()[0])
        most_kb += int(kb["VmHWM"].split()[0])
    return now_kb / 1024, most_kb / 1024
