"""Totals: how the waiting time of a span divides into what is shown, and what is not."""

from collections.abc import Iterable
from dataclasses import dataclass

from offtop.model.aggregate.selection import Parts
from offtop.model.classify.categories import OTHER
from offtop.model.viewmodel.scene import Scene, sums_of
from offtop.model.viewmodel.view import View
from offtop.model.windows.breakdown import FILTERED, NO_PART, RUN_QUEUE, Part, Scope, by_category, total


@dataclass(frozen=True, slots=True)
class Totals:
    shown: Part
    """All waits that are neither muted nor idle and hidden."""
    ready_ns: int
    """Run-queue part of `shown`."""
    other_ns: int
    """Part of `shown` that no category rule matches."""
    hidden_ns: int
    """Idle and hidden."""
    standing_ns: int
    """Part of `hidden_ns` that is idle only because it is standing."""
    muted_ns: int
    filtered_ns: int
    """Excluded by --max and --state."""
    passing_ns: int
    """Part of `shown` that passes the user's filter."""
    idle_passing_ns: int
    """Idle time that passes it and is hidden."""


def totals_of(scene: Scene) -> Totals:
    view, breakdown = scene.view, scene.breakdown
    unmuted = sums_of(one.unmuted for one in scene.taken)
    parts = _by_category(unmuted, view.idle_shown)
    all_ns = total(unmuted.values()).total_ns
    shown = total(parts.values())
    filtered_ns = total(part for leaf, part in unmuted.items() if leaf.category == FILTERED).total_ns
    return Totals(
        shown=shown,
        ready_ns=parts.get(RUN_QUEUE, NO_PART).total_ns,
        other_ns=parts.get(OTHER, NO_PART).total_ns,
        hidden_ns=all_ns - shown.total_ns - filtered_ns,
        standing_ns=0 if view.idle_shown else _standing(unmuted).total_ns,
        muted_ns=sum(tick.muted_ns for tick in scene.taken),
        filtered_ns=filtered_ns,
        passing_ns=total(by_category(breakdown, view.idle_shown, filtered_shown=False).values()).total_ns,
        idle_passing_ns=0 if view.idle_shown else _idle(breakdown.categories).total_ns,
    )


def _by_category(parts: Parts, idle_shown: bool) -> dict[str, Part]:
    """Return category → time, without filtered and optionally without idle time."""
    sums: dict[str, Part] = {}
    for leaf, part in parts.items():
        if (idle_shown or not leaf.idle) and leaf.category != FILTERED:
            was = sums.get(leaf.category)
            sums[leaf.category] = part if was is None else was.plus(part)
    return sums


def _standing(parts: Parts) -> Part:
    return total(part for leaf, part in parts.items() if leaf.standing)


def _idle(parts: Parts) -> Part:
    return total(part for leaf, part in parts.items() if leaf.idle)


def in_category(parts: Parts, view: View) -> Part:
    """Return the time of the view's category in `parts`."""
    return total(parts_in(parts, view.category, view.idle_shown))


def parts_in(parts: Parts, category: str, idle_shown: bool, blocked: bool = False) -> Iterable[Part]:
    """Return the times of `category`; `blocked`: without run-queue time."""
    scope = Scope(category, idle=idle_shown, blocked=blocked)
    return (part for leaf, part in parts.items() if scope.holds(leaf))
