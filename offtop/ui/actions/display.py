"""What the actions know of the screen, and may do to it. The app implements it."""

from collections.abc import Callable
from typing import Protocol

from textual.screen import ModalScreen

from offtop.model.viewmodel.picture import Picture
from offtop.model.viewmodel.view import View
from offtop.ui.kit.glyphs import Glyphs
from offtop.ui.kit.layout import Layout
from offtop.ui.kit.lines import Pen

Answer = Callable[[str], str | None]
"""Acts on an answer and returns None, or returns what is wrong with it."""


class Display(Protocol):
    @property
    def view(self) -> View: ...

    @property
    def picture(self) -> Picture | None:
        """The picture on the screen; None before the first tick."""
        ...

    @property
    def layout(self) -> Layout: ...

    @property
    def glyphs(self) -> Glyphs: ...

    @property
    def theme(self) -> str: ...

    @property
    def has_overlay(self) -> bool:
        """Whether an overlay, or the palette, covers the panes."""
        ...

    def layout_of(self, view: View) -> Layout:
        """Return the layout that `view` would have."""
        ...

    def pen(self, panel: str) -> Pen: ...

    def set_view(self, view: View) -> None:
        """Show `view`."""
        ...

    def show_alert(self, text: str) -> None:
        """Show `text` on the alert line until the next key, or for a few seconds."""
        ...

    def ask(self, question: str, answered: Answer, now: str = "", typed: Callable[[str], None] | None = None) -> None:
        """Ask on the alert line, with `now` as the initial answer.

        `typed` is called with the text after each change, and with an empty string if the question is cancelled.
        """
        ...

    def bell(self) -> None: ...

    def copy_to_clipboard(self, text: str) -> None:
        """Put `text` on the clipboard of the terminal."""
        ...

    def export_screenshot(self) -> str:
        """Return the screen as SVG."""
        ...

    def open_overlay(self, overlay: ModalScreen[None]) -> None: ...

    def run_later(self, function: Callable[[], None]) -> None:
        """Call `function` in the thread of the screen, unless the app has ended. Thread-safe."""
        ...


def refuse_without(display: Display, purpose: str, *panes: str) -> bool:
    """Return True, and show what the key is for, if none of `panes` is on the screen."""
    if not display.layout.panels.keys().isdisjoint(panes):
        return False
    display.show_alert(f"this key is for {purpose}")
    return True
