"""What the README says is what offtop has: each key, each flag, each exit status, each `make` target."""

import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
from textual.binding import Binding
from textual.dom import DOMNode

import offtop.ui
from offtop import cli, errors

_ROOT = Path(__file__).parents[1]
_README = (_ROOT / "README.md").read_text()
_OFFTOP = Path(sys.executable).with_name("offtop")

_SPELLED = {
    "↑": "up",
    "↓": "down",
    "←": "left",
    "→": "right",
    "[": "left_square_bracket",
    "]": "right_square_bracket",
    "{": "left_curly_bracket",
    "}": "right_curly_bracket",
    "PgUp": "pageup",
    "PgDn": "pagedown",
    "Esc": "escape",
    "?": "question_mark",
    "!": "exclamation_mark",
    "<": "less_than_sign",
    ">": "greater_than_sign",
    "/": "slash",
    "\\": "backslash",
    ".": "full_stop",
    "+": "plus",
    "-": "minus",
    "*": "asterisk",
}
"""How the README writes keys whose Textual name is another."""


def rows(heading: str) -> list[list[str]]:
    """The cells of the tables under a heading of the README, their own headings left out."""
    section = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", _README, re.MULTILINE | re.DOTALL)
    assert section, f"the README has no section {heading}"
    tables = re.findall(r"(?:^\|.*\n)+", section[1], re.MULTILINE)
    return [
        [cell.strip() for cell in line.strip("|\n").split(" | ")] for table in tables for line in table.splitlines()[2:]
    ]


def code(cell: str) -> list[str]:
    """What a cell has between backticks."""
    return re.findall(r"`([^`]+)`", cell)


def keys_in_readme() -> set[str]:
    written = [key for row in rows("Keys") for key in code(row[0])]
    return {_SPELLED.get(key, key if len(key) == 1 else key.lower().replace("-", "+")) for key in written}


def keys_bound() -> set[str]:
    """Every key in the BINDINGS of any screen or widget that offtop itself defines."""
    bound: set[str] = set()
    for module_info in pkgutil.walk_packages(offtop.ui.__path__, "offtop.ui."):
        for value in vars(importlib.import_module(module_info.name)).values():
            if isinstance(value, type) and issubclass(value, DOMNode) and value.__module__.startswith("offtop."):
                bound |= {binding.key for binding in Binding.make_bindings(vars(value).get("BINDINGS", []))}
    return bound


def flags_of(help_text: str) -> set[str]:
    """The options that lines of a help text begin with."""
    options = [re.split(r"\s{2,}", line.strip())[0] for line in help_text.splitlines() if re.match(r"\s+-", line)]
    return {flag for option in options for flag in re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", option)}


def help_text(*command: str) -> str:
    return subprocess.run(
        [_OFFTOP, *command, "--help"], capture_output=True, text=True, check=True, timeout=60, env={"COLUMNS": "200"}
    ).stdout


def test_the_readme_s_tables_are_found() -> None:
    assert len(rows("Keys")) > 10
    assert len(rows("Options")) > 10
    assert code("`-n N`, `--iterations N`") == ["-n N", "--iterations N"]
    assert code("no code") == []


def test_help_text_is_read_as_a_person_would() -> None:
    assert flags_of("") == set()
    assert flags_of("usage: x [--not]\n\n  -n N, --top-n N   at most N, see --other\n  name   --neither\n") == {
        "-n",
        "--top-n",
    }


def test_every_key_is_in_the_readme_and_every_key_there_works() -> None:
    assert keys_bound() == keys_in_readme()


def test_every_flag_is_in_the_readme_and_every_flag_there_exists() -> None:
    options = [row for row in rows("Options") if row[0].startswith("`-")]
    written = {flag for row in options for word in code(row[0]) for flag in flags_of(f"  {word}")}
    assert flags_of(help_text()) == written


@pytest.mark.parametrize("command", [code(row[0])[0] for row in rows("Options") if row[0].startswith("`offtop")])
def test_each_command_in_the_readme_exists_with_its_flags(command: str) -> None:
    name = command.split()[1]
    of_all = {
        flag for row in rows("Options") if row[0].startswith("`-") for flag in flags_of(f"  {' '.join(code(row[0]))}")
    }
    written, has = {*re.findall(r"(?<!\w)--?[a-z][a-z-]*", command)}, flags_of(help_text(name))
    assert written <= has
    assert has - {"-h", "--help"} <= written | of_all


def test_each_command_is_in_the_readme() -> None:
    written = {code(row[0])[0].split()[1] for row in rows("Options") if row[0].startswith("`offtop")}
    assert written == set(cli._COMMANDS)  # pyright: ignore[reportPrivateUsage]


def test_exit_statuses_are_those_of_the_errors() -> None:
    written = {
        int(n) for row in rows("When it does not work") for n in re.findall(r"^[\d, ]+$", row[0]) for n in n.split(",")
    }
    raised = {
        kind.status
        for kind in (
            errors.OfftopError,
            errors.UsageError,
            errors.PrivilegeError,
            errors.KernelError,
            errors.CaughtError,
        )
    }
    assert written == {0, *raised, 129, 130, 143}


def test_each_make_target_that_the_documents_name_exists() -> None:
    makefile = (_ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    documents = _README + (_ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", documents, re.MULTILINE))
    assert named and named <= targets
