"""One int counts waits by powers of two of ns, adds like a number, and has percentiles as upper bounds."""

from hypothesis import given
from hypothesis import strategies as st

from offtop.model.values import histogram as log2

waits = st.lists(st.integers(0, 2**50), max_size=50)


def test_lane_0_ends_at_512_ns_and_each_next_lane_at_twice_the_one_before() -> None:
    assert [log2.lane_of(ns) for ns in (0, 1, 511, 512, 1023, 1024, 2**47 - 1, 2**47, 2**60)] == [
        0, 0, 0, 1, 1, 2, 38, 39, 39,
    ]  # fmt: skip
    assert (log2.low_ns(0), log2.high_ns(0)) == (0, 512)
    assert (log2.low_ns(1), log2.high_ns(1)) == (512, 1024)


def test_empty_histogram_has_no_slots_waits_or_percentile() -> None:
    assert (log2.slots(log2.EMPTY), log2.count(log2.EMPTY), log2.percentile_ns(log2.EMPTY, 99, 0)) == ([], 0, 0)


def test_slots_are_the_low_end_and_count_of_each_used_lane() -> None:
    assert log2.slots(log2.of(100, 600, 700, 5_000)) == [(0, 1), (512, 2), (4096, 1)]


def test_p99_of_99_waits_of_1_us_and_one_of_1_ms_is_1024_ns() -> None:
    histogram = 99 * log2.of(1_000) + log2.of(1_000_000)
    assert log2.percentile_ns(histogram, 50, 1_000_000) == 1_024
    assert log2.percentile_ns(histogram, 99, 1_000_000) == 1_024
    assert log2.percentile_ns(histogram, 99.5, 1_000_000) == 1_000_000
    assert log2.percentile_ns(histogram, 100, 1_000_000) == 1_000_000


def test_last_lane_ends_at_the_maximum() -> None:
    assert log2.percentile_ns(log2.of(2**49), 50, 2**49) == 2**49


@given(waits, waits)
def test_histograms_add_up(some: list[int], more: list[int]) -> None:
    assert log2.of(*some) + log2.of(*more) == log2.of(*some, *more)
    assert log2.count(log2.of(*some, *more)) == len(some) + len(more)


@given(st.lists(st.integers(0, 2**50), min_size=1, max_size=50), st.integers(1, 100))
def test_percentile_is_an_upper_bound_within_its_power_of_two(given_waits: list[int], percent: int) -> None:
    rank = max(1, -(-len(given_waits) * percent // 100))
    true_ns = sorted(given_waits)[rank - 1]
    bound_ns = log2.percentile_ns(log2.of(*given_waits), percent, max(given_waits))
    assert true_ns <= bound_ns <= max(512, 2 * true_ns, max(given_waits) if true_ns >= 2**47 else 0)


@given(st.lists(st.tuples(waits, waits), max_size=5))
def test_histograms_survive_conversion_to_lanes_even_as_differences(
    pairs: list[tuple[list[int], list[int]]],
) -> None:
    differences = [log2.of(*more) - log2.of(*some) for more, some in pairs]
    lanes = log2.to_lanes(differences)
    assert lanes.shape == (len(pairs), log2.LANES)
    assert log2.of_lanes(lanes) == differences
    assert lanes.sum() == sum(len(more) - len(some) for more, some in pairs)
