"""A data source that plays a small table of waits: what each site adds in one second, the same in every second."""

from collections.abc import Collection, Mapping, Sequence
from threading import Event
from typing import NamedTuple

from offtop.errors import OfftopError
from offtop.feed.source import LiveFeed
from offtop.model.aggregate.stack_problems import NOT_KNOWN, STRIPPED
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import Catalog, Details, SiteKey, ThreadKey
from offtop.model.values.disks import DiskActivity
from offtop.model.values.files import FILE, FileActivity
from offtop.model.values.outlier import Outlier, Thresholds
from offtop.model.values.peers import WRITER, Peers, PeerSide, Process
from offtop.model.values.snapshot import (
    NO_HOLDER,
    Bound,
    Cost,
    Filters,
    Holder,
    Machine,
    SiteTotals,
    Snapshot,
    Thinned,
    ThreadTotals,
    Waiting,
)
from offtop.model.values.stack import FIRST_STACK, KERNEL, NO_STACK, NO_WAY, Frame, Names, Stack, nameless
from offtop.model.values.wake import (
    BRIEF,
    CHAIN,
    DEPTH,
    FIRST_WAKE,
    IRQ,
    NO_OBJECT,
    NO_STORM,
    NO_WAKE,
    NOBODY,
    NOT_GATHERED,
    OFFCPU,
    STILL_WAITING,
    THREAD,
    TIMEOUT,
    UNSEEN,
    WAKE_SHORT,
    WAKE_UNSEEN,
    WHOLE,
    Link,
    Object,
    Storm,
    Wake,
    Waker,
)
from offtop.units import NS_PER_S

MS = 1_000_000
START_NS = 1_795_226_400 * NS_PER_S
"""2026-11-21 02:00:00 UTC."""
AT_NS = 1_000 * NS_PER_S


class By(NamedTuple):
    """A waker and its stacks."""

    kind: str = THREAD
    name: str = ""
    process: str = ""
    pid: int = 0
    comm: str = ""
    tid: int = 0
    kernel: tuple[str, ...] = ()
    user: tuple[str, ...] = ()


class Then(NamedTuple):
    """A link of a chain: where a waker had waited, and who woke it."""

    kernel: tuple[str, ...]
    user: tuple[str, ...]
    by: By


class Woken(NamedTuple):
    """How waits end."""

    by: By
    on: Object = NO_OBJECT
    chain: tuple[Then, ...] = ()
    """Reported only in mode chain."""
    end: str = WHOLE


class Waits(NamedTuple):
    """What one thread does in each second."""

    process: str
    pid: int
    comm: str
    tid: int
    category: str
    kernel: str
    user: tuple[str, ...] = ()
    waits_ms: tuple[int, ...] = ()
    """Lengths of the waits that finish at this site."""
    ready_ms: int = 0
    """Run-queue time within them."""
    short_waits: int = 0
    """Number of waits of 10 us."""
    waits_on: bool = False
    """The thread is in a single wait from `begins` to `ends`."""
    begins: int = 0
    """Second after which the row starts."""
    ends: int = 1_000_000
    """Second after which it does nothing more."""
    older_ms: int = 0
    """With `waits_on`: how long before `begins` the wait began, unseen."""
    bound: Bound = Bound.EXACT
    """With `waits_on`: whether its begin is exact or a bound."""
    state: int = 1
    call: str = ""
    """With `waits_on`: the system call that it is in."""
    arguments: tuple[int, ...] = ()
    read: tuple[str, ...] = ()
    """With `waits_on`: user frames that were read from another thread, which are not part of the site."""
    ready_since_ms: int = 0
    """With `waits_on`: how long before its end the thread was woken."""
    held: tuple[Object, Holder] | None = None
    """With `waits_on`: the kernel lock that it waits for, and its holder."""
    running_ms: int = 0
    """CPU time in each second."""
    woken: Woken | int = NO_WAKE
    """How its waits end, if wakers are collected; or a wake id that every source has."""
    storm: Storm = NO_STORM
    """Wakeup storms of its waker in each second."""

    def seconds_of(self, seconds: int) -> int:
        """Return in how many of the first `seconds` the row was active."""
        return max(0, min(seconds, self.ends) - self.begins)


TABLE = (
    Waits(
        "mysqld", 4242, "connection", 4268, "lock", "futex_do_wait", ("buf_page_get_gen", "main"), (300, 200), 20, 50
    ),
    Waits("mysqld", 4242, "ib_log_writer", 4251, "fsync", "jbd2_log_wait_commit", ("log_write",), (40, 40, 20)),
    Waits("java", 3100, "G1 Young", 3107, "lock", "futex_do_wait", ("G1ParScan",), (100,), 0, 7),
    Waits("postgres", 977, "postgres", 977, "disk-read", "io_schedule", ("mdread",), (8,) * 10),
    Waits("nginx", 700, "nginx", 700, "poll", "do_epoll_wait", ("ngx_epoll",), waits_on=True),
    Waits("kworker/0:1", 51, "kworker/0:1", 51, "kthread-idle", "worker_thread", waits_on=True),
)

SHOP = (
    Waits("shop", 100, "worker-1", 101, "lock", "futex_do_wait", ("take_order", "serve", "main"), (200, 200)),
    Waits("shop", 100, "worker-1", 101, "disk-read", "io_schedule", ("read_page", "serve", "main"), (100,)),
    Waits("shop", 100, "worker-2", 102, "lock", "futex_do_wait", ("take_order", "serve", "main"), (200,)),
    Waits("shop", 100, "clerk", 103, "net-recv", "tcp_recvmsg", ("answer", "ask", "main"), (60,)),
    Waits("shop", 100, "clerk", 103, "net-recv", "tcp_recvmsg", ("greeting", "ask", "main"), (34,)),
    Waits("shop", 100, "clerk", 103, "net-recv", "tcp_recvmsg", ("dust_1", "main"), (3,)),
    Waits("shop", 100, "clerk", 103, "net-recv", "tcp_recvmsg", ("dust_2", "main"), (2,)),
    Waits("shop", 100, "clerk", 103, "net-recv", "tcp_recvmsg", ("dust_3", "main"), (1,)),
    Waits("bank", 200, "teller", 201, "lock", "futex_do_wait", ("count_money", "main"), (100,)),
    Waits("bank", 200, "vault", 202, "fsync", "jbd2_log_wait_commit", ("write_book", "main"), (50, 50)),
    Waits("door", 300, "door", 300, "poll", "do_epoll_wait", ("main",), waits_on=True),
)
"""1.00 waiting without the idle door: lock 0.70 in three threads, and 0.10 each of disk-read, net-recv and fsync."""
WHO = {
    100: Details("alice", "/opt/shop --open 8080", "/shop.slice", 1000, "0-1", 50),
    200: Details("bob", "/opt/bank", "/bank.slice", 1001),
    300: Details("bob", "/opt/door", "/bank.slice", 1001),
}


BANKS = (
    Waits("postgres", 977, "postgres", 977, "poll", "do_epoll_wait", ("main",), waits_on=True),
    Waits("postgres", 978, "postgres", 978, "lock", "futex_do_wait", ("ProcSleep", "main"), (300, 100), running_ms=50),
    Waits("postgres", 979, "postgres", 979, "lock", "futex_do_wait", ("ProcSleep", "main"), (200,), 20, 10),
    Waits("postgres", 979, "postgres", 979, "fsync", "jbd2_log_wait_commit", ("XLogFlush", "main"), (50,)),
    Waits("psql", 500, "psql", 500, "net-recv", "tcp_recvmsg", ("pqWait", "main"), (350,)),
    Waits("kworker/0:1", 51, "kworker/0:1", 51, "disk-write", "io_schedule", (), (30,)),
    Waits("kworker/u8:2", 52, "kworker/u8:2", 52, "disk-write", "io_schedule", (), (20,)),
    Waits("bank", 200, "teller", 201, "lock", "futex_do_wait", ("count_money", "main"), (100,)),
)
"""Per second 0.65 of postgres in two processes, a third of which is idle, 0.35 of psql, 0.10 of bank, and 0.05 of two
kworkers."""


def slower_flush(table: tuple[Waits, ...]) -> tuple[Waits, ...]:
    """Return BANKS with 0.10 per second at the flush of postgres, a seventh of what the program waits."""
    return tuple(row._replace(waits_ms=(100,)) if row.kernel == "jbd2_log_wait_commit" else row for row in table)


SAID = {977: "postgres: 17/main: checkpointer", 978: "postgres: bench [local] UPDATE waiting"}


FUTEX = 0x7F12_0000_4040
STUCK = (
    Waits(
        *("mysqld", 4242, "connection", 4268, "lock", "futex_do_wait"),
        waits_on=True,
        older_ms=500,
        call="futex",
        arguments=(FUTEX, 128, 2, 0, 0, 0),
        read=("lock_wait", "row_search", "main"),
    ),
    Waits(
        *("mysqld", 4242, "purge", 4270, "fsync", "jbd2_log_wait_commit"),
        waits_on=True,
        begins=10,
        state=2,
        call="fsync",
        arguments=(7, 0, 0, 0, 0, 0),
    ),
    Waits(
        *("cp", 900, "cp", 900, "disk-read", "io_schedule"),
        waits_on=True,
        older_ms=100_000,
        bound=Bound.AT_MOST,
        state=2,
    ),
    Waits(*("gdb", 901, "gdb", 901, "stopped", "ptrace_stop"), waits_on=True, bound=Bound.AT_LEAST, state=8),
    Waits(
        *("nginx", 700, "nginx", 700, "poll", "do_epoll_wait"),
        waits_on=True,
        older_ms=60_000,
        call="epoll_wait",
        arguments=(5, 0, 512, (1 << 64) - 1, 0, 0),
    ),
    Waits("late", 800, "late", 801, "lock", "futex_do_wait", waits_on=True, begins=4, ends=8, ready_since_ms=1500),
    Waits("shop", 100, "worker-1", 101, "lock", "futex_do_wait", ("take_order", "serve", "main"), (200, 200)),
)
"""After 12 seconds five threads are waiting: cp for at most 1.87min, nginx for 72 s (idle), connection for 12.5 s, gdb
for at least 12 s, and purge for 2 s. A sixth waited from second 4 to 8 and was woken at 6.5."""


MUTEX, PIPE = Object("futex", "0x7f4040", 100), Object("pipe", "pipe:[77]")
CLERK = By(THREAD, "", "shop", 100, "clerk", 103, ("futex_wake",), ("unlock", "serve", "main"))
TELLER = By(THREAD, "", "bank", 200, "teller", 201, ("pipe_write",), ("pay", "main"))
GOES_ON = By(NOBODY, STILL_WAITING.name)
READER = Waits(
    *("sort", 60, "sort", 60, "pipe", "pipe_read", ("fill", "main")),
    waits_on=True,
    older_ms=1_000,
    read=("fill", "main"),
    woken=Woken(GOES_ON, PIPE, end=UNSEEN),
)
FILLED = {PIPE: Peers((PeerSide(WRITER, (Process(4242, "gzip"), Process(9, "\x1b[2J")), 5),))}
"""The peers that READER waits for."""
DISK = By(IRQ, "nvme_irq", kernel=("blk_mq_end_request", "nvme_irq"))
ALARM = By(TIMEOUT, kernel=("hrtimer_wakeup",))
WAKERS = (
    Waits(
        *("shop", 100, "worker-1", 101, "lock", "futex_do_wait", ("take_order", "main"), (400,)),
        ready_ms=100,
        woken=Woken(CLERK, MUTEX, (Then(("pipe_read",), ("ask", "main"), TELLER), Then(("io_wait",), ("main",), DISK))),
    ),
    Waits(
        *("shop", 100, "worker-2", 102, "lock", "futex_do_wait", ("take_order", "main"), (100, 100)),
        woken=Woken(CLERK, MUTEX, (Then(("pipe_read",), ("ask", "main"), TELLER),), DEPTH),
        storm=Storm(2, 20, 18, 12),
    ),
    Waits(
        *("shop", 100, "clerk", 103, "pipe", "pipe_read", ("ask", "main"), (100,)),
        woken=Woken(TELLER, PIPE, end=BRIEF),
    ),
    Waits(
        *("bank", 200, "teller", 201, "disk-read", "io_schedule", ("read_book", "main"), (60,)),
        woken=Woken(DISK),
    ),
    Waits(*("bank", 200, "vault", 202, "sleep", "do_nanosleep", ("rest", "main"), (50,)), woken=Woken(ALARM)),
    Waits(*("bank", 200, "vault", 202, "lock", "futex_do_wait", ("count", "main"), (30,)), woken=WAKE_UNSEEN),
    Waits(*("bank", 200, "vault", 202, "lock", "futex_do_wait", ("count", "main"), (20,)), woken=WAKE_SHORT),
    Waits(*("late", 300, "late", 300, "fsync", "jbd2_log_wait_commit"), waits_on=True),
    Waits(*("brief", 400, "brief", 400, "lock", "futex_do_wait"), short_waits=1000),
)
"""In each second clerk ends 0.50 of lock, followed by 0.10 of run queue; teller ends 0.10 of pipe, the disk 0.06, and a
timeout 0.05. The waker of 0.03 is unknown, 0.02 were woken before the minimum, 1.00 is in progress, and 0.01 is below
the minimum. Two storms of clerk wake 20 threads, of which 18 sleep again."""


class ScriptedSource(LiveFeed):
    """A source of `ticks` seconds of `table`; then it blocks until it is closed."""

    host = "db7"

    def __init__(
        self,
        table: Sequence[Waits] = TABLE,
        ticks: int = 3,
        lost: Mapping[str, int] | None = None,
        error: OfftopError | None = None,
        ends: bool = False,
        who: Mapping[int, Details] | None = None,
        machine: Machine = Machine(),
        object_peers: Mapping[Object, Peers] | None = None,
    ) -> None:
        """`machine`: per second, the time that belongs to no thread."""
        self.version = 0
        self.filters = Filters()
        self.mode, self.depth = OFFCPU, 4
        self._modes: dict[int, str] = {}
        """Second → mode in which it was read."""
        self.refuses: OfftopError | None = None
        """Raised by set_filters."""
        self.closed = Event()
        self.reads = 0
        self._table = table
        self.ticks = ticks
        self._lost = lost or {}
        self.files = FileActivity()
        """What each tick holds while file operations are requested."""
        self.files_requested: list[bool] = []
        """The argument of each call of `set_counted` for mode file."""
        self.disks = DiskActivity()
        """What each tick holds while requests to disks are requested."""
        self.disks_requested: list[bool] = []
        """The argument of each call of `set_counted` for mode disk."""
        self.titles: Mapping[int, str] = {}
        """What processes say that they do from now on."""
        self.thinned = Thinned()
        """What it leaves out from now on."""
        self._error = error
        self._ends = ends
        self._who = who or {}
        self.asked: list[set[int]] = []
        """The PIDs of each call of `describe`."""
        self._object_peers = object_peers or {}
        self.sought: list[set[Object]] = []
        """The objects of each call of `find_peers`."""
        self._named: dict[str, str] = {}
        self._catalog = Catalog()
        self._ids: dict[Stack, int] = {}
        self._wakes: dict[Wake, int] = {}
        self._keys = [self._key(row) for row in table]
        self._machine = machine
        self._waiting = [
            (row, self._wait(key, row)) for key, row in zip(self._keys, table, strict=True) if row.waits_on
        ]

    def _wait(self, key: SiteKey, row: Waits) -> Waiting:
        begins_ns = AT_NS + row.begins * NS_PER_S
        if isinstance(row.woken, Woken):
            key = key._replace(wake=self._wake(row.woken, CHAIN))
        call = -1
        if row.call:
            call = next((n for n, name in self._catalog.calls.items() if name == row.call), len(self._catalog.calls))
            self._catalog.calls[call] = row.call
        since_ns = begins_ns - row.older_ms * MS if row.older_ms else 0
        read = self._id(_stack_of(row.read)) if row.read else NO_STACK
        on, holder = row.held or (NO_OBJECT, NO_HOLDER)
        if row.held:
            wake = Wake(NOT_GATHERED, on)
            number = self._wakes.setdefault(wake, FIRST_WAKE + len(self._wakes))
            self._catalog.wakes[number] = wake
            key = key._replace(wake=number)
        return Waiting(
            *(key, begins_ns, begins_ns, 0, row.state >> 31 != 0, since_ns),
            *(row.bound, row.state, call, row.arguments, read, holder),
        )

    def _key(self, row: Waits) -> SiteKey:
        kernel = self._id(Stack(tuple(Frame(KERNEL, 0, name) for name in ("schedule", row.kernel)), 1, row.category))
        user = self._id(_stack_of(row.user))
        self._catalog.comms[ThreadKey(row.pid, row.tid)] = row.comm
        self._catalog.processes[row.pid] = row.process
        return SiteKey(row.pid, row.tid, kernel, user if row.user else NO_STACK)

    def _wake(self, woken: Woken | int, mode: str) -> int:
        """Return the id of a wake, reduced to what is collected in this mode."""
        if mode == OFFCPU or isinstance(woken, int):
            return woken if mode != OFFCPU and isinstance(woken, int) else NO_WAKE
        chain = woken.chain if mode == CHAIN else ()
        links = tuple(Link(*self._halves(kernel, user), self._waker(by)) for kernel, user, by in chain)
        wake = Wake(self._waker(woken.by), woken.on, links, woken.end if mode == CHAIN else UNSEEN)
        number = self._wakes.setdefault(wake, FIRST_WAKE + len(self._wakes))
        self._catalog.wakes[number] = wake
        return number

    def _waker(self, by: By) -> Waker:
        if by.tid:
            self._catalog.comms[ThreadKey(by.pid, by.tid)] = by.comm
            self._catalog.processes[by.pid] = by.process
        return Waker(by.kind, by.name, by.pid, by.tid, by.comm, "", *self._halves(by.kernel, by.user))

    def _halves(self, kernel: Sequence[str], user: Sequence[str]) -> tuple[int, int]:
        of_kernel = self._id(Stack(tuple(Frame(KERNEL, 0, name) for name in kernel))) if kernel else NO_STACK
        return of_kernel, self._id(_stack_of(user)) if user else NO_STACK

    def _by_wake(self, row: Waits, seconds: int) -> Mapping[int, int]:
        """Return wake id → in how many of the first `seconds` the row's waits ended that way.

        The latest wake comes last.
        """
        if row.woken == NO_WAKE:
            return {NO_WAKE: row.seconds_of(seconds)}
        counts: dict[int, int] = {}
        for second in range(row.begins + 1, min(seconds, row.ends) + 1):
            wake = self._wake(row.woken, self._modes.get(second, self.mode))
            counts[wake] = counts.pop(wake, 0) + 1
        return counts

    def _id(self, stack: Stack) -> int:
        """Return the id of a stack; equal stacks share one."""
        number = self._ids.setdefault(stack, FIRST_STACK + len(self._ids))
        self._catalog.stacks[number] = stack
        return number

    @property
    def names(self) -> Names:
        return self

    def of(self, frame: Frame) -> str:
        return self._named.get(frame.name, frame.name)

    def name(self, was: str, now: str) -> None:
        """Rename the function `was` to `now` from here on."""
        self._named[was] = now
        self.version += 1

    def read(self) -> Snapshot | None:
        while self.reads > self.ticks:
            if self._error:
                raise self._error
            if self._ends or self.closed.wait(0.005):
                return None
        seconds = self.reads
        self.reads += 1
        self._modes[seconds] = self.mode
        return self.after(seconds)

    def go_on(self, to: int) -> None:
        """Continue up to tick number `to`."""
        self.ticks = to

    def after(self, seconds: int) -> Snapshot:
        """Return the snapshot `seconds` after the start."""
        threads: dict[ThreadKey, ThreadTotals] = {}
        sites: dict[SiteKey, SiteTotals] = {}
        for key, row in zip(self._keys, self._table, strict=True):
            waits_ns = [ms * MS for ms in row.waits_ms]
            total_ns, longest_ns, histogram = sum(waits_ns), max(waits_ns, default=0), log2.of(*waits_ns)
            short_ns = row.short_waits * 10_000
            active = row.seconds_of(seconds)
            if active == row.seconds_of(seconds - 1):
                longest_ns = 0
            if row.running_ms and active:
                ran = ThreadTotals(running_ns=active * row.running_ms * MS)
                threads[key.thread] = threads.get(key.thread, ThreadTotals()).plus(ran)
            if row.waits_on and seconds >= row.ends:
                waited_ns, ready_ns = (row.ends - row.begins) * NS_PER_S, row.ready_since_ms * MS
                sites[key] = SiteTotals(1, waited_ns, ready_ns, waited_ns * (seconds == row.ends), log2.of(waited_ns))
                threads[key.thread] = threads.get(key.thread, ThreadTotals()).plus(
                    ThreadTotals(1, waited_ns, ready_ns, max_ns=sites[key].max_ns, histogram=log2.of(waited_ns))
                )
            elif active and not row.waits_on:
                by_wake = self._by_wake(row, seconds)
                for wake, times in by_wake.items():
                    site = key._replace(wake=wake)
                    sites[site] = sites.get(site, SiteTotals()).plus(
                        SiteTotals(
                            times * len(waits_ns),
                            times * total_ns,
                            times * row.ready_ms * MS,
                            longest_ns * (wake == [*by_wake][-1]),
                            times * histogram,
                        )
                    )
                threads[key.thread] = threads.get(key.thread, ThreadTotals()).plus(
                    ThreadTotals(
                        waits=active * (len(waits_ns) + row.short_waits),
                        offcpu_ns=active * (total_ns + short_ns),
                        runqueue_ns=active * row.ready_ms * MS,
                        short_waits=active * row.short_waits,
                        short_ns=active * short_ns,
                        max_ns=longest_ns,
                        histogram=active * (histogram + row.short_waits * log2.of(10_000)),
                    )
                )
        return Snapshot(
            taken_ns=START_NS + seconds * NS_PER_S,
            at_ns=AT_NS + seconds * NS_PER_S,
            threads=threads,
            sites=sites,
            waiting=self._in_progress(seconds),
            catalog=self._catalog,
            lost={kind: seconds * n for kind, n in self._lost.items()} if seconds else {},
            cost=Cost(212.0, 81_200, 1.9, 0.6, 62_000_000, thinned=self.thinned),
            machine=Machine(self._machine.cpus, *(seconds * ns for ns in self._machine[1:])),
            storms=self._storms(seconds),
            mode=self._modes.get(seconds, self.mode),
            probe="exit",
            filters=self.filters,
            titles=self.titles,
            files=self.files if self.files_requested and self.files_requested[-1] else None,
            disks=self.disks if self.disks_requested and self.disks_requested[-1] else None,
        )

    def _storms(self, seconds: int) -> dict[int, Storm]:
        """Return the storms by wake id; `largest` is that of the last second."""
        found: dict[int, Storm] = {}
        for row in self._table:
            for wake, times in self._by_wake(row, seconds).items() if row.storm != NO_STORM else ():
                one, is_active = row.storm, row.seconds_of(seconds) > row.seconds_of(seconds - 1)
                storm = Storm(times * one.storms, times * one.woken, times * one.slept_again, one.largest * is_active)
                if wake != NO_WAKE:
                    found[wake] = found.get(wake, NO_STORM).plus(storm)
        return found

    def _in_progress(self, seconds: int) -> dict[ThreadKey, Waiting]:
        """Return the waits in progress; an unchanged wait is the same object each time."""
        found = {one.site.thread: one for row, one in self._waiting if row.begins <= seconds < row.ends}
        for row, one in self._waiting:
            ready_ns = row.ready_since_ms * MS - (row.ends - seconds) * NS_PER_S
            if ready_ns > 0 and one.site.thread in found:
                found[one.site.thread] = one._replace(runqueue_ns=ready_ns)
        return found

    def set_filters(self, filters: Filters) -> None:
        if self.refuses:
            raise self.refuses
        self.filters = filters

    def set_mode(self, mode: str, depth: int) -> None:
        if self.refuses:
            raise self.refuses
        self.mode, self.depth = mode, depth

    def set_counted(self, mode: str, wanted: bool) -> None:
        (self.files_requested if mode == FILE else self.disks_requested).append(wanted)
        if self.refuses:
            raise self.refuses

    def wait_for_names(self, frames: set[Frame], seconds: float) -> bool:
        """Return at once: all names are known."""
        return True

    def why_nameless(self, frame: Frame) -> str:
        return NOT_KNOWN

    def describe(self, pids: Collection[int]) -> None:
        self.asked.append({*pids})
        self._catalog.details.update((pid, self._who[pid]) for pid in pids if pid in self._who)
        self._catalog.details_version = len(self._catalog.details)

    def set_thresholds(self, thresholds: Thresholds | None) -> None:
        self.thresholds = thresholds

    def outliers(self) -> Sequence[Outlier]:
        return ()

    def find_peers(self, waited_on: Mapping[Object, int]) -> None:
        self.sought.append({*waited_on})
        found = {what: self._object_peers[what] for what in waited_on if what in self._object_peers}
        self._catalog.peers_version += found != {} and not found.items() <= self._catalog.peers.items()
        self._catalog.peers.update(found)

    def process_details(self, pid: int) -> Sequence[tuple[str, str]]:
        return [("pid", str(pid)), ("command line", "/opt/shop --open \x1b[31m")]

    def about(self) -> list[tuple[str, str]]:
        return [("kernel", "6.18.0"), ("switch-in probe", "exit")]

    def close(self) -> None:
        self.closed.set()


class BrokenSource(ScriptedSource):
    """A source with broken user stacks.

    In SHOP, `take_order` has no callers (0.60 of 1.00) and `count_money` has no name (0.10).
    """

    def _id(self, stack: Stack) -> int:
        leaf = stack.frames[0].name
        if leaf == "take_order":
            stack = stack._replace(frames=(Frame("/usr/lib/libshop.so.1", 1, leaf),), end=NO_WAY)
        elif leaf == "count_money":
            stack = stack._replace(frames=(Frame("/opt/\x1b[2Jbank", 0x77), *stack.frames[1:]))
        return super()._id(stack)

    def of(self, frame: Frame) -> str:
        return super().of(frame) or nameless(frame)

    def why_nameless(self, frame: Frame) -> str:
        return STRIPPED


def _stack_of(names: Sequence[str]) -> Stack:
    """Return a user stack of these functions, leaf first."""
    return Stack(tuple(Frame("/usr/bin/it", n, name) for n, name in enumerate(names)))
