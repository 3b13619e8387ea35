"""Test faults of offtop and of what it watches: no silent loss, and nothing left behind."""

import json
import signal
import time
from pathlib import Path

import pytest

from tests import command
from tests.kernel import trouble, waits
from tests.kernel.offtop_process import started
from tests.kernel.trouble import MS, check_said, shown, sleeps, ticks_until

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("no_settings")]


def test_what_passes_while_offtop_is_stopped_is_in_the_next_tick(tmp_path: Path) -> None:
    file = tmp_path / "it.offtop"
    with (
        waits.running("sleep", times=150, each_ms=10) as child,
        started(*command.QUICK, "--json", "-d", "0.2", "--record", str(file), "-p", str(child.pid)) as run,
    ):
        ticks = [run.tick()]
        run.process.send_signal(signal.SIGSTOP)
        child.go()
        child.finish()
        run.process.send_signal(signal.SIGCONT)
        ticks += ticks_until(run, time.time_ns())
        run.process.send_signal(signal.SIGINT)
        ended = run.ended()
    ticks += [json.loads(line) for line in ended.out.splitlines()]
    trouble.check_whole(ticks)
    counted, put_aside = sleeps(ticks, child.tid)
    assert 150 <= counted <= 150 + put_aside
    assert max(tick["span_ns"] for tick in ticks) >= 150 * 10 * MS, "it was stopped for as long as they took"
    check_said(ended.err)
    again = command.run("replay", str(file), "--json")
    assert (again.status, again.err) == (0, "")
    assert sleeps([json.loads(line) for line in again.out.splitlines()], child.tid) == (counted, put_aside)


def test_a_process_that_keeps_calling_exec_counts_to_the_end(tmp_path: Path) -> None:
    trouble.exec_repeatedly(tmp_path, by_others=0, within=True)


@pytest.mark.parametrize(
    ("after_s", "times"),
    [(0.15, 2), *(pytest.param(*one, marks=pytest.mark.variant) for one in ((0.0, 1), (0.4, 1), (0.7, 2)))],
)
def test_ctrl_c_during_startup_leaves_a_sane_terminal(after_s: float, times: int) -> None:
    trouble.ctrl_c(after_s, times)


def test_a_hangup_ends_it_with_its_status_and_a_playable_recording(tmp_path: Path) -> None:
    file = tmp_path / "it.offtop"
    with shown("--record", str(file), "-d", "0.2") as terminal:
        terminal.read_until(b"CATEGORY")
        terminal.look_on(0.5)
        left = trouble.Left(terminal.pid)
        terminal.hang_up()
        assert terminal.status() == 129
        left.check()
    again = command.run("replay", str(file), "--json")
    assert (again.status, again.err) == (0, "")
    assert again.out.splitlines()
