"""Test deliberate waits on the real kernel.

Each counts once, with its duration, at its stack.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from offtop.model.values.snapshot import Filters
from offtop.model.windows.breakdown import Part
from offtop.model.windows.window import Window
from tests.kernel import programs, waits, watch
from tests.kernel.watch import MS, S, Watch

pytestmark = pytest.mark.kernel

_C = ("-D_GNU_SOURCE", "-pthread", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-fno-builtin")

FRAMELESS = r"""
#include <sys/syscall.h>
#include <time.h>
#define FRAME __asm__ volatile("")
static const struct timespec ten_ms = {0, 10000000};
static __attribute__((noinline)) void gamma_(void) { syscall(SYS_nanosleep, &ten_ms, 0); FRAME; }
static __attribute__((noinline)) void beta(void) { gamma_(); FRAME; }
static __attribute__((noinline)) void alpha(void) { for (int i = 0; i < 23; i++) beta(); FRAME; }
int main(void) { next(); alpha(); next(); return 0; }
"""

PING_PONG = r"""
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
static atomic_int turn;
static int rounds = 2000;
static void play(int mine)
{
	for (int i = 0; i < rounds; i++) {
		for (int now; (now = turn) != mine;)
			syscall(SYS_futex, &turn, FUTEX_WAIT_PRIVATE, now, 0, 0, 0);
		turn = !mine;
		syscall(SYS_futex, &turn, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0);
	}
}
static pthread_barrier_t both;
static void *other(void *unused)
{
	tell("other", (void *)(long)gettid());
	pthread_barrier_wait(&both);
	pthread_barrier_wait(&both);
	play(1);
	pause();
	return 0;
}
int main(void)
{
	pthread_t thread;
	pthread_barrier_init(&both, 0, 2);
	pthread_create(&thread, 0, other, 0);
	pthread_barrier_wait(&both);
	next();
	pthread_barrier_wait(&both);
	play(0);
	next();
	return 0;
}
"""

SPIN = "int main(void) { next(); for (;;); }"
CLOSES = r"""
#include <fcntl.h>
#include <sys/mman.h>

int main(void)
{
	next();
	for (;;) {
		int fd = open("/proc/self/exe", O_RDONLY);
		void *mapped = mmap(0, 4096, PROT_READ, MAP_PRIVATE, fd, 0);

		close(fd);
		munmap(mapped, 4096);
	}
}
"""


def test_23_sleeps_of_10_ms_are_23_waits_of_at_least_230_ms(live: Watch) -> None:
    with waits.running("sleep", times=23, each_ms=10) as child:
        check_23_sleeps(live, child)


def check_23_sleeps(live: Watch, child: waits.Child) -> None:
    with live.only(child.pid):
        window = count_23_sleeps(live, child)
        stacks = live.user_stacks(window, child.tid)
    at_stack = sum(totals.waits for names, totals in stacks.items() if names[:5] == child.user)
    assert 23 <= at_stack <= 23 + watch.thread(window, child.tid).involuntary


def count_23_sleeps(live: Watch, child: waits.Child) -> Window:
    """Return the window that has them."""
    live.tick()
    before = watch.switches(child.tid)
    child.go()
    child.finish()
    window = live.tick(0.02)
    sleep = watch.by_category(window, child.tid)["sleep"]
    watch.check_sleeps([window], child.tid, 23)
    assert 230 * MS <= sleep.total_ns <= child.took_ns
    ready_ns = watch.thread(window, child.tid).runqueue_ns  # a part of the longest, but none of what it slept
    assert 10 * MS <= sleep.max_ns <= sleep.total_ns + ready_ns - 220 * MS
    left, put_aside = (now - then for now, then in zip(watch.switches(child.tid), before, strict=True))
    thread = watch.thread(window, child.tid)
    assert (thread.waits, thread.involuntary) == (left, put_aside)
    assert left - put_aside >= 24  # including the wait for its go; it may have waited for memory too
    return window


def test_without_waits_only_the_one_in_progress_counts(live: Watch) -> None:
    with waits.running("sleep", times=0) as child:
        live.tick(0.1)
        window = live.tick(0.2)
        assert watch.thread(window, child.tid).waits == 0
        assert watch.thread(window, child.tid).offcpu_ns == window.span_ns
        assert {category: part.waits for category, part in watch.by_category(window, child.tid).items()} == {"pipe": 0}


@pytest.mark.parametrize(
    ("kind", "category"),
    [("poll", "poll"), ("futex", "lock"), ("pipe-write", "pipe"), ("stopped", "stopped"), ("tcp", "net-recv")],
)
def test_7_waits_of_50_ms_are_7_waits_of_at_least_350_ms(live: Watch, kind: str, category: str) -> None:
    with waits.running(kind, times=7, each_ms=50) as child, live.only(child.pid):
        live.tick()
        child.go()
        child.finish()
        window = live.tick(0.02)
        mine = [totals for names, totals in live.user_stacks(window, child.tid).items() if names[:5] == child.user]
        assert sum(totals.waits for totals in mine) == 7
        assert 350 * MS <= sum(totals.total_ns for totals in mine) <= child.took_ns
        assert watch.by_category(window, child.tid)[category].waits >= 7


def test_the_caller_of_a_frameless_syscall_wrapper_is_shown(live: Watch, tmp_path: Path) -> None:
    program = programs.build(tmp_path / "frameless", FRAMELESS, *_C)
    with programs.running([program]) as child, live.only(child.pid):
        live.tick()
        child.go()
        window = live.tick(0.02)
        stacks = live.user_stacks(window, child.pid)
        most = max(totals.waits for totals in stacks.values())
        assert 23 <= most <= 23 + watch.thread(window, child.pid).involuntary
        assert max(stacks, key=lambda names: stacks[names].waits)[:5] == ("syscall", "gamma_", "beta", "alpha", "main")


def test_a_sleep_of_3_s_waits_in_every_tick_and_3_s_in_total(live: Watch) -> None:
    with waits.running("sleep", times=1, each_ms=3000) as child, live.only(child.pid):
        live.tick()
        child.go()
        first = live.tick(0.25)
        within = [live.tick(0.5) for _ in range(4)]
        child.finish()
        last = live.tick(0.02)
        every = [first, *within, last]
        in_sleep = [watch.by_category(window, child.tid)["sleep"] for window in every]
        assert [part.total_ns for part in in_sleep[1:-1]] == [window.span_ns for window in within]
        assert 3 * S <= sum(part.total_ns for part in in_sleep) <= 3.2 * S
        assert [part.waits for part in in_sleep] == [0, 0, 0, 0, 0, 1]
        assert 3 * S <= in_sleep[-1].max_ns <= 3.2 * S


def test_a_wait_that_began_before_offtop_counts_from_its_start() -> None:
    with waits.running("sleep", times=1, each_ms=10) as child:
        time.sleep(0.3)
        began_ns = time.monotonic_ns()
        with watch.watching(Filters(pids=(child.pid,))) as fresh:
            windows = [fresh.tick(0.2), fresh.tick(0.2)]
            for window in windows:
                pipe = watch.by_category(window, child.tid)["pipe"]
                assert (pipe.waits, pipe.total_ns) == (0, window.span_ns)
            child.go()
            child.finish()
            windows.append(fresh.tick(0.02))
            parts = [watch.by_category(window, child.tid) for window in windows]
            assert parts[-1]["sleep"].waits == 1
            # On a busy machine it may be preempted, too: such a wait is run-queue time alone.
            stacks = fresh.user_stacks(windows[-1], child.tid).values()
            ended = [totals for totals in stacks if totals.waits and totals.blocked_ns]
            assert sorted(totals.waits for totals in ended) == [1, 1]
            assert 400 * MS <= sum(part["pipe"].total_ns for part in parts) <= time.monotonic_ns() - began_ns


def test_a_ping_pong_of_2000_rounds_has_as_many_waits_as_the_kernel_counts(live: Watch, tmp_path: Path) -> None:
    check_ping_pong(live, tmp_path, lambda _: 0)


def check_ping_pong(live: Watch, directory: Path, most_unseen: Callable[[int], int]) -> None:
    """`most_unseen`: maximum number of missing waits, given the number of waits."""
    with programs.running([programs.build(directory / "ping-pong", PING_PONG, *_C)]) as child:
        tids = (child.pid, child.at["other"])
        wait_until_asleep(*tids)
        live.tick()
        before = [watch.switches(tid) for tid in tids]
        child.go()
        wait_until_asleep(*tids)
        window = live.tick()
        for tid, (left, put_aside) in zip(tids, before, strict=True):
            thread, now = watch.thread(window, tid), watch.switches(tid)
            unseen = most_unseen(now[0] - left)
            assert 0 <= now[0] - left - thread.waits <= unseen
            assert 0 <= now[1] - put_aside - thread.involuntary <= unseen
            assert thread.waits >= 1000  # if both are awake at once, one may see its turn come without a wait


def test_two_spinners_on_one_cpu_wait_for_it_and_are_not_blocked(live: Watch, tmp_path: Path) -> None:
    check_two_spinners(live, tmp_path, least=0.98)


def check_two_spinners(live: Watch, directory: Path, least: float) -> None:
    """Check that one of two threads on one CPU waits for at least `least` of the time."""
    spin = programs.build(directory / "spin", SPIN)
    cpu = max(os.sched_getaffinity(0))
    with programs.running([spin]) as one, programs.running([spin]) as other:
        for child in (one, other):
            os.sched_setaffinity(child.pid, {cpu})
            child.go_on_alone()
        live.tick(0.1)
        window = live.tick(1)
        threads = [watch.thread(window, child.pid) for child in (one, other)]
        for child, thread in zip((one, other), threads, strict=True):
            assert thread.involuntary == thread.waits > 10
            assert thread.blocked_ns == 0
            assert thread.preempted_ns == thread.runqueue_ns
            assert 0.3 * window.span_ns <= thread.runqueue_ns <= window.span_ns
            assert set(watch.by_category(window, child.pid)) <= {"run-queue"}
        assert sum(thread.runqueue_ns for thread in threads) >= least * window.span_ns


def test_a_quota_of_10_ms_in_100_throttles_for_9_tenths_of_the_time(live: Watch) -> None:
    with waits.running("throttle", times=10, each_ms=90) as child:
        live.tick()
        child.go()
        child.finish()
        window = live.tick()
        throttle = watch.by_category(window, child.tid)["throttle"]
        # the kernel throttles a thread on its return to user space: one pause may be over by then
        assert throttle.waits in (9, 10)
        ready = watch.by_category(window, child.tid).get("run-queue", Part())  # preempted, not throttled
        assert 800 * MS - ready.total_ns <= throttle.total_ns <= child.took_ns
        assert window.lost == {}


def test_threads_preempted_between_task_works_wait_for_a_cpu_not_for_a_quota(live: Watch, tmp_path: Path) -> None:
    """The kernel throttles a thread in a task work, and so does close() drop a file that is still mapped."""
    closes = programs.build(tmp_path / "closes", CLOSES)
    cpu = max(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        every = [stack.enter_context(programs.running([closes])) for _ in range(4)]
        for child in every:
            os.sched_setaffinity(child.pid, {cpu})
            child.go_on_alone()
        live.tick(0.1)
        windows = [live.tick(0.1) for _ in range(15)]  # at the end of most, one is just preempted there
        for child in every:
            found = [watch.by_category(window, child.pid) for window in windows]
            assert sum(one["run-queue"].waits for one in found if "run-queue" in one) > 10
            assert not any("throttle" in one for one in found)


def test_a_stopped_process_is_in_stopped_until_it_continues(live: Watch, tmp_path: Path) -> None:
    with programs.running([programs.build(tmp_path / "spin", SPIN)]) as child:
        child.go_on_alone()
        os.kill(child.pid, signal.SIGSTOP)
        wait_until_asleep(child.pid)
        live.tick()
        window = live.tick(0.3)
        assert watch.by_category(window, child.pid)["stopped"].total_ns == window.span_ns


def wait_until_asleep(*tids: int) -> None:
    """Wait until each has been off CPU in two looks, so that it is not just about to be woken."""
    for tid in tids * 2:
        stat = Path(f"/proc/{tid}/stat")
        deadline = time.monotonic() + 30
        while stat.read_text().rpartition(")")[2].split()[0] not in "ST":
            assert time.monotonic() < deadline, f"thread {tid} still runs"
            time.sleep(0.005)
