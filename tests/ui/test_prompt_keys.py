"""Prompts: what they accept and refuse, and which keys close them."""

from dataclasses import replace

import pytest

from offtop.model.viewmodel.view import View
from tests.ui.scripted import MS, SHOP, WHO, ScriptedSource
from tests.ui.shown import QUICK_NS, asynchronous, screen, shown, until


@asynchronous
async def test_d_prompts_for_the_delay_and_refuses_invalid_input() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        await pilot.press("d")
        assert "seconds between ticks, 0.1 to 60" in screen(app)[-2]
        await pilot.press(*"abc", "enter")
        assert "'abc' is not a delay from 0.1 to 60 s" in screen(app)[-2]
        await pilot.press(*"61", "enter")
        assert "'61' is not a delay from 0.1 to 60 s" in screen(app)[-2]
        assert app.view.delay_ns == QUICK_NS
        await pilot.press(*"2.5", "enter")
        assert app.view.delay_ns == 2_500 * MS
        assert "LIVE 2.5s" in screen(app)[0]
        await pilot.press("d", "escape")
        assert app.view.delay_ns == 2_500 * MS
        assert "seconds between" not in screen(app)[-2]


@asynchronous
async def test_new_delay_applies_at_once() -> None:
    source = ScriptedSource(ticks=1)
    async with shown(source, view=View(delay_ns=60_000 * MS)) as (app, pilot):
        source.go_on(to=3)
        await pilot.press("d", *"0.1", "enter")
        await until(lambda: app.picture is not None and app.picture.common.newest.number == 3)


@asynchronous
async def test_m_prompts_for_the_minimum_and_sets_it_in_the_source() -> None:
    source = ScriptedSource()
    async with shown(source) as (app, pilot):
        await pilot.press("m", "x", "enter")
        assert "'x' is not a length of time" in screen(app)[-2]
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
async def test_letters_go_to_an_open_prompt() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        await pilot.press("d", "q", "i", "tab")
        assert not app.view.idle_shown
        assert app.is_running
        await pilot.press("ctrl+c")
        assert app.return_code == 0


@pytest.mark.parametrize("key", ["/", "\\", "u", "d", "m"])
@asynchronous
async def test_prompt_takes_any_text_and_escape_closes_it(key: str) -> None:
    async with shown(ScriptedSource(SHOP, who=WHO)) as (app, pilot):
        before, rows = app.view, screen(app)[:-2]
        await pilot.press(key, *"qixXHtglpF?Wv.+-*1 ")
        assert screen(app)[-2].endswith("qixXHtglpF?Wv.+-*1")
        assert replace(app.view, search="") == before
        await pilot.press("escape")
        assert (app.view, screen(app)[:-2]) == (before, rows)
        await pilot.press("i")
        assert app.view.idle_shown


@pytest.mark.parametrize("before", [("/",), ("d",), ("f",), ("f6",), ("?",), ("ctrl+p",), ("g",), ("t", "enter")])
@asynchronous
async def test_ctrl_c_closes_an_overlay_first_and_then_offtop(before: tuple[str, ...]) -> None:
    async with shown(ScriptedSource(SHOP)) as (app, pilot):
        await pilot.press(*before)
        await pilot.pause()
        had_overlay = len(app.screen_stack) > 1
        await pilot.press("ctrl+c")
        await pilot.pause()
        if had_overlay:
            assert (len(app.screen_stack), app.return_code) == (1, None)
            await pilot.press("ctrl+c")
        assert app.return_code == 0
