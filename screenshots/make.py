"""Draw the screenshots in this directory with the real app and the demo. Each run writes the same bytes.

`.venv/bin/python screenshots/make.py [DIR]`
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from offtop import paths
from offtop.model.classify import causes, suspect_weights
from offtop.model.classify.categories import parse
from offtop.model.classify.causes import Fixed
from offtop.model.viewmodel.view import View
from offtop.recording.replay import RecordedSource
from offtop.ui.app import OfftopApp
from offtop.units import NS_PER_S

LARGE, SMALL = (160, 50), (80, 24)
_CULPRIT_S = 6
"""Second of the demo at which all sessions wait for rows that an idle one holds."""
_PILE_UP_S = 58
"""Second of the demo at which a disk stalls, and sessions queue up behind one that waits for fsync."""
_GIL_S = 22
"""Second of the demo at which the threads of a report contend for Python's GIL."""
_PATIENCE_S = 60.0


class Shot(NamedTuple):
    name: str
    size: tuple[int, int] = LARGE
    keys: tuple[str, ...] = ()
    second: int = _PILE_UP_S
    theme: str = "dark"
    normal: int = 0
    """Second to mark as the baseline before going to `second`; 0: none."""


SHOTS = (
    *(
        Shot(f"first-{theme}", theme=theme, second=_CULPRIT_S)
        for theme in ("dark", "light", "contrast", "colourblind", "ansi", "mono")
    ),
    Shot("small", SMALL, second=_CULPRIT_S),
    Shot("suspects", keys=("6",), second=_CULPRIT_S),
    Shot("tree", keys=("down", "enter", "enter", "t", "*", "x")),
    Shot("site", keys=("down", "down", "enter", "enter", "enter", "end", "enter")),
    Shot("icicle", keys=("g",), second=_GIL_S),
    Shot("heat-map", keys=("down", "l")),
    Shot("threads", keys=("H", "down", "enter"), second=_GIL_S),
    Shot("stuck", keys=("5",)),
    Shot("off-wake", keys=("down", "3", "t", "*"), second=_GIL_S),
    Shot("account", keys=("H", "A", "tab"), second=_GIL_S),
    Shot("changed", keys=("D", "H", "greater_than_sign"), normal=20),
    Shot("files", keys=("7",)),
    Shot("disks", keys=("8",)),
    Shot("filter", keys=("backslash", *"cat=fsync max>1s", "enter")),
    Shot("columns", keys=("f",)),
    Shot("help", keys=("question_mark",)),
)


async def take(shot: Shot) -> str:
    """Return a screenshot as SVG."""
    source = RecordedSource(paths.demo(), speed=1.0)
    rules = parse(paths.categories().read_text(encoding="utf-8"))
    recorded = source.recorded
    assert recorded is not None
    at_ns = source.go_to(recorded.began_ns + (shot.normal or shot.second) * NS_PER_S)
    source.hold(True)
    named = causes.parse(paths.rules().read_text(encoding="utf-8"), "rules.toml", "", rules.ids)
    weights = suspect_weights.parse(paths.suspects().read_text(encoding="utf-8"))
    app = OfftopApp(source, View(), rules, theme_name=shot.theme, rules=Fixed(named), weights=weights)
    async with app.run_test(size=shot.size) as pilot:
        try:
            await _until(lambda: (app.picture.common.newest.taken_ns if app.picture else 0) >= at_ns)
            await pilot.press("space")
            if shot.normal:
                await pilot.press("B")
                await _until(lambda: app.view.baseline is not None)
                await pilot.press("b", *f"+{shot.second - shot.normal}s", "enter")
                later_ns = at_ns + (shot.second - shot.normal) * NS_PER_S
                await _until(lambda: (app.picture.common.newest.taken_ns if app.picture else 0) > later_ns - NS_PER_S)
            # Which nodes the tree opened depends on the ticks drawn so far. Moving the selection resets it.
            for key in ("down", "up", *shot.keys):
                await pilot.press(key)
            await pilot.pause()
            await pilot.pause()
            return app.export_screenshot(title="offtop")
        finally:
            source.close()


async def _until(holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + _PATIENCE_S
    while not holds():
        assert time.monotonic() < end_s
        await asyncio.sleep(0.01)


def make(directory: Path) -> None:
    os.environ["TZ"] = "UTC"
    time.tzset()
    for shot in SHOTS:
        (directory / f"{shot.name}.svg").write_text(asyncio.run(take(shot)), encoding="utf-8")


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
