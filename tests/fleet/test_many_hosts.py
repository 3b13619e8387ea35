"""`offtop fleet` and a real Prometheus or VictoriaMetrics that reads simulated hosts: `make fleet`."""

import contextlib
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.command import call
from tests.fleet.engines import RULES, Engine, prometheus, until, victoria_metrics
from tests.fleet.simulated_hosts import FLUSHING_HOSTS

pytestmark = pytest.mark.fleet

_STRUCK = 77


class Fleet(NamedTuple):
    engine: Engine
    hosts_url: str

    def get(self, path: str) -> str:
        with contextlib.closing(urllib.request.urlopen(f"{self.hosts_url}/{path}", timeout=10)) as answer:
            return answer.read().decode()

    def ask(self, *options: str) -> Any:
        ended = call("fleet", self.engine.url, "--json", "-n", "1", *options)
        assert ended.status == 0, ended.err
        return json.loads(ended.out)

    def has(self, count: int) -> bool:
        ended = call("fleet", self.engine.url, "--json", "-n", "1", "--range", "1m")
        found: Any = json.loads(ended.out) if ended.status == 0 else {"hosts": []}
        return sum(one["waiting"] > 0 for one in found["hosts"]) == count


Starts = Callable[[Path, str], AbstractContextManager[Engine]]


@contextlib.contextmanager
def scraped(
    directory: Path, hosts: int, programs: int, interval: str, starts: Starts = prometheus, rules: str = ""
) -> Generator[Fleet]:
    """Start simulated hosts, and an engine that reads them. `rules`: how often it evaluates those of `fleet/`."""
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
        config: dict[str, object] = {
            "global": {"scrape_interval": interval} | ({"evaluation_interval": rules} if rules else {}),
            "scrape_configs": [{"job_name": "db", "static_configs": targets}],
        }
        if rules:
            config["rule_files"] = [RULES.name]
        engine = stack.enter_context(starts(directory, json.dumps(config)))  # JSON is YAML
        yield Fleet(engine, f"http://127.0.0.1:{port}")


# VictoriaMetrics finds a series that is new some seconds later, and samples after its -search.latencyOffset.
@pytest.mark.parametrize(
    ("starts", "interval", "delay_s"),
    [(prometheus, "2s", 0.3), (victoria_metrics, "10s", 2.0)],
    ids=["prometheus", "vm"],
)
def test_planted_incident_among_200_hosts_is_on_top_within_two_scrapes(
    tmp_path: Path, starts: Starts, interval: str, delay_s: float
) -> None:
    with scraped(tmp_path, 200, 4, interval, starts) as fleet:
        until(lambda: fleet.has(200))
        before = fleet.ask()
        assert not any(one["outliers"] for one in before["hosts"]) and before["suspects"] == []
        fleet.get(f"incident/{_STRUCK}")
        until(lambda: int(fleet.get("scrapes")) == 2)
        time.sleep(delay_s)  # until what was read can be queried
        found = fleet.ask()
        assert int(fleet.get("scrapes")) <= 3
        first = found["hosts"][0]
        assert (first["instance"], [one["category"] for one in first["outliers"]]) == (f"db{_STRUCK}:9877", ["lock"])
        assert [one["instance"] for one in found["hosts"] if one["outliers"]] == [f"db{_STRUCK}:9877"]
        assert [(one["what"], one["hosts"], one["threads"]) for one in found["suspects"]] == [
            ("the WAL flush", 12, 42.0)
        ]
        assert abs(found["suspects"][0]["since_ns"] - found["taken_ns"]) <= 60e9
        rack = fleet.ask("--filter", "rack=r1 db7*")
        assert {one["instance"] for one in rack["hosts"]} == {"db73:9877", "db77:9877"}


@pytest.mark.timeout(300)  # the alert waits for two minutes, as it comes
def test_alert_on_the_incident_fires_for_each_host_that_has_it_and_for_no_other(tmp_path: Path) -> None:
    with scraped(tmp_path, 200, 4, "10s", rules="15s") as fleet:
        until(lambda: fleet.has(200))
        fleet.get(f"incident/{_STRUCK}")
        until(lambda: int(fleet.get("scrapes")) == 2)
        time.sleep(0.5)
        assert fleet.ask("--range", "1m")["hosts"][0]["instance"] == f"db{_STRUCK}:9877"
        name = 'alertname="OfftopThreadsWaitForOne"'
        firing = f'ALERTS{{{name},alertstate="firing"}}'
        until(lambda: bool(fleet.engine.series(f'ALERTS{{{name},alertstate="pending"}}')))
        assert fleet.engine.series(firing) == []
        struck = {f"db{number}:9877" for number in range(_STRUCK, _STRUCK + FLUSHING_HOSTS)}
        until(lambda: fleet.engine.values(firing, "instance").keys() == struck, 180)
        alerts = fleet.engine.get("alerts")["alerts"]
        assert {one["labels"]["alertname"] for one in alerts} == {"OfftopThreadsWaitForOne"}
        summaries = {one["annotations"]["summary"] for one in alerts}
        assert summaries == {f"{one}: 3.5 threads of postgres wait for the WAL flush" for one in struck}


@pytest.mark.timeout(300)
def test_first_answer_about_2000_hosts_comes_within_two_seconds_from_recording_rules(tmp_path: Path) -> None:
    """What a screen shows first. 100,000 series; the rules sum them up to 10,000."""
    rule = "count(count by (instance) (instance_category:offtop_waiting_threads:rate5m))"
    with scraped(tmp_path, 2000, 10, "10s", rules="15s") as fleet:
        until(lambda: fleet.has(2000), 120)
        until(lambda: fleet.engine.series(rule)[0]["value"][1] == "2000", 120)
        times: list[float] = []
        for _ in range(3):
            began_s = time.monotonic()
            found = fleet.ask()
            times.append(time.monotonic() - began_s)
            assert (len(found["hosts"]), found["span_ns"]) == (2000, 300e9)
        assert min(times) < 2, times
