"""Outliers are recorded, merged when they end, and refused if they are impossible."""

import io
import json
import sqlite3
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey
from offtop.model.values.outlier import AUTO, LongWait, Outlier, SlowIo
from offtop.model.values.snapshot import Snapshot
from offtop.model.values.stack import EMPTY, KERNEL, Frame, Stack
from offtop.model.values.wake import FIRST_WAKE, THREAD, WHOLE, Object, Wake, Waker
from offtop.person import person
from offtop.recording import outlier_rows
from offtop.recording.replay import RecordedSource
from offtop.recording.writer import Recorder
from offtop.reports import batch
from offtop.reports.wanted import Wanted
from tests.recording.test_report import written
from tests.ui.scripted import AT_NS, SHOP, START_NS, ScriptedSource
from tests.ui.shown import CATEGORIES

LOCK = Stack((Frame(KERNEL, 0, "schedule"), Frame(KERNEL, 0, "futex_do_wait")), 1, "lock")
S = 10**9


def outlier(wait: bool = True, ended: bool = True) -> Outlier:
    waker = Waker(THREAD, "", 100, 103, "clerk", kernel=30)
    catalog = Catalog(comms={ThreadKey(100, 101): "worker\x1b"}, processes={100: "shop"})
    catalog.wakes[FIRST_WAKE] = Wake(waker, Object("futex", "0x7f", 100, state="x"), (), WHOLE)
    catalog.stacks |= {20: LOCK, 21: EMPTY, 30: LOCK}
    site, ended_ns = SiteKey(100, 101, 20, 21, FIRST_WAKE), 7 * S if ended else 0
    one = LongWait(site, 5 * S, ended_ns, S // 10, 1 << 31, 3, "shop", not ended, began_earlier=bool(ended))
    about = (AT_NS, START_NS, AUTO, "max", "lock", "shop", 1.9e9, 1e9, 12_000_000)
    return Outlier(*about, one if wait else None, "running", False, 4, catalog)


def contents(one: Outlier) -> object:
    """Return an outlier without the reserved entries of its catalog."""
    return one._replace(catalog=Catalog()), one.catalog.comms, one.catalog.processes


SUSPECT = outlier(wait=False)._replace(rule="suspect", metric="harm", says="3 flock wait for job.lock")
SLOW = outlier(wait=False)._replace(io=SlowIo("file", "fsync /db/\x1b.log"))


@pytest.mark.parametrize("one", [outlier(), outlier(ended=False), outlier(wait=False), SLOW, SUSPECT])
def test_outlier_is_read_as_written(one: Outlier) -> None:
    again = outlier_rows.decode(outlier_rows.encode(one), {20: LOCK, 21: EMPTY, 30: LOCK}.__getitem__)
    assert contents(again) == contents(one)
    if one.wait:
        assert again.catalog.wake(FIRST_WAKE) == one.catalog.wake(FIRST_WAKE)
        assert again.catalog.stack(20) == again.catalog.stack(30) == LOCK


def test_long_sentence_of_a_suspect_is_cut() -> None:
    again = outlier_rows.decode(outlier_rows.encode(SUSPECT._replace(says="x" * 400)), lambda _: LOCK)
    assert again.says == "x" * 300


def changed(**words: Any) -> bytes:
    made = json.loads(zlib.decompress(outlier_rows.encode(outlier())))
    return zlib.compress(json.dumps({**made, **words}).encode())


def with_value(where: str, index: int, value: object) -> bytes:
    made = json.loads(zlib.decompress(outlier_rows.encode(outlier())))
    made[where][index] = value
    return zlib.compress(json.dumps(made).encode())


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"x",
        None,
        zlib.compress(b"[]"),
        zlib.compress(b"{}"),
        changed(outlier=[1]),
        changed(wait=[1, 2]),
        changed(io=["file"]),
        changed(io=["net", "x"]),
        changed(io=["file", "x" * 301]),
        changed(says=7),
        changed(says="x" * 301),
        changed(comms=[[1]]),
        changed(wakers=[]),
        changed(comms=[[1, number, ""] for number in range(101)]),
        changed(processes=[[number, ""] for number in range(101)]),
        changed(wakes=[[FIRST_WAKE + number, 0, "", "", 0, WHOLE] for number in range(101)]),
        with_value("outlier", 0, -1),
        with_value("outlier", 2, "x" * 301),
        with_value("outlier", 3, "luck"),
        with_value("outlier", 6, "much"),
        with_value("outlier", 6, float("nan")),
        with_value("wait", 0, -1),
        with_value("wait", 5, 9 * S),
        with_value("wait", 6, 1 << 62),
    ],
)
def test_impossible_outlier_is_refused(blob: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        outlier_rows.decode(blob, lambda _: LOCK)


def test_outlier_has_only_the_wake_that_it_refers_to() -> None:
    wakes = [[FIRST_WAKE + number, 0, "", "", 0, WHOLE] for number in range(100)]
    again = outlier_rows.decode(changed(wakes=wakes, ends=[]), lambda _: LOCK)
    assert {number for number in again.catalog.wakes if number >= FIRST_WAKE} == {FIRST_WAKE}


def recorded(path: Path, category: str = "lock") -> None:
    """Record four ticks, with an outlier that starts in the second and ends in the fourth."""
    source = ScriptedSource(SHOP, ticks=3, ends=True)
    recorder = Recorder(path, source, person(), leave_bytes=0)
    number = 0
    while (snapshot := source.read()) is not None:
        number += 1
        recorder.add(with_outliers(snapshot, number, category))
    recorder.close()


def with_outliers(snapshot: Snapshot, number: int, category: str) -> Snapshot:
    if number not in (2, 4):
        return snapshot
    site = next(iter(snapshot.sites))
    wait = LongWait(site, 5 * S, 7 * S if number == 4 else 0, program="shop")
    about = (snapshot.at_ns, snapshot.taken_ns, AUTO, "max", category, "shop", 2e9, 1e9)
    one = Outlier(*about, wait=wait, was_reported=number == 4, catalog=snapshot.catalog)
    return replace(snapshot, outliers=[one])


def test_file_has_outliers_by_tick_and_as_a_list(tmp_path: Path) -> None:
    recorded(tmp_path / "it")
    source = RecordedSource(tmp_path / "it")
    (one,) = source.outliers()
    assert (one.is_going_on, one.was_reported, one.length_ns) == (False, False, 2 * S)
    assert one.at_ns == AT_NS + S
    assert one.wait
    assert [frame.name for frame in one.catalog.stack(one.wait.site.kernel).frames] == ["schedule", "futex_do_wait"]
    seen: list[int] = []
    while (snapshot := source.read()) is not None:
        seen.append(len(snapshot.outliers))
    assert seen == [0, 1, 0, 1]


def test_report_lists_outliers(tmp_path: Path) -> None:
    recorded(tmp_path / "it")
    lines = written(tmp_path / "it")
    at = lines.index("OUTLIERS: 1; replay --at outlier goes there")
    assert lines[at + 1].endswith(
        "2.00s lock, auto: worker-1(101) of shop(100): futex_do_wait < take_order < serve < main"
    )


def test_invalid_unicode_is_escaped_in_json(tmp_path: Path) -> None:
    recorded(tmp_path / "it", category="l\udcffck")
    out = io.StringIO()
    batch.run(RecordedSource(tmp_path / "it"), CATEGORIES, S, None, Wanted(), as_json=True, width=0, out=out)
    categories = [one["category"] for line in out.getvalue().splitlines() for one in json.loads(line)["outliers"]]
    assert categories == ["l\\udcffck"] * 2


def test_damaged_outlier_is_skipped_and_counted(tmp_path: Path) -> None:
    recorded(tmp_path / "it")
    database = sqlite3.connect(tmp_path / "it")
    database.execute("UPDATE outliers SET outlier = X'00' WHERE number = 4")
    database.commit()
    database.close()
    source = RecordedSource(tmp_path / "it")
    assert [one.is_going_on for one in source.outliers()] == [True]
    assert ("damaged", "1 ticks or stacks of the file could not be read") in source.about()


def test_old_recording_has_no_outliers(tmp_path: Path) -> None:
    recorded(tmp_path / "it")
    database = sqlite3.connect(tmp_path / "it")
    database.execute("DROP TABLE outliers")
    database.commit()
    database.close()
    assert RecordedSource(tmp_path / "it").outliers() == []
