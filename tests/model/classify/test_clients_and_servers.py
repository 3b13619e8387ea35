"""Which waits at pipes, sockets and connections accuse the other end, and which stand."""

import pytest

from offtop.model.classify.suspect import HOLDER
from offtop.model.values.blockers import (
    ANSWER,
    ELSEWHERE,
    FILE_LOCK,
    PIPE,
    SOCKET,
    UPSTREAM,
    Blocker,
)
from offtop.model.values.peers import CLIENT, PEER, READER, WRITER, Peers, PeerSide, Process
from offtop.model.values.wake import Object
from tests.model.machine import Machine, ends


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


def test_request_from_before_others_waited_was_not_sent_for_them() -> None:
    machine = Machine()
    consumer = machine.waits("app", 20, "net-recv", 50, tid=21)
    machine.held(consumer, Blocker(ELSEWHERE, 0, ANSWER, False, "10.0.0.5:5672"))
    for pid in range(30, 34):
        machine.held(machine.waits("curl", pid, "net-recv", 5), Blocker(20, 0, SOCKET, True))
    assert [one.program for one in machine.found().suspects[0].hops] == ["curl", "app"]
