"""Test how the command ends in batch mode on the real kernel: with which status, and leaving nothing behind."""

import itertools
import json
import os
import signal
from contextlib import ExitStack

import pytest

from tests import command
from tests.kernel import waits
from tests.kernel.batch_output import check_laws
from tests.kernel.offtop_process import programs_of, started

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("no_settings")]

STATUS = {signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGINT: 130}
MOMENTS = (60, True), (140, True), (200, True), (140, False), (200, False), (350, False), (600, False)
"""ms of CPU that it has used by then, or less if it has attached before; and whether its cache is filled.

It loads until about 160 ms, then uses the cache, or else compiles.
"""


def at_moments(*moments: tuple[object, ...]) -> list[object]:
    """Leave all but three of these out of `make test`; `make faults` has more."""
    return [
        pytest.param(*one, marks=[] if number in (1, 3, 5) else pytest.mark.variant)
        for number, one in enumerate(moments)
    ]


def cache(kept: bool) -> dict[str, str]:
    """Return an environment with or without a filled cache of compiled programs."""
    return {} if kept else {"OFFTOP_CACHE": ""}


def test_a_watched_process_counts_until_its_exit_which_ends_offtop_with_status_0() -> None:
    with (
        waits.running("sleep", times=23, each_ms=10) as child,
        started(*command.QUICK, "--json", "-n", "50", "-d", "0.5", "-p", str(child.pid)) as run,
    ):
        ticks = [run.tick()]
        child.go()
        child.finish()
        child.end()
        ended = run.ended()
    assert (ended.status, ended.err) == (0, "offtop: all measured processes have exited\n")
    assert ended.out == "" or ended.out.endswith("\n")
    ticks += [json.loads(line) for line in ended.out.splitlines()]
    for tick in ticks:
        check_laws(tick)
    assert len(ticks) < 50
    parts = [part for tick in ticks for part in tick["categories"] if part["name"] == "sleep"]
    assert sum(part["waits"] for part in parts) >= 23


def test_a_signal_ends_it_with_its_status_and_leaves_nothing() -> None:
    with ExitStack() as stack:
        how = dict.fromkeys(STATUS, command.QUICK) | {signal.SIGTERM: ()}  # that one has all helper processes
        runs = {number: stack.enter_context(started(*how[number], "--json", "-d", "0.2")) for number in STATUS}
        for number, run in runs.items():
            run.tick()
            assert len(run.programs()) >= 2
            run.process.send_signal(number)
            ended = run.ended()
            assert (ended.status, ended.err) == (STATUS[number], "")
            run.assert_none()


def test_a_closed_pipe_ends_it_quietly_with_status_0() -> None:
    with started("-b", "-d", "0.2") as in_text, started(*command.QUICK, "--json", "-d", "0.2") as in_json:
        for run in (in_text, in_json):
            run.line()
            assert len(run.programs()) >= 2
            run.stop_reading()
            assert run.ended() == command.Ended(0, "", "")
            run.assert_none()


@pytest.mark.parametrize(
    ("number", "cpu_ms", "kept"),
    at_moments(*((number, *moment) for number, moment in zip(itertools.cycle(STATUS), MOMENTS, strict=False))),
)
def test_a_signal_during_startup_ends_it_with_its_status(number: signal.Signals, cpu_ms: int, kept: bool) -> None:
    with started("-b", "-d", "0.1", **cache(kept)) as run:
        run.wait_for(lambda: run.cpu_ms() >= cpu_ms or programs_of(run.process.pid))
        run.process.send_signal(number)
        ended = run.ended()
        assert (ended.status, ended.err) == (STATUS[number], "")
        run.assert_none()


def test_a_stopped_compiler_ends_with_it() -> None:
    with started("-b", OFFTOP_CACHE="") as run:
        run.stopped_compiler()
        run.process.send_signal(signal.SIGINT)
        assert run.ended() == command.Ended(130, "", "")
        run.assert_none()


def test_killed_while_compiling_it_leaves_no_compiler_behind() -> None:
    with started("-b", OFFTOP_CACHE="") as run:
        compiler = run.stopped_compiler()
        run.process.kill()
        assert run.ended().status == 137
        os.kill(compiler, signal.SIGCONT)
        run.assert_none()


@pytest.mark.parametrize(("cpu_ms", "kept"), at_moments(*MOMENTS))
def test_killed_during_startup_it_leaves_nothing(cpu_ms: int, kept: bool) -> None:
    with started("-b", "-d", "0.1", **cache(kept)) as run:
        run.wait_for(lambda: run.cpu_ms() >= cpu_ms or programs_of(run.process.pid))
        run.process.kill()
        assert run.ended().status == 137
        run.assert_none()


def test_killed_while_running_it_leaves_nothing() -> None:
    with started("--json", "-d", "0.2") as run:
        run.tick()
        assert len(run.programs()) >= 2
        run.process.kill()
        assert run.ended().status == 137
        run.assert_none()


@pytest.mark.parametrize("arguments", ["-b", "--json"])
def test_a_full_device_ends_it_with_one_sentence(arguments: str) -> None:
    with started(*command.QUICK, arguments, "-d", "0.1", before=["sh", "-c", 'exec "$@" >/dev/full', "sh"]) as run:
        ended = run.ended()
        assert "No space left on device" in ended.sentence
        assert ended.status == 1
        run.assert_none()
