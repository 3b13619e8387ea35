"""Write settings into the user's file, whose comments and order stay.

tomlkit is imported here alone, because it takes as long to load as all that a start needs of the settings.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import tomlkit
from tomlkit import items
from tomlkit.container import Container

from offtop.errors import OfftopError
from offtop.person import Person, read_theirs, write_theirs
from offtop.printable import printable
from offtop.settings.config import KEYS, SETTINGS, Setting, flat, setting_of, table_of, toml_text

_HEAD = "# Settings of offtop. To see them all: offtop --show-config\n"


def written(text: str, changes: Mapping[str, object]) -> str:
    """Return the text of a settings file with `changes` applied.

    Comments, order and other lines stay. A setting that already has the value keeps its spelling; a missing one is
    added only if it differs from the default. Raises ValueError if the text is not TOML, OfftopError if a setting is
    not valid or the text cannot be changed without side effects.
    """
    present = dict(flat(tomllib.loads(text)))
    document: Any = tomlkit.parse(text)
    lines: list[str] = []
    key_lines: list[str] = []
    wanted = dict(present)
    for name, value in flat(changes):
        setting = setting_of(name, SETTINGS, "the changes")
        attributes = _attributes_of(setting, value)
        if attributes is None:  # such as one mute too many
            raise OfftopError(f"{name} is now not {setting.expected}, so nothing was written. Remove some of it")
        if _attributes_of(setting, present.get(name, setting.default)) == attributes:
            continue
        wanted[name] = value
        if name.startswith(KEYS) and isinstance(document.get("keys"), Mapping):
            _set_value(document["keys"], name.removeprefix(KEYS), value)
        elif name in present:
            _set_value(document, name, value)
        else:
            (key_lines if name.startswith(KEYS) else lines).append(f"{name.removeprefix(KEYS)} = {toml_text(value)}\n")
    result = _inserted(tomlkit.dumps(document), "".join(lines))
    if key_lines:
        result = f"{result.rstrip()}\n\n[keys]\n{''.join(key_lines)}".lstrip()
    if _parsed(result) != wanted:
        raise OfftopError("The settings cannot be merged into that file. Add them by hand: offtop --show-config")
    return result


def _attributes_of(setting: Setting, value: object) -> Mapping[str, Any] | None:
    """Return what a value sets, or None if it is not valid."""
    try:
        return setting.attributes(value)
    except ValueError:
        return None


def _parsed(text: str) -> dict[str, object] | None:
    """Return the settings in a text, or None if it is not TOML."""
    try:
        return dict(flat(tomllib.loads(text)))
    except tomllib.TOMLDecodeError:
        return None


def _set_value(table: Any, name: str, value: object) -> None:
    """Set a value in a tomlkit table.

    Lists are changed item by item, because items may have comments.
    """
    old: Any = table.get(name)
    if isinstance(old, list) and isinstance(value, list):
        old_items, new_items = cast(list[object], [*old]), cast(list[object], value)
        for removed in (one for one in old_items if one not in new_items):
            cast(Any, old).remove(removed)
        for added in (one for one in new_items if one not in old_items):
            cast(Any, old).append(tomlkit.value(toml_text(added)))
        if old == new_items:
            return
    table[name] = tomlkit.value(toml_text(cast(object, value)))


def _inserted(text: str, lines: str) -> str:
    """Return `text` with `lines` inserted before the first table and its comments."""
    if not lines:
        return text
    body = tomlkit.parse(text).body
    end = next((at for at, (_, item) in enumerate(body) if isinstance(item, items.Table | items.AoT)), None)
    head = Container(parsed=True)
    for at, (key, item) in enumerate(body[:end]):
        if end is None or not all(isinstance(below, items.Comment) for _, below in body[at:end]):
            head.append(key, item)
    above = head.as_string()
    if not text.startswith(above):  # cannot be split there; the first line is before all tables
        above = ""
    settings, end_of_line = above.rstrip("\r\n"), "\r\n" if "\r\n" in text else "\n"
    gap = above[len(settings) :].removeprefix("\r").removeprefix("\n")
    new = lines.replace("\n", end_of_line)
    return f"{settings}{end_of_line if settings else ''}{new}{gap}{text[len(above) :]}"


def save(path: Path, person: Person, changes: Mapping[str, object]) -> str:
    """Write settings to a file, which may not exist yet, and return a message that says so.

    `changes` must hold all settings, as `toml_of` returns them, because a new file hides the system-wide one. Raises
    OfftopError and changes nothing if the file cannot be written; UsageError if it is not TOML.
    """
    content = read_theirs(path, person)
    text = _HEAD
    if content is not None:
        table_of(path, content)
        text = content.decode()
    write_theirs(path, person, written(text, changes))
    return f"written to {printable(str(path))}"
