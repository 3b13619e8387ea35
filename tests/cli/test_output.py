"""Output of batch mode and exports: closed pipes, full disks, signals and locales."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from offtop import paths
from tests import command
from tests.command import OFFTOP


@pytest.mark.kernel
def test_no_terminal_means_batch_mode_and_one_line_on_stderr() -> None:
    ended = command.run(*command.QUICK, "-n", "1", "-d", "0.1")
    assert ended.status == 0
    assert ended.err == "offtop: stdin or stdout is not a terminal, so this is batch mode (-b)\n"
    assert ended.out.startswith("offtop - ")


def test_dumb_terminal_gets_batch_without_escape_codes() -> None:
    ended = command.run_on_terminal("demo", "-n", "1", env={"TERM": "dumb"})
    assert ended.status == 0
    assert ended.err == "offtop: TERM names a terminal that cannot show a screen, so this is batch mode (-b)\n"
    assert ended.screen.startswith(b"offtop - ")
    assert b"\x1b" not in ended.screen


def test_closed_pipe_ends_with_status_0(tmp_path: Path) -> None:
    for arguments in ("demo -b", "demo --json"):
        status = tmp_path / "status"
        shell = f"({OFFTOP} {arguments}; echo $? >{status}) | head -c 200"
        answer = subprocess.run(["sh", "-c", shell], capture_output=True, timeout=command.TIMEOUT_S, check=True)
        assert len(answer.stdout) == 200
        assert answer.stderr == b""
        assert status.read_text() == "0\n"


def test_names_that_the_locale_cannot_encode_are_escaped(tmp_path: Path) -> None:
    recording = tmp_path / "dé.offtop"
    recording.write_bytes(paths.demo().read_bytes())
    ended = command.run("report", str(recording), env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (ended.status, ended.err) == (0, "")
    assert "d\\xe9.offtop: on " in ended.out


def test_errors_escape_what_they_quote() -> None:
    ended = command.call("report", "a", "\x1b]0;x\a")
    assert (ended.status, ended.out) == (2, "")
    assert "offtop report does not take '\\x1b]0;x\\x07'" in ended.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_leaves_no_part_of_an_export(number: signal.Signals, tmp_path: Path) -> None:
    before = {*tmp_path.iterdir()}
    process = command.start("export", "jsonl", str(paths.demo()), "-o", str(tmp_path / "it.jsonl"))
    until_s = time.monotonic() + command.TIMEOUT_S
    while {*tmp_path.iterdir()} == before:
        assert time.monotonic() < until_s and process.poll() is None
        time.sleep(0.001)
    process.send_signal(number)
    assert process.wait(command.TIMEOUT_S) == 128 + number
    assert {*tmp_path.iterdir()} == before


@pytest.mark.parametrize("redirection", [">/dev/full", ">&-"])
@pytest.mark.parametrize("arguments", ["demo -b -n 1", "demo --json -n 1", "schema"])
def test_unwritable_output_is_an_error_of_one_sentence(arguments: str, redirection: str) -> None:
    answer = subprocess.run(
        ["sh", "-c", f"{OFFTOP} {arguments} {redirection}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=command.TIMEOUT_S,
        check=False,
    )
    assert re.fullmatch(r"offtop: [^\n]+\. [^\n]+\n", answer.stderr), answer.stderr
    assert answer.returncode == 1


def test_closed_stderr_does_not_change_the_status() -> None:
    for arguments, status in (("-b -d 0", 2), ("demo -b -n 1", 0)):
        shell = f"{OFFTOP} {arguments} 2>&-"
        answer = subprocess.run(
            ["sh", "-c", shell], stdin=subprocess.DEVNULL, capture_output=True, timeout=command.TIMEOUT_S, check=False
        )
        assert answer.returncode == status


@pytest.mark.kernel
def test_exit_of_the_watched_process_ends_offtop() -> None:
    with subprocess.Popen(["sleep", "100"]) as watched:
        process = command.start(*command.QUICK, "-b", "-n", "2500", "-d", "0.1", "-p", str(watched.pid))
        assert process.stdout
        heads, read = 0, b""
        while heads < 3 and (line := process.stdout.readline()):
            read += line
            heads += line.startswith(b"offtop - ")
        watched.terminate()
        watched.wait()
        ended = command.ended(process)
    assert heads == 3
    assert ended.status == 0
    assert ended.err == "offtop: all measured processes have exited\n"
    assert b"sleep" in read + ended.out.encode()
