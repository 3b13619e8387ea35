"""Test how often tasks are scanned.

Each tick has a scan while that takes less than a twentieth of the tick.
"""

import time
from collections.abc import Callable

import pytest

from offtop.kernel.accounting.drain import Drain
from offtop.kernel.tracing.budget import ScanCadence
from tests.kernel import watch

MS = 1_000_000


def ticks(walks: ScanCadence, took_ns: int, tick_ns: int, count: int, found: int = 0) -> list[bool]:
    """Return which of `count` ticks have a scan."""
    made: list[bool] = []
    for _ in range(count):
        made.append(walks.is_due)
        walks.add(took_ns if walks.is_due else -1, tick_ns, found=found)
    return made


def test_the_first_scan_is_due_and_its_cost_unknown() -> None:
    assert (ScanCadence().is_due, ScanCadence().every, ScanCadence().took_ns) == (True, 1, -1)


def test_a_scan_of_50_ms_runs_every_second() -> None:
    walks = ScanCadence()
    assert ticks(walks, 50 * MS, 1000 * MS, 5) == [True] * 5
    assert (walks.every, walks.took_ns) == (1, 50 * MS)


def test_a_scan_of_120_ms_runs_every_third_tick() -> None:
    walks = ScanCadence()
    assert ticks(walks, 120 * MS, 1000 * MS, 7) == [True, False, False, True, False, False, True]
    assert walks.every == 3


def test_a_scan_that_finds_many_waits_runs_every_tick() -> None:
    assert ticks(ScanCadence(), 120 * MS, 1000 * MS, 4, found=10_000) == [True] * 4
    assert ticks(ScanCadence(), 120 * MS, 1000 * MS, 4, found=9_000) == [True, False, False, True]


def test_with_100_ms_ticks_a_10_ms_scan_runs_every_second_tick() -> None:
    assert ticks(ScanCadence(), 10 * MS, 100 * MS, 4) == [True, False, True, False]


def test_a_scan_runs_at_least_every_tenth_tick_and_recovers() -> None:
    walks = ScanCadence()
    assert ticks(walks, 10_000 * MS, 1000 * MS, 11) == [True, *[False] * 9, True]
    for _ in range(200):
        walks.add(1 * MS if walks.is_due else -1, 1000 * MS)
    assert walks.every == 1


def spin(seconds: float) -> None:
    until_ns = time.thread_time_ns() + int(seconds * 1e9)
    while time.thread_time_ns() < until_ns:
        pass


@pytest.mark.kernel
@pytest.mark.variant
@pytest.mark.parametrize(("held_up", "costs"), [(time.sleep, False), (spin, True)], ids=["preempted", "running"])
def test_a_scan_costs_the_time_that_it_runs_not_its_preemption(
    monkeypatch: pytest.MonkeyPatch, held_up: Callable[[float], None], costs: bool
) -> None:
    scan = Drain.scan

    def scan_late(drain: Drain, mode: int) -> bytes:
        held_up(0.5)
        return scan(drain, mode)

    monkeypatch.setattr(Drain, "scan", scan_late)
    with watch.watching_kernel_stacks() as live:  # the first scan is of all tasks and does not count
        live.tick(1)
        assert (live.last.cost.scan_every > 1) is costs
