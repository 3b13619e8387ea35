"""B marks the shown span as the baseline and D compares with it, in numbers, marks and order."""

from pathlib import Path

import pytest

from offtop.model.viewmodel.view import LIST, TREE, View
from offtop.ui.app import OfftopApp
from tests.test_diff import recorded
from tests.ui.scripted import SHOP, WAKERS, ScriptedSource, Waits
from tests.ui.shown import QUICK_NS, asynchronous, coloured, crumb_line, screen, shown, until
from tests.ui.test_pictures import check
from tests.ui.test_rewind_keys import PILE, played, second

AFTER = 60
CHANGED = (
    *(one._replace(ends=AFTER) if one.category in ("disk-read", "fsync") else one for one in SHOP),
    Waits("shop", 100, "worker-2", 102, "lock", "futex_do_wait", ("take_order", "serve", "main"), (500,), begins=AFTER),
    Waits("thief", 500, "thief", 500, "pipe", "pipe_write", ("steal", "main"), (300,), begins=AFTER),
)
"""After a minute of 1.00 waiting, disk reads and writes stop, worker-2 waits 0.50 more for the lock, and a new process
`thief` appears."""


def alert(app: OfftopApp) -> str:
    return screen(app)[-2]


def line_with(app: OfftopApp, text: str) -> str:
    return next((line for line in screen(app) if text in line), "")


def cursor_line(app: OfftopApp) -> str:
    return next(line for line in reversed(screen(app)) if line.startswith(">"))


def row_of(app: OfftopApp, name: str) -> list[str]:
    """Return the words of the first row with this name, without the cursor."""
    return line_with(app, f" {name} ").lstrip("> ").split()


async def marked(app: OfftopApp, source: ScriptedSource, to: int = AFTER + 10) -> None:
    """Press B and continue to tick `to`."""
    await app.run_action("perform('mark')")
    await until(lambda: app.view.baseline is not None)
    source.go_on(to)
    await until(lambda: app.picture is not None and app.picture.common.newest.number == to)


@asynchronous
async def test_b_reports_the_baseline_and_d_shows_changes_since() -> None:
    source = ScriptedSource(CHANGED, ticks=AFTER)
    async with shown(source) as (app, pilot):
        await pilot.press("B")
        await until(lambda: app.view.baseline is not None)
        assert alert(app) == "baseline: 2026-11-21 02:00:00 to 02:01:00, 1m; D compares with it"
        assert not line_with(app, "CHANGE")
        source.go_on(AFTER + 10)
        await until(lambda: app.picture is not None and app.picture.common.newest.number == AFTER + 10)
        await pilot.press("D")
        assert "compared with the baseline: 2026-11-21 02:00:00" in alert(app)
        assert "vs 02:01:00 (D)" in crumb_line(app)
        assert row_of(app, "all")[:4] == ["all", "1.60", "+0.60!", "x2.5"]
        assert row_of(app, "lock") == ["lock", "1.20", "+0.50!", "x2.5"]
        assert row_of(app, "pipe") == ["pipe", "0.30", "+0.30!", "new"]
        assert row_of(app, "disk-read") == ["disk-read", "-0.10!", "gone"]
        assert row_of(app, "net-recv") == ["net-recv", "0.10", "+0.00", "x1"]
        assert row_of(app, "thief")[:5] == ["500", "thief", "0.30", "+0.30!", "new"]
        await pilot.press("D")
        assert not line_with(app, "CHANGE") and "vs " not in crumb_line(app)


@asynchronous
async def test_d_without_a_baseline_says_so() -> None:
    async with shown(ScriptedSource(SHOP)) as (app, pilot):
        await pilot.press("D")
        assert "there is no baseline: B takes" in alert(app)
        assert not app.view.diff


@asynchronous
async def test_b_takes_the_minute_before_the_paused_view_or_the_whole_window() -> None:
    async with shown(ScriptedSource(SHOP, ticks=100)) as (app, pilot):
        await pilot.press("space", "left_curly_bracket", "B")
        await until(lambda: app.view.baseline is not None)
        assert "02:00:00 to 02:00:40, 40s" in alert(app), "not a whole minute is kept"
        was = app.view.baseline
        await pilot.press("0", "w", "w", "B")
        await until(lambda: app.view.baseline is not was)
        assert "02:00:00 to 02:01:40, 100s" in alert(app)


@asynchronous
async def test_sort_by_change_puts_the_largest_first_and_d_restores_the_sort() -> None:
    source = ScriptedSource(CHANGED, ticks=AFTER)
    async with shown(source, (100, 40)) as (app, pilot):
        await pilot.press("greater_than_sign")
        assert app.view.sort == "MAX", "there is no baseline"
        await pilot.press("less_than_sign")
        await marked(app, source)
        await pilot.press("D", "greater_than_sign")
        assert (app.view.sort, "sort CHANGE" in crumb_line(app)) == ("CHANGE", True)
        assert app.picture
        assert [row.name for row in app.picture.categories.ranking.rows][:4] == ["lock", "pipe", "disk-read", "fsync"]
        assert [row.name for row in app.picture.listed.ranking.rows][:3] == ["shop", "thief", "bank"]
        await pilot.press("R")
        assert [row.name for row in app.picture.listed.ranking.rows][-1] == "shop"
        await pilot.press("D")
        assert "sort WAITING" in crumb_line(app)
        await pilot.press("D", "f6")
        assert line_with(app, "(x) CHANGE")


@asynchronous
async def test_disappeared_thread_cannot_be_opened_but_a_category_can_be_selected() -> None:
    source = ScriptedSource(CHANGED, ticks=AFTER)
    async with shown(source, (100, 40)) as (app, pilot):
        await marked(app, source)
        await pilot.press("D", "H", "tab", "end")
        assert cursor_line(app).split() == [">", "vault", "bank", "-0.10!", "gone"]
        before = app.view
        await pilot.press("enter")
        assert app.view == before
        assert "only in the baseline" in alert(app)
        for key in ("p", "X", "y", "Y"):
            await pilot.press(key)
            assert (app.view.pin, app.view.muted) == (None, ())
        await pilot.press("escape", "end")
        assert app.view.category == "fsync"
        assert row_of(app, "vault") == ["vault", "bank", "-0.10!", "gone"]


@asynchronous
async def test_tree_site_and_icicle_show_changes() -> None:
    source = ScriptedSource(CHANGED, ticks=AFTER)
    async with shown(source, (100, 30)) as (app, pilot):
        await marked(app, source)
        await pilot.press("D", "t")
        assert app.view.focus == TREE
        assert [word for word in line_with(app, "pipe_write").split() if word in ("new", "+0.30!")] == ["+0.30!", "new"]
        assert "gone" in line_with(app, "io_schedule") and "-0.10!" in line_with(app, "io_schedule")
        await pilot.press("end", "enter")
        assert line_with(app, "-0.10!").split()[-1] == "gone"
        await pilot.press("escape", "home", "enter")
        assert line_with(app, " waiting  +0.30! new ")
        await pilot.press("escape", "g")
        assert "colour = change" in line_with(app, "icicle")
        await pilot.press("down", "right", "right", "right", "right")
        assert "+0.30! new" in line_with(app, "steal  ")


@asynchronous
async def test_significant_changes_are_coloured() -> None:
    source = ScriptedSource(CHANGED, ticks=AFTER)
    async with shown(source, (100, 40), theme_name="dark") as (app, pilot):
        await marked(app, source)
        await pilot.press("D", "tab")
        lines = coloured(app)
        assert "bold #ffaf5f" in next(line for line in lines if "+0.30!" in line and "pipe" in line)
        assert "bold #5fafff" in next(line for line in lines if "-0.10!" in line and "fsync" in line)
        await pilot.press("g")
        assert any("#8a3200" in line and "steal" in line for line in coloured(app))


@asynchronous
async def test_baseline_without_wakers_is_reported() -> None:
    source = ScriptedSource(WAKERS, ticks=20)
    async with shown(source, (100, 30)) as (app, pilot):
        await marked(app, source, 21)
        await pilot.press("D", "2")
        await until(lambda: source.mode == "wakeup")
        source.go_on(24)
        await until(lambda: app.picture is not None and app.picture.common.newest.number == 24)
        assert "the baseline has no wakers" in line_with(app, "wakers: ")
        await pilot.press("B")
        await until(lambda: "compared with it already" in alert(app))
        assert row_of(app, "bank")[:2] == ["200", "bank"] and "CHANGE" in line_with(app, "WAKER")


@asynchronous
async def test_baseline_works_in_a_replay_and_in_rewind(tmp_path: Path) -> None:
    file = recorded(tmp_path / "it.offtop", PILE, 70)
    async with played(Path(file), speed=1000.0, begin=30) as (app, pilot):
        await pilot.press("b", *"02:00:35", "enter")
        await until(lambda: second(app) == 35)
        await pilot.press("B")
        await until(lambda: app.view.baseline is not None)
        await pilot.press("D", "b", *"02:00:43", "enter")
        await until(lambda: second(app) == 43)
        assert "new" in row_of(app, "pile")
        await pilot.press("b", *"02:01:05", "enter")
        await until(lambda: second(app) == 65)
        assert not line_with(app, " pile ")


@pytest.mark.parametrize("keys", ["", "H", "t", "g"], ids=["processes", "threads", "tree", "flame"])
@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
@asynchronous
async def test_screens_match_the_stored_pictures(size: tuple[int, int], keys: str) -> None:
    source = ScriptedSource(CHANGED, ticks=AFTER)
    async with shown(source, size, View(delay_ns=QUICK_NS, focus=LIST)) as (app, pilot):
        await marked(app, source)
        await pilot.press("D", *keys)
        check(f"baseline-{keys or 'first'}-{size[0]}x{size[1]}", screen(app))
