"""During a one-hour storm offtop's memory does not grow, and its counts are exact; run by `make soak`."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.kernel.watch import switches

pytestmark = [pytest.mark.soak, pytest.mark.timeout(0)]

_ROOT = Path(__file__).resolve().parents[2]
_SECONDS = float(os.environ.get("OFFTOP_SOAK_SECONDS", 3600))
_WARM_S = max(0.2 * _SECONDS, 300.0)
"""Start of the run that is not compared: names are still being read, and no thread has been evicted yet.

What offtop keeps of short-lived processes is limited by number and not by age: 16,384 address spaces, and the cause
rules of 50,000 waits. With 100 new processes a second these are full after 4 minutes.
"""
_RUN_S = _WARM_S + 0.8 * _SECONDS
_MOST_GROWTH = {"rss_bytes": 1.05, "fds": 1.0, "took_ms": 1.5}
"""Growth from the first third to the last that still counts as none."""
_REFUSED = 1e-5
"""Share of new threads for which the kernel refuses task storage at their first switch-out, because another thread
was preempted on that CPU while freeing its storage (bpf_task_storage_busy). Each is reported as lost."""
_MORE_ENTRIES = 1.25, 64
"""Allowed growth of each BPF map: a factor, plus some entries for small maps."""
_MOST_FILL = 0.5
"""Fill level at which stack maps are emptied; below it they keep every stack."""


class Storm:
    """The running program storm.c."""

    def __init__(self, directory: Path) -> None:
        binary = directory / "storm"
        source = Path(__file__).with_name("storm.c")
        subprocess.run(["gcc", "-O1", "-pthread", "-fno-omit-frame-pointer", "-o", binary, source], check=True)
        self.process = subprocess.Popen([binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.counts: dict[str, int] = {}
        self.listen("ready")

    def listen(self, last: str) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            name, number = line.split()
            self.counts[name] = int(number)
            if name == last:
                return
        raise AssertionError("the storm exited early")

    def calm(self) -> None:
        """Stop the storm and wait until it has finished."""
        assert self.process.stdin
        self.process.stdin.write(".")
        self.process.stdin.flush()
        self.listen("done")

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def test_one_hour_storm_is_counted_and_leaves_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-m", "tests.soak.watched", "999999"]
    with subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as watcher:
        try:
            ticks, made = soaked(watcher, tmp_path)
        finally:
            watcher.terminate()
    counted = {name: sum(tick["sleeps"].get(name, 0) for tick in ticks) for name in ("soak-child", "soak-worker")}
    preempted = {name: sum(tick["aside"].get(name, 0) for tick in ticks) for name in counted}
    thirds = held(ticks)
    lost = Counter[str]()
    for tick in ticks:
        lost.update(tick["lost"])
    with capsys.disabled():
        print(f"\n{said(ticks, made, counted, preempted, lost, thirds)}")
    assert lost.keys() <= {"threads"} and lost["threads"] <= sum(counted.values()) * _REFUSED, lost
    for name, waits in counted.items():
        assert made[name] - lost["threads"] <= waits <= made[name] + preempted[name], name
    assert made["switches"] - 2 <= made["waits"] <= made["switches"], "all but the waits in progress of the two threads"
    for name, (first, last) in thirds.items():
        assert last <= first * _MOST_GROWTH[name], name
    assert max(tick["fill"] for tick in ticks) < _MOST_FILL
    times, more = _MORE_ENTRIES
    for name, (first, last) in entries(ticks).items():
        assert last <= first * times + more, name


def soaked(watcher: subprocess.Popen[str], directory: Path) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Run the storm; return all ticks and the counts that the storm and the kernel report."""
    assert watcher.stdout
    ticks = [json.loads(watcher.stdout.readline())]
    storm = Storm(directory)
    try:
        while sum(tick["span_ns"] for tick in ticks) < _RUN_S * 1e9:
            ticks.append(json.loads(watcher.stdout.readline()))
        storm.calm()
        ticks += [json.loads(watcher.stdout.readline()) for _ in range(4)]
        made = {"soak-child": storm.counts["forks"], "soak-worker": storm.counts["threads"]}
        pid = storm.counts["switching"]
        tids = [pid, storm.counts["answering"]]
        made["switches"] = sum(switches(tid)[0] for tid in tids)
        made["waits"] = sum(tick["by_tid"].get(str(tid), 0) for tick in ticks for tid in tids)
    finally:
        storm.end()
    return ticks, made


def held(ticks: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    """Return the medians of the first and the last third after the warm-up."""
    return medians([{name: tick[name] for name in _MOST_GROWTH} for tick in ticks])


def entries(ticks: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    """Return the same for the entries of each BPF map, which are counted only in some ticks."""
    return medians([tick["entries"] for tick in ticks if tick["entries"]])


def medians(numbers: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, float]]:
    warm = numbers[int(_WARM_S / _RUN_S * len(numbers)) :]
    third = len(warm) // 3
    return {
        name: (median(one[name] for one in warm[:third]), median(one[name] for one in warm[-third:]))
        for name in warm[0]
    }


def said(
    ticks: Sequence[Mapping[str, Any]],
    made: Mapping[str, int],
    counted: Mapping[str, int],
    preempted: Mapping[str, int],
    lost: Mapping[str, int],
    thirds: Mapping[str, tuple[float, float]],
) -> str:
    seconds = sum(tick["span_ns"] for tick in ticks) / 1e9
    lines = [
        f"{seconds:.0f} s, {len(ticks):,} ticks, {made['switches'] / seconds:,.0f} switches a second of two threads"
    ]
    lines += [
        f"{name}: {made[name]:,} sleeps made, {number:,} waits counted ({preempted[name]:,} preemptions)"
        for name, number in counted.items()
    ]
    lines.append(f"lost: {', '.join(f'{number} {kind}' for kind, number in lost.items()) or 'nothing'}")
    lines.append(f"soak-pipe: {made['switches']:,} switches by the kernel, {made['waits']:,} waits counted")
    lines += [
        f"{name}: {first:,.4g} in the first third, {last:,.4g} in the last" for name, (first, last) in thirds.items()
    ]
    lines.append(f"stacks: at most {max(tick['fill'] for tick in ticks):.1%} of their tables")
    lines += [f"table {name}: {first:,.0f}, {last:,.0f}" for name, (first, last) in entries(ticks).items() if last > 1]
    return "\n".join(lines)
