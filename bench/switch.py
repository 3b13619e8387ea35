"""Measure the cost of a context switch with each tool, by the kernel's BPF statistics.

The tools run alone, in turns, so that other load on the machine affects all of them alike; the medians of the rounds
are compared. offtop takes the stack of every wait from the minimum up, as the others do (`--exact-stacks`), not only
those within its CPU budget; a second offtop verifies stacks instead of unwinding them if it can. The time of all
programs of a tool is divided by the switches that it saw. `perf bench sched pipe` is pinned to one CPU, so that each
switch is between two threads that wait for each other, and none is to the idle thread, which the tools handle
differently.
"""

import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from bench import tools
from bench.answer import Answer, Bar, UnanswerableError, middle, table
from bench.machine import need
from bench.workload import Threads

_ROUNDS = 5
_PASSES = 60_000
"""Two switches each."""
_SLEEPERS = 40
_SLEEP_US = 2_000
_SLEEP_SECONDS = 1.5
_MIN_US = 1_000
_SETTLE_SECONDS = 0.5
_TOOLS = (*tools.NAMES, tools.VERIFYING)
_MOST, _MOST_LONG, _MOST_VERIFIED = 1 / 8, 1.1, 1 / 3

_PIPE = f"perf bench sched pipe, minimum {_MIN_US // 1000} ms"
_SLEEPS = f"waits of {_SLEEP_US // 1000} ms, minimum {_MIN_US // 1000} ms"
_PIPE_0 = "perf bench sched pipe, minimum 0"
_WORKLOADS = (_PIPE, _SLEEPS, _PIPE_0)


@dataclass(frozen=True, slots=True)
class _Measured:
    ns_per_switch: float
    switches_per_s: float
    us_per_pass: float = 0.0
    """As perf reports it; 0 for other workloads."""


@dataclass(slots=True)
class _Rounds:
    of: dict[tuple[str, str], list[_Measured]] = field(default_factory=dict[tuple[str, str], list[_Measured]])
    """By workload and tool."""
    untraced_us: list[float] = field(default_factory=list[float])
    """µs per pass of perf's pipe without any tool."""
    missing: dict[str, str] = field(default_factory=dict[str, str])
    """Why a tool was left out."""


def ask(waits: Path) -> Answer:
    perf = [
        *(need("taskset", "util-linux"), "-c", str(max(os.sched_getaffinity(0)))),
        *(need("perf", "linux-perf"), "bench", "sched", "pipe", "-l", str(_PASSES)),
    ]
    rounds = _Rounds()
    with tools.counting(), Threads(waits) as threads:

        def sleep() -> str:
            threads.live("sleep", _SLEEPERS, _SLEEP_US, _SLEEP_SECONDS)
            return ""

        def pipe() -> str:
            return _run(perf)

        for number in range(_ROUNDS):
            rounds.untraced_us.append(_pass_us(pipe()))
            first = number % len(_TOOLS)
            for tool in _TOOLS[first:] + _TOOLS[:first]:
                if tool in rounds.missing:
                    continue
                try:
                    _measure(rounds, tool, _MIN_US, {_PIPE: pipe, _SLEEPS: sleep})
                    _measure(rounds, tool, 0, {_PIPE_0: pipe})
                except UnanswerableError as error:
                    rounds.missing[tool] = str(error)
    return _answer(rounds)


def _measure(rounds: _Rounds, tool: str, min_us: int, workloads: Mapping[str, Callable[[], str]]) -> None:
    with tools.running(tools.command(tool, min_us)) as process:
        tools.wait_until_attached(process)
        time.sleep(_SETTLE_SECONDS)
        for name, run in workloads.items():
            before, began = tools.runs(process.pid), time.monotonic()
            output = run()
            used, seconds = tools.runs(process.pid).since(before), time.monotonic() - began
            measured = _Measured(used.ns_per_switch, used.switches / seconds, _pass_us(output))
            rounds.of.setdefault((name, tool), []).append(measured)


def _run(arguments: list[str]) -> str:
    return subprocess.run(arguments, check=True, capture_output=True, text=True, timeout=60).stdout


def _pass_us(output: str) -> float:
    found = re.search(r"([\d.]+) usecs/op", output)
    return float(found[1]) if found else 0.0


def _answer(rounds: _Rounds) -> Answer:
    if left_out := [why for tool, why in rounds.missing.items() if tool != tools.BPFTRACE]:
        raise UnanswerableError("; ".join(left_out))

    def rows(workloads: Sequence[str], value: Callable[[_Measured], float], digits: int = 0) -> list[tuple[str, ...]]:
        return [
            (name, *(middle([value(m) for m in rounds.of.get((name, tool), ())], digits) for tool in _TOOLS))
            for name in workloads
        ]

    lines = [
        *table(("ns per context switch", *_TOOLS), rows(_WORKLOADS, lambda m: m.ns_per_switch)),
        "",
        f"µs per pass of perf's pipe, as perf reports it: {middle(rounds.untraced_us, 2)} without any tool",
        *table(("", *_TOOLS), rows((_PIPE, _PIPE_0), lambda m: m.us_per_pass, 2)),
        "",
        *table(("switches per second", *_TOOLS), rows(_WORKLOADS, lambda m: m.switches_per_s)),
        *(f"{tool}: left out, {why}" for tool, why in rounds.missing.items()),
    ]
    costs = {key: median(m.ns_per_switch for m in measured) for key, measured in rounds.of.items()}
    bars = [
        Bar(f"ns per switch of {tool} under {name}, as a part of offcputime's", costs[name, tool] / peer, most)
        for name, tool, most in (
            (_PIPE, tools.OFFTOP, _MOST),
            (_SLEEPS, tools.OFFTOP, _MOST_LONG),
            (_SLEEPS, tools.VERIFYING, _MOST_VERIFIED),
        )
        if (peer := costs[name, tools.OFFCPUTIME])
    ]
    figures: dict[str, object] = {
        "ns_per_switch": {name: {tool: costs.get((name, tool)) for tool in _TOOLS} for name in _WORKLOADS},
        "rounds": [
            {"workload": name, "tool": tool, **asdict(m)} for (name, tool), every in rounds.of.items() for m in every
        ],
        "untraced_us_per_pass": rounds.untraced_us,
    }
    return Answer(
        "What a context switch costs",
        lines,
        bars,
        figures,
    )
