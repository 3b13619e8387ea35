"""W saves settings, F12 saves a picture, and y copies a row; each says what it did."""

from pathlib import Path

from offtop.errors import UsageError
from offtop.model.viewmodel.view import View
from tests.ui.fake_files import FakeFiles
from tests.ui.scripted import SHOP, ScriptedSource
from tests.ui.shown import asynchronous, screen, shown


class Refusing(FakeFiles):
    def save_settings(self, view: View, theme: str, mouse: bool) -> str:
        raise UsageError("config.toml cannot be written. Give another with --config")

    def write(self, path: Path, text: str | bytes) -> str:
        raise UsageError("this directory cannot be written to. Go to another")


@asynchronous
async def test_w_and_f12_report_the_file_or_the_error() -> None:
    for files, kept, drawn in (
        (FakeFiles(), "written to config.toml", "written to offtop-"),
        (
            Refusing(),
            "config.toml cannot be written. Give another with --config",
            "this directory cannot be written to. Go to another",
        ),
        (None, "This screen has no config file to write to", "This screen cannot write files"),
    ):
        async with shown(ScriptedSource(SHOP), files=files) as (app, pilot):
            await pilot.press("M", "W")
            assert screen(app)[-2] == kept
            await pilot.press("f12")
            assert screen(app)[-2].startswith(drawn)
            if isinstance(files, FakeFiles) and not isinstance(files, Refusing):
                assert files.written[0] == "MAX dark False"
                assert "mysqld" not in files.written[1] and "worker" not in files.written[1]
                assert "bank" in files.written[1]


WORDS = ["100", "shop", "futex_do_wait", "<", "take_order", "<", "serve", "<", "main", "0.60"]


@asynchronous
async def test_y_copies_a_row_or_category_or_explains_itself() -> None:
    async with shown(ScriptedSource(SHOP, ticks=12)) as (app, pilot):
        await pilot.press("y")
        assert "y copies the row or the branch under the cursor: TAB goes to one" in screen(app)
        await pilot.press("down", "y")
        assert app.clipboard == "lock 0.70"
        await pilot.press("enter", "y")
        assert app.clipboard.split() == WORDS
