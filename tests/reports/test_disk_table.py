"""Requests to disks as tables and in JSON."""

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
from offtop.model.values.disks import DeviceTotals, DiskActivity, DiskKey, DiskTotals
from offtop.model.values.io_stacks import IoStack, StackTotals
from offtop.model.values.snapshot import Snapshot
from offtop.model.values.stack import KERNEL, Frame, Names, Stack
from offtop.model.windows.history import History
from offtop.reports.disk_table import NOT_COUNTED, disk_object, lines
from offtop.reports.json_encoding import encode
from offtop.reports.schema import schema
from offtop.reports.tick import Tick, passing
from tests.command import run
from tests.model.machine import OwnNames

S, MS = 1_000_000_000, 1_000_000
SDA = 8 << 20
READS = DiskTotals(100, 409_600, 2 * MS, 8 * MS, 10 * MS, max_ns=MS, queue_histogram=log2.of(20_000))
WRITES = DiskTotals(8, 8_000_000, 80 * MS, 8 * MS, 188 * MS, 3, 2, 1, 40 * MS, now_ns=100 * MS, in_device=1)
ACTIVITY = DiskActivity(
    {
        DiskKey(SDA, "read", 42, 43): READS,
        DiskKey(SDA, "read", 42, 44): READS,
        DiskKey(SDA, "write", 0, 0, "flush-8:\x1b"): WRITES,
    },
    {SDA: DeviceTotals(READS.beside(READS), WRITES, busy_ns=S)},
    {SDA: "sda\x1b"},
    {43: "\x1bdb"},
    stacks={IoStack(DiskKey(SDA, "read", 42, 43), 3, 4): StackTotals(90, 368_640, 9 * MS, MS)},
)


def tick(names: Names, disks: DiskActivity | None = ACTIVITY, chosen: Filter = NOTHING) -> Tick:
    history = History(frozenset(), is_periodic)
    catalog = Catalog()
    catalog.stacks[3] = Stack((Frame(KERNEL, 0, "blk_mq_submit_bio"), Frame(KERNEL, 0, "vfs_read")))
    catalog.stacks[4] = Stack((Frame("/bin/db", 1, "load\x1b"),))
    history.add(Snapshot(0, 0, catalog=catalog))
    kept = history.add(Snapshot(0, 2 * S, disks=disks, catalog=catalog))
    assert kept
    return passing(kept, chosen, CauseFinder(names, WITHOUT_RULES))


@pytest.fixture
def names() -> Names:
    return OwnNames()


def test_tables_have_a_line_per_disk_and_per_operation(names: Names) -> None:
    summary, _, device, _, *rows = lines(tick(names), "WAITING", False, False)
    assert summary == "requests to disks: 104/s, 4.4MB/s, 208ms in queue and disk"
    assert device.split() == ["sda\\x1b", "100", "4", "0.41", "4.00", "0", "1", "50", "33us", "40ms"]
    assert [row.split()[:5] for row in rows] == [
        ["write", "sda\\x1b", "4", "4.00", "188ms"],
        ["read", "sda\\x1b", "100", "0.41", "20ms"],
    ]
    assert [row.split()[-1] for row in rows] == ["[flush-8:\\x1b]", "\\x1bdb(42)"]
    assert len([*lines(tick(names), "EV/S", False, True)]) == 7


def test_ticks_without_counting_say_so(names: Names) -> None:
    assert [*lines(tick(names, None), "WAITING", False, False)] == [NOT_COUNTED]
    assert disk_object(tick(names, None), names) is None


def test_filter_chooses_rows_but_no_disks(names: Names) -> None:
    made = [*lines(tick(names, chosen=parse("op=read dev=sd* cat=lock")), "WAITING", False, False)]
    assert made[1] == "ignored filter words: cat"
    assert (len(made), made[3].split()[1:3]) == (6, ["100", "4"])


def test_json_is_what_the_schema_says(names: Names) -> None:
    made = disk_object(tick(names), names)
    demo: dict[str, Any] = json.loads(run("replay", str(paths.demo()), "--json", "-n", "1").out)
    whole: dict[str, Any] = {**demo, "mode": "disk", "disks": json.loads(encode(made))}
    jsonschema.validate(whole, schema(), jsonschema.Draft202012Validator)
    first, *others = whole["disks"]["rows"]
    assert (first["op"], first["worker"], first["merged"], first["in_device"]) == ("write", "flush-8:\\x1b", 3, 1)
    assert [(row["tid"], row["program"]) for row in others] == [(43, "\\x1bdb"), (44, "")]
    assert others[0]["stacks"] == [
        {
            "kernel": ["blk_mq_submit_bio", "vfs_read"],
            "user": ["load\\x1b"],
            "user_end": "whole",
            "user_unsure": False,
            "requests": 90,
            "bytes": 368_640,
            "total_ns": 9 * MS,
            "max_ns": MS,
        }
    ]
    assert first["stacks"] == others[1]["stacks"] == []
    disk = whole["disks"]["disks"][0]
    assert (disk["device"], disk["busy_ns"], disk["reads"]["requests"]) == ("8:0", S, 200)
    first["op"] = "fsync"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(whole, schema(), jsonschema.Draft202012Validator)
