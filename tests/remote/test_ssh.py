"""Which command is run for a host, and what its errors are said to mean."""

import argparse
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from offtop import __version__
from offtop.commands import choices, hosts, options
from offtop.errors import KernelError, OfftopError, PrivilegeError, UsageError
from offtop.recording.stream import VERSION
from offtop.remote.ssh import Target, explained, ssh_words
from tests.command import call


def arguments_of(*words: str) -> list[str]:
    """Return what `offtop record` on the host gets."""
    args = options.live().parse_args(options.values_joined(["--host", "db7", *words]))
    loaded, _ = choices.load(args)
    return [*hosts.record_arguments(args, loaded)]


def test_a_host_comes_after_two_dashes() -> None:
    command = Target("ann@db7", ["--output", "-"], ("ssh", "-p", "22")).command(may_ask=True)
    assert command[:3] == ["ssh", "-p", "22"]
    assert command[-3:-1] == ["--", "ann@db7"]
    assert "BatchMode=yes" not in command
    assert "BatchMode=yes" in Target("ann@db7", []).command(may_ask=False)


@pytest.mark.parametrize(
    "host",
    [
        *(
            "-oProxyCommand=id",
            "ann@-oProxyCommand=id",
            "ssh://-oProxyCommand=id",
            "ssh://ann@-x",
            "",
            "ann@",
            "ssh://%2doProxyCommand=id",
        ),
        *("a b", "db7\n", "db7\x1b[31m", "$(id)", "db7;id", "`id`", "'db7'", "db\\7", "x" * 600),
    ],
)
def test_what_is_no_host_is_refused(host: str) -> None:
    said = call("-b", f"--host={host}")
    assert said.status == UsageError.status
    assert "is not a host: a name from your ssh_config, USER@HOST, or ssh://USER@HOST:PORT" in said.sentence


@pytest.mark.parametrize("host", ["db7", "ann@db7", "ssh://ann@db7:2222", "::1", "10.0.0.7", "ann@[fe80::1%eth0]"])
def test_what_ssh_takes_is_a_host(host: str) -> None:
    assert options.live().parse_args(["--host", host]).host == host


@pytest.mark.parametrize("option", ["--ssh-command", "--sudo-command", "--remote-offtop"])
def test_an_option_about_a_host_needs_one(option: str) -> None:
    assert call("-b", option, "x").sentence == f"{option} is about another machine. Add --host HOST, or omit it"


def test_an_ssh_command_must_be_words() -> None:
    assert ssh_words("ssh -o 'User=ann lee'") == ["ssh", "-o", "User=ann lee"]
    for text, said in (("ssh 'x", "cannot be split into words"), (" ", "--ssh-command is empty")):
        with pytest.raises(UsageError, match=said):
            ssh_words(text)


def test_any_user_may_be_named_for_a_host_only() -> None:
    assert "is not a user: this machine has no user of that name" in call("-b", "-u", "nobody-here").sentence
    assert options.live().parse_args(["--host", "db7", "-u", "nobody-here"]).user == "nobody-here"


@pytest.mark.parametrize("sudo", [None, "", "env"])
def test_each_argument_arrives_as_it_was(tmp_path: Path, sudo: str | None) -> None:
    show = tmp_path / "show it"
    show.write_text("#!/usr/bin/env python3\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    show.chmod(0o755)
    words = ["--trigger=lock.max > 500ms", 'it\'s "$HOME" `id` \\ *', "", "ü\t!"]
    (tmp_path / "sudo").write_text('#!/bin/sh\nshift\nexec "$@"\n')
    (tmp_path / "sudo").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = Target("db7", words, sudo=sudo, offtop=str(show)).remote_command
    for shell in ("sh", "bash"):
        out = subprocess.run([shell, "-c", command], capture_output=True, text=True, check=True, env=environment).stdout
        assert json.loads(out) == ["record", *words]


def test_sudo_is_used_unless_the_login_is_root(tmp_path: Path) -> None:
    for name, text in (("id", "echo 1000"), ("sudo", 'echo sudo "$@"'), ("offtop", 'echo plain "$@"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    command = Target("db7", ["-o", "-"]).remote_command
    for user, said in (("1000", "sudo -n offtop record -o -"), ("0", "plain record -o -")):
        (tmp_path / "id").write_text(f"#!/bin/sh\necho {user}\n")
        out = subprocess.run(["sh", "-c", command], env={"PATH": f"{tmp_path}:/bin"}, capture_output=True, text=True)
        assert out.stdout == f"{said}\n"


GIVEN = {
    "pid": ("-p", "7,web:3", "--pid=7,web:3"),
    "tid": ("-t", "9,8", "--tid=8,9"),
    "cgroup": ("--cgroup", "/a b", "--cgroup=/a b"),
    "within": ("--within", "mysqld:run", "--within=mysqld:run"),
    "who": ("--kernel-threads", "", "--kernel-threads"),
    "state": ("--state", "running,D", "--state=running,0x2"),
    "min": ("--min", "2ms", "--min=2000000ns"),
    "max": ("--max", "3s", "--max=3000000000ns"),
    "debuginfod": ("--debuginfod", "https://x.org", "--debuginfod=https://x.org"),
    "source": ("--source", "proc", "--source=proc"),
    "probe": ("--probe", "switch", "--probe=switch"),
    "unwind": ("--unwind", "fp", "--unwind=fp"),
    "unwind_bytes": ("--unwind-bytes", "32K", "--unwind-bytes=32768"),
    "cpu_budget": ("--cpu-budget", "2.5", "--cpu-budget=2.5"),
    "exact_stacks": ("--exact-stacks", "", "--exact-stacks"),
    "verify_kernel_stacks": ("--verify-kernel-stacks", "", "--verify-kernel-stacks"),
    "mode": ("--mode", "chain", "--mode=chain"),
    "depth": ("--depth", "6", "--depth=6"),
    "trigger": ("--trigger", "lock.max > 500ms", "--trigger=lock.max > 500ms"),
    "delay": ("-d", "0.25", "--delay=250000000ns"),
}
"""Each option that decides what is measured, by its name in the namespace: what is given, and what the host gets."""


@pytest.mark.parametrize("name", GIVEN)
def test_each_measuring_option_reaches_the_host(name: str) -> None:
    option, value, expected = GIVEN[name]
    sent = arguments_of(option, *([value] if value else []))
    assert expected in sent
    there = options.record().parse_args(sent)
    here = options.record().parse_args([option, *([value] if value else [])])
    assert getattr(there, name) == getattr(here, name) or name in ("min", "delay")  # in another unit
    assert (there.output, there.stream_version, there.on_trigger) == ("-", VERSION, "")


def test_no_measuring_option_is_forgotten() -> None:
    found: set[str] = set()
    parser = options.live()
    for group in parser._action_groups:  # pyright: ignore[reportPrivateUsage]
        if group.title in ("what to measure", "wakers"):
            found.update(action.dest for action in group._group_actions)  # pyright: ignore[reportPrivateUsage]
    assert found <= GIVEN.keys()


@pytest.mark.parametrize("word", ["debuginfod", "source"])
def test_settings_about_this_machine_are_not_sent(tmp_path: Path, word: str) -> None:
    config = tmp_path / "config.toml"
    config.write_text('debuginfod = "auto"\nsource = "proc"\ndelay = 2\n')
    sent = arguments_of("--config", str(config))
    assert not [one for one in sent if one.startswith(f"--{word}")]
    assert "--delay=2000000000ns" in sent


TARGET = Target("ann@db7", [], ("ssh", "-p", "22"))
BY_HAND = "ssh -p 22 ann@db7"


@pytest.mark.parametrize(
    ("status", "errors", "said"),
    [
        (
            255,
            "@@@@@\n@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
            "The host key of ann@db7 has changed: it was reinstalled, or another machine answers in its place.",
        ),
        (
            255,
            "No ED25519 host key is known for db7 and you have requested it.\r\nHost key verification failed.\r\n",
            f"ssh does not know the host key of ann@db7. Check and accept it once: {BY_HAND}",
        ),
        (255, "ssh: Could not resolve hostname db7: Name or service not known", "ssh cannot find ann@db7. Check the"),
        (255, "ssh: connect to host db7 port 22: Connection refused", "ann@db7 refuses connections by ssh. Start sshd"),
        (255, "ssh: connect to host db7 port 22: Connection timed out", "ann@db7 does not answer. Check that it is up"),
        (255, "ssh: connect to host db7 port 22: No route to host", "ann@db7 does not answer. Check that it is up"),
        (255, "ann@db7: Permission denied (publickey,password).", "ann@db7 does not let you in. Check your key or"),
        (
            255,
            "Idle sessions are timed out.\nann@db7: Permission denied (publickey).",
            "ann@db7 does not let you in. Check your key or",
        ),
        (255, "Connection to UNKNOWN port 65535 timed out", "ann@db7 does not answer. Check that it is up"),
        (255, "Timeout, server db7 not responding.", "ann@db7 does not answer. Check that it is up"),
        (
            255,
            "channel 0: open failed: connect failed: Connection refused\nstdio forwarding failed",
            "ann@db7 refuses connections by ssh.",
        ),
        (255, "kex_exchange_identification: Connection closed", "ssh to ann@db7 ended (kex_exchange_identification:"),
        (255, "", f"ssh to ann@db7 ended. Try: {BY_HAND}"),
        (
            1,
            "sudo: a password is required\n",
            "sudo on ann@db7 asks for a password, which cannot be typed here. Permit",
        ),
        (1, "ann is not in the sudoers file.", "sudo on ann@db7 does not permit offtop to you. Permit it in sudoers"),
        (1, "Sorry, user ann is not allowed to execute '/usr/bin/offtop' as root", "sudo on ann@db7 does not permit"),
        (127, "sh: 1: exec: sudo: not found", "There is no sudo on ann@db7. Name another --sudo-command, or log in"),
        (127, "bash: line 1: sudo: command not found", "There is no sudo on ann@db7"),
        (1, "sudo: offtop: command not found", "There is no offtop on ann@db7, or not in the PATH there. Install it"),
        (127, "sh: 1: exec: offtop: not found", "There is no offtop on ann@db7, or not in the PATH there. Install it"),
        (127, "fish: Unknown command: offtop", "There is no offtop on ann@db7"),
        (
            2,
            "offtop: offtop record does not take '--stream-version'. See: offtop record --help",
            f"offtop on ann@db7 has another version, which does not go with this one. Install {__version__} there",
        ),
        (2, "offtop: This offtop writes version 2 of the stream, not 1. Use", "offtop on ann@db7 has another version"),
        (1, "offtop: x: disk full\n", "ann@db7: x: disk full"),
        (1, "offtop: the disk timed out\n", "ann@db7: the disk timed out"),
        (7, "Segmentation \x1b[31mfault", "offtop on ann@db7 ended with status 7 (Segmentation \\x1b[31mfault). Try"),
    ],
)
def test_an_error_is_one_sentence_and_its_remedy(status: int, errors: str, said: str) -> None:
    text = str(explained(TARGET, status, errors))
    assert text.startswith(said)
    assert "\n" not in text
    assert len(text) < 400


@pytest.mark.parametrize(
    "errors",
    [
        "sh: 1: exec: {}: not found",
        "bash: line 1: {}: command not found",
        "zsh:1: command not found: {}",
        "Unknown command: {}",
    ],
)
def test_a_missing_sudo_command_is_named(errors: str) -> None:
    for become, found in ((None, "sudo"), (" ", "sudo"), ("doas -n", "doas"), ("c++ -x", "c++")):
        text = str(explained(replace(TARGET, sudo=become), 127, errors.format(found)))
        assert text == f"There is no {found} on ann@db7. Name another --sudo-command, or log in as root"


@pytest.mark.parametrize(
    ("status", "kind"), [(1, OfftopError), (2, UsageError), (3, PrivilegeError), (4, KernelError), (5, OfftopError)]
)
def test_an_error_of_offtop_there_keeps_its_status(status: int, kind: type[OfftopError]) -> None:
    found = explained(TARGET, status, "offtop: a notice\nofftop: offtop needs root. Try: sudo offtop\n")
    assert (type(found), str(found)) == (kind, "ann@db7: offtop needs root. Try: sudo offtop")


def test_a_stream_is_not_written_to_a_terminal_or_in_another_version() -> None:
    def refusal(**given: object) -> str:
        from offtop.commands import streaming

        with pytest.raises(UsageError) as refused:
            streaming.check(argparse.Namespace(**given))
        return str(refused.value)

    assert refusal(stream_version=VERSION + 1).startswith(f"This offtop writes version {VERSION} of the stream, not ")
    assert call("record", "--stream-version", "1").sentence == (
        "--stream-version is about the stream. Add --output -, or omit it"
    )
