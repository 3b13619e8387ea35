"""Waits in progress that look alike are one row: threads of one name that wait in the same location."""

from collections.abc import Sequence
from typing import NamedTuple

from offtop.model.aggregate.place_shares import PlaceNames
from offtop.model.aggregate.pool import family
from offtop.model.aggregate.program import program_name
from offtop.model.values.catalog import Catalog
from offtop.model.windows.breakdown import Leaf, sites_of
from offtop.model.windows.stuck import Stuck


class Alike(NamedTuple):
    """What waits that are one row have in common. All names are raw."""

    program: str
    threads: str
    """Their name, with `*` for each number."""
    leaf: Leaf
    place: str
    """Cause, or kernel function and function of the program."""
    state: str
    call: int
    """System call; -1: none."""
    cgroup: str

    def may_become(self, other: "Alike") -> bool:
        """Return whether the two differ only in what can change, or become known, while a wait goes on."""
        leaf = self.leaf._replace(idle=other.leaf.idle, standing=other.leaf.standing)
        return self._replace(leaf=leaf, place=other.place, cgroup=other.cgroup) == other


class AlikeWaits(NamedTuple):
    alike: Alike
    rows: list[int]
    """Rows of the waits, oldest first."""


def alike_waits(some: Stuck, place_names: PlaceNames, catalog: Catalog) -> Sequence[AlikeWaits]:
    """Return the groups of waits that look alike, the one with the oldest wait first."""
    if some.shares is None:
        return []
    sites, which = sites_of(some.shares)
    places = place_names.names_of(sites, catalog)
    rows: dict[Alike, list[int]] = {}
    each: list[int] = which.tolist()
    for row, (one, site) in enumerate(zip(some.waits, each, strict=True)):
        pid = one.site.pid
        alike = Alike(
            program_name(catalog.process(pid)),
            family(catalog.comm(one.site.thread)),
            some.leaf(row),
            places[site],
            one.letter,
            one.call,
            catalog.detail(pid).cgroup,
        )
        rows.setdefault(alike, []).append(row)
    return [AlikeWaits(alike, some_rows) for alike, some_rows in rows.items()]
