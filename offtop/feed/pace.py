"""Pace reads a Source at regular times: the first tick comes early, the others after whole delays."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from threading import Condition
from time import monotonic_ns
from typing import Protocol

from offtop.feed.source import Source
from offtop.feed.suspect_watch import SuspectWatch
from offtop.model.classify.suspect import NOTHING_FOUND
from offtop.model.outliers.detector import OutlierDetector
from offtop.model.values.outlier import Outlier
from offtop.model.values.snapshot import Snapshot
from offtop.model.windows.history import History, HistoryTick
from offtop.units import NS_PER_S

FIRST_TICK_NS = NS_PER_S // 4
"""Time from the first reading to the first tick, shorter than a delay, so that there is soon something to see."""
_DRAIN_NS = NS_PER_S
"""Longest time without draining the BPF maps, which have room for thousands of exits."""


class Recorder(Protocol):
    def add(self, snapshot: Snapshot) -> None: ...


class Alarm(Protocol):
    def add(self, outliers: Sequence[Outlier]) -> None: ...


class Pace:
    """Reads a source into a history, in the thread that iterates `ticks`.

    The other methods are thread-safe.
    """

    def __init__(
        self,
        source: Source,
        history: History,
        delay_ns: int,
        first_tick_ns: int = FIRST_TICK_NS,
        detector: OutlierDetector | None = None,
        suspects: SuspectWatch | None = None,
        prepare: Callable[[Snapshot], None] = lambda _: None,
    ) -> None:
        """`detector`: finds outliers; None: there are no triggers, or this is a recording.

        `suspects`: finds the threads that others wait for; None: that is not needed. `prepare` is called with each
        snapshot before anything judges its waits, so that it can wait for names.
        """
        self._source = source
        self._detector = detector
        self._suspects = suspects
        self._prepare = prepare
        self.alarm: Alarm | None = None
        """Receives the outliers of each tick."""
        self.outliers: Sequence[Outlier] = ()
        """Outliers of the last tick."""
        self._history = history
        self._delay_ns = delay_ns
        self._first_tick_ns = first_tick_ns
        self.recorder: Recorder | None = None
        """Receives each snapshot. Any thread may set it."""
        self._changed = Condition()
        self._stopped = False

    def ticks(self) -> Iterator[HistoryTick]:
        """Yield each tick when it is read, until the source ends or `stop`.

        Errors of the source are passed on.
        """
        for snapshot in self._snapshots():
            try:
                self._prepare(snapshot)
            except KeyboardInterrupt:
                if self.recorder is not None:
                    self.recorder.add(snapshot)
                raise
            tick = self._history.add(snapshot)
            found = self._suspects.tick(self._history) if tick and self._suspects else NOTHING_FOUND
            if tick is not None and self._detector is not None:
                sentence = self._suspects.sentence if self._suspects else str
                snapshot = replace(snapshot, outliers=self._detector.tick(snapshot, tick, found, sentence))
            recorder = self.recorder
            if recorder is not None:
                recorder.add(snapshot)
            self.outliers = snapshot.outliers
            if self.alarm is not None:
                self.alarm.add(snapshot.outliers)
            if tick is not None:
                yield tick

    def _snapshots(self) -> Iterator[Snapshot]:
        """Yield each snapshot when it is read.

        A late reading does not delay later ones: missed ticks make the next window longer.
        """
        self._source.set_thresholds(self._detector)
        due_ns: int | None = monotonic_ns()
        is_first = True
        while due_ns is not None and not self._stopped:
            snapshot = self._source.read()
            if snapshot is None:
                return
            yield snapshot
            if not self._source.is_elsewhere:
                due_ns = self._wait_after(due_ns, is_first)
            is_first = False

    def _wait_after(self, last_ns: int, is_first: bool) -> int | None:
        """Wait until the next reading, one delay after `last_ns`.

        Return its due time; None if stopped.
        """
        drained_ns = last_ns
        while not self._stopped:
            with self._changed:
                delay_ns = min(self._first_tick_ns, self._delay_ns) if is_first else self._delay_ns
                due_ns = last_ns + delay_ns
                now_ns = monotonic_ns()
                late_ns = now_ns - due_ns
                if late_ns >= 0:
                    return due_ns + late_ns // delay_ns * delay_ns
                # Spread drains evenly, so that none comes right before the reading.
                drain_ns = drained_ns + (due_ns - drained_ns) // max(1, -((drained_ns - due_ns) // _DRAIN_NS))
                if now_ns < drain_ns:
                    self._changed.wait((drain_ns - now_ns) / NS_PER_S)
                    continue
            self._source.drain()  # without the lock, because the screen may wait for it
            drained_ns = now_ns
        return None

    def set_delay(self, delay_ns: int) -> None:
        """Change the delay; it already applies to the current tick."""
        with self._changed:
            self._delay_ns = delay_ns
            self._changed.notify()
        self._source.set_delay(delay_ns)

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()
