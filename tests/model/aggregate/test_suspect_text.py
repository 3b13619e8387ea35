"""A suspect's sentence names program, reason and holder, and says where it is only likely."""

import pytest

from offtop.model.aggregate.suspect_text import SuspectTexts, cgroup_of_file, of_several
from offtop.model.classify.suspect import HOLDER, Hop, Suspect
from offtop.model.values.blockers import (
    ANSWER,
    CHILD,
    CPU_QUOTA,
    DISK,
    ELSEWHERE,
    FILE_LOCK,
    FROZEN_BY,
    GIL,
    KERNEL_LOCK,
    MEMORY_LIMIT,
    MUTEX,
    PIPE,
    SOCKET,
    STOPPED_BY,
    UPSTREAM,
    WAKER,
    Blocker,
    limit_text,
    quota_text,
)
from offtop.model.values.catalog import Details, ThreadKey
from offtop.model.values.disks import DeviceTotals, DiskActivity, DiskKey, DiskTotals
from offtop.model.values.peers import READER, Peers, PeerSide, Process
from offtop.model.values.snapshot import Holder, ThreadTotals
from offtop.model.values.table import SITES, SiteKeys, integers
from offtop.model.values.wake import NO_WAKE, Object
from offtop.units import NS_PER_S
from tests.model.machine import Machine, OwnNames

_ROW_LOCK = ("lib:epoll_wait", "WaitEventSetWait", "ProcSleep")
_MUTEX = ("lib:__lll_lock_wait", "lib:pthread_mutex_lock", "work")


def texts_of(machine: Machine) -> SuspectTexts:
    return SuspectTexts(machine.catalog, OwnNames(), machine.causes)


def sentences(machine: Machine, ticks: int = 1) -> list[tuple[str, str]]:
    made = [texts_of(machine).sentence(one) for one in machine.found(ticks).suspects]
    return [(one.says, one.next) for one in made]


@pytest.mark.parametrize(
    ("state", "does", "then"),
    [
        ("poll", "idle in transaction", "select pid, pg_blocking_pids(pid)"),
        ("stopped", "idle in transaction and stopped", "what stopped it; to continue it: kill -CONT 30499"),
    ],
)
def test_idle_transaction_is_likely_the_holder_and_the_clients_are_counted(state: str, does: str, then: str) -> None:
    machine = Machine()
    for number in range(12):
        session = machine.waits("postgres", 100 + number, "poll", 34, *_ROW_LOCK)
        machine.titles[session.pid] = "postgres: main: bench shop [local] UPDATE waiting"
        client = machine.waits("psql", 200 + number, "poll", 34, "lib:poll", "/usr/lib/libpq.so.5!PQgetResult")
        machine.held(client, Blocker(session.pid, 0, SOCKET, True))
    kernel = "do_signal_stop" if state == "stopped" else "ep_poll"
    machine.waits("postgres", 30499, state, 90, "lib:epoll_wait", "WaitEventSetWait", "secure_read", kernel=kernel)
    machine.titles[30499] = "postgres: main: bench shop [local] idle in transaction"
    ((says, look_at),) = sentences(machine)
    assert says == (
        f"12 postgres wait for a row or table lock (34.0s, 12 psql behind), likely held by postgres(30499), {does}"
    )
    assert look_at.startswith(then)


def test_other_programs_that_wait_for_the_same_are_counted() -> None:
    machine = Machine()
    waiters = [*(("flock", pid) for pid in (10, 11, 12)), ("cat", 13), ("tar", 14)]
    for program, pid in waiters:
        what = "other.lock" if program == "tar" else "job.lock"
        machine.held(machine.waits(program, pid, "lock", 9), Blocker(20, 0, FILE_LOCK, True, what))
    machine.waits("sleep", 20, "sleep", 30)
    ((says, _),) = sentences(machine)
    assert says == "3 flock and 1 other program wait for job.lock (9.00s), held by sleep(20), which sleeps"


@pytest.mark.parametrize(("program", "behind"), [("stat", "5 stat behind"), ("ls", "5 threads behind")])
def test_all_that_wait_behind_the_first_are_counted(program: str, behind: str) -> None:
    machine = Machine()
    first, server = machine.waits("stat", 10, "other", 8), machine.waits("fuse", 20, "lock", 8.7)
    for pid in (11, 12, 13, 14):
        machine.held(machine.waits(program, pid, "kernel-lock", 8), Blocker(10, 10, KERNEL_LOCK, True))
    machine.held(first, Blocker(20, 0, ANSWER, True))
    machine.held(server, Blocker(30, 0, FILE_LOCK, True, "flk"))
    machine.waits("sleep", 30, "sleep", 30)
    ((says, _),) = sentences(machine)
    assert says == f"fuse(20) waits for flk (8.70s, {behind}), held by sleep(30), which sleeps"


def test_programs_that_wait_for_something_else_are_not_counted() -> None:
    machine = Machine()
    for pid in (10, 11, 12):
        machine.waits("ls", pid, "kernel-lock", 9, holder=Holder(20, 20, "cp"), kernel="down_read")
    machine.waits("ps", 13, "kernel-lock", 9, holder=Holder(20, 20, "cp"), kernel="down_write")
    for program, pid, kernel in (*(("yes", pid, "pipe_write") for pid in (30, 31, 32, 33)), ("cat", 34, "pipe_read")):
        machine.held(machine.waits(program, pid, "pipe", 9, kernel=kernel), Blocker(40, 0, PIPE, True))
    machine.waits("cp", 20, "disk-read", 9)
    machine.waits("sleep", 40, "sleep", 9)
    found = [says.partition(" wait")[0] for says, _ in sentences(machine)]
    assert sorted(found) == ["3 ls", "4 yes"]


@pytest.mark.parametrize(("lasted_s", "age"), [(13, "900ms, seen for 13.0s"), (4, "900ms"), (0, "900ms")])
def test_waits_in_slices_are_seen_for_longer_than_each_lasts(lasted_s: int, age: str) -> None:
    machine = Machine()
    for tid in (11, 12, 13):
        machine.waits("mariadbd", 10, "lock", 0.9, *_MUTEX, tid=tid)
    (one,) = machine.found(3).suspects
    sentence = texts_of(machine).sentence(one._replace(lasted_ns=lasted_s * 1_000_000_000))
    assert sentence.says == f"3 threads of mariadbd wait for a mutex ({age})"


@pytest.mark.parametrize("is_exact", [True, False])
def test_disk_is_named(is_exact: bool) -> None:
    machine = Machine()
    for pid in (10, 11):
        machine.held(machine.waits("tar", pid, "disk-read", 9), Blocker(ELSEWHERE, 0, DISK, is_exact, "sda"))
    likely = "" if is_exact else "likely "
    assert sentences(machine) == [
        (
            f"2 tar wait for the disk to read (9.00s), {likely}on sda",
            "the disk's latency and queue, and what reads so much (key 8)",
        )
    ]
    assert [one.name.text for one in machine.found().suspects] == ["tar (disk-read) behind sda"]


def test_program_with_most_requests_is_named_before_the_disk() -> None:
    totals = DiskTotals(outstanding_ns=1)
    every = {8: DeviceTotals(reads=totals)}
    machine = Machine(disks=DiskActivity({DiskKey(8, "read", 20, 20): totals}, every, {8: "sda"}))
    for pid in (10, 11, 20):
        waiter = machine.waits("backup" if pid == 20 else "tar", pid, "disk-read", 9)
        machine.held(waiter, Blocker(ELSEWHERE, 0, DISK, True, "sda"))
    ((says, _),) = sentences(machine)
    assert says == (
        "2 tar wait for the disk to read (9.00s), likely behind backup(20), which waits for the disk to read, on sda"
    )
    (brief,) = (texts_of(machine).sentence(one).brief for one in machine.found().suspects)
    assert brief == "2 tar wait for the disk to read (9.00s), likely in the end for sda"


def test_child_is_what_is_waited_for() -> None:
    hops = (
        Hop(ThreadKey(10, 10), "flock", 1, 1, "lock", None, 9_000_000_000, via=FILE_LOCK, what="job.lock"),
        Hop(ThreadKey(20, 20), "sh", 1, 1, "child", None, 0, via=CHILD),
        Hop(ThreadKey(30, 30), "sleep", 1, 1, "sleep", None, 0),
    )
    assert texts_of(Machine()).sentence(Suspect(HOLDER, hops, 1.0, 1.0)).says == (
        "flock(10) waits for job.lock (9.00s), held by sh(20), which waits for a child process, sleep(30), which sleeps"
    )


def test_file_lock_has_its_name() -> None:
    machine = Machine()
    for pid in (10, 11, 12):
        waiter = machine.waits("flock", pid, "lock", 9, kernel="flock_lock_inode_wait")
        machine.held(waiter, Blocker(31822, 0, FILE_LOCK, True, "job.lock"))
    machine.waits("sleep", 31822, "sleep", 5400, "lib:clock_nanosleep", before=True)
    assert sentences(machine) == [
        (
            "3 flock wait for job.lock (9.00s), held by sleep(31822), which sleeps",
            "who started it: ps -o pid,ppid,lstart,args -p 31822",
        )
    ]


def test_holder_that_sleeps_is_looked_up_by_who_started_it_only_if_it_is_another_process() -> None:
    machine = Machine()
    for tid in (11, 12, 13):
        waiter = machine.waits("svc", 10, "lock", 9, tid=tid)
        machine.held(waiter, Blocker(10, 10, MUTEX, True))
    machine.waits("svc", 10, "sleep", 9, "lib:clock_nanosleep", before=True)
    ((_, then),) = sentences(machine)
    assert then.startswith("why it sleeps")


def test_each_server_on_the_way_is_named() -> None:
    machine = Machine()
    server = machine.waits("nginx", 20, "poll")
    for pid in range(30, 38):
        client = machine.waits("curl", pid, "poll", 12, "lib:poll", "/usr/lib/libcurl.so.4!curl_multi_wait")
        machine.held(client, Blocker(20, 0, SOCKET, True))
    machine.held(server, Blocker(32107, 0, UPSTREAM, False))
    machine.waits("python3", 32107, "sleep", 12, "lib:clock_nanosleep", "PyObject_Vectorcall", "h (up.py:4)")
    ((says, _),) = sentences(machine)
    assert says == (
        "8 curl wait for an HTTP transfer (12.0s) from nginx(20), which waits for an answer, likely from "
        "python3(32107), which sleeps in h (up.py:4)"
    )
    (brief,) = (texts_of(machine).sentence(one).brief for one in machine.found().suspects)
    assert brief == (
        "8 curl wait for an HTTP transfer (12.0s), likely in the end for python3(32107), which sleeps in h (up.py:4)"
    )


def test_server_on_another_machine_is_named_by_its_address() -> None:
    machine = Machine()
    for pid in range(30, 42):
        machine.held(machine.waits("app", pid, "net-recv", 12), Blocker(ELSEWHERE, 0, ANSWER, False, "10.0.0.5:8080"))
    machine.held(machine.waits("app", 50, "net-recv", 9), Blocker(ELSEWHERE, 0, ANSWER, False, "10.0.0.6:80"))
    ((says, then),) = sentences(machine)
    assert says == (
        "12 app wait for an answer over the network (12.0s), likely from 10.0.0.5:8080, "
        "which is on another machine or in a container"
    )
    assert then == "offtop where 10.0.0.5 is"
    assert machine.found().suspects[0].name.what == "", "the address is the end"


def test_single_waiter_and_a_thread_as_holder() -> None:
    machine = Machine()
    waiter = machine.waits("java", 10, "lock", 3, *_MUTEX, tid=11)
    other = machine.waits("java", 10, "lock", 2, *_MUTEX, tid=12)
    for one in (waiter, other):
        machine.held(one, Blocker(10, 20, MUTEX, True))
    machine.waits("java", 10, "fsync", 3, "lib:fdatasync", tid=20)
    machine.catalog.comms[ThreadKey(10, 20)] = "worker-3"
    ((says, then),) = sentences(machine)
    assert says == (
        "2 threads of java wait for a mutex (3.00s), held by worker-3(20), which waits for data to be durable"
    )
    assert then.startswith("the latency of the disk") or then


def test_sentence_says_what_the_holder_does_in_every_state() -> None:
    for category, does in (
        ("stopped", "is frozen"),
        ("run-queue", "wants a CPU"),
        ("disk-read", "waits for the disk"),
    ):
        machine = Machine()
        machine.waits("ls", 10, "kernel-lock", 3, holder=Holder(20, 20, "cp"))
        machine.waits("cp", 20, category, 3)
        ((says, _),) = sentences(machine)
        assert says.startswith(f"ls(10) waits for a lock inside the kernel (3.00s), held by cp(20), which {does}"), says
    machine = Machine()
    machine.held(machine.waits("ls", 10, "kernel-lock", 3), Blocker(20, 0, KERNEL_LOCK, False))
    machine.runs("cp", 20)
    ((says, _),) = sentences(machine)
    assert says.endswith("likely held by cp(20), which runs")


V2, V1 = "/sys/fs/cgroup/unified/a/b/cgroup.freeze", "/sys/fs/cgroup/freezer/it's/freezer.state"


@pytest.mark.parametrize(
    ("kernel", "file", "does", "then"),
    [
        ("do_signal_stop", "", "is stopped by a signal", "what stopped it; to continue it: kill -CONT 20"),
        ("ptrace_stop", "", "is stopped by a debugger", "its debugger: grep TracerPid /proc/20/status"),
        ("get_signal", V2, "is frozen by its cgroup /a/b", f"what froze it; to thaw it: echo 0 > {V2}"),
        (
            "unix_stream_read_generic",
            V1,
            "is frozen by its cgroup /it's",
            "what froze it; to thaw it: echo THAWED > '/sys/fs/cgroup/freezer/it'\"'\"'s/freezer.state'",
        ),
        (
            "get_signal",
            "",
            "is frozen",
            "what froze it: cgroup.freeze or freezer.state of the cgroups in /proc/20/cgroup and above",
        ),
    ],
)
def test_stopped_process_is_named_once_with_what_lets_it_go_on(kernel: str, file: str, does: str, then: str) -> None:
    machine = Machine()
    for pid in (10, 11):
        client = machine.waits("logger", pid, "pipe", 3, "lib:send", kernel="unix_wait_for_peer")
        machine.held(client, Blocker(20, 0, SOCKET, True))
    for tid in (20, 21, 22):
        held = machine.waits("journald", 20, "stopped", 4, tid=tid, kernel=kernel)
        if file:
            machine.held(held, Blocker(ELSEWHERE, 0, FROZEN_BY, True, file))
    assert sentences(machine, 3) == [
        (f"2 logger wait for room in a local socket (3.00s) to journald(20), which {does}", then)
    ]


def test_holder_that_sleeps_in_java_sleeps() -> None:
    machine = Machine()
    machine.held(
        machine.waits("flock", 10, "lock", 30, kernel="flock_lock_inode_wait"), Blocker(20, 0, FILE_LOCK, True)
    )
    machine.waits("java", 20, "lock", 30, "os::PlatformEvent::park", "JavaThread::sleep", "JVM_Sleep")
    ((says, _),) = sentences(machine)
    assert says == "flock(10) waits for a file lock (30.0s), held by java(20), which sleeps"


def test_hint_names_the_process_that_waits() -> None:
    machine = Machine()
    for tid in (11, 12):
        machine.waits("java", 10, "lock", 30, "Parker::park", "ObjectMonitor::enter", tid=tid)
    ((says, then),) = sentences(machine)
    assert says == "2 threads of java wait for a Java monitor (30.0s)"
    assert then == "jstack 10: shows the thread as BLOCKED, and the owner of the monitor"


def test_debugger_is_named_with_the_process_that_it_has_stopped() -> None:
    hops = (
        Hop(ThreadKey(10, 10), "logger", 2, 2, "pipe", None, 9_000_000_000, via=SOCKET),
        Hop(ThreadKey(20, 20), "journald", 3, 1, "stopped", None, 9_000_000_000, via=STOPPED_BY),
        Hop(ThreadKey(30, 30), "gdb", 1, 1, "tty", None, 0),
    )
    sentence = texts_of(Machine()).sentence(Suspect(HOLDER, hops, 1.0, 1.0))
    assert sentence.says == (
        "2 logger wait for a process on this machine (9.00s) from journald(20), stopped by gdb(30), "
        "which waits for its terminal"
    )
    assert sentence.next == "continue it in gdb(30), or detach"


@pytest.mark.parametrize(
    ("file", "group"),
    [
        ("/sys/fs/cgroup/system.slice/cgroup.freeze", "/system.slice"),
        ("/sys/fs/cgroup/unified/a/cgroup.freeze", "/a"),
        ("/sys/fs/cgroup/cpu,freezer/a/b/freezer.state", "/a/b"),
        ("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "/a"),
        ("/sys/fs/cgroup/memory-hog/b/memory.max", "/memory-hog/b"),
        ("/mnt/groups/a/cgroup.freeze", "/mnt/groups/a"),
    ],
)
def test_cgroup_of_a_file_has_its_path_in_the_hierarchy(file: str, group: str) -> None:
    assert cgroup_of_file(file) == group


def test_deadlock_names_all_threads_and_locks() -> None:
    machine = Machine()
    for pid, other, lock in ((10, 11, "y.lock"), (11, 10, "x.lock")):
        waiter = machine.waits("python3", pid, "lock", 30, kernel="flock_lock_inode_wait")
        machine.held(waiter, Blocker(other, 0, FILE_LOCK, True, lock))
    ((says, then),) = sentences(machine)
    assert says == "python3(10) and python3(11) wait for each other: a deadlock for 30.0s (locks y.lock, x.lock)"
    assert then.startswith("in which order they take their locks")


def test_sentence_names_the_program_that_has_the_cpu_and_the_cgroup_of_a_quota() -> None:
    machine = Machine()
    for pid in range(10, 14):
        machine.runs("python3", pid, 0.1, ready=0.8)
    machine.runs("yes", 20, 1.0)
    ((says, then),) = sentences(machine, 3)
    assert says == "4 python3 wait for a CPU (3.20 threads on average), likely taken by yes(20), which runs"
    assert then == "the priority (nice) of yes, or a CPU quota for it"
    machine.runs("sh", 15, 0.1, ready=0.5)
    machine.runs("cron", 16, 0.0, ready=0.00001)
    machine.runs("yes", 21, 0.6)
    ((says, then),) = sentences(machine, 3)
    assert says.startswith(
        "4 python3 and 1 other program wait for a CPU (3.70 threads on average), likely taken by 2 yes"
    )
    assert then == "the priority (nice) of yes(20), which runs most, or a CPU quota for it"
    machine = Machine()
    machine.throttled("svc", 30, 0.54)
    machine.catalog.details[30] = Details(cgroup="/system.slice/svc")
    ((says, then),) = sentences(machine, 3)
    assert says == "svc(30) waits for the CPU quota of /system.slice/svc, 54% of the time"
    assert "quota" in then
    machine.throttled("svc", 30, 1.36)
    ((says, _),) = sentences(machine, 3)
    assert says == "svc(30) waits for the CPU quota of /system.slice/svc, 1.4 threads on average"


@pytest.mark.parametrize(
    ("hog", "is_accused"), [("0-1", True), ("1", False), ("2-3,1", False), ("", True), ("no list", True)]
)
def test_program_is_not_accused_of_taking_cpus_that_the_others_may_not_use(hog: str, is_accused: bool) -> None:
    machine = Machine()
    for pid in range(10, 14):
        machine.runs("python3", pid, 0.1, ready=0.8)
        machine.catalog.details[pid] = Details(cpus="0")
    machine.runs("yes", 20, 1.0)
    machine.catalog.details[20] = Details(cpus=hog)
    assert bool(sentences(machine, 3)) == is_accused
    assert machine.found().rivals == {10, 11, 12, 13, 20}, "of these the CPUs must be known"


def test_hint_does_not_advise_to_renice_a_real_time_program() -> None:
    machine = Machine()
    for pid in range(10, 14):
        machine.runs("sh", pid, 0.1, ready=0.8)
    machine.runs("poller", 20, 1.0)
    machine.catalog.details[20] = Details(realtime=50)
    ((says, then),) = sentences(machine, 3)
    assert says.endswith("likely taken by poller(20), which runs")
    assert then == "the real-time priority of poller (50), which runs before all normal programs: chrt -p 20"


@pytest.mark.parametrize(("cpus", "is_accused"), [("0", False), ("0-1", True), ("", True)])
def test_program_that_fills_the_cpus_it_may_use_waits_for_itself(cpus: str, is_accused: bool) -> None:
    """Six processes run for 0.96 of a CPU in all; another one runs on the other CPU."""
    machine = Machine()
    for pid in range(10, 16):
        machine.runs("python3", pid, 0.16, ready=0.4)
        machine.catalog.details[pid] = Details(cpus=cpus)
    machine.runs("yes", 20, 1.0)
    assert bool(sentences(machine, 3)) == is_accused


def test_workers_that_are_bound_to_a_cpu_each_do_not_fill_the_cpu_of_one() -> None:
    """Each of six runs for 0.16 of its CPU, whose rest another program takes."""
    machine = Machine()
    for number in range(6):
        machine.runs("nginx", 10 + number, 0.16, ready=0.84)
        machine.catalog.details[10 + number] = Details(cpus=str(number))
    for number in range(6):
        machine.runs("yes", 20 + number, 0.84)
    assert sentences(machine, 3)[0][0].endswith("taken by 6 yes, which run")


@pytest.mark.parametrize(
    ("what", "size"), [("/system.slice/svc", ""), (quota_text(0.2, "/system.slice/svc"), " (20% of a CPU)")]
)
def test_quota_on_a_kernel_where_it_looks_like_the_run_queue_is_likely(what: str, size: str) -> None:
    machine = Machine()
    for pid in (30, 31):
        machine.runs("svc", pid, 0.1, ready=0.8)
        machine.catalog.details[pid] = Details(cgroup="/system.slice/svc")
        machine.held(ThreadKey(pid, 0), Blocker(pid, 0, CPU_QUOTA, False, what))
    machine.runs("yes", 20, 1.0)
    ((says, _),) = sentences(machine, 3)
    assert says == f"2 svc likely wait for the CPU quota of /system.slice/svc{size}, 80% of the time"


@pytest.mark.parametrize(
    ("cpus", "cgroup", "quota"),
    [
        (0.2, "/app", "/app (20% of a CPU)"),
        (1.0, "/app", "/app (1 CPU)"),
        (2.5, "/kubepods.slice/kubepods-burstable.slice/a b.scope", ".../a b.scope (2.5 CPUs)"),
    ],
)
def test_quota_is_named_by_its_size_and_cgroup_which_is_no_name_of_the_suspect(
    cpus: float, cgroup: str, quota: str
) -> None:
    machine = Machine()
    for pid in (30, 31, 32):
        machine.throttled("svc", pid, 0.9)
        machine.held(ThreadKey(pid, 0), Blocker(pid, 0, CPU_QUOTA, True, quota_text(cpus, cgroup)))
    ((says, _),) = sentences(machine, 3)
    assert says == f"3 svc wait for the CPU quota of {quota}, 90% of the time"
    (one,) = machine.found(3).suspects
    assert (one.end.what, one.end.quota_cpus, one.name.what) == (cgroup, cpus, "")
    assert of_several(texts_of(machine).does(one.end)) == f"wait for the CPU quota of {quota}"


def test_memory_limit_is_named_by_its_file_size_and_cgroup() -> None:
    machine = Machine()
    file = "/sys/fs/cgroup/a b/memory.high"
    for pid in (30, 31, 32):
        waiter = machine.waits("svc", pid, "reclaim", 2, kernel="mem_cgroup_handle_over_high")
        machine.held(waiter, Blocker(ELSEWHERE, 0, MEMORY_LIMIT, True, limit_text(20 << 20, file)))
    ((says, then),) = sentences(machine, 3)
    assert says == "3 svc wait for memory of /a b, at memory.high of 20MB (2.00s)"
    assert then == "what uses that memory (memory.stat), or the limit: '/sys/fs/cgroup/a b/memory.high'"
    (one,) = machine.found(3).suspects
    assert (one.end.limited_by, one.end.limit_bytes, one.name.what) == (file, 20 << 20, "")


def test_holder_of_a_lock_that_waits_for_its_quota_has_the_quota() -> None:
    machine = Machine()
    for pid in (10, 11):
        machine.held(machine.waits("flock", pid, "lock", 5), Blocker(20, 0, FILE_LOCK, True, "job.lock"))
    machine.waits("svc", 20, "throttle", 1)
    machine.held(ThreadKey(20, 0), Blocker(20, 0, CPU_QUOTA, True, quota_text(0.2, "/app")))
    (one,) = machine.found().suspects
    assert texts_of(machine).sentence(one).says == (
        "2 flock wait for job.lock (5.00s), held by svc(20), which waits for the CPU quota of /app (20% of a CPU)"
    )
    assert one.name.what == "job.lock"


@pytest.mark.parametrize(
    ("functions", "does"), [(("lib:epoll_wait", "loop"), "looks idle"), ((), "waits in unknown functions")]
)
def test_server_in_poll_looks_idle_only_as_far_as_its_functions_are_known(
    functions: tuple[str, ...], does: str
) -> None:
    machine = Machine()
    machine.waits("server", 20, "poll", 50, *functions)
    for pid in range(30, 38):
        machine.held(machine.waits("app", pid, "net-recv", 5), Blocker(20, 0, ANSWER, True))
    machine.waits("server", 20, "poll", 50, *functions, tid=21)
    assert sentences(machine)[0][0].endswith(f"from server(20), which {does}")


@pytest.mark.parametrize(("polls_ms", "does"), [(90, "sleeps"), (200, "looks idle")])
def test_server_that_sleeps_in_its_handlers_at_an_even_pace_sleeps(polls_ms: int, does: str) -> None:
    """Its waits in progress are too young to be followed."""
    machine = Machine()
    for pid in range(30, 38):
        machine.held(machine.waits("app", pid, "net-recv", 5), Blocker(20, 0, ANSWER, True))
    machine.named("server", 20)
    machine.ended(ThreadKey(20, 20), "sleep", NO_WAKE, 3, "lib:nanosleep", "handle", ms=300)
    (site,) = machine.sites
    machine.ended(ThreadKey(20, 20), "poll", NO_WAKE, 1, "lib:epoll_wait", "uv_run", ms=polls_ms)
    machine.at_even_pace = SiteKeys(integers([site], SITES.width))
    assert sentences(machine)[0][0].endswith(f"from server(20), which {does}")


@pytest.mark.parametrize(("short_ms", "does"), [(90, "sleeps"), (900, "looks idle")])
def test_server_with_short_waits_besides_its_sleeps_does_not_only_sleep(short_ms: int, does: str) -> None:
    """A thread of it sleeps; what the others do in waits below the minimum is unknown."""
    machine = Machine()
    for pid in range(30, 38):
        machine.held(machine.waits("app", pid, "net-recv", 5), Blocker(20, 0, ANSWER, True))
    machine.named("server", 20)
    machine.ended(ThreadKey(20, 20), "sleep", NO_WAKE, 3, "lib:nanosleep", "tick", ms=300)
    machine.at_even_pace = SiteKeys(integers([*machine.sites], SITES.width))
    ns = short_ms * NS_PER_S // 1000
    machine.ran[ThreadKey(20, 21)] = ThreadTotals(100, ns, short_waits=100, short_ns=ns)
    assert sentences(machine)[0][0].endswith(f"from server(20), which {does}")


def test_culprit_that_is_not_measured_is_named_with_what_shows_it() -> None:
    machine = Machine()
    machine.catalog.processes[20] = "tar"
    machine.held(machine.waits("flock", 10, "lock", 5), Blocker(20, 0, FILE_LOCK, True, "job.lock"))
    assert sentences(machine) == [
        (
            "flock(10) waits for job.lock (5.00s), held by tar(20), which is not measured",
            "ps -o stat,wchan:20,args -p 20: a filter such as -p leaves it out, or it has exited",
        )
    ]


def test_thread_that_ended_most_waits_is_called_likely() -> None:
    machine = Machine()
    for tid in (11, 12, 13):
        machine.held(machine.waits("app", 10, "lock", 3, *_MUTEX, tid=tid), Blocker(10, 20, WAKER, False))
    machine.waits("app", 10, "sleep", 3, "lib:nanosleep", "nap", tid=20)
    assert sentences(machine)[0][0].endswith("likely held by app(20), which sleeps in nap")


def test_number_of_threads_says_that_others_may_wait_for_the_same() -> None:
    machine = Machine()
    for tid in (11, 12, 13):
        machine.waits("app", 10, "lock", 30, *_MUTEX, tid=tid)
    machine.waits("app", 10, "lock", 30, tid=14)
    assert sentences(machine)[0][0] == "at least 3 threads of app wait for a mutex (30.0s)"


def test_gil_and_pipe_say_what_is_waited_for() -> None:
    machine = Machine()
    for tid in (11, 12, 13):
        machine.held(machine.waits("python3", 10, "lock", 3, "take_gil", tid=tid), Blocker(10, 10, GIL, True))
    machine.runs("python3", 10)
    assert (
        sentences(machine)[0][0]
        == "3 threads of python3 wait for Python's GIL (3.00s), held by python3(10), which runs"
    )
    machine = Machine()
    peers = Peers((PeerSide(READER, (Process(20, "sleep"),), 1),))
    machine.waits("yes", 10, "pipe", 5, kernel="pipe_write", on=Object("pipe", "pipe:[7]"), peers=peers)
    machine.waits("sleep", 20, "sleep", 5)
    assert sentences(machine)[0][0] == "yes(10) waits for room in a pipe (5.00s) to sleep(20), which sleeps"


@pytest.mark.parametrize(
    ("one", "several"),
    [
        ("looks idle", "look idle"),
        ("wants a CPU", "want a CPU"),
        ("runs", "run"),
        ("sleeps in nap", "sleep in nap"),
        ("is frozen by its cgroup /a", "are frozen by their cgroup /a"),
    ],
)
def test_verbs_have_a_plural(one: str, several: str) -> None:
    assert of_several(one) == several


@pytest.mark.parametrize(
    ("peers", "what"),
    [
        (["10.0.0.5:8081"] * 3, "a connection to 10.0.0.5:8081"),
        (["10.0.0.5:5432"] * 3, "a connection to PostgreSQL at 10.0.0.5:5432"),
        (["10.0.0.5:5432", "10.0.0.5:5432", "10.0.0.6:5432"], "a connection to PostgreSQL"),
    ],
)
def test_connection_that_is_not_accepted_is_named_with_its_address_if_there_is_one(peers: list[str], what: str) -> None:
    machine = Machine()
    for number, peer in enumerate(peers):
        on = Object("tcp", f"socket:[{number}]", local=f"10.0.0.1:{50_000 + number}", peer=peer, state="syn-sent")
        machine.waits("app", 100 + number, "connect", 9, on=on)
    ((says, _),) = sentences(machine)
    assert says == f"3 app wait for {what} (9.00s)"
    (one,) = machine.found().suspects
    assert one.name.what == "", "the address differs from run to run"
