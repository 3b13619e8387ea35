"""Evicts from the totals and the catalog what nothing refers to any more: threads, sites, stacks, wakes and names."""

from collections import deque
from collections.abc import Collection, Sequence
from itertools import chain, repeat
from typing import NamedTuple

import numpy as np

from offtop.kernel.accounting.deferred import DeferredRecords
from offtop.kernel.accounting.thread_table import ThreadTable
from offtop.kernel.accounting.totals import Totals
from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey
from offtop.model.values.stack import FIRST_STACK
from offtop.model.values.table import SITES, THREADS, Ints, integers
from offtop.model.values.waits import KERNEL, READ_USER, USER, WAKE
from offtop.model.values.wake import FIRST_WAKE

_MOST_NAMES = 50_000
"""How many names of exited threads are kept: without a limit they would take 400 MB on a machine that forks 2,000 times
a second."""


class Dropped(NamedTuple):
    """Ids evicted from the catalog."""

    stacks: set[int]
    wakes: set[int]


class Eviction:
    """Evicts what no window refers to any more.

    Older windows look up stacks and wakes in the catalog, so each is kept for some time after the totals last referred
    to it.
    """

    def __init__(
        self, catalog: Catalog, totals: Totals, table: ThreadTable, deferred: DeferredRecords, at_ns: int
    ) -> None:
        self._catalog, self._totals, self._table, self._deferred = catalog, totals, table, deferred
        self._stacks_released_ns: dict[int, int] = {}
        """Stack → when a wait or site that referred to it was last settled, moved or evicted."""
        self._wakes_released_ns: dict[int, int] = {}
        """The same for wakes."""
        self._aged_at_ns = at_ns
        self._forgotten: deque[tuple[int, ThreadKey]] = deque()
        """Exited threads whose names are still kept, the first evicted first, and when each was."""

    def release_sites(self, sites: Ints, at_ns: int) -> None:
        """Note that nothing may refer to the stacks and wakes of these sites after `at_ns`."""
        self._stacks_released_ns.update(dict.fromkeys(np.unique(sites[:, KERNEL:WAKE]).tolist(), at_ns))
        self._wakes_released_ns.update(dict.fromkeys(np.unique(sites[:, WAKE]).tolist(), at_ns))

    def release_stacks(self, stacks: Ints, at_ns: int) -> None:
        """Note that nothing may refer to these stacks after `at_ns`."""
        self._stacks_released_ns.update(dict.fromkeys(stacks.tolist(), at_ns))

    def evict_threads(self, keys: Sequence[ThreadKey], at_ns: int) -> None:
        """Move the sums of threads that exited before the last snapshot to EXITED."""
        if keys:
            self.release_sites(self._totals.move_threads_to_exited(integers(keys, THREADS.width)), at_ns)
        for key in keys:
            self._table.forget(key)
            self._forgotten.append((at_ns, key))
        while len(self._forgotten) > _MOST_NAMES:
            self._forget_name()

    def age(self, at_ns: int, keep_ns: int) -> Dropped | None:
        """Once every `keep_ns`, evict what was not used for that long.

        Returns the ids of dropped stacks and wakes, or None before its time. A live thread's site without a wait for
        keep_ns moves its sums to the site of exited threads; stacks and wakes that nothing refers to any more leave the
        catalog.
        """
        if at_ns - self._aged_at_ns < keep_ns:
            return None
        waits = self._table.frozen().list
        waiting = {*map(SITES.key, waits.sites.tolist())}
        before_ns = at_ns - keep_ns
        unused = self._totals.sites.not_added_since(before_ns)
        unused = [key for key in unused if key.tid and key not in waiting]
        self._totals.move_sites_to_exited(integers(unused, SITES.width))
        sites = [*self._totals.sites, *self._deferred.sites(), *waiting]
        wakes = {key.wake for key in sites}.union(
            wake for wake, ns in self._totals.stormed_ns.items() if ns >= before_ns
        )
        dropped_wakes = {
            wake
            for wake in self._catalog.wakes
            if wake >= FIRST_WAKE and wake not in wakes and self._wakes_released_ns.get(wake, 0) < before_ns
        }
        for wake in dropped_wakes:
            self._drop_wake(wake)
        used = {stack for key in sites for stack in (key.kernel, key.user)}
        used.update(waits.rows[:, READ_USER].tolist())
        used.update(stack for wake in self._catalog.wakes.values() for stack in wake.stacks)
        dropped = {
            stack
            for stack in self._catalog.stacks
            if stack >= FIRST_STACK and stack not in used and self._stacks_released_ns.get(stack, 0) < before_ns
        }
        for stack in dropped:
            del self._catalog.stacks[stack]
            self._stacks_released_ns.pop(stack, None)
        while self._forgotten and self._forgotten[0][0] < before_ns:
            self._forget_name()
        self._aged_at_ns = at_ns
        return Dropped(dropped, dropped_wakes)

    def drop_wakes(self, most: int, at_ns: int, window_from_ns: int) -> set[int]:
        """Evict the least recently used wakes until `most` are left; return the ids dropped.

        Keeps those that the last snapshot was the first to refer to. The sums of their sites move to those of exited
        threads. An older window that refers to a dropped wake loses the wake and nothing else: the stacks of such sites
        stay in the catalog as long as others do.
        """
        named_ns = {**dict.fromkeys(self._catalog.wakes, 0), **self._wakes_released_ns}
        added = self._totals.sites.added()
        named = (
            [(key.wake, ns) for key, ns in added],
            self._totals.stormed_ns.items(),
            [(site.wake, at_ns) for site in self._deferred.sites()],
            [(wake, at_ns) for wake in self._table.frozen().list.rows[:, WAKE].tolist()],
        )
        for wake, ns in chain(*named):
            named_ns[wake] = max(ns, named_ns.get(wake, 0))
        own = [wake for wake in self._catalog.wakes if wake >= FIRST_WAKE]
        oldest = sorted(own, key=named_ns.__getitem__)[: max(0, len(own) - most)]
        dropped = {wake for wake in oldest if named_ns[wake] <= window_from_ns}
        self._evict_sites([key for key, _ in added if key.wake in dropped], at_ns)
        for wake in dropped:
            self._drop_wake(wake)
        return dropped

    def drop_stacks(self, of_users: Collection[int], most: int, at_ns: int, window_from_ns: int) -> set[int]:
        """Evict the least recently used of these user stacks until `most` are left; return the ids dropped.

        Keeps those that the last snapshot was the first to refer to, and those of wakes. The sums of their sites move
        to those of exited threads. An older window that refers to a dropped stack shows it as such.
        """
        used_ns = {**dict.fromkeys(of_users, 0), **self._stacks_released_ns}
        added = self._totals.sites.added()
        in_use = chain(
            (site.user for site in self._deferred.sites()),
            self._table.frozen().list.rows[:, [USER, READ_USER]].ravel().tolist(),
            chain.from_iterable(wake.stacks for wake in self._catalog.wakes.values()),
        )
        for stack, ns in chain(((key.user, ns) for key, ns in added), zip(in_use, repeat(at_ns))):
            used_ns[stack] = max(ns, used_ns.get(stack, 0))
        oldest = sorted(of_users, key=used_ns.__getitem__)[: max(0, len(of_users) - most)]
        dropped = {stack for stack in oldest if used_ns[stack] <= window_from_ns}
        self._evict_sites([key for key, _ in added if key.user in dropped], at_ns)
        for stack in dropped:
            del self._catalog.stacks[stack]
            self._stacks_released_ns.pop(stack, None)
        self._catalog.has_dropped_stacks |= bool(dropped)
        return dropped

    def _evict_sites(self, sites: Sequence[SiteKey], at_ns: int) -> None:
        for key in sites:
            self._stacks_released_ns[key.kernel] = self._stacks_released_ns[key.user] = at_ns
        self._totals.move_sites_to_exited(integers(sites, SITES.width))

    def _drop_wake(self, wake: int) -> None:
        """Drop a wake with its storms: they are running totals, which last as long as their id."""
        del self._catalog.wakes[wake]
        self._wakes_released_ns.pop(wake, None)
        self._totals.forget_storms(wake)

    def _forget_name(self) -> None:
        _, key = self._forgotten.popleft()
        row = self._table.row(key)
        if key not in self._totals.threads and not (row >= 0 and self._table.is_waiting[row]):
            self._catalog.comms.pop(key, None)
            self._catalog.lives.pop(key, None)
            if key.tid == key.pid:
                self._catalog.processes.pop(key.pid, None)
