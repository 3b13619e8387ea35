"""The wait-for graph has one edge for each way to know what must act, and loses no waiting on the way to the ends."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtop.model.classify.activity import RUNS
from offtop.model.classify.wait_edges import Edge, Edges, Paths
from offtop.model.classify.wait_graph import IDLE, UNMEASURED, WaitGraph
from offtop.model.values.blockers import (
    BACKLOG,
    CHILD,
    DISK,
    DISK_USER,
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
    TITLE,
    UPSTREAM,
    WAKER,
    Blocker,
)
from offtop.model.values.catalog import Details, ThreadKey
from offtop.model.values.disks import DeviceTotals, DiskActivity, DiskKey, DiskTotals
from offtop.model.values.peers import HOLDER, LISTENER, PEER, READER, WRITER, Peers, PeerSide, Process
from offtop.model.values.snapshot import Holder
from offtop.model.values.stack import NO_STACK
from offtop.model.values.wake import NO_WAKE, THREAD, WAKEUP, Object, Wake, Waker
from offtop.model.windows.breakdown import SHORT, SLEEP
from tests.model.machine import Machine

_BACKEND = "postgres: main: bench shop [local] "


def edges_of(graph: WaitGraph, key: ThreadKey) -> list[tuple[ThreadKey, str, bool]]:
    return [
        (graph.nodes[one.target].key, one.via, one.is_exact)
        for one in graph.edges
        if graph.nodes[one.source].key == key
    ]


def test_kernel_lock_leads_to_its_holder() -> None:
    machine = Machine()
    holder = machine.waits("cp", 20, "disk-write")
    waiter = machine.waits("ls", 10, "kernel-lock", holder=Holder(20, 20, "cp"))
    assert edges_of(machine.graph(), waiter) == [(holder, KERNEL_LOCK, True)]


@pytest.mark.parametrize(
    ("ms_of", "others_ms", "leads_to"),
    [
        ({}, 0, ELSEWHERE),
        ({20: 900, 10: 100}, 0, 20),
        ({20: 900, 10: 100}, 1000, ELSEWHERE),
        ({10: 900, 20: 100}, 0, ELSEWHERE),
        ({20: 400, 10: 100, 30: 400}, 0, ELSEWHERE),
        ({0: 900, 20: 100}, 0, ELSEWHERE),
    ],
)
def test_wait_for_a_disk_leads_to_the_disk_or_to_the_process_with_most_of_its_requests(
    ms_of: Mapping[int, int], others_ms: int, leads_to: int
) -> None:
    machine = Machine()
    totals = {DiskKey(8, "read", pid, pid): DiskTotals(outstanding_ns=ms) for pid, ms in ms_of.items()}
    every = DeviceTotals(reads=DiskTotals(outstanding_ns=sum(ms_of.values()) + others_ms))
    machine.disks = DiskActivity(totals, {8: every}, names={8: "sda"}) if ms_of else None
    waiter = machine.waits("ls", 10, "disk-read")
    machine.held(waiter, Blocker(ELSEWHERE, 0, DISK, True, "sda"))
    graph = machine.graph()
    via = DISK if leads_to == ELSEWHERE else DISK_USER
    assert edges_of(graph, waiter) == [(ThreadKey(leads_to, 0), via, leads_to == ELSEWHERE)]
    assert next(iter(graph.edges)).what == "sda"


def test_requests_without_the_totals_of_their_device_name_no_process() -> None:
    machine = Machine(
        disks=DiskActivity({DiskKey(8, "read", 20, 20): DiskTotals(outstanding_ns=900)}, names={8: "sda"})
    )
    waiter = machine.waits("ls", 10, "disk-read")
    machine.held(waiter, Blocker(ELSEWHERE, 0, DISK, True, "sda"))
    assert edges_of(machine.graph(), waiter) == [(ThreadKey(ELSEWHERE, 0), DISK, True)]


@pytest.mark.parametrize("category", ["page-fault", "kernel-lock", "poll"])
def test_wait_for_something_else_in_a_call_does_not_lead_to_the_disk_of_its_file(category: str) -> None:
    machine = Machine()
    waiter = machine.waits("ls", 10, category)
    machine.held(waiter, Blocker(ELSEWHERE, 0, DISK, True, "sda"))
    assert edges_of(machine.graph(), waiter) == []


def test_stopped_thread_waits_for_what_has_stopped_it_only() -> None:
    machine = Machine()
    parent, traced = machine.waits("sh", 10, "stopped"), machine.waits("sh", 11, "stopped")
    machine.held(parent, Blocker(20, 0, CHILD, True))
    machine.held(traced, Blocker(21, 0, CHILD, True), Blocker(30, 30, STOPPED_BY, True))
    graph = machine.graph()
    assert edges_of(graph, parent) == []
    assert edges_of(graph, traced) == [(ThreadKey(30, 30), STOPPED_BY, True)]


def test_a_setting_of_a_cgroup_is_no_node() -> None:
    machine = Machine()
    frozen, thawed = machine.waits("sh", 10, "stopped"), machine.waits("sh", 11, "pipe")
    for one in (frozen, thawed):  # that of the other was found before it was thawed, in the middle of the same wait
        machine.held(one, Blocker(ELSEWHERE, 0, FROZEN_BY, True, "/sys/fs/cgroup/a/cgroup.freeze"))
    limited = machine.waits("sh", 12, "reclaim")
    machine.held(limited, Blocker(ELSEWHERE, 0, MEMORY_LIMIT, True, "4096 /sys/fs/cgroup/a/memory.max"))
    graph = machine.graph()
    assert [edges_of(graph, one) for one in (frozen, thawed, limited)] == [[], [], []]


def test_file_lock_leads_to_all_that_hold_the_open_file() -> None:
    machine = Machine()
    waiter = machine.waits("flock", 10, "lock", on=Object("file", "/run/job.lock"))
    heir, other = machine.waits("sleep", 20, "sleep"), machine.waits("tail", 30, "disk-read")
    machine.held(waiter, *(Blocker(pid, 0, FILE_LOCK, True, "job.lock") for pid in (20, 30)))
    graph = machine.graph()
    assert edges_of(graph, waiter) == [(heir, FILE_LOCK, True), (other, FILE_LOCK, True)]
    assert [(one.share, one.what) for one in graph.edges] == [(0.5, "job.lock")] * 2


@pytest.mark.parametrize(
    ("category", "kernel", "what", "role", "via"),
    [
        ("pipe", "pipe_read", Object("pipe", "pipe:[7]"), WRITER, PIPE),
        ("pipe", "pipe_write", Object("pipe", "pipe:[7]"), READER, PIPE),
        ("net-recv", "unix_stream_read_generic", Object("unix", "socket:[8]"), PEER, SOCKET),
        ("net-recv", "tcp_recvmsg", Object("tcp", "socket:[9]", 0, "127.0.0.1:41000", "127.0.0.1:80"), PEER, SOCKET),
        ("connect", "inet_stream_connect", Object("tcp", "socket:[9]", 0, "[::1]:4", "[::1]:80"), LISTENER, BACKLOG),
    ],
)
def test_pipe_and_socket_lead_to_the_process_at_the_other_end(
    category: str, kernel: str, what: Object, role: str, via: str
) -> None:
    machine = Machine()
    peers = Peers((PeerSide(role, (Process(20, "other"),), 1),))
    waiter = machine.waits("one", 10, category, kernel=kernel, on=what, peers=peers)
    other = machine.waits("other", 20, "disk-read")
    assert edges_of(machine.graph(), waiter) == [(other, via, True)]


def test_holder_does_what_it_does_now_and_not_what_it_did_most_of_the_time() -> None:
    machine = Machine()
    waiter = machine.waits("svc", 10, "lock", 0.4, tid=11)
    holder = machine.waits("svc", 10, "sleep", 0.05, tid=12)
    machine.ended(holder, "lock", NO_WAKE, 2, ms=400)
    machine.held(waiter, Blocker(*holder, MUTEX, True))
    graph = machine.graph()
    (edge,) = graph.edges
    assert graph.nodes[edge.target][::2] == (holder, SLEEP)


def test_holder_in_a_wait_without_a_stack_is_not_said_to_wait_for_the_lock() -> None:
    machine = Machine()
    waiter = machine.waits("svc", 10, "lock", 0.4, tid=11)
    holder = machine.waits("svc", 10, "sleep", 0.05, tid=12)
    young = machine.waiting[holder]
    machine.waiting[holder] = young._replace(site=young.site._replace(kernel=NO_STACK))
    machine.ended(holder, "lock", NO_WAKE, 2, ms=400)
    machine.held(waiter, Blocker(*holder, MUTEX, True))
    graph = machine.graph()
    (edge,) = graph.edges
    assert graph.nodes[edge.target][::2] == (holder, SHORT)


def test_waker_that_idles_for_a_moment_looks_idle() -> None:
    """Only of a holder it is known that what it does now is what the others wait for."""
    machine = Machine()
    waiter = machine.waits("svc", 10, "lock", tid=11)
    waker = machine.waits("svc", 10, "poll", 0.05, tid=12)
    machine.held(waiter, Blocker(*waker, WAKER, False))
    graph = machine.graph()
    (edge,) = graph.edges
    assert graph.nodes[edge.target][::2] == (waker, IDLE)


@pytest.mark.parametrize("via", [MUTEX, GIL, CHILD, STOPPED_BY])
def test_owner_that_was_read_from_memory_must_act(via: str) -> None:
    machine = Machine()
    waiter, owner = machine.waits("app", 10, "lock"), machine.waits("app", 10, "fsync", tid=11)
    machine.held(waiter, Blocker(10, 11, via, True))
    assert edges_of(machine.graph(), waiter) == [(owner, via, True)]


def test_lock_without_a_known_owner_likely_leads_to_the_thread_that_ended_most_waits_for_it() -> None:
    machine = Machine(mode=WAKEUP)
    lock = Object("futex", "0x1000", 10)
    waiter = machine.waits("app", 10, "lock", on=lock)
    for number, (tid, waits) in enumerate(((12, 1), (13, 3)), 900):
        machine.catalog.wakes[number] = Wake(Waker(THREAD, "", 10, tid, "app"), lock)
        machine.ended(ThreadKey(10, 14), "lock", number, waits)
    assert edges_of(machine.graph(), waiter) == [(ThreadKey(10, 13), WAKER, False)]
    machine.mode = "offcpu"
    assert edges_of(machine.graph(), waiter) == []


def test_waiter_for_a_lock_does_not_hold_it_even_if_it_ended_most_waits_for_it() -> None:
    machine = Machine(mode=WAKEUP)
    lock, other = Object("futex", "0x1000", 10), Object("futex", "0x2000", 10)
    waiter = machine.waits("app", 10, "lock", on=lock)
    machine.catalog.wakes[900] = Wake(Waker(THREAD, "", 10, 13, "app"), lock)
    machine.ended(ThreadKey(10, 14), "lock", 900, 3)
    machine.waits("app", 10, "lock", tid=13, on=other)
    assert edges_of(machine.graph(), waiter) == [(ThreadKey(10, 13), WAKER, False)]
    for same in (lock, None):  # None: not known, but most likely the same
        machine.waits("app", 10, "lock", tid=13, on=same)
        assert edges_of(machine.graph(), waiter) == []
    machine.waits("app", 10, "fsync", tid=13)
    assert edges_of(machine.graph(), waiter) == [(ThreadKey(10, 13), WAKER, False)]


@pytest.mark.parametrize(("lookups", "edges"), [(1, [(ThreadKey(10, 10), "lookup", False)]), (2, [])])
def test_wait_for_the_lookup_of_a_name_leads_to_the_only_thread_that_looks_one_up(
    lookups: int, edges: list[tuple[ThreadKey, str, bool]]
) -> None:
    machine = Machine()
    for number in range(lookups):
        machine.waits("cat", 10 + number, "pipe", 20 - number, kernel="fuse_lookup")
    waiter = machine.waits("cat", 30, "kernel-lock", kernel="d_alloc_parallel")
    assert edges_of(machine.graph(), waiter) == edges


def test_session_that_is_idle_in_a_transaction_is_likely_what_sessions_of_its_database_wait_for() -> None:
    machine = Machine()
    waiter = machine.waits("postgres", 10, "poll", 10, "WaitEventSetWait", "ProcSleep")
    machine.waits("postgres", 20, "poll", 60)
    machine.titles = {
        10: f"{_BACKEND}UPDATE waiting",
        20: f"{_BACKEND}idle in transaction",
        30: f"{_BACKEND}idle",
        40: "postgres: main: bench other [local] idle in transaction",
        50: "postgres: checkpointer ",
    }
    assert edges_of(machine.graph(), waiter) == [(ThreadKey(20, 0), TITLE, False)]
    del machine.titles[20]
    assert edges_of(machine.graph(), waiter) == []


@pytest.mark.parametrize(
    ("other", "age_s", "runs", "is_named", "category"),
    [
        ("SELECT", 11, 0.0, False, "poll"),
        ("SELECT", 2, 0.0, True, "poll"),
        ("SELECT", 6, 0.0, False, "poll"),
        ("SELECT", 2, 0.0, False, "disk-read"),
        ("UPDATE", 0, 0.9, False, "poll"),
        ("UPDATE", 0, 0.2, True, "poll"),
        ("idle in transaction", 2, 0.0, False, "poll"),
        ("idle", 11, 0.0, True, "poll"),
        ("UPDATE waiting", 11, 0.0, True, "poll"),
    ],
)
def test_session_is_not_named_if_another_one_may_hold_the_lock(
    other: str, age_s: float, runs: float, is_named: bool, category: str
) -> None:
    machine = Machine()
    waiter = machine.waits("postgres", 10, "poll", 10, "WaitEventSetWait", "ProcSleep")
    machine.waits("postgres", 20, "poll", 60)
    if runs:
        machine.runs("postgres", 30, runs)
    else:
        machine.waits("postgres", 30, category, age_s)
    machine.titles = {
        10: f"{_BACKEND}UPDATE waiting",
        20: f"{_BACKEND}idle in transaction",
        30: f"{_BACKEND}{other}",
    }
    assert edges_of(machine.graph(), waiter) == [(ThreadKey(20, 0), TITLE, False)] * is_named


def test_holder_that_filters_leave_out_does_not_look_idle() -> None:
    machine = Machine()
    measured, left_out = (machine.waits("flock", pid, "lock", 10) for pid in (10, 11))
    machine.waits("idle", 20, "poll", 60)
    machine.held(measured, Blocker(20, 0, FILE_LOCK, True))
    machine.held(left_out, Blocker(21, 0, FILE_LOCK, True))
    graph = machine.graph()
    ends = {edge.source: graph.nodes[edge.target].state for edge in graph.edges.of_waits}
    assert [ends[row] for row in sorted(ends)] == [IDLE, UNMEASURED]


def test_waiting_session_and_holder_need_no_cluster_name_in_their_titles() -> None:
    machine = Machine()
    waiter = machine.waits("postgres", 10, "poll")
    machine.titles = {
        10: "postgres: bench shop 127.0.0.1(5000) DELETE waiting",
        20: "postgres: bench shop ::1(50) idle in transaction (aborted)",
    }
    assert edges_of(machine.graph(), waiter) == [(ThreadKey(20, 0), TITLE, False)]


def test_holder_of_a_file_lock_that_was_not_checked_is_not_named() -> None:
    machine = Machine()
    peers = Peers((PeerSide(HOLDER, (Process(20, "other"),), 1),))
    on = Object("file", "/run/job.lock")
    waiter = machine.waits("flock", 10, "lock", kernel="flock_lock_inode_wait", on=on, peers=peers)
    assert edges_of(machine.graph(), waiter) == []


def test_session_of_another_server_with_a_database_of_that_name_is_not_named() -> None:
    machine = Machine()
    waiter = machine.waits("postgres", 10, "poll")
    machine.titles = {
        10: "postgres: main: bench shop [local] UPDATE waiting",
        20: "postgres: other: bench shop [local] idle in transaction",
        30: "postgres: main: bench shop [local] idle in transaction",
    }
    for pid, container in ((10, "/docker/a"), (20, "/docker/a"), (30, "/docker/b")):
        machine.catalog.details[pid] = Details(cgroup=container)
    assert edges_of(machine.graph(), waiter) == []
    machine.catalog.details[30] = Details(cgroup="/docker/a")
    assert edges_of(machine.graph(), waiter) == [(ThreadKey(30, 0), TITLE, False)]


def test_process_stands_for_its_threads_that_wait_for_something() -> None:
    machine = Machine()
    waiter = machine.waits("curl", 10, "net-recv")
    idle, reads = machine.waits("web", 20, "poll"), machine.waits("web", 20, "disk-read", tid=21)
    machine.held(waiter, Blocker(20, 0, SOCKET, True))
    assert edges_of(machine.graph(), waiter) == [(reads, SOCKET, True)]
    machine.waits("web", 20, "lock", tid=23)  # it may be idle: none of its functions is known
    machine.waits("web", 20, "lock", 10, "lib:pthread_mutex_lock", tid=22)
    graph = machine.graph()
    assert edges_of(graph, waiter) == [(ThreadKey(20, 0), SOCKET, True)]
    assert [key for key, _, _ in edges_of(graph, ThreadKey(20, 0))] == [reads, ThreadKey(20, 22)]
    assert idle not in {graph.nodes[one.target].key for one in graph.edges}


def test_process_that_only_waits_for_work_is_an_end() -> None:
    machine = Machine()
    waiter = machine.waits("curl", 10, "net-recv")
    machine.waits("web", 20, "poll")
    machine.held(waiter, Blocker(20, 0, SOCKET, True))
    graph = machine.graph()
    assert [graph.nodes[one.target].state for one in graph.edges] == [IDLE]


def test_server_that_looks_idle_leads_to_the_server_behind_it() -> None:
    machine = Machine()
    waiter, server = machine.waits("curl", 10, "net-recv"), machine.waits("nginx", 20, "poll")
    behind = machine.waits("python3", 30, "sleep")
    machine.held(waiter, Blocker(20, 0, SOCKET, True))
    machine.held(server, Blocker(30, 0, UPSTREAM, False))
    graph = machine.graph()
    assert edges_of(graph, waiter) == [(server, SOCKET, True)]
    assert edges_of(graph, server) == [(behind, UPSTREAM, False)]


def test_process_that_has_a_cpu_runs_whatever_its_other_threads_wait_for() -> None:
    machine = Machine()
    waiter = machine.waits("curl", 10, "net-recv")
    machine.waits("web", 20, "lock", tid=21)
    machine.runs("web", 20, 1.5)
    machine.held(waiter, Blocker(20, 0, SOCKET, True))
    assert [machine.graph().nodes[one.target].state for one in machine.graph().edges] == [RUNS]


def test_process_with_both_ends_of_a_pipe_waits_for_nobody() -> None:
    machine = Machine()
    waiter = machine.waits("make", 10, "pipe")
    machine.held(waiter, Blocker(10, 0, PIPE, True), Blocker(20, 0, PIPE, True))
    assert [*machine.graph().edges] == []


def test_nobody_waits_on_an_empty_machine() -> None:
    graph = Machine().graph()
    assert (len(graph.nodes), [*graph.edges], graph.waiting.tolist()) == (0, [], [])
    assert Paths(0, Edges()).passed(graph.waiting).ends.tolist() == []


def edge(source: int, target: int, share: float = 1.0) -> Edge:
    return Edge(source, target, share, MUTEX, True, "")


def test_waiting_of_a_chain_arrives_at_its_end() -> None:
    found = Paths(4, Edges([edge(0, 1), edge(1, 2), edge(3, 1)])).passed(np.array([1.0, 0.5, 0.25, 1.0]))
    assert found.ends.tolist() == [0, 0, 2.75, 0]
    assert found.through.tolist() == [1.0, 2.5, 2.75, 1.0]


def test_loop_is_cut_and_keeps_what_waits_in_it_and_behind_it() -> None:
    paths = Paths(4, Edges([edge(0, 1), edge(1, 2), edge(2, 1), edge(3, 2)]))
    found = paths.passed(np.ones(4))
    assert paths.loops == [(1, 2)]
    assert found.ends.tolist() == [0, 4, 0, 0]
    assert found.through.tolist() == [1, 2, 2, 1]


def test_thread_that_waits_for_one_in_a_loop_and_for_one_outside_is_shared() -> None:
    paths = Paths(4, Edges([edge(0, 1, 0.5), edge(0, 3, 0.5), edge(1, 2), edge(2, 1)]))
    found = paths.passed(np.array([1.0, 1.0, 1.0, 0.0]))
    assert found.ends.tolist() == [0, 2.5, 0, 0.5]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, list[Edge], list[float]]:
    count = draw(st.integers(1, 12))
    edges: list[Edge] = []
    for source in range(count):
        others = [one for one in range(count) if one != source]
        targets = draw(st.lists(st.sampled_from(others), max_size=3, unique=True)) if others else []
        edges += [edge(source, target, 1 / len(targets)) for target in targets]
    return count, edges, draw(st.lists(st.floats(0, 5), min_size=count, max_size=count))


@given(graphs())
def test_what_arrives_at_all_ends_is_what_waits(made: tuple[int, Sequence[Edge], list[float]]) -> None:
    count, edges, own = made
    paths = Paths(count, Edges(edges))
    found = paths.passed(np.array(own))
    assert found.ends.sum() == pytest.approx(sum(own))
    assert (found.ends >= 0).all()
    assert (found.through >= np.array(own) - 1e-9).all()
    assert len({node for loop in paths.loops for node in loop}) == sum(map(len, paths.loops))


def test_edges_to_the_threads_of_a_process_are_like_others() -> None:
    edges = Edges([edge(0, 4)])
    edges.add_threads(4, np.array([1, 2, 3]), np.array([0.5, 0.25, 0.25]))
    to_threads = [Edge(4, thread, share, "", True, "") for thread, share in ((1, 0.5), (2, 0.25), (3, 0.25))]
    assert [*edges] == [edge(0, 4), *to_threads]
    assert (edges.threads_of(4), edges.threads_of(0)) == ([1, 2, 3], ())
    assert ([*edges.processes_of([0, 3])], [*edges.processes_of([0])]) == ([(4, 1, 1)], [])
    assert dict(edges.into()) == {4: [(0, edge(0, 4))]}
    assert (edges.between(0, 4), edges.between(4, 2)) == (edge(0, 4), to_threads[1])
    found = Paths(5, edges).passed(np.array([2.0, 0.0, 1.0, 0.0, 0.0]))
    assert found.ends.tolist() == [0, 1.0, 1.5, 0.5, 0]


def test_a_thread_waits_for_as_long_as_in_all_of_its_waits_of_the_category() -> None:
    machine = Machine()
    machine.waits("old", 20, "lock", 10)
    young = machine.waits("db", 10, "disk-read", 0.3)
    machine.ended(young, "pipe", NO_WAKE, 2, ms=100)
    machine.ended(young, "disk-read", NO_WAKE, 4, ms=100)
    machine.waits("new", 30, "pipe", 0.2)
    assert machine.graph().waiting.tolist() == pytest.approx([1.0, 0.3 + 0.4, 0.2])
