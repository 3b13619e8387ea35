"""How much CPU time the walking of user stacks may take: what the screen and the readings leave of offtop's share."""

import threading

_LEAST_PART = 5
"""A fifth of the share is for walking whatever the rest takes: else stacks would never be whole on a busy screen."""
_SAVED_S = 0.5
"""What was not used can be used later, up to this: so much is there at the start, when every stack is new. Nor is more
than this owed: one slow binary keeps all others waiting for some ticks, and no longer."""


class Allowance:
    """Filled once a tick, and spent by the walks. For any thread."""

    def __init__(self, share_pct: float) -> None:
        """`share_pct`: of one CPU, for all that offtop does."""
        self.share_pct = share_pct
        self._left_s = _SAVED_S
        self._spent_s = self._since_s = 0.0
        self._lock = threading.Lock()

    @property
    def is_left(self) -> bool:
        return self._left_s > 0

    @property
    def spent_s(self) -> float:
        """Since the start."""
        return self._spent_s

    def spend(self, seconds: float) -> None:
        with self._lock:
            self._left_s = max(-_SAVED_S, self._left_s - seconds)
            self._spent_s += seconds

    def fill(self, tick_s: float, used_s: float) -> None:
        """A tick has passed, in which all of offtop, walks included, has used so much CPU time."""
        with self._lock:
            walked_s, self._since_s = self._spent_s - self._since_s, self._spent_s
            share_s = self.share_pct / 100 * tick_s
            rest_s = share_s - max(0.0, used_s - walked_s)
            self._left_s = min(_SAVED_S, self._left_s + max(rest_s, share_s / _LEAST_PART))
