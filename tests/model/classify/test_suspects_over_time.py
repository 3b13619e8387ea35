"""A suspect is the same one from tick to tick, as long as it does harm beyond the usual."""

from dataclasses import replace

import pytest

from offtop.model.classify.standing import WaitsOfTick
from offtop.model.classify.suspect import HOLDER, QUOTA, Found, SuspectName, averages, gone
from offtop.model.classify.suspects import SuspectFinder
from offtop.model.values.blockers import (
    ANSWER,
    FILE_LOCK,
    MUTEX,
    PIPE,
    UPSTREAM,
    Blocker,
)
from offtop.model.values.table import SITES, SiteKeys, integers
from offtop.units import NS_PER_S
from tests.model.machine import AT_MUTEX, AT_NS, WEIGHTS, Machine, ends


def _deadlock(machine: Machine, pid: int) -> None:
    for tid, other in ((pid, pid + 1), (pid + 1, pid)):
        machine.held(machine.waits("app", pid, "lock", 30, tid=tid), Blocker(pid, other, MUTEX, True))


def _later(waits: WaitsOfTick, ns: int) -> WaitsOfTick:
    waits.snapshot = replace(waits.snapshot, at_ns=waits.snapshot.at_ns + ns)
    return waits


def test_each_of_several_suspects_of_a_name_has_its_own_begin() -> None:
    machine, finder = Machine(), SuspectFinder(WEIGHTS)
    _deadlock(machine, 20)
    finder.tick(machine.tick())
    _deadlock(machine, 10)  # which is now the first one found
    found = finder.tick(_later(machine.tick(), NS_PER_S)).suspects
    assert {one.culprit.pid: one.lasted_ns for one in found} == {10: 0, 20: NS_PER_S}


def test_second_suspect_of_a_name_has_done_no_harm_in_earlier_ticks() -> None:
    """Two threads in three ticks are fewer than one on average."""
    machine, finder = Machine(), SuspectFinder(WEIGHTS)
    _deadlock(machine, 10)
    shown = [len(finder.tick(machine.tick()).suspects) for _ in range(2)]
    _deadlock(machine, 20)
    shown += [len(finder.tick(machine.tick()).suspects) for _ in range(2)]
    assert shown == [1, 1, 1, 2]


def test_suspect_whose_process_is_started_again_keeps_its_begin() -> None:
    finder, lasted = SuspectFinder(WEIGHTS), list[int]()
    for number in range(3):
        machine = Machine()
        _deadlock(machine, 10 * (number + 1))
        lasted += [one.lasted_ns for one in finder.tick(_later(machine.tick(), number * NS_PER_S)).suspects]
    assert lasted == [0, NS_PER_S, 2 * NS_PER_S]


def test_suspects_of_one_name_are_compared_together() -> None:
    """Two deadlocks of two threads each are as many as they were."""
    machine = Machine()
    for pid in (10, 20):
        _deadlock(machine, pid)
    found = machine.found()
    (waiting,) = averages([(found, NS_PER_S)]).values()
    assert [found.waiting_like(one) for one in found.suspects] == [waiting, waiting] == [4, 4]


def test_suspect_stays_when_the_thread_that_must_act_becomes_known() -> None:
    machine, finder = Machine(), SuspectFinder(WEIGHTS)
    writers = [machine.waits("yes", 30 + one, "pipe", 90, kernel="pipe_write", before=True) for one in range(2)]
    found = [finder.tick(machine.tick()) for _ in range(3)]
    machine.waits("sleep", 20, "sleep", 90, before=True)
    for one in writers:
        machine.held(one, Blocker(20, 0, PIPE, True))
    found += [finder.tick(machine.tick()) for _ in range(3)]
    assert [[one.end.program for one in tick.suspects] for tick in found] == [["yes"]] * 3 + [["sleep"]] * 3


def test_suspect_stays_when_those_behind_the_first_one_are_unknown_for_a_tick() -> None:
    machine, finder = Machine(), SuspectFinder(WEIGHTS)
    machine.held(machine.waits("nginx", 20, "poll"), Blocker(40, 0, UPSTREAM, False))
    machine.waits("python3", 40, "sleep", 5)
    clients = [machine.waits("curl", pid, "net-recv", 5) for pid in range(30, 38)]
    for one in clients:
        machine.held(one, Blocker(20, 0, ANSWER, False))
    found = [finder.tick(machine.tick()) for _ in range(3)]
    for one in clients:
        del machine.blockers[one]
    found.append(finder.tick(machine.tick()))
    assert [[one.end.program for one in tick.suspects][:1] for tick in found] == [["python3"]] * 4


@pytest.mark.parametrize("still_polls", [True, False])
def test_suspect_stays_for_a_tick_while_its_threads_have_just_polled_again(still_polls: bool) -> None:
    machine, finder = Machine(), SuspectFinder(WEIGHTS)
    for tid in range(11, 16):
        machine.waits("web", 10, "poll", 4.9, "lib:__poll", "lib:getaddrinfo", tid=tid)
    found = [finder.tick(machine.tick()) for _ in range(3)]
    machine.waiting.clear()
    user = () if still_polls else ("lib:__poll", "wait_for_work")
    machine.waits("web", 10, "poll", 0.3, *user, tid=11)  # without functions: its stack is not read yet
    found.append(finder.tick(machine.tick()))
    assert [len(tick.suspects) for tick in found] == [1, 1, 1, int(still_polls)]


def test_short_trouble_is_not_shown_until_it_lasts() -> None:
    machine = Machine()
    for pid in (10, 11, 12):
        machine.held(machine.waits("app", pid, "lock", 0.3, *AT_MUTEX), Blocker(20, 20, MUTEX, True))
    machine.waits("app", 20, "fsync", 0.3)
    assert ends(machine.found()) == []
    assert ends(machine.found(ticks=3)) == [(HOLDER, "app", 20, "fsync")]


def flocks(pid: int, count: int, holder: int, seconds: float = 9) -> Machine:
    machine = Machine()
    for one in range(pid, pid + count):
        waiter = machine.waits("flock", one, "lock", seconds, kernel="flock_lock_inode_wait")
        machine.held(waiter, Blocker(holder, 0, FILE_LOCK, True, "job.lock"))
    machine.waits("sleep", holder, "sleep", 9)
    return machine


def test_suspect_is_recognized_by_its_kind_and_names() -> None:
    (one,) = flocks(10, 3, 20).found().suspects
    (other,) = flocks(100, 5, 900).found().suspects
    assert one.name == other.name == SuspectName(HOLDER, "flock", "lock", "sleep", "job.lock")
    assert one.name.text == "flock (lock) behind sleep for job.lock"
    assert (one.since_ns, averages([(Found([one]), 3), (Found([], 0, [other]), 1), (Found(), 6)])) == (
        AT_NS,
        {one.name: 1.4},
    )
    assert gone(Found(), {one.name: 3.0}) == [(one.name, 3.0)]
    assert (
        gone(Found([one]), {one.name: 3.0}) == gone(Found([], 0, [other]), {one.name: 3.0}) == gone(Found(), {}) == []
    )


@pytest.mark.parametrize(
    ("usual", "harm", "is_usual"), [(0.0, 3, False), (1.5, 1.5, False), (2.5, 0.5, True), (9.0, 0, True)]
)
def test_what_is_usual_for_program_and_category_is_no_harm(usual: float, harm: float, is_usual: bool) -> None:
    finder = SuspectFinder(WEIGHTS, {("flock", "lock"): usual, ("flock", "pipe"): 9, ("sleep", "lock"): 9})
    found = finder.tick(flocks(10, 3, 20).tick())
    (one,) = found.as_usual if is_usual else found.suspects
    assert len(found.suspects) + len(found.as_usual) == 1
    assert (one.waiting, one.harm, one.plain_harm) == (3, harm, 3)


def test_waits_for_a_quota_are_weighed_by_what_is_usual_too() -> None:
    machine = Machine()
    machine.throttled("python3", 10, 0.9)
    finder = SuspectFinder(WEIGHTS, {("python3", "throttle"): 0.5})
    found = Found()
    for _ in range(WEIGHTS.ticks):
        found = finder.tick(machine.tick())
    ((kind, harm),) = [(one.kind, one.harm) for one in found.suspects]
    assert (kind, harm) == (QUOTA, pytest.approx(1.2))


def test_suspect_that_was_none_for_long_is_new_again() -> None:
    finder, quiet, held = SuspectFinder(WEIGHTS), Machine().tick(), flocks(10, 3, 20).tick()

    def since(seconds: int) -> int:
        held.snapshot = replace(held.snapshot, taken_ns=seconds)
        (one,) = finder.tick(held).suspects
        return one.since_ns

    assert [since(1), since(2)] == [1, 1]
    for _ in range(5):
        finder.tick(quiet)
    assert since(8) == 1
    for _ in range(11):
        finder.tick(quiet)
    assert since(20) == 20


def test_suspect_stays_while_short_waits_happen_to_be_over() -> None:
    """Its average harm is 1 or more for two ticks after one with a harm of 3."""
    finder, quiet, held = SuspectFinder(WEIGHTS), Machine().tick(), flocks(10, 5, 20, 0.6).tick()
    weak = flocks(10, 1, 20).tick()
    weak.graph.waiting[:] *= 0.1
    every = [[one.waiting for one in finder.tick(held).suspects] for _ in range(WEIGHTS.ticks)]
    assert every[-1] == [3.0]
    assert [one.waiting for one in finder.tick(weak).suspects] == [3.0]
    assert [one.waiting for one in finder.tick(quiet).suspects] == [3.0]
    assert finder.tick(quiet).suspects == []
    for machine in [flocks(10, 3, 20).tick()] * WEIGHTS.ticks:
        finder.tick(machine)
    assert finder.tick(quiet).suspects == []  # a wait of 9 s does not happen to be over


def piped(seconds: float, is_even: bool = False) -> Machine:
    """Three programs wait for a reader that sleeps, maybe at an even pace."""
    machine = Machine()
    for pid in (10, 11, 12):
        machine.held(
            machine.waits(f"writer{pid}", pid, "pipe", seconds, kernel="pipe_write"), Blocker(20, 0, PIPE, True)
        )
    reader = machine.waits("reader", 20, "sleep", seconds)
    if is_even:
        machine.at_even_pace = SiteKeys(integers([machine.waiting[reader].site], SITES.width))
    return machine


def test_suspect_at_a_pipe_stays_while_its_waits_are_short_for_a_moment() -> None:
    finder = SuspectFinder(WEIGHTS)
    ticks = [*[piped(3)] * 3, piped(0.5), *[piped(3)] * 2]
    found = [finder.tick(one.tick()).suspects for one in ticks]
    assert [[(one.end.program, one.age_ns // 10**9) for one in some] for some in found] == [
        [("reader", 3)],
        [("reader", 3)],
        [("reader", 3)],
        [("reader", 0)],  # an age that is not known any more is not shown
        [("reader", 3)],
        [("reader", 3)],
    ]
    assert finder.tick(Machine().tick()).suspects == [], "nobody waits at the pipes any more"


def test_sleep_at_an_even_pace_counts_in_full_if_a_writer_waits_for_it() -> None:
    even, uneven = (SuspectFinder(WEIGHTS).tick(piped(3, is_even).tick()).suspects for is_even in (True, False))
    assert [one.harm for one in even] == [one.harm for one in uneven] == [pytest.approx(3.0)]
