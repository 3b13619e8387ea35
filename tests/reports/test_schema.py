"""The schema that `offtop schema` prints: it describes every key, and refuses what offtop never prints."""

import json
from typing import Any

import jsonschema
import pytest

from offtop import paths
from offtop.reports.schema import schema
from tests.command import run

SCHEMA = schema()


@pytest.fixture(scope="module")
def tick() -> dict[str, Any]:
    return json.loads(run("replay", str(paths.demo()), "--json", "-n", "1").out)


def is_valid(made: Any) -> bool:
    return jsonschema.Draft202012Validator(SCHEMA).is_valid(made)  # pyright: ignore[reportUnknownMemberType]


def shrunk(tick: dict[str, Any]) -> dict[str, Any]:
    """Return a copy with one object of each list."""
    return json.loads(json.dumps({key: value[:1] if isinstance(value, list) else value for key, value in tick.items()}))


def test_keys_are_in_the_order_of_the_schema(tick: dict[str, Any]) -> None:
    assert is_valid(tick)
    assert [*tick] == [key for key in SCHEMA["properties"] if key != "baseline"]
    assert SCHEMA["required"] == [key for key in tick if key not in ("files", "disks")]
    assert [*tick["sites"][0]] == SCHEMA["$defs"]["Site"]["required"]


def test_docstrings_of_fields_are_descriptions() -> None:
    assert SCHEMA["properties"]["taken_ns"]["description"] == "CLOCK_REALTIME of the end of the tick."
    blocked, waker = (SCHEMA["$defs"][name]["properties"] for name in ("Blocked", "Waker"))
    assert blocked["process"]["description"] == "The process's name."
    assert waker["kind"]["description"].startswith("What ended the wait. thread: another thread; irq: an interrupt ")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("sites", ...),
        ("sites.0.tid", ...),
        ("filters.pids", None),
        ("threads.0.max_ns", -1),
        ("categories.0.total_ns", 1.5),
        ("categories.0.histogram", [[1]]),
        ("still_blocked.0.age_is", "about"),
        ("sites.0.user_end", "torn"),
        ("sites.0.waker", {"kind": "thread"}),
        ("lost", {"ticks": "many"}),
    ],
)
def test_missing_keys_and_wrong_values_are_refused(tick: dict[str, Any], place: str, value: object) -> None:
    """`...` stands for no value."""
    changed = shrunk(tick)
    assert is_valid(changed)
    *keys, last = place.split(".")
    part: Any = changed
    for key in keys:
        part = part[int(key)] if key.isdecimal() else part[key]
    if value is ...:
        del part[last]
    else:
        part[last] = value
    assert not is_valid(changed)
