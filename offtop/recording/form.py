"""The recording format: an SQLite database with one compressed change per tick, and each stack once.

Once a minute a tick also holds the whole snapshot, so that a replay can start there. The tables are part of the format:
a file with other tables is refused. Untrusted names are stored as bytes, since they need not be UTF-8.
"""

import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from offtop.model.values import columns
from offtop.model.values import histogram as log2
from offtop.model.values.blockers import ANSWER, ELSEWHERE, VIA, Blocker
from offtop.model.values.catalog import Details, ThreadKey, ThreadLifetime
from offtop.model.values.moves import MOVE_FIELDS, NO_MOVES, READY, SINCE, UNTIL, Moves
from offtop.model.values.peers import NAMED, ROLES, Peers, PeerSide, Process
from offtop.model.values.snapshot import EXITED, Bound, Cost, Filters, Holder, Machine, Sampling, Thinned
from offtop.model.values.stack import (
    CLOSED,
    DROPPED,
    ENDS,
    FILTERED,
    GONE,
    LINKED,
    NO_STACK,
    UNREAD,
    WHOLE,
    Frame,
    Stack,
)
from offtop.model.values.table import RUNNING_NS, SITES, THREADS, Ints, K, Kind, V, integers
from offtop.model.values.wake import (
    CHAIN_ENDS,
    FIRST_WAKE,
    KINDS,
    MODES,
    MOST_DEPTH,
    NOBODY,
    OFFCPU,
    SOFTIRQ,
    Link,
    Object,
    Storm,
    Wake,
    Waker,
)
from offtop.model.values.within import NO_CALLS, Calls
from offtop.model.windows.change import BEGUN_FIELDS, WAITING_FIELDS, Change, Rows
from offtop.printable import printable
from offtop.recording import checked

APPLICATION_ID = 0x6F667470
"""`oftp`, where file(1) and SQLite expect it."""
BESIDE = ("-wal", "-shm", "-journal")
"""Suffixes of the files that SQLite creates beside a database."""
ABOUT = {"kernel": "kernel", "switch-in probe": "door", "run-queue time": "run-queue time"}
"""What a source says about itself → the key in `about` under which it is stored."""
NOTICE = "notice "
"""Prefix of the keys in `about` under which what the recording machine lacked is stored, a sentence each."""
FORMAT = 2
"""Stored as user_version. A newer format is refused; an older offtop ignores what is added to this one."""
TABLES = {
    "about": "CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "frames": "CREATE TABLE frames (id INTEGER PRIMARY KEY, file BLOB NOT NULL, offset INTEGER NOT NULL, "
    "name BLOB NOT NULL, told BLOB NOT NULL, used INTEGER NOT NULL)",
    "stacks": "CREATE TABLE stacks (id INTEGER PRIMARY KEY, frames BLOB NOT NULL, tail INTEGER NOT NULL, "
    "entry INTEGER NOT NULL, category TEXT NOT NULL, used INTEGER NOT NULL)",
    "ticks": "CREATE TABLE ticks (number INTEGER PRIMARY KEY, taken_ns INTEGER NOT NULL, at_ns INTEGER NOT NULL, "
    "change BLOB NOT NULL, whole BLOB)",
    "ticks_taken": "CREATE INDEX ticks_taken ON ticks (taken_ns)",
    "wholes": "CREATE INDEX wholes ON ticks (number) WHERE whole IS NOT NULL",
}
"""`frames.told` is the name of the frame as known at the end; `used` is the last whole tick that still used the row."""
LATER_TABLES = {
    "guessed": "CREATE TABLE guessed (stack INTEGER PRIMARY KEY, file BLOB NOT NULL)",
    "nameless": "CREATE TABLE nameless (file BLOB PRIMARY KEY, reason TEXT NOT NULL)",
    "outliers": "CREATE TABLE outliers (number INTEGER NOT NULL, outlier BLOB NOT NULL)",
    "files": "CREATE TABLE files (number INTEGER PRIMARY KEY, activity BLOB NOT NULL)",
}
"""Tables that the first recordings of this format lack.

`guessed`: Stack.guessed_in. `nameless`: why the functions of a file have no name, as known at the end. `outliers`: see
recording/outlier_rows.py, by the number of their tick. `files`: see recording/file_rows.py, the same.
"""

_COSTS = 5
"""Number of fields of Cost in the first recordings."""
_LEVEL = 4
MOST_CALLS = 4096
"""Most named system calls: the native and the 32-bit table have 1,000 together."""
_MOST_CALL_NAME = 64
_SITE_IDS = SITES.width - 1
"""Number of site ids in the first recordings: all but the wake."""
_WAITING = WAITING_FIELDS - 1
"""Number of fields of a wait in progress in the first recordings."""
_OBJECT = 3
"""Number of fields of Object that are stored with the wake."""
_WAKE, _LINK = 6, 3
"""Number of values of a wake before its links, and of each link."""
_LENGTH = struct.Struct("<I")
_END, _UNSURE, _OTHER = "end-", "-unsure", "other"


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


def signed(offset: int) -> int:
    """Return `offset` as the signed 64-bit integer that SQLite stores: kernel addresses exceed its range."""
    return offset - (1 << 64) if offset >> 63 else offset


def unsigned(offset: int) -> int:
    return offset & (1 << 64) - 1


def text_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def text_of(raw: object) -> str:
    """Decode a stored string. Raises ValueError if `raw` is not bytes."""
    if not isinstance(raw, bytes):
        raise ValueError("not the bytes of a string")
    return raw.decode("utf-8", "surrogatepass")


def encode(entry: Entry) -> bytes:
    change = entry.change
    words = {
        "taken_ns": change.taken_ns,
        "at_ns": change.at_ns,
        "lost": dict(change.lost),
        "cost": list(change.cost[:_COSTS]),
        "mode": change.mode,
        "door": change.probe,
        "filters": [
            list(change.filters.pids),
            list(change.filters.tids),
            change.filters.who,
            change.filters.states,
            change.filters.min_ns,
            change.filters.max_ns,
        ],
        "comms": [[*key, comm] for key, comm in entry.comms.items()],
        "processes": [[pid, name] for pid, name in entry.processes.items()],
        "details": [[pid, *details] for pid, details in entry.details.items()],
        "lives": [[*key, *life] for key, life in entry.lives.items()],
        "calls": [[number, name] for number, name in entry.calls.items()],
        "machine": list(change.machine),
        "walk": [change.cost.scan_ns, change.cost.scan_every],
        "cgroup": change.filters.cgroup,
        **wake_words(entry.wakes),
    }
    if entry.peers:
        words["other_ends"] = [_peers_words(what, peers) for what, peers in entry.peers.items()]
    if change.filters.within:
        *sums, histogram, now, oldest_ns = change.calls
        words["within"] = change.filters.within
        words["calls_within"] = [*sums, now, oldest_ns, *log2.counts(histogram)]
    if change.sampling:
        words["sampling"] = [int(one) for one in change.sampling]
    if change.cost.thinned.since_ns:
        words["thinned"] = [int(one) for one in change.cost.thinned]
    if change.storms:
        words["storms"] = [[wake, *storm] for wake, storm in change.storms.items()]
    if change.holders:
        words["holders"] = [[*key, *holder] for key, holder in change.holders.items()]
    if change.blockers:
        words["blockers"] = [[*key, *map(list, some)] for key, some in change.blockers.items()]
    if change.titles:
        words["titles"] = [[pid, title] for pid, title in change.titles.items()]
    head = json.dumps(words, separators=(",", ":")).encode()
    threads = change.threads
    first = replace(threads, numbers=np.delete(threads.numbers, RUNNING_NS, axis=1))
    sites = change.sites
    places = replace(sites, ids=sites.ids[:, :_SITE_IDS], evicted=sites.evicted[:, :_SITE_IDS])
    waiting, waited_on = change.waiting[:, :_WAITING], change.waiting[:, _WAITING]
    wakes = np.concatenate((sites.ids[:, _SITE_IDS], sites.evicted[:, _SITE_IDS], waited_on))
    tables = columns.packed(
        [
            *_columns(first),
            *_columns(places),
            waiting,
            change.ended,
            threads.numbers[:, RUNNING_NS],
            change.begun,
            *([wakes] if wakes.any() or len(change.moves) else []),
            *([change.moves.rows] if len(change.moves) else []),
        ],
    )
    return zlib.compress(b"".join((_LENGTH.pack(len(head)), head, tables)), _LEVEL)


def decode(blob: object, whole: bool = False) -> Entry:
    """Decode a tick. Raises ValueError if `blob` is not a tick or holds invalid values."""
    raw = checked.decompressed(blob)
    if len(raw) < _LENGTH.size:
        raise ValueError("a tick is cut off")
    length = _LENGTH.unpack_from(raw)[0]
    end = _LENGTH.size + length
    if end > len(raw):
        raise ValueError("a tick is cut off")
    words = checked.words(raw[_LENGTH.size : end])
    each = iter(columns.unpacked(raw[end:]))
    threads = _rows(THREADS, each, THREADS.width, THREADS.numbers - 1)
    sites = _rows(SITES, each, _SITE_IDS, SITES.numbers)
    waiting, ended = np.pad(_matrix(each, _WAITING), ((0, 0), (0, 1))), _matrix(each, 2)
    threads = replace(threads, numbers=np.insert(threads.numbers, RUNNING_NS, _running(each, threads), axis=1))
    begun = _begun(each, waiting)
    _add_wakes(sites, waiting, next(each, None))
    moves = _moves(next(each, None))
    _check_numbers(threads, sites, waiting, begun, whole)
    pids, tids, who, states, min_ns, max_ns = checked.array(words.get("filters"), 6)
    cost = [float(checked.number(value)) for value in checked.array(words.get("cost"), _COSTS)]
    scan_ns, scan_every = map(checked.integer, checked.array(words.get("walk", [-1, 1]), 2))
    machine = [checked.integer(one) for one in checked.array(words.get("machine", [0, 0, 0]), 3)]
    checked.within(np.array(machine), 0, checked.MOST_NS)
    return Entry(
        Change(
            checked.integer(words.get("taken_ns")),
            checked.integer(words.get("at_ns")),
            threads,
            sites,
            waiting,
            begun,
            ended,
            {checked.word(kind): checked.integer(n) for kind, n in checked.object_of(words.get("lost")).items()},
            Cost(cost[0], int(cost[1]), cost[2], cost[3], int(cost[4]), scan_ns, scan_every, _thinned(words)),
            Machine(*machine),
            mode if (mode := checked.word(words.get("mode"))) in MODES else OFFCPU,
            checked.word(words.get("door")),
            Filters(
                tuple(map(checked.integer, checked.array(pids))),
                tuple(map(checked.integer, checked.array(tids))),
                checked.word(who),
                checked.integer(states),
                checked.integer(min_ns),
                checked.integer(max_ns),
                checked.text(words.get("cgroup", "")),
                checked.name(words.get("within", "")),
            ),
            _storms(words.get("storms", [])),
            moves,
            _calls_within(words.get("calls_within")),
            {
                ThreadKey(checked.integer(pid), checked.integer(tid)): Holder(
                    checked.identity(of), checked.identity(by), checked.name(comm)
                )
                for pid, tid, of, by, comm in checked.arrays(words.get("holders", []), 5)
            },
            _sampling(words.get("sampling")),
            dict(_blockers(checked.array(row)) for row in checked.array(words.get("blockers", []))),
            {checked.identity(pid): checked.name(title) for pid, title in checked.arrays(words.get("titles", []), 2)},
        ),
        {
            ThreadKey(checked.integer(pid), checked.integer(tid)): checked.text(comm)
            for pid, tid, comm in checked.arrays(words.get("comms"), 3)
        },
        {checked.integer(pid): checked.text(name) for pid, name in checked.arrays(words.get("processes"), 2)},
        {
            checked.integer(pid): Details(
                checked.text(user), checked.text(cmdline), checked.text(cgroup), checked.integer(uid)
            )
            for pid, user, cmdline, cgroup, uid in checked.arrays(words.get("details"), 5)
        },
        {
            ThreadKey(checked.integer(pid), checked.integer(tid)): ThreadLifetime(
                checked.integer(from_ns), checked.integer(to_ns)
            )
            for pid, tid, from_ns, to_ns in checked.arrays(words.get("lives", []), 4)
        },
        _calls(words.get("calls", [])),
        wakes_of(words),
        dict(_decode_peers(*row) for row in checked.arrays(words.get("other_ends", []), 3)),
    )


def _sampling(value: object) -> Sampling | None:
    if value is None:
        return None
    numbers = [checked.integer(one) for one in checked.array(value)]
    sample_count, guessed_ns, own_only, lost_known, longest_ns, container_only = [*numbers, *Sampling()[len(numbers) :]]
    checked.within(np.array([sample_count, guessed_ns, longest_ns]), 0, checked.MOST_NS)
    return Sampling(sample_count, guessed_ns, bool(own_only), bool(lost_known), longest_ns, bool(container_only))


def _thinned(words: Mapping[str, object]) -> Thinned:
    if "thinned" not in words:
        return Thinned()
    numbers = [checked.integer(one) for one in checked.array(words["thinned"], len(Thinned()))]
    checked.within(np.array(numbers), 0, checked.MOST_NS)
    thinned = Thinned._make(numbers)
    return thinned._replace(is_over=bool(thinned.is_over))


def _blockers(row: Sequence[object]) -> tuple[ThreadKey, tuple[Blocker, ...]]:
    """Decode a thread and who must act to end its wait; how a newer offtop knows it may be unknown."""
    pid, tid = checked.array(row[:2], 2)
    some = [checked.array(one, len(Blocker._fields)) for one in row[2:]]
    return ThreadKey(checked.identity(pid), checked.identity(tid)), tuple(
        Blocker(checked.identity(of), checked.identity(by), via, is_exact is True, checked.name(what))
        for of, by, via, is_exact, what in some
        if checked.word(via) in VIA and (of != ELSEWHERE or (via == ANSWER and what))
    )


def _peers_words(what: Object, peers: Peers) -> list[object]:
    """Encode an object, the processes at its other end, and what it watches (of an epoll)."""
    sides = [[side.role, side.total, *(value for one in side.processes for value in one)] for side in peers.sides]
    return [list(what), sides, [value for member in peers.members for value in member]]


def _decode_peers(what: object, sides: object, members: object) -> tuple[Object, Peers]:
    kind, name, pid, local, peer, state = checked.array(what, len(Object._fields))
    flat = checked.array(members)
    return (
        Object(
            checked.name(kind),
            checked.name(name),
            checked.identity(pid),
            checked.name(local),
            checked.name(peer),
            checked.name(state),
        ),
        Peers(
            tuple(side for one in map(checked.array, checked.array(sides)) if (side := _side(one)).role in ROLES),
            tuple(
                (checked.name(kind), checked.identity(count)) for kind, count in zip(flat[::2], flat[1::2], strict=True)
            ),
        ),
    )


def _side(words: Sequence[object]) -> PeerSide:
    role, total = checked.array(words[:2], 2)
    some = zip(words[2::2], words[3::2], strict=True)
    return PeerSide(
        checked.word(role),
        tuple(Process(checked.identity(pid), checked.name(comm)) for pid, comm in some)[:NAMED],
        checked.identity(total),
    )


def wake_words(wakes: Mapping[int, Wake]) -> dict[str, object]:
    """Encode wakes: each waker once, referred to by number; each wake as one row with its links appended."""
    if not wakes:
        return {}
    numbers: dict[Waker, int] = {}

    def number_of(waker: Waker) -> int:
        return numbers.setdefault(waker, len(numbers))

    rows = [
        [number, number_of(wake.waker), *wake.object[:_OBJECT], wake.end]
        + [value for link in wake.links for value in (link.kernel, link.user, number_of(link.waker))]
        for number, wake in wakes.items()
    ]
    ends = [[number, *rest] for number, wake in wakes.items() if any(rest := wake.object[_OBJECT:])]
    return {"wakers": [list(waker) for waker in numbers], "wakes": rows, **({"ends": ends} if ends else {})}


def wakes_of(words: Mapping[str, object]) -> dict[int, Wake]:
    """Decode what `wake_words` encoded. Raises ValueError."""
    return _with_addresses(_wakes(words.get("wakers", []), words.get("wakes", [])), words.get("ends", []))


def _wakes(wakers: object, wakes: object) -> dict[int, Wake]:
    known = [_waker(*one) for one in checked.arrays(wakers, len(Waker._fields))]
    found: dict[int, Wake] = {}
    for row in map(checked.array, checked.array(wakes)):
        number, waker, kind, name, pid, end = checked.array(row[:_WAKE], _WAKE)
        links = row[_WAKE:]
        if checked.text(end) not in CHAIN_ENDS:
            raise ValueError("a waker chain has an unknown end")
        if len(links) % _LINK or len(links) > _LINK * MOST_DEPTH:
            raise ValueError("not the links of a waker chain")
        found[checked.identity(number)] = Wake(
            _one_of(known, waker),
            Object(checked.name(kind), checked.name(name), checked.identity(pid)),
            tuple(
                Link(checked.identity(kernel), checked.identity(user), _one_of(known, by))
                for kernel, user, by in zip(links[::3], links[1::3], links[2::3], strict=True)
            ),
            end,
        )
    if min(found, default=FIRST_WAKE) < FIRST_WAKE:
        raise ValueError("a wake has a reserved number")
    return found


def _with_addresses(wakes: dict[int, Wake], ends: object) -> dict[int, Wake]:
    """Add the addresses and state of the objects that were waited on."""
    for number, local, peer, state in checked.arrays(ends, 1 + len(Object._fields) - _OBJECT):
        wake = wakes.get(checked.identity(number))
        if wake is None:
            raise ValueError("addresses without a wake")
        what = wake.object._replace(local=checked.name(local), peer=checked.name(peer), state=checked.name(state))
        wakes[checked.identity(number)] = wake._replace(object=what)
    return wakes


def _waker(*values: object) -> Waker:
    kind, name, pid, tid, comm, via, kernel, user = values
    return Waker(
        kind if isinstance(kind, str) and kind in KINDS else NOBODY,
        checked.name(name),
        checked.identity(pid),
        checked.identity(tid),
        checked.name(comm),
        SOFTIRQ if via == SOFTIRQ else "",
        checked.identity(kernel),
        checked.identity(user),
    )


def _one_of(wakers: Sequence[Waker], number: object) -> Waker:
    if checked.identity(number) >= len(wakers):
        raise ValueError("a waker is missing")
    return wakers[checked.integer(number)]


def _storms(value: object) -> dict[int, Storm]:
    found = {
        checked.identity(wake): Storm(*map(checked.integer, rest))
        for wake, *rest in checked.arrays(value, 1 + len(Storm._fields))
    }
    checked.within(np.array([*found.values()], np.int64), 0, checked.MOST_NS)
    if min(found, default=FIRST_WAKE) < FIRST_WAKE:
        raise ValueError("storms have a reserved wake number")
    return found


def _calls_within(value: object) -> Calls:
    if value is None:
        return NO_CALLS
    numbers = [checked.integer(one) for one in checked.array(value, len(Calls._fields) - 1 + log2.LANES)]
    checked.within(np.array(numbers), 0, checked.MOST_NS)
    *sums, now, oldest_ns = numbers[: len(Calls._fields) - 1]
    lanes = integers([numbers[-log2.LANES :]], log2.LANES)
    return Calls._make((*sums, log2.of_lanes(lanes)[0], now, oldest_ns))


def _calls(value: object) -> dict[int, str]:
    found = {checked.integer(number): checked.text(name) for number, name in checked.arrays(value, 2)}
    if len(found) > MOST_CALLS or max(map(len, found.values()), default=0) > _MOST_CALL_NAME:
        raise ValueError("too many system calls")
    checked.within(np.array([*found], np.int64), 0, checked.MOST_ID)
    return {number: printable(name) for number, name in found.items()}


def encode_frames(ids: Sequence[int]) -> bytes:
    """Encode the frames of a stack, leaf first."""
    return struct.pack(f"<{len(ids)}I", *ids)


def decode_frames(raw: object) -> tuple[int, ...]:
    """Decode what `encode_frames` encoded. Raises ValueError."""
    if not isinstance(raw, bytes) or len(raw) % 4:
        raise ValueError("not the frames of a stack")
    return struct.unpack(f"<{len(raw) // 4}I", raw)


def category_of(stack: Stack) -> str:
    """Return the category of a kernel stack; for a user stack, how it ends and whether it is unsure."""
    if not _is_user_stack(stack.frames):
        return stack.category
    return f"{_END}{stack.end}{_UNSURE if stack.is_unsure else ''}"


def _is_user_stack(frames: Sequence[Frame]) -> bool:
    """Return whether these are user frames: kernel frames have no offset."""
    return any(frame.offset or frame.file in (GONE, CLOSED, UNREAD, DROPPED) for frame in frames)


def stack_of(frames: Sequence[Frame], tail: object, entry: object, category: object) -> Stack:
    """Build a stack from its columns. Raises ValueError if they are invalid."""
    # The first recordings store no end: their user stacks were unwound along frame pointers.
    word, end, unsure = checked.word(category), LINKED if _is_user_stack(frames) else WHOLE, False
    if word.startswith(_END):
        unsure = word.endswith(_UNSURE)
        word, end = _OTHER, word.removeprefix(_END).removesuffix(_UNSURE)
        if end not in ENDS:
            raise ValueError("a stack has an unknown end")
    made = Stack(tuple(frames), checked.integer(tail), word, checked.integer(entry), end, unsure)
    if not 0 <= made.tail <= len(frames) or not 0 <= made.entry <= len(frames):
        raise ValueError("a stack hides more frames than it has")
    return made


def _columns(rows: Rows) -> list[Ints]:
    return [rows.ids, rows.numbers, *columns.sparse(rows.lanes), rows.evicted, rows.longest_ns]


def _running(each: Iterator[Ints], threads: Rows) -> Ints:
    """Return the running time of `threads`; the first recordings have none."""
    found = next(each, None)
    if found is None:
        return np.zeros(len(threads.ids), np.int64)
    if found.shape != (len(threads.ids),):
        raise ValueError("running times do not match the threads")
    return found


def _begun(each: Iterator[Ints], waiting: Ints) -> Ints:
    found = next(each, None)
    if found is None:
        return np.zeros((0, BEGUN_FIELDS), np.int64)
    if found.shape != (len(waiting), BEGUN_FIELDS):
        raise ValueError("wait beginnings do not match the waits")
    return found


def _add_wakes(sites: Rows, waiting: Ints, found: Ints | None) -> None:
    """Fill in the wakes; the first recordings have none, or none for waits in progress."""
    if found is None:
        return
    places = len(sites.ids) + len(sites.evicted)
    if found.shape == (places,):
        found = np.pad(found, (0, len(waiting)))
    if found.shape != (places + len(waiting),):
        raise ValueError("wakes do not match the sites")
    sites.ids[:, _SITE_IDS], sites.evicted[:, _SITE_IDS], waiting[:, _WAITING] = np.split(
        found, [len(sites.ids), places]
    )


def _moves(found: Ints | None) -> Moves:
    if found is None:
        return NO_MOVES
    if found.ndim != 2 or found.shape[1] != MOVE_FIELDS or len(found) > columns.MOST_ROWS:
        raise ValueError("not a table of moves")
    checked.within(found[:, :SINCE], 0, checked.MOST_ID)
    checked.within(found[:, SINCE:], 0, checked.MOST_NS)
    checked.within(found[:, UNTIL] - found[:, SINCE] - found[:, READY], 0, checked.MOST_NS)
    return Moves(found)


def _rows(kind: Kind[K, V], each: Iterator[Ints], width: int, numbers: int) -> Rows:
    """Read a table whose keys store only the first `width` ids; the others are 0."""

    def keys() -> Ints:
        return np.pad(_matrix(each, width), ((0, 0), (0, kind.width - width)))

    table = columns.to_table(kind, chain((keys(),), each), numbers)
    evicted, longest_ns = keys(), next(each, None)
    if longest_ns is None:
        raise ValueError("the longest waits are missing")
    if longest_ns.ndim != 1 or len(longest_ns) not in (0, len(table.ids)):
        raise ValueError("longest waits do not match the table")
    return Rows(table.ids, table.numbers, table.lanes, evicted, longest_ns)


def _matrix(each: Iterator[Ints], width: int) -> Ints:
    found = next(each, None)
    if found is None or found.ndim != 2 or found.shape[1] != width or len(found) > columns.MOST_ROWS:
        raise ValueError("not a table of ids")
    return found


def _check_numbers(threads: Rows, sites: Rows, waiting: Ints, begun: Ints, whole: bool) -> None:
    """Raise ValueError for ids, counts and times out of range: sums of them would overflow or mean nothing."""
    for rows in (threads, sites):
        checked.within(rows.ids, 0, checked.MOST_ID)
        checked.within(rows.evicted, 0, checked.MOST_ID)
        checked.within(rows.longest_ns, 0, checked.MOST_NS)
        checked.within(rows.numbers, -checked.MOST_NS, checked.MOST_NS)
        checked.within(rows.lanes, -checked.MOST_NS, checked.MOST_NS)
        # Rows of EXITED can be negative: what evicted threads had before is subtracted there (window.finished).
        checked.within(rows.lanes[rows.ids[:, 1] != EXITED.tid], 0, checked.MOST_NS)
        if whole and len(np.unique(rows.ids, axis=0)) != len(rows.ids):
            raise ValueError("a thread or site occurs twice in a whole tick")
        if len(rows.longest_ns) and not whole:
            raise ValueError("a change has longest waits")
    checked.within(waiting[:, :2], 0, checked.MOST_ID)
    checked.within(waiting[:, 2:4], FILTERED, checked.MOST_ID)
    checked.within(waiting[:, 4:_WAITING], 0, checked.MOST_NS)
    checked.within(waiting[:, _WAITING], 0, checked.MOST_ID)
    checked.within(begun[:, 0], 0, checked.MOST_NS)
    checked.within(begun[:, 1], 0, max(Bound))
    checked.within(begun[:, 2], 0, (1 << 32) - 1)
    checked.within(begun[:, 3], -2 - checked.MOST_ID, checked.MOST_ID)
    checked.within(begun[:, -1], NO_STACK, checked.MOST_ID)
