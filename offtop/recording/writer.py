"""Writes a recording: ticks are encoded in the polling thread and written by a thread of their own.

A disk that hangs therefore does not delay ticks. The queue between the two threads is bounded; when it is full, a tick
is skipped and counted, and the next one holds the sums of both. The file belongs to the user who ran sudo, is created
with that user's rights, and never through a symlink. A failed write ends the recording, with an error; nothing else
stops.
"""

import contextlib
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path

from offtop import __version__
from offtop.errors import OfftopError
from offtop.feed.source import Source
from offtop.model.values.snapshot import Snapshot
from offtop.person import Person, as_person
from offtop.printable import printable
from offtop.recording import file_format
from offtop.recording.tick_encoder import WHOLE_NS, Rows, TickEncoder, TickRows
from offtop.units import NS_PER_S, size
from offtop.worker import Worker

KEEP_NS = 48 * 3600 * NS_PER_S
MOST_BYTES = 2 << 30
LEAVE_BYTES = 100 << 20
"""Free space that a recording leaves on the disk."""
_MOST_QUEUED = 120
_NAMES_SECONDS = 3.0
"""How long close() waits for the last names."""
_CLOSE_SECONDS = 5.0
_OPEN_SECONDS = 10.0


class Recorder:
    """Writes snapshots until it is closed or a write fails. Thread-safe."""

    def __init__(
        self,
        path: Path,
        source: Source,
        owner: Person,
        *,
        keep_ns: int = KEEP_NS,
        most_bytes: int = MOST_BYTES,
        cmdlines: bool = False,
        leave_bytes: int = LEAVE_BYTES,
        whole_ns: int = WHOLE_NS,
        past: bool = False,
    ) -> None:
        """Create the file. Raises OfftopError if that fails or something of that name exists.

        `cmdlines`: also store command lines, which may hold secrets. `past`: the snapshots come from history, so
        add() may block until there is room, and the peers of sockets and pipes are not looked up.
        """
        self.path = path
        self._source, self._owner = source, owner
        self._keep_ns, self._most_bytes, self._leave_bytes = keep_ns, most_bytes, leave_bytes
        self._past = past
        self._encoder = TickEncoder(source, cmdlines=cmdlines, whole_ns=whole_ns, past=past)
        self._epoch: int | None = None
        """Epoch of the first snapshot; the totals of another one do not continue it."""
        self._queue: deque[TickRows] = deque()
        self._adding = threading.Lock()
        self._closing = False
        self._last_names: Rows = ()
        self._reasons: Rows = ()
        """(file, why its functions have no names)."""
        self.failure = ""
        """Why writing stopped; empty while it works."""
        self.bytes_written = 0
        """Size of the file after the last tick."""
        opened = threading.Event()
        self._refusal: OfftopError | None = None
        self._worker = Worker("offtop-record", partial(self._run, opened))
        self._worker.wake()
        if not opened.wait(_OPEN_SECONDS):
            self._closing = True
            self._worker.close()
            raise OfftopError(f"{self._shown} cannot be created: the disk does not respond. Choose another directory")
        if self._refusal:
            raise self._refusal

    def add(self, snapshot: Snapshot) -> None:
        """Queue a snapshot. The cost follows what changed since the one before."""
        if self._past:
            with self._worker.changed:
                has_room = self._worker.changed.wait_for(lambda: len(self._queue) < _MOST_QUEUED, _CLOSE_SECONDS)
            self._past = has_room  # wait for a hung disk only once
        with self._adding:
            if self._epoch not in (None, snapshot.epoch) and not self.failure:
                self.failure = f"recording stopped, because its source began to count from 0: {self._shown}"
            self._epoch = snapshot.epoch
            if self.failure or self._closing:
                return
            if len(self._queue) >= _MOST_QUEUED:
                self._encoder.skip(snapshot)
                return
            written = self._encoder.encoded(snapshot)
        with self._worker.changed:
            self._queue.append(written)
            self._worker.wake()

    def close(self) -> str:
        """Write what is queued, close the file and return a summary for the user. May be called twice."""
        with self._adding:
            first, self._closing = not self._closing, True
            unnamed = {*self._encoder.unnamed}
        if first and not self.failure:
            self._source.wait_for_names(unnamed, _NAMES_SECONDS)
            self._last_names, self._reasons = self._encoder.names(every=True), self._encoder.reasons()
        self._worker.close(_CLOSE_SECONDS)
        if self._worker.is_running:
            return f"the disk does not respond, so the end of the recording may be missing: {self._shown}"
        skipped = f" ({self.skipped:,} skipped: the disk was too slow)" if self.skipped else ""
        ticks = max(0, self._encoder.number - 1)  # a tick is what happened between two readings
        summary = f"recorded {ticks:,} tick{'s' * (ticks != 1)}{skipped}, {size(self.bytes_written)}: {self._shown}"
        return self.failure or summary

    @property
    def skipped(self) -> int:
        """Number of ticks skipped because the disk was too slow; the next tick holds their sums."""
        return self._encoder.skipped

    @property
    def is_complete(self) -> bool:
        """Whether everything was written. Valid once the recorder is closed."""
        return not (self.failure or self.skipped or self._worker.is_running)

    @property
    def _shown(self) -> str:
        return printable(str(self.path))

    # The writing thread

    def _run(self, opened: threading.Event, worker: Worker) -> None:
        try:
            with as_person(self._owner):
                database = self._make()
                opened.set()
                try:
                    self._write_all(database, worker)
                finally:
                    database.close()
        except OfftopError as error:
            self._refusal = error
            self.failure = str(error)
        except (OSError, OverflowError, sqlite3.Error) as error:
            why = printable((error.strerror if isinstance(error, OSError) else "") or str(error))
            self.failure = f"recording stopped: {why}: {self._shown}"
            self._refusal = OfftopError(
                f"{self._shown} cannot be written by {printable(self._owner.name)} ({why}). "
                "Choose another file or directory"
            )
        opened.set()

    def _make(self) -> sqlite3.Connection:
        for name in (self.path, *(Path(f"{self.path}{end}") for end in file_format.BESIDE)):
            if os.path.lexists(name):
                raise OfftopError(f"{printable(str(name))} exists already. Remove it, or name another file")
        # O_EXCL and O_NOFOLLOW: never write to a file or through a symlink that appeared since the check.
        made = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            self._check_room()
            return self._opened(os.fstat(made))
        except BaseException:
            with contextlib.suppress(OSError):
                self.path.unlink()
            raise
        finally:
            os.close(made)

    def _opened(self, made: os.stat_result) -> sqlite3.Connection:
        """Open the database in the file `made`. SQLite follows symlinks, so refuse one that was put there since."""
        database = sqlite3.connect(self.path, isolation_level=None)
        if not os.path.samestat(made, self.path.lstat()):
            database.close()
            raise OSError("the file was replaced")
        database.execute(f"PRAGMA application_id = {file_format.APPLICATION_ID}")
        database.execute(f"PRAGMA user_version = {file_format.FORMAT}")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        with _transaction(database):
            for table in (*file_format.TABLES.values(), *file_format.LATER_TABLES.values()):
                database.execute(table)
            about = {**self._about(), "host": self._source.host, "offtop": __version__, "began_ns": str(time.time_ns())}
            database.executemany("INSERT INTO about VALUES (?, ?)", [(k, printable(v)) for k, v in about.items()])
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # so that the file itself says what it is
        return database

    def _about(self) -> Mapping[str, str]:
        about = {file_format.ABOUT[what]: value for what, value in self._source.about() if what in file_format.ABOUT}
        return about | {f"{file_format.NOTICE}{number}": notice for number, notice in enumerate(self._source.notices)}

    def _write_all(self, database: sqlite3.Connection, worker: Worker) -> None:
        for written in worker.queued(self._queue):
            self._write_tick(database, written)
        while self._queue:  # when close() was called
            self._write_tick(database, self._queue.popleft())
        with _transaction(database):
            database.executemany("UPDATE frames SET told = ? WHERE id = ?", self._last_names)
            database.executemany("INSERT OR REPLACE INTO nameless VALUES (?, ?)", self._reasons)
        with contextlib.suppress(sqlite3.OperationalError):  # a reader holds it open: then the -wal stays
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            database.execute("PRAGMA journal_mode = DELETE")

    def _write_tick(self, database: sqlite3.Connection, written: TickRows) -> None:
        self._check_room()
        with _transaction(database):
            self._write(database, written)
            if not self.bytes_written and (since_ns := self._source.since_ns):  # known from the first tick on
                database.execute("INSERT INTO about VALUES (?, ?)", (file_format.SINCE, str(since_ns)))
        if written.used:
            database.execute("PRAGMA wal_checkpoint(PASSIVE)")
        self.bytes_written = self._bytes_of(database)

    def _write(self, database: sqlite3.Connection, written: TickRows) -> None:
        database.executemany("INSERT OR REPLACE INTO frames VALUES (?, ?, ?, ?, ?, ?)", written.frames)
        database.executemany("INSERT OR REPLACE INTO stacks VALUES (?, ?, ?, ?, ?, ?)", written.stacks)
        database.executemany("INSERT OR REPLACE INTO guessed VALUES (?, ?)", written.guessed)
        database.executemany("UPDATE frames SET told = ? WHERE id = ?", written.names)
        database.executemany("INSERT INTO outliers VALUES (?, ?)", written.outliers)
        database.executemany("INSERT INTO files VALUES (?, ?)", written.files)
        database.executemany("INSERT INTO disks VALUES (?, ?)", written.disks)
        if written.used:
            stacks, frames, number = written.used
            database.executemany("UPDATE stacks SET used = ? WHERE id = ?", _with(number, stacks))
            database.executemany("UPDATE frames SET used = ? WHERE id = ?", _with(number, frames))
        database.execute("INSERT INTO ticks VALUES (?, ?, ?, ?, ?)", written.tick)
        if written.tick[4] is not None:
            self._make_room(database, written.tick[2])

    def _make_room(self, database: sqlite3.Connection, at_ns: int) -> None:
        """Delete the oldest ticks, up to the next whole one, while they are too old or the file is too large."""
        wholes = [
            *database.execute("SELECT number, at_ns FROM ticks WHERE whole IS NOT NULL ORDER BY number").fetchall()
        ]
        first = wholes[0][0]
        for (number, _), (following, begins_ns) in pairwise(wholes):
            if begins_ns > at_ns - self._keep_ns and self._bytes_of(database) <= self._most_bytes:
                break
            database.execute("DELETE FROM ticks WHERE number >= ? AND number < ?", (number, following))
            first = following
        if first != wholes[0][0]:
            database.execute("DELETE FROM stacks WHERE used < ?", (first,))
            database.execute("DELETE FROM frames WHERE used < ?", (first,))
            database.execute("DELETE FROM outliers WHERE number < ?", (first,))
            database.execute("DELETE FROM files WHERE number < ?", (first,))
            database.execute("DELETE FROM disks WHERE number < ?", (first,))
            database.execute("DELETE FROM guessed WHERE stack NOT IN (SELECT id FROM stacks)")
        if len(wholes) > 1 and self._bytes_of(database) > self._most_bytes:
            raise OSError(f"one minute takes more than {size(self._most_bytes)}")

    def _bytes_of(self, database: sqlite3.Connection) -> int:
        """Return the size of the pages in use; SQLite reuses free ones."""
        pages, free, page_bytes = (
            database.execute(f"PRAGMA {what}").fetchone()[0] for what in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * page_bytes

    def _check_room(self) -> None:
        place = os.statvfs(self.path)
        free_bytes = place.f_bavail * place.f_frsize
        if free_bytes < self._leave_bytes:
            where = printable(str(self.path.absolute().parent))
            raise OSError(f"{size(free_bytes)} left on {where} (limit {size(self._leave_bytes)})")


def _with(number: int, ids: Iterable[int]) -> Rows:
    return [(number, one) for one in ids]


@contextlib.contextmanager
def _transaction(database: sqlite3.Connection) -> Generator[None]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")
