"""Reads a recording as untrusted input: invalid content is refused with an error, or skipped and counted."""

import contextlib
import errno
import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Generator, Mapping
from pathlib import Path
from urllib.parse import quote

from offtop.errors import OfftopError
from offtop.model.aggregate.stack_problems import NOT_KNOWN, REASONS
from offtop.model.values.disks import DiskActivity
from offtop.model.values.files import FileActivity
from offtop.model.values.outlier import Outlier
from offtop.model.values.stack import EMPTY, Frame, Stack, nameless
from offtop.printable import printable
from offtop.recording import checked, disk_rows, file_format, file_rows, outlier_rows, stack_rows, tick_rows

_MOST_VALUE_BYTES = 32 << 20
"""Largest value in a row; a tick of 100,000 threads takes 5 MB."""
_MOST_ABOUT, _MOST_NAMELESS = 100, 20_000
_MOST_OUTLIERS = 5_000
_MOST_FRAMES = 200_000
"""Most frames kept in memory."""
_MOST_DIGITS = 19
"""Of a 64-bit number."""
_ALONE = "immutable=1"
"""SQLite opens no other file and takes no lock."""
_SETTINGS = (
    "PRAGMA query_only = ON",
    "PRAGMA trusted_schema = OFF",
    "PRAGMA cell_size_check = ON",
    "PRAGMA mmap_size = 0",
)


class Recording:
    """One recording: its names, stacks, ticks, outliers and file operations. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        """Raises OfftopError if the file is not a recording, or its format is newer than this offtop."""
        self._shown = printable(str(path))
        self._frames: dict[int, Frame] = {}
        self._names: dict[Frame, str] = {}
        """The names that frames had at the end of the recording."""
        self._reasons: dict[str, str] = {}
        """File → why its functions have no names."""
        self.version = 0
        """Implements Names.version: constant, since all names are known from the start."""
        self.damaged = 0
        """Number of ticks and stacks that could not be read."""
        self.has_files = False
        """Whether it holds file operations."""
        self.has_disks = False
        """Whether it holds requests to disks."""
        self._disks = frozenset[int]()
        """Disks of the ticks that were read so far."""
        try:
            if not stat.S_ISREG(path.stat().st_mode) and not path.is_dir():
                raise OfftopError(f"{self._shown} is not a recording of offtop. Make one with: offtop record")
            with path.open("rb") as file:
                if file.read(16) != b"SQLite format 3\0":
                    raise OfftopError(f"{self._shown} is not a recording of offtop. Make one with: offtop record")
        except OSError as error:
            why = f"{self._shown} cannot be read ({error.strerror})"
            raise OfftopError(f"{why}. Name a file that offtop can read") from error
        with self._damage_reported():
            self._database = _opened(path)
            try:
                later = self._check()
                self._has_guesses, self._has_outliers = "guessed" in later, "outliers" in later
                self.has_files = "files" in later and self._number("SELECT number FROM files") is not None
                self.has_disks = "disks" in later and self._number("SELECT number FROM disks") is not None
                if "nameless" in later:
                    self._reasons = self._nameless()
                self.about: Mapping[str, str] = self._about()
                self.first, self.last = self._first_and_last()
            except BaseException:
                self._database.close()
                raise

    def close(self) -> None:
        self._database.close()

    @property
    def host(self) -> str:
        return self.about.get("host", "?")

    @property
    def since_ns(self) -> int:
        """See Source.since_ns; 0 if the recording is of an older offtop."""
        since = self.about.get(file_format.SINCE, "")
        return int(since) if since.isdecimal() and since.isascii() and len(since) <= _MOST_DIGITS else 0

    def number_at(self, taken_ns: int) -> int:
        """Return the last tick taken by `taken_ns` (CLOCK_REALTIME), or the first tick."""
        found = self._number(
            "SELECT number FROM ticks WHERE taken_ns <= ? ORDER BY taken_ns DESC, number DESC", taken_ns
        )
        return self.first if found is None else max(self.first, found)

    def whole_until(self, number: int) -> int | None:
        """Return the last tick up to `number` that holds a whole snapshot."""
        return self._number(
            "SELECT number FROM ticks WHERE whole IS NOT NULL AND number <= ? ORDER BY number DESC", number
        )

    def whole_after(self, number: int) -> int | None:
        return self._later("SELECT number FROM ticks WHERE whole IS NOT NULL AND number > ? ORDER BY number", number)

    def after(self, number: int) -> int | None:
        """Return the next tick."""
        return self._later("SELECT number FROM ticks WHERE number > ? ORDER BY number", number)

    def taken_ns(self, number: int) -> int:
        return self._number("SELECT taken_ns FROM ticks WHERE number = ?", number) or 0

    def at_ns(self, number: int) -> int:
        return self._number("SELECT at_ns FROM ticks WHERE number = ?", number) or 0

    def before(self, number: int, back_ns: int) -> int:
        """Return the last tick at least `back_ns` (CLOCK_MONOTONIC) before `number`, or the first tick."""
        found = self._number(
            "SELECT number FROM ticks WHERE number <= ? AND at_ns <= ? ORDER BY number DESC",
            *(number, self.at_ns(number) - back_ns),
        )
        return self.first if found is None else max(self.first, found)

    def tick(self, number: int, whole: bool) -> tick_rows.Entry | None:
        """Return the change of a tick, or with `whole` its snapshot; None if there is none.

        Raises ValueError if it is damaged.
        """
        row = self._one(f"SELECT {'whole' if whole else 'change'} FROM ticks WHERE number = ?", number)
        return tick_rows.decode(row[0], whole) if row else None

    def stack(self, number: int) -> Stack:
        """Return the stack, or an empty one if it cannot be read."""
        try:
            row = self._one("SELECT frames, tail, entry, category FROM stacks WHERE id = ?", number)
            if row is None:
                return EMPTY
            frames, *rest = row
            made = stack_rows.stack_of([self._frame(one) for one in stack_rows.decode_frames(frames)], *rest)
            guessed = "SELECT file FROM guessed WHERE stack = ?"
            if made.is_unsure and self._has_guesses and (found := self._one(guessed, number)):
                made = made._replace(guessed_in=file_format.text_of(found[0]))
            return made
        except ValueError:
            self.damaged += 1
            return EMPTY

    def outliers(self) -> list[tuple[int, Outlier]]:
        """Return (number of the tick that reported it, outlier), oldest first."""
        if not self._has_outliers:
            return []
        try:
            rows = self._database.execute("SELECT number, outlier FROM outliers ORDER BY rowid DESC")
            newest = rows.fetchmany(_MOST_OUTLIERS)
        except sqlite3.Error:
            self.damaged += 1
            return []
        found: list[tuple[int, Outlier]] = []
        for number, blob in reversed(newest):
            try:
                found.append((checked.integer(number), outlier_rows.decode(blob, self.stack)))
            except ValueError:
                self.damaged += 1
        return found

    def files(self, number: int) -> FileActivity | None:
        """Return the file operations of a tick; None if they were not counted, or cannot be read."""
        if not self.has_files:
            return None
        try:
            row = self._one("SELECT activity FROM files WHERE number = ?", number)
            return file_rows.decode(row[0]) if row else None
        except ValueError:
            self.damaged += 1
            return None

    def disks(self, number: int) -> DiskActivity | None:
        """Return the requests to disks of a tick; None if they were not counted, or cannot be read."""
        if not self.has_disks:
            return None
        try:
            row = self._one("SELECT activity FROM disks WHERE number = ?", number)
            activity = disk_rows.decode(row[0]) if row else None
            if activity:
                self._add_disks(activity)
            return activity
        except ValueError:
            self.damaged += 1
            return None

    def _add_disks(self, activity: DiskActivity) -> None:
        """Raise ValueError if the ticks read so far have too many disks: sums over ticks hold all of them."""
        disks = self._disks | activity.devices.keys()
        if len(disks) > disk_rows.MOST_DISKS:
            raise ValueError("too many disks")
        self._disks = disks

    def of(self, frame: Frame) -> str:
        """Return the name of `frame`. Implements Names."""
        return self._names.get(frame) or printable(frame.name) or nameless(frame)

    def why_nameless(self, frame: Frame) -> str:
        """Implements Source.why_nameless."""
        return self._reasons.get(frame.file, NOT_KNOWN)

    def _nameless(self) -> dict[str, str]:
        query = "SELECT substr(file, 1, ?1), substr(reason, 1, ?1) FROM nameless"
        rows = self._database.execute(query, (checked.MOST_NAME,)).fetchmany(_MOST_NAMELESS)
        return {file_format.text_of(file): reason for file, reason in rows if reason in REASONS}

    def _frame(self, number: int) -> Frame:
        frame = self._frames.get(number)
        if frame is None:
            row = self._one("SELECT file, offset, name, told FROM frames WHERE id = ?", number)
            if row is None:
                raise ValueError("a frame is missing")
            file, offset, raw_name, name = row
            if not isinstance(offset, int):
                raise ValueError("not an offset")
            file, raw_name, name = (file_format.text_of(one)[: checked.MOST_NAME] for one in (file, raw_name, name))
            frame = Frame(file, file_format.unsigned(offset), raw_name)
            if len(self._frames) >= _MOST_FRAMES:
                self._frames.clear()
            self._frames[number], self._names[frame] = frame, printable(name)
        return frame

    def _one(self, query: str, *values: int) -> tuple[object, ...] | None:
        """Return the first row. Raises ValueError if the database is damaged there."""
        try:
            return self._database.execute(f"{query} LIMIT 1", values).fetchone()
        except (sqlite3.Error, OverflowError) as error:
            raise ValueError(f"the recording is damaged ({error})") from None

    def _number(self, query: str, *values: int) -> int | None:
        row = self._one(query, *values)
        if row is None:
            return None
        if not isinstance(row[0], int):
            raise ValueError("the recording is damaged (not a number)")
        return row[0]

    def _later(self, query: str, number: int) -> int | None:
        found = self._number(query, number)
        if found is not None and found <= number:
            raise ValueError("the recording is damaged (ticks are out of order)")
        return found

    def _check(self) -> set[str]:
        """Return which of file_format.LATER_TABLES the file has."""
        ours = self._database.execute("PRAGMA application_id").fetchone()[0] == file_format.APPLICATION_ID
        version = self._database.execute("PRAGMA user_version").fetchone()[0]
        if ours and version > file_format.FORMAT:
            raise OfftopError(
                f"{self._shown}: file format {version}, this offtop reads {file_format.FORMAT}. Use a newer offtop"
            )
        found = dict(self._database.execute("SELECT name, sql FROM sqlite_schema WHERE sql NOT NULL").fetchmany(100))
        if not ours or version < 1 or any(found.get(name) != sql for name, sql in file_format.TABLES.items()):
            raise OfftopError(f"{self._shown} is not a recording of offtop. Make one with: offtop record")
        return {name for name, sql in file_format.LATER_TABLES.items() if found.get(name) == sql}

    def _about(self) -> dict[str, str]:
        query = "SELECT substr(key, 1, ?1), substr(value, 1, ?1) FROM about"
        rows = self._database.execute(query, (checked.MOST_NAME,)).fetchmany(_MOST_ABOUT)
        return {printable(str(key)): printable(str(value)) for key, value in rows}

    def _first_and_last(self) -> tuple[int, int]:
        """Return the first whole tick and the last tick."""
        first = self._number("SELECT number FROM ticks WHERE whole IS NOT NULL ORDER BY number")
        last = self._number("SELECT number FROM ticks ORDER BY number DESC")
        if first is None or last is None:
            raise OfftopError(f"{self._shown} has no tick in it. Record longer, or put its {self._shown}-wal beside it")
        return first, last

    @contextlib.contextmanager
    def _damage_reported(self) -> Generator[None]:
        try:
            yield
        except (sqlite3.Error, ValueError) as error:
            raise OfftopError(
                f"{self._shown} is damaged ({printable(str(error))}). If it is a copy, copy it again, with its "
                f"{self._shown}-wal"
            ) from error


def _opened(path: Path) -> sqlite3.Connection:
    """Open the database read-only and create no file beside it: the directory may be untrusted, and we may be root.

    Without permission to read the -wal, what has not reached the main file yet is missing.
    """
    beside = _beside(path)
    if beside.get("-wal", 0) and "-shm" not in beside:
        database = _with_wal(path)
    else:
        # A live writer has an -shm. SQLite ignores a stale one and rebuilds its own from the -wal.
        database = _connected(path, "readonly_shm=1" if "-wal" in beside else _ALONE)
        try:
            database.execute("SELECT 1 FROM sqlite_schema").fetchone()
        except sqlite3.OperationalError:
            database.close()
            database = _connected(path, _ALONE)
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_VALUE_BYTES)
    for setting in _SETTINGS:
        database.execute(setting)
    return database


def _connected(path: Path, how: str) -> sqlite3.Connection:
    name = quote(os.fsencode(path.absolute()))
    return sqlite3.connect(f"file:{name}?mode=ro&{how}", uri=True, isolation_level=None, check_same_thread=False)


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


def _with_wal(path: Path) -> sqlite3.Connection:
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
                merging.execute("PRAGMA journal_mode = DELETE")
            finally:
                merging.close()
            database = _connected(copy, _ALONE)
            database.execute("SELECT 1 FROM sqlite_schema").fetchone()
            return database
    except OSError as error:
        raise OfftopError(
            f"{printable(str(path))} and its -wal cannot be copied to {printable(place)} ({error.strerror}) to be "
            "merged. Name another directory: TMPDIR=DIRECTORY"
        ) from error


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
