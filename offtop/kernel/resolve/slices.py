"""Runs long work, such as a search of all open files, a slice at a time, in a thread that has other work."""

import time
from collections.abc import Iterator

_SLICE_S = 0.02
_REST_S, _REST_TIMES = 3.0, 50
"""Minimum time from the end of the work until it starts again: in seconds, and as a multiple of its CPU time."""


class SlicedWork:
    """Runs an iterator to its end, 20 ms of CPU time in each call of `advance`. For one thread."""

    def __init__(self) -> None:
        self._steps: Iterator[None] | None = None
        self._cpu_s = 0.0
        self._next_s = float("-inf")

    @property
    def may_begin(self) -> bool:
        """Whether no work is in progress, and the last one ended long enough ago."""
        return self._steps is None and time.monotonic() >= self._next_s

    def begin(self, steps: Iterator[None]) -> None:
        self._steps, self._cpu_s = steps, 0.0

    def advance(self) -> None:
        """Do a slice of the work in progress, if there is any."""
        if self._steps is None:
            return
        began_s, is_done = time.thread_time(), False
        while not is_done and time.thread_time() - began_s < _SLICE_S:
            is_done = next(self._steps, _END) is _END
        self._cpu_s += time.thread_time() - began_s
        if is_done:
            self._steps = None
            self._next_s = time.monotonic() + max(_REST_S, _REST_TIMES * self._cpu_s)


_END = object()
