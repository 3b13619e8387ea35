"""Suspects of short waits for a CPU or a CPU quota. Such waits have no edges, so sums of the window are compared."""

import heapq
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from offtop.model.classify.activity import RUNS, Activity
from offtop.model.classify.suspect import CPU, QUOTA, Hop, Suspect, Usual, part_unusual, weighed
from offtop.model.classify.suspect_weights import Weights
from offtop.model.values.catalog import ThreadKey, cpu_ranges
from offtop.model.values.snapshot import Snapshot
from offtop.model.windows.breakdown import RUN_QUEUE, THROTTLE

_HOG_SHARE, _VICTIM_SHARE = 0.5, 0.5
"""A program with at least the first share of all running time is accused if another one waits for a CPU for at least
the second share of the time in which it wants one, and does not itself use the first share of the CPUs that it may
use."""
_MENTIONED_SHARE = 0.05
"""Of all that wait for a CPU: programs below are not counted in the sentence."""
_LEAST_THREADS = 0.01
"""Average number of threads from which a process is named."""
_MOST_RIVALS = 256
"""Most processes whose CPUs are looked up besides the largest ones, those that run most first."""
_LEAST_CPU = 1.0
"""It is accused only if at least so many threads wait for a CPU, on average."""


class CpuSuspects:
    """Those of one tick."""

    def __init__(self, snapshot: Snapshot, activity: Activity, weights: Weights, usual: Usual) -> None:
        self._catalog, self._titles = snapshot.catalog, snapshot.titles
        self._activity, self._weights, self._usual = activity, weights, usual
        self.rivals = frozenset[int]()
        """The processes whose CPUs `starved` has compared."""

    def starved(self) -> list[Suspect]:
        """Return the program that uses the CPUs, if others spend most of their time waiting for one."""
        activity = self._activity
        running, ready = self._by_program(activity.running), self._by_program(activity.ready)
        if not running:
            return []
        hog = max(running, key=running.__getitem__)
        if running[hog] < _HOG_SHARE * sum(running.values()):
            return []
        victims = {
            program: amount
            for program, amount in ready.items()
            if program != hog and amount >= _VICTIM_SHARE * (amount + running.get(program, 0.0))
        }
        if sum(victims.values()) < _LEAST_CPU:
            return []
        runner, largest = self._largest((hog,), activity.running)[hog], self._largest(victims, activity.ready)
        runners = self._runners(victims)
        every = heapq.nlargest(
            _MOST_RIVALS, (pid for some in runners.values() for pid in some), activity.running.__getitem__
        )
        self.rivals = frozenset((runner, *largest.values(), *every))
        victims = {
            program: amount
            for program, amount in victims.items()
            if self._may_share_cpus(largest[program], runner)
            and not self._fill_the_cpus_of(largest[program], runners.get(program, ()))
        }
        waiting = sum(victims.values())
        if waiting < _LEAST_CPU:
            return []
        most = max(victims, key=victims.__getitem__)
        hops = self._program_hop(most, activity.ready, RUN_QUEUE), self._program_hop(hog, activity.running, RUNS)
        weight = self._weights.alone.get(RUN_QUEUE, 0.0)
        harm = weight * sum(
            amount * part_unusual(self._usual, program, RUN_QUEUE, amount) for program, amount in victims.items()
        )
        others = sum(amount >= _MENTIONED_SHARE * waiting for amount in victims.values()) - 1
        waiters = hops[0]._replace(is_exact=False, others=others)
        return [Suspect(CPU, (waiters, hops[1]), waiting, harm, weight * waiting)]

    def throttled(self) -> list[Suspect]:
        """Return the programs that wait for their CPU quota."""
        throttled = self._by_program(self._activity.throttled)
        weight = self._weights.alone.get(THROTTLE, 0.0)
        return [
            weighed(
                Suspect(
                    QUOTA,
                    (self._throttled_hop(program),),
                    amount,
                    amount * weight,
                ),
                part_unusual(self._usual, program, THROTTLE, amount),
            )
            for program, amount in throttled.items()
            if amount > _LEAST_THREADS
        ]

    def _throttled_hop(self, program: str) -> Hop:
        hop = self._program_hop(program, self._activity.throttled, THROTTLE)
        cpus, cgroup = self._activity.quotas.get(hop.key.pid, (0.0, ""))
        is_exact = hop.key.pid not in self._activity.likely_throttled
        return hop._replace(is_exact=is_exact, what=cgroup, quota_cpus=cpus)

    def _by_program(self, by_pid: Mapping[int, float]) -> dict[str, float]:
        found: dict[str, float] = {}
        for pid, amount in by_pid.items():
            if name := self._catalog.process(pid):
                found[name] = found.get(name, 0.0) + amount
        return found

    def _may_share_cpus(self, one: int, other: int) -> bool:
        """Return whether two processes may run on the same CPU, as far as is known."""
        some, others = (cpu_ranges(self._catalog.detail(pid).cpus) for pid in (one, other))
        is_known = bool(some and others)
        return not is_known or any(first <= end and begin <= last for first, last in some for begin, end in others)

    def _runners(self, programs: Collection[str]) -> Mapping[str, Sequence[int]]:
        """Return the processes of these programs that run."""
        found = defaultdict[str, list[int]](list)
        for pid, amount in self._activity.running.items():
            if amount > 0 and (program := self._catalog.process(pid)) in programs:
                found[program].append(pid)
        return found

    def _fill_the_cpus_of(self, pid: int, others: Sequence[int]) -> bool:
        """Return whether processes of a program use most of the CPUs that one of them may use: it waits for its own.

        Those that may only use other CPUs do not count, as when a server binds each of its workers to a CPU.
        """
        allowed = sum(last - first + 1 for first, last in cpu_ranges(self._catalog.detail(pid).cpus))
        if allowed <= 0:
            return False
        running = sum(self._activity.running[one] for one in others if self._may_share_cpus(one, pid))
        return running >= _HOG_SHARE * allowed

    def _largest(self, programs: Collection[str], by_pid: Mapping[int, float]) -> dict[str, int]:
        """Return the process with the largest amount of each program."""
        found: dict[str, int] = {}
        for pid, amount in by_pid.items():
            program = self._catalog.process(pid)
            if program in programs and (program not in found or amount > by_pid[found[program]]):
                found[program] = pid
        return found

    def _program_hop(self, program: str, by_pid: Mapping[int, float], state: str) -> Hop:
        amounts = {pid: amount for pid, amount in by_pid.items() if self._catalog.process(pid) == program}
        most = max(amounts, key=amounts.__getitem__)
        pids = [pid for pid, amount in amounts.items() if amount > _LEAST_THREADS or pid == most]
        title = self._titles.get(most, "")
        return Hop(ThreadKey(most, 0), program, len(pids), len(pids), state, None, 0, title)
