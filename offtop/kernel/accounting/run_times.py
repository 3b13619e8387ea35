"""CPU time of threads per tick, from the kernel's cumulative counter for each thread (`sum_exec_runtime`)."""

import numpy as np

from offtop.kernel.accounting.thread_table import ThreadTable
from offtop.kernel.accounting.tick_records import RuntimeSamples
from offtop.model.values.table import Ints, Mask
from offtop.units import NS_PER_S

_STALE_NS = NS_PER_S // 10
"""How stale the counter of a running thread may be: the kernel updates it at its scheduler ticks only."""
_MAX_SCAN_NS = NS_PER_S // 10
"""Upper bound for the duration of a task scan: a thread that begins during one is seen by the next."""
_MAX_TICKS = 2
"""A thread missing from one tick is in the next, so that a difference may span this many."""
_ENDED, _NOT_COUNTED = -(1 << 62), -(1 << 61)
"""Instead of a total: the thread has exited; it was not counted since its last report."""


class RunTimes:
    """Turns cumulative CPU times into CPU time per tick."""

    def __init__(self, threads: ThreadTable, at_ns: int) -> None:
        """Start counting at `at_ns`. The totals as of the last report are in `threads`."""
        self._threads, self._began_ns = threads, at_ns

    def new_ns(self, rows: Ints, ran: RuntimeSamples, off_ns: Ints, first_ns: Ints, before_ns: int, at_ns: int) -> Ints:
        """Return the CPU time of each thread since its last report, or 0 if that is unknown.

        `rows` are those of the samples in the table, each once. The tick lasted from `before_ns` to `at_ns`. `off_ns`
        is how long the thread was off CPU in it, `first_ns` the part that a new thread waited for its first CPU.
        """
        threads, samples = self._threads, ran.rows
        start_ns, last_ns = threads.start_ns[rows], threads.exec_ns[rows]
        sample_start_ns, exec_ns = samples["start_ns"], samples["exec_ns"].copy()
        is_current = start_ns <= sample_start_ns  # otherwise it is of a previous owner of the tid
        # A thread that began earlier was not counted until now.
        is_new = sample_start_ns > max(self._began_ns, before_ns - _MAX_SCAN_NS)
        # If another thread took over this tid by exec(), the value was the old main thread's.
        last_ns = np.where(last_ns == _ENDED, _NOT_COUNTED, last_ns)
        last_ns = np.where(start_ns != sample_start_ns, np.where(is_new, 0, _NOT_COUNTED), last_ns)
        # It has been running since the sample, except while it was off CPU. A new thread's first wait was over before
        # it ran at all; its record may get that wait only later.
        since_ns = at_ns - samples["at_ns"] - (off_ns - np.maximum(samples["off_ns"], first_ns))
        exec_ns += np.where(samples["at_ns"] != 0, since_ns, 0)
        is_known = last_ns != _NOT_COUNTED
        ran_ns = np.where(is_known, exec_ns - last_ns, 0)
        # The last value of a running thread was a little too high: the remainder is smaller.
        is_stale = is_known & (ran_ns > -_STALE_NS) & (ran_ns <= 0)
        exec_ns = np.where(is_stale, last_ns, exec_ns)
        own = rows[is_current]
        threads.start_ns[own] = sample_start_ns[is_current]
        threads.exec_ns[own] = np.where(samples["ended"], _ENDED, exec_ns)[is_current]
        # An impossible value is another thread's counter, or includes time during which the thread was not counted.
        longest_ns = _MAX_TICKS * (at_ns - before_ns) + _STALE_NS
        return np.where(is_current & (ran_ns > 0) & (ran_ns <= longest_ns), ran_ns, 0)

    def is_last(self, row: int, start_ns: int) -> bool:
        """Return whether no thread that started later has been reported under this tid."""
        return int(self._threads.start_ns[row]) == start_ns

    def discard_unreported(self, is_reported: Mask) -> None:
        """Discard the totals of all other threads: they were not counted in this tick."""
        self._threads.exec_ns[~is_reported] = _NOT_COUNTED
