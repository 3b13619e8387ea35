"""Encodes and decodes a tick of a recording: a JSON object of its small values, then its tables as packed arrays.

An older offtop ignores fields and arrays that it does not know, and a newer one reads recordings that lack them.
"""

import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple

import numpy as np

from offtop.model.values import columns
from offtop.model.values import histogram as log2
from offtop.model.values.blockers import ELSEWHERE, NO_PROCESS, VIA, Blocker
from offtop.model.values.catalog import Details, ThreadKey, ThreadLifetime
from offtop.model.values.moves import MOVE_FIELDS, NO_MOVES, READY, SINCE, UNTIL, Moves
from offtop.model.values.peers import Peers
from offtop.model.values.snapshot import EXITED, Bound, Cost, Filters, Holder, Machine, Memos, Sampling, Thinned
from offtop.model.values.stack import FILTERED, NO_STACK
from offtop.model.values.table import RUNNING_NS, SITES, THREADS, Ints, K, Kind, V, distinct, integers, summed_lanes
from offtop.model.values.wake import FIRST_WAKE, MODES, OFFCPU, Object, Storm, Wake
from offtop.model.values.within import NO_CALLS, Calls
from offtop.model.windows.change import BEGUN_FIELDS, WAITING_FIELDS, Change, Rows
from offtop.printable import printable
from offtop.recording import checked, wake_rows

_COSTS = 5
"""Number of fields of Cost in the first recordings."""
_LEVEL = 4
MOST_CALLS = 4096
"""Most named system calls: the native and the 32-bit table have 1,000 together."""
_MOST_CALL_NAME = 64
_MOST_PRIORITY = 99
"""Highest real-time priority: MAX_RT_PRIO - 1 (include/linux/sched/prio.h)."""
_MOST_TITLE = 512
"""Longest title of a process, in characters: a source reads no more."""
_MOST_WAITS = 1 << 50
"""Most waits that the histograms of a tick add and subtract: thirty years of a million waits a second. Sums of
thousands of ticks fit a lane of 64 bits."""
_SITE_IDS = SITES.width - 1
"""Number of site ids in the first recordings: all but the wake."""
_WAITING = WAITING_FIELDS - 1
"""Number of fields of a wait in progress in the first recordings: all but the wake."""
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Entry:
    """One tick of a recording."""

    change: Change
    comms: Mapping[ThreadKey, str] = field(default_factory=dict[ThreadKey, str])
    """Names of threads that are new or were renamed."""
    processes: Mapping[int, str] = field(default_factory=dict[int, str])
    details: Mapping[int, Details] = field(default_factory=dict[int, Details])
    lives: Mapping[ThreadKey, ThreadLifetime] = field(default_factory=dict[ThreadKey, ThreadLifetime])
    calls: Mapping[int, str] = field(default_factory=dict[int, str])
    wakes: Mapping[int, Wake] = field(default_factory=dict[int, Wake])
    peers: Mapping[Object, Peers] = field(default_factory=dict[Object, Peers])


class _Tables(NamedTuple):
    """The tables of a tick. Fields: see Change."""

    threads: Rows
    sites: Rows
    waiting: Ints
    ended: Ints
    begun: Ints
    moves: Moves


def encode(entry: Entry) -> bytes:
    fields = json.dumps(_fields(entry), separators=(",", ":")).encode()
    tables = columns.packed(_arrays(entry.change))
    return zlib.compress(b"".join((_LENGTH.pack(len(fields)), fields, tables)), _LEVEL)


def decode(blob: object, whole: bool = False) -> Entry:
    """Decode a tick. Raises ValueError if `blob` is not a tick or holds invalid values."""
    raw = checked.decompressed(blob)
    if len(raw) < _LENGTH.size:
        raise ValueError("a tick is cut off")
    end = _LENGTH.size + _LENGTH.unpack_from(raw)[0]
    if end > len(raw):
        raise ValueError("a tick is cut off")
    fields = checked.json_object(raw[_LENGTH.size : end])
    return _entry(fields, _change(fields, _tables(raw[end:], whole)))


def _fields(entry: Entry) -> dict[str, object]:
    """Return the JSON object of a tick."""
    change, filters = entry.change, encode_filters(entry.change.filters)
    fields: dict[str, object] = {
        "taken_ns": change.taken_ns,
        "at_ns": change.at_ns,
        "lost": dict(change.lost),
        "cost": list(change.cost[:_COSTS]),
        "mode": change.mode,
        "door": change.probe,
        "filters": filters["filters"],
        "comms": [[*key, comm] for key, comm in entry.comms.items()],
        "processes": [[pid, name] for pid, name in entry.processes.items()],
        "details": [[pid, *details[:4]] for pid, details in entry.details.items()],
        "cpus": [[pid, details.cpus] for pid, details in entry.details.items() if details.cpus],
        "realtime": [[pid, details.realtime] for pid, details in entry.details.items() if details.realtime],
        "lives": [[*key, *life] for key, life in entry.lives.items()],
        "calls": [[number, name] for number, name in entry.calls.items()],
        "machine": list(change.machine),
        "walk": [change.cost.scan_ns, change.cost.scan_every],
        "cgroup": filters["cgroup"],
        **wake_rows.encode_wakes(entry.wakes),
    }
    if entry.peers:
        fields["other_ends"] = [wake_rows.encode_peers(what, peers) for what, peers in entry.peers.items()]
    if change.filters.within:
        *sums, histogram, now, oldest_ns = change.calls
        fields["within"] = filters["within"]
        fields["calls_within"] = [*sums, now, oldest_ns, *log2.counts(histogram)]
    if change.sampling:
        fields["sampling"] = [int(one) for one in change.sampling]
    if any(change.cost.thinned):
        fields["thinned"] = [int(one) for one in change.cost.thinned]
    if any(change.cost.memos):
        fields["memos"] = list(change.cost.memos)
    if change.cost.kernel_check_every:
        fields["kernel_memos"] = [*change.cost.kernel_memos, change.cost.kernel_check_every]
    if change.storms:
        fields["storms"] = [[wake, *storm] for wake, storm in change.storms.items()]
    if change.holders:
        fields["holders"] = [[*key, *holder] for key, holder in change.holders.items()]
    if change.blockers:
        fields["blockers"] = [[*key, *map(list, some)] for key, some in change.blockers.items()]
    if change.titles:
        fields["titles"] = [[pid, title] for pid, title in change.titles.items()]
    return fields


def _arrays(change: Change) -> list[Ints]:
    """Return the tables as arrays: first those of the first recordings, then the others as they were added."""
    threads, sites = change.threads, change.sites
    first_threads = replace(threads, numbers=np.delete(threads.numbers, RUNNING_NS, axis=1))
    first_sites = replace(sites, ids=sites.ids[:, :_SITE_IDS], evicted=sites.evicted[:, :_SITE_IDS])
    waiting, waited_on = change.waiting[:, :_WAITING], change.waiting[:, _WAITING]
    wakes = np.concatenate((sites.ids[:, _SITE_IDS], sites.evicted[:, _SITE_IDS], waited_on))
    return [
        *_columns(first_threads),
        *_columns(first_sites),
        waiting,
        change.ended,
        threads.numbers[:, RUNNING_NS],
        change.begun,
        *([wakes] if wakes.any() or len(change.moves) else []),
        *([change.moves.rows] if len(change.moves) else []),
    ]


def _tables(raw: bytes, whole: bool) -> _Tables:
    arrays = iter(columns.unpacked(raw))
    threads = _rows(THREADS, arrays, THREADS.width, THREADS.numbers - 1)
    sites = _rows(SITES, arrays, _SITE_IDS, SITES.numbers)
    waiting, ended = np.pad(_matrix(arrays, _WAITING), ((0, 0), (0, 1))), _matrix(arrays, 2)
    threads = replace(threads, numbers=np.insert(threads.numbers, RUNNING_NS, _running(arrays, threads), axis=1))
    begun = _begun(arrays, waiting)
    _add_wakes(sites, waiting, next(arrays, None))
    moves = _moves(next(arrays, None))
    _check_numbers(threads, sites, waiting, begun, whole)
    return _Tables(threads, sites, waiting, ended, begun, moves)


def _change(fields: Mapping[str, object], tables: _Tables) -> Change:
    machine = [checked.integer(one) for one in checked.array(fields.get("machine", [0, 0, 0]), 3)]
    checked.check_range(np.array(machine), 0, checked.MOST_NS)
    holders = checked.arrays(fields.get("holders", []), 5)
    return Change(
        checked.time(fields.get("taken_ns")),
        checked.time(fields.get("at_ns")),
        tables.threads,
        tables.sites,
        tables.waiting,
        tables.begun,
        tables.ended,
        {checked.word(kind): checked.integer(n) for kind, n in checked.object_of(fields.get("lost")).items()},
        _cost(fields),
        Machine(*machine),
        mode if (mode := checked.word(fields.get("mode"))) in MODES else OFFCPU,
        checked.word(fields.get("door")),
        decode_filters(fields),
        _storms(fields.get("storms", [])),
        tables.moves,
        _calls_within(fields.get("calls_within")),
        {
            _thread(pid, tid): Holder(checked.identity(of), checked.identity(by), checked.short_name(comm))
            for pid, tid, of, by, comm in holders
        },
        _sampling(fields.get("sampling")),
        dict(_blockers(checked.array(row)) for row in checked.array(fields.get("blockers", []))),
        {checked.identity(pid): _title(title) for pid, title in checked.arrays(fields.get("titles", []), 2)},
    )


def _entry(fields: Mapping[str, object], change: Change) -> Entry:
    """Return the change with the names that are new in its tick."""
    cpus = {checked.integer(pid): checked.name(text) for pid, text in checked.arrays(fields.get("cpus", []), 2)}
    realtime = {
        checked.integer(pid): checked.integer(one) for pid, one in checked.arrays(fields.get("realtime", []), 2)
    }
    checked.check_range(np.array([*realtime.values()], np.int64), 0, _MOST_PRIORITY)
    return Entry(
        change,
        {_thread(pid, tid): checked.short_name(comm) for pid, tid, comm in checked.arrays(fields.get("comms"), 3)},
        {checked.integer(pid): checked.short_name(name) for pid, name in checked.arrays(fields.get("processes"), 2)},
        {
            checked.integer(pid): Details(
                *(checked.name(user), checked.name(cmdline), checked.name(cgroup), checked.integer(uid)),
                *(cpus.get(checked.integer(pid), ""), realtime.get(checked.integer(pid), 0)),
            )
            for pid, user, cmdline, cgroup, uid in checked.arrays(fields.get("details"), 5)
        },
        {
            _thread(pid, tid): ThreadLifetime(checked.integer(from_ns), checked.integer(to_ns))
            for pid, tid, from_ns, to_ns in checked.arrays(fields.get("lives", []), 4)
        },
        _calls(fields.get("calls", [])),
        wake_rows.decode_wakes(fields),
        dict(wake_rows.decode_peers(*row) for row in checked.arrays(fields.get("other_ends", []), 3)),
    )


def _thread(pid: object, tid: object) -> ThreadKey:
    return ThreadKey(checked.integer(pid), checked.integer(tid))


def _title(value: object) -> str:
    title = checked.text(value)
    if len(title) > _MOST_TITLE:
        raise ValueError("a title is too long")
    return title


def _cost(fields: Mapping[str, object]) -> Cost:
    cost = [float(checked.number(value)) for value in checked.array(fields.get("cost"), _COSTS)]
    scan_ns, scan_every = map(checked.integer, checked.array(fields.get("walk", [-1, 1]), 2))
    memos = _counts(fields.get("memos", [0] * len(Memos())), len(Memos()))
    *kernel_memos, check_every = _counts(fields.get("kernel_memos", [0] * (len(Memos()) + 1)), len(Memos()) + 1)
    return Cost(
        *(cost[0], int(cost[1]), cost[2], cost[3], int(cost[4]), scan_ns, scan_every, _thinned(fields)),
        memos=Memos(*memos),
        kernel_memos=Memos(*kernel_memos),
        kernel_check_every=check_every,
    )


def encode_filters(filters: Filters) -> dict[str, object]:
    """Encode filters as fields of a JSON object."""
    fields: dict[str, object] = {
        "filters": [
            list(filters.pids),
            list(filters.tids),
            filters.who,
            filters.states,
            filters.min_ns,
            filters.max_ns,
        ],
        "cgroup": filters.cgroup,
    }
    if filters.within:
        fields["within"] = filters.within
    return fields


def decode_filters(fields: Mapping[str, object]) -> Filters:
    """Decode what `encode_filters` encoded. Raises ValueError."""
    pids, tids, who, states, min_ns, max_ns = checked.array(fields.get("filters"), 6)
    return Filters(
        tuple(map(checked.integer, checked.array(pids))),
        tuple(map(checked.integer, checked.array(tids))),
        checked.word(who),
        checked.integer(states),
        checked.integer(min_ns),
        checked.integer(max_ns),
        checked.name(fields.get("cgroup", "")),
        checked.name(fields.get("within", "")),
    )


def _sampling(value: object) -> Sampling | None:
    if value is None:
        return None
    numbers = [checked.integer(one) for one in checked.array(value)]
    sample_count, guessed_ns, own_only, lost_known, longest_ns, container_only = [*numbers, *Sampling()[len(numbers) :]]
    checked.check_range(np.array([sample_count, guessed_ns, longest_ns]), 0, checked.MOST_NS)
    return Sampling(sample_count, guessed_ns, bool(own_only), bool(lost_known), longest_ns, bool(container_only))


def _thinned(fields: Mapping[str, object]) -> Thinned:
    if "thinned" not in fields:
        return Thinned()
    thinned = Thinned._make(_counts(fields["thinned"], len(Thinned())))
    return thinned._replace(is_over=bool(thinned.is_over))


def _counts(value: object, length: int) -> list[int]:
    """Decode an array of so many numbers that are not negative. Raises ValueError."""
    numbers = [checked.integer(one) for one in checked.array(value, length)]
    checked.check_range(np.array(numbers), 0, checked.MOST_NS)
    return numbers


def _blockers(row: Sequence[object]) -> tuple[ThreadKey, tuple[Blocker, ...]]:
    """Decode a thread and what must act to end its wait, without kinds that only a newer offtop knows."""
    pid, tid = checked.array(row[:2], 2)
    some = [checked.array(one, len(Blocker._fields)) for one in row[2:]]
    return ThreadKey(checked.identity(pid), checked.identity(tid)), tuple(
        Blocker(checked.identity(of), checked.identity(by), via, is_exact is True, checked.name(what))
        for of, by, via, is_exact, what in some
        if checked.word(via) in VIA and (of != ELSEWHERE or (via in NO_PROCESS and what))
    )


def _storms(value: object) -> dict[int, Storm]:
    found = {
        checked.identity(wake): Storm(*map(checked.integer, rest))
        for wake, *rest in checked.arrays(value, 1 + len(Storm._fields))
    }
    checked.check_range(np.array([*found.values()], np.int64), 0, checked.MOST_NS)
    if min(found, default=FIRST_WAKE) < FIRST_WAKE:
        raise ValueError("storms have a reserved wake number")
    return found


def _calls_within(value: object) -> Calls:
    if value is None:
        return NO_CALLS
    numbers = [checked.integer(one) for one in checked.array(value, len(Calls._fields) - 1 + log2.LANES)]
    checked.check_range(np.array(numbers), 0, checked.MOST_NS)
    *sums, now, oldest_ns = numbers[: len(Calls._fields) - 1]
    lanes = integers([numbers[-log2.LANES :]], log2.LANES)
    return Calls._make((*sums, log2.of_lanes(lanes)[0], now, oldest_ns))


def _calls(value: object) -> dict[int, str]:
    found = {checked.integer(number): checked.text(name) for number, name in checked.arrays(value, 2)}
    if len(found) > MOST_CALLS or max(map(len, found.values()), default=0) > _MOST_CALL_NAME:
        raise ValueError("too many system calls")
    checked.check_range(np.array([*found], np.int64), 0, checked.MOST_ID)
    return {number: printable(name) for number, name in found.items()}


def _columns(rows: Rows) -> list[Ints]:
    return [rows.ids, rows.numbers, *columns.places_of(rows.counts), rows.evicted, rows.longest_ns]


def _running(arrays: Iterator[Ints], threads: Rows) -> Ints:
    """Return the running time of `threads`; the first recordings have none."""
    found = next(arrays, None)
    if found is None:
        return np.zeros(len(threads.ids), np.int64)
    if found.shape != (len(threads.ids),):
        raise ValueError("running times do not match the threads")
    return found


def _begun(arrays: Iterator[Ints], waiting: Ints) -> Ints:
    found = next(arrays, None)
    if found is None:
        return np.zeros((0, BEGUN_FIELDS), np.int64)
    if found.shape != (len(waiting), BEGUN_FIELDS):
        raise ValueError("wait beginnings do not match the waits")
    return found


def _add_wakes(sites: Rows, waiting: Ints, found: Ints | None) -> None:
    """Fill in the wakes; the first recordings have none, or none for waits in progress."""
    if found is None:
        return
    site_count = len(sites.ids) + len(sites.evicted)
    if found.shape == (site_count,):
        found = np.pad(found, (0, len(waiting)))
    if found.shape != (site_count + len(waiting),):
        raise ValueError("wakes do not match the sites")
    sites.ids[:, _SITE_IDS], sites.evicted[:, _SITE_IDS], waiting[:, _WAITING] = np.split(
        found, [len(sites.ids), site_count]
    )


def _moves(found: Ints | None) -> Moves:
    if found is None:
        return NO_MOVES
    if found.ndim != 2 or found.shape[1] != MOVE_FIELDS or len(found) > columns.MOST_ROWS:
        raise ValueError("not a table of moves")
    checked.check_range(found[:, :SINCE], 0, checked.MOST_ID)
    checked.check_range(found[:, SINCE:], 0, checked.MOST_NS)
    checked.check_range(found[:, UNTIL] - found[:, SINCE] - found[:, READY], 0, checked.MOST_NS)
    return Moves(found)


def _rows(kind: Kind[K, V], arrays: Iterator[Ints], width: int, numbers: int) -> Rows:
    """Read a table whose keys store only the first `width` ids; the others are 0."""

    def keys() -> Ints:
        return np.pad(_matrix(arrays, width), ((0, 0), (0, kind.width - width)))

    table = columns.to_table(kind, chain((keys(),), arrays), numbers)
    evicted, longest_ns = keys(), next(arrays, None)
    if longest_ns is None:
        raise ValueError("the longest waits are missing")
    if longest_ns.ndim != 1 or len(longest_ns) not in (0, len(table.ids)):
        raise ValueError("longest waits do not match the table")
    return Rows(table.ids, table.numbers, table.counts, evicted, longest_ns)


def _matrix(arrays: Iterator[Ints], width: int) -> Ints:
    found = next(arrays, None)
    if found is None or found.ndim != 2 or found.shape[1] != width or len(found) > columns.MOST_ROWS:
        raise ValueError("not a table of ids")
    return found


def _check_numbers(threads: Rows, sites: Rows, waiting: Ints, begun: Ints, whole: bool) -> None:
    """Raise ValueError for ids, counts and times out of range: sums of them would overflow or mean nothing."""
    for rows in (threads, sites):
        checked.check_range(rows.ids, 0, checked.MOST_ID)
        checked.check_range(rows.evicted, 0, checked.MOST_ID)
        checked.check_range(rows.longest_ns, 0, checked.MOST_NS)
        checked.check_range(rows.numbers, -checked.MOST_NS, checked.MOST_NS)
        checked.check_range(rows.counts[:, 2], -_MOST_WAITS, _MOST_WAITS)
        if np.abs(rows.counts[:, 2]).sum(dtype=np.float64) > _MOST_WAITS:
            raise ValueError("too many waits")
        # Rows of EXITED can be negative: the earlier totals of evicted threads are subtracted there (window.finished).
        # Together with those of its own row, which has what these had in the end, they are not.
        is_of_exited = rows.ids[rows.counts[:, 0], 1] == EXITED.tid
        of_others = rows.counts[~is_of_exited]
        checked.check_range(of_others[:, 2], 0, _MOST_WAITS)
        if rows.counts[:, 2].min(initial=0) < 0 and _sums(rows, rows.counts[is_of_exited]).min(initial=0) < 0:
            raise ValueError("waits of exited threads decrease")
        if whole and len(np.unique(rows.ids, axis=0)) != len(rows.ids):
            raise ValueError("a thread or site occurs twice in a whole tick")
        if len(rows.longest_ns) and not whole:
            raise ValueError("a change has longest waits")
    checked.check_range(waiting[:, :2], 0, checked.MOST_ID)
    checked.check_range(waiting[:, 2:4], FILTERED, checked.MOST_ID)
    checked.check_range(waiting[:, 4:_WAITING], 0, checked.MOST_NS)
    checked.check_range(waiting[:, _WAITING], 0, checked.MOST_ID)
    checked.check_range(begun[:, 0], 0, checked.MOST_NS)
    checked.check_range(begun[:, 1], 0, max(Bound))
    checked.check_range(begun[:, 2], 0, (1 << 32) - 1)
    checked.check_range(begun[:, 3], -2 - checked.MOST_ID, checked.MOST_ID)
    checked.check_range(begun[:, -1], NO_STACK, checked.MOST_ID)


def _sums(rows: Rows, counts: Ints) -> Ints:
    """Return the sums of `counts`, some lanes of `rows`, by key and lane, without those that are 0."""
    _, which = distinct(rows.ids[counts[:, 0]])
    return summed_lanes(which * log2.LANES + counts[:, 1], counts[:, 2])[1]
