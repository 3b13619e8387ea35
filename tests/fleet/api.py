"""A small HTTP server in place of Prometheus, whose answers a test chooses."""

import contextlib
import json
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs

AT_S = 1_764_210_600.0
"""2025-11-27 02:30 UTC: the time of all answers."""


class Reply(NamedTuple):
    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = {}


class Request(NamedTuple):
    path: str
    form: Mapping[str, str]
    headers: Mapping[str, str]

    @property
    def query(self) -> str:
        return self.form.get("query", "")


Answers = Callable[[Request], Reply | Callable[[BaseHTTPRequestHandler], object]]


def always(reply: Reply | Callable[[BaseHTTPRequestHandler], object]) -> Answers:
    def answers(_: Request) -> Reply | Callable[[BaseHTTPRequestHandler], object]:
        return reply

    return answers


class Api:
    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.requests: list[Request] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                request = Request(self.path, {name: one[0] for name, one in form.items()}, dict(self.headers.items()))
                api.requests.append(request)
                reply = api.answers(request)
                if not isinstance(reply, Reply):
                    self.close_connection = True
                    with contextlib.suppress(OSError):
                        reply(self)
                    return
                self.send_response(reply.status)
                for name, value in {"Content-Type": "application/json", **reply.headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(reply.body)))
                self.end_headers()
                self.wfile.write(reply.body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # its name there
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@contextlib.contextmanager
def serving(answers: Answers) -> Generator[Api]:
    api = Api(answers)
    with running(api):
        yield api


@contextlib.contextmanager
def running(api: Api) -> Generator[None]:
    thread = threading.Thread(target=api.server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield
    finally:
        api.server.shutdown()
        thread.join()
        api.server.server_close()


def vector(*samples: tuple[Mapping[str, str], float], at_s: float = AT_S) -> Reply:
    """Return the answer of an instant query, as Prometheus writes it."""
    result = [
        {"metric": labels, "value": [at_s, f"{value:g}" if value < 1e6 else str(value)]} for labels, value in samples
    ]
    return _answer("vector", result)


def matrix(*series: tuple[Mapping[str, str], Sequence[tuple[float, float]]]) -> Reply:
    result = [{"metric": labels, "values": [[at, f"{value:g}"] for at, value in values]} for labels, values in series]
    return _answer("matrix", result)


def _answer(kind: str, result: object) -> Reply:
    return Reply(json.dumps({"status": "success", "data": {"resultType": kind, "result": result}}).encode())


def error(kind: str, text: str, status: int) -> Reply:
    return Reply(json.dumps({"status": "error", "errorType": kind, "error": text}).encode(), status)


class Machine(NamedTuple):
    """What one host answers."""

    instance: str
    waiting: Mapping[str, float] = {}
    job: str = "db"
    age_s: float = 3.0
    suspects: Mapping[tuple[str, str, str], float] = {}
    """By what, who and held_by."""


FORTY = (
    *(Machine(f"db{number}:9877", {"lock": 0.2 + number / 400, "disk-read": 0.5}) for number in range(1, 40)),
    Machine("db40:9877", {"lock": 12.4, "disk-read": 0.5}, suspects={("the WAL flush", "postgres", "postgres"): 12.0}),
)
"""Forty hosts of which one waits for locks."""


def fleet(machines: Sequence[Machine], scrapes: tuple[float, float] = (6, 30), hosts_in_rules: int = 0) -> Answers:
    """Return what Prometheus answers about these machines. `scrapes`: how many of a minute and of five are there."""

    def answers(request: Request) -> Reply:
        query = request.query
        at_s = float(request.form.get("time", AT_S))
        ids = [{"job": one.job, "instance": one.instance} for one in machines]
        if "last_over_time" in query:
            ticks = [(labels, AT_S - one.age_s) for labels, one in zip(ids, machines, strict=True)]
            return vector(*ticks, at_s=at_s)
        if "count_over_time" in query:
            return vector(({}, scrapes[0] if "[60s]" in query else scrapes[1]))
        if query.startswith("count(count by"):
            return vector(({}, hosts_in_rules)) if hosts_in_rules else vector()
        if request.path.endswith("query_range"):
            begin_s, end_s, step_s = (float(request.form[name]) for name in ("start", "end", "step"))
            steps = [begin_s + step_s * number for number in range(round((end_s - begin_s) / step_s) + 1)]
            if "suspect" in query:
                found = {(what, who) for one in machines for what, who, _ in one.suspects}
                values = [(at, 1.0) for at in steps if at >= AT_S - 1200]
                return matrix(*(({"what": what, "who": who}, values) for what, who in found))
            return matrix(*((labels, [(at, 1.0) for at in steps]) for labels in ids))
        if "suspect_threads" in query:
            return vector(*_suspects(machines, query))
        if "by (program, why)" in query:
            return vector(({"program": "postgres", "why": "postgres-row-lock"}, 11.0))
        if "by (program, category)" in query:
            return vector(
                ({"program": "postgres", "category": "lock"}, 11.5), ({"program": "sshd", "category": "lock"}, 0.5)
            )
        samples = [
            (labels | {"category": category}, value)
            for labels, one in zip(ids, machines, strict=True)
            for category, value in one.waiting.items()
        ]
        return vector(*samples, at_s=at_s)

    return answers


def _suspects(machines: Sequence[Machine], query: str) -> list[tuple[dict[str, str], float]]:
    sums: dict[tuple[str, ...], float] = {}
    hosts: dict[tuple[str, ...], int] = {}
    is_held = "held_by" in query
    for one in machines:
        for (what, who, held_by), threads in one.suspects.items():
            key = (what, who, held_by) if is_held else (what, who)
            sums[key] = sums.get(key, 0.0) + threads
            hosts[key] = hosts.get(key, 0) + 1
    values = hosts if "count by" in query else sums
    return [(dict(zip(("what", "who", "held_by"), key, strict=False)), value) for key, value in values.items()]
