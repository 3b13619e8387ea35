"""Test how offtop keeps to its CPU budget: by the level of its processes, and by each CPU's time for stacks."""

import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from offtop.kernel.bpf import layout
from offtop.kernel.bpf.layout import Thinning
from offtop.kernel.tracing.budget import HIGHEST_LEVEL, NO_LIMIT_NS, BudgetControl, ThinnedMeter
from offtop.model.values.snapshot import Filters, Thinned
from offtop.model.values.wake import OFFWAKE
from tests.kernel import programs, watch
from tests.kernel.watch import MS, S

NOTHING = Thinning(0, 0, 0, 0, 0, 0, 0, 0)


def levels(
    control: BudgetControl,
    seconds: int,
    used_pct: Callable[[int], float],
    since_s: int = 0,
    tick_s: int = 1,
    left_out: Callable[[int], int] = lambda _: 0,
) -> list[int]:
    """Return the level after each tick. `used_pct`: level → CPU use of offtop. `left_out`: level → waits left out."""
    found: list[int] = []
    for second in range(since_s + tick_s, since_s + seconds + 1, tick_s):
        control.add(second * S, used_pct(control.level), left_out(control.level) * tick_s)
        found.append(control.level)
    return found


def changes_of(found: list[int]) -> list[int]:
    """Return at which positions the level changes."""
    return [at for at in range(1, len(found)) if found[at] != found[at - 1]]


def test_a_storm_is_answered_within_10_s_and_forgotten_within_30_s() -> None:
    control = BudgetControl(5.0, 0)
    assert levels(control, 60, lambda _: 2.0) == [0] * 60
    storm = levels(control, 60, lambda level: 20.0 / 2**level, since_s=60)
    assert storm[9] == storm[-1] == 2, "20 and 10 % are too much, 5 % are not"
    assert not control.is_over
    assert levels(control, 30, lambda _: 1.5, since_s=120)[-1] == 0


def test_what_cannot_be_kept_is_reported_at_the_highest_level() -> None:
    control = BudgetControl(5.0, 0)
    levels(control, 60, lambda _: 2.0)
    assert not control.is_over
    assert levels(control, 15, lambda _: 30.0, since_s=60)[-1] == HIGHEST_LEVEL
    assert control.is_over


def test_a_level_that_is_just_too_low_is_tried_less_and_less_often() -> None:
    control = BudgetControl(5.0, 0)
    found = levels(control, 1200, lambda level: 8.0 if level == 0 else 3.0)
    changes = changes_of(found)
    assert 4 <= len(changes) <= 17
    assert len([second for second in changes if second > 600]) <= 4


@pytest.mark.parametrize("tick_s", [1, 10, 60])
def test_a_level_that_saves_nearly_all_is_not_tried_more_often(tick_s: int) -> None:
    control = BudgetControl(5.0, 0)
    storm = levels(
        control, 3600, lambda level: 1.0 if level else 8.0, tick_s=tick_s, left_out=lambda level: 5000 * bool(level)
    )
    assert len(changes_of(storm)) <= 36, "two changes in each of 300 s, and some more at the start"
    after = levels(control, 600, lambda _: 1.0, since_s=3600, tick_s=tick_s)
    assert after[max(1, 30 // tick_s)] == 0, "nothing is left out any more"


def test_neither_the_start_nor_a_single_slow_tick_changes_the_level() -> None:
    control = BudgetControl(5.0, 0)
    assert levels(control, 4, lambda _: 50.0) == [0] * 4
    assert levels(control, 30, lambda _: 2.0, since_s=4)[-20:] == [0] * 20
    control.add(35 * S, 11.0)
    assert levels(control, 10, lambda _: 2.0, since_s=35) == [0] * 10


def test_no_budget_means_no_limit() -> None:
    control = BudgetControl(math.inf, 0)
    assert levels(control, 60, lambda _: 90.0) == [0] * 60
    assert control.stacks_ns == NO_LIMIT_NS


def test_the_minimum_rises_in_three_levels_to_64_ms() -> None:
    control = BudgetControl(5.0, 0)
    found: list[tuple[int, int, int]] = []
    for control.level in range(HIGHEST_LEVEL + 1):
        found.append((control.min_ns(MS), control.min_ns(0), control.min_ns(100 * MS)))
    assert [one for one, _, _ in found] == [MS, 4 * MS, 16 * MS, 64 * MS, 64 * MS]
    assert [one for _, one, _ in found] == [0, layout.LOWEST_MIN_NS << 6, layout.LOWEST_MIN_NS << 11, 64 * MS, 64 * MS]
    assert {one for _, _, one in found} == {100 * MS}


def test_the_meter_reports_the_highest_minimum_and_what_is_new() -> None:
    meter, control = ThinnedMeter(), BudgetControl(5.0, 0)
    busy = Thinning(
        since_ns=9 * S, stacks_ns=0, stacks=0, next_waits=0, sampled_ns=0, level=2, waits=70, waits_ns=7 * S
    )
    assert meter.read(S, control, MS, [NOTHING, NOTHING]) == Thinned()
    assert meter.read(9 * S, control, MS, [NOTHING, busy]) == Thinned(0, 4 * MS, 1, 70, 7 * S, 9 * S)
    assert meter.read(10 * S, control, MS, [NOTHING, busy]) == Thinned(0, 2 * MS, 1, 0, 0, 9 * S)
    assert meter.read(11 * S, control, MS, [NOTHING, busy]) == Thinned(), "its level falls by one a second"
    control.level = 1
    assert meter.read(12 * S, control, MS, [NOTHING, busy]) == Thinned(1, 4 * MS, 2, 0, 0, 12 * S)


SLEEPERS = r"""
#include <pthread.h>
static void *often(void *us) { for (;;) usleep((long)us); }
int main(void)
{
	pthread_t made;
	for (long i = 0; i < 100; i++)
		pthread_create(&made, 0, often, (void *)(1500 + i));
	next();
	for (int i = 0; i < 23; i++)
		usleep(70000);
	next();
	return 0;
}
"""
"""100 threads wait 60,000 times a second in all. The main thread sleeps 23 times for 70 ms."""


@pytest.mark.kernel
def test_a_busy_cpu_leaves_out_stacks_but_no_time_and_no_long_wait(tmp_path: Path) -> None:
    binary = programs.build(tmp_path / "sleepers", SLEEPERS, "-D_GNU_SOURCE", "-pthread")
    with watch.watching_kernel_stacks(budget_pct=20.0) as live:
        with programs.running([binary]) as program:
            live.tick(1.0)
            thinned = live.last.cost.thinned
            assert thinned.cpus > 0
            assert thinned.stacks_from_ns > MS
            assert thinned.waits > 1000
            program.go()
            watch.check_sleeps([live.tick()], program.pid, 23)
        deadline = time.monotonic() + 20
        while live.last.cost.thinned.since_ns:
            assert time.monotonic() < deadline, "it still leaves out stacks"
            live.tick(0.5)


@pytest.mark.kernel
def test_the_sums_hold_while_the_level_changes_at_each_tick(tmp_path: Path) -> None:
    binary = programs.build(tmp_path / "sleepers", SLEEPERS, "-D_GNU_SOURCE", "-pthread")
    with programs.running([binary]), watch.watching_kernel_stacks(budget_pct=5.0) as live:
        control = live.source._budget  # pyright: ignore[reportPrivateUsage]
        for at in range(10):
            control.level = (0, 3, 1, 4, 2)[at % 5]
            live.tick(0.1)
            assert live.last.cost.thinned.waits > 0


@pytest.mark.kernel
@pytest.mark.variant
def test_with_probe_switch_stacks_of_wakers_leave_out_no_waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(BudgetControl, "stacks_ns", 10_000)
    binary = programs.build(tmp_path / "sleepers", SLEEPERS, "-D_GNU_SOURCE", "-pthread")
    with (
        programs.running([binary]),
        watch.watching_kernel_stacks(probe="switch", mode=OFFWAKE, budget_pct=1000) as live,
    ):
        live.tick(1.0)
        assert live.last.cost.thinned == Thinned()


WAKER = r"""
#include <pthread.h>
#include <sched.h>
#include <time.h>
static int ends[2];
static void run_on(int cpu)
{
	cpu_set_t only;
	CPU_ZERO(&only);
	CPU_SET(cpu, &only);
	sched_setaffinity(0, sizeof(only), &only);
}
static void *sleeper(void *unused)
{
	char byte;
	run_on(0);
	while (read(ends[0], &byte, 1) == 1)
		;
	return 0;
}
int main(void)
{
	pthread_t made;
	struct timespec now;
	if (pipe(ends))
		return 1;
	run_on(1);
	pthread_create(&made, 0, sleeper, 0);
	next();
	for (long until_us = 0;;) {
		clock_gettime(CLOCK_MONOTONIC, &now);
		long now_us = now.tv_sec * 1000000 + now.tv_nsec / 1000;
		if (now_us < until_us)
			continue;
		until_us = now_us + 5000;
		if (write(ends[1], "", 1) != 1)
			return 1;
	}
}
"""
"""On CPU 1 a thread runs all the time, and wakes another one on CPU 0 every 5 ms."""


@pytest.mark.kernel
@pytest.mark.skipif(os.cpu_count() == 1, reason="two CPUs are needed")
def test_a_cpu_that_only_wakes_threads_lowers_its_minimum_again(tmp_path: Path) -> None:
    binary = programs.build(tmp_path / "waker", WAKER, "-D_GNU_SOURCE", "-pthread")
    with programs.running([binary]) as program:
        filters = Filters(pids=(program.pid,))
        with watch.watching_kernel_stacks(filters, mode=OFFWAKE, budget_pct=1000) as live:
            drain, maps = live.source._parts.drain, live.source._parts.program.maps  # pyright: ignore[reportPrivateUsage]
            program.go_on_alone()
            live.tick(0.2)
            raised = NOTHING._replace(since_ns=time.monotonic_ns() - 20 * S, level=6)
            maps["thinning"].update(bytes(4), layout.THINNING.pack(*raised) * len(drain.thinning()))
            live.tick(0.2)
            assert [one.level for one in drain.thinning()[:2]] == [0, 0]
