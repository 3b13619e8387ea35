"""What threads wait on: objects, the processes at their other end, and holders of locks."""

from typing import Annotated

from msgspec import Struct

from offtop.model.values.peers import NAMED, ROLES
from offtop.reports.objects.shared_fields import Count, about, meaning


class Peer(Struct, frozen=True, kw_only=True):
    """A process at the other end of what is waited on."""

    role: Annotated[str, meaning(ROLES)]
    pid: Count
    comm: str
    """The process's name."""


class WaitedOn(Struct, frozen=True, kw_only=True):
    """The object that a thread waits on."""

    kind: str
    """futex, pipe, tcp, udp, unix, socket (of another family), eventfd, epoll, file, child, poll (any of several),
    mutex, rwsem, semaphore (kernel locks) and others."""
    name: str
    """The same for all threads that wait on it: an address, an inode or a path."""
    pid: Count
    """Process in which the name is valid; 0: everywhere."""
    local: str
    """Local address of tcp and udp: 10.0.0.1:40312, *:80, [::1]:53; otherwise empty."""
    peer: str
    """The other end, if connected; for unix the process that created it: postgres(4242); otherwise empty."""
    state: str
    """Of tcp: established, listen, close-wait and so on; otherwise empty."""
    ends: Annotated[list[Peer] | None, about(f"At most {NAMED} of each role; null: unknown.")]
    """The processes of this machine at the other end of a pipe, of a file lock, or of a tcp, udp or unix connection in
    the waiting process's network namespace; known from the second tick on."""
    ends_more: Count
    """How many more processes there are."""
    members: dict[str, Count] | None
    """How many descriptors of each kind an epoll watches: socket, pipe, eventfd, timerfd, file and so on; null:
    unknown."""


ObjectOrNull = Annotated[WaitedOn | None, about("What was waited on; null: unknown.")]


class Holder(Struct, frozen=True, kw_only=True):
    """A thread that holds a lock."""

    pid: Count
    tid: Count
    comm: str
    """Empty: unknown."""
