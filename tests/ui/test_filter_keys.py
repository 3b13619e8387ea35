"""Search, filters and mutes: what they hide is accounted for and can be shown again."""

from dataclasses import replace

import pytest
from textual.events import Key, Paste
from textual.widgets import Input

from offtop.model.aggregate.filter_syntax import parse
from offtop.model.classify.causes import Reason
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.snapshot import Machine
from offtop.model.values.wake import Object
from offtop.model.viewmodel.view import CATEGORIES, LIST, SITE, TREE, View
from offtop.ui.app import OfftopApp
from tests.ui.scripted import MS, SHOP, TABLE, WHO, ScriptedSource, Waits
from tests.ui.shown import (
    QUICK_NS,
    asynchronous,
    coloured,
    crumb_line,
    pane,
    rows_of,
    screen,
    shown,
    top,
    until,
    waiting_line,
)

ALL_MS = 10_000 + 10_000
"""Ten seconds in which SHOP waits 1.00 and its door 1.00."""


def accounted_ms(app: OfftopApp) -> tuple[int, int, int, int]:
    """Return the shown, hidden, muted and filtered time in ms."""
    picture = app.picture
    assert picture is not None
    totals = picture.common.totals
    parts = totals.shown.total_ns, totals.hidden_ns, totals.muted_ns, totals.filtered_ns
    return parts[0] // MS, parts[1] // MS, parts[2] // MS, parts[3] // MS


def listed(app: OfftopApp) -> list[object]:
    assert app.picture is not None
    return [row.key for row in app.picture.listed.ranking.rows]


def categories(app: OfftopApp) -> dict[object, int]:
    """Return category → waiting time in ms."""
    assert app.picture is not None
    return {row.key: row.part.total_ns // MS for row in app.picture.categories.ranking.rows}


@asynchronous
async def test_search_highlights_as_you_type_and_escape_cancels_it() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12), theme_name="mono") as (app, pilot):
        before = coloured(app)
        await pilot.press("/")
        assert "search (ENTER keeps it as a filter, !word excludes):" in screen(app)[-2]
        await pilot.press("b", "a")
        assert app.view.search == "ba"
        crumb, bank = top(app, CATEGORIES) - 1, top(app, LIST) + 3
        assert [row for row, line in enumerate(coloured(app)[:-2]) if line != before[row]] == [crumb, bank]
        assert screen(app)[bank].split()[:2] == ["200", "bank"]
        await pilot.press("escape")
        assert (app.view.search, app.view.filter.text) == ("", "")
        assert coloured(app) == before


@asynchronous
async def test_enter_turns_a_search_into_a_filter_and_the_header_shows_what_passes() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("/", *"bank", "enter")
        assert (app.view.search, app.view.filter.text) == ("", "bank")
        assert listed(app) == [200]
        assert categories(app) == {"lock": 1_000, "fsync": 1_000}
        assert "filter bank  0.20 pass" in crumb_line(app)
        assert waiting_line(app).startswith("Waiting 1.00 ")
        assert accounted_ms(app) == (10_000, 10_000, 0, 0)
        await pilot.press("escape")
        assert app.view.filter.text == ""
        assert listed(app) == [100, 200]


@asynchronous
async def test_exclamation_mark_excludes_a_word() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("/", "!", *"bank")
        assert app.view.search == "bank"
        await pilot.press("enter")
        assert app.view.filter.text == "!bank"
        assert listed(app) == [100]
        assert "filter !bank  0.80 pass" in crumb_line(app)


@asynchronous
async def test_empty_search_changes_nothing_and_special_characters_are_literal() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("/", "enter")
        assert app.view.filter.text == ""
        await pilot.press("/", *"*=b", "enter")
        assert listed(app) == []
        assert app.view.filter.text == '"\\*=b"'


@asynchronous
async def test_n_and_shift_n_step_through_matching_rows() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("H", "/", *"lock", "enter")
        assert listed(app) == [(100, 101), (100, 102), (200, 201)]
        await pilot.press("/", *"worker", "enter", "n")
        assert (app.view.focus, app.view.cursor) == (LIST, (100, 102))
        await pilot.press("n")
        assert app.view.cursor == (100, 101)
        await pilot.press("N")
        assert app.view.cursor == (100, 102)


@asynchronous
async def test_n_finds_a_row_beyond_the_screen_by_its_where() -> None:
    table = [Waits(f"p{n}", n, f"p{n}", n, "lock", "futex_do_wait", ("take",), (99 - n,)) for n in range(10, 40)]
    async with shown(ScriptedSource(table, ticks=4)) as (app, pilot):
        await pilot.press("/", *"take", "enter", "N")
        assert app.view.cursor == 39


@asynchronous
async def test_escape_ends_the_search_with_its_filter() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("slash", *"worker", "enter", "escape")
        assert app.view.filter.text == ""
        await pilot.press("n")
        assert screen(app)[-2] == "no outliers yet: ! chooses what counts as one; / searches"


@asynchronous
async def test_n_in_a_site_leaves_it() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("/", *"main", "enter", "t", "enter")
        assert app.view.focus == SITE
        await pilot.press("n")
        assert (app.view.focus, app.view.path) == (LIST, ())


@pytest.mark.parametrize("key", ["\\", "f4", "o"])
@asynchronous
async def test_filter_expression_applies_to_every_pane(key: str) -> None:
    async with shown(ScriptedSource(SHOP, ticks=12), (160, 50)) as (app, pilot):
        await pilot.press(key, *"thread=worker-* cat!=disk-read", "enter")
        assert app.picture is not None and app.picture.tree is not None
        assert categories(app) == {"lock": 6_000}
        assert [row.part.total_ns // MS for row in app.picture.listed.ranking.rows] == [6_000]
        assert app.picture.tree.root.total_ns == 6_000 * MS
        assert (app.picture.common.selected.waits, app.picture.common.selected.total_ns) == (30, 6_000 * MS)
        assert {round(value, 2) for value in app.picture.head.timeline.cells if value is not None} == {0.60}
        assert "0.60 pass" in crumb_line(app)


@asynchronous
async def test_search_takes_an_expression_as_a_filter() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12), (160, 50)) as (app, pilot):
        await pilot.press("/", *"thread=worker-* cat!=disk-read", "enter")
        assert app.view.filter.text == "thread=worker-* cat!=disk-read"
        assert categories(app) == {"lock": 6_000}
        await pilot.press("/", "ctrl+u", *"cat=lick", "enter")
        assert screen(app)[-2].startswith("'cat=lick' is not a category: try lock")
        await pilot.press("ctrl+u", *"a=b", "enter")
        assert app.view.filter.text == '"a=b"'


@asynchronous
async def test_invalid_expression_stays_in_the_prompt_with_an_error() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12), (160, 50)) as (app, pilot):
        await pilot.press("\\", *"cat=lick", "enter")
        assert screen(app)[-2].startswith("'cat=lick' is not a category: try lock")
        assert screen(app)[-2].endswith(": cat=lick")
        assert app.view.filter.text == ""
        await pilot.press("end", "left", "left", "backspace", "o", "enter")
        assert app.view.filter.text == "cat=lock"
        await pilot.press("\\")
        assert screen(app)[-2].endswith(": cat=lock")
        await pilot.press("escape")
        assert app.view.filter.text == "cat=lock"
        await pilot.press("\\", *["backspace"] * 8, "enter")
        assert app.view.filter.text == ""


@asynchronous
async def test_rows_are_filtered_by_numbers_and_the_rest_is_summed_up() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("H", "\\", *"waiting>=0.2", "enter")
        assert listed(app) == [(100, 101), (100, 102)]
        assert app.picture is not None and app.picture.listed.ranking.elided is not None
        elided = app.picture.listed.ranking.elided
        assert (elided.name, elided.part.total_ns) == ("3 more", 3_000 * MS)
        assert any(line.split()[:3] == ["3", "more", "0.30"] for line in screen(app))
        assert "pass" not in crumb_line(app)
        assert categories(app)["lock"] == 7_000


@asynchronous
async def test_sums_of_rows_have_their_total_since_the_start() -> None:
    view = View(delay_ns=QUICK_NS, sort="TOTAL", filter=parse("max>100ms"))
    async with shown(ScriptedSource(SHOP, ticks=12), view=view) as (app, _):
        (whole,) = (line.split() for line in pane(app, CATEGORIES) if line.startswith("> all"))
        assert whole[1:5] == ["all", "1.00", "100%", "███"] and whole[5] == "12.0s"
        assert [line.split()[:5] for line in rows_of(app, LIST)] == [
            ["100", "shop", "0.80", "9.60s", "200ms"],
            ["1", "more", "0.20", "2.40s", "100ms"],
        ]


@asynchronous
async def test_no_match_is_reported_and_escape_clears_the_filter() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("\\", *"comm=foo", "enter")
        assert ' no thread matches "comm=foo" (6 threads seen). Esc clears' in screen(app)
        await pilot.press("escape")
        assert listed(app) == [100, 200]


@pytest.mark.parametrize("keys", [("tab",), ("down",), ("down", "tab"), ("tab", "enter")])
@asynchronous
async def test_escape_clears_an_unmatched_filter_level_by_level(keys: tuple[str, ...]) -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press(*keys, "\\", *"max>1h", "enter")
        assert any("no thread matches" in line for line in screen(app))
        await pilot.press(*["escape"] * 4)
        assert (app.view.filter.text, app.view.focus, app.view.pid) == ("", CATEGORIES, None)


@pytest.mark.parametrize(
    "inside", [View(reason=Reason("a mutex"), way=("reason",)), View(object=Object("futex", "0x1"), way=("object",))]
)
@asynchronous
async def test_escape_leaves_a_cause_or_object_without_matches_and_keeps_the_filter(inside: View) -> None:
    view = replace(inside, delay_ns=QUICK_NS, filter=parse("proc=shop"), focus=LIST)
    async with shown(ScriptedSource(SHOP, ticks=4), view=view) as (app, pilot):
        assert ' no thread matches "proc=shop" here. Esc goes up' in screen(app)
        assert " pass " not in crumb_line(app)
        await pilot.press("escape")
        assert (app.view.drilled, app.view.filter.text) == ("", "proc=shop")
        assert "0.80 pass" in crumb_line(app)


@asynchronous
async def test_sum_of_rows_that_are_not_on_the_screen_stays_on_the_last_line() -> None:
    many = [Waits(f"p{n}", n, f"p{n}", n, "lock", "futex_do_wait", (), (n,), running_ms=n) for n in range(1, 41)]
    async with shown(ScriptedSource(many, ticks=12, machine=Machine(2))) as (app, pilot):
        await pilot.press("\\", *"max>20ms", "enter", "tab")
        for keys in ((), ("end",), ("up", "up"), ("A", "home"), ("end",)):
            await pilot.press(*keys)
            *above, rest = pane(app, LIST)[2:]
            assert app.picture is not None
            below = 20 - app.picture.listed.first - len(above)
            assert rest.split()[:2] == [str(20 + below), "more"]
            assert all(above) and sum(line.startswith(">") for line in above) == 1
        assert app.picture is not None and len(app.picture.listed.ranking.rows) == 20
        assert app.picture.listed.ranking.elided is not None
        account = app.picture.listed.ranking.elided.account
        assert (account.threads, account.running_ns) == (20, 10 * sum(range(1, 21)) * MS)
        assert rest.split()[2:5] == ["0.21", "0.00", "0.21"]
        await pilot.press("\\", *["backspace"] * 8, "enter", "end")
        assert pane(app, LIST)[-1].startswith(">"), "without hidden rows, the last line is a row"


@asynchronous
async def test_rows_below_those_on_the_screen_are_summed_up_until_the_last_one_is_shown() -> None:
    many = [Waits(f"p{n}", n, f"p{n}", n, "lock", "futex_do_wait", (), (n,)) for n in range(1, 41)]
    async with shown(ScriptedSource(many, ticks=12)) as (app, pilot):
        await pilot.press("tab")
        *above, rest = pane(app, LIST)[2:]
        below = 40 - len(above)
        assert rest.split()[:3] == [str(below), "more", f"{sum(range(1, below + 1)) / 1000:.2f}"]
        await pilot.press("end")
        *above, last = pane(app, LIST)[2:]
        assert last.split()[:3] == [">", "1", "p1"] and above[0].split()[0] == str(len(above) + 1)
        assert f"processes: all categories ({40 - len(above) - 1} above) ─" in pane(app, LIST)[0]
        await pilot.press("home")
        assert pane(app, LIST)[-1] == rest
        await pilot.press("end", "escape")
        assert app.view.focus == CATEGORIES
        assert pane(app, LIST)[-1] == rest, "only the focused list is scrolled"


def known(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Make these the only users known to this machine."""
    monkeypatch.setattr("offtop.ui.actions.filters.is_user", lambda text: text in names or text.isdecimal())  # pyright: ignore[reportUnknownArgumentType, reportUnknownLambdaType, reportUnknownMemberType]


@asynchronous
async def test_long_filter_leaves_room_for_the_selection_and_the_pin() -> None:
    view = View(delay_ns=QUICK_NS, filter=parse("comm=shop*,mysql*,postgres* cat!=poll,sleep,child stack!=*epoll*"))
    async with shown(ScriptedSource(SHOP, ticks=4), view=view) as (app, pilot):
        await pilot.press("tab", "enter", "enter")
        assert crumb_line(app) == "All > shop(100) > worker-1(101) filter comm=shop*,mysql*,post…  0.80 pass  pin -"
        await pilot.press("/", *"worker-1")
        assert crumb_line(app) == "All > shop(100) > worker filter comm=shop*,m…  search worker-1  0.80 pass  pin -"


@asynchronous
async def test_unknown_user_is_refused() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12), (120, 30)) as (app, pilot):
        await pilot.press("u", *"nosuch", "enter")
        assert (
            "'nosuch' is not a user: this machine has no user of that name, and it is not a number" in screen(app)[-2]
        )
        assert app.view.user == ""
        await pilot.press("escape", "u", *"root", "enter")
        assert app.view.user == "root"
        await pilot.press("u", *["backspace"] * 4, "enter")
        assert app.view.user == ""


@asynchronous
async def test_u_shows_the_processes_of_one_user(monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, "alice", "nobody")
    async with shown(ScriptedSource(SHOP, ticks=12, who=WHO)) as (app, pilot):
        await pilot.press("u", *"alice", "enter")
        assert listed(app) == [100]
        assert "user alice  0.80 pass" in crumb_line(app)
        await pilot.press("u")
        assert screen(app)[-2].endswith(": alice")
        await pilot.press(*["backspace"] * 5, *"1001", "enter")
        assert listed(app) == [200]
        await pilot.press("u", *["backspace"] * 4, *"nobody", "enter")
        assert ' no thread matches "user=nobody" (6 threads seen). Esc clears' in screen(app)
        await pilot.press("escape")
        assert (app.view.user, listed(app)) == ("", [100, 200])


@asynchronous
async def test_too_long_user_name_is_refused() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("u")
        app.query_one(Input).value = "x" * 600
        await pilot.press("enter")
        assert "is too long" in screen(app)[-2]
        assert app.view.user == ""


@asynchronous
async def test_down_and_end_reach_every_category() -> None:
    names = ["lock", "pipe", "fsync", "disk-read", "disk-write", "swap", "child", "reclaim", "net-recv", "throttle"]
    many = [Waits("p", 1, "p", 1, name, name, (), (90 - n,)) for n, name in enumerate(names)]
    async with shown(ScriptedSource(many, ticks=12)) as (app, pilot):
        first = rows_of(app, CATEGORIES)
        assert first[-1].split()[:2] == ["4", "more"]
        for name in names:
            await pilot.press("down")
            assert app.view.category == name
            assert [line.split()[1] for line in rows_of(app, CATEGORIES) if line.startswith(">")] == [name]
        assert len(rows_of(app, CATEGORIES)) == len(first)
        await pilot.click(offset=(5, top(app, CATEGORIES) + 2))
        assert app.view.category == names[-7]
        await pilot.press("home")
        assert rows_of(app, CATEGORIES) == first
        await pilot.press("end")
        assert app.view.category == names[-1]
        assert rows_of(app, CATEGORIES)[0].split()[:4] == ["all", "(3", "above)", "0.85"]


@asynchronous
async def test_x_mutes_a_category_and_f_unmutes_it() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("X")
        assert "X mutes the category, program, process, pool or function under the cursor" in screen(app)
        await pilot.press("down", "X")
        assert "muted cat=lock; the header counts it. f unmutes it, W saves it" in screen(app)
        assert categories(app) == {"net-recv": 1_000, "fsync": 1_000, "disk-read": 1_000}
        assert accounted_ms(app) == (3_000, 10_000, 7_000, 0)
        assert "+0.70 muted (f)" in waiting_line(app)
        assert app.view.category == ""
        await pilot.press("f", "end", "space", "escape")
        assert app.view.muted == ()
        assert accounted_ms(app) == (10_000, 10_000, 0, 0)


@asynchronous
async def test_x_mutes_a_process() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("tab", "down", "X")
        assert [one.text for one in app.view.muted] == ["proc=bank"]
        assert listed(app) == [100]
        assert accounted_ms(app) == (8_000, 10_000, 2_000, 0)


@asynchronous
async def test_x_mutes_all_threads_that_differ_only_in_a_number() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("H", "tab", "X")
        assert [one.text for one in app.view.muted] == ["thread=worker-*"]
        assert listed(app) == [(200, 202), (200, 201), (100, 103)]
        assert accounted_ms(app) == (3_000, 10_000, 7_000, 0)
        await pilot.press("f", "end", "space", "escape")
        assert listed(app)[:2] == [(100, 101), (100, 102)]


@asynchronous
async def test_x_mutes_a_function_and_overlapping_mutes_count_once() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("t", "down", "X")
        assert [one.text for one in app.view.muted] == ["stack=serve"]
        assert accounted_ms(app) == (3_000, 10_000, 7_000, 0)
        await pilot.press("escape", "escape", "down", "X")
        assert [one.text for one in app.view.muted][1].startswith("cat=")
        assert sum(accounted_ms(app)) == ALL_MS
        await pilot.press("i")
        assert accounted_ms(app)[1] == 0
        assert sum(accounted_ms(app)) == ALL_MS


@asynchronous
async def test_x_in_a_site_mutes_its_function_and_returns_to_the_tree() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("t", "down", "enter", "X")
        assert [one.text for one in app.view.muted] == ["stack=serve"]
        assert (app.view.focus, app.view.path) == (TREE, ())


@asynchronous
async def test_x_on_a_muted_pinned_process_unmutes_it() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("tab", "down", "p", "X")
        assert listed(app) == [200, 100]
        await pilot.press("home", "X")
        assert "unmuted proc=bank" in screen(app)
        assert app.view.muted == ()


@asynchronous
async def test_numeric_name_is_muted_literally() -> None:
    table = [
        Waits(name, pid, name, pid, "lock", "futex_do_wait", waits_ms=(100,)) for pid, name in ((7, "42"), (8, "x"))
    ]
    async with shown(ScriptedSource(table, ticks=12)) as (app, pilot):
        await pilot.press("tab", "\\", *"comm=42", "enter", "X")
        assert accounted_ms(app) == (1_000, 0, 1_000, 0)


@asynchronous
async def test_function_with_a_too_long_name_cannot_be_muted() -> None:
    table = [Waits("p", 9, "p", 9, "lock", "futex_do_wait", ("f" * 600, "main"), (100,))]
    table += [Waits("p", 9, "p", 9, "lock", "futex_do_wait", ("g", "main"), (10,))]
    async with shown(ScriptedSource(table, ticks=2)) as (app, pilot):
        await pilot.press("t", "U", "down", "X")
        assert any("too long" in line for line in screen(app))
        assert app.view.muted == ()


@asynchronous
async def test_name_with_special_characters_is_muted_literally() -> None:
    name = 'a "*[b]\\ 1\x1b'
    table = [Waits(name, 7, name, 7, "lock", "futex_do_wait", waits_ms=(100,))]
    table += [Waits('a "xb\\ 1', 8, "b", 8, "lock", "futex_do_wait", waits_ms=(100,))]
    async with shown(ScriptedSource(table, ticks=12)) as (app, pilot):
        await pilot.press("tab", "\\", *"pid=7", "enter", "X", "escape", "escape")
        assert accounted_ms(app) == (1_000, 0, 1_000, 0)
        assert listed(app) == [8]
        await pilot.press("f")
        assert not any("\x1b" in line for line in screen(app))


@asynchronous
async def test_filter_applies_to_the_selected_thread() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12), (160, 50)) as (app, pilot):
        await pilot.press("tab", "enter", "enter")
        assert app.view.thread == ThreadKey(100, 101)
        await pilot.press("\\", *"cat=lock", "enter")
        assert app.picture is not None
        assert app.picture.common.selected.total_ns == 4_000 * MS
        assert any("stack tree: shop(100) > worker-1(101)" in line for line in screen(app))
        await pilot.press("\\", *"bank", "enter")
        assert app.picture.common.selected.total_ns == 0
        assert app.view.thread == ThreadKey(100, 101)


@asynchronous
async def test_list_marks_the_selected_thread_in_every_sort() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12), (160, 50)) as (app, pilot):
        await pilot.press("H", "tab", "down", "enter")
        assert app.view.thread == ThreadKey(100, 102)
        for keys in ((), ("P",), ("E",), ("\\", *"worker", "enter"), ("shift+tab", "shift+tab", "down")):
            await pilot.press(*keys)
            assert app.view.thread == ThreadKey(100, 102)
            (marked,) = [line for line in rows_of(app, LIST) if line.startswith(">")]
            assert marked.split()[1] == "102"


@asynchronous
async def test_filter_from_the_command_line_applies_at_once() -> None:
    async with shown(ScriptedSource(TABLE), view=View(delay_ns=QUICK_NS, filter=parse("mysqld"))) as (app, _):
        assert listed(app) == [4242]
        assert "filter mysqld  0.60 pass" in crumb_line(app)


@asynchronous
async def test_shown_hidden_and_muted_add_up_to_all_waits() -> None:
    async with shown(ScriptedSource(TABLE, ticks=12)) as (app, pilot):
        assert accounted_ms(app) == (7_805, 20_000, 0, 0)
        await pilot.press("down", "X", "down", "X", "i", "down", "X")
        assert sum(accounted_ms(app)) == 27_805


@asynchronous
async def test_keys_of_a_burst_are_handled_in_order() -> None:
    """Bursts happen on a slow connection, or if a program types."""
    async with shown(ScriptedSource(SHOP, ticks=5)) as (app, pilot):
        burst = ["backslash", *"lock", "ctrl+u", *"bonk", "left", "left", "backspace", "a", "enter", "H"]
        for key in burst:
            app.post_message(Key(key, key if len(key) == 1 else None))
        await pilot.pause()
        await until(lambda: app.view.lists_threads)
        assert app.view.filter.text == "bank"
        for key in ("backslash", "x", "escape", "H"):
            app.post_message(Key(key, key if len(key) == 1 else None))
        await until(lambda: not app.view.lists_threads)
        assert app.view.filter.text == "bank"


@asynchronous
async def test_pasted_text_is_handled_in_order_with_keys() -> None:
    async with shown(ScriptedSource(SHOP, ticks=5)) as (app, pilot):
        burst = ("backslash", "paste ba\x1b[2J\nnothing", *"nk", "enter", "H")
        for one in burst:
            word, _, text = one.partition(" ")
            app.post_message(Paste(text) if text else Key(word, word if len(word) == 1 else None))
        await pilot.pause()
        await until(lambda: app.view.lists_threads)
        assert app.view.filter.text == "ba[2Jnk"


@asynchronous
async def test_key_right_after_closing_an_overlay_is_handled() -> None:
    async with shown(ScriptedSource(SHOP, ticks=5)) as (app, pilot):
        for key in ("question_mark", "escape", "H"):
            app.post_message(Key(key, "?" if key == "question_mark" else None))
        await until(lambda: app.view.lists_threads)
        for key in ("f", "escape", "H"):
            app.post_message(Key(key, key if len(key) == 1 else None))
        await until(lambda: not app.view.lists_threads)
        assert len(app.screen_stack) == 1
        await pilot.pause()
