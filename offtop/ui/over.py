"""A panel over the middle of the screen, with lines that the keys go through."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from offtop.ui.lines import Panel


class Over(ModalScreen[None]):
    """Draws itself when it opens, and whenever it has another size."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "move(1)", show=False),
        Binding("up,k", "move(-1)", show=False),
        Binding("home,pageup", "move(-999)", show=False),
        Binding("end,pagedown", "move(999)", show=False),
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
