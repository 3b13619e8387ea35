"""Each key does what help says, and a key that does nothing says so."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pytest
from textual import events
from textual.command import CommandPalette

from offtop.errors import UsageError
from offtop.model.values.snapshot import Filters
from offtop.model.viewmodel.view import CATEGORIES, FILES, FLAME, HISTOGRAM, LIST, TREE, View
from offtop.ui.app import OfftopApp
from offtop.ui.kit.keys import KEYS, PRESETS, keymap
from offtop.ui.panes.chooser import Chooser
from offtop.ui.panes.help import Help
from offtop.ui.panes.process_details import ProcessDetails
from offtop.ui.panes.stack_problems import StackProblems
from offtop.ui.panes.suspects import Suspects
from tests.ui.fake_files import FakeFiles
from tests.ui.scripted import MS, SHOP, WHO, ScriptedSource
from tests.ui.shown import QUICK_NS, asynchronous, catching, screen, shown, until


class After(NamedTuple):
    """What a test can inspect after a key."""

    app: OfftopApp
    source: ScriptedSource
    files: FakeFiles


@dataclass(frozen=True)
class Does:
    """What must be true after a key."""

    holds: Callable[[After], object]
    before: Sequence[str] = ()
    """Keys pressed before it."""


def at_tick(number: int) -> Callable[[After], object]:
    """Check that the tick with this number is on the screen."""
    return lambda after: after.app.picture is not None and after.app.picture.common.newest.number == number


def says(text: str) -> Callable[[After], object]:
    """Check that `text` is on the screen."""
    return lambda after: any(text in line for line in screen(after.app))


def on(screen_class: type) -> Callable[[After], object]:
    """Check that a screen of this class is on top."""
    return lambda after: isinstance(after.app.screen, screen_class)


SEARCHED = ("H", "/", *"main", "enter")
DOES: dict[str, Does] = {
    "down": Does(lambda after: after.app.view.category == "lock"),
    "up": Does(lambda after: after.app.view.category == "lock", ("down", "down")),
    "page_down": Does(lambda after: after.app.view.category == "disk-read"),
    "page_up": Does(lambda after: after.app.view.category == "", ("down", "down", "down")),
    "first": Does(lambda after: after.app.view.category == "", ("end",)),
    "last": Does(lambda after: after.app.view.category == "disk-read"),
    "next_pane": Does(lambda after: after.app.view.focus == LIST),
    "previous_pane": Does(lambda after: after.app.view.focus == CATEGORIES, ("tab",)),
    "drill": Does(lambda after: after.app.view.focus == LIST),
    "back": Does(lambda after: after.app.view.pid is None and after.app.view.focus == LIST, ("enter", "enter")),
    "right": Does(lambda after: after.app.view.pid == 100, ("enter",)),
    "left": Does(lambda after: after.app.view.focus == CATEGORIES, ("enter",)),
    "threads": Does(says("threads: all categories")),
    "cgroups": Does(says("cgroups: all categories")),
    "account": Does(says("where each second went")),
    "tree": Does(lambda after: after.app.view.focus == TREE),
    "offcpu": Does(says("processes: all categories"), ("5",)),
    "wakeup": Does(says("wakers: all categories")),
    "offwake": Does(says("|3 off-wake|")),
    "chain": Does(says("|4 chain|")),
    "objects": Does(says("objects: all categories"), ("2",)),
    "stuck": Does(says("stuck now")),
    "suspects": Does(on(Suspects)),
    "files": Does(says("Starting to count file operations")),
    "disks": Does(says("Starting to count requests to disks")),
    "outliers": Does(says("No outliers yet.")),
    "triggers": Does(says("outliers (auto; lock.max > 500ms; off):")),
    "reasons": Does(says("causes: all categories")),
    "flame": Does(lambda after: after.app.view.focus == FLAME),
    "latency": Does(lambda after: after.app.view.latency == HISTOGRAM),
    "zoom": Does(lambda after: not says("processes: all categories")(after)),
    "open": Does(says("greeting"), ("t", "end", "up")),
    "close": Does(
        lambda after: after.app.picture and after.app.picture.tree and len(after.app.picture.tree.branches) == 1, ("t",)
    ),
    "open_all": Does(says("greeting"), ("t",)),
    "invert": Does(says("leaf first (v)"), ("t",)),
    "kernel_frames": Does(says("kernel only (K)"), ("t",)),
    "user_frames": Does(says("user only (U)"), ("t",)),
    "machinery": Does(says("all frames (.)"), ("t",)),
    "by_object": Does(says("by object (J)"), ("t",)),
    "search": Does(says("search (ENTER keeps it as a filter, !word excludes):")),
    "next_hit": Does(lambda after: after.app.view.cursor == (100, 102), SEARCHED),
    "previous_hit": Does(lambda after: after.app.view.cursor == (100, 101), (*SEARCHED, "n")),
    "filter": Does(says("filter (as comm=mysql* max>10ms cat!=poll):")),
    "user": Does(says("only this user's processes (name or id; empty: all):")),
    "states": Does(says("only waits in these thread states")),
    "rate": Does(says("requests/s")),
    "facts": Does(on(ProcessDetails), ("enter",)),
    "stack_problems": Does(on(StackProblems)),
    "mute": Does(lambda after: [one.text for one in after.app.view.muted] == ["cat=lock"], ("down",)),
    "idle": Does(says("~poll")),
    "pin": Does(lambda after: after.app.view.pin == 200, ("enter", "end")),
    "narrow": Does(lambda after: after.source.filters == Filters(pids=(100,)), ("enter", "p")),
    "pause": Does(says("PAUSED -0")),
    "tick_back": Does(at_tick(2)),
    "tick_on": Does(at_tick(2), ("[", "[")),
    "minute_back": Does(at_tick(1)),
    "minute_on": Does(lambda after: at_tick(3)(after) and after.app.view.paused_at_ns, ("[", "[")),
    "go_to": Does(says("go to a time (02:10:55), or back or forward (-5m, +30s)")),
    "live": Does(lambda after: after.app.view.paused_at_ns is None, ("[",)),
    "record": Does(says("recording to shop.offtop; a ends it")),
    "snapshot": Does(says("save a clip of the last (90s, 10m, all): 1m")),
    "window": Does(lambda after: after.app.view.span_ns == 60_000 * MS),
    "mark": Does(says("baseline: 2026-11-21 02:00:00 to 02:00:03, 3s; D compares with it")),
    "diff": Does(says("there is no baseline: B takes")),
    "reset": Does(says("cumulative numbers (T, and w) are reset")),
    "delay": Does(says("seconds between ticks, 0.1 to 60")),
    "minimum": Does(says("shortest wait that gets a stack")),
    "names": Does(says("/opt/shop --open 8080")),
    "sort_waiting": Does(lambda after: after.app.view.sort == "WAITING", ("M",)),
    "sort_max": Does(lambda after: after.app.view.sort == "MAX"),
    "sort_total": Does(says("TOTAL")),
    "sort_events": Does(lambda after: after.app.view.sort == "EV/S"),
    "sort_left": Does(lambda after: after.app.view.sort == "P99"),
    "sort_right": Does(lambda after: after.app.view.sort == "MAX"),
    "sort_by": Does(on(Chooser)),
    "reverse": Does(says("sort WAITING reversed")),
    "setup": Does(says("columns, panes, mutes")),
    "copy": Does(lambda after: after.app.clipboard.startswith("100 shop "), ("enter",)),
    "export": Does(on(Chooser)),
    "write": Does(lambda after: after.files.written == ["WAITING dark False"]),
    "palette": Does(on(CommandPalette)),
    "screenshot": Does(lambda after: after.files.written and after.files.written[0].startswith("<svg ")),
    "help": Does(on(Help)),
    "redraw": Does(says("processes: all categories")),
    "suspend": Does(lambda after: after.app.is_running),  # test_terminal.py really suspends it
    "quit": Does(lambda after: after.app.return_code == 0),
    "interrupt": Does(lambda after: after.app.return_code == 0),
}
"""What each key of KEYS does, by id, with SHOP at 80x24."""


def test_each_key_is_listed_and_tested_once() -> None:
    assert [row.id for row in KEYS] == [*DOES]
    every = [key for row in KEYS for key in row.keys.split(",")]
    assert len({*every}) == len(every)
    assert KEYS[0].says


@asynchronous
async def test_all_keys_of_a_row_have_the_same_action() -> None:
    async with shown(ScriptedSource(SHOP)) as (app, _):
        for row in KEYS:
            for key in row.keys.split(","):
                (bound,) = [one for one in app._bindings.get_bindings_for_key(key) if one.id]  # pyright: ignore[reportPrivateUsage]
                assert (bound.action, bound.id) == (row.action, row.id)


@pytest.mark.parametrize(("id", "key"), [(row.id, row.keys.split(",")[0]) for row in KEYS])
@asynchronous
async def test_each_key_does_what_it_says(id: str, key: str) -> None:  # noqa: A002
    source, files = ScriptedSource(SHOP, who=WHO), FakeFiles()
    async with shown(source, files=files, outlier_actions=catching("auto")) as (app, pilot):
        if DOES[id].before:
            await pilot.press(*DOES[id].before)
        assert id in ("redraw", "suspend") or not DOES[id].holds(After(app, source, files))
        await pilot.press(key)
        await pilot.pause()
        await until(lambda: bool(DOES[id].holds(After(app, source, files))))


@asynchronous
async def test_vim_preset_works_and_help_and_key_bar_show_it() -> None:
    chosen = keymap("vim", {"flame": "ctrl+o", "idle": "ctrl+y, ;"})
    async with shown(ScriptedSource(SHOP, ticks=12), (160, 150), keymap=chosen) as (app, pilot):
        assert "Ctrl-O Flame" in screen(app)[-1]
        assert "L Latency" in screen(app)[-1] and "? Help" in screen(app)[-1]
        await pilot.press("l", "l")
        assert app.view.pid == 100
        await pilot.press("h", "h")
        assert (app.view.pid, app.view.focus) == (None, CATEGORIES)
        await pilot.press("G")
        assert app.view.category == "disk-read"
        await pilot.press("semicolon")
        assert app.view.idle_shown
        await pilot.press("i")
        assert "no action on 'i'; ? for help" in screen(app)
        await pilot.press("g", "ctrl+o")
        assert app.view.focus == FLAME
        await pilot.press("?")
        await pilot.pause()
        words = [line.split() for line in screen(app)]
        assert next(line for line in words if "icicle" in line and "graph" in line)[:1] == ["Ctrl-O"]
        assert any(line[:2] == ["Ctrl-Y", ";"] for line in words)


def test_presets_have_no_conflicting_keys() -> None:
    for preset in PRESETS:
        keymap(preset, {})


def test_conflicting_key_and_unknown_action_are_refused() -> None:
    with pytest.raises(UsageError, match=r"gives x to both zoom and quit\. Give one of them another key"):
        keymap("top", {"quit": "x"})
    with pytest.raises(UsageError, match=r"has no action 'fly'\. There are: down, up, "):
        keymap("top", {"fly": "x"})
    assert keymap("top", {"zoom": "?", "help": "ctrl+k"}) == {"zoom": "question_mark", "help": "ctrl+k"}
    assert not keymap("top", {})


@asynchronous
async def test_escape_and_a_digit_that_arrive_together_are_two_keys() -> None:
    views: list[View] = []
    for together in (False, True):
        async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
            await pilot.press("down", "enter", "enter")
            assert app.view.pid == 100
            if together:
                app.post_message(events.Key("pilcrow_sign", "¶"))
                await pilot.pause()
            else:
                await pilot.press("escape", "7")
            views.append(app.view)
    assert (views[0].focus, views[0].pid) == (FILES, None)
    assert views[0] == views[1]


@asynchronous
async def test_escape_and_a_digit_that_arrive_together_close_a_box_and_open_a_list() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("question_mark")
        assert app.has_overlay
        app.post_message(events.Key("pilcrow_sign", "¶"))
        await until(lambda: app.view.focus == FILES)
        assert not app.has_overlay


@asynchronous
async def test_unbound_key_is_reported_until_the_next_key() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        await pilot.press("semicolon")
        assert "no action on ';'; ? for help" in screen(app)
        await pilot.press("down")
        assert "no action on ';'; ? for help" not in screen(app)


@pytest.mark.parametrize("key", ["q", "f10", "ctrl+c", "ctrl+q"])
@asynchronous
async def test_quit_keys_exit_with_status_0(key: str) -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        await pilot.press(key)
        assert app.return_code == 0
        assert app.return_value == 0


@asynchronous
async def test_keys_before_the_first_tick_are_harmless() -> None:
    source = ScriptedSource(ticks=0)
    view = replace(View(), delay_ns=QUICK_NS)
    async with shown(source, view=view, ticks=0) as (app, pilot):
        every = [key for row in KEYS for key in row.keys.split(",") if row.id not in ("quit", "interrupt", "suspend")]
        await pilot.press(*every)
        assert app.is_running
