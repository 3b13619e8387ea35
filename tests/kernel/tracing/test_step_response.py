"""Test how BudgetControl answers a storm: soon, without going back and forth, and with all details again afterwards."""

import itertools
import random
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from offtop.kernel.tracing.budget import HIGHEST_LEVEL, BudgetControl
from tests.kernel.watch import S

BUDGET_PCT = 5.0
SETTLED_S = 35
"""Time after a change of the load in which the level may change: each level up, and one attempt to lower it."""


class Savings(NamedTuple):
    """What each level leaves of a storm's cost, and which share of its waits it leaves out."""

    cost: Sequence[float]
    left_out: Sequence[float]


LEVELS = range(HIGHEST_LEVEL + 1)
IS_HIGH = [level > HIGHEST_LEVEL - 2 for level in LEVELS]
SAVINGS = {
    "each level halves it": Savings([0.5**level for level in LEVELS], [1 - 0.5**level for level in LEVELS]),
    "the first level saves nearly all": Savings(
        [0.05 if level else 1.0 for level in LEVELS], [float(level > 0) for level in LEVELS]
    ),
    "only the highest levels save much": Savings(
        [1.0, *(0.35 if is_high else 0.95 for is_high in IS_HIGH[1:])], [0.9 * is_high for is_high in IS_HIGH]
    ),
    "no level saves much": Savings([1 - 0.01 * level for level in LEVELS], [0.0 for _ in LEVELS]),
}


class Tick(NamedTuple):
    end_s: float
    level: int
    """The level in effect during the tick."""
    used_pct: float


class Machine:
    """A machine on which offtop uses as much CPU as load and level require; the level is in effect at once."""

    def __init__(self, savings: Savings, calm_pct: float, tick_s: float = 1.0, noise: float = 0.0) -> None:
        self.control = BudgetControl(BUDGET_PCT, 0)
        self._savings, self._calm_pct, self._tick_s, self._noise = savings, calm_pct, tick_s, noise
        self._random = random.Random(28)
        self._now_s = 0.0

    def run(self, seconds: float, storm_pct: float = 0.0, waits_per_s: float = 0.0) -> list[Tick]:
        """Return the ticks of so many seconds. `storm_pct`: what the storm costs at level 0."""
        ticks: list[Tick] = []
        for _ in range(round(seconds / self._tick_s)):
            level = self.control.level
            used_pct = self._noisy(self._calm_pct + storm_pct * self._savings.cost[level])
            left_out = int(self._noisy(waits_per_s * self._savings.left_out[level] * self._tick_s))
            self._now_s += self._tick_s
            self.control.add(int(self._now_s * S), used_pct, left_out)
            ticks.append(Tick(self._now_s, level, used_pct))
        return ticks

    def _noisy(self, number: float) -> float:
        return number * self._random.uniform(1 - self._noise, 1 + self._noise)


def changes(ticks: Sequence[Tick]) -> int:
    """Return how often the level changes."""
    return sum(one.level != other.level for one, other in itertools.pairwise(ticks))


@pytest.mark.parametrize("tick_s", [0.25, 1, 2])
@pytest.mark.parametrize("savings", SAVINGS.values(), ids=SAVINGS.keys())
def test_storms_of_any_size_are_answered_in_10_s_and_forgotten_in_30_s_without_oscillation(
    savings: Savings, tick_s: float
) -> None:
    for calm_pct, storm_pct, seconds in itertools.product((0.5, 1.5, 3.0), (1, 4, 6, 12, 40, 80), (60, 200)):
        case = f"{calm_pct} %, in the storm {storm_pct} % more for {seconds} s"
        machine = Machine(savings, calm_pct, tick_s)
        assert {tick.level for tick in machine.run(60)} == {0}, case
        storm = machine.run(seconds, storm_pct, waits_per_s=5000)
        answered = [tick for tick in storm if tick.used_pct <= BUDGET_PCT or tick.level == HIGHEST_LEVEL]
        assert answered and answered[0].end_s <= 60 + 10 + tick_s, case
        settled = [tick for tick in storm if tick.end_s > 60 + SETTLED_S]
        assert changes([tick for tick in settled if tick.end_s <= 60 + SETTLED_S + 120]) == 0, case
        after = machine.run(60)
        assert {tick.level for tick in after if tick.end_s > 60 + seconds + 30} == {0}, case


def test_in_a_storm_of_hours_a_lower_level_is_tried_only_every_300_s() -> None:
    machine = Machine(SAVINGS["the first level saves nearly all"], 1.0)
    machine.run(60)
    storm = machine.run(7200, storm_pct=20, waits_per_s=5000)
    assert 2 * 7200 // 330 <= changes(storm) <= 2 * (7200 // 300) + 5
    over = [tick for tick in storm[SETTLED_S:] if tick.used_pct > BUDGET_PCT]
    assert len(over) < 0.02 * len(storm)


@pytest.mark.parametrize("savings", SAVINGS.values(), ids=SAVINGS.keys())
def test_a_noisy_load_changes_the_level_rarely(savings: Savings) -> None:
    for storm_pct in (3, 4, 6, 8, 20, 40):
        machine = Machine(savings, 1.5, noise=0.1)
        machine.run(60)
        storm = machine.run(SETTLED_S + 120, storm_pct, waits_per_s=5000)
        assert changes(storm[SETTLED_S:]) <= 6, f"in the storm {storm_pct} % more"
        assert {tick.level for tick in machine.run(60)[30:]} == {0}


def test_storms_that_come_and_go_are_followed_each_time() -> None:
    machine = Machine(SAVINGS["each level halves it"], 1.0)
    machine.run(60)
    for _ in range(20):
        assert machine.run(60, storm_pct=12, waits_per_s=5000)[-1].level == 2
        assert machine.run(60)[30].level == 0


def test_a_storm_that_ends_when_it_is_answered_leaves_nothing_behind() -> None:
    for seconds in range(1, 60):
        machine = Machine(SAVINGS["each level halves it"], 1.0)
        machine.run(60)
        machine.run(seconds, storm_pct=12, waits_per_s=5000)
        assert machine.run(60)[30].level == 0, f"a storm of {seconds} s"


def test_one_slow_tick_changes_nothing_however_slow_it_is() -> None:
    machine = Machine(SAVINGS["each level halves it"], 1.0)
    machine.run(60)
    machine.run(1, storm_pct=90)
    assert {tick.level for tick in machine.run(30)} == {0}


def test_counting_above_the_budget_is_not_reported_before_stacks_were_left_out() -> None:
    control = BudgetControl(BUDGET_PCT, 0)
    reported: list[bool] = []
    for second in range(1, 8):
        control.add(second * S, 1.0, counting_pct=9.0)
        reported.append(control.is_over)
    assert reported == [False] * 4 + [True] * 3


def test_counting_alone_above_the_budget_is_reported_until_it_is_clearly_below() -> None:
    control = BudgetControl(BUDGET_PCT, 0)
    reported: list[bool] = []
    for second, counting_pct in enumerate([-1.0, 4.9, 5.1, 4.9, 5.1, 4.6, 4.4, 4.9]):
        control.add((60 + second) * S, 1.0, counting_pct=counting_pct)
        reported.append(control.is_over)
    assert reported == [False, False, True, True, True, True, False, False]
    assert control.level == 0, "less detail would not help"
