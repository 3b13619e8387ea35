"""A file of rules: TOML with a list of `[[rule]]`.

Errors say where they are and what to do.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import translate
from typing import Any, cast

from offtop.errors import OfftopError
from offtop.printable import printable

_LONGEST_SHOWN = 60
"""Characters of the file's text that an error quotes."""


class RuleFile:
    """Checks one file, part by part.

    Its text is untrusted: errors quote it shortened and escaped.
    """

    def __init__(self, text: str, name: str, remedy: str) -> None:
        """Parse `text`; `name` is for errors. Raises OfftopError for invalid TOML."""
        self.name, self._remedy = name, remedy
        self._lines = text.splitlines()
        try:
            self.file: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise OfftopError(f"{name} is not valid TOML: {printable(str(error))}. {remedy}") from None
        except (ValueError, RecursionError):
            raise OfftopError(f"{name}: a number is too long, or brackets are nested too deep. {remedy}") from None

    def rules(self) -> list[dict[str, Any]]:
        rules = self.file.get("rule")
        if not isinstance(rules, list) or not rules or not all(isinstance(one, dict) for one in cast(list[Any], rules)):
            raise self.wrong("the file", "there is no [[rule]]")
        return cast(list[dict[str, Any]], rules)

    def table(self, within: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
        table = within.get(key)
        if not isinstance(table, dict):
            raise self.wrong(where, f"`{key}` is missing or not a table")
        return cast(dict[str, Any], table)

    def patterns(self, table: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
        found = table.get(key)
        items = cast(list[Any], found) if isinstance(found, list) else []
        patterns = tuple(item for item in items if isinstance(item, str) and item)
        if not patterns or len(patterns) != len(items):
            raise self.wrong(where, f"`{key}` is not a list of names")
        return patterns

    def named_patterns(self, table: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
        """Return the patterns, with each `@NAME` replaced by the names it stands for."""
        return tuple(name for pattern in self.patterns(table, key, where) for name in self._named(pattern, where))

    def _named(self, pattern: str, where: str) -> tuple[str, ...]:
        if not pattern.startswith("@"):
            return (pattern,)
        names = self.table(self.file, "names", "the file")
        if pattern[1:] not in names:
            shown = ", ".join(map(short, names)) or "none"
            raise self.wrong(where, f"`{short(pattern)}` is unknown: [names] has {shown}")
        return self.patterns(names, pattern[1:], "[names]")

    def flag(self, table: Mapping[str, Any], key: str, where: str) -> bool:
        value = table.get(key, False)
        if not isinstance(value, bool):
            raise self.wrong(where, f"`{key}` is neither true nor false")
        return value

    def words(self, table: Mapping[str, Any], key: str, where: str, what: str) -> str:
        words = table.get(key)
        if not isinstance(words, str) or not words.strip():
            raise self.wrong(where, f"`{key}`, {what}, is missing")
        return words.strip()

    def known_keys(self, table: Mapping[str, Any], known: Iterable[str], where: str) -> None:
        for key in table:
            if key not in known:
                may_stand = ", ".join(sorted(known))
                raise self.wrong(where, f"`{short(key)}` is unknown here; known keys: {may_stand}")

    def rule_place(self, number: int) -> str:
        """Return `rule 7 (line 214)`; lines are counted here, since tomllib does not report them."""
        starts = [at for at, line in enumerate(self._lines, start=1) if line.split("#")[0].strip() == "[[rule]]"]
        return f"rule {number} (line {starts[number - 1]})" if number <= len(starts) else f"rule {number}"

    def wrong(self, where: str, what: str) -> OfftopError:
        if where.startswith("[") and where in self._lines:
            where = f"{where} (line {self._lines.index(where) + 1})"
        return OfftopError(f"{self.name}, {where}: {what}. {self._remedy}")


def short(text: str) -> str:
    return printable(text[:_LONGEST_SHOWN])


def compiled(patterns: Sequence[str]) -> re.Pattern[str]:
    """Return a regular expression that matches whole names with any of the patterns.

    Patterns have `*` and `?` as in a shell.
    """
    return re.compile("|".join(translate(pattern) for pattern in patterns))
