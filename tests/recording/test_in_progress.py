"""Recordings have waits in progress and running times; old ones without them say so."""

import io
import json
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import jsonschema
import pytest

from offtop.feed.source import Source
from offtop.model.aggregate.budget import Rate
from offtop.model.aggregate.filter_syntax import parse
from offtop.model.classify.categories import is_periodic
from offtop.model.values.catalog import ThreadKey, ThreadLifetime
from offtop.model.values.columns import unpacked
from offtop.model.values.snapshot import Bound, Cost, Filters, Holder, Machine, Memos, Snapshot, Thinned, Waiting
from offtop.model.windows.change import NOTHING, change
from offtop.model.windows.history import History
from offtop.person import person
from offtop.recording import tick_rows
from offtop.recording.replay import RecordedSource
from offtop.recording.writer import Recorder
from offtop.reports import batch
from offtop.reports.schema import schema
from offtop.reports.wanted import Wanted
from offtop.units import NS_PER_S
from tests.recording import test_recording
from tests.recording.test_recording import ALL
from tests.ui.scripted import AT_NS, FUTEX, MS, START_NS, STUCK, ScriptedSource, Waits
from tests.ui.shown import CATEGORIES

FIRST_FIELDS = Path(__file__).parents[1] / "recordings/first-fields.offtop"
"""Four ticks of the first format, without running times and begins of waits: the start of the demo of 0.1.0."""
RUNNER = Waits("spin", 60, "spin", 61, "lock", "futex_do_wait", waits_ms=(100,), running_ms=850)
"""In each second it runs 0.85 s and waits 0.1 s: 50 ms are left."""
TABLE = (*STUCK, RUNNER)
MACHINE = Machine(2, steal_ns=30 * MS, interrupt_ns=10 * MS)


Tick = dict[str, Any]


def in_json(source: Source, wanted: Wanted = ALL) -> list[Tick]:
    return cast(list[Tick], test_recording.in_json(source, wanted=wanted))


def source_of(ticks: int = 12, ends: bool = False) -> ScriptedSource:
    source = ScriptedSource(TABLE, ticks=ticks, machine=MACHINE, ends=ends)
    source.after(0).catalog.lives[ThreadKey(60, 61)] = ThreadLifetime(from_ns=5)
    return source


def recorded(path: Path, ticks: int = 12) -> Path:
    source = source_of(ticks)
    recorder = Recorder(path, source, person(), leave_bytes=0, whole_ns=4 * NS_PER_S)
    for second in range(ticks + 1):
        recorder.add(source.after(second))
    assert recorder.close().startswith(f"recorded {ticks} ticks")
    return path


def test_replay_has_waits_in_progress_and_running_times(tmp_path: Path) -> None:
    played = in_json(RecordedSource(recorded(tmp_path / "it")))
    assert played == in_json(source_of(ends=True))
    last = played[-1]
    by_tid = {one["tid"]: one for one in last["still_blocked"]}
    assert [*by_tid] == [900, 700, 4268, 901, 4270]
    connection = by_tid[4268]
    assert (connection["age_ns"], connection["age_is"], connection["state"]) == (12_500 * MS, "exact", "S")
    assert (connection["syscall"], connection["arguments"]) == ("futex", [FUTEX, 128, 2, 0, 0, 0])
    assert connection["user"] == ["lock_wait", "row_search", "main"]
    assert (by_tid[900]["age_ns"], by_tid[900]["age_is"]) == (112_000 * MS, "at_most")
    assert (by_tid[901]["age_ns"], by_tid[901]["age_is"], by_tid[901]["state"]) == (12_000 * MS, "at_least", "t")
    assert by_tid[700]["arguments"] == [5, 0, 512, (1 << 64) - 1, 0, 0]
    spin = next(one for one in last["threads"] if one["tid"] == 61)
    assert (spin["running_ns"], spin["offcpu_ns"], spin["residue_ns"]) == (850 * MS, 100 * MS, 50 * MS)
    assert last["machine"] == {"cpus": 2, "steal_ns": 30 * MS, "interrupt_ns": 10 * MS}


@pytest.mark.parametrize("first", [1, 3, 5, 8, 11])
def test_replay_from_any_tick_is_the_same(tmp_path: Path, first: int) -> None:
    path = recorded(tmp_path / "it")
    begun = in_json(RecordedSource(path, begin_ns=START_NS + first * NS_PER_S))
    assert begun == in_json(RecordedSource(path))[first - 1 :]


def stuck_at_each_tick(source: Source) -> list[list[Waiting]]:
    """Return the waits in progress at each tick, from a history of the whole source."""
    history = History(CATEGORIES.idle, is_periodic)
    for snapshot in iter(source.read, None):
        history.add(snapshot)
    ticks = [tick for number in range(1, 13) if (tick := history.tick(number))]
    return [[one._replace(site=one.site._replace(kernel=0), user=0) for one in history.stuck(t).waits] for t in ticks]


def test_going_back_in_a_replay_shows_the_waits_of_that_time(tmp_path: Path) -> None:
    replayed = stuck_at_each_tick(RecordedSource(recorded(tmp_path / "it")))
    assert replayed == stuck_at_each_tick(source_of(ends=True))
    assert [[one.site.tid for one in waits] for waits in replayed] == [
        *[[900, 700, 4268, 901]] * 4,
        *[[900, 700, 4268, 901, 801]] * 3,
        *[[900, 700, 4268, 901]] * 3,
        *[[900, 700, 4268, 901, 4270]] * 2,
    ]
    assert [waits[-1].letter for waits in replayed[4:7]] == ["S", "S", "R"]  # woken at 6.5


def test_call_names_and_thread_lifetimes_are_recorded_and_updated(tmp_path: Path) -> None:
    source = source_of(9)
    catalog = source.after(0).catalog
    recorder = Recorder(tmp_path / "it", source, person(), leave_bytes=0, whole_ns=4 * NS_PER_S)
    spin, late = ThreadKey(60, 61), ThreadKey(800, 801)
    for second in range(10):
        if second == 4:
            catalog.lives[late] = ThreadLifetime(from_ns=3 * NS_PER_S)
        if second == 8:
            catalog.lives[late] = ThreadLifetime(3 * NS_PER_S, 8 * NS_PER_S)
        recorder.add(source.after(second))
    recorder.close()
    played = RecordedSource(tmp_path / "it")
    lives = [dict(snapshot.catalog.lives) for snapshot in iter(played.read, None)]
    born = {spin: ThreadLifetime(5), late: ThreadLifetime(3 * NS_PER_S)}
    assert lives[1:] == [
        *[{spin: ThreadLifetime(5)}] * 3,
        *[born] * 4,
        *[{**born, late: ThreadLifetime(3 * NS_PER_S, 8 * NS_PER_S)}] * 2,
    ]
    for begin in (5, 9):
        begun = RecordedSource(tmp_path / "it", begin_ns=START_NS + begin * NS_PER_S)
        first = begun.read()
        assert first
        assert dict(first.catalog.lives) == lives[begin - 1]  # also of threads that do nothing
        snapshots = [first, *iter(begun.read, None)]
        assert {*snapshots[0].catalog.calls.values()} == {"futex", "fsync", "epoll_wait"}


def test_last_part_of_an_entry_is_read_as_written() -> None:
    entry = tick_rows.Entry(
        change(NOTHING, source_of().after(11)),
        lives={ThreadKey(7, 8): ThreadLifetime(5, 1 << 60), ThreadKey(7, 9): ThreadLifetime()},
        calls={202: "futex", (1 << 30) | 240: "futex_time64"},
    )
    thinned = Thinned(2, 16 * MS, 8, 900, 1_800 * MS, 5 * MS, True)
    cost = Cost(1.5, 2, 3.5, 4.5, 5, scan_ns=6_000, scan_every=7, thinned=thinned)
    cost = cost._replace(memos=Memos(4, 300, 3, 1), kernel_memos=Memos(5, 600, 9, 2), kernel_check_every=64)
    entry = replace(entry, change=replace(entry.change, cost=cost))
    again = tick_rows.decode(tick_rows.encode(entry), whole=True)
    assert (again.lives, again.calls, again.change.cost) == (entry.lives, entry.calls, cost)
    assert again.change.machine == Machine(2, 11 * 30 * MS, 11 * 10 * MS)
    assert again.change.begun.tolist() == entry.change.begun.tolist()
    assert again.change.threads.numbers.tolist() == entry.change.threads.numbers.tolist()


def test_a_tick_over_budget_in_which_nothing_was_left_out_is_recorded_as_such() -> None:
    entry = tick_rows.Entry(change(NOTHING, source_of().after(11)))
    cost = Cost(thinned=Thinned(is_over=True))  # the BPF programs alone use more
    entry = replace(entry, change=replace(entry.change, cost=cost))
    assert tick_rows.decode(tick_rows.encode(entry), whole=True).change.cost.thinned == Thinned(is_over=True)


def test_unknown_call_arguments_stay_unknown_in_a_replay(tmp_path: Path) -> None:
    table = [Waits("old", 5, "old", 5, "lock", "futex_do_wait", waits_on=True, call="futex")]
    source = ScriptedSource(table, ticks=2)
    recorder = Recorder(tmp_path / "it", source, person(), leave_bytes=0)
    for second in range(3):
        recorder.add(source.after(second))
    recorder.close()
    (*_, last) = in_json(RecordedSource(tmp_path / "it"))
    (one,) = last["still_blocked"]
    assert (one["syscall"], one["arguments"]) == ("futex", [])


def test_recording_without_waits_has_none() -> None:
    entry = tick_rows.Entry(change(NOTHING, Snapshot(1, 1)))
    again = tick_rows.decode(tick_rows.encode(entry), whole=True)
    assert (len(again.change.waiting), len(again.change.begun), again.lives, again.calls) == (0, 0, {}, {})
    assert (again.change.machine, again.change.cost) == (Machine(), Cost())


def test_filter_applies_to_waits_in_progress(tmp_path: Path) -> None:
    path = recorded(tmp_path / "it")
    chosen = {"comm=mysqld": [4268, 4270], "cat=disk-read": [900], "comm=nobody": [], "pid=700": [700], "": [900, 700]}
    for text, tids in chosen.items():
        last = in_json(RecordedSource(path), Wanted(parse(text)))[-1]
        printed_tids = [one["tid"] for one in last["still_blocked"]]
        assert printed_tids[: len(tids)] == tids
        assert len(printed_tids) == (len(tids) if text else 5)


def test_only_a_thread_that_existed_before_the_tick_has_residue(tmp_path: Path) -> None:
    newcomer = RUNNER._replace(tid=62, running_ms=300)  # 600 ms of the second are unknown
    source = ScriptedSource((RUNNER, newcomer), ticks=3, machine=MACHINE)
    source.after(0).catalog.lives[ThreadKey(60, 62)] = ThreadLifetime(from_ns=AT_NS + 2_600 * MS)
    recorder = Recorder(tmp_path / "it", source, person(), leave_bytes=0)
    for second in range(4):
        recorder.add(source.after(second))
    recorder.close()
    last = in_json(RecordedSource(tmp_path / "it"))[-1]
    residues = {one["tid"]: one["residue_ns"] for one in last["threads"]}
    assert residues == {61: 50 * MS, 62: None}


def test_budget_counts_only_idle_waits_as_idle(tmp_path: Path) -> None:
    table = (
        Waits("shop", 100, "shop", 100, "poll", "do_epoll_wait", waits_on=True),  # an idle wait
        Waits("shop", 100, "shop", 101, "lock", "futex_do_wait", waits_on=True),
        Waits("shop", 100, "shop", 102, "fsync", "jbd2_log_wait_commit", waits_on=True),
        Waits("shop", 100, "shop", 103, "lock", "futex_do_wait", waits_ms=(1,), running_ms=999),
    )
    source = ScriptedSource(table, ticks=2, ends=True, machine=MACHINE)
    source.filters = Filters(pids=(100, 7))
    out = io.StringIO()
    wanted = Wanted(parse("cat=lock"), rate=Rate(100.0))  # the budget counts what the filter hides
    batch.run(source, CATEGORIES, MS, 1, wanted, as_json=False, width=0, out=out)
    budgets = [line for line in out.getvalue().splitlines() if line.startswith("budget of ")]
    shares = "4 threads: 25% idle, 50% blocked otherwise, 0% ready to run, 25% running"
    assert budgets == [
        f"budget of shop(100): {shares}; 100 requests/s: 10ms CPU + 20ms blocked each",
        "budget of (7): the process has exited",
    ]


# What is kept about threads and waits that are gone


def long_ago(*snapshots: Snapshot, path: Path) -> list[Snapshot]:
    """Record these snapshots, and return them as replayed."""
    source = source_of()
    recorder = Recorder(path, source, person(), leave_bytes=0)
    for snapshot in snapshots:
        recorder.add(snapshot)
    recorder.close()
    return [*iter(RecordedSource(path).read, None)]


def at(second: int, *waiting: Waiting) -> Snapshot:
    return replace(source_of().after(second), threads={}, sites={}, waiting={one.site.thread: one for one in waiting})


def test_name_of_a_thread_that_only_waited_is_kept_for_15_minutes(tmp_path: Path) -> None:
    connection = source_of().after(0).waiting[ThreadKey(4242, 4268)]
    key = connection.site.thread

    def names(*seconds: int) -> list[str]:
        ticks = long_ago(at(0), at(100, connection), *map(at, seconds), path=tmp_path / f"{len(seconds)}")
        return [ticks[-1].catalog.comm(key), ticks[-1].catalog.process(key.pid)]

    assert names(200, 310) == ["connection", "mysqld"]
    assert names(200, 310, 999) == ["connection", "mysqld"]
    assert names(200, 310, 999, 1310) == ["", ""]


def test_stack_read_during_a_wait_is_kept_as_long_as_the_wait(tmp_path: Path) -> None:
    connection = source_of().after(0).waiting[ThreadKey(4242, 4268)]
    seconds = (301, 602, 903, 1204, 1505)
    ticks = long_ago(at(0, connection), *(at(one, connection) for one in seconds), path=tmp_path / "it")
    stack = ticks[-1].catalog.stack(connection.user)
    assert [frame.name for frame in stack.frames] == ["lock_wait", "row_search", "main"]


def test_lock_holder_is_recorded_as_long_as_the_lock_is_held(tmp_path: Path) -> None:
    connection = source_of().after(0).waiting[ThreadKey(4242, 4268)]
    held = [connection, *(connection._replace(holder=Holder(70, tid, "ip\x1b")) for tid in (71, 72)), connection]
    ticks = long_ago(*(at(number, one) for number, one in enumerate(held)), path=tmp_path / "it")
    assert [tick.waiting[connection.site.thread].holder for tick in ticks] == [one.holder for one in held]
    played = in_json(RecordedSource(tmp_path / "it"), ALL)
    jsonschema.validate(played[1], schema())
    assert [one["held_by"] for tick in played for one in tick["still_blocked"]] == [
        {"pid": 70, "tid": 71, "comm": r"ip\x1b"},
        {"pid": 70, "tid": 72, "comm": r"ip\x1b"},
        None,
    ]


# An old recording without these fields


def test_old_recording_is_replayed_and_missing_fields_are_unknown() -> None:
    ticks = in_json(RecordedSource(FIRST_FIELDS))
    assert len(ticks) == 3
    for tick in ticks:
        jsonschema.validate(tick, schema(), jsonschema.Draft202012Validator)
        assert tick["machine"] == {"cpus": None, "steal_ns": None, "interrupt_ns": None}
        assert tick["cost"]["walk_ns"] is None
        threads, blocked = tick["threads"], tick["still_blocked"]
        assert len(threads) > 50 < len(blocked)
        assert {(one["running_ns"], one["residue_ns"]) for one in threads} == {(None, None)}
        said = {(one["age_is"], one["state"], one["syscall"], *one["arguments"], *one["user"]) for one in blocked}
        assert said <= {("at_least", "?", None), ("at_least", "R", None)}
        assert ("at_least", "?", None) in said
    # waits from before the recording are at least as old as the recording
    assert [round(max(one["age_ns"] for one in tick["still_blocked"]) / NS_PER_S) for tick in ticks] == [1, 2, 3]


def test_text_of_an_old_recording_says_at_least_and_unknown_state() -> None:
    out = io.StringIO()
    wanted = Wanted(stuck=True, idle_shown=True)
    batch.run(RecordedSource(FIRST_FIELDS), CATEGORIES, MS, 1, wanted, as_json=False, width=0, out=out)
    rows = out.getvalue().split("stuck now: ")[1].splitlines()[2:]
    assert any(row.startswith(" >=") and " ? " in row for row in rows)
    assert not any(row.strip() and not row.strip().startswith(">=") for row in rows)


def test_old_tick_has_no_running_times_and_no_begins_of_waits() -> None:
    source = RecordedSource(FIRST_FIELDS)
    snapshots = [*iter(source.read, None)]
    assert all(not one.running_ns for snapshot in snapshots for one in snapshot.threads.values())
    assert {one.bound for snapshot in snapshots for one in snapshot.waiting.values()} == {Bound.AT_LEAST}
    assert snapshots[-1].catalog.lives == snapshots[-1].catalog.calls == {}


def test_new_parts_do_not_move_the_old_ones() -> None:
    raw = zlib.decompress(tick_rows.encode(tick_rows.Entry(change(NOTHING, source_of().after(9)))))
    end = 4 + int.from_bytes(raw[:4], "little")
    tables = unpacked(raw[end:])
    threads = len(tables[0])
    shapes = [table.shape[1:] for table in tables]
    old = ["taken_ns", "at_ns", "lost", "cost", "mode", "door", "filters", "comms", "processes", "details"]
    assert [*json.loads(raw[4:end])][: len(old)] == old
    assert len(json.loads(raw[4:end])["cost"]) == 5
    assert (shapes[0], shapes[1]) == ((2,), (11,))  # threads: ids, and the numbers without the running time
    assert shapes[-4:] == [(8,), (2,), (), (11,)]  # waiting, ended; the new parts come last
    assert tables[-2].tolist().count(0) == threads - 1
    assert tables[-2].tolist().count(9 * 850 * MS) == 1
