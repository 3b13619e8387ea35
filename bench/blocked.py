"""Compare the time that each thread was blocked until it was woken, between offtop and bpftrace.

For each thread, bpftrace adds up the time from a switch-out in a non-runnable state to the next sched_waking, as
wakeuptime and offwaketime do. (libbpf-tools' wakeuptime was tried, but prints one wait per path instead of the sum;
bcc's offwaketime needs kprobes.) offtop attributes each complete wait to its waker, which is the same time: the
`blocked_ns` of sites with a waker in `--json`, plus what moved there from earlier ticks.
"""

import json
import signal
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from bench import accuracy, tools
from bench.accuracy import apart_pct
from bench.answer import Answer, Bar, UnanswerableError, table
from bench.workload import Threads

_SECONDS = 4
_MOST_PCT = 5.0
_WORKLOADS = {
    "16 sleepers, 5 ms": ("sleep", 16, 5000),
    "8 threads in 4 pairs, a pipe each, 2 ms": ("pipe", 8, 2000),
    "8 threads, one lock, 2 ms": ("lock", 8, 2000),
    "8 sleepers, 1.5 s: longer than a tick": ("sleep", 8, 1_500_000),
}
_SWITCHES = (
    "tracepoint:sched:sched_switch /args->prev_state != 0 && args->prev_state != 256/ "
    "{ @left[args->prev_pid] = nsecs; } "
    "tracepoint:sched:sched_waking /@left[args->pid]/ "
    "{ @blocked[args->pid] = sum(nsecs - @left[args->pid]); delete(@left[args->pid]); } "
    "END { clear(@left); }"
)


def ask(waits: Path) -> Answer:
    with tempfile.TemporaryDirectory(dir=waits.parent) as directory, ExitStack() as stack:
        ticks, report = Path(directory, "ticks"), Path(directory, "report")
        stack.enter_context(tools.counting())
        threads = stack.enter_context(Threads(waits))
        offtop_command = [*tools.command(tools.OFFTOP, 0), "--mode", "wakeup", "-p", str(threads.pid)]
        offtop = stack.enter_context(tools.running(offtop_command, stack.enter_context(ticks.open("wb"))))
        bpftrace_command = tools.one_liner(_SWITCHES, "-f", "json")
        bpftrace = stack.enter_context(tools.running(bpftrace_command, stack.enter_context(report.open("wb"))))
        tools.wait_until_attached(offtop)
        tools.wait_until_attached(bpftrace)
        accuracy.wait_for_ticks(ticks, 1)
        tids = {name: [thread.tid for thread in threads.live(*asked, _SECONDS)] for name, asked in _WORKLOADS.items()}
        accuracy.wait_for_ticks(ticks, ticks.read_bytes().count(b"\n") + 2)
        tools.end(offtop, signal.SIGINT)
        tools.end(bpftrace, signal.SIGINT)
        by_offtop, by_bpftrace = _by_tid_of_ticks(ticks), _by_tid_of_report(report)
    rows: list[tuple[str, ...]] = []
    bars: list[Bar] = []
    figures: dict[str, object] = {}
    for name, of in tids.items():
        ns = sum(by_offtop[tid] for tid in of), sum(by_bpftrace[tid] for tid in of)
        difference_pct = apart_pct(*ns)
        rows.append((name, *(f"{one / 1e9:.4f}" for one in ns), f"{difference_pct:+.2f}%"))
        bars.append(Bar(f"blocked time of {name}, from bpftrace", abs(difference_pct), _MOST_PCT, "%"))
        figures[name] = {"offtop_ns": ns[0], "bpftrace_ns": ns[1]}
    head = ("thread-seconds blocked until woken", tools.OFFTOP, tools.BPFTRACE, "difference")
    return Answer("Blocked time by who ended it, both tools at once", table(head, rows), bars, figures)


def _by_tid_of_ticks(path: Path) -> Counter[int]:
    """Return ns of waits with a waker by tid, over all ticks."""
    found = Counter[int]()
    for line in path.read_text().splitlines():
        for site in json.loads(line)["sites"]:
            if site["waker"]:
                found[site["tid"]] += site["blocked_ns"] + site["earlier_ns"]
    return found


def _by_tid_of_report(path: Path) -> Counter[int]:
    for line in path.read_text(errors="replace").splitlines():
        if line.startswith("{") and "@blocked" in (data := json.loads(line)["data"]):
            return Counter({int(tid): int(ns) for tid, ns in data["@blocked"].items()})
    raise UnanswerableError("bpftrace printed nothing")
