"""An error that nobody foresaw: one sentence, wherever it happens, and the rest goes on."""

import signal
import threading
import time
import weakref

import pytest

from offtop import cli, faults, watch
from offtop.ui import keeping
from tests.ui.scripted import SHOP, ScriptedSource
from tests.ui.shown import asynchronous, screen, shown, until
from tests.ui.test_export_keys import Written


def broken(*_: object, **__: object) -> int:
    raise KeyError("\x1b[2J")


def test_of_a_command_a_sentence_is_left_and_no_escape_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watch, "report", broken)
    with pytest.raises(SystemExit) as left:
        cli.main(["report", "a.offtop"])
    assert left.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("offtop: A fault of offtop ") and said.count("\n") == 1 and "\x1b" not in said
    assert "KeyError('\\x1b[2J') at cli.py:" in said.replace("\\\\", "\\")
    monkeypatch.setenv(faults.VERBOSE, "1")
    with pytest.raises(SystemExit):
        cli.main(["report", "a.offtop"])
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_of_a_thread_it_is_told_which() -> None:
    said: list[str] = []
    with faults.of_threads(lambda error, thread: said.append(faults.told(error, thread))):
        one = threading.Thread(target=broken, name="offtop-names")
        one.start()
        one.join()
    (sentence,) = said
    assert " in offtop-names: KeyError" in sentence
    assert threading.excepthook is threading.__excepthook__ or "of_threads" not in repr(threading.excepthook)


def test_a_ctrl_c_that_comes_in_a_callback_comes_again() -> None:
    class Gone:
        pass

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    before, one = signal.signal(signal.SIGINT, signal.default_int_handler), Gone()
    seen = weakref.ref(one, interrupted)
    try:
        with faults.of_callbacks(), pytest.raises(KeyboardInterrupt):
            del one
            time.sleep(20)
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen() is None


@asynchronous
async def test_the_screen_goes_on_when_writing_a_file_breaks() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keeping, "profile_of", broken)
        async with shown(ScriptedSource(SHOP, ticks=5), files=Written()) as (app, pilot):
            with faults.of_threads(app.tell_fault):
                await pilot.press("e", "enter")
                await until(lambda: "A fault of offtop" in screen(app)[-2])
            assert "in offtop-export: KeyError" in screen(app)[-2]
            await pilot.press("H")
            assert app.view.lists_threads
