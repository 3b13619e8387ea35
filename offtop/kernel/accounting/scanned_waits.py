"""Waits in progress in a task scan: their start, system call, stack, object, and the holder of a lock."""

from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offtop.kernel.accounting.tick_records import NOT_SCANNED, OffCpuTasks
from offtop.kernel.bpf import layout
from offtop.kernel.bpf.scan_rows import Rows, Scan, calls_of, chosen, ids_of, is_32_bit_program, kinds_of
from offtop.kernel.procfs import syscalls
from offtop.kernel.resolve.sites import Sites
from offtop.kernel.resolve.stacks import Stacks
from offtop.kernel.resolve.wakes import Wakes
from offtop.kernel.unwind.user_stacks import UserStacks
from offtop.model.values.catalog import CALL_32_BIT, Catalog, ThreadKey
from offtop.model.values.snapshot import OUTSIDE, Bound, Holder
from offtop.model.values.table import THREADS, Ints, Mask, rows_at
from offtop.model.values.waits import (
    ARGUMENTS,
    BOUND,
    CALL,
    FIELDS,
    FROM_NS,
    KERNEL,
    READ_USER,
    SINCE_NS,
    STATE,
    SWITCHED_OUT_NS,
    WAKE,
    WaitList,
)


class ScannedWaits:
    """Turns tasks of a scan into waits. New stacks, wait objects and system calls are added to the catalog."""

    def __init__(
        self, catalog: Catalog, stacks: Stacks, wakes: Wakes, sites: Sites, user_stacks: UserStacks | None
    ) -> None:
        """`user_stacks` reads the user stacks of waits in progress; None if they are off."""
        self._catalog, self._stacks, self._wakes, self._sites = catalog, stacks, wakes, sites
        self._user_stacks = user_stacks
        self.with_wakers = False
        """Whether wakers are recorded, so that a wait in progress has the waker STILL_WAITING."""

    def of(self, scan: Scan, which: Ints, clock_offset_ns: int) -> OffCpuTasks:
        """Return the waits of some tasks of a scan. `which`: their indexes.

        `clock_offset_ns`: offset of CLOCK_MONOTONIC from the scheduler's clock; 0 if unknown.
        """
        tasks = chosen(scan.tasks, which)
        rows = np.zeros((len(tasks), FIELDS), np.int64)
        rows[:, :2], rows[:, KERNEL], rows[:, CALL] = ids_of(tasks), NOT_SCANNED, -1
        rows[:, SWITCHED_OUT_NS] = rows[:, FROM_NS] = tasks["switched_out_ns"]
        rows[:, STATE] = tasks["state"]
        is_older = tasks["flags"] & layout.SCANNED_BEGAN_EARLIER != 0
        is_known = is_older & (tasks["arrived_ns"] != 0) & (clock_offset_ns != 0)
        ran_ns = last_ran_ns(scan.tasks)[which] if is_known.any() else tasks["arrived_ns"]
        rows[:, SINCE_NS] = np.where(is_known, np.minimum(ran_ns + clock_offset_ns, tasks["switched_out_ns"]), 0)
        rows[:, BOUND] = np.where(is_known, Bound.AT_MOST, np.where(is_older, Bound.AT_LEAST, Bound.EXACT))
        self._fill_stacks(rows, np.searchsorted(which, scan.of_stacks), scan, tasks["flags"])
        is_queued = (tasks["queued_ns"] != 0) & (clock_offset_ns != 0)
        queued_ns = np.where(is_queued, tasks["queued_ns"] + clock_offset_ns, 0)
        held = chosen(tasks, tasks["holder_tid"] != 0)
        pairs = zip(held["holder_pid"].tolist(), held["holder_tid"].tolist(), strict=True)
        holders = dict(zip(map(THREADS.key, ids_of(held).tolist()), map(self._holder, pairs), strict=True))
        runnable = tasks["flags"] & layout.SCANNED_RUNNABLE != 0
        return OffCpuTasks(WaitList(rows, holders), runnable, queued_ns, tasks["tid_acquired_ns"])

    def _fill_stacks(self, rows: Ints, at: Ints, scan: Scan, flags: NDArray[np.uint32]) -> None:
        """Fill in stacks, objects and calls of the waits at these positions, and note the waits for UserStacks.

        `flags`: of the tasks of all `rows`.
        """
        if not len(at):
            return
        registers = scan.stacks["registers"]
        kernel = self._stacks.scanned(scan.stacks, scan.deep_frames)
        for one in np.flatnonzero(flags[at] & layout.SCANNED_FROZEN).tolist():
            kernel[one] = self._stacks.frozen(int(kernel[one]))
        kernel = self._sites.with_quotas(rows[at, 0], kernel)
        calls, has_arguments = calls_in(registers, self._catalog)
        rows[at, WAKE] = self._wakes_of(rows[at], kernel, scan.stacks["object"])
        rows[at, KERNEL] = self._sites.with_connects(kernel, rows[at, WAKE])
        rows[at, CALL] = np.where(has_arguments | (calls < 0), calls, -2 - calls)
        rows[at[has_arguments], ARGUMENTS:READ_USER] = registers["arguments"][has_arguments].view(np.int64)
        if self._user_stacks:
            own = rows[at, 0] != OUTSIDE
            self._user_stacks.note_waits(rows_at(rows, at[own]), chosen(registers, own))

    def _wakes_of(self, waits: Ints, kernel: Ints, objects: NDArray[np.uint64]) -> Ints:
        """Return the catalog ids of what waits in progress at these kernel stacks are on."""
        found = np.full(len(waits), layout.NO_WAKE)
        at = np.flatnonzero(objects.any(axis=1) & (waits[:, STATE] & layout.RUNNING == 0))
        if not len(at):
            return found
        is_on_object = self._sites.are_on_object(kernel[at])
        objects, pids = objects[at], waits[at, 0]
        ones, which = kinds_of((objects, np.column_stack((pids, is_on_object))))
        wakes: list[int] = []
        for words, pid, is_on in zip(objects[ones], pids[ones].tolist(), is_on_object[ones].tolist(), strict=True):
            record = layout.object_of(words.tobytes())
            has_kind = record.kind != 0
            wakes.append(self._wakes.waiting_on(record, pid, self.with_wakers, is_on) if has_kind else layout.NO_WAKE)
        found[at] = np.array(wakes, np.int64)[which]
        return found

    def _holder(self, thread: tuple[int, int]) -> Holder:
        """Return a lock's holder with its name, which is read from /proc if the thread is not counted."""
        pid, tid = thread
        comm = self._catalog.comms.get(ThreadKey(pid, tid), "")
        if not comm:
            with suppress(OSError):
                comm = layout.text_of(Path(f"/proc/{pid}/task/{tid}/comm").read_bytes().rstrip(b"\n"))
        return Holder(pid, tid, comm)


def last_ran_ns(tasks: Rows) -> Ints:
    """Return a lower bound of when each task in a scan was switched out, by the scheduler's clock; 0 if unknown.

    It ran from arrived_ns on, for an unknown time. exec_start_ns is when it was switched out by another clock of its
    CPU, rq_clock_task(), which is behind because it leaves out the time of interrupts and the hypervisor. How far it is
    behind never shrinks, and each thread that ran there before shows how far at least: arrived_ns - exec_start_ns.
    """
    ran_ns: Ints = tasks["arrived_ns"].copy()
    has_both = np.flatnonzero((ran_ns != 0) & (tasks["exec_start_ns"] != 0))
    for cpu in np.unique(tasks["cpu"][has_both]).tolist():
        at = has_both[tasks["cpu"][has_both] == cpu]
        at = at[np.lexsort((ran_ns[at], tasks["exec_start_ns"][at]))]
        exec_ns = tasks["exec_start_ns"][at]
        ran_ns[at] = exec_ns + np.maximum.accumulate(ran_ns[at] - exec_ns)
    return ran_ns


def calls_in(registers: Rows, catalog: Catalog) -> tuple[Ints, Mask]:
    """Return the system calls as the catalog numbers them, -1 if there is none, and which have known arguments.

    Names that the catalog lacks are added to it.
    """
    numbers, is_32_bit = calls_of(registers), is_32_bit_program(registers)
    has_call, names = numbers >= 0, catalog.calls
    has_arguments = has_call & ~is_32_bit
    for number in set(numbers[has_arguments].tolist()).difference(names):
        if name := syscalls.name_of(number):
            names[number] = name
    for number in set(numbers[has_call & is_32_bit].tolist()):
        if number | CALL_32_BIT not in names and (name := syscalls.name_of(number, syscalls.MACHINE_32_BIT)):
            names[number | CALL_32_BIT] = name
    calls = np.where(is_32_bit, numbers | CALL_32_BIT, numbers)
    return np.where(has_call, calls, -1), has_arguments
