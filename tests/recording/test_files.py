"""File operations in recordings: what was counted is replayed, tick by tick."""

import csv
import gc
import io
import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offtop.errors import UsageError
from offtop.model.values import histogram as log2
from offtop.model.values.files import FILE, MOST_SUMMED, FileActivity, FileId, FileKey, FileTotals
from offtop.model.values.io_stacks import IoStack, StackTotals
from offtop.model.values.stack import FIRST_STACK, KERNEL, Frame, Stack
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
    {
        IoStack(FileKey(42, "fsync", LOG), FIRST_STACK, FIRST_STACK + 1): StackTotals(3, 0, 60 * MS, 30 * MS),
        IoStack(FileKey(7, "write", ODD), 0, FIRST_STACK + 1): StackTotals(1, 20, MS, MS),
    },
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
    assert FILE in RecordedSource(tmp_path / "it.offtop").recorded.lists


def test_a_replay_has_the_frames_of_their_stacks(tmp_path: Path) -> None:
    source = ScriptedSource(ticks=3)
    kernel, user = FIRST_STACK + 1000, FIRST_STACK + 1001
    frames = {
        kernel: Stack((Frame(KERNEL, 0, "io_schedule"), Frame(KERNEL, 0, "ext4_sync_file")), category="fsync"),
        user: Stack((Frame("/lib/libc.so", 16, "fsync"), Frame("/bin/db", 32, "commit"))),
    }
    key = FileKey(42, "fsync", LOG)
    activity = FileActivity({key: FileTotals(1)}, stacks={IoStack(key, kernel, user): StackTotals(1, 0, MS, MS)})
    recorder = Recorder(tmp_path / "it.offtop", source, person(), leave_bytes=0)
    for second in range(3):
        snapshot = source.after(second)
        snapshot.catalog.stacks.update(frames)
        recorder.add(replace(snapshot, files=activity if second == 1 else None))
    recorder.close()
    replay = RecordedSource(tmp_path / "it.offtop")
    _, second = replay.read(), replay.read()
    assert second and second.files == activity
    assert {number: second.catalog.stacks[number] for number in frames} == frames
    replay.close()


def test_recordings_of_older_versions_have_no_stacks() -> None:
    words = json.loads(zlib.decompress(file_rows.encode(ACTIVITY)))
    del words["stacks"]
    assert file_rows.decode(zlib.compress(json.dumps(words).encode())) == replace(ACTIVITY, stacks={})


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
    chosen = call("replay", path, "--mode", "file", "-b", "--filter", "op=write").out
    assert (chosen.count("odd"), chosen.count("/var/lib/db/redo.log")) == (3, 0)
    report = call("report", path).out
    assert "FILE OPERATIONS, counted for 3.00s" in report
    assert "\x1b" not in text + report
    refused = call("replay", without, "--mode", "file", "-b")
    assert (refused.status, "offtop record --mode file" in refused.err) == (UsageError.status, True)
    assert "FILE OPERATIONS" not in call("report", without).out


def with_stacks(path: Path) -> None:
    """Record three ticks, of which two have the same file operations, with stacks."""
    source = ScriptedSource(ticks=3)
    key, short = FileKey(42, "fsync", LOG), FileKey(7, "write", ODD)
    stack = IoStack(key, FIRST_STACK + 1000, FIRST_STACK + 1001)
    activity = replace(ACTIVITY, stacks={stack: StackTotals(3, 0, 60 * MS, 30 * MS)})
    recorder = Recorder(path, source, person(), leave_bytes=0)
    for second in range(4):
        snapshot = source.after(second)
        snapshot.catalog.stacks[stack.kernel] = Stack((Frame(KERNEL, 0, "jbd2_wait"),))
        snapshot.catalog.stacks[stack.user] = Stack((Frame("[jit]", 1, "commit"), Frame("[jit]", 2, "main\x1b")))
        recorder.add(replace(snapshot, files=activity if second in (1, 2) else None))
    recorder.close()
    assert {key, short} == activity.totals.keys()


@pytest.mark.parametrize(
    ("command", "options", "front"),
    [
        (("export", "folded"), (), ""),
        (("export", "folded"), ("--per", "category"), "fsync;"),
        (("replay",), ("-f",), ""),
    ],
)
def test_recordings_of_file_operations_become_folded_stacks(
    command: tuple[str, ...], options: tuple[str, ...], front: str, tmp_path: Path
) -> None:
    with_stacks(tmp_path / "it.offtop")
    ended = call(*command, str(tmp_path / "it.offtop"), "--mode", "file", *options)
    assert (ended.status, ended.out) == (
        0,
        f"{front}db;main\\x1b;commit;fsync /var/lib/db/redo.log;jbd2_wait 120000\n",
    )


def test_exports_of_file_operations_have_all_calls_that_pass_the_filter(tmp_path: Path) -> None:
    path = str(tmp_path / "it.offtop")
    with_stacks(Path(path))

    def rows(*options: str) -> list[tuple[str, str, str, str]]:
        ended = call("export", "csv", path, "--mode", "file", *options)
        assert ended.status == 0
        found = csv.DictReader(io.StringIO(ended.out))
        return [(row["category"], row["waits"], row["total_ns"], row["stack"].split(";")[0]) for row in found]

    fsync = [
        ("fsync", "6", str(120 * MS), "main\\x1b"),
        ("fsync", "2", str(40 * MS), "(without a stack)"),
    ]
    assert rows() == [*fsync, ("write", "100", str(2 * MS), "(without a stack)")]
    assert rows("--filter", "op=fsync bytes<1") == fsync
    assert rows("--filter", "file=*.log") == fsync
    svg = call("export", "svg", path, "--mode", "file")
    assert "162ms in calls in 2.00s" in svg.out
    assert "lost: calls 2" in svg.err
    ticks = [json.loads(line) for line in call("export", "jsonl", path, "--mode", "file").out.splitlines()]
    assert [len(tick["files"]["rows"]) for tick in ticks if "files" in tick] == [2, 2]


def test_exports_of_mode_file_say_what_is_missing(tmp_path: Path) -> None:
    path = str(tmp_path / "it.offtop")
    recorded(Path(path), lambda _: False).close()
    refused = call("export", "svg", path, "--mode", "file")
    assert (refused.status, "offtop record --mode file" in refused.err) == (UsageError.status, True)
    refused = call("export", "perfetto", path, "--mode", "file")
    assert (refused.status, "perfetto has outliers" in refused.err) == (UsageError.status, True)


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
        {"stacks": [[1, 3, 4, 1, 1, 1, 1]]},
        {"stacks": [[0, 3, 4, 1, 1, 1]]},
        {"stacks": [[0, -3, 4, 1, 1, 1, 1]]},
        {"stacks": [[0, 3, 4, 1, 1, -1, 1]]},
        {"stacks": [[0, 3, number, 1, 1, 1, 1] for number in range(MOST_SUMMED + 1)]},
        {"stacks": 3},
    ],
)
def test_forged_rows_are_refused(change: dict[str, Any]) -> None:
    words = json.loads(zlib.decompress(file_rows.encode(ACTIVITY)))
    assert file_rows.decode(zlib.compress(json.dumps(words).encode())) == ACTIVITY
    one = {**words, "files": words["files"][:1], "rows": words["rows"][:1], "stacks": words["stacks"][:1]}
    assert file_rows.decode(zlib.compress(json.dumps(one).encode())).totals
    with pytest.raises(ValueError, match=r"."):
        file_rows.decode(zlib.compress(json.dumps({**one, **change}).encode()))
