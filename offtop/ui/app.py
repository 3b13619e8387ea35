"""The Textual app.

Keys produce the next View, ticks and keys the next Picture, and panels draw it.

A polling thread reads the source at its own pace, independently of the screen. It posts a NewTick message for each
tick; a newer message replaces one that is still queued.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import Thread
from time import monotonic_ns
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.command import CommandPalette
from textual.message import Message
from textual.screen import ModalScreen

from offtop.errors import OfftopError, warn
from offtop.feed.outlier_actions import OutlierActions
from offtop.feed.source import Source
from offtop.model.classify.categories import Categories
from offtop.model.classify.causes import WITHOUT_RULES, RuleSource
from offtop.model.classify.suspect_weights import Weights
from offtop.model.viewmodel import panes
from offtop.model.viewmodel.picture import Picture
from offtop.model.viewmodel.view import View
from offtop.model.windows.history import HISTORY_NS
from offtop.ui.actions.alert import AlertLine
from offtop.ui.actions.controllers import Controllers
from offtop.ui.actions.display import Answer
from offtop.ui.actions.files import Files, NoFiles, Recorder
from offtop.ui.actions.session import Session
from offtop.ui.kit import terminal
from offtop.ui.kit.board import Board
from offtop.ui.kit.keys import BINDINGS, KEYS
from offtop.ui.kit.layout import Layout, arrange
from offtop.ui.kit.lines import Clicked, Line, Pen, fit, plain
from offtop.ui.kit.palette import Actions as PaletteActions
from offtop.ui.kit.terminal_app import TerminalApp
from offtop.ui.panes import head
from offtop.ui.panes.help import Help
from offtop.ui.panes.key_bar import key_bar
from offtop.ui.panes.stack_problems import StackProblems
from offtop.ui.panes.suspects import Suspects
from offtop.units import NS_PER_S, span

_ALERT_SECONDS = 6.0
_BEHIND_SECONDS = 0.25
_FROZEN_NS = 3 * NS_PER_S
"""A delay this long is reported: the terminal did not read, or offtop was suspended."""
_PALETTE_LINES = 8
"""Least screen height for Textual's command palette, which fails if its list has no line."""


class NewTick(Message):
    """The history has a new tick."""

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, NewTick)


class SourceEnded(Message):
    """There will be no more ticks: the source ended or failed."""

    def __init__(self, error: BaseException | None) -> None:
        super().__init__()
        self.error = error


class OfftopApp(TerminalApp):
    BINDINGS: ClassVar[list[BindingType]] = BINDINGS
    COMMANDS = {PaletteActions}  # noqa: RUF012  # Textual's type

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
        keymap: Mapping[str, str] | None = None,
        files: Files | None = None,
        mouse: bool = False,
        recorder: Recorder | None = None,
        rules: RuleSource = WITHOUT_RULES,
        outlier_actions: OutlierActions | None = None,
        pause_at_ns: int | None = None,
        weights: Weights | None = None,
        is_first_start: bool = False,
    ) -> None:
        """`iterations`: the app ends after so many ticks. `history_ns`: length of the history, which its memory limit
        may shorten. `outlier_actions`: None if the outliers come from a recording. `pause_at_ns`: time in a recording
        at which the screen is paused at first (CLOCK_REALTIME). `weights`: of suspects; None: do not look for any.
        `is_first_start`: tell the keys to begin with.
        """
        super().__init__(theme_name, ascii_only, mouse)
        self.chosen_keys: Mapping[str, str] = keymap or {}
        self.set_keymap(dict(self.chosen_keys))
        self._bound = frozenset(key for row in KEYS for key in self.chosen_keys.get(row.id, row.keys).split(","))
        self.session = Session(source, categories, rules, view, history_ns, outlier_actions, weights)
        self._source, self._history, self._pace = source, self.session.history, self.session.pace
        self._poll = Thread(target=self._read, name="offtop-poll", daemon=True)
        self._iterations = iterations
        self._seen = 0
        """Number of ticks so far, without those that lead up to a seek target."""
        self._files = files or NoFiles()
        self.view = panes.with_triggers(view, outlier_actions.texts) if outlier_actions else view
        self.picture: Picture | None = None
        """The picture on the screen; None before the first tick."""
        self._category_rows_and_cost_line: tuple[int | None, bool] = None, False
        """How many categories there are (None before the first picture), and whether the head needs a cost line."""
        self._drawn_versions = (0, 0)
        """`Session.versions` when the screen was last drawn."""
        self._ticked_ns = 0
        """CLOCK_MONOTONIC when the last tick was drawn."""
        self._interruption = ""
        """Why there are no new ticks; empty: they come."""
        self._is_over = False
        """Whether the source has ended."""
        self._alert_line = AlertLine(self, self.session, is_first_start)
        self.controllers = Controllers(self, self.session, self._files, recorder, pause_at_ns, self.chosen_keys)
        self._actions = {
            **self.controllers.actions(),
            "back": self._go_back,
            "reset": self._reset,
            "write": self._save_settings,
            "redraw": self._redraw,
            "suspend": self.action_suspend_process,
            "quit": self.leave_overlay_or_quit,
            "interrupt": self.leave_overlay_or_quit,
        }
        self._drawings: Mapping[str, Callable[[Picture, Layout], Sequence[Line]]] = {
            "head": self._head_lines,
            "suspects": lambda _, __: self._suspect_lines(),
            **{name: pane.lines for name, pane in self.controllers.panes.by_name.items()},
            **{name: partial(self._border_lines, name) for name in ("border", "border-low")},
            "alert": self._alert_line.lines,
            "keys": lambda picture, layout: [key_bar(picture.common, layout, self.chosen_keys)],
        }
        """Function that draws each panel, by its id."""
        self._board = Board(self._drawings)

    def open_overlay(self, overlay: ModalScreen[None]) -> None:
        self.push_screen(overlay)

    def run_later(self, function: Callable[[], None]) -> None:
        if self.is_running:
            self.call_later(function)

    def compose(self) -> ComposeResult:
        yield from self._board.panels.values()
        yield self._prompt

    def on_mount(self) -> None:
        self._watch_terminal()
        if self._source.is_elsewhere and not self._source.recorded:
            self.set_interval(1.0, self._show_interruption)
        self._draw()
        if self._source.notices:
            self.show_alert(" ".join(self._source.notices))
        self._poll.start()

    def on_unmount(self) -> None:
        self._pace.stop()
        if self._source.is_elsewhere:
            self._source.close()  # it may be waiting for its next tick
        if self._poll.is_alive():
            self._poll.join(timeout=2.0)

    def _read(self) -> None:
        """Read ticks until the pace is stopped. Runs in the polling thread; `run` raises its error again."""
        error: BaseException | None = None
        try:
            for _ in self._pace.ticks():
                self._seen += not self.controllers.rewind.is_seeking
                self.post_message(NewTick())
        except BaseException as raised:
            error = raised
        self.post_message(SourceEnded(error))

    def _show_interruption(self) -> None:
        """Say why no ticks come, and for how long; the picture stays."""
        before, self._interruption = self._interruption, self._source.interruption
        if self.picture and self._interruption != before and not isinstance(self.screen, Help):
            self._draw_picture(self.picture, self.layout)

    def on_new_tick(self) -> None:
        self._interruption = self._source.interruption
        newest = self._history.newest
        if newest and self._iterations and self._seen >= self._iterations:
            self.call_after_refresh(self.exit, 0)  # only after the screen has shown a tick
        if isinstance(self._driver, terminal.TerminalDriver) and self._driver.is_behind:
            self.set_timer(_BEHIND_SECONDS, partial(self.post_message, NewTick()))
            return  # the later drawing includes this tick
        self.controllers.recording.stop_if_failed()
        if not self.controllers.rewind.finish_seek() or self.controllers.rewind.is_seeking:
            return
        self.controllers.outlier_alerts.announce_new()
        drawn, last_ns = self.picture, self._ticked_ns
        self._ticked_ns = monotonic_ns()
        if self.view.paused_at_ns is None or drawn is None:
            self._draw()
        else:
            latest = self._history.latest
            behind_ns = latest.at_ns - drawn.common.newest.at_ns if latest else 0
            if self._drawn_versions != self.session.versions:
                self._draw()
            shown = self.picture or drawn
            self.picture = replace(shown, head=replace(shown.head, behind_ns=behind_ns))
            self._draw_picture(self.picture, self.layout)
        late_ns = self._ticked_ns - last_ns
        is_frozen = last_ns and not self._source.is_elsewhere and late_ns > max(_FROZEN_NS, 3 * self.view.delay_ns)
        if is_frozen and not self._alert_line.alert:  # an outlier that was announced meanwhile stays
            delay = span(round(late_ns, -9))
            self.show_alert(f"the screen did not update for {delay}; measuring continued")

    def on_source_ended(self, message: SourceEnded) -> None:
        if message.error is not None:
            self.failure = message.error
            self.exit(message.error.status if isinstance(message.error, OfftopError) else 1)
            return
        recorded = self._source.recorded is not None
        if self._history.newest is None:
            what = "This recording is empty" if recorded else "All measured processes have exited"
            self.failure = OfftopError(f"{what}: there is no tick to show")
            self.exit(self.failure.status)
            return
        self._is_over = True
        what = "This is the end of the recording" if recorded else "All measured processes have exited"
        self.show_alert(f"{what}: [ goes back, q quits.")

    def on_resize(self, event: events.Resize) -> None:
        if event.size.height < _PALETTE_LINES and isinstance(self.screen, CommandPalette):
            self.close_overlay()
        super().on_resize(event)

    @property
    def layout(self) -> Layout:
        return self.layout_of(self.view)

    def layout_of(self, view: View) -> Layout:
        newest = self._history.newest
        within = bool(newest.header.filters.within if newest else view.filters.within)
        needs = len(self._suspect_lines()), *self._category_rows_and_cost_line
        return arrange(*self.size, view, within, *needs)

    def _suspect_lines(self) -> list[Line]:
        return self.controllers.suspect_report.lines(self.size.width, self.size.height)

    def set_view(self, view: View) -> None:
        if view.delay_ns != self.view.delay_ns:
            self._pace.set_delay(view.delay_ns)
        if (view.paused_at_ns is None) != (self.view.paused_at_ns is None):
            self._source.hold(view.paused_at_ns is not None)
        self.view = view
        self.controllers.modes.follow(view)
        self._draw()

    def _draw(self) -> None:
        if not self.screen_stack:  # a thread's answer came while the app exits
            return
        if (
            isinstance(self.screen, Help)
            or not self._board.panels["head"].is_mounted
            or self.controllers.rewind.is_seeking
        ):
            return
        layout, self._drawn_versions = self.layout, self.session.versions
        self.picture = self.session.pictures.of(self.view, layout.room)
        if self.picture:
            categories = self.picture.categories.ranking
            rows = len(categories.rows) + (categories.elided is not None)
            self._category_rows_and_cost_line = rows, head.needs_cost_line(self.picture.head, self.picture.common)
            if (fitting := self.layout).room != layout.room:
                self.picture = self.session.pictures.of(self.view, fitting.room)
            layout = fitting
        self._place(layout)
        if self.picture is None:
            reading = fit("offtop: reading for the first time", layout.width, self.glyphs)
            self._board.panels["head"].show([plain(reading, "dim")])
            return
        self.view = self.picture.common.view
        self.controllers.lookups.request(self.picture)
        self._draw_picture(self.picture, layout)
        if isinstance(self.screen, StackProblems | Suspects) and self.screen.is_mounted:
            self.screen.draw()

    def _place(self, layout: Layout) -> None:
        """Move and resize the panels and the prompt."""
        prompt_panel = "alert" if "alert" in layout.panels else "head"
        self._board.place(layout, prompt_panel if self._prompt.is_open else "")
        self._prompt.styles.offset = 0, layout.panels[prompt_panel].y

    def pen(self, panel: str) -> Pen:
        return Pen(*self._board.size(panel), self.glyphs, self._source.names)

    def _draw_picture(self, picture: Picture, layout: Layout) -> None:
        for name in layout.panels:
            self._board.show(name, self._drawings[name](picture, layout), layout)

    def _head_lines(self, picture: Picture, layout: Layout) -> list[Line]:
        recorded, written = self._source.recorded, self.controllers.recording.bytes_written
        if len(layout.panels) == 1:
            is_held = bool(self._interruption)
            return head.one_line(picture.head, picture.common, layout, recorded is not None, is_held)
        return head.head(
            picture.head,
            picture.common,
            self._source.host,
            layout,
            self.glyphs,
            recorded,
            written,
            self._is_over,
            bool(self._interruption),
        )

    def _border_lines(self, name: str, picture: Picture, layout: Layout) -> list[Line]:
        return [plain(self.glyphs.edge, "border")] * layout.panels[name].height

    def show_alert(self, text: str) -> None:
        """Show `text` on the alert line until the next key, or for a few seconds."""
        self._alert_line.alert = text
        self.set_timer(_ALERT_SECONDS, lambda: self._clear_alert(text))
        if self.picture:
            self._draw_picture(self.picture, self.layout)

    def _clear_alert(self, text: str) -> None:
        if self._alert_line.alert == text:
            self._alert_line.alert = ""
            self._draw()

    def on_clicked(self, event: Clicked) -> None:
        if not self.has_overlay:
            self.controllers.mouse.click(event)

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key):
            self._alert_line.clear()
            if not event.is_forwarded and not self.has_overlay and await self._run_key(event):
                return
            if not event.is_forwarded and isinstance(self.screen, Help) and await self.screen.take(event):
                return
        if isinstance(event, events.Paste) and not event.is_forwarded and self._prompt.is_open:
            self._prompt.paste(event.text)
            return
        if isinstance(event, events.Paste) and not event.is_forwarded and isinstance(self.screen, Help):
            self.screen.paste(event.text)
            return
        await super().on_event(event)

    def action_focus_next(self) -> None:
        self._focus_pane(1)

    def action_focus_previous(self) -> None:
        self._focus_pane(-1)

    def _focus_pane(self, step: int) -> None:
        if not self._prompt.is_open and not self.has_overlay:
            self.controllers.navigation.focus_pane(step)

    def _go_back(self) -> None:
        if self._prompt.is_open:
            self._prompt.drop()
            self._draw()
        else:
            self.controllers.navigation.leave()

    def _reset(self) -> None:
        self._history.reset()
        self._draw()
        self.show_alert("cumulative numbers (T, and w) are reset")

    def ask(self, question: str, answered: Answer, now: str = "", typed: Callable[[str], None] | None = None) -> None:
        """Ask on the alert line, or on the head if the screen has only one line."""
        self._prompt.ask(question, answered, now, typed)
        self._draw()

    def _save_settings(self) -> None:
        try:
            self.show_alert(self._files.save_settings(self.view, self.theme, self.uses_mouse))
        except OfftopError as refused:
            self.show_alert(str(refused))

    def close_recordings(self) -> str:
        """Finish recordings and clips; return messages about the results, or an empty string."""
        return "; ".join(filter(None, (self.controllers.clips.wait(), self.controllers.recording.finish())))

    def finish(self) -> None:
        if results := self.close_recordings():
            warn(f"offtop: {results}")

    def action_mouse(self) -> None:
        self.uses_mouse = not self.uses_mouse
        if isinstance(self._driver, terminal.TerminalDriver):
            self._driver.use_mouse(self.uses_mouse)
        self.show_alert("offtop uses the mouse" if self.uses_mouse else "the mouse selects text in the terminal")

    async def action_command_palette(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Open the palette, and wait until it is mounted: Textual fails if it is closed earlier."""
        if self.size.height < _PALETTE_LINES:
            self.show_alert("the palette needs more lines")
        elif not isinstance(self.screen, CommandPalette):
            await self.push_screen(CommandPalette())
