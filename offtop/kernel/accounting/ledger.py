"""Adds each tick's records to running totals, so that every wait is counted exactly once.

The BPF programs record a wait when it ends, but a snapshot must also contain the part of each wait that has passed so
far. So a wait in progress is shown as it grows (`Waiting`). If it ends at another site than it was shown at, a `Move`
says how much of it was shown elsewhere. No total of a thread ever decreases, and the accounting sums hold at every
snapshot. The ledger reads no clock and imports no bcc, so that tests can replace the kernel.

The steps of a tick are in modules of their own: `waits_in_progress`, `finished_waits`, `run_times`, `totals`, and
`eviction`. They compute all threads of a tick at once, as columns: `rows` are always those of threads in the
ThreadTable.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from offtop.kernel.accounting.deferred import DeferredRecords
from offtop.kernel.accounting.eviction import Dropped, Eviction
from offtop.kernel.accounting.finished_waits import FinishedWaits, Locate
from offtop.kernel.accounting.run_times import RunTimes
from offtop.kernel.accounting.thread_table import ThreadTable, parts_without_repeats
from offtop.kernel.accounting.tick_deltas import LastRecords, TickDeltas
from offtop.kernel.accounting.tick_records import (
    NewThread,
    OffCpuTask,
    OffCpuTasks,
    RuntimeSample,
    RuntimeSamples,
    SiteDeltas,
    ThreadRecords,
)
from offtop.kernel.accounting.totals import Totals
from offtop.kernel.accounting.waits_in_progress import WaitsInProgress
from offtop.kernel.bpf import layout
from offtop.kernel.bpf.layout import ThreadRecord
from offtop.kernel.bpf.scan_rows import chosen
from offtop.model.values.catalog import Catalog, ThreadKey, ThreadLifetime
from offtop.model.values.moves import Moves
from offtop.model.values.table import RUNNING_NS, THREADS, Ints, Mask, integers, lookup_keys
from offtop.model.values.waits import Waits
from offtop.model.values.wake import Storm
from offtop.units import NS_PER_S

_CHECK_ALIVE_AFTER_NS = 60 * NS_PER_S
"""A running thread that has not waited for this long is checked in /proc: its exit record may have been lost."""
_MOST_ENDED = 1 << 15
"""How many exited threads a snapshot shows by name. The totals of the others are added to EXITED: each thread takes
1 KB or more, and 2,000 may exit per second, with up to 60 s between snapshots."""


class Ledger:
    """Running totals and the waits in progress, as of the last tick."""

    def __init__(
        self,
        at_ns: int,
        locate: Locate = lambda raw: raw.astype(np.int64),
        catalog: Catalog | None = None,
        is_alive: Callable[[ThreadKey], bool] = lambda _: False,
    ) -> None:
        """Start counting at `at_ns`. `locate` turns a record's raw ids into a site."""
        self.at_ns = self._began_ns = at_ns
        self.catalog = catalog or Catalog()
        self._is_alive = is_alive
        self._totals, self._table, self._deferred = Totals(), ThreadTable(), DeferredRecords()
        self._runs = RunTimes(self._table, at_ns)
        self._eviction = Eviction(self.catalog, self._totals, self._table, self._deferred, at_ns)
        self._in_progress = WaitsInProgress(self._table, self._deferred, self._eviction)
        self._finished = FinishedWaits(self._table, self._in_progress, self._deferred, locate, self.catalog)
        self.threads, self.sites = self._totals.threads, self._totals.sites
        self._states = 0
        self._exited: dict[ThreadKey, int] = {}
        """Threads that exited in the last tick or since the last snapshot, and when."""
        self._snapshot_ns = at_ns
        """Time of the last snapshot."""
        self._window_from_ns = at_ns
        """Time of the snapshot before the last."""

    @property
    def waiting(self) -> Waits:
        """The waits in progress."""
        return self._table.frozen()

    @property
    def moves(self) -> Moves:
        """Moves in the last tick, or since the last snapshot."""
        return self._in_progress.moves

    @property
    def storms(self) -> Mapping[int, Storm]:
        """Totals by the catalog id of a wake with the storm's waker."""
        return self._totals.storms

    @property
    def follows_snapshot(self) -> bool:
        """Whether a snapshot was taken of the last tick."""
        return self._snapshot_ns == self.at_ns

    def tick(
        self,
        at_ns: int,
        min_ns: int,
        threads: ThreadRecords | Iterable[tuple[ThreadKey, ThreadRecord]],
        sites: SiteDeltas,
        off_cpu_tasks: OffCpuTasks | Sequence[OffCpuTask],
        *,
        exited: Mapping[ThreadKey, int] | None = None,
        ran: RuntimeSamples | Sequence[RuntimeSample] = (),
        started: Sequence[NewThread] = (),
        primed_ns: int = 0,
        filter_changed: bool = False,
        states: int = 0,
        max_ns: int = 0,
        storms: Mapping[int, Storm] = MappingProxyType({}),
        threads_lost: int = 0,
        has_snapshot: bool = True,
    ) -> list[ThreadKey]:
        """Add one tick, and return the threads that exited in it and will be evicted.

        `exited` has the threads that exited, and when; `ran` the total CPU time of threads for which it has changed;
        `started` the new threads on their first CPU. `primed_ns` is the start of the task scan if `off_cpu_tasks` has
        every off-CPU thread, 0 otherwise. `filter_changed`: the thread filter has changed, so a wait that was not being
        counted counts only from the last tick on. `states` and `max_ns` are those of Filters. `threads_lost` is the
        number of thread records lost so far.

        `has_snapshot`: a snapshot follows. If not, what a snapshot shows of its last tick (maxima, moves) accumulates
        until there is one, and exited threads are kept until one has shown them.

        Afterwards the totals are as of `at_ns`, and copying them out makes a snapshot.
        """
        follows_snapshot, table = self.follows_snapshot, self._table
        if follows_snapshot:
            self._in_progress.forget_moves()
            table.is_new[:] = False
        records, tasks, samples = ThreadRecords.of(threads), OffCpuTasks.of(off_cpu_tasks), RuntimeSamples.of(ran)
        record_rows, task_rows = table.rows_of(records.ids), table.rows_of(tasks.waits.rows[:, :2])
        sample_rows, _ = table.rows_of(samples.ids), table.rows_of(integers([one.key for one in started], 2))
        acquired_before_ns = table.tid_acquired_ns[sample_rows]
        tick = TickDeltas(
            at_ns=at_ns,
            before_ns=self.at_ns,
            snapshot_ns=self._snapshot_ns,
            min_ns=min_ns,
            states=states,
            max_ns=max_ns,
            filter_changed=filter_changed,
            has_snapshot=has_snapshot,
            counted=sites,
            tasks=tasks,
            task_rows=task_rows,
            task_of=table.positions_in(task_rows),
        )
        is_previous = self._add_records(tick, records, record_rows)
        last = LastRecords(records, record_rows, is_previous, len(table.ids))
        self._in_progress.begin_new(tick, last)
        for one in started:
            self._in_progress.end_new(tick, one, last)
        sites, written_off = self._finished.hold_back(tick, sites, last, threads_lost)
        unreported_exits: list[ThreadKey] = []
        if primed_ns:  # every counted thread has been reported
            unreported_exits = self._exited_without_record(tick, last)
            self._in_progress.prime(tick, last, primed_ns)
            self._runs.discard_unreported((tick.task_of >= 0) | table.flags(sample_rows))
        is_old = samples.rows["ended"] & (samples.rows["tid_acquired_ns"] < acquired_before_ns)
        self._add_run_times(tick, sample_rows[~is_old], samples.of_rows(~is_old), last)
        to_update = table.is_unsettled | ((tick.task_of >= 0) & ~last.has_record)
        if max_ns or states != self._states:
            to_update |= table.is_waiting
        self._in_progress.update(tick, np.flatnonzero(to_update), at_ns)
        self._states = states
        has_record = last.has_record
        previous_owners = {*table.keys(np.unique(record_rows[is_previous]))}
        late = {
            key: self._exited[key] for key in previous_owners & self._exited.keys() if not has_record[table.row(key)]
        }
        # Those that no snapshot has shown yet are kept.
        kept = self._evict_exited(at_ns, has_record, late, most_kept=0 if follows_snapshot else _MOST_ENDED)
        self._totals.add(tick, sites, follows_snapshot)
        self._totals.add_storms(storms, at_ns, follows_snapshot)
        ended = {
            key: end_ns
            for key, end_ns in (exited or {}).items()
            if key not in previous_owners or has_record[table.row(key)]
        }
        ended = {**late, **dict.fromkeys((*written_off, *unreported_exits), at_ns), **ended}
        self._exited = {**kept, **ended}
        for key, end_ns in ended.items():
            self._end(key, end_ns)
        self.at_ns = at_ns
        if has_snapshot:
            self._window_from_ns, self._snapshot_ns = self._snapshot_ns, at_ns
        return [*ended]

    def begin(self, key: ThreadKey, from_ns: int) -> None:
        """Note that a thread began at `from_ns`, or has been counted since then.

        May be called again for the same thread, and for a previous owner of its tid.
        """
        if from_ns > max(self._began_ns, self.catalog.life(key).from_ns):
            self.catalog.lives[key] = ThreadLifetime(from_ns)

    def begin_all(self, ids: Ints, start_ns: Ints) -> None:
        """Note when threads (pid, tid) began, as `begin` does."""
        new = start_ns > self._began_ns
        for key, from_ns in zip(map(THREADS.key, ids[new].tolist()), start_ns[new].tolist(), strict=True):
            self.begin(key, from_ns)

    def read_users(self, ids: Ints, switched_out_ns: Ints, users: Ints) -> None:
        """Set the user stacks of waits in progress, which were unwound in user space.

        `ids` are the threads (pid, tid), and `switched_out_ns` says which of their waits.
        """
        self._in_progress.read_users(ids, switched_out_ns, users)

    def note_stacks_used(self, stacks: Collection[int]) -> None:
        """Note that something else than waits referred to these stacks in the last tick."""
        self._eviction.release_stacks(np.array([*stacks], np.int64), self.at_ns)

    def age(self, keep_ns: int) -> Dropped | None:
        """Once every `keep_ns`, evict what was not used for that long; see Eviction.age."""
        return self._eviction.age(self.at_ns, keep_ns)

    def drop_wakes(self, most: int) -> set[int]:
        """Evict the least recently used wakes until `most` are left; see Eviction.drop_wakes."""
        return self._eviction.drop_wakes(most, self.at_ns, self._window_from_ns)

    def drop_stacks(self, of_users: Collection[int], most: int) -> set[int]:
        """Evict the least recently used of these user stacks until `most` are left; see Eviction.drop_stacks."""
        return self._eviction.drop_stacks(of_users, most, self.at_ns, self._window_from_ns)

    def _add_records(self, tick: TickDeltas, records: ThreadRecords, rows: Ints) -> Mask:
        """Add the finished waits of records, and begin the waits that were in progress at the end of the tick.

        Returns which records are of a previous owner of the tid.
        """
        is_previous = np.zeros(len(records), np.bool_)
        for part in parts_without_repeats(rows):
            some = records if len(part) == len(records) else records.of_rows(part)
            is_previous[part] = self._finished.count(tick, rows[part], some)
            is_off_cpu = ~is_previous[part] & (some.rows["switched_out_ns"] != 0)
            switched_out_ns = some.rows["switched_out_ns"][is_off_cpu].astype(np.int64)
            state = some.rows["state"][is_off_cpu].astype(np.int64)
            from_ns = np.minimum(switched_out_ns, tick.at_ns)
            self._in_progress.begin(tick, rows[part][is_off_cpu], switched_out_ns, from_ns, state)
        return is_previous

    def _exited_without_record(self, tick: TickDeltas, last: LastRecords) -> list[ThreadKey]:
        """Return the threads that exited without a record. Valid only if this tick reports every counted thread."""
        is_reported, table = last.has_record | (tick.task_of >= 0), self._table
        old = self.threads.not_added_since(tick.at_ns - _CHECK_ALIVE_AFTER_NS)
        unreported = (key for key in old if key.tid and not ((row := table.row(key)) >= 0 and is_reported[row]))
        return [key for key in unreported if not self._is_alive(key)]

    def _evict_exited(
        self, at_ns: int, has_record: Mask, late: Collection[ThreadKey], most_kept: int
    ) -> dict[ThreadKey, int]:
        """Evict the threads that exited before this tick, except for `late` and the last `most_kept` ones.

        Returns the latter, and when they exited. `has_record`: see LastRecords.
        """
        table = self._table
        exited = [
            key
            for key, end_ns in self._exited.items()
            if self.catalog.life(key).from_ns <= end_ns
            and key not in late
            and not ((row := table.row(key)) >= 0 and (table.is_waiting[row] or has_record[row]))
        ]
        surplus = max(0, len(exited) - most_kept)
        self._eviction.evict_threads(exited[:surplus], at_ns)
        return {key: self._exited[key] for key in exited[surplus:]}

    def _add_run_times(self, tick: TickDeltas, rows: Ints, samples: RuntimeSamples, last: LastRecords) -> None:
        of_record = last.positions(rows)
        has_record = np.flatnonzero(of_record >= 0)
        records = chosen(last.records.rows, of_record[has_record])
        off_ns, first_ns = np.zeros((2, len(rows)), np.int64)
        in_progress_ns = np.where(records["switched_out_ns"], np.maximum(0, tick.at_ns - records["switched_out_ns"]), 0)
        off_ns[has_record] = records["offcpu_ns"] + in_progress_ns
        first_ns[has_record] = np.where(records["first_kind"] & layout.KIND_NEW, records["first_off_ns"], 0)
        lives = self.catalog.lives
        for part in parts_without_repeats(rows):
            some, in_table = samples.of_rows(part), rows[part]
            ran_ns = self._runs.new_ns(in_table, some, off_ns[part], first_ns[part], self.at_ns, tick.at_ns)
            has_run = ran_ns != 0
            numbers = np.zeros((np.count_nonzero(has_run), THREADS.numbers), np.int64)
            numbers[:, RUNNING_NS] = ran_ns[has_run]
            tick.settled.append((some.ids[has_run], numbers))
            known = map(lives.get, lookup_keys(some.ids))
            for at in [at for at, life in enumerate(known) if life and life.to_ns]:
                self._revive(int(in_table[at]), int(some.rows["start_ns"][at]))

    def _revive(self, row: int, start_ns: int) -> None:
        """Mark a thread as alive again.

        A thread that calls exec() takes over the tid of its main thread, whose exit was noted under that tid.
        """
        if self._runs.is_last(row, start_ns):
            (key,) = self._table.keys(np.array([row]))
            self.catalog.lives[key] = self.catalog.life(key)._replace(to_ns=0)
            self._exited.pop(key, None)

    def _end(self, key: ThreadKey, at_ns: int) -> None:
        life = self.catalog.life(key)
        if at_ns >= life.from_ns:  # otherwise another thread has its tid
            self.catalog.lives[key] = life._replace(to_ns=at_ns)
