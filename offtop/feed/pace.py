"""The pace at which a Source is read: a first tick soon, then whole delays without drift."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from threading import Condition
from time import monotonic_ns
from typing import Protocol

from offtop.feed.source import Source
from offtop.model.outliers.detector import Judge
from offtop.model.values.outlier import Outlier
from offtop.model.values.snapshot import Snapshot
from offtop.model.windows.history import History, Kept
from offtop.units import NS_PER_S

FIRST_TICK_NS = NS_PER_S // 4
"""From the first reading to the first tick: there is something to see before a whole delay has passed."""
_DRAIN_NS = NS_PER_S
"""The longest time between two readings without a drain: the kernel's tables have room for thousands of exits."""


class Recorder(Protocol):
    def add(self, snapshot: Snapshot) -> None: ...


class Alarm(Protocol):
    def add(self, outliers: Sequence[Outlier]) -> None: ...


class Pace:
    """Reads `source` into `history`, in the thread that runs `ticks`; the other methods are for any thread."""

    def __init__(
        self,
        source: Source,
        history: History,
        delay_ns: int,
        first_tick_ns: int = FIRST_TICK_NS,
        judge: Judge | None = None,
    ) -> None:
        """`judge`: says which waits and ticks are outliers; None: nobody asks, or it was recorded."""
        self._source = source
        self._judge = judge
        self.alarm: Alarm | None = None
        """Is handed the outliers of each tick."""
        self.outliers: Sequence[Outlier] = ()
        """Of the last tick."""
        self._history = history
        self._delay_ns = delay_ns
        self._first_tick_ns = first_tick_ns
        self.recorder: Recorder | None = None
        """Is handed each snapshot that is read. May be set from any thread."""
        self._changed = Condition()
        self._stopped = False

    def ticks(self) -> Iterator[Kept]:
        """Each tick when it is read; ends with the source, or after `stop`. What the source raises is passed on."""
        for snapshot in self._snapshots():
            kept = self._history.add(snapshot)
            if kept is not None and self._judge is not None:
                snapshot = replace(snapshot, outliers=self._judge.tick(snapshot, kept))
            recorder = self.recorder
            if recorder is not None:
                recorder.add(snapshot)
            self.outliers = snapshot.outliers
            if self.alarm is not None:
                self.alarm.add(snapshot.outliers)
            if kept is not None:
                yield kept

    def _snapshots(self) -> Iterator[Snapshot]:
        """Each when it is read.

        A reading that comes late moves no later one: ticks that were missed make the next window longer.
        """
        self._source.catch(self._judge)
        due_ns: int | None = monotonic_ns()
        is_first = True
        while due_ns is not None and not self._stopped:
            snapshot = self._source.read()
            if snapshot is None:
                return
            yield snapshot
            if self._source.recorded is None:
                due_ns = self._wait_after(due_ns, is_first)
            is_first = False

    def _wait_after(self, last_ns: int, is_first: bool) -> int | None:
        """Return when the next reading is due, after the one of `last_ns`, with its time; None when stopped."""
        drained_ns = last_ns
        while not self._stopped:
            with self._changed:
                delay_ns = self._first_tick_ns if is_first else self._delay_ns
                due_ns = last_ns + delay_ns
                now_ns = monotonic_ns()
                late_ns = now_ns - due_ns
                if late_ns >= 0:
                    return due_ns + late_ns // delay_ns * delay_ns
                # In equal parts, so that none comes right before the reading.
                drain_ns = drained_ns + (due_ns - drained_ns) // max(1, -((drained_ns - due_ns) // _DRAIN_NS))
                if now_ns < drain_ns:
                    self._changed.wait((drain_ns - now_ns) / NS_PER_S)
                    continue
            self._source.drain()  # without the lock, for which a screen may wait
            drained_ns = now_ns
        return None

    def set_delay(self, delay_ns: int) -> None:
        """From the last tick on."""
        with self._changed:
            self._delay_ns = delay_ns
            self._changed.notify()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()
