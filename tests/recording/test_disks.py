"""Requests to disks in recordings: what was counted is replayed, tick by tick."""

import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offtop.errors import UsageError
from offtop.model.values import histogram as log2
from offtop.model.values.disks import DISK, MOST_SUMMED, DeviceTotals, DiskActivity, DiskKey, DiskTotals, added
from offtop.model.values.io_stacks import IoStack, StackTotals
from offtop.model.values.stack import FIRST_STACK, KERNEL, Frame, Stack
from offtop.model.viewmodel.view import DISKS, View
from offtop.person import person
from offtop.recording import disk_rows, writer
from offtop.recording.replay import RecordedSource
from offtop.recording.writer import Recorder
from offtop.ui.app import OfftopApp
from tests.command import call
from tests.ui.scripted import MS, ScriptedSource
from tests.ui.shown import CATEGORIES, QUICK_NS, asynchronous, pane, running, screen, until

SDA = 8 << 20
READS = DiskTotals(
    *(9, 36_864, 9 * MS, 90 * MS, 120 * MS, 2, 1, 1, 20 * MS),
    *(log2.of(*[10 * MS] * 9), log2.of(*[MS] * 9), log2.of(*[9 * MS] * 9)),
    *(30 * MS, 1, 2),
)
WRITES = DiskTotals(4, 1 << 30, MS, MS, 2 * MS)
ACTIVITY = DiskActivity(
    {DiskKey(SDA, "sync-write", 42, 43): READS, DiskKey(SDA, "write", 0, 0, "flush-8:\x1b\udcff"): WRITES},
    {SDA: DeviceTotals(writes=READS.beside(WRITES), busy_ns=700 * MS)},
    {SDA: "sda\x1b"},
    {43: "db\x1b"},
    WRITES,
    2,
    1,
    {
        IoStack(DiskKey(SDA, "sync-write", 42, 43), FIRST_STACK, FIRST_STACK + 1): StackTotals(8, 32_768, 80 * MS, MS),
        IoStack(DiskKey(SDA, "write", 0, 0, "flush-8:\x1b\udcff"), FIRST_STACK, 0): StackTotals(1, 7, MS, MS),
    },
)
NOTHING: list[Any] = [0] * 12 + [[], [], []]
"""Stored totals of no requests."""


def recorded(path: Path, counted: Callable[[int], bool], ticks: int = 3) -> Path:
    source = ScriptedSource(ticks=ticks)
    recorder = Recorder(path, source, person(), leave_bytes=0)
    for second in range(ticks + 1):
        recorder.add(replace(source.after(second), disks=ACTIVITY if counted(second) else None))
    recorder.close()
    return path


def replayed(path: Path) -> list[DiskActivity | None]:
    source, found = RecordedSource(path), list[DiskActivity | None]()
    while snapshot := source.read():
        found.append(snapshot.disks)
    source.close()
    return found


def test_each_tick_has_the_requests_counted_in_it(tmp_path: Path) -> None:
    path = recorded(tmp_path / "it.offtop", lambda second: second in (1, 2))
    assert replayed(path) == [None, ACTIVITY, ACTIVITY, None]
    assert DISK in RecordedSource(path).recorded.lists


def with_stacks(path: Path) -> DiskActivity:
    """Record three ticks, of which two have the same requests, with stacks."""
    source = ScriptedSource(ticks=3)
    by_program, by_kernel = FIRST_STACK + 1000, FIRST_STACK + 1001
    stacks = {
        IoStack(key, by_program, by_kernel if key.pid else 0): StackTotals(4, 0, 40 * MS, 20 * MS)
        for key in ACTIVITY.totals
    }
    activity = replace(ACTIVITY, stacks=stacks)
    recorder = Recorder(path, source, person(), leave_bytes=0)
    for second in range(4):
        snapshot = source.after(second)
        snapshot.catalog.stacks[by_program] = Stack((Frame(KERNEL, 0, "submit_bio"), Frame(KERNEL, 0, "vfs_write")))
        snapshot.catalog.stacks[by_kernel] = Stack((Frame("[jit]", 1, "commit"), Frame("[jit]", 2, "main\x1b")))
        recorder.add(replace(snapshot, disks=activity if second in (1, 2) else None))
    recorder.close()
    return activity


def test_a_replay_has_the_stacks_of_requests_with_their_frames(tmp_path: Path) -> None:
    activity = with_stacks(tmp_path / "it.offtop")
    source = RecordedSource(tmp_path / "it.offtop")
    _, second = source.read(), source.read()
    assert second and second.disks == activity
    frames = {frame.name for key in activity.stacks for frame in second.catalog.stack(key.kernel).frames}
    assert frames == {"submit_bio", "vfs_write"}
    source.close()


def test_recordings_of_older_versions_have_no_stacks() -> None:
    words = json.loads(zlib.decompress(disk_rows.encode(ACTIVITY)))
    del words["stacks"]
    assert disk_rows.decode(zlib.compress(json.dumps(words).encode())) == replace(ACTIVITY, stacks={})


@pytest.mark.parametrize("command", [("export", "folded"), ("replay", "-f")])
def test_recordings_of_requests_become_folded_stacks(command: tuple[str, ...], tmp_path: Path) -> None:
    with_stacks(tmp_path / "it.offtop")
    ended = call(*command, str(tmp_path / "it.offtop"), "--mode", "disk")
    assert (ended.status, ended.out.splitlines()) == (
        0,
        [
            "[flush-8:\\x1b\\udcff];write sda\\x1b;vfs_write;submit_bio 80000",
            "db\\x1b;main\\x1b;commit;sync-write sda\\x1b;vfs_write;submit_bio 80000",
        ],
    )


def test_exports_of_requests_have_those_that_pass_the_filter(tmp_path: Path) -> None:
    with_stacks(tmp_path / "it.offtop")
    ended = call("export", "csv", str(tmp_path / "it.offtop"), "--mode", "disk", "--filter", "op=sync-write")
    assert [line.split(",")[:8] for line in ended.out.splitlines()[1:]] == [
        ["sync-write", "db\\x1b", "42", "db\\x1b", "43", "10", str(160 * MS), "0"],
        ["sync-write", "db\\x1b", "42", "db\\x1b", "43", "8", str(80 * MS), str(20 * MS)],
    ]
    svg = call("export", "svg", str(tmp_path / "it.offtop"), "--mode", "disk")
    assert "in requests in 2.00s" in svg.out
    assert "lost: requests 2" in svg.err


def test_requests_of_skipped_ticks_are_in_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_MOST_QUEUED", 0)
    source = ScriptedSource(ticks=2)
    recorder = Recorder(tmp_path / "it.offtop", source, person(), leave_bytes=0)
    recorder.add(replace(source.after(0), disks=ACTIVITY))
    monkeypatch.setattr(writer, "_MOST_QUEUED", 64)
    recorder.add(replace(source.after(1), disks=ACTIVITY))
    recorder.close()
    assert replayed(tmp_path / "it.offtop") == [added([ACTIVITY, ACTIVITY])]


def test_largest_row_can_be_read() -> None:
    many = {DiskKey(SDA, "read", 1, tid): READS for tid in range(MOST_SUMMED + 5)}
    activity = added([DiskActivity(many), DiskActivity()])
    assert activity
    assert (len(activity.totals), activity.elided.requests, activity.elided_rows) == (MOST_SUMMED, 5 * 9, 5)
    assert disk_rows.decode(disk_rows.encode(activity)) == activity


def test_ticks_with_too_many_disks_in_all_are_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ScriptedSource(ticks=2)
    recorder = Recorder(tmp_path / "it.offtop", source, person(), leave_bytes=0)
    of_tick = [DiskActivity(devices={device: DeviceTotals() for device in devices}) for devices in ((1, 2), (3,), (2,))]
    for second, activity in enumerate(of_tick):
        recorder.add(replace(source.after(second), disks=activity))
    recorder.close()
    monkeypatch.setattr(disk_rows, "MOST_DISKS", 2)
    assert replayed(tmp_path / "it.offtop") == [of_tick[0], None, of_tick[2]]


def test_text_json_and_report_have_requests_or_say_that_there_are_none(tmp_path: Path) -> None:
    path = str(recorded(tmp_path / "it.offtop", lambda second: second > 1))
    without = str(recorded(tmp_path / "without.offtop", lambda _: False))
    lines = call("replay", path, "--mode", "disk", "--json").out.splitlines()
    ticks: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert [tick["mode"] for tick in ticks] == ["offcpu", "disk", "disk"]
    assert [row["requests"] for row in ticks[-1]["disks"]["rows"]] == [9, 4]
    text, report = call("replay", path, "--mode", "disk", "-b").out, call("report", path).out
    assert text.count("[flush-8:") == 2
    assert "REQUESTS TO DISKS, counted for 2.00s" in report
    assert "\x1b" not in text + report
    refused = call("replay", without, "--mode", "disk", "-b")
    assert (refused.status, "offtop record --mode disk" in refused.err) == (UsageError.status, True)
    assert "REQUESTS TO DISKS" not in call("report", without).out


@asynchronous
async def test_key_8_lists_requests_in_a_replay(tmp_path: Path) -> None:
    source = RecordedSource(recorded(tmp_path / "it.offtop", lambda _: True), speed=1e6)
    app = OfftopApp(source, View(delay_ns=QUICK_NS), CATEGORIES)
    async with running(app, (160, 50)) as pilot:
        await until(lambda: app.picture is not None and app.picture.common.newest.number == 3)
        await pilot.press("8")
        assert "|8 disks|" in screen(app)[0]
        assert any("sync-write" in line for line in pane(app, DISKS))


@pytest.mark.parametrize(
    "change",
    [
        {"rows": [[1, "read", 1, 1, ""]]},
        {"rows": [[1, "\x1b[2J", 1, 1, "", NOTHING]]},
        {"rows": [[-1, "read", 1, 1, "", NOTHING]]},
        {"rows": [[1, "read", 1, 1, "x" * 65, NOTHING]]},
        {"rows": [[1, "read", 1, 1, "", [-1, *NOTHING[1:]]]]},
        {"rows": [[1, "read", 1, 1, "", [*NOTHING[:-1], [1] * 99]]]},
        {"rows": [[1, "read", 1, 1, "", [*NOTHING[:-1], [1 << 41]]]]},
        {"disks": [[1, "sda", 1, 0, 0, 0]]},
        {"disks": [[1, "x" * 65, 1, *[NOTHING] * 3]]},
        {"disks": [[1, "sda", -1, *[NOTHING] * 3]]},
        {"elided": []},
        {"sums": [0, -1]},
        {"comms": [[7]]},
        {"comms": [[[43], "db"]]},
    ],
)
def test_forged_rows_are_refused(change: dict[str, Any]) -> None:
    words = json.loads(zlib.decompress(disk_rows.encode(ACTIVITY)))
    assert disk_rows.decode(zlib.compress(json.dumps(words).encode())) == ACTIVITY
    with pytest.raises(ValueError, match=r"."):
        disk_rows.decode(zlib.compress(json.dumps({**words, **change}).encode()))
