"""Picture: everything the screen shows of a History in a View, as numbers and names, with a model for each pane."""

from dataclasses import dataclass

from offtop.model.aggregate.place_shares import PlaceNames
from offtop.model.aggregate.rows import Ranking
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import WITHOUT_RULES, RuleSource
from offtop.model.values.outlier import NO_OUTLIERS, Outliers
from offtop.model.values.stack import Names
from offtop.model.viewmodel.category_picture import CategoriesPicture, categories_picture
from offtop.model.viewmodel.cause_picture import CausesPicture, causes_picture, selected_sites
from offtop.model.viewmodel.common import Common, common_of
from offtop.model.viewmodel.flame_picture import FlamePicture, FlamePictures
from offtop.model.viewmodel.head_picture import HeadPicture, head_picture
from offtop.model.viewmodel.io_comparison import IoComparison
from offtop.model.viewmodel.io_heat import IoHeats
from offtop.model.viewmodel.io_list import DisksPicture, FilesPicture, disks_picture, files_picture
from offtop.model.viewmodel.listing import Listing, ListPicture
from offtop.model.viewmodel.outlier_list import OutlierList, OutliersPicture
from offtop.model.viewmodel.room import Room
from offtop.model.viewmodel.scene import Scenes
from offtop.model.viewmodel.seconds import AccountPicture, Seconds
from offtop.model.viewmodel.site_places import SitePlaces
from offtop.model.viewmodel.stack_table import StackTables
from offtop.model.viewmodel.stuck_list import StuckList, StuckPicture
from offtop.model.viewmodel.timeline import timeline_and_heat
from offtop.model.viewmodel.tree_picture import TreePicture, tree_picture
from offtop.model.viewmodel.view import FILES, View
from offtop.model.windows.breakdown import Shares
from offtop.model.windows.heat import Heat
from offtop.model.windows.history import History, HistoryTick
from offtop.model.windows.rolling import Sums
from offtop.model.windows.window import Window, merge


@dataclass(frozen=True, slots=True)
class Picture:
    """The models of tree, icicle and heat map are None if there is no room for the pane, or nothing to show in it."""

    common: Common
    head: HeadPicture
    causes: CausesPicture
    account: AccountPicture | None
    """Of the selected program, process, pool or thread."""
    categories: CategoriesPicture
    listed: ListPicture
    tree: TreePicture | None
    flame: FlamePicture | None
    places: Ranking
    """Complete stacks through the chosen branch."""
    heat: Heat | None
    stuck: StuckPicture
    outliers: OutliersPicture
    files: FilesPicture
    disks: DisksPicture


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
        self._history, self._names = history, names
        self._cause_finder = CauseFinder(names, rules)
        place_names = PlaceNames(self._cause_finder)
        self._scenes = Scenes(history, self._cause_finder, rules, goes_on=goes_on)
        self._sums = Sums(history)
        self._seconds = Seconds(history, self._cause_finder)
        self._listing = Listing(self._sums, self._seconds, self._cause_finder, place_names)
        self._stack_tables = StackTables(self._sums, names)
        self._flames = FlamePictures()
        self._site_places = SitePlaces(self._sums, self._cause_finder)
        self._stuck_list = StuckList(self._cause_finder, place_names)
        self._outlier_list = OutlierList(outliers)
        self._io_heats, self._io_comparison = IoHeats(history), IoComparison()

    def of(self, view: View, room: Room) -> Picture | None:
        """Return the picture; None while there is no tick yet."""
        scene = self._scenes.of(view)
        if scene is None:
            return None
        account = self._seconds.of_selection(scene)
        sites = selected_sites(scene, self._sums)
        listed = self._listing.of(scene, room.rows, account, self._outlier_list.marked(scene.newest.at_ns), sites)
        tree, flame, places = None, None, Ranking()
        if scene.gathered and (room.tree or room.site or room.flame[0]):
            table = self._stack_tables.of(scene)
            if room.tree:
                made = self._stack_tables.tree(scene, table)
                view, tree = tree_picture(scene, table, made, room.tree, account)
            if room.flame[0]:
                flame = self._flames.of(scene, table, self._stack_tables.tree(scene, table), room.flame)
            if room.site:
                places = self._site_places.of(scene, table, sites, room.site)
        view, files = files_picture(scene._replace(view=view), self._history, room, self._names, self._io_comparison)
        view, disks = disks_picture(scene._replace(view=view), self._history, room, self._names, self._io_comparison)
        timeline, heat = timeline_and_heat(self._history, scene, room)
        if view.has_io_heat:
            heat = self._io_heats.of(scene, room, (files if view.focus == FILES else disks).opened_key)
        categories = categories_picture(scene, room)
        top_category = next(iter(categories.ranking.rows), None)
        outliers = self._outlier_list.of(view.outliers.cursor, room.stuck, view.outliers.line)
        return Picture(
            common=common_of(scene, view),
            head=head_picture(scene, self._history, self._seconds, timeline, outliers.groups, top_category),
            causes=causes_picture(scene, self._sums, sites, self._cause_finder),
            account=account,
            categories=categories,
            listed=listed,
            tree=tree,
            flame=flame,
            places=places,
            heat=heat,
            stuck=self._stuck_list.of(scene.chosen_stuck, view, room.stuck, scene.newest.header.catalog),
            outliers=outliers,
            files=files,
            disks=disks,
        )

    def selected(self, picture: Picture) -> tuple[Window, Shares]:
        """Return everything the picture covers as one window, and the selection's part of it."""
        common, view = picture.common, picture.common.view
        whole = HistoryTick.of(merge([tick.window for tick in common.ticks]), common.newest.idle)
        filter_cache = self._scenes.filter_cache(view, common.newest)
        return whole.window, filter_cache.of_branch(filter_cache.shares(whole).in_scope(view.scope), whole)
