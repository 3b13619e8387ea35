"""Which threads have something to report in a buffer, as BPF has noted them (`changed` in bpf/offcpu.c)."""

import numpy as np

from offtop.kernel.bpf import layout, libbpf, map_sizes
from offtop.kernel.bpf.map_sizes import threads_now
from offtop.kernel.bpf.program import Program
from offtop.model.values.table import Ints

_ENTRIES_PER_THREAD = 16
"""How many entries of the list are visited in the time in which a scan of all threads visits one."""


class ChangedThreads:
    """The list of these threads. For the polling thread."""

    def __init__(self, program: Program, link: int) -> None:
        """`link`: descriptor of the iterator over the list."""
        self._list, self._counts, self._link = program.maps["changed"], program.maps["changes"], link
        self._running = set[int]()
        """Tids of the threads that were on a CPU at the last scans of waits in progress and of a buffer. If one still
        is at the end of the next tick, BPF may have noted nothing of it."""
        self._queued = set[int]()
        """Those that were queued for their first CPU at the last scan of waits in progress. BPF notes nothing when they
        get it."""

    def begin_scan(self, queued: Ints) -> None:
        """Forget what earlier scans have found: a scan of waits in progress has found these new threads queued."""
        self._queued = {*queued.tolist()}
        self.forget_running()

    def note_running(self, tids: Ints) -> None:
        """Note threads that a scan has found on a CPU."""
        self._running.update(tids.tolist())

    def forget_running(self) -> None:
        """Forget these threads, because another scan finds them again."""
        self._running.clear()

    def take(self, buffer: int) -> bool:
        """Prepare the list for a buffer that is no longer written, once a tick.

        Return whether it has all threads, and visiting them costs less than visiting all threads of the machine.
        """
        key = buffer.to_bytes(4, "little")
        counts = np.frombuffer(self._counts.lookup(key) or b"", np.uint64)
        self._counts.update(key, bytes(counts.nbytes))
        running, entries, room = self._running | self._queued, self._list.entries, map_sizes.RUNNING * len(counts)
        if (counts > entries // len(counts) - map_sizes.RUNNING).any() or len(running) > room:
            return False
        for at, tid in enumerate(running, entries - room):
            tids = (0, tid) if buffer else (tid, 0)
            self._list.update(at.to_bytes(4, "little"), layout.CHANGED.pack(*tids))
        return int(counts.sum()) + entries / _ENTRIES_PER_THREAD < threads_now()

    def scan(self) -> bytes:
        """Run the iterator, whose mode has been set, and return its output."""
        return libbpf.read_iterator(self._link)
