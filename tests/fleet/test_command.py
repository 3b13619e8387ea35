"""`offtop fleet` in batch mode: tables and JSON, and errors that end it only at first."""

import contextlib
import io
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import msgspec
import pytest

from offtop import paths
from offtop.commands import option_groups, options
from offtop.commands.fleet import live_command, recording_command, run_in_terminal
from offtop.fleet.reports import FleetObject
from offtop.recording.replay import RecordedSource
from offtop.remote.ssh import ssh_words
from tests import sshd
from tests.command import call
from tests.fleet.api import FORTY, Machine, Reply, Request, always, fleet, serving


def test_table_has_the_outlier_first_and_why() -> None:
    with serving(fleet(FORTY)) as api:
        ended = call("fleet", api.url, "-b", "-n", "1", env={"TZ": "UTC"})
        assert (ended.status, ended.err) == (0, "")
        head, suspect, empty, titles, first, *others = ended.out.splitlines()
        assert head == f"offtop fleet - 11-27 02:30:00 {api.url} 40 hosts, range 1m"
        assert suspect == "! the WAL flush: 1 of 40 hosts since 02:10, 12 threads of postgres wait"
        assert (empty, titles.split()) == ("", ["HOST", "WAITING", "lock", "disk-read"])
        assert first.split() == ["!", "db40", "12.90", "12.40", "0.50", "lock", "12.40,", "usual", "0.25"]
        assert len(others) == 39
        narrow = call("fleet", api.url, "-b", "-n", "1", "-w", "40")
        assert max(map(len, narrow.out.splitlines())) == 40


def test_json_has_its_form_and_every_host() -> None:
    with serving(fleet([*FORTY, Machine("db41:9877", age_s=600)])) as api:
        ended = call("fleet", api.url, "--json", "-n", "2", "-d", "0.01", "--filter", "env=prod")
        assert (ended.status, ended.err) == (0, "")
        lines = ended.out.splitlines()
        assert len(lines) == 2
        found = msgspec.json.decode(lines[0], type=FleetObject)
        assert (found.url, found.filter, found.span_ns, len(found.hosts)) == (api.url, "env=prod", 60_000_000_000, 41)
        assert found.hosts[0].instance == "db40:9877" and found.hosts[0].outliers[0].category == "lock"
        assert found.hosts[-1].silent_ns == 600_000_000_000
        assert (found.suspects[0].what, found.suspects[0].hosts) == ("the WAL flush", 1)


def test_first_failure_ends_it_and_a_later_one_does_not() -> None:
    with serving(always(Reply(b"", 401))) as api:
        assert call("fleet", api.url, "--json").sentence.startswith(f"{api.url} refuses access (401). Give a user")
        asked: list[Request] = []
        good = fleet(FORTY)

        def fails_later(request: Request) -> Reply:
            asked.append(request)
            reply = good(request)
            assert isinstance(reply, Reply)
            return Reply(b"", 500) if 9 < len(asked) < 12 else reply

        api.answers = fails_later
        ended = call("fleet", api.url, "--json", "-n", "4", "-d", "0.01")
        assert ended.status == 0
        assert set(ended.err.splitlines()) == {
            f"offtop: {api.url} answers with status 500. Is it Prometheus, and is it up?"
        }
        assert 1 <= len(ended.out.splitlines()) == 4 - len(ended.err.splitlines())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("ftp://x",), "is not the URL of a Prometheus"),
        (("http://me:secret@x",), "Other users can see a password in a URL"),
        (("x", "--filter", "category=lock"), "--filter: expected labels of hosts"),
        (("x", "--http.config.file", "/nonexistent"), "No such file"),
        (("x", "--ca-file", "/nonexistent"), "there is no such file"),
        (("x", "--range", "no"), "'no' is not a time"),
        ((), "URL"),
    ],
)
def test_wrong_options_are_said(arguments: tuple[str, ...], expected: str) -> None:
    ended = call("fleet", *arguments)
    assert ended.status == 2 and expected in ended.sentence and "secret" not in ended.err


def test_names_of_strangers_are_escaped_in_tables() -> None:
    odd = Machine("\x1b[31mx\u202e:1", {"\x1b]0;\x07": 9.0}, suspects={("\x9b", "\r", "\n"): 1.0})
    with serving(fleet([odd])) as api:
        ended = call("fleet", api.url, "-b", "-n", "1")
        assert ended.status == 0
        assert all(line.isprintable() for line in ended.out.splitlines()) and r"\x1b[31mx\u202e" in ended.out
        made = call("fleet", api.url, "--json", "-n", "1").out
        assert made.isascii() and json.loads(made)["hosts"][0]["instance"] == "\x1b[31mx\u202e:1"


def test_missing_package_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "offtop.fleet.client", None)
    assert "pip install 'offtop[fleet]'" in call("fleet", "x").sentence


def test_a_host_is_shown_live_by_this_offtop_with_the_same_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    offtop = tmp_path / "offtop"
    offtop.write_text("import os, sys\nprint(sys.argv[1:], os.environ)\nsys.exit(len(sys.argv) == 2)\n")
    monkeypatch.setattr(sys, "argv", [str(offtop), "fleet"])
    monkeypatch.setattr(sys, "stdin", stdin := io.StringIO("\n\n"))
    given = ["--ascii", "--no-mouse", "--theme=light", "--color=never", "--config=a b"]
    reached = ["--ssh-command=ssh -p 7", "--sudo-command=", "--remote-offtop=/o"]
    command, handler = (
        live_command(options.fleet().parse_args(["x", *given, *reached])),
        signal.getsignal(signal.SIGINT),
    )
    run_in_terminal([*command, "--host=db7"], {"NO_COLOR": "1"})
    assert capfd.readouterr().out.startswith(f"{[*given, *reached, '--host=db7']} environ({{'NO_COLOR': '1'")
    assert stdin.tell() == 0
    run_in_terminal([*live_command(options.fleet().parse_args(["x"])), "--host=db7"], {})  # which fails
    assert capfd.readouterr().out.startswith("['--host=db7']")
    assert stdin.tell() == 1
    assert signal.getsignal(signal.SIGINT) is handler


def test_every_option_about_the_look_is_passed_on() -> None:
    parser = options.fleet()
    given = {"--theme": "light", "--color": "never", "--ascii": "", "--mouse": "", "--config": "x"}
    for option, value in given.items():
        words = [f"{option}={value}" if value else option]
        assert option_groups.look_arguments(parser.parse_args(["x", *words])) == words
    (group,) = (one for one in parser._action_groups if one.title == "what to show")  # pyright: ignore[reportPrivateUsage]
    named = {action.option_strings[0] for action in group._group_actions}  # pyright: ignore[reportPrivateUsage]
    assert named - given.keys() == {"--filter", "--range"}


def test_recording_of_a_host_is_replayed_there_from_the_moment_on() -> None:
    at_ns = 1_764_210_600 * 10**9
    plain = recording_command(options.fleet().parse_args(["x", "--ascii", "--config=a"]), ["ssh"], "db7", at_ns)
    assert plain[:-1] == ["ssh", "-t", "-a", "-x", "-o", "ClearAllForwardings=yes", "--", "db7"]
    assert plain[-1].endswith("offtop replay latest --begin=2025-11-27T02:30:00Z --ascii")
    given = ["--sudo-command=doas", "--remote-offtop=/o p"]
    other = recording_command(options.fleet().parse_args(["x", *given]), ["ssh", "-p", "7"], "db7", at_ns)
    assert other[:4] == ["ssh", "-p", "7", "-t"]
    assert other[-1] == "doas '/o p' replay latest --begin=2025-11-27T02:30:00Z"


def test_recording_is_replayed_over_a_real_ssh(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Without a terminal, the replay there prints tables."""
    with sshd.running(tmp_path) as server:
        (tmp_path / "here").mkdir()
        shutil.copy(paths.demo(), tmp_path / "here/offtop-db7-20251127T023000.offtop")
        (tmp_path / "offtop-there").write_text(f'#!/bin/sh\ncd {tmp_path}/here && exec {tmp_path}/offtop "$@"\n')
        (tmp_path / "offtop-there").chmod(0o755)
        with contextlib.closing(RecordedSource(paths.demo())) as source:
            recorded = source.recorded
        assert recorded
        args = options.fleet().parse_args(["x", "--remote-offtop", str(tmp_path / "offtop-there")])
        command = recording_command(args, ssh_words(server.ssh), "db7", recorded.ended_ns - 3 * 10**9)
        run_in_terminal(command, {**os.environ, "TZ": "UTC"})
        shown = capfd.readouterr().out
        assert 2 <= shown.count("offtop - ") <= 5
