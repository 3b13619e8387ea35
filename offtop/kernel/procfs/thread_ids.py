"""Translate the ids by which a process knows its threads and children into those that offtop sees.

In a container they differ, because it has a pid namespace of its own.
"""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress

from offtop.kernel.procfs.guarded_reads import Channel
from offtop.kernel.procfs.threads import EXITED, fields_of
from offtop.model.values.catalog import ThreadKey

_STATUS_BYTES = 1 << 14
_PART = 64
_MOST_THREADS = 4096


def statuses(reads: Channel, pid: int, tids: Iterable[int]) -> dict[int, Mapping[str, str]]:
    """Read the fields of the status of threads that have not exited. Raises TimeoutError."""
    every, found = [*tids], dict[int, Mapping[str, str]]()
    for first in range(0, len(every), _PART):
        part = every[first : first + _PART]
        paths = [f"/proc/{pid}/task/{tid}/status" for tid in part]
        for tid, content in zip(part, reads.ask(pid, "contents", paths, _STATUS_BYTES), strict=True):
            fields = fields_of(content)
            if fields.get("State", "Z")[0] not in EXITED:
                found[tid] = fields
    return found


def namespace_ids(fields: Mapping[str, str]) -> list[int]:
    """Return the ids of a thread: as offtop sees it, and in each namespace further inside."""
    return [int(word) for word in fields.get("NSpid", "").split()]


def is_in_namespace(reads: Channel, key: ThreadKey) -> bool:
    """Return whether a thread has another tid for itself, or has exited. Raises TimeoutError."""
    own = statuses(reads, key.pid, [key.tid]).get(key.tid)
    return own is None or len(namespace_ids(own)) > 1


def tid_of(reads: Channel, key: ThreadKey, inner: int) -> int:
    """Return the tid of a thread of the same process that has the tid `inner` as the process itself sees it.

    0 if there is no such thread, or if it has exited. `key` is any thread of the process. Raises TimeoutError.
    """
    own = statuses(reads, key.pid, [key.tid]).get(key.tid)
    if own is None or inner <= 0:
        return 0
    if len(namespace_ids(own)) <= 1:
        return inner if inner in statuses(reads, key.pid, [inner]) else 0
    tids = tasks_of(key.pid)
    found = statuses(reads, key.pid, tids) if len(tids) <= _MOST_THREADS else {}
    return next((tid for tid, fields in found.items() if namespace_ids(fields)[-1:] == [inner]), 0)


def tasks_of(pid: int) -> list[int]:
    """Return the tids of a process; none if it has exited."""
    with suppress(OSError):
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208
    return []
