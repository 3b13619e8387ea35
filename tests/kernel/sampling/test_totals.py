"""Test the totals from sampled threads.

Each test plays the kernel and moves one thread by hand. Times are in ms.
"""

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from offtop.kernel.procfs.threads import Counters, ThreadState
from offtop.kernel.sampling.totals import LATE_NS, LATE_WITHOUT_TICKS_NS, SampledTotals
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey
from offtop.model.values.snapshot import Bound, SiteTotals, Snapshot, ThreadTotals
from offtop.model.values.stack import KERNEL, NO_STACK, Frame, Stack
from offtop.model.windows.window import Window, between
from tests.kernel.watch import check_sums

MS = 1_000_000
KEY = ThreadKey(4242, 4243)
SLEEP, LOCK = 3, 4
FIRST_SAMPLE_MS = 100
OVER_NS = 500_000
"""Upper bound for the time from the last sample to the tick that counts it, in these tests."""


class OneThread:
    """The totals of one thread, and its snapshots."""

    def __init__(self, late_ns: int = LATE_NS) -> None:
        self.passed_ns = 0
        """Off-CPU plus running time of the thread, in all windows."""
        catalog = Catalog()
        for number, category in ((SLEEP, "sleep"), (LOCK, "lock")):
            catalog.stacks[number] = Stack((Frame(KERNEL, 0, category),), category=category)
        self.totals = SampledTotals(catalog, 0, late_ns)
        self.last = Snapshot(0, 0)

    def sample(self, at: float, ran: float, queued: float, turns: int, kernel: int | None, began: float = 0) -> None:
        """Add a sample of the thread.

        `kernel` is None if it is ready. `ran`, `queued` and `turns` are sums since the thread began.
        """
        counters = Counters(round(ran * MS), round(queued * MS), turns)
        seen = ThreadState("thread", "R" if kernel is None else "S", began_ns=round(began * MS))
        known = not self.totals.needs_stack(KEY, counters)
        at_ns = round(at * MS)
        self.totals.add_sample(KEY, at_ns, counters, None if known else seen, NO_STACK if kernel is None else kernel)

    def tick(self, at: float) -> Window:
        """Return what passed since the last tick, after checking its accounting sums."""
        at_ns, before = round(at * MS), self.last
        waiting, _ = self.totals.end_tick(at_ns)
        threads, sites = self.totals.threads.frozen(), self.totals.sites.frozen()
        self.last = Snapshot(at_ns, at_ns, threads, sites, waiting, self.totals.catalog)
        window = between(before, self.last)
        check_sums(window)
        thread = of_thread(window)
        self.passed_ns += thread.offcpu_ns + thread.running_ns
        assert self.passed_ns <= max(0, at_ns - FIRST_SAMPLE_MS * MS) + OVER_NS, "more time than has passed"
        return window


def of_thread(window: Window) -> ThreadTotals:
    return dict(window.each_thread()).get(KEY, ThreadTotals())


def at(window: Window, kernel: int) -> SiteTotals:
    return dict(window.each_site()).get(SiteKey(*KEY, kernel, NO_STACK), SiteTotals())


def begun(kernel: int | None = SLEEP) -> OneThread:
    """Return a thread first seen at 100, after running for 5 ms in 2 turns."""
    one_thread = OneThread()
    one_thread.sample(100, 5, 1, 2, kernel)
    one_thread.tick(100)
    return one_thread


def test_unchanged_counters_are_one_wait_and_nothing_is_estimated() -> None:
    one_thread = begun()
    for ms in (150, 190):
        one_thread.sample(ms, 5, 1, 2, SLEEP)
    window = one_thread.tick(200)
    assert at(window, SLEEP) == SiteTotals(total_ns=100 * MS)
    assert of_thread(window) == ThreadTotals(offcpu_ns=100 * MS)
    assert one_thread.totals.guessed_ns == 0
    assert one_thread.tick(300).still == [SiteKey(*KEY, SLEEP, NO_STACK)]


def test_the_longest_gap_between_samples_is_reported_per_tick() -> None:
    one_thread = begun()
    one_thread.sample(130, 5, 1, 2, SLEEP)
    one_thread.sample(190, 15, 1, 3, LOCK)
    one_thread.sample(200, 15, 1, 3, LOCK)
    one_thread.tick(200)
    assert one_thread.totals.max_gap_ns == 60 * MS
    one_thread.sample(240, 15, 1, 3, LOCK)
    one_thread.tick(240)
    assert one_thread.totals.max_gap_ns == 40 * MS


def test_the_age_of_a_wait_found_at_startup_is_a_minimum() -> None:
    one_thread = begun()
    one = one_thread.last.waiting[KEY]
    assert (one.since_ns, one.bound, one.state) == (100 * MS, Bound.AT_LEAST, 1)


def test_the_age_of_a_wait_that_began_between_samples_is_a_maximum() -> None:
    one_thread = begun()
    one_thread.sample(140, 25, 1, 3, LOCK)
    one = one_thread.totals.end_tick(150 * MS)[0][KEY]
    assert (one.since_ns, one.bound) == (120 * MS, Bound.AT_MOST)


def test_run_queue_and_running_time_are_the_kernels_and_the_rest_blocked() -> None:
    """From 100 on it sleeps, is ready for 4 ms, runs for 6 ms, and is on the CPU at 200."""
    one_thread = begun()
    one_thread.sample(200, 11, 5, 3, None)
    window = one_thread.tick(200)
    assert at(window, SLEEP)[:3] == (1, 94 * MS, 4 * MS)
    assert of_thread(window)[:3] == (1, 94 * MS, 4 * MS)
    assert of_thread(window).running_ns == 6 * MS
    assert one_thread.totals.guessed_ns == 0


def test_time_between_two_locations_is_halved_and_counts_as_estimated() -> None:
    one_thread = begun()
    one_thread.sample(160, 5, 1, 2, SLEEP)
    one_thread.sample(200, 15, 1, 3, LOCK)
    window = one_thread.tick(200)
    assert (at(window, SLEEP).total_ns, at(window, LOCK).total_ns) == (75 * MS, 15 * MS)
    assert one_thread.totals.guessed_ns == 30 * MS


def test_waits_are_split_between_the_locations_before_and_after() -> None:
    """41 turns in 100 ms make 21 waits at the first location and 20 at the second."""
    one_thread = begun()
    one_thread.sample(200, 15, 1, 43, LOCK)
    window = one_thread.tick(200)
    assert (at(window, SLEEP).waits, at(window, LOCK).waits) == (21, 20)
    assert of_thread(window).waits == 41


def test_if_both_samples_find_it_ready_only_run_queue_time_is_known() -> None:
    one_thread = begun(None)
    one_thread.sample(200, 55, 46, 12, None)
    window = one_thread.tick(200)
    thread = of_thread(window)
    assert (thread.waits, thread.offcpu_ns, thread.runqueue_ns) == (10, 45 * MS, 45 * MS)
    assert (thread.short_waits, thread.short_ns, thread.running_ns) == (10, 45 * MS, 50 * MS)


def test_time_not_yet_added_to_a_running_thread_is_no_wait() -> None:
    one_thread = begun(None)
    one_thread.sample(200, 98, 1, 2, None)
    assert of_thread(one_thread.tick(200)) == ThreadTotals(running_ns=93 * MS)
    one_thread.sample(300, 202, 1, 2, SLEEP)
    window = one_thread.tick(300)
    assert of_thread(window).offcpu_ns == 3 * MS, "it has run for 197 of 200 ms"


def test_unseen_voluntary_switches_are_short_waits_and_stolen_time_is_none() -> None:
    for by_itself, short_ms in ((3, 60), (0, 0)):
        one_thread = begun(None)
        one_thread.totals.set_switches(KEY, 10, 10)
        one_thread.sample(200, 45, 1, 8, None)
        one_thread.totals.set_switches(KEY, 10 + by_itself, 13)
        thread = of_thread(one_thread.tick(200))
        assert (thread.short_ns, thread.waits) == (short_ms * MS, 6)
        assert one_thread.totals.guessed_ns == short_ms * MS


def test_preempted_run_queue_time_follows_the_switch_counters() -> None:
    one_thread = begun(None)
    one_thread.totals.set_switches(KEY, 0, 0)
    one_thread.sample(200, 65, 41, 6, None)
    one_thread.totals.set_switches(KEY, 1, 3)
    thread = of_thread(one_thread.tick(200))
    assert (thread.involuntary, thread.voluntary) == (3, 1)
    assert (thread.preempted_ns, thread.runqueue_ns) == (30 * MS, 40 * MS)


def test_a_tick_has_no_more_preempted_time_than_run_queue_time() -> None:
    one_thread = begun(None)
    one_thread.totals.set_switches(KEY, 0, 0)
    one_thread.sample(200, 65, 41, 6, None)
    one_thread.tick(200)  # there was no time to read the switches
    one_thread.sample(300, 155, 46, 7, None)
    one_thread.totals.set_switches(KEY, 1, 4)
    thread = of_thread(one_thread.tick(300))
    assert (thread.involuntary, thread.waits) == (1, 1)
    assert (thread.preempted_ns, thread.runqueue_ns) == (5 * MS, 5 * MS), "not 4 of 5 times 45"


def test_a_ready_thread_without_a_cpu_is_in_the_run_queue_meanwhile() -> None:
    one_thread = begun(None)
    for ms in (140, 200):
        one_thread.sample(ms, 5, 1, 2, None)
    window = one_thread.tick(200)
    assert of_thread(window)[1:4] == (100 * MS, 100 * MS, 100 * MS)
    one_thread.sample(300, 8, 196, 3, None)
    window = one_thread.tick(300)
    assert of_thread(window)[:4] == (1, 95 * MS, 95 * MS, 0)


def test_a_woken_thread_without_a_cpu_counts_once_and_the_error_as_estimated() -> None:
    """It is woken at 200 and gets a CPU at 5100; only then do its counters show it."""
    one_thread = begun()
    for ms in range(1000, 6000, 1000):
        one_thread.sample(ms, 5, 1, 2, SLEEP)
        one_thread.tick(ms)
    one_thread.sample(5200, 105, 4901, 3, None)
    thread = of_thread(one_thread.tick(5200))
    assert (thread.offcpu_ns, thread.running_ns, one_thread.passed_ns) == (100 * MS, 100 * MS, 5100 * MS)
    assert one_thread.totals.guessed_ns == 4800 * MS


def test_a_wait_is_run_queue_once_it_is_seen_ready() -> None:
    one_thread = begun()
    one_thread.sample(1000, 5, 1, 2, SLEEP)
    assert one_thread.totals.maybe_runnable == [KEY]
    one_thread.totals.mark_runnable(KEY, 1000 * MS)
    assert one_thread.totals.maybe_runnable == []
    one_thread.tick(1000)
    one_thread.sample(2000, 5, 1, 2, SLEEP)
    assert of_thread(one_thread.tick(2000))[1:3] == (1000 * MS, 1000 * MS)
    assert one_thread.last.waiting[KEY].letter == "R"
    one_thread.sample(2200, 105, 1901, 3, None)
    assert of_thread(one_thread.tick(2200))[1:3] == (100 * MS, 100 * MS)
    assert one_thread.totals.guessed_ns == 800 * MS


def test_run_queue_time_before_the_first_sample_is_not_counted() -> None:
    one_thread = begun(None)
    one_thread.sample(150, 15, 9001, 3, SLEEP)
    assert of_thread(one_thread.tick(150))[1:3] == (40 * MS, 40 * MS)


def test_run_queue_time_that_the_kernel_adds_late_is_not_stolen_time() -> None:
    """It ran until 120, was preempted, got a CPU at 220, and ran on."""
    one_thread = begun(None)
    one_thread.totals.set_switches(KEY, 0, 0)
    one_thread.sample(180, 25, 1, 2, None)
    one_thread.totals.set_switches(KEY, 0, 1)
    one_thread.tick(180)
    one_thread.sample(240, 45, 101, 3, None)
    assert of_thread(one_thread.tick(240))[1:3] == (100 * MS, 100 * MS)


def test_an_overcounted_wait_delays_the_start_of_the_next() -> None:
    """It slept until 140, ran until 160, and sleeps again; a tick at 150 showed it asleep."""
    one_thread = begun()
    one_thread.totals.end_tick(150 * MS)
    one_thread.sample(160, 25, 1, 3, SLEEP)
    waiting, _ = one_thread.totals.end_tick(165 * MS)
    assert waiting == {}, "10 ms of it were counted before"
    waiting, _ = one_thread.totals.end_tick(180 * MS)
    assert (waiting[KEY].from_ns, waiting[KEY].switched_out_ns) == (170 * MS, 160 * MS)


def test_without_cpu_ticks_counters_unchanged_for_under_a_second_mean_running() -> None:
    one_thread = OneThread(LATE_WITHOUT_TICKS_NS)
    for ms in (100, 1000):
        one_thread.sample(ms, 5, 1, 2, None)
    assert of_thread(one_thread.tick(1000)) == ThreadTotals()
    one_thread.sample(1300, 5, 1, 2, None)
    assert of_thread(one_thread.tick(1300)).runqueue_ns == 1200 * MS


def test_an_exited_thread_keeps_its_time_and_then_joins_the_exited_ones() -> None:
    one_thread = begun()
    one_thread.totals.end_thread(KEY)
    assert one_thread.tick(200).threads == {}
    assert KEY not in one_thread.last.waiting
    assert [*one_thread.totals.threads] == [KEY]
    one_thread.tick(300)
    assert [*one_thread.totals.threads] == [(0, 0)]
    assert one_thread.totals.catalog.life(KEY).to_ns == 200 * MS


def test_a_thread_that_exits_between_samples_waits_for_half_the_gap_as_an_estimate() -> None:
    one_thread = begun()
    one_thread.sample(140, 5, 1, 2, SLEEP)
    one_thread.totals.end_thread(KEY, 200 * MS)
    thread = of_thread(one_thread.tick(200))
    assert (thread.offcpu_ns, thread.waits, thread.max_ns) == (70 * MS, 1, 100 * MS)
    assert one_thread.totals.guessed_ns == 30 * MS


def test_a_thread_that_began_since_the_last_sample_counts_in_full() -> None:
    """It began at 130, was in the run queue for 5 ms, ran for 10 ms in 3 turns, and sleeps."""
    one_thread = OneThread()
    for ms in (100, 120, 200):
        one_thread.totals.begin_scan(ms * MS)
    one_thread.sample(200, 10, 5, 3, SLEEP, began=130)
    thread = of_thread(one_thread.tick(200))
    assert (thread.running_ns, thread.offcpu_ns, thread.runqueue_ns, thread.waits) == (10 * MS, 60 * MS, 5 * MS, 2)
    assert one_thread.totals.guessed_ns == 55 * MS
    assert one_thread.last.waiting[KEY].bound == Bound.AT_MOST


def test_a_thread_from_before_startup_or_a_filter_change_starts_at_zero() -> None:
    for began, anew in ((119, False), (130, True)):
        one_thread = OneThread()
        for ms in (100, 120, 200):
            one_thread.totals.begin_scan(ms * MS, anew)
        one_thread.sample(200, 10, 5, 3, SLEEP, began)
        assert of_thread(one_thread.tick(200)) == ThreadTotals()
        assert one_thread.last.waiting[KEY].bound == Bound.AT_LEAST


def test_another_thread_with_the_same_tid_starts_over() -> None:
    one_thread = begun()
    one_thread.sample(200, 1, 0, 1, SLEEP)
    assert of_thread(one_thread.tick(250)).offcpu_ns == 50 * MS
    one_thread.totals.begin_scan(250 * MS)
    one_thread.totals.begin_scan(300 * MS)
    one_thread.sample(350, 0, 0, 1, SLEEP, began=300)
    assert of_thread(one_thread.tick(350)).offcpu_ns == 50 * MS, (
        "for the second; half of 200 to 300 counted for the first"
    )


def test_estimated_percentiles_are_not_too_low() -> None:
    """If 40 waits are 100 ms together, half are at most 5 ms, and none is over 100 ms."""
    one_thread = begun(None)
    one_thread.sample(200, 5, 1, 42, LOCK)
    thread = of_thread(one_thread.tick(200))
    assert log2.count(thread.histogram) == 40
    assert 2.5 * MS <= log2.percentile_ns(thread.histogram, 50, thread.max_ns) <= 10 * MS
    assert thread.max_ns == 100 * MS


class FixedThresholds(NamedTuple):
    """Thresholds that report waits of 50 ms and more."""

    lowest_ns: int = 50 * MS
    version: int = 0

    def thresholds_ns(self, program: str, kernel: int, catalog: Catalog) -> tuple[int, int]:
        return self.lowest_ns, self.lowest_ns


def test_without_time_to_read_its_stack_a_thread_is_assumed_to_wait_where_it_did() -> None:
    """From 100 on it sleeps, is ready for 4 ms, runs for 6 ms, and waits again."""
    one_thread = begun()
    one_thread.totals.add_assumed_sample(KEY, 200 * MS, Counters(11 * MS, 5 * MS, 3))
    window = one_thread.tick(200)
    assert at(window, SLEEP)[:3] == (1, 94 * MS, 4 * MS)
    assert of_thread(window).running_ns == 6 * MS
    assert one_thread.totals.guessed_ns == 94 * MS
    one = one_thread.last.waiting[KEY]
    assert (one.switched_out_ns, one.site.kernel, one.letter) == (200 * MS, SLEEP, "S")


def test_without_time_to_read_its_stack_a_ready_thread_stays_ready() -> None:
    one_thread = begun(None)
    one_thread.totals.add_assumed_sample(KEY, 200 * MS, Counters(55 * MS, 46 * MS, 12))
    assert of_thread(one_thread.tick(200))[:3] == (10, 45 * MS, 45 * MS)
    assert one_thread.last.waiting == {}


def test_an_outlier_is_reported_at_its_end_if_seen_for_the_threshold() -> None:
    for seen_ms, reported in ((140, 0), (160, 1)):
        one_thread = begun()
        one_thread.totals.thresholds = FixedThresholds()
        one_thread.sample(seen_ms, 5, 1, 2, SLEEP)
        one_thread.sample(200, 15, 1, 3, LOCK)
        _, some = one_thread.totals.end_tick(200 * MS)
        assert len(some) == reported
        assert all(one.site.kernel == SLEEP and not one.is_exact for one in some)
        assert all((one.began_ns, one.ended_ns) == (100 * MS, 160 * MS) for one in some)


def test_waits_not_seen_for_the_threshold_are_no_outliers() -> None:
    """It is woken every 50 ms, and one_thread at once a second."""
    one_thread = begun()
    for turns in range(3, 6):
        one_thread.totals.thresholds = FixedThresholds()
        ms = 1000 * (turns - 2)
        one_thread.sample(ms, 5 + turns, 1, 20 * turns, SLEEP)
        waiting, reported = one_thread.totals.end_tick((ms + 1) * MS)
        assert (waiting[KEY].switched_out_ns, waiting[KEY].bound, reported) == (ms * MS, Bound.AT_MOST, [])
        assert waiting[KEY].since_ns < ms * MS


def test_unused_sites_are_evicted_and_the_sums_stay() -> None:
    one_thread = begun()
    one_thread.sample(150, 15, 1, 3, LOCK)
    one_thread.tick(150)
    total_ns = one_thread.totals.sites[SiteKey(*KEY, SLEEP, NO_STACK)].total_ns
    for ms in (300, 600):
        assert next(iter(one_thread.totals.sites)).tid == KEY.tid
        one_thread.tick(ms)
        one_thread.totals.evict_old(200 * MS)
    assert {key: one.total_ns for key, one in one_thread.totals.sites.items()}[
        SiteKey(0, 0, SLEEP, NO_STACK)
    ] == total_ns
    assert SiteKey(*KEY, SLEEP, NO_STACK) not in one_thread.totals.sites
    one_thread.tick(700)


steps = st.tuples(
    *(st.floats(0.1, 80), st.floats(0, 1), st.floats(0, 1), st.integers(0, 5)),
    *(st.sampled_from([None, SLEEP, LOCK]), st.sampled_from(["", "tick", "checked"])),
)


@given(st.lists(steps, max_size=30))
def test_sums_hold_and_nothing_decreases_or_counts_twice_whatever_happens(
    done: list[tuple[float, float, float, int, int | None, str]],
) -> None:
    """The thread goes on as it was, or has had `new` turns and is at `there`.

    If it goes on, it may be in the run queue.
    """
    one_thread, now, ran, queued, turns, waits = begun(), 100.0, 5.0, 1.0, 2, 0.0
    kernel: int | None = SLEEP
    for passed, running, ready, new, there, end in done:
        now += passed
        if new:
            ran += passed * running
            queued += waits + passed * (1 - running) * ready
            turns, kernel, waits = turns + new, there, 0.0
        elif kernel is None and not waits and running > 0.5:
            ran += passed * running
        else:
            waits += passed * (ready if waits or kernel is not None else 1 - running)
        one_thread.sample(now, ran, queued, turns, kernel)
        if end == "checked" and waits and one_thread.totals.maybe_runnable:
            one_thread.totals.mark_runnable(KEY, round(now * MS))
        if end:
            now += 0.5
            thread = of_thread(one_thread.tick(now))
            assert min(thread[:9]) >= 0
