"""Test that the cost of a tick follows the threads that did something, not those that exist."""

import time
from collections.abc import Iterator

import numpy as np

from offtop.kernel.accounting.ledger import Ledger
from offtop.kernel.accounting.tick_records import OffCpuTask, OffCpuTasks, SiteDeltas, ThreadRecords
from offtop.kernel.bpf import layout
from offtop.kernel.bpf.layout import ThreadRecord
from offtop.model.values.catalog import SiteKey, ThreadKey
from offtop.model.values.snapshot import SiteTotals, Snapshot
from offtop.model.windows.breakdown import Idle
from offtop.model.windows.history import HistoryTick
from offtop.model.windows.window import between

S = 1_000_000_000
MIN_NS = 1_000_000
_TICKS = 12


def ticks(threads: int, active: int) -> Iterator[float]:
    """Yield the CPU time of each tick of that many threads, of which so many end a wait and begin another in it."""
    ledger, keys = Ledger(0), [ThreadKey(7, 100 + number) for number in range(threads)]
    last_ns = dict.fromkeys(keys, 0)
    earlier = Snapshot(0, 0)
    lanes = np.zeros(layout.LANES, np.uint32)
    lanes[20] = 1
    for tick in range(1, _TICKS + 1):
        at_ns = tick * S
        some = keys if tick == 1 else keys[:active]
        records: list[tuple[ThreadKey, ThreadRecord]] = []
        for key in some:
            began_ns, last_ns[key] = last_ns[key], at_ns - S // 2
            off_ns = last_ns[key] - began_ns
            numbers = dict.fromkeys(ThreadRecord._fields, 0) | {"switched_out_ns": last_ns[key], "waits": 1, "state": 1}
            numbers |= {
                "offcpu_ns": off_ns,
                "max_ns": off_ns,
                "first_off_ns": off_ns,
                "first_switched_out_ns": began_ns,
            }
            numbers |= {"first_kernel": 30, "first_user": 31, "first_kind": layout.KIND_SITE}
            records.append((key, ThreadRecord(**{**numbers, "histogram": lanes.tobytes()})))  # pyright: ignore[reportArgumentType]
        ended = SiteDeltas.of(
            (SiteKey(*key, 30, 31), SiteTotals(1, one.offcpu_ns, 0, one.max_ns, 1 << 20)) for key, one in records
        )
        rows = ThreadRecords.of(records)
        scanned = OffCpuTasks.of(OffCpuTask(key, last_ns[key], False, 0, 30) for key in some)
        began_s = time.thread_time()
        ledger.tick(at_ns, MIN_NS, rows, ended, scanned)
        later = Snapshot(0, at_ns, ledger.threads.frozen(), ledger.sites.frozen(), ledger.waiting, moves=ledger.moves)
        window = between(earlier, later)
        HistoryTick.of(window, Idle())
        if tick > 2:  # in the first two, all threads did something
            yield time.thread_time() - began_s
        assert sum(one.offcpu_ns for one in dict(window.each_thread()).values()) == threads * S
        earlier = later


def test_a_tick_costs_what_its_active_threads_cost() -> None:
    few_of_few, few = min(ticks(20, active=20)), min(ticks(3_000, active=20))
    thousand, many = min(ticks(1_000, active=1_000)), min(ticks(3_000, active=3_000))
    assert few < many / 2, "2,980 threads that go on waiting cost little"
    assert few < 5 * few_of_few, "and little more than if they did not exist"
    assert many < 5 * thousand, "three times as many active threads cost about three times as much"
