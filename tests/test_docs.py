"""The manual builds without warnings, lists each key and option, and its commands are valid."""

import argparse
import importlib
import pkgutil
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.binding import Binding
from textual.dom import DOMNode

import offtop.ui
from docs import tables
from offtop import cli, errors
from offtop.commands import options
from offtop.settings import config
from offtop.ui.fleet import keys as fleet_keys
from offtop.ui.kit import keys, pane_keys

_ROOT = Path(__file__).parents[1]
_DOCS = _ROOT / "docs"
_DOCUMENTS = [_ROOT / "README.md", _ROOT / "CONTRIBUTING.md", *sorted(_DOCS.glob("*.md"))]
COMMANDS = sorted(cli._COMMANDS)  # pyright: ignore[reportPrivateUsage]


def parser_of(command: str) -> argparse.ArgumentParser:
    return getattr(options, command or "live")()


def flags_of(command: str) -> set[str]:
    """Return the options of a command except --help; an empty command is `offtop` itself."""
    every = parser_of(command)._option_string_actions  # pyright: ignore[reportPrivateUsage]
    return {*every} - {"-h", "--help"}


def commands_in(text: str) -> Iterator[list[str]]:
    """Yield the arguments of each `offtop …` command in code blocks, up to a shell operator."""
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            words: list[str] = []
            tokens = shlex.shlex(line, posix=True, punctuation_chars=True)
            tokens.whitespace_split = True
            for word, is_operator in [*((token, token[0] in "|&;<>") for token in tokens), (";", True)]:
                if not is_operator:
                    words.append(word)
                    continue
                if "offtop" in words[:2]:
                    yield words[words.index("offtop") + 1 :]
                words = []


def test_commands_in_code_blocks_are_split_like_a_shell() -> None:
    text = "offtop no\n```sh\nmake x # y\nsudo offtop -b -n 1 | jq . # z\nofftop a 'b c' > d && offtop e\n```\n"
    assert [*commands_in(text)] == [["-b", "-n", "1"], ["a", "b c"], ["e"]]
    assert [*commands_in("")] == []


def test_manual_builds_without_warnings(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", tmp_path / "trees", _DOCS]
    done = subprocess.run([*command, tmp_path / "html"], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    pages = {page.stem for page in _DOCS.glob("*.md")}
    assert len(pages) > 15 and pages <= {page.stem for page in (tmp_path / "html").glob("*.html")}


@pytest.mark.parametrize("document", _DOCUMENTS[:2], ids=lambda path: path.name)
def test_links_lead_to_existing_files(document: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8"))
    assert links and [link for link in links if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", _DOCUMENTS, ids=lambda path: path.name)
def test_commands_in_code_blocks_are_valid(document: Path) -> None:
    for words in commands_in(document.read_text(encoding="utf-8")):
        name = words[0] if words and words[0] in COMMANDS else ""
        parser_of(name).parse_args(options.values_joined(words[1:] if name else words))


def test_key_tables_have_every_key() -> None:
    every = tables.all_tables()
    for row in keys.KEYS:
        assert all(f"`{keys.shown(key)}`" in every["keys"] for key in row.keys.split(",")), row.id
        assert f"`{row.id}`" in every["actions"]
    rows = [row for group in keys.grouped({}) for row in group.rows]
    assert sum(len(pressed.split()) for pressed, _ in rows) == sum(len(row.keys.split(",")) for row in keys.KEYS)
    assert all(pane.title in every["panes"] for pane in pane_keys.PANES.values())


def test_every_bound_key_is_in_the_key_table() -> None:
    bound: set[str] = set()
    for module_info in pkgutil.walk_packages(offtop.ui.__path__, "offtop.ui."):
        for value in vars(importlib.import_module(module_info.name)).values():
            if isinstance(value, type) and issubclass(value, DOMNode) and value.__module__.startswith("offtop."):
                bound |= {binding.key for binding in Binding.make_bindings(vars(value).get("BINDINGS", []))}
    assert bound == {key for row in (*keys.KEYS, *fleet_keys.KEYS) for key in row.keys.split(",")}


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_option_tables_have_every_option(command: str) -> None:
    title = f"offtop {command}".rstrip()
    (section,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", tables.all_tables()["options"], re.M | re.S)
    cells = re.findall(r"^\| (`.*?) \| \S", section, re.MULTILINE)
    assert {flag for cell in cells for flag in re.findall(r"(?<!\w)--?[A-Za-z][\w.-]*", cell)} == flags_of(command)


def test_settings_table_has_every_setting() -> None:
    written = tables.all_tables()["settings"]
    assert [setting.name for setting in config.SETTINGS if f"| `{setting.name}` |" not in written] == []


def test_documented_exit_statuses_are_those_of_the_errors() -> None:
    text = (_DOCS / "json.md").read_text(encoding="utf-8").partition("## Exit status")[2]
    kinds = (errors.OfftopError, errors.UsageError, errors.PrivilegeError, errors.KernelError, errors.OutlierFoundError)
    raised = {kind.status for kind in kinds}
    written = {int(status) for cell in re.findall(r"^\| ([\d, ]+) \|", text, re.M) for status in cell.split(",")}
    assert written == {0, *raised, 129, 130, 143}


def test_documented_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (_ROOT / "Makefile").read_text(), re.MULTILINE))
    text = "\n".join(path.read_text(encoding="utf-8") for path in _DOCUMENTS)
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", text, re.MULTILINE))
    assert named and named <= targets
