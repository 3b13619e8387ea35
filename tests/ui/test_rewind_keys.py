"""Space, [ ] { } b 0 show any moment in all panes, from memory when live and from the file of a recording."""

import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

import pytest
from textual.pilot import Pilot

from offtop.model.viewmodel.view import CATEGORIES, View
from offtop.person import person
from offtop.recording.replay import RecordedSource
from offtop.recording.writer import Recorder
from offtop.ui.app import OfftopApp
from offtop.units import NS_PER_S
from tests.ui.scripted import MS, SHOP, START_NS, ScriptedSource, Waits
from tests.ui.shown import CATEGORIES as RULES
from tests.ui.shown import (
    QUICK_NS,
    asynchronous,
    column_titles,
    crumb_line,
    running,
    screen,
    shown,
    timeline,
    timeline_row,
    until,
)

PILE = (
    *SHOP,
    Waits("pile", 400, "late", 401, "lock", "futex_do_wait", ("pile_up", "main"), (900,), begins=40, ends=43),
)
"""SHOP with one more thread that waits for a lock in seconds 41 to 43."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A recording of 70 s of PILE, with a full snapshot every 10 s."""
    source = ScriptedSource(PILE, ticks=70)
    recorder = Recorder(tmp_path / "it.offtop", source, person(), leave_bytes=0, whole_ns=10 * NS_PER_S)
    for second in range(71):
        recorder.add(source.after(second))
    recorder.close()
    return tmp_path / "it.offtop"


@asynccontextmanager
async def played(
    file: Path, size: tuple[int, int] = (80, 24), speed: float = 1.0, begin: int | None = None
) -> AsyncGenerator[tuple[OfftopApp, Pilot[int]]]:
    begin_ns = None if begin is None else START_NS + begin * NS_PER_S
    source = RecordedSource(file, begin_ns=begin_ns, speed=speed)
    app = OfftopApp(source, View(), RULES)
    async with running(app, size) as pilot:
        try:
            await until(lambda: second(app) >= (begin or 1))
            yield app, pilot
        finally:
            source.close()


def second(app: OfftopApp) -> int:
    """Return which second of the recording is on the screen."""
    return (app.picture.common.newest.taken_ns - START_NS) // NS_PER_S if app.picture else -1


async def at(app: OfftopApp, pilot: Pilot[int], wanted: int) -> None:
    await until(lambda: second(app) == wanted and app.view.paused_at_ns is not None)
    await pilot.pause()


@asynchronous
async def test_zoom_is_kept_while_paused() -> None:
    async with shown(ScriptedSource(SHOP, ticks=3)) as (app, pilot):
        await pilot.press("tab", "x")
        for key in ("space", "[", "]", "space", "[", "0"):
            await pilot.press(key)
            assert "zoomed (x)" in crumb_line(app) and "CATEGORY" not in "".join(screen(app))
        await pilot.press("x")
        assert "CATEGORY" in column_titles(app, CATEGORIES)


@asynchronous
async def test_rewind_keys_step_through_time_and_0_returns_to_live() -> None:
    async with shown(ScriptedSource(PILE, ticks=100), view=View(delay_ns=QUICK_NS, span_ns=NS_PER_S)) as (app, pilot):
        for key, wanted in (("[", 99), ("[", 98), ("{", 38), ("]", 39), ("}", 99), ("]", 100)):
            await pilot.press(key)
            assert (second(app), app.view.paused_at_ns is not None) == (wanted, True)
        await pilot.press("0")
        assert (second(app), app.view.paused_at_ns) == (100, None)
        await pilot.press("0")
        assert "this is live already" in screen(app)[-2]


@asynchronous
async def test_b_goes_to_a_time_or_an_offset() -> None:
    async with shown(ScriptedSource(PILE, ticks=100), view=View(delay_ns=QUICK_NS, span_ns=NS_PER_S)) as (app, pilot):
        clock = datetime.fromtimestamp(START_NS // NS_PER_S + 42).strftime("%H:%M:%S")
        for typed, wanted in ((clock, 42), ("-5s", 37), ("+1m", 97), ("", 97)):
            await pilot.press("b", *typed, "enter")
            assert second(app) == wanted
        await pilot.press("b", *"noon", "enter")
        assert "'noon' is not a time: try 02:10:55" in screen(app)[-2]
        await pilot.press("escape")
        await pilot.press("b", *"-3h", "enter")
        assert second(app) == 1
        assert "the history begins here" in screen(app)[-2]
        await pilot.press("{")
        assert second(app) == 1


@asynchronous
async def test_all_panes_show_the_paused_moment() -> None:
    async with shown(ScriptedSource(PILE, ticks=100), (160, 50), view=View(delay_ns=QUICK_NS, span_ns=NS_PER_S)) as (
        app,
        pilot,
    ):
        assert not any("pile" in line for line in screen(app))
        clock = datetime.fromtimestamp(START_NS // NS_PER_S + 42).strftime("%H:%M:%S")
        await pilot.press("b", *clock, "enter", "*")
        now = screen(app)
        assert clock in now[0] and "PAUSED -58s" in now[0]
        assert any("400 pile" in line for line in now)
        assert any("pile_up" in line for line in now)
        await pilot.press("down", "enter", "down", "enter")
        assert "PAUSED -58s" in screen(app)[0]


@asynchronous
async def test_click_on_the_timeline_goes_to_that_moment() -> None:
    async with shown(ScriptedSource(PILE, ticks=100), view=View(delay_ns=QUICK_NS, span_ns=NS_PER_S)) as (app, pilot):
        assert timeline(app).startswith(" -5m ")
        row = timeline_row(app)
        await pilot.click("#head", offset=(5 + 60 - 12, row))  # 11 cells of 5 s before the last
        assert second(app) == 45
        await pilot.click("#head", offset=(5, row))
        assert second(app) == 1
        for x, y in ((2, row), (70, row), (30, 0)):
            await pilot.click("#head", offset=(x, y))
            assert second(app) == 1


@asynchronous
async def test_timeline_marks_the_paused_moment_and_shows_what_followed() -> None:
    async with shown(ScriptedSource(PILE, ticks=100), view=View(delay_ns=QUICK_NS, span_ns=NS_PER_S)) as (app, pilot):
        now = timeline(app)
        assert "^" not in now and " now " in now
        await pilot.press("b", *"-50s", "enter")
        held = timeline(app)
        at = held.index("^")
        assert at == 5 + 60 - 11  # ten cells of 5 s before the last
        assert (held[:at], held[at + 1 : 66]) == (now[:at], now[at + 1 : 66])
        assert " now " not in held
        await pilot.press("0")
        assert "^" not in timeline(app)


@asynchronous
async def test_window_since_the_start_ends_at_the_paused_moment() -> None:
    async with shown(ScriptedSource(PILE, ticks=100), view=View(delay_ns=QUICK_NS, span_ns=0)) as (app, pilot):
        for keys, ticks in ((("{",), 40), (("]", "]"), 42)):
            await pilot.press(*keys)
            assert app.picture and (app.picture.common.span_ns, second(app)) == (ticks * NS_PER_S, ticks)
        assert app.picture.common.totals.shown.total_ns == 42 * 1_000 * MS + 2 * 900 * MS


@asynchronous
async def test_replay_goes_to_any_moment_of_its_file(file: Path) -> None:
    async with played(file, begin=60) as (app, pilot):
        assert " now" not in timeline(app)
        assert screen(app)[0].startswith("offtop - RECORDED on db7 2026-11-21 02:01:0")
        await pilot.press("space")
        await pilot.pause()
        assert screen(app)[0].endswith("PAUSED")
        for key, wanted in (("[", 59), ("{", 1), ("]", 2), ("}", 62), ("}", 70), ("]", 70), ("{", 10)):
            await pilot.press(key)
            await at(app, pilot, wanted)
        assert any("10s of" in line or "window 10s" in line for line in screen(app)[:1])
        await pilot.press("b", *"+32s", "enter")
        await at(app, pilot, 42)
        assert any("400 pile" in line for line in screen(app))
        await pilot.press("0")
        await at(app, pilot, 70)
        assert not any("400 pile" in line for line in screen(app)) or "window" in screen(app)[0]


@asynchronous
async def test_replay_stops_while_paused_and_resumes_from_the_shown_moment(file: Path) -> None:
    async with played(file, speed=10.0) as (app, pilot):
        await until(lambda: second(app) > 3)
        await pilot.press("space")
        held, newest = second(app), None
        while newest != (newest := app.picture and app.picture.head.behind_ns):  # one more tick may be on its way
            await pilot.pause(0.5)
        assert second(app) == held < 60
        await pilot.press("[", "[", "space")
        await until(lambda: second(app) > held)


@asynchronous
async def test_replay_stays_at_its_end(file: Path) -> None:
    async with played(file, speed=10_000.0) as (app, pilot):
        await until(lambda: second(app) == 70)
        await until(lambda: "the end of the recording" in screen(app)[-2])
        assert screen(app)[0].endswith("ENDED")
        await pilot.press("[")
        await at(app, pilot, 69)


@asynchronous
async def test_keys_that_change_the_measurement_are_refused_in_a_replay(file: Path) -> None:
    async with played(file) as (app, pilot):
        for key, words in (("a", "this is a recording already"), ("d", "a recording keeps its own pace")):
            await pilot.press(key)
            assert words in screen(app)[-2]
        await pilot.press("m", "5", "enter")
        assert "A recording cannot be measured again" in screen(app)[-2]


@asynchronous
async def test_help_in_a_replay_says_where_and_when_it_was_recorded(file: Path) -> None:
    async with played(file) as (app, pilot):
        await pilot.press("question_mark")
        await pilot.pause()
        assert screen(app)[-1].startswith("RECORDED lines 1-23 of ")
        await pilot.press("end")
        assert any(line.startswith(" recorded") and "on db7, 2026-11-21 " in line for line in screen(app))


@pytest.mark.parametrize("width", [160, 80, 60, 40, 20])
@asynchronous
async def test_recorded_is_shown_at_every_size(file: Path, width: int) -> None:
    for height in (50, 24, 8, 1):
        async with played(file, (width, height)) as (app, _):
            assert "RECORDED"[: width - 10] in screen(app)[0], (width, height)


@asynchronous
async def test_iterations_count_from_the_begin_of_the_replay(file: Path) -> None:
    source = RecordedSource(file, begin_ns=START_NS + 50 * NS_PER_S, speed=20.0)
    app = OfftopApp(source, View(), RULES, iterations=5)
    async with running(app, (80, 24)):
        await until(lambda: app.return_value is not None)
    assert app.picture is not None and second(app) >= 54
    source.close()


@asynchronous
async def test_quitting_does_not_wait_for_a_paused_replay(file: Path) -> None:
    async with played(file) as (app, pilot):
        await pilot.press("space")
        app.exit(0)
    assert "offtop-poll" not in {thread.name for thread in threading.enumerate()}


@asynchronous
async def test_short_first_tick_is_stepped_over(tmp_path: Path) -> None:
    source = ScriptedSource(PILE, ticks=9)
    recorder = Recorder(tmp_path / "it", source, person(), leave_bytes=0)
    for at_s in (0, 1, 5, 6):
        recorder.add(source.after(at_s))
    recorder.close()
    async with played(tmp_path / "it") as (app, pilot):
        await pilot.press("space")
        for key, wanted in (("]", 5), ("]", 6), ("[", 5), ("[", 1), ("]", 5)):
            await pilot.press(key)
            await at(app, pilot, wanted)
        await pilot.press("0", "{", "{", "space")
        await until(lambda: app.view.paused_at_ns is None)


@pytest.mark.parametrize("key", ["space", "z", "Z"])
@asynchronous
async def test_paused_view_stays_while_measuring_continues(key: str) -> None:
    source = ScriptedSource(ticks=3)
    async with shown(source) as (app, pilot):
        await pilot.press(key)
        assert app.view.paused_at_ns is not None
        before = screen(app)
        source.go_on(to=8)
        await until(lambda: app.picture is not None and app.picture.head.behind_ns == 5 * 1_000 * MS)
        await pilot.pause()
        after = screen(app)
        assert "PAUSED -5s" in after[0]
        assert after[1:] == before[1:]
        await pilot.press("down")
        assert app.picture is not None and app.picture.common.newest.number == 3
        await pilot.press(key)
        await until(lambda: app.picture is not None and app.picture.common.newest.number == 8)
        assert "LIVE" in screen(app)[0]
