"""Rebuilds snapshots from streamed ticks, also across a lost connection.

A new stream of the same host counts from 0, with ids of its own. Its ids are moved up here, and its totals added to
those of the stream before, so that history and recordings go on. The span between the two was not measured: it is a
loss, and the next snapshot has its length.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from threading import Lock
from typing import TypeVar

import numpy as np

from offtop.model.aggregate.stack_problems import NOT_KNOWN
from offtop.model.classify.categories import OTHER
from offtop.model.values.catalog import Catalog, SiteKey
from offtop.model.values.disks import DiskActivity
from offtop.model.values.files import FileActivity
from offtop.model.values.moves import NOW, WAS, Moves
from offtop.model.values.outlier import Outlier
from offtop.model.values.snapshot import UNMEASURED, Snapshot
from offtop.model.values.stack import EMPTY, FIRST_STACK, Frame, Stack, nameless
from offtop.model.values.table import Ints
from offtop.model.values.wake import FIRST_WAKE, Link, Wake, Waker
from offtop.model.values.within import NO_CALLS
from offtop.model.windows.change import Change, Replayed, Rows
from offtop.printable import printable
from offtop.recording import checked, disk_rows, file_rows, outlier_rows, tick_rows
from offtop.recording.catalog_keeper import CatalogKeeper
from offtop.recording.replay import MOST_TOTALS, check_follows, check_size
from offtop.recording.stream import NewNames, StreamTick
from offtop.recording.tick_rows import Entry
from offtop.units import NS_PER_S

Activity = TypeVar("Activity", FileActivity, DiskActivity)
_MOST_NAMES, _MOST_TEXT = 1 << 18, 64 << 20
"""Most names of frames, and most characters in them, in the frames, and in the files that have reasons."""
_MOST_MOVED = 1 << 30
"""Largest id of a stream that another one can follow."""


class StreamedNames:
    """Names of frames, and why some have none. Implements Names. Thread-safe."""

    def __init__(self) -> None:
        self.version = 0
        """Changes when a frame that was known before gets another name, or a file a reason."""
        self._names: dict[Frame, str] = {}
        self._reasons: dict[str, str] = {}
        self._text = 0
        self._lock = Lock()

    def add(self, new: NewNames) -> None:
        """Add names. Those for which there is no room are left out."""
        with self._lock:
            has_changed = False
            for frame, name in new.frames.items():
                was = self._names.get(frame)
                more = len(name) - len(was) if was is not None else _characters(frame, name)
                if (was is not None or len(self._names) < _MOST_NAMES) and self._text + more <= _MOST_TEXT:
                    self._names[frame] = name
                    self._text += more
                    has_changed |= was is not None and was != name
            for file, reason in new.reasons.items():
                was = self._reasons.get(file)
                more = len(file) if was is None else 0
                if was is not None or (len(self._reasons) < _MOST_NAMES and self._text + more <= _MOST_TEXT):
                    self._reasons[file] = reason
                    self._text += more
                    has_changed |= was != reason
            self.version += has_changed

    def keep(self, frames: Collection[Frame]) -> None:
        """Forget the names of all frames but these."""
        files = {frame.file for frame in frames}
        with self._lock:
            self._names = {frame: name for frame, name in self._names.items() if frame in frames}
            self._reasons = {file: reason for file, reason in self._reasons.items() if file in files}
            self._text = sum(_characters(*one) for one in self._names.items()) + sum(map(len, self._reasons))

    def of(self, frame: Frame) -> str:
        return self._names.get(frame) or printable(frame.name) or nameless(frame)

    def why_nameless(self, frame: Frame) -> str:
        """Return why a frame has no name; empty: it has one, or that is not known yet."""
        return "" if self.has_name(frame) else self._reasons.get(frame.file, "")

    def has_name(self, frame: Frame) -> bool:
        return bool(frame.name) or self._names.get(frame, nameless(frame)) != nameless(frame)

    def is_final(self, frame: Frame) -> bool:
        """Return whether the frame has its name, or is known to have none."""
        return self.has_name(frame) or self._reasons.get(frame.file, NOT_KNOWN) != NOT_KNOWN


def _characters(frame: Frame, name: str) -> int:
    return len(frame.file) + len(frame.name) + len(name)


class StreamedTicks:
    """Adds up the ticks of one stream after the other. Not thread-safe."""

    def __init__(self, names: StreamedNames, categories: Collection[str]) -> None:
        """`categories`: the known ones; others become `other`."""
        self._names, self._categories = names, frozenset(categories)
        self._epoch = 0
        self._last: Change | None = None
        """The last change of this stream; None: there is none yet."""
        self._latest: Snapshot | None = None
        """The last snapshot of this or an earlier stream."""
        self._unmeasured_s = 0
        """How long nothing was measured before this stream."""
        self._clear()

    def _clear(self) -> None:
        self._stacks: dict[int, Stack] = {}
        """What the sender has sent and not dropped, by our ids."""
        self._keeper = CatalogKeeper(lambda number: self._stacks.get(number, EMPTY))
        self._replayed = Replayed(self._keeper.catalog)
        self._stacks_from = self._wakes_from = 0
        """What is added to the stream's ids."""
        self._next_stack, self._next_wake = FIRST_STACK, FIRST_WAKE
        """Ids from here on were not used yet."""
        self._base: Snapshot | None = None
        """What the running counts of this stream are added to; None: they are those of the host."""

    @property
    def catalog(self) -> Catalog:
        return self._keeper.catalog

    def begin_stream(self, is_same_boot: bool) -> None:
        """The next tick is the first of another stream; `is_same_boot`: of the same machine, which did not restart."""
        self._last = None
        if self._latest is None:
            return
        # The sender evicts only what it has counted itself. Totals of earlier streams would add up.
        is_full = self._replayed.size > MOST_TOTALS // 2
        if not is_same_boot or is_full or max(self._next_stack, self._next_wake) > _MOST_MOVED:
            self._epoch += 1
            self._latest = None
            self._clear()
            return
        self._replayed.end_waits(self._latest.at_ns)
        self._stacks.clear()
        self._stacks_from, self._wakes_from = self._next_stack - FIRST_STACK, self._next_wake - FIRST_WAKE
        self._base = self._latest

    def add(self, tick: StreamTick) -> Snapshot:
        """Return the snapshot after `tick`. Raises ValueError if the tick is invalid; the stream has to end then."""
        is_first = self._last is None
        entry = tick_rows.decode(tick.change, whole=is_first)
        checked.check_range(np.array([entry.change.taken_ns, entry.change.at_ns]), 0, checked.MOST_NS)
        if self._last:
            check_follows(self._last, entry.change)
        elif self._latest and entry.change.at_ns <= self._latest.at_ns:
            raise ValueError("ticks are out of order")
        self._last = entry.change
        for number in tick.dropped:
            self._stacks.pop(self._stack_id(number), None)
        self._stacks.update((self._stack_id(number), self._known(stack)) for number, stack in tick.stacks.items())
        outliers = [self._outlier(blob, tick.stacks) for blob in tick.outliers]
        entry = self._moved_up(entry)
        change = entry.change
        self._note_ids(entry, map(self._stack_id, tick.stacks))
        if is_first and self._latest:
            change = self._following(change)
            entry = replace(entry, change=change)
        snapshot = replace(
            self._with_base(self._replayed.add(change, self._epoch)),
            outliers=outliers,
            files=self._with_own_stacks(file_rows.decode(tick.files)) if tick.files else None,
            disks=self._with_own_stacks(disk_rows.decode(tick.disks)) if tick.disks else None,
        )
        check_size(self._replayed, MOST_TOTALS)
        if self._keeper.add(entry, snapshot):
            stacks = (*self._keeper.catalog.stacks.values(), *self._stacks.values())
            self._names.keep({frame for stack in stacks for frame in stack.frames})
        self._latest = snapshot
        return snapshot

    def _note_ids(self, entry: Entry, sent: Iterable[int]) -> None:
        """Note which ids the stream has used. Raises ValueError for one that is far too large."""
        stacks = entry.change.stacks.union(sent, *(wake.stacks for wake in entry.wakes.values()))
        self._next_stack = max(self._next_stack, 1 + max(stacks, default=0))
        self._next_wake = max(self._next_wake, 1 + max((*entry.wakes, *entry.change.wakes), default=0))
        if max(self._next_stack, self._next_wake) > checked.MOST_ID:
            raise ValueError("a number is out of range")

    def _known(self, stack: Stack) -> Stack:
        is_known = not self._categories or stack.category in self._categories
        return stack if is_known else stack._replace(category=OTHER)  # from a newer offtop

    def _outlier(self, blob: bytes, new: Mapping[int, Stack]) -> Outlier:
        one = outlier_rows.decode(blob, lambda number: new.get(number) or self._stack(number))
        is_known = one.wait is None or not self._categories or one.category in self._categories
        one = one if is_known else one._replace(category=OTHER)
        if one.wait is None or not (self._stacks_from or self._wakes_from):
            return one
        catalog = replace(
            one.catalog,
            stacks={self._stack_id(number): stack for number, stack in one.catalog.stacks.items()},
            wakes={self._wake_id(number): self._wake(wake) for number, wake in one.catalog.wakes.items()},
        )
        return one._replace(wait=one.wait._replace(site=self._site(one.wait.site)), catalog=catalog)

    def _stack(self, number: int) -> Stack:
        return self._stacks.get(self._stack_id(number), EMPTY)

    def _following(self, change: Change) -> Change:
        """Return the first change of a stream as one that follows the snapshot before."""
        none = np.empty(0, np.int64)
        threads, sites = replace(change.threads, longest_ns=none), replace(change.sites, longest_ns=none)
        return replace(change, threads=threads, sites=sites)

    def _with_base(self, snapshot: Snapshot) -> Snapshot:
        """Add what was counted in the streams before."""
        base = self._base
        if base is None or self._latest is None:
            return snapshot
        lost = {kind: base.lost.get(kind, 0) + snapshot.lost.get(kind, 0) for kind in {**base.lost, **snapshot.lost}}
        if self._latest is base:
            self._unmeasured_s = max(1, round((snapshot.at_ns - base.at_ns) / NS_PER_S))
        lost[UNMEASURED] = base.lost.get(UNMEASURED, 0) + self._unmeasured_s
        sampling = snapshot.sampling
        if sampling and base.sampling:
            sampling = sampling.plus(base.sampling._replace(longest_ns=0))
        calls = base.calls._replace(max_ns=0).plus(snapshot.calls) if base.calls != NO_CALLS else snapshot.calls
        return replace(snapshot, lost=lost, sampling=sampling, calls=calls)

    # The ids of a stream, moved up

    def _stack_id(self, number: int) -> int:
        return number + self._stacks_from if number >= FIRST_STACK else number

    def _wake_id(self, number: int) -> int:
        return number + self._wakes_from if number >= FIRST_WAKE else number

    def _site(self, site: SiteKey) -> SiteKey:
        kernel, user = self._stack_id(site.kernel), self._stack_id(site.user)
        return site._replace(kernel=kernel, user=user, wake=self._wake_id(site.wake))

    def _with_own_stacks(self, activity: Activity) -> Activity:
        """Return file operations or requests to disks with our ids of their stacks."""
        stacks = {
            key._replace(kernel=self._stack_id(key.kernel), user=self._stack_id(key.user)): totals
            for key, totals in activity.stacks.items()
        }
        return replace(activity, stacks=stacks)

    def _moved_up(self, entry: Entry) -> Entry:
        if not (self._stacks_from or self._wakes_from):
            return entry
        change = entry.change
        moves = change.moves.rows.copy()
        for begin in (WAS, NOW):
            self._move_sites(moves[:, begin:])
        begun, waiting = change.begun.copy(), change.waiting.copy()
        self._move(begun[:, -1:], FIRST_STACK, self._stacks_from)
        self._move(waiting[:, 2:4], FIRST_STACK, self._stacks_from)
        self._move(waiting[:, -1:], FIRST_WAKE, self._wakes_from)
        change = replace(
            change,
            sites=self._moved_rows(change.sites),
            waiting=waiting,
            begun=begun,
            moves=Moves(moves),
            storms={self._wake_id(number): storm for number, storm in change.storms.items()},
        )
        wakes = {self._wake_id(number): self._wake(wake) for number, wake in entry.wakes.items()}
        return replace(entry, change=change, wakes=wakes)

    def _moved_rows(self, sites: Rows) -> Rows:
        ids, evicted = sites.ids.copy(), sites.evicted.copy()
        self._move_sites(ids)
        self._move_sites(evicted)
        return replace(sites, ids=ids, evicted=evicted)

    def _move_sites(self, ids: Ints) -> None:
        """Move the stacks and the wake of the sites whose ids are in the first columns, in place."""
        self._move(ids[:, 2:4], FIRST_STACK, self._stacks_from)
        self._move(ids[:, 4:5], FIRST_WAKE, self._wakes_from)

    def _move(self, ids: Ints, first: int, by: int) -> None:
        ids[ids >= first] += by

    def _wake(self, wake: Wake) -> Wake:
        links = tuple(self._link(link) for link in wake.links)
        return wake._replace(waker=self._waker(wake.waker), links=links)

    def _link(self, link: Link) -> Link:
        kernel, user = self._stack_id(link.kernel), self._stack_id(link.user)
        return link._replace(kernel=kernel, user=user, waker=self._waker(link.waker))

    def _waker(self, waker: Waker) -> Waker:
        return waker._replace(kernel=self._stack_id(waker.kernel), user=self._stack_id(waker.user))
