"""Test the ledger against a simulated kernel in which every wait is known.

The ledger must credit off-CPU time to the right thread, site and tick.
"""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtop.kernel.accounting.ledger import Ledger
from offtop.kernel.accounting.tick_records import SiteDeltas
from offtop.kernel.bpf import layout
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import SiteKey, ThreadKey
from offtop.model.values.snapshot import Move, SiteTotals, ThreadTotals
from offtop.model.values.stack import NO_STACK, SHORT
from offtop.model.values.wake import Storm
from offtop.model.windows.window import between, merge
from tests.kernel.accounting.simulated_kernel import (
    MIN_NS,
    NOTHING,
    TICK_NS,
    Step,
    Wait,
    keyed,
    off_cpu_tasks_of,
    passed,
    record_of,
    run,
    site_records,
    snapshot,
    threads_of_steps,
)
from tests.kernel.watch import check_sums


@given(threads_of_steps, st.integers(1, 3), st.integers(1, 4))
def test_each_window_has_the_time_that_passed_in_it(
    threads: list[list[Step]], scan_every: int, snapshot_every: int
) -> None:
    all_waits = keyed(threads)
    for window in run(all_waits, scan_every, snapshot_every=snapshot_every):
        totals = dict(window.each_thread())
        for key, waits in all_waits.items():
            off_ns = passed(waits, window.at_ns - window.span_ns, window.at_ns)
            # a wait that began at 0 is reported as one that began at 1, because no wait has switched_out_ns 0
            assert abs(totals.get(key, ThreadTotals()).offcpu_ns - off_ns) <= 1


@given(threads_of_steps, st.integers(1, 3), st.integers(0, TICK_NS // 2), st.integers(1, 4))
def test_sites_and_short_waits_add_up_to_each_thread(
    threads: list[list[Step]], scan_every: int, lag_ns: int, snapshot_every: int
) -> None:
    windows = run(keyed(threads), scan_every, lag_ns, snapshot_every)
    for window in [*windows, *(merge(windows[first:]) for first in range(len(windows) - 1))]:
        of_sites: dict[ThreadKey, int] = {}
        for site, totals in window.each_site():
            assert 0 <= totals.runqueue_ns <= totals.total_ns
            of_sites[site.thread] = of_sites.get(site.thread, 0) + totals.total_ns
        for key, totals in window.each_thread():
            assert of_sites.get(key, 0) + totals.short_ns + totals.filtered_ns == totals.offcpu_ns
            assert 0 <= totals.preempted_ns <= totals.runqueue_ns <= totals.offcpu_ns


@given(threads_of_steps, st.integers(0, TICK_NS // 2), st.integers(1, 4))
def test_totals_match_the_kernel_once_every_wait_has_ended(
    threads: list[list[Step]], lag_ns: int, snapshot_every: int
) -> None:
    all_waits = keyed(threads)
    windows = run(all_waits, lag_ns=lag_ns, snapshot_every=snapshot_every)
    for key, waits in all_waits.items():
        mine = [totals for window in windows for one, totals in window.each_thread() if one == key]
        assert sum(t.waits for t in mine) == len(waits)
        assert sum(t.histogram for t in mine) == log2.of(*(w.off_ns for w in waits))
        assert sum(t.involuntary for t in mine) == sum(w.preempted for w in waits)
        assert abs(sum(t.offcpu_ns for t in mine) - sum(w.off_ns for w in waits)) <= 1
        assert abs(sum(t.runqueue_ns for t in mine) - sum(w.runqueue_ns for w in waits)) <= 1
        assert abs(sum(t.preempted_ns for t in mine) - sum(w.off_ns for w in waits if w.preempted)) <= 1
        assert max((t.max_ns for t in mine), default=0) == max((w.off_ns for w in waits), default=0)


@given(threads_of_steps, st.integers(1, 3), st.integers(1, 4))
def test_over_all_windows_each_wait_is_at_the_site_where_it_ended(
    threads: list[list[Step]], scan_every: int, snapshot_every: int
) -> None:
    all_waits = keyed(threads)
    found = dict(merge(run(all_waits, scan_every, snapshot_every=snapshot_every)).sites)
    for key, waits in all_waits.items():
        ended: dict[SiteKey, list[Wait]] = {}
        for w in waits:
            if w.kind == layout.KIND_SITE:
                ended.setdefault(SiteKey(*key, w.kernel, w.user, w.wake), []).append(w)
        assert {*ended} == {site for site, totals in found.items() if site.thread == key and totals.total_ns}
        for site, those in ended.items():
            while_short_ns = sum(w.off_ns for w in those) - found[site].total_ns
            assert 0 <= while_short_ns <= len(those) * MIN_NS
            assert found[site].runqueue_ns <= sum(w.runqueue_ns for w in those)


def test_a_wait_of_12_ticks_counts_in_each_and_ends_at_its_full_site() -> None:
    wait = Wait(switched_out_ns=5_000, switched_in_ns=125_000, ready_ns=125_000, preempted=False, kernel=3, user=13)
    key = ThreadKey(7, 100)
    windows = run({key: [wait]})
    assert [dict(w.each_thread()).get(key, ThreadTotals()).offcpu_ns for w in windows] == [
        5_000,
        *[10_000] * 11,
        5_000,
    ]
    while_waiting, full = SiteKey(7, 100, 3, NO_STACK), SiteKey(7, 100, 3, 13)
    assert sum(dict(w.each_site()).get(while_waiting, SiteTotals()).total_ns for w in windows) == 115_000
    assert dict(merge(windows).sites) == {full: SiteTotals(1, 120_000, 0, 120_000, log2.of(120_000))}
    last_three = merge(windows[-3:])
    assert dict(last_three.sites) == {full: SiteTotals(1, 25_000, 0, 120_000, log2.of(120_000))}
    assert [*last_three.moves] == [Move(while_waiting, full, 5_000, 100_000)]
    assert dict(windows[-1].each_site()) == {full: SiteTotals(1, 5_000, 0, 120_000, log2.of(120_000))}


def test_a_wait_that_no_scan_saw_is_counted() -> None:
    wait = Wait(switched_out_ns=5_000, switched_in_ns=25_000, ready_ns=25_000, preempted=False, kernel=3, user=13)
    windows = run({ThreadKey(7, 100): [wait]}, scan_every=100)
    assert [sum(t.total_ns for _, t in w.each_site()) for w in windows] == [5_000, 10_000, 5_000]


def test_ready_time_counts_as_run_queue_before_the_wait_ends() -> None:
    wait = Wait(switched_out_ns=1_000, switched_in_ns=29_000, ready_ns=14_000, preempted=False, kernel=3, user=13)
    windows = run({ThreadKey(7, 100): [wait]})
    assert [dict(w.each_thread())[ThreadKey(7, 100)].runqueue_ns for w in windows] == [0, 6_000, 9_000]


@pytest.mark.parametrize("exits", [True, False], ids=["a scan no longer sees it", "the filter has changed"])
def test_a_wait_woken_as_it_began_was_not_preempted_if_another_in_its_record_was(exits: bool) -> None:
    key, ledger = ThreadKey(7, 100), Ledger(0)
    waits = [Wait(1_000, 21_000, 1_000, False, 3, 13), Wait(21_500, 23_500, 21_500, True, 4, 14)]
    taken = [snapshot(ledger)]

    def tick(at_ns: int, has_record: bool, **options: Any) -> None:
        record = record_of(waits, at_ns - TICK_NS, at_ns) if has_record else None
        ended = site_records(key, waits, at_ns - TICK_NS, at_ns) if record else []
        ledger.tick(at_ns, MIN_NS, [(key, record)] if record else [], SiteDeltas.of(ended), [], **options)
        taken.append(snapshot(ledger))

    tick(10_000, exits)
    tick(20_000, False, primed_ns=19_900 if exits else 0)
    tick(30_000, True, exited={key: 25_000} if exits else {}, filter_changed=not exits)
    for one in [*(windows := [between(a, b) for a, b in pairwise(taken)]), merge(windows)]:
        check_sums(one)
    totals = dict(merge(windows).each_thread())[key]
    assert (totals.involuntary, totals.preempted_ns) == (1, 2_000)


def test_a_thread_seen_on_the_run_queue_stays_there_in_ticks_without_a_scan() -> None:
    wait = Wait(switched_out_ns=1_000, switched_in_ns=49_000, ready_ns=6_000, preempted=False, kernel=3, user=13)
    windows = run({ThreadKey(7, 100): [wait]}, scan_every=3)
    assert [dict(w.each_thread())[ThreadKey(7, 100)].runqueue_ns for w in windows] == [4_000, *[10_000] * 3, 9_000]
    assert dict(merge(windows[1:]).sites) == {
        SiteKey(7, 100, 3, 13): SiteTotals(1, 39_000, 39_000, 48_000, log2.of(48_000))
    }


def test_ready_time_counts_as_run_queue_across_ticks_without_a_snapshot() -> None:
    wait = Wait(switched_out_ns=1_000, switched_in_ns=79_000, ready_ns=44_000, preempted=False, kernel=3, user=13)
    windows = run({ThreadKey(7, 100): [wait]}, snapshot_every=4)
    assert [dict(w.each_thread())[ThreadKey(7, 100)].runqueue_ns for w in windows] == [0, 35_000]


def test_no_waits_make_an_empty_window() -> None:
    [window] = run({})
    assert (window.span_ns, dict(window.each_thread()), dict(window.each_site())) == (TICK_NS, {}, {})


def test_storms_add_up_and_the_largest_is_that_of_the_last_tick() -> None:
    ledger = Ledger(0)
    steps: list[dict[int, Storm]] = [
        {},
        {9: Storm(1, 60, 5, 60)},
        {9: Storm(0, 40, 30, 100), 10: Storm(2, 20, 0, 12)},
        {},
    ]
    snapshots: list[dict[int, Storm]] = []
    for tick, storms in enumerate(steps):
        ledger.tick(TICK_NS * (tick + 1), MIN_NS, [], NOTHING, [], storms=storms)
        snapshots.append(dict(ledger.storms))
    assert snapshots == [
        {},
        {9: Storm(1, 60, 5, 60)},
        {9: Storm(1, 100, 35, 100), 10: Storm(2, 20, 0, 12)},
        {9: Storm(1, 100, 35, 0), 10: Storm(2, 20, 0, 0)},
    ]


def test_short_waits_have_no_site() -> None:
    wait = Wait(switched_out_ns=9_500, switched_in_ns=9_900, ready_ns=9_900, preempted=False, kernel=3, user=13)
    in_progress = Wait(
        switched_out_ns=9_950, switched_in_ns=99_000, ready_ns=99_000, preempted=False, kernel=3, user=13
    )
    window = run({ThreadKey(7, 100): [wait, in_progress]})[0]
    assert not any(site.kernel == SHORT for site, _ in window.each_site())
    assert dict(window.each_thread())[ThreadKey(7, 100)].short_ns == 450


def test_ready_time_shown_while_short_is_not_shown_again() -> None:
    wait = Wait(switched_out_ns=9_500, switched_in_ns=25_000, ready_ns=9_700, preempted=False, kernel=3, user=13)
    windows = run({ThreadKey(7, 100): [wait]})
    totals = [dict(w.each_thread())[ThreadKey(7, 100)] for w in windows]
    assert [t.runqueue_ns for t in totals] == [300, 10_000, 5_000]
    assert [t.short_ns for t in totals] == [500, 0, 0]


def test_a_wait_in_progress_in_an_excluded_state_is_filtered_from_its_start() -> None:
    wait = Wait(switched_out_ns=5_000, switched_in_ns=99_000, ready_ns=99_000, preempted=False, kernel=3, user=13)
    record = record_of([wait], 0, TICK_NS)
    assert record
    ledger = Ledger(0)
    first = snapshot(ledger)
    ledger.tick(10_000, MIN_NS, [(ThreadKey(7, 100), record)], NOTHING, [], states=layout.RUNNING)
    second = snapshot(ledger)
    ledger.tick(20_000, MIN_NS, [], NOTHING, [], states=layout.RUNNING)
    windows = [between(first, second), between(second, snapshot(ledger))]
    assert [dict(w.each_thread())[ThreadKey(7, 100)].filtered_ns for w in windows] == [5_000, 10_000]
    assert [list(w.each_site()) for w in windows] == [[], []]


def test_a_wait_in_progress_is_filtered_once_it_exceeds_the_maximum() -> None:
    wait = Wait(switched_out_ns=5_000, switched_in_ns=99_000, ready_ns=99_000, preempted=False, kernel=3, user=13)
    record = record_of([wait], 0, TICK_NS)
    assert record
    ledger = Ledger(0)
    taken = [snapshot(ledger)]
    for number in (1, 2, 3):
        at_ns = number * TICK_NS
        records = [(ThreadKey(7, 100), record)] if number == 1 else []
        ledger.tick(at_ns, MIN_NS, records, NOTHING, off_cpu_tasks_of(ThreadKey(7, 100), [wait], at_ns), max_ns=12_000)
        taken.append(snapshot(ledger))
    windows = [between(a, b) for a, b in pairwise(taken)]
    assert [dict(w.each_thread())[ThreadKey(7, 100)].filtered_ns for w in windows] == [0, 10_000, 10_000]
    assert [sum(t.total_ns for _, t in w.each_site()) for w in windows] == [5_000, 0, 0]
