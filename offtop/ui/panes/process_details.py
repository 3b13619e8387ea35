"""What is known of one process, over the screen."""

from collections.abc import Sequence
from textwrap import wrap
from typing import ClassVar

from textual.binding import Binding, BindingType

from offtop.printable import printable
from offtop.ui.kit.glyphs import Glyphs
from offtop.ui.kit.lines import Line, fit
from offtop.ui.kit.overlay import Read

_INDENT = 2


class Facts(Read):
    """`told`: what, and its value, raw."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q,Y,f10,ctrl+c,ctrl+q", "dismiss", show=False, priority=True),
    ]
    CSS = "Facts { align: center middle; background: $background 0%; }"

    def __init__(self, heading: str, told: Sequence[tuple[str, str]], glyphs: Glyphs) -> None:
        super().__init__(glyphs)
        self._heading, self._told = heading, told

    def page(self, width: int) -> tuple[str, Sequence[Line]]:
        labels = max((len(label) for label, _ in self._told), default=0)
        lines: list[Line] = []
        for label, value in self._told:
            shown = printable(value, self._glyphs.is_ascii)
            parts = wrap(shown, max(10, width - labels - 2 * _INDENT)) or [""]
            for number, part in enumerate(parts):
                head = f" {'' if number else label:<{labels}}  "
                lines.append(
                    Line(((head, "dim"), (fit(part, max(0, width - len(head)), self._glyphs), "text")), "menu")
                )
        return self._heading, lines
