"""Finds the requests to disks that have ended although the kernel did not report their completion.

On Linux 6.18 with virtio disks, the tracepoint does not run for up to 0.5 % of the requests. Such a request stays in
the map until its address is used again; then BPF counts it as lost. Until then it must not be shown as in progress.

/proc/diskstats tells how many requests a disk has. If the map has more, the oldest have ended. The file is read several
times, and the fewest count: a thread that writes and waits in turn has another request in the disk most of the time.
One count may be wrong, because some kernels add it up over the CPUs while it changes. So the lowest one is left out,
and a request is lost for good only if two ticks in a row find so.
"""

import time
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from offtop.kernel.procfs import diskstats
from offtop.model.values.disks import DiskKey

_LEAST_LOST_NS = 50_000_000
"""A younger request is not taken for lost: the disk may have completed it just now, and the kernel reports it soon."""
_READS, _LONGEST_NS = 25, 5_000_000
"""How many times /proc/diskstats is read while a request may be lost, and for how long at most."""
_UNCOUNTED = frozenset({"flush", "other"})
"""Operations that /proc/diskstats lacks. `other` includes passthrough requests, such as those of SG_IO."""


class Entry(NamedTuple):
    """An entry of the map of requests."""

    start_ns: int
    issued_ns: int
    """0: it is in the queue."""
    key: DiskKey
    is_selected: bool
    comm: bytes

    @property
    def is_counted(self) -> bool:
        """Whether it is in the disk, and of a kind that /proc/diskstats counts.

        On some devices that lacks bios, which are those that were issued when they were made.
        """
        return self.start_ns < self.issued_ns and self.key.operation not in _UNCOUNTED


class LostRequests:
    def __init__(self, read_map: Callable[[], dict[int, Entry]]) -> None:
        """`read_map` returns the requests in the map by address."""
        self._read_map = read_map
        self._found: Mapping[int, int] = {}
        """Address of each request that was found at the last tick → when it was issued."""
        self._final: Mapping[int, int] = {}
        """The same of those that were found at two ticks in a row."""
        self.stats = diskstats.read()
        """/proc/diskstats at the last tick."""

    def __len__(self) -> int:
        """Return how many requests in the map are lost for good."""
        return len(self._final)

    def in_progress(self) -> dict[int, Entry]:
        """Read the map, and return the requests that have not ended, by address."""
        begin_ns = time.monotonic_ns()
        self.stats = diskstats.read()
        entries = self._read_map()
        old = {one.key.device for at, one in entries.items() if _is_old(one, begin_ns) and not self._is_final(at, one)}
        fewest = self._fewest(old, begin_ns)
        if fewest:
            entries = self._read_map()
        found = {at: entries.pop(at).issued_ns for at, one in [*entries.items()] if self._is_final(at, one)}
        found |= {at: entries.pop(at).issued_ns for at in _ended(entries, fewest, begin_ns)}
        self._found, self._final = found, dict(found.items() & self._found.items())
        return entries

    def _is_final(self, at: int, one: Entry) -> bool:
        return self._final.get(at) == one.issued_ns

    def _fewest(self, devices: Collection[int], begin_ns: int) -> dict[int, int]:
        """Return how many requests these disks had at fewest, but for one count that may be wrong.

        Those that the kernel does not count are left out.
        """
        names = {device: self.stats[device].name for device in devices if device in self.stats}
        counted = [device for device, name in names.items() if diskstats.counts_requests(name)]
        readings = [self.stats]
        while counted and len(readings) < _READS and time.monotonic_ns() - begin_ns < _LONGEST_NS:
            readings.append(diskstats.read())
        counts = {device: [one[device].in_device for one in readings if device in one] for device in counted}
        return {device: sorted(some)[1] for device, some in counts.items() if len(some) > 1}


def _is_old(one: Entry, now_ns: int) -> bool:
    return one.is_counted and now_ns - one.issued_ns > _LEAST_LOST_NS


def _ended(entries: Mapping[int, Entry], fewest: Mapping[int, int], begin_ns: int) -> set[int]:
    """Return the addresses of requests that have ended.

    `entries` was read after `fewest`, and that after `begin_ns`: only then does a disk have at most `fewest` of them.
    """
    of_disks: dict[int, list[int]] = {device: [] for device in fewest}
    for address, one in entries.items():
        if one.is_counted and one.issued_ns < begin_ns and one.key.device in fewest:
            of_disks[one.key.device].append(address)
    ended: set[int] = set()
    for device, addresses in of_disks.items():
        addresses.sort(key=lambda address: entries[address].issued_ns)
        more = max(0, len(addresses) - fewest[device])
        ended.update(address for address in addresses[:more] if _is_old(entries[address], begin_ns))
    return ended
