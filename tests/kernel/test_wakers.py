"""Test who woke whom, through which code and on which object."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGCONT, SIGSTOP

import pytest

from offtop.kernel.live import LiveSource
from offtop.kernel.resolve.sites import FOR_SOMETHING_ELSE
from offtop.model.classify import wakers
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.snapshot import EXITED, OUTSIDE, Filters
from offtop.model.values.stack import ENDED, NO_STACK
from offtop.model.values.wake import (
    CHAIN,
    EXIT,
    FIRST_WAKE,
    NO_OBJECT,
    NOT_GATHERED,
    OFFCPU,
    OFFWAKE,
    SIGNAL,
    SOFTIRQ,
    THREAD,
    TIMEOUT,
    TIMER,
    WAKE_CPU,
    WAKE_SHORT,
    WAKEUP,
    WHOLE,
)
from offtop.model.windows.window import Window, merge
from tests.kernel import programs, wakings, watch
from tests.kernel.programs import running
from tests.kernel.test_counts import SPIN
from tests.kernel.test_namespaces import OWN, Container
from tests.kernel.watch import MS, Watch
from tests.kernel.woken import TIMES, asked, has, holds, kernel, of, user, waits, wakes_of, watched

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module")
def live() -> Generator[Watch]:
    with watched() as live:
        yield live


def by_kind(window: Window, tid: int) -> dict[str, int]:
    """Count waits by the kind of their waker."""
    found = Counter[str]()
    for wake, totals in wakes_of(window, tid).items():
        found[wake.waker.kind] += totals.waits
    return dict(found)


@dataclass(frozen=True)
class Kind:
    object: str
    waits_in: Sequence[str]
    """Parts of the names of kernel functions, leaf first."""
    wakes_in: Sequence[str]
    via: str = ""


KINDS = {
    "futex": Kind("futex", ("futex_wait",), ("futex_wake",)),
    "pipe": Kind("pipe", ("pipe_read",), ("pipe_write",)),
    "unix": Kind("unix", ("unix_stream_read",), ("sock_def_readable", "unix_stream_sendmsg")),
    "eventfd": Kind("eventfd", ("eventfd_read",), ("eventfd_write",)),
    "tcp": Kind("tcp", ("tcp_recvmsg",), ("sock_def_readable", "tcp_v4_rcv", "tcp_sendmsg"), SOFTIRQ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_23_wakeups_are_23_waits_of_the_sleeper_each_with_its_waker(live: Watch, kind: str) -> None:
    made = KINDS[kind]
    with wakings.running(kind) as child:
        asked(live, child, OFFWAKE)
        child.go()
        window = live.tick()
        assert live.last.mode == window.mode == OFFWAKE
        sleeper, waker = child.at["sleeper"], child.at["waker"]
        found = wakes_of(window, sleeper)
        assert waits(found.values()) == TIMES
        who = {(one.waker.kind, one.waker.pid, one.waker.tid, one.waker.comm, one.waker.via) for one in found}
        elsewhere = {(SOFTIRQ, 0, 0, "", "")} if made.via else set[object]()  # work that a busy machine defers
        assert who - elsewhere == {(THREAD, child.pid, waker, "waker", made.via)}
        blocked_ns = sum(totals.total_ns - totals.runqueue_ns for totals in found.values())
        assert TIMES * 20 * MS * 0.9 <= blocked_ns <= child.took_ns
        (waited_on,) = {one.object for one in found}
        assert waited_on.kind == made.object
        if waited_on.kind in ("pipe", "unix", "tcp"):
            assert waited_on.name in {str(fd.readlink()) for fd in Path(f"/proc/{child.pid}/fd").iterdir()}
        assert waited_on.pid == (child.pid if kind in ("futex", "eventfd") else 0)
        of_futex = kind == "futex"
        for key, totals in watch.sites_of(window, sleeper).items():
            if not totals.waits:
                continue
            wake = window.catalog.wake(key.wake)
            assert has(kernel(window, key.kernel), made.waits_in)
            assert holds(user(live, window, key.user), "wait_futex" if of_futex else "wait_fd", "sleeper")
            if wake.waker.kind != THREAD:
                continue
            assert has(kernel(window, wake.waker.kernel), made.wakes_in)
            assert kernel(window, wake.waker.kernel)[0] == wakers.FIRST
            assert holds(user(live, window, wake.waker.user), "wake_futex" if of_futex else "wake_fd", "waker")
        assert window.storms == {}
        assert window.lost == {}
        if made.via:  # it rested meanwhile, by its own timer
            assert TIMES - 3 <= by_kind(window, waker)[TIMEOUT] <= TIMES


def test_a_wait_for_another_descriptor_than_the_first_has_no_object(live: Watch) -> None:
    with wakings.running("splice") as child:
        asked(live, child, WAKEUP)
        child.go()
        found = wakes_of(live.tick(), child.at["sleeper"])
        by_waker = {wake: totals for wake, totals in found.items() if wake.waker.tid == child.at["waker"]}
        assert waits(by_waker.values()) == TIMES
        assert {wake.object for wake in found} == {NO_OBJECT}


def test_a_stopped_thread_does_not_wait_on_its_system_calls_object(live: Watch) -> None:
    with wakings.running("pipe", 1, 2000) as child:
        sleeper = child.at["sleeper"]
        asked(live, child, WAKEUP)
        child.go_on_alone()
        for _ in range(5):
            for signal, state in ((SIGSTOP, "T"), (SIGCONT, "S")):
                os.kill(child.pid, signal)
                while Path(f"/proc/{sleeper}/stat").read_text().rpartition(")")[2].split()[0] != state:
                    time.sleep(0.001)
                time.sleep(0.01)
        window = live.tick(0.05)
        objects = {True: set[str](), False: set[str]()}
        stopped = 0
        for key, totals in watch.sites_of(window, sleeper).items():
            if totals.waits and window.catalog.wake(key.wake).has_waker:
                is_stopped = window.catalog.stack(key.kernel).category == "stopped"
                objects[is_stopped].add(window.catalog.wake(key.wake).object.kind)
                stopped += totals.waits if is_stopped else 0
        assert stopped == 5
        assert objects == {True: {""}, False: {"pipe"}}


def test_categories_of_incidental_waits_exist() -> None:
    found = FOR_SOMETHING_ELSE
    assert found <= {*watch.rules().ids}


@pytest.mark.parametrize("kind", ["timer", "timer-calls"])
def test_a_thread_interrupted_by_a_timer_is_not_the_waker(live: Watch, kind: str) -> None:
    with wakings.running(kind, 46, 10) as child:
        asked(live, child, CHAIN)
        child.go()
        window = live.tick()
        found = wakes_of(window, child.pid)
        assert 40 <= by_kind(window, child.pid)[TIMEOUT] <= 46
        for wake in found:
            if wake.waker.kind == TIMEOUT:
                assert (wake.waker.pid, wake.waker.tid, wake.waker.user) == (0, 0, NO_STACK)
                assert (wake.links, wake.end) == ((), WHOLE)
                names = kernel(window, wake.waker.kernel)
                assert wakers.is_interrupt(names[-1])
                assert not has(names, ["getrandom"]) and not has(names, ["do_syscall"])
        assert child.at["stranger"] not in {wake.waker.tid for wake in window.catalog.wakes.values()}
        assert sum(wake.waker.kind == TIMEOUT for wake in found) <= 8


def test_timers_signals_and_child_exits_are_reported_as_such(live: Watch) -> None:
    with wakings.running("timerfd") as child:
        asked(live, child, WAKEUP)
        child.go()
        found = wakes_of(live.tick(), child.pid)
        of_timer = {wake: totals for wake, totals in found.items() if wake.waker.kind == TIMER}
        assert waits(of_timer.values()) == TIMES
        assert {(wake.waker.name, wake.waker.tid, wake.object.kind) for wake in of_timer} == {
            ("timerfd_tmrproc", 0, "timerfd")
        }
    with wakings.running("signal") as child:
        asked(live, child, WAKEUP)
        child.go()
        found = wakes_of(live.tick(), child.pid)
        of_signal = {wake: totals for wake, totals in found.items() if wake.waker.kind == SIGNAL}
        assert waits(of_signal.values()) == TIMES
        assert {(wake.waker.pid, wake.waker.comm) for wake in of_signal} == {(child.at["sender"], "wakings")}
    with wakings.running("exit") as child:
        asked(live, child, CHAIN)
        child.go()
        found = wakes_of(live.tick(), child.pid)
        ended = {wake.waker.pid: totals.waits for wake, totals in found.items() if wake.waker.kind == EXIT}
        assert len(ended) == TIMES
        assert {*ended.values()} == {1}
        assert child.pid not in ended


def test_a_child_killed_while_computing_is_an_exit_not_an_interrupt(live: Watch) -> None:
    with wakings.running("killed") as child:
        asked(live, child, CHAIN)
        child.go()
        window = live.tick()
        found = wakes_of(window, child.pid)
        ended = {wake.waker.pid: totals.waits for wake, totals in found.items() if wake.waker.kind == EXIT}
        assert (len(ended), {*ended.values()}) == (TIMES, {1})
        assert child.pid not in ended and 0 not in ended
        stacks = [kernel(window, wake.waker.kernel) for wake in found if wake.waker.kind == EXIT]
        assert all(holds(names, "do_exit", "get_signal") for names in stacks)
        of_interrupts = [names for names in stacks if any(map(wakers.is_interrupt, names))]
        assert len(of_interrupts) >= TIMES // 2, "they are killed on their way out of an interrupt"


def test_a_waker_that_called_exec_does_not_show_its_old_functions(live: Watch) -> None:
    with wakings.running("exec") as child:
        asked(live, child, WAKEUP)
        child.go()
        window = live.tick()
        found = {wake: totals for wake, totals in wakes_of(window, child.pid).items() if wake.object.kind == "pipe"}
        mine = {wake: totals for wake, totals in found.items() if wake.waker.pid == child.at["child"]}
        assert waits(mine.values()) == TIMES
        assert {wake.waker.comm for wake in mine} == {"first", "exe"}
        for wake in mine:
            names = user(live, window, wake.waker.user)
            is_old = wake.waker.comm == "first"
            if window.catalog.stack(wake.waker.user).end == ENDED:
                assert is_old
            else:
                assert holds(names, "wake_fd", "wake_and_become_another" if is_old else "main")


def test_a_wait_woken_before_the_minimum_has_no_waker(live: Watch) -> None:
    with wakings.running("late", TIMES, 2) as child:
        asked(live, child, WAKEUP, min_ns=5 * MS)
        child.go()
        found = {key.wake: totals for key, totals in watch.sites_of(live.tick(), child.at["sleeper"]).items()}
        short = found[WAKE_SHORT]
        assert TIMES // 2 <= short.waits <= TIMES
        assert short.runqueue_ns >= short.waits * 5 * MS


def test_a_wait_in_progress_has_no_waker_yet_and_keeps_its_time(live: Watch) -> None:
    with wakings.running("futex", 4, 100) as child:
        asked(live, child, WAKEUP)
        child.go_on_alone()
        windows = [live.tick(0.03) for _ in range(30)]
        sleeper = child.at["sleeper"]
        total_ns, ended = 0, 0
        for window in windows:
            sites = watch.sites_of(window, sleeper)
            assert watch.thread(window, sleeper).offcpu_ns == pytest.approx(window.span_ns, abs=2 * MS)
            by_somebody = [totals for key, totals in sites.items() if window.catalog.wake(key.wake).has_waker]
            assert waits(sites.values()) == waits(by_somebody)
            ended += waits(by_somebody)
            total_ns += sum(totals.total_ns for totals in sites.values())
        assert ended == 4
        assert total_ns == pytest.approx(sum(window.span_ns for window in windows), abs=5 * MS)
        goes_on_ns = live.last.at_ns - live.last.waiting[ThreadKey(child.pid, sleeper)].switched_out_ns
        by_waker = Counter[bool]()
        for key, totals in watch.sites_of(merge(windows), sleeper).items():
            by_waker[live.last.catalog.wake(key.wake).has_waker] += totals.total_ns
        assert by_waker[False] == pytest.approx(goes_on_ns, abs=5 * MS), "all ended time belongs to its waker"
        assert min(by_waker.values()) >= 0


def test_a_preempted_thread_has_no_waker_and_is_not_still_waiting(live: Watch, tmp_path: Path) -> None:
    spin = programs.build(tmp_path / "spin", SPIN)
    with running([spin]) as one, running([spin]) as two:
        for child in (one, two):
            os.sched_setaffinity(child.pid, {max(os.sched_getaffinity(0))})
            child.go_on_alone()
        live.source.set_filters(Filters(min_ns=MS // 100, pids=(one.pid, two.pid)))
        live.source.set_mode(CHAIN)
        live.tick(0.1)
        window = live.tick(0.3)
        for child in (one, two):
            sites = watch.sites_of(window, child.pid)
            aside = {key: totals for key, totals in sites.items() if key.wake == WAKE_CPU}
            assert waits(aside.values()) >= 10
            assert all(totals.runqueue_ns == totals.total_ns for totals in aside.values())
            assert {key.wake for key, totals in sites.items() if totals.waits} == {WAKE_CPU}


def waking_links(source: LiveSource) -> list[str]:
    """Return the descriptors that attach a program to sched_waking."""
    fdinfo = {fd: (Path("/proc/self/fdinfo") / fd).read_text() for fd in descriptors(source)}
    return [fd for fd, text in fdinfo.items() if "tp_name:\tsched_waking\n" in text]


def descriptors(source: LiveSource) -> list[str]:
    return [str(fd) for fd in source._program._fds.values()]  # pyright: ignore[reportPrivateUsage]


def test_modes_change_during_waits_and_the_laws_hold(live: Watch) -> None:
    with wakings.running("futex", 1000, 8) as child:
        sleeper = child.at["sleeper"]
        asked(live, child, OFFCPU)
        assert waking_links(live.source) == []
        child.go_on_alone()
        for mode in (WAKEUP, OFFCPU, CHAIN, OFFCPU, OFFWAKE, CHAIN, OFFCPU):
            live.source.set_mode(mode, 4)
            live.tick(0.02)
            window = live.tick(0.08)
            assert window.mode == live.last.mode == mode
            ended = [key.wake for key, totals in watch.sites_of(window, sleeper).items() if totals.waits]
            # On a busy machine the sleeper is also preempted.
            wakers = {live.last.catalog.wake(wake).waker for wake in ended if wake >= FIRST_WAKE}
            if mode == OFFCPU:
                assert waking_links(live.source) == []
                assert wakers == {NOT_GATHERED}
            else:
                assert len(waking_links(live.source)) == 1
                assert {waker.tid for waker in wakers} == {child.at["waker"]}
        assert live.last.lost == {}


def test_the_waker_of_a_selected_sleeper_is_named_though_not_selected(live: Watch) -> None:
    with wakings.running("futex") as child:
        sleeper = child.at["sleeper"]
        live.source.set_filters(Filters(tids=(sleeper,)))
        live.source.set_mode(CHAIN)
        live.tick()
        child.go()
        window = live.tick()
        assert {key.tid for key, _ in window.each_thread()} <= {sleeper, EXITED.tid}
        found = wakes_of(window, sleeper)
        assert waits(found.values()) == TIMES
        assert {(wake.waker.tid, wake.waker.comm, wake.links) for wake in found} == {(child.at["waker"], "waker", ())}


def test_with_a_minimum_of_0_each_wait_has_its_waker(live: Watch) -> None:
    with wakings.running("futex") as child:
        asked(live, child, WAKEUP, min_ns=0)
        child.go()
        window = live.tick()
        found = wakes_of(window, child.at["sleeper"])
        assert waits(totals for wake, totals in found.items() if wake.waker.tid == child.at["waker"]) == TIMES


@pytest.mark.parametrize(("probe", "counts"), [("switch", True), ("auto", False)])
def test_every_probe_reports_the_waker(probe: str, counts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`counts`: whether the kernel counts run-queue time, which is from sched_waking otherwise."""
    if not counts:
        watch.without(monkeypatch, "run_delay")
    with wakings.running("pipe") as child, watch.watching(of(child), probe=probe, mode=CHAIN) as live:
        live.tick()
        child.go()
        window = live.tick()
        found = wakes_of(window, child.at["sleeper"])
        assert TIMES - 1 <= waits(found.values()) <= TIMES
        assert {wake.waker.tid for wake in found} == {child.at["waker"]}


@pytest.mark.variant
def test_in_a_container_an_outside_waker_is_outside() -> None:
    script = """
import json, sys
from offtop.model.values.snapshot import Filters
from tests.kernel import watch
with watch.watching(mode="wakeup") as live:
    live.tick(0.1)
    print("up", flush=True)
    sys.stdin.readline()
    window = live.tick(0.1)
    found = [
        [key.pid, wake.waker.kind, wake.waker.pid, wake.waker.tid, wake.waker.comm, wake.waker.user, wake.object.kind]
        for key, totals in window.each_site() if totals.waits for wake in [window.catalog.wake(key.wake)]
    ]
    print(json.dumps(found), flush=True)
"""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [str(wakings.program()), "pipe", "1", "1"]
    with wakings.programs.running([*OWN, *command]) as child:
        inside = Container(child)
        process = subprocess.Popen(
            [*inside.enter, sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
        )
        try:
            assert process.stdout and process.stdin
            assert process.stdout.readline() == b"up\n"
            child.go()
            process.stdin.write(b"\n")
            process.stdin.flush()
            found = json.loads(process.stdout.readline())
        finally:
            process.kill()
            process.communicate(timeout=10)
    go = [row for row in found if row[0] == 1 and row[-1] == "pipe" and row[2] == OUTSIDE]
    ((_, kind, _, tid, _, stack, _),) = go
    assert (kind, tid, stack) == (THREAD, os.getpid(), NO_STACK)
