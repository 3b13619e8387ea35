"""Measure the cost of a tick's scans of all threads with 10,000 threads."""

import subprocess
import time
from pathlib import Path

from bench import tools
from bench.answer import Answer, Bar, UnanswerableError, table
from bench.workload import Threads

_THREADS = 10_000
_SECONDS = 8
_MOST_WALK_MS = 50.0
_WORKLOADS = {
    "parked": ("park", _THREADS, 0),
    "each waits once a second": ("sleep", _THREADS, 1_000_000),
}


def ask(waits: Path) -> Answer:
    rows: list[tuple[str, ...]] = []
    bars: list[Bar] = []
    figures: dict[str, object] = {}
    for name, workload in _WORKLOADS.items():
        with tools.counting(), Threads(waits) as threads:
            threads.start(*workload, 60)
            time.sleep(2)
            with tools.running([str(tools.offtop()), "-b"], subprocess.DEVNULL) as process:
                tools.wait_until_attached(process)
                time.sleep(2.5)
                before, cpu_before_s = tools.runs(process.pid), sum(tools.cpu_s(process.pid))
                time.sleep(_SECONDS)
                taken, cpu_s = tools.runs(process.pid).since(before), sum(tools.cpu_s(process.pid)) - cpu_before_s
        if not taken.scanned:
            raise UnanswerableError(f"offtop -b scanned no threads in {_SECONDS} s")
        thread_ns, ticks = taken.scan_ns / taken.scanned, taken.scanned / (2 * _THREADS)
        walk_ms, cpu_ms = taken.scan_ns / 1e6 / ticks, 1e3 * cpu_s / ticks
        rows.append((f"{_THREADS:,} threads, {name}", f"{walk_ms:.1f}", f"{thread_ns:.0f}", f"{cpu_ms:.0f}"))
        bars.append(Bar(f"both scans of {_THREADS:,} threads, {name}", walk_ms, _MOST_WALK_MS, " ms"))
        figures[name] = {"walk_ms": walk_ms, "ns_per_thread": thread_ns, "cpu_ms": cpu_ms}
    head = ("per tick", "BPF in both scans, ms", "ns per thread and scan", "CPU of offtop -b, ms")
    return Answer("Scans of all threads", table(head, rows), bars, figures)
