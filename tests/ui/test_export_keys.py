"""The key e exports the selection over the shown window to a file for other programs."""

import csv
import gzip
import io
from pathlib import Path

import pytest

from offtop.feed.source import Source
from offtop.model.viewmodel.view import FILES, View
from tests.ui.fake_files import FakeRecorder
from tests.ui.scripted import SHOP, ScriptedSource
from tests.ui.shown import QUICK_NS, asynchronous, screen, shown, until
from tests.ui.test_file_keys import with_stacks


class Written:
    """Files that are kept in memory."""

    def __init__(self) -> None:
        self.files: dict[str, str | bytes] = {}

    def save_settings(self, view: View, theme: str, mouse: bool) -> str:
        raise AssertionError("keep() must not be called")

    def write(self, path: Path, text: str | bytes) -> str:
        self.files[str(path)] = text
        return f"written to {path}"

    def recorder(self, source: Source) -> FakeRecorder:
        return FakeRecorder()


@pytest.mark.parametrize(
    ("downs", "ending"), [(0, ".folded"), (3, ".svg"), (4, ".speedscope.json"), (5, ".pb.gz"), (6, ".csv")]
)
@asynchronous
async def test_each_format_has_its_file_extension(downs: int, ending: str) -> None:
    files = Written()
    async with shown(ScriptedSource(SHOP, ticks=5), files=files) as (app, pilot):
        await pilot.press("e", *(["down"] * downs), "enter")
        await until(lambda: bool(files.files))
        ((name, content),) = files.files.items()
        assert name.startswith("offtop-db7-") and name.endswith(ending)
        await until(lambda: screen(app)[-2] == f"written to {name}")
        assert gzip.decompress(content) if isinstance(content, bytes) else content


@pytest.mark.parametrize(
    ("downs", "line"),
    [
        (0, "worker-1;main;serve;take_order;futex_do_wait"),
        (1, "worker-1-101;main;serve;take_order;futex_do_wait"),
        (2, "lock;worker-1;main;serve;take_order;futex_do_wait"),
    ],
)
@asynchronous
async def test_folded_stacks_can_be_split(downs: int, line: str) -> None:
    files = Written()
    async with shown(ScriptedSource(SHOP, ticks=5), files=files) as (_, pilot):
        await pilot.press("e", *(["down"] * downs), "enter")
        await until(lambda: bool(files.files))
        ((name, content),) = files.files.items()
        assert name.endswith(".folded") and isinstance(content, str)
        assert f"{line} 2000000" in content.splitlines()


@asynchronous
async def test_list_of_file_operations_is_written_with_its_stacks() -> None:
    for keys, lines in (
        ((), ["run;commit;fsync", "check", "run;load;pread"]),
        (("down", "enter"), ["run;load;pread"]),
        (("t",), ["run;commit;fsync", "check", "run;load;pread"]),
    ):
        files = Written()
        async with shown(with_stacks(), files=files, view=View(delay_ns=QUICK_NS, focus=FILES)) as (_, pilot):
            await pilot.press(*keys, "e", "enter")
            await until(lambda files=files: bool(files.files))
            ((_, content),) = files.files.items()
            assert isinstance(content, str)
            found = content.splitlines()
            assert len(found) == len(lines)
            assert all(line.startswith(f"db;{start}") for line, start in zip(found, lines, strict=True))


async def rows_of(*keys: str, view: View) -> list[dict[str, str]]:
    files = Written()
    async with shown(ScriptedSource(SHOP, ticks=5), files=files, view=view) as (app, pilot):
        await pilot.press(*keys, "e", "end", "enter")
        assert app.picture
        await until(lambda: bool(files.files))
        ((_, content),) = files.files.items()
        assert isinstance(content, str)
        return [*csv.DictReader(io.StringIO(content))]


@asynchronous
async def test_export_covers_the_selection_and_the_window() -> None:
    quick = View(delay_ns=QUICK_NS)
    every = await rows_of(view=quick)
    whole = sum(int(row["total_ns"]) for row in every)
    assert whole == 5 * 10**9  # 1.00 waiting in each of 5 s
    assert {row["process"] for row in every} == {"shop", "bank"}
    one_second = await rows_of(view=View(delay_ns=QUICK_NS, span_ns=10**9))
    assert sum(int(row["total_ns"]) for row in one_second) == 10**9
    locks = await rows_of("down", view=quick)
    assert {row["category"] for row in locks} == {"lock"}
    bank = await rows_of("tab", "down", "enter", view=quick)
    assert {row["process"] for row in bank} == {"bank"}
    with_idle = await rows_of("i", view=quick)
    assert "door" in {row["process"] for row in with_idle}
    filtered = await rows_of(view=View(delay_ns=QUICK_NS, pid=100, category="net-recv"))
    assert {(row["process"], row["category"]) for row in filtered} == {("shop", "net-recv")}


@asynchronous
async def test_escape_writes_nothing() -> None:
    files = Written()
    async with shown(ScriptedSource(SHOP, ticks=3), files=files) as (_, pilot):
        await pilot.press("e", "escape")
    assert not files.files
