"""CPU budget for unwinding user stacks: what the rest of offtop leaves of its share."""

import threading

_LEAST_PART = 5
"""Unwinding gets at least a fifth of the share: otherwise stacks would never be complete if drawing takes all of it."""
_SAVED_S = 0.5
"""Limit of the budget in both directions. Unused time accumulates up to this; the budget starts with it, because every
stack is new then. Debt is limited, too, so that one slow binary delays all others by a few ticks at most."""
_USUAL_PCT, _LONGEST_PAUSE = 5.0, 10.0
"""Share with which the unwinding thread looks for work as often as it can use it, and the largest factor of pauses."""


class Allowance:
    """CPU time, refilled once per tick and spent by unwinding. Thread-safe."""

    def __init__(self, share_pct: float) -> None:
        """`share_pct`: percentage of one CPU for all of offtop."""
        self.share_pct = share_pct
        self._left_s = _SAVED_S
        self._spent_s = self._since_s = 0.0
        self._lock = threading.Lock()

    @property
    def is_left(self) -> bool:
        return self._left_s > 0

    @property
    def pause_factor(self) -> float:
        """How much longer than usual the unwinding thread rests: looking for work costs CPU time, too."""
        return max(1.0, min(_LONGEST_PAUSE, _USUAL_PCT / self.share_pct))

    @property
    def spent_s(self) -> float:
        """CPU time spent since the start."""
        return self._spent_s

    def spend(self, seconds: float) -> None:
        with self._lock:
            self._left_s = max(-_SAVED_S, self._left_s - seconds)
            self._spent_s += seconds

    def fill(self, tick_s: float, used_s: float) -> None:
        """Refill after a tick.

        `tick_s`: its length. `used_s`: the CPU time that all of offtop used in it, unwinding included.
        """
        with self._lock:
            unwinding_s, self._since_s = self._spent_s - self._since_s, self._spent_s
            share_s = self.share_pct / 100 * tick_s
            rest_s = share_s - max(0.0, used_s - unwinding_s)
            self._left_s = min(_SAVED_S, self._left_s + max(rest_s, share_s / _LEAST_PART))
