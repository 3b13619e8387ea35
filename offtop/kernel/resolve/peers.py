"""Finds who is at the other end of pipes and sockets, and what epolls watch: by a worker, when somebody asks.

Whose a pipe is, or a socket, only /proc/PID/fd tells, and that of every process has to be read: 4 to 7 µs for each
open file, 1.1 s of one CPU for 10,000 processes with 16 files each. So it is read for all that is asked for at once, a
bit at a time, at 2 % of a CPU and no more often than every few seconds, and only while something is asked for that is
not known, or that somebody has closed: to see that takes one look at each. Who opens it in addition is not noticed.
All pipes and sockets that were met are remembered until the next time, so that who asks for others is answered at once,
and only what is newer waits for that. Who has the lock of a file is asked of the process that took it first, and of all
others only where that no more has it: who took it with flock() may have ended, and left it to who has the file open.
"""

import os
import re
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from offtop.kernel.bpf import layout
from offtop.kernel.procfs.sock_diag import sockets_of
from offtop.kernel.procfs.threads import status_of
from offtop.model.values.catalog import Book
from offtop.model.values.peers import (
    EPOLL,
    FILE,
    HOLDER,
    LISTENER,
    NAMED,
    NO_ENDS,
    PEER,
    PIPE,
    READER,
    WRITER,
    Ends,
    Process,
    Side,
    may_have_ends,
)
from offtop.model.values.wake import UNIX, Object

_OLD_S = 10.0
"""What was told so long ago is looked at again when asked for."""
_NOTHING_S = 60.0
"""The same where nobody was found."""
_REST_S, _REST_TIMES = 3.0, 50
"""From one time that all files are read to the next, at least, and how often what it took of a CPU."""
_AT_ONCE_S, _PAUSE_TIMES = 0.02, 10
"""After so much time of a CPU a pause, so many times as long."""
_PART = 256
_MOST_FILES = 1_000_000
"""On a machine with more of them nobody is told."""
_MOST_ASKED = 2_048
_MOST_TOLD, _MOST_LOOKED_AT = 4_096, 16_384
_MOST_MET = 200_000
"""Pipes and sockets that are remembered, at 24 bytes; where more are open none are."""
_MOST_WATCHED = 1_024
"""A process that may have more files open is not asked what its epolls watch: the kernel keeps the epoll locked while
it tells, 1 ms for so many."""
_WATCHED_BYTES = _LOCKS_BYTES = 1 << 20
_READS, _WRITES = 0o400, 0o200
_EVENTPOLL, _SOCKET, _PIPE = "anon_inode:[eventpoll]", "socket:[", "pipe:["
_WATCHES = re.compile(r"^tfd: *(\d+) .* ino:([0-9a-f]+) ", re.MULTILINE)
"""Of /proc/PID/fdinfo/FD (77493f04b74c, 4.13)."""


class Holder(NamedTuple):
    """Who has something open."""

    pid: int
    fd: str

    @property
    def mode(self) -> int:
        """The bits _READS and _WRITES; 0 where it has been closed."""
        with suppress(OSError):
            return os.lstat(f"/proc/{self.pid}/fd/{self.fd}").st_mode & (_READS | _WRITES)
        return 0


class Lock(NamedTuple):
    """Of a file, that somebody waits for."""

    line: str
    """As /proc/locks has it, and fdinfo of who has it, behind its number there."""
    pid: int
    """Who took it; -1: not told (open file description locks)."""


class EndsWorker:
    """Puts into a Book who is at the other end. `tell` is for the thread that polls, all else for any."""

    def __init__(self, book: Book, epolls: Mapping[Object, int]) -> None:
        """`epolls`: a descriptor by which its process waits on each."""
        self._book, self._epolls = book, epolls
        self._asked: dict[Object, int] = {}
        """And a process that waits on each."""
        self._look_s: dict[Object, float] = {}
        """When each may be looked at again."""
        self._found: dict[Object, Ends] = {}
        """Not yet in the Book."""
        self._holders: dict[str, Sequence[Holder]] = {}
        """By what /proc/PID/fd calls it; of those that were looked for."""
        self._lockers: dict[Object, Sequence[int]] = {}
        """Who had locks that others took, when all files were read."""
        self._met = np.zeros((0, 3), np.int64)
        """Of all pipes and sockets when all files were read last: `_code`, process and descriptor."""
        self._read_s, self._rest_s = float("-inf"), _REST_S
        """When the files of all processes were read, and how long until they may be again."""
        self._rested_s = 0.0
        """Of the thread's time, what it had used when it paused last."""
        self._closing = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def find(self, waited_on: Mapping[Object, int]) -> None:
        """Have the Book tell the ends of these, soon; of each, a process that waits on it."""
        now_s = time.monotonic()
        with self._changed:
            for what, pid in waited_on.items():
                if may_have_ends(what) and now_s >= self._look_s.get(what, 0) and len(self._asked) < _MOST_ASKED:
                    self._asked[what] = pid
            if self._closing or not self._asked:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="offtop-ends", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def tell(self) -> None:
        """Put what has been found into the Book: here, so that a recording has it with the tick that shows it first."""
        if not self._found:
            return
        with self._changed:
            found, self._found = self._found, {}
        told = self._book.ends
        for what, ends in found.items():
            if told.get(what, NO_ENDS) != ends:
                self._book.ends_version += 1
            if told.pop(what, None) is not None or ends != NO_ENDS:
                told[what] = ends
        while len(told) > _MOST_TOLD:
            del told[next(iter(told))]

    def close(self) -> None:
        """Have the thread end when it can. Returns at once; may be called twice."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _run(self) -> None:
        unknown: dict[Object, int] = {}
        """What is told by nothing less than reading all files."""
        while not self._closing:
            with self._changed:
                rest_s = self._read_s + self._rest_s - time.monotonic() if unknown else None
                self._changed.wait_for(lambda: self._closing or self._asked, rest_s)
                asked, self._asked = self._asked, {}
                self._look_s |= dict.fromkeys(asked, float("inf"))
            unknown |= self._look(asked)
            if unknown and not self._closing and time.monotonic() >= self._read_s + self._rest_s:
                self._read(unknown)
                unknown = {}

    def _look(self, asked: Mapping[Object, int]) -> dict[Object, int]:
        """Tell what is known of these; the others."""
        epolls = {what: fd for what in asked if what.kind == EPOLL and (fd := self._epolls.get(what)) is not None}
        for what, fd in epolls.items():
            self._put({what: Ends(members=watched(what.pid, fd))})
            self._breathe()
        files = {what: pid for what, pid in asked.items() if what.kind == FILE}
        locks = awaited_locks(files)
        likely = {pid for what, lock in locks.items() for pid in (lock.pid, *self._lockers.get(what, ()))}
        lockers = self._lockers_of(locks, likely)
        self._put_lockers({what: lockers.get(what, ()) for what in files if what in lockers or what not in locks})
        sought = other_ends(asked)
        self._breathe()
        self._remember(self._met_with({one for one, _ in sought.values() if not self._is_as_it_was(one)}))
        new = {what for what, (one, _) in sought.items() if not self._is_as_it_was(one)}
        told = {*epolls, *files, *new}
        self._put_ends([what for what in asked if what not in told], sought)
        return {what: asked[what] for what in {*new, *locks}.difference(lockers)}

    def _read(self, unknown: Mapping[Object, int]) -> None:
        """Read all files, and tell of these."""
        files = {what: pid for what, pid in unknown.items() if what.kind == FILE}
        others = {what: pid for what, pid in unknown.items() if what not in files}
        sought, locks = other_ends(others), awaited_locks(files)
        new = {one for one, _ in sought.values() if not self._is_as_it_was(one)}
        began_s = time.thread_time()
        if new:
            self._remember({**dict.fromkeys(new, ()), **self._held(new)})
        lockers = self._lockers_of(locks, _every_pid()) if locks else {}
        if new or locks:
            self._read_s = time.monotonic()
            self._rest_s = max(_REST_S, _REST_TIMES * (time.thread_time() - began_s))
        self._lockers |= lockers
        while len(self._lockers) > _MOST_TOLD:
            del self._lockers[next(iter(self._lockers))]
        self._put_lockers({what: lockers.get(what, ()) for what in files})
        self._put_ends(others, sought)

    def _remember(self, holders: Mapping[str, Sequence[Holder]]) -> None:
        self._holders |= holders
        while len(self._holders) > _MOST_TOLD:
            del self._holders[next(iter(self._holders))]

    def _put_ends(self, those: Iterable[Object], sought: Mapping[Object, tuple[str, str]]) -> None:
        found = {what: _ends(self._holders.get(one, ()), role) for what, (one, role) in sought.items()}
        self._put({what: found.get(what, NO_ENDS) for what in those})

    def _put_lockers(self, found: Mapping[Object, Sequence[int]]) -> None:
        self._put({what: _ends([Holder(pid, "") for pid in pids], HOLDER) for what, pids in found.items()})

    def _put(self, found: Mapping[Object, Ends]) -> None:
        now_s = time.monotonic()
        with self._changed:
            self._found |= found
            for what, ends in found.items():
                self._look_s.pop(what, None)
                self._look_s[what] = now_s + (_NOTHING_S if ends == NO_ENDS else _OLD_S)
            while len(self._look_s) > _MOST_LOOKED_AT:
                del self._look_s[next(iter(self._look_s))]

    def _is_as_it_was(self, one: str) -> bool:
        """Whether all who had it open still have."""
        with suppress(OSError):
            holders = self._holders.get(one, ())
            links = (Path(f"/proc/{holder.pid}/fd/{holder.fd}").readlink() for holder in holders)
            return bool(holders) and all(str(link) == one for link in links)
        return False

    def _held(self, sought: Collection[str]) -> dict[str, list[Holder]]:
        """By whom each of these is held open; nothing where there are too many files."""
        files = 0
        held: dict[str, list[Holder]] = {}
        met = array("q")
        self._met = self._met[:0]
        for pid in _every_pid():
            for looked_at, found in _open_in(pid, _is_pipe_or_socket):
                files += looked_at
                for one, fd in found:
                    if one in sought:
                        held.setdefault(one, []).append(Holder(pid, fd))
                    if len(met) <= 3 * _MOST_MET:
                        met.extend((_code(one), pid, int(fd)))
                self._breathe()
                if self._closing or files > _MOST_FILES:
                    return {}
        if len(met) <= 3 * _MOST_MET:
            self._met = np.array(met, np.int64).reshape(-1, 3)
        return held

    def _lockers_of(self, locks: Mapping[Object, Lock], pids: Iterable[int]) -> dict[Object, list[int]]:
        """Which of these processes have each lock. All that have the file open that it was taken by have it, whoever
        took it (`lock:` in fdinfo, 4.1)."""
        of_names: dict[str, list[Object]] = {}
        for what in locks:
            of_names.setdefault(_last_part(what.name), []).append(what)
        files = 0
        found: dict[Object, list[int]] = {}
        for pid in pids:
            for looked_at, those in _open_in(pid, lambda link: _last_part(link) in of_names):
                files += looked_at
                for link, fd in those:
                    told = locks_by(pid, fd)
                    for what in of_names[_last_part(link)]:
                        if locks[what].line in told and pid not in found.get(what, ()):
                            found.setdefault(what, []).append(pid)
                self._breathe()
                if self._closing or files > _MOST_FILES:
                    return {}
        return found

    def _met_with(self, sought: Collection[str]) -> dict[str, list[Holder]]:
        """By whom each of these was held open when all files were read last."""
        of_codes = {_code(one): one for one in sought}
        held: dict[str, list[Holder]] = {}
        for code, pid, fd in self._met[np.isin(self._met[:, 0], [*of_codes])].tolist():
            held.setdefault(of_codes[code], []).append(Holder(pid, str(fd)))
        return held

    def _breathe(self) -> None:
        """Pause, when enough was done without."""
        used_s = time.thread_time() - self._rested_s
        if used_s > _AT_ONCE_S:
            self._wait(_PAUSE_TIMES * used_s)
            self._rested_s = time.thread_time()

    def _wait(self, seconds: float) -> None:
        """Or until it is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing, max(0.0, seconds))


def _code(link: str) -> int:
    """A number for a pipe or a socket."""
    kind, _, number = link.removesuffix("]").partition(":[")
    return int(number) << 1 | (kind == PIPE)


def other_ends(waited_on: Mapping[Object, int]) -> dict[Object, tuple[str, str]]:
    """What /proc/PID/fd calls the other end of each, and the role of who has it open; of a pipe, which is one for both
    ends, that depends on how they have."""
    found = {what: (what.name, "") for what in waited_on if what.kind == PIPE}
    of_processes: dict[int, list[Object]] = {}
    for what, pid in waited_on.items():
        if what.name.startswith(_SOCKET):
            of_processes.setdefault(pid, []).append(what)
    for pid, those in of_processes.items():
        with suppress(OSError), sockets_of(pid) as sockets:
            for what in those:
                inode = int(what.name[len(_SOCKET) : -1])
                if what.kind == UNIX:
                    there, role = sockets.unix_peer(inode), PEER
                else:
                    there, listens = sockets.other_end(what.kind, inode, what.local, what.peer) or (0, False)
                    role = LISTENER if listens else PEER
                if there:
                    found[what] = f"{_SOCKET}{there}]", role
    return found


def awaited_locks(waited_on: Mapping[Object, int]) -> dict[Object, Lock]:
    """The lock of each file that the process beside it waits for; nothing where that waits for several, or for none.
    `1: -> FLOCK ADVISORY WRITE 4242 …` waits for what the line `1: FLOCK …` holds (fs/locks.c)."""
    held: dict[str, Lock] = {}
    awaited: dict[int, set[str]] = {}
    if not waited_on:
        return {}
    with suppress(OSError, ValueError, IndexError), Path("/proc/locks").open("rb") as file:
        for line in file.read(_LOCKS_BYTES).decode().splitlines():
            number, *words = line.split()
            if words[0] == "->":
                awaited.setdefault(int(words[4]), set()).add(number)
            else:
                held[number] = Lock(" ".join(words), int(words[3]))
    return {
        what: held[number]
        for what, pid in waited_on.items()
        for number in awaited.get(pid, ())
        if len(awaited[pid]) == 1 and number in held
    }


def locks_by(pid: int, fd: str) -> set[str]:
    """The locks of the file that a descriptor is open on which are held by that."""
    with suppress(OSError), Path(f"/proc/{pid}/fdinfo/{fd}").open("rb") as file:
        told = file.read(_LOCKS_BYTES).decode().splitlines()
        return {" ".join(words[2:]) for line in told if (words := line.split())[:1] == ["lock:"]}
    return set()


def watched(pid: int, fd: int) -> tuple[tuple[str, int], ...]:
    """What an epoll watches, by kinds, most first; nothing where that is not known."""
    with suppress(OSError, KeyError, ValueError):
        if int(status_of(pid)["FDSize"]) > _MOST_WATCHED:
            return ()
        with _files_of(pid) as files:
            if os.readlink(str(fd), dir_fd=files) != _EVENTPOLL:
                return ()
            with Path(f"/proc/{pid}/fdinfo/{fd}").open("rb") as file:
                told = file.read(_WATCHED_BYTES).decode()
            kinds = Counter(_kind(files, one, int(inode, 16)) for one, inode in _WATCHES.findall(told))
        return tuple(sorted(kinds.items(), key=lambda item: (-item[1], item[0])))
    return ()


def _kind(files: int, fd: str, inode: int) -> str:
    """Of a descriptor; `other` where it is closed, or another by now, though what it was is watched."""
    try:
        link = os.readlink(fd, dir_fd=files)
    except OSError:
        return "other"
    if link.startswith("anon_inode:"):
        kind = link.removeprefix("anon_inode:").strip("[]")
        return EPOLL if kind == "eventpoll" else kind
    kind, bracket, number = link.partition(":[")
    if not bracket:
        return "file"
    return kind if number == f"{inode}]" else "other"


@contextmanager
def _files_of(pid: int) -> Generator[int]:
    """The directory of what a process has open. Raises OSError where it has ended."""
    directory = os.open(f"/proc/{pid}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield directory
    finally:
        os.close(directory)


def _every_pid() -> list[int]:
    return [int(place.name) for place in Path("/proc").iterdir() if place.name.isdecimal()]


def _open_in(pid: int, wanted: Callable[[str], bool]) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """What a process has open of what is wanted, as /proc/PID/fd calls it, and by which descriptor, a part of its files
    at a time; and how many files those are."""
    with suppress(OSError), _files_of(pid) as directory:
        with os.scandir(directory) as entries:
            files = [entry.name for entry in entries]
        for first in range(0, len(files), _PART):
            part = files[first : first + _PART]
            yield len(part), [one for one in _links(directory, part) if wanted(one[0])]


def _links(directory: int, files: Sequence[str]) -> Iterator[tuple[str, str]]:
    for fd in files:
        try:
            link = os.readlink(fd, dir_fd=directory)
        except OSError:
            continue  # closed meanwhile
        yield link, fd


def _is_pipe_or_socket(link: str) -> bool:
    return link.startswith((_PIPE, _SOCKET))


def _last_part(path: str) -> str:
    """What it is called in its directory: the rest may differ from one mount namespace to another."""
    return os.fsencode(path).decode(errors="replace").rpartition("/")[2]


def _ends(holders: Sequence[Holder], role: str) -> Ends:
    """`role`: of all of them; empty: of a pipe."""
    if role:
        return Ends(_side(role, holders))
    modes = [(one, one.mode) for one in holders]
    readers = _side(READER, [one for one, mode in modes if mode & _READS])
    return Ends(readers + _side(WRITER, [one for one, mode in modes if mode & _WRITES]))


def _side(role: str, holders: Sequence[Holder]) -> tuple[Side, ...]:
    """None, where nobody has it open so."""
    pids = [*dict.fromkeys(one.pid for one in holders)]
    return (Side(role, tuple(Process(pid, _comm(pid)) for pid in pids[:NAMED]), len(pids)),) if pids else ()


def _comm(pid: int) -> str:
    """Raw; empty where it has ended."""
    with suppress(OSError):
        return layout.text_of(Path(f"/proc/{pid}/comm").read_bytes().rstrip(b"\n"))
    return ""
