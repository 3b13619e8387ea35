"""A source with wakers, for tests of snapshots, recordings and JSON."""

from dataclasses import replace

from offtop.model.values.catalog import SiteKey
from offtop.model.values.peers import PEER, Peers, PeerSide, Process
from offtop.model.values.snapshot import EXITED, SiteTotals, Snapshot
from offtop.model.values.stack import KERNEL, NO_STACK, Frame, Stack
from offtop.model.values.wake import (
    CHAIN,
    DEPTH,
    EXIT,
    FIRST_WAKE,
    IRQ,
    LOOP,
    NO_WAKE,
    OFFCPU,
    SOFTIRQ,
    THREAD,
    WAKE_LOST,
    WAKE_SHORT,
    WHOLE,
    Link,
    Object,
    Storm,
    Wake,
    Waker,
)
from tests.ui.scripted import SHOP, ScriptedSource

KEPT_SECONDS = 3
"""Seconds without a wait after which a site of the teller is evicted."""
LOCK, READ, ANSWER, STORMS, FIRST_TELLER = FIRST_WAKE, FIRST_WAKE + 1, FIRST_WAKE + 2, FIRST_WAKE + 3, FIRST_WAKE + 10
"""Ids of wakes. Those of the teller's waits start at FIRST_TELLER, a new one each second."""
EVIL = "worker\x1b[31m\udc80"
ENDED_BY = {
    ("worker-1", "lock"): WAKE_SHORT,
    ("worker-1", "disk-read"): READ,
    ("worker-2", "lock"): LOCK,
    ("clerk", "net-recv"): ANSWER,
    ("vault", "fsync"): WAKE_LOST,
}


TCP = Object("tcp", "socket:[17]", 0, "10.0.0.1:80", "\x1b[2J:4000", "close-wait")
ENDS = Peers((PeerSide(PEER, (Process(4242, EVIL), Process(77, "less")), 12),), (("socket", 57), (EVIL, 1)))


class WokenSource(ScriptedSource):
    """SHOP with wakers.

    worker-1 ends the lock waits of worker-2 and has itself waited for a disk. The network ends the waits of clerk, and
    an exiting child those of teller, another one each second. The waker of vault is lost. Each second door wakes 100
    threads at once.
    """

    def __init__(self, ticks: int = 3, ends: bool = False, begins: int = 0) -> None:
        """`begins`: second from which wakers are collected."""
        super().__init__(SHOP, ticks=ticks, ends=ends, object_peers={TCP: ENDS})
        self._begins = begins
        self.mode = CHAIN
        stack = self._own
        woke = stack("futex_wake", "do_futex"), stack("unlock", "serve", "main")
        self.worker = Waker(THREAD, "", 100, 101, EVIL, "", *woke)
        disk = Waker(IRQ, "nvme_irq", kernel=stack("nvme_irq", "__handle_irq_event_percpu"))
        network = Waker(THREAD, "", 300, 300, "door", SOFTIRQ, stack("sock_def_readable"), stack("send", "main"))
        waited = stack("io_schedule"), stack("read_page", "main")
        self._catalog.wakes |= {
            LOCK: Wake(self.worker, Object("futex", "0x7f00", 100), (Link(*waited, disk),), WHOLE),
            READ: Wake(disk, Object("file", "/var/\x1b[2Jdata"), (), WHOLE),
            ANSWER: Wake(network, TCP, (Link(*waited, self.worker),) * 3, LOOP),
            STORMS: Wake(network._replace(via="")),
        }

    def _own(self, *names: str) -> int:
        """Return the id of a stack without waits."""
        kernel = names[0] in ("futex_wake", "nvme_irq", "sock_def_readable", "io_schedule", "do_exit")
        frames = tuple(Frame(KERNEL, 0, name) if kernel else Frame("/opt/own", len(name), name) for name in names)
        return self._id(Stack(frames))

    def teller(self, second: int) -> int:
        """Return the id of the wake that ended the teller's waits in that second."""
        child = Waker(EXIT, "", 5000 + second, 5000 + second, "child", "", self._own("do_exit", f"of_{second}"))
        self._catalog.wakes[FIRST_TELLER + second] = Wake(child, end=DEPTH)
        return FIRST_TELLER + second

    def after(self, seconds: int) -> Snapshot:
        plain, asked = super().after(seconds), seconds - self._begins
        if asked <= 0:
            return replace(plain, mode=OFFCPU) if self._begins else plain
        before, each = super().after(self._begins).sites, super().after(1).sites
        sites = {key: totals._replace(max_ns=0) for key, totals in before.items()}
        for key, row in zip(self._keys, self._table, strict=True):
            if row.comm == "teller":
                sites |= self._tellers(key, each[key], asked)
            elif key in each:
                sites[key._replace(wake=ENDED_BY.get((row.comm, row.category), NO_WAKE))] = _so_often(asked, each[key])
        return replace(plain, sites=sites, storms={STORMS: Storm(asked, 100 * asked, 90 * asked, 100)})

    def _tellers(self, key: SiteKey, each: SiteTotals, asked: int) -> dict[SiteKey, SiteTotals]:
        found: dict[SiteKey, SiteTotals] = {}
        for number in range(1, asked + 1):
            is_gone = number <= asked - KEPT_SECONDS
            some = each if number == asked else each._replace(max_ns=0)
            where = key._replace(wake=self.teller(self._begins + number))
            where = SiteKey(*EXITED, key.kernel, NO_STACK) if is_gone else where
            found[where] = found.get(where, SiteTotals()).plus(some)
        return found


def _so_often(times: int, each: SiteTotals) -> SiteTotals:
    return SiteTotals(*(times * value for value in each))._replace(max_ns=each.max_ns)
