"""A Window is what passed between two snapshots; windows side by side merge into a longer one.

The law, held by a property test: merge([between(a, b), between(b, c)]) == between(a, c), for sums and
histograms. A maximum merges by maximum.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from offtop.model.book import Book, SiteKey, ThreadKey
from offtop.model.snapshot import EXITED, Cost, Filters, SiteTotals, Snapshot, ThreadTotals, Waiting
from offtop.model.stack import FILTERED, NO_STACK, PLACELESS, SHORT

_NO_SITE = SiteTotals()
_NO_THREAD = ThreadTotals()
new_site: Callable[[tuple[int, ...]], SiteTotals] = partial(tuple.__new__, SiteTotals)  # pyright: ignore[reportUnknownMemberType]
new_thread: Callable[[tuple[int, ...]], ThreadTotals] = partial(tuple.__new__, ThreadTotals)  # pyright: ignore[reportUnknownMemberType]
"""Without the arguments' names: half the cost, for thousands of them a tick."""


@dataclass(frozen=True, slots=True)
class Window:
    """What changed in `span_ns`, sparse: a thread or site without a wait has no entry."""

    taken_ns: int
    """CLOCK_REALTIME of its end."""
    at_ns: int
    """CLOCK_MONOTONIC of its end."""
    span_ns: int
    """Measured, not asked for."""
    threads: Mapping[ThreadKey, ThreadTotals] = field(default_factory=dict[ThreadKey, ThreadTotals])
    sites: Mapping[SiteKey, SiteTotals] = field(default_factory=dict[SiteKey, SiteTotals])
    still: tuple[SiteKey, ...] = ()
    """Sites of waits that began before this window and go on after it, all blocked: each passed the
    whole span there, and neither its thread nor its site has another entry. Kept apart because most
    threads of a machine just wait, and one reference each is all that it costs to remember them."""
    book: Book = field(default_factory=Book)
    """What the ids in it stand for."""
    lost: Mapping[str, int] = field(default_factory=dict[str, int])
    """What the kernel side could not tell us, in this span: counts by kind."""
    cost: Cost = Cost()
    mode: str = "offcpu"
    door: str = ""
    filters: Filters = Filters()

    def each_thread(self) -> Iterator[tuple[ThreadKey, ThreadTotals]]:
        """Every thread that waited, those of `still` included."""
        yield from self.threads.items()
        through = ThreadTotals(offcpu_ns=self.span_ns)
        for site in self.still:
            yield site.thread, through

    def each_site(self) -> Iterator[tuple[SiteKey, SiteTotals]]:
        """Every site with time in it, those of `still` included."""
        yield from self.sites.items()
        through = SiteTotals(total_ns=self.span_ns)
        for site in self.still:
            yield site, through


def between(earlier: Snapshot, later: Snapshot) -> Window:
    """What passed from `earlier` to `later`, two snapshots of one source.

    A maximum is right for two snapshots that follow one another; over a longer stretch, merge windows.
    """
    before, now = earlier.waiting, later.waiting
    threads, sites = _changed_threads(earlier, later), _changed_sites(earlier, later)
    span_ns = later.at_ns - earlier.at_ns
    still: list[SiteKey] = []
    for key, waiting in now.items():
        was = before.get(key)
        steady = was is waiting and not waiting.runqueue_ns and waiting.site.kernel not in PLACELESS
        if steady and key not in threads and waiting.site not in sites:
            still.append(waiting.site)
            continue
        if was is not None:
            _count_so_far(key, was, earlier, -1, threads, sites)
        _count_so_far(key, waiting, later, 1, threads, sites)
    for key, was in before.items():
        if key not in now:
            _count_so_far(key, was, earlier, -1, threads, sites)
    return Window(
        taken_ns=later.taken_ns,
        at_ns=later.at_ns,
        span_ns=span_ns,
        threads={key: totals for key, totals in threads.items() if totals.offcpu_ns or totals.waits},
        sites={key: totals for key, totals in sites.items() if totals.total_ns or totals.waits},
        still=tuple(still),
        book=later.book,
        lost={kind: n - earlier.lost.get(kind, 0) for kind, n in later.lost.items() if n > earlier.lost.get(kind, 0)},
        cost=later.cost,
        mode=later.mode,
        door=later.door,
        filters=later.filters,
    )


def _changed_threads(earlier: Snapshot, later: Snapshot) -> dict[ThreadKey, ThreadTotals]:
    """Finished waits only. A thread given back since `earlier` has its rest under EXITED."""
    before, now = earlier.threads, later.threads
    get = before.get
    changed: dict[ThreadKey, ThreadTotals] = {}
    new = 0
    for key, b in now.items():
        a = get(key)
        if a is b:
            continue
        if a is None:
            new += 1
            changed[key] = b
        else:
            changed[key] = _thread_difference(b, a)
    if len(now) - new != len(before):
        for key, a in before.items():
            if key not in now:
                changed[EXITED] = _thread_difference(changed.get(EXITED, _NO_THREAD), a)
    return changed


def _changed_sites(earlier: Snapshot, later: Snapshot) -> dict[SiteKey, SiteTotals]:
    """Finished waits only. A site given back since `earlier` has its rest under EXITED, by kernel stack."""
    before, now = earlier.sites, later.sites
    get = before.get
    changed: dict[SiteKey, SiteTotals] = {}
    new = 0
    for key, b in now.items():
        a = get(key)
        if a is b:
            continue
        if a is None:
            new += 1
            changed[key] = b
        else:
            changed[key] = _site_difference(b, a)
    if len(now) - new != len(before):
        for key, a in before.items():
            if key not in now:
                rest = SiteKey(EXITED.pid, EXITED.tid, key.kernel, NO_STACK)
                changed[rest] = _site_difference(changed.get(rest, _NO_SITE), a)
    return changed


def _count_so_far(
    key: ThreadKey,
    waiting: Waiting,
    snapshot: Snapshot,
    sign: int,
    threads: dict[ThreadKey, ThreadTotals],
    sites: dict[SiteKey, SiteTotals],
) -> None:
    """Add (or with sign -1 take away) what a wait in progress had come to at `snapshot`."""
    so_far_ns, runqueue_ns = sign * (snapshot.at_ns - waiting.from_ns), sign * waiting.runqueue_ns
    threads[key] = with_so_far(threads.get(key, _NO_THREAD), waiting, so_far_ns, runqueue_ns)
    site = waiting.site
    if site.kernel not in PLACELESS:
        waits, total_ns, of_runqueue_ns, max_ns, histogram = sites.get(site, _NO_SITE)
        sites[site] = new_site((waits, total_ns + so_far_ns, of_runqueue_ns + runqueue_ns, max_ns, histogram))


def with_so_far(thread: ThreadTotals, waiting: Waiting, so_far_ns: int, runqueue_ns: int) -> ThreadTotals:
    """`thread` and what its wait in progress has come to."""
    waits, offcpu_ns, ready_ns, preempted_ns, involuntary, short_waits, short_ns, short_ready_ns, *others = thread
    filtered_ns, filtered_ready_ns, max_ns, histogram = others
    if waiting.preempted:
        preempted_ns += so_far_ns
    if waiting.site.kernel == SHORT:
        short_ns += so_far_ns
        short_ready_ns += runqueue_ns
    elif waiting.site.kernel == FILTERED:
        filtered_ns += so_far_ns
        filtered_ready_ns += runqueue_ns
    offcpu_ns += so_far_ns
    ready_ns += runqueue_ns
    short = (short_waits, short_ns, short_ready_ns)
    return new_thread(
        (
            waits,
            offcpu_ns,
            ready_ns,
            preempted_ns,
            involuntary,
            *short,
            filtered_ns,
            filtered_ready_ns,
            max_ns,
            histogram,
        )
    )


def merge(windows: Sequence[Window]) -> Window:
    """One window over all of `windows`, which follow one another, earliest first (at least one)."""
    if len(windows) == 1:
        return windows[0]
    threads: dict[ThreadKey, ThreadTotals] = {}
    sites: dict[SiteKey, SiteTotals] = {}
    lost: dict[str, int] = {}
    still_ns: dict[SiteKey, int] = {}
    for window in windows:
        for key, totals in window.threads.items():
            was = threads.get(key)
            threads[key] = totals if was is None else thread_sum(was, totals)
        for site, totals in window.sites.items():
            before = sites.get(site)
            sites[site] = totals if before is None else site_sum(before, totals)
        for kind, n in window.lost.items():
            lost[kind] = lost.get(kind, 0) + n
        span_ns = window.span_ns
        for site in window.still:
            still_ns[site] = still_ns.get(site, 0) + span_ns
    last = windows[-1]
    span_ns = sum(window.span_ns for window in windows)
    still: list[SiteKey] = []
    for site, through_ns in still_ns.items():
        if through_ns == span_ns:
            still.append(site)
            continue
        key = site.thread
        threads[key] = thread_sum(threads.get(key, _NO_THREAD), ThreadTotals(offcpu_ns=through_ns))
        sites[site] = site_sum(sites.get(site, _NO_SITE), SiteTotals(total_ns=through_ns))
    return replace(last, span_ns=span_ns, threads=threads, sites=sites, still=tuple(still), lost=lost)


def thread_sum(a: ThreadTotals, b: ThreadTotals) -> ThreadTotals:
    grown = thread_grown(a, b)
    return grown if b.max_ns >= a.max_ns else grown._replace(max_ns=a.max_ns)


def site_sum(a: SiteTotals, b: SiteTotals) -> SiteTotals:
    grown = site_grown(a, b)
    return grown if b.max_ns >= a.max_ns else grown._replace(max_ns=a.max_ns)


def thread_grown(was: ThreadTotals, added: ThreadTotals) -> ThreadTotals:
    """`was` and what the last tick added; the maximum is the last tick's."""
    a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, _, a11 = was
    b0, b1, b2, b3, b4, b5, b6, b7, b8, b9, longest_ns, b11 = added
    return new_thread(
        (
            a0 + b0,
            a1 + b1,
            a2 + b2,
            a3 + b3,
            a4 + b4,
            a5 + b5,
            a6 + b6,
            a7 + b7,
            a8 + b8,
            a9 + b9,
            longest_ns,
            a11 + b11,
        )
    )


def site_grown(was: SiteTotals, added: SiteTotals) -> SiteTotals:
    """`was` and what the last tick added; the maximum is the last tick's."""
    a0, a1, a2, _, a4 = was
    b0, b1, b2, longest_ns, b4 = added
    return new_site((a0 + b0, a1 + b1, a2 + b2, longest_ns, a4 + b4))


def _thread_difference(later: ThreadTotals, earlier: ThreadTotals) -> ThreadTotals:
    """What was added since `earlier`; the maximum is the later one's own."""
    b0, b1, b2, b3, b4, b5, b6, b7, b8, b9, longest_ns, b11 = later
    a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, _, a11 = earlier
    return new_thread(
        (
            b0 - a0,
            b1 - a1,
            b2 - a2,
            b3 - a3,
            b4 - a4,
            b5 - a5,
            b6 - a6,
            b7 - a7,
            b8 - a8,
            b9 - a9,
            longest_ns,
            b11 - a11,
        )
    )


def _site_difference(later: SiteTotals, earlier: SiteTotals) -> SiteTotals:
    """What was added since `earlier`; the maximum is the later one's own."""
    b0, b1, b2, longest_ns, b4 = later
    a0, a1, a2, _, a4 = earlier
    return new_site((b0 - a0, b1 - a1, b2 - a2, longest_ns, b4 - a4))
