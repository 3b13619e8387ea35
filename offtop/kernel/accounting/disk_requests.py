"""Reads the counts of requests to block devices once a tick, and adds the time of requests in progress.

The BPF programs count a request when it is completed, with all of its time. Earlier ticks may have shown a part of that
time already. This part is *owed*: it is subtracted once BPF has counted the request. At its stack, a request counts
with all of its time when it is completed.
"""

from collections.abc import Callable, Collection, Mapping
from functools import reduce
from typing import Any, NamedTuple

from offtop.kernel.accounting.io_counts import MOST_ROWS, MOST_STACKS, IoCounts, OwedTime, raw_text
from offtop.kernel.accounting.lost_requests import Entry, LostRequests
from offtop.kernel.bpf.disk_program import KEY, NUMBERS, REQUEST, TOTALS, DiskProgram
from offtop.model.values.disks import NO_REQUESTS, READS, WRITES, DeviceTotals, DiskActivity, DiskKey, DiskTotals
from offtop.model.values.io_stacks import of_rows
from offtop.model.values.largest import largest

_NAMES = {
    "READ": "read",
    "WRITE": "write",
    "FLUSH": "flush",
    "DISCARD": "discard",
    "SECURE_ERASE": "discard",
    "WRITE_ZEROES": "zeroes",
    "ZONE_APPEND": "write",
}
"""Operation of a request, without REQ_OP_, → its name."""


class _Key(NamedTuple):
    """Key of the totals in BPF, without the CPU."""

    key: DiskKey
    is_selected: bool


class _Request(NamedTuple):
    """A request in progress, with what was shown of it."""

    start_ns: int
    key: _Key
    shown_ns: int


class DiskRequests(IoCounts[_Key, DiskKey, DiskTotals]):
    """Requests of each tick. For the polling thread."""

    def __init__(
        self,
        program: DiskProgram,
        operations: Mapping[str, int],
        flags: Mapping[str, int],
        stack_ids: Callable[[int, int, int], tuple[int, int]],
    ) -> None:
        """`operations`: values of enum req_op by name. `flags`: masks by the names that bpf/disks.c has for them.

        `stack_ids`: see Stacks.ids.
        """
        super().__init__(program, stack_ids)
        self._operations = {value: name.removeprefix("REQ_OP_") for name, value in operations.items()}
        self._flags = flags
        self._in_progress: dict[int, _Request] = {}
        """By address."""
        self._owed = OwedTime[_Key]()
        self._comms: dict[int, str] = {}
        self._lost_requests = LostRequests(self._entries)
        self._busy_before = self._lost_requests.stats

    def drain(self, buffer: int, at_ns: int) -> None:
        """Add up what a tick has counted. `buffer`: the one that is no longer written, since `at_ns`."""
        completed = self._completed(buffer)
        self._add_stacks(buffer, lambda raw: self._key(raw).key)
        self._totals = {key: numbers.without_now() for key, numbers in self._totals.items()}
        self._add(completed)
        self._follow_requests(at_ns)
        for key in completed:
            was = self._totals[key]
            (outstanding_ns,) = self._owed.pay(key, was.outstanding_ns)
            self._totals[key] = was._replace(outstanding_ns=outstanding_ns)

    def take(self, without: Collection[int]) -> DiskActivity:
        """Return what happened since the last call of this method, without the rows of these processes."""
        counted, stacks, lost = self._take()
        counted = {key: numbers for key, numbers in counted.items() if not numbers.is_empty}
        some = {one.key: numbers for one, numbers in counted.items() if one.is_selected and one.key.pid not in without}
        totals, others = largest(some, MOST_ROWS, lambda numbers: numbers.outstanding_ns)
        elided = reduce(DiskTotals.beside, others, NO_REQUESTS)
        devices = self._devices(counted)
        names = {device: stats.name for device, stats in self._lost_requests.stats.items() if device in devices}
        comms = {key.tid: self._comms.get(key.tid, "") for key in totals if key.tid}
        self._comms = dict(comms)
        of_totals = of_rows(stacks, totals, MOST_STACKS)
        return DiskActivity(totals, devices, names, comms, elided, len(others), lost, of_totals)

    def _devices(self, counted: Mapping[_Key, DiskTotals]) -> dict[int, DeviceTotals]:
        found: dict[int, DeviceTotals] = {}
        for (key, _), numbers in counted.items():
            was = found.get(key.device, DeviceTotals())
            if key.operation in READS:
                found[key.device] = was._replace(reads=was.reads.beside(numbers))
            elif key.operation in WRITES:
                found[key.device] = was._replace(writes=was.writes.beside(numbers))
            else:
                found[key.device] = was._replace(others=was.others.beside(numbers))
        stats, before = self._lost_requests.stats, self._busy_before
        self._busy_before = stats
        for device, totals in found.items():
            now, was_busy = stats.get(device), before.get(device)
            if now and was_busy:
                found[device] = totals._replace(busy_ns=max(0, now.busy_ns - was_busy.busy_ns))
        return found

    def _completed(self, buffer: int) -> dict[_Key, DiskTotals]:
        maps = self.program.maps
        found: dict[_Key, DiskTotals] = {}
        for keys, values in maps[f"disk_totals_{buffer}"].drain():
            for raw, value in zip(KEY.iter_unpack(keys), TOTALS.iter_unpack(values), strict=True):
                requests, size, queue_ns, device_ns, max_ns, merged, requeues, errors = value[:NUMBERS]
                comm, *lanes = value[NUMBERS:]
                outstanding_ns = queue_ns + device_ns
                one = DiskTotals(requests, size, queue_ns, device_ns, outstanding_ns, merged, requeues, errors, max_ns)
                every, in_queue, in_device = (int.from_bytes(one, "little") for one in lanes)
                one = one._replace(histogram=every, queue_histogram=in_queue, device_histogram=in_device)
                key = self._key(raw)
                found[key] = found[key].plus(one) if key in found else one
                self._comms[key.key.tid] = raw_text(comm)
        return found

    def _follow_requests(self, at_ns: int) -> None:
        """Add the time of requests in progress since the last tick; what was shown of all others is owed."""
        before, self._in_progress = self._in_progress, {}
        for address, (start_ns, issued_ns, of_disk, is_selected, comm) in self._lost_requests.in_progress().items():
            if start_ns >= at_ns:
                continue
            key, is_issued = _Key(of_disk, is_selected), 0 < issued_ns < at_ns
            so_far_ns = at_ns - start_ns
            was = before.pop(address, None)
            if was is not None and was.start_ns != start_ns:
                self._owed.add(was.key, was.shown_ns)
                was = None
            self._in_progress[address] = _Request(start_ns, key, so_far_ns)
            one = DiskTotals(
                outstanding_ns=so_far_ns - (was.shown_ns if was else 0),
                now_ns=so_far_ns,
                in_queue=int(not is_issued),
                in_device=int(is_issued),
            )
            self._totals[key] = self._totals.get(key, NO_REQUESTS).beside(one)
            self._comms.setdefault(key.key.tid, raw_text(comm))
        for request in before.values():
            self._owed.add(request.key, request.shown_ns)
        # BPF may count one of these as lost between the two reads. Until the next tick, the sum is too large then.
        self._lost = max(self._lost, len(self._lost_requests) + self.program.lost)

    def _entries(self) -> dict[int, Entry]:
        entries: dict[int, Entry] = {}
        for keys, values in self.program.maps["disk_requests"].read():
            for address, value in zip(memoryview(keys).cast("Q"), REQUEST.iter_unpack(values), strict=True):
                start_ns, issued_ns, *_, raw, comm = value
                entries[address] = Entry(start_ns, issued_ns, *self._key(KEY.unpack(raw)), comm)
        return entries

    def _key(self, raw: tuple[Any, ...]) -> _Key:
        worker, device, pid, tid, bits, _, is_selected = raw
        return _Key(DiskKey(device, self._operation(bits), pid, tid, raw_text(worker)), bool(is_selected))

    def _operation(self, bits: int) -> str:
        """Return the name of the operation with these bits of cmd_flags."""
        kind = self._operations.get(bits & 0xFF, "")
        if kind.startswith("ZONE_") and kind not in _NAMES:
            return "zone"
        name = _NAMES.get(kind, "other")
        if name not in ("read", "write"):
            return name
        if bits & self._flags["FLAG_META"]:
            return f"meta-{name}"
        if name == "read":
            return "read-ahead" if bits & self._flags["FLAG_AHEAD"] else name
        return "sync-write" if bits & self._flags["FLAG_SYNC"] else name
