"""File operations in recordings: what was counted is replayed, tick by tick."""

import gc
import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offtop.errors import UsageError
from offtop.model.values import histogram as log2
from offtop.model.values.files import MOST_SUMMED, FileActivity, FileId, FileKey, FileTotals
from offtop.model.viewmodel.view import FILES, View
from offtop.person import person
from offtop.recording import file_rows, writer
from offtop.recording.replay import RecordedSource
from offtop.recording.writer import Recorder
from offtop.ui.app import OfftopApp
from tests.command import call
from tests.ui.scripted import MS, ScriptedSource
from tests.ui.shown import CATEGORIES, QUICK_NS, asynchronous, pane, running, screen, until

LOG, ODD = FileId((8 << 20) + 1, (1 << 64) - 2, 7), FileId(1, 3, 0)
ACTIVITY = FileActivity(
    {
        FileKey(42, "fsync", LOG): FileTotals(4, 0, 80 * MS, 76 * MS, 30 * MS, log2.of(*[20 * MS] * 4), 5 * MS),
        FileKey(7, "write", ODD): FileTotals(50, 1000, MS, 0, 100_000, log2.of(*[20_000] * 50)),
    },
    {LOG: "/var/lib/db/redo.log", ODD: "/tmp/\x1b[2J\udcffodd"},
    {42: "db", 7: "sh\x1b"},
    FileTotals(3, 30, 300, 200, 100, log2.of(100)),
    2,
    1,
)


def recorded(path: Path, counted: Callable[[int], bool], ticks: int = 5) -> Recorder:
    source = ScriptedSource(ticks=ticks)
    recorder = Recorder(path, source, person(), leave_bytes=0)
    for second in range(ticks + 1):
        recorder.add(replace(source.after(second), files=ACTIVITY if counted(second) else None))
    return recorder


def replayed(path: Path) -> list[FileActivity | None]:
    source, found = RecordedSource(path), list[FileActivity | None]()
    while snapshot := source.read():
        found.append(snapshot.files)
    source.close()
    return found


def test_each_tick_has_the_file_operations_counted_in_it(tmp_path: Path) -> None:
    recorded(tmp_path / "it.offtop", lambda second: second in (2, 3)).close()
    assert replayed(tmp_path / "it.offtop") == [None, None, ACTIVITY, ACTIVITY, None, None]
    assert RecordedSource(tmp_path / "it.offtop").recorded.has_files


def test_file_operations_of_skipped_ticks_are_in_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_MOST_QUEUED", 0)
    source = ScriptedSource(ticks=3)
    recorder = Recorder(tmp_path / "it.offtop", source, person(), leave_bytes=0)
    recorder.add(replace(source.after(0), files=ACTIVITY))
    recorder.add(replace(source.after(1), files=ACTIVITY))
    monkeypatch.setattr(writer, "_MOST_QUEUED", 64)
    recorder.add(replace(source.after(2), files=ACTIVITY))
    recorder.close()
    (found,) = replayed(tmp_path / "it.offtop")
    assert found
    assert found.totals[FileKey(42, "fsync", LOG)].calls == 3 * 4
    assert (found.lost, found.elided.calls) == (3, 9)


def test_file_operations_of_skipped_ticks_are_added_up_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_MOST_QUEUED", 0)
    source = ScriptedSource(ticks=3)
    recorder = Recorder(tmp_path / "it.offtop", source, person(), leave_bytes=0)
    before = activities()
    for _ in range(30):
        recorder.add(replace(source.after(1), files=replace(ACTIVITY)))
    held = activities() - before
    recorder.close()
    assert held < 15


def activities() -> int:
    """Return how many FileActivity there are, those of other tests included."""
    gc.collect()
    return sum(isinstance(one, FileActivity) for one in gc.get_objects())


def test_the_largest_row_with_long_paths_can_be_read() -> None:
    files = [FileId(1, inode, 0) for inode in range(MOST_SUMMED)]
    totals = {FileKey(1, "read", file): FileTotals(1, 1, MS) for file in files}
    activity = FileActivity(totals, {file: f"{file.inode:01200}" for file in files}, {1: "db"})
    assert file_rows.decode(file_rows.encode(activity)) == activity


def test_text_json_and_report_have_file_operations_or_say_that_there_are_none(tmp_path: Path) -> None:
    path, without = str(tmp_path / "it.offtop"), str(tmp_path / "without.offtop")
    recorded(Path(path), lambda second: second > 2).close()
    recorded(Path(without), lambda _: False).close()
    ticks: list[dict[str, Any]] = [
        json.loads(line) for line in call("replay", path, "--mode", "file", "--json").out.splitlines()
    ]
    assert [tick["mode"] for tick in ticks] == ["offcpu"] * 2 + ["file"] * 3
    assert [row["calls"] for row in ticks[-1]["files"]["rows"]] == [4, 50]
    text = call("replay", path, "--mode", "file", "-b").out
    assert text.count("/var/lib/db/redo.log") == 3
    report = call("report", path).out
    assert "FILE OPERATIONS, counted for 3.00s" in report
    assert "\x1b" not in text + report
    refused = call("replay", without, "--mode", "file", "-b")
    assert (refused.status, "offtop record --mode file" in refused.err) == (UsageError.status, True)
    assert "FILE OPERATIONS" not in call("report", without).out


@asynchronous
async def test_key_7_lists_file_operations_in_a_replay(tmp_path: Path) -> None:
    recorded(tmp_path / "it.offtop", lambda _: True).close()
    source = RecordedSource(tmp_path / "it.offtop", speed=1e6)
    app = OfftopApp(source, View(delay_ns=QUICK_NS), CATEGORIES)
    async with running(app, (160, 50)) as pilot:
        await until(lambda: app.picture is not None and app.picture.common.newest.number == 5)
        await pilot.press("7")
        assert "|7 files|" in screen(app)[0]
        assert any("redo.log" in line for line in pane(app, FILES))


@pytest.mark.parametrize(
    "change",
    [
        {"files": [[1, 2]]},
        {"files": [[-1, 2, 3, ""]]},
        {"files": [[1, 2, 3, "x" * 9000]]},
        {"rows": [[7, "read", 5, 1, 1, 1, 1, 1, 1]]},
        {"rows": [[7, "\x1b[2J", 0, 1, 1, 1, 1, 1, 1]]},
        {"rows": [[7, "read", 0, -1, 1, 1, 1, 1, 1]]},
        {"rows": [[7, "read", 0, 1, 1, 1, 1, 1, 1, *[1] * 41]]},
        {"rows": [[7, "read", 0, 1, 1, 1, 1, 1, 1, 1 << 41]]},
        {"rows": [[7, "read", 0, 1, 1]]},
        {"elided": []},
        {"sums": [0, -1]},
        {"files": [[1, number, 3, "x"] for number in range(9)]},
        {"comms": [[7]]},
        {"comms": [[[7], "db"]]},
        {"comms": [[7, "x" * 65]]},
    ],
)
def test_forged_rows_are_refused(change: dict[str, Any]) -> None:
    words = json.loads(zlib.decompress(file_rows.encode(ACTIVITY)))
    assert file_rows.decode(zlib.compress(json.dumps(words).encode())) == ACTIVITY
    one = {**words, "files": words["files"][:1], "rows": words["rows"][:1]}
    assert file_rows.decode(zlib.compress(json.dumps(one).encode())).totals
    with pytest.raises(ValueError, match=r"."):
        file_rows.decode(zlib.compress(json.dumps({**one, **change}).encode()))
