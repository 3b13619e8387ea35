"""Finds the child processes that threads wait for in wait4() and waitid()."""

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from offtop.kernel.procfs.guarded_reads import Channel
from offtop.kernel.procfs.thread_ids import namespace_ids, statuses, tasks_of
from offtop.kernel.resolve.blocked import WAIT4, WAITID, Blocked, Found
from offtop.model.values.blockers import CHILD, Blocker
from offtop.model.values.catalog import ThreadKey

_PID, _PIDFD = 1, 3
"""P_PID and P_PIDFD of waitid(2)."""
_MOST_CHILDREN = 64
_MOST_THREADS = 256
_BYTES = 1 << 16
_OLD_S = 5.0
"""Age at which children are read again, because there may be others by now."""
_OF_PIDFD = re.compile(rb"^Pid:\t(\d+)$", re.MULTILINE)


class Children:
    """Finds awaited children. For one thread."""

    def __init__(self, reads: Channel) -> None:
        self._reads = reads
        self._known: dict[ThreadKey, tuple[float, Found]] = {}
        """What was found, and when (time.monotonic())."""

    def find(self, waits: Sequence[Blocked]) -> dict[ThreadKey, Found]:
        """Return the children of which each of these threads waits for one.

        None if there are more than 64.
        """
        now_s = time.monotonic()
        known: dict[ThreadKey, tuple[float, Found]] = {}
        for one in waits:
            if one.call in (WAIT4, WAITID):
                before = self._known.get(one.key)
                if before and before[1].switched_out_ns == one.switched_out_ns and now_s - before[0] < _OLD_S:
                    known[one.key] = before
                else:
                    with suppress(OSError):
                        pids = self._awaited(one)
                        blockers = tuple(Blocker(pid, 0, CHILD, len(pids) == 1) for pid in pids)
                        known[one.key] = now_s, Found(one.switched_out_ns, blockers)
        self._known = known
        return {key: found for key, (_, found) in known.items() if found.blockers}

    def _awaited(self, wait: Blocked) -> list[int]:
        """Return what the thread waits for: one child, or any of these. Raises OSError."""
        key, (first, second, *_) = wait.key, wait.arguments
        if wait.call == WAITID and first == _PIDFD:
            (content,) = self._reads.ask(key.pid, "contents", [f"/proc/{key.pid}/fdinfo/{second & 0xFFFFFFFF}"], _BYTES)
            return [int(pid) for pid in _OF_PIDFD.findall(content)]
        target = second if wait.call == WAITID and first == _PID else first if wait.call == WAIT4 else -1
        target = (target & 0xFFFFFFFF ^ 0x80000000) - 0x80000000
        own = statuses(self._reads, key.pid, [key.tid]).get(key.tid)
        if own is None:
            return []
        depth = len(namespace_ids(own))
        if target > 0 and depth <= 1:
            fields = self._status(target)
            awaits = key.pid, key.tid
            is_own = int(fields.get("PPid", "0")) in awaits or int(fields.get("TracerPid", "0")) in awaits
            return [int(fields["Tgid"])] if is_own else []
        children = self._children(key.pid)
        if target <= 0:
            return children if len(children) <= _MOST_CHILDREN else []
        return [pid for pid in children if namespace_ids(self._status(pid))[depth - 1 : depth] == [target]]

    def _status(self, pid: int) -> Mapping[str, str]:
        """Read the fields of the status of a process; none if it has exited. Raises TimeoutError."""
        return statuses(self._reads, pid, [pid]).get(pid, {})

    def _children(self, pid: int) -> list[int]:
        """Return the children of all threads of a process: each may wait for those of the others. Raises OSError."""
        paths = [f"/proc/{pid}/task/{tid}/children" for tid in tasks_of(pid)[:_MOST_THREADS]]
        return [int(word) for content in self._reads.ask(pid, "contents", paths, _BYTES) for word in content.split()]
