"""The keys that say what is normal, and compare with it."""

from collections.abc import Sequence
from datetime import datetime
from threading import Thread

from textual.message import Message

from offtop.model.viewmodel import view as views
from offtop.model.viewmodel.picture import last_alike
from offtop.model.viewmodel.view import SINCE_START
from offtop.model.windows.baseline import LEAST_NS, Baseline, baseline_of, parts_of
from offtop.model.windows.history import Kept
from offtop.ui.actions.files import Keeping
from offtop.units import span

ALL_NS = 1 << 62
"""More than any history goes back."""


class Marked(Message):
    """A baseline is made."""

    def __init__(self, baseline: Baseline) -> None:
        super().__init__()
        self.baseline = baseline


class Comparing(Keeping):
    def action_mark(self) -> None:
        """The span that is looked at, or the minute that it is the end of."""
        picture, span_ns = self._picture, max(LEAST_NS, self._view.span_ns)
        if self._view.span_ns == SINCE_START:
            span_ns = ALL_NS
        kept = self._history.last(span_ns, picture.newest.at_ns) if picture else []
        if not kept:
            self._say("there is nothing to mark yet")
            return
        ticks = last_alike(kept, span_ns, self._view.mode)
        Thread(target=self._marked, args=(ticks,), name="offtop-mark", daemon=True).start()

    def _marked(self, ticks: Sequence[Kept]) -> None:
        """In a thread of its own: a minute of thousands of stacks takes a second."""
        self.post_message(Marked(baseline_of(parts_of(ticks), ticks[-1].idle, self._source.names)))

    def on_marked(self, message: Marked) -> None:
        self._look(views.marked(self._view, message.baseline))
        compares = "compared with it already" if self._view.diff else "D compares with it"
        self._say(f"normal is now: {told(message.baseline)}; {compares}")

    def action_diff(self) -> None:
        baseline = self._view.baseline
        if baseline is None:
            self._say("nothing is marked as normal: B marks the last minute, --baseline takes a recording")
            return
        self._look(views.compared_or_not(self._view))
        if self._view.diff:
            self._say(f"compared with {baseline.file or 'normal'}: {told(baseline)}")


def told(baseline: Baseline) -> str:
    """`14:02:10 to 14:03:10, 60s`, with the day where it is another one."""
    ends = [datetime.fromtimestamp(ns // 10**9) for ns in (baseline.began_ns, baseline.taken_ns)]
    day = "" if ends[1].date() == datetime.now().date() else f"{ends[1]:%Y-%m-%d} "
    return f"{day}{ends[0]:%H:%M:%S} to {ends[1]:%H:%M:%S}, {span(round(baseline.span_ns, -9))}"
