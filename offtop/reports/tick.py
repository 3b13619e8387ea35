"""A tick as batch mode prints it: what of its waits passes the filter, and what is in progress at its end."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from offtop.model.aggregate.account import Account, accounts
from offtop.model.aggregate.filter import Filter
from offtop.model.classify.cause_finder import Diagnoser
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.snapshot import Snapshot
from offtop.model.values.stack import PLACELESS
from offtop.model.windows.breakdown import Cut, Idle, Shares, cut_of
from offtop.model.windows.history import Kept
from offtop.model.windows.stuck import NOTHING_STUCK, Stuck, stuck


class Tick(NamedTuple):
    """What of a tick passes the filter."""

    kept: Kept
    """All of it."""
    filter: Filter
    shares: Shares
    cut: Cut
    left_out_ns: int = 0
    """Time that does not pass."""
    stuck: Stuck = NOTHING_STUCK
    """The waits in progress that pass."""
    accounts: Mapping[ThreadKey, Account] = MappingProxyType({})
    """Of each thread that did anything."""


def in_progress(snapshot: Snapshot, idle: Idle, least_ns: int) -> Stuck:
    """The waits in progress at that moment that have a place, and are so old."""
    placed = [one for one in snapshot.waiting.values() if one.site.kernel not in PLACELESS]
    return stuck(placed, snapshot.at_ns, snapshot.book, idle, least_ns)


def passing(
    kept: Kept, chosen: Filter, diagnoser: Diagnoser, blocked: Stuck = NOTHING_STUCK, accounted: bool = False
) -> Tick:
    """What of a tick passes: who is not known yet, or has no name yet, does not match."""
    every, book = kept.shares, kept.window.book
    each: Mapping[ThreadKey, Account] = {}
    if accounted:
        each = accounts([kept.window]).by_thread()
    if not chosen.chooses_waits:
        return Tick(kept, chosen, every, kept.cut, stuck=blocked, accounts=each)
    some = every.of(chosen.mask(every, book, diagnoser))
    left_out_ns = int(every.total_ns.sum()) - int(some.total_ns.sum())
    if blocked.shares is not None:
        blocked = blocked.of(chosen.mask(blocked.shares, book, diagnoser))
    return Tick(kept, chosen, some, cut_of(some, kept.span_ns), left_out_ns, blocked, each)
