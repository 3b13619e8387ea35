"""A source of any number of made-up waits, to look at the screen and to measure the cost of a tick."""

import random
from collections.abc import Collection, Iterable, Mapping, Sequence

from offtop.feed.source import LiveFeed
from offtop.model.aggregate.stack_problems import NOT_KNOWN
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey
from offtop.model.values.outlier import Thresholds
from offtop.model.values.snapshot import Cost, Filters, SiteTotals, Snapshot, ThreadTotals, Waiting
from offtop.model.values.stack import FIRST_STACK, KERNEL, Frame, Names, Stack
from offtop.model.values.wake import Object
from offtop.units import NS_PER_S

LEAVES = {
    "lock": ("futex_do_wait", "pthread_mutex_lock", "buf_page_get_gen"),
    "disk-write": ("folio_wait_bit", "pwrite64", "fil_io"),
    "disk-read": ("io_schedule", "pread64", "os_file_read"),
    "fsync": ("jbd2_log_wait_commit", "fdatasync", "log_write_up_to"),
    "net-recv": ("sk_wait_data", "recv", "my_net_read"),
    "page-fault": ("folio_wait_bit_common", "memcpy", "row_search_mvcc"),
    "poll": ("do_epoll_wait", "epoll_wait", "uv__io_poll"),
    "sleep": ("do_nanosleep", "clock_nanosleep", "srv_master_sleep"),
    "kthread-idle": ("worker_thread", "", ""),
}
PROCESSES = ("mysqld", "java", "postgres", "python3", "nginx", "redis-server", "node", "dockerd")


class BusySource(LiveFeed):
    """A source with `sites` sites that each finish a wait per tick, on half as many threads.

    Another `still` threads are in a wait all the time.
    """

    host = "db7"
    version = 0
    """All names are known from the start."""

    def __init__(self, sites: int = 300, still: int = 100, ticks: int | None = None, seed: int = 7) -> None:
        self._random = random.Random(seed)
        self._left = ticks
        self._at_ns = 1_000 * NS_PER_S
        self._taken_ns = 1_795_226_600 * NS_PER_S
        self._catalog = Catalog()
        self._filters = Filters()
        self._switches = 0
        for number, (category, (kernel, libc, user)) in enumerate(LEAVES.items()):
            self._catalog.stacks[FIRST_STACK + 2 * number] = Stack(
                (Frame(KERNEL, 0, "schedule"), Frame(KERNEL, 0, kernel), Frame(KERNEL, 0, "do_syscall_64")), 1, category
            )
            self._catalog.stacks[FIRST_STACK + 2 * number + 1] = Stack(
                (
                    Frame("/lib/libc.so.6", 4096, libc),
                    Frame("/usr/sbin/mysqld", 99, user),
                    Frame("/usr/sbin/mysqld", 7, "main"),
                )
                if user
                else ()
            )
        busy = [c for c in LEAVES if c not in ("poll", "kthread-idle")]
        idle = ["poll", "kthread-idle"]
        self._busy: list[SiteKey] = []
        while len(self._busy) < sites:
            key = self._site(len(self._busy), sites, busy)
            if key not in self._busy[-1:]:
                self._busy.append(key)
        self._sites = {key: SiteTotals() for key in self._busy}
        self._threads = {key.thread: ThreadTotals() for key in self._busy}
        self._waiting: dict[ThreadKey, Waiting] = {}
        for number in range(still):
            key = self._site(sites + 2 * number, 2 * sites, idle)
            self._waiting[key.thread] = Waiting(key, self._at_ns, self._at_ns)

    def _site(self, number: int, of: int, categories: Iterable[str]) -> SiteKey:
        choice = self._random.choices(list(categories), [1 / (1 + i) for i, _ in enumerate(categories)])[0]
        stack = FIRST_STACK + 2 * list(LEAVES).index(choice)
        tid = 4_000 + number // 2
        pid = 4_000 + (number // 2) // max(1, of // 40) * max(1, of // 40)
        self._catalog.processes[pid] = PROCESSES[pid % len(PROCESSES)]
        self._catalog.comms[ThreadKey(pid, tid)] = f"worker-{tid % 100}"
        return SiteKey(pid, tid, stack, stack + 1)

    @property
    def names(self) -> Names:
        return self

    def of(self, frame: Frame) -> str:
        return frame.name or f"{frame.file.rpartition('/')[2]}+0x{frame.offset:x}"

    def read(self) -> Snapshot | None:
        if self._left is not None:
            if not self._left:
                return None
            self._left -= 1
        self._at_ns += NS_PER_S
        self._taken_ns += NS_PER_S
        sites, threads = dict(self._sites), dict(self._threads)
        for key in self._busy:
            wait_ns = int(self._random.paretovariate(1.2) * 2_000_000) % NS_PER_S
            ready_ns = wait_ns // 20
            short_ns = 40_000
            s, t = sites[key], threads[key.thread]
            histogram = log2.of(wait_ns)
            sites[key] = SiteTotals(
                s.waits + 1, s.total_ns + wait_ns, s.runqueue_ns + ready_ns, wait_ns, s.histogram + histogram
            )
            threads[key.thread] = t._replace(
                waits=t.waits + 3,
                offcpu_ns=t.offcpu_ns + wait_ns + short_ns,
                runqueue_ns=t.runqueue_ns + ready_ns + 1_000,
                short_waits=t.short_waits + 2,
                short_ns=t.short_ns + short_ns,
                short_runqueue_ns=t.short_runqueue_ns + 1_000,
                max_ns=wait_ns,
                histogram=t.histogram + histogram + 2 * log2.of(20_000),
            )
        self._sites, self._threads = sites, threads
        return Snapshot(
            taken_ns=self._taken_ns,
            at_ns=self._at_ns,
            threads=threads,
            sites=sites,
            waiting=dict(self._waiting),
            catalog=self._catalog,
            cost=Cost(212.0, 81_200, 1.9, 0.6, 62_000_000),
            probe="exit",
            filters=self._filters,
        )

    def set_filters(self, filters: Filters) -> None:
        self._filters = filters

    def set_mode(self, mode: str, depth: int) -> None:
        """Do nothing: there are no wakers."""

    def set_counted(self, mode: str, wanted: bool) -> None:
        """Do nothing: there are no file operations and no requests to disks."""

    def wait_for_names(self, frames: set[Frame], seconds: float) -> bool:
        """Return at once: all names are known."""
        return True

    def why_nameless(self, frame: Frame) -> str:
        return NOT_KNOWN

    def describe(self, pids: Collection[int]) -> None:
        """Do nothing: there are no process details."""

    def set_thresholds(self, thresholds: Thresholds | None) -> None:
        """Do nothing: there are no outliers."""

    def find_peers(self, waited_on: Mapping[Object, int]) -> None:
        """Do nothing: there are no peers."""

    def process_details(self, pid: int) -> Sequence[tuple[str, str]]:
        return [("pid", str(pid)), ("command line", "/opt/shop --open \x1b[31m")]

    def about(self) -> list[tuple[str, str]]:
        return [("kernel", "6.18.0"), ("switch-in probe", "sched_exit_tp")]

    def close(self) -> None:
        """Do nothing: nothing is attached."""
