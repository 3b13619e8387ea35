"""Measure the cost of wakers per switch and per wakeup in each mode, by the kernel's BPF statistics.

One offtop goes through its modes, and back to the first one, because what was loaded for wakers must cost nothing
when it is not used. The time of all programs is divided by the switches; programs at wakeups are also shown separately.
Other tools run for comparison; the one that needs kprobes is left out if the kernel has none.
"""

import os
import subprocess
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench import headless, tools
from bench.answer import Answer, Bar, UnanswerableError, middle, table
from bench.machine import need
from bench.workload import Threads
from offtop.kernel.bpf import features
from offtop.kernel.live import LiveSource
from offtop.model.values.wake import CHAIN, OFFCPU, WAKEUP

_ROUNDS = 5
_PASSES = 60_000
"""Two switches each."""
_SLEEPERS, _SLEEP_US, _SLEEP_S = 40, 2_000, 1.2
_MIN_US = 1_000
_SETTLE_S = 0.3
_DEPTH = 4

_AGAIN = "off-CPU again"
_MODES = {"off-CPU": OFFCPU, "wakeup": WAKEUP, "chain": CHAIN, _AGAIN: OFFCPU}
_PEERS = {"wakeuptime": ("wakeuptime", "libbpf-tools"), "offwaketime": ("offwaketime-bpfcc", "bpfcc-tools")}
_BY_KPROBES = ("offwaketime",)
_COLUMNS = (*(f"offtop, {mode}" for mode in _MODES), *_PEERS)
_PIPE = f"perf bench sched pipe, minimum {_MIN_US // 1000} ms: nothing is walked"
_SLEEPS = f"waits of {_SLEEP_US // 1000} ms, minimum {_MIN_US // 1000} ms: each is walked"
_MOST_AGAIN, _MOST_OF_PEER = 1.15, 1.25


class _Cost(NamedTuple):
    switch_ns: float
    """All programs, per switch."""
    wakeup_ns: float
    """Programs at wakeups, per wakeup; 0: there are none."""


_Rounds = dict[tuple[str, str], list[_Cost]]
"""By workload and column."""


def ask(waits: Path) -> Answer:
    perf = [
        *(need("taskset", "util-linux"), "-c", str(max(os.sched_getaffinity(0)))),
        *(need("perf", "linux-perf"), "bench", "sched", "pipe", "-l", str(_PASSES)),
    ]
    of: _Rounds = {}
    missing: dict[str, str] = {}
    with tools.counting(), Threads(waits) as threads:
        workloads: Mapping[str, Callable[[], object]] = {
            _PIPE: lambda: subprocess.run(perf, check=True, capture_output=True, timeout=60),
            _SLEEPS: lambda: threads.live("sleep", _SLEEPERS, _SLEEP_US, _SLEEP_S),
        }
        for _ in range(_ROUNDS):
            for column, pid in _turns(missing):
                for name, run in workloads.items():
                    of.setdefault((name, column), []).append(_measured(pid, run))
    return _answer(of, missing)


def _turns(missing: dict[str, str]) -> Iterator[tuple[str, int]]:
    """Run each mode and tool in turn. Yields its column and its PID."""
    with headless.watching() as source:
        for name, mode in _MODES.items():
            _change(source, mode)
            yield f"offtop, {name}", os.getpid()
    for name in [name for name in _PEERS if name not in missing]:
        try:
            with _peer(name) as pid:
                yield name, pid
        except UnanswerableError as error:
            missing[name] = str(error)


def _change(source: LiveSource, mode: str) -> None:
    """Change the mode, and wait until its stacks are known."""
    source.set_mode(mode, _DEPTH)
    for _ in range(2):
        headless.tick(source)
        time.sleep(_SETTLE_S)


@contextmanager
def _peer(name: str) -> Generator[int]:
    """Run another tool, and yield its PID. Raises UnanswerableError if it does not run."""
    if name in _BY_KPROBES and not features.kprobe_symbol():
        raise UnanswerableError("it needs kprobes, which this kernel does not have")
    with tools.running([need(*_PEERS[name]), "-m", str(_MIN_US)]) as process:
        tools.wait_until_attached(process)
        time.sleep(_SETTLE_S)
        yield process.pid


def _measured(pid: int, run: Callable[[], object]) -> _Cost:
    before, wakeups = tools.runs(pid), tools.at_wakeups(pid)
    run()
    passed, (count, ns) = tools.runs(pid).since(before), tools.at_wakeups(pid)
    count, ns = count - wakeups[0], ns - wakeups[1]
    return _Cost(passed.switch_ns / max(1, passed.switches), ns / count if count > 0 else 0)


def _answer(of: _Rounds, missing: Mapping[str, str]) -> Answer:
    lines: list[str] = []
    for title, at in (("ns per switch, all programs", 0), ("ns per wakeup, programs at wakeups", 1)):
        rows = [
            (name, *(middle([one[at] for one in of.get((name, column), ())]) for column in _COLUMNS))
            for name in (_PIPE, _SLEEPS)
        ]
        lines += [*table((title, *_COLUMNS), rows), ""]
    lines += [f"{name}: left out, {why}" for name, why in missing.items()]
    costs = {key: median(one.switch_ns for one in every) for key, every in of.items()}
    bars = [
        Bar(
            f"ns per switch under {name.partition(',')[0]}, off-CPU again, relative to before",
            costs[name, f"offtop, {_AGAIN}"] / costs[name, "offtop, off-CPU"],
            _MOST_AGAIN,
        )
        for name in (_PIPE, _SLEEPS)
    ]
    if (_PIPE, "wakeuptime") in costs:
        ratio = costs[_PIPE, "offtop, chain"] / costs[_PIPE, "wakeuptime"]
        bars.append(
            Bar("ns per switch under perf bench sched pipe, chain, relative to wakeuptime", ratio, _MOST_OF_PEER)
        )
    figures: dict[str, object] = {
        f"{name}: {column}": [one._asdict() for one in every] for (name, column), every in of.items()
    }
    return Answer("What wakers cost", lines, bars, {**figures, "missing": dict(missing)})
