"""Which entries are kept one by one if there are too many: those with the most time."""

from collections.abc import Callable, Mapping
from heapq import nlargest
from typing import TypeVar

Key = TypeVar("Key")
Totals = TypeVar("Totals")


def largest(
    totals: Mapping[Key, Totals], most: int, time_ns: Callable[[Totals], int]
) -> tuple[Mapping[Key, Totals], list[Totals]]:
    """Return the `most` entries with the most time, and the totals of the others."""
    if len(totals) <= most:
        return totals, []
    kept = dict(nlargest(most, totals.items(), lambda entry: time_ns(entry[1])))
    return kept, [numbers for key, numbers in totals.items() if key not in kept]
