"""Test which thread owns a mutex of glibc that another thread waits for."""

import os
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from offtop.kernel.procfs.syscalls import number_of
from offtop.kernel.resolve.blocked import FUTEX, Blocked
from offtop.kernel.resolve.mutexes import Mutexes
from offtop.model.values.blockers import MUTEX, Blocker
from offtop.model.values.catalog import Catalog, ThreadKey
from tests.kernel import programs
from tests.kernel.blockers import SECONDS, check_owner, never_found
from tests.kernel.hangs import stuck
from tests.kernel.reads import GUARDED
from tests.kernel.watch import Watch
from tests.model.machine import OwnNames

pytestmark = pytest.mark.kernel

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


def test_owner_of_a_mutex_is_the_thread_that_holds_it(live: Watch, mutexes: Path) -> None:
    with ExitStack() as stack:
        kinds = "normal", "recursive", "robust", "inherits", "shared"
        made = {kind: stack.enter_context(programs.running([mutexes, kind])) for kind in kinds}
        for kind, program in made.items():
            waiter = ThreadKey(program.pid, program.at["waiter"])
            is_exact = kind not in ("robust", "shared")

            check_owner(live, waiter, Blocker(program.pid, program.at["holder"], MUTEX, is_exact))


def test_owner_of_a_mutex_that_changes_hands_is_the_one_that_does_not_wait_for_it(live: Watch, turns: Path) -> None:
    ticks, named, deadline = 0, 0, time.monotonic() + SECONDS
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
        check_owner(live, waiter, Blocker(program.pid, program.at["holder"], MUTEX, True))
        live.tick(0.5)
        check_owner(live, waiter, Blocker(program.pid, program.at["holder"], MUTEX, True))


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
        check_owner(live, waiter, Blocker(honest.pid, honest.at["holder"], MUTEX, True))
        never_found(live, *(ThreadKey(one.pid, one.at["waiter"]) for one in untrue.values()))


def test_a_mutex_that_names_its_waiter_has_been_locked_twice(live: Watch, forged: Path) -> None:
    with programs.running([forged, "waiter"]) as program:
        waiter = ThreadKey(program.pid, program.at["waiter"])
        check_owner(live, waiter, Blocker(*waiter, MUTEX, True))


@pytest.mark.variant
def test_owner_in_a_container_is_translated_and_believed_if_no_other_can_be_it(live: Watch, mutexes: Path) -> None:
    with in_container(mutexes, "normal") as (waiter, holder), in_container(mutexes, "shared") as (waits_for_shared, _):
        check_owner(live, waiter, Blocker(*holder, MUTEX, True))
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
