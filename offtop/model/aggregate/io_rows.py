"""What the rows of file operations and those of requests to disks have in common."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar


class _HasKey(Protocol):
    @property
    def key(self) -> Any: ...


Row = TypeVar("Row", bound=_HasKey)


@dataclass(frozen=True, slots=True)
class IoRows(Generic[Row]):
    rows: Sequence[Row] = ()
    """In order of the chosen column."""
    unsuited: Sequence[str] = ()
    """Keys of filter words that say nothing about what is listed; they are ignored."""
    elided_rows: int = 0
    """How many entries were too much to keep, if there is no filter."""
    lost: int = 0
    """Calls or requests that were not counted."""
    every: Sequence[Row] = ()
    """With those that the filter leaves out."""


@dataclass(frozen=True, slots=True)
class Sorts(Generic[Row]):
    """Columns by which rows can be sorted."""

    numbers: Mapping[str, Callable[[Row], float]]
    """Sorted largest first, and then by the first of them, which is the default."""
    texts: Mapping[str, Callable[[Row], str]]
    """Sorted in ascending order, and then by key."""
    elsewhere: Mapping[str, str]
    """Those of rows.SORTS that have another name here → that name."""

    @property
    def columns(self) -> Sequence[str]:
        return (*self.numbers, *self.texts)

    @property
    def default(self) -> str:
        return self.columns[0]

    def column_for(self, sort: str) -> str:
        """Return the column that stands for one of rows.SORTS."""
        found = self.elsewhere.get(sort, sort.upper())
        return found if found in self.columns else self.default

    def in_order(self, rows: Sequence[Row], column: str, reverse: bool) -> list[Row]:
        if text := self.texts.get(column):
            return sorted(rows, key=lambda row: (text(row), row.key), reverse=reverse)
        number, first = self.numbers[column], self.numbers[self.default]
        return sorted(rows, key=lambda row: (number(row), first(row)), reverse=not reverse)
