"""Data source for this machine: drains the BPF maps, adds up, and hands out snapshots."""

import contextlib
import ctypes
import os
import platform
import threading
import time
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

from offtop.errors import KernelError, OfftopError, UsageError
from offtop.feed.source import LiveFeed
from offtop.kernel.accounting.drain import Drain, ScanCadence, Sites
from offtop.kernel.accounting.ledger import Ledger
from offtop.kernel.accounting.outlier_events import OutlierEvents
from offtop.kernel.accounting.tick_records import NewThread, RuntimeSample
from offtop.kernel.binary.confinement import NOT_NOBODY
from offtop.kernel.binary.debuginfod import DebugFiles
from offtop.kernel.binary.files import Files
from offtop.kernel.bpf import features, layout, libbpf, pid_namespace, privileges
from offtop.kernel.bpf.cost import CostMeter
from offtop.kernel.bpf.libbpf import Map
from offtop.kernel.bpf.program import AUTO, Unwind, attach
from offtop.kernel.procfs import cgroup_selector, syscalls
from offtop.kernel.procfs import threads as procfs
from offtop.kernel.procfs.cgroup_selector import Cgroup
from offtop.kernel.procfs.guarded_reads import GuardedReads
from offtop.kernel.procfs.processes import DetailsWorker
from offtop.kernel.resolve.peers import PeersWorker
from offtop.kernel.resolve.stacks import Stacks
from offtop.kernel.resolve.wakes import Wakes
from offtop.kernel.scope import within
from offtop.kernel.scope.within import Watched
from offtop.kernel.symbols.kallsyms import HiddenSymbols, KernelSymbols
from offtop.kernel.symbols.mappings import Processes, closed_to_us
from offtop.kernel.symbols.names import NameWorker
from offtop.kernel.unwind.cpu_allowance import Allowance
from offtop.kernel.unwind.cpython_frames import CPythonFrames
from offtop.kernel.unwind.stack_copies import Copies
from offtop.kernel.unwind.unwinder import RuleMaps, Unwinder
from offtop.kernel.unwind.user_stacks import UserStacks
from offtop.model.classify import wakers
from offtop.model.classify.categories import Categories
from offtop.model.values.catalog import UNKNOWN, Catalog, ThreadKey
from offtop.model.values.outlier import NEVER_NS, LongWait, Thresholds
from offtop.model.values.snapshot import OUTSIDE, PSEUDO_PIDS, Filters, Machine, Snapshot
from offtop.model.values.stack import Frame
from offtop.model.values.wake import CHAIN, DEFAULT_DEPTH, OFFCPU, Object
from offtop.model.values.within import NO_CALLS

_ALL_ONES = (1 << 64) - 1
_KEEP_NS = 15 * 60 * 1_000_000_000
"""How long what a window may still refer to is kept: longer than any History reaches back."""
_PRIME_NS = 60 * 1_000_000_000
"""How often all waits in progress are scanned again: one whose end was lost would otherwise go on forever."""
_PRIME_CGROUP_NS = 10 * 1_000_000_000
"""The same with a cgroup filter: only then are threads noticed that were moved in or out while they waited."""
_CLOSE_SECONDS = 2.0
_PATIENCE_S, _PATIENCE_A_TICK_S = 0.3, 0.5
"""How long a tick waits for one read of another process, and for all reads that miss their deadline."""
_FACTS_S = 1.0
"""The same for details that a user requests: no tick waits for these."""
_FILE_CALLS = (
    "read readv pread64 preadv preadv2 write writev pwrite64 pwritev pwritev2 recvfrom recvmsg recvmmsg sendto sendmsg "
    "sendmmsg accept accept4 connect flock fsync fdatasync sync_file_range syncfs ioctl fcntl io_uring_enter vmsplice "
    "fallocate ftruncate getdents64 lseek"
)
_NAMED_BY = {
    **dict.fromkeys(_FILE_CALLS.split(), layout.OBJECT_FILE),
    **dict.fromkeys(("epoll_wait", "epoll_pwait", "epoll_pwait2"), layout.OBJECT_EPOLL),
    **dict.fromkeys(("poll", "ppoll", "select", "pselect6", "restart_syscall"), layout.OBJECT_POLL),
    "futex": layout.OBJECT_FUTEX,
    "futex_wait": layout.OBJECT_FUTEX_WAIT,
    "wait4": layout.OBJECT_CHILD,
    "waitid": layout.OBJECT_ID,
}
"""How a system call names what it waits on.

Those with two descriptors (splice, tee, sendfile, copy_file_range) may wait on either. restart_syscall continues an
interrupted poll.
"""
_MAX_HUNG_SHOWN = 10
_MOST_FAILURES = 3
"""Read children that exit at once before that is reported."""
_ZERO = bytes(4)
_INACCESSIBLE = (
    "Missing CAP_SYS_PTRACE (sudo offtop): no user stacks{} and no open files of processes that offtop may not inspect."
)
_NO_SYMBOLS = "Categories, wakers, kernel function names and wait objects are unavailable."


class LiveSource(LiveFeed):
    """Data source that traces the running kernel. Implements source.Source.

    It is attached from the constructor until close().
    """

    def __init__(
        self,
        categories: Categories,
        filters: Filters,
        probe: str = "auto",
        waking: bool = False,
        unwind: Unwind = AUTO,
        keep_ns: int = _KEEP_NS,
        debuginfod: Sequence[str] = (),
        mode: str = OFFCPU,
        depth: int = DEFAULT_DEPTH,
    ) -> None:
        """Load and attach the BPF programs.

        `mode` and `depth`: see set_mode. `debuginfod`: servers for debug files. Raises an OfftopError that says what is
        missing and how to get it; nothing stays attached then.
        """
        capabilities = privileges.capabilities()
        privileges.check(capabilities)
        self._reads = GuardedReads()
        self._reads.start()
        self._facts = self._reads.channel(_FACTS_S)
        self._opened = contextlib.ExitStack()
        self._opened.callback(self._reads.close)
        closed = "" if "CAP_SYS_PTRACE" in capabilities else closed_to_us(self._facts)
        which = " of waits in progress" if closed == "memory" else ""
        self._inaccessible = _INACCESSIBLE.format(which) if closed else ""
        """What cannot be read of some processes, and how to fix it; "" if everything can."""
        self._hidden = ""
        """Why the kernel's symbols are unknown; "" if they are known."""
        pid_namespace.own()
        self._filters = filters
        self._cgroups: dict[str, Cgroup] = {}
        self._counted_cgroup: Cgroup | None = None
        """`_cgroups` has the requested cgroups by their names in Filters."""
        self._filter_version = 0
        """Incremented at every change of the thread filter."""
        self._filter_changed_ns = 0
        """Time of the last change."""
        _check_alive([*filters.pids], [*filters.tids])
        self._initial = filters
        self._mode = self._requested_mode = OFFCPU, DEFAULT_DEPTH
        """The mode in effect, and the one requested for the next read."""
        self._lock, self._loading = threading.Lock(), threading.Lock()
        self._keep_ns = keep_ns
        self._servers = debuginfod
        self._closed = self._was_last = False
        try:
            types = libbpf.KernelTypes()
            self._features = features.find(types)
            self._find_cgroup(filters.cgroup)
            self._defines = pid_namespace.defines(types)
            if filters.within and (why := within.lacking(self._features)):
                raise KernelError(f"--within: {why}. Use -p or --filter stack= instead")
            self._watched = Watched(filters.within, filters.pids, self._facts) if filters.within else None
            if self._watched:
                self._opened.callback(self._watched.close)
                self._filters = self._initial = self._watched.narrowed(filters)
            defines = {**self._defines, "WITHIN": 1} if self._watched else self._defines
            self._program = attach(self._features, probe, waking=waking, defines=defines, unwind=unwind)
            self._opened.callback(self._program.close)
            self._start(categories, unwind)
            if self._watched:
                self._watched.attach(self._program)
            self.set_mode(mode, depth)
            self._change_mode()
        except OSError as error:
            self._opened.close()
            raise KernelError(
                f"The kernel refused {error.filename or 'a map'} ({error.strerror}). To see why, run: offtop doctor"
            ) from error
        except BaseException:
            self._opened.close()
            raise

    def _start(self, categories: Categories, unwind: Unwind) -> None:
        maps = self._program.maps
        files = Files(self._reads)
        self._opened.callback(files.perf_maps.close)
        self._procfs = self._reads.channel(_PATIENCE_S, _PATIENCE_A_TICK_S)
        self._processes = Processes(files, self._procfs)
        self._unwind = unwind
        self._pythons = CPythonFrames(maps.get("pythons"))
        self._user_stacks = _user_stacks(files, unwind, maps, self._pythons)
        self._opened.callback(self._user_stacks.close)
        self._debug_files = DebugFiles(self._servers) if self._servers else None
        if self._debug_files:
            self._opened.callback(self._debug_files.close)
        self._names = NameWorker(files, self._debug_files)
        self._opened.callback(self._names.close)
        symbols = self._kernel_symbols = self._symbols()  # the reader processes start in the meantime
        self._catalog = Catalog()
        if self._defines:
            self._catalog.processes[OUTSIDE], self._catalog.details[OUTSIDE] = "(outside)", UNKNOWN
        self._details = DetailsWorker(self._catalog, self._reads)
        self._opened.callback(self._details.close)
        self._stacks = Stacks(
            maps["kernel_stacks"],
            maps["user_stacks"],
            self._catalog,
            categories,
            symbols.lookup,
            self._processes.frames,
            (symbols.address_of("__sched_text_start") or 0, symbols.address_of("__sched_text_end") or 0),
            self._user_stacks.copied,
            self._called_exec,
            self._with_python,
            self._user_stacks.has_rule,
        )
        raw = maps["wakers"], maps["wakes"], maps["objects"]
        self._wakes = Wakes(*raw, self._catalog, self._stacks.of_waker, symbols.variable, self._procfs)
        self._ends = PeersWorker(self._catalog, self._wakes.epolls)
        self._opened.callback(self._ends.close)
        for name, what in _NAMED_BY.items():
            number = syscalls.number_of(name)
            if 0 <= number < layout.CALLS:
                maps["calls"].update(number.to_bytes(4, "little"), what.to_bytes(4, "little"))
        self._interrupts = symbols.ranges(wakers.INTERRUPTS, wakers.is_interrupt)[: layout.INTERRUPTS]
        self._returns = symbols.ranges(wakers.RETURNS, wakers.is_return)[: layout.RETURNS]
        self._scan_cadence = ScanCadence()
        self._prime, self._primed_ns = True, 0
        self._calls = NO_CALLS
        self._caught: list[LongWait] = []
        """Outliers since the last snapshot."""
        self._snapshot_ns = 0
        """Time of the last snapshot."""
        self._lost: dict[str, int] = {}
        self._full: dict[str, int] = {}
        """How often each kernel table was full."""
        self._marks: Thresholds | None = None
        self._lowest_mark_ns = NEVER_NS
        self._requested = self._filters
        self._readers = (0, 0, 0)
        self._filter_changed_ns = time.monotonic_ns()
        self._configure(self._filters, Filters())
        now_ns = time.monotonic_ns()
        sites = Sites(self._stacks, self._wakes, self._catalog)
        self._ledger = Ledger(now_ns, sites.site, self._catalog, _is_alive)
        met = self._user_stacks if unwind.way != "off" else None
        self._drain = Drain(
            self._program, self._catalog, self._stacks, self._wakes, sites, self._details, met, self._ledger.begin
        )
        self._catcher: OutlierEvents | None = None
        if "caught" in maps:
            self._catcher = OutlierEvents(maps["caught"], maps["marks"], self._catalog, sites.site, self._stacks.kernel)
            self._opened.callback(self._catcher.close)
        self._cost = CostMeter(self._program.programs, now_ns, self._program.kprobe_links)
        self._facts.start()
        self._opened.callback(self._cost.close)

    def _symbols(self) -> KernelSymbols | HiddenSymbols:
        try:
            return KernelSymbols.read()
        except OfftopError as error:
            self._hidden = str(error)
            return HiddenSymbols()

    @property
    def notices(self) -> Sequence[str]:
        no_symbols = f"{self._hidden} {_NO_SYMBOLS}" if self._hidden else ""
        refused = self._names.refused
        no_names = f"Function names and .eh_frame are off: {NOT_NOBODY.format(refused)}." if refused else ""
        unconfined = self._watched.notice if self._watched else ""
        return [*filter(None, (no_symbols, self._inaccessible, no_names, unconfined)), *self._program.notices]

    @property
    def host(self) -> str:
        return platform.node()

    @property
    def names(self) -> NameWorker:
        return self._names

    def read(self) -> Snapshot | None:
        """Drain the maps and return a snapshot; None after the last one.

        The last one is when everything requested with -p and -t has exited. Raises KernelError if the kernel refuses.
        """
        if self._was_last:
            return None
        self._was_last = self._requested == self._initial and not _is_any_alive(self._initial)
        with self._open() as is_open:
            return self._read() if is_open else None

    def drain(self) -> None:
        """Drain the maps between two snapshots; the next snapshot includes what was drained.

        The maps have room for about a second of normal load, but a display may refresh once a minute. This is a tick
        like those of read(), except that it applies no new filters, and scans waits in progress only if threads were
        lost. Raises KernelError if the kernel refuses.
        """
        with self._open() as is_open:
            if is_open and self._snapshot_ns:
                self._procfs.refill()
                primed = self._begin_to_prime(self._prime)
                self._tick(self._filters, is_prime=primed, is_walked=primed, filter_changed=False, has_snapshot=False)

    @contextlib.contextmanager
    def _open(self) -> Generator[bool]:
        """Yield whether the source is still open; it stays so until the block ends."""
        try:
            with self._lock:
                yield not self._closed
        except OSError as error:
            raise KernelError(
                f"The BPF maps cannot be read ({error.strerror}). Start offtop again; if that does not help, run: "
                "offtop doctor"
            ) from error

    def _read(self) -> Snapshot:
        requested, in_effect, filter_changed = self._requested, self._filters, False
        mode = self._mode[0]
        known_readers = self._readers
        self._procfs.refill()
        readers = (self._names.reader_pid, self._user_stacks.reader_pid, self._reads.pid)
        followed = self._update_cgroup(requested.cgroup)
        if requested != self._filters or readers != self._readers or followed:
            filter_changed = followed or _thread_filters(requested) != _thread_filters(self._filters)
            # A wait that was filtered out has no stack yet.
            waits_changed = _wait_filters(requested) != _wait_filters(self._filters)
            self._prime = self._prime or filter_changed or waits_changed
            self._filter_version += filter_changed
            self._filter_changed_ns = time.monotonic_ns() if filter_changed else self._filter_changed_ns
            self._readers = readers
            self._configure(requested, self._filters)
            self._filters = requested
        self._change_mode()
        lowest_ns = self._marks.lowest_ns if self._marks else NEVER_NS
        if lowest_ns != self._lowest_mark_ns:
            self._lowest_mark_ns = lowest_ns
            self._configure(self._filters, self._filters)
        every_ns = _PRIME_CGROUP_NS if requested.cgroup else _PRIME_NS
        primed = self._begin_to_prime(self._prime or time.monotonic_ns() - self._primed_ns > every_ns)
        at_ns, taken_ns, machine = self._tick(
            requested,
            is_prime=primed,
            is_walked=primed or self._scan_cadence.is_due,
            filter_changed=filter_changed,
            has_snapshot=True,
            known_readers=known_readers,
            mode=mode,
        )
        if (most := self._wakes.most_kept) is not None:
            self._wakes.forget(set(), self._ledger.drop_wakes(most))
        self._ends.tell()
        cost, missed = self._cost.read(at_ns, self._readers)
        self._user_stacks.fill(at_ns, cost.cpu_pct)
        unread = self._processes.unread + self._user_stacks.unread
        lost = self._lost | {kind: n for kind, n in (("missed_runs", missed), ("unread", unread)) if n}
        caught, self._caught = self._caught, []
        self._snapshot_ns = at_ns
        return Snapshot(
            taken_ns=taken_ns,
            at_ns=at_ns,
            threads=self._ledger.threads.frozen(),
            sites=self._ledger.sites.frozen(),
            waiting=dict(self._ledger.waiting),
            catalog=self._catalog,
            lost=lost,
            cost=cost._replace(walk_ns=self._scan_cadence.took_ns, walk_every=self._scan_cadence.every),
            machine=Machine() if self._watched else machine,  # only part of a thread's time is counted
            storms=dict(self._ledger.storms),
            caught=caught,
            moves=self._ledger.moves,
            mode=mode,
            probe=self._program.probe,
            filters=in_effect,
            calls=self._calls,
        )

    def _begin_to_prime(self, is_due: bool) -> bool:
        if is_due:
            self._prime, self._primed_ns = False, time.monotonic_ns()
            _trim_memory()
        return is_due

    def _tick(
        self,
        requested: Filters,
        *,
        is_prime: bool,
        is_walked: bool,
        filter_changed: bool,
        has_snapshot: bool,
        known_readers: tuple[int, int, int] | None = None,
        mode: str = "",
    ) -> tuple[int, int, Machine]:
        """Drain the maps into the ledger.

        Returns the time on both clocks, and the machine's CPU times as of then.

        `requested`: the filters in effect. `is_walked`: scan the waits in progress; `is_prime`: all of them.
        `filter_changed` and `has_snapshot`: as `anew` and `has_snapshot` of Ledger.tick. `known_readers`: reader
        processes that were excluded in this tick. `mode`: the mode in effect during the tick; default: the current one.
        """
        known_readers, mode = known_readers or self._readers, mode or self._mode[0]
        walk_ns = time.monotonic_ns()
        ran: list[RuntimeSample] = []
        started: list[NewThread] = []
        walks_at_ns = time.thread_time_ns()  # CPU time: on a busy machine this thread is preempted, too
        # First, because switching buffers wakes kernel threads.
        in_progress = self._drain.walk(layout.WALK_WAITS | (layout.WALK_PRIME if is_prime else 0)) if is_walked else b""
        took_ns = time.thread_time_ns() - walks_at_ns
        drained, at_ns, taken_ns = self._drain.flip()
        machine = procfs.machine()
        read_at_ns = time.thread_time_ns()
        walked = list(self._drain.waits(in_progress, ran, started))
        took_ns += time.thread_time_ns() - read_at_ns
        if has_snapshot and not is_prime:  # priming is rare, and reads every stack
            self._scan_cadence.add(took_ns if is_walked else -1, at_ns - self._snapshot_ns)
        self._user_stacks.settle()
        if self._kernel_symbols.renamed():
            self._stacks.kernel_renamed()
            self._wakes.kernel_renamed()
            if self._catcher:
                self._catcher.forget()
        for pid in self._processes.renamed():
            self._stacks.renamed(pid)
            self._wakes.renamed(pid)
        if self._watched:
            self._program.maps["within_now"].update(_ZERO, bytes(layout.CALLS_NOW.size))
        threads = list(self._drain.threads(drained, ran, started, not is_walked))
        if self._watched:
            calls = self._drain.calls(drained, at_ns)
            max_ns = calls.max_ns if self._ledger.follows_snapshot else max(calls.max_ns, self._calls.max_ns)
            self._calls = self._calls.plus(calls)._replace(max_ns=max_ns)
        sites = self._drain.sites(drained)
        caught = self._catcher.take(self._marks) if self._catcher else []
        gone = self._drain.gone(drained, at_ns, threads, ran)
        threads += self._drain.unnamed(drained)
        pids = {self._names.reader_pid, self._user_stacks.reader_pid, self._reads.pid}
        new_readers = pids.difference(known_readers)
        if new_readers:  # BPF has counted them in this tick
            threads = [(key, record) for key, record in threads if key.pid not in new_readers]
            sites = sites.without([row for row, key in enumerate(sites.keys) if key.pid in new_readers])
            walked = [one for one in walked if one.key.pid not in new_readers]
            caught = [one for one in caught if one.site.pid not in new_readers]
            ran = [one for one in ran if one.key.pid not in new_readers]
            started = [one for one in started if one.key.pid not in new_readers]
        self._caught += caught
        # For waits known before this tick: then this tick has them at their stacks already.
        self._place_user_stacks(at_ns, are_all=False)
        ended = self._ledger.tick(
            at_ns,
            requested.min_ns,
            threads,
            sites,
            walked,
            gone=gone,
            ran=ran,
            started=started,
            primed_ns=walk_ns if is_prime else 0,
            anew=filter_changed,
            states=requested.states,
            max_ns=requested.max_ns,
            storms=self._drain.storms(drained) if mode != OFFCPU else {},
            threads_lost=self._drain.count("threads"),
            has_snapshot=has_snapshot,
        )
        self._place_user_stacks(at_ns, are_all=True)
        for key in ended:
            if key.tid == key.pid:
                self._processes.forget(key.pid)
                self._pythons.forget(key.pid)
                self._user_stacks.ended(key.pid)
                self._details.ended(key.pid)
        for key in [*ended, *self._drain.renamed]:
            self._stacks.forget_thread(key)
        self._drain.renamed.clear()
        lost = self._drain.lost()
        full = {kind: self._drain.count(kind) for kind in ("stacks", "wakes")}
        self._stacks.make_room(at_once=full["stacks"] > self._full.get("stacks", 0))
        self._wakes.make_room(at_once=full["wakes"] > self._full.get("wakes", 0))
        self._full = full
        if lost.get("threads", 0) > self._lost.get("threads", 0):
            self._prime = True  # otherwise a lost exit would leave its thread waiting forever
        self._lost = lost
        dropped = self._ledger.age(self._keep_ns)
        if dropped:
            self._stacks.forget(dropped.stacks)
            self._wakes.forget(*dropped)
        self._details.drop_unnamed()
        return at_ns, taken_ns, machine

    def _with_python(
        self, pid: int, frames: tuple[Frame, ...], of_python: Sequence[int], is_whole: bool
    ) -> tuple[tuple[Frame, ...], bool]:
        """Merge Python frames into a stack; see `WithPython` in stacks.py.

        Python's frames are left out if their names are not known in time. That stack stays so; the next one with these
        frames becomes another stack.
        """
        if not of_python:
            self._pythons.ask(pid, frames)
            return frames, False
        with suppress(TimeoutError):
            if image := self._processes.image(pid):
                self._pythons.meet(pid, image)
        mixed = self._pythons.mixed(pid, frames, of_python, is_whole)
        if mixed.unnamed and self._user_stacks.name(pid, mixed.unnamed):
            mixed = self._pythons.mixed(pid, frames, of_python, is_whole)
        if mixed.unnamed:
            self._pythons.change_generation(pid)
            return frames, False
        return mixed.frames, mixed.unsure

    def _place_user_stacks(self, at_ns: int, are_all: bool) -> None:
        """Request the user stacks of waits in progress, and take those that were read.

        `are_all`: see UserStacks.read.
        """
        for one in self._user_stacks.read(self._ledger.waiting, at_ns, are_all):
            self._ledger.read_user(one.key, one.left_ns, self._stacks.user(one.found))

    def set_filters(self, filters: Filters) -> None:
        """Set the filters from the next read on.

        Raises UsageError for a process or thread that does not exist.
        """
        new_pids = [pid for pid in filters.pids if pid not in self._initial.pids]
        _check_alive(new_pids, [tid for tid in filters.tids if tid not in self._initial.tids])
        self._find_cgroup(filters.cgroup)
        self._requested = self._watched.narrowed(filters) if self._watched else filters

    def set_mode(self, mode: str, depth: int = DEFAULT_DEPTH) -> None:
        """Set the mode, one of wake.MODES, from the next read on.

        `depth`: number of wakers in a chain. The first mode with wakers takes a second to load: do not call this from
        the UI thread. Raises KernelError if this kernel cannot report wakers, or if the program for them cannot be
        built.
        """
        if mode != OFFCPU:
            if self._hidden:
                raise KernelError(f"Wakers need the names of kernel functions. {self._hidden}")
            try:
                with self._loading:
                    self._program.load_waking()
            except OSError as error:
                raise KernelError(
                    f"The BPF program for wakers cannot be built ({error.strerror}). Compiling it needs another "
                    "process and memory: free some, and try again"
                ) from error
        self._requested_mode = mode, depth

    def _change_mode(self) -> None:
        """Attach what the requested mode needs, and detach the rest."""
        requested = self._requested_mode  # read once: another thread may change it
        if requested == self._mode:
            return
        wanted = requested[0] != OFFCPU
        if wanted:
            self._program.watch_wakings(True)
        self._prime = self._prime or wanted != bool(self._depth)  # otherwise waits in progress lack their waker
        self._mode = requested
        self._drain.with_wakers = wanted
        self._configure(self._filters, self._filters)
        if not wanted:
            self._program.watch_wakings(False)
        self._cost.watch(self._program.programs)

    def _find_cgroup(self, cgroup: str) -> None:
        """Find a cgroup. Raises UsageError if it does not exist."""
        if not cgroup:
            return
        found = cgroup_selector.find(cgroup)
        if found.hierarchy not in self._features.hierarchies:
            raise UsageError("--cgroup: this kernel's types do not say how to find a thread's cgroup. Use -p instead")
        self._cgroups[cgroup] = found

    def _update_cgroup(self, cgroup: str) -> bool:
        """Return whether another cgroup has this name now: a restarted service gets a new one."""
        found = self._cgroups.get(cgroup)
        if found is None:
            return False
        self._cgroups[cgroup] = found.now()
        return self._cgroups[cgroup] != self._counted_cgroup

    def set_thresholds(self, thresholds: Thresholds | None) -> None:
        self._marks = thresholds

    def wait_for_names(self, frames: set[Frame], seconds: float) -> None:
        self._names.wait(frames, seconds)

    def why_nameless(self, frame: Frame) -> str:
        return self._names.why_nameless(frame)

    def describe(self, pids: Collection[int]) -> None:
        self._details.describe([pid for pid in pids if pid not in PSEUDO_PIDS])

    def find_peers(self, waited_on: Mapping[Object, int]) -> None:
        self._ends.find(waited_on)

    def process_details(self, pid: int) -> Sequence[tuple[str, str]]:
        from offtop.kernel.procfs.process_details import facts  # psutil takes 0.1 s to import, and is rarely needed

        return facts(pid, self._facts)

    def about(self) -> list[tuple[str, str]]:
        maps, switch_in_probes = (
            self._program.maps,
            {"exit": "tracepoint sched_exit_tp", "kprobe": self._features.kprobe_symbol},
        )
        kernel_fill, user_fill = self._stacks.fill
        return [
            *(("missing", one) for one in self.notices),
            ("kernel", f"{platform.release()} {platform.machine()}"),
            (
                "switch-in probe",
                f"{self._program.probe} ({switch_in_probes.get(self._program.probe, 'tracepoint sched_switch')})",
            ),
            ("thread records", "task storage" if self._program.in_task_storage else "a preallocated table"),
            ("run-queue time", "tracepoint sched_waking" if self._program.waking else "the kernel's run_delay"),
            ("wakers", "tracepoint sched_waking" if self._depth else "not recorded (keys 2, 3 and 4)"),
            *([("within", self._watched.summary)] if self._watched else []),
            ("compiler", f"bcc {self._program.bcc_version}"),
            ("maps", f"sites {maps['sites_0'].entries:,}, exited threads {maps['gone_0'].entries:,} per tick"),
            ("stacks", f"kernel {kernel_fill:.0%}, user {user_fill:.0%} of {maps['user_stacks'].entries:,}"),
            ("processes that exited before they were read", f"{self._processes.gone:,}"),
            *([("not read", hung)] if (hung := self._hung_text()) else []),
            ("user stacks", self._user_stacks_text()),
            *self._user_stacks.about(),
            *([("debug files", self._debug_files.summary)] if self._debug_files else []),
            *([("process ids", pid_namespace.told(self._defines))] if self._defines else []),
        ]

    def _hung_text(self) -> str:
        """The processes and devices that hang reads from them; "" if none do."""
        if self._reads.failures >= _MOST_FAILURES:
            return "anything: the process that reads for offtop exits at once. Look for a limit (ulimit -a) or a kill"
        named = self._catalog.process
        hung = sorted(
            f"{named(one)}({one})" if isinstance(one, int) else f"files of {one[1] if isinstance(one, tuple) else one}"
            for one in self._reads.hung
        )
        many = f" and {len(hung) - _MAX_HUNG_SHOWN} more" if len(hung) > _MAX_HUNG_SHOWN else ""
        full = "; no others are read until one of these reads returns" if self._reads.is_full else ""
        return f"{', '.join(hung[:_MAX_HUNG_SHOWN])}{many}{full}" if hung else ""

    def _user_stacks_text(self) -> str:
        way, refused = self._program.unwind, self._drain.count("copies")
        if way.way == "off":
            return "off"
        if not way.is_ruled(self._features):
            return "frame pointers" + ("" if self._unwind.way == "fp" else " (the only way on this kernel)")
        left = f"; {refused:,} stacks not copied, unwound by frame pointers instead (~)" if refused else ""
        return f"{way.way}, {way.stack_kb} KB copied, at most {way.cpu_pct:g}% of a CPU for all of offtop{left}"

    def close(self) -> None:
        if self._lock.acquire(timeout=_CLOSE_SECONDS):  # otherwise a read is stuck: the process's exit frees everything
            self._closed = True
            self._opened.close()
            self._lock.release()

    def _configure(self, filters: Filters, before: Filters) -> None:
        """Write the configuration for the BPF programs.

        New ids are added before old ones are deleted, so that no wait is missed in between.
        """
        maps = self._program.maps
        ids = (("only_pids", filters.pids, before.pids), ("only_tids", filters.tids, before.tids))
        for name, wanted, _ in ids:
            for one in wanted:
                maps[name].update(one.to_bytes(4, "little"), b"\1\0\0\0")
        select = {"user": layout.ONLY_USER, "kernel": layout.ONLY_KERNEL}.get(filters.who, 0)
        select |= (layout.ONLY_PIDS if filters.pids else 0) | (layout.ONLY_TIDS if filters.tids else 0)
        cgroup = self._counted_cgroup = self._cgroups.get(filters.cgroup)
        if cgroup:
            select |= layout.ONLY_CGROUP | (layout.CGROUP_V1 if cgroup.hierarchy else 0)
            if not cgroup.hierarchy:
                try:
                    with cgroup.opened() as fd:
                        maps["only_cgroup"].update(_ZERO, fd.to_bytes(4, "little"))
                except OSError:  # it has just been removed, so it is empty
                    maps["only_cgroup"].delete(_ZERO)
        of_cgroup = (cgroup.id, cgroup.level, self._features.hierarchies[cgroup.hierarchy]) if cgroup else (0, 0, 0)
        states = filters.states or 0xFFFFFFFF
        own_pid = os.getpid()
        interrupts = [*self._interrupts, *[(0, 0)] * layout.INTERRUPTS][: layout.INTERRUPTS]
        returns = [*self._returns, *[(0, 0)] * layout.RETURNS][: layout.RETURNS]
        maps["config"].update(
            _ZERO,
            layout.CONFIG.pack(
                *(filters.min_ns, filters.max_ns or _ALL_ONES, states, select, own_pid, *self._readers),
                *(self._filter_version & 0xFFFFFFFF, self._depth, *of_cgroup),
                *(_ALL_ONES if self._depth else 0, self._lowest_mark_ns, self._filter_changed_ns),
                *chain.from_iterable((*interrupts, *returns)),
            ),
        )
        for name, wanted, old in ids:
            for one in set(old).difference(wanted):
                maps[name].delete(one.to_bytes(4, "little"))

    def _called_exec(self, pid: int) -> int | None:
        known = self._program.maps["execs"].lookup(pid.to_bytes(4, "little"))
        return None if known is None else int.from_bytes(known[:4], "little")

    @property
    def _depth(self) -> int:
        """Number of wakers to record."""
        mode, depth = self._mode
        return 0 if mode == OFFCPU else depth if mode == CHAIN else 1


def _user_stacks(files: Files, unwind: Unwind, maps: Mapping[str, Map], pythons: CPythonFrames) -> UserStacks:
    allowance = Allowance(unwind.cpu_pct)
    if "rules" not in maps:
        return UserStacks(Unwinder(files, "fp", None, pythons), allowance)
    copies = Copies(maps["copies"], maps["allowed"])
    taught = RuleMaps(maps["rules"], maps["spaces"])
    return UserStacks(Unwinder(files, unwind.way, taught, pythons), allowance, copies)


def _check_alive(pids: Sequence[int], tids: Sequence[int]) -> None:
    for pid in pids:
        if not pid_namespace.is_there(pid):
            raise UsageError(f"No process {pid}. Look it up with: pgrep NAME")
    for tid in tids:
        if not Path(f"/proc/{tid}").exists():
            raise UsageError(f"No thread {tid}. List a process's threads with: ps -L -p PID")


def _trim_memory() -> None:
    """Return freed memory to the kernel.

    After a burst of threads that is half of what the process holds, and glibc keeps it.
    """
    with suppress(AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


def _is_alive(key: ThreadKey) -> bool:
    return key.pid in PSEUDO_PIDS or Path(f"/proc/{key.pid}/task/{key.tid}").exists()


def _is_any_alive(filters: Filters) -> bool:
    """Return whether anything is left to watch: always, without -p and -t."""
    ids = (*filters.pids, *filters.tids)
    return not ids or any(map(pid_namespace.is_there, ids))


def _thread_filters(filters: Filters) -> tuple[Sequence[int], Sequence[int], str, str]:
    return filters.pids, filters.tids, filters.who, filters.cgroup


def _wait_filters(filters: Filters) -> tuple[int, int]:
    """The filters that apply to single waits."""
    return filters.states, filters.max_ns
