"""Keeps offtop to its CPU budget: fewer stacks and task scans while it uses more, all of them again afterwards."""

from collections.abc import Sequence
from math import ceil, isinf, log2
from typing import NamedTuple

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
_AVERAGE_S = 3.0
"""Time constant of the moving average of the load."""
_OVER_S = 2.5
"""A use above the budget for this long raises the level."""
_UP_AFTER_S = 1.5
"""Time that a level gets to show its effect before the next one is tried."""
_DOWN_AFTER_S = 3.0
_DOWN_BELOW = 0.7
"""Part of the budget below which the level is lowered."""
_REFERENCE_S = 4.0
"""Time after a change of the level in which the load there is measured, to be compared with later."""
_FEWEST_LEFT_OUT = 50.0
"""Fewer waits left out per second do not show how the load changes."""
_TOO_SOON_S, _TOO_SOON_TICKS = 30.0, 2.5
"""A level that has to be raised again so soon after it was lowered, in seconds and in ticks, was lowered in vain."""
_RETRY_S, _LONGEST_S = 150.0, 300.0
"""Time until a level that was lowered in vain is lowered again although the load seems the same; doubled each time, up
to the longest."""
_OVER_UNTIL = 0.9
"""Part of the budget below which offtop no longer reports that it is over budget."""


class _Load(NamedTuple):
    """What a level costs, and how much it leaves out."""

    used_pct: float = 0.0
    """CPU use of offtop's processes."""
    left_out: float = 0.0
    """Waits without a stack, per second."""


class _LowerLevel(NamedTuple):
    """What is known of a level below the current one."""

    used_pct: float = 0.0
    """CPU use when it was left, scaled with the load since then."""
    was_tried: bool = False
    """It was returned to in vain, so it is not tried again before the load has changed."""


class BudgetControl:
    """Chooses a level of detail from offtop's own CPU use, 0 for all of it.

    A low use at a level does not show that a lower level can be afforded, because the level may save most of it. So
    each level is lowered once to try; if that was in vain, it is lowered again only when the load has fallen, as far as
    the CPU use and the waits left out at the current level show it. Otherwise the level would go back and forth.
    """

    def __init__(self, budget_pct: float, at_ns: int) -> None:
        """`budget_pct`: percent of one CPU for offtop's processes; math.inf: no limit."""
        self._budget_pct = budget_pct
        self.level = 0
        self._at_ns = self._changed_ns = at_ns
        self._lowered_ns = 0
        """When the level was lowered last."""
        self._warm_ns = at_ns + int(_START_S * NS_PER_S)
        self._is_new_level = False
        """No tick has ended yet since the level was changed."""
        self._over_s = 0.0
        """For how long the use has been above the budget."""
        self._average = _Load()
        """At the current level."""
        self._reference = _Load()
        """The largest average soon after the level was changed."""
        self._lower: list[_LowerLevel] = [_LowerLevel()] * HIGHEST_LEVEL
        self._retry_s = _RETRY_S
        self.is_over = False
        """Less detail does not help: this is the highest level, or the BPF programs alone use more than the budget."""

    @property
    def stacks_ns(self) -> int:
        """Time per second that each CPU may spend on stacks."""
        return NO_LIMIT_NS if isinf(self._budget_pct) else int(STACK_SHARE * self._budget_pct / 100 * NS_PER_S)

    @property
    def scan_share(self) -> float:
        """Share of the time that task scans may take."""
        return _SCAN_SHARES[self.level]

    def min_ns(self, requested_ns: int) -> int:
        """Return the minimum at this level. Waits of layout.THIN_BELOW_NS or more always get stacks."""
        doublings = max(0.0, log2(layout.THIN_BELOW_NS / max(requested_ns, layout.LOWEST_MIN_NS)))
        return _raised_min_ns(requested_ns, ceil(doublings * min(self.level, _MIN_LEVELS) / _MIN_LEVELS))

    def add(self, at_ns: int, used_pct: float, left_out: int = 0, counting_pct: float = 0.0) -> None:
        """Account for a tick that ended at `at_ns`, all of it at the current level.

        In it offtop's processes used `used_pct` of a CPU, and `left_out` waits got no stack. `counting_pct`: use of the
        BPF programs.
        """
        tick_s, self._at_ns = max(1e-9, (at_ns - self._at_ns) / NS_PER_S), at_ns
        held_s = (at_ns - self._changed_ns) / NS_PER_S
        self._note_load(_Load(used_pct, left_out / tick_s), tick_s, held_s)
        budget_pct = self._budget_pct
        self._over_s = self._over_s + tick_s if used_pct > budget_pct else 0.0
        if at_ns < self._warm_ns or isinf(budget_pct):
            return
        least_pct = max(counting_pct, self._average.used_pct if self.level == HIGHEST_LEVEL else 0.0)
        self.is_over = least_pct > budget_pct * (_OVER_UNTIL if self.is_over else 1.0)
        most_pct = max(used_pct, self._average.used_pct)
        if used_pct > budget_pct:
            if self._over_s >= _OVER_S and held_s >= _UP_AFTER_S and self.level < HIGHEST_LEVEL:
                self._raise(most_pct, held_s < max(_TOO_SOON_S, _TOO_SOON_TICKS * tick_s))
        elif self.level and most_pct < _DOWN_BELOW * budget_pct and held_s >= _DOWN_AFTER_S:
            self._try_lower(held_s)

    def _note_load(self, load: _Load, tick_s: float, held_s: float) -> None:
        # What was before a change says nothing about the new level.
        weight = 1.0 if self._is_new_level else min(1.0, tick_s / _AVERAGE_S)
        (was_pct, was_left_out), (used_pct, left_out) = self._average, load
        average = _Load(was_pct + (used_pct - was_pct) * weight, was_left_out + (left_out - was_left_out) * weight)
        if self._is_new_level or held_s <= _REFERENCE_S:
            most_pct, most_left_out = self._reference
            self._reference = _Load(max(most_pct, average.used_pct), max(most_left_out, average.left_out))
        self._average = average
        self._is_new_level = False

    def _raise(self, used_pct: float, is_soon: bool) -> None:
        """Raise the level, which used `used_pct` of a CPU. `is_soon`: soon after the last change."""
        was_in_vain = is_soon and self._lowered_ns == self._changed_ns
        self._retry_s = min(_LONGEST_S, 2 * self._retry_s) if was_in_vain else _RETRY_S
        self._lower[self.level] = _LowerLevel(used_pct, was_in_vain)
        self._change(1)
        self._reference = _Load(left_out=self._average.left_out)  # a higher level leaves out no less

    def _try_lower(self, held_s: float) -> None:
        """Lower the level if that was not tried before, or the load has fallen, or after a long time."""
        below, ratio = self._lower[self.level - 1], self._load_ratio
        if not below.was_tried or below.used_pct * ratio < _DOWN_BELOW * self._budget_pct:
            self._lower = [one._replace(used_pct=one.used_pct * ratio) for one in self._lower]
        elif held_s >= self._retry_s:
            self._lower = [_LowerLevel()] * HIGHEST_LEVEL
        else:
            return
        self._change(-1)
        self._lowered_ns, self._reference = self._changed_ns, _Load()

    def _change(self, by: int) -> None:
        self.level += by
        self._changed_ns, self._is_new_level = self._at_ns, True

    @property
    def _load_ratio(self) -> float:
        """What is left of the load since the level was changed."""
        used_pct, left_out = self._reference
        ratio = self._average.used_pct / max(1e-9, used_pct)
        if left_out >= _FEWEST_LEFT_OUT:
            ratio = min(ratio, self._average.left_out / left_out)
        return min(1.0, ratio)


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
