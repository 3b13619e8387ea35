"""The generated man page and shell completions have each command, option and key."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from offtop.model.aggregate.rows import SORTS
from offtop.ui.kit import keys
from tests.test_docs import COMMANDS, flags_of

_PACKAGING = Path(__file__).parents[1] / "packaging"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    page = tmp_path_factory.mktemp("man") / "offtop.8"
    with page.open("w", encoding="utf-8") as out:
        subprocess.run([sys.executable, _PACKAGING / "manpage.py"], stdout=out, check=True, timeout=60)
    return page


@pytest.fixture(scope="module")
def completions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("completions")
    subprocess.run([sys.executable, _PACKAGING / "completions.py", directory], check=True, timeout=60)
    return directory


def plain(roff: str) -> str:
    """Return the text without font changes and escapes, line by line."""
    text = re.sub(r"\\f[BIRP]|\\,|\\/|\\&", "", re.sub(r"^\.[BI] ", "", roff, flags=re.MULTILINE))
    return text.replace("\\-", "-").replace("\\(ti", "~").replace("\\e", "\\").replace("\\(dq", '"')


def section(roff: str, macro: str, title: str) -> str:
    """Return the text below a heading, up to the next heading of the same or a higher level."""
    found = re.search(rf'^\.{macro} (?:\\fB)?"?{title}(?:\\fR)?"?\n(.*?)(?=^\.{macro} |^\.SH |\Z)', roff, re.M | re.S)
    assert found, f"no {title}"
    return found[1]


def tags(roff: str) -> list[str]:
    """Return the tags of tagged paragraphs (.TP)."""
    return plain("\n".join(re.findall(r"^\.TP\n(.*)$", roff, re.MULTILINE))).splitlines()


def test_helpers_read_roff() -> None:
    assert plain("\\fB\\-n\\fR \\fI\\,N\\/\\fR, \\(ti\\e") == "-n N, ~\\"
    assert tags(".TP\n\\fB\\-n\\fR \\fIN\\fR\nmore\n.PP\nno\n.TP\n.B k\n") == ["-n N", "k"]
    assert section(".SH A\nb\n.SS c\nd\n.SH E\n", "SS", "c") == "d\n"
    assert tags("") == []


@pytest.mark.parametrize(
    "check", [["mandoc", "-T", "lint", "-W", "warning"], ["groff", "-ww", "-man", "-z"]], ids=["mandoc", "groff"]
)
def test_man_page_has_no_warnings(check: list[str], page: Path) -> None:
    if shutil.which(check[0]) is None:
        pytest.skip(f"no {check[0]} is here: apt-get install {check[0]}")
    done = subprocess.run([*check, page], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_man_page_is_the_same_on_each_terminal_and_in_each_time_zone() -> None:
    pages: set[bytes] = set()
    for columns, zone in (("40", "Asia/Tokyo"), ("200", "America/New_York")):
        environment = {**os.environ, "COLUMNS": columns, "TZ": zone, "SOURCE_DATE_EPOCH": "1700000000"}
        command = [sys.executable, _PACKAGING / "manpage.py"]
        pages.add(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, timeout=60).stdout)
    (page,) = pages
    assert page.startswith(b'.TH OFFTOP "8" "2023-11-14" ')


def test_man_page_has_every_command_and_key(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\.SS \\fBofftop (\w+)\\fR$", text, re.MULTILINE)) == COMMANDS
    pressed = " ".join(tags(section(text, "SH", "KEYS"))).split()
    assert sorted(pressed) == sorted(keys.shown(key) for row in keys.KEYS for key in row.keys.split(","))


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_man_page_has_exactly_the_options(command: str, page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    part = section(text, "SS", f"offtop {command}") if command else text.partition(".SH\nCOMMANDS")[0]
    assert {flag for tag in tags(part) for flag in re.findall(r"(?<![\w-])--?[A-Za-z][\w.-]*", tag)} == flags_of(
        command
    )


@pytest.mark.parametrize("name", ["offtop.bash", "_offtop", "offtop.fish"])
def test_completions_have_every_option(name: str, completions: Path) -> None:
    words = {*re.findall(r"[\w.-]+", (completions / name).read_text())}
    options = {flag for command in ("", *COMMANDS) for flag in flags_of(command)}
    assert options <= words or {flag.lstrip("-") for flag in options} <= words  # fish has them without dashes


def test_sort_columns_are_completed(completions: Path) -> None:
    assert f"({' '.join(SORTS)})" in (completions / "_offtop").read_text()


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("offtop re", {"record", "replay", "report"}),
        ("offtop record --sta", {"--state"}),
        ("offtop report --st", set[str]()),
        ("offtop record --state un", {"uninterruptible"}),
        ("offtop --window ", {"1s", "10s", "60s", "start"}),
        ("offtop --theme c", {"colourblind", "contrast"}),
        ("offtop -u roo", {"root"}),
        ("offtop replay mine", {"mine.offtop"}),
        ("offtop -p 1234567890", set[str]()),
    ],
)
@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_shell_completes(shell: str, typed: str, offered: set[str], completions: Path, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} is here")
    (tmp_path / "mine.offtop").touch()
    programs = {
        "bash": 'source "$0"; IFS=" " read -ra COMP_WORDS <<<"$1"; [[ $1 != *" " ]] || COMP_WORDS+=("")\n'
        'COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _shtab_offtop; printf "%s\\n" "${COMPREPLY[@]}"',
        "fish": "source $argv[1]; complete -C $argv[2]",
    }
    done = subprocess.run(
        [shell, "-c", programs[shell], completions / f"offtop.{shell}", typed],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert {line.split("\t")[0] for line in done.stdout.splitlines()} - {""} == offered


@pytest.mark.parametrize(("shell", "name"), [("bash", "offtop.bash"), ("zsh", "_offtop"), ("fish", "offtop.fish")])
def test_completion_scripts_have_valid_syntax(shell: str, name: str, completions: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} is here")
    done = subprocess.run([shell, "-n", completions / name], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
