"""The mouse: a click selects, a click on the selection drills down as ENTER does, and the wheel moves the cursor.

So a double click drills down. On the selection, its first click does that already; the second one would hit what has
come into that place, so it is ignored.
"""

from offtop.model.viewmodel import view_changes
from offtop.ui.actions.display import Display
from offtop.ui.actions.pane import Panes
from offtop.ui.actions.rewind import Rewind
from offtop.ui.kit.lines import Clicked
from offtop.ui.panes.head import moment_at

_WHEEL = 3
"""Lines per turn."""


class Mouse:
    def __init__(self, display: Display, panes: Panes, rewind: Rewind) -> None:
        self._display, self._panes, self._rewind = display, panes, rewind
        self._has_drilled = False
        """Whether the last click has drilled down."""

    def click(self, event: Clicked) -> None:
        """Handle a click, or a turn of the wheel, on a panel."""
        display, picture = self._display, self._display.picture
        if picture is None or (event.follows_at_once and self._has_drilled):
            return
        self._has_drilled = False
        if event.panel == "head" and not event.turns:
            at_ns = moment_at(picture.head.timeline, picture.common.newest, display.layout, event.x, event.y)
            if at_ns is not None:
                self._rewind.go_to(at_ns)
        elif event.panel in display.layout.panes and not event.turns:
            self._has_drilled = self._panes.by_name[event.panel].click(picture, event.x, event.y)
        elif event.panel in display.layout.panes:
            if display.view.focus != event.panel:
                display.set_view(view_changes.in_pane(display.view, event.panel))
            if display.view.focus == event.panel and display.picture:
                self._panes.focused.move(display.picture, _WHEEL * event.turns)
