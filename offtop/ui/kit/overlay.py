"""Overlays: a panel in the middle of the screen, with lines that can be scrolled."""

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from offtop.ui.kit.glyphs import Glyphs
from offtop.ui.kit.lines import Clicked, Line, Panel, fit, plain

_WIDEST = 100


class Overlay(ModalScreen[None]):
    """An overlay that draws itself when it opens and when its size changes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "move(1)", show=False),
        Binding("up,k", "move(-1)", show=False),
        Binding("home,pageup", "move(-999)", show=False),
        Binding("end,pagedown", "move(999)", show=False),
        Binding("question_mark,f1", "app.perform('help')", show=False),
    ]

    def compose(self) -> ComposeResult:
        yield Panel("over")

    def on_mount(self) -> None:
        self.draw()

    def on_resize(self) -> None:
        self.draw()

    @property
    def panel(self) -> Panel:
        return self.query_one(Panel)

    def draw(self) -> None:
        raise NotImplementedError


class TextOverlay(Overlay):
    """An overlay with lines to read, which scroll if they do not fit."""

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__()
        self._glyphs = glyphs
        self._top = 0

    def page(self, width: int) -> tuple[str, Sequence[Line]]:
        """Return the title and the lines."""
        raise NotImplementedError

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
        heading, lines = self.page(width)
        height = max(3, min(self.size.height, len(lines) + 2))
        self._top = max(0, min(self._top, len(lines) - (height - 2)))
        panel.styles.width, panel.styles.height = width, height
        title = Line(((fit(f" {heading}", width, self._glyphs), "title"),), "menu")
        hint = " ESC close" if len(lines) <= height - 2 else " ESC close, arrows scroll"
        panel.show([title, *lines[self._top : self._top + height - 2], plain(fit(hint, width, self._glyphs), "dim")])
