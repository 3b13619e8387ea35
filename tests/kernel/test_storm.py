"""Test that the budget is kept in a real storm: offtop gives up detail soon, and takes all of it back afterwards."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import pytest

from offtop.kernel.tracing.budget import HIGHEST_LEVEL
from tests.kernel import offtop_process, programs
from tests.kernel.offtop_process import Run, Tick

pytestmark = [pytest.mark.kernel, pytest.mark.variant, pytest.mark.usefixtures("no_settings")]

_LEAST_BUDGET_PCT = 4
_TICK_S, _WARM_S, _PATIENCE_S = 0.5, 8.0, 60.0
_ANSWERED_S, _FORGOTTEN_S = 10.0 + 2 * _TICK_S, 30.0 + 2 * _TICK_S
"""The limits, and the tick in which a level takes effect, which is then in the JSON of the next."""

STORM = r"""
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
static atomic_int is_over;
static __attribute__((noinline)) void down(int depth)
{
	struct timespec each = {0, 80000000};

	if (depth)
		down(depth - 1);
	else
		nanosleep(&each, 0);
	__asm__ volatile("");
}
static void *sleeper(void *number)
{
	for (int i = 0; !is_over; i++)
		down(((long)number + i) % 8);
	return 0;
}
int main(void)
{
	static pthread_t made[1000];
	pthread_attr_t small;

	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 65536);
	next();
	for (long i = 0; i < 1000; i++)
		if (pthread_create(&made[i], &small, sleeper, (void *)i))
			return 1;
	next();
	is_over = 1;
	for (int i = 0; i < 1000; i++)
		pthread_join(made[i], 0);
	next();
	return 0;
}
"""
"""Between its first and second go, 1,000 threads wait 12,000 times a second, so long that each wait gets its stacks."""


def seconds_until(offtop: Run, holds: Callable[[Tick], bool]) -> float:
    """Read ticks until one is as wanted, and return how long that took."""
    began_s = time.monotonic()
    while not holds(offtop.tick()):
        assert time.monotonic() - began_s < _PATIENCE_S
    return time.monotonic() - began_s


def is_exact(tick: Tick) -> bool:
    return tick["detail"]["level"] == tick["detail"]["cpus"] == 0


def is_answered(tick: Tick, budget_pct: int) -> bool:
    level = tick["detail"]["level"]
    return level == HIGHEST_LEVEL or (level > 0 and tick["cost"]["cpu_pct"] <= budget_pct)


def test_a_real_storm_is_answered_within_10_s_and_forgotten_within_30_s(tmp_path: Path) -> None:
    binary = programs.build(tmp_path / "storm", STORM, "-D_GNU_SOURCE", "-pthread", "-fno-optimize-sibling-calls")
    with programs.running([binary]) as child:
        options = ("--json", "-d", str(_TICK_S), "-p", str(child.pid))
        with offtop_process.started(*options, "--cpu-budget", "100") as offtop:
            calm_pct = median(offtop.tick()["cost"]["cpu_pct"] for _ in range(int(_WARM_S / _TICK_S)))
        budget_pct = max(_LEAST_BUDGET_PCT, round(2 * calm_pct))  # the same calm costs much more on some machines
        with offtop_process.started(*options, "--cpu-budget", str(budget_pct)) as offtop:
            check_storm(offtop, child, budget_pct)


def check_storm(offtop: Run, child: programs.Program, budget_pct: int) -> None:
    calm = [offtop.tick() for _ in range(int(_WARM_S / _TICK_S))]
    assert is_exact(calm[-1])
    child.go()
    assert seconds_until(offtop, partial(is_answered, budget_pct=budget_pct)) <= _ANSWERED_S
    child.go()
    assert seconds_until(offtop, is_exact) <= _FORGOTTEN_S
