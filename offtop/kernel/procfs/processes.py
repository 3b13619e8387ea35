"""Read the user, command line, cgroup and CPUs of processes on demand, in a worker thread.

A command line is read out of the process's own memory, which waits for its mmap_lock: it is read with a deadline
(guarded_reads.py), and is `[not read]` if the deadline is missed. A user's name may come from another machine. So
neither is read where a tick or a key press would have to wait for it. Only what is needed is read: a view without
users costs nothing, and one that filters by user makes at most a few hundred reads a second.

The details of a process are kept after it has exited, as its name is, because earlier windows still show it. They are
dropped together with the name, or at once if its pid is reused by another process.
"""

import os
import pwd
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

from offtop.kernel.procfs.cgroups import cgroup_of, content_of, mounted
from offtop.kernel.procfs.direct_reads import read_content
from offtop.kernel.procfs.guarded_reads import Channel, GuardedReads
from offtop.kernel.procfs.threads import EXITED, fields_of
from offtop.model.values.catalog import Catalog, Details, cpu_ranges
from offtop.model.values.stack import UNREAD
from offtop.worker import Rest, Worker

_OLD_S = 10.0
"""Details older than this are read again on demand: the process may have called exec."""
_BATCH = 20
_REST_S = 0.1
"""Pause after each batch of reads: 200 reads a second take 1 % of a CPU."""
_MOST_QUEUED = 4096
_MOST_KNOWN = 20_000
_CMDLINE_S = 1.0
"""Deadline for reading one command line."""
_LONGEST_CMDLINE = 4096
"""Bytes."""
_LONGEST_FILE = 1 << 16
_LONGEST_COMM = 15
_NAMED_BY_RUNTIMES = frozenset({"MainThread"})
"""Names that a runtime gives to the main thread of each process, whatever runs in it: Node.js 24 does."""


class Reading(NamedTuple):
    """Details of a process that existed from the first read of its files to the last."""

    began: bytes
    """Start time in the kernel's units: the same pid with another start time is another process."""
    details: Details


class DetailsWorker:
    """Reads the details of processes into a Catalog, in a thread of its own. Thread-safe."""

    def __init__(
        self, catalog: Catalog, reads: GuardedReads | None = None, read: Callable[[int], Reading | None] | None = None
    ) -> None:
        """`reads`: used to read command lines. `read`: replaces `reading`."""
        self._catalog = catalog
        self._read = read or partial(reading, (reads or GuardedReads()).channel(_CMDLINE_S))
        self._known: dict[int, tuple[bytes, float]] = {}
        """pid → start time, and when it was read (monotonic), for processes with details in the Catalog."""
        self._new: dict[int, None] = {}
        """Queue of pids to read, in the order of the requests."""
        self._stale: dict[int, None] = {}
        """Queue of pids to read again when _new is empty."""
        self._ended: set[int] = set()
        """Pids in _known whose process has exited (or its main thread: only its exit is reported)."""
        self._pid = 0
        """The pid that is being read, or 0."""
        self._worker = Worker("offtop-details", self._run)

    def describe(self, pids: Collection[int]) -> None:
        """Queue reads of the details of `pids`, unless they were read recently. Returns at once."""
        now_s = time.monotonic()
        with self._worker.changed:
            for pid in pids:
                known = self._known.get(pid)
                if pid <= 0 or pid == self._pid or (known and now_s - known[1] < _OLD_S and pid not in self._ended):
                    continue
                if len(self._new) + len(self._stale) >= _MOST_QUEUED:
                    break
                (self._stale if known else self._new)[pid] = None
            if self._new or self._stale:
                self._worker.wake()

    def note_exited(self, pid: int) -> None:
        """Note that the main thread of `pid` has exited, and most likely the process with it."""
        with self._worker.changed:
            if pid in self._known or pid == self._pid:
                self._ended.add(pid)

    def note_alive(self, pid: int) -> None:
        """Note a living main thread: if one with this pid had exited, this is another process."""
        if pid in self._ended:
            with self._worker.changed:
                self._forget(pid)

    def drop_unnamed(self) -> None:
        """Drop the details of processes that have exited and have no name in the Catalog any more."""
        if self._ended:
            with self._worker.changed:
                for pid in [pid for pid in self._ended if pid not in self._catalog.processes]:
                    self._forget(pid)

    def close(self) -> None:
        """Stop the thread after its current read. Returns at once; may be called twice."""
        self._worker.close()

    def _forget(self, pid: int) -> None:
        self._ended.discard(pid)
        self._known.pop(pid, None)
        self._catalog.details.pop(pid, None)
        if self._pid == pid:
            self._pid = 0  # discard the result of the read in progress

    def _run(self, worker: Worker) -> None:
        for number, (pid, had_ended) in enumerate(worker.requests(self._next), 1):
            found = self._read(pid)
            with worker.changed:
                if self._pid:
                    self._store(pid, found, had_ended)
                self._pid = 0
            if number % _BATCH == 0:
                worker.rest(_REST_S)

    def _next(self) -> tuple[int, bool] | Rest:
        """Return a pid to read, and whether its process had ended."""
        if not (self._new or self._stale):
            return Rest()
        self._pid = pid = next(iter(self._new or self._stale))
        self._new.pop(pid, None)
        self._stale.pop(pid, None)
        had_ended = pid in self._ended
        self._ended.discard(pid)
        return pid, had_ended

    def _store(self, pid: int, found: Reading | None, had_ended: bool) -> None:
        known = self._known.get(pid)
        is_same = known is not None and (found is None or known[0] == found.began)
        if is_same and (had_ended or found is None):
            self._ended.add(pid)
        if found is None:
            return
        details = found.details
        if is_same and details.cmdline in ("", UNREAD):  # not read, or only the main thread has exited
            details = details._replace(cmdline=self._catalog.detail(pid).cmdline or details.cmdline)
        self._known.pop(pid, None)
        while len(self._known) >= _MOST_KNOWN:
            self._forget(next(iter(self._known)))
        self._known[pid] = found.began, time.monotonic()
        if self._catalog.details.get(pid) != details:
            self._catalog.details[pid] = details
            self._catalog.details_version += 1


def program_name(pid: int, comm: str) -> str:
    """Return the name of a process whose main thread has this name: the file's, if a runtime names all main threads."""
    if comm not in _NAMED_BY_RUNTIMES:
        return comm
    with suppress(OSError):
        return Path(f"/proc/{pid}/exe").readlink().name.removesuffix(" (deleted)")[:_LONGEST_COMM] or comm
    return comm


def reading(reads: Channel, pid: int) -> Reading | None:
    """Read the details of `pid` that we may read; None if the process has exited.

    Never raises. May take long, because of the lookup of the user's name.

    It does not use psutil, which reads /proc/PID/stat, for which the kernel sums the times of all threads, and reads
    two megabytes of arguments to the end.
    """
    began = _began(pid)
    if not began:
        return None
    status = fields_of(read_content(f"/proc/{pid}/status", _LONGEST_FILE))
    uid = _effective_uid(status)
    details = Details(
        user="" if uid < 0 else _user_name(uid),
        cmdline=_command_line(reads, pid),
        cgroup=cgroup_of(content_of(pid), mounted()),
        uid=uid,
        cpus=_allowed_cpus(status),
        realtime=_realtime_priority(pid),
    )
    return Reading(began, details) if _began(pid) == began else None


def _began(pid: int) -> bytes:
    """Start time of the process; empty if it has exited.

    A zombie counts as exited, but a process of which only the main thread has exited does not.
    """
    fields = _stat_of_main_thread(pid)
    if len(fields) < 20 or (fields[0].decode() in EXITED and int(fields[17]) <= 1):
        return b""
    return fields[19]


def _stat_of_main_thread(pid: int) -> list[bytes]:
    """Return the fields of its stat file, from the state on; empty if it has exited."""
    return read_content(f"/proc/{pid}/task/{pid}/stat", _LONGEST_FILE).rpartition(b")")[2].split()


def _realtime_priority(pid: int) -> int:
    fields = _stat_of_main_thread(pid)
    return int(fields[37]) if len(fields) > 37 else 0  # rt_priority


def _allowed_cpus(status: Mapping[str, str]) -> str:
    """Return the CPUs on which a thread may run; empty if these are all.

    The kernel's list may have CPUs that are not online, too.
    """
    text = status.get("Cpus_allowed_list", "")
    online = cpu_ranges(read_content("/sys/devices/system/cpu/online", _LONGEST_FILE).decode())
    allowed = cpu_ranges(text)
    is_all = all(any(first <= begin and end <= last for first, last in allowed) for begin, end in online)
    return "" if is_all else text


def _effective_uid(status: Mapping[str, str]) -> int:
    real_effective = status.get("Uid", "").split()
    return int(real_effective[1]) if len(real_effective) > 1 else -1


def _command_line(reads: Channel, pid: int) -> str:
    try:
        (content,) = reads.ask(pid, "contents", [f"/proc/{pid}/cmdline"], _LONGEST_CMDLINE + 1)
    except TimeoutError:
        return UNREAD
    return _cmdline(content)


def _cmdline(content: bytes) -> str:
    """Decode a command line, cut off after _LONGEST_CMDLINE."""
    arguments = content.rstrip(b"\0").replace(b"\0", b" ")
    return os.fsdecode(arguments[:_LONGEST_CMDLINE]) + "…" * (len(arguments) > _LONGEST_CMDLINE)


@lru_cache(maxsize=4096)
def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
