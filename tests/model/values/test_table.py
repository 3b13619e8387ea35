"""Rows that repeat: a few small ones, which are counted, and ones too wide for that, which are sorted."""

import numpy as np

from offtop.model.values.table import Groups, distinct, integers, lanes_of, nonzero_lanes

FEW = integers([(7, 3), (5, 9), (7, 3), (5, 2)], 2)


def test_distinct_rows_are_in_order_whether_they_are_counted_or_sorted() -> None:
    for wide in (0, 1 << 40):
        once, which = distinct(FEW + wide * (FEW == 9))
        assert once.tolist() == [[5, 2], [5, 9 + wide], [7, 3]]
        assert which.tolist() == [2, 1, 2, 0]
    once, which = distinct(integers([], 2))
    assert (once.shape, which.shape) == ((0, 2), (0,))


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
