"""Menus for sorting, columns, panes and mutes, and the palette of all actions."""

import asyncio

import pytest
from textual.command import CommandPalette
from textual.pilot import Pilot
from textual.widgets import Input

from offtop.model.aggregate.filter_syntax import parse
from offtop.model.aggregate.rows import SORTS
from offtop.model.viewmodel.view import CATEGORIES, HEATMAP, LIST, OFF, View
from offtop.ui.app import OfftopApp
from offtop.ui.kit import theme
from offtop.ui.kit.keys import KEYS
from offtop.ui.kit.palette import Actions
from offtop.ui.panes.chooser import Chooser
from offtop.ui.panes.tables import CHOOSABLE
from tests.ui.scripted import SHOP, ScriptedSource
from tests.ui.shown import QUICK_NS, asynchronous, column_titles, screen, shown, until, waiting_line


def choices(app: OfftopApp) -> list[str]:
    """Return the entries of the menu on the screen."""
    return [line[line.index("[") :].split("  ")[0] for line in screen(app) if "[x]" in line or "[ ]" in line]


@asynchronous
async def test_f6_offers_the_sort_columns_and_closes_with_the_choice() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("f6")
        lines = "\n".join(screen(app))
        offered = [sort for sort in SORTS if f"({'x' if sort == 'WAITING' else ' '}) {sort}" in lines]
        assert offered == [sort for sort in SORTS if sort != "CHANGE"], "there is no baseline"
        await pilot.press("down", "j", "k", "enter")
        assert (app.view.sort, len(app.screen_stack)) == ("MAX", 1)
        await pilot.press("f6")
        assert any(">(x) MAX" in line for line in screen(app))
        await pilot.press("end", "space")
        assert app.view.sort == "P99"
        await pilot.press("f6", "up", "escape")
        assert (app.view.sort, len(app.screen_stack)) == ("P99", 1)


@pytest.mark.parametrize("key", ["escape", "q", "f", "f2", "f6", "f10", "ctrl+c", "ctrl+q"])
@asynchronous
async def test_quit_keys_close_only_the_menu(key: str) -> None:
    async with shown(ScriptedSource(SHOP, ticks=2)) as (app, pilot):
        await pilot.press("f2")
        assert isinstance(app.screen, Chooser)
        await pilot.press(key)
        assert (len(app.screen_stack), app.is_running) == (1, True)


@asynchronous
async def test_f_lists_columns_panes_and_mutes() -> None:
    view = View(delay_ns=QUICK_NS, muted=(parse("cat=lock"), parse("thread=\x1b[31m")))
    async with shown(ScriptedSource(SHOP, ticks=12), view=view) as (app, pilot):
        await pilot.press("f")
        assert choices(app) == [
            *(f"[x] column {title}" for title in CHOOSABLE),
            *("[x] pane timeline", "[x] pane latency", "[x] pane tree"),
            *("[x] muted cat=lock", "[x] muted thread=\\x1b[31m"),
        ]
        await pilot.press("end", "space")
        assert app.view.muted == (parse("cat=lock"),)
        await pilot.press("enter")
        assert app.view.muted == ()
        await pilot.press("escape")
        assert "muted" not in waiting_line(app)


@pytest.mark.parametrize("title", CHOOSABLE)
@asynchronous
async def test_column_can_be_hidden_and_shown(title: str) -> None:
    async with shown(ScriptedSource(SHOP, ticks=12), (160, 50)) as (app, pilot):
        if title == "PROCESS":
            await pilot.press("H")
            await pilot.resize_terminal(100, 50)
        if title in ("USER", "CGROUP", "WAITING ON"):
            await pilot.press("tab", "x")
        if title == "WAITING ON":
            await pilot.resize_terminal(200, 50)
        await pilot.pause()
        head = "last 60s" if title == "spark" else title
        panel = CATEGORIES if title == "spark" else LIST
        assert head in column_titles(app, panel)
        await pilot.press("f", *["down"] * CHOOSABLE.index(title), "space", "escape")
        assert app.view.hidden == {title}
        assert head not in column_titles(app, panel).replace("p99<=", "" if title == "%" else "p99<=")
        await pilot.press("f", *["down"] * CHOOSABLE.index(title), "space", "escape")
        assert app.view.hidden == frozenset()
        assert head in column_titles(app, panel)


@asynchronous
async def test_panes_can_be_hidden_and_shown() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12), (160, 50)) as (app, pilot):
        before = screen(app)
        for ups, words in ((2, "-10m "), (1, "latency of:"), (0, "stack tree:")):
            assert any(words in line for line in screen(app))
            for is_there in (False, True):
                await pilot.press("f", "end", *["up"] * ups, "space", "escape")
                assert any(words in line for line in screen(app)) is is_there
        assert screen(app) == before


@asynchronous
async def test_focused_latency_pane_can_be_hidden() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12), view=View(delay_ns=QUICK_NS, latency=HEATMAP)) as (app, pilot):
        await pilot.press("tab", "f", "end", "up", "space", "escape")
        assert (app.view.latency, app.view.focus) == (OFF, "categories")


@asynchronous
async def test_ticks_continue_below_an_open_menu() -> None:
    source = ScriptedSource(SHOP, ticks=2)
    async with shown(source) as (app, pilot):
        await pilot.press("f", "down")
        source.go_on(to=9)
        await until(lambda: "02:00:09" in screen(app)[0])
        assert any(">[x] column spark" in line for line in screen(app))


@asynchronous
async def test_menu_scrolls_on_a_small_screen() -> None:
    async with shown(ScriptedSource(SHOP, ticks=2), (40, 8)) as (app, pilot):
        await pilot.press("f")
        assert choices(app)[0] == "[x] column %"
        await pilot.press("end")
        assert choices(app)[-1] == "[x] pane tree"
        await pilot.press("home", "up")
        assert choices(app)[0] == "[x] column %"


async def offered(app: OfftopApp, query: str = "") -> list[str]:
    """Return what the palette lists for `query`."""
    provider = Actions(app.screen)
    hits = provider.search(query) if query else provider.discover()
    return [str(hit.prompt) async for hit in hits]


@asynchronous
async def test_palette_lists_every_action_with_its_keys_themes_and_the_mouse() -> None:
    async with shown(ScriptedSource(SHOP, ticks=2), keymap={"flame": "ctrl+g"}) as (app, _):
        every = await offered(app)
        assert len(every) == len(KEYS) - 1 + len(theme.paths.theme_names()) + 1
        assert "sort waiting  P" in every
        assert "flame  Ctrl-G" in every
        assert {f"theme {name}" for name in theme.paths.theme_names()} <= {*every}
        assert every[-1] == "mouse"
        assert "latency  l" in await offered(app, "histogram")
        assert await offered(app, "xyzzy") == []


@pytest.mark.variant
@asynchronous
async def test_palette_may_be_closed_at_any_moment() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, _):
        for typed in ("", "so"):
            for steps in range(16):
                await app.run_action("command_palette")
                if typed:
                    app.screen.query_one(Input).value = typed
                for _ in range(steps):
                    await asyncio.sleep(0)
                if isinstance(app.screen, CommandPalette):
                    app.leave_overlay_or_quit()
                await asyncio.sleep(0.005)
                assert app.failure is None
                assert not app.has_overlay


async def run_from_palette(app: OfftopApp, pilot: Pilot[int], words: str) -> None:
    await pilot.press("ctrl+p")
    await until(lambda: isinstance(app.screen, CommandPalette))
    app.screen.query_one(Input).value = words
    await pilot.pause(0.3)
    await until(lambda: app.screen.query("CommandList").first().display)  # its results are there
    await pilot.press("enter")
    await pilot.pause()
    if isinstance(app.screen, CommandPalette):
        await pilot.press("enter")
    await until(lambda: not isinstance(app.screen, CommandPalette))
    await pilot.pause()


@asynchronous
async def test_palette_runs_the_chosen_action() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await run_from_palette(app, pilot, "theme mono")
        assert app.theme == "mono"
        await run_from_palette(app, pilot, "mouse")
        assert "offtop uses the mouse" in screen(app)
        await run_from_palette(app, pilot, "mouse")
        assert "the mouse selects text in the terminal" in screen(app)
        await run_from_palette(app, pilot, "sort max")
        assert app.view.sort == "MAX"
        await run_from_palette(app, pilot, "flame")
        assert app.view.focus == "flame"


@asynchronous
async def test_escape_closes_the_palette_without_a_change() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        before = app.view
        await pilot.press("ctrl+p")
        await until(lambda: isinstance(app.screen, CommandPalette))
        await pilot.press("q", "i", "escape")
        await until(lambda: not isinstance(app.screen, CommandPalette))
        assert (app.view, app.is_running) == (before, True)
