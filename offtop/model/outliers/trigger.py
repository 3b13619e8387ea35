"""Trigger: which waits or ticks are outliers, such as `lock.max > 500ms`.

The syntax is WHAT.METRIC OP VALUE [for TIME]. WHAT is a category, a group, or `any`: everything that is not idle.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import NamedTuple

from offtop.model.values.disks import DISK
from offtop.model.values.files import FILE
from offtop.model.values.outlier import AUTO
from offtop.printable import printable
from offtop.units import duration, parse_duration, three

ANY = "any"
MAX, NOW, WAITING, EVENTS, HARM = "max", "now", "waiting", "events", "harm"
IO: Mapping[str, str] = MappingProxyType({"file": FILE, "request": DISK})
"""WHAT of triggers that judge file operations or requests to disks, while these are counted → their mode."""
SUSPECT = "suspect"
"""The trigger that reports each new suspect."""
_PERCENTS: Mapping[str, float] = MappingProxyType({"p50": 50.0, "p90": 90.0, "p99": 99.0, "p999": 99.9})
METRICS: Mapping[str, str] = MappingProxyType(
    {
        MAX: "a wait, call or request that is, or was, longer than the value",
        NOW: "a wait, call or request in progress that is older than the value",
        **dict.fromkeys(_PERCENTS, "the percentile of a tick's waits, calls or requests"),
        WAITING: "average waiting threads over a tick",
        EVENTS: "waits, calls or requests per second",
        HARM: "threads that wait for a new suspect, weighed; only of the trigger `suspect`",
    }
)
_ALIASES: Mapping[str, str] = MappingProxyType(
    {"runq": "run-queue", "blocked": WAITING, "ev/s": EVENTS, "p99.9": "p999"}
)
_FORM = re.compile(
    r"(?:comm:(?P<comm>\S+)\s+)?(?P<what>[\w-]+)\.(?P<metric>[\w./]+)\s*(?P<op>>=?)\s*(?P<value>[\d.]+\s*[a-zµ]*)"
    r"(?:\s+for\s+(?P<time>[\d.]+\s*[a-z]+))?",
    re.ASCII,
)
_EXAMPLES = (
    "'lock.max > 500ms', 'file.max > 1s', 'comm:mysqld disk.p99 > 50ms for 3s', 'any.now > 5s', suspect, or auto"
)
_LONGEST = 200
_LEAST_NS = 1000


class TriggerError(ValueError):
    """A trigger is not valid. The message says what is wrong, and what would be right."""


class Trigger(NamedTuple):
    text: str
    """In normal form, for display."""
    program: str
    """A pattern; empty: any."""
    categories: frozenset[str] | None
    """None: any that is not idle."""
    metric: str
    value: float
    """ns, threads, or a rate per second."""
    for_ns: int = 0
    """How long the condition must hold; 0: one tick, or one wait."""
    io: str = ""
    """One of disks.LIST_MODES: it judges file operations or requests to disks, not waits."""

    @property
    def is_of_waits(self) -> bool:
        """Whether it judges single waits, not ticks."""
        return self.metric in (MAX, NOW) and not self.io

    @property
    def judges_each(self) -> bool:
        """Whether each file operation or request is judged by itself."""
        return bool(self.io) and self.metric in (MAX, NOW)

    @property
    def percent(self) -> float:
        """0: not a percentile."""
        return _PERCENTS.get(self.metric, 0.0)

    @property
    def with_idle(self) -> bool:
        """A named category includes its idle waits."""
        return self.categories is not None

    def names(self, program: str) -> bool:
        return not self.program or fnmatchcase(program, self.program)

    def is_about(self, program: str, category: str) -> bool:
        return self.names(program) and (self.categories is None or category in self.categories)


def value_text(metric: str, value: float) -> str:
    """Format a value of a metric: `1.84s`, `12.0 threads`, `950/s`."""
    if metric in (WAITING, HARM):
        return f"{three(value)} threads"
    return f"{three(value)}/s" if metric == EVENTS else duration(round(value)) or "0"


def parse(text: str, categories: Collection[str], groups: Mapping[str, Collection[str]]) -> Trigger | None:
    """Parse a trigger; None for `auto`. Raises TriggerError."""
    normalized = " ".join(text.split())
    if normalized == AUTO:
        return None
    if normalized == SUSPECT:
        return Trigger(SUSPECT, "", None, HARM, 0.0)
    found = _FORM.fullmatch(normalized) if len(normalized) <= _LONGEST else None
    shown = printable(normalized[:_LONGEST])
    if found is None:
        raise TriggerError(f"'{shown}' is not a trigger. Try {_EXAMPLES}")
    metric = _ALIASES.get(found["metric"], found["metric"])
    if metric not in METRICS or metric == HARM:
        known = ", ".join(one for one in METRICS if one != HARM)
        raise TriggerError(f"'{shown}': unknown metric {printable(found['metric'])}. Known: {known}")
    what = _ALIASES.get(found["what"], found["what"])
    if what != ANY and what not in IO and what not in groups and what not in categories:
        near = ", ".join(sorted({*groups, *categories, *IO}))
        raise TriggerError(f"'{shown}': unknown category {printable(what)}. Known: any, {near}")
    if what in IO and metric == WAITING:
        raise TriggerError(f"'{shown}': only waits have that metric. Use max, now, p99 or events")
    those = None if what == ANY else frozenset(groups.get(what, (what,)))
    for_ns = _time(found["time"], shown) if found["time"] else 0
    if for_ns and metric in (MAX, NOW):
        raise TriggerError(f"'{shown}': each wait is judged by itself. Leave out 'for', or use p99 or waiting")
    value = _value(metric, found["value"], shown)
    return Trigger(normalized, found["comm"] or "", those, metric, value, for_ns, IO.get(what, ""))


def io_modes(texts: Iterable[str]) -> set[str]:
    """Return the modes in which triggers judge, of disks.LIST_MODES; what is no trigger is ignored."""
    found = (_FORM.fullmatch(" ".join(text.split())) for text in texts)
    return {IO[one["what"]] for one in found if one and one["what"] in IO}


def _value(metric: str, text: str, shown: str) -> float:
    if metric in (WAITING, EVENTS):
        try:
            return float(text)
        except ValueError:
            raise TriggerError(f"'{shown}': {metric} is a number, such as {metric} > 4") from None
    if not text.strip()[-1:].isalpha():
        raise TriggerError(f"'{shown}': {printable(text)} needs a unit, such as {printable(text)}ms")
    value_ns = _time(text, shown)
    if value_ns < _LEAST_NS:
        raise TriggerError(f"'{shown}': waits are at least 1us long. Use a longer time")
    return value_ns


def _time(text: str, shown: str) -> int:
    try:
        return parse_duration(text.replace(" ", ""), 1)
    except ValueError:
        raise TriggerError(f"'{shown}': '{printable(text)}' is not a duration. Try 500ms, 3s or 2m") from None
