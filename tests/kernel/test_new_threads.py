"""Test how long new threads wait for their first CPU, against the kernel's own figures."""

import os
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from offtop.kernel.bpf import features, libbpf
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.snapshot import Filters, ThreadTotals
from offtop.model.windows.breakdown import Idle
from offtop.model.windows.stuck import stuck
from offtop.model.windows.window import Window
from tests.conftest import lacks
from tests.kernel import programs, watch
from tests.kernel.watch import MS, S, Watch

pytestmark = pytest.mark.kernel

_C = ("-D_GNU_SOURCE", "-pthread", "-fno-omit-frame-pointer")

BURSTS = r"""
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#define MOST 2000
static long us, stays, tid[MOST], made_ns[MOST], waited_ns[MOST];
static atomic_int over;
static long now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000 + t.tv_nsec;
}
static void *burst(void *number)
{
	long i = (long)number, began_ns = now_ns();
	tid[i] = gettid(), waited_ns[i] = began_ns - made_ns[i];
	while (now_ns() < began_ns + us * 1000)
		;
	over++;
	while (stays)
		pause();
	return 0;
}
int main(int argc, char **argv)
{
	long threads = atol(argv[1]);
	char name[16];
	cpu_set_t one;
	pthread_t made;
	struct sched_param first = {.sched_priority = 1};
	pthread_attr_t small;
	us = atol(argv[2]), stays = argv[3][0] == 's';
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 65536);
	pthread_attr_setdetachstate(&small, PTHREAD_CREATE_DETACHED);
	CPU_ZERO(&one);
	CPU_SET(sysconf(_SC_NPROCESSORS_ONLN) - 1, &one);
	sched_setaffinity(0, sizeof(one), &one);
	next();
	sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &first); /* none of them runs before all exist */
	for (long i = 0; i < threads; i++) {
		made_ns[i] = now_ns();
		pthread_create(&made, &small, burst, (void *)i);
	}
	while (over < threads)
		usleep(10000);
	usleep(50000);
	for (long i = 0; i < threads; i++) {
		snprintf(name, sizeof(name), "%ld", tid[i]);
		tell(name, (void *)waited_ns[i]);
	}
	next();
	return 0;
}
"""
"""After its go, so many threads run on one CPU, one after the other.

They run for so long, and `stay` or `end`. Then it prints how long each waited until it ran.
"""
EACH_US = 200

BEHIND = r"""
#include <pthread.h>
#include <sched.h>
#include <time.h>
static long made_ns, waited_ns;
static long now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000 + t.tv_nsec;
}
static void spin(long ms)
{
	for (long until = now_ns() + ms * 1000000; now_ns() < until;)
		;
}
static void *begin(void *unused)
{
	waited_ns = now_ns() - made_ns;
	spin(600);
	return 0;
}
int main(void)
{
	cpu_set_t one;
	pthread_t made;
	pthread_attr_t as;
	struct sched_param then = {.sched_priority = 1}, first = {.sched_priority = 2};
	CPU_ZERO(&one);
	CPU_SET(sysconf(_SC_NPROCESSORS_ONLN) - 1, &one);
	sched_setaffinity(0, sizeof(one), &one);
	next();
	sched_setscheduler(0, SCHED_FIFO, &first);
	pthread_attr_init(&as);
	pthread_attr_setinheritsched(&as, PTHREAD_EXPLICIT_SCHED);
	pthread_attr_setschedpolicy(&as, SCHED_FIFO);
	pthread_attr_setschedparam(&as, &then);
	made_ns = now_ns();
	pthread_create(&made, &as, begin, 0);
	spin(1500);
	pthread_join(made, 0);
	tell("waited", (void *)waited_ns);
	next();
	return 0;
}
"""
"""After its go, a thread starts that gets no CPU for 1.5 s.

Its creator spins on the only one. Then it runs for 0.6 s, and hardly anything but kernel threads can preempt it.
"""


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return programs.build(tmp_path_factory.mktemp("bursts") / "bursts", BURSTS, *_C)


@pytest.fixture
def off_the_last_cpu() -> Generator[None]:
    """Keep this process, and all that it starts, off the CPU on which the program spins at real-time priority."""
    every = os.sched_getaffinity(0)
    os.sched_setaffinity(0, every - {max(every)} or every)
    yield
    os.sched_setaffinity(0, every)


def bursts(binary: Path, threads: int, how: str) -> AbstractContextManager[programs.Program]:
    return programs.running([binary, str(threads), str(EACH_US), how])


def of_threads(windows: list[Window], pid: int) -> dict[ThreadKey, ThreadTotals]:
    """Return the totals of a process's threads, without the main one."""
    found: dict[ThreadKey, ThreadTotals] = {}
    for window in windows:
        for key, totals in window.each_thread():
            if key.pid == pid != key.tid:
                found[key] = found.get(key, ThreadTotals()).plus(totals)
    return found


def run(live: Watch, child: programs.Program) -> list[Window]:
    """Return the windows of its one go."""
    live.tick()
    child.go_on_alone()
    windows = [live.tick(0.02) for _ in range(10)]
    child.listen()
    return [*windows, live.tick(0.1), live.tick(0.1)]


SWITCH_IN_PROBES = pytest.mark.parametrize(
    ("probe", "may_store"),
    [
        pytest.param("exit", True, id="exit"),
        pytest.param("exit", False, id="exit, records by task", marks=pytest.mark.variant),
        pytest.param("kprobe", True, id="kprobe"),
        pytest.param("kprobe", False, id="kprobe, records by task", marks=pytest.mark.variant),
        pytest.param("switch", False, id="switch, records by task", marks=pytest.mark.variant),
    ],
)


@contextmanager
def watching(child: programs.Program, probe: str, may_store: bool) -> Generator[Watch]:
    """Yield a live source; `may_store`: whether thread records may be in task storage."""
    if probe not in features.detect(libbpf.KernelTypes()).switch_in_probes:
        lacks(f"the switch-in probe {probe}")
    with pytest.MonkeyPatch.context() as patch:
        if not may_store:
            watch.without(patch, "task_storage")
        with watch.watching_kernel_stacks(Filters(pids=(child.pid,)), probe=probe) as live:
            yield live


@SWITCH_IN_PROBES
def test_run_queue_time_of_new_threads_matches_the_kernels(binary: Path, probe: str, may_store: bool) -> None:
    with bursts(binary, 300, "stay") as child, watching(child, probe, may_store) as live:
        windows = run(live, child)
        found = of_threads(windows, child.pid)
        assert len(found) == 300
        said_ns = sum(run_delay_ns(key) for key in found)
        assert sum(totals.runqueue_ns for totals in found.values()) == pytest.approx(said_ns, rel=0.02)
        assert said_ns > 3 * S, "they wait for each other"
        assert probe == "switch" or not lost(windows)


@SWITCH_IN_PROBES
def test_a_thread_switched_out_only_at_exit_has_waited_for_its_cpu(binary: Path, probe: str, may_store: bool) -> None:
    with bursts(binary, 300, "end") as child, watching(child, probe, may_store) as live:
        windows = run(live, child)
        found = of_threads(windows, child.pid)
        assert len(found) == 300
        once = [key for key, totals in found.items() if totals.waits == 1]
        assert len(once) > 50
        waited_ns = sum(child.at[str(key.tid)] for key in once)
        assert sum(found[key].runqueue_ns for key in once) == pytest.approx(waited_ns, rel=0.02)
        assert all(found[key].offcpu_ns == found[key].runqueue_ns for key in once)
        assert not any(found[key].involuntary or found[key].preempted_ns for key in once)
        assert probe == "switch" or not lost(windows)


@SWITCH_IN_PROBES
@pytest.mark.usefixtures("off_the_last_cpu")
def test_a_thread_that_never_ran_is_shown_waiting_for_a_cpu(tmp_path: Path, probe: str, may_store: bool) -> None:
    binary = programs.build(tmp_path / "behind", BEHIND, *_C)
    with programs.running([binary]) as child, watching(child, probe, may_store) as live:
        live.tick()
        child.go_on_alone()
        windows, found = [live.tick(0.3)], list[ThreadKey]()
        while not found and len(windows) < 8:  # on a busy machine not each tick has a scan
            found = [key for key in live.last.waiting if key.pid == child.pid != key.tid]
            windows += [] if found else [live.tick(0.1)]
        (key,) = found
        one = live.last.waiting[key]
        assert (one.letter, one.is_ready, one.preempted) == ("R", True, False)
        assert one.age_ns(live.last.at_ns) == one.runqueue_ns > 200 * MS
        now = stuck(live.last.waiting.values(), live.last.at_ns, live.last.catalog, Idle())
        assert [now.leaf(row).category for row, it in enumerate(now.waits) if it == one] == ["run-queue"]
        windows.append(live.tick(0.1))
        waiting = watch.thread(windows[-1], key.tid)
        assert (waiting.waits, waiting.offcpu_ns, waiting.runqueue_ns) == (0, *[windows[-1].span_ns] * 2)
        assert set(watch.by_category(windows[-1], key.tid)) == {"run-queue"}
        windows += [live.tick(0.1) for _ in range(13)]
        later = live.last.waiting.get(key)
        assert later is None or later.preempted, "it has run"
        before = of_threads(windows, child.pid)[key]
        child.listen()
        windows += [live.tick(0.1) for _ in range(2)]
        found = of_threads(windows, child.pid)[key]
        rest_ns = found.preempted_ns  # preempted by others, once it ran
        assert before.offcpu_ns - before.preempted_ns == found.runqueue_ns - rest_ns, "each window had its time"
        assert found.offcpu_ns == found.runqueue_ns
        assert found.runqueue_ns - rest_ns == pytest.approx(child.at["waited"], rel=0.02)
        assert found.waits - found.involuntary == 1
        assert found.max_ns == pytest.approx(child.at["waited"], rel=0.02)
        assert probe == "switch" or not lost(windows)


def run_delay_ns(key: ThreadKey) -> int:
    return int(Path(f"/proc/{key.pid}/task/{key.tid}/schedstat").read_text().split()[1])


def lost(windows: list[Window]) -> dict[str, int]:
    return {kind: n for window in windows for kind, n in window.lost.items() if kind != "missed_runs"}
