"""Categories: what a thread waits for, decided by rules over kernel function names.

The rules are data, in `offtop/categories.toml`, which explains their syntax: a renamed kernel function is one word in
one file. This module parses the text; it does not read the file.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from offtop.model.classify.rule_file import NamePatterns, RuleFile, has_wildcard
from offtop.model.values.table import Ints, Mask

OTHER = "other"
"""Category of a stack that no rule matches."""
POLL, CONNECT = "poll", "connect"
"""Categories of offtop/categories.toml: waits in poll or select, and for a connection."""
NEAR = 4
"""How many frames from the leaf the condition `near` covers."""
_LONGEST_TAIL = 12
"""The scheduler, the BPF program and its callers are within so many frames from the leaf."""
_LEAST_PERIODIC, _MOST_ODD = 3, 1 / 20
"""So many waits of about one length are periodic, if others are at most this share of the number and of the time."""

# Frames [first, end) from the leaf that each condition covers.
_COVERED_FRAMES = {"leaf": (0, 1), "caller": (1, 2), "near": (0, NEAR), "any": (0, None), "not": (0, None)}
_DESCRIPTIONS = {
    "leaf": "innermost function = {}",
    "caller": "called by {}",
    "near": f"one of the {NEAR} innermost functions = {{}}",
    "any": "below {}",
    "not": "not below {}",
}
_REMEDY = "Fix that line, or reinstall offtop to get its own file back."


class Condition(NamedTuple):
    """Holds if one of its patterns matches one of the frames that it covers.

    `not` holds if none does.
    """

    where: str
    """`leaf`, `caller`, `near`, `any` or `not`."""
    patterns: tuple[str, ...]
    matcher: NamePatterns

    def holds(self, names: Sequence[str]) -> bool:
        first, end = _COVERED_FRAMES[self.where]
        return self.matcher.match_any(names[first:end]) != (self.where == "not")

    def said(self, names: Sequence[str] = ()) -> str:
        """Describe the condition: the pattern that matched `names`, or all patterns."""
        first, end = _COVERED_FRAMES[self.where]
        seen = names[first:end] if self.where != "not" else ()
        matched = [pattern for name in seen for pattern in self.patterns if fnmatchcase(name, pattern)]
        return _DESCRIPTIONS[self.where].format(matched[0] if matched else " or ".join(self.patterns))


class Rule(NamedTuple):
    category: str
    conditions: tuple[Condition, ...]

    def matches(self, names: Sequence[str]) -> bool:
        return all(condition.holds(names) for condition in self.conditions)

    def said(self, names: Sequence[str] = ()) -> str:
        return ", ".join(condition.said(names) for condition in self.conditions)


@dataclass(frozen=True, slots=True)
class Categories:
    """The category rules in order, and the properties of each category."""

    ids: tuple[str, ...]
    """In the order of the file."""
    plain: Mapping[str, str]
    """id → its meaning for users without kernel knowledge."""
    idle: frozenset[str]
    """Categories that are always idle."""
    groups: Mapping[str, tuple[str, ...]]
    rules: tuple[Rule, ...]
    scheduler_entry: NamePatterns
    scheduler_tail: NamePatterns
    kernel_entry: NamePatterns

    def classify(self, kernel: Sequence[str]) -> str:
        """Return the category of a kernel stack (function names, leaf first, trimmed).

        It is `other` if no rule matches.
        """
        names = [bare(name) for name in kernel]
        return next((rule.category for rule in self.rules if names and rule.matches(names)), OTHER)

    def rule_of(self, kernel: Sequence[str], category: str) -> str:
        """Describe why a kernel stack is of `category`: the rule that `classify` applied, or the state of a socket."""
        names = [bare(name) for name in kernel]
        rule = next((rule for rule in self.rules if names and rule.matches(names)), None)
        if rule and (rule.category, category) == (POLL, CONNECT):
            return "it polls a socket that is being connected"
        return rule.said(names) if rule else "no rule"

    def rules_of(self, category: str) -> tuple[str, ...]:
        """Describe every rule that leads to `category`, in the order in which they are tried."""
        return tuple(rule.said() for rule in self.rules if rule.category == category)

    def tail_length(self, kernel: Sequence[str]) -> int:
        """Return how many frames at the leaf belong to the scheduler or to the tracer.

        It is 0 for a stack read from outside, where the kernel omits the scheduler, unless that begins with functions
        that only wait on behalf of their callers. The last entry into the scheduler counts, not the first: a stack
        rebuilt from outside may contain stale words between the two.
        """
        names = [bare(name) for name in kernel[:_LONGEST_TAIL]]
        entries = [depth for depth, name in enumerate(names) if self.scheduler_entry.match(name)]
        length = entries[-1] + 1 if entries else 0
        while length < len(names) and self.scheduler_tail.match(names[length]):
            length += 1
        return length

    def entry_length(self, kernel: Sequence[str]) -> int:
        """Return how many frames at the root of a trimmed stack are only entry code.

        The stack is leaf first. At least one frame is left: a thread preempted on its way back to user mode has no
        others.
        """
        length = 0
        while length < len(kernel) - 1 and self.kernel_entry.match(bare(kernel[-1 - length])):
            length += 1
        return length


def bare(name: str) -> str:
    """Return the function's name as in the source, without a compiler's suffix.

    `do_poll.constprop.0` is `do_poll`.
    """
    return name.partition(".")[0] or name


def is_periodic(counts: Ints, rows: int) -> Mask:
    """Return for each of `rows` histograms whether the waits are periodic. `counts`: see table.nonzero_lanes.

    They are if there are at least 3, and two adjacent lanes have at least 95 % of them and of their time; each wait is
    taken to be as long as the shortest of its lane. So a wait that the start of offtop has cut decides nothing, once
    there are 20.
    """
    row, lane, waits = counts.T
    found, is_first = np.zeros(rows, np.bool_), np.append(True, row[1:] != row[:-1])[: len(row)]
    first = np.flatnonzero(is_first)
    if len(first):
        is_next = np.append((row[1:] == row[:-1]) & (lane[1:] == lane[:-1] + 1), False)
        is_periodic = np.add.reduceat(waits, first) >= _LEAST_PERIODIC
        for amount in (waits.astype(np.float64), waits * 2.0**lane):
            pairs = amount + np.where(is_next, np.roll(amount, -1), 0)
            every = np.add.reduceat(amount, first)
            is_periodic &= np.maximum.reduceat(pairs, first) >= (1 - _MOST_ODD) * every
        found[row[first]] = is_periodic
    return found


def parse(text: str) -> Categories:
    """Parse the text of a `categories.toml`.

    Raises OfftopError, naming the line, for invalid TOML, for unknown keys and values, and for a rule or pattern that
    can never match because an earlier rule takes everything.
    """
    return _Reader(text, "categories.toml", _REMEDY).categories()


class _Reader(RuleFile):
    def categories(self) -> Categories:
        self.known_keys(
            self.file,
            {"scheduler_entry", "scheduler_tail", "kernel_entry", "names", "groups", "category", "rule"},
            "the file",
        )
        described = self.table(self.file, "category", "the file")
        plain: dict[str, str] = {}
        idle: set[str] = set()
        for category in described:
            where = f"[category.{category}]"
            table = self.table(described, category, where)
            self.known_keys(table, {"plain", "idle"}, where)
            plain[category] = self.words(table, "plain", where, "its plain words")
            if self.flag(table, "idle", where):
                idle.add(category)
        if OTHER not in plain:
            raise self.wrong("the file", f"there is no [category.{OTHER}]")
        rules = tuple(self._rule(number, table, plain) for number, table in enumerate(self.rules(), start=1))
        self._reject_dead_patterns(rules)
        return Categories(
            ids=tuple(plain),
            plain=MappingProxyType(plain),
            idle=frozenset(idle),
            groups=MappingProxyType(dict(self._groups(plain))),
            rules=rules,
            scheduler_entry=NamePatterns(self.patterns(self.file, "scheduler_entry", "the file")),
            scheduler_tail=NamePatterns(self.patterns(self.file, "scheduler_tail", "the file")),
            kernel_entry=NamePatterns(self.patterns(self.file, "kernel_entry", "the file")),
        )

    def _groups(self, known: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, ...]]]:
        groups = self.table(self.file, "groups", "the file")
        for name in groups:
            members = self.patterns(groups, name, "[groups]")
            for member in members:
                self._known_category(member, known, "[groups]")
            yield name, members

    def _rule(self, number: int, table: dict[str, Any], known: Mapping[str, str]) -> Rule:
        where = self.rule_place(number)
        self.known_keys(table, {"category", *_COVERED_FRAMES}, where)
        category = table.get("category")
        if not isinstance(category, str):
            raise self.wrong(where, "`category` is missing")
        self._known_category(category, known, where)
        conditions: list[Condition] = []
        for key in _COVERED_FRAMES:
            if key in table:
                patterns = self.named_patterns(table, key, where)
                conditions.append(Condition(key, patterns, NamePatterns(patterns)))
        if not any(condition.where != "not" for condition in conditions):
            raise self.wrong(where, "it has none of the conditions leaf, caller, near and any")
        return Rule(category, tuple(conditions))

    def _reject_dead_patterns(self, rules: Sequence[Rule]) -> None:
        """Reject dead patterns: all stacks that they match are taken by one earlier condition."""
        for number, rule in enumerate(rules, start=1):
            for condition in rule.conditions:
                if condition.where == "not":
                    continue
                for pattern in condition.patterns:
                    if condition.patterns.count(pattern) > 1:
                        raise self.wrong(self.rule_place(number), f"`{pattern}` is listed twice")
                    for earlier, taker in enumerate(rules[: number - 1], start=1):
                        if _shadows(taker, condition.where, pattern):
                            raise self.wrong(
                                self.rule_place(number),
                                f"`{pattern}` can never match: {self.rule_place(earlier)} "
                                f"(category {taker.category}) comes first and matches it",
                            )

    def _known_category(self, category: str, known: Mapping[str, str], where: str) -> None:
        if category not in known:
            raise self.wrong(where, f"there is no category `{category}`; there are {', '.join(known)}")


def _shadows(earlier: Rule, where: str, pattern: str) -> bool:
    """Return whether `earlier` matches every stack that has a frame `pattern` at `where`."""
    if len(earlier.conditions) != 1:
        return False
    taker = earlier.conditions[0]
    first, end = _COVERED_FRAMES[where]
    taker_first, taker_end = _COVERED_FRAMES[taker.where]
    sees_it = taker_first <= first and (taker_end is None or (end is not None and end <= taker_end))
    return sees_it and (pattern in taker.patterns or (not has_wildcard(pattern) and taker.matcher.match(pattern)))
