"""Suspects: what others wait for, in short above the panes, and hop by hop in an overlay."""

from collections.abc import Sequence
from dataclasses import replace

from offtop.model.aggregate.suspect_text import gone_texts
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.suspect import NOTHING_FOUND, Found
from offtop.model.values.catalog import ThreadKey
from offtop.model.viewmodel import panes
from offtop.model.windows.breakdown import Scope, Shares
from offtop.ui.actions.display import Display
from offtop.ui.actions.session import Session
from offtop.ui.kit.layout import most_suspect_lines
from offtop.ui.kit.lines import Line
from offtop.ui.panes import suspects


class SuspectReport:
    def __init__(self, display: Display, session: Session) -> None:
        self._display, self._session = display, session
        self._causes = CauseFinder(session.source.names, session.rules)
        self._kept: dict[int, Found] = {}
        """By number of the tick: of the one that is shown, and the one before."""

    def lines(self, width: int, height: int) -> list[Line]:
        """Return the lines for a screen of that size; none if they are not searched for, or if there is no room."""
        if self._session.suspects is None or self._display.picture is None:
            return []
        room = most_suspect_lines(width, height)
        return suspects.lines(self._texts(), width, room, self._display.glyphs, self._without())

    def _without(self) -> str:
        picture, found = self._display.picture, self._found()
        if picture is None:
            return suspects.NOTHING
        if found is None and self._session.history.tick(picture.common.newest.number) is None:
            return suspects.NOT_KEPT
        if found and found.as_usual:
            texts = suspects.SuspectTexts(picture.common.catalog, self._session.source.names, self._causes)
            return suspects.as_in_baseline(found, texts)
        # An outlier is found when it is over, and then nobody waits any more.
        if self._display.view.paused_at_ns is not None and (before := self._described(self._found(1))):
            return f"one tick earlier: {before[0].says}"
        return suspects.without_suspects(picture.causes, picture.common)

    def _texts(self) -> list[suspects.SuspectText]:
        """Return the suspects of the tick that is shown."""
        return self._described(self._found())

    def _described(self, found: Found | None) -> list[suspects.SuspectText]:
        picture, compared = self._display.picture, self._display.view.compared
        if picture is None or found is None:
            return []
        return suspects.described(found, picture.common.catalog, self._session.source.names, self._causes, compared)

    def _found(self, earlier: int = 0) -> Found | None:
        """Return the suspects of the tick that is shown, or of so many ticks earlier; None: not found yet, or not kept.

        Those of a tick that stays on a paused screen are kept here, because the history drops them at some time.
        """
        watch, picture = self._session.suspects, self._display.picture
        if watch is None or picture is None:
            return None
        shown = picture.common.newest.number
        found = {number: watch.at(number) or self._kept.get(number) for number in (shown, shown - 1)}
        self._kept = {number: one for number, one in found.items() if one is not None}
        return found[shown - earlier]

    def show_chains(self) -> None:
        def gone() -> Sequence[str]:
            return gone_texts(self._found() or NOTHING_FOUND, self._display.view.compared)

        glyphs = self._display.glyphs
        self._display.open_overlay(suspects.Suspects(self._texts, self._go_to_hop, glyphs, self._without, gone))

    def _go_to_hop(self, key: ThreadKey) -> None:
        view = panes.around_hop(self._display.view, key)
        picture = self._display.picture
        shares = picture.common.newest.shares if picture and not view.idle_shown else None
        if shares and 2 * _total_ns(shares, view.scope) < _total_ns(shares, view.scope._replace(idle=True)):
            view = replace(view, idle_shown=True)  # otherwise the panes would lack what it does
            self._display.show_alert("this thread waits idle: idle waits are shown (i hides them)")
        self._display.set_view(view)


def _total_ns(shares: Shares, scope: Scope) -> int:
    return int(shares.in_scope(scope).total_ns.sum())
