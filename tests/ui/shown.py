"""Runs the real app without a terminal on a scripted source until it has read everything that is scripted."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

from textual._context import visible_screen_stack
from textual.pilot import Pilot
from textual.strip import Strip

from offtop import paths
from offtop.feed.outlier_actions import Alarm, OutlierActions
from offtop.model.classify.categories import parse
from offtop.model.viewmodel.view import View
from offtop.person import person
from offtop.ui.app import OfftopApp
from tests.ui.scripted import ScriptedSource

CATEGORIES = parse(paths.categories().read_text(encoding="utf-8"))
QUICK_NS = 1_000_000


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
) -> AsyncGenerator[tuple[OfftopApp, Pilot[int]]]:
    app = OfftopApp(source, view or View(delay_ns=QUICK_NS), CATEGORIES, **options)
    async with app.run_test(size=size) as pilot:
        try:
            wanted = source.ticks if ticks is None else ticks
            await until(lambda: (app.picture.newest.number if app.picture else 0) == wanted)
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


def screen(app: OfftopApp) -> list[str]:
    """Return the visible lines without trailing blanks."""
    return [strip.text.rstrip() for strip in _strips(app)]


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
