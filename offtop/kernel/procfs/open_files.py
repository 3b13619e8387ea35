"""The open files of processes, and the file locks that belong to them.

Nothing here calls into a file system, which may hang: it reads only the links in /proc/PID/fd.
"""

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress

_PART = 256


@contextmanager
def fd_directory(pid: int) -> Generator[int]:
    """Open /proc/PID/fd. Raises OSError if the process has exited."""
    directory = os.open(f"/proc/{pid}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield directory
    finally:
        os.close(directory)


def open_in(pid: int, wanted: Callable[[str], bool]) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """Yield a process's wanted open files as (link, descriptor), in parts.

    Each part comes with the number of files that were read for it.
    """
    with suppress(OSError), fd_directory(pid) as directory:
        with os.scandir(directory) as entries:
            files = [entry.name for entry in entries]
        for first in range(0, len(files), _PART):
            part = files[first : first + _PART]
            yield len(part), [one for one in _links(directory, part) if wanted(one[0])]


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


def locks_in(fdinfo: bytes) -> set[str]:
    """Return the file locks that an open file holds, as /proc/locks has them without the number.

    `fdinfo`: contents of /proc/PID/fdinfo/FD. To read it may hang: some drivers take locks before they show their part.
    """
    lines = (line.split() for line in fdinfo.decode(errors="replace").split("\n"))
    return {" ".join(words[2:]) for words in lines if words[:1] == ["lock:"]}
