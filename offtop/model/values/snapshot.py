"""Snapshot: everything measured up to one moment, as totals that only grow.

Waits in progress are part of it: the total as of a snapshot is *finished waits + time so far*. Keys and totals are
NamedTuples, not dataclasses: thousands are made each tick, at a third of the cost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from operator import add
from typing import NamedTuple

from offtop.model.values.blockers import Blocker, Blockers
from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey
from offtop.model.values.disks import DiskActivity
from offtop.model.values.files import FileActivity
from offtop.model.values.outlier import LongWait, Outlier
from offtop.model.values.stack import NO_STACK
from offtop.model.values.state import NEW, letter
from offtop.model.values.wake import OFFCPU, Storm
from offtop.model.values.within import NO_CALLS, Calls
from offtop.units import NS_PER_S

EXITED = ThreadKey(0, 0)
"""Key for the totals of evicted threads and sites (no real thread has tid 0)."""
OUTSIDE = 9_999_999
"""In a container: the pid under which all threads outside of it are counted, by the host's tids. No real one is above
4,194,304 (PID_MAX_LIMIT, include/linux/threads.h)."""
UNNAMED = ThreadKey(9_999_998, 9_999_998)
"""Has the time of threads that ended when the BPF programs had no room for their records: which thread waited is lost,
how long is not."""
UNNAMED_NAME = "[ended, not named]"
UNMEASURED = "seconds"
"""Kind of loss: so many seconds were not measured, because the connection to the host was lost."""
PSEUDO_PIDS = frozenset({OUTSIDE, UNNAMED.pid})
"""They are no processes: /proc has nothing about them."""


class ThreadTotals(NamedTuple):
    """Totals of all waits of one thread. All times in ns; blocked = offcpu_ns - runqueue_ns."""

    waits: int = 0
    """Finished waits."""
    offcpu_ns: int = 0
    runqueue_ns: int = 0
    preempted_ns: int = 0
    """The part of runqueue_ns that comes from preemptions."""
    involuntary: int = 0
    """Finished waits that were preemptions: the thread was still runnable."""
    short_waits: int = 0
    """Waits below the minimum, for which no stack was taken."""
    short_ns: int = 0
    short_runqueue_ns: int = 0
    filtered_ns: int = 0
    """Waits excluded by --max or --state, with their run-queue time."""
    filtered_runqueue_ns: int = 0
    running_ns: int = 0
    """As the kernel counts it (sum_exec_runtime): without the time that hypervisor and interrupts took."""
    max_ns: int = 0
    """The longest wait that ended in the last tick (in a Window: in its span)."""
    histogram: int = 0
    """Of all finished waits."""

    def plus(self, other: "ThreadTotals") -> "ThreadTotals":
        longest_ns = max(self.max_ns, other.max_ns)
        return ThreadTotals(*map(add, self, other))._replace(max_ns=longest_ns)

    @property
    def blocked_ns(self) -> int:
        return self.offcpu_ns - self.runqueue_ns

    @property
    def voluntary(self) -> int:
        """Finished waits that the thread began by itself; as a new thread's first one, for a CPU, was not preempted,
        that is among them."""
        return self.waits - self.involuntary


class SiteTotals(NamedTuple):
    """Totals of the waits of one site that reached the minimum.

    All times in ns; blocked = total_ns - runqueue_ns.
    """

    waits: int = 0
    total_ns: int = 0
    runqueue_ns: int = 0
    max_ns: int = 0
    """The longest wait that ended in the last tick (in a Window: in its span)."""
    histogram: int = 0

    def plus(self, other: "SiteTotals") -> "SiteTotals":
        longest_ns = max(self.max_ns, other.max_ns)
        return SiteTotals(*map(add, self, other))._replace(max_ns=longest_ns)

    @property
    def blocked_ns(self) -> int:
        return self.total_ns - self.runqueue_ns


class Bound(IntEnum):
    """Whether an age is exact, or only a bound of it is known."""

    EXACT = 0
    AT_MOST = 1
    """The thread last ran that long ago; when it left the CPU was not seen."""
    AT_LEAST = 2
    """The thread has been seen waiting for that long, and may have waited before."""


class Holder(NamedTuple):
    """A thread that holds the lock that another thread waits for."""

    pid: int
    tid: int
    comm: str
    """Raw thread name; empty if unknown."""

    @property
    def label(self) -> str:
        """`mysqld(4242)`, with the tid, not the pid. Raw."""
        return f"{self.comm}({self.tid})"


NO_HOLDER = Holder(0, 0, "")
"""No holder known: not a kernel lock, a lock with several readers, or one that has just been released."""


class Waiting(NamedTuple):
    """A wait in progress.

    At time t it has lasted t - from_ns so far, of which runqueue_ns were on the run queue.
    """

    site: SiteKey
    """Where the thread waits now; `site.kernel` is SHORT while the wait is below the minimum, FILTERED if it is
    excluded."""
    switched_out_ns: int
    """When the thread was switched out; the time of attaching, for a wait that began before."""
    from_ns: int
    """Time before this is already in the finished totals of earlier sites. Normally equal to switched_out_ns."""
    runqueue_ns: int = 0
    """How much of the time so far the thread was runnable, as of the snapshot."""
    preempted: bool = False
    """The wait began still runnable: all of it is run queue. Not set for a new thread's first wait (is_ready)."""
    since_ns: int = 0
    """When the wait began, as far as is known: at time t its age is t - since_ns. Earlier than switched_out_ns for a
    wait that began before offtop was attached."""
    bound: Bound = Bound.EXACT
    """Whether that age is exact."""
    state: int = 0
    """The thread's task state at switch-out. Bit 31: it was still runnable; state.NEW: it had no CPU yet."""
    call: int = -1
    """Number of the system call that the thread is in; -1: none, or unknown."""
    arguments: tuple[int, ...] = ()
    """The six argument registers, unsigned; empty if unknown."""
    user: int = NO_STACK
    """Id of the user stack as read from outside; from the next tick on it is part of `site`."""
    holder: Holder = NO_HOLDER
    """Holder of the kernel lock that the thread waits for, as last looked up: at most a few ticks ago."""

    @property
    def place(self) -> SiteKey:
        """The site, with the user stack as far as it is known by now."""
        return self.site._replace(user=self.user)

    @property
    def is_ready(self) -> bool:
        """Whether all of it is run queue: the thread was preempted, or has not had its first CPU yet."""
        return self.preempted or bool(self.state & NEW)

    @property
    def letter(self) -> str:
        """One-letter task state; `R` if the thread was woken meanwhile and waits for a CPU."""
        return "R" if self.preempted or self.runqueue_ns else letter(self.state)

    def age_ns(self, at_ns: int) -> int:
        return max(0, at_ns - (self.since_ns or self.switched_out_ns))


class Move(NamedTuple):
    """Part of a wait that moves to another site of the same thread.

    It lasted from `since_ns` to `until_ns` (CLOCK_MONOTONIC). It was counted at `was`, and belongs to `now`, where the
    wait ended or was found later.
    """

    was: SiteKey
    now: SiteKey
    since_ns: int
    until_ns: int
    ready_ns: int = 0
    """How much of it, at its end, was run-queue time."""


class Machine(NamedTuple):
    """CPU time that no thread has, since boot (in a Window: in its span)."""

    cpus: int = 0
    """CPUs online; 0: all of this is unknown."""
    steal_ns: int = 0
    """Time that the hypervisor gave to something else."""
    interrupt_ns: int = 0
    """Time in hard and soft interrupts."""


class Thinned(NamedTuple):
    """What offtop leaves out to keep to its CPU budget. No total is affected: waits without a stack are short waits."""

    level: int = 0
    """0; up to 4 while offtop's processes are over budget. Each CPU limits its time for stacks at any level."""
    stacks_from_ns: int = 0
    """Waits of this length get a stack on every CPU; 0: the minimum of the filters is in effect everywhere."""
    cpus: int = 0
    """Number of CPUs with a raised minimum."""
    waits: int = 0
    """Waits since the last snapshot that have no stack for that reason."""
    waits_ns: int = 0
    """Off-CPU time of these waits."""
    since_ns: int = 0
    """Since when something is left out (CLOCK_MONOTONIC); 0: nothing is."""
    is_over: bool = False
    """offtop is over budget all the same, or its BPF programs alone are."""


class Memos(NamedTuple):
    """How BPF found the stacks of long waits, since the last snapshot (bpf/memo.c, bpf/kernelmemo.c)."""

    walked: int = 0
    """Unwound frame by frame, including those that were checked."""
    verified: int = 0
    """The thread's last stack, after everything that its unwind depends on was compared."""
    checked: int = 0
    """Of these: unwound all the same."""
    disagreements: int = 0
    """Of these: unwinding found another stack."""

    @property
    def found(self) -> int:
        """All of these stacks: one that was checked was both walked and verified."""
        return self.walked + self.verified - self.checked

    def since(self, before: "Memos") -> "Memos":
        return Memos(*(now - then for now, then in zip(self, before, strict=True)))


class Cost(NamedTuple):
    """What offtop itself costs. Negative: not known yet."""

    bpf_ns_per_switch: float = -1.0
    """Of all its BPF programs together, as bpf_stats counts it."""
    switches: int = -1
    """Context switches of the machine since the last snapshot."""
    cpu_pct: float = -1.0
    """offtop's own processes, in percent of one CPU, since the last snapshot."""
    bpf_pct: float = -1.0
    """Its BPF programs, in percent of one CPU."""
    rss_bytes: int = -1
    scan_ns: int = -1
    """CPU time of one task scan, which finds the waits in progress."""
    scan_every: int = 1
    """A task scan runs every so many ticks, if it would cost too much otherwise."""
    thinned: Thinned = Thinned()
    memos: Memos = Memos()
    """Of user stacks."""
    kernel_memos: Memos = Memos()
    kernel_check_every: int = 0
    """One in so many kernel stacks that were verified is unwound as well; 0: none are verified."""


class Sampling(NamedTuple):
    """How numbers were sampled, if threads are polled.

    These are running totals (in a Window: of its span).
    """

    scans: int = 0
    """How often all threads were polled."""
    guessed_ns: int = 0
    """Off-CPU time between two polls at different places: counted at the earlier or the later one."""
    own_only: bool = False
    """Only the processes of the user who runs offtop are visible."""
    lost_known: bool = True
    """Threads that came and went between two polls are counted, as lost."""
    longest_ns: int = 0
    """Longest time between two polls of a thread, in the last tick (in a Window: in its span); 0: unknown."""
    container_only: bool = False
    """Only the processes of the container (pid namespace) in which offtop runs are visible."""

    def plus(self, other: "Sampling") -> "Sampling":
        """The sum of two spans."""
        return Sampling(
            self.scans + other.scans,
            self.guessed_ns + other.guessed_ns,
            self.own_only or other.own_only,
            self.lost_known and other.lost_known,
            max(self.longest_ns, other.longest_ns),
            self.container_only or other.container_only,
        )

    def since(self, earlier: "Sampling | None") -> "Sampling":
        before = earlier or Sampling()
        scans, guessed_ns = self.scans - before.scans, self.guessed_ns - before.guessed_ns
        return self._replace(scans=max(0, scans), guessed_ns=max(0, guessed_ns))

    def rate_hz(self, span_ns: int) -> float:
        return self.scans * NS_PER_S / max(1, span_ns)

    def apart_ns(self, span_ns: int) -> int:
        """Longest time between two polls, or the average if that is unknown.

        A wait may be too long by so much at each end.
        """
        return self.longest_ns or span_ns // max(1, self.scans)


@dataclass(frozen=True, slots=True)
class Filters:
    """What the BPF programs count, and from which length on they take stacks."""

    pids: tuple[int, ...] = ()
    """Only these processes (empty: all)."""
    tids: tuple[int, ...] = ()
    who: str = "all"
    """`all`, `user` or `kernel` threads."""
    states: int = 0
    """Mask of the task states at switch-out whose waits are shown (0: all), as the kernel encodes them; bit 31:
    runnable."""
    min_ns: int = 1_000_000
    max_ns: int = 0
    """0: no maximum."""
    cgroup: str = ""
    """Only threads in this cgroup or below it: raw path below the root of the hierarchy (empty: all)."""
    within: str = ""
    """Only waits that start inside this function, `mysqld:dispatch_command`, raw (empty: all)."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Running totals as of `at_ns`. Two of them make a Window (window.between)."""

    taken_ns: int
    """CLOCK_REALTIME, for display."""
    at_ns: int
    """CLOCK_MONOTONIC. Waits in progress count up to here."""
    threads: Mapping[ThreadKey, ThreadTotals] = field(default_factory=dict[ThreadKey, ThreadTotals])
    """Finished waits."""
    sites: Mapping[SiteKey, SiteTotals] = field(default_factory=dict[SiteKey, SiteTotals])
    """Finished waits. Evicted sites are summed up under EXITED, by kernel stack: SiteKey(0, 0, kernel, 0)."""
    waiting: Mapping[ThreadKey, Waiting] = field(default_factory=dict[ThreadKey, Waiting])
    """Waits in progress. The object stays the same while nothing about the wait changes."""
    catalog: Catalog = field(default_factory=Catalog)
    """What the ids in this snapshot refer to."""
    lost: Mapping[str, int] = field(default_factory=dict[str, int])
    """Running counts by kind, without zeros: wakings, stacks, threads, sites, events, missed_runs, unread,
    blockers, memos; seconds (UNMEASURED)."""
    cost: Cost = Cost()
    machine: Machine = Machine()
    storms: Mapping[int, Storm] = field(default_factory=dict[int, Storm])
    """Running totals by the id of a wake of the waker; `largest` is that of the last tick."""
    long_waits: Sequence[LongWait] = ()
    """Waits of the last tick that passed one of the thresholds set at the source."""
    outliers: Sequence[Outlier] = ()
    """Outliers of the last tick, if it was recorded: they are known already."""
    moves: Sequence[Move] = ()
    """Moves of the last tick, in order: time that is at another site in this snapshot than in the one before."""
    mode: str = OFFCPU
    """What was gathered: one of wake.MODES."""
    probe: str = ""
    """Switch-in probe: `exit`, `kprobe` or `switch`; `proc` if threads were polled; empty without a kernel."""
    filters: Filters = Filters()
    calls: Calls = NO_CALLS
    """Calls of the function in filters.within."""
    sampling: Sampling | None = None
    """None: every wait was recorded."""
    epoch: int = 0
    """Changes when totals do not continue those of the snapshot before, for example when a recording is played from
    another time. Nothing can be said about the span between those two."""
    leads: bool = False
    """This snapshot only leads to a moment that was requested, and the next one follows at once: it need not be
    drawn."""
    blockers: Blockers = field(default_factory=dict[ThreadKey, tuple[Blocker, ...]])
    """What must act to end waits in progress, if known; looked up at most a few ticks ago."""
    titles: Mapping[int, str] = field(default_factory=dict[int, str])
    """pid → title of a process that writes its own: `postgres: bench [local] idle in transaction`. Raw."""
    files: FileActivity | None = None
    """File operations since the snapshot before; None if they were not requested, or cannot be had."""
    disks: DiskActivity | None = None
    """Requests to block devices since the snapshot before; None if they were not requested, or cannot be had."""
