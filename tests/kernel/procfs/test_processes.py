"""Test details of real processes: prompt, unaltered, and never of another process."""

import os
import pwd
import subprocess
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from offtop.kernel.procfs import processes
from offtop.kernel.procfs.processes import DetailsWorker, Reading, cgroup_of, program_name, reading
from offtop.model.values.catalog import UNKNOWN, Catalog, Details
from tests.kernel import watch
from tests.kernel.programs import build, running, until
from tests.kernel.reads import READS
from tests.kernel.watch import MS

WAITS = ("sh", "-c", "read line")
SECONDS = 30.0
NOBODY = 1 << 30
"""Higher than any PID."""
HEADLESS = r"""
#include <pthread.h>
static void *other(void *unused) { for (;;) pause(); return unused; }
int main(void) { pthread_t thread; pthread_create(&thread, 0, other, 0); next(); pthread_exit(0); }
"""
"""A program whose main thread exits when it is let go on."""
LAST_PID = Path("/proc/sys/kernel/ns_last_pid")


@pytest.fixture
def catalog() -> Catalog:
    return Catalog()


@pytest.fixture
def reads() -> list[int]:
    """Return the list that collects the PIDs the worker has read, in order."""
    return []


@pytest.fixture
def worker(catalog: Catalog, reads: list[int]) -> Generator[DetailsWorker]:
    def read(pid: int) -> Reading | None:
        reads.append(pid)
        return reading(READS, pid)

    made = DetailsWorker(catalog, read=read)
    yield made
    made.close()


@contextmanager
def child(command: Sequence[str] = WAITS, user: int | None = None) -> Generator[subprocess.Popen[bytes]]:
    """Run a process that waits for its standard input; kill it at the end."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, user=user)
    assert process.stdin
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)
        process.stdin.close()


@contextmanager
def child_with_pid(pid: int, command: Sequence[str]) -> Generator[None]:
    """Run a child under a given free PID."""
    last = LAST_PID.read_text()
    for _ in range(100):
        LAST_PID.write_text(str(pid - 1))
        with child(command) as one:
            LAST_PID.write_text(last)  # otherwise others would get just-used PIDs too
            if one.pid == pid:
                yield
                return
    pytest.fail("others were faster each time")


def details_of(worker: DetailsWorker, catalog: Catalog, pid: int) -> Details:
    """Return the details of `pid` once they are known."""
    worker.describe([pid])
    until(lambda: pid in catalog.details)
    return catalog.details[pid]


def read_again(worker: DetailsWorker, reads: list[int], pid: int) -> None:
    """Return once `pid` has been read again and the result published."""
    times = reads.count(pid)
    worker.describe([pid])
    until(lambda: reads.count(pid) > times)
    worker.describe([NOBODY])
    until(lambda: reads[-1] == NOBODY)


def test_our_own_process_has_correct_details(worker: DetailsWorker, catalog: Catalog) -> None:
    us = details_of(worker, catalog, os.getpid())
    assert us.user == pwd.getpwuid(os.geteuid()).pw_name
    assert us.uid == os.geteuid()
    assert us.cmdline == " ".join(
        os.fsdecode(word) for word in Path("/proc/self/cmdline").read_bytes().split(b"\0")[:-1]
    )
    assert us.cgroup == cgroup_of(Path("/proc/self/cgroup").read_bytes())
    assert us.cgroup.startswith("/")


def test_arguments_are_kept_raw(worker: DetailsWorker, catalog: Catalog) -> None:
    with child((*WAITS, "\x1b[2J", "two  blanks", os.fsdecode(b"\xff"))) as one:
        assert details_of(worker, catalog, one.pid).cmdline == "sh -c read line \x1b[2J two  blanks \udcff"


def test_long_arguments_are_truncated_with_an_ellipsis(worker: DetailsWorker, catalog: Catalog) -> None:
    fitting = 4096 - len("sh -c read line ")
    with child((*WAITS, fitting * "x")) as whole, child((*WAITS, 100_000 * "x")) as cut:
        assert details_of(worker, catalog, whole.pid).cmdline == f"sh -c read line {fitting * 'x'}"
        assert details_of(worker, catalog, cut.pid).cmdline == f"sh -c read line {fitting * 'x'}…"


@pytest.mark.kernel
def test_the_owner_is_the_effective_user_or_its_number(worker: DetailsWorker, catalog: Catalog) -> None:
    with child(user=65534) as nobody, child(user=54321) as number:
        assert details_of(worker, catalog, nobody.pid)[0::3] == (pwd.getpwuid(65534).pw_name, 65534)
        assert details_of(worker, catalog, number.pid)[0::3] == ("54321", 54321)


@pytest.mark.kernel
def test_the_effective_user_is_reported_not_the_real_one(tmp_path: Path) -> None:
    acting = build(tmp_path / "app", "int main(void) { if (seteuid(65534)) return 1; next(); }")
    with running([acting]) as app:
        found = reading(READS, app.pid)
        assert found is not None
        assert found.details.uid == 65534


def test_a_process_that_exits_while_being_read_has_no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    with child() as one:

        def exits_meanwhile(*_: object) -> str:
            one.kill()
            one.wait(10)
            return "/"

        monkeypatch.setattr(processes, "cgroup_of", exits_meanwhile)
        assert reading(READS, one.pid) is None


@pytest.mark.kernel
def test_a_kernel_thread_has_no_arguments(worker: DetailsWorker, catalog: Catalog) -> None:
    assert details_of(worker, catalog, 2) == Details("root", "", "/", 0)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_cpus_are_listed_if_a_process_may_not_use_all() -> None:
    every = os.sched_getaffinity(0)
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            of_all = reading(READS, child.pid)
            os.sched_setaffinity(child.pid, {min(every)})
            of_one = reading(READS, child.pid)
        finally:
            child.kill()
    assert of_all
    assert of_one
    assert (of_all.details.cpus, of_one.details.cpus) == ("", str(min(every)))


def test_name_that_a_runtime_gives_to_each_main_thread_is_no_name_of_a_program() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            assert program_name(child.pid, "MainThread") == Path(f"/proc/{child.pid}/exe").resolve().name
            assert program_name(child.pid, "worker") == "worker"
        finally:
            child.kill()
    assert program_name(child.pid, "MainThread") == "MainThread", "it has exited"


@pytest.mark.kernel
def test_real_time_priority_is_the_one_of_the_main_thread() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            normal = reading(READS, child.pid)
            os.sched_setscheduler(child.pid, os.SCHED_FIFO, os.sched_param(7))
            first = reading(READS, child.pid)
        finally:
            child.kill()
    assert normal
    assert first
    assert (normal.details.realtime, first.details.realtime) == (0, 7)


@pytest.mark.parametrize(
    ("content", "cgroup"),
    [
        (b"", ""),
        (b"0::/system.slice/mysql.service\n", "/system.slice/mysql.service"),
        (b"12:cpu,cpuacct:/docker/1\n3:memory:/docker/2\n", "/docker/1"),
        (b"12:pids:/a\n1:name=systemd:/b\n0::/c\n", "/c"),
        (b"0::/with:colons (deleted)\n", "/with:colons (deleted)"),
    ],
)
def test_the_version_2_cgroup_is_preferred(content: bytes, cgroup: str) -> None:
    assert cgroup_of(content) == cgroup


def test_a_process_that_does_not_exist_has_no_details(worker: DetailsWorker, catalog: Catalog) -> None:
    with child() as one:
        pass
    worker.describe([one.pid, 0, -1, NOBODY])
    details_of(worker, catalog, os.getpid())  # requested after them
    assert [*catalog.details] == [os.getpid()]
    assert reading(READS, one.pid) is None


def test_nothing_is_read_without_a_request(catalog: Catalog) -> None:
    read: list[int] = []
    worker = DetailsWorker(catalog, read=lambda pid: read.append(pid))
    before = {*threading.enumerate()}  # some of them may still exit
    worker.describe([])
    worker.note_alive(1)
    worker.note_exited(1)
    worker.drop_unnamed()
    assert not {*threading.enumerate()} - before
    worker.close()
    worker.close()
    worker.describe([1])
    assert not {*threading.enumerate()} - before
    assert (read, catalog.details) == ([], {})


def test_a_zombie_counts_as_exited() -> None:
    with child() as one:
        assert reading(READS, one.pid) is not None
        one.kill()
        os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)
        assert Path(f"/proc/{one.pid}").exists()
        assert reading(READS, one.pid) is None


def test_a_process_keeps_its_arguments_after_its_main_thread_exits(
    worker: DetailsWorker, catalog: Catalog, reads: list[int], tmp_path: Path
) -> None:
    with running([build(tmp_path / "app", HEADLESS, "-pthread"), "mark"]) as app:
        before = details_of(worker, catalog, app.pid)
        assert before.cmdline == f"{tmp_path}/app mark"
        app.go_on_alone()
        until(lambda: Path(f"/proc/{app.pid}/cmdline").read_bytes() == b"")
        headless = reading(READS, app.pid)
        assert headless is not None
        assert headless.details == before._replace(cmdline="")
        worker.note_exited(app.pid)
        read_again(worker, reads, app.pid)
        assert catalog.details[app.pid] == before
        worker.note_alive(app.pid)  # its main thread does not come back
        assert catalog.details == {}


def test_details_stay_until_the_name_is_dropped(worker: DetailsWorker, catalog: Catalog, reads: list[int]) -> None:
    with child() as one:
        catalog.processes[one.pid] = "sh"
        first = details_of(worker, catalog, one.pid)
    worker.note_exited(one.pid)
    worker.drop_unnamed()
    read_again(worker, reads, one.pid)
    worker.drop_unnamed()
    assert catalog.details == {one.pid: first}
    del catalog.processes[one.pid]
    worker.drop_unnamed()
    assert catalog.details == {}


def test_a_missed_exit_is_found_by_reading_again(
    worker: DetailsWorker, catalog: Catalog, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_OLD_S", 0.0)
    with child() as one:
        details_of(worker, catalog, one.pid)
        worker.drop_unnamed()
        assert one.pid in catalog.details
    read_again(worker, reads, one.pid)
    assert one.pid in catalog.details
    worker.drop_unnamed()
    assert one.pid not in catalog.details


def test_a_reused_pid_does_not_show_the_old_process(catalog: Catalog) -> None:
    """The kernel is simulated, because PIDs are not reused on demand."""
    began, user = [b"100"], ["first"]
    worker = DetailsWorker(catalog, read=lambda _: Reading(began[0], Details(user[0])))
    assert details_of(worker, catalog, 7).user == "first"
    worker.note_alive(7)  # it is still alive
    assert catalog.details[7].user == "first"
    worker.note_exited(7)
    assert catalog.details[7].user == "first"
    worker.note_alive(7)
    assert 7 not in catalog.details

    began[0], user[0] = b"200", "second"
    assert details_of(worker, catalog, 7).user == "second"
    worker.note_alive(7)
    worker.note_exited(7)
    began[0], user[0] = b"300", "third"
    worker.describe([7])
    until(lambda: catalog.details[7].user == "third")
    worker.note_alive(7)  # no longer an exited one
    assert catalog.details[7].user == "third"
    worker.close()


def test_a_reading_in_progress_is_dropped_if_its_pid_is_reused(catalog: Catalog) -> None:
    at, released = threading.Semaphore(0), threading.Semaphore(0)
    answers = iter([Reading(b"100", Details("first")), Reading(b"200", Details("second"))])

    def slowly(_: int) -> Reading:
        answer = next(answers)
        at.release()
        released.acquire()
        return answer

    worker = DetailsWorker(catalog, read=slowly)
    worker.describe([7])
    at.acquire()
    worker.note_exited(7)
    worker.note_alive(7)
    released.release()
    until(lambda: worker.describe([7]) is None and at.acquire(blocking=False))
    assert catalog.details == {}
    released.release()
    until(lambda: 7 in catalog.details)
    assert catalog.details[7].user == "second"
    worker.close()


@pytest.mark.kernel
def test_a_reused_pid_on_a_real_kernel(worker: DetailsWorker, catalog: Catalog) -> None:
    with child((*WAITS, "first")) as one:
        assert details_of(worker, catalog, one.pid).cmdline.endswith("first")
    worker.note_exited(one.pid)
    with child_with_pid(one.pid, (*WAITS, "second")):
        worker.describe([one.pid])
        until(lambda: catalog.details[one.pid].cmdline.endswith("second"))


def test_exec_shows_after_reading_again(
    worker: DetailsWorker, catalog: Catalog, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with child(("sh", "-c", "read line; exec sleep 1000")) as one:
        assert one.stdin
        assert details_of(worker, catalog, one.pid).cmdline == "sh -c read line; exec sleep 1000"
        one.stdin.write(b"\n")
        one.stdin.flush()
        until(lambda: Path(f"/proc/{one.pid}/cmdline").read_bytes() == b"sleep\x001000\0")
        worker.describe([one.pid])
        details_of(worker, catalog, os.getpid())
        assert catalog.details[one.pid].cmdline.startswith("sh")  # it has just been read
        monkeypatch.setattr(processes, "_OLD_S", 0.0)
        read_again(worker, reads, one.pid)
        assert catalog.details[one.pid].cmdline == "sleep 1000"


def test_a_process_that_never_answers_blocks_nothing(catalog: Catalog) -> None:
    stuck, released = threading.Event(), threading.Event()

    def never(_: int) -> None:
        stuck.set()
        released.wait(SECONDS)

    worker = DetailsWorker(catalog, read=never)
    worker.describe([1])
    assert stuck.wait(SECONDS)
    worker.describe([1, 2])
    worker.note_exited(1)
    worker.note_alive(1)
    worker.drop_unnamed()
    worker.close()
    assert not released.is_set()
    released.set()
    until(lambda: not any(thread.name == "offtop-details" for thread in threading.enumerate()))
    assert catalog.details == {}


def test_the_queue_and_the_details_are_bounded(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_REST_S", 0.0)
    monkeypatch.setattr(processes, "_MOST_QUEUED", 30)
    monkeypatch.setattr(processes, "_MOST_KNOWN", 10)
    first, released = threading.Event(), threading.Event()
    read: list[int] = []

    def count(pid: int) -> Reading:
        read.append(pid)
        first.set()
        assert released.wait(SECONDS)
        return Reading(b"1", Details(str(pid)))

    worker = DetailsWorker(catalog, read=count)
    worker.describe([1])
    assert first.wait(SECONDS)
    worker.describe(range(2, 1000))
    released.set()
    until(lambda: 31 in catalog.details)
    worker.describe([2000])
    until(lambda: 2000 in catalog.details)
    assert read == [*range(1, 32), 2000]
    assert [*catalog.details] == [*range(23, 32), 2000]
    worker.close()


def test_the_worker_pauses_after_some_readings(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_REST_S", SECONDS)
    worker = DetailsWorker(catalog, read=lambda pid: Reading(b"1", Details(str(pid))))
    worker.describe(range(1, 100))
    until(lambda: 20 in catalog.details)
    worker.close()
    until(lambda: not any(thread.name == "offtop-details" for thread in threading.enumerate()))
    assert [*catalog.details] == [*range(1, 21)]


def test_missing_details_are_unknown() -> None:
    assert Catalog().detail(1) is UNKNOWN
    assert UNKNOWN == ("", "", "", -1, "", 0)


@pytest.mark.variant
@pytest.mark.kernel
def test_a_live_source_keeps_details_as_long_as_a_window_can_name_them() -> None:
    with watch.watching(keep_ns=200 * MS) as live:
        catalog = live.last.catalog
        with child((*WAITS, "mark")) as one:
            live.tick()
            live.source.describe([one.pid])
            until(lambda: one.pid in catalog.details)
            live.tick()
            live.tick()
            assert catalog.details[one.pid].cmdline == "sh -c read line mark"
        live.tick()
        assert catalog.details[one.pid].cmdline == "sh -c read line mark"
        assert catalog.processes[one.pid] == "sh"

        def is_dropped() -> bool:
            live.tick(after_s=0.05)
            return one.pid not in catalog.processes

        until(is_dropped)
        assert one.pid not in catalog.details


@pytest.mark.variant
@pytest.mark.kernel
def test_a_live_source_does_not_mix_up_processes_of_one_pid() -> None:
    with watch.watching() as live:
        catalog = live.last.catalog
        with child() as one:
            live.tick()
            live.source.describe([one.pid])
            until(lambda: one.pid in catalog.details)
        live.tick()
        assert one.pid in catalog.details
        with child_with_pid(one.pid, WAITS):
            live.tick(after_s=0.05)
            live.tick()
            assert one.pid not in catalog.details
