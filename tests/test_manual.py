"""The man page and the shell completions say what offtop has: each command, each flag, each exit status."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from offtop import cli, options
from offtop.model.rows import SORTS
from tests.test_docs import code, flags_of, help_text, rows

_PACKAGING = Path(__file__).parents[1] / "packaging"
_PAGE = _PACKAGING / "offtop.8"
_COMPLETIONS = _PACKAGING / "completions"
_COMMANDS = set(cli._COMMANDS)  # pyright: ignore[reportPrivateUsage]
_ALL = sorted({"offtop", *_COMMANDS})
"""As the headings of the man page name them: `offtop` is the one without a command."""
_PARSERS = {
    "offtop": options.live,
    "record": options.record,
    "replay": options.replay,
    "report": options.report,
    "demo": options.demo,
    "rules": options.rules,
}


def plain(roff: str) -> str:
    """The text without fonts and escapes; lines stay lines."""

    def words(macro: re.Match[str]) -> str:
        found = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', macro[2])]
        return (" " if len(macro[1]) == 1 else "").join(found)  # .BR and its like take turns, without a blank

    text = re.sub(r"^\.([BI]|BR|RB|BI|IB|IR|RI) (.*)$", words, roff, flags=re.MULTILINE)
    return re.sub(r"\\f[BIRP]", "", text).replace("\\-", "-").replace("\\(aq", "'").replace("\\e", "\\")


def sections(roff: str, macro: str) -> dict[str, str]:
    """What stands under each heading that this macro makes."""
    parts = re.split(rf'^\.{macro} "?(.*?)"?$', roff, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def tags(roff: str) -> list[str]:
    """What the paragraphs with a hanging tag are about."""
    return plain("\n".join(re.findall(r"^\.TP.*\n(.*)$", roff, re.MULTILINE))).splitlines()


_SECTIONS = sections(_PAGE.read_text(), "SH")


def of_a(command: str) -> list[str]:
    return [] if command == "offtop" else [command]


def in_page(command: str) -> set[str]:
    """The flags under the headings that name this command in parentheses."""
    found: set[str] = set()
    for heading, text in sections(_SECTIONS["OPTIONS"], "SS").items():
        named = re.search(r"\((.*)\)", heading)
        if named and command in named[1].split(", "):
            found |= {flag for tag in tags(text) for flag in flags_of(f"  {tag}")}
    return found


def in_bash(command: str) -> set[str]:
    prefix = "_".join(["_shtab_offtop", *of_a(command)])
    found = re.search(rf"^{prefix}_option_strings=\((.*)\)$", (_COMPLETIONS / "offtop.bash").read_text(), re.MULTILINE)
    assert found, f"bash knows no {command}"
    return set(found[1].split())


def in_zsh(command: str) -> set[str]:
    prefix = "_".join(["_shtab_offtop", *of_a(command)])
    found = re.search(rf"^{prefix}_options=\(\n(.*?)^\)", (_COMPLETIONS / "_offtop").read_text(), re.M | re.S)
    assert found, f"zsh knows no {command}"
    names = re.findall(r'^  (?:"\(- : \*\)")?(?:\{([^}]*)\}|"\*?(-[^\[]*))', found[1], re.MULTILINE)
    return {flag for several, one in names for flag in (several or one).split(",")}


def in_fish(command: str) -> set[str]:
    using = " ".join(["_shtab_offtop_using", *of_a(command)])
    script = (_COMPLETIONS / "offtop.fish").read_text()
    lines = re.findall(rf"^complete -c offtop -n (?:'{using}'|{using}) (-[sl] .*)$", script, re.MULTILINE)
    heads = [re.match(r"(?:-[sl] \S+ ?)+", line) for line in lines]
    found = re.findall(r"-([sl]) (\S+)", " ".join(head[0] for head in heads if head))
    return {f"{'-' if length == 's' else '--'}{name}" for length, name in found}


def test_roff_is_read_as_a_person_would() -> None:
    assert plain('.BR \\-\\-sort ", " \\e\n.B top \\-b') == "--sort, \\\ntop -b"
    assert plain("a \\fIN\\fR, \\(aqb c\\(aq") == "a N, 'b c'"
    assert sections('.SH A\nb\n.SH "C D"\n.SH E\n', "SH") == {"A": "\nb\n", "C D": "\n", "E": "\n"}
    assert tags(".TP\n\\fB\\-n\\fR \\fIN\\fR\nmore\n.PP\nno\n") == ["-n N"]
    assert tags("") == []


def test_the_man_page_is_without_warnings() -> None:
    checks = {"mandoc": ["-T", "lint", "-W", "warning"], "groff": ["-ww", "-man", "-z"]}
    found = [program for program in checks if shutil.which(program)]
    if not found:
        pytest.skip("neither mandoc nor groff is here: apt-get install mandoc")
    for program in found:
        said = subprocess.run([program, *checks[program], _PAGE], capture_output=True, text=True, timeout=60)
        assert (said.returncode, said.stdout, said.stderr) == (0, "", "")


def test_every_command_is_in_the_man_page_and_every_command_there_exists() -> None:
    assert set(tags(_SECTIONS["COMMANDS"])) == _COMMANDS
    assert set(re.findall(r"^offtop ([a-z]+)", plain(_SECTIONS["SYNOPSIS"]), re.MULTILINE)) == _COMMANDS
    headings = " ".join(re.findall(r"\((.*)\)$", "\n".join(sections(_SECTIONS["OPTIONS"], "SS")), re.MULTILINE))
    assert set(re.findall(r"\w+", headings)) == {"offtop", *_COMMANDS}


@pytest.mark.parametrize("command", _ALL)
@pytest.mark.parametrize("written", [in_page, in_bash, in_zsh, in_fish])
def test_every_flag_is_written_down_and_every_flag_there_exists(
    written: Callable[[str], set[str]], command: str
) -> None:
    assert written(command) == flags_of(help_text(*of_a(command)))


def test_what_can_be_sorted_by_is_the_same_everywhere() -> None:
    said = ", ".join(SORTS[:-1]) + f" or {SORTS[-1]};"
    ((_, readme),) = [row for row in rows("Options") if "--sort FIELD" in row[0]]
    assert code(readme) == [*SORTS, "-FIELD"]
    assert said in " ".join(options.live().format_help().split())
    assert said in " ".join(plain(_SECTIONS["OPTIONS"]).split())
    assert f"({' '.join(SORTS)})" in (_COMPLETIONS / "_offtop").read_text()


def test_every_key_in_the_man_page_is_in_the_readme() -> None:
    names = {"Up": "↑", "Down": "↓"}
    written = [names.get(key, key) for tag in tags(_SECTIONS["KEYS"]) for key in tag.split(", ")]
    assert len(written) > 20
    assert set(written) <= {key for row in rows("Keys") for key in code(row[0])}


def test_exit_statuses_are_those_of_the_readme() -> None:
    of_readme = [row[0] for row in rows("When it does not work") if re.fullmatch(r"[\d, ]+", row[0])]
    written = re.findall(r"\d+", " ".join(tags(_SECTIONS["EXIT STATUS"])))
    assert written == re.findall(r"\d+", " ".join(of_readme))


def test_every_variable_and_config_file_of_the_readme_is_in_the_man_page() -> None:
    assert tags(_SECTIONS["ENVIRONMENT"]) == [
        "NO_COLOR",
        "OFFTOP_CONFIG",
        "OFFTOP_CACHE",
        "OFFTOP_TRACEBACK",
        "XDG_CONFIG_HOME",
        "DEBUGINFOD_URLS",
        "SUDO_UID",
    ]
    places = re.findall(r"^[$~/]\S+", plain(_SECTIONS["FILES"].replace("\\(ti", "~")), re.MULTILINE)
    assert len(places) == 4
    readme = (_PACKAGING.parent / "README.md").read_text()
    assert [place for place in places if f"`{place}`" not in readme] == []


def test_every_example_is_a_command_line_that_offtop_takes() -> None:
    lines = re.findall(r"^[#$] offtop (.*)$", plain(_SECTIONS["EXAMPLES"]), re.MULTILINE)
    assert 6 <= len(lines) <= 20
    for line in lines:
        name, *rest = words = shlex.split(line.split(" | ")[0])
        if name in _PARSERS:
            _PARSERS[name]().parse_args(options.values_joined(rest))
        elif name not in _COMMANDS:
            options.live().parse_args(options.values_joined(words))


def test_the_completions_are_what_the_parsers_make_now(tmp_path: Path) -> None:
    subprocess.run([sys.executable, _PACKAGING / "completions.py", tmp_path], check=True, timeout=60)
    made = {file.name: file.read_text() for file in tmp_path.iterdir()}
    committed = {file.name: file.read_text() for file in _COMPLETIONS.iterdir()}
    assert made == committed, "run: .venv/bin/python packaging/completions.py"


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("offtop re", {"record", "replay", "report"}),
        ("offtop record --st", {"--state"}),
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
def test_a_shell_offers(shell: str, typed: str, offered: set[str], tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} is here")
    (tmp_path / "mine.offtop").touch()
    programs = {
        "bash": 'source "$0"; IFS=" " read -ra COMP_WORDS <<<"$1"; [[ $1 != *" " ]] || COMP_WORDS+=("")\n'
        'COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _shtab_offtop; printf "%s\\n" "${COMPREPLY[@]}"',
        "fish": "source $argv[1]; complete -C $argv[2]",
    }
    said = subprocess.run(
        [shell, "-c", programs[shell], _COMPLETIONS / f"offtop.{shell}", typed],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert {line.split("\t")[0] for line in said.stdout.splitlines()} - {""} == offered


@pytest.mark.parametrize(("shell", "name"), [("bash", "offtop.bash"), ("zsh", "_offtop"), ("fish", "offtop.fish")])
def test_each_script_is_one_of_its_shell(shell: str, name: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} is here")
    said = subprocess.run([shell, "-n", _COMPLETIONS / name], capture_output=True, text=True, timeout=60)
    assert (said.returncode, said.stderr) == (0, "")
