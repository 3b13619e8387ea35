"""Turns samples of /proc into running totals, so that the accounting sums hold at every snapshot.

The kernel's counters say exactly how long a thread has run, how long it was runnable, and how often it got a CPU. The
rest of its time it was blocked. Where it was blocked is known at each sample, and between two samples if the counters
did not change: then it is one and the same wait. Time whose location is unknown is split evenly between the location
before and the one after, and counted as guessed. This module reads no clock and opens no file, so tests can pass in any
counters and times.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from offtop.kernel.procfs.threads import READY, Counters, ThreadState
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey, ThreadLifetime
from offtop.model.values.outlier import LongWait, Thresholds
from offtop.model.values.running import Running
from offtop.model.values.snapshot import Bound, SiteTotals, ThreadTotals, Waiting
from offtop.model.values.stack import FIRST_STACK, NO_STACK
from offtop.model.values.state import RUNNING, letter
from offtop.model.values.table import SITES, THREADS, Ints, integers, nonzero_lanes, of_exited

LATE_NS = 25_000_000
"""The kernel updates the CPU time of a running thread at its ticks, every 1 to 10 ms: a shorter gap is not a wait yet.
"""
LATE_WITHOUT_TICKS_NS = 1_100_000_000
"""The same on a machine whose CPUs have one tick per second (nohz_full)."""
_MOST_NAMES = 50_000
"""How many names of exited threads are kept."""


@dataclass(slots=True)
class _Thread:
    counters: Counters
    base_ns: int
    """Up to here its time is in the totals, and the counters are as of then. It is later than `seen_ns` if a snapshot
    showed a wait that was over: the next wait counts from here."""
    seen_ns: int
    """Time of its last sample."""
    changed_ns: int
    """When its counters were first seen with their current values."""
    waiting: Waiting | None = None
    ready_ns: int = 0
    """When that wait was seen to be over except for getting a CPU; 0 if it is still blocked."""
    maybe_queued_ns: int = 0
    """Part of the time before `base_ns` that may have been run queue, which the kernel adds only when the thread gets a
    CPU."""
    switches: tuple[int, int] | None = None
    """Voluntary and involuntary switches; None if not read yet."""
    waits: int = 0
    queued_ns: int = 0
    unseen_ns: int = 0
    """Off-CPU time between two samples that both found it runnable. All three count since `switches` was read."""
    waits_in_tick: int = 0
    queued_in_tick_ns: int = 0
    """Waits and run-queue time of this tick that are not counted as preempted yet."""


class _Part(NamedTuple):
    """The share of one site in the time between two samples, in ns."""

    site: SiteKey | None
    """None if no sample saw it."""
    waits: int
    blocked_ns: int
    queued_ns: int
    max_ns: int
    histogram: int

    @classmethod
    def of_sum(cls, site: SiteKey | None, waits: int, blocked_ns: int, queued_ns: int, sum_ns: int) -> "_Part":
        """Build the share of several waits of which only the longest possible sum is known."""
        return cls(site, waits, blocked_ns, queued_ns, sum_ns if waits else 0, _at_most(sum_ns, waits))


class SampledTotals:
    """Totals and the waits in progress, as of the last `end_tick`."""

    def __init__(self, catalog: Catalog, began_ns: int, late_ns: int = LATE_NS) -> None:
        self.catalog, self._late_ns = catalog, late_ns
        self._is_first = True
        self.threads = Running(THREADS)
        self.sites = Running(SITES)
        self.guessed_ns = 0
        """Off-CPU time counted at a site without a sample that saw it there."""
        self.threads_seen = 0
        """How many threads have been sampled for the first time."""
        self.at_ns = began_ns
        self.max_gap_ns = self._max_gap_ns = 0
        """The longest time between two samples of a thread: in the last tick, and since then."""
        self._scan_ns = self._new_after_ns = began_ns
        """When this scan began, and when the one before did, which sampled all threads of that time."""
        self._known: dict[ThreadKey, _Thread] = {}
        self._of_threads: list[tuple[ThreadKey, ThreadTotals]] = []
        self._of_sites: list[tuple[SiteKey, SiteTotals]] = []
        """Changes since the last tick."""
        self._ended: list[ThreadKey] = []
        self._exited: list[ThreadKey] = []
        """Threads that exited in this tick, and in the tick before."""
        self._kept_names: dict[ThreadKey, int] = {}
        self._evicted_ns = began_ns
        self._long_waits: list[LongWait] = []
        self.thresholds: Thresholds | None = None
        """Thresholds: waits that were seen for longer are reported when they end."""

    def __len__(self) -> int:
        return len(self._known)

    def is_known(self, key: ThreadKey) -> bool:
        return key in self._known

    def needs_stack(self, key: ThreadKey, counters: Counters) -> bool:
        """Return whether its stack has to be read: it is new, has run since its last sample, or is runnable."""
        known = self._known.get(key)
        return known is None or known.counters != counters

    def begin_scan(self, at_ns: int, filter_changed: bool = False) -> None:
        """Start a scan. `filter_changed`: the set of threads has changed."""
        self._new_after_ns = at_ns if filter_changed else self._scan_ns
        self._scan_ns = at_ns

    def add_sample(self, key: ThreadKey, at_ns: int, counters: Counters, seen: ThreadState | None, kernel: int) -> None:
        """Add a sample of a thread.

        `seen` is None if the counters have not changed since the last one; `kernel` is its kernel stack id.
        """
        known = self._known.get(key)
        if known is not None:
            self._max_gap_ns = max(self._max_gap_ns, at_ns - known.seen_ns)
        if known is not None and seen is None:
            self._add_unchanged(key, known, at_ns)
        elif seen is not None:
            if known is None or not _may_be_same_thread(known, counters, at_ns, self._late_ns):
                self.end_thread(key, min(at_ns, seen.began_ns))
                known = self._add_thread(key, counters, at_ns, seen.began_ns)
            is_first = known.seen_ns == at_ns
            since_ns = self._attribute(key, known, counters, at_ns, None if seen.state == READY else kernel)
            if known.waiting is None and seen.state != READY:
                known.waiting = Waiting(
                    SiteKey(key.pid, key.tid, kernel, NO_STACK),
                    at_ns,
                    max(at_ns, known.base_ns),
                    since_ns=since_ns,
                    bound=Bound.AT_LEAST if is_first else Bound.AT_MOST,
                    state=seen.bits,
                    call=seen.call,
                    arguments=seen.arguments,
                )
            known.seen_ns = at_ns

    @property
    def maybe_runnable(self) -> list[ThreadKey]:
        """Threads that were blocked at their last sample and may be on the run queue by now.

        Their counters do not change in either case.
        """
        waits = [(key, known.waiting) for key, known in self._known.items() if not known.ready_ns]
        return [key for key, one in waits if one and not one.preempted]

    def mark_runnable(self, key: ThreadKey, at_ns: int) -> None:
        """Note that a wait is over except for getting a CPU."""
        self._known[key].ready_ns = at_ns

    def add_assumed_sample(self, key: ThreadKey, at_ns: int, counters: Counters) -> None:
        """Add a sample of a thread that has run, but whose stack there was no time to read.

        It is assumed to wait where it waited at its last sample.
        """
        known = self._known[key]
        waiting = known.waiting
        off_ns = at_ns - known.seen_ns - (counters.run_ns - known.counters.run_ns)
        max_guessed_ns = self.guessed_ns + max(0, off_ns)
        if waiting is None or waiting.preempted:
            self.add_sample(key, at_ns, counters, ThreadState("", READY), NO_STACK)
        else:
            seen = ThreadState("", letter(waiting.state), (), waiting.call, waiting.arguments)
            self.add_sample(key, at_ns, counters, seen, waiting.site.kernel)
        self.guessed_ns = max(self.guessed_ns, max_guessed_ns)

    def end_thread(self, key: ThreadKey, at_ns: int = 0) -> None:
        """Finish a thread that exited by `at_ns`, or that is no longer counted (0).

        Half of the time since its last sample counts for the wait that was in progress, because the thread ran at some
        point in between, to exit.
        """
        known = self._known.pop(key, None)
        if known is not None:
            waiting = known.waiting
            if waiting is not None:
                self._report_if_outlier(key, waiting, known.seen_ns)
                certain_ns = max(0, known.seen_ns - waiting.from_ns, self.at_ns - waiting.from_ns)
                so_far_ns = max(certain_ns, (known.seen_ns + max(known.seen_ns, at_ns)) // 2 - waiting.from_ns)
                self.guessed_ns += so_far_ns - certain_ns
                queued_ns = so_far_ns if waiting.preempted else waiting.runqueue_ns
                longest_ns = max(0, at_ns - waiting.since_ns) if at_ns else -1
                self._finish(key, known, waiting, so_far_ns - queued_ns, queued_ns, 0, 0, longest_ns)
            self._ended.append(key)

    def set_switches(self, key: ThreadKey, voluntary: int, involuntary: int) -> None:
        """Set how often a thread has been switched out voluntarily and involuntarily, in total.

        The ratio is the share of its waits that were preemptions, and most likely of its run-queue time. Without
        voluntary switches, it was never blocked. The switches may be those of several ticks, if there was no time to
        read them earlier, but a tick never has more preemptions, or more preempted time, than it has waits and
        run-queue time.
        """
        known = self._known.get(key)
        if known is None:
            return
        if known.switches is not None:
            yielded, preempted = (max(0, n) for n in (voluntary - known.switches[0], involuntary - known.switches[1]))
            if yielded and known.unseen_ns:
                self.guessed_ns += known.unseen_ns
                known.maybe_queued_ns = 0
                self._add_part(key, known, _Part(None, 0, known.unseen_ns, 0, 0, 0))
            if known.waits:
                new = min(known.waits_in_tick, preempted)
                preempted_ns = min(
                    known.queued_in_tick_ns, known.queued_ns * min(known.waits, preempted) // known.waits
                )
                known.waits_in_tick -= new
                known.queued_in_tick_ns -= preempted_ns
                self._of_threads.append((key, ThreadTotals(involuntary=new, preempted_ns=preempted_ns)))
        known.switches = voluntary, involuntary
        known.waits = known.queued_ns = known.unseen_ns = 0

    @property
    def stale_switches(self) -> list[ThreadKey]:
        """Threads that have waited since their last `set_switches`."""
        return [key for key, known in self._known.items() if known.waits or known.unseen_ns or not known.switches]

    def end_tick(self, at_ns: int) -> tuple[dict[ThreadKey, Waiting], list[LongWait]]:
        """Finish a tick: return the waits in progress and the outliers that ended.

        The totals are as of `at_ns` from now on.
        """
        self._evict_exited()
        self._flush(at_ns)
        for key in self._ended:
            if key in self._known:  # another thread has its tid
                continue
            self.catalog.lives[key] = self.catalog.life(key)._replace(to_ns=at_ns)
        self._exited, self._ended = self._ended, []
        self.at_ns, self._is_first = at_ns, False
        self.max_gap_ns, self._max_gap_ns = self._max_gap_ns, 0
        waiting: dict[ThreadKey, Waiting] = {}
        for key, known in self._known.items():
            known.waits_in_tick = known.queued_in_tick_ns = 0
            one = known.waiting
            if one is not None:
                if one.preempted:
                    one = known.waiting = one._replace(runqueue_ns=max(0, at_ns - one.from_ns))
                elif known.ready_ns:
                    one = known.waiting = one._replace(runqueue_ns=max(0, at_ns - max(known.ready_ns, one.from_ns)))
                if one.from_ns <= at_ns:
                    waiting[key] = one
        long_waits, self._long_waits = self._long_waits, []
        return waiting, long_waits

    def evict_old(self, keep_ns: int) -> None:
        """Once every `keep_ns`, evict sites and names that were not used for that long.

        Stacks stay, because the sums of evicted sites refer to them. A kernel does not have many.
        """
        if self.at_ns - self._evicted_ns < keep_ns:
            return
        self._evicted_ns, before_ns = self.at_ns, self.at_ns - keep_ns
        in_progress = {known.waiting.site for known in self._known.values() if known.waiting}
        unused = [one for one in self.sites.not_added_since(before_ns) if one.tid and one not in in_progress]
        self._evict_sites(integers(unused, SITES.width))
        for key in [key for key, ns in self._kept_names.items() if ns < before_ns]:
            self._drop_name(key)

    def _add_thread(self, key: ThreadKey, counters: Counters, at_ns: int, began_ns: int) -> _Thread:
        """Add a thread.

        If it started while offtop was running, everything in its counters counts, except the switch-in that began its
        first run: it ended no wait.
        """
        if not self._is_first:
            self.catalog.lives[key] = ThreadLifetime(at_ns)
        self._kept_names.pop(key, None)
        self.threads_seen += 1
        if began_ns > self._new_after_ns:
            base_ns = min(began_ns, at_ns - counters.run_ns - counters.ready_ns)
            known = _Thread(Counters(0, 0, min(1, counters.pcount)), base_ns, base_ns, base_ns, switches=(0, 0))
        else:
            known = _Thread(counters, at_ns, at_ns, at_ns)
        self._known[key] = known
        return known

    def _add_unchanged(self, key: ThreadKey, known: _Thread, at_ns: int) -> None:
        """Handle a thread that has neither run nor got a CPU since its last sample.

        If it was runnable, it has been on the run queue, unless the time is so short that the kernel may just not have
        updated its run time yet.
        """
        known.seen_ns = at_ns
        if known.waiting is None and at_ns - known.changed_ns >= self._late_ns:
            site = SiteKey(key.pid, key.tid, NO_STACK, NO_STACK)
            began_ns = known.base_ns
            known.waiting = Waiting(
                site,
                began_ns,
                began_ns,
                preempted=True,
                since_ns=known.changed_ns,
                bound=Bound.AT_MOST,
                state=RUNNING,
            )

    def _attribute(self, key: ThreadKey, known: _Thread, counters: Counters, at_ns: int, kernel: int | None) -> int:
        """Attribute the time since the last sample; return the earliest start of the current wait.

        `kernel` is the stack that it waits at now; None if it does not wait.
        """
        ran_ns = counters.run_ns - known.counters.run_ns
        queued_ns = counters.ready_ns - known.counters.ready_ns
        pcount = counters.pcount - known.counters.pcount
        waiting = known.waiting
        if waiting is not None and not pcount and not ran_ns:  # moved to another CPU's run queue
            if kernel is None and not known.ready_ns:
                known.ready_ns = at_ns
            return waiting.since_ns
        off_ns = max(0, at_ns - known.base_ns - ran_ns)
        before_ns = min(known.maybe_queued_ns, max(0, queued_ns - off_ns))
        known.base_ns, off_ns, known.maybe_queued_ns = known.base_ns - before_ns, off_ns + before_ns, 0
        known.unseen_ns = max(0, known.unseen_ns - before_ns)
        queued_ns = min(queued_ns, off_ns)  # the rest was before its first sample
        if ran_ns:
            self._of_threads.append((key, ThreadTotals(running_ns=ran_ns)))
        since_ns = min(at_ns, known.seen_ns + ran_ns)
        known.changed_ns, known.counters, known.ready_ns = at_ns, counters, 0
        if waiting is not None:
            queued_ns = max(queued_ns, waiting.runqueue_ns)
        blocked_ns = max(0, off_ns - queued_ns)
        if kernel is None and (waiting is None or waiting.preempted):
            if blocked_ns >= self._late_ns:  # otherwise it is on a CPU, and the kernel has not added that time yet
                known.unseen_ns += blocked_ns
                known.base_ns, known.maybe_queued_ns = known.base_ns + blocked_ns, blocked_ns
            blocked_ns = 0
        elif waiting is not None:
            shown_ns = max(0, self.at_ns - waiting.from_ns) - waiting.runqueue_ns
            misattributed_ns = min(max(0, shown_ns - blocked_ns), queued_ns - waiting.runqueue_ns)
            self.guessed_ns += misattributed_ns  # shown as blocked although it was on the run queue
            blocked_ns, queued_ns = max(blocked_ns, shown_ns), queued_ns - misattributed_ns
        over_ns = max(0, known.base_ns - known.seen_ns)
        known.base_ns += ran_ns + blocked_ns + queued_ns
        if waiting is not None:
            self._report_if_outlier(key, waiting, known.seen_ns)
            longest_ns = max(0, at_ns - waiting.since_ns - ran_ns)
            self._attribute_waits(
                key, known, waiting, blocked_ns, queued_ns, pcount, kernel, (longest_ns, at_ns - since_ns)
            )
            known.waiting = None
        else:
            known.base_ns = min(known.base_ns, at_ns + max(over_ns, self._late_ns))  # its CPU has its own clock
            if pcount or blocked_ns or queued_ns:
                site = None if kernel is None else SiteKey(key.pid, key.tid, kernel, NO_STACK)
                self.guessed_ns += blocked_ns if pcount else 0
                self._add_part(key, known, _Part.of_sum(site, pcount, blocked_ns, queued_ns, at_ns - since_ns))
        return since_ns

    def _attribute_waits(
        self,
        key: ThreadKey,
        known: _Thread,
        waiting: Waiting,
        blocked_ns: int,
        queued_ns: int,
        pcount: int,
        kernel: int | None,
        max_ns: tuple[int, int],
    ) -> None:
        """Attribute a finished wait and the `pcount` - 1 others after it.

        `max_ns`: upper bounds for the length of this wait, and for the sum of the others.
        """
        certain_ns = min(
            blocked_ns, max(0, known.seen_ns - waiting.from_ns, self.at_ns - waiting.from_ns - waiting.runqueue_ns)
        )
        rest_ns, others, longest_ns = blocked_ns - certain_ns, max(0, pcount - 1), max_ns[0] if pcount else -1
        if kernel is None or kernel == waiting.site.kernel:
            self.guessed_ns += rest_ns if others else 0
            self._finish(key, known, waiting, blocked_ns, queued_ns, others, max_ns[1], longest_ns)
            return
        self.guessed_ns += rest_ns
        here_ns, here_queued_ns = certain_ns + rest_ns // 2, queued_ns
        if waiting.preempted:
            here_ns = 0
        others_here = others - others // 2
        if others:
            here_queued_ns = max(waiting.runqueue_ns, queued_ns // 2)
        self._finish(key, known, waiting, here_ns, here_queued_ns, others_here, max_ns[1], longest_ns)
        site, there = SiteKey(key.pid, key.tid, kernel, NO_STACK), others - others_here
        part = _Part.of_sum(site, there, blocked_ns - here_ns, queued_ns - here_queued_ns, max_ns[1])
        self._add_part(key, known, part)

    def _finish(
        self,
        key: ThreadKey,
        known: _Thread,
        waiting: Waiting,
        blocked_ns: int,
        queued_ns: int,
        others: int,
        others_ns: int,
        longest_ns: int = -1,
    ) -> None:
        """Attribute all of a wait that was in progress, and `others` at the same site.

        `longest_ns`: its longest possible length; -1 if it is not known to have ended.
        """
        if waiting.preempted:  # as it was shown
            self._of_threads.append((key, ThreadTotals(preempted_ns=waiting.runqueue_ns)))
        ended = log2.of(longest_ns) if longest_ns >= 0 else 0
        part = _Part(
            waiting.site,
            others + (longest_ns >= 0),
            blocked_ns,
            queued_ns,
            max(longest_ns, others_ns if others else 0, 0),
            ended + _at_most(others_ns, others),
        )
        self._add_part(key, known, part, waiting.runqueue_ns)

    def _add_part(self, key: ThreadKey, known: _Thread, part: _Part, shown_ns: int = 0) -> None:
        """Add a share to the totals.

        `shown_ns`: how much of its run-queue time was already in earlier snapshots.
        """
        total_ns = part.blocked_ns + part.queued_ns
        short = (0, 0, 0) if part.site else (part.waits, total_ns, part.queued_ns)
        self._of_threads.append(
            (
                key,
                ThreadTotals(
                    waits=part.waits,
                    offcpu_ns=total_ns,
                    runqueue_ns=part.queued_ns,
                    short_waits=short[0],
                    short_ns=short[1],
                    short_runqueue_ns=short[2],
                    max_ns=part.max_ns,
                    histogram=part.histogram,
                ),
            )
        )
        known.waits += part.waits
        known.waits_in_tick += part.waits
        known.queued_ns += part.queued_ns - shown_ns
        known.queued_in_tick_ns += part.queued_ns - shown_ns
        if part.site:
            self._of_sites.append(
                (part.site, SiteTotals(part.waits, total_ns, part.queued_ns, part.max_ns, part.histogram))
            )

    def _report_if_outlier(self, key: ThreadKey, waiting: Waiting, seen_ns: int) -> None:
        """Report a wait as an outlier if it passed its threshold.

        Its length is the certain part: from the first sample that saw it to the last.
        """
        lasted_ns = seen_ns - waiting.switched_out_ns
        if self.thresholds is None or waiting.site.kernel < FIRST_STACK or lasted_ns < self.thresholds.lowest_ns:
            return
        program = self.catalog.process(key.pid)
        if lasted_ns >= min(self.thresholds.thresholds_ns(program, waiting.site.kernel, self.catalog)):
            self._long_waits.append(
                LongWait(
                    waiting.site,
                    waiting.switched_out_ns,
                    seen_ns,
                    waiting.runqueue_ns,
                    waiting.state,
                    program=program,
                    is_exact=False,
                )
            )

    def _flush(self, at_ns: int) -> None:
        self.threads.begin_tick()
        self.sites.begin_tick()
        if self._of_threads:
            keys, totals = zip(*self._of_threads, strict=True)
            numbers = integers([one[:-1] for one in totals], THREADS.numbers)
            self.threads.add(integers(keys, THREADS.width), numbers, _counts(one[-1] for one in totals), at_ns)
        if self._of_sites:
            sites, of_sites = zip(*self._of_sites, strict=True)
            numbers = integers([one[:-1] for one in of_sites], SITES.numbers)
            self.sites.add(integers(sites, SITES.width), numbers, _counts(one[-1] for one in of_sites), at_ns)
        self._of_threads.clear()
        self._of_sites.clear()

    def _evict_exited(self) -> None:
        """Move the sums of threads that exited before the last snapshot to EXITED."""
        changed, exited = {key for key, _ in self._of_threads}, list[ThreadKey]()
        for key in self._exited:
            if key in self._known or key in changed:
                continue
            exited.append(key)
            self._kept_names[key] = self.at_ns
        threads = integers(exited, THREADS.width)
        self.threads.move(threads, of_exited(threads))
        self._evict_sites(self.sites.keys_of_threads(threads))
        while len(self._kept_names) > _MOST_NAMES:
            self._drop_name(next(iter(self._kept_names)))

    def _evict_sites(self, sites: Ints) -> None:
        self.sites.move(sites, of_exited(sites))

    def _drop_name(self, key: ThreadKey) -> None:
        del self._kept_names[key]
        self.catalog.comms.pop(key, None)
        self.catalog.lives.pop(key, None)
        if key.tid == key.pid:
            self.catalog.processes.pop(key.pid, None)

    @property
    def known_threads(self) -> set[ThreadKey]:
        return {*self._known}


def _may_be_same_thread(known: _Thread, now: Counters, at_ns: int, late_ns: int) -> bool:
    """Return whether the counters can be those of the same thread: tids are reused."""
    old_counters = known.counters
    return (
        all(new >= old for new, old in zip(now, old_counters, strict=True))
        and now.run_ns - old_counters.run_ns <= at_ns - min(known.base_ns, known.seen_ns) + 4 * late_ns
    )


def _at_most(sum_ns: int, waits: int) -> int:
    """Build the histogram of `waits` waits of which only the sum is known.

    It underestimates none of them: the longest is no longer than the sum, the second no longer than half of it, and so
    on.
    """
    histogram, done = 0, 0
    for lane in reversed(range(log2.LANES)):
        longer = min(waits, sum_ns // max(1, log2.low_ns(lane))) if lane else waits
        histogram += (longer - done) << (log2.LANE_BITS * lane)
        done = longer
    return histogram


def _counts(histograms: Iterable[int]) -> Ints:
    raw = b"".join(one.to_bytes(log2.LANES * 8, "little") for one in histograms)
    return nonzero_lanes(np.frombuffer(raw, np.int64).reshape(-1, log2.LANES))
