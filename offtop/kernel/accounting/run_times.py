"""CPU time of threads per tick, from the kernel's cumulative counter for each thread (`sum_exec_runtime`)."""

from collections.abc import Set

from offtop.kernel.accounting.tick_records import RuntimeSample
from offtop.kernel.bpf import layout
from offtop.kernel.bpf.layout import ThreadRecord
from offtop.model.values.catalog import ThreadKey
from offtop.units import NS_PER_S

_STALE_NS = NS_PER_S // 10
"""How stale the counter of a running thread may be: the kernel updates it only now and then, at its own ticks."""
_MAX_SCAN_NS = NS_PER_S // 10
"""Upper bound for the duration of a task scan: a thread that begins during one is seen by the next."""
_MAX_TICKS = 2
"""A thread missing from one tick is in the next, so that a difference may span this many."""
_ENDED = -1


class RunTimes:
    def __init__(self, at_ns: int) -> None:
        """Start counting at `at_ns`."""
        self._began_ns = at_ns
        self._last: dict[ThreadKey, tuple[int, int | None]] = {}
        """Thread start time, and total CPU time as of the last report.

        _ENDED if the thread has exited; None if it has not been counted since the last report.
        """

    def new_ns(self, ran: RuntimeSample, record: ThreadRecord | None, before_ns: int, at_ns: int) -> int:
        """Return the CPU time of a thread since its last report, or 0 if that is unknown.

        The tick lasted from `before_ns` to `at_ns`; `record` is what the thread did in it.
        """
        start_ns, last_ns = self._last.get(ran.key, (-1, None))
        if start_ns > ran.start_ns:  # it is of a previous owner of the tid
            return 0
        if start_ns != ran.start_ns:  # a thread that began earlier was not counted until now
            last_ns = 0 if ran.start_ns > max(self._began_ns, before_ns - _MAX_SCAN_NS) else None
        elif last_ns == _ENDED:  # another thread took over this tid by exec(): the value was the old main thread's
            last_ns = None
        exec_ns = ran.exec_ns
        if ran.at_ns:  # it has been running since, except while it was off CPU
            # A new thread's first wait was over before it ran at all; its record may get that wait only later.
            first_ns = record.first_off_ns if record and record.first_kind & layout.KIND_NEW else 0
            exec_ns += at_ns - ran.at_ns - (_off_ns(record, at_ns) - max(ran.off_ns, first_ns))
        ran_ns = 0 if last_ns is None else exec_ns - last_ns
        if last_ns is not None and -_STALE_NS < ran_ns <= 0:
            ran_ns = 0  # the last value of a running thread was a little too high: the remainder is smaller
            exec_ns = last_ns
        self._last[ran.key] = ran.start_ns, _ENDED if ran.ended else exec_ns
        # An impossible value is another thread's counter, or includes time during which the thread was not counted.
        return ran_ns if 0 < ran_ns <= _MAX_TICKS * (at_ns - before_ns) + _STALE_NS else 0

    def is_last(self, ran: RuntimeSample) -> bool:
        """Return whether no thread that started later has been reported under this tid."""
        return self._last[ran.key][0] == ran.start_ns

    def asked_only(self, keys: Set[ThreadKey]) -> None:
        """Discard the baselines of all other threads: they were not counted in this tick."""
        for key in self._last.keys() - keys:
            self._last[key] = self._last[key][0], None

    def forget(self, key: ThreadKey) -> None:
        self._last.pop(key, None)


def _off_ns(record: ThreadRecord | None, at_ns: int) -> int:
    """Off-CPU time of a record up to the end of the tick."""
    if record is None:
        return 0
    return record.offcpu_ns + (max(0, at_ns - record.left_ns) if record.left_ns else 0)
