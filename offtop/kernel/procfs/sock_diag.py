"""Asks the kernel which socket is at the other end of one (sock_diag(7)): one question each, however many there are.

A namespace of the network has its own addresses, so a question is asked in that of the process whose socket it is.
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
"""`struct inet_diag_msg` from its beginning to its end."""
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


class Found(NamedTuple):
    inode: int
    """0: no process has taken it yet, or any more."""
    state: int


class OtherEnd(NamedTuple):
    inode: int
    listens: bool
    """It listens there, and the connection's own other end has not been taken yet."""


class Sockets:
    """Those of one namespace of the network."""

    def __init__(self, asked: socket.socket) -> None:
        self._asked = asked

    def other_end(self, protocol: str, inode: int, local: str, peer: str) -> OtherEnd | None:
        """Of a connection of `tcp` or `udp`; None where that is not on this machine, or not known. Where its own
        addresses do not lead to `inode`, it is another namespace's, or has ended."""
        ours, theirs = _parted(local), _parted(peer)
        if _ANY in (ours[0], theirs[0]):
            return None
        own = self._at(protocol, ours, theirs)
        there = self._at(protocol, theirs, ours)
        if not own or own.inode != inode or not there:
            return None
        here = ip_address(theirs[0]).is_loopback or theirs[0] == ours[0]
        if protocol == "udp" or there.state == _LISTEN:  # found by its port, whatever the address
            return OtherEnd(there.inode, there.state == _LISTEN) if here and there.inode else None
        if there.inode:
            return OtherEnd(there.inode, False)
        listener = self._at(protocol, theirs, _NOWHERE) if there.state in (_ESTABLISHED, _SYN_RECV) else None
        return OtherEnd(listener.inode, True) if listener and listener.inode else None

    def unix_peer(self, inode: int) -> int:
        """The inode of the Unix socket that it is connected to; 0: none, or nobody has taken that yet."""
        answer = self._answer(_UNIX.pack(socket.AF_UNIX, 0, 0, _ALL_STATES, inode, _WANTS_PEER, _NO_COOKIE))
        at = _UNIX_ANSWER.size
        while at + _ATTRIBUTE.size <= len(answer):
            length, kind, value = _ATTRIBUTE.unpack_from(answer, at)
            if kind == _PEER:
                return value
            at += max(length + 3 & ~3, _ATTRIBUTE.size)
        return 0

    def _at(self, protocol: str, end: tuple[str, int], other: tuple[str, int]) -> Found | None:
        """The socket whose own end is the first; one that listens there, where none has that other end."""
        family, first = _packed(end[0])
        _, second = _packed(other[0] or ("::" if family == socket.AF_INET6 else "0.0.0.0"))
        ends = [(first, end[1].to_bytes(2, "big")), (second, other[1].to_bytes(2, "big"))]
        if protocol == "udp":  # "src and dst are swapped for historical reasons" (net/ipv4/udp_diag.c)
            ends.reverse()
        (source, source_port), (to, to_port) = ends
        asked = (family, _PROTOCOLS[protocol], 0, _ALL_STATES, source_port, to_port, source, to, 0, _NO_COOKIE)
        answer = self._answer(_INET.pack(*asked))
        if len(answer) < _INET_ANSWER.size:
            return None
        _, state, *_, inode = _INET_ANSWER.unpack_from(answer)
        return Found(inode, state)

    def _answer(self, asked: bytes) -> bytes:
        """What follows the head; empty: there is none such."""
        self._asked.send(_HEADER.pack(_HEADER.size + len(asked), _BY_FAMILY, _REQUEST, 0, 0) + asked)
        answer = self._asked.recv(_ANSWER_BYTES)
        kind = _HEADER.unpack_from(answer)[1]
        return answer[_HEADER.size :] if kind == _BY_FAMILY else b""


@contextmanager
def sockets_of(pid: int) -> Generator[Sockets]:
    """Those of the namespace that a process is in. Raises OSError where that is not known. Not for a thread that must
    stay in its own: it is in the other one for a moment."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as own, _opened(pid, own) as asked:
        asked.settimeout(_TIMEOUT_S)
        yield Sockets(asked)


@contextmanager
def _opened(pid: int, own: socket.socket) -> Generator[socket.socket]:
    there, here = Path(f"/proc/{pid}/ns/net"), Path("/proc/thread-self/ns/net")
    if there.stat().st_ino == here.stat().st_ino:
        yield own
        return
    with here.open("rb") as home, there.open("rb") as away:
        _enter(away.fileno())
        try:
            asked = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG)
        finally:
            _enter(home.fileno())
    with asked:
        yield asked


def _enter(namespace: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _NEW_NET):
        raise OSError(ctypes.get_errno(), "setns")


def _parted(end: str) -> tuple[str, int]:
    """Address and port of `10.0.0.5:5432`, `[::1]:53`."""
    address, _, port = end.rpartition(":")
    return address.strip("[]"), int(port)


def _packed(address: str) -> tuple[int, bytes]:
    """Family, and the sixteen bytes of the kernel's field."""
    found = ip_address(address)
    return socket.AF_INET6 if found.version == 6 else socket.AF_INET, found.packed.ljust(16, b"\0")
