"""Actions of the outlier keys: the list, the next and previous outlier, and the triggers."""

from offtop.errors import OfftopError
from offtop.feed.outlier_actions import OutlierActions
from offtop.model.outliers.text import one_line
from offtop.model.values.outlier import Group
from offtop.model.viewmodel import panes
from offtop.model.viewmodel.outlier_list import OutlierList, which
from offtop.model.viewmodel.picture import Picture
from offtop.model.viewmodel.view import OUTLIERS
from offtop.model.windows.breakdown import ALL
from offtop.printable import printable
from offtop.ui.actions.base import ActionsBase
from offtop.ui.panes import outliers
from offtop.units import NS_PER_S


class OutlierKeyActions(ActionsBase):
    """Actions of the outlier keys, for the app to inherit."""

    _ids: tuple[str, ...]
    """Ids of all categories."""
    _outlier_list: OutlierList
    _outlier_actions: OutlierActions | None = None
    """None if the outliers come from a recording."""

    def action_triggers(self) -> None:
        if self._outlier_actions is None:
            self.show_alert("this is a recording: it has only the outliers that were reported then")
            return
        self.ask("outliers (auto; lock.max > 500ms; off): ", self._set_triggers, "; ".join(self.view.triggers))

    def _set_triggers(self, text: str) -> str | None:
        triggers = [one for part in text.split(";") if (one := " ".join(part.split()))] or ["off"]
        if self._outlier_actions is not None:
            try:
                self._outlier_actions.set_triggers(triggers, self.view.filters.min_ns)
            except OfftopError as refused:
                return str(refused)
        self.set_view(panes.with_triggers(self.view, tuple(triggers)))
        return None

    def _move_outlier(self, picture: Picture, step: int) -> None:
        """Move in the list of outliers, or scroll the one that fills the pane."""
        view, shown = self.view, picture.outliers
        if not shown.groups:
            return
        if view.outliers.opened:
            pen = self.pen(OUTLIERS)
            last = max(0, len(outliers.in_full(picture, pen)) - pen.height + 1)
            self.set_view(panes.outlier_opened(view, max(0, min(last, view.outliers.scrolled + step))))
        else:
            row = max(0, min(len(shown.groups) - 1, shown.cursor + step))
            self.set_view(panes.at_outlier(view, which(shown.groups[row])))

    def _enter_outlier(self, picture: Picture) -> None:
        """Show the outlier under the cursor in full; if it is shown already, go to its time."""
        shown = picture.outliers
        if shown.groups and self.view.outliers.opened:
            self._go_to_outlier(shown.groups[shown.cursor])
        elif shown.groups:
            self._move_outlier(picture, 0)
            self.set_view(panes.outlier_opened(self.view))

    def _next_outlier(self, step: int) -> None:
        """Go to the next outlier after the displayed time (1), or the last one before (-1)."""
        picture, every = self.picture, self._outlier_list.every
        if picture is None or not every:
            self.show_alert("no outliers yet: ! chooses what counts as one; / searches")
            return
        here = next((i for i, one in enumerate(every) if which(one) == self.view.outliers.cursor), None)
        now_ns = picture.newest.taken_ns
        if here is not None and self.view.paused_at_ns is not None and every[here].worst.taken_ns == now_ns:
            target = here + step
        elif step > 0:
            target = next((i for i, one in enumerate(every) if one.worst.taken_ns > now_ns), len(every))
        else:
            target = next((i for i in reversed(range(len(every))) if every[i].worst.taken_ns <= now_ns), -1)
        if 0 <= target < len(every):
            self._go_to_outlier(every[target])
        elif step > 0:
            is_shown = here is not None and self.view.paused_at_ns is not None
            self.show_alert("this is the newest outlier" if is_shown else "there is no later outlier: N goes back")
        else:
            self.show_alert("there is no earlier outlier")

    def _go_to_outlier(self, group: Group) -> None:
        """Show all panes as they were at the time of the outlier, with its thread selected."""
        one, recorded = group.worst, self._source.recorded
        picture, oldest = self.picture, self._history.oldest
        if picture is None or oldest is None:
            return
        if not recorded and one.taken_ns < oldest.taken_ns - oldest.span_ns:
            self.set_view(panes.outlier_opened(panes.at_outlier(self.view, which(group))))
            ago_s = (picture.newest.taken_ns - one.taken_ns) // NS_PER_S
            self.show_alert(f"this was {ago_s // 60} min ago, longer than the history: only this much is stored")
            return
        category = one.category if one.category in self._ids else ALL
        self.set_view(
            panes.around_outlier(self.view, which(group), one.wait.site.thread if one.wait else None, category)
        )
        self.rewind.go_to(one.taken_ns)
        self.show_alert(f"outlier: {printable(one_line(one, self._source.names))}")
