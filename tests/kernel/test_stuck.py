"""Test waits in progress on the real kernel.

They have the right age, state, category and stack, which stay the same when they end.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from offtop.kernel.procfs.syscalls import name_of
from offtop.kernel.unwind.user_stacks import OLD_NS
from offtop.model.classify.categories import is_periodic
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import SiteKey, ThreadKey
from offtop.model.values.snapshot import Bound, Snapshot, Waiting
from offtop.model.values.stack import NO_STACK
from offtop.model.values.table import thread_codes
from offtop.model.values.waits import Waits
from offtop.model.windows.breakdown import Idle
from offtop.model.windows.history import History
from offtop.model.windows.stuck import Stuck, stuck
from offtop.model.windows.window import between
from tests.conftest import lacks
from tests.kernel import programs, waits, watch
from tests.kernel.sleeping_and_spinning import CLOCK, SLEEPS, SPINS, build_all
from tests.kernel.test_counts import wait_until_asleep
from tests.kernel.watch import MS, S, Watch

pytestmark = pytest.mark.kernel

VFORKS = CLOCK + "int main(void) { next(); if (!vfork()) { usleep(20000000); _exit(0); } return 0; }"
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


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the programs."""
    return build_all(
        tmp_path_factory.mktemp("stuck"),
        {"sleeps": SLEEPS, "vforks": VFORKS, "spins": SPINS, "waits-after-a-run": WAITS_AFTER_A_RUN, "crowd": CROWD},
    )


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


RECEIVES = "import socket; a, b = socket.socketpair(); print(flush=True); a.recv(1)"
"""Waits in a sleep in which a freezer may stop it (TASK_FREEZABLE)."""


@contextlib.contextmanager
def receiver_in_freezer() -> Generator[tuple[subprocess.Popen[bytes], Path]]:
    """Run a child that RECEIVES in a cgroup of the freezer of version 1; yield both."""
    with subprocess.Popen([sys.executable, "-c", RECEIVES], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout
            child.stdout.readline()
            wait_until_asleep(child.pid)
            with waits.in_cgroup("freezer", child.pid, {}, {}) as group:
                if not (group / "freezer.state").exists():
                    lacks("the freezer of control groups of version 1")
                yield child, group
        except waits.UnavailableError as missing:
            pytest.skip(str(missing))
        finally:
            child.kill()


def test_a_thread_that_is_frozen_where_it_sleeps_is_stopped_until_it_is_thawed(live: Watch) -> None:
    with receiver_in_freezer() as (child, group):
        live.tick(0.2)
        assert waiting(live, child.pid).letter == "S"
        kernel = waiting(live, child.pid).site.kernel
        with frozen(group):
            live.tick(0.1)
            if names(live, waiting(live, child.pid).site.kernel) == ("__refrigerator",):
                lacks("TASK_FREEZABLE")
            during = live.tick(0.2)
            one = waiting(live, child.pid)
        thawed = live.tick(0.2)
        after = waiting(live, child.pid)
        child.kill()
        ended = live.tick(0.2)
    assert (one.letter, live.last.catalog.stack(one.site.kernel).category) == ("D", "stopped")
    assert live.last.catalog.stack(one.site.kernel).frames == live.last.catalog.stack(kernel).frames
    assert {c: part.total_ns for c, part in watch.by_category(during, child.pid).items()} == {"stopped": during.span_ns}
    assert (after.letter, after.site.kernel, after.switched_out_ns) == ("S", kernel, one.switched_out_ns)
    in_pipe = watch.by_category(thawed, child.pid)["pipe"].total_ns
    assert 0 < in_pipe <= thawed.span_ns, "what it was while it was frozen stays"
    assert "stopped" not in watch.by_category(ended, child.pid), "also when the wait has ended"


def test_a_wait_that_ends_when_its_thread_is_thawed_was_stopped_until_then(live: Watch) -> None:
    with receiver_in_freezer() as (child, group):
        with frozen(group):
            live.tick(0.2)
            before = live.last
            live.tick(0.3)
            if live.last.catalog.stack(waiting(live, child.pid).site.kernel).category != "stopped":
                lacks("TASK_FREEZABLE")
            child.kill()
        live.tick(0.3)
    found = watch.by_category(between(before, live.last), child.pid)
    assert found["stopped"].total_ns >= 0.29 * S
    assert all(part.total_ns >= 0 for part in found.values())


@contextlib.contextmanager
def frozen(group: Path) -> Generator[None]:
    """Freeze a cgroup of version 1."""
    state = group / "freezer.state"
    state.write_text("FROZEN")
    try:
        programs.until(lambda: state.read_text() == "FROZEN\n")
        yield
    finally:
        state.write_text("THAWED")


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


def test_a_stack_from_an_earlier_wait_is_not_used_for_a_later_one(live: Watch) -> None:
    with waits.running("sleep", times=3000, each_ms=10) as other:
        other.go()
        live.load_unwind_rules(other.tid, *other.user)  # as if other tests had run before
    with waits.running("sleep", times=2, each_ms=1000) as child:
        live.tick()
        child.go()
        seen: dict[int, list[tuple[int, ...]]] = {}
        for _ in range(38):
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


def test_nothing_is_stuck_without_waits(live: Watch) -> None:
    assert stuck([], live.last.at_ns, live.last.catalog, Idle()).waits == ()
    assert name_of(-1) == ""
