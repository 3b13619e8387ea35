"""A Snapshot is everything measured up to one moment, as totals that only grow.

Waits in progress are part of it: a total as of a snapshot is *finished waits + so far*.
Keys and totals are NamedTuples, not dataclasses: thousands are made each tick, at a third of the cost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from operator import add
from typing import NamedTuple

from offtop.model.book import Book, SiteKey, ThreadKey
from offtop.model.outlier import Caught, Outlier
from offtop.model.stack import NO_STACK
from offtop.model.state import letter
from offtop.model.wake import OFFCPU, Storm
from offtop.model.within import NO_CALLS, Calls
from offtop.units import NS_PER_S

EXITED = ThreadKey(0, 0)
"""Takes the totals of threads and sites that were given back (no real thread has tid 0)."""
OUTSIDE = 9_999_999
"""In a container: the pid under which all threads outside of it are counted, by the host's tids. No real one is above
4,194,304 (PID_MAX_LIMIT, include/linux/threads.h)."""


class ThreadTotals(NamedTuple):
    """All waits of one thread. ns everywhere; blocked = offcpu_ns - runqueue_ns."""

    waits: int = 0
    """Finished waits."""
    offcpu_ns: int = 0
    runqueue_ns: int = 0
    preempted_ns: int = 0
    """The share of runqueue_ns of waits that began still runnable."""
    involuntary: int = 0
    """Waits that began still runnable."""
    short_waits: int = 0
    """Waits below the minimum: no stack was taken."""
    short_ns: int = 0
    short_runqueue_ns: int = 0
    filtered_ns: int = 0
    """Waits left out by --max or --state."""
    filtered_runqueue_ns: int = 0
    running_ns: int = 0
    """By the kernel's own account (sum_exec_runtime), which has no time that hypervisor or interrupts took."""
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
        """Finished waits that the thread began by itself."""
        return self.waits - self.involuntary


class SiteTotals(NamedTuple):
    """All waits of one site, from the minimum up. ns; blocked = total_ns - runqueue_ns."""

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
    """How an age is meant."""

    EXACT = 0
    AT_MOST = 1
    """The thread last had a CPU that long ago, and nobody saw it leave."""
    AT_LEAST = 2
    """It has been seen waiting for so long."""


class Holder(NamedTuple):
    """A thread that has what another one waits for."""

    pid: int
    tid: int
    comm: str
    """Its name, raw; empty: not known."""

    @property
    def label(self) -> str:
        """`mysqld(4242)`: its own number, not that of its process. Raw."""
        return f"{self.comm}({self.tid})"


NO_HOLDER = Holder(0, 0, "")
"""Nobody is known to have it: it is no lock of the kernel's, it has several readers, or it has just been let go."""


class Waiting(NamedTuple):
    """A wait in progress. Its so far, at time t, is t - from_ns, of which runqueue_ns run queue."""

    site: SiteKey
    """Where it stands now; `site.kernel` is SHORT while it is below the minimum, FILTERED if it is left out."""
    left_ns: int
    """When the thread left the CPU (the moment of attaching, for a wait that began before)."""
    from_ns: int
    """What passed before this is already in the finished totals of earlier sites (normally left_ns)."""
    runqueue_ns: int = 0
    """As of the snapshot: how much of the so far the thread was ready to run."""
    preempted: bool = False
    """The wait began still runnable: all of it is run queue."""
    since_ns: int = 0
    """When it began, as far as is known: its age, at time t, is t - since_ns. Before left_ns for a wait that is older
    than offtop's watching."""
    bound: Bound = Bound.EXACT
    """How that age is meant."""
    state: int = 0
    """The thread's state at leaving, as the kernel has it; bit 31: it could have run on."""
    call: int = -1
    """Number of the system call that it is in; -1: in none, or not known."""
    arguments: tuple[int, ...] = ()
    """Six unsigned words; empty: not known."""
    user: int = NO_STACK
    """Id of the user stack as it was read from outside; from the next tick on the wait stands there."""
    holder: Holder = NO_HOLDER
    """Who had the lock of the kernel's that it waits for when this was looked at last, at most a few ticks ago."""

    @property
    def place(self) -> SiteKey:
        """The site, with the program's stack as far as it is known by now."""
        return self.site._replace(user=self.user)

    @property
    def letter(self) -> str:
        """The thread's state in a letter: `R` where it has been woken meanwhile, and waits for a CPU."""
        return "R" if self.preempted or self.runqueue_ns else letter(self.state)

    def age_ns(self, at_ns: int) -> int:
        return max(0, at_ns - (self.since_ns or self.left_ns))


class Move(NamedTuple):
    """The time of one wait from `since_ns` to `until_ns` (CLOCK_MONOTONIC) was counted at one site, and is at another
    one of the same thread now: where the wait ended, or was found to stand."""

    was: SiteKey
    now: SiteKey
    since_ns: int
    until_ns: int
    ready_ns: int = 0
    """How much of it, at its end, was run queue."""


class Machine(NamedTuple):
    """What took CPU time that no thread has, since the machine came up (in a Window: in its span)."""

    cpus: int = 0
    """Online; 0: nothing of this is known."""
    steal_ns: int = 0
    """The hypervisor ran something else."""
    interrupt_ns: int = 0
    """Hard and soft interrupts."""


class Cost(NamedTuple):
    """What offtop itself costs. Negative: not known yet."""

    bpf_ns_per_switch: float = -1.0
    """All its BPF programs added up, by the kernel's own count."""
    switches: int = -1
    """Context switches of the machine since the last snapshot."""
    cpu_pct: float = -1.0
    """offtop's own processes, in percent of one CPU, since the last snapshot."""
    bpf_pct: float = -1.0
    """Its BPF programs, in percent of one CPU."""
    rss_bytes: int = -1
    walk_ns: int = -1
    """CPU time of a walk of all threads, of the waits in progress."""
    walk_every: int = 1
    """It is made once in so many ticks, where it would cost too much."""


class Sampling(NamedTuple):
    """Of numbers that come from looking at threads now and then; running totals (in a Window: of its span)."""

    looks: int = 0
    """How often all threads were looked at."""
    guessed_ns: int = 0
    """Off-CPU time of which nobody saw where it passed: it is counted where the thread was before, or after."""
    own_only: bool = False
    """Only the processes of the user who runs offtop are seen."""
    lost_known: bool = True
    """Threads that came and went between two looks are counted, as lost."""
    longest_ns: int = 0
    """The longest time from one look at a thread to the next, in the last tick (in a Window: in its span); 0: not
    known."""
    container_only: bool = False
    """Only the processes of the container (pid namespace) in which offtop runs are seen."""

    def plus(self, other: "Sampling") -> "Sampling":
        """Those of two spans."""
        return Sampling(
            self.looks + other.looks,
            self.guessed_ns + other.guessed_ns,
            self.own_only or other.own_only,
            self.lost_known and other.lost_known,
            max(self.longest_ns, other.longest_ns),
            self.container_only or other.container_only,
        )

    def since(self, earlier: "Sampling | None") -> "Sampling":
        before = earlier or Sampling()
        looks, guessed_ns = self.looks - before.looks, self.guessed_ns - before.guessed_ns
        return self._replace(looks=max(0, looks), guessed_ns=max(0, guessed_ns))

    def rate_hz(self, span_ns: int) -> float:
        return self.looks * NS_PER_S / max(1, span_ns)

    def apart_ns(self, span_ns: int) -> int:
        """From one look to the next, at most: by so much, at each end, the length of a wait may be too long. On average
        where no more is known."""
        return self.longest_ns or span_ns // max(1, self.looks)


@dataclass(frozen=True, slots=True)
class Filters:
    """What the kernel side counts at all, and from which length on it takes stacks."""

    pids: tuple[int, ...] = ()
    """Only these processes (empty: all)."""
    tids: tuple[int, ...] = ()
    who: str = "all"
    """`all`, `user` or `kernel` threads."""
    states: int = 0
    """Mask of the states at leaving whose waits are shown (0: all): bit 31 is running, else the kernel's."""
    min_ns: int = 1_000_000
    max_ns: int = 0
    """0: no maximum."""
    cgroup: str = ""
    """Only threads in this cgroup or below it: its path below the root of the hierarchy, raw (empty: all)."""
    within: str = ""
    """Only waits that begin inside of this function of a program, `mysqld:dispatch_command`, raw (empty: all)."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Running totals as of `at_ns`. Two of them make a Window (window.between)."""

    taken_ns: int
    """CLOCK_REALTIME, for people."""
    at_ns: int
    """CLOCK_MONOTONIC: `so far` counts up to here."""
    threads: Mapping[ThreadKey, ThreadTotals] = field(default_factory=dict[ThreadKey, ThreadTotals])
    """Finished waits."""
    sites: Mapping[SiteKey, SiteTotals] = field(default_factory=dict[SiteKey, SiteTotals])
    """Finished waits. Sites that were given back have their sums under EXITED: SiteKey(0, 0, kernel, 0)."""
    waiting: Mapping[ThreadKey, Waiting] = field(default_factory=dict[ThreadKey, Waiting])
    """Waits in progress; the same object while nothing about one changes."""
    book: Book = field(default_factory=Book)
    """What the ids in it stand for."""
    lost: Mapping[str, int] = field(default_factory=dict[str, int])
    """Running counts by kind: wakings, stacks, threads, sites, events, missed_runs; those above 0."""
    cost: Cost = Cost()
    machine: Machine = Machine()
    storms: Mapping[int, Storm] = field(default_factory=dict[int, Storm])
    """By the id of a wake of their waker: running totals; the largest is that of the last tick."""
    caught: Sequence[Caught] = ()
    """Of the last tick: waits that were longer than those marks that the source was told."""
    outliers: Sequence[Outlier] = ()
    """Of the last tick, where they are known already: it was recorded."""
    moves: Sequence[Move] = ()
    """Of the last tick: what is at another site in this snapshot than in the one before, one behind the other."""
    mode: str = OFFCPU
    """What was gathered: one of wake.MODES."""
    door: str = ""
    """How the kernel tells that a thread is back: `exit`, `kprobe`, `switch`; `proc`: threads were looked at now
    and then; `` for no kernel."""
    filters: Filters = Filters()
    calls: Calls = NO_CALLS
    """Of the function that filters.within names."""
    sampling: Sampling | None = None
    """None: every wait was seen."""
    epoch: int = 0
    """Another one where the totals do not go on from those of the snapshot before, as when a recording is taken up
    at another time: nothing is between those two."""
    leads: bool = False
    """It only leads to a moment that was asked for, and what follows it comes at once: nobody need look at it."""
