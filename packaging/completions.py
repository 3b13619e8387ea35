"""Write shell completions of offtop into a directory: `python packaging/completions.py DIR`.

Each command of offtop has its own parser (offtop/commands/options.py), so that `offtop` builds only one of them. shtab
and argparse-manpage need one parser with subparsers; it is built here, and never parses anything.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import shtab

from offtop import paths
from offtop.commands import option_values, options
from offtop.model.aggregate import rows
from offtop.model.values import wake
from offtop.settings import config

_FILES = {"bash": "offtop.bash", "zsh": "_offtop", "fish": "offtop.fish"}
_VALUES = {
    "mode": wake.MODES,
    "sort": rows.SORTS,
    "source": config.SOURCES,
    "state": tuple(option_values.STATES),
    "theme": tuple(paths.theme_names()),
    "window": tuple(config._WINDOWS),  # pyright: ignore[reportPrivateUsage]
}
"""Values of options that are not argparse choices, because the parser also accepts other spellings."""
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
"""Completers by metavar. A theme is a NAME too, and is in _VALUES."""


_COMMANDS = (
    options.record,
    options.replay,
    options.report,
    options.export,
    options.diff,
    options.demo,
    options.agent,
    options.fleet,
    options.rules,
    options.doctor,
    options.schema,
)


def parser_of_everything() -> tuple[argparse.ArgumentParser, list[argparse.ArgumentParser]]:
    """Return the parser of `offtop` with all commands, and the parsers of the commands."""
    parsers = {parser.prog: parser for parser in (make() for make in _COMMANDS)}

    def made(*, prog: str, **_: object) -> argparse.ArgumentParser:
        return parsers[prog]

    top = options.live()
    top.usage = "offtop [OPTION]... | offtop COMMAND [OPTION]..."
    commands = top.add_subparsers(
        title="commands",
        prog=top.prog,
        parser_class=cast(type[argparse.ArgumentParser], made),
    )
    for parser in parsers.values():
        parser.usage = " ".join([parser.prog, "[OPTION]...", *_operands(parser)])
        commands.add_parser(parser.prog.split()[1], help=parser.description)
        _add_completers(parser)
    _add_completers(top)
    return top, [*parsers.values()]


def _operands(parser: argparse.ArgumentParser) -> list[str]:
    operands = [action for action in parser._actions if not action.option_strings]  # pyright: ignore[reportPrivateUsage]
    return [f"[{one.metavar}]" if one.nargs == "?" else str(one.metavar) for one in operands]


def _add_completers(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:  # pyright: ignore[reportPrivateUsage]
        if action.dest in _VALUES:
            action.choices = _VALUES[action.dest]
        elif isinstance(action.metavar, str) and action.metavar in _COMPLETERS:
            action.complete = _COMPLETERS[action.metavar]  # pyright: ignore[reportAttributeAccessIssue]


def write(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    parser, _ = parser_of_everything()
    for shell, name in _FILES.items():
        lines = shtab.complete(parser, shell).splitlines()
        (directory / name).write_text("".join(f"{line.rstrip()}\n" for line in lines))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
