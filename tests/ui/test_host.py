"""Another machine on the screen: the picture is held while no ticks come, and what was lost in between is said."""

from dataclasses import replace

import pytest

from offtop.model.values.snapshot import UNMEASURED, Snapshot
from tests.ui.scripted import SHOP, ScriptedSource
from tests.ui.shown import asynchronous, screen, shown, until

LOST = "no connection to db7 for 12s: trying again in 4s (Connection refused)"


class HostSource(ScriptedSource):
    """SHOP on another machine, which sends a tick when it likes."""

    delays_ns: list[int]
    lost = ""

    def __init__(self, ticks: int = 3) -> None:
        super().__init__(SHOP, ticks=ticks)
        self.delays_ns = []

    @property
    def is_elsewhere(self) -> bool:
        return True

    @property
    def interruption(self) -> str:
        return self.lost

    def set_delay(self, delay_ns: int) -> None:
        self.delays_ns.append(delay_ns)

    def after(self, seconds: int) -> Snapshot:
        snapshot = super().after(seconds)
        return replace(snapshot, lost={UNMEASURED: 20}) if seconds >= 5 else snapshot


@pytest.mark.parametrize("size", [(80, 24), (160, 50), (40, 10)])
@asynchronous
async def test_a_lost_connection_is_shown_and_the_picture_held(size: tuple[int, int]) -> None:
    source = HostSource()
    async with shown(source, size) as (app, pilot):
        before = screen(app)
        assert "LIVE" in before[0]
        source.lost = LOST
        await until(lambda: "DISCONNECTED" in screen(app)[0])
        held = screen(app)
        changed = [line for was, line in zip(before, held, strict=True) if was != line]
        assert len(changed) == 2
        assert changed[1].startswith(LOST[: size[0] - 1])
        await pilot.press("space")  # what is held can be looked at
        assert "PAUSED" in screen(app)[0]
        await pilot.press("space")
        source.lost = ""
        source.go_on(to=4)
        await until(lambda: "LIVE" in screen(app)[0])


@asynchronous
async def test_what_was_not_measured_is_lost_and_makes_no_tick() -> None:
    source = HostSource()
    async with shown(source, (160, 50)) as (app, _):
        source.go_on(to=4)
        await until(lambda: app.picture is not None and app.picture.common.newest.number == 4)
        source.go_on(to=6)
        await until(lambda: "lost 20 seconds" in "\n".join(screen(app)[:4]))
        assert app.picture
        assert app.picture.common.newest.number == 5
        hint = "lost 20 seconds: not measured, because the connection was lost. Averages leave this time out"
        assert screen(app)[-2].startswith(hint)


@asynchronous
async def test_the_host_gets_the_delay_and_any_user_may_be_named() -> None:
    source = HostSource()
    async with shown(source) as (app, pilot):
        await pilot.press("d", *"0.5", "enter")
        assert source.delays_ns[-1] == 500_000_000
        await pilot.press("u", *"not-here", "enter")
        assert app.view.user == "not-here"
        assert "is not a user" not in screen(app)[-2]


@asynchronous
async def test_a_line_of_one_row_says_so_too() -> None:
    source = HostSource()
    async with shown(source, (60, 1)) as (app, _):
        source.lost = LOST
        await until(lambda: "DISCONNECTED" in screen(app)[0])
