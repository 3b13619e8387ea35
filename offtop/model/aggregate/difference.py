"""Changes between two measurements: by category, cause, process and place.

Numbers are average waiting threads, so that spans of different length can be compared. Processes are matched by name,
since their pids change when they restart.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from offtop.model.aggregate import location
from offtop.model.aggregate.row_names import process_name
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.values import histogram as log2
from offtop.model.values import stack
from offtop.model.values.catalog import Catalog
from offtop.model.windows.breakdown import ALL, NO_PART, Part, PartTuple, Scope, Shares, by_site

PARTS = ("categories", "reasons", "processes", "places")
"""What changes can be grouped by."""


class Measured(NamedTuple):
    """One of the two measurements, grouped in every way that is compared."""

    span_ns: int
    parts: Mapping[str, Mapping[str, Part]]
    """One of PARTS → raw name → its time."""

    @property
    def waiting(self) -> float:
        return _waiting(sum(part.total_ns for part in self.parts["categories"].values()), self.span_ns)


class Change(NamedTuple):
    name: str
    """Raw."""
    before: Part
    after: Part
    waiting_before: float
    waiting_after: float

    @property
    def change(self) -> float:
        """In average waiting threads."""
        return self.waiting_after - self.waiting_before

    @property
    def p99_ns(self) -> tuple[int, int]:
        """Before and after: upper bounds for waits from the minimum up."""
        before, after = (log2.percentile_ns(one.histogram, 99, one.max_ns) for one in (self.before, self.after))
        return before, after

    @property
    def is_new(self) -> bool:
        return not self.before.total_ns

    @property
    def is_gone(self) -> bool:
        return not self.after.total_ns


def measured(some: Shares, span_ns: int, catalog: Catalog, cause_finder: CauseFinder, idle: bool) -> Measured:
    """Group some waits for the comparison; `idle`: include idle waits."""
    scope = Scope(ALL, idle=idle)
    chosen, table = some.in_scope(scope), by_site(some, scope)
    reasons = dict(zip(table, cause_finder.reasons_at([*table], catalog), strict=True))
    categories = [leaf.category for leaf in chosen.leaves]
    return Measured(
        span_ns,
        {
            "categories": _summed((categories[leaf], part) for leaf, part in chosen.by(chosen.leaf)),
            "reasons": _summed((reasons[site].name, part) for site, part in table.items()),
            "processes": _summed((process_name(pid, catalog), part) for pid, part in chosen.by(chosen.ids[:, 0])),
            "places": _summed(
                (_place(site, reasons[site].name, catalog, cause_finder), part) for site, part in table.items()
            ),
        },
    )


def _place(site: tuple[int, ...], reason: str, catalog: Catalog, cause_finder: CauseFinder) -> str:
    kernel, user, _, pid = site
    process = process_name(pid, catalog)
    if kernel == stack.QUEUED or kernel in stack.PLACELESS:
        return f"{process}: {reason}"
    return f"{process}: {location.in_short(catalog, kernel, user, cause_finder.names)}"


def _summed(parts: Iterable[tuple[str, PartTuple]]) -> dict[str, Part]:
    sums: dict[str, Part] = {}
    for name, part in parts:
        sums[name] = sums.get(name, NO_PART).plus(Part(*part))
    return sums


def changes(before: Measured, after: Measured, by: str) -> list[Change]:
    """Return the changes, largest first in either direction. `by` is one of PARTS."""
    was, now = before.parts[by], after.parts[by]
    every = [
        Change(
            name,
            was.get(name, NO_PART),
            now.get(name, NO_PART),
            _waiting(was.get(name, NO_PART).total_ns, before.span_ns),
            _waiting(now.get(name, NO_PART).total_ns, after.span_ns),
        )
        for name in {**was, **now}
    ]
    return sorted(
        (one for one in every if not (one.is_new and one.is_gone)), key=lambda one: (-abs(one.change), one.name)
    )


def _waiting(ns: int, span_ns: int) -> float:
    return ns / span_ns if span_ns else 0.0
