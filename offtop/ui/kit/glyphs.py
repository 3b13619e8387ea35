"""The few characters that are no letters, in two sets: one for every terminal, one for UTF-8."""

from typing import NamedTuple

from offtop.model.viewmodel.picture import Series


class Glyphs(NamedTuple):
    spark: str
    """Eight levels, lowest first; the lowest stands for nothing too."""
    rule: str
    ellipsis: str
    is_ascii: bool
    bar: str
    """A cell filled by an eighth and so on; the last is full."""
    opened: str
    closed: str
    fold: str
    """Between functions on one line."""
    edge: str
    """The left edge of a box, and the border between panes."""
    shades: str
    """Three fills, lightest first."""
    mark: str
    """Where something was caught."""


UNICODE = Glyphs("▁▂▃▄▅▆▇█", "─", "…", False, "▏▎▍▌▋▊▉█", "▼", "▶", "›", "│", "░▒▓", "▲")
ASCII = Glyphs("_.:-=+*#", "-", "~", True, "#", "-", "+", ">", "|", ".-=", "!")

LEAST_SCALE = 0.1
"""Average threads at which a line is full: below it, a busy look would make much of nothing."""


def sparkline(values: Series, glyphs: Glyphs) -> str:
    """One character a value, scaled to the largest; blank where nothing was measured."""
    scale = max((value for value in values if value is not None), default=0.0)
    levels = glyphs.spark
    full = max(scale, LEAST_SCALE)
    return "".join(
        " " if value is None else levels[min(len(levels) - 1, max(0, round(value / full * (len(levels) - 1))))]
        for value in values
    )
