"""Which stuck waits are listed: idle and short ones, those of a selection or a filter, and those of an earlier tick."""

import re
from pathlib import Path

import pytest

from offtop.model.values.snapshot import Filters
from offtop.model.viewmodel.view import CATEGORIES, View
from offtop.model.viewmodel.view import STUCK as PANE
from offtop.person import person
from offtop.recording.replay import RecordedSource
from offtop.recording.writer import Recorder
from offtop.ui.app import OfftopApp
from offtop.units import NS_PER_S
from tests.ui.scripted import STUCK, ScriptedSource, Waits
from tests.ui.shown import CATEGORIES as RULES
from tests.ui.shown import asynchronous, catching, crumb_line, go_on, running, screen, shown, until
from tests.ui.stuck_list import CONNECTION, LATE, WHO, chosen, line_with, rows, tids, title

# Idle and short waits


@asynchronous
async def test_i_toggles_idle_waits_and_hidden_ones_are_counted() -> None:
    async with shown(ScriptedSource(STUCK, ticks=12)) as (app, pilot):
        await pilot.press("5", "i")
        assert tids(app) == [900, 700, 4268, 901, 4270]
        assert title(app) == "stuck now: 5 threads wait for 100ms or longer"
        assert "~poll" in line_with(app, " 700 nginx")
        await pilot.press("i")
        assert tids(app) == [900, 4268, 901, 4270]
        assert title(app).endswith(", and 1 idle hidden (i)")


@asynchronous
async def test_only_idle_waits_are_summarized() -> None:
    async with shown(ScriptedSource([STUCK[4]], ticks=12)) as (app, pilot):
        await pilot.press("5")
        expected = " Nothing is stuck. 1 thread is idle, the longest for 1.2min (press i to see them)."
        assert line_with(app, "Nothing is stuck").startswith(expected[:79])
        await pilot.press("down", "enter", "y", "p")  # none of these has anything to work on
        assert (app.view.stuck.opened, app.view.pin, app.clipboard) == (False, None, "")


@asynchronous
async def test_empty_list_says_so() -> None:
    async with shown(ScriptedSource([], ticks=2)) as (app, pilot):
        await pilot.press("5")
        assert title(app) == "stuck now: 0 threads wait for 100ms or longer"
        assert " Nothing waits for 100ms or longer." in screen(app)
        await pilot.press("down", "up", "end", "enter", "p", "n", "y", "escape")
        assert app.view.focus == CATEGORIES


@asynchronous
async def test_waits_below_100_ms_are_not_listed() -> None:
    table = [Waits("p", 1, "p", 1, "lock", "futex", waits_on=True, begins=2), *STUCK]
    async with shown(ScriptedSource(table, ticks=2)) as (app, pilot):
        await pilot.press("5")
        assert tids(app) == [900, 4268, 901]
        await pilot.press("1")
        assert not any("0ns" in line for line in screen(app))


# Selection and filters


@asynchronous
async def test_only_the_selected_category_is_listed() -> None:
    async with shown(ScriptedSource(STUCK, ticks=12)) as (app, pilot):
        await pilot.press("down", "5")
        assert title(app) == "stuck now in lock: 1 thread waits for 100ms or longer"
        assert tids(app) == [4268]
        await pilot.press("1", "down", "5")
        assert (title(app).split(":")[0], tids(app)) == ("stuck now in stopped", [901])


@asynchronous
async def test_only_the_selected_process_is_listed() -> None:
    async with shown(ScriptedSource(STUCK, ticks=12)) as (app, pilot):
        await pilot.press("enter", "enter", "5")
        assert title(app).startswith("stuck now in mysqld(4242): 2 threads wait")
        assert tids(app) == [4268, 4270]
        await pilot.press("1", "enter", "5")
        assert title(app).startswith("stuck now in mysqld(4242) > connection(4268): 1 thread waits")


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("comm=gdb", [901]),
        ("proc=mysqld cat=fsync", [4270]),
        ("cat!=lock", [900, 901, 4270]),
        ("stack=row_search", [4268]),  # which was read from another thread
        ("!mysqld", [900, 901]),
        ("nobody", []),
        ("now>20s", [900]),
        ("now<20s cat=lock", [4268]),
    ],
)
@asynchronous
async def test_filter_applies_to_stuck_waits(text: str, left: list[int]) -> None:
    async with shown(ScriptedSource(STUCK, ticks=12)) as (app, pilot):
        await pilot.press("5", "backslash", *text, "enter")
        assert app.view.focus == PANE
        assert app.picture and [one.site.tid for one in app.picture.stuck.shown.waits] == left
        assert title(app).startswith(f"stuck now: {len(left)} thread")


@asynchronous
async def test_mutes_and_the_user_filter_apply_to_stuck_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offtop.ui.actions.filters.is_user", "ann".__eq__)
    async with shown(ScriptedSource(STUCK, ticks=12, who=WHO)) as (app, pilot):
        await pilot.press("down", "X", "5")
        assert tids(app) == [900, 901, 4270]
        await pilot.press("u", *"ann", "enter")
        await until(lambda: app.picture is not None and len(app.picture.stuck.shown.waits) == 1)
        assert tids(app) == [900]


@asynchronous
async def test_p_pins_and_unpins_the_thread_under_the_cursor() -> None:
    source = ScriptedSource(STUCK, ticks=12)
    async with shown(source) as (app, pilot):
        await pilot.press("5", "down", "p")
        assert app.view.pin == CONNECTION
        assert "pin connection(4268)" in crumb_line(app)
        await pilot.press("enter", "F")
        assert source.filters == Filters(tids=(4268,))
        await pilot.press("p")
        assert (app.view.pin, source.filters) == (None, Filters())


@asynchronous
async def test_details_of_listed_processes_are_looked_up_and_shown() -> None:
    source = ScriptedSource(STUCK, ticks=12, who=WHO)
    async with shown(source, (160, 50)) as (app, pilot):
        source.asked.clear()
        await pilot.press("5")
        assert source.asked[-1] == {900, 4242, 901}
        await pilot.press("down")
        assert "mysql.service" in line_with(app, " 4268 connection ")
        assert any(line.startswith("   mysql.service  mysql  /usr/sbin/mysqld") for line in screen(app))


@asynchronous
async def test_path_has_only_what_applies_to_a_list_of_all_processes() -> None:
    async with shown(ScriptedSource(STUCK, ticks=12), outlier_actions=catching("fsync.now > 1s")) as (app, pilot):
        await pilot.press("down", "enter", "enter")  # a category, and one of its processes
        path = crumb_line(app).partition("   ")[0]
        assert re.fullmatch(r"All > \w[\w-]* > \w+\(\d+\)", path)
        for key, applied in (("5", path), ("O", "All"), ("7", "All"), ("8", "All")):
            await pilot.press(key)
            assert crumb_line(app).partition("   ")[0] == applied
            await pilot.press(key)
            assert crumb_line(app).partition("   ")[0] == path


# Time


@asynchronous
async def test_earlier_tick_shows_its_stuck_waits() -> None:
    async with shown(ScriptedSource(STUCK, ticks=12)) as (app, pilot):
        await pilot.press("5", "[", "[", "[")
        assert "PAUSED -3s" in screen(app)[0]
        assert [(row[0], row[1]) for row in rows(app)] == [
            *(("<=109s", "900"), ("9.50s", "4268"), (">=9.00s", "901"))
        ]  # purge has not begun
        await pilot.press("[", "[", "end")
        assert chosen(app) == LATE
        assert rows(app)[-1][:4] == ["3.00s", "801", "late", "R"]
        assert any("R: runnable, waiting for a CPU, woken 500ms ago" in line for line in screen(app))
        await pilot.press("[")
        assert rows(app)[-1][:4] == ["2.00s", "801", "late", "S"]  # not yet woken
        await pilot.press("enter")
        assert any(line.startswith(" 2.00s late(801) of late(800)  since 02:00:04") for line in screen(app))
        await pilot.press("[", "[")
        assert any("This wait has ended" in line for line in screen(app))
        await pilot.press("0", "escape")
        assert tids(app) == [900, 4268, 901, 4270]


@asynchronous
async def test_replay_shows_stuck_waits(tmp_path: Path) -> None:
    scripted = ScriptedSource(STUCK, ticks=12)
    recorder = Recorder(tmp_path / "it.offtop", scripted, person(), leave_bytes=0)
    for second in range(13):
        recorder.add(scripted.after(second))
    recorder.close()
    source = RecordedSource(tmp_path / "it.offtop", begin_ns=scripted.after(12).taken_ns, speed=1)
    app = OfftopApp(source, View(focus=PANE), RULES)
    async with running(app, (80, 24)) as pilot:
        # It may show the tick before for a moment.
        await until(lambda: app.picture is not None and [row[0] for row in rows(app)][:1] == ["<=112s"])
        assert [(row[0], row[1]) for row in rows(app)] == [
            *(("<=112s", "900"), ("12.5s", "4268"), (">=12.0s", "901"), ("2.00s", "4270"))
        ]
        await pilot.press("[", "[", "[", "[", "[")
        await until(lambda: app.view.paused_at_ns is not None and 801 in tids(app))
        assert rows(app)[-1][:4] == ["3.00s", "801", "late", "R"]
        source.close()


@asynchronous
async def test_paused_screen_keeps_its_waits_in_progress_longer_than_the_history_does() -> None:
    late = Waits("late", 800, "late", 801, "lock", "futex_do_wait", waits_on=True, begins=4, ends=9)
    source = ScriptedSource([late, STUCK[-1]], ticks=8)
    async with shown(source, history_ns=10 * NS_PER_S) as (app, pilot):
        await pilot.press("space")
        await go_on(app, pilot, source, 30)
        await pilot.press("backslash", *"proc=late", "enter", "5")
        assert tids(app) == [801]
