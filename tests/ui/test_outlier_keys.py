"""Outliers on the screen: announced on the alert line, marked, listed, opened, and gone to in time."""

import re
from itertools import count
from pathlib import Path

import pytest
from textual import events

from offtop.feed.outlier_actions import OutlierActions
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.outlier import AUTO
from offtop.model.values.snapshot import Bound
from offtop.model.viewmodel.view import CATEGORIES, DISKS, FILES, LIST, OUTLIERS, TREE, View
from offtop.person import person
from offtop.recording.replay import RecordedSource
from offtop.recording.writer import Recorder
from offtop.ui.app import OfftopApp
from offtop.units import NS_PER_S
from tests.ui import test_disk_keys, test_file_keys
from tests.ui.scripted import STUCK, ScriptedSource, Waits
from tests.ui.shown import CATEGORIES as RULES
from tests.ui.shown import (
    QUICK_NS,
    asynchronous,
    catching,
    crumb_line,
    go_on,
    running,
    screen,
    shown,
    timeline,
    until,
    waiting_line,
)

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
RULE, OTHER = "lock.max > 3s", "fsync.now > 1s"
CONNECTION, PURGE = ThreadKey(4242, 4268), ThreadKey(4242, 4270)


def outlier_actions() -> OutlierActions:
    """Triggers that report two outliers of STUCK.

    These are connection in second 3, after 3.5 s of lock, and purge in second 12, after 2 s of fsync.
    """
    return catching(RULE, OTHER)


def rows(app: OfftopApp) -> list[list[str]]:
    """Return the words of each line of the list of outliers."""
    lines = screen(app)
    first = next(number for number, line in enumerate(lines) if line.split()[:2] == ["WHEN", "LENGTH"]) + 1
    listed = [line.removeprefix(">").split() for line in lines[first:-2]]
    return listed[: next((n for n, words in enumerate(listed) if not words or ":" not in words[0]), len(listed))]


def title(app: OfftopApp) -> str:
    return next(line for line in screen(app) if "outlier" in line and "─" in line).strip("─ ")


def second(app: OfftopApp) -> int:
    """Return which of the scripted seconds is shown."""
    assert app.picture
    return app.picture.common.newest.at_ns // 10**9 - 1000


@asynchronous
async def test_outlier_is_announced_once_counted_and_marked_on_row_and_timeline() -> None:
    async with shown(ScriptedSource(STUCK, ticks=3), (120, 40), outlier_actions=outlier_actions()) as (app, pilot):
        assert screen(app)[-2].startswith(
            f"outlier: >3.50s lock, {RULE}: connection(4268) of mysqld(4242): futex_do_wait"
        )
        assert "1 outlier (O)" in waiting_line(app)
        assert "▲" in timeline(app)
        (row,) = (line for line in screen(app) if "mysqld" in line and "4242" in line and "outlier" not in line)
        assert row.lstrip("> ").startswith("▲")
        await pilot.press("H")
        assert [line.split()[2] for line in screen(app) if "▲" in line][1:] == ["connection"]
        assert not screen(app)[-2].startswith("outlier")


@asynchronous
async def test_a_frozen_screen_is_reported_but_not_over_an_outlier(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_ns = count(1, 10 * NS_PER_S)
    monkeypatch.setattr("offtop.ui.app.monotonic_ns", lambda: next(clock_ns))
    for actions, alert in ((None, "the screen did not update for 10s"), (outlier_actions(), "outlier: >3.50s lock")):
        source = ScriptedSource(STUCK, ticks=1)
        async with shown(source, outlier_actions=actions) as (app, pilot):
            await go_on(app, pilot, source, 3)
            await go_on(app, pilot, source, 4)
            assert screen(app)[-2].startswith(alert)


@asynchronous
async def test_empty_outlier_list_shows_the_triggers() -> None:
    async with shown(ScriptedSource(STUCK, ticks=12), outlier_actions=catching(AUTO)) as (app, pilot):
        assert not any("outlier" in line for line in screen(app)[:5])
        await pilot.press("O")
        assert title(app) == "outliers: none; triggers: auto (!)"
        assert " No outliers yet." in screen(app)
        for key in ("down", "enter", "pagedown", "end", "y", "n"):
            await pilot.press(key)
            assert app.view.focus == OUTLIERS
        assert screen(app)[-2] == "no outliers yet: ! chooses what counts as one; / searches"
        await pilot.press("O")
        assert app.view.focus == CATEGORIES


@asynchronous
async def test_newest_outlier_comes_first_and_the_selected_one_is_described_below() -> None:
    async with shown(ScriptedSource(STUCK, ticks=12), outlier_actions=outlier_actions()) as (app, pilot):
        await pilot.press("O")
        assert title(app) == f"outliers: 2, newest first; triggers: {RULE}; {OTHER} (!)"
        assert [row[1:5] for row in rows(app)] == [
            [">2.00s", "4270", "purge", "fsync"],
            [">3.50s", "4268", "connection", "lock"],
        ]
        text = "\n".join(screen(app))
        assert " >2.00s purge(4270) of mysqld(4242)  from 02:00:10.000 (in progress)" in text
        assert f"trigger {OTHER}; usual: unknown (mysqld, fsync)" in text
        assert "D: waits, not woken by signals" in text
        assert "[k]jbd2_log_wait_commit" in text
        await pilot.press("down")
        assert "connection(4268) of mysqld(4242)" in "\n".join(screen(app))
        await pilot.press("down", "up", "end", "home")
        assert app.picture and app.picture.outliers.cursor == 0


@asynchronous
async def test_n_goes_on_from_outliers_that_are_older_than_the_history() -> None:
    begins = {"lock": 1, "fsync": 6, "disk-read": 30, "net-recv": 36}
    table = [
        Waits("db", 42, "db", at, category, "wait", waits_on=True, begins=at, ends=at + 5)
        for category, at in begins.items()
    ]
    triggers = (f"{category}.now > 3s" for category in begins)
    source = ScriptedSource(table, ticks=44)
    async with shown(source, history_ns=15 * NS_PER_S, outlier_actions=catching(*triggers)) as (app, pilot):
        seen = list[int]()
        for key in "NNNNnnn":
            await pilot.press(key)
            cursor = app.view.outliers.cursor
            seen.append(cursor[0] // 10**9 - 1000 if cursor else 0)
        assert seen == [40, 34, 10, 5, 10, 34, 40]
        assert second(app) == 40


@asynchronous
async def test_enter_opens_an_outlier_and_a_second_enter_rewinds_all_panes() -> None:
    async with shown(ScriptedSource(STUCK, ticks=12), outlier_actions=outlier_actions()) as (app, pilot):
        await pilot.press("O", "down", "enter")
        assert title(app) == "an outlier (Enter: all panes as they were then, Esc goes back)"
        assert "   [k] futex_do_wait" in screen(app)
        await pilot.press("down", "down", "up", "escape")
        assert title(app).startswith("outliers: 2")
        await pilot.press("enter", "enter")
        assert (second(app), app.view.focus, app.view.thread) == (3, TREE, CONNECTION)
        assert (app.view.category, app.view.paused_at_ns is not None) == ("lock", True)
        assert "PAUSED" in screen(app)[0]
        assert crumb_line(app).startswith("All > lock > mysqld(4242) > connection(4268)")
        await pilot.press("0", "escape")
        assert (app.view.paused_at_ns, app.view.focus, app.view.thread) == (None, LIST, None)


@asynchronous
async def test_n_and_N_step_through_outliers() -> None:  # noqa: N802
    async with shown(ScriptedSource(STUCK, ticks=12), outlier_actions=outlier_actions()) as (app, pilot):
        await pilot.press("n")
        assert "there is no later outlier: N goes back" in screen(app)
        await pilot.press("N")
        assert (second(app), app.view.thread) == (12, PURGE)
        await pilot.press("N")
        assert (second(app), app.view.thread) == (3, CONNECTION)
        assert "outlier  PAUSED" in screen(app)[0]
        await pilot.press("N")
        assert "there is no earlier outlier" in screen(app)
        await pilot.press("n")
        assert (second(app), app.view.thread) == (12, PURGE)
        await pilot.press("n")
        assert "this is the newest outlier" in screen(app)
        await pilot.press("[", "[", "N")
        assert (second(app), app.view.thread) == (3, CONNECTION)


@asynchronous
async def test_n_follows_an_active_search_instead_of_outliers() -> None:
    async with shown(ScriptedSource(STUCK, ticks=12), outlier_actions=outlier_actions()) as (app, pilot):
        await pilot.press("O", "/", *"connection", "enter", "n")
        assert app.picture and app.picture.outliers.cursor == 1
        assert (app.view.focus, second(app)) == (OUTLIERS, 12)


@asynchronous
async def test_triggers_can_be_edited_and_errors_are_shown() -> None:
    one = outlier_actions()
    async with shown(ScriptedSource(STUCK, ticks=12), outlier_actions=one) as (app, pilot):
        await pilot.press("!")
        assert f"outliers (auto; lock.max > 500ms; off): {RULE}; {OTHER}"[:70] in screen(app)[-2]
        await pilot.press("ctrl+u", *"lock.long > 1s", "enter")
        assert "unknown metric long" in screen(app)[-2]
        await pilot.press("ctrl+u", *"auto ; any.now > 9s", "enter")
        assert app.view.triggers == ("auto", "any.now > 9s")
        await pilot.press("O")
        assert title(app).endswith("triggers: auto; any.now > 9s (!)")
        await pilot.press("!", "ctrl+u", "enter")
        assert app.view.triggers == ("off",)
        await pilot.press("!", "ctrl+u", *"lock.max > 1us", "enter")
        assert "below the minimum" in screen(app)[-2]


@asynchronous
async def test_minimum_above_a_trigger_warns_what_it_still_catches() -> None:
    async with shown(ScriptedSource(STUCK, ticks=2), outlier_actions=catching("auto", "lock.max > 5ms")) as (
        app,
        pilot,
    ):
        await pilot.press("m", *"10ms", "enter")
        assert "'lock.max > 5ms' reports no waits shorter than the minimum of 10ms" in screen(app)[-2]
        await pilot.press("m", *"5ms", "enter")
        assert "lock.max" not in screen(app)[-2]


@asynchronous
async def test_freeze_pauses_at_the_first_outlier_and_keeps_saying_so() -> None:
    actions = catching(RULE, OTHER, freeze=True)
    async with shown(ScriptedSource(STUCK, ticks=12), outlier_actions=actions, ticks=3) as (app, pilot):
        await until(lambda: app.view.paused_at_ns is not None)
        await pilot.pause()
        assert second(app) == 3
        await until(lambda: len(app.session.outlier_list.every) == 2)
        await pilot.pause()
        assert screen(app)[-2].startswith("paused by outlier: >3.50s lock")
        await pilot.press("w")  # which clears the alert line
        assert "outlier  PAUSED" in screen(app)[0]
        await pilot.press("0")
        assert app.view.paused_at_ns is None
        assert "outlier  " not in screen(app)[0]


@asynchronous
async def test_clicks_select_and_open_and_the_wheel_moves() -> None:
    async with shown(ScriptedSource(STUCK, ticks=12), outlier_actions=outlier_actions(), mouse=True) as (app, pilot):
        await pilot.press("O")
        line = next(number for number, text in enumerate(screen(app)) if "connection" in text)
        await pilot.click(offset=(10, line))
        assert app.picture and app.picture.outliers.cursor == app.view.outliers.line == 1
        await pilot.click(offset=(10, line))
        assert app.view.outliers.opened
        await pilot.press("escape")
        await pilot._post_mouse_events([events.MouseScrollUp], offset=(10, line), button=0)  # pyright: ignore[reportPrivateUsage]
        await pilot.pause()
        assert app.picture and app.picture.outliers.cursor == 0


@asynchronous
async def test_y_copies_the_whole_outlier() -> None:
    async with shown(ScriptedSource(STUCK, ticks=12), outlier_actions=outlier_actions()) as (app, pilot):
        await pilot.press("O", "y")
        assert app.clipboard.startswith(" >2.00s purge(4270) of mysqld(4242)")
        assert "jbd2_log_wait_commit" in app.clipboard


@asynchronous
async def test_replay_has_the_outliers_and_can_start_at_one(tmp_path: Path) -> None:
    scripted = ScriptedSource(STUCK, ticks=12)
    recorder = Recorder(tmp_path / "it.offtop", scripted, person(), leave_bytes=0)
    async with shown(scripted, outlier_actions=outlier_actions(), recorder=recorder):
        pass
    recorder.close()
    source = RecordedSource(tmp_path / "it.offtop", speed=1e6)
    first, last = source.outliers()
    assert (first.wait and first.wait.site.thread, last.rule) == (CONNECTION, OTHER)
    app = OfftopApp(source, View(delay_ns=QUICK_NS), RULES, pause_at_ns=source.go_to(first.taken_ns))
    async with running(app, (80, 24)) as pilot:
        await until(lambda: app.picture is not None and app.view.paused_at_ns is not None)
        await pilot.pause()
        assert second(app) == 3
        await pilot.press("n")
        await until(lambda: second(app) == 12)
        await pilot.pause()
        assert app.view.thread == PURGE
        await pilot.press("!")
        assert "this is a recording: it has only the outliers that were reported then" in screen(app)
        await pilot.press("O")
        assert [row[2] for row in rows(app)] == ["4270", "4268"]
        assert "[k]jbd2_log_wait_commit" in "\n".join(screen(app))
        await pilot.press("q")


@pytest.mark.parametrize("width", [20, 40, 57, 80, 120, 200])
@asynchronous
async def test_lines_fit_every_width_and_hostile_names_are_escaped(width: int) -> None:
    evil = Waits(
        *("\x1b[31m[b]", 66, "\x1b[2J\u202e", 67, "lock", "futex\x1b[m"),
        waits_on=True,
        older_ms=9_000,
        bound=Bound.EXACT,
        read=("\x07main",),
    )
    async with shown(ScriptedSource((*STUCK, evil), ticks=12), (width, 24), outlier_actions=outlier_actions()) as (
        app,
        pilot,
    ):
        for keys in ((), ("O",), ("enter",), ("down",), ("enter",)):
            await pilot.press(*keys)
            assert all(len(line) <= width and not CONTROL.search(line) for line in screen(app))


@pytest.mark.parametrize(
    ("rule", "what", "row"),
    [
        ("file.max > 50us", "write /tmp/", "> write"),
        ("file.max > 50us", "fsync /var/lib/db/redo.log", "> fsync"),
        ("request.max > 500us", "write odd", "> write"),
        ("request.max > 500us", "sync-write sda", "> sync-write"),
    ],
)
@asynchronous
async def test_entering_an_outlier_of_files_or_disks_selects_its_row(rule: str, what: str, row: str) -> None:
    made = ScriptedSource(ticks=3)
    made.files, made.disks = test_file_keys.ACTIVITY, test_disk_keys.ACTIVITY
    made.files_requested.append(True)
    made.disks_requested.append(True)
    async with shown(made, (160, 50), outlier_actions=catching(rule)) as (app, pilot):
        await pilot.press("O")
        for _ in rows(app):
            if any(line.startswith(">") and what in line for line in screen(app)):
                break
            await pilot.press("down")
        await pilot.press("enter", "enter")
        await until(lambda: app.view.focus in (FILES, DISKS))
        (selected,) = (line for line in screen(app) if line.startswith(">"))
        assert selected.startswith(row)
        assert screen(app)[-2].startswith("outlier:")
