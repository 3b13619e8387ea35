"""The key bar at the bottom."""

from collections.abc import Iterator, Mapping

from offtop.model.viewmodel.common import Common
from offtop.model.viewmodel.view import LIST, SITE
from offtop.ui.kit.keys import KEYS, shown
from offtop.ui.kit.layout import Layout
from offtop.ui.kit.lines import Line


def key_bar(common: Common, layout: Layout, chosen: Mapping[str, str]) -> Line:
    """Return the keys that do something here. `chosen` maps ids of KEYS to other keys."""
    useless = {
        "drill": common.view.focus == SITE,
        "wakeup": common.sampling is not None,
        "account": LIST not in layout.panels or not common.view.lists_sleepers or layout.calls,
    }
    bars = {
        row.id: f"{shown(chosen[row.id].split(',')[0])} {row.bar.partition(' ')[2]}" if row.id in chosen else row.bar
        for row in KEYS
        if row.bar and not useless.get(row.id)
    }

    def fitting() -> Iterator[str]:
        room = layout.width
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
