"""Names of code that a process makes as it runs, from the map it leaves in /tmp/perf-PID.map (Java, Node.js, .NET, …).

The file grows while the process runs, to 100,000 lines and more. It is read from where the last reading
ended, only when an address is met that it does not explain, and for a fiftieth of the time at most.
"""

import os
import re
import stat
import time
from array import array
from bisect import bisect_right
from contextlib import suppress
from itertools import islice

from offtop.kernel.status import status_of
from offtop.model.printable import printable

_LINE = re.compile(rb"^(?:0x)?([0-9a-fA-F]{1,16}) (?:0x)?([0-9a-fA-F]{1,16}) (.+)$", re.MULTILINE)
_MOST_BYTES = 16 * 1024 * 1024
_MOST_ENTRIES = 300_000
"""More than so many bytes have, unless somebody means to keep us busy: those behind them are not looked at."""
_LONGEST_NAME = 1000
_TAIL_BYTES = 256
"""If these stand where they stood, the file has only grown."""
_THRIFT = 50
_LOOK_BACK = 16
"""How many entries before an address are tried: code is replaced, and entries of old code overlap new ones."""


class PerfMap:
    """The map of one process. For use by one thread."""

    def __init__(self, pid: int) -> None:
        self._paths, self._owners = _places(pid)
        self._starts = array("Q")
        self._sizes = array("Q")
        self._at = array("I")
        """Where in `_text` the name is."""
        self._order: list[int] = []
        """Entries by start; those of one start in the order in which they were written."""
        self._sorted = array("Q")
        self._text = b""
        self._inode: int = 0
        self._next_ns = 0

    def name(self, address: int) -> str:
        """What lies at `address`, the newest if several do; nothing where the map does not say."""
        return self.known(address) or (self.known(address) if self.refresh() else "")

    @property
    def size_bytes(self) -> int:
        """Of what has been read of it."""
        return len(self._text)

    def refresh(self) -> bool:
        """Whether there was more to read, and time to do it."""
        began_ns = time.monotonic_ns()
        if began_ns < self._next_ns:
            return False
        size_bytes = len(self._text)
        for path in self._paths:
            if self._read(path):
                break
        ended_ns = time.monotonic_ns()
        self._next_ns = ended_ns + _THRIFT * (ended_ns - began_ns)
        return len(self._text) != size_bytes

    def known(self, address: int) -> str:
        """The same, by what has been read."""
        end = bisect_right(self._sorted, address)
        newest = -1
        for entry in self._order[max(0, end - _LOOK_BACK) : end]:
            if entry > newest and address - self._starts[entry] < self._sizes[entry]:
                newest = entry
        if newest < 0:
            return ""
        at = self._at[newest]
        name = self._text[at : self._text.index(b"\n", at)]
        return printable(name[:_LONGEST_NAME].decode(errors="surrogateescape"))

    def _read(self, path: str) -> bool:
        """Whether `path` is this process's map. What it says more than before is added."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return False
        try:
            found = os.fstat(fd)
            # /tmp is everybody's: another user's file says nothing about this process.
            if not stat.S_ISREG(found.st_mode) or found.st_uid not in self._owners:
                return False
            tail = self._text[-_TAIL_BYTES:]
            at = len(self._text) - len(tail)
            if found.st_ino != self._inode or os.pread(fd, len(tail), at) != tail:  # written anew
                self._inode, self._text = found.st_ino, b""
                del self._starts[:], self._sizes[:], self._at[:]
            more = os.pread(fd, max(0, min(_MOST_BYTES, found.st_size) - len(self._text)), len(self._text))
            self._add(more[: more.rfind(b"\n") + 1])
        except OSError:
            return False
        finally:
            os.close(fd)
        return True

    def _add(self, lines: bytes) -> None:
        base = len(self._text)
        for line in islice(_LINE.finditer(lines), _MOST_ENTRIES - len(self._starts)):
            self._starts.append(int(line[1], 16))
            self._sizes.append(int(line[2], 16))
            self._at.append(base + line.start(3))
        self._text += lines
        self._order = sorted(range(len(self._starts)), key=self._starts.__getitem__)
        self._sorted = array("Q", map(self._starts.__getitem__, self._order))


def _places(pid: int) -> tuple[list[str], set[int]]:
    """Where the map may be, by the number that the process has for itself, and who may have written it."""
    inner, owners = str(pid), {0, os.geteuid()}
    with suppress(OSError, KeyError):
        status = status_of(pid)
        inner = status["NSpid"].split()[-1]
        owners.update(map(int, status["Uid"].split()))
    return [f"/proc/{pid}/root/tmp/perf-{inner}.map", f"/tmp/perf-{pid}.map"], owners
