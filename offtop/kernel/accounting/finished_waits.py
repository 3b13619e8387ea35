"""Finished waits: those of thread records, minus what was already shown of them, and those of sites."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from offtop.kernel.accounting.deferred import DeferredRecords, ThreadIdentity
from offtop.kernel.accounting.thread_table import UNKNOWN_NS, ThreadTable
from offtop.kernel.accounting.tick_deltas import LastRecords, TickDeltas
from offtop.kernel.accounting.tick_records import SiteDeltas, ThreadRecords
from offtop.kernel.accounting.waits_in_progress import WaitsInProgress
from offtop.kernel.bpf import layout
from offtop.kernel.bpf.scan_rows import Rows, lanes_of, record_of
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import Catalog, ThreadKey
from offtop.model.values.stack import ENDED, FIRST_STACK, NO_STACK, STACK_LOST
from offtop.model.values.table import (
    SITES,
    THREAD_COLUMN,
    THREADS,
    WAITS,
    Ints,
    Mask,
    SiteKeys,
    distinct,
    integers,
    nonzero_lanes,
    rows_at,
)
from offtop.model.values.waits import KERNEL, READ_USER, SINCE_NS, SWITCHED_OUT_NS, USER, WAKE
from offtop.model.values.wake import NO_WAKE
from offtop.model.windows.breakdown import STOPPED

Locate = Callable[[NDArray[np.uint64]], Ints]
"""Rows of pid, tid, raw kernel stack id, raw user stack id and raw wake id → rows of sites."""


class FinishedWaits:
    """Counts finished waits, each once, however much of it was shown before it ended."""

    def __init__(
        self,
        table: ThreadTable,
        in_progress: WaitsInProgress,
        deferred: DeferredRecords,
        locate: Locate,
        catalog: Catalog,
    ) -> None:
        """`locate` turns a record's raw ids into a site."""
        self._table, self._in_progress, self._deferred, self._locate = table, in_progress, deferred, locate
        self._catalog = catalog

    def count(self, tick: TickDeltas, rows: Ints, records: ThreadRecords) -> Mask:
        """Add the finished waits of records, minus what was shown of the first one while it was in progress.

        `rows` are the threads of the records, each once. Returns which records are of a previous owner of the tid.
        """
        table, size, of_records_ns = self._table, len(rows), records.rows["tid_acquired_ns"]
        acquired_ns = table.tid_acquired_ns[rows]
        is_previous = of_records_ns < acquired_ns
        has_ended = table.is_waiting[rows] & ~is_previous
        was_new = table.is_new[rows]
        was_shown = has_ended & ~was_new
        waits = rows_at(table.waits, rows)
        table.end(rows[has_ended])
        table.tid_acquired_ns[rows] = np.maximum(acquired_ns, of_records_ns)
        switched_out_ns = np.where(was_shown, waits[:, SWITCHED_OUT_NS], 0)
        shown_to_ns = np.full(size, tick.snapshot_ns)
        deferred = self._deferred.partly_counted(records)
        uncounted, is_whole = self._not_counted(records, deferred)
        for at, identity in deferred:
            shown = self._deferred.shown_of(identity)
            if shown and not was_shown[at]:
                switched_out_ns[at], shown_to_ns[at] = shown
                if tick.filter_changed:  # it may not have been counted in between
                    shown_to_ns[at] = tick.before_ns
        was_of_previous = was_shown & (acquired_ns != UNKNOWN_NS) & (acquired_ns < of_records_ns)
        for at in np.flatnonzero(was_of_previous).tolist():
            key = ThreadKey(*records.ids[at].tolist())
            self._deferred.keep_shown((key, int(acquired_ns[at])), int(switched_out_ns[at]), tick.snapshot_ns)
        has_first = (uncounted["waits"] > 0) & is_whole
        was_known = has_first & (switched_out_ns > 0) & (switched_out_ns == uncounted["first_switched_out_ns"])
        for at, identity in deferred:
            if was_known[at]:
                self._deferred.forget_shown(identity)
        was_uncounted = has_first & ~was_shown & ~was_new if tick.filter_changed else np.zeros(size, np.bool_)
        shown_to_ns[was_uncounted] = tick.before_ns
        was_counted = was_known | was_uncounted
        began_ns = waits[:, SINCE_NS]
        was_older = has_first & has_ended & (began_ns != 0)
        was_older &= waits[:, SWITCHED_OUT_NS] == uncounted["first_switched_out_ns"]
        was_older &= (uncounted["first_kind"] & layout.KIND_MASK) == layout.KIND_SITE
        whole_ns = (uncounted["first_switched_out_ns"] + uncounted["first_off_ns"]).astype(np.int64) - began_ns
        was_older &= (whole_ns <= tick.max_ns) | (tick.max_ns == 0)
        sites, has_site = self._first_sites(records.ids, uncounted, was_counted | was_older)
        if was_older.any():
            uncounted = _lengthen(tick, uncounted, np.flatnonzero(was_older), whole_ns, sites)
        moved_ns, moved_ready_ns = np.zeros((2, size), np.int64)
        at = np.flatnonzero(was_shown & was_known & has_site)
        at = at[self._may_move(waits[at], sites[at])]
        now = self._with_known_stacks(tick, sites[at], waits[at])
        moved_ns[at], moved_ready_ns[at] = self._in_progress.move(tick, waits[at], now, uncounted["first_off_ns"][at])
        numbers = np.zeros((size, THREADS.numbers), np.int64)
        numbers[was_shown] = self._in_progress.settled(
            tick, waits[was_shown], moved_ns[was_shown], moved_ready_ns[was_shown]
        )
        # The rest of the first wait; `taken` was counted in earlier ticks, or settled just now.
        rest_ns = np.maximum(
            0, uncounted["first_off_ns"] - np.maximum(0, shown_to_ns - uncounted["first_switched_out_ns"])
        )
        rest_ready_ns = np.minimum(rest_ns, uncounted["first_runqueue_ns"])  # run-queue time is the end of a wait
        taken_ns = np.where(was_counted, uncounted["first_off_ns"] - rest_ns, 0)
        taken_ready_ns = np.where(was_counted, uncounted["first_runqueue_ns"] - rest_ready_ns, 0)
        has_numbers: Mask = (uncounted["waits"] != 0) | ~is_whole
        numbers += _thread_numbers(uncounted, taken_ns, taken_ready_ns) * has_numbers[:, None]
        at = np.flatnonzero(has_numbers | was_shown)
        tick.ended.append((rows_at(records.ids, at), rows_at(numbers, at), nonzero_lanes(uncounted["histogram"][at])))
        at = np.flatnonzero(has_numbers & (uncounted["lost_waits"] != 0))
        lost = uncounted[at]
        tick.add_sites(_lost_sites(records.ids[at]), lost["lost_ns"], lost["lost_runqueue_ns"], lost["lost_waits"])
        at = np.flatnonzero(has_site & (taken_ns != 0))
        tick.add_sites(sites[at], (moved_ns - taken_ns)[at], (moved_ready_ns - taken_ready_ns)[at])
        return is_previous

    def hold_back(
        self, tick: TickDeltas, ended: SiteDeltas, last: LastRecords, threads_lost: int
    ) -> tuple[SiteDeltas, set[ThreadKey]]:
        """Hold back the sites of threads whose record has not arrived.

        Returns the rest, and the written-off threads.
        """
        acquired_ns = last.acquired_ns(self._table.known_rows_of(ended.ids))
        is_reported = acquired_ns == ended.tid_acquired_ns
        found = self._deferred.sort(ended, is_reported, last.records, tick.at_ns, threads_lost)
        tick.late += found.late
        written_off: set[ThreadKey] = set()
        for site, tid_acquired_ns, totals in found.written_off:
            key = site.thread
            row = self._table.row(key)
            is_current = row < 0 or tid_acquired_ns >= self._table.tid_acquired_ns[row]
            if is_current and row >= 0:  # it was shown as waiting ever since it was switched out
                self._in_progress.settle_as_shown(tick, np.array([row]))
            rest = self._deferred.write_off((key, tid_acquired_ns), totals)
            numbers = np.zeros((1, THREADS.numbers), np.int64)
            numbers[0, :3], numbers[0, THREAD_COLUMN["max_ns"]] = rest[:3], rest.max_ns
            tick.ended.append((integers([key], 2), numbers, nonzero_lanes(log2.to_lanes([rest.histogram]))))
            tick.late.append((site, rest))
            if is_current:
                written_off.add(key)
        return found.now, written_off

    def _not_counted(self, records: ThreadRecords, deferred: Sequence[tuple[int, ThreadIdentity]]) -> tuple[Rows, Mask]:
        """Return what was not counted of the records before they arrived, and of which nothing was."""
        is_whole = np.ones(len(records), np.bool_)
        if not deferred:
            return records.rows, is_whole
        uncounted = records.rows.copy()
        for at, identity in deferred:
            rest = self._deferred.uncounted_part(identity, record_of(uncounted[at]))
            if rest:
                uncounted[at], is_whole[at] = (*rest[:-1], lanes_of(rest)), False
        return uncounted, is_whole

    def _first_sites(self, ids: Ints, records: Rows, wanted: Mask) -> tuple[Ints, Mask]:
        """Return the site of the first wait of each `wanted` record, and which records have one."""
        kind = records["first_kind"] & layout.KIND_MASK
        is_lost, is_located = wanted & (kind == layout.KIND_LOST), wanted & (kind == layout.KIND_SITE)
        sites = np.zeros((len(records), SITES.width), np.int64)
        sites[is_lost] = _lost_sites(ids[is_lost])
        raw = (records[name][is_located] for name in ("first_kernel", "first_user", "first_wake"))
        sites[is_located] = self._locate(np.column_stack((ids[is_located].astype(np.uint64), *raw)))
        if self._deferred.threads_with_sites:
            of_held = is_located & np.isin(ids[:, 1], [key.tid for key, _ in self._deferred.threads_with_sites])
            for at in np.flatnonzero(of_held).tolist():
                one = record_of(records[at])
                held = self._deferred.site_of(
                    (ThreadKey(*ids[at].tolist()), one.tid_acquired_ns),
                    (one.first_kernel, one.first_user, one.first_wake),
                )
                if held:
                    sites[at] = held
        return sites, is_lost | is_located

    def _may_move(self, waits: Ints, sites: Ints) -> Mask:
        """Return for which of `waits` the time shown belongs to the site at which it ended.

        A thread that was frozen where it waited has the stack of the wait when that ends.
        """
        may = ~self._is_stopped(waits[:, KERNEL])
        held = np.flatnonzero(~may)
        may[held] = self._is_stopped(sites[held, KERNEL])
        return may

    def _is_stopped(self, kernels: Ints) -> Mask:
        once, which = np.unique(kernels, return_inverse=True)
        return np.array([self._catalog.stack(one).category == STOPPED for one in once.tolist()], np.bool_)[which]

    def _with_known_stacks(self, tick: TickDeltas, sites: Ints, waits: Ints) -> Ints:
        """Return the sites at which `waits` ended, with stacks that were read before, where only these are known.

        The kernel stack is that of the task scan. A user stack has no names if its process has exited meanwhile; it is
        the one that was read during the wait, if this is the only wait that ended there.
        """
        is_scanned = (sites[:, KERNEL] == NO_STACK) & (waits[:, KERNEL] >= FIRST_STACK)
        is_gone = ~is_scanned & (waits[:, READ_USER] >= FIRST_STACK) & (sites[:, USER] != waits[:, READ_USER])
        if is_gone.any():
            users = np.unique(sites[is_gone, USER])
            gone = users[np.array([self._catalog.stack(user).end == ENDED for user in users.tolist()], np.bool_)]
            ended = np.flatnonzero(np.isin(tick.counted.ids[:, USER], gone))
            every, which = distinct(tick.counted.ids[ended])
            many = np.bincount(which, tick.counted.numbers[ended, WAITS], len(every))
            is_gone &= SiteKeys(every[many == 1]).mask(sites)
        changes = np.flatnonzero(is_scanned | is_gone)
        if not len(changes):
            return sites
        now = sites.copy()
        now[is_scanned, :WAKE] = waits[is_scanned, :WAKE]
        now[is_gone, USER] = waits[is_gone, READ_USER]
        before, after = (map(SITES.key, some[changes].tolist()) for some in (sites, now))
        tick.renamed.update(zip(before, after, strict=True))
        return now


def _lengthen(tick: TickDeltas, records: Rows, at: Ints, whole_ns: Ints, sites: Ints) -> Rows:
    """Return the records with the whole length of the first waits `at`, and note it at the sites of these waits.

    Their time does not change: what passed before a wait was first seen is in no window.
    """
    records, whole_ns = records.copy(), whole_ns[at]
    records["max_ns"][at] = np.maximum(records["max_ns"][at], whole_ns)
    before, after = (np.array([*map(log2.lane_of, ns.tolist())]) for ns in (records["first_off_ns"][at], whole_ns))
    records["histogram"][at, before] -= 1
    records["histogram"][at, after] += 1
    tick.lengthened.append(np.column_stack((sites[at], whole_ns, before, after)))
    return records


def _thread_numbers(records: Rows, taken_ns: Ints, taken_ready_ns: Ints) -> Ints:
    """Return what records add to the totals of their threads.

    Of the first wait, `taken_ns` were counted before, `taken_ready_ns` of them as run queue.
    """
    kind = records["first_kind"] & layout.KIND_MASK
    is_short, is_filtered = kind == layout.KIND_SHORT, kind == layout.KIND_FILTERED
    was_preempted = (records["first_kind"] & layout.KIND_PREEMPTED) != 0
    numbers = np.zeros((len(records), THREADS.numbers), np.int64)
    for name, taken in (
        ("waits", 0),
        ("offcpu_ns", taken_ns),
        ("runqueue_ns", taken_ready_ns),
        ("preempted_ns", taken_ns * was_preempted),
        ("involuntary", 0),
        ("short_waits", 0),
        ("short_ns", taken_ns * is_short),
        ("short_runqueue_ns", taken_ready_ns * is_short),
        ("filtered_ns", taken_ns * is_filtered),
        ("filtered_runqueue_ns", taken_ready_ns * is_filtered),
        ("max_ns", 0),
    ):
        numbers[:, THREAD_COLUMN[name]] = records[name] - taken
    return numbers


def _lost_sites(ids: Ints) -> Ints:
    """Return for each thread the site of those waits that the BPF programs had no room to store."""
    return np.column_stack((ids, np.tile((STACK_LOST, STACK_LOST, NO_WAKE), (len(ids), 1))))
