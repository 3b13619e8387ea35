"""Turns the kernel side's ids of wakes into the book's: who woke, by the waker's stack, and what had been waited on."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from offtop.kernel.bpf import layout
from offtop.kernel.bpf.id_table import IdTable
from offtop.kernel.bpf.layout import ObjectRecord
from offtop.kernel.bpf.libbpf import Map
from offtop.kernel.procfs.guarded_reads import Channel
from offtop.kernel.resolve.objects import Objects
from offtop.model.classify import wakers
from offtop.model.values.catalog import Book
from offtop.model.values.stack import NO_STACK
from offtop.model.values.wake import (
    BRIEF,
    DEPTH,
    EXIT,
    FIRST_WAKE,
    LOOP,
    LOST,
    NO_OBJECT,
    NOT_ASKED,
    SIGNAL,
    STILL_WAITING,
    THREAD,
    TIMEOUT,
    UNSEEN,
    WHOLE,
    Link,
    Object,
    Storm,
    Wake,
    Waker,
)

StacksOf = Callable[[int, int, int], tuple[int, int]]
"""(pid, raw kernel stack id, raw user stack id) → the ids in the book."""
_KNOWN = 65_536
_ENDS = {layout.NO_WAKE: UNSEEN, layout.WAKE_UNSEEN: UNSEEN, layout.WAKE_LOST: LOST, layout.WAKE_SHORT: BRIEF}
_LOST = Waker(name="(waker lost)")
_RawWaker = tuple[int, int, int, int, str]
_WITH_THREAD = (THREAD, SIGNAL, EXIT)
_MOST_CHAINS, _MOST_WAKES = 16_384, 65_536
"""In the book at once: threads that wake each other at random make another chain each time."""


def _raw_waker(value: bytes | memoryview) -> _RawWaker:
    kernel, user, pid, tid, comm = layout.WAKER.unpack(value)
    return kernel, user, pid, tid, layout.text_of(comm)


class _RawWake(NamedTuple):
    """`struct wake`."""

    waker: int
    object: ObjectRecord
    end: int
    links: list[tuple[int, int, int]]
    """Kernel and user stack, and who ended that wait."""


def _raw_wake(value: bytes | memoryview) -> _RawWake:
    waker, _, found, depth, end, _, *flat = layout.WAKE.unpack(value)
    links = zip(flat[::3], flat[1::3], flat[2::3], strict=True)
    return _RawWake(waker, ObjectRecord.of(found), end, [*links][:depth])


class Wakes:
    """Gives sites the ids of what ended them, and the book those wakes. For the polling thread."""

    def __init__(
        self,
        raw_wakers: Map,
        raw_wakes: Map,
        raw_objects: Map,
        book: Book,
        stacks_of: StacksOf,
        variable: Callable[[int], str],
        reads: Channel,
    ) -> None:
        """`variable` and `reads`: as Objects has them."""
        self._wakers, self._wakes = IdTable(raw_wakers, _raw_waker), IdTable(raw_wakes, _raw_wake)
        self._waited_on = IdTable(raw_objects, ObjectRecord.of)
        self._objects = Objects(book, reads, variable)
        self._book, self._stacks_of = book, stacks_of
        self._known_wakers: dict[int, Waker] = {}
        self._ids: dict[tuple[int, int, bool], int] = {}
        """By raw id, sleeper, who may be where a chain closes, and whether it waited on the object."""
        self._by_wake: dict[Wake, int] = {}
        self._next_id = FIRST_WAKE
        self._open: dict[tuple[int, int], tuple[int, int]] = {}
        """Key of a storm that the last tick had → its raw waker, and how many it had woken by then."""
        self.unread = 0
        """Wakes that a record named and the kernel no longer had, or the book has no room for, or for their chains."""
        self.most_kept: int | None = None
        """How many the book may go on with: a new one has come near to where it has no room. None: with all."""

    def id_of(self, raw_id: int, pid: int, tid: int, is_on_object: bool = True) -> int:
        """The id in the book of what ended a wait of that thread. `is_on_object`: it waited on what its system call
        names, if not on a lock of the kernel's."""
        if raw_id < layout.FIRST_ID:
            return raw_id if raw_id != layout.WAKE_UNTOLD else layout.NO_WAKE
        known = self._ids.get((raw_id, tid, is_on_object))
        if known is not None:
            return known
        if raw_id & layout.OF_OBJECT:
            return self._id_of_object(raw_id, pid, tid, is_on_object)
        found = self._wakes.read(raw_id)
        if found is None:
            self.unread += 1
            return layout.WAKE_LOST
        made = self._made(found, pid, tid)
        what, is_for_now = self._what(found.object, pid, is_on_object)
        known = self._intern(made._replace(object=what))
        if known != layout.WAKE_LOST and not is_for_now:
            self._remember(raw_id, tid, is_on_object, known)
        return known

    def waiting_on(self, found: ObjectRecord, pid: int, wakers_asked: bool, is_on_object: bool = True) -> int:
        """The id in the book of what a wait in progress is on; NO_WAKE where nobody knows. Where nobody asks for
        wakers, it stays the same when the wait ends."""
        return self._on(STILL_WAITING if wakers_asked else NOT_ASKED, found, pid, is_on_object)[0]

    def _what(self, found: ObjectRecord, pid: int, is_on_object: bool) -> tuple[Object, bool]:
        if not is_on_object and found.kind != layout.OBJECT_LOCK:
            return NO_OBJECT, False
        return self._objects.of(pid, found)

    def _id_of_object(self, raw_id: int, pid: int, tid: int, is_on_object: bool) -> int:
        found = self._waited_on.read(raw_id)
        if found is None:
            self.unread += 1
            return layout.NO_WAKE
        known, is_for_now = self._on(NOT_ASKED, found, pid, is_on_object)
        if not is_for_now:
            self._remember(raw_id, tid, is_on_object, known)
        return known

    def _on(self, waker: Waker, found: ObjectRecord, pid: int, is_on_object: bool) -> tuple[int, bool]:
        """Of a wait that nobody is known to have ended; and whether more of it may be known in a later tick."""
        what, is_for_now = self._what(found, pid, is_on_object)
        known = self._intern(Wake(waker, what)) if what != NO_OBJECT else layout.NO_WAKE
        return (layout.NO_WAKE, True) if known == layout.WAKE_LOST else (known, is_for_now)

    def _remember(self, raw_id: int, tid: int, is_on_object: bool, known: int) -> None:
        if len(self._ids) >= _KNOWN:
            self._ids.clear()
        self._ids[raw_id, tid, is_on_object] = known

    def storms(self, drained: Sequence[tuple[tuple[int, int], Sequence[int]]]) -> dict[int, Storm]:
        """By the wake ids of their wakers, what the storms of one tick came to; a storm that goes on over its end is
        one."""
        found: dict[int, Storm] = {}
        open_before, self._open = self._open, {}
        for key, (raw_waker, woken, again, begun) in drained:
            was_waker, was_woken = open_before.get(key, (0, 0))
            raw_waker = raw_waker or was_waker  # where only those who slept again came after the end of a tick
            self._open[key] = raw_waker, was_woken + woken
            waker = self._waker(raw_waker)
            if waker.kind == TIMEOUT or not raw_waker:  # each of them had asked for its own
                continue
            wake = self._intern(Wake(waker))
            if wake != layout.WAKE_LOST:
                largest = was_woken + woken if woken else 0
                found[wake] = found.get(wake, Storm()).plus(Storm(begun, woken, again, largest))
        return found

    def make_room(self, at_once: bool) -> None:
        """Once a tick: keep the kernel's tables from filling up. `at_once`: one has."""
        rooms = self._wakes.make_room(at_once), self._waited_on.make_room(at_once)
        if any(rooms):
            self._ids.clear()
        self._wakers.make_room(at_once)
        if len(self._known_wakers) >= _KNOWN:
            self._known_wakers.clear()
        self._objects.tick()

    @property
    def epolls(self) -> Mapping[Object, int]:
        """A descriptor of each, by which its process waited on it last."""
        return self._objects.epolls

    @property
    def fill(self) -> float:
        return max(self._wakers.fill, self._wakes.fill, self._waited_on.fill)

    def forget(self, stacks: set[int], wakes: set[int]) -> None:
        """The book gave these ids back."""
        self._by_wake = {wake: i for wake, i in self._by_wake.items() if i not in wakes}
        self.most_kept = None
        self._ids.clear()
        self._known_wakers = {
            raw: one for raw, one in self._known_wakers.items() if one.kernel not in stacks and one.user not in stacks
        }

    def renamed(self, pid: int) -> None:
        """What lies in that process has other names."""
        self._ids.clear()
        self._known_wakers = {raw: one for raw, one in self._known_wakers.items() if one.pid != pid}

    def kernel_renamed(self) -> None:
        """What lies in the kernel has other names."""
        self._ids.clear()
        self._known_wakers.clear()

    def _intern(self, wake: Wake) -> int:
        known = self._by_wake.get(wake)
        if known is not None:
            return known
        most = _MOST_CHAINS if wake.links else _MOST_WAKES
        if 4 * len(self._by_wake) >= 3 * most:
            self.most_kept = min(self.most_kept or most, most // 2)
        if len(self._by_wake) >= most:
            self.unread += 1
            if not wake.links or len(self._by_wake) >= _MOST_WAKES:
                return layout.WAKE_LOST
            return self._intern(wake._replace(links=(), end=LOST))
        known = self._by_wake[wake] = self._next_id
        self._next_id += 1
        self._book.wakes[known] = wake
        return known

    def _made(self, found: _RawWake, pid: int, tid: int) -> Wake:
        """All of it but what was waited on."""
        waker = self._waker(found.waker)
        links: list[Link] = []
        seen, said = {(pid, tid), (waker.pid, waker.tid)}, _ENDS.get(found.end, DEPTH)
        last = waker
        for kernel, user, raw in found.links:
            if not last.tid:
                break
            of = last.pid
            last = self._waker(raw)
            links.append(Link(*self._stacks_of(of, kernel, user), last))
            if last.tid and last[2:4] in seen:
                said = LOOP
                break
            seen.add((last.pid, last.tid))
        if not last.tid:
            said = LOST if last == _LOST else WHOLE
        return Wake(waker, NO_OBJECT, tuple(links), said)

    def _waker(self, raw: int) -> Waker:
        known = self._known_wakers.get(raw)
        if known is None:
            found = self._wakers.read(raw) if raw >= layout.FIRST_ID else None
            if found is None:
                self.unread += raw >= layout.FIRST_ID
                return _LOST
            raw_kernel, raw_user, pid, tid, comm = found
            kernel, user = self._stacks_of(pid, raw_kernel, raw_user)
            names = [frame.name for frame in self._book.stack(kernel).frames]
            kind, name, via = wakers.kind_of(names, bool(tid))
            if kind not in _WITH_THREAD:
                pid, tid, comm, user = 0, 0, "", NO_STACK
            known = self._known_wakers[raw] = Waker(kind, name, pid, tid, comm, via, kernel, user)
        return known
