"""Batch mode's text and JSON of a scripted source: what is stuck, and strings that come from strangers."""

import io
import json

import pytest

from offtop import batch
from tests.ui.scripted import MS, STUCK, ScriptedSource
from tests.ui.shown import CATEGORIES


def printed(source: ScriptedSource, wanted: batch.Wanted, as_json: bool = False) -> list[str]:
    """The lines of the last tick."""
    out = io.StringIO()
    batch.run(source, CATEGORIES, MS, None, wanted, as_json=as_json, width=0, out=out)
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
