"""What a row is compared with: what the baseline has of the same, whatever its pid was then, and how far that strayed.

A row is told by its key where that means the same in both, else by its name: who has another pid now shares what those
of that name had that are no more. So all changes of a table add up to the change of the whole.
"""

from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from math import sqrt
from typing import Any, Generic, NamedTuple, TypeVar

from offtop.model import histogram as log2
from offtop.model.cut import NO_PART, Added, Part, total
from offtop.units import signed, times

LEAST = 0.005
"""Average waiting threads: a change that would read 0.00 is none."""
_LEAST_PARTS = 3
"""Of the baseline: from fewer nobody can tell how far it strays."""
B = TypeVar("B", bound=Hashable)


class Gone(NamedTuple):
    """The key of a row of which only the baseline has any time."""

    name: str
    """Raw."""
    process: str = ""
    """Of a thread, raw."""


class Before(NamedTuple):
    """What the baseline has of a row."""

    waiting: float = 0.0
    """Average waiting threads; 0: it is new."""
    share: float = 1.0
    """How much of `parts` is compared with this row: less than all where several share it."""
    spans_ns: tuple[int, ...] = ()
    """Of the baseline's parts."""
    parts: tuple[Added, ...] = ()

    @property
    def p99_ns(self) -> int:
        return _p99_ns(total(self.parts))

    def spread(self, span_ns: int) -> float | None:
        """Between the smallest and the largest average of `span_ns` in the baseline; None: not known. Of a span that is
        shorter than the parts, as far as chance alone makes it stray more."""
        waited = [part[1] / ns for ns, part in zip(self.spans_ns, self.parts, strict=True)]
        if len(waited) < _LEAST_PARTS:
            return None
        longest_ns = max(self.spans_ns)
        return self.share * (max(waited) - min(waited)) * sqrt(max(1.0, longest_ns / span_ns) if span_ns else 1.0)

    @property
    def p99_range_ns(self) -> tuple[int, int]:
        """Of the parts that have one."""
        some = [ns for ns in map(_p99_ns, self.parts) if ns]
        return (min(some), max(some)) if some else (0, 0)


def _p99_ns(part: Added) -> int:
    return log2.percentile_ns(part[3], 99, part[2])


class Change(NamedTuple):
    """Of a row, from the baseline to now."""

    waiting: float
    """Average waiting threads, now."""
    p99_ns: int
    """Now."""
    span_ns: int
    before: Before

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
        """Whether it is more than the baseline itself strayed."""
        if not self.before.spans_ns:
            return False
        spread = self.before.spread(self.span_ns)
        return spread is not None and abs(self.by) >= LEAST and abs(self.by) > spread

    @property
    def p99_times(self) -> float:
        """How many times the 99th percentile of before; 0: one of the two had no waits that ended."""
        was_ns = self.before.p99_ns if self.p99_ns else 0
        return self.p99_ns / was_ns if was_ns else 0.0

    @property
    def is_p99_sure(self) -> bool:
        """Whether it is outside of what the baseline's parts had, by a slot of the histogram at least."""
        least_ns, most_ns = self.before.p99_range_ns
        return 0 < self.p99_ns * 2 <= least_ns or self.p99_ns >= most_ns * 2 > 0

    @property
    def text(self) -> str:
        """`+1.84!`: `!` marks what is more than the baseline itself strayed."""
        return f"{signed(self.by)}{'!' if self.is_sure else ' '}"

    @property
    def p99_text(self) -> str:
        """`x3.1`, `new`, `gone`."""
        return "new" if self.is_new else "gone" if self.is_gone else times(self.p99_times)


class Compared(NamedTuple):
    """A table beside the baseline's."""

    span_ns: int
    """Of the table."""
    before: Mapping[Any, Before]
    """By the table's keys."""
    gone: Sequence[tuple[Gone, Before]]
    """What changed most comes first."""
    whole: Before

    def change(self, key: Any, total_ns: int) -> float:
        return (total_ns / self.span_ns if self.span_ns else 0.0) - self.before[key].waiting


Compare = Callable[[Mapping[Any, Added]], Compared]


class Was(Generic[B]):
    """A table of the baseline."""

    def __init__(
        self,
        spans_ns: Sequence[int],
        tables: Sequence[Mapping[B, Added]],
        name_of: Callable[[B], Hashable],
        share: float = 1.0,
        groups: Callable[[B], Sequence[tuple[Hashable, Hashable]]] | None = None,
    ) -> None:
        """`tables`: one for each part. `name_of`: what is no more is told where that is a Gone. `share`: how much of
        it is compared. `groups`: what else a row of the other table may stand for that holds this row: by key and by
        name."""
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
        self._known: dict[tuple[Hashable, ...], Before] = {}
        self.whole = self._together([*every], 1)

    def compared(
        self,
        table: Mapping[Any, Added],
        span_ns: int,
        key_of: Callable[[Any], Hashable],
        name_of: Callable[[Any], Hashable],
        there: Container[B] = (),
    ) -> Compared:
        """`key_of`: what means the same in both; None where nothing does. `there`: who is still there, though perhaps
        not in the table, and leaves nothing to others of the name."""
        before: dict[Any, Before] = {}
        taken: set[B] = set()
        others: dict[Hashable, list[Any]] = {}
        for key in table:
            name, exact = name_of(key), key_of(key)
            was_name, members = self._by_key.get(exact, (None, ())) if exact is not None else (None, ())
            if members and was_name == name:
                before[key] = self._of((exact,), members, 1)
                taken.update(members)
            else:
                others.setdefault(name, []).append(key)
        for name, keys in others.items():
            left = [key for key in self._by_name.get(name, ()) if key not in taken and key not in there]
            taken.update(left)
            before |= dict.fromkeys(keys, self._of((tuple(left), len(keys)), left, len(keys)))
        gone: dict[Gone, list[B]] = {}
        for key, name in self._names.items():
            if key not in taken and isinstance(name, Gone):
                gone.setdefault(name, []).append(key)
        rows = [(name, self._of((tuple(keys), 1), keys, 1)) for name, keys in gone.items()]
        large = [one for one in rows if one[1].waiting >= LEAST]
        return Compared(span_ns, before, sorted(large, key=lambda one: (-one[1].waiting, one[0])), self.whole)

    @property
    def _none(self) -> tuple[Added, ...]:
        return (NO_PART,) * len(self._spans_ns)

    def _of(self, about: tuple[Hashable, ...], keys: Sequence[B], among: int) -> Before:
        known = self._known.get(about)
        if known is None:
            known = self._known[about] = self._together(keys, among)
        return known

    def _together(self, keys: Sequence[B], among: int) -> Before:
        """Of `among` rows each."""
        share = self._share / among
        if len(keys) == 1:
            parts = self._rows[keys[0]]
        else:
            parts = tuple(map(total, zip(*(self._rows[key] for key in keys), strict=True))) if keys else self._none
        total_ns = sum(part[1] for part in parts)
        return Before(share * total_ns / self._span_ns if self._span_ns else 0.0, share, self._spans_ns, parts)


def before_of(spans_ns: Sequence[int], parts: Sequence[Part], share: float) -> Before:
    """Of one row, `parts` being those of the baseline's parts."""
    span_ns, total_ns = sum(spans_ns), sum(part.total_ns for part in parts)
    return Before(share * total_ns / span_ns if span_ns else 0.0, share, tuple(spans_ns), tuple(parts))


def summed(some: Sequence[Before | None]) -> Before | None:
    """What rows that are summed up are compared with; nobody looks how far that strayed. None: with nothing."""
    known = [one.waiting for one in some if one is not None]
    return Before(sum(known)) if known else None
