"""Actions of the keys that move in time: pause, step, jump to a time, return to live.

While measuring, the past comes from the history, as far back as that goes. A recording is read again from its file,
starting at the wanted time.
"""

from collections.abc import Callable

from textual.app import App

from offtop.errors import OfftopError
from offtop.feed.source import Source
from offtop.model.viewmodel import view as views
from offtop.model.viewmodel.picture import Picture
from offtop.model.viewmodel.view import View
from offtop.model.windows.history import History, HistoryTick
from offtop.units import NS_PER_S, parse_moment, span


class RewindActions(App[int]):
    """Actions of the keys that move in time, for the app to inherit."""

    view: View
    picture: Picture | None
    _history: History
    _source: Source
    _wanted_ns: int | None = None
    """Target of a seek in a recording (CLOCK_REALTIME), until its tick arrives; otherwise None."""

    def set_view(self, view: View) -> None:
        raise NotImplementedError

    def show_alert(self, text: str) -> None:
        raise NotImplementedError

    def ask(
        self,
        question: str,
        answered: Callable[[str], str | None],
        now: str = "",
        typed: Callable[[str], None] | None = None,
    ) -> None:
        raise NotImplementedError

    def action_pause(self) -> None:
        picture = self.picture
        if self.view.paused_at_ns is not None:
            newest = self._history.newest
            if self._source.recorded and picture and newest and picture.newest.at_ns < newest.at_ns:
                try:
                    self._source.go_to(picture.newest.taken_ns)  # so that playing continues from here
                except OfftopError as refused:
                    self.show_alert(str(refused))
                    return
            self._wanted_ns = None
            self.set_view(views.live(self.view))
        elif picture is not None:
            self.set_view(views.paused_at(self.view, picture.newest.at_ns))

    def action_live(self) -> None:
        recorded = self._source.recorded
        if recorded:
            self._go_to(recorded.ended_ns)
        elif self.view.paused_at_ns is not None:
            self.set_view(views.live(self.view))
        else:
            self.show_alert("this is live already")

    def action_step(self, ticks: int) -> None:
        """Pause, and move by `ticks`: forward, or back if negative."""
        if self.picture is None:
            return
        shown = self.picture.newest
        tick = self._history.tick(shown.number + ticks)
        if tick is not None:
            self._hold(tick)
        elif ticks < 0:
            self._go_to(shown.taken_ns - 1)
        else:
            self._go_to(shown.taken_ns + 1, after=True)

    def action_skip(self, seconds: int) -> None:
        if self.picture is not None:
            self._go_to(self.picture.newest.taken_ns + seconds * NS_PER_S)

    def action_go_to(self) -> None:
        self.ask("go to a time (02:10:55), or back or forward (-5m, +30s): ", self._answered)

    def _answered(self, text: str) -> str | None:
        newest, picture = self._history.newest, self.picture
        if not text.strip() or newest is None or picture is None:
            return None
        last_ns = self._source.recorded.ended_ns if self._source.recorded else newest.taken_ns
        try:
            self._go_to(parse_moment(text, picture.newest.taken_ns, last_ns))
        except ValueError:
            return f"{text!r} is not a time: try 02:10:55, 2026-11-21T02:10, -5m or +30s"
        return None

    def _go_to(self, taken_ns: int, after: bool = False) -> None:
        """Pause at the tick of `taken_ns` (CLOCK_REALTIME), or at the nearest one.

        With `after`, pause at the first tick after it.
        """
        oldest, newest, recorded = self._history.oldest, self._history.newest, self._source.recorded
        if oldest is None or newest is None:
            return
        kept = oldest.taken_ns <= taken_ns <= newest.taken_ns
        if recorded and not kept and recorded.began_ns < taken_ns <= recorded.ended_ns:
            try:
                self._wanted_ns = self._source.go_to(taken_ns, after)
                if not self._finish_seek():
                    self.show_alert("reading the recording at that time")
                elif taken_ns < oldest.taken_ns:
                    self.show_alert("the recording begins here")
            except OfftopError as refused:
                self.show_alert(str(refused))
        elif recorded and taken_ns > recorded.ended_ns > newest.taken_ns:
            self._go_to(recorded.ended_ns)
        elif recorded and taken_ns <= recorded.began_ns < oldest.taken_ns - oldest.span_ns:
            self._go_to(recorded.began_ns + 1)
        else:
            self._hold(self._history.taken_by(taken_ns) or oldest)
            if taken_ns < oldest.taken_ns - oldest.span_ns:
                what = "the recording begins here" if recorded else "the history begins here"
                self.show_alert(f"{what}: {span(round(self._history.reach_ns, -9))}")
            elif taken_ns > newest.taken_ns:
                self.show_alert(
                    "this is the end of the recording" if recorded else "this is the newest tick; 0 returns to live"
                )

    def _hold(self, tick: HistoryTick) -> None:
        self.set_view(views.paused_at(self.view, tick.at_ns))

    def _finish_seek(self) -> bool:
        """Pause at the target of a seek if its tick has arrived.

        Returns False while that tick is missing, otherwise True, also if there is no seek.
        """
        newest = self._history.newest
        if self._wanted_ns is None:
            return True
        if newest is None or newest.taken_ns < self._wanted_ns or self._wanted_ns < self._history.oldest_ns:
            return False
        wanted_ns, self._wanted_ns = self._wanted_ns, None
        self.show_alert("")
        self._hold(self._history.taken_by(wanted_ns) or newest)
        return True
