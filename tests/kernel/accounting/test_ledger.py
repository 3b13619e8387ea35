"""Test the ledger against a simulated kernel in which every wait is known.

The ledger must credit off-CPU time to the right thread, site and tick.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtop.kernel.accounting.ledger import Ledger
from offtop.kernel.accounting.tick_records import NewThread, OffCpuTask, SiteDeltas
from offtop.kernel.bpf import layout
from offtop.kernel.bpf.layout import ThreadRecord
from offtop.kernel.bpf.scan_rows import histogram_of
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey
from offtop.model.values.snapshot import EXITED, Bound, Move, SiteTotals, Snapshot, ThreadTotals
from offtop.model.values.stack import ENDED, FIRST_STACK, GONE, NO_STACK, SHORT, Frame, Stack
from offtop.model.values.wake import FIRST_WAKE, Storm
from offtop.model.windows.window import Window, between, merge
from tests.kernel.watch import check_sums

MIN_NS = 1_000
TICK_NS = 10_000
NOTHING = SiteDeltas.of(())


@dataclass(frozen=True)
class Wait:
    """One wait, as a kernel would see it."""

    switched_out_ns: int
    switched_in_ns: int
    ready_ns: int
    """When the thread was made runnable; equal to switched_out_ns if it was preempted."""
    preempted: bool
    kernel: int
    user: int

    @property
    def off_ns(self) -> int:
        return self.switched_in_ns - self.switched_out_ns

    @property
    def wake(self) -> int:
        """ID of the wake that ended the wait; waits at the first stack have none."""
        return 0 if self.kernel == FIRST_STACK or self.preempted else self.kernel + 20

    @property
    def on(self) -> int:
        """Wake ID that the task scan reports: that of the wait's end, another one, or none."""
        return {FIRST_STACK + 1: self.wake, FIRST_STACK + 2: 99}.get(self.kernel, 0)

    @property
    def runqueue_ns(self) -> int:
        return self.switched_in_ns - self.ready_ns

    @property
    def kind(self) -> int:
        return layout.KIND_SITE if self.off_ns >= MIN_NS else layout.KIND_SHORT


Step = tuple[int, int, int, bool, int]
"""Running ns, waiting ns, percentage of the wait spent ready, preempted, stack number."""

threads_of_steps = st.lists(
    st.lists(
        st.tuples(
            st.integers(0, 3 * TICK_NS),
            st.one_of(st.integers(1, 2 * MIN_NS), st.integers(MIN_NS, 4 * TICK_NS)),
            st.integers(0, 100),
            st.booleans(),
            st.integers(FIRST_STACK, FIRST_STACK + 2),
        ),
        max_size=12,
    ),
    max_size=4,
)


def waits_of(steps: list[Step]) -> list[Wait]:
    waits: list[Wait] = []
    now_ns = 1  # 0 means "no time"
    for running_ns, waiting_ns, ready_pct, preempted, stack in steps:
        switched_out_ns = now_ns + running_ns
        now_ns = switched_out_ns + waiting_ns
        ready_ns = switched_out_ns if preempted else now_ns - waiting_ns * ready_pct // 100
        waits.append(Wait(switched_out_ns, now_ns, ready_ns, preempted, stack, stack + 10))
        now_ns += 1
    return waits


def record_of(waits: list[Wait], from_ns: int, to_ns: int) -> ThreadRecord | None:
    """Return the `struct thread` contents for the events after from_ns, up to to_ns."""
    ended = [w for w in waits if from_ns < w.switched_in_ns <= to_ns]
    left = [w for w in waits if from_ns < w.switched_out_ns <= to_ns or (from_ns == 0 == w.switched_out_ns)]
    if not ended and not left:
        return None
    current = next((w for w in waits if w.switched_out_ns <= to_ns < w.switched_in_ns), None)
    short = [w for w in ended if w.kind == layout.KIND_SHORT]
    first = ended[0] if ended else None
    state_of = (left or ended)[-1]
    return ThreadRecord(
        switched_out_ns=(current.switched_out_ns or 1) if current else 0,
        waits=len(ended),
        offcpu_ns=sum(w.off_ns for w in ended),
        runqueue_ns=sum(w.runqueue_ns for w in ended),
        max_ns=max((w.off_ns for w in ended), default=0),
        preempted_ns=sum(w.off_ns for w in ended if w.preempted),
        involuntary=sum(w.preempted for w in ended),
        short_waits=len(short),
        short_ns=sum(w.off_ns for w in short),
        short_runqueue_ns=sum(w.runqueue_ns for w in short),
        filtered_waits=0,
        filtered_ns=0,
        filtered_runqueue_ns=0,
        lost_waits=0,
        lost_ns=0,
        lost_runqueue_ns=0,
        first_switched_out_ns=(first.switched_out_ns or 1) if first else 0,
        first_off_ns=first.off_ns if first else 0,
        first_runqueue_ns=first.runqueue_ns if first else 0,
        first_kernel=first.kernel if first and first.kind == layout.KIND_SITE else 0,
        first_user=first.user if first and first.kind == layout.KIND_SITE else 0,
        first_wake=first.wake if first and first.kind == layout.KIND_SITE else 0,
        exec_ns=0,
        exec_at_ns=0,
        exec_off_ns=0,
        tid_acquired_ns=0,
        first_kind=first.kind | (layout.KIND_PREEMPTED if first.preempted else 0) if first else 0,
        state=layout.RUNNING if state_of.preempted else 1,
        objects=0,
        is_previous=0,
        histogram=histogram_of(log2.to_lanes([log2.of(*(w.off_ns for w in ended))])[0]),
    )


def site_records(key: ThreadKey, waits: list[Wait], from_ns: int, to_ns: int) -> list[tuple[SiteKey, SiteTotals]]:
    return [
        (SiteKey(*key, w.kernel, w.user, w.wake), SiteTotals(1, w.off_ns, w.runqueue_ns, w.off_ns, log2.of(w.off_ns)))
        for w in waits
        if from_ns < w.switched_in_ns <= to_ns and w.kind == layout.KIND_SITE
    ]


def off_cpu_tasks_of(key: ThreadKey, waits: list[Wait], at_ns: int) -> list[OffCpuTask]:
    """Return every thread that is off CPU, with its stack if it has waited long enough."""
    return [
        OffCpuTask(
            key, w.switched_out_ns or 1, ready := w.ready_ns <= at_ns, w.ready_ns if ready else 0, stack, wake=w.on
        )
        for w in waits
        if w.switched_out_ns <= at_ns < w.switched_in_ns
        for stack in [w.kernel if at_ns - w.switched_out_ns >= MIN_NS else None]
    ]


def snapshot(ledger: Ledger) -> Snapshot:
    kept = ledger.threads.frozen(), ledger.sites.frozen(), ledger.waiting
    return Snapshot(0, ledger.at_ns, *kept, ledger.catalog, moves=ledger.moves)


def run(
    all_waits: dict[ThreadKey, list[Wait]], scan_every: int = 1, lag_ns: int = 0, snapshot_every: int = 1
) -> list[Window]:
    """Return windows of `snapshot_every` ticks of TICK_NS, until every wait has ended.

    The task scan is passed in at each `scan_every`-th tick only, and only if a snapshot follows. The map buffers flip
    `lag_ns` after the time of the snapshot.
    """
    end_ns = max((w.switched_in_ns for waits in all_waits.values() for w in waits), default=0)
    ledger = Ledger(0)
    taken = [snapshot(ledger)]
    for number, at_ns in enumerate(range(TICK_NS, max(end_ns, 1) + TICK_NS * snapshot_every, TICK_NS)):
        has_snapshot = (number + 1) % snapshot_every == 0
        from_ns, to_ns = at_ns - TICK_NS + (lag_ns if number else 0), at_ns + lag_ns
        records = {key: record_of(waits, from_ns, to_ns) for key, waits in all_waits.items()}
        ledger.tick(
            at_ns,
            MIN_NS,
            [(key, record) for key, record in records.items() if record],
            SiteDeltas.of(
                site for key, waits in all_waits.items() for site in site_records(key, waits, from_ns, to_ns)
            ),
            [one for key, w in all_waits.items() for one in off_cpu_tasks_of(key, w, at_ns)]
            if number % scan_every == 0 and has_snapshot
            else [],
            has_snapshot=has_snapshot,
        )
        if has_snapshot:
            taken.append(snapshot(ledger))
    return [between(a, b) for a, b in pairwise(taken)]


def passed(waits: list[Wait], from_ns: int, to_ns: int) -> int:
    return sum(max(0, min(w.switched_in_ns, to_ns) - max(w.switched_out_ns, from_ns)) for w in waits)


def keyed(threads: list[list[Step]]) -> dict[ThreadKey, list[Wait]]:
    return {ThreadKey(7, tid): waits_of(steps) for tid, steps in enumerate(threads, 100)}


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


NEW = layout.RUNNING | layout.TASK_NEW


def new_thread(switched_out_ns: int, off_ns: int, waits: list[Wait], to_ns: int) -> ThreadRecord:
    """Return a record whose first wait was the one for the thread's first CPU."""
    first = Wait(
        switched_out_ns, switched_out_ns + off_ns, switched_out_ns, preempted=True, kernel=NO_STACK, user=NO_STACK
    )
    record = record_of([first, *waits], 0, to_ns)
    assert record
    kind = record.first_kind & ~layout.KIND_PREEMPTED | layout.KIND_NEW
    involuntary, preempted_ns = record.involuntary - 1, record.preempted_ns - off_ns
    return record._replace(first_kind=kind, involuntary=involuntary, preempted_ns=preempted_ns, tid_acquired_ns=500)


@pytest.mark.parametrize("scanned", [True, False], ids=["scanned while it waited", "scanned once it ran"])
@pytest.mark.parametrize("later", [0, 1, 3], ids=["switched out at once", "a tick later", "3 ticks later"])
def test_first_wait_of_a_new_thread_counts_as_run_queue_in_the_right_ticks(scanned: bool, later: int) -> None:
    key, ledger = ThreadKey(7, 100), Ledger(0)
    preempted = Wait(26_000 + later * TICK_NS, 28_000 + later * TICK_NS, 26_000 + later * TICK_NS, True, 3, 13)
    taken = [snapshot(ledger)]

    def tick(
        threads: list[tuple[ThreadKey, ThreadRecord]],
        sites: SiteDeltas = NOTHING,
        scanned_tasks: Sequence[OffCpuTask] = (),
        started: Sequence[NewThread] = (),
    ) -> Window:
        ledger.tick(taken[-1].at_ns + TICK_NS, MIN_NS, threads, sites, scanned_tasks, started=started)
        taken.append(snapshot(ledger))
        return between(taken[-2], taken[-1])

    waits_now = OffCpuTask(key, 2_000, True, 0, 9, NEW, tid_acquired_ns=500)
    windows = [tick([], scanned_tasks=[waits_now] if scanned else [])]
    if scanned:
        assert ledger.waiting[key].is_ready
        assert not ledger.waiting[key].preempted
    started = NewThread(key, 2_000, 21_000, 500)  # until 23,000
    windows.append(tick([]))
    for _ in range(later):
        windows.append(tick([], started=[started]))
        assert key not in ledger.waiting
    record = new_thread(2_000, 21_000, [preempted], taken[-1].at_ns + TICK_NS)
    ended = [
        *site_records(key, [preempted], 0, taken[-1].at_ns + TICK_NS),
        (SiteKey(*key, NO_STACK, NO_STACK), SiteTotals(1, 21_000, 21_000, 21_000, log2.of(21_000))),
    ]
    sites = SiteDeltas.of(ended)._replace(tid_acquired_ns=np.full(len(ended), 500))
    windows.append(tick([(key, record)], sites, started=[started]))
    for window in windows:
        check_sums(window)
    totals = [dict(window.each_thread()).get(key, ThreadTotals()) for window in windows]
    assert [one.runqueue_ns - one.preempted_ns for one in totals] == [
        *((8_000, 10_000, 3_000) if scanned else (0, 0, 21_000)),
        *[0] * later,
    ]
    assert all(one.offcpu_ns == one.runqueue_ns for one in totals)
    assert [one.waits for one in totals] == [*[0] * (len(totals) - 1), 2]
    assert (totals[-1].involuntary, totals[-1].preempted_ns) == (1, 2_000)


def test_a_new_thread_with_a_reused_tid_keeps_the_old_time_apart() -> None:
    key, ledger = ThreadKey(7, 100), Ledger(0)
    old = record_of([Wait(1_000, 99_000, 99_000, False, 3, 13)], 0, TICK_NS)
    assert old
    ledger.tick(10_000, MIN_NS, [(key, old._replace(tid_acquired_ns=400))], NOTHING, [])
    before = snapshot(ledger)
    ledger.tick(20_000, MIN_NS, [], NOTHING, [OffCpuTask(key, 15_000, True, 0, 9, NEW, tid_acquired_ns=14_000)])
    window = between(before, snapshot(ledger))
    check_sums(window)
    assert dict(window.each_thread())[key].offcpu_ns == 5_000
    assert ledger.waiting[key].switched_out_ns == 15_000


def test_no_waits_make_an_empty_window() -> None:
    [window] = run({})
    assert (window.span_ns, dict(window.each_thread()), dict(window.each_site())) == (TICK_NS, {}, {})


def primed(kernel: int | None = 3) -> Ledger:
    ledger = Ledger(1_000)
    ledger.tick(2_000, MIN_NS, [], NOTHING, [OffCpuTask(ThreadKey(7, 100), 1_500, False, 0, kernel)], primed_ns=1_400)
    return ledger


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


@pytest.mark.parametrize("others", [0, 1])
def test_wait_of_a_process_that_has_exited_keeps_the_user_stack_that_was_read(others: int) -> None:
    """Unless other waits of the thread ended at the same kernel stack: then it is unknown which of them are there."""
    key, read, gone = ThreadKey(7, 100), 50, 60
    catalog = Catalog(stacks={read: Stack((Frame("/bin/x", 1),)), gone: Stack((Frame(GONE, 0),), end=ENDED)})
    waits = [
        Wait(1_500, 8_000, ready_ns=8_000, preempted=False, kernel=FIRST_STACK, user=gone),
        Wait(9_000, 11_000, ready_ns=11_000, preempted=False, kernel=FIRST_STACK, user=gone),
    ][: 1 + others]
    ledger = Ledger(1_000, catalog=catalog)
    ledger.tick(2_000, MIN_NS, [], NOTHING, [OffCpuTask(key, 1_500, False, 0, FIRST_STACK)], primed_ns=1_400)
    ledger.read_users(np.array([key]), np.array([1_500]), np.array([read]))
    ledger.tick(3_000, MIN_NS, [], NOTHING, [])
    before = snapshot(ledger)
    record = record_of(waits, 3_000, 12_000)
    assert record
    ended = SiteDeltas.of(site_records(key, waits, 3_000, 12_000))
    ledger.tick(12_000, MIN_NS, [(key, record)], ended, [], exited={key: 11_900})
    check_sums(window := between(before, snapshot(ledger)))
    ended_at = {site.user: totals.waits for site, totals in window.sites.items() if totals.waits}
    assert ended_at == ({gone: 2} if others else {read: 1})


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


def test_a_user_stack_read_belongs_to_one_wait_only() -> None:
    ledger, one_key = primed(), ThreadKey(7, 100)
    one = ledger.waiting[one_key]
    for key, switched_out_ns in (
        (one_key, one.switched_out_ns - 1),
        (one_key, one.switched_out_ns + 1),
        (ThreadKey(7, 101), one.switched_out_ns),
    ):
        ledger.read_users(np.array([key]), np.array([switched_out_ns]), np.array([9]))
        assert ledger.waiting == {one_key: one}
    ledger.read_users(np.array([one_key]), np.array([one.switched_out_ns]), np.array([9]))
    assert ledger.waiting == {one_key: one._replace(user=9)}
    # time already shown stays where it is; from now on time counts at the new site
    a = snapshot(ledger)
    ledger.tick(12_000, MIN_NS, [], NOTHING, [])
    b = snapshot(ledger)
    assert dict(between(a, b).each_site()) == {SiteKey(7, 100, 3, 9): SiteTotals(0, 10_000)}
    ledger.tick(22_000, MIN_NS, [], NOTHING, [])
    assert dict(between(b, snapshot(ledger)).each_site()) == {SiteKey(7, 100, 3, 9): SiteTotals(0, 10_000)}
    assert dict(between(a, snapshot(ledger)).each_site()) == {SiteKey(7, 100, 3, 9): SiteTotals(0, 20_000)}
