"""Finds the processes that serve the FUSE file systems that threads wait for.

A server has /dev/fuse open, and its fdinfo names the connection, which is the minor number of the mounted device. For a
descriptor the kernel says on which mount it is; for a path, the server is known only if there is one FUSE mount.
"""

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from offtop.kernel.procfs.guarded_reads import Channel
from offtop.kernel.procfs.open_files import every_pid, open_in
from offtop.kernel.resolve.blocked import Blocked, Found
from offtop.kernel.resolve.slices import SlicedWork
from offtop.model.values.blockers import FILE_SYSTEM, Blocker
from offtop.model.values.catalog import Catalog, ThreadKey
from offtop.model.values.stack import FIRST_STACK

_DEVICE = "/dev/fuse"
_FUNCTIONS = ("fuse_", "__fuse_", "request_wait_answer")
"""How functions of the FUSE client begin (fs/fuse)."""
_OF_DESCRIPTOR = frozenset(
    (
        *(
            "read",
            "readv",
            "pread64",
            "preadv",
            "preadv2",
            "write",
            "writev",
            "pwrite64",
            "pwritev",
            "pwritev2",
            "lseek",
        ),
        *(
            "getdents64",
            "fstat",
            "fstatfs",
            "fsync",
            "fdatasync",
            "ftruncate",
            "fallocate",
            "ioctl",
            "fchmod",
            "fchown",
        ),
    )
)
"""Calls whose first argument is a descriptor of a file in the file system."""
_CONNECTION = re.compile(rb"^fuse_connection:\t(\d+)$", re.MULTILINE)
"""Reported by recent kernels only."""
_MOUNT_ID = re.compile(rb"^mnt_id:\t(\d+)$", re.MULTILINE)
_MOUNT = re.compile(rb"^(\d+) \d+ 0:(\d+) .* - fuse\S* ", re.MULTILINE)
"""Id and minor number of a FUSE mount in /proc/PID/mountinfo."""
_BYTES = 1 << 20
_OLD_S = 10.0
_UNKNOWN = b""
_MOST_STACKS = 16_384


class FuseServers:
    """Finds servers. For one thread, except for `is_waiting`, which is for one other."""

    def __init__(self, reads: Channel, catalog: Catalog) -> None:
        self._reads, self._catalog = reads, catalog
        self._servers: dict[int, dict[bytes, str]] = {}
        """PID → connections that it serves, and the descriptor of each."""
        self._searched_s = float("-inf")
        self._search = SlicedWork()
        self._verdicts: dict[int, bool] = {}
        """Id of a kernel stack → whether it is in the FUSE client."""

    def is_waiting(self, kernel: int) -> bool:
        """Return whether a thread at that kernel stack waits for a FUSE server."""
        if kernel < FIRST_STACK:
            return False
        verdict = self._verdicts.get(kernel)
        if verdict is None:
            if len(self._verdicts) >= _MOST_STACKS:
                self._verdicts.clear()
            names = [frame.name for frame in self._catalog.stack(kernel).trimmed]
            verdict = self._verdicts[kernel] = any(name.startswith(_FUNCTIONS) for name in names)
        return verdict

    def find(self, waits: Sequence[Blocked]) -> dict[ThreadKey, Found]:
        """Return the servers that these threads wait for, as far as they are known by now."""
        some = [one for one in waits if self.is_waiting(one.kernel)]
        if not some:
            return {}
        if self._search.may_begin and time.monotonic() - self._searched_s > _OLD_S:
            self._search.begin(self._searching(every_pid()))
        self._search.advance()
        found: dict[ThreadKey, Found] = {}
        for one in some:
            with suppress(OSError):
                connection, is_exact = self._connection(one)
                pids = self._serving(connection)
                if pids:
                    blockers = tuple(Blocker(pid, 0, FILE_SYSTEM, is_exact) for pid in pids if pid != one.key.pid)
                    found[one.key] = Found(one.switched_out_ns, blockers)
        return found

    def _connection(self, wait: Blocked) -> tuple[bytes, bool]:
        """Return the connection that a thread waits for, empty if unknown; and whether that is sure. Raises OSError."""
        pid = wait.key.pid
        descriptor = wait.arguments[0] & 0xFFFFFFFF if wait.call in _OF_DESCRIPTOR and wait.arguments else -1
        paths = [f"/proc/{pid}/mountinfo", f"/proc/{pid}/fdinfo/{descriptor}"]
        mounts, fdinfo = self._reads.ask(pid, "contents", paths, _BYTES)
        minors = dict(_MOUNT.findall(mounts))
        mount_id = _MOUNT_ID.search(fdinfo)
        if mount_id and mount_id[1] in minors:
            return minors[mount_id[1]], True
        (only, *more) = {*minors.values()} or {_UNKNOWN}
        return (_UNKNOWN if more else only), False

    def _serving(self, connection: bytes) -> list[int]:
        """Return the processes that serve a connection."""
        if connection == _UNKNOWN:
            return []
        found: list[int] = []
        for pid, connections in self._servers.items():
            if connection in connections and _connection_of(pid, connections[connection]) == connection:
                found.append(pid)
        return found

    def _searching(self, pids: Iterable[int]) -> Iterator[None]:
        """Search for processes that have /dev/fuse open. Yields after each part of the work."""
        servers: dict[int, dict[bytes, str]] = {}
        for pid in pids:
            for _, opened in open_in(pid, lambda link: link == _DEVICE):
                for _, fd in opened:
                    servers.setdefault(pid, {})[_connection_of(pid, fd)] = fd
                yield
        self._servers, self._searched_s = servers, time.monotonic()


def _connection_of(pid: int, fd: str) -> bytes:
    """Return the connection that a descriptor of /dev/fuse serves; empty if it was closed, or the kernel is too old."""
    with suppress(OSError):
        found = _CONNECTION.search(Path(f"/proc/{pid}/fdinfo/{fd}").read_bytes())
        return found[1] if found else _UNKNOWN
    return _UNKNOWN
