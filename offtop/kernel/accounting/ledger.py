"""Adds each tick's records to running totals, so that every wait is counted exactly once.

A record has whole waits; a snapshot must show the part of each that has passed so far. So a wait in progress is shown
as it grows (`Waiting`), and if it ends at another site than it was shown at, a `Move` says how much of it was shown
elsewhere. No total of a thread ever decreases, and the accounting sums hold at every snapshot. The ledger reads no
clock and imports no bcc, so that a test can play the kernel.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from offtop.kernel.accounting.deferred import DeferredRecords
from offtop.kernel.accounting.run_times import RunTimes
from offtop.kernel.accounting.tick_records import NewThread, OffCpuTask, RuntimeSample, SiteDeltas
from offtop.kernel.bpf import layout
from offtop.kernel.bpf.layout import ThreadRecord
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey, ThreadLifetime
from offtop.model.values.running import Running
from offtop.model.values.snapshot import EXITED, NO_HOLDER, Bound, Move, SiteTotals, Waiting
from offtop.model.values.stack import FILTERED, FIRST_STACK, NO_STACK, PLACELESS, SHORT, STACK_LOST
from offtop.model.values.table import RUNNING_NS, SITES, THREADS, integers
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


_Records = Sequence[tuple[ThreadKey, ThreadRecord]]
_NO_DETAILS: tuple[int, Bound, int, tuple[int, ...]] = 0, Bound.EXACT, -1, ()

Locate = Callable[[int, int, int, int, int], SiteKey]
"""(pid, tid, raw kernel stack id, raw user stack id, raw wake id) → site."""


class Dropped(NamedTuple):
    """Ids evicted from the catalog."""

    stacks: set[int]
    wakes: set[int]


@dataclass(slots=True)
class _Delta:
    """What a tick adds to the totals, one entry each.

    The site counts of the BPF programs are added in bulk instead.
    """

    threads: list[tuple[ThreadKey, tuple[int, ...], bytes]] = field(
        default_factory=list[tuple[ThreadKey, tuple[int, ...], bytes]]
    )
    """The fields of ThreadTotals without the histogram, and the histogram's lanes."""
    settled: list[tuple[ThreadKey, tuple[int, ...]]] = field(default_factory=list[tuple[ThreadKey, tuple[int, ...]]])
    """The same for waits in progress, without a histogram."""
    ran: list[tuple[ThreadKey, int]] = field(default_factory=list[tuple[ThreadKey, int]])
    """CPU time in ns."""
    sites: list[tuple[SiteKey, tuple[int, ...]]] = field(default_factory=list[tuple[SiteKey, tuple[int, ...]]])
    """The fields of SiteTotals without the histogram, for entries that have none."""
    late: list[tuple[SiteKey, SiteTotals]] = field(default_factory=list[tuple[SiteKey, SiteTotals]])
    """Waits that finished in earlier ticks."""
    renamed: dict[SiteKey, SiteKey] = field(default_factory=dict[SiteKey, SiteKey])
    """Site without a kernel stack → the same with the stack from the task scan."""


class Ledger:
    """Running totals and the waits in progress, as of the last tick."""

    def __init__(
        self,
        at_ns: int,
        locate: Locate = SiteKey,
        catalog: Catalog | None = None,
        is_alive: Callable[[ThreadKey], bool] = lambda _: False,
    ) -> None:
        """Start counting at `at_ns`. `locate` turns a record's raw ids into a site."""
        self.at_ns = self._began_ns = at_ns
        self.catalog = catalog or Catalog()
        self._locate, self._is_alive = locate, is_alive
        self.threads = Running(THREADS)
        self.sites = Running(SITES)
        self.waiting: dict[ThreadKey, Waiting] = {}
        self.moves: list[Move] = []
        """Moves in the last tick, or since the last snapshot."""
        self.storms: dict[int, Storm] = {}
        """Totals by the catalog id of a wake with the storm's waker."""
        self._stormed_ns: dict[int, int] = {}
        """Time of the last change of each entry of `storms`."""
        self._states = 0
        self._sites_of: dict[ThreadKey, list[SiteKey]] = {}
        self._unsettled: set[ThreadKey] = set()
        """Threads whose wait in progress is updated every tick: its site or its run-queue time still changes."""
        self._begun: set[ThreadKey] = set()
        """Threads whose wait in progress no snapshot has shown yet, even if it began before the last one."""
        self._runs = RunTimes(at_ns)
        self._exited: dict[ThreadKey, int] = {}
        """Threads that exited in the last tick or since the last snapshot, and when."""
        self._snapshot_ns = at_ns
        """Time of the last snapshot."""
        self._window_from_ns = at_ns
        """Time of the snapshot before the last."""
        self._born_ns: dict[ThreadKey, int] = {}
        """When the current or last owner of each tid acquired it."""
        self._late = DeferredRecords()
        self._retired: dict[int, int] = {}
        self._retired_wakes: dict[int, int] = {}
        self._aged_at_ns = at_ns
        self._forgotten: deque[tuple[int, ThreadKey]] = deque()

    def tick(
        self,
        at_ns: int,
        min_ns: int,
        threads: Iterable[tuple[ThreadKey, ThreadRecord]],
        sites: SiteDeltas,
        walked: Sequence[OffCpuTask],
        *,
        gone: Mapping[ThreadKey, int] | None = None,
        ran: Sequence[RuntimeSample] = (),
        started: Sequence[NewThread] = (),
        primed_ns: int = 0,
        anew: bool = False,
        states: int = 0,
        max_ns: int = 0,
        storms: Mapping[int, Storm] = MappingProxyType({}),
        threads_lost: int = 0,
        has_snapshot: bool = True,
    ) -> list[ThreadKey]:
        """Add one tick, and return the threads that exited in it and will be evicted.

        `gone` has the threads that exited, and when; `ran` the total CPU time of threads for which it has changed;
        `started` the new threads on their first CPU. `primed_ns` is the start of the task scan if `walked` has every
        off-CPU thread, 0 otherwise. `anew`: the thread filter has changed, so a wait that was not being counted counts
        only from the last tick on. `states` and `max_ns` are those of Filters. `threads_lost` is the number of thread
        records lost so far.

        `has_snapshot`: a snapshot follows. If not, what a snapshot shows of its last tick (maxima, moves) accumulates
        until there is one, and exited threads are kept until one has shown them.

        Afterwards the totals are as of `at_ns`, and copying them out makes a snapshot.
        """
        delta, follows_snapshot = _Delta(), self.follows_snapshot
        if follows_snapshot:
            self.moves = []
            self._begun.clear()
        gone = gone or {}
        by_key = {one.key: one for one in walked}
        threads, returned = [*threads], dict[ThreadKey, ThreadRecord]()
        running: set[ThreadKey] = set()
        previous_owners: set[ThreadKey] = set()
        acquired_before_ns = {one.key: self._born_ns.get(one.key, 0) for one in ran if one.ended}
        for key, record in threads:
            if self._count_thread(key, record, anew, delta):
                previous_owners.add(key)
                continue
            returned[key] = record
            if record.left_ns:
                running.discard(key)
                self._begin(key, record.left_ns, min(record.left_ns, at_ns), record.state, states, by_key.get(key))
            else:
                running.add(key)
        for one in walked:
            if one.state & layout.TASK_NEW:
                self._begin_new(one, returned.get(one.key), at_ns, states, delta)
        for one in started:
            self._end_new(one, returned.get(one.key), at_ns, min_ns, states, max_ns, delta)
        sites, lost = self._hold_back(sites, threads, at_ns, threads_lost, delta)
        silent: list[ThreadKey] = []
        if primed_ns:
            reported = returned.keys() | by_key.keys()
            old = self.threads.not_added_since(at_ns - _CHECK_ALIVE_AFTER_NS)
            silent = [key for key in old if key.tid and key not in reported and not self._is_alive(key)]
            self._prime([one for one in walked if one.key not in running], primed_ns, at_ns, states, delta)
        if primed_ns:  # every counted thread has been reported
            self._runs.asked_only(by_key.keys() | {one.key for one in ran})
        for one in ran:
            if one.ended and one.born_ns < acquired_before_ns[one.key]:
                continue  # a previous owner of the tid: its counter says nothing
            if ran_ns := self._runs.new_ns(one, returned.get(one.key), self.at_ns, at_ns):
                delta.ran.append((one.key, ran_ns))
            if one.key in self.catalog.lives:
                self._revive(one)
        all_change = max_ns or states != self._states
        for key in tuple(self.waiting) if all_change else self._unsettled.union(by_key.keys() - returned.keys()):
            self._place(key, by_key.get(key), at_ns, min_ns, states, max_ns, delta, has_snapshot)
        self._states = states
        exited = [key for key, end_ns in self._exited.items() if self.catalog.life(key).from_ns <= end_ns]
        late = {key: self._exited[key] for key in previous_owners & self._exited.keys() if key not in returned}
        kept = returned.keys() | self.waiting.keys() | late.keys()
        exited = [key for key in exited if key not in kept]
        unseen = 0 if follows_snapshot else _MOST_ENDED
        self._give_back(exited[: max(0, len(exited) - unseen)], at_ns)
        unseen_ns = {key: self._exited[key] for key in exited[max(0, len(exited) - unseen) :]}
        self._apply(delta, sites, at_ns, follows_snapshot)
        self._count_storms(storms, at_ns, follows_snapshot)
        ended = {key: end_ns for key, end_ns in gone.items() if key not in previous_owners or key in returned}
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

    def _revive(self, ran: RuntimeSample) -> None:
        """Revive a thread that was marked as exited when it called exec().

        Its main thread had exited then, and it took over that tid.
        """
        life = self.catalog.life(ran.key)
        if life.to_ns and self._runs.is_last(ran):
            self.catalog.lives[ran.key] = life._replace(to_ns=0)
            self._exited.pop(ran.key, None)

    def begin(self, key: ThreadKey, from_ns: int) -> None:
        """Note that a thread began, or is counted, since `from_ns`.

        The same thread may be noted twice, and so may a previous owner of the tid.
        """
        if from_ns > max(self._began_ns, self.catalog.life(key).from_ns):
            self.catalog.lives[key] = ThreadLifetime(from_ns)

    def _end(self, key: ThreadKey, at_ns: int) -> None:
        life = self.catalog.life(key)
        if at_ns >= life.from_ns:  # otherwise another thread has its tid
            self.catalog.lives[key] = life._replace(to_ns=at_ns)

    def read_user(self, key: ThreadKey, left_ns: int, user: int) -> None:
        """Set the user stack of a wait in progress, which was unwound in user space."""
        waiting = self.waiting.get(key)
        if waiting is not None and waiting.left_ns == left_ns:
            self.waiting[key] = waiting._replace(user=user)
            self._unsettled.add(key)  # its site changes in the next tick

    def age(self, keep_ns: int) -> Dropped | None:
        """Once every `keep_ns`, evict what was not used for that long.

        Returns the ids of dropped stacks and wakes, or None before its time. A live thread's site without a wait for
        keep_ns moves its sums to the site of exited threads; stacks and wakes that nothing refers to any more leave the
        catalog.
        """
        if self.at_ns - self._aged_at_ns < keep_ns:
            return None
        waiting = {w.site for w in self.waiting.values()}
        for key in self.sites.not_added_since(self.at_ns - keep_ns):
            if key.tid and key not in waiting:
                self._retire_site(key)
                of_thread = self._sites_of.get(key.thread)
                if of_thread:
                    of_thread.remove(key)
        before_ns = self.at_ns - keep_ns
        sites = [*self.sites, *self._late.sites(), *waiting]
        wakes = {key.wake for key in sites}.union(wake for wake, ns in self._stormed_ns.items() if ns >= before_ns)
        dropped_wakes = {
            wake
            for wake in self.catalog.wakes
            if wake >= FIRST_WAKE and wake not in wakes and self._retired_wakes.get(wake, 0) < before_ns
        }
        for wake in dropped_wakes:
            self._drop_wake(wake)
        used = {stack for key in sites for stack in (key.kernel, key.user)}
        used.update(site.kernel for site in waiting)
        used.update(w.user for w in self.waiting.values())
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
            [(site.wake, self.at_ns) for site in self._late.sites()],
            [(w.site.wake, self.at_ns) for w in self.waiting.values()],
        )
        for wake, ns in chain(*named):
            named_ns[wake] = max(ns, named_ns.get(wake, 0))
        own = [wake for wake in self.catalog.wakes if wake >= FIRST_WAKE]
        oldest = sorted(own, key=named_ns.__getitem__)[: max(0, len(own) - most)]
        dropped = {wake for wake in oldest if named_ns[wake] <= self._window_from_ns}
        threads: set[ThreadKey] = set()
        for key, _ in added:
            if key.wake in dropped:
                self._retired[key.kernel] = self._retired[key.user] = self.at_ns
                self._retire_site(key)
                threads.add(key.thread)
        for thread in threads:
            self._sites_of[thread] = [one for one in self._sites_of.get(thread, ()) if one.wake not in dropped]
        for wake in dropped:
            self._drop_wake(wake)
        return dropped

    def _drop_wake(self, wake: int) -> None:
        """Drop a wake with its storms: they are running totals, which last as long as their id."""
        del self.catalog.wakes[wake]
        for table in (self._retired_wakes, self._stormed_ns, self.storms):
            table.pop(wake, None)

    def _count_thread(self, key: ThreadKey, r: ThreadRecord, anew: bool, delta: _Delta) -> bool:
        """Add a record's finished waits, minus what was shown of the first one in progress.

        Returns whether the record is of a previous owner of the tid.
        """
        identity = key, r.born_ns
        r, is_whole = self._late.rest(identity, r)
        born_ns = self._born_ns.get(key, r.born_ns)
        waiting = self.waiting.pop(key, None) if born_ns <= r.born_ns else None
        if key in self._begun:
            waiting = None
        left_ns, shown_to_ns = waiting.left_ns if waiting else 0, self._snapshot_ns
        shown = self._late.shown_of(identity)
        if r.born_ns < born_ns or (waiting is None and shown):
            left_ns, shown_to_ns = shown or (0, self._snapshot_ns)
            if anew:  # it may not have been counted in between
                shown_to_ns = self.at_ns
        if r.born_ns >= born_ns:
            self._born_ns[key] = r.born_ns
            if waiting and born_ns < r.born_ns:
                self._late.keep_shown((key, born_ns), left_ns, self._snapshot_ns)
        is_first_whole = r.waits > 0 and is_whole
        was_known = is_first_whole and 0 < left_ns == r.first_left_ns
        if was_known:
            self._late.forget_shown(identity)
        was_asked = is_first_whole and anew and waiting is None and key not in self._begun
        if was_asked:
            shown_to_ns = self.at_ns
        site = self._first_site(key, r) if was_known or was_asked else None
        moved_ns = moved_runqueue_ns = 0
        if waiting is not None:
            if was_known and site:
                now = site
                if site.kernel == NO_STACK and waiting.site.kernel >= FIRST_STACK:  # only the scan has it
                    now = delta.renamed[site] = waiting.site._replace(wake=site.wake)
                moved_ns, moved_runqueue_ns = self._move(waiting, now, r.first_off_ns)
            self._settle(key, waiting, delta, moved_ns, moved_runqueue_ns)
        is_previous_owner = r.born_ns < born_ns
        if not r.waits and is_whole:
            return is_previous_owner
        taken_ns = taken_runqueue_ns = 0  # of the first wait: counted in earlier ticks, or settled just now
        if was_known or was_asked:
            rest_ns = max(0, r.first_off_ns - max(0, shown_to_ns - r.first_left_ns))
            rest_runqueue_ns = min(rest_ns, r.first_runqueue_ns)  # run-queue time is the end of a wait
            taken_ns = r.first_off_ns - rest_ns
            taken_runqueue_ns = r.first_runqueue_ns - rest_runqueue_ns
        is_short = _kind(r) == layout.KIND_SHORT
        is_filtered = _kind(r) == layout.KIND_FILTERED
        is_ready = r.involuntary > 0 and r.first_runqueue_ns == r.first_off_ns
        was_preempted = waiting.preempted if waiting else is_ready and not r.first_kind & layout.KIND_NEW
        ended = (
            r.waits,
            r.offcpu_ns - taken_ns,
            r.runqueue_ns - taken_runqueue_ns,
            r.preempted_ns - (taken_ns if was_preempted else 0),
            r.involuntary,
            r.short_waits,
            r.short_ns - (taken_ns if is_short else 0),
            r.short_runqueue_ns - (taken_runqueue_ns if is_short else 0),
            r.filtered_ns - (taken_ns if is_filtered else 0),
            r.filtered_runqueue_ns - (taken_runqueue_ns if is_filtered else 0),
            0,
            r.max_ns,
        )
        delta.threads.append((key, ended, r.histogram))
        if r.lost_waits:
            delta.sites.append((_lost_site(key), (r.lost_waits, r.lost_ns, r.lost_runqueue_ns, 0)))
        if site and taken_ns:
            delta.sites.append((site, (0, moved_ns - taken_ns, moved_runqueue_ns - taken_runqueue_ns, 0)))
        return is_previous_owner

    def _first_site(self, key: ThreadKey, r: ThreadRecord) -> SiteKey | None:
        """The site of a record's first wait, or None if it has no site."""
        if _kind(r) == layout.KIND_LOST:
            return _lost_site(key)
        if _kind(r) != layout.KIND_SITE:
            return None
        return self._locate(key.pid, key.tid, r.first_kernel, r.first_user, r.first_wake)

    def _move(self, w: Waiting, now: SiteKey, whole_ns: int) -> tuple[int, int]:
        """Move what was shown of a wait, at most `whole_ns`, to another site.

        Returns how much was moved, and how much of that was run queue.
        """
        if w.site.kernel in PLACELESS:
            return 0, 0
        moved_ns = min(whole_ns, max(0, self._snapshot_ns - w.from_ns))
        moved_runqueue_ns = min(w.runqueue_ns, moved_ns)
        if moved_ns and now != w.site:
            self.moves.append(Move(w.site, now, self._snapshot_ns - moved_ns, self._snapshot_ns, moved_runqueue_ns))
            self._retired[w.site.kernel] = self._retired[w.site.user] = self.at_ns
            self._retired_wakes[w.site.wake] = self.at_ns
        return moved_ns, moved_runqueue_ns

    def _hold_back(
        self, ended: SiteDeltas, threads: _Records, at_ns: int, threads_lost: int, delta: _Delta
    ) -> tuple[SiteDeltas, set[ThreadKey]]:
        """Hold back the sites of threads whose record has not arrived.

        Returns the rest, and the written-off threads.
        """
        reported = {(pid, tid, record.born_ns) for (pid, tid), record in threads}
        found = self._late.sort(ended, reported, at_ns, threads_lost)
        delta.late += found.late
        lost: set[ThreadKey] = set()
        for site, born_ns, totals in found.lost:
            key = site.thread
            is_current = born_ns >= self._born_ns.get(key, born_ns)
            if is_current:  # it was shown as waiting ever since it was switched out
                self._settle_as_shown(key, delta)
            rest = self._late.give_up((key, born_ns), totals)
            numbers = (rest.waits, rest.total_ns, rest.runqueue_ns, 0, 0, 0, 0, 0, 0, 0, 0, rest.max_ns)
            delta.threads.append((key, numbers, rest.histogram.to_bytes(log2.LANES * 8, "little")))
            delta.late.append((site, rest))
            if is_current:
                lost.add(key)
        return found.now, lost

    def _settle(
        self,
        key: ThreadKey,
        w: Waiting,
        delta: _Delta,
        moved_ns: int = 0,
        moved_runqueue_ns: int = 0,
        until_ns: int = 0,
    ) -> None:
        """Turn what was shown of a wait in progress into finished time at its site.

        What moved to another site is excluded. `until_ns`: settle everything up to this time instead.
        """
        shown_ns = max(0, (until_ns or self._snapshot_ns) - w.from_ns)
        ready_ns = min(shown_ns, w.runqueue_ns)  # if it has been runnable from the start, that is as of the last tick
        kernel = w.site.kernel
        if w.user != NO_STACK:
            self._retired[w.user] = self.at_ns
        short = (shown_ns, ready_ns) if kernel == SHORT else (0, 0)
        filtered = (shown_ns, ready_ns) if kernel == FILTERED else (0, 0)
        preempted_ns = shown_ns if w.preempted else 0
        delta.settled.append((key, (0, shown_ns, ready_ns, preempted_ns, 0, 0, *short, *filtered, 0, 0)))
        if kernel not in PLACELESS and (shown_ns, ready_ns) != (moved_ns, moved_runqueue_ns):
            delta.sites.append((w.site, (0, shown_ns - moved_ns, ready_ns - moved_runqueue_ns, 0)))

    def _begin(
        self, key: ThreadKey, left_ns: int, from_ns: int, state: int, states: int, walked: OffCpuTask | None
    ) -> None:
        """Add a wait in progress that no snapshot has shown.

        It is at the stack from the task scan, or short for now.
        """
        kernel, wake, holder = SHORT, NO_WAKE, NO_HOLDER
        self._unsettled.add(key)
        self._begun.add(key)
        if states and not state & states:
            kernel = FILTERED
        elif walked is not None and walked.left_ns == left_ns and walked.kernel is not None:
            kernel, wake, holder = walked.kernel, walked.wake, walked.holder
            if kernel >= FIRST_STACK and not state & layout.RUNNING and not walked.runnable:
                self._unsettled.discard(key)
        since_ns, bound, call, arguments = _wait_details(walked, left_ns) or _NO_DETAILS
        self.waiting[key] = Waiting(
            SiteKey(key.pid, key.tid, kernel, NO_STACK, wake),
            left_ns,
            from_ns,
            0,
            bool(state & layout.RUNNING and not state & layout.TASK_NEW),
            since_ns,
            bound,
            state,
            call,
            arguments,
            holder=holder,
        )

    def _begin_new(self, one: OffCpuTask, record: ThreadRecord | None, at_ns: int, states: int, delta: _Delta) -> None:
        """Add a new thread's wait for its first CPU, which only the task scan reports.

        `record` is what the thread did in this tick, or what a previous owner of its tid did.
        """
        was = self.waiting.get(one.key)
        if (record and record.born_ns >= one.born_ns) or (was and was.left_ns == one.left_ns):
            return
        self._settle_as_shown(one.key, delta)
        self._born_ns[one.key] = one.born_ns
        self._begin(one.key, one.left_ns, min(one.left_ns, at_ns), one.state, states, one)

    def _end_new(
        self,
        one: NewThread,
        record: ThreadRecord | None,
        at_ns: int,
        min_ns: int,
        states: int,
        max_ns: int,
        delta: _Delta,
    ) -> None:
        """Settle a new thread's wait for its first CPU.

        The time passed in this tick or before. As a wait it counts when the thread's record arrives, which may be much
        later: the thread has not been switched out yet.
        """
        identity, until_ns = (one.key, one.born_ns), one.left_ns + one.first_ns
        if until_ns > at_ns or (record and record.born_ns >= one.born_ns) or self._late.shown_of(identity):
            return
        was = self.waiting.get(one.key)
        if was and was.left_ns == one.left_ns:
            until_ns = until_ns if one.key in self._begun else max(until_ns, self._snapshot_ns)
        else:
            self._settle_as_shown(one.key, delta)
            self._born_ns[one.key] = one.born_ns
            self._begin(one.key, one.left_ns, one.left_ns, layout.RUNNING | layout.TASK_NEW, states, None)
        self._place(one.key, None, until_ns, min_ns, states, max_ns, delta)
        self._settle(one.key, self.waiting.pop(one.key), delta, until_ns=until_ns)
        self._late.keep_shown(identity, one.left_ns, until_ns)

    def _settle_as_shown(self, key: ThreadKey, delta: _Delta) -> None:
        """Settle the wait in progress of a previous owner of the tid, or a written-off thread.

        It is kept as shown in case a record of that thread still arrives.
        """
        was = self.waiting.pop(key, None)
        if was and key not in self._begun:
            self._late.keep_shown((key, self._born_ns.get(key, 0)), was.left_ns, self._snapshot_ns)
            self._settle(key, was, delta)

    def _prime(self, walked: Sequence[OffCpuTask], walk_ns: int, at_ns: int, states: int, delta: _Delta) -> None:
        """Adopt the waits in progress from the task scan that began at `walk_ns`.

        Some of them began before tracing did.
        """
        seen = {one.key for one in walked}
        for key in [key for key, w in self.waiting.items() if key not in seen and w.left_ns < walk_ns]:
            self._settle_as_shown(key, delta)
            self._unsettled.discard(key)
        for one in walked:
            if one.key not in self.waiting and one.kernel is not None:
                self._born_ns[one.key] = max(one.born_ns, self._born_ns.get(one.key, 0))
                self._begin(one.key, one.left_ns, at_ns, one.state, states, one)

    def _place(
        self,
        key: ThreadKey,
        walked: OffCpuTask | None,
        at_ns: int,
        min_ns: int,
        states: int,
        max_ns: int,
        delta: _Delta,
        has_snapshot: bool = True,
    ) -> None:
        """Update a wait in progress: its site at this tick, and how much of it is run queue."""
        w = self.waiting.get(key)
        if w is None:
            self._unsettled.discard(key)
            return
        if walked is not None and walked.left_ns != w.left_ns:
            walked = None  # the scan saw an earlier wait of this thread
        site = w.site
        kernel, wake, age_ns = site.kernel, site.wake, at_ns - w.left_ns
        if (states and not w.state & states) or (max_ns and age_ns > max_ns):
            kernel, wake = FILTERED, NO_WAKE
        elif walked is not None and walked.kernel is not None:
            kernel, wake = walked.kernel, walked.wake
        elif kernel in (SHORT, FILTERED):
            kernel = SHORT if age_ns < min_ns else NO_STACK
        user = NO_STACK if kernel < FIRST_STACK else w.user
        if (kernel, user, wake) != site[2:]:
            site = SiteKey(key.pid, key.tid, kernel, user, wake)
        from_ns = max(w.from_ns, min(w.left_ns, at_ns))  # it may have been switched out just after its first snapshot
        runqueue_ns = w.runqueue_ns
        if site != w.site and from_ns < self._snapshot_ns and key not in self._begun:
            if w.site.kernel in PLACELESS or site.kernel in PLACELESS:
                self._settle(key, w, delta)
                from_ns, runqueue_ns = self._snapshot_ns, 0
            else:
                self._move(w, site, at_ns - from_ns)
        so_far_ns = at_ns - from_ns
        if w.is_ready:
            runqueue_ns = so_far_ns
        elif has_snapshot and walked is not None and walked.runnable and walked.queued_ns:
            ready_ns = at_ns - max(w.left_ns, walked.queued_ns)
            grown_ns = runqueue_ns + at_ns - max(from_ns, self._snapshot_ns)  # time shown as blocked stays blocked
            runqueue_ns = max(runqueue_ns, min(ready_ns, grown_ns, so_far_ns))
        if site.kernel in (SHORT, FILTERED, NO_STACK) or runqueue_ns:
            self._unsettled.add(key)
        else:
            self._unsettled.discard(key)
        if site is not w.site or from_ns != w.from_ns or runqueue_ns != w.runqueue_ns:
            w = self.waiting[key] = w._replace(site=site, from_ns=from_ns, runqueue_ns=runqueue_ns)
        details = _wait_details(walked, w.left_ns)
        if details and details != (w.since_ns, w.bound, w.call, w.arguments):
            since_ns, bound, call, arguments = details
            w = self.waiting[key] = w._replace(since_ns=since_ns, bound=bound, call=call, arguments=arguments)
        if walked is not None and walked.holder != w.holder:
            self.waiting[key] = w._replace(holder=walked.holder)

    def _apply(self, delta: _Delta, ended: SiteDeltas, at_ns: int, follows_snapshot: bool) -> None:
        if follows_snapshot:
            self.threads.begin_tick()
            self.sites.begin_tick()
        if delta.threads:
            keys, numbers, lanes = zip(*delta.threads, strict=True)
            of_waits = np.frombuffer(b"".join(lanes), np.int64).reshape(-1, log2.LANES)
            self.threads.add(keys, integers(numbers, THREADS.numbers), of_waits, at_ns)
        if delta.settled:
            keys, numbers = zip(*delta.settled, strict=True)
            self.threads.add(keys, integers(numbers, THREADS.numbers), None, at_ns)
        if delta.ran:
            keys, times = zip(*delta.ran, strict=True)
            numbers = np.zeros((len(keys), THREADS.numbers), np.int64)
            numbers[:, RUNNING_NS] = times
            self.threads.add(keys, numbers, None, at_ns)
        keys = [delta.renamed.get(key, key) for key in ended.keys] if delta.renamed else ended.keys
        new = self.sites.add(keys, ended.numbers, ended.lanes, at_ns)
        if delta.sites:
            sites = [delta.renamed.get(site, site) for site, _ in delta.sites]
            numbers = integers([numbers for _, numbers in delta.sites], SITES.numbers)
            new += self.sites.add(sites, numbers, None, at_ns)
        if delta.late:
            late = SiteDeltas.of(delta.late)
            keys = [delta.renamed.get(key, key) for key in late.keys]
            new += self.sites.add(keys, late.numbers, late.lanes, at_ns)
        for key in new:
            if key.tid:
                self._sites_of.setdefault(key.thread, []).append(key)

    def _give_back(self, keys: Sequence[ThreadKey], at_ns: int) -> None:
        """Move the sums of threads that exited before the last snapshot to EXITED."""
        for key in keys:
            self.threads.move(key, EXITED)
            self._runs.forget(key)
            self._born_ns.pop(key, None)
            for site in self._sites_of.pop(key, ()):
                self._retired[site.kernel] = self._retired[site.user] = at_ns
                self._retired_wakes[site.wake] = at_ns
                self._retire_site(site)
            self._forgotten.append((at_ns, key))
        while len(self._forgotten) > _MOST_NAMES:
            self._forget_name()

    def _forget_name(self) -> None:
        _, key = self._forgotten.popleft()
        if key not in self.threads and key not in self.waiting:
            self.catalog.comms.pop(key, None)
            self.catalog.lives.pop(key, None)
            if key.tid == key.pid:
                self.catalog.processes.pop(key.pid, None)

    def _retire_site(self, key: SiteKey) -> None:
        self.sites.move(key, SiteKey(EXITED.pid, EXITED.tid, key.kernel, NO_STACK))


def _wait_details(walked: OffCpuTask | None, left_ns: int) -> tuple[int, Bound, int, tuple[int, ...]] | None:
    """The Waiting fields from the task scan for the wait that began at `left_ns`.

    None if the scan does not have that wait's stack.
    """
    if walked is None or walked.left_ns != left_ns or walked.kernel is None:
        return None
    return walked.since_ns, walked.bound, walked.call, walked.arguments


def _kind(r: ThreadRecord) -> int:
    """Kind of a record's first wait."""
    return r.first_kind & ~layout.KIND_NEW


def _lost_site(key: ThreadKey) -> SiteKey:
    return SiteKey(key.pid, key.tid, STACK_LOST, STACK_LOST)
