"""The key a starts and ends a recording; a failed recording is reported, and measuring continues."""

from offtop.errors import OfftopError
from offtop.feed.source import Source
from offtop.model.values.snapshot import Snapshot
from offtop.model.viewmodel.view import View
from tests.ui.fake_files import FakeFiles, FakeRecorder
from tests.ui.scripted import SHOP, ScriptedSource
from tests.ui.shown import QUICK_NS, asynchronous, screen, shown, until


class FullRecorder(FakeRecorder):
    def add(self, snapshot: Snapshot) -> None:
        self.failure = "recording stopped: 37MB left on /var/tmp (limit 100MB): shop.offtop"


class Refused(FakeFiles):
    def recorder(self, source: Source) -> FakeRecorder:
        raise OfftopError("shop.offtop cannot be written by ann")


class Full(FakeFiles):
    def recorder(self, source: Source) -> FakeRecorder:
        return FullRecorder()


@asynchronous
async def test_a_records_each_tick_until_pressed_again() -> None:
    source = ScriptedSource(SHOP, ticks=2)
    async with shown(source, files=FakeFiles()) as (app, pilot):
        assert "REC" not in screen(app)[0]
        await pilot.press("a")
        recorder = app.controllers.recording.recorder
        assert isinstance(recorder, FakeRecorder)
        source.go_on(to=6)
        await until(lambda: "REC 2.0MB" in screen(app)[0] and len(recorder.taken) == 4)
        await pilot.press("a")
        await until(lambda: "recorded 4 ticks: shop.offtop" in screen(app)[-2])
        source.go_on(to=8)
        await until(lambda: app.picture is not None and app.picture.common.newest.number == 8)
        assert (len(recorder.taken), app.controllers.recording.recorder) == (4, None)


@asynchronous
async def test_failed_recording_is_reported_and_measuring_continues() -> None:
    source = ScriptedSource(SHOP, ticks=2)
    async with shown(source, files=Full(), view=View(delay_ns=QUICK_NS)) as (app, pilot):
        await pilot.press("a")
        source.go_on(to=5)
        await until(lambda: "recording stopped: 37MB left on /var/tmp" in screen(app)[-2])
        source.go_on(to=6)
        await until(lambda: app.picture is not None and app.picture.common.newest.number == 6)
        assert app.controllers.recording.recorder is None


@asynchronous
async def test_a_says_why_no_file_can_be_created() -> None:
    async with shown(ScriptedSource(SHOP), files=Refused()) as (app, pilot):
        await pilot.press("a")
        assert "shop.offtop cannot be written by ann" in screen(app)[-2]
    async with shown(ScriptedSource(SHOP)) as (app, pilot):
        await pilot.press("a")
        assert "This screen cannot write files" in screen(app)[-2]
