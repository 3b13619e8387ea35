"""What a row is compared with: the same key, else the same name; and what is more than chance."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtop.model import histogram as log2
from offtop.model.before import Before, Change, Compared, Gone, Was, summed
from offtop.model.cut import Added
from offtop.units import NS_PER_S, signed, times

SECOND = NS_PER_S
PARTS = (SECOND,) * 4
NAMES = {1: "init", 2: "java", 3: "java", 4: "java", 5: "cron"}


def waited(*ms: int) -> Added:
    return len(ms), sum(ms) * 1_000_000, max(ms) * 1_000_000, log2.of(*(one * 1_000_000 for one in ms))


def was(*tables: dict[int, Added], share: float = 1.0) -> Was[int]:
    return Was([SECOND] * len(tables), tables, lambda pid: Gone(NAMES[pid]), share)


def by_pid(before: Was[int], table: dict[int, Added]) -> Compared:
    return before.compared(table, SECOND, lambda pid: pid, lambda pid: Gone(NAMES[pid]))


def by_name(before: Was[int], table: dict[int, Added]) -> Compared:
    return before.compared(table, SECOND, lambda _: None, lambda pid: Gone(NAMES[pid]))


def test_the_same_pid_is_compared_with_itself() -> None:
    compared = by_pid(was({1: waited(500), 2: waited(100)}), {1: waited(700), 2: waited(100)})
    assert {pid: round(compared.change(pid, part), 3) for pid, part in ((1, 700_000_000), (2, 100_000_000))} == {
        1: 0.2,
        2: 0.0,
    }
    assert compared.gone == []


def test_who_was_started_anew_is_compared_with_who_had_its_name() -> None:
    compared = by_pid(was({2: waited(400)}), {3: waited(500)})
    assert (compared.before[3].waiting, compared.gone) == (0.4, [])


def test_a_pid_that_is_another_program_s_now_is_not_the_same() -> None:
    before = was({2: waited(400)})
    compared = before.compared({2: waited(500)}, SECOND, lambda pid: pid, lambda _: Gone("cron"))
    assert compared.before[2].waiting == 0
    assert [(gone.name, one.waiting) for gone, one in compared.gone] == [("java", 0.4)]


def test_several_of_a_name_share_what_those_had_that_are_no_more() -> None:
    compared = by_pid(was({2: waited(400), 3: waited(200)}), {3: waited(200), 4: waited(100), 1: waited(1)})
    assert {pid: one.waiting for pid, one in compared.before.items()} == {3: 0.2, 4: 0.4, 1: 0.0}
    compared = by_name(was({2: waited(400), 3: waited(200)}), {3: waited(200), 4: waited(100)})
    assert {pid: round(one.waiting, 3) for pid, one in compared.before.items()} == {3: 0.3, 4: 0.3}


def test_what_is_no_more_is_told_by_its_name_the_largest_first_and_what_reads_0_is_not() -> None:
    compared = by_pid(was({1: waited(100), 2: waited(200), 3: waited(300), 5: waited(4)}), {})
    assert [(gone.name, one.waiting) for gone, one in compared.gone] == [("java", 0.5), ("init", 0.1)]


def test_groups_stand_for_their_members() -> None:
    def pools(pid: int) -> list[tuple[str, str]]:
        return [(f"pool of {pid % 2}", "pool")]

    before = Was([SECOND], [{2: waited(100), 3: waited(200), 4: waited(300)}], lambda pid: Gone(NAMES[pid]), 1, pools)
    compared = before.compared({-1: waited(50)}, SECOND, lambda _: "pool of 0", lambda _: "pool")
    assert compared.before[-1].waiting == 0.4
    assert [one.waiting for _, one in compared.gone] == [0.2]


tables = st.dictionaries(st.sampled_from([*NAMES]), st.integers(10, 999).map(waited), max_size=5)


@given(tables, tables, st.booleans())
def test_all_changes_together_are_the_change_of_the_whole(
    then: dict[int, Added], now: dict[int, Added], pids_mean_the_same: bool
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


def test_a_change_is_sure_where_it_is_more_than_the_baseline_strayed() -> None:
    assert change(600, 300, 400, 300, 400).is_sure
    assert change(200, 300, 400, 300, 400).is_sure
    assert not change(400, 300, 400, 300, 400).is_sure
    assert not change(352, 350, 350, 350, 350).is_sure, "it reads 0.00"


def test_a_shorter_window_strays_more() -> None:
    before = Before(0.35, 1.0, (4 * SECOND,) * 3, (waited(1200), waited(1600), waited(1400)))
    assert before.spread(4 * SECOND) == pytest.approx(0.1)
    assert before.spread(16 * SECOND) == pytest.approx(0.1)
    assert before.spread(SECOND) == pytest.approx(0.2)


def test_of_too_short_a_baseline_nothing_is_sure_and_what_is_new_is_still_told() -> None:
    assert not change(900, 100, 100).is_sure
    alone = Change(0.5, 1, SECOND, by_pid(was({2: waited(1)}), {1: waited(500)}).before[1])
    assert (alone.is_new, alone.is_sure, alone.text, alone.p99_text) == (True, False, "+0.50 ", "new")


def test_what_is_new_and_what_is_gone() -> None:
    nothing: dict[int, Added] = {}
    before = was(*({2: waited(100)} for _ in PARTS))
    new = Change(0.5, 1, SECOND, by_pid(before, {1: waited(500)}).before[1])
    assert (new.is_new, new.is_gone, new.is_sure, new.text, new.p99_text) == (True, False, True, "+0.50!", "new")
    ((_, one),) = by_pid(before, nothing).gone
    gone = Change(0.0, 0, SECOND, one)
    assert (gone.is_new, gone.is_gone, gone.is_sure, gone.text, gone.p99_text) == (False, True, True, "-0.10!", "gone")


def test_a_percentile_is_compared_by_how_many_times_it_is_and_sure_by_a_slot() -> None:
    then = 100, 110, 120
    slower = change(400, *then, p99_ms=400)
    assert (slower.is_p99_sure, slower.p99_text) == (True, "x3.3")
    assert not change(200, *then, p99_ms=200).is_p99_sure
    assert change(40, *then, p99_ms=40).is_p99_sure
    assert (change(40, *then).p99_text, change(40, *then).is_p99_sure) == ("", False), "no wait ended"


def test_rows_that_are_summed_up_are_compared_with_the_sum() -> None:
    assert summed([]) is None
    assert summed([None]) is None
    rest = summed([Before(0.25), None, Before(0.5)])
    assert rest is not None and rest.waiting == 0.75
    assert not Change(5.0, 0, SECOND, rest).is_sure, "nobody looks how far that strayed"


def test_changes_in_words() -> None:
    signs = {1.844: "+1.84", -0.2: "-0.20", 0.0: "+0.00", -0.004: "+0.00", -212.6: "-212.60"}
    assert {value: signed(value) for value in signs} == signs
    factors = (0, 0.004, 0.25, 0.949, 0.96, 1, 3.14, 9.9, 12.3, 1234)
    assert [times(factor) for factor in factors] == [
        *("", "x<.01", "x0.25", "x0.95", "x1", "x1", "x3.1", "x9.9", "x12", "x1.2k"),
    ]
    assert all(len(times(factor)) <= 5 for factor in factors)
