"""Picture: everything the screen shows of a History in a View, as numbers and names."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from offtop.model.aggregate import icicle as icicles
from offtop.model.aggregate import steps
from offtop.model.aggregate import tree as trees
from offtop.model.aggregate.baseline_rows import BaselineRow
from offtop.model.aggregate.filter import (
    Filter,
    of_object,
    of_pool,
    of_program,
    of_reason,
    of_waker,
    parse,
    quoted,
)
from offtop.model.aggregate.icicle import Icicle
from offtop.model.aggregate.place_shares import PlaceNames
from offtop.model.aggregate.rows import WAITING, Key, Order, Ranking, Row, category_rows, place_rows
from offtop.model.aggregate.selection import FilterCache, FilterCaches, Parts, Selection
from offtop.model.aggregate.steps import NO_FRAMES, Path, Shape, Steps, passes
from offtop.model.aggregate.tree import NO_NAMELESS, Branch, Nameless, Node
from offtop.model.classify.categories import OTHER
from offtop.model.classify.cause_finder import CauseFinder, CauseShare
from offtop.model.classify.causes import WITHOUT_RULES, RuleSource
from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey
from offtop.model.values.outlier import NO_OUTLIERS, Outliers
from offtop.model.values.snapshot import Filters, Sampling, Snapshot
from offtop.model.values.stack import NO_STACK, QUEUED, Names
from offtop.model.values.table import Ints
from offtop.model.values.wake import NO_WAKE, OFFCPU, WAKEUP, Object, gathers
from offtop.model.values.within import Calls
from offtop.model.viewmodel import panes
from offtop.model.viewmodel.comparison import Comparison, Now, Trees
from offtop.model.viewmodel.listing import NOTHING_LISTED, Listing, Scene
from offtop.model.viewmodel.outlier_list import OutlierList, OutliersPicture
from offtop.model.viewmodel.seconds import AccountPicture, Seconds
from offtop.model.viewmodel.stuck_list import StuckList, StuckPicture
from offtop.model.viewmodel.view import SINCE_START, View
from offtop.model.windows import heat as heats
from offtop.model.windows import stuck
from offtop.model.windows.breakdown import (
    ALL,
    FILTERED,
    NO_PART,
    RUN_QUEUE,
    Added,
    Leaf,
    Part,
    Place,
    Scope,
    Shares,
    by_category,
    by_place,
    by_process,
    by_site,
    merged,
    total,
)
from offtop.model.windows.heat import Heat
from offtop.model.windows.history import History, HistoryTick, moved_in
from offtop.model.windows.rolling import Sums
from offtop.model.windows.stuck import NO_AGE, Age, Stuck
from offtop.model.windows.window import Window, calls_over, merge, sampling_over
from offtop.units import NS_PER_S

Series = tuple[float | None, ...]
"""Average waiting threads in cells of time, the latest last; None if nothing was measured."""

LONGEST_ROLLING_NS = 60 * NS_PER_S
_RECENT_NS = 10 * NS_PER_S
_LIST_ONLY_SORTS = ("PID", "NAME")
"""Sorts that do not apply to categories, which are then sorted by WAITING."""
_FLAME_NS = 2 * NS_PER_S
"""Minimum time between two updates of the icicle, while live."""
_LEAST_BESIDE_ACCOUNT = 6
"""The account is shown above the list if the list has at least so many rows."""
_SMALL_BRANCH = 200
"""Branches below this fraction of the total (1/n, 0.5 %) are summed up."""


@dataclass(frozen=True, slots=True)
class Room:
    """Space for each pane, in rows, lines or cells; 0: the pane is not shown."""

    rows: int = 7
    """Visible rows of the list, for which places are looked up."""
    tree: int = 0
    """Lines."""
    stuck: int = 0
    """Lines of the list of waits in progress, or of outliers."""
    site: int = 0
    """Places."""
    flame: tuple[int, int] = (0, 0)
    """Columns and lines."""
    latency: bool = False
    heat: tuple[int, int] = (0, 0)
    """Columns and rows."""
    heat_cell_ns: int = 5 * NS_PER_S
    categories: int = 7
    spark_cells: int = 20
    spark_cell_ns: int = 3 * NS_PER_S
    timeline_cells: int = 60
    timeline_cell_ns: int = 5 * NS_PER_S


@dataclass(frozen=True, slots=True)
class TreePicture:
    root: Node
    branches: Sequence[Branch] = ()
    cursor: int = 0
    """Branch under the cursor."""
    first: int = 0
    """First branch on the screen."""
    nameless: Nameless = NO_NAMELESS
    now: Mapping[Path, Age] = field(default_factory=dict[Path, Age])
    """Path → the oldest wait in progress there."""
    before: Mapping[Path, BaselineRow] = field(default_factory=dict[Path, BaselineRow])
    """Baseline values of the visible lines."""


@dataclass(frozen=True, slots=True)
class Picture:
    view: View
    """With the branches that opened by themselves."""
    newest: HistoryTick
    """The latest tick shown."""
    behind_ns: int
    """Time between that tick and the latest snapshot; 0 unless paused."""
    span_ns: int
    """Measured length of the span that the rows cover."""
    shown: Part
    """All waits that are neither muted nor idle and hidden."""
    ready_ns: int
    """Run-queue part of `shown`."""
    hidden_ns: int
    """Idle and hidden."""
    standing_ns: int
    """Part of `hidden_ns` that is idle only because it has always stood there."""
    muted_ns: int
    filtered_ns: int
    """Excluded by --max and --state."""
    other_ns: int
    """Part of `shown` that no category rule matches."""
    passing_ns: int
    """Part of `shown` that passes the user's filter."""
    idle_passing_ns: int
    """Idle time that passes it and is hidden."""
    ticks: Sequence[HistoryTick]
    """Ticks of the span."""
    threads_of: Mapping[int, int]
    """pid → how many of its threads have ever waited; without processes that exited."""
    lost: Mapping[str, int]
    """Records lost in the span, by kind."""
    calls: Calls
    """Calls of the --within function in the span."""
    sampling: Sampling | None
    """How waits were sampled in the span; None: every wait was recorded."""
    thinned_ns: int
    """Off-CPU time without a stack, to keep to the CPU budget."""
    switches_per_s: float
    """Context switches per second of the machine, in the span or, if that is everything since the start, in the last
    10 s; negative: unknown."""
    catalog: Catalog
    categories: Ranking
    sparks: Mapping[str, Series]
    """By category, over the last minute; breakdown.ALL is the sum."""
    rows: Ranking
    """The list: cgroups, processes, threads and so on."""
    cursor_row: int
    """Row under the cursor."""
    first_row: int
    """First row on the screen."""
    tree: TreePicture | None
    places: Ranking
    """Complete stacks through the chosen branch."""
    stuck: StuckPicture
    outliers: OutliersPicture
    account: AccountPicture | None
    """Of the selected program, process, pool or thread."""
    account_lines: int
    """How many lines of the list it takes."""
    unexplained_pct: float
    """CPU time of the newest tick that neither threads nor interrupts nor steal account for."""
    oldest: Age
    """Oldest wait of everything shown."""
    gathered: bool
    """Whether the newest tick has what the mode shows; if not, there is no list, tree or icicle."""
    flame: Icicle | None
    flame_span_ns: int
    """Span of the icicle, which may be older than the rest."""
    flame_before: Mapping[Path, BaselineRow]
    """Baseline values of its boxes."""
    uncompared: str
    """Why list and tree are not compared; empty if they are."""
    caveat: str
    """Why some changes may be none."""
    diagnosis: Sequence[CauseShare]
    """Causes of the selection, most time first."""
    unanswered: Mapping[Object, int]
    """Objects for which a rule would name the peer if it were known → a process that waits on each."""
    sites: Mapping[tuple[int, ...], Added]
    """The selection by sites (breakdown.by_site)."""
    latency: Part
    """Of the selection; without run-queue time if wakers are shown, as in list, tree and icicle."""
    heat: Heat | None
    timeline: Series
    timeline_end_ns: int
    """CLOCK_MONOTONIC contained in its last cell. If paused, the timeline also shows later ticks."""

    @property
    def subject(self) -> Key | None:
        """Process or thread that tree, latency and timeline show; None: all of the category."""
        return self.view.thread or self.view.pid


def series(
    ticks: Sequence[HistoryTick], cells: int, cell_ns: int, end_ns: int, waiting_ns: Callable[[HistoryTick], int | None]
) -> Series:
    """Average `waiting_ns` in `cells` cells, the last of which contains `end_ns`.

    A cell is None if nothing was measured in it. Cells begin at multiples of `cell_ns`, so that the picture moves by
    whole cells and does not flicker.
    """
    newest = (end_ns - 1) // cell_ns
    sums: dict[int, tuple[int, int]] = {}
    for tick in ticks:
        cell = (tick.at_ns - 1) // cell_ns - newest + cells - 1
        if 0 <= cell < cells and (ns := waiting_ns(tick)) is not None:
            was_ns, was_span_ns = sums.get(cell, (0, 0))
            sums[cell] = (was_ns + ns, was_span_ns + tick.span_ns)
    return tuple(sums[cell][0] / sums[cell][1] if sums.get(cell, (0, 0))[1] else None for cell in range(cells))


class _AllThreads(NamedTuple):
    threads: Collection[ThreadKey]
    of_process: Mapping[int, int]
    """pid → how many of these."""


class _PausedView:
    """Ticks that a paused view shows; History may drop them meanwhile."""

    def __init__(self, history: History, at_ns: int, mode: str) -> None:
        self.at_ns = at_ns
        oldest = history.oldest
        self.ticks = history.last(LONGEST_ROLLING_NS, at_ns) or ([oldest] if oldest else [])
        self._history = history
        self._is_newest = history.newest is not None and history.newest.at_ns == at_ns
        self.everyone = _all_threads(history.latest) if self._is_newest else _threads_in(self.ticks)
        self._since_start: dict[str, HistoryTick | None] = {}
        if self._is_newest:
            self._since_start[mode] = history.since_start(mode)

    def since_start(self, mode: str) -> HistoryTick | None:
        """Return everything since the start up to the paused tick.

        For an earlier tick, or in another mode than the one it was paused in, it is built when needed, and goes back
        only as far as History does.
        """
        if mode not in self._since_start:
            self._since_start[mode] = self._history.until(self.at_ns, mode)
        return self._since_start[mode]


class Pictures:
    """Makes pictures of a history; caches only what makes the next one cheap."""

    def __init__(
        self,
        history: History,
        names: Names,
        rules: RuleSource = WITHOUT_RULES,
        outliers: Outliers = NO_OUTLIERS,
        *,
        goes_on: bool = True,
    ) -> None:
        """`goes_on`: more ticks will follow, so results that arrive late may wait for the next one."""
        self._history = history
        self._goes_on = goes_on
        self._outliers = OutlierList(outliers)
        self._names = names
        self._cause_finder = CauseFinder(names, rules)
        self._paused: _PausedView | None = None
        self._sums = Sums(history)
        self._seconds = Seconds()
        place_names = PlaceNames(self._cause_finder)
        self._listing = Listing(history, self._sums, self._seconds, self._cause_finder, place_names)
        self._stuck_list = StuckList(self._cause_finder, place_names)
        self._filter_caches = FilterCaches(self._cause_finder)
        self._root: tuple[object, Node, Nameless] | None = None
        self._steps: tuple[object, Steps] | None = None
        self._flame_root: tuple[object, Node, int] | None = None
        self._stuck: tuple[object, Stuck] | None = None
        self._unfiltered: FilterCache | None = None
        self._all_threads: tuple[object, _AllThreads] | None = None
        self._moved: tuple[object, HistoryTick | None] | None = None
        self._rules = rules
        self._compared: Comparison | None = None

    def of(self, view: View, room: Room) -> Picture | None:
        """Return the picture; None while there is no tick yet."""
        self._pause_or_resume(view)
        minute = self._paused.ticks if self._paused else self._history.last(LONGEST_ROLLING_NS)
        if not minute:
            return None
        ever = self._since_start(view.mode) if view.span_ns == SINCE_START or view.sort == "TOTAL" else None
        newest = minute[-1]
        gathered = gathers(newest.header.mode, view.mode)
        ticks = [ever] if ever and view.span_ns == SINCE_START else last_alike(minute, view.span_ns, view.mode)
        # context switches are not summed since the start
        recent = last_alike(minute, _RECENT_NS, OFFCPU) if ticks[0] is ever else ticks
        filter_cache = self._filter_cache_of(view, newest)
        filter_cache.forget(self._history.oldest, minute[0])
        moved = self._moved_in(ticks)
        added = [*ticks, moved] if moved else ticks
        taken = [filter_cache.taken(tick) for tick in added]
        unmuted = _sums_of(one.unmuted for one in taken)
        parts = _by_category(unmuted, view.idle_shown)
        one = merged([tick.breakdown for tick in taken])
        chosen = replace(one, categories=_sums_of(filter_cache.chosen(tick) for tick in added))
        passing = self._stuck_of(filter_cache, newest)
        of_selection = filter_cache.chosen_stuck(passing, newest)
        shown_ages = stuck.by_category(of_selection.in_scope(Scope(idle=view.idle_shown)))
        every_thread, counts = self._paused.everyone if self._paused else self._current_threads()
        span_ns = sum(tick.span_ns for tick in ticks)
        pids = by_process(one, view.scope._replace(pid=None, tid=None)).keys() if view.compared else ()
        header, sampling = newest.header, sampling_over(tick.header for tick in ticks)
        comparison = self._comparison(view, Now(span_ns, header.catalog, every_thread, pids, header.filters, sampling))
        compare = comparison.categories() if comparison else None
        categories = category_rows(
            chosen,
            Order(
                WAITING if view.sort in _LIST_ONLY_SORTS else view.table_sort, limit=room.categories, compare=compare
            ),
            idle_shown=view.idle_shown,
            lifetime=replace(one, categories=filter_cache.chosen(ever)) if ever else None,
            keep=view.category,
            now=shown_ages,
        )
        of_subject = self._all_of_selection(view, filter_cache, added, chosen.categories)
        account = self._seconds.of_selection(view, ticks, of_subject)
        account_lines = account.lines if account and room.rows >= _LEAST_BESIDE_ACCOUNT else 0
        scene = Scene(view, filter_cache, ticks, moved, newest, ever, one, every_thread, counts, passing, comparison)
        sites = self._sites(scene)
        if gathered:
            listed = self._listing.of(scene, max(1, room.rows - account_lines), sites)
            view, tree, places, flame = self._stacks(view, room, scene, of_selection)
        else:
            listed, tree, places, flame = NOTHING_LISTED, None, Ranking(), None
        end_ns = self._timeline_end_ns(view, room, newest)
        past = self._past(room, newest, end_ns, filter_cache)
        all_ns = total(unmuted.values()).total_ns
        shown = total(parts.values())
        filtered_ns = total(part for leaf, part in unmuted.items() if leaf.category == FILTERED).total_ns
        return Picture(
            view=view,
            newest=newest,
            behind_ns=self._history.latest.at_ns - newest.at_ns if self._history.latest else 0,
            span_ns=span_ns,
            shown=shown,
            ready_ns=parts.get(RUN_QUEUE, NO_PART).total_ns,
            other_ns=parts.get(OTHER, NO_PART).total_ns,
            filtered_ns=filtered_ns,
            hidden_ns=all_ns - shown.total_ns - filtered_ns,
            standing_ns=0 if view.idle_shown else _standing(unmuted).total_ns,
            muted_ns=sum(tick.muted_ns for tick in taken),
            passing_ns=total(by_category(one, view.idle_shown, filtered_shown=False).values()).total_ns,
            idle_passing_ns=0 if view.idle_shown else _idle(one.categories).total_ns,
            ticks=ticks,
            threads_of=counts,
            lost=_added(tick.header.lost for tick in ticks),
            calls=calls_over(tick.header for tick in ticks),
            sampling=sampling,
            thinned_ns=sum(tick.header.cost.thinned.waits_ns for tick in ticks),
            switches_per_s=_per_second([tick for tick in recent if tick.header.cost.switches >= 0]),
            catalog=newest.header.catalog,
            categories=categories,
            sparks=_sparks(minute, room, newest.at_ns, view, filter_cache, [row.key for row in categories.rows]),
            rows=listed.rows,
            cursor_row=listed.cursor,
            first_row=listed.first,
            tree=tree,
            places=places,
            stuck=self._stuck_list.of(of_selection, view, room.stuck, newest.header.catalog),
            outliers=self._outliers.of(newest.at_ns, view.outliers.cursor, room.stuck),
            account=account,
            account_lines=account_lines,
            unexplained_pct=self._seconds.unexplained_pct(newest),
            gathered=gathered,
            oldest=max(shown_ages.values(), default=NO_AGE),
            flame=flame,
            diagnosis=self._cause_finder.rules_of(sites, scene.catalog),
            sites=sites,
            unanswered=self._cause_finder.unanswered,
            flame_span_ns=self._flame_root[2] if flame and self._flame_root else 0,
            flame_before=_before_of_boxes(flame, comparison),
            uncompared=comparison.why_uncompared if comparison else "",
            caveat=comparison.caveat if comparison else "",
            latency=total(_in(chosen.categories, view.category, view.idle_shown, view.scope.blocked)),
            heat=self._heat(room, newest, past, view) if room.heat[0] else None,
            timeline=series(
                self._history.last(room.timeline_cells * room.timeline_cell_ns, end_ns),
                room.timeline_cells,
                room.timeline_cell_ns,
                end_ns,
                lambda tick: _in_category(past[tick.number], view).total_ns if tick.number in past else None,
            ),
            timeline_end_ns=end_ns,
        )

    def selected(self, picture: Picture) -> tuple[Window, Shares]:
        """Return everything the picture covers as one window, and the selection's part of it."""
        view = picture.view
        whole = HistoryTick.of(merge([tick.window for tick in picture.ticks]), picture.newest.idle)
        filter_cache = self._filter_cache_of(view, picture.newest)
        return whole.window, filter_cache.of_branch(filter_cache.shares(whole).in_scope(view.scope), whole)

    def _comparison(self, view: View, now: Now) -> Comparison | None:
        baseline = view.compared
        if baseline is None:
            self._compared = None
            return None
        if self._compared is None or self._compared.baseline is not baseline:
            self._compared = Comparison(baseline, self._rules)
        self._compared.select(view, _user_filter(view.user), now)
        return self._compared

    def _pause_or_resume(self, view: View) -> None:
        if view.paused_at_ns is None:
            self._paused = None
        elif self._paused is None or self._paused.at_ns != view.paused_at_ns:
            self._paused = _PausedView(self._history, view.paused_at_ns, view.mode)

    def _all_of_selection(
        self, view: View, filter_cache: FilterCache, ticks: Sequence[HistoryTick], chosen: Parts
    ) -> Parts:
        """Return the time of the selected program, process or thread by leaf, without filters and mutes."""
        own = (of_pool(view.pool),) if view.pool else (of_program(view.program),) if view.program else ()
        selection = filter_cache.selection._replace(filters=own, muted=(), path=())
        is_whole = view.subject_ids[0] is None and view.program is None
        if is_whole or selection == filter_cache.selection:
            return chosen
        if self._unfiltered is None or self._unfiltered.selection != selection:
            self._unfiltered = FilterCache(selection, self._cause_finder)
        self._unfiltered.forget(self._history.oldest, ticks[0])
        return _sums_of(self._unfiltered.chosen(tick) for tick in ticks)

    def _moved_in(self, ticks: Sequence[HistoryTick]) -> HistoryTick | None:
        since_ns = ticks[0].at_ns - ticks[0].span_ns
        key = since_ns, ticks[-1].at_ns
        if self._moved is None or self._moved[0] != key:
            self._moved = key, moved_in(ticks, since_ns)
        return self._moved[1]

    def _current_threads(self) -> _AllThreads:
        latest = self._history.latest
        if self._all_threads is None or self._all_threads[0] is not latest:
            self._all_threads = latest, _all_threads(latest)
        return self._all_threads[1]

    def _since_start(self, mode: str) -> HistoryTick | None:
        return self._paused.since_start(mode) if self._paused else self._history.since_start(mode)

    def _filter_cache_of(self, view: View, newest: HistoryTick) -> FilterCache:
        chosen = (
            *(view.filter, _user_filter(view.user)),
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

    def _stuck_of(self, filter_cache: FilterCache, newest: HistoryTick) -> Stuck:
        """Return the waits in progress at the end of a tick that pass mutes and filters."""
        key = (filter_cache, newest.number, newest.at_ns)
        if self._stuck is None or self._stuck[0] != key:
            self._stuck = key, filter_cache.stuck(self._history.stuck(newest), newest)
        return self._stuck[1]

    def _stacks(
        self, view: View, room: Room, scene: Scene, of_selection: Stuck
    ) -> tuple[View, TreePicture | None, Ranking, Icicle | None]:
        """Return the tree, the places of the chosen branch, and the icicle, if there is room."""
        tree, places, flame = None, Ranking(), None
        filter_cache, ticks = scene.filter_cache, scene.ticks
        if not (room.tree or room.site or room.flame[0]):
            return view, tree, places, flame
        shape = view.tree.shape
        places_of = shape.places
        table = self._sums.of(
            "places",
            (filter_cache, view.scope, shape.mode, shape.objects),
            lambda tick: by_place(filter_cache.shares(tick), view.scope, places_of),
            ticks,
            scene.moved,
        )
        catalog, span_ns = ticks[-1].header.catalog, sum(tick.span_ns for tick in ticks)
        about = (view.scope, filter_cache, shape, self._names.version)
        steps = self._steps_of(catalog, shape)
        path_of = steps.of
        if room.tree or room.flame[0]:
            key = (about, ticks[0].at_ns - ticks[0].span_ns, ticks[-1].at_ns)
            if self._root is None or self._root[0] != key:
                of_wakers = shape.mode == WAKEUP
                root = trees.tree_along(
                    table, path_of, lambda place: "" if of_wakers else catalog.stack(place[0]).category
                )
                self._root = key, root, trees.nameless(table, steps.nameless)
        if room.tree and self._root:
            was = scene.comparison.trees() if scene.comparison else None
            view, tree = _tree_picture(view, self._root[1], room.tree, was)
            now = _ages_of_paths(of_selection, view.scope, path_of, places_of)
            tree = replace(tree, nameless=self._root[2], now=now)
        if room.flame[0] and self._root:
            begin_ns = 0 if ticks[0].number else ticks[0].at_ns - ticks[0].span_ns
            paused = (view.paused_at_ns, self._names.version if view.paused_at_ns else 0)
            key = (about[:-1], view.span_ns, begin_ns, ticks[-1].at_ns // _FLAME_NS, paused)
            if self._flame_root is None or self._flame_root[0] != key:
                self._flame_root = key, self._root[1], span_ns
            flame = icicles.layout(self._flame_root[1], view.flame.zoom, *room.flame)
        if room.site:
            through = {place: part for place, part in table.items() if passes(path_of(place), view.path)}
            whole_ns = sum(part[1] for part in table.values())
            compare = scene.comparison.places(path_of) if scene.comparison else None
            rows = place_rows(through, span_ns, room.site, compare)
            places = self._with_sites(rows, scene, places_of)._replace(of_ns=whole_ns)
        return view, tree, places, flame

    def _steps_of(self, catalog: Catalog, shape: Shape) -> Steps:
        if self._steps is None or self._steps[0] != (id(catalog), shape):
            self._steps = (id(catalog), shape), Steps(catalog, self._names, shape)
        self._steps[1].refresh_names()
        return self._steps[1]

    def _with_sites(self, places: Ranking, scene: Scene, places_of: Callable[[Ints], Ints]) -> Ranking:
        """Add to each place the process and object with most of its time, and the rule for that."""
        if scene.view.tree.shape.mode == WAKEUP:
            return places
        queued = self._queued(scene, places_of)
        most: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = {}
        for site, (_, ns, _, _) in self._sites(scene).items():
            most[site[0], site[1]] = max(most.get((site[0], site[1]), (0, ())), (ns, site))

        def with_site(row: Row) -> Row:
            if not isinstance(row.key, Place):
                return row
            _, site = most.get((row.key.kernel, row.key.user), (0, ()))
            if 2 * queued.get(row.key, NO_PART)[1] > row.part.total_ns:
                site = QUEUED, NO_STACK, NO_WAKE, site[-1] if site else 0
            if not site:
                return row
            kernel, user, wake, pid = site
            (rule,) = self._cause_finder.rules_at([site], scene.catalog)
            return row._replace(rule=rule, top=SiteKey(pid, 0, kernel, user, wake))

        return places._replace(rows=tuple(map(with_site, places.rows)))

    def _queued(self, scene: Scene, places_of: Callable[[Ints], Ints]) -> Mapping[tuple[int, ...], Added]:
        """Return the run-queue time of each place."""
        filter_cache, scope = scene.filter_cache, scene.view.scope
        if not scope.holds(Leaf(RUN_QUEUE)):
            return {}
        only = scope._replace(category=RUN_QUEUE)
        shape = scene.view.tree.shape
        about = (filter_cache, only, shape.mode, shape.objects)
        return self._sums.of(
            "queued", about, lambda tick: by_place(filter_cache.shares(tick), only, places_of), scene.ticks, scene.moved
        )

    def _sites(self, scene: Scene) -> Mapping[tuple[int, ...], Added]:
        """Return the time of the selection by site (breakdown.by_site)."""
        filter_cache, scope = scene.filter_cache, scene.view.scope
        return self._sums.of(
            "sites",
            (filter_cache, scope),
            lambda tick: by_site(filter_cache.shares(tick), scope),
            scene.ticks,
            scene.moved,
        )

    def _timeline_end_ns(self, view: View, room: Room, newest: HistoryTick) -> int:
        """Return the end of the timeline: now, or at most half its width after a paused tick."""
        last = self._history.newest
        if view.paused_at_ns is None or last is None:
            return newest.at_ns
        return max(newest.at_ns, min(last.at_ns, newest.at_ns + room.timeline_cells * room.timeline_cell_ns // 2))

    def _past(self, room: Room, newest: HistoryTick, end_ns: int, filter_cache: FilterCache) -> dict[int, Parts]:
        """Return the selection's time in each tick of timeline and heat map, if known by now."""
        timeline_ns = room.timeline_cells * room.timeline_cell_ns
        heat_ns = room.heat[0] * room.heat_cell_ns + end_ns - newest.at_ns
        return filter_cache.parts_of(self._history.last(max(timeline_ns, heat_ns), end_ns))

    def _heat(self, room: Room, newest: HistoryTick, past: Mapping[int, Parts], view: View) -> Heat:
        columns, rows = room.heat
        ticks = self._history.last(columns * room.heat_cell_ns, newest.at_ns)
        histograms = {number: _in_category(parts, view).histogram for number, parts in past.items()}
        return heats.heat(ticks, histograms, columns, room.heat_cell_ns, newest.at_ns, rows)


def _tree_picture(view: View, root: Node, lines: int, was: Trees | None) -> tuple[View, TreePicture]:
    """Open large branches and return the lines of the tree.

    Branches that only the baseline has come last.
    """
    view = panes.grown(view, trees.opened_by_share(root))
    branches = trees.flatten(root, view.tree.opened, root.part[1] // _SMALL_BRANCH)
    branches += was.gone(root) if was else []
    cursor = trees.index_of(branches, view.tree.cursor)
    line = max(0, min(view.tree.line, lines - 1))
    first = max(0, min(cursor - line, len(branches) - lines))
    first = min(first, cursor)
    seen = [one.path for one in branches[first : first + lines] if not one.more] if was else []
    before = {path: was.before(path) for path in seen} if was else {}
    return view, TreePicture(root, branches, cursor, first, before=before)


def _before_of_boxes(flame: Icicle | None, comparison: Comparison | None) -> Mapping[Path, BaselineRow]:
    was = comparison.trees() if flame and comparison else None
    return {box.path: was.before(box.path) for box in flame.boxes} if flame and was else {}


def _ages_of_paths(
    some: Stuck, scope: Scope, path_of: Callable[[tuple[int, ...]], Path], places: Callable[[Ints], Ints]
) -> Mapping[Path, Age]:
    """Return the oldest wait of each branch of a tree, including closed ones."""
    ages: dict[Path, Age] = {}
    for place, age in stuck.by_place(some.in_scope(scope), places).items():  # oldest first
        path = path_of(place) or (NO_FRAMES,)
        for end in range(len(path), 0, -1):
            if path[:end] in ages:
                break  # the branches above have one, too
            ages[path[:end]] = age
    return ages


def _user_filter(user: str) -> Filter:
    return parse(f"user={quoted(user)}" if user else "")


def _sums_of(every: Iterable[Parts]) -> dict[Leaf, Part]:
    sums: dict[Leaf, Part] = {}
    for parts in every:
        for leaf, part in parts.items():
            was = sums.get(leaf)
            sums[leaf] = part if was is None else was.plus(part)
    return sums


def _by_category(parts: Parts, idle_shown: bool) -> dict[str, Part]:
    """Return category → time, without filtered and optionally without idle time."""
    sums: dict[str, Part] = {}
    for leaf, part in parts.items():
        if (idle_shown or not leaf.idle) and leaf.category != FILTERED:
            was = sums.get(leaf.category)
            sums[leaf.category] = part if was is None else was.plus(part)
    return sums


def _standing(parts: Parts) -> Part:
    return total(part for leaf, part in parts.items() if leaf.standing)


def _idle(parts: Parts) -> Part:
    return total(part for leaf, part in parts.items() if leaf.idle)


def _in_category(parts: Parts, view: View) -> Part:
    """Return the time of the view's category in `parts`."""
    return total(_in(parts, view.category, view.idle_shown))


def _in(parts: Parts, category: str, idle_shown: bool, blocked: bool = False) -> Iterable[Part]:
    scope = Scope(category, idle=idle_shown, blocked=blocked)
    return (part for leaf, part in parts.items() if scope.holds(leaf))


def _sparks(
    minute: Sequence[HistoryTick], room: Room, end_ns: int, view: View, filter_cache: FilterCache, keys: Sequence[Key]
) -> dict[str, Series]:
    past = filter_cache.parts_of(minute)

    def waiting_ns(category: str) -> Callable[[HistoryTick], int | None]:
        def of(tick: HistoryTick) -> int | None:
            parts = past.get(tick.number)
            return None if parts is None else sum(part.total_ns for part in _in(parts, category, view.idle_shown))

        return of

    return {
        key: series(minute, room.spark_cells, room.spark_cell_ns, end_ns, waiting_ns(key))
        for key in (ALL, *keys)
        if isinstance(key, str)
    }


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


def _all_threads(snapshot: Snapshot | None) -> _AllThreads:
    """Return the threads that have ever done anything, without evicted ones."""
    return _counted_by_process({*snapshot.threads, *snapshot.waiting} if snapshot else ())


def _threads_in(ticks: Sequence[HistoryTick]) -> _AllThreads:
    """Return the same for a past tick: the threads that did anything in it, or waited."""
    return _counted_by_process({key for key, _ in ticks[-1].window.each_thread()} if ticks else ())


def _counted_by_process(threads: Collection[ThreadKey]) -> _AllThreads:
    return _AllThreads(threads, Counter(pid for pid, _ in threads))


def _per_second(ticks: Sequence[HistoryTick]) -> float:
    span_ns = sum(tick.span_ns for tick in ticks)
    return sum(tick.header.cost.switches for tick in ticks) * NS_PER_S / span_ns if span_ns else -1.0


def _added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Sum up by kind."""
    sums: Counter[str] = Counter()
    for some in counts:
        sums.update(some)
    return dict(sums)
