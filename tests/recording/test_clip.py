"""A clip has everything that the history has of that time."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from offtop import paths
from offtop.model.classify.categories import is_periodic
from offtop.model.values.catalog import Catalog
from offtop.model.values.wake import FIRST_WAKE
from offtop.model.windows import stuck
from offtop.model.windows.breakdown import by_category
from offtop.model.windows.history import History, HistoryTick
from offtop.model.windows.window import between
from offtop.person import person
from offtop.recording import writer
from offtop.recording.replay import RecordedSource
from offtop.recording.writer import Recorder
from tests.model.windows.test_rebuilt import WindowContents, contents
from tests.ui.scripted import SHOP, WAKERS, ScriptedSource
from tests.ui.shown import CATEGORIES

SECOND = 10**9


@contextmanager
def demo() -> Generator[tuple[RecordedSource, History]]:
    """The demo, and a history of all of it."""
    source = RecordedSource(paths.demo(), categories=CATEGORIES.ids)
    history = History(CATEGORIES.idle, is_periodic)
    for snapshot in iter(source.read, None):
        history.add(snapshot)
    yield source, history
    source.close()


def numbers(tick: HistoryTick, begin_ns: int) -> WindowContents:
    return contents(replace(tick.window, catalog=Catalog()), begin_ns)


def test_clip_has_the_numbers_stacks_wakers_and_waits_in_progress_of_its_recording(tmp_path: Path) -> None:
    with demo() as (source, history):
        middle = history.last(1 << 62)[40]
        ticks = history.last(20 * SECOND, middle.at_ns)
        recorder = Recorder(tmp_path / "cut.offtop", source, person(), leave_bytes=0, past=True)
        for one in history.snapshots_of_last(20 * SECOND, middle.at_ns):
            recorder.add(one)
        assert recorder.close().startswith("recorded 20 ticks")
        played = RecordedSource(tmp_path / "cut.offtop", categories=CATEGORIES.ids)
        again, kept = History(CATEGORIES.idle, is_periodic), list[HistoryTick]()
        for snapshot in iter(played.read, None):
            made = again.add(snapshot)
            kept += [made] if made else []
        begin_ns, was, now = ticks[0].at_ns - ticks[0].span_ns, ticks[-1].header.catalog, kept[-1].header.catalog
        assert (played.host, len(kept)) == (source.host, 20)
        for tick, other in zip(ticks, kept, strict=True):
            assert numbers(other, begin_ns) == numbers(tick, begin_ns)
            assert by_category(other.breakdown) == by_category(tick.breakdown)
            assert in_progress(again, other) == in_progress(history, tick)
            for site, _ in other.window.each_site():
                for stack in (site.kernel, site.user):
                    names = [source.names.of(frame) for frame in was.stack(stack).frames]
                    assert [played.names.of(frame) for frame in now.stack(stack).frames] == names
                assert site.wake < FIRST_WAKE or now.wake(site.wake) == was.wake(site.wake)
                assert now.comm(site.thread) == was.comm(site.thread)
        played.close()


def in_progress(history: History, tick: HistoryTick) -> list[tuple[object, ...]]:
    waits = history.stuck(tick).waits
    assert all(one.age_ns(tick.at_ns) >= stuck.LEAST_AGE_NS for one in waits)
    return sorted((one.site, one.age_ns(tick.at_ns), one.bound, one.letter, one.call, one.arguments) for one in waits)


def test_clip_waits_for_a_slow_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_MOST_QUEUED", 2)
    source = ScriptedSource(SHOP)
    recorder = Recorder(tmp_path / "it.offtop", source, person(), leave_bytes=0, past=True)
    for second in range(61):
        recorder.add(source.after(second))
    assert recorder.close().startswith("recorded 60 ticks, ")
    assert recorder.skipped == 0
    source = RecordedSource(tmp_path / "it.offtop")
    spans = [between(a, b).span_ns for a, b in pairwise(iter(source.read, None))]
    assert spans == [SECOND] * 60


def test_clip_does_not_look_up_peers(tmp_path: Path) -> None:
    for past in (False, True):
        source = ScriptedSource(WAKERS)
        source.set_mode("chain", 2)
        recorder = Recorder(tmp_path / f"{past}.offtop", source, person(), leave_bytes=0, past=past)
        for second in range(3):
            recorder.add(source.after(second))
        recorder.close()
        assert any(source.sought) != past


def test_clip_without_a_tick_is_not_complete(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "it.offtop", ScriptedSource(SHOP), person(), leave_bytes=0)
    recorder.close()
    assert recorder.is_complete
    recorder._encoder.skipped = 1  # pyright: ignore[reportPrivateUsage]
    assert not recorder.is_complete
