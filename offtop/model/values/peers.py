"""Peers: the processes at the other end of what a thread waits on.

For an epoll, it is what it watches. They change while the object waited on stays the same, so waits are grouped by
object, and the Catalog has its peers.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from offtop.model.values.stack import Stack
from offtop.model.values.wake import UNIX, Object, Wake

READER, WRITER, PEER, CLIENT = "reader", "writer", "peer", "client"
LISTENER, HOLDER = "listener", "holder"
ROLES: Mapping[str, str] = {
    READER: "reads the pipe that the thread writes to",
    WRITER: "writes to the pipe that the thread reads",
    PEER: "has the other end of the connection open",
    CLIENT: "has the other end open of a connection that the thread's process has accepted",
    LISTENER: "listens at the other end and has not accepted the connection yet",
    HOLDER: "holds the file lock (flock, fcntl)",
}
"""What a process may be to a thread that waits."""
NAMED = 8
"""How many processes of a role are known by name."""
_MOST_SHOWN = 3
"""How many of those are shown."""
_MOST_KINDS = 3
PIPE, EPOLL, FILE = "pipe", "epoll", "file"
_CONNECTIONS = ("tcp", "udp")


class Process(NamedTuple):
    pid: int
    comm: str
    """Raw."""

    @property
    def label(self) -> str:
        """`gzip(4242)`; raw."""
        return f"{self.comm}({self.pid})"


class PeerSide(NamedTuple):
    """The processes of one role."""

    role: str
    """One of ROLES."""
    processes: tuple[Process, ...]
    """The first NAMED of them; none if it is a CLIENT on another machine or in another network namespace."""
    total: int
    """How many there are."""

    @property
    def text(self) -> str:
        """`writer: gzip(4242), cat(4243), +2`; raw."""
        shown = [one.label for one in self.processes[:_MOST_SHOWN]]
        more = [f"+{self.total - len(shown)}"] if self.total > len(shown) else []
        return f"{self.role}: {', '.join([*shown, *more])}"


class Peers(NamedTuple):
    sides: tuple[PeerSide, ...] = ()
    members: tuple[tuple[str, int], ...] = ()
    """For an epoll: kind of descriptor (`socket`, `pipe`, `eventfd`, `file` and so on) → how many it watches, most
    first."""

    def sides_of_wait(self, kernel: Stack) -> tuple[PeerSide, ...]:
        """Return the roles that a wait at that stack depends on.

        A pipe's reader waits for its writers, for example. If the stack does not say, these are all but the holder of a
        file lock, which only waits for that lock depend on.
        """
        names = [frame.name for frame in kernel.frames]
        role = next((role for part, role in _ROLE_BY_FUNCTION.items() if any(part in name for name in names)), "")
        return tuple(side for side in self.sides if (side.role == role if role else side.role != HOLDER))

    def text(self, kernel: Stack) -> str:
        """Return `writer: gzip(4242)` or `57 sockets, 1 eventfd`; empty if unknown. Raw."""
        sides = [one.text for one in self.sides_of_wait(kernel) if one.processes]
        return "; ".join([*([self._watched] if self.members else []), *sides])

    @property
    def _watched(self) -> str:
        shown = [f"{count} {kind}{'s' * (count != 1)}" for kind, count in self.members[:_MOST_KINDS]]
        rest = sum(count for _, count in self.members[_MOST_KINDS:])
        return ", ".join([*shown, *([f"{rest} more"] if rest else [])])

    @property
    def is_client(self) -> bool:
        """Whether the other end is the client: a thread that reads waits for a request, or for the rest of one."""
        return any(side.role == CLIENT for side in self.sides)

    @property
    def names(self) -> tuple[str, ...]:
        """Texts that a filter matches."""
        return tuple(name for side in self.sides for one in side.processes for name in (one.comm, one.label))

    def name(self, kernel: Stack) -> str:
        """Return the common name of all that a wait at that stack depends on.

        It is empty if names differ or are unknown. Raw.
        """
        sides = self.sides_of_wait(kernel)
        names = {one.comm for side in sides for one in side.processes}
        are_all = all(side.total == len(side.processes) for side in sides)
        return names.pop() if len(names) == 1 and are_all else ""


_ROLE_BY_FUNCTION = {
    **dict.fromkeys(("pipe_read", "ipipe_prep"), WRITER),
    **dict.fromkeys(("pipe_write", "opipe_prep", "wait_for_space"), READER),
    **dict.fromkeys(("lock_inode_wait", "fcntl_setlk", "do_lock_file_wait"), HOLDER),
}
"""Part of a function's name → what is waited for."""
NO_PEERS = Peers()


def may_have_peers(what: Object) -> bool:
    """Return whether a process of this machine may be the peer, or whether it watches others."""
    return what.kind in (PIPE, UNIX, EPOLL, FILE) or (what.kind in _CONNECTIONS and bool(what.peer))


def waited_on(waits: Iterable[Sequence[int]], wakes: Mapping[int, Wake]) -> dict[Object, int]:
    """Return object → a process that waits on it, for objects that may have peers.

    `waits` are (pid, wake id).
    """
    found: dict[Object, int] = {}
    for pid, wake in waits:
        known = wakes.get(wake)
        if known is not None and may_have_peers(known.object):
            found[known.object] = pid
    return found
