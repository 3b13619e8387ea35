"""A Source that plays a small table of waits: what each site adds in one second, the same in every second."""

from collections.abc import Sequence
from threading import Event
from typing import NamedTuple

from offtop.errors import OfftopError
from offtop.model import histogram as log2
from offtop.model.book import Book, SiteKey, ThreadKey
from offtop.model.snapshot import Cost, Filters, SiteTotals, Snapshot, ThreadTotals, Waiting
from offtop.model.stack import FIRST_STACK, KERNEL, NO_STACK, Frame, Names, Stack
from offtop.units import NS_PER_S

MS = 1_000_000
START_NS = 1_795_226_400 * NS_PER_S
"""2026-11-21 02:00:00 UTC."""
AT_NS = 1_000 * NS_PER_S


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
    """Finished waits at this place, each so long."""
    ready_ms: int = 0
    """How much of them the thread was ready."""
    short_waits: int = 0
    """Waits of 10 us."""
    waits_on: bool = False
    """In one wait all the time, which never ends."""


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


class ScriptedSource:
    """`ticks` seconds of `table`, then nothing until it is closed."""

    host = "db7"

    def __init__(
        self,
        table: Sequence[Waits] = TABLE,
        ticks: int = 3,
        lost: dict[str, int] | None = None,
        error: OfftopError | None = None,
        ends: bool = False,
    ) -> None:
        self.filters = Filters()
        self.refuses: OfftopError | None = None
        """Raised by set_filters."""
        self.closed = Event()
        self.reads = 0
        self._table = table
        self.ticks = ticks
        self._lost = lost or {}
        self._error = error
        self._ends = ends
        self._book = Book()
        self._keys = [self._key(number, row) for number, row in enumerate(table)]
        self._waiting = {
            key.thread: Waiting(key, AT_NS, AT_NS) for key, row in zip(self._keys, table, strict=True) if row.waits_on
        }

    def _key(self, number: int, row: Waits) -> SiteKey:
        kernel = FIRST_STACK + 2 * number
        frames = tuple(Frame(KERNEL, 0, name) for name in ("schedule", row.kernel))
        self._book.stacks[kernel] = Stack(frames, 1, row.category)
        self._book.stacks[kernel + 1] = Stack(tuple(Frame("/usr/bin/it", n, name) for n, name in enumerate(row.user)))
        self._book.comms[ThreadKey(row.pid, row.tid)] = row.comm
        self._book.processes[row.pid] = row.process
        return SiteKey(row.pid, row.tid, kernel, kernel + 1 if row.user else NO_STACK)

    @property
    def names(self) -> Names:
        return self

    def of(self, frame: Frame) -> str:
        return frame.name

    def read(self) -> Snapshot | None:
        while self.reads > self.ticks:
            if self._error:
                raise self._error
            if self._ends or self.closed.wait(0.005):
                return None
        seconds = self.reads
        self.reads += 1
        return self.after(seconds)

    def go_on(self, to: int) -> None:
        """Play on, up to tick number `to`."""
        self.ticks = to

    def after(self, seconds: int) -> Snapshot:
        """The snapshot of that many seconds after the start."""
        threads: dict[ThreadKey, ThreadTotals] = {}
        sites: dict[SiteKey, SiteTotals] = {}
        for key, row in zip(self._keys, self._table, strict=True):
            waits_ns = [ms * MS for ms in row.waits_ms]
            total_ns, longest_ns, histogram = sum(waits_ns), max(waits_ns, default=0), log2.of(*waits_ns)
            short_ns = row.short_waits * 10_000
            if seconds and not row.waits_on:
                sites[key] = SiteTotals(
                    seconds * len(waits_ns),
                    seconds * total_ns,
                    seconds * row.ready_ms * MS,
                    longest_ns,
                    seconds * histogram,
                )
                threads[key.thread] = ThreadTotals(
                    waits=seconds * (len(waits_ns) + row.short_waits),
                    offcpu_ns=seconds * (total_ns + short_ns),
                    runqueue_ns=seconds * row.ready_ms * MS,
                    short_waits=seconds * row.short_waits,
                    short_ns=seconds * short_ns,
                    max_ns=longest_ns,
                    histogram=seconds * (histogram + row.short_waits * log2.of(10_000)),
                )
        return Snapshot(
            taken_ns=START_NS + seconds * NS_PER_S,
            at_ns=AT_NS + seconds * NS_PER_S,
            threads=threads,
            sites=sites,
            waiting=self._waiting,
            book=self._book,
            lost={kind: seconds * n for kind, n in self._lost.items()} if seconds else {},
            cost=Cost(212.0, 81_200, 1.9, 0.6, 62_000_000),
            door="exit",
            filters=self.filters,
        )

    def set_filters(self, filters: Filters) -> None:
        if self.refuses:
            raise self.refuses
        self.filters = filters

    def wait_for_names(self, frames: set[Frame], seconds: float) -> None:
        """All names are known."""

    def about(self) -> list[tuple[str, str]]:
        return [("kernel", "6.18.0"), ("door", "exit")]

    def close(self) -> None:
        self.closed.set()
