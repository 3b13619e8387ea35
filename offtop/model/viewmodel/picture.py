"""Picture: everything the screen shows of a History in a View, as numbers and names."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from offtop.model.aggregate import icicle as icicles
from offtop.model.aggregate import tree as trees
from offtop.model.aggregate.baseline_rows import BaselineRow
from offtop.model.aggregate.filter import (
    of_pool,
    of_program,
)
from offtop.model.aggregate.icicle import Icicle
from offtop.model.aggregate.place_shares import PlaceNames
from offtop.model.aggregate.rows import WAITING, Key, Order, Ranking, Row, category_rows, place_rows
from offtop.model.aggregate.selection import FilterCache, Parts
from offtop.model.aggregate.steps import NO_FRAMES, Path, Shape, Steps, passes
from offtop.model.aggregate.tree import NO_NAMELESS, Branch, Nameless, Node
from offtop.model.classify.categories import OTHER
from offtop.model.classify.cause_finder import CauseFinder, CauseShare
from offtop.model.classify.causes import WITHOUT_RULES, RuleSource
from offtop.model.values.catalog import Catalog, SiteKey
from offtop.model.values.outlier import NO_OUTLIERS, Outliers
from offtop.model.values.snapshot import Sampling
from offtop.model.values.stack import NO_STACK, QUEUED, Names
from offtop.model.values.table import Ints
from offtop.model.values.wake import NO_WAKE, OFFCPU, WAKEUP, Object
from offtop.model.values.within import Calls
from offtop.model.viewmodel import panes
from offtop.model.viewmodel.comparison import Comparison, Trees
from offtop.model.viewmodel.listing import NOTHING_LISTED, Listing
from offtop.model.viewmodel.outlier_list import OutlierList, OutliersPicture
from offtop.model.viewmodel.room import Room
from offtop.model.viewmodel.scene import Scene, Scenes, last_alike, sums_of
from offtop.model.viewmodel.seconds import AccountPicture, Seconds
from offtop.model.viewmodel.series import Series, series
from offtop.model.viewmodel.stuck_list import StuckList, StuckPicture
from offtop.model.viewmodel.view import View
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
    by_site,
    total,
)
from offtop.model.windows.heat import Heat
from offtop.model.windows.history import History, HistoryTick
from offtop.model.windows.rolling import Sums
from offtop.model.windows.stuck import NO_AGE, Age, Stuck
from offtop.model.windows.window import Window, calls_over, merge
from offtop.units import NS_PER_S

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
        self._outliers = OutlierList(outliers)
        self._names = names
        self._cause_finder = CauseFinder(names, rules)
        self._scenes = Scenes(history, self._cause_finder, rules, goes_on=goes_on)
        self._sums = Sums(history)
        self._seconds = Seconds()
        place_names = PlaceNames(self._cause_finder)
        self._listing = Listing(history, self._sums, self._seconds, self._cause_finder, place_names)
        self._stuck_list = StuckList(self._cause_finder, place_names)
        self._root: tuple[object, Node, Nameless] | None = None
        self._steps: tuple[object, Steps] | None = None
        self._flame_root: tuple[object, Node, int] | None = None
        self._unfiltered: FilterCache | None = None

    def of(self, view: View, room: Room) -> Picture | None:
        """Return the picture; None while there is no tick yet."""
        scene = self._scenes.of(view)
        if scene is None:
            return None
        ticks, newest, filter_cache, comparison = scene.ticks, scene.newest, scene.filter_cache, scene.comparison
        # context switches are not summed since the start
        recent = last_alike(scene.minute, _RECENT_NS, OFFCPU) if ticks[0] is scene.ever else ticks
        unmuted = sums_of(one.unmuted for one in scene.taken)
        parts = _by_category(unmuted, view.idle_shown)
        shown_ages = stuck.by_category(scene.chosen_stuck.in_scope(Scope(idle=view.idle_shown)))
        compare = comparison.categories() if comparison else None
        ever = scene.ever
        categories = category_rows(
            replace(scene.breakdown, categories=scene.chosen),
            Order(
                WAITING if view.sort in _LIST_ONLY_SORTS else view.table_sort, limit=room.categories, compare=compare
            ),
            idle_shown=view.idle_shown,
            lifetime=replace(scene.breakdown, categories=filter_cache.chosen(ever)) if ever else None,
            keep=view.category,
            now=shown_ages,
        )
        of_subject = self._all_of_selection(scene)
        account = self._seconds.of_selection(view, ticks, of_subject)
        account_lines = account.lines if account and room.rows >= _LEAST_BESIDE_ACCOUNT else 0
        sites = self._sites(scene)
        if scene.gathered:
            listed = self._listing.of(scene, max(1, room.rows - account_lines), sites)
            view, tree, places, flame = self._stacks(view, room, scene)
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
            span_ns=scene.span_ns,
            shown=shown,
            ready_ns=parts.get(RUN_QUEUE, NO_PART).total_ns,
            other_ns=parts.get(OTHER, NO_PART).total_ns,
            filtered_ns=filtered_ns,
            hidden_ns=all_ns - shown.total_ns - filtered_ns,
            standing_ns=0 if view.idle_shown else _standing(unmuted).total_ns,
            muted_ns=sum(tick.muted_ns for tick in scene.taken),
            passing_ns=total(by_category(scene.breakdown, view.idle_shown, filtered_shown=False).values()).total_ns,
            idle_passing_ns=0 if view.idle_shown else _idle(scene.breakdown.categories).total_ns,
            ticks=ticks,
            threads_of=scene.threads_of,
            lost=_added(tick.header.lost for tick in ticks),
            calls=calls_over(tick.header for tick in ticks),
            sampling=scene.sampling,
            thinned_ns=sum(tick.header.cost.thinned.waits_ns for tick in ticks),
            switches_per_s=_per_second([tick for tick in recent if tick.header.cost.switches >= 0]),
            catalog=newest.header.catalog,
            categories=categories,
            sparks=_sparks(scene.minute, room, newest.at_ns, view, filter_cache, [row.key for row in categories.rows]),
            rows=listed.rows,
            cursor_row=listed.cursor,
            first_row=listed.first,
            tree=tree,
            places=places,
            stuck=self._stuck_list.of(scene.chosen_stuck, view, room.stuck, newest.header.catalog),
            outliers=self._outliers.of(newest.at_ns, view.outliers.cursor, room.stuck),
            account=account,
            account_lines=account_lines,
            unexplained_pct=self._seconds.unexplained_pct(newest),
            gathered=scene.gathered,
            oldest=max(shown_ages.values(), default=NO_AGE),
            flame=flame,
            diagnosis=self._cause_finder.rules_of(sites, scene.catalog),
            sites=sites,
            unanswered=self._cause_finder.unanswered,
            flame_span_ns=self._flame_root[2] if flame and self._flame_root else 0,
            flame_before=_before_of_boxes(flame, comparison),
            uncompared=comparison.why_uncompared if comparison else "",
            caveat=comparison.caveat if comparison else "",
            latency=total(_in(scene.chosen, view.category, view.idle_shown, view.scope.blocked)),
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
        filter_cache = self._scenes.filter_cache(view, picture.newest)
        return whole.window, filter_cache.of_branch(filter_cache.shares(whole).in_scope(view.scope), whole)

    def _all_of_selection(self, scene: Scene) -> Parts:
        """Return the time of the selected program, process or thread by leaf, without filters and mutes."""
        view, of_view = scene.view, scene.filter_cache.selection
        own = (of_pool(view.pool),) if view.pool else (of_program(view.program),) if view.program else ()
        selection = of_view._replace(filters=own, muted=(), path=())
        is_whole = view.subject_ids[0] is None and view.program is None
        if is_whole or selection == of_view:
            return scene.chosen
        if self._unfiltered is None or self._unfiltered.selection != selection:
            self._unfiltered = FilterCache(selection, self._cause_finder)
        self._unfiltered.forget(self._history.oldest, scene.ticks[0])
        return sums_of(self._unfiltered.chosen(tick) for tick in scene.added)

    def _stacks(self, view: View, room: Room, scene: Scene) -> tuple[View, TreePicture | None, Ranking, Icicle | None]:
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
        catalog, span_ns = scene.catalog, scene.span_ns
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
            now = _ages_of_paths(scene.chosen_stuck, view.scope, path_of, places_of)
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


def _per_second(ticks: Sequence[HistoryTick]) -> float:
    span_ns = sum(tick.span_ns for tick in ticks)
    return sum(tick.header.cost.switches for tick in ticks) * NS_PER_S / span_ns if span_ns else -1.0


def _added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Sum up by kind."""
    sums: Counter[str] = Counter()
    for some in counts:
        sums.update(some)
    return dict(sums)
