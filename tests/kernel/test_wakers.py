"""Test who woke whom, through which code and on which object.

23 wakeups of each kind are reported as such.
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import Any

import pytest

from offtop.errors import KernelError
from offtop.kernel.bpf import cache, program
from offtop.kernel.live import LiveSource
from offtop.kernel.resolve import wakes
from offtop.kernel.resolve.sites import FOR_SOMETHING_ELSE
from offtop.model.classify import wakers
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.snapshot import EXITED, OUTSIDE, Filters, SiteTotals
from offtop.model.values.stack import ENDED, NO_STACK
from offtop.model.values.wake import (
    CHAIN,
    DEFAULT_DEPTH,
    DEPTH,
    EXIT,
    FIRST_WAKE,
    LOOP,
    NO_OBJECT,
    NOT_GATHERED,
    OFFCPU,
    OFFWAKE,
    SIGNAL,
    SOFTIRQ,
    STORM,
    THREAD,
    TIMEOUT,
    TIMER,
    WAKE_CPU,
    WAKE_LOST,
    WAKE_SHORT,
    WAKEUP,
    WHOLE,
    Storm,
    Wake,
)
from offtop.model.windows.window import Window, merge
from tests.kernel import programs, wakings, watch
from tests.kernel.programs import Program, running, until
from tests.kernel.test_counts import SPIN
from tests.kernel.test_namespaces import OWN, Container
from tests.kernel.watch import MS, S, Watch

pytestmark = pytest.mark.kernel

TIMES = 23


def of(child: Program, min_ns: int = MS) -> Filters:
    return Filters(min_ns=min_ns, pids=(child.pid,))


@pytest.fixture(scope="module")
def live() -> Generator[Watch]:
    """Watch one process in wakeup mode, with the unwind rules of the program that all tests here run.

    If it watched all processes, theirs could use up the number of stacks that are copied a second.
    """
    with wakings.running("futex", 10_000, 5) as child, watch.watching(of(child), mode=WAKEUP) as live:
        child.go_on_alone()
        live.load_unwind_rules(child.at["sleeper"], "syscall", "wait_futex", "sleeper")
        yield live


def asked(live: Watch, child: Program, mode: str, depth: int = DEFAULT_DEPTH, min_ns: int = MS) -> Watch:
    """Select only the child from here on, in that mode."""
    live.source.set_filters(of(child, min_ns))
    live.source.set_mode(mode, depth)
    live.tick()
    return live


def wakes_of(window: Window, tid: int) -> dict[Wake, SiteTotals]:
    """Return the wakes of a thread's ended waits in `window`, but for waits for a CPU only."""
    found: dict[Wake, SiteTotals] = {}
    for key, totals in watch.sites_of(window, tid).items():
        wake = window.catalog.wake(key.wake)
        if totals.waits and wake.has_waker:
            found[wake] = found.get(wake, SiteTotals()).plus(totals)
    return found


def waits(found: Iterable[SiteTotals]) -> int:
    return sum(totals.waits for totals in found)


def by_kind(window: Window, tid: int) -> dict[str, int]:
    """Count waits by the kind of their waker."""
    found = Counter[str]()
    for wake, totals in wakes_of(window, tid).items():
        found[wake.waker.kind] += totals.waits
    return dict(found)


def kernel(window: Window, stack: int) -> list[str]:
    """Return the names of all frames, leaf first."""
    return [frame.name for frame in window.catalog.stack(stack).frames]


def user(live: Watch, window: Window, stack: int) -> list[str]:
    frames = window.catalog.stack(stack).frames
    live.source.wait_for_names({*frames}, 30)
    return [live.source.names.of(frame) for frame in frames]


def holds(names: Sequence[str], *wanted: str) -> bool:
    """Return whether all of `wanted` are there, in that order."""
    rest = iter(names)
    return all(name in rest for name in wanted)


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


def has(names: Sequence[str], parts: Sequence[str]) -> bool:
    """Return whether functions with these in their names are there, in that order."""
    rest = iter(names)
    return all(any(part in name for name in rest) for part in parts)


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


@pytest.mark.parametrize("depth", [2, 4, 8])
def test_the_chain_of_a_relays_last_runner_is_the_relay(live: Watch, depth: int) -> None:
    with wakings.running("relay") as child:
        asked(live, child, CHAIN, depth=depth)
        child.go()
        window = live.tick()
        found = wakes_of(window, child.at["runner-4"])
        way = [child.at[f"runner-{n}"] for n in (3, 2, 1, 0)] + [child.at["main"], 0]
        every = {wake: [wake.waker, *(link.waker for link in wake.links)] for wake in found}
        tids = {wake: [one.tid for one in chain] for wake, chain in every.items()}
        # On a busy machine one may be woken again before it ran, or be preempted until its sleep is nearly over.
        expected = {wake: totals for wake, totals in found.items() if tids[wake] == way[:depth]}
        assert TIMES - 3 <= waits(expected.values()) <= waits(found.values()) <= TIMES
        assert all(tids[wake] == way[: len(tids[wake])] for wake in found)
        assert {wake.end for wake in expected} == {WHOLE if depth == 8 else DEPTH}
        for wake, chain in every.items():
            for link, waker in zip(wake.links, chain, strict=False):
                where = "wait_futex" if waker.tid != child.pid else "rest"
                if link.user != NO_STACK:  # the stack of a wait that was copied is not kept
                    assert holds(user(live, window, link.user), where)
                assert has(kernel(window, link.kernel), ["nanosleep" if where == "rest" else "futex_wait"])
        if depth == 8:
            assert {wake.links[-1].waker.kind for wake in expected} == {TIMEOUT}
            with_users = {wake: totals for wake, totals in expected.items() if all(link.user for link in wake.links)}
            assert waits(with_users.values()) >= TIMES // 2


def test_two_threads_that_wake_each_other_are_a_loop_of_constant_size(live: Watch) -> None:
    with wakings.running("pingpong", 60, 5) as child:
        known = len(asked(live, child, CHAIN, depth=8).last.catalog.wakes)
        child.go_on_alone()
        windows = [live.tick(0.1) for _ in range(5)]
        ping, pong = child.at["ping"], child.at["pong"]
        for one, other in ((ping, pong), (pong, ping)):
            (wake,) = wakes_of(windows[-1], one)
            assert (wake.waker.tid, wake.end) == (other, LOOP)
            assert [link.waker.tid for link in wake.links] == [one]
            assert {*wakes_of(windows[-2], one)} == {wake}
        assert len(live.last.catalog.wakes) - known < 20


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


def sum_of(storms: Iterable[Storm]) -> Storm:
    sums = Storm()
    for storm in storms:
        sums = sums.plus(storm)
    return sums


def test_100_threads_woken_23_times_by_broadcast_are_23_storms_of_100(live: Watch) -> None:
    for _ in range(4):
        with wakings.running("storm") as child:
            asked(live, child, WAKEUP)
            child.go()
            window = live.tick()
            of_wakers = {window.catalog.wake(wake).waker: storm for wake, storm in window.storms.items()}
            storm = sum_of(of_wakers.values())
            for waker in of_wakers:
                assert (waker.kind, waker.tid, waker.comm) == (THREAD, child.pid, "wakings")
                assert has(kernel(window, waker.kernel), ["futex_wake"])
            assert storm.slept_again >= storm.woken * 0.9
            assert storm.wasted_switches == 2 * storm.slept_again
            assert live.tick(0.05).storms == {}
            gaps, storms, woken, most = (child.at[name] for name in ("gaps", "storms", "woken", "most"))
            assert storms <= storm.storms <= storms + gaps
            assert woken - gaps * (STORM - 1) <= storm.woken <= woken, "fewer than STORM are no storm"
            assert storm.largest == most or gaps
        if woken == TIMES * 100 and not gaps:
            break  # the waker was never halted, and the members always had the CPU in time


def test_waking_one_thread_again_and_again_is_no_storm(live: Watch) -> None:
    with wakings.running("pipe", 800, 0) as child:
        asked(live, child, WAKEUP, min_ns=0)
        child.go()
        window = live.tick()
        assert waits(wakes_of(window, child.at["sleeper"]).values()) > 500
        assert window.storms == {}


def test_a_storm_counts_once_wherever_ticks_end(live: Watch) -> None:
    with wakings.running("storm", 40, 5) as child:
        asked(live, child, WAKEUP)
        child.go_on_alone()
        windows = [live.tick(0.011) for _ in range(40)]
    sums = sum_of(storm for window in windows for storm in window.storms.values())
    assert 40 <= sums.storms <= 44, "the hypervisor may halt a waker meanwhile"
    assert sums.woken <= 40 * 100
    assert sums.largest <= 100


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


def test_a_deselected_thread_is_in_no_storm(live: Watch) -> None:
    with wakings.running("storm", 3, 10) as members, wakings.running("futex") as child:
        asked(live, members, WAKEUP)  # all waits in progress are known now
        asked(live, child, WAKEUP)
        members.go()
        assert live.tick().storms == {}


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


def test_a_deselected_waker_has_no_old_chain(live: Watch) -> None:
    with wakings.running("futex", 60, 5) as child:
        asked(live, child, CHAIN)
        child.go_on_alone()
        assert {wake.end for wake in wakes_of(live.tick(0.1), child.at["sleeper"])} >= {WHOLE}
        live.source.set_filters(Filters(tids=(child.at["sleeper"],)))
        live.tick(0.02)
        found = wakes_of(live.tick(0.1), child.at["sleeper"])
        assert {(wake.waker.tid, wake.links) for wake in found} == {(child.at["waker"], ())}


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


@pytest.mark.parametrize("room", [4, 16])
def test_wakes_without_room_are_counted_as_lost_and_no_wait_is(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    watch.resize_maps(monkeypatch, dict.fromkeys(("wakers", "wakes", "objects"), room))
    with wakings.running("exit", 60, 3) as child, watch.watching(of(child), mode=CHAIN) as live:
        live.tick()
        child.go()
        window = live.tick()
        sites = watch.sites_of(window, child.pid)
        assert waits(sites.values()) == pytest.approx(61, abs=2)
        assert sites and sum(totals.total_ns for totals in sites.values()) >= 60 * 3 * MS
        lost = {key.wake: totals for key, totals in sites.items() if key.wake == WAKE_LOST}
        assert lost[WAKE_LOST].waits >= 60 - room
        assert window.lost.keys() == {"wakes"}
        assert window.lost["wakes"] >= lost[WAKE_LOST].waits


def test_old_wakes_are_evicted_before_the_catalog_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakes, "_MOST_CHAINS", 60)
    monkeypatch.setattr(wakes, "_MOST_WAKES", 60)
    with wakings.running("exit", 150, 10) as child, watch.watching(of(child), mode=CHAIN) as live:
        live.tick()
        child.go_on_alone()
        seen = set[int]()
        deadline_s = time.monotonic() + 30
        while len(seen) < 100 and time.monotonic() < deadline_s:
            window = live.tick(0.05)
            seen |= {key.wake for key in watch.sites_of(window, child.pid) if key.wake >= FIRST_WAKE}
            assert window.lost == {}
            assert len(live.last.catalog.wakes) <= 60 + FIRST_WAKE
        assert len(seen) >= 100


def test_a_chain_with_a_cleared_link_counts_as_lost(live: Watch) -> None:
    with wakings.running("pingpong", 12, 60) as child:
        asked(live, child, CHAIN, depth=8)
        child.go_on_alone()
        live.tick(0.1)
        lost = 0
        for _ in range(4):
            live.source._parts.wakes.make_room(at_once=True)  # pyright: ignore[reportPrivateUsage]
            window = live.tick(0.12)  # in which the awake one has woken the other
            assert window.lost.keys() <= {"wakes"}
            lost += window.lost.get("wakes", 0)
        assert lost > 0
        live.tick(0.15)
        assert live.tick(0.15).lost == {}, "this clears no more of them"


def test_storms_without_room_are_counted_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    watch.resize_maps(monkeypatch, {"storms_0": 1, "storms_1": 1})
    with wakings.running("storm", 5, 10) as child, watch.watching(of(child), mode=WAKEUP) as live:
        live.tick()
        child.go()
        window = live.tick()
        assert window.lost["wakes"] > 0
        ((_, storm),) = window.storms.items()
        assert 1 <= storm.storms < 5


@pytest.mark.parametrize("typed", [None, pytest.param(1, marks=pytest.mark.variant)])
def test_if_wakers_are_refused_the_error_names_a_fix_and_offcpu_goes_on(
    monkeypatch: pytest.MonkeyPatch, typed: int | None
) -> None:
    with wakings.running("futex") as child, watch.watching_kernel_stacks(of(child)) as live:
        request = {**live.source._program._request, "waking_type": typed}  # pyright: ignore[reportPrivateUsage]
        monkeypatch.setattr(live.source._program, "_request", request)  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(KernelError, match="offtop doctor"):
            live.source.set_mode(CHAIN)
        live.tick()
        child.go()
        window = live.tick()
        assert window.mode == OFFCPU
        assert watch.thread(window, child.at["sleeper"]).waits >= TIMES
        assert watch.thread(window, child.at["sleeper"]).offcpu_ns < 2 * S


def opened() -> set[tuple[str, str]]:
    """Return this process's descriptors and what they refer to."""
    found: set[tuple[str, str]] = set()
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor that lists them
            found.add((fd.name, str(fd.readlink())))
    return found


@pytest.mark.variant
def test_a_failed_load_is_reported_and_may_be_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    with wakings.running("futex") as child, watch.watching_kernel_stacks(of(child)) as live:
        monkeypatch.setenv(cache.VARIABLE, "")
        live.tick()
        live.tick()  # the source's workers start when they are first needed
        before = opened()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", "/nosuch")
            with pytest.raises(KernelError, match="No such file"):
                live.source.set_mode(CHAIN)
        until(lambda: opened() == before)  # meanwhile the source's workers open descriptors of their own
        live.source.set_mode(CHAIN)
        live.tick()
        child.go()
        assert waits(wakes_of(live.tick(), child.at["sleeper"]).values()) == TIMES


def test_closing_while_wakers_are_loaded_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def bpf_ones() -> set[tuple[str, str]]:
        return {one for one in opened() if "bpf" in one[1]}

    before = bpf_ones()
    with wakings.running("futex") as child, watch.watching_kernel_stacks(of(child)) as live:
        load = program._load_or_compile  # pyright: ignore[reportPrivateUsage]

        def close_and_load(request: Mapping[str, Any], shared: Sequence[int] = ()) -> Any:
            live.source.close()
            return load(request, shared)

        assert bpf_ones() > before
        monkeypatch.setattr(program, "_load_or_compile", close_and_load)
        with pytest.raises(KernelError, match="has stopped tracing"):
            live.source.set_mode(CHAIN)
        assert bpf_ones() == before
        monkeypatch.undo()
        with pytest.raises(KernelError, match="has stopped tracing"):
            live.source.set_mode(CHAIN)
        assert bpf_ones() == before
        assert live.source.read() is None
