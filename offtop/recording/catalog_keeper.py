"""Keeps the Catalog of ticks that are read from a file or a stream within bounds: both are untrusted input."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, TypeVar, cast

from offtop.model.values.catalog import Catalog, ThreadKey
from offtop.model.values.io_stacks import ids_of
from offtop.model.values.snapshot import Snapshot
from offtop.model.values.stack import FIRST_STACK, Stack
from offtop.model.values.table import SITES, table_of
from offtop.model.values.wake import FIRST_WAKE
from offtop.recording.tick_rows import MOST_CALLS, Entry
from offtop.units import NS_PER_S

K = TypeVar("K")
V = TypeVar("V")
_TIDY_NS = 300 * NS_PER_S
"""How often unused names are forgotten."""
KEPT_NS = 15 * 60 * NS_PER_S
"""How long names are kept that a window may still use: longer than any History."""
_MOST_WAKES = 1 << 17
"""Most wakes in the Catalog: twice as many as a source has at once."""
_SPARE_PEERS = 8_192
"""Most peers that are kept although no wake refers to their object: a stream sends them again only if they change. A
source has at most half as many.
"""
_MOST_TEXT = 64 << 20
"""Most characters of details, wakes and peers: a name may be long, and any number of them may be new in a tick. Beyond
that, processes have no command lines, and if these are not enough, nothing of a tick has such names."""
_MOST_NAMES = 1 << 18
"""Most threads, processes and stacks in the Catalog, of each kind: a tick brings at most 220,000."""


class CatalogKeeper:
    """Adds the names of each tick to `catalog`, and forgets those that nothing uses any more."""

    def __init__(self, stack_of: Callable[[int], Stack], keep_ns: int = KEPT_NS) -> None:
        """`stack_of` returns a stack by its id. `keep_ns`: how long unused names are kept."""
        self.catalog = Catalog()
        self._stack_of, self._keep_ns = stack_of, keep_ns
        self._used_ns: dict[int, int] = {}
        """Stack -> `at_ns` of the last tick that used it."""
        self._woke_ns: dict[int, int] = {}
        """The same for wakes."""
        self._seen_ns: dict[ThreadKey, int] = {}
        """The same for threads."""
        self._tidied_ns = 0
        self._characters = 0
        """Those of details, wakes and peers; more than there are if some were replaced."""

    def add(self, entry: Entry, snapshot: Snapshot) -> bool:
        """Add what the tick `entry` names; `snapshot` is its snapshot. Return whether unused names were forgotten."""
        at_ns = entry.change.at_ns
        is_full = self._is_full(entry)
        is_tidied = is_full or at_ns - self._tidied_ns > _TIDY_NS
        if is_tidied:
            self._tidied_ns = at_ns
            self._forget(snapshot, at_ns if is_full else at_ns - self._keep_ns)
            self._forget_peers(0 if is_full else _SPARE_PEERS)
            catalog = self.catalog
            self._characters = _characters(catalog.details, catalog.wakes, catalog.peers)
        self._keep_names(self._within_room(entry))
        of_io = [stack for one in (snapshot.files, snapshot.disks) if one for stack in ids_of(one.stacks)]
        self._keep_stacks(entry, of_io)
        return is_tidied

    def _within_room(self, entry: Entry) -> Entry:
        """Return the tick without texts for which there is no room."""
        characters = _characters(entry.details, entry.wakes, entry.peers)
        if self._characters + characters > _MOST_TEXT:
            short = {pid: one._replace(cmdline="") for pid, one in entry.details.items()}
            entry = replace(entry, details=short)
            characters = _characters(entry.details, entry.wakes, entry.peers)
        if self._characters + characters > _MOST_TEXT:  # as in no recording that offtop wrote
            entry, characters = replace(entry, details={}, wakes={}, peers={}), 0
        self._characters += characters
        return entry

    def _is_full(self, entry: Entry) -> bool:
        """Return whether the Catalog may overflow: an untrusted file can set any clock, so that names never get old."""
        catalog = self.catalog
        names = (catalog.comms, entry.comms), (catalog.lives, entry.lives), (catalog.processes, entry.processes)
        return (
            len(catalog.stacks) >= _MOST_NAMES
            or len(catalog.wakes) + len(entry.wakes) > _MOST_WAKES
            or len(catalog.peers) + len(entry.peers) > _MOST_WAKES
            or any(len(known) + len(new) > _MOST_NAMES for known, new in (*names, (catalog.details, entry.details)))
        )

    def _keep_names(self, entry: Entry) -> None:
        catalog, change = self.catalog, entry.change
        _add(catalog.comms, entry.comms, _MOST_NAMES)
        _add(catalog.lives, entry.lives, _MOST_NAMES)
        _add(catalog.processes, entry.processes, _MOST_NAMES)
        _add(catalog.calls, entry.calls, MOST_CALLS)
        _add(catalog.wakes, entry.wakes, _MOST_WAKES)
        if entry.details:
            _add(catalog.details, entry.details, _MOST_NAMES)
            catalog.details_version += 1
        if entry.peers:
            _add(catalog.peers, entry.peers, _MOST_WAKES)
            catalog.peers_version += 1
        for ids in (change.threads.ids, change.waiting):
            present = map(ThreadKey._make, ids[:, :2].tolist())
            self._seen_ns.update((key, change.at_ns) for key in present if key in catalog.comms)
        self._woke_ns.update(dict.fromkeys(change.wakes & catalog.wakes.keys(), change.at_ns))

    def _keep_stacks(self, entry: Entry, of_io: Collection[int]) -> None:
        """Add the stacks of a tick. `of_io`: those of its file operations and requests to disks."""
        catalog = self.catalog
        wakes = [wake for number, wake in entry.wakes.items() if number in catalog.wakes]
        for stack in entry.change.stacks.union(of_io, *(wake.stacks for wake in wakes)):
            if stack >= FIRST_STACK and stack not in catalog.stacks and len(catalog.stacks) < _MOST_NAMES:
                catalog.stacks[stack] = self._stack_of(stack)
            if stack in catalog.stacks:
                self._used_ns[stack] = entry.change.at_ns

    def _forget(self, snapshot: Snapshot, before_ns: int) -> None:
        """Forget names that neither a total nor a window since `before_ns` uses."""
        catalog, table = self.catalog, table_of(SITES, snapshot.sites)
        sites = table.ids[table.present]
        wakes = {*sites[:, -1].tolist(), *snapshot.storms, *(one.site.wake for one in snapshot.waiting.values())}
        for wake in [one for one in catalog.wakes if one >= FIRST_WAKE and one not in wakes]:
            if self._woke_ns.get(wake, 0) < before_ns:
                del catalog.wakes[wake]
                self._woke_ns.pop(wake, None)
        stacks = {*sites[:, 2:4].ravel().tolist()}.union(*(wake.stacks for wake in catalog.wakes.values()))
        stacks |= {stack for one in snapshot.waiting.values() for stack in (*one.site[2:4], one.user)}
        keys = {*snapshot.threads, *snapshot.waiting}
        for stack in [one for one in catalog.stacks if one >= FIRST_STACK and one not in stacks]:
            if self._used_ns.get(stack, 0) < before_ns:
                del catalog.stacks[stack]
                self._used_ns.pop(stack, None)
        for key in [one for one in catalog.comms if one not in keys and self._seen_ns.get(one, 0) < before_ns]:
            del catalog.comms[key]
            self._seen_ns.pop(key, None)
        for key in [one for one in catalog.lives if one not in keys and one not in catalog.comms]:
            del catalog.lives[key]
        pids = {key.pid for key in catalog.comms}
        for table in (catalog.processes, catalog.details):
            for pid in [one for one in table if one not in pids]:
                del table[pid]

    def _forget_peers(self, most: int) -> None:
        """Forget the peers of objects that no wake refers to, except for the `most` newest ones."""
        catalog = self.catalog
        known = {wake.object for wake in catalog.wakes.values()}
        spare = [what for what in catalog.peers if what not in known]
        for what in spare[: max(0, len(spare) - most)]:
            del catalog.peers[what]


def _characters(*tables: Mapping[Any, object]) -> int:
    """Return how many characters the keys and values of these tables have."""
    return sum(_characters_in(item) for table in tables for item in table.items())


def _characters_in(value: object) -> int:
    if isinstance(value, str):
        return len(value)
    return sum(map(_characters_in, cast(tuple[object, ...], value))) if isinstance(value, tuple) else 0


def _add(known: dict[K, V], new: Mapping[K, V], most: int) -> None:
    """Add `new` to `known`, up to `most` entries in all."""
    if len(known) + len(new) <= most:
        known.update(new)
        return
    for key, value in new.items():
        if key in known or len(known) < most:
            known[key] = value
