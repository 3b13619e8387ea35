"""Find the peer of a socket with sock_diag(7): one query per socket, however many sockets there are.

Each network namespace has its own addresses, so the query is made in the namespace of the process that has the socket.
"""

import ctypes
import socket
import struct
from collections.abc import Generator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

_NETLINK_SOCK_DIAG = 4
_BY_FAMILY = 20
_REQUEST = 1
_HEADER = struct.Struct("=IHHII")
_INET = struct.Struct("=BBBxI2s2s16s16sI8s")
"""`struct inet_diag_req_v2`, include/uapi/linux/inet_diag.h."""
_INET_ANSWER = struct.Struct("=BB2x2s2s16s16sI8s16xI")
"""`struct inet_diag_msg`."""
_UNIX = struct.Struct("=BBHIII8s")
_UNIX_ANSWER = struct.Struct("=4xI8s")
_ATTRIBUTE = struct.Struct("=HHI")
_WANTS_PEER, _PEER = 4, 2
_NO_COOKIE = b"\xff" * 8
_ALL_STATES = (1 << 32) - 1
_PROTOCOLS = {"tcp": socket.IPPROTO_TCP, "udp": socket.IPPROTO_UDP}
_ESTABLISHED, _SYN_RECV, _LISTEN = 1, 3, 10
_ANSWER_BYTES = 4096
_TIMEOUT_S = 1.0
_NEW_NET = 0x40000000
_NOWHERE = "", 0
_ANY = "*"


class _SocketEntry(NamedTuple):
    """A socket, as the kernel lists it."""

    inode: int
    """0 if it is not accepted yet, or no process has it any more."""
    state: int


class PeerSocket(NamedTuple):
    inode: int
    listens: bool
    """True if this is the listening socket, because the connection has not been accepted yet."""


class Sockets:
    """The sockets of one network namespace."""

    def __init__(self, netlink: socket.socket) -> None:
        self._netlink = netlink

    def peer_of(self, protocol: str, inode: int, local: str, peer: str) -> PeerSocket | None:
        """Find the peer of a `tcp` or `udp` connection; None if it is not on this machine, or unknown.

        It is also None if the socket with these addresses is not `inode`: then the connection is closed, or in another
        namespace.
        """
        local_address, peer_address = _split(local), _split(peer)
        if _ANY in (local_address[0], peer_address[0]):
            return None
        own = self._find(protocol, local_address, peer_address)
        found = self._find(protocol, peer_address, local_address)
        if not own or own.inode != inode or not found:
            return None
        is_local = ip_address(peer_address[0]).is_loopback or peer_address[0] == local_address[0]
        if protocol == "udp" or found.state == _LISTEN:  # the kernel may have matched only the port
            return PeerSocket(found.inode, found.state == _LISTEN) if is_local and found.inode else None
        if found.inode:
            return PeerSocket(found.inode, False)
        is_pending = found.state in (_ESTABLISHED, _SYN_RECV)
        listener = self._find(protocol, peer_address, _NOWHERE) if is_pending else None
        return PeerSocket(listener.inode, True) if listener and listener.inode else None

    def unix_peer(self, inode: int) -> int:
        """Inode of the peer of a Unix socket; 0 if there is none, or it is not accepted yet."""
        answer = self._answer(_UNIX.pack(socket.AF_UNIX, 0, 0, _ALL_STATES, inode, _WANTS_PEER, _NO_COOKIE))
        at = _UNIX_ANSWER.size
        while at + _ATTRIBUTE.size <= len(answer):
            length, kind, value = _ATTRIBUTE.unpack_from(answer, at)
            if kind == _PEER:
                return value
            at += max(length + 3 & ~3, _ATTRIBUTE.size)
        return 0

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
