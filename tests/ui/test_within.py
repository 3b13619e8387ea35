"""The function of --within is shown in the header and next to the latency histogram."""

import pytest

from offtop.model.values.within import Calls
from tests.ui.calling import A_SECOND, CallingSource
from tests.ui.scripted import ScriptedSource
from tests.ui.shown import asynchronous, calls_line, screen, shown

LINE, WHOLE = "Within shop:Cart::pay  100/s", "= 70% blocked + 10% run queue + 20% running"


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (160, f"{LINE}  p50<=4.2ms p99<=4.2ms max 104ms  {WHOLE}  3 now, oldest 1.50s  20 did not return"),
        (100, f"{LINE}  p99<=4.2ms max 104ms  70% blocked 10% ready  3 now, oldest 1.50s"),
        (80, f"{LINE}  p99<=4.2ms max 104ms  3 now, oldest 1.50s"),
        (40, LINE),
    ],
)
@asynchronous
async def test_header_shows_as_much_about_calls_as_fits(width: int, line: str) -> None:
    async with shown(CallingSource(ticks=12), (width, 24)) as (app, _):
        assert calls_line(app) == line


@asynchronous
async def test_no_within_means_no_line() -> None:
    async with shown(ScriptedSource([], ticks=2), (80, 24)) as (app, _):
        assert not [line for line in screen(app) if "Within" in line or "calls of" in line]


@asynchronous
async def test_header_says_that_no_call_has_returned() -> None:
    async with shown(CallingSource(calls=Calls(), ticks=2), (100, 24)) as (app, _):
        expected = "no call has returned: calls that began before offtop are unknown"
        assert calls_line(app) == f"Within shop:Cart::pay  {expected}"
    async with shown(CallingSource(calls=Calls(now=1, oldest_ns=7 * 10**9), ticks=2), (100, 24)) as (app, _):
        assert calls_line(app) == "Within shop:Cart::pay  no call has returned  1 now, oldest 7.00s"


@asynchronous
async def test_hostile_function_name_is_escaped_and_cut() -> None:
    name = f"sh\x1b[2Jop:{'Cart::' * 40}pay"
    async with shown(CallingSource(name, ticks=2), (100, 24)) as (app, _):
        line = calls_line(app)
        assert line.startswith("Within sh\\x1b[2Jop:Cart::Cart")
        assert "  100/s  p99<=4.2ms" in line


@asynchronous
async def test_call_histogram_is_below_the_latency_histogram() -> None:
    async with shown(CallingSource(ticks=12), (160, 50)) as (app, _):
        lines = [line.split("│")[-1].strip() for line in screen(app)]
        at = next(number for number, line in enumerate(lines) if "calls of: shop:Cart::pay" in line)
        assert any("latency of: all" in line for line in lines[:at])
        assert lines[at + 1].startswith("p50<=4.2ms")
        counts = {line.split("|")[0].strip(): line.split("|")[2].split()[0] for line in lines[at + 2 : at + 8] if line}
        assert counts["2.1ms-4.2ms"] == "990"
        assert sum(int(count) for count in counts.values()) == 10 * A_SECOND.returned


@asynchronous
async def test_accounts_are_not_available_with_within() -> None:
    async with shown(CallingSource(ticks=12), (160, 50)) as (app, pilot):
        await pilot.press("A")
        assert not app.view.lists_account
        assert any("with --within only a part of each second is counted" in line for line in screen(app))
        assert "A Account" not in screen(app)[-1]
        await pilot.press("tab", "enter")
        assert any("unknown: with --within only a part of it is counted." in line for line in screen(app))
