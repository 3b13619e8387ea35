"""What is stuck at a moment: the waits in progress, how old they are, and where they stand.

A total grows while a wait goes on, but says nothing of its age; this does, for now and for each tick of the past.
Only waits of LEAST_AGE_NS and more are told of: younger ones are everyday, and there are a hundred times as many.
"""

import zlib
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from offtop.model import columns, stack
from offtop.model.book import Book, SiteKey, ThreadKey
from offtop.model.change import BEGUN_FIELDS, WAITING_FIELDS, begun, placed, waiting_of
from offtop.model.cut import RUN_QUEUE, SHORT, SLEEP, Idle, Leaf, Scope, Shares
from offtop.model.histogram import LANES
from offtop.model.snapshot import Bound, Snapshot, Waiting
from offtop.model.table import SITES, Mask, integers
from offtop.units import NS_PER_S, duration

LEAST_AGE_NS = NS_PER_S // 10
_CHUNK_BYTES = 200
"""Of one tick's ended waits, beside their columns."""
T = TypeVar("T")


class Age(NamedTuple):
    """How old a wait in progress is."""

    ns: int = 0
    """0: there is none."""
    bound: Bound = Bound.EXACT

    @property
    def text(self) -> str:
        """`1.84s`, or `<=12min` where only a bound is known; nothing for none. At most 8 wide."""
        return f"{_BOUNDS[self.bound]}{duration(self.ns)}" if self.ns else ""


_BOUNDS = {Bound.EXACT: "", Bound.AT_MOST: "<=", Bound.AT_LEAST: ">="}
NO_AGE = Age()


class Stuck(NamedTuple):
    """The waits in progress at one moment, the oldest first."""

    at_ns: int
    """CLOCK_MONOTONIC."""
    waits: Sequence[Waiting] = ()
    shares: Shares | None = None
    """The same rows as what has a leaf and can be filtered: the time of each is its age. None where there are none."""

    def of(self, rows: Mask) -> "Stuck":
        if self.shares is None:
            return self
        return Stuck(self.at_ns, [self.waits[row] for row in np.flatnonzero(rows).tolist()], self.shares.of(rows))

    def in_scope(self, scope: Scope) -> "Stuck":
        return self if self.shares is None else self.of(self.shares.mask(scope))

    def leaf(self, row: int) -> Leaf:
        assert self.shares
        return self.shares.leaves[int(self.shares.leaf[row])]

    def age(self, row: int) -> Age:
        return Age(self.waits[row].age_ns(self.at_ns), self.waits[row].bound)

    def longest(self, key_of: Callable[[int], T]) -> dict[T, Age]:
        """The oldest wait of each key; `key_of` tells that of a row."""
        ages: dict[T, Age] = {}
        for row in range(len(self.waits)):
            key = key_of(row)
            if key not in ages:
                ages[key] = self.age(row)
        return ages


NOTHING_STUCK = Stuck(0)


def stuck(waits: Iterable[Waiting], at_ns: int, book: Book, idle: Idle, least_ns: int = LEAST_AGE_NS) -> Stuck:
    """Those of `waits` that are as old, but for filtered ones."""
    old = [one for one in waits if one.age_ns(at_ns) >= least_ns and one.site.kernel != stack.FILTERED]
    if not old:
        return Stuck(at_ns)
    old.sort(key=lambda one: (-one.age_ns(at_ns), one.site))
    ids = integers([one.site for one in old], SITES.width)
    names = [_category(one, book) for one in old]
    asleep = np.array([name == SLEEP for name in names], np.bool_)
    periodic = np.zeros(len(old), np.bool_)
    if asleep.any() and len(idle.periodic):
        periodic[asleep] = idle.is_periodic(ids[asleep])
    numbers: dict[Leaf, int] = {}
    leaf = [
        numbers.setdefault(Leaf(name, name in idle.categories or is_periodic), len(numbers))
        for name, is_periodic in zip(names, periodic.tolist(), strict=True)
    ]
    ages_ns = np.array([one.age_ns(at_ns) for one in old], np.int64)
    none = np.zeros((0, LANES), np.int64)
    ids[:, 3] = [one.user for one in old]
    shares = Shares([*numbers], np.array(leaf, np.int64), ids, np.zeros_like(ages_ns), ages_ns, ages_ns, none)
    return Stuck(at_ns, old, shares)


def _category(one: Waiting, book: Book) -> str:
    """The one that its time goes to while it lasts."""
    if one.preempted:
        return RUN_QUEUE
    return SHORT if one.site.kernel == stack.SHORT else book.stack(one.site.kernel).category


class Past:
    """The waits that were in progress at earlier ticks: each kept once, when it ended."""

    def __init__(self) -> None:
        self._latest: Snapshot | None = None
        self._ended: deque[tuple[int, bytes]] = deque()
        """(CLOCK_MONOTONIC of the tick in which they ended, their columns)."""
        self.bytes_held = 0

    def add(self, snapshot: Snapshot) -> None:
        before, self._latest = self._latest, snapshot
        if before is None:
            return
        now, at_ns = snapshot.waiting, before.at_ns
        ended = [
            was
            for key, was in before.waiting.items()
            if (one := now.get(key)) is not was
            and (one is None or one.left_ns != was.left_ns)
            and was.age_ns(at_ns) >= LEAST_AGE_NS
        ]
        if ended:
            numbers = integers([placed(one) for one in ended], WAITING_FIELDS)
            how = integers([begun(one) for one in ended], BEGUN_FIELDS)
            packed = zlib.compress(columns.packed([numbers, how]), 1)
            self._ended.append((snapshot.at_ns, packed))
            self.bytes_held += len(packed) + _CHUNK_BYTES

    def clear(self) -> None:
        self._latest = None
        self._ended.clear()
        self.bytes_held = 0

    def forget(self, until_ns: int) -> None:
        """No moment up to `until_ns` will be asked for."""
        while self._ended and self._ended[0][0] <= until_ns:
            self.bytes_held -= len(self._ended.popleft()[1]) + _CHUNK_BYTES

    def at(self, at_ns: int) -> Iterator[Waiting]:
        """The waits in progress then, as much as was ever known of each."""
        latest = self._latest
        if latest is None:
            return
        yield from (one for one in latest.waiting.values() if one.left_ns <= at_ns)
        ended = list(self._ended)
        for _, packed in ended[bisect_right(ended, at_ns, key=lambda one: one[0]) :]:
            numbers, how = columns.unpacked(zlib.decompress(packed))
            for row in np.flatnonzero(numbers[:, _LEFT_NS] <= at_ns).tolist():
                yield waiting_of(numbers[row].tolist(), how[row].tolist())


_LEFT_NS = len(SiteKey._fields)


def by_thread(some: Stuck) -> Mapping[ThreadKey, Age]:
    return some.longest(lambda row: some.waits[row].site.thread)


def by_process(some: Stuck) -> Mapping[int, Age]:
    return some.longest(lambda row: some.waits[row].site.pid)


def by_cgroup(some: Stuck, group_of: Callable[[int], str]) -> Mapping[str, Age]:
    return some.longest(lambda row: group_of(some.waits[row].site.pid))


def by_place(some: Stuck) -> Mapping[tuple[int, ...], Age]:
    """By (kernel, user) as the time of the wait is counted: the user stack comes only with its end."""
    return some.longest(lambda row: some.waits[row].site[2:])


def by_category(some: Stuck) -> Mapping[str, Age]:
    return some.longest(lambda row: some.leaf(row).category)
