"""Keeps offtop to its CPU budget: fewer stacks and task scans while it uses more, all of them again afterwards."""

from collections.abc import Sequence
from math import ceil, inf, isinf, log2

from offtop.kernel.bpf import layout
from offtop.kernel.bpf.layout import Thinning
from offtop.model.values.snapshot import Thinned
from offtop.units import NS_PER_S

NO_LIMIT_NS = (1 << 64) - 1
STACK_SHARE = 0.1
"""Part of the budget that stacks may take on each CPU: with the default of 5 %, 5 ms per CPU and second, some 600."""
_MIN_LEVELS = 3
"""So many levels raise the minimum, in equal numbers of doublings up to layout.THIN_BELOW_NS."""
_SCAN_SHARES = (0.05, 0.05, 0.05, 0.02, 0.01)
"""Share of the time that task scans may take, by level."""
HIGHEST_LEVEL = len(_SCAN_SHARES) - 1
_SCAN_EVERY_MAX = 10
_MOVE_NS = 12_000
"""What a wait costs that no scan has found: its time moves to its stack when it ends, in each window that it was in."""
_SCAN_WEIGHT = 4
"""One scan counts a quarter in the average, so that one that was held up changes little."""
_START_S = 5.0
"""At the start all names and stacks are new, which costs more than the budget for a few seconds."""
_AVERAGE_S = 4.0
"""Time constant of the moving average of the CPU use."""
_UP_AFTER_S = 1.5
"""Time that a level gets to show its effect before the next one is tried."""
_DOWN_AFTER_S = 4.0
_DOWN_BELOW = 0.7
"""Part of the budget below which the level is lowered."""
_CALM_BELOW = 0.35
"""Part of the budget below which the load may have changed, so that earlier attempts to lower the level say nothing."""
_TOO_SOON_S, _TOO_SOON_TICKS = 10.0, 2.5
"""A level that has to be raised again so soon after it was lowered, in seconds and in ticks, was lowered in vain."""
_LONGEST_S = 300.0


class BudgetControl:
    """Chooses a level of detail from offtop's own CPU use, 0 for all of it.

    Each attempt to lower the level in vain doubles the time before the next one, so that it does not go back and forth.
    A low use does not show that the load has gone, because a level may save most of it; that fewer waits are left out
    does.
    """

    def __init__(self, budget_pct: float, at_ns: int) -> None:
        """`budget_pct`: percent of one CPU for offtop's processes; math.inf: no limit."""
        self._budget_pct = budget_pct
        self.level = 0
        self._at_ns = self._changed_ns = at_ns
        self._lowered_ns = 0
        """When the level was lowered last."""
        self._warm_ns = at_ns + int(_START_S * NS_PER_S)
        self._average_pct = 0.0
        self._hold_s = _DOWN_AFTER_S
        self._left_out_per_s = 0.0
        """Waits left out per second when the level was lowered last."""
        self._busy_per_s = inf
        """With so many waits left out per second, an attempt to lower the level was in vain."""

    @property
    def stacks_ns(self) -> int:
        """Time per second that each CPU may spend on stacks."""
        return NO_LIMIT_NS if isinf(self._budget_pct) else int(STACK_SHARE * self._budget_pct / 100 * NS_PER_S)

    @property
    def scan_share(self) -> float:
        """Share of the time that task scans may take."""
        return _SCAN_SHARES[self.level]

    @property
    def is_over(self) -> bool:
        """Whether offtop's processes use more than the budget even at the highest level."""
        return self.level == HIGHEST_LEVEL and self._average_pct > self._budget_pct

    def min_ns(self, requested_ns: int) -> int:
        """Return the minimum at this level. Waits of layout.THIN_BELOW_NS or more always get stacks."""
        doublings = max(0.0, log2(layout.THIN_BELOW_NS / max(requested_ns, layout.LOWEST_MIN_NS)))
        return _raised_min_ns(requested_ns, ceil(doublings * min(self.level, _MIN_LEVELS) / _MIN_LEVELS))

    def add(self, at_ns: int, used_pct: float, left_out: int = 0) -> None:
        """Account for a tick that ended at `at_ns`.

        In it offtop's processes used `used_pct` of a CPU, and `left_out` waits got no stack.
        """
        tick_s, self._at_ns = (at_ns - self._at_ns) / NS_PER_S, at_ns
        self._average_pct += (used_pct - self._average_pct) * min(1.0, tick_s / _AVERAGE_S)
        held_s, was_lowered = (at_ns - self._changed_ns) / NS_PER_S, self._lowered_ns == self._changed_ns
        is_too_soon = held_s < max(_TOO_SOON_S, _TOO_SOON_TICKS * tick_s)
        left_out_per_s = left_out / max(tick_s, 1e-9)
        if at_ns < self._warm_ns or isinf(self._budget_pct):
            return
        is_calm = self._average_pct < _CALM_BELOW * self._budget_pct and left_out_per_s < self._busy_per_s / 2
        if is_calm or (was_lowered and not is_too_soon):
            self._hold_s, self._busy_per_s = _DOWN_AFTER_S, inf
        if min(self._average_pct, used_pct) > self._budget_pct and held_s >= _UP_AFTER_S and self.level < HIGHEST_LEVEL:
            if was_lowered and is_too_soon:
                self._hold_s, self._busy_per_s = min(_LONGEST_S, 2 * self._hold_s), self._left_out_per_s
            self.level, self._changed_ns = self.level + 1, at_ns
        elif (
            self.level and max(self._average_pct, used_pct) < _DOWN_BELOW * self._budget_pct and held_s >= self._hold_s
        ):
            self.level, self._changed_ns = self.level - 1, at_ns
            self._lowered_ns, self._left_out_per_s = at_ns, left_out_per_s


class ScanCadence:
    """How often waits in progress are scanned: each tick, or less often if it costs much and finds little."""

    def __init__(self) -> None:
        self.took_ns = -1
        """Moving average of a scan's cost; -1 before the first one."""
        self.every = 1
        """One scan in this many ticks."""
        self._left = 0

    @property
    def is_due(self) -> bool:
        return self._left <= 0

    def add(self, took_ns: int, tick_ns: int, share: float = _SCAN_SHARES[0], found: int = 0) -> None:
        """Account for a tick of `tick_ns` whose scan took `took_ns` and `found` so many waits; -1 if it had none.

        Scans may take `share` of the time, unless it costs more to leave them out.
        """
        if took_ns < 0:
            self._left -= 1
            return
        if self.took_ns < 0:
            self.took_ns = took_ns
        else:
            self.took_ns += (took_ns - self.took_ns) // _SCAN_WEIGHT
        every = ceil(self.took_ns / (share * max(1, tick_ns))) if took_ns > found * _MOVE_NS else 1
        self.every = max(1, min(_SCAN_EVERY_MAX, every))
        self._left = self.every - 1


class ThinnedMeter:
    """Measures what is left out."""

    def __init__(self) -> None:
        self._waits = self._waits_ns = 0
        self._since_ns = 0

    def read(self, at_ns: int, control: BudgetControl, requested_ns: int, cpus: Sequence[Thinning]) -> Thinned:
        """Return what was left out since the last call. `requested_ns`: the minimum of the filters."""
        min_ns = control.min_ns(requested_ns)
        raised = [raised_ns for one in cpus if (raised_ns := _raised_min_ns(min_ns, _level(one, at_ns))) > requested_ns]
        waits, waits_ns = sum(one.waits for one in cpus), sum(one.waits_ns for one in cpus)
        new, self._waits, self._waits_ns = (waits - self._waits, waits_ns - self._waits_ns), waits, waits_ns
        if not raised and not control.level and not new[0]:
            self._since_ns = 0
        elif not self._since_ns:
            self._since_ns = at_ns
        return Thinned(control.level, max(raised, default=0), len(raised), *new, self._since_ns, control.is_over)


def _level(one: Thinning, at_ns: int) -> int:
    """Return the level of a CPU, which is lowered only at the next wait there."""
    return max(0, one.level - max(0, at_ns - one.since_ns) // NS_PER_S)


def _raised_min_ns(min_ns: int, level: int) -> int:
    """Return the minimum of a CPU that has doubled it `level` times, as raised_min_ns() in bpf/thinning.c."""
    raised_ns = max(min_ns, layout.LOWEST_MIN_NS) << level
    return min(raised_ns, max(min_ns, layout.THIN_BELOW_NS)) if level else min_ns
