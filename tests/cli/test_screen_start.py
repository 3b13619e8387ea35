"""How the screen starts: with the options given, and with the colours, mouse and characters of the terminal."""

import re
from pathlib import Path

import pytest

from tests import command
from tests.cli.terminal_screen import screen

_MOUSE_ON = b"\x1b[?1000h"
_COLOUR = re.compile(rb"\x1b\[[0-9;]*[34]8;")
_F12 = b"\x1b[24~"
_DEMO = "demo", "--speed", "20", "-n"
"""Shows the demo for so many ticks. It chooses its screen like the live command, and starts with less CPU time."""


@pytest.mark.kernel
def test_missing_theme_is_refused_before_the_screen_opens() -> None:
    ended = command.run_on_terminal("--theme", "nosuch", env={"TERM": "xterm-256color"})
    assert ended.status == 2
    assert re.fullmatch(r"offtop: There is no theme 'nosuch'[^\n]+\n", ended.err)
    assert ended.screen == b""


def test_screenshot_is_written_to_the_working_directory(tmp_path: Path) -> None:
    with screen("demo", cwd=tmp_path) as shown:
        shown.press(_F12)
        shown.wait_for("written to offtop-")
        assert shown.quit() == 0
    (picture,) = tmp_path.glob("offtop-*.svg")
    assert picture.read_text().startswith("<svg")


@pytest.mark.kernel
def test_screen_starts_with_the_command_line_options(tmp_path: Path) -> None:
    with screen("--window", "1s", "-u", "games", "--filter", "comm=nosuch", cwd=tmp_path) as shown:
        for text in ("window 1s", 'matches "comm=nosuch user=games"'):
            shown.press(b"\x0c")  # redraw
            shown.wait_for(text)
        assert shown.quit() == 0


@pytest.mark.parametrize(
    ("arguments", "no_color", "colours"),
    [
        ("", "", True),
        ("", "1", False),
        ("--color always", "1", True),
        *(
            pytest.param(*one, marks=pytest.mark.variant)
            for one in (("--color never", "", False), ("--theme light", "1", False))
        ),
    ],
)
def test_color_option_overrides_NO_COLOR(  # noqa: N802
    arguments: str, no_color: str, colours: bool
) -> None:
    ended = command.run_on_terminal(*_DEMO, "1", *arguments.split(), env={"NO_COLOR": no_color})
    assert ended.status == 0
    assert bool(_COLOUR.search(ended.screen)) == colours


def test_mouse_is_enabled_unless_disabled(no_settings: Path) -> None:
    assert _MOUSE_ON in command.run_on_terminal(*_DEMO, "1").screen
    assert _MOUSE_ON not in command.run_on_terminal(*_DEMO, "1", "--no-mouse").screen
    no_settings.write_text("mouse = false")
    assert _MOUSE_ON not in command.run_on_terminal(*_DEMO, "1").screen


def test_screen_shows_the_last_tick_before_it_ends() -> None:
    shown = command.run_on_terminal("demo", "--speed", "1000", "-n", "1")
    assert b"WAITING" in shown.screen


def test_linux_console_gets_ascii() -> None:
    utf8 = {"PYTHONUTF8": "1", "LC_ALL": "C.UTF-8"}
    assert not command.run_on_terminal(*_DEMO, "2", env=utf8).screen.isascii()
    assert command.run_on_terminal(*_DEMO, "2", env={**utf8, "TERM": "linux"}).screen.isascii()
