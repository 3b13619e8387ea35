"""Running totals by thread, by site, and of wake-up storms."""

from collections.abc import Collection, Mapping

import numpy as np

from offtop.kernel.accounting.tick_deltas import TickDeltas
from offtop.kernel.accounting.tick_records import SiteDeltas
from offtop.model.values.running import Running
from offtop.model.values.table import (
    MAX_NS,
    NO_COUNTS,
    SITES,
    THREADS,
    Ints,
    are_among,
    integers,
    nonzero_lanes,
    of_exited,
    thread_codes,
)
from offtop.model.values.wake import Storm


class Totals:
    """Running totals as of the last tick."""

    def __init__(self) -> None:
        self.threads = Running(THREADS)
        self.sites = Running(SITES)
        self.storms: dict[int, Storm] = {}
        """Totals by the catalog id of a wake with the storm's waker."""
        self.stormed_ns: dict[int, int] = {}
        """Time of the last change of each entry of `storms`."""

    def add(self, tick: TickDeltas, counted: SiteDeltas, follows_snapshot: bool) -> None:
        """Add what the tick collected, and `counted`: the finished waits at sites from the BPF programs.

        `follows_snapshot`: maxima restart, because a snapshot has shown those of the last tick.
        """
        at_ns = tick.at_ns
        if follows_snapshot:
            self.threads.begin_tick()
            self.sites.begin_tick()
        for ids, numbers, counts in tick.ended:
            self.threads.add(ids, numbers, counts, at_ns)
        if tick.settled:
            ids, numbers = (np.concatenate(parts) for parts in zip(*tick.settled, strict=True))
            self.threads.add(ids, numbers, NO_COUNTS, at_ns)
        late = SiteDeltas.of(tick.late)
        self._add_sites(tick, counted.ids, counted.numbers, nonzero_lanes(counted.lanes))
        if tick.sites:
            ids, numbers = (np.concatenate(parts) for parts in zip(*tick.sites, strict=True))
            self._add_sites(tick, ids, numbers, NO_COUNTS)
        self._add_sites(tick, late.ids, late.numbers, nonzero_lanes(late.lanes))
        if tick.lengthened:
            sites = {*map(tuple, counted.ids.tolist()), *map(tuple, late.ids.tolist())}
            self._lengthen(tick, np.concatenate(tick.lengthened), sites)

    def add_storms(self, storms: Mapping[int, Storm], at_ns: int, follows_snapshot: bool) -> None:
        """Add the storms of a tick, by the wake with the storm's waker. `follows_snapshot`: see `add`."""
        if follows_snapshot:
            self.storms = {wake: was._replace(largest=0) if was.largest else was for wake, was in self.storms.items()}
        for wake, one in storms.items():
            self.stormed_ns[wake] = at_ns
            was = self.storms.get(wake, Storm())
            self.storms[wake] = was.plus(one)._replace(largest=max(was.largest, one.largest))

    def move_threads_to_exited(self, threads: Ints) -> Ints:
        """Add the totals of exited threads (pid, tid) to EXITED, and those of their sites, and return their sites."""
        self.threads.move(threads, of_exited(threads))
        sites = self.sites.keys_of_threads(threads)
        self.move_sites_to_exited(sites)
        return sites

    def move_sites_to_exited(self, sites: Ints) -> None:
        """Add the totals of these sites to the sites of exited threads."""
        self.sites.move(sites, of_exited(sites))

    def forget_storms(self, wake: int) -> None:
        self.storms.pop(wake, None)
        self.stormed_ns.pop(wake, None)

    def _lengthen(self, tick: TickDeltas, waits: Ints, counted: Collection[tuple[int, ...]]) -> None:
        """Correct maximum and histogram of the sites of `waits` (TickDeltas.lengthened), if they are counted now."""
        waits = waits[np.array([tuple(site) in counted for site in waits[:, : SITES.width].tolist()], np.bool_)]
        whole_ns, before, after = waits[:, SITES.width :].T
        numbers = np.zeros((len(waits), SITES.numbers), np.int64)
        numbers[:, MAX_NS] = whole_ns
        row, one = np.arange(len(waits)), np.ones(len(waits), np.int64)
        moves = np.concatenate((np.column_stack((row, before, -one)), np.column_stack((row, after, one))))
        self._add_sites(tick, waits[:, : SITES.width], numbers, moves)

    def _add_sites(self, tick: TickDeltas, ids: Ints, numbers: Ints, counts: Ints) -> None:
        if tick.renamed:
            ids = ids.copy()
            threads = thread_codes(integers([key[:2] for key in tick.renamed], 2))
            for row in np.flatnonzero(are_among(thread_codes(ids), threads)).tolist():
                key = SITES.key(ids[row].tolist())
                ids[row] = tick.renamed.get(key, key)
        self.sites.add(ids, numbers, counts, tick.at_ns)
