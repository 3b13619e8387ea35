"""Records that BPF keeps of threads that exited: which buffer their waits are in, and how two records are merged."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from offtop.kernel.accounting.tick_records import RuntimeSample, RuntimeSamples, ThreadRecords
from offtop.kernel.bpf import layout
from offtop.kernel.bpf.layout import ThreadRecord
from offtop.kernel.bpf.scan_rows import histogram_of, lanes_of
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.table import Ints

_SUMMED = (
    *("waits", "offcpu_ns", "runqueue_ns", "preempted_ns", "involuntary", "short_waits", "short_ns"),
    *("short_runqueue_ns", "filtered_waits", "filtered_ns", "filtered_runqueue_ns", "lost_waits", "lost_ns"),
    "lost_runqueue_ns",
)
"""Fields of a ThreadRecord that are added if two records of one thread are merged."""
Exit = tuple[int, ThreadKey, bytes, int, ThreadRecord]
"""Exit time, key, raw name, start time and record of an exited thread."""


class Exits(NamedTuple):
    """The threads that exited."""

    records: ThreadRecords
    ran: RuntimeSamples
    ends_ns: dict[ThreadKey, int]
    """When each of them exited; without those whose tid is in use again."""


def is_mixed(last: ThreadRecord, flipped_ns: int) -> bool:
    """Return whether an exited thread's newer buffer also has waits of the tick before `flipped_ns`.

    This happens if the thread was unhashed before the task scan that followed the switch of buffers at `flipped_ns`,
    and got no CPU to exit until two ticks later. The sites of that tick are held back until a record arrives. So both
    buffers must be counted in one tick, or those sites would be counted without their waits.
    """
    return last.waits > 0 and last.first_switched_out_ns + last.first_off_ns < flipped_ns


def not_scanned(ended: list[Exit], scanned: Ints) -> list[Exit]:
    """Leave out the older records of those threads that the task scan of their tick has reported.

    `scanned` is the table ThreadRecords.identities of that scan. A thread that is switched out for the last time while
    the scan reads its older buffer saves that buffer, too, before the scan clears it.
    """
    if not any(record.is_previous for *_, record in ended):
        return ended
    reported = {*map(tuple, scanned.tolist())}
    return [one for one in ended if not (one[-1].is_previous and (*one[1], one[-1].tid_acquired_ns) in reported)]


def merge_mixed(ended: list[Exit], flipped_ns: int) -> list[Exit]:
    """Merge the records of both buffers of a thread if the newer one is mixed."""
    by_end = {one[:2]: one for one in ended}
    for end_ns, key, comm, start_ns, last in ended:
        older = by_end.get((end_ns - 1, key))
        if older and older[-1].is_previous and is_mixed(last, flipped_ns):
            del by_end[end_ns - 1, key]
            by_end[end_ns, key] = end_ns, key, comm, start_ns, _merge(older[-1], last)
    return [*by_end.values()]


def _merge(one: ThreadRecord, last: ThreadRecord) -> ThreadRecord:
    """Merge two records; the result starts and ends as `last` does."""
    lanes = lanes_of(one) + lanes_of(last)
    summed = {name: getattr(one, name) + getattr(last, name) for name in _SUMMED}
    return last._replace(**summed, max_ns=max(one.max_ns, last.max_ns), histogram=histogram_of(lanes))


def read_exits(
    parts: Iterable[tuple[memoryview, memoryview]],
) -> list[Exit]:
    """Parse exit records, ordered by exit time."""
    found: list[Exit] = []
    for keys, values in parts:
        for (at_ns, pid, tid), (comm, start_ns, thread) in zip(
            layout.EXITED_KEY.iter_unpack(keys), layout.EXITED.iter_unpack(values), strict=True
        ):
            record = ThreadRecord._make(layout.THREAD.unpack(thread))
            found.append((at_ns, ThreadKey(pid, tid), comm, start_ns, record))
    return sorted(found)


def without_sites(r: ThreadRecord) -> ThreadRecord:
    """Reduce a record to its waits without a site.

    These were short, filtered, or there was no room for their site.
    """
    waits = r.short_waits + r.filtered_waits + r.lost_waits
    offcpu_ns = r.short_ns + r.filtered_ns + r.lost_ns
    runqueue_ns = r.short_runqueue_ns + r.filtered_runqueue_ns + r.lost_runqueue_ns
    lanes = lanes_of(r)
    # Short waits are the shortest; of the rest take the longest, which are those that --max leaves out.
    short = np.diff(np.minimum(np.cumsum(lanes), r.short_waits), prepend=0)
    others = np.diff(np.minimum(np.cumsum((lanes - short)[::-1]), waits - r.short_waits), prepend=0)[::-1]
    return r._replace(
        waits=waits,
        offcpu_ns=offcpu_ns,
        runqueue_ns=runqueue_ns,
        preempted_ns=min(r.preempted_ns, runqueue_ns),  # the share at the sites is unknown
        involuntary=min(r.involuntary, waits),
        max_ns=min(r.max_ns, offcpu_ns),
        switched_out_ns=0,
        first_kind=0,
        first_switched_out_ns=0,
        first_off_ns=0,
        first_runqueue_ns=0,
        histogram=histogram_of(short + others),
    )


def runtime_of(key: ThreadKey, record: ThreadRecord, start_ns: int) -> RuntimeSample:
    return RuntimeSample(key, record.exec_ns, start_ns, record.exec_at_ns, record.exec_off_ns)
