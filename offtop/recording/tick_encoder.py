"""Encodes snapshots as the rows that they add to a recording: what changed, and the names that were not written yet.

A file and a stream hold the same rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from offtop.feed.source import Source
from offtop.model.values import disks, files
from offtop.model.values.catalog import Catalog, Details, ThreadKey, ThreadLifetime
from offtop.model.values.disks import DiskActivity
from offtop.model.values.files import FileActivity
from offtop.model.values.io_stacks import ids_of
from offtop.model.values.moves import Moves
from offtop.model.values.outlier import Outlier
from offtop.model.values.peers import EPOLL, Peers, waited_on
from offtop.model.values.snapshot import Move, Snapshot
from offtop.model.values.stack import FIRST_STACK, Frame, Stack, nameless
from offtop.model.values.wake import FIRST_WAKE, Object, Wake
from offtop.model.windows.change import NOTHING, Change, change
from offtop.model.windows.window import with_maxima_of
from offtop.recording import disk_rows, file_format, file_rows, outlier_rows, stack_rows, tick_rows
from offtop.units import NS_PER_S

WHOLE_NS = 60 * NS_PER_S
"""Time between two ticks that also hold the whole snapshot."""
_MOST_OUTLIERS = 1_000
"""Most outliers of skipped ticks that are kept: a tick has at most 500, and a stream takes 5,000 with one tick."""
Rows = Sequence[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class TickRows:
    """The rows that one tick adds to the tables, in one transaction."""

    tick: tuple[Any, ...]
    frames: Rows
    stacks: Rows
    names: Rows
    """(name, id) of frames that have a new name."""
    used: tuple[Sequence[int], Sequence[int], int] | None = None
    """The stacks and frames in use, and the number of the whole tick up to which they were used."""
    guessed: Rows = ()
    outliers: Rows = ()
    files: Rows = ()
    """(number of the tick, file operations): one row or none."""
    disks: Rows = ()
    """(number of the tick, requests to disks): one row or none."""


class TickEncoder:
    """Encodes the snapshots of one source, in order. Not thread-safe."""

    def __init__(self, source: Source, *, cmdlines: bool = False, whole_ns: int = WHOLE_NS, past: bool = False) -> None:
        """`cmdlines`: also encode command lines, which may hold secrets. `past`: the snapshots come from history, so
        the peers of sockets and pipes are not looked up.
        """
        self._source, self._cmdlines, self._whole_ns, self._past = source, cmdlines, whole_ns, past
        self._before = NOTHING
        self.number = 0
        """Number of the last tick."""
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
        self.unnamed: set[Frame] = set()
        """Frames without a name so far."""
        self._used: set[int] = set()
        """Stacks used since the last whole tick."""
        self._moves: list[Move] = []
        """Moves of the skipped ticks."""
        self._files: FileActivity | None = None
        """Sum of the file operations of the skipped ticks: a slow disk must not make memory grow."""
        self._disks: DiskActivity | None = None
        """Sum of the requests to disks of the skipped ticks."""
        self._outliers: list[Outlier] = []
        """The newest outliers of the skipped ticks."""
        self._lost_outliers = 0
        """Number of outliers of skipped ticks for which there was no room."""
        self._maxima: Snapshot | None = None
        """The last skipped tick, with the maxima of all skipped ones."""
        self.skipped = 0
        """Number of skipped ticks; the next tick holds their sums."""

    def skip(self, snapshot: Snapshot) -> None:
        """Leave out a tick; the next one that is encoded holds the sums of both, and their maxima and outliers."""
        self.skipped += 1
        outliers = [*self._outliers, *snapshot.outliers]
        self._lost_outliers += max(0, len(outliers) - _MOST_OUTLIERS)
        self._outliers = outliers[-_MOST_OUTLIERS:]
        self._maxima = self._with_skipped_maxima(snapshot)
        self._moves += self._moves_of_written_waits(snapshot)
        self._files = files.added([self._files, snapshot.files])
        self._disks = disks.added([self._disks, snapshot.disks])

    def encoded(self, snapshot: Snapshot) -> TickRows:
        """Return the rows of the next tick. The cost follows what changed since the one before."""
        before, self._before = self._before, snapshot
        self.number += 1
        snapshot, self._maxima = self._with_skipped_maxima(snapshot), None
        if self.skipped:
            snapshot = replace(snapshot, lost=self._lost(snapshot))
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
        outliers = [*self._outliers, *snapshot.outliers]
        waits = [(one.wait.site, one.catalog) for one in outliers if one.wait]
        of_waits = {number for site, _ in waits for number in (site.kernel, site.user)}
        of_waits.update(*(catalog.wake(site.wake).stacks for site, catalog in waits))
        of_skipped = {number: stack for one in self._outliers for number, stack in one.catalog.stacks.items()}
        self._outliers = []
        of_files = files.added([self._files, snapshot.files])
        of_disks = disks.added([self._disks, snapshot.disks])
        self._files = self._disks = None
        of_io = ids_of([*(of_files.stacks if of_files else ()), *(of_disks.stacks if of_disks else ())])
        known = {**of_skipped, **snapshot.catalog.stacks} if of_skipped else snapshot.catalog.stacks
        frames, stacks, guessed = self._stacks_in(self._stacks_of(whole) | of_waits | of_io, known)
        return TickRows(
            (self.number, snapshot.taken_ns, snapshot.at_ns, blob, whole_blob),
            frames,
            stacks,
            self.names(is_whole),
            used,
            guessed,
            [(self.number, outlier_rows.encode(one)) for one in outliers],
            [(self.number, file_rows.encode(of_files))] if of_files else [],
            [(self.number, disk_rows.encode(of_disks))] if of_disks else [],
        )

    def _with_skipped_maxima(self, snapshot: Snapshot) -> Snapshot:
        return with_maxima_of(self._maxima, snapshot) if self._maxima else snapshot

    def _lost(self, snapshot: Snapshot) -> Mapping[str, int]:
        """Return what was lost, with the ticks that were skipped and those of their outliers that were not kept."""
        lost = {**snapshot.lost, "unrecorded": self.skipped}
        outliers = lost.get("outliers", 0) + self._lost_outliers
        return {**lost, "outliers": outliers} if outliers else lost

    def _moves_of_written_waits(self, snapshot: Snapshot) -> Iterable[Move]:
        """Return the moves of waits that began before the last written tick: it holds their time at the old site."""
        return Moves.of(snapshot.moves).begun_before(self._before.at_ns)

    def _entry(self, one: Change, whole: Change, catalog: Catalog) -> tick_rows.Entry:
        """Return the change `one` with the names that `whole` uses and the file lacks.

        `whole` is the change from nothing to the whole snapshot in whole ticks, otherwise `one` itself.
        """
        keys = _keys(whole)
        comms = {key: comm for key in keys if (comm := catalog.comms.get(key)) and self._comms.get(key) != comm}
        pids = _pids(whole)
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
        keys, pids = _keys(whole), _pids(whole)
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

    def _stacks_in(self, ids: set[int], known: Mapping[int, Stack]) -> tuple[Rows, Rows, Rows]:
        """Return the rows that the file lacks: frames, stacks, and the binaries that were unwound by guessing."""
        self._used |= ids
        frames: list[tuple[Any, ...]] = []
        stacks: list[tuple[Any, ...]] = []
        guessed: list[tuple[Any, ...]] = []
        for number in ids:
            if number < FIRST_STACK or number in self._stacks:
                continue
            stack = known.get(number)
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
            self.number,
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
                self.unnamed.add(frame)
        file, raw_name, name_bytes = map(file_format.text_bytes, (frame.file, frame.name, name))
        new.append((number, file, file_format.signed(frame.offset), raw_name, name_bytes, self.number))
        return number

    def names(self, every: bool) -> Rows:
        """Return names found since the last call; with `every`, also names that changed."""
        names = self._source.names
        if names.version == self._names_version and not every:
            return ()
        self._names_version = names.version
        found = {frame: names.of(frame) for frame in (self._provisional_names if every else self.unnamed)}
        better = {
            frame: name
            for frame, name in found.items()
            if name not in (self._provisional_names[frame], nameless(frame))
        }
        self._provisional_names |= better
        self.unnamed.difference_update(better)
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
        self.unnamed &= self._provisional_names.keys()
        return list(stacks), list(in_use), self.number

    def reasons(self) -> Rows:
        """Return why the functions of files have no names: (file, reason) of each file that has such a reason."""
        reasons = {frame.file: self._source.why_nameless(frame) for frame in self.unnamed}
        return [(file_format.text_bytes(file), reason) for file, reason in reasons.items() if reason]


def _pids(one: Change) -> set[int]:
    """Return the processes in a change: those that wait, and those that others wait for."""
    blockers = (blocker.pid for some in one.blockers.values() for blocker in some)
    return {*(key.pid for key in _keys(one)), *blockers} - {0}


def _keys(one: Change) -> set[ThreadKey]:
    """Return the threads in a change."""
    return {*map(ThreadKey._make, np.concatenate((one.threads.ids, one.waiting[:, :2])).tolist())}
