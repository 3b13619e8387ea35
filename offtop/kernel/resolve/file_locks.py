"""Finds the processes that hold the file locks that others wait for: flock(), fcntl() and leases.

/proc/locks shows who waits for which lock, but not who holds it: only who took it, which may have exited and left it to
a child that shares the open file. So the open files of all processes are searched for those that have the lock (`lock:`
in /proc/PID/fdinfo/FD). Such a search runs in slices of 20 ms of CPU time a second, and no more often than it must; the
process that took the lock is checked at once.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from offtop.kernel.procfs.open_files import every_pid, last_part, locks_by, open_in
from offtop.kernel.resolve.blocked import FCNTL, FLOCK, OPENS, Blocked, Found
from offtop.kernel.resolve.slices import SlicedWork
from offtop.model.values.blockers import FILE_LOCK, Blocker
from offtop.model.values.catalog import ThreadKey

_LOCKS_BYTES = 1 << 20
_OLD_S = 10.0
"""Age at which the holders of a lock are searched for again: meanwhile it may have been inherited."""
_MOST_LOCKS = 256
_KINDS = {FLOCK: ("FLOCK",), FCNTL: ("POSIX", "OFDLCK"), **dict.fromkeys(OPENS, ("LEASE", "DELEG"))}
"""System call → the locks that it may wait for."""
_OF_RANGES = ("POSIX", "OFDLCK")
_SETLKW, _OFD_SETLKW = 7, 38
"""Commands of fcntl() that wait (include/uapi/asm-generic/fcntl.h)."""
_END = 1 << 63
_INODE = re.compile(rb"^ino:\t(\d+)$", re.MULTILINE)
"""Reported since 3845f256a8b5, 5.14."""


class LockLine(NamedTuple):
    """A line of /proc/locks."""

    number: str
    """That of the held lock, also for those that wait for it."""
    text: str
    """The rest of a held lock's line, which fdinfo of its holders has, too."""
    kind: str
    is_write: bool
    pid: int
    """PID of the process that took it or waits for it; -1: unknown (open file description locks)."""
    file: str
    """`fe:01:1234`: device and inode."""
    first: int
    last: int

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


class FileLocks:
    """Finds the holders of file locks. For one thread."""

    def __init__(self) -> None:
        self._holders: dict[str, dict[int, str]] = {}
        """Text of a lock → its holders, and the descriptor by which each has it."""
        self._searched_s: dict[str, float] = {}
        """Text of a lock → when all processes were last searched for its holders (time.monotonic())."""
        self._checked: set[str] = set()
        """Texts of locks for which the process that took them has been checked."""
        self._search = SlicedWork()

    def find(self, waits: Sequence[Blocked]) -> dict[ThreadKey, Found]:
        """Return the holders of what each of these threads waits for, as far as they are known by now."""
        of_locks = [one for one in waits if one.call in _KINDS]
        if not of_locks:
            self._forget([*self._holders, *self._searched_s])
            return {}
        held, awaited = read_locks()
        names: dict[str, str] = {}
        locks: dict[ThreadKey, list[LockLine]] = {}
        for one in of_locks:
            inode, name = _file_of(one)
            locks[one.key] = found = _awaited(one, inode, held, awaited)
            names |= dict.fromkeys((lock.text for lock in found), name)
        every = {lock.text: lock for found in locks.values() for lock in found}
        self._check(dict(list(every.items())[:_MOST_LOCKS]), names)
        self._continue_search(every, names)
        return {
            one.key: Found(one.switched_out_ns, blockers, arguments=one.arguments if one.call in OPENS else ())
            for one in of_locks
            if (blockers := self._blockers(locks[one.key], names))
        }

    def _blockers(self, locks: Iterable[LockLine], names: Mapping[str, str]) -> tuple[Blocker, ...]:
        pids = {
            pid: names[lock.text] or _name(pid, fd)
            for lock in locks
            for pid, fd in self._holders.get(lock.text, {}).items()
        }
        return tuple(Blocker(pid, 0, FILE_LOCK, True, name) for pid, name in pids.items())

    def _check(self, locks: Mapping[str, LockLine], names: Mapping[str, str]) -> None:
        """Forget who no longer holds a lock, and see whether the process that took it does."""
        self._forget((self._holders.keys() | self._searched_s.keys()) - locks.keys())
        for text, lock in locks.items():
            holders = self._holders.setdefault(text, {})
            for pid, fd in [*holders.items()]:
                if text not in locks_by(pid, fd):
                    del holders[pid]
            if lock.pid > 0 and text not in self._checked:
                self._checked.add(text)
                for _ in _holding([lock.pid], {text: names[text]}, self._holders):
                    pass

    def _forget(self, texts: Iterable[str]) -> None:
        for text in texts:
            self._holders.pop(text, None)
            self._searched_s.pop(text, None)
            self._checked.discard(text)

    def _continue_search(self, locks: Mapping[str, LockLine], names: Mapping[str, str]) -> None:
        """Search all processes for holders of locks that several processes may hold, a slice at a time."""
        if self._search.may_begin:
            now_s = time.monotonic()
            due = {
                text: names[text]
                for text, lock in locks.items()
                if lock.kind != "POSIX" and now_s - self._searched_s.get(text, float("-inf")) >= _OLD_S
            }
            if due:
                self._search.begin(_holding(every_pid(), due, self._holders, self._searched_s))
        self._search.advance()


def _holding(
    pids: Iterable[int],
    names: Mapping[str, str],
    holders: dict[str, dict[int, str]],
    searched_s: dict[str, float] | None = None,
) -> Iterator[None]:
    """Add those of `pids` that hold the locks, given by text with the name of the file, to `holders`.

    Yields after each part of the work.
    """
    wanted = set(names.values())
    is_wanted: Callable[[str], bool] = (lambda link: last_part(link) in wanted) if "" not in wanted else _is_path
    for pid in pids:
        for _, opened in open_in(pid, is_wanted):
            for _, fd in opened:
                for text in names.keys() & locks_by(pid, fd):
                    holders.setdefault(text, {})[pid] = fd
            yield
    if searched_s is not None:
        searched_s |= dict.fromkeys(names, time.monotonic())


def _name(pid: int, fd: str) -> str:
    """Return the name of an open file, "" if it was closed."""
    with suppress(OSError):
        return last_part(str(Path(f"/proc/{pid}/fd/{fd}").readlink()))
    return ""


def _is_path(link: str) -> bool:
    return link.startswith("/")


def read_locks() -> tuple[dict[str, LockLine], list[LockLine]]:
    """Return the held locks by number, and the requests that wait for them.

    `1: -> FLOCK ADVISORY WRITE 4242 …` waits for the holder in the line `1: FLOCK …` (fs/locks.c).
    """
    held: dict[str, LockLine] = {}
    awaited: list[LockLine] = []
    with suppress(OSError), Path("/proc/locks").open("rb") as file:
        for line in file.read(_LOCKS_BYTES).decode(errors="replace").splitlines():
            number, *words = line.split()
            is_waiting = words[:1] == ["->"]
            with suppress(ValueError, IndexError):
                found = _parsed(number, words[is_waiting:])
                if is_waiting:
                    awaited.append(found)
                else:
                    held[number] = found
    return held, awaited


def _parsed(number: str, words: Sequence[str]) -> LockLine:
    kind, _, mode, pid, file, first, last = words
    end = _END if last == "EOF" else int(last)
    return LockLine(number, " ".join(words), kind, mode == "WRITE", int(pid), file, int(first), end)


def _file_of(wait: Blocked) -> tuple[str, str]:
    """Return inode number and name of the file that a thread waits to lock, "" if unknown."""
    if wait.call in OPENS:
        return "", ""
    pid, fd = wait.key.pid, str(wait.arguments[0] & 0xFFFFFFFF)
    with suppress(OSError):
        inode = _INODE.search(Path(f"/proc/{pid}/fdinfo/{fd}").read_bytes())
        return inode[1].decode() if inode else "", _name(pid, fd)
    return "", ""


def _awaited(wait: Blocked, inode: str, held: Mapping[str, LockLine], awaited: Sequence[LockLine]) -> list[LockLine]:
    """Return the locks that a thread waits for; none if that is not sure.

    /proc/locks has processes, not threads. If several threads of one wait for locks on the same file, what they wait
    for is known only if it is the same for all.
    """
    kinds = _KINDS[wait.call]
    if wait.call == FCNTL:
        command = wait.arguments[1] & 0xFFFFFFFF
        kinds = ("POSIX",) if command == _SETLKW else ("OFDLCK",) if command == _OFD_SETLKW and inode else ()
    requests = [
        one
        for one in awaited
        if one.kind in kinds and one.pid in (wait.key.pid, -1) and (not inode or one.file.rpartition(":")[2] == inode)
    ]
    found = [
        {held[one.number].text: held[one.number]} | {lock.text: lock for lock in held.values() if one.conflicts(lock)}
        for one in requests
        if one.number in held
    ]
    return [*found[0].values()] if found and all(one.keys() == found[0].keys() for one in found) else []
