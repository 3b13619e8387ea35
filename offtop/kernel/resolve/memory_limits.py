"""Finds the memory limit that keeps threads waiting until memory of their cgroup is free."""

from collections.abc import Sequence

from offtop.kernel.procfs import cgroups
from offtop.kernel.resolve.blocked import Blocked, Found, StacksIn
from offtop.model.values.blockers import ELSEWHERE, MEMORY_LIMIT, Blocker, limit_text
from offtop.model.values.catalog import Catalog, ThreadKey

_FUNCTIONS = (
    *("mem_cgroup_handle_over_high", "__mem_cgroup_handle_over_high", "reclaim_high"),
    *("try_charge", "try_to_free_mem_cgroup_pages", "mem_cgroup_oom_synchronize", "mem_cgroup_out_of_memory"),
)
"""Functions of mm/memcontrol.c and mm/vmscan.c that free memory of one cgroup, or wait for it."""


class MemoryLimits:
    """Finds the file of the limit that the thread's cgroup or an ancestor has reached."""

    def __init__(self, catalog: Catalog) -> None:
        self.stacks = StacksIn(catalog, _FUNCTIONS)
        """Kernel stacks that wait for memory of a cgroup."""

    def find(self, waits: Sequence[Blocked]) -> dict[ThreadKey, Found]:
        """Return the limit for each of these threads; nothing if none is reached any more."""
        found: dict[ThreadKey, Found] = {}
        of_process: dict[int, cgroups.MemoryLimit | None] = {}
        for one in waits:
            if one.kernel not in self.stacks:
                continue
            pid = one.key.pid
            if pid not in of_process:
                of_process[pid] = cgroups.reached_memory_limit(cgroups.content_of(pid), cgroups.mounted())
            if limit := of_process[pid]:
                blockers = (Blocker(ELSEWHERE, 0, MEMORY_LIMIT, True, limit_text(limit.bytes, str(limit.file))),)
                found[one.key] = Found(one.switched_out_ns, blockers)
        return found
