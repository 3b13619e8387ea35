"""A View is what the person chose to look at; each key makes the next one from it.

What keys do to the list is in drilling.py, and within a pane in panes.py; here is what they have in common, and what is
chosen for all of the screen.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from offtop.model.baseline import Baseline
from offtop.model.book import ThreadKey
from offtop.model.budget import Rate
from offtop.model.cut import ALL, Scope
from offtop.model.diagnosis import Reason
from offtop.model.filter import NOTHING, Filter, exactly
from offtop.model.outlierview import Which
from offtop.model.pool import Pool
from offtop.model.rows import ACCOUNT_SORTS, CHANGE, NO_CGROUP, SORTS, WAITING, Key
from offtop.model.snapshot import OUTSIDE, Filters
from offtop.model.steps import Path, Shape
from offtop.model.wake import DEFAULT_DEPTH, OFFCPU, WAKEUP, Object
from offtop.model.waking import WakerKey
from offtop.units import NS_PER_S

SINCE_START = 0
SPANS_NS = (NS_PER_S, 10 * NS_PER_S, 60 * NS_PER_S, SINCE_START)
"""What the numbers are over; `w` steps through them."""
SHORTEST_DELAY_NS, LONGEST_DELAY_NS = NS_PER_S // 10, 60 * NS_PER_S

CATEGORIES, LIST, TREE, SITE, LATENCY, FLAME = "categories", "list", "tree", "site", "latency", "flame"
STUCK, OUTLIERS = "stuck", "outliers"
"""The panes that the keys can be in."""
WHOLE_SCREEN = (FLAME, STUCK, OUTLIERS)
"""Those of them that have it by themselves."""
AUTO, HISTOGRAM, HEATMAP, OFF = "auto", "histogram", "heatmap", "off"
"""What the latency pane shows; AUTO: the histogram where there is room beside the categories."""
LATENCIES = (AUTO, HISTOGRAM, HEATMAP, OFF)
NAMES = ("comm", "cmdline", "cgroup")
"""What a process is called by; `c` steps through them."""


@dataclass(frozen=True, slots=True)
class TreeView:
    """The stack tree. What is open is kept by path, while numbers and lines change."""

    shape: Shape = Shape()
    opened: frozenset[Path] = frozenset()
    closed: frozenset[Path] = frozenset()
    """By hand: these do not open by themselves, however large they grow."""
    cursor: Path = ()
    line: int = 0
    """On which line of the pane the cursor stands: there it stays, and the tree moves around it."""


@dataclass(frozen=True, slots=True)
class FlameView:
    """The icicle."""

    zoom: Path = ()
    cursor: Path = ()


@dataclass(frozen=True, slots=True)
class StuckView:
    """What is stuck now."""

    cursor: ThreadKey | None = None
    """The thread that the keys are on; None: that of the oldest wait."""
    opened: bool = False
    """Whether its wait has the whole pane."""
    scrolled: int = 0
    """Lines of that wait above the screen."""


@dataclass(frozen=True, slots=True)
class OutliersView:
    """What was caught."""

    cursor: Which | None = None
    """The group that the keys are on, or that was gone to last; None: the newest."""
    opened: bool = False
    """Whether it has the whole pane."""
    scrolled: int = 0
    """Lines of it above the screen."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of the heat map."""

    end_ns: int
    """CLOCK_MONOTONIC of the end of its column."""
    row: int
    """Counted upward from the shortest waits."""


@dataclass(frozen=True, slots=True)
class View:
    filters: Filters = Filters()  # frozen, as all values are
    """What the kernel was asked to count, but for narrowing to the pin."""
    delay_ns: int = NS_PER_S
    mode: str = OFFCPU
    """What is shown: one of wake.MODES."""
    depth: int = DEFAULT_DEPTH
    """How many wakers of a chain are asked for."""
    span_ns: int = 10 * NS_PER_S
    """One of SPANS_NS."""
    category: str = ALL
    """The one under the cursor of the categories: the other panes are about it."""
    pid: int | None = None
    """Drilled into."""
    pool: Pool | None = None
    """Drilled into: all panes are about its threads."""
    thread: ThreadKey | None = None
    """Drilled into."""
    wakers: tuple[WakerKey, ...] = ()
    """Drilled into: a process that wakes, and one of its threads. All panes are about the waits that the last ended."""
    object: Object | None = None
    """Drilled into: all panes are about waits on that."""
    objects: bool = False
    """Whether the list shows what is waited on instead, where that is gathered."""
    reason: Reason | None = None
    """Drilled into: all panes are about waits for that, as rules name it."""
    reasons: bool = False
    """Whether the list shows what is waited for instead, as rules name it."""
    way: tuple[str, ...] = ()
    """In which order these were drilled into, some of which may be left by now."""
    path: Path = ()
    """The branch of the tree that was drilled into."""
    focus: str = CATEGORIES
    """The pane that the keys are in."""
    came_from: str = CATEGORIES
    """The pane that the keys were in before the icicle, or before what is stuck."""
    cursor: Key | None = None
    """The row of the list that the keys are on; None: the first."""
    threads: bool = False
    """Whether the list shows threads even where no process was drilled into."""
    unfolded: bool = False
    """Whether threads of pools stand each for themselves."""
    rate: Rate | None = None
    """Requests of a process, as the person says."""
    rate_pid: int | None = None
    """Of which one; None: of whichever is looked at."""
    account: bool = False
    """Whether the list tells where the seconds went, instead of how long waits were."""
    cgroups: bool = False
    """Whether the list shows containers, units and other cgroups instead."""
    group: tuple[str, Filter] | None = None
    """The cgroup that was drilled into, and the filter before that."""
    sort: str = "WAITING"
    """One of rows.SORTS."""
    account_sort: str = ACCOUNT_SORTS[0]
    """One of rows.ACCOUNT_SORTS: of the list while it tells where the seconds went."""
    reverse: bool = False
    idle_shown: bool = False
    pin: str | int | ThreadKey | None = None
    """A cgroup's path, a pid or a thread that stays on top."""
    narrowed: bool = False
    """Whether the kernel counts only the pin."""
    paused_at_ns: int | None = None
    """CLOCK_MONOTONIC of the last tick that is shown; None while live."""
    tree: TreeView = field(default_factory=TreeView)
    flame: FlameView = field(default_factory=FlameView)
    stuck: StuckView = field(default_factory=StuckView)
    outliers: OutliersView = field(default_factory=OutliersView)
    triggers: tuple[str, ...] = ()
    """What is caught; none where it was recorded."""
    latency: str = AUTO
    cell: Cell | None = None
    """The chosen cell of the heat map; None: the latest column's."""
    zoomed: bool = False
    """Whether the pane that the keys are in has the whole screen."""
    names: str = NAMES[0]
    filter: Filter = NOTHING
    """Only waits and rows that it keeps are shown."""
    user: str = ""
    """Only processes of this user are shown; empty: of all."""
    found: str = ""
    """The word that was searched, and kept as the filter."""
    search: str = ""
    """Lines that hold this are marked."""
    muted: tuple[Filter, ...] = ()
    """What the person chose not to see: in no table, but accounted for in the head."""
    hidden: frozenset[str] = frozenset()
    """Columns and panes that are not shown, by their titles."""
    scrolled: int = 0
    """Lines of the pane of the site above the screen."""
    baseline: Baseline | None = None
    """What is normal, as the person says."""
    diff: bool = False
    """Whether all that is shown is compared with that."""

    @property
    def compared(self) -> Baseline | None:
        """What all that is shown is compared with."""
        return self.baseline if self.diff else None

    @property
    def scope(self) -> Scope:
        """Which waits the list is about."""
        blocked = self.mode != OFFCPU
        if self.thread is not None:
            return Scope(self.category, self.thread.pid, self.thread.tid, self.idle_shown, blocked)
        return Scope(self.category, self.pid, None, self.idle_shown, blocked)

    @property
    def subject_ids(self) -> tuple[int | None, int | None]:
        """pid and tid of what was drilled into."""
        if self.thread is not None:
            return self.thread.pid, self.thread.tid
        return (self.pool.pid if self.pool is not None else self.pid), None

    def rate_of(self, pid: int) -> Rate | None:
        return self.rate if self.rate_pid in (None, pid) else None

    @property
    def waker(self) -> WakerKey | None:
        return self.wakers[-1] if self.wakers else None

    @property
    def drilled(self) -> str:
        """Which of these was drilled into last, and not left since; empty: none."""
        those = {
            "pid": self.pid is not None,
            "pool": self.pool is not None,
            "object": self.object is not None,
            "reason": self.reason is not None,
            "wakers": bool(self.wakers),
            "thread": self.thread is not None,
        }
        known = [name for name in those if name not in self.way]
        return next((name for name in reversed((*known, *self.way)) if those[name]), "")

    @property
    def is_at_waker(self) -> bool:
        """Whether a waker was drilled into that leads to its tree: there is no list of its threads."""
        waker = self.waker
        return self.mode == WAKEUP and waker is not None and bool(waker.tid or not waker.pid)

    @property
    def lists_objects(self) -> bool:
        return self.objects and self.object is None and not self.lists_reasons

    @property
    def lists_reasons(self) -> bool:
        return self.reasons and self.reason is None

    @property
    def lists_wakers(self) -> bool:
        return self.mode == WAKEUP and not (self.lists_objects or self.lists_reasons)

    @property
    def lists_waking_threads(self) -> bool:
        """Whether wakers are listed thread by thread."""
        return self.threads or bool(self.wakers)

    @property
    def lists_sleepers(self) -> bool:
        return not (self.lists_wakers or self.lists_objects or self.lists_reasons)

    @property
    def lists_threads(self) -> bool:
        return self.lists_sleepers and (self.pid is not None or (self.threads and not self.cgroups))

    @property
    def lists_cgroups(self) -> bool:
        return self.lists_sleepers and self.cgroups and self.pid is None

    @property
    def lists_account(self) -> bool:
        return self.account and self.lists_sleepers

    @property
    def sorts(self) -> tuple[str, ...]:
        """What the list can be sorted by."""
        if self.lists_account:
            return ACCOUNT_SORTS
        return SORTS if self.compared else tuple(sort for sort in SORTS if sort != CHANGE)

    @property
    def list_sort(self) -> str:
        """What it is sorted by."""
        return self.account_sort if self.lists_account else self.table_sort

    @property
    def table_sort(self) -> str:
        """What the categories are sorted by."""
        return WAITING if self.sort == CHANGE and not self.compared else self.sort

    @property
    def asked(self) -> Filters:
        """What the kernel is to count."""
        if not self.narrowed or self.pin is None:
            return self.filters
        if isinstance(self.pin, str):
            return replace(self.filters, cgroup=self.pin)
        if isinstance(self.pin, ThreadKey):
            if self.pin.pid == OUTSIDE:  # whose tids may be others' tids
                return replace(self.filters, pids=(OUTSIDE,), tids=())
            return replace(self.filters, pids=(), tids=(self.pin.tid,))
        return replace(self.filters, pids=(self.pin,), tids=())


def about(view: View, **changes: object) -> View:
    """Another selection: what was opened and chosen in the old one is forgotten."""
    return replace(
        view,
        **{  # pyright: ignore[reportArgumentType]  # fields of View, as the callers below give them
            "tree": TreeView(view.tree.shape),
            "flame": FlameView(),
            "cell": None,
            "path": (),
            "scrolled": 0,
            "focus": TREE if view.focus == SITE else view.focus,
            **changes,
        },
    )


def into(view: View, what: str, **changes: object) -> View:
    """One level down, into `what` of View.way."""
    return about(view, way=(*way_without(view, what), what), **changes)


def out_of(view: View, what: str, **changes: object) -> View:
    """Up again."""
    return about(view, way=way_without(view, what), **changes)


def way_without(view: View, what: str) -> tuple[str, ...]:
    """How `view` came to where it is, but for that."""
    return tuple(name for name in view.way if name != what)


def out_of_waker(view: View) -> View:
    """From a thread to the wakers of its process, from these to all."""
    if view.mode != WAKEUP:
        return out_of(view, "wakers", wakers=(), focus=LIST)
    above = view.wakers[:-1]
    way = view.way if above else way_without(view, "wakers")
    return about(view, wakers=above, cursor=view.waker, focus=LIST, way=way)


def next_pane(view: View, panes: Iterable[str], step: int) -> View:
    """The keys in the next of `panes`, those that can be seen."""
    every = [*panes]
    index = every.index(view.focus) if view.focus in every else -1
    if every == [view.focus]:
        return replace(in_pane(view, CATEGORIES), zoomed=False)
    return in_pane(view, every[(index + step) % len(every)]) if every else view


def in_pane(view: View, pane: str) -> View:
    """The keys in `pane`."""
    zoomed = view.zoomed and pane not in WHOLE_SCREEN
    if pane == SITE or view.focus != SITE:
        return replace(view, focus=pane, zoomed=zoomed)
    return replace(view, focus=pane, path=(), zoomed=zoomed)


def next_span(view: View) -> View:
    return replace(view, span_ns=SPANS_NS[(SPANS_NS.index(view.span_ns) + 1) % len(SPANS_NS)])


def sorted_by(view: View, sort: str) -> View:
    """Sorted by `sort`, largest first (names and pids upward), and back at the first row; where the list has no such
    column, the categories alone."""
    if sort not in view.sorts:
        return view if sort == CHANGE else replace(view, sort=sort)
    if view.lists_account:
        return replace(view, account_sort=sort, reverse=False, cursor=None)
    return replace(view, sort=sort, reverse=False, cursor=None)


def next_sort(view: View, step: int) -> View:
    return sorted_by(view, view.sorts[(view.sorts.index(view.list_sort) + step) % len(view.sorts)])


def reversed_order(view: View) -> View:
    return replace(view, reverse=not view.reverse)


def idle_or_not(view: View) -> View:
    return replace(view, idle_shown=not view.idle_shown)


def marked(view: View, baseline: Baseline) -> View:
    """That is normal."""
    return replace(view, baseline=baseline)


def compared_or_not(view: View) -> View:
    """With the baseline (there is one), or by itself."""
    return replace(view, diff=not view.diff)


def pinned(view: View, key: str | int | ThreadKey) -> View:
    """`key` pinned; what is pinned already is let go, and what the kernel counts is widened again."""
    return replace(view, pin=None if view.pin == key else key, narrowed=False)


def narrowed_or_widened(view: View) -> View:
    """The kernel counts only the pin, or everything again."""
    return replace(view, narrowed=not view.narrowed and view.pin is not None)


def live(view: View) -> View:
    return replace(view, paused_at_ns=None)


def paused_at(view: View, at_ns: int) -> View:
    """The picture of the tick at `at_ns`, whatever is shown now."""
    return replace(view, paused_at_ns=at_ns)


def with_delay(view: View, delay_ns: int) -> View:
    """Raises ValueError outside 0.1 to 60 s."""
    if not SHORTEST_DELAY_NS <= delay_ns <= LONGEST_DELAY_NS:
        raise ValueError(delay_ns)
    return replace(view, delay_ns=delay_ns)


def with_minimum(view: View, min_ns: int) -> View:
    return replace(view, filters=replace(view.filters, min_ns=min_ns))


def next_names(view: View) -> View:
    return replace(view, names=NAMES[(NAMES.index(view.names) + 1) % len(NAMES)])


def next_latency(view: View, shown: str) -> View:
    """After `shown`, which is what AUTO came to: histogram, heat map, off."""
    after = {HISTOGRAM: HEATMAP, HEATMAP: OFF, OFF: HISTOGRAM}[shown]
    focus = LATENCY if after == HEATMAP else CATEGORIES if view.focus == LATENCY else view.focus
    return in_pane(replace(view, latency=after, cell=None), focus)


def with_latency(view: View, latency: str) -> View:
    return replace(view, latency=latency, focus=CATEGORIES if view.focus == LATENCY else view.focus, cell=None)


def at_cell(view: View, cell: Cell | None) -> View:
    """The cursor of the heat map moved."""
    return in_pane(replace(view, cell=cell), LATENCY)


def searched(view: View, text: str) -> View:
    return replace(view, search=text)


def filtered(view: View, chosen: Filter, found: str = "") -> View:
    """`found`: the word that was searched for it."""
    return about(view, filter=chosen, found=found, search="", cursor=None, group=None)


def in_cgroup(path: str) -> Filter:
    """The filter that keeps what is in a cgroup of the list."""
    return exactly("cgroup", "" if path == NO_CGROUP else path)


def of_user(view: View, user: str) -> View:
    return about(view, user=user, cursor=None)


def muted_or_not(view: View, what: Filter) -> View:
    """`what` muted, or, if it is so already, heard again."""
    if any(one.text == what.text for one in view.muted):
        return replace(view, muted=tuple(one for one in view.muted if one.text != what.text))
    category = ALL if view.focus == CATEGORIES else view.category
    return about(view, muted=(*view.muted, what), category=category, cursor=None)


def shown_or_hidden(view: View, title: str) -> View:
    """A column or pane shown again, or not."""
    return replace(view, hidden=view.hidden ^ {title})
