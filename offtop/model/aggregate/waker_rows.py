"""Time of waits by waker, and by object waited on."""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, TypeVar

import numpy as np

from offtop.model.classify.causes import Reason
from offtop.model.values import stack
from offtop.model.values.catalog import Catalog, SiteKey
from offtop.model.values.snapshot import EXITED
from offtop.model.values.table import Ints
from offtop.model.values.wake import RESERVED, THREAD, Object
from offtop.model.windows.breakdown import NO_PART, RUN_QUEUE, Part, PartTuple, Scope, Shares
from offtop.model.windows.stuck import Age


class WakerKey(NamedTuple):
    """A waker: a thread, all threads of a process, or something that is no thread."""

    name: str
    """As Waker.label; the name of the process if `tid` is 0. Raw."""
    pid: int = 0
    """0: not a thread."""
    tid: int = 0
    """0: all threads of the process."""


BELOW = WakerKey("(waits below the minimum)")
"""Their wakers are not gathered."""
BELOW_OBJECT = Object(name="(waits below the minimum)")
EXITED_WAKER = WakerKey("(exited)")
"""Wakers of threads that exited are not kept."""
EXITED_OBJECT = Object(name="(exited)")
WITHOUT_WAKE = _BELOW, _EXITED = -1, -2
"""Stand for the wake of a wait that has none."""
G = TypeVar("G", WakerKey, Object, Reason)
KeyOf = Callable[..., G]
"""From the id of a wake, or what stands for one, or a row of breakdown.sites_of, to the key that its time is counted
under."""


def waker_of(catalog: Catalog, of_threads: bool) -> KeyOf[WakerKey]:
    """Group wakers by thread, or by process."""

    def key_of(wake_id: int) -> WakerKey:
        if wake_id < 0:
            return BELOW if wake_id == _BELOW else EXITED_WAKER
        waker = catalog.wake(wake_id).waker
        if of_threads:
            return WakerKey(waker.label, waker.pid, waker.tid)
        if waker.kind != THREAD:
            return WakerKey(waker.label)
        return WakerKey(catalog.process(waker.pid) or waker.comm, waker.pid)

    return key_of


def object_of(catalog: Catalog) -> KeyOf[Object]:
    def key_of(wake_id: int) -> Object:
        if wake_id < 0:
            return BELOW_OBJECT if wake_id == _BELOW else EXITED_OBJECT
        return catalog.wake(wake_id).object

    return key_of


def oldest_of(ages: Mapping[tuple[int, ...], Age], key_of: KeyOf[G]) -> dict[G, Age]:
    """Return the oldest wait in progress of each key; `ages` is by wake or site, oldest first."""
    found: dict[G, Age] = {}
    for row, age in ages.items():
        found.setdefault(key_of(*row), age)
    return found


def placeholder_keys(key_of: KeyOf[G]) -> set[G]:
    """Return the keys that stand for no waker or no object."""
    return {key_of(wake) for wake in (*WITHOUT_WAKE, *RESERVED)}


def by_wake(every: Shares, scope: Scope) -> dict[tuple[int, ...], PartTuple]:
    """Return (wake id,) → time of the waits in `scope`.

    Negative ids stand for waits without a wake.
    """
    some = every.in_scope(scope)
    return {(code,): part for code, part in some.by(codes(some.ids))}


def ready_by_wake(every: Shares, scope: Scope) -> dict[tuple[int, ...], PartTuple]:
    """Return (wake id,) → the run-queue time that followed those waits."""
    kernel = np.unique(every.in_scope(scope).ids[:, 2])
    some = every.in_scope(scope._replace(category=RUN_QUEUE))
    some = some.of(np.isin(some.ids[:, 2], kernel))
    return {(code,): part for code, part in some.by(codes(some.ids))}


def grouped(table: Mapping[tuple[int, ...], PartTuple], key_of: KeyOf[G]) -> dict[G, Part]:
    """Sum up a table of wakes or sites by key."""
    sums: dict[G, Part] = {}
    for row, part in table.items():
        key = key_of(*row)
        sums[key] = sums.get(key, NO_PART).plus(Part(*part))
    return sums


def top_of_wakes(every: Shares, scope: Scope, whom: Collection[G], key_of: KeyOf[G]) -> dict[G, SiteKey]:
    """Return for each of `whom` the site in `scope` with most of its time."""
    some = every.in_scope(scope)
    some = some.of(codes(some.ids) >= 0)
    wakes, which = np.unique(some.ids[:, 4], return_inverse=True)
    keys = [*whom]
    number_of = {key: number for number, key in enumerate(keys)}
    numbers = np.array([number_of.get(key_of(wake), -1) for wake in wakes.tolist()], np.int64)[which]
    chosen = numbers >= 0
    return {keys[number]: site for number, ns, site in some.of(chosen).top_sites(numbers[chosen]) if ns > 0}


def codes(ids: Ints) -> Ints:
    """Return the wake of each row of sites' ids, or what stands for one."""
    alive = np.where(np.isin(ids[:, 2], [*stack.PLACELESS]), _BELOW, ids[:, 4])
    return np.where(ids[:, 1] == EXITED.tid, _EXITED, alive)
