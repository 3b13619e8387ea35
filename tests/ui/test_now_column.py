"""The NOW column: the oldest wait in progress of each row."""

import pytest

from offtop.model.aggregate.steps import Step
from offtop.model.viewmodel.view import CATEGORIES, LIST, View
from offtop.ui.app import OfftopApp
from tests.ui.scripted import STUCK, ScriptedSource, Waits
from tests.ui.shown import QUICK_NS, asynchronous, column_titles, rows_of, screen, shown
from tests.ui.stuck_list import line_with


def now_of(app: OfftopApp, panel: str) -> dict[str, str]:
    """Return the first word of each line → its NOW column."""
    end = column_titles(app, panel).index("NOW") + 3
    lines = [line.ljust(end) for line in rows_of(app, panel)]
    return {line[1:].split()[0]: line[end - 7 : end].strip() for line in lines}


@asynchronous
async def test_now_column_shows_the_oldest_wait_of_categories_and_processes() -> None:
    async with shown(ScriptedSource(STUCK, ticks=12)) as (app, pilot):
        wanted = {"all": "<=112s", "lock": "12.5s", "stopped": ">=12.0s", "disk-read": "<=112s", "fsync": "2.00s"}
        assert now_of(app, CATEGORIES) == {**wanted, "run-queue": ""}
        assert now_of(app, LIST) == {"4242": "12.5s", "901": ">=12.0s", "900": "<=112s", "800": "", "100": ""}
        await pilot.press("i")
        assert now_of(app, CATEGORIES)["~poll"] == "1.2min"


@asynchronous
async def test_now_column_ignores_hidden_idle_waits() -> None:
    table = [
        Waits("web", 7, "acceptor", 71, "poll", "do_epoll_wait", waits_on=True, older_ms=60_000),
        Waits("web", 7, "worker", 72, "lock", "futex_do_wait", waits_on=True),
    ]
    async with shown(ScriptedSource(table, ticks=5)) as (app, pilot):
        assert (now_of(app, CATEGORIES)["all"], now_of(app, LIST)) == ("5.00s", {"7": "5.00s"})
        await pilot.press("i")
        assert (now_of(app, CATEGORIES)["all"], now_of(app, LIST)) == ("1.1min", {"7": "1.1min"})


@pytest.mark.parametrize("keys", [("greater_than_sign", "greater_than_sign"), ("f6", "down", "down", "enter")])
@asynchronous
async def test_sort_by_now_puts_the_oldest_first_and_reversed_last(keys: tuple[str, ...]) -> None:
    async with shown(ScriptedSource(STUCK, ticks=12)) as (app, pilot):
        await pilot.press(*keys)
        assert app.view.sort == "NOW"
        assert [*now_of(app, CATEGORIES)][1:5] == ["disk-read", "lock", "stopped", "fsync"]
        assert [*now_of(app, LIST)] == ["900", "4242", "901", "800", "100"]
        await pilot.press("R")
        assert [*now_of(app, LIST)] == ["100", "800", "901", "4242", "900"]


@asynchronous
async def test_now_column_of_threads_shows_their_own_wait() -> None:
    async with shown(ScriptedSource(STUCK, ticks=12)) as (app, pilot):
        await pilot.press("H")
        of_threads = {"4268": "12.5s", "901": ">=12.0s", "900": "<=112s", "801": "", "101": "", "4270": "2.00s"}
        assert now_of(app, LIST) == of_threads
        await pilot.press("down", "down", "down", "down")  # fsync
        assert app.view.category == "fsync"
        assert now_of(app, LIST) == {"4270": "2.00s"}


@asynchronous
async def test_now_column_of_tree_branches_shows_their_oldest_wait() -> None:
    async with shown(ScriptedSource(STUCK, ticks=12), (160, 50)) as (app, pilot):
        await pilot.press("t", "asterisk")
        assert app.picture and app.picture.tree
        now = {path[-1].name: age.text for path, age in app.picture.tree.now.items()}
        assert now == {
            "(still waiting)": "<=112s",
            "futex_do_wait": "12.5s",
            "io_schedule": "<=112s",
            "ptrace_stop": ">=12.0s",
            "jbd2_log_wait_commit": "2.00s",
        }
        assert Step("main", False) not in {
            step for path in app.picture.tree.now for step in path
        }  # nothing is stuck there
        assert " 2.00s " in line_with(app, "[k]jbd2_log_wait_commit")
        await pilot.press("v")  # leaf first
        assert app.picture.tree
        assert {path[0].name: age.text for path, age in app.picture.tree.now.items() if len(path) == 1} == {
            key: text for key, text in now.items() if key != "(still waiting)"
        }


@asynchronous
async def test_now_column_of_an_earlier_tick_shows_its_ages() -> None:
    async with shown(ScriptedSource(STUCK, ticks=12)) as (app, pilot):
        await pilot.press("[", "[", "[", "[", "[")
        assert now_of(app, CATEGORIES)["lock"] == "7.50s"
        assert now_of(app, LIST)["800"] == "3.00s"


@asynchronous
async def test_now_column_can_be_hidden() -> None:
    view = View(delay_ns=QUICK_NS, hidden=frozenset({"NOW"}))
    async with shown(ScriptedSource(STUCK, ticks=12), view=view) as (app, _):
        assert not any("NOW" in line for line in screen(app))
        assert not any("12.5s" in line for line in screen(app))
