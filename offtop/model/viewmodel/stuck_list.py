"""The list of waits in progress, in which waits that look alike are one row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from offtop.model.aggregate.place_shares import PlaceNames
from offtop.model.aggregate.rows import first_seen
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import Rule
from offtop.model.values.catalog import Catalog, ThreadKey
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
    opened: Alike | None = None
    """What these waits have in common if they are the waits of one row, listed one by one."""
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

    def hides(self, key: ThreadKey | None) -> bool:
        """Return whether that thread waits, but is not shown because its wait is idle."""
        return any(one.site.thread == key for one in self.hidden.waits)


class StuckList:
    def __init__(self, cause_finder: CauseFinder, place_names: PlaceNames) -> None:
        self._cause_finder, self._place_names = cause_finder, place_names

    def of(self, some: Stuck, view: View, lines: int, catalog: Catalog) -> StuckPicture:
        """Return the list of `some` waits, of which `lines` rows are visible."""
        some = some.of_age(view.filter.keeps_age) if view.filter.chooses_rows else some
        if some.shares is None:
            return StuckPicture(some)
        every = some.shares.mask(view.scope._replace(pid=None, tid=None, idle=True))
        shown = every & some.shares.mask(view.scope._replace(pid=None, tid=None))
        listed, hidden = some.of(shown), some.of(every & ~shown)
        if view.focus != STUCK:
            return StuckPicture(listed, threads=len(listed.waits), hidden=hidden)
        groups: Sequence[AlikeWaits] = ()
        opened = view.stuck.alike
        if opened is not None:
            found = self._opened(listed, opened, view, catalog)
            listed, opened = _only(listed, found.rows), found.alike
        elif view.programs and not view.is_searched and not view.stuck.opened:
            groups = alike_waits(listed, self._place_names, catalog)
        cursor = _cursor(listed, groups, view)
        rows = [group.rows[0] for group in groups] if groups else [*range(len(listed.waits))]
        first = first_seen(len(rows), cursor, lines, view.stuck.line)
        oldest = _only(listed, rows) if groups else listed
        named = range(len(rows)) if view.is_searched else range(len(rows))[first : first + lines]
        rules = {row: self._cause_finder.rule_of(oldest.waits[row].place, catalog) for row in named}
        return StuckPicture(oldest, groups, len(listed.waits), opened, cursor, first, hidden, rules)

    def _opened(self, listed: Stuck, opened: Alike, view: View, catalog: Catalog) -> AlikeWaits:
        """Return the group whose waits are listed one by one; without rows if there is none any more.

        Its waits may get another place when function names arrive late, another cgroup, or become idle; then it is the
        group of the thread under the cursor, unless that thread waits for something else by now.
        """
        groups = alike_waits(listed, self._place_names, catalog)
        found = next((group for group in groups if group.alike == opened), None)
        if found is None:
            row = _row_of_cursor(listed, view)
            found = next((group for group in groups if row in group.rows and group.alike.may_become(opened)), None)
        return found or AlikeWaits(opened, [])


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
