"""Runs the real app without a terminal on a scripted source until it has read everything that is scripted."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

import textual.app
import textual.pilot
from textual._context import visible_screen_stack
from textual.app import App
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.pilot import Pilot
from textual.strip import Strip

from offtop import paths
from offtop.feed.outlier_actions import Alarm, OutlierActions
from offtop.model.classify.categories import parse
from offtop.model.viewmodel.view import CATEGORIES as CATEGORY_PANE
from offtop.model.viewmodel.view import View
from offtop.person import person
from offtop.ui.app import OfftopApp
from tests.ui.scripted import ScriptedSource

CATEGORIES = parse(paths.categories().read_text(encoding="utf-8"))
QUICK_NS = 1_000_000
_LAYOUT_SECONDS = 0.1
"""The same timer also handles a new size, without a sign of it that could be waited for."""


async def until_idle(*_: float) -> None:
    """Return when only a timer, a file or another thread can make the event loop go on."""
    ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
    await asyncio.sleep(0)
    while ready:
        await asyncio.sleep(0)


def _parsed_once(parse: Callable[..., list[RuleSet]]) -> Callable[..., list[RuleSet]]:
    """Return Textual's CSS parser with a cache for all apps of this process."""
    parsed: dict[object, list[RuleSet]] = {}

    @wraps(parse)
    def rules(sheet: Stylesheet, *args: Any, **options: Any) -> list[RuleSet]:
        key = (args, *options.items(), *sheet._variables.items())  # pyright: ignore[reportPrivateUsage]
        if key not in parsed:
            parsed[key] = parse(sheet, *args, **options)
        return parsed[key]

    return rules


# Textual's own function sleeps until the process has used no CPU for 20 ms, twice for each key.
textual.app.wait_for_idle = until_idle  # pyright: ignore[reportPrivateImportUsage]
textual.pilot.wait_for_idle = until_idle  # pyright: ignore[reportPrivateImportUsage]
# Parsing is half of the CPU time of starting an app.
Stylesheet._parse_rules = _parsed_once(Stylesheet._parse_rules)  # pyright: ignore[reportPrivateUsage]


class SettledPilot(Pilot[Any]):
    """Presses keys and waits until the screen shows what they did."""

    async def press(self, *keys: str) -> None:
        await super().press(*keys)
        await self.pause()

    async def resize_terminal(self, width: int, height: int) -> None:
        await super().resize_terminal(width, height)
        await self.pause(_LAYOUT_SECONDS)

    async def pause(self, delay: float | None = None) -> None:
        await super().pause(delay)
        await super().pause()  # the first one may have moved widgets, which draw now
        await until_idle()
        # Textual lays out a changed screen when a timer of 60 updates a second says so, not at once.
        await until(lambda: not self.app.screen._layout_required)  # pyright: ignore[reportPrivateUsage]
        await until_idle()


@asynccontextmanager
async def running(app: App[Any], size: tuple[int, int] = (80, 24)) -> AsyncGenerator[SettledPilot]:
    """Run an app without a terminal."""
    async with app.run_test(size=size):
        pilot = SettledPilot(app)
        await pilot.pause()
        yield pilot


def catching(*triggers: str, freeze: bool = False) -> OutlierActions:
    """Return the outlier settings of a screen with these triggers."""
    return OutlierActions(triggers, CATEGORIES, 1_000_000, "test", Alarm("", person()), freeze)


@asynccontextmanager
async def shown(
    source: ScriptedSource,
    size: tuple[int, int] = (80, 24),
    view: View | None = None,
    ticks: int | None = None,
    **options: Any,
) -> AsyncGenerator[tuple[OfftopApp, SettledPilot]]:
    app = OfftopApp(source, view or View(delay_ns=QUICK_NS), CATEGORIES, **options)
    async with running(app, size) as pilot:
        try:
            wanted = source.ticks if ticks is None else ticks
            await until(lambda: (app.picture.common.newest.number if app.picture else 0) == wanted)
            # A drawing may show a tick before its message arrives, by which its outliers are announced.
            await until(lambda: app._seen >= wanted)  # pyright: ignore[reportPrivateUsage]
            await pilot.pause()
            yield app, pilot
        finally:
            source.close()


async def until(holds: Callable[[], bool], seconds: float = 20) -> None:
    for _ in range(round(seconds / 0.01)):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"not true after {seconds} s")


async def go_on(app: OfftopApp, pilot: SettledPilot, source: ScriptedSource, to: int) -> None:
    """Let the source continue up to tick number `to`, and wait until the screen shows what it may."""
    source.go_on(to)
    await until(lambda: app._seen >= to)  # pyright: ignore[reportPrivateUsage]
    await pilot.pause()


def screen(app: OfftopApp) -> list[str]:
    """Return the visible lines without trailing blanks."""
    return [strip.text.rstrip() for strip in _strips(app)]


def top(app: OfftopApp, panel: str) -> int:
    """Return the number of the first line of a panel: `head`, `alert`, or a pane of model.viewmodel.view."""
    return app.layout.panels[panel].y


def pane(app: OfftopApp, panel: str) -> list[str]:
    """Return the lines of a panel without trailing blanks, its title first if it has one."""
    rect = app.layout.panels[panel]
    strips = _strips(app)[rect.y : rect.y + rect.height]
    return [strip.crop(rect.x, rect.x + rect.width).text.rstrip() for strip in strips]


def column_titles(app: OfftopApp, panel: str) -> str:
    """Return the line with the titles of the columns; only the categories have no other line above it."""
    return pane(app, panel)[panel != CATEGORY_PANE]


def rows_of(app: OfftopApp, panel: str) -> list[str]:
    """Return the lines below the titles of the columns that are not blank."""
    return [line for line in pane(app, panel)[1 + (panel != CATEGORY_PANE) :] if line]


def waiting_line(app: OfftopApp) -> str:
    """Return the head's line with the waiting threads."""
    return pane(app, "head")[1]


def calls_line(app: OfftopApp) -> str:
    """Return the head's line about the function of --within."""
    assert app.layout.calls
    return pane(app, "head")[2]


def cost_line(app: OfftopApp) -> str:
    """Return the head's line about what is lost, left out or sampled."""
    layout = app.layout
    assert layout.cost
    return pane(app, "head")[2 + layout.calls]


def timeline_row(app: OfftopApp) -> int:
    """Return the number of the timeline's line."""
    layout = app.layout
    assert layout.timeline
    return 2 + layout.calls + layout.cost


def timeline(app: OfftopApp) -> str:
    return screen(app)[timeline_row(app)]


def crumb_line(app: OfftopApp) -> str:
    """Return the head's line with the selection, the filters and the sort column."""
    assert app.layout.crumb
    return pane(app, "head")[-1]


def coloured(app: OfftopApp) -> list[str]:
    """Return the visible lines with the style before each part."""
    return ["".join(f"{{{segment.style}}}{segment.text}" for segment in strip.simplify()) for strip in _strips(app)]


def _strips(app: OfftopApp) -> list[Strip]:
    below = app._background_screens  # pyright: ignore[reportPrivateUsage, reportUnknownVariableType, reportUnknownMemberType]
    visible_screen_stack.set(below)  # pyright: ignore[reportUnknownArgumentType]
    return app.screen._compositor.render_strips()  # pyright: ignore[reportPrivateUsage]


def asynchronous(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test that is a coroutine."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run
