"""Reads the titles of processes, such as `postgres: bench [local] idle in transaction`, in a worker thread.

PostgreSQL, nginx, php-fpm, sshd and others overwrite their command line with what they are doing. It is in the memory
of the process, so each read has a deadline. Only processes that wait, or that others wait for, are read, and from then
on those with a title, whatever they do: these about once a second, the others once a minute, and at most 50 a second.
"""

import os
import time
from collections import Counter, deque
from collections.abc import Collection, Mapping
from pathlib import Path

from offtop.kernel.procfs.guarded_reads import GuardedReads
from offtop.model.values.blockers import Blockers
from offtop.model.values.catalog import Catalog
from offtop.model.values.snapshot import PSEUDO_PIDS
from offtop.model.values.table import distinct_codes
from offtop.model.values.waits import CALL, Waits
from offtop.worker import Worker

_PATIENCE_S, _PATIENCE_A_ROUND_S = 0.1, 0.3
"""How long a round waits for one read, and for all reads that miss their deadline."""
_ROUND_S = 1.0
_MOST_A_ROUND, _MOST_UNTITLED = 50, 25
"""How many processes a round reads, and how many of these may have no title."""
_UNTITLED_S = 60.0
"""Age at which a process without a title is read again: it may have written one, or its pid may be in use again."""
_LONGEST = 512
"""Bytes."""
_MOST_PROCESSES = 16_384


class TitlesWorker:
    """Reads titles. `find` and `titles` are for the polling thread."""

    def __init__(self, catalog: Catalog, reads: GuardedReads) -> None:
        self.titles: Mapping[int, str] = {}
        """pid → title, raw. Each change makes a new object."""
        self._catalog = catalog
        self._reads = reads.channel(_PATIENCE_S, _PATIENCE_A_ROUND_S)
        self._latest = deque[tuple[list[int], Collection[int]]](maxlen=1)
        """The latest request: processes that wait, and processes that are blockers."""
        self._read_s: dict[int, float] = {}
        """When each process was last read (time.monotonic())."""
        self._untitled = Counter[str]()
        """Name → number of its processes without a title: others of that name probably have none, too."""
        self._worker = Worker("offtop-titles", self._run)

    def find(self, waiting: Waits, blockers: Blockers) -> None:
        """Request the titles of processes that wait in a system call, and of blockers. Returns at once."""
        rows = waiting.list.rows
        pids = distinct_codes(rows[rows[:, CALL] != -1, 0]).tolist()
        named = {one.pid for some in blockers.values() for one in some}
        with self._worker.changed:
            self._latest.append(([pid for pid in pids if pid not in PSEUDO_PIDS], named))
            self._worker.wake()

    def close(self) -> None:
        """Ask the worker to stop, and return immediately. May be called twice."""
        self._worker.close()

    def _run(self, worker: Worker) -> None:
        for pids, named in worker.queued(self._latest):
            self._read_round(pids, named)
            worker.rest(_ROUND_S)

    def _read_round(self, pids: Collection[int], named: Collection[int]) -> None:
        now_s = time.monotonic()
        titles = {pid: title for pid, title in self.titles.items() if pid in named or Path(f"/proc/{pid}").exists()}
        every = {*pids, *named, *titles}
        self._read_s = {pid: at_s for pid, at_s in self._read_s.items() if pid in every}
        titled = sorted(titles, key=lambda pid: (pid not in named, self._read_s[pid]))
        untitled = [
            pid for pid in every if pid not in titles and now_s - self._read_s.get(pid, float("-inf")) >= _UNTITLED_S
        ]
        untitled.sort(key=lambda pid: (pid not in named, self._untitled[self._catalog.process(pid)]))
        self._reads.refill()
        for pid in [*untitled[:_MOST_UNTITLED], *titled][:_MOST_A_ROUND]:
            title = self._title(pid)
            self._read_s[pid] = now_s
            if title:
                titles[pid] = title
            elif title is not None:
                titles.pop(pid, None)
                self._untitled[self._catalog.process(pid)] += 1
        if len(self._untitled) > _MOST_PROCESSES:
            self._untitled.clear()
        if titles != self.titles:
            self.titles = titles

    def _title(self, pid: int) -> str | None:
        """Return the title of a process, "" if it has none or has exited, or None if it was not read in time."""
        try:
            command, comm = self._reads.ask(pid, "contents", [f"/proc/{pid}/cmdline", f"/proc/{pid}/comm"], _LONGEST)
        except TimeoutError:
            return None
        except OSError:
            return ""
        return title_in(command, comm.rstrip(b"\n"))


def title_in(command: bytes, comm: bytes) -> str:
    """Return a command line that is a title, raw; "" if it is arguments.

    A title is one text with the name of the program, a colon and a space at its start.
    """
    text = command.rstrip(b"\0 ")
    name, colon, _ = text.partition(b": ")
    is_title = colon and name and b"\0" not in text and b" " not in name and comm.startswith(name[:15])
    return os.fsdecode(text) if is_title else ""
