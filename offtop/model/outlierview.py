"""What of the outliers is on the screen: the list, newest first, and where the keys are in it."""

from collections.abc import Sequence
from typing import NamedTuple

from offtop.model.book import ThreadKey
from offtop.model.outlier import Group, Outliers, groups
from offtop.units import NS_PER_S

MARKED_NS = 60 * NS_PER_S
"""For so long a row is marked of which something was caught."""
Which = tuple[int, str, str, str]
"""What a group is known by: when its first was caught, and its kind."""


class OutliersPicture(NamedTuple):
    groups: Sequence[Group] = ()
    """The newest first."""
    cursor: int = 0
    """Which of them the keys are on."""
    first: int = 0
    """Which of them is the first on the screen."""
    dropped: int = 0
    """How many there were that are kept no more."""
    marked: frozenset[int | ThreadKey] = frozenset()
    """Processes and threads of which something was caught in the last minute."""


class Listed:
    """Makes one after the other; groups are made anew only when there are others."""

    def __init__(self, outliers: Outliers) -> None:
        self._outliers = outliers
        self._made: tuple[object, list[Group]] = None, []

    @property
    def every(self) -> Sequence[Group]:
        """In the order of time."""
        every = self._outliers.every
        if self._made[0] is not every:
            self._made = every, groups(every)
        return self._made[1]

    def of(self, at_ns: int, cursor: Which | None, lines: int) -> OutliersPicture:
        """As it stands, with what is marked at the tick of `at_ns`."""
        every = self.every[::-1]
        on = next((row for row, one in enumerate(every) if which(one) == cursor), 0)
        first = min(max(0, on - lines // 2), max(0, len(every) - lines))
        marked: set[int | ThreadKey] = set()
        for one in reversed(self._outliers.every):
            if one.at_ns <= at_ns - MARKED_NS:
                break
            if one.wait and one.at_ns <= at_ns:
                marked |= {one.wait.site.pid, one.wait.site.thread}
        return OutliersPicture(every, on, first, self._outliers.dropped, frozenset(marked))


def which(group: Group) -> Which:
    return group.first.at_ns, *group.first.kind
