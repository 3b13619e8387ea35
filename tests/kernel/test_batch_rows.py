"""Test which rows batch mode prints with filters, in which order, and how it writes hostile names."""

import io
import json
import re
import subprocess
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest

from offtop.kernel.live import LiveSource
from offtop.model.aggregate.filter_syntax import parse
from offtop.model.classify.categories import is_periodic
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import WITHOUT_RULES
from offtop.model.values.snapshot import Filters
from offtop.model.values.stack import Names
from offtop.model.windows.history import History, HistoryTick
from offtop.reports import batch
from offtop.reports.tick import passing
from offtop.reports.tick_json import tick_object
from offtop.reports.tick_rows import waiters
from offtop.reports.wanted import Wanted
from tests import command
from tests.kernel import programs, waits, watch
from tests.kernel.batch_output import check_laws, printed, selecting
from tests.kernel.offtop_process import Tick, read, started, wait_for
from tests.kernel.watch import MS, Watch

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("no_settings")]

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
