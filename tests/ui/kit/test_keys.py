"""Each key does what help says, and a key that does nothing says so."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pytest
from textual import events
from textual.command import CommandPalette

from offtop.errors import KernelError, UsageError
from offtop.feed.source import Source
from offtop.model.values.catalog import Details, ThreadKey
from offtop.model.values.snapshot import Filters, Snapshot
from offtop.model.values.stack import one_name
from offtop.model.viewmodel.view import (
    CATEGORIES,
    FILES,
    FLAME,
    HISTOGRAM,
    LATENCY,
    LIST,
    SINCE_START,
    SITE,
    TREE,
    View,
)
from offtop.ui.app import OfftopApp
from offtop.ui.kit import glyphs
from offtop.ui.kit.keys import KEYS, PRESETS, keymap
from offtop.ui.kit.keys import shown as shown_key
from offtop.ui.kit.lines import Pen
from offtop.ui.panes import stacks
from offtop.ui.panes.chooser import Chooser
from offtop.ui.panes.help import Help
from offtop.ui.panes.process_details import ProcessDetails
from offtop.ui.panes.stack_problems import StackProblems
from offtop.ui.panes.suspects import Suspects
from tests.ui.scripted import MS, SHOP, WHO, ScriptedSource, Waits
from tests.ui.shown import (
    QUICK_NS,
    asynchronous,
    catching,
    crumb_line,
    pane,
    screen,
    shown,
    until,
    waiting_line,
)

CONNECTION, WRITER = ThreadKey(4242, 4268), ThreadKey(4242, 4251)


class FakeRecorder:
    """A recorder that keeps what it was given and writes nothing."""

    path = Path("shop.offtop")
    failure = ""
    bytes_written = 2 << 20

    def __init__(self) -> None:
        self.taken: list[Snapshot] = []

    def add(self, snapshot: Snapshot) -> None:
        self.taken.append(snapshot)

    def close(self) -> str:
        return f"recorded {len(self.taken)} ticks: shop.offtop"


class FakeFiles:
    """Files that keep what would be written and write nothing."""

    def __init__(self) -> None:
        self.written: list[str] = []

    def save_settings(self, view: View, theme: str, mouse: bool) -> str:
        self.written.append(f"{view.sort} {theme} {mouse}")
        return "written to config.toml"

    def write(self, path: Path, text: str | bytes) -> str:
        self.written.append(str(text))
        return f"written to {path}"

    def recorder(self, source: Source) -> FakeRecorder:
        return FakeRecorder()

    def clip(self, source: Source, what: str, taken_ns: int) -> FakeRecorder:
        self.written.append(what)
        return FakeRecorder()


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
async def test_down_and_up_select_a_category_and_the_list_follows() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        assert app.view.category == ""
        await pilot.press("down")
        assert app.view.category == "lock"
        assert any("processes: lock" in line for line in screen(app))
        await pilot.press("j", "j", "k")
        assert app.view.category == "fsync"
        await pilot.press("end")
        assert app.view.category == "short"
        await pilot.press("home", "up")
        assert app.view.category == ""


@asynchronous
async def test_enter_drills_down_to_a_thread_and_escape_goes_back() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        await pilot.press("down", "enter")
        assert (app.view.focus, app.view.pid) == (LIST, None)
        await pilot.press("enter")
        assert app.view.pid == 4242
        assert any("threads of mysqld(4242): lock" in line for line in screen(app))
        await pilot.press("enter")
        assert app.view.thread == CONNECTION
        assert crumb_line(app).startswith("All > lock > mysqld(4242) > connection(4268)")
        assert any("futex_do_wait" in line for line in screen(app))
        seen: list[tuple[object, ...]] = []
        for _ in range(5):
            await pilot.press("escape")
            seen.append((app.view.thread, app.view.pid, app.view.focus, app.view.category))
        assert seen == [
            (None, 4242, LIST, "lock"),
            (None, None, LIST, "lock"),
            (None, None, CATEGORIES, "lock"),
            (None, None, CATEGORIES, ""),
            (None, None, CATEGORIES, ""),
        ]


def crumb(app: OfftopApp) -> str:
    return crumb_line(app).split("  ")[0]


@asynchronous
async def test_breadcrumb_follows_each_step_down_and_back() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        steps = [
            ("down", "All > lock", CATEGORIES),
            ("enter", "All > lock", LIST),
            ("enter", "All > lock > shop(100)", LIST),
            ("enter", "All > lock > shop(100) > worker-1(101)", TREE),
            ("enter", "All > lock > shop(100) > worker-1(101) > futex_do_wait", SITE),
        ]
        for key, words, focus in steps:
            await pilot.press(key)
            assert (crumb(app)[:79], app.view.focus) == (words, focus)
        for _, words, focus in reversed(steps[:-1]):
            await pilot.press("escape")
            assert (crumb(app)[:79], app.view.focus) == (words, focus)
        await pilot.press("backspace")
        assert crumb(app) == "All"
        await pilot.press("escape")
        assert (app.view.focus, app.is_running) == (CATEGORIES, True)


@asynchronous
async def test_each_level_remembers_its_cursor() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("tab", "down", "enter", "down", "enter")
        assert (app.view.pid, app.view.thread) == (200, ThreadKey(200, 201))
        await pilot.press("escape")
        assert app.view.cursor == ThreadKey(200, 201)
        assert any(line.startswith(">      201 teller") for line in screen(app))
        await pilot.press("escape")
        assert any(line.startswith(">      200 bank") for line in screen(app))


WORDS = ["100", "shop", "futex_do_wait", "<", "take_order", "<", "serve", "<", "main", "0.60"]
NUMBERS_OF: dict[tuple[str, ...], tuple[int, int, int]] = {
    (): (10_000, 10_000, 120),
    ("down",): (7_000, 7_000, 40),
    ("down", "enter", "enter"): (6_000, 6_000, 30),
    ("down", "enter", "enter", "down", "enter"): (2_000, 6_000, 10),
    ("enter", "enter", "enter"): (5_000, 8_000, 30),
    ("enter", "down", "enter", "enter"): (1_000, 2_000, 20),
}
"""Keys → waiting time in ten seconds of the selection and of the list (ms), and finished waits of the selection."""


@pytest.mark.parametrize("keys", NUMBERS_OF)
@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
@asynchronous
async def test_selection_applies_to_every_pane(keys: tuple[str, ...], size: tuple[int, int]) -> None:
    async with shown(ScriptedSource(SHOP, ticks=12), size) as (app, pilot):
        if keys:
            await pilot.press(*keys)
        picture = app.picture
        assert picture is not None
        chosen_ms, listed_ms, waits = NUMBERS_OF[keys]
        assert picture.common.selected.total_ns == chosen_ms * MS
        assert picture.common.selected.waits == waits
        assert picture.listed.ranking.whole.total_ns == listed_ms * MS
        assert {round(value, 3) for value in picture.head.timeline.cells if value is not None} == {chosen_ms / 10_000}
        if picture.tree is not None:
            assert picture.tree.root.total_ns == chosen_ms * MS
        of_category = next((row for row in picture.categories.ranking.rows if row.key == app.view.category), None)
        assert (
            of_category.part.total_ns if of_category else picture.categories.ranking.whole.total_ns
        ) == chosen_ms * MS
        assert picture.common.totals.shown.total_ns == 10_000 * MS


@asynchronous
async def test_tab_cycles_the_visible_panes_and_shift_tab_goes_backwards() -> None:
    for size, keys, panes in (
        ((80, 24), (), [LIST, CATEGORIES]),
        ((80, 24), ("l",), [CATEGORIES, CATEGORIES]),
        ((80, 24), ("l", "l", "shift+tab"), [LATENCY, CATEGORIES]),
        ((160, 50), (), [LIST, TREE, CATEGORIES]),
        ((160, 50), ("l", "shift+tab"), [LATENCY, LIST, TREE, CATEGORIES]),
        ((160, 50), ("t", "enter", "tab"), [LIST, TREE, CATEGORIES]),
        ((60, 9), (), [CATEGORIES]),
    ):
        async with shown(ScriptedSource(SHOP, ticks=12), size) as (app, pilot):
            if keys:
                await pilot.press(*keys)
            for step, order in (("tab", panes), ("shift+tab", [*panes[-2::-1], panes[-1]])):
                seen: list[str] = []
                for _ in panes:
                    await pilot.press(step)
                    seen.append(app.view.focus)
                assert seen == order


@asynchronous
async def test_tab_moves_the_focus_to_the_list_and_back() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        await pilot.press("tab", "down")
        assert (app.view.category, app.view.cursor) == ("", 3100)
        await pilot.press("pagedown")
        assert app.view.cursor == 977
        await pilot.press("pageup")
        assert app.view.cursor == 4242
        await pilot.press("shift+tab", "down")
        assert app.view.category == "lock"


@asynchronous
async def test_down_in_a_thread_goes_to_the_next_thread() -> None:
    async with shown(ScriptedSource(), (160, 50)) as (app, pilot):
        await pilot.press("tab", "enter", "enter", "shift+tab", "down")
        assert app.view.thread == WRITER
        assert any("jbd2_log_wait_commit" in line for line in screen(app))


@asynchronous
async def test_h_lists_threads_of_all_processes() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        await pilot.press("H")
        assert app.picture is not None
        assert [row.key for row in app.picture.listed.ranking.rows] == [CONNECTION, (3100, 3107), WRITER, (977, 977)]
        await pilot.press("H")
        assert [row.key for row in app.picture.listed.ranking.rows] == [4242, 3100, 977]


@asynchronous
async def test_pinned_row_is_on_top_and_p_unpins_it() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        await pilot.press("tab", "end", "p")
        assert app.view.pin == 977
        assert app.picture is not None
        assert app.picture.listed.ranking.rows[0].key == 977
        assert any(line.startswith(">*") and "postgres" in line for line in screen(app))
        await pilot.press("p")
        assert app.view.pin is None


@asynchronous
async def test_p_without_a_row_explains_itself() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        await pilot.press("p")
        assert "p pins a program, process, thread or cgroup: TAB goes to their list" in screen(app)


@asynchronous
async def test_f_restricts_the_kernel_filter_to_the_pin_and_lifts_it_again() -> None:
    source = ScriptedSource()
    async with shown(source) as (app, pilot):
        await pilot.press("F")
        assert (source.filters, app.view.narrowed) == (Filters(), False)
        assert "nothing is pinned" in screen(app)[-2]
        await pilot.press("tab", "p", "F")
        assert source.filters == Filters(pids=(4242,))
        await pilot.press("F")
        assert source.filters == Filters()
        await pilot.press("F", "p")
        assert (source.filters, app.view.pin, app.view.narrowed) == (Filters(), None, False)
        await pilot.press("H", "tab", "tab", "p", "F")
        assert source.filters == Filters(tids=(4268,))


@asynchronous
async def test_refusal_of_the_source_is_shown_and_changes_nothing() -> None:
    source = ScriptedSource()
    async with shown(source) as (app, pilot):
        source.refuses = KernelError("this is a recording: it cannot be filtered anew")
        await pilot.press("tab", "p", "F")
        assert not app.view.narrowed
        assert "this is a recording: it cannot be filtered anew" in screen(app)


@pytest.mark.parametrize("key", ["space", "z", "Z"])
@asynchronous
async def test_paused_view_stays_while_measuring_continues(key: str) -> None:
    source = ScriptedSource(ticks=3)
    async with shown(source) as (app, pilot):
        await pilot.press(key)
        assert app.view.paused_at_ns is not None
        before = screen(app)
        source.go_on(to=8)
        await until(lambda: app.picture is not None and app.picture.head.behind_ns == 5 * 1_000 * MS)
        await pilot.pause()
        after = screen(app)
        assert "PAUSED -5s" in after[0]
        assert after[1:] == before[1:]
        await pilot.press("down")
        assert app.picture is not None and app.picture.common.newest.number == 3
        await pilot.press(key)
        await until(lambda: app.picture is not None and app.picture.common.newest.number == 8)
        assert "LIVE" in screen(app)[0]


@asynchronous
async def test_w_cycles_the_windows() -> None:
    async with shown(ScriptedSource(ticks=75)) as (app, pilot):
        heads: list[str] = []
        for _ in range(4):
            heads.append(screen(app)[0].partition(" 5 ")[2].rpartition("  LIVE")[0].strip())
            await pilot.press("w")
        assert heads == ["window 10s", "window 1m", "since start 75s", "window 1s"]
        assert app.view.span_ns != SINCE_START


@asynchronous
async def test_steady_load_shows_the_same_waiting_in_every_window() -> None:
    async with shown(ScriptedSource(ticks=75)) as (app, pilot):
        for _ in range(4):
            await pilot.press("w")
            assert app.picture is not None
            assert app.picture.common.totals.shown.total_ns * 10 // app.picture.common.span_ns == 7
            assert [row.key for row in app.picture.listed.ranking.rows] == [4242, 3100, 977]
            assert app.picture.categories.ranking.rows[0].part.max_ns == 300 * MS


@asynchronous
async def test_i_shows_idle_waits() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        assert "+2.00 idle (i)" in waiting_line(app)
        await pilot.press("i")
        assert "idle shown (i)" in waiting_line(app)
        assert any("~poll" in line for line in screen(app))


@asynchronous
async def test_sort_keys_step_through_columns_and_r_reverses() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        seen: list[str] = []
        for key in ("M", "T", "E", "P", ">", "<", "<", "<", "<"):
            await pilot.press(key)
            seen.append(app.view.sort)
        assert seen == ["MAX", "TOTAL", "EV/S", "WAITING", "MAX", "WAITING", "P99", "P50", "PID"]
        assert app.picture is not None
        assert [row.key for row in app.picture.listed.ranking.rows] == [977, 3100, 4242]
        await pilot.press("R")
        assert [row.key for row in app.picture.listed.ranking.rows] == [4242, 3100, 977]
        assert "sort PID reversed" in crumb_line(app)


@asynchronous
async def test_d_prompts_for_the_delay_and_refuses_invalid_input() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        await pilot.press("d")
        assert "seconds between ticks, 0.1 to 60" in screen(app)[-2]
        await pilot.press(*"abc", "enter")
        assert "'abc' is not a delay from 0.1 to 60 s" in screen(app)[-2]
        await pilot.press(*"61", "enter")
        assert "'61' is not a delay from 0.1 to 60 s" in screen(app)[-2]
        assert app.view.delay_ns == QUICK_NS
        await pilot.press(*"2.5", "enter")
        assert app.view.delay_ns == 2_500 * MS
        assert "LIVE 2.5s" in screen(app)[0]
        await pilot.press("d", "escape")
        assert app.view.delay_ns == 2_500 * MS
        assert "seconds between" not in screen(app)[-2]


@asynchronous
async def test_new_delay_applies_at_once() -> None:
    source = ScriptedSource(ticks=1)
    async with shown(source, view=View(delay_ns=60_000 * MS)) as (app, pilot):
        source.go_on(to=3)
        await pilot.press("d", *"0.1", "enter")
        await until(lambda: app.picture is not None and app.picture.common.newest.number == 3)


@asynchronous
async def test_m_prompts_for_the_minimum_and_sets_it_in_the_source() -> None:
    source = ScriptedSource()
    async with shown(source) as (app, pilot):
        await pilot.press("m", "x", "enter")
        assert "'x' is not a length of time" in screen(app)[-2]
        await pilot.press(*"200us", "enter")
        assert source.filters.min_ns == 200_000
        await pilot.press("m", "2", "enter")
        assert source.filters.min_ns == 2_000_000
        await pilot.press("m", "0", "enter")
        assert source.filters.min_ns == 0
        await pilot.press("m", "enter")
        assert source.filters.min_ns == 0
        assert app.view.filters.min_ns == 0


@asynchronous
async def test_letters_go_to_an_open_prompt() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        await pilot.press("d", "q", "i", "tab")
        assert not app.view.idle_shown
        assert app.is_running
        await pilot.press("ctrl+c")
        assert app.return_code == 0


@pytest.mark.parametrize("key", ["?", "h", "f1"])
@asynchronous
async def test_help_lists_every_key_and_category_and_the_session(key: str) -> None:
    async with shown(ScriptedSource(), size=(100, 540)) as (app, pilot):
        await pilot.press(key)
        await pilot.pause()
        text = "\n".join(screen(app))
        for row in KEYS:
            assert all(shown_key(key) in text for key in row.keys.split(","))
        for category in ("lock", "disk-read", "run-queue", "short", "other"):
            assert f"\n {category} " in text
        assert "About this session" in text
        assert "6.18.0" in text
        await pilot.press("escape")
        await pilot.pause()
        assert any("CATEGORY" in line for line in screen(app))


@asynchronous
async def test_help_scrolls_and_q_closes_only_it() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        await pilot.press("?")
        await pilot.pause()
        top = screen(app)
        await pilot.press("pagedown", "down")
        await pilot.pause()
        assert screen(app) != top
        await pilot.press("home")
        await pilot.pause()
        assert screen(app) == top
        await pilot.press("q")
        await pilot.pause()
        assert app.is_running
        assert any("CATEGORY" in line for line in screen(app))


@pytest.mark.parametrize("key", ["/", "\\", "u", "d", "m"])
@asynchronous
async def test_prompt_takes_any_text_and_escape_closes_it(key: str) -> None:
    async with shown(ScriptedSource(SHOP, who=WHO)) as (app, pilot):
        before, rows = app.view, screen(app)[:-2]
        await pilot.press(key, *"qixXHtglpF?Wv.+-*1 ")
        assert screen(app)[-2].endswith("qixXHtglpF?Wv.+-*1")
        assert replace(app.view, search="") == before
        await pilot.press("escape")
        assert (app.view, screen(app)[:-2]) == (before, rows)
        await pilot.press("i")
        assert app.view.idle_shown


@pytest.mark.parametrize("before", [("/",), ("d",), ("f",), ("f6",), ("?",), ("ctrl+p",), ("g",), ("t", "enter")])
@asynchronous
async def test_ctrl_c_closes_an_overlay_first_and_then_offtop(before: tuple[str, ...]) -> None:
    async with shown(ScriptedSource(SHOP)) as (app, pilot):
        await pilot.press(*before)
        await pilot.pause()
        had_overlay = len(app.screen_stack) > 1
        await pilot.press("ctrl+c")
        await pilot.pause()
        if had_overlay:
            assert (len(app.screen_stack), app.return_code) == (1, None)
            await pilot.press("ctrl+c")
        assert app.return_code == 0


@asynchronous
async def test_c_shows_command_lines_and_cgroups_and_looks_up_only_visible_rows() -> None:
    source = ScriptedSource(SHOP, ticks=12, who=WHO)
    async with shown(source) as (app, pilot):
        assert source.asked == []
        await pilot.press("c")
        assert any("COMMAND LINE" in line for line in screen(app))
        assert any("/opt/shop --open 8080" in line for line in screen(app))
        assert {pid for pids in source.asked for pid in pids} == {100, 200}
        await pilot.press("i")
        assert {pid for pids in source.asked for pid in pids} == {100, 200, 300}
        await pilot.press("c")
        assert any("CGROUP" in line for line in screen(app))
        assert any("/bank.slice" in line for line in screen(app))
        await pilot.press("c", "H")
        assert any("THREAD" in line for line in screen(app))
        await pilot.press("c", "tab")
        assert any(" 101 /opt/shop --open 8080" in line for line in screen(app))


@asynchronous
async def test_only_visible_processes_are_looked_up() -> None:
    table = [replace_pid(SHOP[8], pid) for pid in range(1000, 1100)]
    source = ScriptedSource(table, ticks=3)
    async with shown(source) as (app, pilot):
        await pilot.press("tab", "plus", "c")
        assert len(source.asked[-1]) <= len(pane(app, LIST))
        assert max(source.asked[-1]) == 1099
        await pilot.press("end")
        assert min(source.asked[-1]) == 1000
        assert max(source.asked[-1]) < 1000 + len(pane(app, LIST))


def replace_pid(row: Waits, pid: int) -> Waits:
    return row._replace(pid=pid, tid=pid)


@asynchronous
async def test_hostile_command_line_is_shown_escaped() -> None:
    who = {100: Details("\x1b[31m", "sh\x1b[2J\u202e\n --x", "/\x9b31m", 0)}
    async with shown(ScriptedSource(SHOP, ticks=3, who=who), (160, 50)) as (app, pilot):
        for words in ("sh\\x1b[2J\\u202e\\x0a --x", "/\\x9b31m"):
            await pilot.press("c")
            assert any(words in line for line in screen(app))
            assert not [
                c for line in screen(app) for c in line if ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or c == "\u202e"
            ]


class Refusing(FakeFiles):
    def save_settings(self, view: View, theme: str, mouse: bool) -> str:
        raise UsageError("config.toml cannot be written. Give another with --config")

    def write(self, path: Path, text: str | bytes) -> str:
        raise UsageError("this directory cannot be written to. Go to another")


@asynchronous
async def test_w_and_f12_report_the_file_or_the_error() -> None:
    for files, kept, drawn in (
        (FakeFiles(), "written to config.toml", "written to offtop-"),
        (
            Refusing(),
            "config.toml cannot be written. Give another with --config",
            "this directory cannot be written to. Go to another",
        ),
        (None, "This screen has no config file to write to", "This screen cannot write files"),
    ):
        async with shown(ScriptedSource(SHOP), files=files) as (app, pilot):
            await pilot.press("M", "W")
            assert screen(app)[-2] == kept
            await pilot.press("f12")
            assert screen(app)[-2].startswith(drawn)
            if isinstance(files, FakeFiles) and not isinstance(files, Refusing):
                assert files.written[0] == "MAX dark False"
                assert "mysqld" not in files.written[1] and "worker" not in files.written[1]
                assert "bank" in files.written[1]


@asynchronous
async def test_x_zooms_the_focused_pane_and_escape_restores_all() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12), (160, 50)) as (app, pilot):
        await pilot.press("tab", "x")
        assert not any("CATEGORY" in line or "STACK" in line for line in screen(app))
        await pilot.press("enter")
        assert crumb(app) == "All > shop(100)"
        assert not any("CATEGORY" in line for line in screen(app))
        await pilot.press("escape")
        assert crumb(app) == "All > shop(100)"
        assert any("CATEGORY" in line for line in screen(app))


@asynchronous
async def test_r_resets_cumulative_counters() -> None:
    source = ScriptedSource(SHOP, ticks=75)
    async with shown(source) as (app, pilot):
        await pilot.press("w", "w")
        assert "since start 75s" in screen(app)[0]
        await pilot.press("r")
        source.go_on(to=77)
        await until(lambda: app.picture is not None and app.picture.common.newest.number == 77)
        await pilot.pause()
        assert "since start 2s" in screen(app)[0]
        assert app.picture is not None and app.picture.common.totals.shown.total_ns == 2_000 * MS


@asynchronous
async def test_y_copies_a_row_or_category_or_explains_itself() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("y")
        assert "y copies the row or the branch under the cursor: TAB goes to one" in screen(app)
        await pilot.press("down", "y")
        assert app.clipboard == "lock 0.70"
        await pilot.press("enter", "y")
        assert app.clipboard.split() == WORDS


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


@pytest.mark.parametrize("key", ["q", "f10", "ctrl+c", "ctrl+q", "escape"])
@asynchronous
async def test_quit_key_in_help_closes_only_help(key: str) -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        await pilot.press("h")
        assert len(app.screen_stack) == 2
        await pilot.press(key)
        assert len(app.screen_stack) == 1
        assert app.is_running


@asynchronous
async def test_switches_are_a_rate_even_since_the_start() -> None:
    async with shown(ScriptedSource(ticks=20)) as (app, pilot):
        await until(lambda: app.picture is not None and app.picture.common.newest.number == 20)
        for _ in range(2):
            await pilot.press("w")
        assert app.picture is not None
        assert (app.view.span_ns, app.picture.head.switches_per_s) == (SINCE_START, 81_200)


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
        length = stacks.site_length(app.picture.places, app.picture.common, pen)
        assert length == len(lines[at - 6 : at + 4])  # two header lines and a blank line
