"""What a row is compared with: the same row of the baseline, and its variation there.

A row is identified by its key if that is valid in both, otherwise by its name: rows with new pids share the time of
those of the same name that have disappeared. So the changes of a table add up to the change of the whole.
"""

from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from math import sqrt
from typing import Any, Generic, NamedTuple, TypeVar

from offtop.model.values import histogram as log2
from offtop.model.windows.breakdown import NO_PART, Part, PartTuple, total
from offtop.units import signed, times

LEAST = 0.005
"""Average waiting threads: a smaller change would read 0.00 and is ignored."""
_LEAST_PARTS = 3
"""Fewer parts of the baseline do not show how much it varies."""
B = TypeVar("B", bound=Hashable)


class BaselineOnly(NamedTuple):
    """Key of a row that has time only in the baseline."""

    name: str
    """Raw."""
    process: str = ""
    """Raw process name, for a thread."""


class BaselineRow(NamedTuple):
    """A row in the baseline."""

    waiting: float = 0.0
    """Average waiting threads; 0: the row is new."""
    share: float = 1.0
    """How much of `parts` this row is compared with: less than 1 if several rows share it."""
    spans_ns: tuple[int, ...] = ()
    """Lengths of the baseline's parts."""
    parts: tuple[PartTuple, ...] = ()

    @property
    def p99_ns(self) -> int:
        return _p99_ns(total(self.parts))

    def spread(self, span_ns: int) -> float | None:
        """Difference between the largest and the smallest average of the parts; None if unknown.

        If `span_ns` is shorter than the parts, it is scaled up by as much as chance makes a short span vary more.
        """
        waited = [part[1] / ns for ns, part in zip(self.spans_ns, self.parts, strict=True)]
        if len(waited) < _LEAST_PARTS:
            return None
        longest_ns = max(self.spans_ns)
        return self.share * (max(waited) - min(waited)) * sqrt(max(1.0, longest_ns / span_ns) if span_ns else 1.0)

    @property
    def p99_range_ns(self) -> tuple[int, int]:
        """Smallest and largest 99th percentile of the parts that have one."""
        some = [ns for ns in map(_p99_ns, self.parts) if ns]
        return (min(some), max(some)) if some else (0, 0)


def _p99_ns(part: PartTuple) -> int:
    return log2.percentile_ns(part[3], 99, part[2])


class Change(NamedTuple):
    """Change of a row from the baseline to now."""

    waiting: float
    """Average waiting threads now."""
    p99_ns: int
    """Now."""
    span_ns: int
    before: BaselineRow

    @property
    def by(self) -> float:
        """In average waiting threads."""
        return self.waiting - self.before.waiting

    @property
    def is_new(self) -> bool:
        return self.before.waiting <= 0 < self.waiting

    @property
    def is_gone(self) -> bool:
        return self.waiting <= 0 < self.before.waiting

    @property
    def is_sure(self) -> bool:
        """Whether the change is larger than the baseline's own variation."""
        if not self.before.spans_ns:
            return False
        spread = self.before.spread(self.span_ns)
        return spread is not None and abs(self.by) >= LEAST and abs(self.by) > spread

    @property
    def p99_times(self) -> float:
        """Ratio of the 99th percentiles; 0 if one of the two has no finished waits."""
        was_ns = self.before.p99_ns if self.p99_ns else 0
        return self.p99_ns / was_ns if was_ns else 0.0

    @property
    def is_p99_sure(self) -> bool:
        """Whether the percentile is outside the range of the baseline's parts.

        It has to be outside by at least one slot of the histogram.
        """
        least_ns, most_ns = self.before.p99_range_ns
        return 0 < self.p99_ns * 2 <= least_ns or self.p99_ns >= most_ns * 2 > 0

    @property
    def text(self) -> str:
        """`+1.84!`; `!` marks a change larger than the baseline's own variation."""
        return f"{signed(self.by)}{'!' if self.is_sure else ' '}"

    @property
    def p99_text(self) -> str:
        """`x3.1`, `new`, `gone`."""
        return "new" if self.is_new else "gone" if self.is_gone else times(self.p99_times)


class Compared(NamedTuple):
    """A table with the baseline's values."""

    span_ns: int
    """Of the table."""
    before: Mapping[Any, BaselineRow]
    """By the keys of the table."""
    gone: Sequence[tuple[BaselineOnly, BaselineRow]]
    """Largest change first."""
    whole: BaselineRow

    def change(self, key: Any, total_ns: int) -> float:
        return (total_ns / self.span_ns if self.span_ns else 0.0) - self.before[key].waiting


Compare = Callable[[Mapping[Any, PartTuple]], Compared]


class BaselineTable(Generic[B]):
    """A table of the baseline."""

    def __init__(
        self,
        spans_ns: Sequence[int],
        tables: Sequence[Mapping[B, PartTuple]],
        name_of: Callable[[B], Hashable],
        share: float = 1.0,
        groups: Callable[[B], Sequence[tuple[Hashable, Hashable]]] | None = None,
    ) -> None:
        """Create it from one table for each part.

        Rows that disappeared are listed if `name_of` returns a Gone for them. `share` is how much of the table is
        compared. `groups` returns the keys and names of other rows that may include a row, as a pool includes its
        threads.
        """
        self._spans_ns = tuple(spans_ns)
        self._span_ns = sum(spans_ns)
        self._share = share
        every = dict.fromkeys(key for table in tables for key in table)
        self._rows = {key: tuple(table.get(key, NO_PART) for table in tables) for key in every}
        self._names = {key: name_of(key) for key in every}
        self._by_key: dict[Hashable, tuple[Hashable, list[B]]] = {}
        self._by_name: dict[Hashable, list[B]] = {}
        for key, name in self._names.items():
            for of_key, of_name in ((key, name), *(groups(key) if groups else ())):
                self._by_key.setdefault(of_key, (of_name, []))[1].append(key)
                self._by_name.setdefault(of_name, []).append(key)
        self._known: dict[tuple[Hashable, ...], BaselineRow] = {}
        self.whole = self._shared_by([*every], 1)

    def compared(
        self,
        table: Mapping[Any, PartTuple],
        span_ns: int,
        key_of: Callable[[Any], Hashable],
        name_of: Callable[[Any], Hashable],
        there: Container[B] = (),
    ) -> Compared:
        """Compare `table` with this one.

        `key_of` returns a key that is valid in both, or None. Keys in `there` still exist, though perhaps not in the
        table, so that others of the same name get none of their time.
        """
        before: dict[Any, BaselineRow] = {}
        taken: set[B] = set()
        others: dict[Hashable, list[Any]] = {}
        for key in table:
            name, exact = name_of(key), key_of(key)
            was_name, members = self._by_key.get(exact, (None, ())) if exact is not None else (None, ())
            if members and was_name == name:
                left = [one for one in members if one not in taken]  # a pinned row may have taken one of them
                about = (exact,) if len(left) == len(members) else (exact, tuple(left))
                before[key] = self._cached(about, left, 1)
                taken.update(members)
            else:
                others.setdefault(name, []).append(key)
        for name, keys in others.items():
            left = [key for key in self._by_name.get(name, ()) if key not in taken and key not in there]
            taken.update(left)
            before |= dict.fromkeys(keys, self._cached((tuple(left), len(keys)), left, len(keys)))
        gone: dict[BaselineOnly, list[B]] = {}
        for key, name in self._names.items():
            if key not in taken and isinstance(name, BaselineOnly):
                gone.setdefault(name, []).append(key)
        rows = [(name, self._cached((tuple(keys), 1), keys, 1)) for name, keys in gone.items()]
        large = [one for one in rows if one[1].waiting >= LEAST]
        return Compared(span_ns, before, sorted(large, key=lambda one: (-one[1].waiting, one[0])), self.whole)

    @property
    def _none(self) -> tuple[PartTuple, ...]:
        return (NO_PART,) * len(self._spans_ns)

    def _cached(self, about: tuple[Hashable, ...], keys: Sequence[B], among: int) -> BaselineRow:
        known = self._known.get(about)
        if known is None:
            known = self._known[about] = self._shared_by(keys, among)
        return known

    def _shared_by(self, keys: Sequence[B], among: int) -> BaselineRow:
        """Return what each of `among` rows gets of `keys`."""
        share = self._share / among
        if len(keys) == 1:
            parts = self._rows[keys[0]]
        else:
            parts = tuple(map(total, zip(*(self._rows[key] for key in keys), strict=True))) if keys else self._none
        total_ns = sum(part[1] for part in parts)
        return BaselineRow(share * total_ns / self._span_ns if self._span_ns else 0.0, share, self._spans_ns, parts)


def before_of(spans_ns: Sequence[int], parts: Sequence[Part], share: float) -> BaselineRow:
    """Return one row, `parts` being its time in the baseline's parts."""
    span_ns, total_ns = sum(spans_ns), sum(part.total_ns for part in parts)
    return BaselineRow(share * total_ns / span_ns if span_ns else 0.0, share, tuple(spans_ns), tuple(parts))


def summed(some: Sequence[BaselineRow | None]) -> BaselineRow | None:
    """Return what the sum of some rows is compared with, without variation; None: nothing."""
    known = [one.waiting for one in some if one is not None]
    return BaselineRow(sum(known)) if known else None
