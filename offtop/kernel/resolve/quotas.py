"""Finds processes that wait for the CPU quota of their cgroup, on kernels before 6.18.

There, a thread whose cgroup has used up its quota stays in the run queue, as if it waited for a CPU. For each cgroup,
the kernel counts the periods, and those in which the quota was used up. If these are at least half, offtop assumes that
its processes in the run queue wait for the quota.
"""

import time
from collections.abc import Collection

from offtop.kernel.procfs import cgroups
from offtop.kernel.procfs.cgroups import Quota

_MOST = 64
"""Maximum number of processes that a round checks."""
_LEAST_PERIODS = 5
_KEPT_S = 5.0
"""How long a process is checked after it was in the run queue: in between, it has a CPU."""


class Quotas:
    """Finds the processes. For one thread."""

    def __init__(self) -> None:
        self._ready_s: dict[int, float] = {}
        """PID → when one of its threads was last seen in the run queue (time.monotonic())."""
        self._before: dict[str, Quota] = {}
        """By path of the cgroup, as of some periods ago."""
        self._throttled: set[str] = set()

    def find(self, ready: Collection[int]) -> dict[int, str]:
        """Return PID → cgroup whose quota it waits for. `ready`: processes with a thread in the run queue."""
        now_s = time.monotonic()
        kept = {pid: at_s for pid, at_s in self._ready_s.items() if now_s - at_s < _KEPT_S}
        newest_first = sorted({**kept, **dict.fromkeys(ready, now_s)}.items(), key=lambda one: -one[1])
        self._ready_s = dict(newest_first[:_MOST])
        contents = {pid: cgroups.content_of(pid) for pid in self._ready_s}
        quotas = {content: cgroups.quota_of(content, cgroups.mounted()) for content in {*contents.values()}}
        for quota in filter(None, quotas.values()):
            self._judge(quota)
        there = {quota.path for quota in quotas.values() if quota}
        self._before = {path: quota for path, quota in self._before.items() if path in there}
        self._throttled &= there
        return {
            pid: quota.path
            for pid, content in contents.items()
            if (quota := quotas[content]) and quota.path in self._throttled
        }

    def _judge(self, now: Quota) -> None:
        before = self._before.setdefault(now.path, now)
        periods = now.periods - before.periods
        if periods < 0:  # another cgroup of that name
            self._before[now.path] = now
            self._throttled.discard(now.path)
        if periods >= _LEAST_PERIODS:
            self._before[now.path] = now
            is_throttled = 2 * (now.throttled - before.throttled) >= periods
            (self._throttled.add if is_throttled else self._throttled.discard)(now.path)
