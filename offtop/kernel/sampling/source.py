"""Data source that samples /proc, for users and machines without BPF.

A thread samples all threads as often as its share of a CPU allows; the polling thread samples once more at the end of
each tick. offtop/kernel/sampling/totals.py turns the samples into totals. Wakers, user functions, and what happens
between two samples are unknown.
"""

import errno
import os
import platform
import random
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from offtop.errors import KernelError, OfftopError, UsageError
from offtop.feed.source import LiveFeed
from offtop.kernel.bpf.cost import context_switches
from offtop.kernel.bpf.privileges import CAPABILITIES, is_confined
from offtop.kernel.procfs import threads as procfs
from offtop.kernel.procfs.cgroups import content_of, lines_of, mounted
from offtop.kernel.procfs.guarded_reads import GuardedReads
from offtop.kernel.procfs.processes import DetailsWorker, program_name
from offtop.kernel.procfs.threads import READY, SchedStat, ThreadScanner, ThreadState, status_of
from offtop.kernel.sampling.totals import LATE_NS, LATE_WITHOUT_TICKS_NS, SampledTotals
from offtop.model.classify.categories import Categories
from offtop.model.values.catalog import Catalog, ThreadKey
from offtop.model.values.disks import LIST_UNITS
from offtop.model.values.outlier import Thresholds
from offtop.model.values.snapshot import Cost, Filters, Machine, Sampling, Snapshot
from offtop.model.values.stack import FIRST_STACK, NO_STACK, Frame, Stack, nameless
from offtop.model.values.wake import OFFCPU, Object
from offtop.printable import printable
from offtop.units import NS_PER_S
from offtop.worker import Worker

PROBE = "proc"
_ROOT = "/proc"
_DETAILS_S = 1.0
"""How long one read for a process's details may take."""
_MIN_S, _MAX_S = 0.01, 10.0
"""Shortest and longest time between two scans. The former is also the least CPU time for each kind of lookup."""
_MIN_PART = 5
"""At least one part in so many of offtop's CPU share is for sampling, whatever the rest needs."""
_MIN_TICK_S = 0.2
"""In a shorter tick the CPU use of the rest is not representative: it may be the start."""
_COST_WEIGHT = 4
"""One scan counts a quarter in the moving average of their cost."""
_KINDS = 3
"""Kinds of lookup for each thread: its stack, whether it is runnable, and how often it was preempted."""
_CLOSE_SECONDS = 2.0
_KEEP_NS = 15 * 60 * NS_PER_S
_FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""PROC_PID_INIT_INO (include/linux/proc_ns.h)."""
_PTRACE = CAPABILITIES["CAP_SYS_PTRACE"].bit
MISSING = "wakers, user functions, and the stacks of waits shorter than the sampling interval"


class NeedsBpfError(UsageError):
    """Sampling cannot measure this."""


class KernelNames:
    """Names of kernel frames, which carry their own. Implements model.stack.Names."""

    version = 0

    def of(self, frame: Frame) -> str:
        return printable(frame.name) if frame.name else nameless(frame)


class ProcSource(LiveFeed):
    """Data source that samples /proc. Implements source.Source.

    It samples from the constructor until close().
    """

    def __init__(
        self,
        categories: Categories,
        filters: Filters,
        cpu_pct: float = 5.0,
        keep_ns: int = _KEEP_NS,
        mode: str = OFFCPU,
        refused: OfftopError | None = None,
        ignored: Sequence[str] = (),
    ) -> None:
        """Start sampling.

        `cpu_pct` is for all of offtop, in percent of one CPU; `refused` says why there is no BPF; `ignored` are options
        that only BPF follows. Raises an OfftopError if sampling cannot measure what is requested.
        """
        self._ignored = ignored
        self._refusal = f" without BPF ({str(refused).partition('. ')[0]})" if refused else ""
        procfs.check_schedstat(_ROOT)
        _check(filters)
        _check_mode(mode)
        self._categories, self._keep_ns = categories, keep_ns
        self._own_pid, self._uid = procfs.own_pid(_ROOT), os.geteuid()
        caps = int(status_of("self")["CapEff"], 16)
        self._is_confined = is_confined()
        self.own_only = not caps >> _PTRACE & 1 or self._is_confined
        self._container_only = _is_contained() and self._own_pid == os.getpid()  # else /proc is of another namespace
        self._blocked = self._with_stack = self._with_call = 0
        """How many samples were of blocked threads, and how many of these had a stack or a system call."""
        self._filters = self._requested = filters
        _check_there(filters, self.own_only)
        self._initial = filters
        self._share_pct, self._sampling_pct = cpu_pct, cpu_pct
        self._catalog = Catalog(has_programs=False)
        self._names = KernelNames()
        self._reads = GuardedReads()
        self._detail_reads = self._reads.channel(_DETAILS_S)
        self._details = DetailsWorker(self._catalog, self._reads)
        self._totals = SampledTotals(
            self._catalog, time.monotonic_ns(), LATE_NS if _has_ticks() else LATE_WITHOUT_TICKS_NS
        )
        self._stacks: dict[tuple[Frame, ...], int] = {}
        self._next_stack = FIRST_STACK
        self._tasks = self._tasks_of(filters)
        self._scans = 0
        self._scan_s = 0.0
        """Moving average of the CPU time of one scan."""
        self._sampling_s = 0.0
        """CPU time of all scans and of the lookups at ticks."""
        self._resume_s = self._began_s = time.monotonic()
        """No scan starts before this time, except at ticks."""
        self._scan_ns = time.monotonic_ns()
        """When the latest scan began."""
        self._last_tick = time.monotonic_ns(), 0.0, time.process_time(), context_switches()
        """As of the last tick: time, CPU time of sampling and of offtop, and context switches of the machine."""
        self._lost = 0
        """Threads that started and exited between two scans."""
        self._thresholds: Thresholds | None = None
        self._was_last = False
        self._lock = threading.Lock()
        self._failure: Exception | None = None
        self._started_before = _threads_started()
        self._scan(filter_changed=True)
        self._threads_seen_before = self._totals.threads_seen
        """Counts as of the first scan: of the threads started since, those never seen are lost."""
        self._worker = Worker("offtop-scans", self._run)
        self._worker.wake()

    @property
    def notices(self) -> Sequence[str]:
        what = "/proc is"
        if self.own_only:
            what = "only your own processes are"
        elif self._container_only:
            what = "only this container's processes are"
        sampled = f"{what} sampled{self._refusal}; unknown: {self._missing}"
        if not self._ignored:
            return (sampled,)
        return f"without BPF these options have no effect: {', '.join(self._ignored)}", sampled

    @property
    def _missing(self) -> str:
        lost = "" if self._knows_lost(self._filters) else "; also how many threads started and exited in between"
        return f"{MISSING}{lost}"

    def _knows_lost(self, filters: Filters) -> bool:
        """Return whether every new thread on this machine is sampled."""
        counts_all = not (filters.pids or filters.tids or filters.cgroup) and filters.who == "all"
        return counts_all and not self.own_only and not _is_contained()

    @property
    def host(self) -> str:
        return platform.node()

    @property
    def names(self) -> KernelNames:
        return self._names

    def read(self) -> Snapshot | None:
        """Sample, and return a snapshot; None after the last one.

        The last one is when everything requested with -p and -t has exited. Raises KernelError if /proc can no longer
        be read.
        """
        if self._was_last:
            return None
        ids = (*self._initial.pids, *self._initial.tids)
        self._was_last = (
            self._requested == self._initial and bool(ids) and not any(Path(_ROOT, str(one)).exists() for one in ids)
        )
        try:
            with self._lock:
                if self._worker.is_closing and not self._failure:
                    return None
                if self._failure:
                    raise self._failure
                return self._read()
        except OSError as error:
            remedy = "Mount it: mount -t proc proc /proc"
            if error.errno in (errno.EMFILE, errno.ENFILE):
                remedy = "Allow more open files: ulimit -n 4096"
            raise KernelError(f"/proc cannot be read ({error.strerror}). {remedy}") from error

    def _read(self) -> Snapshot:
        in_effect, started = self._filters, _threads_started()
        self._scan()
        lost_known = self._knows_lost(in_effect)
        if lost_known:
            self._lost = max(
                self._lost, started - self._started_before - (self._totals.threads_seen - self._threads_seen_before)
            )
        if self._requested != self._filters:
            self._filters = self._requested
            self._tasks.close()
            self._tasks = self._tasks_of(self._filters)
            self._scan(filter_changed=True)
            self._started_before, self._threads_seen_before = started - self._lost, self._totals.threads_seen
        self._look_up_details()
        at_ns, taken_ns = time.monotonic_ns(), time.time_ns()
        self._totals.thresholds = self._thresholds
        waiting, long_waits = self._totals.end_tick(at_ns)
        self._totals.evict_old(self._keep_ns)
        self._details.drop_unnamed()
        return Snapshot(
            taken_ns=taken_ns,
            at_ns=at_ns,
            threads=self._totals.threads.frozen(),
            sites=self._totals.sites.frozen(),
            waiting=waiting,
            catalog=self._catalog,
            lost={"threads": self._lost} if self._lost else {},
            cost=self._cost(at_ns),
            machine=Machine() if self.own_only else procfs.machine_times(),
            long_waits=long_waits,
            probe=PROBE,
            filters=in_effect,
            sampling=Sampling(
                *(self._scans, self._totals.guessed_ns, self.own_only, lost_known, self._totals.max_gap_ns),
                container_only=self._container_only,
            ),
        )

    def _look_up_details(self) -> None:
        """Look up what the counters do not say, for as many threads as there is time for."""
        began_s = time.thread_time()
        for key in self._in_time(self._totals.maybe_runnable, self._last_tick[0]):
            if procfs.is_ready(_ROOT, key):
                self._totals.mark_runnable(key, time.monotonic_ns())
        for key in self._in_time(self._totals.stale_switches, self._last_tick[0]):
            switches = procfs.context_switches(_ROOT, key)
            if switches:
                self._totals.set_switches(key, *switches)
        self._spend(time.thread_time() - began_s)

    def _in_time(self, keys: list[ThreadKey], since_ns: int) -> Iterator[ThreadKey]:
        """Yield as many of these, in random order, as there is CPU time for since `since_ns`."""
        random.shuffle(keys)
        max_s = (time.monotonic_ns() - since_ns) / NS_PER_S * self._sampling_pct / 100 / _KINDS
        until_s = time.thread_time() + max(_MIN_S, max_s)
        for key in keys:
            yield key
            if time.thread_time() > until_s:
                return

    def _spend(self, sampling_s: float) -> None:
        """Account for CPU time; until it is compensated, only ticks sample."""
        now_s = time.monotonic()
        self._sampling_s += sampling_s
        self._resume_s = min(max(self._resume_s, now_s) + sampling_s * 100 / self._sampling_pct, now_s + _MAX_S)

    def _run(self, worker: Worker) -> None:
        while worker.rest(self._rest_s):
            with self._lock:
                if worker.is_closing:
                    return
                if self._rest_s > _MIN_S:  # a tick has sampled in the meantime
                    continue
                try:
                    self._scan()
                except Exception as error:
                    self._failure = error
                    return

    @property
    def _rest_s(self) -> float:
        """Seconds until the next scan."""
        return max(_MIN_S, self._resume_s - time.monotonic())

    def _scan(self, filter_changed: bool = False) -> None:
        """Scan all threads."""
        began_s, before_ns = time.thread_time(), self._scan_ns
        self._scan_ns = time.monotonic_ns()
        self._totals.begin_scan(self._scan_ns, filter_changed)
        found, ended, left = self._tasks.scan()
        if filter_changed:
            left = [*self._totals.known_threads - {one.key for one in found}]
        for key in left:
            self._totals.end_thread(key)
        for key in ended:
            self._end(key)
        new: list[ThreadKey] = []
        moved: dict[ThreadKey, SchedStat] = {}
        for one in found:
            counters = procfs.parse_counters(one.schedstat)
            if not self._totals.needs_stack(one.key, counters):
                self._totals.add_sample(one.key, one.at_ns, counters, None, NO_STACK)
            elif self._totals.is_known(one.key):
                moved[one.key] = one
            else:
                new.append(one.key)
        for key in new:
            self._sample_stack(key)
        for key in self._in_time([*moved], before_ns):
            self._sample_stack(key)
            del moved[key]
        for one in moved.values():
            self._totals.add_assumed_sample(one.key, one.at_ns, procfs.parse_counters(one.schedstat))
        self._scans += 1
        if not filter_changed:  # the first scan with a filter reads every stack
            took_s = time.thread_time() - began_s
            self._spend(took_s)
            self._scan_s = self._scan_s + (took_s - self._scan_s) / _COST_WEIGHT if self._scan_s else took_s

    def _sample_stack(self, key: ThreadKey) -> None:
        """Read its stack."""
        task, seen = self._tasks.reread(key), procfs.read_state(_ROOT, key)
        if not task.schedstat or seen is None:
            self._end(key)
            return
        self._note_names(key, seen)  # if it has run since, its counters show that at the next scan
        self._blocked += seen.state != READY
        self._with_stack += seen.has_stack
        self._with_call += seen.call >= 0
        kernel = self._stack_id(seen.frames) if seen.frames else NO_STACK
        self._totals.add_sample(key, task.at_ns, procfs.parse_counters(task.schedstat), seen, kernel)

    def _end(self, key: ThreadKey) -> None:
        self._totals.end_thread(key, time.monotonic_ns())
        if key.tid == key.pid:
            self._details.note_exited(key.pid)

    def _note_names(self, key: ThreadKey, seen: ThreadState) -> None:
        catalog = self._catalog
        catalog.comms[key] = seen.comm
        if key.tid == key.pid:
            catalog.processes[key.pid] = program_name(key.pid, seen.comm)
            self._details.note_alive(key.pid)
        elif key.pid not in catalog.processes:
            name = procfs.read_file(f"{_ROOT}/{key.pid}/comm").rstrip(b"\n")
            if name:
                catalog.processes[key.pid] = program_name(key.pid, os.fsdecode(name))
        if seen.call >= 0 and seen.call not in catalog.calls:
            name = procfs.call_name(seen.call)
            if name:
                catalog.calls[seen.call] = name

    def _stack_id(self, frames: tuple[Frame, ...]) -> int:
        known = self._stacks.get(frames)
        if known is None:
            known = self._stacks[frames] = self._next_stack
            self._next_stack += 1
            names = [frame.name for frame in frames]
            tail = self._categories.tail_length(names)
            trimmed = names[tail:]
            category, entry = self._categories.classify(trimmed), self._categories.entry_length(trimmed)
            self._catalog.stacks[known] = Stack(frames, tail, category, entry)
        return known

    def _tasks_of(self, filters: Filters) -> ThreadScanner:
        """The task scan for these filters."""
        pids, tids, who, cgroup = filters.pids, filters.tids, filters.who, filters.cgroup

        def wanted(pid: int) -> bool:
            if pid == self._own_pid or (pids and pid not in pids):
                return False
            if self.own_only and not self._is_own(pid):
                return False
            if who != "all" and procfs.is_of_kernel(_ROOT, pid) != (who == "kernel"):
                return False
            paths = (path for _, path in lines_of(content_of(pid)))
            return not cgroup or any(f"{path}/".startswith(f"{cgroup.rstrip('/')}/") for path in paths)

        return ThreadScanner(_ROOT, wanted, tids)

    def _is_own(self, pid: int) -> bool:
        """Return whether it is one of the user's own processes.

        In a user namespace, root may inspect all of its processes and no others: there, whether the process is one of
        these.
        """
        if self._is_confined:
            return procfs.may_trace(_ROOT, pid)
        try:
            return Path(_ROOT, str(pid)).stat().st_uid == self._uid
        except OSError:  # it has just exited
            return False

    def _cost(self, at_ns: int) -> Cost:
        """Return the cost of this tick, and set the share of sampling from now on."""
        last_ns, last_sampling_s, last_used_s, last_switches = self._last_tick
        used_s, switches = time.process_time(), context_switches()
        self._last_tick = at_ns, self._sampling_s, used_s, switches
        tick_s = max(1e-3, (at_ns - last_ns) / NS_PER_S)
        rest_pct = 100 * (used_s - last_used_s - (self._sampling_s - last_sampling_s)) / tick_s
        if tick_s >= _MIN_TICK_S:
            self._sampling_pct = max(self._share_pct / _MIN_PART, self._share_pct - max(0.0, rest_pct))
        return Cost(
            switches=switches - last_switches,
            cpu_pct=100 * (used_s - last_used_s) / tick_s,
            rss_bytes=procfs.own_rss_bytes(_ROOT),
            scan_ns=round(self._scan_s * NS_PER_S),
        )

    def set_filters(self, filters: Filters) -> None:
        """Set the filters from the next read on.

        Raises UsageError if a process or thread is missing, and NeedsBpfError.
        """
        _check(filters)
        new = Filters(
            pids=tuple(set(filters.pids).difference(self._initial.pids)),
            tids=tuple(set(filters.tids).difference(self._initial.tids)),
        )
        _check_there(new, self.own_only)
        self._requested = filters

    def set_mode(self, mode: str, depth: int) -> None:
        """Raises NeedsBpfError for modes with wakers."""
        _check_mode(mode)

    def set_counted(self, mode: str, wanted: bool) -> None:
        """Raises NeedsBpfError."""
        if wanted:
            raise NeedsBpfError(NOT_LISTED[mode])

    def set_thresholds(self, thresholds: Thresholds | None) -> None:
        self._thresholds = thresholds

    def wait_for_names(self, frames: set[Frame], seconds: float) -> bool:
        """Return at once: kernel frames carry their names."""
        return True

    def why_nameless(self, frame: Frame) -> str:
        return ""

    def describe(self, pids: Collection[int]) -> None:
        self._details.describe(pids)

    def find_peers(self, waited_on: Mapping[Object, int]) -> None:
        """Nothing to find: wait objects are unknown."""

    def process_details(self, pid: int) -> Sequence[tuple[str, str]]:
        from offtop.kernel.procfs.process_details import read_details  # as in live.py

        return read_details(pid, self._detail_reads)

    @property
    def _where(self) -> str:
        """What identifies most waits."""
        if 2 * self._with_stack >= self._blocked:
            return "kernel stacks"
        if 2 * self._with_call >= self._blocked:
            return "kernel function and system call only (stacks need root)"
        return "kernel function only (stacks need root, system calls kernel.yama.ptrace_scope=0)"

    def about(self) -> list[tuple[str, str]]:
        passed_s = time.monotonic() - self._began_s
        rate_hz, took_pct = self._scans / passed_s, 100 * self._sampling_s / passed_s
        processes = "your own processes only" if self.own_only else "all processes"
        return [
            ("kernel", f"{platform.release()} {platform.machine()}"),
            ("switch-in probe", f"{PROBE} (threads are sampled; BPF sees every wait)"),
            ("scans", f"~{rate_hz:.0f}/s, {len(self._totals):,} threads of {processes}"),
            ("scan cost", f"{took_pct:.1f}% of a CPU (limit for all of offtop: {self._share_pct:g}%)"),
            ("exact", "run time, run-queue time and number of waits of each thread, from its first scan to its last"),
            ("blocked time", "the rest, including time stolen by the hypervisor or used by interrupts"),
            ("estimated (~)", "stacks, lengths of single waits (upper bounds), preempted time"),
            ("waits identified by", self._where),
            ("run-queue time", "the kernel's run_delay"),
            ("unknown", self._missing),
            *([("without effect", ", ".join(self._ignored))] if self._ignored else []),
        ]

    def close(self) -> None:
        self._worker.close(_CLOSE_SECONDS)
        if self._lock.acquire(timeout=_CLOSE_SECONDS):
            self._tasks.close()
            self._details.close()
            self._reads.close()
            self._lock.release()


def _has_ticks() -> bool:
    """Return whether every CPU has periodic ticks, which update a running thread's CPU time."""
    try:
        return Path("/sys/devices/system/cpu/nohz_full").read_text().strip() in ("", "(null)")
    except OSError:  # before 4.2, or without CONFIG_NO_HZ_FULL
        return True


def _is_contained() -> bool:
    """Return whether /proc may show only some of the machine's threads."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino != _FIRST_PID_NAMESPACE
    except OSError:  # there are no pid namespaces
        return False


def _threads_started() -> int:
    """How many threads have started on this machine, except our own."""
    with Path(_ROOT, "stat").open() as lines:
        every = next((int(line.split()[1]) for line in lines if line.startswith("processes ")), 0)
    return every - threading.active_count()


def _check(filters: Filters) -> None:
    """Raises NeedsBpfError."""
    if filters.within:
        raise NeedsBpfError("--within needs BPF: sampling /proc cannot see user functions. Use -p instead")
    if filters.states or filters.max_ns:
        option = "--state" if filters.states else "--max"
        raise NeedsBpfError(f"{option} needs BPF: sampling /proc cannot see single waits. Leave it out")
    if filters.cgroup and any(f"{filters.cgroup}/".startswith(f"{mount.point}/") for mount in mounted()):
        raise NeedsBpfError(
            "--cgroup needs BPF for this directory: /proc has only the path in another hierarchy. "
            "Use -p with its processes instead"
        )


UNSEEN = {mode: f"sampling /proc cannot see single {unit}" for mode, unit in LIST_UNITS.items()}
"""Why there is nothing to list, by mode."""
NOT_LISTED = {mode: f"Mode {mode} needs BPF: {why}. Use mode offcpu" for mode, why in UNSEEN.items()}


def _check_mode(mode: str) -> None:
    if mode != OFFCPU:
        raise NeedsBpfError(f"Mode {mode} needs BPF: sampling /proc cannot see wakers. Use mode offcpu")


def _check_there(filters: Filters, own_only: bool) -> None:
    for pid in filters.pids:
        try:
            is_own = Path(_ROOT, str(pid)).stat().st_uid == os.geteuid()
        except OSError:
            raise UsageError(f"No process {pid}. Look it up with: pgrep NAME") from None
        if own_only and not is_own:
            raise UsageError(
                f"Process {pid} is not yours, and without root only your own are sampled. Try: sudo offtop -p {pid}"
            )
    for tid in filters.tids:
        if not Path(_ROOT, str(tid)).exists():
            raise UsageError(f"No thread {tid}. List a process's threads with: ps -L -p PID")
