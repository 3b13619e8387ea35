"""Test filters on the real kernel.

What they select counts exactly, and no time counts twice.
"""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from offtop.errors import UsageError
from offtop.kernel.bpf import layout
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.snapshot import Filters
from offtop.model.values.stack import FIRST_STACK
from offtop.model.windows.breakdown import RUN_QUEUE, Idle, Leaf, break_down
from offtop.model.windows.window import Window
from tests.kernel import programs, waits, watch
from tests.kernel.test_counts import SPIN, wait_until_asleep
from tests.kernel.watch import MS, S, Watch

pytestmark = pytest.mark.kernel

_C = ("-D_GNU_SOURCE", "-pthread")
_PF_KTHREAD = 0x200000
_S, _D = 0x1, 0x2
_SWITCH_NS = 30_000
"""Slack in the start of a run.

For the kernel a thread runs once it is picked, for offtop once the switch is done.
"""
_LATE_NS = 50 * MS
_A_WHILE_NS = 300 * MS
"""Slack for a wait that ends while a snapshot is taken.

It counts in full, so it may exceed the span.
"""

SLEEPER = r"""
#include <stdlib.h>
#include <time.h>
int main(int count, char **words)
{
	struct timespec each = {0, atol(words[2])};
	while (next())
		for (int i = 0; i < atoi(words[1]); i++)
			nanosleep(&each, 0);
	return 0;
}
"""
"""At each go, words[1] sleeps of words[2] ns."""

FOUR = r"""
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
static atomic_int enough;
static pthread_barrier_t all;
static void *sleeper(void *name)
{
	struct timespec each = {0, 1500000};
	tell(name, (void *)(long)gettid());
	pthread_barrier_wait(&all);
	pthread_barrier_wait(&all);
	while (!enough)
		nanosleep(&each, 0);
	pthread_barrier_wait(&all);
	return 0;
}
int main(void)
{
	static char names[4][8] = {"one", "two", "three", "four"};
	pthread_t thread;
	pthread_barrier_init(&all, 0, 5);
	for (int i = 0; i < 4; i++)
		pthread_create(&thread, 0, sleeper, names[i]);
	pthread_barrier_wait(&all);
	next();
	pthread_barrier_wait(&all);
	next();
	enough = 1;
	next();
	return 0;
}
"""
"""Four threads that sleep 1.5 ms at a time from the first go to the second.

They are idle before and after.
"""

ALARMS = r"""
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
static long long first_ns;
static void *sleeper(void *number)
{
	long long ns = first_ns + (long)number * 200000;
	struct timespec until = {ns / 1000000000, ns % 1000000000};
	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, 0);
	for (;;)
		pause();
}
int main(int count, char **words)
{
	pthread_t thread;
	pthread_attr_t small;
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 65536);
	first_ns = atoll(words[1]);
	for (long i = 0; i < 600; i++)
		pthread_create(&thread, &small, sleeper, (void *)i);
	next();
	return 0;
}
"""
"""600 threads whose sleeps end one after the other, 200 us apart.

The first ends at words[1] (CLOCK_MONOTONIC, ns).
"""
_ALARMS_NS = 120 * MS


def test_a_process_filter_leaves_only_that_process() -> None:
    with (
        waits.running("sleep", times=23, each_ms=10) as child,
        waits.running("sleep", times=23, each_ms=10) as other,
        watch.watching_kernel_stacks(Filters(pids=(child.pid,))) as live,
    ):
        live.tick()
        before = watch.switches(child.tid)
        child.go()
        other.go()
        windows = [live.tick(0.1)]
        child.finish()
        other.finish()
        wait_until_asleep(child.tid)
        windows.append(live.tick())
        assert [keys_of(window) for window in windows] == [{ThreadKey(child.pid, child.tid)}] * 2
        watch.check_sleeps(windows, child.tid, 23)
        left, put_aside = counted(windows, child.tid)
        assert (left, put_aside) == since(before, child.tid)
        assert left - put_aside == 24  # including the wait for its go


def test_a_thread_filter_leaves_only_that_thread(tmp_path: Path) -> None:
    with programs.running([programs.build(tmp_path / "four", FOUR, *_C)]) as child:
        tid = child.at["two"]
        with watch.watching_kernel_stacks(Filters(tids=(tid,))) as live:
            wait_until_still(*child.at.values())
            live.tick()
            before = watch.switches(tid)
            child.go()
            windows = [live.tick(0.1) for _ in range(2)]
            child.go()
            wait_until_still(*child.at.values())
            windows.append(live.tick())
            assert [keys_of(window) for window in windows] == [{ThreadKey(child.pid, tid)}] * 3
            assert counted(windows, tid) == since(before, tid)
            assert counted(windows, tid)[0] >= 20


def test_only_user_threads_or_only_kernel_threads() -> None:
    with waits.running("sleep", times=0) as child:
        for who in ("user", "kernel"):
            with watch.watching_kernel_stacks(Filters(who=who)) as live:
                windows = [live.tick(0.2) for _ in range(3)]
                keys = {key for window in windows for key in keys_of(window)}
                kinds = {is_of_the_kernel(key.tid) for key in keys} - {None}
                assert kinds == {who == "kernel"}
                assert (ThreadKey(child.pid, child.tid) in keys) == (who == "user")


@pytest.mark.parametrize(
    ("state", "kind", "hidden"), [(_S, "sleep", "vfork-libc"), (_D, "vfork-libc", "sleep")], ids=["S", "D"]
)
def test_waits_in_other_states_are_filtered_and_keep_their_time(state: int, kind: str, hidden: str) -> None:
    with watch.watching_kernel_stacks(Filters(states=state)) as live:
        with waits.running(kind, times=7, each_ms=50) as child:
            window = waited(live, child)
            part = watch.by_category(window, child.tid)[child.wait.category]
            assert part.waits == 7
            assert 350 * MS <= part.total_ns <= child.took_ns
        with waits.running(hidden, times=7, each_ms=50) as child:
            window = waited(live, child)
            assert child.wait.category not in watch.by_category(window, child.tid)
            assert 350 * MS <= watch.thread(window, child.tid).filtered_ns <= window.span_ns


def test_with_only_uninterruptible_waits_a_sleeper_has_only_filtered_time() -> None:
    with (
        waits.running("sleep", times=23, each_ms=10) as child,
        watch.watching_kernel_stacks(Filters(states=_D)) as live,
    ):
        asleep = live.tick(0.2)
        assert watch.thread(asleep, child.tid).filtered_ns == asleep.span_ns
        before, ran_ns = watch.switches(child.tid), watch.running_ns(child.pid, child.tid)
        window = waited(live, child)
        thread = watch.thread(window, child.tid)
        assert watch.sites_of(window, child.tid) == {}
        assert (thread.short_ns, thread.filtered_ns) == (0, thread.offcpu_ns)
        assert (thread.waits, thread.involuntary) == since(before, child.tid)
        accounted_ns = thread.offcpu_ns + watch.running_ns(child.pid, child.tid) - ran_ns
        assert 0.95 * window.span_ns <= accounted_ns <= 1.01 * window.span_ns


def test_a_wait_leaves_with_its_state_and_returns_with_its_stack() -> None:
    with (
        waits.running("sleep", times=1, each_ms=5000) as child,
        waits.running("sleep", times=1, each_ms=5000) as later_child,
        watch.watching_kernel_stacks() as live,
    ):
        child.go()
        live.tick(0.1)
        parts = [watch.by_category(live.tick(0.1), child.tid)]
        live.source.set_filters(Filters(states=_D))
        live.tick(0.1)
        later_child.go()
        hidden = [live.tick(0.1) for _ in range(3)]
        live.source.set_filters(Filters())
        live.tick(0.1)
        shown = live.tick(0.1)
        for one in (child, later_child):
            assert [watch.thread(window, one.tid).filtered_ns for window in hidden[1:]] == [
                window.span_ns for window in hidden[1:]
            ]
            assert all(watch.by_category(window, one.tid).keys() <= {"filtered"} for window in hidden[1:])
            parts.append(watch.by_category(shown, one.tid))
            assert watch.thread(shown, one.tid).filtered_ns == 0
            assert live.last.waiting[ThreadKey(one.pid, one.tid)].site.kernel >= FIRST_STACK
        assert [part["sleep"].total_ns > 0 and len(part) for part in parts] == [1, 1, 1]


def test_a_stopped_thread_is_not_killable() -> None:
    """The kernel sets the bit of killable waits for both."""
    with (
        waits.running("sleep", times=1, each_ms=5000) as child,
        watch.watching_kernel_stacks(Filters(states=0x100)) as live,
    ):
        child.go()
        os.kill(child.pid, signal.SIGSTOP)
        live.tick(0.2)
        window = live.tick(0.1)
        assert watch.thread(window, child.tid).filtered_ns == window.span_ns
        live.source.set_filters(Filters(states=0x4))
        live.tick(0.1)
        assert watch.by_category(live.tick(0.1), child.tid)["stopped"].total_ns > 0
        os.kill(child.pid, signal.SIGCONT)


def test_waits_that_began_in_another_state_have_no_run_queue_time(tmp_path: Path) -> None:
    spin = programs.build(tmp_path / "spin", SPIN)
    cpu = max(os.sched_getaffinity(0))
    with (
        programs.running([spin]) as one,
        programs.running([spin]) as two,
        watch.watching_kernel_stacks(Filters(states=_D, min_ns=0)) as live,
    ):
        for child in (one, two):
            os.sched_setaffinity(child.pid, {cpu})
            child.go_on_alone()
        live.tick(0.2)
        window = live.tick(0.5)
        for child in (one, two):
            assert watch.thread(window, child.pid).filtered_ns > 0.2 * window.span_ns
            assert child.pid not in break_down(window, Idle()).processes.get(Leaf(RUN_QUEUE), {})


def test_only_running_waits_are_those_of_two_spinners_on_one_cpu(tmp_path: Path) -> None:
    spin = programs.build(tmp_path / "spin", SPIN)
    cpu = max(os.sched_getaffinity(0))
    filters = Filters(states=layout.RUNNING, min_ns=0)
    with (
        programs.running([spin]) as one,
        programs.running([spin]) as two,
        watch.watching_kernel_stacks(filters) as live,
    ):
        for child in (one, two):
            os.sched_setaffinity(child.pid, {cpu})
            child.go_on_alone()
        live.tick(0.2)
        window = live.tick(0.5)
        for child in (one, two):
            thread = watch.thread(window, child.pid)
            assert thread.waits == thread.involuntary >= 5
            assert (thread.filtered_ns, thread.short_ns) == (0, 0)
            assert sum(site.total_ns for site in watch.sites_of(window, child.pid).values()) == thread.offcpu_ns
        with waits.running("sleep", times=7, each_ms=50) as sleeper:
            window = waited(live, sleeper)
            assert set(watch.by_category(window, sleeper.tid)) <= {"run-queue"}
            assert 350 * MS <= watch.thread(window, sleeper.tid).filtered_ns <= window.span_ns


def test_waits_of_2_ms_are_short_below_the_minimum(tmp_path: Path) -> None:
    command = [programs.build(tmp_path / "sleeper", SLEEPER), "20", str(2 * MS)]
    with programs.running(command) as child, watch.watching_kernel_stacks(Filters(min_ns=MS)) as live:
        for min_ms in (1, 50, 1):
            live.source.set_filters(Filters(min_ns=min_ms * MS))
            live.tick(0.1)  # its wait for the go is longer than either minimum too
            before = watch.switches(child.pid)
            child.go()
            wait_until_asleep(child.pid)
            window = live.tick()
            thread, by_category = watch.thread(window, child.pid), watch.by_category(window, child.pid)
            assert (thread.waits, thread.involuntary) == since(before, child.pid)
            assert thread.waits - thread.involuntary == 21
            if min_ms == 1:
                assert (by_category["sleep"].waits, by_category["pipe"].waits) == (20, 1)
                assert by_category["sleep"].total_ns >= 40 * MS
                assert thread.short_waits <= thread.involuntary
            else:
                assert "sleep" not in by_category
                assert thread.short_waits == 20 + thread.involuntary
                assert thread.short_ns >= 40 * MS


def test_waits_of_50_ms_are_filtered_above_the_maximum(tmp_path: Path) -> None:
    command = [programs.build(tmp_path / "sleeper", SLEEPER), "5", str(50 * MS)]
    with programs.running(command) as child, watch.watching_kernel_stacks() as live:
        for max_ms in (0, 10, 0):
            live.source.set_filters(Filters(max_ns=max_ms * MS))
            live.tick(0.05)  # its wait for the go is longer than the maximum too
            before = watch.switches(child.pid)
            child.go()
            wait_until_asleep(child.pid)
            window = live.tick(0.05)
            thread, by_category = watch.thread(window, child.pid), watch.by_category(window, child.pid)
            assert (thread.waits, thread.involuntary) == since(before, child.pid)
            assert thread.waits - thread.involuntary == 6
            assert 250 * MS <= thread.offcpu_ns <= window.span_ns + _LATE_NS
            if max_ms:
                assert not {"sleep", "pipe"} & set(by_category)
                assert thread.filtered_ns >= 250 * MS
            else:
                assert by_category["sleep"].waits == 5
                assert 250 * MS <= by_category["sleep"].total_ns <= child.took_ns


def test_a_reselected_wait_counts_in_full_and_others_have_no_gaps() -> None:
    with (
        waits.running("sleep", times=1, each_ms=5000) as child,
        waits.running("sleep", times=1, each_ms=10) as other,
        watch.watching_kernel_stacks() as live,
    ):
        child.go()
        live.tick(0.1)
        wide = [live.tick(0.1) for _ in range(3)]
        live.source.set_filters(Filters(pids=(child.pid,)))
        narrow = [live.tick(0.1) for _ in range(3)]
        live.source.set_filters(Filters())
        widened = live.tick(0.1)
        again = [live.tick(0.1) for _ in range(3)]
        for window in (*wide, *narrow, widened, *again):
            assert watch.by_category(window, child.tid)["sleep"].total_ns == window.span_ns
        for window in (*wide, *again):
            assert watch.by_category(window, other.tid)["pipe"].total_ns == window.span_ns
        assert [watch.thread(window, other.tid).offcpu_ns for window in narrow] == [0, 0, 0]
        for window in narrow[1:]:
            assert {key for key in keys_of(window) if is_settled(key, window)} == {ThreadKey(child.pid, child.tid)}
        other.go()
        other.finish()
        last = live.tick(0.02)
        assert watch.thread(last, other.tid).waits - watch.thread(last, other.tid).involuntary == 2
        for window in (widened, last):
            assert watch.thread(window, other.tid).offcpu_ns <= window.span_ns + _LATE_NS


def test_a_wait_that_ends_as_it_is_reselected_counts_once(tmp_path: Path) -> None:
    alarms = programs.build(tmp_path / "alarms", ALARMS, *_C)
    with waits.running("sleep", times=0) as child, watch.watching_kernel_stacks() as live:
        first_ns = time.monotonic_ns() + 2 * S
        with programs.running([alarms, str(first_ns)]):
            live.tick()
            live.tick(0.1)
            live.source.set_filters(Filters(pids=(child.pid,)))
            live.tick(0.1)
            time.sleep(max(0, first_ns - 100 * MS - time.monotonic_ns()) / S)
            live.tick()
            live.source.set_filters(Filters())
            time.sleep(max(0, first_ns + 20 * MS - time.monotonic_ns()) / S)
            assert time.monotonic_ns() < first_ns + _ALARMS_NS
            widened = live.tick()
            assert waited_longer_than_it_lasted(widened) == []


def test_20_quick_ticks_of_4_busy_threads_match_the_kernels_count(tmp_path: Path) -> None:
    with programs.running([programs.build(tmp_path / "four", FOUR, *_C)]) as child:
        tids = [*child.at.values()]
        with watch.watching_kernel_stacks(Filters(pids=(child.pid,))) as live:
            wait_until_still(*tids)
            live.tick()
            before = {tid: (watch.switches(tid), watch.running_ns(child.pid, tid)) for tid in tids}
            child.go()
            windows = [live.tick(0.02) for _ in range(20)]
            child.go()
            wait_until_still(*tids)
            windows.append(live.tick())
            span_ns = sum(window.span_ns for window in windows)
            for tid, (switches, ran_ns) in before.items():
                assert counted(windows, tid) == since(switches, tid)
                assert counted(windows, tid)[0] >= 50
                offcpu_ns = sum(watch.thread(window, tid).offcpu_ns for window in windows)
                accounted_ns = offcpu_ns + watch.running_ns(child.pid, tid) - ran_ns
                assert 0.95 * span_ns <= accounted_ns <= span_ns + _SWITCH_NS * since(switches, tid)[0]
            assert {key.pid for window in windows for key in keys_of(window)} == {child.pid}


def test_an_unknown_process_or_thread_is_refused_with_its_remedy() -> None:
    nobody = int(Path("/proc/sys/kernel/pid_max").read_text())  # the lowest ID that is never assigned
    no_process = rf"^No process {nobody}\. Look it up with: pgrep NAME$"
    no_thread = rf"^No thread {nobody}\. List a process's threads with: ps -L -p PID$"
    with waits.running("sleep", times=0) as child:
        with (
            pytest.raises(UsageError, match=no_process),
            watch.watching_kernel_stacks(Filters(pids=(child.pid, nobody))),
        ):
            pass
        with pytest.raises(UsageError, match=no_thread), watch.watching_kernel_stacks(Filters(tids=(nobody,))):
            pass
        with watch.watching_kernel_stacks() as live:
            with pytest.raises(UsageError, match=no_process):
                live.source.set_filters(Filters(pids=(nobody,)))
            with pytest.raises(UsageError, match=no_thread):
                live.source.set_filters(Filters(pids=(child.pid,), tids=(nobody,)))
            live.tick()
            window = live.tick(0.1)
            assert len({key.pid for key in keys_of(window)}) > 1  # as before
            assert watch.thread(window, child.tid).offcpu_ns == window.span_ns


def test_selected_threads_count_until_they_exit_and_reading_ends() -> None:
    with (
        waits.running("sleep", times=0) as child,
        waits.running("sleep", times=23, each_ms=10) as other,
        watch.watching_kernel_stacks(Filters(pids=(child.pid,), tids=(other.tid,))) as live,
    ):
        child.end()
        live.tick(0.1)
        asleep = live.tick(0.1)
        assert watch.thread(asleep, other.tid).offcpu_ns == asleep.span_ns
        other.go()
        other.finish()
        other.end()
        last = live.tick(0.1)
        watch.check_sleeps([last], other.tid, 23)
        assert live.source.read() is None


def waited(live: Watch, child: waits.Child) -> Window:
    """Return what passed from before its go to after its last wait."""
    live.tick()
    child.go()
    child.finish()
    wait_until_asleep(child.tid)
    return live.tick()


def keys_of(window: Window) -> set[ThreadKey]:
    return {key for key, _ in window.each_thread()} | {site.thread for site, _ in window.each_site()}


def counted(windows: Sequence[Window], tid: int) -> tuple[int, int]:
    """Return the number of a thread's waits, and how many of them were involuntary."""
    threads = [watch.thread(window, tid) for window in windows]
    return sum(thread.waits for thread in threads), sum(thread.involuntary for thread in threads)


def since(before: tuple[int, int], tid: int) -> tuple[int, int]:
    """Return the same by the kernel's own count, since it was `before`."""
    left, put_aside = watch.switches(tid)
    return left - before[0], put_aside - before[1]


def waited_longer_than_it_lasted(window: Window) -> list[tuple[ThreadKey, float]]:
    """Return threads that waited longer than the window's span, and by how much.

    Some of their time must have counted twice.
    """
    return [
        (key, thread.offcpu_ns / window.span_ns)
        for key, thread in window.each_thread()
        if thread.offcpu_ns > window.span_ns + _LATE_NS and is_settled(key, window)
    ]


def is_settled(key: ThreadKey, window: Window) -> bool:
    """Return whether the thread has had its TID for a while.

    Time of an exited thread, or of a previous owner of the TID, may arrive a tick late.
    """
    try:
        stat = Path(f"/proc/{key.pid}/task/{key.tid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    start_ns = int(stat.rpartition(b")")[2].split()[19]) * S // os.sysconf("SC_CLK_TCK")
    return start_ns < window.at_ns - window.span_ns - _A_WHILE_NS


def wait_until_still(*tids: int) -> None:
    """Wait until none of them was switched out for 50 ms.

    This is longer than any of their sleeps.
    """
    deadline = time.monotonic() + 30
    before: list[tuple[int, int]] = []
    while (now := [watch.switches(tid) for tid in tids]) != before:
        assert time.monotonic() < deadline, f"threads {tids} still run"
        before = now
        time.sleep(0.05)


def is_of_the_kernel(tid: int) -> bool | None:
    """Return whether it is a kernel thread, or None if it has exited."""
    try:
        flags = int(Path(f"/proc/{tid}/stat").read_bytes().rpartition(b")")[2].split()[6])
    except (FileNotFoundError, ProcessLookupError):
        return None
    return bool(flags & _PF_KTHREAD)
