"""The header line with losses and offtop's cost shows each part completely or not at all."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from offtop.model.values.snapshot import Cost, Filters, Machine, Sampling, Snapshot, Thinned
from offtop.ui.panes.head import needs_cost_line
from tests.ui.sampled import NOTICE, SampledSource
from tests.ui.scripted import MS, ScriptedSource, Waits
from tests.ui.shown import asynchronous, cost_line, screen, shown, until, waiting_line

BUSY = Waits("mill", 300, "mill", 300, "lock", "futex_do_wait", ("main",), (300,), running_ms=500)
"""A thread that leaves 0.2 s of each second unexplained: 10 % of two CPUs."""
HALF = BUSY._replace(waits_ms=(250, 250))
"""A thread that waits half of each second and runs the other half."""
UNEXPLAINED = "10% of cpu time unexplained"
LONG = "only cgroup the-long-name-of-a-service.service"
LOST = "lost 6 sites 2.4k stacks 9 threads", "lost 2.5k"


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (160, f"lost 0, {UNEXPLAINED}  Cost bpf 0.6% 212ns/switch ui 1.9% of 1 cpu  81k switches/s"),
        (80, f"lost 0, {UNEXPLAINED}  Cost bpf 0.6% ui 1.9% of 1 cpu"),
        (70, f"lost 0, {UNEXPLAINED}  Cost bpf 0.6%"),
        (50, f"lost 0, {UNEXPLAINED}"),
        (40, "lost 0"),
    ],
)
@asynchronous
async def test_losses_come_first_and_whole_parts_are_dropped_from_the_end(width: int, line: str) -> None:
    async with shown(ScriptedSource([BUSY], machine=Machine(2)), (width, 24)) as (app, _):
        shown_line = cost_line(app)
        assert shown_line.endswith("min 1ms") and shown_line.removesuffix("min 1ms").rstrip() == line


@pytest.mark.parametrize(
    ("thinned", "line"),
    [
        (
            Thinned(0, 4 * MS, 1, 50, 150 * MS),
            "lost 0, stacks from 4ms up on 1 of 2 CPUs, 30% of the time without stacks",
        ),
        (Thinned(3, 64 * MS, 2, 0, 0, is_over=True), "lost 0, stacks from 64ms up, over budget: -p watches less"),
    ],
)
@asynchronous
async def test_what_is_left_out_is_said_before_the_cost(thinned: Thinned, line: str) -> None:
    source = ScriptedSource([HALF], machine=Machine(2))
    source.thinned = thinned
    async with shown(source, (160, 24)) as (app, _):
        assert cost_line(app).split("  Cost")[0] == line


@asynchronous
async def test_kernel_stacks_that_are_verified_are_not_called_exact() -> None:
    class Verifying(ScriptedSource):
        def after(self, seconds: int) -> Snapshot:
            earlier = super().after(seconds)
            return replace(earlier, cost=earlier.cost._replace(kernel_check_every=64))

    async with shown(Verifying(ticks=12), (160, 24)) as (app, _):
        assert cost_line(app).split("  Cost")[0] == "lost 0, kernel stacks verified (1 in 64 checked)"
    thinned = Verifying([HALF], machine=Machine(2))
    thinned.thinned = Thinned(3, 8 * MS, 2, 50, 150 * MS, is_over=True)
    async with shown(thinned, (80, 24)) as (app, _):
        assert "stacks from 8ms up, kernel stacks verified (1 in 64 checked)" in cost_line(app)


@pytest.mark.parametrize("width", [40, 80, 160])
@asynchronous
async def test_exact_numbers_need_no_line_of_their_own(width: int) -> None:
    async with shown(ScriptedSource(ticks=12), (width, 24)) as (app, _):
        assert app.picture and not needs_cost_line(app.picture.head, app.picture.common)
        assert not any(line.startswith("exact") for line in screen(app))
        assert waiting_line(app).partition("  Cost")[0].endswith("  exact")
        assert ("  Cost bpf 0.6%" in waiting_line(app)) is (width > 40)


@pytest.mark.parametrize("height", [14, 24])
@pytest.mark.parametrize(
    ("source", "words"),
    [
        (lambda: ScriptedSource(ticks=12, lost={"sites": 2}), "lost 20 sites"),
        (lambda: SampledSource(ticks=12), "lost 0"),
        (lambda: thinned_source(), "lost 0, stacks from 4ms up"),
        (lambda: ScriptedSource([BUSY], machine=Machine(2)), f"lost 0, {UNEXPLAINED}"),
    ],
    ids=["lost", "sampled", "thinned", "unexplained"],
)
@asynchronous
async def test_what_is_not_exact_has_a_line_if_there_is_room(
    source: Callable[[], ScriptedSource], words: str, height: int
) -> None:
    async with shown(source(), (80, height)) as (app, _):
        assert app.picture and needs_cost_line(app.picture.head, app.picture.common)
        assert words in (cost_line(app) if height == 24 else waiting_line(app))
        assert "exact" not in waiting_line(app) and ("lost" in waiting_line(app)) is (height == 14)


@asynchronous
async def test_what_was_left_out_of_the_numbers_is_kept_when_the_line_is_short() -> None:
    source = ScriptedSource(ticks=12)
    source.set_filters(Filters(cgroup="/system.slice/mysql.service"))
    async with shown(source, (80, 24)) as (app, _):
        assert waiting_line(app).endswith(" only cgroup mysql.service  exact")


@asynchronous
async def test_unknown_cost_leaves_room_for_the_other_facts() -> None:
    class NoCost(ScriptedSource):
        def after(self, seconds: int) -> Snapshot:
            return replace(super().after(seconds), cost=Cost())

    async with shown(NoCost(ticks=12), (160, 24)) as (app, _):
        assert "+2.00 idle hidden (i) " in waiting_line(app)
        assert waiting_line(app).endswith(" other 0%  exact")


def thinned_source() -> ScriptedSource:
    source = ScriptedSource([HALF], machine=Machine(2))
    source.thinned = Thinned(0, 4 * MS, 1, 50, 150 * MS)
    return source


@pytest.mark.parametrize("width", [*range(40, 110, 3), 160])
@asynchronous
async def test_losses_are_shown_at_every_width_and_no_part_is_cut(width: int) -> None:
    source = ScriptedSource([BUSY], lost={"stacks": 812, "sites": 2}, machine=Machine(2))
    async with shown(source, (width, 24)) as (app, _):
        line = cost_line(app).removesuffix("min 1ms").rstrip()
        assert line.startswith("lost 6 sites 2.4k stacks")
        assert line.endswith(("stacks", "unexplained", "%", "1 cpu", "ns/switch", "switches/s"))
        assert "of cpu" not in line or UNEXPLAINED in line


@pytest.mark.parametrize(
    ("losses", "end"),
    [({}, "  stacks from 64ms up"), ({"stacks": 812, "sites": 2, "threads": 3}, "  lost 2.5k")],
    ids=["thinned", "lost"],
)
@asynchronous
async def test_the_number_of_waiting_threads_is_never_cut(losses: dict[str, int], end: str) -> None:
    waits = [HALF._replace(tid=300 + n, waits_ms=(1000,), running_ms=0) for n in range(120)]
    source = ScriptedSource(waits, lost=losses, machine=Machine(2))
    source.thinned = Thinned(3, 64 * MS, 2, 0, 0)
    async with shown(source, (40, 10)) as (app, _):
        line = waiting_line(app)
        assert line.startswith("Waiting 120.00 ") and line.endswith(end)


@pytest.mark.parametrize("height", [10, 14, 24])
@pytest.mark.parametrize("width", [*range(40, 70, 3), 80])
@asynchronous
async def test_neither_filters_nor_losses_cut_numbers(width: int, height: int) -> None:
    waits = [HALF._replace(tid=300 + n, waits_ms=(1000,), running_ms=0) for n in range(120)]
    source = ScriptedSource(waits, lost={"stacks": 812, "sites": 2, "threads": 3}, machine=Machine(2))
    source.set_filters(Filters(cgroup=f"/system.slice/{LONG.rpartition(' ')[2]}"))
    async with shown(source, (width, height)) as (app, _):
        rest = waiting_line(app).partition("  Cost")[0]
        assert rest.startswith("Waiting 120.00")
        for whole in (
            *LOST,
            "Waiting 120.00",
            "= 120.00 blocked + 0.00 run queue",
            "= 120.00 + 0.00 run queue",
            LONG,
            "other 0%",
        ):
            rest = rest.replace(whole, "")
        assert not rest.strip()
        if height == 24:
            assert cost_line(app).startswith(LOST)


@pytest.mark.parametrize("width", [40, 60, 80, 160])
@asynchronous
async def test_sampling_and_its_error_are_shown_at_every_width(width: int) -> None:
    async with shown(SampledSource(ticks=12), (width, 24)) as (app, _):
        assert "SAMPLED ~20 Hz" in screen(app)[0]
        shorter, elsewhere = "waits up to 100ms shorter", ", up to 0.25 elsewhere"
        assert cost_line(app).endswith(f"  {shorter}{elsewhere if width > 40 else ''}")
        assert screen(app)[0].startswith("offtop ")


@pytest.mark.parametrize(
    ("width", "end"), [(40, "only"), (60, "only, waits up to 100ms shorter"), (80, ", up to 0.25 elsewhere")]
)
@asynchronous
async def test_own_processes_only_comes_first(width: int, end: str) -> None:
    async with shown(SampledSource(ticks=12, own_only=True), (width, 24)) as (app, _):
        line = cost_line(app)
        assert "own processes only" in line and line.endswith(end)


@asynchronous
async def test_container_shows_its_limited_view_and_unknown_losses() -> None:
    seen = Sampling(lost_known=False, container_only=True)
    async with shown(SampledSource(ticks=12, seen=seen), (160, 24)) as (app, pilot):
        assert "lost: unknown" in cost_line(app) and "this container only, waits up to" in cost_line(app)
        await pilot.press("1")
        assert any("wakers (2) need BPF" in line for line in screen(app))
    source = SampledSource(ticks=12, seen=seen._replace(own_only=True), lost={"threads": 3})
    async with shown(source, (160, 24)) as (app, _):
        assert (
            "lost: unknown" not in cost_line(app)
            and " threads  " in cost_line(app)
            and "own processes only" in cost_line(app)
        )
    async with shown(SampledSource(ticks=12), (160, 24)) as (app, _):
        assert "lost 0" in cost_line(app) and "only" not in cost_line(app)


@asynchronous
async def test_empty_list_says_whose_waits_are_sampled() -> None:
    class Nothing(SampledSource):
        def after(self, seconds: int) -> Snapshot:
            return replace(ScriptedSource([]).after(seconds), sampling=super().after(seconds).sampling, probe="proc")

    async with shown(Nothing(ticks=12, own_only=True), (80, 24)) as (app, pilot):
        assert any("Nothing waits here (own processes only)." in line for line in screen(app))
        await pilot.press("V")
        assert any("/proc is sampled, and shows no user stacks" in line for line in screen(app))


@asynchronous
async def test_one_line_screen_shows_sampling_and_bpf_shows_none() -> None:
    async with shown(SampledSource(ticks=12), (60, 1)) as (app, _):
        assert screen(app)[0].startswith("offtop SAMPLED ")
    async with shown(ScriptedSource([BUSY]), (160, 24)) as (app, _):
        assert "SAMPLED" not in "".join(screen(app))


@pytest.mark.parametrize(
    ("width", "text"), [(60, "offtop 0.78 waiting, lock 0.58 max 300ms"), (39, "offtop 0.78 waiting")]
)
@asynchronous
async def test_one_line_screen_shows_the_largest_category_if_it_fits(width: int, text: str) -> None:
    async with shown(ScriptedSource(ticks=12), (width, 1)) as (app, _):
        assert screen(app) == [text]


@asynchronous
async def test_unread_stacks_point_to_what_hangs() -> None:
    async with shown(ScriptedSource([BUSY], lost={"unread": 2}), (160, 24)) as (app, pilot):
        await pilot.press("j")  # the first key clears the startup notice
        assert screen(app)[-2].rstrip() == (
            "lost 6 unread: user stacks that could not be read. Help (?) names the processes and devices that hang"
        )


@asynchronous
async def test_limits_of_sampling_are_shown_at_startup() -> None:
    async with shown(SampledSource(), (80, 24)) as (app, _):
        assert any(NOTICE in line for line in screen(app))


@asynchronous
async def test_unseen_threads_suggest_a_larger_cpu_budget_when_sampling() -> None:
    async with shown(SampledSource(lost={"threads": 4}), (160, 24)) as (app, pilot):
        await pilot.press("j")  # the first key clears the startup notice
        alert = screen(app)[-2]
        assert alert.startswith(
            "lost 12 threads: a larger --cpu-budget or fewer threads (p, F) help; these threads started and"
        ), alert


@asynchronous
async def test_key_bar_omits_the_key_that_needs_bpf_when_sampling() -> None:
    for source, there in ((SampledSource(), False), (ScriptedSource([BUSY]), True)):
        async with shown(source, (80, 24)) as (app, _):
            assert ("2 wakers" in screen(app)[-1]) is there
            assert "5 stuck" in screen(app)[-1]


@asynchronous
async def test_modes_that_need_bpf_are_not_offered_when_sampling() -> None:
    async with shown(SampledSource(ticks=12), (160, 50)) as (app, pilot):
        assert "1 off-CPU" in screen(app)[0]
        assert "5 stuck" in screen(app)[0]
        assert "wakeup" not in screen(app)[0]
        view = app.view
        for key, words in (("G", "need BPF"), ("J", "need BPF"), ("1", "need BPF")):
            await pilot.press(key)
            assert words in screen(app)[-2]
            assert app.view == view
        await pilot.press("down", "enter", "enter")
        await until(lambda: app.view.pid is not None)
        await pilot.pause()
        text = "".join(screen(app))
        assert "Run time unknown" not in text
        assert "running" in text
