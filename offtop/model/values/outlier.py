"""Outlier: a wait or tick that is too long by a trigger or by what is usual.

It is stored in full when it happens. It contains the stacks, wakes and threads that it refers to, so that it can be
shown when everything else of that moment has been dropped.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from offtop.model.values.catalog import Catalog, SiteKey
from offtop.units import NS_PER_S

NEVER_NS = (1 << 64) - 1
MOST_KEPT = 2000
APART_NS = 30 * NS_PER_S
"""Outliers of one rule, program and category are reported once in that time; others are counted."""
AUTO = "auto"
"""Rule that judges by what is usual."""


class Thresholds(Protocol):
    """Thresholds from which on waits are recorded in full. For the thread that reads ticks."""

    @property
    def lowest_ns(self) -> int:
        """Lower bound of all thresholds; NEVER_NS: none are set."""
        ...

    @property
    def version(self) -> int:
        """Changes whenever thresholds may change."""
        ...

    def thresholds_ns(self, program: str, kernel: int, catalog: Catalog) -> tuple[int, int]:
        """Return how long a program may be blocked at a kernel stack, and how long runnable."""
        ...


class LongWait(NamedTuple):
    """A wait that reached a threshold, in full. Times are CLOCK_MONOTONIC."""

    site: SiteKey
    began_ns: int
    ended_ns: int = 0
    """0: in progress."""
    runqueue_ns: int = 0
    """How much of it, at its end, was run-queue time."""
    state: int = 0
    """Task state at switch-out, as in Waiting."""
    cpu: int = -1
    """CPU on which the thread ran next; -1: unknown."""
    program: str = ""
    """Raw process name at that time."""
    is_exact: bool = True
    """Whether begin and end are exact; otherwise they are known by ticks or polls."""
    began_earlier: bool = False
    """It began before `began_ns`, when it was first seen: it was longer than that."""

    @property
    def identity(self) -> tuple[int, int, int]:
        """Unique to the wait."""
        return self.site.pid, self.site.tid, self.began_ns

    def length_ns(self, at_ns: int) -> int:
        """Return its length as of `at_ns`."""
        return max(0, (min(self.ended_ns, at_ns) if self.ended_ns else at_ns) - self.began_ns)


MOST_WHAT = 200
"""Characters of the end of an operation and its path that an outlier keeps."""


class SlowIo(NamedTuple):
    """The slowest file operation or request of an outlier that is not about waits."""

    mode: str
    """One of disks.LIST_MODES."""
    what: str
    """`fsync /var/lib/db/redo.log`; raw."""


class Outlier(NamedTuple):
    at_ns: int
    """CLOCK_MONOTONIC of the end of the tick in which it was found."""
    taken_ns: int
    """CLOCK_REALTIME of the same."""
    rule: str
    """AUTO, or the text of a trigger."""
    metric: str
    """One of trigger.METRICS: what `value` and `threshold` measure."""
    category: str
    program: str
    """Raw."""
    value: float
    """ns, threads, or a rate per second; for a wait in progress, as of when it was found."""
    threshold: float
    usual_ns: int = 0
    """99.9th percentile of that program and category in the minutes before, upper bound; 0: unknown."""
    wait: LongWait | None = None
    """None for a tick, or for a file operation or request."""
    after: str = ""
    """What the thread did at the end of that tick: `running`, or letter and category of its next wait."""
    was_reported: bool = False
    """It was reported before, while in progress, and has ended since."""
    more: int = 0
    """Others of its kind in that tick, which are only counted."""
    catalog: Catalog = Catalog()
    """Only what it refers to."""
    io: SlowIo | None = None
    """Of outliers among file operations or requests to disks; `category` is the operation then."""
    says: str = ""
    """The sentence of a new suspect, raw; empty for other outliers."""

    @property
    def what(self) -> str:
        """The file or disk that was slow, or the sentence of a suspect; empty for others. Raw."""
        return self.io.what if self.io else self.says

    @property
    def is_going_on(self) -> bool:
        return self.wait is not None and not self.wait.ended_ns

    @property
    def comm(self) -> str:
        """Raw thread name; the program if it is not about one thread."""
        return (self.catalog.comm(self.wait.site.thread) if self.wait else "") or self.program

    @property
    def length_ns(self) -> int:
        """0: not a wait."""
        return self.wait.length_ns(self.at_ns if not self.wait.ended_ns else self.wait.ended_ns) if self.wait else 0

    @property
    def kind(self) -> tuple[str, str, str]:
        """Those of one kind are reported once in APART_NS."""
        return self.rule, self.program, self.category


class Group(NamedTuple):
    """Outliers of one kind in short succession: one line of the list."""

    worst: Outlier
    many: int
    """How many there were."""
    first: Outlier
    last: Outlier


def groups(every: Iterable[Outlier]) -> list[Group]:
    """Group outliers, which are in order of time; groups are in the order of their first ones."""
    found: list[Group] = []
    open_: dict[tuple[str, str, str], int] = {}
    for one in every:
        number = open_.get(one.kind)
        if number is not None and one.at_ns - found[number].first.at_ns < APART_NS:
            was = found[number]
            worst = one if one.value > was.worst.value else was.worst
            found[number] = Group(worst, was.many + 1 + one.more, was.first, one)
        else:
            open_[one.kind] = len(found)
            found.append(Group(one, 1 + one.more, one, one))
    return found


class Outliers:
    """The newest outliers in order of time. One thread adds; any thread may read."""

    def __init__(self, known: Sequence[Outlier] = (), most: int = MOST_KEPT) -> None:
        self._most = most
        self.dropped = max(0, len(known) - most)
        """How many are no longer stored."""
        self.every: tuple[Outlier, ...] = tuple(known[-most:])
        """Immutable; it is replaced."""
        self.version = 0

    def add(self, new: Sequence[Outlier]) -> None:
        """Add the outliers of a tick."""
        if new:
            every = joined([*self.every, *new])
            self.dropped += max(0, len(every) - self._most)
            self.every = tuple(every[-self._most :])
            self.version += 1


NO_OUTLIERS = Outliers()
"""Never changes."""


def joined(every: Iterable[Outlier]) -> list[Outlier]:
    """Replace waits found in progress by what was reported at their end."""
    found: list[Outlier] = []
    going: dict[tuple[int, int, int], int] = {}
    for one in every:
        number = going.pop(one.wait.identity, None) if one.wait else None
        if number is not None:
            was = found[number]
            found[number] = one._replace(at_ns=was.at_ns, taken_ns=was.taken_ns, was_reported=False, more=was.more)
            continue
        if one.is_going_on and one.wait:
            going[one.wait.identity] = len(found)
        found.append(one)
    return found
