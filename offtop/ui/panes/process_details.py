"""Overlay with the details of one process."""

from collections.abc import Sequence
from textwrap import wrap
from typing import ClassVar

from textual.binding import Binding, BindingType

from offtop.printable import printable
from offtop.ui.kit.glyphs import Glyphs
from offtop.ui.kit.lines import Line, fit
from offtop.ui.kit.overlay import TextOverlay

_INDENT = 2


class ProcessDetails(TextOverlay):
    """The overlay. `details` are (label, value); values are escaped here."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q,Y,f10,ctrl+c,ctrl+q", "dismiss", show=False, priority=True),
    ]
    CSS = "ProcessDetails { align: center middle; background: $background 0%; }"

    def __init__(self, heading: str, details: Sequence[tuple[str, str]], glyphs: Glyphs) -> None:
        super().__init__(glyphs)
        self._heading, self._details = heading, details

    def page(self, width: int) -> tuple[str, Sequence[Line]]:
        labels = max((len(label) for label, _ in self._details), default=0)
        lines: list[Line] = []
        for label, value in self._details:
            shown = printable(value, self._glyphs.is_ascii)
            parts = wrap(shown, max(10, width - labels - 2 * _INDENT)) or [""]
            for number, part in enumerate(parts):
                head = f" {'' if number else label:<{labels}}  "
                lines.append(
                    Line(((head, "dim"), (fit(part, max(0, width - len(head)), self._glyphs), "text")), "menu")
                )
        return self._heading, lines
