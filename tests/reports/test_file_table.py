"""File operations as a table and in JSON."""

import json
from typing import Any

import jsonschema
import pytest

from offtop import paths
from offtop.model.aggregate.filter import NOTHING, Filter
from offtop.model.aggregate.filter_syntax import parse
from offtop.model.classify.categories import is_periodic
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import WITHOUT_RULES
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import Catalog
from offtop.model.values.files import FileActivity, FileId, FileKey, FileTotals
from offtop.model.values.io_stacks import IoStack, StackTotals
from offtop.model.values.snapshot import Snapshot
from offtop.model.values.stack import KERNEL, Frame, Names, Stack
from offtop.model.windows.history import History
from offtop.reports.file_table import NOT_COUNTED, file_object, lines
from offtop.reports.json_encoding import encode
from offtop.reports.schema import schema
from offtop.reports.tick import Tick, passing
from tests.command import run
from tests.model.machine import OwnNames

S, MS = 1_000_000_000, 1_000_000
HOSTILE = "/tmp/\x1b[2J\u202edata"
COLUMNS = ["OP", "CALLS/S", "MB/S", "TIME", "%OFF-CPU", "p50<=", "p99<=", "MAX", "NOW"]
ACTIVITY = FileActivity(
    {
        FileKey(42, "fsync", FileId(2049 << 9, 1, 0)): FileTotals(
            4, 0, 80 * MS, 76 * MS, 30 * MS, log2.of(20 * MS), 5 * MS
        ),
        FileKey(42, "pread", FileId(1, 2, 0)): FileTotals(1000, 8_000_000, 9 * MS, 0, MS, log2.of(9_000)),
    },
    {FileId(1, 2, 0): HOSTILE},
    {42: "\x1bdb"},
    stacks={IoStack(FileKey(42, "fsync", FileId(2049 << 9, 1, 0)), 3, 4): StackTotals(3, 0, 70 * MS, 30 * MS)},
)


def tick(names: Names, files: FileActivity | None = ACTIVITY, chosen: Filter = NOTHING) -> Tick:
    history = History(frozenset(), is_periodic)
    catalog = Catalog()
    catalog.stacks[3] = Stack((Frame(KERNEL, 0, "__schedule"), Frame(KERNEL, 0, "jbd2_log_wait_commit")), 1)
    catalog.stacks[4] = Stack((Frame("/bin/db", 1, "commit\x1b"), Frame("/bin/db", 2, "main")))
    history.add(Snapshot(0, 0, catalog=catalog))
    kept = history.add(Snapshot(0, 2 * S, files=files, catalog=catalog))
    assert kept
    return passing(kept, chosen, CauseFinder(names, WITHOUT_RULES))


@pytest.fixture
def names() -> Names:
    return OwnNames()


def test_table_has_a_line_per_operation_most_time_first(names: Names) -> None:
    summary, head, *rows = lines(tick(names), "WAITING", False)
    assert summary == "file operations: 502 calls/s, 4.0MB/s, 89ms in calls"
    assert head.split()[2:-1] == COLUMNS
    assert [row.split()[2] for row in rows] == ["fsync", "pread"]
    assert rows[1].split()[3:9] == ["500", "4.00", "9.0ms", "0", "16us", "16us"]
    assert rows[1].split()[1::9] == ["\\x1bdb", "/tmp/\\x1b[2J\\u202edata"]
    assert [row.split()[2] for row in [*lines(tick(names), "EV/S", False)][2:]] == ["pread", "fsync"]


def test_ticks_without_counting_say_so(names: Names) -> None:
    assert [*lines(tick(names, None), "WAITING", False)] == [NOT_COUNTED]
    assert file_object(tick(names, None), names) is None


def test_filter_applies_and_ignored_words_are_named(names: Names) -> None:
    made = [*lines(tick(names, chosen=parse("op=pread cat=lock")), "WAITING", False)]
    assert made[1] == "ignored filter words: cat"
    assert len(made) == 4


def test_json_is_what_the_schema_says(names: Names) -> None:
    made = file_object(tick(names), names)
    demo: dict[str, Any] = json.loads(run("replay", str(paths.demo()), "--json", "-n", "1").out)
    whole: dict[str, Any] = {**demo, "mode": "file", "files": json.loads(encode(made))}
    jsonschema.validate(whole, schema(), jsonschema.Draft202012Validator)
    first = whole["files"]["rows"][0]
    assert (first["op"], first["total_ns"], first["now_ns"], first["histogram"]) == (
        "fsync",
        80 * MS,
        5 * MS,
        [[16777216, 1]],
    )
    assert first["stacks"] == [
        {
            "kernel": ["jbd2_log_wait_commit"],
            "user": ["commit\\x1b", "main"],
            "user_end": "whole",
            "user_unsure": False,
            "calls": 3,
            "bytes": 0,
            "total_ns": 70 * MS,
            "max_ns": 30 * MS,
        }
    ]
    assert whole["files"]["rows"][1]["stacks"] == []
    assert whole["files"]["rows"][1]["file"] == "/tmp/\\x1b[2J\\u202edata"
    first["op"] = "futex"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(whole, schema(), jsonschema.Draft202012Validator)
