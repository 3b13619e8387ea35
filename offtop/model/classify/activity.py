"""What threads and processes do in a window besides their waits in progress."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from offtop.model.classify.wait_edges import Floats
from offtop.model.values.blockers import CPU_QUOTA, DISK_WAITS, Blockers, quota_of
from offtop.model.values.catalog import ThreadKey, code_of
from offtop.model.values.disks import DeviceTotals, DiskActivity
from offtop.model.values.table import RUNNING_NS, THREADS, Ints, distinct_codes, table_of, thread_codes
from offtop.model.windows.breakdown import RUN_QUEUE, SHORT, SLEEP, THROTTLE, Shares
from offtop.model.windows.window import Window

RUNS = "runs"
"""What a thread or process does that runs."""
_MOST_REQUESTS = 0.5
"""A process with at least this share of the time of all requests to a disk keeps the others waiting."""
_MOSTLY = 0.9
"""A process sleeps if sleeps are at least this share of the time in which it is blocked."""


class Activity:
    """What threads and processes did in the window, as average numbers of threads."""

    def __init__(self, every: Shares, window: Window, blockers: Blockers) -> None:
        self._every, self._span_ns = every, max(1, window.span_ns)
        table = table_of(THREADS, window.threads)
        ids, running = table.ids, table.numbers[:, RUNNING_NS] / self._span_ns
        self.running = _sums(ids[:, 0], running)
        """By PID."""
        of_quotas = [(key.pid, some[0]) for key, some in blockers.items() if some[0].via == CPU_QUOTA]
        self.quotas = {pid: quota_of(one.what) for pid, one in of_quotas}
        """PID → how many CPUs the quota allows for which the process waits, 0 if unknown, and its cgroup's path."""
        self.likely_throttled = {pid for pid, one in of_quotas if not one.is_exact}
        """Processes that wait for their CPU quota although they seem to wait for a CPU."""
        self.throttled, self.ready = self._throttled_and_ready()
        """By PID: waiting for the CPU quota, and for a CPU."""
        self._of_processes: Sequence[Mapping[int, float]] = self.throttled, self.ready, self.running
        self._of_threads: Sequence[Mapping[int, float]] = ()
        """The same three by thread code, for threads that have been looked up."""
        self._codes, self._running_ns = thread_codes(ids), running
        self.users_of_disks: Mapping[str, int] = _users_of_disks(window.disks) if window.disks else {}
        """By name of the disk: the process with most of the requests in it, while requests are counted."""

    def has_process(self, pid: int) -> bool:
        """Return whether anything of the process was measured in the window."""
        return pid in self._pids

    @cached_property
    def _pids(self) -> frozenset[int]:
        return frozenset(distinct_codes(np.concatenate((self._codes >> 32, self._every.ids[:, 0]))).tolist())

    @cached_property
    def at_disks(self) -> Mapping[int, float]:
        """PID → average number of threads that wait for a disk."""
        found = defaultdict[int, float](float)
        for category in DISK_WAITS:
            for pid, amount in self._threads_in(category).items():
                found[pid] += amount
        return found

    def _threads_in(self, category: str, of_threads: bool = False) -> Mapping[int, float]:
        every = self._every
        leaves = [number for number, leaf in enumerate(every.leaves) if leaf.category == category]
        rows = np.isin(every.leaf, leaves)
        codes = thread_codes(every.ids[rows]) if of_threads else every.ids[rows, 0]
        return _sums(codes, every.total_ns[rows] / self._span_ns)

    def _throttled_and_ready(self, of_threads: bool = False) -> tuple[Mapping[int, float], Mapping[int, float]]:
        throttled, ready = self._threads_in(THROTTLE, of_threads), self._threads_in(RUN_QUEUE, of_threads)
        pids = {code: code >> 32 if of_threads else code for code in ready}
        likely = {code: ns for code, ns in ready.items() if pids[code] in self.likely_throttled}
        every = {code: throttled.get(code, 0.0) + likely.get(code, 0.0) for code in {*throttled, *likely}}
        return every, {code: ns for code, ns in ready.items() if code not in likely}

    def busy(self, key: ThreadKey) -> tuple[str, float]:
        """Return what a thread or process mostly does (RUNS, `run-queue` or `throttle`), and the sum of these three."""
        parts, code = self._of_processes, key.pid
        if key.tid:
            if not self._of_threads:
                running = _sums(self._codes, self._running_ns)
                self._of_threads = *self._throttled_and_ready(True), running
            parts, code = self._of_threads, code_of(key)
        if not any(code in one for one in parts):
            return RUNS, 0.0
        amounts = dict(zip((THROTTLE, RUN_QUEUE, RUNS), (one.get(code, 0.0) for one in parts), strict=True))
        return max(amounts, key=amounts.__getitem__), sum(amounts.values())

    def most_blocked(self, key: ThreadKey) -> tuple[str, float]:
        """Return the category with most time among waits that are not idle, and that time; empty if there are none."""
        sums: dict[str, int] = {}
        for (category, idle), ns in self._blocked_ns(key).items():
            if not idle and category != SHORT:
                sums[category] = sums.get(category, 0) + ns
        if not sums:
            return "", 0.0
        most = max(sums, key=sums.__getitem__)
        return most, sums[most] / self._span_ns

    def sleeps(self, key: ThreadKey) -> bool:
        """Return whether it does hardly anything but sleep, maybe at an even pace, so that its sleeps count as idle."""
        blocked = self._blocked_ns(key)
        asleep = sum(ns for (category, _), ns in blocked.items() if category == SLEEP)
        return asleep > 0 and asleep >= _MOSTLY * sum(blocked.values())

    def _blocked_ns(self, key: ThreadKey) -> Mapping[tuple[str, bool], int]:
        """Return the time by category and whether it is idle, without waits for a CPU."""
        every = self._every
        rows = every.ids[:, 0] == key.pid
        if key.tid:
            rows &= every.ids[:, 1] == key.tid
        found = defaultdict[tuple[str, bool], int](int)
        numbers: list[int] = every.leaf[rows].tolist()
        times: list[int] = every.total_ns[rows].tolist()
        for number, ns in zip(numbers, times, strict=True):
            leaf = every.leaves[number]
            if leaf.category not in (RUN_QUEUE, THROTTLE):
                found[leaf.category, bool(leaf.idle)] += ns
        return found


def _sums(codes: Ints, values: Floats) -> Mapping[int, float]:
    once, which = np.unique(codes, return_inverse=True)
    return dict(zip(once.tolist(), np.bincount(which, values, len(once)).tolist(), strict=True))


def _users_of_disks(activity: DiskActivity) -> Mapping[str, int]:
    """Return by name of the disk the process that keeps the others waiting, if there is one.

    It is compared with the totals of the device, because filters leave requests out of those of processes. A recording
    may lack these.
    """
    times: defaultdict[int, dict[int, int]] = defaultdict(dict)
    for key, totals in activity.totals.items():
        of_disk = times[key.device]
        of_disk[key.pid] = of_disk.get(key.pid, 0) + totals.outstanding_ns
    found: dict[str, int] = {}
    for device, by_pid in times.items():
        most = max(by_pid, key=by_pid.__getitem__)
        of_all = activity.devices.get(device, DeviceTotals()).every
        if by_pid[most] >= _MOST_REQUESTS * of_all.outstanding_ns > 0:
            found[activity.name(device)] = most
    return found
