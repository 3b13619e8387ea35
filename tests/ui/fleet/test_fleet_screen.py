"""The screen of `offtop fleet`: hosts, programs of one, times, filters; a failure leaves the last picture."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable

import pytest
from textual.pilot import Pilot

from offtop.fleet.access import Access
from offtop.fleet.client import Client
from offtop.fleet.reader import Reader
from offtop.fleet.survey import MINUTE_NS, Question, Survey
from offtop.ui.fleet.app import FleetApp
from offtop.ui.fleet.keys import KEYS
from offtop.ui.kit.lines import Panel
from offtop.units import NS_PER_S
from tests.fleet.api import AT_S, FORTY, Answers, Api, Machine, Reply, always, fleet, serving
from tests.ui.shown import CATEGORIES, asynchronous

_SIZES = ((80, 24), (160, 50))


def _sleeps(_: object) -> None:
    time.sleep(3)


class Fleet:
    def __init__(self, app: FleetApp, pilot: Pilot[int], api: Api, watched: list[str]) -> None:
        self.app, self.pilot, self.api, self.watched = app, pilot, api, watched

    @property
    def lines(self) -> list[str]:
        drawn = (self.app.query_one(f"#{name}", Panel).lines for name in ("page", "alert", "keys"))
        return ["".join(text for text, _ in line.spans) for panel in drawn for line in panel]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    async def shows(self, *words: str) -> None:
        await self.until(lambda: all(word in self.text for word in words), words)

    async def until(self, holds: Callable[[], bool], what: object = "") -> None:
        end_s = time.monotonic() + 20
        while not holds():
            assert time.monotonic() < end_s, f"{what} not in\n{self.text}"
            await asyncio.sleep(0.01)
            await self.pilot.pause()

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)


@contextlib.asynccontextmanager
async def shown(
    answers: Answers, size: tuple[int, int] = (80, 24), every_ns: int | None = None, ascii_only: bool = False
) -> AsyncGenerator[Fleet]:
    watched: list[str] = []

    with serving(answers) as api:
        reader = Reader(Survey(Client(api.url, Access(), 2.0)), Question(), every_ns)
        causes = {"postgres-row-lock": "a row or table lock"}
        app = FleetApp(
            reader,
            "",
            tuple(CATEGORIES.ids),
            causes,
            watched.append,
            lambda host, at_ns: watched.append(f"{host} at {at_ns // NS_PER_S}"),
            ascii_only=ascii_only,
        )
        async with app.run_test(size=size) as pilot:
            yield Fleet(app, pilot, api, watched)


@pytest.mark.parametrize("size", _SIZES)
@asynchronous
async def test_host_that_stands_out_is_on_top(size: tuple[int, int]) -> None:
    async with shown(fleet(FORTY), size) as one:
        await one.shows("the WAL flush: 1 of 40 hosts since 02:10, 12 threads of postgres wait", "█")
        rows = [line.split() for line in one.lines]
        number = next(number for number, row in enumerate(rows) if row[:1] == ["HOST"])
        assert rows[number + 1][:3] == ["▲", "db40", "12.90"]
        assert "▲12.40" in rows[number + 1]
        assert ("lock 12.40, usual 0.25" in one.text) == (size[0] > 100)
        assert "40 hosts, averages over 1m" in one.lines[0]
        assert all(len(line) <= size[0] for line in one.lines)
        assert "? Help" in one.lines[-1] and "q Quit" in one.lines[-1]


@pytest.mark.parametrize("size", _SIZES)
@asynchronous
async def test_enter_shows_programs_and_causes_and_again_the_host_live(size: tuple[int, int]) -> None:
    async with shown(fleet(FORTY), size) as one:
        await one.shows("db40")
        await one.press("enter")
        await one.shows("db40 (job db): 12.90 threads wait", "11.00  a row or table lock", "postgres must act")
        await one.press("down")
        await one.shows("causes of sshd", "no cause rule explains its waits")
        await one.press("enter")
        assert one.watched == ["db40"]
        await one.press("escape")
        await one.shows("40 hosts", "TREND")


@asynchronous
async def test_failure_holds_the_picture_and_is_said_until_it_is_over() -> None:
    async with shown(fleet(FORTY), every_ns=NS_PER_S // 20) as one:
        await one.shows("db40")
        one.api.answers = always(Reply(b"", 401))
        await one.shows("refuses access (401)", "db40", "12.90")
        one.api.answers = fleet(FORTY)
        await one.until(lambda: "401" not in one.text)
        assert "db40" in one.text


@asynchronous
async def test_first_failure_is_said_and_mended_without_a_key() -> None:
    async with shown(always(Reply(b"<html>", 404)), every_ns=NS_PER_S // 20) as one:
        await one.shows("has no /api/v1", "Give the URL that Grafana has")
        one.api.answers = fleet(FORTY)
        await one.shows("db40")


@asynchronous
async def test_screen_does_not_wait_for_a_slow_answer() -> None:
    async with shown(fleet(FORTY)) as one:
        await one.shows("db40", "since 02:10")
        one.api.answers = always(_sleeps)
        await one.press("r", "down", "down")
        chosen = [line.base for line in one.app.query_one("#page", Panel).lines]
        assert chosen.index("cursor") == 5
        await one.shows("did not answer within 2 s")


@asynchronous
async def test_time_goes_back_and_returns_to_now() -> None:
    async with shown(fleet(FORTY)) as one:
        await one.shows("live")
        await one.press("left_curly_bracket")
        await one.until(lambda: one.app.reader.answer.question.at_ns == round(AT_S - 60) * NS_PER_S)
        await one.shows("PAST", "11-27 02:29:00")
        await one.press("enter", "enter")
        assert one.watched == [f"db40 at {round(AT_S - 60)}"]
        await one.press("right_curly_bracket")
        await one.shows("live")
        await one.press("b", *"02:10", "enter")
        await one.shows("PAST", "02:10:00")
        await one.press("b", *"nonsense", "enter")
        await one.shows("PAST")
        assert one.app.query_one("#question", Panel).lines[0].spans[0][0].startswith("a time such as")
        await one.press("escape", "0")
        await one.shows("live")


@asynchronous
async def test_range_changes_by_a_key() -> None:
    async with shown(fleet(FORTY)) as one:
        await one.shows("over 1m")
        await one.press("plus")
        await one.shows("40 hosts, averages over 5m")
        await one.press("minus", "minus")
        await one.shows("1m is the shortest range")
        assert any("[300s]" in request.query for request in one.api.requests if "rate(" in request.query)


@asynchronous
async def test_filter_is_asked_of_the_engine_and_cleared() -> None:
    async with shown(fleet(FORTY)) as one:
        await one.shows("db40")
        await one.press("backslash", *"category=a", "enter")
        assert "category is a label of" in one.app.query_one("#question", Panel).lines[0].spans[0][0]
        await one.press("escape", "backslash", *"env=prod", "enter")
        await one.shows("filter env=prod")
        await one.until(lambda: 'env="prod"' in one.api.requests[-1].query)
        await one.press("escape")
        await one.until(lambda: "env" not in one.api.requests[-1].query)


@asynchronous
async def test_hosts_are_sorted_by_the_next_column_and_the_cursor_moves() -> None:
    async with shown(fleet(FORTY)) as one:
        await one.shows("db40")
        await one.press("greater_than_sign")
        await one.shows("sorted by HOST")
        assert [line.split()[0] for line in one.lines if line.startswith("  db")][:2] == ["db1", "db2"]
        await one.press("R")
        assert one.lines[3].split()[1] == "db40"
        await one.press("end")
        assert any(line.startswith("  db1 ") for line in one.lines)
        await one.press("less_than_sign")
        await one.shows("sorted by OUTLIER")
        await one.press("R", "home")
        assert one.lines[3].split()[1] == "db40"


@asynchronous
async def test_names_of_strangers_reach_the_screen_escaped() -> None:
    odd = Machine("\x1b[31m[bold]x\u202e:9877", {"lock": 1.0, "\x1b]0;x\x07": 2.0}, job="\x9b2J")
    suspects = {("\x1b[2J", "[red]evil", "\n"): 2.0}
    async with shown(fleet([odd._replace(suspects=suspects), Machine("-oProxyCommand=x:9877")])) as one:
        await one.shows(r"\x1b[31m[bold]x\u20…", r"! \x1b[2J: 1 of 2 hosts", "[red]evil")
        assert all(line.isprintable() for line in one.lines)
        await one.press("enter")
        await one.shows(r"(job \x9b2J)")
        await one.press("enter")
        await one.shows("ssh cannot reach a machine that is called")
        await one.press("escape", "down", "enter")
        await one.shows("-oProxyCommand=x (job db)")
        await one.press("enter")
        await one.shows("ssh cannot reach")
        assert one.watched == []


@pytest.mark.parametrize("size", [(20, 5), (1, 1), (40, 10), (300, 90)])
@asynchronous
async def test_any_size_is_drawn(size: tuple[int, int]) -> None:
    async with shown(fleet(FORTY), size) as one:
        await one.until(lambda: one.app.reader.answer.fleet is not None)
        await one.press("down", "enter", "question_mark")
        await one.until(lambda: len(one.app.screen_stack) == 2)
        await one.press("q")
        await one.until(lambda: len(one.app.screen_stack) == 1)
        await one.press("escape")
        await one.pilot.resize_terminal(80, 24)
        await one.press("home")
        await one.shows("db40")


@asynchronous
async def test_ascii_is_ascii() -> None:
    async with shown(fleet(FORTY), ascii_only=True) as one:
        await one.shows("db40", "#")
        await one.press("enter")
        await one.shows("causes of postgres")
        assert one.text.isascii()


@asynchronous
async def test_help_lists_every_key_and_unknown_keys_are_said() -> None:
    async with shown(fleet(FORTY), (100, 60)) as one:
        await one.shows("db40")
        await one.press("question_mark")
        text = "\n".join("".join(text for text, _ in line.spans) for line in one.app.screen.query_one(Panel).lines)
        assert all(row.says[:40] in text for row in KEYS)
        await one.press("q")
        await one.until(lambda: len(one.app.screen_stack) == 1)
        await one.press("Q")
        await one.shows("no action on 'Q'; ? for help")


@asynchronous
async def test_refresh_asks_again_but_not_in_the_past() -> None:
    async with shown(fleet(FORTY), every_ns=NS_PER_S // 20) as one:
        await one.until(lambda: one.app.reader.answer.count > 3)
        await one.press("left_curly_bracket")
        await one.shows("PAST")
        await one.until(lambda: one.app.reader.answer.question.at_ns is not None)
        count = one.app.reader.answer.count
        await asyncio.sleep(0.3)
        assert one.app.reader.answer.count == count
        assert one.app.reader.question.range_ns in (0, MINUTE_NS)
