"""Batch mode's text and JSON of a scripted source: what is stuck, and strings that come from strangers."""

import io
import json

import pytest

from offtop import paths
from offtop.model.aggregate.filter import parse
from offtop.model.classify import causes
from offtop.model.classify.causes import WITHOUT_RULES, Fixed, RuleSource
from offtop.model.values.wake import OFFCPU, WAKEUP
from offtop.reports import batch
from tests.recording.woken import WokenSource
from tests.ui.scripted import FILLED, MS, PIPE, READER, SHOP, STUCK, BrokenSource, ScriptedSource, Waits
from tests.ui.shown import CATEGORIES


def printed(
    source: ScriptedSource, wanted: batch.Wanted, as_json: bool = False, rules: RuleSource = WITHOUT_RULES
) -> list[str]:
    """The lines of the last tick."""
    out = io.StringIO()
    batch.run(source, CATEGORIES, MS, None, wanted, as_json=as_json, width=0, out=out, rules=rules)
    text = out.getvalue()
    return text.splitlines()[-1:] if as_json else text.split("offtop - ")[-1].splitlines()


@pytest.mark.parametrize(
    ("table", "idle", "said"),
    [
        (STUCK, False, "stuck now: 4 threads; 1 that looks idle left out (-i)"),
        (STUCK, True, "stuck now: 5 threads"),
        (
            [STUCK[0], STUCK[4], STUCK[4]._replace(tid=701)],
            False,
            "stuck now: 1 thread; 2 that look idle left out (-i)",
        ),
        ([], False, "stuck now: 0 threads"),
    ],
)
def test_the_head_of_what_is_stuck_counts_what_is_listed_and_what_is_left_out(
    table: list[object], idle: bool, said: str
) -> None:
    source = ScriptedSource(table, ticks=12, ends=True)  # pyright: ignore[reportArgumentType]
    lines = printed(source, batch.Wanted(stuck=True, idle_shown=idle))
    (head,) = [line for line in lines if line.startswith("stuck now")]
    assert head == said
    assert len(lines[lines.index(head) + 2 :]) - 1 == int(said.split()[2])


def test_the_name_of_a_system_call_is_printable_in_json() -> None:
    evil = STUCK[0]._replace(call="fu\x1b[2Jtex")
    (line,) = printed(ScriptedSource([evil], ticks=2, ends=True), batch.Wanted(), as_json=True)
    (one,) = json.loads(line)["still_blocked"]
    assert one["syscall"] == "fu\\x1b[2Jtex"


def test_who_is_at_the_other_end_is_asked_for_when_a_tick_begins_and_told_when_it_ends() -> None:
    source = ScriptedSource([READER], ticks=1, ends=True, at_ends=FILLED)
    lines = printed(source, batch.Wanted(stuck=True))
    assert source.sought[0] == {PIPE}
    told = "pipe_read (writer: gzip(4242), \\x1b[2J(9), +3) < fill < main"
    assert [told in line for line in lines if " 60 " in line] == [True, True]
    (line,) = printed(ScriptedSource([READER], ticks=1, ends=True, at_ends=FILLED), batch.Wanted(), as_json=True)
    (one,) = json.loads(line)["still_blocked"]
    assert one["object"]["ends"] == [
        {"role": "writer", "pid": 4242, "comm": "gzip"},
        {"role": "writer", "pid": 9, "comm": "\\x1b[2J"},
    ]
    assert one["object"]["ends_more"] == 3


def test_where_wakers_were_not_gathered_no_table_tells_of_any() -> None:
    source = WokenSource(ticks=3, ends=True)
    source.mode = OFFCPU
    lines = printed(source, batch.Wanted(mode=WAKEUP))
    assert batch.NOT_GATHERED in lines
    assert not any("(still waiting)" in line for line in lines)
    source = WokenSource(ticks=3, ends=True)
    assert batch.NOT_GATHERED not in printed(source, batch.Wanted(mode=WAKEUP))


def test_what_was_not_gathered_is_in_no_folded_stack_and_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    out = io.StringIO()
    source = WokenSource(ticks=3, ends=True)
    source.mode = OFFCPU
    batch.run(source, CATEGORIES, MS, None, batch.Wanted(mode=WAKEUP, folded=True), as_json=False, width=0, out=out)
    assert out.getvalue() == ""
    told = capsys.readouterr().err
    assert told.startswith("offtop: in 3 ticks it was not gathered who ended the waits")


def test_storms_are_of_wakers_that_the_filter_leaves() -> None:
    def storms(text: str) -> list[str]:
        wanted = batch.Wanted(mode=WAKEUP, filter=parse(text), idle_shown=True)
        return [line for line in printed(WokenSource(ticks=3, ends=True), wanted) if "storm: " in line]

    assert len(storms("")) == 1
    assert storms("comm=nobody") == []


def test_why_user_stacks_are_broken_is_in_json() -> None:
    (line,) = printed(BrokenSource(SHOP, ticks=3, ends=True), batch.Wanted(), as_json=True)
    first, second = json.loads(line)["user_stack_problems"]
    assert first.pop("remedy").startswith("build it with")
    assert second.pop("remedy").startswith("install its debug symbols")
    lacks = {"binary": "/usr/lib/libshop.so.1", "process": None, "reason": "no-unwind-info"}
    assert first == {**lacks, "total_ns": 600 * MS, "share": 0.3}
    lacks = {"binary": "/opt/\\x1b[2Jbank", "process": None, "reason": "stripped"}
    assert second == {**lacks, "total_ns": 100 * MS, "share": 0.05}


def test_the_worst_of_what_callers_lack_is_said_in_a_line_where_it_is_a_tenth() -> None:
    said = "60% of the time with a user stack: libshop.so.1: callers missing: no unwind information. Next: build it"
    lines = printed(BrokenSource(SHOP, ticks=3, ends=True), batch.Wanted())
    assert any(line.startswith(said) for line in lines)
    little = [row for row in SHOP if "take_order" not in row.user]
    for source in (BrokenSource(little, ticks=3, ends=True), ScriptedSource(SHOP, ticks=3, ends=True)):
        assert not any("with a user stack" in line for line in printed(source, batch.Wanted()))


def test_in_json_what_a_quota_held_back_is_no_wait_for_a_cpu() -> None:
    held = Waits("shop", 100, "shop", 100, "throttle", "throttle_cfs_rq", (), (900,), ready_ms=900)
    queued = Waits("bank", 200, "bank", 200, "lock", "futex_do_wait", ("main",), (500,), ready_ms=200)
    rules = causes.parse(paths.rules().read_text(), "rules.toml", "Mend it", CATEGORIES.ids)
    source = ScriptedSource([held, queued], ticks=2, ends=True)
    (line,) = printed(source, batch.Wanted(), as_json=True, rules=Fixed(rules))
    tick = json.loads(line)
    by_rule = {one["id"]: one["total_ns"] // MS for one in tick["diagnoses"]}
    by_category = {one["name"]: one["total_ns"] // MS for one in tick["categories"]}
    assert (by_rule["quota"], by_rule["run-queue"]) == (by_category["throttle"], by_category["run-queue"]) == (900, 200)
