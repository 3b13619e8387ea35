"""Reads a recording as untrusted input: invalid content is refused with an error, or skipped and counted."""

import contextlib
import sqlite3
import stat
from collections.abc import Collection, Generator, Mapping
from functools import cache
from pathlib import Path

from offtop.errors import OfftopError
from offtop.model.aggregate.stack_problems import NOT_KNOWN, REASONS
from offtop.model.values.disks import DISK, DiskActivity
from offtop.model.values.files import FILE, FileActivity
from offtop.model.values.outlier import Outlier
from offtop.model.values.stack import EMPTY, Frame, Stack, nameless
from offtop.printable import printable
from offtop.recording import checked, disk_rows, file_format, file_rows, outlier_rows, stack_rows, tick_rows
from offtop.recording.database import Database

_MOST_TABLES = 100
_MOST_ABOUT, _MOST_NAMELESS = 100, 20_000
_MOST_OUTLIERS = 5_000
_MOST_REFERENCES = 1 << 19
"""Most frames in all stacks of outliers: opening a file reads all of these."""
_MOST_FRAMES = 200_000
"""Most frames kept in memory."""
_MOST_TEXT, _SHORT_NAME = 64 << 20, 64
"""Most characters of frames that are read in full; names and files of later ones are cut to that length."""
_MOST_DIGITS = 19
"""Of a 64-bit number."""


class Recording:
    """One recording: its names, stacks, ticks, outliers and file operations. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        """Raises OfftopError if the file is not a recording, or its format is newer than this offtop."""
        self._shown = printable(str(path))
        self._frames: dict[int, Frame] = {}
        self._characters = 0
        """Of all frames that were read."""
        self._names: dict[Frame, str] = {}
        """The names that frames had at the end of the recording."""
        self._reasons: dict[str, str] = {}
        """File → why its functions have no names."""
        self.version = 0
        """Implements Names.version: constant, since all names are known from the start."""
        self._references = 0
        """How many frames the stacks of outliers have."""
        self.damaged = 0
        """Number of ticks and stacks that could not be read."""
        self.lists: Collection[str] = ()
        """Those of disks.LIST_MODES whose list it holds."""
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
            self._database = Database(path)
            try:
                later = self._check()
                self._has_guesses, self._has_outliers = "guessed" in later, "outliers" in later
                self.lists = tuple(
                    mode
                    for mode, table in ((FILE, "files"), (DISK, "disks"))
                    if table in later and self._number(f"SELECT number FROM {table}") is not None
                )
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
        """Return (number of the tick that reported it, outlier), oldest first.

        Beyond _MOST_REFERENCES frames, stacks are empty and count as damaged; those of the newest outliers come first.
        """
        if not self._has_outliers:
            return []
        blob_or_null = f"CASE WHEN length(outlier) <= {outlier_rows.MOST_BYTES} THEN outlier END"
        query = f"SELECT number, {blob_or_null} FROM outliers ORDER BY rowid DESC"
        found: list[tuple[int, Outlier]] = []
        stack_of = cache(self._outlier_stack)
        try:
            for number, blob in self._database.rows(query, most=_MOST_OUTLIERS):
                try:
                    found.append((checked.integer(number), outlier_rows.decode(blob, stack_of)))
                except ValueError:
                    self.damaged += 1
        except ValueError:
            self.damaged += 1
        return found[::-1]

    def _outlier_stack(self, number: int) -> Stack:
        if self._references > _MOST_REFERENCES:
            self.damaged += 1
            return EMPTY
        found = self.stack(number)
        self._references += 1 + len(found.frames)
        return found

    def files(self, number: int) -> FileActivity | None:
        """Return the file operations of a tick; None if they were not counted, or cannot be read."""
        if FILE not in self.lists:
            return None
        try:
            row = self._one("SELECT activity FROM files WHERE number = ?", number)
            return file_rows.decode(row[0]) if row else None
        except ValueError:
            self.damaged += 1
            return None

    def disks(self, number: int) -> DiskActivity | None:
        """Return the requests to disks of a tick; None if they were not counted, or cannot be read."""
        if DISK not in self.lists:
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
        rows = self._database.rows(query, checked.MOST_NAME, most=_MOST_NAMELESS)
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
            most = checked.MOST_NAME if self._characters < _MOST_TEXT else _SHORT_NAME
            texts = [file_format.text_of(one) for one in (file, raw_name, name)]
            self.damaged += most == _SHORT_NAME < max(map(len, texts))  # functions may have the same name now
            file, raw_name, name = (one[:most] for one in texts)
            name = printable(name)
            self._characters += len(file) + len(raw_name) + len(name)
            frame = Frame(file, file_format.unsigned(offset), raw_name)
            if len(self._frames) >= _MOST_FRAMES:
                self._frames.clear()
            self._frames[number], self._names[frame] = frame, name
        return frame

    def _one(self, query: str, *values: int) -> tuple[object, ...] | None:
        """Return the first row. Raises ValueError if the database is damaged there."""
        return next(self._database.rows(query, *values, most=1), None)

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
        ours = self._database.pragma("application_id") == file_format.APPLICATION_ID
        version = self._database.pragma("user_version")
        if ours and version > file_format.FORMAT:
            raise OfftopError(
                f"{self._shown}: file format {version}, this offtop reads {file_format.FORMAT}. Use a newer offtop"
            )
        query = f"SELECT name, sql FROM sqlite_schema WHERE length(sql) <= {checked.MOST_NAME}"
        found = dict(self._database.rows(query, most=_MOST_TABLES))
        if not ours or version < 1 or any(found.get(name) != sql for name, sql in file_format.TABLES.items()):
            raise OfftopError(f"{self._shown} is not a recording of offtop. Make one with: offtop record")
        return {name for name, sql in file_format.LATER_TABLES.items() if found.get(name) == sql}

    def _about(self) -> dict[str, str]:
        query = "SELECT substr(key, 1, ?1), substr(value, 1, ?1) FROM about"
        rows = self._database.rows(query, checked.MOST_NAME, most=_MOST_ABOUT)
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
