"""Questions whose answer is a number: the delay between ticks, and the rate of requests."""

from dataclasses import replace

from offtop.feed.source import Source
from offtop.model.aggregate.budget import parse_rate
from offtop.model.viewmodel import view_changes
from offtop.ui.actions.display import Display
from offtop.units import NS_PER_S, parse_duration, span


class DelayQuestion:
    def __init__(self, display: Display, source: Source) -> None:
        self._display, self._source = display, source

    def ask(self) -> None:
        if self._source.recorded:
            self._display.show_alert("a recording keeps its own pace: --speed plays it faster")
            return
        now = span(self._display.view.delay_ns)
        self._display.ask(f"seconds between ticks, 0.1 to 60 (now {now}): ", self._set)

    def _set(self, text: str) -> str | None:
        if not text.strip():
            return None
        try:
            view = view_changes.with_delay(self._display.view, parse_duration(text.strip(), NS_PER_S))
        except ValueError:
            return f"{text!r} is not a delay from 0.1 to 60 s: try 2, 0.5 or 500ms"
        self._display.set_view(view)
        return None


class RateQuestion:
    """Asks for the requests per second of a process, which its budget is computed from."""

    def __init__(self, display: Display) -> None:
        self._display = display

    def ask(self) -> None:
        view = self._display.view
        now = view.rate.text if view.rate and view.rate_pid in (None, view.subject_ids[0]) else ""
        self._display.ask("requests/s, CPU time each (1500 or 1500,1ms; empty: none): ", self._set, now)

    def _set(self, text: str) -> str | None:
        try:
            rate = parse_rate(text) if text.strip() else None
        except ValueError:
            return f"{text!r} is not a rate: try 1500, 1.5k or 1500,1ms"
        pid = self._display.view.subject_ids[0]
        self._display.set_view(replace(self._display.view, rate=rate, rate_pid=pid))
        if rate and pid is None:
            self._display.show_alert("drill into a process to see its budget")
        return None
