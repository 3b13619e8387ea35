"""The lists of wakers and of waited-on objects."""

import pytest

from offtop.model.values.peers import WRITER, Peers, PeerSide, Process
from offtop.model.viewmodel.view import LIST, View
from offtop.printable import printable
from tests.ui.scripted import MUTEX, PIPE
from tests.ui.shown import QUICK_NS, asynchronous, coloured, crumb_line, screen, shown, until, waiting_line
from tests.ui.test_pictures import check
from tests.ui.wakers import CONTROL, EVIL, alert, crumb, cursor_line, gathering, line_with, listed, stacks

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


@asynchronous
async def test_object_list_matches_the_stored_picture() -> None:
    async with shown(gathering()) as (app, pilot):
        await pilot.press("2", "G")
        await pilot.pause()
        check("objects-80x24", screen(app))


# Filters, search and time


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
