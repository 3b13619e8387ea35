"""Keeps the sites of threads whose record has not arrived yet, so that no wait is counted twice.

An exiting thread leaves the task list before it is switched out for the last time, and it may need another turn on a
CPU for that. In between, the task scan cannot see it and its exit record does not exist; another thread may even have
its tid by then. If the record never arrives, the BPF programs had no room for it (and count it as lost), so its sites
are all that is known of the thread.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np

from offtop.kernel.accounting.tick_records import SiteDeltas, ThreadRecords
from offtop.kernel.bpf.layout import ThreadRecord
from offtop.kernel.bpf.scan_rows import histogram_of, lanes_of
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import SiteKey, ThreadKey
from offtop.model.values.snapshot import SiteTotals
from offtop.model.values.table import THREADS, Mask
from offtop.units import NS_PER_S

_MAX_HELD_TICKS = 2
"""How many ticks sites wait for their thread's record if the BPF programs have lost records."""
_MAX_HELD_NS = 10 * NS_PER_S
"""The same if no record was lost. It is long because an exiting thread may sit on the run queue."""
_MOST_WRITTEN_OFF = 1 << 16
"""How many written-off threads, and previous owners of a tid, are remembered, with what was counted of each."""

ThreadIdentity = tuple[ThreadKey, int]
"""The key of a thread, and when it acquired its tid (ThreadRecord.tid_acquired_ns): the record of a previous owner of
the tid may still arrive."""


class ProvisionalWait(NamedTuple):
    """Time already credited to a wait of a written-off thread, or one whose tid was reused.

    Its record may still arrive: an exiting thread can sit on the run queue for seconds.
    """

    switched_out_ns: int
    """Start of the part that has not been deducted from a site yet (CLOCK_MONOTONIC)."""
    at_ns: int
    """End of the time shown (CLOCK_MONOTONIC)."""


class _Held(NamedTuple):
    """Finished waits at a site of a thread whose record has not arrived yet."""

    ticks: int
    """For how many ticks they have been held."""
    since_ns: int
    threads_lost: int
    """How many thread records had been lost when they were first held."""
    totals: SiteTotals


class Sorted(NamedTuple):
    """Finished waits that are no longer held back, by the state of their thread's record."""

    now: SiteDeltas
    """Waits that finished in this tick, in which the thread's record has arrived, too."""
    late: list[tuple[SiteKey, SiteTotals]]
    """Waits that finished in earlier ticks; the thread's record has arrived in this one."""
    written_off: list[tuple[SiteKey, int, SiteTotals]]
    """Sites of written-off threads, each with the time at which the thread acquired its tid."""


class DeferredRecords:
    """Finished waits whose thread's record has not arrived yet, and what was counted without it."""

    def __init__(self) -> None:
        self._held: dict[tuple[SiteKey, int], _Held] = {}
        """Keyed by site and the time at which its thread acquired its tid."""
        self._located: dict[ThreadIdentity, dict[tuple[int, ...], SiteKey]] = {}
        """Threads with sites that are held back: raw ids → site. Another look-up may give another site, for example
        because the process has exited since."""
        self._shown = OrderedDict[ThreadIdentity, ProvisionalWait]()
        self._written_off = OrderedDict[ThreadIdentity, SiteTotals]()
        """Written-off threads, and what was counted of them in place of their record."""
        self._threads_lost = self._threads_lost_before = 0
        """Number of lost thread records as of the last tick, and as of the tick before.

        A thread that exited while the last tick was being read is counted in the former, but its sites belong to this
        tick.
        """

    def sites(self) -> Iterator[SiteKey]:
        """Yield the sites of everything held back."""
        return (site for site, _ in self._held)

    def sort(
        self, ended: SiteDeltas, is_reported: Mask, records: ThreadRecords, at_ns: int, threads_lost: int
    ) -> Sorted:
        """Sort finished waits by whether their thread's record has arrived.

        `is_reported` says which of `ended` are of the thread of the last record of their tid, `records` are all records
        of this tick, `threads_lost` is the number of lost thread records so far.
        """
        held, self._held = self._held, {}
        if is_reported.all() and not held:
            self._threads_lost_before, self._threads_lost = self._threads_lost, threads_lost
            return Sorted(ended, [], [])
        columns = *records.ids.T.tolist(), records.rows["tid_acquired_ns"].tolist()
        reported = {*zip(*columns, strict=True)}
        is_absent, located = ~is_reported, self._located
        for row in np.flatnonzero(is_absent).tolist():
            site, acquired_ns = ended.key(row), int(ended.tid_acquired_ns[row])
            if (site.pid, site.tid, acquired_ns) in reported:
                is_absent[row] = False
                continue
            of_thread = located.setdefault((site.thread, acquired_ns), {})
            of_thread.setdefault(tuple(ended.raw[row].tolist()), site)
            entry = held.get((site, acquired_ns), _Held(0, at_ns, self._threads_lost_before, SiteTotals()))
            held[site, acquired_ns] = entry._replace(totals=entry.totals.plus(ended.totals(row)))
        self._threads_lost_before, self._threads_lost = self._threads_lost, threads_lost
        found = Sorted(ended.of_rows(~is_absent), [], [])
        for (site, tid_acquired_ns), one in held.items():
            min_held_ns = 0 if threads_lost > one.threads_lost else _MAX_HELD_NS
            if (site.pid, site.tid, tid_acquired_ns) in reported:
                found.late.append((site, one.totals))
            elif one.ticks < _MAX_HELD_TICKS or at_ns - one.since_ns < min_held_ns:
                self._held[site, tid_acquired_ns] = one._replace(ticks=one.ticks + 1)
            else:
                found.written_off.append((site, tid_acquired_ns, one.totals))
        still_held = {(site.thread, acquired_ns) for site, acquired_ns in self._held}
        self._located = {identity: some for identity, some in located.items() if identity in still_held}
        return found

    @property
    def threads_with_sites(self) -> Collection[ThreadIdentity]:
        """Return the threads of which sites are held back."""
        return self._located.keys()

    def site_of(self, identity: ThreadIdentity, raw: tuple[int, int, int]) -> SiteKey | None:
        """Return the site of the waits of that thread that are held back and have these raw ids."""
        return self._located.get(identity, {}).get(raw)

    def keep_shown(self, identity: ThreadIdentity, switched_out_ns: int, at_ns: int) -> None:
        """Note that a wait was shown as in progress until `at_ns`, and no longer is."""
        self._shown[identity] = ProvisionalWait(switched_out_ns, at_ns)
        _evict(self._shown)

    def shown_of(self, identity: ThreadIdentity) -> ProvisionalWait | None:
        return self._shown.get(identity)

    def forget_shown(self, identity: ThreadIdentity) -> None:
        self._shown.pop(identity, None)

    def write_off(self, identity: ThreadIdentity, totals: SiteTotals) -> SiteTotals:
        """Write a thread off, and return what is not counted yet of `totals`, which are those of one of its sites.

        They include its wait in progress, of which some time was shown already: that is deducted.
        """
        self._written_off[identity] = self._written_off.pop(identity, SiteTotals()).plus(totals)
        _evict(self._written_off)
        waits, total_ns, runqueue_ns, max_ns, histogram = totals
        if shown := self._shown.get(identity):
            taken_ns = min(total_ns, max(0, shown.at_ns - shown.switched_out_ns))
            total_ns -= taken_ns
            self._shown[identity] = shown._replace(switched_out_ns=shown.switched_out_ns + taken_ns)
        return SiteTotals(waits, total_ns, min(runqueue_ns, total_ns), max_ns, histogram)

    def partly_counted(self, records: ThreadRecords) -> list[tuple[int, ThreadIdentity]]:
        """Return the position and identity of each record whose thread was counted in part before it arrived."""
        if not (self._shown or self._written_off):
            return []
        identities = zip(map(THREADS.key, records.ids.tolist()), records.rows["tid_acquired_ns"].tolist(), strict=True)
        return [(at, one) for at, one in enumerate(identities) if one in self._shown or one in self._written_off]

    def uncounted_part(self, identity: ThreadIdentity, r: ThreadRecord) -> ThreadRecord | None:
        """Return the part of a thread's record that is not counted yet; None if the thread was not written off."""
        written_off = self._written_off.pop(identity, None)
        if written_off is None:
            return None
        r, remainder = _without_written_off(r, written_off)
        if remainder.waits:
            self._written_off[identity] = remainder
        return r


def _without_written_off(r: ThreadRecord, written_off: SiteTotals) -> tuple[ThreadRecord, SiteTotals]:
    """Return a record minus what was counted of its written-off thread, and what was counted beyond the record.

    The thread's sites were counted already, together with what was shown of its first wait. If they exceed this record,
    another record of the same thread is still to come.
    """
    waits = min(written_off.waits, r.waits - r.short_waits - r.filtered_waits - r.lost_waits)
    total_ns = min(written_off.total_ns, r.offcpu_ns - r.short_ns - r.filtered_ns - r.lost_ns)
    at_sites_ns = r.runqueue_ns - r.short_runqueue_ns - r.filtered_runqueue_ns - r.lost_runqueue_ns
    runqueue_ns = min(written_off.runqueue_ns, at_sites_ns)
    of_record = lanes_of(r)
    of_sites = log2.to_lanes([written_off.histogram])[0]
    lanes = np.minimum(of_record, of_sites)
    left = r._replace(
        waits=r.waits - waits,
        offcpu_ns=r.offcpu_ns - total_ns,
        runqueue_ns=r.runqueue_ns - runqueue_ns,
        preempted_ns=min(r.preempted_ns, r.runqueue_ns - runqueue_ns),  # the share at the sites is unknown
        histogram=histogram_of(of_record - lanes),
    )
    rest = SiteTotals(
        written_off.waits - waits,
        written_off.total_ns - total_ns,
        written_off.runqueue_ns - runqueue_ns,
        written_off.max_ns,
        log2.of_lanes((of_sites - lanes)[None])[0],
    )
    return left, rest


def _evict(table: OrderedDict[ThreadIdentity, ProvisionalWait] | OrderedDict[ThreadIdentity, SiteTotals]) -> None:
    """Evict the oldest entries beyond the limit."""
    while len(table) > _MOST_WRITTEN_OFF:
        table.popitem(last=False)
