"""Compare the off-CPU time of each thread between offtop, offcputime and the threads themselves.

Both tools watch the same threads at the same time. The threads begin after both have attached, and exit before either
stops, so that both see all of their time. The third value comes from the thread: its lifetime minus the CPU time that
the kernel's clock reports. offcputime watches only that process, because it silently drops time when the stacks of a
busy machine have filled its map.

A wait of a few µs takes about as long as the two context switches around it, which each tool and the kernel's CPU clock
attribute differently; and offcputime drops fractions of a µs. Such waits are shown without a limit.
"""

import json
import re
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import tools
from bench.answer import Answer, Bar, UnanswerableError, table
from bench.workload import Threads

_SECONDS = 4
_MOST_PCT = 2.0
_FIRST_TICK_SECONDS = 20.0

_MODES = {"offtop": None, "offtop --min 0": 0}
"""offtop's modes with their --min in µs (None: default). Each runs next to an offcputime that records all waits."""

_FROM_CLOCKS = ("offtop - clocks", "offcputime - clocks")


@dataclass(frozen=True, slots=True)
class _Workload:
    name: str
    asked: tuple[str, int, int]
    """Arguments of waits.c: kind, threads, and µs per wait."""
    is_held: bool = True
    """Whether limits apply."""


_WORKLOADS = (
    _Workload("16 sleepers, 5 ms", ("sleep", 16, 5000)),
    _Workload("8 threads in 4 pairs, a pipe each, 2 ms", ("pipe", 8, 2000)),
    _Workload("8 threads, one lock, 2 ms", ("lock", 8, 2000)),
    _Workload("3 threads that spin on one CPU", ("spin", 3, 0)),
    _Workload("2 threads that fdatasync, each ms", ("sync", 2, 1000)),
    _Workload("2 threads, a pipe, at once", ("pipe", 2, 0), is_held=False),
)


@dataclass(frozen=True, slots=True)
class _Compared:
    workload: _Workload
    own_ns: int
    offtop_ns: int
    offcputime_ns: int
    worst_pct: float
    """The largest difference of one thread."""
    waits: int

    @property
    def apart_pct(self) -> float:
        return apart_pct(self.offtop_ns, self.offcputime_ns)


def apart_pct(one: float, other: float) -> float:
    """Return the difference of `one` from `other`, in percent of `other`."""
    return 100 * (one - other) / other if other else 0.0


def ask(waits: Path) -> Answer:
    lines: list[str] = []
    bars: list[Bar] = []
    figures: dict[str, object] = {}
    for mode, min_us in _MODES.items():
        compared = list(_compare(waits, min_us))
        rows = [
            (
                c.workload.name if c.workload.is_held else f"({c.workload.name})",
                f"{c.waits:,}",
                *(f"{ns / 1e9:.4f}" for ns in (c.own_ns, c.offtop_ns, c.offcputime_ns)),
                f"{c.apart_pct:+.2f}%",
                f"{c.worst_pct:+.2f}%",
                *(f"{apart_pct(ns, c.own_ns):+.2f}%" for ns in (c.offtop_ns, c.offcputime_ns)),
            )
            for c in compared
        ]
        head = ("waits", "by their clocks", tools.OFFTOP, tools.OFFCPUTIME, "difference", "worst thread", *_FROM_CLOCKS)
        lines += [*([""] if lines else []), *table((f"thread-seconds off CPU: {mode}", *head), rows)]
        held = [c for c in compared if c.workload.is_held]
        total = apart_pct(sum(c.offtop_ns for c in held), sum(c.offcputime_ns for c in held))
        truth = apart_pct(sum(c.offtop_ns for c in held), sum(c.own_ns for c in held))
        worst = max(held, key=lambda c: abs(c.worst_pct))
        lines.append(f"all but those in brackets: difference {total:+.3f}%, offtop {truth:+.3f}% from their clocks")
        bars += [
            Bar(f"{mode}: all threads, from offcputime", abs(total), _MOST_PCT, "%"),
            Bar(f"{mode}: the worst thread ({worst.workload.name})", abs(worst.worst_pct), _MOST_PCT, "%"),
            Bar(f"{mode}: all threads, from their own clocks", abs(truth), _MOST_PCT, "%"),
        ]
        figures[mode] = [
            {
                "workload": c.workload.name,
                "held": c.workload.is_held,
                "waits": c.waits,
                "threads_ns": c.own_ns,
                "offtop_ns": c.offtop_ns,
                "offcputime_ns": c.offcputime_ns,
                "worst_thread_pct": c.worst_pct,
            }
            for c in compared
        ]
    return Answer("Off-CPU time per thread, both tools at once", lines, bars, figures)


def _compare(waits: Path, min_us: int | None) -> Iterator[_Compared]:
    with tempfile.TemporaryDirectory(dir=waits.parent) as directory, ExitStack() as stack:
        ticks, report = Path(directory, "ticks"), Path(directory, "report")
        stack.enter_context(tools.counting())
        threads = stack.enter_context(Threads(waits))
        offtop_command = [str(tools.offtop()), "--json"] if min_us is None else tools.command(tools.OFFTOP, min_us)
        offcputime_command = [*tools.command(tools.OFFCPUTIME, 0), "-p", str(threads.pid)]
        offtop = stack.enter_context(tools.running(offtop_command, stack.enter_context(ticks.open("wb"))))
        offcputime = stack.enter_context(tools.running(offcputime_command, stack.enter_context(report.open("wb"))))
        tools.wait_until_attached(offtop)
        tools.wait_until_attached(offcputime)
        wait_for_ticks(ticks, 1)
        lives = {workload: threads.live(*workload.asked, _SECONDS) for workload in _WORKLOADS}
        wait_for_ticks(ticks, _lines(ticks) + 2)
        tools.end(offtop, signal.SIGINT)
        tools.end(offcputime, signal.SIGINT)
        offtop_ns, offtop_waits = _by_tid_of_ticks(ticks)
        offcputime_ns = _by_tid_of_report(report)
    for workload, lived in lives.items():
        tids = [thread.tid for thread in lived]
        if not all(tid in offcputime_ns and tid in offtop_ns for tid in tids):
            raise UnanswerableError(f"a thread of '{workload.name}' is in one tool's report only")
        yield _Compared(
            workload,
            own_ns=sum(thread.offcpu_ns for thread in lived),
            offtop_ns=sum(offtop_ns[tid] for tid in tids),
            offcputime_ns=sum(offcputime_ns[tid] for tid in tids),
            worst_pct=max((apart_pct(offtop_ns[tid], offcputime_ns[tid]) for tid in tids), key=abs),
            waits=sum(offtop_waits[tid] for tid in tids),
        )


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def wait_for_ticks(path: Path, ticks: int) -> None:
    until = time.monotonic() + _FIRST_TICK_SECONDS
    while _lines(path) < ticks:
        if time.monotonic() > until:
            raise UnanswerableError("offtop --json printed no tick")
        time.sleep(0.1)


def _by_tid_of_ticks(path: Path) -> tuple[dict[int, int], dict[int, int]]:
    """Return (off-CPU ns, waits) by tid over all ticks."""
    offcpu_ns: dict[int, int] = {}
    waits: dict[int, int] = {}
    for line in path.read_text().splitlines():
        tick: dict[str, Any] = json.loads(line)
        for thread in tick["threads"]:
            tid: int = thread["tid"]
            offcpu_ns[tid] = offcpu_ns.get(tid, 0) + thread["offcpu_ns"]
            waits[tid] = waits.get(tid, 0) + thread["waits"]
    return offcpu_ns, waits


def _by_tid_of_report(path: Path) -> dict[int, int]:
    """Return off-CPU ns by tid.

    offcputime prints `name (tid)` under each stack, and a line of whole µs.
    """
    found = re.findall(r"^    -.* \((\d+)\)\n +(\d+)$", path.read_text(errors="replace"), re.MULTILINE)
    offcpu_ns: dict[int, int] = {}
    for tid, us in found:
        offcpu_ns[int(tid)] = offcpu_ns.get(int(tid), 0) + int(us) * 1000
    return offcpu_ns
