"""The command line: what it takes, what it refuses and in which words, and how it ends."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import command
from tests.command import OFFTOP

needs_kernel = pytest.mark.kernel


def imported(*arguments: str) -> set[str]:
    """The top-level modules that offtop imports for these arguments."""
    answer = subprocess.run(
        [sys.executable, "-X", "importtime", str(OFFTOP), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=command.TIMEOUT_S,
    )
    return {line.split("|")[2].strip().split(".")[0] for line in answer.stderr.splitlines() if line.count("|") == 2}


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["schema"]])
def test_what_only_prints_imports_no_screen(arguments: list[str]) -> None:
    modules = imported(*arguments)
    assert "offtop" in modules
    assert modules & {"textual", "rich", "bcc"} == set()


@needs_kernel
def test_batch_imports_no_screen() -> None:
    modules = imported("-b", "-n", "1", "-d", "0.1")
    assert "offtop" in modules
    assert modules & {"textual", "rich", "bcc"} == set()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("-d 0", "'0' is not a number of seconds from 0.1 to 60"),
        ("-d abc", "'abc' is not a number of seconds"),
        ("-d nan", "'nan' is not a number of seconds"),
        ("-d inf", "'inf' is not a number of seconds"),
        ("-d 61", "'61' is not a number of seconds"),
        ("-n 0", "'0' is not a whole number from 1 up"),
        ("-n -1", "'-1' is not a whole number from 1 up"),
        ("-n 1.5", "'1.5' is not a whole number"),
        ("-n", "expected one argument"),
        ("-w 0", "'0' is not a whole number from 1 up"),
        ("-p x", "'x' is not a list of ids, as 4242"),
        ("-p 0", "'0' is not a list of ids"),
        ("-p -1", "'-1' is not a list of ids"),
        ("-p 1,", "'1,' is not a list of ids"),
        ("-p 99999999999", "'99999999999' is not a list of ids"),
        ("-t x", "'x' is not a list of ids"),
        ("--min -1", "'-1' is not a time, as 200us"),
        ("--min=-1", "'-1' is not a time"),
        ("--min 5parsecs", "'5parsecs' is not a time"),
        ("--max x", "'x' is not a time"),
        ("--max 1ms --min 2ms", "--max is below --min"),
        ("--state foo", "'foo' is not a list of states (running, interruptible"),
        ("--state -1", "'-1' is not a list of states"),
        ("--history 1s", "'1s' is not a time from 10s to 24h"),
        ("--door window", "invalid choice: 'window'"),
        ("--user-threads --kernel-threads", "not allowed with argument --user-threads"),
        ("--color mauve", "invalid choice: 'mauve'"),
        ("--nosuch", "unrecognized arguments: --nosuch"),
        ("--bat", "unrecognized arguments: --bat"),
        ("nosuch", "unrecognized arguments: nosuch"),
        ("doctor --nosuch", "unrecognized arguments: --nosuch. See: offtop doctor --help"),
        ("schema nosuch", "unrecognized arguments: nosuch. See: offtop schema --help"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence_with_status_2(arguments: str, says: str) -> None:
    ended = command.run(
        *(arguments.split() if arguments.startswith(("doctor", "schema")) else ["-b", *arguments.split()])
    )
    assert says in ended.sentence
    assert re.search(r"See: |Give |Try", ended.sentence), "it says what to do"
    assert ended.status == 2


def test_an_argument_with_escape_codes_is_shown_escaped() -> None:
    assert r"'\x1b[31m' is not a list of ids" in command.run("-p", "\x1b[31m").sentence


@needs_kernel
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("-p 4194305", "No process 4194305. Look it up with: pgrep"),  # above the kernel's greatest pid
        ("-t 4194305", "No thread 4194305."),
    ],
)
def test_who_is_not_there_cannot_be_watched(arguments: str, says: str) -> None:
    ended = command.run("-b", *arguments.split())
    assert says in ended.sentence
    assert ended.status == 2


def test_help_and_version_are_answers_not_errors() -> None:
    assert command.run("--version").out.startswith("offtop ")
    assert command.run("--help").out.startswith("usage: offtop ")
    assert command.run("--help").status == command.run("--version").status == 0


@needs_kernel
def test_another_user_is_told_to_use_sudo_with_status_3() -> None:
    ended = command.run("-b", "-n", "1", before=["unshare", "--user"])  # nobody, who may yet read this checkout
    assert ended.sentence.startswith("offtop needs root (or CAP_BPF")
    assert ended.sentence.endswith("Try: sudo offtop")
    assert ended.status == 3


@needs_kernel
def test_root_without_capabilities_as_in_a_container_is_told_which_with_status_3() -> None:
    ended = command.run("-b", "-n", "1", before=["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"])
    assert "CAP_BPF, CAP_PERFMON" in ended.sentence
    assert ended.status == 3


@needs_kernel
def test_without_bcc_it_says_where_bcc_comes_from_with_status_4(tmp_path: Path) -> None:
    found = "import sys, pathlib; sys.path += sys.argv[1:]; import bcc; print(pathlib.Path(bcc.__file__).parent)"
    places = ["/usr/lib/python3/dist-packages", *map(str, Path("/usr").glob("lib*/python3*/site-packages"))]
    bcc = subprocess.run([sys.executable, "-c", found, *places], capture_output=True, text=True, check=True, timeout=30)
    hide = f'mount --bind {tmp_path} {bcc.stdout.strip()} && exec "$@"'
    ended = command.run("-b", "-n", "1", before=["unshare", "--mount", "sh", "-c", hide, "sh"])
    assert ended.sentence.startswith("The Python module 'bcc' is missing.")
    assert "apt install python3-bpfcc" in ended.sentence
    assert ended.status == 4


@needs_kernel
def test_without_a_terminal_it_is_batch_and_says_so_in_one_line() -> None:
    ended = command.run("-n", "1", "-d", "0.1")
    assert ended.status == 0
    assert ended.err == "offtop: there is no terminal here, so this is batch mode (-b)\n"
    assert ended.out.startswith("offtop - ")


@needs_kernel
def test_asked_for_batch_it_says_nothing_more() -> None:
    assert command.run("-b", "-n", "1", "-d", "0.1").err == ""


@needs_kernel
def test_a_dumb_terminal_gets_batch_without_escape_codes() -> None:
    ended = command.run_on_terminal("-n", "1", "-d", "0.1", env={"TERM": "dumb"})
    assert ended.status == 0
    assert ended.err == "offtop: TERM says that this terminal cannot show a screen, so this is batch mode (-b)\n"
    assert ended.screen.startswith(b"offtop - ")
    assert b"\x1b" not in ended.screen


@needs_kernel
def test_a_theme_that_is_not_there_is_refused_and_the_terminal_left_alone() -> None:
    ended = command.run_on_terminal("--theme", "nosuch", env={"TERM": "xterm-256color"})
    assert ended.status == 2
    assert re.fullmatch(r"offtop: There is no theme 'nosuch'[^\n]+\n", ended.err)
    assert ended.screen == b""


@needs_kernel
def test_a_reader_that_has_enough_ends_it_with_status_0(tmp_path: Path) -> None:
    for arguments in ("-b -d 0.1", "--json -d 0.1"):
        status = tmp_path / "status"
        shell = f"({OFFTOP} {arguments}; echo $? >{status}) | head -c 200"
        answer = subprocess.run(["sh", "-c", shell], capture_output=True, timeout=command.TIMEOUT_S, check=True)
        assert len(answer.stdout) == 200
        assert answer.stderr == b""
        assert status.read_text() == "0\n"


@needs_kernel
@pytest.mark.parametrize("redirection", [">/dev/full", ">&-"])
@pytest.mark.parametrize("arguments", ["-b -n 1 -d 0.1", "--json -n 1 -d 0.1", "schema"])
def test_output_that_cannot_be_written_is_an_error_of_one_sentence(arguments: str, redirection: str) -> None:
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


@needs_kernel
def test_errors_reach_nobody_when_stderr_is_closed_and_the_status_stays() -> None:
    for arguments, status in (("-b -d 0", 2), ("-b -n 1 -d 0.1", 0)):
        shell = f"{OFFTOP} {arguments} 2>&-"
        answer = subprocess.run(
            ["sh", "-c", shell], stdin=subprocess.DEVNULL, capture_output=True, timeout=command.TIMEOUT_S, check=False
        )
        assert answer.returncode == status


@needs_kernel
def test_what_was_watched_may_end() -> None:
    with subprocess.Popen(["sleep", "2"]) as watched:
        process = command.start("-b", "-n", "25", "-d", "0.1", "-p", str(watched.pid))
        watched.wait()
        ended = command.ended(process)
    assert ended.status == 0
    assert "Traceback" not in ended.err
    assert "sleep" in ended.out
    assert ended.out.count("offtop - ") >= 3
