"""Suspects: what others wait for, in short above the panes, and hop by hop in an overlay."""

from collections.abc import Sequence
from dataclasses import replace

from offtop.model.aggregate.suspect_text import gone_texts
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.suspect import NOTHING_FOUND, Found
from offtop.model.values.catalog import Catalog, ThreadKey
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

    def lines(self, width: int, height: int) -> list[Line]:
        """Return the lines for a screen of that size; none if they are not searched for, or if there is no room."""
        if self._session.suspects is None or self._session.history.newest is None:
            return []
        room = most_suspect_lines(width, height)
        return suspects.lines(self._texts(), width, room, self._display.glyphs, self._without())

    def _without(self) -> str:
        picture, (found, catalog) = self._display.picture, self._found()
        if found.as_usual:
            texts = suspects.SuspectTexts(catalog, self._session.source.names, self._causes)
            return suspects.as_in_baseline(found, texts)
        if self._display.view.paused_at_ns is not None and (before := self._texts_before()):
            return f"one tick earlier: {before[0].says}"
        return suspects.without_suspects(picture.causes, picture.common) if picture else suspects.NOTHING

    def _texts(self) -> list[suspects.SuspectText]:
        """Return the suspects of the tick that is shown."""
        return self._described(*self._found())

    def _texts_before(self) -> list[suspects.SuspectText]:
        """Return those of the tick before: an outlier is found when it is over, and then nobody waits any more."""
        return self._described(*self._found(1))

    def _described(self, found: Found, catalog: Catalog) -> list[suspects.SuspectText]:
        compared = self._display.view.compared
        return suspects.described(found, catalog, self._session.source.names, self._causes, compared)

    def _found(self, earlier: int = 0) -> tuple[Found, Catalog]:
        """Return the suspects of the tick that is shown, or of so many ticks earlier, and the catalog then."""
        ticks = self._session.history.last(1, self._display.view.paused_at_ns)
        tick = self._session.history.tick(ticks[-1].number - earlier) if ticks else None
        if self._session.suspects is None or tick is None:
            return NOTHING_FOUND, Catalog()
        return self._session.suspects.at(tick.number), tick.header.catalog

    def show_chains(self) -> None:
        def gone() -> Sequence[str]:
            return gone_texts(self._found()[0], self._display.view.compared)

        glyphs = self._display.glyphs
        self._display.open_overlay(suspects.Suspects(self._texts, self._go_to_hop, glyphs, self._without, gone))

    def _go_to_hop(self, key: ThreadKey) -> None:
        view = panes.around_hop(self._display.view, key)
        ticks = self._session.history.last(1, view.paused_at_ns)
        shares = ticks[-1].shares if ticks and not view.idle_shown else None
        if shares and 2 * _total_ns(shares, view.scope) < _total_ns(shares, view.scope._replace(idle=True)):
            view = replace(view, idle_shown=True)  # otherwise the panes would lack what it does
            self._display.show_alert("this thread waits idle: idle waits are shown (i hides them)")
        self._display.set_view(view)


def _total_ns(shares: Shares, scope: Scope) -> int:
    return int(shares.in_scope(scope).total_ns.sum())
