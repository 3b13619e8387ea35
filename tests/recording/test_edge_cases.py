"""Edge cases of recordings: addresses above 2^63, a reader at the end, gaps, new names, strange numbers."""

import os
import sqlite3
import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from offtop.errors import OfftopError
from offtop.model.classify.categories import is_periodic
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import WITHOUT_RULES
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.snapshot import Snapshot
from offtop.model.values.stack import KERNEL, Frame, Stack
from offtop.model.values.table import Ints
from offtop.model.windows.change import NOTHING, Replayed, change
from offtop.model.windows.history import History
from offtop.model.windows.window import between
from offtop.person import person
from offtop.recording import tick_rows, writer
from offtop.recording.reader import Recording
from offtop.recording.replay import RecordedSource
from offtop.recording.writer import Recorder
from offtop.reports.whole import baseline_in
from offtop.units import NS_PER_S
from tests.recording.test_recording import in_json, recorded
from tests.ui.scripted import MS, SHOP, START_NS, ScriptedSource, Waits
from tests.ui.shown import CATEGORIES


def recorder_at(path: Path, source: ScriptedSource, whole_s: int = 60) -> Recorder:
    return Recorder(path, source, person(), leave_bytes=0, whole_ns=whole_s * NS_PER_S)


def snapshots(path: Path) -> list[Snapshot]:
    source = RecordedSource(path)
    every = [*iter(source.read, None)]
    source.close()
    return every


def test_kernel_address_without_a_name_is_kept(tmp_path: Path) -> None:
    source = ScriptedSource(SHOP, ticks=2)
    address = Frame(KERNEL, 0xFFFF_FFFF_C0A0_1234)
    stacks = source.after(0).catalog.stacks
    first = min(stacks.keys() - {0, 1})
    stacks[first] = Stack((address,), 0, "lock")
    recorder = recorder_at(tmp_path / "it", source)
    for second in range(3):
        recorder.add(source.after(second))
    assert recorder.close().startswith("recorded 2 ticks")
    assert snapshots(tmp_path / "it")[-1].catalog.stacks[first].frames == (address,)


def test_reader_does_not_disturb_the_end_of_a_recording(tmp_path: Path) -> None:
    source = ScriptedSource(SHOP, ticks=3)
    recorder = recorder_at(tmp_path / "it", source)
    for second in range(2):
        recorder.add(source.after(second))
    while not recorder.bytes_written or recorder._queue:  # pyright: ignore[reportPrivateUsage]
        os.sched_yield()
    reading = RecordedSource(tmp_path / "it")
    assert reading.read() is not None
    for second in (2, 3):
        recorder.add(source.after(second))
    assert recorder.close().startswith("recorded 3 ticks")
    reading.close()
    assert len(in_json(RecordedSource(tmp_path / "it"))) == 3


def test_add_and_close_are_thread_safe(tmp_path: Path) -> None:
    source = ScriptedSource(SHOP, ticks=1000)
    for round_ in range(10):
        recorder = recorder_at(tmp_path / str(round_), source)
        failed: list[BaseException] = []

        def add(recorder: Recorder = recorder, failed: list[BaseException] = failed) -> None:
            try:
                for second in range(200):
                    recorder.add(source.after(second))
            except BaseException as error:
                failed.append(error)

        adding = threading.Thread(target=add)
        adding.start()
        said = recorder.close()
        adding.join()
        assert (failed, said[:9]) == ([], "recorded ")


def one_long_and_many_short_waits() -> ScriptedSource:
    """One site: a wait of 5 s in the first second, and one of 10 ms in each that follows."""
    table = (
        Waits("shop", 1, "one", 1, "lock", "futex_do_wait", ("main",), (5000,), ends=1),
        Waits("shop", 1, "one", 1, "lock", "futex_do_wait", ("main",), (10,), begins=1),
    )
    source = ScriptedSource(table, ticks=9)
    source._keys[1] = source._keys[0]  # pyright: ignore[reportPrivateUsage]
    return source


def test_longest_wait_of_a_tick_is_of_that_tick(tmp_path: Path) -> None:
    source = one_long_and_many_short_waits()
    recorder = recorder_at(tmp_path / "it", source)
    for second in range(4):
        recorder.add(source.after(second))
    recorder.close()
    windows = [between(a, b) for a, b in pairwise(snapshots(tmp_path / "it"))]
    longest_ns = [totals.max_ns for window in windows for totals in window.sites.values()]
    assert longest_ns == [5_000 * MS, 10 * MS, 10 * MS]


def test_longest_wait_since_the_start_of_a_replay_is_in_the_replay(tmp_path: Path) -> None:
    source = one_long_and_many_short_waits()
    live, before = (
        Replayed(source.after(0).catalog),
        NOTHING,
    )  # their max is the longest wait so far, as in the kernel's tables
    recorder = recorder_at(tmp_path / "it", source)
    for second in range(9):
        taken = source.after(second)
        snapshot, before = live.add(change(before, taken)), taken
        if second >= 3:
            recorder.add(snapshot)
    recorder.close()
    history = History((), is_periodic)
    for snapshot in snapshots(tmp_path / "it"):
        history.add(snapshot)
    ever = history.since_start()
    assert ever is not None
    assert [totals.max_ns for totals in ever.window.sites.values()] == [10 * MS]


def test_step_forward_finds_the_next_tick_over_any_gap(tmp_path: Path) -> None:
    source = ScriptedSource(SHOP, ticks=100)
    recorder = recorder_at(tmp_path / "it", source)
    for second in (0, 1, 2, 90, 91):
        recorder.add(source.after(second))
    recorder.close()
    played = RecordedSource(tmp_path / "it", speed=1.0)
    assert played.go_to(START_NS + 2 * NS_PER_S + 1, after=True) == START_NS + 90 * NS_PER_S
    assert played.go_to(START_NS + 90 * NS_PER_S - 1) == START_NS + 2 * NS_PER_S
    assert played.go_to(START_NS + 10**6 * NS_PER_S) == START_NS + 91 * NS_PER_S
    assert played.go_to(-(1 << 70)) == START_NS + NS_PER_S
    played.close()


def test_new_name_of_a_waiting_thread_applies_from_the_next_full_tick(tmp_path: Path) -> None:
    source = ScriptedSource(SHOP, ticks=20)
    recorder = recorder_at(tmp_path / "it", source, whole_s=5)
    probe = ThreadKey(300, 300)
    for second in range(12):
        if second == 7:
            source.after(second).catalog.comms[probe] = "gate"
        recorder.add(source.after(second))
    recorder.close()
    played = RecordedSource(tmp_path / "it")
    comms = [snapshot.catalog.comms[probe] for snapshot in iter(played.read, None)]
    assert (comms[6], comms[-1]) == ("door", "gate")


def test_stacks_of_an_endless_wait_are_kept(tmp_path: Path) -> None:
    source = ScriptedSource(SHOP, ticks=2000)
    recorder = recorder_at(tmp_path / "it", source)
    for second in range(0, 2000, 50):
        recorder.add(source.after(second))
    recorder.close()
    last = snapshots(tmp_path / "it")[-1]
    (waiting,) = last.waiting.values()
    assert last.catalog.stacks[waiting.site.kernel].category == "poll"
    assert last.catalog.comms[waiting.site.thread] == "door"


def test_unknown_category_is_other(tmp_path: Path) -> None:
    recorded(tmp_path / "it", ticks=2)
    with sqlite3.connect(tmp_path / "it") as database:
        database.execute("UPDATE stacks SET category = 'quantum' WHERE category = 'lock'")
    database.close()
    source = RecordedSource(tmp_path / "it", categories=["lock", "fsync", "poll"])
    last = [*iter(source.read, None)][-1]
    found = {stack.category for number, stack in last.catalog.stacks.items() if number > 2}
    assert "quantum" not in found and {"other", "fsync", "poll"} <= found
    source.close()


def test_name_that_is_not_utf_8_is_kept(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9 %41?#.offtop"))
    recorded(path, ticks=2)
    assert len(in_json(RecordedSource(path))) == 2


def test_failed_start_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(OfftopError, match="left on"):
        Recorder(tmp_path / "it", ScriptedSource(SHOP), person(), leave_bytes=1 << 50)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("end", ["-wal", "-shm", "-journal"])
def test_existing_side_file_is_not_used(tmp_path: Path, end: str) -> None:
    (tmp_path / f"it{end}").write_text("mine")
    with pytest.raises(OfftopError, match=f"it{end} exists already"):
        Recorder(tmp_path / "it", ScriptedSource(SHOP), person(), leave_bytes=0)
    assert (tmp_path / f"it{end}").read_text() == "mine"


def test_link_created_in_a_race_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, target = tmp_path / "it", tmp_path / "target"
    with sqlite3.connect(target) as database:
        database.execute("CREATE TABLE precious (a)")
    database.close()
    before = target.read_bytes()

    def swap(self: Recorder) -> None:
        path.unlink()
        path.symlink_to(target)

    monkeypatch.setattr(writer.Recorder, "_check_room", swap)
    with pytest.raises(OfftopError, match="the file was replaced"):
        Recorder(path, ScriptedSource(SHOP), person(), leave_bytes=0)
    assert target.read_bytes() == before


@pytest.mark.parametrize(
    ("column", "at", "value"),
    [
        ("ids", (0, 0), -5),
        ("ids", (0, 1), 1 << 40),
        ("ids", (0, 3), -1),
        ("numbers", (0, 1), 1 << 62),
        ("counts", (0, 2), -1),
        ("longest_ns", (0,), -1),
    ],
)
def test_impossible_number_is_refused(column: str, at: tuple[int, ...], value: int) -> None:
    whole = change(NOTHING, ScriptedSource(SHOP, ticks=2).after(2))
    assert tick_rows.decode(tick_rows.encode(tick_rows.Entry(whole)), whole=True)
    spoilt: Ints = getattr(whole.sites, column).copy()
    spoilt[at] = value
    entry = tick_rows.Entry(replace(whole, sites=replace(whole.sites, **{column: spoilt})))
    with pytest.raises(ValueError, match="out of range"):
        tick_rows.decode(tick_rows.encode(entry), whole=True)


def test_duplicate_site_in_a_full_tick_is_refused() -> None:
    whole = change(NOTHING, ScriptedSource(SHOP, ticks=2).after(2))
    ids = whole.sites.ids.copy()
    ids[1] = ids[0]
    entry = tick_rows.Entry(replace(whole, sites=replace(whole.sites, ids=ids)))
    with pytest.raises(ValueError, match="twice"):
        tick_rows.decode(tick_rows.encode(entry), whole=True)
    with pytest.raises(ValueError, match="a change has longest waits"):
        tick_rows.decode(tick_rows.encode(tick_rows.Entry(whole)))


def test_second_tick_at_the_same_time_is_damaged(tmp_path: Path) -> None:
    source = ScriptedSource(SHOP, ticks=3)
    recorder = recorder_at(tmp_path / "it", source)
    for second in (0, 1, 2):
        recorder.add(replace(source.after(second), at_ns=5))
    recorder.close()
    played = RecordedSource(tmp_path / "it")
    assert len([*iter(played.read, None)]) == 1
    assert "1 ticks or stacks" in dict(played.about())["damaged"]
    assert Recording(tmp_path / "it").last == 3


def test_clock_set_back_neither_speeds_up_a_replay_nor_hides_ticks(tmp_path: Path) -> None:
    source, hour_ns = ScriptedSource(SHOP, ticks=7), 3600 * NS_PER_S
    recorder = recorder_at(tmp_path / "it", source)
    taken_ns: list[int] = []
    for second in range(8):
        one = source.after(second)
        one = replace(one, taken_ns=one.taken_ns - hour_ns * (second >= 4))
        taken_ns.append(one.taken_ns)
        recorder.add(one)
    recorder.close()
    played = RecordedSource(tmp_path / "it", speed=1000.0)
    every = [played.read() for _ in range(8)]
    assert [(one.taken_ns, one.leads) for one in every if one] == [(ns, ns == taken_ns[0]) for ns in taken_ns]
    assert dict(played.about())["recorded"].endswith(", 7.00s")
    for ns in taken_ns:
        assert played.go_to(ns) in taken_ns
    played.close()
    ticks = in_json(RecordedSource(tmp_path / "it"))
    assert [(tick["taken_ns"], tick["span_ns"]) for tick in ticks] == [(ns, NS_PER_S) for ns in taken_ns[1:]]
    cause_finder = CauseFinder(played.names, WITHOUT_RULES)
    baseline = baseline_in(RecordedSource(tmp_path / "it"), "it", CATEGORIES, cause_finder, NS_PER_S)
    assert [span_ns // NS_PER_S for span_ns in baseline.spans_ns] == [1, 1, 1, 1, 1, 2]
