"""The app: keys make the next View, ticks and keys make the next Picture, panels draw it.

It reads no source: one thread of its own does, at its pace whatever the screen does, and sends one message
that something is new; a newer one takes the place of one that is still queued.
"""

import asyncio
import gc
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from threading import Thread
from typing import ClassVar

from textual import events
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input

from offtop.errors import OfftopError
from offtop.model import view as views
from offtop.model.book import ThreadKey
from offtop.model.categories import Categories, is_periodic
from offtop.model.cut import ALL
from offtop.model.history import HISTORY_NS, History
from offtop.model.picture import Picture, Pictures
from offtop.model.rows import Key
from offtop.model.snapshot import EXITED
from offtop.model.view import View
from offtop.pace import Pace
from offtop.source import Source
from offtop.ui import head, tables, terminal, theme
from offtop.ui.glyphs import ASCII, UNICODE, Glyphs
from offtop.ui.help import Help
from offtop.ui.keys import BINDINGS, KEYS
from offtop.ui.layout import Layout, arrange
from offtop.ui.lines import Line, Panel, fit, plain, whole_sentences, width_of
from offtop.units import NS_PER_S, parse_duration, size, span

_ALERT_SECONDS = 6.0
_NS_PER_MS = 1_000_000
"""The minimum is shown in ms, so a bare number at its prompt is one; `--min` takes us, as bcc's tools do."""
_ROWS_OF_GARBAGE = 200_000
"""Objects between two searches for cycles: a tick makes thousands of tuples, and no cycle."""


class NewTick(Message):
    """History holds one tick more."""

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, NewTick)


class Ended(Message):
    """There will be no more ticks: the source came to its end, or failed."""

    def __init__(self, error: BaseException | None) -> None:
        super().__init__()
        self.error = error


class OfftopApp(App[int]):
    CSS = f"""
    Screen {{ layout: vertical; overflow: hidden; background: $background; color: $foreground; }}
    Panel {{ width: 100%; height: 1; background: $background; color: $foreground; }}
    #asking {{ height: 1; width: 100%; display: none; }}
    #question {{ width: auto; }}
    #answer {{ width: 1fr; height: 1; border: none; padding: 0; background: $background; color: $foreground; }}
    {theme.css()}
    """
    BINDINGS: ClassVar[list[BindingType]] = BINDINGS
    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self,
        source: Source,
        view: View,
        categories: Categories,
        *,
        theme_name: str = "dark",
        ascii_only: bool = False,
        history_ns: int = HISTORY_NS,
        iterations: int | None = None,
    ) -> None:
        super().__init__(driver_class=terminal.TerminalDriver)
        self.register_theme(theme.load(theme_name))
        self.theme = theme_name
        self.animation_level = "none"
        self._source = source
        self._categories = categories
        self._glyphs: Glyphs = ASCII if ascii_only else UNICODE
        self._history = History(categories.idle, is_periodic, history_ns)
        self._pictures = Pictures(self._history)
        self._pace = Pace(source, self._history, view.delay_ns)
        self._poll = Thread(target=self._read, name="offtop-poll", daemon=True)
        self._iterations = iterations
        self._view = view
        self._picture: Picture | None = None
        self._alert = ""
        self._answered: Callable[[str], str | None] | None = None
        self.failure: BaseException | None = None
        self._head = Panel("head")
        self._table = Panel("categories")
        self._list = Panel("rows")
        self._places = Panel("places")
        self._alert_line = Panel("alert")
        self._question = Panel("question")
        self._answer = Input(id="answer", compact=True)
        self._key_bar = Panel("keys")

    @property
    def view(self) -> View:
        return self._view

    @property
    def picture(self) -> Picture | None:
        """What is on the screen."""
        return self._picture

    def compose(self) -> ComposeResult:
        yield self._head
        yield self._table
        yield self._list
        yield self._places
        yield self._alert_line
        with Horizontal(id="asking"):
            yield self._question
            yield self._answer
        yield self._key_bar

    def on_mount(self) -> None:
        self._answer.disabled = True
        self.app_resume_signal.subscribe(self, self._resumed)  # pyright: ignore[reportUnknownMemberType]
        if not self.is_headless:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                loop.add_signal_handler(number, partial(self.exit, 128 + number))
            self.set_interval(1.0, self._look_at_terminal)
        self._draw()
        self._poll.start()

    def on_unmount(self) -> None:
        self._pace.stop()
        if self._poll.is_alive():
            self._poll.join(timeout=2.0)

    def _read(self) -> None:
        """The polling thread. It ends when the pace is stopped, and its failure is raised again by `run`."""
        error: BaseException | None = None
        try:
            for _ in self._pace.ticks():
                self.post_message(NewTick())
        except BaseException as raised:
            error = raised
        self.post_message(Ended(error))

    def _look_at_terminal(self) -> None:
        """Leave where it is gone; and take its size, where the signal that tells of a new one got lost."""
        if terminal.is_gone():
            self.exit(128 + signal.SIGHUP)
            return
        size = terminal.size()
        if size and (self.size != size or self.screen.size != size):
            self.post_message(events.Resize(size, size))

    def on_new_tick(self) -> None:
        newest = self._history.newest
        if self._iterations and newest and newest.number >= self._iterations:
            self.exit(0)
        if self._view.paused_at_ns is None or self._picture is None:
            self._draw()
        else:
            latest = self._history.latest
            behind_ns = latest.at_ns - self._picture.newest.at_ns if latest else 0
            self._picture = replace(self._picture, behind_ns=behind_ns)
            self._draw_picture(self._picture, self._layout)

    def on_ended(self, message: Ended) -> None:
        if message.error is not None:
            self.failure = message.error
            self.exit(message.error.status if isinstance(message.error, OfftopError) else 1)
        elif self._history.newest:
            self._say("This is the end: there is nothing more to read. q quits.")

    def on_resize(self) -> None:
        self.call_later(self._draw)  # the app learns its new size only after this

    def on_screen_resume(self) -> None:
        self._draw()

    @property
    def _layout(self) -> Layout:
        return arrange(self.size.width, self.size.height, in_thread=self._view.thread is not None)

    def _reach(self) -> str:
        return f"{span(round(self._history.reach_ns, -9))} back, in {size(self._history.bytes_held)}"

    def _look(self, view: View) -> None:
        """The next view, drawn."""
        self._view = view
        self._draw()

    def _draw(self) -> None:
        if len(self.screen_stack) > 1 or not self._head.is_mounted:
            return
        layout = self._layout
        self._picture = self._pictures.of(self._view, layout.room)
        self._give_room(layout)
        if self._picture is None:
            self._head.show([plain(fit("offtop: reading for the first time", layout.width, self._glyphs), "dim")])
            return
        self._draw_picture(self._picture, layout)

    def _give_room(self, layout: Layout) -> None:
        for panel, lines in (
            (self._head, layout.head),
            (self._table, layout.categories),
            (self._list, layout.rows),
            (self._places, layout.places),
            (self._alert_line, 0 if self._answered else layout.alert),
            (self._key_bar, layout.keys),
        ):
            if panel.styles.height is None or panel.styles.height.value != lines:
                panel.styles.height = lines
            panel.display = lines > 0

    def _draw_picture(self, picture: Picture, layout: Layout) -> None:
        names, glyphs = self._source.names, self._glyphs
        if not layout.categories:
            self._head.show(head.one_line(picture, layout, glyphs))
            return
        self._head.show(head.head(picture, self._source.host, layout, glyphs))
        self._table.show(tables.categories(picture, layout, glyphs)[: layout.categories])
        if layout.rows:
            self._list.show(tables.rows(picture, names, layout, glyphs)[: layout.rows])
        if layout.places:
            self._places.show(tables.places(picture, names, layout, glyphs)[: layout.places])
        self._alert_line.show([self._alert_text(layout)])
        if layout.keys:
            self._key_bar.show([_key_bar(layout.width)])

    def _alert_text(self, layout: Layout) -> Line:
        if self._alert:
            return plain(fit(self._alert, layout.width, self._glyphs), "alert")
        category = self._view.category
        said = f"{category}: {self._categories.plain.get(category, '')}" if category != ALL else _WHAT_ALL_IS
        return plain(fit(whole_sentences(" ".join(said.split()), layout.width), layout.width, self._glyphs), "dim")

    def _say(self, text: str) -> None:
        """On the alert line, until the next key or for a while."""
        self._alert = text
        self.set_timer(_ALERT_SECONDS, lambda: self._unsay(text))
        if self._picture:
            self._draw_picture(self._picture, self._layout)

    def _unsay(self, text: str) -> None:
        if self._alert == text:
            self._alert = ""
            self._draw()

    # Keys

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key):
            self._alert = ""
        await super().on_event(event)

    def on_key(self, event: events.Key) -> None:
        if len(self.screen_stack) > 1 or self._answered or event.key in _BOUND:
            return
        shown = event.character if event.is_printable and event.character else event.key
        self._say(f"no action on {shown!r}; ? for help")

    def action_focus_next(self) -> None:
        self.action_other_pane()

    def action_focus_previous(self) -> None:
        self.action_other_pane()

    def action_other_pane(self) -> None:
        if not self._answered:
            self._look(views.other_pane(self._view))

    def _move_to(self, index_of: Callable[[int, int], int]) -> None:
        """Move the cursor; `index_of` gives the new index for the present one and the last."""
        picture, view = self._picture, self._view
        if picture is None:
            return
        keys: list[Key] = [row.key for row in picture.rows.rows]
        if not view.in_list:
            keys = [ALL, *(row.key for row in picture.categories.rows)]
        if not keys:
            return
        index = keys.index(view.category) if not view.in_list and view.category in keys else picture.cursor_row
        if not view.in_list and view.category not in keys:
            index = 0
        key = keys[max(0, min(len(keys) - 1, index_of(index, len(keys) - 1)))]
        if not view.in_list:
            self._look(views.at_category(view, str(key)))
        elif view.thread is not None:
            self._look(views.entered(view, key))
        else:
            self._look(views.at_row(view, key))

    def action_move(self, step: int) -> None:
        self._move_to(lambda index, _: index + step)

    def action_page(self, pages: int) -> None:
        layout = self._layout
        lines = max(1, (layout.rows if self._view.in_list else layout.categories) - 3)
        self._move_to(lambda index, _: index + pages * lines)

    def action_first(self) -> None:
        self._move_to(lambda _, last: 0)

    def action_last(self) -> None:
        self._move_to(lambda _, last: last)

    def _key_under_cursor(self) -> Key | None:
        picture = self._picture
        if picture is None or not picture.rows.rows:
            return None
        return picture.rows.rows[picture.cursor_row].key

    def action_enter(self) -> None:
        self._look(views.entered(self._view, self._key_under_cursor()))

    def action_leave(self) -> None:
        if self._answered:
            self._stop_asking()
        else:
            self._look(views.left(self._view))

    def action_threads(self) -> None:
        self._look(views.threads_or_processes(self._view))

    def action_pause(self) -> None:
        if self._picture is not None:
            self._look(views.paused(self._view, self._picture.newest.at_ns))

    def action_span(self) -> None:
        self._look(views.next_span(self._view))

    def action_idle(self) -> None:
        self._look(views.idle_or_not(self._view))

    def action_sort(self, sort: str) -> None:
        self._look(views.sorted_by(self._view, sort))

    def action_next_sort(self, step: int) -> None:
        self._look(views.next_sort(self._view, step))

    def action_reverse(self) -> None:
        self._look(views.reversed_order(self._view))

    def action_pin(self) -> None:
        key = self._view.thread or (self._key_under_cursor() if self._view.in_list else self._view.pin)
        if isinstance(key, int | ThreadKey) and key not in (EXITED, EXITED.pid):
            before = self._view.asked
            self._ask_kernel(views.pinned(self._view, key), before)
        else:
            self._say("p pins a process or thread: TAB goes to their list")

    def action_narrow(self) -> None:
        if self._view.pin is None:
            self._say("F lets the kernel count only the pin, and nothing is pinned: p pins")
            return
        self._ask_kernel(views.narrowed_or_widened(self._view), self._view.asked)
        if self._view.narrowed:
            self._say("only the pin is counted from now on; F counts all again")

    def _ask_kernel(self, view: View, before: object) -> None:
        """Go to `view`, if the source will count what it asks for."""
        try:
            if view.asked != before:
                self._source.set_filters(view.asked)
        except OfftopError as refused:
            self._say(str(refused))
            return
        self._look(view)

    def action_delay(self) -> None:
        now = span(self._view.delay_ns)
        self._ask(f"seconds between two readings, 0.1 to 60 (now {now}): ", self._set_delay)

    def _set_delay(self, text: str) -> str | None:
        try:
            view = views.with_delay(self._view, parse_duration(text.strip(), NS_PER_S))
        except ValueError:
            return f"{text!r} is no delay from 0.1 to 60 s: try 2, 0.5 or 500ms"
        self._pace.set_delay(view.delay_ns)
        self._look(view)
        return None

    def action_minimum(self) -> None:
        now = span(self._view.filters.min_ns)
        self._ask(f"take stacks of waits from this length on (now {now}): ", self._set_minimum)

    def _set_minimum(self, text: str) -> str | None:
        try:
            min_ns = parse_duration(text.strip(), _NS_PER_MS)
        except ValueError:
            return f"{text!r} is no length of time: try 200us, 1ms or 0; a bare number is milliseconds"
        self._ask_kernel(views.with_minimum(self._view, min_ns), self._view.asked)
        return None

    def _ask(self, question: str, answered: Callable[[str], str | None]) -> None:
        """Ask on the alert line; `answered` does what the answer says, or tells what is wrong with it."""
        if self._layout.alert == 0:
            return
        self._answered = answered
        self._show_question(question)
        self._answer.value = ""
        self._answer.disabled = False
        self.query_one("#asking").display = True
        self._answer.focus()
        self._draw()

    def _show_question(self, question: str) -> None:
        line = plain(fit(question, min(len(question), max(1, self.size.width - 8)), self._glyphs), "alert")
        self._question.styles.width = width_of(line.spans)
        self._question.show([line])

    def on_input_submitted(self, message: Input.Submitted) -> None:
        if self._answered is None:
            return
        wrong = self._answered(message.value) if message.value.strip() else None
        if wrong is None:
            self._stop_asking()
        else:
            self._show_question(f"{wrong}: ")
            self._answer.value = ""

    def _stop_asking(self) -> None:
        self._answered = None
        self._answer.disabled = True
        self.query_one("#asking").display = False
        self.set_focus(None)
        self._draw()

    def action_help(self) -> None:
        about = [("theme", self.theme), *[*self._source.about(), ("history", self._reach())]]
        self.push_screen(Help(self._categories.ids, self._categories.plain, about, self._glyphs))

    def action_redraw(self) -> None:
        self.screen.refresh(layout=True)

    def _resumed(self, _: object) -> None:
        self.action_redraw()

    def action_leave_offtop(self) -> None:
        if len(self.screen_stack) > 1:
            self.pop_screen()
        else:
            self.exit(0)


_BOUND = {key for row in KEYS for key in row.keys.split(",")}
_WHAT_ALL_IS = "WAITING: average number of waiting threads; 1.00 is one that waits all the time."


def _key_bar(width: int) -> Line:
    def fitting() -> Iterator[tuple[str, str]]:
        room = width
        for row in sorted((row for row in KEYS if row.bar), key=lambda row: row.bar not in ("? Help", "q Quit")):
            room -= len(row.bar) + 1
            if room >= -1:
                yield row.bar, row.action

    shown = {action for _, action in fitting()}
    spans: list[tuple[str, str]] = []
    for row in KEYS:
        if row.bar and row.action in shown:
            key, _, word = row.bar.partition(" ")
            spans += [(key, "key"), (f" {word} ", "dim")]
    return Line(tuple(spans))


def run(
    source: Source,
    view: View,
    categories: Categories,
    *,
    theme: str = "dark",
    ascii_only: bool = False,
    colour: bool = True,
    history_ns: int = HISTORY_NS,
    iterations: int | None = None,
) -> int:
    """Show `source` until the person quits, or for `iterations` ticks; the exit status.

    Raises what the source raised, once the terminal is as it was. `colour` is False for --color never; NO_COLOR
    says the same. `history_ns`: how far back is kept, as far as its bytes go.
    """
    if os.environ.pop("NO_COLOR", None) or not colour:
        theme = "mono"
    gc.set_threshold(_ROWS_OF_GARBAGE, 20, 100)
    app = OfftopApp(
        source,
        view,
        categories,
        theme_name=theme,
        ascii_only=ascii_only or not terminal.speaks_utf8(),
        history_ns=history_ns,
        iterations=iterations,
    )
    status = app.run(mouse=False)
    if app.failure is not None:
        raise app.failure
    return app.return_code or 0 if status is None else status
