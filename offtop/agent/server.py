"""The agent's HTTP server: one request per connection, each with a deadline, and a limited number at a time.

A client may be hostile: slow, endless, or one of thousands. So the time of a connection is limited as a whole, not from
byte to byte; so are the bytes of a request and the number of threads. No answer contains what a client has sent.
"""

import base64
import binascii
import contextlib
import gzip
import http
import io
import re
import select
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from email.message import Message
from http.server import BaseHTTPRequestHandler
from ipaddress import IPv6Address, ip_address, ip_network
from types import MappingProxyType
from typing import Any, NamedTuple, cast
from urllib.parse import parse_qs, urlsplit

from offtop.agent.web_config import Access
from offtop.errors import OfftopError, UsageError
from offtop.printable import printable

MOST_CONNECTIONS = 32
MOST_OF_ONE_ADDRESS = 8
"""So that no client keeps all others out; its addresses count as one, see client_of."""
REQUEST_SECONDS = 10.0
"""Time for the TLS handshake and the request, and again for sending the answer."""
_MOST_REQUEST_BYTES = 16 << 10
_MOST_QUEUED = 64
_LEAST_ZIPPED = 1 << 10
"""Shorter answers are not compressed."""
_CHUNK_BYTES = 64 << 10
_REFUSES = re.compile(r"q *= *0(\.0*)?")
"""Weight by which a client refuses an encoding (RFC 9110, 12.4.2)."""


class Answer(NamedTuple):
    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    zipped: bytes = b""
    """The body, compressed already; empty: it is compressed if the client accepts that."""
    may_zip: bool = True
    headers: Mapping[str, str] = MappingProxyType({})


class Request(NamedTuple):
    query: Mapping[str, str]
    """Parameters; of those given twice, the last."""
    is_connected: Callable[[], bool]
    """Returns whether the client still waits for the answer."""


Page = Callable[[Request], Answer]


def refused(status: int, sentence: str, headers: Mapping[str, str] = MappingProxyType({})) -> Answer:
    """Return an answer that says what is wrong and what to do."""
    return Answer(status, f"{sentence}\n".encode(), headers=headers)


class Address(NamedTuple):
    family: socket.AddressFamily
    host: str
    """Numeric."""
    port: int
    is_loopback: bool

    @property
    def text(self) -> str:
        return f"[{self.host}]:{self.port}" if self.family == socket.AF_INET6 else f"{self.host}:{self.port}"


def address(text: str) -> Address:
    """Parse `127.0.0.1:9877`, `[::1]:9877`, `localhost:9877`, or `:9877` for all addresses. Raises UsageError."""
    host, colon, port = text.rpartition(":")
    inner = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    wrong = UsageError(
        f"--listen: '{printable(text)}' is not an address and a port. Try 127.0.0.1:9877, [::1]:9877, or :9877 for all"
    )
    if not colon or (":" in host and inner == host) or not (port.isascii() and port.isdecimal() and len(port) < 6):
        raise wrong
    number = int(port)
    if number >= 1 << 16:
        raise wrong
    if not inner:
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        return Address(family, "::" if family == socket.AF_INET6 else "0.0.0.0", number, False)
    try:
        found = socket.getaddrinfo(inner, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise UsageError(f"--listen: {printable(inner)} has no address here. Give one of this machine's") from None
    family, _, _, _, of_socket = found[0]
    numeric = str(of_socket[0])
    return Address(family, numeric, number, ip_address(numeric.partition("%")[0]).is_loopback)


class Server:
    """Listens from the beginning, and answers requests in threads of its own from `start` to `close`."""

    def __init__(
        self,
        where: Address,
        access: Callable[[], Access],
        most_connections: int = MOST_CONNECTIONS,
        seconds: float = REQUEST_SECONDS,
        most_of_one: int = MOST_OF_ONE_ADDRESS,
    ) -> None:
        """`access` is asked at each connection. Raises OfftopError if the address cannot be listened on."""
        self._where = where
        self._thread: threading.Thread | None = None
        try:
            self._tcp = _Tcp(where, access, most_connections, seconds, most_of_one)
        except OSError as error:
            other = where._replace(port=where.port + 1 if where.port < 65535 else 9877).text
            raise OfftopError(
                f"{where.text} cannot be listened on ({error.strerror}). Stop what does, or choose: --listen {other}"
            ) from None

    @property
    def text(self) -> str:
        """The address, with the port that the kernel chose for port 0."""
        return self._where._replace(port=self._tcp.server_address[1]).text

    @property
    def refusals(self) -> int:
        """Connections that were closed at once because there were too many, of all or of one client."""
        return self._tcp.refusals

    def start(self, pages: Mapping[str, Page]) -> None:
        """Answer requests. `pages`: by path."""
        self._tcp.pages = pages
        self._thread = threading.Thread(target=self._tcp.serve_forever, name="offtop-http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening. Answers that are being sent may be cut off."""
        if self._thread:
            self._tcp.shutdown()
        self._tcp.server_close()


class _TooLargeError(Exception):
    pass


class _Tcp(socketserver.ThreadingMixIn, socketserver.TCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = _MOST_QUEUED

    def __init__(
        self,
        where: Address,
        access: Callable[[], Access],
        most_connections: int,
        seconds: float,
        most_of_one: int,
    ) -> None:
        self.address_family = where.family
        self.access, self.seconds = access, seconds
        self.pages: Mapping[str, Page] = {}
        self.refusals = 0
        self._most, self._most_of_one = most_connections, most_of_one
        self._lock, self._connections = threading.Lock(), Counter[str]()
        super().__init__((where.host, where.port), _Connection)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6 and self.server_address[0] == "::":
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Return whether there is room for one more connection; if not, it is closed."""
        client = client_of(client_address[0])
        with self._lock:
            is_free = self._connections.total() < self._most and self._connections[client] < self._most_of_one
            if is_free:
                self._connections[client] += 1
        self.refusals += not is_free
        return is_free

    def _release(self, client_address: Any) -> None:
        with self._lock:
            self._connections[client_of(client_address[0])] -= 1
            self._connections = +self._connections  # without those that have none left

    def process_request(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no more threads
            self._release(client_address)
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._release(client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Pass on an unexpected error, which faults.py reports. Clients cause none: _Connection handles theirs."""
        raise  # socketserver calls this in its except block


def client_of(host: str) -> str:
    """Return what all addresses of one client have in common: 127.0.0.0/8, and the /64 of an IPv6 address."""
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    if isinstance(address, IPv6Address) and not address.is_link_local:
        return str(ip_network((address, 64), strict=False))
    return "127.0.0.0/8" if address.is_loopback else str(address)


class _Incoming(io.RawIOBase):
    """Reads from a socket until a deadline, and no more than a request may have."""

    def __init__(self, from_socket: socket.socket, deadline_s: float) -> None:
        self._socket, self._deadline_s = from_socket, deadline_s
        self._left = _MOST_REQUEST_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any, /) -> int:
        if not self._left:
            raise _TooLargeError
        self._socket.settimeout(max(0.001, self._deadline_s - time.monotonic()))
        found = self._socket.recv_into(memoryview(into)[: self._left])
        self._left -= found
        return found


class _Connection(BaseHTTPRequestHandler):
    """One connection, with one request."""

    server: _Tcp  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.0"
    server_version, sys_version = "offtop", ""

    def setup(self) -> None:
        self._deadline_s = time.monotonic() + self.server.seconds
        self._access = self.server.access()
        self.connection: socket.socket = self.request
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        self.command, self.requestline, self.request_version = "", "", self.protocol_version
        self.headers = Message()
        self._is_read = False

    def handle(self) -> None:
        self._read()
        if self._is_read:
            self._respond()

    def _read(self) -> None:
        """Read the request, and answer one that is refused."""
        # What clients do wrong, or that they leave, ends their connection, and nothing else.
        with contextlib.suppress(OSError, ValueError):
            if self._access.tls:
                self.connection = self._access.tls.wrap_socket(
                    self.connection, server_side=True, do_handshake_on_connect=False
                )
                self.connection.settimeout(self.server.seconds)
                self.connection.do_handshake()
            self.rfile = io.BufferedReader(_Incoming(self.connection, self._deadline_s))
            self.wfile = io.BytesIO()
            try:
                self.handle_one_request()
            except _TooLargeError:
                self._send(refused(431, "The request is too large"))

    def finish(self) -> None:
        """Close the connection. Without TLS, the server does that."""
        if self.connection is not self.request:
            self.connection.close()

    def do_GET(self) -> None:
        self._is_read = True

    def do_HEAD(self) -> None:
        self.do_GET()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that http.server refuses, without quoting it."""
        self.request_version = self.protocol_version  # that of HTTP/0.9 has no status
        self._send(refused(code, http.HTTPStatus(code).phrase))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the name that http.server gives it
        """Log nothing: a client could fill the journal."""

    def _respond(self) -> None:
        try:
            answer = self._answer()
        except Exception:
            self._send(refused(500, "offtop could not answer. Its log says why"))
            raise
        self._send(answer)

    def _answer(self) -> Answer:
        try:
            url = urlsplit(self.path)
            query = {
                key: values[-1]
                for key, values in parse_qs(url.query, max_num_fields=10, keep_blank_values=True).items()
            }
        except ValueError:
            return refused(400, "This is not a URL")
        try:
            if self._access.needs_password and not self._is_admitted():
                return refused(401, "Wrong user or password", {"WWW-Authenticate": 'Basic realm="offtop"'})
        except TimeoutError:
            return refused(503, "Too many passwords are being checked. Try again later", {"Retry-After": "10"})
        page = self.server.pages.get(url.path)
        if page is None:
            return refused(404, f"There is no such page. There are: {', '.join(self.server.pages)}")
        return page(Request(query, self._is_connected))

    def _is_admitted(self) -> bool:
        kind, _, encoded = self.headers.get("Authorization", "").partition(" ")
        if kind.lower() != "basic":
            return False
        try:
            decoded = base64.b64decode(encoded.strip(), validate=True).decode()
        except (binascii.Error, ValueError):
            return False
        user, _, password = decoded.partition(":")
        return self._access.admits(user, password, self._deadline_s - time.monotonic())

    def _is_connected(self) -> bool:
        poll = select.poll()
        poll.register(self.connection, select.POLLRDHUP)
        return not poll.poll(0)

    def _send(self, answer: Answer) -> None:
        body = answer.body
        headers = {**answer.headers, "Content-Type": answer.content_type, "Cache-Control": "no-store"}
        if answer.may_zip and len(body) >= _LEAST_ZIPPED and self._accepts_gzip():
            body = answer.zipped or gzip.compress(body, 1)
            headers["Content-Encoding"] = "gzip"
        self.send_response(answer.status)
        for name, value in {**headers, "Content-Length": str(len(body)), "Connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()
        written = cast(io.BytesIO, self.wfile).getvalue()
        self._write(written if self.command == "HEAD" else written + body)

    def _accepts_gzip(self) -> bool:
        for one in str(self.headers.get("Accept-Encoding", "")).lower().split(","):
            name, *parameters = (part.strip() for part in one.split(";"))
            if name == "gzip":
                return not any(_REFUSES.fullmatch(part) for part in parameters)
        return False

    def _write(self, content: bytes) -> None:
        deadline_s = time.monotonic() + self.server.seconds
        left = memoryview(content)
        with contextlib.suppress(OSError, ValueError):  # the client has left, or does not read
            while left:
                self.connection.settimeout(max(0.001, deadline_s - time.monotonic()))
                left = left[self.connection.send(left[:_CHUNK_BYTES]) :]
