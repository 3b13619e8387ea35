"""Who a process is: its user, command line and cgroup, read by a worker when somebody asks, so that nobody waits.

A command line is read out of the process's own memory and waits for its mmap_lock: it is read with a deadline
(guardedreads.py), and is `[not read]` where it is missed. A user's name may come from another machine. So neither is
read where a tick or a key would have to wait for it. Nor does everything get read: a
view that shows no users costs nothing, and one that filters by them a few hundred readings a second at most.

What was told of a process stays when it has ended, as its name does, because earlier windows still show it. It goes
with the name, and at once when its pid turns up as another process.
"""

import os
import pwd
import threading
import time
from collections.abc import Callable, Collection
from functools import lru_cache, partial
from typing import NamedTuple

from offtop.kernel.procfs.cgroups import cgroup_of, content_of, mounted
from offtop.kernel.procfs.guarded_reads import Channel, GuardedReads
from offtop.kernel.procfs.threads import fields_of
from offtop.model.values.catalog import Book, Details
from offtop.model.values.stack import UNREAD

_OLD_S = 10.0
"""What was read so long ago is read again when asked for: a program may have begun another one."""
_AT_ONCE = 20
_REST_S = 0.1
"""After so many readings: 200 a second are 1 % of a CPU."""
_MOST_QUEUED = 4096
_MOST_TOLD = 20_000
_CMDLINE_S = 1.0
"""So long it may take to read one command line."""
_LONGEST_CMDLINE = 4096
"""Bytes."""
_LONGEST_FILE = 1 << 16
_ENDED = b"ZX"
"""States of a thread that is only waited for (fs/proc/array.c)."""


class Reading(NamedTuple):
    """Of a process that was there, from the first file to the last."""

    began: bytes
    """When it began, as the kernel counts: the same pid at another time is another process."""
    details: Details


class DetailsWorker:
    """Puts into a Book who processes are. For use by any thread."""

    def __init__(
        self, book: Book, reads: GuardedReads | None = None, read: Callable[[int], Reading | None] | None = None
    ) -> None:
        """`reads`: by which command lines are read. `read`: in place of `reading`."""
        self._book = book
        self._read = read or partial(reading, (reads or GuardedReads()).channel(_CMDLINE_S))
        self._told: dict[int, tuple[bytes, float]] = {}
        """pid → when the process began, and when it was read (monotonic)."""
        self._new: dict[int, None] = {}
        """To be read, those asked for first coming first."""
        self._again: dict[int, None] = {}
        """To be read when there is nothing new."""
        self._ended: set[int] = set()
        """Of those told, whose process has ended (or its main thread, which is all that is heard of)."""
        self._pid = 0
        """Is being read."""
        self._closing = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def describe(self, pids: Collection[int]) -> None:
        """Have the Book tell of `pids`, soon, and of those it tells of already that they may have changed."""
        now_s = time.monotonic()
        with self._changed:
            for pid in pids:
                told = self._told.get(pid)
                if pid <= 0 or pid == self._pid or (told and now_s - told[1] < _OLD_S and pid not in self._ended):
                    continue
                if len(self._new) + len(self._again) >= _MOST_QUEUED:
                    break
                (self._again if told else self._new)[pid] = None
            if self._closing or not (self._new or self._again):
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="offtop-details", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def ended(self, pid: int) -> None:
        """The main thread of `pid` has ended, and with it most likely the process."""
        with self._changed:
            if pid in self._told or pid == self._pid:
                self._ended.add(pid)

    def met(self, pid: int) -> None:
        """A main thread lives that has this pid: if one had ended before, this is another process."""
        if pid in self._ended:
            with self._changed:
                self._forget(pid)

    def drop_unnamed(self) -> None:
        """Drop what is told of processes that have ended and have no name in the Book any more."""
        if self._ended:
            with self._changed:
                for pid in [pid for pid in self._ended if pid not in self._book.processes]:
                    self._forget(pid)

    def close(self) -> None:
        """Have the thread end when it can. Returns at once; may be called twice."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _forget(self, pid: int) -> None:
        self._ended.discard(pid)
        self._told.pop(pid, None)
        self._book.details.pop(pid, None)
        if self._pid == pid:
            self._pid = 0  # whatever comes of this reading is not taken

    def _run(self) -> None:
        while True:
            for _ in range(_AT_ONCE):
                with self._changed:
                    self._changed.wait_for(lambda: self._closing or self._new or self._again)
                    if self._closing:
                        return
                    self._pid = pid = next(iter(self._new or self._again))
                    self._new.pop(pid, None)
                    self._again.pop(pid, None)
                    had_ended = pid in self._ended
                    self._ended.discard(pid)
                found = self._read(pid)
                with self._changed:
                    if self._pid:
                        self._tell(pid, found, had_ended)
                    self._pid = 0
            with self._changed:
                self._changed.wait_for(lambda: self._closing, _REST_S)

    def _tell(self, pid: int, found: Reading | None, had_ended: bool) -> None:
        told = self._told.get(pid)
        is_same = told is not None and (found is None or told[0] == found.began)
        if is_same and (had_ended or found is None):
            self._ended.add(pid)
        if found is None:
            return
        details = found.details
        if is_same and details.cmdline in ("", UNREAD):  # not read, or the main thread has ended while others go on
            details = details._replace(cmdline=self._book.detail(pid).cmdline or details.cmdline)
        self._told.pop(pid, None)
        while len(self._told) >= _MOST_TOLD:
            self._forget(next(iter(self._told)))
        self._told[pid] = found.began, time.monotonic()
        if self._book.details.get(pid) != details:
            self._book.details[pid] = details
            self._book.details_version += 1


def reading(reads: Channel, pid: int) -> Reading | None:
    """Who `pid` is, as far as we may know; None for a process that has ended. Never raises; may take long, for the name
    of a user.

    Not with psutil, which has the kernel add up the times of all threads first (/proc/PID/stat), and reads two
    megabytes of arguments to the end.
    """
    began = _began(pid)
    if not began:
        return None
    uid = _effective_uid(_content(pid, "status"))
    details = Details(
        user="" if uid < 0 else _user_name(uid),
        cmdline=_command_line(reads, pid),
        cgroup=cgroup_of(content_of(pid), mounted()),
        uid=uid,
    )
    return Reading(began, details) if _began(pid) == began else None


def _began(pid: int) -> bytes:
    """Nothing for a process that has ended: one that is only waited for, too, but not one that goes on without its
    main thread."""
    fields = _content(pid, f"task/{pid}/stat").rpartition(b")")[2].split()
    if len(fields) < 20 or (fields[0] in _ENDED and int(fields[17]) <= 1):
        return b""
    return fields[19]


def _effective_uid(status: bytes) -> int:
    real_effective = fields_of(status).get("Uid", "").split()
    return int(real_effective[1]) if len(real_effective) > 1 else -1


def _command_line(reads: Channel, pid: int) -> str:
    try:
        (content,) = reads.ask(pid, "contents", [f"/proc/{pid}/cmdline"], _LONGEST_CMDLINE + 1)
    except TimeoutError:
        return UNREAD
    return _cmdline(content)


def _cmdline(content: bytes) -> str:
    """Whole but for its end, where it is longer than we keep."""
    arguments = content.rstrip(b"\0").replace(b"\0", b" ")
    return os.fsdecode(arguments[:_LONGEST_CMDLINE]) + "…" * (len(arguments) > _LONGEST_CMDLINE)


@lru_cache(maxsize=4096)
def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _content(pid: int, name: str, most: int = _LONGEST_FILE) -> bytes:
    """Nothing where there is no such file, and where we may not read it."""
    try:
        fd = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    content = b""
    try:
        while len(content) < most and (part := os.read(fd, most - len(content))):  # mostly a page at a time
            content += part
    except OSError:
        pass  # it has just ended: what we have will not be taken
    finally:
        os.close(fd)
    return content
