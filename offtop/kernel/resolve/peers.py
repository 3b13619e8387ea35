"""Finds the processes at the other end of pipes, sockets and file locks, and what epolls watch, in a worker thread.

Only /proc/PID/fd says which process has a pipe or socket open, so every process has to be scanned: 4 to 7 µs for each
open file, 1.1 s of one CPU for 10,000 processes with 16 files each. One scan therefore serves all pending requests. It
runs in small steps at 2 % of a CPU, no more often than every few seconds, and only if a requested object is unknown or
one of its holders has closed it (which costs one readlink per holder to check). Additional holders are not noticed.

All pipes and sockets seen are remembered until the next scan, so that requests for others are answered immediately and
only newer ones wait. For a file lock, the process that took it is checked first, and all others only if it no longer
holds the lock: a process that took it with flock() may have exited and left it to others that share the open file.
"""

import os
import re
import time
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from offtop.kernel.bpf import layout
from offtop.kernel.procfs.direct_reads import every_pid
from offtop.kernel.procfs.guarded_reads import Channel, GuardedReads
from offtop.kernel.procfs.open_files import OpenFile, fd_directory, fdinfo_of, last_part, scan_open_files
from offtop.kernel.procfs.processes import program_name
from offtop.kernel.procfs.sock_diag import sockets_of
from offtop.kernel.procfs.threads import status_of
from offtop.kernel.resolve.file_locks import LockLine, LockTable, find_holders
from offtop.model.values.catalog import Catalog
from offtop.model.values.peers import (
    CLIENT,
    EPOLL,
    FILE,
    HOLDER,
    LISTENER,
    NAMED,
    NO_PEERS,
    PEER,
    PIPE,
    READER,
    WRITER,
    Peers,
    PeerSide,
    Process,
    may_have_peers,
)
from offtop.model.values.wake import UNIX, Object
from offtop.worker import Rest, Worker

_MAX_AGE_S = 10.0
"""Age at which a result is checked again on request."""
_NEGATIVE_MAX_AGE_S = 60.0
"""The same if no process was found. Not for a file: its lock may have been free at that moment."""
_REST_S, _REST_TIMES = 3.0, 50
"""Time from one scan of all files to the next: at least so many seconds, and so many times the CPU time that it took.
"""
_AT_ONCE_S, _PAUSE_TIMES = 0.02, 10
"""After so much CPU time the worker pauses, so many times as long."""
_MOST_FILES = 1_000_000
"""A scan gives up on a machine with more open files than this."""
_MOST_REQUESTS = 2_048
_MOST_KNOWN, _MOST_RETRIES = 4_096, 16_384
_MOST_SCANNED = 200_000
"""How many pipes and sockets are remembered, at 24 bytes each; if more are open, none are."""
_MOST_WATCHED = 1_024
"""The epolls of a process that may have more files open are not read: the kernel keeps the epoll locked while fdinfo is
read, 1 ms for this many."""
_PATIENCE_S = 0.3
"""How long to wait for one read of another process."""
_READS, _WRITES = 0o400, 0o200
_EVENTPOLL, _SOCKET, _PIPE = "anon_inode:[eventpoll]", "socket:[", "pipe:["
_AWAY = ""
"""In place of a link: the other end is on another machine, or in another network namespace."""
_WATCHES = re.compile(rb"^tfd: *(\d+) .* ino:([0-9a-f]+) ", re.MULTILINE)
"""A watched descriptor in /proc/PID/fdinfo/FD (77493f04b74c, 4.13)."""


class PeersWorker:
    """Finds peers and puts them into a catalog.

    `publish` is for the polling thread, everything else for any thread.
    """

    def __init__(self, catalog: Catalog, epolls: Mapping[Object, int], reads: GuardedReads) -> None:
        """`epolls`: epoll → the descriptor by which its process waits on it."""
        self._catalog, self._epolls = catalog, epolls
        self._reads = reads.channel(_PATIENCE_S)
        self._requests: dict[Object, int] = {}
        """Requested objects, each with a process that waits on it."""
        self._retry_s: dict[Object, float] = {}
        """Object → when it may be looked up again (time.monotonic())."""
        self._found: dict[Object, Peers] = {}
        """Results that are not in the catalog yet."""
        self._holders: dict[str, Sequence[OpenFile]] = {}
        """Holders of the requested pipes, sockets and file locks, by link text in /proc/PID/fd."""
        self._scanned = np.zeros((0, 3), np.int64)
        """All pipes and sockets of the last scan: `_code`, process and descriptor."""
        self._scanned_at_s, self._rest_s = float("-inf"), _REST_S
        """When the last scan was, and how long until the next one may start."""
        self._paused_at_s = 0.0
        """The worker's CPU time at its last pause."""
        self._unknown: dict[Object, int] = {}
        """Requests that only a scan of all files can answer."""
        self._worker = Worker("offtop-peers", self._run)

    def find(self, waited_on: Mapping[Object, int]) -> None:
        """Request the peers of these objects; the value is a process that waits on the object."""
        now_s = time.monotonic()
        with self._worker.changed:
            for what, pid in waited_on.items():
                if (
                    may_have_peers(what)
                    and now_s >= self._retry_s.get(what, 0)
                    and len(self._requests) < _MOST_REQUESTS
                ):
                    self._requests[what] = pid
            if self._requests:
                self._worker.wake()

    def publish(self) -> None:
        """Put new results into the catalog.

        This is done by the polling thread, so that a recording has them with the tick that shows them first.
        """
        if not self._found:
            return
        with self._worker.changed:
            found, self._found = self._found, {}
        known = self._catalog.peers
        for what, peers in found.items():
            if known.get(what, NO_PEERS) != peers:
                self._catalog.peers_version += 1
            if known.pop(what, None) is not None or peers != NO_PEERS:
                known[what] = peers
        while len(known) > _MOST_KNOWN:
            del known[next(iter(known))]

    def close(self) -> None:
        """Stop the worker. Returns immediately; may be called twice."""
        self._worker.close()

    def _run(self, worker: Worker) -> None:
        for requests in worker.requests(self._next):
            self._unknown |= self._look_up(requests)
            if self._unknown and not worker.is_closing and self._scan_in_s <= 0:
                self._scan(self._unknown)
                self._unknown = {}

    def _next(self) -> dict[Object, int] | Rest:
        """Return the requests; none if only the scan is due."""
        scan_in_s = self._scan_in_s if self._unknown else None
        if not self._requests and (scan_in_s is None or scan_in_s > 0):
            return Rest(scan_in_s)
        requests, self._requests = self._requests, {}
        self._retry_s |= dict.fromkeys(requests, float("inf"))
        return requests

    @property
    def _scan_in_s(self) -> float:
        """Time until the next scan of all files may start."""
        return self._scanned_at_s + self._rest_s - time.monotonic()

    def _look_up(self, requests: Mapping[Object, int]) -> dict[Object, int]:
        """Publish what is known without a scan; return the rest."""
        epolls = {what: fd for what in requests if what.kind == EPOLL and (fd := self._epolls.get(what)) is not None}
        for what, fd in epolls.items():
            self._put({what: Peers(members=watched(what.pid, fd, self._reads))})
            self._throttle()
        wanted = other_ends(requests)
        self._throttle()
        self._remember(self._scanned_holders({one for one, _ in wanted.values() if not self._is_unchanged(one)}))
        locks = awaited_locks(requests)
        known = {one.pid for what in locks for one in self._holders.get(what.name, ())}
        lock_holders = self._find_lock_holders(locks, known | {lock.pid for lock in locks.values()})
        self._remember(lock_holders)
        new = {what for what, (one, _) in wanted.items() if not self._is_unchanged(one)}
        new |= {what for what in locks if what.name not in lock_holders}
        handled = {*epolls, *new}
        self._put_peers([what for what in requests if what not in handled], wanted, locks)
        return {what: requests[what] for what in new}

    def _scan(self, unknown: Mapping[Object, int]) -> None:
        """Scan all files, and publish the peers of these objects."""
        wanted, locks = other_ends(unknown), awaited_locks(unknown)
        new = {one for one, _ in wanted.values() if not self._is_unchanged(one)}
        began_s = time.thread_time()
        if new:
            self._remember({**dict.fromkeys(new, ()), **self._scan_for_holders(new)})
        if locks:
            names = [what.name for what in locks]
            self._remember({**dict.fromkeys(names, ()), **self._find_lock_holders(locks, every_pid())})
        if new or locks:
            self._scanned_at_s = time.monotonic()
            self._rest_s = max(_REST_S, _REST_TIMES * (time.thread_time() - began_s))
        self._put_peers(unknown, wanted, locks)

    def _remember(self, holders: Mapping[str, Sequence[OpenFile]]) -> None:
        for one in holders:  # so that the oldest ones are first
            self._holders.pop(one, None)
        self._holders |= holders
        while len(self._holders) > _MOST_KNOWN:
            del self._holders[next(iter(self._holders))]

    def _put_peers(
        self, objects: Iterable[Object], wanted: Mapping[Object, tuple[str, str]], locks: Iterable[Object]
    ) -> None:
        every = {**wanted, **{what: (what.name, HOLDER) for what in locks}}
        found = {what: _peers(self._holders.get(one, ()), role) for what, (one, role) in every.items()}
        self._put({what: found.get(what, NO_PEERS) for what in objects})

    def _put(self, found: Mapping[Object, Peers]) -> None:
        now_s = time.monotonic()
        with self._worker.changed:
            self._found |= found
            for what, peers in found.items():
                self._retry_s.pop(what, None)
                may_change = what.kind == FILE or peers.members or any(side.processes for side in peers.sides)
                self._retry_s[what] = now_s + (_MAX_AGE_S if may_change else _NEGATIVE_MAX_AGE_S)
            while len(self._retry_s) > _MOST_RETRIES:
                del self._retry_s[next(iter(self._retry_s))]

    def _is_unchanged(self, one: str) -> bool:
        """Return whether all known holders still have it open; true if it is away."""
        holders = self._holders.get(one, ())
        return one == _AWAY or (bool(holders) and all(holder.link == one for holder in holders))

    def _scan_for_holders(self, wanted: Collection[str]) -> dict[str, list[OpenFile]]:
        """Scan for the holders of each of these; {} if there are too many files."""
        files = 0
        held: dict[str, list[OpenFile]] = {}
        scanned = array("q")
        self._scanned = self._scanned[:0]
        for pid, count, found in scan_open_files(every_pid(), _is_pipe_or_socket):
            files += count
            for one, fd in found:
                if one in wanted:
                    held.setdefault(one, []).append(OpenFile(pid, fd))
                if len(scanned) <= 3 * _MOST_SCANNED:
                    scanned.extend((_code(one), pid, int(fd)))
            self._throttle()
            if self._worker.is_closing or files > _MOST_FILES:
                return {}
        if len(scanned) <= 3 * _MOST_SCANNED:
            self._scanned = np.array(scanned, np.int64).reshape(-1, 3)
        return held

    def _find_lock_holders(self, locks: Mapping[Object, LockLine], pids: Iterable[int]) -> dict[str, list[OpenFile]]:
        """Find which of these processes hold the lock on each file; {} if there are too many files."""
        names = {last_part(what.name) for what in locks}
        texts = {lock.text for lock in locks.values()}
        files = 0
        held: dict[str, list[OpenFile]] = {}
        for count, found in find_holders(pids, texts, lambda link: last_part(link) in names, self._reads):
            files += count
            for text, pid, fd in found:
                held.setdefault(text, []).append(OpenFile(pid, fd))
            self._throttle()
            if self._worker.is_closing or files > _MOST_FILES:
                return {}
        return {what.name: held[lock.text] for what, lock in locks.items() if lock.text in held}

    def _scanned_holders(self, wanted: Collection[str]) -> dict[str, list[OpenFile]]:
        """The holders of each of these as of the last scan."""
        of_codes = {_code(one): one for one in wanted}
        held: dict[str, list[OpenFile]] = {}
        for code, pid, fd in self._scanned[np.isin(self._scanned[:, 0], [*of_codes])].tolist():
            held.setdefault(of_codes[code], []).append(OpenFile(pid, str(fd)))
        return held

    def _throttle(self) -> None:
        """Pause if enough CPU time was used since the last pause."""
        used_s = time.thread_time() - self._paused_at_s
        if used_s > _AT_ONCE_S:
            self._worker.rest(_PAUSE_TIMES * used_s)
            self._paused_at_s = time.thread_time()


def _code(link: str) -> int:
    """A number for a pipe or a socket."""
    kind, _, number = link.removesuffix("]").partition(":[")
    return int(number) << 1 | (kind == PIPE)


def other_ends(waited_on: Mapping[Object, int]) -> dict[Object, tuple[str, str]]:
    """Return the link text in /proc/PID/fd of each object's other end, and its holders' role.

    The link is _AWAY for a client that is not on this machine. The role is "" for a pipe, which is the same for both
    ends: there it depends on each holder's open mode.
    """
    found = {what: (what.name, "") for what in waited_on if what.kind == PIPE}
    of_processes: dict[int, list[Object]] = {}
    for what, pid in waited_on.items():
        if what.name.startswith(_SOCKET):
            of_processes.setdefault(pid, []).append(what)
    for pid, objects in of_processes.items():
        with suppress(OSError), sockets_of(pid) as sockets:
            for what in objects:
                inode = int(what.name[len(_SOCKET) : -1])
                if what.kind == UNIX:
                    peer = sockets.unix_peer(inode)
                else:
                    peer = sockets.peer_of(what.kind, inode, what.local, what.peer)
                if peer:
                    role = LISTENER if peer.listens else CLIENT if peer.is_client else PEER
                    found[what] = f"{_SOCKET}{peer.inode}]" if peer.inode else _AWAY, role
    return found


def awaited_locks(waited_on: Mapping[Object, int]) -> dict[Object, LockLine]:
    """Return the lock of each file that its process waits for."""
    files = {what: pid for what, pid in waited_on.items() if what.kind == FILE}
    table = LockTable.read() if files else LockTable(())
    return {what: lock for what, pid in files.items() if (lock := table.awaited_by_process(pid))}


def watched(pid: int, fd: int, reads: Channel) -> tuple[tuple[str, int], ...]:
    """Return what an epoll watches as (kind, count), most frequent first; () if unknown."""
    with suppress(OSError, KeyError, ValueError):
        if int(status_of(pid)["FDSize"]) > _MOST_WATCHED:
            return ()
        with fd_directory(pid) as files:
            if os.readlink(str(fd), dir_fd=files) != _EVENTPOLL:
                return ()
            (text,) = fdinfo_of(reads, pid, [str(fd)])
            kinds = Counter(_kind(files, one.decode(), int(inode, 16)) for one, inode in _WATCHES.findall(text))
        return tuple(sorted(kinds.items(), key=lambda item: (-item[1], item[0])))
    return ()


def _kind(files: int, fd: str, inode: int) -> str:
    """The kind of a descriptor, or `other`.

    It is `other` if the descriptor was closed or reused, even though its old file is still watched.
    """
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


def _is_pipe_or_socket(link: str) -> bool:
    return link.startswith((_PIPE, _SOCKET))


def _peers(holders: Sequence[OpenFile], role: str) -> Peers:
    """`role`: that of all holders; "" for a pipe."""
    if role:
        return Peers(_side(role, holders))
    modes = [(one, _mode(one)) for one in holders]
    readers = _side(READER, [one for one, mode in modes if mode & _READS])
    return Peers(readers + _side(WRITER, [one for one, mode in modes if mode & _WRITES]))


def _side(role: str, holders: Sequence[OpenFile]) -> tuple[PeerSide, ...]:
    """Return () if there are no holders, and it is no client, which may be away."""
    pids = [*dict.fromkeys(one.pid for one in holders)]
    if not pids and role != CLIENT:
        return ()
    return (PeerSide(role, tuple(Process(pid, _comm(pid)) for pid in pids[:NAMED]), len(pids)),)


def _mode(holder: OpenFile) -> int:
    """Return the bits _READS and _WRITES of a holder; 0 if it has closed the file."""
    with suppress(OSError):
        return os.lstat(f"/proc/{holder.pid}/fd/{holder.fd}").st_mode & (_READS | _WRITES)
    return 0


def _comm(pid: int) -> str:
    """Raw name; "" if the process has exited."""
    with suppress(OSError):
        return program_name(pid, layout.text_of(Path(f"/proc/{pid}/comm").read_bytes().rstrip(b"\n")))
    return ""
