"""The Source that watches this machine: drains the kernel's maps, adds up, and hands out snapshots."""

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
from offtop.feed.source import Happening
from offtop.kernel.accounting.drain import Drain, ScanCadence, Sites
from offtop.kernel.accounting.ledger import Ledger
from offtop.kernel.accounting.outlier_events import Catcher
from offtop.kernel.accounting.tick_records import Ran, Started
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
from offtop.kernel.resolve.peers import EndsWorker
from offtop.kernel.resolve.stacks import Stacks
from offtop.kernel.resolve.wakes import Wakes
from offtop.kernel.scope import within
from offtop.kernel.scope.within import Watched
from offtop.kernel.symbols.kallsyms import HiddenSymbols, KernelSymbols
from offtop.kernel.symbols.mappings import Processes, closed_to_us
from offtop.kernel.symbols.names import NameWorker
from offtop.kernel.unwind.cpu_allowance import Allowance
from offtop.kernel.unwind.cpython_frames import Pythons
from offtop.kernel.unwind.stack_copies import Copies
from offtop.kernel.unwind.unwinder import Taught, Walker
from offtop.kernel.unwind.user_stacks import UserStacks
from offtop.model.classify import wakers
from offtop.model.classify.categories import Categories
from offtop.model.values.catalog import UNKNOWN, Book, ThreadKey
from offtop.model.values.outlier import NEVER_NS, Caught, Marks
from offtop.model.values.snapshot import OUTSIDE, PSEUDO_PIDS, Filters, Machine, Snapshot
from offtop.model.values.stack import Frame
from offtop.model.values.wake import CHAIN, DEFAULT_DEPTH, OFFCPU, Object
from offtop.model.values.within import NO_CALLS

_ALL_ONES = (1 << 64) - 1
_KEEP_NS = 15 * 60 * 1_000_000_000
"""How long what a window may still name is kept: longer than any History reaches back."""
_PRIME_NS = 60 * 1_000_000_000
"""How often all waits in progress are looked up anew: one whose end was lost would else go on for ever."""
_PRIME_CGROUP_NS = 10 * 1_000_000_000
"""The same of a cgroup: who is moved into it, or out of it, while they wait is noticed only then."""
_CLOSE_SECONDS = 2.0
_PATIENCE_S, _PATIENCE_A_TICK_S = 0.1, 0.25
"""How long a tick waits for one read of another process, and for all reads together that miss their deadline."""
_FACTS_S = 1.0
"""The same of what a person asks of a process: no tick waits for that."""
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
"""How a system call names what it waits on. Those with two descriptors (splice, tee, sendfile, copy_file_range) may
wait on either. restart_syscall goes on with a poll that was interrupted."""
_MOST_TOLD = 10
_ZERO = bytes(4)
_KEPT_OUT = (
    "Missing CAP_SYS_PTRACE (sudo offtop): no user stacks{} of processes that it may not look into, nor what they have "
    "open."
)
_NO_SYMBOLS = "There are no categories, no wakers and no names of kernel functions, and what is waited on is not known."


class LiveSource(Happening):
    """A live kernel. Attached from the constructor on until close(). Implements source.Source."""

    def __init__(
        self,
        categories: Categories,
        filters: Filters,
        door: str = "auto",
        waking: bool = False,
        unwind: Unwind = AUTO,
        keep_ns: int = _KEEP_NS,
        debuginfod: Sequence[str] = (),
        mode: str = OFFCPU,
        depth: int = DEFAULT_DEPTH,
    ) -> None:
        """`mode` and `depth`: as set_mode has them. `debuginfod`: servers to be asked for debug files. Raises an
        OfftopError that says what is missing and how to get it; nothing is left attached then."""
        held = privileges.capabilities()
        privileges.check(held)
        self._reads = GuardedReads()
        self._reads.start()
        self._facts = self._reads.channel(_FACTS_S)
        closed = "" if "CAP_SYS_PTRACE" in held else closed_to_us(self._facts)
        self._kept_out = _KEPT_OUT.format(" while they wait" if closed == "memory" else "") if closed else ""
        """What of some processes is not known, and the remedy; empty: all is."""
        self._hidden = ""
        """Why the kernel's symbols are not known; empty: they are."""
        pid_namespace.own()
        self._filters = filters
        self._cgroups: dict[str, Cgroup] = {}
        self._counted_cgroup: Cgroup | None = None
        """Those that were asked for, by what Filters call them."""
        self._choice = 0
        """Counts up whenever another choice of threads is asked for."""
        self._choice_ns = 0
        """When this one was."""
        _check_alive([*filters.pids], [*filters.tids])
        self._given = filters
        self._mode = self._asked_mode = OFFCPU, DEFAULT_DEPTH
        """What is gathered, and what is to be from the next reading on."""
        self._lock, self._loading = threading.Lock(), threading.Lock()
        self._keep_ns = keep_ns
        self._servers = debuginfod
        self._closed = self._was_last = False
        self._opened = contextlib.ExitStack()
        self._opened.callback(self._reads.close)
        try:
            types = libbpf.KernelTypes()
            self._features = features.find(types)
            self._look_for(filters.cgroup)
            self._defines = pid_namespace.defines(types)
            if filters.within and (why := within.lacking(self._features)):
                raise KernelError(f"--within: {why}. Take -p, or --filter stack=, instead")
            self._watched = Watched(filters.within, filters.pids, self._facts) if filters.within else None
            if self._watched:
                self._opened.callback(self._watched.close)
                self._filters = self._given = self._watched.narrowed(filters)
            defines = {**self._defines, "WITHIN": 1} if self._watched else self._defines
            self._program = attach(self._features, door, waking=waking, defines=defines, unwind=unwind)
            self._opened.callback(self._program.close)
            self._start(categories, unwind)
            if self._watched:
                self._watched.attach(self._program)
            self.set_mode(mode, depth)
            self._change_mode()
        except OSError as error:
            self._opened.close()
            raise KernelError(
                f"The kernel refused {error.filename or 'a map'} ({error.strerror}). See what is missing: offtop doctor"
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
        self._pythons = Pythons(maps.get("pythons"))
        self._user_stacks = _user_stacks(files, unwind, maps, self._pythons)
        self._opened.callback(self._user_stacks.close)
        self._debug_files = DebugFiles(self._servers) if self._servers else None
        if self._debug_files:
            self._opened.callback(self._debug_files.close)
        self._names = NameWorker(files, self._debug_files)
        self._opened.callback(self._names.close)
        symbols = self._kernel_symbols = self._symbols()  # meanwhile the children start that read binaries
        self._book = Book()
        if self._defines:
            self._book.processes[OUTSIDE], self._book.details[OUTSIDE] = "(outside)", UNKNOWN
        self._details = DetailsWorker(self._book, self._reads)
        self._opened.callback(self._details.close)
        self._stacks = Stacks(
            maps["kernel_stacks"],
            maps["user_stacks"],
            self._book,
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
        self._wakes = Wakes(*raw, self._book, self._stacks.of_waker, symbols.variable, self._procfs)
        self._ends = EndsWorker(self._book, self._wakes.epolls)
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
        self._caught: list[Caught] = []
        """What was caught since the last snapshot."""
        self._snapshot_ns = 0
        """As of when that was."""
        self._lost: dict[str, int] = {}
        self._full: dict[str, int] = {}
        """How often a table of the kernel's had no room."""
        self._marks: Marks | None = None
        self._lowest_mark_ns = NEVER_NS
        self._asked = self._filters
        self._readers = (0, 0, 0)
        self._choice_ns = time.monotonic_ns()
        self._configure(self._filters, Filters())
        now_ns = time.monotonic_ns()
        sites = Sites(self._stacks, self._wakes, self._book)
        self._ledger = Ledger(now_ns, sites.site, self._book, _is_alive)
        met = self._user_stacks if unwind.way != "off" else None
        self._drain = Drain(
            self._program, self._book, self._stacks, self._wakes, sites, self._details, met, self._ledger.begin
        )
        self._catcher: Catcher | None = None
        if "caught" in maps:
            self._catcher = Catcher(maps["caught"], maps["marks"], self._book, sites.site, self._stacks.kernel)
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
        no_names = f"Names of functions and .eh_frame are off: {NOT_NOBODY.format(refused)}." if refused else ""
        return [*filter(None, (no_symbols, self._kept_out, no_names)), *self._program.notices]

    @property
    def host(self) -> str:
        return platform.node()

    @property
    def names(self) -> NameWorker:
        return self._names

    def read(self) -> Snapshot | None:
        """Drain what has ended since the last call. When all that was asked for with -p and -t has ended: what it did
        until then, and after that None.

        Raises KernelError if the kernel refuses.
        """
        if self._was_last:
            return None
        self._was_last = self._asked == self._given and not _any_alive(self._given)
        with self._open() as is_open:
            return self._read() if is_open else None

    def drain(self) -> None:
        """Take out what has ended since the last call; the next snapshot has it. Tables have room for what is usual in
        a second, and a display may be drawn once a minute.

        It is a tick like those of read(), but nothing new is asked for, and what waits is not looked at unless threads
        were lost: who draws that reads a snapshot. Raises KernelError if the kernel refuses.
        """
        with self._open() as is_open:
            if is_open and self._snapshot_ns:
                primed = self._begin_to_prime(self._prime)
                self._tick(self._filters, is_prime=primed, is_walked=primed, anew=False, has_snapshot=False)

    @contextlib.contextmanager
    def _open(self) -> Generator[bool]:
        """Whether it is still open; until the block ends it stays so."""
        try:
            with self._lock:
                yield not self._closed
        except OSError as error:
            raise KernelError(
                f"The kernel refused to hand over what it counted ({error.strerror}). Start offtop again; "
                "if it stays, see: offtop doctor"
            ) from error

    def _read(self) -> Snapshot:
        asked, in_effect, anew = self._asked, self._filters, False
        mode = self._mode[0]
        known_readers = self._readers
        self._procfs.refill()
        readers = (self._names.reader_pid, self._user_stacks.reader_pid, self._reads.pid)
        followed = self._follow(asked.cgroup)
        if asked != self._filters or readers != self._readers or followed:
            anew = followed or _selection(asked) != _selection(self._filters)
            # A wait that was left out until now has no stack yet.
            self._prime = (
                self._prime or anew or readers != self._readers or _left_out(asked) != _left_out(self._filters)
            )
            self._choice += anew or readers != self._readers
            self._choice_ns = time.monotonic_ns() if anew else self._choice_ns
            self._readers = readers
            self._configure(asked, self._filters)
            self._filters = asked
        self._change_mode()
        lowest_ns = self._marks.lowest_ns if self._marks else NEVER_NS
        if lowest_ns != self._lowest_mark_ns:
            self._lowest_mark_ns = lowest_ns
            self._configure(self._filters, self._filters)
        every_ns = _PRIME_CGROUP_NS if asked.cgroup else _PRIME_NS
        primed = self._begin_to_prime(self._prime or time.monotonic_ns() - self._primed_ns > every_ns)
        at_ns, taken_ns, machine = self._tick(
            asked,
            is_prime=primed,
            is_walked=primed or self._scan_cadence.is_due,
            anew=anew,
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
            book=self._book,
            lost=lost,
            cost=cost._replace(walk_ns=self._scan_cadence.took_ns, walk_every=self._scan_cadence.every),
            machine=Machine() if self._watched else machine,  # of a thread's time only a part is counted
            storms=dict(self._ledger.storms),
            caught=caught,
            moves=self._ledger.moves,
            mode=mode,
            door=self._program.door,
            filters=in_effect,
            calls=self._calls,
        )

    def _begin_to_prime(self, is_due: bool) -> bool:
        if is_due:
            self._prime, self._primed_ns = False, time.monotonic_ns()
            _give_memory_back()
        return is_due

    def _tick(
        self,
        asked: Filters,
        *,
        is_prime: bool,
        is_walked: bool,
        anew: bool,
        has_snapshot: bool,
        known_readers: tuple[int, int, int] | None = None,
        mode: str = "",
    ) -> tuple[int, int, Machine]:
        """Take what has ended out of the kernel's tables, into the ledger: when that was, on both clocks, and what took
        CPU time until then.

        `asked`: what is counted. `is_walked`: look at the waits in progress; `is_prime`: at all of them. `anew` and
        `has_snapshot`: as Ledger.tick has them. `known_readers`: those that were left out in this tick. `mode`: which
        was gathered; those that are now, otherwise.
        """
        known_readers, mode = known_readers or self._readers, mode or self._mode[0]
        walk_ns = time.monotonic_ns()
        ran: list[Ran] = []
        started: list[Started] = []
        walks_at_ns = time.thread_time_ns()  # what it costs: on a busy machine it is put aside, too
        # First, because the flip itself wakes threads of the kernel.
        in_progress = self._drain.walk(layout.WALK_WAITS | (layout.WALK_PRIME if is_prime else 0)) if is_walked else b""
        took_ns = time.thread_time_ns() - walks_at_ns
        drained, at_ns, taken_ns = self._drain.flip()
        machine = procfs.machine()
        read_at_ns = time.thread_time_ns()
        walked = list(self._drain.waits(in_progress, ran, started))
        took_ns += time.thread_time_ns() - read_at_ns
        if has_snapshot and not is_prime:  # which is rare, and looks up every stack
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
            of_tick = self._drain.calls(drained, at_ns)
            max_ns = of_tick.max_ns if self._ledger.follows_snapshot else max(of_tick.max_ns, self._calls.max_ns)
            self._calls = self._calls.plus(of_tick)._replace(max_ns=max_ns)
        sites = self._drain.sites(drained)
        caught = self._catcher.take(self._marks) if self._catcher else []
        gone = self._drain.gone(drained, at_ns, threads, ran)
        threads += self._drain.unnamed(drained)
        pids = {self._names.reader_pid, self._user_stacks.reader_pid, self._reads.pid}
        new_readers = pids.difference(known_readers)
        if new_readers:  # the kernel has counted them in this tick
            threads = [(key, record) for key, record in threads if key.pid not in new_readers]
            sites = sites.without([row for row, key in enumerate(sites.keys) if key.pid in new_readers])
            walked = [one for one in walked if one.key.pid not in new_readers]
            caught = [one for one in caught if one.site.pid not in new_readers]
            ran = [one for one in ran if one.key.pid not in new_readers]
            started = [one for one in started if one.key.pid not in new_readers]
        self._caught += caught
        # Of waits that were known before: they stand there in this tick already.
        self._place_user_stacks(at_ns, are_all=False)
        ended = self._ledger.tick(
            at_ns,
            asked.min_ns,
            threads,
            sites,
            walked,
            gone=gone,
            ran=ran,
            started=started,
            primed_ns=walk_ns if is_prime else 0,
            anew=anew,
            states=asked.states,
            max_ns=asked.max_ns,
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
            self._prime = True  # or one that ended and was lost would wait for ever
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
        """As Stacks wants it. Without Python's frames where it is not known in time what they are called; that stack
        stays so, and the next one of these frames is another one."""
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
            self._pythons.begin_anew(pid)
            return frames, False
        return mixed.frames, mixed.unsure

    def _place_user_stacks(self, at_ns: int, are_all: bool) -> None:
        """Ask for those of the waits in progress, and take what was read. `are_all`: as UserStacks.read has it."""
        for one in self._user_stacks.read(self._ledger.waiting, at_ns, are_all):
            self._ledger.read_user(one.key, one.left_ns, self._stacks.user(one.found))

    def set_filters(self, filters: Filters) -> None:
        """From the next read on, count only this. Raises UsageError for a process that is not there."""
        new_pids = [pid for pid in filters.pids if pid not in self._given.pids]
        _check_alive(new_pids, [tid for tid in filters.tids if tid not in self._given.tids])
        self._look_for(filters.cgroup)
        self._asked = self._watched.narrowed(filters) if self._watched else filters

    def set_mode(self, mode: str, depth: int = DEFAULT_DEPTH) -> None:
        """From the next reading on, gather what this mode shows, one of wake.MODES; `depth`: how many wakers of a
        chain. Where no mode with wakers was asked for before, it takes a second: not for the thread of a screen.

        Raises KernelError where this kernel cannot tell wakers, or the program for them cannot be made.
        """
        if mode != OFFCPU:
            if self._hidden:
                raise KernelError(f"Wakers cannot be told without the names of the kernel's functions. {self._hidden}")
            try:
                with self._loading:
                    self._program.load_waking()
            except OSError as error:
                raise KernelError(
                    f"Wakers cannot be told: their program could not be made ({error.strerror}). Compiling it needs a "
                    "process more, and memory: make room, and try again"
                ) from error
        self._asked_mode = mode, depth

    def _change_mode(self) -> None:
        """Attach what the mode needs, and detach what it does not."""
        asked = self._asked_mode  # read once: it may change meanwhile
        if asked == self._mode:
            return
        wanted = asked[0] != OFFCPU
        if wanted:
            self._program.watch_wakings(True)
        self._prime = self._prime or wanted != bool(self._depth)  # what goes on is said to have no waker otherwise
        self._mode = asked
        self._drain.with_wakers = wanted
        self._configure(self._filters, self._filters)
        if not wanted:
            self._program.watch_wakings(False)
        self._cost.watch(self._program.programs)

    def _look_for(self, cgroup: str) -> None:
        """Raises UsageError for one that is not there."""
        if not cgroup:
            return
        found = cgroup_selector.find(cgroup)
        if found.hierarchy not in self._features.hierarchies:
            raise UsageError("--cgroup: this kernel does not tell how to find a thread's cgroup. Take -p")
        self._cgroups[cgroup] = found

    def _follow(self, cgroup: str) -> bool:
        """Whether there is another one of that name now: a service that begins again has a new one."""
        found = self._cgroups.get(cgroup)
        if found is None:
            return False
        self._cgroups[cgroup] = found.now()
        return self._cgroups[cgroup] != self._counted_cgroup

    def catch(self, marks: Marks | None) -> None:
        self._marks = marks

    def wait_for_names(self, frames: set[Frame], seconds: float) -> None:
        self._names.wait(frames, seconds)

    def why_nameless(self, frame: Frame) -> str:
        return self._names.why_nameless(frame)

    def describe(self, pids: Collection[int]) -> None:
        self._details.describe([pid for pid in pids if pid not in PSEUDO_PIDS])

    def find_ends(self, waited_on: Mapping[Object, int]) -> None:
        self._ends.find(waited_on)

    def facts(self, pid: int) -> Sequence[tuple[str, str]]:
        from offtop.kernel.procfs.process_details import facts  # psutil takes a tenth of a second to load, and few ask

        return facts(pid, self._facts)

    def about(self) -> list[tuple[str, str]]:
        maps, doors = self._program.maps, {"exit": "tracepoint sched_exit_tp", "kprobe": self._features.kprobe_symbol}
        kernel_fill, user_fill = self._stacks.fill
        return [
            *(("missing", one) for one in self.notices),
            ("kernel", f"{platform.release()} {platform.machine()}"),
            ("door", f"{self._program.door} ({doors.get(self._program.door, 'tracepoint sched_switch')})"),
            ("thread records", "task storage" if self._program.in_task_storage else "a preallocated table"),
            ("run-queue time", "tracepoint sched_waking" if self._program.waking else "the kernel's run_delay"),
            ("wakers", "tracepoint sched_waking" if self._depth else "not asked for (keys 2, 3 and 4)"),
            *([("within", self._watched.told)] if self._watched else []),
            ("compiler", f"bcc {self._program.bcc_version}"),
            ("maps", f"sites {maps['sites_0'].entries:,}, ended threads {maps['gone_0'].entries:,} a tick"),
            ("stacks", f"kernel {kernel_fill:.0%}, user {user_fill:.0%} of {maps['user_stacks'].entries:,}"),
            ("processes gone before they were read", f"{self._processes.gone:,}"),
            *([("not read", told)] if (told := self._on_hung()) else []),
            ("user stacks", self._on_user_stacks()),
            *self._user_stacks.about(),
            *([("debug files", self._debug_files.told)] if self._debug_files else []),
            *([("process ids", pid_namespace.told(self._defines))] if self._defines else []),
        ]

    def _on_hung(self) -> str:
        """Which processes and devices hang who reads them; empty: none."""
        named = self._book.process
        hung = sorted(f"{named(one)}({one})" if isinstance(one, int) else f"files of {one}" for one in self._reads.hung)
        many = f" and {len(hung) - _MOST_TOLD} more" if len(hung) > _MOST_TOLD else ""
        full = "; no others are read until one of them goes on" if self._reads.is_full else ""
        return f"{', '.join(hung[:_MOST_TOLD])}{many}{full}" if hung else ""

    def _on_user_stacks(self) -> str:
        way, refused = self._program.unwind, self._drain.count("copies")
        if way.way == "off":
            return "off"
        if not way.is_ruled(self._features):
            return "along frame pointers" + ("" if self._unwind.way == "fp" else " (this kernel has no other way)")
        left = f"; {refused:,} waits not copied, which have their frame pointers' (~)" if refused else ""
        return f"{way.way}, {way.stack_kb} KB copied, {way.cpu_pct:g}% of a CPU for all of offtop{left}"

    def close(self) -> None:
        if self._lock.acquire(timeout=_CLOSE_SECONDS):  # else a reading is stuck: all goes with the process
            self._closed = True
            self._opened.close()
            self._lock.release()

    def _configure(self, filters: Filters, before: Filters) -> None:
        """Tell the kernel side what to count. New ids come before old ones go, so that no wait falls between."""
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
                except OSError:  # it has just been removed: nobody is in it
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
                *(self._choice & 0xFFFFFFFF, self._depth, *of_cgroup),
                *(_ALL_ONES if self._depth else 0, self._lowest_mark_ns, self._choice_ns),
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
        """How many wakers are asked for."""
        mode, depth = self._mode
        return 0 if mode == OFFCPU else depth if mode == CHAIN else 1


def _user_stacks(files: Files, unwind: Unwind, maps: Mapping[str, Map], pythons: Pythons) -> UserStacks:
    allowance = Allowance(unwind.cpu_pct)
    if "rules" not in maps:
        return UserStacks(Walker(files, "fp", None, pythons), allowance)
    copies = Copies(maps["copies"], maps["allowed"])
    taught = Taught(maps["rules"], maps["spaces"])
    return UserStacks(Walker(files, unwind.way, taught, pythons), allowance, copies)


def _check_alive(pids: Sequence[int], tids: Sequence[int]) -> None:
    for pid in pids:
        if not pid_namespace.is_there(pid):
            raise UsageError(f"No process {pid}. Look it up with: pgrep NAME")
    for tid in tids:
        if not Path(f"/proc/{tid}").exists():
            raise UsageError(f"No thread {tid}. List a process's threads with: ps -L -p PID")


def _give_memory_back() -> None:
    """What was freed: after a storm of threads that is half of what the process holds, and glibc keeps it."""
    with suppress(AttributeError):  # another libc than glibc
        ctypes.CDLL(None).malloc_trim(0)


def _is_alive(key: ThreadKey) -> bool:
    return key.pid in PSEUDO_PIDS or Path(f"/proc/{key.pid}/task/{key.tid}").exists()


def _any_alive(filters: Filters) -> bool:
    """Whether there is anything to watch yet: always so, without -p and -t."""
    ids = (*filters.pids, *filters.tids)
    return not ids or any(map(pid_namespace.is_there, ids))


def _selection(filters: Filters) -> tuple[Sequence[int], Sequence[int], str, str]:
    return filters.pids, filters.tids, filters.who, filters.cgroup


def _left_out(filters: Filters) -> tuple[int, int]:
    """What decides it of a wait."""
    return filters.states, filters.max_ns
