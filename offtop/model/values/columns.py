"""Columns of integers as few bytes, and back: `packed` for recordings, `compressed` for memory.

Packed bytes describe themselves and may be untrusted: invalid ones raise ValueError, and never allocate more than the
rows that they hold.
"""

import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from offtop.model.values.histogram import LANES
from offtop.model.values.table import Ints, K, Kind, Table, V, table_of

MOST_ROWS = 1 << 20
"""Limit for one table: more than the BPF maps have room for."""
_HEAD = struct.Struct("<BBII")
"""Bytes of one integer, dimensions, rows, columns."""
_SHAPE, _LOWEST = struct.Struct("<BII"), struct.Struct("<qB")
"""In memory: dimensions, rows, columns; for each column its lowest value, and bytes of one integer above that."""
_WORD_BYTES = 8


def packed(columns: Sequence[Ints]) -> bytes:
    """Write column by column, as 32-bit integers if they fit.

    Each of `columns` has one or two dimensions.
    """
    parts: list[bytes] = []
    small = np.iinfo(np.int32)
    for column in columns:
        fits = not column.size or (small.min <= column.min() and column.max() <= small.max)
        narrow = column.T.astype("<i4" if fits else "<i8")
        rows, width = column.shape if column.ndim == 2 else (len(column), 1)
        parts += (_HEAD.pack(narrow.dtype.itemsize, column.ndim, rows, width), narrow.tobytes())
    return b"".join(parts)


def unpacked(raw: bytes) -> list[Ints]:
    """Return the columns that `packed` wrote. Raises ValueError for other bytes."""
    columns: list[Ints] = []
    at = 0
    while at < len(raw):
        if len(raw) - at < _HEAD.size:
            raise ValueError("the head of a column is cut off")
        width, dimensions, rows, cells = _HEAD.unpack_from(raw, at)
        at += _HEAD.size
        length = width * rows * cells
        if width not in (4, 8) or dimensions not in (1, 2) or (dimensions == 1 and cells != 1):
            raise ValueError("not a column of integers")
        if length > len(raw) - at:
            raise ValueError("a column is cut off")
        flat = np.frombuffer(raw, f"<i{width}", rows * cells, at)
        column = flat if dimensions == 1 else flat.reshape(cells, rows).T
        columns.append(np.ascontiguousarray(column, np.int64))
        at += length
    return columns


def compressed(columns: Sequence[Ints]) -> bytes:
    """Compress columns for `decompressed`, to be kept in memory only.

    Each column of a matrix is written above its lowest value, all first bytes, then all second ones: so most bytes
    repeat, and looking for nothing else takes a third of the time.
    """
    shapes, rows = list[bytes](), list[bytes]()
    for column in columns:
        matrix = column.T if column.ndim == 2 else column[np.newaxis]
        shapes.append(_SHAPE.pack(column.ndim, *matrix.shape[::-1]))
        for one in matrix:
            lowest, highest = (int(one.min()), int(one.max())) if len(one) else (0, 0)
            width = -(-(highest - lowest).bit_length() // 8)
            shapes.append(_LOWEST.pack(lowest, width))
            rows.append(
                (one - lowest).astype("<i8", copy=False).view(np.uint8).reshape(-1, _WORD_BYTES)[:, :width].tobytes("F")
            )
    squeeze = zlib.compressobj(1, strategy=zlib.Z_RLE)
    return squeeze.compress(b"".join((struct.pack("<I", len(columns)), *shapes, *rows))) + squeeze.flush()


def decompressed(raw: bytes) -> list[Ints]:
    """Return the columns that `compressed` wrote."""
    whole = zlib.decompress(raw)
    (count,), at = struct.unpack_from("<I", whole), 4
    shapes: list[tuple[int, int, list[tuple[int, int]]]] = []
    for _ in range(count):
        dimensions, rows, width = _SHAPE.unpack_from(whole, at)
        at += _SHAPE.size
        end = at + width * _LOWEST.size
        shapes.append((dimensions, rows, [*_LOWEST.iter_unpack(whole[at:end])]))
        at = end
    columns: list[Ints] = []
    for dimensions, rows, lowest in shapes:
        column = np.empty((rows, len(lowest)), np.int64)
        for number, (low, width) in enumerate(lowest):
            words = np.zeros((rows, _WORD_BYTES), np.uint8)
            words[:, :width] = np.frombuffer(whole, np.uint8, rows * width, at).reshape(width, rows).T
            column[:, number] = words.view("<i8")[:, 0] + low
            at += rows * width
        columns.append(column if dimensions == 2 else column[:, 0])
    return columns


def of_table(kind: Kind[K, V], entries: Mapping[K, V]) -> list[Ints]:
    """Return a table as four columns.

    Histograms are mostly zeros, so only positions and values of the others are stored.
    """
    table = table_of(kind, entries)
    return [table.ids, table.numbers, *places_of(table.counts)]


def to_table(kind: Kind[K, V], columns: Iterator[Ints], width: int | None = None) -> Table[K, V]:
    """Read a table from the next four of `columns`.

    It has `width` numbers in a row (None: as the kind has). Raises ValueError if they are not a table of that kind.
    """
    ids, numbers, where, counts = (_next(columns) for _ in range(4))
    rows = len(ids)
    if ids.shape != (rows, kind.width) or numbers.shape != (rows, width or kind.numbers):
        raise ValueError("not a table of that kind")
    return Table(kind, ids, numbers, _counts(where, counts, rows))


def places_of(counts: Ints) -> tuple[Ints, Ints]:
    """Return the places of the lanes that are not 0 (table.nonzero_lanes) in all histograms, and their values."""
    row, lane, values = counts.T
    return row * LANES + lane, values


def _counts(where: Ints, counts: Ints, rows: int) -> Ints:
    """Return the lanes that are not 0 (table.nonzero_lanes). Raises ValueError if they are invalid."""
    if rows > MOST_ROWS:
        raise ValueError(f"{rows} rows are too many")
    if where.ndim != 1 or where.shape != counts.shape:
        raise ValueError("not histograms")
    if len(where) and not (where[0] >= 0 and where[-1] < rows * LANES):
        raise ValueError("a histogram of no row")
    if (where[1:] <= where[:-1]).any():
        raise ValueError("lanes that are not in order")
    return np.column_stack((*np.divmod(where, LANES), counts))


def _next(columns: Iterator[Ints]) -> Ints:
    for column in columns:
        return column
    raise ValueError("a column is missing")
