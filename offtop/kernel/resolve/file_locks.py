"""Finds the processes that hold file locks with waiters: flock(), fcntl() and leases.

/proc/locks shows which process waits for which lock, but not which one holds it, only which one took it: that may have
exited, and a child that shares the open file may hold the lock now. So the open files of all processes are searched for
the lock (`lock:` in /proc/PID/fdinfo/FD). The search runs in slices of 20 ms of CPU time a second, and only when it is
necessary; the process that took the lock is checked immediately.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from offtop.kernel.procfs.direct_reads import every_pid
from offtop.kernel.procfs.guarded_reads import Channel
from offtop.kernel.procfs.open_files import OpenFile, fdinfo_of, last_part, locks_in, scan_open_files
from offtop.kernel.procfs.threads import status_of
from offtop.kernel.resolve.blocked import FCNTL, FLOCK, OPENS, Blocked, Found
from offtop.kernel.resolve.slices import SlicedWork
from offtop.model.values.blockers import FILE_LOCK, Blocker
from offtop.model.values.catalog import ThreadKey

_BYTES = 1 << 20
_OLD_S = 10.0
"""Age at which the holders of a lock are searched for again: meanwhile it may have been inherited."""
_MOST_LOCKS = 256
"""Maximum number of locks with waiters that are read; `unread` counts the others."""
_MOST_ON_FILE = 256
"""If a file has more locks, only the one that the kernel has recorded for each request is read."""
_KINDS = {FLOCK: ("FLOCK",), FCNTL: (), **dict.fromkeys(OPENS, ("LEASE", "DELEG"))}
"""System call → the locks that it may wait for. Those of fcntl() depend on its command."""
_OF_RANGES = ("POSIX", "OFDLCK")
_KINDS_OF_COMMANDS = {7: ("POSIX",), 38: ("OFDLCK",)}
"""F_SETLKW and F_OFD_SETLKW (include/uapi/asm-generic/fcntl.h)."""
_PID_UNKNOWN = {"OFDLCK": -1}
"""Kind of a lock → the PID that /proc/locks shows for all locks of that kind."""
_END = 1 << 63
_INODE = re.compile(rb"^ino:\t(\d+)$", re.MULTILINE)
"""Reported since 3845f256a8b5, 5.14."""


class LockLine(NamedTuple):
    """A line of /proc/locks."""

    number: str
    """Number of the held lock, also in the lines of requests that wait for it."""
    text: str
    """Rest of a held lock's line, which is also in the fdinfo of its holders."""
    kind: str
    is_write: bool
    pid: int
    """PID of the process that took the lock or waits for it; -1: unknown (open file description locks)."""
    file: str
    """`fe:01:1234`: device and inode."""
    first: int
    last: int

    @property
    def inode(self) -> str:
        return self.file.rpartition(":")[2]

    def conflicts(self, held: "LockLine") -> bool:
        """Return whether this request must wait for that lock."""
        are_ranges = self.kind in _OF_RANGES and held.kind in _OF_RANGES
        is_own = self.kind == held.kind == "POSIX" and self.pid == held.pid
        return (
            self.file == held.file
            and (are_ranges or self.kind == held.kind == "FLOCK")
            and (self.is_write or held.is_write)
            and self.first <= held.last
            and held.first <= self.last
            and not is_own
        )


class Request(NamedTuple):
    """The file that a thread waits to lock."""

    kinds: tuple[str, ...]
    pid: int
    inode: str
    """Empty if unknown, as for open()."""
    name: str
    """Last component of the file's path; empty if unknown. Raw."""


class LockTable:
    """What /proc/locks shows: locks that are held, and requests that wait for them."""

    @classmethod
    def read(cls) -> "LockTable":
        with suppress(OSError), Path("/proc/locks").open("rb") as file:
            *lines, _ = file.read(_BYTES).split(b"\n")  # the last one may be cut
            return cls([line.decode(errors="replace") for line in lines])
        return cls(())

    def __init__(self, lines: Iterable[str]) -> None:
        """`1: -> FLOCK ADVISORY WRITE 4242 …` waits for the holder in the line `1: FLOCK …` (fs/locks.c)."""
        self._held: dict[str, LockLine] = {}
        """By number."""
        self._on_files: dict[str, list[LockLine]] = {}
        """The same by file."""
        self._requests: dict[tuple[str, int, str], list[LockLine]] = {}
        """By kind, PID and inode; by kind and PID, with an empty inode; and by PID, if kind and inode are empty."""
        self._awaited: dict[LockLine, Mapping[str, LockLine]] = {}
        """Request, without the fields that do not matter here → texts of the locks that it waits for."""
        for line in lines:
            with suppress(ValueError):
                number, *words = line.split()
                is_request = words[:1] == ["->"]
                one = _parsed(number, words[is_request:])
                if is_request:
                    for kind, inode in (("", ""), (one.kind, ""), (one.kind, one.inode)):
                        self._requests.setdefault((kind, one.pid, inode), []).append(one)
                else:
                    self._held[number] = one
                    self._on_files.setdefault(one.file, []).append(one)

    def awaited(self, request: Request, threads: int) -> Mapping[str, LockLine]:
        """Return the texts of the locks that this many threads wait for with the same request; none if that is unsure.

        /proc/locks has processes, not threads. So if it has several such requests, they must all wait for the same
        locks. If the file is unknown, there must be one request for each thread, because a thread can be in the same
        call without waiting for a lock.
        """
        keys = [(kind, _PID_UNKNOWN.get(kind, request.pid), request.inode) for kind in request.kinds]
        lines = [one for key in keys for one in self._requests.get(key, ())]
        found = [self._awaited_by(one) for one in lines if one.number in self._held]
        is_sure = (request.inode or len(lines) >= threads) and all(one.keys() == found[0].keys() for one in found)
        return found[0] if found and is_sure else {}

    def awaited_by_process(self, pid: int) -> LockLine | None:
        """Return the lock that the kernel has recorded for a process's requests; None if there are several, or none."""
        numbers = {one.number for one in self._requests.get(("", pid, ""), ())}
        return self._held.get(numbers.pop()) if len(numbers) == 1 else None

    def _awaited_by(self, request: LockLine) -> Mapping[str, LockLine]:
        same = request._replace(text="", pid=request.pid if request.kind == "POSIX" else 0)
        known = self._awaited.get(same)
        if known is None:
            first = self._held[request.number]
            on_file = self._on_files[first.file] if len(self._on_files[first.file]) <= _MOST_ON_FILE else ()
            known = {first.text: first} | {one.text: one for one in on_file if request.conflicts(one)}
            self._awaited[same] = known
        return known


class FileLocks:
    """Finds the holders of file locks. For one thread."""

    def __init__(self, reads: Channel) -> None:
        self._reads = reads
        self._requests: dict[tuple[ThreadKey, int], Request | None] = {}
        """Thread, and when its wait began → what it waits to lock."""
        self._holders: dict[str, dict[int, str]] = {}
        """Text of a lock → its holders, and the descriptor by which each has it."""
        self._searched_s: dict[str, float] = {}
        """Text of a lock → when all processes were last searched for its holders (time.monotonic())."""
        self._checked: set[str] = set()
        """Texts of the locks whose taker has been checked."""
        self._search = SlicedWork()
        self.unread = 0
        """How many locks were skipped, because too many had waiters at once."""

    def find(self, waits: Sequence[Blocked]) -> dict[ThreadKey, Found]:
        """Return the holders of the lock that each of these threads waits for, if they are known by now."""
        of_locks = [one for one in waits if one.call in _KINDS and one.arguments]
        before, self._requests = self._requests, {}
        if not of_locks:
            self._forget([*self._holders, *self._searched_s])
            return {}
        for one in of_locks:
            wait = one.key, one.switched_out_ns
            self._requests[wait] = before[wait] if wait in before else self._request(one)
        table = LockTable.read()
        many = Counter(self._requests.values())
        locks = {request: table.awaited(request, threads) for request, threads in many.items() if request}
        every = {text: lock for some in locks.values() for text, lock in some.items()}
        names = {text: request.name for request, some in locks.items() for text in some}
        self.unread += max(0, len(every) - _MOST_LOCKS)
        self._check(dict(islice(every.items(), _MOST_LOCKS)), names)
        self._continue_search(every, names)
        first = {self._requests[one.key, one.switched_out_ns]: one.key for one in reversed(of_locks)}
        blockers = {
            request: self._blockers(some, names, first[request], many[request]) for request, some in locks.items()
        }
        return {
            one.key: Found(one.switched_out_ns, holders, arguments=one.arguments if one.call in OPENS else ())
            for one in of_locks
            if (request := self._requests[one.key, one.switched_out_ns]) and (holders := blockers[request])
        }

    def _request(self, wait: Blocked) -> Request | None:
        """Return which file a thread waits to lock; None if that is unknown."""
        pid, kinds, fd = wait.key.pid, _KINDS[wait.call], str(wait.arguments[0] & 0xFFFFFFFF)
        if wait.call in OPENS:
            return Request(kinds, pid, "", "")
        if wait.call == FCNTL:
            kinds = _KINDS_OF_COMMANDS.get(wait.arguments[1] & 0xFFFFFFFF, ())
        (fdinfo,) = fdinfo_of(self._reads, pid, [fd])
        inode = _INODE.search(fdinfo)
        return Request(kinds, pid, inode[1].decode(), _name(pid, fd)) if kinds and inode else None

    def _blockers(
        self, texts: Iterable[str], names: Mapping[str, str], waiter: ThreadKey, threads: int
    ) -> tuple[Blocker, ...]:
        """Return the holders of the locks for which so many threads of a process wait; `waiter` is one of them.

        They are processes. If all threads of a process wait for its own lock, none can release it: the holder is
        `waiter` then.
        """
        pids = {pid: names[text] or _name(pid, fd) for text in texts for pid, fd in self._holders.get(text, {}).items()}
        tid = waiter.tid if [*pids] == [waiter.pid] and _threads_of(waiter.pid) == threads else 0
        return tuple(Blocker(pid, tid, FILE_LOCK, True, name) for pid, name in pids.items())

    def _check(self, locks: Mapping[str, LockLine], names: Mapping[str, str]) -> None:
        """Forget processes that no longer hold a lock, and check whether the process that took it still does."""
        self._forget((self._holders.keys() | self._searched_s.keys()) - locks.keys())
        for text, lock in locks.items():
            holders = self._holders.setdefault(text, {})
            for pid, fd in [*holders.items()]:
                if text not in locks_in(*fdinfo_of(self._reads, pid, [fd])):
                    del holders[pid]
            if lock.pid > 0 and text not in self._checked:
                self._checked.add(text)
                for _ in self._holding([lock.pid], {text: names[text]}):
                    pass

    def _forget(self, texts: Iterable[str]) -> None:
        for text in texts:
            self._holders.pop(text, None)
            self._searched_s.pop(text, None)
            self._checked.discard(text)

    def _continue_search(self, locks: Mapping[str, LockLine], names: Mapping[str, str]) -> None:
        """Search all processes for holders of locks that several processes can hold, one slice at a time."""
        if self._search.may_begin:
            now_s = time.monotonic()
            due = {
                text: names[text]
                for text, lock in locks.items()
                if lock.kind != "POSIX" and now_s - self._searched_s.get(text, float("-inf")) >= _OLD_S
            }
            if due:
                self._search.begin(self._holding_all(due))
        self._search.advance()

    def _holding_all(self, names: Mapping[str, str]) -> Iterator[None]:
        yield from self._holding(every_pid(), names)
        self._searched_s |= dict.fromkeys(names, time.monotonic())

    def _holding(self, pids: Iterable[int], names: Mapping[str, str]) -> Iterator[None]:
        """Find which of `pids` hold the locks, given by text with the name of the file.

        Yields after each part of the work.
        """
        wanted = set(names.values())
        is_wanted: Callable[[str], bool] = (lambda link: last_part(link) in wanted) if "" not in wanted else _is_path
        for _, found in find_holders(pids, names.keys(), is_wanted, self._reads):
            for text, pid, fd in found:
                self._holders.setdefault(text, {})[pid] = fd
            yield


def find_holders(
    pids: Iterable[int], locks: Collection[str], wanted: Callable[[str], bool], reads: Channel
) -> Iterator[tuple[int, list[tuple[str, int, str]]]]:
    """Find which of these processes hold any of the locks, given by their texts, among files with a wanted link.

    Yields after each part of the work: the number of files whose links were read, and the holders as (text, PID,
    descriptor). All processes that share the open file by which a lock was taken hold it, whichever took it.
    """
    for pid, count, opened in scan_open_files(pids, wanted):
        fds = [fd for _, fd in opened]
        of_files = zip(fds, fdinfo_of(reads, pid, fds), strict=True)
        yield count, [(text, pid, fd) for fd, fdinfo in of_files for text in locks_in(fdinfo) if text in locks]


def _name(pid: int, fd: str) -> str:
    """Return the name of an open file, "" if it was closed."""
    return last_part(OpenFile(pid, fd).link)


def _threads_of(pid: int) -> int:
    """Return how many threads a process has; 0 if that is unknown."""
    try:
        return int(status_of(pid)["Threads"])
    except (OSError, KeyError, ValueError):
        return 0


def _is_path(link: str) -> bool:
    return link.startswith("/")


def _parsed(number: str, words: Sequence[str]) -> LockLine:
    kind, _, mode, pid, file, first, last = words
    end = _END if last == "EOF" else int(last)
    return LockLine(number, " ".join(words), kind, mode == "WRITE", int(pid), file, int(first), end)
