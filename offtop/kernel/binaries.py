"""The binaries that are open at the moment: at most 16, because each holds memory, and none longer than needed."""

import os
from typing import NamedTuple

from offtop.kernel.dwfl import Binary
from offtop.kernel.files import File

_MOST_OPEN = 16


class _Open(NamedTuple):
    binary: Binary
    fd: int
    """Of the same file, to see whether it changes."""


class Binaries:
    """Opens files for one thread and keeps those used last."""

    def __init__(self) -> None:
        self._open: dict[File, _Open] = {}

    def __len__(self) -> int:
        return len(self._open)

    def of(self, file: File) -> Binary | None:
        """The open binary of `file`; None where it cannot be opened, is none, or was overwritten."""
        opened = self._open.pop(file, None)
        if opened and os.fstat(opened.fd).st_mtime_ns != file.written_ns:
            _close(opened)
            file.retired = True
        if file.retired:
            return None
        if opened is None:
            opened = _opened(file)
            if opened is None:
                file.unreadable = True
                return None
            if len(self._open) >= _MOST_OPEN:
                _close(self._open.pop(next(iter(self._open))))
        self._open[file] = opened
        return opened.binary

    def close(self) -> None:
        """Close all of them; they are opened again when they are needed."""
        for opened in self._open.values():
            _close(opened)
        self._open.clear()


def _opened(file: File) -> _Open | None:
    fd = file.open()
    if fd is None:
        return None
    try:
        return _Open(Binary(os.dup(fd), file.path), fd)
    except OSError:
        os.close(fd)
        return None


def _close(opened: _Open) -> None:
    opened.binary.close()
    os.close(opened.fd)
