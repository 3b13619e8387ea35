"""A source that gathers wakers, and what the screen shows of them."""

import re
from collections.abc import Mapping

from offtop.model.values.peers import Peers
from offtop.model.values.wake import CHAIN, Object
from offtop.model.viewmodel.view import LIST
from offtop.ui.app import OfftopApp
from tests.ui.scripted import WAKERS, ScriptedSource, Waits
from tests.ui.shown import crumb_line, rows_of, screen

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
EVIL = "\x1b[31m[b]\u4e2d\u6587\u0301\x07\n"


def gathering(
    mode: str = CHAIN,
    ticks: int = 12,
    table: tuple[Waits, ...] = WAKERS,
    object_peers: Mapping[Object, Peers] | None = None,
) -> ScriptedSource:
    """Return a source that collects this mode from the start."""
    source = ScriptedSource(table, ticks=ticks, object_peers=object_peers)
    source.mode = mode
    return source


def listed(app: OfftopApp) -> list[list[str]]:
    """Return the words of each line of the list, without its title and column headers."""
    return [line.lstrip(">").split() for line in rows_of(app, LIST)]


def line_with(app: OfftopApp, text: str) -> str:
    return next((line for line in screen(app) if text in line), "")


def cursor_line(app: OfftopApp) -> str:
    """Return the cursor line of the list, or of the tree in its place."""
    return next(line for line in reversed(rows_of(app, app.view.focus)) if line.startswith(">"))


def alert(app: OfftopApp) -> str:
    return screen(app)[-2]


def crumb(app: OfftopApp) -> str:
    return crumb_line(app).partition("   ")[0]


def stacks(app: OfftopApp) -> list[str]:
    """Return the STACK column on a screen of 100 columns."""
    lines = screen(app)
    head = next(number for number, line in enumerate(lines) if "STACK" in line)
    at = lines[head].index("STACK") - 2
    found = [line[at:] for line in lines[head + 1 : -2]]
    return found[: found.index("")] if "" in found else found
