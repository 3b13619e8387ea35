"""All snapshots can be rebuilt from changes, starting at any of them: the windows between them are the same."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtop.model.values.catalog import SiteKey, ThreadKey
from offtop.model.values.snapshot import NO_HOLDER, Bound, Machine, Snapshot, ThreadTotals, Waiting
from offtop.model.values.stack import FILTERED, NO_STACK
from offtop.model.values.table import integers
from offtop.model.values.wake import NO_WAKE
from offtop.model.windows.change import BEGUN_FIELDS, NOTHING, WAITING_FIELDS, Replayed, change, numbers_of, waits_of
from offtop.model.windows.history import History
from offtop.model.windows.window import Window, between
from tests.model.world import BOOK, Step, snapshots, stretches
from tests.ui.scripted import FUTEX, SHOP, STUCK, ScriptedSource


def replayed(taken: list[Snapshot]) -> list[Snapshot]:
    made = Replayed(BOOK)
    return [made.add(change(before, now)) for before, now in pairwise([NOTHING, *taken])]


def contents(window: Window) -> dict[str, object]:
    """All of a window, to compare."""
    return {
        "span": (window.taken_ns, window.at_ns, window.span_ns),
        "threads": dict(window.threads),
        "sites": dict(window.sites),
        "still": {*window.still},
        "rest": (window.lost, window.cost, window.probe, window.filters),
        "woken": (window.mode, window.storms),
        "moves": [*window.moves],
    }


def totals(snapshot: Snapshot) -> dict[ThreadKey, ThreadTotals]:
    """Totals above 0, without maxima, which belong to the last tick."""
    return {key: one._replace(max_ns=0) for key, one in snapshot.threads.items() if any(one)}


@given(stretches, st.data())
def test_windows_between_replayed_snapshots_are_the_original_ones(
    given_stretches: list[list[Step]], data: st.DataObject
) -> None:
    taken = snapshots(given_stretches)
    first = data.draw(st.integers(0, len(taken) - 1))
    again = replayed(taken[first:])
    assert [contents(between(a, b)) for a, b in pairwise(again)] == [
        contents(between(a, b)) for a, b in pairwise(taken[first:])
    ]
    assert totals(again[-1]) == totals(taken[-1])
    assert again[-1].waiting == taken[-1].waiting


@given(stretches, st.integers(0, 3), st.integers(1, 4))
def test_change_over_skipped_ticks_includes_their_moves(
    given_stretches: list[list[Step]], first: int, left_out: int
) -> None:
    taken = snapshots(given_stretches)
    first = min(first, len(taken) - 2)
    last = min(len(taken) - 1, first + left_out + 1)
    moves = [move for one in taken[first + 1 : last + 1] for move in one.moves]
    reaching_back = [move for move in moves if move.since_ns < taken[first].at_ns]
    made = Replayed(BOOK)
    a = made.add(change(NOTHING, taken[first]))
    b = made.add(change(taken[first], taken[last], reaching_back))
    assert contents(between(a, b)) == contents(between(taken[first], taken[last], reaching_back))
    assert contents(between(taken[first], taken[last], reaching_back)) == contents(
        between(taken[first], taken[last], moves)
    )


@given(stretches)
def test_change_names_the_wakes_of_what_changed_and_of_all_storms(given_stretches: list[list[Step]]) -> None:
    taken = snapshots(given_stretches)
    for before, now in pairwise([NOTHING, *taken]):
        named = {key.wake for key, totals in now.sites.items() if totals != before.sites.get(key)}
        moved = {site.wake for move in now.moves for site in move[:2]}
        assert change(before, now).wakes - {*now.storms} <= named | moved
        assert {*now.storms} - {NO_WAKE} <= change(before, now).wakes
        assert moved - {NO_WAKE} <= change(before, now).wakes
        assert change(NOTHING, now).wakes == {key.wake for key in now.sites}.union(now.storms) - {NO_WAKE}


def test_second_of_the_shop_contains_only_what_waited_in_it() -> None:
    source = ScriptedSource(SHOP, ticks=3)
    first, second = source.after(1), source.after(2)
    one = change(first, second)
    assert len(one.sites.ids) == 10
    assert one.sites.numbers[0].tolist() == [2, 400_000_000, 0, 200_000_000]
    assert len(one.waiting) == len(one.ended) == len(one.sites.evicted) == 0
    assert len(change(NOTHING, second).waiting) == 1


def test_change_is_empty_if_nothing_happened() -> None:
    one = change(Snapshot(1, 1), Snapshot(2, 2))
    assert (len(one.sites.ids), len(one.threads.ids), len(one.waiting)) == (0, 0, 0)
    made = Replayed(BOOK)
    assert dict(made.add(change(NOTHING, Snapshot(1, 1))).threads) == {}
    assert made.add(one).at_ns == 2


def test_another_epoch_starts_a_new_history() -> None:
    source = ScriptedSource(SHOP, ticks=3)
    history = History((), lambda counts, rows: np.isin(np.arange(rows), counts[counts[:, 1] == 0, 0]))
    made = Replayed(BOOK)
    assert history.add(made.add(change(NOTHING, source.after(5)), epoch=1)) is None
    kept = history.add(made.add(change(source.after(5), source.after(6)), epoch=1))
    assert kept and kept.number == 1
    assert history.add(Replayed(BOOK).add(change(NOTHING, source.after(2)), epoch=2)) is None
    assert (history.newest, history.since_start(), history.bytes_held) == (None, None, 0)
    later = history.add(source.after(3))
    assert later is None


words = st.integers(0, (1 << 64) - 1)
waits = st.builds(
    Waiting,
    site=st.builds(
        SiteKey,
        st.integers(0, 1 << 22),
        st.integers(0, 1 << 22),
        st.integers(FILTERED, 99),
        st.just(NO_STACK),
        st.just(NO_WAKE),
    ),
    switched_out_ns=st.integers(0, 1 << 60),
    from_ns=st.integers(0, 1 << 60),
    runqueue_ns=st.integers(0, 1 << 60),
    preempted=st.booleans(),
    since_ns=st.integers(0, 1 << 60),
    bound=st.sampled_from(Bound),
    state=st.integers(0, (1 << 32) - 1),
    call=st.integers(0, (1 << 31) - 1),
    arguments=st.tuples(*[words] * 6),
    user=st.integers(0, 99),
    holder=st.just(NO_HOLDER),
)


@given(waits, st.sampled_from(["in a call", "in none", "its arguments are not known"]))
def test_wait_survives_conversion_to_64_bit_numbers(one: Waiting, call: str) -> None:
    if call != "in a call":
        one = one._replace(call=-1 if call == "in none" else one.call, arguments=())
    where, how = numbers_of([one])
    assert (where.shape, how.shape) == ((1, WAITING_FIELDS), (1, BEGUN_FIELDS))
    again = waits_of(where, how)[0]
    assert again == one
    assert (type(again.bound), type(again.preempted), type(again.site)) == (Bound, bool, SiteKey)


def test_arguments_are_signed_in_transit() -> None:
    one = Waiting(SiteKey(7, 8, 3, 0), 5, 5, call=202, arguments=(FUTEX, (1 << 64) - 1, 1 << 63, (1 << 63) - 1, 0, 1))
    where, how = numbers_of([one, one._replace(arguments=())])
    assert how[0][4:10].tolist() == [FUTEX, -1, -(1 << 63), (1 << 63) - 1, 0, 1]
    assert how[1][4:10].tolist() == [0] * 6
    with pytest.raises(ValueError, match="3 is not a valid Bound"):
        how[0, 1] = 3
        waits_of(where, how)


def test_no_waits_have_no_numbers() -> None:
    assert [numbers.shape for numbers in numbers_of([])] == [(0, WAITING_FIELDS), (0, BEGUN_FIELDS)]


def test_second_of_waits_in_progress_contains_only_what_began_or_changed() -> None:
    source = ScriptedSource(STUCK, machine=Machine(2, 3_000_000, 1_000_000))
    taken = [source.after(second) for second in range(13)]
    changes = [change(a, b) for a, b in pairwise([NOTHING, *taken])]
    # connection, cp, gdb and nginx from the first; late from 4 to 8, woken at 6.5, so that it is another at 7; purge
    assert [len(one.waiting) for one in changes] == [4, 0, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0]
    assert [len(one.begun) for one in changes] == [len(one.waiting) for one in changes]
    assert [one.ended.tolist() for one in changes if len(one.ended)] == [[[800, 801]]]
    again = replayed(taken)
    assert [one.waiting for one in again] == [one.waiting for one in taken]
    assert [one.machine for one in again] == [Machine(2, n * 3_000_000, n * 1_000_000) for n in range(13)]
    connection = again[-1].waiting[ThreadKey(4242, 4268)]
    assert connection.user in changes[0].stacks  # a recording has it, though no site does
    assert (connection.arguments[0], connection.since_ns) == (FUTEX, connection.switched_out_ns - 500_000_000)


def test_wait_of_unrecorded_begin_has_an_age_of_at_least() -> None:
    first = ScriptedSource(STUCK).after(3)
    old = replace(change(NOTHING, first), begun=integers([], BEGUN_FIELDS))
    waiting = Replayed(BOOK).add(old).waiting
    assert {*waiting} == {*first.waiting}
    for key, one in waiting.items():
        was = first.waiting[key]
        assert one[:5] == was[:5]
        assert one[5:] == (0, Bound.AT_LEAST, 0, -1, (), NO_STACK, NO_HOLDER)
        assert one.letter == "?"
