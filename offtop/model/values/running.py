"""Running totals of threads or sites, added to at each tick and copied for snapshots."""

from collections.abc import Iterator, Mapping
from typing import Generic

import numpy as np

from offtop.model.values import histogram as log2
from offtop.model.values.table import (
    MAX_NS,
    WAITS,
    Changes,
    Groups,
    Ints,
    K,
    Kind,
    Table,
    V,
    coded_at,
    integers,
    lanes_in_row,
    summed_lanes,
    thread_codes,
)

_FIRST_ROOM = 1024
_MOST_EMPTY = 1024
"""How many evicted rows there may be before the table is compacted, unless most rows are in use."""


class Running(Mapping[K, V], Generic[K, V]):
    """Key → running totals. The maximum of each is the longest wait of the last tick."""

    def __init__(self, kind: Kind[K, V]) -> None:
        self._kind = kind
        self._rows: dict[bytes, int] = {}
        """Packed key → row."""
        self._used = 0
        self._next_serial = 0
        self._serials = np.zeros(_FIRST_ROOM, np.int64)
        self._ids = np.zeros((_FIRST_ROOM, kind.width), np.int64)
        self._numbers = np.zeros((_FIRST_ROOM, kind.numbers), np.int64)
        self._present = np.zeros(_FIRST_ROOM, np.bool_)
        self._longest_ns = np.zeros(_FIRST_ROOM, np.int64)
        self._added_ns = np.zeros(_FIRST_ROOM, np.int64)
        self._generation = 0
        """How many snapshots were taken."""
        self._changed_in = np.zeros(_FIRST_ROOM, np.int64)
        """The generation in which each row was last added to."""
        self._codes, self._values = np.zeros((2, 0), np.int64)
        """Histograms, as table.Coded: most of their lanes are 0. Never changed, because tables share them."""

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[K]:
        return map(self._kind.key, self._ids[self._present].tolist())

    def __getitem__(self, key: K) -> V:
        row = self._rows[_packed(integers([key], self._kind.width))[0]]
        lanes = lanes_in_row((self._codes, self._values), row)
        return self._kind.totals((*self._numbers[row].tolist(), *log2.of_lanes(lanes)))

    def counts_are_within(self, most: int) -> bool:
        """Return whether no count of waits is negative, and the histograms have at most `most` waits together."""
        waits, values = self._numbers[: self._used, WAITS], self._values
        return bool(min(waits.min(initial=0), values.min(initial=0)) >= 0 and values.sum() <= most)

    def begin_tick(self) -> None:
        self._numbers[: self._used, MAX_NS] = 0

    def add(self, ids: Ints, numbers: Ints, counts: Ints, at_ns: int) -> Ints:
        """Add a row of `numbers` to each key, which may repeat, and the `counts` of its histogram (nonzero_lanes).

        `ids` is (n, fields of a key). Returns those of the keys that are new.
        """
        rows, new = self._rows_of(ids)
        self._count(rows[counts[:, 0]] * log2.LANES + counts[:, 1], counts[:, 2])
        maxima = numbers[:, MAX_NS]
        if len(rows) and np.bincount(rows).max() > 1:
            groups = Groups(rows)
            rows, maxima, numbers = groups.codes, groups.maxima(maxima), groups.sums(numbers)
        here = self._numbers.take(rows, axis=0)
        here[:, :MAX_NS] += numbers[:, :MAX_NS]
        np.maximum(here[:, MAX_NS], maxima, out=here[:, MAX_NS])
        self._numbers[rows] = here
        self._longest_ns[rows] = np.maximum(self._longest_ns[rows], maxima)
        self._added_ns[rows] = at_ns
        self._changed_in[rows] = self._generation
        return new

    def begin_with(self, ids: Ints, numbers: Ints, counts: Ints, longest_ns: Ints, at_ns: int) -> None:
        """Add the first rows, with distinct keys.

        `longest_ns` is the maximum of each since its source began.
        """
        self.add(ids, numbers, counts, at_ns)
        self._longest_ns[: len(ids)] = longest_ns

    def move(self, ids: Ints, to: Ints) -> None:
        """Evict these keys, and add the totals of each to those of the key in the same row of `to`.

        Unknown keys are left out.
        """
        found = [self._rows.pop(key, -1) for key in _packed(ids)]
        is_known = np.array(found, np.int64) >= 0
        rows = np.array(found, np.int64)[is_known]
        if not len(rows):
            return
        targets, _ = self._rows_of(to[is_known])
        groups = Groups(targets)
        self._numbers[groups.codes, :MAX_NS] += groups.sums(self._numbers[rows, :MAX_NS])
        for maxima in (self._numbers[:, MAX_NS], self._longest_ns, self._added_ns):
            maxima[groups.codes] = np.maximum(maxima[groups.codes], groups.maxima(maxima[rows]))
        target_of = np.full(self._used, -1)
        target_of[rows] = targets
        row, lane = np.divmod(self._codes, log2.LANES)
        is_moved = target_of[row] >= 0
        codes, values = target_of[row[is_moved]] * log2.LANES + lane[is_moved], self._values[is_moved]
        self._codes, self._values = self._codes[~is_moved], self._values[~is_moved]
        self._count(codes, values)
        self._changed_in[groups.codes] = self._generation
        self._numbers[rows] = 0
        self._present[rows] = False

    def keys_of_threads(self, threads: Ints) -> Ints:
        """Return the keys of these threads (pid, tid)."""
        ids = self._ids[: self._used]
        return ids[self._present[: self._used] & np.isin(thread_codes(ids), thread_codes(threads))]

    def not_added_since(self, at_ns: int) -> list[K]:
        rows = self._present & (self._added_ns < at_ns)
        return list(map(self._kind.key, self._ids[rows].tolist()))

    def added(self) -> list[tuple[K, int]]:
        """Return each key with the time when it was last added to."""
        return list(zip(self, self._added_ns[self._present].tolist(), strict=True))

    def frozen(self) -> Table[K, V]:
        """Return a copy as of now, for a snapshot."""
        if self._used - len(self._rows) > max(_MOST_EMPTY, len(self._rows)):
            self._close_up()
        n = self._used
        self._generation += 1
        return Table(
            self._kind,
            self._ids[:n],
            self._numbers[:n].copy(),
            coded=(self._codes, self._values),
            present=self._present[:n].copy(),
            longest_ns=self._longest_ns[:n].copy(),
            lineage=self,
            serials=self._serials[:n],
            changes=Changes(self._generation, self._changed_in[:n].copy()),
        )

    def _rows_of(self, ids: Ints) -> tuple[Ints, Ints]:
        """Return the row of each key, and those of the keys that are new: they get one."""
        packed = _packed(ids)
        found = list(map(self._rows.get, packed))
        new = ids[:0]
        if None in found:
            first = {key: at for at, (key, row) in enumerate(zip(packed, found, strict=True)) if row is None}
            new = ids[[*first.values()]]
            self._append([*first], new)
            found = list(map(self._rows.get, packed))
        return np.array(found, np.int64), new

    def _count(self, codes: Ints, values: Ints) -> None:
        """Add to the lanes at `codes`, which may repeat."""
        codes, values = summed_lanes(codes, values)
        if not len(codes):
            return
        at = np.searchsorted(self._codes, codes)
        is_there = at < len(self._codes)
        is_there[is_there] = self._codes[at[is_there]] == codes[is_there]
        sums = self._values.copy()
        sums[at[is_there]] += values[is_there]
        if not is_there.all():
            at, codes, values = at[~is_there], codes[~is_there], values[~is_there]
            self._codes, sums = np.insert(self._codes, at, codes), np.insert(sums, at, values)
        if values.min() < 0:
            self._codes, sums = self._codes[sums != 0], sums[sums != 0]
        self._values = sums

    def _append(self, keys: list[bytes], ids: Ints) -> None:
        first, end = self._used, self._used + len(keys)
        if end > len(self._ids):
            self._take(np.arange(first), max(end, 2 * len(self._ids)))
        self._ids[first:end] = ids
        self._present[first:end] = True
        self._serials[first:end] = np.arange(self._next_serial, self._next_serial + len(keys))
        self._next_serial += len(keys)
        self._rows.update(zip(keys, range(first, end), strict=True))
        self._used = end

    def _close_up(self) -> None:
        """Remove the rows that were evicted."""
        rows = np.fromiter(self._rows.values(), np.int64, len(self._rows))
        self._codes, self._values = coded_at((self._codes, self._values), rows, self._used)
        self._take(rows, max(_FIRST_ROOM, 2 * len(rows)))
        self._rows = dict(zip(self._rows, range(len(rows)), strict=True))
        self._used = len(rows)

    def _take(self, rows: Ints, room: int) -> None:
        """Start new columns with `rows`; arrays that a table shares stay unchanged."""
        for name in ("_serials", "_ids", "_numbers", "_present", "_longest_ns", "_added_ns", "_changed_in"):
            old = getattr(self, name)
            new = np.zeros((room, *old.shape[1:]), old.dtype)
            new[: len(rows)] = old[rows]
            setattr(self, name, new)


def _packed(ids: Ints) -> list[bytes]:
    return np.ascontiguousarray(ids).view(f"V{ids.shape[1] * ids.itemsize}")[:, 0].tolist()
