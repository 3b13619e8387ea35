"""Test that recordings of this kernel replay the same.

JSON and names are equal, also without privileges.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from offtop.person import Person
from tests.command import OFFTOP, QUICK, run
from tests.kernel import programs
from tests.kernel.test_suspects import started
from tests.ui.terminal import terminal

pytestmark = pytest.mark.kernel

_WAITS = (
    "import threading, time\nlock = threading.Lock(); lock.acquire()\n"
    "for _ in range(3): threading.Thread(target=lambda: (lock.acquire(), lock.release()), daemon=True).start()\n"
    "[time.sleep(0.02) for _ in range(2000)]\n"
)


@pytest.fixture
def waits() -> Generator[int]:
    """Run a process that sleeps 50 times a second.

    Three of its threads wait for a lock all the time.
    """
    process = subprocess.Popen([sys.executable, "-c", _WAITS])
    yield process.pid
    process.kill()
    process.wait()


def test_a_replay_prints_what_was_printed_while_recording(tmp_path: Path, waits: int) -> None:
    file = tmp_path / "it.offtop"
    live = run("--record", str(file), "--json", "-n", "4", "-d", "0.5", "-p", str(waits))
    assert live.status == 0, live.err
    assert live.err.startswith("offtop: recorded 4 ticks, ")
    again = run("replay", str(file), "--json")
    assert (again.status, again.err) == (0, "")
    assert again.out == live.out
    assert len(live.out.splitlines()) == 4
    last = json.loads(live.out.splitlines()[-1])
    assert any(site["pid"] == waits and site["category"] == "lock" for site in last["sites"])


@pytest.fixture
def wakings(tmp_path: Path) -> Generator[programs.Program]:
    """Run a thread that wakes another by a futex, 50 times a second.

    It sleeps in between.
    """
    program, source = tmp_path / "wakings", Path(__file__).with_name("wakings.c")
    subprocess.run(["gcc", "-O1", "-fno-omit-frame-pointer", "-pthread", "-o", program, source], check=True, timeout=60)
    with programs.running([program, "futex", "2000", "20"]) as child:
        child.go_on_alone()
        yield child


@pytest.mark.variant
def test_a_replay_prints_wakers_byte_for_byte(tmp_path: Path, wakings: programs.Program) -> None:
    file = tmp_path / "it.offtop"
    child = str(wakings.pid)
    live = run("--record", str(file), "--json", "-n", "4", "-d", "0.5", "--mode", "chain", "-p", child)
    assert live.status == 0, live.err
    ticks = [json.loads(line) for line in live.out.splitlines()]
    woken = [site for tick in ticks for site in tick["sites"] if site["comm"] == "sleeper" and site["waker"]]
    assert "rest" in next(site["chain"][0] for site in woken if site["waker"]["tid"] == wakings.at["waker"])
    for mode in ("chain", "offcpu"):  # affects only tables and screen
        again = run("replay", str(file), "--json", "--mode", mode)
        assert (again.status, again.err) == (0, "")
        assert again.out == live.out
    later = run("replay", str(file), "--json", "--begin", "+1.4s")
    from_there = [known(json.loads(line)) for line in later.out.splitlines()]
    assert from_there == [known(tick) for tick in ticks[-len(from_there) :]]
    page = run("report", str(file))
    assert "WAKERS THAT ENDED MOST BLOCKED TIME" in page.out
    assert read_version(file) == 2


@pytest.mark.variant
def test_holder_of_a_lock_that_is_not_measured_has_its_name_in_a_replay_too(tmp_path: Path) -> None:
    lock, file = tmp_path / "job.lock", tmp_path / "it.offtop"
    with started("flock", "-o", lock, "sleep", "60") as holder:
        programs.until(lambda: lock.exists() and str(holder.pid) in Path("/proc/locks").read_text())
        with started("flock", lock, "true") as waiter:
            live = run("-b", "-n", "4", "-d", "0.5", "-p", str(waiter.pid), "--record", str(file))
    assert live.status == 0, live.err
    says = f"held by flock({holder.pid}), which is not measured"
    assert says in live.out
    assert says in run("replay", str(file), "-b").out


def known(tick: dict[str, Any]) -> dict[str, Any]:
    """Return the tick without what depends on earlier ticks, which a replay that starts here has not seen."""
    tick = {name: value for name, value in tick.items() if name not in ("suspects", "standing", "standing_ns")}
    sites = [{**site, "earlier_ns": 0} for site in tick["sites"] if site["total_ns"]]
    return {**tick, "sites": sites}


def read_version(file: Path) -> int:
    with sqlite3.connect(file) as database:
        (version,) = database.execute("PRAGMA user_version").fetchone()
    database.close()
    return version


def test_record_writes_until_its_time_is_over_or_ctrl_c(tmp_path: Path, waits: int) -> None:
    with subprocess.Popen(
        [OFFTOP, "record", "-o", str(tmp_path / "b"), "-d", "0.5"], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr
        assert process.stderr.readline() == f"offtop: recording to {tmp_path / 'b'}; ctrl-C ends it\n"
        timed = run("record", "-o", str(tmp_path / "a"), "-d", "0.5", "-p", str(waits), "2s")
        assert (timed.status, timed.out) == (0, "")
        assert "recorded 4 ticks" in timed.err or "recorded 5 ticks" in timed.err
        process.send_signal(signal.SIGINT)
        assert "offtop: recorded " in process.stderr.read()
        assert process.wait(timeout=20) == 0
    for name, expected in (("a", "lock"), ("b", "ticks: ")):
        page = run("report", str(tmp_path / name), "-w", "120")
        assert (page.status, page.err) == (0, "")
        assert expected in page.out


@pytest.mark.variant
def test_under_nohup_it_outlives_its_terminal(tmp_path: Path) -> None:
    # The shell makes the terminal its controlling one, so that the kernel sends it SIGHUP when the other end is closed.
    on_own_terminal = ["sh", "-c", 'exec 0<>"$(tty)" && cd "$1" && shift && exec "$@"', "sh", str(tmp_path)]
    record = ["nohup", str(OFFTOP), "record", "-o", "it", "-d", "0.2", "-n", "10", *QUICK]
    output = tmp_path / "nohup.out"
    with terminal([*on_own_terminal, *record]) as shown:
        programs.until(lambda: output.exists() and "ctrl-C ends it" in output.read_text())
        shown.hang_up()
        assert shown.status() == 0, output.read_text()
    assert "offtop: recorded 10 ticks" in output.read_text()
    played = run("replay", str(tmp_path / "it"), "--json")
    assert (played.status, played.err, len(played.out.splitlines())) == (0, "", 10)


def test_function_names_are_in_the_file_and_old_files_are_deleted(tmp_path: Path, waits: int) -> None:
    old = tmp_path / "offtop-it-20260101T000000.offtop"
    old.touch()
    os.utime(old, (0, 0))
    assert run("record", "--directory", str(tmp_path), "-d", "0.5", "-p", str(waits), "-n", "3").status == 0
    assert not old.exists()
    (made,) = tmp_path.glob("offtop-*.offtop")
    played = run("replay", str(made), "--json", "-n", "3").out.splitlines()
    user = {frame for site in json.loads(played[-1])["sites"] for frame in site["user"]}
    assert {"clock_nanosleep", "PyEval_EvalCode", "_PyEval_EvalFrameDefault"} & user, user
    assert {"futex_do_wait", "futex_wait_queue", "do_nanosleep"} & {
        frame for site in json.loads(played[-1])["sites"] for frame in site["kernel"]
    }


@pytest.mark.variant
def test_anyone_who_can_read_the_file_can_replay_it(tmp_path: Path, ann: Person) -> None:
    file = ann.home / "it.offtop"
    assert run("record", "-o", str(file), "-n", "2", "-d", "0.3").status == 0
    os.chown(file, ann.uid, ann.gid)
    as_ann = ["setpriv", f"--reuid={ann.uid}", f"--regid={ann.gid}", "--clear-groups"]
    played = run("replay", str(file), "-b", "-n", "1", before=as_ann)
    if "ermission denied" in played.err and not played.out:
        pytest.skip("this checkout cannot be read by others")
    assert (played.status, played.err) == (0, "")
    assert "WAIT CATEGORY" in played.out
