"""What one tick adds to the totals, with the times and filters that it is counted by."""

from dataclasses import dataclass, field

import numpy as np

from offtop.kernel.accounting.thread_table import UNKNOWN_NS
from offtop.kernel.accounting.tick_records import OffCpuTasks, SiteDeltas, ThreadRecords
from offtop.model.values.catalog import SiteKey
from offtop.model.values.snapshot import SiteTotals
from offtop.model.values.table import SITES, Ints, Mask
from offtop.model.values.waits import SWITCHED_OUT_NS


@dataclass(slots=True)
class TickDeltas:
    """What one tick adds to the totals, and what it is computed from.

    The steps of a tick fill in the lists, and `Totals.add` adds everything at the end. A thread is given by its row
    in the ThreadTable.
    """

    at_ns: int
    """Time of this tick (CLOCK_MONOTONIC)."""
    before_ns: int
    """Time of the tick before."""
    snapshot_ns: int
    """Time of the last snapshot, which showed the waits in progress up to then."""
    min_ns: int
    states: int
    max_ns: int
    filter_changed: bool
    has_snapshot: bool
    counted: SiteDeltas
    """Finished waits by site, from the BPF programs."""
    tasks: OffCpuTasks
    task_rows: Ints
    """Position in `tasks` → thread."""
    task_of: Ints
    """Thread → its position in `tasks`, or -1."""
    ended: list[tuple[Ints, Ints, Ints]] = field(default_factory=list[tuple[Ints, Ints, Ints]])
    """Finished waits by thread: ids, numbers, and their histograms as of table.nonzero_lanes."""
    settled: list[tuple[Ints, Ints]] = field(default_factory=list[tuple[Ints, Ints]])
    """The same for waits in progress and CPU time, which have no histogram."""
    sites: list[tuple[Ints, Ints]] = field(default_factory=list[tuple[Ints, Ints]])
    """The same by site; what the BPF programs counted by site is added in bulk instead."""
    lengthened: list[Ints] = field(default_factory=list[Ints])
    """Finished waits that began before they were first seen.

    A row has the site, the whole length, the lane in which BPF counted the part that it saw, and that of the whole.
    """
    late: list[tuple[SiteKey, SiteTotals]] = field(default_factory=list[tuple[SiteKey, SiteTotals]])
    """Waits that finished in earlier ticks."""
    renamed: dict[SiteKey, SiteKey] = field(default_factory=dict[SiteKey, SiteKey])
    """Site of which a stack is unknown → the same with the stack that was read during the wait."""

    def excludes(self, state: Ints) -> Mask:
        """Return which waits the filter by state excludes, given their state at switch-out."""
        return (state & self.states) == 0 if self.states else np.zeros(len(state), np.bool_)

    def scanned(self, rows: Ints, switched_out_ns: Ints) -> tuple[Ints, Ints]:
        """Return the positions in `rows` of waits that the task scan has seen, and their tasks.

        The scan may have seen an earlier wait of a thread than the one that began at `switched_out_ns`; then it has not
        seen this one.
        """
        task = self.task_of[rows]
        at = np.flatnonzero(task >= 0)
        at = at[self.tasks.waits.rows[task[at], SWITCHED_OUT_NS] == switched_out_ns[at]]
        return at, task[at]

    def add_sites(self, ids: Ints, total_ns: Ints, ready_ns: Ints, waits: Ints | int = 0) -> None:
        numbers = np.zeros((len(ids), SITES.numbers), np.int64)
        numbers[:, 0], numbers[:, 1], numbers[:, 2] = waits, total_ns, ready_ns
        some = numbers.any(axis=1)
        self.sites.append((ids[some], numbers[some]))


class LastRecords:
    """The last record of each thread in one tick."""

    def __init__(self, records: ThreadRecords, rows: Ints, is_previous: Mask, size: int) -> None:
        """`rows` are the threads of the records; those of a previous owner of the tid are left out.

        `size` is the number of rows of the ThreadTable.
        """
        self.records = records
        current = np.flatnonzero(~is_previous)
        self._positions = np.full(size + 1, -1)  # one more, so that thread -1 has no record
        self._positions[rows[current]] = current

    @property
    def has_record(self) -> Mask:
        """Which threads have a record: a column of the ThreadTable."""
        return self._positions[:-1] >= 0

    def positions(self, rows: Ints) -> Ints:
        """Return the position in `records` of each thread's record, or -1."""
        return self._positions[rows]

    def acquired_ns(self, rows: Ints) -> Ints:
        """Return when the thread of each record acquired its tid; UNKNOWN_NS without a record, or for row -1."""
        which = self._positions[rows]
        times = np.full(len(which), UNKNOWN_NS)
        times[which >= 0] = self.records.rows["tid_acquired_ns"][which[which >= 0]]
        return times
