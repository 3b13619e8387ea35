"""Latency: the histogram of the selection, and the heat map that leads back to earlier times."""

import pytest

from offtop.model.aggregate.filter import NOTHING
from offtop.model.aggregate.filter_syntax import parse
from offtop.model.viewmodel.view import CATEGORIES, HEATMAP, HISTOGRAM, LATENCY, LIST, OFF, SINCE_START, TREE, View
from offtop.ui.app import OfftopApp
from tests.ui.scripted import AT_NS, MS, SHOP, ScriptedSource, Waits
from tests.ui.shown import QUICK_NS, asynchronous, go_on, screen, shown, until

SECOND = 1_000 * MS


def bars(app: OfftopApp) -> dict[str, int]:
    """Return the histogram on the screen: range → number of waits."""
    rows = [line.split("|") for line in screen(app) if line.count("|") == 2 and "off-CPU" not in line]
    return {row[0].split("│")[-1].strip(): int(row[2].split()[0].replace(",", "")) for row in rows}


def title(app: OfftopApp) -> str:
    return next((line for line in screen(app) if "latency of: " in line), "")


def cell_line(app: OfftopApp) -> str:
    """Return the line below the heat map."""
    return next((line for line in screen(app) if "most in a cell" in line), "")


@pytest.mark.parametrize(
    ("width", "height", "steps"),
    [(80, 24, [HISTOGRAM, HEATMAP, OFF, HISTOGRAM]), (160, 50, [HEATMAP, OFF, HISTOGRAM, HEATMAP])],
)
@asynchronous
async def test_l_cycles_histogram_heat_map_and_off(width: int, height: int, steps: list[str]) -> None:
    async with shown(ScriptedSource(SHOP, ticks=12), (width, height)) as (app, pilot):
        assert bool(title(app)) is (width == 160)
        for step in steps:
            await pilot.press("l")
            assert app.view.latency == step
            assert bool(title(app)) is (step != OFF)
            assert bool(bars(app)) is (step == HISTOGRAM)
            assert app.view.focus == (LATENCY if step == HEATMAP else CATEGORIES)


@asynchronous
async def test_histogram_counts_the_waits_of_the_category_in_the_window() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("down", "l")
        assert "latency of: lock" in title(app)
        assert bars(app) == {"67ms-134ms": 10, "134ms-268ms": 30}
        assert " p50<=200ms  p90<=200ms  p99<=200ms  p99.9<=200ms  max 200ms" in screen(app)
        await pilot.press("down")
        assert "latency of: net-recv" in title(app)
        assert sum(bars(app).values()) == 50
        assert any(line.startswith(" p50<=4.2ms  p90<=60ms ") for line in screen(app))
        row = next(line for line in screen(app) if line.startswith("> net-recv"))
        assert row.split()[-3:] == ["4.2ms", "60ms", "60ms"]


@asynchronous
async def test_histogram_follows_the_selected_process_or_thread() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12), (160, 50)) as (app, pilot):
        await pilot.press("tab", "end", "enter")
        assert "latency of: bank(200)" in title(app)
        assert bars(app) == {"34ms-67ms": 20, "67ms-134ms": 10}
        await pilot.press("end", "enter")
        assert app.view.thread == (200, 201)
        assert "latency of: bank(200) > teller(201)" in title(app)
        assert bars(app) == {"67ms-134ms": 10}


@asynchronous
async def test_histogram_of_a_site_counts_its_stacks() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12), (160, 50)) as (app, pilot):
        await pilot.press("t", "down", "enter")
        assert bars(app) == {"67ms-134ms": 10, "134ms-268ms": 30}
        await pilot.press("tab")
        assert app.view.path == ()
        assert sum(bars(app).values()) == 120


@asynchronous
async def test_l_on_a_small_screen_returns_to_the_categories() -> None:
    for keys, focus in ((("tab",), LIST), (("tab", "enter", "enter"), TREE), (("x",), CATEGORIES)):
        async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
            await pilot.press(*keys)
            assert app.view.focus == focus
            thread = app.view.thread
            seen: list[tuple[str, bool]] = []
            for _ in range(3):
                await pilot.press("l")
                seen.append((app.view.focus, bool(title(app))))
            assert seen == [(CATEGORIES, True), (LATENCY, True), (CATEGORIES, False)]
            assert app.view.thread == thread


@pytest.mark.parametrize("presses", [1, 2])
@asynchronous
async def test_esc_closes_the_latency_pane_and_then_clears_the_filter(presses: int) -> None:
    async with shown(ScriptedSource(SHOP, ticks=12), view=View(delay_ns=QUICK_NS, filter=parse("cat=lock"))) as (
        app,
        pilot,
    ):
        await pilot.press(*["l"] * presses)
        assert title(app)
        await pilot.press("escape")
        assert (title(app), app.view.focus, app.view.filter) == ("", CATEGORIES, parse("cat=lock"))
        await pilot.press("escape")
        assert app.view.filter == NOTHING


@asynchronous
async def test_esc_leads_back_to_the_pane_from_which_latency_was_opened() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("tab", "enter", "t")
        before = app.view
        assert before.focus == TREE
        await pilot.press("l")
        assert title(app)
        await pilot.press("escape")
        assert (app.view.focus, app.view.pid, title(app)) == (TREE, before.pid, "")


@pytest.mark.parametrize(("size", "latency"), [((160, 50), HISTOGRAM), ((160, 50), HEATMAP), ((60, 9), HISTOGRAM)])
@asynchronous
async def test_esc_leaves_a_latency_pane_that_covers_no_other(size: tuple[int, int], latency: str) -> None:
    view = View(delay_ns=QUICK_NS, filter=parse("cat=lock"), latency=latency)
    async with shown(ScriptedSource(SHOP, ticks=12), size, view) as (app, pilot):
        await pilot.press("escape")
        assert (app.view.filter, app.view.latency) == (NOTHING, latency)


@asynchronous
async def test_l_says_so_if_there_is_no_room() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12), (60, 9)) as (app, pilot):
        await pilot.press("l", "l")
        assert any("no room for the latency pane" in line for line in screen(app))
        assert app.view.latency != HEATMAP


CHANGES = (
    Waits("p", 9, "p", 9, "lock", "futex_do_wait", ("main",), (100,)),
    Waits("q", 8, "q", 8, "disk-read", "io_schedule", ("main",), (200, 200), begins=5),
)
"""A lock wait all the time, and disk reads from second 5 on."""


@pytest.mark.parametrize(
    ("size", "steps", "at_s", "waited_ms"),
    [((80, 24), 4, 5, 5 * 100), ((160, 50), 2, 10, 10 * 100 + 5 * 400)],
)
@asynchronous
async def test_enter_on_a_heat_map_cell_rewinds_all_panes_to_its_time(
    size: tuple[int, int], steps: int, at_s: int, waited_ms: int
) -> None:
    source = ScriptedSource(CHANGES, ticks=22)
    async with shown(source, size, View(delay_ns=QUICK_NS, latency=HEATMAP)) as (app, pilot):
        await pilot.press("tab", *["left"] * steps)
        assert app.view.focus == LATENCY
        assert app.view.cell is not None and app.view.cell.end_ns == AT_NS + at_s * SECOND
        await pilot.press("enter")
        assert app.picture is not None
        assert app.picture.common.newest.number == at_s
        assert app.picture.common.totals.shown.total_ns == waited_ms * MS
        assert f"02:00:{at_s:02}" in screen(app)[0]
        assert f"PAUSED -{22 - at_s}s" in screen(app)[0]
        assert any(line.startswith("  disk-read") for line in screen(app)) is (at_s == 10)
        source.go_on(to=23)
        await until(lambda: app.picture is not None and app.picture.head.behind_ns == (23 - at_s) * SECOND)
        assert app.picture.common.newest.number == at_s
        await pilot.press("space")
        assert app.picture.common.newest.number == 23
        assert "LIVE" in screen(app)[0]


@asynchronous
async def test_newest_column_of_the_heat_map_pauses_at_the_newest_tick() -> None:
    source = ScriptedSource(CHANGES, ticks=21)
    async with shown(source, view=View(delay_ns=QUICK_NS, latency=HEATMAP, span_ns=SINCE_START)) as (app, pilot):
        await pilot.press("tab", "end", "enter")
        assert app.view.paused_at_ns == AT_NS + 21 * SECOND
        assert app.picture and app.picture.common.totals.shown.total_ns == (21 * 100 + 16 * 400) * MS
        await go_on(app, pilot, source, 24)
        assert (app.picture.common.newest.number, "PAUSED -3s" in screen(app)[0]) == (21, True)


@asynchronous
async def test_line_below_the_heat_map_describes_the_cell() -> None:
    async with shown(ScriptedSource(CHANGES, ticks=20), view=View(delay_ns=QUICK_NS, latency=HEATMAP)) as (app, pilot):
        await pilot.press("tab", "end", "left")
        assert cell_line(app).startswith(" 02:00:10-02:00:15  67ms-134ms: 5 waits   most in a cell 10")
        await pilot.press("up")
        assert cell_line(app).startswith(" 02:00:10-02:00:15  134ms-268ms: 10 waits")
        await pilot.press("up")
        assert cell_line(app).startswith(" 02:00:10-02:00:15  134ms-268ms: 10 waits")
        await pilot.press("left", "left")
        assert cell_line(app).startswith(" 02:00:00-02:00:05  134ms-268ms: 0 waits")
        await pilot.press("left")
        assert cell_line(app).startswith(" 01:59:55-02:00:00  134ms-268ms: not measured")
        await pilot.press(*["right"] * 9)
        assert cell_line(app).startswith(" 02:00:15-02:00:20  134ms-268ms: 10 waits")


@asynchronous
async def test_cell_without_measurements_cannot_be_opened() -> None:
    async with shown(ScriptedSource(CHANGES, ticks=12), view=View(delay_ns=QUICK_NS, latency=HEATMAP)) as (app, pilot):
        await pilot.press("tab", *["left"] * 9, "enter")
        assert "nothing was measured then" in screen(app)
        assert app.view.paused_at_ns is None
        assert app.picture is not None
        await pilot.press("space")
        assert "PAUSED" in screen(app)[0]


@asynchronous
async def test_heat_map_follows_the_selection() -> None:
    async with shown(ScriptedSource(CHANGES, ticks=20)) as (app, pilot):
        await pilot.press("down", "l", "l")
        assert "latency of: disk-read, last 5m" in title(app)
        assert "most in a cell 10" in cell_line(app)
        await pilot.press("shift+tab", "down")
        assert "latency of: lock, last 5m" in title(app)
        assert "most in a cell 5" in cell_line(app)
        await pilot.press("tab", "escape")
        assert app.view.focus == CATEGORIES


@asynchronous
async def test_empty_histogram_and_heat_map_say_so_and_keys_are_harmless() -> None:
    still = Waits("p", 9, "p", 9, "lock", "futex_do_wait", waits_on=True)
    async with shown(ScriptedSource([still], ticks=2)) as (app, pilot):
        for _ in range(2):
            await pilot.press("l")
            assert any("No wait of the minimum length or longer has ended here." in line for line in screen(app))
        await pilot.press("up", "down", "left", "right", "enter", "home", "end", "escape")
        assert app.is_running


@asynchronous
async def test_heat_map_advances_and_the_cursor_stays_at_its_time() -> None:
    source = ScriptedSource(CHANGES, ticks=12)
    async with shown(source, view=View(delay_ns=QUICK_NS, latency=HEATMAP)) as (app, pilot):
        await pilot.press("tab", "left")
        assert cell_line(app).startswith(" 02:00:05-02:00:10 ")
        source.go_on(to=31)
        await until(lambda: app.picture is not None and app.picture.common.newest.number == 31)
        await pilot.pause()
        assert cell_line(app).startswith(" 02:00:05-02:00:10 ")
        assert app.picture is not None and app.picture.heat is not None
        assert sum(column is not None for column in app.picture.heat.columns) == 7
