"""Pool: the threads of a process whose names differ only by a number.

`worker-1 … worker-400` are one row.

What a row of many threads would hide is shown with it: their average, the worst one, and whether many of them wait for
the same thing, which is a convoy.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

import numpy as np

from offtop.model.aggregate.folding import Folding
from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey
from offtop.model.values.snapshot import EXITED, Waiting
from offtop.model.values.stack import PLACELESS
from offtop.model.values.table import Ints, distinct_rows
from offtop.model.values.waits import ARGUMENTS, CALL, KERNEL, WaitList

LEAST_MEMBERS = 4
"""Fewer threads are shown one by one."""
LEAST_CONVOY = 3
FUTEX = "futex"
_MOST_NAMES = 65_536
_WORD = (1 << 64) - 1
K = TypeVar("K")


class Pool(NamedTuple):
    """Key of a pool's row."""

    pid: int
    family: str
    """Common part of the names, with `*` for each number, and `*` and `\\` escaped by `\\`. Raw."""

    def holds(self, key: ThreadKey, catalog: Catalog) -> bool:
        return key.pid == self.pid and family(catalog.comm(key)) == self.family


class Convoy(NamedTuple):
    """How many of some threads wait for the same thing at once."""

    waiting: int = 0
    of: int = 0
    """How many threads there are."""
    futex: int = 0
    """Address of the futex that all of them wait for; 0: they have only the kernel's leaf in common."""
    site: SiteKey = SiteKey(0, 0, 0, 0)
    """Where one of them waits, with the user stack read from outside."""


NO_CONVOY = Convoy()


@lru_cache(maxsize=_MOST_NAMES)
def family(name: str) -> str:
    """Replace each number in a name by `*`. A name that is only a number stays."""
    parts = re.split(r"[0-9]+", re.sub(r"[*\\]", r"\\\g<0>", name))
    return "*".join(parts) if any(parts) else name


def parts(shared: str) -> list[str]:
    """Return the parts of a family between its numbers, unescaped."""
    found = [""]
    for part in re.finditer(r"\\(.)|(\*)|[^\\*]+", shared, re.DOTALL):
        if part[2]:
            found.append("")
        else:
            found[-1] += part[1] or part[0]
    return found


def folding(threads: Iterable[ThreadKey], catalog: Catalog) -> Folding[tuple[int, ...], Pool]:
    """Fold threads by pool. In tables by thread a pool is (pid, a negative number)."""
    members = pools(threads, catalog)
    return Folding({(pool.pid, -n): pool for n, pool in enumerate(members, 1)}, members)


def pools(threads: Iterable[ThreadKey], catalog: Catalog, least: int = LEAST_MEMBERS) -> dict[Pool, list[ThreadKey]]:
    """Return the pools among `threads`, and the members of each."""
    members: dict[Pool, list[ThreadKey]] = {}
    for key in threads:
        if key != EXITED:
            members.setdefault(Pool(key.pid, family(catalog.comm(key))), []).append(key)
    return {pool: keys for pool, keys in members.items() if len(keys) >= least}


def convoys(
    waits: Iterable[Waiting],
    keys_of: Callable[[Ints], tuple[Sequence[K | None], Ints]],
    sizes: Mapping[K, int],
    catalog: Catalog,
) -> dict[K, Convoy]:
    """Return for each key the largest convoy: threads at one futex or kernel function.

    `keys_of` returns the keys of threads (pid, tid), and the index of each thread's own; None: the thread has none.
    """
    every = WaitList.of(waits)
    every = every.of_rows(~every.is_ready & ~np.isin(every.rows[:, KERNEL], [*PLACELESS]))
    things, thing = _things(every, catalog)
    keys, key = keys_of(every.rows[:, :2])
    found = np.unique(key * len(things) + thing, return_index=True, return_counts=True)
    kinds_rows_counts: list[list[int]] = np.column_stack(found).tolist()
    largest: dict[K, tuple[int, tuple[str, int], int]] = {}
    for kind, row, count in kinds_rows_counts:
        one, what = keys[kind // len(things)], things[kind % len(things)]
        if one is not None and what[0] and count >= LEAST_CONVOY:  # without a name it was not looked up yet
            largest[one] = max(largest.get(one, (0, what, row)), (count, what, row))
    return {
        one: Convoy(count, max(count, sizes.get(one, 0)), what[1], every[row].place)
        for one, (count, what, row) in largest.items()
    }


def _things(waits: WaitList, catalog: Catalog) -> tuple[list[tuple[str, int]], Ints]:
    """Return the distinct things that are waited for, and for each wait the index of its own.

    A thing is a futex with its address, or the name of a kernel function with 0; the name may be unknown, so empty.
    """
    calls: list[int] = np.unique(waits.rows[:, CALL]).tolist()  # the reading thread adds to those of the catalog
    is_futex = np.isin(waits.rows[:, CALL], [call for call in calls if catalog.calls.get(call) == FUTEX])
    things = np.zeros((len(waits), 3), np.int64)
    things[:, 0], things[is_futex, 1] = is_futex, waits.rows[is_futex, ARGUMENTS]
    things[~is_futex, 2] = waits.rows[~is_futex, KERNEL]
    distinct, which = distinct_rows(things)
    numbers: dict[tuple[str, int], int] = {}
    of_distinct = [
        numbers.setdefault((FUTEX, address & _WORD) if of_futex else (_function(stack, catalog), 0), len(numbers))
        for of_futex, address, stack in distinct
    ]
    return [*numbers], np.array(of_distinct, np.int64)[which]


def _function(kernel: int, catalog: Catalog) -> str:
    frames = catalog.stack(kernel).trimmed
    return frames[0].name if frames else ""
