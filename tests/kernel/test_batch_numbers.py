"""Test that the numbers of batch mode are right and add up, on the real kernel."""

import json
import os
import re
import subprocess
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import jsonschema
import pytest

from offtop.commands.option_values import STATES
from offtop.model.aggregate.filter_syntax import parse
from offtop.model.values.snapshot import Filters
from offtop.model.values.wake import CHAIN, OFFCPU, OFFWAKE, WAKEUP
from offtop.reports.wanted import Wanted
from tests import command
from tests.kernel import programs, waits, watch
from tests.kernel.batch_output import NOTHING_WATCHED, check_laws, counted, printed, selecting
from tests.kernel.offtop_process import Tick, started
from tests.kernel.watch import MS, Watch

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("no_settings")]

LATE_NS = 150 * MS
"""Slack for a slow first read on a busy machine.

What ran meanwhile may count in the first tick.
"""


def closed(schema: Any) -> Any:
    """Return the schema with additional properties forbidden everywhere."""
    if isinstance(schema, list):
        return [closed(part) for part in cast(list[Any], schema)]
    if not isinstance(schema, dict):
        return schema
    parts = {key: closed(part) for key, part in cast(dict[str, Any], schema).items()}
    return {"additionalProperties": False, **parts} if parts.get("type") == "object" else parts


@pytest.fixture(scope="module")
def published() -> Any:
    """Return a validator of the schema that the command prints, which allows no other properties."""
    schema = json.loads(command.run("schema").out)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(closed(schema))


@pytest.fixture(scope="module")
def live() -> Generator[Watch]:
    with watch.watching(NOTHING_WATCHED) as live:
        yield live


def in_json(live: Watch, words: str = "", ticks: int = 2, delay_ns: int = 300 * MS) -> list[Tick]:
    """Return the JSON of so many ticks; `words`: as for --filter."""
    return [json.loads(line) for line in printed(live, Wanted(parse(words)), True, ticks, delay_ns).splitlines()]


def test_each_tick_of_the_command_matches_the_schema_and_its_laws_hold(
    published: Any,
) -> None:
    with waits.running("sleep", times=10_000, each_ms=2) as child:
        child.go()
        ended = command.run("--json", "-n", "3", "-d", "0.3")
    assert (ended.status, ended.err) == (0, "")
    ticks: list[Tick] = [json.loads(line) for line in ended.out.splitlines()]
    assert len(ticks) == 3
    check_ticks(ticks, OFFCPU, child, published)
    assert {tick["filter"] for tick in ticks} == {None}


@pytest.mark.parametrize(
    ("filters", "mode"),
    [
        pytest.param(Filters(max_ns=5 * MS), OFFCPU, id="--max"),
        pytest.param(Filters(states=STATES["uninterruptible"]), OFFCPU, id="--state", marks=pytest.mark.variant),
        pytest.param(Filters(min_ns=0), OFFCPU, id="--min 0 -p", marks=pytest.mark.variant),
        pytest.param(Filters(), WAKEUP, id="wakeup", marks=pytest.mark.variant),
        pytest.param(Filters(min_ns=0), OFFWAKE, id="offwake --min 0 -p", marks=pytest.mark.variant),
        pytest.param(Filters(), CHAIN, id="chain"),
    ],
)
def test_each_tick_matches_the_schema_with_filters_and_in_each_mode(
    live: Watch, filters: Filters, mode: str, published: Any
) -> None:
    with waits.running("sleep", times=10_000, each_ms=2) as child:
        child.go()
        if not filters.min_ns:
            filters = replace(filters, pids=(child.pid,))
        with selecting(live, filters, mode):
            ticks = in_json(live)
        check_ticks(ticks, mode, child, published)


def check_ticks(ticks: Sequence[Tick], mode: str, child: waits.Child, published: Any) -> None:
    """Check ticks in which the child sleeps all the time."""
    for tick in ticks:
        published.validate(tick)
        check_laws(tick)
        check_accounts(tick)
        check_still_blocked(tick)
        check_wakers(tick, mode)
        is_partial = bool(tick["filters"]["max_ns"] or tick["filters"]["states"])
        mine = next(thread for thread in tick["threads"] if thread["tid"] == child.tid)
        assert mine["waits"] > 0
        assert mine["filtered_ns"] or not tick["filters"]["states"]
        filtered_ns = sum(thread["filtered_ns"] for thread in tick["threads"])
        assert filtered_ns == sum(part["total_ns"] for part in tick["categories"] if part["name"] == "filtered")
        assert bool(filtered_ns) == is_partial
    ran_ns = sum(thread["running_ns"] for tick in ticks for thread in tick["threads"])
    assert 0 < ran_ns <= (os.cpu_count() or 1) * (sum(tick["span_ns"] for tick in ticks) + LATE_NS)


def check_wakers(tick: Tick, mode: str) -> None:
    """Check that each ended wait for something has a waker, and links of chains theirs."""
    assert tick["mode"] == mode
    woken = [site for site in tick["sites"] if site["waker"]]
    assert (mode == "offcpu") == (not woken)
    assert mode != "offcpu" or tick["storms"] == []
    for site in tick["sites"]:
        assert (mode == "chain" and bool(site["waker"])) == (site["chain_end"] is not None)
        if site["chain_end"]:
            assert len(site["chain"]) == len(site["chain_wakers"]) <= 7
    for waker in [site["waker"] for site in woken] + [storm["waker"] for storm in tick["storms"]]:
        assert (waker["kind"] in ("thread", "signal", "exit")) == (waker["tid"] > 0)
        assert waker["kernel"] or waker["kind"] == "unknown"


@pytest.fixture(scope="module")
def wakings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build tests/kernel/wakings.c, whose threads wake each other."""
    program, source = tmp_path_factory.mktemp("wakings") / "wakings", Path(__file__).with_name("wakings.c")
    flags = ("-O1", "-D_GNU_SOURCE", "-pthread", "-fno-omit-frame-pointer", "-fno-builtin")
    subprocess.run(["gcc", *flags, "-o", program, source], check=True, timeout=60)
    return program


@contextmanager
def waking(program: Path, kind: str, times: int, each_ms: int) -> Generator[programs.Program]:
    """Run it, past its go."""
    with programs.running([program, kind, str(times), str(each_ms)]) as child:
        child.go_on_alone()
        yield child


@pytest.mark.parametrize("mode", [*(pytest.param(one, marks=pytest.mark.variant) for one in (WAKEUP, OFFWAKE)), CHAIN])
def test_a_futex_waker_has_its_functions_and_its_own_waker(live: Watch, wakings: Path, mode: str) -> None:
    with waking(wakings, "futex", 1500, 20) as child, selecting(live, Filters(pids=(child.pid,)), mode):
        last = in_json(live, ticks=3, delay_ns=500 * MS)[-1]
    woken = [site for site in last["sites"] if site["comm"] == "sleeper" and site["waker"]]
    most = max(woken, key=lambda site: site["waits"])
    waker = most["waker"]
    assert most["waits"] >= 10
    assert "wait_futex" in most["user"]
    assert (waker["kind"], waker["comm"], waker["tid"]) == ("thread", "waker", child.at["waker"])
    assert "futex_wake" in waker["kernel"]
    assert {"wake_futex", "waker"} <= {*waker["user"]}
    assert (most["object"]["kind"], most["object"]["pid"]) == ("futex", child.pid)
    assert int(most["object"]["name"], 16) > 0
    if mode == CHAIN:
        assert "rest" in most["chain"][0]
        assert most["chain_wakers"][0]["kind"] == "timeout"
        assert most["chain_end"] == "whole"


def test_waking_a_hundred_threads_at_once_is_a_storm(live: Watch, wakings: Path) -> None:
    with waking(wakings, "storm", 1500, 20) as child, selecting(live, Filters(pids=(child.pid,)), WAKEUP):
        ticks = in_json(live, ticks=3, delay_ns=500 * MS)
    for tick in ticks[1:]:
        storm = next(one for one in tick["storms"] if one["waker"]["tid"] == child.pid)
        assert storm["waker"]["comm"] == "wakings"
        assert storm["storms"] >= 10
        assert 8 <= storm["largest"] <= 100
        assert 8 * storm["storms"] <= storm["woken"] + 8
        assert storm["again"] <= storm["woken"] + 100  # some slept again after the end of a tick
        assert storm["wasted_switches"] == 2 * storm["again"]


def check_accounts(tick: Tick) -> None:
    """Check the run time of each thread, and what is left of the tick."""
    for thread in tick["threads"]:
        assert thread["voluntary"] + thread["involuntary"] == thread["waits"]
        if thread["residue_ns"] is not None:
            assert thread["running_ns"] + thread["offcpu_ns"] + thread["residue_ns"] == tick["span_ns"]
    assert sum(thread["residue_ns"] is not None for thread in tick["threads"]) > 0
    assert tick["machine"]["cpus"] == os.cpu_count()
    assert tick["cost"]["walk_ns"] > 0


def check_still_blocked(tick: Tick) -> None:
    """Check waits in progress: age, order, and time in this tick.

    They are old enough for a stack, and the oldest comes first.
    """
    every = tick["still_blocked"]
    ages = [one["age_ns"] for one in every]
    assert ages == sorted(ages, reverse=True)
    assert len({(one["pid"], one["tid"]) for one in every}) == len(every)
    threads = {(thread["pid"], thread["tid"]): thread for thread in tick["threads"]}
    for one in every:
        assert one["age_ns"] >= tick["filters"]["min_ns"]
        if one["syscall"] is None or not (one["arguments"] or is_of_64_bits(one["pid"])):
            assert one["arguments"] == []
        else:
            assert len(one["arguments"]) == 6
        assert one["state"] in "RSDTtPIK"
        assert one["kernel"] or one["category"] in ("other", "run-queue")  # its stack arrives with a later scan
        assert threads[one["pid"], one["tid"]]["offcpu_ns"] >= min(one["age_ns"], tick["span_ns"])


def is_of_64_bits(pid: int) -> bool:
    """Return whether a process is 64-bit; False if it has exited.

    Arguments of system calls are unknown for others.
    """
    try:
        with Path(f"/proc/{pid}/exe").open("rb") as program:
            return program.read(5)[4] == 2
    except OSError:
        return False


def test_a_wait_in_progress_has_its_age_call_and_both_stacks() -> None:
    with (
        waits.running("futex", times=1, each_ms=60_000) as child,
        started("--json", "-d", "0.3", "-p", str(child.pid)) as run,
    ):
        run.tick()
        went_ns = time.monotonic_ns()
        child.go()
        tick, mine = run.tick(), list[Tick]()
        for _ in range(10):
            mine = [one for one in tick["still_blocked"] if one["tid"] == child.tid and one["syscall"] == "futex"]
            if mine and mine[0]["user"]:
                break
            tick = run.tick()
        (one,) = mine
        told_ns = time.monotonic_ns()
        tick = run.tick()
    assert (one["pid"], one["comm"], one["process"]) == (child.pid, "waits", "waits")
    assert (one["category"], one["state"], one["age_is"], one["idle"]) == ("lock", "S", "exact", False)
    assert 0.2 * 10**9 <= one["age_ns"] <= told_ns - went_ns
    assert one["arguments"][1:3] == [128, 0]  # WAIT_PRIVATE, for a word that is 0
    assert one["kernel"][0] == "futex_do_wait"
    assert tuple(one["user"][:5]) == child.user
    thread = next(thread for thread in tick["threads"] if thread["tid"] == child.tid)
    assert (thread["offcpu_ns"], thread["running_ns"], thread["residue_ns"]) == (tick["span_ns"], 0, 0)


def test_text_has_a_stuck_table_and_a_now_column(live: Watch) -> None:
    with waits.running("futex", times=1, each_ms=60_000) as child:
        child.go()
        ended = command.run("-b", "--stuck", "-n", "2", "-d", "0.5", "-p", str(child.pid))
        with selecting(live, Filters(pids=(child.pid,))):
            without = printed(live, Wanted(), as_json=False, ticks=1, delay_ns=300 * MS)
    assert (ended.status, ended.err) == (0, "")
    _, last = ended.out.split("offtop - ")[1:]
    categories, listed, stuck = last.split("\n\n")[:3]
    assert categories.splitlines()[1].split()[-1] == listed.splitlines()[0].split()[-2] == "NOW"
    title, heads, row = stuck.splitlines()
    assert title == "stuck now: 1 thread"
    assert heads.split() == ["AGE", "PID", "TID", "COMMAND", "S", "CATEGORY", "SYSCALL", "STACK"]
    age, *words = row.split()
    assert re.fullmatch(r"<=\d+\.\d+s", age)  # it began before offtop did
    assert words[:5] == [str(child.pid), str(child.pid), "waits", "S", "lock"]
    assert re.search(r"futex\(0x[0-9a-f]+, WAIT_PRIVATE, 0\)  futex_do_wait < ", row)
    assert row.endswith(" < ".join(("futex_do_wait", *child.user)))  # without the C library's
    assert age in categories
    assert age in listed
    assert "waits" in without and "stuck now" not in without


def test_23_sleeps_of_10_ms_are_23_sleep_waits_at_their_functions() -> None:
    with (
        waits.running("sleep", times=23, each_ms=10) as child,
        started("--json", "-d", "0.3", "-p", str(child.pid)) as run,
    ):
        ticks = [run.tick()]
        began_ns = time.monotonic_ns()
        child.go()
        child.finish()
        took_ns, ended_ns = time.monotonic_ns() - began_ns, time.time_ns()
        while ticks[-1]["taken_ns"] < ended_ns:
            ticks.append(run.tick())
        mine = [s for tick in ticks for s in tick["sites"] if s["tid"] == child.tid and s["category"] == "sleep"]
        made = [site for site in mine if tuple(site["user"][:5]) == child.user]
        # a thread preempted between its wakeup and running has another wait at the same stack
        put_aside = sum(t["involuntary"] for tick in ticks for t in tick["threads"] if t["tid"] == child.tid)
        assert 23 <= sum(site["waits"] for site in made) <= 23 + put_aside
        assert sum(counted(site) for site in made) == sum(site["waits"] for site in mine)
        assert 0.9 * 230 * MS <= sum(site["total_ns"] for site in mine) <= took_ns
        assert max(site["max_ns"] for site in made) >= 10 * MS


@pytest.mark.parametrize("threads", [False, True], ids=["processes", "threads"])
def test_text_shows_where_each_row_waits(live: Watch, threads: bool) -> None:
    with waits.running("sleep", times=10_000, each_ms=10) as child:
        child.go()
        with selecting(live, Filters(pids=(child.pid,))):
            live.load_unwind_rules(child.tid, *child.user)
            wanted = Wanted(idle_shown=True, threads=threads)
            out = printed(live, wanted, as_json=False, ticks=1, delay_ns=400 * MS)
    (row,) = [line for line in out.splitlines() if line.split()[:1] == [str(child.pid)]]
    assert "  sleep() in the program: do_nanosleep < " in row
    assert " < ".join(child.user) in row


def test_filtered_json_matches_the_schema_and_has_complete_threads(live: Watch, published: Any) -> None:
    with (
        waits.running("sleep", times=10_000, each_ms=2) as child,
        waits.running("sleep", times=10_000, each_ms=2) as other,
    ):
        child.go()  # the other one waits for its go
        words = f"pid={child.pid} cat=sleep", f"pid={child.pid}", "stack=wait_sleep", "comm=nobody"
        with selecting(live, Filters(pids=(child.pid, other.pid))):
            ticks = [(text, tick) for text in words for tick in in_json(live, text)]
    assert len(ticks) == 2 * len(words)
    for text, tick in ticks:
        published.validate(tick)
        assert tick["filter"] == text
        assert tick["left_out_ns"] > 0
        mine = [] if text == "comm=nobody" else [child.tid]
        assert [thread["tid"] for thread in tick["threads"]] == mine
        assert {site["tid"] for site in tick["sites"]} == {*mine}
        assert bool(tick["categories"]) == bool(mine)
        for thread in tick["threads"]:
            sites_ns = sum(site["total_ns"] for site in tick["sites"])
            assert sites_ns + thread["short_ns"] == thread["offcpu_ns"] or text != words[1]
            assert sites_ns <= thread["offcpu_ns"]
        if "wait_sleep" in text:
            assert all("wait_sleep" in site["user"] for site in tick["sites"])
