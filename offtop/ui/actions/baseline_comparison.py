"""Taking a baseline, and comparing with it."""

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from threading import Thread

from offtop.feed.suspect_watch import SuspectWatch
from offtop.model.classify.suspect import NOTHING_FOUND, averages
from offtop.model.values.stack import Names
from offtop.model.viewmodel import view_changes
from offtop.model.viewmodel.scene import last_alike
from offtop.model.viewmodel.view import SINCE_START
from offtop.model.windows.baseline import LEAST_NS, Baseline, baseline_of, parts_of
from offtop.model.windows.history import History, HistoryTick
from offtop.ui.actions.display import Display
from offtop.units import span

_WHOLE_HISTORY_NS = 1 << 62
"""Longer than any history."""


class BaselineComparison:
    def __init__(self, display: Display, history: History, names: Names, suspects: SuspectWatch | None) -> None:
        """`suspects` is None if they are not searched for."""
        self._display, self._history, self._names, self._suspects = display, history, names, suspects

    def take(self) -> None:
        """Take the displayed span as the baseline, but at least the last minute of it."""
        picture, view = self._display.picture, self._display.view
        span_ns = _WHOLE_HISTORY_NS if view.span_ns == SINCE_START else max(LEAST_NS, view.span_ns)
        ticks = self._history.last(span_ns, picture.common.newest.at_ns) if picture else []
        if not ticks:
            self._display.show_alert("there is nothing to take as a baseline yet")
            return
        ticks = last_alike(ticks, span_ns, view.mode)
        Thread(target=self._compute, args=(ticks,), name="offtop-mark", daemon=True).start()

    def _compute(self, ticks: Sequence[HistoryTick]) -> None:
        """Compute the baseline, in a separate thread: a minute of thousands of stacks takes a second."""
        watch = self._suspects
        suspects = averages((watch.at(tick.number) or NOTHING_FOUND, tick.span_ns) for tick in ticks) if watch else None
        baseline = baseline_of(parts_of(ticks), ticks[-1].idle, self._names, suspects=suspects)
        self._display.run_later(partial(self._set, baseline))

    def _set(self, baseline: Baseline) -> None:
        if self._suspects:
            self._suspects.compare_with(baseline)
        view = self._display.view
        self._display.set_view(view_changes.marked(view, baseline))
        compares = "compared with it already" if view.diff else "D compares with it"
        self._display.show_alert(f"baseline: {_span_text(baseline)}{_suspects_text(baseline)}; {compares}")

    def start_or_stop(self) -> None:
        baseline = self._display.view.baseline
        if baseline is None:
            self._display.show_alert("there is no baseline: B takes the last minute, --baseline a recording")
            return
        self._display.set_view(view_changes.compared_or_not(self._display.view))
        if self._display.view.diff:
            self._display.show_alert(f"compared with {baseline.file or 'the baseline'}: {_span_text(baseline)}")


def _span_text(baseline: Baseline) -> str:
    """Return `14:02:10 to 14:03:10, 60s`, with the day if it is not today."""
    first, last = (datetime.fromtimestamp(ns // 10**9) for ns in (baseline.began_ns, baseline.taken_ns))
    day = "" if last.date() == datetime.now().date() else f"{last:%Y-%m-%d} "
    return f"{day}{first:%H:%M:%S} to {last:%H:%M:%S}, {span(round(baseline.span_ns, -9))}"


def _suspects_text(baseline: Baseline) -> str:
    """Return `, with 2 suspects`, because what they hold up is usual from now on; empty if there are none."""
    count = len(baseline.suspects or ())
    return f", with {count} suspect{'s' * (count > 1)}" if count else ""
