"""Counters never fall, and programs have names only within the limit of series."""

from hypothesis import given
from hypothesis import strategies as st

from offtop.agent.totals import KEEP_NAME_NS, OTHER, Part, Program, ProgramTotals, Totals
from offtop.units import NS_PER_S

LOCK, DISK, GIL = Part("lock"), Part("disk-read"), Part(why="gil")


def program(name: str) -> Program:
    return Program(name, "a.service")


def shown(totals: ProgramTotals) -> dict[tuple[Program, Part], int]:
    return {(one, part): ns for one, part, ns in totals}


def test_a_counter_that_is_corrected_downwards_stays_until_it_has_caught_up() -> None:
    totals = Totals[str]()
    assert ([*totals], totals["a"]) == ([], 0)
    seen: list[int] = []
    for more in (5, -3, 2, 4):
        totals.add("a", more)
        seen.append(totals["a"])
    assert seen == [5, 5, 5, 8]


def test_all_programs_have_names_while_there_is_room() -> None:
    totals = ProgramTotals(100)
    totals.add({program("one"): {LOCK: 5, GIL: 5}, program("two"): {DISK: 1}}, NS_PER_S)
    totals.add({program("one"): {LOCK: 2}}, 2 * NS_PER_S)
    assert shown(totals) == {
        (program("one"), LOCK): 7,
        (program("one"), GIL): 5,
        (program("two"), DISK): 1,
    }
    assert (totals.series, totals.folded) == (3, set())


def test_thousands_of_short_lived_programs_leave_names_for_one_with_more_time() -> None:
    totals = ProgramTotals(10)
    totals.add({program(f"job{number}"): {LOCK: 10} for number in range(1000)}, NS_PER_S)
    assert totals.series == 6  # half of the room, and one more
    assert len(totals.folded) == 994
    totals.add({program("mysqld"): {LOCK: 50, DISK: 50}}, 2 * NS_PER_S)
    found = shown(totals)
    assert (found[program("mysqld"), LOCK], found[program("mysqld"), DISK]) == (50, 50)
    assert found[OTHER, LOCK] == 9940


def test_a_name_stays_for_an_hour_and_goes_to_a_program_that_needs_it_then() -> None:
    totals = ProgramTotals(4)
    totals.add({program(f"old{number}"): {LOCK: 100 - number} for number in range(4)}, 0)
    assert totals.series == 3
    totals.add({program("big"): {LOCK: 1000}}, NS_PER_S)
    assert (program("big"), LOCK) in shown(totals)
    later_ns = KEEP_NAME_NS - NS_PER_S
    totals.add({program("new"): {LOCK: 5000}}, later_ns)
    assert shown(totals)[OTHER, LOCK] == 97 + 5000
    totals.add({program("new"): {LOCK: 5000}}, later_ns + 10 * NS_PER_S)
    found = shown(totals)
    assert found[program("new"), LOCK] == 5000  # begins at 0, which is a reset to Prometheus
    assert found[OTHER, LOCK] == 97 + 5000  # stays as it was
    assert (program("old2"), LOCK) not in found  # the lightest one has gone


def test_a_named_program_without_room_for_another_category_counts_that_as_other() -> None:
    totals = ProgramTotals(2)
    totals.add({program("one"): {LOCK: 1, DISK: 2}}, NS_PER_S)
    totals.add({program("one"): {LOCK: 1, DISK: 2, GIL: 3}}, 2 * NS_PER_S)
    assert shown(totals) == {(program("one"), LOCK): 2, (program("one"), DISK): 4, (OTHER, GIL): 3}
    assert totals.folded == {program("one")}


def test_a_program_that_is_called_other_never_takes_the_name() -> None:
    totals = ProgramTotals(2)
    totals.add({OTHER: {LOCK: 1}}, NS_PER_S)
    assert (shown(totals), totals.series) == ({(OTHER, LOCK): 1}, 0)


TICKS = st.lists(
    st.dictionaries(
        st.sampled_from([program(f"p{number}") for number in range(9)]),
        st.dictionaries(st.sampled_from([LOCK, DISK, GIL]), st.integers(1, 1000), min_size=1),
    ),
    max_size=20,
)


@given(TICKS, st.integers(1, 8))
def test_no_time_is_lost_no_series_falls_and_their_number_is_bounded(
    ticks: list[dict[Program, dict[Part, int]]], most: int
) -> None:
    totals, before = ProgramTotals(most), dict[tuple[Program, Part], int]()
    for number, times in enumerate(ticks):
        totals.add(times, number * NS_PER_S)
        found = shown(totals)
        assert len([one for one, _ in found if one != OTHER]) == totals.series <= most
        assert all(found[key] >= ns for key, ns in before.items())  # within an hour no name goes
        before = found
    assert sum(before.values()) == sum(ns for times in ticks for parts in times.values() for ns in parts.values())
