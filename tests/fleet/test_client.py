"""The API is asked, and whatever else answers ends in one sentence with its remedy."""

import gzip
import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from offtop.errors import UsageError
from offtop.fleet.access import Access
from offtop.fleet.client import ApiError, Client
from offtop.units import NS_PER_S
from tests.fleet.api import AT_S, Api, Reply, always, error, matrix, running, serving, vector

_SHORTER = "Choose a shorter range, use --filter, or load offtop's recording rules"


def refusal(reply: Reply | Callable[[BaseHTTPRequestHandler], object], seconds: float = 5.0) -> str:
    with serving(always(reply)) as api:
        return refusal_of(api.url, seconds).replace(api.url, "URL")


def refusal_of(url: str, seconds: float = 5.0, access: Access | None = None) -> str:
    with pytest.raises(ApiError) as raised:
        Client(url, access or Access(), seconds).query("up")
    text = str(raised.value)
    assert text.isprintable() and len(text) < 400
    return text


def test_samples_and_series_are_read() -> None:
    with serving(always(vector(({"a": "b"}, 1.5), ({}, float("nan"))))) as api:
        client = Client(api.url, Access())
        (one,) = client.query("up", round(AT_S) * NS_PER_S)
        assert (one.labels, one.at_ns, one.value) == ({"a": "b"}, round(AT_S) * NS_PER_S, 1.5)
        assert api.requests[0].form == {"query": "up", "time": f"{AT_S:.3f}"}
        api.answers = always(matrix(({"a": "b"}, [(AT_S, 1.0), (AT_S + 1, float("inf"))])))
        (series,) = client.query_range("up", 0, NS_PER_S, NS_PER_S)
        assert series.values == [(round(AT_S) * NS_PER_S, 1.0)]
        api.answers = always(vector())
        assert client.query("up") == []
        assert [one.path for one in api.requests] == ["/api/v1/query", "/api/v1/query_range", "/api/v1/query"]


@pytest.mark.parametrize("value", [1e308, -1e308, 2e15, float("-inf")])
def test_values_that_no_host_has_are_left_out(value: float) -> None:
    with serving(always(vector(({}, value), ({}, 1.0)))) as api:
        assert [one.value for one in Client(api.url, Access()).query("up")] == [1.0]
        api.answers = always(matrix(({}, [(AT_S, value), (AT_S + 1, 1.0)])))
        (series,) = Client(api.url, Access()).query_range("up", 0, NS_PER_S, NS_PER_S)
        assert [one for _, one in series.values] == [1.0]


@pytest.mark.parametrize("at_s", [1e300, -1.0, 1e18])
def test_impossible_times_are_refused(at_s: float) -> None:
    assert refusal(vector(({}, 1.0), at_s=at_s)).endswith(" s. Check its clock, and whether it is Prometheus")


def test_path_of_the_url_is_kept_and_gzip_read() -> None:
    zipped = Reply(gzip.compress(vector(({}, 2.0)).body), 200, {"Content-Encoding": "gzip"})
    with serving(always(zipped)) as api:
        assert Client(f"{api.url}/prometheus/", Access()).query("up")[0].value == 2.0
        assert api.requests[0].path == "/prometheus/api/v1/query"
        assert Client(api.url.removeprefix("http://"), Access()).query("up")[0].value == 2.0


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (Reply(b"no", 401), "URL refuses access (401). Give a user or token with --http.config.file FILE"),
        (Reply(b"no", 403), "URL refuses access (403). Give a user or token with --http.config.file FILE"),
        (Reply(b"<html>", 404), "URL has no /api/v1. Give the URL that Grafana has, e.g. http://mimir/prometheus"),
        (Reply(b"", 502), "URL answers with status 502. Is it Prometheus, and is it up?"),
        (
            Reply(b"", 302, {"Location": "http://x/\x9b1m"}),
            r"URL redirects to http://x/\x9b1m. Give the URL behind that",
        ),
        (error("bad", "\x1b[31m[b]timed out[/b]", 422), rf"URL: \x1b[31m[b]timed out[/b]. {_SHORTER}"),
    ],
)
def test_refusals_are_a_sentence_with_the_remedy(reply: Reply, expected: str) -> None:
    assert refusal(reply) == expected


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[1]",
        b"hello",
        b'{"data": {"result": [{"metric": 1}]}}',
        b"\xff",
        b"[" * 100_000,
        b'{"data": null}',
    ],
)
def test_other_things_than_the_api_are_said(body: bytes) -> None:
    said = refusal(Reply(body, 200, {"Content-Type": "text/\x1b[2Jhtml"}))
    assert said == (
        r"URL answers something else than Prometheus's API (text/\x1b[2Jhtml). Check the URL: it is the one that "
        "Grafana has"
    )


def test_ten_megabytes_are_not_read_even_if_they_are_small_on_the_wire() -> None:
    expected = "URL answers with more than 8 MB. Narrow it with --filter, e.g. job=db"
    assert refusal(Reply(b" " * 10_000_000)) == expected
    assert refusal(Reply(gzip.compress(b" " * 50_000_000, 1), 200, {"Content-Encoding": "gzip"})) == expected


def _drips_forever(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    while True:
        handler.wfile.write(b" ")
        time.sleep(0.05)


def _drips_headers(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    for number in range(10_000):
        handler.wfile.write(f"X-{number % 50}: y\r\n"[0:1].encode() if number else b"X: ")
        time.sleep(0.05)


def _says_nothing(_: BaseHTTPRequestHandler) -> None:
    time.sleep(3)


@pytest.mark.parametrize("drip", [_drips_forever, _drips_headers, _says_nothing])
def test_slow_answers_have_a_deadline(drip: Callable[[BaseHTTPRequestHandler], object]) -> None:
    began_s = time.monotonic()
    assert refusal(drip, seconds=1.0) == "URL did not answer within 1 s. Choose a shorter range, or use --filter"
    assert time.monotonic() - began_s < 5


def test_broken_answers_are_said() -> None:
    said = refusal(lambda handler: handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"))
    assert said.startswith("URL broke off (") and said.endswith("Is it Prometheus, and is it up?")
    assert refusal(lambda handler: handler.wfile.write(b"SSH-2.0-\x1b[2J\r\n")).startswith("URL broke off (")


def test_nothing_there_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    assert refusal_of(url) == f"{url} does not answer (Connection refused). Is it up, and is this its port?"
    name = refusal_of("http://there-is-none.invalid:1")
    assert name == "http://there-is-none.invalid:1: there is no machine with this name. Check the URL"


def test_connection_is_used_again_after_a_failure() -> None:
    with serving(always(Reply(b"", 500))) as api:
        client = Client(api.url, Access())
        with pytest.raises(ApiError):
            client.query("up")
        api.answers = always(vector(({}, 1.0)))
        assert client.query("up")[0].value == 1.0


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://x",
        "http://",
        "http://x:y",
        "http://x:99999",
        "http://x/?a=b",
        "http://x/#a",
        "http://[x",
        "http://\udcff:1",
    ],
)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match=r"is not the URL of a Prometheus\. Give one such as http://prometheus:9090"):
        Client(url, Access())


def test_password_in_the_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError) as raised:
        Client("http://me:secret@prometheus:9090", Access())
    assert "secret" not in str(raised.value) and "--http.config.file" in str(raised.value)


def _certified(directory: Path, api: Api) -> Path:
    """Have the server use TLS, with a certificate for 127.0.0.1 that it signed itself; return it."""
    certificate, key = directory / "own.crt", directory / "own.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=x", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-out", certificate, "-keyout", key], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    api.server.socket = context.wrap_socket(api.server.socket, server_side=True)
    return certificate


def test_certificates_are_checked(tmp_path: Path) -> None:
    api = Api(always(vector(({}, 1.0))))
    certificate = _certified(tmp_path, api)
    api.url = api.url.replace("http:", "https:")
    with running(api):
        assert Client(api.url, Access(ca_file=str(certificate))).query("up")[0].value == 1.0
        said = refusal_of(api.url)
        assert said.startswith(f"{api.url}: TLS fails (") and said.endswith("Give its CA certificate: --ca-file FILE")
