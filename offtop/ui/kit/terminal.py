"""The terminal may go away at any moment: then nothing waits for it, and offtop ends."""

import asyncio
import contextlib
import locale
import os
import select
import signal
import sys
from collections.abc import Generator
from typing import IO, TextIO

from rich.console import Console
from textual.app import App
from textual.drivers.linux_driver import LinuxDriver
from textual.geometry import Size

ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_LATER_S = 0.05
"""Signals that end offtop."""


class _Forgiving:
    """A file whose writes are dropped once it is gone: Textual's writer would die, and the screen wait for it."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self.is_taken = True
        """Whether the terminal has taken all that was written."""

    def write(self, text: str) -> None:
        self.is_taken = False
        try:
            self._file.write(text)
        except OSError:
            return

    def flush(self) -> None:
        """Textual flushes whenever it has nothing more to write."""
        try:
            self._file.flush()
        except OSError:
            return
        finally:
            self.is_taken = True

    def fileno(self) -> int:
        return self._file.fileno()

    def isatty(self) -> bool:
        return self._file.isatty()


class TerminalDriver(LinuxDriver):
    """Textual's own, but for a terminal that is gone: it neither hangs nor prints a traceback into nothing."""

    def __init__(
        self, app: App[int], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)  # pyright: ignore[reportUnknownMemberType]
        screen = screen_file() or self._file
        self._screen = _Forgiving(screen)
        self._is_left = True
        self._file: IO[str] = self._screen  # type: ignore[assignment]  # all that Textual uses of it

    @property
    def is_behind(self) -> bool:
        """Whether the terminal has not yet taken what was drawn: more would be late, and in the end wait for it."""
        return not self._screen.is_taken

    def start_application_mode(self) -> None:
        self._is_left = False
        super().start_application_mode()

    def stop_application_mode(self) -> None:
        if not self._is_left:
            try:
                super().stop_application_mode()
            finally:
                self._is_left = True

    def write(self, data: str) -> None:
        if not self._is_left:  # else nobody takes it, and too much of it would be waited for
            super().write(data)

    def disable_input(self) -> None:
        if not self._is_left:  # else there is none, and who asks the terminal from the background is stopped
            super().disable_input()

    def resume_application_mode(self) -> None:
        """By SIGCONT. A signal that ends offtop and comes with it, as of a shell's `kill %1`, goes first."""
        with contextlib.suppress(RuntimeError):  # the app has ended
            asyncio.get_running_loop().call_later(_LATER_S, self._come_back)

    def _come_back(self) -> None:
        if self._app._exit:  # pyright: ignore[reportPrivateUsage]
            return
        if self._is_in_background():
            os.kill(os.getpid(), signal.SIGSTOP)  # who brings it to the foreground sends another SIGCONT
            return
        if not self._is_left:
            # It was stopped from outside, or not at all. What it made of the terminal must not be taken for how that
            # was before, nor may two threads read from it.
            self.suspend_application_mode()
            self._must_signal_resume = True  # have the app draw all of it
        super().resume_application_mode()

    def _is_in_background(self) -> bool:
        try:
            return os.tcgetpgrp(self.fileno) != os.getpgrp()
        except OSError:  # no terminal that has jobs
            return False

    def end(self) -> None:
        """Whatever ended the app: the terminal is as it was, and no thread of the driver keeps the process alive."""
        for number in (signal.SIGTSTP, signal.SIGCONT):
            signal.signal(number, signal.SIG_DFL)
        with contextlib.suppress(OSError):
            self.stop_application_mode()
        self.exit_event.set()
        self.close()

    def use_mouse(self, on: bool) -> None:
        """Have the terminal tell of the mouse, or leave that to its own selecting of text."""
        self._mouse = on
        # The escape codes are Textual's own.
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
def ending_later() -> Generator[list[int]]:
    """Meanwhile signals that end offtop do no more than to be listed: while asyncio and Textual begin, a second ctrl-C
    would end them half-way. Not by a mask: another thread would take them for this one."""
    came: list[int] = []
    before = {number: signal.signal(number, lambda told, _: came.append(told)) for number in ENDING}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def is_gone() -> bool:
    """Whether the terminal behind stdin was closed."""
    stdin = sys.__stdin__
    if stdin is None:
        return True
    poll = select.poll()
    poll.register(stdin.fileno(), 0)
    return any(events & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, events in poll.poll(0))


def size() -> Size | None:
    """Of the terminal, now; None where it does not tell."""
    screen = screen_file()
    try:
        return Size(*os.get_terminal_size(screen.fileno())) if screen else None
    except OSError:
        return None


def screen_file() -> TextIO | None:
    """What the screen is drawn to: stderr, as Textual has it, unless that was redirected (`offtop 2>log`)."""
    return sys.__stderr__ if sys.__stderr__ and sys.__stderr__.isatty() else sys.__stdout__


def speaks_utf8() -> bool:
    """Whether what is written to the screen can be more than ASCII."""
    screen = screen_file()
    # Not the encoding alone: in the C locale Python writes UTF-8 that the terminal does not understand.
    if locale.getencoding().lower().replace("-", "") != "utf8":
        return False
    return screen is not None and screen.encoding.lower().replace("-", "") == "utf8"


def theme() -> str:
    """The theme for it where nobody chose one: its own 16 colours where it has no more."""
    return "ansi" if Console(file=screen_file(), force_terminal=True).color_system == "standard" else "dark"
