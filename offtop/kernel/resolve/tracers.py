"""Finds the debuggers that have stopped threads."""

from collections.abc import Sequence
from contextlib import suppress

from offtop.kernel.procfs.guarded_reads import Channel
from offtop.kernel.procfs.thread_ids import statuses
from offtop.kernel.resolve.blocked import Blocked, Found
from offtop.model.values.blockers import STOPPED_BY, Blocker
from offtop.model.values.catalog import ThreadKey


class Tracers:
    """Finds tracers: only the thread that traces another one can let it go on."""

    def __init__(self, reads: Channel) -> None:
        self._reads = reads

    def find(self, waits: Sequence[Blocked]) -> dict[ThreadKey, Found]:
        """Return the tracer of each of these threads that a debugger has stopped."""
        found: dict[ThreadKey, Found] = {}
        for one in waits:
            if one.is_traced:
                with suppress(OSError):
                    tid = self._number(one.key, "TracerPid")
                    if pid := self._number(ThreadKey(tid, tid), "Tgid"):
                        found[one.key] = Found(one.switched_out_ns, (Blocker(pid, tid, STOPPED_BY, True),))
        return found

    def _number(self, key: ThreadKey, field: str) -> int:
        """Return a number in the status of a thread, 0 if it has exited. Raises TimeoutError."""
        fields = statuses(self._reads, key.pid, [key.tid]).get(key.tid)
        return int(fields[field]) if fields else 0
