"""Suspect: what others wait for, and the chain of waits that leads to it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from offtop.model.classify.categories import CONNECT
from offtop.model.values.blockers import ANSWER, UPSTREAM
from offtop.model.values.catalog import SiteKey, ThreadKey
from offtop.model.windows.breakdown import THROTTLE

HOLDER, DEADLOCK, LOOP, CPU, QUOTA, WAIT = "holder", "deadlock", "loop", "cpu", "quota", "wait"
KINDS: Mapping[str, str] = {
    HOLDER: "others wait for what it holds, or for what it must do",
    DEADLOCK: "threads that wait for each other's locks, or one for a lock that it holds itself",
    LOOP: "threads that wait for each other, not only for locks",
    CPU: "others wait for a CPU while it runs",
    QUOTA: "its cgroup has used up its CPU quota",
    WAIT: "nothing is known to hold what these threads wait for",
}
_AT_ADDRESS = (ANSWER, UPSTREAM)
_UNNAMED = (CONNECT, THROTTLE)
"""Categories of waits whose object is an address or a cgroup."""


class Hop(NamedTuple):
    """Threads in a chain that do the same."""

    key: ThreadKey
    """The one with the oldest wait; tid 0: some thread of the process."""
    program: str
    """Raw. An address if it is not on this machine, or the name of a disk; `key` is (0, 0) then."""
    threads: int
    pids: int
    """Number of their processes."""
    state: str
    """Category of their wait, `runs` or `idle`."""
    site: SiteKey | None
    """Where that thread waits; None if it is not known to be in one long wait."""
    age_ns: int
    """Of the oldest wait; 0: unknown."""
    title: str = ""
    """Title of its process. Raw."""
    via: str = ""
    """How it is known that the next hop must act: one of blockers.VIA; empty for the last hop."""
    is_exact: bool = True
    what: str = ""
    """Name of the object that the next hop holds; of threads that wait for a connection, the address; of threads that
    wait for a CPU quota, the path of its cgroup. Raw."""
    unread: int = 0
    """How many other threads of the program are at a lock, with no function of theirs known yet: they may wait for the
    same."""
    others: int = 0
    """How many other programs have threads that wait for the same."""
    frozen_by: str = ""
    """Path of the file by which the cgroup of that thread is frozen; empty if it is not, or unknown. Raw."""
    limited_by: str = ""
    """Path of the file of the memory limit that the cgroup of that thread has reached; empty if none is known. Raw."""
    limit_bytes: int = 0
    """That limit; 0 if none is known."""
    quota_cpus: float = 0.0
    """How many CPUs the quota allows for which the threads wait; 0: unknown, or they do not wait for one."""


class SuspectName(NamedTuple):
    """Identifies a suspect at another time, when its processes may have other PIDs. All texts are raw."""

    kind: str
    """One of KINDS."""
    waiters: str
    """Program of the threads at the start of the chain."""
    category: str
    """Category of their wait."""
    end: str
    """Program that must act."""
    what: str
    """Name of the object that it holds; empty if there is none."""

    @property
    def text(self) -> str:
        """Return `flock (lock) behind sleep for job.lock`."""
        if self.kind in (DEADLOCK, LOOP):
            return f"{self.waiters} and {self.end} ({self.kind})"
        behind = f" behind {self.end}" if self.kind in (HOLDER, CPU) else ""
        return f"{self.waiters} ({self.category}){behind}{f' for {self.what}' if self.what else ''}"


class Suspect(NamedTuple):
    kind: str
    """One of KINDS."""
    hops: tuple[Hop, ...]
    """From the threads that nobody waits for to the one that must act. For a deadlock, its threads: each waits for the
    next."""
    waiting: float
    """Average number of threads that wait for it, directly or not."""
    harm: float
    """Less than `plain_harm` if such waits are usual on this machine."""
    plain_harm: float = 0.0
    since_ns: int = 0
    """CLOCK_REALTIME of the first tick in which it was a suspect."""
    lasted_ns: int = 0
    """How long ago that was. The waits may be shorter, if threads wait again and again."""
    number: int = 0
    """Tells suspects of one tick apart that are alike, as deadlocks of two processes of a program: 0 has most harm."""

    @property
    def end(self) -> Hop:
        return self.hops[-1]

    @property
    def culprit(self) -> ThreadKey:
        """The thread or process that must act; of threads that wait for each other, always the same one."""
        return min(one.key for one in self.hops) if self.kind in (DEADLOCK, LOOP) else self.end.key

    @property
    def is_likely(self) -> bool:
        """Whether a hop is not exact."""
        return not all(one.is_exact for one in self.hops)

    @property
    def age_ns(self) -> int:
        """Age of the oldest wait for it, or of its own if there is none."""
        return max(one.age_ns for one in self.hops[:-1] or self.hops)

    @property
    def key(self) -> tuple[str, ...]:
        """Equal at all ticks of one incident."""
        return self.kind, self.end.program, self.end.state, self._what, self.hops[0].program, str(self.number)

    @property
    def last(self) -> tuple[str, ...]:
        """The program that must act, and what it does."""
        return "last", self.end.program, self.end.state, self._what

    @property
    def waiters(self) -> tuple[str, ...]:
        """Program and wait at the start of the chain."""
        return self.hops[0].program, self.hops[0].state

    @property
    def name(self) -> SuspectName:
        first, last = self.hops[0].program, self.end.program
        if self.kind in (DEADLOCK, LOOP):  # any of them may be the first
            first, last = min(one.program for one in self.hops), max(one.program for one in self.hops)
        return SuspectName(self.kind, first, self.hops[0].state, last, self._what)

    @property
    def _what(self) -> str:
        """Name of the object that is held.

        An address does not count as a name, because it differs from run to run, nor does a cgroup.
        """
        named = [one for one in self.hops if one.via not in _AT_ADDRESS and (one.via or one.state not in _UNNAMED)]
        names = (one.what for one in reversed(named))
        return next((name for name in names if name not in ("", self.end.program)), "")


class Found(NamedTuple):
    """The suspects at one moment."""

    suspects: Sequence[Suspect] = ()
    """Most harm first."""
    standing: int = 0
    """Standing waits."""
    as_usual: Sequence[Suspect] = ()
    """Suspects that are left out because such waits are usual."""
    rivals: frozenset[int] = frozenset()
    """Processes that may take CPUs from each other."""

    def waiting_like(self, one: Suspect) -> float:
        """Return the average number of threads that wait for `one` or for another suspect of its name.

        Other moments can be compared with this only, because there suspects of one name are not told apart.
        """
        return sum(other.waiting for other in (*self.suspects, *self.as_usual) if other.name == one.name)


NOTHING_FOUND = Found()
Usual = Mapping[tuple[str, str], float]
"""(raw program, category) → average number of threads that wait that way when all is well."""
NOTHING_USUAL: Usual = {}


def averages(ticks: Iterable[tuple[Found, int]]) -> dict[tuple[str, ...], float]:
    """Return by name the average number of threads that waited for each suspect. Each tick has its length in ns."""
    sums: dict[tuple[str, ...], float] = {}
    whole_ns = 0
    for found, span_ns in ticks:
        whole_ns += span_ns
        for one in (*found.suspects, *found.as_usual):
            sums[one.name] = sums.get(one.name, 0.0) + one.waiting * span_ns
    return {name: waited / max(1, whole_ns) for name, waited in sums.items()}


def gone(found: Found, before: Mapping[tuple[str, ...], float]) -> list[tuple[SuspectName, float]]:
    """Return the suspects of the baseline for which no thread waits now, most waiting first."""
    there = {one.name for one in (*found.suspects, *found.as_usual)}
    names = ((SuspectName(*name), waiting) for name, waiting in before.items() if name not in there)
    return sorted(names, key=lambda one: -one[1])


def part_unusual(usual: Usual, program: str, category: str, now: float) -> float:
    """Return the share of the waiting `now` that exceeds what is usual."""
    return max(0.0, now - usual.get((program, category), 0.0)) / now


def weighed(one: Suspect, part: float) -> Suspect:
    """Return the suspect with this share of its harm, which is what exceeds the usual."""
    return one._replace(harm=one.harm * part, plain_harm=one.harm)
