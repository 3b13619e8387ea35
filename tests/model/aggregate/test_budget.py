"""T - R*C: 16 threads that serve 1,000 requests a second of 2 ms CPU each have 14 off CPU."""

import pytest

from offtop.model.aggregate.account import NO_ACCOUNT, Account
from offtop.model.aggregate.budget import Rate, budget, parse_rate

MS = 1_000_000
S = 1_000 * MS
BUSY = Account(threads=16, through=16, running_ns=2 * S, blocked_ns=14 * S)


def test_without_a_rate_only_the_shares_of_the_threads_are_shown() -> None:
    result = budget(BUSY, idle_ns=4 * S, span_ns=S, rate=None)
    assert result is not None
    assert (result.threads, result.running, result.blocked, result.idle, result.expected) == (
        16.0,
        2.0,
        10.0,
        4.0,
        None,
    )
    assert result.lines == ["16 threads: 25% idle, 62% blocked otherwise, 0% ready to run, 12% running"]
    assert result.comparison == ""


def test_with_a_rate_the_time_of_each_request_is_shown() -> None:
    result = budget(BUSY, idle_ns=4 * S, span_ns=S, rate=Rate(1_000.0))
    assert result is not None
    assert (result.cpu_ns, result.blocked_ns, result.expected) == (2 * MS, 10 * MS, None)
    assert result.lines[1:] == ["1.0k requests/s: 2.0ms CPU + 10ms blocked each"]


@pytest.mark.parametrize(
    ("cpu_ns", "expected", "comparison"),
    [
        (2 * MS, 14.0, "as expected"),
        (1 * MS, 15.0, "as expected"),
        (8 * MS, 8.0, "more: see what they are blocked for"),
        (int(0.1 * MS), 15.9, "less: requests take more CPU"),
    ],
)
def test_measured_value_is_compared_with_the_expected_one(cpu_ns: int, expected: float, comparison: str) -> None:
    result = budget(BUSY, idle_ns=4 * S, span_ns=S, rate=Rate(1_000.0, cpu_ns))
    assert result is not None and result.expected == pytest.approx(expected)  # pyright: ignore[reportUnknownMemberType]
    assert result.off_cpu == 14.0
    assert result.comparison == comparison


def test_requests_that_need_more_cpus_than_threads_are_reported_as_wrong_input() -> None:
    result = budget(BUSY, idle_ns=4 * S, span_ns=S, rate=Rate(1_000.0, 65 * MS))
    assert result is not None and result.comparison == "one of the numbers is wrong"
    assert result.lines[1].endswith("; R*C is 65.0, more than the threads: one of the numbers is wrong")


def test_runnable_threads_are_neither_blocked_nor_idle() -> None:
    busy = Account(threads=4, through=4, running_ns=1 * S, ready_ns=2 * S, blocked_ns=1 * S)
    result = budget(busy, idle_ns=0, span_ns=S, rate=None)
    assert result is not None and result.lines == ["4 threads: 0% idle, 25% blocked, 50% ready to run, 25% running"]


@pytest.mark.parametrize("rate", [Rate(1500.0), Rate(0.25, 1_500_000), Rate(2_000_000.0, 1)])
def test_rate_text_parses_to_the_same_rate(rate: Rate) -> None:
    assert parse_rate(rate.text) == rate


def test_result_is_the_same_over_ten_seconds() -> None:
    ten = Account(threads=16, through=16, running_ns=20 * S, blocked_ns=140 * S)
    assert budget(ten, 40 * S, 10 * S, Rate(1_000.0, 2 * MS)) == budget(BUSY, 4 * S, S, Rate(1_000.0, 2 * MS))


def test_process_without_threads_has_no_budget() -> None:
    assert budget(NO_ACCOUNT, 0, S, Rate(1.0)) is None
    assert budget(BUSY, 0, 0, None) is None


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("1500", Rate(1500.0)),
        ("1.5k/s", Rate(1500.0)),
        ("1500,1ms", Rate(1500.0, MS)),
        (" 2M 300us ", Rate(2e6, 300_000)),
        ("10,2", Rate(10.0, 2 * MS)),
    ],
)
def test_rate_can_be_written_in_several_ways(text: str, rate: Rate) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "1500,0", "1500,1ms,2", "inf", "nan", "1e300", "1500,x"])
def test_invalid_rate_is_rejected(text: str) -> None:
    with pytest.raises((ValueError, IndexError)):
        parse_rate(text)
