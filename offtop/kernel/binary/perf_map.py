"""Names of JIT-compiled code (Java, Node.js, .NET, …), from /tmp/perf-PID.map.

The process itself writes that file. It grows while the process runs, to 100,000 lines and more. It is read
incrementally, only when there is an address that it does not cover yet, and by a separate thread, so no tick waits for
it. Reading the maps of all processes together takes at most 2% of a CPU.
"""

import os
import re
import time
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple
from weakref import WeakValueDictionary

from offtop.kernel.procfs.guarded_reads import Channel, GuardedReads
from offtop.kernel.procfs.threads import status_of
from offtop.printable import printable
from offtop.worker import Rest, Worker

_LINE = re.compile(rb"^(?:0x)?([0-9a-fA-F]{1,16}) (?:0x)?([0-9a-fA-F]{1,16}) (.+)$", re.MULTILINE)
_MOST_BYTES = 16 * 1024 * 1024
_MOST_OF_ALL_BYTES = 256 * 1024 * 1024
"""Most memory of all maps together: any user can write maps for thousands of processes. Further ones are cut."""
_ENTRY_BYTES = 70
"""Memory that an entry takes beside its text."""
_MOST_ENTRIES = 300_000
"""More than a map of _MOST_BYTES has, unless it was crafted to keep offtop busy. Further entries are ignored."""
_LONGEST_NAME = 1000
_TAIL_BYTES = 256
"""If the last bytes read are still in their place, the file has only grown."""
_SHARE = 0.02
"""Share of a CPU for reading all maps."""
_SAVED_S = 0.5
"""Unused CPU time accumulates up to this. A map of 16 MB takes about as long."""
_PATIENCE_S = 0.02
"""How long a tick waits for a map that has not been read yet."""
_ANSWER_S = 2.0
"""Deadline for reading a map."""
_LOOK_BACK = 16
"""How many entries before an address are checked, because JITs reuse memory and old entries overlap new ones."""


class _Entries(NamedTuple):
    """The part of a map that has been read."""

    starts: "array[int]" = array("Q")
    sizes: "array[int]" = array("Q")
    at: "array[int]" = array("I")
    """Offset of the name in `text`."""
    order: Sequence[int] = ()
    """Indices of entries, sorted by start; equal starts are in the order in which they were written."""
    ordered_starts: "array[int]" = array("Q")
    text: bytes = b""
    inode: int = 0


class PerfMap:
    """The map of one process. One thread calls `read`; the rest is thread-safe."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._paths, self._owners = _paths_and_owners(pid)
        self._entries = _Entries()
        self.is_read = False
        """Whether a read has been attempted."""

    @property
    def size_bytes(self) -> int:
        """Size of the part that has been read."""
        return len(self._entries.text)

    @property
    def memory_bytes(self) -> int:
        return self.size_bytes + _ENTRY_BYTES * len(self._entries.starts)

    def read(self, reads: Channel, most_bytes: int = _MOST_BYTES) -> None:
        """Read what has been appended, up to `most_bytes` in all. Raises TimeoutError if that takes too long."""
        known = self._entries
        tail = known.text[-_TAIL_BYTES:]
        at = len(known.text) - len(tail)
        inode, is_new, more = reads.ask(
            self._pid, "appended", self._paths, self._owners, known.inode, tail, at, most_bytes
        )
        if is_new:
            known = _Entries(inode=inode)
        if lines := more[: more.rfind(b"\n") + 1]:
            self._entries = _with(known, lines)
        elif is_new:
            self._entries = known

    def lookup(self, address: int) -> str:
        """Return the name of the code at `address`, or an empty string.

        If several entries cover it, the newest one counts.
        """
        entries = self._entries
        end = bisect_right(entries.ordered_starts, address)
        newest = -1
        for entry in entries.order[max(0, end - _LOOK_BACK) : end]:
            if entry > newest and address - entries.starts[entry] < entries.sizes[entry]:
                newest = entry
        if newest < 0:
            return ""
        at = entries.at[newest]
        name = entries.text[at : entries.text.index(b"\n", at)]
        return printable(name[:_LONGEST_NAME].decode(errors="surrogateescape"))


class PerfMaps:
    """Reads maps one after the other in a separate thread, with one CPU budget for all.

    Thread-safe. The thread is started with the first map, because most machines have none.
    """

    def __init__(self, reads: GuardedReads) -> None:
        self._reads = reads.channel(_ANSWER_S)
        self._maps = WeakValueDictionary[tuple[int, tuple[bytes, ...]], PerfMap]()
        self._queue: dict[PerfMap, None] = {}
        """Maps to be read, in this order."""
        self._left_s, self._filled_s = _SAVED_S, time.monotonic()
        self._worker = Worker("offtop-perfmaps", self._run)

    def of(self, pid: int, identity: tuple[bytes, ...]) -> PerfMap:
        """Return the map of a process that runs the program `identity` (see mappings.Image).

        It is kept as long as a caller holds it.
        """
        with self._worker.changed:
            found = self._maps.get((pid, identity))
            if found is None:
                found = self._maps[pid, identity] = PerfMap(pid)
            return found

    def name(self, one: PerfMap, address: int) -> str:
        """Return the name of the code at `address`, or an empty string.

        If there is none, the map is queued to be read again. Waits up to 20 ms for a map that has never been read.
        """
        if name := one.lookup(address):
            return name
        self.refresh(one)
        if one.is_read:
            return ""
        with self._worker.changed:
            # Do not wait if other maps are queued, so that a tick loses no more than 20 ms.
            if [*self._queue] == [one] and self._left_s > 0:
                self._worker.changed.wait_for(lambda: one.is_read, _PATIENCE_S)
        return one.lookup(address)

    def refresh(self, one: PerfMap) -> None:
        """Queue a map to be read again."""
        with self._worker.changed:
            self._queue[one] = None
            self._worker.wake()

    def close(self) -> None:
        """Stop the thread, without waiting for it. Idempotent."""
        self._worker.close()

    def _run(self, worker: Worker) -> None:
        for one in worker.requests(self._next):
            began_s = time.thread_time()
            with worker.changed:
                room = _MOST_OF_ALL_BYTES - sum(other.memory_bytes for other in self._maps.values() if other is not one)
            with suppress(OSError):
                one.read(self._reads, max(0, min(_MOST_BYTES, room)))
            with worker.changed:
                self._left_s -= time.thread_time() - began_s
                self._queue.pop(one)
                one.is_read = True

    def _next(self) -> PerfMap | Rest:
        if self._queue and self._fill() > 0:
            return next(iter(self._queue))
        return Rest(-self._left_s / _SHARE if self._queue else None)

    def _fill(self) -> float:
        """Refill the CPU budget, and return the seconds that are left."""
        now_s = time.monotonic()
        self._left_s = min(_SAVED_S, self._left_s + _SHARE * (now_s - self._filled_s))
        self._filled_s = now_s
        return self._left_s


def _with(known: _Entries, lines: bytes) -> _Entries:
    starts, sizes, at = known.starts[:], known.sizes[:], known.at[:]
    base = len(known.text)
    for line in islice(_LINE.finditer(lines), _MOST_ENTRIES - len(starts)):
        starts.append(int(line[1], 16))
        sizes.append(int(line[2], 16))
        at.append(base + line.start(3))
    order = sorted(range(len(starts)), key=starts.__getitem__)
    return _Entries(
        starts, sizes, at, order, array("Q", map(starts.__getitem__, order)), known.text + lines, known.inode
    )


def _paths_and_owners(pid: int) -> tuple[list[str], list[int]]:
    """Return the paths where the map may be, and the user IDs that may own it.

    Its name contains the PID in the process's own namespace.
    """
    inner, owners = str(pid), {0, os.geteuid()}
    with suppress(OSError, KeyError):
        status = status_of(pid)
        inner = status["NSpid"].split()[-1]
        owners.update(map(int, status["Uid"].split()))
    return [f"/proc/{pid}/root/tmp/perf-{inner}.map", f"/tmp/perf-{pid}.map"], [*owners]
