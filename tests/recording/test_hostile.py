"""An untrusted file is refused or read as far as possible, without traceback, escape codes or endless memory."""

import io
import json
import random
import sqlite3
import time
import tracemalloc
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offtop.errors import OfftopError
from offtop.model.values import columns
from offtop.model.values.blockers import FILE_LOCK, Blocker
from offtop.model.values.catalog import Catalog, ThreadKey
from offtop.model.values.outlier import LongWait
from offtop.model.values.running import Running
from offtop.model.values.snapshot import EXITED, Snapshot, ThreadTotals
from offtop.model.values.stack import NO_STACK, STACK_LOST, Stack
from offtop.model.values.table import SITES, THREADS, integers
from offtop.model.windows import change as windows_change
from offtop.model.windows.change import NOTHING, Change, Replayed, change
from offtop.person import person
from offtop.recording import reader, replay, stack_rows, tick_rows
from offtop.recording.replay import RecordedSource
from offtop.recording.writer import Recorder
from offtop.reports import batch
from offtop.reports.wanted import Wanted
from offtop.units import NS_PER_S
from tests.conftest import EXAMPLES
from tests.model.world import Step, snapshots, stretches
from tests.recording.test_outliers import outlier
from tests.recording.test_recording import in_json, recorded
from tests.recording.test_report import written
from tests.ui.scripted import MS, SHOP, STUCK, ScriptedSource
from tests.ui.shown import CATEGORIES


def replay_output(path: Path) -> str:
    """Return everything that replay and report print about a file, or their error."""
    out = io.StringIO()
    try:
        for wanted, as_json in ((Wanted(stuck=True), False), (Wanted(threads=True), True)):
            with closing(RecordedSource(path)) as source:
                batch.run(source, CATEGORIES, 1, None, wanted, as_json=as_json, width=0, out=out)
        out.write("\n".join(written(path)))
    except OfftopError as error:
        out.write(str(error))
    said = out.getvalue()
    assert "\x1b" not in said
    assert "Traceback" not in said
    return said


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "it.offtop"
    recorded(path, ticks=5, whole_ns=3_000_000_000)
    assert "lock" in replay_output(path)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not a recording of offtop. Make one with: offtop record"),
        (b"PGDMP\x01\x0e", "is not a recording of offtop"),
        (b"SQLite format 3\0" + bytes(100), "is damaged"),
        (b"SQLite format 3\0" + b"\x1b[31m" * 200, "is damaged"),
    ],
)
def test_other_file_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "it\x1b[31m.offtop"
    path.write_bytes(content)
    assert said in replay_output(path)


def test_missing_file_and_directory_are_refused(tmp_path: Path) -> None:
    assert "cannot be read (No such file or directory)" in replay_output(tmp_path / "none")
    assert "cannot be read (Is a directory)" in replay_output(tmp_path)


def changed(path: Path, whole: bytes, *statements: str) -> Path:
    path.write_bytes(whole)
    with sqlite3.connect(path) as database:
        for statement in statements:
            database.execute(statement)
    database.close()
    return path


@pytest.mark.parametrize(
    ("statements", "said"),
    [
        (["PRAGMA user_version = 3"], "file format 3, this offtop reads 2. Use a newer offtop"),
        (["PRAGMA application_id = 7"], "is not a recording of offtop"),
        (["DROP TABLE stacks"], "is not a recording of offtop"),
        (["DROP TABLE ticks", "CREATE VIEW ticks AS SELECT 1"], "is not a recording of offtop"),
        (["ALTER TABLE ticks ADD more"], "is not a recording of offtop"),
        (["DELETE FROM ticks"], "has no tick in it. Record longer, or put its "),
        (["UPDATE ticks SET whole = NULL"], "has no tick in it"),
    ],
)
def test_other_tables_are_refused(tmp_path: Path, whole: bytes, statements: list[str], said: str) -> None:
    assert said in replay_output(changed(tmp_path / "it", whole, *statements))


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE ticks SET change = zeroblob(1000000)",
        "UPDATE ticks SET change = 'text', whole = 7",
        "UPDATE ticks SET taken_ns = 'late', at_ns = 1.5",
        "UPDATE ticks SET taken_ns = 9223372036854775807",
        "UPDATE ticks SET taken_ns = -9223372036854775808, at_ns = 0",
        "UPDATE ticks SET number = -number",
        "UPDATE stacks SET frames = x'ffffffff'",
        "UPDATE stacks SET frames = 'abc', tail = -1, entry = 99",
        "UPDATE stacks SET tail = 1.5, category = x'1b5b'",
        "UPDATE stacks SET category = char(27) || '[2J'",
        "UPDATE frames SET told = x'1b5b324a', file = x'ff', name = ''",
        "UPDATE frames SET offset = 'x'",
        "DELETE FROM frames",
        "DELETE FROM stacks",
        "UPDATE about SET value = char(27) || ']0;x' || char(7)",
        "DELETE FROM about",
        "DELETE FROM ticks WHERE number % 2",
    ],
)
def test_impossible_values_are_skipped(tmp_path: Path, whole: bytes, statement: str) -> None:
    assert replay_output(changed(tmp_path / "it", whole, statement))


@pytest.mark.parametrize(
    "value", ["-5", "'7'", "'1.5'", "''", "x'07'", "char(178)", "replace(hex(zeroblob(2500)), '0', '9')"]
)
def test_impossible_time_since_which_was_measured_is_no_later_than_the_first_tick(
    tmp_path: Path, whole: bytes, value: str
) -> None:
    statement = f"INSERT OR REPLACE INTO about VALUES ('since_ns', {value})"
    with closing(RecordedSource(changed(tmp_path / "it", whole, statement))) as source:
        first = source.read()
        assert first
        assert source.since_ns == (7 if value == "'7'" else 0)
    statement = f"INSERT OR REPLACE INTO about VALUES ('since_ns', '{first.at_ns + 1}')"
    with closing(RecordedSource(changed(tmp_path / "late", whole, statement))) as source:
        assert source.since_ns == first.at_ns


def test_stack_deeper_than_offtop_takes_is_refused() -> None:
    assert len(stack_rows.decode_frames(bytes(4 * 1_024))) == 1_024
    with pytest.raises(ValueError, match="too deep"):
        stack_rows.decode_frames(bytes(4 * 1_025))


def test_long_names_of_functions_are_cut(tmp_path: Path, whole: bytes) -> None:
    long = "CAST(replace(hex(zeroblob(50000)), '0', 'y') AS BLOB)"
    said = replay_output(changed(tmp_path / "it", whole, f"UPDATE frames SET name = {long}, told = {long}"))
    assert "y" * 8_192 in said
    assert "y" * 8_193 not in said


def test_names_beyond_a_total_length_are_short(tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_MOST_TEXT", 0)
    long = "CAST(replace(hex(zeroblob(500)), '0', 'y') AS BLOB)"
    said = replay_output(changed(tmp_path / "it", whole, f"UPDATE frames SET name = {long}, told = {long}"))
    assert "y" * 64 in said
    assert "y" * 65 not in said


def test_large_outlier_is_damaged_and_not_read(tmp_path: Path, whole: bytes) -> None:
    path = changed(tmp_path / "it", whole, "INSERT INTO outliers VALUES (1, zeroblob(30000000))")
    tracemalloc.start()
    with closing(RecordedSource(path)) as source:
        _, most_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        first = source.read()
    assert first
    assert first.lost["damaged"] == 1
    assert most_bytes < 20_000_000


def test_stacks_of_outliers_are_read_once_and_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ScriptedSource(SHOP, ticks=1)
    snapshot = source.after(1)
    some = [
        outlier()._replace(wait=LongWait(site, 5, 7), catalog=snapshot.catalog)
        for site in snapshot.sites
        if site.user != NO_STACK
    ]
    recorder = Recorder(tmp_path / "it", source, person(), leave_bytes=0)
    recorder.add(replace(snapshot, outliers=some * 50))
    recorder.close()
    stacks = {number for site in snapshot.sites for number in (site.kernel, site.user)}
    read: list[int] = []
    stack_of = reader.Recording.stack

    def stack(recording: reader.Recording, number: int) -> Stack:
        read.append(number)
        return stack_of(recording, number)

    monkeypatch.setattr(reader.Recording, "stack", stack)
    for most, numbers in ((1 << 19, len(stacks)), (0, 1)):
        monkeypatch.setattr(reader, "_MOST_REFERENCES", most)
        read.clear()
        with closing(RecordedSource(tmp_path / "it")) as played:
            found, damaged = played.outliers(), played.names.damaged
        assert len(found) == 50 * len(some)
        assert len(read) == len({*read}) == numbers
        known = {number for one in found for number, stack in one.catalog.stacks.items() if stack.frames}
        assert known <= {*read} | {STACK_LOST}
        assert damaged == len(stacks) - numbers


def test_compression_bomb_is_not_unpacked(tmp_path: Path, whole: bytes) -> None:
    path = changed(tmp_path / "it", whole)
    bomb = zlib.compress(bytes(200 << 20), 1)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE ticks SET change = ?, whole = ? WHERE number < 3", (bomb, bomb))
    database.close()
    assert replay_output(path)
    with pytest.raises(ValueError, match="too large"):
        tick_rows.decode(bomb)


@pytest.mark.parametrize("part", range(1, 20))
def test_truncated_file_is_refused_or_replayed_as_far_as_possible(tmp_path: Path, whole: bytes, part: int) -> None:
    path = tmp_path / "it"
    path.write_bytes(whole[: len(whole) * part // 20])
    assert replay_output(path)


@pytest.mark.variant
def test_overwritten_bytes_cause_no_crash(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "it"
    chance = random.Random(7)
    for _ in range(50):
        spoilt = bytearray(whole)
        for _ in range(chance.choice((1, 4, 40))):
            at = chance.randrange(len(spoilt))
            spoilt[at : at + 8] = chance.randbytes(8)
        path.write_bytes(spoilt)
        assert replay_output(path)


@settings(max_examples=3 * EXAMPLES)
@given(st.binary(max_size=200))
def test_random_bytes_are_a_tick_or_a_value_error(raw: bytes) -> None:
    for blob in (raw, zlib.compress(raw)):
        with pytest.raises(ValueError):
            tick_rows.decode(blob)
    refused(lambda: columns.unpacked(raw))


@settings(max_examples=2 * EXAMPLES)
@given(st.data())
def test_changed_bytes_of_a_tick_are_a_tick_or_a_value_error(whole: bytes, data: st.DataObject) -> None:
    blob = zlib.decompress(_blob(whole))
    at = data.draw(st.integers(0, len(blob) - 1))
    spoilt = blob[:at] + data.draw(st.binary(min_size=1, max_size=9)) + blob[at + 1 :]
    refused(lambda: tick_rows.decode(zlib.compress(spoilt)))


def refused(read: Callable[[], object]) -> None:
    """Check that `read` returns or raises a ValueError with a text."""
    try:
        read()
    except ValueError as error:
        assert str(error)


@pytest.mark.parametrize("what", ["lost", "mode", "probe", "who"])
def test_words_shown_without_escaping_must_be_known(whole: bytes, what: str) -> None:
    entry = tick_rows.decode(_blob(whole), whole=True)
    evil = "\x1b[2J"
    spoilt = {
        "lost": lambda: replace(entry.change, lost={evil: 1}),
        "mode": lambda: replace(entry.change, mode=evil),
        "probe": lambda: replace(entry.change, probe=evil),
        "who": lambda: replace(entry.change, filters=replace(entry.change.filters, who=evil)),
    }[what]()
    with pytest.raises(ValueError, match="not a word that offtop writes"):
        tick_rows.decode(tick_rows.encode(replace(entry, change=spoilt)), whole=True)


STUCK_NOW = change(NOTHING, ScriptedSource(STUCK).after(3))
"""Four waits in progress."""


def with_begun(column: int, value: int) -> Change:
    begun = STUCK_NOW.begun.copy()
    begun[1, column] = value
    return replace(STUCK_NOW, begun=begun)


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        (with_begun(0, -1), "a number is out of range"),  # since_ns
        (with_begun(0, (1 << 61) + 1), "a number is out of range"),
        (with_begun(1, -1), "a number is out of range"),  # bound
        (with_begun(1, 3), "a number is out of range"),
        (with_begun(2, -1), "a number is out of range"),  # state
        (with_begun(2, 1 << 32), "a number is out of range"),
        (with_begun(3, 1 << 31), "a number is out of range"),  # call
        (with_begun(3, -2 - (1 << 31)), "a number is out of range"),
        (with_begun(10, -1), "a number is out of range"),  # user stack
        (with_begun(10, 1 << 31), "a number is out of range"),
        (replace(STUCK_NOW, begun=STUCK_NOW.begun[1:]), "wait beginnings do not match the waits"),
        (replace(STUCK_NOW, begun=STUCK_NOW.begun[:, 1:]), "wait beginnings do not match the waits"),
        (replace(STUCK_NOW, begun=STUCK_NOW.begun[0]), "wait beginnings do not match the waits"),
        (replace(STUCK_NOW, machine=STUCK_NOW.machine._replace(cpus=-1)), "a number is out of range"),
        (replace(STUCK_NOW, machine=STUCK_NOW.machine._replace(steal_ns=1 << 62)), "a number is out of range"),
    ],
)
def test_impossible_begin_of_a_wait_is_refused(spoilt: Change, said: str) -> None:
    again = tick_rows.decode(tick_rows.encode(tick_rows.Entry(STUCK_NOW)), whole=True)
    assert again.change.begun.tolist() == STUCK_NOW.begun.tolist()
    with pytest.raises(ValueError, match=said):
        tick_rows.decode(tick_rows.encode(tick_rows.Entry(spoilt)), whole=True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"walk": [1]}, "not an array of that length"),
        ({"walk": ["x", 1]}, "not a number"),
        ({"at_ns": -1}, "a time is out of range"),
        ({"taken_ns": 1 << 62}, "a time is out of range"),
        ({"machine": [2, 3]}, "not an array of that length"),
        ({"machine": [2, 3.5, 0]}, "not an integer"),
        ({"lives": [[1, 2, 3]]}, "not an array of that length"),
        ({"lives": [[1, 2, "x", 0]]}, "not a number"),
        ({"comms": [[1, 1, "x" * 65]]}, "a name is too long"),
        ({"processes": [[1, "x" * 65]]}, "a name is too long"),
        ({"details": [[1, "root", "x" * 8_193, "", 0]]}, "a name is too long"),
        ({"realtime": [[1, 100]]}, "a number is out of range"),
        ({"realtime": [[1, -1]]}, "a number is out of range"),
        ({"titles": [[1, "x" * 513]]}, "a title is too long"),
        ({"titles": [[1, 2]]}, "not a string"),
        ({"holders": [[1, 1, 2, 2, "x" * 65]]}, "a name is too long"),
        ({"calls": [[1]]}, "not an array of that length"),
        ({"calls": [["futex", 202]]}, "not a number"),
        ({"calls": [[202, 7]]}, "not a string"),
        ({"calls": {}}, "not an array of that length"),
        ({"calls": [[-1, "futex"]]}, "a number is out of range"),
        ({"calls": [[1 << 31, "futex"]]}, "a number is out of range"),
        ({"calls": [[202, "f" * 65]]}, "too many system calls"),
        ({"calls": [[number, "x"] for number in range(4_097)]}, "too many system calls"),
    ],
)
def test_impossible_fields_are_refused(words: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        tick_rows.decode(reworded(tick_rows.encode(tick_rows.Entry(STUCK_NOW)), words), whole=True)


@pytest.mark.parametrize(
    "words",
    [
        lambda: {"comms": [[number, 1, "x"] for number in range(1_100_000)]},
        lambda: {"lost": {f"kind{number}": 1 for number in range(100_000)}},
        lambda: {"comms": [[1, 1, '"' + "\\" * (1 << 20)], *[[1, 1, "x"]] * 1_100_000]},
    ],
)
def test_tick_with_too_many_values_is_refused(words: Callable[[], dict[str, object]]) -> None:
    with pytest.raises(ValueError, match="a tick has too many values"):
        tick_rows.decode(reworded(tick_rows.encode(tick_rows.Entry(STUCK_NOW)), words()), whole=True)


def reworded(blob: bytes, words: dict[str, object]) -> bytes:
    """Return a tick with some of its words replaced."""
    raw = zlib.decompress(blob)
    end = 4 + int.from_bytes(raw[:4], "little")
    head = json.dumps({**json.loads(raw[4:end]), **words}).encode()
    return zlib.compress(len(head).to_bytes(4, "little") + head + raw[end:])


def test_largest_allowed_number_of_values_is_read() -> None:
    text = 'it\'s ["a": 1, 2], \\" \n'
    words: dict[str, object] = {
        "comms": [[number, number, "a, b: c"] for number in range(1, 20_001)],
        "details": [[number, "me", f"{text} {number}", "/", 0] for number in range(1, 20_001)],
        "calls": [[number, f"call{number}"] for number in range(4_096)],
    }
    entry = tick_rows.decode(reworded(tick_rows.encode(tick_rows.Entry(STUCK_NOW)), words), whole=True)
    assert (len(entry.comms), len(entry.details), len(entry.calls)) == (20_000, 20_000, 4_096)
    assert entry.details[20_000].cmdline == f"{text} 20000"


@pytest.mark.parametrize("unit", ['"', '"\\', '\\"', '"a",', "[", "{", '"\\\\'])
def test_counting_values_is_fast_and_needs_no_memory(unit: str) -> None:
    """Each text has 512 kB and is not JSON."""
    raw = (unit * ((512 << 10) // len(unit))).encode()
    blob = zlib.compress(len(raw).to_bytes(4, "little") + raw, 1)
    began_s = time.process_time()
    with pytest.raises(ValueError):
        tick_rows.decode(blob)
    assert time.process_time() - began_s < 1
    tracemalloc.start()  # after the time limit, because it slows decoding
    with pytest.raises(ValueError):
        tick_rows.decode(blob)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 6 * len(raw)


def test_number_of_system_call_names_is_bounded_over_many_ticks(tmp_path: Path, whole: bytes) -> None:
    path = changed(tmp_path / "it", whole)
    with sqlite3.connect(path) as database:
        for number, blob in database.execute("SELECT number, change FROM ticks").fetchall():
            calls = [[number << 16 | call, "x"] for call in range(4_000)]
            database.execute("UPDATE ticks SET change = ? WHERE number = ?", (reworded(blob, {"calls": calls}), number))
    database.close()
    played = RecordedSource(path)
    *_, last = iter(played.read, None)
    assert len(last.catalog.calls) == tick_rows.MOST_CALLS


def with_titles(path: Path, pids: int) -> None:
    """Record six ticks, the second and third with a title and a blocker of so many processes."""
    source = ScriptedSource(SHOP, ticks=6)
    recorder = Recorder(path, source, person(), leave_bytes=0, whole_ns=2 * NS_PER_S)
    for second in range(6):
        one = source.after(second)
        if second in (1, 2):
            some = (Blocker(1, 1, FILE_LOCK, True, "b" * 10),) * pids
            one = replace(one, titles=dict.fromkeys(range(pids), "a" * 10), blockers={ThreadKey(100, 101): some})
        recorder.add(one)
    recorder.close()


@pytest.mark.parametrize(("name", "most"), [("MOST_TOTALS", 210), ("_MOST_TEXT", 1_999)])
def test_ticks_with_too_many_totals_or_too_long_texts_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, most: int
) -> None:
    """Of six ticks, two are full; the replay continues with the whole tick after them."""
    with_titles(tmp_path / "it", 100)
    for limit, ticks, damaged in ((1 << 20, 6, None), (most, 3, 2)):
        monkeypatch.setattr(replay, name, limit)
        with closing(RecordedSource(tmp_path / "it")) as source:
            every = [*iter(source.read, None)]
        assert len(every) == ticks
        assert every[-1].lost.get("damaged") == damaged
        assert dict(every[-1].sites) == dict(ScriptedSource(SHOP).after(5).sites)


def with_waits(path: Path, added: Sequence[tuple[ThreadKey, int, int]]) -> str:
    """Record ticks, each with so many waits in one lane, and a number of waits, of five sites of a thread.

    Return what replay and report print.
    """
    source, threads, sites = ScriptedSource(SHOP), Running(THREADS), Running(SITES)
    recorder = Recorder(path, source, person(), leave_bytes=0)
    for second, (thread, in_lane, waits) in enumerate([(EXITED, 0, 0), *added]):
        lanes = integers([(row, 14, in_lane) for row in range(5 if in_lane else 0)], 3)
        threads.begin_tick()
        sites.begin_tick()
        numbers = integers([ThreadTotals(waits, MS, max_ns=MS)[:-1]], THREADS.numbers)
        threads.add(integers([thread], 2), numbers, lanes[:1], second)
        keys = integers([(*thread, stack, 0, 0) for stack in range(20, 25)], SITES.width)
        sites.add(keys, integers([(waits, MS, 0, MS)] * 5, SITES.numbers), lanes, second)
        one = source.after(second)
        recorder.add(replace(one, threads=threads.frozen(), sites=sites.frozen()))
    recorder.close()
    return replay_output(path)


THREAD = ThreadKey(100, 101)


@pytest.mark.parametrize(
    ("added", "damaged"),
    [
        ([(EXITED, 5, 5), (EXITED, 3, 3)], 0),
        ([(EXITED, 5, 5), (EXITED, -3, 3)], 1),  # less than before, but more than none
        ([(EXITED, -5, 5)], 1),
        ([(THREAD, -5, 5)], 1),
        ([(THREAD, 1 << 61, 5)], 1),  # the sum of five sites has more than 64 bits
        ([(THREAD, 1 << 48, 5)], 1),
        ([(THREAD, 1 << 47, 5), (THREAD, 1 << 47, 5)], 0),
        ([(THREAD, 5, -5)], 1),
        ([(THREAD, 5, 5), (THREAD, 5, -5)], 0),
        ([(THREAD, 5, 5), (THREAD, 5, -6)], 1),
    ],
)
def test_tick_with_impossible_numbers_of_waits_is_damaged(
    tmp_path: Path, added: Sequence[tuple[ThreadKey, int, int]], damaged: int
) -> None:
    assert with_waits(tmp_path / "it", added)
    with closing(RecordedSource(tmp_path / "it")) as source:
        assert len([*iter(source.read, None)]) == 1 + len(added) - damaged
        assert len([value for what, value in source.about() if what == "damaged"]) == damaged


def test_waits_of_many_ticks_do_not_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows_change, "_MOST_WAITS", 20)
    threads, replayed = Running(THREADS), Replayed(Catalog())
    lanes = integers([(0, 14, 10)], 3)
    taken = [NOTHING]
    for second in range(1, 4):
        threads.add(integers([THREAD], 2), integers([ThreadTotals(10)[:-1]], THREADS.numbers), lanes, second)
        taken.append(Snapshot(second, second, threads.frozen()))
    *first, last = (change(before, now) for before, now in pairwise(taken))
    for one in first:
        replayed.add(one)
    with pytest.raises(ValueError, match="impossible numbers of waits"):
        replayed.add(last)


@given(stretches)
def test_ticks_in_which_threads_exit_are_read(given_stretches: list[list[Step]]) -> None:
    for before, now in pairwise([NOTHING, *snapshots(given_stretches)]):
        entry = tick_rows.Entry(replace(change(before, now), storms={}))
        again = tick_rows.decode(tick_rows.encode(entry), whole=before is NOTHING)
        assert again.change.sites.counts.tolist() == entry.change.sites.counts.tolist()


def test_running_times_must_match_the_threads() -> None:
    entry = tick_rows.Entry(change(NOTHING, ScriptedSource(STUCK).after(9)))
    raw = zlib.decompress(tick_rows.encode(entry))
    end = 4 + int.from_bytes(raw[:4], "little")
    tables = columns.unpacked(raw[end:])
    tables[-2] = tables[-2][:-1]
    with pytest.raises(ValueError, match="running times do not match the threads"):
        tick_rows.decode(zlib.compress(raw[:end] + columns.packed(tables)), whole=True)


def test_system_call_names_are_escaped(tmp_path: Path) -> None:
    source = ScriptedSource(STUCK, ticks=3)
    catalog = source.after(0).catalog
    catalog.calls[0] = "fu\x1b[31mtex\x07"
    recorder = Recorder(tmp_path / "it", source, person(), leave_bytes=0)
    for second in range(4):
        recorder.add(source.after(second))
    recorder.close()
    assert "fu\\x1b[31mtex" in replay_output(tmp_path / "it")
    (last,) = in_json(RecordedSource(tmp_path / "it"))[-1:]
    assert "fu\\x1b[31mtex\\x07" in [one["syscall"] for one in cast(list[dict[str, object]], last["still_blocked"])]


def _blob(whole: bytes) -> bytes:
    """Return the first tick of a recording."""
    database = sqlite3.connect(":memory:")
    database.deserialize(whole)
    (blob,) = database.execute("SELECT change FROM ticks WHERE number = 1").fetchone()
    database.close()
    return blob


def test_intact_file_is_not_reported_as_damaged(tmp_path: Path, whole: bytes) -> None:
    path = changed(tmp_path / "it", whole)
    assert all("damaged" not in str(tick) for tick in in_json(RecordedSource(path)))
    assert "damaged" not in replay_output(path)
