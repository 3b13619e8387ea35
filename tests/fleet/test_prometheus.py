"""Prometheus and its tools read what the agent serves: metrics, rules and alerts, resets; go tool pprof, profiles.

`make fleet` runs these; they need Debian's prometheus and golang-go.
"""

import contextlib
import shutil
import subprocess
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from offtop.agent.server import Server, address
from offtop.agent.web_config import OPEN
from tests.agent.serving import Samples, demo_agent, get, samples_of, serving, sums
from tests.fleet.engines import RULES, Engine, prometheus, scrape_config, until

pytestmark = pytest.mark.fleet

_TESTS = RULES.with_name("rules_test.yml")


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool")
    assert found, "promtool is not here: apt-get install prometheus"
    return found


@pytest.fixture(scope="module")
def metrics() -> bytes:
    with demo_agent() as agent, serving(agent.pages) as server:
        agent.run()
        return get(server, "/metrics").body


def test_promtool_finds_nothing_wrong_with_the_metrics(promtool: str, metrics: bytes) -> None:
    ran = subprocess.run([promtool, "check", "metrics"], input=metrics, capture_output=True, timeout=60)
    assert (ran.returncode, ran.stdout + ran.stderr) == (0, b"")


def test_each_alert_and_rule_does_what_it_says(promtool: str) -> None:
    checked = subprocess.run([promtool, "check", "rules", RULES], capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, ""), checked.stderr
    ran = subprocess.run([promtool, "test", "rules", _TESTS], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    text = _TESTS.read_text()
    for name in (line.split()[-1] for line in RULES.read_text().splitlines() if " alert: " in line):
        assert f"alertname: {name}\n" in text, f"{name} is not tested"


@contextlib.contextmanager
def reading(directory: Path, *targets: str) -> Generator[Engine]:
    """Run a Prometheus that scrapes the targets each second, with the files of `fleet/`."""
    config = scrape_config(RULES.with_name("scrape.yml"), targets, "1s")
    with prometheus(directory, f"global: {{evaluation_interval: 1s}}\n{config}") as db:
        yield db


def test_prometheus_has_the_numbers_of_each_machine_and_sees_a_restart_as_a_reset(tmp_path: Path) -> None:
    shown: list[Samples] = []
    with contextlib.ExitStack() as stack:
        agents = [stack.enter_context(demo_agent()) for _ in range(2)]
        servers = [stack.enter_context(serving(one.pages, seconds=10.0)) for one in agents]
        db = stack.enter_context(reading(tmp_path, *(one.text for one in servers)))
        for agent, server in zip(agents, servers, strict=True):
            agent.run()
            shown.append(samples_of(get(server, "/metrics").body))
        query = "sum by (category) (offtop_wait_seconds_total)"
        expected = {name: 2 * s for name, s in sums(shown[0], "offtop_wait_seconds_total", "category").items()}
        until(lambda: db.values(query, "category") == pytest.approx(expected))
        alerts = {rule["name"] for group in db.get("rules")["groups"] for rule in group["rules"] if "alerts" in rule}
        assert {"OfftopAgentDown", "OfftopThreadsWaitForOne"} <= alerts
        assert all(rule["health"] == "ok" for group in db.get("rules")["groups"] for rule in group["rules"])
        until(lambda: set(db.values("up", "instance").values()) == {1.0})

        where = address(servers[1].text)
        servers[1].close()
        until(lambda: db.values("up", "instance")[where.text] == 0.0)
        new = stack.enter_context(demo_agent(speed=20.0))
        again = Server(where, lambda: OPEN)
        stack.callback(again.close)
        again.start(new.pages)
        thread = threading.Thread(target=new.run, daemon=True)
        thread.start()
        resets = "resets(offtop_run_queue_seconds_total[5m])"
        until(lambda: db.values(resets, "instance") == {servers[0].text: 0.0, where.text: 1.0})
        new.pace.stop()
        thread.join(10)
        rising = db.values("min by (instance) (rate(offtop_wait_seconds_total[5m]))", "instance")
        assert all(rate >= 0 for rate in rising.values())


def test_go_tool_pprof_reads_a_profile_by_its_url(tmp_path: Path) -> None:
    with demo_agent() as agent, serving(agent.pages, seconds=10.0) as server:
        agent.run()
        command = ["go", "tool", "pprof", "-tags", f"http://{server.text}/debug/pprof/delta"]
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=60, env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
        )
    assert ran.returncode == 0, ran.stderr
    assert "category:" in ran.stdout and "postgres" in ran.stdout
