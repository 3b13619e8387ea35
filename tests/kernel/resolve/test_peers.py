"""Test finding peers of pipes and sockets, and what an epoll watches, on real children."""

import fcntl
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from offtop.kernel.procfs.open_files import locks_in
from offtop.kernel.procfs.sock_diag import sockets_of
from offtop.kernel.resolve import peers as module
from offtop.kernel.resolve.peers import PeersWorker, watched
from offtop.model.values.catalog import Catalog, ThreadKey
from offtop.model.values.peers import (
    CLIENT,
    LISTENER,
    NO_PEERS,
    PEER,
    READER,
    WRITER,
    Peers,
    PeerSide,
    Process,
    waited_on,
)
from offtop.model.values.snapshot import Filters
from offtop.model.values.stack import Stack
from offtop.model.values.wake import Object
from offtop.worker import Worker
from tests.command import run
from tests.kernel import watch
from tests.kernel.hangs import fuse
from tests.kernel.programs import until
from tests.kernel.reads import GUARDED, READS
from tests.kernel.test_awaited_servers import client_and_server
from tests.kernel.watch import MS

SECONDS = 30.0
OWN = os.getpid()
SLEEPS = ("sleep", "1000")
_ELSEWHERE = r"""
import fcntl, json, os, socket, struct, sys
with socket.socket() as any:
    fcntl.ioctl(any, 0x8914, struct.pack("16sh14x", b"lo", 0x49))
listening = socket.create_server(("127.0.0.1", 4242))
client = socket.create_connection(("127.0.0.1", 4242))
server, _ = listening.accept()
print(json.dumps([os.fstat(client.fileno()).st_ino, client.getsockname()[1]]), flush=True)
sys.stdin.read()
"""
"""A connection in its own network namespace.

Loopback is brought up first (SIOCSIFFLAGS: IFF_UP, IFF_RUNNING).
"""


_POLLS = """
import select, socket
poll, pairs = select.epoll(), [socket.socketpair() for _ in range(3)]
for one, _ in pairs:
    poll.register(one, select.EPOLLIN)
poll.poll()
"""


@pytest.fixture
def catalog() -> Catalog:
    return Catalog()


@pytest.fixture
def epolls() -> dict[Object, int]:
    return {}


@pytest.fixture
def worker(catalog: Catalog, epolls: dict[Object, int], monkeypatch: pytest.MonkeyPatch) -> Generator[PeersWorker]:
    monkeypatch.setattr(module, "_REST_S", 0.0)
    monkeypatch.setattr(module, "_REST_TIMES", 0)
    made = PeersWorker(catalog, epolls, GUARDED)
    yield made
    made.close()


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """Return what was looked for, each time that the files of all processes were read."""
    found: list[set[str]] = []
    held = PeersWorker._scan_for_holders  # pyright: ignore[reportPrivateUsage]

    def counted(self: PeersWorker, sought: set[str]) -> object:
        found.append({*sought})
        return held(self, sought)

    monkeypatch.setattr(PeersWorker, "_scan_for_holders", counted)
    return found


@contextmanager
def child(*, stdin: int | socket.socket | None = None, stdout: int | None = None) -> Generator[Process]:
    """Run a child that holds these descriptors and does nothing with them."""
    process = subprocess.Popen(
        SLEEPS, stdin=stdin.fileno() if isinstance(stdin, socket.socket) else stdin, stdout=stdout
    )
    try:
        yield Process(process.pid, "sleep")
    finally:
        process.kill()
        process.wait(10)


@contextmanager
def pipe_of(readers: int, writers: int) -> Generator[tuple[Object, list[Process], list[Process]]]:
    """Make a pipe that so many children have open for reading, and so many for writing."""
    read, write = os.pipe()
    what = Object("pipe", f"pipe:[{os.fstat(read).st_ino}]")
    with ExitStack() as opened:
        has_it = [opened.enter_context(child(stdin=read)) for _ in range(readers)]
        fills_it = [opened.enter_context(child(stdout=write)) for _ in range(writers)]
        os.close(read)
        os.close(write)
        yield what, has_it, fills_it


def inet(one: socket.socket, kind: str = "tcp") -> Object:
    ends = (at(one), one.getpeername()[:2])
    shown = (f"[{address}]:{port}" if ":" in address else f"{address}:{port}" for address, port in ends)
    return Object(kind, f"socket:[{inode(one)}]", 0, *shown)


def at(one: socket.socket) -> tuple[str, int]:
    return one.getsockname()[:2]


def inode(one: socket.socket) -> int:
    return os.fstat(one.fileno()).st_ino


def peers_of(worker: PeersWorker, catalog: Catalog, *objects: Object, pid: int = OWN) -> list[Peers]:
    """Return the peers of these objects, once all have been looked up."""
    ask(worker, dict.fromkeys(objects, pid))
    return [catalog.peers_of(one) for one in objects]


def ask(worker: PeersWorker, waited_on: dict[Object, int]) -> None:
    """Return once all of these have been looked up and are in the catalog."""
    worker.find(waited_on)
    until(lambda: not worker._requests and all(worker._retry_s[what] < float("inf") for what in waited_on))  # pyright: ignore[reportPrivateUsage]
    worker.publish()


def by_role(ends: Peers) -> dict[str, set[Process]]:
    return {side.role: {*side.processes} for side in ends.sides}


def test_a_pipe_has_readers_and_writers(worker: PeersWorker, catalog: Catalog) -> None:
    with pipe_of(readers=1, writers=2) as (pipe, readers, writers):
        (found,) = peers_of(worker, catalog, pipe)
        assert by_role(found) == {READER: {*readers}, WRITER: {*writers}}
        assert [side.total for side in found.sides] == [1, 2]


def test_a_process_with_both_ends_of_a_pipe_is_listed_once_per_role(worker: PeersWorker, catalog: Catalog) -> None:
    read, write = os.pipe()
    again = os.dup(read)
    (found,) = peers_of(worker, catalog, Object("pipe", f"pipe:[{os.fstat(read).st_ino}]"))
    for fd in (read, write, again):
        os.close(fd)
    assert [(side.role, [one.pid for one in side.processes], side.total) for side in found.sides] == [
        (READER, [OWN], 1),
        (WRITER, [OWN], 1),
    ]


def test_many_peers_are_named_in_part_and_counted_in_full(worker: PeersWorker, catalog: Catalog) -> None:
    with pipe_of(readers=1, writers=12) as (pipe, _, writers):
        side = peers_of(worker, catalog, pipe)[0].sides[1]
        assert (len(side.processes), side.total, {*side.processes} <= {*writers}) == (8, 12, True)
        assert side.text.startswith("writer: sleep(")
        assert side.text.endswith("), +9")


def test_an_object_that_no_process_has_open_has_no_peers(worker: PeersWorker, catalog: Catalog) -> None:
    nowhere = Object("tcp", "socket:[1]", 0, "127.0.0.1:1", "127.0.0.1:2")
    unheard = Object("tcp", "socket:[1]", 0, "*:1", "127.0.0.1:2")
    ask(worker, dict.fromkeys([Object("pipe", "pipe:[1]"), Object("unix", "socket:[1]"), nowhere, unheard], OWN))
    assert (catalog.peers, catalog.peers_version) == ({}, 0)
    worker.find({Object("futex", "0x7f00", OWN): OWN, Object("tcp", "socket:[1]", 0, "*:80"): OWN})
    assert not worker._requests, "these have no peer"  # pyright: ignore[reportPrivateUsage]


def test_holder_of_a_file_that_nobody_had_locked_is_looked_for_again_soon(
    worker: PeersWorker, catalog: Catalog, tmp_path: Path
) -> None:
    file, pipe = Object("file", str(tmp_path / "job.lock")), Object("pipe", "pipe:[1]")
    ask(worker, {file: OWN, pipe: OWN})
    assert catalog.peers == {}
    assert worker._retry_s[file] < worker._retry_s[pipe] - 10  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_local_connection_has_a_peer_at_each_end(address: str, worker: PeersWorker, catalog: Catalog) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with (
        socket.create_server((address, 0), family=family) as listening,
        socket.create_connection(at(listening)) as client,
    ):
        server, _ = listening.accept()
        with child(stdin=server) as process:
            of_client, of_server = inet(client), inet(server)
            server.close()
            assert by_role(*peers_of(worker, catalog, of_client)) == {PEER: {process}}
            (there,) = peers_of(worker, catalog, of_server, pid=process.pid)
            assert [(side.role, [one.pid for one in side.processes]) for side in there.sides] == [(CLIENT, [OWN])]


def test_client_in_another_network_is_known_to_be_one(worker: PeersWorker, catalog: Catalog) -> None:
    with client_and_server("answers", apart=True) as (client, server, _):
        ends = {pid: peers_of(worker, catalog, connection_of(pid), pid=pid) for pid in (client, server)}
    assert ends == {client: [NO_PEERS], server: [Peers((PeerSide(CLIENT, (), 0),))]}


def connection_of(pid: int) -> Object:
    """Return the only TCP connection in the network namespace of a process."""
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        _, local, peer, state, *_, number = line.split()[:10]
        if state == "01":
            ends = (one.split(":") for one in (local, peer))
            shown = (f"{IPv4Address(int(address, 16).to_bytes(4, 'little'))}:{int(port, 16)}" for address, port in ends)
            return Object("tcp", f"socket:[{number}]", 0, *shown)
    raise AssertionError("no connection is established")


def test_a_dual_stack_server_is_found_by_an_ipv4_client(worker: PeersWorker, catalog: Catalog) -> None:
    with (
        socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listening,
        socket.create_connection(("127.0.0.1", at(listening)[1])) as client,
    ):
        server, _ = listening.accept()
        with server, child(stdin=server) as process:
            assert process in by_role(*peers_of(worker, catalog, inet(client)))[PEER]


def test_an_unaccepted_connection_belongs_to_the_listener(worker: PeersWorker, catalog: Catalog) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_connection(at(listening)) as client:
        with child(stdin=listening) as process:
            (found,) = peers_of(worker, catalog, inet(client))
        assert {role: process in those for role, those in by_role(found).items()} == {LISTENER: True}


def test_datagrams_belong_to_the_owner_of_the_port(worker: PeersWorker, catalog: Catalog) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as server, socket.socket(type=socket.SOCK_DGRAM) as client:
        server.bind(("127.0.0.1", 0))
        client.connect(at(server))
        with child(stdin=server) as process:
            assert process in by_role(*peers_of(worker, catalog, inet(client, "udp")))[PEER]


def test_a_unix_socket_has_a_peer(worker: PeersWorker, catalog: Catalog) -> None:
    mine, yours = socket.socketpair()
    with mine, child(stdin=yours) as process:
        yours.close()
        assert by_role(*peers_of(worker, catalog, Object("unix", f"socket:[{inode(mine)}]"))) == {PEER: {process}}


@pytest.mark.parametrize("is_bound", [False, True])
def test_only_the_end_of_a_unix_socket_that_was_accepted_has_a_client(
    worker: PeersWorker, catalog: Catalog, tmp_path: Path, is_bound: bool
) -> None:
    """Of two ends with names, it is unknown which one was accepted."""
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as client:
        listening.bind(str(tmp_path / "socket"))
        if is_bound:
            client.bind(str(tmp_path / "own"))
        listening.listen()
        client.connect(str(tmp_path / "socket"))
        with listening.accept()[0] as server:
            ends = [Object("unix", f"socket:[{inode(one)}]") for one in (client, server)]
            assert [[*by_role(one)] for one in peers_of(worker, catalog, *ends)] == [
                [PEER],
                [PEER if is_bound else CLIENT],
            ]


def test_of_two_listening_ends_neither_is_known_to_be_the_client(worker: PeersWorker, catalog: Catalog) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_server(("127.0.0.1", 0), reuse_port=True) as other,
        socket.socket() as client,
    ):
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            client.setsockopt(socket.SOL_SOCKET, option, 1)
        client.bind(at(other))
        client.connect(at(listening))
        with listening.accept()[0] as server:
            ends = peers_of(worker, catalog, inet(client), inet(server))
            assert [[*by_role(one)] for one in ends] == [[PEER], [PEER]]


def test_another_network_namespace_is_queried_for_its_connections(worker: PeersWorker, catalog: Catalog) -> None:
    command = ["unshare", "--net", sys.executable, "-c", _ELSEWHERE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        number, port = json.loads(process.stdout.readline())
        what = Object("tcp", f"socket:[{number}]", 0, f"127.0.0.1:{port}", "127.0.0.1:4242", "established")
        with sockets_of(OWN) as sockets:
            assert sockets.peer_of("tcp", number, what.local, what.peer) is None, "in our namespace"
        (found,) = peers_of(worker, catalog, what, pid=process.pid)
        assert [(side.role, [one.pid for one in side.processes]) for side in found.sides] == [(PEER, [process.pid])]
        with socket.create_server(("127.0.0.1", 0)) as ours, socket.create_connection(at(ours)) as client:
            (mine,) = peers_of(worker, catalog, inet(client))
            assert [side.role for side in mine.sides] == [LISTENER], "the worker has returned to ours"
        process.communicate()


def test_an_epoll_lists_its_descriptors_by_kind(
    worker: PeersWorker, catalog: Catalog, epolls: dict[Object, int]
) -> None:
    pairs = [socket.socketpair() for _ in range(3)]
    read, write = os.pipe()
    eventfd = os.eventfd(0)
    with select.epoll() as epoll:
        for one in (*(mine for mine, _ in pairs), read, eventfd):
            epoll.register(one)
        what = Object("epoll", "epoll#1", OWN)
        epolls[what] = epoll.fileno()
        (found,) = peers_of(worker, catalog, what)
        assert found.members == (("socket", 3), ("eventfd", 1), ("pipe", 1))
        assert found.text(Stack(())) == "3 sockets, 1 eventfd, 1 pipe"
    assert watched(OWN, read, READS) == (), "no epoll"
    assert watched(OWN, 1 << 20, READS) == (), "no descriptor"
    for one in (read, write, eventfd):
        os.close(one)
    for mine, yours in pairs:
        mine.close()
        yours.close()


LOCKS_ITS_EPOLL = r"""
import ctypes, mmap, os, select, sys
ready = os.pipe()
os.write(ready[1], b"x")
epoll = select.epoll()
epoll.register(ready[0])
with open(sys.argv[1], "rb") as file:
    events = mmap.mmap(file.fileno(), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
address = ctypes.addressof(ctypes.c_char.from_buffer(events))
print(epoll.fileno(), flush=True)
input()
ctypes.CDLL(None).epoll_wait(epoll.fileno(), ctypes.c_void_p(address), 1, -1)
"""
"""Waits for a page of a file while the kernel has its epoll locked."""


@pytest.mark.kernel
def test_epoll_that_a_thread_keeps_locked_blocks_nobody(tmp_path: Path) -> None:
    with fuse(tmp_path, Path("/bin/true")) as mounted:
        process = subprocess.Popen(
            [sys.executable, "-c", LOCKS_ITS_EPOLL, str(mounted.program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdin and process.stdout
        fd = int(process.stdout.readline())
        mounted.stop_answering()
        reads = GUARDED.channel(0.2)
        assert watched(process.pid, fd, reads) == (("pipe", 1),)
        process.stdin.write(b"\n")
        process.stdin.flush()
        until(lambda: "ep_send_events" in Path(f"/proc/{process.pid}/stack").read_text())
        assert watched(process.pid, fd, reads) == ()
        assert reads.hung == {process.pid}
    process.kill()
    process.communicate()


def test_an_epoll_with_too_many_files_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    with select.epoll() as epoll, socket.socket() as one:
        epoll.register(one)
        assert watched(OWN, epoll.fileno(), READS) == (("socket", 1),)
        monkeypatch.setattr(module, "_MOST_WATCHED", 8)
        assert watched(OWN, epoll.fileno(), READS) == ()


def test_files_are_read_once_for_all_requests_until_they_change(
    worker: PeersWorker, catalog: Catalog, readings: list[set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_AGE_S", 0.0)
    with pipe_of(1, 1) as (first, _, _), pipe_of(1, 1) as (second, _, writers):
        peers_of(worker, catalog, first, second)
        assert readings == [{first.name, second.name}]
        before = peers_of(worker, catalog, first, second)
        assert (len(readings), catalog.peers_version) == (1, 2)
        os.kill(writers[0].pid, 9)
        until(lambda: not Path(f"/proc/{writers[0].pid}/fd/1").exists())
        after = peers_of(worker, catalog, first, second)
        assert (readings[1:], catalog.peers_version) == ([{second.name}], 3)
        assert (after[0], after[1].sides) == (before[0], before[1].sides[:1])


def test_known_files_answer_at_once_and_new_ones_at_the_next_read(
    worker: PeersWorker, catalog: Catalog, readings: list[set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_REST_S", 1_000_000.0)
    with pipe_of(1, 1) as (first, _, _), pipe_of(1, 2) as (second, readers, writers), pipe_of(1, 1) as (third, _, gone):
        peers_of(worker, catalog, first)
        with pipe_of(1, 1) as (newer, _, _):
            worker.find({newer: OWN})
            until(lambda: not worker._requests)  # pyright: ignore[reportPrivateUsage]
            (found,) = peers_of(worker, catalog, second)
            assert by_role(found) == {READER: {*readers}, WRITER: {*writers}}
            os.kill(gone[0].pid, 9)
            until(lambda: not Path(f"/proc/{gone[0].pid}/fd/1").exists())
            worker.find({third: OWN})
            peers_of(worker, catalog, first, second)
            assert (catalog.peers_of(newer), catalog.peers_of(third)) == (NO_PEERS, NO_PEERS)
            assert readings == [{first.name}]


@pytest.mark.parametrize("most", [0, 1 << 20])
def test_with_too_many_open_pipes_and_sockets_none_is_cached(
    most: int, worker: PeersWorker, catalog: Catalog, readings: list[set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_SCANNED", most)
    with pipe_of(1, 1) as (first, _, _), pipe_of(1, 1) as (second, _, _):
        peers_of(worker, catalog, first)
        (found,) = peers_of(worker, catalog, second)
        assert [side.total for side in found.sides] == [1, 1]
        assert len(readings) == (1 if most else 2)


def test_a_recent_lookup_is_not_repeated(worker: PeersWorker, catalog: Catalog, readings: list[set[str]]) -> None:
    with pipe_of(1, 1) as (pipe, _, _):
        nothing = Object("pipe", "pipe:[1]")
        for _ in range(3):
            peers_of(worker, catalog, pipe, nothing)
        assert len(readings) == 1


def test_with_too_many_files_on_the_machine_no_peers_are_found(
    worker: PeersWorker, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_FILES", 3)
    with pipe_of(1, 1) as (pipe, _, _):
        assert peers_of(worker, catalog, pipe) == [NO_PEERS]


def test_the_worker_pauses_between_reads_and_closes_at_once(
    worker: PeersWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[float] = []
    at = threading.Semaphore(0)

    def rest(_: Worker, seconds: float) -> bool:
        rests.append(seconds)
        at.release()
        return True

    monkeypatch.setattr(module, "_AT_ONCE_S", 0.0)
    monkeypatch.setattr(Worker, "rest", rest)
    worker.find({Object("pipe", "pipe:[1]"): OWN})
    assert at.acquire(timeout=SECONDS)
    assert at.acquire(timeout=SECONDS)
    worker.close()
    until(lambda: not any(thread.name == "offtop-peers" for thread in threading.enumerate()))
    worker.find({Object("pipe", "pipe:[2]"): OWN})


def test_requests_and_results_are_bounded(
    worker: PeersWorker, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_KNOWN", 2)
    monkeypatch.setattr(module, "_MOST_RETRIES", 2)
    with pipe_of(1, 1) as (first, _, _), pipe_of(1, 1) as (second, _, _), pipe_of(1, 1) as (third, _, _):
        for one in (first, second, third):
            ask(worker, {one: OWN})
        assert [*catalog.peers] == [second, third]
        assert len(worker._retry_s) <= 2 >= len(worker._holders)  # pyright: ignore[reportPrivateUsage]


@pytest.mark.kernel
def test_a_pipe_reader_waits_for_its_writer_and_vice_versa() -> None:
    with pipe_between("exec cat", "exec sleep 1000") as (reads, sleeps):
        assert waits_for(reads) == [f"writer: sleep({sleeps})"]
    with pipe_between("exec sleep 1000", "exec cat /dev/zero") as (sleeps, writes):
        assert waits_for(writes) == [f"reader: sleep({sleeps})"]


_LOCKS = """
import fcntl, sys, time
file = open(sys.argv[2], "w")
getattr(fcntl, sys.argv[1])(file, fcntl.LOCK_EX)
print("has it", flush=True)
time.sleep(1000)
"""


@pytest.mark.kernel
@pytest.mark.parametrize("how", ["flock", "lockf"])
def test_a_waiter_for_a_file_lock_waits_for_its_holder(how: str, tmp_path: Path) -> None:
    command = (sys.executable, "-c", _LOCKS, how, str(tmp_path / "lock"))
    with ExitStack() as opened:
        both: list[subprocess.Popen[bytes]] = []
        for _ in range(2):
            both.append(subprocess.Popen(command, stdout=subprocess.PIPE))
            opened.callback(both[-1].wait)
            opened.callback(both[-1].kill)
            assert both[0].stdout and (len(both) > 1 or both[0].stdout.readline())
        comm = Path(f"/proc/{both[0].pid}/comm").read_text().strip()
        assert waits_for(both[1].pid) == [f"holder: {comm}({both[0].pid})"]


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("keeps", "left"),
    [
        ("exec sleep 1000", ["sleep"]),
        ("sleep 1000; :", ["sh", "sleep"]),
        ("exec 8>&9 9>&-; exec sleep 1000", ["sleep"]),
    ],
)
def test_a_lock_whose_taker_exited_belongs_to_all_that_have_the_file_open(
    keeps: str, left: list[str], tmp_path: Path
) -> None:
    """flock(1) takes the lock and exits; /proc/locks still lists its PID."""
    file = tmp_path / "lock"
    with ExitStack() as opened:

        def begun(command: str, *pass_fds: int) -> subprocess.Popen[str]:
            made = subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, text=True, start_new_session=True)
            opened.callback(made.wait)
            opened.callback(os.killpg, made.pid, signal.SIGKILL)
            assert made.stdout and made.stdout.readline() == "it is on\n"
            return made

        has_it = begun(f"exec 9>{file}; flock 9; echo it is on; {keeps}")
        took = int(next(line.split()[4] for line in locks() if line.split()[5].endswith(f":{file.stat().st_ino}")))
        assert not Path(f"/proc/{took}").exists()
        waits = begun(f"exec 9>{file}; echo it is on; exec flock 9")
        until(lambda: Path(f"/proc/{waits.pid}/comm").read_text() == "flock\n")
        (holders,) = waits_for(waits.pid)
        assert re.fullmatch(r"holder: " + ", ".join(rf"{comm}\(\d+\)" for comm in left), holders)
        assert f"({has_it.pid})" in holders and f"({took})" not in holders


def locks() -> list[str]:
    return Path("/proc/locks").read_text().splitlines()


def test_an_unrelated_pid_in_a_lock_line_is_not_reported(tmp_path: Path) -> None:
    """As with a reused PID: this process has the file open, but holds no lock."""
    file = tmp_path / "lock"
    with file.open("w") as opened, file.open("w") as another:
        fcntl.flock(another, fcntl.LOCK_EX)
        (line,) = (line for line in locks() if line.split()[5].endswith(f":{file.stat().st_ino}"))
        held = " ".join(line.split()[1:])
        fdinfo = (Path(f"/proc/self/fdinfo/{one.fileno()}").read_bytes() for one in (opened, another))
        assert [held in locks_in(one) for one in fdinfo] == [False, True]


def test_a_file_without_lock_waiters_has_no_peers(worker: PeersWorker, catalog: Catalog, tmp_path: Path) -> None:
    assert peers_of(worker, catalog, Object("file", str(tmp_path / "lock"))) == [NO_PEERS]


@pytest.mark.variant
@pytest.mark.kernel
def test_json_has_peers_and_what_an_epoll_watches() -> None:
    epolls = subprocess.Popen([sys.executable, "-c", _POLLS])
    try:
        with pipe_between("exec cat", "exec sleep 1000") as (reads, sleeps):
            out = run("--json", "-n", "4", "-d", "1", "-p", f"{reads},{epolls.pid}").out
            ticks = [json.loads(line) for line in out.splitlines()]
            on = [{one["pid"]: one["object"] for one in tick["still_blocked"] if one["object"]} for tick in ticks]
            assert on[-1][reads]["ends"] == [{"role": "writer", "pid": sleeps, "comm": "sleep"}]
            assert (on[-1][reads]["ends_more"], on[-1][reads]["members"]) == (0, None)
            assert (on[-1][epolls.pid]["members"], on[-1][epolls.pid]["ends"]) == ({"socket": 3}, None)
    finally:
        epolls.kill()
        epolls.wait(10)


@contextmanager
def pipe_between(reader: str, writer: str) -> Generator[tuple[int, int]]:
    """Yield the PIDs of two shell commands with a pipe between them."""
    read, write = os.pipe()
    with ExitStack() as opened:
        pids: list[int] = []
        for command, stdin, stdout in ((reader, read, subprocess.DEVNULL), (writer, subprocess.DEVNULL, write)):
            process = subprocess.Popen(["sh", "-c", command], stdin=stdin, stdout=stdout)
            opened.callback(process.wait)
            opened.callback(process.kill)
            pids.append(process.pid)
        os.close(read)
        os.close(write)
        yield pids[0], pids[1]


def waits_for(pid: int) -> list[str]:
    """Return the peers of the object that its wait in progress is on."""
    with watch.watching(Filters(min_ns=MS, pids=(pid,))) as live:
        for _ in range(100):
            live.tick(0.1)
            catalog, one = live.last.catalog, live.last.waiting.get(ThreadKey(pid, pid))
            if one is not None and (on := waited_on([(pid, one.site.wake)], catalog.wakes)):
                live.source.find_peers(on)
                if texts := [
                    text for what in on if (text := catalog.peers_of(what).text(catalog.stack(one.site.kernel)))
                ]:
                    return texts
    return []
