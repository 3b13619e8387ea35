"""Running sums for counters: they never fall, and those with names in their labels are bounded in number."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from offtop.units import NS_PER_S

K = TypeVar("K")
KEEP_NAME_NS = 3600 * NS_PER_S
"""How long a program keeps its name at least since it was last among those with much time."""
_HALF_LIFE_NS = 600 * NS_PER_S
"""Time after which a wait weighs half when programs are compared."""
_MOST_UNNAMED = 4096
"""Programs without a name whose weight is remembered."""


class Totals(Generic[K]):
    """Sums by key. Prometheus takes a counter that falls for one that was restarted, so these never do.

    If a sum is corrected downwards, its old value is shown until the sum has caught up.
    """

    def __init__(self) -> None:
        self._sums: dict[K, int] = {}
        self._shown: dict[K, int] = {}

    def add(self, key: K, more: int) -> None:
        now = self._sums[key] = self._sums.get(key, 0) + more
        self._shown[key] = max(now, self._shown.get(key, 0))

    def __iter__(self) -> Iterator[tuple[K, int]]:
        return iter(self._shown.items())

    def __len__(self) -> int:
        return len(self._shown)

    def __contains__(self, key: K) -> bool:
        return key in self._shown

    def __getitem__(self, key: K) -> int:
        return self._shown.get(key, 0)


class Program(NamedTuple):
    """A program in one systemd unit or container, as the labels of its series. Both texts are printable and short."""

    program: str
    unit: str
    """Empty: it runs in none."""


OTHER = Program("other", "other")
"""Has the time of all programs that have no name of their own."""


class Part(NamedTuple):
    """One series of a program."""

    category: str = ""
    why: str = ""
    """Id of a cause rule; then `category` is empty."""


@dataclass(slots=True)
class _Named:
    earned_ns: int
    """CLOCK_MONOTONIC when it was last among the programs with much time."""
    totals: Totals[Part] = field(default_factory=Totals[Part])


class ProgramTotals:
    """Sums by program and part, in a bounded number of series.

    A program gets a name if there is room for its series. If more than half of the room is used, it must also have more
    time than the average named program, so that thousands of short-lived programs do not take all names. A name stays
    for an hour after its program last met that condition, and then until another one needs the room. Time of programs
    without a name counts under OTHER.
    """

    def __init__(self, most_series: int) -> None:
        """`most_series`: of all named programs together. OTHER has at most one more per part."""
        self._most_series = most_series
        self._named: dict[Program, _Named] = {}
        self._other = Totals[Part]()
        self._weights: dict[Program, float] = {}
        """Time of each program, recent time most."""
        self._named_weight = 0.0
        """Sum of the weights of the named programs."""
        self._at_ns = 0
        self.series = 0
        """Series of named programs."""
        self.folded: Collection[Program] = ()
        """Programs of the last call whose time, or a part of it, counts under OTHER."""

    def add(self, times: Mapping[Program, Mapping[Part, int]], at_ns: int) -> None:
        """Add what programs have waited up to `at_ns` (CLOCK_MONOTONIC), in ns."""
        self._weigh(times, at_ns)
        folded: set[Program] = set()
        for one in sorted(times, key=lambda one: (-self._weights.get(one, 0.0), one)):
            parts = times[one]
            named = self._named.get(one) or self._name(one, len(parts), at_ns)
            if named is None:
                folded.add(one)
            elif self._earns_name(one):
                named.earned_ns = at_ns
            for part, ns in parts.items():
                self._add(part, ns, one, named, folded)
        self.folded = folded

    def __iter__(self) -> Iterator[tuple[Program, Part, int]]:
        for one, named in self._named.items():
            for part, ns in named.totals:
                yield one, part, ns
        for part, ns in self._other:
            yield OTHER, part, ns

    def _earns_name(self, one: Program) -> bool:
        """Return whether a program has enough time for a name."""
        is_crowded = self.series > self._most_series // 2
        return not is_crowded or self._weights.get(one, 0.0) * len(self._named) > self._named_weight

    def _weigh(self, times: Mapping[Program, Mapping[Part, int]], at_ns: int) -> None:
        decay = 0.5 ** ((at_ns - self._at_ns) / _HALF_LIFE_NS)
        self._at_ns = at_ns
        weights = {one: weight * decay for one, weight in self._weights.items()}
        for one, parts in times.items():
            weights[one] = weights.get(one, 0.0) + sum(ns for part, ns in parts.items() if part.category)
        unnamed = sorted((one for one in weights if one not in self._named), key=lambda one: -weights[one])
        for one in unnamed[_MOST_UNNAMED:]:
            del weights[one]
        self._weights = weights
        self._named_weight = sum(weights[one] for one in self._named)

    def _name(self, one: Program, needed: int, at_ns: int) -> _Named | None:
        """Give a program a name if it may have one."""
        if one == OTHER or one not in self._weights or not self._earns_name(one):
            return None
        weight = self._weights[one]
        if self.series + needed > self._most_series:
            self._drop_lightest(needed, weight, at_ns)
        if self.series + needed > self._most_series:
            return None
        named = self._named[one] = _Named(at_ns)
        self._named_weight += weight
        return named

    def _drop_lightest(self, needed: int, weight: float, at_ns: int) -> None:
        """Drop names whose hour is over, of programs lighter than `weight`, until there is room."""
        old = [one for one, named in self._named.items() if at_ns - named.earned_ns > KEEP_NAME_NS]
        for one in sorted(old, key=lambda one: self._weights[one]):
            if self.series + needed <= self._most_series or self._weights[one] >= weight:
                return
            self.series -= len(self._named.pop(one).totals)
            self._named_weight -= self._weights[one]

    def _add(self, part: Part, ns: int, one: Program, named: _Named | None, folded: set[Program]) -> None:
        if named and part not in named.totals:
            if self.series >= self._most_series:
                folded.add(one)
                named = None
            else:
                self.series += 1
        (named.totals if named else self._other).add(part, ns)
