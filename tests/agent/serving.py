"""An agent that has read the demo, and a client."""

import gzip
import http.client
import ssl
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from offtop import paths
from offtop.agent.agent import Agent
from offtop.agent.server import Page, Server, address
from offtop.agent.web_config import OPEN, Access
from offtop.commands import choices
from offtop.model.classify import categories
from offtop.model.classify.causes import Fixed
from offtop.recording.replay import RecordedSource
from offtop.units import NS_PER_S
from tests.model.machine import RULES

KNOWN = categories.parse(paths.categories().read_text(encoding="utf-8"))


@contextmanager
def demo_agent(most_series: int = 2000, speed: float = 0.0) -> Generator[Agent]:
    """An agent on the demo, which has read nothing yet. `speed`: as of offtop demo; 0: as fast as possible."""
    with closing(RecordedSource(paths.demo(), categories=KNOWN.ids, speed=speed)) as source:
        yield Agent(source, KNOWN, Fixed(RULES), choices.suspect_weights(), NS_PER_S, most_series)


@contextmanager
def serving(
    pages: Mapping[str, Page],
    access: Callable[[], Access] = lambda: OPEN,
    most_connections: int = 4,
    seconds: float = 2.0,
    most_of_one: int = 4,
) -> Generator[Server]:
    server = Server(address("127.0.0.1:0"), access, most_connections, seconds, most_of_one)
    server.start(pages)
    with closing(server):
        yield server


class Got(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


def get(
    server: Server,
    path: str,
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
    method: str = "GET",
) -> Got:
    host, _, port = server.text.rpartition(":")
    kind = http.client.HTTPConnection if tls is None else None
    client = kind(host, int(port), timeout=20) if kind else http.client.HTTPSConnection(host, int(port), context=tls)
    with closing(client):
        client.request(method, path, headers=dict(headers or {}))
        answer = client.getresponse()
        return Got(answer.status, dict(answer.getheaders()), answer.read())


Samples = Mapping[tuple[str, tuple[tuple[str, str], ...]], float]
"""By name and sorted labels."""


def samples_of(body: bytes) -> Samples:
    """Parse metrics with prometheus_client's own parser. Raises ValueError; no series is there twice."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for family in text_string_to_metric_families(body.decode()):
        for one in family.samples:
            key = one.name, tuple(sorted(one.labels.items()))
            assert key not in found, f"{key} is there twice"
            found[key] = one.value
    return found


def sums(samples: Samples, name: str, label: str) -> dict[str, float]:
    """Return the sums of one metric by one label."""
    found: dict[str, float] = {}
    for (own, labels), value in samples.items():
        if own == name:
            key = dict(labels)[label]
            found[key] = found.get(key, 0.0) + value
    return found


def unzipped(body: bytes) -> bytes:
    return gzip.decompress(body)
