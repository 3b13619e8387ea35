"""History is the last minutes: a Window and its cut for each tick, within a budget of bytes.

A snapshot is handed in at every tick, whatever the screen does; what passed since the one before is kept.
The newest windows are kept as they are, older ones packed into columns and compressed, and the oldest are
dropped. It may be read from any thread while one thread adds to it: what it hands out never changes.
"""

import zlib
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from marshal import dumps, loads
from threading import Lock
from typing import Any

from offtop.model.book import SiteKey, ThreadKey
from offtop.model.cut import SLEEP, Cut, Idle, Leaf, cut
from offtop.model.snapshot import SiteTotals, Snapshot, ThreadTotals
from offtop.model.stack import NO_STACK
from offtop.model.window import Window, between
from offtop.units import NS_PER_S

HISTORY_NS = 600 * NS_PER_S
HISTORY_BYTES = 40 * 1024 * 1024

_PLAIN_SHARE = 4
"""One part in so many of the budget is for windows that are not packed."""
_CUT_KEPT_NS = 60 * NS_PER_S
"""How far back cuts by process are kept: the longest rolling span."""

_KEPT_BYTES = 2_500
_SITE_BYTES = 420
_THREAD_BYTES = 640
_STILL_BYTES = 140
_PART_BYTES = 330
_PERIODIC_BYTES = 100
"""What one entry costs, its key and its share of the dict included; measured with tracemalloc, and a test holds it."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A window's entries as compressed columns."""

    rest: Window
    """The window without its entries."""
    columns: bytes

    def window(self) -> Window:
        sites, threads, still, histograms = loads(zlib.decompress(self.columns))
        return replace(
            self.rest,
            sites=_entries(SiteKey, SiteTotals, sites, histograms),
            threads=_entries(ThreadKey, ThreadTotals, threads, histograms),
            still=tuple(map(_maker(SiteKey), zip(*_columns(still), strict=True))),
        )


def pack(window: Window) -> Packed:
    numbers: dict[int, int] = {}
    columns = (
        _packed_entries(window.sites, numbers),
        _packed_entries(window.threads, numbers),
        [array("q", column).tobytes() for column in zip(*window.still, strict=True)],
        list(numbers),
    )
    return Packed(replace(window, sites={}, threads={}, still=()), zlib.compress(dumps(columns), 1))


def _packed_entries(entries: Mapping[Any, Any], numbers: dict[int, int]) -> list[bytes]:
    """Each field of keys and totals as a column of 64 bits; the last is the histogram, as its number in `numbers`."""
    if not entries:
        return []
    *totals, histograms = zip(*entries.values(), strict=True)
    number_of = numbers.setdefault
    columns = [*zip(*entries, strict=True), *totals, [number_of(h, len(numbers)) for h in histograms]]
    return [array("q", column).tobytes() for column in columns]


def _columns(packed: Sequence[bytes]) -> list["array[int]"]:
    columns: list[array[int]] = []
    for raw in packed:
        column = array("q")
        column.frombytes(raw)
        columns.append(column)
    return columns


def _entries(key: type, totals: type, packed: Sequence[bytes], histograms: Sequence[int]) -> dict[Any, Any]:
    if not packed:
        return {}
    columns = _columns(packed)
    width = len(key._fields)  # type: ignore[attr-defined]
    values = zip(*columns[width:-1], map(histograms.__getitem__, columns[-1]), strict=True)
    return dict(zip(map(_maker(key), zip(*columns[:width], strict=True)), map(_maker(totals), values), strict=True))


def _maker(kind: type) -> Callable[[Iterable[int]], Any]:
    """Makes NamedTuples of `kind` at a third of the cost of calling it."""
    return partial(tuple.__new__, kind)  # pyright: ignore[reportUnknownMemberType]


@dataclass(frozen=True, slots=True)
class Kept:
    """One tick of the past."""

    number: int
    """Counts up by one a tick."""
    taken_ns: int
    """CLOCK_REALTIME of its end."""
    at_ns: int
    """CLOCK_MONOTONIC of its end."""
    span_ns: int
    bytes_held: int
    """Estimated."""
    waiting_ns: Mapping[Leaf, int]
    """The time of each leaf: what a timeline draws."""
    held: Window | Packed
    idle: Idle
    """What looked idle in it, as was known then."""
    kept_cut: Cut | None

    @property
    def window(self) -> Window:
        return self.held.window() if isinstance(self.held, Packed) else self.held

    @property
    def facts(self) -> Window:
        """The window, perhaps without its entries: for its costs, losses, filters and book."""
        return self.held.rest if isinstance(self.held, Packed) else self.held

    @property
    def cut(self) -> Cut:
        return self.kept_cut or cut(self.window, self.idle)


class History:
    """The last `max_ns` in at most `max_bytes`, and all since the start as one window."""

    def __init__(
        self,
        idle: Iterable[str],
        is_periodic: Callable[[int], bool],
        max_ns: int = HISTORY_NS,
        max_bytes: int = HISTORY_BYTES,
    ) -> None:
        """`idle`: the categories that look idle whatever their waits look like. `is_periodic` tells of the
        histogram of a site of `sleep`, over all that has been seen of it, whether it does."""
        self._idle = frozenset(idle)
        self._is_periodic = is_periodic
        self._max_ns = max_ns
        self._max_bytes = max_bytes
        self._lock = Lock()
        self._kept: deque[Kept] = deque()
        self._plain = 0
        """How many of the newest are not packed."""
        self._with_cut = 0
        """How many of the newest have their cut."""
        self._plain_bytes = 0
        self._bytes = 0
        self._first: Snapshot | None = None
        self._latest: Snapshot | None = None
        self._longest_ns: dict[SiteKey, int] = {}
        """The longest wait of each site since the start: the one thing that running totals do not tell."""
        self._periodic: dict[SiteKey, bool] = {}

    def add(self, snapshot: Snapshot) -> Kept | None:
        """Keep what passed since the snapshot before, and return it; None for the first one."""
        earlier, self._latest = self._latest, snapshot
        if earlier is None:
            self._first = snapshot
            return None
        window = between(earlier, snapshot)
        self._remember_longest(window, snapshot)
        with self._lock:
            idle = Idle(self._idle, self._periodic_in(window, snapshot))
        made = cut(window, idle)
        kept = Kept(
            number=self._kept[-1].number + 1 if self._kept else 1,
            taken_ns=window.taken_ns,
            at_ns=window.at_ns,
            span_ns=window.span_ns,
            bytes_held=_bytes_of(window, made, idle),
            waiting_ns={leaf: part.total_ns for leaf, part in made.categories.items()},
            held=window,
            idle=idle,
            kept_cut=made,
        )
        with self._lock:
            self._kept.append(kept)
            self._plain += 1
            self._with_cut += 1
            self._plain_bytes += kept.bytes_held
            self._bytes += kept.bytes_held
            self._make_room()
        return kept

    @property
    def latest(self) -> Snapshot | None:
        return self._latest

    @property
    def newest(self) -> Kept | None:
        return self._kept[-1] if self._kept else None

    @property
    def bytes_held(self) -> int:
        """Estimated; what windows share with the source (the Book) is the source's."""
        return self._bytes

    @property
    def reach_ns(self) -> int:
        """How far back it goes."""
        with self._lock:
            return self._kept[-1].at_ns - self._kept[0].at_ns + self._kept[0].span_ns if self._kept else 0

    def last(self, span_ns: int, end_ns: int | None = None) -> list[Kept]:
        """The ticks of the `span_ns` up to `end_ns` (None: up to now), earliest first; at least one, if any is kept.

        A tick belongs to the span if its middle does, so that as many make up a span at each tick.
        """
        with self._lock:
            every = self._kept
            end = len(every) if end_ns is None else bisect_left(every, end_ns + 1, key=lambda kept: kept.at_ns)
            if not end:
                return []
            from_ns = every[end - 1].at_ns - span_ns
            begin = end - 1
            while begin and every[begin - 1].at_ns - every[begin - 1].span_ns // 2 > from_ns:
                begin -= 1
            return list(islice(every, begin, end))

    def tick(self, number: int) -> Kept | None:
        """The tick of that number, while it is kept."""
        with self._lock:
            index = number - self._kept[0].number if self._kept else -1
            return self._kept[index] if 0 <= index < len(self._kept) else None

    def since_start(self) -> Kept | None:
        """All that passed since the first snapshot, as one tick. Threads that exited stand together in it."""
        first, latest = self._first, self._latest
        if first is None or latest is None or first is latest:
            return None
        window = between(first, latest)
        with self._lock:
            self._forget_given_back(latest)
            longest_ns = self._longest_ns
            sites = {key: t._replace(max_ns=longest_ns.get(key, 0)) for key, t in window.sites.items()}
            periodic = frozenset(key for key, is_so in self._periodic.items() if is_so)
        window = replace(window, sites=sites)
        idle = Idle(self._idle, periodic)
        made = cut(window, idle)
        waiting_ns = {leaf: part.total_ns for leaf, part in made.categories.items()}
        return Kept(0, window.taken_ns, window.at_ns, window.span_ns, 0, waiting_ns, window, idle, made)

    def _remember_longest(self, window: Window, snapshot: Snapshot) -> None:
        longest_ns = self._longest_ns
        with self._lock:
            for key, totals in window.sites.items():
                if totals[3] > longest_ns.get(key, 0):
                    longest_ns[key] = totals[3]
            if len(longest_ns) > 2 * len(snapshot.sites) + 1024:
                self._forget_given_back(snapshot)

    def _forget_given_back(self, snapshot: Snapshot) -> None:
        """Their longest goes where their sums are: under the exited, by kernel stack."""
        for key in [key for key in self._longest_ns if key not in snapshot.sites]:
            rest = SiteKey(0, 0, key.kernel, NO_STACK)
            self._longest_ns[rest] = max(self._longest_ns.get(rest, 0), self._longest_ns.pop(key))
        for key in [key for key in self._periodic if key not in snapshot.sites]:
            del self._periodic[key]

    def _periodic_in(self, window: Window, snapshot: Snapshot) -> frozenset[SiteKey]:
        """The sites of `sleep` whose waits so far are periodic. Judged again whenever a wait of one has ended."""
        book, verdicts, sites = window.book, self._periodic, snapshot.sites
        sleeps = {stack_id for stack_id, stack in tuple(book.stacks.items()) if stack.category == SLEEP}
        found: list[SiteKey] = []
        for key, totals in window.sites.items():
            if key[2] in sleeps:
                if totals[0] or key not in verdicts:
                    so_far = sites.get(key)
                    verdicts[key] = so_far is not None and self._is_periodic(so_far.histogram)
                if verdicts[key]:
                    found.append(key)
        # A sleep in progress stands at a site of its own until it ends: it looks as the others of its thread do.
        threads = {key[:2] for key, is_so in verdicts.items() if is_so}
        asleep = [key for key in (*window.sites, *window.still) if key[2] in sleeps and key[:2] in threads]
        return frozenset(found).union(key for key in asleep if verdicts.get(key) or key[3] == NO_STACK)

    def _make_room(self) -> None:
        """Pack, forget the cuts that no span on the screen needs, then drop; the newest is left as it is."""
        every = self._kept
        while self._plain > 1 and self._plain_bytes > self._max_bytes // _PLAIN_SHARE:
            self._replace(len(every) - self._plain, pack_window=True)
            self._plain -= 1
        too_old_ns = every[-1].at_ns - _CUT_KEPT_NS
        while self._with_cut > 1:
            oldest = len(every) - self._with_cut
            if every[oldest].at_ns > too_old_ns:
                break
            self._replace(oldest, pack_window=False)
            self._with_cut -= 1
        from_ns = every[-1].at_ns - self._max_ns
        while len(every) > 1 and (self._bytes > self._max_bytes or every[0].at_ns <= from_ns):
            dropped = every.popleft()
            self._bytes -= dropped.bytes_held
            if len(every) < self._plain:
                self._plain -= 1
                self._plain_bytes -= dropped.bytes_held
            self._with_cut = min(self._with_cut, len(every))

    def _replace(self, index: int, pack_window: bool) -> None:
        """Put a smaller one in the place of the tick at `index`: its window packed, or its cut forgotten."""
        was = self._kept[index]
        held = pack(was.window) if pack_window else was.held
        kept_cut = was.kept_cut if pack_window else None
        smaller = replace(was, held=held, kept_cut=kept_cut, bytes_held=_bytes_of(held, kept_cut, was.idle))
        self._kept[index] = smaller
        self._bytes += smaller.bytes_held - was.bytes_held
        if pack_window:
            self._plain_bytes -= was.bytes_held
        elif not isinstance(held, Packed):
            self._plain_bytes += smaller.bytes_held - was.bytes_held


def _bytes_of(held: Window | Packed, kept_cut: Cut | None, idle: Idle) -> int:
    own = _KEPT_BYTES + _PERIODIC_BYTES * len(idle.periodic)
    if isinstance(held, Packed):
        own += len(held.columns)
    else:
        own += len(held.sites) * _SITE_BYTES + len(held.threads) * _THREAD_BYTES + len(held.still) * _STILL_BYTES
    if kept_cut:
        own += _PART_BYTES * (len(kept_cut.categories) + sum(map(len, kept_cut.processes.values())))
    return own
