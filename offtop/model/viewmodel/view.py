"""View: what the user chose to look at. Each key makes the next View from it.

drilling.py has the keys of the list, panes.py those of other panes, and view_changes.py those of the whole screen.
"""

from dataclasses import dataclass, field, replace
from types import MappingProxyType

from offtop.model.aggregate.budget import Rate
from offtop.model.aggregate.disk_rows import DISK_SORTS
from offtop.model.aggregate.file_rows import FILE_SORTS
from offtop.model.aggregate.filter import NOTHING, Filter
from offtop.model.aggregate.pool import Pool
from offtop.model.aggregate.program import Program
from offtop.model.aggregate.rows import ACCOUNT_SORTS, CHANGE, SORTS, WAITING, Key
from offtop.model.aggregate.steps import Path, Shape
from offtop.model.aggregate.waker_rows import WakerKey
from offtop.model.classify.causes import Reason
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.disks import DISK, DiskKey
from offtop.model.values.files import FILE, FileKey
from offtop.model.values.snapshot import OUTSIDE, Filters
from offtop.model.values.wake import DEFAULT_DEPTH, OFFCPU, WAKEUP, Object
from offtop.model.viewmodel.alike import Alike
from offtop.model.viewmodel.outlier_list import Which
from offtop.model.windows.baseline import Baseline
from offtop.model.windows.breakdown import ALL, Scope
from offtop.units import NS_PER_S

SINCE_START = 0
SPANS_NS = (NS_PER_S, 10 * NS_PER_S, 60 * NS_PER_S, SINCE_START)
"""Spans of the numbers; `w` steps through them."""
SHORTEST_DELAY_NS, LONGEST_DELAY_NS = NS_PER_S // 10, 60 * NS_PER_S

CATEGORIES, LIST, TREE, SITE, LATENCY, FLAME = "categories", "list", "tree", "site", "latency", "flame"
STUCK, OUTLIERS, FILES, DISKS = "stuck", "outliers", "files", "disks"
"""Panes that can have the focus."""
WHOLE_SCREEN = (FLAME, STUCK, OUTLIERS, FILES, DISKS)
"""Panes that take the whole screen."""
MODE_OF_LIST = MappingProxyType({FILES: FILE, DISKS: DISK})
"""Panes whose list is not about waits → their mode: what is counted only while it is needed."""
AUTO, HISTOGRAM, HEATMAP, OFF = "auto", "histogram", "heatmap", "off"
"""What the latency pane shows; AUTO: the histogram if there is room beside the categories."""
LATENCIES = (AUTO, HISTOGRAM, HEATMAP, OFF)
NAMES = ("comm", "cmdline", "cgroup")
"""What processes are called; `c` steps through them."""


@dataclass(frozen=True, slots=True)
class TreeView:
    """The stack tree. Open branches are kept by path, while numbers and lines change."""

    shape: Shape = Shape()
    opened: frozenset[Path] = frozenset()
    closed: frozenset[Path] = frozenset()
    """Closed by the user: they do not open by themselves, however large they get."""
    cursor: Path = ()
    line: int = 0
    """Line of the pane that the cursor stays on while the tree moves."""


@dataclass(frozen=True, slots=True)
class FlameView:
    """The icicle."""

    zoom: Path = ()
    cursor: Path = ()


@dataclass(frozen=True, slots=True)
class StuckView:
    """The waits in progress."""

    cursor: ThreadKey | None = None
    """Thread under the cursor; None: that of the oldest wait."""
    line: int | None = None
    """As View.line."""
    opened: bool = False
    """Whether its wait has the whole pane."""
    scrolled: int = 0
    """Lines of that wait above the screen."""
    alike: Alike | None = None
    """The waits that are listed one by one; None: those that look alike are one row."""


@dataclass(frozen=True, slots=True)
class OutliersView:
    """The outliers."""

    cursor: Which | None = None
    """Group under the cursor, or last opened; None: the newest."""
    line: int | None = None
    """As View.line."""
    opened: bool = False
    """Whether it has the whole pane."""
    scrolled: int = 0
    """Lines of it above the screen."""


@dataclass(frozen=True, slots=True)
class IoListView:
    """What the lists of file operations and of requests to disks have in common."""

    line: int | None = None
    """As View.line."""
    reverse: bool = False
    opened: bool = False
    """Whether the row under the cursor has the whole pane, with its stacks."""
    tree: bool = False
    """Whether the pane shows the stack tree: of the opened row, or of all rows."""
    heat: bool = False
    """Whether the pane shows the heat map: of the opened row, or of all rows."""
    scrolled: int = 0
    """Lines of the opened row above the screen."""
    near: tuple[str, str] | None = None
    """What an outlier did, and its program, if known (raw): until the cursor is moved it is at the slowest such row."""


@dataclass(frozen=True, slots=True)
class FilesView(IoListView):
    """The list of file operations."""

    cursor: FileKey | None = None
    """Row under the cursor; None: see `near`, otherwise the first."""
    sort: str = FILE_SORTS.default
    """One of FILE_SORTS.columns."""


@dataclass(frozen=True, slots=True)
class DisksView(IoListView):
    """The list of requests to disks."""

    cursor: DiskKey | None = None
    """Row under the cursor; None: see `near` and `near_pid`."""
    near_pid: int = 0
    """The cursor is at the first row of this process until it is moved; at the first row of all if there is none."""
    sort: str = DISK_SORTS.default
    """One of DISK_SORTS.columns."""
    by_thread: bool = False
    """List threads instead of processes."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of the heat map."""

    end_ns: int
    """CLOCK_MONOTONIC of the end of its column."""
    row: int
    """Counted from the shortest waits."""


@dataclass(frozen=True, slots=True)
class View:
    filters: Filters = Filters()  # immutable, as all values are
    """What the BPF programs count, without narrowing to the pin."""
    delay_ns: int = NS_PER_S
    mode: str = OFFCPU
    """One of wake.MODES."""
    depth: int = DEFAULT_DEPTH
    """Maximum number of wakers in a chain."""
    span_ns: int = 10 * NS_PER_S
    """One of SPANS_NS."""
    category: str = ALL
    """Category under the cursor; the other panes show it."""
    category_line: int | None = None
    """As `line`, of the categories."""
    program: Program | None = None
    """Selected program; all panes show its processes."""
    pid: int | None = None
    """Selected process."""
    pool: Pool | None = None
    """Selected pool; all panes show its threads."""
    thread: ThreadKey | None = None
    """Selected thread."""
    wakers: tuple[WakerKey, ...] = ()
    """Selected waking process, and one of its threads. All panes show the waits that the last one ended."""
    object: Object | None = None
    """Selected object; all panes show waits on it."""
    objects: bool = False
    """Whether the list shows objects waited on, if they are gathered."""
    reason: Reason | None = None
    """Selected cause; all panes show waits with it."""
    reasons: bool = False
    """Whether the list shows causes."""
    way: tuple[str, ...] = ()
    """Names of the fields above in the order in which they were selected; some may be unselected by now."""
    path: Path = ()
    """Selected branch of the tree."""
    focus: str = CATEGORIES
    """Pane that has the focus."""
    came_from: str = CATEGORIES
    """Pane that had the focus before one that takes the whole screen."""
    cursor: Key | None = None
    """Row of the list under the cursor; None: the first."""
    line: int | None = None
    """Line of the list on which the row under the cursor stays, because it was clicked there; None: in the middle."""
    threads: bool = False
    """Whether the list shows threads even if no process is selected."""
    unfolded: bool = False
    """Whether threads of pools are listed one by one."""
    programs: bool = True
    """Whether the processes of a program are one row."""
    rate: Rate | None = None
    """Request rate given by the user."""
    rate_pid: int | None = None
    """Process that it belongs to; None: whichever is selected."""
    account: bool = False
    """Whether the list shows accounts instead of wait times."""
    cgroups: bool = False
    """Whether the list shows containers, units and other cgroups."""
    group: tuple[str, Filter] | None = None
    """Selected cgroup, and the filter before that."""
    sort: str = "WAITING"
    """One of rows.SORTS."""
    account_sort: str = ACCOUNT_SORTS[0]
    """One of rows.ACCOUNT_SORTS: for the list while it shows accounts."""
    reverse: bool = False
    idle_shown: bool = False
    pin: str | int | Program | ThreadKey | None = None
    """Cgroup path, pid, program or thread that stays on top."""
    narrowed: bool = False
    """Whether only the pin is counted in the kernel."""
    paused_at_ns: int | None = None
    """CLOCK_MONOTONIC of the last tick shown; None while live."""
    tree: TreeView = field(default_factory=TreeView)
    flame: FlameView = field(default_factory=FlameView)
    stuck: StuckView = field(default_factory=StuckView)
    outliers: OutliersView = field(default_factory=OutliersView)
    files: FilesView = field(default_factory=FilesView)
    disks: DisksView = field(default_factory=DisksView)
    triggers: tuple[str, ...] = ()
    """Triggers of outliers; empty in a recording."""
    latency: str = AUTO
    cell: Cell | None = None
    """Selected cell of the heat map; None: in the latest column."""
    zoomed: bool = False
    """Whether the focused pane has the whole screen."""
    names: str = NAMES[0]
    filter: Filter = NOTHING
    """Only waits and rows that pass it are shown."""
    user: str = ""
    """Only processes of this user are shown; empty: all."""
    found: str = ""
    """The search that became the filter."""
    search: str = ""
    """Lines that contain this are marked."""
    muted: tuple[Filter, ...] = ()
    """Filters for waits that the user has muted: in no table, but counted in the header."""
    hidden: frozenset[str] = frozenset()
    """Columns and panes that are not shown, by title."""
    scrolled: int = 0
    """Lines of the site pane above the screen."""
    baseline: Baseline | None = None
    """What the user marked as normal."""
    diff: bool = False
    """Whether everything shown is compared with the baseline."""

    @property
    def is_searched(self) -> bool:
        """Whether `n` searches the focused pane: what it searches for may be in any row."""
        return bool(self.search or self.found)

    @property
    def io_list(self) -> FilesView | DisksView | None:
        """The list of file operations or of requests to disks that has the focus."""
        return self.files if self.focus == FILES else self.disks if self.focus == DISKS else None

    @property
    def has_io_tree(self) -> bool:
        """Whether the focused pane shows the stack tree of file operations or of requests to disks."""
        return self.io_list is not None and self.io_list.tree

    @property
    def has_io_heat(self) -> bool:
        """Whether the focused pane shows the heat map of file operations or of requests to disks."""
        return self.io_list is not None and self.io_list.heat

    @property
    def compared(self) -> Baseline | None:
        """Baseline to compare with, if comparison is on."""
        return self.baseline if self.diff else None

    @property
    def scope(self) -> Scope:
        """Which waits the list covers."""
        blocked = self.mode != OFFCPU
        if self.thread is not None:
            return Scope(self.category, self.thread.pid, self.thread.tid, self.idle_shown, blocked)
        return Scope(self.category, self.pid, None, self.idle_shown, blocked)

    @property
    def subject_ids(self) -> tuple[int | None, int | None]:
        """pid and tid of the selection."""
        if self.thread is not None:
            return self.thread.pid, self.thread.tid
        return (self.pool.pid if self.pool is not None else self.pid), None

    def rate_of(self, pid: int) -> Rate | None:
        return self.rate if self.rate_pid in (None, pid) else None

    @property
    def waker(self) -> WakerKey | None:
        return self.wakers[-1] if self.wakers else None

    @property
    def selects_by_filter(self) -> bool:
        """Whether a filter of its own chooses the waits of the selection, of those that pass the user's filter."""
        return bool(self.program or self.pool or self.wakers or self.object or self.reason)

    @property
    def drilled(self) -> str:
        """Which of these was selected last and still is; empty: none."""
        those = {
            "program": self.program is not None,
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
        """Whether the selected waker leads to its tree, since there is no list of its threads."""
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
        """Whether wakers are listed by thread."""
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
    def lists_processes(self) -> bool:
        return self.lists_sleepers and not (self.lists_threads or self.lists_cgroups)

    @property
    def lists_programs(self) -> bool:
        """Whether programs of several processes are one row of the list."""
        return self.programs and self.program is None and self.lists_processes

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
        """What the list is sorted by."""
        return self.account_sort if self.lists_account else self.table_sort

    @property
    def table_sort(self) -> str:
        """What the categories are sorted by."""
        return WAITING if self.sort == CHANGE and not self.compared else self.sort

    @property
    def measured_filters(self) -> Filters:
        """What the kernel should count."""
        if not self.narrowed or self.pin is None or isinstance(self.pin, Program):
            return self.filters
        if isinstance(self.pin, str):
            return replace(self.filters, cgroup=self.pin)
        if isinstance(self.pin, ThreadKey):
            if self.pin.pid == OUTSIDE:  # its tids may belong to other threads here
                return replace(self.filters, pids=(OUTSIDE,), tids=())
            return replace(self.filters, pids=(), tids=(self.pin.tid,))
        return replace(self.filters, pids=(self.pin,), tids=())
