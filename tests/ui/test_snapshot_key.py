"""The key s saves a clip of the last minutes, or of the time before the paused tick, that replay opens."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from offtop.commands import clip_file
from offtop.errors import OfftopError
from offtop.feed.source import Source
from offtop.model.values.outlier import LongWait, Outlier
from offtop.model.values.snapshot import Snapshot
from offtop.model.viewmodel.view import View
from offtop.model.windows.window import between
from offtop.person import person
from offtop.recording.replay import RecordedSource
from offtop.recording.writer import Recorder
from tests.ui.fake_files import FakeFiles, FakeRecorder
from tests.ui.scripted import SHOP, START_NS, ScriptedSource
from tests.ui.shown import QUICK_NS, asynchronous, screen, shown, until

SECOND = 10**9


@dataclass
class Here(FakeFiles):
    """Files that write saved clips to a directory."""

    directory: Path

    def clip(self, source: Source, what: str, taken_ns: int) -> Recorder:  # pyright: ignore[reportIncompatibleMethodOverride]
        return clip_file.new_clip(source, person(), self.directory, what, taken_ns)


class Refused(FakeFiles):
    def clip(self, source: Source, what: str, taken_ns: int) -> FakeRecorder:
        raise OfftopError("shop.offtop cannot be written by ann")


def read(file: Path) -> list[Snapshot]:
    source = RecordedSource(file)
    every = [*iter(source.read, None)]
    source.close()
    return every


async def taken(*keys: str, into: Path, ticks: int = 9, view: View | None = None) -> list[Snapshot]:
    """Return the snapshots in the file that the keys produce."""
    async with shown(ScriptedSource(SHOP, ticks=ticks), files=Here(into), view=view) as (app, pilot):
        await pilot.press(*keys)
        await until(lambda: "saved " in screen(app)[-2])
        alert = screen(app)[-2]
    (file,) = into.iterdir()
    assert re.fullmatch(r"saved \d+KB; view: offtop replay .*", alert), alert
    assert file.stat().st_mode & 0o777 == 0o600
    return read(file)


@asynchronous
async def test_s_enter_saves_the_last_minute(tmp_path: Path) -> None:
    made = await taken("s", "enter", into=tmp_path)
    assert [(one.taken_ns - START_NS) // SECOND for one in made] == [*range(10)]
    source = ScriptedSource(SHOP)
    for second, one in enumerate(made):
        was = source.after(second)
        assert {**one.threads} == {**was.threads}
        assert {key.pid for key in one.waiting} == {300}
    assert between(made[0], made[-1]).span_ns == 9 * SECOND
    assert [file.name for file in tmp_path.iterdir()] == ["offtop-db7-20261121T020009-all.offtop"]


@asynchronous
async def test_typed_duration_is_saved_and_the_selection_is_in_the_file_name(tmp_path: Path) -> None:
    made = await taken("down", "enter", "enter", "s", *"3s", "enter", into=tmp_path)
    assert [(one.taken_ns - START_NS) // SECOND for one in made] == [6, 7, 8, 9]
    (file,) = tmp_path.iterdir()
    assert file.name == "offtop-db7-20261121T020009-lock-shop.offtop"


@asynchronous
async def test_paused_view_saves_the_window_up_to_that_moment(tmp_path: Path) -> None:
    view = View(delay_ns=QUICK_NS, span_ns=SECOND)
    source = ScriptedSource(SHOP, ticks=9)
    async with shown(source, files=Here(tmp_path), view=view) as (app, pilot):
        await pilot.press("[", "[", "s")
        assert screen(app)[-2].rstrip() == "save a clip up to 02:00:07, of the last: 1s"
        await pilot.press("enter")
        await until(lambda: "saved " in screen(app)[-2])
    (file,) = tmp_path.iterdir()
    assert [(one.taken_ns - START_NS) // SECOND for one in read(file)] == [6, 7]


@asynchronous
async def test_paused_view_since_the_start_saves_everything_before(tmp_path: Path) -> None:
    made = await taken("[", "w", "w", "s", "enter", into=tmp_path)
    assert [(one.taken_ns - START_NS) // SECOND for one in made] == [*range(9)]


@asynchronous
async def test_invalid_duration_is_asked_again_and_an_empty_one_cancels(tmp_path: Path) -> None:
    async with shown(ScriptedSource(SHOP, ticks=3), files=Here(tmp_path)) as (app, pilot):
        await pilot.press("s", *"x", "enter")
        assert screen(app)[-2].startswith("'x' is not a length of time: try 90s, 10m or all")
        await pilot.press("escape", "s", "backspace", "enter")
        assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("files", [Refused(), None])
@asynchronous
async def test_error_is_shown_if_no_file_can_be_created(files: FakeFiles | None) -> None:
    async with shown(ScriptedSource(SHOP, ticks=3), files=files) as (app, pilot):
        await pilot.press("s", "enter")
        wanted = "shop.offtop cannot be written by ann" if files else "This screen cannot write files"
        await until(lambda: wanted in screen(app)[-2])


@asynchronous
async def test_two_clips_of_one_moment_are_two_files(tmp_path: Path) -> None:
    async with shown(ScriptedSource(SHOP, ticks=3), files=Here(tmp_path)) as (app, pilot):
        for number in (1, 2):
            await pilot.press("s", "enter")
            await until(lambda number=number: len([*tmp_path.iterdir()]) == number and "saved" in screen(app)[-2])
            await until(lambda: not app.controllers.clips.is_writing)
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == ["offtop-db7-20261121T020003-all-2.offtop", "offtop-db7-20261121T020003-all.offtop"]


@asynchronous
async def test_clip_being_written_at_exit_is_complete(tmp_path: Path) -> None:
    async with shown(ScriptedSource(SHOP, ticks=9), files=Here(tmp_path)) as (app, pilot):
        await pilot.press("s", "enter")
        message = app.close_recordings()
    assert message.startswith("saved ") or not message
    (file,) = tmp_path.iterdir()
    assert len(read(file)) == 10


@asynchronous
async def test_clip_has_the_outliers_of_its_time(tmp_path: Path) -> None:
    async with shown(ScriptedSource(SHOP, ticks=9), files=Here(tmp_path)) as (app, pilot):
        assert app.picture
        site = next(site for site, _ in app.picture.common.newest.window.each_site() if site.pid == 200)
        for tick in app.picture.common.ticks:
            wait = LongWait(site, tick.at_ns - SECOND, tick.at_ns, program="bank")
            one = Outlier(tick.at_ns, tick.taken_ns, "any.max > 500ms", "max", "lock", "bank", 1e9, 5e8, wait=wait)
            app.session.outliers.add([one._replace(catalog=app.picture.common.catalog)])
        await pilot.press("s", *"3s", "enter")
        await until(lambda: "saved " in screen(app)[-2])
    (file,) = tmp_path.iterdir()
    source = RecordedSource(file)
    found = source.outliers()
    source.close()
    assert [(one.taken_ns - START_NS) // SECOND for one in found] == [7, 8, 9]
    assert {one.catalog.stack(one.wait.site.user).frames[0].name for one in found if one.wait} == {"count_money"}
