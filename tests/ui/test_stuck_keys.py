"""Stuck waits on the screen: waits in progress, oldest first, one of them in full."""

import re
from pathlib import Path

import pytest
from rich.cells import cell_len
from textual import events
from textual.pilot import Pilot

from offtop.model.values.catalog import Details, ThreadKey
from offtop.model.values.snapshot import NO_HOLDER, Bound, Filters, Holder
from offtop.model.values.stack import one_name
from offtop.model.values.wake import Object
from offtop.model.viewmodel import panes
from offtop.model.viewmodel.alike import Alike
from offtop.model.viewmodel.view import CATEGORIES, LIST, TREE, StuckView, View
from offtop.model.viewmodel.view import STUCK as PANE
from offtop.model.windows.breakdown import Leaf
from offtop.person import person
from offtop.recording.replay import RecordedSource
from offtop.recording.writer import Recorder
from offtop.ui.app import OfftopApp
from offtop.units import NS_PER_S
from tests.ui.scripted import FILLED, PIPE, READER, STUCK, ScriptedSource, Waits
from tests.ui.shown import CATEGORIES as RULES
from tests.ui.shown import (
    QUICK_NS,
    asynchronous,
    catching,
    coloured,
    crumb_line,
    go_on,
    pane,
    rows_of,
    running,
    screen,
    shown,
    top,
    until,
)
from tests.ui.test_pictures import check

CP, CONNECTION, GDB, PURGE = ThreadKey(900, 900), ThreadKey(4242, 4268), ThreadKey(901, 901), ThreadKey(4242, 4270)
NGINX, LATE = ThreadKey(700, 700), ThreadKey(800, 801)
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
WHO = {
    4242: Details("mysql", "/usr/sbin/mysqld", "/system.slice/mysql.service", 27),
    900: Details("ann", "cp big small", "/user.slice", 1000),
}
GROUP = Alike("db", "t*", Leaf("lock"), "futex", "S", -1, "")
DEEP = Waits(
    *("deep", 50, "diver", 51, "lock", "futex_do_wait"),
    waits_on=True,
    older_ms=1_000,
    read=tuple(f"function_{number}" for number in range(60)),
)
"""A wait with 60 user frames, which is 13 s old after 12 ticks."""


def rows(app: OfftopApp) -> list[list[str]]:
    """Return the words of each line of the stuck list."""
    lines = screen(app)
    first = next(number for number, line in enumerate(lines) if line.split()[:2] == ["AGE", "TID"]) + 1
    listed = [line.removeprefix(">").split() for line in lines[first:-2]]
    end = next(
        (number for number, words in enumerate(listed) if len(words) < 2 or not words[1].lstrip("x").isdigit()), None
    )
    return listed[:end]


def tids(app: OfftopApp) -> list[int]:
    return [int(row[1]) for row in rows(app)]


def title(app: OfftopApp) -> str:
    return next(line for line in screen(app) if "stuck now" in line).strip("─ ")


def chosen(app: OfftopApp) -> ThreadKey:
    """Return the thread of the cursor line."""
    (line,) = [line for line in rows_of(app, PANE) if line.startswith(">") and not line.startswith(">=")]
    tid = int(line[1:].split()[1])
    return next(key for key in (CP, CONNECTION, GDB, PURGE, NGINX, LATE) if key.tid == tid)


def line_with(app: OfftopApp, text: str) -> str:
    return next(line for line in screen(app) if text in line)


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


@asynchronous
async def test_paused_screen_keeps_its_waits_in_progress_longer_than_the_history_does() -> None:
    late = Waits("late", 800, "late", 801, "lock", "futex_do_wait", waits_on=True, begins=4, ends=9)
    source = ScriptedSource([late, STUCK[-1]], ticks=8)
    async with shown(source, history_ns=10 * NS_PER_S) as (app, pilot):
        await pilot.press("space")
        await go_on(app, pilot, source, 30)
        await pilot.press("backslash", *"proc=late", "enter", "5")
        assert tids(app) == [801]


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
