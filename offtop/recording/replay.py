"""Plays a recording as a Source, in real time or faster, from any moment.

The minutes before that moment are read first, without waiting, so that the timeline is filled. The replay pauses while
the view is paused.
"""

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from time import monotonic_ns

from offtop.errors import OfftopError, UsageError
from offtop.feed.source import Recorded
from offtop.model.classify.categories import OTHER
from offtop.model.values.catalog import Catalog
from offtop.model.values.container import label
from offtop.model.values.outlier import Outlier, Thresholds, joined
from offtop.model.values.snapshot import Filters, Snapshot
from offtop.model.values.stack import Frame, Stack
from offtop.model.values.wake import Object, Storm
from offtop.model.windows.change import Change, Replayed
from offtop.printable import printable
from offtop.recording import file_format
from offtop.recording.catalog_keeper import KEPT_NS, CatalogKeeper
from offtop.recording.reader import Recording
from offtop.recording.tick_rows import Entry
from offtop.units import NS_PER_S, count, duration

_BEFORE_NS = 300 * NS_PER_S
"""How much of the time before the target of a seek is read, too: the length of the timeline."""
MOST_TOTALS = 1 << 20
"""Most totals of threads and sites, waits in progress, and names of what they wait for: a host with 100,000 threads has
fewer than half as many."""
_MOST_TEXT = 16 << 20
"""Most characters of titles, and of names of what threads wait for, at one time: a source has at most half as many."""
_LONGEST_PAUSE_NS = 5 * NS_PER_S
"""Longest pause between two ticks: a replay shortens longer gaps (suspend, nothing recorded)."""


class RecordedSource:
    """Implements source.Source. `go_to`, `hold` and `close` are thread-safe; `read` belongs to one thread."""

    def __init__(
        self,
        path: Path,
        *,
        begin_ns: int | None = None,
        speed: float = 0.0,
        categories: Collection[str] = (),
        keep_ns: int = KEPT_NS,
    ) -> None:
        """Open a recording. Raises OfftopError if the file is not a recording.

        `begin_ns`: where to begin (CLOCK_REALTIME). `speed`: recorded seconds per second; 0: as fast as possible.
        `categories`: the known ones (empty: all); others become `other`. `keep_ns`: how long the Catalog keeps unused
        names.
        """
        self._keep_ns = keep_ns
        self._categories = frozenset(categories)
        self._recording = Recording(path)
        recording = self._recording
        try:
            measured_ns = recording.at_ns(recording.last) - recording.at_ns(recording.first)
            began_ns, ended_ns = map(recording.taken_ns, (recording.first, recording.last))
            self._since_ns = min(recording.since_ns, recording.at_ns(recording.first))
            recorded = Recorded(recording.host, began_ns, ended_ns, measured_ns, recording.lists)
        except ValueError as damaged:
            raise OfftopError(f"{printable(str(path))}: {printable(str(damaged))}") from None
        self._recorded = recorded
        self._recorded_ns = max(measured_ns, recorded.ended_ns - recorded.began_ns)
        """Longer than measured_ns if the machine was suspended; CLOCK_REALTIME may also have been set back."""
        self._outliers = [(number, self._with_known_category(one)) for number, one in recording.outliers()]
        self._outliers_by_tick: dict[int, list[Outlier]] = {}
        for number, one in self._outliers:
            self._outliers_by_tick.setdefault(number, []).append(one)
        self._speed = speed
        self._changed = threading.Condition()
        self._closed = self._held = False
        self._wanted: int | None = None
        """Number of the tick to jump to; None: continue."""
        self._at_once = 0
        """Number of the tick up to which ticks are returned without waiting. Not a time: clocks may be set back."""
        self._epoch = 0
        self._damaged = 0
        self._from_number = 0
        """First tick that is returned; earlier ones are only added up."""
        self._next: tuple[int, bool] | None = None
        """Number of the next tick, and whether to read its whole snapshot."""
        self._ahead: tuple[int, Entry] | None = None
        """That tick, once it has been read."""
        self._keeper = CatalogKeeper(self._stack, keep_ns)
        self._replayed = Replayed(self._keeper.catalog)
        self._last: Change | None = None
        self._read_ns = 0
        """CLOCK_MONOTONIC when the last tick was returned."""
        self.go_to(begin_ns if begin_ns is not None else recorded.began_ns)

    @property
    def host(self) -> str:
        return self._recording.host

    @property
    def since_ns(self) -> int:
        return self._since_ns

    @property
    def notices(self) -> Sequence[str]:
        about = self._recording.about
        return [value for key, value in sorted(about.items()) if key.startswith(file_format.NOTICE)]

    @property
    def recorded(self) -> Recorded:
        return self._recorded

    @property
    def is_elsewhere(self) -> bool:
        return True

    @property
    def interruption(self) -> str:
        return ""

    @property
    def names(self) -> Recording:
        return self._recording

    def read(self) -> Snapshot | None:
        """Return the next tick when it is due. At the end return None, or in real time wait for go_to()."""
        with self._changed:
            while not self._closed:
                if self._wanted is not None:
                    self._start_seek(self._wanted)
                    self._wanted = None
                entry = self._entry()
                if entry is None and not self._speed:
                    return None
                wait_ns = self._wait_ns(entry)
                if entry is not None and wait_ns == 0:
                    snapshot = self._snapshot_of(entry)
                    if snapshot and entry[0] >= self._from_number:
                        return snapshot
                    continue
                self._changed.wait(None if wait_ns is None else wait_ns / NS_PER_S)
        return None

    def drain(self) -> None:
        """Do nothing: a file has no buffer that overflows."""

    def go_to(self, taken_ns: int, after: bool = False) -> int:
        """Jump to a moment and return when its tick was taken; the ticks before it come first, without waiting.

        Raises OfftopError if the recording is damaged there.
        """
        with self._changed:
            recording, recorded = self._recording, self._recorded
            try:
                target = recording.number_at(max(recorded.began_ns, min(taken_ns, recorded.ended_ns)))
                if after or target == recording.first:  # the first tick has no window
                    target = recording.after(target) or target
                target_ns = recording.taken_ns(target)
            except ValueError as damaged:
                raise OfftopError(f"{printable(str(damaged))}. Go to another moment") from None
            self._wanted = target
            self._changed.notify_all()
        return target_ns

    def hold(self, held: bool) -> None:
        with self._changed:
            self._held = held
            self._read_ns = monotonic_ns()
            self._changed.notify_all()

    def set_delay(self, delay_ns: int) -> None:
        """Do nothing: a recording keeps its own pace."""

    def set_filters(self, filters: Filters) -> None:
        raise UsageError("A recording cannot be measured again. Try a filter: \\")

    def set_mode(self, mode: str, depth: int) -> None:
        """Do nothing: only what was recorded is there."""

    def set_counted(self, mode: str, wanted: bool) -> None:
        """Do nothing: what was recorded is shown."""

    def set_thresholds(self, thresholds: Thresholds | None) -> None:
        """Do nothing: the recorded outliers are reported."""

    def outliers(self) -> Sequence[Outlier]:
        return joined(one for _, one in self._outliers)

    def wait_for_names(self, frames: set[Frame], seconds: float) -> bool:
        """Return at once: all names are known."""
        return True

    def why_nameless(self, frame: Frame) -> str:
        return self._recording.why_nameless(frame)

    def describe(self, pids: Collection[int]) -> None:
        """Do nothing: the recorded details are in the Catalog."""

    def find_peers(self, waited_on: Mapping[Object, int]) -> None:
        """Do nothing: the recorded peers are in the Catalog."""

    def process_details(self, pid: int) -> Sequence[tuple[str, str]]:
        """Return what was recorded about a process."""
        return recorded_details(self._keeper.catalog, pid)

    def about(self) -> list[tuple[str, str]]:
        recorded = self._recorded
        times = [datetime.fromtimestamp(ns // NS_PER_S).astimezone() for ns in (recorded.began_ns, recorded.ended_ns)]
        until = f"{times[1]:%H:%M:%S %Z}, {duration(self._recorded_ns)}"
        pairs = [("recorded", f"on {self.host}, {times[0]:%Y-%m-%d %H:%M:%S} to {until}")]
        about = self._recording.about
        keys = {what: file_format.ABOUT[what] for what in ("kernel", "switch-in probe")}
        pairs += [(what, about[key]) for what, key in keys.items() if key in about]
        pairs.append(("recorded by", f"offtop {about.get('offtop', '?')}"))
        if damaged := self._damaged + self._recording.damaged:
            pairs.append(("damaged", f"{count(damaged)} ticks or stacks of the file could not be read"))
        return pairs

    def close(self) -> None:
        with self._changed:
            if not self._closed:
                self._closed = True
                self._recording.close()
            self._changed.notify_all()

    def _start_seek(self, target: int) -> None:
        """Continue at `target`, with the minutes before it."""
        recording = self._recording
        try:
            self._at_once = target
            if self._last and 0 <= recording.at_ns(target) - self._last.at_ns <= _BEFORE_NS:
                return  # the ticks that lead there come next anyway
            from_number = recording.before(target, _BEFORE_NS) if self._speed else target
            self._from_number = max(recording.first, from_number - 1)  # a window needs the tick before
            whole = recording.whole_until(self._from_number)
        except ValueError as damaged:
            raise OfftopError(f"{printable(str(damaged))}. Begin at another moment: --begin") from None
        self._begin_at(whole if whole is not None else recording.first)

    def _begin_at(self, whole: int) -> None:
        self._epoch += 1
        self._keeper = CatalogKeeper(self._stack, self._keep_ns)
        self._replayed = Replayed(self._keeper.catalog)
        self._last = None
        self._next, self._ahead = (whole, True), None

    def _entry(self) -> tuple[int, Entry] | None:
        """Return the next tick and its number; damaged ticks are skipped."""
        while self._ahead is None and self._next is not None:
            number, whole = self._next
            try:
                entry = self._recording.tick(number, whole)
                if entry and self._last:
                    check_follows(self._last, entry.change)
                self._next, self._ahead = None, (number, entry) if entry else None
            except ValueError:
                self._damaged += 1
                self._skip(number)
        return self._ahead

    def _skip(self, number: int) -> None:
        """Skip to the next whole tick: changes cannot be added without the damaged one."""
        try:
            following = self._recording.whole_after(number)
        except ValueError:
            following = None
        if following is None:
            self._next = None
        else:
            self._begin_at(following)

    def _wait_ns(self, entry: tuple[int, Entry] | None) -> int | None:
        """Return how long until the tick is due; None: until go_to(), hold() or close() is called."""
        if entry is None:
            return None
        number, change = entry[0], entry[1].change
        if not self._speed or self._last is None or number <= self._at_once:
            return 0
        if self._held:
            return None
        apart_ns = min(_LONGEST_PAUSE_NS, max(0, change.at_ns - self._last.at_ns))
        return max(0, self._read_ns + round(apart_ns / self._speed) - monotonic_ns())

    def _snapshot_of(self, numbered: tuple[int, Entry]) -> Snapshot | None:
        """Return the snapshot after a tick, or None if the tick is damaged: then it is skipped."""
        number, entry = numbered
        change = entry.change
        try:
            snapshot = self._replayed.add(change, self._epoch)
            check_size(self._replayed, MOST_TOTALS)
        except ValueError:
            self._damaged, self._ahead = self._damaged + 1, None
            self._skip(number)
            return None
        snapshot = replace(
            snapshot,
            leads=bool(self._speed) and number < self._at_once,
            outliers=self._outliers_by_tick.get(number, ()),
            files=self._recording.files(number) if number >= self._from_number else None,
            disks=self._recording.disks(number) if number >= self._from_number else None,
        )
        self._keeper.add(entry, snapshot)
        self._last, self._read_ns = change, monotonic_ns()
        try:
            following = self._recording.after(number)
        except ValueError:
            self._damaged += 1
            following = None
        self._next, self._ahead = None if following is None else (following, False), None
        damaged = self._damaged + self._recording.damaged
        if damaged:
            snapshot = replace(snapshot, lost={**snapshot.lost, "damaged": damaged})
        return snapshot

    def _with_known_category(self, one: Outlier) -> Outlier:
        """Return the outlier, with category `other` if its own is unknown."""
        is_known = one.wait is None or not self._categories or one.category in self._categories
        return one if is_known else one._replace(category=OTHER)

    def _stack(self, number: int) -> Stack:
        stack = self._recording.stack(number)
        if self._categories and stack.category not in self._categories:
            return stack._replace(category=OTHER)  # written by a newer offtop
        return stack


def recorded_details(catalog: Catalog, pid: int) -> Sequence[tuple[str, str]]:
    """Return (label, raw value) pairs: what a recording has about a process."""
    details = catalog.detail(pid)
    pairs = (
        ("name", catalog.process(pid)),
        ("command line", details.cmdline),
        ("user", details.user),
        ("cgroup", details.cgroup),
        ("container", label(details.cgroup)),
        ("allowed CPUs", details.cpus),
    )
    return [(what, value) for what, value in pairs if value]


def check_follows(last: Change, change: Change) -> None:
    """Raise ValueError if `change` cannot come after `last`."""
    if change.at_ns <= last.at_ns:
        raise ValueError("ticks are out of order")
    if _storms_decrease(last.storms, change.storms):
        raise ValueError("wakeup storms decrease")
    if change.calls.are_fewer(last.calls):
        raise ValueError("calls decrease")


def check_size(replayed: Replayed, most: int) -> None:
    """Raise ValueError if a snapshot has more than `most` totals, waits in progress and names, or too much text."""
    if replayed.size > most or replayed.characters > _MOST_TEXT:
        raise ValueError("too many threads and stacks")


def _storms_decrease(before: Mapping[int, Storm], now: Mapping[int, Storm]) -> bool:
    """Return whether a running total decreased; one that is missing now did not."""
    return any(
        new < old
        for wake, was in before.items()
        if wake in now
        for old, new in zip(was[:3], now[wake][:3], strict=True)
    )
