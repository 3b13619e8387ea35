"""Threads that are heard of late, or never: what was counted and shown of each, so that nothing counts twice.

For a moment, or until it has a CPU once more, a thread that ends can no longer be walked and is not gone yet; another
may have its id by then. Of one that stays away, the kernel could not keep the record (and says so): its sites are all
that is known of it.
"""

from collections import OrderedDict
from collections.abc import Iterator, Set
from typing import NamedTuple

import numpy as np

from offtop.kernel.accounting.tick_records import Ended
from offtop.kernel.bpf.layout import ThreadRecord
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import SiteKey, ThreadKey
from offtop.model.values.snapshot import SiteTotals
from offtop.units import NS_PER_S

_LATEST_TICKS = 2
"""How long sites wait for the record of their thread, where the kernel has lost some."""
_LATEST_NS = 10 * NS_PER_S
"""The same where it says that it has lost none: one that ends may wait for a CPU to do so."""
_MOST_LOST = 1 << 16
"""Threads that were taken for lost, or had an id before, of which it is known what was counted of them."""

Whose = tuple[ThreadKey, int]
"""Id, and since when it has that (ThreadRecord.born_ns): others had it before, and may be heard of still."""


class Shown(NamedTuple):
    """What was shown of a wait in progress of a thread that another has the id of by now, or that was taken for lost.
    It may be heard of all the same: it waits for a CPU to leave for good."""

    left_ns: int
    """Since when, but for what has been taken off a place already."""
    at_ns: int
    """Until when."""


class _Held(NamedTuple):
    """What ended at a site of a thread that is not heard of yet."""

    ticks: int
    """Since so many."""
    since_ns: int
    threads_lost: int
    """How many the kernel had lost before."""
    totals: SiteTotals


class Sorted(NamedTuple):
    """What ended, now and before, by whether its thread is heard of. What is in none of these is held back."""

    now: Ended
    """In this tick, of threads that are heard of."""
    late: list[tuple[SiteKey, SiteTotals]]
    """In earlier ticks, of the same."""
    lost: list[tuple[SiteKey, int, SiteTotals]]
    """Of threads that are taken for lost, and since when each has its id."""


class Late:
    def __init__(self) -> None:
        self._held: dict[tuple[SiteKey, int], _Held] = {}
        """By site, and since when its thread has its id."""
        self._shown = OrderedDict[Whose, Shown]()
        self._given_up = OrderedDict[Whose, SiteTotals]()
        """Whose records were taken for lost: what was counted in their place."""
        self._threads_lost = self._threads_lost_before = 0
        """How many records the kernel could not keep until the last tick, and until the one before. One that ended
        while the last tick was read is counted there, but its sites are of this one."""

    def sites(self) -> Iterator[SiteKey]:
        """Where what is held back ended."""
        return (site for site, _ in self._held)

    def sort(self, ended: Ended, heard: Set[tuple[int, int, int]], at_ns: int, threads_lost: int) -> Sorted:
        """`heard`: pid, tid and born_ns of whom there are records in this tick. `threads_lost`: how many the kernel
        could not keep until now."""
        held, self._held = self._held, {}
        born = ended.born_ns or [0] * len(ended.keys)
        whose = zip(ended.keys, born, strict=True)
        absent = [row for row, (site, born_ns) in enumerate(whose) if (site[0], site[1], born_ns) not in heard]
        for row in absent:
            place = ended.keys[row], born[row]
            was = held.get(place, _Held(0, at_ns, self._threads_lost_before, SiteTotals()))
            held[place] = was._replace(totals=was.totals.plus(ended.totals(row)))
        self._threads_lost_before, self._threads_lost = self._threads_lost, threads_lost
        found = Sorted(ended.without(absent) if absent else ended, [], [])
        for (site, born_ns), one in held.items():
            least_ns = 0 if threads_lost > one.threads_lost else _LATEST_NS
            if (site.pid, site.tid, born_ns) in heard:
                found.late.append((site, one.totals))
            elif one.ticks < _LATEST_TICKS or at_ns - one.since_ns < least_ns:
                self._held[site, born_ns] = one._replace(ticks=one.ticks + 1)
            else:
                found.lost.append((site, born_ns, one.totals))
        return found

    def keep_shown(self, whose: Whose, left_ns: int, at_ns: int) -> None:
        """Until `at_ns` a wait of its was shown as in progress, and none is any more."""
        self._shown[whose] = Shown(left_ns, at_ns)
        _shorten(self._shown)

    def shown_of(self, whose: Whose) -> Shown | None:
        return self._shown.get(whose)

    def forget_shown(self, whose: Whose) -> None:
        self._shown.pop(whose, None)

    def give_up(self, whose: Whose, totals: SiteTotals) -> SiteTotals:
        """It is taken for lost: what is to count of `totals`, of a site of its, beside what was shown of it."""
        self._given_up[whose] = self._given_up.pop(whose, SiteTotals()).plus(totals)
        _shorten(self._given_up)
        waits, total_ns, runqueue_ns, max_ns, histogram = totals
        if shown := self._shown.get(whose):
            taken_ns = min(total_ns, max(0, shown.at_ns - shown.left_ns))
            total_ns -= taken_ns
            self._shown[whose] = shown._replace(left_ns=shown.left_ns + taken_ns)
        return SiteTotals(waits, total_ns, min(runqueue_ns, total_ns), max_ns, histogram)

    def rest(self, whose: Whose, r: ThreadRecord) -> tuple[ThreadRecord, bool]:
        """What is to count of a record, and whether that is all: one that was taken for lost may come all the same."""
        given_up = self._given_up.pop(whose, None)
        if given_up is None:
            return r, True
        r, of_other = _less(r, given_up)
        if of_other.waits:
            self._given_up[whose] = of_other
        return r, False


def _less(r: ThreadRecord, given_up: SiteTotals) -> tuple[ThreadRecord, SiteTotals]:
    """What is left of a record that was taken for lost, and comes all the same: its sites were counted already, with
    what was shown of its first wait. And of those what a record of the same thread, which is to come, has."""
    waits = min(given_up.waits, r.waits - r.short_waits - r.lost_waits)
    total_ns = min(given_up.total_ns, r.offcpu_ns - r.short_ns - r.filtered_ns - r.lost_ns)
    at_sites_ns = r.runqueue_ns - r.short_runqueue_ns - r.filtered_runqueue_ns - r.lost_runqueue_ns
    runqueue_ns = min(given_up.runqueue_ns, at_sites_ns)
    of_record = np.frombuffer(r.histogram, np.int64)
    of_sites = log2.to_lanes([given_up.histogram])[0]
    lanes = np.minimum(of_record, of_sites)
    left = r._replace(
        waits=r.waits - waits,
        offcpu_ns=r.offcpu_ns - total_ns,
        runqueue_ns=r.runqueue_ns - runqueue_ns,
        preempted_ns=min(r.preempted_ns, r.runqueue_ns - runqueue_ns),  # of sites nobody knows how much was
        histogram=(of_record - lanes).tobytes(),
    )
    rest = SiteTotals(
        given_up.waits - waits,
        given_up.total_ns - total_ns,
        given_up.runqueue_ns - runqueue_ns,
        given_up.max_ns,
        log2.of_lanes((of_sites - lanes)[None])[0],
    )
    return left, rest


def _shorten(table: OrderedDict[Whose, Shown] | OrderedDict[Whose, SiteTotals]) -> None:
    """Forget the oldest of too many."""
    while len(table) > _MOST_LOST:
        table.popitem(last=False)
