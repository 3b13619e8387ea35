"""The screen matches stored pictures, character by character, at common sizes.

With OFFTOP_NEW_PICTURES=1 the stored pictures are written again: review the changes before you commit them.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from offtop.model.values.catalog import ThreadKey
from offtop.model.viewmodel.view import LIST, TREE, View
from tests.ui.scripted import TABLE, ScriptedSource, Waits
from tests.ui.shown import QUICK_NS, asynchronous, coloured, screen, shown

PICTURES = Path(__file__).parent / "pictures"
LIVE = View(delay_ns=QUICK_NS)
CONNECTION = ThreadKey(4242, 4268)


def check(name: str, lines: Sequence[str]) -> None:
    path = PICTURES / f"{name}.txt"
    text = "\n".join(lines) + "\n"
    if os.environ.get("OFFTOP_NEW_PICTURES"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("size", [(80, 24), (160, 50), (60, 12), (40, 8), (20, 4)])
@asynchronous
async def test_first_screen(size: tuple[int, int]) -> None:
    async with shown(ScriptedSource(ticks=12), size) as (app, _):
        check(f"first-{size[0]}x{size[1]}", screen(app))


@pytest.mark.parametrize(
    "key", ["", "t", "g", "l", "?", "f"], ids=["first", "tree", "flame", "latency", "help", "setup"]
)
@asynchronous
async def test_ascii_mode_draws_only_ascii(key: str) -> None:
    async with shown(ScriptedSource(ticks=12), ascii_only=True) as (app, pilot):
        if key:
            await pilot.press(key)
            await pilot.pause()
        lines = screen(app)
        assert "".join(lines).isascii()
        if key in ("", "t", "g"):
            check(f"ascii{key and '-'}{key}-80x24", lines)


@asynchronous
async def test_ansi_theme_uses_only_terminal_colours() -> None:
    async with shown(ScriptedSource(ticks=12), theme_name="ansi") as (app, pilot):
        await pilot.press("down")
        check("16-colours-80x24", coloured(app))


@pytest.mark.parametrize("keys", [("l", "l"), ("g", "down"), ("t",), ("backslash", *"comm=foo", "enter")])
@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
@asynchronous
async def test_other_panes(size: tuple[int, int], keys: tuple[str, ...]) -> None:
    async with shown(ScriptedSource(ticks=12), size) as (app, pilot):
        for key in keys if size != (160, 50) or keys != ("l", "l") else ("l",):
            await pilot.press(key)
        await pilot.pause()
        name = {"l": "heat", "g": "flame", "t": "tree"}.get(keys[0], "no-match")
        check(f"{name}-{size[0]}x{size[1]}", screen(app))


@pytest.mark.parametrize("size", [(80, 24), (160, 50), (60, 12)])
@asynchronous
async def test_thread_and_its_stack_tree(size: tuple[int, int]) -> None:
    view = replace(LIVE, category="lock", pid=4242, thread=CONNECTION, focus=TREE, pin=CONNECTION)
    async with shown(ScriptedSource(ticks=12), size, view) as (app, _):
        check(f"thread-{size[0]}x{size[1]}", screen(app))


DEEP = Waits(
    "mysqld",
    4242,
    "connection",
    4268,
    "fsync",
    "jbd2_log_wait_commit",
    (*(f"function_{n}" for n in range(20)), "long" * 40),
    (9,),
)


@asynchronous
async def test_deep_stack_is_complete_in_tree_and_site() -> None:
    view = replace(LIVE, category="fsync", pid=4242, thread=CONNECTION, focus=TREE)
    async with shown(ScriptedSource([DEEP], ticks=12), (80, 24), view) as (app, pilot):
        assert all(f"function_{n}" in "".join(screen(app)) for n in range(20))
        check("deep-tree-80x24", screen(app))
        await pilot.press("enter")
        check("deep-site-80x24", screen(app))
        await pilot.press("end")
        assert any("longlong" in line for line in screen(app))


@asynchronous
async def test_threads_including_idle_ones() -> None:
    view = replace(LIVE, threads=True, idle_shown=True, focus=LIST, sort="NAME")
    async with shown(ScriptedSource(ticks=12), (120, 30), view) as (app, _):
        check("threads-120x30", screen(app))


@asynchronous
async def test_losses_are_in_the_header_at_every_size() -> None:
    for size in ((80, 24), (80, 12)):
        async with shown(ScriptedSource(ticks=3, lost={"stacks": 812, "sites": 2}), size) as (app, _):
            check(f"lost-{size[0]}x{size[1]}", screen(app))


@asynchronous
async def test_nothing_waits() -> None:
    async with shown(ScriptedSource([], ticks=2)) as (app, _):
        check("nothing-80x24", screen(app))


@asynchronous
async def test_only_idle_waits() -> None:
    async with shown(ScriptedSource([row for row in TABLE if row.waits_on], ticks=2)) as (app, _):
        check("idle-80x24", screen(app))


HOSTILE = Waits("\x1b[2J[bold]rm", 66, "\x9b31m\u202eevil\n", 66, "lock", "futex\x1b]0;x\x07", ("\x1b[H[/]<i>",), (10,))


@asynchronous
async def test_hostile_names_are_shown_escaped() -> None:
    view = replace(LIVE, category="lock", threads=True, focus=LIST, pin=ThreadKey(66, 66))
    async with shown(ScriptedSource([HOSTILE], ticks=2), (160, 50), view) as (app, _):
        lines = screen(app)
        assert not [c for line in lines for c in line if ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or c == "\u202e"]
        assert app.export_screenshot().count("\x1b") == 0
        check("hostile-160x50", lines)
