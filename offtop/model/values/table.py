"""Table: a mapping of keys to totals, stored as columns for thousands of entries.

Sums, differences and sums by group are one NumPy operation over all rows; a single entry is read as from a dict.
"""

from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Generic, NamedTuple, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from offtop.model.values import histogram as log2
from offtop.model.values.catalog import SiteKey, ThreadKey
from offtop.model.values.snapshot import EXITED, SiteTotals, ThreadTotals
from offtop.model.values.stack import NO_STACK

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

K = TypeVar("K", ThreadKey, SiteKey)
V = TypeVar("V", ThreadTotals, SiteTotals)
N = TypeVar("N", bound=np.generic)

WAITS, TOTAL_NS, RUNQUEUE_NS, MAX_NS = 0, 1, 2, -1
"""Columns of `numbers`, the same for threads and sites; the last is the maximum, which is never added up."""
THREAD_COLUMN = {name: column for column, name in enumerate(ThreadTotals._fields)}
"""Field of ThreadTotals → its column in a thread's numbers."""
RUNNING_NS = THREAD_COLUMN["running_ns"]

_MIX = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93, 0xFF51AFD7ED558CCD],
    dtype=np.uint64,
)

_SLOTS_OF_A_MARK = 4
_BITS = 63
_MOST_DENSE = 1 << 16
"""Codes below this are counted instead of sorted."""


NO_COUNTS: Ints = np.zeros((0, 3), np.int64)
"""Histograms without a wait, as nonzero_lanes returns them."""

Coded = tuple[Ints, Ints]
"""Histograms as their lanes that are not 0: the place of each among the lanes of all rows, ascending, and its count."""


class Kind(Generic[K, V]):
    """What a table holds: threads or sites."""

    def __init__(self, key: type[K], totals: type[V]) -> None:
        self.width = len(key._fields)
        self.numbers = len(totals._fields) - 1
        make = cast(Callable[..., Any], tuple.__new__)  # pyright: ignore[reportUnknownMemberType]
        self.key: Callable[[Iterable[int]], K] = partial(make, key)
        self.totals: Callable[[Iterable[int]], V] = partial(make, totals)


THREADS = Kind(ThreadKey, ThreadTotals)
SITES = Kind(SiteKey, SiteTotals)


class Changes(NamedTuple):
    """When the rows of a table were last added to."""

    generation: int
    """Number of the table among those of its lineage."""
    changed_in: Ints
    """For each row, the number of the last table without the change."""


class Table(Mapping[K, V]):
    """Immutable. Rows that are not `present` are not entries; all their numbers are 0."""

    __slots__ = (
        *("_codes", "_rows", "_values"),
        *("changes", "ids", "kind", "lineage", "longest_ns", "numbers", "present", "serials"),
    )

    def __init__(
        self,
        kind: Kind[K, V],
        ids: Ints,
        numbers: Ints,
        counts: Ints = NO_COUNTS,
        *,
        coded: Coded | None = None,
        present: Mask | None = None,
        longest_ns: Ints | None = None,
        lineage: object = None,
        serials: Ints | None = None,
        changes: Changes | None = None,
    ) -> None:
        """Create a table of n rows.

        `ids` is (n, fields of a key), `numbers` (n, totals without histogram). The histograms are `counts`, the lanes
        that are not 0, in order of rows (see nonzero_lanes), or the same as `coded`. `longest_ns` is the longest wait
        of each since its source began, if known. `serials` are ascending and identify a row in all tables of one
        `lineage`: a key that is evicted and used again gets another one. `changes`: None if it is
        unknown which rows have changed.
        """
        self.kind, self.ids, self.numbers = kind, ids, numbers
        self._codes, self._values = coded or (counts[:, 0] * log2.LANES + counts[:, 1], counts[:, 2])
        self.present = np.ones(len(ids), np.bool_) if present is None else present
        self.longest_ns = numbers[:, MAX_NS] if longest_ns is None else longest_ns
        self.lineage = lineage
        self.serials = np.arange(len(ids)) if serials is None else serials
        self.changes = changes
        self._rows: dict[K, int] | None = None

    @property
    def rows(self) -> Mapping[K, int]:
        """Key → row number, of the rows that are present."""
        if self._rows is None:
            numbers: list[int] = np.flatnonzero(self.present).tolist()
            self._rows = dict(zip(map(self.kind.key, self.ids[self.present].tolist()), numbers, strict=True))
        return self._rows

    @property
    def lanes(self) -> Ints:
        """The histograms (n, 40)."""
        lanes = np.zeros(len(self.ids) * log2.LANES, np.int64)
        lanes[self._codes] = self._values
        return lanes.reshape(-1, log2.LANES)

    @property
    def coded(self) -> Coded:
        """The lanes that are not 0."""
        return self._codes, self._values

    @property
    def counts(self) -> Ints:
        """The lanes that are not 0 (see nonzero_lanes)."""
        return counts_of(self.coded)

    @property
    def bytes_held(self) -> int:
        return self.ids.nbytes + self.numbers.nbytes + self._codes.nbytes + self._values.nbytes

    def at(self, rows: Ints) -> "Table[K, V]":
        """Return a table of these rows, which ascend."""
        coded = coded_at(self.coded, rows, len(self.ids))
        return Table(self.kind, self.ids.take(rows, axis=0), self.numbers.take(rows, axis=0), coded=coded)

    def __len__(self) -> int:
        return int(np.count_nonzero(self.present))

    def __iter__(self) -> Iterator[K]:
        return map(self.kind.key, self.ids[self.present].tolist())

    def __getitem__(self, key: K) -> V:
        row = self.rows[key]
        return self.kind.totals((*self.numbers[row].tolist(), *log2.of_lanes(lanes_in_row(self.coded, row))))

    def items(self) -> ItemsView[K, V]:
        return _Items(self)

    def with_maxima(self, longest_ns: Ints) -> "Table[K, V]":
        """Return a copy with other maxima, one for each row."""
        numbers = self.numbers.copy()
        numbers[:, MAX_NS] = longest_ns
        return Table(
            self.kind,
            self.ids,
            numbers,
            coded=self.coded,
            present=self.present,
            longest_ns=self.longest_ns,
            lineage=self.lineage,
            serials=self.serials,
            changes=self.changes,
        )


class _Items(ItemsView[K, V]):
    """Convert all entries at once: a tenth of the cost of one lookup after the other."""

    def __iter__(self) -> Iterator[tuple[K, V]]:
        table = cast("Table[K, V]", self._mapping)
        rows = table.present
        kind, histograms = table.kind, log2.of_lanes(table.lanes[rows])
        for ids, numbers, histogram in zip(
            table.ids[rows].tolist(), table.numbers[rows].tolist(), histograms, strict=True
        ):
            yield kind.key(ids), kind.totals((*numbers, histogram))


def table_of(kind: Kind[K, V], entries: Mapping[K, V]) -> Table[K, V]:
    """Return `entries` as a table, unconverted if it is one already."""
    if isinstance(entries, Table):
        return entries
    ids = integers(list(entries), kind.width)
    numbers = integers([totals[:-1] for totals in entries.values()], kind.numbers)
    return Table(kind, ids, numbers, nonzero_lanes(log2.to_lanes([totals[-1] for totals in entries.values()])))


def integers(rows: Sequence[Sequence[int]], width: int) -> Ints:
    """Convert `rows`, of `width` numbers each, to an array; there may be no rows."""
    return np.fromiter(chain.from_iterable(rows), np.int64, width * len(rows)).reshape(-1, width)


class Groups:
    """Rows grouped by code. `codes` are those of the groups, ascending."""

    def __init__(self, codes: Ints) -> None:
        self._order = np.argsort(codes, kind="stable")
        in_order = codes[self._order]
        self._starts = _starts(in_order)
        self.codes: Ints = in_order[self._starts]

    @property
    def of_rows(self) -> Ints:
        """The index of each row's group."""
        return _which(self._order, self._starts)

    def sums(self, values: Ints) -> Ints:
        """Sum the values of each group; of a matrix, column by column."""
        return self._reduced(np.add, values)

    def maxima(self, values: Ints) -> Ints:
        return self._reduced(np.maximum, values)

    def _reduced(self, by: np.ufunc, values: Ints) -> Ints:
        there = values.take(self._order, axis=0)  # several times as fast as values[...] for a matrix
        return there if len(self._starts) == len(there) else by.reduceat(there, self._starts, axis=0)


def summed(kind: Kind[K, V], ids: Ints, numbers: Ints, counts: Ints) -> Table[K, V]:
    """Sum up the rows of each key, in the order of keys. `counts`: see nonzero_lanes."""
    if not len(ids):
        return Table(kind, ids, numbers)
    order, starts = in_order(ids)
    in_order_numbers = numbers.take(order, axis=0)
    sums = np.add.reduceat(in_order_numbers, starts, axis=0)
    sums[:, MAX_NS] = np.maximum.reduceat(in_order_numbers[:, MAX_NS], starts)
    which = _which(order, starts)
    coded = summed_lanes(which[counts[:, 0]] * log2.LANES + counts[:, 1], counts[:, 2])
    return Table(kind, ids.take(order[starts], axis=0), sums, coded=coded)


def counts_of(coded: Coded) -> Ints:
    """Return `coded` as nonzero_lanes does."""
    codes, values = coded
    return np.column_stack((*np.divmod(codes, log2.LANES), values))


def summed_lanes(codes: Ints, values: Ints) -> Coded:
    """Return lanes that may repeat in order, each once, without those whose sum is 0."""
    order = np.argsort(codes, kind="stable")
    codes = codes[order]
    starts = _starts(codes)
    sums = np.add.reduceat(values[order], starts) if len(starts) else values[:0]
    some = np.flatnonzero(sums)
    return codes[starts[some]], sums[some]


def coded_at(coded: Coded, rows: Ints, size: int) -> Coded:
    """Return the lanes of some rows of a table of `size` rows, by position in `rows`: in order if `rows` ascend."""
    codes, values = coded
    new_row = np.full(size, -1)
    new_row[rows] = np.arange(len(rows))
    row, lane = np.divmod(codes, log2.LANES)
    row = new_row[row]
    some = row >= 0
    return row[some] * log2.LANES + lane[some], values[some]


def lanes_in_row(coded: Coded, row: int) -> Ints:
    """Return the histogram (1, 40) of one row."""
    codes, values = coded
    some = slice(*np.searchsorted(codes, (row * log2.LANES, (row + 1) * log2.LANES)).tolist())
    lanes = np.zeros((1, log2.LANES), np.int64)
    lanes[0, codes[some] - row * log2.LANES] = values[some]
    return lanes


def nonzero_lanes(lanes: Ints) -> Ints:
    """Return (row, lane, count) of the lanes that are not 0, which are few, by row and lane."""
    row, lane = np.divmod(np.flatnonzero(lanes != 0), log2.LANES)  # a third of the time that np.nonzero(lanes) takes
    return np.column_stack((row, lane, lanes[row, lane]))


def lanes_of(counts: Ints, rows: int) -> Ints:
    """Return the histograms (rows, 40) of `counts`: (row, lane, count), which may repeat."""
    lanes = np.zeros(rows * log2.LANES, np.int64)
    np.add.at(lanes, counts[:, 0] * log2.LANES + counts[:, 1], counts[:, 2])
    return lanes.reshape(-1, log2.LANES)


def in_order(ids: Ints) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the order that sorts rows of integers, and where in it each distinct row begins."""
    codes = _codes(ids) if len(ids) else [np.zeros(0, np.int64)]
    order = np.argsort(codes[0]) if len(codes) == 1 else np.lexsort(codes[::-1])
    return order, _starts(*(column[order] for column in codes))


def distinct(rows: Ints) -> tuple[Ints, Ints]:
    """Return the distinct rows of a matrix in order, and the index of each row's own."""
    codes = _codes(rows) if len(rows) else []
    if len(codes) == 1 and (highest := int(codes[0].max())) < _MOST_DENSE:  # without sorting them
        row_of = np.full(highest + 1, -1)
        row_of[codes[0]] = np.arange(len(rows))
        found = np.flatnonzero(row_of >= 0)
        chosen = row_of[found]
        row_of[found] = np.arange(len(found))
        return rows[chosen], row_of[codes[0]]
    starts = _starts(*codes)
    if 2 * len(starts) < len(rows):  # such as thousands of threads that wait at one place
        once, which = distinct(rows[starts])
        return once, np.repeat(which, np.diff(starts, append=len(rows)))
    order, starts = in_order(rows)
    return rows[order[starts]], _which(order, starts)


def distinct_rows(rows: Ints) -> tuple[list[tuple[int, ...]], Ints]:
    """Do what `distinct` does, with the rows as tuples."""
    once, which = distinct(rows)
    return [*map(tuple, once.tolist())], which


def _which(order: NDArray[np.intp], starts: NDArray[np.intp]) -> Ints:
    """Return for each row the number of its group."""
    which = np.empty(len(order), np.int64)
    which[order] = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(order)))
    return which


def _codes(ids: Ints) -> list[Ints]:
    """Pack rows into as few sortable columns as possible.

    Most ids are small, so several fit into one integer.
    """
    codes: list[Ints] = []
    room = 0
    for column in np.ascontiguousarray(ids.T):
        lowest = int(column.min())
        bits = (int(column.max()) - lowest).bit_length()
        if bits < room:
            codes[-1] = codes[-1] << bits | (column - lowest)
            room -= bits
        else:
            codes.append(column - lowest if bits < _BITS else column)
            room = _BITS - bits
    return codes


def _starts(*columns: Ints) -> NDArray[np.intp]:
    """Return which rows of some columns differ from the row before them, beginning with the first."""
    if not (columns and len(columns[0])):
        return np.empty(0, np.intp)
    changes = columns[0][1:] != columns[0][:-1]
    for column in columns[1:]:
        changes |= column[1:] != column[:-1]
    return np.concatenate(([0], np.flatnonzero(changes) + 1))


def rows_at(rows: NDArray[N], which: Ints | Mask) -> NDArray[N]:
    """Return `rows[which]`, for matrices in a third to a tenth of the time. The order in memory stays.

    `rows` should be contiguous, by row or by column: NumPy would copy all of them first.
    """
    at = np.flatnonzero(which) if which.dtype == np.bool_ else which
    if rows.flags.f_contiguous and rows.ndim > 1:
        return rows.T.take(at, axis=-1).T
    return rows.take(at, axis=0)


def thread_codes(ids: Ints) -> Ints:
    """Return one integer for the thread of each key."""
    return ids[:, 0] << 32 | ids[:, 1]


def distinct_codes(codes: Ints) -> Ints:
    """Return the distinct ones in order. np.unique hashes integers, which takes ten times as long if most differ."""
    ordered = np.sort(codes[_starts(codes)])
    return ordered[_starts(ordered)]


def positions_of(wanted: Ints, codes: Ints) -> Ints:
    """Return where each of `wanted` is in `codes`, or -1."""
    if not len(codes):
        return np.full(len(wanted), -1)
    order = np.argsort(codes)
    at = order[np.minimum(np.searchsorted(codes, wanted, sorter=order), len(codes) - 1)]
    return np.where(codes[at] == wanted, at, -1)


def are_among(values: NDArray[np.integer], some: NDArray[np.integer]) -> Mask:
    """Return which of many `values` are among `some` others, of which there are fewer. np.isin would sort all."""
    if not len(some):
        return np.zeros(len(values), np.bool_)
    ordered = np.sort(some)
    at = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return ordered[at] == values


def of_exited(ids: Ints) -> Ints:
    """Return the key to which the totals of each evicted key are added: EXITED, and of a site its kernel stack."""
    keys = ids.copy()
    keys[:, :2], keys[:, 3:] = EXITED, NO_STACK
    return keys


def lookup_keys(ids: Ints) -> Iterable[ThreadKey]:
    """Return the keys of threads as plain tuples: dicts with ThreadKeys find them, too, at half the cost."""
    return cast(Iterable[ThreadKey], zip(*ids.T.tolist(), strict=True))


class SiteKeys(Sequence[SiteKey]):
    """Keys of sites as one array."""

    __slots__ = ("_marks", "ids")

    def __init__(self, ids: Ints) -> None:
        self.ids = ids
        self._marks: _Marks | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> SiteKey: ...
    @overload
    def __getitem__(self, index: slice) -> "SiteKeys": ...
    def __getitem__(self, index: int | slice) -> "SiteKey | SiteKeys":
        if isinstance(index, slice):
            return SiteKeys(self.ids[index])
        return SITES.key(self.ids[index].tolist())

    def __iter__(self) -> Iterator[SiteKey]:
        return map(SITES.key, self.ids.tolist())

    @property
    def bytes_held(self) -> int:
        return self.ids.nbytes + (self._marks.bytes_held if self._marks else 0)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, SiteKey) and bool(self.mask(integers([key], SITES.width))[0])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(cast(Sequence[object], other))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def mask(self, ids: Ints) -> Mask:
        """Return which of `ids` are here, by a 64-bit hash.

        Two of 100,000 keys collide once in 10^9.
        """
        if not len(self.ids):
            return np.zeros(len(ids), np.bool_)
        if self._marks is None:
            self._marks = _Marks(hashes_of(self.ids))
        return self._marks.mask(hashes_of(ids))


def hashes_of(ids: Ints) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each row, which has at most as many numbers as a site's."""
    return ids.view(np.uint64) @ _MIX[: ids.shape[1]]


class _Marks:
    """A set of 64-bit hashes. Most are found in a table by their upper bits, five times as fast as by a search."""

    def __init__(self, marks: NDArray[np.uint64]) -> None:
        bits = (_SLOTS_OF_A_MARK * len(marks)).bit_length()
        self._shift = np.uint64(64 - bits)
        self._slots = np.full(1 << bits, marks[0])  # only a mark of its own slot can be equal to it
        self._slots[marks >> self._shift] = marks
        self._others = marks[~self._in_slot(marks)]
        """Those whose slot has another one."""

    @property
    def bytes_held(self) -> int:
        return self._slots.nbytes + self._others.nbytes

    def mask(self, marks: NDArray[np.uint64]) -> Mask:
        found = self._in_slot(marks)
        left = np.flatnonzero(~found)
        found[left] = are_among(marks[left], self._others)
        return found

    def _in_slot(self, marks: NDArray[np.uint64]) -> Mask:
        return self._slots[marks >> self._shift] == marks


NO_SITES = SiteKeys(integers([], SITES.width))
