"""What counting file operations and counting requests to disks have in common."""

from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, Self, TypeVar

from offtop.kernel.bpf.io_program import IoProgram
from offtop.model.values.disks import DiskKey
from offtop.model.values.files import FileKey
from offtop.model.values.io_stacks import NO_TOTALS, IoStack, StackTotals, ids_of

MOST_ROWS = 1000
"""Of one snapshot; the rest is one sum."""
MOST_STACKS = 1000
"""Of one snapshot, of its rows."""


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


def raw_text(text: bytes) -> str:
    """Return a string in a BPF record as it is: it may have control characters."""
    return text.partition(b"\0")[0].decode(errors="surrogateescape")
