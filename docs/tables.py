"""Generate the manual's tables from offtop's own: parsers, keys, filters, settings and rules."""

import argparse
import json
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "packaging"))

from completions import parser_of_everything

from offtop import paths
from offtop.settings import config
from offtop.ui.fleet import keys as fleet_keys
from offtop.ui.kit import keys, pane_keys
from offtop.ui.panes import help as helps


def write(directory: Path) -> None:
    """Write each table as a Markdown file, for the pages to include."""
    directory.mkdir(exist_ok=True)
    for name, text in all_tables().items():
        (directory / f"{name}.md").write_text(text, encoding="utf-8")


def all_tables() -> dict[str, str]:
    """Return file name without suffix → Markdown."""
    everything, commands = parser_of_everything()
    return {
        "keys": "\n".join(
            f"## {group.title}\n\n{_table(('key', 'does'), _keys(group.rows))}" for group in keys.grouped({})
        ),
        "panes": "\n".join(
            f"**{pane.title}**\n\n{_table(('key', 'does'), _keys(pane.rows({})))}" for pane in pane_keys.PANES.values()
        ),
        "presets": _table(("action", *(name for name in keys.PRESETS if keys.PRESETS[name])), _presets()),
        "fleet-keys": _table(("key", "does"), _keys(fleet_keys.rows())),
        "actions": ", ".join(f"`{row.id}`" for row in keys.KEYS) + "\n",
        "options": "\n".join(_options(parser) for parser in (everything, *commands)),
        "filters": _table(("word", "matches"), ((_code(term), text) for term, text in helps.words(helps.FILTERS))),
        "numbers": _table(("term", "means"), helps.words(helps.NUMBERS)),
        "settings": _table(("setting", "default", "means", "value"), _settings()),
        "categories": _table(("category", "means"), _categories()),
        "rules": _table(("cause", "rule", "programs"), _rules()),
    }


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *(tuple(_cell(cell) for cell in row) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(text: str) -> str:
    """Escape Markdown markup.

    In `code`, only the bar is escaped, because it would end the cell.
    """
    parts = text.replace("|", "\\|").split("`")
    parts[::2] = [part.translate({ord(one): f"\\{one}" for one in "*_<>[]~"}) for part in parts[::2]]
    return "`".join(parts)


def _code(words: str) -> str:
    return " ".join(f"`{word}`" for word in words.split())


def _keys(rows: Iterable[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    return ((_code(pressed), text) for pressed, text in rows)


def _presets() -> Iterable[tuple[str, ...]]:
    named = [preset for preset in keys.PRESETS.values() if preset]
    for row in keys.KEYS:
        if any(row.id in preset for preset in named):
            yield row.id, *(_code(keys.keys_of(row, preset)) if row.id in preset else "" for preset in named)


def _options(parser: argparse.ArgumentParser) -> str:
    """Return a command's section, with a table for each group of options."""
    text = f"## {parser.prog}\n\n"
    if parser.prog != "offtop":
        text += f"`{parser.usage}`: {_cell(parser.description or '')}.\n\n"
    for group in parser._action_groups:  # pyright: ignore[reportPrivateUsage]
        rows = [
            (_spelled(one), (one.help or "") % {**vars(one), "prog": parser.prog})
            for one in group._group_actions  # pyright: ignore[reportPrivateUsage]
            if one.help and one.nargs != argparse.PARSER and "-h" not in one.option_strings
        ]
        if rows:
            text += f"{_table((group.title or '', 'means'), rows)}\n"
    return text


def _spelled(action: argparse.Action) -> str:
    value = action.metavar or (action.choices and f"{{{','.join(map(str, action.choices))}}}") or action.dest.upper()
    if not action.option_strings:
        return f"`{value}`"
    takes = "" if action.nargs == 0 else f" [{value}]" if action.nargs == "?" else f" {value}"
    return ", ".join(f"`{option}{takes}`" for option in action.option_strings)


def _settings() -> Iterable[tuple[str, ...]]:
    return ((f"`{one.name}`", f"`{json.dumps(one.default)}`", one.means, one.expected) for one in config.SETTINGS)


def _categories() -> Iterable[tuple[str, str]]:
    read = tomllib.loads(paths.categories().read_text(encoding="utf-8"))["category"]
    for name, one in read.items():
        yield f"`{name}`", " ".join(one["plain"].split()) + (" Idle." if one.get("idle") else "")


def _rules() -> Iterable[tuple[str, str, str]]:
    for rule in tomllib.loads(paths.rules().read_text(encoding="utf-8"))["rule"]:
        programs = rule.get("program", [])
        more = f", … ({len(programs)} in all)" if len(programs) > 4 else ""
        yield rule["name"], f"`{rule['id']}`", ", ".join(f"`{one}`" for one in programs[:4]) + more
