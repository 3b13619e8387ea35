"""The icicle: moving between boxes, zooming in, and going back."""

from offtop.model.aggregate.steps import Step
from offtop.model.viewmodel.view import CATEGORIES, FLAME, LIST, TREE
from offtop.ui.app import OfftopApp
from tests.ui.scripted import SHOP, ScriptedSource
from tests.ui.shown import asynchronous, coloured, pane, screen, shown, top, until

PATH = tuple(Step(name, False) for name in ("main", "serve", "take_order"))
LEAF = (*PATH, Step("futex_do_wait", True))


def box_line(app: OfftopApp) -> str:
    """Return the line below the boxes."""
    return screen(app)[-4].strip()


@asynchronous
async def test_arrows_move_between_boxes_and_the_line_below_describes_the_box() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("g")
        assert "── icicle: all  width = time waiting (1.00 threads) ──" in pane(app, FLAME)[0]
        assert box_line(app) == "main  1.00 waiting (100.0%)  120 waits  max 200ms"
        seen: list[str] = []
        for key in ("down", "left", "left", "left", "right", "right", "down", "down", "down", "j", "up", "k"):
            await pilot.press(key)
            seen.append(box_line(app).split("  ")[0])
        assert seen == [
            *("serve", "count_money", "ask", "ask", "count_money", "serve"),
            *("take_order", "futex_do_wait", "futex_do_wait", "futex_do_wait", "take_order", "serve"),
        ]
        assert box_line(app) == "serve  0.70 waiting (70.0%)  40 waits  max 200ms"
        await pilot.press("home")
        assert box_line(app).startswith("main ")
        await pilot.press("end")
        assert box_line(app).startswith("futex_do_wait  0.60 waiting (60.0%)")


@asynchronous
async def test_enter_zooms_to_a_box_and_escape_zooms_out_and_closes() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("g", "down", "enter")
        boxes = pane(app, FLAME)[1:5]
        assert [line.split("│")[1].strip() for line in boxes[:2]] == ["main", "serve"]
        assert len(boxes[0]) <= 80 and boxes[1].count("│") == 1
        assert boxes[2].split("│")[1:][0].startswith("read_page")
        await pilot.press("down", "enter")
        assert app.view.flame.zoom == PATH
        await pilot.press("escape")
        assert (app.view.focus, app.view.flame.zoom, app.view.flame.cursor) == (FLAME, (), PATH)
        await pilot.press("escape")
        assert app.view.focus == CATEGORIES
        await pilot.press("tab", "g", "g")
        assert app.view.focus == LIST


@asynchronous
async def test_icicle_of_a_thread_closes_to_its_tree() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("tab", "enter", "enter", "g")
        assert "── icicle: shop(100) > worker-1(101)  width = time waiting (0.50 threads)" in pane(app, FLAME)[0]
        assert pane(app, FLAME)[2].strip("│ ") == "serve"
        await pilot.press("escape")
        assert app.view.focus == TREE
        assert app.view.thread == (100, 101)


@asynchronous
async def test_v_k_and_u_change_the_boxes() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("g", "v")
        assert pane(app, FLAME)[1].count("[k]") == 4
        assert "│[k]futex_do_wait " in pane(app, FLAME)[1]
        await pilot.press("v", "K")
        assert "main" not in pane(app, FLAME)[1]
        assert pane(app, FLAME)[2].strip() == ""
        await pilot.press("U")
        assert pane(app, FLAME)[1].strip("│ ") == "main"
        assert not any("[k]" in line for line in pane(app, FLAME)[1:7])


@asynchronous
async def test_search_highlights_boxes_and_n_steps_through_them() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12), theme_name="mono") as (app, pilot):
        await pilot.press("g")
        before = coloured(app)[top(app, FLAME) + 3]
        await pilot.press("/", *"order")
        assert app.view.search == "order"
        assert coloured(app)[top(app, FLAME) + 3] != before
        await pilot.press("escape")
        assert coloured(app)[top(app, FLAME) + 3] == before
        await pilot.press("/", *"er", "enter")
        seen: list[str] = []
        for key in ("n", "n", "n", "n", "N"):
            await pilot.press(key)
            seen.append(box_line(app).split("  ")[0])
        assert app.view.focus == FLAME
        assert seen == ["serve", "answer", "take_order", "serve", "take_order"]


@asynchronous
async def test_y_copies_the_box_with_its_own_time() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("g", "down", "down", "y")
        assert app.clipboard == "main;serve;take_order 6000000"


@asynchronous
async def test_x_mutes_the_function_of_the_box() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("g", "down", "down", "X")
        assert [one.text for one in app.view.muted] == ["stack=take_order"]
        assert "(0.40 threads)" in pane(app, FLAME)[0]


@asynchronous
async def test_box_title_and_description_stay_consistent_between_redraws() -> None:
    source = ScriptedSource(SHOP, ticks=2)
    async with shown(source) as (app, pilot):
        await pilot.press("g")
        for tick in (3, 4, 5):
            source.go_on(to=tick)
            await until(lambda: app.picture is not None and app.picture.common.newest.number == tick)  # noqa: B023
            await pilot.pause()
            assert "(1.00 threads)" in pane(app, FLAME)[0]
            assert box_line(app).startswith("main  1.00 waiting (100.0%)")


@asynchronous
async def test_new_window_is_drawn_at_once_while_paused() -> None:
    source = ScriptedSource(SHOP, ticks=12)
    async with shown(source) as (app, pilot):
        await pilot.press("g", "space")
        assert "120 waits" in box_line(app)
        await pilot.press("w")
        assert "144 waits" in box_line(app)


@asynchronous
async def test_too_narrow_boxes_are_counted() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("g")
        assert screen(app)[-3].startswith(" 3 boxes too narrow (0.6%)   arrows move   ENTER zoom   ESC out")


@asynchronous
async def test_empty_icicle_says_so_and_its_keys_are_harmless() -> None:
    async with shown(ScriptedSource([], ticks=2)) as (app, pilot):
        await pilot.press("g")
        assert any(line == " Nothing waits here." for line in screen(app))
        await pilot.press("down", "left", "enter", "y", "X", "n", "v", "escape", "escape", "escape")
        assert app.view.focus in (LIST, CATEGORIES)
