"""Selection: which waits a screen shows.

What it leaves of each tick is computed once and cached.

Mutes and filters are applied first; the lists show the result. The other panes show one process, thread or branch of
the stack tree of it, if one is selected.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

import numpy as np

from offtop.model.aggregate.filter import Filter
from offtop.model.aggregate.steps import Path, Shape, passes, steps_of
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.values.catalog import Catalog
from offtop.model.values.stack import PLACELESS, Names
from offtop.model.values.table import SITES, Ints, Mask, distinct_rows, integers
from offtop.model.values.wake import OFFCPU, WAKEUP, gathers
from offtop.model.windows.breakdown import Breakdown, Leaf, Part, Scope, Shares, breakdown_of
from offtop.model.windows.history import HistoryTick, Packed
from offtop.model.windows.stuck import Stuck

Parts = Mapping[Leaf, Part]
"""Time by leaf."""
T = TypeVar("T")
_MOST_BYTES = 512 * 1024
"""Limit for unpacking past ticks for one picture: about 0.1 s. The rest follows with the next pictures."""
_MOST_REDONE_BYTES = _MOST_BYTES // 8
"""The same limit for ticks whose earlier result may have changed."""
_UNPACKED = 40
"""So many bytes that are not packed cost as much as one packed byte."""
_MOST_PATIENCE = 8
"""Ticks."""


class Selection(NamedTuple):
    filters: tuple[Filter, ...] = ()
    """What is shown passes all of them."""
    muted: tuple[Filter, ...] = ()
    """What is shown passes none of them."""
    pid: int | None = None
    tid: int | None = None
    path: Path = ()
    shape: Shape = Shape()
    """Shape of the tree that `path` belongs to."""

    @property
    def is_everything(self) -> bool:
        return not self.filters and not self.muted


class FilteredTick(NamedTuple):
    """What mutes and filters leave of a tick."""

    breakdown: Breakdown
    unmuted: Parts
    """Everything that is not muted."""
    muted_ns: int


class FilterCache:
    """Cache of what one selection leaves of each tick."""

    def __init__(self, selection: Selection, cause_finder: CauseFinder, before: "FilterCache | None" = None) -> None:
        """Create an empty cache; `before` is the one until now.

        Since that was made, more became known about processes or functions.
        """
        self.selection = selection
        self._cause_finder = cause_finder
        self._taken: dict[int, FilteredTick] = {}
        self._chosen: dict[int, Parts] = {}
        self._earlier: dict[int, Parts] = before.known_parts if before and before.selection == selection else {}
        """Results of `before`, oldest first."""
        self._masked: dict[int, tuple[Mask, Mask]] = {}
        self._last: dict[int, Shares] = {}
        """Of the newest tick, and of what moved."""
        self._recent_number = 0
        """The first tick whose masks the next call of `forget` keeps, at least."""
        of_wakers = any(one.needs_wakers for one in selection.filters)
        self._mode = selection.shape.mode if selection.path else WAKEUP if of_wakers else OFFCPU
        """What must have been gathered."""

    def shares(self, tick: HistoryTick) -> Shares:
        """Return the waits of `tick` that pass mutes and filters."""
        found = self._last.get(tick.number) if tick.number else None
        if found is None:
            found = tick.shares
            if not self.selection.is_everything:
                unmuted, passing = self._masks_at(tick, found)
                found = found.of(unmuted & passing)
            self._remember(tick, found)
        return found

    def is_remembered(self, tick: HistoryTick) -> bool:
        """Return whether `shares` returns the same for `tick` as the last time, even if more is known since."""
        return self.selection.is_everything or tick.number in self._masked

    def _remember(self, tick: HistoryTick, some: Shares) -> None:
        self._last = {number: one for number, one in self._last.items() if (number < 0) != (tick.number < 0)}
        self._last[tick.number] = some

    def _masks_at(self, tick: HistoryTick, every: Shares) -> tuple[Mask, Mask]:
        """Cached, since several tables of a tick need them, and they cost more than the tables."""
        return _cached(self._masked, tick, lambda tick: self._masks(every, tick.header.catalog))

    def _masks(self, every: Shares, catalog: Catalog) -> tuple[Mask, Mask]:
        """Return which rows are not muted, and which pass the filters."""
        unmuted = passing = np.ones(len(every.leaf), np.bool_)
        for one in self.selection.muted:
            unmuted = unmuted & ~one.mask(every, catalog, self._cause_finder)
        for one in self.selection.filters:
            passing = passing & one.mask(every, catalog, self._cause_finder)
        return unmuted, passing

    def taken(self, tick: HistoryTick) -> FilteredTick:
        if self.selection.is_everything:
            return FilteredTick(tick.breakdown, tick.leaves, 0)
        return _cached(self._taken, tick, self._take)

    def _take(self, tick: HistoryTick) -> FilteredTick:
        every = tick.shares
        unmuted, passing = self._masks_at(tick, every)
        all_unmuted = every.of(unmuted)
        parts = {every.leaves[leaf]: Part(*part) for leaf, part in all_unmuted.by(all_unmuted.leaf)}
        kept = every.of(unmuted & passing)
        self._remember(tick, kept)
        muted_ns = int(every.total_ns[~unmuted].sum())
        return FilteredTick(breakdown_of(kept, tick.span_ns), parts, muted_ns)

    def chosen(self, tick: HistoryTick) -> Parts:
        """Return the time of the selected process, thread or branch.

        It is the time of everything shown if none is selected.
        """
        pid, tid, path = self.selection.pid, self.selection.tid, self.selection.path
        if tid is None and not path:
            if pid is None and self.selection.is_everything:
                return tick.leaves
            if tick.cached_breakdown is not None:
                return self._of_selected(self.taken(tick).breakdown)
        return _cached(self._chosen, tick, self._choose)

    def _of_selected(self, breakdown: Breakdown) -> Parts:
        pid = self.selection.pid
        if pid is None:
            return breakdown.categories
        return {leaf: by_pid[pid] for leaf, by_pid in breakdown.processes.items() if pid in by_pid}

    @property
    def known_parts(self) -> dict[int, Parts]:
        """Tick number → time of the selection, as far as it was computed."""
        of_breakdowns = {}
        if self.selection.tid is None and not self.selection.path:
            of_breakdowns = {number: self._of_selected(taken.breakdown) for number, taken in self._taken.items()}
        return self._earlier | of_breakdowns | self._chosen

    def _choose(self, tick: HistoryTick) -> Parts:
        some = self.of_branch(self.shares(tick).in_scope(Scope("", self.selection.pid, self.selection.tid)), tick)
        return {some.leaves[leaf]: Part(*part) for leaf, part in some.by(some.leaf)}

    def of_branch(self, some: Shares, tick: HistoryTick) -> Shares:
        """Return those of `some` whose stack goes through the selected branch."""
        return some.of(self._through(some.ids, tick)) if self.selection.path else some

    def _through(self, ids: Ints, tick: HistoryTick) -> Mask:
        selection = self.selection
        return through(ids, tick.header.catalog, self._cause_finder.names, selection.shape, selection.path)

    def stuck(self, every: Stuck, tick: HistoryTick) -> Stuck:
        """Return those of `every`, at the end of `tick`, that pass mutes and filters."""
        if every.shares is None or self.selection.is_everything:
            return every
        unmuted, passing = self._masks(every.shares, tick.header.catalog)
        return every.of(unmuted & passing)

    def chosen_stuck(self, some: Stuck, tick: HistoryTick) -> Stuck:
        """Return those of `some` that belong to the selected process, thread or branch."""
        selection = self.selection
        if some.shares is None or (selection.pid is None and not selection.path):
            return some
        chosen = some.shares.mask(Scope("", selection.pid, selection.tid))
        if selection.path:
            chosen &= self._through(integers([one.site for one in some.waits], SITES.width), tick)
        return some.of(chosen)

    def parts_of(self, ticks: Iterable[HistoryTick]) -> dict[int, Parts]:
        """Return tick number → time of the selection, as far as it is known by now.

        Each call unpacks only some ticks, newest first, and even fewer that have an earlier result. If wakers are
        needed, ticks without them are left out.
        """
        asked = {tick.number: tick for tick in sorted(ticks, key=lambda tick: -tick.number)}
        asked = {number: tick for number, tick in asked.items() if gathers(tick.header.mode, self._mode)}
        bytes_left = _MOST_BYTES
        for number in [
            number for number, tick in asked.items() if number not in self._earlier and not self._is_known(tick)
        ]:
            if bytes_left <= 0:
                del asked[number]
            else:
                bytes_left -= _work(asked[number])
        bytes_left = min(bytes_left, _MOST_REDONE_BYTES)
        known: dict[int, Parts] = {}
        for number in [number for number in self._earlier if number in asked]:
            if bytes_left > 0 or self._is_known(asked[number]):
                bytes_left -= 0 if self._is_known(asked[number]) else _work(asked[number])
                del self._earlier[number]
            else:
                known[number] = self._earlier[number]
        return known | {number: self.chosen(tick) for number, tick in asked.items() if number not in known}

    def _is_known(self, tick: HistoryTick) -> bool:
        if tick.number in self._chosen:
            return True
        if self.selection.tid is not None or self.selection.path:
            return False
        if self.selection.is_everything:
            return self.selection.pid is None or tick.cached_breakdown is not None
        return tick.number in self._taken

    def forget(self, oldest: HistoryTick | None, recent: HistoryTick) -> None:
        """Drop what is cached about ticks before `oldest`, and breakdowns and masks before the last `recent`.

        A breakdown is a hundred times larger than the rest. A rolling sum still subtracts the ticks from the last
        `recent` to this one. What moved changes each time.
        """
        self._last = {number: one for number, one in self._last.items() if number > 0}
        of_recent, of_all = (self._taken, self._masked), (self._chosen, self._earlier)
        first_recent, self._recent_number = min(self._recent_number, recent.number), recent.number
        first_of_all = oldest.number if oldest else 0
        for made, first in (*((made, first_recent) for made in of_recent), *((made, first_of_all) for made in of_all)):
            for old in [n for n in made if n < first]:
                del made[old]


class FilterCaches:
    """Creates the FilterCache of the selection, and a new one when more names are known.

    On a busy machine that is the case at nearly each tick, and each time all ticks of the window have to be filtered
    again. So a new one is made less and less often, at least every 8 ticks, unless the picture stands still. New ticks
    are always filtered with everything known by then.
    """

    def __init__(self, cause_finder: CauseFinder) -> None:
        self._cause_finder = cause_finder
        self._cache: FilterCache | None = None
        self._known_before: tuple[object, ...] = ()
        self._made = self._seen = 0
        """Number of the newest tick when it was made, and when it was last requested."""
        self._patience = 1

    def of(self, selection: Selection, newest: HistoryTick, *, held: bool) -> FilterCache:
        """Return the FilterCache; `held`: perhaps no later tick will be drawn."""
        before, known = self._cache, self._known(selection, newest.header.catalog)
        stands, self._seen = held or newest.number == self._seen, newest.number
        if before and before.selection == selection:
            early = self._made <= newest.number < self._made + self._patience
            if known == self._known_before or (early and not stands):
                return before
            self._patience = min(2 * self._patience, _MOST_PATIENCE)
        else:
            self._patience = 1
        self._known_before, self._made = known, newest.number
        self._cache = FilterCache(selection, self._cause_finder, before)
        return self._cache

    def _known(self, selection: Selection, catalog: Catalog) -> tuple[object, ...]:
        """Return a value that changes whenever more is known of what `selection` needs."""
        asked = (*selection.filters, *selection.muted)
        of_names = selection.path or any(one.needs_names for one in asked)
        return (
            self._cause_finder.version if of_names else None,
            catalog.details_version if any(one.needs_details for one in asked) else 0,
            catalog.peers_version if any(one.needs_peers for one in asked) else 0,
        )


def _work(tick: HistoryTick) -> int:
    """Return the cost of filtering a tick, as bytes of packed data."""
    return tick.bytes_held if isinstance(tick.held, Packed) else tick.bytes_held // _UNPACKED


def through(ids: Ints, catalog: Catalog, names: Names, shape: Shape, path: Path) -> Mask:
    """Return which sites have a stack that goes through the branch of `path`."""
    distinct, which = distinct_rows(shape.places(ids))
    steps = steps_of(catalog, names, shape)
    found = np.array([passes(steps(place), path) for place in distinct], np.bool_)
    return found[which] & ~np.isin(ids[:, 2], [*PLACELESS])


def _cached(made: dict[int, T], tick: HistoryTick, make: Callable[[HistoryTick], T]) -> T:
    """Return the entry of `made` for `tick`, or create it.

    Number 0 (everything since the start) is never cached.
    """
    found = made.get(tick.number)
    if found is None:
        found = make(tick)
        if tick.number:
            made[tick.number] = found
    return found
