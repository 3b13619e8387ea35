"""Each key does what help says, and a key that does nothing says so."""

from dataclasses import replace

import pytest

from offtop.errors import KernelError
from offtop.model.book import ThreadKey
from offtop.model.snapshot import Filters
from offtop.model.view import SINCE_START, View
from offtop.ui.keys import KEYS
from tests.ui.scripted import MS, ScriptedSource
from tests.ui.shown import QUICK_NS, asynchronous, screen, shown, until

CONNECTION, WRITER = ThreadKey(4242, 4268), ThreadKey(4242, 4251)


@asynchronous
async def test_down_and_up_choose_a_category_and_the_list_follows() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        assert app.view.category == ""
        await pilot.press("down")
        assert app.view.category == "lock"
        assert any("processes waiting on: lock" in line for line in screen(app))
        await pilot.press("j", "j", "k")
        assert app.view.category == "fsync"
        await pilot.press("end")
        assert app.view.category == "short"
        await pilot.press("home", "up")
        assert app.view.category == ""


@asynchronous
async def test_enter_goes_down_to_a_thread_and_escape_up_again() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        await pilot.press("down", "enter")
        assert (app.view.in_list, app.view.pid) == (True, None)
        await pilot.press("enter")
        assert app.view.pid == 4242
        assert any("threads of mysqld(4242) waiting on: lock" in line for line in screen(app))
        await pilot.press("enter")
        assert app.view.thread == CONNECTION
        assert screen(app)[4].startswith("All > lock > mysqld(4242) > connection(4268)")
        assert any("futex_do_wait" in line for line in screen(app))
        seen: list[tuple[object, ...]] = []
        for _ in range(5):
            await pilot.press("escape")
            seen.append((app.view.thread, app.view.pid, app.view.in_list, app.view.category))
        assert seen == [
            (None, 4242, True, "lock"),
            (None, None, True, "lock"),
            (None, None, False, "lock"),
            (None, None, False, ""),
            (None, None, False, ""),
        ]


@asynchronous
async def test_tab_goes_to_the_list_and_back_and_moves_there() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        await pilot.press("tab", "down")
        assert (app.view.category, app.view.cursor) == ("", 3100)
        await pilot.press("pagedown")
        assert app.view.cursor == 977
        await pilot.press("pageup")
        assert app.view.cursor == 4242
        await pilot.press("shift+tab", "down")
        assert app.view.category == "lock"


@asynchronous
async def test_in_a_thread_down_goes_to_the_next_thread() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        await pilot.press("tab", "enter", "enter", "down")
        assert app.view.thread == WRITER
        assert any("jbd2_log_wait_commit" in line for line in screen(app))


@asynchronous
async def test_h_lists_threads_of_all_processes() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        await pilot.press("H")
        assert app.picture is not None
        assert [row.key for row in app.picture.rows.rows] == [CONNECTION, (3100, 3107), WRITER, (977, 977)]
        await pilot.press("H")
        assert [row.key for row in app.picture.rows.rows] == [4242, 3100, 977]


@asynchronous
async def test_a_pin_is_on_top_at_once_and_p_takes_it_off() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        await pilot.press("tab", "end", "p")
        assert app.view.pin == 977
        assert app.picture is not None
        assert app.picture.rows.rows[0].key == 977
        assert any(line.startswith(">*") and "postgres" in line for line in screen(app))
        await pilot.press("p")
        assert app.view.pin is None


@asynchronous
async def test_p_without_a_row_says_what_it_wants() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        await pilot.press("p")
        assert "p pins a process or thread: TAB goes to their list" in screen(app)


@asynchronous
async def test_f_narrows_the_kernels_filter_to_the_pin_and_widens_it_again() -> None:
    source = ScriptedSource()
    async with shown(source) as (app, pilot):
        await pilot.press("F")
        assert (source.filters, app.view.narrowed) == (Filters(), False)
        assert "nothing is pinned" in screen(app)[-2]
        await pilot.press("tab", "p", "F")
        assert source.filters == Filters(pids=(4242,))
        await pilot.press("F")
        assert source.filters == Filters()
        await pilot.press("F", "p")
        assert (source.filters, app.view.pin, app.view.narrowed) == (Filters(), None, False)
        await pilot.press("H", "tab", "tab", "p", "F")
        assert source.filters == Filters(tids=(4268,))


@asynchronous
async def test_what_the_source_refuses_is_said_and_changes_nothing() -> None:
    source = ScriptedSource()
    async with shown(source) as (app, pilot):
        source.refuses = KernelError("this is a recording: it cannot be filtered anew")
        await pilot.press("tab", "p", "F")
        assert not app.view.narrowed
        assert "this is a recording: it cannot be filtered anew" in screen(app)


@pytest.mark.parametrize("key", ["space", "z", "Z"])
@asynchronous
async def test_a_paused_picture_stays_while_the_measuring_goes_on(key: str) -> None:
    source = ScriptedSource(ticks=3)
    async with shown(source) as (app, pilot):
        await pilot.press(key)
        assert app.view.paused_at_ns is not None
        before = screen(app)
        source.go_on(to=8)
        await until(lambda: app.picture is not None and app.picture.behind_ns == 5 * 1_000 * MS)
        await pilot.pause()
        after = screen(app)
        assert "PAUSED -5s" in after[0]
        assert after[1:] == before[1:]
        await pilot.press("down")
        assert app.picture is not None and app.picture.newest.number == 3
        await pilot.press(key)
        assert app.picture.newest.number == 8
        assert "LIVE" in screen(app)[0]


@asynchronous
async def test_w_steps_through_the_spans() -> None:
    async with shown(ScriptedSource(ticks=75)) as (app, pilot):
        heads: list[str] = []
        for _ in range(4):
            heads.append(screen(app)[0].partition("off-CPU|")[2].rpartition("  LIVE")[0].strip())
            await pilot.press("w")
        assert heads == ["window 10s", "window 1m", "since start 75s", "window 1s"]
        assert app.view.span_ns != SINCE_START


@asynchronous
async def test_waiting_is_the_same_over_every_span_of_a_steady_load() -> None:
    async with shown(ScriptedSource(ticks=75)) as (app, pilot):
        for _ in range(4):
            await pilot.press("w")
            assert app.picture is not None
            assert app.picture.shown.total_ns * 10 // app.picture.span_ns == 7
            assert [row.key for row in app.picture.rows.rows] == [4242, 3100, 977]
            assert app.picture.categories.rows[0].part.max_ns == 300 * MS


@asynchronous
async def test_i_shows_what_looks_idle() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        assert "+2.00 idle hidden (i)" in screen(app)[1]
        await pilot.press("i")
        assert "idle shown (i)" in screen(app)[1]
        assert any("~poll" in line for line in screen(app))


@asynchronous
async def test_each_sort_key_and_the_next_column_and_the_other_way_round() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        seen: list[str] = []
        for key in ("M", "T", "E", "P", ">", "<", "<"):
            await pilot.press(key)
            seen.append(app.view.sort)
        assert seen == ["MAX", "TOTAL", "EV/S", "WAITING", "MAX", "WAITING", "PID"]
        assert app.picture is not None
        assert [row.key for row in app.picture.rows.rows] == [977, 3100, 4242]
        await pilot.press("R")
        assert [row.key for row in app.picture.rows.rows] == [4242, 3100, 977]
        assert "sort PID reversed" in screen(app)[4]


@asynchronous
async def test_d_asks_for_the_delay_and_takes_no_nonsense() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        await pilot.press("d")
        assert "seconds between two readings, 0.1 to 60" in screen(app)[-2]
        await pilot.press(*"abc", "enter")
        assert "'abc' is no delay from 0.1 to 60 s" in screen(app)[-2]
        await pilot.press(*"61", "enter")
        assert "'61' is no delay from 0.1 to 60 s" in screen(app)[-2]
        assert app.view.delay_ns == QUICK_NS
        await pilot.press(*"2.5", "enter")
        assert app.view.delay_ns == 2_500 * MS
        assert "LIVE 2.5s" in screen(app)[0]
        await pilot.press("d", "escape")
        assert app.view.delay_ns == 2_500 * MS
        assert "seconds between" not in screen(app)[-2]


@asynchronous
async def test_a_new_delay_counts_at_once() -> None:
    source = ScriptedSource(ticks=1)
    async with shown(source, view=View(delay_ns=60_000 * MS)) as (app, pilot):
        source.go_on(to=3)
        await pilot.press("d", *"0.1", "enter")
        await until(lambda: app.picture is not None and app.picture.newest.number == 3)


@asynchronous
async def test_m_asks_for_the_minimum_and_tells_the_source() -> None:
    source = ScriptedSource()
    async with shown(source) as (app, pilot):
        await pilot.press("m", "x", "enter")
        assert "'x' is no length of time" in screen(app)[-2]
        await pilot.press(*"200us", "enter")
        assert source.filters.min_ns == 200_000
        await pilot.press("m", "2", "enter")
        assert source.filters.min_ns == 2_000_000
        await pilot.press("m", "0", "enter")
        assert source.filters.min_ns == 0
        await pilot.press("m", "enter")
        assert source.filters.min_ns == 0
        assert app.view.filters.min_ns == 0


@asynchronous
async def test_while_a_question_is_asked_letters_are_its_answer() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        await pilot.press("d", "q", "i", "tab")
        assert not app.view.idle_shown
        assert app.is_running
        await pilot.press("ctrl+c")
        assert app.return_code == 0


@pytest.mark.parametrize("key", ["?", "h", "f1"])
@asynchronous
async def test_help_names_every_key_every_category_and_this_session(key: str) -> None:
    async with shown(ScriptedSource(), size=(100, 200)) as (app, pilot):
        await pilot.press(key)
        await pilot.pause()
        text = "\n".join(screen(app))
        for row in KEYS:
            assert row.shown in text
        for category in ("lock", "disk-read", "run-queue", "short", "other"):
            assert f"\n {category} " in text
        assert "About this session" in text
        assert "6.18.0" in text
        await pilot.press("escape")
        await pilot.pause()
        assert any("CATEGORY" in line for line in screen(app))


@asynchronous
async def test_help_scrolls_and_q_leaves_it_without_leaving_offtop() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        await pilot.press("?")
        await pilot.pause()
        top = screen(app)
        await pilot.press("pagedown", "down")
        await pilot.pause()
        assert screen(app) != top
        await pilot.press("home")
        await pilot.pause()
        assert screen(app) == top
        await pilot.press("q")
        await pilot.pause()
        assert app.is_running
        assert any("CATEGORY" in line for line in screen(app))


@asynchronous
async def test_an_unknown_key_says_so_until_the_next_key() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        await pilot.press("Q")
        assert "no action on 'Q'; ? for help" in screen(app)
        await pilot.press("down")
        assert "no action on 'Q'; ? for help" not in screen(app)


@pytest.mark.parametrize("key", ["q", "f10", "ctrl+c", "ctrl+q"])
@asynchronous
async def test_quit(key: str) -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        await pilot.press(key)
        assert app.return_code == 0
        assert app.return_value == 0


@asynchronous
async def test_keys_before_the_first_tick_do_no_harm() -> None:
    source = ScriptedSource(ticks=0)
    view = replace(View(), delay_ns=QUICK_NS)
    async with shown(source, view=view, ticks=0) as (app, pilot):
        every = [
            key for row in KEYS for key in row.keys.split(",") if row.action not in ("leave_offtop", "suspend_process")
        ]
        await pilot.press(*every)
        assert app.is_running


@pytest.mark.parametrize("key", ["q", "f10", "ctrl+c", "ctrl+q", "escape"])
@asynchronous
async def test_a_quitting_key_closes_the_help_and_not_offtop(key: str) -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        await pilot.press("h")
        assert len(app.screen_stack) == 2
        await pilot.press(key)
        assert len(app.screen_stack) == 1
        assert app.is_running


@asynchronous
async def test_switches_are_a_rate_though_the_window_is_all_since_the_start() -> None:
    async with shown(ScriptedSource(ticks=20)) as (app, pilot):
        await until(lambda: app.picture is not None and app.picture.newest.number == 20)
        for _ in range(2):
            await pilot.press("w")
        assert app.picture is not None
        assert (app.view.span_ns, app.picture.switches_per_s) == (SINCE_START, 81_200)
