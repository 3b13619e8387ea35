"""Consecutive windows merge into the window over all of them, and categories partition their time."""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtop.model.aggregate.steps import places
from offtop.model.values.catalog import SiteKey, ThreadKey
from offtop.model.values.moves import Moves
from offtop.model.values.running import Running
from offtop.model.values.snapshot import (
    EXITED,
    Machine,
    Sampling,
    SiteTotals,
    Snapshot,
    ThreadTotals,
    Waiting,
)
from offtop.model.values.stack import NO_STACK
from offtop.model.values.table import NO_COUNTS, SITES, THREADS, SiteKeys, integers, of_exited
from offtop.model.values.wake import NO_WAKE, OFFCPU, Storm
from offtop.model.values.within import Calls
from offtop.model.windows.breakdown import (
    FILTERED,
    RUN_QUEUE,
    SHORT,
    Breakdown,
    Idle,
    Scope,
    break_down,
    by_category,
    by_place,
    by_process,
    by_thread,
    merged,
    shares,
    top_of_groups,
    top_of_threads,
    total,
)
from offtop.model.windows.window import Window, between, machine_over, merge, moved_only, with_maxima_of
from tests.model.world import BOOK, CATEGORIES, IDLE, PIDS, Step, snapshots, stretches

OF_SLEEPERS = partial(places, mode=OFFCPU)
EVERY_CATEGORY = (*CATEGORIES, SHORT, FILTERED)


def idle_with(periodic_tids: set[int]) -> Idle:
    return Idle(
        IDLE, SiteKeys(integers([(PIDS[tid], tid, 6, NO_STACK, NO_WAKE) for tid in periodic_tids], SITES.width))
    )


def thread_sums(window: Window) -> dict[ThreadKey, tuple[int, ...]]:
    """All but the maximum, for threads that have anything."""
    sums: dict[ThreadKey, tuple[int, ...]] = {}
    for key, totals in window.each_thread():
        assert key not in sums, "a thread has one entry"
        sums[key] = totals._replace(max_ns=0)
    return {key: totals for key, totals in sums.items() if any(totals)}


def site_sums(window: Window) -> dict[SiteKey, tuple[int, ...]]:
    sums: dict[SiteKey, tuple[int, ...]] = {}
    for key, totals in window.each_site():
        assert key not in sums, "a site has one entry"
        sums[key] = totals._replace(max_ns=0)
    return {key: totals for key, totals in sums.items() if any(totals)}


def added_up(sums: dict[ThreadKey, tuple[int, ...]] | dict[SiteKey, tuple[int, ...]]) -> list[int]:
    return [sum(column) for column in zip(*sums.values(), strict=True)]


def is_alive(key: ThreadKey, taken: list[Snapshot]) -> bool:
    """Whether it was never evicted: then all its time is under its own key."""
    there = [key in one.threads or key in one.waiting for one in taken]
    return not any(was and not now for was, now in pairwise(there))


@given(stretches)
def test_consecutive_windows_merge_into_the_window_over_all_of_them(given_stretches: list[list[Step]]) -> None:
    taken = snapshots(given_stretches)
    moves = [move for one in taken[1:] for move in one.moves]
    whole, parts = between(taken[0], taken[-1], moves), merge([between(a, b) for a, b in pairwise(taken)])
    assert parts.span_ns == whole.span_ns
    assert added_up(thread_sums(parts)) == added_up(thread_sums(whole))
    assert added_up(site_sums(parts)) == added_up(site_sums(whole))
    assert {wake: one[:3] for wake, one in parts.storms.items()} == {
        wake: one[:3] for wake, one in whole.storms.items()
    }
    assert all(parts.storms[wake].largest >= one.largest for wake, one in whole.storms.items())
    assert parts.mode == whole.mode
    alive = {ThreadKey(pid, tid) for tid, pid in PIDS.items() if is_alive(ThreadKey(pid, tid), taken)}
    for key in alive:
        assert thread_sums(parts).get(key) == thread_sums(whole).get(key)
    for key in site_sums(parts).keys() | site_sums(whole).keys():
        if key.thread in alive:
            assert site_sums(parts).get(key) == site_sums(whole).get(key)


@given(stretches)
def test_maximum_merges_by_maximum(given_stretches: list[list[Step]]) -> None:
    taken = snapshots(given_stretches)
    windows = [between(a, b) for a, b in pairwise(taken)]
    for key, totals in merge(windows).threads.items():
        assert totals.max_ns == max(window.threads[key].max_ns for window in windows if key in window.threads)


@given(stretches, st.sets(st.integers(1, 8)))
def test_sum_over_categories_is_the_sum_over_threads(
    given_stretches: list[list[Step]], periodic_tids: set[int]
) -> None:
    idle = idle_with(periodic_tids)
    taken = snapshots(given_stretches)
    windows = [between(a, b) for a, b in pairwise(taken)]
    for window in [*windows, merge(windows)]:
        offcpu_ns = sum(totals.offcpu_ns for _, totals in window.each_thread())
        waits = sum(totals.waits for _, totals in window.each_thread())
        made = break_down(window, idle)
        whole = total(made.categories.values())
        assert whole.total_ns == offcpu_ns
        filtered = sum(totals.filtered_ns > 0 for totals in window.threads.values())
        assert whole.waits == waits if not filtered else whole.waits <= waits
    moves = Moves.all(window.moves for window in windows).after(taken[0].at_ns)
    parts = [*windows, moved_only(moves, windows[-1])]
    together, over_all = merged([break_down(window, idle) for window in parts]), break_down(merge(windows), idle)
    assert sums_by_category(together) == sums_by_category(over_all)


def sums_by_category(made: Breakdown) -> dict[str, int]:
    return {category: part.total_ns for category, part in by_category(made).items() if part.total_ns}


@given(stretches, st.booleans())
def test_processes_and_threads_add_up_to_their_category(given_stretches: list[list[Step]], idle_shown: bool) -> None:
    idle = idle_with({1, 2, 3})
    taken = snapshots(given_stretches)
    window = merge([between(a, b) for a, b in pairwise(taken)])
    made = break_down(window, idle)
    for category in ("", *EVERY_CATEGORY):
        scope = Scope(category, idle=idle_shown)
        shown = by_category(made, idle_shown)
        every = {name: part for name, part in shown.items() if name != FILTERED} if category == "" else shown
        expected = total(part for name, part in every.items() if category in ("", name))
        assert total(by_process(made, scope).values()) == expected
        assert total(by_thread(shares(window, idle), scope).values()) == expected
        for pid, part in by_process(made, scope).items():
            assert total(by_thread(shares(window, idle), scope._replace(pid=pid)).values()) == part
        if category not in ("", SHORT, FILTERED, RUN_QUEUE):
            assert total(by_place(shares(window, idle), scope, OF_SLEEPERS).values()) == expected
    for key, totals in window.each_thread():
        own = by_thread(shares(window, idle), Scope(pid=key.pid)).get(key, (0, 0, 0, 0))
        assert own[1] == totals.offcpu_ns - totals.filtered_ns


LOCK, THROTTLE, POLL = (CATEGORIES.index(name) + 3 for name in ("lock", "throttle", "poll"))


def one_window(*entries: tuple[int, SiteTotals]) -> Window:
    """A second of thread 1, by kernel stack."""
    sites = {SiteKey(11, 1, kernel, NO_STACK): totals for kernel, totals in entries}
    offcpu_ns = sum(totals.total_ns for totals in sites.values())
    runqueue_ns = sum(totals.runqueue_ns for totals in sites.values())
    thread = ThreadTotals(len(sites), offcpu_ns, runqueue_ns)
    return Window(0, 0, 10**9, threads={ThreadKey(11, 1): thread}, sites=sites, catalog=BOOK)


def test_wait_of_10_with_3_runnable_is_7_of_lock_and_3_of_run_queue() -> None:
    shown = by_category(break_down(one_window((LOCK, SiteTotals(1, 10, 3, 10, 1))), Idle()))
    assert (shown["lock"].total_ns, shown["lock"].waits) == (7, 1)
    assert (shown["run-queue"].total_ns, shown["run-queue"].waits) == (3, 0)


def test_thread_that_was_only_runnable_waits_in_run_queue() -> None:
    shown = by_category(break_down(one_window((LOCK, SiteTotals(4, 40, 40, 12, 4))), Idle()))
    assert list(shown) == ["run-queue"]
    assert shown["run-queue"] == (4, 40, 12, 4)


def test_wait_of_which_only_the_runnable_end_is_in_the_window_counts_where_it_was_blocked() -> None:
    shown = by_category(break_down(one_window((LOCK, SiteTotals(1, 40, 40, 5000, 1))), Idle()))
    assert shown["lock"] == (1, 0, 5000, 1)
    assert (shown["run-queue"].total_ns, shown["run-queue"].waits, shown["run-queue"].max_ns) == (40, 0, 0)


def test_throttled_thread_keeps_all_of_its_time_in_throttle() -> None:
    shown = by_category(break_down(one_window((THROTTLE, SiteTotals(2, 90, 90, 50, 2))), Idle()))
    assert shown == {"throttle": (2, 90, 50, 2)}


def test_filtered_waits_have_no_run_queue_time() -> None:
    thread = ThreadTotals(3, 100, 60, short_waits=1, short_ns=20, short_runqueue_ns=15, filtered_ns=80)
    window = Window(0, 0, 10**9, threads={ThreadKey(11, 1): thread._replace(filtered_runqueue_ns=45)}, catalog=BOOK)
    made = break_down(window, Idle())
    assert {name: part.total_ns for name, part in by_category(made).items()} == {
        SHORT: 5,
        RUN_QUEUE: 15,
        FILTERED: 80,
    }
    assert by_category(made, filtered_shown=False).keys() == {SHORT, RUN_QUEUE}


def test_idle_time_is_left_out_on_request_but_not_its_run_queue_part() -> None:
    made = break_down(one_window((POLL, SiteTotals(1, 10, 3, 10, 1)), (LOCK, SiteTotals(1, 5, 0, 5, 1))), Idle(IDLE))
    assert {name: part.total_ns for name, part in by_category(made, idle_shown=False).items()} == {
        "run-queue": 3,
        "lock": 5,
    }
    assert by_category(made, idle_shown=True)["poll"].total_ns == 7


def test_sleep_of_12_s_has_one_second_in_each_tick_and_12_s_in_total() -> None:
    thread, site = ThreadKey(11, 1), SiteKey(11, 1, 6, NO_STACK)
    second = 10**9
    waiting = Waiting(site, 0, 0)
    taken = [Snapshot(0, n * second, waiting={thread: waiting}, catalog=BOOK) for n in range(12)]
    done = SiteTotals(1, 12 * second, 0, 12 * second, 1)
    taken.append(
        Snapshot(
            0,
            12 * second,
            {thread: ThreadTotals(1, 12 * second, max_ns=12 * second, histogram=1)},
            {site: done},
            catalog=BOOK,
        )
    )
    windows = [between(a, b) for a, b in pairwise(taken)]
    assert [dict(window.each_site())[site].total_ns for window in windows] == [second] * 12
    assert [dict(window.each_site())[site].waits for window in windows] == [0] * 11 + [1]
    assert dict(merge(windows).each_site())[site] == done


def test_window_without_waits_is_empty() -> None:
    empty = between(Snapshot(0, 0), Snapshot(5, 10))
    assert (empty.threads, empty.sites, empty.still, empty.lost, empty.span_ns) == ({}, {}, (), {}, 10)
    assert break_down(empty, Idle()) == Breakdown(10)
    assert merge([empty, empty]).span_ns == 20
    assert merge([empty]) is empty
    assert by_thread(shares(empty, Idle()), Scope()) == {}
    assert by_place(shares(empty, Idle()), Scope(), OF_SLEEPERS) == {}


def test_lost_counts_are_those_of_the_window() -> None:
    first, second, third = (Snapshot(0, n, lost=lost) for n, lost in enumerate([{}, {"sites": 3}, {"sites": 3}]))
    assert between(first, second).lost == {"sites": 3}
    assert between(second, third).lost == {}
    assert merge([between(first, second), between(second, third)]).lost == {"sites": 3}


def test_place_of_a_process_is_where_its_threads_wait_most_together() -> None:
    pipe, lock = CATEGORIES.index("other") + 3, LOCK
    sites = {
        SiteKey(11, 1, pipe, 20): SiteTotals(0, 900),
        SiteKey(11, 2, lock, 21): SiteTotals(1, 400, 0, 400, 1),
        SiteKey(11, 3, lock, 22): SiteTotals(1, 450, 0, 450, 1),
        SiteKey(11, 3, lock, NO_STACK): SiteTotals(0, 500),
    }
    made = break_down(Window(0, 0, 1000, sites=sites, catalog=BOOK), Idle())
    assert top_of_groups(made, Scope(), {11: "a", 12: "b"}) == {"a": SiteKey(11, 3, lock, 22)}
    assert top_of_groups(made, Scope("other"), {11: "a"}) == {"a": SiteKey(11, 1, pipe, 20)}
    window = Window(0, 0, 1000, sites=sites, catalog=BOOK)
    both = {ThreadKey(11, 1), ThreadKey(11, 3)}
    assert top_of_threads(shares(window, Idle()), Scope(), both) == {
        ThreadKey(11, 1): SiteKey(11, 1, pipe, 20),
        ThreadKey(11, 3): SiteKey(11, 3, lock, 22),
    }


def waits_of_threads(running: Running[ThreadKey, ThreadTotals], longest_ns: dict[int, int]) -> Snapshot:
    """Return the snapshot of a tick in which each thread had a wait of that length."""
    running.begin_tick()
    numbers = integers([(1, ns, *(0,) * (THREADS.numbers - 3), ns) for ns in longest_ns.values()], THREADS.numbers)
    running.add(integers([(7, tid) for tid in longest_ns], 2), numbers, NO_COUNTS, 1)
    return Snapshot(0, 1, running.frozen())


@pytest.mark.parametrize("as_dict", [False, True])
def test_maxima_of_a_tick_that_is_left_out_are_in_the_next_one(as_dict: bool) -> None:
    running = Running(THREADS)
    taken = [waits_of_threads(running, longest_ns) for longest_ns in ({1: 10}, {1: 50, 2: 90, 3: 5}, {1: 20, 3: 8})]
    evicted = integers([(7, 2)], 2)
    running.move(evicted, of_exited(evicted))
    taken.append(waits_of_threads(running, {4: 3}))
    if as_dict:
        taken = [replace(one, threads=dict(one.threads)) for one in taken]
    first, *left_out, last = taken
    both = with_maxima_of(with_maxima_of(*left_out), last)
    expected = {ThreadKey(7, 1): 50, ThreadKey(7, 3): 8, EXITED: 90, ThreadKey(7, 4): 3}
    assert {key: totals.max_ns for key, totals in both.threads.items()} == expected
    assert {key: totals.max_ns for key, totals in between(first, both).threads.items()} == expected
    assert thread_sums(between(first, both)) == thread_sums(between(first, last))


def test_maxima_that_are_not_of_waits_are_in_the_next_tick_too() -> None:
    storms = {9: Storm(1, 30, 0, 30)}
    left_out = Snapshot(0, 1, storms=storms, calls=Calls(max_ns=7), sampling=Sampling(3, longest_ns=5))
    last = Snapshot(0, 2, storms={9: Storm(1, 30), 8: Storm(1, 4, 0, 4)}, calls=Calls(max_ns=2), sampling=Sampling(4))
    both = with_maxima_of(left_out, last)
    assert both.storms == {9: Storm(1, 30, 0, 30), 8: Storm(1, 4, 0, 4)}
    assert (both.calls, both.sampling) == (Calls(max_ns=7), Sampling(4, longest_ns=5))
    assert with_maxima_of(replace(last, sampling=None), left_out).sampling == left_out.sampling


def test_machine_time_is_known_only_if_each_window_has_it() -> None:
    def window(machine: Machine) -> Window:
        return replace(between(Snapshot(0, 0), Snapshot(1_000, 1_000)), machine=machine)

    known, more, unknown = (window(one) for one in (Machine(2, 30, 10), Machine(4, 5, 7), Machine(0, 0, 0)))
    assert machine_over([known]) == Machine(2, 30, 10)
    assert machine_over([known, more]) == Machine(4, 35, 17)  # a CPU came
    for windows in ([known, unknown], [unknown, known], [known, unknown, more], [unknown]):
        assert machine_over(windows) == merge(windows).machine == Machine()
