"""Measure offtop's own cost: its BPF programs by the kernel's statistics, its processes by psutil."""

import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from offtop.kernel.bpf import libbpf
from offtop.model.values.snapshot import Cost

_PERIOD_TICKS = 10
_COUNTED_TICKS = 3
"""Measuring run times costs some 50 ns a switch, so it is enabled for three ticks in ten."""
_FEWEST_SWITCHES = 1000
"""Minimum number of switches for a cost per switch: a few, with cold caches, do not represent a busy machine."""


class _Count(NamedTuple):
    """Sums since the programs were loaded, of the times when statistics were enabled."""

    switch_ns: int
    """Run time of the programs that run at switches."""
    scan_ns: int
    """Run time of the programs that do not run at switches: the task scan, and what counts file operations
    and requests to disks."""
    switches: int
    """How often the sched_switch program has run."""
    missed: int
    """Runs that the kernel skipped since the start, because a program or a kprobe was already running on that CPU."""


class CostMeter:
    """Measures the cost once a tick. Call close() at the end."""

    def __init__(self, programs: Mapping[str, int], at_ns: int, kprobe_links: Sequence[int] = ()) -> None:
        """`programs`: descriptors by what they are attached to, including `sched_switch`."""
        self._programs, self._kprobe_links = dict(programs), kprobe_links
        self._processes = {0: psutil.Process()}
        """Children by their pid, and offtop's main process as 0."""
        self._ticks = 0
        self._statistics_fd = -1
        self._switches_counted = self._switch_ns = self._scan_ns = self._counted_ns = 0
        self._counted_from_ns = at_ns
        self._at_ns, self._switches, self._cpu_s = at_ns, context_switches(), self._usage()[0]
        self._before = self._count()
        self.drawing_pct = 0.0
        """CPU use of the main thread between the last two calls, if another thread reads; in percent of one CPU."""
        self._drawing_s = _main_thread_s()
        self._start_counting(at_ns)

    def read(self, at_ns: int, children: Sequence[int] = ()) -> tuple[Cost, int]:
        """Return the cost since the last call, and how many runs the kernel has skipped since the start.

        The kernel skips a run of a program that is already running on that CPU.

        `children`: pids of offtop's child processes; 0 stands for no child.
        """
        for pid in set(children).difference(self._processes):
            with suppress(psutil.NoSuchProcess):
                self._processes[pid] = psutil.Process(pid)
        count = self._count()
        if self._statistics_fd >= 0:  # otherwise, another process may have enabled them, but not for our intervals
            self._add(count, at_ns)
        per_switch, bpf_pct = -1.0, -1.0
        if self._switches_counted >= _FEWEST_SWITCHES:
            per_switch = self._switch_ns / self._switches_counted
        if self._counted_ns:
            bpf_pct = 100 * (self._switch_ns + self._scan_ns) / self._counted_ns
        self._ticks += 1
        if self._ticks % _PERIOD_TICKS == 0:
            self._start_counting(at_ns)
        elif self._ticks % _PERIOD_TICKS == _COUNTED_TICKS:
            self.close()

        switches, (cpu_s, rss_bytes) = context_switches(), self._usage()
        used_s = sum(now_s - self._cpu_s.get(pid, 0.0) for pid, now_s in cpu_s.items())
        drawn_s, self._drawing_s = self._drawing_s, _main_thread_s()
        drawing_s = 0.0 if threading.current_thread() is threading.main_thread() else self._drawing_s - drawn_s
        self.drawing_pct = 100e9 * drawing_s / max(1, at_ns - self._at_ns)
        cost = Cost(
            bpf_ns_per_switch=per_switch,
            switches=switches - self._switches,
            cpu_pct=100e9 * used_s / max(1, at_ns - self._at_ns),
            bpf_pct=bpf_pct,
            rss_bytes=rss_bytes,
        )
        self._at_ns, self._switches, self._cpu_s = at_ns, switches, cpu_s
        return cost, count.missed

    def watch(self, programs: Mapping[str, int]) -> None:
        """Set the programs to measure, after some were attached or detached."""
        self._programs = dict(programs)
        self._before = self._count()

    def close(self) -> None:
        if self._statistics_fd >= 0:
            os.close(self._statistics_fd)
        self._statistics_fd = -1

    def _start_counting(self, at_ns: int) -> None:
        """Enable statistics, and reset the sums if they have enough switches.

        On an idle machine they are collected over several periods, until there are enough.
        """
        try:
            self._statistics_fd = libbpf.enable_statistics()
        except OSError:
            return  # without CAP_SYS_ADMIN the cost stays unknown
        if self._switches_counted >= _FEWEST_SWITCHES:
            self._switches_counted = self._switch_ns = self._scan_ns = self._counted_ns = 0
        self._before, self._counted_from_ns = self._count(), at_ns

    def _add(self, count: _Count, at_ns: int) -> None:
        self._switches_counted += count.switches - self._before.switches
        self._switch_ns += count.switch_ns - self._before.switch_ns
        self._scan_ns += count.scan_ns - self._before.scan_ns
        self._counted_ns += at_ns - self._counted_from_ns
        self._before, self._counted_from_ns = count, at_ns

    def _count(self) -> _Count:
        counted = {name: libbpf.statistics(fd) for name, fd in self._programs.items()}
        scan_ns = sum(
            one.run_time_ns for name, one in counted.items() if name.startswith(("bpf_iter", "file ", "disk "))
        )
        return _Count(
            switch_ns=sum(one.run_time_ns for one in counted.values()) - scan_ns,
            scan_ns=scan_ns,
            switches=counted["sched_switch"].run_cnt,
            missed=sum(one.recursion_misses for one in counted.values())
            + sum(map(libbpf.kprobe_misses, self._kprobe_links)),
        )

    def _usage(self) -> tuple[dict[int, float], int]:
        """CPU time of each of our processes, in seconds, and the memory of all."""
        cpu_s: dict[int, float] = {}
        rss_bytes = 0
        for pid, process in [*self._processes.items()]:
            try:
                times = process.cpu_times()
                rss_bytes += process.memory_info().rss
            except psutil.NoSuchProcess:
                del self._processes[pid]
            else:
                cpu_s[pid] = times.user + times.system if pid else time.process_time()  # psutil's resolution is 10 ms
        return cpu_s, rss_bytes


def _main_thread_s() -> float:
    """CPU time of the main thread, which draws if another thread reads."""
    main = threading.main_thread()
    return 0.0 if main.ident is None else time.clock_gettime(time.pthread_getcpuclockid(main.ident))


def context_switches() -> int:
    """Number of context switches of the whole machine since it booted."""
    with Path("/proc/stat").open() as lines:
        for line in lines:
            if line.startswith("ctxt "):
                return int(line.split()[1])
    return 0
