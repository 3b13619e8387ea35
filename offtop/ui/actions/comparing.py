"""Actions of the keys that set a baseline and compare with it."""

from collections.abc import Sequence
from datetime import datetime
from threading import Thread

from textual.message import Message

from offtop.feed.suspect_watch import SuspectWatch
from offtop.model.classify.suspects import averages
from offtop.model.viewmodel import view as views
from offtop.model.viewmodel.picture import last_alike
from offtop.model.viewmodel.view import SINCE_START
from offtop.model.windows.baseline import LEAST_NS, Baseline, baseline_of, parts_of
from offtop.model.windows.history import HistoryTick
from offtop.ui.actions.files import FileActions
from offtop.units import span

ALL_NS = 1 << 62
"""Longer than any history."""


class BaselineReady(Message):
    """A baseline was computed."""

    def __init__(self, baseline: Baseline) -> None:
        super().__init__()
        self.baseline = baseline


class BaselineActions(FileActions):
    """Actions of the baseline keys, for the app to inherit."""

    _suspects: SuspectWatch | None

    def action_mark(self) -> None:
        """Take the displayed span as the baseline, but at least the last minute of it."""
        picture, span_ns = self.picture, max(LEAST_NS, self.view.span_ns)
        if self.view.span_ns == SINCE_START:
            span_ns = ALL_NS
        kept = self._history.last(span_ns, picture.newest.at_ns) if picture else []
        if not kept:
            self.show_alert("there is nothing to take as a baseline yet")
            return
        ticks = last_alike(kept, span_ns, self.view.mode)
        Thread(target=self._marked, args=(ticks,), name="offtop-mark", daemon=True).start()

    def _marked(self, ticks: Sequence[HistoryTick]) -> None:
        """Compute the baseline, in a separate thread: a minute of thousands of stacks takes a second."""
        watch = self._suspects
        suspects = averages((watch.at(tick.number), tick.span_ns) for tick in ticks) if watch else None
        made = baseline_of(parts_of(ticks), ticks[-1].idle, self._source.names, suspects=suspects)
        self.post_message(BaselineReady(made))

    def on_baseline_ready(self, message: BaselineReady) -> None:
        if self._suspects:
            self._suspects.compare_with(message.baseline)
        self.set_view(views.marked(self.view, message.baseline))
        compares = "compared with it already" if self.view.diff else "D compares with it"
        self.show_alert(f"baseline: {span_text(message.baseline)}; {compares}")

    def action_diff(self) -> None:
        baseline = self.view.baseline
        if baseline is None:
            self.show_alert("there is no baseline: B takes the last minute, --baseline a recording")
            return
        self.set_view(views.compared_or_not(self.view))
        if self.view.diff:
            self.show_alert(f"compared with {baseline.file or 'the baseline'}: {span_text(baseline)}")


def span_text(baseline: Baseline) -> str:
    """Return `14:02:10 to 14:03:10, 60s`, with the day if it is not today."""
    first, last = (datetime.fromtimestamp(ns // 10**9) for ns in (baseline.began_ns, baseline.taken_ns))
    day = "" if last.date() == datetime.now().date() else f"{last:%Y-%m-%d} "
    return f"{day}{first:%H:%M:%S} to {last:%H:%M:%S}, {span(round(baseline.span_ns, -9))}"
