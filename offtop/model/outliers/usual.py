"""Usual length of waits: the 99.9th percentile of a program in a category.

It is learnt from finished waits in steps of LEARN_NS; each step is judged by the ones before it. The category of waits
below the minimum is unknown. If a category has few waits of its own, they count as if they had been in it: they
represent a lock that is nearly always short.
"""

from collections import deque
from collections.abc import Mapping

from offtop.model.values import histogram as log2
from offtop.model.values.snapshot import EXITED
from offtop.model.windows.breakdown import FILTERED, SHORT, Breakdown
from offtop.units import NS_PER_S

LEARN_NS = 10 * NS_PER_S
_STEPS = 30
"""Five minutes."""
_PERCENT = 99.9
_ENOUGH = 10
"""With this many waits, a category is judged by them alone."""
ENOUGH_SHORT, _ENOUGH_SHORT_PER_S = 1000, 50
"""With this many short waits, a program has enough of them for a 99.9th percentile, and does little else."""
_MOST_NAMES = 50_000
Of = tuple[str, str]
"""Program and category."""
_LONGEST_NS = 1 << 62


class Usual:
    """Learns from ticks what is usual. Its results change only when `learn` returns True."""

    def __init__(self) -> None:
        self._step: dict[Of, int] = {}
        self._steps: deque[Mapping[Of, int]] = deque()
        self._sums: dict[Of, int] = {}
        self._known: dict[Of, int] = {}
        self._began_ns = 0
        self.since_ns = 0
        """When it began to learn."""

    def learn(self, one: Breakdown, programs: Mapping[int, str], min_ns: int, at_ns: int) -> bool:
        """Add a tick's finished waits that are not idle; return whether results have changed."""
        self._began_ns = self._began_ns or at_ns
        self.since_ns = self.since_ns or at_ns
        for leaf, by_pid in one.processes.items():
            if leaf.idle or leaf.category == FILTERED:
                continue
            for pid, part in by_pid.items():
                if part.waits and pid != EXITED.pid:
                    found = part.histogram if leaf.category != SHORT else part.waits << 64 * log2.lane_of(min_ns)
                    of = programs.get(pid, ""), leaf.category
                    if of not in self._sums and len(self._sums) + len(self._step) >= _MOST_NAMES:
                        continue
                    self._step[of] = self._step.get(of, 0) + found
        if at_ns - self._began_ns < LEARN_NS:
            return False
        self._began_ns = at_ns
        self._close_step()
        return True

    def of(self, program: str, category: str) -> int:
        """Return an upper bound of the percentile in ns; 0: unknown."""
        of = program, category
        known = self._known.get(of)
        if known is None:
            known = self._known[of] = self._percentile_ns(of)
        return known

    def is_by_short(self, program: str, category: str) -> bool:
        """Return whether the result is based on the program's short waits.

        It is valid for threads that have such waits.
        """
        return log2.count(self._sums.get((program, category), 0)) < _ENOUGH

    def _percentile_ns(self, of: Of) -> int:
        own, short = self._sums.get(of, 0), self._sums.get((of[0], SHORT), 0)
        if not own and not short:
            return 0
        if self.is_by_short(*of):
            if log2.count(short) < max(ENOUGH_SHORT, _ENOUGH_SHORT_PER_S * len(self._steps) * LEARN_NS // NS_PER_S):
                return 0
            own += short
        usual_ns = log2.percentile_ns(own, _PERCENT, _LONGEST_NS)
        return usual_ns if usual_ns < _LONGEST_NS else 0

    def _close_step(self) -> None:
        self._steps.append(self._step)
        for of, found in self._step.items():
            self._sums[of] = self._sums.get(of, 0) + found
        self._step = {}
        if len(self._steps) > _STEPS:
            for of, found in self._steps.popleft().items():
                self._sums[of] -= found
                if not self._sums[of]:
                    del self._sums[of]
        self._known.clear()
