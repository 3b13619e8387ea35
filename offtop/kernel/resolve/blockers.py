"""Finds the threads and processes that must act to end waits in progress, in a worker thread.

Each tick requests it for all waits in progress, and shows what was found for those that still go on. Everything is read
from outside: /proc, and the memory of processes. A process that cannot be read in time is skipped. The worker sleeps
while there are no such waits. After each round it pauses, so that it takes about 5 % of a CPU; more only if a
round takes more than 0.16 s, because it pauses for 3 s at most. If there are too many waits, a round reads the oldest.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from offtop.kernel.bpf import layout
from offtop.kernel.procfs.cgroups import Quota
from offtop.kernel.procfs.direct_reads import read_content
from offtop.kernel.procfs.guarded_reads import GuardedReads
from offtop.kernel.procfs.processes import program_name
from offtop.kernel.resolve.blocked import WORD, Blocked, Found, blocked
from offtop.kernel.resolve.children import Children
from offtop.kernel.resolve.disks import Disks
from offtop.kernel.resolve.file_locks import FileLocks
from offtop.kernel.resolve.freezers import Freezers
from offtop.kernel.resolve.fuse_servers import FuseServers
from offtop.kernel.resolve.gil import Gils
from offtop.kernel.resolve.memory_limits import MemoryLimits
from offtop.kernel.resolve.mutexes import Mutexes
from offtop.kernel.resolve.quotas import Quotas
from offtop.kernel.resolve.tracers import Tracers
from offtop.kernel.resolve.upstreams import Upstreams
from offtop.kernel.unwind.cpython_frames import CPythonFrames
from offtop.model.values.blockers import CPU_QUOTA, ELSEWHERE, MUTEX, Blocker, Blockers, quota_text
from offtop.model.values.catalog import Catalog, ThreadKey
from offtop.model.values.snapshot import PSEUDO_PIDS
from offtop.model.values.stack import FIRST_STACK, Names
from offtop.model.values.table import distinct_codes, integers, thread_codes
from offtop.model.values.waits import ARGUMENTS, CALL, KERNEL, READY_NS, SWITCHED_OUT_NS, Waits
from offtop.model.windows.breakdown import THROTTLE
from offtop.worker import Worker

_PATIENCE_S, _PATIENCE_A_ROUND_S = 0.3, 0.5
"""How long a round waits for one read of another process, and for all reads that miss their deadline."""
_PAUSE_TIMES = 19
"""Pause after a round, as a multiple of its CPU time. The read child uses about as much CPU time again."""
_LONGEST_PAUSE_S = 3.0
_FRESH_S = 0.03
"""How long a tick waits for its round, where 5 ms are usual: the holder of a lock may change at any time."""
_Futex = tuple[int, int]
"""System call, and address."""
_OLD_S = 5.0
"""Age at which a result is no longer shown."""


class BlockersWorker:
    """Finds blockers. `find` and `publish` are for the polling thread."""

    def __init__(
        self,
        catalog: Catalog,
        names: Names,
        cpython_frames: CPythonFrames,
        reads: GuardedReads,
        quotas: Quotas,
    ) -> None:
        self._reads = reads.channel(_PATIENCE_S, _PATIENCE_A_ROUND_S)
        self._catalog, self._cpython_frames = catalog, cpython_frames
        self._worker = Worker("offtop-blockers", self._run)
        self._fuse = FuseServers(self._reads, catalog)
        self._upstreams = Upstreams(self._reads, catalog)
        self._disks = Disks(self._reads, catalog)
        self._mutexes = Mutexes(self._reads, catalog, names)
        self._file_locks = FileLocks(self._reads)
        self._freezers, self._memory_limits = Freezers(catalog), MemoryLimits(catalog)
        self._finders: tuple[Callable[[Sequence[Blocked]], Mapping[ThreadKey, Found]], ...] = (
            Tracers(self._reads).find,
            self._freezers.find,
            self._memory_limits.find,
            self._mutexes.find,
            self._file_locks.find,
            Children(self._reads).find,
            self._fuse.find,
            self._upstreams.find,
            self._disks.find,
            Gils(self._reads, cpython_frames, self._worker.rest).find,
        )
        self._quotas = quotas
        self._latest = deque[tuple[list[Blocked], Sequence[int]]](maxlen=1)
        """The latest request: waits that others must end, and processes that may wait for a CPU quota."""
        self._found: Mapping[ThreadKey, Found] = {}
        self._throttled: Mapping[int, Quota] = {}
        """By PID."""
        self._found_s = 0.0
        self._is_due = self._is_resting = False
        """Whether the latest request has not been served yet, and whether the worker pauses."""
        self._waiting_owners = frozenset[tuple[int, ...]]()
        """Owners of mutexes that waited when a round for these waits was last published: pid, tid, start of the wait.
        """
        self._skipped = 0
        self._named = set[int]()
        """Processes that have their name in the catalog only because they are blockers."""

    @property
    def skipped(self) -> int:
        """How often a wait or a lock was skipped because there were too many."""
        return self._skipped + self._mutexes.unread + self._file_locks.unread

    def find(self, waiting: Waits, at_ns: int) -> None:
        """Request the blockers of all waits in progress. Returns at once."""
        asked, skipped = blocked(
            waiting,
            at_ns,
            self._catalog.calls,
            self._cpython_frames.gil_pids,
            self._fuse.stacks,
            self._upstreams.stacks,
            self._disks.waits_for_disk,
            self._may_be_of_cgroup,
        )
        ready = self._wanting_quota(waiting)
        if not asked and not self._found and not ready:
            return
        self._skipped += skipped
        with self._worker.changed:
            self._latest.append((asked, ready))
            self._is_due = True
            self._worker.wake()

    def publish(self, waiting: Waits) -> Blockers:
        """Return what was found for those of the waits that were in progress when it was looked up.

        Waits a moment for the latest request, unless the worker pauses.
        """
        worker = self._worker
        with worker.changed:
            worker.changed.wait_for(lambda: not self._is_due or self._is_resting or worker.is_closing, _FRESH_S)
            found, is_fresh = self._found, not self._is_due
        shown = self._of_waits(waiting, found, is_fresh)
        self._name({one.pid for some in shown.values() for one in some})
        return shown

    def _wanting_quota(self, waiting: Waits) -> list[int]:
        """Return the processes with a thread that waits for a CPU quota, or may do so in the run queue."""
        rows = waiting.list.rows
        wanting = (rows[:, READY_NS] != 0) | waiting.list.is_ready
        if self._quotas.is_exact:
            kernels: list[int] = distinct_codes(rows[:, KERNEL]).tolist()
            throttled = [one for one in kernels if one >= FIRST_STACK and self._is_throttle(one)]
            wanting = np.isin(rows[:, KERNEL], throttled)
        pids: list[int] = np.unique(rows[wanting, 0]).tolist()
        return [pid for pid in pids if pid not in PSEUDO_PIDS]

    def _may_be_of_cgroup(self, kernel: int) -> bool:
        """Return whether a setting of its cgroup may keep a thread at a kernel stack waiting."""
        return self._freezers.is_stopped(kernel) or kernel in self._memory_limits.stacks

    def _is_throttle(self, kernel: int) -> bool:
        return self._catalog.stack(kernel).category == THROTTLE

    def _name(self, pids: set[int]) -> None:
        """Name the blockers that have no name because filters leave them out, as long as they are blockers."""
        catalog = self._catalog
        over = self._named - pids
        if over:
            self._named -= over
            over.difference_update(key.pid for key in catalog.comms)  # these are measured by now
            for pid in over:
                catalog.processes.pop(pid, None)
        for pid in pids - {ELSEWHERE}:
            is_left_out = pid in self._named or pid not in catalog.processes
            # Read it each time: it may call exec(), or another process may get its pid.
            if is_left_out and (comm := read_content(f"/proc/{pid}/comm").rstrip(b"\n")):
                catalog.processes[pid] = program_name(pid, layout.text_of(comm))
                self._named.add(pid)

    def _of_waits(
        self, waiting: Waits, found: Mapping[ThreadKey, Found], is_fresh: bool
    ) -> dict[ThreadKey, tuple[Blocker, ...]]:
        """Return what is known of these waits. `is_fresh`: `found` is of the round that was requested for them."""
        if not len(waiting) or time.monotonic() - self._found_s > _OLD_S:
            return {}
        shown: dict[ThreadKey, tuple[Blocker, ...]] = {
            ThreadKey(pid, 0): (Blocker(pid, 0, CPU_QUOTA, self._quotas.is_exact, quota_text(quota.cpus, quota.path)),)
            for pid, quota in self._throttled.items()
        }
        if not found:
            return shown
        at = waiting.rows_of(thread_codes(integers([*found], 2)))
        rows, known = waiting.list.rows[at].tolist(), np.flatnonzero(at >= 0).tolist()
        items, awaited = [*found.items()], self._futexes_of_owners(found, waiting, is_fresh)
        for n in known:
            key, one = items[n]
            if rows[n][READY_NS] or not _is_same(rows[n], one):  # it only waits for a CPU, or is in another wait
                continue
            futex = rows[n][CALL], rows[n][ARGUMENTS]
            if not any(awaited.get(blocker[:2]) == futex for blocker in one.blockers):
                shown[key] = one.blockers if is_fresh else _as_likely(one.blockers, key)
        return shown

    def _futexes_of_owners(
        self, found: Mapping[ThreadKey, Found], waiting: Waits, is_fresh: bool
    ) -> dict[tuple[int, int], _Futex]:
        """Return the call and address at which owners of mutexes wait: one that waits for its mutex does not hold it.

        Two kinds of owners do hold it, and are left out. One was in the same wait when it was last published, so it has
        not run since it was read as the owner: it has locked the mutex twice. The other is runnable, because it is just
        getting the mutex.
        """
        owners = [*{blocker[:2] for one in found.values() for blocker in one.blockers if blocker.via == MUTEX}]
        at = waiting.rows_of(thread_codes(integers(owners, 2)))
        some = [(owner, waiting.list.rows[row]) for owner, row in zip(owners, at.tolist(), strict=True) if row >= 0]
        before = self._waiting_owners
        if is_fresh:
            self._waiting_owners = frozenset((*owner, int(row[SWITCHED_OUT_NS])) for owner, row in some)
        return {
            owner: (int(row[CALL]), int(row[ARGUMENTS]))
            for owner, row in some
            if not row[READY_NS] and (*owner, int(row[SWITCHED_OUT_NS])) not in before
        }

    def close(self) -> None:
        """Ask the worker to stop, and return immediately. May be called twice."""
        self._worker.close()

    def _run(self, worker: Worker) -> None:
        before: Mapping[ThreadKey, Found] = {}
        for asked, ready in worker.queued(self._latest):
            began_s = time.thread_time()
            self._reads.refill()
            found: dict[ThreadKey, Found] = {}
            for find in self._finders:
                for key, one in find(asked).items():
                    found.setdefault(key, one)
            self._throttled = self._quotas.find(ready)
            # A thread that polls again and again may be in a wait that is still too young.
            young = before.keys() - {one.key for one in asked}
            with worker.changed:
                self._found = {key: before[key] for key in young if before[key].arguments} | found
                self._found_s = time.monotonic()
                self._is_due, self._is_resting = bool(self._latest), True
                worker.changed.notify_all()
            before = found
            worker.rest(min(_LONGEST_PAUSE_S, _PAUSE_TIMES * (time.thread_time() - began_s)))
            self._is_resting = False


def _as_likely(blockers: tuple[Blocker, ...], waiter: ThreadKey) -> tuple[Blocker, ...]:
    """Return what an earlier round found: the owner of a mutex may have released it since, unless it is the waiter."""
    return tuple(one._replace(is_exact=False) if one.via == MUTEX and one[:2] != waiter else one for one in blockers)


def _is_same(row: Sequence[int], found: Found) -> bool:
    """Return whether the wait of a row of a WaitList is the one for which this was found."""
    if row[SWITCHED_OUT_NS] == found.switched_out_ns or row[ARGUMENTS] in found.futexes:
        return True
    known = found.arguments
    return bool(known) and tuple(word & WORD for word in row[ARGUMENTS : ARGUMENTS + len(known)]) == known
