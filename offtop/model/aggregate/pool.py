"""Pool: the threads of a process whose names differ only by a number.

`worker-1 … worker-400` are one row.

What a row of many threads would hide is shown with it: their average, the worst one, and whether many of them wait for
the same thing, which is a convoy.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple, TypeVar

from offtop.model.aggregate.folding import Folding
from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey
from offtop.model.values.snapshot import EXITED, Waiting
from offtop.model.values.stack import PLACELESS

LEAST_MEMBERS = 4
"""Fewer threads are shown one by one."""
LEAST_CONVOY = 3
FUTEX = "futex"
_MOST_NAMES = 65_536
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
    waits: Iterable[Waiting], key_of: Callable[[ThreadKey], K | None], sizes: Mapping[K, int], catalog: Catalog
) -> dict[K, Convoy]:
    """Return for each key the largest convoy: threads at one futex or kernel function."""
    counts: dict[K, Counter[tuple[str, int]]] = {}
    at: dict[tuple[K, tuple[str, int]], Waiting] = {}
    for one in waits:
        key = key_of(one.site.thread)
        if key is None or one.is_ready or one.site.kernel in PLACELESS:
            continue
        what = _what(one, catalog)
        if not what[0]:
            continue  # not looked up yet
        counts.setdefault(key, Counter())[what] += 1
        at.setdefault((key, what), one)
    found: dict[K, Convoy] = {}
    for key, by_what in counts.items():
        what, waiting = max(by_what.items(), key=lambda item: (item[1], item[0]))
        if waiting >= LEAST_CONVOY:
            one = at[key, what]
            site = one.site._replace(user=one.user)
            found[key] = Convoy(waiting, max(waiting, sizes.get(key, 0)), what[1], site)
    return found


def _what(one: Waiting, catalog: Catalog) -> tuple[str, int]:
    if one.arguments and catalog.calls.get(one.call) == FUTEX:
        return FUTEX, one.arguments[0]
    frames = catalog.stack(one.site.kernel).trimmed
    return (frames[0].name if frames else ""), 0
