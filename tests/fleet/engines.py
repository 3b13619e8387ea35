"""Real Prometheus and VictoriaMetrics, which a test starts and asks."""

import contextlib
import json
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

FILES = Path(__file__).parents[2] / "fleet"
RULES = FILES / "prometheus/rules.yml"
_SECONDS = 60.0


class Engine:
    """The API of Prometheus."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **parameters: str) -> Any:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with contextlib.closing(urllib.request.urlopen(url, timeout=10)) as answer:
            return json.load(answer)["data"]

    def series(self, query: str) -> list[Any]:
        return self.get("query", query=query)["result"]

    def values(self, query: str, label: str) -> dict[str, float]:
        return {one["metric"].get(label, ""): float(one["value"][1]) for one in self.series(query)}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def until(holds: Callable[[], bool], seconds: float = _SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError, IndexError, KeyError):
            if holds():
                return
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.2)


@contextlib.contextmanager
def prometheus(directory: Path, config: str) -> Generator[Engine]:
    """Run Prometheus with this configuration, beside which are the rules of `fleet/`."""
    (directory / "prometheus.yml").write_text(config)
    shutil.copy(RULES, directory)
    port = free_port()
    command = ["prometheus", f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data"]
    command.append(f"--web.listen-address=127.0.0.1:{port}")
    with running(command, directory / "prometheus.log"):
        one = Engine(f"http://127.0.0.1:{port}")
        until(lambda: bool(one.get("targets")["activeTargets"]))
        yield one


@contextlib.contextmanager
def victoria_metrics(directory: Path, config: str) -> Generator[Engine]:
    """Run VictoriaMetrics with this configuration. It answers with data as young as a second."""
    (directory / "victoria.yml").write_text(config)
    port = free_port()
    command = ["victoria-metrics", f"-promscrape.config={directory}/victoria.yml"]
    command += [f"-storageDataPath={directory}/victoria", f"-httpListenAddr=127.0.0.1:{port}"]
    command += ["-promscrape.config.strictParse", "-search.latencyOffset=1s", "-memory.allowedPercent=10"]
    with running(command, directory / "victoria.log"):
        one = Engine(f"http://127.0.0.1:{port}")
        until(lambda: bool(one.get("targets")["activeTargets"]))
        yield one


@contextlib.contextmanager
def running(command: Sequence[str], log: Path) -> Generator[None]:
    """Run a program until the block ends."""
    assert shutil.which(command[0]), f"{command[0]} is not here: packaging/system.sh fleet"
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)


def scrape_config(file: Path, targets: Sequence[str], interval: str) -> str:
    """Return a scrape configuration of `fleet/` with these targets, which are read so often."""
    text = file.read_text()
    for old, new in (
        ('"127.0.0.1:9877"', ", ".join(map(json.dumps, targets))),
        ("scrape_interval: 15s", f"scrape_interval: {interval}"),
    ):
        assert text.count(old) == 1, f"{old} is not in {file} once"
        text = text.replace(old, new)
    return text
