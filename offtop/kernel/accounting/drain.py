"""Drains the BPF maps and task scans of one tick for the ledger."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import compress
from operator import ne
from pathlib import Path

import numpy as np

from offtop.kernel.accounting.changed_threads import ChangedThreads
from offtop.kernel.accounting.exit_records import (
    Exits,
    is_mixed,
    merge_mixed,
    not_scanned,
    read_exits,
    runtime_of,
    without_sites,
)
from offtop.kernel.accounting.scanned_waits import ScannedWaits
from offtop.kernel.accounting.tick_records import (
    SAMPLE_ROW,
    NewThread,
    OffCpuTasks,
    RuntimeSample,
    RuntimeSamples,
    SiteDeltas,
    ThreadRecords,
)
from offtop.kernel.bpf import layout, libbpf
from offtop.kernel.bpf.layout import Thinning, ThreadRecord
from offtop.kernel.bpf.map_sizes import threads_now
from offtop.kernel.bpf.program import Program
from offtop.kernel.bpf.scan_rows import RUNS_ROW, SITE_KEY_ROW, SITE_ROW, Rows, Scan, chosen, ids_of, scan_of
from offtop.kernel.procfs.processes import DetailsWorker, program_name
from offtop.kernel.procfs.threads import pcount_of
from offtop.kernel.resolve.sites import Sites
from offtop.kernel.resolve.stacks import Stacks
from offtop.kernel.resolve.wakes import Wakes
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import UNKNOWN, Catalog, ThreadKey
from offtop.model.values.snapshot import UNNAMED, UNNAMED_NAME
from offtop.model.values.table import (
    SITES,
    THREADS,
    Ints,
    Mask,
    are_among,
    integers,
    lookup_keys,
    positions_of,
    thread_codes,
)
from offtop.model.values.wake import Storm
from offtop.model.values.within import NO_CALLS, Calls

_ZERO = bytes(4)
_FILLED = "sites_0", "exited_0", "kernel_stacks", "user_stacks"
_SCANNED_PER_READ = 30
"""How many threads are scanned in the time that it takes to read a file in /proc."""
_PART_ADDED = 4
"""Up to a fourth of the smallest of these tables may be new entries before it must be drained."""


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
        scanned: ScannedWaits,
        begin: Callable[[Ints, Ints], None],
    ) -> None:
        """`begin` is called with the ids (pid, tid) of threads and their start times."""
        self._maps, self._scan_links = program.maps, program.scan_links
        self._catalog, self._stacks, self._wakes, self._sites, self._details = catalog, stacks, wakes, sites, details
        self._scanned, self._begin = scanned, begin
        link = program.changed_link
        self._changed = ChangedThreads(program, link) if link is not None else None
        self.renamed: list[ThreadKey] = []
        """Main threads whose name has changed; the caller clears the list."""
        self._flips = self._flipped_ns = 0
        self._clock_offset_ns = 0
        self._scanned_before = ThreadRecords.of(()).identities
        """Of the last tick's task scan."""
        self._named: list[Ints] = []
        """Ids of the threads in the task scans of this tick."""
        self._added_before = 0
        """How many entries the tables had got at the last flip."""

    def scan(self, mode: int) -> bytes:
        """Run the task scans; `mode` is of layout.SCAN_*. Return their raw output."""
        self._set_mode(mode)
        return b"".join(map(libbpf.read_iterator, self._scan_links))

    def have_run(self, ids: Ints, pcounts: Ints) -> Mask:
        """Return which threads (pid, tid) have exited, or have been given a CPU more often than `pcounts` says."""
        if len(ids) * _SCANNED_PER_READ < threads_now():
            return np.array([*map(pcount_of, map(THREADS.key, ids.tolist()))], np.int64) != pcounts
        now = np.frombuffer(self.scan(layout.SCAN_RUNS), RUNS_ROW)
        at = positions_of(thread_codes(ids), thread_codes(ids_of(now)))
        has_run = at < 0
        has_run[~has_run] = now["pcount"][at[~has_run]] != pcounts[~has_run]
        return has_run

    def waits(self, raw_scan: bytes, ran: list[RuntimeSamples], started: list[NewThread]) -> OffCpuTasks:
        """Return the waits in progress that are new, became runnable, or are on a lock that has another holder now.

        If the scan primes (layout.SCAN_PRIME), return all of them. Appends to `ran` the CPU time of threads that did
        nothing but run, and to `started` new threads on their first CPU.
        """
        clock_offset_ns = self._update_clock_offset()
        scan = scan_of(raw_scan)
        new = chosen(scan.tasks, scan.tasks["state"] & layout.TASK_NEW != 0)
        if self._changed and raw_scan:
            self._changed.begin_scan(new["tid"])
        self._note(scan.tasks, ran, started)
        self._begin(ids_of(new), new["start_ns"])
        changes = layout.SCANNED_RUNNABLE | layout.SCANNED_STACK | layout.SCANNED_HOLDER
        return self._scanned.of(scan, np.flatnonzero(scan.tasks["flags"] & changes), clock_offset_ns)

    def flip(self) -> tuple[int, int, int]:
        """Switch the BPF programs to the other buffer, and wait until none writes the old one.

        Returns the index of the old buffer, and the time of the switch on CLOCK_MONOTONIC and CLOCK_REALTIME.
        """
        maps = self._maps
        drained, buffer = self._flips & 1, 1 - (self._flips & 1)
        self._flips += 1
        self._added_before = self._added
        active, tick = maps["active_buffer"], self._flips.to_bytes(4, "little")
        maps["object_sites"].update(buffer.to_bytes(4, "little"), bytes(8))
        at_ns, taken_ns = time.monotonic_ns(), time.time_ns()
        active.update(_ZERO, tick)  # immediately: a wait that ends in between counts as finished at at_ns
        maps["barrier"].update(_ZERO, maps["barrier_inner"].fd.to_bytes(4, "little"))
        return drained, at_ns, taken_ns

    @property
    def is_filling(self) -> bool:
        """Whether so many entries are new since the last flip that the tables must be drained soon."""
        room = min(self._maps[name].entries for name in _FILLED)
        return self._added - self._added_before > room // _PART_ADDED

    @property
    def _added(self) -> int:
        return sum(memoryview(self._maps["added"].lookup(_ZERO) or b"").cast("Q"))

    def threads(
        self, buffer: int, ran: list[RuntimeSamples], started: list[NewThread], alone: bool, every: bool
    ) -> ThreadRecords:
        """Return each thread's record from a buffer, and clear it.

        `ran` and `started`: as in waits(). `alone`: this tick has no scan of waits in progress. `every`: look at all
        threads, also if only few have changed.
        """
        scan = scan_of(self._scan_buffer(buffer, alone, every))
        self._note(_visited_once(scan), ran, started)
        tasks, records = chosen(scan.tasks, scan.of_threads), scan.threads
        ids = ids_of(tasks)
        if self._changed:
            self._changed.note_running(ids[records["switched_out_ns"] == 0, 1])
        self._note_runs(ids, tasks["start_ns"], records["exec_ns"], records["exec_at_ns"], records["exec_off_ns"], ran)
        return ThreadRecords(ids, records)

    def _scan_buffer(self, buffer: int, alone: bool, every: bool) -> bytes:
        mode = layout.SCAN_BUFFERS[buffer] | (layout.SCAN_ALONE if alone else 0)
        if self._changed is None:
            return self.scan(mode)
        is_taken = self._changed.take(buffer)
        if alone:
            self._changed.forget_running()
        if every or not is_taken:
            return self.scan(mode)
        self._set_mode(mode)
        return self._changed.scan()

    def _set_mode(self, mode: int) -> None:
        self._maps["scan_mode"].update(_ZERO, mode.to_bytes(4, "little"))

    def sites(self, buffer: int) -> SiteDeltas:
        """Drain the finished waits by site from a buffer.

        Call it after the task scan, which reports the program that each process runs.
        """
        parts = list[SiteDeltas]()
        for keys, values in self._maps[f"sites_{buffer}"].drain():
            raw = np.frombuffer(keys, SITE_KEY_ROW)
            words = np.column_stack([raw[name] for name in SITE_KEY_ROW.names or ()])
            totals = np.frombuffer(values, SITE_ROW)
            parts.append(
                SiteDeltas(
                    self._sites.every(words[:, : SITES.width]),
                    totals["numbers"].copy(),
                    totals["lanes"].astype(np.int64),
                    words[:, SITES.width].astype(np.int64),
                    words[:, THREADS.width : SITES.width],
                )
            )
        if len(parts) < 2:
            return parts[0] if parts else SiteDeltas.of(())
        return SiteDeltas(*map(np.concatenate, zip(*parts, strict=True)))

    def exits(self, buffer: int, at_ns: int, threads: ThreadRecords) -> Exits:
        """Return what is known of the threads that exited until `at_ns`.

        Includes the part up to `at_ns` of threads that exited after it, before the task scan reached them. `threads`
        are the records from the scan. If one of them has the same tid, the exit is not in `ends_ns`: the tid is in use
        again, possibly by a thread that called exec() and took over its main thread's tid.
        """
        found = not_scanned(read_exits(self._maps[f"exited_{buffer}"].drain()), self._scanned_before)
        found = merge_mixed(found, self._flipped_ns)
        self._flipped_ns, self._scanned_before = at_ns, threads.identities
        newer = self._maps[f"exited_{1 - buffer}"]
        exited_later = {
            (end_ns, key): (comm, start_ns, record)
            for end_ns, key, comm, start_ns, record in not_scanned(read_exits(newer.read()), self._scanned_before)
        }
        exited = [key for _, key, *_ in found]
        named = _those_among([*exited, *(key for _, key in exited_later)], np.concatenate(self._named))
        self._named.clear()
        records: list[tuple[ThreadKey, ThreadRecord]] = []
        ended: list[RuntimeSample] = []

        def add(key: ThreadKey, comm: bytes, record: ThreadRecord, run: RuntimeSample) -> None:
            if key not in named:  # otherwise it has that name already, or another thread has its tid
                self._note_name(key, comm)
            self._begin(integers([key], 2), np.array([run.start_ns]))
            if run.exec_ns:
                ended.append(run)
            records.append((key, record))

        for _, key, comm, start_ns, record in found:
            # If it exited after the task scan, the older buffer has its CPU time up to then, the newer one its total.
            run = runtime_of(key, record, start_ns)._replace(
                at_ns=0, ended=not record.exec_at_ns, tid_acquired_ns=record.tid_acquired_ns
            )
            add(key, comm, record, run)
        for (end_ns, key), (comm, start_ns, record) in exited_later.items():
            *_, last = exited_later.get((end_ns + 1, key), (None,))
            if not record.is_previous or (last and is_mixed(last, at_ns)):
                continue
            newer.delete(layout.EXITED_KEY.pack(end_ns, *key))
            if last and last.waits and last.first_switched_out_ns < at_ns:  # it was off CPU at the switch
                record = record._replace(switched_out_ns=last.first_switched_out_ns)
            add(key, comm, record, runtime_of(key, record, start_ns))
        alive = _those_among(exited, threads.ids)
        ends_ns = {key: end_ns for end_ns, key, *_ in found if key not in alive}
        return Exits(ThreadRecords.of(records), RuntimeSamples.of(ended), ends_ns)

    def unnamed(self, buffer: int) -> ThreadRecords:
        """Return one record per CPU: the sums of the tick's threads whose exit records were lost, if there are any.

        They exclude the waits at sites: a site has its thread's id, and if the thread's record does not arrive within
        some ticks, these waits are counted in that thread without it (deferred.py).
        """
        maps, key = self._maps, buffer.to_bytes(4, "little")
        raw = maps["exited_sums"].lookup(key) or b""
        per_cpu = [ThreadRecord._make(fields) for fields in layout.THREAD.iter_unpack(raw)]
        rest = [without_sites(one) for one in per_cpu if one.state]
        if rest:
            maps["exited_sums"].update(key, bytes(len(raw)))
            self._catalog.comms[UNNAMED] = self._catalog.processes[UNNAMED.pid] = UNNAMED_NAME
            self._catalog.details[UNNAMED.pid] = UNKNOWN
        return ThreadRecords.of((UNNAMED, one) for one in rest)

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

    def thinning(self) -> list[Thinning]:
        """Return how each CPU limits its time for stacks."""
        return [Thinning._make(one) for one in layout.THINNING.iter_unpack(self._maps["thinning"].lookup(_ZERO) or b"")]

    def lost(self) -> dict[str, int]:
        """Return how much was lost since the start, by kind."""
        lost: dict[str, int] = {}
        for kind in layout.LOST_KINDS:
            count = self.count(kind)
            if count and kind != "copies":  # without a copy, a wait lacks only some of its callers
                shown = "wakes" if kind == "chains" else kind
                lost[shown] = lost.get(shown, 0) + count
        if self._wakes.unread:
            lost["wakes"] = lost.get("wakes", 0) + self._wakes.unread
        if self._stacks.unread:
            lost["stacks"] = lost.get("stacks", 0) + self._stacks.unread
        return lost

    def count(self, kind: str) -> int:
        """Return how much of a kind, one of layout.LOST_KINDS, the BPF programs could not record."""
        per_cpu = self._maps["lost"].lookup(layout.LOST_KINDS.index(kind).to_bytes(4, "little")) or b""
        return sum(memoryview(per_cpu).cast("Q"))

    def _note(self, tasks: Rows, ran: list[RuntimeSamples], started: list[NewThread]) -> None:
        """Note the names and programs of the threads of a scan, and that they run."""
        ids = ids_of(tasks)
        self._named.append(ids)
        pids, tids, comms = *ids.T.tolist(), tasks["comm"].tolist()
        self._stacks.set_program_numbers(dict(zip(pids, tasks["execs"].tolist(), strict=True)))
        known = map(self._catalog.comms.get, lookup_keys(ids))
        for at, is_other in enumerate(map(ne, known, map(layout.text_of, comms))):
            if is_other:
                self._note_name(ThreadKey(pids[at], tids[at]), comms[at])
        for pid in ids[ids[:, 0] == ids[:, 1], 0].tolist():
            self._details.note_alive(pid)
        if self._changed:
            self._changed.note_running(ids[tasks["exec_at_ns"] != 0, 1])
        some = chosen(tasks, tasks["flags"] & layout.SCANNED_RAN != 0)
        self._note_runs(ids_of(some), some["start_ns"], some["exec_ns"], some["exec_at_ns"], np.int64(0), ran)
        some = chosen(tasks, tasks["flags"] & layout.SCANNED_STARTED != 0)
        self._begin(ids_of(some), some["start_ns"])
        times = (some[name].tolist() for name in ("switched_out_ns", "first_ns", "tid_acquired_ns"))
        started += map(NewThread, map(THREADS.key, ids_of(some).tolist()), *times)

    def _note_runs(
        self, ids: Ints, start_ns: Ints, exec_ns: Ints, at_ns: Ints, off_ns: Ints | np.int64, ran: list[RuntimeSamples]
    ) -> None:
        self._begin(ids, start_ns)
        samples = np.zeros(len(ids), SAMPLE_ROW)
        samples["key"], samples["start_ns"], samples["exec_ns"] = ids, start_ns, exec_ns
        samples["at_ns"], samples["off_ns"] = at_ns, off_ns
        ran.append(RuntimeSamples(chosen(samples, exec_ns != 0)))

    def _note_name(self, key: ThreadKey, raw: bytes) -> None:
        comm = layout.text_of(raw)
        if self._catalog.comms.get(key) == comm:
            return
        self._catalog.comms[key] = comm
        if key.tid == key.pid:
            program = program_name(key.pid, comm)
            if self._catalog.processes.get(key.pid, program) != program:
                self.renamed.append(key)  # most likely an exec()
            self._catalog.processes[key.pid] = program
        elif key.pid not in self._catalog.processes:
            with suppress(OSError):
                name = Path(f"/proc/{key.pid}/comm").read_bytes().rstrip(b"\n")
                self._catalog.processes[key.pid] = program_name(key.pid, layout.text_of(name))

    def _update_clock_offset(self) -> int:
        """Return the offset of CLOCK_MONOTONIC from the scheduler's clock, or 0 if unknown.

        It is the smallest offset measured in a tick: in this one, or in the last one with a measurement.
        """
        clock = self._maps["clock_sample"]
        least = int.from_bytes(clock.lookup(_ZERO) or b"", "little")
        clock.update(_ZERO, bytes(8))
        if least:
            self._clock_offset_ns = least - (1 << 64) if least >> 63 else least
            self._maps["clock_offset"].update(_ZERO, least.to_bytes(8, "little"))
        return self._clock_offset_ns


def _visited_once(scan: Scan) -> Rows:
    """Return the tasks of a scan without those that it found to have run after it had read their record.

    It may visit a thread twice, because it was noted and may have done nothing but run.
    """
    tasks = scan.tasks
    has_run = np.flatnonzero(tasks["flags"] & layout.SCANNED_RAN)
    again = has_run[np.isin(tasks["tid"][has_run], tasks["tid"][scan.of_threads])]
    return chosen(tasks, np.delete(np.arange(len(tasks)), again)) if len(again) else tasks


def _those_among(keys: Sequence[ThreadKey], ids: Ints) -> set[ThreadKey]:
    """Return those of `keys` that are among `ids`."""
    return set(compress(keys, are_among(thread_codes(integers(keys, 2)), thread_codes(ids)).tolist()))
