"""One wait of 1.5 s among a million short ones is reported, found with a key, and in every export."""

import json
import re
import subprocess
import time
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.command import OFFTOP, run
from tests.incidents.test_incidents import compiled
from tests.ui.terminal import terminal

pytestmark = pytest.mark.incident

_MOST_S = 150
_WAITS = 1_000_000
_LONG_NS = 1_500_000_000


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[Path, list[dict[str, Any]], int]]:
    """A recording of a million short waits and then long ones, its ticks, and the PID."""
    place = tmp_path_factory.mktemp("planted")
    program, file = compiled("planted.c", place / "planted", "-pthread"), place / "it.offtop"
    child = subprocess.Popen([program], stdin=subprocess.PIPE)
    arguments = [OFFTOP, "--json", "--mode", "wakeup", "-p", str(child.pid), "--record", file]
    watching = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdin
        assert watching.stdout
        ticks: list[dict[str, Any]] = []
        waits, end_s, planted = 0, time.monotonic() + _MOST_S, 0
        while len(ticks) < planted + 5 or not planted:
            assert time.monotonic() < end_s, f"{waits:,} waits"
            ticks.append(json.loads(watching.stdout.readline()))
            waits += sum(thread["waits"] for thread in ticks[-1]["threads"])
            if waits >= _WAITS and not planted:
                planted = len(ticks)
                child.stdin.write(b"\n")
                child.stdin.flush()
        watching.terminate()
        watching.wait(20)
        yield file, ticks, child.pid
    finally:
        for one in (watching, child):
            with suppress(ProcessLookupError):
                one.kill()
            one.wait(20)


def long_ones(ticks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for tick in ticks for one in tick["outliers"] if one["wait"] and one["wait"]["length_ns"] >= _LONG_NS]


def test_outlier_is_reported_against_the_usual_length_with_both_stacks(
    recorded: tuple[Path, list[dict[str, Any]], int],
) -> None:
    _, ticks, pid = recorded
    (ended, *_) = [one for one in long_ones(ticks) if not one["wait"]["going_on"]]
    wait = ended["wait"]
    assert (ended["rule"], ended["category"], wait["pid"], wait["exact"]) == ("auto", "lock", pid, True)
    assert ended["usual_ns"] < ended["mark"] < _LONG_NS
    assert any("futex" in name for name in wait["kernel"])
    assert "take_turns" in wait["user"]
    assert (wait["waker"]["kind"], "take_turns" in wait["waker"]["user"]) == ("thread", True)
    assert sum(len(long_ones([tick])) for tick in ticks) <= 8  # 2 threads, each on crossing and on ending


def test_n_key_finds_the_outlier_in_the_replay(recorded: tuple[Path, list[dict[str, Any]], int]) -> None:
    file, _, pid = recorded
    with terminal([str(OFFTOP), "replay", str(file)], 160, 50) as shown:
        shown.look_on(3)
        shown.press(b"n")
        shown.look_on(3)
        shown.forget()
        shown.press(b"\x0c")  # Ctrl-L redraws everything
        assert shown.wait_for(re.compile(rf"PAUSED.*> lock > planted\({pid}\) > planted\(", re.DOTALL), 10), shown.text
        shown.press(b"q")
        assert shown.status() == 0


@pytest.mark.parametrize("form", ["folded", "svg", "speedscope", "csv", "jsonl", "perfetto"])
def test_outlier_is_in_each_exported_file(recorded: tuple[Path, list[dict[str, Any]], int], form: str) -> None:
    file, _, _ = recorded
    out = file.with_suffix(f".{form}")
    ended = run("export", form, str(file), "-o", str(out))
    assert (ended.status, ended.out) == (0, "")
    content = out.read_bytes()
    assert b"take_turns" in content
    assert b"futex" in content
    if form == "folded":
        lines = [line.rpartition(" ") for line in content.decode().splitlines()]
        of_lock = sum(int(us) for stack, _, us in lines if "take_turns" in stack and "futex" in stack)
        assert of_lock >= _LONG_NS // 1000
