"""offtop diff lists the changes between two recordings of different length, and they add up."""

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offtop.model.values import histogram as log2
from offtop.model.values.catalog import SiteKey, ThreadKey
from offtop.model.values.disks import DeviceTotals, DiskActivity, DiskKey, DiskTotals
from offtop.model.values.files import FileActivity, FileId, FileKey, FileTotals
from offtop.model.values.snapshot import EXITED, Filters, SiteTotals, ThreadTotals
from offtop.model.values.stack import KERNEL, NO_STACK, Frame, Stack
from offtop.person import person
from offtop.recording.writer import Recorder
from offtop.units import NS_PER_S
from tests.command import call
from tests.ui.busy import BusySource
from tests.ui.sampled import SampledSource
from tests.ui.scripted import SHOP, ScriptedSource, Waits

BUSIER = (
    *(one for one in SHOP if one.category != "disk-read"),
    Waits("shop", 100, "worker-2", 102, "pipe", "pipe_write", ("report", "main"), (300, 200)),
)
"""SHOP without disk reads, and with a new stack that 0.5 threads wait in."""


def recorded(file: Path, table: tuple[Waits, ...], seconds: int, filters: Filters = Filters()) -> str:
    return recorded_of(ScriptedSource(table, ticks=seconds), file, seconds, filters)


def recorded_of(source: ScriptedSource, file: Path, seconds: int, filters: Filters = Filters()) -> str:
    recorder = Recorder(file, source, person(), leave_bytes=0, whole_ns=5 * NS_PER_S)
    for second in range(seconds + 1):
        recorder.add(replace(source.after(second), filters=filters))
    recorder.close()
    return str(file)


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> str:
    return recorded(tmp_path_factory.mktemp("before") / "good.offtop", SHOP, 20)


@pytest.fixture(scope="module")
def after(tmp_path_factory: pytest.TempPathFactory) -> str:
    return recorded(tmp_path_factory.mktemp("after") / "bad.offtop", BUSIER, 8)


def diff_json(*arguments: str) -> dict[str, Any]:
    ended = call("diff", *arguments, "--json")
    assert (ended.status, ended.err) == (0, "")
    return json.loads(ended.out)


def changes(made: dict[str, Any], by: str) -> dict[str, float]:
    return {one["name"]: round(one["change"], 2) for one in made[by] if round(one["change"], 2)}


def test_changes_are_listed_by_category_cause_process_and_location(before: str, after: str) -> None:
    made = diff_json(before, after)
    assert changes(made, "categories") == {"pipe": 0.5, "disk-read": -0.1}
    assert changes(made, "reasons") == {"room in a pipe": 0.5, "the disk to read": -0.1}
    assert changes(made, "processes") == {"shop": 0.4}
    assert changes(made, "places") == {
        "shop: pipe_write < report < main": 0.5,
        "shop: io_schedule < read_page < serve < main": -0.1,
    }
    assert [one["name"] for one in made["categories"]][:2] == ["pipe", "disk-read"], "what changed most comes first"
    (new,) = [one for one in made["places"] if one["new"]]
    (gone,) = [one for one in made["places"] if one["gone"]]
    assert ("pipe_write" in new["name"], "io_schedule" in gone["name"]) == (True, True)
    assert new["p99_ns_before"] == 0 < new["p99_ns_after"]
    assert (made["before"]["span_ns"], made["after"]["span_ns"]) == (20 * NS_PER_S, 8 * NS_PER_S)


def test_different_filters_are_reported(before: str, tmp_path: Path) -> None:
    within = recorded(tmp_path / "within.offtop", SHOP, 4, Filters(within="shop:serve"))
    longer = recorded(tmp_path / "longer.offtop", SHOP, 4, Filters(min_ns=5_000_000))
    lines = call("diff", before, within).out.splitlines()
    assert lines[2] == "Before counted other threads or waits, so some of these differences may not be real."
    assert lines[3:5] == ["before all threads, minimum 1ms", "after  within shop:serve, minimum 1ms"]
    assert "The minimum of before was 1ms" in call("diff", before, longer).out
    assert "no change" not in call("diff", before, before).out
    made = diff_json(before, within)
    assert (made["before"]["filters"]["within"], made["after"]["filters"]["within"]) == (None, "shop:serve")


def test_sampling_is_reported_with_a_warning_if_only_one_side_was_sampled(before: str, tmp_path: Path) -> None:
    every = recorded_of(SampledSource(), tmp_path / "every.offtop", 4)
    own = recorded_of(SampledSource(own_only=True), tmp_path / "own.offtop", 4)
    lines = call("diff", before, own).out.splitlines()
    assert lines[0].endswith("in 20.0s of good.offtop")
    assert lines[1].endswith(" of own.offtop; sampled ~20 Hz, own processes only")
    doubt = "before was not sampled; before has processes of all users, so some of these differences may not be real."
    assert lines[2] == doubt.capitalize()
    lines = call("diff", own, every).out.splitlines()
    assert lines[1].endswith("of every.offtop; sampled ~20 Hz")
    assert lines[2] == "Before has own processes only, so some of these differences may not be real."
    assert "no change" not in call("diff", own, own).out
    made = diff_json(before, own)
    assert made["before"]["sampling"] is None
    assert (made["after"]["sampling"]["rate_hz"], made["after"]["sampling"]["own_only"]) == (20.0, True)


def test_each_table_has_all_the_time(before: str, after: str) -> None:
    made = diff_json(before, after)
    for end in ("total_ns_before", "total_ns_after"):
        sums = {sum(one[end] for one in made[by]) for by in ("categories", "reasons", "processes", "places")}
        assert len(sums) == 1 and sums != {0}


def test_diff_with_itself_shows_no_change(before: str) -> None:
    made = diff_json(before, before)
    assert not any(changes(made, by) for by in ("categories", "reasons", "processes", "places"))
    assert not any(one["new"] or one["gone"] for one in made["places"])


def test_text_rows_have_signs_and_the_rest_is_summed_up(before: str, after: str) -> None:
    ended = call("diff", before, after)
    assert (ended.status, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert re.fullmatch(r"before +1\.\d\d waiting in 20\.0s of good\.offtop", lines[0])
    assert [line.split()[-1] for line in lines if "BEFORE" in line] == ["CATEGORY", "FOR", "PROCESS", "WHERE"]
    (row,) = [line for line in lines if line.endswith(" new  pipe")]
    assert row.split() == ["0.00", "0.50", "+0.50", "300ms", "new", "pipe"]
    assert any(" more" in line for line in lines)


def test_filter_applies_to_both_sides(before: str, after: str) -> None:
    made = diff_json(before, after, "--filter", "proc=bank")
    assert {one["name"] for one in made["processes"]} == {"bank"}
    assert "door" in {one["name"] for one in diff_json(before, after, "-i")["processes"]}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("nowhere.offtop", "nowhere.offtop"), "nowhere.offtop"),
        (("--filter", "max>1ms"), "select rows of a table, and there is none"),
        (("--filter", "colour=red"), "'colour' is not a filter key"),
    ],
)
def test_invalid_arguments_are_an_error(before: str, after: str, arguments: tuple[str, ...], error: str) -> None:
    files = () if len(arguments) == 2 and "nowhere" in arguments[0] else (before, after)
    ended = call("diff", *files, *arguments)
    assert error in ended.err and ended.status != 0
    assert "Traceback" not in ended.err


def an_hour(file: Path) -> str:
    """Record one tick per minute.

    A job waits 50 s in each of the first five and has exited by the seventh.
    """
    source = BusySource(sites=2, still=0)
    recorder = Recorder(file, source, person(), leave_bytes=0)
    for minute in range(60):
        taken = source.read()
        assert taken
        fsync, commit = (
            (Frame(KERNEL, 0, "fsync"),),
            (Frame("/opt/job", 1, "slow_commit"), Frame("/opt/job", 2, "main")),
        )
        taken.catalog.stacks |= {900: Stack(fsync, 0, "fsync"), 901: Stack(commit)}
        taken.catalog.processes[77] = taken.catalog.comms[ThreadKey(77, 77)] = "job"
        waits = min(minute, 5)
        ns = waits * 50 * NS_PER_S
        site = SiteKey(77, 77, 900, 901) if minute < 7 else SiteKey(*EXITED, 900, NO_STACK)
        sites = {**dict(taken.sites), site: SiteTotals(waits, ns, 0, 50 * NS_PER_S)}
        threads = {**dict(taken.threads), site.thread: ThreadTotals(waits=waits, offcpu_ns=ns, max_ns=50 * NS_PER_S)}
        at_ns, taken_ns = (1_000 + minute * 60) * NS_PER_S, (1_795_226_600 + minute * 60) * NS_PER_S
        recorder.add(replace(taken, at_ns=at_ns, taken_ns=taken_ns, sites=sites, threads=threads))
    recorder.close()
    return str(file)


def test_thread_that_exited_long_before_the_end_keeps_its_name_and_stack(tmp_path: Path) -> None:
    ended = call("export", "csv", an_hour(tmp_path / "long.offtop"), "-i")
    assert (ended.status, ended.err) == (0, "")
    (row,) = [row for row in csv.DictReader(io.StringIO(ended.out)) if "slow_commit" in row["stack"]]
    assert (row["process"], row["thread"], row["stack"]) == ("job", "job", "main;slow_commit;fsync")
    assert int(row["total_ns"]) == 250 * NS_PER_S


MS = 1_000_000
LOG, SDA = FileId(1, 2, 0), 8 << 20


def with_io(file: Path, calls: dict[str, int], requests: dict[str, int] | None) -> str:
    """Record 10 s of SHOP. Operations take so many ms a second; None: requests are not counted."""
    source = ScriptedSource(SHOP, ticks=10)
    source.files_requested.append(True)
    source.files = FileActivity(
        {FileKey(100, op, LOG): FileTotals(2, 0, ms * MS, 0, ms * MS, log2.of(ms * MS)) for op, ms in calls.items()},
        {LOG: "/db/\x1b.log"},
    )
    if requests is not None:
        source.disks_requested.append(True)
        source.disks = DiskActivity(
            {
                DiskKey(SDA, op, 100, 101): DiskTotals(1, outstanding_ns=ms * MS, max_ns=ms * MS)
                for op, ms in requests.items()
            },
            {SDA: DeviceTotals()},
            {SDA: "sda"},
        )
    return recorded_of(source, file, 10)


def test_file_operations_and_requests_of_both_recordings_are_compared(tmp_path: Path) -> None:
    good = with_io(tmp_path / "good.offtop", {"fsync": 20, "read": 100}, {"read": 500})
    bad = with_io(tmp_path / "bad.offtop", {"fsync": 320, "write": 50}, {"read": 900})
    made = diff_json(good, bad)
    assert changes(made, "files") == {
        "shop: fsync /db/\\x1b.log": 0.3,
        "shop: read /db/\\x1b.log": -0.1,
        "shop: write /db/\\x1b.log": 0.05,
    }
    assert changes(made, "disks") == {"shop: read sda": 0.4}
    assert {one["name"].split()[1]: (one["new"], one["gone"]) for one in made["files"]} == {
        "fsync": (False, False),
        "read": (False, True),
        "write": (True, False),
    }
    lines = call("diff", good, bad).out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.endswith("FILE OPERATION"))
    assert lines[at + 1].split() == ["0.02", "0.32", "+0.30", "20ms", "320ms", "shop:", "fsync", "/db/\\x1b.log"]
    at = next(number for number, line in enumerate(lines) if line.endswith("REQUEST TO DISK"))
    assert lines[at + 1].split()[:3] == ["0.50", "0.90", "+0.40"]
    assert changes(diff_json(good, bad, "--filter", "op=write"), "files") == {"shop: write /db/\\x1b.log": 0.05}


def test_what_only_one_recording_counted_is_not_compared(tmp_path: Path, before: str) -> None:
    good = with_io(tmp_path / "good.offtop", {"fsync": 20}, None)
    bad = with_io(tmp_path / "bad.offtop", {"fsync": 320}, {"read": 900})
    made = diff_json(good, bad)
    assert ("files" in made, "disks" in made) == (True, False)
    assert "Requests to disks were counted in after only, so they are not compared." in call("diff", good, bad).out
    assert "counted in" not in call("diff", before, before).out


def test_json_compares_rows_of_files_and_disks_with_a_baseline(tmp_path: Path) -> None:
    good = with_io(tmp_path / "good.offtop", {"fsync": 20, "read": 100}, {"read": 500})
    bad = with_io(tmp_path / "bad.offtop", {"fsync": 320, "write": 50}, {"read": 900})
    ended = call("replay", bad, "--baseline", good, "--json", "-n", "1")
    tick = json.loads(ended.out)
    rows = {row["op"]: row["baseline"] for row in tick["files"]["rows"]}
    assert (rows["fsync"]["waiting"], round(rows["fsync"]["change"], 6), rows["fsync"]["new"]) == (0.02, 0.3, False)
    assert rows["fsync"]["sure"] and rows["fsync"]["p99_ns"] > 0
    assert rows["write"]["new"]
    assert tick["files"]["gone"] == [{"process": "shop", "what": "read /db/\\x1b.log", "waiting": 0.1}]
    (request,) = tick["disks"]["rows"]
    assert round(request["baseline"]["change"], 6) == 0.4
    assert tick["disks"]["gone"] == []
    plain = json.loads(call("replay", bad, "--json", "-n", "1").out)
    assert "gone" not in plain["files"] and "baseline" not in plain["files"]["rows"][0]
    waits = json.loads(call("replay", bad, "--baseline", recorded(tmp_path / "w", SHOP, 4), "--json", "-n", "1").out)
    assert "gone" not in waits["files"] and "baseline" not in waits["files"]["rows"][0]
