"""Moving in time: pause, step, jump to a time, return to live.

While measuring, the past comes from the history, as far back as that goes. A recording is read again from its file,
starting at the wanted time.
"""

from offtop.errors import OfftopError
from offtop.feed.source import Source
from offtop.model.viewmodel import view_changes
from offtop.model.windows.history import History, HistoryTick
from offtop.ui.actions.display import Display
from offtop.units import NS_PER_S, parse_moment, span


class Rewind:
    def __init__(self, display: Display, source: Source, history: History, seek_target_ns: int | None) -> None:
        """`seek_target_ns` is the time in a recording to pause at first (CLOCK_REALTIME), or None."""
        self._display, self._source, self._history = display, source, history
        self._seek_target_ns = seek_target_ns
        """Target of a seek in a recording, until its tick arrives; otherwise None."""

    @property
    def is_seeking(self) -> bool:
        """Whether the newest tick only leads up to the target of a seek. Thread-safe."""
        latest = self._history.latest
        return latest is not None and latest.leads

    def pause_or_resume(self) -> None:
        view, picture = self._display.view, self._display.picture
        if view.paused_at_ns is not None:
            newest = self._history.newest
            if self._source.recorded and picture and newest and picture.common.newest.at_ns < newest.at_ns:
                try:
                    self._source.go_to(picture.common.newest.taken_ns)  # so that playing continues from here
                except OfftopError as refused:
                    self._display.show_alert(str(refused))
                    return
            self._seek_target_ns = None
            self._display.set_view(view_changes.live(view))
        elif picture is not None:
            self._display.set_view(view_changes.paused_at(view, picture.common.newest.at_ns))

    def return_to_live(self) -> None:
        recorded = self._source.recorded
        if recorded:
            self.go_to(recorded.ended_ns)
        elif self._display.view.paused_at_ns is not None:
            self._display.set_view(view_changes.live(self._display.view))
        else:
            self._display.show_alert("this is live already")

    def step(self, ticks: int) -> None:
        """Pause, and move by `ticks`: forward, or back if negative."""
        if self._display.picture is None:
            return
        shown = self._display.picture.common.newest
        tick = self._history.tick(shown.number + ticks)
        if tick is not None:
            self._pause_at(tick)
        elif ticks < 0:
            self.go_to(shown.taken_ns - 1)
        else:
            self.go_to(shown.taken_ns + 1, after=True)

    def skip(self, seconds: int) -> None:
        if self._display.picture is not None:
            self.go_to(self._display.picture.common.newest.taken_ns + seconds * NS_PER_S)

    def ask_for_time(self) -> None:
        self._display.ask("go to a time (02:10:55), or back or forward (-5m, +30s): ", self._go_to_answer)

    def _go_to_answer(self, text: str) -> str | None:
        newest, picture = self._history.newest, self._display.picture
        if not text.strip() or newest is None or picture is None:
            return None
        last_ns = self._source.recorded.ended_ns if self._source.recorded else newest.taken_ns
        try:
            self.go_to(parse_moment(text, picture.common.newest.taken_ns, last_ns))
        except ValueError:
            return f"{text!r} is not a time: try 02:10:55, 2026-11-21T02:10, -5m or +30s"
        return None

    def go_to(self, taken_ns: int, after: bool = False) -> None:
        """Pause at the tick of `taken_ns` (CLOCK_REALTIME), or at the nearest one.

        With `after`, pause at the first tick after it.
        """
        oldest, newest, recorded = self._history.oldest, self._history.newest, self._source.recorded
        show_alert = self._display.show_alert
        if oldest is None or newest is None:
            return
        in_history = oldest.taken_ns <= taken_ns <= newest.taken_ns
        if recorded and not in_history and recorded.began_ns < taken_ns <= recorded.ended_ns:
            try:
                self._seek_target_ns = self._source.go_to(taken_ns, after)
                if not self.finish_seek():
                    show_alert("reading the recording at that time")
                elif taken_ns < oldest.taken_ns:
                    show_alert("the recording begins here")
            except OfftopError as refused:
                show_alert(str(refused))
        elif recorded and taken_ns > recorded.ended_ns > newest.taken_ns:
            self.go_to(recorded.ended_ns)
        elif recorded and taken_ns <= recorded.began_ns < oldest.taken_ns - oldest.span_ns:
            self.go_to(recorded.began_ns + 1)
        else:
            self._pause_at(self._history.taken_by(taken_ns) or oldest)
            if taken_ns < oldest.taken_ns - oldest.span_ns:
                what = "the recording begins here" if recorded else "the history begins here"
                show_alert(f"{what}: {span(round(self._history.reach_ns, -9))}")
            elif taken_ns > newest.taken_ns:
                show_alert(
                    "this is the end of the recording" if recorded else "this is the newest tick; 0 returns to live"
                )

    def _pause_at(self, tick: HistoryTick) -> None:
        self._display.set_view(view_changes.paused_at(self._display.view, tick.at_ns))

    def finish_seek(self) -> bool:
        """Pause at the target of a seek if its tick has arrived.

        Returns False while that tick is missing, otherwise True, also if there is no seek.
        """
        newest, target_ns = self._history.newest, self._seek_target_ns
        if target_ns is None:
            return True
        if newest is None or newest.taken_ns < target_ns or target_ns < self._history.oldest_ns:
            return False
        self._seek_target_ns = None
        self._display.show_alert("")
        self._pause_at(self._history.taken_by(target_ns) or newest)
        return True
