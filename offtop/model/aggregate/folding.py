"""Folding: which rows of a table are shown as one, such as the threads of a pool, or the processes of a program."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Generic, TypeVar

from offtop.model.windows.breakdown import PartTuple, total
from offtop.model.windows.stuck import Age

C = TypeVar("C")
G = TypeVar("G")
T = TypeVar("T")


class Folding(Generic[C, G]):
    """Which rows are in which group.

    `C` are the keys of the table. In a folded table, a group has a key of its own, which no single row can have.
    """

    def __init__(self, groups: Mapping[C, G], members: Mapping[G, Collection[C]]) -> None:
        """`groups`: key in a folded table → its group; `members`: group → keys of its rows."""
        self.groups, self.members = groups, members
        self.sizes: dict[G, int] = {group: len(keys) for group, keys in members.items()}
        self._codes: dict[G, C] = {group: code for code, group in groups.items()}
        self.code_of: dict[C, C] = {key: self._codes[group] for group, keys in members.items() for key in keys}

    def code(self, group: G) -> C | None:
        """Return the key of a group in a folded table; None: there is no such group."""
        return self._codes.get(group)

    def group_of(self, key: C) -> G | None:
        code = self.code_of.get(key)
        return None if code is None else self.groups[code]

    def folded(self, table: Mapping[C, PartTuple]) -> dict[C, PartTuple]:
        """Return `table` with the rows of each group summed up."""
        parts: dict[C, list[PartTuple]] = {}
        for key, part in table.items():
            parts.setdefault(self.code_of.get(key, key), []).append(part)
        return {key: total(some) if len(some) > 1 else some[0] for key, some in parts.items()}

    def merged(self, table: Mapping[C, T], plus: Callable[[T, T], T]) -> dict[C, T]:
        """Return `table` with the values of each group added by `plus`."""
        sums: dict[C, T] = {}
        for key, value in table.items():
            row = self.code_of.get(key, key)
            sums[row] = plus(sums[row], value) if row in sums else value
        return sums

    def oldest(self, ages: Mapping[Any, Age]) -> dict[C, Age]:
        """Return the oldest wait in progress of each row."""
        return self.merged(ages, max)


UNFOLDED: Folding[Any, Any] = Folding({}, {})
