"""Accepted and refused arguments: each refusal is one sentence with a remedy, and status 2."""

import re
import subprocess
import sys

import pytest

from offtop import paths
from tests import command
from tests.command import OFFTOP


def imported(*arguments: str) -> set[str]:
    """Return the top-level modules that offtop imports with these arguments."""
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
def test_commands_that_only_print_do_not_import_the_screen(arguments: list[str]) -> None:
    modules = imported(*arguments)
    assert "offtop" in modules
    assert modules & {"textual", "rich", "bcc"} == set()


@pytest.mark.kernel
def test_batch_does_not_import_the_screen() -> None:
    modules = imported("-b", "-n", "1", "-d", "0.1")
    assert "offtop" in modules
    assert modules & {"textual", "rich", "bcc"} == set()


@pytest.mark.parametrize(
    ("arguments", "error"),
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
        ("-p x", "'x' is not a list of ids such as 4242"),
        ("-p 0", "'0' is not a list of ids"),
        ("-p -1", "'-1' is not a list of ids"),
        ("-p 1,", "'1,' is not a list of ids"),
        ("-p=", "'' is not a list of ids such as 4242 or 4242,977 or CONTAINER:7"),
        ("-p web:1,", "'web:1,' is not a list of ids"),
        ("-t=", "'' is not a list of ids"),
        ("-p :1", "':1' is not a list of ids such as 4242 or 4242,977 or CONTAINER:7"),
        ("-p web:", "'web:' is not a list of ids"),
        ("-p 7,web:0", "'7,web:0' is not a list of ids"),
        ("-p 99999999999", "'99999999999' is not a list of ids"),
        ("-t x", "'x' is not a list of ids"),
        ("--min -1", "'-1' is not a time such as 200us"),
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
        (
            "--mode on",
            '\'on\' is not one of "offcpu", "wakeup", "offwake", "chain", "file", "disk". See: offtop --help',
        ),
        ("--mode", "expected one argument"),
        ("--depth 1", "'1' is not a whole number from 2 to 8. See: offtop --help"),
        ("--depth 9", "'9' is not a whole number from 2 to 8"),
        ("--depth 2.5", "'2.5' is not a whole number from 2 to 8"),
        (
            "record --mode chains",
            '\'chains\' is not one of "offcpu", "wakeup", "offwake", "chain", "file", "disk". See: offtop record',
        ),
        (
            "-o p98",
            "'p98' is not one of WAITING, CHANGE, MAX, NOW, TOTAL, EV/S, NAME, PID, P50, P99, or that",
        ),
        ("-o --MAX", "'--MAX' is not one of"),
        ("-o", "expected one argument"),
        ("--window 2s", '\'2s\' is not one of "1s", "10s", "60s", "start"'),
        ("-u nosuch", "'nosuch' is not a user: this machine has no user of that name, and it is not a number"),
        ("-u=", "is not a user"),
        ("--filter foo=1", "--filter: 'foo' is not a filter key. Use one of comm, thread,"),
        ("--filter comm>1", "--filter: 'comm>1' is not valid: comm takes = and !="),
        ("--filter cat=loch", "--filter: 'cat=loch' is not a category: try lock, "),
        ("--json --filter max>10ms", "--filter: max> selects rows of a table, and --json has none"),
        ("--rate 100", "--rate in batch mode needs a process. Add -p PID"),
        ("--json --rate 100 -p 1", "--rate prints a budget as text, which --json does not have. Omit it"),
        (
            "--within mysqld",
            "--within: 'mysqld' names no function. Give PROGRAM:FUNCTION, as mysqld:dispatch_command, ",
        ),
        ("--within a:b --rate 100 -p 1", "--rate needs all of a thread's time, and --within counts only a part"),
        ("--theme nosuch", "There is no theme 'nosuch'. Use one of: ansi, colourblind, contrast, dark, light, mono"),
        ("--theme ../dark", "'../dark' is not the name of a theme"),
        ("--mouse=no", "takes no value"),
        ("--config /nosuch/file", "--config names /nosuch/file, which "),
        ("--config", "expected one argument"),
        ("--nosuch", "offtop does not take '--nosuch'. See: offtop --help"),
        ("--bat", "offtop does not take '--bat'. See: offtop --help"),
        ("--verify-kernel-stacks=3", "--verify-kernel-stacks takes no value. See: offtop --help"),
        ("nosuch", "offtop does not take 'nosuch'. To show only what matches it: --filter nosuch. See: offtop --help"),
        ("replay a.offtop", "The command comes first: offtop replay OPTIONS. See: offtop replay --help"),
        ("--filter replay --nosuch", "offtop does not take '--nosuch'. See: offtop --help"),
        ("doctor --nosuch", "offtop doctor does not take '--nosuch'. See: offtop doctor --help"),
        ("schema nosuch", "offtop schema does not take 'nosuch'. See: offtop schema --help"),
    ],
)
def test_invalid_argument_is_one_sentence_and_status_2(arguments: str, error: str) -> None:
    ended = command.call(
        *(arguments.split() if arguments.startswith(("doctor", "schema", "record")) else ["-b", *arguments.split()])
    )
    assert error in ended.sentence
    assert re.search(r"See: |Give |Try|try |Take |Use |Add |Omit |omit |Make |Create |Leave |takes ", ended.sentence), (
        "no remedy"
    )
    assert ended.status == 2


def test_unknown_command_is_refused_with_the_commands_and_the_nearest_of_them() -> None:
    near, far = command.run("recrod", "-o", "x"), command.run("frob")
    assert near.status == far.status == 2
    assert near.sentence.startswith("There is no command 'recrod'. Did you mean record? Commands: record, replay, ")
    assert far.sentence.startswith("There is no command 'frob'. Commands: record, replay, report, ")


def test_export_accepts_options_between_and_before_its_arguments() -> None:
    file = str(paths.demo())
    lines = [("csv", file, "-n", "2"), ("-n", "2", "csv", file), ("csv", "-n", "2", file)]
    texts = [one.out for one in command.run_at_once(*(("export", *line) for line in lines))]
    assert texts[0].startswith("category,process") and texts == [texts[0]] * 3


@pytest.mark.parametrize(
    "option", ["-p", "-d", "-u", "-o", "--window", "--theme", "--filter", "--config", "--debuginfod"]
)
def test_argument_with_escape_codes_is_shown_escaped(option: str) -> None:
    assert r"\x1b[31m" in command.call("-b", option, "\x1b[31m=").sentence


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("-p 4194305", "No process 4194305. Look it up with: pgrep"),  # above the kernel's largest PID
        ("-t 4194305", "No thread 4194305."),
    ],
)
def test_missing_process_or_thread_is_refused(arguments: str, error: str) -> None:
    ended = command.run("-b", *arguments.split())
    assert error in ended.sentence
    assert ended.status == 2


def test_help_and_version_exit_with_status_0() -> None:
    assert command.run("--version").out.startswith("offtop ")
    assert command.run("--help").out.startswith("usage: offtop ")
    assert command.run("--help").status == command.run("--version").status == 0
