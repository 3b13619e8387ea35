"""Test --baseline FILE on this machine.

A restarted program is recognized by name, and new waits are marked.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests import command
from tests.kernel import waits

pytestmark = [pytest.mark.kernel, pytest.mark.variant]


@pytest.fixture(scope="module")
def normal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record a child that sleeps 10 ms at a time."""
    file = tmp_path_factory.mktemp("normal") / "normal.offtop"
    with waits.running("sleep", times=100_000, each_ms=10) as child:
        child.go()
        ended = command.run("record", "-o", str(file), "-n", "6", "-d", "0.5", "-p", str(child.pid))
    assert ended.status == 0, ended.err
    return file


def beside(normal: Path, name: str, each_ms: int) -> dict[str, Any]:
    """Return the second tick of a child that waits this way."""
    with waits.running(name, times=100_000, each_ms=each_ms) as child:
        child.go()
        ended = command.run("--json", "-n", "2", "-d", "1", "-p", str(child.pid), "--baseline", str(normal))
    assert (ended.status, ended.err) == (0, "")
    return json.loads(ended.out.splitlines()[-1])


def test_a_restarted_program_is_recognized_and_longer_waits_are_reported(normal: Path) -> None:
    tick = beside(normal, "sleep", 400)
    assert tick["baseline"]["file"] == "normal.offtop"
    (sleep,) = [one for one in tick["categories"] if one["name"] == "sleep"]
    assert not sleep["baseline"]["new"] and sleep["baseline"]["waiting"] > 0.5
    assert sleep["max_ns"] > 2 * sleep["baseline"]["p99_ns"] > 0
    waiting = max(tick["threads"], key=lambda one: one["offcpu_ns"])
    assert waiting["baseline"]["waiting"] > 0.5
    known = [one for one in tick["sites"] if one["category"] == "sleep" and not one["baseline"]["new"]]
    assert sum(one["total_ns"] for one in known) > sleep["total_ns"] / 2


def test_waits_missing_from_the_baseline_are_new_and_missing_now_are_gone(normal: Path) -> None:
    tick = beside(normal, "pipe", 40)
    (pipe,) = [one for one in tick["categories"] if one["name"] == "pipe"]
    assert pipe["baseline"]["new"] and pipe["baseline"]["sure"] and pipe["baseline"]["change"] > 0.3
    assert {one["name"] for one in tick["baseline"]["gone_categories"]} & {"sleep"} == {"sleep"}
    sites = [one for one in tick["sites"] if one["category"] == "pipe" and one["total_ns"]]
    assert sites and all(one["baseline"]["new"] for one in sites), sites
