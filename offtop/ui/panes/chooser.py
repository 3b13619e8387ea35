"""Overlay with a list to choose from, such as columns to show or the sort order."""

from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

from textual.binding import Binding, BindingType

from offtop.ui.kit.glyphs import Glyphs
from offtop.ui.kit.lines import Clicked, Line, fit, plain
from offtop.ui.kit.overlay import Overlay


class Choice(NamedTuple):
    id: str
    text: str
    """Already escaped."""
    chosen: bool = False


class Chooser(Overlay):
    """A list of choices.

    Each choice is passed to `choose` at once. With `closes`, the first one closes the list.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,f,f2,f6,f10,ctrl+c,ctrl+q", "dismiss", show=False, priority=True),
        Binding("enter,space", "choose", show=False),
    ]
    CSS = "Chooser { align: center middle; background: $background 0%; }"

    def __init__(
        self,
        title: str,
        choices: Callable[[], Sequence[Choice]],
        choose: Callable[[str], None],
        glyphs: Glyphs,
        closes: bool = False,
    ) -> None:
        super().__init__()
        self._title, self._choices, self._choose, self._glyphs, self._closes = title, choices, choose, glyphs, closes
        self._cursor = next((at for at, one in enumerate(choices()) if one.chosen and closes), 0)
        self._top = 0

    def draw(self) -> None:
        choices, panel = self._choices(), self.panel
        hint = "ENTER choose  ESC close" if self._closes else "SPACE on or off  ESC close"
        width = min(self.size.width, max([len(hint), len(self._title), *(len(one.text) + 5 for one in choices)]) + 4)
        height = max(3, min(self.size.height, len(choices) + 2))
        room = height - 2
        self._top = max(0, min(max(self._top, self._cursor - room + 1), self._cursor))
        panel.styles.width, panel.styles.height = width, height
        lines = [Line(((fit(f" {self._title}", width, self._glyphs), "title"),), "menu")]
        for at, one in enumerate(choices[self._top : self._top + room], self._top):
            mark = ("(x)" if one.chosen else "( )") if self._closes else ("[x]" if one.chosen else "[ ]")
            text = fit(f" {'>' if at == self._cursor else ' '}{mark} {one.text}", width, self._glyphs)
            lines.append(plain(text, "menu-chosen" if at == self._cursor else "menu"))
        lines.append(plain(fit(f" {hint}", width, self._glyphs), "dim"))
        panel.show(lines)

    def action_move(self, step: int) -> None:
        self._cursor = max(0, min(len(self._choices()) - 1, self._cursor + step))
        self.draw()

    def action_choose(self) -> None:
        choices = self._choices()
        if not choices:
            return
        self._choose(choices[self._cursor].id)
        if self._closes:
            self.dismiss()
            return
        self._cursor = max(0, min(len(self._choices()) - 1, self._cursor))
        self.draw()

    def on_clicked(self, event: Clicked) -> None:
        if event.turns:
            self.action_move(event.turns)
        elif 1 <= event.y <= min(len(self._choices()), self.panel.size.height - 2):
            self._cursor = min(len(self._choices()) - 1, self._top + event.y - 1)
            self.action_choose()
