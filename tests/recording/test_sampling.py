"""Text, JSON and recordings say that /proc was sampled, and how accurate the numbers are."""

import io
import json
import zlib
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from offtop.feed.source import Source
from offtop.model.values.snapshot import Sampling
from offtop.model.windows.change import NOTHING, change
from offtop.model.windows.window import between, merge
from offtop.person import person
from offtop.recording import tick_rows
from offtop.recording.replay import RecordedSource
from offtop.recording.writer import Recorder
from offtop.reports import batch
from offtop.reports.schema import schema
from offtop.reports.wanted import Wanted
from offtop.units import NS_PER_S
from tests import command
from tests.test_diff import recorded_of
from tests.ui.sampled import SampledSource
from tests.ui.scripted import MS, SHOP, ScriptedSource
from tests.ui.shown import CATEGORIES


def printed(source: Source, as_json: bool) -> list[str]:
    out = io.StringIO()
    batch.run(source, CATEGORIES, MS, None, Wanted(), as_json=as_json, width=0, out=out)
    return out.getvalue().splitlines()


def test_json_has_sampling_of_each_tick() -> None:
    ticks = [json.loads(line) for line in printed(SampledSource(ends=True), as_json=True)]
    jsonschema.validate(ticks[0], schema())
    sampling = {
        "rate_hz": 20.0,
        "apart_ns": 50 * MS,
        "guessed_ns": 250 * MS,
        "own_only": False,
        "lost_known": True,
        "container_only": False,
    }
    assert [one["sampling"] for one in ticks] == [sampling] * 3
    assert json.loads(printed(ScriptedSource(SHOP, ticks=1, ends=True), as_json=True)[0])["sampling"] is None


def heads(source: Source) -> list[str]:
    return [line for line in printed(source, as_json=False) if line.startswith("offtop - ")]


def test_text_has_sampling_after_the_span_and_its_accuracy_at_the_end() -> None:
    lines = heads(SampledSource(ends=True))
    assert len(lines) == 3
    for line in lines:
        assert " span 1.00s  SAMPLED ~20 Hz  WAITING " in line
        assert line.endswith("  waits up to 100ms shorter, up to 0.25 elsewhere")


def test_report_says_whose_processes_were_sampled(tmp_path: Path) -> None:
    path = recorded_of(SampledSource(own_only=True), tmp_path / "own.offtop", 3)
    says = "  SAMPLED ~20 Hz, own processes only  WAITING "
    assert [says in line for line in heads(RecordedSource(Path(path)))] == [True] * 3
    assert says in command.call("report", path).out


def test_sampling_is_recorded(tmp_path: Path) -> None:
    source, path = SampledSource(ticks=5), tmp_path / "it.offtop"
    recorder = Recorder(path, source, person(), leave_bytes=0, whole_ns=2 * NS_PER_S)
    for second in range(6):
        recorder.add(source.after(second))
    recorder.close()
    assert printed(RecordedSource(path), as_json=True) == printed(SampledSource(ticks=5, ends=True), as_json=True)


def test_recording_without_sampling_losses_is_read() -> None:
    one = replace(change(NOTHING, SampledSource().after(2)), sampling=Sampling(40, 500 * MS, lost_known=False))
    now = zlib.decompress(tick_rows.encode(tick_rows.Entry(one)))
    kept = b"[40,500000000,0,0,0,0]"
    for said, lost_known in ((kept, False), (b"[40,500000000,0,0,0  ]", False), (b"[40,500000000,0      ]", True)):
        raw = now.replace(kept, said)
        assert said in raw
        again = tick_rows.decode(zlib.compress(raw), whole=True)
        assert again.change.sampling == Sampling(40, 500 * MS, False, lost_known)


def test_impossible_sampling_is_refused() -> None:
    one = change(NOTHING, SampledSource().after(2))
    again = tick_rows.decode(tick_rows.encode(tick_rows.Entry(one)), whole=True)
    assert again.change.sampling == Sampling(40, 500 * MS)
    with pytest.raises(ValueError, match="a number is out of range"):
        tick_rows.decode(tick_rows.encode(tick_rows.Entry(replace(one, sampling=Sampling(-1)))), whole=True)


def test_longest_gap_between_samples_is_recorded(tmp_path: Path) -> None:
    known = Sampling(40, 0, longest_ns=70 * MS)
    one = replace(change(NOTHING, SampledSource().after(2)), sampling=known)
    assert tick_rows.decode(tick_rows.encode(tick_rows.Entry(one)), whole=True).change.sampling == known
    a, b, c = (
        replace(SampledSource().after(n), sampling=known._replace(longest_ns=n * MS, scans=20 * n)) for n in (3, 4, 1)
    )
    merged = merge([between(a, b), between(b, c)]).sampling
    assert merged
    assert (merged.longest_ns, merged.apart_ns(NS_PER_S)) == (4 * MS, 4 * MS)


def test_merged_windows_have_the_samples_of_all() -> None:
    a, b, c = (SampledSource().after(second) for second in range(3))
    merged = merge([between(a, b), between(b, c)])
    assert merged.sampling == between(a, c).sampling == Sampling(40, 500 * MS)
    assert merged.sampling
    assert (merged.sampling.rate_hz(merged.span_ns), merged.sampling.apart_ns(merged.span_ns)) == (20, 50 * MS)
