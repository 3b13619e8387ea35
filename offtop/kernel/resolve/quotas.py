"""Finds which CPU quota processes wait for.

For each cgroup, the kernel counts the periods, and those in which the quota was used up. Before 6.18, a thread whose
cgroup has used up its quota stays in the run queue, as if it waited for a CPU: if these periods are at least half,
offtop assumes that its processes in the run queue wait for the quota. Since then, the stack shows that a thread waits
for a quota. It is that of the nearest cgroup with one, if that has been used up at all.
"""

import time
from collections.abc import Callable, Collection

from offtop.kernel.procfs import cgroups
from offtop.kernel.procfs.cgroups import Quota

_MOST = 64
"""Maximum number of processes that a round checks."""
_LEAST_PERIODS = 5
_KEPT_S = 5.0
"""How long a process is checked after it was in the run queue: in between, it has a CPU."""


class Quotas:
    """Finds the processes. For one thread."""

    def __init__(self, is_exact: bool = False) -> None:
        """`is_exact`: whether the kernel distinguishes waits for the CPU quota from those for a CPU."""
        self.is_exact = is_exact
        self._ready_s: dict[int, float] = {}
        """PID → when one of its threads was last seen in the run queue (time.monotonic())."""
        self._before: dict[str, Quota] = {}
        """By path of the cgroup, as of some periods ago."""
        self._throttled: set[str] = set()

    def find(self, ready: Collection[int]) -> dict[int, Quota]:
        """Return PID → quota that it waits for.

        `ready`: processes with a thread in the run queue; with `is_exact`, that waits for a quota.
        """
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
            pid: quota
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
            throttled = now.throttled - before.throttled
            is_throttled = throttled > 0 if self.is_exact else 2 * throttled >= periods
            (self._throttled.add if is_throttled else self._throttled.discard)(now.path)


_CHECKED_S, _MOST_CHECKED = 5.0, 4096
"""How long an answer of ProcessQuotas is kept, and how many of them."""


class ProcessQuotas:
    """Tells which processes have a CPU quota at all. For one thread."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._known: dict[int, bool] = {}
        self._since_s = 0.0

    def has_quota(self, pid: int) -> bool:
        """Return whether a cgroup of the process has a CPU quota; False if it has exited."""
        now_s = self._now_s()
        if now_s - self._since_s > _CHECKED_S or len(self._known) > _MOST_CHECKED:
            self._known, self._since_s = {}, now_s
        if pid not in self._known:
            self._known[pid] = cgroups.quota_of(cgroups.content_of(pid), cgroups.mounted()) is not None
        return self._known[pid]
