"""The list of waits in progress, in which waits that look alike are one row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from offtop.model.aggregate.place_shares import PlaceNames
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import Rule
from offtop.model.values.catalog import Catalog
from offtop.model.viewmodel.alike import Alike, AlikeWaits, alike_waits
from offtop.model.viewmodel.view import STUCK, View
from offtop.model.windows.stuck import Stuck


@dataclass(frozen=True, slots=True)
class StuckPicture:
    shown: Stuck
    """Waits in progress of the selection, oldest first; of those that look alike only the oldest."""
    groups: Sequence[AlikeWaits] = ()
    """For each row the waits that it stands for; empty: each stands for itself."""
    threads: int = 0
    """How many waits the rows stand for."""
    cursor: int = 0
    """Row under the cursor."""
    first: int = 0
    """First row on the screen."""
    hidden: Stuck = Stuck(0)
    """Idle waits, which are not shown."""
    rules: Mapping[int, Rule | None] = field(default_factory=dict[int, Rule | None])
    """Row → its rule, for visible rows; during a search for all."""

    def rule(self, row: int) -> Rule | None:
        return self.rules.get(row)

    def count(self, row: int) -> int:
        """Return how many waits a row stands for."""
        return len(self.groups[row].rows) if self.groups else 1

    def alike(self, row: int) -> Alike | None:
        """Return what the waits of a row have in common; None if it is only one."""
        return self.groups[row].alike if self.count(row) > 1 else None


class StuckList:
    def __init__(self, cause_finder: CauseFinder, place_names: PlaceNames) -> None:
        self._cause_finder, self._place_names = cause_finder, place_names

    def of(self, some: Stuck, view: View, lines: int, catalog: Catalog) -> StuckPicture:
        """Return the list of `some` waits, of which `lines` rows are visible."""
        some = some.of_age(view.filter.keeps_age)
        if some.shares is None:
            return StuckPicture(some)
        every = some.shares.mask(view.scope._replace(pid=None, tid=None, idle=True))
        shown = every & some.shares.mask(view.scope._replace(pid=None, tid=None))
        listed, hidden = some.of(shown), some.of(every & ~shown)
        if view.focus != STUCK:
            return StuckPicture(listed, threads=len(listed.waits), hidden=hidden)
        is_searched = bool(view.search or view.found)
        groups: Sequence[AlikeWaits] = ()
        if view.stuck.alike is not None:
            listed = _only(listed, self._opened(listed, view, catalog))
        elif view.programs and not is_searched and not view.stuck.opened:
            groups = alike_waits(listed, self._place_names, catalog)
        cursor = _cursor(listed, groups, view)
        rows = [group.rows[0] for group in groups] if groups else [*range(len(listed.waits))]
        first = min(max(0, cursor - lines // 2), max(0, len(rows) - lines))
        oldest = _only(listed, rows) if groups else listed
        named = range(len(rows)) if is_searched else range(len(rows))[first : first + lines]
        rules = {row: self._cause_finder.rule_of(oldest.waits[row].place, catalog) for row in named}
        return StuckPicture(oldest, groups, len(listed.waits), cursor, first, hidden, rules)

    def _opened(self, listed: Stuck, view: View, catalog: Catalog) -> list[int]:
        """Return the rows of the group whose waits are listed one by one.

        Function names that arrive late may give it another place; then it is the group of the thread under the cursor.
        """
        groups = alike_waits(listed, self._place_names, catalog)
        found = next((group for group in groups if group.alike == view.stuck.alike), None)
        if found is None:
            row = _row_of_cursor(listed, view)
            found = next((group for group in groups if row in group.rows), None)
        return found.rows if found else []


def _only(some: Stuck, rows: Sequence[int]) -> Stuck:
    return some.of(np.isin(np.arange(len(some.waits)), rows))


def _row_of_cursor(listed: Stuck, view: View) -> int:
    """Return the row of the thread under the cursor; -1 if it is not there."""
    return next((row for row, one in enumerate(listed.waits) if one.site.thread == view.stuck.cursor), -1)


def _cursor(listed: Stuck, groups: Sequence[AlikeWaits], view: View) -> int:
    row = _row_of_cursor(listed, view)
    if groups:
        row = next((number for number, group in enumerate(groups) if row in group.rows), -1)
    return max(0, row)
