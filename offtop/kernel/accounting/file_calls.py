"""Reads the counts of file operations once a tick, and adds the time of calls in progress.

The BPF programs count a call when it returns, with all of its time. Earlier ticks may have shown a part of that time
already. This part is *owed*: it is subtracted once BPF has counted the call. At its stack, a call
counts with all of its time when it returns.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

from offtop.kernel.accounting.io_counts import MOST_ROWS, MOST_STACKS, IoCounts, OwedTime, raw_text
from offtop.kernel.bpf.file_program import CALL, ID, KEY, PATH, REQUEST, TOTALS, FileProgram
from offtop.model.values.files import NO_CALLS, OPERATIONS, FileActivity, FileId, FileKey, FileTotals
from offtop.model.values.io_stacks import of_rows
from offtop.model.values.largest import largest
from offtop.model.values.snapshot import PSEUDO_PIDS
from offtop.units import NS_PER_S

_MOST_NAMES = 65_536
"""Files whose names are kept; the least recently used ones are dropped."""
_NAME_NS = 5 * NS_PER_S
"""Age at which a name is read again: many programs write a file under another name and then rename it."""
_MISSED_NS = NS_PER_S
"""A request to io_uring that is older is dropped once its process has exited."""


class _Call(NamedTuple):
    """A call in progress, with what was shown of it."""

    start_ns: int
    key: FileKey
    shown_ns: int
    shown_off_cpu_ns: int


class _Name(NamedTuple):
    """The path of a file."""

    text: str
    read_ns: int
    is_asked: bool = False
    """Whether it was deleted from the map, so that BPF stores the current path at the next call."""


class FileCalls(IoCounts[FileKey, FileKey, FileTotals]):
    """File operations of each tick. For the polling thread."""

    def __init__(self, program: FileProgram, stack_ids: Callable[[int, int, int], tuple[int, int]]) -> None:
        """`stack_ids`: see Stacks.ids."""
        super().__init__(program, stack_ids)
        self._in_progress: dict[int, _Call] = {}
        """By tid."""
        self._requests: dict[int, _Call] = {}
        """Requests to io_uring, by address."""
        self._owed = OwedTime[FileKey]()
        """Time in all, and off CPU."""
        self._names: OrderedDict[FileId, _Name] = OrderedDict()
        self._comms: dict[int, str] = {}
        self._at_ns = 0
        """When the last drained tick ended."""

    def drain(self, buffer: int, at_ns: int) -> None:
        """Add up what a tick has counted. `buffer`: the one that is no longer written, since `at_ns`."""
        self._at_ns = at_ns
        ended = self._ended(buffer)
        self._add_stacks(buffer, _key)
        self._totals = {key: numbers._replace(now_ns=0) for key, numbers in self._totals.items()}
        self._add(ended)
        self._follow_calls(at_ns)
        self._follow_requests(at_ns)
        for key in ended:
            was = self._totals[key]
            total_ns, off_cpu_ns = self._owed.pay(key, was.total_ns, was.off_cpu_ns)
            self._totals[key] = was._replace(total_ns=total_ns, off_cpu_ns=off_cpu_ns)

    def take(self, without: Collection[int]) -> FileActivity:
        """Return what happened since the last call of this method, without these processes."""
        counted, stacks, lost = self._take()
        some = {
            key: numbers
            for key, numbers in counted.items()
            if key.pid not in without and (numbers.calls or numbers.total_ns > 0)
        }
        totals, others = largest(some, MOST_ROWS, lambda numbers: numbers.total_ns)
        elided = reduce(FileTotals.plus, others, NO_CALLS)
        names = {key.file: self._name(key.file) for key in totals}
        comms = {key.pid: self._comms.get(key.pid, "") for key in totals}
        self._comms = dict(comms)
        known = {file: name for file, name in names.items() if name}
        return FileActivity(totals, known, comms, elided, len(others), lost, of_rows(stacks, totals, MOST_STACKS))

    def _ended(self, buffer: int) -> dict[FileKey, FileTotals]:
        maps = self.program.maps
        found: dict[FileKey, FileTotals] = {}
        for keys, values in maps[f"file_totals_{buffer}"].drain():
            for raw, value in zip(KEY.iter_unpack(keys), TOTALS.iter_unpack(values), strict=True):
                calls, read, total_ns, off_cpu_ns, max_ns, comm, lanes = value
                key = _key(raw)
                one = FileTotals(calls, read, total_ns, off_cpu_ns, max_ns, int.from_bytes(lanes, "little"))
                found[key] = found[key].plus(one) if key in found else one
                self._comms[key.pid] = raw_text(comm)
        self._lost = self.program.lost
        return found

    def _follow_calls(self, at_ns: int) -> None:
        """Add the time of calls in progress since the last tick; what was shown of all others is owed."""
        before, self._in_progress = self._in_progress, {}
        for keys, values in self.program.maps["file_calls"].read():
            tids = memoryview(keys).cast("I")
            for tid, (start_ns, off_cpu_ns, out_ns, in_ns, faults, has_slept, raw, comm, _) in zip(
                tids, CALL.iter_unpack(values), strict=True
            ):
                key = _key(KEY.unpack(raw))
                if start_ns >= at_ns or not key.file.inode or has_slept < bool(faults):
                    continue  # an open has no file before it returns; a page fault counts if it sleeps
                # A page fault ends at its last switch-in, but is counted later.
                is_over = faults and not out_ns
                so_far_ns = (min(in_ns, at_ns) if is_over else at_ns) - start_ns
                off_cpu_ns = min(so_far_ns, off_cpu_ns + (max(0, at_ns - out_ns) if out_ns else 0))
                call = _Call(start_ns, key, so_far_ns, off_cpu_ns)
                self._show(self._in_progress, before, tid, call, 0 if is_over else so_far_ns)
                self._comms.setdefault(key.pid, raw_text(comm))
        for call in before.values():
            self._owe(call)

    def _follow_requests(self, at_ns: int) -> None:
        """Do the same for requests to io_uring, whose end may be missed: those of processes that exited are dropped."""
        before, self._requests = self._requests, {}
        requests = self.program.maps.get("ring_requests")
        if requests is None:
            return
        ended: list[int] = []
        for keys, values in requests.read():
            addresses = memoryview(keys).cast("Q")
            for address, (start_ns, _, raw, comm) in zip(addresses, REQUEST.iter_unpack(values), strict=True):
                key = _key(KEY.unpack(raw))
                age_ns = at_ns - start_ns
                if age_ns > _MISSED_NS and _has_exited(key.pid):
                    ended.append(address)
                elif age_ns > 0 and key.file.inode:
                    self._show(self._requests, before, address, _Call(start_ns, key, age_ns, 0), age_ns)
                    self._comms.setdefault(key.pid, raw_text(comm))
        for address in ended:
            requests.delete(address.to_bytes(8, "little"))
        for call in before.values():
            self._owe(call)

    def _show(self, shown: dict[int, _Call], before: dict[int, _Call], number: int, call: _Call, age_ns: int) -> None:
        """Add what `call` took since it was last shown, as `before` has it. `age_ns`: 0 if it is over."""
        was = before.pop(number, None)
        if was is not None and was.start_ns != call.start_ns:
            self._owe(was)
            was = None
        earlier_ns, earlier_off_cpu_ns = (was.shown_ns, was.shown_off_cpu_ns) if was else (0, 0)
        call = shown[number] = call._replace(shown_off_cpu_ns=max(call.shown_off_cpu_ns, earlier_off_cpu_ns))
        now_ns = max(age_ns, self._totals.get(call.key, NO_CALLS).now_ns)
        total_ns, off_cpu_ns = call.shown_ns - earlier_ns, call.shown_off_cpu_ns - earlier_off_cpu_ns
        self._add({call.key: FileTotals(total_ns=total_ns, off_cpu_ns=off_cpu_ns, now_ns=now_ns)})

    def _owe(self, call: _Call) -> None:
        self._owed.add(call.key, call.shown_ns, call.shown_off_cpu_ns)

    def _name(self, file: FileId) -> str:
        known, stored = self._names.get(file), self.program.maps["file_names"]
        raw_id = ID.pack(file.inode, file.device, file.generation)
        if known is None or known.is_asked:
            found = stored.lookup(raw_id)
            if found is not None:
                known = self._names[file] = _Name(path_of(found), self._at_ns)
            elif known is None:
                return ""
            if len(self._names) > _MOST_NAMES:
                self._names.popitem(last=False)
        elif self._at_ns - known.read_ns > _NAME_NS:
            stored.delete(raw_id)
            self._names[file] = known._replace(is_asked=True)
        self._names.move_to_end(file)
        return known.text


def path_of(stored: bytes) -> str:
    """Return the path in a `struct file_path`, raw."""
    size, is_cut, text = PATH.unpack(stored[: PATH.size])
    pieces = text[:size].split(b"\0")[:-1]
    path = "/".join(piece.decode(errors="surrogateescape") for piece in reversed(pieces))
    return f"…/{path}" if is_cut else f"/{path}"


def _has_exited(pid: int) -> bool:
    return pid not in PSEUDO_PIDS and not Path(f"/proc/{pid}").exists()


def _key(raw: tuple[Any, ...]) -> FileKey:
    inode, device, generation, pid, operation, _, _ = raw
    return FileKey(pid, OPERATIONS[operation - 1], FileId(device, inode, generation))
