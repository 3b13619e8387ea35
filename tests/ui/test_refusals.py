"""A key that has no effect here says so in one sentence, and does not change anything hidden."""

import pytest

from offtop.model.viewmodel.view import CATEGORIES, LIST, STUCK, TREE
from tests.ui.scripted import SHOP, ScriptedSource
from tests.ui.scripted import STUCK as WAITS
from tests.ui.shown import asynchronous, screen, shown

OFF_CPU = "this is off-CPU mode already: 2 lists wakers, 5 waits in progress"
OF_LIST = "this key is for the list, which is not on the screen"
OF_TABLES = "this key is for the tables, which are not on the screen"
OF_STACKS = "this key is for the stack tree and the icicle: t and g show them"


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        *((key, OF_LIST) for key in ("A", "c", "R", "I")),
        *((key, OF_TABLES) for key in ("P", "M", "T", "E", "<", ">", "f6")),
        *((key, OF_STACKS) for key in ("v", "K", "U", ".")),
        ("*", "this key is for the stack tree: t shows it"),
        ("x", "this pane has the whole screen already"),
    ],
)
@asynchronous
async def test_keys_of_other_panes_explain_themselves_in_the_stuck_list(key: str, expected: str) -> None:
    async with shown(ScriptedSource(WAITS, ticks=12)) as (app, pilot):
        await pilot.press("5")
        before = app.view
        await pilot.press(key)
        assert (app.view, screen(app)[-2], len(app.screen_stack)) == (before, expected, 1)
        await pilot.press("down")
        assert app.view.focus == STUCK and screen(app)[-2] != expected


@asynchronous
async def test_1_in_off_cpu_mode_lists_the_other_modes() -> None:
    async with shown(ScriptedSource(SHOP)) as (app, pilot):
        before = app.view
        await pilot.press("1")
        assert (app.view, screen(app)[-2]) == (before, OFF_CPU)
        await pilot.press("5", "1")
        assert app.view.focus == CATEGORIES and "already" not in screen(app)[-2]


@asynchronous
async def test_y_in_an_empty_stuck_list_says_that_there_is_no_process() -> None:
    async with shown(ScriptedSource(SHOP)) as (app, pilot):
        await pilot.press("5", "Y")
        assert not app.picture or not app.picture.stuck.shown.waits
        assert screen(app)[-2].startswith("no process to show: this list is empty")


@asynchronous
async def test_sort_keys_do_not_sort_tables_hidden_by_the_tree() -> None:
    async with shown(ScriptedSource(SHOP)) as (app, pilot):
        await pilot.press("t", "M")
        assert (app.view.focus, app.view.sort, screen(app)[-2]) == (TREE, "WAITING", OF_TABLES)
        await pilot.press("v")
        assert app.view.tree.shape.inverted
        await pilot.press("g", "x")
        assert screen(app)[-2] == "this pane has the whole screen already"


@asynchronous
async def test_tree_keys_work_from_the_list_next_to_it() -> None:
    async with shown(ScriptedSource(SHOP), (160, 50)) as (app, pilot):
        await pilot.press("tab", "v", "*")
        assert (app.view.focus, app.view.tree.shape.inverted) == (LIST, True)
        assert "this key" not in screen(app)[-2]


@asynchronous
async def test_reverse_does_not_apply_to_a_hidden_list() -> None:
    async with shown(ScriptedSource(SHOP)) as (app, pilot):
        await pilot.press("x", "R")
        assert (app.view.reverse, screen(app)[-2]) == (False, OF_LIST)
        await pilot.press("M")
        assert app.view.sort == "MAX"
