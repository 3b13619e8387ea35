"""Test offtop export on this machine.

A child's waits are in the file, and filters that need more than names apply.
"""

import csv
import io
import json
import signal
import time
from pathlib import Path

import pytest

from tests import command
from tests.kernel import waits

pytestmark = pytest.mark.kernel


@pytest.mark.parametrize(
    "chosen",
    [
        *(pytest.param(one, marks=pytest.mark.variant) for one in ((), ("-u", "root"))),
        ("--filter", "user=root cat=sleep"),
    ],
)
def test_the_waits_of_a_child_are_exported(chosen: tuple[str, ...]) -> None:
    with waits.running("sleep", times=10_000, each_ms=10) as child:
        child.go()
        ended = command.run("export", "csv", "-i", "-n", "2", "-d", "0.5", "-p", str(child.pid), *chosen)
    assert (ended.status, ended.err) == (0, "")
    rows = [*csv.DictReader(io.StringIO(ended.out))]
    asleep = [row for row in rows if row["category"] == "sleep"]
    assert asleep and {row["pid"] for row in rows} == {str(child.pid)}
    assert sum(int(row["total_ns"]) for row in asleep) > 500_000_000
    assert any(";".join(child.user[::-1]) in row["stack"] for row in asleep)


@pytest.mark.variant
@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_ctrl_c_writes_what_passed_until_then(form: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with waits.running("sleep", times=10_000, each_ms=10) as child:
        child.go()
        options = ("-n", "1000", "-d", "0.2", "-p", str(child.pid), "-o", str(out))
        process = command.start("export", form, "-i", *options, *command.QUICK)
        time.sleep(4)
        process.send_signal(signal.SIGINT)
        ended = command.ended(process)
    assert (ended.status, ended.err) == (0, "\nofftop: interrupted; everything up to the last tick is written\n")
    lines = out.read_text().splitlines()
    assert len(lines) > 1
    if form == "jsonl":
        assert all(json.loads(line)["threads"] for line in lines[1:])
