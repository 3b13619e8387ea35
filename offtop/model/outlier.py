"""An outlier is a wait, or a tick, that a rule or what is usual calls too long; it is kept whole when it happens.

What an outlier names (stacks, wakes, threads) it brings along, so that it can be told when everything else of that
moment is forgotten.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from offtop.model.book import Book, SiteKey
from offtop.units import NS_PER_S

NEVER_NS = (1 << 64) - 1
MOST_KEPT = 2000
APART_NS = 30 * NS_PER_S
"""Outliers of one rule, program and category are told once in so long; further ones are counted."""
AUTO = "auto"
"""The rule that judges by what is usual."""


class Marks(Protocol):
    """From which length on waits are wanted whole. For the thread that reads."""

    @property
    def lowest_ns(self) -> int:
        """No mark is below it; NEVER_NS: nothing is wanted."""
        ...

    @property
    def version(self) -> int:
        """Another one whenever marks may be others."""
        ...

    def marks_ns(self, program: str, kernel: int, book: Book) -> tuple[int, int]:
        """Of a program's waits at a kernel stack: how long they may be blocked, and how long ready to run."""
        ...


class Caught(NamedTuple):
    """A wait that has reached a mark, whole. Times are CLOCK_MONOTONIC."""

    site: SiteKey
    began_ns: int
    ended_ns: int = 0
    """0: it goes on."""
    runqueue_ns: int = 0
    """How much of it, at its end, was run queue."""
    state: int = 0
    """The thread's at leaving, as Waiting has it."""
    cpu: int = -1
    """On which the thread went on; -1: not known."""
    program: str = ""
    """The process's name then, raw."""
    is_exact: bool = True
    """Whether it began and ended just then; else a tick or a look is all that tells."""

    @property
    def identity(self) -> tuple[int, int, int]:
        """No other wait has it."""
        return self.site.pid, self.site.tid, self.began_ns

    def length_ns(self, at_ns: int) -> int:
        """As far as it had come by then."""
        return max(0, (min(self.ended_ns, at_ns) if self.ended_ns else at_ns) - self.began_ns)


class Outlier(NamedTuple):
    at_ns: int
    """CLOCK_MONOTONIC of the end of the tick in which it was caught."""
    taken_ns: int
    """CLOCK_REALTIME of the same."""
    rule: str
    """AUTO, or a trigger's text."""
    metric: str
    """One of trigger.METRICS: what `value` and `mark` are of."""
    category: str
    program: str
    """Raw."""
    value: float
    """What it came to: ns, threads, or a number a second; of a wait that goes on, when it was caught."""
    mark: float
    usual_ns: int = 0
    """The 99.9th percentile of that program and category in the minutes before, at most; 0: not known."""
    wait: Caught | None = None
    """None where it is a tick that was too much."""
    after: str = ""
    """What the thread did at the end of that tick: `running`, or a letter and category of its next wait."""
    was_told: bool = False
    """It was told before, while it went on, and has ended since."""
    more: int = 0
    """Others of its kind in that tick, of which nothing else is kept."""
    book: Book = Book()
    """Of what it names, and no more."""

    @property
    def is_going_on(self) -> bool:
        return self.wait is not None and not self.wait.ended_ns

    @property
    def comm(self) -> str:
        """Of its thread, raw; the program where it is of none."""
        return (self.book.comm(self.wait.site.thread) if self.wait else "") or self.program

    @property
    def length_ns(self) -> int:
        """0: it is no wait."""
        return self.wait.length_ns(self.at_ns if not self.wait.ended_ns else self.wait.ended_ns) if self.wait else 0

    @property
    def kind(self) -> tuple[str, str, str]:
        """Those of one kind are told once in APART_NS."""
        return self.rule, self.program, self.category


class Group(NamedTuple):
    """Outliers of one kind, soon one after the other: a line of the list."""

    worst: Outlier
    many: int
    """How many there were."""
    first: Outlier
    last: Outlier


def groups(every: Iterable[Outlier]) -> list[Group]:
    """The newest last, in the order of their first ones. `every`: in the order of time."""
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
    """The newest ones, in the order of time. One thread adds; any may read."""

    def __init__(self, known: Sequence[Outlier] = (), most: int = MOST_KEPT) -> None:
        self._most = most
        self.dropped = max(0, len(known) - most)
        """How many there were that are kept no more."""
        self.every: tuple[Outlier, ...] = tuple(known[-most:])
        """Never changes: another one takes its place."""
        self.version = 0

    def add(self, new: Sequence[Outlier]) -> None:
        """Those of a tick."""
        if new:
            every = joined([*self.every, *new])
            self.dropped += max(0, len(every) - self._most)
            self.every = tuple(every[-self._most :])
            self.version += 1


NO_OUTLIERS = Outliers()
"""Nobody adds to it."""


def joined(every: Iterable[Outlier]) -> list[Outlier]:
    """What is told later of a wait that was caught while it went on takes its place."""
    found: list[Outlier] = []
    going: dict[tuple[int, int, int], int] = {}
    for one in every:
        number = going.pop(one.wait.identity, None) if one.wait else None
        if number is not None:
            was = found[number]
            found[number] = one._replace(at_ns=was.at_ns, taken_ns=was.taken_ns, was_told=False, more=was.more)
            continue
        if one.is_going_on and one.wait:
            going[one.wait.identity] = len(found)
        found.append(one)
    return found
