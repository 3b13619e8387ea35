"""A Baseline is a stretch of the past that somebody calls normal: its time in a few parts, and what its ids stand for.

It is a value by itself: it needs neither the History that it was taken of nor, where it is of a recording, the file.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import pairwise

from offtop.model.book import Book, ThreadKey
from offtop.model.cut import Idle, Shares, shares
from offtop.model.history import Kept
from offtop.model.snapshot import Filters, Sampling
from offtop.model.stack import Frame, Names, nameless
from offtop.model.table import SITES, SiteKeys, table_of
from offtop.model.wake import level
from offtop.model.window import Window, merge, sampling_over
from offtop.units import NS_PER_S

LEAST_NS = 60 * NS_PER_S
"""What is marked as normal is so long at least, as far as it was seen."""
PARTS = 6
"""A baseline tells by its parts how far it strays."""


@dataclass(frozen=True, eq=False, repr=False)
class Baseline:
    parts: Sequence[tuple[int, Shares]]
    """How long each was, and its time. A wait that goes on beyond its part is where the end of that showed it, as in
    the span that is compared."""
    book: Book
    names: Names
    mode: str
    """What was gathered in all of it, one of wake.MODES."""
    began_ns: int
    """CLOCK_REALTIME."""
    taken_ns: int
    """CLOCK_REALTIME of its end."""
    filters: Filters
    """What was counted in the last of it."""
    sampling: Sampling | None
    """Of all of it; None: every wait was seen."""
    lost: Mapping[str, int]
    """What the kernel could not tell, by kind."""
    file: str = ""
    """Name of the recording that it is of, raw; empty: it was marked, so that pids mean the same in it as now."""

    @property
    def span_ns(self) -> int:
        return sum(span_ns for span_ns, _ in self.parts)

    @property
    def spans_ns(self) -> tuple[int, ...]:
        return tuple(span_ns for span_ns, _ in self.parts)

    @cached_property
    def threads(self) -> frozenset[ThreadKey]:
        """All that waited in it."""
        return frozenset(ThreadKey(*ids) for _, some in self.parts for ids in {*map(tuple, some.ids[:, :2].tolist())})


def baseline_of(parts: Sequence[Window], idle: Idle, names: Names, file: str = "") -> Baseline:
    """Of windows that follow one another, earliest first (at least one)."""
    last = parts[-1]
    book = _kept(last.book, parts)
    return Baseline(
        [(one.span_ns, shares(one, idle)) for one in parts],
        book,
        KnownNames(names, {frame for stack in book.stacks.values() for frame in stack.frames}),
        min((one.mode for one in parts), key=level),
        parts[0].taken_ns - parts[0].span_ns,
        last.taken_ns,
        last.filters,
        sampling_over(parts),
        sum((Counter(one.lost) for one in parts), Counter[str]()),
        file,
    )


def parts_of(ticks: Sequence[Kept]) -> list[Window]:
    """At most PARTS windows over all of `ticks`, which are unpacked one by one: together they are too large."""
    count = min(PARTS, len(ticks))
    ends = [len(ticks) * number // count for number in range(count + 1)]
    return [
        reduce(lambda window, tick: merge([window, tick.window]), ticks[begin + 1 : end], ticks[begin].window)
        for begin, end in pairwise(ends)
    ]


def _kept(book: Book, windows: Iterable[Window]) -> Book:
    """What is told in `book` of these by now: its owner may drop it, and other processes may get the same pids."""
    sites, threads = set[tuple[int, ...]](), set[ThreadKey]()
    for window in windows:
        sites.update(map(tuple, table_of(SITES, window.sites).ids[:, 2:].tolist()), _places(window.still))
        threads.update(key for key, _ in window.each_thread())
        threads.update(key.thread for key in window.sites)
    wakes = {wake: book.wake(wake) for _, _, wake in sites}
    stacks = {stack for kernel, user, _ in sites for stack in (kernel, user)}
    stacks = stacks.union(*(wake.stacks for wake in wakes.values()))
    wakers = {one.waker for one in wakes.values()}
    threads |= {ThreadKey(waker.pid, waker.tid) for waker in wakers}
    pids = {key.pid for key in threads}
    return Book(
        {one: book.stack(one) for one in stacks},
        wakes,
        {key: book.comm(key) for key in threads},
        {pid: book.process(pid) for pid in pids},
        {pid: details for pid in pids if (details := book.details.get(pid)) is not None},
        ends=dict(book.ends),
    )


def _places(still: SiteKeys) -> Iterable[tuple[int, ...]]:
    return map(tuple, still.ids[:, 2:].tolist())


class KnownNames:
    """What frames are called, also when nobody else knows it any more. Implements stack.Names."""

    def __init__(self, names: Names, frames: Iterable[Frame]) -> None:
        self._names = names
        self._asked = names.version
        self._known: dict[Frame, str] = {}
        self._unnamed = {*frames}
        self._version = 0
        self._look()

    @property
    def version(self) -> int:
        if self._unnamed and self._names.version != self._asked:
            self._asked = self._names.version
            self._version += self._look()
        return self._version

    def of(self, frame: Frame) -> str:
        return self._known.get(frame) or self._names.of(frame)

    def _look(self) -> bool:
        """Whether any has a name now that had none."""
        found: Mapping[Frame, str] = {frame: self._names.of(frame) for frame in self._unnamed}
        named = {frame: name for frame, name in found.items() if name != nameless(frame)}
        self._known |= named
        self._unnamed -= named.keys()
        return bool(named)
