"""Task scans and keys of sites as arrays, because there may be many thousands of rows.

The types are not in layout.py, which the sandboxed readers import, without NumPy.
"""

import os
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from offtop.kernel.bpf import layout
from offtop.kernel.bpf.layout import ScannedStack, ThreadRecord
from offtop.model.values import histogram as log2
from offtop.model.values.table import Ints, Mask

Rows = NDArray[np.void]
"""A structured array."""

_UNSIGNED = ("first_kernel", "first_user", "first_wake")
"""Ids, which may have bit 63 set. Times and counts do not; as signed integers they can be subtracted."""
_OF_32_BITS = (
    *("state", "first_kind", "objects", "is_previous"),
    *("short_waits", "involuntary", "filtered_waits", "lost_waits"),
)
THREAD_ROW = np.dtype(
    [
        (name, np.uint32 if name in _OF_32_BITS else np.uint64 if name in _UNSIGNED else np.int64)
        for name in ThreadRecord._fields[:-1]
    ]
    + [("histogram", np.uint32, log2.LANES)]
)
"""A ThreadRecord in an array."""
TASK_ROW = np.dtype(
    [(name, np.int64) for name in ("switched_out_ns", "queued_ns", "arrived_ns", "exec_ns", "exec_at_ns")]
    + [(name, np.int64) for name in ("start_ns", "tid_acquired_ns", "first_ns", "exec_start_ns")]
    + [(name, np.uint32) for name in ("pid", "tid", "state", "flags", "execs", "holder_pid", "holder_tid", "cpu")]
    + [("comm", "S16")]
)
"""`struct scanned_task`: a thread in a task scan."""
REGISTERS_ROW = np.dtype(
    [("pcount", np.int64), ("call", np.int64), ("arguments", np.uint64, layout.ARGUMENTS)]
    + [(name, np.uint64) for name in ("ip", "sp", "bp")]
    + [("callee_saved", np.uint64, layout.CALLEE_SAVED), ("mode", np.uint64), ("thread", np.uint64)]
)
"""A ScannedStack in an array; its call may have more than 32 bits."""
STACK_ROW = np.dtype(
    [
        ("depth", np.int64),
        ("registers", REGISTERS_ROW),
        ("object", np.uint64, layout.OBJECT.size // 8),
        ("sched", np.uint64, layout.SCHED_FRAMES),
        ("frames", np.uint64, layout.SHORT_FRAMES),
    ]
)
"""`struct scanned_stack`: where a thread that is off CPU waits.

`sched` has return addresses into __sched functions, and then zeros. `frames` are the other addresses of its kernel
stack, leaf first, of which `depth` are valid. A deep stack has more, see Scan."""
_DEEP_FRAMES = layout.SCAN_FRAMES - layout.SHORT_FRAMES
_DEEP_ROW = np.dtype([("frames", np.uint64, _DEEP_FRAMES)])

RUNS_ROW = np.dtype([("pid", np.uint32), ("tid", np.uint32), ("pcount", np.int64)])
"""`struct scanned_runs`: how often a thread has been given a CPU."""
SITE_KEY_ROW = np.dtype(
    [(name, np.uint32) for name in ("pid", "tid")]
    + [(name, np.uint64) for name in ("kernel", "user", "wake", "tid_acquired_ns")]
)
"""`struct site_key`."""
SITE_ROW = np.dtype([("numbers", np.int64, layout.SITE_NUMBERS), ("lanes", np.uint32, log2.LANES)])
"""`struct site`."""

_FLAGS_AT = struct.calcsize("=9Q3I")
"""Offset of the flags in a `struct scanned_task`."""
_32_BIT_END = 1 << 32
_FACTORS = np.frombuffer(os.urandom(1024), np.uint64).reshape(2, 64) | np.uint64(1)
_ALIGNMENT = 8
"""All structs of a scan begin at multiples of this."""


class Scan(NamedTuple):
    """The output of a task scan."""

    tasks: Rows
    """Of TASK_ROW."""
    of_threads: Ints
    """Positions in `tasks` of those with a record of the tick."""
    threads: Rows
    """Their records, of THREAD_ROW."""
    of_stacks: Ints
    """Positions in `tasks` of those with a stack."""
    stacks: Rows
    """Their stacks, of STACK_ROW."""
    deep_frames: dict[int, NDArray[np.uint64]]
    """Position in `stacks` → the frames of a deep stack beyond those in its row."""


def scan_of(data: bytes) -> Scan:
    """Parse the output of a task scan."""
    thread_bytes, stack_bytes = layout.THREAD.size, layout.SCANNED_STACK_LAYOUT.size
    sizes = [
        layout.SCANNED_TASK.size
        + bool(flags & layout.SCANNED_THREAD) * thread_bytes
        + bool(flags & layout.SCANNED_STACK) * stack_bytes
        + bool(flags & layout.SCANNED_DEEP) * _DEEP_ROW.itemsize
        for flags in range(2 * layout.SCANNED_DEEP)
    ]
    words, position, flags_at, mask = memoryview(data).cast("I"), 0, _FLAGS_AT // 4, len(sizes) - 1
    begins: list[int] = []
    while position < len(data):
        begins.append(position)
        position += sizes[words[position // 4 + flags_at] & mask]
    at = np.array(begins, np.int64)
    tasks = _rows_at(data, at, TASK_ROW)
    has_thread, has_stack = (tasks["flags"] & flag != 0 for flag in (layout.SCANNED_THREAD, layout.SCANNED_STACK))
    after = at + layout.SCANNED_TASK.size
    threads = _rows_at(data, after[has_thread], THREAD_ROW)
    stacks_at = (after + has_thread * thread_bytes)[has_stack]
    stacks = _rows_at(data, stacks_at, STACK_ROW)
    deep = np.flatnonzero(tasks["flags"][has_stack] & layout.SCANNED_DEEP)
    deep_frames = _rows_at(data, stacks_at[deep] + stack_bytes, _DEEP_ROW)["frames"]
    more = dict(zip(deep.tolist(), deep_frames, strict=True))
    return Scan(tasks, np.flatnonzero(has_thread), threads, np.flatnonzero(has_stack), stacks, more)


def _rows_at(data: bytes, at: Ints, kind: np.dtype[np.void]) -> Rows:
    """Return the rows that begin at these positions; a view of `data` if they are evenly spaced, otherwise a copy."""
    if not len(at):
        return np.empty(0, kind)
    stride = int(at[1] - at[0]) if len(at) > 1 else kind.itemsize
    if (at[1:] - at[:-1] == stride).all():
        return np.ndarray(len(at), kind, data, int(at[0]), strides=stride)
    overlapping = np.ndarray((len(data) - kind.itemsize) // _ALIGNMENT + 1, kind, data, strides=_ALIGNMENT)
    return chosen(overlapping, at // _ALIGNMENT)


def chosen(rows: Rows, which: Ints | Mask | slice) -> Rows:
    """Return `rows[which]` ten times as fast as NumPy, which copies structured rows field by field."""
    return rows.view(_bytes_of(rows))[which].view(rows.dtype)


def joined(parts: Sequence[Rows]) -> Rows:
    """Concatenate `parts`, which are of one type: np.concatenate would copy field by field, too."""
    return np.concatenate([one.view(_bytes_of(one)) for one in parts]).view(parts[0].dtype)


def _bytes_of(rows: Rows) -> np.dtype[np.void]:
    return np.dtype((np.void, rows.itemsize))


def ids_of(tasks: Rows) -> Ints:
    """Return pid and tid of each task."""
    return np.column_stack((tasks["pid"], tasks["tid"])).astype(np.int64)


def record_of(row: np.void) -> ThreadRecord:
    """Return a THREAD_ROW as a ThreadRecord."""
    return ThreadRecord._make(layout.THREAD.unpack(row.tobytes()))


def lanes_of(record: ThreadRecord) -> Ints:
    """Return the counts (40,) of a record's histogram."""
    return np.frombuffer(record.histogram, np.uint32).astype(np.int64)


def histogram_of(lanes: Ints) -> bytes:
    """Return the counts (40,) of a histogram as a ThreadRecord has them."""
    return lanes.astype(np.uint32).tobytes()


def calls_of(registers: Rows) -> Ints:
    """Return the system call of each thread, or -1: 32 bits of a register on some machines."""
    return registers["call"].astype(np.int32).astype(np.int64)


def is_32_bit_program(registers: Rows) -> Mask:
    """Return which are threads of a 32-bit program on a 64-bit machine.

    Its system calls have other numbers. If its mode is unknown, its stack pointer and program counter decide: if both
    are below 4 GB, it is one.
    """
    mode, sp, ip = (registers[name] for name in ("mode", "sp", "ip"))
    is_low = (sp > 0) & (sp < _32_BIT_END) & (ip < _32_BIT_END)
    return np.where(mode != 0, mode & np.uint64(layout.MODE_MASK) == layout.MODE_32_BIT, is_low)


def stack_of(registers: Rows) -> ScannedStack:
    """Return the first of `registers`."""
    (pcount, _, arguments, ip, sp, bp, callee_saved, mode, thread), *_ = registers[:1].tolist()
    (call,) = calls_of(registers[:1]).tolist()
    kept = tuple(callee_saved.tolist())
    return ScannedStack(pcount, call, tuple(arguments.tolist()), ip, sp, bp, kept, mode, thread)


def kinds_of(columns: Sequence[NDArray[np.generic]]) -> tuple[Ints, Ints]:
    """Group equal rows of up to two matrices of 64-bit integers, of up to 64 columns each.

    It compares 64-bit hashes: two of 100,000 rows collide once in 10^9. Returns the position of the first row of each
    kind, in order, and for each row the index of its kind.
    """
    hashes = np.zeros(len(columns[0]), np.uint64)
    for column, factors in zip(columns, _FACTORS, strict=False):
        words = column.view(np.uint64)
        hashes += words @ factors[: words.shape[1]]
    _, first, which = np.unique(hashes, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return first[order], rank[which]
