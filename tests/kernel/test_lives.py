"""Test threads that share a TID one after the other.

Each keeps its own time, in any order of reports. A thread that was reaped, or lost its TID to one that called exec, may
still wait for a CPU for its last switch-out.
"""

from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest

from offtop.kernel.accounting import deferred
from offtop.kernel.accounting.ledger import Ledger
from offtop.kernel.accounting.tick_records import OffCpuTask, RuntimeSample, SiteDeltas
from offtop.kernel.bpf.layout import THREAD, ThreadRecord
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.snapshot import SiteTotals
from offtop.model.windows.window import between
from offtop.units import NS_PER_S
from tests.kernel import watch
from tests.kernel.accounting.simulated_kernel import MIN_NS, NOTHING, Wait, record_of, site_records, snapshot

KEY = ThreadKey(7, 7)
TICK_NS = 10_000
A, B, C = 1, 2, 3
"""Times at which each acquires the TID."""


class Ticks:
    """A ledger that is fed tick by tick and checks the sums of each."""

    def __init__(self) -> None:
        self.ledger = Ledger(0)
        self.at = [snapshot(self.ledger)]
        self.threads_lost = 0

    def tick(
        self,
        threads: list[tuple[ThreadKey, ThreadRecord]],
        sites: SiteDeltas = NOTHING,
        *tasks: OffCpuTask,
        ns: int = TICK_NS,
        **more: Any,
    ) -> None:
        at_ns = self.at[-1].at_ns + ns
        self.ledger.tick(at_ns, MIN_NS, threads, sites, tasks, threads_lost=self.threads_lost, **more)
        self.at.append(snapshot(self.ledger))
        watch.check_sums(between(self.at[-2], self.at[-1]))

    def give_up(self) -> None:
        """Run ticks with lost records, so that everything deferred is written off."""
        for _ in range(4):
            self.threads_lost += 1
            self.tick([])

    @property
    def now_ns(self) -> int:
        return self.at[-1].at_ns

    def counted_ns(self, first: int = 0, last: int = -1) -> int:
        """Return the off-CPU time of all owners of the TID, in the given ticks."""
        window = between(self.at[first], self.at[last])
        return sum(totals.offcpu_ns for _, totals in window.each_thread())


def sleep(switched_out_ns: int, switched_in_ns: int, kernel: int = 3) -> Wait:
    return Wait(switched_out_ns, switched_in_ns, switched_in_ns, preempted=False, kernel=kernel, user=kernel + 10)


def did(tid_acquired_ns: int, waits: list[Wait], from_ns: int, to_ns: int) -> tuple[ThreadKey, ThreadRecord]:
    record = record_of(waits, from_ns, to_ns)
    assert record
    return KEY, record._replace(tid_acquired_ns=tid_acquired_ns)


def ended(tid_acquired_ns: int, waits: list[Wait], from_ns: int, to_ns: int) -> SiteDeltas:
    sites = SiteDeltas.of(site_records(KEY, waits, from_ns, to_ns))
    return sites._replace(tid_acquired_ns=np.full(len(sites.ids), tid_acquired_ns))


@pytest.mark.parametrize(
    ("tick_ns", "silent_ticks"),
    [(TICK_NS, 0), (10 * NS_PER_S, 0), (NS_PER_S, 11)],
    ids=["a tick later", "ticks of 10 s", "11 s later"],
)
def test_a_late_report_leaves_the_new_owner_of_the_tid_alone(tick_ns: int, silent_ticks: int) -> None:
    ticks = Ticks()
    first = sleep(tick_ns // 10, 12 * tick_ns // 10)
    now = sleep(15 * tick_ns // 10, (6 + silent_ticks) * tick_ns - tick_ns // 2, kernel=4)
    ticks.tick([did(A, [first], 0, tick_ns)], ns=tick_ns)
    ticks.tick([did(B, [now], tick_ns, 2 * tick_ns)], ended(A, [first], tick_ns, 2 * tick_ns), ns=tick_ns)
    for _ in range(silent_ticks):
        ticks.tick([], ns=tick_ns)
    ticks.tick([did(A, [first], tick_ns, 2 * tick_ns)], exited={KEY: ticks.now_ns}, ns=tick_ns)
    assert ticks.ledger.waiting[KEY].switched_out_ns == now.switched_out_ns
    for _ in range(2):
        ticks.tick([], ns=tick_ns)
        assert ticks.counted_ns(-2) == tick_ns
    assert not ticks.ledger.catalog.life(KEY).to_ns, "it is alive"
    span = ticks.now_ns, ticks.now_ns + tick_ns
    ticks.tick([did(B, [now], *span)], ended(B, [now], *span), ns=tick_ns)
    assert ticks.counted_ns() == first.off_ns + now.off_ns


def test_the_first_of_three_owners_may_be_reported_last() -> None:
    ticks = Ticks()
    first, second, third = sleep(1_500, 12_000), sleep(13_000, 22_000, 4), sleep(25_000, 90_000, 5)
    ticks.tick([did(A, [first], 0, 10_000)])
    ticks.tick([did(B, [second], 10_000, 20_000)], ended(A, [first], 10_000, 20_000))
    both = [did(B, [second], 20_000, 30_000), did(C, [third], 20_000, 30_000)]
    ticks.tick(both, ended(B, [second], 20_000, 30_000))
    assert ticks.ledger.waiting[KEY].switched_out_ns == 25_000
    ticks.tick([did(A, [first], 10_000, 20_000)], exited={KEY: 39_000})
    assert ticks.ledger.waiting[KEY].switched_out_ns == 25_000
    ticks.tick([])
    assert ticks.counted_ns(-2) == TICK_NS
    assert ticks.counted_ns() == first.off_ns + second.off_ns + 50_000 - 25_000
    assert not ticks.ledger.catalog.life(KEY).to_ns


def test_a_thread_that_exits_when_its_predecessor_is_reported_has_exited() -> None:
    ticks = Ticks()
    first, second = sleep(1_500, 12_000), sleep(15_000, 26_000, 4)
    ticks.tick([did(A, [first], 0, 10_000)])
    ticks.tick([did(B, [second], 10_000, 20_000)], ended(A, [first], 10_000, 20_000))
    last = [did(A, [first], 10_000, 20_000), did(B, [second], 20_000, 30_000)]
    ticks.tick(last, ended(B, [second], 20_000, 30_000), exited={KEY: 28_000})
    assert ticks.ledger.catalog.life(KEY).to_ns == 28_000
    assert ticks.ledger.waiting == {}
    ticks.tick([])
    assert KEY not in ticks.ledger.threads, "evicted"
    assert ticks.counted_ns() == first.off_ns + second.off_ns


@pytest.mark.parametrize("silent_s", [0, 30])
def test_a_written_off_thread_whose_tid_was_reused_counts_once(silent_s: int) -> None:
    ticks = Ticks()
    first = sleep(5_000, 14_000)
    ticks.tick([])
    ticks.tick([], ended(A, [first], 10_000, 20_000))
    ticks.give_up()
    assert ticks.counted_ns() == first.off_ns
    second = sleep(ticks.now_ns + 5_000, ticks.now_ns + 60 * NS_PER_S, 4)
    ticks.ledger.begin(KEY, ticks.now_ns + 4_000)
    ticks.tick([did(B, [second], ticks.now_ns, ticks.now_ns + TICK_NS)])
    for _ in range(silent_s):
        ticks.tick([], ns=NS_PER_S)
    ticks.tick([did(A, [first], 10_000, 20_000)], exited={KEY: ticks.now_ns})
    assert ticks.ledger.waiting[KEY].switched_out_ns == second.switched_out_ns
    assert not ticks.ledger.catalog.life(KEY).to_ns
    ticks.tick([], ns=NS_PER_S)
    assert ticks.counted_ns(-2) == NS_PER_S
    assert ticks.counted_ns() == first.off_ns + ticks.now_ns - second.switched_out_ns
    assert sum(totals.waits for _, totals in between(ticks.at[0], ticks.at[-1]).each_thread()) == 1


def test_a_written_off_thread_reported_half_a_minute_later_counts_once() -> None:
    ticks = Ticks()
    wait = sleep(5_000, 14_000)
    ticks.tick([])
    ticks.tick([], ended(A, [wait], 10_000, 20_000))
    for _ in range(40):
        ticks.tick([], ns=NS_PER_S)
    assert ticks.counted_ns() == wait.off_ns, "written off"
    ticks.tick([did(A, [wait], 10_000, 20_000)], exited={KEY: ticks.now_ns})
    assert ticks.counted_ns() == wait.off_ns


@pytest.mark.parametrize("in_one_tick", [True, False])
@pytest.mark.parametrize("filter_changed", [True, False])
def test_two_buffers_of_a_written_off_thread_are_never_negative(in_one_tick: bool, filter_changed: bool) -> None:
    ticks = Ticks()
    waits = [Wait(5_000, 14_000, 13_000, False, 3, 13), Wait(18_000, 24_000, 19_000, False, 3, 13)]
    ticks.tick([])
    spans = (10_000, 20_000), (20_000, 30_000)
    for span in spans:
        ticks.tick([], ended(A, waits, *span))
    ticks.give_up()
    assert ticks.counted_ns() == 15_000
    halves = [(KEY, did(A, waits, *span)[1]._replace(switched_out_ns=0)) for span in spans]
    for some in [halves] if in_one_tick else [halves[:1], halves[1:]]:
        ticks.tick(some, exited={KEY: 30_000}, filter_changed=filter_changed)
    assert ticks.counted_ns() == 15_000
    whole = between(ticks.at[0], ticks.at[-1])
    assert sum(totals.waits for _, totals in whole.each_thread()) == 2
    for before, after in pairwise(ticks.at):
        for _, totals in between(before, after).each_thread():
            assert min(*totals[:9], *log2.to_lanes([totals.histogram])[0]) >= 0


def test_written_off_time_is_not_taken_from_the_remaining_wait() -> None:
    """The thread also had a wait too short for a site, which is all that remains."""
    ticks = Ticks()
    waits = [sleep(5_000, 14_000), sleep(15_000, 15_000 + MIN_NS - 1)]
    ticks.tick([])
    ticks.tick([], ended(A, waits, 10_000, 20_000))
    ticks.give_up()
    assert ticks.counted_ns() == 9_000
    ticks.tick([did(A, waits, 10_000, 20_000)], exited={KEY: ticks.now_ns}, filter_changed=True)
    assert ticks.counted_ns(-2) == MIN_NS - 1
    assert ticks.counted_ns() == 9_000 + MIN_NS - 1


def test_time_written_off_in_two_ticks_counts_once() -> None:
    ticks = Ticks()
    waits = [sleep(5_000, 14_000), sleep(18_000, 24_000, 4)]
    ticks.tick([])
    for from_ns in (10_000, 20_000):
        ticks.tick([], ended(A, waits, from_ns, from_ns + 10_000))
        ticks.give_up()
    assert ticks.counted_ns() == 15_000
    ticks.tick([did(A, waits, 10_000, 30_000)], exited={KEY: 30_000})
    assert ticks.counted_ns() == 15_000


def test_provisional_time_is_subtracted_once_and_from_its_owner_only() -> None:
    ticks = Ticks()
    first, more = sleep(1_000, 12_000), sleep(13_000, 28_000, 4)
    second, third = sleep(16_000, 32_000, 5), sleep(35_000, 900_000, 6)
    ticks.tick([did(A, [first], 0, 10_000)])
    ticks.tick([did(B, [second], 10_000, 20_000)], ended(A, [first], 10_000, 20_000))
    ticks.tick([], ended(A, [more], 20_000, 30_000))
    ticks.tick([did(C, [third], 30_000, 40_000)], ended(B, [second], 30_000, 40_000))
    ticks.give_up()
    goes_on_ns = ticks.now_ns - third.switched_out_ns
    assert ticks.counted_ns() == first.off_ns + more.off_ns + second.off_ns + goes_on_ns


def test_waits_of_the_old_owner_are_not_shown_for_the_new_one() -> None:
    """Its sites are written off while another thread waits under its TID."""
    ticks = Ticks()
    first = sleep(5_000, 14_000)
    second = sleep(21_000, 900_000, 4)
    ticks.tick([])
    ticks.tick([], ended(A, [first], 10_000, 20_000))
    ticks.tick([did(B, [second], 20_000, 30_000)])
    ticks.give_up()
    assert ticks.ledger.waiting[KEY].switched_out_ns == second.switched_out_ns
    assert not ticks.ledger.catalog.life(KEY).to_ns, "it is alive"
    assert ticks.counted_ns() == first.off_ns + ticks.now_ns - second.switched_out_ns


@pytest.mark.parametrize("is_lost", [False, True])
def test_old_and_new_owner_of_a_tid_are_not_mixed_up(is_lost: bool) -> None:
    """A thread called exec and took its main thread's TID.

    The main thread is not reported for a while.
    """
    key = ThreadKey(7, 7)
    mains = Wait(switched_out_ns=1_500, switched_in_ns=14_500, ready_ns=14_000, preempted=False, kernel=3, user=13)
    others = Wait(switched_out_ns=16_000, switched_in_ns=17_200, ready_ns=17_000, preempted=False, kernel=3, user=13)
    going_on = Wait(switched_out_ns=18_000, switched_in_ns=90_000, ready_ns=90_000, preempted=False, kernel=4, user=14)
    begun, ended, record = (record_of(waits, *span) for waits, span in (
        ([mains], (0, 10_000)), ([mains], (10_000, 20_000)), ([others, going_on], (10_000, 20_000)),
    ))  # fmt: skip
    assert begun and ended and record
    sites = SiteDeltas.of([*site_records(key, [mains], 10_000, 20_000), *site_records(key, [others], 10_000, 20_000)])
    ledger = Ledger(0)
    at = [snapshot(ledger)]

    def tick(threads: list[tuple[ThreadKey, ThreadRecord]], sites: SiteDeltas = NOTHING, **more: Any) -> None:
        threads_lost = int(is_lost and len(at) > 2)
        ledger.tick(at[-1].at_ns + 10_000, MIN_NS, threads, sites, [], threads_lost=threads_lost, **more)
        at.append(snapshot(ledger))
        watch.check_sums(between(at[-2], at[-1]))

    tick([(key, begun)])
    assert ledger.waiting[key].switched_out_ns == 1_500
    tick([(key, record._replace(tid_acquired_ns=5))], sites._replace(tid_acquired_ns=np.array([0, 5])))
    assert ledger.waiting[key].switched_out_ns == 18_000
    assert between(at[1], at[2]).threads[key].offcpu_ns == 1_200 + 2_000
    tick([] if is_lost else [(key, ended)], exited={} if is_lost else {key: 15_000})
    assert ledger.waiting[key].switched_out_ns == 18_000
    tick([])
    tick([])
    whole = between(at[0], at[-1])
    assert whole.threads[key].offcpu_ns == 13_000 + 1_200 + 50_000 - 18_000
    assert whole.threads[key].waits == 2


def test_a_thread_seen_only_by_a_scan_is_not_mixed_up_with_its_successor() -> None:
    """A process was reaped, so its PID is free.

    It still waits for a CPU for its last switch-out.
    """
    key = ThreadKey(7, 7)
    first = Wait(switched_out_ns=1_500, switched_in_ns=14_500, ready_ns=14_000, preempted=False, kernel=3, user=13)
    others = Wait(switched_out_ns=16_000, switched_in_ns=17_200, ready_ns=17_000, preempted=False, kernel=3, user=13)
    going_on = Wait(switched_out_ns=18_000, switched_in_ns=90_000, ready_ns=90_000, preempted=False, kernel=4, user=14)
    ended, record = (record_of(waits, 10_000, 20_000) for waits in ([first], [others, going_on]))
    assert ended and record
    both = SiteDeltas.of([*site_records(key, [first], 10_000, 20_000), *site_records(key, [others], 10_000, 20_000)])
    ledger = Ledger(1_000)
    at = [snapshot(ledger)]

    def tick(
        threads: list[tuple[ThreadKey, ThreadRecord]], sites: SiteDeltas = NOTHING, *tasks: OffCpuTask, **more: Any
    ) -> None:
        ledger.tick(len(at) * 10_000, MIN_NS, threads, sites, tasks, **more)
        at.append(snapshot(ledger))
        watch.check_sums(between(at[-2], at[-1]))

    tick(
        [],
        NOTHING,
        OffCpuTask(key, 1_500, False, 0, 3, tid_acquired_ns=4),
        primed_ns=9_000,
        ran=[RuntimeSample(key, 100, 1_200)],
    )
    assert ledger.waiting[key].switched_out_ns == 1_500
    tick(
        [(key, record._replace(tid_acquired_ns=5))],
        both._replace(tid_acquired_ns=np.array([4, 5])),
        ran=[RuntimeSample(key, 100, 15_000)],
    )
    ledger.begin(key, 15_000)
    assert ledger.waiting[key].switched_out_ns == 18_000
    tick(
        [(key, ended._replace(tid_acquired_ns=4))],
        exited={key: 25_000},
        ran=[RuntimeSample(key, 150, 1_200, ended=True)],
    )
    assert ledger.waiting[key].switched_out_ns == 18_000
    assert (ledger.catalog.life(key).from_ns, ledger.catalog.life(key).to_ns) == (15_000, 0)
    tick([], ran=[RuntimeSample(key, 180, 15_000)])
    whole = between(at[0], at[-1]).threads[key]
    assert (whole.waits, whole.offcpu_ns) == (2, 14_500 - 10_000 + 1_200 + 40_000 - 18_000)
    assert whole.running_ns == 100 + 180  # what it ran at last, when another had its TID, is not reported


@pytest.mark.parametrize("was_shown", [False, True])
@pytest.mark.parametrize("in_halves", [False, True])
def test_a_written_off_thread_that_is_reported_after_all_counts_once(was_shown: bool, in_halves: bool) -> None:
    key = ThreadKey(7, 100)
    waits = [
        Wait(switched_out_ns=5_000, switched_in_ns=14_000, ready_ns=13_000, preempted=False, kernel=3, user=13),
        Wait(
            switched_out_ns=15_000,
            switched_in_ns=15_000 + MIN_NS - 1,
            ready_ns=15_000 + MIN_NS - 1,
            preempted=True,
            kernel=0,
            user=0,
        ),
        Wait(switched_out_ns=18_000, switched_in_ns=24_000, ready_ns=18_000, preempted=True, kernel=3, user=13),
    ]
    begun = record_of(waits[:1], 0, 10_000)
    spans = [(10_000, 20_000), (20_000, 30_000)] if in_halves else [(10_000, 30_000)]
    records = [record._replace(switched_out_ns=0) for span in spans if (record := record_of(waits, *span))]
    assert begun and len(records) == len(spans)
    ledger = Ledger(0)
    at = [snapshot(ledger)]

    def tick(threads: list[tuple[ThreadKey, ThreadRecord]], sites: SiteDeltas = NOTHING, **more: Any) -> None:
        ledger.tick(len(at) * 10_000, MIN_NS, threads, sites, [], **more)
        at.append(snapshot(ledger))
        watch.check_sums(between(at[-2], at[-1]))

    tick([(key, begun)] if was_shown else [])
    tick([], SiteDeltas.of(site_records(key, waits, 10_000, 20_000)))
    tick([], SiteDeltas.of(site_records(key, waits, 20_000, 30_000)))
    while key not in ledger.threads or not ledger.threads[key].waits:
        tick([], threads_lost=1)
    tick([(key, record) for record in records], exited={key: 30_000}, threads_lost=1)
    whole = between(at[0], at[-1])
    assert whole.threads[key].waits == 3
    assert sum(one.waits for _, one in whole.each_site()) == 2
    sums = whole.threads[key]
    if not was_shown:
        assert sums.offcpu_ns == sum(wait.off_ns for wait in waits)
        assert sums.short_ns == MIN_NS - 1


def test_an_exited_and_evicted_successor_leaves_its_predecessors_time_alone() -> None:
    for silent_ticks in (0, 1):
        ticks = Ticks()
        first, second = sleep(1_500, 12_000), sleep(15_000, 26_000, kernel=4)
        ticks.tick([did(A, [first], 0, 10_000)])
        ticks.tick([did(B, [second], 10_000, 20_000)], ended(A, [first], 10_000, 20_000))
        ticks.tick([did(B, [second], 20_000, 30_000)], ended(B, [second], 20_000, 30_000), exited={KEY: 28_000})
        for _ in range(silent_ticks):
            ticks.tick([])
        assert (KEY in ticks.ledger.threads) == (silent_ticks == 0)
        ticks.tick([did(A, [first], 10_000, 20_000)], exited={KEY: ticks.now_ns})
        for _ in range(3):
            ticks.tick([])
        assert ticks.counted_ns() == first.off_ns + second.off_ns
        assert KEY not in ticks.ledger.threads


def test_a_thread_that_waits_for_a_cpu_to_exit_counts_once_after_a_full_scan() -> None:
    ticks = Ticks()
    first = sleep(1_500, 12_000)
    ticks.tick([did(A, [first], 0, 10_000)])
    ticks.tick([], ended(A, [first], 10_000, 20_000), primed_ns=19_000)
    ticks.tick([did(A, [first], 10_000, 20_000)], exited={KEY: 28_000})
    assert ticks.counted_ns() == first.off_ns


def test_the_new_owner_keeps_waiting_if_the_old_exit_arrives_in_a_full_scan() -> None:
    ticks = Ticks()
    first, second = sleep(1_500, 12_000), sleep(15_000, 55_000, kernel=4)
    ticks.tick([did(A, [first], 0, 10_000)])
    ticks.tick(
        [did(A, [first], 10_000, 20_000), did(B, [second], 10_000, 20_000)],
        ended(A, [first], 10_000, 20_000),
        OffCpuTask(KEY, 15_000, False, 0, 4, tid_acquired_ns=B),
        primed_ns=19_000,
    )
    assert ticks.ledger.waiting[KEY].switched_out_ns == second.switched_out_ns
    for _ in range(3):
        ticks.tick([])
    ticks.tick([did(B, [second], 50_000, 60_000)], ended(B, [second], 50_000, 60_000))
    assert ticks.counted_ns() == first.off_ns + second.off_ns


def test_a_lost_successor_ends_the_wait_of_its_predecessor() -> None:
    ticks = Ticks()
    first, second = sleep(1_500, 12_000), sleep(13_000, 17_000, kernel=4)
    ticks.tick([did(A, [first], 0, 10_000)])
    ticks.threads_lost += 1
    ticks.tick([], ended(B, [second], 10_000, 20_000))
    ticks.give_up()
    assert KEY not in ticks.ledger.waiting
    assert ticks.ledger.catalog.life(KEY).to_ns


def test_after_a_filter_change_only_later_time_of_the_predecessor_counts() -> None:
    ticks = Ticks()
    first, second = sleep(1_500, 42_000), sleep(15_000, 900_000, kernel=4)
    ticks.tick([did(B, [second], 10_000, 20_000)])
    for _ in range(3):
        ticks.tick([])
    ticks.tick(
        [did(A, [first], 40_000, 50_000)], ended(A, [first], 40_000, 50_000), exited={KEY: 43_000}, filter_changed=True
    )
    assert ticks.counted_ns(-2) == 2_000 + TICK_NS


@pytest.mark.parametrize("lives", [False, True])
def test_run_time_of_the_old_owner_leaves_the_new_one_alone(lives: bool) -> None:
    """The TID was taken by exec, so both started at the same time."""
    ticks = Ticks()
    first, second = sleep(1_500, 12_000), sleep(15_000, 900_000 if lives else 26_000, kernel=4)
    ticks.tick([did(A, [first], 0, 10_000)], ran=[RuntimeSample(KEY, 1_000, 1)])
    ticks.tick(
        [did(B, [second], 10_000, 20_000)], ended(A, [first], 10_000, 20_000), ran=[RuntimeSample(KEY, 1_300, 1)]
    )
    if lives:
        ticks.tick([], ran=[RuntimeSample(KEY, 1_400, 1)])
    else:
        by_now = ended(B, [second], 20_000, 30_000)
        ran = RuntimeSample(KEY, 1_400, 1, ended=True, tid_acquired_ns=B)
        ticks.tick([did(B, [second], 20_000, 30_000)], by_now, exited={KEY: 28_000}, ran=[ran])
    ran_ns = ticks.ledger.threads[KEY].running_ns
    late = RuntimeSample(KEY, 9_000, 1, ended=True, tid_acquired_ns=A)
    ticks.tick([did(A, [first], 10_000, 20_000)], exited={KEY: 39_000}, ran=[late])
    assert ticks.ledger.threads[KEY].running_ns == ran_ns
    assert bool(ticks.ledger.catalog.life(KEY).to_ns) != lives
    for _ in range(2):
        ticks.tick([], ran=[RuntimeSample(KEY, 1_500, 1)] if lives else [])
    assert (KEY in ticks.ledger.threads) == lives


def test_excluded_sites_do_not_take_others_time_with_them() -> None:
    waits = [sleep(1_000, 3_000), sleep(4_000, 9_000, kernel=4)]
    entries = zip((KEY, ThreadKey(8, 108)), waits, strict=True)
    sites = SiteDeltas.of(chain.from_iterable(site_records(key, [wait], 0, 10_000) for key, wait in entries))
    left = sites._replace(tid_acquired_ns=np.array([A, B])).without([KEY.pid])
    assert (left.key(0), left.totals(0).total_ns, left.tid_acquired_ns.tolist()) == (sites.key(1), 5_000, [B])


def test_memory_of_written_off_threads_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred, "_MOST_WRITTEN_OFF", 2)
    ticks = Ticks()
    for tid_acquired_ns in range(1, 6):
        ticks.tick([], ended(tid_acquired_ns, [sleep(5_000, 9_000)], 0, 10_000))
    ticks.give_up()
    assert len(ticks.ledger._deferred._written_off) == 2  # pyright: ignore[reportPrivateUsage]
    whole_ns = ticks.counted_ns()
    for tid_acquired_ns in (4, 5):
        ticks.tick([did(tid_acquired_ns, [sleep(5_000, 9_000)], 0, 10_000)])
        assert ticks.counted_ns() == whole_ns


def test_memory_of_old_tid_owners_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred, "_MOST_WRITTEN_OFF", 2)
    ticks = Ticks()
    waits = {
        tid_acquired_ns: sleep(ticks.now_ns + tid_acquired_ns * TICK_NS - 4_000, 900_000)
        for tid_acquired_ns in range(1, 6)
    }
    for tid_acquired_ns, wait in waits.items():
        ticks.tick([did(tid_acquired_ns, [wait], ticks.now_ns, ticks.now_ns + TICK_NS)])
    assert len(ticks.ledger._deferred._shown) == 2  # pyright: ignore[reportPrivateUsage]


def test_filtered_waits_are_not_taken_for_those_written_off() -> None:
    none = ThreadRecord._make(THREAD.unpack(bytes(THREAD.size)))
    first = none._replace(waits=10, filtered_waits=5, offcpu_ns=1_000, filtered_ns=500)
    records = deferred.DeferredRecords()
    records.write_off((KEY, 1), SiteTotals(8, 800))
    left = records.uncounted_part((KEY, 1), first)
    assert left and (left.waits, left.offcpu_ns) == (5, 500)
    rest = records.uncounted_part((KEY, 1), none._replace(waits=3, offcpu_ns=300))
    assert rest and (rest.waits, rest.offcpu_ns) == (0, 0)
