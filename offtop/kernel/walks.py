"""How often the walk of the waits in progress is made: each tick, or more seldom where it would cost too much."""

_MOST_PART = 20
"""The walk may take one part in so many of the time between two ticks: 50 ms of a second."""
_SELDOMEST = 10
_LATEST = 4
"""One walk counts a quarter in the average, so that one that was held up changes nothing."""


class Walks:
    """What walks took, and when the next one is due."""

    def __init__(self) -> None:
        self.took_ns = -1
        """On average of the latest; -1: none was made."""
        self.every = 1
        """It is made once in so many ticks."""
        self._left = 0

    @property
    def is_due(self) -> bool:
        return self._left <= 0

    def add(self, took_ns: int, tick_ns: int) -> None:
        """A tick of `tick_ns` has had a walk that took `took_ns`; -1: it had none."""
        if took_ns < 0:
            self._left -= 1
            return
        if self.took_ns < 0:
            self.took_ns = took_ns
        else:
            self.took_ns += (took_ns - self.took_ns) // _LATEST
        self.every = max(1, min(_SELDOMEST, -(-self.took_ns * _MOST_PART // max(1, tick_ns))))
        self._left = self.every - 1
