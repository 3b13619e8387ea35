"""The key bar at the bottom."""

from collections.abc import Iterator, Mapping

from offtop.model.viewmodel.common import Common
from offtop.ui.kit.keys import KEYS, shown
from offtop.ui.kit.lines import Line

_WAKEUP_KEY = "wakeup"
"""Id of the key for wakers, which does nothing when /proc is sampled."""


def key_bar(common: Common, width: int, chosen: Mapping[str, str]) -> Line:
    """Return the key bar. `chosen` maps ids of KEYS to other keys."""
    bars = {
        row.id: f"{shown(chosen[row.id].split(',')[0])} {row.bar.partition(' ')[2]}" if row.id in chosen else row.bar
        for row in KEYS
        if row.bar and not (row.id == _WAKEUP_KEY and common.sampling)
    }

    def fitting() -> Iterator[str]:
        room = width
        for name in sorted(bars, key=lambda name: name not in ("help", "quit")):
            room -= len(bars[name]) + 1
            if room >= -1:
                yield name

    fits = {*fitting()}
    spans: list[tuple[str, str]] = []
    for name, bar in bars.items():
        if name in fits:
            key, _, word = bar.partition(" ")
            spans += [(key, "key"), (f" {word} ", "dim")]
    return Line(tuple(spans))
