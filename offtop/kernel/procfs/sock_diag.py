"""Find the peer of a socket with sock_diag(7): one query per socket, however many sockets there are. Or list all TCP
connections, with what passed on them.

Each network namespace has its own addresses, so the query is made in the namespace of the process that has the socket.
"""

import ctypes
import socket
import struct
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

_NETLINK_SOCK_DIAG = 4
_BY_FAMILY = 20
_REQUEST, _DUMP = 1, 0x300
_DONE, _ERROR = 3, 2
_HEADER = struct.Struct("=IHHII")
_INET = struct.Struct("=BBBxI2s2s16s16sI8s")
"""`struct inet_diag_req_v2`, include/uapi/linux/inet_diag.h."""
_INET_ANSWER = struct.Struct("=BB2x2s2s16s16sI8s16xI")
"""`struct inet_diag_msg`."""
_UNIX = struct.Struct("=BBHIII8s")
_UNIX_ANSWER = struct.Struct("=4xI8s")
_ATTRIBUTE = struct.Struct("=HH")
_WANTS_NAME_AND_PEER, _NAME, _PEER = 1 | 4, 0, 2
_INET_QUEUES = struct.Struct("=BBxx2s2s16s16sI8s4xIIxxxxI")
"""The same with the lengths of both queues."""
_INFO = 2
"""INET_DIAG_INFO: `struct tcp_info`, include/uapi/linux/tcp.h."""
_TIMES, _SEGMENTS = struct.Struct("=44xIxxxxI"), struct.Struct("=152xII")
"""In it: ms since data was last sent and received; how many segments with data were received and sent."""
_NO_COOKIE = b"\xff" * 8
_ALL_STATES = (1 << 32) - 1
_PROTOCOLS = {"tcp": socket.IPPROTO_TCP, "udp": socket.IPPROTO_UDP}
_ESTABLISHED, _SYN_RECV, _LISTEN = 1, 3, 10
_ANSWER_BYTES, _DUMP_BYTES = 4096, 1 << 16
_TIMEOUT_S = 1.0
_NEW_NET = 0x40000000
_NOWHERE = "", 0
_ANY = "*"
_MAPPED = bytes(10) + b"\xff\xff"


class _SocketEntry(NamedTuple):
    """A socket, as the kernel lists it."""

    inode: int
    """0 if it is not accepted yet, or no process has it any more."""
    state: int


class PeerSocket(NamedTuple):
    inode: int
    """0 if it is not on this machine, or in another network namespace; only for a client."""
    listens: bool = False
    """True if this is the listening socket, because the connection has not been accepted yet."""
    is_client: bool = False
    """Whether it opened the connection, and this end accepted it."""


class Connection(NamedTuple):
    """A TCP socket that is connected, or listens."""

    inode: int
    """0: no process has it (yet)."""
    local: tuple[bytes, int]
    peer: tuple[bytes, int]
    """Address, 4 or 16 bytes, and port."""
    listens: bool
    unread_bytes: int = 0
    """How much arrived that the process has not read."""
    sent_ms: int = 0
    received_ms: int = 0
    """Age of the last data that was sent and received, or of the connection."""
    sends: int = 0
    receives: int = 0
    """How many segments with data were sent and received."""


class Sockets:
    """The sockets of one network namespace."""

    def __init__(self, netlink: socket.socket) -> None:
        self._netlink = netlink

    def peer_of(self, protocol: str, inode: int, local: str, peer: str) -> PeerSocket | None:
        """Find the peer of a `tcp` or `udp` connection; None if it is not on this machine, or unknown.

        It is also None if the socket with these addresses is not `inode`: then the connection is closed, or in another
        namespace. A client on another machine has no inode.
        """
        local_address, peer_address = _split(local), _split(peer)
        if _ANY in (local_address[0], peer_address[0]):
            return None
        own = self._find(protocol, local_address, peer_address)
        found = self._find(protocol, peer_address, local_address)
        if not own or own.inode != inode:
            return None
        is_local = ip_address(peer_address[0]).is_loopback or peer_address[0] == local_address[0]
        if protocol == "udp" or (found and found.state == _LISTEN):  # the kernel may have matched only the port
            return PeerSocket(found.inode, found.state == _LISTEN) if found and is_local and found.inode else None
        if self._listener(local_address) and not (found and self._listener(peer_address)):
            return PeerSocket(found.inode if found else 0, is_client=True)
        if found and found.inode:
            return PeerSocket(found.inode)
        is_pending = found and found.state in (_ESTABLISHED, _SYN_RECV)
        listener = self._listener(peer_address) if is_pending else 0
        return PeerSocket(listener, listens=True) if listener else None

    def _listener(self, local: tuple[str, int]) -> int:
        """Return the inode of the socket that accepts TCP connections at an address; 0 if there is none."""
        found = self._find("tcp", local, _NOWHERE)
        return found.inode if found and found.state == _LISTEN else 0

    def connections(self, most: int) -> list[Connection]:
        """Return the established TCP connections and the sockets that listen; none if there are more than `most`.

        Raises OSError.
        """
        found: list[Connection] = []
        for family in (socket.AF_INET, socket.AF_INET6):
            states = 1 << _ESTABLISHED | 1 << _LISTEN
            nowhere = bytes(2), bytes(2), bytes(16), bytes(16), 0, _NO_COOKIE
            request = _INET.pack(family, socket.IPPROTO_TCP, 1 << _INFO - 1, states, *nowhere)
            header = _HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, _REQUEST | _DUMP, 0, 0)
            self._netlink.send(header + request)
            for message in self._dump():
                if len(found) < most:
                    found.append(_connection(message))
        return found if len(found) < most else []

    def _dump(self) -> Iterator[bytes]:
        """Yield the messages of a dump, without their headers. All must be taken."""
        while True:
            part = self._netlink.recv(_DUMP_BYTES)
            at = 0
            while at + _HEADER.size <= len(part):
                length, kind, *_ = _HEADER.unpack_from(part, at)
                if kind in (_DONE, _ERROR):
                    return
                yield part[at + _HEADER.size : at + length]
                at += max(length + 3 & ~3, _HEADER.size)

    def unix_peer(self, inode: int) -> PeerSocket | None:
        """Find the peer of a Unix socket; None if there is none, or it is not accepted yet.

        It is a client if only this end has a name: a socket that accept() returns has that of the listener.
        """
        own = self._unix_attributes(inode)
        peer = int.from_bytes(own.get(_PEER, b"")[:4], "little")
        if not peer:
            return None
        return PeerSocket(peer, is_client=_NAME in own and _NAME not in self._unix_attributes(peer))

    def _unix_attributes(self, inode: int) -> dict[int, bytes]:
        request = _UNIX.pack(socket.AF_UNIX, 0, 0, _ALL_STATES, inode, _WANTS_NAME_AND_PEER, _NO_COOKIE)
        return _attributes(self._answer(request), _UNIX_ANSWER.size)

    def _find(self, protocol: str, local: tuple[str, int], peer: tuple[str, int]) -> _SocketEntry | None:
        """Find the socket with these addresses, or else one that listens at `local`."""
        family, local_bytes = _packed(local[0])
        _, peer_bytes = _packed(peer[0] or ("::" if family == socket.AF_INET6 else "0.0.0.0"))
        ends = [(local_bytes, local[1].to_bytes(2, "big")), (peer_bytes, peer[1].to_bytes(2, "big"))]
        if protocol == "udp":  # "src and dst are swapped for historical reasons" (net/ipv4/udp_diag.c)
            ends.reverse()
        (source, source_port), (to, to_port) = ends
        request = (family, _PROTOCOLS[protocol], 0, _ALL_STATES, source_port, to_port, source, to, 0, _NO_COOKIE)
        answer = self._answer(_INET.pack(*request))
        if len(answer) < _INET_ANSWER.size:
            return None
        _, state, *_, inode = _INET_ANSWER.unpack_from(answer)
        return _SocketEntry(inode, state)

    def _answer(self, request: bytes) -> bytes:
        """Send a request and return its answer without the header; empty if there is no such socket."""
        self._netlink.send(_HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, _REQUEST, 0, 0) + request)
        answer = self._netlink.recv(_ANSWER_BYTES)
        kind = _HEADER.unpack_from(answer)[1]
        return answer[_HEADER.size :] if kind == _BY_FAMILY else b""


def _connection(message: bytes) -> Connection:
    family, state, port, peer_port, address, peer_address, _, _, unread, _, inode = _INET_QUEUES.unpack_from(message)
    local, peer = (
        (_plain(family, one), int.from_bytes(number, "big"))
        for one, number in ((address, port), (peer_address, peer_port))
    )
    info = _attributes(message, _INET_QUEUES.size).get(_INFO, b"")
    if state == _LISTEN or len(info) < _SEGMENTS.size:
        return Connection(inode, local, peer, state == _LISTEN)
    (sent_ms, received_ms), (receives, sends) = _TIMES.unpack_from(info), _SEGMENTS.unpack_from(info)
    return Connection(inode, local, peer, False, unread, sent_ms, received_ms, sends, receives)


def _plain(family: int, address: bytes) -> bytes:
    """Return the bytes of an address: four for IPv4, also if it is mapped into IPv6."""
    if family == socket.AF_INET:
        return address[:4]
    return address[12:] if address.startswith(_MAPPED) else address


def _attributes(message: bytes, at: int) -> dict[int, bytes]:
    """Return the attributes of a message that begin at `at`, by kind."""
    found: dict[int, bytes] = {}
    while at + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, at)
        found[kind] = message[at + _ATTRIBUTE.size : at + length]
        at += max(length + 3 & ~3, _ATTRIBUTE.size)
    return found


@contextmanager
def sockets_of(pid: int) -> Generator[Sockets]:
    """Open the sockets of the network namespace of a process. Raises OSError if the namespace is unknown.

    The calling thread is in that namespace for a moment.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as own, _opened(pid, own) as netlink:
        netlink.settimeout(_TIMEOUT_S)
        yield Sockets(netlink)


@contextmanager
def _opened(pid: int, own: socket.socket) -> Generator[socket.socket]:
    target, current = Path(f"/proc/{pid}/ns/net"), Path("/proc/thread-self/ns/net")
    if target.stat().st_ino == current.stat().st_ino:
        yield own
        return
    with current.open("rb") as current_file, target.open("rb") as target_file:
        _enter(target_file.fileno())
        try:
            netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG)
        finally:
            _enter(current_file.fileno())
    with netlink:
        yield netlink


def _enter(namespace: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _NEW_NET):
        raise OSError(ctypes.get_errno(), "setns")


def _split(end: str) -> tuple[str, int]:
    """Split `10.0.0.5:5432` or `[::1]:53` into address and port."""
    address, _, port = end.rpartition(":")
    return address.strip("[]"), int(port)


def _packed(address: str) -> tuple[int, bytes]:
    """Address family, and the sixteen bytes of the kernel's address field."""
    found = ip_address(address)
    return socket.AF_INET6 if found.version == 6 else socket.AF_INET, found.packed.ljust(16, b"\0")
