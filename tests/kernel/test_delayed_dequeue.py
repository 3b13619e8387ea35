"""Test threads that are moved to another CPU while they sleep, but have not left their run queue yet."""

import os
from pathlib import Path

import pytest

from offtop.kernel.bpf import features, libbpf
from offtop.model.windows.window import merge
from tests.kernel import programs, watch
from tests.kernel.watch import MS

pytestmark = pytest.mark.kernel

MOVES = r"""
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
static volatile int is_asleep, moved;
static volatile pid_t sleeper;
static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}
static void pin(pid_t tid, int cpu)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(tid, sizeof(set), &set);
}
static void spin(double seconds)
{
	for (double end = now() + seconds; now() < end;)
		;
}
static double delay(void)
{
	char path[64], text[128] = "";
	unsigned long long ran, waited = 0;
	snprintf(path, sizeof(path), "/proc/self/task/%d/schedstat", gettid());
	int fd = open(path, O_RDONLY);
	if (read(fd, text, sizeof(text) - 1) > 0)
		sscanf(text, "%llu %llu", &ran, &waited);
	close(fd);
	return waited / 1e9;
}
static void *spins(void *unused)
{
	pin(0, 0);
	setpriority(PRIO_PROCESS, 0, -20);
	spin(2.5);
	return 0;
}
static void *sleeps(void *unused)
{
	sleeper = gettid();
	for (int i = 0; i < 4; i++) {
		pin(0, 0);
		spin(0.02);
		double before = delay();
		is_asleep = 1;
		nanosleep(&(struct timespec){.tv_nsec = 300000000}, 0);
		is_asleep = 0;
		moved += delay() - before > 0.25;
	}
	is_asleep = 2;
	return 0;
}
int main(void)
{
	pthread_t made;
	next();
	pthread_create(&made, 0, spins, 0);
	pthread_create(&made, 0, sleeps, 0);
	pin(0, 1);
	for (int was = 0; is_asleep < 2; was = is_asleep, usleep(200))
		if (is_asleep == 1 && !was)
			pin(sleeper, 1);
	tell("sleeper", (void *)(long)sleeper);
	tell("moved", (void *)(long)moved);
	next();
	return 0;
}
"""
"""A thread sleeps four times, and is moved to another CPU each time as soon as it does.

`moved` is how often the kernel has counted all of the sleep as time in the run queue.
"""


@pytest.mark.variant
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two CPUs")
@pytest.mark.parametrize("records", ["task storage", "hash"])
def test_sleep_is_not_time_in_the_run_queue_although_the_kernel_counts_it_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, records: str
) -> None:
    if not features.detect(libbpf.KernelTypes()).delays_dequeue:
        pytest.skip("this kernel does not delay dequeueing")
    binary = programs.build(tmp_path / "moves", MOVES, "-D_GNU_SOURCE", "-pthread")
    if records == "hash":
        watch.without(monkeypatch, "task_storage")
    with programs.running([binary]) as child, watch.watching() as live:
        live.tick()
        child.go_on_alone()
        windows = [live.tick(0.5) for _ in range(4)]  # each checks the sums, or raises
        child.listen()
        windows.append(live.tick())
    moved = child.at["moved"]
    if moved < 2:
        pytest.skip(f"the sleeper was moved before it had left its run queue in {moved} of 4 sleeps only")
    sleeper = watch.thread(merge(windows), child.at["sleeper"])
    assert sleeper.offcpu_ns > 4 * 300 * MS
    assert sleeper.runqueue_ns - sleeper.preempted_ns < moved * 150 * MS
