"""Test which server a client waits for, on real connections."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

import pytest

from offtop.model.values.blockers import ANSWER, ELSEWHERE, UPSTREAM, Blocker
from offtop.model.values.catalog import ThreadKey
from tests.kernel import watch
from tests.kernel.blockers import child, found, never_found
from tests.kernel.watch import Watch

pytestmark = pytest.mark.kernel

FRONT = """
import selectors, socket, sys
how, backend_port = sys.argv[1], int(sys.argv[2])
front, polls = socket.create_server(("127.0.0.1", 0)), selectors.DefaultSelector()
polls.register(front, selectors.EVENT_READ)
subscribed = socket.create_connection(("127.0.0.1", backend_port))
subscribed.sendall(b"subscribe")
polls.register(subscribed, selectors.EVENT_READ)
print(front.getsockname()[1], flush=True)
kept = []
while True:
    for key, _ in polls.select():
        if key.fileobj is front:
            client, _ = front.accept()
            kept.append(client)
            polls.register(client, selectors.EVENT_READ)
        elif key.fileobj in kept:
            key.fileobj.recv(100)
            if how == "asks":
                upstream = socket.create_connection(("127.0.0.1", backend_port))
                upstream.sendall(b"request")
                kept.append(upstream)
"""
"""A server that asks another one for each request, or does not answer by itself; it has also subscribed there."""
BACKEND = """
import socket, time
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
kept = []
while True:
    kept.append(server.accept())
"""


@contextmanager
def front_and_backend(how: str) -> Generator[tuple[int, int, int]]:
    """Run both, and a client that waits for the front; yield both PIDs and the port of the backend."""
    with child(sys.executable, "-c", BACKEND) as backend:
        assert backend.stdout
        port = int(backend.stdout.readline())
        with child(sys.executable, "-c", FRONT, how, str(port)) as front:
            assert front.stdout
            at = "127.0.0.1", int(front.stdout.readline())
            time.sleep(0.5)  # the subscription is older than the request
            with socket.create_connection(at) as client:
                client.sendall(b"GET /")
                yield front.pid, backend.pid, port


def test_server_that_waits_for_another_one_names_it(live: Watch) -> None:
    with front_and_backend("asks") as (front, backend, port):
        assert found(live, ThreadKey(front, front)) == (Blocker(backend, 0, UPSTREAM, False, f"127.0.0.1:{port}"),)


SERVER = """
import os, socket, sys
print("ready", flush=True)
host, answers = sys.stdin.readline().rstrip().split(" ", 1)
server = socket.create_server((host, 0))
print(server.getsockname()[1], flush=True)
client, _ = server.accept()
if answers not in ("reads nothing", "poll, two connections"):
    client.recv(100)
if answers == "answers":
    client.sendall(b"done")
    client.recv(100)
sys.stdin.read()
"""
CLIENT = """
import os, resource, select, socket, sys, threading, time
print("ready", flush=True)
host, port, answers = sys.stdin.readline().rstrip().split(" ", 2)
server = socket.create_connection((host, int(port)))
def send():
    time.sleep(answers == "another thread")
    server.sendall(b"request")
    print("sent", flush=True)
if answers == "answers":
    send()
    server.recv(4)
else:
    threading.Thread(target=send).start()
    time.sleep(0.2 * (answers != "another thread"))
if answers == "epoll, many descriptors":
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    os.dup2(0, 1500)
if answers == "poll, two connections":
    other = socket.create_connection((host, int(port)))
polls, epoll = select.poll(), select.epoll()
if answers == "poll, two connections":
    polls.register(other, select.POLLIN)
polls.register(server, select.POLLIN)
epoll.register(server, select.EPOLLIN)
while answers.startswith("poll") and not polls.poll(300):
    pass
if answers == "epoll, descriptor reused":
    kept = os.dup(server.fileno())
    os.dup2(os.open("/dev/null", os.O_RDONLY), server.fileno())
while answers.startswith("epoll") and not epoll.poll(0.3):
    pass
while answers == "select" and not select.select([server], [], [], 0.3)[0]:
    pass
server.recv(100)
"""


@contextmanager
def client_and_server(answers: str, *, apart: bool = False) -> Generator[tuple[int, int, str]]:
    """Run a client and its server, in one network namespace or in two; yield both PIDs and the server's address."""
    own = ["unshare", "--net"] if apart else []
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with ExitStack() as stack:
        made: list[subprocess.Popen[str]] = []
        for source in (SERVER, CLIENT):
            made.append(subprocess.Popen([*own, sys.executable, "-c", source], **pipes))  # pyright: ignore
            stack.callback(made[-1].wait, 10)
            stack.callback(made[-1].kill)

        def says(process: subprocess.Popen[str], line: str = "") -> str:
            assert process.stdin and process.stdout
            if line:
                process.stdin.write(f"{line}\n")
                process.stdin.flush()
            return process.stdout.readline().strip()

        server, client = made
        assert (says(server), says(client)) == ("ready", "ready")
        if apart:
            _connect(server.pid, client.pid)
        host = "10.9.9.1" if apart else "127.0.0.1"
        port = says(server, f"{host} {answers}")
        assert says(client, f"{host} {port} {answers}") == "sent"
        yield client.pid, server.pid, f"{host}:{port}"


def _connect(one: int, other: int) -> None:
    """Connect the network namespaces of two processes, as 10.9.9.1 and 10.9.9.2."""
    names = ["ip", "link", "add", "offtop0", "netns", str(one), "type", "veth", "peer", "name", "offtop0"]
    subprocess.run([*names, "netns", str(other)], check=True)
    for number, pid in enumerate((one, other), 1):
        for words in (f"addr add 10.9.9.{number}/24 dev offtop0", "link set offtop0 up"):
            subprocess.run(["nsenter", "-t", str(pid), "-n", "ip", *words.split()], check=True)


def test_server_that_has_not_answered_is_named() -> None:
    """The client waits since before offtop began."""
    with client_and_server("silent") as (client, server, address), watch.watching_kernel_stacks() as live:
        assert found(live, ThreadKey(client, client)) == (Blocker(server, 0, ANSWER, False, address),)


def test_server_that_has_not_read_the_request_is_exact(live: Watch) -> None:
    with client_and_server("reads nothing") as (client, server, address):
        assert found(live, ThreadKey(client, client)) == (Blocker(server, 0, ANSWER, True, address),)


@pytest.mark.variant
def test_server_of_a_client_that_polls_again_and_again_is_named_after_a_second(live: Watch) -> None:
    with ExitStack() as stack:
        calls = "poll", "epoll", "epoll, descriptor reused", "select"
        clients: dict[str, ThreadKey] = {}
        for call, made in [(call, stack.enter_context(client_and_server(call))) for call in calls]:
            client, server, address = made
            clients[call] = ThreadKey(client, client)
            assert found(live, clients[call]) == (Blocker(server, 0, ANSWER, False, address),), call
        known = Counter[str]()
        for _ in range(8):
            live.tick(0.4)
            known.update(call for call, key in clients.items() if key in live.last.blockers)
    # also of waits that have begun meanwhile, but not of two in a row that are younger than 50 ms
    assert min(known[call] for call in calls) >= 6, known


def test_server_that_has_not_read_the_request_is_likely_if_the_client_polls_two_connections(live: Watch) -> None:
    with client_and_server("poll, two connections") as (client, server, address):
        assert found(live, ThreadKey(client, client)) == (Blocker(server, 0, ANSWER, False, address),)


@pytest.mark.variant
@pytest.mark.parametrize("answers", ["silent", "reads nothing"])
def test_server_in_another_network_namespace_is_named(answers: str) -> None:
    connected = client_and_server(answers, apart=True)
    with connected as (client, server, address), watch.watching_kernel_stacks() as live:
        in_it = ["nsenter", "-t", str(server), "-n", "sh", "-c", "while :; do sleep 0.2; done"]
        with child(*in_it):  # the processes that are found in a namespace may have exited by the next look
            is_exact = answers == "reads nothing"
            assert found(live, ThreadKey(client, client)) == (Blocker(server, 0, ANSWER, is_exact, address),)
            for _ in range(8):
                live.tick(0.5)
                assert live.last.blockers[ThreadKey(client, client)][0].pid == server


def test_server_that_is_on_no_network_of_this_machine_is_named_by_its_address(live: Watch) -> None:
    with client_and_server("silent", apart=True) as (client, server, address):
        down = ["nsenter", "-t", str(server), "-n", "ip", "link", "set", "offtop0", "down"]
        subprocess.run(down, check=True)  # so that the client does not learn that its server has gone
        os.kill(server, signal.SIGKILL)
        assert found(live, ThreadKey(client, client)) == (Blocker(ELSEWHERE, 0, ANSWER, False, address),)


@pytest.mark.variant
def test_nobody_is_named_if_no_answer_is_due_or_none_can_be_attributed(live: Watch) -> None:
    """Nobody owes an answer to a client that has it, nor to a server's old subscription.

    A request of another thread is not this thread's, and the epoll of a client with many descriptors is not read.
    """
    with ExitStack() as stack:
        pids = [stack.enter_context(front_and_backend("silent"))[0]]
        for answers in ("answers", "another thread", "epoll, many descriptors"):
            pids.append(stack.enter_context(client_and_server(answers))[0])
        never_found(live, *(ThreadKey(pid, pid) for pid in pids), seconds=5.0)
