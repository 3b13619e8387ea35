"""Reads a recording, whoever made it: what cannot be in one is refused with a sentence, or left out and counted."""

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
from offtop.model.outlier import Outlier
from offtop.model.printable import printable
from offtop.model.stack import EMPTY, Frame, Stack, nameless
from offtop.model.stackproblems import NOT_KNOWN, REASONS
from offtop.recording import caught, checked, form

_MOST_VALUE_BYTES = 32 << 20
"""Of one value in a row; a tick of 100,000 threads has 5 MB."""
_MOST_ABOUT, _MOST_NAMELESS = 100, 20_000
_MOST_OUTLIERS = 5_000
_MOST_FRAMES = 200_000
"""Kept in memory."""
_ALONE = "immutable=1"
"""SQLite looks at nothing beside the file, and takes no lock."""
_SETTINGS = (
    "PRAGMA query_only = ON",
    "PRAGMA trusted_schema = OFF",
    "PRAGMA cell_size_check = ON",
    "PRAGMA mmap_size = 0",
)


class Recording:
    """Names, stacks and ticks of one file. For one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Raises OfftopError for what is no recording, or one of a newer offtop."""
        self._shown = printable(str(path))
        self._frames: dict[int, Frame] = {}
        self._told: dict[Frame, str] = {}
        self._reasons: dict[str, str] = {}
        """Why functions of a file have no name."""
        self.version = 0
        """As Names has it: what is called how stands from the beginning."""
        self.damaged = 0
        """Ticks and stacks that could not be read."""
        try:
            if not stat.S_ISREG(path.stat().st_mode) and not path.is_dir():
                raise OfftopError(f"{self._shown} is not a recording of offtop. Make one with: offtop record")
            with path.open("rb") as file:
                if file.read(16) != b"SQLite format 3\0":
                    raise OfftopError(f"{self._shown} is not a recording of offtop. Make one with: offtop record")
        except OSError as error:
            raise OfftopError(f"{self._shown} cannot be read ({error.strerror}). Name a file that can") from error
        with self._told_of_damage():
            self._database = _opened(path)
            try:
                later = self._check()
                self._has_guesses, self._has_outliers = "guessed" in later, "outliers" in later
                if "nameless" in later:
                    self._reasons = self._nameless()
                self.about: Mapping[str, str] = self._about()
                self.first, self.last = self._ends()
            except BaseException:
                self._database.close()
                raise

    def close(self) -> None:
        self._database.close()

    @property
    def host(self) -> str:
        return self.about.get("host", "?")

    def number_at(self, taken_ns: int) -> int:
        """The last tick taken by then, or the first there is."""
        found = self._number(
            "SELECT number FROM ticks WHERE taken_ns <= ? ORDER BY taken_ns DESC, number DESC", taken_ns
        )
        return self.first if found is None else max(self.first, found)

    def whole_until(self, number: int) -> int | None:
        """The last tick up to that one in which the whole snapshot is."""
        return self._number(
            "SELECT number FROM ticks WHERE whole IS NOT NULL AND number <= ? ORDER BY number DESC", number
        )

    def whole_after(self, number: int) -> int | None:
        return self._later("SELECT number FROM ticks WHERE whole IS NOT NULL AND number > ? ORDER BY number", number)

    def after(self, number: int) -> int | None:
        """The tick that follows."""
        return self._later("SELECT number FROM ticks WHERE number > ? ORDER BY number", number)

    def taken_ns(self, number: int) -> int:
        return self._number("SELECT taken_ns FROM ticks WHERE number = ?", number) or 0

    def at_ns(self, number: int) -> int:
        return self._number("SELECT at_ns FROM ticks WHERE number = ?", number) or 0

    def before(self, number: int, back_ns: int) -> int:
        """The last tick that was so long before that one, or the first there is. By the clock that nobody sets."""
        found = self._number(
            "SELECT number FROM ticks WHERE number <= ? AND at_ns <= ? ORDER BY number DESC",
            *(number, self.at_ns(number) - back_ns),
        )
        return self.first if found is None else max(self.first, found)

    def tick(self, number: int, whole: bool) -> form.Entry | None:
        """The change that a tick brought, or the whole of it; None where there is none. Raises ValueError where it is
        damaged."""
        row = self._one(f"SELECT {'whole' if whole else 'change'} FROM ticks WHERE number = ?", number)
        return form.decode(row[0], whole) if row else None

    def stack(self, number: int) -> Stack:
        """Where it cannot be read, an empty one."""
        try:
            row = self._one("SELECT frames, tail, entry, category FROM stacks WHERE id = ?", number)
            if row is None:
                return EMPTY
            frames, *rest = row
            made = form.stack_of([self._frame(one) for one in form.decode_frames(frames)], *rest)
            guessed = "SELECT file FROM guessed WHERE stack = ?"
            if made.is_unsure and self._has_guesses and (found := self._one(guessed, number)):
                made = made._replace(guessed_in=form.text_of(found[0]))
            return made
        except ValueError:
            self.damaged += 1
            return EMPTY

    def outliers(self) -> list[tuple[int, Outlier]]:
        """Each, and in which tick it was told, in their order."""
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
                found.append((checked.integer(number), caught.decode(blob, self.stack)))
            except ValueError:
                self.damaged += 1
        return found

    def of(self, frame: Frame) -> str:
        """What `frame` was called. Implements Names, with `version`."""
        return self._told.get(frame) or printable(frame.name) or nameless(frame)

    def why_nameless(self, frame: Frame) -> str:
        """As Source has it."""
        return self._reasons.get(frame.file, NOT_KNOWN)

    def _nameless(self) -> dict[str, str]:
        rows = self._database.execute("SELECT file, reason FROM nameless").fetchmany(_MOST_NAMELESS)
        return {form.text_of(file): reason for file, reason in rows if reason in REASONS}

    def _frame(self, number: int) -> Frame:
        frame = self._frames.get(number)
        if frame is None:
            row = self._one("SELECT file, offset, name, told FROM frames WHERE id = ?", number)
            if row is None:
                raise ValueError("a frame is missing")
            file, offset, name, told = row
            if not isinstance(offset, int):
                raise ValueError("not an offset")
            frame = Frame(form.text_of(file), form.unsigned(offset), form.text_of(name))
            if len(self._frames) >= _MOST_FRAMES:
                self._frames.clear()
            self._frames[number], self._told[frame] = frame, printable(form.text_of(told))
        return frame

    def _one(self, query: str, *values: int) -> tuple[object, ...] | None:
        """The first row. Raises ValueError where the database is damaged there."""
        try:
            return self._database.execute(f"{query} LIMIT 1", values).fetchone()
        except (sqlite3.Error, OverflowError) as error:
            raise ValueError(f"the recording is damaged ({error})") from None

    def _number(self, query: str, *values: int) -> int | None:
        row = self._one(query, *values)
        if row is None:
            return None
        if not isinstance(row[0], int):
            raise ValueError("the recording is damaged (a number is none)")
        return row[0]

    def _later(self, query: str, number: int) -> int | None:
        found = self._number(query, number)
        if found is not None and found <= number:
            raise ValueError("the recording is damaged (its order is wrong)")
        return found

    def _check(self) -> set[str]:
        """Which of form.LATER_TABLES it has."""
        ours = self._database.execute("PRAGMA application_id").fetchone()[0] == form.APPLICATION_ID
        version = self._database.execute("PRAGMA user_version").fetchone()[0]
        if ours and version > form.FORMAT:
            raise OfftopError(
                f"{self._shown}: file format {version}, this offtop reads {form.FORMAT}. Use a newer offtop"
            )
        found = dict(self._database.execute("SELECT name, sql FROM sqlite_schema WHERE sql NOT NULL").fetchmany(100))
        if not ours or version < 1 or any(found.get(name) != sql for name, sql in form.TABLES.items()):
            raise OfftopError(f"{self._shown} is not a recording of offtop. Make one with: offtop record")
        return {name for name, sql in form.LATER_TABLES.items() if found.get(name) == sql}

    def _about(self) -> dict[str, str]:
        rows = self._database.execute("SELECT key, value FROM about").fetchmany(_MOST_ABOUT)
        return {printable(str(key)): printable(str(value)) for key, value in rows}

    def _ends(self) -> tuple[int, int]:
        """The first whole tick, and the last tick."""
        first = self._number("SELECT number FROM ticks WHERE whole IS NOT NULL ORDER BY number")
        last = self._number("SELECT number FROM ticks ORDER BY number DESC")
        if first is None or last is None:
            raise OfftopError(f"{self._shown} has no tick in it. Record longer, or put its {self._shown}-wal beside it")
        return first, last

    @contextlib.contextmanager
    def _told_of_damage(self) -> Generator[None]:
        try:
            yield
        except (sqlite3.Error, ValueError) as error:
            raise OfftopError(
                f"{self._shown} is damaged ({printable(str(error))}). If it is a copy, copy it again, with its "
                f"{self._shown}-wal"
            ) from error


def _opened(path: Path) -> sqlite3.Connection:
    """For reading only, and nothing is made or written beside it: it may be a stranger's directory, and we may be
    root. Where what stands beside it may not be read, what is not yet in the file itself is missing."""
    beside = _beside(path)
    if beside.get("-wal", 0) and "-shm" not in beside:
        database = _with_wal(path)
    else:
        # Whoever writes has an -shm. From one that was left SQLite takes nothing: it makes its own from the -wal.
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
    """What SQLite would open with it, and how many bytes it has. Raises OfftopError for what is no file: opening a
    FIFO would wait for ever, and a link may lead anywhere."""
    found: dict[str, int] = {}
    for end in form.BESIDE:
        name = f"{path.resolve()}{end}"  # SQLite resolves links to the recording, too
        with contextlib.suppress(FileNotFoundError):
            there = os.lstat(name)
            if not stat.S_ISREG(there.st_mode):
                raise OfftopError(f"{printable(name)} is not a regular file. Remove it")
            found[end] = there.st_size
    return found


def _with_wal(path: Path) -> sqlite3.Connection:
    """What is in the file and in its -wal, from a copy that has no name any more: SQLite would make an -shm to read
    them."""
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
            f"{printable(str(path))} and its -wal cannot be copied to {printable(place)} ({error.strerror}) to be put "
            "together. Name another place: TMPDIR=DIRECTORY"
        ) from error


def _copy(path: Path, to: Path) -> None:
    """Raises OSError, also where there is no room for it."""
    with open(path, "rb", opener=_opener) as source, to.open("xb") as copy:
        room = os.statvfs(to)
        if os.fstat(source.fileno()).st_size > room.f_bavail * room.f_frsize:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        shutil.copyfileobj(source, copy, 1 << 20)


def _opener(name: str, flags: int) -> int:
    """What was put there since it was looked at is not followed, nor waited for."""
    return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
