"""Encodes and decodes the file operations of a recording: one row for each tick in which they were counted.

A row needs no other, but for the frames of its stacks: it also holds the names of its files and processes.
"""

import json
import zlib
from collections.abc import Sequence

import numpy as np

from offtop.model.values.files import MOST_SUMMED, FileActivity, FileId, FileKey, FileTotals
from offtop.recording import checked, file_format, histograms, io_stack_rows

_LEVEL = 4
_MOST_BYTES = 32 << 20
"""Largest row, decompressed: 10,000 entries, each with a path of up to 1,279 characters, take 13 MB and more."""
_MOST_DEVICE = (1 << 32) - 1
_NUMBERS = ("calls", "bytes", "total_ns", "off_cpu_ns", "max_ns", "now_ns")
"""Fields of FileTotals besides the histogram, in the order in which they are stored."""


def encode(activity: FileActivity) -> bytes:
    numbers: dict[FileId, int] = {}
    rows = [
        [key.pid, key.operation, numbers.setdefault(key.file, len(numbers)), *_values(totals)]
        for key, totals in activity.totals.items()
    ]
    fields: dict[str, object] = {
        "files": [
            [file.device, file_format.signed(file.inode), file.generation, activity.names.get(file, "")]
            for file in numbers
        ],
        "rows": rows,
        "comms": [[pid, comm] for pid, comm in activity.comms.items()],
        "elided": _values(activity.elided),
        "sums": [activity.elided_rows, activity.lost],
        "stacks": io_stack_rows.encode(activity.stacks, [*activity.totals]),
    }
    return zlib.compress(json.dumps(fields, separators=(",", ":")).encode(), _LEVEL)


def decode(blob: object) -> FileActivity:
    """Decode a row. Raises ValueError if `blob` does not hold file operations."""
    fields = checked.json_object(checked.decompressed(blob, _MOST_BYTES))
    files = [_file(*row) for row in checked.arrays(fields.get("files"), 4)]
    rows = checked.array(fields.get("rows"))
    if len(rows) > MOST_SUMMED or len(files) > len(rows):
        raise ValueError("too many file operations")
    entries = [_row(row, files) for row in map(checked.array, rows)]
    totals = dict(entries)
    pids = {key.pid for key in totals}
    elided_rows, lost = map(checked.time, checked.array(fields.get("sums"), 2))
    return FileActivity(
        totals=totals,
        names={file: name for file, name in files if name},
        comms=checked.short_names(fields.get("comms"), pids),
        elided=_totals(checked.array(fields.get("elided"))),
        elided_rows=elided_rows,
        lost=lost,
        stacks=io_stack_rows.decode(fields.get("stacks", []), [key for key, _ in entries]),
    )


def _values(totals: FileTotals) -> list[int]:
    """Encode totals: the numbers, then the counts of the histogram up to the last one that is not 0."""
    return [*(getattr(totals, name) for name in _NUMBERS), *histograms.encode(totals.histogram)]


def _file(device: object, inode: object, generation: object, name: object) -> tuple[FileId, str]:
    numbers = [checked.integer(device), checked.integer(generation)]
    checked.check_range(np.array(numbers), 0, _MOST_DEVICE)
    return FileId(numbers[0], file_format.unsigned(checked.integer(inode)), numbers[1]), checked.name(name)


def _row(row: Sequence[object], files: Sequence[tuple[FileId, str]]) -> tuple[FileKey, FileTotals]:
    pid, operation, number = checked.array(row[:3], 3)
    if checked.identity(number) >= len(files):
        raise ValueError("a file is missing")
    return FileKey(checked.identity(pid), checked.word(operation), files[number][0]), _totals(row[3:])


def _totals(values: Sequence[object]) -> FileTotals:
    if len(values) < len(_NUMBERS):
        raise ValueError("not the totals of file operations")
    numbers = map(checked.time, values[: len(_NUMBERS)])
    histogram = histograms.decode(values[len(_NUMBERS) :])
    return FileTotals(**dict(zip(_NUMBERS, numbers, strict=True)), histogram=histogram)
