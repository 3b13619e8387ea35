"""An unexpected error is reported in one sentence wherever it happens, and everything else continues."""

import errno
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from unittest import mock

import pytest

from offtop import cli, faults
from offtop.commands import pages
from offtop.kernel.bpf import libbpf
from offtop.ui.actions import exports
from tests.ui.scripted import SHOP, ScriptedSource
from tests.ui.shown import asynchronous, screen, shown, until
from tests.ui.terminal import terminal
from tests.ui.test_export_keys import Written


def broken(*_: object, **__: object) -> int:
    raise KeyError("\x1b[2J")


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread"), OSError(errno.EAGAIN, "")])
def test_lack_of_memory_is_not_reported_as_a_bug(error: Exception) -> None:
    assert faults.error_text(error) == faults.OUT_OF_MEMORY
    assert faults.error_text(RuntimeError("another")).startswith("Internal error in offtop ")


def test_lack_of_memory_during_imports_prints_one_sentence() -> None:
    limited = 'ulimit -v 60000 && exec "$0" -m offtop -b -n 1'
    child = subprocess.run(["sh", "-c", limited, sys.executable], capture_output=True, text=True, timeout=60)
    assert child.returncode == 1
    assert child.stderr.startswith("offtop: ") and child.stderr.count("\n") == 1, child.stderr
    assert "ulimit -v" in child.stderr


def test_unexpected_error_in_a_command_prints_one_escaped_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pages, "report", broken)
    with pytest.raises(SystemExit) as left:
        cli.main(["report", "a.offtop"])
    assert left.value.code == 1
    output = capsys.readouterr().err
    assert output.startswith("offtop: Internal error in offtop ") and output.count("\n") == 1 and "\x1b" not in output
    assert "KeyError('\\x1b[2J') at cli.py:" in output.replace("\\\\", "\\")
    monkeypatch.setenv(faults.TRACEBACK_VARIABLE, "1")
    with pytest.raises(SystemExit):
        cli.main(["report", "a.offtop"])
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "The output cannot be written (No space left on device)."),
        (OSError(errno.EINVAL, "Invalid argument"), "Internal error in offtop "),
    ],
)
def test_only_errors_of_writing_blame_the_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: OSError, said: str
) -> None:
    monkeypatch.setattr(pages, "report", mock.Mock(side_effect=error))
    monkeypatch.setattr(cli, "_drop_output", mock.Mock())
    with pytest.raises(SystemExit) as left:
        cli.main(["report", "a.offtop"])
    assert left.value.code == 1
    assert capsys.readouterr().err.startswith(f"offtop: {said}")


def test_unexpected_error_in_a_thread_names_the_thread() -> None:
    reported: list[str] = []
    with faults.report_thread_errors(lambda error, thread: reported.append(faults.error_text(error, thread))):
        one = threading.Thread(target=broken, name="offtop-names")
        one.start()
        one.join()
    (sentence,) = reported
    assert " in offtop-names: KeyError" in sentence
    assert threading.excepthook is threading.__excepthook__ or "of_threads" not in repr(threading.excepthook)


def test_ctrl_c_in_a_callback_is_raised_again() -> None:
    class Gone:
        pass

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    before, one = signal.signal(signal.SIGINT, signal.default_int_handler), Gone()
    seen = weakref.ref(one, interrupted)
    try:
        with faults.report_callback_errors(), pytest.raises(KeyboardInterrupt):
            del one
            time.sleep(20)
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen() is None


def test_error_in_a_c_callback_is_raised_in_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        def ring_buffer__new(self, _fd: int, given: Callable[[int, int, int], int], *_: object) -> int:
            self.given = given
            return 1

        def ring_buffer__consume(self, _ring: int) -> int:
            return self.given(0, 0, 0)

    one = Library()
    monkeypatch.setattr(libbpf, "library", lambda: one)

    def add(_: bytes) -> None:
        broken()

    with pytest.raises(KeyError):
        libbpf.RingBuffer(0, add).consume()


def test_error_that_python_ignores_is_reported() -> None:
    class Gone:
        pass

    reported: list[str] = []
    one = Gone()
    seen = weakref.ref(one, broken)
    with faults.report_thread_errors(lambda error, _: reported.append(repr(error))), faults.report_callback_errors():
        del one
    assert (reported, seen()) == (["KeyError('\\x1b[2J')"], None)


def test_verbose_traceback_has_no_escape_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(faults.TRACEBACK_VARIABLE, "1")
    faults.print_error(ValueError("\x1b]0;evil\x07"))
    output = capsys.readouterr().err
    assert "ValueError" in output and "evil" in output and "\x1b" not in output and "\x07" not in output


BREAKS = """
from offtop import cli
from offtop.ui.app import OfftopApp
def breaks(*_): raise KeyError('\\x1b[2J')
OfftopApp.leave_overlay_or_quit = breaks
cli.main(['demo'])
"""


def test_error_in_a_key_action_prints_one_sentence_and_restores_the_terminal() -> None:
    with terminal([sys.executable, "-c", BREAKS], 80, 24) as shown:
        shown.read_until(b"CATEGORY")
        shown.press(b"q")
        assert shown.status() == 1
        shown.assert_sane()
        output = shown.drawn.decode(errors="replace")
    assert "offtop: Internal error in offtop " in output and "KeyError" in output
    assert "Traceback" not in output and "locals" not in output


@asynchronous
async def test_screen_continues_after_an_error_while_writing_a_file() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exports, "profile_of", broken)
        async with shown(ScriptedSource(SHOP, ticks=5), files=Written()) as (app, pilot):
            with faults.report_thread_errors(app.report_thread_error):
                await pilot.press("e", "enter")
                await until(lambda: "Internal error in offtop" in screen(app)[-2])
            assert "in offtop-export: KeyError" in screen(app)[-2]
            await pilot.press("H")
            assert app.view.lists_threads
