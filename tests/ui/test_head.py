"""The line of the head that tells what went wrong and what offtop costs: its parts are whole or not there."""

import pytest

from offtop.model.snapshot import Machine
from tests.ui.sampled import NOTICE, SampledSource
from tests.ui.scripted import ScriptedSource, Waits
from tests.ui.shown import asynchronous, screen, shown

BUSY = Waits("mill", 300, "mill", 300, "lock", "futex_do_wait", ("main",), (300,), running_ms=500)
"""Leaves 0.2 s of each second unexplained: 10 % of two CPUs."""
UNEXPLAINED = "10% of cpu time unexplained"


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (160, f"lost 0  {UNEXPLAINED}  Cost bpf 0.6% 212ns/switch ui 1.9% of 1 cpu  81k switches/s"),
        (80, f"lost 0  {UNEXPLAINED}  Cost bpf 0.6% ui 1.9% of 1 cpu"),
        (70, f"lost 0  {UNEXPLAINED}  Cost bpf 0.6%"),
        (50, f"lost 0  {UNEXPLAINED}"),
        (40, "lost 0"),
    ],
)
@asynchronous
async def test_what_is_lost_stands_first_and_the_least_important_goes_whole(width: int, line: str) -> None:
    async with shown(ScriptedSource([BUSY], machine=Machine(2)), (width, 24)) as (app, _):
        said = screen(app)[2]
        assert said.endswith("min 1ms") and said.removesuffix("min 1ms").rstrip() == line


@pytest.mark.parametrize("width", [*range(40, 110, 3), 160])
@asynchronous
async def test_losses_are_told_at_every_width_and_nothing_is_cut(width: int) -> None:
    source = ScriptedSource([BUSY], lost={"stacks": 812, "sites": 2}, machine=Machine(2))
    async with shown(source, (width, 24)) as (app, _):
        said = screen(app)[2].removesuffix("min 1ms").rstrip()
        assert said.startswith("lost 6 sites 2.4k stacks")
        assert said.endswith(("stacks", "unexplained", "%", "1 cpu", "ns/switch", "switches/s"))
        assert "of cpu" not in said or UNEXPLAINED in said


@pytest.mark.parametrize("width", [40, 60, 80, 160])
@asynchronous
async def test_that_threads_are_only_looked_at_is_told_at_every_width_with_how_far_that_may_be_off(width: int) -> None:
    async with shown(SampledSource(ticks=12), (width, 24)) as (app, _):
        assert "SAMPLED ~20 Hz" in screen(app)[0]
        shorter, elsewhere = "waits up to 100ms shorter", ", up to 0.25 elsewhere"
        assert screen(app)[2].rstrip().endswith(f"  {shorter}{elsewhere if width > 40 else ''}")
        assert screen(app)[0].startswith("offtop ")


@pytest.mark.parametrize(
    ("width", "says"), [(40, "only"), (60, "only, waits up to 100ms shorter"), (80, ", up to 0.25 elsewhere")]
)
@asynchronous
async def test_that_only_own_processes_are_seen_is_told_first(width: int, says: str) -> None:
    async with shown(SampledSource(ticks=12, own_only=True), (width, 24)) as (app, _):
        told = screen(app)[2].rstrip()
        assert "own processes only" in told and told.endswith(says)


@asynchronous
async def test_one_line_tells_that_too_and_a_source_that_sees_all_says_nothing_of_it() -> None:
    async with shown(SampledSource(ticks=12), (60, 1)) as (app, _):
        assert screen(app)[0].startswith("offtop SAMPLED ")
    async with shown(ScriptedSource([BUSY]), (160, 24)) as (app, _):
        assert "SAMPLED" not in "".join(screen(app))


@asynchronous
async def test_what_sampling_lacks_is_said_first() -> None:
    async with shown(SampledSource(), (80, 24)) as (app, _):
        assert any(NOTICE in line for line in screen(app))


@asynchronous
async def test_what_helps_where_threads_came_and_went_unseen_is_no_longer_minimum() -> None:
    async with shown(SampledSource(lost={"threads": 4}), (160, 24)) as (app, pilot):
        await pilot.press("j")  # what was said at the start goes with the first key
        told = screen(app)[-2]
        assert told.startswith("lost 12 threads: they came and went between two looks. A larger --cpu-budget"), told


@asynchronous
async def test_the_key_that_needs_bpf_is_not_in_the_bar_where_there_is_none() -> None:
    for source, there in ((SampledSource(), False), (ScriptedSource([BUSY]), True)):
        async with shown(source, (80, 24)) as (app, _):
            assert ("2 wakers" in screen(app)[-1]) is there
            assert "5 stuck" in screen(app)[-1]
