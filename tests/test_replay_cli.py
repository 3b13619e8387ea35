"""The commands replay, report and demo: their output, and what they refuse in one sentence."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from offtop import paths
from offtop.person import person
from offtop.recording.writer import Recorder
from offtop.units import NS_PER_S, parse_moment, parse_size
from tests.command import call, run_on_terminal
from tests.ui.scripted import SHOP, START_NS, ScriptedSource

UTC_ENV = {"TZ": "UTC"}


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A recording of 20 s of SHOP, starting at 02:00:00."""
    source = ScriptedSource(SHOP, ticks=20)
    recorder = Recorder(tmp_path / "shop.offtop", source, person(), leave_bytes=0, whole_ns=5 * NS_PER_S)
    for second in range(21):
        recorder.add(source.after(second))
    recorder.close()
    return str(tmp_path / "shop.offtop")


def ticks(*arguments: str) -> list[int]:
    """Return the seconds that a replay prints."""
    done = call("replay", *arguments, "--json", env=UTC_ENV)
    assert (done.status, done.err) == (0, ""), done.err
    return [(json.loads(line)["taken_ns"] - START_NS) // NS_PER_S for line in done.out.splitlines()]


def test_replay_prints_all_ticks_and_ends(file: str) -> None:
    assert ticks(file) == [*range(1, 21)]
    assert ticks(file, "-n", "3") == [1, 2, 3]


@pytest.mark.parametrize(
    ("begin", "first"),
    [
        ("02:00:07", 7),
        ("02:00", 1),
        ("+5s", 5),
        ("-5s", 15),
        ("2026-11-21T02:00:19", 19),
    ],
)
def test_begin_accepts_a_time_a_date_or_an_offset(file: str, begin: str, first: int) -> None:
    assert ticks(file, "--begin", begin)[0] == first


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            ["--begin", "+1h"],
            "--begin: the recording is from 2026-11-21T02:00:00 to 2026-11-21T02:00:20",
        ),
        (["--begin", "03:00"], "--begin: the recording is from "),
        (["--begin", "02:00:10Z"], "--begin: '02:00:10Z' is not a time. Try 02:10:55"),
        (
            ["--begin", "noon"],
            "--begin: 'noon' is not a time. Try 02:10:55, 2026-11-21T02:10, +5m, or -5m (before the end)",
        ),
        (
            ["--speed", "0"],
            "argument --speed: '0' is not a factor from 0.01 up, such as 10 or 0.5. See: offtop replay",
        ),
        (["--filter", "colour=red"], "--filter: "),
        (
            ["--mode", "x"],
            '\'x\' is not one of "offcpu", "wakeup", "offwake", "chain", "file", "disk". See: offtop replay --help',
        ),
        (["--depth", "0"], "'0' is not a whole number from 2 to 8. See: offtop replay --help"),
        (["-p", "1"], "offtop replay does not take '-p 1'. See: offtop replay --help"),
    ],
)
def test_invalid_argument_is_refused_with_status_2(file: str, arguments: list[str], error: str) -> None:
    done = call("replay", file, "-b", *arguments, env=UTC_ENV)
    assert done.status == 2
    assert error in done.sentence


def test_missing_recording_is_refused(tmp_path: Path) -> None:
    for command in ("replay", "report"):
        done = call(command, str(tmp_path / "none"))
        assert (done.status, done.sentence) == (
            1,
            f"{tmp_path}/none cannot be read (No such file or directory). Name a file that offtop can read",
        )


def test_no_terminal_means_batch_mode_and_one_line_on_stderr(file: str) -> None:
    explicit, implicit = call("replay", file, "-b", env=UTC_ENV), call("replay", file, env=UTC_ENV)
    assert (explicit.status, explicit.err) == (0, "")
    assert (implicit.status, implicit.out) == (0, explicit.out)
    assert implicit.err == "offtop: stdin or stdout is not a terminal, so this is batch mode (-b)\n"


def test_report_fits_on_one_page(file: str) -> None:
    done = call("report", file, "-w", "100", env=UTC_ENV)
    assert (done.status, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == "shop.offtop: on db7, 2026-11-21 02:00:00 to 02:00:20 UTC, 20.0s"
    assert "ticks: 20, measured 20.0s" in lines
    assert "most waiting: 1.00 at 02:00:20" in lines
    assert any(line.startswith("lock                0.70  70%") for line in lines)
    assert any(line.startswith("    100         shop") for line in lines)
    assert any("200ms  lock" in line and "shop(100) worker-1(101)" in line for line in lines)
    assert len(lines) < 40
    assert all(len(line) <= 100 for line in lines)


def test_demo_has_a_lock_convoy_and_nothing_private() -> None:
    done = call("demo", "--json", env=UTC_ENV)
    assert (done.status, done.err) == (0, "")
    every = [json.loads(line) for line in done.out.splitlines()]
    assert len(every) == 75
    worst = {
        name: max(one["max_ns"] for tick in every for one in tick["categories"] if one["name"] == name)
        for name in ("lock", "fsync")
    }
    assert all(longest_ns > 2 * NS_PER_S for longest_ns in worst.values())
    assert {site["comm"] for tick in every for site in tick["sites"]} >= {"postgres", "nginx", "report.py"}
    raw = paths.demo().read_bytes()
    assert not any(word in raw for word in (b"/home/", b"/root/", b"/work", b"/tmp/"))


def test_replay_on_a_terminal_shows_the_screen_as_recorded(file: str) -> None:
    done = run_on_terminal("replay", file, "--speed", "1000", "-n", "20", env={"TERM": "xterm", **UTC_ENV})
    assert (done.status, done.err) == (0, "")
    assert b"RECORDED" in done.screen
    assert b"db7 2026-11-21 02:00:" in done.screen


def test_time_of_day_is_the_latest_one_before_the_end() -> None:
    newest = datetime(2026, 11, 21, 2, 10, 55, tzinfo=UTC).astimezone().replace(tzinfo=None)
    newest_ns = round(newest.timestamp()) * NS_PER_S
    assert parse_moment(newest.strftime("%H:%M:%S"), 0, newest_ns) == newest_ns
    later = (newest.hour + 1) % 24
    assert newest_ns - parse_moment(f"{later:02}:00", 0, newest_ns) > 22 * 3600 * NS_PER_S or later == 0
    assert parse_moment("+2m", 5 * NS_PER_S, newest_ns) == 125 * NS_PER_S
    for wrong in ("", "x", "25:00", "+", "-x", "2026-13-01"):
        with pytest.raises(ValueError):  # the message does not matter
            parse_moment(wrong, 0, newest_ns)


def test_size_is_a_number_with_a_suffix() -> None:
    assert [parse_size(text) for text in ("1M", "1.5g", "2097152")] == [1 << 20, 3 << 29, 2 << 20]
    for wrong in ("", "M", "1K", "5X", "-1G", "nanG", "infG"):
        with pytest.raises(ValueError):  # the message does not matter
            parse_size(wrong)
