"""Opens a recording's database as untrusted input, read-only and without creating files beside it."""

import contextlib
import errno
import os
import shutil
import sqlite3
import stat
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from offtop.errors import OfftopError
from offtop.printable import printable
from offtop.recording import file_format

_MOST_VALUE_BYTES = 32 << 20
"""Largest value in a row; a tick of 100,000 threads takes 5 MB."""
_ALONE = "immutable=1"
"""SQLite opens no other file and takes no lock."""
_SETTINGS = (
    "PRAGMA query_only = ON",
    "PRAGMA trusted_schema = OFF",
    "PRAGMA cell_size_check = ON",
    "PRAGMA mmap_size = 0",
)
_STEPS = 100_000
"""Instructions of SQLite between two looks at the time; some milliseconds."""
_STATEMENT_S = 60.0
"""Longest time of a statement: pages of a crafted file may lead to each other, so that it would never end."""


class Database:
    """A database whose statements all end, and can be interrupted by signals. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        """Raises sqlite3.Error and OfftopError."""
        self._shown = printable(str(path))
        self._until_s = 0.0
        """When the current statement is given up."""
        self._raised: BaseException | None = None
        """What a signal handler raised during the current statement."""
        self._connection = self._opened(path)
        for setting in _SETTINGS:
            with self._statement():
                self._connection.execute(setting)

    def close(self) -> None:
        self._connection.close()

    def rows(self, query: str, *values: int, most: int) -> Iterator[tuple[Any, ...]]:
        """Yield the first `most` rows, one by one, because each may be large.

        Raises ValueError if the database is damaged there, OfftopError if that takes too long.
        """
        try:
            with self._statement():
                yield from self._connection.execute(f"{query} LIMIT {most}", values)
        except (sqlite3.Error, OverflowError) as error:
            raise ValueError(str(error)) from None

    def pragma(self, name: str) -> Any:
        """Return a setting of the database. Raises sqlite3.Error."""
        with self._statement():
            return self._connection.execute(f"PRAGMA {name}").fetchone()[0]

    @contextlib.contextmanager
    def _statement(self) -> Generator[None]:
        """Give up the statement in this block if it takes too long, or if a signal handler raises."""
        self._until_s = time.monotonic() + _STATEMENT_S
        try:
            yield
        except sqlite3.OperationalError as error:
            raised, self._raised = self._raised, None
            if raised is not None:
                raise raised from None
            if getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_INTERRUPT:  # not all have one
                raise
            raise OfftopError(
                f"{self._shown} takes too long to read. It is damaged, or its disk is slow: copy it elsewhere"
            ) from None

    def _too_long(self) -> Iterator[bool]:
        """Yield whether the current statement takes too long.

        Signal handlers run here, and SQLite would not pass on what they raise. Python calls them when it continues, so
        in a function they would be called before its first line, outside of any `try`.
        """
        while True:
            try:
                yield self._raised is not None or time.monotonic() > self._until_s
            except GeneratorExit:
                return
            except BaseException as error:
                self._raised = error

    def _limit(self, connection: sqlite3.Connection) -> None:
        """Bound what statements may take, before the first one."""
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_VALUE_BYTES)
        answers = self._too_long()
        next(answers)
        connection.set_progress_handler(answers.__next__, _STEPS)

    def _opened(self, path: Path) -> sqlite3.Connection:
        """Open the database: the directory may be untrusted, and we may be root.

        Without permission to read the -wal, what has not reached the main file yet is missing.
        """
        beside = _beside(path)
        if beside.get("-wal", 0) and "-shm" not in beside:
            return self._with_wal(path)
        # A live writer has an -shm. SQLite ignores a stale one and rebuilds its own from the -wal.
        try:
            return self._connected(path, "readonly_shm=1" if "-wal" in beside else _ALONE)
        except sqlite3.OperationalError:
            return self._connected(path, _ALONE)

    def _connected(self, path: Path, how: str) -> sqlite3.Connection:
        """Open a file, and read its schema."""
        name = quote(os.fsencode(path.absolute()))
        connection = sqlite3.connect(
            f"file:{name}?mode=ro&{how}", uri=True, isolation_level=None, check_same_thread=False
        )
        try:
            self._limit(connection)
            with self._statement():
                connection.execute("SELECT 1 FROM sqlite_schema").fetchone()
        except BaseException:
            connection.close()
            raise
        return connection

    def _with_wal(self, path: Path) -> sqlite3.Connection:
        """Open an unlinked copy of the file merged with its -wal: reading them in place would create an -shm."""
        place = "a directory for temporary files"
        try:
            place = tempfile.gettempdir()
            with tempfile.TemporaryDirectory(prefix="offtop-", dir=place) as own:
                copy = Path(own) / "it"
                for end in ("", "-wal"):
                    _copy(Path(f"{path.resolve()}{end}"), Path(f"{copy}{end}"))
                merging = sqlite3.connect(copy, isolation_level=None)
                try:
                    self._limit(merging)
                    with self._statement():
                        merging.execute("PRAGMA journal_mode = DELETE")
                finally:
                    merging.close()
                return self._connected(copy, _ALONE)
        except OSError as error:
            raise OfftopError(
                f"{printable(str(path))} and its -wal cannot be copied to {printable(place)} ({error.strerror}) to be "
                "merged. Name another directory: TMPDIR=DIRECTORY"
            ) from error


def _beside(path: Path) -> dict[str, int]:
    """Return the files that SQLite would open too, with their sizes in bytes.

    Raises OfftopError if one is not a regular file: opening a FIFO would block, and a symlink may lead anywhere.
    """
    found: dict[str, int] = {}
    for end in file_format.BESIDE:
        name = f"{path.resolve()}{end}"  # SQLite resolves links to the recording, too
        with contextlib.suppress(FileNotFoundError):
            there = os.lstat(name)
            if not stat.S_ISREG(there.st_mode):
                raise OfftopError(f"{printable(name)} is not a regular file. Remove it")
            found[end] = there.st_size
    return found


def _copy(path: Path, to: Path) -> None:
    """Copy a file. Raises OSError, also if there is no room for the copy."""
    with open(path, "rb", opener=_opener) as source, to.open("xb") as copy:
        room = os.statvfs(to)
        if os.fstat(source.fileno()).st_size > room.f_bavail * room.f_frsize:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        shutil.copyfileobj(source, copy, 1 << 20)


def _opener(name: str, flags: int) -> int:
    """Open a file, but neither follow a symlink nor block on a FIFO that was put there since the check."""
    return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
