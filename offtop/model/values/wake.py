"""Wake: what ended a wait: waker, object waited on, and the wakers before."""

from collections.abc import Mapping
from typing import NamedTuple

from offtop.model.values.stack import NO_STACK

OFFCPU, WAKEUP, OFFWAKE, CHAIN = "offcpu", "wakeup", "offwake", "chain"
MODES = (OFFCPU, WAKEUP, OFFWAKE, CHAIN)
"""What can be requested, from least to most: no wakers, wakers, and the chain of wakers behind them."""
_LEVELS = {OFFCPU: 0, WAKEUP: 1, OFFWAKE: 1, CHAIN: 2}


def level(mode: str) -> int:
    """Return how much a mode gathers; 0 for a mode of a newer offtop."""
    return _LEVELS.get(mode, 0)


def gathers(gathered: str, shown: str) -> bool:
    """Return whether one mode gathers everything that another one shows."""
    return level(gathered) >= level(shown)


DEFAULT_DEPTH, MOST_DEPTH = 4, 8
"""Number of wakers in a chain."""

THREAD, IRQ, SOFTIRQ, TIMER, TIMEOUT, SIGNAL, EXIT, NOBODY = (
    *("thread", "irq", "softirq", "timer", "timeout", "signal", "exit"),
    "unknown",
)
KINDS: Mapping[str, str] = {
    THREAD: "another thread",
    IRQ: "an interrupt from a device or another CPU; the interrupted thread is unrelated",
    SOFTIRQ: "deferred work of an interrupt, such as received packets",
    TIMER: "a timer of the kernel or of a program",
    TIMEOUT: "the timeout of the wait itself",
    SIGNAL: "a signal to the thread that waited",
    EXIT: "a thread or process that exited",
    NOBODY: "unknown",
}
"""What may end a wait."""


class Waker(NamedTuple):
    kind: str = NOBODY
    """One of KINDS."""
    name: str = ""
    """Handler of an interrupt, function of a softirq or timer, the reason for NOBODY; otherwise empty."""
    pid: int = 0
    """For threads, and processes that send a signal or exit; otherwise 0."""
    tid: int = 0
    comm: str = ""
    """Raw thread name at that time: escape it before it is shown."""
    via: str = ""
    """`softirq` if it ran within a system call of the thread."""
    kernel: int = NO_STACK
    """Stack id."""
    user: int = NO_STACK
    """Stack id."""

    @property
    def label(self) -> str:
        """`mysqld`, `irq (nvme_irq)`, `timeout`; raw."""
        if self.tid:
            return self.comm if self.kind == THREAD else f"{self.kind} ({self.comm})"
        return (
            f"{self.kind} ({self.name})" if self.name and self.kind not in (TIMEOUT, NOBODY) else self.name or self.kind
        )


def waker_names(one: Waker) -> tuple[str, ...]:
    """Return the texts that a filter matches."""
    return one.label, one.kind, one.comm, one.name


class Object(NamedTuple):
    """What a thread waits on."""

    kind: str = ""
    """`futex`, `pipe`, `tcp`, `udp`, `unix`, `socket` (of another family), `eventfd`, `epoll`, `file`, `child`, `poll`
    (any of several) and so on; empty if unknown."""
    name: str = ""
    """`pipe:[1234]`, `socket:[1234]`, a path; the same for all threads that wait on it."""
    pid: int = 0
    """The process in which the name is valid; 0: it is valid everywhere."""
    local: str = ""
    """Local address of `tcp` and `udp`: `10.0.0.1:40312`, `*:80`, `[::1]:53`."""
    peer: str = ""
    """Peer address, if connected; for `unix` the process that created the peer, `postgres(4242)`. Raw."""
    state: str = ""
    """State of `tcp`: `established`, `listen`, SYN_SENT and so on."""

    @property
    def label(self) -> str:
        """`pipe:[1234]`, `futex 0x7f12 of 4242`, `tcp 10.0.0.5:5432 via :40312`; raw."""
        if self.local:
            return f"{self.kind} {self._addresses}{self._state_note}"
        if self.kind == UNIX:
            number = self.name.removeprefix("socket:")
            return f"{UNIX} {number} to {self.peer}" if self.peer else f"{UNIX} {number}"
        name = self.name if self.name.startswith(self.kind) else f"{self.kind} {self.name}"
        return f"{name} of {self.pid}" if self.pid else name

    @property
    def _addresses(self) -> str:
        return f"{self.peer} via :{self.local.rpartition(':')[2]}" if self.peer else self.local

    @property
    def _state_note(self) -> str:
        """The TCP state, unless it is the usual one."""
        state = {"established": "", "listen": "listening"}.get(self.state, self.state)
        return f" ({state})" if state else ""


UNIX = "unix"
SYN_SENT = "syn-sent"
"""State of a TCP socket that waits for the other side to accept its connection."""
NO_OBJECT = Object()


def object_names(one: Object) -> tuple[str, ...]:
    """Return the texts that a filter matches; none if the object is unknown."""
    return (one.label, one.name, one.kind, one.local, one.peer, one.state) if one.kind else ()


class Link(NamedTuple):
    """The last wait of a waker, and what ended it."""

    kernel: int
    """Stack id."""
    user: int
    """Stack id."""
    waker: Waker


WHOLE, DEPTH, LOOP, BRIEF, UNSEEN, LOST = "whole", "depth", "loop", "short", "unseen", "lost"
CHAIN_ENDS: Mapping[str, str] = {
    WHOLE: "whole: the last waker is not a thread",
    DEPTH: "deeper than --depth",
    LOOP: "the last waker is already in the chain",
    BRIEF: "the last waker's own wait was below the minimum",
    UNSEEN: "the last waker's own wait was not seen",
    LOST: "the rest was lost",
}
"""How a chain may end."""


class Wake(NamedTuple):
    waker: Waker = Waker()
    object: Object = NO_OBJECT
    links: tuple[Link, ...] = ()
    """The waker's own last wait, then that of the one that ended it, and so on; only in mode chain."""
    end: str = UNSEEN
    """One of CHAIN_ENDS."""

    @property
    def has_waker(self) -> bool:
        """Whether something ended the wait, known or not.

        False if wakers are not gathered, the wait goes on, or the thread only waited for a CPU.
        """
        return self.waker not in (STILL_WAITING, NOT_GATHERED, CPU_ONLY)

    @property
    def stacks(self) -> set[int]:
        """Ids of its stacks."""
        found = {self.waker.kernel, self.waker.user}
        for link in self.links:
            found |= {link.kernel, link.user, link.waker.kernel, link.waker.user}
        return found


NOT_GATHERED = Waker(NOBODY, "(nobody asked who woke it)")
"""If wakers are not gathered, but the object waited on is known. The name is never shown; recordings have it."""
STILL_WAITING = Waker(NOBODY, "(still waiting)")
CPU_ONLY = Waker(NOBODY, "(waited only for a CPU)")
NO_WAKE = 0
"""Id: wakers are not gathered, or the wait goes on; and the object waited on is unknown."""
WAKE_LOST, WAKE_SHORT, WAKE_UNSEEN, WAKE_CPU = 1, 2, 3, 4
FIRST_WAKE = 5
"""Ids from here on are assigned by the source."""
LOST_WAKE = Wake(Waker(NOBODY, "(waker lost)"))
RESERVED: Mapping[int, Wake] = {
    NO_WAKE: Wake(STILL_WAITING),
    WAKE_LOST: LOST_WAKE,
    WAKE_SHORT: Wake(Waker(NOBODY, "(woken before the minimum)")),
    WAKE_UNSEEN: Wake(Waker(NOBODY, "(wakeup not recorded)")),
    WAKE_CPU: Wake(CPU_ONLY),
}


class Storm(NamedTuple):
    """Bursts of wakeups by one waker through one code path, of at least STORM threads each."""

    storms: int = 0
    woken: int = 0
    """Threads woken in all of them."""
    slept_again: int = 0
    """How many of those went back to sleep within a millisecond; some of the first few of a storm may be missing."""
    largest: int = 0
    """Threads woken in the largest of them."""

    def plus(self, other: "Storm") -> "Storm":
        return Storm(
            self.storms + other.storms,
            self.woken + other.woken,
            self.slept_again + other.slept_again,
            max(self.largest, other.largest),
        )

    @property
    def is_herd(self) -> bool:
        """Whether most of the woken threads slept again at once, with little or no work."""
        return self.storms > 0 and 2 * self.slept_again > self.woken

    @property
    def wasted_switches(self) -> int:
        """Each thread that slept again at once cost a switch in and a switch out."""
        return 2 * self.slept_again


NO_STORM = Storm()
STORM = 8
"""How many threads make a storm; the same as in bpf/offcpu.h."""
