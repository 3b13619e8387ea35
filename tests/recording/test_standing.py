"""A replay finds the standing waits again."""

import json
from dataclasses import replace
from pathlib import Path

from offtop.model.values.blockers import PIPE, Blocker
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.snapshot import Snapshot
from tests.command import call
from tests.test_diff import recorded_of
from tests.ui.scripted import ScriptedSource, Waits

READER = Waits("tail", 60, "tail", 60, "pipe", "pipe_read", waits_on=True, older_ms=9000)
WRITER = Waits("yes", 70, "yes", 70, "pipe", "pipe_write", waits_on=True, older_ms=9000)


class _Piped(ScriptedSource):
    """The writer waits for the first reader."""

    def after(self, seconds: int) -> Snapshot:
        return replace(super().after(seconds), blockers={ThreadKey(70, 70): (Blocker(60, 0, PIPE, True),)})


def test_replayed_wait_is_standing_unless_another_thread_waits_for_it(tmp_path: Path) -> None:
    table = [READER, READER._replace(process="cat", pid=61, tid=61), WRITER]
    file = recorded_of(_Piped(table, 13), tmp_path / "it.offtop", 13)
    ticks = [json.loads(line) for line in call("replay", file, "--json").out.splitlines()]
    for number, tick in enumerate(ticks, 1):
        settled = number >= 10
        stands = {one["pid"]: one["standing"] for one in tick["sites"]}
        assert stands == {60: False, 61: settled, 70: False}
        (pipe,) = tick["categories"]
        span_ns = tick["span_ns"]
        numbers = pipe["idle_ns"], pipe["standing_ns"], pipe["total_ns"]
        assert numbers == (0, settled * span_ns, 3 * span_ns)
    assert len(ticks) == 13
    head = [line for line in call("replay", file, "-b").out.splitlines() if line.startswith("offtop - ")][-1]
    assert "WAITING 2.00 = blocked 2.00 + run queue 0.00  idle 1.00 (1.00 standing)" in head
    report = call("report", file).out.splitlines()
    assert any(" tail " in line for line in report)
    assert not any(" cat " in line for line in report)
