"""Scene: what a picture is made from, which is what the view selects of the history."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from offtop.model.aggregate import steps
from offtop.model.aggregate.filter_syntax import of_object, of_pool, of_program, of_reason, of_waker
from offtop.model.aggregate.selection import FilterCache, FilterCaches, FilteredTick, Parts, Selection
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import RuleSource
from offtop.model.values.catalog import Catalog, ThreadKey
from offtop.model.values.moves import Moves
from offtop.model.values.snapshot import Filters, Sampling
from offtop.model.values.waits import WaitList
from offtop.model.values.wake import gathers
from offtop.model.viewmodel.comparison import Comparison
from offtop.model.viewmodel.counterparts import Now
from offtop.model.viewmodel.paused import LONGEST_ROLLING_NS, AllThreads, PausedView, all_threads
from offtop.model.viewmodel.view import SINCE_START, View
from offtop.model.viewmodel.view_filters import user_filter
from offtop.model.windows.breakdown import Breakdown, Leaf, Part, Scope, by_process, merged
from offtop.model.windows.history import History, HistoryTick, moved_in
from offtop.model.windows.stuck import Stuck
from offtop.model.windows.window import sampling_over


class Scene(NamedTuple):
    """What a picture is made from."""

    view: View
    filter_cache: FilterCache
    minute: Sequence[HistoryTick]
    """Ticks of the last minute."""
    ticks: Sequence[HistoryTick]
    """Ticks of the span."""
    moved: HistoryTick | None
    """Time that moved between sites within them, as one tick; None if none did."""
    newest: HistoryTick
    """The last tick, even if the span is everything since the start."""
    ever: HistoryTick | None
    """Everything since the start, if it is needed."""
    span_ns: int
    """Measured length of the span."""
    sampling: Sampling | None
    """How waits were sampled in the span; None: every wait was recorded."""
    taken: Sequence[FilteredTick]
    """What mutes and filters leave of each tick of the span, and of what moved."""
    breakdown: Breakdown
    """What mutes and filters leave of the span."""
    chosen: Parts
    """Time of the selected process, thread or branch, by leaf."""
    threads: Collection[ThreadKey]
    """All threads that ever ran or waited."""
    threads_of: Mapping[int, int]
    """pid → number of these threads."""
    waits: WaitList
    """All waits in progress at the end of the newest tick."""
    stuck: Stuck
    """What mutes and filters leave of the waits in progress."""
    chosen_stuck: Stuck
    """Those of the selected process, thread or branch."""
    comparison: Comparison | None
    """Comparison with the baseline, if it is on."""

    @property
    def added(self) -> Sequence[HistoryTick]:
        """Ticks that add up to the time of the span."""
        return [*self.ticks, self.moved] if self.moved else self.ticks

    @property
    def scope(self) -> Scope:
        """Which waits the list covers."""
        return self.view.scope._replace(tid=None)

    @property
    def catalog(self) -> Catalog:
        return self.ticks[-1].header.catalog

    @property
    def gathered(self) -> bool:
        """Whether the newest tick has what the mode shows."""
        return gathers(self.newest.header.mode, self.view.mode)


class Scenes:
    """Makes the scene of each picture; caches only what makes the next one cheap."""

    def __init__(self, history: History, cause_finder: CauseFinder, rules: RuleSource, *, goes_on: bool) -> None:
        """`goes_on`: more ticks will follow, so results that arrive late may wait for the next one."""
        self._history, self._rules, self._goes_on = history, rules, goes_on
        self._filter_caches = FilterCaches(cause_finder)
        self._paused: PausedView | None = None
        self._stuck: tuple[object, Stuck] | None = None
        self._all_threads: tuple[object, AllThreads] | None = None
        self._moved: tuple[object, HistoryTick | None] | None = None
        self._moves: dict[int, Moves] = {}
        """Number of a tick → its moves, for the ticks of the newest picture: unpacking them takes time."""
        self._compared: Comparison | None = None

    def of(self, view: View) -> Scene | None:
        """Return the scene; None while there is no tick yet."""
        self._pause_or_resume(view)
        minute = self._paused.ticks if self._paused else self._history.last(LONGEST_ROLLING_NS)
        if not minute:
            return None
        ever = self._since_start(view.mode) if view.span_ns == SINCE_START or view.sort == "TOTAL" else None
        newest = minute[-1]
        ticks = [ever] if ever and view.span_ns == SINCE_START else last_alike(minute, view.span_ns, view.mode)
        filter_cache = self.filter_cache(view, newest)
        filter_cache.forget(self._history.oldest, minute[0])
        moved = self._moved_in(ticks)
        added = [*ticks, moved] if moved else ticks
        taken = [filter_cache.taken(tick) for tick in added]
        breakdown = merged([tick.breakdown for tick in taken])
        chosen = sums_of(filter_cache.chosen(tick) for tick in added)
        waits = self._paused.waits if self._paused else self._history.waits(newest)
        passing = self._stuck_of(filter_cache, newest)
        of_selection = filter_cache.chosen_stuck(passing, newest)
        threads, threads_of = self._paused.everyone if self._paused else self._current_threads()
        span_ns = sum(tick.span_ns for tick in ticks)
        pids = by_process(breakdown, view.scope._replace(pid=None, tid=None)).keys() if view.compared else ()
        header, sampling = newest.header, sampling_over(tick.header for tick in ticks)
        comparison = self._comparison(view, Now(span_ns, header.catalog, threads, pids, header.filters, sampling))
        return Scene(
            view=view,
            filter_cache=filter_cache,
            minute=minute,
            ticks=ticks,
            moved=moved,
            newest=newest,
            ever=ever,
            span_ns=span_ns,
            sampling=sampling,
            taken=taken,
            breakdown=breakdown,
            chosen=chosen,
            threads=threads,
            threads_of=threads_of,
            waits=waits,
            stuck=passing,
            chosen_stuck=of_selection,
            comparison=comparison,
        )

    def filter_cache(self, view: View, newest: HistoryTick) -> FilterCache:
        """Return the cache of what filters, mutes and the selection of `view` leave of each tick."""
        chosen = (
            *(view.filter, user_filter(view.user)),
            *([of_program(view.program)] if view.program else []),
            *([of_pool(view.pool)] if view.pool else []),
            *([of_waker(view.waker)] if view.waker else []),
            *([of_object(view.object)] if view.object else []),
            *([of_reason(view.reason)] if view.reason else []),
        )
        filters = tuple(one for one in chosen if one.chooses_waits)
        tid = view.thread.tid if view.thread else None
        pid = view.thread.pid if view.thread else view.pid
        selection = Selection(filters, view.muted, pid, tid, view.path, view.tree.shape if view.path else steps.Shape())
        return self._filter_caches.of(selection, newest, held=not self._goes_on or view.paused_at_ns is not None)

    def _pause_or_resume(self, view: View) -> None:
        if view.paused_at_ns is None:
            self._paused = None
        elif self._paused is None or self._paused.at_ns != view.paused_at_ns:
            self._paused = PausedView(self._history, view.paused_at_ns, view.mode)

    def _since_start(self, mode: str) -> HistoryTick | None:
        return self._paused.since_start(mode) if self._paused else self._history.since_start(mode)

    def _moved_in(self, ticks: Sequence[HistoryTick]) -> HistoryTick | None:
        since_ns = ticks[0].at_ns - ticks[0].span_ns
        key = since_ns, ticks[-1].at_ns
        if self._moved is None or self._moved[0] != key:
            known = self._moves
            self._moves = {tick.number: known.get(tick.number) or tick.moves for tick in ticks}
            self._moved = key, moved_in(ticks, since_ns, self._moves.values())
            self._moves.pop(0, None)  # everything since the start is another tick each time
        return self._moved[1]

    def _current_threads(self) -> AllThreads:
        latest = self._history.latest
        if self._all_threads is None or self._all_threads[0] is not latest:
            self._all_threads = latest, all_threads(latest)
        return self._all_threads[1]

    def _stuck_of(self, filter_cache: FilterCache, newest: HistoryTick) -> Stuck:
        """Return the waits in progress at the end of a tick that pass mutes and filters."""
        key = (filter_cache, newest.number, newest.at_ns)
        if self._stuck is None or self._stuck[0] != key:
            every = self._paused.stuck if self._paused else self._history.stuck(newest)
            self._stuck = key, filter_cache.stuck(every, newest)
        return self._stuck[1]

    def _comparison(self, view: View, now: Now) -> Comparison | None:
        baseline = view.compared
        if baseline is None:
            self._compared = None
            return None
        if self._compared is None or self._compared.baseline is not baseline:
            self._compared = Comparison(baseline, self._rules)
        self._compared.select(view, user_filter(view.user), now)
        return self._compared


def sums_of(every: Iterable[Parts]) -> dict[Leaf, Part]:
    """Add up by leaf."""
    sums: dict[Leaf, Part] = {}
    for parts in every:
        for leaf, part in parts.items():
            was = sums.get(leaf)
            sums[leaf] = part if was is None else was.plus(part)
    return sums


def last_alike(minute: Sequence[HistoryTick], span_ns: int, mode: str) -> Sequence[HistoryTick]:
    """Select ticks as History.last does, back to where filters or mode were different."""

    def same(tick: HistoryTick) -> tuple[Filters, bool]:
        return _counted(tick), gathers(tick.header.mode, mode)

    from_ns, newest = minute[-1].at_ns - span_ns, same(minute[-1])
    ticks = [tick for tick in minute if tick.at_ns - tick.span_ns // 2 > from_ns or tick is minute[-1]]
    before = next((index for index in reversed(range(len(ticks))) if same(ticks[index]) != newest), -1)
    return ticks[before + 1 :]


def _counted(tick: HistoryTick) -> Filters:
    """Return which threads and waits are counted; the minimum excludes none."""
    return replace(tick.header.filters, min_ns=0)
