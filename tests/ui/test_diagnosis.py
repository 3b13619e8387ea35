"""What rules say stands above the keys, at the head of the tree and before each place; nothing else moves for it."""

import pytest

from offtop.model import diagnosis
from offtop.model.diagnosis import Fixed
from offtop.model.view import View
from tests.ui.scripted import SHOP, ScriptedSource
from tests.ui.shown import CATEGORIES, QUICK_NS, asynchronous, screen, shown

RULES = diagnosis.parse(
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
    ("width", "said"),
    [
        (160, f"60% {ORDERS} (shop): Orders are taken one by one. Next: the clerk."),
        (80, f"60% {ORDERS} (shop): Orders are taken one by one."),
        (60, f"60% {ORDERS} (shop): Orders are taken one by…"),
    ],
)
@asynchronous
async def test_the_line_above_the_keys_says_what_most_of_it_is_for(width: int, said: str) -> None:
    view = View(delay_ns=QUICK_NS, category="")
    async with shown(ScriptedSource(SHOP, ticks=3), (width, 24), view, rules=Fixed(RULES)) as (app, pilot):
        # of 2.00 waiting, 0.60 are for the orders, and 1.00 for guests, whom a rule takes out of what looks idle
        assert above_the_keys(screen(app)).startswith("53% wait for guests (door): Nobody comes.")
        for _ in range(2):  # poll, then lock
            await pilot.press("down")
        assert app.view.category == "lock"
        assert above_the_keys(screen(app)) == said.replace("60%", "86%")


@asynchronous
async def test_the_tree_s_head_and_each_place_of_a_list_have_it() -> None:
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
async def test_a_rule_decides_what_looks_idle() -> None:
    view = View(delay_ns=QUICK_NS)
    async with shown(ScriptedSource(SHOP, ticks=3), (160, 50), view, rules=Fixed(RULES)) as (app, _):
        assert app.picture
        assert app.picture.hidden_ns == round(0.1 * app.picture.span_ns)
        assert [row.name for row in app.picture.categories.rows][:2] == ["poll", "lock"]
    async with shown(ScriptedSource(SHOP, ticks=3), (160, 50), view) as (app, _):
        assert app.picture
        assert app.picture.hidden_ns == app.picture.span_ns, "without rules the door looks idle, and nothing else"
        assert above_the_keys(screen(app)).startswith("WAITING: average number of waiting threads")


@asynchronous
async def test_what_is_wrong_with_a_file_of_rules_is_said_instead() -> None:
    rules = Fixed(RULES, "/home/a/rules.toml, rule 1 (line 3): it has none of the conditions. Mend it")
    async with shown(ScriptedSource(SHOP, ticks=2), (80, 24), rules=rules) as (app, _):
        assert above_the_keys(screen(app)).startswith("/home/a/rules.toml, rule 1 (line 3): it has none")
