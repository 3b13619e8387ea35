"""Help shows the keys of the current pane first, and can be searched."""

import pytest

from offtop.ui.kit.keys import KEYS
from offtop.ui.kit.keys import shown as shown_key
from offtop.ui.kit.pane_keys import PANES
from tests.ui.scripted import ScriptedSource
from tests.ui.shown import asynchronous, screen, shown


@pytest.mark.parametrize(
    ("keys", "title"),
    [
        ((), "list of categories"),
        (("tab",), "list of programs, processes or threads"),
        (("t",), "stack tree"),
        (("g",), "icicle"),
        (("5",), "waits in progress"),
        (("O",), "outliers"),
    ],
)
@asynchronous
async def test_keys_of_the_current_pane_come_first(keys: tuple[str, ...], title: str) -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        await pilot.press(*keys, "?")
        await pilot.pause()
        lines = screen(app)
        assert lines[2].rstrip() == f"Keys in this pane: {title}"
        pressed, _ = PANES[app.view.focus].rows({})[0]
        assert lines[3].split()[: len(pressed.split())] == pressed.split()


def test_keys_of_each_pane_are_in_the_key_table() -> None:
    known = {row.id for row in KEYS}
    assert {one for pane in PANES.values() for ids, _ in pane.keys for one in ids.split(",")} <= known
    rows = PANES["flame"].rows({"drill": "f9"})
    assert rows[1][0] == f"{shown_key('f9')} Esc Backspace"


@asynchronous
async def test_search_goes_to_the_line_and_n_to_the_next() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        await pilot.press("?", "/", *"Icicle", "enter")
        await pilot.pause()
        first = screen(app)
        assert "icicle" in first[0] and "'Icicle'" in first[-1]
        await pilot.press("n")
        await pilot.pause()
        second = screen(app)
        assert "icicle" in second[0] and second[0] != first[0]
        await pilot.press("N")
        await pilot.pause()
        assert screen(app) == first
        await pilot.press("/", "enter")
        await pilot.pause()
        assert screen(app) == second, "without a word, to the next match"
        await pilot.press("/", *"Filters", "enter")
        await pilot.pause()
        assert "'Filters'" in screen(app)[-1], "the last word is not kept in the question"


@asynchronous
async def test_letters_go_to_the_search_and_escape_closes_only_it() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        await pilot.press("?", "/", *"qh? j")
        await pilot.pause()
        assert screen(app)[-1].rstrip() == "search: qh? j"
        await pilot.press("escape")
        await pilot.pause()
        assert "/ search" in screen(app)[-1]
        await pilot.press("escape")
        await pilot.pause()
        assert any("CATEGORY" in line for line in screen(app))


@asynchronous
async def test_search_without_a_match_says_so_and_does_not_scroll() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        await pilot.press("?")
        await pilot.pause()
        before = screen(app)[:-1]
        await pilot.press("/", *"xyzzy", "enter")
        await pilot.pause()
        assert screen(app)[-1].startswith("no line has 'xyzzy'")
        assert screen(app)[:-1] == before
        await pilot.press("escape", "n")
        await pilot.pause()
        assert screen(app)[:-1] == before


@pytest.mark.parametrize("key", ["?", "h", "f1"])
@asynchronous
async def test_help_lists_every_key_and_category_and_the_session(key: str) -> None:
    async with shown(ScriptedSource(), size=(100, 540)) as (app, pilot):
        await pilot.press(key)
        await pilot.pause()
        text = "\n".join(screen(app))
        for row in KEYS:
            assert all(shown_key(key) in text for key in row.keys.split(","))
        for category in ("lock", "disk-read", "run-queue", "short", "other"):
            assert f"\n {category} " in text
        assert "About this session" in text
        assert "6.18.0" in text
        await pilot.press("escape")
        await pilot.pause()
        assert any("CATEGORY" in line for line in screen(app))


@asynchronous
async def test_help_scrolls_and_q_closes_only_it() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        await pilot.press("?")
        await pilot.pause()
        top = screen(app)
        await pilot.press("pagedown", "down")
        await pilot.pause()
        assert screen(app) != top
        await pilot.press("home")
        await pilot.pause()
        assert screen(app) == top
        await pilot.press("q")
        await pilot.pause()
        assert app.is_running
        assert any("CATEGORY" in line for line in screen(app))


@pytest.mark.parametrize("key", ["q", "f10", "ctrl+c", "ctrl+q", "escape"])
@asynchronous
async def test_quit_key_in_help_closes_only_help(key: str) -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        await pilot.press("h")
        assert len(app.screen_stack) == 2
        await pilot.press(key)
        assert len(app.screen_stack) == 1
        assert app.is_running
