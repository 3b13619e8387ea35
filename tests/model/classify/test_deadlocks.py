"""Threads that wait for each other, or for a lock of their own process."""

import pytest

from offtop.model.aggregate.suspect_text import SuspectTexts
from offtop.model.classify.suspect import DEADLOCK, HOLDER, WAIT
from offtop.model.classify.suspects import SuspectFinder
from offtop.model.values.blockers import (
    FILE_LOCK,
    MUTEX,
    SOCKET,
    Blocker,
)
from offtop.model.values.catalog import ThreadKey
from tests.model.machine import AT_MUTEX, WEIGHTS, Machine, OwnNames, ends


def test_threads_that_want_each_others_locks_are_a_deadlock() -> None:
    machine = Machine()
    first = machine.waits("a.py", 10, "lock", 30, kernel="flock_lock_inode_wait")
    second = machine.waits("b.py", 11, "lock", 30, kernel="flock_lock_inode_wait")
    machine.held(first, Blocker(11, 0, FILE_LOCK, True, "y.lock"))
    machine.held(second, Blocker(10, 0, FILE_LOCK, True, "x.lock"))
    machine.held(machine.waits("c.py", 12, "lock", 9), Blocker(10, 0, FILE_LOCK, True, "x.lock"))
    (one,) = machine.found().suspects
    assert (one.kind, one.waiting, {hop.program for hop in one.hops}) == (DEADLOCK, 3, {"a.py", "b.py"})
    assert not one.is_likely


@pytest.mark.parametrize("holder", [Blocker(10, 10, FILE_LOCK, True, "x.lock"), Blocker(10, 10, MUTEX, True)])
def test_a_thread_that_takes_its_own_lock_again_is_a_deadlock(holder: Blocker) -> None:
    machine = Machine()
    user, kernel = (AT_MUTEX, "futex_wait") if holder.via == MUTEX else ((), "flock_lock_inode_wait")
    machine.held(machine.waits("a.py", 10, "lock", 9, *user, kernel=kernel), holder)
    (one,) = machine.found().suspects
    assert (one.kind, one.waiting, len(one.hops), one.end.what) == (DEADLOCK, 1, 1, holder.what)
    text = SuspectTexts(machine.catalog, OwnNames(), machine.causes).sentence(one).says
    assert text == f"a.py(10) waits for {holder.what or 'a mutex'} (9.00s), which it holds itself"


def test_others_behind_a_thread_that_holds_its_own_lock_are_counted() -> None:
    machine = Machine()
    for tid in (10, 11, 12):
        waiter = machine.waits("a.py", 10, "lock", 9, *AT_MUTEX, kernel="futex_wait", tid=tid)
        machine.held(waiter, Blocker(10, 10, MUTEX, True))
    (one,) = machine.found().suspects
    text = SuspectTexts(machine.catalog, OwnNames(), machine.causes).sentence(one).says
    assert text == "a.py(10) waits for a mutex (9.00s, 2 threads behind), which it holds itself"


def test_deadlocks_of_two_processes_of_a_program_are_two_suspects_at_each_tick() -> None:
    machine = Machine()
    for pid, age_s in ((10, 30), (20, 5)):
        for tid, other in ((pid, pid + 1), (pid + 1, pid)):
            machine.held(machine.waits("app", pid, "lock", age_s, tid=tid), Blocker(pid, other, MUTEX, True))
    for ticks in (1, 4):
        found = machine.found(ticks).suspects
        assert [(one.kind, one.waiting, one.harm) for one in found] == [(DEADLOCK, 2, found[0].harm)] * 2
        assert {one.end.key.pid for one in found} == {10, 20}
        assert len({one.key for one in found}) == 2


def test_an_owner_that_is_only_likely_makes_no_deadlock() -> None:
    machine = Machine()
    machine.held(machine.waits("a.py", 10, "lock", 9, *AT_MUTEX), Blocker(10, 10, MUTEX, False))
    assert not [one for one in machine.found(ticks=3).suspects if one.kind == DEADLOCK]


@pytest.mark.parametrize("main_waits_for", ["sleep", "the lock"])
def test_a_file_of_the_waiters_own_process_is_likely_held_by_another_of_its_threads(main_waits_for: str) -> None:
    machine = Machine()
    held = Blocker(10, 0, FILE_LOCK, True, "x.lock")
    for tid in (11, 12):
        machine.held(machine.waits("a.py", 10, "lock", 9, kernel="flock_lock_inode_wait", tid=tid), held)
    machine.waits("a.py", 10, "pipe", 20, tid=13)
    if main_waits_for == "sleep":
        machine.waits("a.py", 10, "sleep", 20)
    else:
        machine.held(machine.waits("a.py", 10, "lock", 9, kernel="flock_lock_inode_wait"), held)
    (one,) = machine.found().suspects
    expected = (HOLDER, ThreadKey(10, 10 if main_waits_for == "sleep" else 13), True)
    assert (one.kind, one.end.key, one.is_likely) == expected


def test_a_file_that_a_running_thread_of_the_process_may_hold_accuses_nobody() -> None:
    machine = Machine()
    for tid in (11, 12):
        waiter = machine.waits("a.py", 10, "lock", 9, kernel="flock_lock_inode_wait", tid=tid)
        machine.held(waiter, Blocker(10, 0, FILE_LOCK, True, "x.lock"))
    (one,) = machine.found().suspects
    assert (one.kind, one.end.key.pid) == (WAIT, 10)


def test_processes_that_read_from_each_other_are_not_a_deadlock() -> None:
    machine = Machine()
    machine.held(machine.waits("a", 10, "net-recv", 30), Blocker(11, 0, SOCKET, True))
    machine.held(machine.waits("b", 11, "net-recv", 30), Blocker(10, 0, SOCKET, True))
    assert ends(machine.found()) == []


def test_deadlock_is_never_usual() -> None:
    machine = Machine()
    one, other = (machine.waits("taker", pid, "lock", 30) for pid in (10, 11))
    machine.held(one, Blocker(11, 0, FILE_LOCK, True, "y.lock"))
    machine.held(other, Blocker(10, 0, FILE_LOCK, True, "x.lock"))
    finder = SuspectFinder(WEIGHTS, {("taker", "lock"): 2.0})
    found = [finder.tick(machine.tick()) for _ in range(3)][-1]
    assert [one.kind for one in found.suspects] == [DEADLOCK]
