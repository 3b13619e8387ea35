"""Waits in progress: which, how old, in which order, and the same for every past tick."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtop.model.aggregate.steps import places
from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey
from offtop.model.values.snapshot import NO_HOLDER, Bound, Holder, Snapshot, Waiting
from offtop.model.values.stack import FILTERED, KERNEL, NO_STACK, SHORT, STACK_LOST, Frame, Stack
from offtop.model.values.table import SITES, Ints, Mask, SiteKeys, integers
from offtop.model.values.wake import NO_WAKE, OFFCPU
from offtop.model.windows.breakdown import NO_SITES, Idle, Leaf, Scope
from offtop.model.windows.history import History
from offtop.model.windows.stuck import (
    LEAST_AGE_NS,
    NO_AGE,
    Age,
    PastWaits,
    by_category,
    by_place,
    by_process,
    by_thread,
    stuck,
)
from offtop.model.windows.window import between, merge

MS, S = 10**6, 10**9
NOW_NS = 1_000 * S
LOCK, POLL, SLEEP, THROTTLE, USER = 3, 4, 5, 6, 7
BOOK = Catalog()
for _id, _category in ((LOCK, "lock"), (POLL, "poll"), (SLEEP, "sleep"), (THROTTLE, "throttle")):
    BOOK.stacks[_id] = Stack((Frame(KERNEL, 0, _category),), 0, _category)
OF_SLEEPERS = partial(places, mode=OFFCPU)
NONE_IDLE = Idle()
POLL_IDLE = Idle(frozenset({"poll"}))


def wait(tid: int, age_ns: int, kernel: int = LOCK, pid: int = 7, **more: object) -> Waiting:
    switched_out_ns = NOW_NS - age_ns
    return Waiting(SiteKey(pid, tid, kernel, NO_STACK), switched_out_ns, switched_out_ns)._replace(**more)  # pyright: ignore[reportArgumentType]


def tids(some: Sequence[Waiting]) -> list[int]:
    return [one.site.tid for one in some]


def test_only_waits_of_100_ms_and_more_are_included_oldest_first() -> None:
    waits = [wait(1, 2 * S), wait(2, LEAST_AGE_NS - 1), wait(3, LEAST_AGE_NS), wait(4, 5 * S), wait(5, -3)]
    some = stuck(waits, NOW_NS, BOOK, NONE_IDLE)
    assert LEAST_AGE_NS == 100 * MS
    assert tids(some.waits) == [4, 1, 3]
    assert [some.age(row) for row in range(3)] == [Age(5 * S), Age(2 * S), Age(100 * MS)]
    assert tids(stuck(waits, NOW_NS, BOOK, NONE_IDLE, least_ns=0).waits) == [4, 1, 3, 2, 5]
    assert tids(stuck(waits, NOW_NS, BOOK, NONE_IDLE, least_ns=3 * S).waits) == [4]


def test_waits_of_one_age_are_sorted_by_process_and_thread() -> None:
    waits = [wait(9, S), wait(2, S, pid=8), wait(3, S)]
    assert tids(stuck(waits, NOW_NS, BOOK, NONE_IDLE).waits) == [3, 9, 2]


def test_age_counts_from_the_begin_even_if_that_was_not_seen() -> None:
    older = wait(1, 2 * S, since_ns=NOW_NS - 9 * S, bound=Bound.AT_MOST)
    some = stuck([wait(2, 3 * S), older], NOW_NS, BOOK, NONE_IDLE)
    assert (tids(some.waits), some.age(0)) == ([1, 2], Age(9 * S, Bound.AT_MOST))


def test_no_waits_give_nothing() -> None:
    for waits in ([], [wait(1, MS)], [wait(1, S, FILTERED)]):
        some = stuck(waits, NOW_NS, BOOK, POLL_IDLE)
        assert (some.waits, some.shares) == ((), None)
        assert some.in_scope(Scope()) == some.of(np.zeros(0, np.bool_)) == some
        assert by_thread(some) == by_process(some) == by_place(some, OF_SLEEPERS) == by_category(some) == {}


@pytest.mark.parametrize(
    ("waiting", "leaf"),
    [
        (wait(1, S), Leaf("lock")),
        (wait(1, S, POLL), Leaf("poll", True)),
        (wait(1, S, SLEEP), Leaf("sleep")),
        (wait(1, S, LOCK, preempted=True), Leaf("run-queue")),
        (wait(1, S, POLL, preempted=True), Leaf("run-queue")),
        (wait(1, S, SHORT, preempted=True), Leaf("run-queue")),
        (wait(1, S, THROTTLE, preempted=True), Leaf("throttle")),  # no CPU is missing
        (wait(1, S, LOCK, runqueue_ns=MS), Leaf("lock")),  # woken meanwhile
        (wait(1, S, SHORT), Leaf("short")),
        (wait(1, S, NO_STACK), Leaf("other")),
        (wait(1, S, STACK_LOST), Leaf("other")),
    ],
)
def test_wait_is_in_the_category_of_its_time(waiting: Waiting, leaf: Leaf) -> None:
    assert stuck([waiting], NOW_NS, BOOK, POLL_IDLE).leaf(0) == leaf
    before = Snapshot(0, NOW_NS - MS, waiting={waiting.site.thread: waiting}, catalog=BOOK)
    after = Snapshot(0, NOW_NS, waiting={waiting.site.thread: waiting}, catalog=BOOK)
    if waiting.preempted:  # all that passed of it is run queue
        started = waiting._replace(runqueue_ns=NOW_NS - MS - waiting.from_ns)
        grown = waiting._replace(runqueue_ns=NOW_NS - waiting.from_ns)
        before = Snapshot(0, NOW_NS - MS, waiting={waiting.site.thread: started}, catalog=BOOK)
        after = Snapshot(0, NOW_NS, waiting={waiting.site.thread: grown}, catalog=BOOK)
    history = History(POLL_IDLE.categories, never)
    history.add(before)
    kept = history.add(after)
    assert kept
    assert {one: part.total_ns for one, part in kept.leaves.items() if part.total_ns} == {leaf: MS}


def test_filtered_waits_are_left_out() -> None:
    assert tids(stuck([wait(1, S, FILTERED), wait(2, S)], NOW_NS, BOOK, NONE_IDLE).waits) == [2]


def test_sleep_is_idle_if_the_sleeps_of_its_thread_are_periodic() -> None:
    periodic = SiteKeys(integers([SiteKey(7, 1, SLEEP, USER)], SITES.width))
    waits = [wait(1, 4 * S, SLEEP), wait(2, 3 * S, SLEEP), wait(1, 2 * S, LOCK, pid=8), wait(1, S, LOCK)]
    some = stuck(waits, NOW_NS, BOOK, Idle((), periodic))
    assert [some.leaf(row) for row in range(4)] == [Leaf("sleep", True), Leaf("sleep"), Leaf("lock"), Leaf("lock")]
    # also when its user stack was read, which does not make it another sleep
    read = stuck([wait(1, 4 * S, SLEEP, user=99)], NOW_NS, BOOK, Idle((), periodic))
    assert read.leaf(0) == Leaf("sleep", True)
    assert stuck(waits, NOW_NS, BOOK, Idle((), NO_SITES)).leaf(0) == Leaf("sleep")


SOME = [
    wait(11, 8 * S, POLL),
    wait(12, 6 * S, LOCK, since_ns=NOW_NS - 60 * S, bound=Bound.AT_MOST),
    wait(13, 5 * S, LOCK, user=USER),
    wait(21, 4 * S, LOCK, pid=9),
    wait(22, 2 * S, POLL, pid=9, bound=Bound.AT_LEAST),
]


def test_oldest_of_each_thread_process_place_and_category() -> None:
    some = stuck(SOME, NOW_NS, BOOK, POLL_IDLE)
    minute = Age(60 * S, Bound.AT_MOST)
    assert by_thread(some) == {
        ThreadKey(7, 12): minute,
        ThreadKey(7, 11): Age(8 * S),
        ThreadKey(7, 13): Age(5 * S),
        ThreadKey(9, 21): Age(4 * S),
        ThreadKey(9, 22): Age(2 * S, Bound.AT_LEAST),
    }
    assert by_process(some) == {7: minute, 9: Age(4 * S)}
    # a user stack that was read is no part of the place: the time is counted without it
    assert by_place(some, OF_SLEEPERS) == {(LOCK, NO_STACK, NO_WAKE): minute, (POLL, NO_STACK, NO_WAKE): Age(8 * S)}
    assert by_category(some) == {"lock": minute, "poll": Age(8 * S)}
    assert [*by_category(some)] == ["lock", "poll"]  # the oldest first


def test_scope_selects_a_part_in_the_same_order() -> None:
    some = stuck(SOME, NOW_NS, BOOK, POLL_IDLE)
    assert tids(some.in_scope(Scope(idle=False)).waits) == [12, 13, 21]
    assert tids(some.in_scope(Scope("poll")).waits) == [11, 22]
    assert tids(some.in_scope(Scope(pid=9)).waits) == [21, 22]
    assert tids(some.in_scope(Scope("lock", 7, 13)).waits) == [13]
    assert by_process(some.in_scope(Scope("poll", idle=False))) == {}
    part = some.in_scope(Scope(pid=9)).in_scope(Scope("lock"))
    assert (part.leaf(0), part.age(0), part.at_ns) == (Leaf("lock"), Age(4 * S), NOW_NS)
    assert some.shares and some.shares.ids[:, 3].tolist() == [0, 0, USER, 0, 0]
    assert some.shares.total_ns.tolist() == [60 * S, 8 * S, 5 * S, 4 * S, 2 * S]


@pytest.mark.parametrize(
    ("age", "text"),
    [
        (NO_AGE, ""),
        (Age(1_840 * MS), "1.84s"),
        (Age(1_840 * MS, Bound.AT_MOST), "<=1.84s"),
        (Age(90 * S), "1.5min"),
        (Age(90 * S, Bound.AT_MOST), "<=90s"),  # in minutes it would be wider than its column
        (Age(590 * S, Bound.AT_LEAST), ">=590s"),
        (Age(12 * 60 * S, Bound.AT_MOST), "<=12min"),
        (Age(26 * 3600 * S, Bound.AT_LEAST), ">=1.1d"),
    ],
)
def test_age_shows_how_exact_it_is(age: Age, text: str) -> None:
    assert age.text == text


@given(st.integers(1, 20 * 365 * 86400 * S), st.sampled_from(Bound))
def test_age_fits_into_its_column(ns: int, bound: Bound) -> None:
    assert 0 < len(Age(ns, bound).text) <= 7


# What was stuck at earlier ticks

Steps = list[tuple[int, int, bool, int]]
"""Of one thread: ms running, ms waiting, whether its user stack is read, ms that it is ready at the end."""
steps_of_threads = st.lists(
    st.lists(
        st.tuples(st.integers(0, 300), st.integers(1, 900), st.booleans(), st.sampled_from((0, 0, 0, 150))), max_size=5
    ),
    min_size=1,
    max_size=4,
)
ticks_ms = st.lists(st.integers(20, 400), min_size=2, max_size=14)


def never(_: Ints, rows: int) -> Mask:
    return np.zeros(rows, np.bool_)


def snapshots(threads: list[Steps], ticks: list[int]) -> list[Snapshot]:
    """One after each of so many ms; a Waiting stays the same object while it does not change."""
    waits: list[tuple[Waiting, int, int, bool]] = []
    for number, steps in enumerate(threads):
        now_ns = S
        for running_ms, waiting_ms, is_read, ready_ms in steps:
            switched_out_ns = now_ns + running_ms * MS
            now_ns = switched_out_ns + waiting_ms * MS
            begun = Waiting(SiteKey(7, number + 1, LOCK, NO_STACK), switched_out_ns, switched_out_ns, state=1, call=202)
            waits.append(
                (
                    begun._replace(arguments=((1 << 64) - 1 - number, 0, 0, 0, 0, switched_out_ns)),
                    now_ns,
                    ready_ms,
                    is_read,
                )
            )
            now_ns += MS
    taken: list[Snapshot] = []
    before: dict[ThreadKey, Waiting] = {}
    at_ns = S
    for tick in ticks:
        at_ns += tick * MS
        waiting: dict[ThreadKey, Waiting] = {}
        for begun, ends_ns, ready_ms, is_read in waits:
            if begun.switched_out_ns <= at_ns < ends_ns:
                ready_ns = max(0, ready_ms * MS - (ends_ns - at_ns))
                one = begun._replace(runqueue_ns=min(ready_ns, at_ns - begun.switched_out_ns), user=USER * is_read)
                waiting[begun.site.thread] = one
        for key, one in waiting.items():
            if before.get(key) == one:
                waiting[key] = before[key]
        taken.append(Snapshot(at_ns, at_ns, waiting=waiting, catalog=BOOK))
        before = waiting
    return taken


def old(snapshot: Snapshot) -> dict[ThreadKey, Waiting]:
    return {key: one for key, one in snapshot.waiting.items() if one.age_ns(snapshot.at_ns) >= LEAST_AGE_NS}


@given(steps_of_threads, ticks_ms)
def test_waits_in_progress_at_each_earlier_tick_are_those_of_its_snapshot(
    threads: list[Steps], ticks: list[int]
) -> None:
    taken = snapshots(threads, ticks)
    past = PastWaits()
    for number, latest in enumerate(taken):
        past.add(latest)
        for snapshot in taken[: number + 1]:
            every = list(past.at(snapshot.at_ns))
            assert len({one.site.thread for one in every}) == len(every)
            found = {one.site.thread: one for one in every if one.age_ns(snapshot.at_ns) >= LEAST_AGE_NS}
            assert found == old(snapshot)


@given(steps_of_threads, ticks_ms, st.integers(0, 13))
def test_forget_drops_only_what_came_before(threads: list[Steps], ticks: list[int], first: int) -> None:
    taken = snapshots(threads, ticks)
    first = min(first, len(taken) - 1)
    past, whole = PastWaits(), PastWaits()
    for snapshot in taken:
        past.add(snapshot)
        whole.add(snapshot)
    past.forget(taken[first].at_ns)
    for snapshot in taken[first:]:
        assert list(past.at(snapshot.at_ns)) == list(whole.at(snapshot.at_ns))
    assert 0 <= past.bytes_held <= whole.bytes_held
    past.forget(taken[-1].at_ns)
    assert past.bytes_held == 0


def test_each_wait_is_stored_once_when_it_ends_and_dropped_with_its_last_tick() -> None:
    # 10 threads wait for 1 s, with 10 ticks in it; then they run
    threads: list[Steps] = [[(0, 1_000, False, 0)] for _ in range(10)]
    taken = snapshots(threads, [95] * 10 + [100, 100])
    past = PastWaits()
    held: list[int] = []
    for snapshot in taken:
        past.add(snapshot)
        held.append(past.bytes_held)
    assert held[:10] == [0] * 10
    assert held[10] == held[11] > 0
    assert held[10] < 10 * 8 * 19
    assert [len(list(past.at(snapshot.at_ns))) for snapshot in taken] == [10] * 10 + [0, 0]
    past.forget(taken[9].at_ns)
    assert past.bytes_held == held[10]
    assert len(list(past.at(taken[9].at_ns))) == 10
    past.forget(taken[10].at_ns)
    assert past.bytes_held == 0
    assert list(past.at(taken[9].at_ns)) == []


def test_waits_that_ended_young_are_not_stored() -> None:
    past = PastWaits()
    for snapshot in snapshots([[(0, 99, False, 0)] * 5], [50] * 10):
        past.add(snapshot)
    assert past.bytes_held == 0


def test_past_is_empty_before_the_first_snapshot_and_after_clear() -> None:
    past = PastWaits()
    assert list(past.at(NOW_NS)) == []
    taken = snapshots([[(0, 500, False, 0)]], [300, 300])
    past.add(taken[0])
    assert list(past.at(0)) == []
    past.add(taken[1])
    assert past.bytes_held > 0
    past.clear()
    assert (past.bytes_held, list(past.at(taken[0].at_ns))) == (0, [])
    past.add(taken[0])  # another epoch: what was in progress before has not ended in it
    assert past.bytes_held == 0
    assert len(list(past.at(taken[0].at_ns))) == 1


def test_thread_that_is_runnable_at_the_end_was_not_before_its_wakeup() -> None:
    # woken 150 ms before its end at 1.5 s: ready for 50 ms at 1.4 s, and not yet at 1.3 s
    taken = snapshots([[(0, 500, False, 150)]], [300, 100, 200])
    past = PastWaits()
    for number, snapshot in enumerate(taken):
        past.add(snapshot)
        in_progress = [
            [(one.letter, one.runqueue_ns // MS) for one in past.at(tick.at_ns)] for tick in taken[: number + 1]
        ]
        assert in_progress == [[("S", 0)], [("R", 50)], []][: number + 1]


def test_lock_holder_of_now_is_not_assumed_for_the_past() -> None:
    one = wait(1, 10 * S, holder=Holder(7, 8, "ip"))
    first, last = (Snapshot(0, NOW_NS + ns, waiting={one.site.thread: one}) for ns in (0, S))
    past = PastWaits()
    past.add(first)
    assert [found.holder.tid for found in past.at(first.at_ns)] == [8]
    past.add(last)
    assert [found.holder.tid for found in past.at(last.at_ns)] == [8]
    assert [found.holder for found in past.at(first.at_ns)] == [NO_HOLDER]


@given(steps_of_threads, ticks_ms)
def test_history_has_waits_of_live_and_past_ticks_alike(threads: list[Steps], ticks: list[int]) -> None:
    history = History(("poll",), never)
    taken = snapshots(threads, ticks)
    live: list[list[Waiting]] = []
    for snapshot in taken:
        kept = history.add(snapshot)
        if kept:
            live.append(list(history.stuck(kept).waits))
    for number, snapshot in enumerate(taken[1:], 1):
        kept = history.tick(number)
        assert kept
        some = history.stuck(kept)
        assert some.at_ns == snapshot.at_ns
        assert list(some.waits) == live[number - 1]
        assert {one.site.thread: one for one in some.waits} == old(snapshot)
        ages = [some.age(row).ns for row in range(len(some.waits))]
        assert ages == sorted(ages, reverse=True)


def test_history_that_drops_old_ticks_drops_their_waits() -> None:
    history = History((), never, max_ns=S)
    taken = snapshots([[(0, 150, False, 0)] * 40], [100] * 60)
    for snapshot in taken:
        history.add(snapshot)
    oldest, newest = history.oldest, history.newest
    assert oldest and newest
    assert newest.at_ns - oldest.at_ns < S
    assert len(history._waits._ended) <= 10  # pyright: ignore[reportPrivateUsage]
    for kept in history.last(2 * S):
        at = next(snapshot for snapshot in taken if snapshot.at_ns == kept.at_ns)
        assert {one.site.thread: one for one in history.stuck(kept).waits} == old(at)


def test_another_epoch_has_none_of_the_waits_before() -> None:
    history = History((), never)
    taken = snapshots([[(0, 5_000, False, 0)]], [300, 300, 300])
    assert history.add(taken[0]) is None
    first = history.add(taken[1])
    assert first and len(history.stuck(first).waits) == 1
    for at_ns in (10 * S, 11 * S):
        history.add(Snapshot(at_ns, at_ns, catalog=BOOK, epoch=1))
    assert history.newest and history.stuck(history.newest).waits == ()


def test_merged_tick_has_the_waits_at_its_end() -> None:
    taken = snapshots([[(0, 400, False, 0)]], [150, 150, 200])
    windows = [between(a, b) for a, b in pairwise(taken)]
    whole = merge(windows)
    assert whole.at_ns == taken[-1].at_ns
    past = PastWaits()
    for snapshot in taken:
        past.add(snapshot)
    assert list(past.at(whole.at_ns)) == []
    assert len(list(past.at(windows[0].at_ns))) == 1
