"""What all screens of offtop share: an app that draws panels on a terminal which may disappear, and asks questions.

It ends on signals, suspends like any other program, and leaves the terminal as it was whatever happens.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from rich.console import RenderableType
from textual import events
from textual.app import App
from textual.screen import Screen

from offtop import faults
from offtop.ui.kit import terminal, theme
from offtop.ui.kit.glyphs import ASCII, UNICODE, Glyphs
from offtop.ui.kit.lines import exact
from offtop.ui.kit.prompt import Prompt

_DURING_A_QUESTION = ("back", "quit", "interrupt", "suspend")
"""Keys that work while a question is open."""
_AFTER_ESCAPE = dict(zip("¡™£¢∞§¶•ªº", "1234567890", strict=True))
"""What Textual makes of Escape and a digit that arrive together, from a fast hand or over a slow line."""


class TerminalApp(App[int]):
    CSS = f"""
    Screen {{ layout: vertical; overflow: hidden; background: $background; color: $foreground; }}
    Panel {{ background: $background; color: $foreground; }}
    .placed {{ position: absolute; }}
    {theme.TEXTUAL}
    """

    def __init__(self, theme_name: str, ascii_only: bool, mouse: bool) -> None:
        super().__init__(driver_class=terminal.TerminalDriver)
        self.action_theme(theme_name)
        self.animation_level = "none"
        self.glyphs: Glyphs = ASCII if ascii_only else UNICODE
        self.uses_mouse = mouse
        self.failure: BaseException | None = None
        """What ended the app; `run` raises it."""
        self.early_signals: Sequence[int] = ()
        """Termination signals received before the screen existed."""
        self._prompt = Prompt(self.glyphs)
        self._bound = frozenset[str]()
        """Keys that have an action."""
        self._actions: Mapping[str, Callable[[], None]] = {}
        """By the id of the key's row."""

    def _draw(self) -> None:
        """Draw everything again."""
        raise NotImplementedError

    def show_alert(self, text: str) -> None:
        """Show `text` until the next key, or for a few seconds."""
        raise NotImplementedError

    def finish(self) -> None:
        """Do what is left to do. Called once the terminal is restored."""

    @property
    def has_overlay(self) -> bool:
        return len(self.screen_stack) > 1

    def _watch_terminal(self) -> None:
        """End on signals, and when the terminal is gone. To be called once the app is mounted."""
        self.app_resume_signal.subscribe(self, self._redraw)  # pyright: ignore[reportUnknownMemberType]
        if self.is_headless:
            return
        loop = asyncio.get_running_loop()
        for number in terminal.EXIT_SIGNALS:
            loop.add_signal_handler(number, partial(self.exit, 128 + number))
        if self.early_signals:
            self.exit(128 + self.early_signals[0])
        self.set_interval(1.0, self._check_terminal)

    def _check_terminal(self) -> None:
        """Exit if the terminal is gone; otherwise pick up its size, in case SIGWINCH was lost."""
        if terminal.is_gone():
            self.exit(128 + signal.SIGHUP)
            return
        size = terminal.size()
        if size and (self.size != size or self.screen.size != size):
            self.post_message(events.Resize(size, size))

    def on_resize(self, event: events.Resize) -> None:  # as subclasses have it
        self.call_later(self._draw)  # the app learns its new size only after this

    def on_screen_resume(self) -> None:
        self._draw()

    def _display(self, screen: Screen[object], renderable: RenderableType | None) -> None:
        super()._display(screen, exact(renderable))  # pyright: ignore[reportUnknownMemberType]

    async def _run_key(self, event: events.Key) -> bool:
        """Handle a key at once; return whether it did anything.

        Textual would pass the key to the screen and read the next one before the screen acts. In a burst of keys,
        letters would then arrive before their question is open, and get lost.
        """
        if self._prompt.is_open and await self._prompt.take(event):
            if not self._prompt.is_open:
                self._draw()
            return True
        if digit := _AFTER_ESCAPE.get(event.character or ""):
            await self._run_key(events.Key("escape", None))
            return await self._run_key(events.Key(digit, digit))
        found = self.active_bindings.get(event.key)
        return found is not None and found.enabled and await self.run_action(found.binding.action, found.node)

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key) and not event.is_forwarded and self.has_overlay:
            digit = _AFTER_ESCAPE.get(event.character or "")
            if digit:
                self.close_overlay()
                self.post_message(events.Key(digit, digit))
                return
        await super().on_event(event)

    def on_key(self, event: events.Key) -> None:
        if self.has_overlay or self._prompt.is_open or not self._bound.isdisjoint((event.key, str(event.character))):
            return
        key = event.character if event.is_printable and event.character else event.key
        self.show_alert(f"no action on {key!r}; ? for help")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable key actions while a question is open: keys belong to its answer."""
        if self._prompt.is_open and action in ("perform", "command_palette"):
            return bool(parameters) and parameters[0] in _DURING_A_QUESTION
        return super().check_action(action, parameters)

    def action_perform(self, key: str) -> None:
        """Do what the keys of the row `key` are for."""
        self._actions[key]()

    def action_theme(self, name: str) -> None:
        """Switch to the theme. Raises UsageError if it does not exist."""
        if name not in self.available_themes:
            self.register_theme(theme.load(name))
        self.theme = name

    def close_overlay(self) -> None:
        """Close the overlay; a search of the palette that goes on without it would end the app."""
        self.workers.cancel_node(self.screen)  # pyright: ignore[reportUnknownMemberType]
        self.pop_screen()

    def leave_overlay_or_quit(self) -> None:
        if self.has_overlay:
            self.close_overlay()
        else:
            self.exit(0)

    def report_thread_error(self, error: BaseException, thread: str) -> None:
        """Report an error that ended another thread; the app goes on. Thread-safe."""
        self.call_later(self.show_alert, faults.error_text(error, thread))

    def _fatal_error(self) -> None:
        """Keep the error for `run`, which raises it once the terminal is restored.

        Textual would print a traceback.
        """
        self.failure = self._exception
        self._close_messages_no_wait()

    def leave_terminal(self) -> None:
        if isinstance(self._driver, terminal.TerminalDriver):
            self._driver.end()

    def _redraw(self, _: object = None) -> None:
        if self.screen_stack:  # a timer may call this while the app ends
            self.screen.refresh(layout=True)

    def action_suspend_process(self) -> None:
        """Stop the whole foreground process group, as the terminal does for ctrl-Z.

        That includes a make or sudo that started offtop.
        """
        if self._driver is not None and self._driver.can_suspend:
            self._suspend_signal()
            self._driver.suspend_application_mode()  # before the shell gets the terminal
            os.killpg(0, signal.SIGTSTP)


def run(app: TerminalApp) -> int:
    """Show the app until it ends; return the exit status. Raises what ended it, once the terminal is restored."""
    try:
        with faults.report_thread_errors(app.report_thread_error), terminal.collected_signals() as app.early_signals:
            status = app.run(mouse=app.uses_mouse)
    finally:
        app.leave_terminal()
        app.finish()
    if app.failure is not None:
        raise app.failure
    return app.return_code or 0 if status is None else status
