"""Accounts, pools and request rates on the screen.

The process `farm` has 5 workers that each wait 0.9 s of each second for a lock and run for 0.1 s, and a clerk that runs
for 0.5 s, waits 0.3 s for a disk and leaves 0.2 s unexplained.
"""

import asyncio
import re

import pytest

from offtop.model.aggregate.budget import Rate
from offtop.model.aggregate.pool import Pool
from offtop.model.values.catalog import Details, ThreadKey
from offtop.model.values.snapshot import Filters, Machine
from offtop.model.values.wake import OFFWAKE
from offtop.model.viewmodel.view import LIST, SINCE_START, View
from tests.ui.scripted import FUTEX, ScriptedSource, Waits
from tests.ui.shown import QUICK_NS, asynchronous, crumb_line, go_on, pane, screen, shown, top, until

FARM = (
    *(
        Waits("farm", 100, f"worker-{n}", 100 + n, "lock", "futex_do_wait", ("reap", "main"), (900,), running_ms=100)
        for n in range(1, 6)
    ),
    Waits("farm", 100, "clerk", 100, "disk-read", "io_schedule", ("read_page", "main"), (300,), running_ms=500),
    Waits("barn", 200, "barn", 200, "pipe", "anon_pipe_read", ("main",), (1000,)),
)
POOL = Pool(100, "worker-*")


def farm(*more: Waits) -> ScriptedSource:
    return ScriptedSource((*FARM, *more), machine=Machine(2))


def lines_with(lines: list[str], word: str) -> list[str]:
    return [line for line in lines if word in line]


@asynchronous
async def test_selection_shows_its_account_as_a_bar_and_as_figures() -> None:
    async with shown(farm()) as (app, pilot):
        assert lines_with(screen(app), "running ") == []
        await pilot.press("tab", "enter")
        assert app.view.pid == 100
        shown_account = app.picture and app.picture.account
        assert shown_account is not None and shown_account.is_known
        account = shown_account.account
        assert (account.threads, account.through) == (6, 6)
        assert [ns // 1_000_000 for ns in (account.running_ns, account.blocked_ns, account.residue_ns)] == [
            3 * (5 * 100 + 500),
            3 * (5 * 900 + 300),
            3 * 200,
        ]
        (figures,) = lines_with(screen(app), "running 17%")
        assert "rest 3.3%" in figures and "lock 75%" in figures and "disk-read 5.0%" in figures
        bar = screen(app)[screen(app).index(figures) - 1]
        assert bar.startswith(" 6.00 █") and bar.rstrip().endswith("▒")


@asynchronous
async def test_thread_shows_its_own_account_in_the_tree() -> None:
    async with shown(farm()) as (app, pilot):
        await pilot.press("tab", "enter", "end", "enter")
        assert app.view.thread == ThreadKey(100, 100)
        (figures,) = lines_with(screen(app), "running 50%")
        assert "rest 20%" in figures and "disk-read 30%" in figures


@pytest.mark.parametrize(("width", "end"), [(80, "  fsync 1.7%  …"), (100, "  throttle 1.7%")])
@asynchronous
async def test_figures_that_do_not_fit_end_in_an_ellipsis(width: int, end: str) -> None:
    more = ("fsync", "throttle")
    clerk = (FARM[5]._replace(category=name, kernel=name, waits_ms=(100,), running_ms=0) for name in more)
    async with shown(farm(*clerk), (width, 24)) as (app, pilot):
        await pilot.press("tab", "enter")
        (figures,) = lines_with(screen(app), "running ")
        assert figures.rstrip().endswith(end)


@asynchronous
async def test_account_above_the_tree_leaves_the_cursor_on_the_screen_and_clicks_right() -> None:
    row = Waits("farm", 100, "worker-1", 101, "lock", "futex_do_wait", waits_ms=(20,), running_ms=100)
    leaves = (row._replace(user=(f"leaf_{n:02}", "main"), waits_ms=(40 - n,)) for n in range(20))
    async with shown(ScriptedSource([*leaves], machine=Machine(2))) as (app, pilot):
        await pilot.press("tab", "enter", "enter")
        lines = pane(app, "tree")
        assert lines_with(lines, "running ")
        at = next(number for number, line in enumerate(lines) if "leaf_01" in line)
        await pilot.click(offset=(9, top(app, "tree") + at))
        await pilot.pause()
        assert [line.split()[-3] for line in pane(app, "tree") if line.startswith(">")] == ["leaf_01"]
        await pilot.press("end")
        assert [line.split()[-3] for line in pane(app, "tree") if line.startswith(">")] == ["leaf_19"]


@asynchronous
async def test_a_lists_accounts_including_threads_that_did_not_wait() -> None:
    runner = Waits("barn", 200, "runner", 201, "lock", "", (), (), running_ms=1000)
    async with shown(farm(runner)) as (app, pilot):
        await pilot.press("tab", "end", "enter")
        assert app.view.pid == 200
        assert lines_with(screen(app), "runner") == []
        await pilot.press("A")
        (line,) = lines_with(screen(app), "runner")
        assert line.split()[:7] == [">", "201", "runner", "1.00", "0.00", "0.00", "0.00"]
        assert any("RUNNING  READY BLOCKED   REST VOL/S INV/S" in line for line in screen(app))
        await pilot.press("A")
        assert lines_with(screen(app), "runner") == []


@asynchronous
async def test_cgroup_account_sums_its_processes_and_leads_to_them() -> None:
    runner = Waits("mill", 300, "mill", 300, "lock", "", (), (), running_ms=1000)
    who = {100: Details(cgroup="/docker/a"), 200: Details(cgroup="/b.service"), 300: Details(cgroup="/b.service")}
    source = ScriptedSource((*FARM, runner), machine=Machine(2), who=who)
    async with shown(source) as (app, pilot):
        await pilot.press("C", "A")
        await pilot.press("r", "r")  # redraw with the details that have arrived
        assert any("cgroups: where each second went" in line for line in screen(app))
        (line,) = lines_with(screen(app), " b.service ")
        assert line.split()[:6] == ["b.service", "2", "1.00", "0.00", "1.00", "0.00"]
        assert app.picture is not None
        worst = {row.key: row.account.worst_ns // 1_000_000 for row in app.picture.listed.ranking.rows}
        assert worst == {"/docker/a": 3 * 900, "/b.service": 3 * 1000}
        await pilot.press("tab", "end", "enter")
        assert app.view.group is not None and app.view.group[0] == "/b.service"
        assert [row.key for row in app.picture.listed.ranking.rows] == [300, 200], "mill runs all the time"
        await pilot.press("H")
        assert [row.key for row in app.picture.listed.ranking.rows] == [ThreadKey(300, 300), ThreadKey(200, 200)]


@asynchronous
async def test_pool_is_one_row_and_enter_shows_its_threads() -> None:
    async with shown(farm()) as (app, pilot):
        await pilot.press("tab", "enter")
        assert app.picture is not None
        assert [row.key for row in app.picture.listed.ranking.rows] == [POOL, ThreadKey(100, 100)]
        (line,) = lines_with(screen(app), "worker-*")
        assert line.split()[:3] == [">", "x5", "worker-*"]
        await pilot.press("enter")
        assert app.view.pool == POOL
        assert "farm(100) > worker-*" in crumb_line(app)
        assert [row.name for row in app.picture.listed.ranking.rows] == [f"worker-{n}" for n in range(5, 0, -1)]
        assert [row.key for row in app.picture.categories.ranking.rows] == ["lock"], "panes follow the pool"
        await pilot.press("escape")
        assert (app.view.pool, app.view.cursor, app.view.focus) == (None, POOL, LIST)


@asynchronous
async def test_plus_and_minus_expand_and_collapse_pools() -> None:
    async with shown(farm()) as (app, pilot):
        await pilot.press("tab", "plus")
        assert any("H lists those" in line for line in screen(app))
        await pilot.press("enter", "plus")
        assert app.picture is not None and len(app.picture.listed.ranking.rows) == 6
        await pilot.press("minus")
        assert len(app.picture.listed.ranking.rows) == 2


@asynchronous
async def test_account_since_the_start_covers_the_time_in_which_the_mode_was_recorded() -> None:
    source = farm()
    view = View(delay_ns=QUICK_NS, span_ns=SINCE_START, pid=100)
    async with shown(source, view=view, ticks=3) as (app, pilot):
        source.mode = OFFWAKE
        await go_on(app, pilot, source, 8)
        await pilot.press("space")
        for key, seconds in (("1", 8), ("3", 5)):
            await pilot.press(key)
            assert app.picture and app.picture.account
            assert app.picture.account.account.running_ns == seconds * (5 * 100 + 500) * 1_000_000


@asynchronous
async def test_cursor_stays_in_a_pool_that_is_unfolded_and_folded() -> None:
    async with shown(farm()) as (app, pilot):
        await pilot.press("tab", "enter", "home")
        assert app.view.cursor == POOL
        await pilot.press("+")
        assert app.picture and app.picture.listed.ranking.rows[app.picture.listed.cursor].name == "worker-5"
        await pilot.press("down", "down", "-")
        assert [row.key for row in app.picture.listed.ranking.rows] == [POOL, ThreadKey(100, 100)]
        assert app.picture.listed.cursor == 0


@asynchronous
async def test_pool_is_muted_by_its_pattern() -> None:
    async with shown(farm()) as (app, pilot):
        await pilot.press("tab", "enter", "X")
        assert [one.text for one in app.view.muted] == ["thread=worker-*"]


@asynchronous
async def test_threads_blocked_in_one_place_are_shown_as_a_convoy() -> None:
    held = [row._replace(waits_on=True, waits_ms=(), short_waits=0) for row in FARM[:5]]
    async with shown(ScriptedSource((*held, *FARM[5:]), machine=Machine(2)), (160, 50)) as (app, pilot):
        (line,) = lines_with(screen(app), " farm ")
        assert "5/6 futex_do" in line
        await pilot.press("tab", "enter")
        (line,) = lines_with(screen(app), "worker-*")
        assert "5/5 futex_do_wait" in line


@pytest.mark.parametrize(
    ("size", "sees"),
    [((80, 24), "5/5 one futex"), ((120, 40), "5/5 one futex < reap < main"), ((160, 50), "5/5 one f")],
)
@asynchronous
async def test_convoy_on_one_futex_is_shown_at_every_width_without_the_futex_function(
    size: tuple[int, int], sees: str
) -> None:
    held = [
        row._replace(waits_on=True, waits_ms=(), call="futex", arguments=(FUTEX, 128, 2, 0, 0, 0), read=row.user)
        for row in FARM[:5]
    ]
    async with shown(ScriptedSource((*held, *FARM[5:]), machine=Machine(2)), size) as (app, pilot):
        await pilot.press("tab", "enter")
        (line,) = lines_with(screen(app), "worker-*  ")
        assert f" {sees}" in line and "futex_do" not in line
        elsewhere = [held[0]._replace(arguments=(FUTEX + 64, *held[0].arguments[1:])), *held[1:]]
    async with shown(ScriptedSource((*elsewhere, *FARM[5:]), machine=Machine(2)), size) as (app, pilot):
        await pilot.press("tab", "enter")
        assert lines_with(screen(app), "4/5 one f") != []


@asynchronous
async def test_account_list_has_its_own_sort_and_a_restores_the_old_one() -> None:
    async with shown(farm()) as (app, pilot):
        await pilot.press("M", "H", "plus", "A")
        assert app.picture is not None

        def tids() -> list[int]:
            assert app.picture is not None
            return [row.key.tid for row in app.picture.listed.ranking.rows if isinstance(row.key, ThreadKey)]

        assert (tids()[0], "sort RUNNING" in crumb_line(app)) == (100, True), "the clerk runs most"
        await pilot.press(">", ">")
        assert (tids()[0], app.view.account_sort) == (200, "BLOCKED"), "barn is blocked all the time"
        await pilot.press(">")
        assert (tids()[0], app.view.account_sort) == (100, "REST")
        await pilot.press("R")
        assert tids()[-1] == 100
        await pilot.press("E")
        assert (app.view.sort, app.view.account_sort) == ("EV/S", "REST")
        assert screen(app)[-2] == "A lists no EV/S: only the categories are sorted by it; < and > sort the list"
        await pilot.press("A")
        assert "sort EV/S" in crumb_line(app)


@asynchronous
async def test_f6_offers_the_columns_of_the_list() -> None:
    async with shown(farm()) as (app, pilot):
        await pilot.press("A", "f6")
        lines = "\n".join(screen(app))
        assert "(x) RUNNING" in lines and "( ) REST" in lines and "MAX" not in lines.split("sort by")[1]
        await pilot.press("down", "enter")
        assert (app.view.account_sort, app.view.sort) == ("READY", "WAITING")


@asynchronous
async def test_sort_key_in_a_zoomed_account_list_does_not_sort_hidden_categories() -> None:
    async with shown(farm()) as (app, pilot):
        await pilot.press("tab", "x", "A", "M")
        assert (app.view.sort, app.view.account_sort) == ("WAITING", "RUNNING")
        assert screen(app)[-2] == "this key is for what A hides: A goes back to it"


@asynchronous
async def test_pool_cannot_be_pinned_and_p_says_how_to_pin_a_thread() -> None:
    async with shown(farm()) as (app, pilot):
        await pilot.press("tab", "enter", "p")
        assert app.view.pin is None
        assert screen(app)[-2] == "a pool cannot be pinned: ENTER shows its threads, and p pins one of them"
        await pilot.press("enter", "p")
        assert app.view.pin == ThreadKey(100, 105)


@asynchronous
async def test_request_rate_compares_waiting_with_its_expectation() -> None:
    async with shown(farm(), (160, 50), view=View(rate=Rate(100.0, 10_000_000))) as (app, pilot):
        await pilot.press("tab", "enter")
        (line,) = lines_with(screen(app), "T-R*C")
        assert line.startswith(
            " 100 requests/s: 10ms CPU + 48ms blocked each; T-R*C expects 5.00 off CPU, 4.80 are: as"
        )
        assert lines_with(screen(app), " 6 threads: 0% idle, 80% blocked, 0% ready to run, 17% running") != []
        await pilot.press("Q", *"soon", "enter")
        assert any("is not a rate" in line for line in screen(app))
        await pilot.press("escape", "Q", "enter")  # the prompt starts with the current rate
        assert app.view.rate == Rate(100.0, 10_000_000)
        await pilot.press("Q", "ctrl+u", "enter")
        assert app.view.rate is None
        assert lines_with(screen(app), "T-R*C") == []


@asynchronous
async def test_states_are_chosen_from_a_menu_and_set_in_the_source() -> None:
    source = farm()
    async with shown(source) as (app, pilot):
        await pilot.press("S", "down", "down", "space")
        assert source.filters == Filters(states=0x2)
        await pilot.press("down", "space", "escape")
        assert app.view.filters.states == 0x102
        await pilot.press("S", "down", "down", "space", "down", "space", "escape")
        assert source.filters == Filters()


@pytest.mark.parametrize("size", [(80, 24), (160, 50), (60, 14)])
@asynchronous
async def test_process_details_are_escaped_and_escape_closes_them(size: tuple[int, int]) -> None:
    async with shown(farm(), size) as (app, pilot):
        await pilot.press("Y")
        await pilot.press("tab", "Y")
        await until(lambda: any("/opt/shop" in line for line in screen(app)))
        assert not any("\x1b" in line for line in screen(app))
        await pilot.press("escape")
        assert not any("/opt/shop" in line for line in screen(app))


@asynchronous
async def test_filter_limits_the_account_list() -> None:
    runner = Waits("barn", 200, "runner", 201, "lock", "", (), (), running_ms=1000)
    async with shown(farm(runner), (160, 50)) as (app, pilot):
        await pilot.press("H", "A", "backslash", *"comm=worker*", "enter")
        assert app.picture is not None
        assert [row.name for row in app.picture.listed.ranking.rows] == ["worker-*"]
        assert app.picture.listed.ranking.rows[0].account.running_ns == 3 * 5 * 100_000_000


@asynchronous
async def test_request_rate_belongs_to_one_process() -> None:
    async with shown(farm(), (160, 50)) as (app, pilot):
        await pilot.press("tab", "enter", "Q", *"100,10ms", "enter")
        assert lines_with(screen(app), "T-R*C") != []
        await pilot.press("escape", "down", "enter")
        assert app.view.pid == 200 and lines_with(screen(app), "1 thread:") != []
        assert lines_with(screen(app), "T-R*C") == []


@asynchronous
async def test_filter_does_not_change_the_account_of_a_process() -> None:
    polls = Waits("farm", 100, "poller", 110, "poll", "do_epoll_wait", ("main",), (800,), ready_ms=100, running_ms=200)
    async with shown(farm(polls), (160, 50)) as (app, pilot):
        await pilot.press("tab", "enter")
        assert app.picture is not None and app.picture.account is not None
        whole, (shares,) = app.picture.account, lines_with(screen(app), " 7 threads:")
        assert sum(ns for _, ns in whole.parts) == whole.account.ready_ns + whole.account.blocked_ns
        assert "10% idle, 69% blocked otherwise, 1% ready to run" in shares
        await pilot.press("backslash", *"cat=lock", "enter")
        assert app.picture.common.totals.passing_ns < whole.account.blocked_ns
        (again,) = lines_with(screen(app), " 7 threads:")
        assert (app.picture.account, again[:80]) == (whole, shares[:80])
        (figures,) = (line[:80] for line in screen(app) if line.startswith(" running "))
        assert sum(float(share) for share in re.findall(r"([0-9.]+)%", figures)) == pytest.approx(100, abs=0.5)  # pyright: ignore[reportUnknownMemberType]


@asynchronous
async def test_throttled_time_is_not_counted_as_run_queue() -> None:
    held = Waits("held", 300, "held", 300, "throttle", "throttled", ("main",), (600,), ready_ms=600, running_ms=400)
    async with shown(ScriptedSource((held,), machine=Machine(2)), (160, 50)) as (app, pilot):
        await pilot.press("tab", "enter")
        assert app.view.pid == 300
        (figures,) = lines_with(screen(app), "running 40%")
        assert "run queue 0.0%" in figures and "throttle 60%" in figures


@asynchronous
async def test_account_list_of_a_pool_has_only_its_threads() -> None:
    async with shown(farm(), (160, 50)) as (app, pilot):
        await pilot.press("H", "tab", "home", "enter", "A")
        assert app.view.pool == POOL and app.picture is not None
        assert sorted(row.name for row in app.picture.listed.ranking.rows) == [f"worker-{n}" for n in range(1, 6)]
        await pilot.press("backslash", *"cat=lock", "enter")
        assert not any(" pass " in line for line in screen(app)[:6])


@asynchronous
async def test_escape_leaves_an_idle_pool_and_keeps_the_filter() -> None:
    polls = [Waits("farm", 300, f"p{n}", 300 + n, "poll", "do_epoll_wait", ("main",), (1000,)) for n in range(5)]
    async with shown(farm(*polls), (160, 50)) as (app, pilot):
        await pilot.press("H", "i", "backslash", *"proc=farm", "enter", "tab", "home")
        assert app.picture is not None
        while app.picture.listed.ranking.rows[app.picture.listed.cursor].key != Pool(300, "p*"):
            await pilot.press("down")
        await pilot.press("enter", "i")
        assert app.view.pool == Pool(300, "p*")
        assert any('" is idle: ' in line for line in screen(app))
        await pilot.press("escape")
        assert (app.view.pool, app.view.filter.text) == (None, "proc=farm")


@asynchronous
async def test_threads_of_one_name_are_a_pool() -> None:
    same = [Waits("mill", 300, "mill", 300 + n, "lock", "futex_do_wait", ("main",), (500,)) for n in range(5)]
    async with shown(farm(*same), (160, 50)) as (app, pilot):
        await pilot.press("H")
        assert app.picture is not None
        (row,) = [row for row in app.picture.listed.ranking.rows if row.key == Pool(300, "mill")]
        assert row.threads == 5


@asynchronous
async def test_process_with_a_single_pool_is_not_collapsed() -> None:
    async with shown(ScriptedSource(FARM[:5], machine=Machine(2))) as (app, pilot):
        await pilot.press("tab", "enter")
        assert app.picture is not None and len(app.picture.listed.ranking.rows) == 5
        await pilot.press("escape", "H")
        assert [row.key for row in app.picture.listed.ranking.rows] == [POOL]


@pytest.mark.parametrize(
    "some", [Filters(pids=(100,)), Filters(tids=(100,)), Filters(cgroup="/a.slice"), Filters(who="user")]
)
def test_steal_and_unexplained_time_need_every_thread_to_be_counted(some: Filters) -> None:
    async def residue(filters: Filters) -> tuple[int, float]:
        source = ScriptedSource(FARM, machine=Machine(2, steal_ns=100_000_000))
        source.filters = filters
        async with shown(source, (160, 50)) as (app, pilot):
            await pilot.press("tab", "enter", "end", "enter")
            assert app.picture is not None and app.picture.account is not None
            return app.picture.account.left.steal_ns, app.picture.head.unexplained_pct

    steal_ns, unexplained_pct = asyncio.run(residue(Filters()))
    assert steal_ns > 0 and unexplained_pct > 0
    assert asyncio.run(residue(some)) == (0, 0)


@asynchronous
async def test_filter_applies_to_convoys() -> None:
    held = [row._replace(waits_on=True, waits_ms=(), short_waits=0) for row in FARM[:5]]
    async with shown(ScriptedSource((*held, *FARM[5:]), machine=Machine(2)), (160, 50)) as (app, pilot):
        for text, convoy in (("thread=worker-[123]", 3), ("thread=worker-[12]", 0)):
            await pilot.press("backslash", "ctrl+u", *text, "enter")
            assert app.picture is not None
            assert [row.convoy.waiting for row in app.picture.listed.ranking.rows] == [convoy]


@asynchronous
async def test_steal_is_shared_in_proportion_to_the_residue() -> None:
    other = Waits("mill", 300, "mill", 300, "disk-read", "io_schedule", ("main",), (200,), running_ms=200)  # rest 600
    source = ScriptedSource((*FARM, other), machine=Machine(2, steal_ns=400_000_000))
    async with shown(source, (160, 50), view=View(pid=300)) as (app, _):
        assert app.picture is not None and app.picture.account is not None
        assert app.picture.account.left.steal_ns == 3 * 300_000_000


@asynchronous
async def test_average_is_blocked_time_per_thread() -> None:
    async with shown(farm(), (160, 50)) as (app, pilot):
        await pilot.press("A", "tab", "x")
        (heads,), (line,) = lines_with(screen(app), "WORST"), lines_with(screen(app), " farm ")
        at = heads.index("  AVG") + 5
        assert line[:at].split()[-1] == "0.80"


@pytest.mark.parametrize(("running_ms", "rest", "column"), [(250, "-5.0%", "-0.05"), (204, "0.0%", "0.00")])
@asynchronous
async def test_double_counted_time_shows_as_a_negative_rest(running_ms: int, rest: str, column: str) -> None:
    busy = Waits("fio", 300, "fio", 300, "disk-read", "io_schedule", ("main",), (800,), running_ms=running_ms)
    async with shown(ScriptedSource((busy,), machine=Machine(2)), (160, 50), view=View(account=True)) as (app, pilot):
        (line,) = lines_with(screen(app), " fio ")
        assert f" {column} " in line
        await pilot.press("tab", "enter")
        whole = 1.05 if running_ms == 250 else 1.004
        assert app.picture is not None and app.picture.account is not None
        assert app.picture.account.account.residue_ns == round((1 - whole) * 3_000) * 1_000_000
        (figures,) = (text for text in screen(app) if text.startswith(" running "))
        assert f"rest {rest}" in figures
