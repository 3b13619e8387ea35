"""Test chains of wakers, and storms: one waker that wakes many threads at once."""

import time
from collections.abc import Generator, Iterable

import pytest

from offtop.kernel.resolve import wakes
from offtop.model.values.snapshot import Filters
from offtop.model.values.stack import NO_STACK
from offtop.model.values.wake import (
    CHAIN,
    DEPTH,
    FIRST_WAKE,
    LOOP,
    STORM,
    THREAD,
    TIMEOUT,
    WAKE_LOST,
    WAKEUP,
    WHOLE,
    Storm,
)
from tests.kernel import wakings, watch
from tests.kernel.watch import MS, Watch
from tests.kernel.woken import TIMES, asked, has, holds, kernel, of, user, waits, wakes_of, watched

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module")
def live() -> Generator[Watch]:
    with watched() as live:
        yield live


@pytest.mark.parametrize("depth", [2, 4, 8])
def test_the_chain_of_a_relays_last_runner_is_the_relay(live: Watch, depth: int) -> None:
    with wakings.running("relay") as child:
        asked(live, child, CHAIN, depth=depth)
        child.go()
        window = live.tick()
        found = wakes_of(window, child.at["runner-4"])
        way = [child.at[f"runner-{n}"] for n in (3, 2, 1, 0)] + [child.at["main"], 0]
        every = {wake: [wake.waker, *(link.waker for link in wake.links)] for wake in found}
        tids = {wake: [one.tid for one in chain] for wake, chain in every.items()}
        # On a busy machine one may be woken again before it ran, or be preempted until its sleep is nearly over.
        expected = {wake: totals for wake, totals in found.items() if tids[wake] == way[:depth]}
        assert TIMES - 3 <= waits(expected.values()) <= waits(found.values()) <= TIMES
        assert all(tids[wake] == way[: len(tids[wake])] for wake in found)
        assert {wake.end for wake in expected} == {WHOLE if depth == 8 else DEPTH}
        for wake, chain in every.items():
            for link, waker in zip(wake.links, chain, strict=False):
                where = "wait_futex" if waker.tid != child.pid else "rest"
                if link.user != NO_STACK:  # the stack of a wait that was copied is not kept
                    assert holds(user(live, window, link.user), where)
                assert has(kernel(window, link.kernel), ["nanosleep" if where == "rest" else "futex_wait"])
        if depth == 8:
            assert {wake.links[-1].waker.kind for wake in expected} == {TIMEOUT}
            with_users = {wake: totals for wake, totals in expected.items() if all(link.user for link in wake.links)}
            assert waits(with_users.values()) >= TIMES // 2


def test_two_threads_that_wake_each_other_are_a_loop_of_constant_size(live: Watch) -> None:
    with wakings.running("pingpong", 60, 5) as child:
        known = len(asked(live, child, CHAIN, depth=8).last.catalog.wakes)
        child.go_on_alone()
        windows = [live.tick(0.1) for _ in range(5)]
        ping, pong = child.at["ping"], child.at["pong"]
        for one, other in ((ping, pong), (pong, ping)):
            (wake,) = wakes_of(windows[-1], one)
            assert (wake.waker.tid, wake.end) == (other, LOOP)
            assert [link.waker.tid for link in wake.links] == [one]
            assert {*wakes_of(windows[-2], one)} == {wake}
        assert len(live.last.catalog.wakes) - known < 20


def sum_of(storms: Iterable[Storm]) -> Storm:
    sums = Storm()
    for storm in storms:
        sums = sums.plus(storm)
    return sums


def test_100_threads_woken_23_times_by_broadcast_are_23_storms_of_100(live: Watch) -> None:
    for _ in range(4):
        with wakings.running("storm") as child:
            asked(live, child, WAKEUP)
            child.go()
            window = live.tick()
            of_wakers = {window.catalog.wake(wake).waker: storm for wake, storm in window.storms.items()}
            storm = sum_of(of_wakers.values())
            for waker in of_wakers:
                assert (waker.kind, waker.tid, waker.comm) == (THREAD, child.pid, "wakings")
                assert has(kernel(window, waker.kernel), ["futex_wake"])
            assert storm.slept_again >= storm.woken * 0.9
            assert storm.wasted_switches == 2 * storm.slept_again
            assert live.tick(0.05).storms == {}
            gaps, storms, woken, most = (child.at[name] for name in ("gaps", "storms", "woken", "most"))
            assert storms <= storm.storms <= storms + gaps
            assert woken - gaps * (STORM - 1) <= storm.woken <= woken, "fewer than STORM are no storm"
            assert storm.largest == most or gaps
        if woken == TIMES * 100 and not gaps:
            break  # the waker was never halted, and the members always had the CPU in time


def test_waking_one_thread_again_and_again_is_no_storm(live: Watch) -> None:
    with wakings.running("pipe", 800, 0) as child:
        asked(live, child, WAKEUP, min_ns=0)
        child.go()
        window = live.tick()
        assert waits(wakes_of(window, child.at["sleeper"]).values()) > 500
        assert window.storms == {}


def test_a_storm_counts_once_wherever_ticks_end(live: Watch) -> None:
    with wakings.running("storm", 40, 5) as child:
        asked(live, child, WAKEUP)
        child.go_on_alone()
        windows = [live.tick(0.011) for _ in range(40)]
        child.listen()
        windows.append(live.tick(0.05))
        gaps, storms, woken = (child.at[name] for name in ("gaps", "storms", "woken"))
    sums = sum_of(storm for window in windows for storm in window.storms.values())
    assert 30 <= storms <= sums.storms <= storms + gaps
    assert sums.woken <= woken
    assert sums.largest <= 100


def test_a_deselected_thread_is_in_no_storm(live: Watch) -> None:
    with wakings.running("storm", 3, 10) as members, wakings.running("futex") as child:
        asked(live, members, WAKEUP)  # all waits in progress are known now
        asked(live, child, WAKEUP)
        members.go()
        assert live.tick().storms == {}


def test_a_deselected_waker_has_no_old_chain(live: Watch) -> None:
    with wakings.running("futex", 60, 5) as child:
        asked(live, child, CHAIN)
        child.go_on_alone()
        assert {wake.end for wake in wakes_of(live.tick(0.1), child.at["sleeper"])} >= {WHOLE}
        live.source.set_filters(Filters(tids=(child.at["sleeper"],)))
        live.tick(0.02)
        found = wakes_of(live.tick(0.1), child.at["sleeper"])
        assert {(wake.waker.tid, wake.links) for wake in found} == {(child.at["waker"], ())}


@pytest.mark.parametrize("room", [4, 16])
def test_wakes_without_room_are_counted_as_lost_and_no_wait_is(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    watch.resize_maps(monkeypatch, dict.fromkeys(("wakers", "wakes", "objects"), room))
    with wakings.running("exit", 60, 3) as child, watch.watching(of(child), mode=CHAIN) as live:
        live.tick()
        child.go()
        window = live.tick()
        sites = watch.sites_of(window, child.pid)
        assert waits(sites.values()) == pytest.approx(61, abs=2)
        assert sites and sum(totals.total_ns for totals in sites.values()) >= 60 * 3 * MS
        lost = {key.wake: totals for key, totals in sites.items() if key.wake == WAKE_LOST}
        assert lost[WAKE_LOST].waits >= 60 - room
        assert window.lost.keys() == {"wakes"}
        assert window.lost["wakes"] >= lost[WAKE_LOST].waits


def test_old_wakes_are_evicted_before_the_catalog_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakes, "_MOST_CHAINS", 60)
    monkeypatch.setattr(wakes, "_MOST_WAKES", 60)
    with wakings.running("exit", 150, 10) as child, watch.watching(of(child), mode=CHAIN) as live:
        live.tick()
        child.go_on_alone()
        seen = set[int]()
        deadline_s = time.monotonic() + 30
        while len(seen) < 100 and time.monotonic() < deadline_s:
            window = live.tick(0.05)
            seen |= {key.wake for key in watch.sites_of(window, child.pid) if key.wake >= FIRST_WAKE}
            assert window.lost == {}
            assert len(live.last.catalog.wakes) <= 60 + FIRST_WAKE
        assert len(seen) >= 100


def test_a_chain_with_a_cleared_link_counts_as_lost(live: Watch) -> None:
    with wakings.running("pingpong", 12, 60) as child:
        asked(live, child, CHAIN, depth=8)
        child.go_on_alone()
        live.tick(0.1)
        lost = 0
        for _ in range(4):
            live.source._parts.wakes.make_room(at_once=True)  # pyright: ignore[reportPrivateUsage]
            window = live.tick(0.12)  # in which the awake one has woken the other
            assert window.lost.keys() <= {"wakes"}
            lost += window.lost.get("wakes", 0)
        assert lost > 0
        live.tick(0.15)
        assert live.tick(0.15).lost == {}, "this clears no more of them"


def test_storms_without_room_are_counted_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    watch.resize_maps(monkeypatch, {"storms_0": 1, "storms_1": 1})
    with wakings.running("storm", 5, 10) as child, watch.watching(of(child), mode=WAKEUP) as live:
        live.tick()
        child.go()
        window = live.tick()
        assert window.lost["wakes"] > 0
        ((_, storm),) = window.storms.items()
        assert 1 <= storm.storms < 5
