"""Test the first wait of a new thread: it is for a CPU, and counts as run-queue time."""

from collections.abc import Sequence

import numpy as np
import pytest

from offtop.kernel.accounting.ledger import Ledger
from offtop.kernel.accounting.tick_records import NewThread, OffCpuTask, SiteDeltas
from offtop.kernel.bpf import layout
from offtop.kernel.bpf.layout import ThreadRecord
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import SiteKey, ThreadKey
from offtop.model.values.snapshot import SiteTotals, ThreadTotals
from offtop.model.values.stack import NO_STACK
from offtop.model.windows.window import Window, between
from tests.kernel.accounting.simulated_kernel import MIN_NS, NOTHING, TICK_NS, Wait, record_of, site_records, snapshot
from tests.kernel.watch import check_sums

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
