"""What counting file operations and counting requests to disks have in common."""

from collections.abc import Callable, Mapping
from operator import add, sub
from typing import Any, Generic, Protocol, Self, TypeVar

from offtop.kernel.bpf.io_program import IoProgram
from offtop.model.values.disks import DiskKey
from offtop.model.values.files import FileKey
from offtop.model.values.io_stacks import NO_TOTALS, IoStack, StackTotals, ids_of

MOST_ROWS = 1000
"""Of one snapshot; the rest is one sum."""
MOST_STACKS = 1000
"""Of one snapshot, of its rows."""
_MOST_OWED = 16_384
"""Keys with owed time: as many as there can be requests in progress, which BPF counts within two ticks. Those that
it had no room to count would stay for good."""


class _Summable(Protocol):
    def plus(self, later: Self, /) -> Self: ...


Key = TypeVar("Key")
"""What BPF counts by."""
Row = TypeVar("Row", FileKey, DiskKey)
Totals = TypeVar("Totals", bound=_Summable)


class IoCounts(Generic[Key, Row, Totals]):
    """What has been counted since the last snapshot. For the polling thread."""

    def __init__(self, program: IoProgram, stack_ids: Callable[[int, int, int], tuple[int, int]]) -> None:
        """`stack_ids`: see Stacks.ids."""
        self.program, self._stack_ids = program, stack_ids
        self._totals: dict[Key, Totals] = {}
        self._stacks: dict[IoStack[Row], StackTotals] = {}
        self._lost = self._lost_before = 0

    @property
    def stacks_in_use(self) -> set[int]:
        """Ids of the stacks since the last snapshot."""
        return ids_of(self._stacks)

    def _add(self, totals: Mapping[Key, Totals]) -> None:
        for key, numbers in totals.items():
            was = self._totals.get(key)
            self._totals[key] = numbers if was is None else was.plus(numbers)

    def _add_stacks(self, buffer: int, row_of: Callable[[tuple[Any, ...]], Row]) -> None:
        """Add the stacks of a buffer. `row_of` converts a key of BPF."""
        for raw, kernel, user, totals in self.program.stacks(buffer):
            row = row_of(raw)
            key = IoStack(row, *self._stack_ids(row.pid, kernel, user))
            self._stacks[key] = self._stacks.get(key, NO_TOTALS).plus(totals)

    def _take(self) -> tuple[dict[Key, Totals], dict[IoStack[Row], StackTotals], int]:
        """Return totals, stacks, and how much was lost since the last call of this method."""
        counted, self._totals = self._totals, {}
        stacks, self._stacks = self._stacks, {}
        lost, self._lost_before = self._lost - self._lost_before, self._lost
        return counted, stacks, lost


class OwedTime(Generic[Key]):
    """Time that was shown of calls or requests that BPF has not counted yet, as one or more numbers of ns by key."""

    def __init__(self) -> None:
        self._owed: dict[Key, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self._owed)

    def add(self, key: Key, *shown_ns: int) -> None:
        """Owe what was shown of one that has ended. If there are too many keys, forget the one that is owed longest."""
        self._owed[key] = tuple(map(add, self._owed.pop(key, (0,) * len(shown_ns)), shown_ns))
        if len(self._owed) > _MOST_OWED:
            del self._owed[next(iter(self._owed))]

    def pay(self, key: Key, *total_ns: int) -> tuple[int, ...]:
        """Return the totals without what is owed, but none below zero: the rest is owed until the next tick."""
        owed_ns = self._owed.pop(key, (0,) * len(total_ns))
        paid_ns = tuple(map(min, owed_ns, total_ns))
        if paid_ns[0] < owed_ns[0]:
            self._owed[key] = tuple(map(sub, owed_ns, paid_ns))
        return tuple(map(sub, total_ns, paid_ns))


def raw_text(text: bytes) -> str:
    """Return a string in a BPF record as it is: it may have control characters."""
    return text.partition(b"\0")[0].decode(errors="surrogateescape")
