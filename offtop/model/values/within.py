"""Calls of the --within function: how many, how long, and how much of that was off CPU."""

from operator import add, sub
from typing import NamedTuple

from offtop.model.values import histogram as log2


class Calls(NamedTuple):
    """Running totals up to a snapshot; in a window, those of its span.

    ns; blocked = offcpu_ns - runqueue_ns.
    """

    returned: int = 0
    left: int = 0
    """Left by longjmp, an exception or the thread's exit, and noticed later: their duration is unknown."""
    total_ns: int = 0
    """This and what follows cover whole calls that returned, however long ago they began."""
    offcpu_ns: int = 0
    runqueue_ns: int = 0
    max_ns: int = 0
    """The longest that returned in the last tick (in a Window: in its span)."""
    histogram: int = 0
    now: int = 0
    """Calls in progress at the end."""
    oldest_ns: int = 0
    """Age of the oldest of these, at the end."""

    def plus(self, later: "Calls") -> "Calls":
        """Return the sum of two consecutive spans."""
        sums = Calls(*map(add, self, later))
        return sums._replace(max_ns=max(self.max_ns, later.max_ns), now=later.now, oldest_ns=later.oldest_ns)

    def since(self, earlier: "Calls") -> "Calls":
        """Return what happened since `earlier`."""
        differences = Calls(*map(sub, self, earlier))
        return differences._replace(max_ns=self.max_ns, now=self.now, oldest_ns=self.oldest_ns)

    def are_fewer(self, earlier: "Calls") -> bool:
        """Return whether any running total has fallen since `earlier`."""
        was, now = (*earlier[:5], *log2.counts(earlier.histogram)), (*self[:5], *log2.counts(self.histogram))
        return any(new < old for old, new in zip(was, now, strict=True))

    @property
    def blocked_ns(self) -> int:
        return self.offcpu_ns - self.runqueue_ns

    @property
    def running_ns(self) -> int:
        """All that was not off CPU, including steal and interrupts."""
        return self.total_ns - self.offcpu_ns

    def percentile_ns(self, percent: float) -> int:
        """Return an upper bound, as log2.percentile_ns does."""
        return log2.percentile_ns(self.histogram, percent, self.max_ns)


NO_CALLS = Calls()
