"""PlaceShare: how much of a row's time is at one place; a row that waits in several places shows the largest.

Sites with the same cause are one place, and so are those without a cause that have the same kernel function and the
same innermost function of the program. All time is at some place: a row's shares add up to it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from offtop.model.aggregate import location
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.values.catalog import Catalog
from offtop.model.values.stack import FILTERED, NO_STACK, QUEUED, SHORT
from offtop.model.values.table import Ints
from offtop.model.windows.breakdown import Shares, sites_of
from offtop.units import average, few, percent

_LEAST_PCT, _LEAST_WAITING = 10.0, 0.005
"""Smaller places, in percent of the row or in average waiting threads, do not make a row one of several places."""
_MOST_PCT = 50.0
"""The only place that is large enough stands for the row if it has more of it."""
_NAMES: Mapping[int, str] = {
    SHORT: "short waits",
    FILTERED: "filtered waits",
    QUEUED: "a CPU",
    NO_STACK: "(no stack)",
}
"""Kernel stack → what stands for it, if no cause does."""
_NOT_PLACES = frozenset((_NAMES[SHORT], _NAMES[FILTERED], _NAMES[NO_STACK]))
"""If most of a row's time is one of these, there is no place that stands for the row."""
_MOST_KNOWN = 65_536
SEPARATORS = (" · ", ", ")
"""Between two places; the second one is ASCII."""


Sites = list[tuple[tuple[int, ...], int]]
"""Rows of breakdown.by_site, each with its ns."""


class PlaceShare(NamedTuple):
    name: str
    """Cause, or else kernel function and function of the program. Raw."""
    total_ns: int


class PlaceNames:
    """Names places; caches what it looked up while functions keep their names. Not thread-safe."""

    def __init__(self, cause_finder: CauseFinder) -> None:
        self._cause_finder = cause_finder
        self._known: dict[tuple[int, int], str] = {}
        self._known_by: tuple[object, ...] = ()

    def shares(self, sites: Sites, catalog: Catalog) -> tuple[PlaceShare, ...]:
        """Return the places of `sites`, most time first."""
        sums: dict[str, int] = {}
        for name, (_, ns) in zip(self.names_of([site for site, _ in sites], catalog), sites, strict=True):
            sums[name] = sums.get(name, 0) + ns
        ordered = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
        return tuple(PlaceShare(name, ns) for name, ns in ordered if ns > 0)

    def names_of(self, sites: Sequence[tuple[int, ...]], catalog: Catalog) -> list[str]:
        """Return the place of each row of breakdown.sites_of: its cause, or else the functions. Raw."""
        self._drop_outdated(catalog)
        rules = self._cause_finder.rules_at(sites, catalog)
        return [
            rule.name if rule else self._name_of(site[0], site[1], catalog)
            for site, rule in zip(sites, rules, strict=True)
        ]

    def _name_of(self, kernel: int, user: int, catalog: Catalog) -> str:
        known = self._known.get((kernel, user))
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[kernel, user] = self._found_name(kernel, user, catalog)
        return known

    def _found_name(self, kernel: int, user: int, catalog: Catalog) -> str:
        if kernel in _NAMES:
            return _NAMES[kernel]
        names = self._cause_finder.names
        leaf = location.kernel_names(catalog, kernel, names)[:1] or [catalog.stack(kernel).category]
        own = location.own_function(catalog, user, names)
        return " < ".join([*leaf, *([own] if own else [])])

    def _drop_outdated(self, catalog: Catalog) -> None:
        current = id(catalog), self._cause_finder.version
        if current != self._known_by:
            self._known_by = current
            self._known.clear()


def sites_of_rows(some: Shares, codes: Ints, row_of: Mapping[int, int]) -> dict[int, Sites]:
    """Return row → its sites.

    `codes` has a PID, or the code of a thread, for each row of `some`; `row_of` has the row of each that is wanted.
    """
    wanted = np.array(sorted(row_of), np.int64)
    chosen = np.isin(codes, wanted)
    some = some.of(chosen)
    numbers = np.array([row_of[code] for code in wanted.tolist()], np.int64)
    sites, which = sites_of(some)
    pairs, at = np.unique(numbers[np.searchsorted(wanted, codes[chosen])] * len(sites) + which, return_inverse=True)
    sums = np.zeros(len(pairs), np.int64)
    np.add.at(sums, at, some.total_ns)
    found: dict[int, Sites] = {}
    each: list[tuple[int, int]] = np.column_stack((pairs, sums)).tolist()
    for pair, ns in each:
        found.setdefault(pair // len(sites), []).append((sites[pair % len(sites)], ns))
    return found


def in_words(shares: Iterable[PlaceShare], span_ns: int, separator: str) -> str:
    """Return `11 the WAL flush · 5 a row lock`, in average waiting threads. Raw.

    It is empty if one place has most of the time, and stands for the row. `shares`: most time first, as of
    PlaceNames.shares.
    """
    some = [*shares]
    whole_ns = sum(one.total_ns for one in some)
    large = [
        (waiting, one.name)
        for number, one in enumerate(some)
        if (not number or percent(one.total_ns, whole_ns) >= _LEAST_PCT)
        and (waiting := average(one.total_ns, span_ns)) >= _LEAST_WAITING
    ]
    if some and len(large) < 2 and percent(some[0].total_ns, whole_ns) > _MOST_PCT:
        return some[0].name if some[0].name in _NOT_PLACES else ""
    return separator.join(f"{few(waiting)} {name}" for waiting, name in large)
