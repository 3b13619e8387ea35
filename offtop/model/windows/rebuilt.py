"""Rebuild snapshots from the windows of a History, so that the past can be recorded.

Their running totals start at 0 with the first window. They include the time of waits in progress, except for the time
that a wait spent blocked at one site: that is in the wait itself, as in the original snapshot. So `between` two of them
returns the original window, even if most of its waits were dropped.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from offtop.model.values.catalog import SiteKey, ThreadKey
from offtop.model.values.moves import NO_MOVES
from offtop.model.values.running import Running
from offtop.model.values.snapshot import Machine, Sampling, SiteTotals, Snapshot, Waiting
from offtop.model.values.table import NO_COUNTS, SITES, THREADS, WAITS, Ints, K, Kind, Table, V, integers, table_of
from offtop.model.values.waits import SO_FAR_FIELDS, thread_numbers
from offtop.model.values.wake import Storm
from offtop.model.values.within import NO_CALLS
from offtop.model.windows.stuck import PastWait
from offtop.model.windows.window import Window, site_numbers, taken_back

_NS_COLUMN = SITES.width


def snapshots(
    windows: Iterable[Window], waits: Sequence[PastWait], before: Mapping[SiteKey, SiteTotals]
) -> Iterator[Snapshot]:
    """Yield one snapshot before the first of the consecutive `windows`, and one after each.

    `waits` are those in progress meanwhile, as far as they were kept. `before` has the sites' totals at the beginning,
    as `ended_before` returns them.
    """
    totals: _RunningTotals | None = None
    for window in windows:
        if totals is None:
            totals = _RunningTotals(window, waits, before)
            yield totals.snapshot(window, totals.begin_ns)
        totals.add(window)
        yield totals.snapshot(window, window.at_ns)


def ended_before(latest: Mapping[SiteKey, SiteTotals], windows: Iterable[Window]) -> Table[SiteKey, SiteTotals]:
    """Return the count and histogram of the waits of each site that ended before `windows`.

    They decide whether a sleep is periodic. Times are 0, since totals start with `windows`. `latest` is as of the end
    of `windows`.
    """
    every = Running(SITES)
    for sign, entries in ((1, latest), *((-1, window.sites) for window in windows)):
        table = table_of(SITES, entries)
        some = table.at(np.flatnonzero(table.present))
        numbers = np.zeros((len(some), SITES.numbers), np.int64)
        numbers[:, WAITS] = sign * some.numbers[:, WAITS]
        every.add(some.ids, numbers, some.counts * (1, 1, sign), 0)
    left = every.frozen()
    some = left.numbers[:, WAITS] > 0
    row, _, values = left.counts.T
    some[row[values < 0]] = False
    return left.at(np.flatnonzero(some))


class _InProgress(NamedTuple):
    """A wait as a snapshot has it."""

    wait: Waiting
    goes_on: bool
    """Whether it has been at the same site since the previous tick."""


class _RunningTotals:
    """Running totals from which snapshots are made."""

    def __init__(self, first: Window, waits: Sequence[PastWait], before: Mapping[SiteKey, SiteTotals]) -> None:
        self.begin_ns = self._at_ns = first.at_ns - first.span_ns
        self._threads, self._sites = Running(THREADS), Running(SITES)
        known = table_of(SITES, before)
        self._sites.begin_with(known.ids, known.numbers, known.counts, np.zeros(len(known), np.int64), self.begin_ns)
        self._not_begun = sorted(waits, key=lambda one: one.wait.switched_out_ns, reverse=True)
        self._lasting: list[PastWait] = []
        self._waiting: dict[ThreadKey, Waiting] = {}
        self._waiting = {key: seen.wait for key, seen in self._in_progress(self.begin_ns, set()).items()}
        self._lost: dict[str, int] = {}
        self._storms: dict[int, Storm] = {}
        self._steal_ns = self._interrupt_ns = 0
        self._moves = NO_MOVES
        self._calls = NO_CALLS
        self._sampling: Sampling | None = None

    def add(self, window: Window) -> None:
        was, was_ns, self._at_ns = self._waiting, self._at_ns, window.at_ns
        seen = self._in_progress(window.at_ns, {*map(tuple, window.still.ids.tolist())})
        self._waiting = {key: one.wait for key, one in seen.items()}
        going_on = {one.wait.site for one in seen.values() if one.goes_on}
        rows = [(*site, window.span_ns, 0, 0) for site in window.still if site not in going_on]
        rows += [taken_back(one.wait, window.at_ns) for one in seen.values() if not one.goes_on]
        ended = integers(
            [taken_back(one, was_ns) for key, one in was.items() if key not in seen or not seen[key].goes_on],
            SO_FAR_FIELDS,
        )
        ended[:, _NS_COLUMN : _NS_COLUMN + 2] *= -1
        so_far = np.concatenate((integers(rows, SO_FAR_FIELDS), ended))
        self._moves = window.moves.after(self.begin_ns)
        _add(self._threads, THREADS, window.threads, so_far[:, :2], thread_numbers(so_far), window.at_ns)
        _add(self._sites, SITES, window.sites, *site_numbers(so_far, self._moves), window.at_ns)
        for kind, n in window.lost.items():
            self._lost[kind] = self._lost.get(kind, 0) + n
        self._storms = {waker: one._replace(largest=0) for waker, one in self._storms.items()}
        for waker, storm in window.storms.items():
            self._storms[waker] = self._storms[waker].plus(storm) if waker in self._storms else storm
        self._calls = self._calls._replace(max_ns=0).plus(window.calls)
        if window.sampling:
            self._sampling = window.sampling.plus((self._sampling or Sampling())._replace(longest_ns=0))
        self._steal_ns += window.machine.steal_ns
        self._interrupt_ns += window.machine.interrupt_ns

    def snapshot(self, window: Window, at_ns: int) -> Snapshot:
        """Return a snapshot at `at_ns`, where `window` begins or ends."""
        return Snapshot(
            taken_ns=window.taken_ns - window.at_ns + at_ns,
            at_ns=at_ns,
            threads=self._threads.frozen(),
            sites=self._sites.frozen(),
            waiting=self._waiting,
            catalog=window.catalog,
            lost=dict(self._lost),
            cost=window.cost,
            machine=Machine(window.machine.cpus, self._steal_ns, self._interrupt_ns),
            storms=self._storms,
            moves=[*self._moves],
            calls=self._calls,
            mode=window.mode,
            probe=window.probe,
            filters=window.filters,
            sampling=self._sampling,
            blockers=window.blockers,
            titles=window.titles,
            files=window.files if at_ns == window.at_ns else None,
            disks=window.disks if at_ns == window.at_ns else None,
        )

    def _in_progress(self, at_ns: int, still: set[tuple[int, ...]]) -> dict[ThreadKey, _InProgress]:
        """Return the waits in progress at `at_ns`.

        `still` has the sites where a wait has lasted since the previous snapshot.
        """
        while self._not_begun and self._not_begun[-1].wait.switched_out_ns <= at_ns:
            self._lasting.append(self._not_begun.pop())
        self._lasting = [one for one in self._lasting if one.until_ns >= at_ns]
        found: dict[ThreadKey, _InProgress] = {}
        for one in self._lasting:
            now, key = one.at(at_ns), one.wait.site.thread
            was = self._waiting.get(key)
            if (
                was
                and now.site in still
                and (was.switched_out_ns, was.site, was.runqueue_ns) == (now.switched_out_ns, now.site, 0)
            ):
                found[key] = _InProgress(was if was.holder == now.holder else was._replace(holder=now.holder), True)
            else:
                ready_ns = min(now.runqueue_ns, at_ns - self.begin_ns)
                found[key] = _InProgress(now._replace(from_ns=at_ns - ready_ns, runqueue_ns=ready_ns), False)
        return found


def _add(
    running: Running[K, V], kind: Kind[K, V], entries: Mapping[K, V], ids: Ints, numbers: Ints, at_ns: int
) -> None:
    """Add a window's entries, and rows without a histogram."""
    table = table_of(kind, entries)
    running.begin_tick()
    running.add(table.ids, table.numbers, table.counts, at_ns)
    running.add(ids, numbers, NO_COUNTS, at_ns)
