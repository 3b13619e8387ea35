"""Test what finders of blockers make of what they read, where a real machine would not show it."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from offtop.kernel.procfs.diskstats import DiskStats
from offtop.kernel.procfs.guarded_reads import Channel
from offtop.kernel.procfs.open_files import locks_in
from offtop.kernel.resolve import disks, gil
from offtop.kernel.resolve.blocked import Blocked
from offtop.kernel.resolve.file_locks import LockLine, LockTable, Request
from offtop.kernel.resolve.fuse_servers import FuseServers
from offtop.model.values.blockers import DISK, ELSEWHERE, FILE_SYSTEM, GIL, Blocker
from offtop.model.values.catalog import Catalog, ThreadKey
from offtop.model.values.stack import FIRST_STACK, KERNEL, Frame, Stack
from tests.kernel.reads import GUARDED

FLOCK, LEASE = ("FLOCK",), ("LEASE", "DELEG")


class Texts(Channel):
    """A channel for which each file has the given content."""

    def __init__(self, texts: Mapping[str, bytes]) -> None:
        super().__init__(GUARDED, 1, 1)
        self._texts = texts

    def ask(self, subject: object, function: str, *arguments: Any) -> Any:
        assert function == "contents"
        paths, _ = arguments
        return [self._texts.get(path, b"") for path in paths]


@pytest.mark.parametrize(
    ("held", "found"),
    [
        ({}, []),
        ({11: 5}, [(11, True)]),
        ({11: 1}, [(11, False)]),
        ({11: 2, 0: 3}, [(11, False)]),
        ({11: 2, 10: 3}, [(11, False)]),
        ({11: 2, 12: 3}, [(12, False), (11, False)]),
        ({0: 3, 10: 2}, []),
    ],
)
def test_holder_of_the_gil_is_exact_only_if_each_read_found_it(
    held: Mapping[int, int], found: list[tuple[int, bool]]
) -> None:
    blockers = gil._blockers(ThreadKey(10, 10), Counter(held))  # pyright: ignore[reportPrivateUsage]
    assert blockers == tuple(Blocker(10, tid, GIL, is_exact) for tid, is_exact in found)


def table(*lines: str) -> LockTable:
    return LockTable(lines)


def texts(found: Mapping[str, LockLine]) -> list[int]:
    return [one.pid for one in found.values()]


def test_thread_that_opens_another_file_does_not_get_the_lease_of_its_process() -> None:
    locks = table("1: LEASE  ACTIVE    WRITE 20 fe:01:7 0 EOF", "1: -> LEASE  BREAKER   READ 10 fe:01:7 0 EOF")
    request = Request(LEASE, 10, "", "")
    assert texts(locks.awaited(request, 1)) == [20]
    assert texts(locks.awaited(request, 2)) == []


def test_file_lock_of_another_file_is_not_awaited() -> None:
    locks = table("1: FLOCK  ADVISORY  WRITE 20 fe:01:7 0 EOF", "1: -> FLOCK  ADVISORY  WRITE 10 fe:01:7 0 EOF")
    assert texts(locks.awaited(Request(FLOCK, 10, "7", "a"), 1)) == [20]
    assert texts(locks.awaited(Request(FLOCK, 10, "8", "a"), 1)) == []
    assert texts(locks.awaited(Request(FLOCK, 11, "7", "a"), 1)) == []


@pytest.mark.parametrize(("pid", "takers"), [(10, [20]), (11, []), (12, [])])
def test_process_that_waits_for_several_locks_awaits_none(pid: int, takers: list[int]) -> None:
    locks = table(
        "1: FLOCK  ADVISORY  WRITE 20 fe:01:7 0 EOF",
        "1: -> FLOCK  ADVISORY  WRITE 10 fe:01:7 0 EOF",
        "1: -> FLOCK  ADVISORY  WRITE 11 fe:01:7 0 EOF",
        "2: POSIX  ADVISORY  WRITE 21 fe:01:8 0 EOF",
        "2: -> POSIX  ADVISORY  WRITE 11 fe:01:8 0 EOF",
    )
    assert [one.pid for one in (locks.awaited_by_process(pid),) if one] == takers


def test_broken_lines_of_proc_locks_are_skipped() -> None:
    locks = table("", "->", "1:", "1: FLOCK  ADVISORY  WRITE x fe:01:7 0 EOF", "2: POSIX  ADVISORY  READ 5 <none>:0 0")
    assert texts(locks.awaited(Request(FLOCK, 10, "7", ""), 1)) == []


def test_thousands_of_locks_and_requests_take_little_time() -> None:
    held = [f"{n}: FLOCK  ADVISORY  READ {n} fe:01:{n % 10} 0 EOF" for n in range(2000)]
    asked = [f"{n}: -> FLOCK  ADVISORY  WRITE {5000 + n} fe:01:{n % 10} 0 EOF" for n in range(2000)]
    began_s = time.thread_time()
    locks = table(*held, *asked)
    found = [locks.awaited(Request(FLOCK, 5000 + n, str(n % 10), ""), 1) for n in range(2000)]
    assert time.thread_time() - began_s < 0.5
    assert {len(one) for one in found} == {200}


def test_lock_in_a_file_with_other_text_than_utf_8_is_found() -> None:
    assert locks_in(b"iff:\t\xff\xfe\nlock:\t1: FLOCK  ADVISORY  WRITE 4 fe:01:7 0 EOF\n") == {
        "FLOCK ADVISORY WRITE 4 fe:01:7 0 EOF"
    }


_CONTROL = b"30 24 0:30 / /sys/fs/fuse/connections rw shared:9 - fusectl fusectl rw\n"
_SSHFS = b"40 24 0:45 / /mnt/a rw - fuse.sshfs host:/ rw\n"
_NTFS = b"41 24 8:17 / /mnt/b rw - fuseblk /dev/sdb1 rw\n"
_VIRTIO = b"42 24 0:50 / /mnt/c rw - virtiofs share rw\n"


def connection(mounts: Sequence[bytes], call: str, fdinfo: bytes = b"") -> Sequence[int]:
    """Return the servers of a thread that waits in that call, of the servers 7 (connection 0:45) and 8 (8:17)."""
    servers = {7: b"45", 8: b"%d" % (8 << 20 | 17)}
    files = {"/proc/10/mountinfo": b"".join(mounts), "/proc/10/fdinfo/3": fdinfo}
    files |= {f"/proc/{pid}/fdinfo/5": b"pos:\t0\nfuse_connection:\t%s\n" % one for pid, one in servers.items()}
    catalog = Catalog()
    catalog.stacks[FIRST_STACK] = Stack((Frame(KERNEL, 0, "request_wait_answer"),))
    finder = FuseServers(Texts(files), catalog)
    finder._servers = {pid: {int(one): "5"} for pid, one in servers.items()}  # pyright: ignore[reportPrivateUsage]
    finder._searched_s = time.monotonic()  # pyright: ignore[reportPrivateUsage]
    wait = Blocked(ThreadKey(10, 10), 1, call, (3, 0, 0, 0, 0, 0), kernel=FIRST_STACK)
    blockers = [one for found in finder.find([wait]).values() for one in found.blockers]
    is_exact = bool(fdinfo)
    assert blockers == [Blocker(one.pid, 0, FILE_SYSTEM, is_exact) for one in blockers]
    return [one.pid for one in blockers]


@pytest.mark.parametrize(
    ("mounts", "pids"),
    [
        ([], []),
        ([_CONTROL], []),
        ([_CONTROL, _SSHFS], [7]),
        ([_CONTROL, _NTFS], [8]),
        ([_SSHFS, _NTFS], []),
        ([_SSHFS, _VIRTIO], []),
        ([_VIRTIO], []),
    ],
)
def test_path_leads_to_a_fuse_server_if_there_is_only_one_mount(mounts: Sequence[bytes], pids: list[int]) -> None:
    assert connection(mounts, "stat") == pids


def test_descriptor_leads_to_the_fuse_server_of_its_mount() -> None:
    assert connection([_CONTROL, _SSHFS, _NTFS], "read", b"mnt_id:\t41\n") == [8]
    assert connection([_CONTROL, _SSHFS, _NTFS, _VIRTIO], "read", b"mnt_id:\t42\n") == []


_MOUNTS = (
    b"30 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
    b"31 30 252:0 / /data rw - xfs /dev/mapper/data rw\n"
    b"32 30 0:40 / /btrfs rw - btrfs /dev/sdb rw\n"
    b"33 30 0:41 / /nfs rw - nfs4 server:/ rw\n"
)


def system(root: Path) -> Path:
    """Make a /sys with a disk sda, its partition sda1, a disk sdb, and dm-0, which is made of sdb."""
    for name, number, is_partition in (
        ("sda", "8:0", 0),
        ("sda/sda1", "8:1", 1),
        ("sdb", "8:16", 0),
        ("dm-0", "252:0", 0),
    ):
        device = root / "devices" / name
        (device / "slaves").mkdir(parents=True)
        if is_partition:
            (device / "partition").touch()
        for link in (root / "dev/block" / number, root / "class/block" / device.name):
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(device)
    (root / "devices/dm-0/slaves/sdb").mkdir()
    return root


@pytest.mark.parametrize(
    ("call", "mount", "busy", "expected"),
    [
        ("read", 30, (), ("sda", True)),
        ("fsync", 31, ("sda",), ("dm-0", True)),
        ("read", 32, ("sdb",), ("sdb", False)),
        ("read", 33, ("sdb",), None),
        ("", 0, ("sda", "sda1"), ("sda", False)),
        ("", 0, ("sdb", "dm-0"), ("sdb", False)),
        ("", 0, ("sda", "sdb"), None),
        ("openat", 30, (), None),
    ],
)
def test_disk_is_that_of_the_descriptor_or_the_only_busy_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    mount: int,
    busy: Sequence[str],
    expected: tuple[str, bool] | None,
) -> None:
    stats = {
        number: DiskStats(name, int(name in busy), 0) for number, name in enumerate(("sda", "sda1", "sdb", "dm-0"))
    }
    monkeypatch.setattr(disks.diskstats, "read", lambda: stats)
    catalog = Catalog()
    catalog.stacks[FIRST_STACK] = Stack((Frame(KERNEL, 0, "folio_wait_bit"),), 0, "disk-read")
    texts = {"/proc/10/mountinfo": _MOUNTS, "/proc/10/fdinfo/3": b"pos:\t0\nmnt_id:\t%d\n" % mount}
    wait = Blocked(ThreadKey(10, 10), 1, call, (3, 0, 0, 0, 0, 0), kernel=FIRST_STACK)
    found = disks.Disks(Texts(texts), catalog, system(tmp_path)).find([wait])
    blockers = [one for each in found.values() for one in each.blockers]
    assert blockers == ([Blocker(ELSEWHERE, 0, DISK, expected[1], expected[0])] if expected else [])
