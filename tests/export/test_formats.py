"""Every format of `offtop export` has all the time that offtop shows, and escapes every name."""

import csv
import gzip
import io
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from offtop import paths
from offtop.export import flamegraph, folded, pprof, protobuf, speedscope, table
from offtop.export.folded import Style
from offtop.export.profile import BELOW, WITHOUT, Profile, Sample
from offtop.model.aggregate.steps import LAST_WAIT, WOKEN_BY, Step
from offtop.model.values.files import FILE
from offtop.model.values.snapshot import Sampling
from offtop.model.values.wake import CHAIN, MODES, OFFCPU, OFFWAKE, WAKEUP
from tests import command
from tests.test_diff import recorded_of
from tests.ui.sampled import SampledSource

DEMO = paths.demo()
OLD = Path(__file__).parents[1] / "recordings/first-fields.offtop"
"""A recording without wakers."""
PART = "--begin", "+5s", "--end", "+15s"
"""Ten seconds of the demo, for tests that need no more: its export takes a fifth of the time."""
SECOND = 10**9
HOSTILE = 'a\x1b[31m<b>&";\n\u202e]]>'


def path(*names: str) -> tuple[Step, ...]:
    return tuple(Step(name.removeprefix("k:"), name.startswith("k:")) for name in names)


def sample(ns: int, *names: str, thread: str = "worker", tid: int = 71, category: str = "lock") -> Sample:
    return Sample(category, 70, "shop", tid, thread, path(*names), 3, ns, ns // 2)


def profile(*samples: Sample, mode: str = OFFCPU) -> Profile:
    return Profile(samples, mode, 5 * SECOND, 2 * SECOND, "db7", {})


SHOP = profile(
    sample(900_000_000, "main", "serve", "k:futex_wait"),
    sample(300_000_000, "main", "log", "k:pipe_write", tid=72, category="pipe"),
    Sample("short", 70, "shop", 71, "worker", (BELOW,), 40, 100_000_000, 0),
)


# folded


def test_folded_has_one_line_per_stack_with_its_microseconds() -> None:
    assert folded.text(SHOP).splitlines() == [
        "worker;main;serve;futex_wait 900000",
        "worker;main;log;pipe_write 300000",
    ]


def test_folded_with_a_baseline_scales_it_to_the_same_duration() -> None:
    before = profile(sample(100_000_000, "main", "serve", "k:futex_wait"), sample(50_000_000, "main", "gone"))
    before = before._replace(span_ns=SECOND)
    assert folded.text(SHOP, before).splitlines() == [
        "worker;main;serve;futex_wait 200000 900000",
        "worker;main;log;pipe_write 0 300000",
        "worker;main;gone 100000 0",
    ]


def test_folded_can_be_split_by_thread_and_category() -> None:
    style = Style(per=frozenset(("thread", "category")))
    assert folded.text(SHOP, None, style).splitlines() == [
        "lock;worker-71;main;serve;futex_wait 900000",
        "pipe;worker-72;main;log;pipe_write 300000",
    ]
    assert folded.text(SHOP, SHOP, Style(per=frozenset(("thread",)))).splitlines() == [
        "worker-71;main;serve;futex_wait 900000 900000",
        "worker-72;main;log;pipe_write 300000 300000",
    ]
    woken = profile(sample(SECOND, "clerk", "k:futex_wake", "-> shop"), mode=WAKEUP)
    assert folded.text(woken) == "clerk;futex_wake;shop 1000000\n"
    assert folded.text(woken, None, Style(per=frozenset(("thread",)))) == "worker-71;clerk;futex_wake;shop 1000000\n"


def test_delimiter_separates_user_from_kernel_frames() -> None:
    """As in offcputime -fd and offwaketime -fd: only between the two, and once per stack."""
    style = Style(delimiter=True)
    assert folded.text(SHOP, None, style).splitlines()[0] == "worker;main;serve;-;futex_wait 900000"
    waker = (Step("wake", True), Step("unlock", False), Step("clerk(9)", False, is_waker=True))
    steps = (*path("~", "main", "k:wait"), WOKEN_BY, *waker)
    assert folded.text(profile(replaced(steps), mode=OFFWAKE), None, style) == (
        "worker;~;main;-;wait;--;wake;-;unlock;clerk(9) 1000000\n"
    )
    for only in (path("k:kthread", "k:worker"), path("(still waiting)", "k:wait"), path("main")):
        assert ";-" not in folded.text(profile(replaced(only)), None, style)
    irq = (*path("main"), WOKEN_BY, Step("irq", True), Step("irq (nvme)", False, is_waker=True))
    assert ";-;" not in folded.text(profile(replaced(irq), mode=OFFWAKE), None, style)


# speedscope


def stacks_of(made: dict[str, Any], number: int) -> dict[tuple[str, ...], int]:
    frames, one = made["shared"]["frames"], made["profiles"][number]
    names = [tuple(frames[at]["name"] for at in stack) for stack in one["samples"]]
    assert one["endValue"] == sum(one["weights"])
    return dict(zip(names, one["weights"], strict=True))


def test_speedscope_has_one_profile_of_everything_and_one_per_process() -> None:
    made = json.loads(speedscope.text(SHOP, "a title"))
    assert made["name"] == "a title"
    assert stacks_of(made, 0)["shop (70)", "worker", "main", "serve", "futex_wait"] == 900_000_000
    assert stacks_of(made, 1)["worker", "main", "log", "pipe_write"] == 300_000_000
    assert [one["name"] for one in made["profiles"]] == ["all", "shop (70)"]
    assert sum(stacks_of(made, 0).values()) == sum(one.total_ns for one in SHOP.samples)


# pprof, decoded as the protobuf message that it is


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0

    def varint() -> int:
        nonlocal at
        number = shift = 0
        while True:
            byte = data[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return number

    while at < len(data):
        key = varint()
        if key & 7 == 2:
            length = varint()
            yield key >> 3, data[at : at + length]
            at += length
        else:
            yield key >> 3, varint()


def varints(data: bytes) -> list[int]:
    found: list[int] = []
    number = shift = 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            found.append(number)
            number = shift = 0
    return found


def test_negative_numbers_are_encoded_as_protobuf_has_them() -> None:
    assert varints(protobuf.varint(-1)) == [(1 << 64) - 1]  # a crafted recording may have negative times
    assert varints(protobuf.varint(300)) == [300]


def test_pprof_has_leaf_first_stacks_with_counts_times_and_labels() -> None:
    every = [*fields(gzip.decompress(pprof.packed(SHOP)))]
    strings = [text.decode() for field, text in every if field == 6 and isinstance(text, bytes)]
    assert strings[0] == ""
    functions = {
        dict(fields(one))[1]: strings[int(dict(fields(one))[2])]
        for at, one in every
        if at == 5 and isinstance(one, bytes)
    }
    found: dict[tuple[str, ...], list[int]] = {}
    labels: list[dict[str, object]] = []
    for at, one in every:
        if at == 2 and isinstance(one, bytes):
            parts = [*fields(one)]
            ids, values = (varints(part) for field, part in parts if field in (1, 2) and isinstance(part, bytes))
            found[tuple(functions[number] for number in ids)] = values
            pairs = [dict(fields(part)) for field, part in parts if field == 3 and isinstance(part, bytes)]
            labels.append({strings[int(one[1])]: strings[int(one[2])] if 2 in one else one[3] for one in pairs})
    assert found["futex_wait", "serve", "main"] == [3, 900_000_000]
    assert labels[0] == {"comm": "shop", "thread": "worker", "category": "lock", "pid": 70, "tid": 71}
    types = [dict(fields(one)) for at, one in every if at == 1 and isinstance(one, bytes)]
    assert [(strings[int(one[1])], strings[int(one[2])]) for one in types] == [
        ("contentions", "count"),
        ("off_cpu", "nanoseconds"),
    ]
    whole = dict(every)
    assert (whole[9], whole[10], strings[int(whole[14])]) == (5 * SECOND, 2 * SECOND, "off_cpu")


# the flame graph

_SVG = "{http://www.w3.org/2000/svg}"


def boxes(text: str) -> dict[str, tuple[float, str]]:
    """Return the width and colour of each box by its title."""
    found: dict[str, tuple[float, str]] = {}
    for group in ElementTree.fromstring(text).iterfind(f".//{_SVG}g[{_SVG}title]"):
        title, rect = group.find(f"{_SVG}title"), group.find(f"{_SVG}rect")
        assert title is not None and rect is not None
        found[title.text or ""] = float(rect.get("width") or 0), rect.get("fill") or ""
    return found


def test_box_width_is_time_and_kernel_functions_have_another_colour() -> None:
    drawn = boxes(flamegraph.svg(SHOP))
    whole = drawn["all (1.30s, 100.00%, 46 waits)"][0]
    assert drawn["serve (900ms, 69.23%, 3 waits)"][0] == pytest.approx(whole * 9 / 13, abs=1)
    assert drawn["main (1.20s, 92.31%, 6 waits)"][0] == pytest.approx(whole * 12 / 13, abs=1)
    assert drawn["serve (900ms, 69.23%, 3 waits)"][1] != drawn["futex_wait (900ms, 69.23%, 3 waits)"][1]


def test_differential_flame_graph_is_red_for_growth_and_blue_for_decline() -> None:
    assert {colour for _, colour in boxes(flamegraph.svg(SHOP, "", SHOP)).values()} == {"#ffffff"}
    before = profile(
        sample(100_000_000, "main", "serve", "k:futex_wait"),
        *(sample(900_000_000, "main", "log", "k:pipe_write"), sample(900_000_000, "main", "gone")),
    )
    drawn = {title.partition(" (")[0]: colour for title, (_, colour) in boxes(flamegraph.svg(SHOP, "", before)).items()}
    assert drawn["serve"] == "#ff0000"
    assert drawn["log"] == "#0000ff"
    assert "gone since 0.45" in flamegraph.svg(SHOP, "", before)


def test_too_narrow_boxes_are_counted() -> None:
    many = profile(sample(SECOND, "main", "a"), *(sample(1_000, "main", f"f{n}") for n in range(20)))
    assert "20 boxes too narrow to be drawn" in flamegraph.svg(many)


def test_empty_profile_is_valid_in_every_format() -> None:
    assert boxes(flamegraph.svg(profile())) == {}
    assert json.loads(speedscope.text(profile(), ""))["profiles"][0]["samples"] == []
    assert gzip.decompress(pprof.packed(profile()))
    assert folded.text(profile()) == ""


def test_each_mode_has_its_own_colours() -> None:
    woken = replaced((*path("main", "k:wait"), WOKEN_BY, Step("irq (nvme)", False, is_waker=True)))
    drawn = {mode: boxes(flamegraph.svg(profile(woken, mode=mode))).values() for mode in MODES}
    colours = {mode: frozenset(colour for _, colour in found) for mode, found in drawn.items()}
    assert {len(found) for found in colours.values()} == {5}
    assert len({*colours.values()}) == len(MODES)


def test_waker_frames_have_wakeup_colours_and_waiter_frames_off_cpu_colours() -> None:
    steps = (*path("main", "k:wait"), WOKEN_BY, *path("k:wake", "unlock"), LAST_WAIT, *path("outer", "k:io_wait"))
    drawn = boxes(flamegraph.svg(profile(replaced(steps), mode=CHAIN)))
    colour = {title.partition(" (")[0]: fill for title, (_, fill) in drawn.items()}
    of_wakeups = boxes(flamegraph.svg(profile(replaced(path("unlock", "k:wake")), mode=WAKEUP)))
    aqua = {title.partition(" (")[0]: fill for title, (_, fill) in of_wakeups.items()}
    assert (colour["unlock"], colour["wake"]) == (aqua["unlock"], aqua["wake"])
    assert (colour["main"], colour["wait"]) == (colour["outer"], colour["io_wait"])
    assert not {colour["main"], colour["wait"]} & {*aqua.values()}


# file operations

_LOG, _READ = Step("fsync /var/lib/db/redo.log", False, is_object=True), Step("pread /t.ibd", False, is_object=True)
CALLS = profile(
    Sample("fsync", 42, "db", 42, "db", (*path("main", "commit"), _LOG, *path("k:jbd2_wait")), 2, 600_000_000, 9, 0),
    Sample("pread", 42, "db", 42, "db", (*path("main", "load"), _READ), 5, 100_000_000, 9, 40_000),
    Sample("pread", 42, "db", 42, "db", (WITHOUT, _READ), 900, 300_000_000, 0, 7_000_000),
    mode=FILE,
)


def test_file_operations_are_between_the_functions_of_program_and_kernel() -> None:
    assert folded.text(CALLS).splitlines() == [
        "db;main;commit;fsync /var/lib/db/redo.log;jbd2_wait 600000",
        "db;main;load;pread /t.ibd 100000",
    ]
    assert folded.text(CALLS, None, Style(per=frozenset(("category",)))).startswith("fsync;db;main;")
    rows = [*csv.DictReader(io.StringIO(table.text(CALLS)))]
    assert [row["stack"] for row in rows][2] == "(without a stack);pread /t.ibd"
    assert [(row["category"], row["waits"]) for row in rows] == [("fsync", "2"), ("pread", "5"), ("pread", "900")]
    made = json.loads(speedscope.text(CALLS, ""))
    assert stacks_of(made, 1)["db", "main", "load", "pread /t.ibd"] == 100_000_000


def test_flame_graph_of_file_operations_has_its_own_colours_and_counts_calls() -> None:
    drawn = boxes(flamegraph.svg(CALLS))
    assert "all (1.00s, 100.00%, 907 calls)" in drawn
    colour = {title.partition(" (")[0]: fill for title, (_, fill) in drawn.items()}
    assert colour["main"] == colour["commit"] != colour["jbd2_wait"] != colour["fsync /var/lib/db/redo.log"]
    assert colour["fsync /var/lib/db/redo.log"] == colour["pread /t.ibd"] != colour["db"]
    assert not {*colour.values()} & {fill for _, fill in boxes(flamegraph.svg(SHOP)).values()} - {colour["db"]}
    assert "1.00s in calls in 2.00s of db7: 0.50 calls at a time" in flamegraph.svg(CALLS)
    assert ">file operations<" in flamegraph.svg(CALLS)


def test_pprof_of_file_operations_has_calls_time_and_bytes() -> None:
    every = [*fields(gzip.decompress(pprof.packed(CALLS)))]
    strings = [text.decode() for field, text in every if field == 6 and isinstance(text, bytes)]
    types = [dict(fields(one)) for at, one in every if at == 1 and isinstance(one, bytes)]
    assert [(strings[int(one[1])], strings[int(one[2])]) for one in types] == [
        ("calls", "count"),
        ("call_time", "nanoseconds"),
        ("bytes", "bytes"),
    ]
    values = [
        varints(part)
        for at, one in every
        if at == 2 and isinstance(one, bytes)
        for field, part in fields(one)
        if field == 2 and isinstance(part, bytes)
    ]
    assert values == [[2, 600_000_000, 0], [5, 100_000_000, 40_000], [900, 300_000_000, 7_000_000]]
    assert strings[int(dict(every)[14])] == "call_time"


def replaced(steps: tuple[Step, ...]) -> Sample:
    return sample(SECOND)._replace(path=steps)


# hostile names


def test_hostile_names_are_escaped_in_every_format() -> None:
    one = profile(sample(SECOND, HOSTILE, "k:wait", thread=HOSTILE)._replace(process=HOSTILE))
    assert len(folded.text(one).splitlines()) == 1
    for text in (folded.text(one), speedscope.text(one, HOSTILE), flamegraph.svg(one, HOSTILE, one), table.text(one)):
        assert "\x1b" not in text and "\u202e" not in text
    assert len(boxes(flamegraph.svg(one))) == 3  # process, thread and function all have this name
    (row,) = csv.DictReader(io.StringIO(table.text(one)))
    assert row["thread"].startswith("a\\x1b[31m<b>")


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@x"])
def test_csv_names_are_not_formulas(name: str) -> None:
    one = profile(sample(SECOND, name, thread=name)._replace(process=name))
    (row,) = csv.DictReader(io.StringIO(table.text(one)))
    assert (row["process"], row["thread"], row["stack"]) == (f"'{name}",) * 3


# the command, on the demo recording


@pytest.fixture(scope="module")
def replayed() -> str:
    return command.call("replay", str(DEMO), "--json").out


@pytest.fixture(scope="module")
def shown_ns(replayed: str) -> int:
    """Time that offtop itself shows for the demo: all waits that are not idle."""
    ticks = [json.loads(line) for line in replayed.splitlines()]
    return sum(
        one["total_ns"] - one["idle_ns"] for tick in ticks for one in tick["categories"] if one["name"] != "filtered"
    )


@pytest.fixture(scope="module")
def every_ns(replayed: str) -> int:
    """Time of all waits of the demo."""
    ticks = [json.loads(line) for line in replayed.splitlines()]
    return sum(one["total_ns"] for tick in ticks for one in tick["categories"] if one["name"] != "filtered")


@cache
def exported(form: str, *arguments: str) -> str:
    ended = command.call("export", form, str(DEMO), *arguments)
    assert (ended.status, ended.err) == (0, "")
    return ended.out


@pytest.mark.variant
def test_every_format_has_all_the_time_that_offtop_shows(shown_ns: int, every_ns: int) -> None:
    rows = [*csv.DictReader(io.StringIO(exported("csv")))]
    whole = sum(int(row["total_ns"]) for row in rows)
    with_idle = csv.DictReader(io.StringIO(exported("csv", "--idle")))
    assert sum(int(row["total_ns"]) for row in with_idle) == every_ns
    assert shown_ns <= whole <= every_ns  # a poll looks idle in its first second, until its user stack is known
    made = json.loads(exported("speedscope"))
    assert made["profiles"][0]["endValue"] == whole
    placed = sum(int(row["total_ns"]) for row in rows if row["stack"] != BELOW.name)
    us = sum(int(line.rpartition(" ")[2]) for line in exported("folded").splitlines())
    assert us * 1000 == pytest.approx(placed, rel=0.001)
    assert not any("__schedule" in row["stack"] for row in rows)


@pytest.mark.variant
def test_jsonl_equals_the_output_of_replay(tmp_path: Path, replayed: str) -> None:
    assert exported("jsonl") == replayed
    out = tmp_path / "x.jsonl"
    assert exported("jsonl", "-o", str(out), "-n", "3") == ""
    assert out.read_text().splitlines() == replayed.splitlines()[:3]
    assert out.stat().st_mode & 0o777 == 0o600
    part = [json.loads(line)["taken_ns"] for line in exported("jsonl", "--begin", "+5s", "--end", "+9s").splitlines()]
    every = [json.loads(line)["taken_ns"] for line in replayed.splitlines()]
    assert 3 <= len(part) <= 5 and set(part) < set(every)


def test_folded_total_does_not_depend_on_how_it_is_split() -> None:
    def whole(folded: str) -> int:
        return sum(int(line.rpartition(" ")[2]) for line in folded.splitlines())

    plain = exported("folded", *PART)
    for some in (("--delimiter",), ("--per", "thread"), ("--per", "category"), ("--per", "thread,category")):
        assert whole(exported("folded", *PART, *some)) == pytest.approx(whole(plain), rel=0.001)
    assert exported("folded", *PART, "--no-delimiter") == plain


def test_batch_folded_total_does_not_depend_on_how_it_is_split() -> None:
    def us_by_stack(*arguments: str) -> dict[str, int]:
        ended = command.call("replay", str(DEMO), "--folded", "-n", "4", *arguments)
        assert (ended.status, ended.err) == (0, "")
        lines = (line.rpartition(" ") for line in ended.out.splitlines())
        return {stack: int(us) for stack, _, us in lines}

    plain = us_by_stack()
    parted = us_by_stack("--per", "category,thread", "--delimiter")
    assert sum(parted.values()) == pytest.approx(sum(plain.values()), rel=0.001)
    assert all(re.match(r"[a-z-]+;.+-\d+;", stack) for stack in parted)
    joined: dict[str, int] = {}
    for stack, us in parted.items():
        line = re.sub(r"^[^;]+;(.*?)-\d+;", r"\1;", stack).replace(";-;", ";")
        joined[line] = joined.get(line, 0) + us
    assert joined.keys() >= {stack for stack, us in plain.items() if us > 1000}


def test_time_range_and_filter_limit_the_export() -> None:
    def whole(*arguments: str) -> int:
        return sum(int(row["total_ns"]) for row in csv.DictReader(io.StringIO(exported("csv", *arguments))))

    part = whole(*PART)
    assert 0 < part < whole()
    locks = csv.DictReader(io.StringIO(exported("csv", *PART, "--filter", "cat=lock")))
    assert {row["category"] for row in locks} == {"lock"}
    assert whole(*PART, "-i") > part


def test_exported_file_is_private(tmp_path: Path) -> None:
    out = tmp_path / "x.pb.gz"
    ended = command.call("export", "pprof", str(DEMO), *PART, "-o", str(out))
    assert (ended.status, ended.out, ended.err) == (0, "", "")
    assert out.stat().st_mode & 0o777 == 0o600
    assert gzip.decompress(out.read_bytes())
    link = tmp_path / "link"
    link.symlink_to(out)
    assert "is a link" in command.call("export", "folded", str(DEMO), "-o", str(link)).sentence


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("pprof", str(DEMO), "--baseline", str(DEMO)), "--baseline works only with folded and svg"),
        (("folded", str(DEMO), "--filter", "max>1ms"), "select rows of a table, and there is none"),
        (("folded", "--begin", "+1s"), "--begin and --end need a recording"),
        (("folded", str(DEMO), "--end", "nonsense"), "--end: 'nonsense' is not a time"),
        (("folded", str(OLD), "--mode", "chain"), "Wakers were not recorded"),
        (("folded", str(OLD), "--filter", "waker=a"), "needs wakers, which were not recorded"),
        (("folded", str(DEMO), "--begin", "+40s", "--end", "+10s"), "--end is not after --begin"),
        (("gif", str(DEMO)), "invalid choice"),
        (("svg", str(DEMO), "--per", "thread"), "--delimiter and --per are for folded stacks"),
        (("folded", str(DEMO), "--per", "cpu"), "thread, category, or thread,category"),
        (("perfetto",), "perfetto needs a recording with outliers"),
        (("perfetto", str(DEMO), "--filter", "cat=lock"), "perfetto always has all outliers"),
        (("jsonl", str(DEMO), "--baseline", str(DEMO)), "--baseline works only with folded and svg"),
        (("jsonl", str(OLD), "--filter", "waker=a"), "needs wakers, which were not recorded"),
    ],
)
def test_invalid_request_is_an_error_with_a_remedy(arguments: tuple[str, ...], error: str) -> None:
    ended = command.call("export", *arguments)
    assert error in ended.err
    assert ended.status != 0
    assert "Traceback" not in ended.err


def test_binary_format_is_not_written_to_a_terminal() -> None:
    ended = command.run_on_terminal("export", "pprof", str(DEMO))
    assert b"Write it to a file" in ended.screen + ended.err.encode()
    assert b"\x1f\x8b" not in ended.screen


@pytest.mark.skipif(not shutil.which("go"), reason="go is not here: apt-get install golang-go")
def test_go_tool_pprof_shows_the_same_numbers(tmp_path: Path) -> None:
    file = tmp_path / "x.pb.gz"
    file.write_bytes(pprof.packed(SHOP._replace(lost={"stacks": 2})))

    def said(*arguments: str) -> str:
        command = ["go", "tool", "pprof", *arguments, str(file)]
        environment = {**os.environ, "HOME": str(tmp_path), "PPROF_TMPDIR": str(tmp_path)}
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=60).stdout

    top = said("-top", "-unit=ms")
    assert "Type: off_cpu" in top
    assert re.search(r"900ms 69\.23% .* futex_wait$", top, re.MULTILINE), top
    assert "100% of 1300ms total" in top
    assert re.search(r"1\.2s \(92\.31%\): main|1200ms.*main", said("-top", "-cum", "-unit=ms")), top
    assert said("-comments").strip() == "lost: stacks 2"
    tags = said("-tags", "-unit=ms")
    assert re.search(r"900\.0ms \(69\.23%\): lock", tags), tags


def test_locale_does_not_change_the_output() -> None:
    no_utf8 = {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    ended = command.run("export", "svg", str(DEMO), *PART, env=no_utf8)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out == exported("svg", *PART)


def test_empty_export_is_reported_and_missing_directories_are_not_created(tmp_path: Path) -> None:
    ended = command.call("export", "folded", str(DEMO), *PART, "--filter", "proc=nobody")
    assert (ended.status, ended.out, ended.err) == (0, "", "offtop: no waits match, so the output is empty\n")
    there = tmp_path / "a/b.folded"
    assert "There is no directory" in command.call("export", "folded", str(DEMO), "-o", str(there)).sentence
    assert not there.parent.exists()


def test_losses_are_reported() -> None:
    lossy = SHOP._replace(lost={"stacks": 2, "wakes": 0})
    assert lossy.caveats == ["lost: stacks 2"]
    assert lossy.caveats[0] in flamegraph.svg(lossy)
    assert json.loads(speedscope.text(lossy, "a title"))["name"] == f"a title; {lossy.caveats[0]}"
    every = [*fields(gzip.decompress(pprof.packed(lossy)))]
    strings = [text for at, text in every if at == 6]
    assert [strings[int(text)] for at, text in every if at == 13] == [lossy.caveats[0].encode()]
    assert SHOP.caveats == []


def test_sampling_is_reported_in_the_picture_and_on_stderr(tmp_path: Path) -> None:
    sampled = SHOP._replace(sampling=Sampling(40, own_only=True))
    note = "sampled ~20 Hz, own processes only"
    assert f"; {note}" in flamegraph.svg(sampled)
    assert f" ({note})" in flamegraph.svg(SHOP, baseline=sampled)
    file = recorded_of(SampledSource(own_only=True), tmp_path / "sampled.offtop", 4)
    ended = command.call("export", "folded", file, "--baseline", file)
    assert (ended.status, ended.err) == (0, f"offtop: {note}\nofftop: baseline: {note}\n")
