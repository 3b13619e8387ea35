"""A machine of a few threads, made by hand: who waits where, who runs, and who is known to hold what."""

from dataclasses import dataclass, field, replace

from offtop import paths
from offtop.model.classify import categories, causes, suspect_weights
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import Fixed
from offtop.model.classify.ended_stacks import EndedStacks
from offtop.model.classify.standing import WaitsOfTick
from offtop.model.classify.suspect import Found
from offtop.model.classify.suspects import SuspectFinder
from offtop.model.classify.wait_graph import KnownPeers, WaitGraph
from offtop.model.values.blockers import Blocker
from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey
from offtop.model.values.disks import DiskActivity
from offtop.model.values.peers import Peers
from offtop.model.values.snapshot import NO_HOLDER, Bound, Holder, SiteTotals, Snapshot, ThreadTotals, Waiting
from offtop.model.values.stack import FIRST_STACK, KERNEL, NO_STACK, Frame, Stack, nameless
from offtop.model.values.table import NO_SITES, SiteKeys
from offtop.model.values.wake import FIRST_WAKE, NO_WAKE, NOT_GATHERED, OFFCPU, Object, Wake
from offtop.model.windows.breakdown import Idle, Shares, shares
from offtop.model.windows.stuck import Stuck, stuck
from offtop.model.windows.window import Window, between
from offtop.units import NS_PER_S

CATEGORIES = categories.parse(paths.categories().read_text())
RULES = causes.parse(paths.rules().read_text(), "rules.toml", "", CATEGORIES.ids)
WEIGHTS = replace(suspect_weights.parse(paths.suspects().read_text()), settle_ns=0)
_BEGAN_NS = 1000 * NS_PER_S
SPAN_NS = NS_PER_S
AT_NS = _BEGAN_NS + 100 * NS_PER_S
AT_MUTEX = ("lib:__lll_lock_wait", "lib:pthread_mutex_lock", "work")
"""User stack of a thread that waits for a mutex."""


class OwnNames:
    """Names that the frames have."""

    version = 0

    def of(self, frame: Frame) -> str:
        return frame.name or nameless(frame)


@dataclass
class Machine:
    """All ages are as of its end; its only window is the last second."""

    waiting: dict[ThreadKey, Waiting] = field(default_factory=dict[ThreadKey, Waiting])
    ran: dict[ThreadKey, ThreadTotals] = field(default_factory=dict[ThreadKey, ThreadTotals])
    sites: dict[SiteKey, SiteTotals] = field(default_factory=dict[SiteKey, SiteTotals])
    blockers: dict[ThreadKey, tuple[Blocker, ...]] = field(default_factory=dict[ThreadKey, tuple[Blocker, ...]])
    titles: dict[int, str] = field(default_factory=dict[int, str])
    stacks_of_ended: EndedStacks = field(default_factory=EndedStacks)
    catalog: Catalog = field(default_factory=Catalog)
    mode: str = OFFCPU
    disks: DiskActivity | None = None
    """Requests to disks in the window."""
    at_even_pace: SiteKeys = NO_SITES
    """Sites of sleeps at an even pace, which count as idle."""

    def __post_init__(self) -> None:
        self.causes = CauseFinder(OwnNames(), Fixed(RULES))

    def waits(
        self,
        program: str,
        pid: int,
        category: str,
        seconds: float = 10.0,
        *user: str,
        tid: int = 0,
        kernel: str = "",
        on: Object | None = None,
        peers: Peers | None = None,
        holder: Holder = NO_HOLDER,
        before: bool = False,
    ) -> ThreadKey:
        """A thread has waited for so long at functions `user`, leaf first. `before`: offtop came later."""
        key = ThreadKey(pid, tid or pid)
        self.named(program, pid)
        age_ns = int(seconds * NS_PER_S)
        bound = Bound.AT_LEAST if before else Bound.EXACT
        wake = NO_WAKE
        if on:
            wake = self.wake(on)
            if peers:
                self.catalog.peers[on] = peers
        frames = [Frame(KERNEL, 0, kernel or f"in_{category}")]
        site = SiteKey(*key, self._stack(frames, category), self._user(*user), wake)
        began_ns = AT_NS - age_ns
        one = Waiting(site, began_ns, began_ns, since_ns=began_ns, bound=bound, user=site.user, holder=holder)
        self.waiting[key] = one
        return key

    def wake(self, on: Object) -> int:
        """Return the id of a wait on that."""
        wake = max([FIRST_WAKE - 1, *self.catalog.wakes]) + 1
        self.catalog.wakes[wake] = Wake(NOT_GATHERED, on)
        return wake

    def named(self, program: str, pid: int) -> None:
        self.catalog.processes[pid] = self.catalog.comms[ThreadKey(pid, pid)] = program

    def runs(self, program: str, pid: int, share: float = 1.0, ready: float = 0.0) -> None:
        """A thread ran for that part of the last second, and for another one it wanted a CPU."""
        self.named(program, pid)
        ready_ns = int(ready * NS_PER_S)
        self.ran[ThreadKey(pid, pid)] = ThreadTotals(
            1, ready_ns, ready_ns, running_ns=int(share * NS_PER_S), short_ns=ready_ns, short_runqueue_ns=ready_ns
        )

    def throttled(self, program: str, pid: int, share: float) -> None:
        """A thread waited for that part of the last second for its CPU quota."""
        self.named(program, pid)
        site = SiteKey(pid, pid, self._stack([Frame(KERNEL, 0, "throttle_cfs_rq_work")], "throttle"), NO_STACK)
        ns = int(share * NS_PER_S)
        self.sites[site] = SiteTotals(9, ns, ns, max_ns=NS_PER_S // 10)
        self.ran[ThreadKey(pid, pid)] = ThreadTotals(9, ns, ns, running_ns=NS_PER_S - ns)

    def ended(self, key: ThreadKey, category: str, wake: int, waits: int, *user: str, ms: int = 10) -> None:
        """Waits of so many ms at functions `user`, leaf first, ended in the last second."""
        site = SiteKey(*key, self._stack([Frame(KERNEL, 0, f"in_{category}")], category), self._user(*user), wake)
        ns = waits * ms * NS_PER_S // 1000
        self.sites[site] = SiteTotals(waits, ns, max_ns=ms * NS_PER_S // 1000)
        self.ran[key] = ThreadTotals(waits, ns)

    def held(self, waiter: ThreadKey, *blockers: Blocker) -> None:
        self.blockers[waiter] = blockers

    def snapshot(self) -> Snapshot:
        return Snapshot(
            AT_NS,
            AT_NS,
            self.ran,
            self.sites,
            self.waiting,
            self.catalog,
            mode=self.mode,
            blockers=self.blockers,
            titles=self.titles,
        )

    def measured(self) -> tuple[Snapshot, Stuck, Shares, Window]:
        now = self.snapshot()
        earlier = {key: one for key, one in self.waiting.items() if one.switched_out_ns < AT_NS - SPAN_NS}
        window = between(Snapshot(0, AT_NS - SPAN_NS, waiting=earlier, catalog=self.catalog), now)
        idle_by_rule = self.causes.idle_by_rule([window.still.ids], self.catalog)
        idle = Idle(CATEGORIES.idle, self.at_even_pace, by_rule=idle_by_rule)
        window = replace(window, disks=self.disks)
        return now, stuck([*self.waiting.values()], AT_NS, self.catalog, idle), shares(window, idle), window

    def tick(self) -> WaitsOfTick:
        now, blocked, every, window = self.measured()
        return WaitsOfTick(
            now, window, blocked, every, WEIGHTS, self.causes, KnownPeers(), self.stacks_of_ended, AT_NS - SPAN_NS
        )

    def graph(self) -> WaitGraph:
        return self.tick().graph

    def found(self, ticks: int = 1) -> Found:
        """Return what a finder says after so many ticks like this one."""
        waits, finder, found = self.tick(), SuspectFinder(WEIGHTS), Found()
        for _ in range(ticks):
            found = finder.tick(waits)
        return found

    def _stack(self, frames: list[Frame], category: str = "") -> int:
        stack = Stack(tuple(frames), 0, category)
        known = {one: number for number, one in self.catalog.stacks.items()}
        number = known.get(stack, max([FIRST_STACK - 1, *self.catalog.stacks]) + 1)
        self.catalog.stacks[number] = stack
        return number

    def _user(self, *functions: str) -> int:
        if not functions:
            return NO_STACK
        return self._stack([_frame(one, at) for at, one in enumerate(functions, 1)])


def _frame(function: str, at: int) -> Frame:
    """`lib:function` is in the C library, `file!function` in another file."""
    file, _, own = function.rpartition("!")
    if function.startswith("lib:"):
        file, own = "/lib/x86_64-linux-gnu/libc.so.6", function[4:]
    return Frame(file or "/opt/prog", at, own)


def ends(found: Found) -> list[tuple[str, str, int, str]]:
    """Return the kind, program, PID and state of each suspect's end."""
    return [(one.kind, one.end.program, one.end.key.pid, one.end.state) for one in found.suspects]
