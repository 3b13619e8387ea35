"""The keys w and r choose the span that the numbers are of; in each, a steady load has the same rates."""

from offtop.model.viewmodel.view import SINCE_START
from tests.ui.scripted import MS, SHOP, ScriptedSource
from tests.ui.shown import asynchronous, screen, shown, until


@asynchronous
async def test_w_cycles_the_windows() -> None:
    async with shown(ScriptedSource(ticks=75)) as (app, pilot):
        heads: list[str] = []
        for _ in range(4):
            heads.append(screen(app)[0].partition(" 5 ")[2].rpartition("  LIVE")[0].strip())
            await pilot.press("w")
        assert heads == ["window 10s", "window 1m", "since start 75s", "window 1s"]
        assert app.view.span_ns != SINCE_START


@asynchronous
async def test_steady_load_shows_the_same_waiting_in_every_window() -> None:
    async with shown(ScriptedSource(ticks=75)) as (app, pilot):
        for _ in range(4):
            await pilot.press("w")
            assert app.picture is not None
            assert app.picture.common.totals.shown.total_ns * 10 // app.picture.common.span_ns == 7
            assert [row.key for row in app.picture.listed.ranking.rows] == [4242, 3100, 977]
            assert app.picture.categories.ranking.rows[0].part.max_ns == 300 * MS


@asynchronous
async def test_switches_are_a_rate_even_since_the_start() -> None:
    async with shown(ScriptedSource(ticks=20)) as (app, pilot):
        await until(lambda: app.picture is not None and app.picture.common.newest.number == 20)
        for _ in range(2):
            await pilot.press("w")
        assert app.picture is not None
        assert (app.view.span_ns, app.picture.head.switches_per_s) == (SINCE_START, 81_200)


@asynchronous
async def test_r_resets_cumulative_counters() -> None:
    source = ScriptedSource(SHOP, ticks=75)
    async with shown(source) as (app, pilot):
        await pilot.press("w", "w")
        assert "since start 75s" in screen(app)[0]
        await pilot.press("r")
        source.go_on(to=77)
        await until(lambda: app.picture is not None and app.picture.common.newest.number == 77)
        await pilot.pause()
        assert "since start 2s" in screen(app)[0]
        assert app.picture is not None and app.picture.common.totals.shown.total_ns == 2_000 * MS
