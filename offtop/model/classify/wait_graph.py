"""Wait-for graph: which threads must act before others can continue, and how much waiting each of them causes.

A node is a thread with a wait in progress, or a process or thread that such a wait depends on. An edge leads from a
wait to the node that must act to end it. Waiting is passed along the edges to the last known node, so the sum at all
ends is the sum of all waiting. Only waits in progress have edges: at any moment a thread waits for one thing only, so a
loop in the graph is one on the machine.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, overload

import numpy as np

from offtop.model.classify.activity import Activity
from offtop.model.classify.postgres_sessions import sessions_of
from offtop.model.classify.wait_edges import Edge, Edges, Floats
from offtop.model.values.blockers import (
    ANSWER,
    BACKLOG,
    DISK,
    DISK_USER,
    DISK_WAITS,
    ELSEWHERE,
    FILE_LOCK,
    GIL,
    KERNEL_LOCK,
    LOOKUP,
    MUTEX,
    OF_CGROUP,
    PIPE,
    SOCKET,
    STOPPED_BY,
    TITLE,
    UPSTREAM,
    WAKER,
    Blocker,
)
from offtop.model.values.catalog import Catalog, ThreadKey, code_of
from offtop.model.values.peers import HOLDER, LISTENER, may_have_peers
from offtop.model.values.peers import PIPE as PIPE_OBJECT
from offtop.model.values.snapshot import Snapshot
from offtop.model.values.stack import FIRST_STACK, Stack
from offtop.model.values.table import (
    THREADS,
    Ints,
    Mask,
    are_among,
    distinct,
    distinct_codes,
    integers,
    rows_at,
    thread_codes,
)
from offtop.model.values.waits import KERNEL, READY_NS, WAKE, WaitList, Waits
from offtop.model.values.wake import NO_OBJECT, THREAD, WAKEUP, Object, gathers
from offtop.model.windows.breakdown import SHORT, SLEEP, STOPPED, Shares
from offtop.model.windows.stuck import Stuck
from offtop.units import NS_PER_S

IDLE, UNMEASURED, AWAY, IS_DISK = "idle", "unmeasured", "away", "disk"
"""States of nodes that are not a wait, beside RUNS: it looks idle; filters leave it out, or it has exited; it is
another machine; it is a disk."""
LOCKS = frozenset({KERNEL_LOCK, FILE_LOCK, MUTEX, GIL, TITLE})
"""A loop of only these edges is a deadlock."""
_SLACK_NS = NS_PER_S
"""A request that a thread sent at most this long before others began to wait may be on their behalf."""
_LEAST_BUSY = 0.05
"""Average number of running threads below which a process counts as doing nothing."""
_AWAITS_LOOKUP = "d_alloc_parallel"
"""Function in which a thread waits until another one has looked up the same name in a directory (fs/dcache.c)."""
_LOOKS_UP = re.compile(r"\w+_(?:lookup|atomic_open)")
"""Names of the lookup functions of file systems: fuse_lookup, nfs_atomic_open."""
_BUSY = 0.5
"""Share of time on a CPU, waiting for one or at a disk, from which a session may be in one long statement."""

_LONG_STATEMENT_NS = 5 * NS_PER_S
"""A session that waits for so long in a statement may hold locks for longer than that."""

_Wakers = Mapping[Object, tuple[Blocker, ...]]
_NO_WAKERS: _Wakers = {}


class Node(NamedTuple):
    key: ThreadKey
    """tid 0: the process."""
    row: int
    """Row of the waits in progress; -1 if it is not in a wait that is known to be long."""
    state: str
    """Category of the wait; RUNS, IDLE, UNMEASURED, AWAY or IS_DISK; or `run-queue` or `throttle` for a process that
    wants a CPU."""
    address: str = ""
    """Address of a node that is AWAY; name of a disk."""


class Nodes(Sequence[Node]):
    """The nodes of a graph. The first ones are the rows of the waits in progress, in their order.

    A Node of a wait is made only when it is looked at: there may be 50,000, few of which have an edge.
    """

    def __init__(self, waits: WaitList, categories: Sequence[str], leaf: Ints) -> None:
        """`categories` are those of leaves, and `leaf` has the number of each wait's leaf."""
        self._ids, self._categories, self._leaf = waits.rows[:, :2], categories, leaf
        self._others: list[Node] = []

    def add(self, node: Node) -> int:
        """Add a node that is no wait, and return its number."""
        self._others.append(node)
        return len(self) - 1

    def __len__(self) -> int:
        return len(self._ids) + len(self._others)

    @overload
    def __getitem__(self, index: int) -> Node: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Node]: ...
    def __getitem__(self, index: int | slice) -> Node | Sequence[Node]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(len(self)))]
        if index >= len(self._ids):
            return self._others[index - len(self._ids)]
        return Node(THREADS.key(self._ids[index].tolist()), index, self.category(index))

    def category(self, row: int) -> str:
        return self._categories[int(self._leaf[row])]

    def pids_of(self, numbers: Ints) -> Ints:
        """Return the PIDs of nodes."""
        return self._of_all(self._ids[:, 0], (one.key.pid for one in self._others))[numbers]

    def rows_of(self, numbers: Ints) -> Ints:
        """Return `Node.row` of nodes."""
        return self._of_all(np.arange(len(self._ids)), (one.row for one in self._others))[numbers]

    @staticmethod
    def _of_all(of_waits: Ints, of_others: Iterable[int]) -> Ints:
        return np.concatenate((of_waits, np.fromiter(of_others, np.int64)))


class WaitGraph(NamedTuple):
    nodes: Nodes
    edges: Edges
    waiting: Floats
    """Average number of threads that wait at each node in the window: in all waits of its thread and category."""


def wait_graph(
    snapshot: Snapshot,
    blocked: Stuck,
    every: Shares,
    span_ns: int,
    activity: Activity,
    peers: "KnownPeers",
    unclear: Mask | None = None,
) -> WaitGraph:
    """Return the graph of the waits `blocked` as of `snapshot`.

    `every` and `activity` are of the window of `span_ns` that ends there: its time by site and leaf. `unclear`: which
    rows may be idle; no thread is taken to wait for them.
    """
    return _Builder(snapshot, blocked, every, span_ns, activity, peers, unclear).graph()


class KnownPeers:
    """Processes at the other end of the objects that threads wait on, cached while the catalog has the same peers."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        """PID → name of these processes, raw: the catalog may lack those that are not measured."""
        self._version = (0, 0)
        self._known: dict[tuple[int, int], tuple[Blocker, ...]] = {}

    def of(self, catalog: Catalog, kernel: int, wake: int) -> tuple[Blocker, ...]:
        """Return the processes at the other end of what a wait at that kernel stack is on."""
        version = id(catalog), catalog.peers_version
        if version != self._version:
            self._version, self._known, self.names = version, {}, {}
        known = self._known.get((kernel, wake))
        if known is None:
            what = catalog.wake(wake).object
            known = self._known[kernel, wake] = _peers(catalog, kernel, what)
            self.names |= {one.pid: one.comm for side in catalog.peers_of(what).sides for one in side.processes}
        return known


class _Builder:
    def __init__(
        self,
        snapshot: Snapshot,
        blocked: Stuck,
        every: Shares,
        span_ns: int,
        activity: Activity,
        peers: KnownPeers,
        unclear: Mask | None,
    ) -> None:
        self._snapshot, self._catalog, self._activity = snapshot, snapshot.catalog, activity
        self._waits = WaitList.of(blocked.waits)
        leaf = blocked.shares.leaf if blocked.shares else np.empty(0, np.int64)
        leaves = blocked.shares.leaves if blocked.shares else ()
        categories = [one.category for one in leaves]
        self._nodes = Nodes(self._waits, categories, leaf)
        self._idle = np.array([one.idle for one in leaves], np.bool_)[leaf]
        if unclear is not None:
            self._idle |= unclear
        self._numbers: dict[ThreadKey, int] = {}
        self._oldest_behind: dict[int, int] = {}
        """PID → age in ns of the oldest wait that the process must end."""
        self._own_holders: dict[Blocker, int] = {}
        """By the process that has locked a file for which its own threads wait: see _own_holder."""
        self._other_nodes: dict[tuple[str, str], int] = {}
        """Nodes that are no process, by state and address or name."""
        self._edges = Edges()
        self._ages_ns = self._waits.ages_ns(blocked.at_ns)
        self._waiting = _waiting(self._waits, categories, leaf, blocked.at_ns, every, span_ns)
        self._peers = peers
        self._looks_up: list[int] | None = None
        """Threads that are looking up a name in a directory; None: not searched yet."""
        self._awaits_lookup = self._stacks_with(_is_awaiting_lookup)
        blockers = snapshot.blockers
        self._waiting_servers = {key for key, some in blockers.items() if any(one.via == UPSTREAM for one in some)}
        """Servers that wait for an answer."""
        self._waiting_clients = {key for key, some in blockers.items() if any(one.via == ANSWER for one in some)}
        """Clients that wait for an answer."""
        self._sessions = sessions_of(snapshot.titles, snapshot.catalog)
        self._wakers = _wakers(every, self._catalog) if gathers(snapshot.mode, WAKEUP) else _NO_WAKERS

    @cached_property
    def _by_code(self) -> tuple[Ints, Ints]:
        """The rows in the order of their threads' codes, and these."""
        codes = thread_codes(self._waits.rows)
        rows = np.argsort(codes)
        return rows, codes[rows]

    def graph(self) -> WaitGraph:
        blockers_of_rows = [
            (row, self._blockers(row, self._key(row), kernel, wake))
            for row, kernel, wake in self._rows_that_may_have_edges()
        ]
        for row, some in blockers_of_rows:
            for one in some:
                of_process = self._oldest_behind.get(one.pid, 0)
                self._oldest_behind[one.pid] = max(of_process, int(self._ages_ns[row]))
        for row, some in blockers_of_rows:
            if some:
                self._add_edges(row, self._key(row), some)
        waiting = np.zeros(len(self._nodes))
        waiting[: len(self._waiting)] = self._waiting
        return WaitGraph(self._nodes, self._edges, waiting)

    def _rows_that_may_have_edges(self) -> Iterable[tuple[int, int, int]]:
        """Return row, kernel stack and wake of the waits for which `_blockers` may find something."""
        rows = self._waits.rows
        known = integers([*{*self._snapshot.blockers, *self._waits.holders}], 2)
        may = np.isin(thread_codes(rows), thread_codes(known)) | self._may_have_peers()
        may |= np.isin(rows[:, 0], [*self._sessions.waiting]) | np.isin(rows[:, KERNEL], [*self._awaits_lookup])
        some = np.flatnonzero(may)
        return zip(some.tolist(), rows[some, KERNEL].tolist(), rows[some, WAKE].tolist(), strict=True)

    def _may_have_peers(self) -> Mask:
        """Return which waits are on an object whose peers, or whose waker, may be known."""
        has_object = np.flatnonzero(self._waits.rows[:, WAKE])
        once, which = distinct(self._waits.rows[has_object][:, [KERNEL, WAKE]])
        pairs: list[list[int]] = once.tolist()
        may = np.zeros(len(self._waits), np.bool_)
        known = [bool(self._wakers or self._peers.of(self._catalog, kernel, wake)) for kernel, wake in pairs]
        may[has_object] = np.array(known, np.bool_)[which]
        return may

    def _key(self, row: int) -> ThreadKey:
        return THREADS.key(self._waits.rows[row, :2].tolist())

    def _rows_of(self, pid: int) -> Ints:
        """Return the rows of a process, which may have many thousands."""
        rows, codes = self._by_code
        begin, end = np.searchsorted(codes, [pid << 32, (pid + 1) << 32])
        return np.sort(rows[begin:end])

    def _row_of(self, pid: int, tid: int) -> int:
        """Return the row of a thread, or -1."""
        rows, codes = self._by_code
        code = pid << 32 | tid
        at = int(np.searchsorted(codes, code))
        return int(rows[at]) if at < len(codes) and codes[at] == code else -1

    def _blockers(self, row: int, key: ThreadKey, kernel: int, wake: int) -> Sequence[Blocker]:
        known = self._snapshot.blockers.get(key, ())
        if self._nodes.category(row) == STOPPED:  # whatever its system call is waiting for
            return [one for one in known if one.via == STOPPED_BY]
        known = tuple(one for one in known if one.via not in OF_CGROUP)
        holder = self._waits.holders.get(key)
        if holder is not None and holder.tid and not any(one.via == KERNEL_LOCK for one in known):
            return (Blocker(holder.pid, holder.tid, KERNEL_LOCK, True),)
        if known and known[0].via == DISK:  # found at another wait of the thread, if this one is not for a disk
            known = self._user_of_disk(key, known[0]) if self._nodes.category(row) in DISK_WAITS else ()
        if known:
            return known
        if self._sessions.waiting and (holder := self._idle_in_transaction(key.pid, int(self._ages_ns[row]))):
            return holder
        if wake and (peers := self._peers.of(self._catalog, kernel, wake)):
            return peers
        if self._wakers and self._nodes.category(row) == "lock" and wake:
            what = self._catalog.wake(wake).object
            return tuple(one for one in self._wakers.get(what, ()) if self._may_hold(one, what))
        return self._lookup(row) if kernel in self._awaits_lookup else ()

    def _user_of_disk(self, key: ThreadKey, disk: Blocker) -> tuple[Blocker, ...]:
        """Return the process that keeps others waiting for a disk; the disk if there is none, or it is the waiter's."""
        pid = self._activity.users_of_disks.get(disk.what, 0)
        return (Blocker(pid, 0, DISK_USER, False, disk.what) if pid not in (0, key.pid) else disk,)

    def _stacks_with(self, holds: Callable[[Stack], bool]) -> set[int]:
        """Return the kernel stacks of waits for which `holds` is true."""
        kernels: list[int] = distinct_codes(self._waits.rows[:, KERNEL]).tolist()
        return {one for one in kernels if holds(self._catalog.stack(one))}

    def _lookup(self, row: int) -> tuple[Blocker, ...]:
        """Return the thread that waits while it looks up a name in a directory, if there is only one.

        It began to do so before the thread that waits for it.
        """
        if self._looks_up is None:
            looks_up = np.isin(self._waits.rows[:, KERNEL], [*self._stacks_with(_is_lookup) - self._awaits_lookup])
            self._looks_up = np.flatnonzero(looks_up).tolist()
        if len(self._looks_up) != 1 or self._ages_ns[self._looks_up[0]] < self._ages_ns[row]:
            return ()
        return (Blocker(*self._key(self._looks_up[0]), LOOKUP, False),)

    def _may_hold(self, one: Blocker, what: Object) -> bool:
        """Return whether the thread that ended most waits for a lock may hold it now.

        Not if it waits for it itself, or for a lock that is not known: in a convoy, that is most likely the same.
        """
        row = self._row_of(one.pid, one.tid)
        own = self._catalog.wake(int(self._waits.rows[row, WAKE])).object if row >= 0 else NO_OBJECT
        waits_too = own == what or (row >= 0 and own == NO_OBJECT and self._nodes.category(row) == "lock")
        return not waits_too and what.pid in (0, one.pid)

    def _idle_in_transaction(self, pid: int, age_ns: int) -> tuple[Blocker, ...]:
        """Return the session that likely holds the lock for which a PostgreSQL session has waited for `age_ns`.

        It is the only one of the database known to be idle in a transaction. There is none if another session may have
        been in its statement for as long: it may hold the lock just as well.
        """
        sessions = self._sessions
        database = sessions.waiting.get(pid)
        holders = sessions.holders.get(database, ()) if database else ()
        if database is None or len(holders) != 1:
            return ()
        return () if any(self._may_be_in_statement(one, age_ns) for one in sessions.active[database]) else holders

    def _may_be_in_statement(self, pid: int, since_ns: int) -> bool:
        """Return whether an active session may have been in its statement for `since_ns`.

        That is so if it waits for as long or for seconds, or was busy: between statements, it would wait for its
        client. A statement that sleeps (pg_sleep) wakes up once a minute.
        """
        least_ns = min(since_ns, _LONG_STATEMENT_NS)
        is_old = len(ages_ns := self._ages_ns[self._rows_of(pid)]) and ages_ns.max() >= least_ns
        _, busy = self._activity.busy(ThreadKey(pid, 0))
        return bool(is_old) or busy + self._activity.at_disks.get(pid, 0.0) >= _BUSY

    def _add_edges(self, row: int, key: ThreadKey, some: Sequence[Blocker]) -> None:
        """Add the edges of a wait."""
        targets: dict[int, Blocker] = {}
        if len(some) == 1 and some[0].pid == key.pid and some[0].via in (FILE_LOCK, MUTEX):
            holder = self._own_holder(row, key, some[0])
            if holder >= 0:
                is_exact = some[0].is_exact and some[0].tid != 0
                self._edges.add(Edge(row, holder, 1.0, some[0].via, is_exact, some[0].what))
            return
        for one in some:
            if one.pid == key.pid and one.tid in (0, key.tid):
                if not one.tid:  # the waiter has the other end open, too, as make does with its job server
                    return  # so any of the processes may act, even the waiter itself
                continue
            key_of_other = ThreadKey(one.pid, one.tid)
            target = self._other_node(one) if one.pid == ELSEWHERE else self._node(key_of_other, one.via in LOCKS)
            targets[target] = one
        for target, one in targets.items():
            self._edges.add(Edge(row, target, 1 / len(targets), one.via, one.is_exact, one.what))

    def _own_holder(self, row: int, key: ThreadKey, one: Blocker) -> int:
        """Return the node of the thread that must release a lock of the waiter's own process; -1 if it is unknown.

        It may be the waiter itself. If only the process is known, it is likely the main thread, or else another one
        that waits, but not for the lock.
        """
        if one.tid:
            return row if one.tid == key.tid else self._node(ThreadKey(one.pid, one.tid), True)
        if one not in self._own_holders:
            same = [other for other, some in self._snapshot.blockers.items() if other.pid == one.pid and one in some]
            rows = self._rows_of(one.pid)
            others, main = rows[~self._are_of(same, rows)], self._row_of(one.pid, one.pid)
            self._own_holders[one] = -1 if not len(others) else int(main if main in others else others[0])
        return self._own_holders[one]

    def _other_node(self, one: Blocker) -> int:
        """Return the node of an address or a disk."""
        place = IS_DISK if one.via == DISK else AWAY, one.what
        number = self._other_nodes.get(place)
        if number is None:
            number = self._other_nodes[place] = self._nodes.add(Node(ThreadKey(ELSEWHERE, 0), -1, *place))
        return number

    def _node(self, key: ThreadKey, is_holder: bool) -> int:
        row = self._row_of(*key)
        if row >= 0:
            return row
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._new_node(key, is_holder)
        return number

    def _category_of_young(self, key: ThreadKey) -> str:
        """Return the category of the wait in which a thread is, too young for the graph; empty if it is in none.

        It is SHORT if its stack is not known: below the minimum, or left out.
        The holder of a lock may wait for the lock most of the time, but not now.
        """
        waiting = Waits.of(self._snapshot.waiting)
        row = int(waiting.rows_of(np.array([code_of(key)]))[0]) if key.tid else -1
        if row < 0 or waiting.list.rows[row, READY_NS]:
            return ""
        kernel = int(waiting.list.rows[row, KERNEL])
        return self._catalog.stack(kernel).category if kernel >= FIRST_STACK else SHORT

    def _acting(self, rows: Ints, oldest_ns: int) -> Ints:
        """Return for which of these rows of a process others may wait; the oldest of them has waited for `oldest_ns`.

        A thread that sent a request before they waited did not send it on their behalf.
        """
        if len(rows) == 1 and self._idle[rows[0]]:
            return rows if self._nodes.category(int(rows[0])) == SLEEP else rows[:0]
        rows = rows[~self._idle[rows]]
        is_old = self._ages_ns[rows] > oldest_ns + _SLACK_NS
        return rows[~(is_old & self._are_of(self._waiting_clients, rows))]

    def _are_of(self, threads: Collection[ThreadKey], rows: Ints) -> Mask:
        """Return which rows are of these threads."""
        return np.isin(thread_codes(self._waits.rows[rows]), thread_codes(integers([*threads], 2)))

    def _new_node(self, key: ThreadKey, is_holder: bool) -> int:
        """Return the node of a process, or of a thread that is in no long wait. `is_holder`: of a lock."""
        rows = self._rows_of(key.pid) if not key.tid else np.empty(0, np.int64)
        state, busy = self._activity.busy(key)
        acting = self._acting(rows, self._oldest_behind.get(key.pid, 0))
        if not len(acting):
            acting = rows[self._are_of(self._waiting_servers, rows)]
        waiting = float(self._waiting[acting].sum())
        if busy >= max(_LEAST_BUSY, waiting):
            acting = acting[:0]
        elif not len(acting):
            state, blocked = ("", 0.0) if len(rows) else self._activity.most_blocked(key)
            is_known = bool(len(rows) or len(self._rows_of(key.pid)) or self._activity.has_process(key.pid))
            state = state if blocked >= _LEAST_BUSY else IDLE if is_known else UNMEASURED
            if state == IDLE and not len(rows) and not key.tid and self._activity.sleeps(key):
                state = SLEEP
            state = (is_holder and self._category_of_young(key)) or state
        if len(acting) == 1:
            return int(acting[0])
        is_idle = len(rows) and state == IDLE
        at = -1
        if is_idle:
            main = self._row_of(key.pid, key.pid)
            at = main if main >= 0 else int(rows[0])
        number = self._nodes.add(Node(key, at, state))
        if len(acting):
            shares = self._waiting[acting] / waiting if waiting else np.full(len(acting), 1 / len(acting))
            self._edges.add_threads(number, acting, shares)
        return number


def _waiting(waits: WaitList, categories: Sequence[str], leaf: Ints, at_ns: int, every: Shares, span_ns: int) -> Floats:
    """Return for each wait the share of the window in which its thread waited, in all waits of the same category.

    `categories`, `leaf`: as of Nodes.
    """
    so_far = np.minimum(waits.ages_ns(at_ns), span_ns)
    found = so_far.astype(np.float64)
    young = np.flatnonzero(so_far < span_ns)  # the others have lasted for the whole window
    codes, threads = thread_codes(every.ids), thread_codes(rows_at(waits.rows[:, :2], young))
    at = np.flatnonzero(are_among(codes, threads))
    if not len(at):
        return found / max(1, span_ns)
    numbers = {name: number for number, name in enumerate({*categories, *(leaf.category for leaf in every.leaves)})}
    bits = len(numbers).bit_length()
    of_leaf = np.array([numbers[leaf.category] for leaf in every.leaves], np.int64)
    once, which = np.unique(codes[at] << bits | of_leaf[every.leaf[at]], return_inverse=True)
    sums = np.bincount(which, every.total_ns[at], len(once))
    own = threads << bits | np.array([numbers[name] for name in categories], np.int64)[leaf[young]]
    place = np.minimum(np.searchsorted(once, own), len(once) - 1)
    found[young] = np.maximum(found[young], np.where(once[place] == own, sums[place], 0))
    return np.minimum(found, span_ns) / max(1, span_ns)


def _peers(catalog: Catalog, kernel: int, what: Object) -> tuple[Blocker, ...]:
    """Return the processes at the other end of the object that a thread waits on."""
    if not may_have_peers(what):
        return ()
    sides = catalog.peers_of(what).sides_of_wait(catalog.stack(kernel))
    via = PIPE if what.kind == PIPE_OBJECT else SOCKET
    # The holders of file locks are in Snapshot.blockers, after a check.
    return tuple(
        Blocker(one.pid, 0, BACKLOG if side.role == LISTENER else via, True)
        for side in sides
        if side.role != HOLDER
        for one in side.processes
    )


def _is_awaiting_lookup(stack: Stack) -> bool:
    return any(frame.name == _AWAITS_LOOKUP for frame in stack.trimmed)


def _is_lookup(stack: Stack) -> bool:
    return any(_LOOKS_UP.fullmatch(frame.name) for frame in stack.trimmed)


def _wakers(every: Shares, catalog: Catalog) -> _Wakers:
    """Return for each lock the thread that ended most of the waits for it in the window."""
    once, which = np.unique(every.ids[:, WAKE], return_inverse=True)
    counts = np.bincount(which, every.waits, len(once)).tolist()
    found: defaultdict[Object, dict[ThreadKey, float]] = defaultdict(dict)
    for wake, many in zip(once.tolist(), counts, strict=True):
        one = catalog.wake(wake)
        if many and one.object.kind and one.waker.kind == THREAD and one.waker.tid:
            by = found[one.object]
            key = ThreadKey(one.waker.pid, one.waker.tid)
            by[key] = by.get(key, 0) + many
    most = {what: max(by, key=by.__getitem__) for what, by in found.items()}
    return {what: (Blocker(*key, WAKER, False),) for what, key in most.items()}
