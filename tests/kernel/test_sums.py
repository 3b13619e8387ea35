"""Test the sums of accounting on a busy machine.

They are exact in every tick, and agree with the kernel's own figures.
"""

import os
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from offtop.kernel.accounting import changed_threads
from offtop.kernel.accounting.drain import Drain
from offtop.model.values.catalog import SiteKey, ThreadKey
from offtop.model.values.snapshot import Filters, SiteTotals, ThreadTotals
from offtop.model.values.stack import NO_STACK
from offtop.model.windows.window import Window, merge
from tests.kernel import programs, watch
from tests.kernel.watch import S, Watch

pytestmark = pytest.mark.kernel

_C = ("-D_GNU_SOURCE", "-pthread", "-fno-omit-frame-pointer")

STORM = r"""
#include <pthread.h>
static void *often(void *unused) { for (;;) usleep(1500); }
static void *briefly(void *unused) { usleep(2000); return 0; }
static void *threads(void *unused)
{
	pthread_t made[20];
	for (;;) {
		for (int i = 0; i < 20; i++)
			pthread_create(&made[i], 0, briefly, 0);
		for (int i = 0; i < 20; i++)
			pthread_join(made[i], 0);
		usleep(50000);
	}
}
static void *ping(void *pipes)
{
	char byte = 0;
	for (;;)
		if (write(((int *)pipes)[1], &byte, 1) + read(((int *)pipes)[0], &byte, 1) < 2)
			return 0;
}
int main(void)
{
	static int a[2], b[2], one[2], other[2];
	pthread_t made;
	if (pipe(a) || pipe(b))
		return 1;
	one[0] = a[0], one[1] = b[1], other[0] = b[0], other[1] = a[1];
	for (int i = 0; i < 40; i++)
		pthread_create(&made, 0, often, 0);
	pthread_create(&made, 0, threads, 0);
	pthread_create(&made, 0, ping, one);
	pthread_create(&made, 0, ping, other);
	next();
	return 0;
}
"""
"""40 threads that wait 600 times a second, just long enough for a stack.

Beside them a ping-pong, and threads that come and go.
"""

WORKERS = r"""
#include <pthread.h>
#include <time.h>
static pthread_barrier_t begin, end;
static long seconds = 2;
static long now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}
static void *work(void *number)
{
	long n = (long)number;
	char name[16];
	snprintf(name, sizeof(name), "worker%ld", n);
	tell(name, (void *)(long)gettid());
	pthread_barrier_wait(&end);
	pthread_barrier_wait(&begin);
	for (long until = now_us() + seconds * 1000000; now_us() < until;) {
		for (long spin = now_us() + n * 1000; now_us() < spin;)
			;
		usleep(10000);
	}
	pthread_barrier_wait(&end);
	pause();
	return 0;
}
int main(void)
{
	pthread_t made;
	pthread_barrier_init(&begin, 0, 5);
	pthread_barrier_init(&end, 0, 5);
	for (long n = 0; n < 4; n++)
		pthread_create(&made, 0, work, (void *)n);
	pthread_barrier_wait(&end);
	next();
	pthread_barrier_wait(&begin);
	pthread_barrier_wait(&end);
	next();
	return 0;
}
"""
"""Four threads that for 2 s sleep 10 ms and spin 0, 1, 2 or 3 ms.

They are idle before and after.
"""

SLOW_EXIT = r"""
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
static void sleep_10_times(void)
{
	for (int i = 0; i < 10; i++)
		usleep(2000);
}
int main(void)
{
	struct sched_param none = {0}, spinners = {.sched_priority = 1}, first = {.sched_priority = 2};
	char byte = 0;
	int to_child[2], to_parent[2], to_spinner[2];
	cpu_set_t one;
	if (pipe(to_child) || pipe(to_parent) || pipe(to_spinner))
		return 1;
	CPU_ZERO(&one);
	CPU_SET(sysconf(_SC_NPROCESSORS_ONLN) - 1, &one);
	sched_setaffinity(0, sizeof(one), &one);
	pid_t child = fork();
	if (!child) {
		read(to_child[0], &byte, 1);
		sleep_10_times();
		write(to_parent[1], &byte, 1);
		read(to_child[0], &byte, 1);
		sleep_10_times();
		sched_setscheduler(0, SCHED_IDLE, &none);
		_exit(0);
	}
	pid_t spinner = fork();
	if (!spinner) {
		sched_setscheduler(0, SCHED_FIFO, &spinners);
		read(to_spinner[0], &byte, 1);
		for (;;)
			;
	}
	signal(SIGCHLD, SIG_IGN); /* the child unhashes itself, then removes its /proc entries, and may be preempted */
	sched_setscheduler(0, SCHED_FIFO, &first); /* when the child's exit wakes it, it takes the CPU at once */
	tell("child", (void *)(long)child);
	next();
	write(to_child[1], &byte, 1);
	read(to_parent[0], &byte, 1);
	next();
	write(to_child[1], &byte, 1);
	waitpid(child, 0, 0);
	write(to_spinner[1], &byte, 1);
	next();
	kill(spinner, SIGKILL);
	waitpid(spinner, 0, 0);
	usleep(200000); /* the child gets the CPU for its last switch-out */
	next();
	return 0;
}
"""
"""Its child sleeps 10 times at the first go and 10 times at the second, and then exits.

Scans no longer find it, but it gets no CPU for its last switch-out until the third go.
"""


@pytest.fixture(scope="module")
def storm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return programs.build(tmp_path_factory.mktemp("storm") / "storm", STORM, *_C)


def busy(storm: Path) -> AbstractContextManager[programs.Program]:
    """Keep the machine busy at low priority.

    Ever new threads can starve all others (6.18).
    """
    return programs.running(["nice", "-n", "19", storm])


@pytest.mark.parametrize(
    ("threads", "ticks"),
    [(0, 20), *(pytest.param(threads, 100, marks=pytest.mark.variant) for threads in (0, 1 << 30))],
)
def test_the_sums_hold_in_each_tick_of_a_busy_machine(
    live: Watch, storm: Path, monkeypatch: pytest.MonkeyPatch, threads: int, ticks: int
) -> None:
    """Whether all threads are visited, or only those that have changed."""
    monkeypatch.setattr(changed_threads, "threads_now", lambda: threads)
    with busy(storm) as program:
        live.tick()
        windows = [live.tick(0.05) for _ in range(ticks)]  # each checks the sums, or raises
    mine = [totals for window in windows for key, totals in window.each_thread() if key.pid == program.pid]
    assert sum(totals.waits for totals in mine) > 200 * ticks
    assert merge(windows).lost == {}


@pytest.mark.variant
def test_short_lived_processes_run_no_more_than_the_cpus_allow(live: Watch) -> None:
    """Some exit just between a tick's two scans."""
    loops = [subprocess.Popen(["nice", "-n", "19", "sh", "-c", "while :; do /bin/true; done"]) for _ in range(2)]
    try:
        live.tick(0.2)
        windows = [live.tick(0.1) for _ in range(30)]
    finally:
        for loop in loops:
            loop.kill()
            loop.wait(10)
    whole = merge(windows)
    ran_ns = sum(totals.running_ns for _, totals in whole.each_thread())
    assert 0.3 * whole.span_ns < ran_ns < 1.05 * (os.cpu_count() or 1) * whole.span_ns


def test_a_thread_whose_exit_takes_longer_than_a_tick_counts_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The scan is late, so one buffer has waits of the first tick and of the third."""
    flip, goes = Drain.flip, list[Callable[[], None]]()

    def flip_and_go(drain: Drain) -> tuple[int, int, int]:
        found = flip(drain)
        if goes:
            goes.pop()()
        return found

    monkeypatch.setattr(Drain, "flip", flip_and_go)
    binary = programs.build(tmp_path / "slow-exit", SLOW_EXIT, "-D_GNU_SOURCE")
    with programs.running([binary]) as program, watch.watching_kernel_stacks(Filters(who="user")) as live:
        live.tick(0.05)
        child = program.at["child"]
        assert [*Path(f"/proc/{child}/task/{child}/fd").iterdir()], "it has entries that it will remove"
        program.go()
        windows = list[Window]()
        for goes_on in (True, True, False):
            if goes_on:
                goes.append(program.go)
            windows.append(live.tick(0.05))  # checks the sums, or raises
        windows += [live.tick(0.05) for _ in range(3)]
    waits = sum(watch.thread(window, child).waits for window in windows)
    sleeps = sum(part.waits for window in windows if (part := watch.by_category(window, child).get("sleep")))
    assert sleeps == 20
    assert waits >= 22


def test_a_threads_running_and_waiting_add_up_within_3_in_1000(live: Watch, storm: Path, tmp_path: Path) -> None:
    workers = programs.build(tmp_path / "workers", WORKERS, *_C)
    with programs.running([workers]) as child, busy(storm):
        tids = [child.at[f"worker{n}"] for n in range(4)]
        settle(tids)
        live.tick()
        before = [(watch.running_ns(child.pid, tid), watch.switches(tid)) for tid in tids]
        child.go_on_alone()
        windows = [live.tick(0.4) for _ in range(6)]
        child.listen()
        settle(tids)
        windows.append(live.tick())
        whole = merge(windows)
        for tid, (ran_ns, (left, put_aside)) in zip(tids, before, strict=True):
            thread, now = watch.thread(whole, tid), watch.switches(tid)
            assert (thread.waits, thread.involuntary) == (now[0] - left, now[1] - put_aside)
            assert thread.waits >= 100
            running_ns = watch.running_ns(child.pid, tid) - ran_ns
            assert abs(whole.span_ns - running_ns - thread.offcpu_ns) <= 0.003 * whole.span_ns


def settle(tids: list[int]) -> None:
    """Return once all these threads are off CPU, and stay so."""
    deadline = time.monotonic() + 30
    quiet = 0
    while quiet < 3:
        assert time.monotonic() < deadline
        states = [Path(f"/proc/{tid}/stat").read_text().rpartition(")")[2].split()[0] for tid in tids]
        quiet = quiet + 1 if set(states) == {"S"} else 0
        time.sleep(0.01)


def test_the_check_itself_notices_a_nanosecond_too_much() -> None:
    thread, site = ThreadKey(7, 8), SiteKey(7, 8, 3, NO_STACK)
    whole = Window(0, S, S, {thread: ThreadTotals(offcpu_ns=1000)}, {site: SiteTotals(total_ns=1000)})
    watch.check_sums(whole)
    for broken in (
        Window(0, S, S, {thread: ThreadTotals(offcpu_ns=1001)}, {site: SiteTotals(total_ns=1000)}),
        Window(0, S, S, {}, {site: SiteTotals(total_ns=1000)}),
        Window(0, S, S, {thread: ThreadTotals(offcpu_ns=1000, runqueue_ns=1001)}, {site: SiteTotals(total_ns=1000)}),
        Window(0, S, S, {ThreadKey(os.getpid(), 8): ThreadTotals()}, {}),
        Window(0, S, S, {ThreadKey(1, 0): ThreadTotals()}, {}),
    ):
        with pytest.raises(watch.LawError):
            watch.check_sums(broken)


def test_an_empty_window_has_empty_sums() -> None:
    watch.check_sums(Window(0, S, S))
