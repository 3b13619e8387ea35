"""Test that all switch-in probes and sources of run queue time count the same."""

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest

from offtop.errors import UsageError
from offtop.kernel.bpf import features, libbpf
from offtop.kernel.bpf.features import SWITCH_IN_PROBES, Features
from offtop.kernel.live import LiveSource
from offtop.model.values.catalog import ThreadKey, ThreadLifetime
from offtop.model.values.snapshot import Filters
from tests.conftest import lacks
from tests.kernel import programs, waits, watch
from tests.kernel.test_counts import (
    SPIN,
    check_23_sleeps,
    check_ping_pong,
    check_two_spinners,
    wait_until_asleep,
)
from tests.kernel.test_namespaces import STORM
from tests.kernel.watch import MS, Watch

pytestmark = pytest.mark.kernel


@cache
def found() -> Features:
    return features.detect(libbpf.KernelTypes())


_WAYS = [
    *((probe, "") for probe in SWITCH_IN_PROBES),
    # `switch` has sched_waking in any case.
    *(pytest.param((probe, "run_delay"), marks=pytest.mark.variant) for probe in ("exit", "kprobe")),
    pytest.param(("exit", "task_storage"), marks=pytest.mark.variant),
]
PROBES_OF_EXITS = pytest.mark.parametrize(
    "probe",
    [pytest.param(one, marks=[pytest.mark.variant] if one == "switch" else []) for one in SWITCH_IN_PROBES],
)


@pytest.fixture(scope="module", params=_WAYS)
def through(request: pytest.FixtureRequest) -> Generator[Watch]:
    """Yield a live source with one of the switch-in probes.

    Run-queue time is from sched_waking if the kernel lacks run_delay, and thread records are in a hash map if it lacks
    task storage.
    """
    probe, lacking = request.param
    demand(probe)
    with pytest.MonkeyPatch.context() as patch:
        if lacking:
            watch.without(patch, lacking)
        with watch.watching(probe=probe) as live:
            assert live.last.probe == probe
            with waits.running("sleep", times=10_000, each_ms=5) as child:
                child.go()
                with live.only(child.pid):
                    live.load_unwind_rules(child.tid, *child.user)
            yield live


def demand(probe: str) -> None:
    if probe not in found().switch_in_probes:
        lacks("kprobes" if probe == "kprobe" else f"the switch-in probe {probe}")


EXEC = r"""
#include <pthread.h>
static char *const sleep_on[] = {"sleep", "20", 0};
static void *other(void *unused)
{
	tell("tid", (void *)(long)gettid());
	usleep(50000);
	next();
	execvp(sleep_on[0], sleep_on);
	return 0;
}
int main(void)
{
	pthread_t made;
	pthread_create(&made, 0, other, 0);
	for (;;)
		pause();
}
"""
"""The second thread calls exec and takes over the TID of the first, which exits."""


def test_a_thread_that_calls_exec_continues_under_its_pid_only(through: Watch, tmp_path: Path) -> None:
    program = programs.build(tmp_path / "exec", EXEC, "-D_GNU_SOURCE", "-pthread")
    with programs.running([program]) as child:
        before, after = ThreadKey(child.pid, child.at["tid"]), ThreadKey(child.pid, child.pid)
        through.tick(0.1)
        assert {key for key in through.last.waiting if key.pid == child.pid} == {before, after}
        child.go_on_alone()
        while Path(f"/proc/{child.pid}/comm").read_text() != "sleep\n":
            time.sleep(0.01)
        for _ in range(2):
            through.tick(0.1)
            assert {key for key in through.last.waiting if key.pid == child.pid} == {after}
        window = through.tick(0.1)
        assert watch.thread(window, child.pid).offcpu_ns == window.span_ns
        assert watch.thread(window, before.tid).offcpu_ns == 0
        life = window.catalog.life(after)
        assert (life.to_ns, window.catalog.life(before).to_ns > 0) == (0, True)


@PROBES_OF_EXITS
def test_a_late_exit_is_not_mixed_up_with_the_new_owner_of_its_tid(probe: str, tmp_path: Path) -> None:
    demand(probe)
    binary = programs.build(tmp_path / "storm", STORM, "-D_GNU_SOURCE", "-pthread")
    with watch.watching_kernel_stacks(probe=probe) as live:
        storm = subprocess.Popen(["nice", "-n", "19", binary], start_new_session=True)
        kinds = Counter[str]()
        deadline = time.monotonic() + 60
        try:
            while min(kinds[kind] for kind in ("main", "thread", "exec")) < 500:
                assert time.monotonic() < deadline, kinds
                window = live.tick(0.01)  # checks the sums
                kinds.update(window.catalog.comm(key).rstrip("0123456789") for key, _ in window.each_thread())
        finally:
            os.killpg(storm.pid, signal.SIGKILL)
            storm.wait()


ONE_ID = r"""
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <linux/sched.h>
#include <unistd.h>
int main(void)
{
	struct sched_param none = {0};
	pid_t pid = 0;
	struct clone_args how = {.exit_signal = SIGCHLD};
	cpu_set_t first;

	CPU_ZERO(&first);
	CPU_SET(0, &first);
	sched_setaffinity(0, sizeof(first), &first);
	if (!fork())
		for (;;)
			;
	for (;;) {
		pid_t child = syscall(SYS_clone3, &how, sizeof(how));
		if (child < 0)
			return perror("clone3"), 1;
		if (!child) {
			for (int i = 0; i < 10; i++)
				usleep(2000);
			write(1, ".", 1);
			sched_setscheduler(0, SCHED_IDLE, &none);
			_exit(0);
		}
		if (!pid)
			dprintf(1, "%d\n", child);
		pid = child;
		how.set_tid = (unsigned long)&pid;
		how.set_tid_size = 1;
		waitpid(child, 0, 0);
	}
}
"""
"""Processes that share one PID, one after the other.

Each yields its CPU to another before it exits: it has been reaped long before its last switch-out. Prints the PID, and
a dot for each process.
"""


@pytest.mark.variant
@PROBES_OF_EXITS
def test_an_exiting_process_is_not_mixed_up_with_the_new_owner_of_its_pid(probe: str, tmp_path: Path) -> None:
    demand(probe)
    binary = programs.build(tmp_path / "one-id", ONE_ID, "-D_GNU_SOURCE")
    with (
        watch.watching_kernel_stacks(probe=probe) as live,
        subprocess.Popen([binary], start_new_session=True, stdout=subprocess.PIPE, text=True) as one_id,
    ):
        assert one_id.stdout
        try:
            pid = int(one_id.stdout.readline())
            windows = [live.tick(0.01) for _ in range(100)]  # each tick checks the sums
        finally:
            os.killpg(one_id.pid, signal.SIGKILL)
        windows += [live.tick(0.1), live.tick(0.1)]
        made = one_id.stdout.read().count(".")
    slept = sum(part.waits for window in windows if (part := watch.by_category(window, pid).get("sleep")))
    aside = sum(watch.thread(window, pid).involuntary for window in windows)
    assert made >= 5
    # A process that is preempted on its way to or from a nap waits once more there, or wakes before it sleeps.
    assert 10 * made - aside - most_unseen(probe, 10 * made) <= slept <= 10 * (made + 1) + aside


BRIEF = r"""
#include <signal.h>
#include <unistd.h>
int main(void)
{
	signal(SIGCHLD, SIG_IGN);
	for (;; usleep(5000))
		if (!fork()) {
			for (int i = 0; i < 20; i++)
				usleep(10000);
			_exit(0);
		}
}
"""
"""Forks a child every 5 ms; each sleeps 20 times and exits."""


@PROBES_OF_EXITS
def test_no_thread_waits_longer_than_it_lives(probe: str, tmp_path: Path) -> None:
    demand(probe)
    binary = programs.build(tmp_path / "brief", BRIEF, "-D_GNU_SOURCE")
    waited, lives, checked = Counter[ThreadKey](), dict[ThreadKey, ThreadLifetime](), 0
    with watch.watching_kernel_stacks(probe=probe) as live:
        brief = subprocess.Popen([binary], start_new_session=True)
        try:
            windows = [live.tick(0.05) for _ in range(60)]
        finally:
            os.killpg(brief.pid, signal.SIGKILL)
            brief.wait()
        windows += [live.tick(0.1) for _ in range(2)]
    for window in windows:
        for key, thread in window.each_thread():
            if window.catalog.comm(key) == "brief" and key.pid != brief.pid:
                if thread.waits <= 6:  # in a busy machine's longer ticks a thread wakes more often, and runs for longer
                    assert thread.running_ns < 8 * MS, "it does not run while it sleeps for 10 ms"
                    checked += 1
                waited[key] += thread.offcpu_ns
                lives[key] = window.catalog.life(key)
    lived = {key: life.to_ns - life.from_ns for key, life in lives.items() if life.to_ns}
    assert len(lived) > 100 and checked > 100
    longer = [(key, ns, lived[key]) for key, ns in waited.items() if key in lived and ns > lived[key] + MS]
    # A thread that left the scan but waits for a CPU to exit during the tick was shown as before: 1 in 1,000.
    assert len(longer) <= len(lived) // 100, longer


def test_23_sleeps_of_10_ms_are_23_waits_with_every_probe(through: Watch) -> None:
    with waits.running("sleep", times=23, each_ms=10) as child:
        unseen = most_unseen(through.last.probe, 23)
        if not unseen:
            check_23_sleeps(through, child)
            return
        with through.only(child.pid):
            child.go()
            child.finish()
            window = through.tick(0.02)
            stacks = through.user_stacks(window, child.tid)
        # Waits from before unwind rules are loaded follow frame pointers, which miss the leaf's caller.
        ways = (child.user, (child.user[0], *child.user[2:]))
        mine = [totals for names, totals in stacks.items() if any(names[: len(way)] == way for way in ways)]
        seen = sum(totals.waits for totals in mine)
        assert 23 - unseen <= seen <= 23 + watch.thread(window, child.tid).involuntary
        assert sum(totals.waits for names, totals in stacks.items() if names[:5] == child.user) >= 23 // 2
        assert watch.by_category(window, child.tid)["sleep"].waits == seen
        assert seen * 10 * MS <= sum(totals.total_ns for totals in mine) <= child.took_ns


@pytest.mark.variant
def test_two_spinners_on_one_cpu_wait_for_it_with_every_probe(through: Watch, tmp_path: Path) -> None:
    check_two_spinners(through, tmp_path, least=0.9 if most_unseen(through.last.probe, 1) else 0.98)


def test_a_ping_pong_has_as_many_waits_as_the_kernel_counts_with_every_probe(through: Watch, tmp_path: Path) -> None:
    check_ping_pong(through, tmp_path, partial(most_unseen, through.last.probe))


@PROBES_OF_EXITS
def test_run_queue_time_from_wakeups_matches_the_kernels_count(
    probe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demand(probe)
    if found().run_delay is None:
        lacks("its own count of run-queue time")
    spin = programs.build(tmp_path / "spin", SPIN)
    with ExitStack() as stack:
        sleeper = stack.enter_context(waits.running("sleep", times=23, each_ms=10))
        spinner = stack.enter_context(programs.running([spin]))
        by_count = stack.enter_context(watch.watching_kernel_stacks())
        watch.without(monkeypatch, "run_delay")
        by_wakings = stack.enter_context(watch.watching_kernel_stacks(probe=probe))
        for pid in (sleeper.pid, spinner.pid):
            os.sched_setaffinity(pid, {last_cpu()})
        os.sched_setscheduler(sleeper.pid, os.SCHED_BATCH, os.sched_param(0))  # it never preempts the spinner
        os.setpriority(os.PRIO_PROCESS, sleeper.pid, 10)
        spinner.go_on_alone()
        for live in (by_count, by_wakings):
            live.tick()
        sleeper.go()
        sleeper.finish()
        wait_until_asleep(sleeper.tid)
        windows = [live.tick() for live in (by_count, by_wakings)]
        counted, woken = (watch.thread(window, sleeper.tid) for window in windows)
        unseen = most_unseen(probe, counted.waits)
        assert 0 <= counted.waits - woken.waits <= unseen
        assert counted.waits >= 24
        assert counted.runqueue_ns >= 10 * MS
        tolerance = 0.25 if unseen or "wakings" in windows[1].lost else 0.1
        assert abs(counted.runqueue_ns - woken.runqueue_ns) <= max(2 * MS, tolerance * counted.runqueue_ns)
        sources = [dict(live.source.about())["run-queue time"] for live in (by_count, by_wakings)]
        assert sources == ["the kernel's run_delay", "tracepoint sched_waking"]


def test_a_requested_probe_that_is_missing_is_refused() -> None:
    for probe in SWITCH_IN_PROBES:
        refused = rf"^--probe {probe}: this kernel does not have it\. Leave --probe out, or see: offtop doctor$"
        without = replace(found(), switch_in_probes=tuple(other for other in SWITCH_IN_PROBES if other != probe))
        with pytest.raises(UsageError, match=refused):
            features.choose_probes(without, probe)
        if probe not in found().switch_in_probes:
            before = descriptors()
            with pytest.raises(UsageError, match=refused):
                LiveSource(watch.rules(), Filters(), probe=probe)
            assert descriptors() == before


def most_unseen(probe: str, count: int) -> int:
    """Return how many ends of so many waits may be missed.

    The `switch` probe sees a switch-in from the previous thread on that CPU. If the kernel does not trace that thread
    (here: the threads of this virtual machine's init), the switch-in is missed.
    """
    return 1 + count // 100 if probe == "switch" else 0


def last_cpu() -> int:
    return max(os.sched_getaffinity(0))


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
