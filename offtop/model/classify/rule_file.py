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
_WILDCARDS = frozenset("*?[")


class RuleFile:
    """Checks one file, part by part.

    Its text is untrusted: errors quote it shortened and escaped.
    """

    def __init__(self, text: str, name: str, remedy: str) -> None:
        """Parse `text`; `name` is for errors. Raises OfftopError for invalid TOML."""
        self.name, self._remedy = name, remedy
        self._lines = text.splitlines()
        self._rule_lines = [
            number for number, line in enumerate(self._lines, start=1) if line.partition("#")[0].strip() == "[[rule]]"
        ]
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
        lines = self._rule_lines
        return f"rule {number} (line {lines[number - 1]})" if number <= len(lines) else f"rule {number}"

    def wrong(self, where: str, what: str) -> OfftopError:
        if where.startswith("[") and where in self._lines:
            where = f"{where} (line {self._lines.index(where) + 1})"
        return OfftopError(f"{self.name}, {where}: {what}. {self._remedy}")


def short(text: str) -> str:
    return printable(text[:_LONGEST_SHOWN])


class NamePatterns:
    """Matches whole names. Patterns have `*`, `?` and `[...]` as in a shell; most have none."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._literal = frozenset(pattern for pattern in patterns if not has_wildcard(pattern))
        wild = [translate(pattern) for pattern in patterns if has_wildcard(pattern)]
        self._wild = re.compile("|".join(wild)) if wild else None

    def match(self, name: str) -> bool:
        return name in self._literal or (self._wild is not None and bool(self._wild.match(name)))

    def match_any(self, names: Iterable[str]) -> bool:
        return not self._literal.isdisjoint(names) or (self._wild is not None and any(map(self._wild.match, names)))


def has_wildcard(pattern: str) -> bool:
    return not _WILDCARDS.isdisjoint(pattern)
