"""The list of stuck waits: opening and closing it, lines and cursor, waits that look alike, and sizes of the screen."""

import pytest
from rich.cells import cell_len

from offtop.model.values.catalog import Details, ThreadKey
from offtop.model.values.snapshot import Bound
from offtop.model.viewmodel import panes
from offtop.model.viewmodel.alike import Alike
from offtop.model.viewmodel.view import CATEGORIES, LIST, TREE, View
from offtop.model.viewmodel.view import STUCK as PANE
from offtop.model.windows.breakdown import Leaf
from tests.ui.scripted import STUCK, ScriptedSource, Waits
from tests.ui.shown import QUICK_NS, asynchronous, screen, shown, until
from tests.ui.stuck_list import CONNECTION, CONTROL, CP, GDB, LATE, WHO, chosen, line_with, rows, tids, title
from tests.ui.test_pictures import check

GROUP = Alike("db", "t*", Leaf("lock"), "futex", "S", -1, "")


# Opening and closing


@pytest.mark.parametrize("key", ["1", "5", "escape", "left", "backspace"])
@asynchronous
async def test_5_lists_stuck_waits_oldest_first_and_returns_to_the_previous_pane(key: str) -> None:
    async with shown(ScriptedSource(STUCK, ticks=12)) as (app, pilot):
        for focus in (CATEGORIES, LIST, TREE):
            await pilot.press({CATEGORIES: "up", LIST: "enter", TREE: "t"}[focus])
            await pilot.press("5")
            assert (app.view.focus, tids(app)) == (PANE, [900, 4268, 901, 4270])
            assert "|5 stuck|" in screen(app)[0]
            assert title(app) == "stuck now: 4 threads wait for 100ms or longer, and 1 idle hidden (i)"
            await pilot.press(key)
            assert app.view.focus == focus
            assert "|1 off-CPU|" in screen(app)[0]
            assert not any("stuck now" in line for line in screen(app))


@asynchronous
async def test_tab_leaves_the_list_and_5_returns_to_it() -> None:
    async with shown(ScriptedSource(STUCK, ticks=12)) as (app, pilot):
        await pilot.press("5", "down", "enter", "tab")
        assert app.view.focus == CATEGORIES
        await pilot.press("5")
        assert (chosen(app), len(rows(app))) == (CONNECTION, 4)


@asynchronous
async def test_screen_can_start_with_the_stuck_list() -> None:
    view = View(delay_ns=QUICK_NS, focus=PANE)
    async with shown(ScriptedSource(STUCK, ticks=12), view=view) as (app, pilot):
        assert tids(app) == [900, 4268, 901, 4270]
        await pilot.press("1")
        assert app.view.focus == CATEGORIES


@asynchronous
async def test_line_has_age_state_category_system_call_and_location() -> None:
    async with shown(ScriptedSource(STUCK, ticks=12), (160, 50)) as (app, pilot):
        await pilot.press("5")
        assert rows(app) == [
            ["<=112s", "900", "cp", "cp", "D", "disk-read", "io_schedule"],
            [
                *("12.5s", "4268", "connection", "mysqld", "S", "lock", "futex(0x7f1200004040,", "WAIT_PR…"),
                *("futex_do_wait", "<", "lock_wait", "<", "row_searc…"),
            ],
            [">=12.0s", "901", "gdb", "gdb", "t", "stopped", "ptrace_stop"],
            ["2.00s", "4270", "purge", "mysqld", "D", "fsync", "fsync(7)", "jbd2_log_wait_commit"],
        ]
        starts = {line_with(app, who).index(" D ") for who in (" 900 cp", " 4270 purge")}
        assert starts == {line_with(app, " S CATEGORY").index(" S ")}  # aligned with the column headers


@asynchronous
async def test_selected_wait_is_described_below_the_list() -> None:
    async with shown(ScriptedSource(STUCK, ticks=12), (100, 24)) as (app, pilot):
        await pilot.press("5")
        expected = [
            ("<=112s cp(900) of cp(900)  last had a CPU at 01:58:20, before offtop started", "D: waits, not woken"),
            ("12.5s connection(4268) of mysqld(4242)  since 01:59:59", "futex(0x7f1200004040, WAIT_PRIVATE, 2)"),
            (">=12.0s gdb(901) of gdb(901)  seen since 02:00:00, may be older", "t: stopped by a debugger"),
            ("2.00s purge(4270) of mysqld(4242)  since 02:00:10", "fsync(7)"),
        ]
        for first, second in expected:
            at = screen(app).index(line_with(app, f" {first}"))
            assert second in screen(app)[at + 1]
            await pilot.press("down")
        await pilot.press("up", "up")
        assert "   [k]futex_do_wait < lock_wait < row_search < main" in screen(app)


# Moving


@asynchronous
async def test_cursor_stays_with_its_thread() -> None:
    source = ScriptedSource(STUCK, ticks=7)
    async with shown(source) as (app, pilot):
        await pilot.press("5")
        assert (tids(app), chosen(app)) == ([900, 4268, 901, 801], CP)
        for key, wanted in (("down", CONNECTION), ("j", GDB), ("k", CONNECTION), ("end", LATE), ("down", LATE)):
            await pilot.press(key)
            assert chosen(app) == wanted
        for key, wanted in (("home", CP), ("up", CP), ("pagedown", LATE), ("pageup", CP)):
            await pilot.press(key)
            assert chosen(app) == wanted
        await pilot.press("end", "i")  # nginx appears in the second line
        assert (tids(app), chosen(app)) == ([900, 700, 4268, 901, 801], LATE)
        source.go_on(9)
        await until(lambda: app.picture is not None and app.picture.common.newest.number == 9)
        await pilot.pause()
        assert (tids(app), chosen(app)) == ([900, 700, 4268, 901], CP)  # late no longer waits


@asynchronous
async def test_waits_that_look_alike_are_one_row_and_enter_lists_them() -> None:
    pool = [Waits("db", 1, f"t{n}", n, "lock", "futex", waits_on=True, older_ms=900 - n) for n in range(2, 8)]
    other = Waits("db", 1, "t8", 8, "lock", "futex_other", waits_on=True, older_ms=500)
    async with shown(ScriptedSource([*pool, other], ticks=9)) as (app, pilot):
        await pilot.press("5")
        assert "7 threads wait" in line_with(app, "stuck now")
        assert [row[1:3] for row in rows(app)] == [["x6", "t*"], ["8", "t8"]]
        assert any("The oldest of 6 waits that look alike" in line for line in screen(app))
        await pilot.press("enter")
        assert (tids(app), "6 threads wait" in title(app)) == ([2, 3, 4, 5, 6, 7], True)
        assert "of t* at futex" in title(app)
        await pilot.press("down", "enter")
        assert any("t3(3) of db(1)" in line for line in screen(app))
        await pilot.press("escape", "escape")
        assert [row[1] for row in rows(app)] == ["x6", "8"]
        await pilot.press("plus")
        assert tids(app) == [2, 3, 4, 5, 6, 7, 8]
        await pilot.press("minus", "end")
        assert app.view.stuck.cursor == ThreadKey(1, 8)
        await pilot.press("slash", *"t5", "enter")
        assert tids(app) == [5], "a search looks at each wait"


@asynchronous
async def test_waits_in_different_containers_do_not_look_alike() -> None:
    pool = [Waits("db", pid, "db", pid, "lock", "futex", waits_on=True) for pid in range(2, 6)]
    source = ScriptedSource(pool, ticks=9)
    async with shown(source) as (app, pilot):
        assert app.picture
        app.picture.common.catalog.details |= {pid: Details(cgroup=f"/container-{pid % 2}") for pid in range(2, 6)}
        await pilot.press("5")
        assert [row[1] for row in rows(app)] == ["x2", "x2"]


@asynchronous
async def test_group_whose_waits_have_ended_says_so() -> None:
    pool = [Waits("db", 1, f"t{n}", n, "lock", "futex", waits_on=True, older_ms=900 - n) for n in range(2, 5)]
    source = ScriptedSource(pool, ticks=9)
    async with shown(source) as (app, pilot):
        await pilot.press("5", "enter")
        assert tids(app) == [2, 3, 4]
        await pilot.press("backslash", *"comm=other", "enter")
        assert any("These waits have ended, or a filter hides them (Esc goes back)." in line for line in screen(app))


@asynchronous
async def test_threads_that_wait_for_something_else_by_now_are_no_longer_the_opened_group() -> None:
    pool = [
        Waits("db", 1, f"t{n}", n, *where, waits_on=True, begins=begins, ends=ends, older_ms=500)
        for n in range(2, 5)
        for where, begins, ends in ((("lock", "futex"), 0, 5), (("pipe", "pipe_read"), 5, 20))
    ]
    source = ScriptedSource(pool, ticks=9)
    view = panes.stuck_entered(panes.at_stuck(View(delay_ns=QUICK_NS), ThreadKey(1, 2)), GROUP)
    async with shown(source, view=view) as (app, _):
        assert "of t* at futex: 0 threads wait" in title(app)
        assert any("These waits have ended" in line for line in screen(app))


@asynchronous
async def test_opened_waits_that_count_as_idle_by_now_have_not_ended() -> None:
    pool = [Waits("db", 1, f"t{n}", n, "poll", "do_epoll_wait", waits_on=True, older_ms=500) for n in range(2, 5)]
    view = panes.at_stuck(View(delay_ns=QUICK_NS), ThreadKey(1, 2))
    group = GROUP._replace(leaf=Leaf("poll"), place="do_epoll_wait")
    async with shown(ScriptedSource(pool, ticks=9), view=panes.stuck_entered(view, group)) as (app, pilot):
        assert any("These waits count as idle now (press i to see them; Esc goes back)" in line for line in screen(app))
        await pilot.press("i")
        assert (tids(app), "of t* at do_epoll_wait: 3 threads" in title(app)) == ([2, 3, 4], True)
        await pilot.press("enter", "i")
        assert any("This wait counts as idle now (press i to see it)." in line for line in screen(app))


@asynchronous
async def test_name_of_an_opened_group_cannot_control_the_terminal() -> None:
    names = [f"\x1b[2J{n}" for n in range(2, 5)]
    pool = [Waits("db", 1, name, n, "lock", "\x1b[3J", waits_on=True) for n, name in enumerate(names, 2)]
    async with shown(ScriptedSource(pool, ticks=9)) as (app, pilot):
        await pilot.press("5", "enter")
        assert "of \\x1b[*J* at \\x1b[3J: 3 threads wait" in title(app)
        assert not CONTROL.search("".join(screen(app)))


@asynchronous
async def test_long_list_scrolls_with_the_cursor() -> None:
    many = [Waits("p", 1, f"t{n}", n, "lock", "futex", waits_on=True, older_ms=50_000 - n) for n in range(1, 60)]
    async with shown(ScriptedSource(many, ticks=2)) as (app, pilot):
        await pilot.press("5", "plus")
        room = len(rows(app))
        assert tids(app) == [*range(1, room + 1)]
        await pilot.press("pagedown", "pagedown")
        assert app.view.stuck.cursor in {ThreadKey(1, tid) for tid in tids(app)}
        assert tids(app)[0] > 1
        await pilot.press("end")
        assert tids(app) == [*range(60 - room, 60)]
        below = screen(app).index(line_with(app, "t59(59) of p(1)"))
        await pilot.press("home", "down")
        for line in range(below, 22):
            await pilot.click(offset=(30, line))
            assert app.view.stuck.cursor == ThreadKey(1, 2)


# Sizes, and hostile names


@pytest.mark.parametrize("size", [(80, 24), (160, 50), (40, 10)])
@asynchronous
async def test_screens_match_the_stored_pictures(size: tuple[int, int]) -> None:
    async with shown(ScriptedSource(STUCK, ticks=12, who=WHO), size) as (app, pilot):
        await pilot.press("5", "down")
        await pilot.pause()
        check(f"stuck-{size[0]}x{size[1]}", screen(app))


@asynchronous
async def test_ascii_mode_draws_only_ascii() -> None:
    odd = STUCK[0]._replace(comm="h\u00e4nger", read=("\u4e2d\u6587",))
    async with shown(ScriptedSource([odd], ticks=12), ascii_only=True) as (app, pilot):
        await pilot.press("5")
        assert "".join(screen(app)).isascii()
        await pilot.press("enter")
        assert "".join(screen(app)).isascii()


@pytest.mark.parametrize("size", [(40, 8), (41, 9), (45, 10), (60, 12), (69, 15), (110, 30), (140, 34), (250, 60)])
@asynchronous
async def test_lines_fit_every_screen_and_hostile_names_are_escaped(size: tuple[int, int]) -> None:
    evil = "\x1b[31m[b]\u4e2d\u6587\u0301\x07\n"
    table = [
        Waits(
            *(evil, 1, evil, 2, "lock", evil),
            waits_on=True,
            older_ms=90_000,
            bound=Bound.AT_MOST,
            call="fu\x1b[31mtex",
            arguments=(1, 2, 3, 4, 5, 6),
            read=(evil, evil * 9, "main"),
        ),
        *STUCK,
    ]
    who = {1: Details("\x1b[2Jeve", "run\r\x1b[0m", "/\x1b]0;x\x07.slice", 1)}
    async with shown(ScriptedSource(table, ticks=2, who=who), size) as (app, pilot):
        await pilot.press("5", "down")
        assert app.view.stuck.cursor == ThreadKey(1, 2)
        for key in ("", "enter", "end"):
            if key:
                await pilot.press(key)
            lines = screen(app)
            assert len(lines) == size[1]
            assert all(cell_len(line) <= size[0] for line in lines)
            assert not CONTROL.search("".join(lines))
        await pilot.press("y")
        assert not CONTROL.search(app.clipboard.replace("\n", ""))
        assert r"\x1b[31m[b]" in app.clipboard


@asynchronous
async def test_stuck_keys_are_harmless_on_a_one_line_screen() -> None:
    async with shown(ScriptedSource(STUCK, ticks=2), (39, 7)) as (app, pilot):
        await pilot.press("5", "down", "enter", "end", "y", "escape", "escape")
        assert app.view.focus == CATEGORIES
