"""Rows of integers: distinct ones, groups, sums, and those that are also elsewhere."""

from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtop.model.values import histogram as log2
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.snapshot import ThreadTotals
from offtop.model.values.table import (
    SITES,
    THREADS,
    Groups,
    SiteKeys,
    Table,
    are_among,
    distinct,
    distinct_codes,
    integers,
    lanes_of,
    nonzero_lanes,
    rows_at,
    summed,
    table_of,
)

FEW = integers([(7, 3), (5, 9), (7, 3), (5, 2)], 2)


def test_distinct_rows_are_in_order_whether_they_are_counted_or_sorted() -> None:
    for wide in (0, 1 << 40):
        once, which = distinct(FEW + wide * (FEW == 9))
        assert once.tolist() == [[5, 2], [5, 9 + wide], [7, 3]]
        assert which.tolist() == [2, 1, 2, 0]
    once, which = distinct(integers([], 2))
    assert (once.shape, which.shape) == ((0, 2), (0,))


@given(st.lists(st.tuples(st.integers(-2, 2), st.sampled_from([0, 1 << 40]), st.integers(1, 9))), st.booleans())
def test_rows_that_repeat_are_distinct_in_the_same_order(runs: list[tuple[int, int, int]], is_wide: bool) -> None:
    rows = [(one, other * is_wide) for one, other, times in runs for _ in range(times)]
    once, which = distinct(integers(rows, 2))
    assert [*map(tuple, once.tolist())] == sorted({*rows})
    assert [*map(tuple, once[which].tolist())] == rows


@given(st.lists(st.integers(-3, 3) | st.integers(-(1 << 63), (1 << 63) - 1)))
def test_distinct_codes_are_those_of_a_set_in_order(codes: list[int]) -> None:
    assert distinct_codes(np.array(codes, np.int64)).tolist() == sorted(set(codes))


def test_each_row_has_the_index_of_its_group() -> None:
    groups = Groups(np.array([30, 10, 30, 20]))
    assert (groups.codes.tolist(), groups.of_rows.tolist()) == ([10, 20, 30], [2, 0, 2, 1])
    assert Groups(np.array([], np.int64)).of_rows.tolist() == []


def test_histograms_are_the_same_after_their_zeros_were_left_out() -> None:
    lanes = np.zeros((3, 40), np.int64)
    lanes[0, 39], lanes[2, 0], lanes[2, 7] = 4, -1, 2
    counts = nonzero_lanes(lanes)
    assert counts.tolist() == [[0, 39, 4], [2, 0, -1], [2, 7, 2]]
    assert lanes_of(counts, 3).tolist() == lanes.tolist()
    assert nonzero_lanes(lanes[:0]).shape == (0, 3)
    counts[:, 0] = 1
    counts[1, 1] = 39
    assert lanes_of(counts, 2)[1, [7, 39]].tolist() == [2, 3]


def test_a_table_keeps_of_each_histogram_only_the_lanes_that_have_waits() -> None:
    entries = {ThreadKey(1, tid): ThreadTotals(waits=tid, histogram=log2.of(*[2_000 << tid] * tid)) for tid in range(4)}
    table = table_of(THREADS, entries)
    same = Table(THREADS, table.ids, table.numbers, table.counts)
    for one in (table, same):
        assert dict(one) == dict(one.items()) == entries
        assert one.counts.tolist() == [[1, 3, 1], [2, 4, 2], [3, 5, 3]]
        assert log2.of_lanes(one.lanes) == [totals.histogram for totals in entries.values()]
        assert dict(one.at(np.array([1, 3]))) == {ThreadKey(1, tid): entries[ThreadKey(1, tid)] for tid in (1, 3)}
    assert table.bytes_held == table.ids.nbytes + table.numbers.nbytes + 3 * 2 * 8


def test_histograms_of_one_key_are_summed_and_lanes_that_cancel_out_are_gone() -> None:
    counts = integers([(0, 5, 2), (1, 9, 4), (2, 5, 1), (2, 7, -3), (3, 7, 3)], 3)
    numbers = np.ones((4, THREADS.numbers), np.int64)
    table = summed(THREADS, integers([(7, 8), (1, 2), (7, 8), (7, 8)], 2), numbers, counts)
    assert (table.ids.tolist(), table.counts.tolist()) == ([[1, 2], [7, 8]], [[0, 9, 4], [1, 5, 3]])


@pytest.mark.parametrize("count", [0, 1, 7, 5_000])
def test_mask_finds_the_sites_that_are_there_and_no_others(count: int) -> None:
    """With 5,000 keys, hundreds share a slot with another one."""
    keys = np.random.default_rng(count).integers(0, 1 << 40, (2 * count + 1, SITES.width))
    keys[-1] = 0  # as empty slots are
    some = SiteKeys(keys[:count])
    assert some.mask(keys).tolist() == [True] * count + [False] * (count + 1)
    assert SiteKeys(keys).mask(keys[::-1]).all()


@given(st.lists(st.integers(-3, 12)), st.lists(st.integers(0, 9)))
def test_values_among_others_are_those_of_isin(values: list[int], some: list[int]) -> None:
    found = are_among(np.array(values, np.int64), np.array(some, np.int64))
    assert found.tolist() == [one in some for one in values]


@pytest.mark.parametrize("order", ["C", "F"])
def test_rows_of_a_matrix_keep_their_order_in_memory(order: Literal["C", "F"]) -> None:
    matrix = np.array(np.arange(60).reshape(12, 5), order=order)
    for which in (np.array([7, 0, 7, 11]), np.arange(12) % 3 == 0):
        some = rows_at(matrix, which)
        assert some.tolist() == matrix[which].tolist()
        assert some.flags.f_contiguous == (order == "F")
