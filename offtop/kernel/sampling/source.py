"""The Source for where BPF is refused: looks at all threads in /proc, as often as its share of a CPU allows.

A thread of its own does that, and the thread that reads once more at the end of each tick. What comes of it is in
procaccount.py. Who ended a wait, the functions of the program, and what passes between two looks are not known.
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
from offtop.feed.source import Happening
from offtop.kernel.bpf.cost import context_switches
from offtop.kernel.bpf.privileges import CAPABILITIES, is_confined
from offtop.kernel.procfs import threads as procfs
from offtop.kernel.procfs.cgroups import content_of, lines_of, mounted
from offtop.kernel.procfs.guarded_reads import GuardedReads
from offtop.kernel.procfs.processes import DetailsWorker
from offtop.kernel.procfs.threads import READY, Seen, Tasks, Told, status_of
from offtop.kernel.sampling.totals import LATE_NS, LATE_WITHOUT_TICKS_NS, Account
from offtop.model.classify.categories import Categories
from offtop.model.values.catalog import Book, ThreadKey
from offtop.model.values.outlier import Marks
from offtop.model.values.snapshot import Cost, Filters, Machine, Sampling, Snapshot
from offtop.model.values.stack import FIRST_STACK, NO_STACK, Frame, Stack, nameless
from offtop.model.values.wake import OFFCPU, Object
from offtop.printable import printable
from offtop.units import NS_PER_S

DOOR = "proc"
_ROOT = "/proc"
_FACTS_S = 1.0
"""So long one read may take for what a person asks of a process."""
_LEAST_S, _MOST_S = 0.01, 10.0
"""Between two looks. And so much CPU time each kind of what is looked up may take at least."""
_LEAST_PART = 5
"""A fifth of offtop's share is for looking, whatever the rest takes."""
_LEAST_TICK_S = 0.2
"""Of less, what the rest takes of a CPU says nothing of other ticks: it may be the start."""
_LATEST = 4
"""One look counts a quarter in the average of what they take."""
_KINDS = 3
"""Of what is looked up by the thread: where it is, whether it is ready, and how often it was put aside."""
_CLOSE_SECONDS = 2.0
_KEEP_NS = 15 * 60 * NS_PER_S
_FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""PROC_PID_INIT_INO (include/linux/proc_ns.h)."""
_PTRACE = CAPABILITIES["CAP_SYS_PTRACE"].bit
MISSING = "who ended a wait, functions of programs, and where waits shorter than the time between two looks were"


class NeedsBpfError(UsageError):
    """Looking now and then cannot tell this."""


class KernelNames:
    """Names of frames that have theirs: the kernel's. Implements model.stack.Names."""

    version = 0

    def of(self, frame: Frame) -> str:
        return printable(frame.name) if frame.name else nameless(frame)


class ProcSource(Happening):
    """Threads as /proc shows them. Begins to look in the constructor, until close(). Implements source.Source."""

    def __init__(
        self,
        categories: Categories,
        filters: Filters,
        cpu_pct: float = 5.0,
        keep_ns: int = _KEEP_NS,
        mode: str = OFFCPU,
        refused: OfftopError | None = None,
    ) -> None:
        """`cpu_pct`: of one CPU, for all of offtop. `refused`: why there is no BPF, if that was to be had. Raises an
        OfftopError for what cannot be told so."""
        self._why = f" without BPF ({str(refused).partition('. ')[0]})" if refused else ""
        procfs.check_counted(_ROOT)
        _check(filters)
        _check_mode(mode)
        self._categories, self._keep_ns = categories, keep_ns
        self._own_pid, self._uid = procfs.own_pid(_ROOT), os.geteuid()
        caps = int(status_of("self")["CapEff"], 16)
        self._is_confined = is_confined()
        self.own_only = not caps >> _PTRACE & 1 or self._is_confined
        self._container_only = _is_contained() and self._own_pid == os.getpid()  # else /proc is another's
        self._blocked = self._with_stack = self._with_call = 0
        """How many threads were seen blocked, and what of these was known."""
        self._filters = self._asked = filters
        _check_there(filters, self.own_only)
        self._given = filters
        self._share_pct, self._walk_pct = cpu_pct, cpu_pct
        self._book = Book(has_programs=False)
        self._names = KernelNames()
        self._reads = GuardedReads()
        self._facts = self._reads.channel(_FACTS_S)
        self._details = DetailsWorker(self._book, self._reads)
        self._account = Account(self._book, time.monotonic_ns(), LATE_NS if _has_ticks() else LATE_WITHOUT_TICKS_NS)
        self._stacks: dict[tuple[Frame, ...], int] = {}
        self._next_stack = FIRST_STACK
        self._tasks = self._chosen(filters)
        self._looks = 0
        self._look_s = 0.0
        """CPU time of one look, on average of the latest."""
        self._looked_s = 0.0
        """Of all of them, and of what ticks ask."""
        self._paid_s = self._began_s = time.monotonic()
        """Until then no other look is made but by ticks."""
        self._look_ns = time.monotonic_ns()
        """When the latest one began."""
        self._before = time.monotonic_ns(), 0.0, time.process_time(), context_switches()
        """Of the last tick: when, and until then CPU time of looks, of offtop, and switches of the machine."""
        self._lost = 0
        """Threads that came and went between two looks."""
        self._marks: Marks | None = None
        self._was_last = False
        self._lock, self._closing = threading.Lock(), threading.Event()
        self._failure: Exception | None = None
        self._made = _begun()
        self._look(anew=True)
        self._met = self._account.met
        """Both as of the first look: of what has begun since, those that were not met are lost."""
        self._thread = threading.Thread(target=self._run, name="offtop-looks", daemon=True)
        self._thread.start()

    @property
    def notices(self) -> Sequence[str]:
        whose = "/proc is"
        if self.own_only:
            whose = "your own processes alone are"
        elif self._container_only:
            whose = "this container's processes alone are"
        return (f"{whose} sampled{self._why}: not known are {self._missing}",)

    @property
    def _missing(self) -> str:
        lost = "" if self._knows_lost(self._filters) else "; nor how many threads came and went in between"
        return f"{MISSING}{lost}"

    def _knows_lost(self, filters: Filters) -> bool:
        """Whether all threads that begin on this machine are looked at."""
        counts_all = not (filters.pids or filters.tids or filters.cgroup) and filters.who == "all"
        return counts_all and not self.own_only and not _is_contained()

    @property
    def host(self) -> str:
        return platform.node()

    @property
    def names(self) -> KernelNames:
        return self._names

    def read(self) -> Snapshot | None:
        """When all that was asked for with -p and -t has ended: what it did until then, and after that None.

        Raises KernelError where /proc can be read no more.
        """
        if self._was_last:
            return None
        ids = (*self._given.pids, *self._given.tids)
        self._was_last = (
            self._asked == self._given and bool(ids) and not any(Path(_ROOT, str(one)).exists() for one in ids)
        )
        try:
            with self._lock:
                if self._closing.is_set():
                    return None
                if self._failure:
                    raise self._failure
                return self._read()
        except OSError as error:
            remedy = "Mount it: mount -t proc proc /proc"
            if error.errno in (errno.EMFILE, errno.ENFILE):
                remedy = "Allow more files, with: ulimit -n 4096"
            raise KernelError(f"/proc cannot be read ({error.strerror}). {remedy}") from error

    def _read(self) -> Snapshot:
        in_effect, made = self._filters, _begun()
        self._look()
        lost_known = self._knows_lost(in_effect)
        if lost_known:
            self._lost = max(self._lost, made - self._made - (self._account.met - self._met))
        if self._asked != self._filters:
            self._filters = self._asked
            self._tasks.close()
            self._tasks = self._chosen(self._filters)
            self._look(anew=True)
            self._made, self._met = made - self._lost, self._account.met
        self._ask()
        at_ns, taken_ns = time.monotonic_ns(), time.time_ns()
        self._account.marks = self._marks
        waiting, caught = self._account.end_tick(at_ns)
        self._account.age(self._keep_ns)
        self._details.drop_unnamed()
        return Snapshot(
            taken_ns=taken_ns,
            at_ns=at_ns,
            threads=self._account.threads.frozen(),
            sites=self._account.sites.frozen(),
            waiting=waiting,
            book=self._book,
            lost={"threads": self._lost} if self._lost else {},
            cost=self._cost(at_ns),
            machine=Machine() if self.own_only else procfs.machine(),
            caught=caught,
            door=DOOR,
            filters=in_effect,
            sampling=Sampling(
                *(self._looks, self._account.guessed_ns, self.own_only, lost_known, self._account.apart_ns),
                container_only=self._container_only,
            ),
        )

    def _ask(self) -> None:
        """Some threads for what the counters do not tell."""
        began_s = time.thread_time()
        for key in self._in_time(self._account.standing, self._before[0]):
            if procfs.is_ready(_ROOT, key):
                self._account.is_ready(key, time.monotonic_ns())
        for key in self._in_time(self._account.moved, self._before[0]):
            told = procfs.switches(_ROOT, key)
            if told:
                self._account.switched(key, *told)
        self._took(time.thread_time() - began_s)

    def _in_time(self, keys: list[ThreadKey], since_ns: int) -> Iterator[ThreadKey]:
        """Those for which looking has time since then, others each time."""
        random.shuffle(keys)
        most_s = (time.monotonic_ns() - since_ns) / NS_PER_S * self._walk_pct / 100 / _KINDS
        until_s = time.thread_time() + max(_LEAST_S, most_s)
        for key in keys:
            yield key
            if time.thread_time() > until_s:
                return

    def _took(self, looking_s: float) -> None:
        """So much CPU time; until it is paid for, only ticks look."""
        now_s = time.monotonic()
        self._looked_s += looking_s
        self._paid_s = min(max(self._paid_s, now_s) + looking_s * 100 / self._walk_pct, now_s + _MOST_S)

    def _run(self) -> None:
        while not self._closing.wait(self._rest_s):
            with self._lock:
                if self._closing.is_set():
                    return
                if self._rest_s > _LEAST_S:  # a tick has looked meanwhile
                    continue
                try:
                    self._look()
                except Exception as error:
                    self._failure = error
                    return

    @property
    def _rest_s(self) -> float:
        """Until the next look."""
        return max(_LEAST_S, self._paid_s - time.monotonic())

    def _look(self, anew: bool = False) -> None:
        """At all threads. `anew`: others are chosen than before."""
        began_s, before_ns = time.thread_time(), self._look_ns
        self._look_ns = time.monotonic_ns()
        self._account.begin_look(self._look_ns, anew)
        found, ended, left = self._tasks.walk()
        if anew:
            left = [*self._account.alive - {one.key for one in found}]
        for key in left:
            self._account.ended(key)
        for key in ended:
            self._end(key)
        new: list[ThreadKey] = []
        moved: dict[ThreadKey, Told] = {}
        for one in found:
            counters = procfs.counters(one.schedstat)
            if not self._account.must_look(one.key, counters):
                self._account.looked(one.key, one.at_ns, counters, None, NO_STACK)
            elif self._account.is_known(one.key):
                moved[one.key] = one
            else:
                new.append(one.key)
        for key in new:
            self._see(key)
        for key in self._in_time([*moved], before_ns):
            self._see(key)
            del moved[key]
        for one in moved.values():
            self._account.assume(one.key, one.at_ns, procfs.counters(one.schedstat))
        self._looks += 1
        if not anew:  # at first every stack is looked up
            took_s = time.thread_time() - began_s
            self._took(took_s)
            self._look_s = self._look_s + (took_s - self._look_s) / _LATEST if self._look_s else took_s

    def _see(self, key: ThreadKey) -> None:
        """Where it is."""
        told, seen = self._tasks.again(key), procfs.seen(_ROOT, key)
        if not told.schedstat or seen is None:
            self._end(key)
            return
        self._note(key, seen)  # if it has run meanwhile, its counters say so at the next look
        self._blocked += seen.state != READY
        self._with_stack += seen.has_stack
        self._with_call += seen.call >= 0
        place = self._place(seen.frames) if seen.frames else NO_STACK
        self._account.looked(key, told.at_ns, procfs.counters(told.schedstat), seen, place)

    def _end(self, key: ThreadKey) -> None:
        self._account.ended(key, time.monotonic_ns())
        if key.tid == key.pid:
            self._details.ended(key.pid)

    def _note(self, key: ThreadKey, seen: Seen) -> None:
        book = self._book
        book.comms[key] = seen.comm
        if key.tid == key.pid:
            book.processes[key.pid] = seen.comm
            self._details.met(key.pid)
        elif key.pid not in book.processes:
            name = procfs.content(f"{_ROOT}/{key.pid}/comm").rstrip(b"\n")
            if name:
                book.processes[key.pid] = os.fsdecode(name)
        if seen.call >= 0 and seen.call not in book.calls:
            name = procfs.call_name(seen.call)
            if name:
                book.calls[seen.call] = name

    def _place(self, frames: tuple[Frame, ...]) -> int:
        known = self._stacks.get(frames)
        if known is None:
            known = self._stacks[frames] = self._next_stack
            self._next_stack += 1
            names = [frame.name for frame in frames]
            tail = self._categories.tail_length(names)
            trimmed = names[tail:]
            category, entry = self._categories.classify(trimmed), self._categories.entry_length(trimmed)
            self._book.stacks[known] = Stack(frames, tail, category, entry)
        return known

    def _chosen(self, filters: Filters) -> Tasks:
        """The threads of these."""
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

        return Tasks(_ROOT, wanted, tids)

    def _is_own(self, pid: int) -> bool:
        """In a user namespace, whose root may look at all in it and at nothing else: whether it is in there."""
        if self._is_confined:
            return procfs.may_look(_ROOT, pid)
        try:
            return Path(_ROOT, str(pid)).stat().st_uid == self._uid
        except OSError:  # it has just ended
            return False

    def _cost(self, at_ns: int) -> Cost:
        """And what looking may take from now on."""
        was_ns, was_looked_s, was_used_s, was_switches = self._before
        used_s, switches = time.process_time(), context_switches()
        self._before = at_ns, self._looked_s, used_s, switches
        tick_s = max(1e-3, (at_ns - was_ns) / NS_PER_S)
        rest_pct = 100 * (used_s - was_used_s - (self._looked_s - was_looked_s)) / tick_s
        if tick_s >= _LEAST_TICK_S:
            self._walk_pct = max(self._share_pct / _LEAST_PART, self._share_pct - max(0.0, rest_pct))
        return Cost(
            switches=switches - was_switches,
            cpu_pct=100 * (used_s - was_used_s) / tick_s,
            rss_bytes=procfs.own_rss_bytes(_ROOT),
            walk_ns=round(self._look_s * NS_PER_S),
        )

    def set_filters(self, filters: Filters) -> None:
        """From the next read on, count only this. Raises UsageError for what is not there, and NeedsBpfError."""
        _check(filters)
        new = Filters(
            pids=tuple(set(filters.pids).difference(self._given.pids)),
            tids=tuple(set(filters.tids).difference(self._given.tids)),
        )
        _check_there(new, self.own_only)
        self._asked = filters

    def set_mode(self, mode: str, depth: int) -> None:
        """Raises NeedsBpfError for modes with wakers."""
        _check_mode(mode)

    def catch(self, marks: Marks | None) -> None:
        self._marks = marks

    def wait_for_names(self, frames: set[Frame], seconds: float) -> None:
        """They have theirs."""

    def why_nameless(self, frame: Frame) -> str:
        return ""

    def describe(self, pids: Collection[int]) -> None:
        self._details.describe(pids)

    def find_ends(self, waited_on: Mapping[Object, int]) -> None:
        """What is waited on is not known."""

    def facts(self, pid: int) -> Sequence[tuple[str, str]]:
        from offtop.kernel.procfs.process_details import facts  # as in live.py

        return facts(pid, self._facts)

    @property
    def _where(self) -> str:
        """What most waits are known by."""
        if 2 * self._with_stack >= self._blocked:
            return "kernel stacks"
        if 2 * self._with_call >= self._blocked:
            return "the kernel function and system call alone (stacks need root)"
        return "the kernel function alone (stacks need root, system calls kernel.yama.ptrace_scope=0)"

    def about(self) -> list[tuple[str, str]]:
        passed_s = time.monotonic() - self._began_s
        rate_hz, took_pct = self._looks / passed_s, 100 * self._looked_s / passed_s
        whose = "of your own processes alone" if self.own_only else "of all processes"
        return [
            ("kernel", f"{platform.release()} {platform.machine()}"),
            ("door", f"{DOOR} (threads are looked at now and then; BPF sees every wait)"),
            ("looks", f"~{rate_hz:.0f} a second at {len(self._account):,} threads {whose}"),
            ("what they took", f"{took_pct:.1f}% of a CPU, of {self._share_pct:g}% for all of offtop"),
            ("the kernel's own", "time ready and time running of each thread, and its waits, between its looks"),
            ("the rest of its time", "blocked, with what a hypervisor stole or interrupts took"),
            ("estimated (~)", "where that time passed, how long single waits were (at most), what was put aside"),
            ("place of a wait", self._where),
            ("run-queue time", "the kernel's run_delay"),
            ("not known", self._missing),
        ]

    def close(self) -> None:
        self._closing.set()
        self._thread.join(_CLOSE_SECONDS)
        if self._lock.acquire(timeout=_CLOSE_SECONDS):
            self._tasks.close()
            self._details.close()
            self._reads.close()
            self._lock.release()


def _has_ticks() -> bool:
    """Whether every CPU interrupts a thread that runs on and on, and counts its time."""
    try:
        return Path("/sys/devices/system/cpu/nohz_full").read_text().strip() in ("", "(null)")
    except OSError:  # before 4.2, or without CONFIG_NO_HZ_FULL
        return True


def _is_contained() -> bool:
    """Whether /proc may show a part of the machine's threads alone."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino != _FIRST_PID_NAMESPACE
    except OSError:  # there are no pid namespaces
        return False


def _begun() -> int:
    """How many threads have begun on this machine, but for our own."""
    with Path(_ROOT, "stat").open() as lines:
        every = next((int(line.split()[1]) for line in lines if line.startswith("processes ")), 0)
    return every - threading.active_count()


def _check(filters: Filters) -> None:
    """Raises NeedsBpfError."""
    if filters.within:
        raise NeedsBpfError("--within needs BPF: sampling /proc does not see functions of programs. Take -p instead")
    if filters.states or filters.max_ns:
        option = "--state" if filters.states else "--max"
        raise NeedsBpfError(f"{option} needs BPF: sampling /proc does not see single waits. Leave it out")
    if filters.cgroup and any(f"{filters.cgroup}/".startswith(f"{mount.point}/") for mount in mounted()):
        raise NeedsBpfError(
            "--cgroup needs BPF for the directory of this one: what /proc tells of processes is its path in another "
            "hierarchy. Take its processes, with -p"
        )


def _check_mode(mode: str) -> None:
    if mode != OFFCPU:
        raise NeedsBpfError(f"Mode {mode} needs BPF: /proc does not tell who ends a wait. Take mode offcpu")


def _check_there(filters: Filters, own_only: bool) -> None:
    for pid in filters.pids:
        try:
            is_own = Path(_ROOT, str(pid)).stat().st_uid == os.geteuid()
        except OSError:
            raise UsageError(f"No process {pid}. Look it up with: pgrep NAME") from None
        if own_only and not is_own:
            raise UsageError(
                f"Process {pid} is not your own, and without root your own alone are sampled. Try: sudo offtop -p {pid}"
            )
    for tid in filters.tids:
        if not Path(_ROOT, str(tid)).exists():
            raise UsageError(f"No thread {tid}. List a process's threads with: ps -L -p PID")
