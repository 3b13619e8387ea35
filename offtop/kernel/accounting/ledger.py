"""Adds each tick's records to running totals, so that every wait is counted exactly once.

A record has whole waits; a snapshot must show the part of each that has passed so far. So a wait in progress is shown
as it grows (`Waiting`), and if it ends at another site than it was shown at, a `Move` says how much of it was shown
elsewhere. No total of a thread ever decreases, and the accounting sums hold at every snapshot. The ledger reads no
clock and imports no bcc, so that a test can play the kernel.

All threads of a tick are computed at once, as columns: `rows` are always those of threads in the ThreadTable.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from offtop.kernel.accounting.deferred import DeferredRecords
from offtop.kernel.accounting.run_times import RunTimes
from offtop.kernel.accounting.thread_table import UNKNOWN_NS, ThreadTable, once_each
from offtop.kernel.accounting.tick_records import (
    NOT_SCANNED,
    NewThread,
    OffCpuTask,
    OffCpuTasks,
    RuntimeSample,
    RuntimeSamples,
    SiteDeltas,
    ThreadRecords,
)
from offtop.kernel.bpf import layout
from offtop.kernel.bpf.layout import ThreadRecord
from offtop.kernel.bpf.scan_rows import Rows, record_of
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey, ThreadLifetime
from offtop.model.values.moves import MOVE_FIELDS, Moves
from offtop.model.values.running import Running
from offtop.model.values.snapshot import EXITED, SiteTotals, ThreadTotals
from offtop.model.values.stack import FILTERED, FIRST_STACK, NO_STACK, PLACELESS, SHORT, STACK_LOST
from offtop.model.values.table import RUNNING_NS, SITES, THREADS, Ints, Mask, integers, lookup_keys
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
    Waits,
)
from offtop.model.values.wake import FIRST_WAKE, NO_WAKE, Storm
from offtop.units import NS_PER_S

_MOST_NAMES = 50_000
"""How many names of exited threads are kept: without a limit they would take 400 MB on a machine that forks 2,000 times
a second."""
_CHECK_ALIVE_AFTER_NS = 60 * NS_PER_S
"""A running thread that has not waited for so long is checked in /proc: its exit record may have been lost."""
_MOST_ENDED = 1 << 15
"""How many threads that exited since the last snapshot the next one shows by name. The sums of the others go to EXITED:
each takes 1 KB or more, and 2,000 may exit per second, with up to 60 s between snapshots."""
_DETAILS = [SINCE_NS, BOUND, CALL, *range(ARGUMENTS, READ_USER)]
"""Columns of a wait that come from the task scan alone."""
_THREAD = {name: column for column, name in enumerate(ThreadTotals._fields)}

Locate = Callable[[NDArray[np.uint64]], Ints]
"""Rows of pid, tid, raw kernel stack id, raw user stack id and raw wake id → rows of sites."""


class Dropped(NamedTuple):
    """Ids evicted from the catalog."""

    stacks: set[int]
    wakes: set[int]


@dataclass(slots=True)
class _Tick:
    """What a tick works with, and what it adds to the totals."""

    at_ns: int
    min_ns: int
    states: int
    max_ns: int
    filter_changed: bool
    has_snapshot: bool
    tasks: OffCpuTasks
    task_of: Ints
    """Thread → its position in `tasks`, or -1."""
    ended: list[tuple[Ints, Ints, Ints]] = field(default_factory=list[tuple[Ints, Ints, Ints]])
    """Finished waits by thread: ids, numbers, lanes."""
    settled: list[tuple[Ints, Ints]] = field(default_factory=list[tuple[Ints, Ints]])
    """The same for waits in progress and CPU time, which have no histogram."""
    sites: list[tuple[Ints, Ints]] = field(default_factory=list[tuple[Ints, Ints]])
    """The same by site; what the BPF programs counted by site is added in bulk instead."""
    late: list[tuple[SiteKey, SiteTotals]] = field(default_factory=list[tuple[SiteKey, SiteTotals]])
    """Waits that finished in earlier ticks."""
    renamed: dict[SiteKey, SiteKey] = field(default_factory=dict[SiteKey, SiteKey])
    """Site without a kernel stack → the same with the stack from the task scan."""

    def excludes(self, state: Ints) -> Mask:
        """Return which waits with that state at switch-out the filter by state excludes."""
        return (state & self.states) == 0 if self.states else np.zeros(len(state), np.bool_)

    def scanned(self, rows: Ints, switched_out_ns: Ints) -> tuple[Ints, Ints]:
        """Return the positions in `rows` of waits that the task scan has seen, and their tasks.

        For some threads it may have seen an earlier wait than the one that began at `switched_out_ns`.
        """
        task = self.task_of[rows]
        at = np.flatnonzero(task >= 0)
        at = at[self.tasks.waits.rows[task[at], SWITCHED_OUT_NS] == switched_out_ns[at]]
        return at, task[at]

    def add_sites(self, ids: Ints, total_ns: Ints, ready_ns: Ints, waits: Ints | int = 0) -> None:
        numbers = np.zeros((len(ids), SITES.numbers), np.int64)
        numbers[:, 0], numbers[:, 1], numbers[:, 2] = waits, total_ns, ready_ns
        some = numbers.any(axis=1)
        self.sites.append((ids[some], numbers[some]))


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
        self._locate, self._is_alive = locate, is_alive
        self.threads = Running(THREADS)
        self.sites = Running(SITES)
        self._table = ThreadTable()
        self._moves: list[Ints] = []
        self.storms: dict[int, Storm] = {}
        """Totals by the catalog id of a wake with the storm's waker."""
        self._stormed_ns: dict[int, int] = {}
        """Time of the last change of each entry of `storms`."""
        self._states = 0
        self._sites_of: dict[ThreadKey, list[SiteKey]] = {}
        self._runs = RunTimes(self._table, at_ns)
        self._exited: dict[ThreadKey, int] = {}
        """Threads that exited in the last tick or since the last snapshot, and when."""
        self._snapshot_ns = at_ns
        """Time of the last snapshot."""
        self._window_from_ns = at_ns
        """Time of the snapshot before the last."""
        self._deferred = DeferredRecords()
        self._retired: dict[int, int] = {}
        self._retired_wakes: dict[int, int] = {}
        self._aged_at_ns = at_ns
        self._forgotten: deque[tuple[int, ThreadKey]] = deque()

    @property
    def waiting(self) -> Waits:
        """The waits in progress."""
        return self._table.frozen()

    @property
    def moves(self) -> Moves:
        """Moves in the last tick, or since the last snapshot."""
        return Moves(np.concatenate([integers([], MOVE_FIELDS), *self._moves]))

    def tick(
        self,
        at_ns: int,
        min_ns: int,
        threads: ThreadRecords | Iterable[tuple[ThreadKey, ThreadRecord]],
        sites: SiteDeltas,
        off_cpu_tasks: OffCpuTasks | Sequence[OffCpuTask],
        *,
        gone: Mapping[ThreadKey, int] | None = None,
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

        `gone` has the threads that exited, and when; `ran` the total CPU time of threads for which it has changed;
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
            self._moves.clear()
            table.is_new[:] = False
        records, tasks, samples = ThreadRecords.of(threads), OffCpuTasks.of(off_cpu_tasks), RuntimeSamples.of(ran)
        of_records, of_tasks = table.rows_of(records.ids), table.rows_of(tasks.waits.rows[:, :2])
        of_samples, _ = table.rows_of(samples.ids), table.rows_of(integers([one.key for one in started], 2))
        acquired_before_ns = table.tid_acquired_ns[of_samples]
        tick = _Tick(at_ns, min_ns, states, max_ns, filter_changed, has_snapshot, tasks, table.numbers(of_tasks))
        is_previous = np.zeros(len(records), np.bool_)
        for part in once_each(of_records):
            some = records if len(part) == len(records) else records.of_rows(part)
            is_previous[part] = self._count(tick, of_records[part], some)
            is_off_cpu = ~is_previous[part] & (some.rows["switched_out_ns"] != 0)
            switched_out_ns = some.rows["switched_out_ns"][is_off_cpu].astype(np.int64)
            state = some.rows["state"][is_off_cpu].astype(np.int64)
            self._begin(tick, of_records[part][is_off_cpu], switched_out_ns, np.minimum(switched_out_ns, at_ns), state)
        current = np.flatnonzero(~is_previous)
        returned = np.full(len(table.ids), -1)  # thread → position of its last record of this tick
        returned[of_records[current]] = current
        self._begin_new(tick, of_tasks, records, returned)
        for one in started:
            self._end_new(tick, one, records, returned)
        sites, lost = self._hold_back(tick, sites, records, returned, threads_lost)
        silent: list[ThreadKey] = []
        if primed_ns:  # every counted thread has been reported
            is_reported = (returned >= 0) | (tick.task_of >= 0)
            old = self.threads.not_added_since(at_ns - _CHECK_ALIVE_AFTER_NS)
            unreported = (key for key in old if key.tid and not ((row := table.row(key)) >= 0 and is_reported[row]))
            silent = [key for key in unreported if not self._is_alive(key)]
            self._prime(tick, of_tasks, records, returned, primed_ns)
            self._runs.discard_unreported((tick.task_of >= 0) | table.flags(of_samples))
        is_old = samples.rows["ended"] & (samples.rows["tid_acquired_ns"] < acquired_before_ns)
        self._run(tick, of_samples[~is_old], samples.of_rows(~is_old), records, returned)
        to_place = table.is_unsettled | ((tick.task_of >= 0) & (returned < 0))
        if max_ns or states != self._states:
            to_place |= table.is_waiting
        self._place(tick, np.flatnonzero(to_place), at_ns)
        self._states = states
        previous_owners = {*table.keys(np.unique(of_records[is_previous]))}
        late = {key: self._exited[key] for key in previous_owners & self._exited.keys() if returned[table.row(key)] < 0}
        evicted = [
            key
            for key, end_ns in self._exited.items()
            if self.catalog.life(key).from_ns <= end_ns
            and key not in late
            and not ((row := table.row(key)) >= 0 and (table.is_waiting[row] or returned[row] >= 0))
        ]
        unseen = 0 if follows_snapshot else _MOST_ENDED
        shown = max(0, len(evicted) - unseen)
        self._evict(evicted[:shown], at_ns)
        unseen_ns = {key: self._exited[key] for key in evicted[shown:]}
        self._apply(tick, sites, follows_snapshot)
        self._count_storms(storms, at_ns, follows_snapshot)
        ended = {
            key: end_ns
            for key, end_ns in (gone or {}).items()
            if key not in previous_owners or returned[table.row(key)] >= 0
        }
        ended = {**late, **dict.fromkeys((*lost, *silent), at_ns), **ended}
        self._exited = {**unseen_ns, **ended}
        for key, end_ns in ended.items():
            self._end(key, end_ns)
        self.at_ns = at_ns
        if has_snapshot:
            self._window_from_ns, self._snapshot_ns = self._snapshot_ns, at_ns
        return [*ended]

    @property
    def follows_snapshot(self) -> bool:
        """Whether a snapshot was taken of the last tick."""
        return self._snapshot_ns == self.at_ns

    def _count_storms(self, storms: Mapping[int, Storm], at_ns: int, follows_snapshot: bool) -> None:
        if follows_snapshot:
            self.storms = {wake: was._replace(largest=0) if was.largest else was for wake, was in self.storms.items()}
        for wake, one in storms.items():
            self._stormed_ns[wake] = at_ns
            was = self.storms.get(wake, Storm())
            self.storms[wake] = was.plus(one)._replace(largest=max(was.largest, one.largest))

    def _run(self, tick: _Tick, rows: Ints, samples: RuntimeSamples, records: ThreadRecords, returned: Ints) -> None:
        """Add the CPU times."""
        of_record = returned[rows]
        has_record = np.flatnonzero(of_record >= 0)
        did = records.rows[of_record[has_record]]
        off_ns, first_ns = np.zeros((2, len(rows)), np.int64)
        in_progress_ns = np.where(did["switched_out_ns"], np.maximum(0, tick.at_ns - did["switched_out_ns"]), 0)
        off_ns[has_record] = did["offcpu_ns"] + in_progress_ns
        first_ns[has_record] = np.where(did["first_kind"] & layout.KIND_NEW, did["first_off_ns"], 0)
        lives = self.catalog.lives
        for part in once_each(rows):
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
        """Revive a thread that was marked as exited when it called exec().

        Its main thread had exited then, and it took over that tid.
        """
        if self._runs.is_last(row, start_ns):
            (key,) = self._table.keys(np.array([row]))
            self.catalog.lives[key] = self.catalog.life(key)._replace(to_ns=0)
            self._exited.pop(key, None)

    def begin(self, key: ThreadKey, from_ns: int) -> None:
        """Note that a thread began, or is counted, since `from_ns`.

        The same thread may be noted twice, and so may a previous owner of the tid.
        """
        if from_ns > max(self._began_ns, self.catalog.life(key).from_ns):
            self.catalog.lives[key] = ThreadLifetime(from_ns)

    def begin_all(self, ids: Ints, start_ns: Ints) -> None:
        """Note when threads (pid, tid) began, as `begin` does."""
        new = start_ns > self._began_ns
        for key, from_ns in zip(map(THREADS.key, ids[new].tolist()), start_ns[new].tolist(), strict=True):
            self.begin(key, from_ns)

    def _end(self, key: ThreadKey, at_ns: int) -> None:
        life = self.catalog.life(key)
        if at_ns >= life.from_ns:  # otherwise another thread has its tid
            self.catalog.lives[key] = life._replace(to_ns=at_ns)

    def read_user(self, key: ThreadKey, switched_out_ns: int, user: int) -> None:
        """Set the user stack of a wait in progress, which was unwound in user space."""
        table, row = self._table, self._table.row(key)
        if row >= 0 and table.is_waiting[row] and table.waits[row, SWITCHED_OUT_NS] == switched_out_ns:
            table.waits[row, READ_USER] = user
            table.is_unsettled[row] = True  # its site changes in the next tick
            table.change(np.array([row]))

    def age(self, keep_ns: int) -> Dropped | None:
        """Once every `keep_ns`, evict what was not used for that long.

        Returns the ids of dropped stacks and wakes, or None before its time. A live thread's site without a wait for
        keep_ns moves its sums to the site of exited threads; stacks and wakes that nothing refers to any more leave the
        catalog.
        """
        if self.at_ns - self._aged_at_ns < keep_ns:
            return None
        waits = self.waiting.list
        waiting = {*map(SITES.key, waits.sites.tolist())}
        for key in self.sites.not_added_since(self.at_ns - keep_ns):
            if key.tid and key not in waiting:
                self._retire_site(key)
                of_thread = self._sites_of.get(key.thread)
                if of_thread:
                    of_thread.remove(key)
        before_ns = self.at_ns - keep_ns
        sites = [*self.sites, *self._deferred.sites(), *waiting]
        wakes = {key.wake for key in sites}.union(wake for wake, ns in self._stormed_ns.items() if ns >= before_ns)
        dropped_wakes = {
            wake
            for wake in self.catalog.wakes
            if wake >= FIRST_WAKE and wake not in wakes and self._retired_wakes.get(wake, 0) < before_ns
        }
        for wake in dropped_wakes:
            self._drop_wake(wake)
        used = {stack for key in sites for stack in (key.kernel, key.user)}
        used.update(waits.rows[:, READ_USER].tolist())
        used.update(stack for wake in self.catalog.wakes.values() for stack in wake.stacks)
        dropped = {
            stack
            for stack in self.catalog.stacks
            if stack >= FIRST_STACK and stack not in used and self._retired.get(stack, 0) < before_ns
        }
        for stack in dropped:
            del self.catalog.stacks[stack]
            self._retired.pop(stack, None)
        while self._forgotten and self._forgotten[0][0] < before_ns:
            self._forget_name()
        self._aged_at_ns = self.at_ns
        return Dropped(dropped, dropped_wakes)

    def drop_wakes(self, most: int) -> set[int]:
        """Evict the least recently used wakes until `most` are left; return the ids dropped.

        Keeps those that the last snapshot was the first to refer to. The sums of their sites move to those of exited
        threads. An older window that refers to a dropped wake loses the wake and nothing else: the stacks of such sites
        stay in the catalog as long as others do.
        """
        named_ns = {**dict.fromkeys(self.catalog.wakes, 0), **self._retired_wakes}
        added = self.sites.added()
        named = (
            [(key.wake, ns) for key, ns in added],
            self._stormed_ns.items(),
            [(site.wake, self.at_ns) for site in self._deferred.sites()],
            [(wake, self.at_ns) for wake in self.waiting.list.rows[:, WAKE].tolist()],
        )
        for wake, ns in chain(*named):
            named_ns[wake] = max(ns, named_ns.get(wake, 0))
        own = [wake for wake in self.catalog.wakes if wake >= FIRST_WAKE]
        oldest = sorted(own, key=named_ns.__getitem__)[: max(0, len(own) - most)]
        dropped = {wake for wake in oldest if named_ns[wake] <= self._window_from_ns}
        self._retire_sites([key for key, _ in added if key.wake in dropped])
        for wake in dropped:
            self._drop_wake(wake)
        return dropped

    def drop_stacks(self, of_users: Collection[int], most: int) -> set[int]:
        """Evict the least recently used of these user stacks until `most` are left; return the ids dropped.

        Keeps those that the last snapshot was the first to refer to, and those of wakes. The sums of their sites move
        to those of exited threads. An older window that refers to a dropped stack shows it as such.
        """
        used_ns = {**dict.fromkeys(of_users, 0), **self._retired}
        added = self.sites.added()
        in_use = chain(
            (site.user for site in self._deferred.sites()),
            self.waiting.list.rows[:, [USER, READ_USER]].ravel().tolist(),
            chain.from_iterable(wake.stacks for wake in self.catalog.wakes.values()),
        )
        for stack, ns in chain(((key.user, ns) for key, ns in added), zip(in_use, repeat(self.at_ns))):
            used_ns[stack] = max(ns, used_ns.get(stack, 0))
        oldest = sorted(of_users, key=used_ns.__getitem__)[: max(0, len(of_users) - most)]
        dropped = {stack for stack in oldest if used_ns[stack] <= self._window_from_ns}
        self._retire_sites([key for key, _ in added if key.user in dropped])
        for stack in dropped:
            del self.catalog.stacks[stack]
            self._retired.pop(stack, None)
        self.catalog.has_dropped_stacks |= bool(dropped)
        return dropped

    def _retire_sites(self, sites: Sequence[SiteKey]) -> None:
        """Move the sums of sites to those of exited threads."""
        for key in sites:
            self._retired[key.kernel] = self._retired[key.user] = self.at_ns
            self._retire_site(key)
        retired = set(sites)
        for thread in {key.thread for key in sites}:
            self._sites_of[thread] = [one for one in self._sites_of.get(thread, ()) if one not in retired]

    def _drop_wake(self, wake: int) -> None:
        """Drop a wake with its storms: they are running totals, which last as long as their id."""
        del self.catalog.wakes[wake]
        for table in (self._retired_wakes, self._stormed_ns, self.storms):
            table.pop(wake, None)

    def _count(self, tick: _Tick, rows: Ints, records: ThreadRecords) -> Mask:
        """Add the finished waits of records, minus what was shown of the first one while it was in progress.

        `rows` are the threads of the records, each once. Returns which records are of a previous owner of the tid.
        """
        table, did, size = self._table, records.rows, len(rows)
        acquired_ns = table.tid_acquired_ns[rows]
        is_previous = did["tid_acquired_ns"] < acquired_ns
        has_ended = table.is_waiting[rows] & ~is_previous
        was_new = table.is_new[rows]
        was_shown = has_ended & ~was_new
        waits = table.waits[rows]
        table.end(rows[has_ended])
        table.tid_acquired_ns[rows] = np.maximum(acquired_ns, did["tid_acquired_ns"])
        switched_out_ns = np.where(was_shown, waits[:, SWITCHED_OUT_NS], 0)
        shown_to_ns = np.full(size, self._snapshot_ns)
        is_whole = np.ones(size, np.bool_)
        deferred = self._deferred.of(records)
        if deferred:
            did = did.copy()
        for at, identity in deferred:
            rest = self._deferred.rest(identity, record_of(did[at]))
            if rest:
                did[at], is_whole[at] = (*rest[:-1], np.frombuffer(rest.histogram, np.int64)), False
            shown = self._deferred.shown_of(identity)
            if shown and not was_shown[at]:
                switched_out_ns[at], shown_to_ns[at] = shown
                if tick.filter_changed:  # it may not have been counted in between
                    shown_to_ns[at] = self.at_ns
        for at in np.flatnonzero(
            was_shown & (acquired_ns != UNKNOWN_NS) & (acquired_ns < did["tid_acquired_ns"])
        ).tolist():
            key = ThreadKey(*records.ids[at].tolist())
            self._deferred.keep_shown((key, int(acquired_ns[at])), int(switched_out_ns[at]), self._snapshot_ns)
        has_first = (did["waits"] > 0) & is_whole
        was_known = has_first & (switched_out_ns > 0) & (switched_out_ns == did["first_switched_out_ns"])
        for at, identity in deferred:
            if was_known[at]:
                self._deferred.forget_shown(identity)
        was_uncounted = has_first & ~was_shown & ~was_new if tick.filter_changed else np.zeros(size, np.bool_)
        shown_to_ns[was_uncounted] = self.at_ns
        was_counted = was_known | was_uncounted
        sites, has_site = self._first_sites(records.ids, did, was_counted)
        moved_ns, moved_ready_ns = np.zeros((2, size), np.int64)
        at = np.flatnonzero(was_shown & was_known & has_site)
        now = self._with_scanned_stack(tick, sites[at], waits[at])
        moved_ns[at], moved_ready_ns[at] = self._move(waits[at], now, did["first_off_ns"][at])
        numbers = np.zeros((size, THREADS.numbers), np.int64)
        numbers[was_shown] = self._settled(tick, waits[was_shown], moved_ns[was_shown], moved_ready_ns[was_shown])
        # Of the first wait: counted in earlier ticks, or settled just now.
        rest_ns = np.maximum(0, did["first_off_ns"] - np.maximum(0, shown_to_ns - did["first_switched_out_ns"]))
        rest_ready_ns = np.minimum(rest_ns, did["first_runqueue_ns"])  # run-queue time is the end of a wait
        taken_ns = np.where(was_counted, did["first_off_ns"] - rest_ns, 0)
        taken_ready_ns = np.where(was_counted, did["first_runqueue_ns"] - rest_ready_ns, 0)
        kind = did["first_kind"] & ~np.uint32(layout.KIND_NEW)
        is_short, is_filtered = kind == layout.KIND_SHORT, kind == layout.KIND_FILTERED
        is_ready: Mask = (did["involuntary"] > 0) & (did["first_runqueue_ns"] == did["first_off_ns"])
        is_ready &= (did["first_kind"] & layout.KIND_NEW) == 0
        was_preempted: Mask = np.where(was_shown, waits[:, PREEMPTED] != 0, is_ready)
        has_numbers: Mask = (did["waits"] != 0) | ~is_whole
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
            numbers[:, _THREAD[name]] += (did[name] - taken) * has_numbers
        at = np.flatnonzero(has_numbers | was_shown)
        tick.ended.append((records.ids[at], numbers[at], did["histogram"][at]))
        at = np.flatnonzero(has_numbers & (did["lost_waits"] != 0))
        lost = did[at]
        tick.add_sites(_lost_sites(records.ids[at]), lost["lost_ns"], lost["lost_runqueue_ns"], lost["lost_waits"])
        at = np.flatnonzero(has_site & (taken_ns != 0))
        tick.add_sites(sites[at], (moved_ns - taken_ns)[at], (moved_ready_ns - taken_ready_ns)[at])
        return is_previous

    def _first_sites(self, ids: Ints, did: Rows, wanted: Mask) -> tuple[Ints, Mask]:
        """Return the sites of the first waits of those records that are `wanted`, and which of them have one."""
        kind = did["first_kind"] & ~np.uint32(layout.KIND_NEW)
        is_lost, is_located = wanted & (kind == layout.KIND_LOST), wanted & (kind == layout.KIND_SITE)
        sites = np.zeros((len(did), SITES.width), np.int64)
        sites[is_lost] = _lost_sites(ids[is_lost])
        some = did[is_located]
        raw = (some[name] for name in ("first_kernel", "first_user", "first_wake"))
        sites[is_located] = self._locate(np.column_stack((ids[is_located].astype(np.uint64), *raw)))
        if self._deferred.has_sites:
            for at in np.flatnonzero(is_located).tolist():
                one = record_of(did[at])
                held = self._deferred.site_of(
                    (ThreadKey(*ids[at].tolist()), one.tid_acquired_ns),
                    (one.first_kernel, one.first_user, one.first_wake),
                )
                if held:
                    sites[at] = held
        return sites, is_lost | is_located

    @staticmethod
    def _with_scanned_stack(tick: _Tick, sites: Ints, waits: Ints) -> Ints:
        """Return the sites at which `waits` ended, with the kernel stack of the task scan where only that has one."""
        is_scanned = (sites[:, KERNEL] == NO_STACK) & (waits[:, KERNEL] >= FIRST_STACK)
        if not is_scanned.any():
            return sites
        now = sites.copy()
        now[is_scanned, :WAKE] = waits[is_scanned, :WAKE]
        before, after = (map(SITES.key, some[is_scanned].tolist()) for some in (sites, now))
        tick.renamed.update(zip(before, after, strict=True))
        return now

    def _move(self, waits: Ints, now: Ints, longest_ns: Ints) -> tuple[Ints, Ints]:
        """Move what was shown of waits, at most `longest_ns` of each, to the sites `now`.

        Returns how much was moved, and how much of that was run queue.
        """
        moved_ns = np.minimum(longest_ns, np.maximum(0, self._snapshot_ns - waits[:, FROM_NS]))
        moved_ns[np.isin(waits[:, KERNEL], [*PLACELESS])] = 0
        ready_ns = np.minimum(waits[:, READY_NS], moved_ns)
        was = waits[:, : SITES.width]
        at = (moved_ns != 0) & (now != was).any(axis=1)
        until_ns = np.full(np.count_nonzero(at), self._snapshot_ns)
        times = until_ns - moved_ns[at], until_ns, ready_ns[at]
        self._moves.append(np.column_stack((was[at], now[at], *times)))
        self._retire(was[at], self.at_ns)
        return moved_ns, ready_ns

    def _retire(self, sites: Ints, at_ns: int) -> None:
        """Note that nothing may refer to the stacks and wakes of these sites after `at_ns`."""
        self._retired.update(dict.fromkeys(np.unique(sites[:, KERNEL:WAKE]).tolist(), at_ns))
        self._retired_wakes.update(dict.fromkeys(np.unique(sites[:, WAKE]).tolist(), at_ns))

    def _hold_back(
        self, tick: _Tick, ended: SiteDeltas, records: ThreadRecords, returned: Ints, threads_lost: int
    ) -> tuple[SiteDeltas, set[ThreadKey]]:
        """Hold back the sites of threads whose record has not arrived.

        Returns the rest, and the written-off threads.
        """
        acquired_ns = _acquired_ns(records, np.append(returned, -1)[self._table.known_rows_of(ended.ids)])
        is_reported = acquired_ns == ended.tid_acquired_ns
        found = self._deferred.sort(ended, is_reported, records, tick.at_ns, threads_lost)
        tick.late += found.late
        lost: set[ThreadKey] = set()
        for site, tid_acquired_ns, totals in found.lost:
            key = site.thread
            row = self._table.row(key)
            is_current = row < 0 or tid_acquired_ns >= self._table.tid_acquired_ns[row]
            if is_current and row >= 0:  # it was shown as waiting ever since it was switched out
                self._settle_as_shown(tick, np.array([row]))
            rest = self._deferred.write_off((key, tid_acquired_ns), totals)
            numbers = np.zeros((1, THREADS.numbers), np.int64)
            numbers[0, :3], numbers[0, _THREAD["max_ns"]] = rest[:3], rest.max_ns
            tick.ended.append((integers([key], 2), numbers, log2.to_lanes([rest.histogram])))
            tick.late.append((site, rest))
            if is_current:
                lost.add(key)
        return found.now, lost

    def _settle(self, tick: _Tick, waits: Ints, until_ns: int = 0) -> None:
        """Turn what was shown of waits in progress into finished time; the arguments are those of `_settled`."""
        tick.settled.append((waits[:, :2], self._settled(tick, waits, until_ns=until_ns)))

    def _settled(
        self, tick: _Tick, waits: Ints, moved_ns: Ints | int = 0, moved_ready_ns: Ints | int = 0, until_ns: int = 0
    ) -> Ints:
        """Add what was shown of waits in progress to their sites, and return what it adds to their threads.

        What moved to another site is excluded. `until_ns`: add everything up to this time instead.
        """
        shown_ns = np.maximum(0, (until_ns or self._snapshot_ns) - waits[:, FROM_NS])
        # If it has been runnable from the start, that is as of the last tick.
        ready_ns = np.minimum(shown_ns, waits[:, READY_NS])
        kernel = waits[:, KERNEL]
        read = np.unique(waits[:, READ_USER])
        self._retired.update(dict.fromkeys(read[read != NO_STACK].tolist(), self.at_ns))
        at = ~np.isin(kernel, [*PLACELESS])
        tick.add_sites(waits[at, : SITES.width], (shown_ns - moved_ns)[at], (ready_ns - moved_ready_ns)[at])
        numbers = np.zeros((len(waits), THREADS.numbers), np.int64)
        for name, values in (
            ("offcpu_ns", shown_ns),
            ("runqueue_ns", ready_ns),
            ("preempted_ns", shown_ns * waits[:, PREEMPTED]),
            ("short_ns", shown_ns * (kernel == SHORT)),
            ("short_runqueue_ns", ready_ns * (kernel == SHORT)),
            ("filtered_ns", shown_ns * (kernel == FILTERED)),
            ("filtered_runqueue_ns", ready_ns * (kernel == FILTERED)),
        ):
            numbers[:, _THREAD[name]] = values
        return numbers

    def _begin(self, tick: _Tick, rows: Ints, switched_out_ns: Ints, from_ns: Ints, state: Ints) -> None:
        """Add waits in progress that no snapshot has shown.

        Each is at the stack from the task scan, or short for now.
        """
        table, scanned = self._table, tick.tasks.waits.rows
        waits = np.zeros((len(rows), FIELDS), np.int64)
        waits[:, :2], waits[:, KERNEL], waits[:, CALL] = table.ids[rows], SHORT, -1
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
        is_runnable = (state[at] & layout.RUNNING != 0) | tick.tasks.runnable[task]
        is_unsettled[at] = (waits[at, KERNEL] < FIRST_STACK) | is_runnable
        table.waits[rows], table.is_unsettled[rows] = waits, is_unsettled
        table.is_waiting[rows] = table.is_new[rows] = True
        table.change(rows)
        self._set_holders(tick, rows[at])

    def _set_holders(self, tick: _Tick, rows: Ints) -> None:
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

    def _begin_new(self, tick: _Tick, of_tasks: Ints, records: ThreadRecords, returned: Ints) -> None:
        """Add new threads' waits for their first CPU, which only the task scan reports.

        A record is of what the thread did in this tick, or of what a previous owner of its tid did.
        """
        table, tasks = self._table, tick.tasks
        new = np.flatnonzero(tasks.waits.rows[:, STATE] & layout.TASK_NEW)
        rows, switched_out_ns = of_tasks[new], tasks.waits.rows[new, SWITCHED_OUT_NS]
        is_known = table.is_waiting[rows] & (table.waits[rows, SWITCHED_OUT_NS] == switched_out_ns)
        is_known |= _acquired_ns(records, returned[rows]) >= tasks.tid_acquired_ns[new]
        new, rows, switched_out_ns = new[~is_known], rows[~is_known], switched_out_ns[~is_known]
        self._settle_as_shown(tick, rows)
        table.tid_acquired_ns[rows] = tasks.tid_acquired_ns[new]
        self._begin(tick, rows, switched_out_ns, np.minimum(switched_out_ns, tick.at_ns), tasks.waits.rows[new, STATE])

    def _end_new(self, tick: _Tick, one: NewThread, records: ThreadRecords, returned: Ints) -> None:
        """Settle a new thread's wait for its first CPU.

        The time passed in this tick or before. As a wait it counts when the thread's record arrives, which may be much
        later: the thread has not been switched out yet.
        """
        identity, until_ns = (one.key, one.tid_acquired_ns), one.switched_out_ns + one.first_ns
        table, rows = self._table, self._table.rows_of(integers([one.key], 2))
        has_returned = _acquired_ns(records, returned[rows])[0] >= one.tid_acquired_ns
        if until_ns > tick.at_ns or has_returned or self._deferred.shown_of(identity):
            return
        tick = replace(tick, task_of=np.full_like(tick.task_of, -1))  # the scan saw an earlier wait, if any
        if table.is_waiting[rows[0]] and table.waits[rows[0], SWITCHED_OUT_NS] == one.switched_out_ns:
            until_ns = until_ns if table.is_new[rows[0]] else max(until_ns, self._snapshot_ns)
        else:
            self._settle_as_shown(tick, rows)
            table.tid_acquired_ns[rows] = one.tid_acquired_ns
            switched_out_ns = np.array([one.switched_out_ns])
            self._begin(tick, rows, switched_out_ns, switched_out_ns, np.array([layout.RUNNING | layout.TASK_NEW]))
        self._place(tick, rows, until_ns)
        self._settle(tick, table.waits[rows], until_ns=until_ns)
        table.end(rows)
        self._deferred.keep_shown(identity, one.switched_out_ns, until_ns)

    def _settle_as_shown(self, tick: _Tick, rows: Ints) -> None:
        """Settle the waits in progress of previous owners of a tid, or of written-off threads.

        They are kept as shown in case a record of that thread still arrives.
        """
        table = self._table
        rows = rows[table.is_waiting[rows]]
        table.end(rows)
        rows = rows[~table.is_new[rows]]
        self._settle(tick, table.waits[rows])
        began_ns, acquired_ns = (
            table.waits[rows, SWITCHED_OUT_NS].tolist(),
            np.maximum(0, table.tid_acquired_ns[rows]).tolist(),
        )
        for key, acquired, began in zip(table.keys(rows), acquired_ns, began_ns, strict=True):
            self._deferred.keep_shown((key, acquired), began, self._snapshot_ns)

    def _prime(self, tick: _Tick, of_tasks: Ints, records: ThreadRecords, returned: Ints, scan_ns: int) -> None:
        """Adopt the waits in progress from the task scan that began at `scan_ns`.

        Some of them began before tracing did.
        """
        table, tasks = self._table, tick.tasks
        record = returned[of_tasks]
        is_running = record >= 0
        is_running[is_running] = records.rows["switched_out_ns"][record[is_running]] == 0
        rows = table.waiting
        over = rows[~table.flags(of_tasks[~is_running])[rows] & (table.waits[rows, SWITCHED_OUT_NS] < scan_ns)]
        self._settle_as_shown(tick, over)
        table.is_unsettled[over] = False
        new = ~is_running & ~table.is_waiting[of_tasks] & (tasks.waits.rows[:, KERNEL] != NOT_SCANNED)
        rows, some = of_tasks[new], tasks.waits.rows[new]
        table.tid_acquired_ns[rows] = np.maximum(table.tid_acquired_ns[rows], tasks.tid_acquired_ns[new])
        self._begin(tick, rows, some[:, SWITCHED_OUT_NS], np.full(len(rows), tick.at_ns), some[:, STATE])

    def _place(self, tick: _Tick, rows: Ints, at_ns: int) -> None:
        """Update waits in progress: their sites as of `at_ns`, and how much of each is run queue."""
        table, tasks = self._table, tick.tasks
        is_waiting = table.is_waiting[rows]
        table.is_unsettled[rows[~is_waiting]] = False
        rows = rows[is_waiting]
        was, waits = table.waits[rows], table.waits[rows]
        switched_out_ns, state, kernel = was[:, SWITCHED_OUT_NS], was[:, STATE], waits[:, KERNEL]
        age_ns = at_ns - switched_out_ns
        seen, task = tick.scanned(rows, switched_out_ns)
        has_stack = tasks.waits.rows[task, KERNEL] != NOT_SCANNED
        at, scanned = seen[has_stack], tasks.waits.rows[task[has_stack]]
        is_placeless = np.isin(kernel, [*PLACELESS])
        kernel[is_placeless] = np.where(age_ns[is_placeless] < tick.min_ns, SHORT, NO_STACK)
        waits[at, KERNEL], waits[at, WAKE] = scanned[:, KERNEL], scanned[:, WAKE]
        waits[at[:, None], _DETAILS] = scanned[:, _DETAILS]
        is_filtered = tick.excludes(state)
        if tick.max_ns:
            is_filtered |= age_ns > tick.max_ns
        waits[is_filtered, KERNEL], waits[is_filtered, WAKE] = FILTERED, NO_WAKE
        waits[:, USER] = np.where(kernel < FIRST_STACK, NO_STACK, was[:, READ_USER])
        # It may have been switched out just after its first snapshot.
        waits[:, FROM_NS] = np.maximum(was[:, FROM_NS], np.minimum(switched_out_ns, at_ns))
        moves_on = (waits[:, : SITES.width] != was[:, : SITES.width]).any(axis=1)
        moves_on &= (waits[:, FROM_NS] < self._snapshot_ns) & ~table.is_new[rows]
        is_settled = moves_on & (np.isin(was[:, KERNEL], [*PLACELESS]) | np.isin(kernel, [*PLACELESS]))
        self._settle(tick, was[is_settled])
        waits[is_settled, FROM_NS], waits[is_settled, READY_NS] = self._snapshot_ns, 0
        moved = moves_on & ~is_settled
        self._move(was[moved], waits[moved, : SITES.width], at_ns - waits[moved, FROM_NS])
        so_far_ns = at_ns - waits[:, FROM_NS]
        is_ready = (waits[:, PREEMPTED] != 0) | (state & layout.TASK_NEW != 0)
        if tick.has_snapshot:
            is_queued = tasks.runnable[task] & (tasks.queued_ns[task] != 0)
            at, queued_ns = seen[is_queued], tasks.queued_ns[task[is_queued]]
            ready_ns = at_ns - np.maximum(switched_out_ns[at], queued_ns)
            # Time shown as blocked stays blocked.
            grown_ns = waits[at, READY_NS] + at_ns - np.maximum(waits[at, FROM_NS], self._snapshot_ns)
            ready_ns = np.minimum(np.minimum(ready_ns, grown_ns), so_far_ns[at])
            waits[at, READY_NS] = np.maximum(waits[at, READY_NS], ready_ns)
        waits[is_ready, READY_NS] = so_far_ns[is_ready]
        table.is_unsettled[rows] = np.isin(kernel, [SHORT, FILTERED, NO_STACK]) | (waits[:, READY_NS] != 0)
        table.waits[rows] = waits
        table.change(rows[(waits != was).any(axis=1)])
        self._set_holders(tick, rows[seen])

    def _apply(self, tick: _Tick, counted: SiteDeltas, follows_snapshot: bool) -> None:
        at_ns = tick.at_ns
        if follows_snapshot:
            self.threads.begin_tick()
            self.sites.begin_tick()
        if tick.ended:
            ids, numbers, lanes = (np.concatenate(parts) for parts in zip(*tick.ended, strict=True))
            self.threads.add(ids, numbers, lanes, at_ns)
        if tick.settled:
            ids, numbers = (np.concatenate(parts) for parts in zip(*tick.settled, strict=True))
            self.threads.add(ids, numbers, None, at_ns)
        late = SiteDeltas.of(tick.late)
        self._add_sites(tick, counted.ids, counted.numbers, counted.lanes)
        if tick.sites:
            ids, numbers = (np.concatenate(parts) for parts in zip(*tick.sites, strict=True))
            self._add_sites(tick, ids, numbers, None)
        self._add_sites(tick, late.ids, late.numbers, late.lanes)

    def _add_sites(self, tick: _Tick, ids: Ints, numbers: Ints, lanes: Ints | None) -> None:
        if tick.renamed:
            ids = ids.copy()
            for row in np.flatnonzero(ids[:, KERNEL] == NO_STACK).tolist():
                key = SITES.key(ids[row].tolist())
                ids[row] = tick.renamed.get(key, key)
        for key in map(SITES.key, self.sites.add(ids, numbers, lanes, tick.at_ns).tolist()):
            if key.tid:
                self._sites_of.setdefault(key.thread, []).append(key)

    def _evict(self, keys: Sequence[ThreadKey], at_ns: int) -> None:
        """Move the sums of threads that exited before the last snapshot to EXITED."""
        for key in keys:
            self.threads.move(key, EXITED)
            self._table.forget(key)
            sites = self._sites_of.pop(key, ())
            self._retire(integers(sites, SITES.width), at_ns)
            for site in sites:
                self._retire_site(site)
            self._forgotten.append((at_ns, key))
        while len(self._forgotten) > _MOST_NAMES:
            self._forget_name()

    def _forget_name(self) -> None:
        _, key = self._forgotten.popleft()
        row = self._table.row(key)
        if key not in self.threads and not (row >= 0 and self._table.is_waiting[row]):
            self.catalog.comms.pop(key, None)
            self.catalog.lives.pop(key, None)
            if key.tid == key.pid:
                self.catalog.processes.pop(key.pid, None)

    def _retire_site(self, key: SiteKey) -> None:
        self.sites.move(key, SiteKey(EXITED.pid, EXITED.tid, key.kernel, NO_STACK))


def _acquired_ns(records: ThreadRecords, which: Ints) -> Ints:
    """Return when the thread of each record acquired its tid; UNKNOWN_NS for position -1."""
    times = np.full(len(which), UNKNOWN_NS)
    times[which >= 0] = records.rows["tid_acquired_ns"][which[which >= 0]]
    return times


def _lost_sites(ids: Ints) -> Ints:
    """Return the sites of waits of these threads for which there was no room."""
    return np.column_stack((ids, np.tile((STACK_LOST, STACK_LOST, NO_WAKE), (len(ids), 1))))
