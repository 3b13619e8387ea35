"""The Textual app of `offtop fleet`.

Keys change the view or the question; the reader's thread posts NewAnswer; both draw the page again.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.message import Message

from offtop.fleet import promql, texts
from offtop.fleet.hosts import HostId, split_port
from offtop.fleet.reader import Reader, TrendQuestion
from offtop.fleet.survey import RANGES_NS
from offtop.ui.fleet import lines
from offtop.ui.fleet.help import Help
from offtop.ui.fleet.keys import BINDINGS, KEYS
from offtop.ui.fleet.lines import Look, Page, View
from offtop.ui.kit.board import Board
from offtop.ui.kit.layout import Layout, Rect
from offtop.ui.kit.lines import Clicked, fit, plain
from offtop.ui.kit.terminal_app import TerminalApp
from offtop.units import NS_PER_S, duration, parse_moment

_ALERT_SECONDS = 8.0
_LATE_NS = 30 * NS_PER_S
"""A picture that is this old without a refresh is marked."""
_STEPS_IN_RANGE = 5
_MACHINE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*|[0-9A-Fa-f:]*:[0-9A-Fa-f:]*")
"""Names and addresses of machines that may be given to ssh: an instance may be any text."""


class NewAnswer(Message):
    """The reader has something new."""

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, NewAnswer)


class FleetApp(TerminalApp):
    BINDINGS: ClassVar[list[BindingType]] = BINDINGS
    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self,
        reader: Reader,
        filter_text: str,
        order: Sequence[str],
        causes: Mapping[str, str],
        show_live: Callable[[str], None],
        show_recording: Callable[[str, int], None],
        *,
        theme_name: str = "dark",
        ascii_only: bool = False,
        mouse: bool = False,
        iterations: int | None = None,
    ) -> None:
        """`order`: all categories. `causes`: names of cause rules by id.

        `show_live` shows a machine in this terminal until the person leaves it; `show_recording` shows its recording,
        from a moment on (CLOCK_REALTIME).
        `iterations`: the app ends after so many answers.
        """
        super().__init__(theme_name, ascii_only, mouse)
        self.view = View(filter_text)
        self.reader, self._order, self._causes = reader, order, causes
        self._show_live, self._show_recording, self._iterations = show_live, show_recording, iterations
        self._page = Page(())
        self._alert = ""
        self._answered_ns = time.monotonic_ns()
        self._newest_ns = 0
        """The newest time that has numbers, by the clock of the API."""
        self._bound = frozenset(key for row in KEYS for key in row.keys.split(","))
        self._board = Board(("page", "alert", "keys"))
        self._actions = {
            "down": partial(self._move, 1),
            "up": partial(self._move, -1),
            "page_down": lambda: self._move(self._page.room),
            "page_up": lambda: self._move(-self._page.room),
            "first": lambda: self._move(-self._page.row_count),
            "last": lambda: self._move(self._page.row_count),
            "drill": self._drill,
            "back": self._go_back,
            "shorter": partial(self._change_range, -1),
            "longer": partial(self._change_range, 1),
            "step_back": partial(self._shift, -1 / _STEPS_IN_RANGE),
            "step_on": partial(self._shift, 1 / _STEPS_IN_RANGE),
            "range_back": partial(self._shift, -1),
            "range_on": partial(self._shift, 1),
            "go_to": self._ask_time,
            "now": lambda: self._go_to(None),
            "filter": self._ask_filter,
            "sort_left": partial(self._sort, -1),
            "sort_right": partial(self._sort, 1),
            "reverse": lambda: self._set_view(replace(self.view, is_reversed=not self.view.is_reversed)),
            "refresh": self.reader.refresh,
            "help": self._show_help,
            "redraw": self._redraw,
            "suspend": self.action_suspend_process,
            "quit": self.leave_overlay_or_quit,
            "interrupt": self.leave_overlay_or_quit,
        }

    def compose(self) -> ComposeResult:
        yield from self._board.panels.values()
        yield self._prompt

    def on_mount(self) -> None:
        self._watch_terminal()
        self.set_interval(1.0, self._mark_lateness)
        self._draw()
        self.reader.notify(self._post_answer)
        self.reader.start()
        self.post_message(NewAnswer())

    def on_unmount(self) -> None:
        self.reader.close()

    def _mark_lateness(self) -> None:
        """Show how old the picture is, if it is too old."""
        if self._lateness():
            self._draw()

    def _post_answer(self) -> None:
        self.post_message(NewAnswer())

    def on_new_answer(self) -> None:
        answer = self.reader.answer
        if not answer.failure:
            self._answered_ns = time.monotonic_ns()
        if answer.fleet:
            self._newest_ns = max(self._newest_ns, answer.fleet.at_ns)
        if self._iterations and answer.count >= self._iterations:
            self.call_after_refresh(self.exit, 0)
        self._draw()

    @property
    def look(self) -> Look:
        return Look(*self.size, self.glyphs, self._order, self._causes)

    def _lateness(self) -> str:
        """Return how long there has been no answer, if that is too long."""
        age_ns = time.monotonic_ns() - self._answered_ns
        is_live = self.reader.question.at_ns is None or self.reader.answer.failure
        return f"no answer for {duration(age_ns)}" if is_live and age_ns > _LATE_NS else ""

    def _draw(self) -> None:
        if not self.screen_stack or not self._board.panels["page"].is_mounted:
            return
        look, answer = self.look, self.reader.answer
        self._page = lines.page(answer, self.view, look, self._page.top, self._lateness())
        width, height = look.width, look.height
        panels = {
            "page": Rect(0, 0, width, max(1, height - 2)),
            "alert": Rect(0, height - 2, width, 1),
            "keys": Rect(0, height - 1, width, 1),
        }
        layout = Layout(width, height, panels if height > 2 else {"page": panels["page"]})
        self._board.place(layout, "alert" if self._prompt.is_open else "")
        self._prompt.styles.offset = 0, max(0, height - 2)
        drawn = {
            "page": self._page.lines,
            "alert": [plain(fit(self._alert or answer.failure, width, self.glyphs), "alert")],
            "keys": [lines.key_bar(width)],
        }
        for name in layout.panels:
            self._board.show(name, drawn[name], layout)
        self._request()

    def _request(self) -> None:
        """Have the reader ask for what is on the screen."""
        answer, view = self.reader.answer, self.view
        if answer.fleet is None:
            return
        hosts = () if view.inside else lines.hosts_of(answer, view)[self._page.top : self._page.top + self._page.room]
        cells = lines.grid(answer.fleet, self.look).trend_cells
        wanted = TrendQuestion(frozenset(one.id for one in hosts), lines.trend_category(view), cells)
        self.reader.show(view.inside, wanted)

    def _set_view(self, view: View) -> None:
        self.view = view
        self._draw()

    def _move(self, step: int) -> None:
        answer, view = self.reader.answer, self.view
        if view.inside:
            programs = lines.programs_of(answer, view)
            chosen = lines.selected_program(answer, view)
            if chosen:
                number = max(0, min(programs.index(chosen) + step, len(programs) - 1))
                self._set_view(replace(view, program=programs[number].name))
            return
        hosts, host = lines.hosts_of(answer, view), lines.selected_host(answer, view)
        if host:
            number = max(0, min(hosts.index(host) + step, len(hosts) - 1))
            self._set_view(replace(view, host=hosts[number].id))

    def _drill(self) -> None:
        host = lines.selected_host(self.reader.answer, self.view)
        if self.view.inside:
            self._watch(self.view.inside)
        elif host:
            self._page = Page(())
            self._set_view(replace(self.view, host=host.id, inside=host.id, program=None))

    def _go_back(self) -> None:
        if self._prompt.is_open:
            self._prompt.drop()
            self._draw()
        elif self.view.inside:
            self._page = Page(())
            self._set_view(replace(self.view, inside=None))
        elif self.view.filter_text:
            self._filter_by("")

    def _watch(self, host: HostId) -> None:
        """Show this host in this terminal: live, or the recording of its agent around the time that is shown."""
        machine, _ = split_port(host.instance)
        at_ns = self.reader.question.at_ns
        if not _MACHINE.fullmatch(machine):
            self.show_alert(
                f"ssh cannot reach a machine that is called {machine}; give its instance a name (relabel_configs)"
            )
            return
        with self.suspend() if self._driver and self._driver.can_suspend else nullcontext():
            if at_ns is None:
                self._show_live(machine)
            else:
                self._show_recording(machine, at_ns)
        self.set_timer(0.2, self._redraw)

    def _change_range(self, step: int) -> None:
        answer = self.reader.answer
        now_ns = self.reader.question.range_ns or (answer.fleet.range_ns if answer.fleet else RANGES_NS[0])
        others = [one for one in RANGES_NS if (one > now_ns if step > 0 else one < now_ns)]
        if not others:
            self.show_alert(f"{texts.range_of(now_ns)} is the {'longest' if step > 0 else 'shortest'} range")
            return
        self.reader.ask(replace(self.reader.question, range_ns=others[0 if step > 0 else -1]))
        self.show_alert(f"averages over {texts.range_of(self.reader.question.range_ns)}")

    def _shift(self, ranges: float) -> None:
        fleet = self.reader.answer.fleet
        if fleet is None:
            return
        question = self.reader.question
        at_ns = (question.at_ns or fleet.at_ns) + round(ranges * (question.range_ns or fleet.range_ns))
        self._go_to(at_ns)

    def _go_to(self, at_ns: int | None) -> None:
        """Show another time; None, and times that are not over yet, are now."""
        if at_ns is not None and at_ns >= self._newest_ns:
            at_ns = None
        self.reader.ask(replace(self.reader.question, at_ns=at_ns))
        self.show_alert("now" if at_ns is None else f"asking for {texts.clock(at_ns, 0)}")

    def _ask_time(self) -> None:
        self._ask("go to (02:10, -5m): ", self._take_time)

    def _take_time(self, text: str) -> str | None:
        shown_ns = self.reader.question.at_ns or self._newest_ns
        try:
            self._go_to(parse_moment(text, shown_ns, self._newest_ns))
        except (ValueError, OverflowError):
            return "a time such as 02:10, 2026-11-21T02:10 or -5m"
        return None

    def _ask_filter(self) -> None:
        self._ask("hosts (job=db env!=test db*): ", self._take_filter, self.view.filter_text)

    def _take_filter(self, text: str) -> str | None:
        try:
            promql.parse_filter(text)
        except ValueError as error:
            return str(error)
        self._filter_by(text.strip())
        return None

    def _filter_by(self, text: str) -> None:
        self.reader.ask(replace(self.reader.question, filter=promql.parse_filter(text)))
        self._set_view(replace(self.view, filter_text=text, inside=None))

    def _ask(self, question: str, answered: Callable[[str], str | None], now: str = "") -> None:
        self._prompt.ask(question, answered, now)
        self._draw()

    def _sort(self, step: int) -> None:
        known = lines.sorts(self.reader.answer, self.look)
        number = known.index(self.view.sort) if self.view.sort in known else 0
        self._set_view(replace(self.view, sort=known[(number + step) % len(known)], host=None))
        self.show_alert(f"sorted by {self.view.sort}")

    def show_alert(self, text: str) -> None:
        """Show `text` until the next key, or for a few seconds."""
        self._alert = text
        self.set_timer(_ALERT_SECONDS, lambda: self._clear_alert(text))
        self._draw()

    def _clear_alert(self, text: str) -> None:
        if self._alert == text:
            self._alert = ""
            self._draw()

    def on_clicked(self, event: Clicked) -> None:
        if self.has_overlay or event.panel != "page":
            return
        if event.turns:
            self._move(event.turns)
            return
        row = event.y - self._page.first_y
        answer, view = self.reader.answer, self.view
        if not 0 <= row < min(self._page.room, self._page.row_count - self._page.top):
            return
        number = self._page.top + row
        if view.inside:
            self._set_view(replace(view, program=lines.programs_of(answer, view)[number].name))
            return
        chosen = lines.hosts_of(answer, view)[number].id
        if chosen == view.host:
            self._drill()
        else:
            self._set_view(replace(view, host=chosen))

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key):
            self._alert = ""
            if not event.is_forwarded and not self.has_overlay and await self._run_key(event):
                return
        if isinstance(event, events.Paste) and not event.is_forwarded and self._prompt.is_open:
            self._prompt.paste(event.text)
            return
        await super().on_event(event)

    def _show_help(self) -> None:
        self.push_screen(Help(self.glyphs))
