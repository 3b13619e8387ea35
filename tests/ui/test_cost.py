"""Only what changed is drawn, so an unchanged screen writes almost nothing to the terminal."""

import re
import time

from offtop.model.viewmodel.view import CATEGORIES
from offtop.ui.kit.layout import arrange
from tests.ui.terminal import Terminal, show, terminal

_TICKS = 60
_DRAWN_AT = re.compile(rb"\x1b\[(\d+);\d+H")
"""A cursor position. After each drawing the cursor goes to the first line, which has the clock."""


def settled(shown: Terminal) -> None:
    """Wait until window and sparklines are full, so that only they and the clock change."""
    assert shown.wait_for(re.compile(r"02:(00:[2-5]\d|01:00)  "), 30)  # queued ticks are drawn once
    shown.forget()


def drawn_lines(shown: Terminal) -> set[int]:
    """Return the numbers of the lines that something was drawn to; the top line is 1."""
    return {*map(int, _DRAWN_AT.findall(shown.seen))}


def test_unchanged_tick_draws_the_clock_and_every_fifth_the_sparklines() -> None:
    width, height = 160, 50
    with terminal(show("--same", str(_TICKS), "--delay", "0.1"), width, height) as shown:
        settled(shown)
        shown.read_until(b"02:01:00  ")
        shown.read_rest()
        quiet, lines = len(shown.seen), drawn_lines(shown)
        shown.forget()
        shown.press(b"\x0c")
        end_s = time.monotonic() + 30
        while drawn_lines(shown) != {*range(1, height + 1)}:
            assert time.monotonic() < end_s, drawn_lines(shown)
            shown.read(0.05)
        shown.read_rest()
        whole = len(shown.seen)
    panels = arrange(width, height, categories=5, cost=False).panels
    timeline, first = panels["head"].height - 1, panels[CATEGORIES].y + 2
    # The clock, the timeline and the five categories with their sum, but no line of the list or the tree.
    assert lines == {1, timeline, *range(first, first + 6)}
    assert quiet / 40 < whole / 5


def test_paused_screen_draws_only_how_far_it_is_behind() -> None:
    with terminal(show("--delay", "0.1")) as shown:
        shown.read_until(b"CATEGORY")
        shown.look_on(1)
        shown.press(b" ")
        shown.read_until(b"PAUSED")
        shown.look_on(0.5)
        shown.forget()
        shown.look_on(1.5)
        shown.read_until(b"PAUSED -")
        assert drawn_lines(shown) == {1}
