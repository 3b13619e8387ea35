"""Test run times and lifetimes of threads on the real kernel.

Threads that have the same TID one after the other keep theirs apart.
"""

import contextlib
import os
import subprocess
import time
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from offtop.model.aggregate.account import Account, accounts, explained
from offtop.model.values.catalog import ThreadKey
from offtop.model.windows.window import Window
from tests.kernel import programs, watch
from tests.kernel.procfs.test_processes import child_with_pid
from tests.kernel.sleeping_and_spinning import CLOCK, SLEEPS, SPINS, build_all
from tests.kernel.test_counts import wait_until_asleep
from tests.kernel.watch import MS, Watch

pytestmark = pytest.mark.kernel


SPINS_THEN_ENDS = CLOCK + "int main(void) { spin_ms(300); return 0; }"
BRIEF = "int main(void) { usleep(5000); return 0; }"
EXECS = (
    CLOCK
    + r"""
#include <pthread.h>
#include <stdlib.h>
static long main_ms, other_ms;
static char *self;
static pthread_barrier_t both;
static void *other(void *unused)
{
	spin_ms(other_ms);
	pthread_barrier_wait(&both);
	pthread_barrier_wait(&both);
	execl(self, "again", (char *)0);
	return 0;
}
int main(int count, char **words)
{
	pthread_t made;
	if (count < 2) {
		next();
		spin_ms(200);
		next();
		return 0;
	}
	self = "/proc/self/exe";
	main_ms = atol(words[1]);
	other_ms = atol(words[2]);
	next();
	pthread_barrier_init(&both, 0, 2);
	pthread_create(&made, 0, other, 0);
	spin_ms(main_ms);
	pthread_barrier_wait(&both);
	next();
	pthread_barrier_wait(&both);
	pause();
	return 0;
}
"""
)
"""Two threads spin; then the second execs another program and takes the TID of the first."""

LATE_NS = 12 * MS
"""Slack: the kernel updates a thread's running time at its own ticks."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the programs."""
    return build_all(
        tmp_path_factory.mktemp("run-times"),
        {"sleeps": SLEEPS, "spins": SPINS, "spins-then-ends": SPINS_THEN_ENDS, "brief": BRIEF, "execs": EXECS},
    )


def of_thread(window: Window, tid: int) -> Account:
    return accounts([window]).of(None, tid)


@contextlib.contextmanager
def spinning(built: Path, count: int, cpus: Sequence[int] = ()) -> Generator[list[int]]:
    """Run so many processes that spin."""
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(programs.running([built / "spins"])) for _ in range(count)]
        for child in children:
            if cpus:
                os.sched_setaffinity(child.pid, cpus)
            child.go_on_alone()
        yield [child.pid for child in children]


def unexplained_ns(window: Window, one: Account) -> int:
    return explained(one.residue_ns, one.residue_ns, window.machine).unexplained_ns


def test_a_spinner_runs_or_is_ready_all_the_time(live: Watch, built: Path) -> None:
    with spinning(built, 1) as (tid,):
        before = [watch.running_ns(tid, tid), live.tick(0.1) and watch.running_ns(tid, tid)]
        time.sleep(1)
        after = [watch.running_ns(tid, tid)]
        window = live.tick()
        after.append(watch.running_ns(tid, tid))
        one = of_thread(window, tid)
        assert (one.threads, one.through, one.sum_ns) == (1, 1, window.span_ns)
        assert (one.blocked_ns, one.voluntary) == (0, 0)
        assert after[0] - before[1] - LATE_NS <= one.running_ns <= after[1] - before[0] + LATE_NS
        assert unexplained_ns(window, one) <= 0.02 * window.span_ns
        assert window.machine.cpus == os.cpu_count()


@pytest.mark.variant
def test_two_spinners_on_one_cpu_share_it_and_are_ready_otherwise(live: Watch, built: Path) -> None:
    with spinning(built, 2, cpus=[max(os.sched_getaffinity(0))]) as tids:
        live.tick(0.2)
        window = live.tick(2)
        both = [of_thread(window, tid) for tid in tids]
        for one in both:
            assert one.sum_ns == window.span_ns
            assert (one.blocked_ns, one.voluntary) == (0, 0)
            assert one.involuntary > 10
            assert abs(one.running_ns + one.ready_ns - window.span_ns) <= 0.02 * window.span_ns
        # others may want this CPU too: then each has less than half, but as much as the other
        assert all(0.1 * window.span_ns <= one.running_ns <= 0.6 * window.span_ns for one in both)
        assert abs(both[0].running_ns - both[1].running_ns) <= 0.1 * window.span_ns
        assert sum(one.running_ns for one in both) <= 1.02 * window.span_ns


def test_a_sleeper_does_not_run_and_is_blocked_all_the_time(live: Watch, built: Path) -> None:
    with programs.running([built / "sleeps"]) as child:
        child.go()
        wait_until_asleep(child.pid)
        live.tick()
        window = live.tick(0.2)
        assert of_thread(window, child.pid) == Account(1, 1, blocked_ns=window.span_ns, worst_ns=window.span_ns)


def test_a_process_that_lived_between_two_ticks_keeps_its_name(live: Watch, built: Path) -> None:
    live.tick()
    with subprocess.Popen([built / "brief"]) as child:
        child.wait(10)
    window = live.tick(0.05)
    key = ThreadKey(child.pid, child.pid)
    assert watch.thread(window, child.pid).waits > 0
    assert (window.catalog.comm(key), window.catalog.process(child.pid)) == ("brief", "brief")
    life = window.catalog.life(key)
    assert window.at_ns - window.span_ns <= life.from_ns < life.to_ns <= window.at_ns
    assert of_thread(window, child.pid).through == 0
    live.tick(0.05)
    assert window.catalog.process(child.pid) == "brief"


@pytest.mark.parametrize(
    "together", [pytest.param(False, id="later", marks=pytest.mark.variant), pytest.param(True, id="in the same tick")]
)
def test_a_reused_pid_is_another_process_that_has_not_run(live: Watch, built: Path, together: bool) -> None:
    live.tick()
    with subprocess.Popen([built / "spins-then-ends"]) as child:
        child.wait(10)
    if not together:
        window = live.tick()
        first = watch.thread(window, child.pid)
        assert 250 * MS <= first.running_ns <= window.span_ns
        ended = window.catalog.life(ThreadKey(child.pid, child.pid))
        assert 0 < ended.from_ns < ended.to_ns <= window.at_ns
    between_ns = time.monotonic_ns()
    with child_with_pid(child.pid, ("sh", "-c", "read line")):
        wait_until_asleep(child.pid)
        window = live.tick(0.1)
        key = ThreadKey(child.pid, child.pid)
        life = window.catalog.life(key)
        assert (life.from_ns >= between_ns, life.to_ns) == (True, 0)
        second = watch.thread(window, child.pid)
        assert (250 * MS if together else 0) < second.running_ns < (400 if together else 100) * MS
        assert of_thread(window, child.pid).through == 0
        assert window.catalog.process(child.pid) == "sh"
        window = live.tick(0.2)
        assert of_thread(window, child.pid) == Account(1, 1, blocked_ns=window.span_ns, worst_ns=window.span_ns)


@pytest.mark.parametrize(("main_ms", "other_ms"), [(300, 20), pytest.param(20, 300, marks=pytest.mark.variant)])
def test_exec_from_a_thread_does_not_take_over_the_run_time(
    live: Watch, built: Path, main_ms: int, other_ms: int
) -> None:
    with programs.running([built / "execs", str(main_ms), str(other_ms)]) as child:
        live.tick()
        child.go()
        window = live.tick()
        mine = [totals.running_ns for key, totals in window.each_thread() if key.pid == child.pid]
        assert 0.9 * 320 * MS <= sum(mine) <= 2 * window.span_ns
        child.go()  # it is the other program by now
        window = live.tick(0.1)
        of_exec = [totals.running_ns for key, totals in window.each_thread() if key.pid == child.pid]
        assert all(0 <= ns <= 100 * MS for ns in of_exec), of_exec
        child.go()
        window = live.tick()
        assert 0.9 * 200 * MS <= watch.thread(window, child.pid).running_ns <= 250 * MS
        window = live.tick(0.2)
        one = of_thread(window, child.pid)
        assert one == Account(1, 1, blocked_ns=window.span_ns, worst_ns=window.span_ns)
        assert window.catalog.life(ThreadKey(child.pid, child.pid)).to_ns == 0
