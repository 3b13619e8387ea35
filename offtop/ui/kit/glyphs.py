"""Graphic characters in two sets: ASCII for every terminal, and Unicode for UTF-8."""

from typing import NamedTuple

from offtop.model.viewmodel.series import Series


class Glyphs(NamedTuple):
    spark: str
    """Eight levels, lowest first; the lowest also stands for zero."""
    rule: str
    ellipsis: str
    is_ascii: bool
    bar: str
    """Cells filled from left to right in equal steps; the last is full."""
    opened: str
    closed: str
    fold: str
    """Separator between functions on one line."""
    edge: str
    """Left edge of a box, and border between panes."""
    shades: str
    """Three fills, lightest first."""
    mark: str
    """Marks an outlier."""


UNICODE = Glyphs("▁▂▃▄▅▆▇█", "─", "…", False, "▏▎▍▌▋▊▉█", "▼", "▶", "›", "│", "░▒▓", "▲")
ASCII = Glyphs("_.:-=+*#", "-", "~", True, "#", "-", "+", ">", "|", ".-=", "!")

LEAST_SCALE = 0.1
"""Least full scale of a sparkline in average threads, so that a nearly idle row does not look busy."""


def sparkline(values: Series, glyphs: Glyphs) -> str:
    """Return one character per value, scaled to the largest; blank for missing values."""
    scale = max((value for value in values if value is not None), default=0.0)
    levels = glyphs.spark
    full = max(scale, LEAST_SCALE)
    return "".join(
        " " if value is None else levels[min(len(levels) - 1, max(0, round(value / full * (len(levels) - 1))))]
        for value in values
    )
