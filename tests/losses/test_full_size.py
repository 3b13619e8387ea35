"""What storms of threads and stacks lose on this machine is reported, and their time is in a row; run by `make losses`.

The same with small tables is in tests/kernel/test_losses.py.
"""

import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from offtop.feed.pace import Pace
from offtop.model.classify.categories import is_periodic
from offtop.model.values.snapshot import EXITED, Filters
from offtop.model.windows.history import History
from offtop.model.windows.window import Window
from tests.kernel import programs, watch
from tests.kernel.programs import Program
from tests.kernel.test_losses import EXITS, PATHS, TOGETHER, check_stacks, check_time_of_exited, lost, time_of_exited
from tests.kernel.watch import MS, S

pytestmark = [pytest.mark.losses, pytest.mark.timeout(600)]

_C = ("-D_GNU_SOURCE", "-pthread", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-fno-builtin")
_AFTER_S, _AFTER_TICKS = 1.0, 15
"""Ticks after the storm: within them everything deferred is counted."""
_MOST_IN_EXIT = 0.25
"""Part of a thread's waiting time in its exit, which the program cannot measure: for the lock of the memory map, and
for a CPU, for which hundreds of threads wait."""


def windows_of(pid: int, storm: Callable[[], None], delay_s: float) -> tuple[list[Window], float]:
    """Watch a process as the screen does during its storm; return all windows, and how long the storm took.

    Each window is checked against the laws of accounting.
    """
    with watch.watching(Filters(pids=(pid,))) as live:
        pace = Pace(live.source, History((), is_periodic), int(delay_s * S))
        windows: list[Window] = []
        took_s: list[float] = []

        def run() -> None:
            began_s = time.monotonic()
            storm()
            took_s.append(time.monotonic() - began_s)
            pace.set_delay(int(_AFTER_S * S))

        thread = threading.Thread(target=run)
        left = _AFTER_TICKS
        for kept in pace.ticks():
            windows.append(kept.window)
            if not thread.ident:
                thread.start()
            left -= not thread.is_alive()
            if not left:
                pace.stop()
        thread.join()
    for window in windows:  # not before: the tables would overflow meanwhile
        watch.check_sums(window)
    return windows, took_s[0]


@contextmanager
def storm_of(directory: Path, source: str, *arguments: object) -> Generator[Program]:
    binary = programs.build(directory / "storm", source, *_C)
    with programs.running([binary, *map(str, arguments)]) as child:
        yield child


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> Callable[..., None]:
    """Print what was measured."""

    def said(windows: Sequence[Window], *words: str) -> None:
        longest_s = max(window.span_ns for window in windows) / S
        losses = ", ".join(f"{count:,} {kind}" for kind, count in lost(windows).items()) or "nothing"
        with capsys.disabled():
            print(f"\n{request.node.name}: {'; '.join(words)}; longest tick {longest_s:.1f} s; lost: {losses}")

    return said


@pytest.mark.parametrize(("a_second", "seconds", "delay_s"), [(20_000, 15, 1.0), (2_000, 75, 60.0)])
def test_threads_that_exit_one_after_the_other(
    a_second: int, seconds: int, delay_s: float, tmp_path: Path, say: Callable[..., None]
) -> None:
    with storm_of(tmp_path, EXITS, a_second, seconds, 2) as child:
        windows, took_s = windows_of(child.pid, child.go, delay_s)
        made, waited_ns, counted_ns = child.at["made"], child.at["waited"], time_of_exited(windows, child)
        times = f"they waited {waited_ns / S:,.0f} s before their exit, {counted_ns / S:,.0f} s are counted"
        say(windows, f"{made:,} exits, {made / took_s:,.0f} a second", times)
        assert 0.98 * waited_ns <= counted_ns <= (1 + _MOST_IN_EXIT) * waited_ns
        # So many that exit between two snapshots are not all shown by name; the others are summed up in EXITED.
        mine = [
            totals for window in windows for key, totals in window.each_thread() if key.pid in (child.pid, EXITED.pid)
        ]
        assert sum(totals.waits for totals in mine) >= 2 * (made - lost(windows).get("threads", 0))


def test_12_000_threads_that_exit_together(tmp_path: Path, say: Callable[..., None]) -> None:
    def storm() -> None:
        child.go()
        time.sleep(3)
        child.go()

    with storm_of(tmp_path, TOGETHER, 12_000) as child:
        windows, _ = windows_of(child.pid, storm, 1.0)
        say(windows, f"they waited {child.at['waited'] / S:,.0f} s")
        check_time_of_exited(windows, child)


def test_10_000_stacks_a_second(tmp_path: Path, say: Callable[..., None]) -> None:
    with storm_of(tmp_path, PATHS, 100_000) as child:
        windows, took_s = windows_of(child.pid, child.go, 1.0)
        mine = [totals for window in windows for site, totals in window.each_site() if site.pid == child.pid]
        waits, ns = sum(one.waits for one in mine), sum(one.total_ns for one in mine)
        say(windows, f"{waits:,} waits in {took_s:.0f} s, {ns / waits / MS:.1f} ms each")
        check_stacks(windows, child.pid, 100_000)
