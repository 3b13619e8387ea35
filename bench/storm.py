"""Measure how much of a busy machine's work is lost to offtop, whether its ticks are in time, and what it loses.

Threads wait 50,000 times a second, 10,000 times of them for longer than the minimum, so there are 100,000 switches a
second: each wait takes the CPU from one of the programs that count at low priority, on each CPU, and gives it back. The
difference between what they count without offtop and with it, in turns, is lost.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench import tools
from bench.answer import Answer, Bar, UnanswerableError, middle, table
from bench.workload import Threads

_ROUNDS = 5
_SECONDS = 8.0
_WARM_SECONDS = 8.0
_LIVE_SECONDS = 600
_LOADS = ((8, 150), (16, 1_500))
"""Number of threads that sleep, and for how many µs."""
_COUNT = """
import time
counted, until_s = 0, time.monotonic() + {seconds}
while time.monotonic() < until_s:
    for _ in range(1000):
        counted += 1
print(counted)
"""
_MOST_LOSS_PCT = 2.0
_MOST_LATE_S = 0.1


class _Watched(NamedTuple):
    """What offtop reported in a round."""

    late_s: float
    """The longest tick, beyond a second."""
    switches_per_s: float
    long_waits_per_s: float
    lost: dict[str, int]


def ask(waits: Path) -> Answer:
    without: list[int] = []
    with_offtop: list[int] = []
    seen: list[_Watched] = []
    with ExitStack() as stack:
        for threads, wait_us in _LOADS:
            stack.enter_context(Threads(waits)).start("sleep", threads, wait_us, _LIVE_SECONDS)
        for _ in range(_ROUNDS):
            without.append(_counted())
            counted, watched = _watched()
            with_offtop.append(counted)
            seen.append(watched)
    loss_pct = median(100 * (1 - b / a) for a, b in zip(without, with_offtop, strict=True))
    lost = sum((Counter(one.lost) for one in seen), Counter[str]())
    rows = [
        ("counted without offtop, millions", middle([one / 1e6 for one in without], 1)),
        ("counted with offtop, millions", middle([one / 1e6 for one in with_offtop], 1)),
        ("switches a second", middle([one.switches_per_s for one in seen])),
        ("waits of 1 ms or longer a second", middle([one.long_waits_per_s for one in seen])),
        ("lost", ", ".join(f"{count:,} {kind}" for kind, count in lost.items()) or "nothing"),
    ]
    return Answer(
        f"A storm on {os.cpu_count()} CPUs",
        table(("", ""), rows),
        [
            Bar("work lost to offtop", loss_pct, _MOST_LOSS_PCT, "%"),
            Bar("longest tick, beyond a second", max(one.late_s for one in seen), _MOST_LATE_S, " s"),
        ],
        {"without": without, "with_offtop": with_offtop, "seen": [one._asdict() for one in seen]},
    )


def _counted() -> int:
    """Return what one program per CPU counts, at low priority.

    Each has a session of its own. Otherwise Linux 6.18 with autogroup gives whole CPUs to the session of the waiting
    threads for seconds, and other programs do not run at all.
    """
    command = ["nice", "-n", "10", sys.executable, "-I", "-S", "-c", _COUNT.format(seconds=_SECONDS)]
    counting = [
        subprocess.Popen(
            ["taskset", "-c", str(cpu), *command], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        for cpu in os.sched_getaffinity(0)
    ]
    return sum(int(one.communicate(timeout=_SECONDS + 60)[0]) for one in counting)


def _watched() -> tuple[int, _Watched]:
    """Return what is counted while offtop runs, and what offtop reports meanwhile."""
    with tempfile.TemporaryFile() as out:
        with tools.running([str(tools.offtop()), "--json"], out) as process:
            tools.wait_until_attached(process)
            time.sleep(_WARM_SECONDS)
            began_ns = time.time_ns()
            counted = _counted()
            ended_ns = time.time_ns()
        out.seek(0)
        lines = out.read().decode().splitlines()
    ticks: list[dict[str, Any]] = [json.loads(line) for line in lines if line.endswith("}")]
    ticks = [tick for tick in ticks if began_ns <= tick["taken_ns"] <= ended_ns]
    if len(ticks) < 3:
        raise UnanswerableError(f"offtop reported {len(ticks)} ticks in {_SECONDS:.0f} s")
    seconds = (ticks[-1]["taken_ns"] - ticks[0]["taken_ns"]) / 1e9
    lost = Counter[str]()
    for tick in ticks:
        lost.update({kind: count for kind, count in tick["lost"].items() if isinstance(count, int) and count})
    long_waits = sum(
        sum(site["waits"] for site in tick["sites"]) + tick["detail"]["thinned_waits"] for tick in ticks[1:]
    )
    late_s = max((b["taken_ns"] - a["taken_ns"]) / 1e9 - 1 for a, b in pairwise(ticks))
    switches = sum(tick["cost"]["switches"] for tick in ticks[1:])
    return counted, _Watched(late_s, switches / seconds, long_waits / seconds, dict(lost))
