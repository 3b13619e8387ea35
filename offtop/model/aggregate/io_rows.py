"""What the rows of file operations and those of requests to disks have in common."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Row = TypeVar("Row")


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
