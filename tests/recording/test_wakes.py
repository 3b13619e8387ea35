"""Recordings have wakers; an offtop that cannot read them says that the file is newer."""

import io
import json
import random
import sqlite3
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtop.errors import OfftopError
from offtop.feed.source import Source
from offtop.model.values import columns
from offtop.model.values.peers import NAMED, ROLES, Peers, PeerSide, Process
from offtop.model.values.stack import ENDED as PROCESS_ENDED
from offtop.model.values.stack import GONE, WHOLE, Frame, Stack
from offtop.model.values.wake import (
    CHAIN_ENDS,
    FIRST_WAKE,
    KINDS,
    MOST_DEPTH,
    RESERVED,
    SOFTIRQ,
    WAKE_LOST,
    WAKE_SHORT,
    Link,
    Object,
    Storm,
    Wake,
    Waker,
)
from offtop.model.windows.change import NOTHING, change
from offtop.person import person
from offtop.recording import catalog_keeper, file_format, stack_rows, tick_rows
from offtop.recording.reader import Recording
from offtop.recording.replay import RecordedSource
from offtop.recording.writer import Recorder
from offtop.reports import batch
from offtop.reports.schema import schema
from offtop.reports.wanted import Wanted
from offtop.units import NS_PER_S
from tests.recording import test_recording
from tests.recording.test_hostile import refused, replay_output, reworded
from tests.recording.woken import ANSWER, ENDS, FIRST_TELLER, KEPT_SECONDS, LOCK, READ, STORMS, TCP, WokenSource
from tests.ui.scripted import SHOP, START_NS, ScriptedSource
from tests.ui.shown import CATEGORIES

Tick = dict[str, Any]


def in_json(source: Source) -> list[Tick]:
    return cast(list[Tick], test_recording.in_json(source))


def recorded(path: Path, ticks: int = 12, *, begins: int = 0, step: int = 1, whole_s: int = 4, **options: int) -> Path:
    source = WokenSource(ticks, begins=begins)
    recorder = Recorder(path, source, person(), leave_bytes=0, whole_ns=whole_s * NS_PER_S, **options)  # pyright: ignore[reportArgumentType]
    for second in range(0, ticks + 1, step):
        recorder.add(source.after(second))
    assert recorder.close().startswith(f"recorded {ticks // step} ticks")
    return path


def printed(source: Source) -> str:
    out = io.StringIO()
    batch.run(source, CATEGORIES, 1, None, Wanted(), as_json=True, width=0, out=out)
    return out.getvalue()


# Output


def test_replay_prints_wakers_byte_for_byte(tmp_path: Path) -> None:
    live = printed(WokenSource(12, ends=True))
    assert printed(RecordedSource(recorded(tmp_path / "it"))) == live
    ticks = [json.loads(line) for line in live.splitlines()]
    assert len(ticks) == 12
    for tick in ticks:
        jsonschema.validate(tick, schema(), jsonschema.Draft202012Validator)
    sites = {(one["comm"], *one["user"][:1]): one for one in ticks[-1]["sites"]}
    locked = sites["worker-2", "take_order"]
    assert (locked["waits"], locked["total_ns"]) == (1, 200_000_000)
    assert locked["waker"] == {
        "kind": "thread",
        "name": "",
        "pid": 100,
        "tid": 101,
        "comm": "worker\\x1b[31m\\udc80",
        "via": "",
        "kernel": ["futex_wake", "do_futex"],
        "user": ["unlock", "serve", "main"],
    }
    ends = {"local": "", "peer": "", "state": "", "ends": None, "ends_more": 0, "members": None}
    assert locked["object"] == {"kind": "futex", "name": "0x7f00", "pid": 100, **ends}
    assert locked["chain"] == [["io_schedule", "read_page", "main"]]
    assert [(one["kind"], one["name"]) for one in locked["chain_wakers"]] == [("irq", "nvme_irq")]
    assert locked["chain_end"] == "whole"
    answered = sites["clerk", "answer"]
    assert (answered["waker"]["via"], len(answered["chain"]), answered["chain_end"]) == (SOFTIRQ, 3, "loop")
    assert answered["object"] == {
        "kind": "tcp",
        "name": "socket:[17]",
        "pid": 0,
        "local": "10.0.0.1:80",
        "peer": "\\x1b[2J:4000",
        "state": "close-wait",
        "ends": [
            {"role": "peer", "pid": 4242, "comm": "worker\\x1b[31m\\udc80"},
            {"role": "peer", "pid": 77, "comm": "less"},
        ],
        "ends_more": 10,
        "members": {"socket": 57, "worker\\x1b[31m\\udc80": 1},
    }
    assert sites["worker-1", "read_page"]["object"] == {"kind": "file", "name": "/var/\\x1b[2Jdata", "pid": 0, **ends}
    assert sites["worker-1", "take_order"]["waker"]["name"] == "(woken before the minimum)"
    lost = sites["vault", "write_book"]
    assert (lost["waker"]["kind"], lost["waker"]["name"]) == ("unknown", "(waker lost)")
    assert (lost["object"], lost["chain"], lost["chain_wakers"]) == (None, [], [])
    probe = sites["door", "main"]
    assert [probe[key] for key in ("waker", "object", "chain", "chain_wakers", "chain_end")] == [None] * 5
    assert [one["waker"]["tid"] for one in ticks[3]["sites"] if one["comm"] == "teller"] == [5004]
    (storm,) = ticks[-1]["storms"]
    assert storm.pop("waker")["comm"] == "door"
    assert storm == {"storms": 1, "woken": 100, "again": 90, "largest": 100, "wasted_switches": 180}


def test_chain_is_only_in_mode_chain() -> None:
    source = WokenSource(2, ends=True)
    source.mode = "offwake"
    last = in_json(source)[-1]
    assert last["mode"] == "offwake"
    assert {tuple(one["user"]) for one in last["sites"] if one["waker"] and one["object"]} != set()
    assert {(one["chain"], one["chain_wakers"], one["chain_end"]) for one in last["sites"]} == {(None, None, None)}


def test_storms_are_sorted_by_woken_threads() -> None:
    source = WokenSource(1, ends=True)
    plain = source.after(1)
    first = replace(source.after(0), storms={LOCK: Storm(5, 50, 1, 0)})
    then = replace(plain, storms={LOCK: Storm(6, 59, 1, 9), STORMS: Storm(2, 70, 0, 35), READ: Storm(1, 9, 9, 9)})
    source.after = lambda seconds: then if seconds else first
    (tick,) = in_json(source)
    assert [(one["waker"]["kind"], one["storms"], one["woken"], one["wasted_switches"]) for one in tick["storms"]] == [
        ("thread", 2, 70, 0),
        ("thread", 1, 9, 0),
        ("irq", 1, 9, 18),
    ]


def test_names_in_wakers_stacks_are_awaited() -> None:
    source, asked = WokenSource(1, ends=True), set[str]()
    late = source.after(0).catalog.stack(source.worker.user)
    source.after(0).catalog.stacks[source.worker.user] = late._replace(
        frames=tuple(frame._replace(name="") for frame in late.frames)
    )
    source.wait_for_names = lambda frames, seconds: asked.update(frame.file for frame in frames) is None
    in_json(source)
    assert asked == {"/opt/own"}


@pytest.mark.parametrize("first", [1, 4, 5, 9, 12])
def test_replay_from_any_tick_is_the_same(tmp_path: Path, first: int) -> None:
    path = recorded(tmp_path / "it")
    begun = in_json(RecordedSource(path, begin_ns=START_NS + first * NS_PER_S))
    assert begun == in_json(RecordedSource(path))[first - 1 :]


def test_going_back_in_a_replay_is_the_same_as_beginning_there(tmp_path: Path) -> None:
    source = RecordedSource(recorded(tmp_path / "it"))
    every = in_json(source)
    for second in (9, 3, 6):
        source.go_to(START_NS + second * NS_PER_S)
        assert in_json(source) == every[second - 1 :]


def test_ticks_that_are_kept_have_all_their_wakes(tmp_path: Path) -> None:
    path = recorded(tmp_path / "it", 40, keep_ns=12 * NS_PER_S, whole_s=5)
    played = in_json(RecordedSource(path))
    assert played == in_json(WokenSource(40, ends=True))[25:]
    with sqlite3.connect(path) as database:
        functions = {row[0] for row in database.execute("SELECT name FROM frames")}
    database.close()
    assert b"of_39" in functions
    assert b"of_9" not in functions  # this waker of the teller is dropped with its stack


def test_skipped_reading_loses_no_wake(tmp_path: Path) -> None:
    source = WokenSource(9)
    recorder = Recorder(tmp_path / "it", source, person(), leave_bytes=0)
    for second in (0, 1, 5, 9):
        recorder.add(source.after(second))
    recorder.close()
    last = in_json(RecordedSource(tmp_path / "it"))[-1]
    assert {one["waker"]["tid"] for one in last["sites"] if one["comm"] == "teller"} == {5007, 5008, 5009}
    assert last["storms"][0]["storms"] == 4


# Format


def test_ticks_before_and_after_wakers_are_turned_on_say_so(tmp_path: Path) -> None:
    modes = [one["mode"] for one in in_json(RecordedSource(recorded(tmp_path / "it", begins=2)))]
    assert modes == [*["offcpu"] * 2, *["chain"] * (len(modes) - 2)] and len(modes) > 2


def test_offtop_without_wakes_says_that_the_file_is_newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = recorded(tmp_path / "it")
    monkeypatch.setattr(file_format, "FORMAT", 1)
    with pytest.raises(OfftopError, match=r"it: file format 2, this offtop reads 1\. Use a newer offtop"):
        RecordedSource(path)


def test_tick_without_wakes_is_encoded_as_in_the_first_recordings() -> None:
    for source in (ScriptedSource(SHOP), WokenSource(begins=99)):
        entry = tick_rows.Entry(change(NOTHING, source.after(3)))
        words, tables = parts(tick_rows.encode(entry))
        assert len(tables) == 16
        assert tables[6].shape == (10, 4)
        assert not {"wakes", "wakers", "storms"} & {*words}


def test_wakes_come_after_what_the_first_recordings_have() -> None:
    now = WokenSource().after(3)
    words, tables = parts(
        tick_rows.encode(tick_rows.Entry(change(NOTHING, now), wakes={LOCK: now.catalog.wakes[LOCK]}))
    )
    assert tables[6].shape[1] == 4
    assert len(tables) == 17
    on = [*(key.wake for key in now.sites), *(one.site.wake for one in now.waiting.values())]
    assert tables[-1].tolist() == on
    assert words["storms"] == [[STORMS, 3, 300, 270, 100]]
    assert words["wakes"] == [[LOCK, 0, "futex", "0x7f00", 100, "whole", *words["wakes"][0][6:8], 1]]
    assert [one[0] for one in words["wakers"]] == ["thread", "irq"]


def parts(blob: bytes) -> tuple[dict[str, Any], list[Any]]:
    raw = zlib.decompress(blob)
    end = 4 + int.from_bytes(raw[:4], "little")
    return json.loads(raw[4:end]), columns.unpacked(raw[end:])


WOKEN = change(NOTHING, WokenSource().after(3))
ids = st.integers(0, (1 << 31) - 1)
wakers = st.builds(
    Waker,
    *(st.sampled_from([*KINDS]), st.text(max_size=9), ids, ids, st.text(max_size=9)),
    *(st.sampled_from(["", SOFTIRQ]), ids, ids),
)
wakes = st.builds(
    Wake,
    wakers,
    st.builds(Object, st.text(max_size=9), st.text(max_size=9), ids, *[st.text(max_size=9)] * 3),
    st.lists(st.builds(Link, ids, ids, wakers), max_size=MOST_DEPTH).map(tuple),
    st.sampled_from([*CHAIN_ENDS]),
)


sides = st.builds(
    PeerSide,
    st.sampled_from([*ROLES]),
    st.lists(st.builds(Process, ids, st.text(max_size=9)), max_size=NAMED).map(tuple),
    ids,
)
peers = st.builds(
    Peers,
    st.lists(sides, max_size=4).map(tuple),
    st.lists(st.tuples(st.text(max_size=9), ids), max_size=4).map(tuple),
)


@given(st.dictionaries(wakes.map(lambda wake: wake.object), peers, max_size=9))
def test_peers_are_read_as_written(some: Mapping[Object, Peers]) -> None:
    assert tick_rows.decode(tick_rows.encode(tick_rows.Entry(WOKEN, peers=some)), whole=True).peers == some


@given(st.dictionaries(st.integers(FIRST_WAKE, (1 << 31) - 1), wakes, max_size=9))
def test_wakes_are_read_as_written(some: Mapping[int, Wake]) -> None:
    now = change(NOTHING, WokenSource().after(3))
    again = tick_rows.decode(tick_rows.encode(tick_rows.Entry(now, wakes=some)), whole=True)
    assert again.wakes == some
    assert again.change.storms == now.storms
    assert again.change.sites.ids.tolist() == now.sites.ids.tolist()


def test_wakes_of_evicted_sites_are_recorded() -> None:
    source = WokenSource()
    one = change(source.after(5), source.after(6))
    again = tick_rows.decode(tick_rows.encode(tick_rows.Entry(one))).change
    assert again.sites.evicted.tolist() == one.sites.evicted.tolist()
    assert [ids[-1] for ids in one.sites.evicted.tolist()] == [FIRST_TELLER + 6 - KEPT_SECONDS]


# What is kept


def test_peers_are_written_when_they_change_and_in_each_full_tick(tmp_path: Path) -> None:
    recording = Recording(recorded(tmp_path / "it", 9))
    found = {number: dict(entry.peers) for number in range(1, 11) if (entry := recording.tick(number, whole=False))}
    assert {number: peers for number, peers in found.items() if peers} == {2: {TCP: ENDS}}
    whole = recording.tick(9, whole=True)
    assert whole
    assert whole.peers == {TCP: ENDS}
    recording.close()


def test_tick_has_new_wakes_and_a_full_tick_all_in_use(tmp_path: Path) -> None:
    recording = Recording(recorded(tmp_path / "it", 9))
    fixed = {LOCK, READ, ANSWER, STORMS}
    found = {number: {*entry.wakes} for number in range(1, 11) if (entry := recording.tick(number, whole=False))}
    tellers = {number: {FIRST_TELLER + number - 1} for number in range(3, 11)}
    assert found == {1: set(), 2: fixed | {FIRST_TELLER + 1}, **tellers}
    whole = recording.tick(9, whole=True)
    assert whole
    assert {*whole.wakes} == fixed | {FIRST_TELLER + second for second in (6, 7, 8)}
    recording.close()


def test_unused_wake_leaves_the_catalog_after_15_minutes(tmp_path: Path) -> None:
    source = RecordedSource(recorded(tmp_path / "it", 2400, step=100))
    *_, last = iter(source.read, None)
    kept = {number - FIRST_TELLER for number in last.catalog.wakes if number >= FIRST_TELLER}
    assert {2398, 2399, 2400} <= kept
    assert min(kept) > 1000
    functions = {frame.name for stack in last.catalog.stacks.values() for frame in stack.frames}
    assert {"of_2400", "nvme_irq", "unlock"} <= functions
    assert "of_99" not in functions
    assert {*RESERVED} < {*last.catalog.wakes}


def test_waker_that_exited_before_it_was_read_is_reported() -> None:
    gone = Stack((Frame(GONE, 0),), end=PROCESS_ENDED)
    assert stack_rows.stack_of(gone.frames, 0, 0, stack_rows.category_of(gone)) == gone
    kernel = Stack((Frame("[kernel]", 0, "schedule"),), 1, "lock")
    assert stack_rows.stack_of(kernel.frames, 1, 0, stack_rows.category_of(kernel)) == kernel
    assert kernel.end == WHOLE


# Damaged and newer files


WAKER = ["thread", "", 7, 8, "x", "", 3, 4]
WAKE = [FIRST_WAKE, 0, "futex", "0x1", 7, "whole"]
PIPE = ["pipe", "pipe:[7]", 0, "", "", ""]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"wakers": [WAKER[1:]]}, "not an array of that length"),
        ({"wakers": [[*WAKER[:2], -1, *WAKER[3:]]]}, "a number is out of range"),
        ({"wakers": [[*WAKER[:3], 1 << 31, *WAKER[4:]]]}, "a number is out of range"),
        ({"wakers": [[*WAKER[:4], 7, *WAKER[5:]]]}, "not a string"),
        ({"wakers": [[*WAKER[:4], "x" * 8193, *WAKER[5:]]]}, "a name is too long"),
        ({"wakers": [[*WAKER[:6], -1, 0]]}, "a number is out of range"),
        ({"wakers": [[*WAKER[:7], 1.5]]}, "not an integer"),
        ({"wakes": [WAKE[:-1]]}, "not an array of that length"),
        ({"wakes": {}}, "not an array of that length"),
        ({"wakes": [7]}, "not an array of that length"),
        ({"wakes": [[FIRST_WAKE, 1, *WAKE[2:]]]}, "a waker is missing"),
        ({"wakes": [[FIRST_WAKE, -1, *WAKE[2:]]]}, "a number is out of range"),
        ({"wakes": [[FIRST_WAKE, True, *WAKE[2:]]]}, "not a number"),
        ({"wakes": [[WAKE_SHORT, *WAKE[1:]]]}, "a wake has a reserved number"),
        ({"wakes": [[0, *WAKE[1:]]]}, "a wake has a reserved number"),
        ({"wakes": [[1 << 31, *WAKE[1:]]]}, "a number is out of range"),
        ({"wakes": [[*WAKE[:3], "x" * 8193, *WAKE[4:]]]}, "a name is too long"),
        ({"wakes": [[*WAKE[:5], "happy"]]}, "a waker chain has an unknown end"),
        ({"wakes": [[*WAKE[:5], ["whole"]]]}, "not a string"),
        ({"wakes": [[*WAKE, 3, 4]]}, "not the links of a waker chain"),
        ({"wakes": [[*WAKE, *[3, 4, 0] * 9]]}, "not the links of a waker chain"),
        ({"wakes": [[*WAKE, 3, 4, 1]]}, "a waker is missing"),
        ({"wakes": [WAKE], "ends": [[FIRST_WAKE, "", ""]]}, "not an array of that length"),
        ({"wakes": [WAKE], "ends": [[FIRST_WAKE, "", "", 7]]}, "not a string"),
        ({"wakes": [WAKE], "ends": [[FIRST_WAKE, "", "x" * 8193, ""]]}, "a name is too long"),
        ({"wakes": [WAKE], "ends": [[FIRST_WAKE + 1, "", "", ""]]}, "addresses without a wake"),
        ({"wakes": [[*WAKE, -1, 4, 0]]}, "a number is out of range"),
        ({"other_ends": [7]}, "not an array of that length"),
        ({"other_ends": [[PIPE[:-1], [], []]]}, "not an array of that length"),
        ({"other_ends": [[[*PIPE[:2], -1, *PIPE[3:]], [], []]]}, "a number is out of range"),
        ({"other_ends": [[PIPE, [["writer"]], []]]}, "not an array of that length"),
        ({"other_ends": [[PIPE, [["\x1b", 1]], []]]}, "not a word that offtop writes"),
        ({"other_ends": [[PIPE, [["writer", -1]], []]]}, "a number is out of range"),
        ({"other_ends": [[PIPE, [["writer", 1, 7, 8]], []]]}, "not a string"),
        ({"other_ends": [[PIPE, [["writer", 1, 7]], []]]}, "zip"),
        ({"other_ends": [[PIPE, [], ["socket"]]]}, "zip"),
        ({"other_ends": [[PIPE, [], ["socket", "x"]]]}, "not a number"),
        ({"wakes": [WAKE] * 600_000}, "a tick has too many values"),
        ({"storms": [[1, 2, 3]]}, "not an array of that length"),
        ({"storms": [[-1, 2, 3, 4, 5]]}, "a number is out of range"),
        ({"storms": [[9, -2, 3, 4, 5]]}, "a number is out of range"),
        ({"storms": [[9, 2, 3, 1 << 62, 5]]}, "a number is out of range"),
        ({"storms": [[9, 2, "x", 4, 5]]}, "not a number"),
        ({"storms": [[0, 2, 3, 4, 5]]}, "storms have a reserved wake number"),
        ({"storms": [[FIRST_WAKE, 2, 3, 4, 5], [WAKE_LOST, 2, 3, 4, 5]]}, "storms have a reserved wake number"),
    ],
)
def test_impossible_fields_of_wakes_are_refused(words: dict[str, object], said: str) -> None:
    blob = tick_rows.encode(tick_rows.Entry(WOKEN))
    tick_rows.decode(reworded(blob, {"wakers": [WAKER], "wakes": [[*WAKE, *[3, 4, 0] * 8]]}), whole=True)
    with pytest.raises(ValueError, match=said):
        tick_rows.decode(reworded(blob, {"wakers": [WAKER], **words}), whole=True)


def test_unknown_peer_role_is_skipped() -> None:
    words: dict[str, object] = {"other_ends": [[PIPE, [["ghost", 1, 7, "x"], ["writer", 2, 8, "y"]], []]]}
    entry = tick_rows.decode(reworded(tick_rows.encode(tick_rows.Entry(WOKEN)), words), whole=True)
    assert entry.peers == {Object("pipe", "pipe:[7]"): Peers((PeerSide("writer", (Process(8, "y"),), 2),))}


def test_unknown_kind_of_waker_is_unknown() -> None:
    blob = tick_rows.encode(tick_rows.Entry(WOKEN))
    words: dict[str, object] = {"wakers": [["ghost", *WAKER[1:5], "aether", 3, 4]], "wakes": [WAKE], "mode": "why"}
    entry = tick_rows.decode(reworded(blob, words), whole=True)
    assert entry.wakes[FIRST_WAKE].waker == Waker("unknown", "", 7, 8, "x", "", 3, 4)
    assert entry.change.mode == "offcpu"


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (np.zeros(3, np.int64), "wakes do not match the sites"),
        (np.zeros((len(WOKEN.sites.ids), 1), np.int64), "wakes do not match the sites"),
        (np.full(len(WOKEN.sites.ids), -1), "a number is out of range"),
        (np.full(len(WOKEN.sites.ids), 1 << 31), "a number is out of range"),
    ],
)
def test_wakes_must_match_the_sites(column: Any, said: str) -> None:
    raw = zlib.decompress(tick_rows.encode(tick_rows.Entry(WOKEN)))
    end = 4 + int.from_bytes(raw[:4], "little")
    tables = [*columns.unpacked(raw[end:])[:-1], column]
    with pytest.raises(ValueError, match=said):
        tick_rows.decode(zlib.compress(raw[:end] + columns.packed(tables)), whole=True)


def test_site_may_occur_twice_with_different_wakes() -> None:
    source = WokenSource()
    one = source.after(5)
    again = tick_rows.decode(tick_rows.encode(tick_rows.Entry(change(NOTHING, one))), whole=True)
    of_teller = [ids for ids in again.change.sites.ids.tolist() if ids[1] == 201]
    assert len({tuple(ids[:4]) for ids in of_teller}) == 1
    assert len(of_teller) == KEPT_SECONDS
    doubled = replace(one, sites={key._replace(wake=WAKE_LOST): totals for key, totals in one.sites.items()})
    rows = change(NOTHING, doubled)
    twice = np.concatenate((rows.sites.ids, rows.sites.ids[:1]))
    more = replace(
        rows.sites,
        ids=twice,
        numbers=np.concatenate((rows.sites.numbers, rows.sites.numbers[:1])),
        longest_ns=np.concatenate((rows.sites.longest_ns, rows.sites.longest_ns[:1])),
    )
    with pytest.raises(ValueError, match="occurs twice"):
        tick_rows.decode(tick_rows.encode(tick_rows.Entry(replace(rows, sites=more))), whole=True)


def test_unknown_wake_and_stack_ids_are_harmless(tmp_path: Path) -> None:
    path = recorded(tmp_path / "it", 4)
    with sqlite3.connect(path) as database:
        database.execute("DELETE FROM stacks")
        for number, blob in database.execute("SELECT number, change FROM ticks").fetchall():
            nothing: dict[str, object] = {"wakers": [], "wakes": [], "ends": []}
            words = {**nothing, "storms": [[77_777, number, number, 0, 0]]}
            database.execute("UPDATE ticks SET change = ? WHERE number = ?", (reworded(blob, words), number))
    database.close()
    assert replay_output(path)
    last = in_json(RecordedSource(path))[-1]
    jsonschema.validate(last, schema(), jsonschema.Draft202012Validator)
    (locked,) = [one for one in last["sites"] if one["comm"] == "worker-2"]
    assert locked["waker"]["name"] == "(waker lost)"


@pytest.mark.parametrize("fallen", [(0, 900, 90, 9), (9, 0, 90, 9), (9, 900, 0, 9)])
def test_falling_total_of_storms_is_damage(tmp_path: Path, fallen: tuple[int, ...]) -> None:
    path = recorded(tmp_path / "it", 12)
    storms_in(path, {4: [[STORMS, *fallen]]})
    source = RecordedSource(path)
    played = in_json(source)
    # Tick 4 is skipped. Tick 5 is a full one without a predecessor.
    assert [tick["taken_ns"] // NS_PER_S - START_NS // NS_PER_S for tick in played] == [1, 2, *range(5, 13)]
    assert [tick["storms"][0]["woken"] for tick in played] == [100] * 10
    assert ("damaged", "1 ticks or stacks of the file could not be read") in source.about()


def test_storms_may_stop_and_start_again(tmp_path: Path) -> None:
    path = recorded(tmp_path / "it", 3)
    storms_in(path, {3: []})
    source = RecordedSource(path)
    assert [[one["woken"] for one in tick["storms"]] for tick in in_json(source)] == [[100], [], [300]]
    assert "damaged" not in dict(source.about())


def storms_in(path: Path, storms: Mapping[int, list[list[int]]]) -> None:
    """Write storms into the changes of ticks, by tick number."""
    with sqlite3.connect(path) as database:
        for number, some in storms.items():
            (blob,) = database.execute("SELECT change FROM ticks WHERE number = ?", (number,)).fetchone()
            database.execute("UPDATE ticks SET change = ? WHERE number = ?", (reworded(blob, {"storms": some}), number))
    database.close()


def test_wakes_are_bounded_over_many_ticks_but_those_in_the_totals_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This does not depend on the clock of the recording."""
    path = recorded(tmp_path / "it", 12)
    plain = in_json(RecordedSource(path))
    with sqlite3.connect(path) as database:
        for number, blob in database.execute("SELECT number, change FROM ticks").fetchall():
            words = parts(blob)[0]
            others = range(number << 16, (number << 16) + 900)
            more: dict[str, object] = {
                "wakers": words.get("wakers", []) or [WAKER],
                "wakes": words.get("wakes", []) + [[other, 0, *WAKE[2:], other, other + 1, 0] for other in others],
                "comms": words["comms"] + [[other, other, "x"] for other in others],
                "lives": words["lives"] + [[other, other + 1, 7, 8] for other in others],
                "processes": words["processes"] + [[other, "x"] for other in others],
                "details": words["details"] + [[other, "me", "", "/", 0] for other in others],
            }
            database.execute("UPDATE ticks SET change = ? WHERE number = ?", (reworded(blob, more), number))
    database.close()
    monkeypatch.setattr(catalog_keeper, "_MOST_WAKES", 1_000)
    monkeypatch.setattr(catalog_keeper, "_MOST_NAMES", 1_000)
    source = RecordedSource(path)
    for snapshot in iter(source.read, None):
        catalog = snapshot.catalog
        for kept in (catalog.wakes, catalog.comms, catalog.lives, catalog.processes, catalog.details, catalog.stacks):
            assert len(kept) <= 1_000
    assert in_json(RecordedSource(path)) == plain


def test_wakes_in_the_totals_beyond_the_bound_are_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = recorded(tmp_path / "it", 2)
    all_of_them = in_json(RecordedSource(path))[-1]
    wakers = {(one["comm"], *one["user"]): one["waker"] and one["waker"]["name"] for one in all_of_them["sites"]}
    monkeypatch.setattr(catalog_keeper, "_MOST_WAKES", len(RESERVED))
    tick = in_json(RecordedSource(path))[-1]
    wakers = {(one["comm"], *one["user"]): one["waker"] and one["waker"]["name"] for one in tick["sites"]}
    assert wakers == {
        key: name if name is None or name.startswith("(") else "(waker lost)" for key, name in wakers.items()
    }


@pytest.mark.variant
def test_overwritten_bytes_cause_no_crash(tmp_path: Path) -> None:
    whole, path, chance = recorded(tmp_path / "whole", 5).read_bytes(), tmp_path / "it", random.Random(7)
    for _ in range(30):
        spoilt = bytearray(whole)
        for _ in range(chance.choice((1, 4, 40))):
            at = chance.randrange(len(spoilt))
            spoilt[at : at + 8] = chance.randbytes(8)
        path.write_bytes(spoilt)
        assert replay_output(path)


@given(st.data())
def test_changed_bytes_of_a_tick_are_a_tick_or_a_value_error(data: st.DataObject) -> None:
    now = WokenSource().after(3)
    blob = zlib.decompress(tick_rows.encode(tick_rows.Entry(WOKEN, wakes={LOCK: now.catalog.wakes[LOCK]})))
    at = data.draw(st.integers(0, len(blob) - 1))
    spoilt = blob[:at] + data.draw(st.binary(min_size=1, max_size=9)) + blob[at + 1 :]
    refused(lambda: tick_rows.decode(zlib.compress(spoilt)))


def test_untrusted_names_are_escaped(tmp_path: Path) -> None:
    said = replay_output(recorded(tmp_path / "it"))
    assert "worker\\\\x1b[31m\\\\udc80" in said
    assert "/var/\\\\x1b[2Jdata" in said
