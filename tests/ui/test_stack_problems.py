"""The page of user stack problems follows the selection and new ticks, at any size."""

import pytest

from offtop.ui.panes.stack_problems import StackProblems
from tests.ui.scripted import SHOP, BrokenSource, ScriptedSource, Waits
from tests.ui.shown import asynchronous, screen, shown, until

BUILD = "build it with -fasynchronous-unwind-tables"


@asynchronous
async def test_v_lists_binaries_with_share_reason_and_remedy() -> None:
    async with shown(BrokenSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("V")
        lines = screen(app)
        at = next(number for number, line in enumerate(lines) if "user stacks of 1.00 waiting" in line)
        assert lines[at].split(": ")[1] == "40% whole, 90% with all names"
        assert lines[at + 1].strip() == "callers missing: no unwind information"
        assert BUILD in lines[at + 2]
        assert lines[at + 4].split() == ["60%", "0.60", "libshop.so.1"]
        assert lines[at + 5].strip() == "names missing: stripped of its symbols"
        assert "install its debug symbols" in lines[at + 6]
        assert lines[at + 8].split() == ["10%", "0.10", "\\x1b[2Jbank"]
        await pilot.press("V")
        assert not isinstance(app.screen, StackProblems)


@asynchronous
async def test_problems_follow_the_selection() -> None:
    async with shown(BrokenSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("tab", "down", "enter", "V")
        assert any("user stacks of 0.20 waiting: 100% whole, 50% with all names" in line for line in screen(app))
        await pilot.press("escape", "escape", "escape", "end", "V")
        assert any("All of them are complete, and all functions have names." in line for line in screen(app))


@asynchronous
async def test_problems_are_updated_while_open() -> None:
    source = BrokenSource(SHOP, ticks=3)
    async with shown(source) as (app, pilot):
        await pilot.press("V")
        assert any("90% with all names" in line for line in screen(app))
        source.name("", "count_money")
        source.go_on(4)
        await until(lambda: bool(app.picture and app.picture.common.newest.number == 4))
        await pilot.pause()
        assert isinstance(app.screen, StackProblems)
        assert any("40% whole, 100% with all names" in line for line in screen(app))


@asynchronous
async def test_no_user_stacks_are_reported() -> None:
    kernel = Waits("kworker/0:1", 51, "kworker/0:1", 51, "disk-read", "io_schedule", waits_ms=(100,))
    async with shown(ScriptedSource([kernel], ticks=12)) as (app, pilot):
        await pilot.press("V")
        assert any("No wait that is shown here has a user stack" in line for line in screen(app))


@pytest.mark.parametrize("size", [(80, 24), (40, 8), (30, 5), (160, 50)])
@asynchronous
async def test_problems_fit_each_screen_and_scroll(size: tuple[int, int]) -> None:
    async with shown(BrokenSource(SHOP, ticks=12), size) as (app, pilot):
        await pilot.press("V", "end")
        lines = screen(app)
        assert any("ESC close" in line for line in lines)
        assert any("10%    0.10  \\x1b[2Jbank" in line for line in lines)
        await pilot.press("home")
        assert any("user stacks of 1.00" in line for line in screen(app))
        assert all(len(line) <= size[0] for line in screen(app))
