"""Outliers: the triggers that define them, the alert at a new one, and going to the time of one."""

from offtop.errors import OfftopError
from offtop.feed.outlier_actions import OutlierActions
from offtop.model.outliers.text import one_line
from offtop.model.values.outlier import Group
from offtop.model.viewmodel import panes, view_changes
from offtop.model.viewmodel.outlier_list import which
from offtop.model.viewmodel.view import OUTLIERS
from offtop.model.windows.breakdown import ALL
from offtop.printable import printable
from offtop.ui.actions.display import Display
from offtop.ui.actions.rewind import Rewind
from offtop.ui.actions.session import Session
from offtop.units import NS_PER_S, span


class Triggers:
    def __init__(self, display: Display, actions: OutlierActions | None) -> None:
        """`actions` is None if the outliers come from a recording."""
        self._display, self._actions = display, actions

    def ask(self) -> None:
        if self._actions is None:
            self._display.show_alert("this is a recording: it has only the outliers that were reported then")
            return
        now = "; ".join(self._display.view.triggers)
        self._display.ask("outliers (auto; lock.max > 500ms; off): ", self._set, now)

    def _set(self, text: str) -> str | None:
        triggers = [one for part in text.split(";") if (one := " ".join(part.split()))] or ["off"]
        view = self._display.view
        if self._actions is not None:
            try:
                self._actions.set_triggers(triggers, view.filters.min_ns)
            except OfftopError as refused:
                return str(refused)
        self._display.set_view(panes.with_triggers(view, tuple(triggers)))
        return None

    def warn_below(self, min_ns: int) -> None:
        """Show an alert if a trigger reports no waits because they are shorter than `min_ns`."""
        if self._actions and (trigger := self._actions.trigger_below(min_ns)):
            text = f"'{printable(trigger)}' reports no waits shorter than the minimum of {span(min_ns)}"
            self._display.show_alert(text)


class OutlierAlerts:
    def __init__(self, display: Display, session: Session) -> None:
        self._display, self._session, self._actions = display, session, session.outlier_actions
        self._newest_ns = max((one.last.at_ns for one in session.outlier_list.every), default=0)
        """CLOCK_MONOTONIC of the newest outlier that was announced on the alert line."""
        self._pauses = self._actions is not None and self._actions.freeze
        """Whether to pause the screen at the next outlier."""
        self._frozen_ns: int | None = None
        """CLOCK_MONOTONIC of the tick at which it was paused."""

    def announce_new(self) -> None:
        """Announce new outliers on the alert line, and pause at the first one if requested."""
        display = self._display
        if self._actions and (failure := self._actions.alarm.failure):
            self._actions.alarm.failure = ""
            display.show_alert(failure)
        new = [one for one in self._session.outlier_list.every if one.first.at_ns > self._newest_ns]
        if not new:
            return
        worst, self._newest_ns = new[-1].worst, new[-1].first.at_ns
        more = f" (and {len(new) - 1} more: O)" if len(new) > 1 else " (O)"
        if self._actions and self._actions.bell:
            display.bell()
        text = f"outlier: {printable(one_line(worst, self._session.source.names))}{more}"
        if self._frozen_ns is not None and display.view.paused_at_ns == self._frozen_ns:
            return  # the alert that says what has stopped the screen stays
        if (
            self._pauses
            and display.view.paused_at_ns is None
            and (tick := self._session.history.taken_by(worst.taken_ns))
        ):
            self._pauses, self._frozen_ns, text = False, tick.at_ns, f"paused by {text}"
            display.set_view(view_changes.paused_at(display.view, tick.at_ns))
        display.show_alert(text)


class OutlierTimes:
    """Shows the screen as it was at the time of an outlier."""

    def __init__(self, display: Display, session: Session, rewind: Rewind) -> None:
        self._display, self._session, self._rewind = display, session, rewind

    def go_to_next(self, step: int) -> None:
        """Go to the next outlier after the displayed time (1), or the last one before (-1)."""
        picture, every = self._display.picture, self._session.outlier_list.every
        view = self._display.view
        if picture is None or not every:
            self._display.show_alert("no outliers yet: ! chooses what counts as one; / searches")
            return
        here = next((i for i, one in enumerate(every) if which(one) == view.outliers.cursor), None)
        now_ns = picture.common.newest.taken_ns
        is_at = view.paused_at_ns is not None and here is not None and every[here].worst.taken_ns == now_ns
        is_opened = view.focus == OUTLIERS and view.outliers.opened  # it may be older than the history
        if here is not None and (is_at or is_opened):
            target = here + step
        elif step > 0:
            target = next((i for i, one in enumerate(every) if one.worst.taken_ns > now_ns), len(every))
        else:
            target = next((i for i in reversed(range(len(every))) if every[i].worst.taken_ns <= now_ns), -1)
        if 0 <= target < len(every):
            self.go_to(every[target])
        elif step > 0:
            is_shown = here is not None and view.paused_at_ns is not None
            self._display.show_alert(
                "this is the newest outlier" if is_shown else "there is no later outlier: N goes back"
            )
        else:
            self._display.show_alert("there is no earlier outlier")

    def go_to(self, group: Group) -> None:
        """Show all panes as they were at the time of the outlier, with its thread selected."""
        one, recorded = group.worst, self._session.source.recorded
        picture, oldest = self._display.picture, self._session.history.oldest
        if picture is None or oldest is None:
            return
        if not recorded and one.taken_ns < oldest.taken_ns - oldest.span_ns:
            self._display.set_view(panes.outlier_opened(panes.at_outlier(self._display.view, which(group))))
            ago_s = (picture.common.newest.taken_ns - one.taken_ns) // NS_PER_S
            self._display.show_alert(
                f"this was {ago_s // 60} min ago, longer than the history: only this much is stored"
            )
            return
        if one.io:
            self._display.set_view(panes.around_slow_io(self._display.view, which(group), one.io, one.program))
            self._rewind.go_to(one.taken_ns)
            self._display.show_alert(f"outlier: {printable(one_line(one, self._session.source.names))}")
            return
        category = one.category if one.category in self._session.categories.ids else ALL
        self._display.set_view(
            panes.around_outlier(self._display.view, which(group), one.wait.site.thread if one.wait else None, category)
        )
        self._rewind.go_to(one.taken_ns)
        self._display.show_alert(f"outlier: {printable(one_line(one, self._session.source.names))}")
