"""Columns in memory take few bytes, and come back as they were."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from offtop.model.values.columns import compressed, decompressed

words = st.one_of(st.integers(-3, 300), st.integers(-(1 << 63), (1 << 63) - 1))
shapes = st.one_of(st.tuples(st.integers(0, 9)), st.tuples(st.integers(0, 9), st.integers(0, 4)))
columns = st.lists(shapes.flatmap(lambda shape: arrays(np.int64, shape, elements=words)), max_size=4)


@given(columns)
def test_columns_come_back_as_they_were(some: list[np.ndarray[tuple[int, ...], np.dtype[np.int64]]]) -> None:
    found = decompressed(compressed(some))
    assert [(one.shape, one.dtype, one.tolist()) for one in found] == [
        (one.shape, np.int64, one.tolist()) for one in some
    ]


def test_a_column_of_one_value_takes_no_room_however_long_it_is() -> None:
    # 100,000 integers of 8 bytes
    assert len(compressed([np.full(100_000, 1 << 60)])) < 100


def test_a_matrix_may_have_columns_that_are_strided() -> None:
    every = np.arange(60).reshape(10, 6)
    (found,) = decompressed(compressed([every[::2, 1:5:2]]))
    assert found.tolist() == every[::2, 1:5:2].tolist()
