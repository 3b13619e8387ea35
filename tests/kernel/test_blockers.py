"""Test what must act to end a wait, on real children that hold what another thread waits for."""

import ctypes
import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from offtop.kernel.procfs.cgroups import mounted
from offtop.kernel.procfs.syscalls import number_of
from offtop.kernel.resolve.blocked import FUTEX, Blocked
from offtop.kernel.resolve.blockers import BlockersWorker
from offtop.kernel.resolve.mutexes import Mutexes
from offtop.model.values.blockers import (
    CHILD,
    CPU_QUOTA,
    DISK,
    ELSEWHERE,
    FILE_LOCK,
    FILE_SYSTEM,
    FROZEN_BY,
    GIL,
    MUTEX,
    STOPPED_BY,
    Blocker,
    quota_of,
)
from offtop.model.values.catalog import Catalog, ThreadKey
from tests.conftest import lacks
from tests.kernel import programs, waits
from tests.kernel.hangs import fuse, stuck
from tests.kernel.procfs.test_cgroups import remove
from tests.kernel.reads import GUARDED
from tests.kernel.watch import Watch
from tests.model.machine import OwnNames

pytestmark = pytest.mark.kernel

_SECONDS = 30.0
MUTEXES = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

static pthread_mutex_t mutex;
static pthread_barrier_t is_held;

static void *holder(void *unused)
{
	tell("holder", (void *)syscall(SYS_gettid));
	pthread_mutex_lock(&mutex);
	pthread_barrier_wait(&is_held);
	pause();
	return unused;
}

static void *waiter(void *unused)
{
	tell("waiter", (void *)syscall(SYS_gettid));
	pthread_mutex_lock(&mutex);
	return unused;
}

int main(int count, char **words)
{
	pthread_t threads[2];
	pthread_mutexattr_t kind;

	pthread_mutexattr_init(&kind);
	if (!strcmp(words[1], "recursive"))
		pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_RECURSIVE);
	else if (!strcmp(words[1], "robust"))
		pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
	else if (!strcmp(words[1], "inherits"))
		pthread_mutexattr_setprotocol(&kind, PTHREAD_PRIO_INHERIT);
	else if (!strcmp(words[1], "shared"))
		pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
	pthread_mutex_init(&mutex, &kind);
	pthread_barrier_init(&is_held, 0, 2);
	pthread_create(&threads[0], 0, holder, 0);
	pthread_barrier_wait(&is_held);
	pthread_create(&threads[1], 0, waiter, 0);
	usleep(100000);
	next();
}
"""
"""A thread holds a mutex, and another one waits for it."""
TURNS = r"""
#include <pthread.h>
#include <sys/syscall.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void *take_turns(void *unused)
{
	for (;;) {
		pthread_mutex_lock(&mutex);
		usleep(150000);
		pthread_mutex_unlock(&mutex);
		usleep(1000);
	}
}

int main(void)
{
	pthread_t thread;

	for (int i = 0; i < 5; i++)
		pthread_create(&thread, 0, take_turns, 0);
	usleep(100000);
	next();
}
"""
"""Five threads take turns at a mutex, each of which sleeps while it holds it."""
TWICE = r"""
#include <pthread.h>
#include <sys/syscall.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void *lock(void *times)
{
	tell(times ? "holder" : "waiter", (void *)syscall(SYS_gettid));
	pthread_mutex_lock(&mutex);
	if (times)
		pthread_mutex_lock(&mutex);
	return times;
}

int main(void)
{
	pthread_t thread;

	pthread_create(&thread, 0, lock, "twice");
	usleep(100000);
	pthread_create(&thread, 0, lock, 0);
	usleep(100000);
	next();
}
"""
"""A thread locks a mutex twice, and so waits for itself; another one waits for it, too."""
FORGED = r"""
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

static const char *how;
static pthread_mutex_t *mutex;
static pthread_barrier_t is_held;
static int waiter_tid;

static void *holder(void *unused)
{
	tell("holder", (void *)syscall(SYS_gettid));
	pthread_mutex_lock(mutex);
	pthread_barrier_wait(&is_held);
	if (strcmp(how, "exited"))
		pause();
	return unused;
}

static void *waiter(void *unused)
{
	waiter_tid = syscall(SYS_gettid);
	tell("waiter", (void *)(long)waiter_tid);
	if (!strcmp(how, "elsewhere")) { /* looks like a mutex, but is waited for by other code */
		for (;;)
			syscall(SYS_futex, mutex, FUTEX_WAIT_PRIVATE, 2, 0, 0, 0);
	} else if (!strcmp(how, "condition")) {
		static pthread_mutex_t own = PTHREAD_MUTEX_INITIALIZER;
		static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
		pthread_mutex_lock(&own);
		pthread_cond_wait(&never, &own);
	} else if (!strcmp(how, "semaphore")) {
		static sem_t never;
		sem_wait(&never);
	} else {
		pthread_mutex_lock(mutex);
	}
	return unused;
}

int main(int count, char **words)
{
	pthread_t threads[2];

	how = words[1];
	mutex = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_barrier_init(&is_held, 0, 2);
	pthread_create(&threads[0], 0, holder, 0);
	pthread_barrier_wait(&is_held);
	if (!strcmp(how, "elsewhere"))
		mutex->__data.__lock = 2;
	pthread_create(&threads[1], 0, waiter, 0);
	usleep(200000);
	if (!strcmp(how, "waiter"))
		mutex->__data.__owner = waiter_tid;
	else if (!strcmp(how, "unmapped"))
		munmap(mutex, 4096);
	else if (!strcmp(how, "word"))
		mutex->__data.__lock = 1;
	else if (!strcmp(how, "kind"))
		mutex->__data.__kind = -1;
	else if (how[0] == '-' || (how[0] >= '0' && how[0] <= '9'))
		mutex->__data.__owner = atoi(how);
	next();
}
"""
"""A thread holds a mutex and another one waits, but what stands in the mutex is made up afterwards."""
LOCKER = """
import fcntl, os, sys, time
file = open(sys.argv[1], "r+")
how, *rest = sys.argv[2:]
if how == "flock":
    fcntl.flock(file, fcntl.LOCK_EX)
elif how == "fcntl":
    fcntl.lockf(file, fcntl.LOCK_EX)
elif how == "ofd":
    fcntl.fcntl(file, 38, __import__("struct").pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
print("ready", flush=True)
if rest:
    os.set_inheritable(file.fileno(), True)
    os.spawnvp(os.P_NOWAIT, rest[0], rest)
    os._exit(0)
time.sleep(1000)
"""
"""Locks a file, or waits for it. With a command, leaves the lock to it and exits."""

PARENT = "import os; sleep = lambda: os.spawnvp(os.P_NOWAIT, 'sleep', ['sleep', '1000'])"

GIL_HELD = """
import sys, threading, time
def hold():
    print(threading.get_native_id(), flush=True)
    sum(range(10**12))  # one call in C, which does not let go
def wait():
    print(threading.get_native_id(), flush=True)
    while True:
        time.sleep(0.001)
threading.Thread(target=wait, daemon=True).start()
time.sleep(0.2)
threading.Thread(target=hold, daemon=True).start()
time.sleep(1000)
"""
TITLED = r"""
#include <string.h>
int main(int count, char **words)
{
	memset(words[0], 0, words[count - 1] + strlen(words[count - 1]) - words[0]);
	strcpy(words[0], "titled: idle");
	next();
}
"""
PYTHONS = {version: path for version, path in programs.interpreters().items() if version in ("3.13", "3.14")}


@pytest.fixture(scope="module")
def mutexes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return programs.build(tmp_path_factory.mktemp("built") / "mutexes", MUTEXES, "-pthread")


@pytest.fixture(scope="module")
def turns(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return programs.build(tmp_path_factory.mktemp("built") / "turns", TURNS, "-pthread")


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return programs.build(tmp_path_factory.mktemp("built") / "twice", TWICE, "-pthread")


@pytest.fixture(scope="module")
def forged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return programs.build(tmp_path_factory.mktemp("built") / "forged", FORGED, "-pthread")


def found(live: Watch, key: ThreadKey, is_it: Callable[[tuple[Blocker, ...]], bool] = bool) -> tuple[Blocker, ...]:
    """Tick until the blockers of a thread are what a test waits for, and return them."""
    deadline = time.monotonic() + _SECONDS
    while not is_it(blockers := live.last.blockers.get(key, ())):
        assert time.monotonic() < deadline, f"{blockers}"
        live.tick(0.2)
    return blockers


def never_found(live: Watch, *keys: ThreadKey, seconds: float = 3.0) -> None:
    """Check that for a while nobody is accused of holding up these threads."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        live.tick(0.2)
        for key in keys:
            assert key in live.last.waiting
            assert key not in live.last.blockers


@contextmanager
def child(*command: str | Path) -> Generator[subprocess.Popen[str]]:
    """Run a child; kill it at the end."""
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)
        if process.stdout:
            process.stdout.close()


LOCKS_TWICE = """
import fcntl, os, sys, threading
first, second = (open(sys.argv[1], "r+") for _ in range(2))
fcntl.flock(first, fcntl.LOCK_EX)
if sys.argv[2:]:
    threading.Thread(target=os.read, args=(os.pipe()[0], 1), daemon=True).start()
print("ready", flush=True)
fcntl.flock(second, fcntl.LOCK_EX)
"""


@pytest.mark.parametrize("with_another_thread", [False, True])
def test_a_thread_holds_a_file_lock_itself_only_if_its_process_has_no_other(
    live: Watch, tmp_path: Path, with_another_thread: bool
) -> None:
    file = tmp_path / "own.lock"
    file.touch()
    with child(sys.executable, "-c", LOCKS_TWICE, file, *["x"] * with_another_thread) as waiter:
        tid = 0 if with_another_thread else waiter.pid
        assert found(live, ThreadKey(waiter.pid, waiter.pid)) == (Blocker(waiter.pid, tid, FILE_LOCK, True, file.name),)


@contextmanager
def locker(file: Path, how: str, *command: str) -> Generator[subprocess.Popen[str]]:
    """Run a child that has locked a file."""
    with child(sys.executable, "-c", LOCKER, file, how, *command) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        yield process


def test_blocker_that_filters_leave_out_has_its_newest_name_as_long_as_it_is_one() -> None:
    catalog, named = Catalog(), set[int]()
    worker: Any = SimpleNamespace(_catalog=catalog, _named=named)
    name = partial(BlockersWorker._name, worker)  # pyright: ignore[reportPrivateUsage]
    with child("sh", "-c", "echo ready; sleep 1; exec sleep 60") as one:
        assert one.stdout and one.stdout.readline()
        name({one.pid})
        assert catalog.processes == {one.pid: "sh"}
        programs.until(lambda: Path(f"/proc/{one.pid}/comm").read_bytes() == b"sleep\n")
        name({one.pid})
        assert catalog.processes == {one.pid: "sleep"}
        name(set())
        assert catalog.processes == {}
        name({one.pid})
        catalog.comms[ThreadKey(one.pid, one.pid + 1)] = "worker"
        name(set())
        assert catalog.processes == {one.pid: "sleep"}, "it is measured by now"


def test_owner_of_a_mutex_is_the_thread_that_holds_it(live: Watch, mutexes: Path) -> None:
    with ExitStack() as stack:
        kinds = "normal", "recursive", "robust", "inherits", "shared"
        made = {kind: stack.enter_context(programs.running([mutexes, kind])) for kind in kinds}
        for kind, program in made.items():
            waiter = ThreadKey(program.pid, program.at["waiter"])
            is_exact = kind not in ("robust", "shared")

            assert found(live, waiter) == (Blocker(program.pid, program.at["holder"], MUTEX, is_exact),), kind


def test_owner_of_a_mutex_that_changes_hands_is_the_one_that_does_not_wait_for_it(live: Watch, turns: Path) -> None:
    ticks, named, deadline = 0, 0, time.monotonic() + _SECONDS
    with programs.running([turns]) as program:
        while ticks < 8 or not named:  # a lookup may come too late on a busy machine
            assert time.monotonic() < deadline
            ticks += 1
            live.tick(0.5)
            waiters = at(live, program.pid)
            owners = {one[:2] for some in waiters.values() for one in some}
            runnable = {key for key in waiters if live.last.waiting[key].runqueue_ns}  # just getting the mutex
            assert len(owners) <= 1 and not owners & (waiters.keys() - runnable)
            named += len(waiters) == 4 and all(waiters.values())


def test_owner_of_a_mutex_that_waits_for_itself_is_named(live: Watch, twice: Path) -> None:
    with programs.running([twice]) as program:
        waiter = ThreadKey(program.pid, program.at["waiter"])
        assert found(live, waiter) == (Blocker(program.pid, program.at["holder"], MUTEX, True),)
        live.tick(0.5)
        assert found(live, waiter) == (Blocker(program.pid, program.at["holder"], MUTEX, True),)


def at(live: Watch, pid: int) -> dict[ThreadKey, tuple[Blocker, ...]]:
    """Return the blockers of each thread of a process that waits for a futex."""
    keys = [
        one.site.thread for one in live.last.waiting.values() if one.site.pid == pid and one.call == number_of(FUTEX)
    ]
    return {key: live.last.blockers.get(key, ()) for key in keys}


def test_only_the_owner_in_a_mutex_that_is_waited_for_is_believed(live: Watch, forged: Path) -> None:
    """Not a number that is no thread of the process, nor what is no mutex, nor a mutex that is waited for otherwise."""
    owners = 0, 1, os.getpid(), -5, 1 << 30, (1 << 31) - 1
    ways = "exited", "unmapped", "word", "kind", "elsewhere", "condition", "semaphore"
    with ExitStack() as stack:
        untrue = {how: stack.enter_context(programs.running([forged, str(how)])) for how in (*owners, *ways)}
        honest = stack.enter_context(programs.running([forged, "honest"]))
        waiter = ThreadKey(honest.pid, honest.at["waiter"])
        assert found(live, waiter) == (Blocker(honest.pid, honest.at["holder"], MUTEX, True),)
        never_found(live, *(ThreadKey(one.pid, one.at["waiter"]) for one in untrue.values()))


def test_a_mutex_that_names_its_waiter_has_been_locked_twice(live: Watch, forged: Path) -> None:
    with programs.running([forged, "waiter"]) as program:
        waiter = ThreadKey(program.pid, program.at["waiter"])
        assert found(live, waiter) == (Blocker(*waiter, MUTEX, True),)


@pytest.mark.variant
def test_owner_in_a_container_is_translated_and_believed_if_no_other_can_be_it(live: Watch, mutexes: Path) -> None:
    with in_container(mutexes, "normal") as (waiter, holder), in_container(mutexes, "shared") as (waits_for_shared, _):
        assert found(live, waiter) == (Blocker(*holder, MUTEX, True),)
        never_found(live, waits_for_shared)


@contextmanager
def in_container(mutexes: Path, kind: str) -> Generator[tuple[ThreadKey, ThreadKey]]:
    """Run MUTEXES in a PID namespace; yield its waiter and its holder."""
    with programs.running(["unshare", "--pid", "--fork", "--mount-proc", mutexes, kind]) as program:
        (pid,) = (int(one) for one in Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split())
        try:
            tids = {_inner_tid(pid, int(task.name)): int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()}
            yield ThreadKey(pid, tids[program.at["waiter"]]), ThreadKey(pid, tids[program.at["holder"]])
        finally:
            os.kill(pid, 9)


def test_process_whose_memory_cannot_be_read_delays_no_other(mutexes: Path, tmp_path: Path) -> None:
    reads = GUARDED.channel(0.3, 0.5)
    with stuck(tmp_path) as hung, programs.running([mutexes, "inherits"]) as program:
        waiter, hanging = ThreadKey(program.pid, program.at["waiter"]), ThreadKey(hung.pid, hung.pid)
        words = Path(f"/proc/{waiter.pid}/task/{waiter.tid}/syscall").read_text().split()
        arguments = tuple(int(word, 16) for word in words[1:7])
        finder = Mutexes(reads, Catalog(), OwnNames())
        began_s = time.monotonic()
        found = finder.find([Blocked(key, 1, FUTEX, arguments) for key in (hanging, waiter)])

        assert time.monotonic() - began_s < 3
        assert {key: one.blockers for key, one in found.items()} == {
            waiter: (Blocker(program.pid, program.at["holder"], MUTEX, True),)
        }
        assert reads.hung == {hung.pid}


def _inner_tid(pid: int, tid: int) -> int:
    lines = Path(f"/proc/{pid}/task/{tid}/status").read_text().splitlines()
    return next(int(line.split()[-1]) for line in lines if line.startswith("NSpid:"))


def test_holder_of_a_file_lock_is_the_process_that_took_it(live: Watch, tmp_path: Path) -> None:
    with ExitStack() as stack:
        made: list[tuple[int, int, str]] = []
        for how in ("flock", "fcntl", "ofd"):
            file = tmp_path / f"{how}.lock"
            file.touch()
            holder = stack.enter_context(locker(file, how))
            waiter = stack.enter_context(child(sys.executable, "-c", LOCKER, file, how))
            made.append((holder.pid, waiter.pid, file.name))
        for holder_pid, waiter_pid, name in made:
            blockers = found(live, ThreadKey(waiter_pid, waiter_pid))

            assert blockers == (Blocker(holder_pid, 0, FILE_LOCK, True, name),)


@pytest.mark.variant
def test_process_that_inherited_a_lock_holds_it(live: Watch, tmp_path: Path) -> None:
    file = tmp_path / "job.lock"
    file.touch()
    with locker(file, "flock", "sleep", "1000") as parent, child(sys.executable, "-c", LOCKER, file, "flock") as waiter:
        parent.wait(10)
        (blocker,) = found(live, ThreadKey(waiter.pid, waiter.pid))
        comm = Path(f"/proc/{blocker.pid}/comm").read_text()
        os.kill(blocker.pid, 9)

    assert (comm, *blocker[1:]) == ("sleep\n", 0, FILE_LOCK, True, "job.lock")


@pytest.mark.variant
def test_all_processes_that_share_an_open_file_hold_its_lock(live: Watch, tmp_path: Path) -> None:
    file = tmp_path / "job.lock"
    file.touch()
    with file.open("r+") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        heirs = [subprocess.Popen(["sleep", "1000"], pass_fds=[opened.fileno()]) for _ in range(2)]
        with child(sys.executable, "-c", LOCKER, file, "flock") as waiter:
            try:
                blockers = found(live, ThreadKey(waiter.pid, waiter.pid), lambda some: len(some) == 3)
            finally:
                for heir in heirs:
                    heir.kill()
                    heir.wait(10)

    assert {one.pid for one in blockers} == {os.getpid(), *(heir.pid for heir in heirs)}


def test_all_shared_locks_on_a_file_hold_up_an_exclusive_one(live: Watch, tmp_path: Path) -> None:
    file = tmp_path / "shared.lock"
    file.touch()
    with file.open("r") as first, file.open("r") as second:
        for one in (first, second):
            fcntl.flock(one, fcntl.LOCK_SH)
        heir = subprocess.Popen(["sleep", "1000"], pass_fds=[second.fileno()])
        second.close()
        with child(sys.executable, "-c", LOCKER, file, "flock") as waiter:
            try:
                blockers = found(live, ThreadKey(waiter.pid, waiter.pid), lambda some: len(some) == 2)
            finally:
                heir.kill()
                heir.wait(10)

    assert {one.pid for one in blockers} == {os.getpid(), heir.pid}


def test_awaited_child_or_each_of_several_is_named(live: Watch) -> None:
    with ExitStack() as stack:
        made: list[tuple[int, list[int]]] = []
        for children, call in (
            ("child := sleep()", "os.waitpid(child, 0)"),
            ("child := sleep()", "os.waitid(os.P_PID, child, os.WEXITED)"),
            ("sleep()", "os.wait()"),
            ("sleep(), sleep()", "os.wait()"),
        ):
            program = f"{PARENT}; print({children}, flush=True); {call}"
            parent = stack.enter_context(child(sys.executable, "-c", program))
            assert parent.stdout
            pids = [int(word) for word in parent.stdout.readline().split()]
            for pid in pids:
                stack.callback(os.kill, pid, 9)
            made.append((parent.pid, pids))
        for parent_pid, pids in made:
            blockers = found(live, ThreadKey(parent_pid, parent_pid))

            assert {*blockers} == {Blocker(pid, 0, CHILD, len(pids) == 1) for pid in pids}


@pytest.mark.parametrize("python", PYTHONS.values(), ids=PYTHONS)
def test_holder_of_the_gil_is_read_from_the_interpreter(live: Watch, python: Path) -> None:
    with child(python, "-c", GIL_HELD) as process:
        assert process.stdout
        waiter, holder = (int(process.stdout.readline()) for _ in "ab")

        assert found(live, ThreadKey(process.pid, waiter)) == (Blocker(process.pid, holder, GIL, True),)


def test_title_of_a_process_that_waits_is_read(live: Watch, tmp_path: Path) -> None:
    with programs.running([programs.build(tmp_path / "titled", TITLED), "room for a title"]) as program:
        deadline = time.monotonic() + _SECONDS
        while live.last.titles.get(program.pid) != "titled: idle":
            assert time.monotonic() < deadline
            live.tick(0.2)


THREADS_LOCK = """
import fcntl, sys, threading
def lock(name, start, has_printed):
    print(threading.get_native_id(), flush=True)
    has_printed.set()
    fcntl.lockf(open(name, "r+"), fcntl.LOCK_EX, 1, int(start))
places = [word.rsplit(":", 1) for word in sys.argv[1:]]
for name, start in places:
    has_printed = threading.Event()
    threading.Thread(target=lock, args=(name, start, has_printed)).start()
    has_printed.wait()
"""
"""Threads of one process that lock a byte each, at FILE:OFFSET."""


def test_threads_of_one_process_wait_for_different_files(live: Watch, tmp_path: Path) -> None:
    files = [tmp_path / "a.lock", tmp_path / "b.lock"]
    for file in files:
        file.touch()
    with (
        locker(files[0], "fcntl") as first,
        locker(files[1], "fcntl") as second,
        child(sys.executable, "-c", THREADS_LOCK, *(f"{file}:0" for file in files)) as waiters,
    ):
        assert waiters.stdout
        tids = [int(waiters.stdout.readline()) for _ in files]
        blockers = [found(live, ThreadKey(waiters.pid, tid)) for tid in tids]

    assert blockers == [
        (Blocker(first.pid, 0, FILE_LOCK, True, "a.lock"),),
        (Blocker(second.pid, 0, FILE_LOCK, True, "b.lock"),),
    ]


def test_nobody_is_named_if_threads_wait_for_different_locks_on_a_file(live: Watch, tmp_path: Path) -> None:
    file = tmp_path / "ranges.lock"
    file.touch()
    hold = "import fcntl, sys, time; file = open(sys.argv[1], 'r+'); "
    hold += "fcntl.lockf(file, fcntl.LOCK_EX, 1, int(sys.argv[2])); print(flush=True); time.sleep(1000)"
    with (
        child(sys.executable, "-c", hold, file, "0") as first,
        child(sys.executable, "-c", hold, file, "5") as second,
    ):
        for one in (first, second):
            assert one.stdout
            one.stdout.readline()
        with child(sys.executable, "-c", THREADS_LOCK, f"{file}:0", f"{file}:5") as waiters:
            assert waiters.stdout
            tids = [int(waiters.stdout.readline()) for _ in "ab"]
            time.sleep(0.3)
            live.tick()
            never_found(live, *(ThreadKey(waiters.pid, tid) for tid in tids), seconds=2.0)


def test_the_holder_of_a_lease_holds_up_the_thread_that_opens_the_file(live: Watch, tmp_path: Path) -> None:
    file = tmp_path / "leased"
    file.touch()
    hold = (
        "import fcntl, signal, sys, time; signal.signal(signal.SIGIO, signal.SIG_IGN); file = open(sys.argv[1], 'r+'); "
    )
    hold += "fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK); print(flush=True); time.sleep(1000)"
    with child(sys.executable, "-c", hold, file) as holder:
        assert holder.stdout
        holder.stdout.readline()
        with child("cat", file) as waiter:
            blockers = found(live, ThreadKey(waiter.pid, waiter.pid))

    assert blockers == (Blocker(holder.pid, 0, FILE_LOCK, True, "leased"),)


ASKS_BY_DESCRIPTOR = (
    "import os, sys; fd = os.open(sys.argv[1], os.O_RDONLY); print(flush=True); input(); os.fstatvfs(fd)"
)


def test_server_of_a_fuse_file_system_is_named(live: Watch, tmp_path: Path) -> None:
    with fuse(tmp_path, Path("/bin/true")) as mounted:
        by_descriptor = [sys.executable, "-c", ASKS_BY_DESCRIPTOR, str(mounted.mounted)]
        reader = subprocess.Popen(
            by_descriptor, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert reader.stdin
        assert reader.stdout
        reader.stdout.readline()
        mounted.stop_answering()
        reader.stdin.write(b"\n")
        reader.stdin.flush()
        by_path = subprocess.Popen(["cat", str(mounted.program)], stderr=subprocess.DEVNULL)
        blockers = [found(live, ThreadKey(one.pid, one.pid)) for one in (reader, by_path)]
    for one in (reader, by_path):
        one.communicate()

    assert blockers == [(Blocker(mounted.pid, 0, FILE_SYSTEM, is_exact),) for is_exact in (True, False)]


def test_debugger_that_has_stopped_a_thread_is_named(live: Watch) -> None:
    attach, detach = 16, 17  # PTRACE_ATTACH, PTRACE_DETACH
    libc = ctypes.CDLL(None, use_errno=True)
    with child("sleep", "1000") as stopped:
        time.sleep(0.2)
        assert libc.ptrace(attach, stopped.pid, 0, 0) == 0
        os.waitpid(stopped.pid, os.WUNTRACED)
        try:
            blockers = found(live, ThreadKey(stopped.pid, stopped.pid))
        finally:
            libc.ptrace(detach, stopped.pid, 0, 0)

    assert blockers == (Blocker(os.getpid(), threading.get_native_id(), STOPPED_BY, True),)


def test_cpu_quota_is_named_by_its_size_and_cgroup(live: Watch) -> None:
    with waits.running("throttle", times=100, each_ms=90) as child:
        child.go()
        (one,) = found(live, ThreadKey(child.pid, 0))
    assert one[:3] == (child.pid, 0, CPU_QUOTA)
    cpus, cgroup = quota_of(one.what)
    assert (cpus, cgroup.rpartition("/")[2]) == (0.1, f"waits-{child.pid}")


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_frozen_cgroup_is_named_by_the_file_that_keeps_it_frozen(live: Watch, version: str) -> None:
    is_v2 = version == "v2"
    top = next((one.point for one in mounted() if one.is_v2 is is_v2 and (is_v2 or "freezer" in one.controllers)), None)
    if top is None:
        lacks(f"a freezer of control groups of version {version[1]}, mounted")
    group = Path(top, f"offtop-{os.getpid()}-frozen")
    file, frozen, thawed = ("cgroup.freeze", "1", "0") if is_v2 else ("freezer.state", "FROZEN", "THAWED")
    with ExitStack() as stack:
        (group / "inner").mkdir(parents=True)
        stack.callback(remove, group)
        stack.callback(remove, group / "inner")
        one = stack.enter_context(child("sleep", "1000"))
        (group / "inner/cgroup.procs").write_text(str(one.pid))
        (group / file).write_text(frozen)
        stack.callback((group / file).write_text, thawed)
        blockers = found(live, ThreadKey(one.pid, one.pid))
        assert blockers == (Blocker(ELSEWHERE, 0, FROZEN_BY, True, str(group / file)),)


@pytest.mark.parametrize("kind", ["read-direct", "fsync"])
def test_wait_for_a_disk_names_the_disk_of_the_file(live: Watch, kind: str) -> None:
    with waits.running(kind, times=40, each_ms=500) as child:
        disk = Path("/sys/dev/block", waits.disk_of(Path("/var/tmp"))).resolve().name
        child.go()
        blockers = found(live, ThreadKey(child.pid, child.tid))
        assert blockers == (Blocker(ELSEWHERE, 0, DISK, True, disk),)
