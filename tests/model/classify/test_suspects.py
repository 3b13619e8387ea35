"""Who is a suspect: the end of a chain is one, a standing wait is not, and on a quiet machine there are none."""

import pytest

from offtop import paths
from offtop.errors import OfftopError
from offtop.model.classify import suspect_weights
from offtop.model.classify.suspect import CPU, HOLDER, WAIT, Found
from offtop.model.values.blockers import (
    CHILD,
    FILE_LOCK,
    MUTEX,
    PIPE,
    SOCKET,
    TITLE,
    WAKER,
    Blocker,
)
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.snapshot import Holder
from offtop.model.values.table import SITES, SiteKeys, integers
from offtop.model.values.wake import THREAD, WAKEUP, Object, Wake, Waker
from tests.model.machine import AT_MUTEX, CATEGORIES, RULES, WEIGHTS, Machine, ends

_SESSION = "postgres: main: bench shop [local] "
_ROW_LOCK = ("lib:epoll_wait", "WaitEventSetWait", "ProcSleep")


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


def test_holders_of_two_locks_of_a_process_are_two_suspects() -> None:
    machine = Machine()
    for holder, waiters in ((30, (31, 32, 33)), (40, (41, 42))):
        machine.waits("app", 10, "disk-read", 9, tid=holder)
        for tid in waiters:
            machine.held(machine.waits("app", 10, "lock", 9, tid=tid), Blocker(10, holder, MUTEX, True))
    found = machine.found().suspects
    assert [(one.kind, one.end.key.tid, one.hops[0].threads) for one in found] == [(HOLDER, 30, 3), (HOLDER, 40, 2)]


def test_mutex_leads_to_its_owner_in_the_same_process() -> None:
    machine = Machine()
    for tid in range(11, 15):
        waiter = machine.waits("java", 10, "lock", 3, *AT_MUTEX, tid=tid)
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
        machine.waits("server", 10, "lock", 5, *AT_MUTEX, tid=tid)
    for tid in range(31, 36):
        machine.waits("server", 10, "lock", 5, tid=tid)
    machine.waits("other", 50, "lock", 5)
    (one,) = machine.found().suspects
    assert [(hop.program, hop.threads, hop.unread) for hop in one.hops] == [("server", 20, 5)]


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


def test_who_waits_for_a_thread_and_for_its_process_is_shown_by_the_first_of_both() -> None:
    machine = Machine()
    waiter = machine.waits("sh", 10, "child-wait")
    machine.waits("job", 20, "disk-read", 60)
    end = machine.waits("job", 20, "disk-read", 50, tid=21)
    machine.held(waiter, Blocker(*end, MUTEX, True), Blocker(20, 0, CHILD, True))
    (one,) = machine.found().suspects
    assert [(hop.program, hop.via) for hop in one.hops] == [("sh", CHILD), ("job", "")]
