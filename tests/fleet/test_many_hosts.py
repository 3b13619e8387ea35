"""`offtop fleet` and a real Prometheus that reads simulated hosts: `make fleet`, with Debian's prometheus."""

import contextlib
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.command import call
from tests.fleet.test_prometheus import free_port, until

pytestmark = pytest.mark.fleet

_STRUCK = 77


class Engine(NamedTuple):
    url: str
    hosts_url: str

    def get(self, path: str) -> str:
        with contextlib.closing(urllib.request.urlopen(f"{self.hosts_url}/{path}", timeout=10)) as answer:
            return answer.read().decode()

    def fleet(self, *options: str) -> Any:
        ended = call("fleet", self.url, "--json", "-n", "1", *options)
        assert ended.status == 0, ended.err
        return json.loads(ended.out)

    def has(self, count: int) -> bool:
        ended = call("fleet", self.url, "--json", "-n", "1", "--range", "1m")
        found: Any = json.loads(ended.out) if ended.status == 0 else {"hosts": []}
        return sum(one["waiting"] > 0 for one in found["hosts"]) == count


@contextlib.contextmanager
def scraped(directory: Path, hosts: int, programs: int, interval: str) -> Generator[Engine]:
    """Start simulated hosts, and a Prometheus that reads them."""
    script = Path(__file__).with_name("simulated_hosts.py")
    command = [sys.executable, str(script), "0", str(hosts), str(programs)]
    with contextlib.ExitStack() as stack:
        simulated = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(simulated.kill)
        assert simulated.stdout
        port = int(simulated.stdout.readline())
        targets = [
            {
                "targets": [f"127.0.0.1:{port}"],
                "labels": {
                    "__metrics_path__": f"/{number}/metrics",
                    "instance": f"db{number}:9877",
                    "rack": f"r{number % 4}",
                },
            }
            for number in range(hosts)
        ]
        config = {
            "global": {"scrape_interval": interval},
            "scrape_configs": [{"job_name": "db", "static_configs": targets}],
        }
        (directory / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        own = free_port()
        command = ["prometheus", f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data"]
        log = stack.enter_context((directory / "log").open("w"))
        command.append(f"--web.listen-address=127.0.0.1:{own}")
        engine = stack.enter_context(subprocess.Popen(command, stdout=log, stderr=log))
        stack.callback(engine.wait, 30)
        stack.callback(engine.terminate)
        yield Engine(f"http://127.0.0.1:{own}", f"http://127.0.0.1:{port}")


def test_planted_incident_among_200_hosts_is_on_top_within_two_scrapes(tmp_path: Path) -> None:
    with scraped(tmp_path, 200, 4, "2s") as engine:
        until(lambda: engine.has(200))
        before = engine.fleet()
        assert not any(one["outliers"] for one in before["hosts"]) and before["suspects"] == []
        engine.get(f"incident/{_STRUCK}")
        until(lambda: int(engine.get("scrapes")) == 2)
        time.sleep(0.3)  # until what was read can be queried
        found = engine.fleet()
        assert int(engine.get("scrapes")) <= 3
        first = found["hosts"][0]
        assert (first["instance"], [one["category"] for one in first["outliers"]]) == (f"db{_STRUCK}:9877", ["lock"])
        assert [one["instance"] for one in found["hosts"] if one["outliers"]] == [f"db{_STRUCK}:9877"]
        assert [(one["what"], one["hosts"], one["threads"]) for one in found["suspects"]] == [
            ("the WAL flush", 12, 42.0)
        ]
        assert abs(found["suspects"][0]["since_ns"] - found["taken_ns"]) <= 60e9
        rack = engine.fleet("--filter", "rack=r1 db7*")
        assert {one["instance"] for one in rack["hosts"]} == {"db73:9877", "db77:9877"}


def test_first_picture_of_2000_hosts_comes_within_two_seconds(tmp_path: Path) -> None:
    with scraped(tmp_path, 2000, 10, "10s") as engine:
        until(lambda: engine.has(2000))
        times: list[float] = []
        for _ in range(3):
            began_s = time.monotonic()
            assert len(engine.fleet()["hosts"]) == 2000
            times.append(time.monotonic() - began_s)
        assert min(times) < 2, times
