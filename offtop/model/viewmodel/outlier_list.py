"""The list of outliers on the screen: their groups, newest first, and the cursor."""

from collections.abc import Sequence
from typing import NamedTuple

from offtop.model.aggregate.rows import first_seen
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.outlier import Group, Outliers, groups
from offtop.units import NS_PER_S

MARKED_NS = 60 * NS_PER_S
"""How long a row stays marked after an outlier."""
Which = tuple[int, str, str, str]
"""Identity of a group: time of its first outlier, and its kind."""


class OutliersPicture(NamedTuple):
    groups: Sequence[Group] = ()
    """Newest first."""
    cursor: int = 0
    """Group under the cursor."""
    first: int = 0
    """First group on the screen."""
    dropped: int = 0
    """How many outliers are no longer stored."""


class OutlierList:
    """Makes the list of groups; rebuilds it only when there are new outliers."""

    def __init__(self, outliers: Outliers) -> None:
        self._outliers = outliers
        self._made: tuple[object, list[Group]] = None, []

    @property
    def every(self) -> Sequence[Group]:
        """In order of time."""
        every = self._outliers.every
        if self._made[0] is not every:
            self._made = every, groups(every)
        return self._made[1]

    def of(self, cursor: Which | None, lines: int, line: int | None) -> OutliersPicture:
        every = self.every[::-1]
        on = next((row for row, one in enumerate(every) if which(one) == cursor), 0)
        return OutliersPicture(every, on, first_seen(len(every), on, lines, line), self._outliers.dropped)

    def marked(self, at_ns: int) -> frozenset[int | ThreadKey]:
        """Return the processes and threads with an outlier in the minute until `at_ns`."""
        marked: set[int | ThreadKey] = set()
        for one in reversed(self._outliers.every):
            if one.at_ns <= at_ns - MARKED_NS:
                break
            if one.wait and one.at_ns <= at_ns:
                marked |= {one.wait.site.pid, one.wait.site.thread}
        return frozenset(marked)


def which(group: Group) -> Which:
    return group.first.at_ns, *group.first.kind
