"""Usual length of waits, learnt from finished ones."""

import pytest

from offtop.model.outliers.usual import LEARN_NS, Usual
from offtop.model.values import histogram as log2
from offtop.model.windows.breakdown import SHORT, Breakdown, Leaf, Part
from offtop.units import NS_PER_S

MS = 1_000_000
S = NS_PER_S


def tick(category: str, *waits_ms: int, idle: bool = False, pid: int = 1, short: int = 0) -> Breakdown:
    part = Part(
        len(waits_ms), sum(waits_ms) * MS, max(waits_ms, default=0) * MS, log2.of(*(ms * MS for ms in waits_ms))
    )
    processes = {Leaf(category, idle): {pid: part}}
    if short:
        processes[Leaf(SHORT)] = {pid: Part(short, short * 1000)}
    return Breakdown(S, {}, processes)


def learned(*ticks: Breakdown, min_ns: int = MS) -> Usual:
    """After the step with these waits."""
    usual = Usual()
    for number, one in enumerate((*ticks, Breakdown(S))):
        at_ns = 100 * S + number * S if number < len(ticks) else 100 * S + LEARN_NS
        assert usual.learn(one, {1: "shop", 2: "bank"}, min_ns, at_ns) is (number == len(ticks))
    return usual


def test_nothing_is_usual_at_first() -> None:
    usual = Usual()
    assert not usual.learn(tick("lock", *[20] * 50), {1: "shop"}, MS, 100 * S)
    assert usual.of("shop", "lock") == 0
    assert Usual().of("", "") == 0


def test_usual_is_what_999_of_1000_waits_are_below() -> None:
    usual = learned(tick("lock", *[3] * 999, 500), tick("lock", *[3] * 1000))
    assert usual.of("shop", "lock") == log2.high_ns(log2.lane_of(3 * MS))
    assert learned(tick("lock", *[3] * 997, 500, 500, 500)).of("shop", "lock") == log2.high_ns(log2.lane_of(500 * MS))


def test_few_waits_are_not_enough_and_programs_and_categories_are_separate() -> None:
    usual = learned(tick("lock", *[20] * 9), tick("fsync", *[20] * 10), tick("lock", *[90] * 10, pid=2))
    assert usual.of("shop", "lock") == 0
    assert usual.of("shop", "fsync") == log2.high_ns(log2.lane_of(20 * MS))
    assert usual.of("bank", "lock") == log2.high_ns(log2.lane_of(90 * MS))


def test_idle_waits_are_not_learnt() -> None:
    assert learned(tick("lock", *[20] * 50, idle=True)).of("shop", "lock") == 0


@pytest.mark.parametrize(("short", "known"), [(999, False), (1000, True)])
def test_program_of_mostly_short_waits_is_judged_by_those(short: int, known: bool) -> None:
    usual = learned(tick("lock", 1500, short=short))
    assert usual.of("shop", "lock") == (log2.high_ns(log2.lane_of(MS)) if known else 0)
    assert usual.of("bank", "lock") == 0


def test_waits_older_than_five_minutes_are_dropped() -> None:
    usual = learned(tick("lock", *[900] * 50))
    at_ns = 100 * S + LEARN_NS
    for _ in range(29):
        at_ns += LEARN_NS
        assert usual.learn(tick("lock", *[3] * 50), {1: "shop"}, MS, at_ns)
    assert usual.of("shop", "lock") == log2.high_ns(log2.lane_of(900 * MS))
    for _ in range(2):
        at_ns += LEARN_NS
        assert usual.learn(tick("lock", *[3] * 50), {1: "shop"}, MS, at_ns)
    assert usual.of("shop", "lock") == log2.high_ns(log2.lane_of(3 * MS))
