"""Test that the ledger evicts what no window refers to any more, and nothing else."""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from offtop.kernel.accounting.ledger import Ledger
from offtop.kernel.accounting.tick_records import OffCpuTask, SiteDeltas
from offtop.kernel.bpf import layout
from offtop.kernel.bpf.layout import ThreadRecord
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey
from offtop.model.values.running import Running
from offtop.model.values.snapshot import EXITED, Move, SiteTotals, Snapshot
from offtop.model.values.stack import FILTERED, FIRST_STACK, NO_STACK, SHORT, Frame, Stack
from offtop.model.values.table import SITES, integers, nonzero_lanes
from offtop.model.values.wake import FIRST_WAKE, NO_OBJECT, Link, Object, Storm, Wake, Waker
from offtop.model.windows.window import between
from tests.kernel.accounting.simulated_kernel import (
    MIN_NS,
    NOTHING,
    TICK_NS,
    Wait,
    primed,
    record_of,
    site_records,
    snapshot,
)


def test_unused_stacks_leave_the_catalog() -> None:
    key = ThreadKey(7, 100)
    wait = Wait(switched_out_ns=5_000, switched_in_ns=8_000, ready_ns=8_000, preempted=False, kernel=3, user=13)
    record = record_of([wait], 0, TICK_NS)
    assert record
    ledger = Ledger(0)
    ledger.catalog.stacks.update({3: Stack(()), 13: Stack(()), 14: Stack(())})
    ledger.tick(10_000, MIN_NS, [(key, record)], SiteDeltas.of(site_records(key, [wait], 0, TICK_NS)), [])
    assert ledger.age(keep_ns=50_000) is None
    for at_ns in range(60_000, 60_000 + 3 * 60_000, 60_000):
        ledger.tick(at_ns, MIN_NS, [], NOTHING, [])
        ledger.age(keep_ns=50_000)
    assert set(ledger.sites) == {SiteKey(0, 0, 3, NO_STACK)}, "a live thread's old site gives up its user stack"
    assert 3 in ledger.catalog.stacks and not {13, 14} & set(ledger.catalog.stacks)


def test_wakes_and_their_stacks_leave_the_catalog_with_their_last_user() -> None:
    key = ThreadKey(7, 100)
    wait = Wait(
        switched_out_ns=5_000, switched_in_ns=8_000, ready_ns=8_000, preempted=False, kernel=FIRST_STACK + 1, user=0
    )
    record = record_of([wait], 0, TICK_NS)
    assert record
    ledger = Ledger(0)
    of_wait, of_storm = wait.wake, wait.wake + 1
    ledger.catalog.stacks.update({FIRST_STACK + n: Stack(()) for n in range(1, 4)})
    ledger.catalog.wakes[of_wait] = Wake(Waker(kernel=FIRST_STACK + 2))
    ledger.catalog.wakes[of_storm] = Wake(Waker(), NO_OBJECT, (Link(FIRST_STACK + 3, NO_STACK, Waker()),))
    ended = SiteDeltas.of(site_records(key, [wait], 0, TICK_NS))
    ledger.tick(10_000, MIN_NS, [(key, record)], ended, [], storms={of_storm: Storm(1, 8, 0, 8)})
    kept: list[tuple[set[int], set[int]]] = []
    for at_ns in (60_000, 120_000, 180_000):
        ledger.tick(at_ns, MIN_NS, [], NOTHING, [])
        dropped = ledger.age(keep_ns=45_000)
        assert dropped
        kept.append(({one for one in ledger.catalog.wakes if one >= FIRST_WAKE}, dropped.wakes))
    assert kept[-1][0] == set()
    assert {wake for _, gone in kept for wake in gone} == {of_wait, of_storm}
    assert ledger.storms == {}
    assert not {FIRST_STACK + 2, FIRST_STACK + 3} & ledger.catalog.stacks.keys()
    assert ledger.catalog.wakes.keys() == Catalog().wakes.keys(), "reserved ones stay"


def test_the_object_of_a_wait_in_progress_stays_in_the_catalog() -> None:
    key, stack, on = ThreadKey(7, 100), FIRST_STACK, FIRST_WAKE + 7
    wait = Wait(switched_out_ns=9_500, switched_in_ns=10**9, ready_ns=10**9, preempted=False, kernel=stack, user=0)
    record = record_of([wait], 0, TICK_NS)
    assert record
    ledger = Ledger(0)
    ledger.catalog.stacks[stack], ledger.catalog.wakes[on] = Stack(()), Wake(object=Object("pipe", "pipe:[7]"))
    ledger.tick(10_000, MIN_NS, [(key, record)], NOTHING, [])
    assert ledger.waiting[key].site == SiteKey(*key, SHORT, NO_STACK), "the site is unknown so far"
    ledger.tick(20_000, MIN_NS, [], NOTHING, [OffCpuTask(key, 9_500, False, 0, stack, wake=on)])
    site = SiteKey(*key, stack, NO_STACK, on)
    for at_ns in (60_000, 120_000, 180_000):
        ledger.tick(at_ns, MIN_NS, [], NOTHING, [])
        assert (ledger.waiting[key].site, ledger.moves) == (site, [])
        dropped = ledger.age(keep_ns=45_000)
        assert dropped and not dropped.wakes
    assert ledger.drop_wakes(0) == set()
    ledger.tick(190_000, MIN_NS, [], NOTHING, [OffCpuTask(key, 9_500, False, 0, stack, wake=on + 1)])
    assert ledger.moves == [Move(site, site._replace(wake=on + 1), 10_000, 180_000)], "it is on another object by now"
    ledger.tick(200_000, MIN_NS, [], NOTHING, [], max_ns=1)
    assert ledger.waiting[key].site == SiteKey(*key, FILTERED, NO_STACK)


def test_the_least_recently_used_user_stacks_are_evicted_and_no_total_changes() -> None:
    key, ledger, first = ThreadKey(7, 100), Ledger(0), 1_000
    ledger.catalog.stacks[FIRST_STACK] = Stack(())
    snapshots, dropped = list[Snapshot](), set[int]()
    for tick in range(1, 31):
        users = first, *range(first + 3 * tick, first + 3 * tick + 3)
        ledger.catalog.stacks.update((user, Stack((Frame("/bin/it", user),))) for user in users)
        ended = [(SiteKey(*key, FIRST_STACK, user), SiteTotals(1, 2_000, 0, 2_000, log2.of(2_000))) for user in users]
        silent = ThreadRecord._make([0] * 30 + [bytes(layout.HISTOGRAM_BYTES)])
        ledger.tick(tick * TICK_NS, MIN_NS, [(key, silent)], SiteDeltas.of(ended), [])
        kept = {stack for stack in ledger.catalog.stacks if stack >= first}
        now_dropped = ledger.drop_stacks(kept, 8)
        assert len(kept - now_dropped) == min(8, 1 + 3 * tick)
        dropped |= now_dropped
        snapshots.append(snapshot(ledger))
    assert first not in dropped, "a stack in use stays"
    assert len(dropped) == 1 + 3 * 30 - 8
    windows = [between(a, b) for a, b in pairwise(snapshots)]
    assert [sum(one.total_ns for one in window.sites.values()) for window in windows] == [4 * 2_000] * 29
    assert sum(one.waits for one in ledger.sites.values()) == 4 * 30
    users_of_old = {site.user for site in windows[0].sites}
    assert {ledger.catalog.stack(user).frames[0].file for user in users_of_old} == {"/bin/it", "[dropped]"}
    assert ledger.catalog.stack(NO_STACK).frames == ()
    ledger.age(keep_ns=1)
    assert ledger.drop_stacks(frozenset(), 0) == set()


def test_user_stacks_of_a_wait_in_progress_or_a_wake_are_not_evicted() -> None:
    key, ledger = ThreadKey(7, 100), primed()
    of_wait, of_waker, of_link, of_none = range(1_000, 1_004)
    ledger.catalog.stacks.update((user, Stack(())) for user in range(1_000, 1_004))
    ledger.catalog.wakes[33] = Wake(Waker(user=of_waker), links=(Link(NO_STACK, of_link, Waker()),))
    ledger.read_users(np.array([key]), np.array([ledger.waiting[key].switched_out_ns]), np.array([of_wait]))
    for at_ns in (50_000, 60_000):
        ledger.tick(at_ns, MIN_NS, [], NOTHING, [])
    assert ledger.drop_stacks({of_wait, of_waker, of_link, of_none}, 0) == {of_none}


def test_storms_of_a_wake_in_use_stay_so_no_window_is_negative() -> None:
    key, ledger = ThreadKey(7, 100), Ledger(0)
    at = SiteKey(*key, FIRST_STACK + 1, NO_STACK, wake=33)
    ledger.catalog.wakes[33] = Wake()
    snapshots: list[Snapshot] = []
    for tick, storms in enumerate(({33: Storm(100, 900, 90, 9)}, {}, {}, {33: Storm(1, 8, 0, 8)}), 1):
        ended = SiteDeltas.of([(at, SiteTotals(1, 5_000, 0, 5_000, log2.of(5_000)))])
        ledger.tick(tick * TICK_NS, MIN_NS, [], ended, [], storms=storms)
        ledger.age(keep_ns=TICK_NS)
        snapshots.append(replace(snapshot(ledger), storms=dict(ledger.storms)))
    assert [between(a, b).storms for a, b in pairwise(snapshots)] == [{}, {}, {33: Storm(1, 8, 0, 8)}]
    assert between(snapshots[0], snapshots[-1]).storms == {33: Storm(1, 8, 0, 8)}


def test_sites_that_wait_for_a_thread_record_stay_in_the_catalog() -> None:
    at = SiteKey(7, 100, FIRST_STACK + 1, FIRST_STACK + 2, wake=33)
    ledger = Ledger(0)
    ledger.catalog.stacks.update({FIRST_STACK + 1: Stack(()), FIRST_STACK + 2: Stack(())})
    ledger.catalog.wakes[33] = Wake()
    ledger.tick(TICK_NS, MIN_NS, [], SiteDeltas.of([(at, SiteTotals(1, 5_000, 0, 5_000, log2.of(5_000)))]), [])
    dropped = ledger.age(keep_ns=TICK_NS)
    assert dropped == (set(), set())
    for tick in range(2, 4):
        ledger.tick(tick * TICK_NS, MIN_NS, [], NOTHING, [], threads_lost=1)
    assert ledger.sites[at].waits == 1, "its record is lost"


def test_names_of_exited_threads_are_bounded() -> None:
    ledger = Ledger(0)
    for number in range(60):
        keys = [ThreadKey(tid, tid) for tid in range(1 + 1000 * number, 1001 + 1000 * number)]
        for key in keys:
            ledger.catalog.comms[key] = ledger.catalog.processes[key.pid] = "child"
        ledger.tick(1_000 * (number + 1), MIN_NS, [], NOTHING, [], exited=dict.fromkeys(keys, 0))
    assert len(ledger.catalog.comms) == len(ledger.catalog.processes) == 51_000, "those of the last tick are kept"


def test_a_reused_site_starts_from_zero_after_eviction() -> None:
    key, site = ThreadKey(7, 100), SiteKey(7, 100, 3, 13)
    totals = SiteTotals(1, 2_000, 0, 2_000, log2.of(2_000))
    running = Running(SITES)
    add(running, site, totals)
    first = Snapshot(0, 0, sites=running.frozen())
    for tid in range(1000, 5000):
        other = site._replace(tid=tid)
        add(running, other, totals)
        move(running, other)
    move(running, site)
    add(running, site, totals._replace(total_ns=1_000))
    before = len(running.frozen().ids)
    assert before < 4000, "evicted rows were compacted"
    window = between(first, Snapshot(0, 1, sites=running.frozen()))
    assert window.sites[site] == SiteTotals(1, 1_000, 0, 2_000, log2.of(2_000))
    assert window.sites[SiteKey(*EXITED, 3, NO_STACK)].total_ns == 4000 * 2_000
    assert key not in window.threads


def add(running: Running[SiteKey, SiteTotals], key: SiteKey, totals: SiteTotals) -> None:
    ended = SiteDeltas.of([(key, totals)])
    running.add(ended.ids, ended.numbers, nonzero_lanes(ended.lanes), 0)


def move(running: Running[SiteKey, SiteTotals], key: SiteKey) -> None:
    running.move(integers([key], SITES.width), integers([(*EXITED, key.kernel, NO_STACK, 0)], SITES.width))


def test_a_thread_that_exits_between_snapshots_is_named_in_the_next_only() -> None:
    key, ledger = ThreadKey(7, 100), Ledger(0)
    wait = Wait(switched_out_ns=1_000, switched_in_ns=6_000, ready_ns=6_000, preempted=False, kernel=3, user=13)
    first = snapshot(ledger)
    record = record_of([wait], 0, TICK_NS)
    assert record
    sites = SiteDeltas.of(site_records(key, [wait], 0, TICK_NS))
    ledger.tick(10_000, MIN_NS, [(key, record)], sites, [], exited={key: 7_000}, has_snapshot=False)
    for at_ns in (20_000, 30_000):
        ledger.tick(at_ns, MIN_NS, [], NOTHING, [], has_snapshot=at_ns == 30_000)
    window = between(first, snapshot(ledger))
    totals = dict(window.each_thread())[key]
    assert (totals.waits, totals.offcpu_ns, totals.max_ns) == (1, 5_000, 5_000)
    ledger.tick(40_000, MIN_NS, [], NOTHING, [])
    assert set(ledger.threads) == {EXITED}


def test_an_exited_thread_is_evicted_and_its_totals_stay() -> None:
    key = ThreadKey(7, 100)
    wait = Wait(switched_out_ns=5_000, switched_in_ns=8_000, ready_ns=8_000, preempted=False, kernel=3, user=13)
    record = record_of([wait], 0, TICK_NS)
    assert record
    ledger = Ledger(0)
    first = snapshot(ledger)
    ledger.tick(
        10_000, MIN_NS, [(key, record)], SiteDeltas.of(site_records(key, [wait], 0, TICK_NS)), [], exited={key: 0}
    )
    assert set(ledger.threads) == {key}
    second = snapshot(ledger)
    ledger.tick(20_000, MIN_NS, [], NOTHING, [])
    third = snapshot(ledger)
    assert set(ledger.threads) == {EXITED}
    assert set(ledger.sites) == {SiteKey(0, 0, 3, NO_STACK)}
    assert dict(between(second, third).each_thread()) == {}
    assert dict(between(first, third).each_thread())[EXITED].offcpu_ns == 3_000


def test_a_thread_whose_exit_was_lost_is_evicted_after_a_silent_minute() -> None:
    key, minute_ns = ThreadKey(7, 100), 60 * 10**9
    wait = Wait(switched_out_ns=5_000, switched_in_ns=8_000, ready_ns=8_000, preempted=False, kernel=3, user=13)
    record = record_of([wait], 0, TICK_NS)
    assert record
    ledger = Ledger(0)
    ledger.tick(10_000, MIN_NS, [(key, record)], SiteDeltas.of(site_records(key, [wait], 0, TICK_NS)), [])
    assert ledger.tick(minute_ns, MIN_NS, [], NOTHING, [], primed_ns=minute_ns - 1) == []
    scanned_task = OffCpuTask(key, 20_000, False, 0, 3)
    assert ledger.tick(minute_ns + 10_001, MIN_NS, [], NOTHING, [scanned_task], primed_ns=minute_ns + 1) == []
    assert ledger.tick(3 * minute_ns, MIN_NS, [], NOTHING, [], primed_ns=3 * minute_ns - 1) == [key]
    ledger.tick(3 * minute_ns + 10_000, MIN_NS, [], NOTHING, [])
    assert set(ledger.threads) == {EXITED}
    assert set(ledger.sites) == {SiteKey(0, 0, 3, NO_STACK)}
