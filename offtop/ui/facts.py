"""What is known of one process, over the screen."""

from collections.abc import Sequence
from textwrap import wrap
from typing import ClassVar

from textual.binding import Binding, BindingType

from offtop.model.printable import printable
from offtop.ui.glyphs import Glyphs
from offtop.ui.lines import Clicked, Line, fit, plain
from offtop.ui.over import Over

_WIDEST = 100
_INDENT = 2


class Facts(Over):
    """`told`: what, and its value, raw."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q,Y,f10,ctrl+c,ctrl+q", "dismiss", show=False, priority=True),
    ]
    CSS = "Facts { align: center middle; background: $background 0%; }"

    def __init__(self, title: str, told: Sequence[tuple[str, str]], glyphs: Glyphs) -> None:
        super().__init__()
        self._title, self._told, self._glyphs = title, told, glyphs
        self._top = 0

    def action_move(self, step: int) -> None:
        self._top += step
        self.draw()

    def on_clicked(self, event: Clicked) -> None:
        if event.turns:
            self.action_move(event.turns)
        else:
            self.dismiss()

    def draw(self) -> None:
        panel, width = self.panel, min(self.size.width, _WIDEST)
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
        height = max(3, min(self.size.height, len(lines) + 2))
        self._top = max(0, min(self._top, len(lines) - (height - 2)))
        panel.styles.width, panel.styles.height = width, height
        title = Line(((fit(f" {self._title}", width, self._glyphs), "title"),), "menu")
        hint = " ESC close" if len(lines) <= height - 2 else " ESC close, arrows scroll"
        panel.show([title, *lines[self._top : self._top + height - 2], plain(fit(hint, width, self._glyphs), "dim")])
