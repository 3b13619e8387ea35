"""The mouse: a click selects, a click on the selection drills down, and the wheel moves."""

import asyncio
from collections.abc import Callable, Sequence

import pytest
from textual import events
from textual.app import App
from textual.pilot import Pilot

from offtop.model.aggregate.steps import Step
from offtop.model.values.catalog import ThreadKey
from offtop.model.viewmodel.view import CATEGORIES, FLAME, HEATMAP, HISTOGRAM, LATENCY, LIST, SITE, TREE, View
from offtop.ui.app import OfftopApp
from tests.ui.scripted import AT_NS, MS, SHOP, ScriptedSource, Waits
from tests.ui.shown import QUICK_NS, asynchronous, column_titles, pane, screen, shown, top

MAIN, SERVE = Step("main", False), Step("serve", False)


def at(app: OfftopApp, text: str, nth: int = 0) -> tuple[int, int]:
    """Return the position of `text` on the screen."""
    places = [(line.index(text), y) for y, line in enumerate(screen(app)) if text in line]
    return places[nth]


async def click(app: OfftopApp, pilot: Pilot[int], text: str, nth: int = 0) -> None:
    await pilot.click(offset=at(app, text, nth))
    await pilot.pause()


async def wheel(pilot: Pilot[int], offset: tuple[int, int], down: bool) -> None:
    event = events.MouseScrollDown if down else events.MouseScrollUp
    await pilot._post_mouse_events([event], offset=offset)  # pyright: ignore[reportPrivateUsage]
    await pilot.pause()


@asynchronous
async def test_click_selects_a_category_and_a_second_click_opens_its_list() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await click(app, pilot, "net-recv")
        assert (app.view.category, app.view.focus) == ("net-recv", CATEGORIES)
        await click(app, pilot, "> net-recv ", nth=1)
        assert (app.view.category, app.view.focus) == ("net-recv", LIST)
        await click(app, pilot, " all ")
        assert (app.view.category, app.view.focus) == ("", CATEGORIES)
    async with shown(ScriptedSource(ticks=12)) as (app, pilot):
        lines = pane(app, CATEGORIES)
        assert not lines[-1], "the number of rows is even, and there are five categories"
        await pilot.click(offset=(10, top(app, CATEGORIES) + len(lines) - 1))
        assert (app.view.category, app.view.focus) == ("", CATEGORIES)


@asynchronous
async def test_clicks_in_the_list_lead_to_a_process_and_its_thread() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await click(app, pilot, "bank")
        assert (app.view.focus, app.view.cursor, app.view.pid) == (LIST, 200, None)
        await click(app, pilot, "bank")
        assert app.view.pid == 200
        await click(app, pilot, "teller")
        await click(app, pilot, "teller")
        assert (app.view.thread, app.view.focus) == (ThreadKey(200, 201), TREE)


@pytest.mark.parametrize(
    ("panel", "titles"), [(CATEGORIES, ("MAX", "EV/S", "WAITING")), (LIST, ("MAX", "NOW", "WAITING"))]
)
@asynchronous
async def test_click_on_a_column_header_sorts_and_a_second_click_reverses(panel: str, titles: tuple[str, ...]) -> None:
    async with shown(ScriptedSource(SHOP, ticks=12), (160, 50)) as (app, pilot):
        row, of_list = top(app, panel) + (panel == LIST), top(app, LIST) + 1
        for title in titles:
            x = column_titles(app, panel).index(title)
            await pilot.click(offset=(x, row))
            assert (app.view.sort, app.view.reverse) == (title, False)
            await pilot.click(offset=(x + len(title) - 1, row))
            assert (app.view.sort, app.view.reverse) == (title, True)
        x = column_titles(app, panel).index("p99")
        await pilot.click(offset=(x, row))
        assert (app.view.sort, app.view.reverse) == ("P99", False)
        x = column_titles(app, LIST).index("COMMAND")
        await pilot.click(offset=(x, of_list))
        assert app.view.sort == "NAME"
        await pilot.click(offset=(column_titles(app, LIST).index("PID"), of_list))
        assert app.view.sort == "PID"


@asynchronous
async def test_second_half_of_a_double_click_on_the_selection_does_nothing_in_the_list_that_opened() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("tab")
        place = at(app, "shop")
        assert screen(app)[place[1]].startswith(">")
        await pilot.click(offset=place, times=2)
        assert (app.view.pid, app.view.thread, app.view.sort) == (100, None, "WAITING"), (
            "its column titles are there now"
        )
        await asyncio.sleep(App.CLICK_CHAIN_TIME_THRESHOLD)
        await pilot.click(offset=at(app, "worker-2"))
        assert app.view.cursor == ThreadKey(100, 102), "later clicks count"


def process_of(view: View) -> int | None:
    return view.pid


def thread_of_opened_wait(view: View) -> int | None:
    return view.stuck.cursor.tid if view.stuck.opened and view.stuck.cursor else None


@pytest.mark.parametrize(("keys", "number_of"), [(("tab",), process_of), (("5", "plus"), thread_of_opened_wait)])
@asynchronous
async def test_clicked_row_stays_under_the_pointer_for_the_second_click(
    keys: Sequence[str], number_of: Callable[[View], int | None]
) -> None:
    many = [
        Waits(f"p{n}", n, f"p{n}", n, "lock", "futex_do_wait", waits_on=True, older_ms=99 - n) for n in range(10, 50)
    ]
    async with shown(ScriptedSource(many, ticks=12), (80, 24)) as (app, pilot):
        await pilot.press(*keys, *["down"] * 20)
        rows = [y for y, line in enumerate(screen(app)) if "futex_do_wait" in line and " p" in line]
        for y in (rows[-1], rows[2]):
            words = screen(app)[y].split()
            await pilot.click(offset=(12, y))
            assert screen(app)[y].split() == [">", *words]
        await pilot.click(offset=(12, y))
        assert f"p{number_of(app.view)}" in words
        await pilot.press("escape")
        assert screen(app)[y].split() == [">", *words]


@asynchronous
async def test_clicked_category_stays_under_the_pointer() -> None:
    names = ["lock", "pipe", "fsync", "disk-read", "disk-write", "swap", "child", "reclaim", "net-recv", "throttle"]
    many = [Waits("p", 1, "p", 1, name, name, (), (90 - n,)) for n, name in enumerate(names)]
    async with shown(ScriptedSource(many, ticks=12)) as (app, pilot):
        await pilot.press(*["down"] * 8)
        for y in (top(app, CATEGORIES) + 2, top(app, CATEGORIES) + 6):
            name = screen(app)[y].split()[0]
            await pilot.click(offset=(5, y))
            assert (app.view.category, screen(app)[y].split()[:2]) == (name, [">", name])
        before = screen(app)[y]
        await pilot.press("tab")
        await pilot.click(offset=(5, top(app, LIST) + 2))
        assert (app.view.focus, screen(app)[y]) == (LIST, before), "each list keeps its own line"
        await pilot.click(offset=(5, y))
        assert (app.view.focus, screen(app)[y]) == (CATEGORIES, before)


@asynchronous
async def test_click_selects_a_branch_and_a_second_click_toggles_it() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("t")
        await click(app, pilot, "▶ ask")
        assert app.view.tree.cursor == (MAIN, Step("ask", False))
        assert not any("greeting" in line for line in screen(app))
        await click(app, pilot, "▶ ask")
        assert any("greeting" in line for line in screen(app))
        await click(app, pilot, "▼ ask")
        assert not any("greeting" in line for line in screen(app))
        await pilot.click(offset=(40, 18))
        assert app.view.tree.cursor == (MAIN, Step("ask", False))


@asynchronous
async def test_click_on_a_selected_leaf_opens_its_site() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("t")
        await click(app, pilot, "take_order")
        assert app.view.focus == TREE
        await click(app, pilot, "take_order")
        assert app.view.focus == SITE
        assert app.view.path[:2] == (MAIN, SERVE)


@asynchronous
async def test_wheel_moves_three_rows_in_the_pane_under_the_pointer() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12), (160, 50)) as (app, pilot):
        await wheel(pilot, (5, top(app, CATEGORIES) + 3), down=True)
        assert (app.view.focus, app.view.category) == (CATEGORIES, "fsync")
        await wheel(pilot, (5, top(app, CATEGORIES) + 3), down=False)
        assert app.view.category == ""
        await wheel(pilot, (5, top(app, LIST) + 3), down=True)
        assert (app.view.focus, app.view.cursor) == (LIST, 200)
        await wheel(pilot, (20, top(app, TREE) + 3), down=True)
        assert app.view.focus == TREE
        assert app.picture is not None and app.picture.tree is not None
        assert app.picture.tree.cursor == 3


@asynchronous
async def test_histogram_ignores_clicks_and_the_wheel() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12), (160, 50)) as (app, pilot):
        assert app.view.latency != HISTOGRAM
        await pilot.click(offset=(120, 8))
        await wheel(pilot, (120, 8), down=True)
        assert app.view.focus == CATEGORIES


@asynchronous
async def test_click_selects_a_heat_map_cell() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12), view=View(delay_ns=QUICK_NS, latency=HEATMAP)) as (app, pilot):
        y, line = next((y, line) for y, line in enumerate(screen(app)) if "67ms-134ms" in line)
        await pilot.click(offset=(len(line) - 2, y))
        assert app.view.focus == LATENCY
        assert app.view.cell is not None and app.view.cell.end_ns == AT_NS + 10_000 * MS
        assert any(line.startswith(" 02:00:05-02:00:10  67ms-134ms: 10 waits") for line in screen(app))
        before = app.view.cell
        await pilot.click(offset=(3, y))
        assert app.view.cell == before


@asynchronous
async def test_click_selects_a_box_and_a_second_click_zooms_to_it() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("g")
        await click(app, pilot, "serve")
        assert (app.view.flame.cursor, app.view.flame.zoom) == ((MAIN, SERVE), ())
        await click(app, pilot, "serve")
        assert app.view.flame.zoom == (MAIN, SERVE)
        await pilot.click(offset=(3, 15))
        assert (app.view.focus, app.view.flame.zoom) == (FLAME, (MAIN, SERVE))


@asynchronous
async def test_wheel_scrolls_a_site() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("t", "enter")
        top = screen(app)[6]
        await wheel(pilot, (10, 12), down=True)
        assert app.view.scrolled == 3
        assert screen(app)[6] != top
        await wheel(pilot, (10, 12), down=False)
        assert screen(app)[6] == top


@asynchronous
async def test_clicks_on_header_alert_and_key_bar_do_nothing() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        before = app.view
        for y in (0, 1, top(app, CATEGORIES) - 1, top(app, LIST), top(app, "alert"), top(app, "keys")):
            await pilot.click(offset=(20, y))
        assert app.view == before


@asynchronous
async def test_click_does_not_close_an_open_prompt() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("/", "b")
        await click(app, pilot, "net-recv")
        await pilot.press("a", "n", "k", "enter")
        assert app.view.filter.text == "bank"


@asynchronous
async def test_mouse_selects_in_a_menu() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("f6")
        await click(app, pilot, "( ) NAME")
        assert (app.view.sort, len(app.screen_stack)) == ("NAME", 1)
        await pilot.press("f")
        await click(app, pilot, "[x] column EV/S")
        assert app.view.hidden == {"EV/S"}
        await click(app, pilot, "[ ] column EV/S")
        assert app.view.hidden == frozenset()
        await wheel(pilot, at(app, "column MAX"), down=True)
        await pilot.press("space")
        assert app.view.hidden == {"p50<="}
        await click(app, pilot, "SPACE on or off")
        assert app.view.hidden == {"p50<="}


@asynchronous
async def test_hint_line_of_a_long_menu_is_not_an_entry() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12), (80, 10)) as (app, pilot):
        await pilot.press("f")
        await click(app, pilot, "SPACE on or off")
        assert app.view.hidden == frozenset()
