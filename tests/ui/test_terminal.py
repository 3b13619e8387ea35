"""On a real terminal: however offtop ends, the terminal is as it was, and the status says why."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path
from struct import pack
from termios import TIOCSWINSZ

import pytest

SHOW = Path(__file__).with_name("show.py")
ALTERNATE_ON, ALTERNATE_OFF, CURSOR_ON = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h"
MOUSE_ON = b"\x1b[?1000h"


class Terminal:
    """offtop on a pseudo-terminal of 80x24."""

    def __init__(self, *words: str, **environment: str) -> None:
        self.master, slave = pty.openpty()
        ioctl(slave, TIOCSWINSZ, pack("HHHH", 24, 80, 0, 0))
        self.seen = b""
        self.process = subprocess.Popen(
            [sys.executable, str(SHOW), *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "xterm-256color", "PYTHONUTF8": "1", **environment},
            start_new_session=True,
        )
        os.close(slave)

    def read_until(self, what: bytes, seconds: float = 30) -> None:
        end = time.monotonic() + seconds
        while what not in self.seen:
            assert time.monotonic() < end, self.seen[-2000:]
            self.read(0.05)

    def read(self, seconds: float) -> None:
        if self.master >= 0 and select.select([self.master], [], [], seconds)[0]:
            try:
                self.seen += os.read(self.master, 65536)
            except OSError:  # the other end is closed, and nothing is left
                return

    def read_rest(self) -> None:
        """A terminal hands over 4 KB at a time: all that was written until now."""
        before = None
        while before != len(self.seen):
            before = len(self.seen)
            self.read(0.3)

    def press(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def hang_up(self) -> None:
        os.close(self.master)
        self.master = -1

    def status(self, seconds: float = 30) -> int:
        end = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < end, "it does not end"
            if self.master < 0:
                time.sleep(0.05)
            self.read(0.05)
        self.read_rest()
        return self.process.returncode


@contextmanager
def terminal(*words: str, **environment: str) -> Generator[Terminal]:
    made = Terminal(*words, **environment)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.process.kill()
            made.process.wait()
        if made.master >= 0:
            os.close(made.master)


def assert_sane(seen: bytes) -> None:
    assert seen.rfind(ALTERNATE_OFF) > seen.rfind(ALTERNATE_ON) >= 0
    assert seen.rfind(CURSOR_ON) > seen.rfind(ALTERNATE_ON)
    assert MOUSE_ON not in seen


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)],
    ids=["TERM", "HUP", "INT"],
)
def test_a_signal_ends_it_with_the_terminal_as_it_was(number: int, status: int) -> None:
    with terminal() as shown:
        shown.read_until(b"CATEGORY")
        shown.process.send_signal(number)
        assert shown.status() == status
        assert_sane(shown.seen)


@pytest.mark.parametrize("key", [b"q", b"\x03", b"\x11"], ids=["q", "ctrl-c", "ctrl-q"])
def test_a_key_ends_it_with_status_0(key: bytes) -> None:
    with terminal() as shown:
        shown.read_until(b"CATEGORY")
        shown.press(key)
        assert shown.status() == 0
        assert_sane(shown.seen)


def test_ctrl_z_gives_the_terminal_back_and_going_on_draws_it_again() -> None:
    with terminal() as shown:
        shown.read_until(b"CATEGORY")
        shown.press(b"\x1a")
        _, status = os.waitpid(shown.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        shown.read_rest()
        assert_sane(shown.seen)
        shown.seen = b""
        shown.process.send_signal(signal.SIGCONT)
        shown.read_until(ALTERNATE_ON)
        shown.read_until(b"CATEGORY")
        shown.press(b"q")
        assert shown.status() == 0


def test_a_closed_terminal_ends_it_even_where_its_signal_is_ignored() -> None:
    with terminal() as shown:
        shown.read_until(b"CATEGORY")
        shown.hang_up()
        assert shown.status() == 129


def test_an_error_of_the_source_is_a_line_once_the_terminal_is_as_it_was() -> None:
    with terminal("--fail") as shown:
        assert shown.status() == 4
        assert_sane(shown.seen)
        end = shown.seen[shown.seen.rfind(ALTERNATE_OFF) :]
        assert b"the kernel took the probe away. Start offtop again" in end
        assert b"Traceback" not in shown.seen


def test_without_utf8_and_without_colour_there_is_neither() -> None:
    with terminal(PYTHONUTF8="0", LC_ALL="C", PYTHONCOERCECLOCALE="0", NO_COLOR="1") as shown:
        shown.read_until(b"CATEGORY")
        shown.read(1.5)
        shown.press(b"q")
        assert shown.status() == 0
        assert shown.seen.isascii()
        assert b"\\u" not in shown.seen
        assert b"38;" not in shown.seen
        assert b"48;" not in shown.seen


def test_a_resize_at_any_moment_is_drawn() -> None:
    with terminal() as shown:
        shown.read_until(b"CATEGORY")
        for height, width in ((4, 20), (50, 160), (1, 1), (12, 60), (30, 90)):
            ioctl(shown.master, TIOCSWINSZ, pack("HHHH", height, width, 0, 0))
            shown.process.send_signal(signal.SIGWINCH)
            shown.seen = b""
            shown.read(0.5)
        shown.read_until(b"CATEGORY")
        shown.press(b"q")
        assert shown.status() == 0


def test_a_resize_whose_signal_got_lost_is_drawn_too() -> None:
    with terminal() as shown:
        shown.read_until(b"CATEGORY")
        ioctl(shown.master, TIOCSWINSZ, pack("HHHH", 50, 160, 0, 0))
        shown.read_until(b"\x1b[50;1H")
        shown.press(b"q")
        assert shown.status() == 0
