"""`offtop --host` over a real sshd: live numbers, a connection that is cut, and nothing left behind."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from offtop.commands import choices
from offtop.errors import OfftopError
from offtop.model.values.snapshot import Filters
from offtop.model.values.wake import WAKEUP
from offtop.remote.source import RemoteSource
from offtop.remote.ssh import Target, ssh_words
from offtop.units import NS_PER_S
from tests import sshd
from tests.command import OFFTOP, QUICK, ended, programs_of, run, start
from tests.fleet.api import Machine, fleet, serving
from tests.kernel import waits
from tests.sshd import Sshd
from tests.ui.terminal import terminal

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("no_settings")]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Generator[Sshd]:
    with sshd.running(tmp_path_factory.mktemp("sshd")) as found:
        yield found


def next_tick(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout
    line = process.stdout.readline()
    assert line, process.communicate()[1].decode()
    return json.loads(line)


def test_waits_on_the_host_are_counted_one_by_one(host: Sshd) -> None:
    with waits.running("sleep", times=23, each_ms=10) as child:
        process = start(*host.options, "--json", "-d", "0.5", "-p", str(child.pid), *QUICK)
        ticks = [next_tick(process)]
        assert programs_of(host.process.pid) != set()
        child.go()
        child.finish()
        deadline_ns = time.time_ns() + NS_PER_S
        while ticks[-1]["taken_ns"] < deadline_ns:
            ticks.append(next_tick(process))
        process.send_signal(signal.SIGINT)
        assert ended(process).status == 128 + signal.SIGINT
    slept = [one for tick in ticks for one in tick["sites"] if one["tid"] == child.tid and one["category"] == "sleep"]
    assert sum(one["waits"] for one in slept) == 23
    assert sum(one["total_ns"] for one in slept) >= 23 * 10_000_000
    assert all(tick["lost"] == {} for tick in ticks)
    host.wait_until_alone()
    assert programs_of(host.process.pid) == set()


def test_a_cut_connection_is_made_again_and_its_time_is_lost(host: Sshd, tmp_path: Path) -> None:
    file = tmp_path / "it.offtop"
    process = start(*host.options, "--json", "-d", "0.2", "--record", str(file), *QUICK)
    ticks = [next_tick(process) for _ in range(3)]
    there = host.sessions
    cut_ns = time.monotonic_ns()
    host.cut()
    while not ticks[-1]["lost"]:
        ticks.append(next_tick(process))
    gap_s = (time.monotonic_ns() - cut_ns) / NS_PER_S
    ticks.append(next_tick(process))
    host.wait_until_gone(there)
    process.terminate()
    said = ended(process)
    assert said.status == 128 + signal.SIGTERM
    lines = said.err.splitlines()
    assert re.fullmatch(r"offtop: no connection to db7 \(.+\); trying again", lines[0])
    assert lines[1] == "offtop: the connection to db7 is back; the time without it was not measured"
    lost = [tick["lost"].get("seconds", 0) for tick in ticks]
    assert 1 <= sum(lost) <= gap_s + 1
    assert lost[-1] == 0
    assert all(tick["span_ns"] < NS_PER_S for tick in ticks)
    host.wait_until_gone(there)
    again = run("replay", str(file), "--json")
    replayed = [json.loads(line) for line in again.out.splitlines()]
    assert [tick["lost"] for tick in replayed][: len(ticks)] == [tick["lost"] for tick in ticks]
    assert [tick["sites"] for tick in replayed][: len(ticks)] == [tick["sites"] for tick in ticks]


@pytest.mark.parametrize("end", [pytest.param(signal.SIGTERM, marks=pytest.mark.variant), signal.SIGKILL])
def test_the_host_is_left_when_offtop_ends_here(host: Sshd, end: signal.Signals) -> None:
    process = start(*host.options, "-b", "-d", "60", *QUICK)  # no tick is written for a minute
    deadline = time.monotonic() + 20
    while not programs_of(host.process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    there = host.sessions
    process.send_signal(end)
    process.communicate()
    host.wait_until_gone(there)
    assert programs_of(host.process.pid) == set()


@pytest.mark.variant
def test_the_screen_holds_the_picture_while_the_connection_is_cut(host: Sshd) -> None:
    command = [str(OFFTOP), *host.options, "-d", "0.5", *QUICK]
    with terminal(command, width=160, height=50) as shown:
        shown.read_until(b"LIVE 500ms")
        assert os.uname().nodename in shown.text
        there = host.sessions
        shown.forget()
        host.cut()
        shown.read_until(b"DISCONNECTED")
        shown.read_until(b"no connection to db7 for ")
        shown.read_until(b"lost")
        shown.read_until(b"LIVE 500ms")
        shown.read_until(b"not measured, because the connection was lost")
        shown.press(b"q")
        assert shown.status() == 0
        host.wait_until_gone(there)


@pytest.mark.variant
def test_enter_in_a_fleet_shows_the_host_live(host: Sshd) -> None:
    with serving(fleet([Machine("db7:9877", {"lock": 3.0})])) as api:
        command = [str(OFFTOP), "fleet", api.url, *host.options[2:]]
        with terminal(command, width=120, height=30) as shown:
            shown.read_until(b"db7")
            shown.press(b"\r")
            shown.read_until(b"threads wait")
            shown.press(b"\r")
            shown.read_until(b"LIVE 1s")
            assert os.uname().nodename in shown.text
            there = host.sessions
            shown.forget()
            shown.press(b"q")
            shown.read_until(b"threads wait")
            host.wait_until_gone(there)
            shown.press(b"q")
            assert shown.status() == 0
            shown.assert_sane()


def test_a_fleet_shows_why_a_host_cannot_be_shown(tmp_path: Path) -> None:
    with (
        serving(fleet([Machine("db7:9877", {"lock": 3.0})])) as api,
        terminal([str(OFFTOP), "fleet", api.url], width=120, height=30, PATH=str(tmp_path)) as shown,
    ):
        shown.read_until(b"db7")
        shown.press(b"\r")
        shown.read_until(b"threads wait")
        shown.press(b"\r")
        shown.read_until(b"Press Enter to return to the hosts.")
        assert "offtop: ssh cannot be run (No such file or directory). Install OpenSSH's client" in shown.text
        shown.read_rest()
        shown.forget()
        shown.press(b"\n")
        shown.read_until(b"threads wait")
        shown.press(b"q")
        assert shown.status() == 0
        shown.assert_sane()


def test_mode_filters_and_details_are_as_on_the_host_itself(host: Sshd) -> None:
    target = Target(
        "db7", ["--output=-", "--delay=0.2", *QUICK], ssh_words(host.ssh), "", str(host.directory / "offtop")
    )
    with waits.running("sleep", times=2000, each_ms=5) as child:
        child.go()
        with closing(RemoteSource(target, NS_PER_S // 5, choices.category_rules().ids)) as source:
            source.set_mode(WAKEUP, 4)
            source.set_filters(Filters(pids=(child.pid,), min_ns=2_000_000))
            details = dict(source.process_details(child.pid))
            assert str(waits.program()) in details["command line"]
            deadline = time.monotonic() + 30
            while True:
                snapshot = source.read()
                assert snapshot
                if snapshot.mode == WAKEUP and snapshot.filters.pids == (child.pid,):
                    break
                assert time.monotonic() < deadline
            with pytest.raises(OfftopError, match="No process 4194000"):
                source.set_filters(Filters(pids=(4194000,)))
    host.wait_until_alone()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--remote-offtop", "/none/offtop"], "There is no /none/offtop on db7, or not in the PATH there"),
        (["-p", "4194000"], "db7: No process 4194000"),
        pytest.param(
            *(["--sudo-command", "no-sudo -n"], "There is no no-sudo on db7. Name another --sudo-command"),
            marks=pytest.mark.variant,
        ),
        pytest.param(["--remote-offtop", "true"], "ssh to db7 ended", marks=pytest.mark.variant),
    ],
)
def test_what_is_wrong_on_the_host_is_one_sentence(host: Sshd, options: list[str], said: str) -> None:
    refused = run(*host.options, "-b", *options)
    assert refused.sentence.startswith(said)
    assert refused.status


@pytest.mark.variant
def test_keys_that_ssh_refuses_are_one_sentence(host: Sshd) -> None:
    for option, said in (
        (f"UserKnownHostsFile={host.directory}/known_other", "The host key of db7 has changed: "),
        ("UserKnownHostsFile=/dev/null", "ssh does not know the host key of db7. "),
        ("User=nobody-here", "db7 does not let you in. "),
        ("Port=1", "db7 refuses connections by ssh. "),
    ):
        refused = run(*host.options, "-b", "-n", "1", "--ssh-command", f"{host.ssh} -o {option}", *QUICK)
        assert refused.sentence.startswith(said)
