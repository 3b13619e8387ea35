"""Ask the HTTP API of Prometheus, which VictoriaMetrics, Thanos and Mimir have, too.

Nothing about the other side is trusted: an answer has a deadline and a maximum size, and its form is checked.
"""

import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec
import urllib3
from msgspec import Struct
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NameResolutionError,
    NewConnectionError,
    ReadTimeoutError,
    SSLError,
)

from offtop.errors import OfftopError, UsageError
from offtop.fleet.access import OPTION, Access
from offtop.printable import printable
from offtop.units import NS_PER_S

SECONDS = 15.0
"""A whole answer takes no longer than this."""
_CONNECT_SECONDS = 5.0
_MOST_BYTES = 8 << 20
_CHUNK_BYTES = 64 << 10
_MOST_VALUE, _MOST_SECONDS = 1e15, float(1 << 33)
"""Largest value, and last point in time (in the year 2242), that can be true."""
_MOST_TEXT = 200
"""How much of an error text of the other side is shown."""

T = TypeVar("T")


class ApiError(OfftopError):
    """The API did not give a usable answer."""


class Sample(NamedTuple):
    labels: Mapping[str, str]
    at_ns: int
    value: float


class Series(NamedTuple):
    labels: Mapping[str, str]
    values: Sequence[tuple[int, float]]
    """(time in ns, value), oldest first."""


class _Sample(Struct):
    metric: dict[str, str]
    value: tuple[float, str]


class _Series(Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]]


class _Vector(Struct):
    result: list[_Sample]


class _Matrix(Struct):
    result: list[_Series]


class _Error(Struct):
    error: str


class _VectorAnswer(Struct):
    data: _Vector


class _MatrixAnswer(Struct):
    data: _Matrix


class Client:
    """One connection to the API. Not thread-safe."""

    def __init__(self, url: str, access: Access, seconds: float = SECONDS) -> None:
        """Connect with the first query. Raises UsageError if `url` is none."""
        self._access, self._seconds = access, seconds
        not_one = f"{printable(url)} is not the URL of a Prometheus. Give one such as http://prometheus:9090"
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
                raise UsageError(not_one)
            if parts.username is not None or parts.password is not None:
                raise UsageError(
                    f"Other users can see a password in a URL. Put it into a file, and give that with {OPTION}"
                )
            self._pool = _pool(parts.scheme, parts.hostname, parts.port, access, self._connected, seconds)
        except ValueError:  # a port or a host that is none
            raise UsageError(not_one) from None
        self.url = printable(f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/"))
        self._path = parts.path.rstrip("/")
        self._connection: HTTPConnection | None = None
        self._is_cut = False

    def query(self, text: str, at_ns: int | None = None) -> list[Sample]:
        """Return the samples of an instant query; `at_ns`: None is now, by the clock of the other side.

        Values that are no number, or too large for any of offtop's, are left out. Raises ApiError.
        """
        form = {"query": text} | ({} if at_ns is None else {"time": _seconds_text(at_ns)})
        answer = self._ask("query", form, _VectorAnswer)
        found = ((one.metric, one.value) for one in answer.data.result)
        samples = (Sample(labels, _ns(at), _number(value)) for labels, (at, value) in found)
        return [one for one in samples if abs(one.value) <= _MOST_VALUE]

    def query_range(self, text: str, begin_ns: int, end_ns: int, step_ns: int) -> list[Series]:
        """Return series of a query that is evaluated each `step_ns`. Raises ApiError."""
        form = {"query": text, "start": _seconds_text(begin_ns), "end": _seconds_text(end_ns)}
        answer = self._ask("query_range", form | {"step": _seconds_text(step_ns)}, _MatrixAnswer)
        return [
            Series(one.metric, [(_ns(at), n) for at, value in one.values if abs(n := _number(value)) <= _MOST_VALUE])
            for one in answer.data.result
        ]

    def close(self) -> None:
        """End the connection, and with it a request in another thread. Thread-safe."""
        self._cut()
        self._pool.close()

    def _ask(self, path: str, form: Mapping[str, str], kind: type[T]) -> T:
        status, content, body = self._request(f"{self._path}/api/v1/{path}", form)
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise ApiError(f"{self.url} refuses access ({status}). Give a user or token with {OPTION} FILE")
        if status != HTTPStatus.OK:
            self._raise_for(status, body)
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise ApiError(
                f"{self.url} answers something else than Prometheus's API ({_short(content) or 'of no type'}). Check "
                "the URL: it is the one that Grafana has"
            ) from None

    def _raise_for(self, status: int, body: bytes) -> None:
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            text = _short(msgspec.json.decode(body, type=_Error).error)
            raise ApiError(
                f"{self.url}: {text}. Choose a shorter range, use --filter, or load offtop's recording rules"
            )
        if status == HTTPStatus.NOT_FOUND:
            raise ApiError(f"{self.url} has no /api/v1. Give the URL that Grafana has, e.g. http://mimir/prometheus")
        raise ApiError(f"{self.url} answers with status {status}. Is it Prometheus, and is it up?")

    def _request(self, path: str, form: Mapping[str, str]) -> tuple[int, str, bytes]:
        """Return status, content type and body."""
        headers = {"Accept-Encoding": "gzip", "User-Agent": "offtop", **self._access.headers()}
        self._is_cut = False
        timer = threading.Timer(self._seconds, self._cut)
        timer.daemon = True
        timer.start()
        try:
            answer = self._pool.request(
                "POST",
                path,
                fields=dict(form),
                encode_multipart=False,
                headers=headers,
                preload_content=False,
                redirect=False,
                retries=False,
            )
            try:
                where = answer.headers.get("Location")
                if 300 <= answer.status < 400 and where:
                    raise ApiError(f"{self.url} redirects to {_short(where)}. Give the URL behind that")
                body = b"".join(self._chunks(answer))
                if self._is_cut:  # what came until then looks like a whole answer
                    raise TimeoutError
                answer.release_conn()
            except BaseException:
                answer.close()
                raise
            return answer.status, answer.headers.get("Content-Type", ""), body
        except (HTTPError, OSError, ValueError) as error:
            raise ApiError(self._error_text(error)) from None
        finally:
            timer.cancel()

    def _chunks(self, answer: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
        size, end_s = 0, time.monotonic() + self._seconds
        while chunk := answer.read1(_CHUNK_BYTES, decode_content=True):
            size += len(chunk)
            if size > _MOST_BYTES:
                raise ApiError(f"{self.url} answers with more than 8 MB. Narrow it with --filter, e.g. job=db")
            if time.monotonic() > end_s:
                self._is_cut = True
                raise TimeoutError
            yield chunk

    def _connected(self, connection: HTTPConnection) -> None:
        self._connection = connection

    def _cut(self) -> None:
        """End the request in progress."""
        self._is_cut = True
        sock = self._connection.sock if self._connection else None
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _error_text(self, error: Exception) -> str:
        match error:
            case _ if self._is_cut or isinstance(error, ReadTimeoutError | TimeoutError):
                return (
                    f"{self.url} did not answer within {self._seconds:.0f} s. Choose a shorter range, or use --filter"
                )
            case NameResolutionError():
                return f"{self.url}: there is no machine with this name. Check the URL"
            case SSLError():
                return f"{self.url}: TLS fails ({_short(_reason(error))}). Give its CA certificate: --ca-file FILE"
            case NewConnectionError():
                return f"{self.url} does not answer ({_short(_reason(error))}). Is it up, and is this its port?"
            case ConnectTimeoutError():
                return f"{self.url} cannot be reached within {_CONNECT_SECONDS:.0f} s. Check the address, and firewalls"
            case _:
                return f"{self.url} broke off ({_short(_reason(error))}). Is it Prometheus, and is it up?"


def _pool(
    scheme: str,
    host: str,
    port: int | None,
    access: Access,
    connected: Callable[[HTTPConnection], None],
    seconds: float,
) -> urllib3.HTTPConnectionPool:
    """Return a pool of one connection, which is passed to `connected` before it is made."""
    timeout = urllib3.Timeout(connect=min(seconds, _CONNECT_SECONDS), read=seconds)

    class Plain(HTTPConnection):
        def connect(self) -> None:
            connected(self)
            super().connect()

    class Encrypted(HTTPSConnection):
        def connect(self) -> None:
            connected(self)
            super().connect()

    shared: dict[str, Any] = {"port": port, "timeout": timeout, "maxsize": 1, "block": True}
    if scheme == "http":
        pool = urllib3.HTTPConnectionPool(host, **shared)
        pool.ConnectionCls = Plain  # pyright: ignore[reportAttributeAccessIssue]  # as urllib3 itself does
        return pool
    secure = urllib3.HTTPSConnectionPool(
        host,
        cert_reqs="CERT_REQUIRED",
        ca_certs=access.ca_file or None,
        cert_file=access.cert_file or None,
        key_file=access.key_file or None,
        server_hostname=access.server_name or None,
        **shared,
    )
    secure.ConnectionCls = Encrypted  # pyright: ignore[reportAttributeAccessIssue]
    return secure


def _reason(error: BaseException) -> str:
    """Return the innermost reason that has a text: `Connection refused`."""
    found = error
    while (inner := found.__cause__ or found.__context__ or next(iter(_causes(found)), None)) is not None:
        found = inner
    text = getattr(found, "strerror", None) or str(found) or type(found).__name__
    return str(text)


def _causes(error: BaseException) -> Iterator[BaseException]:
    return (one for one in error.args if isinstance(one, BaseException))


def _short(text: str) -> str:
    shown = printable(" ".join(text.split()))
    return shown if len(shown) <= _MOST_TEXT else f"{shown[:_MOST_TEXT]}…"


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _ns(seconds: float) -> int:
    if not 0 <= seconds <= _MOST_SECONDS:
        raise ApiError(f"The API answers with the time {seconds:.4g} s. Check its clock, and whether it is Prometheus")
    return round(seconds * 1000) * (NS_PER_S // 1000)


def _seconds_text(ns: int) -> str:
    return f"{ns / NS_PER_S:.3f}"
