"""Test waits whose thread's record arrives late, or was lost: each counts once, in the end."""

import numpy as np
import pytest

from offtop.kernel.accounting.ledger import Ledger
from offtop.kernel.accounting.tick_records import OffCpuTask, SiteDeltas
from offtop.model.values.catalog import SiteKey, ThreadKey
from offtop.model.values.snapshot import EXITED
from offtop.model.values.stack import NO_STACK
from offtop.model.values.wake import FIRST_WAKE
from offtop.model.windows.window import between
from tests.kernel.accounting.simulated_kernel import MIN_NS, NOTHING, TICK_NS, Wait, record_of, site_records, snapshot
from tests.kernel.watch import check_sums


def test_site_deltas_count_once_the_thread_record_arrives() -> None:
    key = ThreadKey(7, 100)
    wait = Wait(switched_out_ns=5_000, switched_in_ns=8_000, ready_ns=8_000, preempted=False, kernel=3, user=13)
    record = record_of([wait], 0, TICK_NS)
    assert record
    ledger = Ledger(0)
    ledger.tick(10_000, MIN_NS, [], SiteDeltas.of(site_records(key, [wait], 0, TICK_NS)), [])
    assert (ledger.threads, ledger.sites) == ({}, {})
    ledger.tick(20_000, MIN_NS, [(key, record)], NOTHING, [], exited={key: 0})
    assert (ledger.threads[key].offcpu_ns, ledger.sites[SiteKey(7, 100, 3, 13)].total_ns) == (3_000, 3_000)


def test_a_late_record_finds_its_first_wait_where_its_site_was_counted() -> None:
    """The process has exited since, so that its futex has another name at a second look-up."""
    key, raw = ThreadKey(7, 100), (3, 13, 77)
    wait = Wait(switched_out_ns=5_000, switched_in_ns=20_000, ready_ns=20_000, preempted=False, kernel=3, user=13)
    begun, ended = record_of([wait], 0, TICK_NS), record_of([wait], TICK_NS, 2 * TICK_NS)
    assert begun and ended
    seen = SiteKey(7, 100, 3, 13, FIRST_WAKE)
    ((_, totals),) = site_records(key, [wait], TICK_NS, 2 * TICK_NS)
    deltas = SiteDeltas.of([(seen, totals)])._replace(raw=np.array([raw], np.uint64))
    ledger = Ledger(0, lambda raw: np.tile(np.array([seen._replace(wake=FIRST_WAKE + 1)], np.int64), (len(raw), 1)))
    scanned = OffCpuTask(key, 5_000, False, 0, 3)
    ledger.tick(10_000, MIN_NS, [(key, begun)], NOTHING, [scanned])
    ledger.tick(20_000, MIN_NS, [], deltas, [])
    before = snapshot(ledger)
    last = ended._replace(**dict(zip(("first_kernel", "first_user", "first_wake"), raw, strict=True)))
    ledger.tick(30_000, MIN_NS, [(key, last)], NOTHING, [], exited={key: 0})
    assert (ledger.threads[key].offcpu_ns, ledger.sites[seen].total_ns) == (15_000, 15_000)
    check_sums(between(before, snapshot(ledger)))


def test_after_a_lost_record_sites_count_and_the_thread_is_evicted() -> None:
    key = ThreadKey(7, 100)
    wait = Wait(switched_out_ns=5_000, switched_in_ns=8_000, ready_ns=8_000, preempted=False, kernel=3, user=13)
    ledger = Ledger(0)
    ledger.tick(10_000, MIN_NS, [], SiteDeltas.of(site_records(key, [wait], 0, TICK_NS)), [])
    for at_ns in (20_000, 30_000):
        ledger.tick(at_ns, MIN_NS, [], NOTHING, [], threads_lost=1)
    assert (ledger.threads[key].waits, ledger.threads[key].offcpu_ns) == (1, 3_000)
    ledger.tick(40_000, MIN_NS, [], NOTHING, [], threads_lost=1)
    assert {key: totals.offcpu_ns for key, totals in ledger.threads.items()} == {EXITED: 3_000}
    assert set(ledger.sites) == {SiteKey(0, 0, 3, NO_STACK)}


@pytest.mark.parametrize("lost_before", [0, 3])
def test_site_deltas_wait_for_a_thread_that_waits_for_a_cpu_to_exit(lost_before: int) -> None:
    key = ThreadKey(7, 100)
    wait = Wait(switched_out_ns=5_000, switched_in_ns=8_000, ready_ns=8_000, preempted=False, kernel=3, user=13)
    record = record_of([wait], 0, TICK_NS)
    assert record
    ledger = Ledger(0)
    for at_ns in (4_000, 5_000):  # losses during a tick may belong to the next one
        ledger.tick(at_ns, MIN_NS, [], NOTHING, [], threads_lost=lost_before)
    ended = SiteDeltas.of(site_records(key, [wait], 0, TICK_NS))
    ledger.tick(10_000, MIN_NS, [], ended, [], threads_lost=lost_before)
    for at_ns in range(20_000, 90_000, 10_000):
        ledger.tick(at_ns, MIN_NS, [], NOTHING, [], threads_lost=lost_before)
        assert (ledger.threads, ledger.sites) == ({}, {})
    ledger.tick(90_000, MIN_NS, [(key, record)], NOTHING, [], exited={key: 0}, threads_lost=lost_before)
    assert (ledger.threads[key].waits, ledger.threads[key].offcpu_ns) == (1, 3_000)
    assert ledger.sites[SiteKey(7, 100, 3, 13)].waits == 1


def test_an_unreported_loss_is_written_off_in_the_end() -> None:
    key = ThreadKey(7, 100)
    wait = Wait(switched_out_ns=5_000, switched_in_ns=8_000, ready_ns=8_000, preempted=False, kernel=3, user=13)
    ledger = Ledger(0)
    ledger.tick(10_000, MIN_NS, [], SiteDeltas.of(site_records(key, [wait], 0, TICK_NS)), [])
    for at_ns in (4 * 10**9, 8 * 10**9):
        ledger.tick(at_ns, MIN_NS, [], NOTHING, [])
        assert ledger.threads == {}
    ledger.tick(12 * 10**9, MIN_NS, [], NOTHING, [])
    assert ledger.threads[key].waits == ledger.sites[SiteKey(7, 100, 3, 13)].waits == 1


def test_a_record_lost_in_the_tick_of_its_wait_is_soon_written_off() -> None:
    wait = Wait(switched_out_ns=5_000, switched_in_ns=8_000, ready_ns=8_000, preempted=False, kernel=3, user=13)
    ended = SiteDeltas.of(site_records(ThreadKey(7, 100), [wait], 0, TICK_NS))
    ledger = Ledger(0)
    for number, sites in enumerate((ended, NOTHING), 1):
        ledger.tick(number * TICK_NS, MIN_NS, [], sites, [], threads_lost=1)
        assert ledger.threads == {}
    ledger.tick(3 * TICK_NS, MIN_NS, [], NOTHING, [], threads_lost=1)
    assert ledger.threads[ThreadKey(7, 100)].offcpu_ns == 3_000


def test_time_shown_before_a_record_was_lost_is_not_counted_again() -> None:
    key = ThreadKey(7, 100)
    wait = Wait(switched_out_ns=100, switched_in_ns=3_500, ready_ns=3_500, preempted=False, kernel=3, user=13)
    ledger = Ledger(0)
    first = snapshot(ledger)
    scanned_task = OffCpuTask(key, 100, False, 0, 3)
    ledger.tick(1_000, MIN_NS, [], NOTHING, [scanned_task], primed_ns=900)
    ledger.tick(3_000, MIN_NS, [], NOTHING, [scanned_task])
    ledger.tick(4_000, MIN_NS, [], SiteDeltas.of(site_records(key, [wait], 0, 4_000)), [])
    for at_ns in (5_000, 6_000, 7_000):
        ledger.tick(at_ns, MIN_NS, [], NOTHING, [], threads_lost=1)
    window = between(first, snapshot(ledger))
    assert sum(totals.offcpu_ns for _, totals in window.each_thread()) == 4_000  # shown until the loss was noticed
    assert sum(totals.total_ns for _, totals in window.each_site()) == 4_000
    assert sum(totals.waits for _, totals in window.each_thread()) == 1
