"""Running totals out of what threads were seen at now and then, so that the sums of accounting hold at every snapshot.

The kernel's own counters say exactly how long a thread has run, was ready to run, and how often it got a CPU. What is
left of the time it was blocked. Where it was blocked is known of the moments when it was looked at, and in between for
as long as the counters stand still: then it is one and the same wait. Time of which neither says where it passed goes
half to the place before and half to the place behind, and is counted as guessed. This asks nobody for the time and
opens no file: a test can be its kernel.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from offtop.kernel.procfs.threads import READY, Counters, Seen
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import Book, Life, SiteKey, ThreadKey
from offtop.model.values.outlier import Caught, Marks
from offtop.model.values.running import Running
from offtop.model.values.snapshot import EXITED, Bound, SiteTotals, ThreadTotals, Waiting
from offtop.model.values.stack import FIRST_STACK, NO_STACK
from offtop.model.values.state import RUNNING, letter
from offtop.model.values.table import SITES, THREADS, Ints, integers

LATE_NS = 25_000_000
"""The kernel adds to the time of a thread on a CPU at its ticks, every 1 to 10 ms: less than this is no wait yet."""
LATE_WITHOUT_TICKS_NS = 1_100_000_000
"""The same on a machine with CPUs that have a tick a second (nohz_full)."""
_MOST_NAMES = 50_000
"""Of threads that ended."""


@dataclass(slots=True)
class _Thread:
    counters: Counters
    base_ns: int
    """Up to here its time is in the totals; the counters are as of then. Later than `seen_ns` where a snapshot showed a
    wait that was over: the next one counts from here on."""
    seen_ns: int
    """When it was looked at last."""
    moved_ns: int
    """When its counters were first seen as they are."""
    waiting: Waiting | None = None
    ready_ns: int = 0
    """Since when that wait was seen to be over, but for the CPU; 0: it goes on."""
    passed_over_ns: int = 0
    """Of the time before `base_ns`: it may have been in the run queue, which the kernel adds when it gets a CPU."""
    switches: tuple[int, int] | None = None
    """How often it left the CPU by itself, and how often it was put aside; None: not asked for yet."""
    waits: int = 0
    queued_ns: int = 0
    unseen_ns: int = 0
    """Off-CPU time between two looks that both found it ready. All three since `switches` was asked for."""


class _Part(NamedTuple):
    """What one place has of the time between two looks. ns."""

    site: SiteKey | None
    """None: nobody saw it."""
    waits: int
    blocked_ns: int
    queued_ns: int
    max_ns: int
    histogram: int

    @classmethod
    def together(cls, site: SiteKey | None, waits: int, blocked_ns: int, queued_ns: int, together_ns: int) -> "_Part":
        """Of waits of which only it is known how long all of them were at most."""
        return cls(site, waits, blocked_ns, queued_ns, together_ns if waits else 0, _at_most(together_ns, waits))


class Account:
    """Totals, and the waits in progress, as of the last `end_tick`."""

    def __init__(self, book: Book, began_ns: int, late_ns: int = LATE_NS) -> None:
        self.book, self._late_ns = book, late_ns
        self._is_first = True
        self.threads = Running(THREADS)
        self.sites = Running(SITES)
        self.guessed_ns = 0
        """Off-CPU time that was counted at a place where nobody saw it."""
        self.met = 0
        """How many threads have been looked at for the first time."""
        self.at_ns = began_ns
        self.apart_ns = self._apart_ns = 0
        """The longest time from one look at a thread to the next: in the last tick, and since."""
        self._look_ns = self._all_met_ns = began_ns
        """When this look began; and the one before, which had met all threads of then."""
        self._known: dict[ThreadKey, _Thread] = {}
        self._of_threads: list[tuple[ThreadKey, ThreadTotals]] = []
        self._of_sites: list[tuple[SiteKey, SiteTotals]] = []
        """Both since the last tick."""
        self._sites_of: dict[ThreadKey, set[SiteKey]] = {}
        self._ended: list[ThreadKey] = []
        self._exited: list[ThreadKey] = []
        """In this tick, and in the one before."""
        self._forgotten: dict[ThreadKey, int] = {}
        self._aged_ns = began_ns
        self._caught: list[Caught] = []
        self.marks: Marks | None = None
        """Waits that were seen for so long are told when they end."""

    def __len__(self) -> int:
        return len(self._known)

    def is_known(self, key: ThreadKey) -> bool:
        return key in self._known

    def must_look(self, key: ThreadKey, counters: Counters) -> bool:
        """Whether where it is has to be looked up: it has run, or is ready to."""
        known = self._known.get(key)
        return known is None or known.counters != counters

    def begin_look(self, at_ns: int, anew: bool = False) -> None:
        """`anew`: at others than before."""
        self._all_met_ns = at_ns if anew else self._look_ns
        self._look_ns = at_ns

    def looked(self, key: ThreadKey, at_ns: int, counters: Counters, seen: Seen | None, place: int) -> None:
        """A thread was looked at. `seen`: None where the counters say what they did. `place`: its kernel stack."""
        known = self._known.get(key)
        if known is not None:
            self._apart_ns = max(self._apart_ns, at_ns - known.seen_ns)
        if known is not None and seen is None:
            self._stands_still(key, known, at_ns)
        elif seen is not None:
            if known is None or not _goes_on(known, counters, at_ns, self._late_ns):
                self.ended(key, min(at_ns, seen.began_ns))
                known = self._meet(key, counters, at_ns, seen.began_ns)
            is_met = known.seen_ns == at_ns
            since_ns = self._passed(key, known, counters, at_ns, None if seen.state == READY else place)
            if known.waiting is None and seen.state != READY:
                known.waiting = Waiting(
                    SiteKey(key.pid, key.tid, place, NO_STACK),
                    at_ns,
                    max(at_ns, known.base_ns),
                    since_ns=since_ns,
                    bound=Bound.AT_LEAST if is_met else Bound.AT_MOST,
                    state=seen.bits,
                    call=seen.call,
                    arguments=seen.arguments,
                )
            known.seen_ns = at_ns

    @property
    def standing(self) -> list[ThreadKey]:
        """Those that were blocked when they were looked at last, and may be in the run queue by now: only then do the
        counters stand still as before."""
        waits = [(key, known.waiting) for key, known in self._known.items() if not known.ready_ns]
        return [key for key, one in waits if one and not one.preempted]

    def is_ready(self, key: ThreadKey, at_ns: int) -> None:
        """Its wait was seen to be over, but for the CPU."""
        self._known[key].ready_ns = at_ns

    def assume(self, key: ThreadKey, at_ns: int, counters: Counters) -> None:
        """It has run since it was looked at, and there is no time to look again: where it was, there it is, most
        likely."""
        known = self._known[key]
        was = known.waiting
        off_ns = at_ns - known.seen_ns - (counters.run_ns - known.counters.run_ns)
        most_ns = self.guessed_ns + max(0, off_ns)
        if was is None or was.preempted:
            self.looked(key, at_ns, counters, Seen("", READY), NO_STACK)
        else:
            seen = Seen("", letter(was.state), (), was.call, was.arguments)
            self.looked(key, at_ns, counters, seen, was.site.kernel)
        self.guessed_ns = max(self.guessed_ns, most_ns)

    def ended(self, key: ThreadKey, at_ns: int = 0) -> None:
        """It has ended by then; 0: it is counted no more. A wait counts for half of the time since it was looked at
        last: it ran then, to end, and when is not known."""
        known = self._known.pop(key, None)
        if known is not None:
            was = known.waiting
            if was is not None:
                self._catch(key, was, known.seen_ns)
                sure_ns = max(0, known.seen_ns - was.from_ns, self.at_ns - was.from_ns)
                so_far_ns = max(sure_ns, (known.seen_ns + max(known.seen_ns, at_ns)) // 2 - was.from_ns)
                self.guessed_ns += so_far_ns - sure_ns
                queued_ns = so_far_ns if was.preempted else was.runqueue_ns
                longest_ns = max(0, at_ns - was.since_ns) if at_ns else -1
                self._finish(key, known, was, so_far_ns - queued_ns, queued_ns, 0, 0, longest_ns)
            self._ended.append(key)

    def switched(self, key: ThreadKey, voluntary: int, involuntary: int) -> None:
        """How often it has left the CPU by itself, and was put aside, in all. That says what share of its waits, and so
        most likely of its time in the run queue, the latter was; and whether it can have been blocked at all."""
        known = self._known.get(key)
        if known is None:
            return
        if known.switches is not None:
            by_itself, put_aside = (max(0, n) for n in (voluntary - known.switches[0], involuntary - known.switches[1]))
            if by_itself and known.unseen_ns:
                self.guessed_ns += known.unseen_ns
                known.passed_over_ns = 0
                self._put(key, known, _Part(None, 0, known.unseen_ns, 0, 0, 0))
            if known.waits:
                new = min(known.waits, put_aside)
                preempted_ns = known.queued_ns * new // known.waits
                self._of_threads.append((key, ThreadTotals(involuntary=new, preempted_ns=preempted_ns)))
        known.switches = voluntary, involuntary
        known.waits = known.queued_ns = known.unseen_ns = 0

    @property
    def moved(self) -> list[ThreadKey]:
        """Those that have waited since `switched` was told of them."""
        return [key for key, known in self._known.items() if known.waits or known.unseen_ns or not known.switches]

    def end_tick(self, at_ns: int) -> tuple[dict[ThreadKey, Waiting], list[Caught]]:
        """The waits in progress, and those caught that ended. The totals are as of `at_ns` from now on."""
        self._give_back()
        self._add(at_ns)
        for key in self._ended:
            if key in self._known:  # another one has its id
                continue
            self.book.lives[key] = self.book.life(key)._replace(to_ns=at_ns)
        self._exited, self._ended = self._ended, []
        self.at_ns, self._is_first = at_ns, False
        self.apart_ns, self._apart_ns = self._apart_ns, 0
        waiting: dict[ThreadKey, Waiting] = {}
        for key, known in self._known.items():
            one = known.waiting
            if one is not None:
                if one.preempted:
                    one = known.waiting = one._replace(runqueue_ns=max(0, at_ns - one.from_ns))
                elif known.ready_ns:
                    one = known.waiting = one._replace(runqueue_ns=max(0, at_ns - max(known.ready_ns, one.from_ns)))
                if one.from_ns <= at_ns:
                    waiting[key] = one
        caught, self._caught = self._caught, []
        return waiting, caught

    def age(self, keep_ns: int) -> None:
        """Once in `keep_ns`, give back sites and names that have not been used for as long. Stacks stay: the sums of
        the sites that were given back stand under them, and a kernel has not many."""
        if self.at_ns - self._aged_ns < keep_ns:
            return
        self._aged_ns, before_ns = self.at_ns, self.at_ns - keep_ns
        in_progress = {known.waiting.site for known in self._known.values() if known.waiting}
        for site in self.sites.not_added_since(before_ns):
            if site.tid and site not in in_progress:
                self._retire(site)
                self._sites_of[site.thread].discard(site)
        for key in [key for key, ns in self._forgotten.items() if ns < before_ns]:
            self._forget(key)

    def _meet(self, key: ThreadKey, counters: Counters, at_ns: int, began_ns: int) -> _Thread:
        """Of one that began since all were met, all counts that its counters say; that it first got a CPU ended no
        wait."""
        if not self._is_first:
            self.book.lives[key] = Life(at_ns)
        self._forgotten.pop(key, None)
        self.met += 1
        if began_ns > self._all_met_ns:
            base_ns = min(began_ns, at_ns - counters.run_ns - counters.ready_ns)
            known = _Thread(Counters(0, 0, min(1, counters.turns)), base_ns, base_ns, base_ns, switches=(0, 0))
        else:
            known = _Thread(counters, at_ns, at_ns, at_ns)
        self._known[key] = known
        return known

    def _stands_still(self, key: ThreadKey, known: _Thread, at_ns: int) -> None:
        """Neither has it run, nor got a CPU. Of one that was ready, that is the run queue, if it is more than what the
        kernel has not added yet."""
        known.seen_ns = at_ns
        if known.waiting is None and at_ns - known.moved_ns >= self._late_ns:
            site = SiteKey(key.pid, key.tid, NO_STACK, NO_STACK)
            began_ns = known.base_ns
            known.waiting = Waiting(
                site,
                began_ns,
                began_ns,
                preempted=True,
                since_ns=known.moved_ns,
                bound=Bound.AT_MOST,
                state=RUNNING,
            )

    def _passed(self, key: ThreadKey, known: _Thread, counters: Counters, at_ns: int, place: int | None) -> int:
        """Put what passed since the last look where it belongs. `place`: where it waits now; None: it does not.
        Returns when that began, at the earliest."""
        ran_ns = counters.run_ns - known.counters.run_ns
        queued_ns = counters.ready_ns - known.counters.ready_ns
        turns = counters.turns - known.counters.turns
        was = known.waiting
        if was is not None and not turns and not ran_ns:  # put on another CPU's queue
            if place is None and not known.ready_ns:
                known.ready_ns = at_ns
            return was.since_ns
        off_ns = max(0, at_ns - known.base_ns - ran_ns)
        before_ns = min(known.passed_over_ns, max(0, queued_ns - off_ns))
        known.base_ns, off_ns, known.passed_over_ns = known.base_ns - before_ns, off_ns + before_ns, 0
        known.unseen_ns = max(0, known.unseen_ns - before_ns)
        queued_ns = min(queued_ns, off_ns)  # the rest was before it was met
        if ran_ns:
            self._of_threads.append((key, ThreadTotals(running_ns=ran_ns)))
        since_ns = min(at_ns, known.seen_ns + ran_ns)
        known.moved_ns, known.counters, known.ready_ns = at_ns, counters, 0
        if was is not None:
            queued_ns = max(queued_ns, was.runqueue_ns)
        blocked_ns = max(0, off_ns - queued_ns)
        if place is None and (was is None or was.preempted):
            if blocked_ns >= self._late_ns:  # else it is on a CPU, and the kernel has not added that yet
                known.unseen_ns += blocked_ns
                known.base_ns, known.passed_over_ns = known.base_ns + blocked_ns, blocked_ns
            blocked_ns = 0
        elif was is not None:
            shown_ns = max(0, self.at_ns - was.from_ns) - was.runqueue_ns
            mistaken_ns = min(max(0, shown_ns - blocked_ns), queued_ns - was.runqueue_ns)
            self.guessed_ns += mistaken_ns  # it was shown where it had been blocked, and was in the run queue
            blocked_ns, queued_ns = max(blocked_ns, shown_ns), queued_ns - mistaken_ns
        over_ns = max(0, known.base_ns - known.seen_ns)
        known.base_ns += ran_ns + blocked_ns + queued_ns
        if was is not None:
            self._catch(key, was, known.seen_ns)
            longest_ns = max(0, at_ns - was.since_ns - ran_ns)
            self._share(key, known, was, blocked_ns, queued_ns, turns, place, (longest_ns, at_ns - since_ns))
            known.waiting = None
        else:
            known.base_ns = min(known.base_ns, at_ns + max(over_ns, self._late_ns))  # its CPU has a clock of its own
            if turns or blocked_ns or queued_ns:
                site = None if place is None else SiteKey(key.pid, key.tid, place, NO_STACK)
                self.guessed_ns += blocked_ns if turns else 0
                self._put(key, known, _Part.together(site, turns, blocked_ns, queued_ns, at_ns - since_ns))
        return since_ns

    def _share(
        self,
        key: ThreadKey,
        known: _Thread,
        was: Waiting,
        blocked_ns: int,
        queued_ns: int,
        turns: int,
        place: int | None,
        longest: tuple[int, int],
    ) -> None:
        """A wait has ended, and `turns` - 1 others behind it. `longest`: how long it was at most, and how long all the
        others were together."""
        certain_ns = min(blocked_ns, max(0, known.seen_ns - was.from_ns, self.at_ns - was.from_ns - was.runqueue_ns))
        rest_ns, others, longest_ns = blocked_ns - certain_ns, max(0, turns - 1), longest[0] if turns else -1
        if place is None or place == was.site.kernel:
            self.guessed_ns += rest_ns if others else 0
            self._finish(key, known, was, blocked_ns, queued_ns, others, longest[1], longest_ns)
            return
        self.guessed_ns += rest_ns
        here_ns, here_queued_ns = certain_ns + rest_ns // 2, queued_ns
        if was.preempted:
            here_ns = 0
        others_here = others - others // 2
        if others:
            here_queued_ns = max(was.runqueue_ns, queued_ns // 2)
        self._finish(key, known, was, here_ns, here_queued_ns, others_here, longest[1], longest_ns)
        site, there = SiteKey(key.pid, key.tid, place, NO_STACK), others - others_here
        part = _Part.together(site, there, blocked_ns - here_ns, queued_ns - here_queued_ns, longest[1])
        self._put(key, known, part)

    def _finish(
        self,
        key: ThreadKey,
        known: _Thread,
        was: Waiting,
        blocked_ns: int,
        queued_ns: int,
        others: int,
        others_ns: int,
        longest_ns: int = -1,
    ) -> None:
        """All of a wait that was in progress, and `others` at the same place. `longest_ns`: -1: it has not ended, as
        far as is known."""
        if was.preempted:  # it was shown so
            self._of_threads.append((key, ThreadTotals(preempted_ns=was.runqueue_ns)))
        ended = log2.of(longest_ns) if longest_ns >= 0 else 0
        part = _Part(
            was.site,
            others + (longest_ns >= 0),
            blocked_ns,
            queued_ns,
            max(longest_ns, others_ns if others else 0, 0),
            ended + _at_most(others_ns, others),
        )
        self._put(key, known, part, was.runqueue_ns)

    def _put(self, key: ThreadKey, known: _Thread, part: _Part, shown_ns: int = 0) -> None:
        """`shown_ns`: how much of its run queue earlier snapshots have shown."""
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
        known.queued_ns += part.queued_ns - shown_ns
        if part.site:
            self._sites_of.setdefault(key, set()).add(part.site)
            self._of_sites.append(
                (part.site, SiteTotals(part.waits, total_ns, part.queued_ns, part.max_ns, part.histogram))
            )

    def _catch(self, key: ThreadKey, was: Waiting, seen_ns: int) -> None:
        """Told is what is sure: from when it was first seen to when it was seen last."""
        lasted_ns = seen_ns - was.left_ns
        if self.marks is None or was.site.kernel < FIRST_STACK or lasted_ns < self.marks.lowest_ns:
            return
        program = self.book.process(key.pid)
        if lasted_ns >= min(self.marks.marks_ns(program, was.site.kernel, self.book)):
            self._caught.append(
                Caught(was.site, was.left_ns, seen_ns, was.runqueue_ns, was.state, program=program, is_exact=False)
            )

    def _add(self, at_ns: int) -> None:
        self.threads.begin_tick()
        self.sites.begin_tick()
        if self._of_threads:
            keys, totals = zip(*self._of_threads, strict=True)
            numbers = integers([one[:-1] for one in totals], THREADS.numbers)
            self.threads.add(keys, numbers, _lanes(one[-1] for one in totals), at_ns)
        if self._of_sites:
            sites, of_sites = zip(*self._of_sites, strict=True)
            numbers = integers([one[:-1] for one in of_sites], SITES.numbers)
            self.sites.add(sites, numbers, _lanes(one[-1] for one in of_sites), at_ns)
        self._of_threads.clear()
        self._of_sites.clear()

    def _give_back(self) -> None:
        """Threads that ended before the last snapshot: their sums stay, under EXITED."""
        again = {key for key, _ in self._of_threads}
        for key in self._exited:
            if key in self._known or key in again:
                continue
            self.threads.move(key, EXITED)
            for site in self._sites_of.pop(key, ()):
                self._retire(site)
            self._forgotten[key] = self.at_ns
        while len(self._forgotten) > _MOST_NAMES:
            self._forget(next(iter(self._forgotten)))

    def _retire(self, site: SiteKey) -> None:
        self.sites.move(site, SiteKey(EXITED.pid, EXITED.tid, site.kernel, NO_STACK))

    def _forget(self, key: ThreadKey) -> None:
        del self._forgotten[key]
        self.book.comms.pop(key, None)
        self.book.lives.pop(key, None)
        if key.tid == key.pid:
            self.book.processes.pop(key.pid, None)

    @property
    def alive(self) -> set[ThreadKey]:
        return {*self._known}


def _goes_on(known: _Thread, now: Counters, at_ns: int, late_ns: int) -> bool:
    """Whether it is the same thread, by what cannot be otherwise: another one may have its id by now."""
    was = known.counters
    return (
        all(new >= old for new, old in zip(now, was, strict=True))
        and now.run_ns - was.run_ns <= at_ns - min(known.base_ns, known.seen_ns) + 4 * late_ns
    )


def _at_most(together_ns: int, waits: int) -> int:
    """The histogram of so many waits of which only the sum is known: none can make it fall short. The longest is no
    longer than the sum, the second no longer than half of it, and so on."""
    histogram, done = 0, 0
    for lane in reversed(range(log2.LANES)):
        longer = min(waits, together_ns // max(1, log2.low_ns(lane))) if lane else waits
        histogram += (longer - done) << (log2.LANE_BITS * lane)
        done = longer
    return histogram


def _lanes(histograms: Iterable[int]) -> Ints:
    raw = b"".join(one.to_bytes(log2.LANES * 8, "little") for one in histograms)
    return np.frombuffer(raw, np.int64).reshape(-1, log2.LANES)
