"""Test that the numbers of batch mode are right and add up, on the real kernel."""

import io
import json
import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import jsonschema
import msgspec
import pytest

from offtop.commands.option_values import STATES
from offtop.kernel.live import LiveSource
from offtop.model.aggregate.filter_syntax import parse
from offtop.model.classify.categories import is_periodic
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import WITHOUT_RULES
from offtop.model.values.snapshot import Filters
from offtop.model.values.stack import Names
from offtop.model.values.wake import CHAIN, OFFCPU, OFFWAKE, WAKEUP
from offtop.model.windows.history import History, HistoryTick
from offtop.person import person
from offtop.reports import batch
from offtop.reports.tick import passing
from offtop.reports.tick_json import tick_object
from offtop.reports.tick_rows import waiters
from offtop.reports.wanted import Wanted
from offtop.settings.rule_files import RuleFiles
from tests import command
from tests.kernel import programs, waits, watch
from tests.kernel.offtop_process import Tick, read, started, wait_for
from tests.kernel.watch import MS, Watch

pytestmark = pytest.mark.kernel

LATE_NS = 150 * MS
"""Slack for a slow first read on a busy machine.

What ran meanwhile may count in the first tick.
"""
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_C = ("-D_GNU_SOURCE", "-pthread", "-fno-omit-frame-pointer", "-fno-builtin")

NAMED = r"""
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
static const struct timespec ten_ms = {0, 10000000};
static __attribute__((noinline)) void nap(void)
{
	syscall(SYS_nanosleep, &ten_ms, 0);
	__asm__ volatile("");
}
static void *daughter(void *unused)
{
	prctl(PR_SET_NAME, DAUGHTER);
	tell("daughter", (void *)(long)gettid());
	next();
	for (;;)
		nap();
}
int main(void)
{
	pthread_t thread;
	prctl(PR_SET_NAME, MOTHER);
	pthread_create(&thread, 0, daughter, 0);
	for (;;)
		nap();
}
"""
"""Two threads with names, which sleep for 10 ms each time."""


@pytest.fixture(autouse=True, scope="module")
def no_settings(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    """Ignore the settings of the user who runs the tests."""
    file = tmp_path_factory.mktemp("settings") / "config.toml"
    file.touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OFFTOP_CONFIG", str(file))
        patch.setenv("SUDO_UID", "")
        yield


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


NOTHING_WATCHED = Filters(pids=(os.getpid(),))
"""Filters of the shared source between tests: offtop's own waits never count."""


@pytest.fixture(scope="module")
def live() -> Generator[Watch]:
    with watch.watching(NOTHING_WATCHED) as live:
        yield live


@contextmanager
def selecting(live: Watch, filters: Filters, mode: str = OFFCPU) -> Generator[None]:
    """Watch with these filters, in this mode."""
    live.source.set_filters(filters)
    live.source.set_mode(mode, 8)
    live.begin()
    try:
        yield
    finally:
        live.source.set_filters(NOTHING_WATCHED)
        live.source.set_mode(OFFCPU)


def printed(live: Watch, wanted: Wanted, as_json: bool, ticks: int, delay_ns: int) -> str:
    """Return what the command prints in so many ticks of this source."""
    out = io.StringIO()
    rules = RuleFiles(Path("/nonexistent"), person(), watch.rules().ids)
    batch.run(live.source, watch.rules(), delay_ns, ticks, wanted, as_json=as_json, width=0, out=out, rules=rules)
    return out.getvalue()


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


def check_laws(tick: Tick) -> None:
    sites_ns, sites_waits = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    for site in tick["sites"]:
        sites_ns[site["pid"], site["tid"]] += site["total_ns"]
        sites_waits[site["pid"], site["tid"]] += site["waits"]
        assert site["total_ns"] == site["blocked_ns"] + site["runqueue_ns"]
        assert site["waits"] == counted(site) or site["kernel"] == ["[stack lost]"]
    for thread in tick["threads"]:
        key = thread["pid"], thread["tid"]
        assert thread["offcpu_ns"] == sites_ns.pop(key, 0) + thread["short_ns"] + thread["filtered_ns"]
        assert thread["offcpu_ns"] == thread["blocked_ns"] + thread["runqueue_ns"]
        assert thread["runqueue_ns"] >= thread["preempted_ns"] >= 0
        assert thread["waits"] == counted(thread)
        assert thread["waits"] == sites_waits[key] + thread["short_waits"] or thread["filtered_ns"]
    assert not any(sites_ns.values())
    assert sum(part["total_ns"] for part in tick["categories"]) == sum(t["offcpu_ns"] for t in tick["threads"])
    for part in tick["categories"]:
        assert 0 <= part["idle_ns"] <= part["total_ns"]
        assert part["waits"] == counted(part) or part["name"] == "short" or "sites" in tick["lost"]


@pytest.fixture(scope="module")
def wakings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build tests/kernel/wakings.c, whose threads wake each other."""
    program, source = tmp_path_factory.mktemp("wakings") / "wakings", Path(__file__).with_name("wakings.c")
    subprocess.run(["gcc", "-O1", *_C, "-o", program, source], check=True, timeout=60)
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


def counted(row: Tick) -> int:
    return sum(count for _, count in row["histogram"])


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


@pytest.mark.parametrize(
    ("arguments", "coding"),
    [pytest.param("-b", "utf-8", marks=pytest.mark.variant), ("-b -H", "ascii"), ("--json", "ascii")],
)
def test_names_with_escape_codes_markup_and_invalid_utf8_are_escaped(
    tmp_path: Path, arguments: str, coding: str
) -> None:
    name = r'"\x1b[31mX[b]\xff\n"'
    file = tmp_path / "\x1b]0;x\x07[b]"  # it has no symbols, so its frames have its file's name
    quick = () if arguments == "--json" else command.QUICK
    programs.build(file, NAMED, *_C, f"-DMOTHER={name}", f"-DDAUGHTER={name}", "-s")
    with (
        programs.running([file]) as child,
        started(
            *quick, *arguments.split(), "-i", "-n", "2", "-d", "0.2", "-p", str(child.pid), PYTHONIOENCODING=coding
        ) as run,
    ):
        child.go_on_alone()
        ended = run.ended()
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.isascii() or coding == "utf-8"
    assert not CONTROL.search(ended.out.replace("\n", ""))
    if arguments != "--json":
        name = r"\x1b[31mX[b]" + ("\ufffd" if coding == "utf-8" else r"\ufffd")
        assert re.search(rf"^ *{child.pid} [ \d]*{re.escape(name)}", ended.out, re.MULTILINE)
        return
    ticks = [json.loads(line) for line in ended.out.splitlines()]
    rows = [row for tick in ticks for row in (*tick["threads"], *tick["sites"])]
    assert {row["comm"] for row in rows} == {"\\x1b[31mX[b]\ufffd\\x0a"}
    assert {row.get("process", row["comm"]) for row in rows} == {"\\x1b[31mX[b]\ufffd\\x0a"}
    frames = {frame for tick in ticks for site in tick["sites"] for frame in (*site["kernel"], *site["user"])}
    assert not any(CONTROL.search(frame) for frame in frames)
    assert any(frame.startswith(r"\x1b]0;x\x07[b]+0x") for frame in frames)


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


def test_a_thread_filter_leaves_only_that_thread(tmp_path: Path) -> None:
    file = programs.build(tmp_path / "named", NAMED, *_C, '-DMOTHER="mother"', '-DDAUGHTER="daughter"')
    with programs.running([file]) as child:
        child.go_on_alone()
        tid = child.at["daughter"]
        ended = command.run(*command.QUICK, "--json", "-n", "2", "-d", "0.3", "-t", str(tid))
    assert (ended.status, ended.err) == (0, "")
    ticks = [json.loads(line) for line in ended.out.splitlines()]
    assert len(ticks) == 2
    for tick in ticks:
        check_laws(tick)
        assert (tick["filters"]["pids"], tick["filters"]["tids"]) == ([], [tid])
        assert [(t["pid"], t["tid"], t["comm"], t["process"]) for t in tick["threads"]] == [
            (child.pid, tid, "daughter", "mother")
        ]
        assert {(site["pid"], site["tid"]) for site in tick["sites"]} == {(child.pid, tid)}
        assert tick["threads"][0]["waits"] > 0


# Filters of what is shown


def listed(text: str) -> list[str]:
    """Return the rows of the first tick's list; the last one may sum up the rest."""
    return text.split("\n\n")[1].splitlines()[1:]


def passes(text: str) -> float:
    """Return the share in the first tick's head line that the filter passes."""
    (found,) = re.findall(r'  filter ".*" passes ([0-9.]+)', text.splitlines()[0])
    return float(found)


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[programs.Program, LiveSource]]:
    """Run a mother and a daughter thread that wait all the time.

    Also yields a source that watches them like -p.
    """
    file = tmp_path_factory.mktemp("named") / "named"
    programs.build(file, NAMED, *_C, '-DMOTHER="mother"', '-DDAUGHTER="the daughter"')
    with programs.running([file]) as child:
        child.go_on_alone()
        with watch.watching(Filters(pids=(child.pid,))) as live:
            yield child, live.source


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("comm=mother", {"mother", "daughter"}),  # the name of the process matches too
        ("thread=moth*", {"mother"}),
        ("thread!=mother", {"daughter"}),
        ("!daughter", {"mother"}),
        ("DAUGHTER", {"daughter"}),
        ('thread="the daughter",nobody', {"daughter"}),
        ("cat=sleep", {"mother", "daughter"}),
        ("stack=nap", {"mother", "daughter"}),
        ("stack=main", {"mother"}),
        ("comm=mother thread!=mother", {"daughter"}),
        ("comm=nobody", set[str]()),
        ("waiting>0.5", {"mother", "daughter"}),
        ("waiting>5", set[str]()),
        ("evs>20 thread!=mother", {"daughter"}),
    ],
)
def test_tables_show_only_matches_and_the_head_line_their_share(
    named: tuple[programs.Program, LiveSource], words: str, names: set[str]
) -> None:
    child, source = named
    written, wanted = io.StringIO(), Wanted(parse(words), idle_shown=True, threads=True)
    batch.run(source, watch.rules(), 400 * MS, 1, wanted, as_json=False, width=0, out=written)
    out = written.getvalue()
    assert f'  filter "{words}" passes ' in out.splitlines()[0]
    rows = [row.split() for row in listed(out)]
    rest = ["2", "more"] if words == "waiting>5" else []
    assert rest == (rows.pop()[:2] if rest else [])
    tids = {"mother": child.pid, "daughter": child.at["daughter"]}
    assert {(int(pid), int(tid)) for pid, tid, *_ in rows} == {(child.pid, tids[name]) for name in names}
    assert passes(out) == pytest.approx(2 if rest else len(names), abs=0.3)


def test_row_terms_select_rows_and_the_rest_is_summed_up() -> None:
    with (
        waits.running("sleep", times=10_000, each_ms=5) as often,
        waits.running("sleep", times=10_000, each_ms=100) as seldom,
    ):
        often.go()
        seldom.go()
        both = "-p", f"{often.pid},{seldom.pid}"
        ended = command.run(*command.QUICK, "-bi", "-n", "1", "-d", "1", *both, "--filter", "evs>40")
        assert (ended.status, ended.err) == (0, "")
        assert '  filter "evs>40" passes ' in ended.out.splitlines()[0]
        rows = [row.split() for row in listed(ended.out)]
        assert [row[:2] for row in rows] == [[str(often.pid), "waits"], ["1", "more"]]
        assert float(rows[0][2]) + float(rows[1][2]) == pytest.approx(passes(ended.out), abs=0.02)
        refused = command.run(*command.QUICK, "--json", *both, "--filter", "evs>40")
        assert (refused.status, refused.sentence[:14]) == (2, "--filter: evs>")


@pytest.mark.variant
def test_a_user_filter_selects_exactly_that_users_processes() -> None:
    with ExitStack() as stack:
        sleeping = {uid: stack.enter_context(asleep_as(uid)) for uid in (5, 54321)}
        by_name, in_json = command.run_at_once(
            [*command.QUICK, "-b", "-n", "1", "-d", "2", "-u", "games"],
            [*command.QUICK, "--json", "-n", "1", "-d", "2", "-u", "54321", "--filter", "cat=sleep"],
        )
    (row,) = listed(by_name.out)
    assert row.split()[:3] == [str(sleeping[5]), "sleep", "1.00"]
    assert passes(by_name.out) == 1
    tick = json.loads(in_json.out)
    assert tick["filter"] == "user=54321 cat=sleep"
    assert [thread["pid"] for thread in tick["threads"]] == [sleeping[54321]]
    assert [part["name"] for part in tick["categories"]] == ["sleep"]


@contextmanager
def asleep_as(uid: int) -> Generator[int]:
    """Run a process of this user that sleeps, and return its PID."""
    with subprocess.Popen(["setpriv", f"--reuid={uid}", "--clear-groups", "sleep", "60"]) as child:
        wait_for(lambda: read(f"/proc/{child.pid}/comm") == b"sleep\n")
        try:
            yield child.pid
        finally:
            child.kill()


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


@pytest.fixture(scope="module")
def a_tick() -> Generator[tuple[HistoryTick, Names]]:
    """Take a tick of the whole machine, with short waits and longer ones."""
    with (
        waits.running("sleep", times=10_000, each_ms=2) as short,
        waits.running("sleep", times=10_000, each_ms=10) as long,
        watch.watching(Filters(min_ns=5 * MS)) as live,
    ):
        short.go()
        long.go()
        history = History(watch.rules().idle, is_periodic)
        history.add(live.last)
        time.sleep(0.3)
        live.tick()
        kept = history.add(live.last)
        assert kept
        yield kept, live.source.names


@pytest.mark.parametrize(
    "words", ["comm=waits", "cat=sleep", "cat=run-queue", "cat=short", "waits", "leaf=*sleep*", ""]
)
def test_matches_and_the_rest_add_up_to_everything(a_tick: tuple[HistoryTick, Names], words: str) -> None:
    kept, names = a_tick
    cause_finder = CauseFinder(names, WITHOUT_RULES)
    negated = words.replace("=", "!=") if "=" in words else f"!{words or 'waits'}"
    passed = [passing(kept, parse(text), cause_finder) for text in ("", words, negated)]
    every, tick, others = [msgspec.to_builtins(tick_object(one, names, cause_finder)) for one in passed]
    check_laws(every)
    assert (every["filter"], every["left_out_ns"]) == (None, 0)
    all_ns, passing_ns = total_ns(every), total_ns(tick)
    assert all_ns == sum(thread["offcpu_ns"] for thread in every["threads"])
    assert passing_ns > 0
    assert passing_ns + tick["left_out_ns"] == all_ns
    if words:
        assert (total_ns(others), others["left_out_ns"]) == (tick["left_out_ns"], passing_ns)
    for rows in ("threads", "sites"):
        of_all: list[Tick] = [{**row, "user": []} for row in every[rows]]  # names may have arrived since
        assert all({**row, "user": []} in of_all for row in tick[rows]), "rows are complete"


def total_ns(tick: Tick) -> int:
    return sum(part["total_ns"] for part in tick["categories"])


def test_rows_are_in_the_requested_order_and_a_locale_without_utf8_gets_ascii(live: Watch) -> None:
    no_utf8 = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ended = command.run(*command.QUICK, "-bi", "-n", "1", "-d", "0.3", "-o", "-name", env=no_utf8)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.isascii()
    with selecting(live, Filters()):
        by_pid = printed(live, Wanted(idle_shown=True, sort="PID"), as_json=False, ticks=1, delay_ns=300 * MS)
    for text, cells, is_reverse in ((ended.out, slice(16, 32), True), (by_pid, slice(7), False)):
        found = [row[cells] for row in listed(text) if row[:7].strip()]
        assert len(found) > 2
        assert found == sorted(found, reverse=is_reverse)


def test_total_is_the_time_of_all_matches_since_the_start() -> None:
    with waits.running("sleep", times=10_000, each_ms=2) as child, watch.watching_kernel_stacks() as live:
        child.go()
        history = History(watch.rules().idle, is_periodic)
        history.add(live.last)
        for _ in range(2):
            live.tick(0.2)
            history.add(live.last)
        kept, ever = history.newest, history.since_start()
        assert kept and ever
        for threads in (False, True):
            wanted = Wanted(parse("cat=sleep"), idle_shown=True, threads=threads, sort="TOTAL")
            ticks = [passing(one, wanted.filter, CauseFinder(live.source.names, WITHOUT_RULES)) for one in (kept, ever)]
            rows = waiters(ticks[0], wanted, ticks[1]).rows
            times = [row.lifetime_ns for row in rows]
            assert times == sorted(times, reverse=True)
            mine = next(row for row in rows if row.pid == child.pid)
            assert mine.part.total_ns < mine.lifetime_ns <= ever.span_ns
