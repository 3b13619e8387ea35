"""Failures around offtop, at any moment and for realistic durations; run by `make faults`."""

import json
import re
import signal
import subprocess
import time
from collections.abc import Generator, Sequence
from contextlib import chdir, contextmanager
from pathlib import Path

import pytest

from tests import command
from tests.conftest import bpf_reason
from tests.kernel import hangs, programs, trouble, waits
from tests.kernel.batch_output import check_laws
from tests.kernel.conftest import no_settings
from tests.kernel.offtop_process import started
from tests.kernel.test_hostile_names import CONTROL, NAMES, SAFE, napping
from tests.kernel.trouble import check_said, shown, sleeps, ticks_until
from tests.ui.terminal import Terminal

pytestmark = [
    pytest.mark.fault,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bpf_reason() is not None, reason=str(bpf_reason())),
    pytest.mark.usefixtures("no_settings"),
]
__all__ = ["no_settings"]

_STEP_S = 0.1
_STALL_S = 45
UP = b"\x1b\x1b"
FULL = (
    "for place in /tmp /var/tmp /usr/tmp; do if [ -d $place ]; then mount -t tmpfs -o size=4k,nr_inodes=2 none $place; "
    'echo full >$place/full; fi; done; cd /tmp && exec "$@"'
)
"""Shell script that fills every directory for temporary files and then runs its arguments."""
RAW = re.compile(rb"\x1b\[6n|\x1b\]0;|\x1bc|\x07|\x08|\x7f|\xc2[\x80-\x9f]|\xe2\x80[\xae\x8b]")
"""Sequences that offtop itself never draws."""


@pytest.mark.parametrize("cache", [None, ""], ids=["cached", "compiling"])
def test_ctrl_c_at_any_time_during_startup_restores_the_terminal_and_leaves_nothing(cache: str | None) -> None:
    environment = {} if cache is None else {"OFFTOP_CACHE": cache}
    with trouble.shown(environment=environment) as terminal:
        trouble.wait_until_python_is_offtop(terminal.pid)
        began_s = time.monotonic()
        assert terminal.wait_for(re.compile("CATEGORY"), 60)
        took_s = time.monotonic() - began_s
        terminal.press(b"q")
        assert terminal.status() == 0
    for step in range(int(took_s / _STEP_S) + 4):
        try:
            trouble.ctrl_c(step * _STEP_S, 1 + step % 2, environment)
        except AssertionError as failed:
            failed.add_note(f"{1 + step % 2} times, {step * _STEP_S:.2f} s after its begin")
            raise


def test_two_instances_count_everything_including_each_other() -> None:
    with (
        waits.running("sleep", times=23, each_ms=10) as child,
        started(*command.QUICK, "--json", "-d", "0.3") as one,
        started(*command.QUICK, "--json", "-d", "0.3") as other,
    ):
        first = {one: [one.tick()], other: [other.tick()]}
        child.go()
        child.finish()
        ended_ns = time.time_ns()
        for run, ticks in first.items():
            ticks += ticks_until(run, ended_ns)
            trouble.check_whole(ticks)
            counted, preempted = sleeps(ticks, child.tid)
            assert 23 <= counted <= 23 + preempted
            seen = {thread["pid"] for tick in ticks for thread in tick["threads"]}
            assert run.process.pid not in seen
            assert ({one, other} - {run}).pop().process.pid in seen


def test_full_temporary_directories_do_not_prevent_startup() -> None:
    arguments = (*command.QUICK, "--json", "-n", "2", "-d", "0.2")
    ended = command.run(*arguments, before=["unshare", "--mount", "sh", "-c", FULL, "sh"], env={"OFFTOP_CACHE": ""})
    assert (ended.status, ended.err) == (0, "")
    for line in ended.out.splitlines():
        check_laws(json.loads(line))


def test_unmounting_tracefs_does_not_stop_measuring(tmp_path: Path) -> None:
    place = "/sys/kernel/tracing"
    mounted = f'mount -t tracefs none {place} && exec "$@"'
    before = ["unshare", "--mount", "sh", "-c", mounted, "sh"]
    with started("--json", "--mode", "chain", "-d", "0.2", before=before) as run:
        check_laws(run.tick())
        subprocess.run(["nsenter", "-t", str(run.process.pid), "--mount", "umount", place], check=True, timeout=20)
        for _ in range(3):
            check_laws(run.tick())
        run.process.send_signal(signal.SIGTERM)
        assert run.ended().status == 143
        run.assert_none()


@contextmanager
def little_memory(megabytes: int) -> Generator[list[str]]:
    """Yield a command prefix that runs a command in a cgroup limited to this much memory."""
    limit = str(megabytes << 20)
    with (
        subprocess.Popen(["sleep", "1000"]) as holder,
        waits.in_cgroup("memory", holder.pid, {"memory.limit_in_bytes": limit}, {"memory.max": limit}) as group,
    ):
        try:
            yield ["sh", "-c", f'echo $$ >{group}/cgroup.procs && exec "$@"', "sh"]
        finally:
            holder.kill()


@pytest.mark.parametrize("megabytes", [8, 40, 64, 96])
def test_low_memory_causes_no_traceback_and_leaves_nothing(megabytes: int) -> None:
    with (
        little_memory(megabytes) as inside,
        started(*command.QUICK, "--json", "-n", "3", "-d", "0.1", before=inside, OFFTOP_CACHE="") as run,
    ):
        ended = run.ended()
        check_said(ended.err)
        assert ended.status in (0, 1, 4, 137), ended
        assert ended.status in (0, 137) or re.fullmatch(r"offtop: [^\n]+\n", ended.err), ended.err
        run.assert_none()


def test_sigkill_leaves_nothing_loaded_and_a_playable_recording(tmp_path: Path) -> None:
    file = tmp_path / "it.offtop"
    with shown("--record", str(file), "-d", "0.2") as terminal:
        terminal.read_until(b"CATEGORY")
        terminal.look_on(1)
        left = trouble.Left(terminal.pid)
        assert left.programs >= 2
        terminal.process.send_signal(signal.SIGKILL)
        assert terminal.status() == -signal.SIGKILL
        left.check()
    again = command.run("replay", str(file), "--json")
    assert (again.status, again.err) == (0, "")
    assert again.out.splitlines()


def test_terminal_that_hangs_for_45_s_costs_the_recording_no_tick(tmp_path: Path) -> None:
    file = tmp_path / "it.offtop"
    with shown("--record", str(file), "-d", "0.2", width=160, height=50) as terminal:
        terminal.read_until(b"CATEGORY")
        terminal.stall(_STALL_S)
        terminal.look_on(1)
        terminal.press(b"q")
        assert terminal.status() == 0
        terminal.assert_sane()
    again = command.run("replay", str(file), "--json")
    ticks = [json.loads(line) for line in again.out.splitlines()]
    assert not any("unrecorded" in tick["lost"] for tick in ticks)
    assert max(tick["span_ns"] for tick in ticks) < _STALL_S * 1e9 / 2, "none is as long as the stall"
    assert sum(tick["span_ns"] for tick in ticks) > _STALL_S * 1e9


@pytest.mark.parametrize("within", [False, True])
def test_process_that_execs_from_another_thread_is_counted(tmp_path: Path, within: bool) -> None:
    trouble.exec_repeatedly(tmp_path, by_others=1, within=within)


def on_the_screen(terminal: Terminal, keys: Sequence[bytes]) -> None:
    terminal.read_until(b"CATEGORY")
    trouble.until(lambda: SAFE.encode() in terminal.drawn, terminal)
    for key in keys:
        terminal.press(key)
        terminal.look_on(0.08)


def test_hostile_names_are_escaped_on_screen_and_in_all_output(tmp_path: Path) -> None:
    file, places = tmp_path / "it.offtop", tmp_path / "out"
    places.mkdir()
    keys = (
        *(b"H", b"i", b"\x1b[B", b"\r", b"\r", b"\r", b"v", b"*", b"K", b"c", b"c", UP, b"g", b"t"),
        *(b"2", b"H", b"3", b"4", b"G", b"1", b"L", b"5", b"\r", b"Y", UP, b"O", b"C", b"\r", UP, b"V", UP),
        *(b"A", b"A", b"l", b"l", b"p", b"u", UP, b"X", b"f", UP, b"?", UP, b"\x10", b"red", UP),
        *(b"/", b"red", b"\r", b"n", UP, b"y", b"B", b"D", b"\x1b[24~"),
    )
    with napping(tmp_path, NAMES) as child:
        options = ("-p", str(child.pid), "-d", "0.2", "-i", "--record", str(file))
        with chdir(places), trouble.shown(*options, width=180, height=50) as terminal:
            on_the_screen(terminal, keys)
            trouble.until(lambda: [*places.glob("*.svg")], terminal)
            terminal.press(b"\x03\x03")
            assert terminal.status() == 0
            terminal.assert_sane()
    # Remove the clipboard (OSC 52, in base64) and the pointer shape (OSC 22), which are legitimate.
    drawn = re.sub(rb"\x1b\](52;c;[\w+/=]*|22;default)\x07", b"", terminal.drawn)
    raw = RAW.search(drawn)
    assert not raw, drawn[max(0, raw.start() - 100) : raw.end() + 100]
    (picture,) = places.glob("*.svg")
    assert not CONTROL.search(picture.read_text())
    name = str(file)
    lines = [["replay", name, "-b"], ["replay", name, "--json"], ["report", name]]
    lines += [["export", form, name] for form in ("folded", "csv", "svg", "speedscope")]
    for ended in command.run_at_once(*lines):
        assert (ended.status, ended.err) == (0, "")
        assert not CONTROL.search(ended.out.replace("\r\n", "\n"))
        assert "[6n[red]" in ended.out


NAPS = r"""
#include <time.h>
static __attribute__((noinline)) void nap(void)
{
	const struct timespec three_ms = {0, 3000000};
	nanosleep(&three_ms, 0);
	__asm__ volatile("");
}
int main(void)
{
	tell("nap", nap);
	next();
	for (;;)
		nap();
}
"""
HANGS = pytest.mark.parametrize("kind", ["mmap_lock", "fuse-silent", "fuse-stopped"])
_END_S = 15


@contextmanager
def hanging(kind: str, directory: Path) -> Generator[int]:
    """Start a process that blocks anyone who reads it.

    Either its mmap_lock is held while it goes on napping, so that one of its threads is in D state, or its program
    lies on a FUSE file system that does not answer, so that readers of the file are.
    """
    if kind == "mmap_lock":
        with hangs.stuck(directory) as child:
            yield child.pid
        return
    naps = programs.build(directory / "naps", NAPS)
    with hangs.fuse(directory, naps) as fuse, programs.running([fuse.program]) as child:
        child.go_on_alone()
        if kind == "fuse-silent":
            fuse.stop_answering()
        else:
            fuse.stop()
        yield child.pid


@contextmanager
def beside(pid: int, *arguments: str) -> Generator[subprocess.Popen[bytes]]:
    """Run offtop in batch mode; after the block it must exit soon and leave nothing behind.

    Test helpers that read /proc would hang on that process themselves.
    """
    process = command.start("--json", "-d", "0.5", *arguments)
    try:
        yield process
        left = trouble.Left(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.stderr
        output = process.stderr.read().decode()
        check_said(output)
        assert process.wait(_END_S) == 130, output
        left.check()
    finally:
        process.kill()


@HANGS
@pytest.mark.parametrize("chosen", [True, False], ids=["-p", "all"])
def test_unreadable_process_does_not_delay_batch_mode(kind: str, chosen: bool, tmp_path: Path) -> None:
    with hanging(kind, tmp_path) as pid, beside(pid, *(("-p", str(pid)) if chosen else command.QUICK)) as process:
        assert process.stdout
        ticks = [json.loads(process.stdout.readline()) for _ in range(5)]
    for tick in ticks:
        check_laws(tick)
    assert sum(one["waits"] for tick in ticks for one in tick["threads"] if one["pid"] == pid) > 100
    if kind == "mmap_lock" and chosen:  # without --unwind there are no user stacks
        stacks = [(site["user"], site["user_end"]) for tick in ticks for site in tick["sites"] if site["pid"] == pid]
        assert (["[not read]"], "not-read") in stacks
        assert all(tick["lost"].get("unread") for tick in ticks[1:])


@HANGS
def test_unreadable_process_does_not_delay_screen_or_recording(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "it.offtop"
    with hanging(kind, tmp_path) as pid, shown("--record", str(file), "-d", "0.5", "-p", str(pid)) as terminal:
        terminal.read_until(b"CATEGORY")
        left = trouble.Left(terminal.pid)
        for key in (b"\r", b"i", UP, b"H", b"?", UP, b"t", b"2"):
            terminal.press(key)
            terminal.look_on(0.5)
        terminal.press(b"\x03\x03")
        assert terminal.status(_END_S) == 0
        terminal.assert_sane()
        left.check()
    again = command.run("replay", str(file), "--json")
    ticks = [json.loads(line) for line in again.out.splitlines()]
    assert len(ticks) >= 5
    if kind == "mmap_lock":
        assert any(site["user"] == ["[not read]"] for tick in ticks for site in tick["sites"])


@HANGS
def test_unreadable_process_does_not_hang_the_doctor(kind: str, tmp_path: Path) -> None:
    with hanging(kind, tmp_path):
        ended = command.run("doctor")
    assert (ended.status, ended.err) == (0, "")
    assert ("not read, because their file system hangs: program" in ended.out) == (kind != "mmap_lock")
