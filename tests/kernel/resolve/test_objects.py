"""Test how wait objects are described.

They come from BPF records and this process's own descriptors.
"""

import ctypes
import mmap
import os
import socket
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from offtop.kernel.bpf import layout
from offtop.kernel.bpf.layout import ObjectRecord
from offtop.kernel.resolve.objects import Objects
from offtop.model.values.catalog import Catalog
from offtop.model.values.wake import NO_OBJECT, Object
from tests.kernel.reads import READS

PIPES, ANONYMOUS, EXT4 = 0x50495045, 0x09041934, 0xEF53
TCP, UDP = 6, 17
ESTABLISHED, CLOSE_WAIT, LISTEN = 1, 8, 10
OWN = os.getpid()


def record(kind: int = layout.OBJECT_FILE, **fields: int | bytes) -> ObjectRecord:
    words = {**dict.fromkeys(ObjectRecord._fields, 0), "file": 0xF00, "unused": bytes(6), "kind": kind}
    ends = {"local": bytes(16), "peer": bytes(16)}
    return ObjectRecord(**{**words, **ends, **fields})  # pyright: ignore[reportArgumentType]


def socket_of(family: int, protocol: int, local: str, peer: str = "", state: int = ESTABLISHED) -> ObjectRecord:
    """Return a socket's record; local and peer are `ADDRESS PORT`."""
    af = socket.AF_INET if family == layout.FAMILY_IPV4 else socket.AF_INET6

    def end(text: str) -> tuple[bytes, int]:
        address, port = text.split() if text else ("0.0.0.0" if af == socket.AF_INET else "::", "0")
        return socket.inet_pton(af, address).ljust(16, b"\0"), int(port)

    (local_address, our_port), (peer_address, their_port) = end(local), end(peer)
    return record(
        magic=layout.MAGIC_SOCKETS,
        inode=77,
        family=family,
        protocol=protocol,
        state=state,
        local=local_address,
        local_port=our_port,
        peer=peer_address,
        peer_port=their_port,
    )


def described(found: ObjectRecord, pid: int = OWN, catalog: Catalog | None = None) -> Object:
    return Objects(catalog or Catalog(), READS).of(pid, found)[0]


def inode_of(fd: int) -> int:
    return os.fstat(fd).st_ino


@pytest.mark.parametrize(
    ("found", "label", "ends"),
    [
        (
            socket_of(layout.FAMILY_IPV4, TCP, "10.0.0.1 40312", "10.0.0.5 5432"),
            "tcp 10.0.0.5:5432 via :40312",
            ("10.0.0.1:40312", "10.0.0.5:5432", "established"),
        ),
        (
            socket_of(layout.FAMILY_IPV4, TCP, "0.0.0.0 80", state=LISTEN),
            "tcp *:80 (listening)",
            ("*:80", "", "listen"),
        ),
        (socket_of(layout.FAMILY_IPV6, TCP, ":: 80", state=LISTEN), "tcp *:80 (listening)", ("*:80", "", "listen")),
        (
            socket_of(layout.FAMILY_IPV6, TCP, "::1 53", "2001:db8::7 9", state=CLOSE_WAIT),
            "tcp [2001:db8::7]:9 via :53 (close-wait)",
            ("[::1]:53", "[2001:db8::7]:9", "close-wait"),
        ),
        (
            socket_of(layout.FAMILY_IPV6, TCP, "::ffff:10.0.0.1 80", "::ffff:10.0.0.9 1234"),
            "tcp 10.0.0.9:1234 via :80",
            ("10.0.0.1:80", "10.0.0.9:1234", "established"),
        ),
        (socket_of(layout.FAMILY_IPV6, UDP, "::1 53", state=7), "udp [::1]:53", ("[::1]:53", "", "")),
    ],
)
def test_a_socket_is_described_by_its_addresses(found: ObjectRecord, label: str, ends: tuple[str, str, str]) -> None:
    one = described(found)
    assert (one.label, one.name, one.pid, one[3:]) == (label, "socket:[77]", 0, ends)


def test_a_unix_socket_is_described_by_its_peer() -> None:
    unix = record(magic=layout.MAGIC_SOCKETS, inode=77, family=layout.FAMILY_UNIX, peer_pid=123)
    assert described(unix, catalog=Catalog(processes={123: "postgres"})).label == "unix [77] to postgres(123)"
    assert described(unix).peer == "123"
    assert described(unix._replace(peer_pid=0)) == Object("unix", "socket:[77]")
    assert described(unix._replace(peer_pid=0)).label == "unix [77]"
    assert described(unix._replace(family=16)) == Object("socket", "socket:[77]"), "netlink"


def test_pipes_and_no_object_need_no_lookup() -> None:
    assert described(record(magic=PIPES, inode=9)) == Object("pipe", "pipe:[9]")
    assert described(record(0)) == NO_OBJECT
    assert described(record(file=0)) == NO_OBJECT, "a descriptor that is not open"


def test_a_poll_is_described_by_its_number_of_descriptors() -> None:
    several = record(layout.OBJECT_POLL, file=0, detail=5)
    assert described(several) == Object("poll", "poll of 5 descriptors", OWN)
    assert described(several).label == f"poll of 5 descriptors of {OWN}"
    assert described(several._replace(argument=1)).name == "poll of 5 or more descriptors"


def test_a_child_is_described_by_the_arguments_of_wait() -> None:
    minus = 1 << 64
    for argument, label in (
        (42, "child 42"),
        (minus - 1, f"child (any) of {OWN}"),
        (0, f"child (of its group) of {OWN}"),
        (minus - 42, f"child (of group 42) of {OWN}"),
    ):
        assert described(record(layout.OBJECT_CHILD, argument=argument)).label == label
    for how, label in ((0, f"child (any) of {OWN}"), (1, "child 7"), (2, f"child (of group 7) of {OWN}")):
        assert described(record(layout.OBJECT_ID, argument=7, detail=how)).label == label
    assert described(record(layout.OBJECT_ID, argument=7, detail=3)) == NO_OBJECT, "a descriptor"


def test_a_file_is_described_by_path_or_by_inode_if_its_fd_was_reused() -> None:
    with tempfile.NamedTemporaryFile() as one:
        found = record(magic=EXT4, inode=inode_of(one.fileno()), argument=one.fileno(), device=8 << 20 | 1)
        assert described(found) == Object("file", one.name)
        assert described(found._replace(inode=1)) == Object("file", "inode 1 of 8:1")
    assert described(found).name == f"inode {found.inode} of 8:1", "it was closed"


def test_a_kernel_lock_is_described_by_its_container_or_name() -> None:
    lock = record(layout.OBJECT_LOCK, file=0xF00, argument=layout.NO_DESCRIPTOR, device=8 << 20 | 1, inode=9)
    rwsem = lock._replace(detail=layout.LOCK_RWSEM)
    with tempfile.NamedTemporaryFile() as one:
        opened = {"inode": inode_of(one.fileno()), "argument": one.fileno()}
        for found, label in (
            (rwsem._replace(state=layout.PROTECTS_MM, peer_pid=42), "rwsem mmap_lock of 42"),
            (rwsem._replace(state=layout.PROTECTS_INODE), "rwsem i_rwsem of inode 9 of 8:1"),
            (rwsem._replace(state=layout.PROTECTS_INODE, **opened), f"rwsem i_rwsem of {one.name}"),
            (lock._replace(state=layout.PROTECTS_POSITION, **opened), f"mutex f_pos_lock of {one.name}"),
            (lock._replace(state=layout.PROTECTS_PIPE, magic=PIPES), "mutex of pipe:[9]"),
        ):
            assert described(found).label == label
    objects = Objects(Catalog(), READS, lambda at: "rtnl_mutex" if at == 0xF10 else "")
    assert objects.of(OWN, lock._replace(file=0xF10))[0] == Object("mutex", "rtnl_mutex")
    assert objects.of(OWN, lock)[0] == Object("mutex", "mutex#1")
    assert objects.of(1, lock)[0] == Object("mutex", "mutex#1"), "the same for another process"
    assert objects.of(OWN, lock._replace(file=0xF20, detail=layout.LOCK_SEMAPHORE))[0].label == "semaphore#2"


def test_an_anonymous_object_belongs_to_its_process_and_is_rechecked() -> None:
    objects = Objects(Catalog(), READS)
    with os.fdopen(os.eventfd(0), "rb") as one:
        found = record(magic=ANONYMOUS, inode=7, argument=one.fileno())
        mine, _ = objects.of(OWN, found)
        assert (mine.kind, mine.name, mine.pid) == ("eventfd", "eventfd#1", OWN)
        assert objects.of(os.getppid(), found)[0].name.endswith("#2"), "the same descriptor of another process"
        assert objects.of(OWN, record(layout.OBJECT_EPOLL, file=0xE, magic=ANONYMOUS))[0].name == "epoll#3"
        with tempfile.TemporaryFile() as other:
            os.dup2(other.fileno(), one.fileno())
            assert objects.of(OWN, found) == (mine, False), "not looked up in every tick"
            for _ in range(10):
                objects.tick()
            assert objects.of(OWN, found) == (Object("file", "file#1", OWN), False)


@contextmanager
def shared_memory() -> Generator[tuple[str, int]]:
    """Yield the path of a mapped file of two pages, and its address."""
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(2 * mmap.PAGESIZE)
        with mmap.mmap(file.fileno(), 2 * mmap.PAGESIZE) as pages:
            word = ctypes.c_char.from_buffer(pages)
            yield file.name, ctypes.addressof(word)
            del word


def test_a_futex_belongs_to_its_process_or_to_a_shared_file() -> None:
    with shared_memory() as (path, at):
        shared = record(layout.OBJECT_FUTEX, argument=at + mmap.PAGESIZE + 64)
        assert described(shared) == Object("futex", f"{path}+{mmap.PAGESIZE + 64:#x}")
        assert described(shared._replace(detail=layout.FUTEX_PRIVATE)) == Object("futex", f"{shared.argument:#x}", OWN)
        assert described(shared, pid=1 << 30).pid == 1 << 30, "it has exited"
    own = ctypes.c_int(0)
    word = record(layout.OBJECT_FUTEX_WAIT, argument=ctypes.addressof(own))
    assert described(word).label == f"futex {word.argument:#x} of {OWN}"


def test_lookups_per_tick_are_bounded_and_the_rest_follows(tmp_path: Path) -> None:
    objects, files = Objects(Catalog(), READS), [(tmp_path / str(n)).open("wb") for n in range(60)]
    fds = [one.fileno() for one in files]
    found = [record(magic=EXT4, inode=inode_of(fd), argument=fd, file=fd) for fd in fds]
    first = [objects.of(OWN, one) for one in found]
    assert [is_for_now for _, is_for_now in first] == [False] * 50 + [True] * 10
    assert [what.name.startswith("inode ") for what, _ in first] == [False] * 50 + [True] * 10
    assert objects.of(OWN, record(magic=PIPES, inode=9)) == (Object("pipe", "pipe:[9]"), False), "it needs no lookup"
    objects.tick()
    assert [objects.of(OWN, one) for one in found] == [(Object("file", one.name), False) for one in files]
    for one in files:
        one.close()
