"""Batch mode prints stuck waits, peers, wakers and problems, and escapes hostile strings, in text and JSON."""

import io
import json
from collections.abc import Mapping, Sequence

import pytest

from offtop import paths
from offtop.feed.suspect_watch import SuspectWatch
from offtop.model.aggregate.filter_syntax import parse
from offtop.model.classify import causes
from offtop.model.classify.causes import WITHOUT_RULES, Fixed, RuleSource
from offtop.model.classify.suspect import Found
from offtop.model.values.snapshot import Snapshot, Thinned
from offtop.model.values.stack import Frame
from offtop.model.values.wake import OFFCPU, WAKEUP, Object
from offtop.model.windows.history import History
from offtop.reports import batch, tick_text
from offtop.reports.wanted import Wanted
from tests.model.machine import WEIGHTS
from tests.recording.woken import WokenSource
from tests.ui.scripted import (
    BANKS,
    FILLED,
    MS,
    PIPE,
    READER,
    SHOP,
    STUCK,
    BrokenSource,
    ScriptedSource,
    Waits,
    slower_flush,
)
from tests.ui.shown import CATEGORIES


def printed(
    source: ScriptedSource, wanted: Wanted, as_json: bool = False, rules: RuleSource = WITHOUT_RULES
) -> list[str]:
    """Return the lines of the last tick."""
    out = io.StringIO()
    batch.run(source, CATEGORIES, MS, None, wanted, as_json=as_json, width=0, out=out, rules=rules)
    text = out.getvalue()
    return text.splitlines()[-1:] if as_json else text.split("offtop - ")[-1].splitlines()


@pytest.mark.parametrize(
    ("table", "idle", "expected"),
    [
        (STUCK, False, "stuck now: 4 threads; 1 idle hidden (-i)"),
        (STUCK, True, "stuck now: 5 threads"),
        (
            [STUCK[0], STUCK[4], STUCK[4]._replace(tid=701)],
            False,
            "stuck now: 1 thread; 2 idle hidden (-i)",
        ),
        ([], False, "stuck now: 0 threads"),
    ],
)
def test_stuck_header_counts_listed_and_hidden_threads(table: list[object], idle: bool, expected: str) -> None:
    source = ScriptedSource(table, ticks=12, ends=True)  # pyright: ignore[reportArgumentType]
    lines = printed(source, Wanted(stuck=True, idle_shown=idle))
    (head,) = [line for line in lines if line.startswith("stuck now")]
    assert head == expected
    assert len(lines[lines.index(head) + 2 :]) - 1 == int(expected.split()[2])


@pytest.mark.parametrize(("idle", "table"), [(False, [STUCK[4]]), (True, [STUCK[4]]), (False, STUCK), (False, [])])
def test_a_table_without_rows_says_that_there_are_idle_waits(idle: bool, table: list[Waits]) -> None:
    lines = printed(ScriptedSource(table, ticks=2, ends=True), Wanted(idle_shown=idle))
    assert ("only idle waits: -i shows them" in lines) == (not idle and table == [STUCK[4]])


@pytest.mark.parametrize("category", ["poll", "fsync"])
def test_most_waits_without_a_stack_are_told_to_be_likely_idle_if_their_samples_are(category: str) -> None:
    table = [
        Waits("svc", 40, f"w{tid}", tid, category, f"in_{category}", waits_ms=(5,) * 20, short_waits=80_000)
        for tid in range(41, 45)
    ]
    source = ScriptedSource(table, ticks=3, ends=True)
    source.thinned = Thinned(1, 8 * MS, 2, 320_000, 3_200 * MS)
    says = [line for line in printed(source, Wanted()) if "are likely idle" in line]
    assert bool(says) == (category == "poll")
    assert not says or says[0].startswith("about 3.20 threads wait without a stack, and are likely idle (they count as")


def test_standing_waits_are_hidden_with_the_idle_ones_and_told_apart() -> None:
    table = [READER, STUCK[4], STUCK[0]]

    def lines(wanted: Wanted, as_json: bool = False) -> list[str]:
        out, source = io.StringIO(), ScriptedSource(table, ticks=2, ends=True)
        batch.run(source, CATEGORIES, MS, None, wanted, as_json=as_json, width=0, out=out, weights=WEIGHTS)
        return out.getvalue().splitlines()

    plain = lines(Wanted(stuck=True))
    head = next(line for line in plain if line.startswith("offtop - "))
    assert "WAITING 1.00 = blocked 1.00 + run queue 0.00  idle 2.00 (1.00 standing)  lost 0" in head
    assert "stuck now: 1 thread; 2 idle hidden, 1 of them standing (-i)" in plain
    assert any(line.startswith("~pipe ") for line in lines(Wanted(idle_shown=True)))
    tick = json.loads(lines(Wanted(), as_json=True)[-1])
    times = {one["name"]: (one["idle_ns"], one["standing_ns"], one["total_ns"]) for one in tick["categories"]}
    second = tick["span_ns"]
    assert times == {"pipe": (0, second, second), "poll": (second, 0, second), "lock": (0, 0, second)}
    sites = {one["category"]: (one["idle"], one["standing"]) for one in tick["sites"]}
    assert sites == {"pipe": (False, True), "poll": (True, False), "lock": (False, False)}
    assert sites == {one["category"]: (one["idle"], one["standing"]) for one in tick["still_blocked"]}
    programs = {one["name"]: (one["idle_ns"], one["standing_ns"]) for one in tick["programs"]}
    assert programs == {"sort": (0, second), "nginx": (second, 0), "mysqld": (0, 0)}
    assert tick["standing"] == 1


class LateNames(ScriptedSource):
    """Its user functions get their names in the tick `named_in`; until then they differ by their number only."""

    named_in = 1

    def __init__(self, table: Sequence[Waits], ticks: int) -> None:
        super().__init__(table, ticks=ticks, ends=True)
        self.waits: list[tuple[int, float]] = []
        """Of each wait: for how many functions, and for how long."""

    def read(self) -> Snapshot | None:
        if (snapshot := super().read()) is not None:
            for number, stack in snapshot.catalog.stacks.items():
                frames = tuple(f._replace(name="") if f.file == "/usr/bin/it" else f for f in stack.frames)
                snapshot.catalog.stacks[number] = stack._replace(frames=frames)
        return snapshot

    def wait_for_names(self, frames: set[Frame], seconds: float) -> bool:
        self.waits.append((len(frames), seconds))
        return self.reads > self.named_in


@pytest.mark.parametrize(
    ("table", "as_json", "named_in", "judged"),
    [
        (BANKS, False, 1, [(2, 2.0), (0, 2.0), (0, 2.0), (0, 2.0)]),
        (BANKS, True, 1, [(2, 10.0), (0, 2.0), (0, 2.0), (0, 2.0)]),
        # Names that are late are waited for once more.
        (BANKS, False, 9, [(2, 2.0), (2, 2.0), (0, 2.0), (0, 2.0)]),
        # A wait in progress counts, too, although nothing has ended at its stack; also if that was only just read.
        (
            [READER._replace(waits_on=True, waits_ms=(), user=(), read=("a", "b"))],
            False,
            1,
            [(2, 2.0)] + [(0, 2.0)] * 3,
        ),
        ([READER._replace(waits_on=True, waits_ms=(), user=("a", "b", "c"))], False, 1, [(3, 2.0)] + [(0, 2.0)] * 3),
    ],
)
def test_suspects_are_looked_for_when_functions_have_names(
    monkeypatch: pytest.MonkeyPatch,
    table: Sequence[Waits],
    as_json: bool,
    named_in: int,
    judged: list[tuple[int, float]],
) -> None:
    source, waits, tick = LateNames(table, ticks=4), list[tuple[int, float]](), SuspectWatch.tick
    source.named_in = named_in

    def judge(watch: SuspectWatch, history: History) -> Found:
        waits.append(source.waits[-1])
        return tick(watch, history)

    monkeypatch.setattr(SuspectWatch, "tick", judge)
    batch.run(source, CATEGORIES, MS, None, Wanted(), as_json=as_json, width=0, out=io.StringIO(), weights=WEIGHTS)
    assert waits == judged


class Asked(ScriptedSource):
    """Records after how many snapshots it was asked for other ends."""

    def __init__(self) -> None:
        super().__init__(BANKS, ticks=2, ends=True)
        self.asked_after: list[int] = []

    def find_peers(self, waited_on: Mapping[Object, int]) -> None:
        self.asked_after.append(self.reads)


def test_other_ends_are_looked_for_when_the_first_tick_begins() -> None:
    source = Asked()
    batch.run(source, CATEGORIES, MS, None, Wanted(), as_json=False, width=0, out=io.StringIO(), weights=WEIGHTS)
    assert source.asked_after[0] == 1, "the first tick ends with the second snapshot"


def test_what_is_printed_first_waits_longer_for_names() -> None:
    source = LateNames(BANKS, ticks=2)
    batch.run(source, CATEGORIES, MS, None, Wanted(), as_json=False, width=0, out=io.StringIO())
    judged, printed = source.waits[::2], source.waits[1::2]
    assert judged == [(2, 2.0), (0, 2.0)]
    assert printed == [(2, 10.0), (2, 2.0)]


def test_system_call_names_are_escaped_in_json() -> None:
    evil = STUCK[0]._replace(call="fu\x1b[2Jtex")
    (line,) = printed(ScriptedSource([evil], ticks=2, ends=True), Wanted(), as_json=True)
    (one,) = json.loads(line)["still_blocked"]
    assert one["syscall"] == "fu\\x1b[2Jtex"


def test_peers_are_looked_up_at_the_start_of_a_tick_and_printed_at_its_end() -> None:
    source = ScriptedSource([READER], ticks=1, ends=True, object_peers=FILLED)
    lines = printed(source, Wanted(stuck=True))
    assert source.sought[0] == {PIPE}
    peers = "pipe_read (writer: gzip(4242), \\x1b[2J(9), +3) < fill < main"
    assert [peers in line for line in lines if " 60 " in line] == [True, True]
    (line,) = printed(ScriptedSource([READER], ticks=1, ends=True, object_peers=FILLED), Wanted(), as_json=True)
    (one,) = json.loads(line)["still_blocked"]
    assert one["object"]["ends"] == [
        {"role": "writer", "pid": 4242, "comm": "gzip"},
        {"role": "writer", "pid": 9, "comm": "\\x1b[2J"},
    ]
    assert one["object"]["ends_more"] == 3


def test_programs_are_one_row_of_the_table_if_asked_for() -> None:
    def first_words(wanted: Wanted) -> list[list[str]]:
        lines = printed(ScriptedSource(BANKS, ticks=3, ends=True), wanted)
        head = next(n for n, line in enumerate(lines) if "COMMAND" in line)
        return [line.split()[:3] for line in lines[head + 1 : lines.index("", head)]]

    assert first_words(Wanted(programs=True)) == [
        ["x2", "postgres", "0.65"],
        ["500", "psql", "0.35"],
        ["200", "bank", "0.10"],
        ["x2", "kworker/*", "0.05"],
    ]
    assert ["979", "postgres", "0.25"] in first_words(Wanted())
    assert ["978", "978", "postgres"] in first_words(Wanted(programs=True, threads=True))
    assert first_words(Wanted(parse("pid=979"), programs=True)) == [["979", "postgres", "0.25"]]
    assert first_words(Wanted(programs=True, sort="NAME"))[-1] == ["500", "psql", "0.35"]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Wanted(programs=True), "x2"),
        (Wanted(), "979"),
        (Wanted(threads=True), "979"),
    ],
)
def test_where_says_the_largest_locations(wanted: Wanted, found: str) -> None:
    lines = printed(ScriptedSource(slower_flush(BANKS), ticks=3, ends=True), wanted)
    (row,) = [line for line in lines if line.split()[:1] == [found] and "postgres" in line]
    lock = "0.58" if found == "x2" else "0.18"
    assert row.endswith(f"  {lock} futex_do_wait < ProcSleep, 0.10 jbd2_log_wait_commit < XLogFlush"), (
        "0.02 for a CPU is left out"
    )
    (client,) = [line for line in lines if "psql" in line]
    assert client.endswith("  tcp_recvmsg < pqWait < main")


def test_json_has_the_sums_of_programs() -> None:
    (line,) = printed(ScriptedSource(BANKS, ticks=3, ends=True), Wanted(), as_json=True)
    tick = json.loads(line)
    postgres = tick["programs"][0]
    assert (postgres["name"], postgres["processes"], postgres["threads"]) == ("postgres", 3, 3)
    assert (postgres["total_ns"], postgres["idle_ns"], postgres["max_ns"]) == (1_650_100_000, 1_000_000_000, 300 * MS)
    assert postgres["waits"] == 4 + 10 and sum(count for _, count in postgres["histogram"]) == 4
    assert postgres["places"][:2] == [
        {"name": "do_epoll_wait < main", "total_ns": 1_000_000_000},
        {"name": "futex_do_wait < ProcSleep", "total_ns": 580 * MS},
    ]
    for one in tick["programs"]:
        assert sum(place["total_ns"] for place in one["places"]) == one["total_ns"]
    assert [one["name"] for one in tick["programs"]] == ["postgres", "psql", "bank", "kworker/*"]
    assert sum(one["total_ns"] for one in tick["programs"]) == sum(one["total_ns"] for one in tick["categories"])
    (line,) = printed(ScriptedSource(BANKS, ticks=3, ends=True), Wanted(parse("pid=979")), as_json=True)
    (only,) = json.loads(line)["programs"]
    assert (only["processes"], only["threads"], only["total_ns"]) == (1, 1, 250_100_000)


def test_no_wakers_are_listed_if_none_were_collected() -> None:
    source = WokenSource(ticks=3, ends=True)
    source.mode = OFFCPU
    lines = printed(source, Wanted(mode=WAKEUP))
    assert tick_text.NOT_GATHERED in lines
    assert not any("(still waiting)" in line for line in lines)
    source = WokenSource(ticks=3, ends=True)
    assert tick_text.NOT_GATHERED not in printed(source, Wanted(mode=WAKEUP))


def test_folded_output_without_wakers_is_empty_and_reported(capsys: pytest.CaptureFixture[str]) -> None:
    out = io.StringIO()
    source = WokenSource(ticks=3, ends=True)
    source.mode = OFFCPU
    batch.run(source, CATEGORIES, MS, None, Wanted(mode=WAKEUP, folded=True), as_json=False, width=0, out=out)
    assert out.getvalue() == ""
    errors = capsys.readouterr().err
    assert errors.startswith("offtop: 3 ticks have no wakers")


def test_filter_applies_to_storms() -> None:
    def storms(text: str) -> list[str]:
        wanted = Wanted(mode=WAKEUP, filter=parse(text), idle_shown=True)
        return [line for line in printed(WokenSource(ticks=3, ends=True), wanted) if "storm: " in line]

    assert len(storms("")) == 1
    assert storms("comm=nobody") == []


def test_user_stack_problems_are_in_json() -> None:
    (line,) = printed(BrokenSource(SHOP, ticks=3, ends=True), Wanted(), as_json=True)
    first, second = json.loads(line)["user_stack_problems"]
    assert first.pop("remedy").startswith("build it with")
    assert second.pop("remedy").startswith("install its debug symbols")
    lacks = {"binary": "/usr/lib/libshop.so.1", "process": None, "reason": "no-unwind-info"}
    assert first == {**lacks, "total_ns": 600 * MS, "share": 0.3}
    lacks = {"binary": "/opt/\\x1b[2Jbank", "process": None, "reason": "stripped"}
    assert second == {**lacks, "total_ns": 100 * MS, "share": 0.05}


def test_worst_user_stack_problem_is_printed_if_it_is_a_tenth() -> None:
    expected = "60% of the time with a user stack: libshop.so.1: callers missing: no unwind information. Next: build it"
    lines = printed(BrokenSource(SHOP, ticks=3, ends=True), Wanted())
    assert any(line.startswith(expected) for line in lines)
    little = [row for row in SHOP if "take_order" not in row.user]
    for source in (BrokenSource(little, ticks=3, ends=True), ScriptedSource(SHOP, ticks=3, ends=True)):
        assert not any("with a user stack" in line for line in printed(source, Wanted()))


def test_throttled_time_is_not_run_queue_time_in_json() -> None:
    held = Waits("shop", 100, "shop", 100, "throttle", "throttle_cfs_rq", (), (900,), ready_ms=900)
    queued = Waits("bank", 200, "bank", 200, "lock", "futex_do_wait", ("main",), (500,), ready_ms=200)
    rules = causes.parse(paths.rules().read_text(), "rules.toml", "Mend it", CATEGORIES.ids)
    source = ScriptedSource([held, queued], ticks=2, ends=True)
    (line,) = printed(source, Wanted(), as_json=True, rules=Fixed(rules))
    tick = json.loads(line)
    by_rule = {one["id"]: one["total_ns"] // MS for one in tick["diagnoses"]}
    by_category = {one["name"]: one["total_ns"] // MS for one in tick["categories"]}
    assert (by_rule["quota"], by_rule["run-queue"]) == (by_category["throttle"], by_category["run-queue"]) == (900, 200)
