"""Recordings have blockers and the titles of processes, so that a replay finds the same suspects."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from offtop.model.values.blockers import CHILD, ELSEWHERE, FILE_LOCK, FROZEN_BY, GIL, Blocker, Blockers
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.snapshot import Snapshot
from offtop.model.windows.change import NOTHING, Change, Replayed, change
from offtop.model.windows.rebuilt import snapshots
from offtop.model.windows.window import between
from offtop.person import person
from offtop.recording import tick_rows
from offtop.recording.replay import RecordedSource
from offtop.recording.writer import Recorder
from offtop.units import NS_PER_S
from tests.ui.scripted import ScriptedSource
from tests.ui.shown import CATEGORIES

ONE, TWO = ThreadKey(20, 21), ThreadKey(30, 30)
FROZEN = Blocker(ELSEWHERE, 0, FROZEN_BY, True, "/sys/fs/cgroup/a/cgroup.freeze")
HEIRS = Blocker(10, 0, FILE_LOCK, True, "job\x1b.lock"), Blocker(11, 0, FILE_LOCK, True, "job\x1b.lock")
STEPS: tuple[tuple[Blockers, dict[int, str]], ...] = (
    ({}, {}),
    ({ONE: HEIRS}, {10: "postgres: a b [local] idle in transaction"}),
    ({ONE: HEIRS}, {10: "postgres: a b [local] idle in transaction"}),
    ({ONE: HEIRS[:1], TWO: (Blocker(40, 41, GIL, False),)}, {10: "postgres: a b [local] idle", 12: "nginx: worker"}),
    ({TWO: (FROZEN,)}, {12: "nginx: worker"}),
    ({}, {}),
)


def taken() -> list[Snapshot]:
    return [
        Snapshot(number, number * NS_PER_S, blockers=dict(blockers), titles=dict(titles))
        for number, (blockers, titles) in enumerate(STEPS)
    ]


def encoded(one: Change) -> bytes:
    return tick_rows.encode(tick_rows.Entry(one))


@pytest.mark.parametrize("first", range(len(STEPS)))
def test_blockers_and_titles_are_rebuilt_from_any_whole_tick(first: int) -> None:
    every = taken()
    replayed = Replayed(every[0].catalog)
    before = NOTHING
    for snapshot in every[first:]:
        rebuilt = replayed.add(tick_rows.decode(encoded(change(before, snapshot))).change)
        assert (rebuilt.blockers, rebuilt.titles) == (snapshot.blockers, snapshot.titles)
        before = snapshot


def test_unchanged_blockers_and_titles_are_not_stored_again() -> None:
    every = taken()
    same = change(every[1], every[2])
    assert (same.blockers, same.titles) == ({}, {})


def test_replay_has_blockers_and_titles(tmp_path: Path) -> None:
    source = ScriptedSource(ticks=5)
    recorder = Recorder(tmp_path / "it", source, person(), leave_bytes=0, whole_ns=2 * NS_PER_S)
    for second, (blockers, titles) in enumerate(STEPS):
        recorder.add(replace(source.after(second), blockers=blockers, titles=titles))
    assert recorder.close().startswith("recorded 5 ticks")
    played = RecordedSource(tmp_path / "it", categories=CATEGORIES.ids, speed=0.0)
    assert [(one.blockers, one.titles) for one in iter(played.read, None)] == [*STEPS]


@pytest.mark.parametrize("first", range(1, 6))
def test_replay_from_any_tick_names_a_blocker_that_is_not_measured(tmp_path: Path, first: int) -> None:
    source, holder = ScriptedSource(ticks=8), Blocker(4711, 0, FILE_LOCK, True)
    recorder = Recorder(tmp_path / "it", source, person(), leave_bytes=0, whole_ns=2 * NS_PER_S)
    for second in range(7):
        snapshot = replace(source.after(second), blockers={ONE: (holder,)})
        snapshot.catalog.processes[holder.pid] = "left-out"
        recorder.add(snapshot)
    recorder.close()
    played = RecordedSource(tmp_path / "it", categories=CATEGORIES.ids, speed=0.0)
    played.go_to(played.recorded.began_ns + first * NS_PER_S)
    names = [one.catalog.process(holder.pid) for one in iter(played.read, None)]
    assert {*names} == {"left-out"}


def test_clip_has_blockers_and_titles() -> None:
    every = taken()
    windows = [between(earlier, later) for earlier, later in pairwise(every)]
    assert [(one.blockers, one.titles) for one in snapshots(windows, [], {})][1:] == [*STEPS[1:]]


def test_blocker_known_in_a_way_of_a_newer_offtop_is_left_out() -> None:
    one = replace(change(NOTHING, taken()[1]), blockers={ONE: (HEIRS[0], Blocker(1, 2, "telepathy", True))})
    assert tick_rows.decode(encoded(one)).change.blockers == {ONE: HEIRS[:1]}


@pytest.mark.parametrize("value", [-1, 1 << 40])
def test_impossible_thread_ids_are_refused(value: int) -> None:
    one = replace(change(NOTHING, taken()[0]), blockers={ONE: (Blocker(value, 0, CHILD, True),)})
    with pytest.raises(ValueError, match="out of range"):
        tick_rows.decode(encoded(one))
