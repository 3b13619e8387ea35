"""What a row is compared with: the same key, otherwise the same name; and which changes are significant."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtop.model.aggregate.baseline_rows import BaselineOnly, BaselineRow, BaselineTable, Change, Compared, summed
from offtop.model.values import histogram as log2
from offtop.model.windows.breakdown import PartTuple
from offtop.units import NS_PER_S, signed, times

SECOND = NS_PER_S
PARTS = (SECOND,) * 4
NAMES = {1: "init", 2: "java", 3: "java", 4: "java", 5: "cron"}


def waited(*ms: int) -> PartTuple:
    return len(ms), sum(ms) * 1_000_000, max(ms) * 1_000_000, log2.of(*(one * 1_000_000 for one in ms))


def was(*tables: dict[int, PartTuple], share: float = 1.0) -> BaselineTable[int]:
    return BaselineTable([SECOND] * len(tables), tables, lambda pid: BaselineOnly(NAMES[pid]), share)


def by_pid(before: BaselineTable[int], table: dict[int, PartTuple]) -> Compared:
    return before.compared(table, SECOND, lambda pid: pid, lambda pid: BaselineOnly(NAMES[pid]))


def by_name(before: BaselineTable[int], table: dict[int, PartTuple]) -> Compared:
    return before.compared(table, SECOND, lambda _: None, lambda pid: BaselineOnly(NAMES[pid]))


def test_same_pid_is_compared_with_itself() -> None:
    compared = by_pid(was({1: waited(500), 2: waited(100)}), {1: waited(700), 2: waited(100)})
    assert {pid: round(compared.change(pid, part), 3) for pid, part in ((1, 700_000_000), (2, 100_000_000))} == {
        1: 0.2,
        2: 0.0,
    }
    assert compared.gone == []


def test_restarted_process_is_compared_with_the_one_of_the_same_name() -> None:
    compared = by_pid(was({2: waited(400)}), {3: waited(500)})
    assert (compared.before[3].waiting, compared.gone) == (0.4, [])


def test_reused_pid_of_another_program_is_not_the_same() -> None:
    before = was({2: waited(400)})
    compared = before.compared({2: waited(500)}, SECOND, lambda pid: pid, lambda _: BaselineOnly("cron"))
    assert compared.before[2].waiting == 0
    assert [(gone.name, one.waiting) for gone, one in compared.gone] == [("java", 0.4)]


def test_rows_of_one_name_share_the_time_of_those_that_disappeared() -> None:
    compared = by_pid(was({2: waited(400), 3: waited(200)}), {3: waited(200), 4: waited(100), 1: waited(1)})
    assert {pid: one.waiting for pid, one in compared.before.items()} == {3: 0.2, 4: 0.4, 1: 0.0}
    compared = by_name(was({2: waited(400), 3: waited(200)}), {3: waited(200), 4: waited(100)})
    assert {pid: round(one.waiting, 3) for pid, one in compared.before.items()} == {3: 0.3, 4: 0.3}


def test_disappeared_rows_are_listed_by_name_largest_first_without_those_that_read_0() -> None:
    compared = by_pid(was({1: waited(100), 2: waited(200), 3: waited(300), 5: waited(4)}), {})
    assert [(gone.name, one.waiting) for gone, one in compared.gone] == [("java", 0.5), ("init", 0.1)]


def test_groups_stand_for_their_members() -> None:
    def pools(pid: int) -> list[tuple[str, str]]:
        return [(f"pool of {pid % 2}", "pool")]

    before = BaselineTable(
        [SECOND], [{2: waited(100), 3: waited(200), 4: waited(300)}], lambda pid: BaselineOnly(NAMES[pid]), 1, pools
    )
    compared = before.compared({-1: waited(50)}, SECOND, lambda _: "pool of 0", lambda _: "pool")
    assert compared.before[-1].waiting == 0.4
    assert [one.waiting for _, one in compared.gone] == [0.2]


tables = st.dictionaries(st.sampled_from([*NAMES]), st.integers(10, 999).map(waited), max_size=5)


@given(tables, tables, st.booleans())
def test_changes_add_up_to_the_change_of_the_whole(
    then: dict[int, PartTuple], now: dict[int, PartTuple], pids_mean_the_same: bool
) -> None:
    before = was(then)
    compared = (by_pid if pids_mean_the_same else by_name)(before, now)
    changes = sum(compared.change(pid, part[1]) for pid, part in now.items())
    changes -= sum(one.waiting for _, one in compared.gone)
    whole = sum(part[1] for part in now.values()) / SECOND - compared.whole.waiting
    assert changes == pytest.approx(whole)


def change(ms: int, *then_ms: int, p99_ms: int = 0) -> Change:
    before = by_pid(was(*({1: waited(one)} for one in then_ms)), {1: waited(ms)}).before[1]
    return Change(ms / 1000, p99_ms * 1_000_000, SECOND, before)


def test_change_is_significant_if_it_exceeds_the_variation_of_the_baseline() -> None:
    assert change(600, 300, 400, 300, 400).is_sure
    assert change(200, 300, 400, 300, 400).is_sure
    assert not change(400, 300, 400, 300, 400).is_sure
    assert not change(352, 350, 350, 350, 350).is_sure, "it reads 0.00"


def test_shorter_span_varies_more() -> None:
    before = BaselineRow(0.35, 1.0, (4 * SECOND,) * 3, (waited(1200), waited(1600), waited(1400)))
    assert before.spread(4 * SECOND) == pytest.approx(0.1)
    assert before.spread(16 * SECOND) == pytest.approx(0.1)
    assert before.spread(SECOND) == pytest.approx(0.2)


def test_too_short_baseline_makes_nothing_significant_but_new_rows_are_still_marked() -> None:
    assert not change(900, 100, 100).is_sure
    alone = Change(0.5, 1, SECOND, by_pid(was({2: waited(1)}), {1: waited(500)}).before[1])
    assert (alone.is_new, alone.is_sure, alone.text, alone.p99_text) == (True, False, "+0.50 ", "new")


def test_new_and_disappeared_rows() -> None:
    nothing: dict[int, PartTuple] = {}
    before = was(*({2: waited(100)} for _ in PARTS))
    new = Change(0.5, 1, SECOND, by_pid(before, {1: waited(500)}).before[1])
    assert (new.is_new, new.is_gone, new.is_sure, new.text, new.p99_text) == (True, False, True, "+0.50!", "new")
    ((_, one),) = by_pid(before, nothing).gone
    gone = Change(0.0, 0, SECOND, one)
    assert (gone.is_new, gone.is_gone, gone.is_sure, gone.text, gone.p99_text) == (False, True, True, "-0.10!", "gone")


def test_percentile_change_is_a_ratio_and_significant_from_one_slot_on() -> None:
    then = 100, 110, 120
    slower = change(400, *then, p99_ms=400)
    assert (slower.is_p99_sure, slower.p99_text) == (True, "x3.3")
    assert not change(200, *then, p99_ms=200).is_p99_sure
    assert change(40, *then, p99_ms=40).is_p99_sure
    assert (change(40, *then).p99_text, change(40, *then).is_p99_sure) == ("", False), "no wait ended"


def test_summed_up_rows_are_compared_with_their_sum() -> None:
    assert summed([]) is None
    assert summed([None]) is None
    rest = summed([BaselineRow(0.25), None, BaselineRow(0.5)])
    assert rest is not None and rest.waiting == 0.75
    assert not Change(5.0, 0, SECOND, rest).is_sure, "nobody looks how far that strayed"


def test_changes_as_text() -> None:
    signs = {1.844: "+1.84", -0.2: "-0.20", 0.0: "+0.00", -0.004: "+0.00", -212.6: "-212.60"}
    assert {value: signed(value) for value in signs} == signs
    factors = (0, 0.004, 0.25, 0.949, 0.96, 1, 3.14, 9.9, 12.3, 1234)
    assert [times(factor) for factor in factors] == [
        *("", "x<.01", "x0.25", "x0.95", "x1", "x1", "x3.1", "x9.9", "x12", "x1.2k"),
    ]
    assert all(len(times(factor)) <= 5 for factor in factors)
