"""Describes for people what a thread waits on: a kernel object, as the BPF programs found it.

Most of it is in the record. What only /proc knows (the path of a file, which file holds a shared futex) is looked up, a
limited number of times per tick, and cached, so that a tick never waits long for it. An object whose lookup did not fit
into the tick is shown by its number.
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
from offtop.model.values.catalog import Catalog
from offtop.model.values.wake import NO_OBJECT, SYN_SENT, UNIX, Object

_MAX_CACHED = 65_536
_CACHE_TICKS = 10
"""How long the object behind a descriptor is cached, in ticks."""
_LOOKUPS = 50
"""Lookups per tick, 20 µs each."""
_MAPPING_LOOKUPS = 10
"""How many lookups reading a process's mappings counts as."""
_ANONYMOUS = 0x09041934
"""Magic number of anon_inodefs (include/uapi/linux/magic.h)."""
_LOCKS = {layout.LOCK_SEMAPHORE: "semaphore", layout.LOCK_RWSEM: "rwsem"}
"""Kinds of kernel lock; all others are mutexes."""
_MINOR_BITS = 20
_PROTOCOLS = {6: "tcp", 17: "udp"}
_TCP = 6
_STATES = (
    *("", "established", SYN_SENT, "syn-recv", "fin-wait-1", "fin-wait-2", "time-wait", "close", "close-wait"),
    *("last-ack", "listen", "closing", "syn-recv"),
)
"""By number in include/net/tcp_states.h, in the words of ss(8)."""
_ANY_CHILD, _CHILD, _GROUP = range(3)
"""P_ALL, P_PID and P_PGID of waitid(2)."""
_MAPPING = re.compile(rb"([0-9a-f]+)-([0-9a-f]+) ...(.) ([0-9a-f]+) [0-9a-f:]+ (\d+) *(.*)")


class Objects:
    """Describes wait objects. For the polling thread."""

    def __init__(self, catalog: Catalog, reads: Channel, variable: Callable[[int], str] = lambda _: "") -> None:
        """`reads` reads the mappings of processes.

        `variable` returns the name of the kernel variable at an address, or "".
        """
        self._catalog, self._reads, self._variable = catalog, reads, variable
        self._cache: dict[tuple[int, ObjectRecord], Object] = {}
        self._numbers: dict[tuple[int, int], int] = {}
        """(pid, kernel address of the object) → a number of ours, since nobody needs to see the address.

        It is by process because an address may be reused for another object; kernel locks are shared by all (pid 0).
        """
        self._next_number = 1
        self._ticks = 0
        self._lookups_left = _LOOKUPS
        self.epolls: dict[Object, int] = {}
        """Epoll → the descriptor by which its process last waited on it."""
        self._was_deferred = False
        """True if the last object needed a lookup that did not fit into this tick."""

    def of(self, pid: int, found: ObjectRecord) -> tuple[Object, bool]:
        """Return what a thread of that process waits on, and whether a later tick may know more."""
        known = self._cache.get((pid, found))
        if known is not None:
            return known, False
        self._was_deferred = False
        resolved = self._resolve(pid, found)
        if not self._was_deferred:
            self._cache[pid, found] = resolved
        return resolved, self._was_deferred

    def tick(self) -> None:
        """Start a new tick."""
        self._lookups_left = _LOOKUPS
        self._ticks += 1
        if self._ticks % _CACHE_TICKS == 0 or len(self._cache) >= _MAX_CACHED:
            self._cache.clear()  # a descriptor may refer to another file by now
        if len(self._numbers) >= _MAX_CACHED:
            self._numbers.clear()
        if len(self.epolls) >= _MAX_CACHED:
            self.epolls.clear()

    def _take_lookups(self, lookups: int = 1) -> bool:
        self._was_deferred = self._lookups_left < lookups
        if not self._was_deferred:
            self._lookups_left -= lookups
        return not self._was_deferred

    def _resolve(self, pid: int, found: ObjectRecord) -> Object:
        match found.kind:
            case layout.OBJECT_FUTEX | layout.OBJECT_FUTEX_WAIT:
                return self._futex(pid, found)
            case layout.OBJECT_CHILD | layout.OBJECT_ID:
                return _child(pid, found)
            case layout.OBJECT_POLL:
                many = f"{found.detail} or more" if found.argument else f"{found.detail}"
                return Object("poll", f"poll of {many} descriptors", pid)
            case layout.OBJECT_LOCK:
                return self._lock(pid, found)
            case layout.OBJECT_FILE | layout.OBJECT_EPOLL if found.file:
                return self._file(pid, found)
            case _:
                return NO_OBJECT

    def _futex(self, pid: int, found: ObjectRecord) -> Object:
        shared = (
            "" if found.detail or not self._take_lookups(_MAPPING_LOOKUPS) else self._shared_at(pid, found.argument)
        )
        return Object("futex", shared) if shared else Object("futex", f"{found.argument:#x}", pid)

    def _shared_at(self, pid: int, address: int) -> str:
        """The file and offset of a futex in shared memory; "" if private or unknown."""
        try:
            found = _MAPPING.match(self._reads.ask(pid, "mapping_of", pid, address))
        except TimeoutError:
            self._was_deferred = True  # a later tick may read it in time
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
            return self._anonymous(pid, found)
        return Object("file", self._path(pid, found))

    def _path(self, pid: int, found: ObjectRecord) -> str:
        if found.magic == layout.MAGIC_PIPES:
            return f"pipe:[{found.inode}]"
        is_open = found.argument != layout.NO_DESCRIPTOR
        name = _name_of(pid, found.argument, found.inode) if is_open and self._take_lookups() else ""
        device = f"{found.device >> _MINOR_BITS}:{found.device & (1 << _MINOR_BITS) - 1}"
        return name or f"inode {found.inode} of {device}"

    def _lock(self, pid: int, found: ObjectRecord) -> Object:
        kind = _LOCKS.get(found.detail, "mutex")
        match found.state:
            case layout.PROTECTS_MM:
                return Object(kind, "mmap_lock", found.peer_pid)
            case layout.PROTECTS_INODE:
                return Object(kind, f"i_rwsem of {self._path(pid, found)}")
            case layout.PROTECTS_POSITION:
                return Object(kind, f"f_pos_lock of {self._path(pid, found)}")
            case layout.PROTECTS_PIPE:
                return Object(kind, f"{kind} of pipe:[{found.inode}]")
            case _:
                return Object(kind, self._variable(found.file) or f"{kind}#{self._number_of(0, found.file)}")

    def _number_of(self, pid: int, address: int) -> int:
        number = self._numbers.get((pid, address))
        if number is None:
            number = self._numbers[pid, address] = self._next_number
            self._next_number += 1
        return number

    def _anonymous(self, pid: int, found: ObjectRecord) -> Object:
        number = self._number_of(pid, found.file)
        kind = "epoll"
        if found.kind != layout.OBJECT_EPOLL:
            name = _name_of(pid, found.argument, 0) if self._take_lookups() else ""
            kind = name.removeprefix("anon_inode:").strip("[]") if name.startswith("anon_inode:") else "file"
            kind = "epoll" if kind == "eventpoll" else kind
        resolved = Object(kind, f"{kind}#{number}", pid)
        if found.kind == layout.OBJECT_EPOLL:
            self.epolls[resolved] = found.argument
        return resolved

    def _socket(self, found: ObjectRecord) -> Object:
        name = f"socket:[{found.inode}]"
        if found.family == layout.FAMILY_UNIX:
            comm = self._catalog.process(found.peer_pid)
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
    """`10.0.0.5` or `[::1]`; `*` for any local address."""
    if family == layout.FAMILY_IPV4:
        four = IPv4Address(raw[:4])
    else:
        six = IPv6Address(raw)
        if int(six) and not six.ipv4_mapped:
            return f"[{six}]"
        four = six.ipv4_mapped or IPv4Address(0)
    return str(four) if int(four) else "*"


def _child(pid: int, found: ObjectRecord) -> Object:
    """The process or processes whose exit is awaited."""
    target = (found.argument & 0xFFFFFFFF ^ 0x80000000) - 0x80000000
    how = found.detail
    if found.kind == layout.OBJECT_CHILD:
        how = _CHILD if target > 0 else _ANY_CHILD if target == -1 else _GROUP
        target = abs(target)
    if how == _CHILD:
        return Object("child", str(target))
    if how == _GROUP:
        return Object("child", f"child (of group {target})" if target else "child (of its group)", pid)
    return Object("child", "child (any)", pid) if how == _ANY_CHILD else NO_OBJECT


def _name_of(pid: int, fd: int, inode: int) -> str:
    """The name of the file that a descriptor refers to, or "".

    It is "" if that is another inode by now; `inode` 0 accepts any. This calls into no file system, which may be what
    everything waits for, and takes no lock of the process's memory.
    """
    with suppress(OSError):
        now = inode and re.search(r"^ino:\t(\d+)$", Path(f"/proc/{pid}/fdinfo/{fd}").read_text(), re.MULTILINE)
        if not now or int(now[1]) == inode:  # reported since 3845f256a8b5, 5.14
            return os.fsencode(Path(f"/proc/{pid}/fd/{fd}").readlink()).decode(errors="replace")
    return ""
