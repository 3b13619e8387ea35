"""The help overlay, with facts about this run of offtop."""

from collections.abc import Mapping

from offtop.model.aggregate import stack_ends
from offtop.ui.actions.display import Display
from offtop.ui.actions.session import Session
from offtop.ui.panes.help import Help
from offtop.units import NS_PER_S, size, span

_STACK_COUNT_NS = 60 * NS_PER_S
"""Help counts complete and incomplete user stacks over this time."""


class HelpPage:
    def __init__(self, display: Display, session: Session, chosen_keys: Mapping[str, str]) -> None:
        """`chosen_keys` maps ids of KEYS to other keys."""
        self._display, self._session, self._chosen_keys = display, session, chosen_keys

    def show(self) -> None:
        display, history = self._display, self._session.history
        end_ns = display.picture.common.newest.at_ns if display.picture else None
        stacks = stack_ends.endings(one.window for one in history.last(_STACK_COUNT_NS, end_ns))
        about = [
            *stack_ends.rows_of(stacks),
            ("theme", display.theme),
            *self._session.source.about(),
            ("history", f"{span(round(history.reach_ns, -9))} back, in {size(history.bytes_held)}"),
        ]
        display.open_overlay(
            Help(display.view.focus, self._session.categories, self._chosen_keys, about, display.glyphs)
        )
