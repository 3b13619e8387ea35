"""Writes the shell completions of offtop from its parsers: `.venv/bin/python packaging/completions.py`.

A command of offtop is a parser of its own (offtop/options.py), so that `offtop` alone needs none; shtab wants one
parser with subparsers, which is built here and parses nothing.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import shtab

from offtop import config, options, paths
from offtop.model import rows, wake

_FILES = {"bash": "offtop.bash", "zsh": "_offtop", "fish": "offtop.fish"}
_VALUES = {
    "mode": wake.MODES,
    "sort": rows.SORTS,
    "source": config.SOURCES,
    "state": tuple(options.STATES),
    "theme": tuple(sorted(theme.stem for theme in paths.themes().glob("*.toml"))),
    "window": tuple(config._WINDOWS),  # pyright: ignore[reportPrivateUsage]
}
"""What may stand behind an option that is no argparse choice, since the parser takes other spellings, too."""
_COMPLETERS: Mapping[str, Mapping[str, str | dict[str, str]]] = {
    "FILE": shtab.FILE,
    "OUT": shtab.FILE,
    "PATH": shtab.DIRECTORY,
    "DIR": shtab.DIRECTORY,
    "PID,…": {
        "bash": "_offtop_pids",
        "zsh": "_pids",
        "fish": "(__fish_complete_pids)",
        "preamble": {"bash": '_offtop_pids() { compgen -W "$(cd /proc && echo [0-9]*)" -- "$1"; }\n'},
    },
    "NAME": {
        "bash": "_offtop_users",
        "zsh": "_users",
        "fish": "(__fish_complete_users)",
        "preamble": {"bash": '_offtop_users() { compgen -u -- "$1"; }\n'},
    },
}
"""By what the help calls the value. A theme is a NAME, too, and goes by _VALUES."""


def everything() -> argparse.ArgumentParser:
    """`offtop` with its commands as subparsers."""
    top = options.live()
    commands = top.add_subparsers()
    for parser_of in (
        options.record,
        options.replay,
        options.report,
        options.export,
        options.diff,
        options.demo,
        options.rules,
        options.doctor,
        options.schema,
    ):
        parser = parser_of()
        name, says = parser.prog.split()[1], parser.description
        _completed(commands.add_parser(name, help=says, description=says, parents=[parser], add_help=False))
    _completed(top)
    return top


def _completed(parser: argparse.ArgumentParser) -> None:
    """The same parser, whose values the shells know."""
    for action in parser._actions:  # pyright: ignore[reportPrivateUsage]
        if action.dest in _VALUES:
            action.choices = _VALUES[action.dest]
        elif isinstance(action.metavar, str) and action.metavar in _COMPLETERS:
            action.complete = _COMPLETERS[action.metavar]  # pyright: ignore[reportAttributeAccessIssue]


def write(directory: Path) -> None:
    for shell, name in _FILES.items():
        lines = shtab.complete(everything(), shell).splitlines()
        (directory / name).write_text("".join(f"{line.rstrip()}\n" for line in lines))


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("completions"))
