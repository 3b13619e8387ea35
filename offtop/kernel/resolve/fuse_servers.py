"""Finds the processes that serve the FUSE file systems that threads wait for.

A server has /dev/fuse open, and its fdinfo names the connection, which is the number of the mounted device. The
kernel shows the mount of a descriptor. For a path, the server is known only if there is just one FUSE mount.
"""

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from offtop.kernel.procfs import mounts
from offtop.kernel.procfs.direct_reads import every_pid
from offtop.kernel.procfs.guarded_reads import Channel
from offtop.kernel.procfs.open_files import fdinfo_of, scan_open_files
from offtop.kernel.resolve.blocked import OF_DESCRIPTOR, Blocked, Found, StacksIn
from offtop.kernel.resolve.slices import SlicedWork
from offtop.model.values.blockers import FILE_SYSTEM, Blocker
from offtop.model.values.catalog import Catalog, ThreadKey

_DEVICE = "/dev/fuse"
_FUNCTIONS = ("fuse_", "__fuse_", "request_wait_answer")
"""Prefixes of the functions of the FUSE client (fs/fuse)."""
_CONNECTION = re.compile(rb"^fuse_connection:\t(\d+)$", re.MULTILINE)
"""Field of fdinfo that only recent kernels have."""
_KIND = re.compile(rb"(?:fuse|fuseblk|virtiofs)(?:\.\S*)?")
"""Kinds of file systems of the FUSE client. `fusectl` is none."""
_MINOR_BITS = 20
"""The kernel writes a connection as major << 20 | minor (include/linux/kdev_t.h)."""
_OLD_S = 10.0
_UNKNOWN = 0
"""No device has this number."""


class FuseServers:
    """Finds servers. For one thread, except for `stacks`."""

    def __init__(self, reads: Channel, catalog: Catalog) -> None:
        self._reads = reads
        self._servers: dict[int, dict[int, str]] = {}
        """PID → connections that the process serves, and the descriptor of each."""
        self._searched_s = float("-inf")
        self._search = SlicedWork()
        self.stacks = StacksIn(catalog, _FUNCTIONS)
        """Kernel stacks in the FUSE client."""

    def find(self, waits: Sequence[Blocked]) -> dict[ThreadKey, Found]:
        """Return the servers that these threads wait for, if they are known by now."""
        some = [one for one in waits if one.kernel in self.stacks]
        if not some:
            return {}
        if self._search.may_begin and time.monotonic() - self._searched_s > _OLD_S:
            self._search.begin(self._searching(every_pid()))
        self._search.advance()
        found: dict[ThreadKey, Found] = {}
        seen: dict[int, Mapping[int, int]] = {}
        serving: dict[int, list[int]] = {}
        for one in some:
            pid = one.key.pid
            with suppress(OSError):  # TimeoutError is one
                if pid not in seen:
                    seen[pid] = self._mounts(pid)
                connection, is_exact = self._connection(one, seen[pid])
                if connection not in serving:
                    serving[connection] = self._serving(connection)
                if blockers := tuple(Blocker(to, 0, FILE_SYSTEM, is_exact) for to in serving[connection] if to != pid):
                    found[one.key] = Found(one.switched_out_ns, blockers)
        return found

    def _mounts(self, pid: int) -> Mapping[int, int]:
        """Return the FUSE mounts that a process sees: id → connection. Raises OSError."""
        every = mounts.devices(self._reads, pid)
        return {
            mount: major << _MINOR_BITS | minor
            for mount, (major, minor, kind) in every.items()
            if _KIND.fullmatch(kind)
        }

    def _connection(self, wait: Blocked, seen: Mapping[int, int]) -> tuple[int, bool]:
        """Return the connection that a thread waits for, and whether that is sure. Raises OSError."""
        if wait.call in OF_DESCRIPTOR and wait.arguments:
            mount = mounts.mount_id(self._reads, wait.key.pid, wait.arguments[0] & 0xFFFFFFFF)
            if mount is not None and mount in seen:
                return seen[mount], True
        every = {*seen.values()}
        return (every.pop() if len(every) == 1 else _UNKNOWN), False

    def _serving(self, connection: int) -> list[int]:
        """Return the processes that serve a connection."""
        if connection == _UNKNOWN:
            return []
        return [
            pid
            for pid, connections in self._servers.items()
            if connection in connections and self._connection_of(pid, connections[connection]) == connection
        ]

    def _searching(self, pids: Iterable[int]) -> Iterator[None]:
        """Search for processes that have /dev/fuse open. Yield after each part of the work."""
        servers: dict[int, dict[int, str]] = {}
        for pid, _, opened in scan_open_files(pids, lambda link: link == _DEVICE):
            for _, fd in opened:
                servers.setdefault(pid, {})[self._connection_of(pid, fd)] = fd
            yield
        self._servers, self._searched_s = servers, time.monotonic()

    def _connection_of(self, pid: int, fd: str) -> int:
        """Return the connection that a descriptor serves, _UNKNOWN if it was closed, or if the kernel is too old.

        In a container, /dev/fuse can be another device, whose driver can hang.
        """
        (fdinfo,) = fdinfo_of(self._reads, pid, [fd])
        found = _CONNECTION.search(fdinfo)
        return int(found[1]) if found else _UNKNOWN
