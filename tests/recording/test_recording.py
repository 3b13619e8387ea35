"""A replay prints the JSON of the live source, from any tick on."""

import io
import json
import os
import sqlite3
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from offtop.errors import OfftopError
from offtop.feed.source import Source
from offtop.model.aggregate.stack_problems import GUESSED, NOT_KNOWN, STRIPPED, UNSURE
from offtop.model.values.catalog import Details, ThreadKey
from offtop.model.values.snapshot import Filters, Snapshot
from offtop.model.values.stack import NO_WAY, Stack, one_name
from offtop.model.windows.change import NOTHING, change
from offtop.person import Person, person
from offtop.recording import tick_rows
from offtop.recording.reader import Recording
from offtop.recording.replay import RecordedSource
from offtop.recording.writer import Recorder
from offtop.reports import batch
from offtop.reports.wanted import Wanted
from offtop.units import NS_PER_S
from tests.ui.scripted import SHOP, START_NS, WHO, BrokenSource, ScriptedSource
from tests.ui.shown import CATEGORIES

MS = 1_000_000
ALL = Wanted()


def recorded(path: Path, ticks: int = 5, *, seconds: Sequence[int] = (), **options: object) -> ScriptedSource:
    """Record `ticks` seconds of SHOP, or its snapshots after `seconds`."""
    source = ScriptedSource(SHOP, ticks=ticks, who=WHO)
    recorder = Recorder(path, source, person(), leave_bytes=0, **options)  # pyright: ignore[reportArgumentType]
    for after in seconds or range(ticks + 1):
        recorder.add(source.after(after))
    said = recorder.close()
    assert said.startswith("recorded "), said
    return source


def in_json(source: Source, ticks: int | None = None, wanted: Wanted = ALL) -> list[dict[str, object]]:
    out = io.StringIO()
    batch.run(source, CATEGORIES, MS, ticks, wanted, as_json=True, width=0, out=out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_replay_prints_the_same_json_as_the_live_source(tmp_path: Path) -> None:
    path = tmp_path / "it.offtop"
    recorded(path, whole_ns=2 * NS_PER_S)
    played = in_json(RecordedSource(path))
    assert played == in_json(ScriptedSource(SHOP, ticks=5, ends=True))
    assert len(played) == 5


@pytest.mark.parametrize("first", range(1, 6))
def test_replay_from_any_tick_is_the_same(tmp_path: Path, first: int) -> None:
    path = tmp_path / "it.offtop"
    recorded(path, ticks=6, whole_ns=2 * NS_PER_S)
    begun = RecordedSource(path, begin_ns=START_NS + first * NS_PER_S)
    assert in_json(begun) == in_json(RecordedSource(path))[first - 1 :]


def test_file_is_private_to_the_user(tmp_path: Path, ann: Person) -> None:
    path = ann.home / "it.offtop"
    source = ScriptedSource(SHOP, ticks=2)
    Recorder(path, source, ann, leave_bytes=0).close()
    found = path.stat()
    assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (0o600, ann.uid, ann.gid)
    assert [*ann.home.iterdir()] == [path]


@pytest.mark.parametrize("kind", ["file", "link", "dangling link"])
def test_existing_file_is_not_overwritten(tmp_path: Path, kind: str) -> None:
    path, target = tmp_path / "it.offtop", tmp_path / "target"
    if kind != "dangling link":
        target.write_text("precious")
    if kind == "file":
        path.write_text("precious")
    else:
        path.symlink_to(target)
    with pytest.raises(OfftopError, match="exists already"):
        Recorder(path, ScriptedSource(SHOP), person(), leave_bytes=0)
    assert path.is_symlink() == (kind != "file")
    assert target.exists() == (kind != "dangling link")
    if target.exists():
        assert target.read_text() == "precious"


def test_missing_write_permission_is_reported(tmp_path: Path, ann: Person) -> None:
    tmp_path.chmod(0o755)
    if ann.uid == os.geteuid():
        tmp_path.chmod(0o555)
    with pytest.raises(OfftopError, match="cannot be written by ann"):
        Recorder(tmp_path / "it.offtop", ScriptedSource(SHOP), ann, leave_bytes=0)
    assert [*tmp_path.iterdir()] == []


def test_names_and_process_details_are_recorded_without_command_lines(tmp_path: Path) -> None:
    for path, cmdline in ((tmp_path / "a", ""), (tmp_path / "b", "/opt/shop --open 8080")):
        recorded(path, ticks=3, cmdlines=bool(cmdline))
        source = RecordedSource(path)
        every = [*iter(source.read, None)]
        catalog = every[-1].catalog
        assert catalog.details[100] == Details("alice", cmdline, "/shop.slice", 1000, "0-1", 50)
        assert catalog.details[200][4:] == ("", 0)
        assert (catalog.comms[ThreadKey(100, 101)], catalog.processes[200]) == ("worker-1", "bank")
        source.close()


def test_name_that_is_found_late_applies_from_the_start(tmp_path: Path) -> None:
    path = tmp_path / "it.offtop"
    source = ScriptedSource(SHOP, ticks=3)
    late = source._table[0].user[0]  # pyright: ignore[reportPrivateUsage]
    source.name(late, "it+0x0")
    for stack in list(source._catalog.stacks.values()):  # pyright: ignore[reportPrivateUsage]
        assert all(frame.name for frame in stack.frames)
    recorder = Recorder(path, source, person(), leave_bytes=0)
    recorder.add(source.after(0))
    recorder.add(source.after(1))
    recorder.close()
    played = RecordedSource(path)
    first, second = played.read(), played.read()
    assert first and second
    shown = {played.names.of(frame) for stack in second.catalog.stacks.values() for frame in stack.frames}
    assert "it+0x0" in shown
    assert late not in shown


def test_inlined_functions_are_replayed(tmp_path: Path) -> None:
    path = tmp_path / "it.offtop"
    source = ScriptedSource(SHOP, ticks=3, ends=True)
    source.name("take_order", one_name(["lock_it", "enter", "take_order"]))
    recorder = Recorder(path, source, person(), leave_bytes=0)
    for after in range(4):
        recorder.add(source.after(after))
    recorder.close()
    played = in_json(RecordedSource(path))
    assert played == in_json(source)
    (locked,) = {tuple(site["user"]) for site in sites_of(played) if site["tid"] == 102}
    assert locked == ("lock_it (inlined)", "enter (inlined)", "take_order", "serve", "main")


def sites_of(ticks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [site for tick in ticks for site in tick["sites"]]


def test_ticks_older_than_the_limit_are_dropped_by_the_minute(tmp_path: Path) -> None:
    path = tmp_path / "it.offtop"
    recorded(path, ticks=40, whole_ns=5 * NS_PER_S, keep_ns=12 * NS_PER_S)
    recording = Recording(path)
    # The last full tick is 40 s after the first; everything older than 15 s before it may be dropped.
    assert (recording.first, recording.last) == (26, 41)
    recording.close()
    played = in_json(RecordedSource(path))
    assert played == in_json(ScriptedSource(SHOP, ticks=40, ends=True))[25:]


def test_size_limit_drops_old_minutes_and_one_larger_minute_ends_the_recording(tmp_path: Path) -> None:
    source = ScriptedSource(SHOP, ticks=400)
    recorder = Recorder(tmp_path / "a", source, person(), leave_bytes=0, whole_ns=5 * NS_PER_S, most_bytes=100 << 10)
    for after in range(400):
        recorder.add(source.after(after))
        while recorder._queue:  # pyright: ignore[reportPrivateUsage]
            time.sleep(0.001)
    assert recorder.close().startswith("recorded 399 ticks")
    recording = Recording(tmp_path / "a")
    assert 1 < recording.first < 390
    assert recording.last == 400
    recording.close()
    small = Recorder(tmp_path / "b", source, person(), leave_bytes=0, whole_ns=2 * NS_PER_S, most_bytes=1 << 10)
    for after in range(5):
        small.add(source.after(after))
    assert "recording stopped: one minute takes more than 1.0KB" in small.close()
    assert len(in_json(RecordedSource(tmp_path / "b"))) >= 1


def test_nearly_full_disk_ends_a_recording_with_an_error(tmp_path: Path) -> None:
    with pytest.raises(OfftopError, match=r"left on .* \(limit 1048576GB\)"):
        Recorder(tmp_path / "it", ScriptedSource(SHOP), person(), leave_bytes=1 << 50)


def test_entry_is_read_as_written() -> None:
    source = ScriptedSource(SHOP, ticks=3)
    source.filters = Filters((7,), (8, 9), "user", 3, 4, 5, "/a\x1b\udc80")
    one = change(NOTHING, source.after(2))
    again = tick_rows.decode(tick_rows.encode(tick_rows.Entry(one, {}, {7: "a\x1b\udc80"}, {})), whole=True)
    assert (again.processes, again.change.cost, again.change.filters) == ({7: "a\x1b\udc80"}, one.cost, one.filters)
    assert again.change.sites.numbers.tolist() == one.sites.numbers.tolist()
    assert again.change.sites.counts.tolist() == one.sites.counts.tolist()


def test_counted_cgroup_is_in_json_and_escaped() -> None:
    for cgroup, expected in (("/a\x1b\udc80", "/a\\x1b\\udc80"), ("", None)):
        source = ScriptedSource(SHOP, ticks=1, ends=True)
        source.filters = Filters(cgroup=cgroup)
        (tick,) = in_json(source)
        filters = tick["filters"]
        assert isinstance(filters, dict)
        assert filters["cgroup"] == expected


def test_empty_recording_is_reported(tmp_path: Path) -> None:
    source = ScriptedSource((), ticks=2)
    recorder = Recorder(tmp_path / "it", source, person(), leave_bytes=0)
    recorder.add(Snapshot(START_NS, 1))
    recorder.add(Snapshot(START_NS + NS_PER_S, 1 + NS_PER_S))
    recorder.close()
    (tick,) = in_json(RecordedSource(tmp_path / "it"))
    assert (tick["span_ns"], tick["sites"], tick["threads"]) == (NS_PER_S, [], [])


def test_damaged_tick_is_skipped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "it.offtop"
    recorded(path, ticks=9, whole_ns=3 * NS_PER_S)
    whole = in_json(RecordedSource(path))
    with sqlite3.connect(path) as database:
        database.execute("UPDATE ticks SET change = x'00' WHERE number = 3")
    database.close()
    source = RecordedSource(path)
    played = in_json(source)
    # Tick 3 is damaged. Tick 4 is a full one, so everything after it is known.
    assert [tick["taken_ns"] for tick in played] == [whole[0]["taken_ns"], *(tick["taken_ns"] for tick in whole[3:])]
    assert played[-1]["sites"] == whole[-1]["sites"]


class GuessedSource(BrokenSource):
    """A BrokenSource in which the caller of `answer` is a guess."""

    def _id(self, stack: Stack) -> int:
        if stack.frames[0].name == "answer":
            stack = stack._replace(is_unsure=True, guessed_in="/usr/lib/libdesk.so")
        return super()._id(stack)


def test_reason_for_a_broken_user_stack_is_replayed(tmp_path: Path) -> None:
    path, source = tmp_path / "it.offtop", GuessedSource(SHOP, ticks=5)
    recorder = Recorder(path, source, person(), leave_bytes=0)
    for after in range(6):
        recorder.add(source.after(after))
    recorder.close()
    played = in_json(RecordedSource(path))
    assert played == in_json(GuessedSource(SHOP, ticks=5, ends=True))
    expected: Any = played[-1]["user_stack_problems"]
    assert [(one["binary"], one["reason"]) for one in expected] == [
        ("/usr/lib/libshop.so.1", NO_WAY),
        ("/opt/\\x1b[2Jbank", STRIPPED),
        ("/usr/lib/libdesk.so", GUESSED),
    ]
    with sqlite3.connect(path) as database:  # as in the first recordings
        database.execute("DROP TABLE nameless")
        database.execute("DROP TABLE guessed")
    expected = in_json(RecordedSource(path))[-1]["user_stack_problems"]
    assert [(one["binary"], one["reason"]) for one in expected] == [
        ("/usr/lib/libshop.so.1", NO_WAY),
        ("/opt/\\x1b[2Jbank", NOT_KNOWN),
        (None, UNSURE),
    ]
