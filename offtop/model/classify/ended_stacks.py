"""User stacks for waits in progress whose own is not known yet, from ended waits at the same place.

The user stack of a wait in progress is read some ticks after it began. A thread that waits again and again would often
have none. It is taken from its ended waits at the same kernel stack for the same object, if these have only one stack,
and one of them was at least half as long.
"""

from typing import NamedTuple

import numpy as np

from offtop.model.values.catalog import Catalog
from offtop.model.values.stack import FIRST_STACK, NO_STACK
from offtop.model.values.table import Ints, Mask, distinct
from offtop.model.values.waits import KERNEL, USER, WAKE, WaitList
from offtop.model.values.wake import Object
from offtop.model.windows.breakdown import Shares
from offtop.model.windows.stuck import Stuck
from offtop.units import NS_PER_S

_KEPT_NS = 60 * NS_PER_S
_LEAST_NS = NS_PER_S // 4
"""Shorter waits are not kept, because a wait in progress of 0.5 s or more is not like them."""
_MOST = 4096
_LOCK = "lock"


class _Ended(NamedTuple):
    user: int
    """Stack id; NO_STACK if there are several."""
    longest_ns: int
    at_ns: int
    """When the last one ended."""


class EndedStacks:
    """Ended waits of the tick, and those for locks in the last minute. Not thread-safe."""

    def __init__(self) -> None:
        self._at_locks: dict[tuple[int, int, int, Object], _Ended] = {}
        """By PID, TID, kernel stack and object."""

    def in_place_of_unknown(self, blocked: Stuck, shares: Shares, every: Shares, catalog: Catalog) -> Ints:
        """Return the sites of the waits `blocked`, whose time is `shares`. `every`: the time in the tick."""
        self._keep(every, catalog, blocked.at_ns)
        ages_ns = WaitList.of(blocked.waits).ages_ns(blocked.at_ns)
        idle, is_lock = _of_leaves(shares)
        found = _with_stacks_of_tick(shares.ids, ages_ns, ~idle, every, catalog)
        unknown = (shares.ids[:, USER] == NO_STACK) & (shares.ids[:, WAKE] != 0) & is_lock & ~idle
        rows: list[int] = np.flatnonzero(unknown).tolist()
        for row in rows:
            pid, tid, kernel, user, wake = found[row].tolist()
            ended = self._at_locks.get((pid, tid, kernel, catalog.wake(wake).object))
            if user == NO_STACK and ended and 2 * ended.longest_ns >= ages_ns[row]:
                found[row, USER] = ended.user
        return found

    def _keep(self, every: Shares, catalog: Catalog, at_ns: int) -> None:
        self._at_locks = {key: one for key, one in self._at_locks.items() if 0 <= at_ns - one.at_ns < _KEPT_NS}
        idle, is_lock = _of_leaves(every)
        ids = every.ids
        is_kept = (every.waits > 0) & (every.max_ns >= _LEAST_NS) & is_lock & ~idle
        is_kept &= (ids[:, USER] >= FIRST_STACK) & (ids[:, WAKE] != 0)
        rows: list[int] = np.flatnonzero(is_kept).tolist()
        for row in rows[:_MOST]:
            pid, tid, kernel, user, wake = ids[row].tolist()
            key = pid, tid, kernel, catalog.wake(wake).object
            before = self._at_locks.get(key, _Ended(user, 0, at_ns))
            longest_ns = max(before.longest_ns, int(every.max_ns[row]))
            self._at_locks[key] = _Ended(user if before.user == user else NO_STACK, longest_ns, at_ns)


def _of_leaves(shares: Shares) -> tuple[Mask, Mask]:
    """Return for each row whether it is idle, and whether it is a wait for a lock."""
    idle, is_lock = ([one.idle for one in shares.leaves], [one.category == _LOCK for one in shares.leaves])
    return np.array(idle, np.bool_)[shares.leaf], np.array(is_lock, np.bool_)[shares.leaf]


def _with_stacks_of_tick(ids: Ints, ages_ns: Ints, wanted: Mask, every: Shares, catalog: Catalog) -> Ints:
    """Return the sites `ids`, those that are `wanted` with user stacks from waits that ended in the tick."""
    without = np.flatnonzero(
        (ids[:, USER] == NO_STACK) & (ids[:, KERNEL] >= FIRST_STACK) & (ids[:, WAKE] != 0) & wanted
    )
    ended = np.flatnonzero((every.waits > 0) & (every.ids[:, USER] >= FIRST_STACK) & (every.ids[:, WAKE] != 0))
    ended = ended[np.isin(every.ids[ended, 1], ids[without, 1])]
    if not len(ended):
        return ids.copy()
    places = np.concatenate((ids[without], every.ids[ended]))[:, [0, 1, KERNEL, WAKE]]
    places[:, 3] = _objects(places[:, 3], catalog)
    _, group = distinct(places)
    of_waits, of_ended = group[: len(without)], group[len(without) :]
    users, least, most, longest_ns = every.ids[ended, USER], *np.zeros((3, group.max() + 1), np.int64)
    least[:] = np.iinfo(np.int64).max
    np.minimum.at(least, of_ended, users)
    np.maximum.at(most, of_ended, users)
    np.maximum.at(longest_ns, of_ended, every.max_ns[ended])
    is_known = (places[: len(without), 3] >= 0) & (least == most)[of_waits]
    is_known &= 2 * longest_ns[of_waits] >= ages_ns[without]
    found = ids.copy()
    found[without[is_known], USER] = most[of_waits[is_known]]
    return found


def _objects(wakes: Ints, catalog: Catalog) -> Ints:
    """Return a number for the object of each wake (id): equal for equal objects, -1 if unknown."""
    once, which = np.unique(wakes, return_inverse=True)
    numbers: dict[Object, int] = {}
    objects = (catalog.wake(one).object for one in once.tolist())
    of_once = [numbers.setdefault(one, len(numbers)) if one.kind else -1 for one in objects]
    return np.array(of_once, np.int64)[which]
