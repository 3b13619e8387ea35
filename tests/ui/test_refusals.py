"""A key that cannot act says so in one sentence, and changes nothing that comes to light later."""

import pytest

from offtop.model.viewmodel.view import CATEGORIES, LIST, STUCK, TREE
from tests.ui.scripted import SHOP, ScriptedSource
from tests.ui.scripted import STUCK as WAITS
from tests.ui.shown import asynchronous, screen, shown

OFF_CPU = "this is off-CPU time already: 2 shows who ends waits, 5 what is stuck"
OF_LIST = "this key is for the list, which is not on the screen"
OF_TABLES = "this key is for the tables, which are not on the screen"
OF_STACKS = "this key is for the stack tree and the icicle: t and g show them"


@pytest.mark.parametrize(
    ("key", "said"),
    [
        *((key, OF_LIST) for key in ("A", "c", "R", "I")),
        *((key, OF_TABLES) for key in ("P", "M", "T", "E", "<", ">", "f6")),
        *((key, OF_STACKS) for key in ("v", "K", "U", ".")),
        ("*", "this key is for the stack tree: t shows it"),
        ("x", "this pane has the whole screen already"),
    ],
)
@asynchronous
async def test_among_what_is_stuck_keys_of_other_panes_say_what_they_are_for(key: str, said: str) -> None:
    async with shown(ScriptedSource(WAITS, ticks=12)) as (app, pilot):
        await pilot.press("5")
        before = app.view
        await pilot.press(key)
        assert (app.view, screen(app)[-2], len(app.screen_stack)) == (before, said, 1)
        await pilot.press("down")
        assert app.view.focus == STUCK and screen(app)[-2] != said


@asynchronous
async def test_1_says_that_this_is_off_cpu_time_already() -> None:
    async with shown(ScriptedSource(SHOP)) as (app, pilot):
        before = app.view
        await pilot.press("1")
        assert (app.view, screen(app)[-2]) == (before, OFF_CPU)
        await pilot.press("5", "1")
        assert app.view.focus == CATEGORIES and "already" not in screen(app)[-2]


@asynchronous
async def test_where_the_tree_has_the_screen_the_tables_are_not_sorted_behind_it() -> None:
    async with shown(ScriptedSource(SHOP)) as (app, pilot):
        await pilot.press("t", "M")
        assert (app.view.focus, app.view.sort, screen(app)[-2]) == (TREE, "WAITING", OF_TABLES)
        await pilot.press("v")
        assert app.view.tree.shape.inverted
        await pilot.press("g", "x")
        assert screen(app)[-2] == "this pane has the whole screen already"


@asynchronous
async def test_where_the_tree_stands_beside_the_list_its_keys_work_from_there() -> None:
    async with shown(ScriptedSource(SHOP), (160, 50)) as (app, pilot):
        await pilot.press("tab", "v", "*")
        assert (app.view.focus, app.view.tree.shape.inverted) == (LIST, True)
        assert "this key" not in screen(app)[-2]


@asynchronous
async def test_where_the_categories_have_the_screen_the_list_is_not_turned_round() -> None:
    async with shown(ScriptedSource(SHOP)) as (app, pilot):
        await pilot.press("x", "R")
        assert (app.view.reverse, screen(app)[-2]) == (False, OF_LIST)
        await pilot.press("M")
        assert app.view.sort == "MAX"
