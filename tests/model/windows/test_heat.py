"""Heat map: columns of time, rows of powers of two, and in each cell the number of waits that ended."""

from hypothesis import given
from hypothesis import strategies as st

from offtop.model.values import histogram as log2
from offtop.model.windows.breakdown import Idle
from offtop.model.windows.heat import Heat, heat
from offtop.model.windows.history import HistoryTick
from offtop.model.windows.window import Window

SECOND, MS = 10**9, 10**6


def tick(number: int) -> HistoryTick:
    """The tick that ends `number` seconds after the start of the clock."""
    return HistoryTick.of(Window(0, number * SECOND, SECOND), Idle(), number)


def made(waits: dict[int, int], columns: int, cell_s: int, end: int, rows: int = 9) -> Heat:
    """Tick → ns of a wait that ended in it."""
    histograms = {number: log2.of(ns) if ns else 0 for number, ns in waits.items()}
    return heat([tick(number) for number in waits], histograms, (), columns, cell_s * SECOND, end * SECOND, rows)


def test_no_measurements_give_no_rows_and_columns() -> None:
    assert made({}, 3, 5, 12) == Heat(5 * SECOND, (5 * SECOND, 10 * SECOND, 15 * SECOND), (), (None,) * 3, 0)


def test_tick_is_in_the_column_that_contains_its_end() -> None:
    map_ = made(dict.fromkeys(range(4, 13), 3 * MS), 3, 5, 12)
    assert map_.ends_ns == (5 * SECOND, 10 * SECOND, 15 * SECOND)
    assert map_.columns == ((2,), (5,), (2,))
    assert map_.rows == (((13, 14)),)
    assert map_.most == 5


def test_column_without_waits_is_measured_but_one_without_ticks_is_not() -> None:
    map_ = made({7: 0, 12: 3 * MS}, 4, 5, 12)
    assert map_.columns == (None, None, (0,), (1,))


def test_column_of_a_tick_that_is_not_read_yet_is_named() -> None:
    map_ = heat([tick(1), tick(2), tick(7)], {2: log2.of(3 * MS)}, {1, 2, 7}, 3, 5 * SECOND, 7 * SECOND, 9)
    assert map_.columns == (None, (1,), None)
    assert map_.unread == {1, 2}
    assert not heat([tick(1), tick(2)], {2: log2.of(3 * MS)}, {2}, 1, 5 * SECOND, 2 * SECOND, 9).unread


def test_rows_begin_at_the_shortest_wait_and_fit_into_the_room() -> None:
    waits = {1: 1 * MS, 2: 2 * MS, 3: 4 * MS, 4: 500 * MS}
    map_ = made(waits, 1, 5, 4, rows=3)
    assert len(map_.rows) <= 3
    assert [log2.low_ns(low) <= MS for low, _ in map_.rows] == [True, False, False][: len(map_.rows)]
    assert sum(map_.columns[0] or ()) == 4


@given(
    st.dictionaries(st.integers(1, 60), st.integers(0, 2**40), max_size=30),
    st.integers(1, 12),
    st.sampled_from([1, 5, 10]),
    st.integers(1, 20),
)
def test_each_wait_of_the_last_columns_is_in_one_cell(
    waits: dict[int, int], columns: int, cell_s: int, rows: int
) -> None:
    end = max(waits, default=1)
    map_ = made(waits, columns, cell_s, end, rows)
    assert len(map_.columns) == len(map_.ends_ns) == columns
    first_s = map_.ends_ns[0] // SECOND - cell_s
    assert map_.ends_ns[-1] >= end * SECOND > map_.ends_ns[-1] - cell_s * SECOND
    counted = [n for column in map_.columns for n in column or ()]
    assert sum(counted) == sum(1 for number, ns in waits.items() if ns and number > first_s)
    assert map_.most == max(counted, default=0)
    assert len(map_.rows) <= rows
    for column, until_ns in zip(map_.columns, map_.ends_ns, strict=True):
        within = [number for number in waits if until_ns - cell_s * SECOND < number * SECOND <= until_ns]
        assert (column is None) is (not within)
