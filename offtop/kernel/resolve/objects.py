"""Says in people's words what a thread waits on: of a struct object, as the kernel side found it.

Most of it is in there. What only /proc tells (the path of a file, which file a shared futex lies in) is looked up so
many times a tick, and remembered: a tick never waits long for it, and what there was no time for is told by its number.
"""

import os
import re
from collections.abc import Callable
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

from offtop.kernel.bpf import layout
from offtop.kernel.bpf.layout import ObjectRecord
from offtop.kernel.procfs.guarded_reads import Channel
from offtop.model.values.catalog import Book
from offtop.model.values.wake import NO_OBJECT, UNIX, Object

_KNOWN = 65_536
_LOOKED_AT_TICKS = 10
"""How long what was found out of a descriptor is taken to be so."""
_LOOKS = 50
"""In a tick: of 20 µs each."""
_LOOKS_OF_MAPS = 10
"""What reading a process's mappings counts for."""
_ANONYMOUS = 0x09041934
"""Magic number of a file system (include/uapi/linux/magic.h)."""
_LOCKS = {layout.LOCK_SEMAPHORE: "semaphore", layout.LOCK_RWSEM: "rwsem"}
"""All others are mutexes."""
_MINOR_BITS = 20
_PROTOCOLS = {6: "tcp", 17: "udp"}
_TCP = 6
_STATES = (
    *("", "established", "syn-sent", "syn-recv", "fin-wait-1", "fin-wait-2", "time-wait", "close", "close-wait"),
    *("last-ack", "listen", "closing", "syn-recv"),
)
"""include/net/tcp_states.h; the words are those of ss(8)."""
_ANY_CHILD, _CHILD, _GROUP = range(3)
"""What waitid(2) calls P_ALL, P_PID and P_PGID."""
_MAPPING = re.compile(rb"([0-9a-f]+)-([0-9a-f]+) ...(.) ([0-9a-f]+) [0-9a-f:]+ (\d+) *(.*)")


class Objects:
    """For the polling thread."""

    def __init__(self, book: Book, reads: Channel, variable: Callable[[int], str] = lambda _: "") -> None:
        """`reads`: by which the mappings of processes are read. `variable`: what the kernel calls its own that lies at
        an address; empty: nobody knows."""
        self._book, self._reads, self._variable = book, reads, variable
        self._known: dict[tuple[int, ObjectRecord], Object] = {}
        self._private: dict[tuple[int, int], int] = {}
        """Who waits, and on what by where that is in the kernel, which nobody needs to know, → a number of ours. In
        another process the same place may have become something else; but locks are everybody's (0)."""
        self._next_number = 1
        self._ticks = 0
        self._left = _LOOKS
        self.epolls: dict[Object, int] = {}
        """A descriptor of each, by which its process waited on it last."""
        self._was_refused = False
        """The last one would have needed a look, and there were too many."""

    def of(self, pid: int, found: ObjectRecord) -> tuple[Object, bool]:
        """What a thread of that process waits on; and whether more of it may be known in a later tick."""
        known = self._known.get((pid, found))
        if known is not None:
            return known, False
        self._was_refused = False
        told = self._told(pid, found)
        if not self._was_refused:
            self._known[pid, found] = told
        return told, self._was_refused

    def tick(self) -> None:
        """Another one has begun."""
        self._left = _LOOKS
        self._ticks += 1
        if self._ticks % _LOOKED_AT_TICKS == 0 or len(self._known) >= _KNOWN:
            self._known.clear()  # a descriptor may be another file's by now
        if len(self._private) >= _KNOWN:
            self._private.clear()
        if len(self.epolls) >= _KNOWN:
            self.epolls.clear()

    def _may_look(self, looks: int = 1) -> bool:
        self._was_refused = self._left < looks
        if not self._was_refused:
            self._left -= looks
        return not self._was_refused

    def _told(self, pid: int, found: ObjectRecord) -> Object:
        match found.kind:
            case layout.OBJECT_FUTEX | layout.OBJECT_FUTEX_WAIT:
                return self._futex(pid, found)
            case layout.OBJECT_CHILD | layout.OBJECT_ID:
                return _child(pid, found)
            case layout.OBJECT_POLL:
                many = f"{found.how} or more" if found.argument else f"{found.how}"
                return Object("poll", f"poll of {many} descriptors", pid)
            case layout.OBJECT_LOCK:
                return self._lock(pid, found)
            case layout.OBJECT_FILE | layout.OBJECT_EPOLL if found.file:
                return self._file(pid, found)
            case _:
                return NO_OBJECT

    def _futex(self, pid: int, found: ObjectRecord) -> Object:
        shared = "" if found.how or not self._may_look(_LOOKS_OF_MAPS) else self._shared(pid, found.argument)
        return Object("futex", shared) if shared else Object("futex", f"{found.argument:#x}", pid)

    def _shared(self, pid: int, address: int) -> str:
        """Where a futex lies in what several processes have mapped: a file and an offset; empty: in the process's own
        memory, or nobody knows."""
        try:
            found = _MAPPING.match(self._reads.ask(pid, "mapping_of", pid, address))
        except TimeoutError:
            self._was_refused = True  # a later tick may know
            return ""
        if not found or found[3] != b"s":
            return ""
        path = found[6].decode(errors="replace")
        file = f"{path} {int(found[5])}" if path.endswith(" (deleted)") else path
        return f"{file}+{address - int(found[1], 16) + int(found[4], 16):#x}"

    def _file(self, pid: int, found: ObjectRecord) -> Object:
        if found.magic == layout.MAGIC_PIPES:
            return Object("pipe", self._path(pid, found))
        if found.magic == layout.MAGIC_SOCKETS:
            return self._socket(found)
        if found.magic == _ANONYMOUS:
            return self._nameless(pid, found)
        return Object("file", self._path(pid, found))

    def _path(self, pid: int, found: ObjectRecord) -> str:
        if found.magic == layout.MAGIC_PIPES:
            return f"pipe:[{found.inode}]"
        is_open = found.argument != layout.NO_DESCRIPTOR
        name = _name_of(pid, found.argument, found.inode) if is_open and self._may_look() else ""
        device = f"{found.device >> _MINOR_BITS}:{found.device & (1 << _MINOR_BITS) - 1}"
        return name or f"inode {found.inode} of {device}"

    def _lock(self, pid: int, found: ObjectRecord) -> Object:
        kind = _LOCKS.get(found.how, "mutex")
        match found.state:
            case layout.PLACE_MEMORY:
                return Object(kind, "mmap_lock", found.peer_pid)
            case layout.PLACE_INODE:
                return Object(kind, f"i_rwsem of {self._path(pid, found)}")
            case layout.PLACE_POSITION:
                return Object(kind, f"f_pos_lock of {self._path(pid, found)}")
            case layout.PLACE_PIPE:
                return Object(kind, f"{kind} of pipe:[{found.inode}]")
            case _:
                return Object(kind, self._variable(found.file) or f"{kind}#{self._number_of(0, found.file)}")

    def _number_of(self, pid: int, at: int) -> int:
        number = self._private.get((pid, at))
        if number is None:
            number = self._private[pid, at] = self._next_number
            self._next_number += 1
        return number

    def _nameless(self, pid: int, found: ObjectRecord) -> Object:
        number = self._number_of(pid, found.file)
        kind = "epoll"
        if found.kind != layout.OBJECT_EPOLL:
            name = _name_of(pid, found.argument, 0) if self._may_look() else ""
            kind = name.removeprefix("anon_inode:").strip("[]") if name.startswith("anon_inode:") else "file"
            kind = "epoll" if kind == "eventpoll" else kind
        told = Object(kind, f"{kind}#{number}", pid)
        if found.kind == layout.OBJECT_EPOLL:
            self.epolls[told] = found.argument
        return told

    def _socket(self, found: ObjectRecord) -> Object:
        name = f"socket:[{found.inode}]"
        if found.family == layout.FAMILY_UNIX:
            comm = self._book.process(found.peer_pid)
            peer = f"{comm}({found.peer_pid})" if comm else f"{found.peer_pid or ''}"
            return Object(UNIX, name, peer=peer)
        protocol = _PROTOCOLS.get(found.protocol)
        if protocol is None or found.family not in (layout.FAMILY_IPV4, layout.FAMILY_IPV6):
            return Object("socket", name)
        local, peer = (_address(found.family, one) for one in (found.local, found.peer))
        return Object(
            protocol,
            name,
            local=f"{local}:{found.local_port}",
            peer=f"{peer}:{found.peer_port}" if found.peer_port else "",
            state=_STATES[found.state] if found.protocol == _TCP and found.state < len(_STATES) else "",
        )


def _address(family: int, raw: bytes) -> str:
    """`10.0.0.5`, `[::1]`; `*` for all of the machine's own."""
    if family == layout.FAMILY_IPV4:
        four = IPv4Address(raw[:4])
    else:
        six = IPv6Address(raw)
        if int(six) and not six.ipv4_mapped:
            return f"[{six}]"
        four = six.ipv4_mapped or IPv4Address(0)
    return str(four) if int(four) else "*"


def _child(pid: int, found: ObjectRecord) -> Object:
    """Whose end is waited for."""
    whose = (found.argument & 0xFFFFFFFF ^ 0x80000000) - 0x80000000
    how = found.how
    if found.kind == layout.OBJECT_CHILD:
        how = _CHILD if whose > 0 else _ANY_CHILD if whose == -1 else _GROUP
        whose = abs(whose)
    if how == _CHILD:
        return Object("child", str(whose))
    if how == _GROUP:
        return Object("child", f"child (of group {whose})" if whose else "child (of its group)", pid)
    return Object("child", "child (any)", pid) if how == _ANY_CHILD else NO_OBJECT


def _name_of(pid: int, fd: int, inode: int) -> str:
    """Of what a descriptor is open on; empty where that is another `inode` by now; 0: any will do. It asks no file
    system, which may be what everybody waits for, and takes no lock of the process's memory."""
    with suppress(OSError):
        told = inode and re.search(r"^ino:\t(\d+)$", Path(f"/proc/{pid}/fdinfo/{fd}").read_text(), re.MULTILINE)
        if not told or int(told[1]) == inode:  # not told before 3845f256a8b5, 5.14
            return os.fsencode(Path(f"/proc/{pid}/fd/{fd}").readlink()).decode(errors="replace")
    return ""
