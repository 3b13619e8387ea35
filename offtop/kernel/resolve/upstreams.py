"""Finds the processes that have not answered a request: the server of a client, and the upstream of a server.

A client waits for data on a TCP connection on which it was the last to send: `app` waits for `python3`, or for
10.0.0.5:8080 if that is on another machine. It waits in read() or a similar call, or polls a few descriptors. The
server may be in another network namespace (a container), unless addresses are translated on the way.

A server can wait on behalf of its clients: `nginx` waits for `python3` on :8099. It looks idle, because it waits in
epoll_wait() for any of its connections. It probably waits for an answer on a connection that it opened if it was the
last to send there, after a client sent it a request that it has not answered. Other connections without an answer are
older than the request (a subscription), or never get one (a log).

For each TCP connection, the kernel reports when data was last sent and received.
"""

import re
import struct
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

from offtop.kernel.procfs.direct_reads import every_pid
from offtop.kernel.procfs.guarded_reads import Channel
from offtop.kernel.procfs.open_files import OpenFile, scan_open_files
from offtop.kernel.procfs.sock_diag import Connection, sockets_of
from offtop.kernel.procfs.threads import status_of
from offtop.kernel.resolve.blocked import POLLS, RECEIVES, Blocked, Found, StacksIn
from offtop.kernel.resolve.slices import SlicedWork
from offtop.model.values.blockers import ANSWER, ELSEWHERE, UPSTREAM, Blocker
from offtop.model.values.catalog import Catalog, ThreadKey

_REST_TIMES = 50
"""Pause between two lists of the sockets, as a multiple of the CPU time that one takes."""
_MOST_SOCKETS = 20_000
"""A network namespace with more sockets is skipped."""
_MOST_OWNED = 200_000
_MOST_NAMESPACES = 8
_MOST_SEARCHED, _MOST_MEMBERS = 64, 4
"""Maximum number of network namespaces in which the far end of a connection is searched, and of processes of each that
are remembered: the namespace is entered by one that has not exited."""
_NAMESPACE_OLD_S = 60.0
_MEMBERS_REST_S, _MEMBERS_REST_TIMES = 5.0, 200
"""Pause between two lists of the namespaces: at least so long, and so many times the CPU time that one takes."""
_MOST_QUICK = 16
"""Maximum number of processes that are searched for new connections at once."""
_LEAST_MS = 50
"""A younger request may still be on its way."""
_SLACK_MS = 100
_ANY_ADDRESS = bytes(4), bytes(16)
_ONE_WAY = 16
"""If this many segments were sent on a connection and none received, no answer is expected."""
_MOST_OWNERS = 8
"""Maximum number of processes reported for one socket, such as the workers of a server."""
_MOST_POLLED, _MOST_POLLERS = 8, 64
"""Maximum number of descriptors that a client polls, and of clients that are checked."""
_POLL_ARGUMENTS = 2
"""A thread that polls again with the same first arguments (which descriptors, and how many) waits for the same."""
_EPOLLS, _SELECTS = ("epoll_wait", "epoll_pwait", "epoll_pwait2"), ("select", "pselect6")
_MOST_SELECTED = 1024
_MOST_OPEN = 1024
"""If a process can have more files open, its epolls are not read: the kernel locks an epoll while it lists what the
epoll watches, which takes 1 ms for this many."""
_FDINFO_BYTES = 4096
_WATCHED = re.compile(rb"^tfd:.* events: *([0-9a-f]+) .* ino:([0-9a-f]+) ", re.MULTILINE)
"""The inode is that of the watched file, whatever its descriptor is now (77493f04b74c, 4.13)."""
_POLLFD = struct.Struct("=ihh")
_POLLIN = 1
"""Also EPOLLIN."""
_LATE_MS, _OLD_MS = 1000, 60_000
"""A client that polls waits for an answer if it got none for this long. A younger request may be one of many for work;
after a minute, the client more likely acknowledged its last job, or subscribed."""
_NS_PER_MS = 1_000_000
_SOCKET = "socket:["
_TCP = ("tcp_recvmsg",)


class Upstreams:
    """Finds the processes. For one thread, except for `stacks`."""

    def __init__(self, reads: Channel, catalog: Catalog) -> None:
        self._reads = reads
        self.stacks = StacksIn(catalog, _TCP)
        """Kernel stacks that wait for data of a TCP connection."""
        self._owners: dict[int, list[OpenFile]] = {}
        """Inode of a socket → the processes that have it open."""
        self._search = SlicedWork()
        self._namespaces: dict[int, tuple[float, int]] = {}
        """PID → its network namespace, and when that was read (time.monotonic())."""
        self._members: Mapping[int, Sequence[int]] = {}
        """Network namespace → the processes in it that began first, of all namespaces of this machine."""
        self._members_next_s = float("-inf")
        """When these are listed again (time.monotonic())."""
        self._tables: list[_Table] | None = None
        """The sockets of these namespaces in this look; None: not read yet."""
        self._next_s = float("-inf")
        self._of_servers: Mapping[int, tuple[Blocker, ...]] = {}
        """By PID of the server."""
        self._of_clients: Mapping[tuple[ThreadKey, int], tuple[Blocker, ...]] = {}
        """By waiting thread and start of the wait; 0 for a thread that polls, because its waits are many short ones."""

    def find(self, waits: Sequence[Blocked]) -> dict[ThreadKey, Found]:
        """Return the processes that have not answered, for servers in epoll_wait() and clients that wait for data."""
        polls = [one for one in waits if one.call in POLLS]
        receives = [one for one in waits if one.call in RECEIVES and one.kernel in self.stacks and one.arguments]
        if (polls or receives) and time.monotonic() >= self._next_s:
            began_s = time.thread_time()
            self._look(polls, receives)
            self._next_s = time.monotonic() + _REST_TIMES * (time.thread_time() - began_s)
        self._search.advance()
        found = {one: self._of_servers.get(one.key.pid) or self._of_clients.get((one.key, 0), ()) for one in polls}
        found |= {one: self._of_clients.get((one.key, one.switched_out_ns), ()) for one in receives}
        return {
            one.key: Found(
                one.switched_out_ns, some, arguments=one.arguments[:_POLL_ARGUMENTS] if one.call in POLLS else ()
            )
            for one, some in found.items()
            if some
        }

    def _look(self, polls: Sequence[Blocked], receives: Sequence[Blocked]) -> None:
        of_servers: dict[int, tuple[Blocker, ...]] = {}
        of_clients: dict[tuple[ThreadKey, int], tuple[Blocker, ...]] = {}
        self._tables = None
        polling, receiving = {one.key.pid for one in polls}, {one.key.pid for one in receives}
        for members in self._by_namespace(polling | receiving)[:_MOST_NAMESPACES]:
            with suppress(OSError), sockets_of(members[0]) as sockets:
                table = _Table(sockets.connections(_MOST_SOCKETS))
                if table.awaited:
                    of_clients |= self._unanswered(table, [one for one in receives if one.key.pid in members])
                    of_clients |= self._unanswered_polls(table, [one for one in polls if one.key.pid in members])
                if table.requests and table.awaited:
                    of_servers |= self._of_namespace(table, polling.intersection(members))
        self._of_servers, self._of_clients = of_servers, of_clients

    def _unanswered(
        self, table: "_Table", receives: Sequence[Blocked]
    ) -> dict[tuple[ThreadKey, int], tuple[Blocker, ...]]:
        """Return the processes that have not answered these threads, by thread and start of its wait.

        The result is exact if the peer has not even read the request, otherwise it is likely: the thread may also wait
        for work that it subscribed to. A request that was sent after the wait began is another thread's.
        """
        awaited, now_ns = table.awaited_by_inode, time.monotonic_ns()
        waits = [(one, awaited[inode]) for one in receives if (inode := _socket_of(one)) in awaited]
        waits = [
            (by, one) for by, one in waits if one.sent_ms + _SLACK_MS >= (now_ns - by.switched_out_ns) // _NS_PER_MS
        ]
        found = self._far_ends(table, [(by, one, self._far_table(table, one).is_unread(one)) for by, one in waits])
        return {(by.key, by.switched_out_ns): some for by, some in found.items()}

    def _unanswered_polls(
        self, table: "_Table", polls: Sequence[Blocked]
    ) -> dict[tuple[ThreadKey, int], tuple[Blocker, ...]]:
        """Return the same for threads that poll a few descriptors, newest first, none of which listens."""
        waits: list[tuple[Blocked, Connection, bool]] = []
        for by in [one for one in reversed(polls) if one.arguments][:_MOST_POLLERS]:
            sockets = self._polled(by)
            if not table.listening.intersection(sockets):
                due = [table.awaited_by_inode[one] for one in sockets if one in table.awaited_by_inode]
                is_only = len(table.connected.intersection(sockets)) == 1
                unread = {one for one in due if self._far_table(table, one).is_unread(one)}
                waits += [
                    (by, one, is_only and one in unread)
                    for one in due
                    if _LATE_MS <= one.sent_ms < _OLD_MS or one in unread
                ]
        return {(by.key, 0): some for by, some in self._far_ends(table, waits).items()}

    def _polled(self, by: Blocked) -> list[int]:
        """Return the inodes of what a thread polls for data; none if there are many.

        0 stands for a descriptor that is no socket.
        """
        first, second = by.arguments[:2]
        descriptors: list[int] = []
        with suppress(OSError, KeyError, ValueError):  # TimeoutError is an OSError
            if by.call in _EPOLLS:
                inodes = self._watched(by.key, first & 0xFFFFFFFF)
                return inodes if len(inodes) <= _MOST_POLLED else []
            if by.call in _SELECTS and second and first <= _MOST_SELECTED:
                words = self._memory(by.key, second, 8 * ((first + 63) // 64))
                bits = int.from_bytes(words, "little")
                descriptors = [fd for fd in range(first) if bits >> fd & 1]
            if by.call not in (*_EPOLLS, *_SELECTS) and second <= _MOST_POLLED:
                raw = self._memory(by.key, first, _POLLFD.size * second)
                whole = raw[: len(raw) // _POLLFD.size * _POLLFD.size]
                descriptors = [fd for fd, events, _ in _POLLFD.iter_unpack(whole) if fd >= 0 and events & _POLLIN]
        return [_socket_at(by.key, fd) for fd in descriptors] if len(descriptors) <= _MOST_POLLED else []

    def _watched(self, key: ThreadKey, epoll: int) -> list[int]:
        """Return the inodes of what an epoll watches for data. Raises OSError, KeyError, ValueError."""
        if int(status_of(key.tid)["FDSize"]) > _MOST_OPEN:
            return []
        (text,) = self._reads.ask(key.pid, "contents", [f"/proc/{key.tid}/fdinfo/{epoll}"], _FDINFO_BYTES)
        return [int(inode, 16) for events, inode in _WATCHED.findall(text) if int(events, 16) & _POLLIN]

    def _memory(self, key: ThreadKey, address: int, size_bytes: int) -> bytes:
        """Read memory of a thread. Raises OSError."""
        return self._reads.ask(key.pid, "piece", f"/proc/{key.pid}/task/{key.tid}/mem", size_bytes, address)

    def _far_ends(
        self, table: "_Table", waits: Sequence[tuple[Blocked, Connection, bool]]
    ) -> dict[Blocked, tuple[Blocker, ...]]:
        """Return the processes that must answer on these connections, exact or likely, by waiting thread."""
        far = {inode for _, one, _ in waits if (inode := self._far_table(table, one).far_end(one))}
        self._look_for(far, far, {by.key.pid for by, _, _ in waits})
        found: dict[Blocked, tuple[Blocker, ...]] = {}
        for by, one, is_exact in waits:
            what, inode = _address(one.peer), self._far_table(table, one).far_end(one)
            others = [pid for pid in self._pids_of(inode) if pid != by.key.pid] if inode else []
            if not inode and not table.is_own(one.peer):
                others = [ELSEWHERE]
            blockers = tuple(Blocker(pid, 0, ANSWER, is_exact, what) for pid in sorted(others)[:_MOST_OWNERS])
            if blockers:
                found[by] = (*found.get(by, ()), *blockers)
        return found

    def _far_table(self, table: "_Table", one: Connection) -> "_Table":
        """Return the table with the far end of a connection; `table`, that of the near end, if there is none."""
        if table.is_own(one.peer):
            return table
        if self._tables is None:
            self._tables = [*self._every_table()]
        return next((other for other in self._tables if other.far_end(one)), table)

    def _every_table(self) -> Iterator["_Table"]:
        """Yield the sockets of each network namespace of this machine."""
        if time.monotonic() >= self._members_next_s:
            began_s = time.thread_time()
            members: dict[int, list[int]] = {}
            for pid in sorted(every_pid()):  # the lowest PIDs are most likely of those that stay
                of_namespace = members.setdefault(_namespace_of(pid), [])
                of_namespace += [pid] * (len(of_namespace) < _MOST_MEMBERS)
            self._members = members
            rest_s = max(_MEMBERS_REST_S, _MEMBERS_REST_TIMES * (time.thread_time() - began_s))
            self._members_next_s = time.monotonic() + rest_s
        for namespace, pids in [*self._members.items()][:_MOST_SEARCHED]:
            pid = next((pid for pid in pids if namespace and _namespace_of(pid) == namespace), 0)
            with suppress(OSError), sockets_of(pid) as sockets:
                yield _Table(sockets.connections(_MOST_SOCKETS))

    def _by_namespace(self, pids: Collection[int]) -> list[list[int]]:
        now_s = time.monotonic()
        self._namespaces = {pid: one for pid, one in self._namespaces.items() if pid in pids}
        members: dict[int, list[int]] = {}
        for pid in pids:
            read_s, namespace = self._namespaces.get(pid, (float("-inf"), 0))
            if now_s - read_s > _NAMESPACE_OLD_S:
                namespace = _namespace_of(pid)
                self._namespaces[pid] = now_s, namespace
            if namespace:
                members.setdefault(namespace, []).append(pid)
        return [*members.values()]

    def _of_namespace(self, table: "_Table", pids: Collection[int]) -> dict[int, tuple[Blocker, ...]]:
        far = {one: self._far_table(table, one).far_end(one) for one in table.awaited}
        listeners = {table.listener(one.local) for one in table.requests} | {*far.values()}
        sought = {one.inode for one in (*table.requests, *table.awaited)} | listeners
        self._look_for(sought - {0}, listeners, pids)
        requests: dict[int, int] = {}
        """PID → age of the oldest request that it has not answered."""
        for one in table.requests:
            for pid in self._pids_of(one.inode):
                requests[pid] = max(requests.get(pid, 0), one.received_ms)
        found: dict[int, dict[Blocker, None]] = {}
        for one in table.awaited:
            others = self._pids_of(far[one])
            for pid in self._pids_of(one.inode):
                if pid in pids and pid in requests and one.sent_ms <= requests[pid] + _SLACK_MS:
                    of_pid, what = found.setdefault(pid, {}), _address(one.peer)
                    of_pid |= {Blocker(other, 0, UPSTREAM, False, what): None for other in others if other != pid}
        return {pid: tuple(some) for pid, some in found.items()}

    def _pids_of(self, inode: int) -> list[int]:
        """Return the processes that still have a socket open."""
        link = f"{_SOCKET}{inode}]"
        return [owner.pid for owner in self._owners.get(inode, ()) if owner.link == link]

    def _look_for(self, inodes: Collection[int], listeners: Iterable[int], pids: Collection[int]) -> None:
        """Search for the owners of sockets: immediately in processes that listen, a slice at a time in all others."""
        if not (unknown := {inode for inode in inodes if not self._pids_of(inode)}):
            return
        if len(self._owners) > _MOST_OWNED:
            self._owners.clear()
        likely = dict.fromkeys(owner.pid for inode in listeners for owner in self._owners.get(inode, ()))
        for _ in self._owning([*likely][:_MOST_QUICK], self._owners):
            pass
        unknown = {inode for inode in unknown if inode not in self._owners}
        if unknown and self._search.may_begin:
            self._search.begin(self._owning_all([*pids, *(pid for pid in every_pid() if pid not in pids)]))
            self._search.advance()

    def _owning_all(self, pids: Iterable[int]) -> Iterator[None]:
        owners: dict[int, list[OpenFile]] = {}
        yield from self._owning(pids, owners)
        self._owners = owners

    def _owning(self, pids: Iterable[int], owners: dict[int, list[OpenFile]]) -> Iterator[None]:
        """Add the sockets of these processes to `owners`. Yields after each part of the work."""
        for pid, _, opened in scan_open_files(pids, lambda link: link.startswith(_SOCKET)):
            for link, fd in opened:
                some = owners.setdefault(int(link[len(_SOCKET) : -1]), [])
                if all(owner.pid != pid for owner in some):
                    some.append(OpenFile(pid, fd))
            yield


class _Table:
    """The TCP sockets of a network namespace."""

    def __init__(self, sockets: Sequence[Connection]) -> None:
        self._listeners = {one.local: one.inode for one in sockets if one.listens}
        self.listening = frozenset(self._listeners.values())
        """Inodes."""
        connected = [one for one in sockets if not one.listens]
        self._by_ends = {(one.local, one.peer): one.inode for one in connected}
        self._unread = {(one.local, one.peer) for one in connected if not one.inode or one.unread_bytes}
        self._own = {one.local[0] for one in connected}
        own = [one for one in connected if one.inode]
        self.connected = frozenset(one.inode for one in own)
        """Inodes."""
        self.requests = [one for one in own if self.listener(one.local) and _has_request(one)]
        """Connections on which a client has sent something and got no answer."""
        self.awaited = [one for one in own if not self.listener(one.local) and _awaits_answer(one)]
        """Connections that the process opened, on which it expects an answer."""
        self.awaited_by_inode = {one.inode: one for one in self.awaited}

    def listener(self, local: tuple[bytes, int]) -> int:
        """Return the inode of the socket that accepts connections at an address; 0 if there is none."""
        places = (local, *((any_address, local[1]) for any_address in _ANY_ADDRESS))
        return next((self._listeners[one] for one in places if one in self._listeners), 0)

    def is_own(self, peer: tuple[bytes, int]) -> bool:
        """Return whether that address belongs to this network namespace."""
        return ip_address(peer[0]).is_loopback or peer[0] in self._own

    def is_unread(self, one: Connection) -> bool:
        """Return whether the peer has not read what was sent, or has not even accepted the connection."""
        return (one.peer, one.local) in self._unread

    def far_end(self, one: Connection) -> int:
        """Return the inode of the peer's socket, or of the listener that has not accepted it yet; 0 if unknown."""
        inode = self._by_ends.get((one.peer, one.local))
        return 0 if inode is None else inode or self.listener(one.peer)


def _namespace_of(pid: int) -> int:
    """Return the network namespace of a process; 0 if it is unknown."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/ns/net").stat().st_ino
    return 0


def _socket_of(one: Blocked) -> int:
    """Return the inode of the socket that a thread reads from; 0 if it has no such descriptor."""
    return _socket_at(one.key, one.arguments[0] & 0xFFFFFFFF)


def _socket_at(key: ThreadKey, descriptor: int) -> int:
    """Return the inode of a thread's socket; 0 if the descriptor is none."""
    link = OpenFile(key.tid, str(descriptor)).link
    return int(link[len(_SOCKET) : -1]) if link.startswith(_SOCKET) else 0


def _address(peer: tuple[bytes, int]) -> str:
    address = ip_address(peer[0])
    return f"{address}:{peer[1]}" if address.version == 4 else f"[{address}]:{peer[1]}"


def _has_request(one: Connection) -> bool:
    return one.receives > 0 and (one.sends == 0 or one.received_ms < one.sent_ms)


def _awaits_answer(one: Connection) -> bool:
    """Return whether this end was the last to send, and has read everything that it received."""
    is_one_way = one.receives == 0 and one.sends >= _ONE_WAY
    is_sent_last = one.sends > 0 and (one.receives == 0 or one.sent_ms < one.received_ms)
    return is_sent_last and not one.unread_bytes and not is_one_way and one.sent_ms >= _LEAST_MS
