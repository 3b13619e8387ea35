"""A source is first read early, then after whole delays without drift, until it is stopped."""

from threading import Event, Thread
from time import monotonic_ns, sleep

import pytest

from offtop.feed import pace as paces
from offtop.feed.pace import Pace
from offtop.model.classify.categories import is_periodic
from offtop.model.values.outlier import Thresholds
from offtop.model.values.snapshot import Snapshot
from offtop.model.windows.history import History
from tests.ui.scripted import ScriptedSource

MS = 1_000_000


class Clocked(ScriptedSource):
    """Records when it was read; one read may be slow."""

    def __init__(self, ticks: int, slow_at: int = -1) -> None:
        super().__init__(ticks=ticks, ends=True)
        self.began_ns = 0
        self.read_at_ns: list[int] = []
        self._slow_at = slow_at

    def set_thresholds(self, thresholds: Thresholds | None) -> None:
        self.began_ns = monotonic_ns()
        super().set_thresholds(thresholds)

    def read(self) -> Snapshot | None:
        self.read_at_ns.append(monotonic_ns())
        if len(self.read_at_ns) == self._slow_at:
            sleep(0.07)
        return super().read()


def history() -> History:
    return History((), is_periodic)


def test_each_reading_after_the_first_is_a_tick_until_the_source_ends() -> None:
    pace = Pace(Clocked(ticks=5), history(), 5 * MS, first_tick_ns=MS)
    assert [tick.number for tick in pace.ticks()] == [1, 2, 3, 4, 5]


def test_empty_source_has_no_tick() -> None:
    source = Clocked(ticks=-1)
    assert list(Pace(source, history(), MS).ticks()) == []


def test_readings_missed_during_a_slow_one_are_skipped() -> None:
    delay_ns = 20 * MS
    source = Clocked(ticks=8, slow_at=4)
    list(Pace(source, history(), delay_ns, first_tick_ns=delay_ns).ticks())
    _, *later = source.read_at_ns
    due = [1, 2, 3, 6, 7, 8, 9, 10]  # the fourth reading began at 3 and took 3.5 delays
    assert all(at_ns - source.began_ns >= step * delay_ns for at_ns, step in zip(later, due, strict=False))
    assert len(later) == 9


def test_what_was_measured_before_ctrl_c_is_recorded() -> None:
    snapshots: list[Snapshot] = []

    class Recording:
        def add(self, snapshot: Snapshot) -> None:
            snapshots.append(snapshot)

    def prepare(_: Snapshot) -> None:
        if len(snapshots) == 2:
            raise KeyboardInterrupt

    pace = Pace(Clocked(ticks=5), history(), MS, prepare=prepare)
    pace.recorder = Recording()
    with pytest.raises(KeyboardInterrupt):
        list(pace.ticks())
    assert len(snapshots) == 3


class Drained(Clocked):
    """Records when it was drained."""

    def __init__(self, ticks: int) -> None:
        super().__init__(ticks)
        self.drained_at_ns: list[int] = []

    def drain(self) -> None:
        self.drained_at_ns.append(monotonic_ns())


def test_source_is_drained_between_distant_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paces, "_DRAIN_NS", 160 * MS)
    source = Drained(ticks=3)
    list(Pace(source, history(), 440 * MS, first_tick_ns=120 * MS).ticks())
    first, second, *later = source.read_at_ns
    assert not [at_ns for at_ns in source.drained_at_ns if first < at_ns < second], "they are too close together"
    for read_ns, next_ns in zip([second, *later], later, strict=False):
        assert len([at_ns for at_ns in source.drained_at_ns if read_ns < at_ns < next_ns]) == 2


def test_first_tick_comes_no_later_than_after_one_delay() -> None:
    pace = Pace(Clocked(ticks=3), history(), 5 * MS, first_tick_ns=3_600_000 * MS)
    assert [tick.number for tick in pace.ticks()] == [1, 2, 3]


def test_new_delay_applies_at_once_and_stop_ends_the_wait() -> None:
    source = ScriptedSource(ticks=1_000)
    pace = Pace(source, history(), 3_600_000 * MS, first_tick_ns=MS)
    ticked, done = Event(), Event()

    def read() -> None:
        for tick in pace.ticks():
            if tick.number == 3:
                ticked.set()
        done.set()

    Thread(target=read, daemon=True).start()
    pace.set_delay(2 * MS)
    assert ticked.wait(10)
    pace.set_delay(3_600_000 * MS)
    pace.stop()
    assert done.wait(10)
    source.close()
