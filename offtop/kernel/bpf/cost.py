"""What offtop itself costs: its BPF programs by the kernel's own count, its processes by psutil."""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from offtop.kernel.bpf import libbpf
from offtop.model.values.snapshot import Cost

_OF_TICKS = 10
_COUNTED_TICKS = 3
"""Counting run times costs some 50 ns a switch, so the kernel does it for three ticks in ten."""
_FEWEST_SWITCHES = 1000
"""A cost per switch is said of at least so many: a few alone, with cold caches, say nothing of a busy machine."""


class _Count(NamedTuple):
    """Sums since the programs were loaded, of the times when the kernel counted."""

    switch_ns: int
    """In the programs that run at switches."""
    walk_ns: int
    """In the task walk."""
    switches: int
    """Runs of the program that runs once a switch."""
    missed: int
    """Runs that the kernel left out since the start, because a program or a kprobe was running on that CPU already."""


class CostMeter:
    """Asked once a tick; holds the descriptor that makes the kernel count."""

    def __init__(self, programs: Mapping[str, int], at_ns: int, kprobe_links: Sequence[int] = ()) -> None:
        """`programs`: descriptors by what they are attached to; `sched_switch` is among them."""
        self._programs, self._kprobe_links = dict(programs), kprobe_links
        self._processes = {0: psutil.Process()}
        """Children by their pid, and ourselves by 0."""
        self._ticks = 0
        self._statistics_fd = -1
        self._switches_counted = self._switch_ns = self._walk_ns = self._counted_ns = 0
        self._counted_from_ns = at_ns
        self._at_ns, self._switches, self._cpu_s = at_ns, context_switches(), self._usage()[0]
        self._before = self._count()
        self._start_counting(at_ns)

    def read(self, at_ns: int, children: Sequence[int] = ()) -> tuple[Cost, int]:
        """The cost since the last call, and the runs that the kernel left out (recursion) since the start.

        `children`: the pids of offtop's own, 0 for none.
        """
        for pid in set(children).difference(self._processes):
            with suppress(psutil.NoSuchProcess):
                self._processes[pid] = psutil.Process(pid)
        count = self._count()
        if self._statistics_fd >= 0:  # others may make the kernel count, too: not our ticks, not our time
            self._add(count, at_ns)
        per_switch, bpf_pct = -1.0, -1.0
        if self._switches_counted >= _FEWEST_SWITCHES:
            per_switch = self._switch_ns / self._switches_counted
        if self._counted_ns:
            bpf_pct = 100 * (self._switch_ns + self._walk_ns) / self._counted_ns
        self._ticks += 1
        if self._ticks % _OF_TICKS == 0:
            self._start_counting(at_ns)
        elif self._ticks % _OF_TICKS == _COUNTED_TICKS:
            self.close()

        switches, (cpu_s, rss_bytes) = context_switches(), self._usage()
        used_s = sum(now_s - self._cpu_s.get(pid, 0.0) for pid, now_s in cpu_s.items())
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
        """There are other programs now; those that were there before go on."""
        self._programs = dict(programs)
        self._before = self._count()

    def close(self) -> None:
        if self._statistics_fd >= 0:
            os.close(self._statistics_fd)
        self._statistics_fd = -1

    def _start_counting(self, at_ns: int) -> None:
        """Begin anew, but for the switches of a quiet machine, which are gathered until they are enough."""
        try:
            self._statistics_fd = libbpf.enable_statistics()
        except OSError:
            return  # without CAP_SYS_ADMIN: the cost stays unknown, and is shown so
        if self._switches_counted >= _FEWEST_SWITCHES:
            self._switches_counted = self._switch_ns = self._walk_ns = self._counted_ns = 0
        self._before, self._counted_from_ns = self._count(), at_ns

    def _add(self, count: _Count, at_ns: int) -> None:
        self._switches_counted += count.switches - self._before.switches
        self._switch_ns += count.switch_ns - self._before.switch_ns
        self._walk_ns += count.walk_ns - self._before.walk_ns
        self._counted_ns += at_ns - self._counted_from_ns
        self._before, self._counted_from_ns = count, at_ns

    def _count(self) -> _Count:
        counted = {name: libbpf.statistics(fd) for name, fd in self._programs.items()}
        walk_ns = sum(one.run_time_ns for name, one in counted.items() if name.startswith("bpf_iter"))
        return _Count(
            switch_ns=sum(one.run_time_ns for one in counted.values()) - walk_ns,
            walk_ns=walk_ns,
            switches=counted["sched_switch"].run_cnt,
            missed=sum(one.recursion_misses for one in counted.values())
            + sum(map(libbpf.kprobe_misses, self._kprobe_links)),
        )

    def _usage(self) -> tuple[dict[int, float], int]:
        """Of our processes: the CPU time of each, in seconds, and the memory of all."""
        cpu_s: dict[int, float] = {}
        rss_bytes = 0
        for pid, process in [*self._processes.items()]:
            try:
                times = process.cpu_times()
                rss_bytes += process.memory_info().rss
            except psutil.NoSuchProcess:
                del self._processes[pid]
            else:
                cpu_s[pid] = times.user + times.system if pid else time.process_time()  # psutil's come in 10 ms
        return cpu_s, rss_bytes


def context_switches() -> int:
    """Of the whole machine, since it booted."""
    with Path("/proc/stat").open() as lines:
        for line in lines:
            if line.startswith("ctxt "):
                return int(line.split()[1])
    return 0
