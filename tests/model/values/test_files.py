"""File operations of consecutive spans add up, and windows that are merged have their sum."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtop.model.values import files
from offtop.model.values import histogram as log2
from offtop.model.values.files import NO_CALLS, OPERATIONS, FileActivity, FileId, FileKey, FileTotals, added
from offtop.model.values.io_stacks import IoStack, StackTotals
from offtop.model.values.snapshot import Snapshot
from offtop.model.windows.window import between, merge

DATA, OTHER = FileId((8 << 20) + 1, 77, 3), FileId((259 << 20) + 300, 78, 0)
KEYS = [FileKey(7, "read", DATA), FileKey(7, "fsync", DATA), FileKey(8, "read", OTHER)]
CALL = FileTotals(1, 100, 50_000, 20_000, 50_000, log2.of(50_000))


@st.composite
def spans(draw: st.DrawFn) -> FileActivity:
    numbers = st.integers(0, 1000)
    totals = {
        key: FileTotals(
            calls=draw(numbers),
            bytes=draw(numbers),
            total_ns=draw(numbers),
            off_cpu_ns=draw(numbers),
            max_ns=draw(numbers),
            histogram=log2.of(*[9] * draw(st.integers(0, 3))),
            now_ns=draw(numbers),
        )
        for key in draw(st.sets(st.sampled_from(KEYS)))
    }
    names = {key.file: f"/{key.file.inode}" for key in totals}
    stacks = {
        IoStack(key, 3, user): StackTotals(draw(numbers), draw(numbers), draw(numbers), draw(numbers))
        for key in totals
        for user in draw(st.sets(st.integers(4, 6)))
    }
    comms = {key.pid: "db" for key in totals}
    return FileActivity(totals, names, comms, NO_CALLS, 0, draw(st.integers(0, 3)), stacks)


@given(st.lists(spans(), min_size=3, max_size=3))
def test_adding_up_in_two_steps_gives_the_same(three: list[FileActivity]) -> None:
    first, second, third = three
    assert added([added([first, second]), third]) == added(three) == added([first, added([second, third])])


def test_span_without_counting_adds_nothing() -> None:
    one = FileActivity({KEYS[0]: CALL})
    assert added([]) is added([None]) is None
    assert added([None, one, None]) == one


def test_sums_keep_the_entries_with_most_time_and_add_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_SUMMED", 2)
    every = {key: CALL._replace(total_ns=1000 * (number + 1)) for number, key in enumerate(KEYS)}
    names, comms = {DATA: "/data", OTHER: "/other"}, {7: "db", 8: "sh"}
    sums = added([FileActivity(every, names, comms), FileActivity(every, names, comms, CALL, 1)])
    assert sums
    assert [*sums.totals] == [KEYS[2], KEYS[1]]
    assert (sums.elided.calls, sums.elided.total_ns, sums.elided_rows) == (3, 50_000 + 2 * 1000, 2)
    assert (sums.names, sums.comms) == (names, comms)


def test_stacks_of_entries_that_are_only_in_the_sum_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_SUMMED", 1)
    stack = {key: IoStack(key, 3, 4) for key in KEYS[:2]}
    first = FileActivity({KEYS[0]: CALL}, stacks={stack[KEYS[0]]: StackTotals(1, 100, 50_000, 50_000)})
    both = FileActivity(
        {KEYS[0]: CALL, KEYS[1]: CALL},
        stacks={stack[KEYS[0]]: StackTotals(2, 1, 7, 6), stack[KEYS[1]]: StackTotals(1, 0, 9, 9)},
    )
    sums = added([first, both])
    assert sums
    assert sums.stacks == {stack[KEYS[0]]: StackTotals(3, 101, 50_007, 50_000)}


def test_longest_call_is_a_maximum_and_the_age_is_that_at_the_end() -> None:
    shorter = CALL._replace(max_ns=9, now_ns=5)
    sums = added([FileActivity({KEYS[0]: CALL}), FileActivity({KEYS[0]: shorter})])
    assert sums
    assert sums.totals[KEYS[0]] == FileTotals(2, 200, 100_000, 40_000, 50_000, log2.of(50_000, 50_000), 5)
    ended = added([FileActivity({KEYS[0]: shorter}), FileActivity()])
    assert ended
    assert ended.totals[KEYS[0]].now_ns == 0


def test_merged_windows_have_the_sum() -> None:
    one = FileActivity({KEYS[0]: CALL})
    earlier, middle, later = (Snapshot(0, at, files=one) for at in (0, 10, 20))
    both = merge([between(earlier, middle), between(middle, later)]).files
    assert both
    assert both.totals == {KEYS[0]: CALL.plus(CALL)}
    assert merge([between(Snapshot(0, 0), Snapshot(0, 10))] * 2).files is None


def test_unknown_files_are_named_by_their_numbers() -> None:
    activity = FileActivity({}, {DATA: "/var/lib/data"})
    assert (activity.name(DATA), activity.name(OTHER)) == ("/var/lib/data", "[inode 78 on 259:300]")
    assert DATA.device_text == "8:1"


def test_operations_have_distinct_names() -> None:
    assert len({*OPERATIONS}) == len(OPERATIONS) < 256
