"""The stages of a tick: flip the BPF buffers, drain the old one, account for it, evict what has ended."""

import time
from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from offtop.heap import trim_heap
from offtop.kernel.accounting.tick_records import NewThread, OffCpuTasks, RuntimeSamples, SiteDeltas, ThreadRecords
from offtop.kernel.bpf import layout
from offtop.kernel.procfs import threads as procfs
from offtop.kernel.tracing.budget import BudgetControl, ScanCadence
from offtop.kernel.tracing.parts import Parts
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.outlier import LongWait, Thresholds
from offtop.model.values.snapshot import Filters, Machine
from offtop.model.values.table import integers, thread_codes
from offtop.model.values.waits import BOUND, SWITCHED_OUT_NS, Waits
from offtop.model.values.wake import OFFCPU
from offtop.model.values.within import NO_CALLS
from offtop.units import NS_PER_S

_ZERO = bytes(4)
_TRIM_NS = 10 * NS_PER_S
"""How often the heap is trimmed. In each tick of 10,000 threads, it would be filled again right away."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a tick has to do."""

    filters: Filters
    """In effect from this tick on."""
    min_ns: int
    """The minimum in effect."""
    mode: str
    """One of wake.MODES, in effect during the tick."""
    is_prime: bool
    """Scan all waits in progress."""
    is_scanned: bool
    """Scan the waits in progress that have changed."""
    helper_pids: tuple[int, int, int]
    """Child processes of offtop that BPF did not count in this tick."""
    filter_changed: bool = False
    """The thread filter has changed."""
    has_snapshot: bool = True
    """A snapshot follows."""


@dataclass(frozen=True, slots=True)
class Flipped:
    """The old buffer, and the task scan that belongs to it."""

    buffer: int
    at_ns: int
    taken_ns: int
    """When the buffers were switched, on CLOCK_MONOTONIC and CLOCK_REALTIME."""
    machine: Machine
    """CPU times of the machine as of then."""
    scan_ns: int
    """When the task scan began."""
    off_cpu: OffCpuTasks
    """Waits in progress from the task scan."""
    ran: list[RuntimeSamples]
    started: list[NewThread]


@dataclass(frozen=True, slots=True)
class Records:
    """What happened in a tick, with resolved ids."""

    threads: ThreadRecords
    sites: SiteDeltas
    exited: dict[ThreadKey, int]
    """When each thread exited that did."""
    outliers: list[LongWait]
    off_cpu: OffCpuTasks
    ran: RuntimeSamples
    started: list[NewThread]

    def without(self, pids: Collection[int]) -> "Records":
        """Leave out what is of these processes."""
        return replace(
            self,
            threads=self.threads.without(pids),
            sites=self.sites.without(pids),
            outliers=[one for one in self.outliers if one.site.pid not in pids],
            off_cpu=self.off_cpu.without(pids),
            ran=self.ran.without(pids),
            started=[one for one in self.started if one.key.pid not in pids],
        )


class TickStages:
    """The stages of a tick. For the polling thread."""

    def __init__(self, parts: Parts, has_calls: bool, budget: BudgetControl) -> None:
        """`has_calls`: BPF records the calls of a function (--within)."""
        self._parts, self._has_calls = parts, has_calls
        self.scan_cadence = ScanCadence()
        self.budget = budget
        self.thresholds: Thresholds | None = None
        """Those for outliers."""
        self.must_prime = True
        """The next tick must scan all waits in progress."""
        self.primed_ns = 0
        """When that was done last."""
        self._trimmed_ns = 0
        """When the heap was trimmed last."""
        self.outliers: list[LongWait] = []
        """Outliers since the last snapshot."""
        self.snapshot_ns = 0
        """Time of the last snapshot."""
        self.calls = NO_CALLS
        self.lost: dict[str, int] = {}
        self._full: dict[str, int] = {}
        """How often each kernel table was full."""

    def note_lost_threads(self) -> None:
        """Have this tick prime if exits were lost in it: otherwise their threads would seem to wait until its end."""
        self.must_prime = self.must_prime or self._parts.drain.count("threads") > self.lost.get("threads", 0)

    def begin(self, is_prime: bool) -> None:
        """Begin a tick."""
        self._parts.procfs.refill()
        now_ns = time.monotonic_ns()
        if is_prime:
            self.must_prime, self.primed_ns = False, now_ns
        if is_prime or now_ns - self._trimmed_ns >= _TRIM_NS:
            self._trimmed_ns = now_ns
            trim_heap()

    def flip(self, plan: Plan) -> Flipped:
        """Scan the waits in progress, and have the BPF programs write to the other buffer."""
        drain = self._parts.drain
        scan_ns, began_ns = time.monotonic_ns(), time.thread_time_ns()  # CPU time: this thread may be preempted
        mode = layout.SCAN_WAITS | (layout.SCAN_PRIME if plan.is_prime else 0)
        scan = drain.scan(mode) if plan.is_scanned else b""  # first, because the switch wakes kernel threads
        took_ns = time.thread_time_ns() - began_ns
        buffer, at_ns, taken_ns = drain.flip()
        machine = procfs.machine_times()
        ran, started = list[RuntimeSamples](), list[NewThread]()
        began_ns = time.thread_time_ns()
        off_cpu = drain.waits(scan, ran, started)
        took_ns += time.thread_time_ns() - began_ns
        if plan.has_snapshot and not plan.is_prime:  # priming is rare, and reads every stack
            share = self.budget.scan_share
            tick_ns = at_ns - self.snapshot_ns
            self.scan_cadence.add(took_ns if plan.is_scanned else -1, tick_ns, share, len(off_cpu.waits))
        return Flipped(buffer, at_ns, taken_ns, machine, scan_ns, off_cpu, ran, started)

    def drain(self, plan: Plan, flipped: Flipped) -> Records:
        """Read the old buffer, and resolve its ids."""
        parts, drain, buffer = self._parts, self._parts.drain, flipped.buffer
        parts.user_stacks.unwind_copies()
        self._forget_renamed()
        if self._has_calls:
            parts.program.maps["within_now"].update(_ZERO, bytes(layout.CALLS_NOW.size))
        every = plan.is_prime or plan.filter_changed
        threads = drain.threads(buffer, flipped.ran, flipped.started, not plan.is_scanned, every)
        if self._has_calls:
            calls = drain.calls(buffer, flipped.at_ns)
            max_ns = calls.max_ns if parts.ledger.follows_snapshot else max(calls.max_ns, self.calls.max_ns)
            self.calls = self.calls.plus(calls)._replace(max_ns=max_ns)
        sites = drain.sites(buffer)
        outliers = parts.outlier_events.take(self.thresholds) if parts.outlier_events else []
        outliers = _marked(outliers, waiting) if outliers and (waiting := parts.ledger.waiting) else outliers
        exits = drain.exits(buffer, flipped.at_ns, threads)
        # Exits come first, because another thread may have the tid by now.
        threads = ThreadRecords.all([exits.records, threads, drain.unnamed(buffer)])
        ran = RuntimeSamples.all([exits.ran, *flipped.ran])
        records = Records(threads, sites, exits.ends_ns, outliers, flipped.off_cpu, ran, flipped.started)
        new_helpers = set(parts.helper_pids).difference(plan.helper_pids)  # BPF has counted them in this tick
        return records.without(new_helpers) if new_helpers else records

    def account(self, plan: Plan, flipped: Flipped, records: Records) -> list[ThreadKey]:
        """Add the records to the totals, and return the threads that exited."""
        drain, at_ns = self._parts.drain, flipped.at_ns
        self.outliers += records.outliers
        # For waits known before this tick: then this tick has them at their stacks already.
        self._place_user_stacks(at_ns, are_all=False)
        off_cpu = self._with_known_stacks(records.off_cpu)
        ended = self._parts.ledger.tick(
            at_ns,
            plan.min_ns,
            records.threads,
            records.sites,
            off_cpu,
            exited=records.exited,
            ran=records.ran,
            started=records.started,
            primed_ns=flipped.scan_ns if plan.is_prime else 0,
            filter_changed=plan.filter_changed,
            states=plan.filters.states,
            max_ns=plan.filters.max_ns,
            storms=drain.storms(flipped.buffer) if plan.mode != OFFCPU else {},
            threads_lost=drain.count("threads"),
            has_snapshot=plan.has_snapshot,
        )
        self._place_user_stacks(at_ns, are_all=True)
        return ended

    def evict(self, ended: list[ThreadKey], keep_ns: int) -> None:
        """Forget exited threads, and what no window refers to after `keep_ns`."""
        parts = self._parts
        for key in ended:
            if key.tid == key.pid:
                parts.user_frames.forget(key.pid)
                parts.details.note_exited(key.pid)
        for key in [*ended, *parts.drain.renamed]:
            parts.stacks.forget_thread(key)
        parts.drain.renamed.clear()
        full = {kind: parts.drain.count(kind) for kind in ("stacks", "wakes")}
        parts.stacks.make_room(at_once=full["stacks"] > self._full.get("stacks", 0))
        parts.wakes.make_room(at_once=full["wakes"] > self._full.get("wakes", 0))
        lost = parts.drain.lost()
        if lost.get("threads", 0) > self.lost.get("threads", 0):
            self.must_prime = True  # otherwise a lost exit would leave its thread waiting forever
        self.lost, self._full = lost, full
        dropped = parts.ledger.age(keep_ns)
        if dropped:
            parts.stacks.forget(dropped.stacks)
            parts.wakes.forget(*dropped)
        parts.details.drop_unnamed()

    def _forget_renamed(self) -> None:
        """Forget stacks whose addresses have other names now."""
        parts = self._parts
        if parts.symbols.modules_changed():
            parts.stacks.forget_kernel_names()
            parts.wakes.forget_kernel_names()
            if parts.outlier_events:
                parts.outlier_events.forget()
        for pid in parts.processes.newly_named():
            parts.stacks.forget_names(pid)
            parts.wakes.forget_names(pid)

    def _place_user_stacks(self, at_ns: int, are_all: bool) -> None:
        """Request the user stacks of waits in progress, and take those that were read.

        `are_all`: see UserStacks.read.
        """
        ledger = self._parts.ledger
        for one in self._parts.user_stacks.read(ledger.waiting, at_ns, are_all):
            users = np.full(len(one.ids), self._parts.stacks.user(one.found))
            ledger.read_users(one.ids, one.switched_out_ns, users)

    def _with_known_stacks(self, off_cpu: OffCpuTasks) -> OffCpuTasks:
        """Add user stacks that take known paths to the waits of this tick, and to late ones of earlier ticks."""
        parts = self._parts
        if not (read := parts.user_stacks.followed()):
            return off_cpu
        users = np.repeat([parts.stacks.user(one.found) for one in read], [len(one.ids) for one in read])
        ids, switched_out_ns, pcounts = (np.concatenate(columns) for columns in list(zip(*read, strict=True))[:3])
        still = ~parts.drain.have_run(ids, pcounts)
        known = ids[still], switched_out_ns[still], users[still]
        parts.ledger.read_users(*known)
        return off_cpu.with_users(*known)


def _marked(outliers: list[LongWait], waiting: Waits) -> list[LongWait]:
    """Return outliers, marked if their wait, in progress until now, began before it was first seen."""
    rows = waiting.rows_of(thread_codes(integers([one.site[:2] for one in outliers], 2)))
    began_ns, bounds = (
        np.where(rows >= 0, waiting.list.rows[rows, column], 0).tolist() for column in (SWITCHED_OUT_NS, BOUND)
    )
    return [
        one._replace(is_exact=False, began_earlier=True) if one.began_ns == first_seen_ns and bound else one
        for one, first_seen_ns, bound in zip(outliers, began_ns, bounds, strict=True)
    ]
