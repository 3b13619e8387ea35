"""Weights of waits, by which suspects and standing waits are found: the contents of `offtop/suspects.toml`.

This module parses the text; it does not read the file.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from offtop.model.classify.causes import Rule
from offtop.model.classify.rule_file import RuleFile
from offtop.model.windows.breakdown import SLEEP
from offtop.printable import printable
from offtop.units import parse_duration


@dataclass(frozen=True, slots=True)
class Weights:
    """The contents of suspects.toml."""

    harm: float
    most: int
    least_age_ns: int
    ticks: int
    standing_ns: int
    settle_ns: int
    behind: Mapping[str, float]
    alone: Mapping[str, float]
    cause: Mapping[str, float]
    via: Mapping[str, float]
    end: Mapping[str, float]
    prompt: Mapping[str, float]
    normal: frozenset[str]

    def of(self, category: str, rule: Rule | None, is_known: bool) -> float:
        """Return the weight of a wait. `is_known`: whether it is known which thread or process must act."""
        kind = SLEEP if rule and rule.is_sleep else category
        own = (self.behind if is_known else self.alone).get(kind, 0.0)
        return max(own, self.cause.get(rule.general.id, 0.0)) if rule else own


def parse(text: str) -> Weights:
    """Parse the text of a `suspects.toml`. Raises OfftopError, naming what is wrong."""
    return _Reader(text, "suspects.toml", "Fix that line, or reinstall offtop to get its own file back.").weights()


class _Reader(RuleFile):
    def weights(self) -> Weights:
        self.known_keys(self.file, {"show", "behind", "alone", "cause", "via", "end", "prompt", "normal"}, "the file")
        show, where = self.table(self.file, "show", "the file"), "[show]"
        self.known_keys(show, {"harm", "most", "least_age", "ticks", "standing", "settle"}, where)
        return Weights(
            self._number(show, "harm", where),
            int(self._number(show, "most", where)),
            self._time(show, "least_age", where),
            int(self._number(show, "ticks", where)),
            self._time(show, "standing", where),
            self._time(show, "settle", where),
            self._numbers("behind"),
            self._numbers("alone"),
            self._numbers("cause"),
            self._numbers("via"),
            self._numbers("end"),
            self._numbers("prompt"),
            frozenset(self.patterns(self.table(self.file, "normal", "the file"), "categories", "[normal]")),
        )

    def _numbers(self, name: str) -> Mapping[str, float]:
        table = self.table(self.file, name, "the file")
        return {key: self._number(table, key, f"[{name}]") for key in table}

    def _number(self, table: Mapping[str, Any], key: str, where: str) -> float:
        value = table.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise self.wrong(where, f"`{printable(key)}` is not a number from 0 up")
        return float(value)

    def _time(self, table: Mapping[str, Any], key: str, where: str) -> int:
        try:
            return parse_duration(self.words(table, key, where, "a duration"), 1)
        except ValueError:
            raise self.wrong(where, f"`{key}` is not a duration such as 1s") from None
