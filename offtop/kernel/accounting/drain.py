"""Drains the BPF maps and task scans of one tick, and resolves raw ids, for the ledger."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from offtop.kernel.accounting.tick_records import NewThread, OffCpuTask, RuntimeSample, SiteDeltas
from offtop.kernel.bpf import layout, libbpf
from offtop.kernel.bpf.layout import ScannedStack, ScannedTask, ThreadRecord
from offtop.kernel.bpf.program import Program
from offtop.kernel.procfs import syscalls
from offtop.kernel.procfs.processes import DetailsWorker
from offtop.kernel.resolve.stacks import Stacks
from offtop.kernel.resolve.wakes import Wakes
from offtop.kernel.symbols.kallsyms import HIDDEN
from offtop.kernel.unwind import user_stacks as userstacks
from offtop.kernel.unwind.user_stacks import UserStacks
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import CALL_32_BIT, UNKNOWN, Catalog, SiteKey, ThreadKey
from offtop.model.values.snapshot import NO_HOLDER, OUTSIDE, UNNAMED, UNNAMED_NAME, Bound, Holder
from offtop.model.values.table import Ints, integers
from offtop.model.values.wake import Storm
from offtop.model.values.within import NO_CALLS, Calls

FOR_SOMETHING_ELSE = frozenset({"stopped", "page-fault", "swap", "reclaim", "throttle", "kernel-lock", "run-queue"})
"""Categories of waits that any system call may run into, whatever it waits for otherwise."""
_SCAN_SHARE = 20
"""The scan of waits in progress may take one part in 20 of the time between two ticks: 50 ms of a second."""
_SCAN_EVERY_MAX = 10
_SCAN_WEIGHT = 4
"""One scan counts a quarter in the average, so that one that was held up changes little."""
_ZERO = bytes(4)
_SUMMED = (
    *("waits", "offcpu_ns", "runqueue_ns", "preempted_ns", "involuntary", "short_waits", "short_ns"),
    *("short_runqueue_ns", "filtered_waits", "filtered_ns", "filtered_runqueue_ns", "lost_waits", "lost_ns"),
    "lost_runqueue_ns",
)
"""Fields of a ThreadRecord that two records of one thread add up."""
_Exit = tuple[int, ThreadKey, bytes, int, ThreadRecord]
"""Exit time, key, raw name, start time and record of an exited thread."""


class Sites:
    """Sites of records, resolved from raw ids."""

    def __init__(self, stacks: Stacks, wakes: Wakes, catalog: Catalog) -> None:
        self._stacks, self._wakes, self._catalog = stacks, wakes, catalog

    def site(self, pid: int, tid: int, kernel: int, user: int, wake: int) -> SiteKey:
        site = self._stacks.site(pid, tid, kernel, user)
        return self._with_wake(site, wake) if wake else site

    def every(self, raw: Sequence[tuple[int, int, int, int, int]]) -> list[SiteKey]:
        """Resolve many raw keys at once."""
        sites = self._stacks.sites(raw)
        return [self._with_wake(site, key[-1]) if key[-1] else site for site, key in zip(sites, raw, strict=True)]

    def is_on_object(self, kernel: int) -> bool:
        """Return whether a wait at this stack (catalog id) is on what its system call names."""
        stack = self._catalog.stack(kernel)
        return stack.category not in FOR_SOMETHING_ELSE and HIDDEN not in stack.frames[:1]

    def _with_wake(self, site: SiteKey, raw: int) -> SiteKey:
        pid, tid, kernel, user, _ = site
        return SiteKey(pid, tid, kernel, user, self._wakes.id_of(raw, pid, tid, self.is_on_object(kernel)))


class Drain:
    """Reads everything that BPF recorded in a tick. For the polling thread.

    New names and stacks are added to the catalog.
    """

    def __init__(
        self,
        program: Program,
        catalog: Catalog,
        stacks: Stacks,
        wakes: Wakes,
        sites: Sites,
        details: DetailsWorker,
        user_stacks: UserStacks | None,
        begin: Callable[[ThreadKey, int], None],
    ) -> None:
        """`user_stacks` reads the user stacks of waits in progress; None if they are off.

        `begin` is called with each thread seen and its start time.
        """
        self._maps, self._scan_links = program.maps, program.scan_links
        self._catalog, self._stacks, self._wakes, self._sites, self._details = catalog, stacks, wakes, sites, details
        self._user_stacks, self._begin = user_stacks, begin
        self.with_wakers = False
        """True to name wait objects as finished waits with wakers do."""
        self.renamed: list[ThreadKey] = []
        """Main threads whose name has changed; the caller clears the list."""
        self._buffer = self._flipped_ns = 0
        self._clock_offset_ns = 0
        self._met: set[ThreadKey] = set()
        """Threads seen by the task scans of this tick."""

    def walk(self, mode: int) -> bytes:
        """Run the task scans; `mode` is of layout.SCAN_*. Return their raw output."""
        self._maps["scan_mode"].update(_ZERO, mode.to_bytes(4, "little"))
        return b"".join(map(libbpf.read_iterator, self._scan_links))

    def waits(self, walk: bytes, ran: list[RuntimeSample], started: list[NewThread]) -> Iterator[OffCpuTask]:
        """Yield the waits in progress that changed; all of them if priming.

        These are new, became runnable, or wait for a lock with another holder. Appends to `ran` the CPU time of threads
        that did nothing but run, and to `started` new threads on their first CPU.
        """
        clock_offset_ns = self._update_clock_offset()
        for key, record in self._records(walk):
            self._note_running(key, record, ran, started)
            if record.state & layout.TASK_NEW:
                self._begin(key, record.start_ns)
            if record.flags & (layout.SCANNED_RUNNABLE | layout.SCANNED_STACK | layout.SCANNED_HOLDER):
                yield self._off_cpu_task(key, record, clock_offset_ns)

    def flip(self) -> tuple[int, int, int]:
        """Switch the BPF programs to the other buffer, and wait until none writes the old one.

        Returns the index of the old buffer, and the time of the switch on CLOCK_MONOTONIC and CLOCK_REALTIME.
        """
        maps = self._maps
        drained, self._buffer = self._buffer, 1 - self._buffer
        active, other = maps["active_buffer"], self._buffer.to_bytes(4, "little")
        maps["object_sites"].update(other, bytes(8))
        at_ns, taken_ns = time.monotonic_ns(), time.time_ns()
        active.update(_ZERO, other)  # immediately: a wait that ends in between counts as finished at at_ns
        maps["barrier"].update(_ZERO, maps["barrier_inner"].fd.to_bytes(4, "little"))
        return drained, at_ns, taken_ns

    def threads(
        self, buffer: int, ran: list[RuntimeSample], started: list[NewThread], alone: bool
    ) -> Iterator[tuple[ThreadKey, ThreadRecord]]:
        """Yield each thread's record from a buffer, and clear it.

        `ran` and `started`: as in waits(). `alone`: this tick has no scan of waits in progress.
        """
        for key, record in self._records(self.walk(layout.SCAN_BUFFERS[buffer] | (layout.SCAN_ALONE if alone else 0))):
            self._note_running(key, record, ran, started)
            if record.thread is not None:
                self._note_run(_ran(key, record.thread, record.start_ns), ran)
                yield key, record.thread

    def sites(self, buffer: int) -> SiteDeltas:
        """Drain the finished waits by site from a buffer.

        Call it after the task scan, which reports the program that each process runs.
        """
        found, tid_acquired_ns, parts = list[SiteKey](), list[int](), list[Ints]()
        for keys, values in self._maps[f"sites_{buffer}"].drain():
            found += self._sites.every([*layout.SITE_KEY_HEAD.iter_unpack(keys)])
            tid_acquired_ns += (
                np.frombuffer(keys, np.uint64).reshape(len(keys) // layout.SITE_KEY.size, -1)[:, -1].tolist()
            )
            parts.append(np.frombuffer(values, np.int64).reshape(-1, layout.SITE_NUMBERS + layout.LANES).copy())
        columns = np.concatenate(parts) if parts else integers([], layout.SITE_NUMBERS + layout.LANES)
        return SiteDeltas(found, columns[:, : layout.SITE_NUMBERS], columns[:, layout.SITE_NUMBERS :], tid_acquired_ns)

    def gone(
        self, buffer: int, at_ns: int, threads: list[tuple[ThreadKey, ThreadRecord]], ran: list[RuntimeSample]
    ) -> dict[ThreadKey, int]:
        """Return when each thread exited that did until `at_ns`.

        Their records are put before `threads`, because a tid may be in use again, also by a thread that called exec()
        and took over its main thread's tid. Includes the part up to `at_ns` of threads that exited after it, before the
        task scan reached them.
        """
        alive = {key for key, _ in threads}
        found = _merge_mixed(_exits(self._maps[f"exited_{buffer}"].drain()), self._flipped_ns)
        self._flipped_ns = at_ns
        records: list[tuple[ThreadKey, ThreadRecord]] = []
        ended: list[RuntimeSample] = []
        for _, key, comm, start_ns, record in found:
            if key not in self._met:  # otherwise it has that name already, or another thread has its tid
                self._note_name(key, comm)
            # If it exited after the task scan, the older buffer has its CPU time up to then, the newer one its total.
            run = _ran(key, record, start_ns)._replace(
                at_ns=0, ended=not record.exec_at_ns, tid_acquired_ns=record.tid_acquired_ns
            )
            self._note_run(run, ended)
            records.append((key, record))
        newer = self._maps[f"exited_{1 - buffer}"]
        exited_later = {
            (end_ns, key): (comm, start_ns, record) for end_ns, key, comm, start_ns, record in _exits(newer.read())
        }
        for (end_ns, key), (comm, start_ns, record) in exited_later.items():
            *_, last = exited_later.get((end_ns + 1, key), (None,))
            if not record.is_previous or (last and _is_mixed(last, at_ns)):
                continue
            newer.delete(layout.EXITED_KEY.pack(end_ns, *key))
            if key not in self._met:
                self._note_name(key, comm)
            if last and last.waits and last.first_switched_out_ns < at_ns:  # it was off CPU at the switch
                record = record._replace(switched_out_ns=last.first_switched_out_ns)
            self._note_run(_ran(key, record, start_ns), ended)
            records.append((key, record))
        self._met.clear()
        threads[:0] = records
        ran[:0] = ended
        return {key: end_ns for end_ns, key, *_ in found if key not in alive}

    def unnamed(self, buffer: int) -> list[tuple[ThreadKey, ThreadRecord]]:
        """Return one record for all threads of the tick whose exit records were lost.

        Returns [] if none were. The record has none of their waits at sites: each site has its thread's id, and is
        counted in the thread if its record has not arrived after some ticks (offtop/kernel/accounting/deferred.py).
        """
        maps, key = self._maps, buffer.to_bytes(4, "little")
        raw = maps["exited_sums"].lookup(key) or b""
        per_cpu = [ThreadRecord._make(fields) for fields in layout.THREAD.iter_unpack(raw)]
        rest = [_without_sites(one) for one in per_cpu if one.state]
        if rest:
            maps["exited_sums"].update(key, bytes(len(raw)))
            self._catalog.comms[UNNAMED] = self._catalog.processes[UNNAMED.pid] = UNNAMED_NAME
            self._catalog.details[UNNAMED.pid] = UNKNOWN
        return [(UNNAMED, one) for one in rest]

    def storms(self, buffer: int) -> dict[int, Storm]:
        """Drain the storms of one tick; see Wakes.storms."""
        found: list[tuple[tuple[int, int], tuple[int, ...]]] = []
        for keys, values in self._maps[f"storms_{buffer}"].drain():
            for (at_ns, cpu, _), storm in zip(
                layout.STORM_KEY.iter_unpack(keys), layout.STORM.iter_unpack(values), strict=True
            ):
                found.append(((at_ns, cpu), storm))
        return self._wakes.storms(found)

    def calls(self, buffer: int, at_ns: int) -> Calls:
        """Return the watched function's calls: those finished in the tick, and in progress."""
        maps, key = self._maps, buffer.to_bytes(4, "little")
        raw = maps["within_calls"].lookup(key) or b""
        maps["within_calls"].update(key, bytes(len(raw)))
        of_tick = NO_CALLS
        for numbers in layout.CALLS_WITHIN.iter_unpack(raw):
            lanes = np.array([numbers[-layout.LANES :]], np.int64)
            of_cpu = Calls(*numbers[: -layout.LANES])._replace(histogram=log2.of_lanes(lanes)[0])
            of_tick = of_tick.plus(of_cpu)
        now, began_ns, _ = layout.CALLS_NOW.unpack(maps["within_now"].lookup(_ZERO) or bytes(layout.CALLS_NOW.size))
        return of_tick._replace(now=now, oldest_ns=max(0, at_ns - began_ns) if now else 0)

    def lost(self) -> dict[str, int]:
        """Everything that was lost since the start, by kind."""
        lost: dict[str, int] = {}
        for kind in layout.LOST_KINDS:
            count = self.count(kind)
            if count and kind != "copies":  # these waits lose only their callers
                shown = "wakes" if kind == "chains" else kind
                lost[shown] = lost.get(shown, 0) + count
        if self._wakes.unread:
            lost["wakes"] = lost.get("wakes", 0) + self._wakes.unread
        if self._stacks.unread:
            lost["stacks"] = lost.get("stacks", 0) + self._stacks.unread
        return lost

    def count(self, kind: str) -> int:
        """How many of a kind the BPF programs could not record; one of layout.LOST_KINDS."""
        per_cpu = self._maps["lost"].lookup(layout.LOST_KINDS.index(kind).to_bytes(4, "little")) or b""
        return sum(memoryview(per_cpu).cast("Q"))

    def _records(self, walk: bytes) -> Iterator[tuple[ThreadKey, ScannedTask]]:
        for record in layout.scanned_tasks(walk):
            key = ThreadKey(record.pid, record.tid)
            self._met.add(key)
            self._stacks.set_program_number(key.pid, record.execs)
            self._note_name(key, record.comm)
            if record.tid == record.pid:
                self._details.note_alive(record.pid)
            yield key, record

    def _off_cpu_task(self, key: ThreadKey, record: ScannedTask, clock_offset_ns: int) -> OffCpuTask:
        stack, since_ns, bound = record.stack, 0, Bound.EXACT
        call, arguments, kernel, wake = -1, (), None, layout.NO_WAKE
        if record.flags & layout.SCANNED_BEGAN_EARLIER:
            is_known = record.arrived_ns and clock_offset_ns
            since_ns, bound = (record.arrived_ns + clock_offset_ns, Bound.AT_MOST) if is_known else (0, Bound.AT_LEAST)
            since_ns = min(since_ns, record.switched_out_ns)
        if stack is not None:
            call, arguments = self._call(stack)
            if key.pid != OUTSIDE and self._user_stacks:
                self._user_stacks.note_wait(key, record.switched_out_ns, stack)
            kernel = self._stacks.scanned(stack.frames, stack.words)
            if stack.object.kind and not record.state & layout.RUNNING:
                wake = self._wakes.waiting_on(stack.object, key.pid, self.with_wakers, self._sites.is_on_object(kernel))
        return OffCpuTask(
            key,
            record.switched_out_ns,
            bool(record.flags & layout.SCANNED_RUNNABLE),
            record.queued_ns + clock_offset_ns if record.queued_ns and clock_offset_ns else 0,
            kernel,
            record.state,
            since_ns,
            bound,
            call,
            arguments,
            wake,
            self._holder(record),
            record.tid_acquired_ns,
        )

    def _holder(self, record: ScannedTask) -> Holder:
        """The lock's holder with its name.

        The name is read from /proc if the thread is not one of those counted.
        """
        pid, tid = record.holder_pid, record.holder_tid
        if not tid:
            return NO_HOLDER
        comm = self._catalog.comms.get(ThreadKey(pid, tid), "")
        if not comm:
            with suppress(OSError):
                comm = layout.text_of(Path(f"/proc/{pid}/task/{tid}/comm").read_bytes().rstrip(b"\n"))
        return Holder(pid, tid, comm)

    def _call(self, stack: ScannedStack) -> tuple[int, tuple[int, ...]]:
        """The system call as the catalog numbers it, and its arguments; -1 if there is none."""
        if stack.call < 0:
            return -1, ()
        is_32_bit = userstacks.is_32_bit_program(stack)
        call = stack.call | CALL_32_BIT if is_32_bit else stack.call
        if call not in self._catalog.calls:
            name = syscalls.name_of(stack.call, syscalls.MACHINE_32_BIT) if is_32_bit else syscalls.name_of(stack.call)
            if name:
                self._catalog.calls[call] = name
        return call, () if is_32_bit else stack.arguments

    def _note_running(
        self, key: ThreadKey, record: ScannedTask, ran: list[RuntimeSample], started: list[NewThread]
    ) -> None:
        if record.flags & layout.SCANNED_RAN:
            self._note_run(RuntimeSample(key, record.exec_ns, record.start_ns, record.exec_at_ns), ran)
        if record.flags & layout.SCANNED_STARTED:
            self._begin(key, record.start_ns)
            started.append(NewThread(key, record.switched_out_ns, record.first_ns, record.tid_acquired_ns))

    def _note_run(self, one: RuntimeSample, ran: list[RuntimeSample]) -> None:
        self._begin(one.key, one.start_ns)
        if one.exec_ns:
            ran.append(one)

    def _note_name(self, key: ThreadKey, raw: bytes) -> None:
        comm = layout.text_of(raw)
        if self._catalog.comms.get(key) == comm:
            return
        self._catalog.comms[key] = comm
        if key.tid == key.pid:
            if self._catalog.processes.get(key.pid, comm) != comm:
                self.renamed.append(key)  # most likely an exec()
            self._catalog.processes[key.pid] = comm
        elif key.pid not in self._catalog.processes:
            with suppress(OSError):
                name = Path(f"/proc/{key.pid}/comm").read_bytes().rstrip(b"\n")
                self._catalog.processes[key.pid] = layout.text_of(name)

    def _update_clock_offset(self) -> int:
        """Offset of CLOCK_MONOTONIC from the scheduler's clock, or 0 if unknown.

        This is the smallest offset seen in the last tick.
        """
        clock = self._maps["clock_sample"]
        least = int.from_bytes(clock.lookup(_ZERO) or b"", "little")
        clock.update(_ZERO, bytes(8))
        if least:
            self._clock_offset_ns = least - (1 << 64) if least >> 63 else least
            self._maps["clock_offset"].update(_ZERO, least.to_bytes(8, "little"))
        return self._clock_offset_ns


def _is_mixed(last: ThreadRecord, flipped_ns: int) -> bool:
    """Return whether a thread's newer buffer has waits of the tick before.

    The thread exited after the switch of buffers at `flipped_ns`. The task scan came after the thread was unhashed, and
    the thread got no CPU to exit until two ticks later. The sites of that tick are held back until a record arrives. So
    both buffers must come in one tick, or those sites would be counted without their waits.
    """
    return last.waits > 0 and last.first_switched_out_ns + last.first_off_ns < flipped_ns


def _merge_mixed(ended: list[_Exit], flipped_ns: int) -> list[_Exit]:
    """Merge the records of both buffers of a thread if the newer one is mixed."""
    by_end = {one[:2]: one for one in ended}
    for end_ns, key, comm, start_ns, last in ended:
        older = by_end.get((end_ns - 1, key))
        if older and older[-1].is_previous and _is_mixed(last, flipped_ns):
            del by_end[end_ns - 1, key]
            by_end[end_ns, key] = end_ns, key, comm, start_ns, _merge(older[-1], last)
    return [*by_end.values()]


def _merge(one: ThreadRecord, last: ThreadRecord) -> ThreadRecord:
    """Merge two records; the result starts and ends as `last` does."""
    lanes = np.frombuffer(one.histogram, np.int64) + np.frombuffer(last.histogram, np.int64)
    summed = {name: getattr(one, name) + getattr(last, name) for name in _SUMMED}
    return last._replace(**summed, max_ns=max(one.max_ns, last.max_ns), histogram=lanes.tobytes())


def _exits(
    parts: Iterable[tuple[memoryview, memoryview]],
) -> list[_Exit]:
    """Parse exit records, ordered by exit time."""
    found: list[_Exit] = []
    for keys, values in parts:
        for (at_ns, pid, tid), (comm, start_ns, thread) in zip(
            layout.EXITED_KEY.iter_unpack(keys), layout.EXITED.iter_unpack(values), strict=True
        ):
            record = ThreadRecord._make(layout.THREAD.unpack(thread))
            found.append((at_ns, ThreadKey(pid, tid), comm, start_ns, record))
    return sorted(found)


def _without_sites(r: ThreadRecord) -> ThreadRecord:
    """Reduce a record to its waits without a site.

    These were short, filtered, or there was no room for their site.
    """
    waits = r.short_waits + r.filtered_waits + r.lost_waits
    offcpu_ns = r.short_ns + r.filtered_ns + r.lost_ns
    runqueue_ns = r.short_runqueue_ns + r.filtered_runqueue_ns + r.lost_runqueue_ns
    lanes = np.frombuffer(r.histogram, np.int64)
    # Short waits are the shortest; of the rest take the longest, which are those that --max leaves out.
    short = np.diff(np.minimum(np.cumsum(lanes), r.short_waits), prepend=0)
    others = np.diff(np.minimum(np.cumsum((lanes - short)[::-1]), waits - r.short_waits), prepend=0)[::-1]
    return r._replace(
        waits=waits,
        offcpu_ns=offcpu_ns,
        runqueue_ns=runqueue_ns,
        preempted_ns=min(r.preempted_ns, runqueue_ns),  # the share at the sites is unknown
        involuntary=min(r.involuntary, waits),
        max_ns=min(r.max_ns, offcpu_ns),
        switched_out_ns=0,
        first_kind=0,
        first_switched_out_ns=0,
        first_off_ns=0,
        first_runqueue_ns=0,
        histogram=(short + others).tobytes(),
    )


def _ran(key: ThreadKey, record: ThreadRecord, start_ns: int) -> RuntimeSample:
    return RuntimeSample(key, record.exec_ns, start_ns, record.exec_at_ns, record.exec_off_ns)


class ScanCadence:
    """How often waits in progress are scanned: each tick, or less often if it costs much."""

    def __init__(self) -> None:
        self.took_ns = -1
        """Moving average of a scan's cost; -1 before the first one."""
        self.every = 1
        """One scan in this many ticks."""
        self._left = 0

    @property
    def is_due(self) -> bool:
        return self._left <= 0

    def add(self, took_ns: int, tick_ns: int) -> None:
        """Account for a tick of `tick_ns` whose scan took `took_ns`; -1 if it had none."""
        if took_ns < 0:
            self._left -= 1
            return
        if self.took_ns < 0:
            self.took_ns = took_ns
        else:
            self.took_ns += (took_ns - self.took_ns) // _SCAN_WEIGHT
        self.every = max(1, min(_SCAN_EVERY_MAX, -(-self.took_ns * _SCAN_SHARE // max(1, tick_ns))))
        self._left = self.every - 1
