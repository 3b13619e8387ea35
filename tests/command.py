"""Runs the `offtop` command, and captures its output, its exit status and what it leaves behind."""

import io
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from offtop import cli
from offtop.kernel.bpf import libbpf

OFFTOP = Path(sys.executable).with_name("offtop")
TIMEOUT_S = 60
QUICK = "--unwind", "off"
"""Options for tests that need no user stacks: offtop starts in half the time."""


class Ended(NamedTuple):
    """A finished process: its exit status as a shell reports it, and its output."""

    status: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """The only line on stderr, without `offtop: `.

        Raises AssertionError if there was other output.
        """
        assert self.out == ""
        assert re.fullmatch(r"offtop: [^\n\x00-\x1f\x7f-\x9f]+\n", self.err), self.err
        return self.err.removeprefix("offtop: ").rstrip("\n")


def call(*arguments: str, env: Mapping[str, str] | None = None) -> Ended:
    """Run offtop in this process, without a terminal: starting one takes longer than most commands."""
    written = io.BytesIO(), io.BytesIO()
    out, err = (io.TextIOWrapper(stream, encoding="utf-8", write_through=True) for stream in written)
    with patch.dict(os.environ, env or {}), redirect_stdout(out), redirect_stderr(err):
        time.tzset()
        try:
            cli.main(arguments)
        except SystemExit as exited:
            assert isinstance(exited.code, int)
            status = exited.code
    time.tzset()
    return Ended(status, *(stream.getvalue().decode() for stream in written))


def run(*arguments: str, before: Sequence[str] = (), env: Mapping[str, str] | None = None) -> Ended:
    """Run offtop as a process, without a terminal; `before` is a command that starts it."""
    return ended(start(*arguments, before=before, env=env))


def run_at_once(*lines: Sequence[str], most: int = 2) -> list[Ended]:
    """Run offtop with each list of arguments, `most` at a time because they mostly wait."""

    def run_one(line: Sequence[str]) -> Ended:
        return run(*line)

    with ThreadPoolExecutor(most) as pool:
        return list(pool.map(run_one, lines))


def start(*arguments: str, before: Sequence[str] = (), env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*before, str(OFFTOP), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **(env or {})},
    )


def ended(process: subprocess.Popen[bytes]) -> Ended:
    try:
        out, err = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    status = process.returncode if process.returncode >= 0 else 128 - process.returncode
    return Ended(status, out.decode(), err.decode())


class OnTerminal(NamedTuple):
    status: int
    screen: bytes
    """Everything written to the terminal."""
    err: str


def run_on_terminal(*arguments: str, env: Mapping[str, str] | None = None) -> OnTerminal:
    """Run offtop with a terminal for stdin and stdout; stderr is captured separately."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [str(OFFTOP), *arguments],
        stdin=slave,
        stdout=slave,
        stderr=subprocess.PIPE,
        env={**os.environ, **(env or {})},
        start_new_session=True,
    )
    os.close(slave)
    screen = b""
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while time.monotonic() < deadline:
            screen += os.read(master, 1 << 16)
    except OSError:
        pass  # the last process that had the terminal open has exited
    finally:
        os.close(master)
        if process.poll() is None and time.monotonic() >= deadline:
            process.kill()
        _, err = process.communicate(timeout=TIMEOUT_S)
    return OnTerminal(process.returncode, screen, err.decode())


def family(pid: int) -> list[int]:
    """Return the PIDs of a process and its descendants that exist."""
    found = [pid]
    for one in found:
        try:
            found += [int(child) for child in Path(f"/proc/{one}/task/{one}/children").read_text().split()]
        except OSError:
            continue
    return found


def programs_of(pid: int) -> set[int]:
    """Return the ids of the BPF programs that a process or one of its descendants has open."""
    ids: set[int] = set()
    for one in family(pid):
        try:
            for fd in Path(f"/proc/{one}/fdinfo").iterdir():
                with suppress(OSError):
                    ids.update(
                        int(number) for number in re.findall(r"^prog_id:\s*(\d+)$", fd.read_text(), re.MULTILINE)
                    )
        except OSError:
            continue
    return ids


def still_loaded(ids: set[int], seconds: float = 10) -> set[int]:
    """Return the programs that the kernel has not freed after `seconds`.

    The kernel frees a program a moment after its last user has gone.
    """
    deadline = time.monotonic() + seconds
    while (left := {number for number in ids if _is_loaded(number)}) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def _is_loaded(program_id: int) -> bool:
    fd = libbpf.library().bpf_prog_get_fd_by_id(program_id)
    if fd < 0:
        return False
    os.close(fd)
    return True
