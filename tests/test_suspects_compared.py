"""Suspects are recognized by their kind and names in a baseline: new, gone, or with more behind them than then."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offtop.model.values.blockers import MUTEX, Blocker
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.snapshot import Snapshot
from tests.command import call
from tests.test_diff import recorded_of
from tests.ui.scripted import ScriptedSource, Waits
from tests.ui.shown import asynchronous, screen, shown, until
from tests.ui.test_suspects import WEIGHTS

LOCKED = ("__lll_lock_wait", "pthread_mutex_lock", "work")


def held(workers: int, program: str = "shop", pid: int = 40, begins: int = 0, ends: int = 1_000_000) -> list[Waits]:
    """Workers wait for a mutex that the last thread has."""
    wait = Waits(program, pid, "worker", pid, "lock", "futex_wait", (), (), 0, 0, True, begins, ends, 5000, read=LOCKED)
    holder = wait._replace(comm="holder", tid=pid + 50, category="fsync", kernel="do_fsync", read=("fsync", "flush"))
    return [*(wait._replace(tid=pid + 1 + n) for n in range(workers)), holder]


class Held(ScriptedSource):
    """Each worker waits for the holder of its process."""

    def __init__(self, table: Sequence[Waits], ticks: int) -> None:
        self._workers = [one for one in table if one.comm == "worker"]
        super().__init__(table, ticks)

    def after(self, seconds: int) -> Snapshot:
        blockers = {
            ThreadKey(one.pid, one.tid): (Blocker(one.pid, one.pid + 50, MUTEX, True),)
            for one in self._workers
            if one.begins <= seconds <= one.ends
        }
        return replace(super().after(seconds), blockers=blockers)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A good and a bad recording: shop's queue gets longer, bank's is gone, and mill's is new."""
    made = tmp_path_factory.mktemp("held")
    before, after = [*held(3), *held(4, "bank", 400)], [*held(9, pid=140), *held(2, "mill", 600)]
    return (
        recorded_of(Held(before, 8), made / "good.offtop", 8),
        recorded_of(Held(after, 6), made / "bad.offtop", 6),
    )


def printed(*arguments: str) -> str:
    ended = call(*arguments)
    assert (ended.status, ended.err) == (0, "")
    return ended.out


def test_diff_lists_suspects_that_are_new_gone_or_that_more_threads_wait_for(files: tuple[str, str]) -> None:
    found = printed("diff", *files).splitlines()
    at = next(number for number, line in enumerate(found) if line.endswith("SUSPECT: what others wait for"))
    rows = [line.split(maxsplit=3) for line in found[at + 1 : at + 4]]
    assert [row[:3] for row in rows] == [
        ["3.00", "9.00", "+6.00"],
        ["4.00", "0.00", "-4.00"],
        ["0.00", "2.00", "+2.00"],
    ]
    assert rows[0][3].startswith("9 threads of shop wait for a mutex")
    assert rows[1][3].startswith("gone 4 threads of bank wait for a mutex")
    assert rows[2][3].startswith("new  2 threads of mill wait for a mutex")
    assert found.index(next(line for line in found if "CATEGORY" in line)) > at, "suspects come before categories"


def test_diff_in_json_names_them_without_pids(files: tuple[str, str]) -> None:
    made = json.loads(printed("diff", *files, "--json"))["suspects"]
    assert [(one["waiters"], one["new"], one["gone"], one["change"]) for one in made] == [
        ("shop", False, False, 6),
        ("bank", False, True, -4),
        ("mill", True, False, 2),
    ]
    assert {key: made[0][key] for key in ("kind", "category", "end", "what", "waiting_before", "waiting_after")} == {
        "kind": "holder",
        "category": "lock",
        "end": "shop",
        "what": None,
        "waiting_before": 3,
        "waiting_after": 9,
    }


def test_diff_without_suspects_has_no_table_of_them(tmp_path: Path) -> None:
    quiet = recorded_of(ScriptedSource(ticks=4), tmp_path / "quiet.offtop", 4)
    assert "SUSPECT" not in printed("diff", quiet, quiet)
    assert json.loads(printed("diff", quiet, quiet, "--json"))["suspects"] == []


def test_batch_says_what_differs_from_the_baseline(files: tuple[str, str]) -> None:
    good, bad = files
    lines = [
        line for line in printed("replay", bad, "-b", "-n", "1", "--baseline", good).splitlines() if "susp" in line
    ]
    assert lines[0].startswith("suspect x3 of the baseline: 9 threads of shop wait for a mutex")
    assert lines[1].startswith("suspect new since ")
    assert "2 threads of mill" in lines[1]
    assert lines[2] == "suspect gone: bank (lock) behind bank, 4.00 in the baseline"


def test_json_compares_each_suspect_and_lists_those_that_are_gone(files: tuple[str, str]) -> None:
    good, bad = files
    tick: dict[str, Any] = json.loads(printed("replay", bad, "--json", "-n", "1", "--baseline", good))
    shop, mill = (one["baseline"] for one in tick["suspects"])
    assert shop == {"waiting": 3, "change": 6, "new": False, "since_ns": tick["taken_ns"]}
    assert (mill["waiting"], mill["change"], mill["new"]) == (0, 2, True)
    (gone,) = tick["baseline"]["gone_suspects"]
    assert (gone["waiters"], gone["category"], gone["end"], gone["waiting"]) == ("bank", "lock", "bank", 4)
    (plain, *_) = json.loads(printed("replay", bad, "--json", "-n", "1"))["suspects"]
    assert "baseline" not in plain


def test_suspect_of_the_baseline_is_neither_a_suspect_nor_gone_while_as_much_waits(files: tuple[str, str]) -> None:
    good, _ = files
    text = printed("replay", good, "-b", "-n", "1", "--baseline", good)
    assert "suspect" not in text
    assert "suspect: 4 threads of bank" in printed("replay", good, "-b", "-n", "1")


@asynchronous
async def test_screen_says_since_when_a_suspect_is_new_and_which_are_gone() -> None:
    source = Held([*held(3, ends=62), *held(3, "mill", 600, begins=64)], 60)
    async with shown(source, (160, 50), weights=WEIGHTS) as (app, pilot):
        await pilot.press("B")
        await until(lambda: app.view.baseline is not None)
        source.go_on(70)
        await until(lambda: app.picture is not None and app.picture.common.newest.number == 70)
        await pilot.pause()
        assert "new since" not in "\n".join(screen(app)), "D compares"
        await pilot.press("D")
        assert "! new since 02:01:04: 3 threads of mill wait for a mutex" in "\n".join(screen(app))
        await pilot.press("6")
        text = "\n".join(screen(app))
        assert "3.00 waiting: new since 02:01:04: 3 threads of mill" in text
        assert "gone: shop (lock) behind shop, 3.00 in the baseline" in text


@asynchronous
async def test_screen_weighs_waits_by_the_baseline_as_soon_as_there_is_one() -> None:
    source = Held([*held(3), *held(6, pid=140, begins=64)], 60)
    async with shown(source, (160, 50), weights=WEIGHTS) as (app, pilot):
        assert "! 3 threads of shop" in "\n".join(screen(app))
        await pilot.press("B")
        await until(lambda: app.view.baseline is not None)
        source.go_on(63)
        await until(lambda: app.picture is not None and app.picture.common.newest.number == 63)
        await pilot.press("D")
        text = "\n".join(screen(app))
        assert "usual by the baseline (B): 3 threads of shop wait for a mutex" in text
        await pilot.press("6")
        assert "gone" not in "\n".join(screen(app)[10:-8])
        await pilot.press("escape")
        source.go_on(70)
        await until(lambda: app.picture is not None and app.picture.common.newest.number == 70)
        await pilot.pause()
        assert " of the baseline: 6 threads of shop wait for a mutex" in "\n".join(screen(app))
