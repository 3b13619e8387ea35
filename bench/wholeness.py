"""Measure how much off-CPU time of database servers has a whole user stack, with both tools at the same time.

Only waits that ended count, because offcputime reports no others. offtop starts earlier, because it must first read the
binaries' unwind rules; that time is shown separately.
offtop reports how each stack ends. A stack of offcputime counts as whole if it ends in main, or in a function that
starts programs or threads. libc has no symbol for the one that starts threads, so offcputime shows a neighbour's name;
the benchmark learns that name in the same run, from threads with frame pointers.
"""

import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bench import databases, headless, tools
from bench.answer import Answer, Bar, UnanswerableError, table
from bench.workload import Stacks
from offtop.kernel.live import LiveSource
from offtop.model.values.snapshot import Filters, Snapshot
from offtop.model.values.stack import NO_STACK, STACK_LOST, WHOLE
from offtop.model.windows.window import between
from offtop.units import NS_PER_S

_SETTLE_SECONDS, _LEARN_SECONDS, _SECONDS = 1, 3, 6
_REPORT_SECONDS = 40.0
_MIN_US = 1_000
_STARTERS = {"main", "_start", "start_thread", "clone3", "clone", "__libc_start_call_main", "__libc_start_main"}
_MOST_PCT = 2.0


@dataclass(frozen=True, slots=True)
class _Share:
    """Shares of the time that a tool saw."""

    seen_s: float
    whole_pct: float
    unsure_pct: float = 0.0
    """Part that is whole, but with some callers found without .eh_frame."""


class _Shares(NamedTuple):
    learning: _Share
    """offtop's, before the other tool started."""
    offtop: _Share
    peer: _Share
    waiting: int
    """Threads that have waited for at least a second at the end."""
    waiting_whole: int
    """Those of them whose stack is whole in offtop."""


def ask(linked: Path) -> Answer:
    rows: list[tuple[str, ...]] = []
    bars: list[Bar] = []
    figures: dict[str, object] = {}
    missing: list[str] = []
    for name, server in databases.SERVERS.items():
        try:
            with tempfile.TemporaryDirectory(prefix="offtop-bench-") as directory:
                found = _shares(server, Path(directory), linked)
        except UnanswerableError as error:
            missing.append(f"{name}: left out, {error}")
            continue
        three = (found.offtop, found.learning, found.peer)
        whole = (f"{share.whole_pct:.2f}% of {share.seen_s:.1f} s" for share in three)
        rows.append((name, *whole, f"{found.offtop.unsure_pct:.2f}%", f"{found.waiting_whole} of {found.waiting}"))
        bars.append(Bar(f"{name}: time without a whole stack", 100 - found.offtop.whole_pct, _MOST_PCT, "%"))
        figures[name] = {
            "offtop_whole_pct": found.offtop.whole_pct,
            "offtop_unsure_pct": found.offtop.unsure_pct,
            "offtop_learning_whole_pct": found.learning.whole_pct,
            "offcputime_whole_pct": found.peer.whole_pct,
            "waiting": found.waiting,
            "waiting_whole": found.waiting_whole,
        }
    if not rows:
        raise UnanswerableError("; ".join(missing))
    learning = f"offtop's first {_LEARN_SECONDS} s"
    head = (
        "time with whole stacks",
        tools.OFFTOP,
        learning,
        tools.OFFCPUTIME,
        "offtop unsure",
        "waits of 1 s in progress, whole",
    )
    return Answer("Whole stacks", [*table(head, rows), *missing], bars, figures)


def _shares(server: databases.Server, directory: Path, linked: Path) -> _Shares:
    report = directory / "report"
    peer = [*tools.command(tools.OFFCPUTIME, _MIN_US), "-u", "--stack-storage-size", "16384", str(_SECONDS)]
    with ExitStack() as stack:
        server_pid = stack.enter_context(server(directory))
        known = stack.enter_context(Stacks(linked, "same", 2, 5, 20_000))
        time.sleep(_SETTLE_SECONDS)  # PostgreSQL starts a process per connection
        pids = tools.family(server_pid)
        source = stack.enter_context(headless.watching(Filters(pids=tuple(pids))))
        ticks = [headless.tick(source)]
        for _ in range(_LEARN_SECONDS):
            ticks.append(_next(source))
        process = stack.enter_context(tools.running(peer, stack.enter_context(report.open("wb"))))
        tools.wait_until_attached(process)
        for _ in range(_SECONDS):
            ticks.append(_next(source))
        process.wait(_REPORT_SECONDS)
        tids = {tid for pid in pids for tid in _threads(pid)}
        first, learned, last = ticks[0], ticks[_LEARN_SECONDS], ticks[-1]
        old = [one for one in last.waiting.values() if one.age_ns(last.at_ns) >= NS_PER_S]
        waiting = [last.catalog.stack(one.user) for one in old]
        return _Shares(
            _of_offtop(first, learned),
            _of_offtop(learned, last),
            _of_peer(report.read_text(errors="replace"), tids, _threads(known.pid) - {known.pid}),
            len(waiting),
            sum(bool(one.frames) and one.end == WHOLE for one in waiting),
        )


def _threads(pid: int) -> set[int]:
    return {int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()}


def _next(source: LiveSource) -> Snapshot:
    """Read a snapshot after one second."""
    time.sleep(1)
    return headless.tick(source)


def _of_offtop(first: Snapshot, last: Snapshot) -> _Share:
    all_ns = whole_ns = unsure_ns = 0
    window = between(first, last)
    for key, totals in window.each_site():
        if key.user == NO_STACK:  # in progress
            continue
        stack = window.catalog.stack(key.user)
        all_ns += totals.total_ns
        if stack.end == WHOLE and key.user != STACK_LOST:
            whole_ns += totals.total_ns
            unsure_ns += totals.total_ns if stack.is_unsure else 0
    return _Share(all_ns / NS_PER_S, *(100 * ns / max(1, all_ns) for ns in (whole_ns, unsure_ns)))


def _of_peer(report: str, tids: set[int], known_tids: set[int]) -> _Share:
    """Return offcputime's share. `known_tids`: threads whose stacks are known to be whole."""
    every = list(_stacks(report))
    known = [(us, frames[-1]) for frames, tid, us in every if tid in known_tids and frames]
    all_us = sum(us for _, tid, us in every if tid in tids)
    if not all_us or not known:
        raise UnanswerableError("offcputime did not see its threads")
    starters = _STARTERS | {max(known)[1]}
    whole_us = sum(us for frames, tid, us in every if tid in tids and starters.intersection(frames[-2:]))
    return _Share(all_us / 1e6, 100 * whole_us / all_us)


def _stacks(report: str) -> Iterator[tuple[list[str], int, int]]:
    """Yield frames (leaf first), tid and µs.

    offcputime prints `name (tid)` under the frames, and then the time.
    """
    for frames, tid, us in re.findall(r"((?:^    [^-\n].*\n)*)^    -.* \((\d+)\)\n +(\d+)$", report, re.MULTILINE):
        yield [line.strip() for line in frames.splitlines()], int(tid), int(us)
