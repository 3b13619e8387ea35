"""Terminal driver and helpers that cope with a terminal that disappears.

That can happen at any time. Nothing may block on it then, and offtop exits.
"""

import asyncio
import contextlib
import locale
import os
import select
import signal
import sys
from collections.abc import Generator
from typing import IO, NamedTuple, TextIO

from rich.console import Console
from textual.app import App
from textual.drivers.linux_driver import LinuxDriver
from textual.geometry import Size

EXIT_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
"""Signals that end offtop."""
_RESUME_DELAY_S = 0.05
"""Delay between SIGCONT and resuming, so that a termination signal sent with it is handled first."""


class _ErrorIgnoringFile:
    """A file that ignores write errors.

    An error would end Textual's writer thread, and the screen would block on it.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self.is_flushed = True
        """Whether the terminal has accepted everything written so far."""

    def write(self, text: str) -> None:
        self.is_flushed = False
        try:
            self._file.write(text)
        except OSError:
            return

    def flush(self) -> None:
        """Flush; Textual does so whenever it has nothing more to write."""
        try:
            self._file.flush()
        except OSError:
            return
        finally:
            self.is_flushed = True

    def fileno(self) -> int:
        return self._file.fileno()

    def isatty(self) -> bool:
        return self._file.isatty()


class TerminalDriver(LinuxDriver):
    """Textual's driver, made to survive a terminal that is gone: no hang and no traceback."""

    def __init__(
        self, app: App[int], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)  # pyright: ignore[reportUnknownMemberType]
        screen = screen_file() or self._file
        self._screen = _ErrorIgnoringFile(screen)
        self._is_released = True
        """Whether the screen was left, so that the terminal belongs to the shell."""
        self._file: IO[str] = self._screen  # type: ignore[assignment]  # has all the methods that Textual uses

    @property
    def is_behind(self) -> bool:
        """Whether the terminal has not accepted everything drawn so far.

        Further output would be late, and eventually block.
        """
        return not self._screen.is_flushed

    def start_application_mode(self) -> None:
        self._is_released = False
        super().start_application_mode()

    def stop_application_mode(self) -> None:
        if not self._is_released:
            try:
                super().stop_application_mode()
            finally:
                self._is_released = True

    def write(self, data: str) -> None:
        if not self._is_released:  # otherwise nothing drains the queue, and a full queue would block
            super().write(data)

    def disable_input(self) -> None:
        if not self._is_released:  # otherwise it is off already, and tcsetattr() would stop a background process
            super().disable_input()

    def resume_application_mode(self) -> None:
        """Handle SIGCONT: resume a little later.

        A termination signal that arrives together with it, as from a shell's `kill %1`, is handled first.
        """
        with contextlib.suppress(RuntimeError):  # the app has ended
            asyncio.get_running_loop().call_later(_RESUME_DELAY_S, self._resume_now)

    def _resume_now(self) -> None:
        if self._app._exit:  # pyright: ignore[reportPrivateUsage]
            return
        if self._is_in_background():
            # The shell sends another SIGCONT when it brings offtop to the foreground.
            os.kill(os.getpid(), signal.SIGSTOP)
            return
        if not self._is_released:
            # offtop was stopped without leaving the screen (SIGSTOP), or not at all. Leave it now: otherwise Textual
            # would save its own terminal settings as the original ones, and start a second input thread.
            self.suspend_application_mode()
            self._must_signal_resume = True  # so that the app redraws the whole screen
        super().resume_application_mode()

    def _is_in_background(self) -> bool:
        try:
            return os.tcgetpgrp(self.fileno) != os.getpgrp()
        except OSError:  # a terminal without job control
            return False

    def end(self) -> None:
        """Restore the terminal and stop the driver's threads, however the app ended."""
        for number in (signal.SIGTSTP, signal.SIGCONT):
            signal.signal(number, signal.SIG_DFL)
        with contextlib.suppress(OSError):
            self.stop_application_mode()
        self.exit_event.set()
        self.close()

    def use_mouse(self, on: bool) -> None:
        """Switch mouse reports on, or off so that the terminal can select text."""
        self._mouse = on
        # These methods write Textual's escape codes.
        if on:
            self._enable_mouse_support()
        else:
            LinuxDriver._disable_mouse_support(self)

    def run_input_thread(self) -> None:
        try:
            super().run_input_thread()
        except OSError:
            return


@contextlib.contextmanager
def collected_signals() -> Generator[list[int]]:
    """Collect termination signals in a list instead of handling them.

    While asyncio and Textual start, a second ctrl-C would end them half-way. A signal mask would not help, because
    another thread would receive the signals.
    """
    received: list[int] = []
    before = {number: signal.signal(number, lambda signum, _: received.append(signum)) for number in EXIT_SIGNALS}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def is_gone() -> bool:
    """Return whether the terminal behind stdin was closed."""
    stdin = sys.__stdin__
    if stdin is None:
        return True
    poll = select.poll()
    poll.register(stdin.fileno(), 0)
    return any(events & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, events in poll.poll(0))


def size() -> Size | None:
    """Return the current size of the terminal, or None if it is unknown."""
    screen = screen_file()
    try:
        return Size(*os.get_terminal_size(screen.fileno())) if screen else None
    except OSError:
        return None


def screen_file() -> TextIO | None:
    """Return the file that the screen is drawn to.

    It is stderr, as in Textual, unless that is redirected (`offtop 2>log`).
    """
    return sys.__stderr__ if sys.__stderr__ and sys.__stderr__.isatty() else sys.__stdout__


def supports_utf8() -> bool:
    """Return whether the screen can show characters beyond ASCII."""
    screen = screen_file()
    # The file's encoding is not enough: in the C locale Python writes UTF-8 that the terminal does not understand.
    if locale.getencoding().lower().replace("-", "") != "utf8":
        return False
    return screen is not None and screen.encoding.lower().replace("-", "") == "utf8"


def theme() -> str:
    """Return the default theme: one of the terminal's own 16 colours if it has no more."""
    return "ansi" if Console(file=screen_file(), force_terminal=True).color_system == "standard" else "dark"


class Look(NamedTuple):
    theme: str
    ascii_only: bool


def choose_look(theme_name: str = "", ascii_only: bool = False, color: str = "auto") -> Look:
    """Return how to draw on this terminal: with that theme (empty: one that it can show), and only ASCII if it must be.

    `color` is the value of --color. Call it before the app is made: it removes $NO_COLOR from the environment, because
    Textual would turn the colours of a theme into greys, while offtop has a theme without colours.
    """
    refuses_colour = bool(os.environ.pop("NO_COLOR", None)) and color != "always"
    is_plain = color == "never" or refuses_colour
    is_console = os.environ.get("TERM", "").startswith("linux")
    return Look("mono" if is_plain else theme_name or theme(), ascii_only or is_console or not supports_utf8())
