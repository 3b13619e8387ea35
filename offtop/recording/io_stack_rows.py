"""Encodes and decodes the stacks of file operations and of requests to disks, as part of the row that holds these.

The stacks themselves are in the table of all stacks. Recordings of older versions have none here.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from offtop.model.values.files import MOST_SUMMED
from offtop.model.values.io_stacks import IoStack, StackTotals
from offtop.recording import checked

Key = TypeVar("Key")


def encode(stacks: Mapping[IoStack[Key], StackTotals], rows: Sequence[Key]) -> list[list[int]]:
    """Encode stacks. `rows`: those of the activity, by whose number a stack names its row."""
    numbers = {row: number for number, row in enumerate(rows)}
    return [[numbers[key.row], key.kernel, key.user, *totals] for key, totals in stacks.items()]


def decode(value: object, rows: Sequence[Key]) -> dict[IoStack[Key], StackTotals]:
    """Decode stacks. Raises ValueError if they are invalid."""
    entries = checked.arrays(value, 3 + len(StackTotals._fields))
    if len(entries) > MOST_SUMMED:
        raise ValueError("too many stacks")
    stacks: dict[IoStack[Key], StackTotals] = {}
    for row, kernel, user, *numbers in entries:
        if checked.identity(row) >= len(rows):
            raise ValueError("a row is missing")
        key: IoStack[Key] = IoStack(rows[row], checked.identity(kernel), checked.identity(user))
        stacks[key] = StackTotals(*map(checked.time, numbers))
    return stacks
