"""Baseline: a span of the past that the user marked as normal.

It consists of a few parts and what their ids refer to. It is self-contained: it needs neither the History that it was
taken from nor the file of a recording.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import pairwise

from offtop.model.values.catalog import Catalog, ThreadKey
from offtop.model.values.disks import DiskActivity
from offtop.model.values.files import FileActivity
from offtop.model.values.snapshot import Filters, Sampling
from offtop.model.values.stack import Frame, Names, nameless
from offtop.model.values.table import SITES, SiteKeys, table_of
from offtop.model.values.wake import level
from offtop.model.windows.breakdown import Idle, Shares, shares
from offtop.model.windows.history import HistoryTick
from offtop.model.windows.window import Window, merge, sampling_over
from offtop.units import NS_PER_S

LEAST_NS = 60 * NS_PER_S
"""Minimum length of what is marked as normal, if so much was recorded."""
PARTS = 6
"""The variation between parts is the variation of the baseline."""

SuspectAverages = Mapping[tuple[str, ...], float]
"""Name of a suspect (classify.suspects.SuspectName) → threads that waited behind it, on average."""


@dataclass(frozen=True, eq=False, repr=False)
class Baseline:
    parts: Sequence[tuple[int, Shares]]
    """Length and time of each part. A wait that outlasts its part is counted at its site at the end of the part, as in
    the compared span."""
    catalog: Catalog
    names: Names
    mode: str
    """What was gathered in all of it, one of wake.MODES."""
    began_ns: int
    """CLOCK_REALTIME."""
    taken_ns: int
    """CLOCK_REALTIME of its end."""
    filters: Filters
    """What was counted in its last part."""
    sampling: Sampling | None
    """Of all of it; None: every wait was recorded."""
    lost: Mapping[str, int]
    """Records lost in the kernel, by kind."""
    file: str = ""
    """Raw name of the recording that it is from; empty if it was marked live, so that its pids are still valid."""
    suspects: SuspectAverages | None = None
    """None: they were not looked for."""
    files: Sequence[FileActivity | None] = ()
    """File operations of each part; None: they were not counted."""
    disks: Sequence[DiskActivity | None] = ()
    """The same for requests to disks."""

    @property
    def span_ns(self) -> int:
        return sum(span_ns for span_ns, _ in self.parts)

    @property
    def spans_ns(self) -> tuple[int, ...]:
        return tuple(span_ns for span_ns, _ in self.parts)

    @cached_property
    def threads(self) -> frozenset[ThreadKey]:
        """All threads that waited in it."""
        return frozenset(ThreadKey(*ids) for _, some in self.parts for ids in {*map(tuple, some.ids[:, :2].tolist())})


def baseline_of(
    parts: Sequence[Window], idle: Idle, names: Names, file: str = "", suspects: SuspectAverages | None = None
) -> Baseline:
    """Create a baseline from consecutive windows, earliest first (at least one)."""
    last = parts[-1]
    catalog = _excerpt(last.catalog, parts)
    return Baseline(
        [(one.span_ns, shares(one, idle)) for one in parts],
        catalog,
        KnownNames(names, {frame for stack in catalog.stacks.values() for frame in stack.frames}),
        min((one.mode for one in parts), key=level),
        parts[0].taken_ns - parts[0].span_ns,
        last.taken_ns,
        last.filters,
        sampling_over(parts),
        sum((Counter(one.lost) for one in parts), Counter[str]()),
        file,
        suspects,
        [one.files for one in parts],
        [one.disks for one in parts],
    )


def parts_of(ticks: Sequence[HistoryTick]) -> list[Window]:
    """Merge `ticks` into at most PARTS windows.

    One tick is unpacked at a time, since together they are too large.
    """
    count = min(PARTS, len(ticks))
    ends = [len(ticks) * number // count for number in range(count + 1)]
    return [
        reduce(lambda window, tick: merge_part([window, tick.window]), ticks[begin + 1 : end], ticks[begin].window)
        for begin, end in pairwise(ends)
    ]


def merge_part(windows: Sequence[Window]) -> Window:
    """Merge consecutive windows, but leave out file operations or requests to disks that not all of them counted.

    Their average over the whole part would be too small.
    """
    merged = merge(windows)
    return replace(
        merged,
        files=None if any(one.files is None for one in windows) else merged.files,
        disks=None if any(one.disks is None for one in windows) else merged.disks,
    )


def _excerpt(catalog: Catalog, windows: Sequence[Window]) -> Catalog:
    """Copy what `catalog` has for `windows`: its owner may drop it, and pids may be reused."""
    sites, threads = set[tuple[int, ...]](), set[ThreadKey]()
    for window in windows:
        sites.update(map(tuple, table_of(SITES, window.sites).ids[:, 2:].tolist()), _places(window.still))
        threads.update(key for key, _ in window.each_thread())
        threads.update(key.thread for key in window.sites)
    wakes = {wake: catalog.wake(wake) for _, _, wake in sites}
    stacks = {stack for kernel, user, _ in sites for stack in (kernel, user)}
    stacks = stacks.union(*(wake.stacks for wake in wakes.values()))
    wakers = {one.waker for one in wakes.values()}
    threads |= {ThreadKey(waker.pid, waker.tid) for waker in wakers}
    pids = {key.pid for key in threads}
    pids |= {key.pid for one in windows for activity in (one.files, one.disks) if activity for key in activity.totals}
    return Catalog(
        {one: catalog.stack(one) for one in stacks},
        wakes,
        {key: catalog.comm(key) for key in threads},
        {pid: catalog.process(pid) for pid in pids},
        {pid: details for pid in pids if (details := catalog.details.get(pid)) is not None},
        peers=dict(catalog.peers),
    )


def _places(still: SiteKeys) -> Iterable[tuple[int, ...]]:
    return map(tuple, still.ids[:, 2:].tolist())


class KnownNames:
    """Names of frames, kept after their source has dropped them. Implements stack.Names."""

    def __init__(self, names: Names, frames: Iterable[Frame]) -> None:
        self._names = names
        self._names_version = names.version
        self._known: dict[Frame, str] = {}
        self._unnamed = {*frames}
        self._version = 0
        self._has_new_names()

    @property
    def version(self) -> int:
        if self._unnamed and self._names.version != self._names_version:
            self._names_version = self._names.version
            self._version += self._has_new_names()
        return self._version

    def of(self, frame: Frame) -> str:
        return self._known.get(frame) or self._names.of(frame)

    def _has_new_names(self) -> bool:
        """Return whether any frame has got a name."""
        found: Mapping[Frame, str] = {frame: self._names.of(frame) for frame in self._unnamed}
        named = {frame: name for frame, name in found.items() if name != nameless(frame)}
        self._known |= named
        self._unnamed -= named.keys()
        return bool(named)
