"""Test who holds the file lock, the lease or the GIL that a thread waits for."""

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from offtop.model.values.blockers import FILE_LOCK, GIL, Blocker
from offtop.model.values.catalog import ThreadKey
from tests.kernel import programs
from tests.kernel.blockers import child, found, never_found
from tests.kernel.watch import Watch

pytestmark = pytest.mark.kernel

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
PYTHONS = {version: path for version, path in programs.interpreters().items() if version in ("3.13", "3.14")}

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


@pytest.mark.parametrize("python", PYTHONS.values(), ids=PYTHONS)
def test_holder_of_the_gil_is_read_from_the_interpreter(live: Watch, python: Path) -> None:
    with child(python, "-c", GIL_HELD) as process:
        assert process.stdout
        waiter, holder = (int(process.stdout.readline()) for _ in "ab")

        assert found(live, ThreadKey(process.pid, waiter)) == (Blocker(process.pid, holder, GIL, True),)


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
