"""Data source for this machine: drains the BPF maps, adds up, and hands out snapshots."""

import contextlib
import math
import os
import platform
import threading
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import Generic, TypeVar

from offtop.errors import KernelError
from offtop.feed.source import LiveFeed
from offtop.kernel.accounting.disk_requests import DiskRequests
from offtop.kernel.accounting.file_calls import FileCalls
from offtop.kernel.binary.confinement import NOT_NOBODY
from offtop.kernel.bpf import features, libbpf, pid_namespace, privileges
from offtop.kernel.bpf.disk_program import DiskProgram
from offtop.kernel.bpf.file_program import FileProgram
from offtop.kernel.bpf.program import DEFAULT_UNWIND, Unwind, attach
from offtop.kernel.procfs.guarded_reads import GuardedReads
from offtop.kernel.resolve.stacks import MOST_USER_STACKS
from offtop.kernel.scope import within
from offtop.kernel.scope.config import Change, Settings, check_alive, find_cgroup, is_any_alive
from offtop.kernel.scope.within import WatchedFunctions
from offtop.kernel.symbols.mappings import denied_access
from offtop.kernel.symbols.names import NameWorker
from offtop.kernel.tracing import status
from offtop.kernel.tracing.budget import BudgetControl, ThinnedMeter
from offtop.kernel.tracing.parts import Loaded, Parts
from offtop.kernel.tracing.tick import Flipped, Plan, TickStages
from offtop.model.classify.categories import Categories
from offtop.model.values.catalog import UNKNOWN
from offtop.model.values.disks import DISK, LIST_NOUNS, DiskActivity
from offtop.model.values.files import FILE, FileActivity
from offtop.model.values.outlier import NEVER_NS, Thresholds
from offtop.model.values.snapshot import OUTSIDE, PSEUDO_PIDS, Filters, Machine, Snapshot
from offtop.model.values.stack import Frame
from offtop.model.values.wake import CHAIN, DEFAULT_DEPTH, OFFCPU, Object

_KEEP_NS = 15 * 60 * 1_000_000_000
"""How long names and stacks are kept that a window may still refer to: longer than any History reaches back."""
_PRIME_NS = 60 * 1_000_000_000
"""How often a task scan *primes*: it reports all waits in progress, not only what changed. Otherwise a wait whose end
was lost would go on forever."""
_PRIME_CGROUP_NS = 10 * 1_000_000_000
"""The same with a cgroup filter: only then are threads noticed that were moved in or out while they waited."""
_CLOSE_SECONDS = 2.0
_DETAILS_S = 1.0
"""How long to wait for details that a user requests; no tick waits for them."""
_INACCESSIBLE = (
    "Missing CAP_SYS_PTRACE (sudo offtop): no user stacks{} and no open files of processes that offtop may not inspect."
)
_NO_SYMBOLS = "Categories, wakers, kernel function names and wait objects are unavailable."


A = TypeVar("A", FileActivity, DiskActivity)
C = TypeVar("C", FileCalls, DiskRequests)


class _Counter(Generic[C]):
    """What is counted only while it is requested, by BPF programs of its own."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.now: C | None = None
        """None while it is not counted."""
        self._is_whole = False
        """It has been counted since the last tick."""

    def switch(self, now: C | None) -> C | None:
        """Count by `now`, and return what was used before."""
        was, self.now, self._is_whole = self.now, now, False
        return was

    def of_tick(self, counted: A | None) -> A | None:
        """Return what was counted in a tick. None if counting began in it: rates would be too low."""
        was_whole, self._is_whole = self._is_whole, counted is not None
        return counted if was_whole else None

    def close(self) -> None:
        now, self.now = self.now, None
        if now:
            now.program.close()


class LiveSource(LiveFeed):
    """Data source that traces the running kernel. Implements source.Source.

    It is attached from the constructor until close().
    """

    def __init__(
        self,
        categories: Categories,
        filters: Filters,
        probe: str = "auto",
        unwind: Unwind = DEFAULT_UNWIND,
        keep_ns: int = _KEEP_NS,
        debuginfod: Sequence[str] = (),
        mode: str = OFFCPU,
        depth: int = DEFAULT_DEPTH,
        budget_pct: float = math.inf,
        counted: Collection[str] = (),
    ) -> None:
        """Load and attach the BPF programs.

        `mode` and `depth`: see set_mode. `debuginfod`: servers for debug files. `budget_pct`: percent of one CPU for
        all of offtop; by default every wait from the minimum up gets its stack, whatever that costs. `counted`: those
        of disks.LIST_MODES to count from the start, see set_counted. Raises an OfftopError that says what is missing
        and how to get it; nothing stays attached then.
        """
        capabilities = privileges.capabilities()
        privileges.check(capabilities)
        self._reads = GuardedReads()
        self._reads.start()
        self._detail_reads = self._reads.channel(_DETAILS_S)
        self._cleanup = contextlib.ExitStack()
        self._cleanup.callback(self._reads.close)
        denied = "" if "CAP_SYS_PTRACE" in capabilities else denied_access(self._detail_reads)
        which = " of waits in progress" if denied == "memory" else ""
        self._inaccessible = _INACCESSIBLE.format(which) if denied else ""
        """What cannot be read of some processes, and how to fix it; "" if everything can."""
        pid_namespace.own_inode()
        check_alive([*filters.pids], [*filters.tids])
        self._mode = self._requested_mode = OFFCPU, DEFAULT_DEPTH
        """The mode in effect, and the one requested for the next read."""
        self._lock, self._loading = threading.Lock(), threading.Lock()
        self._keep_ns = keep_ns
        self._closed = self._was_last = False
        self._since_ns = 0
        self._watched: WatchedFunctions | None = None
        self._thresholds: Thresholds | None = None
        self._files = _Counter[FileCalls](LIST_NOUNS[FILE])
        self._disks = _Counter[DiskRequests](LIST_NOUNS[DISK])
        try:
            types = libbpf.KernelTypes()
            found = features.detect(types)
            if filters.cgroup:
                find_cgroup(filters.cgroup, found)
            self._defines = pid_namespace.defines(types)
            if filters.within:
                filters = self._watch_functions(filters, found)
            self._initial = self._requested = filters
            defines = {**self._defines, "WITHIN": 1} if self._watched else self._defines
            self._program = attach(found, probe, defines=defines, unwind=unwind)
            self._cleanup.callback(self._program.close)
            loaded = Loaded(self._program, found, unwind, filters)
            self._parts = Parts(loaded, self._reads, categories, debuginfod, self._cleanup)
            self._budget, self._thinned = BudgetControl(budget_pct, time.monotonic_ns()), ThinnedMeter()
            self._stages = TickStages(self._parts, self._watched is not None, self._budget)
            if self._defines:
                catalog = self._parts.catalog
                catalog.processes[OUTSIDE], catalog.details[OUTSIDE] = "(outside)", UNKNOWN
            self._detail_reads.start()
            if self._watched:
                self._watched.attach(self._program)
            self.set_mode(mode, depth)
            self._cleanup.callback(self._files.close)
            self._cleanup.callback(self._disks.close)
            for one in counted:
                self.set_counted(one, True)
            self._apply(self._parts.config.settings.helper_pids)
        except OSError as error:
            self._cleanup.close()
            raise KernelError(
                f"The kernel refused {error.filename or 'a map'} ({error.strerror}). To see why, run: offtop doctor"
            ) from error
        except BaseException:
            self._cleanup.close()
            raise

    def _watch_functions(self, filters: Filters, found: features.Features) -> Filters:
        """Find the function of --within, and return the filters with its processes."""
        if why := within.why_unavailable(found):
            raise KernelError(f"--within: {why}. Use -p or --filter stack= instead")
        self._watched = WatchedFunctions(filters.within, filters.pids, self._detail_reads)
        self._cleanup.callback(self._watched.close)
        return self._watched.narrowed(filters)

    @property
    def notices(self) -> Sequence[str]:
        parts = self._parts
        no_symbols = f"{parts.symbols_refused} {_NO_SYMBOLS}" if parts.symbols_refused else ""
        refused = parts.names.refused
        no_names = f"Function names and .eh_frame are off: {NOT_NOBODY.format(refused)}." if refused else ""
        unconfined = self._watched.notice if self._watched else ""
        return [*filter(None, (no_symbols, self._inaccessible, no_names, unconfined)), *self._program.notices]

    @property
    def since_ns(self) -> int:
        return self._since_ns

    @property
    def host(self) -> str:
        return platform.node()

    @property
    def names(self) -> NameWorker:
        return self._parts.names

    def read(self) -> Snapshot | None:
        """Drain the maps and return a snapshot; None after the last one.

        The last one is taken when everything requested with -p and -t has exited. Raises KernelError if the kernel
        refuses.
        """
        if self._was_last:
            return None
        self._was_last = self._requested == self._initial and not is_any_alive(self._initial)
        with self._while_open() as is_open:
            if not is_open:
                return None
            in_effect = self._parts.config.settings.filters
            plan = self._configure()
            return self._publish(plan, self._tick(plan), in_effect)

    def drain(self) -> None:
        """Drain the maps if they fill up between two snapshots; the next snapshot includes what was drained.

        The maps have room for about a second of heavy load, but a display may refresh once a minute. This is a tick
        like those of read(), except that it applies no new filters, and scans waits in progress only if threads were
        lost: on a quiet machine, that scan would cost more than all the rest. Raises KernelError if the kernel refuses.
        """
        with self._while_open() as is_open:
            if is_open:
                self._stages.note_lost_threads()
            if is_open and self._stages.snapshot_ns and self._must_drain:
                settings, is_prime = self._parts.config.settings, self._stages.must_prime
                mode = self._mode[0]
                min_ns, helper_pids = settings.min_ns, settings.helper_pids
                self._tick(Plan(settings.filters, min_ns, mode, is_prime, is_prime, helper_pids, has_snapshot=False))

    @property
    def _must_drain(self) -> bool:
        has_more_tables = bool(self._files.now or self._disks.now or self._watched or self._thresholds)
        is_filling = has_more_tables or self._mode[0] != OFFCPU or self._parts.drain.is_filling
        return is_filling or self._stages.must_prime

    def _configure(self) -> Plan:
        """Apply what was requested since the last tick, and return what this one has to do."""
        stages, mode, helper_pids = self._stages, self._mode[0], self._parts.config.settings.helper_pids
        change = self._apply(self._parts.helper_pids)
        stages.must_prime = stages.must_prime or change.must_prime
        stages.note_lost_threads()
        settings = self._parts.config.settings
        filters = settings.filters
        every_ns = _PRIME_CGROUP_NS if filters.cgroup else _PRIME_NS
        is_prime = stages.must_prime or time.monotonic_ns() - stages.primed_ns > every_ns
        is_scanned = is_prime or stages.scan_cadence.is_due
        return Plan(filters, settings.min_ns, mode, is_prime, is_scanned, helper_pids, change.thread_filter)

    def _apply(self, helper_pids: tuple[int, int, int]) -> Change:
        """Attach what the requested mode needs, detach the rest, and configure the BPF programs."""
        parts, requested = self._parts, self._requested_mode  # read once: another thread may change it
        mode, depth = requested
        is_changed, self._mode = requested != self._mode, requested
        if is_changed and mode != OFFCPU:
            self._program.attach_waking(True)
        self._stages.thresholds = thresholds = self._thresholds
        lowest_ns = thresholds.lowest_ns if thresholds else NEVER_NS
        depth = 0 if mode == OFFCPU else depth if mode == CHAIN else 1
        min_ns = self._budget.min_ns(self._requested.min_ns)
        settings = Settings(self._requested, helper_pids, depth, lowest_ns, min_ns, self._budget.stacks_ns)
        change = parts.config.apply(settings)
        if is_changed:
            parts.scanned_waits.with_wakers = mode != OFFCPU
            if mode == OFFCPU:
                self._program.attach_waking(False)
            self._watch_cost()
        return change

    def _tick(self, plan: Plan) -> Flipped:
        stages = self._stages
        stages.begin(plan.is_prime)
        flipped = stages.flip(plan)
        records = stages.drain(plan, flipped)
        ended = stages.account(plan, flipped, records)
        for one in (self._files.now, self._disks.now):
            if one:
                one.drain(flipped.buffer, flipped.at_ns)
                self._parts.ledger.note_stacks_used(one.stacks_in_use)
        stages.evict(ended, self._keep_ns)
        self._parts.blockers.find(self._parts.ledger.waiting, flipped.at_ns)
        return flipped

    def _publish(self, plan: Plan, flipped: Flipped, in_effect: Filters) -> Snapshot:
        """Make a snapshot of the totals. `in_effect`: the filters during the tick."""
        parts, stages, ledger = self._parts, self._stages, self._parts.ledger
        if (most := parts.wakes.most_kept) is not None:
            parts.wakes.forget(set(), ledger.drop_wakes(most))
        if (surplus := parts.stacks.surplus) and (dropped := ledger.drop_stacks(surplus, MOST_USER_STACKS * 3 // 4)):
            parts.stacks.forget(dropped)
            parts.wakes.forget(dropped, set())
        parts.peers.publish()
        at_ns = stages.snapshot_ns = flipped.at_ns
        self._since_ns = self._since_ns or at_ns
        cost, missed = parts.cost.read(at_ns, parts.config.settings.helper_pids)
        parts.user_stacks.fill(at_ns, cost.cpu_pct)
        thinned = self._thinned.read(at_ns, self._budget, in_effect.min_ns, parts.drain.thinning())
        self._budget.add(at_ns, cost.cpu_pct - parts.cost.drawing_pct, thinned.waits, cost.bpf_pct)
        settings = parts.config.settings  # from now on: the next tick shows what another level costs
        parts.config.apply(settings._replace(min_ns=self._budget.min_ns(settings.filters.min_ns)))
        unread = parts.processes.unread + parts.user_stacks.unread
        more_lost = {"missed_runs": missed, "unread": unread, "blockers": parts.blockers.skipped}
        outliers, stages.outliers = stages.outliers, []
        blockers = parts.blockers.publish(ledger.waiting)
        parts.titles.find(ledger.waiting, blockers)
        cadence = stages.scan_cadence
        cost = cost._replace(scan_ns=cadence.took_ns, scan_every=cadence.every, thinned=thinned)
        if parts.memos:
            cost = cost._replace(memos=parts.memos.read())
        if parts.kernel_memos:
            cost = cost._replace(
                kernel_memos=parts.kernel_memos.read(), kernel_check_every=parts.kernel_memos.check_every
            )
        own_pids = {os.getpid(), *self._parts.helper_pids}
        return Snapshot(
            taken_ns=flipped.taken_ns,
            at_ns=at_ns,
            threads=ledger.threads.frozen(),
            sites=ledger.sites.frozen(),
            waiting=ledger.waiting,
            catalog=parts.catalog,
            lost=stages.lost | {kind: n for kind, n in more_lost.items() if n},
            cost=cost,
            machine=Machine() if self._watched else flipped.machine,  # only part of a thread's time is counted
            storms=dict(ledger.storms),
            long_waits=outliers,
            moves=ledger.moves,
            mode=plan.mode,
            probe=self._program.probe,
            filters=in_effect,
            calls=stages.calls,
            blockers=blockers,
            titles=parts.titles.titles,
            files=self._files.of_tick(self._files.now.take(own_pids) if self._files.now else None),
            disks=self._disks.of_tick(self._disks.now.take(own_pids) if self._disks.now else None),
        )

    @contextlib.contextmanager
    def _while_open(self) -> Generator[bool]:
        """Yield whether the source is still open; it stays so until the block ends."""
        try:
            with self._lock:
                yield not self._closed
        except OSError as error:
            raise KernelError(
                f"The BPF maps cannot be read ({error.strerror}). Start offtop again; if that does not help, run: "
                "offtop doctor"
            ) from error

    def set_filters(self, filters: Filters) -> None:
        """Set the filters from the next read on.

        Raises UsageError for a process or thread that does not exist.
        """
        new_pids = [pid for pid in filters.pids if pid not in self._initial.pids]
        check_alive(new_pids, [tid for tid in filters.tids if tid not in self._initial.tids])
        self._parts.config.find_cgroup(filters.cgroup)
        self._requested = self._watched.narrowed(filters) if self._watched else filters

    def set_mode(self, mode: str, depth: int = DEFAULT_DEPTH) -> None:
        """Set the mode, one of wake.MODES, from the next read on.

        `depth`: number of wakers in a chain. The first mode with wakers takes a second to load: do not call this from
        the UI thread. Raises KernelError if this kernel cannot report wakers, or if the program for them cannot be
        built.
        """
        if mode != OFFCPU:
            if refused := self._parts.symbols_refused:
                raise KernelError(f"Wakers need the names of kernel functions. {refused}")
            try:
                with self._loading:
                    self._program.load_waking()
            except OSError as error:
                raise KernelError(
                    f"The BPF program for wakers cannot be built ({error.strerror}). Compiling it needs another "
                    "process and memory: free some, and try again"
                ) from error
        self._requested_mode = mode, depth

    def set_counted(self, mode: str, wanted: bool) -> None:
        """Count what `mode`, one of disks.LIST_MODES, lists, or stop counting it, from the next read on.

        Loading takes a second the first time: do not call this from the UI thread. Raises KernelError if this kernel
        cannot report it, or if the programs for it cannot be built.
        """
        if mode == FILE:
            self._switch(self._files, wanted, self._new_files)
        else:
            self._switch(self._disks, wanted, self._new_disks)

    def _new_files(self) -> FileCalls:
        return FileCalls(FileProgram(self._program, self._parts.features), self._parts.stacks.ids)

    def _new_disks(self) -> DiskRequests:
        found = self._parts.features
        program = DiskProgram(self._program, found)
        return DiskRequests(program, found.disk_operations, found.disks, self._parts.stacks.ids)

    def _switch(self, counter: "_Counter[C]", wanted: bool, make: Callable[[], C]) -> None:
        with self._loading:
            if wanted == (counter.now is not None):
                return
            try:
                now = make() if wanted else None
            except OSError as error:
                raise KernelError(
                    f"The BPF programs for {counter.what} cannot be built ({error.strerror}). Compiling them needs "
                    "another process and memory: free some, and try again"
                ) from error
            with self._lock:
                if self._closed:
                    unused = now
                else:
                    unused = counter.switch(now)
                    self._watch_cost()
            if unused:
                unused.program.close()

    def _watch_cost(self) -> None:
        programs = dict(self._program.programs)
        for one in (self._files.now, self._disks.now):
            programs.update(one.program.programs if one else {})
        self._parts.cost.watch(programs)

    def set_thresholds(self, thresholds: Thresholds | None) -> None:
        self._thresholds = thresholds

    def wait_for_names(self, frames: set[Frame], seconds: float) -> bool:
        return self._parts.names.wait(frames, seconds)

    def why_nameless(self, frame: Frame) -> str:
        return self._parts.names.why_nameless(frame)

    def describe(self, pids: Collection[int]) -> None:
        self._parts.details.describe([pid for pid in pids if pid not in PSEUDO_PIDS])

    def find_peers(self, waited_on: Mapping[Object, int]) -> None:
        self._parts.peers.find(waited_on)

    def process_details(self, pid: int) -> Sequence[tuple[str, str]]:
        # Imported here, because psutil takes 0.1 s to import and is rarely needed.
        from offtop.kernel.procfs.process_details import read_details

        return read_details(pid, self._detail_reads)

    def about(self) -> list[tuple[str, str]]:
        return status.about(self._parts, self._watched, self._defines, self.notices)

    def close(self) -> None:
        if self._lock.acquire(timeout=_CLOSE_SECONDS):  # otherwise a read is stuck: the process's exit frees everything
            self._closed = True
            self._cleanup.close()
            self._lock.release()
