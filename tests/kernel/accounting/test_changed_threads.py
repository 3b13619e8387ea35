"""Test the list of the threads that have something to report, with which few of many threads are visited."""

import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from offtop.kernel.accounting import changed_threads
from offtop.kernel.accounting.changed_threads import ChangedThreads
from offtop.kernel.accounting.drain import Drain
from offtop.kernel.accounting.tick_records import RuntimeSamples
from offtop.kernel.bpf import layout, libbpf
from offtop.kernel.bpf.map_sizes import RUNNING
from offtop.kernel.bpf.scan_rows import TASK_ROW, THREAD_ROW
from offtop.model.values.catalog import Catalog
from offtop.model.values.table import integers
from tests.kernel import programs, watch
from tests.kernel.watch import MS, Watch

CPUS, PER_CPU = 2, 100


class Written:
    """A map whose values are kept in a dictionary."""

    entries = CPUS * (PER_CPU + RUNNING)

    def __init__(self, *values: bytes) -> None:
        self.values = {number.to_bytes(4, "little"): value for number, value in enumerate(values)}

    def lookup(self, key: bytes) -> bytes:
        return self.values[key]

    def update(self, key: bytes, value: bytes) -> None:
        self.values[key] = value


def counts(*of_cpus: int) -> bytes:
    return b"".join(count.to_bytes(8, "little") for count in of_cpus)


def list_of(changes: Written, tids: Written | None = None) -> ChangedThreads:
    program: Any = SimpleNamespace(maps={"changed": tids or Written(), "changes": changes})
    return ChangedThreads(program, -1)


@pytest.mark.parametrize(
    ("noted", "threads", "is_taken"),
    [
        ((3, 4), 10_000, True),
        ((PER_CPU, 0), 10_000, True),
        ((PER_CPU + 1, 0), 10_000, False),  # one found no room
        ((90, 90), 180, False),  # nearly all have changed
        ((0, 0), 10, False),  # visiting the entries costs more
    ],
)
def test_the_list_is_taken_if_it_is_complete_and_short(
    monkeypatch: pytest.MonkeyPatch, noted: tuple[int, int], threads: int, is_taken: bool
) -> None:
    monkeypatch.setattr(changed_threads, "threads_now", lambda: threads)
    changes = Written(counts(9, 9), counts(*noted))
    assert list_of(changes).take(1) == is_taken
    assert [*changes.values.values()] == [counts(9, 9), counts(0, 0)], "this buffer's begin anew"


@pytest.mark.parametrize("buffer", [0, 1])
def test_threads_that_may_only_have_run_are_added_until_they_are_forgotten(
    monkeypatch: pytest.MonkeyPatch, buffer: int
) -> None:
    monkeypatch.setattr(changed_threads, "threads_now", lambda: 10_000)
    changes, tids = Written(counts(0, 0), counts(0, 0)), Written()
    some = list_of(changes, tids)
    some.note_running(integers([[7], [8]], 1)[:, 0])
    assert some.take(buffer)
    added = {int.from_bytes(key, "little"): layout.CHANGED.unpack(value)[buffer] for key, value in tids.values.items()}
    assert sorted(added.values()) == [7, 8]
    assert min(added) >= CPUS * PER_CPU, "BPF does not write these entries"
    tids.values.clear()
    some.forget_running()
    assert some.take(buffer)
    assert not tids.values


def test_threads_queued_for_their_first_cpu_are_added_until_the_next_scan_of_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(changed_threads, "threads_now", lambda: 10_000)
    changes, tids = Written(counts(0, 0), counts(0, 0)), Written()
    some = list_of(changes, tids)
    for queued in ([7, 8], [9]):
        some.begin_scan(np.array(queued))
        for _ in range(2):
            tids.values.clear()
            assert some.take(0)
            assert sorted(layout.CHANGED.unpack(value)[0] for value in tids.values.values()) == queued
            some.forget_running()


def test_a_thread_that_is_visited_twice_has_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time its record is empty, and it has run on."""
    visited = np.zeros(4, TASK_ROW)
    visited["pid"] = visited["tid"] = [7, 8, 7, 9]
    visited["flags"] = [layout.SCANNED_THREAD, layout.SCANNED_THREAD, layout.SCANNED_RAN, layout.SCANNED_RAN]
    visited["exec_ns"] = [0, 0, 31, 40]
    records = np.zeros(2, THREAD_ROW)
    records["exec_ns"] = [30, 20]
    raw = b"".join([visited[0], records[0], visited[1], records[1], visited[2], visited[3]])
    monkeypatch.setattr(libbpf, "read_iterator", bytes)
    program: Any = SimpleNamespace(maps={"scan_mode": Written()}, scan_links=(raw,), changed_link=None)
    ran = list[RuntimeSamples]()
    threads = Drain(program, Catalog(), *[Mock()] * 5, begin=Mock()).threads(0, ran, [], alone=False, every=True)
    assert threads.ids[:, 1].tolist() == [7, 8]
    rows = RuntimeSamples.all(ran).rows
    assert sorted(zip(rows["key"][:, 1].tolist(), rows["exec_ns"].tolist(), strict=True)) == [(7, 30), (8, 20), (9, 40)]


def test_all_threads_are_visited_if_more_may_have_run_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changed_threads, "threads_now", lambda: 10_000)
    some = list_of(Written(counts(0, 0), counts(0, 0)))
    some.note_running(integers([[tid] for tid in range(CPUS * RUNNING + 1)], 1)[:, 0])
    assert not some.take(0)


SPINS_AND_SLEEPS = r"""
#include <pthread.h>
#include <sys/resource.h>
static pthread_barrier_t told;
static void *spins(void *unused)
{
	tell("spins", (void *)(long)gettid());
	pthread_barrier_wait(&told);
	setpriority(PRIO_PROCESS, 0, -20); /* so that others preempt it seldom */
	for (;;)
		__asm__ volatile("");
}
static void *sleeps(void *unused)
{
	tell("sleeps", (void *)(long)gettid());
	pthread_barrier_wait(&told);
	for (;;)
		usleep(3000);
}
static void *idles(void *unused) { pause(); return 0; }
int main(void)
{
	pthread_t made;
	pthread_barrier_init(&told, 0, 3);
	for (int i = 0; i < 100; i++)
		pthread_create(&made, 0, idles, 0);
	pthread_create(&made, 0, spins, 0);
	pthread_create(&made, 0, sleeps, 0);
	pthread_barrier_wait(&told);
	next();
	return 0;
}
"""


@pytest.fixture(scope="module")
def live() -> Generator[Watch]:
    """Watch without user stacks: ticks must be short while a thread spins ahead of all others."""
    with watch.watching_kernel_stacks() as watched:
        yield watched


@pytest.fixture
def lists_few(live: Watch, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Have `live` visit only threads that have changed, and return how often it has done so."""
    if not live.source._parts.drain._changed:  # pyright: ignore[reportPrivateUsage]
        pytest.skip("this kernel's BPF programs cannot find a thread by its tid")
    monkeypatch.setattr(changed_threads, "threads_now", lambda: 1 << 30)
    outputs = list[bytes]()
    scan = ChangedThreads.scan

    def counted(some: ChangedThreads) -> bytes:
        outputs.append(scan(some))
        return outputs[-1]

    monkeypatch.setattr(ChangedThreads, "scan", counted)
    return lambda: len(outputs)


@pytest.mark.kernel
@pytest.mark.parametrize("is_scanned", [pytest.param(True, marks=pytest.mark.variant), False])
def test_only_threads_that_have_changed_are_visited_and_none_is_missed(
    live: Watch, lists_few: Callable[[], int], tmp_path: Path, is_scanned: bool
) -> None:
    """Whether or not a scan of the waits in progress reports the thread that only runs."""
    binary = programs.build(tmp_path / "spins", SPINS_AND_SLEEPS, "-D_GNU_SOURCE", "-pthread")
    with programs.running([binary]) as child:
        live.tick(0.1)
        before = watch.switches(child.at["sleeps"])[0]
        live.tick()
        windows = list[watch.Window]()
        for _ in range(20):
            if not is_scanned:
                live.leave_out_next_scan()
            windows.append(live.tick(0.05))  # checks the sums, or raises
        after = watch.switches(child.at["sleeps"])[0]
        ran_ns = [watch.thread(window, child.at["spins"]).running_ns for window in windows]
        waits = sum(watch.thread(window, child.at["sleeps"]).waits for window in windows)
    assert lists_few() >= 5
    assert sum(ns > MS for ns in ran_ns) >= 15, ran_ns
    assert waits >= 0.8 * (after - before) >= 100


NAPS = "import time; [time.sleep(0.002) for _ in range(30)]; print(flush=True); time.sleep(30)"
ARGUMENTS = sys.executable, "-S", "-c", NAPS
EXECS = f"import os, threading; threading.Thread(target=os.execv, args=({sys.executable!r}, {ARGUMENTS!r})).start()"


@pytest.mark.kernel
def test_a_thread_that_calls_exec_is_visited_under_its_new_tid(live: Watch, lists_few: Callable[[], int]) -> None:
    live.tick()
    with subprocess.Popen([sys.executable, "-S", "-c", EXECS], stdout=subprocess.PIPE) as child:
        assert child.stdout
        assert child.stdout.readline()
        window = live.tick()
        child.kill()
    assert lists_few() >= 1
    assert watch.thread(window, child.pid).waits >= 30


@pytest.mark.kernel
def test_entries_are_removed_once_they_are_visited(live: Watch, lists_few: Callable[[], int]) -> None:
    parts = live.source._parts  # pyright: ignore[reportPrivateUsage]
    for _ in range(6):
        ticks = lists_few()
        live.tick(0.2)
        raw = b"".join(bytes(values) for _, values in parts.program.maps["changed"].read())
        noted = [tids[1 - parts.drain._flips % 2] for tids in layout.CHANGED.iter_unpack(raw)]  # pyright: ignore[reportPrivateUsage]
        assert lists_few() == ticks or not any(noted)
    assert lists_few() >= 3
