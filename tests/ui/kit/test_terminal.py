"""On a real terminal, offtop restores the terminal however it ends, and the exit status says why."""

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from itertools import pairwise
from pathlib import Path

import pytest

from offtop.ui.kit.terminal import EXIT_SIGNALS, collected_signals
from tests.ui.terminal import ALTERNATE_OFF, ALTERNATE_ON, Terminal, forked, show, terminal

SMALL, LARGE = (80, 24), (160, 50)
NOTHING = (b"", b"CATEGORY")
OVERLAYS = {
    "nothing": NOTHING,
    "prompt": (b"d", b"seconds between ticks"),
    "palette": (b"\x10", b"Search for commands"),
    "chooser": (b"f", b"columns, panes, mutes"),
    "help": (b"?", b"offtop shows where every thread waits"),
}
"""Overlays: the key that opens each, and a text that it shows."""
_DELAY_S = 0.25
_STALL_S = 14.0


def opened(shown: Terminal, overlay: tuple[bytes, bytes]) -> None:
    key, shows = overlay
    shown.read_until(b"CATEGORY")
    if key:
        shown.press(key)
        shown.read_until(shows)


def with_each_open(check: Callable[[str], None]) -> None:
    """Run `check` with each of OVERLAYS, all at the same time."""

    def checked(overlay: str) -> None:
        try:
            check(overlay)
        except BaseException as failed:
            failed.add_note(f"with {overlay} open")
            raise

    with ThreadPoolExecutor(len(OVERLAYS)) as threads:
        assert [*threads.map(checked, OVERLAYS)] == [None] * len(OVERLAYS)


def ends_by_signal(number: signal.Signals, started: AbstractContextManager[Terminal], mouse: str, overlay: str) -> None:
    with started as shown:
        opened(shown, OVERLAYS[overlay])
        shown.process.send_signal(number)
        assert shown.status() == 128 + number
        shown.assert_sane()
        assert (b"\x1b[?1000h" in shown.drawn) == bool(mouse)


@pytest.mark.parametrize(
    ("number", "size", "mouse", "overlay"),
    [
        (signal.SIGTERM, LARGE, "", "nothing"),
        (signal.SIGHUP, LARGE, "--mouse", "prompt"),
        (signal.SIGINT, SMALL, "", "help"),
    ],
)
def test_signal_ends_offtop_and_restores_the_terminal(
    number: signal.Signals, size: tuple[int, int], mouse: str, overlay: str
) -> None:
    ends_by_signal(number, terminal(show(*mouse.split()), *size), mouse, overlay)


def test_sigterm_ends_offtop_with_any_overlay_open() -> None:
    with_each_open(lambda overlay: ends_by_signal(signal.SIGTERM, forked(["--mouse"]), "--mouse", overlay))


@pytest.mark.parametrize(
    ("key", "size"), [(b"q", SMALL), (b"\x03", LARGE), (b"\x11", SMALL)], ids=["q", "ctrl-c", "ctrl-q"]
)
def test_quit_key_ends_offtop_with_status_0(key: bytes, size: tuple[int, int]) -> None:
    with terminal(show("--mouse"), *size) as shown:
        opened(shown, NOTHING)
        shown.press(key)
        assert shown.status() == 0
        shown.assert_sane()


def test_mouse_enabled_by_hand_is_off_at_exit() -> None:
    with forked() as shown:
        opened(shown, OVERLAYS["palette"])
        assert b"\x1b[?1000h" not in shown.seen
        shown.press(b"mouse")
        shown.read_until(b"mouse")
        shown.look_on(1)
        shown.press(b"\r")
        shown.read_until(b"offtop uses the mouse")
        assert b"\x1b[?1000h" in shown.seen
        shown.press(b"q")
        assert shown.status() == 0
        shown.assert_sane()


def test_ctrl_z_restores_the_terminal_and_resuming_redraws() -> None:
    def check(overlay: str) -> None:
        with forked(["--mouse"], *(LARGE if overlay == "nothing" else SMALL)) as shown:
            opened(shown, OVERLAYS[overlay])
            shown.press(b"\x1a")
            shown.wait_until_stopped()
            shown.read_rest()
            shown.assert_sane()
            shown.forget()
            shown.process.send_signal(signal.SIGCONT)
            shown.read_until(ALTERNATE_ON)
            shown.read_until(OVERLAYS[overlay][1])
            shown.press(b"\x03\x03")  # the first closes the overlay
            assert shown.status() == 0
            shown.assert_sane()

    with_each_open(check)


def test_sigtstp_suspends_too() -> None:
    with forked([], *LARGE) as shown:
        opened(shown, NOTHING)
        shown.process.send_signal(signal.SIGTSTP)
        shown.wait_until_stopped()
        shown.read_rest()
        shown.assert_sane()
        shown.forget()
        shown.process.send_signal(signal.SIGCONT)
        shown.read_until(b"CATEGORY")
        shown.process.send_signal(signal.SIGTERM)
        assert shown.status() == 143
        shown.assert_sane()


def test_sigterm_while_suspended_ends_offtop_without_drawing() -> None:
    """As with a shell's `kill %1`."""
    with forked([], *LARGE) as shown:
        opened(shown, NOTHING)
        shown.press(b"\x1a")
        shown.wait_until_stopped()
        shown.read_rest()
        shown.forget()
        shown.process.send_signal(signal.SIGTERM)
        shown.process.send_signal(signal.SIGCONT)
        assert shown.status() == 143
        shown.read_rest()
        assert shown.seen == b""
        shown.assert_sane()


@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "sigcont only"])
def test_sigstop_and_sigcont_redraw_and_the_terminal_is_restored_at_exit(stopped: bool) -> None:
    with forked([], *LARGE) as shown:
        opened(shown, NOTHING)
        for _ in range(2):
            if stopped:
                shown.process.send_signal(signal.SIGSTOP)
                shown.wait_until_stopped()
            shown.read_rest()
            shown.forget()
            shown.process.send_signal(signal.SIGCONT)
            shown.read_until(ALTERNATE_ON)
            shown.read_until(b"CATEGORY")
        shown.press(b"q")
        assert shown.status() == 0
        shown.assert_sane()


def test_closed_terminal_ends_offtop_even_if_sighup_is_ignored() -> None:
    def check(overlay: str) -> None:
        with forked() as shown:
            opened(shown, OVERLAYS[overlay])
            shown.hang_up()
            assert shown.status() == 129

    with_each_open(check)


@pytest.mark.parametrize("pause_s", [0.0, 0.02, 0.1, 0.3])
def test_signal_while_quitting_does_not_prevent_a_clean_exit(pause_s: float) -> None:
    for what in (signal.SIGTERM, signal.SIGHUP, None):
        with forked() as shown:
            opened(shown, NOTHING)
            shown.press(b"q")
            shown.look_on(pause_s)
            if what is None:
                shown.hang_up()
                assert shown.status() in (0, 129)
                continue
            with suppress(ProcessLookupError):
                os.kill(shown.pid, what)
            assert shown.status() in (
                0,
                128 + what,
                -what,
            )  # -what: it came after offtop had cleaned up
            shown.assert_sane()


def test_sigpipe_does_not_end_offtop() -> None:
    with forked(["--delay", "0.1"]) as shown:
        opened(shown, NOTHING)
        shown.process.send_signal(signal.SIGPIPE)
        shown.forget()
        shown.read_until(b"LIVE")
        shown.press(b"q")
        assert shown.status() == 0


def test_error_of_the_source_is_printed_after_restoring_the_terminal() -> None:
    with forked(["--fail"]) as shown:
        assert shown.status() == 4
        shown.assert_sane()
        end = shown.seen[shown.seen.rfind(ALTERNATE_OFF) :]
        assert b"the kernel took the probe away. Start offtop again" in end
        assert b"Traceback" not in shown.seen


def test_no_utf8_and_no_color_give_plain_ascii() -> None:
    with terminal(show(), PYTHONUTF8="0", LC_ALL="C", PYTHONCOERCECLOCALE="0", NO_COLOR="1") as shown:
        opened(shown, NOTHING)
        shown.look_on(1.5)
        shown.press(b"q")
        assert shown.status() == 0
        assert shown.seen.isascii()
        assert b"\\u" not in shown.seen
        assert b"38;" not in shown.seen
        assert b"48;" not in shown.seen


def test_resize_is_drawn_at_any_time() -> None:
    def check(overlay: str) -> None:
        with forked() as shown:
            opened(shown, OVERLAYS[overlay])
            for width, height in ((20, 4), LARGE, (1, 1), (60, 12), (90, 30)):
                shown.resize(width, height, signal=signal.SIGWINCH)
                shown.look_on(0.3)
            shown.forget()
            shown.resize(*LARGE)
            shown.read_until(b"\x1b[50;1H")
            if overlay == "palette":  # it closes itself on a screen without room for it, if it saw that size at all
                assert shown.wait_for(re.compile("CATEGORY|Search for commands"), 30)
            else:
                shown.read_until(OVERLAYS[overlay][1])
            shown.press(b"\x03\x03")
            assert shown.status() == 0
            shown.assert_sane()

    with_each_open(check)


def test_resize_without_sigwinch_is_drawn_too() -> None:
    with forked() as shown:
        opened(shown, NOTHING)
        shown.resize(*LARGE)
        shown.read_until(b"\x1b[50;1H")
        shown.press(b"q")
        assert shown.status() == 0


def test_stalled_terminal_does_not_delay_measuring_and_is_reported(tmp_path: Path) -> None:
    """`make bench` tests the whole 45 s."""
    reads = tmp_path / "reads"
    with terminal(show("--delay", str(_DELAY_S), "--reads", str(reads)), *LARGE) as shown:
        opened(shown, NOTHING)
        shown.look_on(8 * _DELAY_S)
        shown.stall(_STALL_S)
        shown.forget()
        shown.read_until(b"the screen did not update for ")
        shown.look_on(8 * _DELAY_S)
        newest, ended_ns = newest_reading(shown), time.monotonic_ns()
        shown.press(b"q")
        assert shown.status() == 0
        shown.assert_sane()
    read_ns: list[int] = json.loads(reads.read_text())
    # A reading that waited for the screen would have come as late as the whole stall.
    assert max(b - a for a, b in pairwise(read_ns)) < _STALL_S / 2 * 1e9
    assert len(read_ns) > _STALL_S / _DELAY_S / 2
    assert 0 <= ended_ns - read_ns[newest - 1] < _STALL_S / 2 * 1e9


def newest_reading(shown: Terminal) -> int:
    """Return the number of the newest reading drawn: each adds one second to 02:03:20."""
    hours, minutes, seconds = map(int, re.findall(r"(\d\d):(\d\d):(\d\d)  ", shown.text)[-1])
    return 3600 * hours + 60 * minutes + seconds - (2 * 3600 + 3 * 60 + 20)


def test_signals_during_startup_are_deferred_in_every_thread() -> None:
    over = threading.Event()
    other = threading.Thread(target=over.wait)
    other.start()
    before = [signal.getsignal(number) for number in EXIT_SIGNALS]
    sent = [signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    with collected_signals() as came:
        for number in sent:
            for send, to in ((os.kill, os.getpid()), (signal.pthread_kill, other.ident or 0)):
                least, end = len(came) + 1, time.monotonic() + 20
                send(to, number)
                # Wait, because the other thread may get no CPU for long and would find the old handlers by then.
                while len(came) < least and time.monotonic() < end:
                    time.sleep(0.001)
    over.set()
    other.join()
    assert came == [number for number in sent for _ in range(2)] and {*came} == {*EXIT_SIGNALS}
    assert [signal.getsignal(number) for number in EXIT_SIGNALS] == before
