"""Test waits that began before offtop, or before a filter selected their thread: they count from then on."""

import pytest

from offtop.kernel.accounting.ledger import Ledger
from offtop.kernel.accounting.tick_records import OffCpuTask, SiteDeltas
from offtop.kernel.bpf import layout
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import SiteKey, ThreadKey
from offtop.model.values.snapshot import Bound, SiteTotals
from offtop.model.values.stack import FIRST_STACK, NO_STACK
from offtop.model.windows.window import between
from tests.kernel.accounting.simulated_kernel import MIN_NS, NOTHING, Wait, primed, record_of, site_records, snapshot


def test_a_wait_that_began_before_offtop_counts_from_the_start() -> None:
    ledger = primed()
    a = snapshot(ledger)
    ledger.tick(12_000, MIN_NS, [], NOTHING, [])
    assert between(a, snapshot(ledger)).still == (SiteKey(7, 100, 3, NO_STACK),)


@pytest.mark.parametrize("site_is", ["there", "late", "lost"])
@pytest.mark.parametrize(("max_ns", "whole_ns"), [(0, 508_000), (508_000, 508_000), (507_999, 6_500)])
def test_a_wait_that_began_before_offtop_has_its_whole_length_but_only_the_time_since_the_start(
    site_is: str, max_ns: int, whole_ns: int
) -> None:
    """Unless the filter by length would leave it out."""
    key, site = ThreadKey(7, 100), SiteKey(7, 100, FIRST_STACK, FIRST_STACK + 10)
    waits = [
        Wait(1_500, 8_000, ready_ns=8_000, preempted=False, kernel=site.kernel, user=site.user),
        Wait(9_000, 11_000, ready_ns=9_500, preempted=False, kernel=site.kernel, user=site.user),
    ]
    scanned = OffCpuTask(key, 1_500, False, 0, site.kernel, since_ns=8_000 - 508_000, bound=Bound.AT_MOST)
    ended = SiteDeltas.of([(site, SiteTotals(2, 8_500, 1_500, 6_500, log2.of(6_500, 2_000)))])
    ledger = Ledger(1_000)
    ledger.tick(2_000, MIN_NS, [], NOTHING, [scanned], primed_ns=1_400, max_ns=max_ns)
    a = snapshot(ledger)
    if site_is == "late":  # its thread's record arrives one tick later
        ledger.tick(11_500, MIN_NS, [], ended, [], max_ns=max_ns, has_snapshot=False)
    record = record_of(waits, 2_000, 12_000)
    assert record
    ledger.tick(12_000, MIN_NS, [(key, record)], ended if site_is == "there" else NOTHING, [], max_ns=max_ns)
    window = between(a, snapshot(ledger))
    lengths = log2.of(whole_ns, 2_000)
    if site_is == "lost":
        assert (window.sites[site].max_ns, window.sites[site].histogram) == (0, log2.EMPTY)
    else:
        assert window.sites[site] == SiteTotals(2, 8_000, 1_500, whole_ns, lengths)
    totals = window.threads[key]
    assert (totals.offcpu_ns, totals.max_ns, totals.histogram) == (8_000, whole_ns, lengths)


@pytest.mark.parametrize("kind", [layout.KIND_SHORT, layout.KIND_FILTERED, layout.KIND_LOST])
def test_a_wait_that_began_before_offtop_without_a_site_has_the_length_that_was_seen(kind: int) -> None:
    key = ThreadKey(7, 100)
    wait = Wait(1_500, 8_000, ready_ns=8_000, preempted=False, kernel=FIRST_STACK, user=0)
    record = record_of([wait], 2_000, 12_000)
    assert record
    scanned = OffCpuTask(key, 1_500, False, 0, FIRST_STACK, since_ns=-500_000, bound=Bound.AT_MOST)
    ledger = Ledger(1_000)
    ledger.tick(2_000, MIN_NS, [], NOTHING, [scanned], primed_ns=1_400)
    a = snapshot(ledger)
    ledger.tick(12_000, MIN_NS, [(key, record._replace(first_kind=kind))], NOTHING, [])
    totals = between(a, snapshot(ledger)).threads[key]
    assert (totals.max_ns, totals.histogram) == (6_500, log2.of(6_500))


def test_a_wait_without_a_seen_end_ends_at_the_next_switch_out() -> None:
    ledger = primed()
    a = snapshot(ledger)
    wait = Wait(switched_out_ns=5_000, switched_in_ns=99_000, ready_ns=99_000, preempted=False, kernel=4, user=14)
    record = record_of([wait], 2_000, 12_000)
    assert record
    ledger.tick(12_000, MIN_NS, [(ThreadKey(7, 100), record)], NOTHING, [])
    assert dict(between(a, snapshot(ledger)).each_thread())[ThreadKey(7, 100)].offcpu_ns == 7_000


def test_changing_the_thread_filter_keeps_what_others_had() -> None:
    ledger = primed()
    ledger.tick(12_000, MIN_NS, [], NOTHING, [])
    a = snapshot(ledger)
    ledger.tick(22_000, MIN_NS, [], NOTHING, [OffCpuTask(ThreadKey(8, 200), 20_000, False, 0, 4)], primed_ns=21_000)
    b = snapshot(ledger)
    ledger.tick(32_000, MIN_NS, [], NOTHING, [])
    assert dict(between(a, b).each_thread()) == {}
    assert [key for key, _ in between(b, snapshot(ledger)).each_thread()] == [ThreadKey(8, 200)]


def test_a_wait_ending_as_its_thread_is_selected_counts_from_the_last_tick() -> None:
    key = ThreadKey(7, 100)
    wait = Wait(switched_out_ns=1_000, switched_in_ns=18_000, ready_ns=16_000, preempted=False, kernel=3, user=13)
    record = record_of([wait], 10_000, 20_000)
    assert record
    ledger = Ledger(0)
    ledger.tick(10_000, MIN_NS, [], NOTHING, [])
    a = snapshot(ledger)
    ended = SiteDeltas.of(site_records(key, [wait], 10_000, 20_000))
    ledger.tick(20_000, MIN_NS, [(key, record)], ended, [], primed_ns=19_000, filter_changed=True)
    window = between(a, snapshot(ledger))
    assert (window.threads[key].offcpu_ns, window.threads[key].runqueue_ns) == (8_000, 2_000)
    assert window.sites[SiteKey(7, 100, 3, 13)] == SiteTotals(1, 8_000, 2_000, 17_000, log2.of(17_000))


def test_a_thread_switched_out_during_the_scan_waits_from_then_on() -> None:
    wait = Wait(switched_out_ns=1_700, switched_in_ns=99_000, ready_ns=99_000, preempted=False, kernel=4, user=14)
    record = record_of([wait], 0, 2_000)
    assert record
    ledger = Ledger(1_000)
    ledger.tick(2_000, MIN_NS, [(ThreadKey(7, 100), record)], NOTHING, [], primed_ns=1_600)
    a = snapshot(ledger)
    ledger.tick(12_000, MIN_NS, [], NOTHING, [])
    assert dict(between(a, snapshot(ledger)).each_thread())[ThreadKey(7, 100)].offcpu_ns == 10_000


def test_a_thread_switched_in_during_the_scan_is_running() -> None:
    wait = Wait(switched_out_ns=1_500, switched_in_ns=1_900, ready_ns=1_900, preempted=False, kernel=4, user=14)
    record = record_of([wait], 0, 2_000)
    assert record
    ledger = Ledger(1_000)
    scanned_task = OffCpuTask(ThreadKey(7, 100), 1_500, False, 0, 4)
    ledger.tick(2_000, MIN_NS, [(ThreadKey(7, 100), record)], NOTHING, [scanned_task], primed_ns=1_400)
    assert ledger.waiting == {}


def test_a_wait_found_at_startup_ends_at_the_scanned_site_with_its_waker() -> None:
    key, wake = ThreadKey(7, 100), 33
    wait = Wait(switched_out_ns=1_500, switched_in_ns=8_000, ready_ns=8_000, preempted=False, kernel=0, user=0)
    record = record_of([wait], 2_000, 12_000)
    assert record
    record = record._replace(first_kind=layout.KIND_SITE, first_kernel=0, first_user=0, first_wake=wake)
    ledger = primed(kernel=FIRST_STACK + 3)
    ended = SiteDeltas.of([(SiteKey(*key, 0, 0, wake), SiteTotals(1, 6_500, 0, 6_500, log2.of(6_500)))])
    ledger.tick(12_000, MIN_NS, [(key, record)], ended, [])
    at = SiteKey(7, 100, FIRST_STACK + 3, NO_STACK)
    assert ledger.sites[at._replace(wake=wake)].waits == 1
    assert sum(totals.total_ns for totals in dict(ledger.sites).values()) == 6_000, "from the scan on, or the tick"
    assert {site.kernel for site in ledger.sites} == {FIRST_STACK + 3}
