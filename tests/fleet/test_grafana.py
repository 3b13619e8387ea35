"""Each query of the Grafana dashboard returns series from a real Prometheus that reads agents: `make fleet`."""

import contextlib
import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from offtop.agent.agent import Agent
from offtop.agent.server import Answer, Page, Request
from tests.agent.serving import demo_agent, serving
from tests.fleet.engines import FILES, RULES, prometheus, scrape_config, until

pytestmark = pytest.mark.fleet

_DASHBOARD: Any = json.loads((FILES / "grafana/dashboard.json").read_text())
_CHOICES = {"$__rate_interval": "20s", "$__range": "1m", "$job": "offtop|other", "$instance": "127.*"}
_TROUBLE = b"""\
offtop_stuck_threads{category="disk-read"} 3
offtop_stuck_oldest_seconds{category="disk-read"} 400
offtop_suspect_threads{what="the WAL flush",who="postgres",held_by="postgres"} 8
"""
"""What the demo does not have at each time."""
_REPLACED = b"offtop_suspect_threads{", b"offtop_agent_last_tick_timestamp_seconds "


def chosen(query: str) -> str:
    """Return a query as Grafana sends it."""
    for name, value in _CHOICES.items():
        query = query.replace(name, value)
    assert "$" not in query, query
    return query


def with_trouble(agent: Agent) -> Page:
    def page(request: Request) -> Answer:
        answer = agent.pages["/metrics"](request)
        if answer.status != 200:
            return answer
        own = [line for line in answer.body.splitlines(keepends=True) if not line.startswith(_REPLACED)]
        ticked = f"offtop_agent_last_tick_timestamp_seconds {time.time():.3f}\n"  # the demo is older
        return answer._replace(body=b"".join(own) + _TROUBLE + ticked.encode(), zipped=b"")

    return page


def test_each_panel_and_variable_has_something_to_show(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        agents = [stack.enter_context(demo_agent(speed=3.0)) for _ in range(2)]
        threads = [threading.Thread(target=one.run, daemon=True) for one in agents]
        servers = [stack.enter_context(serving({"/metrics": with_trouble(one)}, seconds=10.0)) for one in agents]
        for agent, thread in zip(agents, threads, strict=True):
            thread.start()
            stack.callback(thread.join, 10)
            stack.callback(agent.pace.stop)
        config = scrape_config(RULES.with_name("scrape.yml"), [one.text for one in servers], "1s")
        db = stack.enter_context(prometheus(tmp_path, f"global: {{evaluation_interval: 1s}}\n{config}"))
        waiting = "sum(rate(offtop_wait_seconds_total[20s])) > 1"
        until(lambda: bool(db.series(waiting)) and len(db.series("resets(offtop_agent_ticks_total[20s]) == 0")) == 2)
        panels = [one for one in _DASHBOARD["panels"] if one["type"] != "row"]
        queries = [(one["title"], target["expr"]) for one in panels for target in one["targets"]]
        assert len(queries) > 20
        empty = [title for title, query in queries if not db.series(chosen(query))]
        assert empty == []
        numbers = {title: [float(one["value"][1]) for one in db.series(chosen(query))] for title, query in queries}
        assert numbers["Hosts that measure"] == [2.0] and numbers["Threads that wait for a suspect"] == [16.0]
        for one in _DASHBOARD["templating"]["list"][1:]:
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", one["query"]["query"])
            assert found
            values = db.get(f"label/{found[2]}/values", **{"match[]": chosen(found[1])})
            assert values == (["offtop"] if found[2] == "job" else sorted(one.text for one in servers))
        (annotation,) = _DASHBOARD["annotations"]["list"]
        until(lambda: bool(db.series(chosen(annotation["expr"]).replace("firing", "pending"))))
