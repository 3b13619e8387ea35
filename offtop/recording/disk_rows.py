"""Encodes and decodes the requests to disks of a recording: one row for each tick in which they were counted.

A row needs no other, but for the frames of its stacks: it also holds the names of its disks and threads.
"""

import json
import zlib

from offtop.model.values.disks import MOST_SUMMED, DeviceTotals, DiskActivity, DiskKey, DiskTotals
from offtop.recording import checked, histograms, io_stack_rows

_LEVEL = 4
_MOST_BYTES = 32 << 20
"""Largest row, decompressed: 10,000 entries with three histograms each take 15 MB and more."""
MOST_DISKS = 10_000
"""Most disks of a recording."""
_NUMBERS = (
    *("requests", "bytes", "queue_ns", "device_ns", "outstanding_ns", "merged", "requeues", "errors", "max_ns"),
    *("now_ns", "in_queue", "in_device"),
)
"""Fields of DiskTotals besides the histograms, in the order in which they are stored."""
_HISTOGRAMS = ("histogram", "queue_histogram", "device_histogram")


def encode(activity: DiskActivity) -> bytes:
    fields: dict[str, object] = {
        "rows": [
            [key.device, key.operation, key.pid, key.tid, key.worker, _values(totals)]
            for key, totals in activity.totals.items()
        ],
        "disks": [
            [device, activity.names.get(device, ""), one.busy_ns, *map(_values, (one.reads, one.writes, one.others))]
            for device, one in activity.devices.items()
        ],
        "comms": [[tid, comm] for tid, comm in activity.comms.items()],
        "elided": _values(activity.elided),
        "sums": [activity.elided_rows, activity.lost],
        "stacks": io_stack_rows.encode(activity.stacks, [*activity.totals]),
    }
    return zlib.compress(json.dumps(fields, separators=(",", ":")).encode(), _LEVEL)


def decode(blob: object) -> DiskActivity:
    """Decode a row. Raises ValueError if `blob` does not hold requests to disks."""
    fields = checked.json_object(checked.decompressed(blob, _MOST_BYTES))
    rows = checked.arrays(fields.get("rows"), 6)
    disks = checked.arrays(fields.get("disks"), 6)
    if len(rows) > MOST_SUMMED or len(disks) > MOST_DISKS:
        raise ValueError("too many requests to disks")
    keys = [_key(*row[:-1]) for row in rows]
    totals = dict(zip(keys, [_totals(row[-1]) for row in rows], strict=True))
    tids = {key.tid for key in totals}
    elided_rows, lost = map(checked.time, checked.array(fields.get("sums"), 2))
    return DiskActivity(
        totals=totals,
        devices={
            checked.identity(device): DeviceTotals(*map(_totals, sums), busy_ns=checked.time(busy_ns))
            for device, _, busy_ns, *sums in disks
        },
        names={checked.identity(device): named for device, name, *_ in disks if (named := checked.short_name(name))},
        comms=checked.short_names(fields.get("comms"), tids),
        elided=_totals(fields.get("elided")),
        elided_rows=elided_rows,
        lost=lost,
        stacks=io_stack_rows.decode(fields.get("stacks", []), keys),
    )


def _values(totals: DiskTotals) -> list[object]:
    """Encode totals: the numbers, then the counts of each histogram up to the last one that is not 0."""
    return [
        *(getattr(totals, name) for name in _NUMBERS),
        *(histograms.encode(getattr(totals, name)) for name in _HISTOGRAMS),
    ]


def _key(device: object, operation: object, pid: object, tid: object, worker: object) -> DiskKey:
    device, pid, tid = map(checked.identity, (device, pid, tid))
    return DiskKey(device, checked.word(operation), pid, tid, checked.short_name(worker))


def _totals(found: object) -> DiskTotals:
    values = checked.array(found, len(_NUMBERS) + len(_HISTOGRAMS))
    numbers = map(checked.time, values[: len(_NUMBERS)])
    counts = map(histograms.decode, map(checked.array, values[len(_NUMBERS) :]))
    return DiskTotals(**dict(zip(_NUMBERS, numbers, strict=True)), **dict(zip(_HISTOGRAMS, counts, strict=True)))
