"""Running totals of threads or sites, added to at each tick and copied for snapshots."""

from collections.abc import Iterator, Mapping
from typing import Generic

import numpy as np

from offtop.model.values import histogram as log2
from offtop.model.values.table import MAX_NS, Changes, Groups, Ints, K, Kind, Table, V

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
        self._lanes = np.zeros((_FIRST_ROOM, log2.LANES), np.int64)
        self._present = np.zeros(_FIRST_ROOM, np.bool_)
        self._longest_ns = np.zeros(_FIRST_ROOM, np.int64)
        self._added_ns = np.zeros(_FIRST_ROOM, np.int64)
        self._generation = 0
        """How many snapshots were taken."""
        self._changed_in = np.zeros(_FIRST_ROOM, np.int64)
        """The generation in which each row was last added to."""

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[K]:
        return map(self._kind.key, self._ids[self._present].tolist())

    def __getitem__(self, key: K) -> V:
        row = self._rows[_packed(key)]
        return self._kind.totals((*self._numbers[row].tolist(), *log2.of_lanes(self._lanes[row : row + 1])))

    def begin_tick(self) -> None:
        self._numbers[: self._used, MAX_NS] = 0

    def add(self, ids: Ints, numbers: Ints, counts: Ints, at_ns: int) -> Ints:
        """Add a row of `numbers` to each key, which may repeat, and the `counts` of its histogram (nonzero_lanes).

        `ids` is (n, fields of a key). Returns those of the keys that are new.
        """
        packed: list[bytes] = np.ascontiguousarray(ids).view(f"V{ids.shape[1] * ids.itemsize}")[:, 0].tolist()
        found = list(map(self._rows.get, packed))
        new = ids[:0]
        if None in found:
            first = {key: at for at, (key, row) in enumerate(zip(packed, found, strict=True)) if row is None}
            new = ids[[*first.values()]]
            self._append([*first], new)
            found = list(map(self._rows.get, packed))
        rows = np.array(found, np.int64)
        np.add.at(self._lanes, (rows[counts[:, 0]], counts[:, 1]), counts[:, 2])
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

    def move(self, key: K, to: K) -> None:
        """Evict `key` and add its totals to those of `to`. Does nothing if `key` is unknown."""
        row, to_packed = self._rows.pop(_packed(key), None), _packed(to)
        if row is None:
            return
        if to_packed not in self._rows:
            self._append([to_packed], np.array([to]))
        target = self._rows[to_packed]
        self._numbers[target, :MAX_NS] += self._numbers[row, :MAX_NS]
        self._lanes[target] += self._lanes[row]
        for maxima in (self._numbers[:, MAX_NS], self._longest_ns, self._added_ns):
            maxima[target] = max(maxima[target], maxima[row])
        self._changed_in[target] = self._generation
        self._numbers[row] = 0
        self._lanes[row] = 0
        self._present[row] = False

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
            lanes=self._lanes[:n].copy(),
            present=self._present[:n].copy(),
            longest_ns=self._longest_ns[:n].copy(),
            lineage=self,
            serials=self._serials[:n],
            changes=Changes(self._generation, self._changed_in[:n].copy()),
        )

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
        self._take(rows, max(_FIRST_ROOM, 2 * len(rows)))
        self._rows = dict(zip(self._rows, range(len(rows)), strict=True))
        self._used = len(rows)

    def _take(self, rows: Ints, room: int) -> None:
        """Start new columns with `rows`; arrays that a table shares stay unchanged."""
        for name in ("_serials", "_ids", "_numbers", "_lanes", "_present", "_longest_ns", "_added_ns", "_changed_in"):
            old = getattr(self, name)
            new = np.zeros((room, *old.shape[1:]), old.dtype)
            new[: len(rows)] = old[rows]
            setattr(self, name, new)


def _packed(key: tuple[int, ...]) -> bytes:
    return np.array(key, np.int64).tobytes()
