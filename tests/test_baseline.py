"""--baseline FILE adds changes to text and JSON, and its invalid uses are refused."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from offtop.reports.schema import schema
from offtop.units import NS_PER_S
from tests.command import call
from tests.test_diff import BUSIER, recorded, recorded_of
from tests.ui.sampled import SampledSource
from tests.ui.scripted import SHOP

ANEW = tuple(one._replace(pid=one.pid + 5_000, tid=one.tid + 5_000) for one in BUSIER)
"""BUSIER after a restart of all its processes."""


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> str:
    return recorded(tmp_path_factory.mktemp("good") / "good.offtop", SHOP, 20)


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> str:
    return recorded(tmp_path_factory.mktemp("bad") / "bad.offtop", ANEW, 8)


def lines(*arguments: str) -> list[str]:
    ended = call("replay", *arguments, "-b", "-n", "1")
    assert (ended.status, ended.err) == (0, "")
    return ended.out.splitlines()


def words(found: list[str], name: str) -> list[str]:
    return next(line.split() for line in found if name in line.split()[:2])


def test_tables_have_change_columns_and_a_line_names_the_baseline(good: str, bad: str) -> None:
    found = lines(bad, "--baseline", good)
    assert found[1] == "baseline 1.00 waiting in 20.0s of good.offtop"
    heads = [line for line in found if "WAITING" in line and "MAX" in line]
    assert [line.split()[line.split().index("WAITING") + 1 :][:3] for line in heads] == [["CHANGE", "p99", "x"]] * 2
    assert words(found, "pipe")[1:4] == ["0.50", "+0.50!", "new"]
    assert words(found, "disk-read")[1:4] == ["0.00", "-0.10!", "gone"]
    assert words(found, "lock")[1:4] == ["0.70", "+0.00", "x1"]
    assert words(found, "shop")[2:5] == ["1.20", "+0.40!", "x1.5"]


def test_rows_and_threads_sort_by_change(good: str, bad: str) -> None:
    found = lines(bad, "--baseline", good, "-o", "CHANGE", "-H")
    at = next(number for number, line in enumerate(found) if "COMMAND" in line)
    assert [line.split()[2] for line in found[at + 1 : at + 3]] == ["worker-2", "worker-1"]
    back = lines(bad, "--baseline", good, "-o", "-CHANGE")
    at = next(number for number, line in enumerate(back) if "COMMAND" in line)
    assert [line.split()[1] for line in back[at + 1 : at + 3]] == ["bank", "shop"]


def test_sampled_baseline_is_reported(good: str, tmp_path: Path) -> None:
    sampled = recorded_of(SampledSource(own_only=True), tmp_path / "sampled.offtop", 4)
    doubt = "; the baseline was sampled; the baseline has own processes only"
    assert lines(good, "--baseline", sampled)[1].endswith(doubt)
    assert lines(sampled, "--baseline", good)[1].partition("; ")[2].startswith("the baseline was not sampled; ")
    assert "sampled" not in lines(sampled, "--baseline", sampled)[1].removesuffix("of sampled.offtop")
    sampling = [tick(good, "--baseline", of)["baseline"]["sampling"] for of in (good, sampled)]
    assert sampling == [
        None,
        {
            "rate_hz": 20.0,
            "apart_ns": 50_000_000,
            "guessed_ns": NS_PER_S,
            "own_only": True,
            "lost_known": True,
            "container_only": False,
        },
    ]


def test_no_baseline_means_no_columns(bad: str) -> None:
    assert not [line for line in lines(bad) if "CHANGE" in line or "baseline" in line]


def tick(*arguments: str) -> dict[str, Any]:
    ended = call("replay", *arguments, "--json", "-n", "1")
    assert (ended.status, ended.err) == (0, "")
    made = json.loads(ended.out)
    jsonschema.validate(made, schema(), jsonschema.Draft202012Validator)
    return made


def test_json_has_changes_of_sites_threads_and_categories_and_what_disappeared(good: str, bad: str) -> None:
    made = tick(bad, "--baseline", good)
    assert (made["baseline"]["file"], made["baseline"]["span_ns"]) == ("good.offtop", 20 * NS_PER_S)
    assert made["baseline"]["gone_categories"] == [{"name": "disk-read", "waiting": 0.1}]
    assert made["baseline"]["gone_threads"] == []
    pipe = next(one for one in made["categories"] if one["name"] == "pipe")
    assert {key: pipe["baseline"][key] for key in ("waiting", "change", "new", "sure", "p99_ns")} == {
        "waiting": 0.0,
        "change": 0.5,
        "new": True,
        "sure": True,
        "p99_ns": 0,
    }
    changes = {one["comm"]: round(one["baseline"]["change"], 6) for one in made["threads"]}
    assert changes == {"worker-1": -0.1, "worker-2": 0.5, "clerk": 0.0, "teller": 0.0, "vault": 0.0, "door": 0.0}
    new = [one for one in made["sites"] if one["baseline"]["new"]]
    assert [one["user"] for one in new] == [["report", "main"]]
    assert all(one["baseline"]["waiting"] > 0 for one in made["sites"] if one not in new)


def test_json_without_a_baseline_has_no_baseline_keys(bad: str) -> None:
    made = tick(bad)
    assert "baseline" not in made
    assert not any("baseline" in one for by in ("categories", "threads", "sites") for one in made[by])


def test_baseline_of_itself_shows_no_change_and_filter_applies_to_both(good: str) -> None:
    made = tick(good, "--baseline", good, "--filter", "cat=lock")
    every = [one["baseline"] for by in ("categories", "threads", "sites") for one in made[by]]
    assert every and not any(abs(one["change"]) > 1e-6 or one["new"] or one["sure"] for one in every)
    assert made["baseline"]["gone_categories"] == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--baseline", "nowhere.offtop"), "nowhere.offtop"),
        (("-o", "CHANGE"), "--sort CHANGE needs --baseline FILE"),
        (("-f", "--baseline", "good.offtop"), "--folded cannot compare with a baseline"),
    ],
)
def test_invalid_use_of_a_baseline_is_an_error(bad: str, arguments: tuple[str, ...], error: str) -> None:
    ended = call("replay", bad, "-b", *arguments)
    assert ended.status != 0 and error in ended.sentence


def test_control_characters_of_a_file_name_are_escaped(good: str, bad: str, tmp_path: Path) -> None:
    evil = tmp_path / "\x1b[2Jx.offtop"
    evil.write_bytes(Path(good).read_bytes())
    found = lines(bad, "--baseline", str(evil))
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "".join(found))
