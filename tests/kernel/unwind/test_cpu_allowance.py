"""Test how much CPU time unwinding may take, with sums that are easy to check."""

import pytest

from offtop.kernel.unwind.cpu_allowance import Allowance


def filled(share_pct: float, ticks: int, used_s: float) -> Allowance:
    """Return an empty allowance after so many ticks of 1 s.

    In each of them the rest of offtop used so much.
    """
    one = Allowance(share_pct)
    one.spend(0.5)
    for _ in range(ticks):
        one.fill(1.0, used_s + (0.5 if one.spent_s and _ == 0 else 0.0))
    return one


def spendable_s(one: Allowance) -> float:
    """Spend in steps of 10 ms until nothing is left, and return the sum."""
    count = 0
    while one.is_left:
        one.spend(0.01)
        count += 1
    return count / 100


@pytest.mark.parametrize(
    ("used_s", "left_s"),
    [(0.0, 0.05), (0.02, 0.03), (0.04, 0.01), (0.3, 0.01)],
    ids=["all", "rest", "rest", "at least a fifth"],
)
def test_a_second_grants_what_the_rest_of_offtop_leaves_of_5_percent(used_s: float, left_s: float) -> None:
    assert spendable_s(filled(5, 1, used_s)) == pytest.approx(left_s, abs=0.011)


def test_unused_time_is_kept_up_to_half_a_second() -> None:
    assert spendable_s(Allowance(5)) == pytest.approx(0.5, abs=0.011)
    assert spendable_s(filled(5, 4, 0.0)) == pytest.approx(0.2, abs=0.011)
    assert spendable_s(filled(5, 100, 0.0)) == pytest.approx(0.5, abs=0.011)


def test_one_costly_binary_delays_others_for_some_ticks_only() -> None:
    one = Allowance(5)
    one.spend(60)
    for _ in range(11):
        assert not one.is_left
        one.fill(1.0, 0.0)
    assert one.is_left
    assert one.spent_s == 60


@pytest.mark.parametrize(("share_pct", "factor"), [(200.0, 1.0), (5.0, 1.0), (1.0, 5.0), (0.5, 10.0), (0.1, 10.0)])
def test_with_a_small_budget_the_thread_looks_for_work_less_often(share_pct: float, factor: float) -> None:
    assert Allowance(share_pct).pause_factor == factor
