"""Filters: which waits are measured or counted, by a filter, a user, thread states, and a least length."""

from collections.abc import Callable
from dataclasses import replace

from offtop.errors import OfftopError
from offtop.feed.source import Source
from offtop.model.aggregate.filter_syntax import FilterError, parse, quoted
from offtop.model.classify.categories import Categories
from offtop.model.values.state import MASKS, WORDS
from offtop.model.viewmodel import view_changes
from offtop.model.viewmodel.view import View
from offtop.person import NO_USER, is_user
from offtop.printable import printable
from offtop.ui.actions.display import Display
from offtop.ui.panes.chooser import Choice, Chooser
from offtop.units import parse_duration, span

_NS_PER_MS = 1_000_000
"""The screen shows the minimum in ms, so a bare number at its prompt is in ms. `--min` takes us, as bcc's tools do."""


def set_measured_view(display: Display, source: Source, view: View) -> None:
    """Switch to `view` if the source accepts its filters; otherwise say why not."""
    try:
        if view.measured_filters != display.view.measured_filters:
            source.set_filters(view.measured_filters)
    except OfftopError as refused:
        display.show_alert(str(refused))
        return
    display.set_view(view)


class Filters:
    def __init__(
        self, display: Display, source: Source, categories: Categories, warn_of_triggers: Callable[[int], None]
    ) -> None:
        """`warn_of_triggers` is called with a new minimum, in ns."""
        self._display, self._source, self._categories = display, source, categories
        self._warn_of_triggers = warn_of_triggers

    def ask_for_filter(self) -> None:
        self._display.ask(
            "filter (as comm=mysql* max>10ms cat!=poll): ", self.filter_by, self._display.view.filter.text
        )

    def filter_by(self, text: str, found: str = "") -> str | None:
        try:
            chosen = parse(text.strip(), self._categories.groups, self._categories.ids)
        except FilterError as wrong:
            return str(wrong)
        self._display.set_view(view_changes.filtered(self._display.view, chosen, found))
        return None

    def ask_for_user(self) -> None:
        self._display.ask(
            "only this user's processes (name or id; empty: all): ", self._set_user, self._display.view.user
        )

    def _set_user(self, text: str) -> str | None:
        """Filter by user.

        Recordings and other machines may have users that do not exist on this one, so any name is accepted there.
        """
        user = text.strip()
        try:
            parse(f"user={quoted(user)}")
        except FilterError as wrong:
            return str(wrong)
        if user and not self._source.is_elsewhere and not is_user(user):
            return f"'{printable(user)}' is not {NO_USER}"
        self._display.set_view(view_changes.of_user(self._display.view, user))
        return None

    def choose_states(self) -> None:
        def choices() -> list[Choice]:
            mask = self._display.view.filters.states
            return [Choice(one, f"{one}  {WORDS[one]}", bool(mask & bit)) for one, bit in MASKS.items()]

        self._display.open_overlay(
            Chooser(
                "only waits in these thread states (none chosen: all)",
                choices,
                self._switch_state,
                self._display.glyphs,
            )
        )

    def _switch_state(self, letter: str) -> None:
        filters = self._display.view.filters
        set_measured_view(
            self._display,
            self._source,
            replace(self._display.view, filters=replace(filters, states=filters.states ^ MASKS[letter])),
        )

    def ask_for_minimum(self) -> None:
        now = span(self._display.view.filters.min_ns)
        self._display.ask(f"shortest wait that gets a stack (now {now}; a bare number is ms): ", self._set_minimum)

    def _set_minimum(self, text: str) -> str | None:
        if not text.strip():
            return None
        try:
            min_ns = parse_duration(text.strip(), _NS_PER_MS)
        except ValueError:
            return f"{text!r} is not a length of time: try 200us, 1ms or 0; a bare number is milliseconds"
        set_measured_view(self._display, self._source, view_changes.with_minimum(self._display.view, min_ns))
        self._warn_of_triggers(min_ns)
        return None
