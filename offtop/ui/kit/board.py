"""The panels of the screen, and where they are."""

from collections.abc import Iterable, Sequence

from offtop.ui.kit.layout import Layout, Rect
from offtop.ui.kit.lines import Line, Panel


class Board:
    def __init__(self, names: Iterable[str]) -> None:
        self.panels = {name: Panel(name, classes="placed") for name in names}
        self._rects: dict[str, Rect | None] = {}

    def place(self, layout: Layout, covered: str) -> None:
        """Move and resize the panels. `covered` is one that the prompt takes the place of; empty if it is closed."""
        for name, panel in self.panels.items():
            rect = layout.panels.get(name) if name != covered else None
            if name in self._rects and self._rects[name] == rect:
                continue
            self._rects[name] = rect
            panel.display = rect is not None
            if rect is not None:
                panel.styles.offset = rect.x, rect.y
                panel.styles.width, panel.styles.height = rect.width, rect.height

    def size(self, name: str) -> tuple[int, int]:
        """Return width and height of a panel; 0 if it is not on the screen."""
        rect = self._rects.get(name)
        return (rect.width, rect.height) if rect else (0, 0)

    def show(self, name: str, lines: Sequence[Line], layout: Layout) -> None:
        """Show as many of `lines` as the panel has room for in `layout`."""
        self.panels[name].show(lines[: layout.panels[name].height])
