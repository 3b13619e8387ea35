"""Picture: everything the screen shows of a History in a View, as numbers and names."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from offtop.model.aggregate import icicle as icicles
from offtop.model.aggregate import tree as trees
from offtop.model.aggregate.baseline_rows import BaselineRow
from offtop.model.aggregate.icicle import Icicle
from offtop.model.aggregate.place_shares import PlaceNames
from offtop.model.aggregate.rows import Ranking, Row, place_rows
from offtop.model.aggregate.steps import NO_FRAMES, Path, Shape, Steps, passes
from offtop.model.aggregate.tree import NO_NAMELESS, Branch, Nameless, Node
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import WITHOUT_RULES, RuleSource
from offtop.model.values.catalog import Catalog, SiteKey
from offtop.model.values.outlier import NO_OUTLIERS, Outliers
from offtop.model.values.stack import NO_STACK, QUEUED, Names
from offtop.model.values.table import Ints
from offtop.model.values.wake import NO_WAKE, WAKEUP
from offtop.model.viewmodel import panes
from offtop.model.viewmodel.category_picture import CategoriesPicture, categories_picture
from offtop.model.viewmodel.cause_picture import CausesPicture, causes_picture, selected_sites
from offtop.model.viewmodel.common import Common, common_of
from offtop.model.viewmodel.comparison import Comparison, Trees
from offtop.model.viewmodel.head_picture import HeadPicture, head_picture
from offtop.model.viewmodel.listing import Listing, ListPicture
from offtop.model.viewmodel.outlier_list import OutlierList, OutliersPicture
from offtop.model.viewmodel.room import Room
from offtop.model.viewmodel.scene import Scene, Scenes
from offtop.model.viewmodel.seconds import AccountPicture, Seconds
from offtop.model.viewmodel.stuck_list import StuckList, StuckPicture
from offtop.model.viewmodel.timeline import timeline_and_heat
from offtop.model.viewmodel.view import View
from offtop.model.windows import stuck
from offtop.model.windows.breakdown import (
    NO_PART,
    RUN_QUEUE,
    Added,
    Leaf,
    Place,
    Scope,
    Shares,
    by_place,
)
from offtop.model.windows.heat import Heat
from offtop.model.windows.history import History, HistoryTick
from offtop.model.windows.rolling import Sums
from offtop.model.windows.stuck import Age, Stuck
from offtop.model.windows.window import Window, merge
from offtop.units import NS_PER_S

_FLAME_NS = 2 * NS_PER_S
"""Minimum time between two updates of the icicle, while live."""
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
    common: Common
    head: HeadPicture
    causes: CausesPicture
    categories: CategoriesPicture
    listed: ListPicture
    tree: TreePicture | None
    places: Ranking
    """Complete stacks through the chosen branch."""
    stuck: StuckPicture
    outliers: OutliersPicture
    account: AccountPicture | None
    """Of the selected program, process, pool or thread."""
    flame: Icicle | None
    flame_span_ns: int
    """Span of the icicle, which may be older than the rest."""
    flame_before: Mapping[Path, BaselineRow]
    """Baseline values of its boxes."""
    heat: Heat | None


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
        self._seconds = Seconds(history, self._cause_finder)
        place_names = PlaceNames(self._cause_finder)
        self._listing = Listing(history, self._sums, self._seconds, self._cause_finder, place_names)
        self._stuck_list = StuckList(self._cause_finder, place_names)
        self._root: tuple[object, Node, Nameless] | None = None
        self._steps: tuple[object, Steps] | None = None
        self._flame_root: tuple[object, Node, int] | None = None

    def of(self, view: View, room: Room) -> Picture | None:
        """Return the picture; None while there is no tick yet."""
        scene = self._scenes.of(view)
        if scene is None:
            return None
        account = self._seconds.of_selection(scene)
        sites = selected_sites(scene, self._sums)
        listed = self._listing.of(scene, room.rows, account, self._outliers.marked(scene.newest.at_ns), sites)
        tree, places, flame = None, Ranking(), None
        if scene.gathered:
            view, tree, places, flame = self._stacks(view, room, scene)
        timeline, heat = timeline_and_heat(self._history, scene, room)
        categories = categories_picture(scene, room)
        top_category = next(iter(categories.ranking.rows), None)
        outliers = self._outliers.of(view.outliers.cursor, room.stuck)
        return Picture(
            common=common_of(scene, view),
            head=head_picture(scene, self._history, self._seconds, timeline, outliers.groups, top_category),
            causes=causes_picture(scene, sites, self._cause_finder),
            categories=categories,
            listed=listed,
            tree=tree,
            places=places,
            stuck=self._stuck_list.of(scene.chosen_stuck, view, room.stuck, scene.newest.header.catalog),
            outliers=outliers,
            account=account,
            flame=flame,
            flame_span_ns=self._flame_root[2] if flame and self._flame_root else 0,
            flame_before=_before_of_boxes(flame, scene.comparison),
            heat=heat,
        )

    def selected(self, picture: Picture) -> tuple[Window, Shares]:
        """Return everything the picture covers as one window, and the selection's part of it."""
        common, view = picture.common, picture.common.view
        whole = HistoryTick.of(merge([tick.window for tick in common.ticks]), common.newest.idle)
        filter_cache = self._scenes.filter_cache(view, common.newest)
        return whole.window, filter_cache.of_branch(filter_cache.shares(whole).in_scope(view.scope), whole)

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
        for site, (_, ns, _, _) in selected_sites(scene, self._sums).items():
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
