"""Test waits in progress and run times on the real kernel.

Waits have the right age, state, cause and stack.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from offtop.kernel.binary.files import Files
from offtop.kernel.bpf.layout import ScannedStack
from offtop.kernel.bpf.scan_rows import REGISTERS_ROW, Rows
from offtop.kernel.procfs.syscalls import name_of
from offtop.kernel.unwind import user_stacks
from offtop.kernel.unwind.cpu_allowance import Allowance
from offtop.kernel.unwind.unwinder import UNREAD, Unwinder, UnwoundStack
from offtop.kernel.unwind.user_stacks import OLD_NS, UserStacks
from offtop.model.aggregate.account import Account, accounts, explained
from offtop.model.classify.categories import is_periodic
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import SiteKey, ThreadKey
from offtop.model.values.snapshot import Bound, Snapshot, Waiting
from offtop.model.values.stack import NO_STACK
from offtop.model.values.table import thread_codes
from offtop.model.values.waits import WaitList, Waits
from offtop.model.windows.breakdown import Idle
from offtop.model.windows.history import History
from offtop.model.windows.stuck import Stuck, stuck
from offtop.model.windows.window import Window
from tests.kernel import programs, waits, watch
from tests.kernel.procfs.test_processes import child_with_pid
from tests.kernel.reads import GUARDED
from tests.kernel.test_counts import wait_until_asleep
from tests.kernel.watch import MS, S, Watch

pytestmark = pytest.mark.kernel

_C = ("-D_GNU_SOURCE", "-pthread", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-fno-builtin")

CLOCK = r"""
#include <sys/syscall.h>
#include <time.h>
static long ns_of(int clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000 + t.tv_nsec;
}
static long now_ns(void) { return ns_of(CLOCK_MONOTONIC); }
static void spin_ms(long ms)
{
	for (long until = ns_of(CLOCK_THREAD_CPUTIME_ID) + ms * 1000000; ns_of(CLOCK_THREAD_CPUTIME_ID) < until;)
		;
}
"""
SLEEPS = (
    CLOCK
    + r"""
int main(void)
{
	static const struct timespec long_time = {1000, 0};
	next();
	tell("asleep", (void *)now_ns());
	puts("ready");
	fflush(stdout);
	syscall(SYS_nanosleep, &long_time, 0);
	return 0;
}
"""
)
"""Prints the time when it falls asleep forever."""
VFORKS = CLOCK + "int main(void) { next(); if (!vfork()) { usleep(20000000); _exit(0); } return 0; }"
SPINS = CLOCK + "int main(void) { next(); for (;;) ; }"
SPINS_THEN_ENDS = CLOCK + "int main(void) { spin_ms(300); return 0; }"
WAITS_AFTER_A_RUN = (
    CLOCK
    + r"""
int main(void)
{
	next();
	spin_ms(400);
	tell("asleep", (void *)now_ns());
	next();
	tell("awake", (void *)now_ns());
	next();
	return 0;
}
"""
)
BRIEF = "int main(void) { usleep(5000); return 0; }"
CROWD = (
    CLOCK
    + r"""
#include <linux/futex.h>
#include <pthread.h>
static int word;
static int asleep;
static void *wait_for_word(void *unused)
{
	__atomic_add_fetch(&asleep, 1, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, 0, 0, 0);
	pause();
	return 0;
}
int main(void)
{
	pthread_t made;
	pthread_attr_t small;
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 65536);
	tell("word", &word);
	for (int i = 0; i < 400; i++)
		pthread_create(&made, &small, wait_for_word, 0);
	while (__atomic_load_n(&asleep, __ATOMIC_SEQ_CST) < 400)
		usleep(1000);
	next();
	word = 1;
	syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1000, 0, 0, 0);
	next();
	return 0;
}
"""
)
"""400 threads on one futex, until they are woken."""
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
    directory = tmp_path_factory.mktemp("stuck")
    sources = {
        "sleeps": SLEEPS,
        "vforks": VFORKS,
        "spins": SPINS,
        "spins-then-ends": SPINS_THEN_ENDS,
        "waits-after-a-run": WAITS_AFTER_A_RUN,
        "brief": BRIEF,
        "crowd": CROWD,
        "execs": EXECS,
    }
    for name, source in sources.items():
        programs.build(directory / name, source, *_C)
    return directory


def waiting(live: Watch, tid: int) -> Waiting:
    """Return that thread's wait in progress at the last tick."""
    return next(one for key, one in live.last.waiting.items() if key.tid == tid)


def now_stuck(snapshot: Snapshot) -> Stuck:
    return stuck(snapshot.waiting.values(), snapshot.at_ns, snapshot.catalog, Idle())


def names(live: Watch, stack: int) -> tuple[str, ...]:
    """Return the frame names, leaf first."""
    frames = live.last.catalog.stack(stack).trimmed
    live.source.wait_for_names({*frames}, 30)
    return tuple(live.source.names.of(frame) for frame in frames)


def of_thread(window: Window, tid: int) -> Account:
    return accounts([window]).of(None, tid)


# Age


def test_a_wait_from_before_offtop_has_a_maximum_age_within_20_ms(built: Path) -> None:
    with programs.running([built / "sleeps"]) as child:
        child.go()
        wait_until_asleep(child.pid)
        time.sleep(0.3)
        attached_ns = time.monotonic_ns()
        with watch.watching() as fresh:
            for after_s in (0.0, 0.4):
                fresh.tick(after_s)
                one = waiting(fresh, child.pid)
                assert one.bound == Bound.AT_MOST
                assert one.switched_out_ns >= attached_ns  # it counts from then on
                assert abs(one.since_ns - child.at["asleep"]) <= 20 * MS
                some = now_stuck(fresh.last)
                age = next(some.age(row) for row, it in enumerate(some.waits) if it.site.tid == child.pid)
                assert abs(age.ns - (fresh.last.at_ns - child.at["asleep"])) <= 20 * MS
                assert age.text.startswith("<=")


def test_a_wait_from_before_offtop_has_its_whole_length_when_it_has_ended(built: Path) -> None:
    with programs.running([built / "waits-after-a-run"]) as child:
        os.sched_setaffinity(child.pid, {min(os.sched_getaffinity(0))})  # it must not be moved after its run
        child.go()
        time.sleep(0.3)
        with watch.watching() as fresh:
            fresh.tick()
            child.go()
            window = fresh.tick(0.1)
            ended = watch.thread(window, child.pid)
            whole_ns = child.at["awake"] - child.at["asleep"]
            assert whole_ns >= ended.offcpu_ns + 300 * MS  # its time counts in full windows only
            assert abs(ended.max_ns - whole_ns) <= 20 * MS
            assert ended.max_ns == max(totals.max_ns for totals in watch.sites_of(window, child.pid).values())
            of_sites = sum(totals.histogram for totals in watch.sites_of(window, child.pid).values())
            longest = log2.low_ns(log2.lane_of(ended.max_ns))
            for histogram in (ended.histogram, of_sites):
                assert [some for some in log2.slots(histogram) if some[0] >= 100 * MS] == [(longest, 1)]


def test_reading_all_waits_again_changes_none_that_goes_on(built: Path) -> None:
    """Otherwise it would not have gone on through the whole tick, and would not count as standing in it."""
    with programs.running([built / "sleeps"]) as child:
        child.go()
        wait_until_asleep(child.pid)
        with watch.watching() as fresh:
            until_s = time.monotonic() + 10
            while not waiting(fresh, child.pid).user and time.monotonic() < until_s:
                fresh.tick(0.4)
            fresh.tick(0.2)
            known = waiting(fresh, child.pid)
            assert (known.bound, known.user != NO_STACK) == (Bound.AT_MOST, True)
            for _ in range(3):
                fresh.source._stages.must_prime = True  # pyright: ignore[reportPrivateUsage]
                before = Waits.of(fresh.last.waiting)
                fresh.tick(0.2)
                now = Waits.of(fresh.last.waiting)
                assert not now.changed_since(before)[
                    now.rows_of(thread_codes(np.array([[child.pid, child.pid]])))
                ].any()


def test_a_later_wait_has_an_exact_age_and_is_stuck_at_the_next_tick(live: Watch, built: Path) -> None:
    with programs.running([built / "sleeps"]) as child:
        live.tick()
        child.go()
        live.tick(0.15)
        some = now_stuck(live.last)
        (row,) = [row for row, one in enumerate(some.waits) if one.site.tid == child.pid]
        assert some.age(row).bound == Bound.EXACT
        assert 0 <= some.waits[row].switched_out_ns - child.at["asleep"] <= 20 * MS
        assert 0 <= live.last.at_ns - child.at["asleep"] - some.age(row).ns <= 20 * MS
        assert (some.leaf(row).category, some.waits[row].letter) == ("sleep", "S")
        assert (live.last.catalog.calls[some.waits[row].call], names(live, some.waits[row].site.kernel)[0]) == (
            "nanosleep",
            "do_nanosleep",
        )
        live.tick(0.1)
        assert waiting(live, child.pid).switched_out_ns == some.waits[row].switched_out_ns


def test_a_thread_switched_in_is_no_longer_stuck(live: Watch) -> None:
    history = History((), is_periodic)
    with waits.running("futex", times=1, each_ms=400) as child:
        history.add(live.last)
        child.go()
        live.tick(0.3)
        during = history.add(live.last)
        child.finish()
        live.tick()
        after = history.add(live.last)
        assert during and after
        was = {one.site.tid: one for one in history.stuck(during).waits}
        assert was[child.tid].letter == "S"
        assert was[child.tid].switched_out_ns not in {one.switched_out_ns for one in history.stuck(after).waits}


# State, category, stacks: the same before and after its end


class Seen(NamedTuple):
    category: str
    kernel: tuple[str, ...]
    user: tuple[str, ...]


KINDS = dict.fromkeys(("futex", "mutex-libc", "sleep", "pipe", "poll", "flock", "tcp", "sigwait"), "S") | {
    "inode-lock": "D",
    "vfork-libc": "DK",
    "stopped": "T",
}
"""State or states of each kind of wait."""


@pytest.fixture(scope="module")
def guessed() -> set[str]:
    """Return the kernel's wait functions (__sched) that a scan only guesses.

    They are found among the words of the stack, some of which may be from earlier calls.
    """
    symbols = [line.split()[:3] for line in Path("/proc/kallsyms").read_text().splitlines()]
    ends = {name: int(at, 16) for at, _, name in symbols if name in ("__sched_text_start", "__sched_text_end")}
    return {name for at, _, name in symbols if ends["__sched_text_start"] <= int(at, 16) < ends["__sched_text_end"]}


def test_a_wait_keeps_category_and_stack_when_it_ends(live: Watch, guessed: set[str]) -> None:
    with contextlib.ExitStack() as stack:
        children = {name: stack.enter_context(waits.running(name, times=1, each_ms=1500)) for name in KINDS}
        live.tick()
        began_ns = time.monotonic_ns()
        for child in children.values():
            child.go()
        during: dict[str, Seen] = {}
        while len(during) < len(children):
            assert time.monotonic_ns() - began_ns < 1.4 * S, f"only {[*during]}"
            live.tick(0.15)
            some = now_stuck(live.last)
            leaves = {one.site.tid: some.leaf(row).category for row, one in enumerate(some.waits)}
            for name, child in children.items():
                one = waiting(live, child.tid)
                if one.switched_out_ns > began_ns and one.user != NO_STACK:  # which takes a tick longer
                    assert one.letter in KINDS[name], f"{name}: {one.letter}"
                    during[name] = Seen(leaves[child.tid], names(live, one.site.kernel), names(live, one.user))
        for name, child in children.items():
            assert during[name].category == child.wait.category
            expected = ("gamma", "beta", "alpha", "main") if name.endswith("-libc") else child.user
            assert " < ".join(expected) in " < ".join(during[name].user)
        for child in children.values():
            child.finish()
        window = live.tick()
        alike: list[str] = []
        for name, child in children.items():
            ended = {
                Seen(category, names(live, key.kernel), names(live, key.user))
                for key, totals in watch.sites_of(window, child.tid).items()
                if totals.waits
                for category in [live.last.catalog.stack(key.kernel).category]
            }
            but_for_guesses = {one._replace(kernel=tuple(f for f in one.kernel if f not in guessed)) for one in ended}
            without_guesses = during[name]._replace(kernel=tuple(f for f in during[name].kernel if f not in guessed))
            assert without_guesses in but_for_guesses, f"{name}: {without_guesses} is none of {but_for_guesses}"
            alike += [name] if during[name] in ended else []
        assert len(alike) >= len(KINDS) - 3, alike


def test_a_wait_that_a_kill_ends_keeps_the_user_stack_that_was_read(live: Watch) -> None:
    known = live.source._parts.processes._images  # pyright: ignore[reportPrivateUsage]
    for _ in range(5):  # if it waited before, for example for a CPU, its mappings are known anyway
        ended, one, pid = _killed(live)
        assert [site.user for site in ended] == [one.user]
        if pid not in known:
            return
    pytest.fail("each process has ended another wait before")


def _killed(live: Watch) -> tuple[list[SiteKey], Waiting, int]:
    """Kill a process when the stack of its wait has been read; return where its waits ended, and that wait."""
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            deadline = time.monotonic() + 10
            key = ThreadKey(child.pid, child.pid)
            while key not in live.last.waiting or (one := live.last.waiting[key]).user == NO_STACK:
                assert time.monotonic() < deadline
                live.tick(0.2)
        finally:
            child.kill()
        category = live.last.catalog.stack(one.site.kernel).category
        while True:
            assert time.monotonic() < deadline
            sites = watch.sites_of(live.tick(0.2), child.pid)
            ended = [key for key, totals in sites.items() if totals.waits]
            ended = [key for key in ended if live.last.catalog.stack(key.kernel).category == category]
            if ended:
                return ended, one, child.pid


_SLEEPERS = (
    "import threading, time\n"
    "def sleep():\n"
    "    while True: time.sleep(0.05)\n"
    "for _ in range(100): threading.Thread(target=sleep).start()\n"
)


def test_no_function_of_an_earlier_call_is_shown_in_a_wait_in_progress(live: Watch) -> None:
    """The stacks of some 3 % of these waits have a return address of an earlier __schedule() or do_nanosleep()."""
    child = subprocess.Popen([sys.executable, "-c", _SLEEPERS])
    found = Counter[tuple[str, ...]]()
    try:
        deadline = time.monotonic() + 60
        while found.total() < 1000:
            assert time.monotonic() < deadline, found
            live.tick(0.1)
            catalog = live.last.catalog
            for one in live.last.waiting.values():
                frames = tuple(frame.name for frame in catalog.stack(one.site.kernel).frames)
                found[frames] += one.site.pid == child.pid and "do_nanosleep" in frames
    finally:
        child.kill()
        child.wait()
    assert [frames[:4] for frames in +found] == [("__schedule", "schedule", "do_nanosleep", "hrtimer_nanosleep")], found


def test_a_thread_that_used_up_its_quota_is_ready_and_in_throttle(live: Watch) -> None:
    with waits.running("throttle", times=2, each_ms=900) as child:
        live.tick()
        child.go()
        found: set[str] = set()
        for _ in range(15):
            live.tick(0.1)
            some = now_stuck(live.last)
            found |= {
                some.leaf(row).category
                for row, one in enumerate(some.waits)
                if one.site.tid == child.tid and one.letter == "R"
            }
            if found:
                break
        assert found == {"throttle"}


def test_a_stopped_thread_shows_no_system_call_if_it_was_in_none(live: Watch, built: Path) -> None:
    with programs.running([built / "spins"]) as child:
        child.go_on_alone()
        time.sleep(0.05)
        os.kill(child.pid, signal.SIGSTOP)
        wait_until_asleep(child.pid)
        live.tick(0.15)
        some = now_stuck(live.last)
        (row,) = [row for row, one in enumerate(some.waits) if one.site.tid == child.pid]
        assert (some.leaf(row).category, some.waits[row].letter) == ("stopped", "T")
        assert some.waits[row].call == -1
        assert Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_vfork_parent_is_uninterruptible(live: Watch, built: Path) -> None:
    with programs.running([built / "vforks"]) as child:
        child.go_on_alone()
        live.tick(0.3)
        one = waiting(live, child.pid)
        assert one.letter in "DK"
        assert live.last.catalog.stack(one.site.kernel).category == "child"
        other = int(Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text())
        os.kill(other, signal.SIGKILL)


def test_400_threads_on_one_futex_are_400_lines_with_one_address(live: Watch, built: Path) -> None:
    with programs.running([built / "crowd"]) as child:
        live.tick(0.15)
        some = now_stuck(live.last)
        rows = [row for row, one in enumerate(some.waits) if one.site.pid == child.pid and one.site.tid != child.pid]
        assert len(rows) == 400
        assert {some.leaf(row).category for row in rows} == {"lock"}
        assert {(live.last.catalog.calls[some.waits[row].call], some.waits[row].arguments[0]) for row in rows} == {
            ("futex", child.at["word"])
        }
        assert len({some.waits[row].site.kernel for row in rows}) == 1
        read: list[Waiting] = []
        for _ in range(20):
            live.tick(0.1)
            mine = [one for key, one in live.last.waiting.items() if key.pid == child.pid]
            read = [one for one in mine if one.user != NO_STACK and one.site.tid != child.pid]
            if len(read) == 400:
                break
        of_threads = {one.user for one in read}
        assert (len(read), len(of_threads)) == (400, 1)
        assert names(live, of_threads.pop())[:3] == ("syscall", "wait_for_word", "start_thread")
        child.go()
        live.tick(0.15)
        assert {one.arguments[:1] for key, one in live.last.waiting.items() if key.pid == child.pid} != {
            (child.at["word"],)
        }
        assert not any(
            live.last.catalog.stack(one.site.kernel).category == "lock"
            for key, one in live.last.waiting.items()
            if key.pid == child.pid
        )


# Threads that ran while their stack was read


def registers_of(tid: int) -> Rows:
    """Return what the scan would report of a thread that is in a system call."""
    number, *arguments, sp, ip = Path(f"/proc/{tid}/syscall").read_text().split()
    registers = np.zeros(1, REGISTERS_ROW)
    registers["pcount"] = int(Path(f"/proc/{tid}/schedstat").read_text().split()[2])
    registers["call"], registers["sp"], registers["ip"] = int(number), int(sp, 16), int(ip, 16)
    registers["arguments"] = [int(word, 16) for word in arguments]
    return registers


class Watched(Unwinder):
    """An Unwinder that calls `before` before it unwinds each thread, and `after` afterwards."""

    def __init__(self, before: Callable[[int], object], after: Callable[[], object]) -> None:
        super().__init__(Files(GUARDED), "fp", None)
        self._calls = before, after

    def another(self) -> Unwinder:
        return Watched(*self._calls)

    def unwind_thread(
        self, key: ThreadKey, stack: ScannedStack, is_32_bit_program: bool, has_run: Callable[[], bool]
    ) -> UnwoundStack | None:
        before, after = self._calls
        before(key.tid)

        def ran() -> bool:
            after()
            return has_run()

        return super().unwind_thread(key, stack, is_32_bit_program, ran)


def found_of(tid: int, meanwhile: Callable[[], None], age_ns: int = S) -> list[int]:
    """Return the threads whose stacks are read if `meanwhile` happens during that."""
    key = ThreadKey(tid, tid)
    goes_on = threading.Event()

    def walked() -> None:
        meanwhile()
        goes_on.set()

    reader = UserStacks(Watched(lambda _: None, walked), Allowance(5))
    one = Waiting(watch.SiteKey(tid, tid, 3, NO_STACK), 5 * S, 5 * S)
    reader.note_waits(WaitList.of([one]).rows, registers_of(tid))
    found = reader.read({key: one}, 5 * S + age_ns)
    if goes_on.wait(1 if age_ns >= S // 5 else 0.1):
        for _ in range(100):
            found = found or reader.read({}, 0)
            if found:
                break
            time.sleep(0.002)
    reader.close()
    return [tid for one in found for tid in one.ids[:, 1].tolist()]


def test_a_stack_is_discarded_if_its_thread_ran_while_it_was_read(built: Path) -> None:
    with programs.running([built / "sleeps"]) as child:
        wait_until_asleep(child.pid)

        def runs() -> None:
            child.go()
            wait_until_asleep(child.pid)

        assert found_of(child.pid, lambda: None) == [child.pid]
        assert found_of(child.pid, lambda: None, age_ns=S // 5 - 1) == []  # too young to be worth a look
        assert found_of(child.pid, runs) == []
        assert found_of(child.pid, lambda: None) == [child.pid]

    def ends() -> None:
        gone.kill()
        gone.wait(10)

    with subprocess.Popen(["sleep", "1000"]) as gone:
        wait_until_asleep(gone.pid)
        assert found_of(gone.pid, ends) == []


class Refusing(Unwinder):
    """An Unwinder that cannot read any stack in time."""

    def __init__(self) -> None:
        super().__init__(Files(GUARDED), "fp", None)
        self.asked: list[int] = []

    def unwind_thread(
        self, key: ThreadKey, stack: ScannedStack, is_32_bit_program: bool, has_run: Callable[[], bool]
    ) -> UnwoundStack:
        self.asked.append(key.tid)
        return UNREAD


def test_a_sample_of_alike_waits_that_cannot_be_read_is_asked_for_again(built: Path) -> None:
    with programs.running([built / "sleeps"]) as child:
        wait_until_asleep(child.pid)
        tids = [child.pid + 1_000_000 + number for number in range(8)]
        waiting = {
            ThreadKey(child.pid, tid): Waiting(watch.SiteKey(child.pid, tid, 3, NO_STACK), 5 * S, 5 * S) for tid in tids
        }
        unwinder = Refusing()
        reader = UserStacks(unwinder, Allowance(100))
        reader.note_waits(WaitList.of(waiting.values()).rows, np.repeat(registers_of(child.pid), len(tids)))
        programs.until(lambda: sorted(unwinder.asked) == tids)
        assert reader.followed() == []
        reader.read(waiting, 7 * S)
        programs.until(lambda: sorted(unwinder.asked) == sorted([*tids, *tids]))
        reader.close()


def test_a_process_with_unreadable_memory_does_not_block_others_for_long(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_stacks, "_HUNG_S", 0.1)
    let_go = threading.Event()
    with programs.running([built / "sleeps"]) as hung, programs.running([built / "sleeps"]) as child:
        for one in (hung, child):
            wait_until_asleep(one.pid)

        def hangs(tid: int) -> None:
            if tid == hung.pid:
                let_go.wait(30)

        reader = UserStacks(Watched(hangs, lambda: None), Allowance(5))
        waiting = {
            ThreadKey(one.pid, one.pid): Waiting(watch.SiteKey(one.pid, one.pid, 3, NO_STACK), 5 * S, 5 * S)
            for one in (hung, child)
        }

        def read() -> set[int]:
            for key, one in waiting.items():
                reader.note_waits(WaitList.of([one]).rows, registers_of(key.tid))
            return {pid for one in reader.read(waiting, 7 * S) for pid in one.ids[:, 0].tolist()}

        assert read() == set()
        time.sleep(0.15)
        found, requests = set[int](), 0
        while not found and requests < 100:
            found, requests = read(), requests + 1
        assert (found, reader.hung) == ({child.pid}, 1)
        let_go.set()
        while reader.hung and requests < 200:
            time.sleep(0.01)
            requests += 1
        assert read() | read() >= {hung.pid}
        reader.close()


def test_a_stack_from_an_earlier_wait_is_not_used_for_a_later_one(live: Watch) -> None:
    with waits.running("sleep", times=2, each_ms=700) as child:
        live.tick()
        child.go()
        seen: dict[int, list[tuple[int, ...]]] = {}
        for _ in range(26):
            live.tick(0.05)
            one = waiting(live, child.tid)
            if live.last.catalog.calls.get(one.call, "").endswith("nanosleep"):  # neither for its go nor for its end
                seen.setdefault(one.switched_out_ns, []).append((one.age_ns(live.last.at_ns), one.user))
        child.finish()
    assert len(seen) == 2
    for switched_out_ns in seen:
        assert all(user == NO_STACK for age_ns, user in seen[switched_out_ns] if age_ns < OLD_NS)
        read = {user for _, user in seen[switched_out_ns]} - {NO_STACK}
        assert [names(live, user)[:5] for user in read] == [child.user]


# Run time


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


# Identity


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


@pytest.mark.parametrize("together", [False, True], ids=["later", "in the same tick"])
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


@pytest.mark.parametrize(("main_ms", "other_ms"), [(300, 20), (20, 300)])
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


def test_nothing_is_stuck_without_waits(live: Watch) -> None:
    assert stuck([], live.last.at_ns, live.last.catalog, Idle()).waits == ()
    assert name_of(-1) == ""
