"""Keys move between panes and levels, and what they select applies to every pane."""

import pytest

from offtop.model.values.catalog import ThreadKey
from offtop.model.viewmodel.view import CATEGORIES, LATENCY, LIST, SITE, TREE
from offtop.ui.app import OfftopApp
from tests.ui.scripted import MS, SHOP, ScriptedSource
from tests.ui.shown import asynchronous, crumb_line, screen, shown

CONNECTION, WRITER = ThreadKey(4242, 4268), ThreadKey(4242, 4251)


def crumb(app: OfftopApp) -> str:
    return crumb_line(app).split("  ")[0]


@asynchronous
async def test_down_and_up_select_a_category_and_the_list_follows() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        assert app.view.category == ""
        await pilot.press("down")
        assert app.view.category == "lock"
        assert any("processes: lock" in line for line in screen(app))
        await pilot.press("j", "j", "k")
        assert app.view.category == "fsync"
        await pilot.press("end")
        assert app.view.category == "short"
        await pilot.press("home", "up")
        assert app.view.category == ""


@asynchronous
async def test_enter_drills_down_to_a_thread_and_escape_goes_back() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        await pilot.press("down", "enter")
        assert (app.view.focus, app.view.pid) == (LIST, None)
        await pilot.press("enter")
        assert app.view.pid == 4242
        assert any("threads of mysqld(4242): lock" in line for line in screen(app))
        await pilot.press("enter")
        assert app.view.thread == CONNECTION
        assert crumb_line(app).startswith("All > lock > mysqld(4242) > connection(4268)")
        assert any("futex_do_wait" in line for line in screen(app))
        seen: list[tuple[object, ...]] = []
        for _ in range(5):
            await pilot.press("escape")
            seen.append((app.view.thread, app.view.pid, app.view.focus, app.view.category))
        assert seen == [
            (None, 4242, LIST, "lock"),
            (None, None, LIST, "lock"),
            (None, None, CATEGORIES, "lock"),
            (None, None, CATEGORIES, ""),
            (None, None, CATEGORIES, ""),
        ]


@asynchronous
async def test_breadcrumb_follows_each_step_down_and_back() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        steps = [
            ("down", "All > lock", CATEGORIES),
            ("enter", "All > lock", LIST),
            ("enter", "All > lock > shop(100)", LIST),
            ("enter", "All > lock > shop(100) > worker-1(101)", TREE),
            ("enter", "All > lock > shop(100) > worker-1(101) > futex_do_wait", SITE),
        ]
        for key, words, focus in steps:
            await pilot.press(key)
            assert (crumb(app)[:79], app.view.focus) == (words, focus)
        for _, words, focus in reversed(steps[:-1]):
            await pilot.press("escape")
            assert (crumb(app)[:79], app.view.focus) == (words, focus)
        await pilot.press("backspace")
        assert crumb(app) == "All"
        await pilot.press("escape")
        assert (app.view.focus, app.is_running) == (CATEGORIES, True)


@asynchronous
async def test_each_level_remembers_its_cursor() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("tab", "down", "enter", "down", "enter")
        assert (app.view.pid, app.view.thread) == (200, ThreadKey(200, 201))
        await pilot.press("escape")
        assert app.view.cursor == ThreadKey(200, 201)
        assert any(line.startswith(">      201 teller") for line in screen(app))
        await pilot.press("escape")
        assert any(line.startswith(">      200 bank") for line in screen(app))


NUMBERS_OF: dict[tuple[str, ...], tuple[int, int, int]] = {
    (): (10_000, 10_000, 120),
    ("down",): (7_000, 7_000, 40),
    ("down", "enter", "enter"): (6_000, 6_000, 30),
    ("down", "enter", "enter", "down", "enter"): (2_000, 6_000, 10),
    ("enter", "enter", "enter"): (5_000, 8_000, 30),
    ("enter", "down", "enter", "enter"): (1_000, 2_000, 20),
}
"""Keys → waiting time in ten seconds of the selection and of the list (ms), and finished waits of the selection."""


@pytest.mark.parametrize("keys", NUMBERS_OF)
@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
@asynchronous
async def test_selection_applies_to_every_pane(keys: tuple[str, ...], size: tuple[int, int]) -> None:
    async with shown(ScriptedSource(SHOP, ticks=12), size) as (app, pilot):
        if keys:
            await pilot.press(*keys)
        picture = app.picture
        assert picture is not None
        chosen_ms, listed_ms, waits = NUMBERS_OF[keys]
        assert picture.common.selected.total_ns == chosen_ms * MS
        assert picture.common.selected.waits == waits
        assert picture.listed.ranking.whole.total_ns == listed_ms * MS
        assert {round(value, 3) for value in picture.head.timeline.cells if value is not None} == {chosen_ms / 10_000}
        if picture.tree is not None:
            assert picture.tree.root.total_ns == chosen_ms * MS
        of_category = next((row for row in picture.categories.ranking.rows if row.key == app.view.category), None)
        assert (
            of_category.part.total_ns if of_category else picture.categories.ranking.whole.total_ns
        ) == chosen_ms * MS
        assert picture.common.totals.shown.total_ns == 10_000 * MS


@asynchronous
async def test_tab_cycles_the_visible_panes_and_shift_tab_goes_backwards() -> None:
    for size, keys, panes in (
        ((80, 24), (), [LIST, CATEGORIES]),
        ((80, 24), ("l",), [CATEGORIES, CATEGORIES]),
        ((80, 24), ("l", "l", "shift+tab"), [LATENCY, CATEGORIES]),
        ((160, 50), (), [LIST, TREE, CATEGORIES]),
        ((160, 50), ("l", "shift+tab"), [LATENCY, LIST, TREE, CATEGORIES]),
        ((160, 50), ("t", "enter", "tab"), [LIST, TREE, CATEGORIES]),
        ((60, 9), (), [CATEGORIES]),
    ):
        async with shown(ScriptedSource(SHOP, ticks=12), size) as (app, pilot):
            if keys:
                await pilot.press(*keys)
            for step, order in (("tab", panes), ("shift+tab", [*panes[-2::-1], panes[-1]])):
                seen: list[str] = []
                for _ in panes:
                    await pilot.press(step)
                    seen.append(app.view.focus)
                assert seen == order


@asynchronous
async def test_tab_moves_the_focus_to_the_list_and_back() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        await pilot.press("tab", "down")
        assert (app.view.category, app.view.cursor) == ("", 3100)
        await pilot.press("pagedown")
        assert app.view.cursor == 977
        await pilot.press("pageup")
        assert app.view.cursor == 4242
        await pilot.press("shift+tab", "down")
        assert app.view.category == "lock"


@asynchronous
async def test_down_in_a_thread_goes_to_the_next_thread() -> None:
    async with shown(ScriptedSource(), (160, 50)) as (app, pilot):
        await pilot.press("tab", "enter", "enter", "shift+tab", "down")
        assert app.view.thread == WRITER
        assert any("jbd2_log_wait_commit" in line for line in screen(app))


@asynchronous
async def test_x_zooms_the_focused_pane_and_escape_restores_all() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12), (160, 50)) as (app, pilot):
        await pilot.press("tab", "x")
        assert not any("CATEGORY" in line or "STACK" in line for line in screen(app))
        await pilot.press("enter")
        assert crumb(app) == "All > shop(100)"
        assert not any("CATEGORY" in line for line in screen(app))
        await pilot.press("escape")
        assert crumb(app) == "All > shop(100)"
        assert any("CATEGORY" in line for line in screen(app))
