"""The stack tree: which branches start open, what stays in place while numbers change, and opening a site."""

import re

import pytest

from offtop.model.values.stack import one_name
from offtop.model.viewmodel.view import LIST, SITE, TREE, View
from offtop.ui.app import OfftopApp
from offtop.ui.kit import glyphs
from offtop.ui.kit.lines import Pen
from offtop.ui.panes.stacks import site_length
from offtop.units import NS_PER_S
from tests.ui.scripted import SHOP, ScriptedSource, Waits
from tests.ui.shown import QUICK_NS, asynchronous, coloured, crumb_line, pane, screen, shown, until

FIRST = [
    "▼ main",
    "  ▼ serve",
    "      take_order › [k]futex_do_wait",
    "      read_page › [k]io_schedule",
    "    count_money › [k]futex_do_wait",
    "    write_book › [k]jbd2_log_wait_commit",
    "  ▶ ask",
    "  ▶ … 3 more",
]


def stacks(app: OfftopApp) -> list[str]:
    """Return the STACK column on a screen of 80 columns."""
    lines = screen(app)
    head = next(number for number, line in enumerate(lines) if "STACK" in line)
    shown_lines = [line[31:] for line in lines[head + 1 : -2]]
    return shown_lines[: shown_lines.index("")] if "" in shown_lines else shown_lines


def at_cursor(app: OfftopApp) -> tuple[int, str]:
    """Return the screen line of the cursor and its stack."""
    number, line = next((number, line) for number, line in enumerate(screen(app)) if line.startswith(">"))
    return number, line[31:].strip()


async def ticks(app: OfftopApp, source: ScriptedSource, to: int) -> None:
    source.go_on(to)
    await until(lambda: app.picture is not None and app.picture.common.newest.number == to)


@asynchronous
async def test_branches_above_a_tenth_start_open_and_single_child_chains_are_one_line() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("t")
        assert stacks(app) == FIRST
        assert app.picture is not None and app.picture.tree is not None
        assert [branch.part.total_ns // 10**7 for branch in app.picture.tree.branches] == [
            1000,
            700,
            600,
            100,
            100,
            100,
            94,
            6,
        ]
        await pilot.press("t")
        assert app.view.focus == LIST


@asynchronous
async def test_right_and_plus_open_left_and_minus_close_or_go_to_the_parent() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("t", "end", "up")
        for opens, closes in (("right", "left"), ("+", "-")):
            await pilot.press(opens)
            assert stacks(app)[6:9] == ["  ▼ ask", "      answer › [k]tcp_recvmsg", "      greeting › [k]tcp_recvmsg"]
            await pilot.press(opens)
            assert at_cursor(app)[1] == "▼ ask"
            await pilot.press(closes)
            assert stacks(app) == FIRST
        await pilot.press("left")
        assert at_cursor(app)[1] == "▼ main"
        await pilot.press("left")
        assert stacks(app) == ["▶ main"]
        await pilot.press("left")
        assert at_cursor(app)[1] == "▶ main"
        await pilot.press("right")
        assert stacks(app)[0] == "▼ main"


@asynchronous
async def test_asterisk_opens_all_but_summed_up_branches() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("t", "-", "*")
        below_ask = [f"      {name} › [k]tcp_recvmsg" for name in ("answer", "greeting")]
        assert stacks(app) == [*FIRST[:6], "  ▼ ask", *below_ask, "  ▶ … 3 more"]


@asynchronous
async def test_enter_opens_a_summed_up_branch() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("t", "end", "enter")
        assert stacks(app)[7:] == [
            "  ▼ … 3 more",
            *(f"      dust_{number} › [k]tcp_recvmsg" for number in (1, 2, 3)),
        ]
        assert app.view.focus == TREE
        await pilot.press("left")
        assert stacks(app) == FIRST


@asynchronous
async def test_open_and_closed_branches_stay_so_across_ticks() -> None:
    source = ScriptedSource(SHOP, ticks=12)
    async with shown(source) as (app, pilot):
        await pilot.press("t", "end", "up", "right", "home", "down", "left")
        closed = ["▼ main", "  ▶ serve", *FIRST[4:6], "  ▼ ask"]
        assert stacks(app)[:5] == closed
        await ticks(app, source, 20)
        assert stacks(app)[:5] == closed
        assert at_cursor(app)[1] == "▶ serve"


LONG = (
    *(Waits("p", 9, "p", 9, "lock", "futex_do_wait", (f"f_{n:02}", "main"), (40 - n,)) for n in range(30)),
    *(Waits("p", 9, "p", 9, "lock", "futex_do_wait", (f"f_{n}", "main"), (100,), begins=12) for n in range(25, 30)),
)
"""30 functions that each wait 1 ms per second less than the previous one; after 12 s the last five wait most."""


@asynchronous
async def test_cursor_stays_on_its_branch_and_screen_line_when_the_order_changes() -> None:
    source = ScriptedSource(LONG, ticks=12)
    async with shown(source, view=View(delay_ns=QUICK_NS, span_ns=NS_PER_S)) as (app, pilot):
        await pilot.press("t", *["down"] * 20)
        assert app.picture is not None and app.picture.tree is not None
        before = at_cursor(app)
        assert before[1] == "f_19 › [k]futex_do_wait"
        assert (app.picture.tree.cursor, before[0]) == (20, 21)
        await pilot.press("up", "up", "up")
        before = at_cursor(app)
        assert (app.picture.tree.cursor, before) == (17, (18, "f_16 › [k]futex_do_wait"))
        await ticks(app, source, 13)
        assert at_cursor(app) == before
        assert app.picture.tree.cursor == 22
        await pilot.press("home")
        assert stacks(app)[1].strip() == "f_25 › [k]futex_do_wait"


@asynchronous
async def test_growing_branch_opens_unless_it_was_closed_by_hand() -> None:
    table = (
        Waits("p", 9, "p", 9, "lock", "futex_do_wait", ("large", "main"), (900,)),
        Waits("p", 9, "p", 9, "lock", "futex_do_wait", ("one", "small", "main"), (30,)),
        Waits("p", 9, "p", 9, "lock", "futex_do_wait", ("two", "small", "main"), (30,)),
        Waits("p", 9, "p", 9, "lock", "futex_do_wait", ("two", "small", "main"), (400,), begins=12),
    )
    for by_hand, arrow in (((), "▼"), (("right", "left"), "▶")):
        source = ScriptedSource(table, ticks=12)
        async with shown(source, view=View(delay_ns=QUICK_NS, span_ns=NS_PER_S)) as (app, pilot):
            await pilot.press("t", "end", *by_hand)
            assert stacks(app)[-1] == "  ▶ small"
            await ticks(app, source, 13)
            assert f"  {arrow} small" in stacks(app)


@asynchronous
async def test_v_inverts_the_tree_and_back() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("t", "v")
        assert any("leaf first (v)" in line for line in screen(app))
        assert stacks(app)[:4] == [
            "▼ [k]futex_do_wait",
            "    [u]take_order › serve › main",
            "    [u]count_money › main",
            "  [k]io_schedule › [u]read_page › serve › main",
        ]
        await pilot.press("v")
        assert stacks(app) == FIRST


@asynchronous
async def test_k_u_and_full_stop_select_frames() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("t", "K")
        assert any("kernel only (K)" in line for line in screen(app))
        assert stacks(app) == [
            f"  [k]{leaf}" for leaf in ("futex_do_wait", "io_schedule", "jbd2_log_wait_commit", "tcp_recvmsg")
        ]
        await pilot.press("U")
        assert any("user only (U)" in line for line in screen(app))
        assert "[k]" not in "".join(stacks(app))
        assert stacks(app)[2] == "      take_order"
        await pilot.press("U", ".")
        assert any("all frames (.)" in line for line in screen(app))
        assert stacks(app)[2] == "      take_order › [k]futex_do_wait › schedule"
        await pilot.press(".")
        assert stacks(app) == FIRST


@asynchronous
async def test_n_steps_through_matching_lines_and_wraps_around() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("t", "/", *"ER", "enter")
        seen: list[str] = []
        for key in ("n", "n", "n", "n", "N", "N"):
            await pilot.press(key)
            seen.append(at_cursor(app)[1])
        orders, answer = "take_order › [k]futex_do_wait", "answer › [k]tcp_recvmsg"
        assert seen == ["▼ serve", orders, answer, "▼ serve", answer, orders]


@asynchronous
async def test_n_follows_line_order_and_opens_closed_branches() -> None:
    table = [
        Waits("w_p", 9, "w_p", 9, "lock", "futex_do_wait", (f"w_{name}", *above, "main"), (ms,))
        for name, ms, above in (("a", 100, ()), ("b", 300, ()), ("c", 200, ()), ("d", 390, ("high",)), ("e", 4, ()))
    ]
    table += [Waits("w_p", 9, "w_p", 9, "lock", "futex_do_wait", ("y", "high", "main"), (3,))]
    table += [Waits("w_p", 9, "w_p", 9, "lock", "futex_do_wait", ("z", "main"), (3,))]
    async with shown(ScriptedSource(table, ticks=12)) as (app, pilot):
        await pilot.press("t", "/", *"w_", "enter", "down", "left", "home")
        assert [line.split(" › ")[0] for line in stacks(app)] == [
            "▼ main",
            "  ▶ high",
            "    w_b",
            "    w_c",
            "    w_a",
            "  ▶ … 2 more",
        ]
        seen: list[str] = []
        for key in ("n",) * 6 + ("N",) * 5:
            await pilot.press(key)
            seen.append(at_cursor(app)[1].split(" › ")[0])
        assert seen == ["w_d", "w_b", "w_c", "w_a", "w_e", "w_d", "w_e", "w_a", "w_c", "w_b", "w_d"]


@asynchronous
async def test_n_without_a_search_or_a_match_says_so() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("t", "n")
        assert "no outliers yet: ! chooses what counts as one; / searches" in screen(app)
        await pilot.press("/", *"shop", "enter", "N")
        assert "no function here matches" in screen(app)


@asynchronous
async def test_y_copies_the_stack_root_first_with_its_microseconds() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("t", "down", "y")
        assert app.clipboard == "main;serve 7000000"
        await pilot.press("down", "y")
        assert app.clipboard == "main;serve;take_order;futex_do_wait 6000000"
        assert "copied: main;serve;take_order;futex_do_wait 6000000" in screen(app)
        await pilot.press("enter", "y")
        assert app.view.focus == SITE
        assert app.clipboard == "main;serve;take_order;futex_do_wait 6000000"
        await pilot.press("escape", "v", "home", "down", "y")
        assert app.clipboard == "main;serve;take_order;futex_do_wait 6000000"


@asynchronous
async def test_summed_up_branch_is_copied_with_its_own_time() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("t", "end", "y")
        assert app.clipboard.endswith(" 60000")


@asynchronous
async def test_late_name_replaces_the_address_and_open_branches_stay() -> None:
    source = ScriptedSource(SHOP, ticks=12)
    source.name("take_order", "shop+0x12")
    async with shown(source) as (app, pilot):
        await pilot.press("t", "end", "up", "right", "home", "down")
        assert stacks(app)[2] == "      shop+0x12 › [k]futex_do_wait"
        source.name("take_order", "take_order")
        await ticks(app, source, 13)
        assert stacks(app)[:6] == FIRST[:6]
        assert stacks(app)[6] == "  ▼ ask"
        assert at_cursor(app)[1] == "▼ serve"


@asynchronous
async def test_enter_shows_the_stacks_of_a_branch_and_escape_returns() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("t", "down", "enter")
        lines = screen(app)
        assert crumb_line(app).startswith("All > serve ")
        assert any(line.startswith("── site: serve  in all ") for line in lines)
        assert " ".join(pane(app, SITE)[2].split()) == "0.70 70% 4 200ms 200ms 200ms"
        assert " #1  0.60 waiting  86%  3/s  max 200ms" in lines
        first = lines.index(" #1  0.60 waiting  86%  3/s  max 200ms")
        assert [line.strip() for line in lines[first + 2 : first + 6]] == [
            "[k] futex_do_wait",
            "take_order",
            "serve",
            "main",
        ]
        assert " #2  0.10 waiting  14%  1/s  max 100ms" in lines
        await pilot.press("escape")
        assert (app.view.focus, app.view.path, at_cursor(app)[1]) == (TREE, (), "▼ serve")


@pytest.mark.parametrize("key", ["v", "K", "U", "."])
@asynchronous
async def test_changing_the_shape_in_a_site_returns_to_the_tree(key: str) -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("t", "down", "enter", key)
        assert (app.view.focus, app.view.path) == (TREE, ())
        assert app.picture is not None and app.picture.tree is not None
        assert app.picture.tree.root.total_ns == 10 * NS_PER_S
        assert app.picture.common.selected.total_ns == 10 * NS_PER_S


@asynchronous
async def test_tree_keys_explain_themselves_elsewhere() -> None:
    async with shown(ScriptedSource(SHOP)) as (app, pilot):
        for key in ("+", "-"):
            await pilot.press(key)
            assert "this key is for the stack tree: t shows it" in screen(app)


@asynchronous
async def test_empty_tree_says_so_and_its_keys_are_harmless() -> None:
    short = Waits("p", 9, "p", 9, "lock", "futex_do_wait", short_waits=100)
    async with shown(ScriptedSource([short], ticks=2)) as (app, pilot):
        await pilot.press("t")
        assert any("No stack here: waits below the minimum (m) have none." in line for line in screen(app))
        await pilot.press("+", "-", "*", "enter", "left", "right", "down", "n", "y", "v", "v", "K", "K", "X")
        assert app.is_running


@asynchronous
async def test_tree_next_to_the_list_follows_the_cursor() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12), (160, 50)) as (app, pilot):
        assert any(line.rstrip().endswith("take_order › [k]futex_do_wait") for line in screen(app))
        await pilot.press("end")
        lines = screen(app)
        assert any("stack tree: disk-read" in line for line in lines)
        assert any("main › serve › read_page › [k]io_schedule" in line for line in lines)
        assert not any("take_order › [k]futex_do_wait" in line.partition("│")[2] for line in lines)


@asynchronous
async def test_kernel_functions_and_bars_have_the_colour_of_their_category() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12), (160, 50), theme_name="dark") as (app, pilot):

        def colour_of(text: str) -> str:
            line = next(line for line in coloured(app) if text in line)
            return re.findall(r"\{([^}]*)\}[^{]*$", line[: line.index(text)])[-1].split(" on ")[0]

        bar, lock, disk = colour_of("█████████"), colour_of("lock "), colour_of("disk-read ")
        await pilot.press("down")
        assert app.view.category == "lock"
        assert colour_of("█████████") == lock != bar
        await pilot.press("up", "t", "asterisk")
        assert (colour_of("[k]futex_do_wait"), colour_of("[k]io_schedule")) == (lock, disk)
        assert colour_of("serve") not in (lock, disk)


@asynchronous
async def test_inlined_functions_have_their_own_line_in_a_site() -> None:
    source = ScriptedSource(SHOP, ticks=12)
    source.name("take_order", one_name(["lock_it", "take_order"]))
    async with shown(source) as (app, pilot):
        await pilot.press("down", "enter", "enter", "enter", "enter")
        lines = [line.split() for line in screen(app)]
        at = lines.index(["lock_it", "(inlined)"])
        assert lines[at + 1 : at + 4] == [["take_order"], ["serve"], ["main"]]
        assert app.picture
        pen = Pen(80, 24, glyphs.UNICODE, source.names)
        length = site_length(app.picture.places, app.picture.common, pen)
        assert length == len(lines[at - 6 : at + 4])  # two header lines and a blank line
