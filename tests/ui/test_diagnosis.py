"""Causes are shown on the alert line, in the title of the tree and in each row, without moving anything else."""

import pytest

from offtop.model.classify import causes
from offtop.model.classify.causes import Fixed
from offtop.model.values.catalog import ThreadKey
from offtop.model.viewmodel.view import STUCK as PANE
from offtop.model.viewmodel.view import View
from offtop.model.windows.breakdown import Place
from tests.ui.scripted import SHOP, STUCK, ScriptedSource, Waits
from tests.ui.shown import CATEGORIES, QUICK_NS, asynchronous, screen, shown

RULES = causes.parse(
    '[[rule]]\nid = "orders"\nname = "the order book"\nsays = "Orders are taken one by one."\nnext = "the clerk"\n'
    'program = ["shop"]\nown = ["take_order"]\n'
    '[[rule]]\nid = "door"\nname = "guests"\nsays = "Nobody comes."\nprogram = ["door"]\n'
    'idle = false\ncategory = ["poll"]\n'
    '[[rule]]\nid = "book"\nname = "the bank\'s book"\nsays = "x"\nown = ["write_book"]\nidle = true\n',
    "rules.toml",
    "Mend it",
    CATEGORIES.ids,
)
ORDERS = "wait for the order book"


def above_the_keys(lines: list[str]) -> str:
    return lines[-2]


def line_with(lines: list[str], text: str) -> str:
    (line,) = [line for line in lines if text in line]
    return line


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (160, f"60% {ORDERS} (shop): Orders are taken one by one. Next: the clerk."),
        (80, f"60% {ORDERS} (shop): Orders are taken one by one."),
        (60, f"60% {ORDERS} (shop): Orders are taken one by…"),
    ],
)
@asynchronous
async def test_alert_line_names_the_largest_cause(width: int, expected: str) -> None:
    view = View(delay_ns=QUICK_NS, category="")
    async with shown(ScriptedSource(SHOP, ticks=3), (width, 24), view, rules=Fixed(RULES)) as (app, pilot):
        # of 2.00 waiting, 0.60 are for the orders, and 1.00 for guests, which a rule excludes from idle
        assert above_the_keys(screen(app)).startswith("53% wait for guests (door): Nobody comes.")
        for _ in range(2):  # to poll, then to lock
            await pilot.press("down")
        assert app.view.category == "lock"
        assert above_the_keys(screen(app)) == expected.replace("60%", "86%")


@asynchronous
async def test_tree_title_and_list_rows_show_the_cause() -> None:
    view = View(delay_ns=QUICK_NS, category="lock")
    async with shown(ScriptedSource(SHOP, ticks=3), (240, 50), view, rules=Fixed(RULES)) as (app, pilot):
        lines = screen(app)
        assert f"stack tree: lock: 86% {ORDERS}" in line_with(lines, "stack tree:")
        shop = next(line for line in lines if " shop " in line and " 100 " in line)
        assert "the order bo" in shop
        bank = next(line for line in lines if " bank " in line and " 200 " in line)
        assert "order book" not in bank and "futex_do_wait" in bank
        await pilot.press("H")
        assert sum("  the order bo" in line for line in screen(app)) == 2, "of two workers"


@asynchronous
async def test_rule_can_override_what_counts_as_idle() -> None:
    view = View(delay_ns=QUICK_NS)
    async with shown(ScriptedSource(SHOP, ticks=3), (160, 50), view, rules=Fixed(RULES)) as (app, _):
        assert app.picture
        assert app.picture.common.totals.hidden_ns == round(0.1 * app.picture.common.span_ns)
        assert [row.name for row in app.picture.categories.ranking.rows][:2] == ["poll", "lock"]
    async with shown(ScriptedSource(SHOP, ticks=3), (160, 50), view) as (app, _):
        assert app.picture
        assert app.picture.common.totals.hidden_ns == app.picture.common.span_ns, "without rules only the door is idle"
        assert above_the_keys(screen(app)).startswith("WAITING: average number of waiting threads")


@asynchronous
async def test_error_in_a_rule_file_replaces_the_cause() -> None:
    rules = Fixed(RULES, "/home/a/rules.toml, rule 1 (line 3): it has none of the conditions. Mend it")
    async with shown(ScriptedSource(SHOP, ticks=2), (80, 24), rules=rules) as (app, _):
        assert above_the_keys(screen(app)).startswith("/home/a/rules.toml, rule 1 (line 3): it has none")


@asynchronous
async def test_l_lists_causes_and_enter_leads_to_their_waits() -> None:
    view = View(delay_ns=QUICK_NS, category="")
    async with shown(ScriptedSource(SHOP, ticks=3), (160, 40), view, rules=Fixed(RULES)) as (app, pilot):
        await pilot.press("L")
        assert line_with(screen(app), "causes: all categories")
        assert app.picture
        listed = [(row.name, row.waiting) for row in app.picture.listed.ranking.rows]
        assert listed[0] == ("guests", 1.0)
        assert ("the order book", 0.6) in listed
        listed_ns = sum(row.part.total_ns for row in app.picture.listed.ranking.rows)
        assert listed_ns == app.picture.common.totals.shown.total_ns
        assert "door: do_epoll_wait" in line_with(screen(app), " guests  ")
        await pilot.press("tab", "down", "enter")
        assert app.view.reason and app.view.reason.name == "the order book"
        assert any("for the order book" in line and "All" in line for line in screen(app))
        assert [row.name for row in app.picture.listed.ranking.rows] == ["shop"]
        await pilot.press("escape")
        assert (app.view.reason, app.view.lists_reasons) == (None, True)
        await pilot.press("X")
        assert not any("  the order book  " in line for line in screen(app))
        assert [one.text for one in app.view.muted] == ['why="the order book"']
        await pilot.press("L")
        assert app.view.lists_sleepers


@asynchronous
async def test_site_shows_its_cause_and_the_next_step() -> None:
    view = View(delay_ns=QUICK_NS, category="lock", pid=100)
    async with shown(ScriptedSource(SHOP, ticks=3), (100, 50), view, rules=Fixed(RULES)) as (app, pilot):
        await pilot.press("t", "end", "enter")
        lines = [line.strip() for line in screen(app)]
        assert "for the order book: Orders are taken one by one." in lines
        assert "next: the clerk" in lines


QUEUED = (
    Waits("shop", 100, "worker-1", 101, "lock", "futex_do_wait", ("take_order", "main"), (200,), ready_ms=190),
    Waits("shop", 100, "worker-2", 102, "lock", "futex_do_wait", ("take_order", "serve", "main"), (200,), ready_ms=90),
)
CPU = causes.parse(
    '[[rule]]\nid = "cpu"\nname = "a CPU"\nsays = "Too few."\ncategory = ["run-queue"]\n',
    "rules.toml",
    "Mend it",
    CATEGORIES.ids,
)


@asynchronous
async def test_cause_of_mostly_queued_site_is_the_cpu() -> None:
    view = View(delay_ns=QUICK_NS, category="", pid=100)
    rules = Fixed(RULES.before(CPU))
    async with shown(ScriptedSource(QUEUED, ticks=3), (100, 50), view, rules=rules) as (app, pilot):
        await pilot.press("t", "enter")
        assert app.picture
        catalog = app.picture.common.catalog
        rule_by_depth = {
            len(catalog.stack(row.key.user).frames): row.rule.id
            for row in app.picture.places.rows
            if isinstance(row.key, Place) and row.rule
        }
        assert rule_by_depth == {2: "cpu", 3: "orders"}


@pytest.mark.parametrize(
    ("keys", "short_waits", "rule"),
    [
        *(((), 10_000, "orders"), ((), 40_000, None)),  # 0.1 s and 0.4 s of short waits, and 0.2 s at a site
        *((("H",), 10_000, "orders"), (("H",), 40_000, None)),
    ],
)
@asynchronous
async def test_row_of_mostly_short_waits_has_no_cause_from_its_few_long_ones(
    keys: tuple[str, ...], short_waits: int, rule: str | None
) -> None:
    waits = Waits("shop", 100, "worker", 101, "lock", "futex_do_wait", ("take_order",), (200,), short_waits=short_waits)
    view = View(delay_ns=QUICK_NS, category="")
    async with shown(ScriptedSource((waits,), ticks=3), (160, 40), view, rules=Fixed(RULES)) as (app, pilot):
        await pilot.press(*keys)
        assert app.picture
        assert [row.rule and row.rule.id for row in app.picture.listed.ranking.rows] == [rule]
        assert any("futex_do_wait" in line for line in screen(app)), "the location is still shown"


@pytest.mark.parametrize("height", [8, 30])
@asynchronous
async def test_n_finds_stuck_waits_by_cause(height: int) -> None:
    text = '[[rule]]\nid = "journal"\nname = "the journal"\nsays = "x"\ncategory = ["fsync"]\n'
    rules = causes.parse(text, "rules.toml", "Mend it", CATEGORIES.ids)
    async with shown(ScriptedSource(STUCK, ticks=12), (160, height), rules=Fixed(rules)) as (app, pilot):
        await pilot.press("5")
        assert any("the journal: " in line for line in screen(app)) == (height == 30)
        app.set_view(View(delay_ns=QUICK_NS, focus=PANE, search="the journal"))
        await pilot.press("n")
        assert app.view.stuck.cursor == ThreadKey(4242, 4270)


@asynchronous
async def test_stuck_list_shows_causes() -> None:
    text = '[[rule]]\nid = "row"\nname = "a row lock"\nsays = "x"\nown = ["lock_wait"]\n'
    rules = causes.parse(text, "rules.toml", "Mend it", CATEGORIES.ids)
    async with shown(ScriptedSource(STUCK, ticks=3), (160, 30), rules=Fixed(rules)) as (app, pilot):
        await pilot.press("5")
        found = [line for line in screen(app) if " connection " in line]
        assert "a row lock: futex_do_wait" in found[0]
