"""The open files of processes, and the file locks that belong to them.

Nothing here calls into a file system, which may hang: it reads only the links in /proc/PID/fd, and fdinfo by guarded
reads.
"""

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from offtop.kernel.procfs.guarded_reads import Channel

_PART = 256
_FDINFO_BYTES = 1 << 20


class OpenFile(NamedTuple):
    """A file that a process has open."""

    pid: int
    """Or the tid of a thread, which can have descriptors of its own."""
    fd: str

    @property
    def link(self) -> str:
        """Its link in /proc/PID/fd: `pipe:[1234]`, or a path; empty if it was closed."""
        with suppress(OSError):
            return str(Path(f"/proc/{self.pid}/fd/{self.fd}").readlink())
        return ""


@contextmanager
def fd_directory(pid: int) -> Generator[int]:
    """Open /proc/PID/fd. Raises OSError if the process has exited."""
    directory = os.open(f"/proc/{pid}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield directory
    finally:
        os.close(directory)


def scan_open_files(
    pids: Iterable[int], wanted: Callable[[str], bool]
) -> Iterator[tuple[int, int, list[tuple[str, str]]]]:
    """Read the open files of processes, in small parts.

    Yields for each part the PID, how many files were read, and the wanted ones as (link, descriptor).
    """
    for pid in pids:
        with suppress(OSError), fd_directory(pid) as directory:
            with os.scandir(directory) as entries:
                files = [entry.name for entry in entries]
            for first in range(0, len(files), _PART):
                part = files[first : first + _PART]
                yield pid, len(part), [one for one in _links(directory, part) if wanted(one[0])]


def _links(directory: int, files: Sequence[str]) -> Iterator[tuple[str, str]]:
    for fd in files:
        try:
            link = os.readlink(fd, dir_fd=directory)
        except OSError:
            continue  # closed in the meantime
        yield link, fd


def last_part(path: str) -> str:
    """Return the last component of a path: the rest may differ between mount namespaces."""
    return os.fsencode(path).decode(errors="replace").rpartition("/")[2]


def fdinfo_of(reads: Channel, pid: int, fds: Sequence[str]) -> list[bytes]:
    """Read /proc/PID/fdinfo/FD of open files; empty if it cannot be read.

    It may hang: drivers add lines of their own, and take locks to do so. The kernel locks an epoll, and a thread may
    keep it locked while it waits for its own memory.
    """
    with suppress(OSError):  # TimeoutError is one
        paths = [f"/proc/{pid}/fdinfo/{fd}" for fd in fds]
        found: list[bytes] = reads.ask(pid, "contents", paths, _FDINFO_BYTES) if fds else []
        return found
    return [b""] * len(fds)


def locks_in(fdinfo: bytes) -> set[str]:
    """Return the file locks that an open file holds, as /proc/locks has them without the number (since 4.1)."""
    lines = (line.split() for line in fdinfo.decode(errors="replace").split("\n"))
    return {" ".join(words[2:]) for words in lines if words[:1] == ["lock:"]}
