"""Resolves BPF wake ids to catalog ids: the waker, its stack, and the object waited on."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from offtop.kernel.bpf import layout
from offtop.kernel.bpf.id_table import IdTable
from offtop.kernel.bpf.layout import ObjectRecord
from offtop.kernel.bpf.libbpf import Map
from offtop.kernel.procfs.guarded_reads import Channel
from offtop.kernel.resolve.objects import Objects
from offtop.model.classify import wakers
from offtop.model.values.catalog import Catalog
from offtop.model.values.stack import NO_STACK
from offtop.model.values.wake import (
    BRIEF,
    DEPTH,
    EXIT,
    FIRST_WAKE,
    LOOP,
    LOST,
    NO_OBJECT,
    NOT_GATHERED,
    SIGNAL,
    STILL_WAITING,
    SYN_SENT,
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
"""(pid, raw kernel stack id, raw user stack id) → catalog ids."""
_MAX_CACHED = 65_536
_ENDS = {layout.NO_WAKE: UNSEEN, layout.WAKE_UNSEEN: UNSEEN, layout.WAKE_LOST: LOST, layout.WAKE_SHORT: BRIEF}
_LOST = Waker(name="(waker lost)")
_RawWaker = tuple[int, int, int, int, str]
_WITH_THREAD = (THREAD, SIGNAL, EXIT)
_MOST_CHAINS, _MOST_WAKES = 16_384, 65_536
"""Limits for the catalog: threads that wake each other at random make a new chain each time."""


def _raw_waker(value: bytes | memoryview) -> _RawWaker:
    kernel, user, pid, tid, comm = layout.WAKER.unpack(value)
    return kernel, user, pid, tid, layout.text_of(comm)


class _RawWake(NamedTuple):
    """`struct wake`."""

    waker: int
    object: ObjectRecord
    end: int
    links: list[tuple[int, int, int]]
    """Raw kernel stack id, raw user stack id, and raw id of the waker that ended that wait."""


def _raw_wake(value: bytes | memoryview) -> _RawWake:
    waker, _, found, depth, end, _, *flat = layout.WAKE.unpack(value)
    links = zip(flat[::3], flat[1::3], flat[2::3], strict=True)
    return _RawWake(waker, ObjectRecord.of(found), end, [*links][:depth])


class Wakes:
    """Assigns wake ids to sites and adds wakes to the catalog. For the polling thread."""

    def __init__(
        self,
        raw_wakers: Map,
        raw_wakes: Map,
        raw_objects: Map,
        catalog: Catalog,
        stacks_of: StacksOf,
        variable: Callable[[int], str],
        reads: Channel,
    ) -> None:
        """`variable` and `reads`: see Objects."""
        self._wakers, self._wakes = IdTable(raw_wakers, _raw_waker), IdTable(raw_wakes, _raw_wake)
        self._waited_on = IdTable(raw_objects, ObjectRecord.of)
        self._objects = Objects(catalog, reads, variable)
        self._catalog, self._stacks_of = catalog, stacks_of
        self._known_wakers: dict[int, Waker] = {}
        self._ids: dict[tuple[int, int, bool], int] = {}
        """Catalog id by raw id, the waiting thread (where a chain may close) and whether it waited on the object."""
        self._this_tick_only: dict[tuple[int, int, bool], int] = {}
        """The same for wakes that a later tick may know better. A record's first wake is resolved twice in a tick, and
        must be the same both times."""
        self._by_wake: dict[Wake, int] = {}
        self._next_id = FIRST_WAKE
        self._open: dict[tuple[int, int], tuple[int, int]] = {}
        """Storms of the last tick: key → raw waker id, and how many threads it had woken by then."""
        self.unread = 0
        """Wakes that a record refers to but the kernel no longer had, and wakes or chains that the catalog has no room
        for."""
        self.connecting = set[int]()
        """Wakes on a TCP socket that was being connected."""
        self.most_kept: int | None = None
        """How many wakes the catalog may keep now that it is nearly full; None: all."""

    def id_of(self, raw_id: int, pid: int, tid: int, is_on_object: bool = True) -> int:
        """Return the catalog id of what ended a wait of that thread.

        `is_on_object`: the wait was on what its system call names. Kernel locks are named either way.
        """
        if raw_id < layout.FIRST_ID:
            return raw_id if raw_id != layout.WAKE_NO_ROOM else layout.NO_WAKE
        key = raw_id, tid, is_on_object
        known = self._ids.get(key)
        if known is None:
            known = self._this_tick_only.get(key)
        if known is None:
            find = self._find_object if raw_id & layout.OBJECT_ID_BIT else self._find
            known, is_provisional = find(raw_id, pid, tid, is_on_object)
            if len(self._ids) >= _MAX_CACHED:
                self._ids.clear()
            (self._this_tick_only if is_provisional else self._ids)[key] = known
        return known

    def _find(self, raw_id: int, pid: int, tid: int, is_on_object: bool) -> tuple[int, bool]:
        """Return the catalog id of a wake, and whether it may be known better later."""
        found = self._wakes.read(raw_id)
        if found is None:
            self.unread += 1
            return layout.WAKE_LOST, True
        wake = self._resolve(found, pid, tid)
        object_, is_provisional = self._object(found.object, pid, is_on_object)
        known = self._intern(wake._replace(object=object_))
        return known, is_provisional or known == layout.WAKE_LOST

    def waiting_on(self, found: ObjectRecord, pid: int, with_wakers: bool, is_on_object: bool = True) -> int:
        """Return the catalog id of what a wait in progress is on; NO_WAKE if unknown.

        If wakers are not requested, the id stays the same when the wait ends.
        """
        return self._id_with_object(STILL_WAITING if with_wakers else NOT_GATHERED, found, pid, is_on_object)[0]

    def _object(self, found: ObjectRecord, pid: int, is_on_object: bool) -> tuple[Object, bool]:
        if not is_on_object and found.kind != layout.OBJECT_LOCK:
            return NO_OBJECT, False
        return self._objects.of(pid, found)

    def _find_object(self, raw_id: int, pid: int, _tid: int, is_on_object: bool) -> tuple[int, bool]:
        """Return the same for what a thread waited on, if its waker is unknown."""
        found = self._waited_on.read(raw_id)
        if found is None:
            self.unread += 1
            return layout.NO_WAKE, True
        return self._id_with_object(NOT_GATHERED, found, pid, is_on_object)

    def _id_with_object(self, waker: Waker, found: ObjectRecord, pid: int, is_on_object: bool) -> tuple[int, bool]:
        """The id of a wait with an unknown waker, and whether its object may be known better later."""
        object_, is_provisional = self._object(found, pid, is_on_object)
        known = self._intern(Wake(waker, object_)) if object_ != NO_OBJECT else layout.NO_WAKE
        return (layout.NO_WAKE, True) if known == layout.WAKE_LOST else (known, is_provisional)

    def storms(self, drained: Sequence[tuple[tuple[int, int], Sequence[int]]]) -> dict[int, Storm]:
        """Return one tick's storms by the catalog id of their waker.

        A storm that goes on across the end of a tick is counted once.
        """
        found: dict[int, Storm] = {}
        open_before, self._open = self._open, {}
        for key, (raw_waker, woken, slept_again, storms_begun) in drained:
            last_waker, last_woken = open_before.get(key, (0, 0))
            raw_waker = raw_waker or last_waker  # only threads that slept again arrived after the end of the tick
            self._open[key] = raw_waker, last_woken + woken
            waker = self._waker(raw_waker)
            if waker.kind == TIMEOUT or not raw_waker:  # every thread's own timeout ended its wait
                continue
            wake = self._intern(Wake(waker))
            if wake != layout.WAKE_LOST:
                largest = last_woken + woken if woken else 0
                found[wake] = found.get(wake, Storm()).plus(Storm(storms_begun, woken, slept_again, largest))
        return found

    def make_room(self, at_once: bool) -> None:
        """Keep the kernel's tables from filling up; call it once per tick. `at_once`: one is full."""
        self._this_tick_only.clear()
        freed = self._wakes.make_room(at_once), self._waited_on.make_room(at_once)
        if any(freed):
            self._ids.clear()
        self._wakers.make_room(at_once)
        if len(self._known_wakers) >= _MAX_CACHED:
            self._known_wakers.clear()
        self._objects.tick()

    @property
    def epolls(self) -> Mapping[Object, int]:
        """Epoll → the descriptor by which its process last waited on it."""
        return self._objects.epolls

    def forget(self, stacks: set[int], wakes: set[int]) -> None:
        """Forget ids that were evicted from the catalog."""
        self._by_wake = {wake: i for wake, i in self._by_wake.items() if i not in wakes}
        self.connecting -= wakes
        self.most_kept = None
        self._ids.clear()
        self._this_tick_only.clear()
        self._known_wakers = {
            raw: one for raw, one in self._known_wakers.items() if one.kernel not in stacks and one.user not in stacks
        }

    def forget_names(self, pid: int) -> None:
        """Forget names in a process whose mappings or symbols have changed."""
        self._ids.clear()
        self._known_wakers = {raw: one for raw, one in self._known_wakers.items() if one.pid != pid}

    def forget_kernel_names(self) -> None:
        """Forget kernel names after symbols have changed."""
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
        self._catalog.wakes[known] = wake
        if wake.object.state == SYN_SENT:
            self.connecting.add(known)
        return known

    def _resolve(self, found: _RawWake, pid: int, tid: int) -> Wake:
        """Resolve everything but the object."""
        waker = self._waker(found.waker)
        links: list[Link] = []
        seen, end = {(pid, tid), (waker.pid, waker.tid)}, _ENDS.get(found.end, DEPTH)
        last = waker
        for kernel, user, raw in found.links:
            if not last.tid:
                break
            of = last.pid
            last = self._waker(raw)
            links.append(Link(*self._stacks_of(of, kernel, user), last))
            if last.tid and last[2:4] in seen:
                end = LOOP
                break
            seen.add((last.pid, last.tid))
        if not last.tid:
            end = LOST if last == _LOST else WHOLE
        return Wake(waker, NO_OBJECT, tuple(links), end)

    def _waker(self, raw: int) -> Waker:
        known = self._known_wakers.get(raw)
        if known is None:
            found = self._wakers.read(raw) if raw >= layout.FIRST_ID else None
            if found is None:
                self.unread += raw >= layout.FIRST_ID
                return _LOST
            raw_kernel, raw_user, pid, tid, comm = found
            kernel, user = self._stacks_of(pid, raw_kernel, raw_user)
            names = [frame.name for frame in self._catalog.stack(kernel).frames]
            kind, name, via = wakers.kind_of(names, bool(tid))
            if kind not in _WITH_THREAD:
                pid, tid, comm, user = 0, 0, "", NO_STACK
            known = self._known_wakers[raw] = Waker(kind, name, pid, tid, comm, via, kernel, user)
        return known
