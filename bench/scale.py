"""Measure what offtop and its peers cost on a machine with many threads.

Each tool runs alone, in turns, while the same threads wait. Its cost is the CPU time of all its processes, plus the
time that its BPF programs take in other processes (the kernel's count). Memory is the PSS of all its processes.

- 10,000 threads that sleep 1 to 3 s each: 5,000 long waits a second.
- 50,000 threads, of which 1 % sleep so, and the others wait for good.

Besides, with 10,000 threads: what reading costs without the screen if each sleeps for a second, again and again, and
what a wait costs that gets no stack.
"""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from bench import tools
from bench.answer import Answer, Bar, UnanswerableError, table
from bench.machine import need
from bench.workload import Threads
from tests.ui.terminal import terminal

_WAIT_US = 2_000_000
_WARM_SECONDS = 30.0
"""By then offtop's window is full, and it has read the binaries of the threads."""
_SECONDS = 12.0
_SETTLE_SECONDS = 3.0
_LIVE_SECONDS = 1_000
_LIMITS = [Path("/proc/sys", name) for name in ("kernel/pid_max", "kernel/threads-max", "vm/max_map_count")]
_MOST_PER_THREAD = 3
"""Of what these limit, with reserve: a thread's stack and its guard page are two maps."""

_SCREEN, _JSON, _TOP, _HTOP = "offtop, 160x50", "offtop --json", "top -H -d 1", "htop -d 10"


class _Case(NamedTuple):
    name: str
    workload: str
    threads: int
    most_cpu_pct: float
    most_mb: float
    most_of_top: float
    """As a part of what top costs."""


_SLEEPING = _Case("10,000 threads that sleep 1 to 3 s", "spread", 10_000, 10.0, 160.0, 1.0)
_FEW_ACTIVE = _Case("50,000 threads, 1 % of them active", "few", 50_000, 15.0, 0.0, 0.5)


_READ_WAIT_US = 1_000_000
_MOST_READING_MS = 60.0
_SHORT_WAIT_US, _MOST_SHORT_NS = 400_000, 600.0


class _Cost(NamedTuple):
    cpu_pct: float
    """Percent of one core, BPF programs included."""
    bpf_pct: float
    """The part of BPF programs in other processes."""
    mb: float


def ask(waits: Path) -> Answer:
    return _answer(_SLEEPING, waits)


def ask_mostly_idle(waits: Path) -> Answer:
    return _answer(_FEW_ACTIVE, waits)


def ask_reading(waits: Path) -> Answer:
    with _room_for(_SLEEPING.threads), Threads(waits) as threads:
        threads.start("sleep", _SLEEPING.threads, _READ_WAIT_US, _LIVE_SECONDS)
        _wait_for_threads(threads.pid, _SLEEPING.threads)
        with terminal([str(tools.offtop())], 160, 50) as shown:
            shown.look_on(_WARM_SECONDS)
            before_s, began_s = _reading_s(shown.pid), time.monotonic()
            shown.look_on(_SECONDS)
            ms = 1000 * (_reading_s(shown.pid) - before_s) / (time.monotonic() - began_s)
    bar = Bar("CPU of reading a tick", ms, _MOST_READING_MS, " ms")
    return Answer(
        "10,000 threads that sleep for a second each", [f"CPU of reading: {ms:.0f} ms a tick"], [bar], {"ms": ms}
    )


def ask_short(waits: Path) -> Answer:
    with tools.counting(), _room_for(_SLEEPING.threads), Threads(waits) as threads:
        threads.start("sleep", _SLEEPING.threads, _SHORT_WAIT_US, _LIVE_SECONDS)
        _wait_for_threads(threads.pid, _SLEEPING.threads)
        with tools.running([str(tools.offtop()), "--json", "--min", "10s", "-p", str(threads.pid)]) as process:
            tools.wait_until_attached(process)
            time.sleep(_SETTLE_SECONDS)
            waited, before = _waits_of(threads.pid), tools.runs(process.pid)
            time.sleep(_SECONDS)
            waited, used = _waits_of(threads.pid) - waited, tools.runs(process.pid).since(before)
    ns = used.switch_ns / waited
    bar = Bar("a wait without a stack", ns, _MOST_SHORT_NS, " ns")
    title = f"Waits without a stack, of {_SLEEPING.threads:,} threads"
    return Answer(title, [f"{waited / _SECONDS:,.0f} waits a second, {ns:.0f} ns each"], [bar], {"ns": ns})


def _waits_of(pid: int) -> int:
    """Return how often the threads of a process have waited."""
    count = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        text = (task / "status").read_text()
        count += int(text.rpartition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return count


def _reading_s(pid: int) -> float:
    """Return the CPU time of all threads of a process but the main one, which draws."""
    return sum(tools.cpu_s(pid)) - sum(tools.cpu_s(f"{pid}/task/{pid}"))


def _answer(case: _Case, waits: Path) -> Answer:
    costs, missing = _costs_of(case, waits)
    rows = [(tool, f"{c.cpu_pct:.1f}", f"{c.bpf_pct:.1f}", f"{c.mb:.0f}") for tool, c in costs.items()]
    screen = costs[_SCREEN]
    bars = [Bar("CPU of the screen", screen.cpu_pct, case.most_cpu_pct, "%")]
    if case.most_mb:
        bars.append(Bar("memory of the screen", screen.mb, case.most_mb, " MB"))
    if top := costs.get(_TOP):
        bars.append(Bar("CPU of the screen as a part of top's", screen.cpu_pct / top.cpu_pct, case.most_of_top))
    return Answer(
        case.name,
        [*table(("", "CPU, % of one core", "BPF", "PSS, MB"), rows), *missing],
        bars,
        {tool: c._asdict() for tool, c in costs.items()},
    )


def _costs_of(case: _Case, waits: Path) -> tuple[dict[str, _Cost], list[str]]:
    """Return the cost of each tool, and why others were left out."""
    costs: dict[str, _Cost] = {}
    missing: list[str] = []
    with tools.counting(), _room_for(case.threads), Threads(waits) as threads:
        threads.start(case.workload, case.threads, _WAIT_US, _LIVE_SECONDS)
        _wait_for_threads(threads.pid, case.threads)
        for tool, run in _TOOLS.items():
            try:
                costs[tool] = run()
            except UnanswerableError as error:
                missing.append(f"{tool}: left out, {error}")
    return costs, missing


def _on_screen(command: Callable[[], Sequence[str]]) -> Callable[[], _Cost]:
    def run() -> _Cost:
        with terminal(command(), 160, 50) as shown:
            shown.look_on(_WARM_SECONDS)
            return _cost(shown.pid, shown.look_on)

    return run


def _in_background(command: Callable[[], Sequence[str]]) -> Callable[[], _Cost]:
    def run() -> _Cost:
        with tools.running(command()) as process:
            tools.wait_until_attached(process)
            time.sleep(_WARM_SECONDS)
            return _cost(process.pid, time.sleep)

    return run


_TOOLS: dict[str, Callable[[], _Cost]] = {
    _SCREEN: _on_screen(lambda: [str(tools.offtop())]),
    _JSON: _in_background(lambda: [str(tools.offtop()), "--json"]),
    _TOP: _on_screen(lambda: [need("top", "procps"), "-H", "-d", "1"]),
    _HTOP: _on_screen(lambda: [need("htop", "htop"), "-d", "10"]),
    tools.OFFCPUTIME: _in_background(lambda: tools.command(tools.OFFCPUTIME, 1_000)),
    tools.BPFTRACE: _in_background(lambda: tools.command(tools.BPFTRACE, 1_000)),
}
"""The last two print at their end, which is not measured."""


def _cost(pid: int, wait: Callable[[float], None]) -> _Cost:
    before, runs_before, began = sum(tools.family_cpu_s(pid)), tools.runs(pid), time.monotonic()
    wait(_SECONDS)
    seconds = time.monotonic() - began
    bpf_pct = 100 * tools.runs(pid).since(runs_before).switch_ns / 1e9 / seconds
    cpu_pct = 100 * (sum(tools.family_cpu_s(pid)) - before) / seconds
    return _Cost(cpu_pct + bpf_pct, bpf_pct, tools.family_pss_mb(pid))


@contextmanager
def _room_for(threads: int) -> Generator[None]:
    """Raise the kernel's limits on threads until the block ends. Raises UnanswerableError if that is refused."""
    with ExitStack() as stack:
        wanted = _MOST_PER_THREAD * threads
        for limit in _LIMITS:
            was = limit.read_text()
            if int(was) < wanted:
                try:
                    limit.write_text(str(wanted))
                except OSError as error:
                    raise UnanswerableError(f"{limit} cannot be raised to {wanted:,} ({error.strerror})") from error
                stack.callback(limit.write_text, was)
        yield


def _wait_for_threads(pid: int, threads: int) -> None:
    """Wait until the workload runs. Raises UnanswerableError if it does not."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with suppress(OSError):
            if Path(f"/proc/{pid}/task").stat().st_nlink - 2 > threads:
                time.sleep(_SETTLE_SECONDS)
                return
        time.sleep(0.2)
    raise UnanswerableError(f"{threads:,} threads could not be created within a minute: see ulimit -u and pids.max")
