"""Hostile clients, which are slow, endless, or many, take a limited time and number of threads; others get answers."""

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Generator, Mapping
from unittest import mock

import pytest

from offtop import faults
from offtop.agent import server as server_module
from offtop.agent.server import Answer, Page, Server, address
from offtop.errors import OfftopError, UsageError
from tests.agent.serving import get, serving

LARGE = Answer(200, b"x" * (8 << 20), may_zip=False)
PAGES: Mapping[str, Page] = {
    "/": lambda _: Answer(200, b"hello"),
    "/large": lambda _: LARGE,
    "/query": lambda request: Answer(200, repr(sorted(request.query)).encode()),
}
SECONDS = 0.5


@pytest.fixture
def server() -> Generator[Server]:
    with serving(PAGES, seconds=SECONDS) as server:
        yield server


@contextlib.contextmanager
def connected(server: Server) -> Generator[socket.socket]:
    host, _, port = server.text.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as client:
        yield client


def answer_to(server: Server, request: bytes) -> bytes:
    """Send bytes, and return all that comes back until the server closes the connection."""
    with connected(server) as client:
        with contextlib.suppress(OSError):  # it may have closed the connection already
            client.sendall(request)
        return rest_of(client)


def rest_of(client: socket.socket) -> bytes:
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while more := client.recv(1 << 16):
            found += more
    return found


@pytest.fixture
def busy() -> Callable[[], int]:
    """Return how many threads serve requests, without those of servers of earlier tests."""
    others = {*threading.enumerate()}
    return lambda: sum("process_request_thread" in one.name for one in {*threading.enumerate()} - others)


def test_pages_are_answered_and_others_are_listed(server: Server) -> None:
    assert get(server, "/").body == b"hello"
    missing = get(server, "/nosuch?x=<script>")
    assert (missing.status, missing.text) == (404, "There is no such page. There are: /, /large, /query\n")
    assert get(server, "/", method="HEAD").body == b""
    assert get(server, "/", method="POST").status == 501
    assert len(get(server, "/large").body) == 8 << 20
    assert server.refusals == 0


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\r\n", b""),
        (b"GET\r\n\r\n", b"400"),
        (b"GET / HTTP/9.9\r\n\r\n", b"505"),
        (b"GET / HTTP/x\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"400"),
        (b"GET http://[/ HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /?" + b"&".join([b"a=1"] * 100) + b" HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /\xff\x00 HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"200"),
    ],
)
def test_malformed_requests_get_an_error_that_does_not_quote_them(
    server: Server, request_bytes: bytes, status: bytes
) -> None:
    answered = answer_to(server, request_bytes)
    assert answered.partition(b"\r\n")[0].split(b" ")[1:2] == ([status] if status else [])
    assert b"aaa" not in answered and b"\xff" not in answered
    assert get(server, "/").status == 200


def test_endless_request_ends_after_its_size_limit(server: Server) -> None:
    sent = 0
    with connected(server) as client:
        client.sendall(b"GET / HTTP/1.1\r\n")
        with contextlib.suppress(OSError):
            while sent < 64 << 20:
                sent += client.send(b"x: " + b"y" * 1000 + b"\r\n")
    assert sent < 64 << 20
    assert get(server, "/").status == 200


def test_slow_request_ends_at_its_deadline_however_often_a_byte_comes(server: Server) -> None:
    began_s = time.monotonic()
    with connected(server) as client:
        with contextlib.suppress(OSError):
            while time.monotonic() - began_s < 10:
                client.send(b"G")
                time.sleep(0.02)
                if select.select([client], [], [], 0)[0]:
                    break
        rest_of(client)
    assert SECONDS <= time.monotonic() - began_s < SECONDS + 3


def test_client_that_does_not_read_its_answer_is_cut_off(busy: Callable[[], int], server: Server) -> None:
    with connected(server) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(b"GET /large HTTP/1.1\r\n\r\n")
        until(lambda: busy() == 1)
        began_s = time.monotonic()
        until(lambda: busy() == 0)
        assert time.monotonic() - began_s > SECONDS / 2


@pytest.mark.parametrize("error", [ValueError("shapes differ"), OSError("no file"), TimeoutError(), KeyError(5)])
def test_an_error_of_a_page_is_answered_and_reported(error: Exception) -> None:
    reported: list[BaseException] = []
    broken = mock.Mock(side_effect=error)
    with (
        faults.report_thread_errors(lambda one, _: reported.append(one)),
        serving({"/": PAGES["/"], "/broken": broken}) as server,
    ):
        got = get(server, "/broken")
        assert (got.status, got.text) == (500, "offtop could not answer. Its log says why\n")
        until(lambda: reported == [error])
        assert get(server, "/").body == b"hello"
    assert reported == [error]


def test_a_client_that_leaves_or_talks_nonsense_is_not_reported(busy: Callable[[], int]) -> None:
    reported: list[BaseException] = []
    is_asked, is_left = threading.Event(), threading.Event()

    def late(_: object) -> Answer:
        is_asked.set()
        is_left.wait(10)
        return LARGE

    with (
        faults.report_thread_errors(lambda one, _: reported.append(one)),
        serving({"/late": late}, seconds=SECONDS) as server,
    ):
        answer_to(server, b"\x16\x03\x01 nonsense\r\n\r\n")
        with connected(server) as client:
            client.sendall(b"GET /late HTTP/1.1\r\n\r\n")
            assert is_asked.wait(10)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closes with a reset
        is_left.set()
        until(lambda: busy() == 0)
    assert reported == []


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_connections_beyond_the_limit_are_closed_and_room_comes_back(busy: Callable[[], int], server: Server) -> None:
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(connected(server)) for _ in range(50)]
        until(lambda: server.refusals == 46)
        assert busy() == 4
        assert [rest_of(one) for one in idle] == [b""] * 50  # at once, or at the deadline
    until(lambda: busy() == 0)
    assert get(server, "/").body == b"hello"


@pytest.mark.parametrize(
    ("host", "client"),
    [
        ("127.0.0.9", "127.0.0.0/8"),
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::1"),
    ],
)
def test_addresses_that_one_client_can_choose_count_as_one(host: str, client: str) -> None:
    assert server_module.client_of(host) == client


def test_one_client_cannot_keep_the_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "client_of", str)  # there are only addresses of this machine
    with serving(PAGES, most_connections=4, most_of_one=2) as server, contextlib.ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(connected(server))
        until(lambda: server.refusals == 3)
        host, _, port = server.text.rpartition(":")
        with socket.create_connection((host, int(port)), 10, source_address=("127.0.0.2", 0)) as other:
            other.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert rest_of(other).endswith(b"hello")


@pytest.mark.parametrize(
    ("accepted", "is_zipped"),
    [("gzip", True), ("br, GZIP;q=0.5", True), ("gzip;q=0", False), ("gzip; q=0.000, br", False), ("x-gzip", False)],
)
def test_answer_is_compressed_only_for_clients_that_want_that(accepted: str, is_zipped: bool) -> None:
    with serving({"/": lambda _: Answer(200, bytes(5000))}) as server:
        got = get(server, "/", {"Accept-Encoding": accepted})
    assert (got.headers.get("Content-Encoding") == "gzip", len(got.body) < 5000) == (is_zipped, is_zipped)


def test_parameters_are_parsed(server: Server) -> None:
    assert get(server, "/query?b=1&a=2&a=3").body == b"['a', 'b']"


@pytest.mark.parametrize(
    ("text", "host", "port", "is_loopback"),
    [
        ("127.0.0.1:9877", "127.0.0.1", 9877, True),
        ("127.8.8.8:1", "127.8.8.8", 1, True),
        ("localhost:0", None, 0, True),
        ("[::1]:9877", "::1", 9877, True),
        ("0.0.0.0:9877", "0.0.0.0", 9877, False),
        ("[::]:9877", "::", 9877, False),
        ("10.1.2.3:80", "10.1.2.3", 80, False),
    ],
)
def test_addresses_and_whether_only_this_machine_reaches_them(
    text: str, host: str | None, port: int, is_loopback: bool
) -> None:
    found = address(text)
    assert (found.port, found.is_loopback) == (port, is_loopback)
    assert host in (None, found.host)


def test_a_port_alone_stands_for_all_addresses() -> None:
    assert not address(":9877").is_loopback


@pytest.mark.parametrize("text", ["", "9877", "127.0.0.1", "::1:9877", "a:b", "a:65536", "a:-1", "a:1e3", "[::1]"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not an address and a port. Try 127\.0\.0\.1:9877"):
        address(text)


def test_unknown_hosts_are_refused() -> None:
    with pytest.raises(UsageError, match=r"nosuch\.invalid has no address here"):
        address("nosuch.invalid:1")


def test_a_taken_port_is_an_error_with_another_one_to_try(server: Server) -> None:
    where = address(server.text)
    with pytest.raises(OfftopError, match=rf"cannot be listened on \(Address already in use\).*:{where.port + 1}$"):
        Server(where, lambda: pytest.fail("nobody connects"))
