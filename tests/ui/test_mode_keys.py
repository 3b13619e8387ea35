"""The modes on the screen: wakers, waited-on objects, both stacks, and chains of wakers."""

import re
import threading
from collections.abc import Mapping
from threading import Event

import pytest
from rich.cells import cell_len

from offtop.errors import KernelError, OfftopError
from offtop.model.aggregate.tree import MORE
from offtop.model.values.peers import WRITER, Peers, PeerSide, Process
from offtop.model.values.wake import CHAIN, MODES, OFFCPU, OFFWAKE, THREAD, WAKEUP, Object, Storm
from offtop.model.viewmodel.view import CATEGORIES, FLAME, LIST, SITE, STUCK, TREE, View
from offtop.printable import printable
from offtop.ui.app import OfftopApp
from tests.ui.sampled import SampledSource
from tests.ui.scripted import CLERK, MUTEX, PIPE, WAKERS, By, ScriptedSource, Then, Waits, Woken
from tests.ui.shown import (
    QUICK_NS,
    asynchronous,
    coloured,
    crumb_line,
    rows_of,
    screen,
    shown,
    until,
    waiting_line,
)
from tests.ui.test_pictures import check

TABS = {"1": "|1 off-CPU|", "2": "|2 wakeup|", "3": "|3 off-wake|", "4": "|4 chain|", "5": "|5 stuck|"}
MODE_OF = dict(zip("1234", MODES, strict=True))
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
EVIL = "\x1b[31m[b]\u4e2d\u6587\u0301\x07\n"
NOT_GATHERED = "No wakers are recorded for this time (yet)"


def gathering(
    mode: str = CHAIN,
    ticks: int = 12,
    table: tuple[Waits, ...] = WAKERS,
    object_peers: Mapping[Object, Peers] | None = None,
) -> ScriptedSource:
    """Return a source that collects this mode from the start."""
    source = ScriptedSource(table, ticks=ticks, object_peers=object_peers)
    source.mode = mode
    return source


def listed(app: OfftopApp) -> list[list[str]]:
    """Return the words of each line of the list, without its title and column headers."""
    return [line.lstrip(">").split() for line in rows_of(app, LIST)]


def line_with(app: OfftopApp, text: str) -> str:
    return next((line for line in screen(app) if text in line), "")


def cursor_line(app: OfftopApp) -> str:
    """Return the cursor line of the list, or of the tree in its place."""
    return next(line for line in reversed(rows_of(app, app.view.focus)) if line.startswith(">"))


def alert(app: OfftopApp) -> str:
    return screen(app)[-2]


def crumb(app: OfftopApp) -> str:
    return crumb_line(app).partition("   ")[0]


def stacks(app: OfftopApp) -> list[str]:
    """Return the STACK column on a screen of 100 columns."""
    lines = screen(app)
    head = next(number for number, line in enumerate(lines) if "STACK" in line)
    at = lines[head].index("STACK") - 2
    found = [line[at:] for line in lines[head + 1 : -2]]
    return found[: found.index("")] if "" in found else found


async def ticks(app: OfftopApp, source: ScriptedSource, to: int) -> None:
    source.go_on(to)
    await until(lambda: app.picture is not None and app.picture.common.newest.number == to)


# Switching modes


@asynchronous
async def test_1_to_4_switch_the_view_at_once_and_set_the_mode_of_the_source() -> None:
    source = gathering(OFFCPU, ticks=3)
    async with shown(source) as (app, pilot):
        for key in "2341":
            await pilot.press(key)
            assert (app.view.mode, TABS[key] in screen(app)[0]) == (MODE_OF[key], True)
            await until(lambda key=key: source.mode == MODE_OF[key])
        assert source.depth == 4


@asynchronous
async def test_list_says_that_wakers_are_not_collected_yet() -> None:
    source = gathering(OFFCPU, ticks=3)
    async with shown(source) as (app, pilot):
        for key in "234":
            await pilot.press(key)
            assert NOT_GATHERED in line_with(app, "No wakers are")
            assert line_with(app, "fsync")  # the categories need no wakers
        await pilot.press("t")
        assert NOT_GATHERED in line_with(app, "No wakers are")
        await pilot.press("enter", "enter", "down", "y")
        assert app.view.focus == TREE
        await pilot.press("g")
        assert NOT_GATHERED in line_with(app, "No wakers are")
        await pilot.press("g", "2", "t")
        await until(lambda: source.mode == WAKEUP)
        await ticks(app, source, 4)
        assert listed(app)[1][:3] == ["100", "shop", "0.50"]
        await pilot.press("1")
        assert listed(app)[0][:2] == ["300", "late"]


@pytest.mark.parametrize("size", [(60, 20), (45, 12)])
@asynchronous
async def test_tab_of_the_current_mode_is_kept_on_narrow_screens(size: tuple[int, int]) -> None:
    async with shown(gathering(), size) as (app, pilot):
        for key in "234":
            await pilot.press(key)
            assert TABS[key] in screen(app)[0]
        await pilot.press("1")
        assert "|" not in screen(app)[0], "off-CPU is the default and needs no tab"


@asynchronous
async def test_missing_chain_points_to_the_mode_with_wakers() -> None:
    source = gathering(WAKEUP, ticks=3)
    async with shown(source, (160, 50)) as (app, pilot):
        await pilot.press("space", "4")
        assert "3 shows the last wakers" in line_with(app, "No chains of wakers")


@pytest.mark.parametrize("key", "1234")
@asynchronous
async def test_key_of_the_current_mode_lists_the_others(key: str) -> None:
    async with shown(gathering()) as (app, pilot):
        await pilot.press(key)
        before = app.view
        await pilot.press(key)
        assert (app.view, before.mode) == (before, MODE_OF[key])
        if key != "1":
            await pilot.press(key)
        assert any(f"{other} " in alert(app) for other in "12345" if other != key)


@pytest.mark.parametrize("key", "234")
@asynchronous
async def test_5_opens_the_stuck_list_and_returns_to_the_mode(key: str) -> None:
    async with shown(gathering()) as (app, pilot):
        await pilot.press(key, "tab", "5")
        assert (TABS["5"] in screen(app)[0], app.view.focus) == (True, STUCK)
        await pilot.press("5")
        assert (TABS[key] in screen(app)[0], app.view.focus) == (True, LIST)
        await pilot.press("5", "1")
        assert (TABS["1"] in screen(app)[0], app.view.mode) == (True, OFFCPU)


@asynchronous
async def test_focused_pane_is_kept_across_modes() -> None:
    async with shown(gathering(), (160, 50)) as (app, pilot):
        for pane, keys in ((CATEGORIES, ()), (LIST, ("tab",)), (TREE, ("t",)), (FLAME, ("g",))):
            await pilot.press("1", *keys)
            for key in "23414321":
                await pilot.press(key)
                assert app.view.focus == pane
                assert TABS[key] in screen(app)[0]
            await pilot.press(*(["g"] if pane == FLAME else []), "escape", "escape")
        await pilot.press("1", "t", "enter")
        assert app.view.focus == SITE
        await pilot.press("3")
        assert (app.view.focus, app.view.path) == (TREE, ())


@asynchronous
async def test_waker_selection_is_dropped_in_mode_1() -> None:
    async with shown(gathering()) as (app, pilot):
        await pilot.press("2", "G", "tab", "enter", "enter")
        assert (app.view.object, bool(app.view.wakers)) == (MUTEX, True)
        await pilot.press("3")
        assert crumb(app) == "All > on futex 0x7f4040 of 100 > woken by shop(100)"
        await pilot.press("1")
        assert crumb(app) == "All > on futex 0x7f4040 of 100"
        assert listed(app)[0][:2] == ["100", "shop"]


# Wakers


@asynchronous
async def test_2_lists_wakers_and_then_waits_without_a_known_waker() -> None:
    async with shown(gathering(), (160, 50), view=View(delay_ns=QUICK_NS, idle_shown=True)) as (app, pilot):
        await pilot.press("2")
        assert line_with(app, "wakers: all categories")
        first = next(number for number, line in enumerate(screen(app)) if "WAKER" in line) + 1
        assert [line[11:39].split("  ")[0].strip() for line in screen(app)[first : first + 9]] == [
            *("storm: shop", "shop", "bank", "irq (nvme_irq)", "timeout"),
            *("(still waiting)", "(wakeup not recorded)", "(woken before the minimum)", "(waits below the minimum)"),
        ]
        assert line_with(app, " 100 shop").split()[2:9] == ["0.50", "28%", "0.10", "3", "134ms", "400ms", "400ms"]
        assert "futex_wake" in line_with(app, " 100 shop")
        assert "2/s wake up to 12; 90% sleep again" in line_with(app, "storm: shop")
        assert "jbd2_log_wait" in line_with(app, "(still waiting)  ")


@asynchronous
async def test_enter_drills_down_from_a_waker_to_its_threads_and_tree() -> None:
    async with shown(gathering()) as (app, pilot):
        await pilot.press("2", "tab", "down")
        assert cursor_line(app).split()[:3] == [">", "100", "shop"]
        await pilot.press("enter")
        assert (crumb(app), listed(app)[1][:3]) == ("All > woken by shop(100)", ["100", "clerk", "0.50"])
        await pilot.press("down", "enter")
        assert crumb(app) == "All > woken by clerk(103)"
        assert line_with(app, "stack tree: woken by clerk(103)")
        assert stacks(app) == ["▼ clerk › main › serve › unlock › [k]futex_wake", "    -> shop"]
        await pilot.press("escape")
        assert (crumb(app), cursor_line(app).split()[:3]) == ("All > woken by shop(100)", [">", "100", "clerk"])
        await pilot.press("escape")
        assert (crumb(app), cursor_line(app).split()[:3]) == ("All", [">", "100", "shop"])
        await pilot.press("end", "up", "enter")
        assert crumb(app) == "All > woken by (woken before the minimum)"
        assert cursor_line(app).split()[1:3] == ["0.02", "100%"]


@asynchronous
async def test_enter_on_a_storm_leads_to_its_waker() -> None:
    async with shown(gathering()) as (app, pilot):
        await pilot.press("2", "tab", "home", "enter")
        assert crumb(app) == "All > woken by shop(100)"


@asynchronous
async def test_h_toggles_waking_threads_and_processes() -> None:
    async with shown(gathering()) as (app, pilot):
        await pilot.press("2", "tab", "H")
        assert [row[1] for row in listed(app)[1:3]] == ["clerk", "teller"]
        await pilot.press("H")
        assert [row[1] for row in listed(app)[1:3]] == ["shop", "bank"]
        await pilot.press("H", "down", "enter")
        assert crumb(app) == "All > woken by clerk(103)"
        await pilot.press("t")
        assert (app.view.focus, crumb(app)) == (LIST, "All")


@asynchronous
async def test_wakers_of_a_selected_thread_are_listed() -> None:
    async with shown(gathering()) as (app, pilot):
        await pilot.press("i", "tab", "down", "down", "enter", "enter")
        assert app.view.thread is not None
        await pilot.press("2", "t")
        assert app.view.focus == LIST
        first = cursor_line(app)
        await pilot.press("down")
        assert cursor_line(app) != first


@pytest.mark.parametrize(
    ("key", "words"), [("A", "the account of each second"), ("C", "cgroups"), ("c", "command lines")]
)
@asynchronous
async def test_keys_without_effect_in_the_waker_list_say_so(key: str, words: str) -> None:
    async with shown(gathering()) as (app, pilot):
        await pilot.press("2")
        before = app.view
        await pilot.press(key)
        assert (words in alert(app), "1 lists them" in alert(app), app.view) == (True, True, before)
        await pilot.press("tab", "+")
        assert "1 lists them" in alert(app)


@asynchronous
async def test_sort_keys_order_the_wakers() -> None:
    async with shown(gathering(), (160, 50)) as (app, pilot):
        await pilot.press("2", "tab")
        for key, first in (("P", "shop"), ("M", "shop"), ("E", "shop"), ("T", "shop")):
            await pilot.press(key)
            assert listed(app)[1][1] == first
        assert " TOTAL" in line_with(app, "WAKER")
        await pilot.press("R")
        assert [row[0] for row in listed(app)[1:3]] == ["irq", "200"]
        for _ in range(9):
            await pilot.press("greater_than_sign")
            assert app.picture is not None
            assert app.picture.listed.ranking.whole.total_ns == 17_200_000_000


@asynchronous
async def test_waker_can_be_muted_pinned_filtered_to_and_copied() -> None:
    source = gathering()
    async with shown(source) as (app, pilot):
        await pilot.press("2", "tab", "down", "X")
        assert "muted waker=shop" in alert(app)
        assert not any("shop" in row for row in listed(app))
        assert "muted (f)" in waiting_line(app)
        assert app.picture is not None
        assert app.picture.common.totals.muted_ns == 6_000_000_000
        await pilot.press("home", "p")
        assert "pin bank(200)" in crumb_line(app)
        assert line_with(app, " 200 bank").startswith(">*")
        await pilot.press("F")
        assert source.filters.pids == (200,)
        await pilot.press("F", "p", "y")
        assert app.clipboard == "200 bank pipe_write < pay < main -> shop 0.10"
        await pilot.press("down", "y", "p")
        assert app.clipboard.startswith("irq (nvme_irq) blk_mq_end_request -> bank 0.06")
        assert "is neither a process nor a thread" in alert(app)
        await pilot.press("X")
        assert 'muted waker="irq (nvme_irq)"' in alert(app)


@asynchronous
async def test_mute_and_copy_on_a_storm_apply_to_its_waker() -> None:
    async with shown(gathering()) as (app, pilot):
        await pilot.press("2", "tab", "home", "y")
        assert app.clipboard == ("100 storm: shop 2/s wake up to 12; 90% sleep again within 1 ms: 36 switches/s 0.00")
        await pilot.press("X")
        assert "muted waker=shop" in alert(app)
        assert not line_with(app, "storm")


# Waited-on objects


@asynchronous
async def test_g_lists_waited_on_objects_in_every_mode() -> None:
    async with shown(gathering(), (100, 24)) as (app, pilot):
        await pilot.press("G")
        assert line_with(app, "objects: all categories")
        await pilot.press("G", "3", "tab", "G")
        assert line_with(app, "objects: all categories")
        assert [row[:2] for row in listed(app)][:2] == [["futex", "0x7f4040"], ["pipe:[77]", "0.10"]]
        await pilot.press("enter")
        assert crumb(app) == "All > on futex 0x7f4040 of 100"
        assert listed(app)[0][:2] == ["100", "shop"]
        await pilot.press("2")
        assert listed(app)[1][:2] == ["100", "shop"]
        await pilot.press("escape")
        assert (app.view.lists_objects, app.view.cursor) == (True, MUTEX)
        await pilot.press("end", "up", "enter")
        assert "the object of these waits is unknown" in alert(app)
        await pilot.press("p")
        assert "p pins a program, process, thread or cgroup" in alert(app)
        await pilot.press("home", "X")
        assert "muted object=" in alert(app)
        assert not line_with(app, " futex 0x7f4040")
        await pilot.press("y")
        assert app.clipboard.startswith("pipe:[77] pipe_read")


WRITES = {PIPE: Peers((PeerSide(WRITER, (Process(201, "teller"), Process(9, EVIL)), 5),))}


@pytest.mark.parametrize("width", [80, 100, 160])
@asynchronous
async def test_object_list_shows_peers(width: int) -> None:
    source = gathering(object_peers=WRITES)
    async with shown(source, (width, 30)) as (app, pilot):
        await pilot.press("2", "G")
        await until(lambda: PIPE in source.sought[-1])
        await pilot.press("ctrl+l")
        line = line_with(app, " pipe:[77] ")
        assert "writer: teller(201)" in line
        assert width < 160 or f"writer: teller(201), {printable(EVIL)}(9), +3; pipe_read <" in line
        assert not CONTROL.search(line)


@asynchronous
async def test_object_filter_matches_peers_once_they_are_known() -> None:
    source = gathering(object_peers=WRITES)
    async with shown(source, (160, 30)) as (app, pilot):
        await pilot.press("3", "backslash", *"object=teller", "enter")
        await until(lambda: PIPE in source.sought[-1])
        await pilot.press("ctrl+l", "tab")
        assert [row[:2] for row in listed(app)] == [["100", "shop"]]


# Trees


OWN = "main › take_order › [k]futex_do_wait"
OF_LATE = "  (still waiting) › [k]jbd2_log_wait_commit"
TREES = {
    "1": [OF_LATE, "▼ main", "    take_order › [k]futex_do_wait"],
    "2": ["▼ (still waiting)", "    -> late", "▼ clerk › main › serve › unlock › [k]futex_wake"],
    "3": [OF_LATE, "▼ main", "  ▼ take_order › [k]futex_do_wait"],
    "4": [OF_LATE, "▼ main", "  ▼ take_order › [k]futex_do_wait"],
}


@pytest.mark.parametrize("key", "1234")
@asynchronous
async def test_tree_in_each_mode(key: str) -> None:
    async with shown(gathering(), (120, 30)) as (app, pilot):
        await pilot.press(key, "t")
        assert stacks(app)[:3] == TREES[key]


@asynchronous
async def test_y_copies_the_folded_stack_of_the_mode() -> None:
    clerk = "futex_wake;unlock;serve;main;clerk"
    asked = "main;ask;pipe_read"
    copies = {
        "1": "main;take_order;futex_do_wait 6000000",  # with the run queue
        "3": f"main;take_order;futex_do_wait;--;{clerk} 5000000",
        "4": f"main;take_order;futex_do_wait;--;{clerk} 5000000",
    }
    async with shown(gathering(), (120, 30)) as (app, pilot):
        for key, copied in copies.items():
            await pilot.press(key, "t", "home", "asterisk", "down", "down")
            if key != "1":
                await pilot.press("down")
            await pilot.press("y")
            assert app.clipboard == copied
            await pilot.press("t")
        await pilot.press("4", "t", "asterisk", "home", *["down"] * 4, "y")
        assert app.clipboard == f"main;take_order;futex_do_wait;--;{clerk};--;{asked} 5000000"


@asynchronous
async def test_mute_in_the_tree_applies_to_the_waker_at_the_end_of_the_line() -> None:
    async with shown(gathering(), (120, 30)) as (app, pilot):
        await pilot.press("3", "t", "asterisk", "home", "down", "down", "down", "X")
        assert "muted waker=clerk" in alert(app)
        await pilot.press("2", "home", "down", "X")
        assert "muted proc=late" in alert(app)


@asynchronous
async def test_site_shows_the_waker_above_the_waiter() -> None:
    async with shown(gathering(), (120, 60)) as (app, pilot):
        await pilot.press("4", "t", "asterisk", "home", "down", "down", "enter", "x")
        lines = [line.strip() for line in screen(app)]
        first = next(number for number, line in enumerate(lines) if line.startswith("#1"))
        assert lines[first + 2 : first + 25] == [
            "mostly on futex 0x7f4040 of 100",
            *("irq (nvme_irq)", "[k] nvme_irq", "[k] blk_mq_end_request", "-- woken by --", "[k] io_wait", "main"),
            *("-- its last wait --", "teller", "main", "pay", "[k] pipe_write", "-- woken by --"),
            *("[k] pipe_read", "ask", "main", "-- its last wait --", "clerk", "main", "serve", "unlock"),
            *("[k] futex_wake", "-- woken by --"),
        ]


@pytest.mark.parametrize("key", "234")
@asynchronous
async def test_icicle_in_each_mode(key: str) -> None:
    async with shown(gathering(), (160, 50)) as (app, pilot):
        await pilot.press(key, "g")
        text = "\n".join(screen(app))
        assert ("-- woken by --" in text) is (key != "2")
        assert ("-- its last wait --" in text) is (key == "4")
        assert ("-> shop" in text) is (key == "2")
        await pilot.press("down", "right", "enter", "y", "escape")
        assert app.clipboard


# Filters


@asynchronous
async def test_filters_by_waker_and_object() -> None:
    async with shown(gathering()) as (app, pilot):
        for text, waits in (("waker=clerk", "0.60"), ("object=pipe*", "0.10"), ("wakertid=201", "0.10")):
            for key in "1234":
                await pilot.press(key, "backslash", "ctrl+u", *text, "enter")
                assert f"{waits} pass" in crumb_line(app)
        await pilot.press("1", "backslash", "ctrl+u", *"waker=nobody", "enter")
        assert "modes 2, 3 and 4 record wakers" in line_with(app, "nothing matches")
        await pilot.press("2")
        assert 'no thread matches "waker=nobody"' in line_with(app, "no thread")


@pytest.mark.parametrize("mode", "1234")
@asynchronous
async def test_tree_by_object_has_all_the_time(mode: str) -> None:
    async with shown(gathering()) as (app, pilot):
        await pilot.press(mode, "G")
        assert app.picture
        waited_ns = {row.key: row.part.total_ns for row in app.picture.listed.ranking.rows}
        await pilot.press("G", "t")
        assert app.picture and app.picture.tree
        together = sum(branch.part.total_ns for branch in app.picture.tree.branches if not branch.depth)
        await pilot.press("J")
        assert app.picture and app.picture.tree
        tops = [branch for branch in app.picture.tree.branches if not branch.depth]
        assert sum(branch.part.total_ns for branch in tops) == together
        assert {branch.path[0].is_object for branch in tops if branch.path[0] != MORE} == {True}
        mutex = next(branch for branch in tops if branch.path[0].name == MUTEX.label)
        assert mutex.part.total_ns == waited_ns[MUTEX] > 0
        line = app.picture.tree.branches.index(mutex)
        await pilot.press("v")
        assert "by object (J)" in line_with(app, "stack tree")
        assert app.picture and app.picture.tree and app.picture.tree.branches[0].path[0].is_object
        await pilot.press("v", "home", *["down"] * line, "X")
        assert "muted object=" in alert(app)


@asynchronous
async def test_search_finds_wakers_by_name_and_function() -> None:
    async with shown(gathering()) as (app, pilot):
        await pilot.press("2", "tab", "/", *"nvme", "enter")
        assert [row[:2] for row in listed(app)] == [["irq", "(nvme_irq)"]]
        await pilot.press("escape", "escape", "tab", "/", *"pipe_w")
        marked = [line for line in coloured(app) if "reverse" in line and "bank" in line]
        assert marked is not None
        await pilot.press("escape", "escape")
        assert app.view.filter.text == ""


# Time


@asynchronous
async def test_rewind_to_ticks_without_wakers_and_back_to_live() -> None:
    source = gathering(OFFCPU, ticks=4)
    async with shown(source) as (app, pilot):
        await pilot.press("2")
        await until(lambda: source.mode == WAKEUP)
        await ticks(app, source, 6)
        assert "window 2s of 10s" in screen(app)[0]
        await pilot.press("[")
        assert ("window 1s of 10s" in screen(app)[0], listed(app)[1][1]) == (True, "shop")
        await pilot.press("[")
        assert "PAUSED" in screen(app)[0]
        assert NOT_GATHERED in line_with(app, "No wakers are")
        await pilot.press("1")
        assert listed(app)[0][:2] == ["300", "late"]
        await pilot.press("2", "]")
        assert listed(app)[1][1] == "shop"
        await pilot.press("[", "w", "w")
        assert NOT_GATHERED in line_with(app, "No wakers are")
        await pilot.press("0")
        assert ("LIVE" in screen(app)[0], listed(app)[1][1]) == (True, "shop")
        await pilot.press("space", "3")
        assert ("PAUSED" in screen(app)[0], TABS["3"] in screen(app)[0]) == (True, True)


@asynchronous
async def test_windows_and_idle_waits_in_the_waker_list() -> None:
    async with shown(gathering()) as (app, pilot):
        await pilot.press("2", "tab")
        assert not line_with(app, "timeout")
        await pilot.press("i")
        assert line_with(app, "timeout")
        for _ in range(4):
            await pilot.press("w")
            assert listed(app)[1][1:3] == ["shop", "0.50"]


# The source


@asynchronous
async def test_refusal_of_a_mode_is_shown_and_the_app_continues() -> None:
    source = gathering(OFFCPU, ticks=3)
    source.refuses = KernelError("this kernel has no [sched]_waking\x1b[31m. 1 goes on")
    async with shown(source) as (app, pilot):
        await pilot.press("2")
        await until(lambda: "no [sched]_waking" in alert(app))
        assert not CONTROL.search("".join(screen(app)))
        assert NOT_GATHERED in line_with(app, "No wakers are")
        await ticks(app, source, 5)
        await pilot.press("1")
        assert listed(app)[0][:2] == ["300", "late"]
        source.refuses = None
        await pilot.press("3")
        await until(lambda: source.mode == OFFWAKE)


class Slow(ScriptedSource):
    """A source whose set_mode() blocks, and which records the requested modes."""

    def __init__(self) -> None:
        super().__init__(WAKERS, ticks=3)
        self.asked_for: list[str] = []
        self.may_go = Event()

    def set_mode(self, mode: str, depth: int) -> None:
        self.asked_for.append(mode)
        self.may_go.wait(20)
        super().set_mode(mode, depth)


@asynchronous
async def test_last_requested_mode_wins_with_a_slow_source() -> None:
    source = Slow()
    async with shown(source) as (app, pilot):
        await pilot.press("2")
        await until(lambda: source.asked_for == [WAKEUP])
        await pilot.press("3", "1", "4")
        assert (app.view.mode, source.mode) == (CHAIN, OFFCPU)
        source.may_go.set()
        await until(lambda: source.mode == CHAIN)
        assert source.asked_for == [WAKEUP, CHAIN]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@asynchronous
async def test_mode_keys_work_after_an_unexpected_error(monkeypatch: pytest.MonkeyPatch) -> None:
    source = gathering(OFFCPU, ticks=3)
    failed = Event()

    def fail(*_: object) -> None:
        failed.set()
        raise OSError(28, "No space left on device")

    async with shown(source) as (_, pilot):
        with monkeypatch.context() as patch:
            patch.setattr(source, "set_mode", fail)
            await pilot.press("2")
            await until(failed.is_set)
            await until(lambda: "offtop-mode" not in {thread.name for thread in threading.enumerate()})
        await pilot.press("3")
        await until(lambda: source.mode == OFFWAKE)


@asynchronous
async def test_quitting_does_not_wait_for_a_slow_source() -> None:
    source = Slow()
    source.refuses = OfftopError("no")
    async with shown(source) as (app, pilot):
        await pilot.press("2", "q")
    source.may_go.set()
    assert app.return_code == 0


# Hostile names, and sizes


HOSTILE = (
    Waits(
        *(EVIL, 1, EVIL, 2, "lock", EVIL, (EVIL, "main"), (400,)),
        woken=Woken(
            By(THREAD, EVIL, EVIL, 3, EVIL, 4, (EVIL,), (EVIL,)),
            Object("file", EVIL * 9),
            (Then((EVIL,), (EVIL,), CLERK),),
        ),
        storm=Storm(9, 99, 99, 99),
    ),
    Waits(*(EVIL, 1, EVIL, 2, "lock", EVIL, (EVIL, "main"), (100,)), woken=Woken(By("irq", EVIL), Object("", EVIL))),
)


@pytest.mark.parametrize("size", [(40, 8), (45, 10), (60, 12), (80, 24), (110, 30), (160, 50), (250, 60)])
@asynchronous
async def test_lines_fit_every_screen_and_hostile_names_are_escaped(size: tuple[int, int]) -> None:
    async with shown(gathering(table=(*HOSTILE, *WAKERS), ticks=3), size) as (app, pilot):
        keys = (*("2", "tab", "H", "H", "enter", "enter", "enter", "g", "escape", "escape", "escape", "escape", "G"),)
        more = ("tab", "enter", "enter", "t", "asterisk", "end", "enter", "X", "3", "t", "y", "4", "asterisk", "g")
        for key in (*keys, *more):
            await pilot.press(key)
            lines = screen(app)
            assert len(lines) == size[1]
            assert all(cell_len(line) <= size[0] for line in lines)
            assert not CONTROL.search("".join(lines))
        await pilot.press("y")
        assert not CONTROL.search(app.clipboard)


@pytest.mark.parametrize("key", "234")
@asynchronous
async def test_ascii_mode_draws_only_ascii(key: str) -> None:
    async with shown(gathering(table=(*HOSTILE, *WAKERS), ticks=3), ascii_only=True) as (app, pilot):
        for pressed in (key, "t", "enter", "g", "escape", "G"):
            await pilot.press(pressed)
            assert "".join(screen(app)).isascii()


@pytest.mark.parametrize("key", "234")
@asynchronous
async def test_empty_source_in_each_mode(key: str) -> None:
    async with shown(gathering(table=(), ticks=2)) as (app, pilot):
        for pressed in (key, "tab", "enter", "H", "G", "enter", "X", "p", "y", "t", "enter", "g", "escape"):
            await pilot.press(pressed)
        assert TABS[key] in screen(app)[0]
        assert line_with(app, "Nothing waits here")


@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
@pytest.mark.parametrize("key", "234")
@asynchronous
async def test_screens_of_the_modes_match_the_stored_pictures(key: str, size: tuple[int, int]) -> None:
    async with shown(gathering(), size) as (app, pilot):
        await pilot.press(key)
        await pilot.pause()
        check(f"mode-{key}-{size[0]}x{size[1]}", screen(app))
        await pilot.press("t", "asterisk")
        await pilot.pause()
        check(f"mode-{key}-tree-{size[0]}x{size[1]}", screen(app))


@asynchronous
async def test_object_list_matches_the_stored_picture() -> None:
    async with shown(gathering()) as (app, pilot):
        await pilot.press("2", "G")
        await pilot.pause()
        check("objects-80x24", screen(app))


@asynchronous
async def test_only_off_cpu_mode_is_available_when_sampling() -> None:
    source = SampledSource()
    source.refuses = OfftopError("Mode wakeup needs BPF")
    async with shown(source) as (app, pilot):
        before = listed(app)
        await pilot.press("2")
        await until(lambda: "needs BPF" in alert(app))
        assert (app.view.mode, listed(app)) == (OFFCPU, before)
