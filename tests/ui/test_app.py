"""The app measures even if the screen is blocked, ends when its source ends, and fits every terminal."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtop.errors import KernelError
from offtop.model.viewmodel import view as views
from offtop.ui.app import OfftopApp
from offtop.ui.kit.glyphs import ASCII, UNICODE, sparkline
from offtop.ui.kit.layout import arrange
from offtop.ui.kit.lines import NO_LINE, Line, cut_spans, fit, spread, whole_sentences, width_of
from tests.ui.scripted import ScriptedSource
from tests.ui.shown import CATEGORIES, QUICK_NS, View, asynchronous, screen, shown, until


@asynchronous
async def test_blocked_screen_does_not_stop_reading() -> None:
    source = ScriptedSource(ticks=1)
    async with shown(source) as (app, pilot):
        source.go_on(to=10_000)
        end_s = time.monotonic() + 20
        while source.reads <= 20:
            assert time.monotonic() < end_s, "the source is not read"
            time.sleep(0.01)  # blocks the event loop on purpose
        read_meanwhile = source.reads
        source.go_on(to=source.reads)
        await until(lambda: app.picture is not None and app.picture.common.newest.number == source.ticks)
        await pilot.pause()
        assert app.picture is not None
        assert app.picture.common.newest.number >= read_meanwhile - 1


@asynchronous
async def test_queued_ticks_are_drawn_once() -> None:
    source = ScriptedSource(ticks=1)
    async with shown(source) as (app, pilot):
        drawn: list[int] = []
        draw = app.session.pictures.of
        app.session.pictures.of = lambda view, room: drawn.append(0) or draw(view, room)
        source.go_on(to=300)
        while source.reads <= 300:
            time.sleep(0.01)  # blocks the event loop on purpose
        await until(lambda: app.picture is not None and app.picture.common.newest.number == 300)
        await pilot.pause()
        assert len(drawn) <= 3


@asynchronous
async def test_ended_source_leaves_its_last_picture() -> None:
    async with shown(ScriptedSource(ticks=3, ends=True)) as (app, pilot):
        await until(lambda: "All measured processes have exited" in screen(app)[-2])
        assert screen(app)[0].endswith("ENDED")
        await pilot.press("left_square_bracket")
        assert "PAUSED" in screen(app)[0]
        await pilot.press("0")
        assert screen(app)[0].endswith("ENDED")
        assert app.is_running
        assert app.picture is not None
        assert app.picture.common.newest.number == 3


@asynchronous
async def test_source_without_a_tick_ends_the_app_with_a_message() -> None:
    app = OfftopApp(ScriptedSource(ticks=0, ends=True), View(delay_ns=QUICK_NS), CATEGORIES)
    async with app.run_test():
        await until(lambda: app.failure is not None)
    assert str(app.failure) == "All measured processes have exited: there is no tick to show"
    assert app.return_value == 1


@asynchronous
async def test_error_of_the_source_ends_the_app_with_its_status() -> None:
    error = KernelError("the kernel took the probe away. Start offtop again")
    app = OfftopApp(ScriptedSource(ticks=1, error=error), View(delay_ns=QUICK_NS), CATEGORIES)
    async with app.run_test():
        await until(lambda: app.failure is not None)
    assert app.failure is error
    assert app.return_value == 4


@asynchronous
async def test_app_ends_after_the_given_iterations() -> None:
    source = ScriptedSource(ticks=50)
    app = OfftopApp(source, View(delay_ns=QUICK_NS), CATEGORIES, iterations=5)
    async with app.run_test():
        await until(lambda: app.return_value is not None)
    source.close()
    assert app.return_value == 0


@asynchronous
async def test_screen_fits_every_size() -> None:
    async with shown(ScriptedSource(ticks=3)) as (app, pilot):
        for width, height in (
            (1, 1),
            (5, 2),
            (39, 7),
            (40, 8),
            (45, 11),
            (60, 13),
            (79, 20),
            (100, 23),
            (139, 34),
            (200, 60),
        ):
            await pilot.resize_terminal(width, height)
            await until(lambda: len(screen(app)) == height and "offtop"[:width] in screen(app)[0])  # noqa: B023
            assert all(len(line) <= width for line in screen(app))


views_shown = st.builds(
    View,
    focus=st.sampled_from([views.CATEGORIES, views.LIST, views.TREE, views.SITE, views.LATENCY, views.FLAME]),
    latency=st.sampled_from(views.LATENCIES),
    zoomed=st.booleans(),
    hidden=st.frozensets(st.sampled_from(["tree", "timeline"])),
)


@given(st.integers(1, 400), st.integers(1, 200), views_shown)
def test_layout_covers_each_cell_once(width: int, height: int, view: View) -> None:
    made = arrange(width, height, view)
    covered = np.zeros((height, width), np.int64)
    for rect in made.panels.values():
        assert min(rect.x, rect.y) >= 0 and min(rect.width, rect.height) > 0
        covered[rect.y : rect.y + rect.height, rect.x : rect.x + rect.width] += 1
        assert rect.x + rect.width <= width and rect.y + rect.height <= height
    if width < 40 or height < 8:
        assert covered.sum() == width
    else:
        assert covered.min() == covered.max() == 1


@given(st.integers(40, 400), st.integers(8, 200), views_shown)
def test_focused_pane_is_visible(width: int, height: int, view: View) -> None:
    made = arrange(width, height, view)
    shown = view.focus if view.focus != views.LATENCY or made.latency != "off" else views.CATEGORIES
    assert shown in made.panels or (shown == views.LIST and views.CATEGORIES in made.panels and height < 12)


def test_sparkline_has_one_character_per_value_and_blanks_for_gaps() -> None:
    assert sparkline((None, 0.0, 4.0, 8.0), UNICODE) == " ▁▅█"
    assert sparkline((None, 0.0, 4.0, 8.0), ASCII) == " _=#"
    assert sparkline((), UNICODE) == ""
    assert sparkline((0.01,), UNICODE) == "▂"


def test_text_is_fitted_by_display_width() -> None:
    assert fit("mysqld", 8, UNICODE) == "mysqld  "
    assert fit("mysqld", 4, UNICODE) == "mys…"
    assert fit("mysqld", 4, ASCII) == "mys~"
    assert fit("日本語", 4, UNICODE) == "日 …"
    assert fit("日本語", 6, UNICODE) == "日本語"
    assert fit("abc", 0, UNICODE) == ""


def test_left_part_of_a_shared_line_is_cut_first() -> None:
    left, right = [("left side", "text")], [("right", "text")]
    assert "".join(text for text, _ in spread(left, right, 16).spans) == "left side  right"
    assert "".join(text for text, _ in spread(left, right, 10).spans) == "left right"
    assert "".join(text for text, _ in spread(left, right, 3).spans) == "rig"
    assert width_of(cut_spans(left, 4)) == 4
    assert Line() == NO_LINE


def test_text_is_cut_after_a_sentence() -> None:
    text = "lock: One. And two. And three."
    assert [whole_sentences(text, width) for width in (5, 10, 19, 29, 30)] == [
        "lock: One.",
        "lock: One.",
        "lock: One. And two.",
        "lock: One. And two.",
        text,
    ]


@asynchronous
async def test_new_user_is_told_the_first_keys_until_one_is_pressed() -> None:
    told = "Enter shows what is inside a row, 6 what others wait for, ? all keys."
    for is_first in (True, False):
        async with shown(ScriptedSource(ticks=4), is_first_start=is_first) as (app, pilot):
            assert (told in screen(app)) == is_first
            await pilot.press("down")
            assert told not in screen(app)


@pytest.mark.parametrize("category", CATEGORIES.ids)
def test_category_description_fits_80_columns(category: str) -> None:
    text = " ".join(f"{category}: {CATEGORIES.plain[category]}".split())
    assert len(whole_sentences(text, 80)) <= 80
