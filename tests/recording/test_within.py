"""The calls of the function that --within names, in text, in JSON and in recordings."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from offtop.feed.source import Source
from offtop.model.windows.change import NOTHING, change
from offtop.person import person
from offtop.recording import tick_rows
from offtop.recording.replay import RecordedSource
from offtop.recording.writer import Recorder
from offtop.reports import batch
from offtop.reports.schema import schema
from offtop.reports.wanted import Wanted
from offtop.units import NS_PER_S
from tests.ui.calling import NAME, CallingSource
from tests.ui.scripted import MS, SHOP, ScriptedSource
from tests.ui.shown import CATEGORIES


def printed(source: Source, as_json: bool) -> list[str]:
    out = io.StringIO()
    batch.run(source, CATEGORIES, MS, None, Wanted(), as_json=as_json, width=0, out=out)
    return out.getvalue().splitlines()


def test_json_has_the_calls_of_each_tick() -> None:
    first, *others = [json.loads(line) for line in printed(CallingSource(ticks=3, ends=True), as_json=True)]
    jsonschema.validate(first, schema())
    expected: dict[str, Any] = {
        "function": NAME,
        "calls": 100,
        "left": 2,
        "total_ns": 500 * MS,
        "running_ns": 100 * MS,
        "offcpu_ns": 400 * MS,
        "blocked_ns": 350 * MS,
        "runqueue_ns": 50 * MS,
        "max_ns": 104 * MS,
        "histogram": [[1 << 21, 99], [1 << 26, 1]],
        "now": 3,
        "oldest_ns": 1500 * MS,
    }
    assert [one["within"] for one in (first, *others)] == [expected] * 3
    assert first["filters"]["within"] == NAME
    assert json.loads(printed(ScriptedSource(SHOP, ticks=1, ends=True), as_json=True)[0])["within"] is None


def test_text_has_calls_in_one_line() -> None:
    lines = [line for line in printed(CallingSource(ticks=2, ends=True), as_json=False) if "within" in line]
    said = f"within {NAME}: calls 100/s  p50<=4.2ms p99<=4.2ms max 104ms  70% blocked + 10% run queue + 20% running"
    assert lines == [f"{said}  3 now, oldest 1.50s  2 did not return"] * 2


def test_calls_are_recorded(tmp_path: Path) -> None:
    source, path = CallingSource(ticks=5), tmp_path / "it.offtop"
    recorder = Recorder(path, source, person(), leave_bytes=0, whole_ns=2 * NS_PER_S)
    for second in range(6):
        recorder.add(source.after(second))
    recorder.close()
    played = printed(RecordedSource(path), as_json=True)
    assert played == printed(CallingSource(ticks=5, ends=True), as_json=True)


def test_impossible_calls_are_refused() -> None:
    one = change(NOTHING, CallingSource(ticks=2).after(2))
    assert tick_rows.decode(tick_rows.encode(tick_rows.Entry(one)), whole=True).change.calls == one.calls
    for calls in (one.calls._replace(left=-1), one.calls._replace(total_ns=1 << 62)):
        with pytest.raises(ValueError, match="a number is out of range"):
            tick_rows.decode(tick_rows.encode(tick_rows.Entry(replace(one, calls=calls))), whole=True)
