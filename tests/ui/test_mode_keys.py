"""Switching modes: what the screen shows then, now and in earlier ticks, and how the source follows."""

import threading
from threading import Event

import pytest
from rich.cells import cell_len

from offtop.errors import KernelError, OfftopError
from offtop.model.values.wake import CHAIN, MODES, OFFCPU, OFFWAKE, THREAD, WAKEUP, Object, Storm
from offtop.model.viewmodel.view import CATEGORIES, FLAME, LIST, SITE, STUCK, TREE
from offtop.ui.app import OfftopApp
from tests.ui.sampled import SampledSource
from tests.ui.scripted import CLERK, MUTEX, WAKERS, By, ScriptedSource, Then, Waits, Woken
from tests.ui.shown import asynchronous, screen, shown, until
from tests.ui.test_pictures import check
from tests.ui.wakers import CONTROL, EVIL, alert, crumb, gathering, line_with, listed

TABS = {"1": "|1 off-CPU|", "2": "|2 wakeup|", "3": "|3 off-wake|", "4": "|4 chain|", "5": "|5 stuck|"}
MODE_OF = dict(zip("1234", MODES, strict=True))
NOT_GATHERED = "No wakers are recorded for this time (yet)"


async def ticks(app: OfftopApp, source: ScriptedSource, to: int) -> None:
    source.go_on(to)
    await until(lambda: app.picture is not None and app.picture.common.newest.number == to)


# Switching modes


@asynchronous
async def test_1_to_4_switch_the_view_at_once_and_set_the_mode_of_the_source() -> None:
    source = gathering(OFFCPU, ticks=3)
    async with shown(source) as (app, pilot):
        for key in "2341":
            await pilot.press(key)
            assert (app.view.mode, TABS[key] in screen(app)[0]) == (MODE_OF[key], True)
            await until(lambda key=key: source.mode == MODE_OF[key])
        assert source.depth == 4


@asynchronous
async def test_list_says_that_wakers_are_not_collected_yet() -> None:
    source = gathering(OFFCPU, ticks=3)
    async with shown(source) as (app, pilot):
        for key in "234":
            await pilot.press(key)
            assert NOT_GATHERED in line_with(app, "No wakers are")
            assert line_with(app, "fsync")  # the categories need no wakers
        await pilot.press("t")
        assert NOT_GATHERED in line_with(app, "No wakers are")
        await pilot.press("enter", "enter", "down", "y")
        assert app.view.focus == TREE
        await pilot.press("g")
        assert NOT_GATHERED in line_with(app, "No wakers are")
        await pilot.press("g", "2", "t")
        await until(lambda: source.mode == WAKEUP)
        await ticks(app, source, 4)
        assert listed(app)[1][:3] == ["100", "shop", "0.50"]
        await pilot.press("1")
        assert listed(app)[0][:2] == ["300", "late"]


@pytest.mark.parametrize("size", [(60, 20), (45, 12)])
@asynchronous
async def test_tab_of_the_current_mode_is_kept_on_narrow_screens(size: tuple[int, int]) -> None:
    async with shown(gathering(), size) as (app, pilot):
        for key in "234":
            await pilot.press(key)
            assert TABS[key] in screen(app)[0]
        await pilot.press("1")
        assert "|" not in screen(app)[0], "off-CPU is the default and needs no tab"


@asynchronous
async def test_missing_chain_points_to_the_mode_with_wakers() -> None:
    source = gathering(WAKEUP, ticks=3)
    async with shown(source, (160, 50)) as (app, pilot):
        await pilot.press("space", "4")
        assert "3 shows the last wakers" in line_with(app, "No chains of wakers")


@pytest.mark.parametrize("key", "1234")
@asynchronous
async def test_key_of_the_current_mode_lists_the_others(key: str) -> None:
    async with shown(gathering()) as (app, pilot):
        await pilot.press(key)
        before = app.view
        await pilot.press(key)
        assert (app.view, before.mode) == (before, MODE_OF[key])
        if key != "1":
            await pilot.press(key)
        assert any(f"{other} " in alert(app) for other in "12345" if other != key)


@pytest.mark.parametrize("key", "234")
@asynchronous
async def test_5_opens_the_stuck_list_and_returns_to_the_mode(key: str) -> None:
    async with shown(gathering()) as (app, pilot):
        await pilot.press(key, "tab", "5")
        assert (TABS["5"] in screen(app)[0], app.view.focus) == (True, STUCK)
        await pilot.press("5")
        assert (TABS[key] in screen(app)[0], app.view.focus) == (True, LIST)
        await pilot.press("5", "1")
        assert (TABS["1"] in screen(app)[0], app.view.mode) == (True, OFFCPU)


@asynchronous
async def test_focused_pane_is_kept_across_modes() -> None:
    async with shown(gathering(), (160, 50)) as (app, pilot):
        for pane, keys in ((CATEGORIES, ()), (LIST, ("tab",)), (TREE, ("t",)), (FLAME, ("g",))):
            await pilot.press("1", *keys)
            for key in "23414321":
                await pilot.press(key)
                assert app.view.focus == pane
                assert TABS[key] in screen(app)[0]
            await pilot.press(*(["g"] if pane == FLAME else []), "escape", "escape")
        await pilot.press("1", "t", "enter")
        assert app.view.focus == SITE
        await pilot.press("3")
        assert (app.view.focus, app.view.path) == (TREE, ())


@asynchronous
async def test_waker_selection_is_dropped_in_mode_1() -> None:
    async with shown(gathering()) as (app, pilot):
        await pilot.press("2", "G", "tab", "enter", "enter")
        assert (app.view.object, bool(app.view.wakers)) == (MUTEX, True)
        await pilot.press("3")
        assert crumb(app) == "All > on futex 0x7f4040 of 100 > woken by shop(100)"
        await pilot.press("1")
        assert crumb(app) == "All > on futex 0x7f4040 of 100"
        assert listed(app)[0][:2] == ["100", "shop"]


# Time


@asynchronous
async def test_rewind_to_ticks_without_wakers_and_back_to_live() -> None:
    source = gathering(OFFCPU, ticks=4)
    async with shown(source) as (app, pilot):
        await pilot.press("2")
        await until(lambda: source.mode == WAKEUP)
        await ticks(app, source, 6)
        assert "window 2s of 10s" in screen(app)[0]
        await pilot.press("[")
        assert ("window 1s of 10s" in screen(app)[0], listed(app)[1][1]) == (True, "shop")
        await pilot.press("[")
        assert "PAUSED" in screen(app)[0]
        assert NOT_GATHERED in line_with(app, "No wakers are")
        await pilot.press("1")
        assert listed(app)[0][:2] == ["300", "late"]
        await pilot.press("2", "]")
        assert listed(app)[1][1] == "shop"
        await pilot.press("[", "w", "w")
        assert NOT_GATHERED in line_with(app, "No wakers are")
        await pilot.press("0")
        assert ("LIVE" in screen(app)[0], listed(app)[1][1]) == (True, "shop")
        await pilot.press("space", "3")
        assert ("PAUSED" in screen(app)[0], TABS["3"] in screen(app)[0]) == (True, True)


# The source


@asynchronous
async def test_refusal_of_a_mode_is_shown_and_the_app_continues() -> None:
    source = gathering(OFFCPU, ticks=3)
    source.refuses = KernelError("this kernel has no [sched]_waking\x1b[31m. 1 goes on")
    async with shown(source) as (app, pilot):
        await pilot.press("2")
        await until(lambda: "no [sched]_waking" in alert(app))
        assert not CONTROL.search("".join(screen(app)))
        assert NOT_GATHERED in line_with(app, "No wakers are")
        await ticks(app, source, 5)
        await pilot.press("1")
        assert listed(app)[0][:2] == ["300", "late"]
        source.refuses = None
        await pilot.press("3")
        await until(lambda: source.mode == OFFWAKE)


class Slow(ScriptedSource):
    """A source whose set_mode() blocks, and which records the requested modes."""

    def __init__(self) -> None:
        super().__init__(WAKERS, ticks=3)
        self.asked_for: list[str] = []
        self.may_go = Event()

    def set_mode(self, mode: str, depth: int) -> None:
        self.asked_for.append(mode)
        self.may_go.wait(20)
        super().set_mode(mode, depth)


@asynchronous
async def test_last_requested_mode_wins_with_a_slow_source() -> None:
    source = Slow()
    async with shown(source) as (app, pilot):
        await pilot.press("2")
        await until(lambda: source.asked_for == [WAKEUP])
        await pilot.press("3", "1", "4")
        assert (app.view.mode, source.mode) == (CHAIN, OFFCPU)
        source.may_go.set()
        await until(lambda: source.mode == CHAIN)
        assert source.asked_for == [WAKEUP, CHAIN]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@asynchronous
async def test_mode_keys_work_after_an_unexpected_error(monkeypatch: pytest.MonkeyPatch) -> None:
    source = gathering(OFFCPU, ticks=3)
    failed = Event()

    def fail(*_: object) -> None:
        failed.set()
        raise OSError(28, "No space left on device")

    async with shown(source) as (_, pilot):
        with monkeypatch.context() as patch:
            patch.setattr(source, "set_mode", fail)
            await pilot.press("2")
            await until(failed.is_set)
            await until(lambda: "offtop-mode" not in {thread.name for thread in threading.enumerate()})
        await pilot.press("3")
        await until(lambda: source.mode == OFFWAKE)


@asynchronous
async def test_quitting_does_not_wait_for_a_slow_source() -> None:
    source = Slow()
    source.refuses = OfftopError("no")
    async with shown(source) as (app, pilot):
        await pilot.press("2", "q")
    source.may_go.set()
    assert app.return_code == 0


# Hostile names, and sizes
HOSTILE = (
    Waits(
        *(EVIL, 1, EVIL, 2, "lock", EVIL, (EVIL, "main"), (400,)),
        woken=Woken(
            By(THREAD, EVIL, EVIL, 3, EVIL, 4, (EVIL,), (EVIL,)),
            Object("file", EVIL * 9),
            (Then((EVIL,), (EVIL,), CLERK),),
        ),
        storm=Storm(9, 99, 99, 99),
    ),
    Waits(*(EVIL, 1, EVIL, 2, "lock", EVIL, (EVIL, "main"), (100,)), woken=Woken(By("irq", EVIL), Object("", EVIL))),
)


@pytest.mark.parametrize("size", [(40, 8), (60, 12), (80, 24), (250, 60)])
@asynchronous
async def test_lines_fit_every_screen_and_hostile_names_are_escaped(size: tuple[int, int]) -> None:
    async with shown(gathering(table=(*HOSTILE, *WAKERS), ticks=3), size) as (app, pilot):
        keys = (*("2", "tab", "H", "H", "enter", "enter", "enter", "g", "escape", "escape", "escape", "escape", "G"),)
        more = ("tab", "enter", "enter", "t", "asterisk", "end", "enter", "X", "3", "t", "y", "4", "asterisk", "g")
        for key in (*keys, *more):
            await pilot.press(key)
            lines = screen(app)
            assert len(lines) == size[1]
            assert all(cell_len(line) <= size[0] for line in lines)
            assert not CONTROL.search("".join(lines))
        await pilot.press("y")
        assert not CONTROL.search(app.clipboard)


@pytest.mark.parametrize("key", "234")
@asynchronous
async def test_ascii_mode_draws_only_ascii(key: str) -> None:
    async with shown(gathering(table=(*HOSTILE, *WAKERS), ticks=3), ascii_only=True) as (app, pilot):
        for pressed in (key, "t", "enter", "g", "escape", "G"):
            await pilot.press(pressed)
            assert "".join(screen(app)).isascii()


@pytest.mark.parametrize("key", "234")
@asynchronous
async def test_empty_source_in_each_mode(key: str) -> None:
    async with shown(gathering(table=(), ticks=2)) as (app, pilot):
        for pressed in (key, "tab", "enter", "H", "G", "enter", "X", "p", "y", "t", "enter", "g", "escape"):
            await pilot.press(pressed)
        assert TABS[key] in screen(app)[0]
        assert line_with(app, "Nothing waits here")


@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
@pytest.mark.parametrize("key", "234")
@asynchronous
async def test_screens_of_the_modes_match_the_stored_pictures(key: str, size: tuple[int, int]) -> None:
    async with shown(gathering(), size) as (app, pilot):
        await pilot.press(key)
        await pilot.pause()
        check(f"mode-{key}-{size[0]}x{size[1]}", screen(app))
        await pilot.press("t", "asterisk")
        await pilot.pause()
        check(f"mode-{key}-tree-{size[0]}x{size[1]}", screen(app))


@asynchronous
async def test_only_off_cpu_mode_is_available_when_sampling() -> None:
    source = SampledSource()
    source.refuses = OfftopError("Mode wakeup needs BPF")
    async with shown(source) as (app, pilot):
        before = listed(app)
        await pilot.press("2")
        await until(lambda: "needs BPF" in alert(app))
        assert (app.view.mode, listed(app)) == (OFFCPU, before)
