"""Turns the kernel side's ids of wakes into the book's: who woke, by the waker's stack, and what had been waited on."""

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from offtop.kernel import layout
from offtop.kernel.idtable import IdTable
from offtop.kernel.libbpf import Map
from offtop.model import wakers
from offtop.model.book import Book
from offtop.model.stack import NO_STACK
from offtop.model.wake import (
    BRIEF,
    DEPTH,
    EXIT,
    FIRST_WAKE,
    LOOP,
    LOST,
    NO_OBJECT,
    SIGNAL,
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
_LOOKED_AT_TICKS = 10
"""How long what was found out of a descriptor is taken to be so."""
_ENDS = {layout.NO_WAKE: UNSEEN, layout.WAKE_UNSEEN: UNSEEN, layout.WAKE_LOST: LOST, layout.WAKE_SHORT: BRIEF}
_PIPES, _SOCKETS, _ANONYMOUS = 0x50495045, 0x534F434B, 0x09041934
"""Magic numbers of file systems (include/uapi/linux/magic.h)."""
_LOST = Waker(name="(waker lost)")
_RawWaker = tuple[int, int, int, int, str]
_WITH_THREAD = (THREAD, SIGNAL, EXIT)
_MOST_CHAINS, _MOST_WAKES = 16_384, 65_536
"""In the book at once: threads that wake each other at random make another chain each time."""


def _raw_waker(value: bytes | memoryview) -> _RawWaker:
    kernel, user, pid, tid, comm = layout.WAKER.unpack(value)
    return kernel, user, pid, tid, layout.text_of(comm)


class Wakes:
    """Gives sites the ids of what ended them, and the book those wakes. For the polling thread."""

    def __init__(self, raw_wakers: Map, raw_wakes: Map, book: Book, stacks_of: StacksOf) -> None:
        self._wakers, self._wakes = IdTable(raw_wakers, _raw_waker), IdTable(raw_wakes, layout.WAKE.unpack)
        self._book, self._stacks_of = book, stacks_of
        self._known_wakers: dict[int, Waker] = {}
        self._ids: dict[tuple[int, int, bool], int] = {}
        """By raw id, sleeper, who may be where a chain closes, and whether it waited on the object."""
        self._by_wake: dict[Wake, int] = {}
        self._next_id = FIRST_WAKE
        self._objects: dict[tuple[int, ...], Object] = {}
        self._private: dict[tuple[int, int], int] = {}
        """Who waits, and on what by where that is in the kernel, which nobody needs to know, → a number of ours. In
        another process the same place may have become something else."""
        self._ticks = 0
        self._next_number = 1
        self._open: dict[tuple[int, int], tuple[int, int]] = {}
        """Key of a storm that the last tick had → its raw waker, and how many it had woken by then."""
        self.unread = 0
        """Wakes that a record named and the kernel no longer had, or the book has no room for, or for their chains."""
        self.most_kept: int | None = None
        """How many the book may go on with: a new one has come near to where it has no room. None: with all."""

    def id_of(self, raw_id: int, pid: int, tid: int, is_on_object: bool = True) -> int:
        """The id in the book of what ended a wait of that thread. `is_on_object`: it waited on what its system call
        names."""
        if raw_id < layout.FIRST_ID:
            return raw_id
        known = self._ids.get((raw_id, tid, is_on_object))
        if known is None:
            found = self._wakes.read(raw_id)
            if found is None:
                self.unread += 1
                return layout.WAKE_LOST
            made = self._made(found, pid, tid)
            known = self._intern(made if is_on_object else made._replace(object=NO_OBJECT))
            if known == layout.WAKE_LOST:
                return known
            if len(self._ids) >= _KNOWN:
                self._ids.clear()
            self._ids[raw_id, tid, is_on_object] = known
        return known

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
        if self._wakes.make_room(at_once):
            self._ids.clear()
        self._wakers.make_room(at_once)
        if len(self._known_wakers) >= _KNOWN:
            self._known_wakers.clear()
        self._ticks += 1
        if self._ticks % _LOOKED_AT_TICKS == 0 or len(self._objects) >= _KNOWN:
            self._objects.clear()  # a descriptor may be another file's by now
        if len(self._private) >= _KNOWN:
            self._private.clear()

    @property
    def fill(self) -> float:
        return max(self._wakers.fill, self._wakes.fill)

    def forget(self, stacks: set[int], wakes: set[int]) -> None:
        """The book gave these ids back."""
        self._by_wake = {wake: i for wake, i in self._by_wake.items() if i not in wakes}
        self.most_kept = None
        self._ids.clear()
        self._known_wakers = {
            raw: one for raw, one in self._known_wakers.items() if one.kernel not in stacks and one.user not in stacks
        }

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

    def _made(self, found: Sequence[int], pid: int, tid: int) -> Wake:
        raw_waker, _, file, inode, magic, argument, call, depth, end, *flat = found
        waker = self._waker(raw_waker)
        links: list[Link] = []
        seen, said = {(pid, tid), (waker.pid, waker.tid)}, _ENDS.get(end, DEPTH)
        last = waker
        for at in range(depth):
            if not last.tid:
                break
            kernel, user, raw = flat[3 * at : 3 * at + 3]
            of = last.pid
            last = self._waker(raw)
            links.append(Link(*self._stacks_of(of, kernel, user), last))
            if last.tid and last[2:4] in seen:
                said = LOOP
                break
            seen.add((last.pid, last.tid))
        if not last.tid:
            said = LOST if last == _LOST else WHOLE
        return Wake(waker, self._object(pid, call - 1, argument, file, inode, magic), tuple(links), said)

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

    def _object(self, pid: int, call: int, argument: int, file: int, inode: int, magic: int) -> Object:
        """What a system call names with its first argument."""
        if call < 0:
            return NO_OBJECT
        key = (pid, call, argument, file, inode)
        known = self._objects.get(key)
        if known is None:
            known = self._objects[key] = self._look(pid, argument, file, inode, magic)
        return known

    def _look(self, pid: int, argument: int, file: int, inode: int, magic: int) -> Object:
        if not file:
            return Object("futex", f"{argument:#x}", pid)
        if magic == _PIPES:
            return Object("pipe", f"pipe:[{inode}]")
        if magic == _SOCKETS:
            return Object("socket", f"socket:[{inode}]")
        name = _name_of(pid, argument, 0 if magic == _ANONYMOUS else inode)
        if magic == _ANONYMOUS:
            number = self._private.get((pid, file))
            if number is None:
                number = self._private[pid, file] = self._next_number
                self._next_number += 1
            kind = name.removeprefix("anon_inode:").strip("[]") if name.startswith("anon_inode:") else "file"
            kind = "epoll" if kind == "eventpoll" else kind
            return Object(kind, f"{kind}#{number}", pid)
        return Object("file", name or f"inode {inode}")


def _name_of(pid: int, fd: int, inode: int) -> str:
    """Of what a descriptor is open on; empty where that is another `inode` by now; 0: any will do. It asks no file
    system, which may be what everybody waits for."""
    with suppress(OSError):
        told = inode and re.search(r"^ino:\t(\d+)$", Path(f"/proc/{pid}/fdinfo/{fd}").read_text(), re.MULTILINE)
        if not told or int(told[1]) == inode:  # not told before 3845f256a8b5, 5.14
            return os.fsencode(Path(f"/proc/{pid}/fd/{fd}").readlink()).decode(errors="replace")
    return ""
