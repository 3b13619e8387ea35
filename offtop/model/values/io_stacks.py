"""The stacks of file operations and of requests to disks: from which code the long ones came."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from offtop.model.values.largest import largest

Key = TypeVar("Key")
"""FileKey or DiskKey."""


class IoStack(NamedTuple, Generic[Key]):
    row: Key
    """The row that it belongs to."""
    kernel: int
    """Stack id."""
    user: int
    """Stack id."""


class StackTotals(NamedTuple):
    """Totals of the calls or requests at one stack. Only those that ended count, with all of their time, in ns."""

    calls: int = 0
    bytes: int = 0
    total_ns: int = 0
    max_ns: int = 0

    def plus(self, other: "StackTotals") -> "StackTotals":
        return StackTotals(
            self.calls + other.calls,
            self.bytes + other.bytes,
            self.total_ns + other.total_ns,
            max(self.max_ns, other.max_ns),
        )


NO_TOTALS = StackTotals()


def summed(spans: Iterable[Mapping[IoStack[Key], StackTotals]]) -> dict[IoStack[Key], StackTotals]:
    sums: dict[IoStack[Key], StackTotals] = {}
    for one in spans:
        for key, totals in one.items():
            was = sums.get(key)
            sums[key] = totals if was is None else was.plus(totals)
    return sums


def of_rows(
    stacks: Mapping[IoStack[Key], StackTotals], rows: Mapping[Key, object], most: int
) -> Mapping[IoStack[Key], StackTotals]:
    """Return the stacks of these rows; of more than `most`, those with the most time."""
    kept, _ = largest(
        {key: totals for key, totals in stacks.items() if key.row in rows}, most, lambda one: one.total_ns
    )
    return kept


def ids_of(stacks: Iterable[IoStack[Any]]) -> set[int]:
    """Return the ids of kernel and user stacks."""
    return {stack for key in stacks for stack in (key.kernel, key.user)}


Stacks = Sequence[tuple[IoStack[Key], StackTotals]]
"""Of one row, most time first."""


def by_row(stacks: Mapping[IoStack[Key], StackTotals]) -> dict[Key, list[tuple[IoStack[Key], StackTotals]]]:
    """Return the stacks of each row, most time first."""
    found: dict[Key, list[tuple[IoStack[Key], StackTotals]]] = {}
    for key, totals in sorted(stacks.items(), key=lambda one: (-one[1].total_ns, one[0][1:])):
        found.setdefault(key.row, []).append((key, totals))
    return found
