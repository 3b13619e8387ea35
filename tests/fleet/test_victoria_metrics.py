"""VictoriaMetrics reads an agent, and vmalert evaluates the rules of `fleet/`: `make fleet`, with Debian's packages."""

import contextlib
import threading
from pathlib import Path

import pytest

from tests.agent.serving import demo_agent, serving
from tests.fleet.engines import FILES, RULES, free_port, running, scrape_config, until, victoria_metrics

pytestmark = pytest.mark.fleet


def test_victoria_metrics_has_the_numbers_and_vmalert_the_rules_and_alerts(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        agent = stack.enter_context(demo_agent(speed=3.0))
        server = stack.enter_context(serving(agent.pages, seconds=10.0))
        thread = threading.Thread(target=agent.run, daemon=True)
        thread.start()
        stack.callback(thread.join, 10)
        stack.callback(agent.pace.stop)
        config = scrape_config(FILES / "victoria-metrics/scrape.yml", [server.text], "1s")
        db = stack.enter_context(victoria_metrics(tmp_path, config))
        command = ["vmalert", f"-rule={RULES}", f"-datasource.url={db.url}", f"-remoteWrite.url={db.url}"]
        command += [f"-remoteRead.url={db.url}", f"-httpListenAddr=127.0.0.1:{free_port()}", "-evaluationInterval=1s"]
        command.append(f"-notifier.url=http://127.0.0.1:{free_port()}")  # nothing listens there
        stack.enter_context(running(command, tmp_path / "vmalert.log"))
        until(lambda: "lock" in db.values("sum by (category) (offtop_wait_seconds_total)", "category"))
        until(lambda: "lock" in db.values("instance_category:offtop_waiting_threads:rate5m", "category"))
        # The last tick of the demo is older than two minutes, so the agent counts as down.
        until(lambda: "pending" in db.values('ALERTS{alertname="OfftopAgentDown"}', "alertstate"))
