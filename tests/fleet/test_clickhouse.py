"""The tables and queries for ClickHouse, in a real ClickHouse, with the ticks of the demo: `make fleet`.

Python's chdb is ClickHouse in one process. It is downloaded once (130 MB), to ~/.cache/offtop or $OFFTOP_KERNELS.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.command import call
from tests.fleet.engines import FILES

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(900)]  # the download

_VERSION = "26.9.0"
_TICKS_OF_OTHERS = 10


@pytest.fixture(scope="module")
def chdb() -> Path:
    cache = Path(os.environ.get("OFFTOP_KERNELS") or Path.home() / ".cache/offtop") / f"chdb-{_VERSION}"
    if not cache.exists():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", f"{cache}.new"]
        subprocess.run([*command, f"chdb-core=={_VERSION}"], check=True, stdout=subprocess.DEVNULL)
        Path(f"{cache}.new").rename(cache)
    return cache


def statements(name: str) -> list[str]:
    parts = re.split(r";[ ]*(?:\n|$)", (FILES / "clickhouse" / name).read_text())
    return [one for one in parts if re.sub(r"--.*", "", one).strip()]


def answers(chdb: Path, sql: Sequence[str]) -> list[list[dict[str, Any]]]:
    ran = subprocess.run(
        [sys.executable, Path(__file__).with_name("clickhouse_runner.py")],
        input=json.dumps(sql),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(chdb)},
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def threads_by_category(ticks: Sequence[Any]) -> dict[str, float]:
    waits = Counter[str]()
    for one in (site for tick in ticks for site in tick["sites"]):
        if not (one["idle"] or one["standing"]):
            waits[one["category"]] += one["total_ns"] + one["earlier_ns"]
    return {name: ns / sum(tick["span_ns"] for tick in ticks) for name, ns in waits.items()}


def test_rows_have_the_sums_of_json_and_each_query_answers(chdb: Path, tmp_path: Path) -> None:
    """db7 has the whole demo, and six others only its first ticks."""
    lines = call("demo", "--json").out.splitlines(keepends=True)
    ticks = [json.loads(line) for line in lines]
    (tmp_path / "all").write_text("".join(lines))
    (tmp_path / "some").write_text("".join(lines[:_TICKS_OF_OTHERS]))
    # What clickhouse-client reads from stdin, this ClickHouse reads from a file.
    inserts = [
        f"INSERT INTO offtop_lines SELECT '{host}', line FROM file('{tmp_path / name}', LineAsString, 'line String')"
        for host, name in (("db7", "all"), *((f"db{number}", "some") for number in range(1, 7)))
    ]
    begin, end = (
        datetime.fromtimestamp(ticks[number]["taken_ns"] // 10**9 + more_s, UTC).strftime("%F %T")
        for number, more_s in ((0, -2), (-1, 2))
    )
    parameters = {"host": "db7", "other": "db3", "category": "lock", "begin": begin, "end": end}
    settings = [f"SET param_{name} = '{value}'" for name, value in parameters.items()]
    sums = "SELECT sum(ns), sum(waits), count(), countIf(process = '') FROM offtop_waits WHERE host = 'db7'"
    queries = statements("queries.sql")
    assert len(queries) == 10
    schema = ["CREATE DATABASE offtop", "USE offtop", *statements("schema.sql")]
    found = answers(chdb, [*schema, *inserts, *settings, sums, *queries])
    every = [site for tick in ticks for site in tick["sites"]]
    total, *results = found[-11:]
    expected = [sum(one["total_ns"] + one["earlier_ns"] for one in every), sum(one["waits"] for one in every)]
    assert [int(one) for one in total[0].values()] == [*expected, len(every), 0]
    hosts, outliers, programs, stacks, compared, course, suspects, longest, objects, losses = results
    assert len(hosts) == 7
    for one in hosts:
        waiting = threads_by_category(ticks if one["host"] == "db7" else ticks[:_TICKS_OF_OTHERS])
        assert one["threads"] == pytest.approx(sum(waiting.values()), abs=0.006)
        assert one["most_in"] == max(waiting, key=lambda name: waiting[name])
    assert [(one["host"], one["category"]) for one in outliers] == [("db7", "lock")]
    by_cause = {(one["process"], one["category"], one["cause"]) for one in programs}
    assert ("postgres", "lock", "postgres-wal") in by_cause
    assert max(int(one["hosts"]) for one in stacks) == 7 and "futex" in stacks[0]["kernel_stack"]
    assert all(
        one["difference"] == pytest.approx(one["own_threads"] - one["other_threads"], abs=0.002) for one in compared
    )
    assert compared[0]["process"] == "postgres"
    assert len({one["at"] for one in course}) > 5
    assert {int(one["hosts"]) for one in suspects} == {1, 7}
    assert any(one["waiter"] == one["holder"] == "postgres" for one in suspects)
    assert longest[0]["ms"] == pytest.approx(max(one["max_ns"] for one in every if not one["idle"]) / 1e6, abs=0.06)
    every += [site for tick in ticks[:_TICKS_OF_OTHERS] for site in tick["sites"]] * 6
    ns = Counter[tuple[str, str]]()
    for one in every:
        thing, waker = one["object"] or {"kind": "", "name": "", "peer": ""}, one["waker"] or {"comm": "", "kind": ""}
        key = f"{thing['kind']} {thing['peer'] or thing['name']}".strip(), waker["comm"] or waker["kind"]
        if any(key) and not (one["idle"] or one["standing"]):
            ns[key] += one["total_ns"] + one["earlier_ns"]
    assert [one["seconds"] for one in objects] == pytest.approx([s / 1e9 for _, s in ns.most_common(20)], abs=0.06)
    assert ns[objects[0]["object"], objects[0]["waker"]] / 1e9 == pytest.approx(objects[0]["seconds"], abs=0.06)
    assert {one["host"]: int(one["ticks"]) for one in losses} == {
        "db7": len(ticks),
        **{f"db{number}": _TICKS_OF_OTHERS for number in range(1, 7)},
    }
    assert all(one["gaps_s"] == 0 for one in losses)
