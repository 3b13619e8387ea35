"""Numbers have at most three significant digits, and widths that fit into tables."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtop import units


@pytest.mark.parametrize(
    ("ns", "words"),
    [
        (0, ""),
        (-5, ""),
        (840, "840ns"),
        (999, "999ns"),
        (1_000, "1.0us"),
        (4_100, "4.1us"),
        (210_000, "210us"),
        (999_499, "999us"),
        (999_500, "1.0ms"),
        (4_100_000, "4.1ms"),
        (31_000_000, "31ms"),
        (118_000_000, "118ms"),
        (1_840_000_000, "1.84s"),
        (12_300_000_000, "12.3s"),
        (59_960_000_000, "1.0min"),
        (720_000_000_000, "12min"),
        (12_600_000_000_000, "3.5h"),
        (181_440_000_000_000, "2.1d"),
    ],
)
def test_duration_reads_as_on_the_screen(ns: int, words: str) -> None:
    assert units.duration(ns) == words


@given(st.integers(1, 90 * 86_400 * 10**9))
def test_duration_is_at_most_6_wide(ns: int) -> None:
    assert 2 < len(units.duration(ns)) <= 6


@pytest.mark.parametrize(
    ("ns", "words"),
    [
        (0, "0"),
        (1_000_000, "1ms"),
        (200_000, "200us"),
        (250_000_000, "250ms"),
        (10**9, "1s"),
        (2_500_000_000, "2.5s"),
        (10 * 10**9, "10s"),
        (60 * 10**9, "1m"),
        (90 * 10**9, "90s"),
        (600 * 10**9, "10m"),
        (1_234 * 10**9, "1234s"),
    ],
)
def test_span_has_no_more_digits_than_needed(ns: int, words: str) -> None:
    assert units.span(ns) == words


def test_average_threads_keep_their_decimal_point_in_one_place() -> None:
    assert [units.threads(value) for value in (0, 0.876, 18.2, 212.6, 2048.4)] == [
        "0.00", "0.88", "18.20", "212.60", "2048",
    ]  # fmt: skip
    assert [units.three(value) for value in (0.05, 1.84, 31.24, 118.2)] == ["0.05", "1.84", "31.2", "118"]


def test_counts_and_rates_are_at_most_4_wide() -> None:
    assert [units.count(n) for n in (0, 0.3, 9, 812, 9_100, 52_000, 1_200_000, 3e9)] == [
        "0", "0.3", "9", "812", "9.1k", "52k", "1.2M", "3.0G",
    ]  # fmt: skip


def test_bytes_are_in_powers_of_1024() -> None:
    assert [units.size(n) for n in (0, 999, 2048, 62 * 2**20)] == ["0B", "999B", "2.0KB", "62MB"]
    assert [units.byte_rate(n) for n in (0, 999, 2_500, 97.2e6)] == ["0B/s", "999B/s", "2.5KB/s", "97MB/s"]


def test_average_over_no_time_is_0() -> None:
    assert units.average(5, 0) == 0
    assert units.percent(5, 0) == 0
    assert units.average(5, 10) == 0.5
    assert units.percent(5, 10) == 50


def test_typed_duration_has_a_unit_or_the_default_one() -> None:
    assert units.parse_duration("1ms", 1) == 1_000_000
    assert units.parse_duration("1.5s", 1) == 1_500_000_000
    assert units.parse_duration("200", 1_000) == 200_000
    assert units.parse_duration("2", units.NS_PER_S) == 2 * units.NS_PER_S


@pytest.mark.parametrize("text", ["", "abc", "-1", "ms", "nan", "1e99", "inf", "1 2"])
def test_invalid_duration_is_rejected(text: str) -> None:
    with pytest.raises(ValueError):
        units.parse_duration(text, 1)
