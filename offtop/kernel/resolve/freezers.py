"""Finds the frozen cgroups of threads that wait to be thawed."""

from collections.abc import Sequence

from offtop.kernel.procfs import cgroups
from offtop.kernel.resolve.blocked import Blocked, Found
from offtop.model.values.blockers import ELSEWHERE, FROZEN_BY, Blocker
from offtop.model.values.catalog import Catalog, ThreadKey
from offtop.model.windows.breakdown import STOPPED


class Freezers:
    """Finds the file by which a cgroup is frozen: the thread goes on when that is written."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def is_stopped(self, kernel: int) -> bool:
        """Return whether a thread at a kernel stack may be frozen."""
        return self._catalog.stack(kernel).category == STOPPED

    def find(self, waits: Sequence[Blocked]) -> dict[ThreadKey, Found]:
        """Return what has frozen each of these threads; nothing for those that something else has stopped."""
        found: dict[ThreadKey, Found] = {}
        of_process: dict[int, str] = {}
        for one in waits:
            if one.is_traced or not self.is_stopped(one.kernel):
                continue
            pid = one.key.pid
            if pid not in of_process:
                file = cgroups.frozen_by(cgroups.content_of(pid), cgroups.mounted())
                of_process[pid] = str(file) if file else ""
            if of_process[pid]:
                blockers = (Blocker(ELSEWHERE, 0, FROZEN_BY, True, of_process[pid]),)
                found[one.key] = Found(one.switched_out_ns, blockers)
        return found
