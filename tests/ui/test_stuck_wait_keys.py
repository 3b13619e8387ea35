"""One stuck wait in full, and finding, copying and clicking it."""

import re

from textual import events
from textual.pilot import Pilot

from offtop.model.values.catalog import ThreadKey
from offtop.model.values.snapshot import NO_HOLDER, Holder
from offtop.model.values.stack import one_name
from offtop.model.values.wake import Object
from offtop.model.viewmodel.view import CATEGORIES, StuckView, View
from offtop.model.viewmodel.view import STUCK as PANE
from tests.ui.scripted import FILLED, PIPE, READER, STUCK, ScriptedSource, Waits
from tests.ui.shown import QUICK_NS, asynchronous, coloured, pane, screen, shown, top, until
from tests.ui.stuck_list import CONNECTION, CP, GDB, LATE, PURGE, chosen, line_with, tids, title

DEEP = Waits(
    *("deep", 50, "diver", 51, "lock", "futex_do_wait"),
    waits_on=True,
    older_ms=1_000,
    read=tuple(f"function_{number}" for number in range(60)),
)
"""A wait with 60 user frames, which is 13 s old after 12 ticks."""


async def wheel(pilot: Pilot[int], offset: tuple[int, int], down: bool) -> None:
    event = events.MouseScrollDown if down else events.MouseScrollUp
    await pilot._post_mouse_events([event], offset=offset)  # pyright: ignore[reportPrivateUsage]
    await pilot.pause()


@asynchronous
async def test_peers_are_shown_in_the_list_and_in_the_full_wait() -> None:
    source = ScriptedSource((READER,), ticks=12, object_peers=FILLED)
    async with shown(source, (160, 50)) as (app, pilot):
        await pilot.press("5")
        await until(lambda: PIPE in source.sought[-1])
        await pilot.press("ctrl+l")
        assert "pipe_read (writer: gzip(4242), \\x1b[2" in line_with(app, " 60 sort")
        await pilot.press("enter")
        assert line_with(app, "on pipe:[77]").strip() == "on pipe:[77]  writer: gzip(4242), \\x1b[2J(9), +3"


# One in full


@asynchronous
async def test_enter_opens_the_full_wait_and_escape_goes_back_step_by_step() -> None:
    async with shown(ScriptedSource(STUCK, ticks=12)) as (app, pilot):
        await pilot.press("5", "down", "enter")
        lines = [line for line in pane(app, PANE) if line]
        assert "a wait in progress (Esc goes back)" in lines[0]
        assert lines[1].startswith(" 12.5s connection(4268) of mysqld(4242)  since 01:59:59")
        assert [line.split() for line in lines[3:7]] == [
            ["[k]", "futex_do_wait"],
            ["lock_wait"],
            ["row_search"],
            ["main"],
        ]
        await pilot.press("enter")  # there is no deeper level
        assert app.view.stuck.opened
        await pilot.press("escape")
        assert (app.view.focus, app.view.stuck.opened, chosen(app)) == (PANE, False, CONNECTION)
        await pilot.press("escape")
        assert app.view.focus == CATEGORIES
        await pilot.press("5", "down", "right")
        assert app.view.stuck.opened
        await pilot.press("left")
        assert chosen(app) == GDB


@asynchronous
async def test_inlined_functions_have_their_own_line() -> None:
    source = ScriptedSource(STUCK, ticks=12)
    source.name("lock_wait", one_name(["spin", "lock_wait"]))
    async with shown(source, (200, 30)) as (app, pilot):
        await pilot.press("5", "down", "enter")
        lines = [line.split(maxsplit=1) for line in pane(app, PANE) if line]
        assert lines[3:6] == [["[k]", "futex_do_wait"], ["spin", "(inlined)"], ["lock_wait"]]
        await pilot.press("escape")
        assert any("futex_do_wait < spin (inlined) < lock_wait" in line for line in screen(app))


@asynchronous
async def test_unread_user_stack_is_reported_as_such() -> None:
    async with shown(ScriptedSource(STUCK, ticks=12)) as (app, pilot):
        await pilot.press("5", "end", "enter")
        assert "   (user stack not read yet)" in screen(app)
        await pilot.press("escape", "home", "enter")  # the system call of cp is unknown
        assert not any("not read yet" in line for line in screen(app))


@asynchronous
async def test_full_wait_scrolls_to_its_end_and_no_further() -> None:
    async with shown(ScriptedSource([DEEP], ticks=12)) as (app, pilot):
        await pilot.press("5", "enter")

        def functions() -> tuple[int, int]:
            found = [int(number) for number in re.findall(r"function_(\d+)", "\n".join(screen(app)))]
            assert found == [*range(found[0], found[-1] + 1)]
            return found[0], found[-1]

        room = len(pane(app, PANE)) - 1
        assert functions() == (0, room - 5)  # thread, category, a blank line and the kernel frame are above
        await pilot.press("down")
        assert functions() == (0, room - 4)
        await pilot.press("pagedown")
        first, last = functions()
        assert 0 < first < last
        await pilot.press("end")
        assert functions() == (60 - room, 59)
        await pilot.press("down", "pagedown")
        assert functions() == (60 - room, 59)
        await pilot.press("up")
        assert functions() == (59 - room, 58)
        await pilot.press("end")
        await pilot.resize_terminal(80, 34)
        await pilot.pause()
        assert functions() == (60 - room - 10, 59)  # as many as there is room for
        await pilot.resize_terminal(80, 24)
        await pilot.press("home")
        assert functions() == (0, room - 5)
        await pilot.press("end", "escape", "enter")  # opened again, it starts at the top
        assert functions() == (0, room - 5)


@asynchronous
async def test_open_wait_that_ended_says_so_and_is_not_replaced() -> None:
    source = ScriptedSource(STUCK, ticks=7)
    async with shown(source) as (app, pilot):
        await pilot.press("5", "end", "enter")
        assert any("late(801) of late(800)" in line for line in screen(app))
        source.go_on(9)
        await until(lambda: app.picture is not None and app.picture.common.newest.number == 9)
        await pilot.pause()
        assert " This wait has ended, or a filter hides it." in screen(app)
        assert not any("cp(900)" in line for line in screen(app))
        await pilot.press("down", "end")
        await pilot.press("y")
        assert (app.clipboard, "y copies the row" in screen(app)[-2]) == ("", True)
        await pilot.press("p")
        assert app.view.pin == LATE
        await pilot.press("escape")
        assert tids(app) == [900, 4268, 901]


@asynchronous
async def test_wait_for_a_kernel_lock_shows_the_lock_and_its_holder() -> None:
    held = Object("mutex", "rtnl_mutex"), Holder(70, 71, "ip\x1b")
    waits = Waits("dhcp", 50, "dhcp", 51, "kernel-lock", "rtnl_lock", waits_on=True, held=held)
    source = ScriptedSource([waits, waits._replace(pid=60, tid=61, held=(held[0], NO_HOLDER))], ticks=12)
    async with shown(source) as (app, pilot):
        await pilot.press("5", "plus", "enter")
        assert any(line.strip() == r"on mutex rtnl_mutex, held by ip\x1b(71)" for line in screen(app))
        await pilot.press("escape", "down", "enter")
        assert any(line.strip() == "on mutex rtnl_mutex" for line in screen(app))
        await pilot.press("1", "G")
        await pilot.resize_terminal(140, 30)
        await pilot.pause()
        assert any("mutex rtnl_mutex" in line and r"held by ip\x1b(71): rtnl_lock" in line for line in screen(app))


# Search, copies, the mouse


@asynchronous
async def test_search_highlights_lines_and_n_steps_through_them() -> None:
    async with shown(ScriptedSource(STUCK, ticks=12), (100, 24), theme_name="mono") as (app, pilot):
        await pilot.press("5", "end")
        before = coloured(app)
        await pilot.press("/", *"lock_w")
        changed = [row for row, line in enumerate(coloured(app)[:-2]) if line != before[row]]
        assert [screen(app)[row].split()[1] for row in changed if row >= top(app, PANE)] == ["4268"]
        assert (app.view.focus, app.view.search) == (PANE, "lock_w")
        await pilot.press("escape")
        assert coloured(app) == before
        await pilot.press("/", *"mysqld", "enter")
        assert tids(app) == [4268, 4270]
        assert title(app) == "stuck now: 2 threads wait for 100ms or longer"
        await pilot.press("home", "n")
        assert (app.view.focus, app.view.stuck.cursor) == (PANE, PURGE)
        await pilot.press("n")
        assert app.view.stuck.cursor == CONNECTION  # wraps around
        await pilot.press("N", "enter")
        assert app.view.stuck == StuckView(PURGE, opened=True)
        await pilot.press("n")  # opens the next one
        assert any("connection(4268)" in line for line in pane(app, PANE))


@asynchronous
async def test_n_finds_threads_processes_categories_system_calls_and_functions() -> None:
    async with shown(ScriptedSource(STUCK, ticks=12)) as (app, pilot):
        await pilot.press("5")
        for word, found in (("gdb", GDB), ("Purge", PURGE), ("disk-r", CP), ("futex(", CONNECTION), ("jbd2", PURGE)):
            app.set_view(View(delay_ns=QUICK_NS, focus=PANE, search=word))
            await pilot.press("n")
            assert app.view.stuck.cursor == found
        app.set_view(View(delay_ns=QUICK_NS, focus=PANE, search="nowhere"))
        await pilot.press("n")
        assert (app.view.stuck.cursor, "no line here matches" in screen(app)[-2]) == (None, True)


@asynchronous
async def test_y_copies_the_whole_wait_on_any_screen() -> None:
    long = STUCK[0]._replace(read=("lock_wait", "f" * 200, "main"))
    async with shown(ScriptedSource([long], ticks=12), (50, 12)) as (app, pilot):
        for keys in (("5",), ("enter",)):
            await pilot.press(*keys, "y")
            assert app.clipboard.splitlines() == [
                " 12.5s connection(4268) of mysqld(4242)  since 01:59:59",
                "   lock  S: sleeps until what it waits for or a signal comes  futex(0x7f1200004040, WAIT_PRIVATE, 2)",
                "",
                "   [k] futex_do_wait",
                "       lock_wait",
                f"       {'f' * 200}",
                "       main",
            ]
            assert screen(app)[-2].startswith("copied:  12.5s connection(4268)")


@asynchronous
async def test_click_selects_a_wait_and_a_second_click_opens_it() -> None:
    async with shown(ScriptedSource(STUCK, ticks=12)) as (app, pilot):
        await pilot.press("5")
        first = screen(app).index(line_with(app, " 900 cp"))
        await pilot.click(offset=(30, first + 2))
        assert (app.view.stuck.cursor, app.view.stuck.opened) == (GDB, False)
        for nowhere in (first - 2, first - 1, first + 4, first + 6, 21):
            await pilot.click(offset=(30, nowhere))
            assert (app.view.stuck.cursor, app.view.stuck.opened) == (GDB, False)
        await pilot.click(offset=(30, first + 2))
        assert app.view.stuck.opened
        assert any("gdb(901) of gdb(901)" in line for line in screen(app))
        await pilot.click(offset=(30, first + 1))
        assert (app.view.stuck.cursor, app.view.stuck.opened) == (GDB, True)


@asynchronous
async def test_wheel_moves_three_lines_in_the_list_and_in_a_full_wait() -> None:
    async with shown(ScriptedSource([*STUCK, DEEP], ticks=12)) as (app, pilot):
        await pilot.press("5")
        assert tids(app) == [900, 51, 4268, 901, 4270]
        await wheel(pilot, (30, 8), down=True)
        assert app.view.stuck.cursor == GDB
        await wheel(pilot, (30, 8), down=False)
        await pilot.press("down", "enter")
        await wheel(pilot, (30, 8), down=True)
        assert (app.view.stuck.cursor, app.view.stuck.scrolled) == (ThreadKey(50, 51), 3)
        await wheel(pilot, (30, 8), down=False)
        assert app.view.stuck.scrolled == 0
