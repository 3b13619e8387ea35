"""Test that a saved clip of this kernel replays with the numbers shown live."""

import json
import subprocess
import sys
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from offtop.commands import clip_file
from offtop.feed.pace import Pace
from offtop.kernel.live import LiveSource
from offtop.model.aggregate.filter import NOTHING
from offtop.model.aggregate.stack_problems import Problems
from offtop.model.classify.categories import is_periodic
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.values.snapshot import Filters
from offtop.model.windows.history import History, HistoryTick, moved_in
from offtop.person import person
from offtop.recording.replay import RecordedSource
from offtop.reports.json_encoding import encode
from offtop.reports.tick import passing, stacks_of
from offtop.reports.tick_json import tick_object
from offtop.settings.rule_files import RuleFiles
from tests.command import run
from tests.kernel import watch

pytestmark = pytest.mark.kernel

MS = 1_000_000
_TICKS, _DELAY_NS = 8, 300 * MS
_WAITS = (
    "import threading, time\nlock = threading.Lock(); lock.acquire()\n"
    "for _ in range(3): threading.Thread(target=lambda: (lock.acquire(), lock.release()), daemon=True).start()\n"
    "while True: time.sleep(0.02); time.sleep(0.7)\n"
)


@pytest.fixture
def waits() -> Generator[int]:
    """Run a process that sleeps shorter and longer than a tick.

    Three of its threads wait all the time.
    """
    process = subprocess.Popen([sys.executable, "-c", _WAITS])
    yield process.pid
    process.kill()
    process.wait()


def numbers(tick: dict[str, Any]) -> dict[str, Any]:
    """Return the tick's numbers in no order.

    Stuck waits too young to be kept are left out. So are causes and suspects, which are found again, with names that
    arrived late.
    """
    stuck = [one for one in tick["still_blocked"] if one["age_ns"] >= 100 * MS and not one["held_by"]]
    lists = {**{name: tick[name] for name in ("categories", "programs", "threads", "sites")}, "still_blocked": stuck}
    varying = ("idle", "idle_ns", "diagnosis", "places")
    rows = {
        name: sorted(json.dumps({key: value for key, value in one.items() if key not in varying}) for one in some)
        for name, some in lists.items()
    }
    left_out = ("version", "diagnoses", "suspects", "standing")
    return {**{key: value for key, value in tick.items() if key not in left_out}, **rows}


def as_json(
    history: History, kept: HistoryTick, since_ns: int, cause_finder: CauseFinder, source: LiveSource
) -> dict[str, Any]:
    tick = passing(kept, NOTHING, cause_finder, history.stuck(kept), accounted=True)
    shifted = moved_in([kept], since_ns)
    moved = passing(shifted, NOTHING, cause_finder) if shifted else None
    problems = Problems(source.names, source.why_nameless)
    return json.loads(encode(tick_object(tick, source.names, cause_finder, moved, problems)))


@pytest.mark.variant
@pytest.mark.parametrize("mode", ["offcpu", "chain"])
def test_a_clip_replays_what_was_shown(tmp_path: Path, waits: int, mode: str) -> None:
    rules = watch.rules()
    files = RuleFiles(tmp_path / "none.toml", person(), rules.ids)
    with closing(LiveSource(rules, Filters(), mode=mode)) as source:
        cause_finder = CauseFinder(source.names, files)
        history = History(rules.idle, is_periodic, idle_by_rule=cause_finder.idle_by_rule)
        pace = Pace(source, history, _DELAY_NS, first_tick_ns=_DELAY_NS)
        for kept, _ in zip(pace.ticks(), range(_TICKS), strict=False):
            stacks = stacks_of(passing(kept, NOTHING, cause_finder, history.stuck(kept)))
            source.wait_for_names({frame for one in stacks for frame in kept.header.catalog.stack(one).frames}, 30)
        ticks = history.last(1 << 62)[2:-1]
        recorder = clip_file.new_clip(source, person(), tmp_path, "all", ticks[-1].taken_ns)
        since_ns = ticks[0].at_ns - ticks[0].span_ns
        for one in history.snapshots_of_last(
            ticks[-1].at_ns - since_ns, ticks[-1].at_ns
        ):  # on a busy machine ticks are longer
            recorder.add(one)
        first = history.last(1 << 62)[0]
        assert source.since_ns == first.at_ns - first.span_ns < since_ns
        assert recorder.close().startswith(f"recorded {len(ticks)} ticks")
        shown = [as_json(history, kept, since_ns, cause_finder, source) for kept in ticks]
    with closing(RecordedSource(recorder.path)) as replayed:
        assert replayed.since_ns == first.at_ns - first.span_ns
    ended = run("replay", str(recorder.path), "--json")
    assert (ended.status, ended.err) == (0, "")
    again = [json.loads(line) for line in ended.out.splitlines()]
    assert any(site["pid"] == waits and site["category"] == "lock" for site in shown[-1]["sites"])
    assert any(one["pid"] == waits for one in shown[-1]["still_blocked"])
    for was, now in zip(shown, again, strict=True):
        assert numbers(now) == numbers(was)
