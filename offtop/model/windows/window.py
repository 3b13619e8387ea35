"""Window: what happened between two snapshots. Consecutive windows merge into a longer one.

A property test checks that merge([between(a, b), between(b, c)]) == between(a, c), for sums and histograms. Maxima
merge by maximum.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import numpy as np

from offtop.model.values import disks as disk_values
from offtop.model.values.blockers import Blocker, Blockers
from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey
from offtop.model.values.files import FileActivity, added
from offtop.model.values.histogram import LANES
from offtop.model.values.moves import NO_MOVES, NOW, WAS, Moves
from offtop.model.values.snapshot import (
    EXITED,
    Cost,
    Filters,
    Machine,
    Move,
    Sampling,
    SiteTotals,
    Snapshot,
    ThreadTotals,
    Waiting,
)
from offtop.model.values.stack import NO_STACK, PLACELESS
from offtop.model.values.table import (
    MAX_NS,
    NO_COUNTS,
    NO_SITES,
    SITES,
    THREADS,
    TOTAL_NS,
    Ints,
    K,
    Kind,
    Mask,
    SiteKeys,
    Table,
    V,
    are_among,
    coded_at,
    counts_of,
    integers,
    of_exited,
    rows_at,
    summed,
    summed_lanes,
    table_of,
    thread_codes,
)
from offtop.model.values.waits import SO_FAR_FIELDS, SoFar, Waits, so_far_of, thread_numbers
from offtop.model.values.wake import OFFCPU, Storm, level
from offtop.model.values.within import NO_CALLS, Calls


@dataclass(frozen=True, slots=True)
class Window:
    """What changed in `span_ns`, sparse: a thread or site without a wait has no entry."""

    taken_ns: int
    """CLOCK_REALTIME of its end."""
    at_ns: int
    """CLOCK_MONOTONIC of its end."""
    span_ns: int
    """As measured, not as requested."""
    threads: Mapping[ThreadKey, ThreadTotals] = field(default_factory=dict[ThreadKey, ThreadTotals])
    sites: Mapping[SiteKey, SiteTotals] = field(default_factory=dict[SiteKey, SiteTotals])
    still: SiteKeys = NO_SITES
    """Sites of waits that began before this window and go on after it, blocked all the time.

    Each of them spent the whole span there, and its thread has no other entry. They are kept apart because most threads
    of a machine just wait, and this way each costs one key.
    """
    moves: Moves = NO_MOVES
    """Time before this window that was counted at one site then, and at another by the end of this window."""
    catalog: Catalog = field(default_factory=Catalog)
    """What the ids in this window refer to."""
    lost: Mapping[str, int] = field(default_factory=dict[str, int])
    """Records that were lost in this span: counts by kind."""
    cost: Cost = Cost()
    machine: Machine = Machine()
    """CPU time in this span that belongs to no thread."""
    storms: Mapping[int, Storm] = field(default_factory=dict[int, Storm])
    """Wakeup storms in this span, by the id of a wake of the waker."""
    mode: str = OFFCPU
    """What was gathered, one of wake.MODES; of merged windows, what all of them have."""
    probe: str = ""
    filters: Filters = Filters()
    calls: Calls = NO_CALLS
    """Calls in this span of the function in filters.within."""
    sampling: Sampling | None = None
    """None: every wait was recorded."""
    blockers: Blockers = field(default_factory=dict[ThreadKey, tuple[Blocker, ...]])
    """As of its end, as in Snapshot."""
    titles: Mapping[int, str] = field(default_factory=dict[int, str])
    """As of its end, as in Snapshot."""
    files: FileActivity | None = None
    """File operations in this span; None if they were not requested."""
    disks: disk_values.DiskActivity | None = None
    """Requests to block devices in this span; None if they were not requested."""

    def each_thread(self) -> Iterator[tuple[ThreadKey, ThreadTotals]]:
        """Iterate over every thread that waited, including those of `still`."""
        yield from self.threads.items()
        through = ThreadTotals(offcpu_ns=self.span_ns)
        for site in self.still:
            yield site.thread, through

    def each_site(self) -> Iterator[tuple[SiteKey, SiteTotals]]:
        """Iterate over every site with time in it, including those of `still`."""
        yield from self.sites.items()
        through = SiteTotals(total_ns=self.span_ns)
        for site in self.still:
            yield site, through


def between(earlier: Snapshot, later: Snapshot, moves: Sequence[Move] | None = None) -> Window:
    """Return what happened from `earlier` to `later`, two snapshots of one source.

    `moves` are all moves since `earlier`; by default those of `later`, which is right if the two are consecutive.
    Maxima are right only then; for a longer span, merge windows.
    """
    early = Moves.of(later.moves if moves is None else moves).before(earlier.at_ns)
    threads = finished(THREADS, earlier.threads, later.threads)[:3]
    sites = finished(SITES, earlier.sites, later.sites)[:3]
    moved = np.concatenate((thread_codes(threads[0]), thread_codes(sites[0])))
    before, now = Waits.of(earlier.waiting), Waits.of(later.waiting)
    still, so_far, over = _in_progress(before, earlier.at_ns, now, later.at_ns, moved)
    for rows, column in ((over, 0), (early.rows, WAS), (early.rows, NOW)):
        _move_to_exited(rows, column, later.threads, now)
    so_far = np.concatenate((so_far, over))
    return Window(
        taken_ns=later.taken_ns,
        at_ns=later.at_ns,
        span_ns=later.at_ns - earlier.at_ns,
        threads=_added(THREADS, threads, so_far[:, :2], thread_numbers(so_far)),
        sites=_added(SITES, sites, *site_numbers(so_far, early.reversed)),
        still=still,
        moves=early,
        catalog=later.catalog,
        lost={kind: n - earlier.lost.get(kind, 0) for kind, n in later.lost.items() if n > earlier.lost.get(kind, 0)},
        cost=later.cost,
        machine=_machine_between(earlier.machine, later.machine),
        storms=_storms(earlier.storms, later.storms),
        mode=later.mode,
        probe=later.probe,
        filters=later.filters,
        calls=later.calls.since(earlier.calls),
        sampling=later.sampling.since(earlier.sampling) if later.sampling else None,
        blockers=earlier.blockers if later.blockers == earlier.blockers else later.blockers,
        titles=earlier.titles if later.titles == earlier.titles else later.titles,
        files=later.files,
        disks=later.disks,
    )


def with_maxima_of(earlier: Snapshot, later: Snapshot) -> Snapshot:
    """Return `later` with the maxima of both: those of `earlier`, a snapshot of the same source, restarted after it."""
    storms, sampling = earlier.storms, later.sampling
    if sampling and earlier.sampling:
        sampling = sampling._replace(longest_ns=max(sampling.longest_ns, earlier.sampling.longest_ns))
    return replace(
        later,
        threads=_with_maxima(THREADS, earlier.threads, later.threads),
        sites=_with_maxima(SITES, earlier.sites, later.sites),
        storms={
            wake: now._replace(largest=max(now.largest, storms.get(wake, now).largest))
            for wake, now in later.storms.items()
        },
        calls=later.calls._replace(max_ns=max(later.calls.max_ns, earlier.calls.max_ns)),
        sampling=sampling,
    )


def _with_maxima(kind: Kind[K, V], earlier: Mapping[K, V], later: Mapping[K, V]) -> Table[K, V]:
    """Return `later` with the maxima of both; that of a key evicted since `earlier` counts for EXITED."""
    a, b = table_of(kind, earlier), table_of(kind, later)
    before, is_evicted = _rows_before(a, b)
    maxima, there = b.numbers[:, MAX_NS].copy(), before >= 0
    maxima[there] = np.maximum(maxima[there], a.numbers[before[there], MAX_NS])
    exited = {tuple(b.ids[row].tolist()): row for row in np.flatnonzero(b.present & (b.ids[:, 1] == EXITED.tid))}
    rows = np.flatnonzero(is_evicted & (a.numbers[:, MAX_NS] > 0))
    for key, longest_ns in zip(of_exited(a.ids[rows]).tolist(), a.numbers[rows, MAX_NS].tolist(), strict=True):
        if (row := exited.get(tuple(key))) is not None:
            maxima[row] = max(maxima[row], longest_ns)
    return b.with_maxima(maxima)


def _storms(earlier: Mapping[int, Storm], later: Mapping[int, Storm]) -> dict[int, Storm]:
    found: dict[int, Storm] = {}
    for waker, now in later.items():
        was = earlier.get(waker, Storm())
        if now[:3] != was[:3]:
            found[waker] = Storm(
                now.storms - was.storms, now.woken - was.woken, now.slept_again - was.slept_again, now.largest
            )
    return found


def _machine_between(earlier: Machine, later: Machine) -> Machine:
    if not earlier.cpus or not later.cpus:
        return Machine()
    steal_ns, interrupt_ns = later.steal_ns - earlier.steal_ns, later.interrupt_ns - earlier.interrupt_ns
    return Machine(later.cpus, max(0, steal_ns), max(0, interrupt_ns))


_Rows = tuple[Ints, Ints, Ints]
"""Ids, numbers, and the lanes that are not 0 (table.nonzero_lanes)."""


def finished(kind: Kind[K, V], earlier: Mapping[K, V], later: Mapping[K, V]) -> tuple[Ints, Ints, Ints, Ints]:
    """Return by how much the totals changed, as _Rows, and the ids that were evicted since `earlier`.

    The totals of an evicted key were added to EXITED (for sites, by kernel stack), so they are subtracted there. Maxima
    are those of `later`.
    """
    a, b = table_of(kind, earlier), table_of(kind, later)
    before, is_evicted = _rows_before(a, b)
    may = b.present
    if a.changes and b.changes and a.lineage is b.lineage:
        may = may & (b.changes.changed_in >= a.changes.generation)
    rows = np.flatnonzero(may)
    numbers = _less(b.numbers.take(rows, axis=0), a.numbers, before[rows])
    numbers[:, MAX_NS] = b.numbers[rows, MAX_NS]
    some = (numbers[:, :MAX_NS] != 0).any(axis=1)
    rows, numbers = rows[some], rows_at(numbers, some)
    ids, counts = b.ids.take(rows, axis=0), _lanes_since(a, before[rows], b, rows)
    if not is_evicted.any():
        return ids, numbers, counts, integers([], kind.width)
    rest, rest_numbers = of_exited(a.ids[is_evicted]), -a.numbers[is_evicted]
    rest_numbers[:, MAX_NS] = 0
    rest_counts = a.at(np.flatnonzero(is_evicted)).counts * (1, 1, -1)
    rest_counts[:, 0] += len(ids)
    return (
        np.concatenate((ids, rest)),
        np.concatenate((numbers, rest_numbers)),
        np.concatenate((counts, rest_counts)),
        a.ids[is_evicted],
    )


def _lanes_since(a: Table[K, V], before: Ints, b: Table[K, V], rows: Ints) -> Ints:
    """Return by how much the histograms of some rows of `b` changed since `a`, where they are at `before`, or -1."""
    (codes, values), (earlier_codes, earlier_values) = b.coded, a.coded
    if codes is earlier_codes:  # no row has a new lane
        changed = np.flatnonzero(values != earlier_values)
        return counts_of(coded_at((codes[changed], values[changed] - earlier_values[changed]), rows, len(b.ids)))
    codes, values = coded_at(b.coded, rows, len(b.ids))
    was_there = np.flatnonzero(before >= 0)
    earlier_codes, earlier_values = coded_at(a.coded, before[was_there], len(a.ids))
    row, lane = np.divmod(earlier_codes, LANES)
    codes, values = np.append(codes, was_there[row] * LANES + lane), np.append(values, -earlier_values)
    return counts_of(summed_lanes(codes, values))


def _rows_before(a: Table[K, V], b: Table[K, V]) -> tuple[Ints, Mask]:
    """Return for each row of `b` the same key's row in `a`, or -1, and which rows of `a` were evicted since."""
    before, is_evicted, count = np.full(len(b.ids), -1), a.present.copy(), len(a.ids)
    if a.lineage is None or a.lineage is not b.lineage:
        for key, row in a.rows.items():
            found = b.rows.get(key)
            if found is not None:
                before[found] = row
                is_evicted[row] = False
    elif count and count <= len(b.ids) and a.serials[-1] == b.serials[count - 1]:  # no row was removed since
        before[:count] = np.arange(count)
        is_evicted &= ~b.present[:count]
    else:
        in_b = np.searchsorted(b.serials, a.serials)
        found = in_b < len(b.serials)
        found[found] = b.serials[in_b[found]] == a.serials[found]
        rows, in_b = np.flatnonzero(found), in_b[found]
        before[in_b] = rows
        is_evicted[rows] &= ~b.present[in_b]
    return before, is_evicted


def _less(values: Ints, earlier: Ints, rows: Ints) -> Ints:
    """Subtract some rows of `earlier` from `values` in place; -1: there is none."""
    was_there = rows >= 0
    if was_there.all():
        values -= earlier.take(rows, axis=0)
    else:
        values[was_there] -= earlier.take(rows[was_there], axis=0)
    return values


def _in_progress(before: Waits, before_ns: int, now: Waits, now_ns: int, moved: Ints) -> tuple[SiteKeys, SoFar, SoFar]:
    """Return the sites of waits that stayed blocked there for the whole window, and by how much other waits changed.

    The last value is the time so far of waits that have ended, negated. `moved` has the codes of threads that have
    other entries in the window.
    """
    is_new = now.changed_since(before)
    every = so_far_of(now.list.rows, now_ns)
    went_on, new = rows_at(every, ~is_new), rows_at(every, is_new)
    over = so_far_of(rows_at(before.list.rows, before.changed_since(now)), before_ns)
    ready, kernel = went_on[:, SITES.width + 1], went_on[:, 2]
    is_still = (ready == 0) & ~np.isin(kernel, [*PLACELESS])
    is_still &= ~are_among(thread_codes(went_on), moved)
    others = rows_at(went_on, ~is_still)
    others_before = others.copy("K")
    others_before[:, SITES.width] -= now_ns - before_ns
    for past in (others_before, over):
        past[:, SITES.width : SITES.width + 2] *= -1
    return SiteKeys(rows_at(went_on[:, : SITES.width], is_still)), np.concatenate((new, others, others_before)), over


def taken_back(was: Waiting, at_ns: int) -> tuple[int, ...]:
    """Return the wait as a SoFar row at `at_ns`, with its times negated."""
    site, _, from_ns, ready_ns, preempted = was[:5]
    return (*site, from_ns - at_ns, -ready_ns, preempted)


def site_numbers(so_far: SoFar, moves: Moves) -> tuple[Ints, Ints]:
    """Return the site ids and numbers of all rows that have a stack, and of the moves."""
    placed = rows_at(so_far, ~np.isin(so_far[:, 2], [*PLACELESS]))
    numbers = np.zeros((len(placed), SITES.numbers), np.int64)
    numbers[:, TOTAL_NS : TOTAL_NS + 2] = placed[:, SITES.width : SITES.width + 2]
    ids_moved, numbers_moved = moves.site_rows
    return np.concatenate((placed[:, : SITES.width], ids_moved)), np.concatenate((numbers, numbers_moved))


def _added(kind: Kind[K, V], rows: _Rows, ids: Ints, numbers: Ints) -> Table[K, V]:
    """Sum up `rows`, and `ids` and `numbers`, which have no histogram. Keys whose sums are all 0 are left out."""
    table = summed(kind, np.concatenate((rows[0], ids)), np.concatenate((rows[1], numbers)), rows[2])
    some = (table.numbers[:, :MAX_NS] != 0).any(axis=1)
    return table if some.all() else table.at(np.flatnonzero(some))


def _codes_of(entries: Mapping[ThreadKey, ThreadTotals]) -> Ints:
    """Return the codes of the threads that were not evicted."""
    threads = table_of(THREADS, entries)
    return thread_codes(threads.ids[threads.present])


def _move_to_exited(rows: Ints, column: int, threads: Mapping[ThreadKey, ThreadTotals], waiting: Waits) -> None:
    """Replace sites of threads that are in neither `threads` nor `waiting` by EXITED.

    The ids of a site begin at `column`.
    """
    at = np.flatnonzero(waiting.rows_of(thread_codes(rows[:, column:])) < 0)
    at = at[~np.isin(thread_codes(rows[at, column:]), _codes_of(threads))] if len(at) else at
    rows[at, column : column + 2], rows[at, column + 3 : column + SITES.width] = EXITED, NO_STACK


def merge(windows: Sequence[Window]) -> Window:
    """Return one window for consecutive `windows` (at least one), earliest first."""
    if len(windows) == 1:
        return windows[0]
    lost: dict[str, int] = {}
    still_ns: dict[SiteKey, int] = {}
    for window in windows:
        for kind, n in window.lost.items():
            lost[kind] = lost.get(kind, 0) + n
        for site in window.still:
            still_ns[site] = still_ns.get(site, 0) + window.span_ns
    span_ns = sum(window.span_ns for window in windows)
    moves, began_ns = Moves.all(window.moves for window in windows), windows[-1].at_ns - span_ns
    still = [site for site, through_ns in still_ns.items() if through_ns == span_ns]
    moved = integers([(*site, ns, 0, 0) for site, ns in still_ns.items() if ns != span_ns], SO_FAR_FIELDS)
    threads = _rows_of([table_of(THREADS, window.threads) for window in windows])
    sites = _rows_of([table_of(SITES, window.sites) for window in windows])
    return replace(
        windows[-1],
        span_ns=span_ns,
        threads=_added(THREADS, threads, moved[:, :2], thread_numbers(moved)),
        sites=_added(SITES, sites, *site_numbers(moved, moves.after(began_ns))),
        still=SiteKeys(integers(still, SITES.width)),
        moves=moves.before(began_ns),
        lost=lost,
        machine=machine_over(windows),
        storms=storms_over(windows),
        mode=min((window.mode for window in windows), key=level),
        calls=calls_over(windows),
        sampling=sampling_over(windows),
        files=added(window.files for window in windows),
        disks=disk_values.added(window.disks for window in windows),
    )


def moved_only(moves: Moves, last: Window) -> Window:
    """Return a window of nothing but `moves`, up to the end of `last`.

    See history.moved_in.
    """
    ids, numbers = moves.site_rows
    sites = summed(SITES, ids, numbers, NO_COUNTS)
    return Window(last.taken_ns, last.at_ns, 0, sites=sites, catalog=last.catalog, mode=last.mode, filters=last.filters)


def storms_over(windows: Iterable[Window]) -> dict[int, Storm]:
    sums: dict[int, Storm] = {}
    for window in windows:
        for waker, one in window.storms.items():
            sums[waker] = sums[waker].plus(one) if waker in sums else one
    return sums


def calls_over(windows: Iterable[Window]) -> Calls:
    return reduce(Calls.plus, (window.calls for window in windows), NO_CALLS)


def sampling_over(windows: Iterable[Window]) -> Sampling | None:
    """Return the sum of all spans that were sampled.

    None if every wait was recorded in all of them.
    """
    some = [window.sampling for window in windows if window.sampling]
    return reduce(Sampling.plus, some) if some else None


def machine_over(windows: Sequence[Window]) -> Machine:
    """Return the CPU time of `windows` that belongs to no thread; unknown if it is unknown in one of them."""
    every = [window.machine for window in windows]
    if not all(one.cpus for one in every):
        return Machine()
    steal_ns, interrupt_ns = (sum(column) for column in zip(*(one[1:] for one in every), strict=True))
    return Machine(every[-1].cpus, steal_ns, interrupt_ns)


def _rows_of(tables: Sequence[Table[K, V]]) -> _Rows:
    counts, rows = list[Ints](), 0
    for table in tables:
        own = table.counts.copy()
        own[:, 0] += rows
        counts.append(own)
        rows += len(table.ids)
    return (
        np.concatenate([table.ids for table in tables]),
        np.concatenate([table.numbers for table in tables]),
        np.concatenate(counts),
    )
