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
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from offtop import __version__
from offtop.errors import OfftopError
from offtop.feed.source import Source
from offtop.model.values import disks, files
from offtop.model.values.catalog import Catalog, Details, ThreadKey, ThreadLifetime
from offtop.model.values.disks import DiskActivity
from offtop.model.values.files import FileActivity
from offtop.model.values.moves import Moves
from offtop.model.values.peers import EPOLL, Peers, waited_on
from offtop.model.values.snapshot import Move, Snapshot
from offtop.model.values.stack import FIRST_STACK, Frame, Stack, nameless
from offtop.model.values.wake import FIRST_WAKE, Object, Wake
from offtop.model.windows.change import NOTHING, Change, change
from offtop.person import Person, as_person
from offtop.printable import printable
from offtop.recording import disk_rows, file_format, file_rows, outlier_rows, stack_rows, tick_rows
from offtop.units import NS_PER_S, size
from offtop.worker import Rest, Worker

KEEP_NS = 48 * 3600 * NS_PER_S
MOST_BYTES = 2 << 30
LEAVE_BYTES = 100 << 20
"""Free space that a recording leaves on the disk."""
_WHOLE_NS = 60 * NS_PER_S
"""Time between two ticks that also hold the whole snapshot."""
_MOST_QUEUED = 120
_NAMES_SECONDS = 3.0
"""How long close() waits for the last names."""
_CLOSE_SECONDS = 5.0
_OPEN_SECONDS = 10.0

_Rows = Sequence[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class _TickRows:
    """The rows that one tick adds to the tables, in one transaction."""

    tick: tuple[Any, ...]
    frames: _Rows
    stacks: _Rows
    names: _Rows
    """(name, id) of frames that have a new name."""
    used: tuple[Sequence[int], Sequence[int], int] | None = None
    """The stacks and frames in use, and the number of the whole tick up to which they were used."""
    guessed: _Rows = ()
    outliers: _Rows = ()
    files: _Rows = ()
    """(number of the tick, file operations): one row or none."""
    disks: _Rows = ()
    """(number of the tick, requests to disks): one row or none."""


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
        whole_ns: int = _WHOLE_NS,
        past: bool = False,
    ) -> None:
        """Create the file. Raises OfftopError if that fails or something of that name exists.

        `cmdlines`: also store command lines, which may hold secrets. `past`: the snapshots come from history, so
        add() may block until there is room, and the peers of sockets and pipes are not looked up.
        """
        self.path = path
        self._source, self._owner, self._cmdlines = source, owner, cmdlines
        self._keep_ns, self._most_bytes, self._leave_bytes, self._whole_ns = keep_ns, most_bytes, leave_bytes, whole_ns
        self._past = past
        self._before = NOTHING
        self._number = 0
        self._whole_at_ns = 0
        self._comms: dict[ThreadKey, str] = {}
        self._processes: dict[int, str] = {}
        self._details: dict[int, Details] = {}
        self._lives: dict[ThreadKey, ThreadLifetime] = {}
        self._calls: dict[int, str] = {}
        self._wakes: dict[int, Wake] = {}
        self._peers: dict[Object, Peers] = {}
        self._wake_stacks: dict[int, set[int]] = {}
        """The stacks of each wake."""
        self._details_version = self._names_version = self._peers_version = -1
        self._frames: dict[Frame, int] = {}
        self._next_frame = 1
        self._stacks: dict[int, tuple[int, ...]] = {}
        """Stacks in the file, with the numbers of their frames."""
        self._provisional_names: dict[Frame, str] = {}
        """Names written so far, of frames that may still get a better one."""
        self._unnamed: set[Frame] = set()
        """Frames without a name so far."""
        self._used: set[int] = set()
        """Stacks used since the last whole tick."""
        self._queue: deque[_TickRows] = deque()
        self._adding = threading.Lock()
        self._closing = False
        self._last_names: _Rows = ()
        self._reasons: _Rows = ()
        """(file, why its functions have no names)."""
        self._moves: list[Move] = []
        """Moves of the skipped ticks."""
        self._files: FileActivity | None = None
        """Sum of the file operations of the skipped ticks: a slow disk must not make memory grow."""
        self._disks: DiskActivity | None = None
        """Sum of the requests to disks of the skipped ticks."""
        self.skipped = 0
        """Number of ticks skipped because the disk was too slow; the next tick holds their sums."""
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
            if self.failure or self._closing:
                return
            if len(self._queue) >= _MOST_QUEUED:
                self.skipped += 1
                self._moves += self._moves_of_written_waits(snapshot)
                self._files = files.added([self._files, snapshot.files])
                self._disks = disks.added([self._disks, snapshot.disks])
                return
            written = self._encoded(snapshot)
        with self._worker.changed:
            self._queue.append(written)
            self._worker.wake()

    def _encoded(self, snapshot: Snapshot) -> _TickRows:
        before, self._before = self._before, snapshot
        self._number += 1
        if self.skipped:
            snapshot = replace(snapshot, lost={**snapshot.lost, "unrecorded": self.skipped})
        one = change(before, snapshot, [*self._moves, *snapshot.moves])
        self._moves.clear()
        is_whole = before is not NOTHING and snapshot.at_ns - self._whole_at_ns >= self._whole_ns
        whole = change(NOTHING, snapshot) if is_whole else one
        used = None
        if is_whole or before is NOTHING:
            self._whole_at_ns = snapshot.at_ns
        entry = self._entry(one, whole, snapshot.catalog)
        blob = tick_rows.encode(entry)
        whole_blob = blob if before is NOTHING else None
        if is_whole:
            entry = self._whole_entry(whole, snapshot.catalog)
            used = self._forget_unused(self._stacks_of(whole))
            whole_blob = tick_rows.encode(entry)
        waits = [one.wait.site for one in snapshot.outliers if one.wait]
        of_waits = {site.kernel for site in waits} | {site.user for site in waits}
        of_waits.update(*(snapshot.catalog.wake(site.wake).stacks for site in waits))
        of_files = files.added([self._files, snapshot.files])
        of_disks = disks.added([self._disks, snapshot.disks])
        self._files = self._disks = None
        frames, stacks, guessed = self._stacks_in(self._stacks_of(whole) | of_waits, snapshot.catalog)
        return _TickRows(
            (self._number, snapshot.taken_ns, snapshot.at_ns, blob, whole_blob),
            frames,
            stacks,
            self._names(is_whole),
            used,
            guessed,
            [(self._number, outlier_rows.encode(one)) for one in snapshot.outliers],
            [(self._number, file_rows.encode(of_files))] if of_files else [],
            [(self._number, disk_rows.encode(of_disks))] if of_disks else [],
        )

    def _moves_of_written_waits(self, snapshot: Snapshot) -> Iterable[Move]:
        """Return the moves of waits that began before the last written tick: it holds their time at the old site."""
        return Moves.of(snapshot.moves).begun_before(self._before.at_ns)

    def close(self) -> str:
        """Write what is queued, close the file and return a summary for the user. May be called twice."""
        with self._adding:
            first, self._closing = not self._closing, True
            unnamed = {*self._unnamed}
        if first and not self.failure:
            self._source.wait_for_names(unnamed, _NAMES_SECONDS)
            self._last_names = self._names(every=True)
            reasons = {frame.file: self._source.why_nameless(frame) for frame in self._unnamed}
            self._reasons = [(file_format.text_bytes(file), reason) for file, reason in reasons.items() if reason]
        self._worker.close(_CLOSE_SECONDS)
        if self._worker.is_running:
            return f"the disk does not respond, so the end of the recording may be missing: {self._shown}"
        left_out = f" ({self.skipped:,} skipped: the disk was too slow)" if self.skipped else ""
        ticks = max(0, self._number - 1)  # a tick is what happened between two readings
        summary = f"recorded {ticks:,} tick{'s' * (ticks != 1)}{left_out}, {size(self.bytes_written)}: {self._shown}"
        return self.failure or summary

    @property
    def is_complete(self) -> bool:
        """Whether everything was written. Valid once the recorder is closed."""
        return not (self.failure or self.skipped or self._worker.is_running)

    @property
    def _shown(self) -> str:
        return printable(str(self.path))

    # What a tick adds to the file

    def _entry(self, one: Change, whole: Change, catalog: Catalog) -> tick_rows.Entry:
        """Return the change `one` with the names that `whole` uses and the file lacks.

        `whole` is the change from nothing to the whole snapshot in whole ticks, otherwise `one` itself.
        """
        keys = _keys(whole)
        comms = {key: comm for key in keys if (comm := catalog.comms.get(key)) and self._comms.get(key) != comm}
        pids = {key.pid for key in keys if key.pid}
        processes = {
            pid: name for pid in pids if (name := catalog.processes.get(pid)) and self._processes.get(pid) != name
        }
        self._comms.update(comms)
        self._processes.update(processes)
        self._source.describe(pids)
        details: dict[int, Details] = {}
        if catalog.details_version != self._details_version:
            self._details_version = catalog.details_version
            details = {
                pid: stored
                for pid, one in list(catalog.details.items())
                if pid in self._processes and self._details.get(pid) != (stored := self._stored_details(one))
            }
            self._details.update(details)
        lives = {key: life for key in keys if (life := catalog.lives.get(key)) and self._lives.get(key) != life}
        calls = {number: name for number, name in list(catalog.calls.items()) if number not in self._calls}
        self._lives.update(lives)
        self._calls.update(calls)
        return tick_rows.Entry(
            one, comms, processes, details, lives, calls, self._new_wakes(whole, catalog), self._new_peers(one, catalog)
        )

    def _whole_entry(self, whole: Change, catalog: Catalog) -> tick_rows.Entry:
        """Return a whole tick with all names that it uses, and forget the names that it does not use."""
        keys = _keys(whole)
        pids = {key.pid for key in keys}
        self._comms = {key: comm for key, comm in self._comms.items() if key in keys}
        self._processes = {pid: name for pid, name in self._processes.items() if pid in pids}
        self._details = {pid: stored for pid, stored in self._details.items() if pid in pids}
        self._lives = {key: life for key, life in self._lives.items() if key in keys}
        in_use = whole.wakes
        self._wakes = {number: wake for number, wake in self._wakes.items() if number in in_use}
        self._wake_stacks = {number: self._wake_stacks[number] for number in self._wakes}
        self._peers = {what: peers for what, peers in self._peers.items() if what in catalog.peers}
        return tick_rows.Entry(
            whole, self._comms, self._processes, self._details, self._lives, self._calls, self._wakes, self._peers
        )

    def _new_wakes(self, whole: Change, catalog: Catalog) -> dict[int, Wake]:
        """Return the wakes that the file lacks."""
        named = (number for number in whole.wakes if number >= FIRST_WAKE and number not in self._wakes)
        new = {number: wake for number in named if (wake := catalog.wakes.get(number))}
        self._wakes.update(new)
        self._wake_stacks.update((number, wake.stacks) for number, wake in new.items())
        return new

    def _new_peers(self, one: Change, catalog: Catalog) -> dict[Object, Peers]:
        """Return the peers that the file lacks or that changed, and have the source look up those of this tick.

        Epolls are not looked up: reading one locks it.
        """
        waits = np.unique(np.concatenate((one.sites.ids[:, [0, -1]], one.waiting[:, [0, -1]])), axis=0)
        found = waited_on(waits.tolist(), catalog.wakes)
        if not self._past:
            self._source.find_peers({what: pid for what, pid in found.items() if what.kind != EPOLL})
        if catalog.peers_version == self._peers_version:
            return {}
        self._peers_version = catalog.peers_version
        new = {what: peers for what, peers in list(catalog.peers.items()) if self._peers.get(what) != peers}
        self._peers |= new
        return new

    def _stored_details(self, details: Details) -> Details:
        return details if self._cmdlines else details._replace(cmdline="")

    def _stacks_of(self, one: Change) -> set[int]:
        """Return the ids of the stacks in a change and in its wakes."""
        return one.stacks.union(*(self._wake_stacks.get(number, ()) for number in one.wakes))

    def _stacks_in(self, ids: set[int], catalog: Catalog) -> tuple[_Rows, _Rows, _Rows]:
        """Return the rows that the file lacks: frames, stacks, and the binaries that were unwound by guessing."""
        self._used |= ids
        frames: list[tuple[Any, ...]] = []
        stacks: list[tuple[Any, ...]] = []
        guessed: list[tuple[Any, ...]] = []
        for number in ids:
            if number < FIRST_STACK or number in self._stacks:
                continue
            stack = catalog.stacks.get(number)
            if stack is None:
                continue
            numbers = self._stacks[number] = tuple(self._frame(frame, frames) for frame in stack.frames)
            stacks.append(self._stack_row(number, stack, numbers))
            if stack.guessed_in:
                guessed.append((number, file_format.text_bytes(stack.guessed_in)))
        return frames, stacks, guessed

    def _stack_row(self, number: int, stack: Stack, frames: Sequence[int]) -> tuple[Any, ...]:
        return (
            number,
            stack_rows.encode_frames(frames),
            stack.tail,
            stack.entry,
            stack_rows.category_of(stack),
            self._number,
        )

    def _frame(self, frame: Frame, new: list[tuple[Any, ...]]) -> int:
        known = self._frames.get(frame)
        if known is not None:
            return known
        number = self._frames[frame] = self._next_frame
        self._next_frame += 1
        name = self._source.names.of(frame)
        if not frame.name:
            self._provisional_names[frame] = name
            if name == nameless(frame):
                self._unnamed.add(frame)
        file, raw_name, name_bytes = map(file_format.text_bytes, (frame.file, frame.name, name))
        new.append((number, file, file_format.signed(frame.offset), raw_name, name_bytes, self._number))
        return number

    def _names(self, every: bool) -> _Rows:
        """Return names found since the last call; with `every`, also names that changed."""
        names = self._source.names
        if names.version == self._names_version and not every:
            return ()
        self._names_version = names.version
        found = {frame: names.of(frame) for frame in (self._provisional_names if every else self._unnamed)}
        better = {
            frame: name
            for frame, name in found.items()
            if name not in (self._provisional_names[frame], nameless(frame))
        }
        self._provisional_names |= better
        self._unnamed.difference_update(better)
        return [(file_format.text_bytes(name), self._frames[frame]) for frame, name in better.items()]

    def _forget_unused(self, ids: set[int]) -> tuple[list[int], list[int], int]:
        """Forget stacks that are neither in `ids` nor used since the last whole tick, and return those still in use.

        A forgotten stack that occurs again is written again.
        """
        used = self._used | ids
        self._used = set()
        stacks = {number: frames for number, frames in self._stacks.items() if number in used}
        in_use = {frame for frames in stacks.values() for frame in frames}
        self._stacks = stacks
        self._frames = {frame: number for frame, number in self._frames.items() if number in in_use}
        self._provisional_names = {
            frame: was for frame, was in self._provisional_names.items() if frame in self._frames
        }
        self._unnamed &= self._provisional_names.keys()
        return list(stacks), list(in_use), self._number

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
        for written in worker.requests(lambda: self._queue.popleft() if self._queue else Rest()):
            self._write_tick(database, written)
        while self._queue:  # when close() was called
            self._write_tick(database, self._queue.popleft())
        with _transaction(database):
            database.executemany("UPDATE frames SET told = ? WHERE id = ?", self._last_names)
            database.executemany("INSERT OR REPLACE INTO nameless VALUES (?, ?)", self._reasons)
        with contextlib.suppress(sqlite3.OperationalError):  # a reader holds it open: then the -wal stays
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            database.execute("PRAGMA journal_mode = DELETE")

    def _write_tick(self, database: sqlite3.Connection, written: _TickRows) -> None:
        self._check_room()
        with _transaction(database):
            self._write(database, written)
        if written.used:
            database.execute("PRAGMA wal_checkpoint(PASSIVE)")
        self.bytes_written = self._bytes_of(database)

    def _write(self, database: sqlite3.Connection, written: _TickRows) -> None:
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


def _keys(one: Change) -> set[ThreadKey]:
    """Return the threads in a change."""
    return {*map(ThreadKey._make, np.concatenate((one.threads.ids, one.waiting[:, :2])).tolist())}


def _with(number: int, ids: Iterable[int]) -> _Rows:
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
