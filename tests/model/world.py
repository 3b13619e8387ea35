"""A made-up machine whose snapshots follow accounting.md by construction, for property tests."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from offtop.model.values import histogram as log2
from offtop.model.values.catalog import Catalog, Details, SiteKey, ThreadKey
from offtop.model.values.snapshot import EXITED, Move, SiteTotals, Snapshot, ThreadTotals, Waiting
from offtop.model.values.stack import KERNEL, NO_STACK, SHORT, Frame, Stack
from offtop.model.values.wake import (
    CHAIN,
    DEPTH,
    FIRST_WAKE,
    NO_WAKE,
    STORM,
    THREAD,
    TIMEOUT,
    WAKE_LOST,
    WHOLE,
    Link,
    Object,
    Storm,
    Wake,
    Waker,
)

CATEGORIES = ("lock", "disk-read", "poll", "sleep", "throttle", "run-queue", "other")
IDLE = frozenset({"poll"})
BOOK = Catalog()
for _number, _category in enumerate(CATEGORIES, 3):
    BOOK.stacks[_number] = Stack((Frame(KERNEL, 0, _category),), 0, _category)
BOOK.details |= {10: Details(cgroup="/a"), 11: Details(cgroup="/a/b.service")}
PIDS = {tid: 10 + tid % 3 for tid in range(1, 9)}
_TIMEOUT, _FIRST = Waker(TIMEOUT, kernel=3), Waker(THREAD, "", PIDS[1], 1, "one", kernel=4)
BOOK.wakes |= {
    FIRST_WAKE: Wake(_TIMEOUT, end=WHOLE),
    FIRST_WAKE + 1: Wake(_FIRST, Object("futex", "0x1000", 10), (Link(6, NO_STACK, _TIMEOUT),), WHOLE),
    FIRST_WAKE + 2: Wake(_FIRST, Object("pipe", "pipe:[7]"), (Link(7, NO_STACK, _FIRST),), DEPTH),
}

Step = tuple[str, int, int, int, int, int]
"""What happens, to which tid, at which kernel stack, for how many ns, what percentage of them runnable, and the wake
that ends it."""

steps = st.lists(
    st.tuples(
        st.sampled_from(("wait", "short", "filtered", "leave", "move", "back", "exit", "storm")),
        st.integers(1, 8),
        st.integers(3, 9),
        st.integers(1, 5_000_000),
        st.sampled_from((0, 0, 30, 100)),
        st.sampled_from((NO_WAKE, NO_WAKE, WAKE_LOST, FIRST_WAKE, FIRST_WAKE + 1, FIRST_WAKE + 2)),
    ),
    max_size=30,
)
stretches = st.lists(steps, min_size=2, max_size=5)
"""What happens between one snapshot and the next."""


@dataclass
class World:
    now_ns: int = 1_000
    threads: dict[ThreadKey, ThreadTotals] = field(default_factory=dict[ThreadKey, ThreadTotals])
    sites: dict[SiteKey, SiteTotals] = field(default_factory=dict[SiteKey, SiteTotals])
    waiting: dict[ThreadKey, Waiting] = field(default_factory=dict[ThreadKey, Waiting])
    gone: set[ThreadKey] = field(default_factory=set[ThreadKey])
    """Tids are not reused."""
    storms: dict[int, Storm] = field(default_factory=dict[int, Storm])
    moves: list[Move] = field(default_factory=list[Move])
    """Since the last snapshot."""
    shown_ns: int = 0
    """When that was taken."""

    def snapshot(self) -> Snapshot:
        storms, self.shown_ns = self.storms, self.now_ns
        moves, self.moves = self.moves, []
        self.storms = {wake: one._replace(largest=0) for wake, one in storms.items()}
        some = dict(self.threads), dict(self.sites), dict(self.waiting)
        return Snapshot(0, self.now_ns, *some, BOOK, storms=storms, moves=moves, mode=CHAIN)

    def step(self, step: Step) -> None:
        what, tid, kernel, ns, ready_pct, wake = step
        thread = ThreadKey(PIDS[tid], tid)
        site = SiteKey(*thread, kernel, NO_STACK)
        self.now_ns += ns
        if thread in self.gone:
            return
        ready_ns = ns * ready_pct // 100
        if what == "wait" and thread not in self.waiting:
            self._finish(site._replace(wake=wake), ns, ready_ns)
        elif what == "short" and thread not in self.waiting:
            self._finish(site._replace(kernel=SHORT), ns, ready_ns)
        elif what == "filtered" and thread not in self.waiting:
            self._add_thread(
                thread, ThreadTotals(1, ns, ready_ns, filtered_ns=ns, filtered_runqueue_ns=ready_ns, max_ns=ns)
            )
        elif what == "leave" and thread not in self.waiting:
            place = site._replace(kernel=SHORT) if kernel == 9 else site
            self.waiting[thread] = Waiting(place, self.now_ns, self.now_ns)
        elif what == "move" and thread in self.waiting:
            was = self.waiting[thread]
            if SHORT in (was.site.kernel, site.kernel):
                self._finish(was.site, self.now_ns - was.from_ns, was.runqueue_ns, waits=0)
                self.waiting[thread] = Waiting(site, was.switched_out_ns, self.now_ns)
            else:
                self._move(was, site)
                self.waiting[thread] = was._replace(site=site)
        elif what == "back" and thread in self.waiting:
            was = self.waiting.pop(thread)
            so_far_ns, ended = self.now_ns - was.from_ns, was.site
            if wake != NO_WAKE and was.site.kernel != SHORT:
                ended = was.site._replace(wake=wake)
                self._move(was, ended)
            later_ns = self.now_ns - max(was.from_ns, self.shown_ns)
            self._finish(ended, so_far_ns, was.runqueue_ns + later_ns * ready_pct // 100)
        elif what == "exit":
            self._evict(thread)
        elif what == "storm":
            some = Storm(1, STORM + tid, tid, STORM + tid)
            self.storms[wake] = self.storms.get(wake, Storm()).plus(some)

    def _move(self, was: Waiting, now: SiteKey) -> None:
        """Move what was shown of a wait to its new site."""
        if was.from_ns < self.shown_ns and now != was.site:
            self.moves.append(Move(was.site, now, was.from_ns, self.shown_ns, was.runqueue_ns))

    def _finish(self, site: SiteKey, ns: int, ready_ns: int, waits: int = 1) -> None:
        max_ns = waits * ns
        histogram = waits * log2.of(max_ns)
        if site.kernel == SHORT:
            more = ThreadTotals(waits, ns, ready_ns, 0, 0, waits, ns, ready_ns, 0, 0, 0, max_ns, histogram)
        else:
            more = ThreadTotals(waits, ns, ready_ns, max_ns=max_ns, histogram=histogram)
            some = SiteTotals(waits, ns, ready_ns, max_ns, histogram)
            self.sites[site] = self.sites.get(site, SiteTotals()).plus(some)
        self._add_thread(site.thread, more)

    def _add_thread(self, thread: ThreadKey, more: ThreadTotals) -> None:
        self.threads[thread] = self.threads.get(thread, ThreadTotals()).plus(more)

    def _evict(self, thread: ThreadKey) -> None:
        """Exit, and add everything of the thread to EXITED."""
        self.gone.add(thread)
        if thread in self.waiting:
            was = self.waiting.pop(thread)
            self._finish(was.site, self.now_ns - was.from_ns, was.runqueue_ns)
        if thread in self.threads:
            self._add_thread(EXITED, self.threads.pop(thread))
        for site in [site for site in self.sites if site.thread == thread]:
            rest = SiteKey(*EXITED, site.kernel, NO_STACK)
            self.sites[rest] = self.sites.get(rest, SiteTotals()).plus(self.sites.pop(site))


def snapshots(stretches: Sequence[Sequence[Step]]) -> list[Snapshot]:
    """Return one snapshot before the first stretch, and one after each."""
    world = World()
    taken = [world.snapshot()]
    for stretch in stretches:
        for step in stretch:
            world.step(step)
        world.now_ns += 1_000_000
        taken.append(world.snapshot())
    return taken
