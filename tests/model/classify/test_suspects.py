"""Suspects: the end of a chain is one, a standing wait is not, and on a quiet machine there are none."""

from dataclasses import replace

import pytest

from offtop import paths
from offtop.errors import OfftopError
from offtop.model.aggregate.suspect_text import SuspectTexts
from offtop.model.classify import suspect_weights
from offtop.model.classify.standing import WaitsOfTick
from offtop.model.classify.suspect import CPU, DEADLOCK, HOLDER, QUOTA, WAIT, Found, SuspectName, averages, gone
from offtop.model.classify.suspects import SuspectFinder
from offtop.model.values.blockers import (
    ANSWER,
    CHILD,
    ELSEWHERE,
    FILE_LOCK,
    MUTEX,
    PIPE,
    SOCKET,
    TITLE,
    UPSTREAM,
    WAKER,
    Blocker,
)
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.peers import CLIENT, PEER, READER, WRITER, Peers, PeerSide, Process
from offtop.model.values.snapshot import Holder
from offtop.model.values.table import SITES, SiteKeys, integers
from offtop.model.values.wake import THREAD, WAKEUP, Object, Wake, Waker
from offtop.units import NS_PER_S
from tests.model.machine import AT_NS, CATEGORIES, RULES, WEIGHTS, Machine, OwnNames

_SESSION = "postgres: main: bench shop [local] "
_ROW_LOCK = ("lib:epoll_wait", "WaitEventSetWait", "ProcSleep")
_MUTEX = ("lib:__lll_lock_wait", "lib:pthread_mutex_lock", "work")


def ends(found: Found) -> list[tuple[str, str, int, str]]:
    """Kind, program, PID and state of each suspect's end."""
    return [(one.kind, one.end.program, one.end.key.pid, one.end.state) for one in found.suspects]


def test_session_idle_in_transaction_is_behind_the_sessions_and_their_clients() -> None:
    machine = Machine()
    for number in range(12):
        session = machine.waits("postgres", 100 + number, "poll", 30, *_ROW_LOCK)
        machine.titles[session.pid] = f"{_SESSION}UPDATE waiting"
        client = machine.waits("psql", 200 + number, "poll", 30, "lib:poll", "/usr/lib/libpq.so.5!PQgetResult")
        machine.held(client, Blocker(session.pid, 0, SOCKET, True))
    machine.waits("postgres", 300, "poll", 90)
    machine.titles[300] = f"{_SESSION}idle in transaction"
    (one,) = machine.found().suspects
    assert (one.kind, one.end.key, one.end.title) == (HOLDER, ThreadKey(300, 0), machine.titles[300])
    assert [(hop.program, hop.threads, hop.via) for hop in one.hops] == [
        *(("psql", 12, SOCKET), ("postgres", 12, TITLE)),
        ("postgres", 1, ""),
    ]
    assert (one.is_likely, one.waiting, one.age_ns) == (True, 24, 30_000_000_000)


def test_sleep_that_inherited_a_file_lock_is_behind_all_that_want_it() -> None:
    machine = Machine()
    for pid in (10, 11, 12):
        waiter = machine.waits("flock", pid, "lock", 9, kernel="flock_lock_inode_wait")
        machine.held(waiter, Blocker(20, 0, FILE_LOCK, True, "job.lock"))
    machine.waits("sleep", 20, "sleep", 5400, before=True)
    machine.waits("cat", 30, "pipe", 5400, before=True)
    found = machine.found()
    assert ends(found) == [(HOLDER, "sleep", 20, "sleep")]
    assert (found.suspects[0].harm, found.suspects[0].is_likely, found.standing) == (3, False, 1)


def test_workers_behind_a_server_that_looks_idle_are_named() -> None:
    machine = Machine()
    server = machine.waits("nginx", 20, "poll")
    for pid in range(30, 38):
        machine.held(machine.waits("curl", pid, "net-recv", 5), Blocker(20, 0, SOCKET, True))
    machine.held(server, Blocker(40, 0, UPSTREAM, False))
    machine.waits("python3", 40, "sleep", 5, "lib:clock_nanosleep", "h (up.py:4)")
    (one,) = machine.found().suspects
    assert [(hop.program, hop.threads) for hop in one.hops] == [("curl", 8), ("nginx", 1), ("python3", 1)]
    assert one.is_likely


def test_pipe_leads_through_its_reader_to_what_that_waits_for() -> None:
    machine = Machine()
    writer = machine.waits("yes", 10, "pipe", 5, kernel="pipe_write")
    machine.held(writer, Blocker(20, 0, PIPE, True))
    machine.waits("sleep", 20, "sleep", 5)
    assert ends(machine.found()) == [(HOLDER, "sleep", 20, "sleep")]


def test_reader_that_computes_or_waits_for_its_user_is_not_accused() -> None:
    machine = Machine()
    machine.held(machine.waits("tar", 10, "pipe", 5, kernel="pipe_write"), Blocker(20, 0, PIPE, True))
    machine.runs("gzip", 20, 0.99)
    machine.held(machine.waits("git", 11, "pipe", 5, kernel="pipe_write"), Blocker(21, 0, PIPE, True))
    machine.waits("less", 21, "tty", 5)
    assert ends(machine.found()) == []


def test_parent_is_not_a_suspect_its_child_is() -> None:
    machine = Machine()
    machine.held(machine.waits("build", 10, "child", 20), Blocker(11, 0, CHILD, True))
    machine.held(machine.waits("step", 11, "child", 20), Blocker(12, 0, CHILD, True))
    machine.held(machine.waits("ld", 12, "lock", 20), Blocker(30, 0, FILE_LOCK, True, "out.lock"))
    machine.waits("vim", 30, "tty", 20)
    (one,) = machine.found().suspects
    assert (one.kind, one.end.program) == (HOLDER, "vim")
    assert [hop.program for hop in one.hops] == ["build", "step", "ld", "vim"]
    assert one.harm == pytest.approx(1.2)


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
    user, kernel = (_MUTEX, "futex_wait") if holder.via == MUTEX else ((), "flock_lock_inode_wait")
    machine.held(machine.waits("a.py", 10, "lock", 9, *user, kernel=kernel), holder)
    (one,) = machine.found().suspects
    assert (one.kind, one.waiting, len(one.hops), one.end.what) == (DEADLOCK, 1, 1, holder.what)
    text = SuspectTexts(machine.catalog, OwnNames(), machine.causes).sentence(one).says
    assert text == f"a.py(10) waits for {holder.what or 'a mutex'} (9.00s), which it holds itself"


def test_others_behind_a_thread_that_holds_its_own_lock_are_counted() -> None:
    machine = Machine()
    for tid in (10, 11, 12):
        waiter = machine.waits("a.py", 10, "lock", 9, *_MUTEX, kernel="futex_wait", tid=tid)
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


def test_holders_of_two_locks_of_a_process_are_two_suspects() -> None:
    machine = Machine()
    for holder, waiters in ((30, (31, 32, 33)), (40, (41, 42))):
        machine.waits("app", 10, "disk-read", 9, tid=holder)
        for tid in waiters:
            machine.held(machine.waits("app", 10, "lock", 9, tid=tid), Blocker(10, holder, MUTEX, True))
    found = machine.found().suspects
    assert [(one.kind, one.end.key.tid, one.hops[0].threads) for one in found] == [(HOLDER, 30, 3), (HOLDER, 40, 2)]


def test_an_owner_that_is_only_likely_makes_no_deadlock() -> None:
    machine = Machine()
    machine.held(machine.waits("a.py", 10, "lock", 9, *_MUTEX), Blocker(10, 10, MUTEX, False))
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


def test_mutex_leads_to_its_owner_in_the_same_process() -> None:
    machine = Machine()
    for tid in range(11, 15):
        waiter = machine.waits("java", 10, "lock", 3, *_MUTEX, tid=tid)
        machine.held(waiter, Blocker(10, 20, MUTEX, True))
    machine.waits("java", 10, "fsync", 0.5, "lib:fdatasync", "flush", tid=20)
    (one,) = machine.found().suspects
    assert (one.kind, one.end.key, one.end.state) == (HOLDER, ThreadKey(10, 20), "fsync")
    assert one.hops[0].threads == 4


def test_holder_of_a_kernel_lock_is_named() -> None:
    machine = Machine()
    for pid in (10, 11):
        machine.waits("ls", pid, "kernel-lock", 2, holder=Holder(20, 20, "cp"))
    machine.waits("cp", 20, "disk-write", 2)
    assert ends(machine.found()) == [(HOLDER, "cp", 20, "disk-write")]


def test_locks_of_which_nobody_knows_the_holder_are_named_without_one() -> None:
    machine = Machine()
    for tid in range(11, 22):
        machine.waits("mariadbd", 10, "lock", 60, "lib:pthread_cond_wait", "MDL_context::acquire_lock", tid=tid)
    (one,) = machine.found().suspects
    assert (one.kind, len(one.hops), one.end.threads, one.end.state) == (WAIT, 1, 11, "lock")


def test_threads_that_wait_for_work_accuse_nobody() -> None:
    machine = Machine()
    for tid in range(11, 60):
        machine.waits("app", 10, "lock", 60, "lib:pthread_cond_wait", "pool", "start_thread", tid=tid)
    assert ends(machine.found()) == []


def test_wait_for_a_cpu_names_the_program_that_has_it_after_three_ticks() -> None:
    machine = Machine()
    for pid in range(10, 14):
        machine.runs("python3", pid, 0.1, ready=0.8)
    machine.runs("yes", 20, 1.0)
    assert ends(machine.found()) == []
    (one,) = machine.found(ticks=3).suspects
    assert (one.kind, one.hops[0].program, one.hops[0].threads, one.end.program) == (CPU, "python3", 4, "yes")
    assert (one.is_likely, one.waiting) == (True, pytest.approx(3.2))


def test_program_that_competes_with_itself_accuses_nobody() -> None:
    machine = Machine()
    for pid in range(10, 18):
        machine.runs("cc1plus", pid, 0.25, ready=0.75)
    machine.runs("make", 9, 0.02, ready=0.01)
    assert ends(machine.found(ticks=3)) == []


def test_standing_waits_are_counted_and_not_accused() -> None:
    machine = Machine()
    machine.held(machine.waits("waiter", 10, "child", 4000, before=True), Blocker(11, 0, CHILD, True))
    machine.waits("daemon", 11, "sleep", 4000, before=True)
    for pid in range(20, 30):
        machine.held(machine.waits("tail", pid, "pipe", 61, kernel="pipe_read"), Blocker(40, 0, PIPE, True))
    machine.waits("logger", 40, "poll", 61)
    found = machine.found(ticks=3)
    assert (ends(found), found.standing) == ([], 12)


def test_wait_of_less_than_a_minute_is_not_standing() -> None:
    machine = Machine()
    for pid in range(20, 30):
        machine.held(machine.waits("tail", pid, "pipe", 59, kernel="pipe_read"), Blocker(40, 0, PIPE, True))
    machine.waits("logger", 40, "stopped", 59)
    assert ends(machine.found()) == [(HOLDER, "logger", 40, "stopped")]


def test_at_most_five_suspects_are_shown() -> None:
    machine = Machine()
    for number in range(9):
        waiter = machine.waits("flock", 10 + number, "lock", 10 + number, kernel="flock_lock_inode_wait")
        machine.held(waiter, Blocker(100 + number, 0, FILE_LOCK, True, f"{number}.lock"))
        machine.waits("sleep", 100 + number, "sleep", 100)
    assert len(machine.found().suspects) == 5


def test_empty_machine_accuses_nobody() -> None:
    assert Machine().found(ticks=3) == Found([], 0)


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


def test_deadlock_is_never_usual() -> None:
    machine = Machine()
    one, other = (machine.waits("taker", pid, "lock", 30) for pid in (10, 11))
    machine.held(one, Blocker(11, 0, FILE_LOCK, True, "y.lock"))
    machine.held(other, Blocker(10, 0, FILE_LOCK, True, "x.lock"))
    finder = SuspectFinder(WEIGHTS, {("taker", "lock"): 2.0})
    found = [finder.tick(machine.tick()) for _ in range(3)][-1]
    assert [one.kind for one in found.suspects] == [DEADLOCK]


def test_short_trouble_is_not_shown_until_it_lasts() -> None:
    machine = Machine()
    for pid in (10, 11, 12):
        machine.held(machine.waits("app", pid, "lock", 0.3, *_MUTEX), Blocker(20, 20, MUTEX, True))
    machine.waits("app", 20, "fsync", 0.3)
    assert ends(machine.found()) == []
    assert ends(machine.found(ticks=3)) == [(HOLDER, "app", 20, "fsync")]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("harm = 1.0", "harm = -1", "[show] (line 22): `harm` is not a number from 0 up"),
        ('standing = "60s"', 'standing = "soon"', "[show] (line 22): `standing` is not a duration such as 1s"),
        ("most = 5", "most = 5\ncolour = 1", "[show] (line 22): `colour` is unknown here"),
        ("[end]", "[ending]", "the file: `ending` is unknown here"),
    ],
)
def test_broken_weights_are_named(before: str, after: str, message: str) -> None:
    text = paths.suspects().read_text().replace(before, after)
    with pytest.raises(OfftopError) as raised:
        suspect_weights.parse(text)
    assert message in str(raised.value)


def test_weights_name_only_categories_and_causes_that_there_are() -> None:
    known = {*CATEGORIES.ids}
    assert known >= {*WEIGHTS.behind, *WEIGHTS.alone, *WEIGHTS.normal}
    assert {rule.id for rule in RULES.rules} >= {*WEIGHTS.cause}


def test_full_pipe_from_before_offtop_is_not_standing() -> None:
    machine = Machine()
    writer = machine.waits("yes", 10, "pipe", 600, kernel="pipe_write", before=True)
    machine.held(writer, Blocker(20, 0, PIPE, True))
    machine.waits("sleep", 20, "sleep", 600, before=True)
    assert ends(machine.found()) == [(HOLDER, "sleep", 20, "sleep")]


@pytest.mark.parametrize(
    ("category", "full", "empty"),
    [
        ("pipe", "do_msgsnd", "do_msgrcv"),
        ("pipe", "do_mq_timedsend", "do_mq_timedreceive"),
        ("tty", "n_tty_write", "n_tty_read"),
    ],
)
def test_full_queue_or_terminal_is_not_standing(category: str, full: str, empty: str) -> None:
    machine = Machine()
    machine.waits("logger", 10, category, 600, kernel=full, before=True)
    machine.waits("reader", 20, category, 600, kernel=empty, before=True)
    tick = machine.tick()
    assert tick.waits.rows[tick.standing, 0].tolist() == [20]
    assert [one.hops[0].program for one in machine.found().suspects] == ["logger"]


def test_sleep_in_java_is_like_one_of_the_category() -> None:
    machine = Machine()
    sleeps = "lib:pthread_cond_timedwait", "os::PlatformEvent::park", "JavaThread::sleep", "JVM_Sleep"
    for tid in range(11, 41):
        machine.waits("java", 10, "lock", 5, *sleeps, tid=tid)
    machine.waits("java", 50, "lock", 600, *sleeps, before=True)
    machine.waits("java", 60, "lock", 600, "lib:pthread_cond_wait", "Parker::park", "Unsafe_Park", before=True)
    even = machine.waits("java", 70, "lock", 5, *sleeps)
    machine.at_even_pace = SiteKeys(integers([machine.waiting[even].site], SITES.width))
    tick = machine.tick()
    assert tick.waits.rows[tick.standing, 0].tolist() == [50]
    assert tick.waits.rows[tick.idle, 0].tolist() == [70]
    assert ends(machine.found()) == []


@pytest.mark.parametrize("category", ["connect", "net-send"])
def test_nobody_waits_to_connect_or_to_send_because_there_is_no_work(category: str) -> None:
    machine = Machine()
    machine.waits("hung", 20, "net-recv", 600, before=True)
    for pid in range(30, 40):
        machine.held(machine.waits("client", pid, category, 90), Blocker(20, 0, SOCKET, True))
    machine.waits("lonely", 50, category, 90, before=True)
    assert not len(machine.tick().standing)
    assert machine.found().suspects[0].hops[0][1:3] == ("client", 10)


def test_server_whose_own_clients_wait_is_not_idle_while_it_waits_for_an_answer() -> None:
    machine = Machine()
    server = machine.waits("nginx", 20, "poll", 12, before=True)
    machine.held(server, Blocker(40, 0, UPSTREAM, False))
    machine.waits("python3", 40, "sleep", 12, before=True)
    assert ends(machine.found()) == [(HOLDER, "python3", 40, "sleep")]
    machine.runs("python3", 40)
    assert ends(machine.found()) == []


@pytest.mark.parametrize(
    ("server", "is_unread", "stands"),
    [
        ("idle", False, True),
        ("idle", True, False),
        ("runs a little", False, True),
        ("saturated", False, False),
        ("sleeps", False, False),
        ("locked", False, False),
        ("receives", False, True),
        ("away", False, False),
    ],
)
def test_clients_without_an_answer_stand_only_if_their_server_looks_idle(
    server: str, is_unread: bool, stands: bool
) -> None:
    """A worker that has asked a queue for its next job waits for an answer, too, and for as long as there is none.

    Of a server on another machine, nobody knows whether it looks idle.
    """
    machine = Machine()
    match server:
        case "locked":
            machine.waits("server", 20, "lock", 90, "lib:pthread_mutex_lock", before=True)
        case "sleeps" | "receives":
            machine.waits("server", 20, "sleep" if server == "sleeps" else "net-recv", 90, before=True)
        case "away":
            pass
        case _:
            machine.waits("server", 20, "poll", 90, before=True)
    if server in ("runs a little", "saturated"):
        machine.runs("server", 20, 0.95 if server == "saturated" else 0.3)
    for pid in range(30, 42):
        at = ELSEWHERE if server == "away" else 20
        machine.held(
            machine.waits("client", pid, "net-recv", 90, before=True), Blocker(at, 0, ANSWER, is_unread, "a:1")
        )
    clients = {pid for pid in machine.tick().waits.rows[machine.tick().standing, 0].tolist() if pid >= 30}
    assert clients == ({*range(30, 42)} if stands else set())
    assert bool(machine.found().suspects) != stands


@pytest.mark.parametrize(
    ("program", "does", "is_unread", "clients", "is_accused"),
    [
        ("redis-server", "poll", False, 8, False),
        ("redis-server", "poll", False, 40, True),
        ("redis-server", "poll", True, 8, True),
        ("redis-server", "wants a CPU", False, 8, False),
        ("redis-server", "busy", False, 8, True),
        ("redis-server", "sleep", False, 8, True),
        ("redis-server", "background", False, 8, False),
        ("server", "poll", False, 8, True),
        ("redis-server", "is not measured", False, 8, False),
        ("redis-server", "is not measured", False, 80, True),
    ],
)
def test_few_clients_of_an_idle_redis_do_not_accuse_it(
    program: str, does: str, is_unread: bool, clients: int, is_accused: bool
) -> None:
    """Most of them wait for what is to come: BLPOP, SUBSCRIBE."""
    machine = Machine()
    match does:
        case "is not measured":
            machine.catalog.processes[20] = program
        case "wants a CPU":
            machine.runs(program, 20, 0.1, ready=0.3)
        case "busy":
            machine.runs(program, 20, 0.95)
        case "background":
            machine.waits(program, 20, "lock", 30, "lib:pthread_cond_wait", "je_background", tid=21)
        case _:
            machine.waits(program, 20, does, 30, "lib:epoll_wait", "aeApiPoll")
    for pid in range(30, 30 + clients):
        client = machine.waits("redis-cli", pid, "net-recv", 30, "lib:read", "redisBufferRead")
        machine.held(client, Blocker(20, 0, ANSWER, is_unread, "127.0.0.1:6379"))
    assert bool(machine.found().suspects) == is_accused


def test_of_several_holders_only_those_of_the_named_program_are_counted() -> None:
    machine = Machine()
    for pid in (10, 11, 12):
        waiter = machine.waits("flock", pid, "lock", 9, kernel="flock_lock_inode_wait")
        machine.held(waiter, *(Blocker(pid, 0, FILE_LOCK, True, "job.lock") for pid in (20, 21, 22)))
    machine.waits("flock", 20, "stopped", 20)
    for pid in (21, 22):
        machine.waits("sleep", pid, "sleep", 30, "lib:clock_nanosleep", before=True)
    (one,) = machine.found().suspects
    assert (one.end.program, one.end.threads, one.end.pids) == ("sleep", 2, 2)


@pytest.mark.parametrize(
    ("server", "stands"), [("stopped", False), ("lock", False), ("sleep", True), ("poll", True), ("unmeasured", True)]
)
def test_readers_of_a_local_socket_stand_unless_its_other_end_is_stuck(server: str, stands: bool) -> None:
    """It is not known whether they have asked for something: they may subscribe to events."""
    machine = Machine()
    if server != "unmeasured":
        machine.waits("server", 20, server, 90, "lib:pthread_mutex_lock", before=True)
    for pid in range(30, 36):
        machine.held(machine.waits("client", pid, "pipe", 90, before=True), Blocker(20, 0, SOCKET, True))
    assert bool(machine.found().suspects) != stands


@pytest.mark.parametrize(
    ("client", "is_accused"), [("poll", False), ("sleep", False), ("stopped", True), ("lock", False)]
)
def test_server_that_waits_for_the_next_message_of_a_client_accuses_it_only_if_it_is_stopped(
    client: str, is_accused: bool
) -> None:
    machine = Machine()
    machine.waits("client", 20, client, 30, "lib:pthread_mutex_lock")
    own = Peers((PeerSide(CLIENT, (Process(20, "client"),), 1),))
    for tid in range(30, 70):
        connection = Object("tcp", f"socket:[{tid}]", 30, "127.0.0.1:80", f"127.0.0.1:{40_000 + tid}")
        machine.waits("server", 30, "net-recv", 30, tid=tid, on=connection, peers=own)
    assert [one.end.program for one in machine.found().suspects] == ["client"] * is_accused


@pytest.mark.parametrize(("role", "is_accused"), [(CLIENT, False), (PEER, True)])
def test_server_that_waits_for_clients_elsewhere_is_no_suspect(role: str, is_accused: bool) -> None:
    machine = Machine()
    for tid in range(30, 70):
        connection = Object("tcp", f"socket:[{tid}]", 30, "10.0.0.1:80", f"10.0.0.9:{40_000 + tid}")
        machine.waits("server", 30, "net-recv", 30, tid=tid, on=connection, peers=Peers((PeerSide(role, (), 0),)))
    assert bool(machine.found().suspects) == is_accused


def test_client_that_does_not_read_keeps_its_server_waiting() -> None:
    machine = Machine()
    machine.waits("client", 20, "poll", 30)
    for tid in range(30, 40):
        connection = Object("tcp", f"socket:[{tid}]", 30, "127.0.0.1:80", f"127.0.0.1:{40_000 + tid}")
        own = Peers((PeerSide(CLIENT, (Process(20, "client"),), 1),))
        machine.waits("server", 30, "net-send", 30, tid=tid, on=connection, peers=own)
    (one,) = machine.found().suspects
    assert one.end.program == "client"


@pytest.mark.parametrize(("role", "is_named"), [(WRITER, True), (READER, False)])
def test_other_end_of_a_pipe_that_is_not_measured_has_its_name(role: str, is_named: bool) -> None:
    machine = Machine()
    peers = Peers((PeerSide(role, (Process(20, "left-out"),), 1),))
    for pid in range(30, 50):
        machine.waits("reader", pid, "pipe", 20, kernel="pipe_read", on=Object("pipe", "pipe:[7]"), peers=peers)
    ends = [(one.end.program, one.end.state) for one in machine.found().suspects]
    assert ends == [("left-out", "unmeasured")] if is_named else ends == [("reader", "pipe")]


def test_reader_stands_whatever_its_writer_waits_for() -> None:
    machine = Machine()
    machine.waits("writer", 20, "disk-read", 90, before=True)
    machine.held(machine.waits("reader", 30, "pipe", 90, before=True), Blocker(20, 0, PIPE, True))
    assert 30 in machine.tick().waits.rows[machine.tick().standing, 0].tolist()


def test_lock_for_which_a_thread_polls_a_connection_of_a_client_does_harm() -> None:
    machine = Machine()
    connection = Object("tcp", "socket:[7]", 30, "127.0.0.1:80", "127.0.0.1:40000")
    own, lock = Peers((PeerSide(CLIENT, (), 0),)), ("lib:epoll_wait", "WaitEventSetWait", "ProcSleep")
    for pid in range(30, 34):
        machine.waits("postgres", pid, "poll", 30, *lock, on=connection, peers=own)
    assert [one.end.program for one in machine.found().suspects] == ["postgres"]


@pytest.mark.parametrize(("writer", "is_accused"), [("stopped", True), ("sleep", False), ("lock", False)])
@pytest.mark.parametrize("threads", [1, 2])
def test_one_reader_accuses_a_writer_that_was_stopped_before_offtop_started(
    writer: str, is_accused: bool, threads: int
) -> None:
    machine = Machine()
    for tid in range(20, 20 + threads):
        machine.waits("writer", 20, writer, 90, "lib:pthread_cond_wait", "work", tid=tid, before=True)
    machine.held(machine.waits("reader", 30, "pipe", 90, before=True), Blocker(20, 0, PIPE, True))
    assert [(one.end.program, one.end.state) for one in machine.found().suspects] == [("writer", writer)] * is_accused
    standing = machine.tick().waits.rows[machine.tick().standing, 0].tolist()
    assert (30 in standing) != is_accused


def test_stopped_reader_and_stopped_writer_are_not_one_suspect() -> None:
    machine = Machine()
    for number, (kernel, threads) in enumerate((("pipe_read", 2), ("pipe_write", 2))):
        machine.waits("python3", 20 + number, "stopped", 30)
        for pid in range(30 + 10 * number, 30 + 10 * number + threads):
            waiter = machine.waits("python3", pid, "pipe", 20, kernel=kernel)
            machine.held(waiter, Blocker(20 + number, 0, PIPE, True))
    found = machine.found().suspects
    assert [(one.end.key.pid, one.hops[0].threads, one.waiting) for one in found] == [(21, 2, 2), (20, 2, 2)]


def test_threads_of_a_server_that_all_sleep_are_behind_clients_that_poll() -> None:
    machine = Machine()
    for tid in range(20, 25):
        machine.waits("server", 20, "sleep", 60, tid=tid)
    for pid in range(30, 36):
        machine.held(machine.waits("client", pid, "poll", 50, before=True), Blocker(20, 0, ANSWER, True, "a:1"))
    (one,) = machine.found().suspects
    assert (one.end.program, one.end.state, one.end.threads, one.waiting) == ("server", "sleep", 5, 6)


@pytest.mark.parametrize(("functions", "is_one"), [([], False), (["lib:"], False), (["lib:futex_wait", ""], True)])
def test_threads_at_a_lock_are_no_suspect_before_a_function_of_theirs_is_known(
    functions: list[str], is_one: bool
) -> None:
    machine = Machine()
    for tid in range(11, 31):
        machine.waits("server", 10, "lock", 5, *functions, tid=tid)
    assert bool(machine.found().suspects) == is_one


def test_threads_that_may_be_at_the_same_lock_are_counted_apart() -> None:
    machine = Machine()
    for tid in range(11, 31):
        machine.waits("server", 10, "lock", 5, *_MUTEX, tid=tid)
    for tid in range(31, 36):
        machine.waits("server", 10, "lock", 5, tid=tid)
    machine.waits("other", 50, "lock", 5)
    (one,) = machine.found().suspects
    assert [(hop.program, hop.threads, hop.unread) for hop in one.hops] == [("server", 20, 5)]


def test_request_from_before_others_waited_was_not_sent_for_them() -> None:
    machine = Machine()
    consumer = machine.waits("app", 20, "net-recv", 50, tid=21)
    machine.held(consumer, Blocker(ELSEWHERE, 0, ANSWER, False, "10.0.0.5:5672"))
    for pid in range(30, 34):
        machine.held(machine.waits("curl", pid, "net-recv", 5), Blocker(20, 0, SOCKET, True))
    assert [one.program for one in machine.found().suspects[0].hops] == ["curl", "app"]


@pytest.mark.parametrize(("ms", "same", "is_named"), [(300, True, True), (10, True, False), (300, False, False)])
def test_wait_without_a_user_stack_yet_gets_that_of_the_last_similar_wait(ms: int, same: bool, is_named: bool) -> None:
    machine = Machine()
    for tid in range(11, 21):
        key = machine.waits("mariadbd", 10, "lock", 0.5, tid=tid, on=Object("futex", f"{tid:#x}", 10))
        wake = machine.waiting[key].site.wake if same else machine.wake(Object("futex", "0x1", 10))
        machine.ended(key, "lock", wake, 1, "lib:pthread_cond_timedwait", "MDL_wait::timed_wait", ms=ms)
    for _ in range(2):
        now = machine.tick()
        rules = {rule.id if (rule := now.rule(row)) else "" for row in range(len(now.waits))}
        assert rules == ({"mariadb-metadata-lock"} if is_named else {""}), "also in a tick in which none ended"
        machine.sites.clear()


@pytest.mark.parametrize("function", ["_worker (thread.py:69)", "serve (app.py:7)"])
def test_wait_like_those_that_are_idle_by_a_rule_is_no_suspect(function: str) -> None:
    machine = Machine()
    for tid in range(11, 21):
        key = machine.waits("python3", 10, "lock", 0.5, tid=tid, on=Object("futex", f"{tid:#x}", 10))
        wake = machine.waiting[key].site.wake
        machine.ended(key, "lock", wake, 1, "lib:sem_wait", "PyThread_acquire_lock_timed", function, ms=500)
        machine.held(key, Blocker(10, 30, WAKER, False))
    assert bool(machine.found(ticks=3).suspects) == (function != "_worker (thread.py:69)")


@pytest.mark.parametrize("functions", [(), ("lib:pthread_mutex_lock", "take_job")])
def test_waker_of_waits_without_a_known_function_is_not_accused(functions: tuple[str, ...]) -> None:
    machine, lock = Machine(mode=WAKEUP), Object("futex", "0x1", 10)
    for tid in range(11, 21):
        machine.waits("svc", 10, "lock", 0.5, *functions, tid=tid, on=lock)
    machine.catalog.wakes[900] = Wake(Waker(THREAD, "", 10, 30, "svc"), lock)
    machine.ended(ThreadKey(10, 31), "lock", 900, 3)
    assert bool(machine.found(ticks=3).suspects) == bool(functions)


def test_harm_of_a_program_that_waits_in_two_ways_is_that_of_the_worse_one() -> None:
    machine = Machine()
    task = ("lib:sem_wait", "PyThread_acquire_lock_timed", "wait (threading.py:320)", "result (_base.py:451)")
    for tid in range(11, 17):
        machine.waits("python3", 10, "lock", 9, *task, "_worker (thread.py:81)", tid=tid)
    machine.waits("python3", 10, "lock", 9, *task, "main (pool.py:8)")
    assert [(one.kind, one.end.threads, one.harm) for one in machine.found(ticks=3).suspects] == [(WAIT, 6, 1.5)]


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


def test_who_waits_for_a_thread_and_for_its_process_is_shown_by_the_first_of_both() -> None:
    machine = Machine()
    waiter = machine.waits("sh", 10, "child-wait")
    machine.waits("job", 20, "disk-read", 60)
    end = machine.waits("job", 20, "disk-read", 50, tid=21)
    machine.held(waiter, Blocker(*end, MUTEX, True), Blocker(20, 0, CHILD, True))
    (one,) = machine.found().suspects
    assert [(hop.program, hop.via) for hop in one.hops] == [("sh", CHILD), ("job", "")]
