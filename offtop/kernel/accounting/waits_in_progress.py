"""Waits in progress: how they begin, grow, move to another site, and become finished time.

A snapshot shows the part of each wait that has passed so far. When the wait ends, that part is settled: it becomes
finished time, and the record of the wait then adds only the rest.
"""

from dataclasses import replace

import numpy as np

from offtop.kernel.accounting.deferred import DeferredRecords
from offtop.kernel.accounting.eviction import Eviction
from offtop.kernel.accounting.thread_table import ThreadTable
from offtop.kernel.accounting.tick_deltas import LastRecords, TickDeltas
from offtop.kernel.accounting.tick_records import NOT_SCANNED, NewThread
from offtop.kernel.bpf import layout
from offtop.model.values.moves import MOVE_FIELDS, Moves
from offtop.model.values.stack import FILTERED, FIRST_STACK, NO_STACK, PLACELESS, SHORT
from offtop.model.values.table import SITES, Ints, integers, rows_at
from offtop.model.values.waits import (
    ARGUMENTS,
    BOUND,
    CALL,
    FIELDS,
    FROM_NS,
    KERNEL,
    PREEMPTED,
    READ_USER,
    READY_NS,
    SINCE_NS,
    STATE,
    SWITCHED_OUT_NS,
    USER,
    WAKE,
    thread_numbers,
)
from offtop.model.values.wake import NO_WAKE

_DETAILS = [SINCE_NS, BOUND, STATE, CALL, *range(ARGUMENTS, READ_USER)]
"""Columns of a wait that come from the task scan alone."""


class WaitsInProgress:
    """The waits in progress of the ThreadTable, and their moves between sites."""

    def __init__(self, table: ThreadTable, deferred: DeferredRecords, eviction: Eviction) -> None:
        self._table, self._deferred, self._eviction = table, deferred, eviction
        self._moves: list[Ints] = []

    @property
    def moves(self) -> Moves:
        """Moves since `forget_moves`."""
        return Moves(np.concatenate([integers([], MOVE_FIELDS), *self._moves]))

    def forget_moves(self) -> None:
        self._moves.clear()

    def begin(self, tick: TickDeltas, rows: Ints, switched_out_ns: Ints, from_ns: Ints, state: Ints) -> None:
        """Add waits in progress that no snapshot has shown.

        Each is at the stack that the task scan found. Without one it counts as short until it is known.
        """
        table, scanned = self._table, tick.tasks.waits.rows
        waits = np.zeros((len(rows), FIELDS), np.int64)
        waits[:, :2], waits[:, KERNEL], waits[:, CALL] = rows_at(table.ids, rows), SHORT, -1
        waits[:, SWITCHED_OUT_NS], waits[:, FROM_NS], waits[:, STATE] = switched_out_ns, from_ns, state
        waits[:, PREEMPTED] = (state & (layout.RUNNING | layout.TASK_NEW)) == layout.RUNNING
        is_filtered = tick.excludes(state)
        waits[is_filtered, KERNEL] = FILTERED
        is_unsettled = np.ones(len(rows), np.bool_)
        at, task = tick.scanned(rows, switched_out_ns)
        has_stack = scanned[task, KERNEL] != NOT_SCANNED
        at, task = at[has_stack], task[has_stack]
        waits[at[:, None], _DETAILS] = scanned[task[:, None], _DETAILS]
        is_shown = ~is_filtered[at]
        at, task = at[is_shown], task[is_shown]
        waits[at, KERNEL], waits[at, WAKE] = scanned[task, KERNEL], scanned[task, WAKE]
        waits[at, READ_USER] = scanned[task, READ_USER]
        waits[at, USER] = np.where(waits[at, KERNEL] < FIRST_STACK, NO_STACK, waits[at, READ_USER])
        is_runnable = (state[at] & layout.RUNNING != 0) | tick.tasks.runnable[task]
        is_unsettled[at] = (waits[at, KERNEL] < FIRST_STACK) | is_runnable
        table.waits[rows], table.is_unsettled[rows] = waits, is_unsettled
        table.is_waiting[rows] = table.is_new[rows] = True
        table.change(rows)
        self._set_holders(tick, rows[at])

    def begin_new(self, tick: TickDeltas, last: LastRecords) -> None:
        """Add new threads' waits for their first CPU, which only the task scan reports.

        If the thread has a record in this tick, that contains the wait, unless it is of a previous owner of the tid.
        """
        table, tasks = self._table, tick.tasks
        new = np.flatnonzero(tasks.waits.rows[:, STATE] & layout.TASK_NEW)
        rows, switched_out_ns = tick.task_rows[new], tasks.waits.rows[new, SWITCHED_OUT_NS]
        is_known = table.is_waiting[rows] & (table.waits[rows, SWITCHED_OUT_NS] == switched_out_ns)
        is_known |= last.acquired_ns(rows) >= tasks.tid_acquired_ns[new]
        new, rows, switched_out_ns = new[~is_known], rows[~is_known], switched_out_ns[~is_known]
        self.settle_as_shown(tick, rows)
        table.tid_acquired_ns[rows] = tasks.tid_acquired_ns[new]
        self.begin(tick, rows, switched_out_ns, np.minimum(switched_out_ns, tick.at_ns), tasks.waits.rows[new, STATE])

    def end_new(self, tick: TickDeltas, one: NewThread, last: LastRecords) -> None:
        """Settle a new thread's wait for its first CPU.

        Its time counts now. The wait itself is counted when the thread's record arrives, which may be much later: the
        thread has not been switched out yet.
        """
        identity, until_ns = (one.key, one.tid_acquired_ns), one.switched_out_ns + one.first_ns
        table, rows = self._table, self._table.rows_of(integers([one.key], 2))
        has_returned = last.acquired_ns(rows)[0] >= one.tid_acquired_ns
        if until_ns > tick.at_ns or has_returned or self._deferred.shown_of(identity):
            return
        tick = replace(tick, task_of=np.full_like(tick.task_of, -1))  # the scan saw an earlier wait, if any
        if table.is_waiting[rows[0]] and table.waits[rows[0], SWITCHED_OUT_NS] == one.switched_out_ns:
            until_ns = until_ns if table.is_new[rows[0]] else max(until_ns, tick.snapshot_ns)
        else:
            self.settle_as_shown(tick, rows)
            table.tid_acquired_ns[rows] = one.tid_acquired_ns
            switched_out_ns = np.array([one.switched_out_ns])
            self.begin(tick, rows, switched_out_ns, switched_out_ns, np.array([layout.RUNNING | layout.TASK_NEW]))
        self.update(tick, rows, until_ns)
        self.settle(tick, table.waits[rows], until_ns=until_ns)
        table.end(rows)
        self._deferred.keep_shown(identity, one.switched_out_ns, until_ns)

    def prime(self, tick: TickDeltas, last: LastRecords, scan_ns: int) -> None:
        """Adopt the waits in progress from the task scan that began at `scan_ns`.

        Some of them began before tracing did.
        """
        table, tasks = self._table, tick.tasks
        record = last.positions(tick.task_rows)
        is_running = record >= 0
        is_running[is_running] = last.records.rows["switched_out_ns"][record[is_running]] == 0
        rows = table.waiting
        over = rows[~table.flags(tick.task_rows[~is_running])[rows] & (table.waits[rows, SWITCHED_OUT_NS] < scan_ns)]
        self.settle_as_shown(tick, over)
        table.is_unsettled[over] = False
        new = ~is_running & ~table.is_waiting[tick.task_rows] & (tasks.waits.rows[:, KERNEL] != NOT_SCANNED)
        rows, some = tick.task_rows[new], tasks.waits.rows[new]
        table.tid_acquired_ns[rows] = np.maximum(table.tid_acquired_ns[rows], tasks.tid_acquired_ns[new])
        self.begin(tick, rows, some[:, SWITCHED_OUT_NS], np.full(len(rows), tick.at_ns), some[:, STATE])

    def update(self, tick: TickDeltas, rows: Ints, at_ns: int) -> None:
        """Update waits in progress: their sites as of `at_ns`, and how much of each is run queue."""
        table, tasks = self._table, tick.tasks
        is_waiting = table.is_waiting[rows]
        table.is_unsettled[rows[~is_waiting]] = False
        rows = rows[is_waiting]
        was, waits = table.waits[rows], table.waits[rows]
        switched_out_ns, state, kernel = was[:, SWITCHED_OUT_NS], waits[:, STATE], waits[:, KERNEL]
        age_ns = at_ns - switched_out_ns
        seen, task = tick.scanned(rows, switched_out_ns)
        has_stack = tasks.waits.rows[task, KERNEL] != NOT_SCANNED
        at, scanned = seen[has_stack], tasks.waits.rows[task[has_stack]]
        is_placeless = np.isin(kernel, [*PLACELESS])
        kernel[is_placeless] = np.where(age_ns[is_placeless] < tick.min_ns, SHORT, NO_STACK)
        waits[at, KERNEL], waits[at, WAKE] = scanned[:, KERNEL], scanned[:, WAKE]
        waits[at[:, None], _DETAILS] = scanned[:, _DETAILS]
        # When all waits are read again, the begin of an old one is estimated anew: the wait itself has not changed.
        waits[:, SINCE_NS] = np.where(was[:, SINCE_NS], was[:, SINCE_NS], waits[:, SINCE_NS])
        is_read = scanned[:, READ_USER] != NO_STACK
        waits[at[is_read], READ_USER] = scanned[is_read, READ_USER]
        is_filtered = tick.excludes(state)
        if tick.max_ns:
            is_filtered |= age_ns > tick.max_ns
        waits[is_filtered, KERNEL], waits[is_filtered, WAKE] = FILTERED, NO_WAKE
        waits[:, USER] = np.where(kernel < FIRST_STACK, NO_STACK, waits[:, READ_USER])
        # The thread may have been switched out just after the tick in which the wait was first reported.
        waits[:, FROM_NS] = np.maximum(was[:, FROM_NS], np.minimum(switched_out_ns, at_ns))
        moves_on = (waits[:, : SITES.width] != was[:, : SITES.width]).any(axis=1)
        moves_on &= (waits[:, FROM_NS] < tick.snapshot_ns) & ~table.is_new[rows]
        is_settled = moves_on & (np.isin(was[:, KERNEL], [*PLACELESS]) | np.isin(kernel, [*PLACELESS]))
        # Only a thread that is frozen or thawed where it waits changes its state: what it was until then stays.
        is_settled |= moves_on & (was[:, STATE] != state) & (was[:, KERNEL] >= FIRST_STACK)
        self.settle(tick, was[is_settled])
        waits[is_settled, FROM_NS], waits[is_settled, READY_NS] = tick.snapshot_ns, 0
        moved = moves_on & ~is_settled
        self.move(tick, was[moved], waits[moved, : SITES.width], at_ns - waits[moved, FROM_NS])
        so_far_ns = at_ns - waits[:, FROM_NS]
        is_ready = (waits[:, PREEMPTED] != 0) | (state & layout.TASK_NEW != 0)
        if tick.has_snapshot:
            # Time shown as blocked stays blocked.
            grown_ns = waits[:, READY_NS] + at_ns - np.maximum(waits[:, FROM_NS], tick.snapshot_ns)
            # A thread that is queued stays queued until it runs, scanned or not.
            was_queued = was[:, READY_NS] != 0
            waits[was_queued, READY_NS] = grown_ns[was_queued]
            is_queued = tasks.runnable[task] & (tasks.queued_ns[task] != 0) & ~was_queued[seen]
            at, queued_ns = seen[is_queued], tasks.queued_ns[task[is_queued]]
            ready_ns = at_ns - np.maximum(switched_out_ns[at], queued_ns)
            waits[at, READY_NS] = np.maximum(0, np.minimum(ready_ns, grown_ns[at]))
        waits[is_ready, READY_NS] = so_far_ns[is_ready]
        table.is_unsettled[rows] = np.isin(kernel, [SHORT, FILTERED, NO_STACK]) | (waits[:, READY_NS] != 0)
        table.waits[rows] = waits
        table.change(rows[(waits != was).any(axis=1)])
        self._set_holders(tick, rows[seen])

    def read_users(self, ids: Ints, switched_out_ns: Ints, users: Ints) -> None:
        """Set the user stacks of waits in progress; see Ledger.read_users."""
        table, rows = self._table, self._table.known_rows_of(ids)
        is_there = (rows >= 0) & table.is_waiting[rows] & (table.waits[rows, SWITCHED_OUT_NS] == switched_out_ns)
        # When all waits are read again, so are their stacks: those that are the same change nothing.
        is_there[is_there] = table.waits[rows[is_there], READ_USER] != users[is_there]
        rows = rows[is_there]
        table.waits[rows, READ_USER] = users[is_there]
        table.is_unsettled[rows] = True  # their sites change in the next tick
        table.change(rows)

    def settle(self, tick: TickDeltas, waits: Ints, until_ns: int = 0) -> None:
        """Turn what was shown of waits in progress into finished time; the arguments are those of `settled`."""
        tick.settled.append((waits[:, :2], self.settled(tick, waits, until_ns=until_ns)))

    def settled(
        self, tick: TickDeltas, waits: Ints, moved_ns: Ints | int = 0, moved_ready_ns: Ints | int = 0, until_ns: int = 0
    ) -> Ints:
        """Add what was shown of waits in progress to their sites, and return what it adds to their threads.

        What moved to another site is excluded. `until_ns`: add everything up to this time instead.
        """
        shown_ns = np.maximum(0, (until_ns or tick.snapshot_ns) - waits[:, FROM_NS])
        # READY_NS is as of the last tick, which may be later than the last snapshot.
        ready_ns = np.minimum(shown_ns, waits[:, READY_NS])
        kernel = waits[:, KERNEL]
        read = np.unique(waits[:, READ_USER])
        self._eviction.release_stacks(read[read != NO_STACK], tick.before_ns)
        at = ~np.isin(kernel, [*PLACELESS])
        tick.add_sites(waits[at, : SITES.width], (shown_ns - moved_ns)[at], (ready_ns - moved_ready_ns)[at])
        return thread_numbers(np.column_stack((waits[:, : SITES.width], shown_ns, ready_ns, waits[:, PREEMPTED])))

    def settle_as_shown(self, tick: TickDeltas, rows: Ints) -> None:
        """Settle the waits in progress of previous owners of a tid, or of written-off threads.

        What was shown of them is remembered, in case the thread's record still arrives.
        """
        table = self._table
        rows = rows[table.is_waiting[rows]]
        table.end(rows)
        rows = rows[~table.is_new[rows]]
        self.settle(tick, table.waits[rows])
        began_ns, acquired_ns = (
            table.waits[rows, SWITCHED_OUT_NS].tolist(),
            np.maximum(0, table.tid_acquired_ns[rows]).tolist(),
        )
        for key, acquired, began in zip(table.keys(rows), acquired_ns, began_ns, strict=True):
            self._deferred.keep_shown((key, acquired), began, tick.snapshot_ns)

    def move(self, tick: TickDeltas, waits: Ints, now: Ints, longest_ns: Ints) -> tuple[Ints, Ints]:
        """Move what was shown of waits, at most `longest_ns` of each, to the sites `now`.

        Returns how much was moved, and how much of that was run queue.
        """
        moved_ns = np.minimum(longest_ns, np.maximum(0, tick.snapshot_ns - waits[:, FROM_NS]))
        moved_ns[np.isin(waits[:, KERNEL], [*PLACELESS])] = 0
        ready_ns = np.minimum(waits[:, READY_NS], moved_ns)
        was = waits[:, : SITES.width]
        at = (moved_ns != 0) & (now != was).any(axis=1)
        until_ns = np.full(np.count_nonzero(at), tick.snapshot_ns)
        times = until_ns - moved_ns[at], until_ns, ready_ns[at]
        self._moves.append(np.column_stack((was[at], now[at], *times)))
        self._eviction.release_sites(was[at], tick.before_ns)
        return moved_ns, ready_ns

    def _set_holders(self, tick: TickDeltas, rows: Ints) -> None:
        """Take the lock holders of these threads from the task scan."""
        before, now = self._table.holders, tick.tasks.waits.holders
        if not (before or now):
            return
        for row, key in zip(rows.tolist(), self._table.keys(rows), strict=True):
            if before.get(key) != now.get(key):
                self._table.change(np.array([row]))
                before.pop(key, None)
                if key in now:
                    before[key] = now[key]
